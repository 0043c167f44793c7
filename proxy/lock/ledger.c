/*
 * The ledger: tables of lock keys, sessions, claims and contenders, and a heap of deadlines, for each shard. It keeps
 * them consistent with each other, and bounded. The other files decide what they mean. The caller locks the shard.
 */
#include "proxy/lock/ledger.h"

#include "parser/resp.h"
#include "parser/slot.h"
#include "proxy/base/bytes.h"
#include "proxy/base/memory.h"

/* ---- the whole ------------------------------------------------------------------------------- */

static uint64_t entry_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct entry, link)->hash;
}

static uint64_t peer_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct peer, link)->id; /* ids are consecutive numbers */
}

void ledger_init(struct lock_engine *e, uint64_t seed) {
    e->key_seed = hash_seed_make(seed, 1);
    e->value_seed = hash_seed_make(seed, 2);
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *sh = &e->shards[i];
        pthread_mutex_init(&sh->mutex, NULL);
        sh->engine = e;
        table_init(&sh->entries, entry_hash);
        table_init(&sh->peers, peer_hash);
    }
}

static void contenders_free(struct entry *en) {
    if (!en->contenders)
        return;
    for (struct key_stats *c = en->contenders->key_stats, *next; c; c = next) {
        next = c->next;
        workload_put(c->workload);
        memory_free(c);
    }
    memory_free(en->contenders);
    en->contenders = NULL;
}

void ledger_clear(struct lock_engine *e) {
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *sh = &e->shards[i];
        TABLE_EACH(en, &sh->entries, struct entry, link) {
            while (entry_contender_list(en))
                contender_remove(sh, entry_contender_list(en));
            while (entry_tenures(en))
                tenure_remove(entry_tenures(en));
            while (en->claims)
                claim_remove(sh, en->claims);
            contenders_free(en);
            memory_free(en);
        }
        TABLE_EACH(p, &sh->peers, struct peer, link) {
            session_stats_clear(p);
            alarms_clear(p);
            if (p->orphan && --p->orphan->refs == 0)
                memory_free(p->orphan);
            client_put(&e->clients, p->client);
            memory_free(p);
        }
        for (struct claim *c = sh->free_claims, *next; c; c = next) {
            next = c->next;
            memory_free(c);
        }
        for (struct table_link *it = sh->free_entries, *next; it; it = next) {
            next = it->next;
            memory_free(LIST_ENTRY(it, struct entry, link));
        }
        table_clear(&sh->entries);
        table_clear(&sh->peers);
        MEMORY_FREE_ALL(sh->contention, sh->timers.slots);
        pthread_mutex_destroy(&sh->mutex);
    }
}

/* The top bits of the hash are the pattern's, and choose the shard. The low bits choose the bucket. */
uint64_t ledger_hash(const struct lock_engine *e, const struct lock_key *key, uint64_t *pattern) {
    static const uint64_t TOP = (uint64_t)0xf << 60;
    uint64_t hash = hash_bytes(&e->key_seed, key->name, key->len) ^ key->db * (uint64_t)0x9e3779b97f4a7c15;
    uint64_t of_pattern = advise_pattern_hash(key->name, key->len);
    if (pattern)
        *pattern = of_pattern;
    return (hash & ~TOP) | (of_pattern & TOP);
}

struct shard *ledger_shard(struct lock_engine *e, uint64_t hash) {
    return &e->shards[hash >> 60];
}

struct shard *ledger_lock(struct lock_engine *e, const struct lock_key *key, uint64_t hash, struct entry **en) {
    struct shard *sh = ledger_shard(e, hash);
    shard_lock(sh);
    *en = entry_find(sh, key, hash);
    return sh;
}

