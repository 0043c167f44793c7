/*
 * TLS for a connected, non-blocking descriptor. The owner calls tls_read and tls_write instead of read and write, and
 * keeps its own watchers. All use of OpenSSL is in this folder.
 *
 *      tls_context   certificates and rules, for all threads; a reload replaces them as a whole
 *      tls           one connection:  tls_new ── tls_handshake ── tls_attach ── tls_read, tls_write
 *
 * A descriptor without bytes to read may still have decrypted bytes, or an end of connection that only OpenSSL knows.
 * Then the owner's watcher is called in the next turn of the loop.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proxy/base/iobuf.h"

struct ev_loop;
struct ev_io;
struct tls;
struct tls_context;

/* Versions of TLS, as bits of tls_options.protocols. */
enum { TLS_V1_0 = 1, TLS_V1_1 = 2, TLS_V1_2 = 4, TLS_V1_3 = 8 };

enum tls_verify {
    TLS_VERIFY_NO,
    TLS_VERIFY_OPTIONAL, /* servers: a client may come without a certificate */
    TLS_VERIFY_CA,       /* the certificate must be signed by a trusted authority */
    TLS_VERIFY_NAME      /* clients only: the certificate must also name the server */
};

/* The values of the directives. Texts are borrowed for the call; NULL: not given. */
struct tls_options {
    bool server; /* true: tls-...; false: upstream-tls-... */
    enum tls_verify verify;
    const char *cert_file, *key_file, *key_pass;
    const char *ca_file, *ca_dir; /* neither: servers verify no client, clients use the system's authorities */
    const char *dh_params_file;
    const char *server_name; /* clients: the name to ask for and to verify, in place of each node's host */
    unsigned protocols;
    const char *ciphers, *ciphersuites;
    bool prefer_server_ciphers, session_caching;
    int64_t session_cache_size, session_cache_timeout_s;
};

/* Called for each invalid directive, with one line: directive, file, reason. */
typedef void tls_refusal(void *arg, const char *directive, const char *text);

/* Makes a context from the directives; the caller owns it. NULL: `refused` was called for each error. The passphrase is
 * not kept. */
struct tls_context *tls_context_new(const struct tls_options *options, tls_refusal *refused, void *arg);
/* New connections use the contents of `fresh`, which is freed. Open connections stay as they are. Thread-safe. */
void tls_context_replace(struct tls_context *context, struct tls_context *fresh);
/* When the context's own certificate expires, in seconds since 1970; 0: it has none. Thread-safe. */
int64_t tls_context_end(struct tls_context *context);
/* Frees a context. No connection may be made with it any more; open ones may live on. NULL is ignored. */
void tls_context_free(struct tls_context *context);

/* Begins a connection. The caller owns the descriptor, and closes it after tls_free. `host` is the server that the
 * client wants to reach; NULL: this is the server. */
struct tls *tls_new(struct tls_context *context, struct ev_loop *loop, int fd, const char *host);
/* Tells the peer that nothing more comes, if the socket takes it, and stops the watchers. NULL is ignored. */
void tls_free(struct tls *t);

/* Calls `done` once from the loop; error is NULL or a readable text, valid until tls_free. `done` may free the
 * connection. There is no time limit: the owner frees the connection when it has waited too long. */
void tls_handshake(struct tls *t, void (*done)(void *arg, const char *error), void *arg);
/* Names the owner's watcher, after the handshake. While it watches EV_READ, it is also called if decrypted bytes wait
 * that the descriptor does not show. */
void tls_attach(struct tls *t, struct ev_io *reader);
/* Whether decrypted bytes wait that the descriptor does not show. */
bool tls_has_more(const struct tls *t);
/* Calls the owner's watcher for bytes that came while the owner did not read. */
void tls_resume(struct tls *t);

/* Like read(2) and iobuf_write. tls_read fills `room` if it can; 0 means that the peer has closed. */
ssize_t tls_read(struct tls *t, void *to, size_t room);
ssize_t tls_write(struct tls *t, struct iobuf *from);
/* Why the last tls_read or tls_write returned -1, as a readable text. */
const char *tls_error(const struct tls *t);
