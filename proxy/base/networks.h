/*
 * A list of addresses and networks ("10.0.0.5", "10.0.0.0/8", "fd00::/8", "unix"). It does not change after it is
 * built, so threads may share it.
 */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

#include "proxy/base/text.h"

struct networks;

/* Makes an empty list with one reference, which the caller owns. */
struct networks *networks_new(void);
struct networks *networks_ref(struct networks *n);
/* Gives a reference back; NULL is ignored. */
void networks_unref(struct networks *n);
/* Adds an address or a network; "unix" means every unix socket. False: the word is neither, or has bits set after its
 * prefix. */
bool networks_add(struct networks *n, const char *word) __attribute__((warn_unused_result));
/* Makes the list contain every address, and unix sockets. */
void networks_add_all(struct networks *n);
/* Whether the list contains every address; whether it contains none. */
bool networks_are_all(const struct networks *n);
bool networks_are_none(const struct networks *n);
/* Whether an address is in the list; an IPv4 address mapped to IPv6 is looked up as IPv4. */
bool networks_have(const struct networks *n, const struct sockaddr_storage *address);
/* Appends the list in the order of its additions, separated by blanks; "yes" for all, "no" for none. */
void networks_text(const struct networks *n, struct text *out);
