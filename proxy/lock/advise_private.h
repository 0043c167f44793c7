/* Private to proxy/lock/advise*.c: what is counted of a pattern and a client, and which keys are looked at. */
#ifndef LOCKKEEPER_LOCK_ADVISE_PRIVATE_H
#define LOCKKEEPER_LOCK_ADVISE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "proxy/lock/advise.h"
#include "proxy/lock/hash.h"

struct advise_row {
    char pattern[ADVISE_PATTERN_MAX]; /* "": the row is empty */
    char client[ADVISE_CLIENT_MAX];
    char library[ADVISE_LIBRARY_MAX];
    uint64_t client_hash;
    size_t stem_len; /* of the pattern, up to the last separator */
    bool ruled;      /* the pattern is a rule's */
    bool queue;      /* of list locks */
    int64_t last_ms;
    uint64_t last_value;
    uint64_t sessions; /* a bit for some of those that acquired */
    uint64_t acquired, lost, self_lost, endless, valued, repeated;
    uint64_t by_holder, by_sibling, by_other, late, unknown, in_vain; /* releases */
    uint64_t expired;                                                 /* ended without a release */
};

enum { ADVISE_SHARDS = 16, ADVISE_GROUPS = 64, ADVISE_SCRIPTS = 256, FILTER_BITS = 1 << 16 };

/* Keys that begin with the same few bytes (advise_sample.c). */
struct advise_group {
    atomic_int_fast64_t minute; /* that events counts */
    atomic_uint events, epoch;
    atomic_bool busy; /* one key of some is looked at */
};

struct advise_place;
struct advise_shard {
    pthread_mutex_t mutex;
    struct advise_row *rows;
    struct advise_place *places;
};

struct advisor {
    struct hash_seed seed;
    struct advise_shard shards[ADVISE_SHARDS];
    struct advise_group groups[ADVISE_GROUPS];
    atomic_int_fast64_t filter_ms; /* when the present one of the two was begun */
    atomic_uint present;
    _Atomic uint64_t filter[2][FILTER_BITS / 64];
    _Atomic uint64_t scripts[ADVISE_SCRIPTS]; /* a SHA1's first bits, and what the script is */
};

/* Where a key's group is in the table. */
size_t advise_group(const char *key, size_t len);
/* How much of a pattern is its stem: up to the last separator. */
size_t advise_stem(const char *pattern, size_t len);
/* Writes the row's line; returns its length. */
size_t advise_line(const struct advise_row *row, char out[ADVISE_LINE_MAX]);
/* All events of the row. */
uint64_t advise_events(const struct advise_row *row);

#endif
