/*
 * Where the slots are: CLUSTER SLOTS, asked of one node after the other until one answers, over hiredis.
 *
 *      hint (MOVED, lost node, ...) ──> topology_want ──(limited rate, jitter)──> a round:
 *          masters that are well, replicas, the others, seeds ── each is asked ──> map_replace
 *                                                             └─ none answers ──> again, later each time
 *
 * One question at a time. While all is well it asks once a minute. Knows nothing of requests.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include <hiredis/async.h>
#include <hiredis/hiredis.h>

#include <hiredis/adapters/libev.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/private.h"

enum {
    INTERVAL_FIRST_MS = 100,
    INTERVAL_LONGEST_MS = 1000,
    INTERVAL_CALM_MS = 60 * 1000,
    CALM_AFTER_MS = 5000, /* without hints the next one is answered quickly again */
    REPLICAS_MAX = 64
};

struct topology {
    struct upstream *u;
    redisAsyncContext *ctx; /* the node being asked; NULL: none */
    struct address asked;
    ev_timer next, timeout;
    bool again; /* a hint came while a round was under way */
    int64_t started_ms, interval_ms;
    struct address *candidates; /* of this round */
    size_t candidate_count, candidate_at;
    struct address replicas[REPLICAS_MAX];
    size_t replica_count;
    bool refused; /* the node being asked did not accept the login; the reason is its error */
    char reason[ADDRESS_MAX + REASON_MAX];
};

static void ask_next(struct topology *t);

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
    schedule(t, wait > 0 ? wait : (int64_t)upstream_random(t->u, 10));
}

const char *topology_reason(const struct topology *t) {
    return t->reason;
}

/* ---- a round ---- */

static void add_candidate(struct topology *t, const struct address *at) {
    for (size_t i = 0; i < t->candidate_count; i++)
        if (t->candidates[i].port == at->port && strcmp(t->candidates[i].host, at->host) == 0)
            return;
    t->candidates[t->candidate_count++] = *at;
}

