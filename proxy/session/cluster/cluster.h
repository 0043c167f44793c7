/*
 * Many nodes as one server: split commands (split.c), commands about the whole server (masters.c), the keyspace
 * (keyspace.c), CLUSTER (cluster.c), and commands that the table lacks (discover.c).
 */
#ifndef LOCKKEEPER_SESSION_CLUSTER_CLUSTER_H
#define LOCKKEEPER_SESSION_CLUSTER_CLUSTER_H

#include "parser/command_info.h"
#include "proxy/session/core/request.h"

/* Deals with multi-key commands over slots, or with lock keys among the others (split.c). */
struct request_class;
enum dispatch_result split_dispatch(struct session *s, const struct request_class *k);
/* Deals with commands about the whole server, on a cluster for one or all of its masters (masters.c). */
enum dispatch_result masters_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                      const char *bytes);
/* NULL, or the error for what makes no sense through a proxy. */
const char *masters_refuses(const struct session *s, const struct command *c, const struct resp_request *r,
                            const char *bytes);
/* Whether a cluster's masters are all asked. */
bool masters_asks_all(const struct command *c, const struct resp_request *r, const char *bytes);

/* Deals with the CLUSTER family (cluster.c). */
enum dispatch_result cluster_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                      const char *bytes);
/* What is wrong with a request of the CLUSTER family as such: no such subcommand, or another number of arguments; NULL:
 * nothing. The text is put into `out`. */
enum { CLUSTER_WRONG_MAX = 256 };
const char *cluster_wrong(const struct resp_request *r, const char *bytes, char *out, size_t size);

/* Deals with KEYS, SCAN and RANDOMKEY, whose replies have no guard records (keyspace.c). */
void keyspace_dispatch(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* Forwards a request whose reply is an array of keys to the node of `slot`, and takes guard records out of it. */
void keyspace_forward(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                      int slot);

/* Keeps the elements of KEYS, SCAN and RANDOMKEY that clients may see: appends the reply without the others. */
void keyspace_filter(const struct command *c, bool resp3, const char *reply, size_t len, struct text *out);

/* ---- discover.c: what the node says of commands that aren't in the table ------------------------------ */

enum discovery {
    DISCOVERED,       /* *command is its row, valid while the worker lives */
    DISCOVERED_LATER, /* the node is being asked: the request waits */
    DISCOVERED_NONE   /* the node does not know it either, or does not tell */
};

/* Finds out what a request is whose name the table lacks. */
enum discovery discover(struct session *s, const struct resp_request *r, const char *bytes,
                        const struct command **command);
/* Whether only the node can tell where a request's keys are. */
bool discover_asks_keys(const struct command *c);
/* Asks the node where a request's keys are, and sends it there. */
void discover_keys(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);
/* How the replies of all masters to a discovered command become one. */
enum command_response discover_response(const struct command *c);

/* What the room hears of workers. */
extern const struct session_room cluster_room;

#endif
