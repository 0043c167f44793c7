/*
 * Intrusive hash tables that grow one bucket at a time, so that an insertion moves at most the elements of one bucket:
 * linear hashing (Litwin, "Linear hashing: a new tool for file and table addressing", VLDB 1980).
 *
 * An element embeds a struct table_link. To find one, the caller walks the chain of its hash (TABLE_CHAIN) and
 * compares. The table stores no hashes: it calls hash_of when it moves an element. Only the low bits of a hash are
 * used.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "parser/invariant.h"
#include "proxy/base/list.h"

struct table_link {
    struct table_link *next;
};

struct table {
    struct table_link **buckets;
    uint32_t size, count; /* buckets, elements */
    uint32_t mask;        /* the bits of a hash that are used: size is in (mask / 2, mask + 1], the room is mask + 1 */
    uint64_t (*hash_of)(const struct table_link *link);
};

/* Walks all elements; the body may remove elements. If the body changes the table's size, it must not leave by
 * `break`: that leaves one bucket. */
#define TABLE_EACH(it, t, type, member)                                                                                \
    for (uint32_t it##_b = 0; it##_b < (t)->size; it##_b++)                                                            \
        for (type *it = LIST_ENTRY_OR_NULL((t)->buckets[it##_b], type, member),                                        \
                  *it##_next = it ? LIST_ENTRY_OR_NULL(it->member.next, type, member) : it;                            \
             it; it = it##_next, it##_next = it ? LIST_ENTRY_OR_NULL(it->member.next, type, member) : it)

/* Walks the elements that may have that hash; the body must not remove `it`, unless it leaves. */
#define TABLE_CHAIN(it, t, hash, type, member)                                                                         \
    for (type *it = LIST_ENTRY_OR_NULL(table_chain(t, hash), type, member); it;                                        \
         it = LIST_ENTRY_OR_NULL(it->member.next, type, member))

/* Makes an empty table. `hash_of` returns an element's hash; it is called when the table changes its size. */
void table_init(struct table *t, uint64_t (*hash_of)(const struct table_link *link));
/* Frees the memory of the table. The caller owns the elements. */
void table_clear(struct table *t);
/* Adds a bucket; table_insert calls it when needed. */
void table_grow(struct table *t);
/* Gives memory back if there are few elements: removes a bounded number of buckets in one call. */
void table_trim(struct table *t);

/* A walk in steps. Between steps elements may come and go, and the table may change its size. {0} begins a walk. */
struct table_walk {
    uint32_t size; /* a power of two, at most the table's size at the beginning */
    uint32_t next; /* the hashes modulo `size` up to here have been visited */
};

/* Calls `fn` for some more elements, a few more than `max` at most. An element that stays in the table is visited
 * exactly once, others at most once. Returns whether there may be more. `fn` must not change the table. */
bool table_walk_step(const struct table *t, struct table_walk *walk, uint32_t max,
                     void (*fn)(void *arg, struct table_link *link), void *arg);

/* The bucket of a hash; while it does not exist, the bucket from which it will be split. */
static inline uint32_t table_bucket(const struct table *t, uint64_t hash) {
    uint32_t bucket = (uint32_t)hash & t->mask;
    return bucket < t->size ? bucket : bucket & t->mask >> 1;
}

/* The first element that may have that hash, or NULL. */
static inline struct table_link *table_chain(const struct table *t, uint64_t hash) {
    return t->buckets[table_bucket(t, hash)];
}

static inline void table_insert(struct table *t, struct table_link *link, uint64_t hash) {
    invariant_debug(t->size > 0 && t->size > t->mask / 2 && t->size - 1 <= t->mask, "%u buckets, mask %u", t->size,
                    t->mask);
    if (t->count >= t->size)
        table_grow(t);
    struct table_link **bucket = &t->buckets[table_bucket(t, hash)];
    link->next = *bucket;
    *bucket = link;
    t->count++;
}

/* Removes an element, which must be in the table. */
static inline void table_remove(struct table *t, struct table_link *link, uint64_t hash) {
    invariant_debug(t->count > 0, "an element leaves an empty table");
    struct table_link **at = &t->buckets[table_bucket(t, hash)];
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    t->count--;
}
