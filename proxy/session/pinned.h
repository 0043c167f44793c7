/*
 * Sessions in a state that shared connections can't carry, each with connections of its own meanwhile: transactions,
 * blocking commands, subscriptions and MONITOR, replicas, requests that are passed on while they come.
 */
#ifndef LOCKKEEPER_SESSION_PINNED_H
#define LOCKKEEPER_SESSION_PINNED_H

#include "proxy/session/session.h"

/* ---- pins.c --------------------------------------------------------------------------------------- */

enum pin_reason { PIN_TRANSACTION, PIN_BLOCKING, PIN_SUBSCRIBED, PIN_MONITOR, PIN_REPLICA, PIN_STREAM };

/* upstream_pin_open in the session's lane, and upstream_unpin, counted for PROXY INFO. */
struct upstream_pin *pin_take(struct session *s, struct upstream_node *node, enum pin_reason why,
                              const struct upstream_pin_events *events, const char **error)
    __attribute__((warn_unused_result));
void pin_give(struct worker *w, struct upstream_pin *pin, enum pin_reason why, bool clean);

/* The one slot of all keys; 0 on a standalone, or SLOT_NONE, SLOT_SEVERAL. */
int pin_slot(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);
/* The node for it: the slot's, or where that is negative always the same one for a session. NULL: there is none. */
struct upstream_node *pin_node(const struct session *s, int slot);

/* Asks the node who a connection is there, where that is not known yet: in a part of the request, with this index,
 * whose `done` calls pin_number_learnt. */
void pin_ask_number(struct request *r, struct upstream_pin *pin, call_done_fn done, uint32_t index);
void pin_number_learnt(struct upstream_pin *pin, const struct call_end *end);

/* A pin's first request may find its node out of reach so often before the client hears of it: once before the map has
 * been asked for again, and once for that. */
enum { PIN_UNSENT_TWICE = 2 };

/* Where `node` (NULL: none) could not be reached, and nothing that was meant for it was sent. If another node may have
 * taken its place, the map is asked for: true, and the call's `done` gets an error when that is over, to look for the
 * node anew. */
bool pin_await_map(struct call *c, const struct upstream_node *node) __attribute__((warn_unused_result));
/* The same before the request at hand has taken its slot: true, and it is to wait (DISPATCH_WAIT). */
bool pin_await_map_first(struct session *s, const struct upstream_node *node) __attribute__((warn_unused_result));

/* ---- blocking.c ----------------------------------------------------------------------------------- */

/* BLPOP and its kin; *r may block. */
enum dispatch_result blocking_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes);
/* The session of a blocked request is gone: its connection closes. */
void blocking_left(struct request *r);
/* Whether its session is blocked in it. */
bool blocking_is(const struct request *r);
/* For upstream_pin_patient: as long as the command says that it may wait. */
int64_t blocking_patience(const struct command *c, const struct resp_request *r, const char *bytes);
/* The client of a blocked session will say no more: it gets what the node has for it already. May close the session. */
void blocking_half_closed(struct session *s);
/* For CLIENT UNBLOCK: calls `place` with the node where the session is blocked, and who it is there, for the node knows
 * whether it still is; from here on this connection is used for nothing else any more. True: it is at several masters
 * (WAIT), and ends now at all of them, with Redis's error or with what they count by then. */
typedef void (*blocking_place_fn)(void *arg, const char *node, int64_t client);
bool blocking_unblock(struct session *s, bool error, blocking_place_fn place, void *arg);

/* ---- unblock.c ----------------------------------------------------------------------------------- */

/* Begins to end what blocks on a pin of the session's, as CLIENT UNBLOCK with `how` does (borrowed: "TIMEOUT",
 * "ERROR"), whatever overtakes what. Calls `hopeless`, which may stop it, where that can't be done: the node can't be
 * asked, or does not let the session's user. The caller stops it before the pin is given back. */
