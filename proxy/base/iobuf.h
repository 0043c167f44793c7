/*
 * Output buffers: chains of chunks that are filled at the tail and written from the head.
 *
 *      head                                    tail
 *      chunk ─────────> chunk ─────────> chunk
 *      |##sent##|..unsent..|  |..unsent..|     |..unsent..|  room  |
 *
 * A chunk whose bytes are all sent goes back to its pool, unless a reference is held: a connection to a node holds the
 * bytes of each request until the reply has come, since a redirect sends them again. Pools belong to one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "proxy/base/list.h"

/* The usual size of a chunk's data. A larger piece that must stay contiguous gets a chunk of its size. */
#define IOBUF_CHUNK ((size_t)16 * 1024)

struct chunk {
    struct list_node link; /* in its iobuf; alone once detached */
    struct chunk_pool *pool;
    uint32_t refs; /* references besides the iobuf's */
    bool linked;   /* still in an iobuf */
    bool secret;   /* its bytes are overwritten before the chunk is used again */
    size_t cap, used, sent;
    char data[];
};

struct chunk_pool {
    struct list_node free; /* chunks of IOBUF_CHUNK */
    size_t free_count;
    size_t free_least;  /* the smallest number of free chunks since chunk_pool_shrink */
    size_t free_max;    /* further chunks are given back to malloc */
    size_t total_bytes; /* in use and free */
};

struct iobuf {
    struct list_node chunks;
    struct chunk_pool *pool;
    size_t unsent; /* bytes not written yet */
};

void chunk_pool_init(struct chunk_pool *pool, size_t free_max);
/* Gives chunks that were free all the time since the last call back to malloc; to be called now and then. */
void chunk_pool_shrink(struct chunk_pool *pool);
/* Frees the pool's unused chunks. Chunks still in use must be released before. */
void chunk_pool_clear(struct chunk_pool *pool);

/* Makes an empty buffer that takes chunks from the pool; the pool is borrowed and must outlive it. */
void iobuf_init(struct iobuf *b, struct chunk_pool *pool);
/* Drops all bytes; referenced chunks live on until they are released. */
void iobuf_clear(struct iobuf *b);

/* The last chunk if it has room for `len` bytes, else NULL. */
static inline struct chunk *iobuf_room(const struct iobuf *b, size_t len) {
    if (list_empty(&b->chunks))
        return NULL;
    struct chunk *c = LIST_ENTRY(b->chunks.prev, struct chunk, link);
    return c->cap - c->used >= len ? c : NULL;
}

/* A chunk at the end with room for `len` bytes, created if needed: bytes appended to it are contiguous. */
struct chunk *iobuf_make_room(struct iobuf *b, size_t len);
void iobuf_append_spread(struct iobuf *b, const char *data, size_t len);

/* Copies without a call of memcpy if there are four to eight bytes, as in most replies (+OK, :1). If len is 0, `from`
 * may be NULL, which memcpy does not permit. */
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

/* Appends a copy of the bytes, which may be split over chunks. */
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

/* Appends a password, contiguously: see chunk. */
void iobuf_append_secret(struct iobuf *b, const void *data, size_t len);

/* Appends bytes contiguously and returns where they are. *holder is a reference to their chunk; the caller gives it
 * back with chunk_release. */
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

/* Frees or reuses a chunk that no buffer and no reference needs. */
void chunk_recycle(struct chunk *c);
static inline void chunk_release(struct chunk *holder) {
    if (--holder->refs == 0 && !holder->linked)
        chunk_recycle(holder);
}

/* Whether any byte at or after `bytes` (inside the chunk) has been written. */
static inline bool iobuf_sent(const struct chunk *holder, const char *bytes) {
    return holder->data + holder->sent > bytes;
}

/* Shows up to `max` unsent bytes from the head, contiguously: *at points into a chunk or to `copy`, of `max` bytes.
 * At least one byte must be unsent. Returns how many bytes are shown. */
size_t iobuf_peek(const struct iobuf *b, char *copy, size_t max, const char **at);
/* Notes that the first n unsent bytes have been written. */
void iobuf_skip(struct iobuf *b, size_t n);

/* Writes as much as the socket takes. Returns the bytes written (0 if the socket is full, or nothing is to be written),
 * or -1 with errno if the connection is broken. */
ssize_t iobuf_write(struct iobuf *b, int fd);
