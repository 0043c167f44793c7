/* The readable connections of one turn, walked back to front. See readable.h for the drawing. */
#include "proxy/net/readable.h"

#include "parser/invariant.h"
#include "proxy/base/memory.h"

enum { READABLE_START = 64, READABLE_KEPT = 1024 }; /* entries */

static void readable_walk(struct ev_loop *loop, struct ev_check *walk, int events) {
    struct readable *r = walk->data;
    while (r->count > 0) {
        struct readable_entry e = r->entries[--r->count];
        invariant_debug(e.io && e.fn, "entry %zu has no reader", r->count);
        if (ev_is_active(e.io) && (e.io->events & EV_READ))
            e.fn(e.io);
    }
    if (r->cap > READABLE_KEPT)
        readable_clear(r);
}

void readable_init(struct readable *r, struct ev_loop *loop) {
    r->loop = loop;
    r->entries = NULL;
    r->count = r->cap = 0;
    ev_check_init(&r->walk, readable_walk);
    ev_set_priority(&r->walk, READABLE_PRIORITY);
    r->walk.data = r;
}

void readable_clear(struct readable *r) {
    ev_clear_pending(r->loop, &r->walk);
    memory_free(r->entries);
    r->entries = NULL;
    r->count = r->cap = 0;
}

void readable_grow(struct readable *r) {
    r->cap = r->cap ? r->cap * 2 : READABLE_START;
    r->entries = memory_realloc(r->entries, r->cap * sizeof(*r->entries));
}
