/*
 * Two records that all proxies before one Redis share. They are named like guard records, so no client sees them.
 *
 * What the engine learns of workloads outlives a restart, and serves the other proxies too:
 *
 *      a fact is learnt ──> XADD record MAXLEN ~ 10000 * is "pooled" not "" client ... rule ... pattern ...
 *                                                 │
 *      at the start, and once a second ──> XRANGE record LAST + ──> engine_learnt
 *      while a release is held back ─────> XREVRANGE record + - COUNT 16
 *
 * Redis numbers the entries of a stream: each proxy reads what has come since its last look, and compares no clocks. A
 * proxy adds an entry when it learns a fact, and once a day while the workload is in use. It uses its own login. If
 * this login may not use the record, each proxy learns for itself, and the log says so once.
 *
 * An owner may come back at another proxy: behind a load balancer, or when a new process has taken over. A proxy that
 * lets go of a lease puts it on a list, which all proxies read once a second:
 *
 *      owner leaves, or this process stops ──> ZADD list until "db left until token group len identity key"
 *                                                        │
 *      once a second ──> ZRANGEBYSCORE list now +inf ────┴──> is its owner here (engine_awaits)? ──> renew.lua
 * 'successor' │ renewed here from now on (engine_inherited) <── the lease is this proxy's
 *
 * The owner connects at about the time when its lease is left, or later: a proxy to which no session has come for
 * LOOKS_MS does not read. The script compares the token, so only one of two proxies gets a lease. A proxy writes the
 * list with the login of the client that left, and reads it with its own. If these logins may not use the list, a proxy
 * recognises only owners that come back to it.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/clock.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/private.h"
#include "proxy/witness/witness.h"

/* ---- calls on a record ------------------------------------------------------------------------------------ */

static void record_begin(struct worker *w, const char *name, const char *command, size_t argc) {
    build_start(w, argc);
    build_text(w, command);
    lock_build_guard(w, name, strlen(name));
}

/* Sends what is in w->build. A stop waits until `done` has called lock_own_done. */
static void record_submit(struct worker *w, const char *name, uint32_t login, bool repeatable, call_done_fn done) {
    struct request *r = request_internal(w, done);
    struct upstream_lane lane = {.login = login, .protocol = 2};
    w->own_works++;
    r->call.up.repeatable = repeatable;
    call_submit_lane(&r->call, slot_of_key(name, strlen(name)), &lane, w->build.data, w->build.len);
}

static bool record_lost(struct worker *w, const char *name) {
    return upstream_node_lost(upstream_node_of_slot(w->upstream, slot_of_key(name, strlen(name))));
}

/* ---- what is learnt of workloads -------------------------------------------------------------------------- */

static const char RECORD[] = "lockkeeper-learnt";

enum {
    RECORD_ENTRIES = 10000,
    ENTRIES_AT_ONCE = 1000,
    ENTRIES_NEWEST = 16, /* enough while a release is held back */
    GLANCE_MS = 25,
    ACTIVE_MS = 5000,    /* for how long after the last lock command the proxy looks each second */
    IDLE_MS = 10 * 1000, /* between two looks, if there was no lock command lately */
    REFUSED_MS = 60 * 1000,
    FACTS_TEXT_MAX = 64,
    ERROR_SHOWN_MAX = 160
};

static const struct {
    enum workload_fact fact;
    const char *name;
} FACTS[] = {{FACT_POOLED, "pooled"},
             {FACT_LOSERS_RELEASE, "losers-release"},
             {FACT_DEDICATED, "dedicated"},
             {FACT_LOSERS_QUIET, "losers-quiet"}};

enum { FACT_KINDS = ARRAY_SIZE(FACTS) };

