/* What the files of proxy/observe/ share: the tables, and the selection of keys. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "proxy/observe/observe.h"
#include "proxy/lock/hash.h"

enum { OBSERVED_SHARDS = 16, ADVISE_GROUPS = 64, ADVISE_SCRIPTS = 256, FILTER_BITS = 1 << 16, ADVISE_LEFT = 4096 };

/* In observer.left, a bit with the session's number: its client was a one-shot client. */
#define ADVISE_LEFT_ONE_SHOT ((uint64_t)1 << 63)

/* A group of keys that begin with the same few bytes (sample.c). */
struct key_group {
    atomic_int_fast64_t minute; /* the minute that `events` counts */
    atomic_uint events, epoch;
    atomic_bool busy; /* only some of the group's keys are looked at */
};

struct written_data;
struct observed_shard;

struct observer {
    struct hash_seed seed;
    struct {
        pthread_mutex_t mutex;
        struct observed_shard *shard; /* NULL until its first lock is seen */
    } shards[OBSERVED_SHARDS];
    struct key_group groups[ADVISE_GROUPS];
    atomic_int_fast64_t filter_ms; /* when the present filter was begun */
    atomic_uint present;
    _Atomic uint64_t filter[2][FILTER_BITS / 64];
    _Atomic uint64_t scripts[ADVISE_SCRIPTS]; /* the first bits of a SHA1, and what the script does */
    _Atomic uint64_t left[ADVISE_LEFT];       /* numbers of ended sessions, plus 1 */
    atomic_int_fast64_t lock_ms;              /* when a lock of a rule was last acquired; 0: never */
    pthread_mutex_t fences_mutex;
    struct written_data *fences; /* for written_data.c; NULL: no lock was acquired yet */
};

/* The index of a key's group. */
size_t advise_group(const char *key, size_t len);
