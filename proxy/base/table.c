/* How hash tables grow and shrink. */
#include "proxy/base/table.h"

#include "parser/invariant.h"
#include "proxy/base/memory.h"

enum {
    FIRST_SIZE = 16,
    SPARSE = 8,      /* buckets per element above which the table is trimmed */
    TRIM_STEP = 4096 /* buckets removed in one call */
};

void table_init(struct table *t, uint64_t (*hash_of)(const struct table_link *link)) {
    *t = (struct table){.size = FIRST_SIZE, .mask = FIRST_SIZE - 1, .hash_of = hash_of};
    t->buckets = memory_zalloc(FIRST_SIZE * sizeof(struct table_link *));
}

void table_clear(struct table *t) {
    invariant(t->size == 0 || t->buckets, "%u buckets are nowhere", t->size);
    memory_free(t->buckets);
    *t = (struct table){.size = 0};
}

static void make_room(struct table *t, uint32_t mask) {
    invariant((mask & (mask + 1)) == 0 && t->size <= mask + 1, "mask %u for %u buckets", mask, t->size);
    t->mask = mask;
    t->buckets = memory_realloc(t->buckets, ((size_t)mask + 1) * sizeof(struct table_link *));
}

void table_grow(struct table *t) {
    if (t->size > t->mask)
        make_room(t, t->mask * 2 + 1);
    uint32_t added = t->size, split = table_bucket(t, added);
    invariant(split < added && added <= t->mask, "bucket %u is split from bucket %u", added, split);
    t->buckets[added] = NULL;
    for (struct table_link **at = &t->buckets[split], *it; (it = *at);) {
        if (((uint32_t)t->hash_of(it) & t->mask) != added) {
            at = &it->next;
            continue;
        }
        *at = it->next;
        it->next = t->buckets[added];
        t->buckets[added] = it;
    }
    t->size++;
}

void table_trim(struct table *t) {
    for (uint32_t done = 0; done < TRIM_STEP && t->size > FIRST_SIZE && (uint64_t)t->count * SPARSE < t->size; done++) {
        struct table_link *last = t->buckets[--t->size];
        struct table_link **end = &t->buckets[table_bucket(t, t->size)];
        invariant(table_bucket(t, t->size) < t->size, "bucket %u goes into itself", t->size);
        while (*end)
            end = &(*end)->next;
        *end = last;
        if (t->size == t->mask / 2 + 1)
            make_room(t, t->mask / 2);
    }
}

/* Visits the elements whose hash is `rest` modulo `size`. In a table smaller than `size` they share one bucket with
 * others; else they are in one or several buckets of their own. */
static uint32_t walk_rest(const struct table *t, uint32_t size, uint32_t rest,
                          void (*fn)(void *arg, struct table_link *link), void *arg) {
    uint32_t met = 0;
    for (uint64_t b = table_bucket(t, rest); b < t->size; b += size)
        for (struct table_link *it = t->buckets[b]; it; it = it->next, met++)
            if (t->size >= size || (t->hash_of(it) & (size - 1)) == rest)
                fn(arg, it);
    return met;
}

bool table_walk_step(const struct table *t, struct table_walk *walk, uint32_t max,
                     void (*fn)(void *arg, struct table_link *link), void *arg) {
    if (walk->size == 0)
        walk->size = t->mask + 1;
    invariant((walk->size & (walk->size - 1)) == 0 && walk->next <= walk->size, "a walk at %u of %u", walk->next,
              walk->size);
    for (uint32_t done = 0; done < max && walk->next < walk->size; done++)
        done += walk_rest(t, walk->size, walk->next++, fn, arg);
    return walk->next < walk->size;
}
