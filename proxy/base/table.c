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

uint32_t table_next_bucket(const struct table *t, uint32_t bucket) {
    uint32_t bit = t->size >> 1;
    while (bucket & bit) {
        bucket ^= bit;
        bit >>= 1;
    }
    return bucket | bit;
}
