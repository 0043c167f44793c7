/*
 * Request slots, and the calls that requests make to nodes; the words that requests are made of.
 *
 *      session ──< request (a slot in the order of the client's requests) ──< call (one exchange with a node)
 *
 * A request takes one slot and keeps it until its reply has gone to the session's output; replies leave in slot
 * order. Most requests have one call, which is embedded in them; split commands have a call for each part.
 * When a session goes, its requests in flight stay behind without a session until their calls have ended: a lock
 * that is granted to somebody who left has to be accounted for all the same.
 */
#ifndef LOCKKEEPER_SESSION_CORE_REQUEST_H
#define LOCKKEEPER_SESSION_CORE_REQUEST_H

#include <string.h>

#include "parser/command.h"
#include "proxy/session/core/worker.h"

struct session;
struct request;
struct call;
struct lock_call;
struct request_owner;

enum { COLLECTED_LEAST = 64 * 1024 * 1024 /* bytes of a lock script's reply: as long as a value may be, or this */ };
enum { CALL_INLINE = 88 /* bytes of a waiting reply kept without an allocation */ };

/* ---- calls ------------------------------------------------------------------------------------- */

/* How a call ended: a whole reply, or error (without '-' and CR LF) and why. Both borrowed. */
struct call_end {
    const char *reply;
    size_t len;
    const char *error;
    enum upstream_failure why;
};

typedef void (*call_done_fn)(struct call *c, const struct call_end *end);

struct call {
    struct upstream_request up; /* first: the upstream hands this back */
    struct request *request;
    struct list_node link;  /* in request->parts, or the worker's free list */
    call_done_fn done;      /* NULL: bytes go straight to the request's reply */
    struct lock_call *lock; /* the lock command that it carries, or NULL */
    bool overrun;           /* its reply is longer than any that is collected: the rest of it is dropped */
    uint32_t index, count;  /* of a split: first item, items */
    size_t held_len, held_cap;
    char *held_big; /* NULL: held is inline */
    char held[CALL_INLINE];
};

/* Prepares a call of a request; `done` as above. */
void call_init(struct call *c, struct request *r, call_done_fn done);
/* Takes one more call for a split request from the pool, linked into r->parts. */
struct call *call_new(struct request *r, call_done_fn done);
void call_release(struct worker *w, struct call *c);
/* Submits to the node of `slot`. What can't be queued ends at once through `done` or the request's reply. */
void call_submit(struct call *c, int slot, const char *bytes, size_t len);
void call_submit_lane(struct call *c, int slot, const struct upstream_lane *lane, const char *bytes, size_t len);
/* Submits a batch, several commands that nobody else's come between: upstream_submit_batch. */
void call_submit_together(struct call *c, uint8_t leading, int slot, const char *bytes, size_t len);
/* Submits over a connection of the session's own; `asking`: behind an ASKING. */
void call_submit_pin(struct call *c, struct upstream_pin *pin, const char *bytes, size_t len, bool asking);
/* The AUTH of a login that upstream_login_intern knows: whether it is right. */
void call_submit_login(struct call *c, uint32_t login);
/* Submit to one master by its number. */
void call_submit_master(struct call *c, size_t master, const char *bytes, size_t len);
void call_submit_master_lane(struct call *c, size_t master, const struct upstream_lane *lane, const char *bytes,
                             size_t len);

/* ---- requests ---------------------------------------------------------------------------------- */

/* A request's owner is whose it is beside its session's: a command that blocks, a transaction, a split, ... Each has
 * this as its first member, and says what it wants to hear; each function may be NULL. */
struct request_owner_ops {
    /* Tells that the session is gone, and the request is under way, which the owner may end. */
    void (*left)(struct request *r);
    /* Whether the request may take longer than the upstream's timeout, as long as its node answers others. */
    bool (*may_last)(const struct request *r);
    /* Whether nobody wants the request any more: asked when it has waited and would be sent now. */
    bool (*pointless)(const struct request *r);
    /* Frees the owner with a request that has ended and is still the owner's. */
    void (*free)(struct request_owner *owner);
};
struct request_owner {
    const struct request_owner_ops *ops;
};
/* A request's owner as what it is; NULL where there is none. */
#define REQUEST_OWNER(r, type) ((type *)(void *)(r)->owner)

