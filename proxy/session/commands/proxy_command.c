/*
 * The PROXY family: LOCK, TOKEN and RELEASE ask Redis by script, EXPLAIN asks the tables, RELOAD the application. The
 * subcommands that only report (HELP, INFO, LOCKS, TOP, INCIDENTS, RULES, ADVISE, CONFIG) are run by the application,
 * through proxy_shared.admin.
 *
 * A user has the right to them if Redis grants the corresponding CONFIG commands.
 *
 *      INFO, LOCKS, ... ──> CONFIG GET of no parameter      RELOAD, PAUSE ──> CONFIG SET of an unknown one
 *                           │ over the client's own lane, each time: rights come and go
 *                           └─> -NOPERM, or there is no CONFIG at all: refused
 *
 * Clients without login have the node's last answer, even while it is away, since operators need PROXY then: it is
 * asked in advance, and again with each use. Clients of the unix socket and users named by admin-user need no question.
 */
#include <stdio.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/base/units.h"
#include "proxy/lock/rule.h"
#include "proxy/lock/permits.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/locks.h"
#include "proxy/session/push/push.h"

enum {
    RULE_TEXT_MAX = 512,
    KEYS_EXPLAINED = 64,
    PERMITS_SHOWN = 32, /* of a semaphore */
    RELOAD_WAITING_SIZE = 512
};

/* ---- rights --------------------------------------------------------------------------------------- */

static const char LOOK[] = "*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$10\r\nlockkeeper\r\n";
static const char CHANGE[] = "*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$10\r\nlockkeeper\r\n$1\r\n-\r\n";

/* Subcommands that need no right: HELP shows nothing of the proxy, NOTIFY tells a client of its own locks alone, and
 * the others ask Redis for their key, so Redis checks the right. */
static const char *const FOR_ALL[] = {"help", "lock", "token", "release", "notify", NULL};
/* Subcommands that need the right to change. */
static const char *const CHANGING[] = {"reload", "witness", "pause", "resume", "switch", NULL};

/* Whether the session needs no right at Redis. */
static bool is_admin(const struct session *s) {
    const struct config_words *users = &s->worker->config->admin_users;
    const char *user = s->user ? s->user : "default";
    for (size_t i = 0; i < users->count; i++)
        if (strcmp(users->words[i], user) == 0)
            return true;
    return session_by_unix_socket(s);
}

/* Whether the answer shows that the user has the right: no error, an error about the unknown parameter, or a busy node,
 * which has checked the right before. */
static bool granted(const struct call_end *end) {
    static const char *const grants[] = {"-BUSY", "-LOADING", "-MASTERDOWN", "*", "%"};
    for (size_t i = 0; i < ARRAY_SIZE(grants); i++)
        if (reply_begins(end->reply, end->len, grants[i]))
            return true;
    return reply_begins(end->reply, end->len, "-ERR U") &&
           !reply_begins(end->reply, end->len, "-ERR Unknown command") &&
           memmem(end->reply, end->len, "lockkeeper", strlen("lockkeeper"));
}

/* Takes the answer. If no node answers, operators need PROXY: users that had the right to look at their last question
 * still have it, and the login that has paused the proxy may end the pause. */
static void judged(struct call *c, const struct call_end *end) {
    struct session *s = c->request->session;
    const struct worker *w = c->request->worker;
    bool changes = c->index == 1;
    /* No node could be asked; a node that refuses the client's login was. */
    bool away = end->error && end->why != UPSTREAM_REFUSED && strncmp(end->error, "UPSTREAM ", 9) == 0;
    if (s) {
        struct command_state *state = commands_of(s);
        bool paused = w->pause == PAUSE_PROXY && s->lane.login == atomic_load(&w->shared->pause_login);
        bool trusted = changes ? paused : state->looked_in;
        bool right = away ? trusted : !end->error && granted(end);
        if (!changes)
            state->looked_in = right;
        state->rights = end->error ? RIGHTS_NOT_KNOWN_NOW : RIGHTS_REFUSED;
        if (right)
            state->rights = RIGHTS_GRANTED;
    }
    request_reply(c->request, "", 0, true);
}

static void unauthenticated_judged(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    bool first = w->unauthenticated_look == RIGHTS_UNKNOWN;
    if (!end->error)
        w->unauthenticated_look = granted(end) ? RIGHTS_GRANTED : RIGHTS_REFUSED;
    w->unauthenticated_asked = false;
    if (first)
        worker_wake_waiting(w);
    request_reply(c->request, "", 0, true);
}

