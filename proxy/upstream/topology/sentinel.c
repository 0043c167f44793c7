/*
 * Which node is the master that Sentinels watch.
 *
 *      a round:  Sentinel ── get-master-addr-by-name, MASTER, SENTINELS ──> address ── ROLE ──> "master":
 * map_replace_master ^                                                         └─ anything else ──┐
 *                    └──────────────────────── the next one ──────────────────────────────────────┘
 *      a subscription to each Sentinel ── +switch-master ──> a round that begins with it
 *
 * A Sentinel that was cut off for a while may still name the old master, and the old master's ROLE may still say
 * "master". So of two answers the one with the greater configuration epoch counts. Sentinels that others name are asked
 * and watched, too. A lost subscription is opened again, later each time, with jitter. It knows nothing of requests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/control.h"
#include "proxy/upstream/routing/routing.h"
#include "proxy/upstream/topology/private.h"

enum { CALM_MS = 10 * 1000, SENTINELS_MAX = 32, AGAIN_FIRST_MS = 200, AGAIN_LONGEST_MS = 10 * 1000 };

/* A subscription to a Sentinel; when it is lost, it is opened again. */
struct sentinel_watch {
    struct sentinel *sentinel;
    struct address at;
    bool known;             /* configured, or named by the Sentinel that answered last */
    redisAsyncContext *ctx; /* NULL: not connecting, or its name is being looked up */
    struct resolve *lookup; /* NULL: no lookup is under way */
    struct found found;     /* the addresses of its name: tried one after the other */
    bool subscribed;
    ev_timer timer; /* connecting: the limit; not connected: the time of the next attempt */
    unsigned failures;
};

struct sentinel {
    struct topology topology; /* first */
    struct sentinel_watch *watches[SENTINELS_MAX];
    size_t watch_count;
    struct address first; /* the Sentinel to ask first, with has_first */
    bool has_first;
    struct address replicas[REPLICAS_MAX]; /* as named by it, too */
    size_t replica_count;
    struct address named; /* the master, as named by the Sentinel being asked */
    uint64_t named_epoch; /* its configuration epoch; 0: not known */
    uint64_t epoch;       /* the epoch of the master in use */
};

static struct sentinel *sentinel_of(struct topology *t) {
    return (struct sentinel *)(void *)t;
}

/* ---- subscriptions: one connection to each Sentinel, for +switch-master ---- */

static void set_timer(struct sentinel_watch *w, int64_t ms) {
    struct ev_loop *loop = w->sentinel->topology.u->loop;
    ev_timer_stop(loop, &w->timer);
    ev_timer_set(&w->timer, (double)ms / 1000, 0.);
    ev_timer_start(loop, &w->timer);
}

static void watch_lost(struct sentinel_watch *w, const char *reason) {
    invariant(!w->ctx && !w->lookup, "a subscription is lost that is being opened");
    set_timer(w, upstream_backoff(w->sentinel->topology.u, AGAIN_FIRST_MS, AGAIN_LONGEST_MS, w->failures));
    if (w->failures++ == 0)
        log_notice("No subscription to Sentinel %s:%d: %s", w->at.host, w->at.port, reason);
    w->subscribed = false;
}

static void watch_drop(struct sentinel_watch *w) {
    redisAsyncContext *ctx = w->ctx;
    w->ctx = NULL;
    resolve_cancel(w->lookup);
    w->lookup = NULL;
    if (ctx)
        redisAsyncFree(ctx);
}

static void watch_next(struct sentinel_watch *w, const char *reason);

static void on_message(redisAsyncContext *ctx, void *data, void *arg) {
    struct sentinel_watch *w = arg;
    const redisReply *reply = data;
    if (w->ctx != ctx)
        return; /* the connection was dropped before */
    if (!reply) {
        w->ctx = NULL; /* hiredis frees it after this call */
        watch_next(w, control_error(ctx));
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || reply->element[0]->type != REDIS_REPLY_STRING)
        return;
    if (strcmp(reply->element[0]->str, "subscribe") == 0) {
        ev_timer_stop(w->sentinel->topology.u->loop, &w->timer);
        w->subscribed = true;
        invariant(w->ctx == ctx, "another connection subscribes");
        found_take(&w->found, NULL); /* if the connection is lost, the name is looked up anew */
        if (w->failures > 0)         /* an announcement may have been missed while there was no subscription */
            topology_now(&w->sentinel->topology);
        w->failures = 0;
        return;
    }
    /* A message about a master: "NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT". */
    const char *name = w->sentinel->topology.u->config->sentinel_name;
    const redisReply *message = reply->element[2];
    size_t len = strlen(name);
    if (message->type == REDIS_REPLY_STRING && strncmp(message->str, name, len) == 0 && message->str[len] == ' ') {
        w->sentinel->first = w->at;
        w->sentinel->has_first = true;
        topology_now(&w->sentinel->topology);
    }
}

