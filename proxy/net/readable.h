/*
 * Connections that became readable, each called in its turn: libev calls the last first.
 *
 *      the kernel: a b c ──> libev's callbacks: c b a ── readable_push ──> [c b a] ── from its end ──> a b c
 *
 * So what one client sent before another does reaches a node first, as it does where both are the node's own clients.
 * The walk follows all other callbacks of the turn but those of a lower priority than READABLE_PRIORITY.
 *
 * Knows no descriptors and no reading. One for each loop.
 */
#ifndef LOCKKEEPER_NET_READABLE_H
#define LOCKKEEPER_NET_READABLE_H

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
    struct ev_check walk; /* never started: it is fed an event */
    struct readable_entry *entries;
    size_t count, cap;
};

/* Prepares the queue of a loop, which is borrowed. */
void readable_init(struct readable *r, struct ev_loop *loop);
/* Frees the queue: nobody is called any more. */
void readable_clear(struct readable *r);

void readable_grow(struct readable *r);

/* For a watcher's own callback: `fn` is called later in this turn, unless the watcher has stopped watching EV_READ by
 * then. `io` is borrowed, and its memory has to last until the turn's ev_prepare, also where it has been stopped. */
static inline void readable_push(struct readable *r, struct ev_io *io, readable_fn fn) {
    if (r->count == r->cap)
        readable_grow(r);
    r->entries[r->count++] = (struct readable_entry){io, fn};
    if (r->count == 1)
        ev_feed_event(r->loop, &r->walk, EV_CUSTOM);
}

#endif
