/*
 * A model of Redis as far as locks need it: keys with a value, a list or a hash and an expiry, guard records, the
 * commands that applications send, and those that the scripts of scripts/lua/ call. The scripts themselves run in it as
 * they run in Redis. Virtual time, no I/O.
 *
 *   world, traffic ──> model_script, model_renew, ... (scripts.c) ──> the script in liblua (lua.c)
 *          │                                                           │ redis.call (commands.c)
 *          └──> model_native ────────────────────────────────────────> sim_model.c, hashes.c, lists.c
 *
 * model_dump.c and model_against_redis.py hold it against a real Redis.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proxy/lock/engine.h"
#include "proxy/lock/script_constants.h"
#include "proxy/upstream/script.h"
#include "tests/sim/hashes.h"
#include "tests/sim/lists.h"
#include "tests/sim/record.h"

enum {
    MODEL_KEYS = 5,
    USUAL_KEYS = 3, /* enough for most scenarios: circles of waiting workers have more */
    MODEL_VALUE = 40,
    MODEL_TOKEN = LOCK_TOKEN_MAX,
    MODEL_NAME = 40,
    MODEL_MARK = MODEL_KEYS - 1, /* at a witness: the key whose guard record is the mark */
    MODEL_SLACK_MS = 2           /* renew.lua and adopt.lua: a guard record so much off is not moved */
};

/* What the guard record says of a lease (common.lua has its fields); read from the record after each script. */
struct model_guard {
    bool exists, has_value, leased;
    bool text;         /* it has the short form (text.lua) */
    bool hash;         /* kind: its value is a hash lock's field */
    int64_t expire_ms; /* 0 none */
    uint64_t fence;
    int64_t extra;
    char token[MODEL_TOKEN], value[MODEL_VALUE], owner[MODEL_NAME], proxy[MODEL_NAME];
};

struct model_key {
    bool exists, list, hash; /* a list or a hash: of the wrong type for string locks */
    int64_t expire_ms;       /* 0 none */
    char value[MODEL_VALUE];
    struct model_fields fields; /* of a hash */
    struct model_guard guard;
};

/* A string of the data that is fenced, or a watermark beside it. */
struct model_datum {
    bool exists;
    int64_t expire_ms; /* 0 none */
    char text[MODEL_VALUE];
};

struct model {
    int64_t now_ms;
    uint64_t us; /* the clock that fences take: no two leases begin in the same microsecond */
    struct model_key keys[MODEL_KEYS];
    struct model_queue queues[MODEL_KEYS];                  /* beside the keys */
    struct record records[MODEL_KEYS];                      /* the guard records themselves */
    struct model_datum data[MODEL_KEYS], marks[MODEL_KEYS]; /* under each lock */
    int64_t watermarks[MODEL_KEYS]; /* the expiry of each slot's watermark (common.lua); 0: there is none */
    /* PUBLISH, or SPUBLISH; NULL: there is no listener. False: Redis does not know the command. */
    bool (*publish)(void *arg, const char *channel, const char *text, bool sharded);
    void *publish_arg;
    int64_t clock_ms; /* so much its clock is ahead of now_ms: setting it also moves all ends (model_set_clock) */
    unsigned run;     /* how often the server was started again, for INFO's run_id */
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
    OP_DELIFEQ,
    OP_SET_IFEQ, /* of the value that is there */
    OP_HSETEX,   /* with FNX, of one field, whose name is the value; the field may have an expiry */
    OP_HGETDEL,
    OP_HGETEX,
    OP_DELEX,
    OP_MSETEX, /* of one key, with NX */
    OP_KINDS
};

/* DELEX: how it compares the lock's value with its own. IF_DEQ compares digests. */
enum model_comparison { IF_ANY, IF_EQ, IF_NE, IF_DEQ };

enum model_condition { WHEN_ALWAYS, WHEN_NX, WHEN_XX, WHEN_GT, WHEN_LT };

struct model_command {
    enum model_op op;
    enum model_condition when; /* PEXPIRE */
    enum model_comparison compare;
    bool keepttl;  /* SET */
    int64_t ms;    /* expiry: 0 none, negative in the past */
    int64_t by;    /* INCRBY */
    bool composed; /* a script of the application's: the value is none of its arguments */
    char value[MODEL_VALUE];
};

/* A command as it is sent; NULL stands for the key. */
struct model_words {
    unsigned count, number_count;
    const char *words[10];
    char numbers[2][24];
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
    const char *seen;     /* NULL: not known; for list locks the party */
    bool together;        /* adopt.lua: no command came between the script and its two steps */
    uint64_t claim_fence; /* of the claim's lease, 0: the caller does not know it */
    bool data_free;       /* what stands there without a live lease is data for the caller */
    bool pass;            /* the rule lacks the command's kind */
    bool waits;           /* the rule has `wait`: attempts say for how long they have, releases tell other proxies */
    bool sharded;         /* and these do it over the channels of slots */
    const char *late;     /* acquire.lua behind a batch: '+', or '!' or '-' and its fence; NULL: it is not */
    int64_t here_ms, next_ms; /* as in struct lock_waited */
    struct model_command command;
};

struct model_envelope {
    struct model_reply reply;
    enum lock_outcome outcome;
    uint64_t fence;
    int64_t pttl_ms;
    char owner[MODEL_NAME];
    bool leased, pooled, same, elsewhere, short_record;
    unsigned suspects;
    int64_t shifted_ms; /* as in struct lock_result */
    int64_t waits_ms;   /* how long an attempt has waited at another proxy, as that proxy says; 0: none waits */
    bool queue;         /* it may have nine elements */
    unsigned lost;
    char granted[QUEUE_NODE];
};

