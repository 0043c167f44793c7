/*
 * The memory behind PROXY ADVISE: keys seen lately, and counts by pattern and client.
 *
 *      key ──> pattern ──> stem (up to the last separator) ──> shard ──> row (pattern, client)
 *                                                                 └────> place of the key: who holds it, until when
 *
 * Where a stem has many patterns (lock:alice, lock:bob, ...), they are one: lock:*. A shard's tables are allocated when
 * the first lock of it is seen.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/lock/advise_private.h"
#include "proxy/lock/hash.h"

enum {
    SHARDS = 16,
    ROWS = 32,        /* a shard */
    PLACES = 1024,    /* keys a shard */
    WAYS = 4,         /* places that a key may have */
    SIBLINGS_MAX = 8, /* patterns of one stem and client before they are one */
    FILTER_BITS = 1 << 16,
    FILTER_MS = 300000,
    BUSY_EVENTS = 2000, /* a second: beyond them some keys stand for all */
    CALM_EVENTS = 500,
    KEYS_SAMPLED = 64 /* one of so many */
};

/* A key that is held, or was lately. */
struct place {
    uint64_t hash; /* 0: empty */
    uint64_t session, client, row;
    int64_t since_ms, end_ms; /* 0: none */
    unsigned epoch;           /* the advisor's; an older one: it has not been watched since */
    bool held;
};

struct shard {
    pthread_mutex_t mutex;
    struct advise_row *rows;
    struct place *places;
};

struct advisor {
    struct hash_seed seed;
    struct shard shards[SHARDS];
    atomic_int_fast64_t second; /* that events counts */
    atomic_uint events, epoch;
    atomic_bool busy;
    atomic_int_fast64_t filter_ms; /* when the present one of the two was begun */
    atomic_uint present;
    _Atomic uint64_t filter[2][FILTER_BITS / 64];
};

struct advisor *advisor_new(uint64_t seed) {
    struct advisor *a = memory_zalloc(sizeof(*a));
    a->seed = (struct hash_seed){seed, seed ^ 0x9e3779b97f4a7c15u};
    for (size_t i = 0; i < SHARDS; i++)
        pthread_mutex_init(&a->shards[i].mutex, NULL);
    return a;
}

void advisor_free(struct advisor *a) {
    for (size_t i = 0; a && i < SHARDS; i++) {
        pthread_mutex_destroy(&a->shards[i].mutex);
        memory_free(a->shards[i].rows);
        memory_free(a->shards[i].places);
    }
    memory_free(a);
}

/* ---- patterns -------------------------------------------------------------------------------- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_alpha(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_uuid(const char *p, size_t len) {
    if (len < 36)
        return false;
    for (size_t i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? p[i] != '-' : !is_hex(p[i]))
            return false;
    }
    return len == 36 || !(is_alpha(p[36]) || is_digit(p[36]));
}

/* A word of letters and digits that is no name: a hash, an identifier. */
static bool is_identifier(const char *p, size_t len) {
    size_t digits = 0, hex = 0;
    for (size_t i = 0; i < len; i++) {
        digits += is_digit(p[i]);
        hex += is_hex(p[i]);
    }
    return (hex == len && len >= 8 && digits > 0) || (len >= 16 && digits >= 4);
}

struct pattern {
    char *out;
    size_t len;
};

static void put(struct pattern *t, char c) {
    bool special = c == '?' || c == '[' || c == ']' || c == '\\' || c == '*';
    if (t->len + 3 > ADVISE_PATTERN_MAX)
        return;
    if (c == '\0') {
        t->out[t->len++] = '?';
        return;
    }
    if (special)
        t->out[t->len++] = '\\';
    t->out[t->len++] = c;
}

static void put_star(struct pattern *t) {
    bool there = t->len > 0 && t->out[t->len - 1] == '*' && !(t->len > 1 && t->out[t->len - 2] == '\\');
    if (!there && t->len + 2 <= ADVISE_PATTERN_MAX)
        t->out[t->len++] = '*';
}

