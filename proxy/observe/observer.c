/*
 * The observer's memory: keys seen lately, and counts by pattern and client.
 *
 *      key ──> pattern ──> stem (up to the last separator) ──> shard ──> row (pattern, client)
 *                                                                 └────> place of the key: its holder, its end
 *
 * If a stem has many patterns (lock:alice, lock:bob, ...), they become one: lock:*. If a shard has no row left, the
 * pattern with most rows gets one row for all of its clients: 240 workers with a name each take no other pattern's row.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/base/text.h"
#include "proxy/lock/thresholds.h"
#include "proxy/observe/private.h"

enum {
    ROWS = OBSERVED_ROWS / OBSERVED_SHARDS, /* in each shard */
    PLACES = 1024,                          /* keys in each shard */
    WAYS = 4,                               /* places in which a key may be stored */
    SIBLINGS_MAX = 8,                       /* patterns of one stem and client before they become one */
    PARTIES = 6,                            /* sessions remembered for a key */
    LOST_SETS = 256,                        /* lost attempts in each shard: sets of WAYS */
    POLL_MAX_MS = 1000,
    SHARED_MS = 20,    /* a loser takes its number back at once; a semaphore's holder keeps it for longer */
    DEAD_LOST = 3,     /* attempts lost before a lock without an owner counts as dead */
    ODD_MAX = 16,      /* so much more that is odd than permits given back: the key is no semaphore */
    ODD_KEY = 1 << 20, /* what such a key counts as in its pattern's rows */
    NEW_MAX = 8,       /* so many texts that are new in a list: it is a queue, also if most of its jobs come back */
    PERMIT_OLD_MS = 60 * 1000 /* a session that has kept a permit for so long makes room for another one */
};

/* How a session stands to a key. HOLDS: it has acquired, and not released since. TAKEN: another session has released
 * the lock in its place. For permits: KEEPS: it has taken one, and not given it back. ASKED: for the number or rank of
 * members. */
enum { HOLDS = 1, TAKEN = 2, KEEPS = 4, ASKED = 8 };
struct key_session {
    uint32_t id; /* 0: none */
    uint8_t stands;
    int64_t kept_ms; /* KEEPS: since when */
    uint64_t permit; /* KEEPS: the token or member; 0: not known */
};

/* A session's last attempt on a key, which was lost. A table of its own, since hundreds of sessions may lose one lock.
 */
struct lost_attempt {
    uint64_t hash; /* of the session and the key; 0: none */
    int64_t at_ms;
};

/* A key that is held, or was held lately; or a node of a queue. */
struct key_memory {
    uint64_t hash;            /* 0: empty */
    uint64_t session, client; /* the session that acquired it, and its client; 0: the traffic does not show it */
    uint64_t value;           /* 0: not known */
    int64_t since_ms, end_ms; /* 0: none */
    int64_t freed_ms;         /* when it was released after others had asked for it; 0: it was not */
    unsigned epoch;           /* its group's epoch; an older one: the key was not watched since */
    uint8_t group, row, next_party;
    bool held;
    bool node;
    bool unending;  /* acquired without an expiry; the proxy may renew it */
    bool endless;   /* acquired without an expiry, and nothing gives it one */
    bool contended; /* other sessions have lost an attempt since */
    bool self_lost; /* the session itself has lost an attempt since */
    bool shortened; /* not held any more: it was given much less time than it had left */
    bool forgot;    /* there were more sessions than places for them */
    uint32_t lost;  /* attempts lost since its owner left */
    uint8_t odd;    /* of permits: how much was odd, less what was given back; ODD_MAX: the key is no semaphore */
    uint8_t new;    /* of permits: how many texts were pushed that are new, NEW_MAX at most */
    struct key_session parties[PARTIES];
};

struct observed_shard {
    struct evidence rows[ROWS];
    struct key_memory places[PLACES];
    struct lost_attempt lost[LOST_SETS * WAYS];
};

struct observer *observer_new(uint64_t seed) {
    struct observer *a = memory_zalloc(sizeof(*a));
    a->seed = (struct hash_seed){seed, seed ^ 0x9e3779b97f4a7c15u};
    for (size_t i = 0; i < OBSERVED_SHARDS; i++)
        pthread_mutex_init(&a->shards[i].mutex, NULL);
    pthread_mutex_init(&a->fences_mutex, NULL);
    return a;
}

void observer_free(struct observer *a) {
    if (!a)
        return;
    for (size_t i = 0; i < OBSERVED_SHARDS; i++) {
        pthread_mutex_destroy(&a->shards[i].mutex);
        memory_free(a->shards[i].shard);
    }
    pthread_mutex_destroy(&a->fences_mutex);
    MEMORY_FREE_ALL(a->fences, a);
}

/* ---- rows ------------------------------------------------------------------------------------ */

_Static_assert(offsetof(struct evidence, row) ==
                   offsetof(struct evidence, counts) + (EVIDENCE_COUNTS - 1) * sizeof(unsigned long long),
               "every count is added");

