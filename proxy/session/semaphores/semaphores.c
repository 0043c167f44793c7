/*
 * Requests on semaphores, and what their replies tell. A request is sent as it came, and kept until its reply has come.
 *
 * Permits are due when their session has closed, or their lease is over. The proxy gives each back once.
 *
 *      session closes ──> a job at the end of the turn ──> permits_leave ──┐
 *      each second ──> permits_expire ─────────────────────────────────────┴──> permits_due ──> give_back.lua
 *
 * The call goes with its taker's login, after some tries with the proxy's own. It is made again if it was not sent, or
 * the node refused it. If its outcome is unknown, it is made again only for a member of a sorted set, since the script
 * sees by the score whether it has run.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/semaphores/semaphores.h"
#include "proxy/upstream/script.h"

enum {
    COUNT_MAX = 1000000000,
    UNTRACKED_LOGGED = 1000,
    TRIES_MAX = 300,
    TRIES_OWN = 5,
    AGAIN_MS = 1000,
    REFUSED_LOGGED = 60
};

/* ---- permits that are due ------------------------------------------------------------------------------------ */

struct give_back {
    struct request_owner owner; /* must be the first field */
    struct permit *permit;
};

static void report(struct worker *w, const struct permit *p, enum lock_incident_kind kind, const char *what) {
    const char *reason = p->reason == PERMIT_EXPIRED ? "its lease is over" : "its connection is gone";
    char action[160];
    if (p->n > 1)
        snprintf(action, sizeof(action), "%s: %lld permits %s", reason, (long long)p->n, what);
    else
        snprintf(action, sizeof(action), "%s: %s", reason, what);
    const struct lock_incident on = {.kind = kind,
                                     .time_ms = worker_now(w),
                                     .key = p->name,
                                     .rule = p->rule->pattern,
                                     .client = p->who,
                                     .action = action};
    engine_report(w->shared->engine, &on);
}

static void give_up(struct worker *w, struct permit *p, const char *what) {
    counter_add(&w->counters.permits_lost, (uint64_t)p->n);
    report(w, p, INCIDENT_PERMIT_LOST, what);
    permits_drop(w->shared->permits, p);
}

static void give_back_done(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct give_back *work = REQUEST_OWNER(c->request, struct give_back);
    struct permit *p = work->permit;
    request_disown(c->request);
    memory_free(work);
    invariant(w->own_works > 0, "no work of the proxy's own is under way");
    w->own_works--;
    request_reply(c->request, "", 0, true);
    if (end->error && end->why == UPSTREAM_UNKNOWN && p->shape != PERMIT_MEMBER) {
        give_up(w, p, "the node was lost: whether it was given back is not known, and it is not given back twice");
    } else if ((end->error || end->reply[0] != ':') && p->tries >= TRIES_MAX) {
        give_up(w, p, "not given back: the node was out of reach, or refused it");
    } else if (end->error || end->reply[0] != ':') {
        if (p->tries % REFUSED_LOGGED == 1)
            log_warning("a permit could not be given back, and is tried again: %.*s",
                        end->error ? (int)strlen(end->error) : (int)(end->len > 400 ? 400 : end->len - 3),
                        end->error ? end->error : end->reply + 1);
        if (p->tries >= TRIES_OWN)
            p->login = 0; /* the taker's login may be over, as its session is */
        permits_put_back(w->shared->permits, p, worker_now(w), AGAIN_MS);
    } else { /* 0: the semaphore was reset, or the permit is back already */
        if (end->reply[1] == '1') {
            counter_add(&w->counters.permits_returned, (uint64_t)p->n);
            report(w, p, INCIDENT_PERMIT_RETURNED, "given back");
        }
        permits_drop(w->shared->permits, p);
    }
}

static void give_back(struct worker *w, struct permit *p) {
    static const char *const shapes[] = {"count", "token", "member"};
    if (p->rule->permits == LOCK_PERMITS_AUDITED) {
        report(w, p, INCIDENT_PERMIT_RETURNED, "would be given back");
        permits_drop(w->shared->permits, p);
        return;
    }
    struct request *request = request_internal(w, give_back_done);
    struct give_back *work = memory_zalloc(sizeof(*work));
    work->permit = p;
    request_own(request, &work->owner, &request_owner_silent);
    request->call.up.script = script_get(SCRIPT_GIVE_BACK);
    request->call.up.repeatable = p->shape == PERMIT_MEMBER;
    struct upstream_lane lane = {.login = p->login, .db = p->name.db, .protocol = 2};
    w->own_works++;
    build_start(w, 7);
    build_text(w, "EVALSHA");
    build_text(w, script_get(SCRIPT_GIVE_BACK)->sha1);
    build_number(w, 1);
    build_bulk(w, p->name.name, p->name.len);
    build_text(w, shapes[p->shape]);
    if (p->shape == PERMIT_COUNT)
        build_number(w, p->n);
    else
        build_bulk(w, p->text, p->len);
    build_text(w, p->shape == PERMIT_MEMBER ? p->score : p->alike ? "alike" : "");
    call_submit_lane(&request->call, slot_of_key(p->name.name, p->name.len), &lane, w->build.data, w->build.len);
}

