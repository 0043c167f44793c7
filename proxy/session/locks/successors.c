/*
 * Leases whose owners may come back at another proxy: behind a load balancer, or when a new process has taken over. A
 * proxy that lets go of a lease puts it on a list in Redis. All proxies read the list once a second.
 *
 *      owner leaves, or this process stops ──> ZADD list until "db left until token group len identity key"
 *                                                        │
 *      once a second ──> ZRANGEBYSCORE list now +inf ────┴──> is its owner here (engine_awaits)? ──> renew.lua
 * 'successor' │ renewed here from now on (engine_inherited) <── the lease is this proxy's
 *
 * An owner that comes back connects at about the time when its lease is left, or later. So a proxy to which no session
 * has come for LOOKS_MS does not read the list. The script compares the token, so only one of two proxies gets a lease.
 * The list is named like a guard record, so no client is shown it; it belongs to no lock. A proxy writes the list with
 * the login of the client that left, and reads it with its own login. If these logins may not use the list, a proxy
 * recognises only owners that come back to it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/clock.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/leases.h"
#include "proxy/session/locks/lock_args.h"
#include "proxy/session/locks/observing.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/quorum.h"

static const char LIST[] = "lockkeeper-left";

#define FAR_MS ((int64_t)1 << 50) /* beyond every clock; sums do not overflow */

enum { ENTRIES_AT_ONCE = 1000, LIST_MS = 3600 * 1000, SLACK_MS = 1000, LOOKS_MS = 5000, FIELDS = 6 };

/* ---- entries ----------------------------------------------------------------------------------------- */

static void entry_write(const struct lock_left *left, struct text *out) {
    int64_t set_by_ms = clock_set_by_ms();
    text_printf(out, "%" PRIu32 " %" PRId64 " %" PRId64 " %s %s %zu ", left->key.db, left->left_ms + set_by_ms,
                left->until_ms + set_by_ms, left->token, left->group, left->identity_len);
    text_append(out, left->identity, left->identity_len);
    text_append(out, left->key.name, left->key.len);
}

/* Copies the next field, up to a space, as text, and returns where the following field begins. NULL: there is no field,
 * or it is too long. */
static const char *field(const char *p, const char *end, char out[LOCK_TOKEN_MAX]) {
    const char *space = p ? memchr(p, ' ', (size_t)(end - p)) : NULL;
    if (!space || space - p >= LOCK_TOKEN_MAX)
        return NULL;
    memcpy(out, p, (size_t)(space - p));
    out[space - p] = '\0';
    return space + 1;
}

/* Reads an entry. The pointers of *left point into the entry, and its times are by the engine's clock. Returns false if
 * the entry is malformed. */