static void put_word(struct pattern *t, const char *p, size_t len) {
    if (is_identifier(p, len)) {
        put_star(t);
        return;
    }
    for (size_t i = 0; i < len; i++)
        if (is_digit(p[i]))
            put_star(t);
        else
            put(t, p[i]);
}

size_t advise_pattern(const char *key, size_t len, char out[ADVISE_PATTERN_MAX]) {
    struct pattern t = {.out = out};
    for (size_t i = 0; i < len && t.len + 4 <= ADVISE_PATTERN_MAX;) {
        size_t n = 0;
        if (is_uuid(key + i, len - i)) {
            put_star(&t);
            i += 36;
            continue;
        }
        while (i + n < len && (is_digit(key[i + n]) || is_alpha(key[i + n])))
            n++;
        put_word(&t, key + i, n);
        if (n == 0)
            put(&t, key[i]);
        i += n ? n : 1;
    }
    if (t.len + 4 > ADVISE_PATTERN_MAX) /* cut: what follows may be anything */
        put_star(&t);
    out[t.len] = '\0';
    return t.len;
}

static size_t stem_of(const char *pattern, size_t len) {
    for (; len > 0; len--) {
        char c = pattern[len - 1];
        if (c == ':' || c == '/' || c == '|' || c == '.' || c == '#' || c == '@' || c == '-' || c == '_')
            break;
    }
    return len;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void row_merge(struct advise_row *to, const struct advise_row *from) {
    to->acquired += from->acquired;
    to->lost += from->lost;
    to->self_lost += from->self_lost;
    to->endless += from->endless;
    to->valued += from->valued;
    to->repeated += from->repeated;
    to->by_holder += from->by_holder;
    to->by_sibling += from->by_sibling;
    to->by_other += from->by_other;
    to->late += from->late;
    to->unknown += from->unknown;
    to->in_vain += from->in_vain;
    to->expired += from->expired;
    to->sessions |= from->sessions;
}

/* The row for `pattern`, or the one for all patterns of its stem. NULL: there is none. */
static struct advise_row *row_find(struct shard *sh, const char *pattern, size_t stem, bool ruled, uint64_t client) {
    for (size_t i = 0; i < ROWS; i++) {
        struct advise_row *row = &sh->rows[i];
        if (!row->pattern[0] || row->ruled != ruled || row->client_hash != client)
            continue;
        bool all = !ruled && row->stem_len == stem && stem > 0 && strcmp(row->pattern + stem, "*") == 0 &&
                   memcmp(row->pattern, pattern, stem) == 0;
        if (all || strcmp(row->pattern, pattern) == 0)
            return row;
    }
    return NULL;
}

/* Where a stem has become many patterns they are one from now on: `pattern` is changed to it. The first of their rows
 * is that one's; NULL if they are few. */
static struct advise_row *row_widen(struct shard *sh, char *pattern, size_t stem, uint64_t client) {
    struct advise_row *first = NULL;
    size_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < ROWS; i++) {
            struct advise_row *row = &sh->rows[i];
            if (!row->pattern[0] || row->ruled || row->stem_len != stem || row->client_hash != client ||
                memcmp(row->pattern, pattern, stem) != 0)
                continue;
            if (pass == 0) {
                first = first ? first : row;
                count++;
            } else if (row != first) {
                row_merge(first, row);
                row->pattern[0] = '\0';
            }
        }
        if (stem == 0 || count < SIBLINGS_MAX)
            return NULL;
    }
    pattern[stem] = '*';
    pattern[stem + 1] = '\0';
    memcpy(first->pattern, pattern, stem + 2);
    return first;
}

static struct advise_row *row_oldest(struct shard *sh) {
    struct advise_row *oldest = &sh->rows[0];
    for (size_t i = 0; i < ROWS; i++) {
        if (!sh->rows[i].pattern[0])
            return &sh->rows[i];
        if (sh->rows[i].last_ms < oldest->last_ms)
            oldest = &sh->rows[i];
    }
    return oldest;
}

