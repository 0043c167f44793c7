/*
 * Limits for connections that only one client uses, per node, over all threads: for one client, for lasting use by all
 * (blocking commands, subscriptions, CLIENT TRACKING), and for all together.
 *
 *      maxclients (as the node says, or Redis's default)
 *      |------------ all: 3/4 ------------|   shared connections, other proxies, replicas, operators
 *      |--- for long: 3/4 of it --|
 *      |- a client: half -|                  once for lasting use, once for short use
 *
 * If a node accepts no more clients, that counts for a while, whatever its maxclients. The process has one quota for
 * each address. The last node that uses a quota frees it.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "proxy/base/mutex.h"
#include "proxy/base/table.h"
#include "proxy/upstream/connection/private.h"

enum { MAXCLIENTS_GUESS = 10000 /* Redis's default */, FULL_MS = 10 * 1000, LOG_MS = 10 * 1000, QUOTA_LEAST = 4 };

struct quota_client {
    struct table_link link;
    uint64_t hash;
    uint32_t taken[2]; /* for short use; for lasting use */
    char name[];
};

struct quota {
    struct list_node link;
    unsigned refs; /* under `all_mutex` */
    pthread_mutex_t mutex;
    uint32_t taken, lasting;
    uint32_t maxclients; /* 0: not known */
    uint32_t full_taken; /* how many were taken when the node last accepted no more clients */
    int64_t full_ms;     /* when that was; 0: never */
    int64_t logged_ms;   /* when a refusal was logged last; 0: never */
    struct table clients;
    char address[];
};

static pthread_mutex_t all_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list_node all_quotas = {&all_quotas, &all_quotas};
static atomic_uint all_taken; /* of all nodes */

/* ---- life ---------------------------------------------------------------------------------------- */

static uint64_t client_hash_of(const struct table_link *link) {
    return LIST_ENTRY(link, const struct quota_client, link)->hash;
}

struct quota *quota_get(const char *address) {
    struct quota *q = NULL;
    MUTEX_GUARD(&all_mutex);
    LIST_EACH(it, &all_quotas, struct quota, link)
        if (strcmp(it->address, address) == 0)
            q = it;
    if (!q) {
        size_t len = strlen(address);
        q = memory_zalloc(sizeof(*q) + len + 1);
        memcpy(q->address, address, len);
        pthread_mutex_init(&q->mutex, NULL);
        table_init(&q->clients, client_hash_of);
        list_init(&q->link);
        list_append(&all_quotas, &q->link);
    }
    q->refs++;
    return q;
}

void quota_put(struct quota *q) {
    pthread_mutex_lock(&all_mutex);
    invariant(q->refs > 0, "a quota without references is given back");
    bool last = --q->refs == 0;
    if (last)
        list_remove(&q->link);
    pthread_mutex_unlock(&all_mutex);
    if (!last)
        return;
    invariant(q->taken == 0 && q->lasting == 0 && q->clients.count == 0, "%u connections are still counted", q->taken);
    table_clear(&q->clients);
    pthread_mutex_destroy(&q->mutex);
    memory_free(q);
}

/* ---- clients ------------------------------------------------------------------------------------- */

static struct quota_client *client_get(struct quota *q, const char *name) {
    size_t len = strlen(name);
    uint32_t hash = text_hash(name, len);
    TABLE_CHAIN(it, &q->clients, hash, struct quota_client, link)
        if (it->hash == hash && strcmp(it->name, name) == 0)
            return it;
    struct quota_client *c = memory_zalloc(sizeof(*c) + len + 1);
    memcpy(c->name, name, len);
    c->hash = hash;
    table_insert(&q->clients, &c->link, hash);
    return c;
}

static void client_free_unused(struct quota *q, struct quota_client *c) {
    invariant(c->taken[0] + c->taken[1] <= q->taken, "a client has %u connections of %u", c->taken[0] + c->taken[1],
              q->taken);
    if (c->taken[0] + c->taken[1] > 0)
        return;
    table_remove(&q->clients, &c->link, c->hash);
    table_trim(&q->clients);
    memory_free(c);
}

/* ---- limits -------------------------------------------------------------------------------------- */

static uint32_t at_least(uint32_t n) {
    return n > QUOTA_LEAST ? n : QUOTA_LEAST;
}

/* How many connections all clients may have. */
static uint32_t limit_of(const struct quota *q, const struct upstream_config *config) {
    uint32_t takes = q->maxclients > 0 ? q->maxclients : MAXCLIENTS_GUESS, full = q->full_taken - q->full_taken / 4;
    uint32_t limit = config->pins_node > 0 ? config->pins_node : at_least(takes - takes / 4);
    bool is_full = q->full_ms > 0 && clock_ms() - q->full_ms < FULL_MS;
    return is_full && full < limit ? at_least(full) : limit;
}