/* The stored part of a session's number, never 0. */
static uint32_t session_id(uint64_t session) {
    return (uint32_t)session | 1u << 31;
}

/* The place for a session that has tried; it is another session's if the id differs. */
static struct evidence_session *row_session(struct evidence *row, uint64_t session) {
    return &row->sessions[session_id(session) % ADVISE_SESSIONS];
}

/* Whether the session is remembered as one that has tried for locks of the row. Only a few sessions are remembered:
 * another may have taken its place. */
static bool row_has_tried(struct evidence *row, uint64_t session) {
    return row_session(row, session)->id == session_id(session);
}

static void row_tried(struct evidence *row, uint64_t session) {
    if (!row_has_tried(row, session))
        *row_session(row, session) = (struct evidence_session){.id = session_id(session)};
}

/* Replaces what differs between two clients' words by a star: 127.0.0.1 name=worker-*. */
static void client_merge(char *to, const char *from) {
    char out[ADVISE_CLIENT_MAX] = "";
    const char *x = to, *y = from;
    for (size_t n = 0; (*x || *y) && n < sizeof(out); n = strlen(out)) {
        size_t x_len = strcspn(x, " "), y_len = strcspn(y, " "), same = 0;
        while (same < x_len && same < y_len && x[same] == y[same])
            same++;
        bool equal = same == x_len && same == y_len;
        snprintf(out + n, sizeof(out) - n, "%s%.*s%s", n > 0 ? " " : "", (int)same, x, equal ? "" : "*");
        x += x_len + (x[x_len] == ' ');
        y += y_len + (y[y_len] == ' ');
    }
    memcpy(to, out, sizeof(out));
}

/* Which of two rows names the clients of both: clients that acquire first, then those of which events are known. */
static unsigned row_rank(const struct evidence *row) {
    return row->acquired > 0 ? 2 : row->events > 0;
}

void evidence_add(struct evidence *to, const struct evidence *from) {
    bool repeats = to->valued > 0 && from->valued > 0 && to->last_value == from->last_value;
    if (row_rank(from) == row_rank(to))
        client_merge(to->client, from->client);
    else if (row_rank(from) > row_rank(to))
        memcpy(to->client, from->client, sizeof(to->client));
    for (size_t i = 0; i < EVIDENCE_COUNTS; i++)
        to->counts[i] += from->counts[i];
    to->repeated += repeats;
    to->last_value = from->valued > 0 ? from->last_value : to->last_value;
    to->last_ms = from->last_ms > to->last_ms ? from->last_ms : to->last_ms;
    to->kinds |= from->kinds;
    to->overlapped |= from->overlapped;
    to->all |= from->all;
    if (!to->library[0])
        memcpy(to->library, from->library, sizeof(to->library));
    if (!to->dead_hash) {
        to->dead_hash = from->dead_hash;
        memcpy(to->dead_key, from->dead_key, sizeof(to->dead_key));
    }
    for (size_t i = 0; i < ADVISE_SESSIONS; i++)
        if (!to->sessions[i].id)
            to->sessions[i] = from->sessions[i];
}

/* Empties a row. Its keys count for the row `to` from now on; ROWS: for none. */
static void row_empty(struct observed_shard *sh, struct evidence *row, size_t to) {
    for (size_t i = 0; i < PLACES; i++)
        if (sh->places[i].row == row - sh->rows)
            sh->places[i].row = (uint8_t)to;
    row->pattern[0] = '\0';
}

/* Whether the row has the pattern of `like`, or with `wide` its stem; of the client with this hash, or NULL: of any. */
static bool row_agrees(const struct evidence *row, const struct evidence *like, bool wide, const uint64_t *client) {
    if (!row->pattern[0] || row->ruled != like->ruled || row->stem_len != like->stem_len ||
        (client && row->client_hash != *client && !row->all))
        return false;
    return wide ? !row->ruled && row->stem_len > 0 && memcmp(row->pattern, like->pattern, row->stem_len) == 0
                : strcmp(row->pattern, like->pattern) == 0;
}

/* Merges the rows that agree with `to` into it. With `wide` its pattern becomes that of the stem. */
static void rows_merge(struct observed_shard *sh, struct evidence *to, bool wide, const uint64_t *client) {
    for (size_t i = 0; i < ROWS; i++)
        if (&sh->rows[i] != to && row_agrees(&sh->rows[i], to, wide, client)) {
            evidence_add(to, &sh->rows[i]);
            row_empty(sh, &sh->rows[i], (size_t)(to - sh->rows));
        }
    if (wide)
        memcpy(to->pattern + to->stem_len, "*", 2);
}

/* Whether the row is for `pattern`, or the common row of its stem. */
static inline bool row_is_of(const struct evidence *row, const char *pattern, size_t stem, bool ruled) {
    if (!row->pattern[0] || row->ruled != ruled)
        return false;
    bool all = !ruled && row->stem_len == stem && stem > 0 && strcmp(row->pattern + stem, "*") == 0 &&
               memcmp(row->pattern, pattern, stem) == 0;
    return all || strcmp(row->pattern, pattern) == 0;
}

