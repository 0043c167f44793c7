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

#include <stdbool.h>
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

/* Makes an empty table. `hash_of` is asked for an element's hash where the table changes its size. */
void table_init(struct table *t, uint64_t (*hash_of)(const struct table_link *link));
/* Frees what the table has allocated. The elements are the caller's. */
void table_clear(struct table *t);
/* Makes it twice as large; table_insert does so by itself. */
void table_grow(struct table *t);
/* Gives memory back where there are few elements: makes it half as large. */
void table_trim(struct table *t);

/* A walk in steps, between which elements may come and go and the table may change its size; {0} begins one. */
struct table_walk {
    uint32_t size, next; /* the table's when it began; hashes modulo that are gone through, from 0 */
};

/* Calls `fn` for some more elements, few more than `max`. Who is there all the time is met once, others once at most.
 * Returns whether there may be more. `fn` must not change the table. */
bool table_walk_step(const struct table *t, struct table_walk *walk, uint32_t max,
                     void (*fn)(void *arg, struct table_link *link), void *arg);

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
