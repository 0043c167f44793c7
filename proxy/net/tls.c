/*
 * One TLS connection: handshake, reading and writing, and the reads and writes that OpenSSL needs in between.
 *
 *      tls_write:  iobuf, many chunks ── up to 16 KB gathered ──> SSL_write, a record ──> socket
 *      tls_read:   socket ──> SSL_read until the socket is empty or the caller's room is full
 *                                    └── bytes are left that the socket does not show: `again`
 *
 * If the socket takes only part of a record, OpenSSL keeps the record, and its bytes count as not written: the peer
 * can't decrypt a part. Renegotiation is off, so that writing never waits for reading.
 */
#include <errno.h>
#include <ev.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/net/tls_private.h"

enum { RECORD_MAX = 16 * 1024, ERROR_MAX = 240 };

struct tls {
    SSL *ssl; /* NULL: out of memory; the handshake will report it */
    struct ev_loop *loop;
    int fd;
    bool broken;    /* the connection can't be used any more */
    bool left;      /* the last read has left bytes unread */
    ev_io io;       /* the handshake's watcher; later for a read that must write first */
    ev_timer again; /* without delay: calls the reader in the next turn */
    ev_io *reader;  /* the owner's; NULL before tls_attach */
    char *error;    /* ERROR_MAX bytes, or NULL */
    void (*done)(void *arg, const char *error);
    void *arg;
};

/* ---- errors ---------------------------------------------------------------------------------------- */

static void fail(struct tls *t, const char *text) {
    t->broken = true;
    if (!t->error)
        t->error = memory_alloc(ERROR_MAX);
    snprintf(t->error, ERROR_MAX, "%s", text);
}

/* Composes the error text for a failed operation: `why` is from SSL_get_error, `code` is errno right after the call. */
static void explain(struct tls *t, int why, int code) {
    char text[ERROR_MAX], said[ERROR_MAX / 2];
    int reason = ERR_GET_REASON(ERR_peek_error());
    long verified = SSL_get_verify_result(t->ssl);
    tls_complaint(said, sizeof(said));
    if (why == SSL_ERROR_SYSCALL && !*said) {
        fail(t, code ? strerror(code) : "the other side closed the connection");
        return;
    }
    if (why == SSL_ERROR_ZERO_RETURN) {
        fail(t, "the other side closed the connection");
        return;
    }
    const char *more = "";
    if (verified != X509_V_OK)
        more = X509_verify_cert_error_string(verified);
    else if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST)
        more = "the other side does not speak TLS";
    snprintf(text, sizeof(text), "%s%s%s", *said ? said : "protocol error", *more ? ": " : "", more);
    fail(t, text);
}

const char *tls_error(const struct tls *t) {
    return t->error ? t->error : strerror(errno);
}

/* ---- life ------------------------------------------------------------------------------------------- */

static void on_again(struct ev_loop *loop, ev_timer *timer, int events);
static void on_io(struct ev_loop *loop, ev_io *io, int events);

static struct tls *tls_new(struct tls_context *context, struct ev_loop *loop, int fd, const char *host) {
    struct tls *t = memory_zalloc(sizeof(*t));
    t->loop = loop;
    t->fd = fd;
    t->ssl = tls_context_open(context, host);
    if (t->ssl && SSL_set_fd(t->ssl, fd) == 1)
        host ? SSL_set_connect_state(t->ssl) : SSL_set_accept_state(t->ssl);
    else
        fail(t, "OpenSSL is out of memory");
    ev_init(&t->io, on_io);
    ev_timer_init(&t->again, on_again, 0., 0.);
    t->io.data = t->again.data = t;
    return t;
}

struct tls *tls_accept(struct tls_context *context, struct ev_loop *loop, int fd) {
    return tls_new(context, loop, fd, NULL);
}

struct tls *tls_connect(struct tls_context *context, struct ev_loop *loop, int fd, const char *host) {
    return tls_new(context, loop, fd, host);
}

void tls_free(struct tls *t) {
    if (!t)
        return;
    ev_io_stop(t->loop, &t->io);
    ev_timer_stop(t->loop, &t->again);
    if (!t->broken && SSL_is_init_finished(t->ssl))
        SSL_shutdown(t->ssl);
    ERR_clear_error();
    SSL_free(t->ssl);
    memory_free(t->error);
    memory_free(t);
}

/* ---- the handshake ---------------------------------------------------------------------------------- */

