/*
 * What the files of the session's core share.
 */
#pragma once

#include "proxy/session/core/session.h"

static inline size_t input_len(const struct session_input *in) {
    invariant_debug(in->start <= in->end && in->end <= in->cap, "input [%zu, %zu) of %zu", in->start, in->end, in->cap);
    return in->end - in->start;
}
/* Watches the socket for what the session can do: write, and read unless there is a reason not to. */
void session_watch(struct session *s, bool writable);
/* Frees the waiting input. Its bytes may be a password, so they are overwritten. */
void session_input_free(struct session *s);

/* Called at the end of a request or of a reply in parts: writes waiting messages, if no reply is being written. */
void session_reply_over(struct session *s);

/* Ends a request whose rest will not come, without a reply; the node discards it. */
void stream_drop(struct session *s);