static void permits_give_back(struct worker *w) {
    struct permit *p;
    while (!w->stopping && permits_any(w->shared->permits) && (p = permits_due(w->shared->permits, worker_now(w))))
        give_back(w, p);
}

/* Whether the client (lock_client_hash) has no session any more. Never in a process that leaves: the client's new
 * connections go to another process, and may have the permits. */
static bool client_left(struct worker *w, uint64_t client) {
    return !w->leaving && !engine_client_connected(w->shared->engine, client);
}

/* ---- deeds ------------------------------------------------------------------------------------------ */

enum permit_deed {
    DEED_NONE,
    DEED_COUNT, /* INCR, DECR, INCRBY, DECRBY */
    DEED_POP,   /* LPOP, RPOP: the reply names tokens */
    DEED_BPOP,  /* BLPOP, BRPOP: the reply names a key and a token */
    DEED_PUSH,
    DEED_ADD, /* ZADD, ZINCRBY */
    DEED_REMOVE,
    DEED_RESET,  /* DEL, UNLINK, RENAME: whether the key was there or not */
    DEED_REPLACE /* SET and similar: unless the reply is nil or 0 */
};

struct noted_key {
    struct permit_op op;
    const struct lock_rule *rule;
    uint32_t at; /* the argument */
};

struct permit_note {
    struct request_owner owner; /* must be the first field */
    const struct command *command;
    enum permit_deed deed;
    struct lock_rules *rules;    /* a reference that keeps the rules alive */
    struct permit_sender sender; /* its `who` is here */
    char who[PERMIT_WHO_MAX];
    char *bytes; /* the request */
    size_t len, count;
    struct noted_key keys[];
};

/* A note whose reply is being read: the request's arguments, and the first element of the reply. */
struct reading {
    struct worker *w;
    struct permit_ledger *ledger;
    struct permit_note *note;
    struct resp_request request;
    const char *reply, *end; /* behind `first` */
    struct resp_item first;
    bool unknown; /* the node was lost: the command may have run */
    bool took;
};

static const uint8_t deeds[COMMAND_COUNT] = {
    [COMMAND_INCR] = DEED_COUNT,       [COMMAND_INCRBY] = DEED_COUNT,  [COMMAND_DECR] = DEED_COUNT,
    [COMMAND_DECRBY] = DEED_COUNT,     [COMMAND_LPOP] = DEED_POP,      [COMMAND_RPOP] = DEED_POP,
    [COMMAND_BLPOP] = DEED_BPOP,       [COMMAND_BRPOP] = DEED_BPOP,    [COMMAND_LPUSH] = DEED_PUSH,
    [COMMAND_RPUSH] = DEED_PUSH,       [COMMAND_LPUSHX] = DEED_PUSH,   [COMMAND_RPUSHX] = DEED_PUSH,
    [COMMAND_ZADD] = DEED_ADD,         [COMMAND_ZINCRBY] = DEED_ADD,   [COMMAND_ZREM] = DEED_REMOVE,
    [COMMAND_DEL] = DEED_RESET,        [COMMAND_UNLINK] = DEED_RESET,  [COMMAND_RENAME] = DEED_RESET,
    [COMMAND_RESTORE] = DEED_RESET,    [COMMAND_SET] = DEED_REPLACE,   [COMMAND_SETEX] = DEED_REPLACE,
    [COMMAND_PSETEX] = DEED_REPLACE,   [COMMAND_SETNX] = DEED_REPLACE, [COMMAND_GETSET] = DEED_REPLACE,
    [COMMAND_GETDEL] = DEED_REPLACE,   [COMMAND_MSET] = DEED_REPLACE,  [COMMAND_MSETNX] = DEED_REPLACE,
    [COMMAND_RENAMENX] = DEED_REPLACE, [COMMAND_COPY] = DEED_REPLACE,  [COMMAND_MOVE] = DEED_REPLACE,
};

