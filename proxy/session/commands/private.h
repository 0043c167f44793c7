/*
 * What the files behind dispatch share: CLIENT (client.c, client_admin.c, client_show.c), PROXY, what is refused, and
 * what is queued inside MULTI (queue.c).
 */
#ifndef LOCKKEEPER_SESSION_COMMANDS_PRIVATE_H
#define LOCKKEEPER_SESSION_COMMANDS_PRIVATE_H

#include "proxy/session/commands/commands.h"
#include "proxy/session/core/class.h"
#include "proxy/session/locks/locks.h"

/* ---- classify.c -------------------------------------------------------------------------------------- */

/* The ways that requests go. */
enum way {
    WAY_LATER, /* earlier requests have to end first */

    WAY_SESSION, /* local: answered here */
    WAY_PROXY,
    WAY_REFUSED,     /* with the error of that name */
    WAY_UNSUPPORTED, /* likewise, as refuse_command has it */
    WAY_CLOSE,

    WAY_LOCK,    /* lock: a script, for what the command means to its one lock */
    WAY_CLOBBER, /* and for several locks that the command removes or replaces */
    WAY_FENCED,  /* a write of fenced data, with a question */
    WAY_SCRIPT,  /* the application's own script on locks, between two steps */

    WAY_SPLIT, /* split: several calls, one reply */
    WAY_MASTERS,
    WAY_CLUSTER,
    WAY_KEYSPACE,

    WAY_BLOCKING, /* pinned: a connection of the session's own */
    WAY_WAIT,
    WAY_TRANSACTION,
    WAY_PUBSUB,

    WAY_AUDIT,    /* forward: and a rule looks at the reply */
    WAY_SHOWN,    /* and a hash lock's holder may be in the reply */
    WAY_ADVISE,   /* and PROXY ADVISE does */
    WAY_ASK_KEYS, /* to where a node says that its keys are */
    WAY_FORWARD
};

/* A request with its way. */
struct classified {
    struct request_class class;
    enum way way;
    const char *error; /* WAY_REFUSED's, WAY_UNSUPPORTED's; static */
};
/* Fills *to, which keeps the request and its bytes borrowed; class_clear(&to->class) afterwards. */
void classify(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
              struct classified *to);
/* Classifies a command on one key, argument `key`, with the rule that watches it; fills *to as classify does. */
void classify_key(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  uint32_t key, const struct lock_rule *rule, struct classified *to);

/* ---- dispatch.c -------------------------------------------------------------------------------------- */

/* Dispatches a command that isn't in the table. */
void dispatch_unknown(struct session *s, const struct resp_request *r, const char *bytes);

/* ---- refuse.c ---------------------------------------------------------------------------------------- */

/* Refuses a command that is not to be had through the proxy; `what` ends the sentence with the reason. */
void refuse_command(struct session *s, const struct command *c, const char *what);
/* Lets a request wait for a node's first word on who needs a login, or refuses it where there is none to be had. */
enum dispatch_result refuse_doubted(struct session *s, const struct command *c);
/* Refuses a request that comes before authentication and does not lead to it, or lets it wait for a node's word.
 * `c` NULL: the table lacks its command. */
enum dispatch_result refuse_unauthenticated(struct session *s, const struct command *c, const struct resp_request *r,
                                            const char *bytes);

/* Whether one of its keys is longer than a lock's name may be, and matches an enforced rule. */
bool refuse_long_names(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* ---- local.c, proxy_command.c, queue.c ----------------------------------------------------------------- */

/* Deals with AUTH HELLO SELECT QUIT RESET, and CLIENT by client.c; READONLY READWRITE ASKING. */
enum dispatch_result local_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);

/* Whether a request of AUTH or HELLO logs in. */
bool local_logs_in(const struct command *c, const struct resp_request *r, const char *bytes);
extern const char LOCAL_TOO_OFTEN[]; /* the error for who has given wrong passwords too often */

/* Has the session follow a SELECT, AUTH or HELLO that was run inside a transaction, and to which the node said yes
 * (`element`); the client's element is appended. */
void local_changed(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                   const char *element, size_t len, struct text *out);

/* Deals with the PROXY family. */
enum dispatch_result proxy_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);

/* ---- wrong.c ----------------------------------------------------------------------------------------- */

