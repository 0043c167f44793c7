/*
 * Families: what is learnt of one application's workers on one kind of lock, by what they do. Decides nothing about a
 * command; attribute.c asks, learn.c and settle.c tell.
 *
 * The thresholds were found by simulation: a pool has to be known for one after two releases, and workers with
 * connections of their own must never be taken for a pool, whatever their losers send.
 */
#include "proxy/lock/state.h"

#include <stdio.h>

#include "proxy/base/memory.h"
#include "proxy/lock/pattern.h"

enum {
    FIRST_BUCKETS = 16,
    CROSSINGS = 2,      /* make a family pooled */
    SESSION_ROW = 8,    /* contended releases in a row that show a session to be one worker's */
    FAMILY_ROW = 16,    /* and all of the family's */
    SURPLUS = 3,        /* releases beyond acquisitions from which losers are believed to release */
    KEY_ATTEMPTS = 8,   /* from so many on a key is judged by itself */
    FADE_ATTEMPTS = 64, /* counts are halved there */
    FOLLOWED_MAX = 16,
    FOLLOWED_LEAST = 4
};

/* ---- the table --------------------------------------------------------------------------------- */

uint64_t family_number_of(uint64_t client, uint64_t rule, uint64_t pattern) {
    return hash_number(client ^ hash_number(rule ^ pattern));
}

uint64_t family_number(const struct peer *p, const struct lock_rule *rule, uint64_t pattern) {
    return family_number_of(p->client->hash, rule->hash, pattern);
}

static uint64_t family_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct family, link)->key;
}

void family_init(struct shard *sh) {
    list_init(&sh->idle_families);
    table_init(&sh->families, family_hash);
    facts_init(sh);
}

struct family *family_of_key(const struct shard *sh, uint64_t key) {
    struct table_link *it = table_chain(&sh->families, key);
    while (it && LIST_ENTRY(it, struct family, link)->key != key)
        it = it->next;
    return it ? LIST_ENTRY(it, struct family, link) : NULL;
}

static void family_remove(struct shard *sh, struct family *f) {
    table_remove(&sh->families, &f->link, f->key);
    list_cut(&f->idle);
    memory_free(f);
}

/* Frees the family that no session has come to for the longest time, and that nothing refers to. */
static void make_room(struct shard *sh) {
    LIST_FOREACH(it, &sh->idle_families) {
        struct family *f = LIST_ENTRY(it, struct family, idle);
        if (f->refs == 0) {
            family_remove(sh, f);
            return;
        }
    }
}

static struct family *family_new(struct shard *sh, uint64_t key, const struct peer *p, const struct lock_rule *rule,
                                 const struct lock_key *name, int64_t now_ms) {
    char pattern[ADVISE_PATTERN_MAX];
    if (sh->families.count >= FAMILIES_A_SHARD)
        make_room(sh);
    struct family *f = memory_zalloc(sizeof(*f) + p->client->len + rule->pattern_len);
    f->key = key;
    f->shard = sh;
    f->identity_len = p->client->len;
    f->rule_len = rule->pattern_len;
    memcpy(f->names, p->client->name, f->identity_len);
    memcpy(f->names + f->identity_len, rule->pattern, f->rule_len);
    advise_pattern(name->name, name->len, pattern);
    snprintf(f->pattern, sizeof(f->pattern), "%s", pattern);
    snprintf(f->client, sizeof(f->client), "%s", p->client->name);
    snprintf(f->rule, sizeof(f->rule), "%s", rule->pattern);
    table_insert(&sh->families, &f->link, key);
    list_append(&sh->idle_families, &f->idle);
    facts_recall(f, now_ms);
    return f;
}

void family_ref(struct family *f) {
    f->refs++;
}

void family_put(struct family *f) {
    if (f)
        f->refs--;
}

void family_trim(struct shard *sh, int64_t now_ms) {
    struct list_node *n = list_first(&sh->idle_families);
    struct family *f = n ? LIST_ENTRY(n, struct family, idle) : NULL;
    if (!f)
        return;
    facts_refresh(f, now_ms);
    if (f->refs == 0 && now_ms - f->used_ms > FAMILY_IDLE_MS) {
        family_remove(sh, f);
    } else { /* the next one's turn */
        list_cut(&f->idle);
        list_append(&sh->idle_families, &f->idle);
    }
}

void family_clear(struct shard *sh) {
    for (struct list_node *n; (n = list_first(&sh->idle_families));)
        family_remove(sh, LIST_ENTRY(n, struct family, idle));
    table_clear(&sh->families);
    facts_clear(sh);
}

/* ---- sessions ---------------------------------------------------------------------------------- */

struct habit *habit_find(const struct peer *p, const struct family *f) {
    LIST_FOREACH(it, &p->habits) {
        struct habit *h = LIST_ENTRY(it, struct habit, of_peer);
        if (h->family == f)
            return h;
    }
    return NULL;
}

static void habit_free(struct peer *p, struct habit *h) {
    list_cut(&h->of_peer);
    p->habit_count--;
    family_put(h->family);
    memory_free(h);
}

