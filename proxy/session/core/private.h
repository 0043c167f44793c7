/*
 * What the files of a session's core share: its input and its output, and requests that are passed on while they come.
 */
#ifndef LOCKKEEPER_SESSION_CORE_PRIVATE_H
#define LOCKKEEPER_SESSION_CORE_PRIVATE_H

#include "proxy/session/core/session.h"

/* input.c: its watcher's callback; frees what waited. */
void session_on_io(struct ev_loop *loop, struct ev_io *io, int events);
void session_input_free(struct session *s);
/* Notes that the session's output is within the limits, or nobody's any more. */
void session_within_limit(struct session *s);
/* Forgets messages that wait for the end of a reply. */
void session_held_free(struct session *s);

/* Begins to pass on a request that is not complete (stream.c). DISPATCHED with s->stream set: its bytes, from its first
 * one on, are stream_take's from now on; DISPATCHED without: it has to be complete; DISPATCH_WAIT: try again. */
enum dispatch_result stream_start(struct session *s, const struct resp_request *r, const char *bytes);
/* Whether the stream takes bytes now; the session is made runnable when it does again. */
bool stream_takes(const struct stream *st);
/* Takes the next bytes and returns how many belong to the request; s->stream is NULL behind its last one. *error: NULL,
 * or the protocol error in them. */
size_t stream_take(struct stream *st, const char *data, size_t len, const char **error);
/* Whether an argument is longer than client-query-buffer-limit, as Redis counts it. */
bool stream_over_limit(const struct stream *st, int64_t query_buffer_limit);
/* Ends a request whose rest will not come, without a reply; the node forgets it. */
void stream_drop(struct session *s);

#endif
