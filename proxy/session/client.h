/*
 * The CLIENT command: what a client says of itself (client.c), what it asks of all clients (client_admin.c), how a
 * client is shown (client_show.c), client-side caching (tracking.c, tracking_ask.c, redirect.c), and the pause
 * (pause.c).
 */
#ifndef LOCKKEEPER_SESSION_CLIENT_H
#define LOCKKEEPER_SESSION_CLIENT_H

#include "proxy/session/session.h"

/* ---- client.c ------------------------------------------------------------------------------------- */

enum dispatch_result client_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes);

/* What becomes of a CLIENT command inside MULTI. */
enum client_way {
    CLIENT_ANSWERED,  /* by the proxy at EXEC */
    CLIENT_SHOWN,     /* the same, and the node may be sent it as well, which says what is wrong with it */
    CLIENT_FORWARDED, /* by the node */
};
enum client_way client_way_in_multi(const struct session *s, const struct resp_request *r, const char *bytes);
/* Whether it is CLIENT TRACKING. */
bool client_is_tracking(const struct command *c, const struct resp_request *r, const char *bytes);

/* Redis's rule for names that appear in CLIENT LIST. */
bool client_name_ok(const char *name, size_t len);
/* Replaces a text of the session's; len 0: none. */
void client_set_text(char **field, const char *text, size_t len);

/* ---- client_admin.c ------------------------------------------------------------------------------- */

/* CLIENT LIST KILL PAUSE UNPAUSE UNBLOCK. False: the words are not right, or it is another subcommand: the node says
 * what is wrong. */
bool client_admin(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* ---- client_show.c -------------------------------------------------------------------------------- */

enum client_kind { CLIENT_NORMAL, CLIENT_PUBSUB, CLIENT_MASTER, CLIENT_REPLICA, CLIENT_KIND_UNKNOWN };

enum client_kind client_kind_of(const struct session *s);
/* "normal", "pubsub", ... in any case. */
enum client_kind client_kind_named(const char *name, size_t len);
/* The client's line of CLIENT LIST, with its line feed. */
void client_show(struct session *s, struct text *out);
/* Where it came from, and where to: "10.0.0.5:3321". Both write at most SESSION_ADDRESS_MAX * 2 bytes. */
enum { CLIENT_ADDRESS_MAX = 2 * SESSION_ADDRESS_MAX };
void client_address(const struct session *s, char *out);
void client_local_address(const struct session *s, char *out);

/* ---- tracking.c ------------------------------------------------------------------------------------ */

/* CLIENT TRACKING, CACHING, NO-TOUCH, TRACKINGINFO and GETREDIR: tracking_ask.c. */
enum dispatch_result tracking_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes);
struct tracking_state {
    bool on, bcast;
    uint64_t redirect; /* the client who is told, 0: itself */
    bool broken;       /* and is gone */
};
struct tracking_state tracking_state(const struct session *s);
/* What CLIENT CACHING said of the next command. */
enum caching { CACHING_NONE, CACHING_YES, CACHING_NO };
enum caching tracking_next(const struct session *s);
/* It is said of the command at hand, which it was meant for when it came: MULTI, whose node was not known then. */
void tracking_next_set(struct session *s, enum caching caching);
/* These are called where there is a session->tracking. */
/* Once a second. */
void tracking_tick(struct session *s);
/* A request of the client has been dispatched. */
void tracking_request_ends(struct session *s);
/* Where it may have been made within an EXEC: CACHING does not outlast it, and if `stale` the client has read keys that
 * nobody tracks for it. */
void tracking_exec_ends(struct session *s, bool stale);
/* The CLIENT CACHING that has to go right before `c`, as a call of nobody's, or NULL. */
struct call *tracking_caching(struct session *s, struct call *c, const char **bytes, size_t *len);
/* RESET, or the session is gone; does nothing where there is none. */
void tracking_drop(struct session *s);

/* The client who is to be told (if it is still the same) is gone. */
void tracking_broken(struct session *s, uint64_t redirect);

/* ---- redirect.c ----------------------------------------------------------------------------------- */

/* Looks for a client of any thread's, who from then on may be sent messages. `id` and `done` are the caller's, as is
 * the memory until `done` has been called, in the same thread, at once where there is only one. */
struct redirect_look {
    struct tour tour;
    uint64_t id;
    bool found;
    void (*done)(struct redirect_look *look);
};
void redirect_look(struct redirect_look *look, struct worker *w);
/* Tells client `to` that what `s` has cached of these keys (an array, RESP, copied; len 0: all) is stale. Where it is
 * gone tracking_broken is called, maybe at once. */
void redirect_send(struct session *s, uint64_t to, const char *keys, size_t len);
/* CLIENT TRACKINGINFO and GETREDIR of a session that redirects. False: it does not, or the words are not right. */
bool redirect_show(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* ---- pause.c -------------------------------------------------------------------------------------- */

/* The session is not held any more: the pause is over, or it is gone. */
void pause_leave(struct session *s);
void pause_init(struct worker *w);
/* Holds this worker's clients for so long; one that is longer or stricter stays in force. */
void pause_start(struct worker *w, bool all, int64_t ms);
void pause_end(struct worker *w);
/* Whether a request is one that Redis takes for a change, or for something that replicas have to see: these are what
 * a pause of writes holds. */
bool pause_replicates(const struct command *c, const struct resp_request *r, const char *bytes);

#endif