void habits_clear(struct peer *p) {
    for (struct list_node *n; (n = list_first(&p->habits));)
        habit_free(p, LIST_ENTRY(n, struct habit, of_peer));
}

/* The session's habit in the family of that key. */
static struct habit *habit_of(const struct peer *p, uint64_t key) {
    LIST_FOREACH(it, &p->habits) {
        struct habit *h = LIST_ENTRY(it, struct habit, of_peer);
        if (h->family->key == key)
            return h;
    }
    return NULL;
}

inline struct family *family_of(struct shard *sh, const struct peer *p, uint64_t number) {
    struct habit *h = habit_of(p, number);
    return h ? h->family : family_of_key(sh, number);
}

struct family *family_find(struct shard *sh, const struct peer *p, const struct lock_rule *rule, uint64_t pattern) {
    return rule ? family_of(sh, p, family_number(p, rule, pattern)) : NULL;
}

struct family *family_join(struct shard *sh, struct peer *p, const struct lock_rule *rule, uint64_t number,
                           const struct lock_key *key, int64_t now_ms) {
    struct habit *h = habit_of(p, number);
    if (!h) {
        if (p->habit_count >= HABITS_A_PEER)
            habit_free(p, LIST_ENTRY(p->habits.prev, struct habit, of_peer));
        struct family *f = family_of_key(sh, number);
        h = memory_zalloc(sizeof(*h));
        h->family = f ? f : family_new(sh, number, p, rule, key, now_ms);
        h->family->refs++;
        list_cut(&h->family->idle);
        list_append(&sh->idle_families, &h->family->idle);
        p->habit_count++;
        list_prepend(&p->habits, &h->of_peer);
    } else if (p->habits.next != &h->of_peer) {
        list_cut(&h->of_peer);
        list_prepend(&p->habits, &h->of_peer);
    }
    h->family->used_ms = now_ms;
    h->family->audited = rule->mode == LOCK_MODE_AUDIT;
    return h->family;
}

/* ---- who shares connections --------------------------------------------------------------------- */

bool family_owns(const struct family *f, const struct peer *p) {
    if (f->row >= FAMILY_ROW)
        return true;
    const struct habit *h = habit_find(p, f);
    return h && h->row >= SESSION_ROW;
}

bool family_shares(const struct family *f, const struct peer *p, const struct lock_rule *rule) {
    return client_shares(rule, p->overlapped || (f && f->pooled && !family_owns(f, p)));
}

void family_crossed(struct family *f, struct peer *a, struct peer *b) {
    struct habit *ha = a ? habit_find(a, f) : NULL, *hb = b ? habit_find(b, f) : NULL;
    f->row = 0;
    if (!f->crossed) {
        f->crossed = true;
        facts_tell(f);
    }
    if (ha)
        ha->row = 0;
    if (hb)
        hb->row = 0;
}

bool family_vote(struct family *f, struct peer *a, struct peer *b) {
    family_crossed(f, a, b);
    if (f->votes < CROSSINGS)
        f->votes++;
    return f->votes >= CROSSINGS;
}

void family_pool(struct shard *sh, struct family *f, const struct lock_key *key, int64_t now_ms) {
    if (f->pooled)
        return;
    f->pooled = true;
    facts_tell(f);
    struct occasion on = {.now_ms = now_ms, .key = *key, .client = f->client, .rule = f->rule, .identity = f->client};
    incident_report(
        sh, INCIDENT_SHARED, &on,
        "releases come over other connections than acquisitions: keys like %s are the client's from now on, "
        "whichever connection speaks",
        f->pattern);
}

void family_uncrossed(struct family *f, struct peer *p) {
    struct habit *h = habit_find(p, f);
    if (f->row < UINT8_MAX && ++f->row == FAMILY_ROW)
        facts_tell(f);
    if (h && h->row < UINT8_MAX)
        h->row++;
}

void engine_each_pooled(struct lock_engine *e, void (*fn)(void *arg, const struct lock_family *f), void *arg) {
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *sh = &e->shards[i];
        shard_lock(sh);
        LIST_FOREACH(it, &sh->idle_families) {
            const struct family *f = LIST_ENTRY(it, struct family, idle);
            struct lock_family view = {
                .client = f->client, .rule = f->rule, .pattern = f->pattern, .pooled = f->pooled};
            if (f->pooled)
                fn(arg, &view);
        }
        shard_unlock(sh);
    }
}

/* ---- what other runs and proxies know too -------------------------------------------------------- */

void family_releases_lost(struct family *f) {
    if (f->losers_release)
        return;
    f->losers_release = true;
    f->losers_quiet = false;
    facts_tell(f);
}

void family_quiet(struct family *f) {
    if (f->losers_quiet || f->losers_release)
        return;
    f->losers_quiet = true;
    facts_tell(f);
}

