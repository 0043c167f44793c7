/*
 * Transactions: each has a connection of its own from WATCH, or from the first queued command with a key, to EXEC. What
 * is queued, and in which form, is up to whoever queues it; what becomes of each element is in its item.
 */
#ifndef LOCKKEEPER_SESSION_TRANSACTION_TRANSACTION_H
#define LOCKKEEPER_SESSION_TRANSACTION_TRANSACTION_H

#include "proxy/session/core/pin.h"
#include "proxy/session/locks/locks.h"

/* Deals with MULTI EXEC DISCARD WATCH UNWATCH outside of MULTI, and all but UNWATCH inside. */
enum dispatch_result transaction_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                          const char *bytes);
/* The connection of a session that watches, for SELECT, AUTH and HELLO, which change it too: it serves nobody else
 * afterwards. NULL: there is none. */
struct upstream_pin *transaction_pin_to_change(struct session *s);
/* Whether a command that changes data is queued. */
bool transaction_writes(const struct session *s);
/* How many commands are queued, -1 outside of MULTI. */
int64_t transaction_count(const struct session *s);
/* Ends a transaction without EXEC: RESET, or the session is gone. */
void transaction_drop(struct session *s);

/* What the room hears of sessions. */
extern const struct session_room transaction_room;

/* ---- what is queued ---------------------------------------------------------------------------------- */

enum { TRANSACTION_ERROR_MAX = 512 };

/* A queued command whose element of EXEC's array is not the client's. Others need no item. */
enum item_kind {
    ITEM_LOCK,  /* a lock script's envelope */
    ITEM_FIRST, /* a step before a script of the application's: no element of the client's */
    ITEM_STEP,  /* a lock script's envelope behind such a script: no element of the client's */
    ITEM_AUDIT, /* looked at, and passed on as it is */
    ITEM_PLAIN, /* an integer that is summed up */
    ITEM_MADE   /* what `element` makes of it */
};

struct transaction_item;
/* Appends what the node's element is to the client. s NULL: the session is gone. */
typedef void (*item_element_fn)(struct session *s, const struct transaction_item *item, const char *element, size_t len,
                                struct text *out);

struct transaction_item {
    struct list_node link;
    enum item_kind kind;
    uint32_t at;    /* its element */
    uint32_t group; /* so many elements from this one on are one to the client, their sum; 0: in such a group */
    struct lock_call *lock;
    struct audit_note *note;         /* ITEM_AUDIT's */
    struct fence_question *question; /* of a write of fenced data; NULL: it is none */
    const struct command *command;
    size_t len;
    item_element_fn element; /* ITEM_MADE's */
    char bytes[];            /* the request, where that is needed */
};

/* Reads the request that an item keeps; the caller clears *r in any case. False: there is none to be read. */
bool transaction_item_request(const struct transaction_item *item, struct resp_request *r);

struct transaction {
    struct request_owner owner; /* of the EXEC; first */
    struct worker *worker;
    struct upstream_pin *pin;  /* NULL: no node has been chosen, or it is lost */
    int slot;                  /* whose key chose the node, -1 none */
    bool scouting;             /* cluster: the pin's node is any, for what comes before the first key */
    bool multi_sent, multi_ok; /* to the node; it said OK, or did so before on this connection */
    bool aborted;              /* a command was refused here: EXEC says so */
    bool lost;                 /* the node; `error` says how */
    bool writes;               /* a change is queued */
    bool runs_code;            /* a script of the application's is queued */
    bool unclean;              /* something queued may leave a state on the connection */
    uint32_t count;            /* commands queued */
    struct list_node early;    /* struct early: what was queued while scouting, for another node */
    size_t early_bytes;
    struct list_node items;  /* in the order of their elements */
    struct lock_queue locks; /* the items' lock calls */
    size_t lock_count;
    struct fence_looks *looks;              /* at locks elsewhere, before EXEC; NULL: none are under way */
    struct exec_wait *wait;                 /* for replicas, behind EXEC; NULL: not asked, or answered */
    int64_t replicas;                       /* that have what EXEC did */
    uint8_t caching;                        /* enum caching: of a MULTI that has not been sent */
    unsigned hops;                          /* WATCH that was redirected */
    unsigned unsent;                        /* how often its first node was out of reach */
    struct text watched;                    /* the hashes of lock keys that are watched, as uint64_t */
    const struct upstream_request_ops *ops; /* a call's own, while EXEC streams in another way */
    char error[TRANSACTION_ERROR_MAX];
};

struct early {
    struct list_node link;
    size_t len;
    char bytes[];
};

enum readiness {
    READY,
    READY_LATER, /* the node has to answer first */
    READY_NEVER  /* the client was told why */
};

/* Sees to it that the transaction's node takes commands; `slot` is that of the command at hand, or SLOT_NONE. */
enum readiness transaction_ready(struct session *s, const struct command *c, int slot);
/* Whether the transaction watches the key. */
bool transaction_watches(const struct session *s, const char *key, size_t len);
/* Answers a request inside MULTI that will not be queued: EXEC fails. */
enum dispatch_result transaction_refuse(struct session *s, const struct command *c, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