static void watch(struct tls *t, int events) {
    ev_io_stop(t->loop, &t->io);
    ev_io_set(&t->io, t->fd, events);
    ev_io_start(t->loop, &t->io);
}

static void handshake_step(struct tls *t) {
    invariant(t->done, "a handshake that no owner waits for");
    if (!t->broken) {
        ERR_clear_error();
        errno = 0;
        int result = SSL_do_handshake(t->ssl);
        int code = errno, why = result == 1 ? SSL_ERROR_NONE : SSL_get_error(t->ssl, result);
        if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
            watch(t, why == SSL_ERROR_WANT_READ ? EV_READ : EV_WRITE);
            return;
        }
        if (why != SSL_ERROR_NONE)
            explain(t, why, code);
    }
    ev_io_stop(t->loop, &t->io);
    void (*done)(void *, const char *) = t->done;
    t->done = NULL;
    done(t->arg, t->error);
}

void tls_handshake(struct tls *t, void (*done)(void *arg, const char *error), void *arg) {
    invariant(!t->done && !t->reader, "a handshake begins twice");
    t->done = done;
    t->arg = arg;
    watch(t, EV_READ | EV_WRITE);
}

/* ---- afterwards ------------------------------------------------------------------------------------- */

static void call_reader(struct tls *t) {
    if (t->reader && ev_is_active(t->reader) && (t->reader->events & EV_READ))
        ev_invoke(t->loop, t->reader, EV_READ); /* the reader may free the connection */
}

static void on_again(struct ev_loop *loop, ev_timer *timer, int events) {
    call_reader(timer->data);
}

static void on_io(struct ev_loop *loop, ev_io *io, int events) {
    struct tls *t = io->data;
    if (t->done) {
        handshake_step(t);
        return;
    }
    ev_io_stop(loop, io);
    call_reader(t);
}

bool tls_has_more(const struct tls *t) {
    return t->left || SSL_has_pending(t->ssl);
}

void tls_resume(struct tls *t) {
    if (tls_has_more(t))
        ev_timer_start(t->loop, &t->again);
}

void tls_attach(struct tls *t, struct ev_io *reader) {
    invariant(!t->done, "reading begins before the handshake is over");
    t->reader = reader;
    tls_resume(t);
}

ssize_t tls_read(struct tls *t, void *to, size_t room) {
    size_t got = 0, n;
    int why = SSL_ERROR_NONE, code = 0;
    t->left = false;
    while (got < room && why == SSL_ERROR_NONE) {
        ERR_clear_error();
        errno = 0;
        if (SSL_read_ex(t->ssl, (char *)to + got, room - got, &n) == 1) {
            got += n;
            invariant(got <= room, "%zu bytes were read into %zu", got, room);
            continue;
        }
        code = errno;
        why = SSL_get_error(t->ssl, 0);
    }
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
        if (why == SSL_ERROR_WANT_WRITE)
            watch(t, EV_WRITE);
        errno = EAGAIN;
        return got > 0 ? (ssize_t)got : -1;
    }
    if (got > 0) {
        t->left = why != SSL_ERROR_NONE; /* the next call reports the end or the error */
        tls_resume(t);
        return (ssize_t)got;
    }
    if (why == SSL_ERROR_ZERO_RETURN)
        return 0;
    explain(t, why, code);
    errno = code ? code : EPROTO;
    return -1;
}

ssize_t tls_write(struct tls *t, struct iobuf *from) {
    char gathered[RECORD_MAX];
    ssize_t total = 0;
    while (from->unsent > 0) {
        const char *bytes;
        size_t len = iobuf_peek(from, gathered, sizeof(gathered), &bytes), n;
        invariant(len > 0 && len <= sizeof(gathered), "a record of %zu bytes", len);
        ERR_clear_error();
        errno = 0;
        int written = SSL_write_ex(t->ssl, bytes, len, &n);
        if (bytes == gathered)
            explicit_bzero(gathered, len); /* it may contain a password */
        if (written == 1) {
            invariant(n <= len, "%zu bytes were written of %zu", n, len);
            iobuf_skip(from, n);
            total += (ssize_t)n;
            continue;
        }
        int code = errno, why = SSL_get_error(t->ssl, 0);
        if (why == SSL_ERROR_WANT_WRITE)
            return total;
        explain(t, why, code);
        errno = code ? code : EPROTO;
        return -1;
    }
    return total;
}
