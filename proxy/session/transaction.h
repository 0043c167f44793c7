/*
 * What transaction.c (the states and the node), queue.c (what is queued), exec.c (the end) and exec_array.c (what
 * EXEC's array becomes) share.
 */
#ifndef LOCKKEEPER_SESSION_TRANSACTION_H
#define LOCKKEEPER_SESSION_TRANSACTION_H

#include "proxy/session/audit_flow.h"
#include "proxy/session/pinned.h"

enum { TRANSACTION_ERROR_MAX = 512 };

enum transaction_state {
    TRANSACTION_WATCHING, /* WATCH, no MULTI yet */
    TRANSACTION_QUEUEING
};

/* A queued command whose element of EXEC's array is not the client's. Others need no item. */
enum item_kind {
    ITEM_LOCK,  /* a lock script's envelope */
    ITEM_FIRST, /* a step before a script of the application's: no element of the client's */
    ITEM_STEP,  /* a lock script's envelope behind such a script: no element of the client's */
    ITEM_AUDIT, /* looked at, and passed on as it is */
    ITEM_PLAIN, /* an integer that is summed up */
    ITEM_LOCAL, /* a PING in the place of what the proxy answers itself */
    ITEM_STATE, /* SELECT, AUTH, HELLO: changes the session where the node says yes */
    ITEM_KEYS   /* KEYS, SCAN, RANDOMKEY: guard records are left out */
};

struct transaction_item {
    struct list_node link;
    enum item_kind kind;
    uint32_t at;    /* its element */
    uint32_t group; /* so many elements from this one on are one to the client, their sum; 0: in such a group */
    struct lock_call *lock;
    struct audit_note *note; /* ITEM_AUDIT's */
    const struct command *command;
    size_t len;
    char bytes[]; /* ITEM_LOCAL, ITEM_STATE: the request */
};

struct transaction {
    struct worker *worker;
    enum transaction_state state;
    struct upstream_pin *pin; /* NULL: no node has been chosen, or it is lost */
    int slot;                 /* whose key chose the node, -1 none */
    bool scouting;            /* cluster: the pin's node is any, for what comes before the first key */
    bool watched;
    bool multi_sent, multi_ok; /* to the node; it said OK, or did so before on this connection */
    bool aborted;              /* a command was refused here: EXEC says so */
    bool lost;                 /* the node; `error` says how */
    bool writes;               /* a change is queued */
    uint32_t db;               /* while queueing: that of the next command, if each SELECT before it is right */
    bool runs_code;            /* a script of the application's is queued */
    bool unclean;              /* something queued may leave a state on the connection */
    uint32_t count;            /* commands queued */
    struct list_node early;    /* struct early: what was queued while scouting, for another node */
    size_t early_bytes;
    struct list_node items;  /* in the order of their elements */
    struct lock_queue locks; /* the items' lock calls */
    size_t lock_count;
    size_t locals;                          /* ITEM_LOCAL */
    struct exec_wait *wait;                 /* for replicas, behind EXEC; NULL: not asked, or answered */
    int64_t replicas;                       /* that have what EXEC did */
    uint8_t caching;                        /* enum caching: of a MULTI that has not been sent */
    unsigned hops;                          /* WATCH that was redirected */
    unsigned unsent;                        /* how often its first node was out of reach */
    const struct upstream_request_ops *ops; /* a call's own, while EXEC streams in another way */
    char error[TRANSACTION_ERROR_MAX];
};

struct early {
    struct list_node link;
    size_t len;
    char bytes[];
};

enum ready {
    READY,
    READY_LATER, /* the node has to answer first */
    READY_NEVER  /* the client was told why */
};

/* Sees to it that the transaction's node takes commands; `slot` is that of the command at hand, or SLOT_NONE. */
enum ready transaction_ready(struct session *s, const struct command *c, int slot);
/* Answers a request inside MULTI that will not be queued: EXEC fails. */
enum dispatch_result transaction_refuse(struct session *s, const struct command *c, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends the lock calls that have not ended yet, and forgets the items. */
void transaction_items_free(struct transaction *t, struct session *s, const struct call_end *end);
void early_free(struct early *early);
/* Frees it, with the pin; lock calls that have not ended were not sent. */
void transaction_free(struct transaction *t, struct session *s, bool clean);
/* Whether EXEC's reply is an array of what was queued, all of it. */
bool exec_array_whole(const struct transaction *t, const struct call_end *end);
/* Answers the request with such an array, and frees the transaction, which has no pin any more. */
void exec_array_reply(struct transaction *t, struct request *r, const struct call_end *end);
/* Sends EXEC; the request is the transaction's owner from here on. */
void transaction_exec(struct transaction *t, struct request *request);
/* Sends DISCARD or UNWATCH, and answers with `reply` where it is given, else with the node's reply. */
void transaction_leave(struct transaction *t, struct request *request, const char *command, const char *reply);

#endif
