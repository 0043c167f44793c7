/* The ledger of permits. Every public function takes the mutex; the functions above them are called with it. */
#include "proxy/lock/permits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/base/mutex.h"
#include "proxy/base/table.h"
#include "proxy/lock/hash.h"

enum { POOLED_MAX = 4096 };

struct permit_party {
    struct table_link link;
    uint64_t id;
    struct list_node permits;
};

/* A key with permits, or with operations under way. */
struct permit_key {
    struct table_link link;
    uint64_t hash;
    size_t refs;  /* permits and operations */
    size_t count; /* permits in the list */
    struct list_node permits, ops;
    uint64_t reset_seq; /* what was taken by an operation that began before counts no more */
    bool alike;
    struct lock_key name;
    char bytes[];
};

struct permit_ledger {
    pthread_mutex_t mutex;
    struct hash_seed seed;
    struct table keys, sessions, clients;
    struct list_node due, leased;
    uint64_t seq;                /* grows with each event */
    atomic_size_t uses;          /* permits and operations, and permits that were taken out */
    size_t count;                /* takes that were not given back as a whole */
    int64_t held;                /* their permits */
    uint64_t pooled[POOLED_MAX]; /* clients of which one connection gave back what another one had taken */
};

static uint64_t key_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct permit_key, link)->hash;
}

static uint64_t party_hash(const struct table_link *link) {
    return hash_number(LIST_ENTRY(link, struct permit_party, link)->id);
}

/* ---- parties ------------------------------------------------------------------------------------ */

static struct permit_party *party_find(const struct table *t, uint64_t id) {
    TABLE_CHAIN(party, t, hash_number(id), struct permit_party, link)
        if (party->id == id)
            return party;
    return NULL;
}

/* Appends a permit's node to the permits of a party, which is made if there is none. */
static struct permit_party *party_join(struct table *t, uint64_t id, struct list_node *node) {
    struct permit_party *party = party_find(t, id);
    if (!party) {
        party = memory_zalloc(sizeof(*party));
        party->id = id;
        list_init(&party->permits);
        table_insert(t, &party->link, hash_number(id));
    }
    list_append(&party->permits, node);
    return party;
}

static void party_leave(struct table *t, struct permit_party *party, struct list_node *node) {
    list_remove(node);
    if (!list_empty(&party->permits))
        return;
    table_remove(t, &party->link, hash_number(party->id));
    table_trim(t);
    memory_free(party);
}

/* ---- keys ----------------------------------------------------------------------------------------- */

static uint64_t hash_of_name(const struct permit_ledger *l, const struct lock_key *name) {
    return hash_bytes(&l->seed, name->name, name->len) ^ hash_number(name->db);
}

static struct permit_key *key_find(const struct permit_ledger *l, const struct lock_key *name, uint64_t hash) {
    TABLE_CHAIN(k, &l->keys, hash, struct permit_key, link)
        if (k->hash == hash && k->name.db == name->db && k->name.len == name->len &&
            memcmp(k->bytes, name->name, name->len) == 0)
            return k;
    return NULL;
}

static void key_put(struct permit_ledger *l, struct permit_key *k) {
    invariant(k->refs > 0, "a semaphore's key is given back twice");
    if (--k->refs > 0)
        return;
    table_remove(&l->keys, &k->link, k->hash);
    memory_free(k);
}

/* ---- permits -------------------------------------------------------------------------------------- */

static void permit_detach(struct permit_ledger *l, struct permit *p) {
    list_remove(&p->of_key);
    list_remove(&p->of_due);
    party_leave(&l->sessions, p->session, &p->of_session);
    party_leave(&l->clients, p->client, &p->of_client);
    p->session = p->client = NULL;
    p->key->count--;
    l->count--;
    l->held -= p->n;
}

static void permit_attach(struct permit_ledger *l, struct permit *p, uint64_t session, uint64_t client) {
    list_append(&p->key->permits, &p->of_key);
    p->session = party_join(&l->sessions, session, &p->of_session);
    p->client = party_join(&l->clients, client, &p->of_client);
    p->key->count++;
    l->count++;
    l->held += p->n;
}

