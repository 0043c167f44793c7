/*
 * What the files of proxy/upstream/connection/ share, and the folders above do not need. The layers, from the ground; a
 * file calls only files of the lines above its own:
 *
 *      quota                                            limits for single clients
 *      node                                             what connections belong to
 *      conn                                             a connection's states, its queue, batches, writing
 *      close                                            its end, and what the end means for node, pool and pin
 *      login                                            logins, and the handshake
 *      reply                                            reading
 *      connect                                          opening, and the events of the socket
 *      pin  timeout                                     pins for single owners; what is closed, and when
 */
#pragma once

#include "proxy/upstream/connection/connection.h"

enum { LOG_AGAIN_MS = 10 * 1000 /* before a line about a node is repeated */ };

/* ---- login.c ---- */

/* Whether the login was released and forgotten: no session can use it again. */
bool login_is_over(uint32_t login);
/* Whether the login is a lane without AUTH. */
static inline bool login_is_nobody(uint32_t login) {
    return login >= UPSTREAM_LOGIN_STRANGER;
}
/* Composes the handshake. False: u->error says why that can't be done. */
bool handshake_append(struct upstream_conn *c);
/* Takes a reply to the handshake; `error` NULL: it was none. False: the connection was closed. */
bool handshake_taken(struct upstream_conn *c, const char *error);
/* Whether the connection is logged in with a login 0 that has changed since. */
bool conn_login_is_old(const struct upstream_conn *c);
/* Logs a connection in again, if login 0 has changed: for the tick. */
void conn_login_again(struct upstream_conn *c);

/* ---- node.c ---- */

/* The tick's interval in seconds: fast while requests are in flight, slow to close idle connections. */
#define TICK_FAST_S 0.1
#define TICK_SLOW_S 10.
void upstream_set_tick(struct upstream *u, bool fast);
/* Starts the fast tick, since something is in flight. */
void upstream_wake(struct upstream *u);
/* Frees a pool that has no connections; does nothing otherwise. */
void pool_release(struct upstream_pool *p);
/* Notes that a connection could not be made, or was lost before it gave one reply. */
void node_failed(struct upstream_node *n, const char *reason);
/* Writes a line about the node to the log; the same line again only after LOG_AGAIN_MS. */
void node_log(struct upstream_node *n, const char *what, const char *reason);

struct upstream_dedicated {
    struct list_node link;
    uint32_t number;
    char *client;
    struct upstream_dedicated_events events;
    char *commands;   /* one after the other; NULL: none */
    size_t len, last; /* of all commands; where the last one begins */
    unsigned count;
};

/* The dedicated lane of this number. NULL: it has ended, or the number is 0. */
struct upstream_dedicated *dedicated_find(const struct upstream *u, uint32_t number);

/* ---- quota.c ---- */

/* The quota of an address, created if needed; quota_put gives it back. */
struct quota *quota_get(const char *address);
void quota_put(struct quota *q);
/* Counts a connection for a single client. False: the limits do not permit it, and u->error says why. */
bool quota_take(struct upstream_node *n, const struct upstream_claim *claim, struct quota_hold *hold)
    __attribute__((warn_unused_result));
/* Gives back what quota_take has counted, if it is still held. */
void quota_give(struct upstream_node *n, struct quota_hold *hold);
/* Whether idle pins should be closed to make room for other connections. */
bool quota_is_tight(struct upstream_node *n);
/* Notes that the node accepted no more clients. */
void quota_note_full(struct upstream_node *n);

/* ---- conn.c ---- */

/* The lane of a connection; NULL: it is retired. */
static inline const struct upstream_lane *conn_lane(const struct upstream_conn *c) {
    return c->pin ? &c->pin->lane : c->pool ? &c->pool->lane : NULL;
}
/* Changes the state of a connection, with its descriptor and watchers. No other function changes the state. */
void conn_set_state(struct upstream_conn *c, enum conn_state state);
/* Takes a connection out of its pool, so that no more requests follow. Frees the pool if it was the last one. */
void conn_leave_pool(struct upstream_conn *c);
/* Whether the loop tells when the socket takes bytes. */
void conn_want_write(struct upstream_conn *c, bool wanted);
/* Writes as much as the socket takes, as iobuf_write does. */
ssize_t conn_write(struct upstream_conn *c, struct iobuf *from);
/* Ends a batch: the connection forgets its leading replies. `executed`: EXEC answered with an array. */
void batch_end(struct upstream_conn *c, bool executed);

/* ---- close.c ---- */

/* Retires all connections of the node: requests in flight are answered, and no new request uses them. */
void conn_retire_all(struct upstream_node *n);
/* Closes a node's idle pins: all of them, or the one that was idle longest. */
void pin_close_idle(struct upstream_node *n, bool all);
/* Takes a pin out of its node's idle list. */
static inline void pin_leave_idle(struct upstream_pin *pin, struct upstream_node *n) {
    list_remove(&pin->link);
    pin->idle = false;
    n->idle_pin_count--;
}

/* ---- connect.c ---- */

/* Opens a connection for a pool or a pin; the other is NULL. NULL: u->error says why. */
struct upstream_conn *conn_open(struct upstream_node *n, struct upstream_pool *pool, struct upstream_pin *pin);

/* ---- reply.c ---- */

/* Reads what has come; `readable` is the connection's. */
void conn_read(ev_io *readable);
