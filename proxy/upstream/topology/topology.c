/*
 * Rounds of questions about which node serves which slots: when, to which nodes, one after the other, within a time
 * limit. cluster.c and sentinel.c send the questions and read the answers.
 */
#include "parser/invariant.h"
#include "proxy/upstream/topology/private.h"

#include <stdio.h>
#include <string.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/text.h"
#include "proxy/upstream/connection/control.h"
#include "proxy/upstream/routing/routing.h"

enum {
    INTERVAL_FIRST_MS = 100,
    INTERVAL_LONGEST_MS = 1000,
    CALM_AFTER_MS = 5000, /* after this time without hints, the next hint is answered quickly again */
    NOW_MS = 10,
    OLD_MS = 1500 /* longer than the longest interval between rounds while hints come */
};

/* ---- when ---- */

static void schedule(struct topology *t, int64_t in_ms) {
    struct upstream *u = t->u;
    double wait = (double)in_ms / 1000;
    if (ev_is_active(&t->next) && ev_timer_remaining(u->loop, &t->next) <= wait)
        return;
    ev_timer_stop(u->loop, &t->next);
    ev_timer_set(&t->next, wait, 0.);
    ev_timer_start(u->loop, &t->next);
}

void topology_want(struct topology *t) {
    if (!t || t->u->closing)
        return;
    if (t->candidates) {
        t->again = true;
        return;
    }
    int64_t since = clock_ms() - t->started_ms;
    if (since > CALM_AFTER_MS)
        t->interval_ms = INTERVAL_FIRST_MS;
    if (ev_is_active(&t->next) && ev_timer_remaining(t->u->loop, &t->next) * 1000 <= (double)t->interval_ms)
        return;
    int64_t wait = upstream_jitter(t->u, t->interval_ms) - since;
    schedule(t, wait > 0 ? wait : (int64_t)upstream_random(t->u, NOW_MS));
}

bool topology_is_old(const struct topology *t, int64_t since_ms) {
    return t && (t->ended_ms < since_ms || clock_ms() - t->ended_ms > OLD_MS);
}

void topology_now(struct topology *t) {
    t->interval_ms = INTERVAL_FIRST_MS;
    if (t->candidates)
        t->again = true;
    else
        schedule(t, (int64_t)upstream_random(t->u, NOW_MS));
}

/* ---- whether a node is still the master ---- */

/*
 * Behind Sentinels: whether a node is still the master after connections to it were lost. Another node may have become
 * the master meanwhile. The old master may be back, with old data or none, and act as a master until the Sentinels
 * reconfigure it. A lock acquired there could be acquired twice. So a new connection carries no requests until a round
 * that began after the loss has ended. If the round finds another master, map.c closes the connection.
 *
 *      handshake's end ──> verify_waits ── round ──> its end ──> conn_ready
 *
 * If no Sentinel answers, the last known master is used.
 */
bool verify_waits(struct upstream_conn *c) {
    invariant(c->state == CONN_HANDSHAKE && c->handshake_left == 0, "state %d", (int)c->state);
    struct upstream *u = c->u;
    const struct topology *t = u->topology;
    /* If no connection was open, none could be lost: then a round that is overdue counts as a loss. */
    if (u->config->kind != UPSTREAM_SENTINEL ||
        (c->node->lost_ms <= t->asked_ms && clock_ms() - t->asked_ms <= 2 * t->calm_ms)) {
        c->unverified = false;
        return false;
    }
    if (!c->unverified)
        c->deadline_ms = clock_ms() + u->connect_ms;
    c->unverified = true;
    if (!u->topology->candidates)
        topology_now(u->topology);
    return true;
}

/* ---- the end of a round ---- */

static void end_round(struct topology *t, bool changed) {
    invariant(!t->ctx && !t->lookup, "a round ends while a node is asked");
    struct upstream *u = t->u;
    memory_free(t->candidates);
    t->candidates = NULL;
    t->ended_ms = clock_ms();
    t->asked_ms = t->started_ms;
    t->interval_ms = changed ? INTERVAL_FIRST_MS : t->interval_ms * 2;
    if (t->interval_ms > INTERVAL_LONGEST_MS)
        t->interval_ms = INTERVAL_LONGEST_MS;
    schedule(t, upstream_jitter(u, u->covered == SLOT_COUNT ? t->calm_ms : t->interval_ms));
    if (t->again)
        topology_want(t);
    t->again = false;
    LIST_FOREACH(it, &u->conns) {
        struct upstream_conn *c = LIST_ENTRY(it, struct upstream_conn, link);
        if (c->unverified && c->state != CONN_CLOSED)
            conn_ready(c);
    }
    wait_map_ends(u, t->started_ms);
}

