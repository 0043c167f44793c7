/*
 * Which node is the master that Sentinels watch.
 *
 *      a round:  Sentinel ── get-master-addr-by-name, MASTER, SENTINELS ──> address ── ROLE ──> "master":
 * map_replace_master ^                                                         └─ anything else ──┐
 *                    └──────────────────────── the next one ──────────────────────────────────────┘
 *      watch.c:  each Sentinel ── +switch-master ──> a round that begins with it
 *
 * A Sentinel that was cut off for a while may still name the old master, and the old master's ROLE may still say
 * "master". So of two answers the one with the greater configuration epoch counts. Sentinels that others name are asked
 * and watched, too. It knows nothing of requests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/routing/routing.h"
#include "proxy/upstream/topology/private.h"

enum { CALM_MS = 10 * 1000 };

static struct sentinel *sentinel_of(struct topology *t) {
    return (struct sentinel *)(void *)t;
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
    struct sentinel_watch *w = watch_new(s, at);
    invariant(s->watch_count < SENTINELS_MAX, "%zu Sentinels", s->watch_count);
    w->known = true;
    s->watches[s->watch_count++] = w;
}

/* Forgets the Sentinels that no Sentinel names any more. */
static void forget_sentinels(struct sentinel *s) {
    size_t kept = 0;
    for (size_t i = 0; i < s->watch_count; i++) {
        struct sentinel_watch *w = s->watches[i];
        if (w->known)
            s->watches[kept++] = w;
        else
            watch_free(w);
    }
    invariant(kept <= s->watch_count, "%zu Sentinels of %zu", kept, s->watch_count);
    s->watch_count = kept;
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

/* Takes the replicas' addresses. Which of them are in sync is for replicas.c to find out. */
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
        forget_sentinels(s);
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

void sentinel_switched(struct sentinel *s, const struct address *by) {
    s->first = *by;
    s->has_first = true;
    topology_now(&s->topology);
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
        fn(arg, text, watch_state(s->watches[i]));
    }
}
