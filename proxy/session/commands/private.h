/* What the files of this folder share: CLIENT, PROXY, logins, pauses, and commands in MULTI. */
#pragma once

#include "proxy/session/commands/commands.h"
#include "proxy/session/core/class.h"
#include "proxy/session/fences/fenced.h"
#include "proxy/session/locks/locks.h"

/* ---- what the room keeps of a session --------------------------------------------------------------- */

/* Whether the client may use PROXY: the node's answer, until it is used. */
enum rights { RIGHTS_UNKNOWN, RIGHTS_GRANTED, RIGHTS_REFUSED, RIGHTS_NOT_KNOWN_NOW };

struct command_state {
    struct writes_under_way *writes; /* for read_from.c; NULL: none */
    char last_word[16];              /* the subcommand of session->last; "": none */
    uint8_t rights;                  /* enum rights */
    bool looked_in;                  /* the user had the right to use PROXY when it was last asked */
    bool no_evict;                   /* CLIENT NO-EVICT: is only shown */
    bool reads_away;                 /* replicas may still owe answers to reads, if requests are in flight */
};
_Static_assert(sizeof(struct command_state) <= ROOM_CLUSTER - ROOM_COMMANDS, "the room's state of a session fits");

static inline struct command_state *commands_of(const struct session *s) {
    return session_room(s, ROOM_COMMANDS);
}

#define CROSSSLOT "CROSSSLOT Keys in request don't hash to the same slot"

/* ---- dispatch.c -------------------------------------------------------------------------------------- */

/* The slot of argument i, which may be a key; SLOT_NONE if the request is shorter, or there is no cluster. A command
 * that neither the table nor the asked node knows is routed by argument 1, where most commands have their key. */
int dispatch_arg_slot(const struct session *s, const struct resp_request *r, const char *bytes, size_t i);
/* Lets a request wait for the node's first answer whether it requires a login; refuses it if there is no answer. */
enum dispatch_result refuse_doubted(struct session *s, const struct command *c);

/* ---- read_from.c ------------------------------------------------------------------------------------- */

/* Sends a read the way of read-from, or notes a write; c NULL: not in the table. True: *result is the result. False:
 * the request goes to its master, as it would without read-from. To be called for each request while worker->reads. */
bool read_from_takes(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                     enum dispatch_result *result);
/* Notes a write that is forwarded while it arrives. */
void read_from_streams(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);
/* Which node would answer the command now, for PROXY EXPLAIN: "the master", or a replica and its address. */
void read_from_words(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                     char *out, size_t size);
/* A callback of the room: a request of the session has ended. */
void read_from_reply_over(struct session *s);

/* ---- local.c, proxy_command.c, queued_form.c ----------------------------------------------------------------- */

/* Handles AUTH HELLO SELECT QUIT RESET READONLY READWRITE ASKING, and CLIENT (client_command.c). */
enum dispatch_result local_dispatch(struct session *s, const struct request_class *k);

/* Whether a request of AUTH or HELLO logs in. */
bool local_logs_in(const struct request_class *k);
extern const char LOCAL_TOO_OFTEN[]; /* the error after too many wrong passwords */

/* For a SELECT, AUTH or HELLO in MULTI (item_element_fn): applies its change to the session (NULL: it has ended), and
 * appends the element as the client gets it. */
struct transaction_item;
void local_element(struct session *s, const struct transaction_item *item, const char *element, size_t len,
                   struct text *out);

/* A worker opens, and closes: its record of wrong passwords. */
void wrong_open(struct worker *w);
void wrong_close(struct worker *w);
/* Whether the session's address has sent too many wrong or new logins just now to try this login (0: any). Logins that
 * were valid from the same address before may still be tried. */
bool wrong_too_often(const struct session *s, uint32_t login);
/* A login is queued in MULTI: it counts as a wrong one until its element of EXEC's array has come. */
void wrong_queued(const struct session *s);

/* Handles the PROXY commands. */
enum dispatch_result proxy_dispatch(struct session *s, const struct request_class *k);

/* Asks the node for the rights of clients without login. */
void rights_ask_unauthenticated(struct worker *w);

/* Handles a request in MULTI; c NULL: not in the table. */
enum dispatch_result queue_dispatch(struct session *s, const struct request_class *k);

/* ---- CLIENT ----------------------------------------------------------------------------------------- */

enum dispatch_result client_dispatch(struct session *s, const struct request_class *k);

/* Whether the proxy answers a CLIENT command itself: the number of its arguments is valid, and it is not for a node.
 * CACHING in MULTI is for the node: the transaction's connection tracks keys already. */
bool client_is_own(const struct request_class *k);

/* Whether a name may appear in CLIENT LIST, by Redis's rule. */
bool client_name_ok(const char *name, size_t len);
#define CLIENT_NAME_REFUSED "ERR Client names cannot contain spaces, newlines or special characters."
/* Replaces a text of the session; len 0: removes it. */
void client_set_text(char **field, const char *text, size_t len);

/* ---- pause.c ----------------------------------------------------------------------------------------- */

/* Whether the pause holds this request; called during a pause. If so, the session counts as paused. */
bool pause_holds(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* Ends the hold of a session: the pause is over, or the session has ended. */
void pause_leave(struct session *s);
void pause_init(struct worker *w);
/* To be called once a second: during PROXY PAUSE, sessions may pass that a lost node had held. */
void pause_tick(struct worker *w);
void pause_end(struct worker *w);
/* Whether Redis takes a request for a write, or for something that replicas must see: a pause of writes holds these. */
bool pause_replicates(const struct command *c, const struct resp_request *r, const char *bytes);

/* Run PROXY PAUSE [time], PROXY RESUME and PROXY SWITCH. */
enum dispatch_result proxy_pause(struct session *s, const struct request_class *k);
enum dispatch_result proxy_resume(struct session *s, const struct command *c);
enum dispatch_result proxy_switch(struct session *s, const struct command *c);

/* ---- slow.c ---- */

/* Notes a call that has taken long. */
void slow_note(const struct call *c, const struct upstream_late *late);
