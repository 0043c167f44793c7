/*
 * Rooms, as a session's core knows them: tables of functions. Each room of the session (locks, transaction, push,
 * blocking, cluster, commands) says in one table what it wants to hear of workers and sessions; commands/ lists the
 * tables beside what it does with a request, and a worker is made with that list.
 *
 *      commands ── session_hooks ──> worker ──> core ── dispatch ──> commands
 *                                                 └──── events ────> each room that hears them
 */
#ifndef LOCKKEEPER_SESSION_CORE_ROOM_H
#define LOCKKEEPER_SESSION_CORE_ROOM_H

#include <stddef.h>

#include "parser/command.h"
#include "proxy/upstream/upstream.h"

struct call;
struct request;
struct session;
struct worker;

/* Events of a session that are told only where a room has set the bit in session->hears: most sessions are not
 * asked. */
enum session_hears {
    HEARS_REQUEST = 1, /* request_over */
    HEARS_REPLY = 2,   /* reply_over */
    HEARS_CALL = 4,    /* before_call */
    HEARS_TICK = 8,    /* tick */
    HEARS_FIRST = 16   /* request_first: set as the session opens */
};

/* What a room wants to hear. Each may be NULL. */
struct session_room {
    /* Tells that a worker is being made: it has a loop, and no upstream yet. */
    void (*worker_opens)(struct worker *w);
    /* Tells that a worker is freed: its sessions and its upstream are gone. */
    void (*worker_closes)(struct worker *w);
    /* Tells, in the first worker, that nodes can be asked; clients have not been let in yet. */
    void (*worker_begins)(struct worker *w);
    /* A node has said for the first time that it serves those who have not logged in. */
    void (*worker_serves)(struct worker *w);
    /* Asks the proxy's own questions to Redis: once a second, in the first worker, unless the process stood still. */
    void (*worker_asks)(struct worker *w);
    /* Tells that a second is over. */
    void (*worker_ticks)(struct worker *w);
    /* Tells that the worker has other rules, that it serves its present clients alone from now on, and that it begins
     * to stop. */
    void (*worker_rules)(struct worker *w);
    void (*worker_leaves)(struct worker *w);
    void (*worker_stops)(struct worker *w);

    /* Tells that the session is gone, and its socket closed: the room lets go of what it has for it. */
    void (*closes)(struct session *s);
    /* Tells that the client of a blocked session will say no more. May close the session. */
    void (*half_closed)(struct session *s);
    /* Tells that the client of a session that `waits` says more, or will say no more (half_closed). May close the
     * session. */
    void (*speaks)(struct session *s);
    /* Prepares a lane, which belongs to the session alone, over which a connection of its own is about to be opened. */
    void (*pin_lane)(const struct session *s, struct upstream_lane *lane);

    /* Tells that a request has been dispatched. */
    void (*request_over)(struct session *s);
    /* Hears of the session's first requests too, until a room clears HEARS_FIRST. */
    void (*request_first)(struct session *s);
    /* Tells that a request has ended: there may be no reply that is being written. */
    void (*reply_over)(struct session *s);
    /* Gives what has to go right before a call, as a call of nobody's with its bytes; NULL: nothing. */
    struct call *(*before_call)(struct session *s, struct call *c, const char **bytes, size_t *len);
    /* Tells that a second is over. */
    void (*tick)(struct session *s);
};

enum dispatch_result {
    DISPATCHED,
    DISPATCH_WAIT /* earlier requests have to end first */
};

/* What may become of a request that is too long to be held, of which the beginning has come. */
enum stream_way {
    STREAM_NOT,   /* it has to be complete before it is dispatched */
    STREAM_LATER, /* earlier requests have to end first */
    STREAM_NOW    /* it is passed on while it comes */
};

struct session_hooks {
    /* Deals with one complete request of the session. `bytes` is what is forwarded (r->len bytes, canonical). */
    enum dispatch_result (*dispatch)(struct session *s, const struct resp_request *r, const char *bytes);
    /* Whether a request of which this much has come can be forwarded before the rest is there: nothing in the rest can
     * change where it goes. *slot as session_forward has it. */
    enum stream_way (*streams)(struct session *s, const struct resp_request *r, const char *bytes,
                               const struct command **command, int *slot);
    const struct session_room *const *rooms; /* the last one is followed by NULL */
};

#endif