static void copy(char *out, size_t size, const char *text, size_t len) {
    size_t n = len < size - 1 ? len : size - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '.';
    out[n] = '\0';
}

static struct advise_row *row_get(struct shard *sh, char *pattern, size_t stem, const struct advise_sight *s,
                                  uint64_t client) {
    struct advise_row *row = row_find(sh, pattern, stem, s->rule != NULL, client);
    if (!row && !s->rule)
        row = row_widen(sh, pattern, stem, client);
    if (row)
        return row;
    row = row_oldest(sh);
    memset(row, 0, sizeof(*row));
    snprintf(row->pattern, sizeof(row->pattern), "%s", pattern);
    copy(row->client, sizeof(row->client), s->client, s->client_len);
    row->client_hash = client;
    row->stem_len = stem;
    row->ruled = s->rule != NULL;
    return row;
}

/* ---- places ---------------------------------------------------------------------------------- */

static struct place *place_find(struct shard *sh, uint64_t hash, unsigned epoch) {
    struct place *set = &sh->places[hash % (PLACES / WAYS) * WAYS];
    for (size_t i = 0; i < WAYS; i++)
        if (set[i].hash == hash && set[i].epoch == epoch)
            return &set[i];
    return NULL;
}

/* The key's, or a free one, or that of the key which was acquired first. */
static struct place *place_get(struct shard *sh, uint64_t hash, unsigned epoch) {
    struct place *set = &sh->places[hash % (PLACES / WAYS) * WAYS], *best = place_find(sh, hash, epoch);
    for (size_t i = 0; !best && i < WAYS; i++)
        if (!set[i].hash || set[i].epoch != epoch)
            best = &set[i];
    if (best)
        return best;
    best = set;
    for (size_t i = 1; i < WAYS; i++)
        if (set[i].since_ms < best->since_ms)
            best = &set[i];
    *best = (struct place){0};
    return best;
}

static bool place_over(const struct place *p, int64_t now_ms) {
    return p->end_ms && now_ms >= p->end_ms;
}

/* The row of who acquired it, if there still is one. */
static struct advise_row *place_row(struct shard *sh, const struct place *p, struct advise_row *otherwise) {
    struct advise_row *row = p->row < ROWS ? &sh->rows[p->row] : NULL;
    return row && row->pattern[0] ? row : otherwise;
}

/* ---- events ---------------------------------------------------------------------------------- */

struct note {
    struct shard *sh;
    const struct advise_sight *sight;
    struct advise_row *row;
    struct place *place; /* NULL: nothing is known of the key */
    uint64_t hash, client;
    unsigned epoch;
    int64_t now_ms;
};

/* When the lock ends; 0: never, or later than sums can say. */
static int64_t end_of(const struct note *n) {
    int64_t pttl_ms = n->sight->pttl_ms;
    return pttl_ms < 0 || pttl_ms > INT64_MAX - n->now_ms ? 0 : n->now_ms + pttl_ms;
}

static void note_value(struct note *n, uint64_t value) {
    n->row->valued++;
    n->row->repeated += n->row->valued > 1 && value == n->row->last_value;
    n->row->last_value = value;
}

static void note_acquired(struct note *n, uint64_t value) {
    struct place *p = n->place;
    if (p && p->held && place_over(p, n->now_ms))
        place_row(n->sh, p, n->row)->expired++;
    n->row->acquired++;
    n->row->endless += n->sight->pttl_ms < 0;
    n->row->sessions |= (uint64_t)1 << (n->sight->session_id % 64);
    if (n->sight->value)
        note_value(n, value);
    p = p ? p : place_get(n->sh, n->hash, n->epoch);
    *p = (struct place){.hash = n->hash,
                        .epoch = n->epoch,
                        .session = n->sight->session_id,
                        .client = n->client,
                        .row = (uint64_t)(n->row - n->sh->rows),
                        .since_ms = n->now_ms,
                        .end_ms = end_of(n),
                        .held = true};
}

static void note_lost(struct note *n) {
    const struct place *p = n->place;
    n->row->lost++;
    n->row->self_lost += p && p->held && p->session == n->sight->session_id && !place_over(p, n->now_ms);
}