static void permit_free(struct permit_ledger *l, struct permit *p) {
    key_put(l, p->key);
    lock_rules_unref(p->rule->set);
    memory_free(p);
    atomic_fetch_sub(&l->uses, 1);
}

static void permit_over(struct permit_ledger *l, struct permit *p) {
    permit_detach(l, p);
    permit_free(l, p);
}

static void permit_lower(struct permit_ledger *l, struct permit *p, int64_t n) {
    invariant(n > 0 && n <= p->n, "%lld permits of %lld", (long long)n, (long long)p->n);
    if (n == p->n) {
        permit_over(l, p);
        return;
    }
    p->n -= n;
    l->held -= n;
}

static void permit_is_due(struct permit_ledger *l, struct permit *p, enum permit_reason reason, int64_t now_ms) {
    list_remove(&p->of_due);
    list_append(&l->due, &p->of_due);
    p->reason = reason;
    p->gone_seq = ++l->seq;
    p->due_ms = now_ms;
}

/* Whether the permit is of this token or member; NULL: of a counter. */
static bool text_equals(const struct permit *p, const char *text, size_t len) {
    if (!text || p->shape == PERMIT_COUNT)
        return !text && p->shape == PERMIT_COUNT;
    return p->len == len && memcmp(p->text, text, len) == 0;
}

static void score_set(struct permit *p, const char *score, size_t len) {
    invariant(len < PERMIT_SCORE_MAX, "a score of %zu bytes", len);
    if (len > 0)
        memcpy(p->score, score, len);
    p->score[len] = '\0';
}

/* The permit that a give-back is for: of the session, else of its client, else the oldest. text NULL: of a counter. */
static struct permit *permit_given(const struct permit_key *k, const struct permit_sender *from, const char *text,
                                   size_t len) {
    struct permit *best = NULL;
    int best_rank = 0;
    LIST_EACH(p, &k->permits, struct permit, of_key) {
        int rank = p->session->id == from->session ? 3 : p->client->id == from->client ? 2 : 1;
        if (text_equals(p, text, len) && rank > best_rank) {
            best = p;
            best_rank = rank;
        }
    }
    return best;
}

/* Learns that a client shares its connections: one gives back what another one, which is connected, has taken. */
static void learn(struct permit_ledger *l, const struct permit *p, const struct permit_sender *from) {
    if (p->client->id == from->client && p->session->id != from->session)
        l->pooled[from->client % POOLED_MAX] = from->client;
}

/* How many permits of a counter the permit is, if it was taken before the operation began. */
static int64_t older(const struct permit *p, const struct permit_op *op) {
    return p->shape == PERMIT_COUNT && p->seq < op->seq ? p->n : 0;
}

/* Forgets permits that the counter shows to be gone: before this operation it had `before`, less than what was taken.
 * The key has expired, or was changed around the proxy. */
static void settle_counter(struct permit_ledger *l, const struct permit_op *op, int64_t before) {
    int64_t excess = -(before < 0 ? 0 : before);
    LIST_EACH(p, &op->key->permits, struct permit, of_key)
        excess += older(p, op);
    LIST_EACH(o, &op->key->ops, struct permit_op, link)
        excess -= o->gives;
    LIST_EACH_SAFE(p, &op->key->permits, struct permit, of_key) {
        int64_t n = older(p, op) < excess ? older(p, op) : excess;
        excess -= n > 0 ? n : 0;
        if (n > 0)
            permit_lower(l, p, n);
    }
}

/* Whether an operation is under way that began before the permit was due, and may be giving it back. */
static bool may_be_given(const struct permit *p, int64_t now_ms) {
    if (now_ms - p->due_ms >= PERMIT_WAITS_MS)
        return false;
    LIST_EACH(op, &p->key->ops, const struct permit_op, link)
        if (op->gives > 0 && op->seq < p->gone_seq)
            return true;
    return false;
}

