/*
 * Output buffers: chains of chunks that are filled at the tail and written from the head.
 *
 *      head                                    tail
 *      chunk ─────────> chunk ─────────> chunk
 *      |##sent##|..unsent..|  |..unsent..|     |..unsent..|  room  |
 *
 * A chunk whose bytes are all sent goes back to its pool, unless somebody holds a reference: a
 * connection to a node keeps the bytes of each request until its reply is there (a redirect sends
 * them again), and it can tell from them whether any byte of a request has left (iobuf_sent).
 *
 * Pools belong to one thread. This file knows sockets only as a descriptor to writev.
 */
#ifndef LOCKKEEPER_BASE_IOBUF_H
#define LOCKKEEPER_BASE_IOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "proxy/base/list.h"

/* The usual size of a chunk's data; a larger piece that has to stay in one gets a chunk of its own. */
#define IOBUF_CHUNK ((size_t)16 * 1024)

struct chunk {
    struct list_node link; /* in its iobuf; alone once it was detached */
    struct chunk_pool *pool;
    uint32_t refs; /* holders besides the iobuf */
    bool linked;   /* still in an iobuf */
    bool secret;   /* its bytes are overwritten before it is used again */
    size_t cap, used, sent;
    char data[];
};

struct chunk_pool {
    struct list_node free; /* chunks of IOBUF_CHUNK */
    size_t free_count;
    size_t free_least;  /* the fewest that were free since chunk_pool_shrink */
    size_t free_max;    /* more than so many are given back to malloc */
    size_t total_bytes; /* in use and free */
};

struct iobuf {
    struct list_node chunks;
    struct chunk_pool *pool;
    size_t unsent; /* bytes not written yet */
};

void chunk_pool_init(struct chunk_pool *pool, size_t free_max);
/* Gives malloc the chunks that nobody has needed since the last call; to be called now and then. */
void chunk_pool_shrink(struct chunk_pool *pool);
/* Frees the pool's unused chunks. Chunks still in use must be released before. */
void chunk_pool_clear(struct chunk_pool *pool);

/* Makes an empty buffer of a pool's chunks; the pool is borrowed and outlives it. */
void iobuf_init(struct iobuf *b, struct chunk_pool *pool);
/* Drops all bytes; referenced chunks live on until they are released. */
void iobuf_clear(struct iobuf *b);

/* The last chunk where it has room for `len` bytes, else NULL. */
static inline struct chunk *iobuf_room(const struct iobuf *b, size_t len) {
    if (list_empty(&b->chunks))
        return NULL;
    struct chunk *c = LIST_ENTRY(b->chunks.prev, struct chunk, link);
    return c->cap - c->used >= len ? c : NULL;
}

/* A chunk at the end with room for `len` bytes, made if there is none: what goes there stays in one piece. */
struct chunk *iobuf_make_room(struct iobuf *b, size_t len);
/* Marks the bytes appended last as secret: see chunk. */
void iobuf_secret(struct iobuf *b);
void iobuf_append_spread(struct iobuf *b, const char *data, size_t len);

/* Most replies have four to eight bytes (+OK, :1): no call for those. Without bytes `from` may be NULL, which memcpy
 * may not be given. */
static inline void iobuf_copy(char *to, const char *from, size_t len) {
    uint32_t head, tail;
    if (len - sizeof(head) > sizeof(tail)) {
        if (len > 0)
            memcpy(to, from, len);
        return;
    }
    memcpy(&head, from, sizeof(head));
    memcpy(&tail, from + len - sizeof(tail), sizeof(tail));
    memcpy(to, &head, sizeof(head));
    memcpy(to + len - sizeof(tail), &tail, sizeof(tail));
}

/* Appends bytes, which are copied and may be spread over chunks. */
static inline void iobuf_append(struct iobuf *b, const void *data, size_t len) {
    struct chunk *c = iobuf_room(b, len);
    if (!c) {
        iobuf_append_spread(b, data, len);
        return;
    }
    iobuf_copy(c->data + c->used, data, len);
    c->used += len;
    b->unsent += len;
}

/* Makes room for `len` bytes in one piece at the tail; the caller fills it and calls iobuf_commit with as many bytes as
 * were written to it, at most `len`. */
char *iobuf_reserve(struct iobuf *b, size_t len);
void iobuf_commit(struct iobuf *b, size_t len);

/* Appends bytes in one piece and returns where they are. *holder is a reference to their chunk,
 * to be given back with chunk_release. */
static inline char *iobuf_append_held(struct iobuf *b, const void *data, size_t len, struct chunk **holder) {
    struct chunk *c = iobuf_room(b, len);
    if (!c)
        c = iobuf_make_room(b, len);
    char *at = memcpy(c->data + c->used, data, len);
    c->used += len;
    b->unsent += len;
    c->refs++;
    *holder = c;
    return at;
}

/* Takes back a chunk that neither a buffer nor a holder needs. */
void chunk_recycle(struct chunk *c);
static inline void chunk_release(struct chunk *holder) {
    if (--holder->refs == 0 && !holder->linked)
        chunk_recycle(holder);
}

/* Whether any byte at or after `bytes` (inside the chunk) has been written. */
static inline bool iobuf_sent(const struct chunk *holder, const char *bytes) {
    return holder->data + holder->sent > bytes;
}

/* Shows the unsent bytes from the head on, up to `max` of them in one piece: *at is where they are, in a chunk or
 * copied to `copy` (room for max). At least one byte has to be unsent. Returns how many. */
size_t iobuf_peek(const struct iobuf *b, char *copy, size_t max, const char **at);
/* Notes that the first n unsent bytes have been written. */
void iobuf_skip(struct iobuf *b, size_t n);

/* Writes as much as the socket takes. Returns the bytes written (0 where the socket is full, or
 * nothing is to be written), or -1 with errno where the connection is broken. */
ssize_t iobuf_write(struct iobuf *b, int fd);

#endif
