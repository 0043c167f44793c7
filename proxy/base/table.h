/*
 * Intrusive hash tables that grow with what is in them, a bucket at a time, so that no insertion moves more than the
 * elements of one: linear hashing (Litwin, "Linear hashing: a new tool for file and table addressing", VLDB 1980).
 *
 * An element embeds a struct table_link and is found again with LIST_ENTRY (proxy/base/list.h). The caller knows what
 * is equal, and walks the chain of a hash:
 *
 *      for (struct table_link *it = table_chain(t, hash); it; it = it->next)
 *
 * The table stores no hashes: it asks for an element's where it moves it. The low bits count.
 */
#ifndef LOCKKEEPER_BASE_TABLE_H
#define LOCKKEEPER_BASE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct table_link {
    struct table_link *next;
};

struct table {
    struct table_link **buckets;
    uint32_t size, count; /* buckets, elements */
    uint32_t mask; /* the bits of a hash that count: size is in (mask / 2, mask + 1], and there is room for mask + 1 */
    uint64_t (*hash_of)(const struct table_link *link);
};

/* Walks all elements, which may be removed meanwhile; the body must not leave by `break` and change the table's size.
 */
#define TABLE_FOREACH(it, t)                                                                                           \
    for (uint32_t it##_b = 0; it##_b < (t)->size; it##_b++)                                                            \
        for (struct table_link *it = (t)->buckets[it##_b], *it##_next = it ? it->next : it; it;                        \
             it = it##_next, it##_next = it ? it->next : it)

/* Makes an empty table. `hash_of` is asked for an element's hash where the table changes its size. */
void table_init(struct table *t, uint64_t (*hash_of)(const struct table_link *link));
/* Frees what the table has allocated. The elements are the caller's. */
void table_clear(struct table *t);
/* Adds a bucket; table_insert does so by itself. */
void table_grow(struct table *t);
/* Gives memory back where there are few elements: takes some buckets away, a bounded number in one call. */
void table_trim(struct table *t);

/* A walk in steps, between which elements may come and go and the table may change its size; {0} begins one. */
struct table_walk {
    uint32_t size; /* a power of two that the table's size did not exceed when it began */
    uint32_t next; /* hashes modulo that are gone through, from 0 */
};

/* Calls `fn` for some more elements, few more than `max`. Who is there all the time is met once, others once at most.
 * Returns whether there may be more. `fn` must not change the table. */
bool table_walk_step(const struct table *t, struct table_walk *walk, uint32_t max,
                     void (*fn)(void *arg, struct table_link *link), void *arg);

/* The bucket of a hash: one that is not there yet is still a part of the one that it will be split from. */
static inline uint32_t table_bucket(const struct table *t, uint64_t hash) {
    uint32_t bucket = (uint32_t)hash & t->mask;
    return bucket < t->size ? bucket : bucket & t->mask >> 1;
}

/* The first element that may have that hash, or NULL. */
static inline struct table_link *table_chain(const struct table *t, uint64_t hash) {
    return t->buckets[table_bucket(t, hash)];
}

static inline void table_insert(struct table *t, struct table_link *link, uint64_t hash) {
    if (t->count >= t->size)
        table_grow(t);
    struct table_link **bucket = &t->buckets[table_bucket(t, hash)];
    link->next = *bucket;
    *bucket = link;
    t->count++;
}

/* Takes an element out that is in the table. */
static inline void table_remove(struct table *t, struct table_link *link, uint64_t hash) {
    struct table_link **at = &t->buckets[table_bucket(t, hash)];
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    t->count--;
}

#endif