/* Connects to the next address of the Sentinel. If none is left, the subscription counts as lost, for `reason`. */
static void watch_next(struct sentinel_watch *w, const char *reason) {
    invariant(!w->ctx && !w->lookup, "a Sentinel has two connections");
    struct upstream *u = w->sentinel->topology.u;
    const char *number;
    char why[REASON_MAX];
    snprintf(why, sizeof(why), "%s", reason);
    while ((number = found_next(&w->found))) {
        w->ctx = control_connect(u, &w->at, number, why, sizeof(why));
        if (!w->ctx)
            continue;
        topology_login(&w->sentinel->topology, w->ctx, UPSTREAM_OWN_SENTINELS, false);
        set_timer(w, u->connect_ms);
        redisAsyncCommand(w->ctx, on_message, w, "SUBSCRIBE " CONTROL_CHANNEL);
        return;
    }
    watch_lost(w, why);
}

static void on_found(void *arg, const struct addrinfo *found, const char *error) {
    struct sentinel_watch *w = arg;
    w->lookup = NULL;
    found_take(&w->found, found);
    watch_next(w, error ? error : "its name has no address");
}

static void on_timer(struct ev_loop *loop, ev_timer *timer, int revents) {
    struct sentinel_watch *w = timer->data;
    if (w->lookup) {
        watch_drop(w);
        watch_lost(w, "the name server does not answer");
    } else if (w->ctx) {
        watch_drop(w);
        watch_next(w, "it does not answer");
    } else if (resolve_is_number(w->at.host)) {
        found_number(&w->found, w->at.host);
        watch_next(w, "");
    } else {
        set_timer(w, w->sentinel->topology.u->connect_ms);
        w->lookup = resolve_start(loop, w->at.host, w->at.port, on_found, w);
    }
}

static void watch_free(struct sentinel_watch *w) {
    ev_timer_stop(w->sentinel->topology.u->loop, &w->timer);
    watch_drop(w);
    memory_free(w);
}

/* ---- the Sentinels -------------------------------------------------------------------------- */

static bool configured(const struct upstream_config *config, size_t i, struct address *at) {
    return address_parse(config->addresses[i], strlen(config->addresses[i]), at);
}

static void sentinel_collect(struct topology *t) {
    struct sentinel *s = sentinel_of(t);
    if (s->has_first)
        topology_add(t, &s->first);
    s->has_first = false;
    size_t from = t->candidate_count;
    for (size_t i = 0; i < s->watch_count; i++)
        topology_add(t, &s->watches[i]->at);
    topology_rotate(t, from);
}

static void see_sentinel(struct sentinel *s, const struct address *at) {
    for (size_t i = 0; i < s->watch_count; i++)
        if (address_same(&s->watches[i]->at, at)) {
            s->watches[i]->known = true;
            return;
        }
    if (s->watch_count == SENTINELS_MAX)
        return;
    invariant(s->watch_count < SENTINELS_MAX, "%zu Sentinels", s->watch_count);
    struct sentinel_watch *w = memory_zalloc(sizeof(*w));
    w->sentinel = s;
    w->at = *at;
    w->known = true;
    ev_timer_init(&w->timer, on_timer, 0., 0.);
    w->timer.data = w;
    ev_timer_start(s->topology.u->loop, &w->timer);
    s->watches[s->watch_count++] = w;
}

/* ---- a Sentinel's answers ----------------------------------------------------------------------- */

static bool is_text(const redisReply *r) {
    return r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS;
}

static bool read_address(const redisReply *host, const redisReply *port, struct address *at) {
    int64_t number;
    if (!is_text(host) || !is_text(port) || host->len == 0 || !address_host_ok(host->str, (size_t)host->len) ||
        !resp_integer(port->str, (size_t)port->len, &number) || number < 1 || number > 65535)
        return false;
    memcpy(at->host, host->str, (size_t)host->len);
    at->host[host->len] = '\0';
    at->port = (int)number;
    return true;
}