/* The client's row, or that of all clients; NULL: there is none. */
static struct evidence *row_find(struct observed_shard *sh, const char *pattern, size_t stem, bool ruled,
                                 uint64_t client) {
    for (size_t i = 0; i < ROWS; i++)
        if ((sh->rows[i].all || sh->rows[i].client_hash == client) && row_is_of(&sh->rows[i], pattern, stem, ruled))
            return &sh->rows[i];
    return NULL;
}

/* Makes room: merges all clients' rows of the pattern, or with `wide` of the stem, that has most, if it has `least`. */
static bool rows_merge_most(struct observed_shard *sh, size_t least, bool wide) {
    struct evidence *to = NULL;
    for (size_t i = 0; i < ROWS; i++) {
        size_t count = 0;
        for (size_t k = 0; sh->rows[i].pattern[0] && k < ROWS; k++)
            count += row_agrees(&sh->rows[k], &sh->rows[i], wide, NULL);
        if (count >= least) {
            least = count + 1;
            to = &sh->rows[i];
        }
    }
    if (!to)
        return false;
    rows_merge(sh, to, wide, NULL);
    to->all = true;
    return true;
}

/* A free row. Only if no pattern and no stem has rows to merge, the row that was seen longest ago is forgotten. */
static struct evidence *row_free(struct observed_shard *sh) {
    struct evidence *oldest = &sh->rows[0];
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < ROWS; i++) {
            if (!sh->rows[i].pattern[0])
                return &sh->rows[i];
            if (sh->rows[i].last_ms < oldest->last_ms)
                oldest = &sh->rows[i];
        }
        if (!rows_merge_most(sh, 2, false) && !rows_merge_most(sh, SIBLINGS_MAX, true))
            break;
    }
    row_empty(sh, oldest, ROWS);
    return oldest;
}

/* The row for an event that has none: a new one, or if its stem has too many patterns, their rows as one. */
static struct evidence *row_make(struct observed_shard *sh, const char *pattern, size_t stem,
                                 const struct lock_event *s) {
    struct evidence new = {.client_hash = s->identity_hash, .stem_len = stem, .ruled = s->rule != NULL};
    snprintf(new.pattern, sizeof(new.pattern), "%s", pattern);
    struct evidence *row = NULL;
    size_t siblings = 0;
    for (size_t i = ROWS; i-- > 0;)
        if (row_agrees(&sh->rows[i], &new, true, &new.client_hash)) {
            row = &sh->rows[i];
            siblings++;
        }
    if (siblings >= SIBLINGS_MAX) {
        rows_merge(sh, row, true, &new.client_hash);
        return row;
    }
    row = row_free(sh);
    *row = new;
    text_printable(row->client, sizeof(row->client), s->identity, s->identity_len, '.');
    return row;
}

/* ---- places ---------------------------------------------------------------------------------- */

static struct key_memory *place_find(struct observed_shard *sh, uint64_t hash, unsigned epoch) {
    struct key_memory *set = &sh->places[hash % (PLACES / WAYS) * WAYS];
    for (size_t i = 0; i < WAYS; i++)
        if (set[i].hash == hash && set[i].epoch == epoch)
            return &set[i];
    return NULL;
}

/* Whether the key was held, and its lock has ended by its expiry. */
static bool place_over(const struct key_memory *p, int64_t now_ms) {
    return p && p->held && p->end_ms && now_ms >= p->end_ms;
}

/* The row of the client that acquired the key, if it still exists. */
static struct evidence *place_row(struct observed_shard *sh, const struct key_memory *p, struct evidence *otherwise) {
    struct evidence *row = p->row < ROWS ? &sh->rows[p->row] : NULL;
    return row && row->pattern[0] ? row : otherwise;
}

/* The state of the session for the key; NULL: it was not seen there, or was forgotten. */
static struct key_session *place_party(struct key_memory *p, uint64_t session) {
    for (size_t i = 0; i < PARTIES; i++)
        if (p->parties[i].id == session_id(session))
            return &p->parties[i];
    return NULL;
}

static bool stands(struct key_memory *p, uint64_t session, unsigned how) {
    const struct key_session *party = place_party(p, session);
    return party && party->stands & how;
}

/* The session's place, or a free one; otherwise one after the other makes room. For a permit, `permit_ms` is the time
 * now, and only a session makes room that has kept its permit for long, or keeps none; NULL: there is none. */
static struct key_session *party_get(struct key_memory *p, uint64_t session, int64_t permit_ms) {
    struct key_session *party = place_party(p, session);
    for (size_t i = 0; !party && i < PARTIES; i++)
        if (!p->parties[i].stands)
            party = &p->parties[i];
    for (size_t i = 0; permit_ms && !party && i < PARTIES; i++)
        if (!(p->parties[i].stands & KEEPS) || permit_ms - p->parties[i].kept_ms > PERMIT_OLD_MS)
            party = &p->parties[i];
    p->forgot |= !party;
    if (!party && !permit_ms)
        party = &p->parties[p->next_party++ % PARTIES];
    if (party && party->id != session_id(session))
        *party = (struct key_session){.id = session_id(session)};
    return party;
}

