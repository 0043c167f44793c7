/*
 * List locks in the model: the queue under a lock key, what its guard record remembers of it, and the scripts
 * list_*.lua, each in the words of its Lua. Included by model.h.
 */
#ifndef LOCKKEEPER_SIM_LISTS_H
#define LOCKKEEPER_SIM_LISTS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    QUEUE_NODES = 96,
    QUEUE_PARTIES = 192,
    QUEUE_SEATS = 48,
    QUEUE_TEXT = 64,
    QUEUE_NODE = 40,
    QUEUE_PRUNED_AT_ONCE = 100,
    QUEUE_EARLY_MS = 2000,
    QUEUE_LOOKS_WITHIN_MS = 5000
};

/* n:NODE */
struct queue_record {
    char node[QUEUE_NODE], party[QUEUE_TEXT], attempt[QUEUE_TEXT], identity[QUEUE_TEXT];
};

/* p:PARTY, k:PARTY, l:PARTY, v:PARTY, d:PARTY; of an identity h: and x: as well */
struct queue_party {
    char name[QUEUE_TEXT];
    bool here;       /* p: is there */
    bool left;       /* and negative */
    int64_t ends_ms; /* 0 never */
    int64_t homeless_ms;
    int64_t nodes, vacant, crossed;
    char last[QUEUE_NODE], denied[QUEUE_TEXT];
};

/* A line of `may` or `early`. */
struct queue_seat {
    char party[QUEUE_TEXT], token[QUEUE_TEXT];
};

struct queue_seats {
    struct queue_seat seats[QUEUE_SEATS];
    unsigned count;
};

struct model_queue {
    unsigned count, record_count, party_count;
    char nodes[QUEUE_NODES][QUEUE_NODE];
    /* of the guard record */
    struct queue_record records[QUEUE_NODES];
    struct queue_party parties[QUEUE_PARTIES];
    struct queue_seats may, early;
    int64_t early_at_ms;
    bool kind, seen_head; /* kind is list; head is there */
    char head[QUEUE_NODE], by[QUEUE_TEXT];
    int64_t head_at_ms, until_ms;
};

#endif
