/*
 * A model of Redis as far as string locks need it: keys with a value and an expiry, guard records, and what the
 * scripts of scripts/lua/ do with them, each in the words of its Lua. Virtual time, no I/O.
 *
 * model_dump.c and model_against_redis.py hold it against the real scripts in a real Redis.
 */
#ifndef LOCKKEEPER_SIM_MODEL_H
#define LOCKKEEPER_SIM_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "proxy/lock/engine.h"
#include "tests/sim/hashes.h"
#include "tests/sim/lists.h"

enum {
    MODEL_KEYS = 3,
    MODEL_VALUE = 40,
    MODEL_TOKEN = LOCK_TOKEN_MAX,
    MODEL_NAME = 40,
    MODEL_GUARD_OUTLIVES_MS = 10000,
    MODEL_VACANT_MS = 60000
};

struct model_guard {
    bool exists, has_value, has_attempt, leased;
    bool hash;         /* kind: its value is a hash lock's field */
    int64_t expire_ms; /* 0 none */
    uint64_t fence;
    int64_t extra;
    char token[MODEL_TOKEN], value[MODEL_VALUE], owner[MODEL_NAME], proxy[MODEL_NAME];
    char attempt[MODEL_TOKEN], reply[MODEL_VALUE];
    char vacant[MODEL_TOKEN]; /* the attempt that found no lock before its script */
    bool fresh;               /* the record was made for that */
};

struct model_key {
    bool exists, list, hash; /* a list or a hash: of the wrong type for string locks */
    int64_t expire_ms;       /* 0 none */
    char value[MODEL_VALUE];
    struct model_fields fields; /* of a hash */
    struct model_guard guard;
};

/* Refused releases of losers, as the guard record's field `suspect` has them. */
struct model_suspect {
    uint64_t fence;
    unsigned count;
    char attempt[MODEL_TOKEN];
};

struct model {
    int64_t now_ms;
    uint64_t us; /* the clock that fences take */
    struct model_key keys[MODEL_KEYS];
    struct model_queue queues[MODEL_KEYS]; /* beside the keys */
    struct model_suspect suspects[MODEL_KEYS];
};

enum model_op {
    OP_SETNX,
    OP_SET_NX,
    OP_SET_NX_GET,
    OP_SET,
    OP_SET_XX,
    OP_GETSET,
    OP_SET_GET,
    OP_DEL,
    OP_GETDEL,
    OP_PEXPIRE,
    OP_PERSIST,
    OP_GETEX,
    OP_INCRBY,
    OP_MSET,
    OP_GET,
    OP_RPUSH,
    OP_LPUSH,
    OP_LINDEX, /* of the head */
    OP_EXISTS,
    OP_LREM,
    OP_LSET, /* of the head */
    OP_LPOP,
    OP_LUA_SET, /* the application's own scripts: SET NX PX; compare and DEL; compare and PEXPIRE */
    OP_LUA_DEL,
    OP_LUA_PEXPIRE,
    OP_HSETNX, /* of one field, whose name is the value */
    OP_HINCRBY,
    OP_HDEL,
    OP_LUA_ENTER, /* hash locks: reentrant, with one owner; with readers; out again; the watchdog */
    OP_LUA_READ,
    OP_LUA_LEAVE,
    OP_LUA_RENEW,
    OP_KINDS
};

enum model_condition { WHEN_ALWAYS, WHEN_NX, WHEN_XX, WHEN_GT, WHEN_LT };

struct model_command {
    enum model_op op;
    enum model_condition when; /* PEXPIRE */
    bool keepttl;              /* SET */
    int64_t ms;                /* expiry: 0 none, negative in the past */
    int64_t by;                /* INCRBY */
    bool composed;             /* a script of the application's: the value is none of its arguments */
    char value[MODEL_VALUE];
};

enum model_reply_kind { REPLY_INT, REPLY_OK, REPLY_NIL, REPLY_TEXT, REPLY_ERROR };
struct model_reply {
    enum model_reply_kind kind;
    int64_t number;
    char text[MODEL_VALUE];
};

/* ARGV 1 to 8 and the command. */
struct model_args {
    const char *attempt, *claim, *identity, *proxy, *right;
    int64_t lease_ms;
    uint64_t read_fence;
    const char *seen; /* NULL: not known; for list locks the party */
    bool together;    /* adopt.lua: nobody came between the script and its two steps */
    bool data_free;   /* what stands there without a live lease is data for the caller */
    bool pass;        /* the rule lacks the command's kind */
    struct model_command command;
};

struct model_envelope {
    struct model_reply reply;
    enum lock_outcome outcome;
    uint64_t fence;
    int64_t pttl_ms;
    char owner[MODEL_NAME];
    bool leased, pooled, same, elsewhere;
    unsigned suspects;
    bool queue; /* it may have nine elements */
    unsigned lost;
    char granted[QUEUE_NODE];
};

/* The command as Redis runs it by itself. */
struct model_reply model_native(struct model *m, int key, const struct model_command *c);
/* Removes what has expired. */
void model_expire(struct model *m, int key);
int64_t model_pttl(struct model *m, int key);
/* The live lease's guard record, or NULL. */
const struct model_guard *model_live(struct model *m, int key);

/* adopt.lua before a script of the application's. */
void model_before(struct model *m, int key, const char *attempt);
/* The script for the command; for a script of the application's adopt.lua behind it alone. */
struct model_envelope model_script(struct model *m, int key, const struct model_args *a);
/* PROXY RELEASE is model_script with OP_DEL; renewals are these. */
struct model_envelope model_renew(struct model *m, int key, const char *claim, const char *right, int64_t lease_ms,
                                  int64_t left_ms);

/* Whether a list lock is there; its live lease's guard record, or NULL. */
bool model_is_queue(const struct model *m, int key);
const struct model_guard *model_queue_live(struct model *m, int key);
/* lists.c: the scripts for list locks, and the others' where the key is one; model_script and model_renew call them. */
struct model_envelope model_queue_script(struct model *m, int key, const struct model_args *a);
struct model_envelope model_queue_renew(struct model *m, int key, const char *claim, const char *right,
                                        int64_t lease_ms, int64_t left_ms);
/* `waits`: its nodes are kept for a while. */
void model_queue_leave(struct model *m, int key, const char *party, bool waits, int64_t lease_ms);
/* Whether the lease is live for the token as well. */
bool model_queue_seated(const struct model *m, int key, const char *token);
/* Whether it will be if the head's own party leaves soon. */
bool model_queue_early(const struct model *m, int key, const char *token);
/* Nothing is left of the guard record. */
void model_guard_clear(struct model *m, int key);

/* hashes.c: Redis's commands and the application's scripts for them, and hash.lua. */
struct model_reply model_hash_native(struct model *m, int key, const struct model_command *c);
struct model_envelope model_hash_script(struct model *m, int key, const struct model_args *a);
/* The key is gone. */
void model_gone(struct model_key *k);

enum lock_verb model_verb(const struct model_command *c);
/* Whether a command goes through pass.lua where its rule lacks its kind. */
bool model_may_pass(const struct model_command *c);
/* Whether the script gets the position of the value, and which; 0 none. */
int model_value_at(const struct model_command *c);
const char *model_shape(const struct model_command *c);

#endif
