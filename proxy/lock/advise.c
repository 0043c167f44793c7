/*
 * The memory behind PROXY ADVISE: keys seen lately, and counts by pattern and client.
 *
 *      key ──> pattern ──> stem (up to the last separator) ──> shard ──> row (pattern, client)
 *                                                                 └────> place of the key: who holds it, until when
 *
 * Where a stem has many patterns (lock:alice, lock:bob, ...), they are one: lock:*. A shard's tables are allocated when
 * the first lock of it is seen.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/lock/advise_private.h"

enum {
    ROWS = 32,       /* a shard */
    PLACES = 1024,   /* keys a shard */
    WAYS = 4,        /* places that a key may have */
    SIBLINGS_MAX = 8 /* patterns of one stem and client before they are one */
};

/* A key that is held, or was lately; or a node of a queue. */
struct advise_place {
    uint64_t hash; /* 0: empty */
    uint64_t session, client, row;
    int64_t since_ms, end_ms; /* 0: none */
    unsigned epoch;           /* its group's; an older one: it has not been watched since */
    uint8_t group;
    bool held;
    bool node;
};

struct advisor *advisor_new(uint64_t seed) {
    struct advisor *a = memory_zalloc(sizeof(*a));
    a->seed = (struct hash_seed){seed, seed ^ 0x9e3779b97f4a7c15u};
    for (size_t i = 0; i < ADVISE_SHARDS; i++)
        pthread_mutex_init(&a->shards[i].mutex, NULL);
    return a;
}

