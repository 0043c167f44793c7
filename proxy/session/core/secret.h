/*
 * Passwords in clients' requests (COMMAND_SECRET) are overwritten where they were, once nobody needs them any more: in
 * the buffers that they were read to and sent from.
 */
#ifndef LOCKKEEPER_SESSION_CORE_SECRET_H
#define LOCKKEEPER_SESSION_CORE_SECRET_H

#include "proxy/session/core/session.h"

/* Overwrites bytes of an input buffer that were copied elsewhere, or will never be used. No password is so long that it
 * could be in more than a few KiB: long ones are left alone. */
void secret_overwrite(const char *data, size_t len);

/* Forgets the secrets of a request that was dispatched, and at whose `bytes` nobody looks again: overwrites its
 * arguments there, and has those be overwritten that are on their way to a node, when they need not be sent again. */
void secret_forget(struct session *s, const struct resp_request *r, const char *bytes);
/* Forgets secrets at the end of dispatching, whose result it passes on: where that is DISPATCHED, and the command may
 * have a password among its arguments. `c` NULL: it is not in the table. */
static inline enum dispatch_result secret_end(struct session *s, const struct command *c, const struct resp_request *r,
                                              const char *bytes, enum dispatch_result result) {
    if (result == DISPATCHED && c && (c->flags & COMMAND_SECRET))
        secret_forget(s, r, bytes);
    return result;
}

#endif