/* The difference that a command on a counter makes; 0: it is malformed. */
static int64_t count_of(const struct command *c, const struct resp_request *r, const char *bytes) {
    int64_t n = 1;
    bool by = c->id == COMMAND_INCRBY || c->id == COMMAND_DECRBY;
    if (by && (r->argc <= 2 || !request_arg_integer(r, bytes, 2, &n) || n == INT64_MIN))
        return 0;
    return c->id == COMMAND_DECR || c->id == COMMAND_DECRBY ? -n : n;
}

/* How many permits the request may give back at most; 0: it gives none back. */
static int64_t gives_of(enum permit_deed deed, const struct command *c, const struct resp_request *r,
                        const char *bytes) {
    if (deed == DEED_COUNT) {
        int64_t n = count_of(c, r, bytes);
        return n >= 0 ? 0 : -n < COUNT_MAX ? -n : COUNT_MAX;
    }
    return (deed == DEED_PUSH || deed == DEED_REMOVE) && r->argc > 2 ? (int64_t)r->argc - 2 : 0;
}

/* ---- noting a request ------------------------------------------------------------------------------ */

static bool is_semaphore(const struct request_class *k, size_t i) {
    const struct lock_rule *rule = class_rule(k, i);
    return rule && rule->permits;
}

struct permit_note *permit_note(struct session *s, const struct request_class *k) {
    enum permit_deed deed = deeds[k->command->id];
    if (deed == DEED_NONE)
        return NULL;
    size_t count = 0;
    for (size_t i = 0; i < k->key_count; i++)
        count += is_semaphore(k, i);
    struct permit_note *note = memory_zalloc(sizeof(*note) + count * sizeof(note->keys[0]));
    note->command = k->command;
    note->deed = deed;
    note->rules = lock_rules_ref(s->worker->rules);
    note->sender = (struct permit_sender){
        .session = s->lock.id, .client = lock_client_hash(s->lock.client), .login = s->lane.login, .who = note->who};
    session_who(s, note->who, sizeof(note->who));
    note->len = k->request->len;
    note->bytes = memory_alloc(note->len);
    memcpy(note->bytes, k->bytes, note->len);
    int64_t gives = gives_of(deed, k->command, k->request, k->bytes);
    for (size_t i = 0; i < k->key_count; i++) {
        struct lock_key name = {.db = session_db(s)};
        if (!is_semaphore(k, i))
            continue;
        struct noted_key *key = &note->keys[note->count++];
        key->rule = class_rule(k, i);
        key->at = k->keys[i];
        name.name = class_key(k, i, &name.len);
        permits_begin(s->worker->shared->permits, &key->op, &name, gives);
    }
    return note;
}

static void note_free(struct worker *w, struct permit_note *note) {
    for (size_t i = 0; i < note->count; i++)
        permits_end(w->shared->permits, &note->keys[i].op);
    lock_rules_unref(note->rules);
    MEMORY_FREE_ALL(note->bytes, note);
}

/* ---- the reply ------------------------------------------------------------------------------------- */

static const char *arg(const struct reading *x, size_t i, size_t *len) {
    return request_arg(&x->request, x->note->bytes, i, len);
}

static void take(struct reading *x, const struct noted_key *key, struct permit_take *take) {
    struct worker *w = x->w;
    take->sender = &x->note->sender;
    take->rule = key->rule;
    take->now_ms = worker_now(w);
    if (permits_take(x->ledger, &key->op, take)) {
        counter_add(&w->counters.permits_taken, take->shape == PERMIT_COUNT ? (uint64_t)take->n : 1);
    } else {
        if (counter_read(&w->counters.permits_untracked) % UNTRACKED_LOGGED == 0)
            log_warning("permits of semaphores are not tracked: there are %d, or a name is too long", PERMITS_MAX);
        counter_add(&w->counters.permits_untracked, 1);
    }
    x->took = true;
}

/* Reports a permit that may have been taken or given back: nothing is done about it. */
static void lost(struct reading *x, const struct noted_key *key, const char *action) {
    counter_add(&x->w->counters.permits_lost, 1);
    const struct lock_incident on = {.kind = INCIDENT_PERMIT_LOST,
                                     .time_ms = worker_now(x->w),
                                     .key = key->op.name,
                                     .rule = key->rule->pattern,
                                     .client = x->note->sender.who,
                                     .command = x->note->command->name,
                                     .action = action};
    engine_report(x->w->shared->engine, &on);
}