void rights_ask_unauthenticated(struct worker *w) {
    if (w->unauthenticated_asked)
        return;
    w->unauthenticated_asked = true;
    struct upstream_lane lane = worker_unauthenticated_lane(w);
    struct request *request = request_internal(w, unauthenticated_judged);
    call_submit_lane(&request->call, SLOT_NONE, &lane, LOOK, sizeof(LOOK) - 1);
}

/* Checks the rights for a PROXY command. True: use *result, since the client's rights are being asked for, or are
 * missing. */
static bool rights_wanted(struct session *s, const struct request_class *k, enum dispatch_result *result) {
    struct worker *w = s->worker;
    char word[16];
    if (k->request->argc < 2 || class_arg_choice(k, 1, FOR_ALL) >= 0 || is_admin(s))
        return false;
    bool changes = class_arg_choice(k, 1, CHANGING) >= 0;
    *result = DISPATCH_WAIT;
    if (!changes && session_is_stranger(s)) {
        rights_ask_unauthenticated(w);
        if (w->unauthenticated_look == RIGHTS_UNKNOWN && w->unauthenticated_asked)
            return true;
        commands_of(s)->rights =
            w->unauthenticated_look == RIGHTS_UNKNOWN ? RIGHTS_NOT_KNOWN_NOW : w->unauthenticated_look;
    }
    if (commands_of(s)->rights == RIGHTS_UNKNOWN) {
        if (s->in_flight > 0) /* one of them may change the rights */
            return true;
        struct upstream_lane lane = s->lane;
        lane.protocol = 2;
        if (w->pause == PAUSE_PROXY)
            upstream_try_now(w->upstream);
        struct request *request = request_new(s, NULL); /* without a reply; holds later requests back */
        request->call.done = judged;
        request->call.index = changes;
        request_barrier(request);
        call_submit_lane(&request->call, SLOT_NONE, &lane, changes ? CHANGE : LOOK,
                         changes ? sizeof(CHANGE) - 1 : sizeof(LOOK) - 1);
        if (commands_of(s)->rights == RIGHTS_UNKNOWN)
            return true;
    }
    enum rights rights = commands_of(s)->rights; /* if no node could be asked, the result is there at once */
    commands_of(s)->rights = RIGHTS_UNKNOWN;     /* the next command asks again */
    *result = DISPATCHED;
    if (rights == RIGHTS_REFUSED)
        session_refuse(
            s, k->command,
            "NOPERM PROXY %s is for users with the right to CONFIG %s, users named by admin-user, and clients of the "
            "proxy's unix socket",
            request_arg_text(k->request, k->bytes, 1, word, sizeof(word)), changes ? "SET" : "GET");
    else if (rights != RIGHTS_GRANTED)
        session_refuse(s, k->command, "UPSTREAM no node can be asked for this user's rights; see admin-user");
    return rights != RIGHTS_GRANTED;
}

/* ---- EXPLAIN ------------------------------------------------------------------------------------- */

/* PROXY EXPLAIN under way: the command that it is about, and the pairs of the reply so far. */
struct explanation {
    struct session *session;
    const struct request_class *about;
    struct text body;
    size_t count; /* the elements in `body` */
};

static void pair_of(struct explanation *x, const char *name, const char *value, size_t len) {
    text_bulk(&x->body, name, strlen(name));
    text_bulk(&x->body, value, len);
    x->count += 2;
}

static void pair(struct explanation *x, const char *name, const char *value) {
    pair_of(x, name, value, strlen(value));
}

static bool clobbers(const struct explanation *x) {
    struct request_class k;
    class_find(&k, x->session, x->about->command, x->about->request, x->about->bytes);
    bool found = lock_clobbers(&k);
    class_clear(&k);
    return found;
}

/* Says which client holds the lock, and whether that refuses the command: an attempt, or the release of a loser. A
 * pool's release may be held back, and any other command is decided by Redis. */
