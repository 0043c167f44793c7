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
 * or a protocol error in the bytes. */
size_t stream_take(struct stream *st, const char *data, size_t len, const char **error);
/* Whether an argument exceeds client-query-buffer-limit, as Redis counts it. */
bool stream_over_limit(const struct stream *st, int64_t query_buffer_limit);
/* Ends a request whose rest will not come, without a reply; the node discards it. */
void stream_drop(struct session *s);