void topology_done(struct topology *t, bool changed) {
    end_round(t, changed);
    upstream_announce(t->u, NULL);
}

/* ---- addresses of a name ---- */

void found_take(struct found *f, const struct addrinfo *list) {
    f->count = f->tried = 0;
    for (; list && f->count < HOST_ADDRESSES; list = list->ai_next)
        resolve_number(list->ai_addr, list->ai_addrlen, f->at[f->count++]);
}

void found_number(struct found *f, const char *number) {
    f->tried = 0;
    f->count = 1;
    snprintf(f->at[0], RESOLVE_NUMBER_MAX, "%.*s", RESOLVE_NUMBER_MAX - 1, number);
}

const char *found_next(struct found *f) {
    invariant(f->tried <= f->count && f->count <= HOST_ADDRESSES, "address %u of %u", f->tried, f->count);
    return f->tried < f->count ? f->at[f->tried++] : NULL;
}

/* ---- candidates ---- */

void topology_add(struct topology *t, const struct address *at) {
    for (size_t i = 0; i < t->candidate_count; i++)
        if (address_same(&t->candidates[i], at))
            return;
    t->candidates = memory_realloc(t->candidates, (t->candidate_count + 1) * sizeof(*t->candidates));
    t->candidates[t->candidate_count++] = *at;
}

void topology_rotate(struct topology *t, size_t from) {
    invariant(from <= t->candidate_count, "candidate %zu of %zu", from, t->candidate_count);
    size_t count = t->candidate_count - from;
    if (count < 2)
        return;
    size_t by = upstream_random(t->u, (uint32_t)count);
    struct address *part = t->candidates + from, *copy = memory_alloc(count * sizeof(*copy));
    for (size_t i = 0; i < count; i++)
        copy[i] = part[(i + by) % count];
    memcpy(part, copy, count * sizeof(*copy));
    memory_free(copy);
}

void topology_reason(const struct topology *t, char *out, size_t size) {
    t->kind->nobody(t, out, size, t->reason);
}

/* ---- one node ---- */

static void note_failure(struct topology *t, const char *reason) {
    char text[ADDRESS_MAX + 16];
    address_text(&t->asked, text, sizeof(text));
    snprintf(t->reason, sizeof(t->reason), "%s: %s", text, reason);
    text_printable(t->reason, sizeof(t->reason), t->reason, strlen(t->reason), '?');
    log_verbose("No topology from %s", t->reason);
}

void topology_drop(struct topology *t) {
    redisAsyncContext *ctx = t->ctx;
    ev_timer_stop(t->u->loop, &t->timeout);
    resolve_cancel(t->lookup);
    t->lookup = NULL;
    t->ctx = NULL;
    if (ctx)
        redisAsyncFree(ctx);
}

void topology_failed(struct topology *t, const char *reason) {
    if (!t->refused)
        note_failure(t, reason);
    topology_drop(t);
    topology_next(t);
}

bool topology_answered(struct topology *t, redisAsyncContext *ctx, const redisReply *reply) {
    if (t->ctx != ctx)
        return false; /* the connection was dropped before */
    if (reply)
        return true;
    t->ctx = NULL; /* hiredis frees it after this call */
    topology_failed(t, control_error(ctx));
    return false;
}

static void on_auth(struct topology *t, enum upstream_own at, const redisAsyncContext *ctx, const redisReply *reply) {
    if (t->ctx != ctx || !reply || reply->type != REDIS_REPLY_ERROR)
        return;
    t->refused = true;
    note_failure(t, reply->str);
    if (t->ctx != ctx || strncmp(reply->str, "WRONGPASS", 9) != 0)
        return;
    login_own_refused();
    t->before[at] = !t->before[at] && login_own_has_before(at);
}

static void on_node_auth(redisAsyncContext *ctx, void *data, void *arg) {
    on_auth(arg, UPSTREAM_OWN_NODES, ctx, data);
}

static void on_sentinel_auth(redisAsyncContext *ctx, void *data, void *arg) {
    on_auth(arg, UPSTREAM_OWN_SENTINELS, ctx, data);
}