static void read_count(struct reading *x, const struct noted_key *key) {
    int64_t n = count_of(x->note->command, &x->request, x->note->bytes);
    bool done = !x->unknown && x->first.type == ':';
    if (n > COUNT_MAX || n < -COUNT_MAX) /* it sets the counter */
        permits_forget(x->ledger, &key->op);
    else if (n > 0 && done)
        take(x, key, &(struct permit_take){.shape = PERMIT_COUNT, .n = n, .value = x->first.num});
    else if (n > 0 && x->unknown)
        lost(x, key, "the node was lost: whether the permit was taken is not known, so it is not given back");
    else if (n < 0 && (done || x->unknown))
        counter_add(&x->w->counters.permits_given, (uint64_t)permits_give(x->ledger, &key->op, &x->note->sender, -n));
}

static void take_token(struct reading *x, const struct noted_key *key, const struct resp_item *item) {
    if (item->type == '$' && !item->null)
        take(x, key, &(struct permit_take){.shape = PERMIT_TOKEN, .text = item->str, .len = item->len});
}

/* Reads the reply of LPOP, the tokens; or of BLPOP, the key and the token. If the node was lost, BLPOP has most likely
 * waited. */
static void read_pop(struct reading *x, const struct noted_key *key) {
    struct resp_item item;
    size_t len;
    const char *own = arg(x, key->at, &len), *p = x->reply;
    if (x->note->deed == DEED_BPOP) {
        if (x->first.type == '*' && x->first.num == 2 && resp_item_read(&p, x->end, &item) && item.len == len &&
            memcmp(item.str, own, len) == 0 && resp_item_read(&p, x->end, &item) && !x->took)
            take_token(x, key, &item);
        return;
    }
    if (x->unknown) {
        lost(x, key, "the node was lost: whether a token was taken is not known, so none is given back");
        return;
    }
    take_token(x, key, &x->first);
    for (int64_t i = 0; x->first.type == '*' && i < x->first.num && resp_item_read(&x->reply, x->end, &item); i++)
        take_token(x, key, &item);
}

/* Reads which members ZADD has added. A reply that is neither 0 nor their number does not tell. */
static void read_zadd(struct reading *x, const struct noted_key *key) {
    static const char *const options[] = {"nx", "xx", "gt", "lt", "ch", "incr", NULL};
    bool keeps = false; /* NX: members that are there keep their scores */
    size_t at = 2, len;
    for (; at < x->request.argc; at++) {
        char word[8] = "";
        const char *text = arg(x, at, &len);
        if (len < sizeof(word))
            memcpy(word, text, len);
        int option = text_choice(word, options);
        if (option < 0)
            break;
        keeps = keeps || option == 0;
    }
    size_t pairs = (x->request.argc - at) / 2; /* `at` is the score of the first member */
    int64_t added = x->first.type == ':' ? x->first.num : 0;
    if (!x->unknown && (x->first.type != ':' || (added > 0 && added != (int64_t)pairs)))
        return;
    for (; at + 1 < x->request.argc; at += 2) {
        struct permit_take t = {.shape = PERMIT_MEMBER};
        t.score = arg(x, at, &t.score_len);
        t.text = arg(x, at + 1, &t.len);
        /* The script that gives a member back compares its score, so an unknown outcome does no harm. */
        if (added > 0 || x->unknown)
            take(x, key, &t);
        else if (!keeps)
            permits_rescore(x->ledger, &key->op, t.text, t.len, t.score, t.score_len);
    }
}

static void read_key(struct reading *x, const struct noted_key *key) {
    const struct resp_item *first = &x->first;
    bool positive = x->unknown || (first->type == ':' && first->num > 0);
    bool score = !x->unknown && (first->type == '$' || first->type == ',') && !first->null;
    const char *text;
    size_t len;
    switch (x->note->deed) {
    case DEED_COUNT:
        read_count(x, key);
        break;
    case DEED_POP:
    case DEED_BPOP:
        read_pop(x, key);
        break;
    case DEED_PUSH:
    case DEED_REMOVE:
        for (size_t i = 2; positive && i < x->request.argc; i++) {
            text = arg(x, i, &len);
            if (permits_give_text(x->ledger, &key->op, &x->note->sender, text, len))
                counter_add(&x->w->counters.permits_given, 1);
        }
        break;
    case DEED_ADD:
        if (x->note->command->id == COMMAND_ZADD)
            read_zadd(x, key);
        if (score && x->request.argc >= 4) { /* of ZINCRBY, or of ZADD INCR */
            text = arg(x, x->request.argc - 1, &len);
            permits_rescore(x->ledger, &key->op, text, len, first->str, first->len);
        }
        break;
    case DEED_REPLACE:
        if (x->unknown || (!first->null && !(first->type == ':' && first->num == 0)))
            permits_forget(x->ledger, &key->op);
        break;
    case DEED_RESET:
        permits_forget(x->ledger, &key->op);
        break;
    case DEED_NONE:
        break;
    }
}