/* Logs, once in the process's life, why the record cannot be used. `why`: an error of Redis, or empty. */
static void log_useless(const char *why, size_t len) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *end = memchr(why, '\r', len);
    len = end ? (size_t)(end - why) : len;
    if (!atomic_flag_test_and_set(&said))
        log_notice("What is learnt of clients is not shared, each run of the proxy learns it anew: %.*s",
                   (int)(len < ERROR_SHOWN_MAX ? len : ERROR_SHOWN_MAX), why);
}

/* What the engine has learnt. The engine calls with a shard locked, so the worker writes the entry after the engine has
 * returned. */
struct learnt_note {
    struct worker_job job; /* must be the first field */
    struct lock_facts facts;
    char names[];
};

static void written(struct call *c, const struct call_end *end) {
    if (!end->error && end->len > 0 && end->reply[0] == '-')
        log_useless(end->reply + 1, end->len - 1);
    lock_own_done(c, end);
}

static void build_facts(struct worker *w, unsigned facts) {
    char text[FACTS_TEXT_MAX] = "";
    for (size_t i = 0; i < FACT_KINDS; i++)
        if (facts & FACTS[i].fact) {
            size_t len = strlen(text);
            snprintf(text + len, sizeof(text) - len, "%s%s", len ? " " : "", FACTS[i].name);
        }
    build_text(w, text);
}

static void fact_write(struct worker *w, struct worker_job *job) {
    const struct lock_facts *f = &((struct learnt_note *)(void *)job)->facts;
    record_begin(w, RECORD, "XADD", 16);
    build_text(w, "MAXLEN");
    build_text(w, "~");
    build_number(w, RECORD_ENTRIES);
    build_text(w, "*");
    build_text(w, "is");
    build_facts(w, f->facts);
    build_text(w, "not");
    build_facts(w, f->over);
    build_text(w, "client");
    build_bulk(w, f->identity, f->identity_len);
    build_text(w, "rule");
    build_bulk(w, f->rule, f->rule_len);
    build_text(w, "pattern");
    build_bulk(w, f->pattern, f->pattern_len);
    record_submit(w, RECORD, 0, true, written); /* an entry that is added twice says the same as one */
    record_begin(w, RECORD, "PEXPIRE", 3);
    build_number(w, FACT_MS);
    record_submit(w, RECORD, 0, true, written);
}

void lock_note_learnt(void *arg, const struct lock_facts *facts) {
    struct learnt_note *note = memory_alloc(sizeof(*note) + facts->identity_len + facts->rule_len + facts->pattern_len);
    char *to = note->names;
    note->facts = *facts;
    note->facts.identity = memcpy(to, facts->identity, facts->identity_len);
    to += facts->identity_len;
    note->facts.rule = memcpy(to, facts->rule, facts->rule_len);
    to += facts->rule_len;
    note->facts.pattern = memcpy(to, facts->pattern, facts->pattern_len);
    note->job.run = fact_write;
    worker_add_job(worker_here(), &note->job);
}

/* Reads names of facts, separated by spaces. Unknown names come from a later version, and are skipped. */
static unsigned facts_read(const struct resp_item *text) {
    unsigned facts = 0;
    const char *p = text->str, *end = p + text->len;
    while (p < end) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        size_t len = (size_t)((space ? space : end) - p);
        for (size_t i = 0; i < FACT_KINDS; i++)
            if (strlen(FACTS[i].name) == len && memcmp(FACTS[i].name, p, len) == 0)
                facts |= FACTS[i].fact;
        p += len + 1;
    }
    return facts;
}

static bool is_text(const struct resp_item *item, const char *text) {
    return strlen(text) == item->len && memcmp(item->str, text, item->len) == 0;
}

/* Reads the fields of an entry from *p on: `count` texts, names and values by turns. False: the fields do not name a
 * workload and a fact. */
