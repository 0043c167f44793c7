/*
 * The Host that a request names: whether it can be meant for us.
 */
#ifndef LOCKKEEPER_ADMIN_HOST_H
#define LOCKKEEPER_ADMIN_HOST_H

#include <stdbool.h>
#include <stddef.h>

/* Whether `host` ("proxy1:9090", "[::1]", "127.0.0.1:9090") is an address, localhost, this machine's own name, or one
 * of `names`, in any case and whatever the port; "*" among them: any. An address can't be made to mean another machine,
 * as the name of a foreign web page can. */
bool host_is_ours(const char *host, const char *const *names, size_t count);

#endif
