/* Sizes of hash tables. */
#include "proxy/base/table.h"

#include "proxy/base/memory.h"

enum { FIRST_SIZE = 16, SPARSE = 8 /* buckets an element */ };

void table_init(struct table *t, uint64_t (*hash_of)(const struct table_link *link)) {
    *t = (struct table){.size = FIRST_SIZE, .hash_of = hash_of};
    t->buckets = memory_zalloc(FIRST_SIZE * sizeof(struct table_link *));
}

void table_clear(struct table *t) {
    memory_free(t->buckets);
    *t = (struct table){.size = 0};
}

static void table_resize(struct table *t, uint32_t size) {
    struct table_link **buckets = memory_zalloc(size * sizeof(struct table_link *));
    TABLE_FOREACH(it, t) {
        struct table_link **bucket = &buckets[t->hash_of(it) & (size - 1)];
        it->next = *bucket;
        *bucket = it;
    }
    memory_free(t->buckets);
    t->buckets = buckets;
    t->size = size;
}

void table_grow(struct table *t) {
    table_resize(t, t->size * 2);
}

void table_trim(struct table *t) {
    if (t->size > FIRST_SIZE && t->count < t->size / SPARSE)
        table_resize(t, t->size / 2);
}

/* Elements whose hash is `rest` modulo walk->size are in one bucket of a table that is no larger, together with others,
 * and else in several. */
static uint32_t walk_rest(const struct table *t, uint32_t size, uint32_t rest,
                          void (*fn)(void *arg, struct table_link *link), void *arg) {
    uint32_t met = 0;
    for (uint64_t b = rest & (t->size - 1); b < t->size; b += size)
        for (struct table_link *it = t->buckets[b]; it; it = it->next, met++)
            if (t->size >= size || (t->hash_of(it) & (size - 1)) == rest)
                fn(arg, it);
    return met;
}

bool table_walk_step(const struct table *t, struct table_walk *walk, uint32_t max,
                     void (*fn)(void *arg, struct table_link *link), void *arg) {
    if (walk->size == 0)
        walk->size = t->size;
    for (uint32_t done = 0; done < max && walk->next < walk->size; done++)
        done += walk_rest(t, walk->size, walk->next++, fn, arg);
    return walk->next < walk->size;
}