static void forget_key(struct permit_ledger *l, struct permit_key *k) {
    k->refs++;
    k->reset_seq = ++l->seq;
    k->alike = false;
    LIST_EACH_SAFE(p, &k->permits, struct permit, of_key)
        permit_over(l, p);
    key_put(l, k);
}

/* ---- the ledger ------------------------------------------------------------------------------------- */

struct permit_ledger *permits_new(uint64_t seed) {
    struct permit_ledger *l = memory_zalloc(sizeof(*l));
    pthread_mutex_init(&l->mutex, NULL);
    l->seed = hash_seed_make(seed, 5);
    table_init(&l->keys, key_hash);
    table_init(&l->sessions, party_hash);
    table_init(&l->clients, party_hash);
    list_init(&l->due);
    list_init(&l->leased);
    atomic_init(&l->uses, 0);
    return l;
}

void permits_free(struct permit_ledger *l) {
    if (!l)
        return;
    TABLE_EACH(k, &l->keys, struct permit_key, link) {
        k->refs++;
        forget_key(l, k);
    }
    TABLE_EACH(k, &l->keys, struct permit_key, link)
        memory_free(k);
    table_clear(&l->keys);
    table_clear(&l->sessions);
    table_clear(&l->clients);
    pthread_mutex_destroy(&l->mutex);
    memory_free(l);
}

bool permits_any(const struct permit_ledger *l) {
    return atomic_load_explicit(&l->uses, memory_order_relaxed) > 0;
}

int64_t permits_held(struct permit_ledger *l) {
    MUTEX_GUARD(&l->mutex);
    return l->held;
}

int64_t permits_show(struct permit_ledger *l, const struct lock_key *key, size_t max, int64_t now_ms,
                     struct text *out) {
    char text[PERMIT_TEXT_MAX + 1];
    int64_t held = 0;
    size_t shown = 0;
    MUTEX_GUARD(&l->mutex);
    const struct permit_key *k = key_find(l, key, hash_of_name(l, key));
    for (const struct list_node *it = k ? k->permits.next : NULL; it && it != &k->permits; it = it->next) {
        const struct permit *p = LIST_ENTRY(it, struct permit, of_key);
        held += p->n;
        if (shown++ >= max)
            continue;
        text_printf(out, "%s%s", shown > 1 ? "; " : "", p->who);
        if (p->gone || p->session->id == 0)
            text_printf(out, " gone");
        else
            text_printf(out, " id=%llu", (unsigned long long)p->session->id);
        snprintf(text, sizeof(text), "%lld", (long long)p->n);
        if (p->shape != PERMIT_COUNT)
            text_printable(text, sizeof(text), p->text, p->len, '.');
        text_printf(out, " has %s since %lld ms", text, (long long)(now_ms - p->taken_ms));
    }
    if (shown > max)
        text_printf(out, "; and %zu more", shown - max);
    return held;
}

/* ---- operations --------------------------------------------------------------------------------------- */

void permits_begin(struct permit_ledger *l, struct permit_op *op, const struct lock_key *key, int64_t gives) {
    MUTEX_GUARD(&l->mutex);
    uint64_t hash = hash_of_name(l, key);
    struct permit_key *k = key_find(l, key, hash);
    if (!k) {
        k = memory_zalloc(sizeof(*k) + key->len);
        k->hash = hash;
        memcpy(k->bytes, key->name, key->len);
        k->name = (struct lock_key){.db = key->db, .name = k->bytes, .len = key->len};
        list_init(&k->permits);
        list_init(&k->ops);
        table_insert(&l->keys, &k->link, hash);
    }
    k->refs++;
    op->key = k;
    op->name = k->name;
    op->seq = ++l->seq;
    op->gives = gives;
    list_init(&op->link);
    list_append(&k->ops, &op->link);
    atomic_fetch_add(&l->uses, 1);
}

