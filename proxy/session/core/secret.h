/*
 * Overwrites passwords in clients' requests (COMMAND_SECRET) once they are not needed any more, in the buffers into
 * which they were read and from which they are sent.
 */
#ifndef LOCKKEEPER_SESSION_CORE_SECRET_H
#define LOCKKEEPER_SESSION_CORE_SECRET_H

#include "proxy/session/core/session.h"

/* Overwrites bytes of an input buffer that were copied elsewhere, or will never be used. Longer texts than a few KiB
 * are left alone: a password is shorter. */
void secret_overwrite(const char *data, size_t len);

/* Forgets the secrets of a dispatched request whose `bytes` are not read any more: overwrites its arguments, and marks
 * the copies on the way to a node to be overwritten when they need not be sent again. */
void secret_forget(struct session *s, const struct resp_request *r, const char *bytes);
/* Forgets secrets at the end of dispatch, if the result is DISPATCHED and the command's arguments may contain a
 * password. Returns the result. `c` NULL: the command is not in the table. */
static inline enum dispatch_result secret_end(struct session *s, const struct command *c, const struct resp_request *r,
                                              const char *bytes, enum dispatch_result result) {
    if (result == DISPATCHED && c && (c->flags & COMMAND_SECRET))
        secret_forget(s, r, bytes);
    return result;
}

#endif
