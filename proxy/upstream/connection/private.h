/*
 * What the files of proxy/upstream/connection/ share, and the folders above do not need.
 */
#ifndef LOCKKEEPER_UPSTREAM_CONNECTION_PRIVATE_H
#define LOCKKEEPER_UPSTREAM_CONNECTION_PRIVATE_H

#include "proxy/upstream/connection/connection.h"

/* ---- login.c ---- */

/* Appends the AUTH of a login. Returns how many replies will come (0: no login needed), or -1: no such login. */
int login_append(uint32_t login, const struct upstream_config *config, struct iobuf *out);
/* Whether the login exists; false for login 0. */
bool login_known(uint32_t login);
/* Whether the login was released and forgotten: no session can use it again. */
bool login_is_over(uint32_t login);
/* Whether the login is a lane without AUTH. */
static inline bool login_is_nobody(uint32_t login) {
    return login >= UPSTREAM_LOGIN_STRANGER;
}

/* ---- time.c ---- */

/* Starts the fast tick, since something is in flight. */
void upstream_wake(struct upstream *u);

/* ---- node.c ---- */

/* Frees a pool that has no connections; does nothing otherwise. */
void pool_release(struct upstream_pool *p);
/* Whether the node's addresses are known. If not, starts a lookup of its name; conn_all_resolved follows. */
bool node_resolve(struct upstream_node *n) __attribute__((warn_unused_result));
/* Notes that a connection could not be made, or was lost before it gave one reply. */
void node_failed(struct upstream_node *n, const char *reason);
/* Writes a line about the node to the log; repeats the same line only after a while. */
void node_log(struct upstream_node *n, const char *what, const char *reason);
/* Logs that the node refused a connection, and how many it refused since the last line. Rate-limited: a client whose
 * login was revoked may try as often as it likes. */
void node_log_refusal(struct upstream_node *n, const char *reason);

/* ---- quota.c ---- */

/* The quota of an address, created if needed.
 * quota_put gives it back. */
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

/* Open a connection for a pool or for a pin; NULL: u->error says why. */
struct upstream_conn *conn_open(struct upstream_pool *pool, unsigned index);
struct upstream_conn *conn_open_pinned(struct upstream_pin *pin, struct upstream_node *n);
/* Changes the state of a connection, with its descriptor and watchers. No other function changes the state. */
void conn_set_state(struct upstream_conn *c, enum conn_state state);
/* Takes a connection out of its pool (c->pool is not NULL), so that no more requests follow. Frees the pool if it was
 * the last one. */
void conn_leave_pool(struct upstream_conn *c);
/* Queues the next bytes of the newest request, which must be open. */
void conn_more(struct upstream_conn *c, const char *bytes, size_t len, bool last);
/* Queues bytes that are no request. */
void conn_send_raw(struct upstream_conn *c, const char *bytes, size_t len);
/* Writes what was added to the handshake. */
void conn_go_on(struct upstream_conn *c);

/* ---- handshake.c ---- */

/* Composes the handshake. False: u->error says why that can't be done. */
bool handshake_append(struct upstream_conn *c);
/* Takes a reply to the handshake. `ok` false: the reply was an error, which is accepted only in the prelude. Returns
 * false if the connection was closed. */
bool handshake_taken(struct upstream_conn *c, bool ok);

/* ---- close.c ---- */

/* Retires all connections of the node: requests in flight are answered, and no new request uses them. */
void conn_retire_all(struct upstream_node *n);

/* ---- pin.c ---- */

/* Closes a node's idle pins: all of them, or the one that was idle longest. */
void pin_close_idle(struct upstream_node *n, bool all);

/* Tells the pin that some of what was queued on its connection has been written. */
void pin_written(struct upstream_pin *pin);
/* Hands over bytes that arrived on the pin's connection and answer no request. */
void pin_message(struct upstream_pin *pin, const char *data, size_t len, bool last);
/* Takes the closed connection from its pin, before its requests fail. */
void pin_detach(struct upstream_pin *pin, struct upstream_node *n);
/* Tells the pin's owner that the connection is lost, after its requests have failed. An idle pin is freed at the end of
 * the turn. */
void pin_lost(struct upstream_pin *pin, const char *error);

/* ---- probe.c ---- */

/* Whether the node answers on another connection, as far as is known. If the last answer is old, a PING is sent; until
 * its answer comes the result is true. */
bool probe_answers(struct upstream_node *n, int64_t now);
/* Frees the node's probe. */
void probe_free(struct upstream_node *n);

/* ---- dedicated.c ---- */

/* Counts a connection of a pool's lane, like quota_take. */
bool dedicated_take(const struct upstream_pool *p, struct quota_hold *hold) __attribute__((warn_unused_result));
/* Appends the commands that the lane's connections begin with; returns how many replies will come. */
unsigned dedicated_handshake(struct upstream *u, uint32_t dedicated, struct iobuf *out);
/* Takes the next bytes of a push on a connection whose lane has an owner. c->push is NULL between two pushes, else the
 * part that has come. dedicated_drop_push frees it. */
void dedicated_push(struct upstream_conn *c, const char *data, size_t len, bool last);
void dedicated_drop_push(struct upstream_conn *c);
/* Tells the owner of a dedicated lane that a connection of the lane is gone. */
void dedicated_lost(struct upstream *u, uint32_t dedicated);
/* Whether an idle connection is kept, because its node keeps state for it. */
bool dedicated_keeps(const struct upstream_conn *c);

/* ---- abandon.c ---- */

/* Makes a placeholder for r; it takes over r's bytes and its place in the list. */
struct upstream_request *placeholder_make(struct upstream *u, struct upstream_request *r);

/* ---- batch.c ---- */

/* Takes the next bytes of one of the oldest request's leading replies; `last` with the final bytes. */
void batch_take(struct upstream_conn *c, struct upstream_request *r, const char *data, size_t len, bool last);
/* Ends a batch: the connection forgets its leading replies. `executed`: EXEC answered with an array. */
void batch_end(struct upstream_conn *c, bool executed);

/* ---- reply.c ---- */

void conn_read(struct upstream_conn *c);

#endif
