/*
 * Client identities, the names of libraries that multiplex, and orphans. An identity is kept while a session or a peer
 * refers to it. succession.c says which session may be an orphan's successor, and why.
 */
#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/base/mutex.h"
#include "proxy/base/text.h"
#include "proxy/lock/ledger.h"

enum { BRIEF_MAX = 3 }; /* an orphan gets no successor after more successors that left before a renewal */

/* ---- libraries ------------------------------------------------------------------------------- */

/* Libraries that send the commands of several workers over one connection, by their lib-name in CLIENT SETINFO. Only
 * the name before an opening bracket counts: a library built on another one names itself in brackets. Pools (Jedis,
 * redis-py, go-redis, ...) do not stand here: the proxy learns from what they do. */
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
    for (size_t i = 0; i < ARRAY_SIZE(MULTIPLEXING_LIBRARIES); i++)
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
    TABLE_EACH(c, &t->table, struct lock_client, link)
        memory_free(c);
    table_clear(&t->table);
    pthread_mutex_destroy(&t->mutex);
}

struct lock_client *client_get(struct client_table *t, const char *name, size_t len, bool opens) {
    if (len > LOCK_IDENTITY_MAX)
        len = LOCK_IDENTITY_MAX;
    uint64_t hash = hash_bytes(&t->seed, name, len);
    struct lock_client *c = NULL;
    MUTEX_GUARD(&t->mutex);
    TABLE_CHAIN(known, &t->table, hash, struct lock_client, link)
        if (known->hash == hash && known->len == len && memcmp(known->name, name, len) == 0) {
            c = known;
            break;
        }
    if (!c) {
        c = memory_zalloc(sizeof(*c) + len + 1);
        c->hash = hash;
        c->len = len;
        list_init(&c->sessions);
        list_init(&c->orphans);
        list_init(&c->closed_peers);
        memcpy(c->name, name, len);
        table_insert(&t->table, &c->link, hash);
    }
    c->refs++;
    if (opens)
        c->open++;
    return c;
}

void client_ref(struct client_table *t, struct lock_client *c) {
    MUTEX_GUARD(&t->mutex);
    c->refs++;
}

bool client_still_here(const struct peer *p) {
    return atomic_load(&p->client->epoch) == p->epoch;
}

bool client_closed_peer(struct client_table *t, struct peer *p) {
    MUTEX_GUARD(&t->mutex);
    bool here = client_still_here(p);
    if (here && list_empty(&p->closed_link))
        list_append(&p->client->closed_peers, &p->closed_link);
    return here;
}

bool engine_client_connected(struct lock_engine *e, uint64_t hash) {
    struct client_table *t = &e->clients;
    bool open = false;
    MUTEX_GUARD(&t->mutex);
    TABLE_CHAIN(c, &t->table, hash, const struct lock_client, link)
        open = open || (c->hash == hash && c->open > 0);
    return open;
}

void client_put(struct client_table *t, struct lock_client *c) {
    MUTEX_GUARD(&t->mutex);
    invariant(c->refs > 0, "a client without references is given back");
    if (--c->refs == 0) {
        table_remove(&t->table, &c->link, c->hash);
        memory_free(c);
    }
}

uint64_t lock_client_hash(const struct lock_client *c) {
    return c->hash;
}

const char *lock_client_name(const struct lock_client *c, size_t *len) {
    if (len)
        *len = c->len;
    return c->name;
}

/* ---- orphans' successors, with the clients' mutex held --------------------------------------------------------- */

static void orphan_unattend(struct orphan *st) {
    if (!st->successor)
        return;
    st->successor->orphan = NULL;
    atomic_store(&st->successor->attends, false);
    st->successor = NULL;
    atomic_store(&st->attended, false);
}

void orphan_attend(struct orphan *st, struct lock_session *s) {
    orphan_unattend(st);
    list_remove(&st->of_client);
    st->successor = s;
    st->tried = s->came;
    atomic_store(&st->kept, false);
    atomic_store(&st->attended, true);
    s->orphan = st;
    atomic_store(&s->attends, true);
}

/* The first orphan that waits for a successor and has a live lease. */
static struct orphan *first_waiting(const struct lock_client *client) {
    LIST_EACH(st, &client->orphans, struct orphan, of_client)
        if (st->leases > 0)
            return st;
    return NULL;
}