void advisor_free(struct advisor *a) {
    for (size_t i = 0; a && i < ADVISE_SHARDS; i++) {
        pthread_mutex_destroy(&a->shards[i].mutex);
        memory_free(a->shards[i].rows);
        memory_free(a->shards[i].places);
    }
    memory_free(a);
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
static struct advise_row *row_find(struct advise_shard *sh, const char *pattern, size_t stem, bool ruled,
                                   uint64_t client) {
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
static struct advise_row *row_widen(struct advise_shard *sh, char *pattern, size_t stem, uint64_t client) {
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

static struct advise_row *row_oldest(struct advise_shard *sh) {
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

static struct advise_row *row_get(struct advise_shard *sh, char *pattern, size_t stem, const struct advise_sight *s,
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

static struct advise_place *place_find(struct advise_shard *sh, uint64_t hash, unsigned epoch) {
    struct advise_place *set = &sh->places[hash % (PLACES / WAYS) * WAYS];
    for (size_t i = 0; i < WAYS; i++)
        if (set[i].hash == hash && set[i].epoch == epoch)
            return &set[i];
    return NULL;
}

/* The key's, or a free one, or that of the key which was acquired first. */
static struct advise_place *place_get(struct advise_shard *sh, uint64_t hash, unsigned epoch) {
    struct advise_place *set = &sh->places[hash % (PLACES / WAYS) * WAYS], *best = place_find(sh, hash, epoch);
    for (size_t i = 0; !best && i < WAYS; i++)
        if (!set[i].hash || set[i].hash == hash)
            best = &set[i];
    if (best)
        return best;
    best = set;
    for (size_t i = 1; i < WAYS; i++)
        if (set[i].since_ms < best->since_ms)
            best = &set[i];
    *best = (struct advise_place){0};
    return best;
}

static bool place_over(const struct advise_place *p, int64_t now_ms) {
    return p->end_ms && now_ms >= p->end_ms;
}

/* The row of who acquired it, if there still is one. */
static struct advise_row *place_row(struct advise_shard *sh, const struct advise_place *p,
                                    struct advise_row *otherwise) {
    struct advise_row *row = p->row < ROWS ? &sh->rows[p->row] : NULL;
    return row && row->pattern[0] ? row : otherwise;
}

/* ---- events ---------------------------------------------------------------------------------- */

struct note {
    struct advise_shard *sh;
    const struct advise_sight *sight;
    struct advise_row *row;
    struct advise_place *place; /* NULL: nothing is known of the key */
    uint64_t hash, client;
    unsigned epoch;
    uint8_t group;
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

static void place_fill(const struct note *n, struct advise_place *p, uint64_t hash) {
    *p = (struct advise_place){.hash = hash,
                               .epoch = n->epoch,
                               .group = n->group,
                               .session = n->sight->session_id,
                               .client = n->client,
                               .row = ROWS,
                               .since_ms = n->now_ms};
}

static void note_acquired(struct note *n, uint64_t value) {
    struct advise_place *p = n->place;
    if (p && p->held && place_over(p, n->now_ms))
        place_row(n->sh, p, n->row)->expired++;
    n->row->acquired++;
    n->row->endless += n->sight->pttl_ms < 0;
    n->row->sessions |= (uint64_t)1 << (n->sight->session_id % 64);
    if (n->sight->value)
        note_value(n, value);
    p = p ? p : place_get(n->sh, n->hash, n->epoch);
    place_fill(n, p, n->hash);
    p->row = (uint64_t)(n->row - n->sh->rows);
    p->end_ms = end_of(n);
    p->held = true;
}

static void note_lost(struct note *n) {
    const struct advise_place *p = n->place;
    n->row->lost++;
    n->row->self_lost += p && p->held && p->session == n->sight->session_id && !place_over(p, n->now_ms);
}

/* Counted where the lock was acquired. */
static void note_released(struct note *n, enum advise_event event) {
    struct advise_place *p = n->place;
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
    if (event == ADVISE_RELEASED)
        p->held = false;
}

static void note_event(struct note *n, enum advise_event event, uint64_t value) {
    struct advise_place *p = n->place;
    switch (event) {
    case ADVISE_ACQUIRED:
        note_acquired(n, value);
        break;
    case ADVISE_LOST:
        note_lost(n);
        break;
    case ADVISE_RELEASED:
    case ADVISE_REFUSED:
        note_released(n, event);
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
    case ADVISE_PUSHED:
    case ADVISE_HEAD:
    case ADVISE_RENAMED:
    case ADVISE_TAKEN:
        break;
    }
}

/* ---- queues ---------------------------------------------------------------------------------- */

/* A list is a lock where its clients look whether the head is a node that they have pushed. What that says in the terms
 * of other locks is left in *event; false: nothing, so far. */
static bool queue_event(struct note *n, uint64_t value, enum advise_event *event) {
    uint64_t hash = (hash_number(n->hash ^ value) + 1) | 1;
    struct advise_place *p = place_find(n->sh, hash, n->epoch);
    switch (*event) {
    case ADVISE_PUSHED:
    case ADVISE_RENAMED:
        p = p ? p : place_get(n->sh, hash, n->epoch);
        place_fill(n, p, hash);
        p->node = true;
        p->held = *event == ADVISE_RENAMED && n->place && n->place->held && n->place->client == n->client;
        *event = ADVISE_LOST;
        return n->sight->waits && n->row && n->row->queue && !p->held;
    case ADVISE_HEAD:
        if (!p || p->held || p->client != n->client)
            return false;
        p->held = true;
        *event = ADVISE_ACQUIRED;
        return true;
    case ADVISE_TAKEN:
        if (!p)
            return false;
        p->hash = 0;
        *event = ADVISE_RELEASED;
        return p->held;
    default:
        return true;
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
    size_t stem = s->rule ? len : advise_stem(pattern, len);
    uint64_t place = s->rule ? s->rule->hash : hash_bytes(&a->seed, pattern, stem);
    struct advise_shard *sh = &a->shards[place % ADVISE_SHARDS];
    uint64_t client = s->client_hash;
    uint64_t value = s->value ? hash_bytes(&a->seed, s->value, s->value_len) : 0;
    pthread_mutex_lock(&sh->mutex);
    if (!sh->rows) {
        sh->rows = memory_zalloc(ROWS * sizeof(*sh->rows));
        sh->places = memory_zalloc(PLACES * sizeof(*sh->places));
    }
    struct note n = {.sh = sh,
                     .sight = s,
                     .hash = (hash_bytes(&a->seed, s->key.name, s->key.len) + s->key.db) | 1,
                     .client = client,
                     .now_ms = now_ms};
    n.group = (uint8_t)advise_group(s->key.name, s->key.len);
    n.epoch = atomic_load_explicit(&a->groups[n.group].epoch, memory_order_relaxed);
    n.place = place_find(sh, n.hash, n.epoch);
    n.row = row_find(sh, pattern, stem, s->rule != NULL, client);
    enum advise_event event = s->event;
    bool says = queue_event(&n, value, &event);
    if (says) {
        n.row = row_get(sh, pattern, stem, s, client);
        n.row->queue |= s->queue;
        n.row->last_ms = now_ms;
        if (s->library && !n.row->library[0])
            copy(n.row->library, sizeof(n.row->library), s->library, strlen(s->library));
        note_event(&n, event, value);
    }
    pthread_mutex_unlock(&sh->mutex);
    if (says && event == ADVISE_ACQUIRED && !s->rule)
        advisor_arm(a, s->key.name, s->key.len, now_ms);
}

/* ---- looking in ------------------------------------------------------------------------------ */

static int most_events_first(const void *x, const void *y) {
    uint64_t a = advise_events(x), b = advise_events(y);
    return a < b ? 1 : a > b ? -1 : 0;
}

/* Locks whose time is up and that nobody has asked for since. */
static void shard_expire(struct advisor *a, struct advise_shard *sh, int64_t now_ms) {
    for (size_t i = 0; i < PLACES; i++) {
        struct advise_place *p = &sh->places[i];
        unsigned epoch = atomic_load_explicit(&a->groups[p->group].epoch, memory_order_relaxed);
        if (p->hash && p->epoch == epoch && p->held && !p->node && place_over(p, now_ms) && p->row < ROWS) {
            sh->rows[p->row].expired++;
            p->held = false;
        }
    }
}

void advisor_each(struct advisor *a, int64_t now_ms, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    struct advise_row *rows = memory_alloc(ADVISE_SHARDS * ROWS * sizeof(*rows));
    size_t count = 0;
    for (size_t i = 0; i < ADVISE_SHARDS; i++) {
        struct advise_shard *sh = &a->shards[i];
        pthread_mutex_lock(&sh->mutex);
        if (sh->rows)
            shard_expire(a, sh, now_ms);
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
