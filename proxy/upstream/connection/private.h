/*
 * What the files of proxy/upstream/connection/ share, and the rooms above do not need.
 */
#ifndef LOCKKEEPER_UPSTREAM_CONNECTION_PRIVATE_H
#define LOCKKEEPER_UPSTREAM_CONNECTION_PRIVATE_H

#include "proxy/upstream/connection/connection.h"

/* ---- login.c ---- */

/* Appends the AUTH of a login. Returns how many replies will come (0: nobody is to log in), -1: no such login. */
int login_append(uint32_t login, const struct upstream_config *config, struct iobuf *out);
/* Whether there is such a login; never of login 0. */
bool login_known(uint32_t login);
/* Whether nobody will be logged in with it any more. */
bool login_is_over(uint32_t login);
/* Whether it is one of those that begin with nobody logged in. */
static inline bool login_is_nobody(uint32_t login) {
    return login >= UPSTREAM_LOGIN_STRANGER;
}

/* ---- time.c ---- */

/* Has the tick look for timeouts, since something is in flight. */
void upstream_wake(struct upstream *u);

/* ---- node.c ---- */

/* Frees a pool that has no connection any more; does nothing to others. */
void pool_release(struct upstream_pool *p);
/* Whether the node's addresses are known. Where they are not, its name is being looked up from now on, and
 * conn_all_resolved follows. */
bool node_resolve(struct upstream_node *n) __attribute__((warn_unused_result));
/* Notes that a connection could not be made, or was lost before it gave one reply. */
void node_failed(struct upstream_node *n, const char *reason);
/* Writes a line about the node to the log; the same line again only after a while. */
void node_log(struct upstream_node *n, const char *what, const char *reason);
/* Writes a line of a connection that the node refused, and of how many there were since the last such line. One in a
 * while: whose login was revoked may try as often as he likes. */
void node_log_refusal(struct upstream_node *n, const char *reason);

/* ---- quota.c ---- */

/* The quota of an address, made if there is none; and gives it back. */
struct quota *quota_get(const char *address);
void quota_put(struct quota *q);
/* Counts a connection that somebody wants for himself. False: he may have none, and u->error says why. */
bool quota_take(struct upstream_node *n, const struct upstream_claim *claim, struct quota_hold *hold)
    __attribute__((warn_unused_result));
/* Gives back what quota_take has counted, if it is still held. */
void quota_give(struct upstream_node *n, struct quota_hold *hold);
/* Whether idle pins take the place of others. */
bool quota_is_tight(struct upstream_node *n);
/* Notes that the node took no more clients. */
void quota_note_full(struct upstream_node *n);

/* ---- conn.c ---- */

/* Open a connection, of a pool or for a pin; NULL: u->error says why. */
struct upstream_conn *conn_open(struct upstream_pool *pool, unsigned index);
struct upstream_conn *conn_open_pinned(struct upstream_pin *pin, struct upstream_node *n);
/* Changes the state of a connection, with what belongs to each; nothing else does. */
void conn_set_state(struct upstream_conn *c, enum conn_state state);
/* Takes a connection out of its pool (c->pool is not NULL), which goes if it was the last: no requests are to
 * follow. */
void conn_leave_pool(struct upstream_conn *c);
/* Queues the next bytes of the newest request, which is open. */
void conn_more(struct upstream_conn *c, const char *bytes, size_t len, bool last);
/* Queues bytes that are no request. */
void conn_send_raw(struct upstream_conn *c, const char *bytes, size_t len);
/* Has what was added to the handshake written. */
void conn_go_on(struct upstream_conn *c);

/* ---- handshake.c ---- */

/* Puts the handshake together. False: u->error says why that can't be done. */
bool handshake_append(struct upstream_conn *c);
/* Takes a reply to the handshake; an error (not `ok`) comes only in the prelude. False: the connection was closed. */
bool handshake_taken(struct upstream_conn *c, bool ok);

/* ---- close.c ---- */

/* Retires all connections of the node: what is under way on them is answered, and nothing new goes over them. */
void conn_retire_all(struct upstream_node *n);

/* ---- pin.c ---- */

/* Closes a node's idle pins: all of them, or the one that has been idle for longest. */
void pin_close_idle(struct upstream_node *n, bool all);

/* Tells the pin that some of what was queued on its connection has been written. */
void pin_written(struct upstream_pin *pin);
/* Hands over bytes that arrived on the pin's connection and answer no request. */
void pin_message(struct upstream_pin *pin, const char *data, size_t len, bool last);
/* Takes the closed connection from its pin, before the requests have failed. */
void pin_detach(struct upstream_pin *pin, struct upstream_node *n);
/* Tells the pin's owner that the connection is lost, when its requests have failed. An idle pin is freed at the end of
 * the turn. */
void pin_lost(struct upstream_pin *pin, const char *error);

/* ---- probe.c ---- */

/* Whether the node has answered a question put to it on another connection, as far as is known: one is put where the
 * last answer is old, and while that is under way the answer is yes. */
bool probe_answers(struct upstream_node *n, int64_t now);
/* Frees the node's probe. */
void probe_free(struct upstream_node *n);

/* ---- dedicated.c ---- */

/* Counts a connection of a pool's lane, as quota_take does it. */
bool dedicated_take(const struct upstream_pool *p, struct quota_hold *hold) __attribute__((warn_unused_result));
/* Appends what a lane's connections begin with; returns how many replies will come. */
unsigned dedicated_handshake(struct upstream *u, uint32_t dedicated, struct iobuf *out);
/* The next bytes of a push on a connection whose lane has an owner. c->push is NULL between two pushes, or what has
 * come of one, and is let go of by dedicated_drop_push. */
void dedicated_push(struct upstream_conn *c, const char *data, size_t len, bool last);
void dedicated_drop_push(struct upstream_conn *c);
/* Tells the owner of a dedicated lane that one of its connections is gone. */
void dedicated_lost(struct upstream *u, uint32_t dedicated);
/* Whether a connection is kept although it is idle: its node remembers something for it. */
bool dedicated_keeps(const struct upstream_conn *c);

/* ---- abandon.c ---- */

/* Makes a placeholder for r, with its bytes and its place in the list. */
struct upstream_request *placeholder_make(struct upstream *u, struct upstream_request *r);

/* ---- batch.c ---- */

/* Takes the next bytes of one of the oldest request's leading replies, the final ones with `last`. */
void batch_take(struct upstream_conn *c, struct upstream_request *r, const char *data, size_t len, bool last);
/* Ends a batch: the connection forgets its leading replies. `executed`: EXEC's array has come. */
void batch_end(struct upstream_conn *c, bool executed);

/* ---- reply.c ---- */

void conn_read(struct upstream_conn *c);

#endif
