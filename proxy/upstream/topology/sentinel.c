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
 * and watched, too. A lost subscription is opened again, later each time, with jitter.
 */
#include <stdlib.h>

#include "proxy/upstream/connection/control.h"
#include "proxy/upstream/routing/routing.h"
#include "proxy/upstream/topology/private.h"

enum { CALM_MS = 10 * 1000, SENTINELS_MAX = 32, AGAIN_FIRST_MS = 200, AGAIN_LONGEST_MS = 10 * 1000 };

/* A subscription to a Sentinel; when it is lost, it is opened again. */
struct sentinel_watch {
    struct link link; /* first; without a connection or a lookup its timer is that of the next attempt */
    struct sentinel *sentinel;
    bool known; /* configured, or named by the Sentinel that answered last */
    bool subscribed;
    unsigned failures;
};

struct sentinel {
    struct topology topology; /* first */
    struct sentinel_watch *watches[SENTINELS_MAX];
    size_t watch_count;
    struct address first; /* the Sentinel to ask first, with has_first */
    bool has_first;
    struct address named; /* the master, as named by the Sentinel being asked */
    uint64_t named_epoch; /* its configuration epoch; 0: not known */
    uint64_t epoch;       /* the epoch of the master in use */
};

static struct sentinel *sentinel_of(struct topology *t) {
    return (struct sentinel *)(void *)t;
}

/* ---- subscriptions: one connection to each Sentinel, for +switch-master ---- */

static void watch_lost(struct sentinel_watch *w, const char *reason) {
    struct link *l = &w->link;
    invariant(!l->ctx && !l->lookup, "a subscription is lost that is being opened");
    link_time(l, upstream_backoff(l->u, AGAIN_FIRST_MS, AGAIN_LONGEST_MS, w->failures));
    if (w->failures++ == 0)
        log_notice("No subscription to Sentinel %s:%d: %s", l->at.host, l->at.port, reason);
    w->subscribed = false;
}

static void watch_next(struct sentinel_watch *w, const char *reason);

static void on_message(redisAsyncContext *ctx, void *data, void *arg) {
    struct sentinel_watch *w = arg;
    const redisReply *reply = data;
    if (w->link.ctx != ctx)
        return; /* the connection was dropped before */
    if (!reply) {
        w->link.ctx = NULL; /* hiredis frees it after this call */
        watch_next(w, control_error(ctx));
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || reply->element[0]->type != REDIS_REPLY_STRING)
        return;
    if (strcmp(reply->element[0]->str, "subscribe") == 0) {
        ev_timer_stop(w->link.u->loop, &w->link.timer);
        w->subscribed = true;
        w->link.count = w->link.tried = 0; /* if the connection is lost, the name is looked up anew */
        if (w->failures > 0)               /* an announcement may have been missed meanwhile */
            topology_now(&w->sentinel->topology);
        w->failures = 0;
        return;
    }
    /* A message about a master: "NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT". */
    const char *name = w->link.u->config->sentinel_name;
    const redisReply *message = reply->element[2];
    size_t len = strlen(name);
    if (message->type == REDIS_REPLY_STRING && strncmp(message->str, name, len) == 0 && message->str[len] == ' ') {
        w->sentinel->first = w->link.at;
        w->sentinel->has_first = true;
        topology_now(&w->sentinel->topology);
    }
}

/* Connects to the next address of the Sentinel. If none is left, the subscription counts as lost, for `reason`. */
static void watch_next(struct sentinel_watch *w, const char *reason) {
    char why[REASON_MAX];
    snprintf(why, sizeof(why), "%s", reason);
    while (w->link.tried < w->link.count) {
        if (!link_connect(&w->link, why, sizeof(why)))
            continue;
        topology_login(&w->sentinel->topology, w->link.ctx, UPSTREAM_OWN_SENTINELS, false);
        redisAsyncCommand(w->link.ctx, on_message, w, "SUBSCRIBE " CONTROL_CHANNEL);
        return;
    }
    watch_lost(w, why);
}

static void looked_up(struct link *l, const char *error) {
    watch_next((struct sentinel_watch *)(void *)l, error ? error : "its name has no address");
}

static void on_timer(struct ev_loop *loop, ev_timer *timer, int revents) {
    struct sentinel_watch *w = timer->data;
    bool looks_up = w->link.lookup, connects = w->link.ctx;
    if (looks_up || connects)
        link_drop(&w->link);
    if (looks_up)
        watch_lost(w, "the name server does not answer");
    else if (connects)
        watch_next(w, "it does not answer");
    else if (link_find(&w->link))
        watch_next(w, "");
}

static void watch_free(struct sentinel_watch *w) {
    link_drop(&w->link);
    memory_free(w);
}

/* ---- the Sentinels -------------------------------------------------------------------------- */

static void sentinel_collect(struct topology *t) {
    struct sentinel *s = sentinel_of(t);
    if (s->has_first)
        topology_add(t, &s->first);
    s->has_first = false;
    size_t from = t->candidate_count;
    for (size_t i = 0; i < s->watch_count; i++)
        topology_add(t, &s->watches[i]->link.at);
    topology_rotate(t, from);
}

