/*
 * Client identities, and the names of libraries that multiplex. An identity is kept while a session or a peer refers to
 * it. Knows no locks.
 */
#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/base/text.h"
#include "proxy/lock/ledger.h"

/* ---- libraries ------------------------------------------------------------------------------- */

/* Libraries that send the commands of several workers over one connection, by their lib-name in CLIENT SETINFO. Only
 * the name before an opening bracket counts: a library built on another one names itself in brackets. Libraries with
 * one connection for each worker do not stand here. Nor do pools (Jedis, redis-py, go-redis, ...), where one worker
 * may always get the same connection: the proxy learns from what they do. */
static const char *const MULTIPLEXING_LIBRARIES[] = {
    "lettuce",     /* Java: one connection for all threads */
    "vertx-redis", /* Java: event loops */
    "se.redis",    /* .NET, StackExchange.Redis: one multiplexed connection */
    "nredisstack", /* .NET, on top of StackExchange.Redis */
    "ioredis",     /* Node.js: one connection for all commands in flight */
    "iovalkey",    /* Node.js, a fork of ioredis */
    "node-redis",  /* Node.js: one connection for all commands in flight, too */
    "valkey-go",   /* Go: multiplexed */
    "rueidis",     /* Go: multiplexed */
    "redis-rs",    /* Rust: MultiplexedConnection, ConnectionManager */
    "fred",        /* Rust: multiplexed */
    "glidepy",     /* Valkey GLIDE: one multiplexed connection in every language */
    "glidejava",   "glidejs", "glidego", "glidec",
};

bool client_library_multiplexes(const char *name, size_t len) {
    const char *bracket = memchr(name, '(', len);
    if (bracket)
        len = (size_t)(bracket - name);
    while (len > 0 && name[len - 1] == ' ')
        len--;
    for (size_t i = 0; i < sizeof(MULTIPLEXING_LIBRARIES) / sizeof(MULTIPLEXING_LIBRARIES[0]); i++)
        if (text_is(name, len, MULTIPLEXING_LIBRARIES[i]))
            return true;
    return false;
}

/* ---- identities ------------------------------------------------------------------------------ */

static uint64_t client_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct lock_client, link)->hash;
}

void client_table_init(struct client_table *t, uint64_t seed) {
    pthread_mutex_init(&t->mutex, NULL);
    t->seed = hash_seed_make(seed, 3);
    table_init(&t->table, client_hash);
}

void client_table_clear(struct client_table *t) {
    TABLE_FOREACH(it, &t->table) {
        memory_free(LIST_ENTRY(it, struct lock_client, link));
    }
    table_clear(&t->table);
    pthread_mutex_destroy(&t->mutex);
}

static struct lock_client *find_or_make(struct client_table *t, const char *name, size_t len) {
    uint64_t hash = hash_bytes(&t->seed, name, len);
    struct lock_client *c;
    for (struct table_link *it = table_chain(&t->table, hash); it; it = it->next) {
        c = LIST_ENTRY(it, struct lock_client, link);
        if (c->hash == hash && c->len == len && memcmp(c->name, name, len) == 0)
            return c;
    }
    c = memory_zalloc(sizeof(*c) + len + 1);
    c->hash = hash;
    c->len = len;
    list_init(&c->sessions);
    list_init(&c->orphans);
    list_init(&c->closed_peers);
    memcpy(c->name, name, len);
    table_insert(&t->table, &c->link, hash);
    return c;
}

struct lock_client *client_get(struct client_table *t, const char *name, size_t len, bool opens) {
    if (len > LOCK_IDENTITY_MAX)
        len = LOCK_IDENTITY_MAX;
    pthread_mutex_lock(&t->mutex);
    struct lock_client *c = find_or_make(t, name, len);
    c->refs++;
    if (opens)
        c->open++;
    pthread_mutex_unlock(&t->mutex);
    return c;
}

void client_ref(struct client_table *t, struct lock_client *c) {
    pthread_mutex_lock(&t->mutex);
    c->refs++;
    pthread_mutex_unlock(&t->mutex);
}

bool client_still_here(const struct peer *p) {
    return atomic_load(&p->client->epoch) == p->epoch;
}

bool client_closed_peer(struct client_table *t, struct peer *p) {
    pthread_mutex_lock(&t->mutex);
    bool here = client_still_here(p);
    if (here && list_empty(&p->closed_link))
        list_append(&p->client->closed_peers, &p->closed_link);
    pthread_mutex_unlock(&t->mutex);
    return here;
}

void client_closed_peer_freed(struct client_table *t, struct peer *p) {
    if (!p->closed)
        return; /* an open session's peer is in no list of closed peers */
    pthread_mutex_lock(&t->mutex);
    list_remove(&p->closed_link);
    pthread_mutex_unlock(&t->mutex);
}

bool client_close(struct client_table *t, struct lock_client *c) {
    pthread_mutex_lock(&t->mutex);
    invariant(c->open > 0, "a client without sessions has one less");
    bool last = --c->open == 0;
    if (last)
        atomic_fetch_add(&c->epoch, 1);
    pthread_mutex_unlock(&t->mutex);
    return last;
}

bool engine_client_connected(struct lock_engine *e, uint64_t hash) {
    struct client_table *t = &e->clients;
    bool open = false;
    pthread_mutex_lock(&t->mutex);
    for (struct table_link *it = table_chain(&t->table, hash); it; it = it->next) {
        const struct lock_client *c = LIST_ENTRY(it, struct lock_client, link);
        open = open || (c->hash == hash && c->open > 0);
    }
    pthread_mutex_unlock(&t->mutex);
    return open;
}

void client_put(struct client_table *t, struct lock_client *c) {
    pthread_mutex_lock(&t->mutex);
    invariant(c->refs > 0, "a client without references is given back");
    if (--c->refs == 0) {
        table_remove(&t->table, &c->link, c->hash);
        memory_free(c);
    }
    pthread_mutex_unlock(&t->mutex);
}

uint64_t lock_client_hash(const struct lock_client *c) {
    return c->hash;
}

const char *lock_client_name(const struct lock_client *c, size_t *len) {
    if (len)
        *len = c->len;
    return c->name;
}