/* Counted where the lock was acquired. */
static void note_released(struct note *n) {
    struct place *p = n->place;
    if (!p) {
        n->row->unknown++;
        return;
    }
    struct advise_row *row = place_row(n->sh, p, n->row);
    if (!p->held || place_over(p, n->now_ms))
        n->row->late++;
    else if (p->session == n->sight->session_id)
        row->by_holder++;
    else if (p->client == n->client)
        row->by_sibling++;
    else
        row->by_other++;
    if (n->sight->event == ADVISE_RELEASED)
        p->held = false;
}

static void note_event(struct note *n, uint64_t value) {
    struct place *p = n->place;
    switch (n->sight->event) {
    case ADVISE_ACQUIRED:
        note_acquired(n, value);
        break;
    case ADVISE_LOST:
        note_lost(n);
        break;
    case ADVISE_RELEASED:
    case ADVISE_REFUSED:
        note_released(n);
        break;
    case ADVISE_IN_VAIN:
        if (p && p->held && place_over(p, n->now_ms) && p->client == n->client) {
            p->held = false;
            n->row->late++;
        } else {
            n->row->in_vain++;
        }
        break;
    case ADVISE_EXTENDED:
        if (p && p->held)
            p->end_ms = end_of(n);
        break;
    }
}

void advisor_note(struct advisor *a, const struct advise_sight *s, int64_t now_ms) {
    char pattern[ADVISE_PATTERN_MAX];
    size_t len;
    if (s->rule) {
        len = s->rule->pattern_len < sizeof(pattern) ? s->rule->pattern_len : sizeof(pattern) - 1;
        memcpy(pattern, s->rule->pattern, len);
        pattern[len] = '\0';
    } else {
        len = advise_pattern(s->key.name, s->key.len, pattern);
    }
    if (len == 0)
        return;
    size_t stem = s->rule ? len : stem_of(pattern, len);
    uint64_t place = s->rule ? s->rule->hash : hash_bytes(&a->seed, pattern, stem);
    struct shard *sh = &a->shards[place % SHARDS];
    uint64_t client = s->client_hash;
    uint64_t value = s->value ? hash_bytes(&a->seed, s->value, s->value_len) : 0;
    pthread_mutex_lock(&sh->mutex);
    if (!sh->rows) {
        sh->rows = memory_zalloc(ROWS * sizeof(*sh->rows));
        sh->places = memory_zalloc(PLACES * sizeof(*sh->places));
    }
    struct note n = {.sh = sh,
                     .sight = s,
                     .row = row_get(sh, pattern, stem, s, client),
                     .hash = (hash_bytes(&a->seed, s->key.name, s->key.len) + s->key.db) | 1,
                     .client = client,
                     .now_ms = now_ms};
    n.epoch = atomic_load_explicit(&a->epoch, memory_order_relaxed);
    n.place = place_find(sh, n.hash, n.epoch);
    n.row->last_ms = now_ms;
    if (s->library && !n.row->library[0])
        copy(n.row->library, sizeof(n.row->library), s->library, strlen(s->library));
    note_event(&n, value);
    pthread_mutex_unlock(&sh->mutex);
    if (s->event == ADVISE_ACQUIRED && !s->rule)
        advisor_arm(a, s->key.name, s->key.len, now_ms);
}

/* ---- the filter ------------------------------------------------------------------------------ */

/* A few bytes of the key: it only has to be cheap, and to tell most keys apart. */
static unsigned filter_bit(const char *key, size_t len) {
    uint64_t head = 0, tail = 0;
    size_t n = len < 8 ? len : 8;
    memcpy(&head, key, n);
    memcpy(&tail, key + len - n, n);
    uint64_t x = (head ^ (tail * 0x9e3779b97f4a7c15u) ^ len) * 0xff51afd7ed558ccdu;
    return (unsigned)(x >> 48);
}