static void party_is(struct key_memory *p, uint64_t session, unsigned how) {
    struct key_session *party = party_get(p, session, 0);
    party->stands = (uint8_t)(party->stands | how);
}

static void party_is_not(struct key_memory *p, uint64_t session, unsigned how) {
    struct key_session *party = place_party(p, session);
    if (party)
        party->stands = (uint8_t)(party->stands & ~how);
}

/* ---- events ---------------------------------------------------------------------------------- */

struct note {
    struct observer *observer;
    struct observed_shard *sh;
    const struct lock_event *sight;
    const char *pattern;
    size_t stem;
    struct evidence *row;
    struct key_memory *place; /* NULL: the key is not known */
    uint64_t hash, client, session, value;
    unsigned epoch;
    uint8_t group;
    int64_t now_ms;
    bool refused;        /* the proxy has refused the release */
    bool counts, shares; /* permit_event: a permit was given back; after a while, beside another one */
};

static bool of_queue(const struct lock_event *e) {
    return lock_verb_is(e->verb, VERB_QUEUE) || e->queue == QUEUE_POP;
}

/* When the lock ends; 0: never, or beyond the range. */
static int64_t end_of(const struct note *n) {
    int64_t pttl_ms = n->sight->pttl_ms;
    return pttl_ms < 0 || pttl_ms > INT64_MAX - n->now_ms ? 0 : n->now_ms + pttl_ms;
}

static bool held_now(const struct note *n) {
    return n->place && n->place->held && !place_over(n->place, n->now_ms);
}

/* A new place for the key, in its old one, or in a free one, or in that of the key that was acquired first. */
static struct key_memory *place_make(const struct note *n, uint64_t hash) {
    struct key_memory *set = &n->sh->places[hash % (PLACES / WAYS) * WAYS], *p = place_find(n->sh, hash, n->epoch);
    struct key_memory *oldest = set;
    for (size_t i = 0; !p && i < WAYS; i++) {
        oldest = set[i].since_ms < oldest->since_ms ? &set[i] : oldest;
        p = !set[i].hash || set[i].hash == hash ? &set[i] : NULL;
    }
    p = p ? p : oldest;
    *p = (struct key_memory){.hash = hash, .epoch = n->epoch, .group = n->group, .row = ROWS, .since_ms = n->now_ms};
    return p;
}

static void place_ends(const struct note *n, struct key_memory *p) {
    p->end_ms = end_of(n);
    p->endless = n->sight->pttl_ms < 0 && !n->sight->renewed;
}

/* The session's last attempt on the key, if it was lost, or NULL. With `make` the oldest of the set makes room. */
static struct lost_attempt *lost_attempt(const struct note *n, bool make) {
    uint64_t hash = hash_number(n->hash ^ hash_number(n->session ^ (uint64_t)n->epoch << 32)) | 1;
    struct lost_attempt *set = &n->sh->lost[hash / WAYS % LOST_SETS * WAYS], *oldest = set;
    for (size_t i = 0; i < WAYS; i++) {
        if (set[i].hash == hash)
            return &set[i];
        oldest = set[i].at_ms < oldest->at_ms ? &set[i] : oldest;
    }
    if (!make)
        return NULL;
    oldest->hash = hash;
    return oldest;
}

static void lost_no_more(const struct note *n) {
    struct lost_attempt *lost = lost_attempt(n, false);
    if (lost)
        *lost = (struct lost_attempt){0};
}

static void note_extended(struct note *n) {
    if (n->place && n->place->held)
        place_ends(n, n->place);
}

/* Whether the session that acquired the lock has ended; with `one_shot`: and was a one-shot client's. */
static bool owner_left(const struct observer *a, const struct key_memory *p, bool one_shot) {
    uint64_t left = atomic_load_explicit(&a->left[p->session % ADVISE_LEFT], memory_order_relaxed);
    return left == ((p->session + 1) | ADVISE_LEFT_ONE_SHOT) || (!one_shot && left == p->session + 1);
}

static void count_one_shot(const struct observer *a, struct key_memory *p, struct evidence *row) {
    bool counts = p->unending && owner_left(a, p, true);
    p->unending &= !counts;
    row->one_shots += counts;
}

/* Notes that a release came after the lock's end, and how long after. */
static void note_late(struct note *n, const struct key_memory *p, bool over) {
    n->row->late++;
    invariant(!over || n->now_ms >= p->end_ms, "a release is late by %lld ms", (long long)(n->now_ms - p->end_ms));
    if (!over)
        return;
    n->row->late_timed++;
    n->row->late_ms += (uint64_t)(n->now_ms - p->end_ms);
}