static void explain_now(struct explanation *x, enum lock_verb verb, const char *name, size_t len) {
    struct session *s = x->session;
    const struct lock_key key = {s->lane.db, name, len};
    struct lock_standing at;
    char text[LOCK_IDENTITY_MAX + 160], since[32];
    int64_t now_ms = worker_now(s->worker);
    engine_standing(s->worker->shared->engine, &s->lock, &key, now_ms, &at);
    if (at.since_ms == 0) {
        pair(x, "now", "no lease is known to this proxy");
        return;
    }
    units_time_text((now_ms - at.since_ms) / 1000 * 1000, since, sizeof(since));
    bool loser = at.lost && !at.own;
    bool refused = !at.own && (verb == LOCK_ACQUIRE || (verb == LOCK_RELEASE && loser && !at.pooled));
    snprintf(text, sizeof(text), "%s%s %s%s%s", refused ? "would be refused: " : "",
             at.own ? "held by this connection for" : "held for", since, at.own ? "" : " by ", at.own ? "" : at.client);
    size_t n = strlen(text);
    if (loser)
        snprintf(text + n, sizeof(text) - n, "%s this connection has lost its last attempt", refused ? ", and" : ";");
    pair(x, "now", text);
}

/* Explains the effect of the rule on the command; under audit, the effect that enforcing would have. */
static void explain_lock(struct explanation *x, const struct lock_rule *rule, const char *key, size_t len) {
    struct lock_command lc;
    enum lock_verb verb;
    enum script_id script;
    if (rule->mode != LOCK_MODE_OFF &&
        lock_command_of(x->about->command, x->about->request, x->about->bytes, rule->kinds, &lc)) {
        verb = lc.verb;
        script = lc.script;
    } else if (rule->mode != LOCK_MODE_OFF && script_is(x->about->command)) {
        verb = LOCK_SCRIPT;
        script = SCRIPT_ADOPT;
    } else if (rule->mode != LOCK_MODE_OFF && clobbers(x)) {
        verb = LOCK_CLOBBER;
        script = SCRIPT_CLOBBER;
    } else {
        pair(x, "lock-command",
             rule->permits ? "none: forwarded as it is, and the permits in its reply are counted"
                           : "none: forwarded as it is");
        return;
    }
    pair(x, "lock-command", lock_verb_text(verb));
    explain_now(x, verb, key, len);
    if (rule->mode == LOCK_MODE_AUDIT) {
        pair(x, "script", "none under audit: forwarded as it is");
        return;
    }
    pair(x, verb == LOCK_SCRIPT ? "script-behind" : "script", script_get(script)->name);
    pair(x, "script-sha1", script_get(script)->sha1);
}

/* Explains how the holder hears that its lease is over, where the rule asks for more than `tell`. */
static void explain_loss(struct explanation *x, const struct lock_rule *rule) {
    const char *way = rule->on_loss == LOCK_LOSS_CLOSE ? "the holder's connection is closed"
                                                       : "the holder's next command is refused with LOST";
    char text[128];
    if (rule->on_loss == LOCK_LOSS_TELL || rule->mode != LOCK_MODE_ENFORCE)
        return;
    if (rule->owner == LOCK_OWNER_CONNECTION)
        snprintf(text, sizeof(text), "%s", way);
    else if (rule->owner == LOCK_OWNER_AUTO)
        snprintf(text, sizeof(text), "%s, where its connection is known to be its own; else as tell", way);
    else
        snprintf(text, sizeof(text), "as tell: under this owner workers share connections");
    pair(x, "on-loss", text);
}

/* Explains the fence of a key that is no lock, and its effect if this session sends the command. */
static void explain_fence(struct explanation *x, const char *key, size_t len) {
    const struct lock_rule *rule = lock_rules_fence_of(x->session->worker->rules, key, len);
    char text[RULE_TEXT_MAX];
    if (!rule)
        return;
    lock_rule_text(rule, text, sizeof(text));
    pair(x, "fence", text);
    size_t n = lock_fence_lock(rule, key, len, text, sizeof(text));
    pair_of(x, "fence-lock", text, n < sizeof(text) ? n : sizeof(text));
    struct request_class k;
    class_find(&k, x->session, x->about->command, x->about->request, x->about->bytes);
    pair(x, "fence-check", fence_words(x->session, &k));
    class_clear(&k);
}

static void explain_key(struct explanation *x, uint32_t index) {
    size_t len;
    const char *key = class_arg(x->about, index, &len);
    char text[RULE_TEXT_MAX];
    pair_of(x, "key", key, len);
    const struct worker *w = x->session->worker;
    const struct lock_rule *rule = lock_rules_match(w->rules, key, len);
    if (rule) {
        lock_rule_text(rule, text, sizeof(text));
        pair(x, "rule", text);
        explain_lock(x, rule, key, len);
        explain_loss(x, rule);
    } else {
        pair(x, "rule", "none: forwarded as it is");
    }
    explain_fence(x, key, len);
    int slot = slot_of_key(key, len);
    struct upstream *u = w->upstream;
    if (upstream_is_cluster(u)) {
        snprintf(text, sizeof(text), "%d", slot);
        pair(x, "slot", text);
    }
    struct upstream_node *node = upstream_node_of_slot(u, slot);
    pair(x, "node", node ? upstream_node_address(node) : "none serves this slot now");
    if (w->reads && x->about->command->flags & COMMAND_READONLY) {
        read_from_words(x->session, x->about->command, x->about->request, x->about->bytes, text, sizeof(text));
        pair(x, "read-from", text);
    }
}