static void see_sentinel(struct sentinel *s, const struct address *at) {
    size_t i = 0;
    while (i < s->watch_count && !address_same(&s->watches[i]->link.at, at))
        i++;
    if (i < s->watch_count)
        s->watches[i]->known = true;
    if (i < s->watch_count || i == SENTINELS_MAX)
        return;
    struct sentinel_watch *w = memory_zalloc(sizeof(*w));
    w->sentinel = s;
    w->link = (struct link){.u = s->topology.u, .at = *at, .looked_up = looked_up};
    w->known = true;
    ev_timer_init(&w->link.timer, on_timer, 0., 0.);
    w->link.timer.data = w;
    ev_timer_start(s->topology.u->loop, &w->link.timer);
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

static void on_address(struct topology *t, const redisReply *reply) {
    struct sentinel *s = sentinel_of(t);
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

/* Takes the epoch. If the proxy's user lacks the permission, there is none, and all answers count the same. */
static void on_state(struct topology *t, const redisReply *reply) {
    struct sentinel *s = sentinel_of(t);
    const redisReply *epoch = field(reply, "config-epoch");
    s->named_epoch = epoch && is_text(epoch) ? strtoull(epoch->str, NULL, 10) : 0;
}

/* Takes the replicas' addresses. Which of them are in sync is for map.c to find out. */
static void on_replicas(struct topology *t, const redisReply *reply) {
    t->replica_count = 0;
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements && i < REPLICAS_MAX; i++) {
        const redisReply *host = field(reply->element[i], "ip"), *port = field(reply->element[i], "port");
        if (host && port && read_address(host, port, &t->replicas[t->replica_count]))
            t->replica_count++;
    }
}

static void ask_role(struct topology *t);

/* Takes the last answer of a Sentinel, which names the other Sentinels. */
static void on_others(struct topology *t, const redisReply *reply) {
    struct sentinel *s = sentinel_of(t);
    if (reply->type == REDIS_REPLY_ARRAY) {
        struct address at;
        for (size_t i = 0; i < s->watch_count; i++)
            s->watches[i]->known = address_same(&s->watches[i]->link.at, &t->asked.at);
        for (size_t i = 0; i < t->u->config->address_count; i++)
            see_sentinel(s, &t->u->seeds[i]);
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
        s->watch_count = kept;
    }
    if (s->named_epoch != 0 && s->named_epoch < s->epoch) {
        topology_failed(t, "it has not heard of the last failover yet");
        return;
    }
    link_drop(&t->asked);
    if (!topology_find(t, &s->named, ask_role, UPSTREAM_OWN_NODES))
        topology_next(t);
}

static void sentinel_ask(struct topology *t) {
    const char *name = t->u->config->sentinel_name;
    sentinel_of(t)->named_epoch = 0;
    topology_send(t, on_address, "SENTINEL get-master-addr-by-name %s", name);
    topology_send(t, on_state, "SENTINEL MASTER %s", name);
    if (t->u->config->read_from != UPSTREAM_READ_MASTERS)
        topology_send(t, on_replicas, "SENTINEL REPLICAS %s", name);
    topology_send(t, on_others, "SENTINEL SENTINELS %s", name);
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
    link_drop(&t->asked);
    if (s->named_epoch != 0)
        s->epoch = s->named_epoch;
    if (n->failures > 0)
        node_works(n);
    bool changed = map_replace_master(u, n);
    replicas_clear(u);
    for (size_t i = 0; i < t->replica_count; i++)
        replicas_add(n, &t->replicas[i]);
    if (changed)
        log_notice("Sentinel: %s is the master '%s'", n->address, u->config->sentinel_name);
    node_sweep(u);
    topology_done(t, changed);
}

static void on_role(struct topology *t, const redisReply *reply) {
    struct sentinel *s = sentinel_of(t);
    /* Without a login that may call ROLE, the Sentinel's answer is enough; clients log in themselves. */
    bool not_for_us = reply->type == REDIS_REPLY_ERROR &&
                      (strncmp(reply->str, "NOAUTH", 6) == 0 || strncmp(reply->str, "NOPERM", 6) == 0);
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

static void ask_role(struct topology *t) {
    topology_send(t, on_role, "ROLE");
}

/* Forgets the epoch: no Sentinel answered with one as great, so they were set up anew, and count from the beginning. */
static void sentinel_in_vain(struct topology *t) {
    sentinel_of(t)->epoch = 0;
}

static void sentinel_clear(struct topology *t) {
    struct sentinel *s = sentinel_of(t);
    for (size_t i = 0; i < s->watch_count; i++)
        watch_free(s->watches[i]);
}

struct topology *sentinel_new(struct upstream *u) {
    static const struct topology_kind kind = {.collect = sentinel_collect,
                                              .ask = sentinel_ask,
                                              .own = UPSTREAM_OWN_SENTINELS,
                                              .in_vain = sentinel_in_vain,
                                              .clear = sentinel_clear};
    struct sentinel *s = memory_zalloc(sizeof(*s));
    topology_init(&s->topology, u, &kind, CALM_MS);
    for (size_t i = 0; i < u->config->address_count; i++)
        see_sentinel(s, &u->seeds[i]);
    return &s->topology;
}

void upstream_each_sentinel(const struct upstream *u, void (*fn)(void *arg, const char *address, const char *state),
                            void *arg) {
    if (u->config->kind != UPSTREAM_SENTINEL)
        return;
    const struct sentinel *s = (const struct sentinel *)(const void *)u->topology;
    for (size_t i = 0; i < s->watch_count; i++) {
        const struct sentinel_watch *w = s->watches[i];
        char text[ADDRESS_MAX + 16];
        address_text(&w->link.at, text, sizeof(text));
        fn(arg, text, w->subscribed ? "up" : w->failures > 0 ? "down" : "connecting");
    }
}