static void note_acquired(struct note *n) {
    struct key_memory *p = n->place;
    if (n->sight->scripted && held_now(n) && p->client == n->client && n->value && p->value == n->value) {
        note_extended(n); /* its holder acquires it again */
        return;
    }
    if (place_over(p, n->now_ms))
        place_row(n->sh, p, n->row)->expired++;
    n->row->events++;
    n->row->acquired++;
    n->row->endless += n->sight->pttl_ms < 0;
    unsigned kind = n->sight->scripted ? ADVISE_STRING : n->sight->advises & ADVISES_KIND;
    n->row->kinds |= of_queue(n->sight) ? ADVISE_LIST : kind ? kind : ADVISE_STRING;
    row_tried(n->row, n->session);
    if (n->sight->value) {
        n->row->valued++;
        n->row->repeated += n->row->valued > 1 && n->value == n->row->last_value;
        n->row->last_value = n->value;
    }
    p = p ? p : place_make(n, n->hash);
    p->row = (uint8_t)(n->row - n->sh->rows);
    invariant(p->row < ROWS, "row %d", p->row);
    /* How long the lock was free although its new holder had asked for it before: the holder slept. After a long time
     * the client was not polling. */
    int64_t slept_ms = n->now_ms - p->freed_ms;
    if (p->freed_ms && slept_ms >= 0 && slept_ms <= POLL_MAX_MS && lost_attempt(n, false)) {
        n->row->stood++;
        n->row->stood_ms += (uint64_t)slept_ms;
    }
    count_one_shot(n->observer, p, n->row);
    invariant(p->hash, "a lock without a key is taken");
    p->session = n->session;
    p->client = n->client;
    p->value = n->value;
    p->since_ms = n->now_ms;
    place_ends(n, p);
    p->unending = n->sight->pttl_ms < 0 && !of_queue(n->sight);
    p->contended = p->self_lost = p->shortened = false;
    p->freed_ms = 0;
    p->lost = 0;
    p->held = true;
    party_get(p, n->session, 0)->stands = HOLDS;
    lost_no_more(n);
}

static void note_lost(struct note *n) {
    n->row->events++;
    n->row->lost++;
    row_tried(n->row, n->session);
    struct key_memory *p = n->place = n->place ? n->place : place_make(n, n->hash);
    lost_attempt(n, true)->at_ms = n->now_ms;
    if (!held_now(n))
        return;
    if (p->session == n->session)
        p->self_lost = true; /* a nested attempt of the holder proves nothing */
    else
        p->contended = true;
    /* Without an expiry and without its owner, the lock will never be released. */
    if (p->endless && owner_left(n->observer, p, false) && ++p->lost >= DEAD_LOST) {
        struct evidence *row = place_row(n->sh, p, n->row);
        row->dead_hash = p->hash;
        text_printable(row->dead_key, sizeof(row->dead_key), n->sight->key.name, n->sight->key.len, '.');
    }
}

/* Notes that another session has released a lock: for its holder or against it, which is not known. */
static void place_taken(struct key_memory *p) {
    if (!stands(p, p->session, HOLDS))
        return;
    party_is_not(p, p->session, HOLDS);
    party_is(p, p->session, TAKEN);
}

/* Notes the session that released a held lock. Another session of the client crosses if it has tried for the lock
 * itself, and has no release to come. */
static void note_releaser(struct note *n, struct evidence *row, bool refused) {
    struct key_memory *p = n->place;
    bool known = place_party(p, n->session) || !p->forgot;
    bool crosses = known && row_has_tried(row, n->session) && !stands(p, n->session, TAKEN);
    if (p->session == n->session) {
        bool dedicated = release_shows_dedicated(p->contended, p->self_lost);
        row->row += dedicated;
        if (dedicated && row_has_tried(row, n->session))
            row_session(row, n->session)->row++;
    } else if (lost_attempt(n, false)) {
        n->row->losers++;
        n->row->freed += !refused;
        if (!refused)
            place_taken(p);
    } else if (stands(p, n->session, HOLDS)) {
        n->row->late++; /* the lock that it had acquired was over */
    } else if (refused) {
        row->refused++;
    } else if (p->client == n->client && !crosses) {
        place_taken(p);
    } else if (p->client == n->client) {
        row->crossed++;
        row->row = 0;
        row_session(row, n->session)->row = 0;
        if (row_has_tried(row, p->session))
            row_session(row, p->session)->row = 0;
        party_is_not(p, p->session, HOLDS);
    } else if (p->client) {
        row->by_other++;
        row->by_other_bare += !n->sight->scripted;
    }
}

