/*
 * Several nodes as one server: split commands (split.c), commands about the whole server (masters.c), the keyspace
 * (keyspace.c), CLUSTER (cluster_command.c), and commands that the table lacks (discover.c).
 */
#pragma once

#include "parser/command_info.h"
#include "proxy/session/core/class.h"

/* Handles commands with keys in several slots, or with lock keys among others (split.c). */
enum dispatch_result split_dispatch(struct session *s, const struct request_class *k);
/* Handles commands about the whole server; on a cluster for one or all of its masters (masters.c). */
enum dispatch_result masters_dispatch(struct session *s, const struct request_class *k);
/* NULL, or the error for a command that makes no sense through a proxy. */
const char *masters_refuses(const struct session *s, const struct request_class *k);
/* Whether all masters of a cluster are asked. */
bool masters_asks_all(const struct request_class *k);

/* Handles the CLUSTER commands in front of a cluster (cluster_command.c). */
enum dispatch_result cluster_dispatch(struct session *s, const struct request_class *k);
/* The error in a CLUSTER request's subcommand or number of arguments, composed in `out`; NULL: none. */
enum { CLUSTER_WRONG_MAX = 256 };
const char *cluster_wrong(const struct request_class *k, char *out, size_t size);

/* Handles KEYS, SCAN and RANDOMKEY; removes guard records from the replies (keyspace.c). */
enum dispatch_result keyspace_dispatch(struct session *s, const struct request_class *k);

/* Forwards a request whose reply is an array of keys to the node of `slot`, and removes guard records from the
 * reply. */
enum dispatch_result keyspace_forward(struct session *s, const struct request_class *k, int slot);

/* Appends the reply of KEYS, SCAN or RANDOMKEY without guard records. */
void keyspace_filter(const struct command *c, bool resp3, const char *reply, size_t len, struct text *out);

/* ---- discover.c: commands that are not in the table, as the node describes them --------------------------- */

/* Finds the row of a request whose command is not in the table: *command, valid while the worker exists; unchanged if
 * the node does not know it either, or does not answer. True: the node is being asked, and the request waits. */
bool discover(struct session *s, const struct resp_request *r, const char *bytes, const struct command **command);
/* For a request on a cluster whose keys only a node can find: asks a node, and forwards the request to the keys' node.
 * False: for all others. */
bool discover_keys(struct session *s, const struct request_class *k);

/* The room's callbacks for workers. */
extern const struct session_room cluster_room;
