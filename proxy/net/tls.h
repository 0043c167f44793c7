/*
 * TLS for a descriptor that is connected and non-blocking: whoever has read from it and written to it asks here
 * instead, and keeps its own watchers. Knows no RESP and no configuration file; all of OpenSSL is in this folder.
 *
 *      tls_context   certificates and rules, for all threads; replaced as a whole at a reload
 *      tls           one connection:  tls_accept / tls_connect ── tls_handshake ── tls_attach ── tls_read, tls_write
 *
 * A descriptor that has nothing to read may still have bytes that were decrypted, or end in a way that only OpenSSL
 * knows: then the owner's own watcher is called from the next turn of the loop.
 */
#ifndef LOCKKEEPER_NET_TLS_H
#define LOCKKEEPER_NET_TLS_H

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
    TLS_VERIFY_CA,       /* a certificate that the authorities vouch for */
    TLS_VERIFY_NAME      /* clients: and for that server */
};

/* What the directives say. Texts are borrowed for the call; NULL: not given. */
struct tls_options {
    bool server; /* tls-...; else upstream-tls-... */
    enum tls_verify verify;
    const char *cert_file, *key_file, *key_pass;
    const char *ca_file, *ca_dir; /* neither: servers verify nobody, clients use the system's authorities */
    const char *dh_params_file;
    const char *server_name; /* clients: the name asked for and verified, in place of each node's host */
    unsigned protocols;
    const char *ciphers, *ciphersuites;
    bool prefer_server_ciphers, session_caching;
    int64_t session_cache_size, session_cache_timeout_s;
};

/* Hears what is wrong with a directive: one line with directive, file, reason. */
typedef void tls_refusal(void *arg, const char *directive, const char *text);

/* Makes a context of what the directives say, the caller's; NULL where `refused` has heard of something that is wrong,
 * of all of it. The passphrase is not kept. */
struct tls_context *tls_context_new(const struct tls_options *options, tls_refusal *refused, void *arg);
/* Has new connections made with what `fresh` has, which is freed; those that are open stay as they are. Thread-safe. */
void tls_context_replace(struct tls_context *context, struct tls_context *fresh);
/* When the context's own certificate ends, in seconds since 1970; 0: it has none. Thread-safe. */
int64_t tls_context_end(struct tls_context *context);
/* Frees a context, with which no connection may be made any more; open ones may live on. NULL is ignored. */
void tls_context_free(struct tls_context *context);

/* Begin the server's and the client's side of a connection. The descriptor stays the caller's, who closes it after
 * tls_free. `host` is whom the client wants to talk to. */
struct tls *tls_accept(struct tls_context *context, struct ev_loop *loop, int fd);
struct tls *tls_connect(struct tls_context *context, struct ev_loop *loop, int fd, const char *host);
/* Tells the other side that nothing more comes, as far as the socket takes it. Watchers are stopped. NULL is ignored.
 */
void tls_free(struct tls *t);

/* Calls `done` once from the loop, error NULL or a text for people to read, valid until tls_free; the callee may free
 * the connection. Has no time limit: the owner frees it when it has waited long enough. */
void tls_handshake(struct tls *t, void (*done)(void *arg, const char *error), void *arg);
/* Names the owner's watcher of the descriptor, after the handshake: it is called (with EV_READ) where bytes wait that
 * the descriptor does not show, unless it is stopped, or does not watch EV_READ. */
void tls_attach(struct tls *t, struct ev_io *reader);
/* Whether bytes have come that tls_read has not handed out, as far as the descriptor does not show them. */
bool tls_has_more(const struct tls *t);
/* Has the owner's watcher called for what came during a pause in which it did not read. */
void tls_resume(struct tls *t);

/* Read and write as read(2) and iobuf_write do. tls_read fills `room` if it can; 0 is the other side's end. */
ssize_t tls_read(struct tls *t, void *to, size_t room);
ssize_t tls_write(struct tls *t, struct iobuf *from);
/* Why the last tls_read or tls_write returned -1, for people to read. */
const char *tls_error(const struct tls *t);

#endif