void permits_end(struct permit_ledger *l, struct permit_op *op) {
    MUTEX_GUARD(&l->mutex);
    list_remove(&op->link);
    key_put(l, op->key);
    table_trim(&l->keys);
    op->key = NULL;
    atomic_fetch_sub(&l->uses, 1);
}

bool permits_take(struct permit_ledger *l, const struct permit_op *op, const struct permit_take *take) {
    MUTEX_GUARD(&l->mutex);
    bool counts = op->seq > op->key->reset_seq;
    if (counts && take->shape == PERMIT_COUNT)
        settle_counter(l, op, take->value - take->n);
    bool fits = l->count < PERMITS_MAX && op->key->count < PERMITS_OF_KEY_MAX && op->key->name.len <= PERMIT_KEY_MAX &&
                take->len <= PERMIT_TEXT_MAX && take->score_len < PERMIT_SCORE_MAX;
    struct permit *before =
        counts && take->shape != PERMIT_COUNT ? permit_given(op->key, take->sender, take->text, take->len) : NULL;
    if (before && take->shape == PERMIT_MEMBER) /* it was removed where the proxy does not see it */
        permit_over(l, before);
    else if (before)
        op->key->alike = true;
    if (counts && fits) {
        struct permit *p = memory_zalloc(sizeof(*p) + take->len);
        *p = (struct permit){.name = op->key->name,
                             .rule = take->rule,
                             .shape = take->shape,
                             .n = take->shape == PERMIT_COUNT ? take->n : 1,
                             .login = take->sender->login,
                             .key = op->key,
                             .seq = ++l->seq,
                             .taken_ms = take->now_ms,
                             .len = take->len};
        p->key->refs++;
        lock_rules_ref(take->rule->set);
        strncpy(p->who, take->sender->who, sizeof(p->who) - 1);
        score_set(p, take->score, take->score_len);
        if (take->len > 0)
            memcpy(p->text, take->text, take->len);
        list_init(&p->of_due);
        permit_attach(l, p, take->sender->session, take->sender->client);
        if (p->rule->lease_ms > 0)
            list_append(&l->leased, &p->of_due);
        atomic_fetch_add(&l->uses, 1);
    }
    return fits || !counts;
}

int64_t permits_give(struct permit_ledger *l, const struct permit_op *op, const struct permit_sender *from, int64_t n) {
    int64_t left = n;
    MUTEX_GUARD(&l->mutex);
    struct permit *p;
    while (left > 0 && (p = permit_given(op->key, from, NULL, 0))) {
        int64_t part = p->n < left ? p->n : left;
        if (left == n)
            learn(l, p, from);
        left -= part;
        permit_lower(l, p, part);
    }
    return n - left;
}

bool permits_give_text(struct permit_ledger *l, const struct permit_op *op, const struct permit_sender *from,
                       const char *text, size_t len) {
    MUTEX_GUARD(&l->mutex);
    struct permit *p = permit_given(op->key, from, text, len);
    if (p) {
        learn(l, p, from);
        permit_over(l, p);
    }
    return p != NULL;
}

bool permits_rescore(struct permit_ledger *l, const struct permit_op *op, const char *text, size_t len,
                     const char *score, size_t score_len) {
    bool found = false;
    MUTEX_GUARD(&l->mutex);
    LIST_EACH_SAFE(p, &op->key->permits, struct permit, of_key) {
        if (!text_equals(p, text, len))
            continue;
        found = true;
        if (score_len < PERMIT_SCORE_MAX)
            score_set(p, score, score_len);
        else
            permit_over(l, p);
    }
    return found;
}

/* ---- resets ------------------------------------------------------------------------------------------- */

void permits_forget(struct permit_ledger *l, const struct permit_op *op) {
    MUTEX_GUARD(&l->mutex);
    forget_key(l, op->key);
}

void permits_forget_all(struct permit_ledger *l, uint32_t db, bool every) {
    MUTEX_GUARD(&l->mutex);
    TABLE_EACH(k, &l->keys, struct permit_key, link)
        if (every || k->name.db == db)
            forget_key(l, k);
}