/* A field of a flat list of names and values, or NULL. */
static const redisReply *field(const redisReply *list, const char *name) {
    if (list->type != REDIS_REPLY_ARRAY)
        return NULL;
    for (size_t i = 0; i + 1 < list->elements; i += 2)
        if (is_text(list->element[i]) && strcmp(list->element[i]->str, name) == 0)
            return list->element[i + 1];
    return NULL;
}

static void on_address(redisAsyncContext *ctx, void *data, void *arg) {
    struct topology *t = arg;
    struct sentinel *s = arg;
    const redisReply *reply = data;
    if (!topology_answered(t, ctx, reply))
        return;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
        read_address(reply->element[0], reply->element[1], &s->named))
        return;
    char why[ADDRESS_MAX];
    if (reply->type == REDIS_REPLY_NIL || (reply->type == REDIS_REPLY_ARRAY && reply->elements == 0))
        snprintf(why, sizeof(why), "it watches no master named '%s'", t->u->config->sentinel_name);
    else
        snprintf(why, sizeof(why), "%s", reply->type == REDIS_REPLY_ERROR ? reply->str : "its reply is malformed");
    topology_failed(t, why);
}

/* Takes the epoch from a Sentinel's answer. If its user lacks the permission, there is no epoch, and all answers count
 * the same. */
static void on_state(redisAsyncContext *ctx, void *data, void *arg) {
    struct topology *t = arg;
    struct sentinel *s = arg;
    const redisReply *reply = data;
    if (!topology_answered(t, ctx, reply))
        return;
    const redisReply *epoch = field(reply, "config-epoch");
    s->named_epoch = epoch && is_text(epoch) ? strtoull(epoch->str, NULL, 10) : 0;
}

/* Takes the replicas' addresses. Which of them are in sync is for map.c to find out. */
static void on_replicas(redisAsyncContext *ctx, void *data, void *arg) {
    struct topology *t = arg;
    struct sentinel *s = arg;
    const redisReply *reply = data;
    if (!topology_answered(t, ctx, reply))
        return;
    s->replica_count = 0;
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements && i < REPLICAS_MAX; i++) {
        const redisReply *host = field(reply->element[i], "ip"), *port = field(reply->element[i], "port");
        if (host && port && read_address(host, port, &s->replicas[s->replica_count]))
            s->replica_count++;
    }
}

static bool ask_role(struct topology *t);

/* Takes the last answer of a Sentinel, which names the other Sentinels. */
static void on_others(redisAsyncContext *ctx, void *data, void *arg) {
    struct topology *t = arg;
    struct sentinel *s = arg;
    const redisReply *reply = data;
    if (!topology_answered(t, ctx, reply))
        return;
    if (reply->type == REDIS_REPLY_ARRAY) {
        struct address at;
        for (size_t i = 0; i < s->watch_count; i++)
            s->watches[i]->known = address_same(&s->watches[i]->at, &t->asked);
        for (size_t i = 0; i < t->u->config->address_count; i++)
            if (configured(t->u->config, i, &at))
                see_sentinel(s, &at);
        for (size_t i = 0; i < reply->elements; i++) {
            const redisReply *host = field(reply->element[i], "ip"), *port = field(reply->element[i], "port");
            if (host && port && read_address(host, port, &at))
                see_sentinel(s, &at);
        }
        size_t kept = 0; /* the Sentinels that no Sentinel names any more are forgotten */
        for (size_t i = 0; i < s->watch_count; i++) {
            if (s->watches[i]->known)
                s->watches[kept++] = s->watches[i];
            else
                watch_free(s->watches[i]);
        }
        invariant(kept <= s->watch_count, "%zu Sentinels of %zu", kept, s->watch_count);
        s->watch_count = kept;
    }
    if (s->named_epoch != 0 && s->named_epoch < s->epoch) {
        topology_failed(t, "it has not heard of the last failover yet");
        return;
    }
    topology_drop(t);
    if (!topology_find(t, &s->named, ask_role))
        topology_next(t);
}

static bool sentinel_ask(struct topology *t) {
    const struct upstream_config *config = t->u->config;
    sentinel_of(t)->named_epoch = 0;
    if (!topology_connect(t, true))
        return false;
    redisAsyncCommand(t->ctx, on_address, t, "SENTINEL get-master-addr-by-name %s", config->sentinel_name);
    redisAsyncCommand(t->ctx, on_state, t, "SENTINEL MASTER %s", config->sentinel_name);
    if (t->u->config->read_from != UPSTREAM_READ_MASTERS)
        redisAsyncCommand(t->ctx, on_replicas, t, "SENTINEL REPLICAS %s", config->sentinel_name);
    redisAsyncCommand(t->ctx, on_others, t, "SENTINEL SENTINELS %s", config->sentinel_name);
    return true;
}

