/*
 * A list of addresses and networks ("10.0.0.5", "10.0.0.0/8", "fd00::/8", "unix"), to ask of an address whether it is
 * among them. Constant once it is made, and shared by threads.
 */
#ifndef LOCKKEEPER_BASE_NETWORKS_H
#define LOCKKEEPER_BASE_NETWORKS_H

#include <stdbool.h>
#include <sys/socket.h>

#include "proxy/base/text.h"

struct networks;

/* Makes an empty list, with one reference, the caller's. */
struct networks *networks_new(void);
struct networks *networks_ref(struct networks *n);
/* Gives a reference back; NULL is ignored. */
void networks_unref(struct networks *n);
/* Adds an address or a network; "unix" is every unix socket. False: it is neither, or has bits behind its prefix. */
bool networks_add(struct networks *n, const char *word) __attribute__((warn_unused_result));
/* Has the list contain every address, and unix sockets. */
void networks_add_all(struct networks *n);
/* Whether every address is in the list; and whether none is. */
bool networks_are_all(const struct networks *n);
bool networks_are_none(const struct networks *n);
/* Whether an address is in the list; of IPv6 one that stands for IPv4 is looked for as such. */
bool networks_have(const struct networks *n, const struct sockaddr_storage *address);
/* Appends the list as it was added, with blanks between; "yes" for all, "no" for none. */
void networks_text(const struct networks *n, struct text *out);

#endif
