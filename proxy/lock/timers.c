/*
 * A binary heap of deadlines. Each timer knows its place, so that it can be moved or taken out at once. The work of a
 * tick is proportional to what is due. Knows nothing of what the timers are for.
 */
#include "parser/invariant.h"
#include "proxy/lock/ledger.h"

#include "proxy/base/memory.h"

static void put(struct timer_heap *h, uint32_t place, struct timer_slot slot) {
    h->slots[place] = slot;
    slot.timer->place = place;
}

static void sift_up(struct timer_heap *h, uint32_t place, struct timer_slot slot) {
    while (place > 1 && h->slots[place / 2].due_ms > slot.due_ms) {
        put(h, place, h->slots[place / 2]);
        place /= 2;
    }
    put(h, place, slot);
}

static void place_again(struct timer_heap *h, uint32_t place, struct timer_slot slot) {
    invariant_debug(place > 0 && place <= h->count, "a timer at %u of %u", place, h->count);
    if (place > 1 && h->slots[place / 2].due_ms > slot.due_ms) {
        sift_up(h, place, slot);
        return;
    }
    for (;;) {
        uint32_t child = 2 * place;
        if (child > h->count)
            break;
        if (child < h->count && h->slots[child + 1].due_ms < h->slots[child].due_ms)
            child++;
        if (h->slots[child].due_ms >= slot.due_ms)
            break;
        put(h, place, h->slots[child]);
        place = child;
    }
    put(h, place, slot);
}

static void take_out(struct timer_heap *h, struct timer *t) {
    uint32_t place = t->place;
    if (place == 0)
        return;
    t->place = 0;
    struct timer_slot last = h->slots[h->count--];
    invariant_debug(place <= h->count + 1 && h->count < UINT32_MAX, "a timer at %u of %u", place, h->count);
    if (last.timer != t)
        place_again(h, place, last);
    /* Gives back memory that only a burst of timers needed. */
    if (h->cap > 1024 && h->count < h->cap / 4) {
        h->cap /= 2;
        h->slots = memory_realloc(h->slots, ((size_t)h->cap + 1) * sizeof(*h->slots));
    }
}

void timer_set(struct timer_heap *h, struct timer *t, int64_t due_ms) {
    if (due_ms == NO_DEADLINE) {
        take_out(h, t);
        return;
    }
    struct timer_slot slot = {due_ms, t};
    if (t->place) {
        place_again(h, t->place, slot);
        return;
    }
    if (h->count == h->cap) {
        h->cap = h->cap ? h->cap + h->cap / 2 : 16;
        h->slots = memory_realloc(h->slots, ((size_t)h->cap + 1) * sizeof(*h->slots));
    }
    sift_up(h, ++h->count, slot);
}

struct timer *timer_due(struct timer_heap *h, int64_t now_ms) {
    if (h->count == 0 || h->slots[1].due_ms > now_ms)
        return NULL;
    struct timer *t = h->slots[1].timer;
    take_out(h, t);
    return t;
}

int64_t timer_next(const struct timer_heap *h) {
    return h->count ? h->slots[1].due_ms : NO_DEADLINE;
}