static bool fields_read(const char **p, const char *over, int64_t count, struct lock_facts *f) {
    struct resp_item name, value;
    for (; count >= 2; count -= 2) {
        if (!resp_item_read(p, over, &name) || name.type != '$' || !resp_item_read(p, over, &value) ||
            value.type != '$')
            return false;
        if (is_text(&name, "is")) {
            f->facts = facts_read(&value);
        } else if (is_text(&name, "not")) {
            f->over = facts_read(&value);
        } else if (is_text(&name, "client")) {
            f->identity = value.str;
            f->identity_len = value.len;
        } else if (is_text(&name, "rule")) {
            f->rule = value.str;
            f->rule_len = value.len;
        } else if (is_text(&name, "pattern")) {
            f->pattern = value.str;
            f->pattern_len = value.len;
        }
    }
    return f->identity && f->rule && f->pattern && f->identity_len <= LOCK_IDENTITY_MAX && (f->facts || f->over);
}

/* Reads one entry from *p on. Copies its id to `last`, which has LEARNT_ID_MAX bytes. If `last` has this id already,
 * the entry is not taken again. False: the bytes are no entry of a stream. */
static bool fact_read(struct worker *w, const char **p, const char *over, char *last) {
    struct resp_item pair, id, fields;
    const char *at = *p;
    *p = resp_item_end(at, over);
    if (!*p || !resp_item_read(&at, *p, &pair) || pair.type != '*' || pair.num != 2 || !resp_item_read(&at, *p, &id) ||
        id.type != '$' || id.len >= LEARNT_ID_MAX || !resp_item_read(&at, *p, &fields) || fields.type != '*')
        return false;
    bool seen = is_text(&id, last);
    memcpy(last, id.str, id.len);
    last[id.len] = '\0';
    int64_t age_ms = clock_wall_ms() - (int64_t)strtoll(last, NULL, 10); /* the id begins with the node's time */
    struct lock_facts facts = {.age_ms = age_ms > 0 ? age_ms : 0};
    if (!seen && fields_read(&at, *p, fields.num, &facts))
        engine_learnt(w->shared->engine, &facts, worker_now(w));
    return true;
}

/* Takes the entries from the last one on that was read. If there is none, the record was lost, and the next look reads
 * from its beginning. */
static void looked(struct call *c, const struct call_end *end) {
    invariant(c->request->worker->locks->learnt.asking, "the record is read twice");
    struct worker *w = c->request->worker;
    struct learnt_look *l = &w->locks->learnt;
    const char *p = end->reply, *over = p ? p + end->len : p;
    struct resp_item array;
    bool answered = !end->error && resp_item_read(&p, over, &array), read = answered && array.type == '*';
    l->asking = false;
    l->refused = answered && !read;
    l->read |= answered;
    if (!answered)
        l->looked_ms = l->read ? l->looked_ms : 0; /* the first look is repeated after a second */
    else if (!read)
        log_useless(p && end->len > 1 ? end->reply + 1 : "", end->len > 1 ? end->len - 1 : 0);
    else if (array.num == 0)
        l->last[0] = '\0';
    for (int64_t i = 0; read && i < array.num && !w->stopping; i++)
        if (!fact_read(w, &p, over, l->last))
            break;
    if (read && array.num == ENTRIES_AT_ONCE && !w->stopping)
        learnt_begin(w);
    lock_own_done(c, end);
}

/* Reads at most `count` entries between two ids. */
static void entries_read(struct worker *w, const char *command, const char *from, const char *to, int64_t count,
                         call_done_fn done) {
    record_begin(w, RECORD, command, 6);
    build_text(w, from);
    build_text(w, to);
    build_text(w, "COUNT");
    build_number(w, count);
    record_submit(w, RECORD, 0, true, done);
}

void learnt_begin(struct worker *w) {
    struct learnt_look *l = &w->locks->learnt;
    l->asking = true;
    l->looked_ms = worker_now(w);
    entries_read(w, "XRANGE", l->last[0] ? l->last : "-", "+", ENTRIES_AT_ONCE, looked);
}

/* Takes the newest entries. Redis sends the newest one first; the engine gets the oldest one first. The next look of
 * the first worker reads these entries once more. */