static void note_released(struct note *n) {
    struct key_memory *p = n->place;
    bool refused = n->refused;
    struct evidence *row = p ? place_row(n->sh, p, n->row) : n->row;
    row->events++;
    n->row->sent++;
    row->released += !refused;
    if (!p)
        return;
    n->row->by_own += p->client == n->client || stands(p, n->session, HOLDS);
    count_one_shot(n->observer, p, row);
    bool own = p->session == n->session, over = place_over(p, n->now_ms);
    if (p->held && (!over || (own && !refused))) { /* by our clock it ended a little earlier, but the key was there */
        note_releaser(n, row, refused);
    } else if (own || stands(p, n->session, HOLDS)) {
        row->expired += over;
        note_late(n, p, over && own);
    }
    party_is_not(p, n->session, HOLDS | TAKEN);
    if (!refused && p->held && p->contended)
        p->freed_ms = n->now_ms;
    if (!refused || (own && over))
        p->held = false;
}

static void note_in_vain(struct note *n) {
    struct key_memory *p = n->place;
    n->row->events++;
    n->row->sent++;
    if (place_over(p, n->now_ms) && p->client == n->client) {
        p->held = false;
        place_row(n->sh, p, n->row)->expired++;
        note_late(n, p, true);
    } else {
        n->row->in_vain++;
    }
    if (!p)
        return;
    n->row->by_own += p->client == n->client;
    party_is_not(p, n->session, HOLDS | TAKEN);
}

/* Notes a new expiry. If less than half of the remaining time is left, it counts as a release that blocks others for a
 * while. If a later one gives more time, it was none. */
static void note_rewritten(struct note *n) {
    struct key_memory *p = n->place;
    int64_t left_ms = p && p->end_ms ? p->end_ms - n->now_ms : INT64_MAX;
    bool less = n->sight->pttl_ms >= 0 && left_ms != INT64_MAX && expiry_releases(n->sight->pttl_ms, left_ms);
    if (held_now(n) && less) {
        note_released(n);
        p->end_ms = end_of(n);
        p->shortened = true;
        return;
    }
    if (p && p->shortened && p->session == n->session && left_ms > 0 && !less) {
        struct evidence *row = place_row(n->sh, p, n->row);
        row->released -= row->released > 0;
        n->row->sent -= n->row->sent > 0;
        n->row->by_own -= n->row->by_own > 0;
        p->shortened = false;
        p->held = true;
        party_is(p, n->session, HOLDS);
    }
    note_extended(n);
}

/* Notes that a session takes its number of a counter back, above zero. A loser does so at once. */
static void note_lowered(struct note *n) {
    const struct lost_attempt *lost = n->place ? lost_attempt(n, false) : NULL;
    if (lost && n->now_ms - lost->at_ms >= SHARED_MS)
        n->row->shared++;
}

/* Notes that the traffic does not show the lock's holder from now on. */
static void note_unsure(struct note *n) {
    struct key_memory *p = n->place;
    if (!held_now(n))
        return;
    party_is_not(p, p->session, HOLDS); /* a heartbeat or a take-over: a release by the old holder proves nothing */
    p->end_ms = end_of(n);
    p->session = p->client = p->value = 0;
    p->endless = false;
    lost_no_more(n);
}

/* Notes a SET with an expiry. It acquires if there was no lock, in a transaction after WATCH or under a rule. */
static void note_written(struct note *n) {
    bool held = held_now(n);
    if (held && (n->place->session == n->session || n->sight->behind_watch))
        note_extended(n);
    else if (held)
        note_unsure(n);
    else if (n->sight->pttl_ms >= 0 && (n->sight->behind_watch || n->sight->rule))
        note_acquired(n);
}

static void note_permit(struct note *n) {
    n->row->kinds |= ADVISE_PERMITS;
    n->row->events++;
    n->row->released += n->counts;
    n->row->shared += n->shares;
}

/* What an event means for the row and the key. A list's events become these first (queue_event). */
static void (*const NOTES[SEEN_UNADDED + 1])(struct note *n) = {
    [SEEN_ACQUIRED] = note_acquired,   [SEEN_LOST] = note_lost,       [SEEN_RELEASED] = note_released,
    [SEEN_REFUSED] = note_released,    [SEEN_IN_VAIN] = note_in_vain, [SEEN_EXTENDED] = note_extended,
    [SEEN_REWRITTEN] = note_rewritten, [SEEN_WRITTEN] = note_written, [SEEN_SWAPPED] = note_unsure,
    [SEEN_LOWERED] = note_lowered,     [SEEN_POPPED] = note_permit,   [SEEN_GIVEN] = note_permit,
    [SEEN_ADDED] = note_permit,        [SEEN_UNADDED] = note_permit};

/* ---- queues ---------------------------------------------------------------------------------- */

static uint64_t node_hash(uint64_t key, uint64_t value) {
    return (hash_number(key ^ value) + 1) | 1;
}

/* Translates an event of a list to one of a lock: its clients check whether the head is the node that they pushed.
 * False: nothing is known yet. */