/* The node of a command without keys; NULL if the command alone does not determine it. */
static const char *node_without_keys(const struct session *s, const struct request_class *about) {
    enum command_need need = about->command->need;
    if (need != NEED_KEYSPACE && need != NEED_MASTERS && need != NEED_KEY && need != NEED_NODE)
        return NULL;
    bool all = need == NEED_KEYSPACE || (need == NEED_MASTERS && masters_asks_all(about));
    if (upstream_is_cluster(s->worker->upstream))
        return all ? "all masters" : "one master";
    struct upstream_node *node = upstream_node_of_slot(s->worker->upstream, 0);
    return node ? upstream_node_address(node) : "none serves now";
}

/* Ends a map; in RESP2 it is an array. */
static void end_map(struct explanation *x, struct text *reply) {
    bool resp3 = x->session->lane.protocol == 3;
    size_t n = resp3 ? x->count / 2 : x->count;
    text_commit(reply, resp_header_write(text_reserve(reply, RESP_HEADER_MAX), resp3 ? '%' : '*', (int64_t)n));
    text_append(reply, x->body.data, x->body.len);
    x->body.len = x->count = 0;
}

static enum dispatch_result proxy_explain(struct session *s, const struct request_class *k) {
    /* The explained command as a request: its offsets are into the same bytes. */
    struct resp_request sub = *k->request;
    sub.argv = k->request->argv + 2;
    sub.argc = k->request->argc - 2;
    const struct command *target = command_lookup(k->bytes + sub.argv[0].off, sub.argv[0].len);
    if (!target && discover(s, &sub, k->bytes, &target))
        return DISPATCH_WAIT;
    uint32_t keys[KEYS_EXPLAINED];
    bool fits = target && command_arity_ok(target, sub.argc);
    int n = fits ? command_keys(target, k->bytes, &sub, keys, KEYS_EXPLAINED) : 0;
    struct request_class about;
    struct explanation x = {.session = s, .about = &about};
    struct text reply = {0};
    class_begin(&about, target, &sub, k->bytes);
    n = n < KEYS_EXPLAINED ? n : KEYS_EXPLAINED;
    bool apart = s->lane.protocol == 3 && n > 1; /* the names in a map must differ: an array of maps */
    if (apart)
        text_commit(&reply, resp_header_write(text_reserve(&reply, RESP_HEADER_MAX), '*', n));
    for (int i = 0; i < n; i++) {
        if (apart || i == 0)
            pair(&x, "command", target->name);
        explain_key(&x, keys[i]);
        if (apart || i + 1 == n)
            end_map(&x, &reply);
    }
    if (n <= 0) {
        pair(&x, "command", target ? target->name : "unknown to the node, too: forwarded as it is");
        const char *node = fits ? node_without_keys(s, &about) : NULL;
        if (target && !fits)
            pair(&x, "error", "wrong number of arguments");
        if (fits)
            pair(&x, "key", "none");
        if (node)
            pair(&x, "node", node);
        end_map(&x, &reply);
    }
    text_clear(&x.body);
    return session_answer_text(s, k->command, &reply);
}

/* ---- the family ---------------------------------------------------------------------------------- */

/* Answers PROXY LOCK of a semaphore: what this proxy knows of its permits. */
static enum dispatch_result proxy_semaphore(struct session *s, const struct command *c, const char *key, size_t len) {
    struct worker *w = s->worker;
    const struct lock_key name = {.db = session_db(s), .name = key, .len = len};
    struct explanation x = {.session = s};
    struct text reply = {0}, holders = {0};
    int64_t held = permits_show(w->shared->permits, &name, PERMITS_SHOWN, worker_now(w), &holders);
    pair_of(&x, "key", key, len);
    pair(&x, "kind", "semaphore");
    text_bulk(&x.body, "permits", sizeof("permits") - 1);
    text_printf(&x.body, ":%lld\r\n", (long long)held);
    x.count += 2;
    pair_of(&x, "holders", holders.len > 0 ? holders.data : "", holders.len);
    end_map(&x, &reply);
    text_clear(&holders);
    text_clear(&x.body);
    return session_answer_text(s, c, &reply);
}