static void glanced(struct call *c, const struct call_end *end) {
    invariant(c->request->worker->locks->glancing, "the record is read twice");
    struct worker *w = c->request->worker;
    const char *p = end->reply, *over = p ? p + end->len : p, *entries[ENTRIES_NEWEST];
    char last[LEARNT_ID_MAX] = "";
    struct resp_item array;
    size_t count = 0;
    bool read = !end->error && resp_item_read(&p, over, &array) && array.type == '*' && !w->stopping;
    for (int64_t i = 0; read && p && i < array.num && count < ENTRIES_NEWEST; i++) {
        entries[count++] = p;
        p = resp_item_end(p, over);
    }
    while (count > 0)
        (void)fact_read(w, &entries[--count], over, last);
    w->locks->glancing = false;
    lock_own_done(c, end);
}

/* C6: what another proxy has just learnt may decide about a release that is held back here. */
void learnt_glance(struct worker *w) {
    struct worker_locks *locks = w->locks;
    if (locks->glancing || w->stopping || !engine_elsewhere(w->shared->engine) ||
        worker_now(w) - locks->glanced_ms < GLANCE_MS || record_lost(w, RECORD))
        return;
    locks->glancing = true;
    locks->glanced_ms = worker_now(w);
    entries_read(w, "XREVRANGE", "+", "-", ENTRIES_NEWEST, glanced);
}

void learnt_tick(struct worker *w) {
    struct learnt_look *l = &w->locks->learnt;
    int64_t now_ms = worker_now(w);
    if (w->index > 0 || l->asking || w->stopping || !w->opened)
        return;
    /* A look is due each second while locks are in use, otherwise every IDLE_MS. So an idle proxy knows what the others
     * have learnt when clients come to it. */
    uint64_t begun = engine_begun(w->shared->engine);
    if (begun != l->begun)
        l->active_ms = now_ms;
    l->begun = begun;
    int64_t pause_ms = l->refused ? REFUSED_MS : now_ms - l->active_ms < ACTIVE_MS ? 0 : IDLE_MS;
    if (now_ms - l->looked_ms >= pause_ms && !record_lost(w, RECORD))
        learnt_begin(w);
}

/* ---- leases whose owners may come back -------------------------------------------------------------------- */

static const char LIST[] = "lockkeeper-left";

#define FAR_MS ((int64_t)1 << 50) /* beyond every clock; sums do not overflow */

enum { LIST_MS = 3600 * 1000, SLACK_MS = 1000, LOOKS_MS = 5000, FIELDS = 6 };

/* Reads an entry; false: it is malformed. *left points into it, and has times by the engine's clock. */
static bool left_read(const char *entry, size_t len, struct lock_left *left) {
    char fields[FIELDS][LOCK_TOKEN_MAX];
    const char *p = entry, *end = entry + len;
    for (int i = 0; i < FIELDS; i++) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        if (!space || space - p >= LOCK_TOKEN_MAX)
            return false;
        memcpy(fields[i], p, (size_t)(space - p));
        fields[i][space - p] = '\0';
        p = space + 1;
    }
    size_t identity_len = strtoull(fields[5], NULL, 10);
    if (identity_len > LOCK_IDENTITY_MAX || identity_len > (size_t)(end - p))
        return false;
    *left = (struct lock_left){
        .key = {.db = (uint32_t)strtoul(fields[0], NULL, 10),
                .name = p + identity_len,
                .len = (size_t)(end - p) - identity_len},
        .identity = p,
        .identity_len = identity_len,
        .left_ms = strtoll(fields[1], NULL, 10),
        .until_ms = strtoll(fields[2], NULL, 10),
    };
    memcpy(left->token, fields[3], sizeof(left->token));
    memcpy(left->group, fields[4], sizeof(left->group));
    bool known = left->left_ms >= 0 && left->left_ms < FAR_MS && left->until_ms >= 0 && left->until_ms < FAR_MS;
    int64_t set_by_ms = clock_set_by_ms();
    left->left_ms -= set_by_ms;
    left->until_ms -= set_by_ms;
    return known;
}

