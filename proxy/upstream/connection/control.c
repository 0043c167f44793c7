/*
 * hiredis on the proxy's loop. The hiredis of older systems has no TLS. So it gets one end of a socket pair in place of
 * the node's connection; this file is its event adapter, and copies the bytes.
 *
 *      hiredis ── obuf ──> pair ──> out ── tls_write ──> node
 *          ^── redisAsyncHandleRead ── pair <── tls_read ──┘
 *
 * Bytes are copied in and out of the pair in one step, so it never holds more than a few kilobytes. A TLS error is set
 * as the context's error, as if hiredis had found it.
 *
 * hiredis aborts the process (assert) on an unrequested reply, or on a malformed published message: a hostile Sentinel
 * or node could end the proxy. So this file also creates hiredis's reply objects, and ends the connection before that.
 */
#include "proxy/upstream/connection/control.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include <hiredis/adapters/libev.h>

enum { CARRY_BYTES = 8 * 1024 }; /* less than redisAsyncHandleRead reads at once */

struct control {
    struct upstream *u;
    redisAsyncContext *ctx;
    struct tls *tls; /* NULL: the socket is connecting */
    bool secured;    /* the handshake is over */
    bool *gone;      /* set to true when the context is freed; NULL: not needed */
    int node;        /* the connection to the node */
    int inner;       /* this file's end of the pair */
    char host[ADDRESS_MAX];
    ev_io readable, writable;
    ev_timer flush; /* without delay: hiredis has something to write */
    struct iobuf out;
};

/* ---- what a node may send ------------------------------------------------------------------------------ */

/* hiredis allocates all elements of an array once it knows their number. A cluster has at most 16384 slots. */
enum { MESSAGE_ELEMENTS = 3, ELEMENTS_MAX = 16384, NESTED_MAX = 1024 };

#if HIREDIS_MAJOR >= 1
typedef size_t array_size;
#else
typedef int array_size;
#endif

static pthread_once_t guarded_once = PTHREAD_ONCE_INIT;
static redisReplyObjectFunctions plain, guarded;

static bool is_word(const char *text, size_t len, const char *word) {
    return len == strlen(word) && memcmp(text, word, len) == 0;
}

/* Whether this element of a message is valid: "subscribe", CHANNEL, number or "message", CHANNEL, text. */
static bool message_part_ok(const redisReadTask *task, const char *text, size_t len) {
    if (task->type != REDIS_REPLY_STRING)
        return task->idx > 1 && task->type == REDIS_REPLY_INTEGER;
    if (task->idx == 0)
        return is_word(text, len, "subscribe") || is_word(text, len, "message");
    return task->idx > 1 || is_word(text, len, CONTROL_CHANNEL);
}

/* Whether the object may be created. `text` is for strings, `elements` for arrays. */
static bool object_ok(const redisReadTask *task, const char *text, size_t len, int64_t elements) {
    const redisAsyncContext *ctx = task->privdata;
    if (elements > (task->parent ? NESTED_MAX : ELEMENTS_MAX))
        return false;
    if (task->type > REDIS_REPLY_ERROR) /* the proxy has not sent HELLO 3, so RESP3 types are invalid */
        return false;
    if (ctx->replies.head) /* a request waits for it */
        return true;
    bool hears = ctx->c.flags & REDIS_SUBSCRIBED;
    if (!task->parent)
        return task->type == REDIS_REPLY_ERROR ||
               (hears && task->type == REDIS_REPLY_ARRAY && elements == MESSAGE_ELEMENTS);
    return hears && !task->parent->parent && message_part_ok(task, text, len);
}

/* Makes a string if it is permitted, else returns NULL, which hiredis takes for lack of memory; the proxy aborts when
 * memory runs out, so control_error can tell. */
static void *create_string(const redisReadTask *task, char *text, size_t len) {
    return object_ok(task, text, len, 0) ? plain.createString(task, text, len) : NULL;
}

