/*
 * What the files of proxy/session/fences/ share.
 */
#pragma once

#include "proxy/session/fences/fenced.h"
#include "proxy/session/locks/locks.h"

/* A key of fenced data that a write touches, with its lock. */
struct asked {
    const struct lock_rule *rule;        /* the rule with the fence */
    size_t key, key_len, lock, lock_len; /* their places in the question's names */
    struct lock_writing writing;
    uint64_t mark;         /* of a lock in another slot: the watermark is raised to this fence */
    size_t mine, mine_len; /* in names: the fence and the attempt tokens of the transaction; length 0: none */
    uint32_t db;
};

struct fence_looks;

/* The question that goes to Redis together with a write: has the session lost one of the locks? If the write goes
 * alone, inside fence.lua, the question is the owner of its request. */
struct fence_question {
    struct request_owner owner; /* must be the first field */
    struct lock_rules *rules;   /* a reference, which keeps the fences alive */
    enum command_id id;
    bool array; /* the command replies with an array, so its nil is a null array in RESP2 */
    uint8_t protocol;
    int slot; /* of the data */
    struct text names;
    char command[LOCK_COMMAND_MAX], who[SESSION_ADDRESS_MAX + 72];
    struct fence_looks *looks; /* the reads of locks in other slots, before the write; NULL: none are under way */
    struct text head, tail;    /* while the reads are under way: the parts of the call before and after the fences */
    size_t count, here; /* the first `here` of `count` keys have their lock in the slot of the data, the others not */
    struct asked keys[];
};

/* The form of a command that runs inside fence.lua: a name (NULL: the command's own), and its arguments from `first` to
 * before `end`. */
struct nonblocking_form {
    const char *name;
    size_t first, end;
    bool each; /* it takes one key, and is tried for each key until one has an element; the reply names the key */
};
enum { SCRIPT_ARGS_MAX = 7000 /* the most arguments that a script can take */ };
/* Finds the form of a blocking command that does not block. Returns false if the command has none. */
bool nonblocking_form_unblocked(const struct request_class *k, struct nonblocking_form *as);

/* For fence_transaction.c: make the question of a write that goes alone, and build its calls in w->build: first the
 * WATCH of its guard records and watermarks, then the call of fence.lua. That call goes by its source, and the command
 * in it is only PING. A question without keys has nothing more to ask. */
struct fence_question *fence_watch(struct session *s, const struct request_class *k);
void fence_ask(struct session *s, const struct fence_question *q);
/* Whether a reply of fence.lua is its refusal, which fence_reply translates. */
bool fence_refuses(const char *reply, size_t len);
/* Whether the request is a command that blocks until a key has an element, for example BLPOP. */
bool fence_awaits(const struct request_class *k);
/* Sends a write that cannot run inside a script. The session has nothing in flight. */
void fence_transaction_dispatch(struct session *s, const struct request_class *k);
