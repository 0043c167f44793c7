/*
 * Connections that became readable, called in that order. libev calls the last one first.
 *
 *      the kernel: a b c ──> libev's callbacks: c b a ── readable_push ──> [c b a] ── from its end ──> a b c
 *
 * So if one client sends before another, its request reaches the node first, as it would without the proxy. The walk
 * comes after all other callbacks of the turn, except those of a lower priority than READABLE_PRIORITY.
 */
#pragma once

#include <ev.h>
#include <stddef.h>

enum { READABLE_PRIORITY = -1 };

typedef void (*readable_fn)(struct ev_io *io);

struct readable_entry {
    struct ev_io *io;
    readable_fn fn;
};

struct readable {
    struct ev_loop *loop;
    struct ev_check walk; /* never started: readable_push feeds it an event */
    struct readable_entry *entries;
    size_t count, cap;
};

/* Prepares the queue of a loop, which is borrowed. */
void readable_init(struct readable *r, struct ev_loop *loop);
/* Frees the queue; no function is called after that. */
void readable_clear(struct readable *r);

void readable_grow(struct readable *r);

/* For a watcher's own callback: calls `fn` later in this turn, unless the watcher has stopped watching EV_READ by then.
 * `io` is borrowed; its memory must last until the turn's ev_prepare, even if it was stopped. */
static inline void readable_push(struct readable *r, struct ev_io *io, readable_fn fn) {
    if (r->count == r->cap)
        readable_grow(r);
    r->entries[r->count++] = (struct readable_entry){io, fn};
    if (r->count == 1)
        ev_feed_event(r->loop, &r->walk, EV_CUSTOM);
}
