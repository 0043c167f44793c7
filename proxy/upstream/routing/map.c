/*
 * The slot map of a cluster: which node serves which slot, and the list of masters that follows from it. It is an array
 * of pointers, so that routing is one load. A standalone has no map and one master; so has an upstream behind
 * Sentinels, once the master is known.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/routing/routing.h"

static int by_address(const void *a, const void *b) {
    return strcmp((*(struct upstream_node *const *)a)->address, (*(struct upstream_node *const *)b)->address);
}

/* Lists the masters in the order of their addresses, the same in every thread and every proxy. */
static void list_masters(struct upstream *u) {
    size_t count = 0;
    LIST_FOREACH(it, &u->nodes)
    count += LIST_ENTRY(it, struct upstream_node, link)->slots > 0;
    u->masters = memory_realloc(u->masters, count * sizeof(struct upstream_node *));
    u->master_count = count;
    size_t i = 0;
    LIST_FOREACH(it, &u->nodes) {
        struct upstream_node *n = LIST_ENTRY(it, struct upstream_node, link);
        if (n->slots > 0)
            u->masters[i++] = n;
    }
    invariant(i == count, "%zu masters of %zu", i, count);
    qsort(u->masters, count, sizeof(struct upstream_node *), by_address);
}

/* When the map of a thread last changed. Each thread has its own map; a change in one is a hint for the others. */
static atomic_int_fast64_t changed_ms;

int64_t map_changed_ms(void) {
    return atomic_load_explicit(&changed_ms, memory_order_relaxed);
}

static void map_changed(struct upstream *u) {
    u->epoch++;
    atomic_store_explicit(&changed_ms, clock_ms(), memory_order_relaxed);
    upstream_may_forget(u);
}

void map_move(struct upstream *u, unsigned slot, struct upstream_node *to) {
    invariant(slot < SLOT_COUNT && to, "slot %u", slot);
    invariant(!u->slots[slot] || u->slots[slot]->slots > 0, "the node of slot %u serves none", slot);
    struct upstream_node *from = u->slots[slot];
    if (from == to)
        return;
    if (from)
        from->slots--;
    else
        u->covered++;
    u->slots[slot] = to;
    to->slots++;
    to->served = true;
    u->epoch++;
    invariant(u->covered <= SLOT_COUNT && to->slots <= u->covered, "%u slots of %u are at a node", to->slots,
              u->covered);
    if (to->slots == 1 || (from && from->slots == 0))
        list_masters(u);
}

bool map_replace(struct upstream *u, struct upstream_node *const *slots) {
    const size_t size = SLOT_COUNT * sizeof(struct upstream_node *);
    if (memcmp(u->slots, slots, size) == 0)
        return false;
    memcpy(u->slots, slots, size);
    LIST_FOREACH(it, &u->nodes)
    LIST_ENTRY(it, struct upstream_node, link)->slots = 0;
    u->covered = 0;
    for (unsigned i = 0; i < SLOT_COUNT; i++) {
        if (slots[i]) {
            slots[i]->slots++;
            slots[i]->served = true;
            u->covered++;
        }
    }
    map_changed(u);
    invariant(u->covered <= SLOT_COUNT, "%u slots are served", u->covered);
    list_masters(u);
    return true;
}

bool map_replace_master(struct upstream *u, struct upstream_node *n) {
    invariant(!u->slots && n, "a cluster has no one master");
    struct upstream_node *old = upstream_master(u, 0);
    if (old == n)
        return false;
    u->masters = memory_realloc(u->masters, sizeof(struct upstream_node *));
    u->masters[0] = n;
    u->master_count = 1;
    u->covered = n->slots = SLOT_COUNT;
    map_changed(u);
    if (old) {
        old->slots = 0;
        conn_close_all(old, CONN_REPLACED, "another node is the master now");
    }
    return true;
}

void upstream_switch(struct upstream *u, struct upstream_node *n) {
    invariant(!u->topology, "a node is chosen beside Sentinels");
    (void)map_replace_master(u, n);
}

bool upstream_is_cluster(const struct upstream *u) {
    return u->slots != NULL;
}

bool upstream_has_topology(const struct upstream *u) {
    return u->topology != NULL;
}

uint64_t upstream_epoch(const struct upstream *u) {
    return u->epoch;
}

unsigned upstream_slots_covered(const struct upstream *u) {
    return u->covered;
}

uint64_t upstream_map_print(struct upstream *u) {
    if (!u->slots || u->print_epoch == u->epoch + 1)
        return u->print;
    uint64_t print = 0;
    const struct upstream_node *last = NULL;
    for (uint64_t slot = 0; slot < SLOT_COUNT; slot++) {
        const struct upstream_node *n = u->slots[slot];
        if (n == last)
            continue;
        uint64_t mixed = (print ^ (n ? n->hash : 0) ^ slot << 32) * 0x9e3779b97f4a7c15u;
        print = mixed ^ mixed >> 29;
        last = n;
    }
    u->print = print;
    u->print_epoch = u->epoch + 1;
    return print;
}

size_t upstream_master_count(const struct upstream *u) {
    return u->master_count;
}

struct upstream_node *upstream_master(const struct upstream *u, size_t i) {
    return i < u->master_count ? u->masters[i] : NULL;
}

int upstream_slot_of_node(const struct upstream *u, const struct upstream_node *n) {
    int slot = 0;
    while (u->slots && slot < SLOT_COUNT && u->slots[slot] != n)
        slot++;
    return slot < SLOT_COUNT ? slot : SLOT_NONE;
}

struct upstream_node *upstream_node_of_slot(const struct upstream *u, int slot) {
    if (!u->slots)
        return upstream_master(u, 0);
    return slot >= 0 && slot < SLOT_COUNT ? u->slots[slot] : NULL;
}