/* What a session may have to remember of a request until it ends. */
struct request {
    struct list_node link;   /* in session->requests; alone once the session is gone */
    struct session *session; /* NULL once it is gone */
    struct worker *worker;
    const struct command *command;
    bool done;    /* the reply is complete */
    bool started; /* part of it is in the session's output */
    bool redirected;
    bool close_after; /* QUIT */
    bool ends_barrier;
    bool silent;       /* owes no reply: it only follows the request before it */
    bool muted;        /* CLIENT REPLY: the client is not told */
    uint8_t lock_busy; /* 1 + the place in session->lock_busy that it occupies, LOCK_BUSY_ALL, 0 none */
    uint32_t parts_left;
    size_t bytes;                /* sent for it */
    struct list_node parts;      /* calls of a split */
    struct request_owner *owner; /* NULL: its session's alone */
    struct call call;
};

/* Functions for an owner that has nothing to say. */
extern const struct request_owner_ops request_owner_silent;
/* Gives the request to an owner, who outlives it or gives it up. */
static inline void request_own(struct request *r, struct request_owner *owner, const struct request_owner_ops *ops) {
    owner->ops = ops;
    r->owner = owner;
}
/* Makes the request nobody's but its session's again: what was its owner is the caller's. */
static inline void request_disown(struct request *r) {
    r->owner = NULL;
}
/* Makes a request, which takes a slot at the end of the session's queue. */
struct request *request_new(struct session *s, const struct command *command);
/* Makes a request of the proxy's own, in no queue; it ends with request_reply(r, "", 0, true). */
struct request *request_internal(struct worker *w);
/* Frees half of the memory that is kept for requests and calls to come; to be called once a second. */
void request_pools_shrink(struct worker *w);
/* Lets go of the only request of its session, which nothing is under way for, and which has no owner: it still counts
 * as in flight, and is to go on as what request_unpark returns. */
void request_park(struct request *r);
struct request *request_unpark(struct session *s, const struct command *command);
/* Has the session's later requests wait until this one has ended: it changes the session's state, or touches keys of
 * theirs in a script, which may have to be sent twice. */
void request_barrier(struct request *r);
/* Adds bytes to the reply; `last` ends the request, which may be freed by the call. */
void request_reply(struct request *r, const char *data, size_t len, bool last);
/* Ends a request with an error line: text without '-' and CR LF. */
void request_error(struct request *r, const char *error);
/* Ends a request because its call failed: request_error, or closes the session where half a reply has left already. */
void request_fail(struct request *r, const char *error);

/* ---- words ----------------------------------------------------------------------------------------- */

/* A command's keys as argument indexes; count as command_keys has it. Every find is followed by a clear. */
enum { KEYS_ON_STACK = 64 };
struct key_list {
    int count;
    uint32_t *keys; /* on_stack, or an allocation */
    uint32_t on_stack[KEYS_ON_STACK];
};
void key_list_find(struct key_list *list, const struct command *c, const struct resp_request *r, const char *bytes);
void key_list_clear(struct key_list *list);
/* The slot of all keys, SLOT_NONE or SLOT_SEVERAL. */
int key_list_slot(const struct resp_request *r, const char *bytes, const uint32_t *keys, size_t count);

/* Whether a key is a guard record's, which the scripts alone may write: whoever else could write one could take a
 * lock. */
static inline bool key_is_guard(const char *key, size_t len) {
    static const char prefix[8] = {'l', 'o', 'c', 'k', 'k', 'e', 'e', 'p'};
    return len > sizeof(prefix) && memcmp(key, prefix, sizeof(prefix)) == 0 && lock_guard_is(key, len);
}
/* Whether one of these keys is a guard record, and the command no mere reading; and the answer to it. */
bool keys_write_guard(const struct command *c, const struct resp_request *r, const char *bytes, const uint32_t *keys,
                      size_t count);
#define GUARD_REFUSED "ERR the key is a guard record of lockkeeper's; it can't be changed through the proxy"

/* Writes argument i as a C string for messages, cut to `size`. */
const char *request_arg_text(const struct resp_request *r, const char *bytes, size_t i, char *out, size_t size);

/* Encodes arguments as a multibulk into w->build: start with the count, then the bulks. */
void build_start(struct worker *w, size_t argc);
void build_bulk(struct worker *w, const void *data, size_t len);
void build_text(struct worker *w, const char *text);
void build_number(struct worker *w, int64_t n);

#endif
