/*
 * Host names, looked up beside the loop: getaddrinfo may wait for a name server for seconds, so a thread waits for it.
 *
 *      resolve_start ──> thread: getaddrinfo ──ev_async──> done, on the loop
 *
 * Uses the system's resolver, so that names mean what they mean to every other program of the machine. Knows no
 * connections and remembers nothing.
 */
#ifndef LOCKKEEPER_NET_RESOLVE_H
#define LOCKKEEPER_NET_RESOLVE_H

#include <ev.h>
#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>

enum { RESOLVE_NUMBER_MAX = 64 }; /* of an address as text, with a scope and its NUL */

struct resolve;

/* `found`: at least one stream address, the system's preferred one first, valid during the call; NULL where there is
 * none, and then `error` is a text that says why. */
typedef void (*resolve_fn)(void *arg, const struct addrinfo *found, const char *error);

/* Calls `done` once, in a later turn of the loop, unless resolve_cancel comes first; what is returned is valid until
 * then. `host` is copied, `loop` is borrowed; to be called, as resolve_cancel, by the loop's own thread. There is no
 * time limit but the system's. */
struct resolve *resolve_start(struct ev_loop *loop, const char *host, int port, resolve_fn done, void *arg);
/* `done` will not be called. NULL does nothing. */
void resolve_cancel(struct resolve *r);

/* Whether a host is an IPv4 or IPv6 address already, which no name server has to be asked for. */
bool resolve_is_number(const char *host);
/* An address that was found, as text; `out` has RESOLVE_NUMBER_MAX bytes. */
void resolve_number(const struct addrinfo *found, char *out);

#endif
