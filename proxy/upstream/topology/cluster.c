/*
 * The slots of a cluster: CLUSTER SLOTS, in rounds that ask healthy masters first, then replicas, other masters and
 * seeds. It knows nothing of requests.
 */
#include "proxy/upstream/routing/routing.h"
#include "proxy/upstream/topology/private.h"

enum { CALM_MS = 60 * 1000, CALM_READS_MS = 10 * 1000 /* a replica that is back is named */ };

static void cluster_collect(struct topology *t) {
    struct upstream *u = t->u;
    for (size_t i = 0; i < u->master_count; i++)
        if (u->masters[i]->failures == 0)
            topology_add(t, &u->masters[i]->at);
    topology_rotate(t, 0);
    size_t others = t->candidate_count;
    for (size_t i = 0; i < t->replica_count; i++)
        topology_add(t, &t->replicas[i]);
    for (size_t i = 0; i < u->config->address_count; i++)
        topology_add(t, &u->seeds[i]);
    for (size_t i = 0; i < u->master_count; i++)
        topology_add(t, &u->masters[i]->at);
    topology_rotate(t, others);
}

/* ---- CLUSTER SLOTS ---- */

/* Reads an address of a CLUSTER SLOTS entry. A host that is nil or empty is the host of the node that was asked. */
static bool read_address(const struct topology *t, const redisReply *entry, struct address *at) {
    if (entry->type != REDIS_REPLY_ARRAY || entry->elements < 2 || entry->element[1]->type != REDIS_REPLY_INTEGER)
        return false;
    const redisReply *host = entry->element[0];
    long long port = entry->element[1]->integer;
    if (port < 1 || port > 65535)
        return false;
    at->port = (int)port;
    if (host->type == REDIS_REPLY_NIL || (host->type == REDIS_REPLY_STRING && host->len == 0)) {
        memcpy(at->host, t->asked.at.host, sizeof(at->host));
        return true;
    }
    if (host->type != REDIS_REPLY_STRING || !address_host_ok(host->str, (size_t)host->len))
        return false; /* for example "?": the node has not been told its name */
    memcpy(at->host, host->str, (size_t)host->len);
    at->host[host->len] = '\0';
    return true;
}

/* The slots of an entry. False: it is malformed. */
static bool read_range(const redisReply *range, long long *first, long long *last) {
    if (range->type != REDIS_REPLY_ARRAY || range->elements < 3 || range->element[0]->type != REDIS_REPLY_INTEGER ||
        range->element[1]->type != REDIS_REPLY_INTEGER)
        return false;
    *first = range->element[0]->integer;
    *last = range->element[1]->integer;
    return *first >= 0 && *last < SLOT_COUNT && *first <= *last;
}

/* Fills the map; returns how many slots are covered. Malformed entries are skipped. */
static unsigned read_slots(const struct topology *t, const redisReply *reply, struct upstream_node **slots) {
    unsigned covered = 0;
    long long first, last;
    struct address at;
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *range = reply->element[i];
        if (!read_range(range, &first, &last) || !read_address(t, range->element[2], &at))
            continue;
        struct upstream_node *n = node_get(t->u, &at);
        for (long long slot = first; n && slot <= last; slot++) {
            covered += !slots[slot];
            slots[slot] = n;
        }
    }
    return covered;
}

/* Notes the replicas of each range's master: as candidates, and for reads, if replicas may serve them. */
static void read_replicas(struct topology *t, const redisReply *reply, struct upstream_node *const *slots) {
    bool serve = t->u->config->read_from != UPSTREAM_READ_MASTERS;
    long long first, last;
    struct address at;
    if (serve)
        replicas_clear(t->u);
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *range = reply->element[i];
        struct upstream_node *master = read_range(range, &first, &last) ? slots[first] : NULL;
        for (size_t n = 3; master && n < range->elements; n++) {
            if (!read_address(t, range->element[n], &at))
                continue;
            size_t known = 0;
            while (known < t->replica_count && !address_same(&t->replicas[known], &at))
                known++;
            if (known == t->replica_count && known < REPLICAS_MAX)
                t->replicas[t->replica_count++] = at;
            if (serve)
                replicas_add(master, &at);
        }
    }
}

static void on_slots(struct topology *t, const redisReply *reply) {
    struct upstream *u = t->u;
    if (reply->type != REDIS_REPLY_ARRAY) {
        topology_failed(t, reply->type == REDIS_REPLY_ERROR ? reply->str : "its reply to CLUSTER SLOTS is malformed");
        return;
    }
    struct upstream_node **slots = memory_zalloc(SLOT_COUNT * sizeof(struct upstream_node *));
    unsigned covered = read_slots(t, reply, slots);
    t->replica_count = 0;
    if (covered > 0) {
        read_replicas(t, reply, slots);
        link_drop(&t->asked);
        invariant(covered <= SLOT_COUNT && !t->asked.ctx, "%u slots are served", covered);
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
}

static void cluster_ask(struct topology *t) {
    topology_send(t, on_slots, "CLUSTER SLOTS");
}

struct topology *cluster_new(struct upstream *u) {
    static const struct topology_kind kind = {
        .collect = cluster_collect, .ask = cluster_ask, .own = UPSTREAM_OWN_NODES};
    struct topology *t = memory_zalloc(sizeof(*t));
    topology_init(t, u, &kind, u->config->read_from != UPSTREAM_READ_MASTERS ? CALM_READS_MS : CALM_MS);
    return t;
}
