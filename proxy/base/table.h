/*
 * Intrusive hash tables that grow with what is in them.
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

#include <stdint.h>

struct table_link {
    struct table_link *next;
};

struct table {
    struct table_link **buckets;
    uint32_t size, count; /* buckets, a power of two; elements */
    uint64_t (*hash_of)(const struct table_link *link);
};

/* Walks all elements, which may be removed meanwhile; the body must not leave by `break` and change the table's size.
 */
#define TABLE_FOREACH(it, t)                                                                                           \
    for (uint32_t it##_b = 0; it##_b < (t)->size; it##_b++)                                                            \
        for (struct table_link *it = (t)->buckets[it##_b], *it##_next = it ? it->next : it; it;                        \
             it = it##_next, it##_next = it ? it->next : it)

/* The bucket behind `bucket` on a walk that others' insertions and removals may interrupt at any time: beginning at 0,
 * until it is 0 again, it comes by all elements that were there throughout; twice where the table has become smaller
 * meanwhile. It counts in the bucket's number with its bits reversed, as Redis's SCAN does. */
uint32_t table_next_bucket(const struct table *t, uint32_t bucket);

/* Makes an empty table. `hash_of` is asked for an element's hash where the table changes its size. */
void table_init(struct table *t, uint64_t (*hash_of)(const struct table_link *link));
/* Frees what the table has allocated. The elements are the caller's. */
void table_clear(struct table *t);
/* Makes it twice as large; table_insert does so by itself. */
void table_grow(struct table *t);
/* Gives memory back where there are few elements: makes it half as large. */
void table_trim(struct table *t);

/* The first element that may have that hash, or NULL. */
static inline struct table_link *table_chain(const struct table *t, uint64_t hash) {
    return t->buckets[hash & (t->size - 1)];
}

static inline void table_insert(struct table *t, struct table_link *link, uint64_t hash) {
    if (t->count >= t->size)
        table_grow(t);
    struct table_link **bucket = &t->buckets[hash & (t->size - 1)];
    link->next = *bucket;
    *bucket = link;
    t->count++;
}

/* Takes an element out that is in the table. */
static inline void table_remove(struct table *t, struct table_link *link, uint64_t hash) {
    struct table_link **at = &t->buckets[hash & (t->size - 1)];
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    t->count--;
}

#endif
