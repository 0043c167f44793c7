/* What the files of proxy/net/ share. */
#ifndef LOCKKEEPER_NET_TLS_PRIVATE_H
#define LOCKKEEPER_NET_TLS_PRIVATE_H

#include <openssl/ssl.h>

#include "proxy/net/tls.h"

/* Makes the OpenSSL object of a new connection, from the context's present contents. `host`: as for tls_connect; NULL:
 * the server side. NULL if OpenSSL is out of memory. Thread-safe. */
SSL *tls_context_open(struct tls_context *context, const char *host);
/* Writes OpenSSL's oldest error as text, "" if there is none; clears all errors. */
void tls_complaint(char *out, size_t size);

#endif
