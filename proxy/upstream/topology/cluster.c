/*
 * The slots of a cluster: CLUSTER SLOTS, in rounds that ask healthy masters first, then replicas, other masters and
 * seeds. It knows nothing of requests.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/routing/routing.h"
#include "proxy/upstream/topology/private.h"

enum { CALM_MS = 60 * 1000, CALM_READS_MS = 10 * 1000 /* a replica that is back is named */ };

struct cluster {
    struct topology topology;
    struct address replicas[REPLICAS_MAX];
    size_t replica_count;
};

static struct cluster *cluster_of(struct topology *t) {
    return (struct cluster *)(void *)t;
}

static void cluster_collect(struct topology *t) {
    const struct cluster *c = cluster_of(t);
    struct upstream *u = t->u;
    for (size_t i = 0; i < u->master_count; i++)
        if (u->masters[i]->failures == 0)
            topology_add(t, &u->masters[i]->at);
    topology_rotate(t, 0);
    size_t others = t->candidate_count;
    for (size_t i = 0; i < c->replica_count; i++)
        topology_add(t, &c->replicas[i]);
    for (size_t i = 0; i < u->config->address_count; i++) {
        struct address at;
        if (address_parse(u->config->addresses[i], strlen(u->config->addresses[i]), &at))
            topology_add(t, &at);
    }
    for (size_t i = 0; i < u->master_count; i++)
        topology_add(t, &u->masters[i]->at);
    topology_rotate(t, others);
}

/* ---- CLUSTER SLOTS ---- */

/* Reads an address of a CLUSTER SLOTS entry: a host and a port. If the host is nil or empty, it is the host of the node
 * that was asked. */
static bool read_address(const struct cluster *c, const redisReply *entry, struct address *at) {
    if (entry->type != REDIS_REPLY_ARRAY || entry->elements < 2 || entry->element[1]->type != REDIS_REPLY_INTEGER)
        return false;
    const redisReply *host = entry->element[0];
    long long port = entry->element[1]->integer;
    if (port < 1 || port > 65535)
        return false;
    at->port = (int)port;
    if (host->type == REDIS_REPLY_NIL || (host->type == REDIS_REPLY_STRING && host->len == 0)) {
        memcpy(at->host, c->topology.asked.host, sizeof(at->host));
        return true;
    }
    if (host->type != REDIS_REPLY_STRING || !address_host_ok(host->str, (size_t)host->len))
        return false; /* for example "?": the node has not been told its name */
    memcpy(at->host, host->str, (size_t)host->len);
    at->host[host->len] = '\0';
    return true;
}

static void read_replicas(struct cluster *c, const redisReply *range) {
    for (size_t i = 3; i < range->elements && c->replica_count < REPLICAS_MAX; i++) {
        struct address at;
        if (!read_address(c, range->element[i], &at))
            continue;
        size_t known = 0;
        while (known < c->replica_count && !address_same(&c->replicas[known], &at))
            known++;
        if (known == c->replica_count)
            c->replicas[c->replica_count++] = at;
    }
}

/* Fills the map; returns how many slots are covered. Malformed entries are skipped. */
static unsigned read_slots(struct cluster *c, const redisReply *reply, struct upstream_node **slots) {
    unsigned covered = 0;
    c->replica_count = 0;
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *range = reply->element[i];
        if (range->type != REDIS_REPLY_ARRAY || range->elements < 3 || range->element[0]->type != REDIS_REPLY_INTEGER ||
            range->element[1]->type != REDIS_REPLY_INTEGER)
            continue;
        long long first = range->element[0]->integer, last = range->element[1]->integer;
        struct address at;
        if (first < 0 || last >= SLOT_COUNT || first > last || !read_address(c, range->element[2], &at))
            continue;
        struct upstream_node *n = node_get(c->topology.u, &at);
        invariant(first <= last && last < SLOT_COUNT && covered <= SLOT_COUNT, "slots %lld to %lld", first, last);
        for (long long slot = first; n && slot <= last; slot++) {
            covered += !slots[slot];
            slots[slot] = n;
        }
        read_replicas(c, range);
    }
    return covered;
}

/* Notes the replicas of each range's master, which may serve reads. */
static void link_replicas(const struct cluster *c, const redisReply *reply, struct upstream_node *const *slots) {
    struct upstream *u = c->topology.u;
    replicas_clear(u);
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *range = reply->element[i];
        struct address at;
        if (range->type != REDIS_REPLY_ARRAY || range->elements < 3 || range->element[0]->type != REDIS_REPLY_INTEGER)
            continue;
        long long first = range->element[0]->integer;
        struct upstream_node *master = first >= 0 && first < SLOT_COUNT ? slots[first] : NULL;
        for (size_t n = 3; master && n < range->elements; n++)
            if (read_address(c, range->element[n], &at))
                replicas_add(master, &at);
    }
}

static void on_slots(redisAsyncContext *ctx, void *data, void *arg) {
    struct topology *t = arg;
    const redisReply *reply = data;
    if (!topology_answered(t, ctx, reply))
        return;
    if (reply->type == REDIS_REPLY_ARRAY) {
        struct upstream_node **slots = memory_zalloc(SLOT_COUNT * sizeof(struct upstream_node *));
        unsigned covered = read_slots(cluster_of(t), reply, slots);
        if (covered > 0) {
            if (t->u->config->read_from != UPSTREAM_READ_MASTERS)
                link_replicas(cluster_of(t), reply, slots);
            topology_drop(t);
            invariant(covered <= SLOT_COUNT && !t->ctx, "%u slots are served", covered);
            struct upstream *u = t->u;
            bool changed = map_replace(u, slots);
            if (changed)
                log_notice("Cluster: %zu masters serve %u of %d slots", u->master_count, covered, SLOT_COUNT);
            node_sweep(u);
            topology_done(t, changed);
        } else {
            t->refused = false;
            topology_failed(t, "it knows no slots");
        }
        memory_free(slots);
        return;
    }
    topology_failed(t, reply->type == REDIS_REPLY_ERROR ? reply->str : "its reply to CLUSTER SLOTS is malformed");
}

static bool cluster_ask(struct topology *t) {
    if (!topology_connect(t, false))
        return false;
    redisAsyncCommand(t->ctx, on_slots, t, "CLUSTER SLOTS");
    return true;
}

static void cluster_nobody(const struct topology *t, char *out, size_t size, const char *last) {
    snprintf(out, size, "the cluster's slot map is not known yet: no seed node answers (last: %s)", last);
}

static void cluster_free(struct topology *t) {
    topology_clear(t);
    memory_free(t);
}

struct topology *cluster_new(struct upstream *u) {
    static const struct topology_kind kind = {.calm_ms = CALM_MS,
                                              .collect = cluster_collect,
                                              .ask = cluster_ask,
                                              .nobody = cluster_nobody,
                                              .free = cluster_free};
    struct cluster *c = memory_zalloc(sizeof(*c));
    topology_init(&c->topology, u, &kind);
    if (u->config->read_from != UPSTREAM_READ_MASTERS)
        c->topology.calm_ms = CALM_READS_MS;
    return &c->topology;
}
