/*
 * Request slots, the calls that requests make to nodes, and the arguments of requests.
 *
 *      session ──< request (a slot in the order of the client's requests) ──< call (one exchange with a node)
 *
 * A request keeps its slot until its reply is in the session's output; replies leave in the order of the slots. Most
 * requests have one call, which is embedded in them; a split command has one for each part. When a session ends, its
 * requests in flight live on until their calls have ended: the engine must hear of a lock that is granted to a client
 * that has left.
 */
#pragma once

#include <string.h>

#include "parser/command.h"
#include "proxy/session/core/session_worker.h"

struct session;
struct request;
struct call;
struct lock_call;
struct request_owner;

enum {
    COLLECTED_LEAST = 64 * 1024 * 1024, /* longest reply of a lock script that is collected, in bytes; or as long as a
                                           value may be, if that is more */
    CALL_INLINE = 88                    /* bytes of a waiting reply kept without an allocation */
};

/* ---- calls ------------------------------------------------------------------------------------- */

/* How a call ended: with a whole reply, or with an error (without '-' and CR LF) and its reason; both borrowed. */
struct call_end {
    const char *reply;
    size_t len;
    const char *error;
    enum upstream_failure why;
};

/* The error that the call ended with, Redis's or the proxy's, of *len bytes without '-' and line end, borrowed. NULL:
 * it ended without one. */
const char *call_end_error(const struct call_end *end, size_t *len);

/* Whether a reply begins with this text; whether it is a redirect to another node. */
static inline bool reply_begins(const char *reply, size_t len, const char *text) {
    return len >= strlen(text) && memcmp(reply, text, strlen(text)) == 0;
}
static inline bool reply_redirects(const char *reply, size_t len) {
    return reply_begins(reply, len, "-MOVED ") || reply_begins(reply, len, "-ASK ");
}

typedef void (*call_done_fn)(struct call *c, const struct call_end *end);

struct call {
    struct upstream_request up; /* first, so that the upstream's pointer is also the call's */
    struct request *request;
    struct list_node link;  /* in request->parts, or the worker's free list */
    call_done_fn done;      /* NULL: the bytes go directly to the request's reply */
    struct lock_call *lock; /* the lock command that it carries, or NULL */
    bool overrun;           /* the reply exceeds the longest that is collected: the rest is dropped */
    uint32_t index, count;  /* of a split: the first item, the number of items */
    size_t held_len, held_cap;
    char *held_big; /* NULL: held is inline */
    char held[CALL_INLINE];
};

/* ops->late of a call's request. */
void call_late(const struct upstream_request *up, const struct upstream_late *late);
/* Prepares a call of a request; `done` as in struct call. */
void call_init(struct call *c, struct request *r, call_done_fn done);
/* Takes another call for a split request from the pool, linked into r->parts. */
struct call *call_new(struct request *r, call_done_fn done);
void call_release(struct worker *w, struct call *c);
/* Submits to the node of `slot`. If it can't be queued, it ends at once, through `done` or with the request's reply. */
void call_submit(struct call *c, int slot, const char *bytes, size_t len);
/* Submits a read to the node that read-from chooses. Returns whether a replica got it. */
bool call_submit_read(struct call *c, int slot, const char *bytes, size_t len);
void call_submit_lane(struct call *c, int slot, const struct upstream_lane *lane, const char *bytes, size_t len);
/* Submits several commands as a batch, without requests of others between them: upstream_submit_batch. */
void call_submit_together(struct call *c, uint8_t leading, int slot, const char *bytes, size_t len);
/* Submits over a pin; `asking`: after an ASKING. */
void call_submit_pin(struct call *c, struct upstream_pin *pin, const char *bytes, size_t len, bool asking);
/* Submits the AUTH of a login from upstream_login_intern, to find out whether it is valid. */
void call_submit_login(struct call *c, uint32_t login);
/* Submits to one master by its number. */
void call_submit_master(struct call *c, size_t master, const char *bytes, size_t len);
/* Submits to this node (NULL: there is none), which need not serve anything. */
void call_submit_node(struct call *c, struct upstream_node *node, const struct upstream_lane *lane, const char *bytes,
                      size_t len);

/* ---- requests ---------------------------------------------------------------------------------- */

/* A request's owner is the structure that it belongs to besides its session: a blocking command, a transaction, a
 * split, ... Each function may be NULL. */
struct request_owner_ops {
    /* The session has ended while the request is in flight; the owner may end the request. */
    void (*left)(struct request *r);
    /* Whether the request may take longer than the upstream's timeout, as long as its node answers others. */
    bool (*may_last)(const struct request *r);
    /* Whether the result is not needed any more: asked before a request is sent that has waited. */
    bool (*pointless)(const struct request *r);
    /* Frees the owner when its request has ended. */
    void (*free)(struct request_owner *owner);
};
struct request_owner { /* the first member of the owner's structure */
    const struct request_owner_ops *ops;
};
/* The owner as its own type; NULL if there is none. */
#define REQUEST_OWNER(r, type) ((type *)(void *)(r)->owner)

