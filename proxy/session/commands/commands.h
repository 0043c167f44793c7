/*
 * Which way a request goes: the one room that sees all others.
 */
#ifndef LOCKKEEPER_SESSION_COMMANDS_COMMANDS_H
#define LOCKKEEPER_SESSION_COMMANDS_COMMANDS_H

#include "proxy/session/core/request.h"

/* One complete request of the session. `bytes` is what is forwarded (r->len bytes, canonical). */
enum dispatch_result dispatch_request(struct session *s, const struct resp_request *r, const char *bytes);

/* Whether a command that is no mere reading names a guard record as a key; and the answer to it. */
bool dispatch_writes_guard(const struct command *c, const struct resp_request *r, const char *bytes);
#define GUARD_REFUSED "ERR the key is a guard record of lockkeeper's; it can't be changed through the proxy"

/* Whether a request of which this much has come can be forwarded before the rest is there: nothing in the rest can
 * change where it goes. *slot as session_forward has it. */
bool dispatch_streams(struct session *s, const struct resp_request *r, const char *bytes,
                      const struct command **command, int *slot);

/* A command that the proxy answers itself, whatever holds others up: it was queued in MULTI, and EXEC was executed. */
enum dispatch_result dispatch_own(struct session *s, const struct command *c, const struct resp_request *r,
                                  const char *bytes);

/* A command that isn't in the table. */
void dispatch_unknown(struct session *s, const struct resp_request *r, const char *bytes);
/* local.c: AUTH HELLO SELECT QUIT RESET, and CLIENT by client.c; READONLY READWRITE ASKING. */
enum dispatch_result local_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);

/* SELECT, AUTH or HELLO was run inside a transaction, and the node said yes (`element`): the session follows, and the
 * client's element is appended. */
void local_changed(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                   const char *element, size_t len, struct text *out);

/* Whether it is CLIENT TRACKING. */
bool client_is_tracking(const struct command *c, const struct resp_request *r, const char *bytes);

/* pause.c: whether CLIENT PAUSE holds this request; called while there is a pause. The session is a paused one then. */
bool pause_holds(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* The session is not held any more: the pause is over, or it is gone. */
void pause_leave(struct session *s);
void pause_init(struct worker *w);
/* Holds this worker's clients for so long; one that is longer or stricter stays in force. */
void pause_start(struct worker *w, bool all, int64_t ms);
void pause_end(struct worker *w);
/* Whether a request is one that Redis takes for a change, or for something that replicas have to see: these are what
 * a pause of writes holds. */
bool pause_replicates(const struct command *c, const struct resp_request *r, const char *bytes);

enum client_kind { CLIENT_NORMAL, CLIENT_PUBSUB, CLIENT_MASTER, CLIENT_REPLICA, CLIENT_KIND_UNKNOWN };

enum client_kind client_kind_of(const struct session *s);

#endif