/* Gives an orphan to the first session that came in time and after the orphan's last successor, which goes. If there is
 * none, the orphan waits. */
void orphan_offer(struct orphan *st) {
    struct lock_session *first = NULL;
    orphan_unattend(st);
    struct list_node *all = &st->client->sessions;
    for (struct list_node *n = all->prev; n != all && st->leases > 0; n = n->prev) {
        struct lock_session *s = LIST_ENTRY(n, struct lock_session, of_client);
        if (s->came_ms < st->left_ms - EARLY_MS || s->came <= st->tried)
            break;
        if (!s->orphan)
            first = s;
    }
    list_remove(&st->of_client);
    if (first)
        orphan_attend(st, first);
    else
        list_append(&st->client->orphans, &st->of_client);
}

struct orphan *orphan_new(struct lock_client *client, int64_t now_ms) {
    struct orphan *st = memory_zalloc(sizeof(*st));
    list_init(&st->of_client);
    st->client = client;
    st->left_ms = now_ms;
    st->refs = 1;
    return st;
}

/* ---- sessions come and go ------------------------------------------------------------------------ */

void successor_come(struct lock_engine *e, struct lock_session *s, int64_t now_ms) {
    struct lock_client *client = s->client;
    MUTEX_GUARD(&e->clients.mutex);
    list_append(&client->sessions, &s->of_client);
    s->came = ++client->comings;
    s->came_ms = now_ms;
    s->came_login = s->login;
    struct orphan *waiting = first_waiting(client);
    if (waiting)
        orphan_attend(waiting, s);
    if (!atomic_load(&client->back) && client->brief <= BRIEF_MAX) {
        client->back_ms = now_ms;
        atomic_store(&client->kept, false);
        atomic_store(&client->back, true);
    }
}

void successor_go(struct lock_engine *e, struct lock_session *s, bool closes, int64_t now_ms) {
    struct lock_client *client = s->client;
    MUTEX_GUARD(&e->clients.mutex);
    list_remove(&s->of_client);
    struct orphan *st = s->orphan;
    if (atomic_load(&e->leaving)) { /* a session that this process disconnects counts as connected */
        if (st)
            st->successor = NULL;
        s->orphan = NULL;
        return;
    }
    if (st) {
        orphan_unattend(st);
        st->left_ms = now_ms;
        st->brief += !atomic_load(&st->kept);
        if (st->brief <= BRIEF_MAX)
            orphan_offer(st);
    }
    if (client->open == 0 && atomic_load(&client->back)) {
        client->brief += !atomic_load(&client->kept);
        atomic_store(&client->back, false);
    }
    if (closes && st && st->brief <= BRIEF_MAX) {
        s->left = st;
        st->refs++;
    }
}

void orphan_put(struct lock_engine *e, struct orphan **at) {
    struct orphan *st = *at;
    if (!st)
        return;
    *at = NULL;
    MUTEX_GUARD(&e->clients.mutex);
    invariant(st->refs > 0, "an orphan without references is given back");
    if (--st->refs == 0) {
        orphan_unattend(st);
        list_remove(&st->of_client);
        memory_free(st);
    }
}

/* ---- live leases ----------------------------------------------------------------------------------- */

/* Counts a live lease of its peer's orphan. With its first live lease, the orphan looks for a successor. */
void orphan_count(struct claim *c) {
    struct orphan *st = c->peer->orphan;
    if (c->succession == SUCCESSION_COUNTS)
        return;
    claim_succession_enter(c, SUCCESSION_COUNTS);
    if (++st->leases == 1 && !st->successor && st->brief <= BRIEF_MAX)
        orphan_offer(st);
}

void successor_counts(struct shard *sh, struct claim *c) {
    if (c->succession != SUCCESSION_WAITS || !c->peer->orphan)
        return;
    MUTEX_GUARD(&sh->engine->clients.mutex);
    orphan_count(c);
}

void successor_over(struct shard *sh, struct claim *c) {
    if (c->succession != SUCCESSION_COUNTS)
        return;
    struct orphan *st = c->peer->orphan, *next;
    claim_succession_enter(c, SUCCESSION_WAITS);
    MUTEX_GUARD(&sh->engine->clients.mutex);
    if (--st->leases == 0 && st->successor) {
        orphan_unattend(st);
        list_append(&st->client->orphans, &st->of_client);
        next = first_waiting(st->client);
        if (next)
            orphan_offer(next);
    }
}