/* Whether the client gets no other connection; writes the reason to `why`. */
static bool is_refused(const struct quota *q, const struct quota_client *c, const struct upstream_claim *claim,
                       const struct upstream_config *config, char *why, size_t size) {
    uint32_t limit = limit_of(q, config), lasting = at_least(limit - limit / 4);
    uint32_t each = config->pins_client > 0 ? config->pins_client : at_least(limit / 2);
    if (claim->lasting && q->lasting >= lasting)
        snprintf(why, size,
                 "UPSTREAM node %s: all %u connections for clients that block, subscribe or track keys are in use; "
                 "max-pinned-connections, or the node's maxclients, can be raised",
                 q->address, lasting);
    else if (q->taken >= limit)
        snprintf(why, size,
                 "UPSTREAM node %s: all %u connections for single clients are in use; max-pinned-connections, or the "
                 "node's maxclients, can be raised",
                 q->address, limit);
    else if (c->taken[claim->lasting] >= each)
        snprintf(why, size,
                 "UPSTREAM node %s: client %s has all %u connections that one client may have for itself; "
                 "max-pinned-connections-per-client can be raised",
                 q->address, c->name, each);
    else if (config->pins_total > 0 && atomic_load(&all_taken) >= config->pins_total)
        snprintf(why, size,
                 "UPSTREAM all %u connections for single clients that the limit of open files allows are in use; "
                 "ulimit -n can be raised",
                 config->pins_total);
    else
        return false;
    return true;
}

bool quota_take(struct upstream_node *n, const struct upstream_claim *claim, struct quota_hold *hold) {
    invariant(!hold->client, "a connection is counted twice");
    struct quota *q = n->quota;
    char *why = n->u->error;
    if (!claim->client)
        return true; /* the proxy's own connections are not limited */
    pthread_mutex_lock(&q->mutex);
    struct quota_client *c = client_get(q, claim->client);
    bool refused = is_refused(q, c, claim, n->u->config, why, sizeof(n->u->error));
    if (refused) {
        client_free_unused(q, c);
    } else {
        c->taken[claim->lasting]++;
        q->taken++;
        q->lasting += claim->lasting;
        atomic_fetch_add(&all_taken, 1);
        *hold = (struct quota_hold){.client = c, .lasting = claim->lasting};
    }
    bool tells = refused && (q->logged_ms == 0 || clock_ms() - q->logged_ms >= LOG_MS);
    if (tells)
        q->logged_ms = clock_ms();
    pthread_mutex_unlock(&q->mutex);
    n->pins_refused += refused;
    if (tells)
        log_warning("Refused (further refusals are not logged for some seconds): %s", why);
    return !refused;
}

void quota_give(struct upstream_node *n, struct quota_hold *hold) {
    struct quota *q = n->quota;
    struct quota_client *c = hold->client;
    if (!c)
        return;
    pthread_mutex_lock(&q->mutex);
    invariant(c->taken[hold->lasting] > 0 && q->taken > 0, "%u connections are counted", q->taken);
    invariant(q->lasting >= hold->lasting && q->lasting <= q->taken, "%u of %u connections last", q->lasting, q->taken);
    c->taken[hold->lasting]--;
    q->taken--;
    q->lasting -= hold->lasting;
    client_free_unused(q, c);
    pthread_mutex_unlock(&q->mutex);
    atomic_fetch_sub(&all_taken, 1);
    hold->client = NULL;
}

bool quota_is_tight(struct upstream_node *n) {
    MUTEX_GUARD(&n->quota->mutex);
    return n->quota->taken + n->idle_pin_count >= limit_of(n->quota, n->u->config);
}

uint32_t quota_limit(const struct upstream_node *n) {
    MUTEX_GUARD(&n->quota->mutex);
    return limit_of(n->quota, n->u->config);
}

/* ---- what the node reports ------------------------------------------------------------------------ */

void upstream_note_maxclients(struct upstream_node *n, uint32_t maxclients) {
    MUTEX_GUARD(&n->quota->mutex);
    n->quota->maxclients = maxclients;
}

void quota_note_full(struct upstream_node *n) {
    struct quota *q = n->quota;
    int64_t now = clock_ms();
    MUTEX_GUARD(&q->mutex);
    if (q->full_ms == 0 || now - q->full_ms >= FULL_MS || q->taken < q->full_taken)
        q->full_taken = q->taken;
    q->full_ms = now;
}