unsigned family_facts(const struct family *f) {
    bool dedicated = f->row >= FAMILY_ROW && !f->pooled && !f->crossed;
    return (f->pooled ? FACT_POOLED : 0u) | (f->losers_release ? FACT_LOSERS_RELEASE : 0u) |
           (dedicated ? FACT_DEDICATED : 0u) | (f->losers_quiet ? FACT_LOSERS_QUIET : 0u);
}

bool family_take(struct family *f, unsigned facts, unsigned over) {
    bool pools = (facts & FACT_POOLED) && !f->pooled;
    f->pooled |= pools;
    if (over & FACT_LOSERS_RELEASE)
        f->losers_release = false;
    f->losers_release |= (facts & FACT_LOSERS_RELEASE) != 0;
    if (over & FACT_LOSERS_QUIET)
        f->losers_quiet = false;
    f->losers_quiet |= (facts & FACT_LOSERS_QUIET) && !f->losers_release;
    if ((over & FACT_DEDICATED) && !f->crossed) {
        f->crossed = true;
        f->row = 0;
    }
    if ((facts & FACT_DEDICATED) && !f->pooled && !f->crossed && f->row < FAMILY_ROW)
        f->row = FAMILY_ROW;
    return pools;
}

/* ---- what losers send ---------------------------------------------------------------------------- */

void family_followed(struct family *f, bool followed) {
    f->followed = (uint16_t)(f->followed << 1 | (followed ? 1u : 0u));
    if (f->follow_count < FOLLOWED_MAX)
        f->follow_count++;
}

bool family_losers_expire(const struct family *f) {
    unsigned bits = f->followed & ((1u << f->follow_count) - 1);
    return f->follow_count >= FOLLOWED_LEAST && 4 * (unsigned)__builtin_popcount(bits) >= 3u * f->follow_count;
}

static void tally_add(struct tally *t, enum tally_what what) {
    *(what == TALLY_RELEASED ? &t->releases : what == TALLY_ACQUIRED ? &t->acquired : &t->lost) += 1;
    if (t->lost + t->acquired > FADE_ATTEMPTS) {
        t->releases /= 2;
        t->acquired /= 2;
        t->lost /= 2;
    }
}

void family_count(struct family *f, struct contest *c, enum tally_what what) {
    tally_add(&f->n, what);
    if (c)
        tally_add(&c->n, what);
}

void family_uncount(struct family *f, struct contest *c) {
    f->n.releases -= f->n.releases >= 1 ? 1 : 0;
    if (c)
        c->n.releases -= c->n.releases >= 1 ? 1 : 0;
}

bool family_surplus(const struct family *f, const struct contest *c) {
    const struct tally *n = c && c->n.lost + c->n.acquired >= KEY_ATTEMPTS ? &c->n : &f->n;
    float surplus = n->releases - n->acquired;
    return surplus >= SURPLUS && surplus * 2 >= n->lost;
}

bool family_losers_release(const struct family *f, const struct contest *c) {
    return aftermath_losers_release(f, c) || family_surplus(f, c);
}

/* ---- a contended key ------------------------------------------------------------------------------ */

struct contest *contest_find(const struct entry *en, const struct family *f) {
    struct contest *c = en && f ? entry_contests(en) : NULL;
    while (c && c->family != f)
        c = c->next;
    return c;
}

struct contest *contest_get(struct entry *en, struct family *f) {
    struct contest *c = contest_find(en, f);
    if (c)
        return c;
    c = memory_zalloc(sizeof(*c));
    c->family = f;
    family_ref(f);
    struct crowd *crowd = entry_crowd(en);
    c->next = crowd->contests;
    crowd->contests = c;
    for (const struct claim *held = en->claims; held; held = held->next)
        if (held->family == f) {
            if (held->valued)
                contest_value(c, held->value);
            if (!held->ended)
                family_count(f, c, TALLY_ACQUIRED);
        }
    return c;
}

void contests_clear(struct crowd *crowd) {
    while (crowd->contests) {
        struct contest *c = crowd->contests;
        crowd->contests = c->next;
        family_put(c->family);
        memory_free(c);
    }
}

void contest_value(struct contest *c, uint64_t value) {
    c->values[c->value_next] = value;
    c->value_next = (uint8_t)((c->value_next + 1) % CONTEST_VALUES);
    if (c->value_count < CONTEST_VALUES)
        c->value_count++;
}

bool contest_varies(const struct contest *c, uint64_t value) {
    for (unsigned i = 0; i < c->value_count; i++)
        if (c->values[i] != value)
            return true;
    return false;
}

struct loss losses_take(struct losses *l) {
    struct loss oldest = l->at[0];
    memmove(l->at, l->at + 1, --l->count * sizeof(l->at[0]));
    return oldest;
}

bool losses_over(const struct losses *l, int64_t before_ms) {
    return l->count == CONTEST_DEBTS || (l->count > 0 && l->at[0].time_ms < before_ms);
}

void losses_add(struct losses *l, int64_t now_ms, uint64_t session_id) {
    l->at[l->count++] = (struct loss){.time_ms = now_ms, .session_id = session_id};
}