/* An entry for the list, useless after until_ms; written, as a fact is, after the engine has returned. */
struct left_note {
    struct worker_job job; /* must be the first field */
    uint32_t login;
    int64_t until_ms;
    size_t len;
    char entry[];
};

static void left_write(struct worker *w, struct worker_job *job) {
    const struct left_note *note = (struct left_note *)(void *)job;
    record_begin(w, LIST, "ZADD", 4);
    build_number(w, note->until_ms + clock_set_by_ms());
    build_bulk(w, note->entry, note->len);
    record_submit(w, LIST, note->login, false, lock_own_done);
    record_begin(w, LIST, "PEXPIRE", 3);
    build_number(w, LIST_MS);
    record_submit(w, LIST, note->login, false, lock_own_done);
}

void lock_note_left(void *arg, const struct lock_left *left) {
    struct text entry = {0};
    int64_t set_by_ms = clock_set_by_ms();
    text_printf(&entry, "%" PRIu32 " %" PRId64 " %" PRId64 " %s %s %zu ", left->key.db, left->left_ms + set_by_ms,
                left->until_ms + set_by_ms, left->token, left->group, left->identity_len);
    text_append(&entry, left->identity, left->identity_len);
    text_append(&entry, left->key.name, left->key.len);
    struct left_note *note = memory_alloc(sizeof(*note) + entry.len);
    *note =
        (struct left_note){.job.run = left_write, .login = left->login, .until_ms = left->until_ms, .len = entry.len};
    memcpy(note->entry, entry.data, entry.len);
    text_clear(&entry);
    worker_add_job(worker_here(), &note->job);
}

/* A lease that this proxy is about to take over. */
struct takeover {
    struct request_owner owner; /* must be the first field */
    struct lock_left left;      /* points into `entry` */
    const struct lock_rule *rule;
    uint64_t token;
    char token_text[LOCK_TOKEN_MAX];
    uint32_t login;
    struct worker *worker;
    struct lock_result result; /* what renew.lua has answered */
    size_t len;
    char entry[];
};

/* Ends a takeover. `done`: the lease is this proxy's now. */
static void takeover_end(struct takeover *t, bool done) {
    struct worker *w = t->worker;
    if (done) {
        engine_inherited(w->shared->engine, &t->left, t->rule, t->login, t->token, &t->result, worker_now(w));
        worker_engine_due(w, t->rule->lease_ms / 3);
    }
    w->own_works--;
    lock_rules_unref(t->rule->set);
    memory_free(t);
}

/* The witnesses have heard that the lease has another token now. If they do not confirm it, it is not renewed. */
static void witnessed(void *arg, const struct witness_word *word) {
    takeover_end(arg, vote_verdict(&word->vote) == VERDICT_GRANTED);
}

static void taken_over(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct takeover *t = REQUEST_OWNER(c->request, struct takeover);
    invariant(w->own_works > 0 && t, "no work of the proxy's own is under way");
    struct lock_envelope e;
    lock_answer_read(NULL, end, &e);
    bool known = e.result.outcome != LOCK_NOT_SENT && e.result.outcome != LOCK_UNKNOWN;
    if (known && !w->stopping) {
        record_begin(w, LIST, "ZREM", 3);
        build_bulk(w, t->entry, t->len);
        record_submit(w, LIST, 0, false, lock_own_done);
    }
    t->result = e.result;
    t->result.holder = NULL;
    request_disown(c->request);
    request_reply(c->request, "", 0, true);
    struct witness_lease lease = quorum_lease(&t->left.key, t->token_text, t->result.fence);
    bool done = t->result.outcome == LOCK_DONE;
    if (done && t->rule->quorum == LOCK_QUORUM_YES && w->witnesses) {
        char before[LOCK_TOKEN_MAX + 1];
        snprintf(before, sizeof(before), "=%s", t->left.token);
        witness_take(w->witnesses, &lease, before, quorum_promise_ms(w, t->result.pttl_ms + t->rule->lock_delay_ms),
                     w->config->witness_timeout_ms, witnessed, t);
        return;
    }
    takeover_end(t, done);
}