static void *create_array(const redisReadTask *task, array_size elements) {
    return object_ok(task, "", 0, (int64_t)elements) ? plain.createArray(task, elements) : NULL;
}

static void *create_integer(const redisReadTask *task, long long value) {
    return object_ok(task, "", 0, 0) ? plain.createInteger(task, value) : NULL;
}

static void *create_nil(const redisReadTask *task) {
    return object_ok(task, "", 0, 0) ? plain.createNil(task) : NULL;
}

#if HIREDIS_MAJOR >= 1
static void *create_double(const redisReadTask *task, double value, char *text, size_t len) {
    return NULL;
}

static void *create_bool(const redisReadTask *task, int value) {
    return NULL;
}
#endif

static void make_guarded(void) {
    redisReader *reader = redisReaderCreate();
    plain = guarded = *reader->fn;
    redisReaderFree(reader);
    guarded.createString = create_string;
    guarded.createArray = create_array;
    guarded.createInteger = create_integer;
    guarded.createNil = create_nil;
#if HIREDIS_MAJOR >= 1
    guarded.createDouble = create_double;
    guarded.createBool = create_bool;
#endif
}

const char *control_error(const redisAsyncContext *ctx) {
    if (ctx->err == REDIS_ERR_OOM)
        return "it sent a reply without a request";
    return ctx->err && ctx->errstr && *ctx->errstr ? ctx->errstr : "the connection was lost";
}

/* Frees what belongs to a context when hiredis frees the context. */
static void on_cleanup(void *arg) {
    struct control *c = arg;
    if (c->gone)
        *c->gone = true;
    ev_io_stop(c->u->loop, &c->readable);
    ev_io_stop(c->u->loop, &c->writable);
    ev_timer_stop(c->u->loop, &c->flush);
    tls_free(c->tls);
    close(c->node);
    close(c->inner);
    iobuf_clear(&c->out);
    memory_free(c);
}

/* Ends the context with this error: its callbacks are called without a reply. */
static void control_fail(struct control *c, const char *format, const char *reason) {
    redisAsyncContext *ctx = c->ctx;
    ctx->c.err = REDIS_ERR_OTHER;
    snprintf(ctx->c.errstr, sizeof(ctx->c.errstr), format, reason);
    ctx->err = ctx->c.err;
    ctx->errstr = ctx->c.errstr;
    redisAsyncFree(ctx);
}

/* ---- bytes ----------------------------------------------------------------------------------------- */

static void write_out(struct control *c) {
    invariant(c->tls && c->secured, "bytes are written before the handshake is over");
    if (tls_write(c->tls, &c->out) < 0)
        iobuf_clear(&c->out); /* reading finds the reason, after what the node has sent before the end */
    if (c->out.unsent > 0)
        ev_io_start(c->u->loop, &c->writable);
    else
        ev_io_stop(c->u->loop, &c->writable);
}

static void on_flush(struct ev_loop *loop, ev_timer *timer, int events) {
    struct control *c = timer->data;
    char bytes[CARRY_BYTES];
    ssize_t n;
    bool gone = false;
    c->gone = &gone;
    redisAsyncHandleWrite(c->ctx);
    if (gone)
        return;
    c->gone = NULL;
    while ((n = read(c->inner, bytes, sizeof(bytes))) > 0)
        iobuf_append(&c->out, bytes, (size_t)n);
    write_out(c);
}

static void on_readable(struct ev_loop *loop, ev_io *io, int events) {
    struct control *c = io->data;
    char bytes[CARRY_BYTES];
    bool gone = false;
    ssize_t n;
    while ((n = tls_read(c->tls, bytes, sizeof(bytes))) > 0) {
        if (write(c->inner, bytes, (size_t)n) != n) {
            control_fail(c, "%s", strerror(errno));
            return;
        }
        c->gone = &gone;
        redisAsyncHandleRead(c->ctx);
        if (gone)
            return;
        c->gone = NULL;
    }
    if (n == 0)
        control_fail(c, "%s", "Server closed the connection");
    else if (errno != EAGAIN)
        control_fail(c, "TLS: %s", tls_error(c->tls));
}