static enum dispatch_result proxy_lock(struct session *s, const struct request_class *k, enum lock_ask what) {
    size_t len;
    const char *key = class_arg(k, 2, &len);
    const struct lock_rule *rule = lock_rule_watched(s, key, len);
    if (rule && rule->permits && what == LOCK_ASK_ALL)
        return proxy_semaphore(s, k->command, key, len);
    if (!lock_rule_for(s, key, len))
        return session_refuse(s, k->command, "ERR the key matches no lock rule that is enforced; see PROXY RULES");
    if (len > LOCK_NAME_MAX)
        return session_refuse(s, k->command, "%s", LOCK_NAME_REFUSED);
    return lock_ask(s, k->command, what, key, len);
}

/* Runs the subcommands that only report; false for others. */
static bool proxy_shown(struct session *s, const struct request_class *k) {
    struct proxy_shared *shared = s->worker->shared;
    const char *words[PROXY_WORDS_MAX];
    size_t lens[PROXY_WORDS_MAX], count = k->request->argc - 1;
    if (count > PROXY_WORDS_MAX || !shared->admin)
        return false;
    for (size_t i = 0; i < count; i++)
        words[i] = class_arg(k, i + 1, &lens[i]);
    struct text reply = {0};
    bool known = shared->admin(shared->admin_arg, s->worker, words, lens, count, s->lane.protocol == 3, &reply);
    if (known)
        session_answer(s, k->command, reply.data, reply.len);
    text_clear(&reply);
    return known;
}

/* ---- long tasks: LOCKS and TOP go through all leases, INCIDENTS through all incidents, RELOAD reads files ---- */

struct proxy_work {
    struct worker_slices slices; /* first */
    struct request *request;
    struct lock_walk *walk; /* LOCKS, TOP */
    char *words[PROXY_WORDS_MAX];
    size_t lens[PROXY_WORDS_MAX], count;
};

/* Starts a task; later requests of the client wait. */
static void work_begin(struct session *s, const struct command *c, struct proxy_work *work,
                       bool (*step)(struct worker *w, struct worker_slices *slices)) {
    work->slices.step = step;
    work->request = request_new(s, c);
    request_barrier(work->request);
    worker_add_slices(s->worker, &work->slices);
}

/* Shows the result once the walk is over, if the session still exists, and ends the task. */
static bool show_step(struct worker *w, struct worker_slices *slices) {
    struct proxy_work *work = (struct proxy_work *)(void *)slices;
    struct proxy_shared *shared = w->shared;
    const struct session *s = work->request->session;
    struct text reply = {0};
    if (work->walk && s && engine_walk_step(shared->engine, work->walk, worker_now(w)))
        return true;
    w->walk = work->walk;
    if (s)
        (void)shared->admin(shared->admin_arg, w, (const char *const *)work->words, work->lens, work->count,
                            s->lane.protocol == 3, &reply);
    w->walk = NULL;
    request_reply(work->request, reply.len > 0 ? reply.data : "", reply.len, true);
    text_clear(&reply);
    for (size_t i = 0; i < work->count; i++)
        memory_free(work->words[i]);
    if (work->walk)
        engine_walk_free(work->walk);
    return false;
}

/* Runs LOCKS and TOP, with the walk that chooses their leases, and INCIDENTS (NULL). Keeps the arguments. */
static void proxy_show_later(struct session *s, const struct request_class *k, struct lock_walk *walk) {
    for (size_t i = 1; i < k->request->argc; i++)
        if (k->request->argv[i].len > PROXY_WORD_MAX) {
            session_refuse(s, k->command, "ERR the pattern is longer than %d bytes", PROXY_WORD_MAX);
            if (walk)
                engine_walk_free(walk);
            return;
        }
    struct proxy_work *work = memory_zalloc(sizeof(*work));
    work->walk = walk;
    for (size_t i = 1; i < k->request->argc; i++, work->count++) {
        const char *word = class_arg(k, i, &work->lens[work->count]);
        work->words[work->count] = memory_strndup(word, work->lens[work->count]);
    }
    work_begin(s, k->command, work, show_step);
}