void topology_login(struct topology *t, redisAsyncContext *ctx, enum upstream_own at, bool heard) {
    redisCallbackFn *done = at == UPSTREAM_OWN_SENTINELS ? on_sentinel_auth : on_node_auth;
    size_t len;
    char *text = login_text(at, 0, t->before[at], &len);
    if (!text)
        return;
    redisAsyncFormattedCommand(ctx, heard ? done : NULL, t, text, len);
    explicit_bzero(text, len);
    memory_free(text);
}

static void limit_time(struct topology *t) {
    struct upstream *u = t->u;
    ev_timer_stop(u->loop, &t->timeout);
    ev_timer_set(&t->timeout, (double)u->connect_ms / 1000, 0.);
    ev_timer_start(u->loop, &t->timeout);
}

bool topology_connect(struct topology *t, bool to_sentinel) {
    invariant(!t->ctx && t->number, "two nodes are asked at once");
    char why[REASON_MAX];
    t->refused = false;
    t->ctx = control_connect(t->u, &t->asked, t->number, why, sizeof(why));
    if (!t->ctx) {
        note_failure(t, why);
        return false;
    }
    topology_login(t, t->ctx, to_sentinel ? UPSTREAM_OWN_SENTINELS : UPSTREAM_OWN_NODES, true);
    limit_time(t);
    return true;
}

/* Asks the node at the next address of its name. */
static bool ask_found(struct topology *t) {
    while ((t->number = found_next(&t->found)))
        if (t->ask(t))
            return true;
    return false;
}

static void on_found(void *arg, const struct addrinfo *found, const char *error) {
    struct topology *t = arg;
    invariant(t->lookup && !t->ctx, "a lookup answers that was not asked");
    t->lookup = NULL;
    if (error) {
        topology_failed(t, error);
        return;
    }
    found_take(&t->found, found);
    if (!ask_found(t))
        topology_next(t);
}

bool topology_find(struct topology *t, const struct address *at, topology_ask_fn ask) {
    invariant(!t->ctx && !t->lookup, "two nodes are asked at once");
    t->refused = false;
    t->asked = *at;
    t->ask = ask;
    found_take(&t->found, NULL);
    if (resolve_is_number(at->host)) {
        found_number(&t->found, at->host);
        return ask_found(t);
    }
    t->lookup = resolve_start(t->u->loop, at->host, at->port, on_found, t);
    limit_time(t);
    return true;
}

/* ---- a round ---- */

void topology_next(struct topology *t) {
    invariant(!t->ctx && !t->lookup && t->candidate_at <= t->candidate_count, "candidate %zu of %zu", t->candidate_at,
              t->candidate_count);
    if (ask_found(t))
        return;
    while (t->candidate_at < t->candidate_count)
        if (topology_find(t, &t->candidates[t->candidate_at++], t->kind->ask))
            return;
    if (t->kind->in_vain)
        t->kind->in_vain(t);
    end_round(t, false);
    if (t->u->announced)
        return;
    char error[sizeof(t->reason) + 128];
    topology_reason(t, error, sizeof(error));
    log_warning("Upstream: %s", error);
    upstream_announce(t->u, error);
}

static void on_timeout(struct ev_loop *loop, ev_timer *w, int revents) {
    struct topology *t = w->data;
    char reason[64];
    snprintf(reason, sizeof(reason), "no answer%s within %lld ms", t->lookup ? " from the name server" : "",
             (long long)t->u->connect_ms);
    t->refused = false;
    topology_failed(t, reason);
}

static void on_next(struct ev_loop *loop, ev_timer *w, int revents) {
    invariant(!((struct topology *)w->data)->candidates, "two rounds are under way");
    struct topology *t = w->data;
    t->started_ms = clock_ms();
    t->candidate_count = t->candidate_at = 0;
    found_take(&t->found, NULL);
    t->kind->collect(t);
    topology_next(t);
}

void topology_init(struct topology *t, struct upstream *u, const struct topology_kind *kind) {
    t->u = u;
    t->kind = kind;
    t->calm_ms = kind->calm_ms;
    t->interval_ms = INTERVAL_FIRST_MS;
    snprintf(t->reason, sizeof(t->reason), "no node was asked so far");
    ev_timer_init(&t->next, on_next, 0., 0.);
    ev_timer_init(&t->timeout, on_timeout, 0., 0.);
    t->next.data = t->timeout.data = t;
    ev_timer_start(u->loop, &t->next);
}

void topology_clear(struct topology *t) {
    topology_drop(t);
    ev_timer_stop(t->u->loop, &t->next);
    memory_free(t->candidates);
}

void topology_free(struct topology *t) {
    t->kind->free(t);
}