void permit_note_end(struct worker *w, struct session *s, struct permit_note *note, const struct call_end *end) {
    struct permit_ledger *ledger = w->shared->permits;
    struct reading x = {.w = w, .ledger = ledger, .note = note, .reply = end->reply};
    x.unknown = end->error && end->why == UPSTREAM_UNKNOWN;
    x.end = end->error ? NULL : end->reply + end->len;
    bool ran = x.unknown || (!end->error && resp_item_read(&x.reply, x.end, &x.first) && x.first.type != '-');
    if (resp_request_read(&x.request, note->bytes, note->len) && ran)
        for (size_t i = 0; i < note->count; i++)
            read_key(&x, &note->keys[i]);
    resp_request_clear(&x.request);
    if (!s && x.took && !w->stopping) {
        bool last = client_left(w, note->sender.client);
        permits_leave(ledger, note->sender.session, note->sender.client, last, false, worker_now(w));
    }
    note_free(w, note);
    permits_give_back(w);
}

/* ---- requests -------------------------------------------------------------------------------------- */

static void semaphore_answered(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct permit_note *note = REQUEST_OWNER(r, struct permit_note);
    request_disown(r);
    permit_note_end(r->worker, r->session, note, end);
    if (end->error)
        request_fail(r, end->error);
    else
        request_reply(r, end->reply, end->len, true);
}

enum dispatch_result semaphore_forward(struct session *s, const struct request_class *k) {
    struct permit_note *note = permit_note(s, k);
    return note ? class_forward(s, k, &note->owner, semaphore_answered) : class_pass(s, k, k->slot);
}

void semaphore_passes(struct session *s, const struct request_class *k) {
    enum permit_deed deed = deeds[k->command->id];
    bool resets = deed == DEED_RESET || deed == DEED_REPLACE;
    if (!resets && gives_of(deed, k->command, k->request, k->bytes) == 0)
        return;
    struct permit_note *note = permit_note(s, k);
    for (size_t i = 0; i < note->count; i++)
        permits_forget(s->worker->shared->permits, &note->keys[i].op);
    note_free(s->worker, note);
}

void semaphore_flushes(struct session *s, const struct command *c) {
    if (permits_any(s->worker->shared->permits) &&
        (c->id == COMMAND_FLUSHALL || c->id == COMMAND_FLUSHDB || c->id == COMMAND_SWAPDB))
        permits_forget_all(s->worker->shared->permits, session_db(s), c->id != COMMAND_FLUSHDB);
}

/* ---- sessions that close ---------------------------------------------------------------------------- */

/* A session has closed. At the end of the turn the engine knows whether it was the last one of its client. */
struct leaving {
    struct worker_job job; /* must be the first field */
    uint64_t session, client;
    bool one_shot;
};

static void left(struct worker *w, struct worker_job *job) {
    const struct leaving *s = (struct leaving *)(void *)job;
    bool last = client_left(w, s->client);
    permits_leave(w->shared->permits, s->session, s->client, last, s->one_shot, worker_now(w));
    permits_give_back(w);
}

/* A session that a stopping process closes has a worker that goes on, and connects to another proxy. */
static void session_closes(struct session *s) {
    struct worker *w = s->worker;
    if (w->stopping || !permits_any(w->shared->permits))
        return;
    struct leaving *leaving = memory_alloc(sizeof(*leaving));
    *leaving = (struct leaving){.job = {.run = left},
                                .session = s->lock.id,
                                .client = lock_client_hash(s->lock.client),
                                .one_shot = s->lock.one_shot};
    worker_add_job(w, &leaving->job);
}

static void second_over(struct worker *w) {
    if (!permits_any(w->shared->permits))
        return;
    if (w->index == 0)
        permits_expire(w->shared->permits, worker_now(w));
    permits_give_back(w);
}

static void rules_come(struct worker *w) {
    if (permits_any(w->shared->permits))
        permits_rules(w->shared->permits, w->rules);
}

const struct session_room semaphores_room = {
    .closes = session_closes, .worker_ticks = second_over, .worker_rules = rules_come};