/* Starts anywhere, so that many proxies don't ask the same node. */
static void rotate(struct topology *t, size_t from) {
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

static void collect_candidates(struct topology *t) {
    struct upstream *u = t->u;
    size_t most = u->master_count + t->replica_count + u->config->address_count;
    t->candidates = memory_alloc(most * sizeof(*t->candidates));
    t->candidate_count = t->candidate_at = 0;
    for (size_t i = 0; i < u->master_count; i++)
        if (u->masters[i]->failures == 0)
            add_candidate(t, &u->masters[i]->at);
    rotate(t, 0);
    size_t others = t->candidate_count;
    for (size_t i = 0; i < t->replica_count; i++)
        add_candidate(t, &t->replicas[i]);
    for (size_t i = 0; i < u->config->address_count; i++) {
        struct address at;
        if (address_parse(u->config->addresses[i], strlen(u->config->addresses[i]), &at))
            add_candidate(t, &at);
    }
    for (size_t i = 0; i < u->master_count; i++)
        add_candidate(t, &u->masters[i]->at);
    rotate(t, others);
}

static void end_round(struct topology *t, bool changed) {
    struct upstream *u = t->u;
    memory_free(t->candidates);
    t->candidates = NULL;
    t->interval_ms = changed ? INTERVAL_FIRST_MS : t->interval_ms * 2;
    if (t->interval_ms > INTERVAL_LONGEST_MS)
        t->interval_ms = INTERVAL_LONGEST_MS;
    schedule(t, upstream_jitter(u, u->covered == SLOT_COUNT ? INTERVAL_CALM_MS : t->interval_ms));
    if (t->again)
        topology_want(t);
    t->again = false;
}

/* ---- one node ---- */

static void ask_failed(struct topology *t, const char *reason) {
    char text[ADDRESS_MAX + 16];
    address_text(&t->asked, text, sizeof(text));
    snprintf(t->reason, sizeof(t->reason), "%s: %s", text, reason);
    for (char *p = t->reason; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
    log_verbose("Slot map not had from %s", t->reason);
}

/* Lets go of the node being asked, whatever state it is in. */
static void drop_ctx(struct topology *t) {
    redisAsyncContext *ctx = t->ctx;
    ev_timer_stop(t->u->loop, &t->timeout);
    t->ctx = NULL;
    if (ctx)
        redisAsyncFree(ctx);
}

/* An address of a CLUSTER SLOTS entry: host (nil or empty: the host that was asked) and port. */
static bool read_address(const struct topology *t, const redisReply *entry, struct address *at) {
    if (entry->type != REDIS_REPLY_ARRAY || entry->elements < 2 || entry->element[1]->type != REDIS_REPLY_INTEGER)
        return false;
    const redisReply *host = entry->element[0];
    long long port = entry->element[1]->integer;
    if (port < 1 || port > 65535)
        return false;
    at->port = (int)port;
    if (host->type == REDIS_REPLY_NIL || (host->type == REDIS_REPLY_STRING && host->len == 0)) {
        memcpy(at->host, t->asked.host, sizeof(at->host));
        return true;
    }
    if (host->type != REDIS_REPLY_STRING || !address_host_ok(host->str, (size_t)host->len))
        return false; /* among them "?": the node has not been told its name */
    memcpy(at->host, host->str, (size_t)host->len);
    at->host[host->len] = '\0';
    return true;
}

static void read_replicas(struct topology *t, const redisReply *range) {
    for (size_t i = 3; i < range->elements && t->replica_count < REPLICAS_MAX; i++) {
        struct address at;
        if (!read_address(t, range->element[i], &at))
            continue;
        size_t known = 0;
        while (known < t->replica_count &&
               (t->replicas[known].port != at.port || strcmp(t->replicas[known].host, at.host) != 0))
            known++;
        if (known == t->replica_count)
            t->replicas[t->replica_count++] = at;
    }
}

/* Fills the map; returns how many slots are covered. What is not as it should be is left out. */
static unsigned read_slots(struct topology *t, const redisReply *reply, struct upstream_node **slots) {
    unsigned covered = 0;
    t->replica_count = 0;
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *range = reply->element[i];
        if (range->type != REDIS_REPLY_ARRAY || range->elements < 3 || range->element[0]->type != REDIS_REPLY_INTEGER ||
            range->element[1]->type != REDIS_REPLY_INTEGER)
            continue;
        long long first = range->element[0]->integer, last = range->element[1]->integer;
        struct address at;
        if (first < 0 || last >= SLOT_COUNT || first > last || !read_address(t, range->element[2], &at))
            continue;
        struct upstream_node *n = node_get(t->u, &at);
        for (long long slot = first; n && slot <= last; slot++) {
            covered += !slots[slot];
            slots[slot] = n;
        }
        read_replicas(t, range);
    }
    return covered;
}

static void take_map(struct topology *t, struct upstream_node **slots, unsigned covered) {
    struct upstream *u = t->u;
    bool changed = map_replace(u, slots);
    if (changed)
        log_notice("Cluster: %zu masters serve %u of %d slots", u->master_count, covered, SLOT_COUNT);
    node_sweep(u);
    end_round(t, changed);
    upstream_announce(u, NULL);
}

static void on_slots(redisAsyncContext *ctx, void *data, void *arg) {
    struct topology *t = arg;
    const redisReply *reply = data;
    if (t->ctx != ctx)
        return; /* dropped before */
    if (!reply) {
        t->ctx = NULL; /* hiredis frees it after this call */
        ev_timer_stop(t->u->loop, &t->timeout);
        ask_failed(t, ctx->err && ctx->errstr && *ctx->errstr ? ctx->errstr : "the connection was lost");
        ask_next(t);
        return;
    }
    if (reply->type == REDIS_REPLY_ARRAY) {
        struct upstream_node **slots = memory_zalloc(SLOT_COUNT * sizeof(struct upstream_node *));
        unsigned covered = read_slots(t, reply, slots);
        drop_ctx(t);
        if (covered > 0) {
            take_map(t, slots, covered);
        } else {
            ask_failed(t, "it knows no slots");
            ask_next(t);
        }
        memory_free(slots);
        return;
    }
    if (!t->refused)
        ask_failed(t, reply->type == REDIS_REPLY_ERROR ? reply->str : "its answer to CLUSTER SLOTS makes no sense");
    drop_ctx(t);
    ask_next(t);
}

static void on_auth(redisAsyncContext *ctx, void *data, void *arg) {
    struct topology *t = arg;
    const redisReply *reply = data;
    if (t->ctx != ctx || !reply || reply->type != REDIS_REPLY_ERROR)
        return;
    t->refused = true;
    ask_failed(t, reply->str);
}

static void send_auth(struct topology *t) {
    const struct upstream_config *config = t->u->config;
    if (!config->password)
        return;
    const char *argv[3] = {"AUTH", config->password};
    size_t lens[3] = {4, strlen(config->password)};
    int argc = 2;
    if (config->user) {
        argv[2] = argv[1];
        lens[2] = lens[1];
        argv[1] = config->user;
        lens[1] = strlen(config->user);
        argc = 3;
    }
    redisAsyncCommandArgv(t->ctx, on_auth, t, argc, argv, lens);
}

/* False where it failed at once. */
static bool ask(struct topology *t) {
    struct upstream *u = t->u;
    t->refused = false;
    redisAsyncContext *ctx = redisAsyncConnect(t->asked.host, t->asked.port);
    if (!ctx || ctx->err) {
        ask_failed(t, ctx ? ctx->errstr : "out of memory");
        if (ctx)
            redisAsyncFree(ctx);
        return false;
    }
    fcntl(ctx->c.fd, F_SETFD, FD_CLOEXEC);
    if (redisLibevAttach(u->loop, ctx) != REDIS_OK) {
        ask_failed(t, "out of memory");
        redisAsyncFree(ctx);
        return false;
    }
    t->ctx = ctx;
    send_auth(t);
    redisAsyncCommand(ctx, on_slots, t, "CLUSTER SLOTS");
    ev_timer_stop(u->loop, &t->timeout);
    ev_timer_set(&t->timeout, (double)u->connect_ms / 1000, 0.);
    ev_timer_start(u->loop, &t->timeout);
    return true;
}

static void ask_next(struct topology *t) {
    while (t->candidate_at < t->candidate_count) {
        t->asked = t->candidates[t->candidate_at++];
        if (ask(t))
            return;
    }
    end_round(t, false);
    if (t->u->announced)
        return;
    char error[sizeof(t->reason) + 64];
    snprintf(error, sizeof(error), "no node of the cluster answers (last: %s)", t->reason);
    log_warning("Upstream: %s", error);
    upstream_announce(t->u, error);
}

static void on_timeout(struct ev_loop *loop, ev_timer *w, int revents) {
    struct topology *t = w->data;
    char reason[64];
    snprintf(reason, sizeof(reason), "no answer within %lld ms", (long long)t->u->connect_ms);
    ask_failed(t, reason);
    drop_ctx(t);
    ask_next(t);
}

static void on_next(struct ev_loop *loop, ev_timer *w, int revents) {
    struct topology *t = w->data;
    t->started_ms = clock_ms();
    collect_candidates(t);
    ask_next(t);
}

struct topology *topology_new(struct upstream *u) {
    struct topology *t = memory_zalloc(sizeof(*t));
    t->u = u;
    t->interval_ms = INTERVAL_FIRST_MS;
    snprintf(t->reason, sizeof(t->reason), "none was asked so far");
    ev_timer_init(&t->next, on_next, 0., 0.);
    ev_timer_init(&t->timeout, on_timeout, 0., 0.);
    t->next.data = t->timeout.data = t;
    ev_timer_start(u->loop, &t->next);
    return t;
}

void topology_free(struct topology *t) {
    drop_ctx(t);
    ev_timer_stop(t->u->loop, &t->next);
    memory_free(t->candidates);
    memory_free(t);
}
