/*
 * Rooms, as the session's core knows them: tables of callbacks for events of workers and sessions. A room is a folder
 * of proxy/session/. commands/ lists all tables, next to its dispatch function; a worker is made with that list.
 *
 *      commands ── session_hooks ──> worker ──> core ── dispatch ──> commands
 *                                                 └──── events ────> each room that hears them
 */
#pragma once

#include <stddef.h>

#include "parser/command.h"
#include "proxy/upstream/upstream.h"

struct call;
struct session;
struct worker;

/* Events of a session that are only reported if a room has set the bit in session->hears. Most sessions have none. */
enum session_hears {
    HEARS_REQUEST = 1,  /* request_over */
    HEARS_REPLY = 2,    /* reply_over */
    HEARS_CALL = 4,     /* before_call */
    HEARS_TICK = 8,     /* tick */
    HEARS_FIRST = 16,   /* request_first: set when the session opens */
    HEARS_WRITES = 32,  /* lock_written */
    HEARS_WRITTEN = 64, /* reply_over, as HEARS_REPLY: a write of the session has ended */
    HEARS_NEXT = 128    /* request_next */
};

/* Where each room's state of a session begins in session->room; it ends where the next one begins. Only the room knows
 * what is there, and asserts that it fits. All bytes are 0 when the session opens. */
enum room_at {
    ROOM_TRANSACTION = 0,
    ROOM_PUSH = 8,
    ROOM_LOCKS = 32,
    ROOM_COMMANDS = 56,
    ROOM_CLUSTER = 88,
    ROOM_END = 89
};

/* The callbacks of a room. Each may be NULL. */
struct session_room {
    /* A worker is being made: it has a loop, and no upstream yet. */
    void (*worker_opens)(struct worker *w);
    /* A worker is being freed: its sessions are gone, its upstream is there yet. */
    void (*worker_ends)(struct worker *w);
    /* A worker is being freed: its sessions and its upstream are gone. */
    void (*worker_closes)(struct worker *w);
    /* For the first worker: nodes can be asked; clients are not accepted yet. */
    void (*worker_begins)(struct worker *w);
    /* A node has answered for the first time that it serves clients without login. */
    void (*worker_serves)(struct worker *w);
    /* Once a second, in the first worker, unless the process was stopped: it may ask Redis questions of its own. */
    void (*worker_asks)(struct worker *w);
    /* A second is over. */
    void (*worker_ticks)(struct worker *w);
    /* The worker has new rules; it only serves its present clients from now on; it begins to stop. */
    void (*worker_rules)(struct worker *w);
    void (*worker_leaves)(struct worker *w);
    void (*worker_stops)(struct worker *w);

    /* The session has ended, and its socket is closed: the room frees its state of the session. */
    void (*closes)(struct session *s);
    /* The client of a blocked session has shut down its side. May close the session. */
    void (*half_closed)(struct session *s);
    /* The client of a session with DELAY_EVENT has sent more, or has shut down its side. May close the session. */
    void (*speaks)(struct session *s);
    /* Changes the lane for a pin that the session is about to open. */
    void (*pin_lane)(const struct session *s, struct upstream_lane *lane);

    /* A request has been dispatched. */
    void (*request_over)(struct session *s);
    /* One of the session's first requests has come; called until a room clears HEARS_FIRST. */
    void (*request_first)(struct session *s);
    /* The session begins another request while earlier ones have not ended. */
    void (*request_next)(struct session *s);
    /* A request has ended: perhaps no reply is being written now. */
    void (*reply_over)(struct session *s);
    /* Returns a call, without a request, that must be sent right before `c`, with its bytes; NULL: none. */
    struct call *(*before_call)(struct session *s, struct call *c, const char **bytes, size_t *len);
    /* A lock command of the session has changed this key, by a script. Called while its answer is being read. */
    void (*lock_written)(struct session *s, const char *key, size_t len);
    /* A second is over. */
    void (*tick)(struct session *s);
};

enum dispatch_result {
    DISPATCHED,
    DISPATCH_WAIT /* earlier requests have to end first */
};

/* What to do with a request that is too long to be buffered, once its head has come. */
enum stream_way {
    STREAM_NOT,   /* it must be complete before it is dispatched */
    STREAM_LATER, /* earlier requests have to end first */
    STREAM_NOW    /* it is forwarded while it arrives */
};

struct session_hooks {
    /* Handles one complete request of the session. `bytes` is what is forwarded (r->len bytes, canonical). */
    enum dispatch_result (*dispatch)(struct session *s, const struct resp_request *r, const char *bytes);
    /* Whether an incomplete request can be forwarded: its rest must not be able to change its destination. *slot as for
     * session_forward. */
    enum stream_way (*streams)(struct session *s, const struct resp_request *r, const char *bytes,
                               const struct command **command, int *slot);
    /* The call, whose session may be gone, has taken long, or has failed: upstream_request_ops.late. */
    void (*late)(const struct call *c, const struct upstream_late *late);
    const struct session_room *const *rooms; /* ends with NULL */
};

/* Calls a callback of each room that has it, for a worker w, with `arg`: the worker or a session. */
#define ROOMS_CALL(w, callback, arg)                                                                                   \
    for (const struct session_room *const *room = (w)->hooks->rooms; *room; room++)                                    \
        if ((*room)->callback)                                                                                         \
    (*room)->callback(arg)