struct unblock;
typedef void (*unblock_hopeless_fn)(void *arg);
struct unblock *unblock_start(struct session *s, struct upstream_pin *pin, const char *how,
                              unblock_hopeless_fn hopeless, void *arg);
/* The same where the client says no more: the reply is an error then for which unblock_done is true, unless there is
 * another one already. Closes the session where it is hopeless. */
struct unblock *unblock_left(struct session *s, struct upstream_pin *pin);
/* Does nothing with NULL. */
void unblock_stop(struct unblock *u);
bool unblock_done(const struct call_end *end);

/* ---- wait.c -------------------------------------------------------------------------------------- */

/* WAIT, WAITAOF. */
bool wait_is(const struct command *c);
enum dispatch_result wait_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                   const char *bytes);
/* As blocking_left and blocking_half_closed. */
void wait_left(struct request *r);
void wait_half_closed(struct request *r);
/* Ends it at all masters. False: it is about to end already. */
bool wait_unblock(struct request *r, bool error);

/* ---- transaction.c, queue.c ----------------------------------------------------------------------- */

/* MULTI EXEC DISCARD WATCH UNWATCH outside of MULTI, and all but UNWATCH inside. */
enum dispatch_result transaction_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                          const char *bytes);
/* Whether requests are queued. */
bool transaction_queues(const struct session *s);
/* The connection of a session that watches, for SELECT, AUTH and HELLO, which change it too: it serves nobody else
 * afterwards. NULL: there is none. */
struct upstream_pin *transaction_pin_to_change(struct session *s);
/* Whether a change is among them. */
bool transaction_writes(const struct session *s);
/* Whether a request is the EXEC of a transaction with locks and a script of the application's, and under way. */
bool exec_runs_code(const struct request *r);
/* How many, -1 outside of MULTI. */
int64_t transaction_count(const struct session *s);
/* The database of the command at hand: inside MULTI that which the SELECTs before it make. */
uint32_t transaction_db(const struct session *s);
/* A request inside MULTI; c NULL: not in the table. */
enum dispatch_result transaction_queue(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes);
/* Ends it without EXEC: RESET, or the session is gone. */
void transaction_drop(struct session *s);

/* ---- exec_array.c --------------------------------------------------------------------------------- */

/* Where there is a session->replay (the rest of EXEC's array): goes on, once what it waited for has been answered. */
void replay_go_on(struct session *s);
/* The session ends behind what it has: does nothing where there is none. */
void replay_drop(struct session *s);
/* The commands that were queued. */
int64_t replay_count(const struct session *s);

/* ---- pubsub.c ------------------------------------------------------------------------------------ */

/* SUBSCRIBE and its kin, MONITOR. */
enum dispatch_result pubsub_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes);
/* In RESP2's subscribe mode: deals with what is not allowed there, and with PING. False: it goes its normal way. */
bool pubsub_restricts(const struct session *s);
enum dispatch_result pubsub_restricted(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes);
/* No reply is being written: messages that waited for that go out. */
void pubsub_release(struct session *s);
/* What a session listens to. */
struct pubsub_counts {
    int64_t channels, patterns, shards;
    bool monitor;
};
struct pubsub_counts pubsub_count(const struct session *s);
/* Ends all subscriptions: RESET, or the session is gone. */
void pubsub_drop(struct session *s);

/* ---- replica.c ----------------------------------------------------------------------------------- */

/* REPLCONF, SYNC, PSYNC. */
enum dispatch_result replica_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                      const char *bytes);
/* Whether what the session is sent is a master's stream: its requests are for replica_request then; c NULL: not in the
 * table. Works with no session->replica too. */
bool replica_streams(const struct session *s);
enum dispatch_result replica_request(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes);
/* Some of the stream has been written. */
void replica_go_on(struct session *s);
/* The session is no replica any more, if it was one: RESET, another user, or it is gone. */
void replica_drop(struct session *s);

#endif