/* The state of a request until it ends. */
struct request {
    struct list_node link;   /* in session->requests; in no list once the session has ended */
    struct session *session; /* NULL once the session has ended */
    struct worker *worker;
    const struct command *command;
    bool done;    /* the reply is complete */
    bool started; /* part of it is in the session's output */
    bool redirected;
    bool close_after; /* QUIT */
    bool ends_barrier;
    bool silent;  /* it has no reply of its own, and belongs to the request before it */
    bool muted;   /* CLIENT REPLY: its reply is not sent */
    uint8_t busy; /* 1 + the index in session->busy that it uses, or BUSY_ALL; 0: none */
    uint32_t parts_left;
    size_t bytes;                /* bytes sent for it */
    struct list_node parts;      /* calls of a split command */
    struct request_owner *owner; /* NULL: none besides the session */
    struct call call;
};

/* Functions for an owner that needs no events; for one that is freed with its request besides, with memory_free. */
extern const struct request_owner_ops request_owner_silent, request_owner_freed;
/* Gives the request an owner, which must outlive it or disown it. */
static inline void request_own(struct request *r, struct request_owner *owner, const struct request_owner_ops *ops) {
    owner->ops = ops;
    r->owner = owner;
}
/* Takes the owner away from the request; the caller owns the owner's memory. */
static inline void request_disown(struct request *r) {
    r->owner = NULL;
}
/* Bytes that a request keeps until it ends, as its owner; request_keep copies them. */
struct request_kept {
    struct request_owner owner; /* first */
    size_t len;
    char bytes[]; /* with a NUL after them */
};
void request_keep(struct request *r, const char *bytes, size_t len);
/* Makes a request, with a slot at the end of the session's queue. */
struct request *request_new(struct session *s, const struct command *command);
/* Makes a request of the proxy itself, in no queue, whose call has this `done`; it ends with request_reply(r, "", 0,
 * true). */
struct request *request_internal(struct worker *w, call_done_fn done);
/* Frees half of the memory that is kept for future requests and calls; to be called once a second. */
void request_pools_shrink(struct worker *w);
/* Frees the only request of its session while it waits. No call may be in flight, and it must have no owner. It still
 * counts as in flight; request_unpark makes it again. */
void request_park(struct request *r);
struct request *request_unpark(struct session *s, const struct command *command);
/* Makes the session's later requests wait until the request has ended: it changes the session's state, or is a script
 * on the same keys, which may have to be sent twice. */
void request_barrier(struct request *r);
/* Adds bytes to the reply. `last` ends the request; the call may free it. */
void request_reply(struct request *r, const char *data, size_t len, bool last);
/* Ends a request with an error line: text without '-' and CR LF. */
void request_error(struct request *r, const char *error);
/* Ends a request whose call failed: with request_error; if half a reply has left already, by closing the session. */
void request_fail(struct request *r, const char *error);

/* For `done`, or called by it: ends the request as the call has ended, with the node's reply or an error. */
void call_answer(struct call *c, const struct call_end *end);
/* For `done`: ends a request that has no reply of its own, however its call has ended. */
void call_swallow(struct call *c, const struct call_end *end);

/* ---- arguments --------------------------------------------------------------------------------------- */

/* A command's keys as argument indexes; count as from command_keys. key_list_clear must follow each key_list_find. */
enum { KEYS_ON_STACK = 64 };
struct key_list {
    int count;
    uint32_t *keys; /* on_stack, or allocated memory */
    uint32_t on_stack[KEYS_ON_STACK];
};
void key_list_find(struct key_list *list, const struct command *c, const struct resp_request *r, const char *bytes);
void key_list_clear(struct key_list *list);
/* The slot of all keys; 0 on a standalone; or SLOT_NONE (there are none), SLOT_SEVERAL. */
int key_list_slot(const struct session *s, const struct resp_request *r, const char *bytes, const uint32_t *keys,
                  size_t count);

/* Whether a key is a guard record. Only the scripts may write guard records: a client that could write one could take a
 * lock. */
static inline bool key_is_guard(const char *key, size_t len) {
    static const char prefix[8] = {'l', 'o', 'c', 'k', 'k', 'e', 'e', 'p'};
    return len > sizeof(prefix) && memcmp(key, prefix, sizeof(prefix)) == 0 && lock_guard_is(key, len);
}
/* The error for a command that would write a guard record. */
#define GUARD_REFUSED "ERR the key is a guard record of lockkeeper's; it can't be changed through the proxy"

/* The answer to a request at which an invariant failed before anything was done for it. */
#define INVARIANT_REFUSED "ERR lockkeeper has found a fault of its own (its log says where); nothing was done"

/* The index of argument i in a NULL-terminated list of words in lower case, in any case; -1: it is none of them. */
int request_arg_choice(const struct resp_request *r, const char *bytes, size_t i, const char *const *words);
/* Copies argument i to a C string for messages, cut to `size`. */
const char *request_arg_text(const struct resp_request *r, const char *bytes, size_t i, char *out, size_t size);

/* Appends a page of text, such as INFO's: a verbatim string in RESP3, else a bulk string. */
void append_page(struct text *out, bool resp3, const char *page, size_t len);
/* Encode a multibulk into w->build: first its argument count, then the arguments. */
void build_start(struct worker *w, size_t argc);
void build_bulk(struct worker *w, const void *data, size_t len);
void build_text(struct worker *w, const char *text);
void build_number(struct worker *w, int64_t n);
/* Encodes SET lockkeeper:{TAG} "" XX, which a master of the slot (SLOT_NONE: of slot 0) refuses as it refuses a lock.
 * No key has that name, so it changes nothing. */
void build_lock_question(struct worker *w, int slot);
