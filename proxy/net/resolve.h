/*
 * Lookups of host names outside of the loop: getaddrinfo may wait seconds for a name server, so it runs in a thread.
 *
 *      resolve_start ──> thread: getaddrinfo ──ev_async──> done, on the loop
 *
 * It uses the system's resolver, so that names resolve as for every other program on the machine.
 */
#pragma once

#include <ev.h>
#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

enum { RESOLVE_NUMBER_MAX = 64 /* an address as text, with a scope and its NUL */, HOST_ADDRESSES = 4 };

/* The addresses of one host. */
struct host_addresses {
    struct sockaddr_storage at[HOST_ADDRESSES];
    socklen_t lens[HOST_ADDRESSES];
    unsigned count;
};

struct resolve;

/* `found`: at least one stream address, the system's preferred one first, valid during the call. NULL if there is none;
 * `error` is then a text with the reason. */
typedef void (*resolve_fn)(void *arg, const struct addrinfo *found, const char *error);

/* Calls `done` once, in a later turn of the loop, unless resolve_cancel comes first. The result is valid until then.
 * `host` is copied, `loop` is borrowed. To be called by the loop's own thread, like resolve_cancel. The only time limit
 * is the system's. */
struct resolve *resolve_start(struct ev_loop *loop, const char *host, int port, resolve_fn done, void *arg);
/* Cancels a lookup: `done` will not be called. NULL is ignored. */
void resolve_cancel(struct resolve *r);

/* Whether a host is a numeric IPv4 or IPv6 address, which needs no lookup. */
bool resolve_is_number(const char *host);
/* Writes an address as text; `out` has RESOLVE_NUMBER_MAX bytes. */
void resolve_number(const struct sockaddr *at, socklen_t len, char *out);

/* Copies the first addresses of `found`, which may be NULL. */
void host_take(struct host_addresses *h, const struct addrinfo *found);
/* Whether the machine at this address is among the host's, whatever the port. */
bool host_has(const struct host_addresses *h, const struct sockaddr_storage *at);