static bool queue_event(struct note *n, enum seen_event *event) {
    uint64_t hash = node_hash(n->hash, n->value);
    struct key_memory *p = place_find(n->sh, hash, n->epoch);
    switch (*event) {
    case SEEN_PUSHED:
    case SEEN_RENAMED:
        p = place_make(n, hash);
        p->session = n->session;
        p->client = n->client;
        p->node = true;
        p->held = *event == SEEN_RENAMED && n->place && n->place->held && n->place->client == n->client;
        *event = SEEN_LOST;
        return n->sight->count > n->sight->by && n->row && n->row->kinds & ADVISE_LIST && !p->held;
    case SEEN_HEAD:
        if (!p || p->held || p->client != n->client)
            return false;
        p->held = true;
        *event = SEEN_ACQUIRED;
        return true;
    case SEEN_TAKEN:
        if (!p)
            return false;
        p->hash = 0;
        *event = SEEN_RELEASED;
        return p->held;
    default:
        return true;
    }
}

/* ---- permits --------------------------------------------------------------------------------- */

/* A list or sorted set is a semaphore if sessions give back themselves what they took a while ago, if others take
 * meanwhile, and if nearly nothing else happens there. What is odd: a push by a session that has taken nothing (of
 * jobs), a member that another session removes, a second member of a session that has not removed its first one (of a
 * rate limiter), a second pop of a session that has not pushed (of a job, or in vain). A session that asks for no rank
 * or number adds members to something else.
 *
 * In a queue whose jobs fail, workers push back what they have popped, as often as they fail. But its jobs are new, and
 * go on coming; a semaphore has the same few tokens for ever. A text is new if a session pushes it that has not taken
 * it, and if it was neither pushed nor popped before. */

static bool odd_enough(const struct key_memory *p) {
    return p->odd >= ODD_MAX;
}

/* Counts in the rows of all clients: others than those that give back may push or remove. */
static void note_odd(struct note *n) {
    n->place->odd++;
    for (size_t i = 0; i < ROWS; i++) {
        struct evidence *row = &n->sh->rows[i];
        if (row->kinds & ADVISE_PERMITS && row_is_of(row, n->pattern, n->stem, false))
            row->odd += odd_enough(n->place) ? ODD_KEY : 1;
    }
}

static uint64_t token_hash(const struct note *n, bool popped) {
    return node_hash(popped ? hash_number(n->hash) : n->hash, ~n->value);
}

/* Whether the text was pushed to the list before, or popped from it; it was from now on. */
static bool token_before(struct note *n, bool popped) {
    uint64_t hash = token_hash(n, popped);
    bool before = place_find(n->sh, hash, n->epoch);
    if (!before)
        place_make(n, hash)->node = true;
    n->place = place_find(n->sh, n->hash, n->epoch); /* the node may have taken its place */
    return before;
}

/* Takes a push, or with `member` a removal. False: the key is not known any more. */
static bool permit_given(struct note *n, bool member) {
    bool before = member || token_before(n, false), beside = false;
    if (!n->place)
        return false;
    struct key_session *party = place_party(n->place, n->session);
    for (size_t i = 0; i < PARTIES; i++)
        beside |= &n->place->parties[i] != party && n->place->parties[i].stands & KEEPS;
    bool keeps = party && party->stands & KEEPS;
    if (keeps && (party->permit == n->value || !(member || party->permit))) {
        if (before && (!member || party->stands & ASKED)) { /* the session has given back its own permit */
            n->place->odd -= n->place->odd > 0;
            n->counts = true;
            n->shares = beside && n->now_ms - party->kept_ms >= SHARED_MS;
        }
        party->stands = (uint8_t)(party->stands & ~(KEEPS | ASKED));
    } else if (keeps || !n->place->forgot) {
        if (!before && !place_find(n->sh, token_hash(n, true), n->epoch) && ++n->place->new == NEW_MAX)
            n->place->odd = ODD_MAX - 1;
        note_odd(n);
    }
    return true;
}

/* Takes an event of what may be a semaphore. Returns whether its row has to be noted: the first permit that is given
 * back and tells something makes the row. */
static bool permit_event(struct note *n, enum seen_event event) {
    bool takes = event == SEEN_POPPED || event == SEEN_ADDED;
    if (n->place ? odd_enough(n->place) : !takes)
        return false;
    if (takes && !n->place)
        n->place = place_make(n, n->hash);
    struct key_session *party = takes ? party_get(n->place, n->session, n->now_ms) : NULL;
    if (party) {
        bool again = party->stands & KEEPS && (!n->value || party->permit != n->value);
        party->stands |= KEEPS;
        party->kept_ms = n->now_ms;
        party->permit = n->value;
        if (again)
            note_odd(n);
    }
    if (event == SEEN_POPPED && n->value && !place_find(n->sh, token_hash(n, false), n->epoch))
        token_before(n, true);
    if (event == SEEN_ASKED && party_get(n->place, n->session, n->now_ms))
        party_is(n->place, n->session, ASKED);
    if (event == SEEN_ASKED || (!takes && !permit_given(n, event == SEEN_UNADDED)))
        return false;
    return n->row || n->shares;
}

/* Whether an event tells anything about a key that is not known as a lock. A change of the expiry does not, nor does a
 * command that deletes data under a rule. */