void permits_rules(struct permit_ledger *l, const struct lock_rules *rules) {
    MUTEX_GUARD(&l->mutex);
    TABLE_EACH(k, &l->keys, struct permit_key, link) {
        const struct lock_rule *rule = lock_rules_rule_of(rules, k->bytes, k->name.len);
        if (!rule || !rule->permits) {
            forget_key(l, k);
            continue;
        }
        LIST_EACH(p, &k->permits, struct permit, of_key) {
            struct lock_rules *old = p->rule->set;
            p->rule = rule;
            lock_rules_ref(rule->set);
            lock_rules_unref(old);
            if (list_empty(&p->of_due) && rule->lease_ms > 0)
                list_append(&l->leased, &p->of_due);
        }
    }
}

/* ---- permits that are due ------------------------------------------------------------------------------- */

void permits_leave(struct permit_ledger *l, uint64_t session, uint64_t client, bool last, bool one_shot,
                   int64_t now_ms) {
    MUTEX_GUARD(&l->mutex);
    struct permit_party *party = party_find(&l->sessions, session);
    for (struct list_node *it = party ? party->permits.next : NULL; party && it != &party->permits; it = it->next) {
        struct permit *p = LIST_ENTRY(it, struct permit, of_session);
        if (p->client->id != client) {
            party_leave(&l->clients, p->client, &p->of_client);
            p->client = party_join(&l->clients, client, &p->of_client);
        }
        bool known = p->gone, kept = one_shot && now_ms - p->taken_ms <= PERMIT_ONE_SHOT_MS;
        /* its permits outlive the session, until the last session of the client closes */
        bool pooled = p->rule->owner == LOCK_OWNER_CLIENT ||
                      (p->rule->owner == LOCK_OWNER_AUTO && l->pooled[client % POOLED_MAX] == client);
        p->gone = true;
        if (!known && kept)
            p->gone_seq = UINT64_MAX; /* only its lease ends it */
        else if (!known && !pooled)
            permit_is_due(l, p, PERMIT_LEFT, now_ms);
    }
    party = last ? party_find(&l->clients, client) : NULL;
    for (struct list_node *it = party ? party->permits.next : NULL; party && it != &party->permits; it = it->next) {
        struct permit *p = LIST_ENTRY(it, struct permit, of_client);
        if (p->gone && p->gone_seq == 0)
            permit_is_due(l, p, PERMIT_LEFT, now_ms);
    }
}

void permits_expire(struct permit_ledger *l, int64_t now_ms) {
    MUTEX_GUARD(&l->mutex);
    LIST_EACH_SAFE(p, &l->leased, struct permit, of_due)
        if (p->rule->lease_ms > 0 && now_ms - p->taken_ms >= p->rule->lease_ms)
            permit_is_due(l, p, PERMIT_EXPIRED, now_ms);
}

struct permit *permits_due(struct permit_ledger *l, int64_t now_ms) {
    struct permit *found = NULL;
    MUTEX_GUARD(&l->mutex);
    LIST_EACH(p, &l->due, struct permit, of_due)
        if (p->due_ms <= now_ms && !may_be_given(p, now_ms)) {
            found = p;
            break;
        }
    if (found) {
        found->alike = found->key->alike;
        permit_detach(l, found);
    }
    return found;
}

void permits_put_back(struct permit_ledger *l, struct permit *p, int64_t now_ms, int64_t in_ms) {
    MUTEX_GUARD(&l->mutex);
    if (p->seq < p->key->reset_seq) {
        permit_free(l, p);
    } else {
        p->tries++;
        permit_attach(l, p, 0, 0); /* its session and its client have no part in it any more */
        list_append(&l->due, &p->of_due);
        p->due_ms = now_ms + in_ms;
    }
}

void permits_drop(struct permit_ledger *l, struct permit *p) {
    MUTEX_GUARD(&l->mutex);
    permit_free(l, p);
}
