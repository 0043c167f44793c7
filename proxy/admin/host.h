/*
 * Checks the Host header of a request: whether it names this server.
 */
#ifndef LOCKKEEPER_ADMIN_HOST_H
#define LOCKKEEPER_ADMIN_HOST_H

#include <stdbool.h>
#include <stddef.h>

/* Whether `host` ("proxy1:9090", "[::1]", "127.0.0.1:9090") is an address, localhost, this machine's own name, or one
 * of `names`, in any case and with any port. If "*" is among the names, every host is accepted. An address is always
 * safe: the name of a foreign web page can be made to point here, an address can't. */
bool host_is_ours(const char *host, const char *const *names, size_t count);

#endif