static void on_secured(void *arg, const char *error) {
    struct control *c = arg;
    invariant(!c->secured && c->tls, "a handshake ends twice");
    if (error) {
        control_fail(c, "TLS: %s", error);
        return;
    }
    c->secured = true;
    ev_io_start(c->u->loop, &c->readable);
    tls_attach(c->tls, &c->readable);
    ev_timer_start(c->u->loop, &c->flush);
}

static void on_writable(struct ev_loop *loop, ev_io *io, int events) {
    struct control *c = io->data;
    int error = 0;
    socklen_t len = sizeof(error);
    if (c->secured) {
        write_out(c);
        return;
    }
    ev_io_stop(loop, io);
    if (getsockopt(c->node, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    if (error != 0) {
        control_fail(c, "%s", strerror(error));
        return;
    }
    c->tls = tls_new(c->u->config->tls, loop, c->node, c->host);
    tls_handshake(c->tls, on_secured, c);
}

/* ---- opening --------------------------------------------------------------------------------------- */

static void on_add_write(void *arg) {
    struct control *c = arg;
    if (c->secured)
        ev_timer_start(c->u->loop, &c->flush);
}

static void on_ignored(void *arg) {
}

/* Replaces the context's connection by one end of a pair, and takes the connection. */
static bool control_secure(struct upstream *u, redisAsyncContext *ctx, const struct address *at) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    int node = fcntl(ctx->c.fd, F_DUPFD_CLOEXEC, 0);
    bool swapped = node >= 0 && dup3(pair[0], ctx->c.fd, O_CLOEXEC) >= 0;
    int saved = errno;
    close(pair[0]);
    if (!swapped) {
        close(pair[1]);
        if (node >= 0)
            close(node);
        errno = saved;
        return false;
    }
    struct control *c = memory_zalloc(sizeof(*c));
    c->u = u;
    c->ctx = ctx;
    c->node = node;
    c->inner = pair[1];
    snprintf(c->host, sizeof(c->host), "%s", at->host);
    iobuf_init(&c->out, u->pool);
    ev_io_init(&c->readable, on_readable, node, EV_READ);
    ev_io_init(&c->writable, on_writable, node, EV_WRITE);
    ev_timer_init(&c->flush, on_flush, 0., 0.);
    c->readable.data = c->writable.data = c->flush.data = c;
    ev_io_start(u->loop, &c->writable);
    ctx->c.flags |= REDIS_CONNECTED;
    ctx->ev.data = c;
    ctx->ev.addRead = ctx->ev.delRead = ctx->ev.delWrite = on_ignored;
    ctx->ev.addWrite = on_add_write;
    ctx->ev.cleanup = on_cleanup;
    return true;
}

redisAsyncContext *control_connect(struct upstream *u, const struct address *at, const char *number, char *why,
                                   size_t size) {
    redisAsyncContext *ctx = redisAsyncConnect(number, at->port);
    if (!ctx || ctx->err) {
        snprintf(why, size, "%s", ctx ? ctx->errstr : "out of memory");
        if (ctx)
            redisAsyncFree(ctx);
        return NULL;
    }
    pthread_once(&guarded_once, make_guarded);
    ctx->c.reader->fn = &guarded; /* ends the connection on a reply or message that nothing asked for */
    ctx->c.reader->privdata = ctx;
    fcntl(ctx->c.fd, F_SETFD, FD_CLOEXEC);
    redisEnableKeepAlive(&ctx->c); /* the connection may be silent for months */
    bool attached = u->config->tls ? control_secure(u, ctx, at) : redisLibevAttach(u->loop, ctx) == REDIS_OK;
    if (attached)
        return ctx;
    snprintf(why, size, "%s", u->config->tls ? strerror(errno) : "out of memory");
    redisAsyncFree(ctx);
    return NULL;
}