/* Where the sample changes, what is known of keys is left aside: releases may not have been seen. */
static void advisor_turn(struct advisor *a, int64_t second) {
    unsigned events = atomic_exchange_explicit(&a->events, 0, memory_order_relaxed);
    bool was = atomic_load_explicit(&a->busy, memory_order_relaxed);
    int64_t last = atomic_exchange_explicit(&a->second, second, memory_order_relaxed);
    bool busy = last == second - 1 && events > (was ? CALM_EVENTS : BUSY_EVENTS);
    if (busy == was)
        return;
    atomic_store_explicit(&a->busy, busy, memory_order_relaxed);
    atomic_fetch_add_explicit(&a->epoch, 1, memory_order_relaxed);
}

bool advisor_samples(struct advisor *a, const char *key, size_t len, int64_t now_ms) {
    int64_t second = now_ms >> 10;
    if (atomic_load_explicit(&a->second, memory_order_relaxed) != second)
        advisor_turn(a, second);
    unsigned events = atomic_load_explicit(&a->events, memory_order_relaxed); /* about: threads may overwrite */
    atomic_store_explicit(&a->events, events + 1, memory_order_relaxed);
    return !atomic_load_explicit(&a->busy, memory_order_relaxed) || filter_bit(key, len) % KEYS_SAMPLED == 0;
}

bool advisor_knows(const struct advisor *a, const char *key, size_t len) {
    unsigned bit = filter_bit(key, len);
    uint64_t both = atomic_load_explicit(&a->filter[0][bit / 64], memory_order_relaxed) |
                    atomic_load_explicit(&a->filter[1][bit / 64], memory_order_relaxed);
    return both >> bit % 64 & 1;
}

void advisor_arm(struct advisor *a, const char *key, size_t len, int64_t now_ms) {
    int64_t begun = atomic_load_explicit(&a->filter_ms, memory_order_relaxed);
    unsigned present = atomic_load_explicit(&a->present, memory_order_relaxed);
    if (now_ms - begun > FILTER_MS && atomic_compare_exchange_strong(&a->filter_ms, &begun, now_ms)) {
        present = !present;
        for (size_t i = 0; i < FILTER_BITS / 64; i++)
            atomic_store_explicit(&a->filter[present][i], 0, memory_order_relaxed);
        atomic_store_explicit(&a->present, present, memory_order_relaxed);
    }
    unsigned bit = filter_bit(key, len);
    atomic_fetch_or_explicit(&a->filter[present][bit / 64], (uint64_t)1 << bit % 64, memory_order_relaxed);
}

/* ---- looking in ------------------------------------------------------------------------------ */

static int most_events_first(const void *x, const void *y) {
    uint64_t a = advise_events(x), b = advise_events(y);
    return a < b ? 1 : a > b ? -1 : 0;
}

/* Locks whose time is up and that nobody has asked for since. */
static void shard_expire(struct shard *sh, unsigned epoch, int64_t now_ms) {
    for (size_t i = 0; i < PLACES; i++) {
        struct place *p = &sh->places[i];
        if (p->hash && p->epoch == epoch && p->held && place_over(p, now_ms) && p->row < ROWS) {
            sh->rows[p->row].expired++;
            p->held = false;
        }
    }
}

void advisor_each(struct advisor *a, int64_t now_ms, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    struct advise_row *rows = memory_alloc(SHARDS * ROWS * sizeof(*rows));
    size_t count = 0;
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *sh = &a->shards[i];
        pthread_mutex_lock(&sh->mutex);
        if (sh->rows)
            shard_expire(sh, atomic_load_explicit(&a->epoch, memory_order_relaxed), now_ms);
        for (size_t k = 0; sh->rows && k < ROWS; k++)
            if (sh->rows[k].pattern[0] && advise_events(&sh->rows[k]) > 0)
                rows[count++] = sh->rows[k];
        pthread_mutex_unlock(&sh->mutex);
    }
    qsort(rows, count, sizeof(*rows), most_events_first);
    char line[ADVISE_LINE_MAX];
    for (size_t i = 0; i < count; i++)
        fn(arg, line, advise_line(&rows[i], line));
    memory_free(rows);
}
