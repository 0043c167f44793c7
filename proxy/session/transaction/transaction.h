/*
 * Transactions: each uses a pin from WATCH, or from the first queued command with a key, to EXEC. The caller decides
 * what is queued, and in which form; the item of an element describes how the client's element is made.
 */
#pragma once

#include "proxy/session/core/class.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/fences/fenced.h"
#include "proxy/session/locks/locks.h"
#include "proxy/session/semaphores/semaphores.h"

/* Handles MULTI EXEC DISCARD WATCH UNWATCH outside of MULTI, and all but UNWATCH in MULTI. */
enum dispatch_result transaction_dispatch(struct session *s, const struct request_class *k);
/* The pin of a session that watches, for SELECT, AUTH and HELLO, which must change it too; it is not used for others
 * afterwards. NULL: there is none. */
struct upstream_pin *transaction_pin_to_change(struct session *s);
/* How many commands are queued; -1: not in MULTI. */
int64_t transaction_count(const struct session *s);
/* Ends a transaction without EXEC: after RESET, or when the session has ended. */
void transaction_drop(struct session *s);

/* The room's callbacks for sessions. */
extern const struct session_room transaction_room;

struct transaction;
_Static_assert(sizeof(struct transaction *) <= ROOM_PUSH - ROOM_TRANSACTION, "the room's state of a session fits");

static inline struct transaction **transaction_at(const struct session *s) {
    return session_room(s, ROOM_TRANSACTION);
}
/* NULL without WATCH and MULTI. */
static inline struct transaction *transaction_of(const struct session *s) {
    return *transaction_at(s);
}

/* ---- queued commands ------------------------------------------------------------------------------------ */

enum { TRANSACTION_ERROR_MAX = 512 };

/* A queued command whose element of EXEC's array is changed or noted. Others need no item. */
enum item_kind {
    ITEM_LOCK,  /* a lock script's envelope */
    ITEM_FIRST, /* a step before an application's script: the client gets no element */
    ITEM_STEP,  /* a lock script's envelope after an application's script: the client gets no element */
    ITEM_PLAIN  /* passed on as `element` makes it; NULL: unchanged, unless witnesses refuse the lock of a script */
};

struct transaction_item;
/* Appends the client's element. s NULL: the session has ended. */
typedef void (*item_element_fn)(struct session *s, const struct transaction_item *item, const char *element, size_t len,
                                struct text *out);

struct transaction_item {
    struct list_node link;
    enum item_kind kind;
    uint32_t at;    /* the index of its element */
    uint32_t group; /* how many elements from here on become one, their sum; 0: it belongs to the group of an
                       earlier item */
    struct lock_call *lock;
    struct audit_note *note;         /* what it does to audited keys; NULL: nothing */
    struct permit_note *permits;     /* what it does to semaphores; NULL: nothing */
    struct fence_question *question; /* for a write of fenced data: its lock check; else NULL */
    const struct command *command;
    size_t len;
    item_element_fn element;
    char bytes[]; /* the request, if it is needed */
};

struct transaction {
    struct request_owner owner; /* of the EXEC, DISCARD or UNWATCH; first */
    struct worker *worker;
    struct upstream_pin *pin;  /* NULL: no node was chosen yet, or it is lost */
    int slot;                  /* the slot of the key that chose the node; -1: none */
    bool scouting;             /* cluster: the pin's node is any node, for commands before the first key */
    bool multi_sent, multi_ok; /* MULTI was sent; the node has said OK to it, or to an earlier one on this connection */
    bool aborted;              /* the proxy has refused a command: EXEC will fail */
    bool lost;                 /* the node is lost; `error` has the reason */
    bool writes;               /* a write is queued */
    bool runs_code;            /* an application's script is queued */
    bool unclean;              /* a queued command may leave state on the connection */
    uint32_t count;            /* commands queued */
    struct list_node early;    /* struct early: commands for the first key's node, queued before it was known */
    size_t early_bytes;
    struct list_node items;  /* in the order of their elements */
    struct lock_queue locks; /* the items' lock calls */
    size_t lock_count;
    struct fence_looks *looks; /* checks of locks in other slots, before EXEC; NULL: none in progress */
    struct request *exec;      /* while witnesses are asked about the locks: the EXEC, whose array has come, */
    struct text voted;         /* and its array */
    struct exec_wait *wait;    /* the WAIT for replicas, after EXEC; NULL: not sent, or answered */
    int64_t replicas;          /* how many replicas have EXEC's writes */
    uint8_t before;            /* session->before for a MULTI that was not sent yet */
    unsigned hops;             /* redirects of WATCH */
    unsigned unsent;           /* how often its first node was out of reach */
    struct text watched;       /* the hashes of lock keys that are watched, as uint64_t */
    const struct upstream_request_ops *ops; /* the call's own functions, while EXEC's reply is streamed with others */
    const char *left_reply; /* for DISCARD and UNWATCH: the client's reply, whatever the node's; NULL: the node's */
    char error[TRANSACTION_ERROR_MAX];
};

struct early {
    struct list_node link;
    size_t len;
    char bytes[];
};

/* Makes the transaction's node ready for commands; `slot` is the current command's, or SLOT_NONE. False: *result is
 * the result, since the node has to answer first, or the client has got the reason. */
bool transaction_ready(struct session *s, const struct command *c, int slot, enum dispatch_result *result);
/* Whether the transaction watches the key. */
bool transaction_watches(const struct session *s, const char *key, size_t len);
/* Whether the transaction can be ended now: false while its MULTI is under way. */
bool transaction_may_end(const struct session *s);
/* Refuses a request in MULTI: it is not queued, and EXEC will fail. */
enum dispatch_result transaction_refuse(struct session *s, const struct command *c, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
