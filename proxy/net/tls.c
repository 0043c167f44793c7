/*
 * Contexts of certificates, keys and rules, and TLS connections. Connections are made under a context's mutex, so that
 * a reload can replace everything at once.
 *
 *      tls_write:  iobuf, many chunks ── up to 16 KB gathered ──> SSL_write, a record ──> socket
 *      tls_read:   socket ──> SSL_read until the socket is empty or the caller's room is full
 *                                    └── bytes are left that the socket does not show: `again`
 *
 * If the socket takes only part of a record, OpenSSL keeps the record, and its bytes count as not written: the peer
 * can't decrypt a part. Renegotiation is off, so that writing never waits for reading.
 */
#include "proxy/net/tls.h"

#include <errno.h>
#include <ev.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/base/mutex.h"
#include "proxy/net/resolve.h"

enum { RECORD_MAX = 16 * 1024, ERROR_MAX = 240, COMPLAINT_MAX = 160, REFUSAL_MAX = 1024 };

struct tls_context {
    pthread_mutex_t mutex;
    SSL_CTX *ctx;
    enum tls_verify verify;
    char *server_name;
};

/* Writes OpenSSL's oldest error as text, "" if there is none; clears all errors. */
static void complain(char *out, size_t size) {
    unsigned long code = ERR_peek_error();
    const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code)) : ERR_reason_error_string(code);
    snprintf(out, size, "%s", text ? text : "");
    ERR_clear_error();
}

/* ---- loading ---------------------------------------------------------------------------------------- */

struct loading {
    const struct tls_options *o;
    SSL_CTX *ctx;
    tls_refusal *refused;
    void *arg;
};

/* Reports an invalid directive, with OpenSSL's reason or what was expected; `value` NULL: not given. Returns false. */
static bool refuse(struct loading *l, const char *directive, const char *value, const char *expected) {
    char why[COMPLAINT_MAX], name[64], text[REFUSAL_MAX];
    const char *quote = value ? "'" : "";
    bool shared = strncmp(directive, "tls-cipher", 10) == 0; /* by servers and clients; OpenSSL's text adds nothing */
    complain(why, sizeof(why));
    if (shared)
        why[0] = '\0';
    snprintf(name, sizeof(name), "%s%s", l->o->server || shared ? "" : "upstream-", directive);
    snprintf(text, sizeof(text), "%s%s%s%s%s: expected %s%s%s", name, value ? " " : "", quote, value ? value : "",
             quote, expected, *why ? ": " : "", why);
    l->refused(l->arg, name, text);
    return false;
}

/* Gives OpenSSL the passphrase of the key file; otherwise it would ask at the terminal. */
static int give_passphrase(char *out, int size, int writing, void *arg) {
    const char *pass = arg;
    size_t len = pass ? strlen(pass) : 0;
    if (len == 0 || len > (size_t)size)
        return -1;
    memcpy(out, pass, len);
    return (int)len;
}

static bool load_certificate(struct loading *l) {
    const struct tls_options *o = l->o;
    if (!o->cert_file && !o->key_file && !o->server)
        return true;
    if (!o->cert_file)
        return refuse(l, "tls-cert-file", NULL,
                      o->server ? "a certificate, as tls-port is used" : "the certificate of the key");
    return SSL_CTX_use_certificate_chain_file(l->ctx, o->cert_file) == 1 ||
           refuse(l, "tls-cert-file", o->cert_file, "a certificate in a PEM file that can be read");
}

/* Loads the certificate's private key. `certified`: the certificate was loaded, which the key must match. */
static bool load_key(struct loading *l, bool certified) {
    const struct tls_options *o = l->o;
    if (!o->key_file)
        return (!o->cert_file && !o->server) || refuse(l, "tls-key-file", NULL, "the private key of the certificate");
    SSL_CTX_set_default_passwd_cb(l->ctx, give_passphrase);
    SSL_CTX_set_default_passwd_cb_userdata(l->ctx, (void *)o->key_pass);
    int read = SSL_CTX_use_PrivateKey_file(l->ctx, o->key_file, SSL_FILETYPE_PEM);
    SSL_CTX_set_default_passwd_cb_userdata(l->ctx, NULL);
    if (read != 1)
        return refuse(
            l, "tls-key-file", o->key_file,
            "the certificate's private key in a PEM file that can be read (tls-key-file-pass opens it where it "
            "is encrypted)");
    return !certified || SSL_CTX_check_private_key(l->ctx) == 1 ||
           refuse(l, "tls-key-file", o->key_file, "the private key of the certificate");
}