static bool reload_step(struct worker *w, struct worker_slices *slices) {
    struct proxy_work *work = (struct proxy_work *)(void *)slices;
    struct proxy_shared *shared = w->shared;
    char waiting[RELOAD_WAITING_SIZE], reply[RELOAD_WAITING_SIZE + 64]; /* errors in the file are not for every user */
    if (!shared->reload || !shared->reload(shared->reload_arg, waiting, sizeof(waiting))) {
        request_error(work->request, "ERR the configuration is wrong: the proxy's log says where; nothing was changed");
        return false;
    }
    snprintf(reply, sizeof(reply), "+OK%s%s\r\n", *waiting ? ", and these need a restart: " : "", waiting);
    request_reply(work->request, reply, strlen(reply), true);
    return false;
}

/* PROXY NOTIFY ON|OFF: whether the client gets a push when a lease of its own is over. Only RESP3 has pushes. */
static enum dispatch_result proxy_notify(struct session *s, const struct request_class *k) {
    bool on = class_arg_is(k, 2, "on");
    if (!on && !class_arg_is(k, 2, "off"))
        return session_refuse(s, k->command, "ERR PROXY NOTIFY: expected ON or OFF");
    if (on && s->lane.protocol != 3)
        return session_refuse(s, k->command, "ERR PROXY NOTIFY ON is for RESP3, which has pushes: send HELLO 3 first");
    atomic_store(&s->lock.notified, on);
    return session_answer(s, k->command, "+OK\r\n", 5);
}

enum dispatch_result proxy_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    enum dispatch_result result;
    bool watch = k->request->argc >= 2 && class_arg_is(k, 1, "watch") && k->request->argc - 2 <= PROXY_WORDS_MAX;
    if (watch && s->in_flight > 0)
        return DISPATCH_WAIT; /* replies and lines must keep their order */
    if (rights_wanted(s, k, &result))
        return result;
    char word[64];
    size_t at = k->request->argc > 2 && class_arg_is(k, 1, "lines") ? 2 : 1; /* the index of the subcommand */
    if (watch && s->worker->shared->watch)
        return watch_dispatch(s, k);
    if (k->request->argc < 2)
        return session_refuse(s, c, "ERR wrong number of arguments for 'proxy' command");
    if (class_arg_is(k, 1, "lock") && k->request->argc == 3)
        return proxy_lock(s, k, LOCK_ASK_ALL);
    else if (class_arg_is(k, 1, "token") && k->request->argc == 3)
        return proxy_lock(s, k, LOCK_ASK_TOKEN);
    else if (class_arg_is(k, 1, "release") && k->request->argc == 3)
        return proxy_lock(s, k, LOCK_ASK_RELEASE);
    else if (class_arg_is(k, 1, "witness") && k->request->argc == 4 && class_arg_is(k, 2, "trust"))
        lock_witness_trust(s, c, k->bytes + k->request->argv[3].off, k->request->argv[3].len);
    else if (class_arg_is(k, 1, "notify") && k->request->argc == 3)
        return proxy_notify(s, k);
    else if (class_arg_is(k, 1, "explain") && k->request->argc >= 3)
        return proxy_explain(s, k);
    else if (class_arg_is(k, 1, "reload") && k->request->argc == 2)
        work_begin(s, c, memory_zalloc(sizeof(struct proxy_work)), reload_step);
    else if (class_arg_is(k, 1, "pause") && k->request->argc <= 3)
        return proxy_pause(s, k);
    else if (class_arg_is(k, 1, "resume") && k->request->argc == 2)
        return proxy_resume(s, c);
    else if (class_arg_is(k, 1, "switch") && k->request->argc == 2)
        return proxy_switch(s, c);
    else if (s->worker->shared->admin && class_arg_is(k, at, "locks") && k->request->argc <= at + 2)
        proxy_show_later(s, k, engine_walk_new(LOCKS_SHOWN_MAX, false));
    else if (s->worker->shared->admin && class_arg_is(k, 1, "top") && k->request->argc <= 3)
        proxy_show_later(s, k, engine_walk_new(OLDEST_SHOWN_MAX, true));
    else if (s->worker->shared->admin && class_arg_is(k, at, "incidents") && k->request->argc - 1 <= PROXY_WORDS_MAX)
        proxy_show_later(s, k, NULL);
    else if (!proxy_shown(s, k))
        session_refuse(s, c, "ERR unknown subcommand or wrong number of arguments for '%s'. Try PROXY HELP.",
                       request_arg_text(k->request, k->bytes, 1, word, sizeof(word)));
    return DISPATCHED;
}