/* ---- the node's own answer ----------------------------------------------------------------- */

static void take_master(struct sentinel *s) {
    invariant(s->named.port > 0 && s->named.host[0], "a master has no address");
    invariant(s->named_epoch == 0 || s->named_epoch >= s->epoch, "a master of epoch %llu follows one of %llu",
              (unsigned long long)s->named_epoch, (unsigned long long)s->epoch);
    struct topology *t = &s->topology;
    struct upstream *u = t->u;
    struct upstream_node *n = node_get(u, &s->named);
    if (!n) {
        topology_failed(t, "too many nodes are known");
        return;
    }
    topology_drop(t);
    if (s->named_epoch != 0)
        s->epoch = s->named_epoch;
    if (n->failures > 0)
        node_works(n);
    bool changed = map_replace_master(u, n);
    replicas_clear(u);
    for (size_t i = 0; i < s->replica_count; i++)
        replicas_add(n, &s->replicas[i]);
    if (changed)
        log_notice("Sentinel: %s is the master '%s'", n->address, u->config->sentinel_name);
    node_sweep(u);
    topology_done(t, changed);
}

static bool begins_with(const char *text, const char *word) {
    return strncmp(text, word, strlen(word)) == 0;
}

static void on_role(redisAsyncContext *ctx, void *data, void *arg) {
    struct topology *t = arg;
    struct sentinel *s = arg;
    const redisReply *reply = data;
    if (!topology_answered(t, ctx, reply))
        return;
    /* Without a login that may call ROLE, the Sentinel's answer is enough; clients log in themselves. */
    bool not_for_us =
        reply->type == REDIS_REPLY_ERROR && (begins_with(reply->str, "NOAUTH") || begins_with(reply->str, "NOPERM"));
    bool role = reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 && is_text(reply->element[0]);
    if (not_for_us || (role && strcmp(reply->element[0]->str, "master") == 0)) {
        take_master(s);
        return;
    }
    t->refused = false;
    if (reply->type == REDIS_REPLY_ERROR)
        topology_failed(t, reply->str);
    else
        topology_failed(t, role ? "Sentinel names it as the master, but its role is another one (yet)"
                                : "its reply to ROLE is malformed");
}

static bool ask_role(struct topology *t) {
    if (!topology_connect(t, false))
        return false;
    redisAsyncCommand(t->ctx, on_role, t, "ROLE");
    return true;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void sentinel_nobody(const struct topology *t, char *out, size_t size, const char *last) {
    snprintf(out, size, "the master '%s' is not known yet: no Sentinel has named a master that answers (last: %s)",
             t->u->config->sentinel_name, last);
}

/* Forgets the epoch, since no Sentinel answered with one as great: the Sentinels were set up anew, and count from the
 * beginning. */
static void sentinel_in_vain(struct topology *t) {
    sentinel_of(t)->epoch = 0;
}

static void sentinel_free(struct topology *t) {
    struct sentinel *s = sentinel_of(t);
    topology_clear(t);
    for (size_t i = 0; i < s->watch_count; i++)
        watch_free(s->watches[i]);
    memory_free(s);
}

struct topology *sentinel_new(struct upstream *u) {
    static const struct topology_kind kind = {.calm_ms = CALM_MS,
                                              .collect = sentinel_collect,
                                              .ask = sentinel_ask,
                                              .nobody = sentinel_nobody,
                                              .in_vain = sentinel_in_vain,
                                              .free = sentinel_free};
    struct sentinel *s = memory_zalloc(sizeof(*s));
    topology_init(&s->topology, u, &kind);
    struct address at;
    for (size_t i = 0; i < u->config->address_count; i++)
        if (configured(u->config, i, &at))
            see_sentinel(s, &at);
    return &s->topology;
}

void upstream_each_sentinel(const struct upstream *u, void (*fn)(void *arg, const char *address, const char *state),
                            void *arg) {
    if (u->config->kind != UPSTREAM_SENTINEL)
        return;
    const struct sentinel *s = (const struct sentinel *)(const void *)u->topology;
    for (size_t i = 0; i < s->watch_count; i++) {
        char text[ADDRESS_MAX + 16];
        address_text(&s->watches[i]->at, text, sizeof(text));
        const struct sentinel_watch *w = s->watches[i];
        fn(arg, text, w->subscribed ? "up" : w->failures > 0 ? "down" : "connecting");
    }
}