/* Loads the trusted authorities, and sets what the peer must prove. */
static bool load_authorities(struct loading *l) {
    const struct tls_options *o = l->o;
    bool right = !o->ca_file || SSL_CTX_load_verify_file(l->ctx, o->ca_file) == 1 ||
                 refuse(l, "tls-ca-cert-file", o->ca_file, "certificates in a PEM file that can be read");
    struct stat dir;
    bool is_dir = o->ca_dir && stat(o->ca_dir, &dir) == 0 && S_ISDIR(dir.st_mode);
    if (o->ca_dir && (!is_dir || SSL_CTX_load_verify_dir(l->ctx, o->ca_dir) != 1))
        right = refuse(l, "tls-ca-cert-dir", o->ca_dir, "a folder with certificates");
    if (!right || o->verify == TLS_VERIFY_NO)
        return right;
    if (!o->ca_file && !o->ca_dir) {
        if (o->server)
            return refuse(l, "tls-ca-cert-file", NULL,
                          "the authorities that vouch for clients (or tls-ca-cert-dir, or tls-auth-clients no)");
        if (SSL_CTX_set_default_verify_paths(l->ctx) != 1)
            return refuse(l, "tls-ca-cert-file", NULL,
                          "the authorities that vouch for nodes; the system's are not there");
    }
    if (o->server && o->ca_file)
        SSL_CTX_set_client_CA_list(l->ctx, SSL_load_client_CA_file(o->ca_file));
    bool must = !o->server || o->verify != TLS_VERIFY_OPTIONAL;
    SSL_CTX_set_verify(l->ctx, SSL_VERIFY_PEER | (must ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
    ERR_clear_error();
    return true;
}

static bool load_dh_params(struct loading *l) {
    const char *path = l->o->dh_params_file;
    if (!path)
        return true;
    BIO *file = BIO_new_file(path, "r");
    EVP_PKEY *params = file ? PEM_read_bio_Parameters(file, NULL) : NULL;
    BIO_free(file);
    if (params && SSL_CTX_set0_tmp_dh_pkey(l->ctx, params) == 1)
        return true;
    EVP_PKEY_free(params);
    return refuse(l, "tls-dh-params-file", path, "Diffie-Hellman parameters in a PEM file that can be read");
}

static bool set_rules(struct loading *l) {
    const struct tls_options *o = l->o;
    uint64_t off =
        SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CLEANSE_PLAINTEXT;
    off |= o->protocols & TLS_V1_0 ? 0 : SSL_OP_NO_TLSv1;
    off |= o->protocols & TLS_V1_1 ? 0 : SSL_OP_NO_TLSv1_1;
    off |= o->protocols & TLS_V1_2 ? 0 : SSL_OP_NO_TLSv1_2;
    off |= o->protocols & TLS_V1_3 ? 0 : SSL_OP_NO_TLSv1_3;
    off |= o->prefer_server_ciphers ? SSL_OP_CIPHER_SERVER_PREFERENCE : 0;
    SSL_CTX_set_options(l->ctx, off);
    SSL_CTX_set_mode(l->ctx,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(l->ctx, 1);
    bool right = true;
    if (o->ciphers && SSL_CTX_set_cipher_list(l->ctx, o->ciphers) != 1)
        right = refuse(l, "tls-ciphers", o->ciphers, "a list of ciphers as OpenSSL writes it");
    if (o->ciphersuites && SSL_CTX_set_ciphersuites(l->ctx, o->ciphersuites) != 1)
        right = refuse(l, "tls-ciphersuites", o->ciphersuites, "a list of TLSv1.3 ciphersuites");
    if (o->server && o->session_caching) {
        static const unsigned char id[] = "lockkeeper";
        SSL_CTX_set_session_cache_mode(l->ctx, SSL_SESS_CACHE_SERVER);
        SSL_CTX_sess_set_cache_size(l->ctx, (long)o->session_cache_size);
        SSL_CTX_set_timeout(l->ctx, (long)o->session_cache_timeout_s);
        SSL_CTX_set_session_id_context(l->ctx, id, sizeof(id) - 1);
    } else {
        SSL_CTX_set_session_cache_mode(l->ctx, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_options(l->ctx, SSL_OP_NO_TICKET);
        SSL_CTX_set_num_tickets(l->ctx, 0);
    }
    return right;
}

/* ---- contexts -------------------------------------------------------------------------------------- */

struct tls_context *tls_context_new(const struct tls_options *options, tls_refusal *refused, void *arg) {
    ERR_clear_error();
    struct loading l = {.o = options, .refused = refused, .arg = arg};
    l.ctx = SSL_CTX_new(options->server ? TLS_server_method() : TLS_client_method());
    if (!l.ctx) {
        refused(arg, "tls-protocols", "tls-protocols: expected a library that can do TLS");
        return NULL;
    }
    bool right = set_rules(&l);
    bool certified = load_certificate(&l);
    right = load_key(&l, certified) && certified && right;
    right = load_authorities(&l) && right;
    right = load_dh_params(&l) && right;
    if (!right) {
        SSL_CTX_free(l.ctx);
        return NULL;
    }
    struct tls_context *c = memory_zalloc(sizeof(*c));
    pthread_mutex_init(&c->mutex, NULL);
    c->ctx = l.ctx;
    c->verify = options->verify;
    c->server_name = options->server_name ? memory_strdup(options->server_name) : NULL;
    return c;
}

void tls_context_replace(struct tls_context *c, struct tls_context *fresh) {
    pthread_mutex_lock(&c->mutex);
    SSL_CTX *ctx = c->ctx;
    char *server_name = c->server_name;
    c->ctx = fresh->ctx;
    c->server_name = fresh->server_name;
    c->verify = fresh->verify;
    pthread_mutex_unlock(&c->mutex);
    fresh->ctx = ctx;
    fresh->server_name = server_name;
    tls_context_free(fresh);
}

int64_t tls_context_end(struct tls_context *c) {
    struct tm end;
    MUTEX_GUARD(&c->mutex);
    const X509 *certificate = SSL_CTX_get0_certificate(c->ctx);
    return certificate && ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1 ? (int64_t)timegm(&end) : 0;
}

void tls_context_free(struct tls_context *c) {
    if (!c)
        return;
    SSL_CTX_free(c->ctx);
    pthread_mutex_destroy(&c->mutex);
    MEMORY_FREE_ALL(c->server_name, c);
}

/* Sets the name that the peer must prove, and by which a server chooses among several certificates. */
static bool ask_for(SSL *ssl, const char *host, bool verify) {
    if (resolve_is_number(host))
        return !verify || X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set_tlsext_host_name(ssl, host) == 1 && (!verify || SSL_set1_host(ssl, host) == 1);
}

/* ---- one connection -------------------------------------------------------------------------------- */

static void on_again(struct ev_loop *loop, ev_timer *timer, int events);
static void on_io(struct ev_loop *loop, ev_io *io, int events);

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
    complain(said, sizeof(said));
    if (why == SSL_ERROR_ZERO_RETURN || (why == SSL_ERROR_SYSCALL && !*said)) {
        fail(t, why == SSL_ERROR_SYSCALL && code ? strerror(code) : "the other side closed the connection");
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

struct tls *tls_new(struct tls_context *context, struct ev_loop *loop, int fd, const char *host) {
    struct tls *t = memory_zalloc(sizeof(*t));
    t->loop = loop;
    t->fd = fd;
    pthread_mutex_lock(&context->mutex);
    const char *name = host && context->server_name ? context->server_name : host;
    t->ssl = SSL_new(context->ctx);
    if (t->ssl && name && !ask_for(t->ssl, name, context->verify == TLS_VERIFY_NAME)) {
        SSL_free(t->ssl);
        t->ssl = NULL;
    }
    pthread_mutex_unlock(&context->mutex);
    if (t->ssl && SSL_set_fd(t->ssl, fd) == 1)
        host ? SSL_set_connect_state(t->ssl) : SSL_set_accept_state(t->ssl);
    else
        fail(t, "OpenSSL is out of memory");
    ev_init(&t->io, on_io);
    ev_timer_init(&t->again, on_again, 0., 0.);
    t->io.data = t->again.data = t;
    return t;
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
    MEMORY_FREE_ALL(t->error, t);
}

static void watch(struct tls *t, int events) {
    ev_io_stop(t->loop, &t->io);
    ev_io_set(&t->io, t->fd, events);
    ev_io_start(t->loop, &t->io);
}

void tls_handshake(struct tls *t, void (*done)(void *arg, const char *error), void *arg) {
    invariant(!t->done && !t->reader, "a handshake begins twice");
    t->done = done;
    t->arg = arg;
    watch(t, EV_READ | EV_WRITE);
}

/* Calls the owner's reader, which may free the connection. */
static void on_again(struct ev_loop *loop, ev_timer *timer, int events) {
    struct tls *t = timer->data;
    if (t->reader && ev_is_active(t->reader) && (t->reader->events & EV_READ))
        ev_invoke(loop, t->reader, EV_READ);
}

static void on_io(struct ev_loop *loop, ev_io *io, int events) {
    struct tls *t = io->data;
    if (t->done && !t->broken) {
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
    ev_io_stop(loop, io);
    void (*done)(void *, const char *) = t->done;
    t->done = NULL;
    if (done)
        done(t->arg, t->error);
    else
        on_again(loop, &t->again, 0);
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