static bool entry_read(const char *entry, size_t len, struct lock_left *left) {
    char fields[FIELDS][LOCK_TOKEN_MAX];
    const char *p = entry, *end = entry + len;
    for (int i = 0; i < FIELDS; i++)
        p = field(p, end, fields[i]);
    size_t identity_len = p ? strtoull(fields[5], NULL, 10) : 0;
    if (!p || identity_len > LOCK_IDENTITY_MAX || identity_len > (size_t)(end - p))
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

/* ---- the list ------------------------------------------------------------------------------------------ */

/* An entry for the list, which is useless after until_ms. The engine calls with a shard locked, so the worker writes
 * the entry after the engine has returned. */
struct left_note {
    struct worker_job job; /* must be the first field */
    uint32_t login;
    int64_t until_ms;
    size_t len;
    char entry[];
};

static void note_run(struct worker *w, struct worker_job *job) {
    const struct left_note *note = (struct left_note *)(void *)job;
    own_record_begin(w, LIST, "ZADD", 4);
    build_number(w, note->until_ms + clock_set_by_ms());
    build_bulk(w, note->entry, note->len);
    own_record_submit(w, LIST, note->login, false, own_record_done);
    own_record_begin(w, LIST, "PEXPIRE", 3);
    build_number(w, LIST_MS);
    own_record_submit(w, LIST, note->login, false, own_record_done);
}

void lock_note_left(void *arg, const struct lock_left *left) {
    struct text entry = {0};
    entry_write(left, &entry);
    struct left_note *note = memory_alloc(sizeof(*note) + entry.len);
    *note = (struct left_note){.job.run = note_run, .login = left->login, .until_ms = left->until_ms, .len = entry.len};
    memcpy(note->entry, entry.data, entry.len);
    text_clear(&entry);
    worker_add_job(worker_here(), &note->job);
}

/* ---- taking over --------------------------------------------------------------------------------------- */

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

static void takeover_free(struct takeover *t) {
    t->worker->own_works--;
    lock_rules_unref(t->rule->set);
    memory_free(t);
}

static void inherit(struct takeover *t) {
    struct worker *w = t->worker;
    engine_inherited(w->shared->engine, &t->left, t->rule, t->login, t->token, &t->result, worker_now(w));
    worker_engine_due(w, t->rule->lease_ms / 3);
}

/* The witnesses have heard that the lease has another token now. If they do not confirm it, it is not renewed. */
static void witnessed(void *arg, const struct witness_word *word) {
    struct takeover *t = arg;
    if (vote_verdict(&word->vote) == VERDICT_GRANTED)
        inherit(t);
    takeover_free(t);
}

static void taken_over(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct takeover *t = REQUEST_OWNER(c->request, struct takeover);
    invariant(w->own_works > 0 && t, "no work of the proxy's own is under way");
    struct lock_envelope e;
    lock_own_answer(end, &e);
    bool known = e.result.outcome != LOCK_NOT_SENT && e.result.outcome != LOCK_UNKNOWN;
    if (known && !w->stopping) {
        own_record_begin(w, LIST, "ZREM", 3);
        build_bulk(w, t->entry, t->len);
        own_record_submit(w, LIST, 0, false, own_record_done);
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
    if (done)
        inherit(t);
    takeover_free(t);
}

static void take_over(struct worker *w, const char *entry, size_t len, const struct lock_rule *rule, uint32_t login) {
    invariant(rule->mode == LOCK_MODE_ENFORCE && rule->lease_ms > 0, "S3: a lease is taken over that is not renewed");
    struct takeover *t = memory_zalloc(sizeof(*t) + len);
    t->worker = w;
    memcpy(t->entry, entry, len);
    t->len = len;
    t->rule = rule;
    t->login = login;
    (void)entry_read(t->entry, len, &t->left); /* look_at has read the same entry, so it is well-formed */
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
    struct request *r = request_internal(w);
    struct upstream_lane lane = {.login = login, .db = t->left.key.db, .protocol = 2};
    w->own_works++;
    request_own(r, &t->owner, &request_owner_silent);
    r->call.done = taken_over;
    r->call.up.script = script_get(SCRIPT_RENEW);
    r->call.up.repeatable = true;
    call_submit_lane(&r->call, slot_of_key(t->left.key.name, t->left.key.len), &lane, w->build.data, w->build.len);
}

static void look_at(struct worker *w, const char *entry, size_t len) {
    struct lock_left left;
    uint32_t login;
    if (!entry_read(entry, len, &left) || !engine_awaits(w->shared->engine, &left, NULL, &login))
        return;
    const struct lock_rule *rule = lock_rules_match(w->rules, left.key.name, left.key.len);
    bool renews = rule && rule->mode == LOCK_MODE_ENFORCE && rule->renew != LOCK_RENEW_NEVER && rule->lease_ms > 0 &&
                  rule->owner != LOCK_OWNER_CONNECTION;
    if (renews && engine_awaits(w->shared->engine, &left, rule, &login))
        take_over(w, entry, len, rule, login);
}

static void listed(struct call *c, const struct call_end *end) {
    invariant(c->request->worker->locks->successors_asking, "the list is read twice");
    struct worker *w = c->request->worker;
    const char *p = end->reply, *over = p ? p + end->len : p;
    struct resp_item array, entry;
    bool read = !end->error && !w->stopping && resp_item_read(&p, over, &array) && array.type == '*';
    for (int64_t i = 0; read && i < array.num; i++)
        if (resp_item_read(&p, over, &entry) && entry.type == '$')
            look_at(w, entry.str, entry.len);
    w->locks->successors_asking = false;
    own_record_done(c, end);
}

void successors_tick(struct worker *w) {
    int64_t came_ms = atomic_load_explicit(&w->shared->came_ms, memory_order_relaxed);
    if (w->locks->successors_asking || w->stopping || !w->opened || worker_now(w) - came_ms > LOOKS_MS ||
        own_record_lost(w, LIST))
        return;
    w->locks->successors_asking = true;
    own_record_begin(w, LIST, "ZRANGEBYSCORE", 7);
    build_number(w, clock_wall_ms());
    build_text(w, "+inf");
    build_text(w, "LIMIT");
    build_number(w, 0);
    build_number(w, ENTRIES_AT_ONCE);
    own_record_submit(w, LIST, 0, true, listed);
}