void wrong_open(struct worker *w);
void wrong_close(struct worker *w);
/* What counts as the login of who gives requirepass: a number that is no client's. */
#define WRONG_LOGIN_DOOR UPSTREAM_LOGIN_TRIED
/* The session has given a wrong password: that of `login`, or, 0, one that has no number. */
void wrong_note(struct session *s, uint32_t login);
/* Whether its address has done so, or has brought new logins, too often just now to try this login (0: any); others
 * that were right from there it may try. */
bool wrong_too_often(const struct session *s, uint32_t login);
/* A login was right; whether nobody has been let in with it lately. */
void wrong_right(const struct session *s, uint32_t login, bool is_new);
/* A login is queued inside MULTI: it counts as a wrong one until its element of EXEC's array is there. */
void wrong_queued(const struct session *s);
void wrong_unqueued(const struct session *s);

/* ---- rights.c ---------------------------------------------------------------------------------------- */

/* A PROXY command: whether its way ends here, with *result: its client's rights are being asked for, or are missing. */
bool rights_wanted(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                   enum dispatch_result *result);
/* Asks the node what those have the right to who have not logged in. */
void rights_ask_strangers(struct worker *w);

/* Deals with a request inside MULTI; c NULL: not in the table. */
enum dispatch_result queue_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);
/* ---- CLIENT ----------------------------------------------------------------------------------------- */

enum dispatch_result client_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes);

/* Whether the proxy answers such a CLIENT command itself: the words are right, and it is not for a node. CACHING inside
 * MULTI is: the transaction's connection tracks keys already. */
bool client_is_own(const struct resp_request *r, const char *bytes);

/* Whether a name may appear in CLIENT LIST, by Redis's rule. */
bool client_name_ok(const char *name, size_t len);
/* Replaces a text of the session's; len 0: none. */
void client_set_text(char **field, const char *text, size_t len);

/* Runs CLIENT LIST KILL PAUSE UNPAUSE UNBLOCK. False: the words are not right, or it is another subcommand: the node
 * says what is wrong. */
bool client_admin(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

enum client_kind { CLIENT_NORMAL, CLIENT_PUBSUB, CLIENT_MASTER, CLIENT_REPLICA, CLIENT_KIND_UNKNOWN };

enum client_kind client_kind_of(const struct session *s);

/* Reads a kind of client, "normal", "pubsub", ... in any case. */
enum client_kind client_kind_named(const char *name, size_t len);
/* Appends the client's line of CLIENT LIST, with its line feed. */
void client_show(struct session *s, struct text *out);
/* Write where a client came from, and where to: "10.0.0.5:3321", at most SESSION_ADDRESS_MAX * 2 bytes. */
enum { CLIENT_ADDRESS_MAX = 2 * SESSION_ADDRESS_MAX };
void client_address(const struct session *s, char *out);
void client_local_address(const struct session *s, char *out);

/* ---- pause.c ----------------------------------------------------------------------------------------- */

/* Whether CLIENT PAUSE holds this request; called while there is a pause. The session is a paused one then. */
bool pause_holds(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* Ends the hold of a session: the pause is over, or the session is gone. */
void pause_leave(struct session *s);
void pause_init(struct worker *w);
void pause_free(struct worker *w);
/* Holds this worker's clients for so long; a pause that is longer or stricter stays in force. */
void pause_start(struct worker *w, bool all, int64_t ms);
void pause_end(struct worker *w);
/* Whether a request is one that Redis takes for a change, or for something that replicas have to see: these are what
 * a pause of writes holds. */
bool pause_replicates(const struct command *c, const struct resp_request *r, const char *bytes);

/* ---- pause_scripts.c ---- */

/* Remembers whether a script writes, by what it says itself: of EVAL, EVAL_RO and SCRIPT LOAD. */
void pause_note_script(const struct command *c, const struct resp_request *r, const char *bytes);
/* Whether EVAL, EVALSHA or their _RO may write, as far as is known. */
bool pause_script_replicates(const struct command *c, const struct resp_request *r, const char *bytes);
/* Whether the function of an FCALL or FCALL_RO may write; ASKED: the request has to come again. */
enum function_verdict { FUNCTION_ASKED, FUNCTION_READS, FUNCTION_WRITES };
enum function_verdict pause_function(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes);

#endif
