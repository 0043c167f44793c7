/* What the files of proxy/net/ share. */
#ifndef LOCKKEEPER_NET_TLS_PRIVATE_H
#define LOCKKEEPER_NET_TLS_PRIVATE_H

#include <openssl/ssl.h>

#include "proxy/net/tls.h"

/* A new connection's object, of what the context has at this moment. `host`: as tls_connect has it; NULL: the server's
 * side. NULL where OpenSSL has no memory. Thread-safe. */
SSL *tls_context_open(struct tls_context *context, const char *host);
/* OpenSSL's oldest complaint as text, "" if there is none; all are forgotten. */
void tls_complaint(char *out, size_t size);

#endif
