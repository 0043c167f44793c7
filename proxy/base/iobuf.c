/* Chains of pooled chunks, written with writev. See iobuf.h for the drawing. */
#include "proxy/base/iobuf.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"

enum { IOBUF_IOV = 64 };

void chunk_pool_init(struct chunk_pool *pool, size_t free_max) {
    *pool = (struct chunk_pool){.free_max = free_max};
    list_init(&pool->free);
}

static void chunk_free(struct chunk *c) {
    invariant(!c->linked && c->refs == 0, "a chunk with %u references is freed", c->refs);
    invariant(c->pool->total_bytes >= c->cap, "the pool has %zu bytes, the chunk %zu", c->pool->total_bytes, c->cap);
    c->pool->total_bytes -= c->cap;
    memory_free(c);
}

void chunk_pool_shrink(struct chunk_pool *pool) {
    invariant(pool->free_least <= pool->free_count, "%zu were free at least, %zu are", pool->free_least,
              pool->free_count);
    for (; pool->free_least > 0; pool->free_least--) {
        chunk_free(LIST_SHIFT(&pool->free, struct chunk, link));
        pool->free_count--;
    }
    pool->free_least = pool->free_count;
}

void chunk_pool_clear(struct chunk_pool *pool) {
    for (struct chunk *c; (c = LIST_SHIFT(&pool->free, struct chunk, link));)
        chunk_free(c);
    pool->free_count = pool->free_least = 0;
}

void chunk_recycle(struct chunk *c) {
    if (c->linked || c->refs > 0)
        return;
    struct chunk_pool *pool = c->pool;
    if (c->secret)
        explicit_bzero(c->data, c->used);
    c->secret = false;
    if (c->cap == IOBUF_CHUNK && pool->free_count < pool->free_max) {
        list_prepend(&pool->free, &c->link);
        pool->free_count++;
        return;
    }
    chunk_free(c);
}

static void chunk_unlink(struct chunk *c) {
    invariant_debug(c->linked, "a chunk leaves a buffer in which it is not");
    list_remove(&c->link);
    c->linked = false;
    chunk_recycle(c);
}

void iobuf_init(struct iobuf *b, struct chunk_pool *pool) {
    *b = (struct iobuf){.pool = pool};
    list_init(&b->chunks);
}

void iobuf_clear(struct iobuf *b) {
    for (struct chunk *c; (c = LIST_FIRST(&b->chunks, struct chunk, link));)
        chunk_unlink(c);
    b->unsent = 0;
}

static __attribute__((noinline)) struct chunk *chunk_new(struct chunk_pool *pool, size_t cap) {
    struct chunk *c = memory_alloc(sizeof(*c) + cap);
    *c = (struct chunk){.pool = pool, .cap = cap};
    pool->total_bytes += cap;
    return c;
}

/* Puts a chunk with room for `need` bytes at the end. */
static struct chunk *iobuf_extend(struct iobuf *b, size_t need) {
    struct chunk_pool *pool = b->pool;
    struct chunk *c;
    if (need <= IOBUF_CHUNK && pool->free_count > 0) {
        c = LIST_ENTRY(list_shift(&pool->free), struct chunk, link);
        invariant_debug(c->refs == 0 && !c->linked && !c->secret, "a free chunk has %u references", c->refs);
        pool->free_count--;
        if (pool->free_least > pool->free_count)
            pool->free_least = pool->free_count;
        c->used = c->sent = 0;
    } else {
        c = chunk_new(pool, need > IOBUF_CHUNK ? need : IOBUF_CHUNK);
    }
    list_append(&b->chunks, &c->link);
    c->linked = true;
    return c;
}

struct chunk *iobuf_make_room(struct iobuf *b, size_t len) {
    struct chunk *c = iobuf_room(b, 0);
    invariant_debug(!c || c->cap - c->used < len, "the last chunk has room for %zu bytes", len);
    /* Otherwise a chunk that was reserved but never filled would stay in the chain with nothing to write. */
    if (c && c->used == 0)
        chunk_unlink(c);
    return iobuf_extend(b, len);
}

void iobuf_append_secret(struct iobuf *b, const void *data, size_t len) {
    struct chunk *holder;
    (void)iobuf_append_held(b, data, len, &holder);
    holder->secret = true;
    chunk_release(holder);
}

void iobuf_append_spread(struct iobuf *b, const char *p, size_t len) {
    struct chunk *c = iobuf_room(b, 0);
    b->unsent += len;
    while (len > 0) {
        if (!c || c->used == c->cap)
            c = iobuf_extend(b, IOBUF_CHUNK);
        size_t n = c->cap - c->used < len ? c->cap - c->used : len;
        memcpy(c->data + c->used, p, n);
        c->used += n;
        p += n;
        len -= n;
    }
}

size_t iobuf_peek(const struct iobuf *b, char *copy, size_t max, const char **at) {
    invariant(b->unsent > 0 && max > 0, "%zu bytes are unsent, %zu are asked for", b->unsent, max);
    const struct chunk *c = LIST_ENTRY(list_first(&b->chunks), struct chunk, link);
    size_t len = c->used - c->sent;
    if (len >= max || len == b->unsent) {
        *at = c->data + c->sent;
        return len < max ? len : max;
    }
    len = 0;
    LIST_EACH(it, &b->chunks, const struct chunk, link) {
        size_t n = it->used - it->sent < max - len ? it->used - it->sent : max - len;
        memcpy(copy + len, it->data + it->sent, n);
        len += n;
        if (len == max)
            break;
    }
    *at = copy;
    return len;
}

void iobuf_skip(struct iobuf *b, size_t n) {
    invariant_debug(n <= b->unsent, "%zu bytes were sent of %zu", n, b->unsent);
    b->unsent -= n;
    while (n > 0) {
        struct chunk *c = LIST_ENTRY(list_first(&b->chunks), struct chunk, link);
        size_t left = c->used - c->sent;
        invariant_debug(left > 0, "a chunk of which all was sent is at the head of %zu more bytes", n);
        size_t take = left < n ? left : n;
        c->sent += take;
        n -= take;
        if (c->sent == c->used)
            chunk_unlink(c);
    }
}

ssize_t iobuf_write(struct iobuf *b, int fd) {
    ssize_t total = 0;
    while (b->unsent > 0) {
        struct iovec iov[IOBUF_IOV];
        int n = 0;
        size_t want = 0;
        LIST_EACH(c, &b->chunks, struct chunk, link) {
            if (n == IOBUF_IOV)
                break;
            iov[n].iov_base = c->data + c->sent;
            iov[n].iov_len = c->used - c->sent;
            want += iov[n++].iov_len;
        }
        invariant_debug(want > 0, "%zu bytes are unsent, and no chunk has any", b->unsent);
        ssize_t done = n == 1 ? send(fd, iov[0].iov_base, iov[0].iov_len, 0) : writev(fd, iov, n);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                return total;
            return -1;
        }
        iobuf_skip(b, (size_t)done);
        total += done;
        if ((size_t)done < want)
            return total;
    }
    return total;
}