uint64_t ledger_number(struct lock_engine *e) {
    return atomic_fetch_add(&e->attempts, 2) + 2;
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* A binary heap, in which each timer knows its place, so that it can be moved or taken out at once. */
static void timer_put(struct timer_heap *h, uint32_t place, struct timer_slot slot) {
    h->slots[place] = slot;
    slot.timer->place = place;
}

/* Moves a timer's slot, from this place, up or down to where it belongs. */
static inline void timer_place(struct timer_heap *h, uint32_t place, struct timer_slot slot) {
    invariant_debug(place > 0 && place <= h->count, "a timer at %u of %u", place, h->count);
    for (; place > 1 && h->slots[place / 2].due_ms > slot.due_ms; place /= 2)
        timer_put(h, place, h->slots[place / 2]);
    for (uint32_t child; (child = 2 * place) <= h->count; place = child) {
        child += child < h->count && h->slots[child + 1].due_ms < h->slots[child].due_ms;
        if (h->slots[child].due_ms >= slot.due_ms)
            break;
        timer_put(h, place, h->slots[child]);
    }
    timer_put(h, place, slot);
}

static __attribute__((noinline)) void timers_resize(struct timer_heap *h, uint32_t cap) {
    h->cap = cap;
    h->slots = memory_realloc(h->slots, ((size_t)cap + 1) * sizeof(*h->slots));
}

static void timer_take(struct timer_heap *h, struct timer *t) {
    uint32_t place = t->place;
    t->place = 0;
    struct timer_slot last = h->slots[h->count--];
    invariant_debug(place <= h->count + 1 && h->count < UINT32_MAX, "a timer at %u of %u", place, h->count);
    if (last.timer != t)
        timer_place(h, place, last);
    if (h->cap > 1024 && h->count < h->cap / 4) /* only a burst of timers needed the memory */
        timers_resize(h, h->cap / 2);
}

void timer_set(struct timer_heap *h, struct timer *t, int64_t due_ms) {
    if (due_ms == NO_DEADLINE) {
        if (t->place)
            timer_take(h, t);
        return;
    }
    if (!t->place && h->count == h->cap)
        timers_resize(h, h->cap ? h->cap + h->cap / 2 : 16);
    timer_place(h, t->place ? t->place : ++h->count, (struct timer_slot){due_ms, t});
}

struct timer *timer_due(struct timer_heap *h, int64_t now_ms) {
    if (h->count == 0 || h->slots[1].due_ms > now_ms)
        return NULL;
    struct timer *t = h->slots[1].timer;
    timer_take(h, t);
    return t;
}

int64_t timer_next(const struct timer_heap *h) {
    return h->count ? h->slots[1].due_ms : NO_DEADLINE;
}

/* ---- entries --------------------------------------------------------------------------------- */

struct lock_key entry_key(const struct entry *en) {
    return (struct lock_key){.db = en->db, .name = en->name, .len = en->len};
}

struct entry *entry_find(struct shard *sh, const struct lock_key *key, uint64_t hash) {
    TABLE_CHAIN(en, &sh->entries, hash, struct entry, link)
        if (en->hash == (uint32_t)hash && en->db == key->db && en->len == key->len &&
            bytes_same(en->name, key->name, key->len))
            return en;
    return NULL;
}

struct contenders *entry_contenders(struct entry *en) {
    if (!en->contenders) {
        en->contenders = memory_zalloc(sizeof(*en->contenders));
        for (const struct claim *c = en->claims; c; c = c->next)
            en->contenders->length_ms = claim_length(c);
    }
    return en->contenders;
}

inline struct entry *entry_get(struct shard *sh, const struct lock_key *key, uint64_t hash) {
    struct entry *en = entry_find(sh, key, hash);
    return en ? en : entry_add(sh, key, hash, slot_of_key(key->name, key->len));
}

inline struct entry *entry_add(struct shard *sh, const struct lock_key *key, uint64_t hash, uint16_t slot) {
    size_t room = key->len > ENTRY_NAME_KEPT ? key->len : ENTRY_NAME_KEPT;
    struct entry *en;
    if (room > ENTRY_NAME_KEPT || !sh->free_entries) {
        en = memory_zalloc(sizeof(*en) + room);
    } else {
        en = LIST_ENTRY(sh->free_entries, struct entry, link);
        sh->free_entries = sh->free_entries->next;
        sh->free_entry_count--;
        *en = (struct entry){.hash = 0};
    }
    en->hash = (uint32_t)hash;
    en->db = key->db;
    en->len = (uint32_t)key->len;
    en->slot = slot;
    bytes_copy(en->name, key->name, key->len);
    table_insert(&sh->entries, &en->link, hash);
    return en;
}

inline void entry_settle(struct shard *sh, struct entry *en) {
    if (en->claims || entry_contender_list(en) || entry_tenures(en))
        return;
    contenders_free(en);
    table_remove(&sh->entries, &en->link, en->hash);
    if (en->len > ENTRY_NAME_KEPT || sh->free_entry_count >= FREE_ENTRIES) {
        memory_free(en);
        return;
    }
    en->link.next = sh->free_entries;
    sh->free_entries = &en->link;
    sh->free_entry_count++;
}

/* ---- peers ----------------------------------------------------------------------------------- */

struct peer *peer_find(struct shard *sh, uint64_t id) {
    TABLE_CHAIN(p, &sh->peers, id, struct peer, link)
        if (p->id == id)
            return p;
    return NULL;
}

struct peer *peer_add(struct shard *sh, uint64_t id, struct lock_client *client) {
    struct peer *p = memory_zalloc(sizeof(*p));
    p->id = id;
    p->client = client;
    client_ref(&sh->engine->clients, p->client);
    p->epoch = atomic_load(&p->client->epoch);
    list_init(&p->claims);
    list_init(&p->contenders);
    list_init(&p->tenures);
    list_init(&p->session_stats);
    list_init(&p->closed_link);
    p->shard = sh;
    table_insert(&sh->peers, &p->link, id);
    return p;
}

inline struct peer *peer_get(struct shard *sh, struct lock_session *s) {
    struct peer *p = peer_find(sh, s->id);
    if (p)
        return p;
    p = peer_add(sh, s->id, s->client);
    p->session = s;
    p->overlapped = s->overlapped;
    s->shards |= 1u << (sh - sh->engine->shards);
    return p;
}

void alarm_remove(struct alarm **at) {
    struct alarm *a = *at;
    *at = a->next;
    lock_rules_unref(a->rule->set);
    memory_free(a);
}

void alarms_clear(struct peer *p) {
    while (p->alarms)
        alarm_remove(&p->alarms);
}

static void peer_free(struct shard *sh, struct peer *p) {
    invariant(p->in_flight == 0 && list_empty(&p->claims) && list_empty(&p->contenders), "%u commands are in flight",
              p->in_flight);
    session_stats_clear(p);
    alarms_clear(p);
    table_remove(&sh->peers, &p->link, p->id);
    orphan_put(sh->engine, &p->orphan);
    if (p->closed) { /* an open session's peer is in no list of closed peers */
        pthread_mutex_lock(&sh->engine->clients.mutex);
        list_remove(&p->closed_link);
        pthread_mutex_unlock(&sh->engine->clients.mutex);
    }
    client_put(&sh->engine->clients, p->client);
    memory_free(p);
}

inline void peer_settle(struct shard *sh, struct peer *p) {
    if (!(p->closed || p->remote) || p->in_flight || !list_empty(&p->claims) || !list_empty(&p->contenders))
        return;
    peer_free(sh, p);
}

void peer_forget(struct shard *sh, struct peer *p) {
    if (p->closed || p->in_flight || !list_empty(&p->claims) || !list_empty(&p->contenders) ||
        !list_empty(&p->session_stats) || !list_empty(&p->tenures) || p->alarms)
        return;
    p->session->shards &= ~(1u << (sh - sh->engine->shards));
    peer_free(sh, p);
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* The claim that is forgotten first: the oldest ended claim that no command uses. If no claim has ended, the oldest
 * unused one. */
static struct claim *least_wanted(struct entry *en) {
    struct claim *oldest = NULL;
    for (struct claim *c = en->claims; c; c = c->next) {
        if (claim_ended(c) && !c->uses)
            return c;
        if (!oldest && !c->uses)
            oldest = c;
    }
    return oldest;
}

/* Notes that a closed session has left claims or contenders. The caller does this before it looks whether other
 * sessions of the client are open: see last_left. */
static inline void note_closed_peer(struct shard *sh, struct peer *p) {
    if (p->closed)
        (void)client_closed_peer(&sh->engine->clients, p);
}

inline struct claim *claim_add(struct shard *sh, struct entry *en, struct peer *p, const struct lock_rule *rule,
                               uint64_t token, uint64_t fence) {
    invariant_debug(token != 0 && !claim_find(en, token), "S2: two claims have one token");
    struct claim *old = en->claim_count >= CLAIMS_A_KEY ? least_wanted(en) : NULL;
    if (old) {
        struct peer *owner = old->peer;
        claim_remove(sh, old);
        if (owner != p)
            peer_settle(sh, owner);
    }
    struct claim *c = sh->free_claims;
    if (c) {
        sh->free_claims = c->next;
        sh->free_claim_count--;
        *c = (struct claim){.next = NULL};
    } else {
        c = memory_zalloc(sizeof(*c));
    }
    c->timer.kind = TIMER_CLAIM;
    c->entry = en;
    c->peer = p;
    c->rule = rule;
    lock_rules_ref(rule->set);
    c->token = token;
    c->fence = fence;
    /* Claims are in the order of their fences: answers may come in another order than Redis ran the scripts in. */
    struct claim **at = &en->claims;
    while (*at && !(fence && (*at)->fence > fence))
        at = &(*at)->next;
    c->next = *at;
    *at = c;
    en->claim_count++;
    list_append(&p->claims, &c->of_peer);
    p->claim_count++;
    note_closed_peer(sh, p);
    sh->claims++;
    sh->live += !p->remote;
    return c;
}

struct claim_extra *claim_extra(struct claim *c) {
    if (!c->extra)
        c->extra = memory_zalloc(sizeof(*c->extra));
    return c->extra;
}

struct claim *claim_find(const struct entry *en, uint64_t token) {
    struct claim *c = token ? entry_claims(en) : NULL;
    while (c && c->token != token)
        c = c->next;
    return c;
}

struct claim *claim_of_fence(const struct entry *en, uint64_t fence, const struct lock_client *client) {
    struct claim *c = entry_claims(en);
    while (c && (c->fence != fence || (client && c->peer->client != client)))
        c = c->next;
    return c;
}

inline void claim_remove(struct shard *sh, struct claim *c) {
    invariant_debug(c->entry->claim_count > 0 && c->peer->claim_count > 0 && sh->claims > 0, "the key has %d claims",
                    c->entry->claim_count);
    struct claim **at = &c->entry->claims;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    c->entry->claim_count--;
    list_remove(&c->of_peer);
    c->peer->claim_count--;
    timer_set(&sh->timers, &c->timer, NO_DEADLINE);
    successor_over(sh, c);
    sh->claims--;
    if (!claim_ended(c))
        sh->live -= !c->peer->remote;
    lock_rules_unref(c->rule->set);
    workload_put(c->workload);
    memory_free(c->extra);
    if (sh->free_claim_count >= FREE_CLAIMS) {
        memory_free(c);
        return;
    }
    c->next = sh->free_claims;
    sh->free_claims = c;
    sh->free_claim_count++;
}

void claim_drop(struct shard *sh, struct claim *c) {
    struct peer *p = c->peer;
    claim_remove(sh, c);
    peer_settle(sh, p);
}

/* ---- the four states of a claim ------------------------------------------------------------ */

/*
 * No other file sets them, so that the steps between them are all here.
 *
 *      lease       granted ──> ended or cut short ──> awaits its owner        an answer may lead back to granted
 *      release     none <──> sent ──> doubtful <──> sent again
 *      renewal     idle ──> renewal or look asked ──> crossed ──> idle
 *      succession  none ──> waits <──> counts, or common
 */

/* For each state, the states that it may come after, as bits. */
#define AFTER(state) (1u << (state))

static const unsigned LEASE_AFTER[] = {
    [LEASE_GRANTED] = AFTER(LEASE_ENDED) | AFTER(LEASE_CUT_SHORT),
    [LEASE_ENDED] = AFTER(LEASE_GRANTED),
    [LEASE_CUT_SHORT] = AFTER(LEASE_GRANTED),
    [LEASE_AWAITS_OWNER] = AFTER(LEASE_ENDED) | AFTER(LEASE_CUT_SHORT),
};
static const unsigned RELEASE_AFTER[] = {
    [RELEASE_NONE] = AFTER(RELEASE_SENT),
    [RELEASE_SENT] = AFTER(RELEASE_NONE),
    /* of a queued release, too, whose answer gets lost */
    [RELEASE_DOUBTFUL] = AFTER(RELEASE_NONE) | AFTER(RELEASE_DOUBTFUL) | AFTER(RELEASE_SENT_AGAIN),
    [RELEASE_SENT_AGAIN] = AFTER(RELEASE_SENT) | AFTER(RELEASE_DOUBTFUL) | AFTER(RELEASE_SENT_AGAIN),
};
/* A look becomes a renewal if the lease's owner leaves meanwhile. */
static const unsigned RENEWAL_AFTER[] = {
    [RENEWAL_IDLE] = AFTER(RENEWAL_ASKED) | AFTER(RENEWAL_CROSSED) | AFTER(LOOK_ASKED) | AFTER(LOOK_CROSSED),
    [RENEWAL_ASKED] = AFTER(RENEWAL_IDLE) | AFTER(LOOK_ASKED),
    [RENEWAL_CROSSED] = AFTER(RENEWAL_ASKED) | AFTER(LOOK_CROSSED),
    [LOOK_ASKED] = AFTER(RENEWAL_IDLE),
    [LOOK_CROSSED] = AFTER(LOOK_ASKED),
};
/* COUNTS to COMMON goes by WAITS: the orphan would count the lease for ever. */
static const unsigned SUCCESSION_AFTER[] = {
    [SUCCESSION_NONE] = AFTER(SUCCESSION_COMMON),
    [SUCCESSION_WAITS] =
        AFTER(SUCCESSION_NONE) | AFTER(SUCCESSION_WAITS) | AFTER(SUCCESSION_COUNTS) | AFTER(SUCCESSION_COMMON),
    [SUCCESSION_COUNTS] = AFTER(SUCCESSION_WAITS),
    [SUCCESSION_COMMON] = AFTER(SUCCESSION_NONE) | AFTER(SUCCESSION_WAITS) | AFTER(SUCCESSION_COMMON),
};

inline void claim_lease_enter(struct claim *c, enum lease_state to) {
    invariant(LEASE_AFTER[to] & AFTER(c->lease), "the lease of a claim goes from state %u to %u", c->lease, to);
    c->lease = to;
}

static inline void claim_release_enter(struct claim *c, enum release_state to) {
    invariant(RELEASE_AFTER[to] & AFTER(c->release), "the release of a claim goes from state %u to %u", c->release, to);
    c->release = to;
}

inline void claim_release_sent(struct claim *c) {
    if (!claim_releasing(c)) /* a transaction may release twice by one claim */
        claim_release_enter(c, claim_doubtful(c) ? RELEASE_SENT_AGAIN : RELEASE_SENT);
}

inline void claim_release_undone(struct claim *c) {
    claim_release_enter(c, claim_doubtful(c) ? RELEASE_DOUBTFUL : RELEASE_NONE);
}

void claim_release_lost(struct claim *c) {
    claim_release_enter(c, claim_releasing(c) ? RELEASE_SENT_AGAIN : RELEASE_DOUBTFUL);
}

inline void claim_renewal_enter(struct claim *c, enum renewal_state to) {
    invariant(RENEWAL_AFTER[to] & AFTER(c->renewal), "the renewal of a claim goes from state %u to %u", c->renewal, to);
    c->renewal = to;
}

inline void claim_end_told(struct claim *c) {
    if (c->renewal == RENEWAL_ASKED)
        claim_renewal_enter(c, RENEWAL_CROSSED);
    else if (c->renewal == LOOK_ASKED)
        claim_renewal_enter(c, LOOK_CROSSED);
}

inline void claim_succession_enter(struct claim *c, enum succession_state to) {
    invariant(SUCCESSION_AFTER[to] & AFTER(c->succession), "the succession of a claim goes from state %u to %u",
              c->succession, to);
    c->succession = to;
}

/* ---- contenders ------------------------------------------------------------------------------- */

/* Finds a contender by walking both lists at once: the shorter one ends the search. A contended key has many
 * contenders, and so has a session that looks at many keys. */
struct contender *contender_find(const struct entry *en, const struct peer *p) {
    struct contender *of_entry = entry_contender_list(en);
    const struct list_node *n = p->contenders.prev;
    for (; of_entry && n != &p->contenders; n = n->prev, of_entry = of_entry->next) {
        struct contender *w = LIST_ENTRY(n, struct contender, of_peer);
        if (w->entry == en)
            return w;
        if (of_entry->peer == p)
            return of_entry;
    }
    return NULL;
}

struct contender *contender_of(struct shard *sh, const struct entry *en, const struct lock_session *s) {
    const struct peer *p = entry_contender_list(en) ? peer_find(sh, s->id) : NULL;
    return p ? contender_find(en, p) : NULL;
}

struct contender *contender_get(struct shard *sh, struct entry *en, struct peer *p) {
    struct contender *w = contender_find(en, p);
    if (w) {
        list_remove(&w->of_peer);
        list_append(&p->contenders, &w->of_peer);
        return w;
    }
    if (p->contender_count >= CONTENDERS_A_PEER) {
        struct contender *old = LIST_ENTRY(list_first(&p->contenders), struct contender, of_peer);
        struct entry *left = old->entry;
        contender_remove(sh, old);
        if (left != en)
            entry_settle(sh, left);
    }
    w = memory_zalloc(sizeof(*w));
    w->timer.kind = TIMER_CONTENDER;
    w->entry = en;
    w->peer = p;
    struct contender **first = &entry_contenders(en)->list;
    w->next = *first;
    w->at = first;
    if (w->next)
        w->next->at = &w->next;
    *first = w;
    list_append(&p->contenders, &w->of_peer);
    note_closed_peer(sh, p);
    p->contender_count++;
    return w;
}

void contender_touched(struct shard *sh, struct contender *w, const struct lock_rule *rule, int64_t now_ms) {
    int64_t least = w->queue_rule && w->queue_rule->lease_ms > 10000 ? w->queue_rule->lease_ms : 10000;
    int64_t memory_ms =
        rule && rule->claim_memory_ms >= 0 ? rule->claim_memory_ms : 2 * entry_contenders(w->entry)->length_ms;
    w->touched_ms = now_ms;
    w->memory_ms = memory_ms > least ? memory_ms : least;
    if (!w->timer.place)
        timer_set(&sh->timers, &w->timer, now_ms + w->memory_ms);
}

void contender_forget_seen(struct contender *w) {
    memory_free(w->seen);
    w->seen = NULL;
    w->seen_known = false;
    w->seen_len = w->seen_cap = 0;
    w->read_fence = 0;
}

bool contender_saw(const struct contender *w, const char *value, size_t len) {
    return w->seen_known && w->seen_len == len && (len == 0 || memcmp(w->seen, value, len) == 0);
}

void queue_forget(struct contender *w) {
    if (w->queue_rule)
        lock_rules_unref(w->queue_rule->set);
    w->queue_rule = NULL;
    w->queued_own = w->queued_client = false;
}

void contender_remove(struct shard *sh, struct contender *w) {
    invariant(w->peer->contender_count > 0 && *w->at == w, "a contender is in no list");
    *w->at = w->next;
    if (w->next)
        w->next->at = w->at;
    list_remove(&w->of_peer);
    w->peer->contender_count--;
    timer_set(&sh->timers, &w->timer, NO_DEADLINE);
    queue_forget(w);
    MEMORY_FREE_ALL(w->seen, w);
}

/* ---- what refers to workloads ---------------------------------------------------------------- */

void session_stats_free(struct peer *p, struct session_stats *h) {
    list_cut(&h->of_peer);
    p->session_stats_count--;
    workload_put(h->workload);
    memory_free(h);
}

void session_stats_clear(struct peer *p) {
    for (struct session_stats *h; (h = LIST_FIRST(&p->session_stats, struct session_stats, of_peer));)
        session_stats_free(p, h);
}

void tenure_remove(struct tenure *t) {
    invariant(t->peer->tenure_count > 0 && *t->at == t, "a tenure is in no list");
    *t->at = t->next;
    if (t->next)
        t->next->at = t->at;
    list_remove(&t->of_peer);
    t->peer->tenure_count--;
    workload_put(t->workload);
    lock_rules_unref(t->rule->set);
    memory_free(t);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

inline uint8_t token_write(const struct lock_engine *e, uint64_t number, char out[LOCK_TOKEN_MAX]) {
    enum { FEW = 100000000, DIGITS_MAX = 20, AT = PROCESS_ID_LEN + 1 };
    out[0] = '\0';
    if (number == 0)
        return 0;
    memcpy(out, e->process, PROCESS_ID_LEN);
    out[PROCESS_ID_LEN] = ':';
    if (number < FEW) {
        uint64_t digits = bytes_as_eight_digits((uint32_t)number);
        memcpy(out + AT, &digits, sizeof(digits));
        out[AT + sizeof(digits)] = '\0';
        return AT + sizeof(digits);
    }
    char text[DIGITS_MAX], *end = text + DIGITS_MAX, *from = resp_digits_write(end, number);
    memcpy(out + AT, from, (size_t)(end - from));
    out[AT + (end - from)] = '\0';
    return (uint8_t)(AT + (end - from));
}