/* A model is zero at first, but for its clock. Removes all that is in it, and puts the clock to 0; gives back its
 * memory, after which it is zero again. */
void model_reset(struct model *m);
void model_free(struct model *m);

/* The command as Redis runs it by itself. */
struct model_reply model_native(struct model *m, int key, const struct model_command *c);
/* The clock in microseconds, and later than every lease's beginning; at least this from now on. */
uint64_t model_clock_us(const struct model *m);
void model_clock_past(struct model *m, uint64_t us);
/* Removes what has expired. */
void model_expire(struct model *m, int key);
int64_t model_pttl(struct model *m, int key);
/* As model_pttl, but a hash lock ends with its holder's field if the field ends earlier. Without a live lease, all
 * fields count. */
int64_t model_lease_pttl(struct model *m, int key);
/* Sets Redis's clock so much forward, or back. */
void model_set_clock(struct model *m, int64_t by_ms);
/* The live lease's guard record, or NULL. */
const struct model_guard *model_live(struct model *m, int key);

/* scripts.c: adopt.lua before a script of the application's. */
void model_before(struct model *m, int key, const char *attempt);
/* The script for the command; for a script of the application's adopt.lua behind it alone. */
struct model_envelope model_script(struct model *m, int key, const struct model_args *a);
/* PROXY RELEASE is model_script with OP_DEL; renewals are these. */
struct model_envelope model_renew(struct model *m, int key, const char *claim, const char *right, int64_t lease_ms,
                                  int64_t left_ms);

/* An attempt without a script: the transaction that sets guard record and lock. */
struct model_batch {
    const char *attempt, *value, *identity;
    uint64_t fence;
    int64_t ms;  /* the expiry of both */
    bool leased; /* the proxy has chosen it */
};

/* What the transaction answers. */
struct model_batch_answer {
    bool raised;  /* the watermark */
    bool refused; /* there is a guard record already: a hash, or `found` */
    bool found_text;
    bool set; /* the lock */
    struct model_guard found;
};

struct model_batch_answer model_run_batch(struct model *m, int key, const struct model_batch *b);
/* free.lua, or free_all.lua with one lock. Whether it has released the lock. */
bool model_run_free(struct model *m, int key, const char *claim);
/* Whether a guard record, or that of the key, is not of a lease that is over: as far as time and a lock that is a
 * string say. */
bool model_guard_current(const struct model *m, const struct model_guard *g);
bool model_string_live(const struct model *m, const struct model_key *k);

/* The words of a command that is no script of the application's. They live as long as `c` and `out`. */
void model_command_words(const struct model_command *c, struct model_words *out);
/* list_leave.lua. `waits`: the party's nodes are kept for a while. */
void model_queue_leave(struct model *m, int key, const char *party, const char *right, bool waits, int64_t lease_ms);
/* The number of the script that the command goes through, as script_get knows it. */
enum script_id model_script_id(const struct model_args *a);

/* lists.c: whether a list lock is there; its live lease's guard record, or NULL. */
bool model_is_queue(const struct model *m, int key);
const struct model_guard *model_queue_live(struct model *m, int key);
/* Whether the lease is live for the token as well; whether it will be if the head's own party leaves soon. */
bool model_queue_seated(const struct model *m, int key, const char *token);
bool model_queue_early(const struct model *m, int key, const char *token);
/* Finds the party that pushed the node, as far as the guard record knows it. False: it does not. */
bool model_queue_node(const struct model *m, int key, const char *node, struct queue_node *out);
/* The time until which a session of the identity looks that has no node there, in ms; 0: none does. */
int64_t model_queue_homeless(const struct model *m, int key, const char *identity);
/* Redis's commands for lists. */
struct model_reply model_list_native(struct model *m, int key, const struct model_command *c);
/* hashes.c: removes the fields that have expired. */
void model_fields_expire(const struct model *m, struct model_key *k);
/* Redis's commands and the application's scripts for hashes. */
struct model_reply model_hash_native(struct model *m, int key, const struct model_command *c);

/* Removes all of the guard record. */
void model_guard_clear(struct model *m, int key);
/* keys[key].guard and the queue's part of it are what the record says. */
void model_guard_read(struct model *m, int key);
/* Whether an expiry with that condition is set; expire_ms 0: there is none yet. */
bool model_expires(enum model_condition when, int64_t expire_ms, int64_t until_ms);
/* The key is gone. */
void model_gone(struct model_key *k);

enum lock_verb model_verb(const struct model_command *c);
/* Whether a command goes through pass.lua where its rule lacks its kind. */
bool model_may_pass(const struct model_command *c);
/* HSETEX, HGETDEL, HGETEX. */
bool model_has_fields(const struct model_command *c);
/* DELIFEQ, DELEX; whether such a command names the value that the lock must have. */
bool model_compares(const struct model_command *c);
bool model_names_value(const struct model_command *c);
/* Whether Redis itself would not remove the string, because the comparison fails. */
bool model_says_no(const struct model_command *c, const struct model_key *k);
/* Writes DIGEST's reply for the value: 16 digits, from another hash function than Redis's. */
enum { MODEL_DIGEST = 17 };
void model_digest(const char *value, char out[MODEL_DIGEST]);
/* Whether the script gets the position of the value, and which; 0 none. */
int model_value_at(const struct model_command *c);
const char *model_shape(const struct model_command *c);
