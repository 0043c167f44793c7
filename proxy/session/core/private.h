/*
 * What the files of the session's core share: a session's input and output, and requests that are forwarded while they
 * arrive.
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

/* Begins to forward an incomplete request (stream.c). DISPATCHED with s->stream set: pass all its bytes, from the first
 * one on, to stream_take. DISPATCHED without s->stream: wait until the request is complete. DISPATCH_WAIT: try again
 * later. */
enum dispatch_result stream_start(struct session *s, const struct resp_request *r, const char *bytes);
/* Whether the stream takes bytes now. If not, the session is made runnable when it does. */
bool stream_takes(const struct stream *st);
/* Takes the next bytes and returns how many belong to the request. After the last one s->stream is NULL. *error: NULL,
 * or a protocol error in the bytes, or STREAM_OVER_LIMIT: an argument exceeds client-query-buffer-limit, as Redis
 * counts it. */
size_t stream_take(struct stream *st, const char *data, size_t len, const char **error);
extern const char STREAM_OVER_LIMIT[];
/* Ends a request whose rest will not come, without a reply; the node discards it. */
void stream_drop(struct session *s);