/* Takes over the lease of an entry, if its owner is here and the proxy would renew it. */
static void take_over(struct worker *w, const char *entry, size_t len) {
    struct lock_left left;
    uint32_t login;
    if (!left_read(entry, len, &left) || !engine_awaits(w->shared->engine, &left, NULL, &login))
        return;
    const struct lock_rule *rule = lock_rules_match(w->rules, left.key.name, left.key.len);
    bool renews = rule && rule->mode == LOCK_MODE_ENFORCE && rule->renew != LOCK_RENEW_NEVER && rule->lease_ms > 0 &&
                  rule->owner != LOCK_OWNER_CONNECTION;
    if (!renews || !engine_awaits(w->shared->engine, &left, rule, &login))
        return;
    invariant(rule->mode == LOCK_MODE_ENFORCE && rule->lease_ms > 0, "S3: a lease is taken over that is not renewed");
    struct takeover *t = memory_zalloc(sizeof(*t) + len);
    t->worker = w;
    memcpy(t->entry, entry, len);
    t->len = len;
    t->rule = rule;
    t->login = login;
    (void)left_read(t->entry, len, &t->left); /* as above, now into its own copy */
    lock_rules_ref(rule->set);
    t->token = engine_token(w->shared->engine, t->token_text);
    int64_t left_ms = t->left.until_ms - worker_now(w) + SLACK_MS;
    lock_build_call(w, SCRIPT_RENEW, NULL, &t->left.key, LOCK_HEADER_ARGS);
    build_text(w, t->token_text);
    build_text(w, t->left.token);
    build_bulk(w, t->left.identity, t->left.identity_len);
    build_text(w, w->shared->process_id);
    build_text(w, lock_right_text(RIGHT_SUCCESSOR));
    build_number(w, rule->lease_ms);
    build_number(w, left_ms > 0 ? left_ms : 0);
    build_bulk(w, "", 0);
    build_number(w, 0);
    build_text(w, "int");
    struct request *r = lock_own_request(w, &t->owner, &request_owner_silent, SCRIPT_RENEW, taken_over);
    struct upstream_lane lane = {.login = login, .db = t->left.key.db, .protocol = 2};
    call_submit_lane(&r->call, slot_of_key(t->left.key.name, t->left.key.len), &lane, w->build.data, w->build.len);
}

static void listed(struct call *c, const struct call_end *end) {
    invariant(c->request->worker->locks->successors_asking, "the list is read twice");
    struct worker *w = c->request->worker;
    const char *p = end->reply, *over = p ? p + end->len : p;
    struct resp_item array, entry;
    bool read = !end->error && !w->stopping && resp_item_read(&p, over, &array) && array.type == '*';
    for (int64_t i = 0; read && i < array.num; i++)
        if (resp_item_read(&p, over, &entry) && entry.type == '$')
            take_over(w, entry.str, entry.len);
    w->locks->successors_asking = false;
    lock_own_done(c, end);
}

void successors_tick(struct worker *w) {
    int64_t came_ms = atomic_load_explicit(&w->shared->came_ms, memory_order_relaxed);
    if (w->locks->successors_asking || w->stopping || !w->opened || worker_now(w) - came_ms > LOOKS_MS ||
        record_lost(w, LIST))
        return;
    w->locks->successors_asking = true;
    record_begin(w, LIST, "ZRANGEBYSCORE", 7);
    build_number(w, clock_wall_ms());
    build_text(w, "+inf");
    build_text(w, "LIMIT");
    build_number(w, 0);
    build_number(w, ENTRIES_AT_ONCE);
    record_submit(w, LIST, 0, true, listed);
}
