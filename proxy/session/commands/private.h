/*
 * What the files behind dispatch share: CLIENT (client.c, client_admin.c, client_show.c), PROXY, what is refused, and
 * what is queued inside MULTI (queue.c).
 */
#ifndef LOCKKEEPER_SESSION_COMMANDS_PRIVATE_H
#define LOCKKEEPER_SESSION_COMMANDS_PRIVATE_H

#include "proxy/session/commands/commands.h"
#include "proxy/session/core/session.h"

/* It is not to be had through the proxy; `what` ends the sentence with the reason. */
void refuse_command(struct session *s, const struct command *c, const char *what);
/* It comes before authentication, and does not lead to it. `c` NULL: the table lacks it. */
void refuse_unauthenticated(struct session *s, const struct command *c, const struct resp_request *r,
                            const char *bytes);

/* The PROXY family. */
enum dispatch_result proxy_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);

/* A request inside MULTI; c NULL: not in the table. */
enum dispatch_result transaction_queue(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes);
/* ---- CLIENT ----------------------------------------------------------------------------------------- */

enum dispatch_result client_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes);

/* What becomes of a CLIENT command inside MULTI. */
enum client_way {
    CLIENT_ANSWERED,  /* by the proxy at EXEC */
    CLIENT_SHOWN,     /* the same, and the node may be sent it as well, which says what is wrong with it */
    CLIENT_FORWARDED, /* by the node */
};
enum client_way client_way_in_multi(const struct session *s, const struct resp_request *r, const char *bytes);
/* Redis's rule for names that appear in CLIENT LIST. */
bool client_name_ok(const char *name, size_t len);
/* Replaces a text of the session's; len 0: none. */
void client_set_text(char **field, const char *text, size_t len);

/* CLIENT LIST KILL PAUSE UNPAUSE UNBLOCK. False: the words are not right, or it is another subcommand: the node says
 * what is wrong. */
bool client_admin(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* "normal", "pubsub", ... in any case. */
enum client_kind client_kind_named(const char *name, size_t len);
/* The client's line of CLIENT LIST, with its line feed. */
void client_show(struct session *s, struct text *out);
/* Where it came from, and where to: "10.0.0.5:3321". Both write at most SESSION_ADDRESS_MAX * 2 bytes. */
enum { CLIENT_ADDRESS_MAX = 2 * SESSION_ADDRESS_MAX };
void client_address(const struct session *s, char *out);
void client_local_address(const struct session *s, char *out);

#endif