static bool may_say(const struct note *n, enum seen_event event) {
    const struct lock_rule *rule = n->sight->rule;
    bool expiry = event == SEEN_EXTENDED || event == SEEN_REWRITTEN || event == SEEN_SWAPPED || event == SEEN_LOWERED ||
                  (event == SEEN_WRITTEN && !n->sight->behind_watch && !rule);
    bool deletes = rule && rule->mode == LOCK_MODE_AUDIT && (event == SEEN_RELEASED || event == SEEN_IN_VAIN);
    return n->place || (!expiry && !deletes);
}

void observer_note(struct observer *a, enum seen_event event, const struct lock_event *s, int64_t now_ms) {
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
    size_t shard = place % OBSERVED_SHARDS;
    pthread_mutex_lock(&a->shards[shard].mutex);
    if (!a->shards[shard].shard)
        a->shards[shard].shard = memory_zalloc(sizeof(struct observed_shard));
    struct observed_shard *sh = a->shards[shard].shard;
    struct note n = {.observer = a,
                     .sh = sh,
                     .sight = s,
                     .pattern = pattern,
                     .stem = stem,
                     .hash = (hash_bytes(&a->seed, s->key.name, s->key.len) + s->key.db) | 1,
                     .client = s->identity_hash,
                     .session = s->session_id,
                     .value = s->value ? hash_bytes(&a->seed, s->value, s->value_len) | 1 : 0,
                     .now_ms = now_ms};
    n.group = (uint8_t)advise_group(s->key.name, s->key.len);
    n.epoch = atomic_load_explicit(&a->groups[n.group].epoch, memory_order_relaxed);
    n.place = place_find(sh, n.hash, n.epoch);
    n.row = row_find(sh, pattern, stem, s->rule != NULL, n.client);
    bool permit = event >= SEEN_POPPED;
    bool says = permit ? permit_event(&n, event) : queue_event(&n, &event) && may_say(&n, event);
    bool arms = permit && (event == SEEN_POPPED || event == SEEN_ADDED) && n.place && !odd_enough(n.place);
    if (says) {
        n.place = place_find(sh, n.hash, n.epoch); /* a node may have taken its place */
        n.row = n.row ? n.row : row_make(sh, pattern, stem, s);
        n.row->overlapped |= s->overlapped;
        n.row->audited = s->rule && s->rule->mode == LOCK_MODE_AUDIT;
        n.row->waits = s->rule && s->rule->wait_ms > 0;
        n.row->last_ms = now_ms;
        if (s->library && !n.row->library[0])
            text_printable(n.row->library, sizeof(n.row->library), s->library, strlen(s->library), '.');
        n.refused = event == SEEN_REFUSED;
        if (NOTES[event])
            NOTES[event](&n);
    }
    pthread_mutex_unlock(&a->shards[shard].mutex);
    bool acquires = event == SEEN_ACQUIRED || (event == SEEN_WRITTEN && s->behind_watch);
    if (arms || (says && (!s->rule || s->beside) && acquires))
        observer_arm(a, s->key.name, s->key.len, now_ms);
}

/* ---- looking in ------------------------------------------------------------------------------ */

/* Looks for locks that have expired and were not asked for since, and for dead locks. */
static void shard_look(struct observer *a, struct observed_shard *sh, int64_t now_ms) {
    for (size_t i = 0; i < ROWS; i++)
        sh->rows[i].dead_lost = 0;
    for (size_t i = 0; i < PLACES; i++) {
        struct key_memory *p = &sh->places[i];
        unsigned epoch = atomic_load_explicit(&a->groups[p->group].epoch, memory_order_relaxed);
        if (!p->hash || p->epoch != epoch || !p->held || p->node || p->row >= ROWS)
            continue;
        count_one_shot(a, p, &sh->rows[p->row]);
        if (place_over(p, now_ms)) {
            sh->rows[p->row].expired++;
            p->held = false;
        } else if (p->lost >= DEAD_LOST && sh->rows[p->row].dead_hash == p->hash) {
            sh->rows[p->row].dead_lost = p->lost;
        }
    }
}

void observer_each(struct observer *a, int64_t now_ms, void (*fn)(void *arg, const struct evidence *row), void *arg) {
    for (size_t i = 0; i < OBSERVED_SHARDS; i++) {
        pthread_mutex_lock(&a->shards[i].mutex);
        struct observed_shard *sh = a->shards[i].shard;
        if (sh && now_ms > 0)
            shard_look(a, sh, now_ms);
        for (size_t k = 0; sh && k < ROWS; k++)
            if (sh->rows[k].pattern[0])
                fn(arg, &sh->rows[k]);
        pthread_mutex_unlock(&a->shards[i].mutex);
    }
}

void observer_left(struct observer *a, uint64_t session_id, bool one_shot) {
    uint64_t left = (session_id + 1) | (one_shot ? ADVISE_LEFT_ONE_SHOT : 0);
    atomic_store_explicit(&a->left[session_id % ADVISE_LEFT], left, memory_order_relaxed);
}
