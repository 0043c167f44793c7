/*
 * The command table: one row a command says its name, arity, flags, where its keys are, how it splits
 * over slots, and what the proxy needs for it. The rows are facts of Redis 7.0's COMMAND.
 *
 * It knows nothing of locks: proxy/session/ decides by command_id what a command means to a lock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parser/resp.h"

/* How a command with keys in several slots is served. */
enum command_split {
    SPLIT_NONE, /* refused with CROSSSLOT */
    SPLIT_SUM,  /* one part for each slot, integers added: DEL UNLINK EXISTS TOUCH */
    SPLIT_MGET, /* one part for each slot, array put together in the order of the keys */
    SPLIT_MSET  /* one part for each slot, OK if all parts are OK */
};

/* What a command needs of the proxy. */
enum command_need {
    NEED_KEY,         /* forwarded to the node of its keys; without keys, or with malformed ones, to any node */
    NEED_NODE,        /* no key: forwarded to one node, any node (PING, TIME, COMMAND, ...) */
    NEED_MASTERS,     /* no key: one master or all, as the subcommand needs: DBSIZE, SCRIPT, INFO, ... */
    NEED_CLUSTER,     /* CLUSTER: on a cluster the proxy shows itself as the one master of all slots */
    NEED_KEYSPACE,    /* KEYS, SCAN, RANDOMKEY: filtered, on cluster put together from all masters */
    NEED_SESSION,     /* answered or tracked by the session itself: AUTH, HELLO, SELECT, QUIT, CLIENT, RESET, ... */
    NEED_PROXY,       /* the PROXY command */
    NEED_TRANSACTION, /* MULTI EXEC DISCARD WATCH UNWATCH */
    NEED_PUBSUB,      /* SUBSCRIBE and similar; PUBLISH is NEED_NODE or NEED_KEY */
    NEED_BLOCKING,    /* may block: BLPOP, BRPOP, XREAD BLOCK ... (see command_blocks) */
    NEED_REFUSED,     /* makes no sense through a proxy, for example a command that makes the client a replica */
    NEED_CLOSE        /* POST and Host:, which Redis takes for an attack: the connection is closed */
};

enum command_flag {
    COMMAND_WRITE = 1 << 0,
    COMMAND_READONLY = 1 << 1,
    COMMAND_ADMIN = 1 << 2,
    COMMAND_NO_AUTH = 1 << 3,      /* allowed before authentication: AUTH HELLO QUIT RESET */
    COMMAND_MOVABLE_KEYS = 1 << 4, /* the row has a find function */
    COMMAND_RUNS_CODE = 1 << 5,    /* runs code of the application: EVAL EVALSHA FCALL and their _RO */
    COMMAND_ADVISES = 1 << 6, /* a read by which PROXY ADVISE may know a lock or semaphore: LINDEX LRANGE ZCARD ZRANK */
    COMMAND_SECRET = 1 << 7,  /* a password may be among its arguments: AUTH HELLO ACL CONFIG MIGRATE */
    COMMAND_SUBCOMMANDS = 1 << 8 /* Redis names it with its first argument: "client|list" */
};

/* Commands have an id each, in the order of the table: COMMAND_GET, COMMAND_SET, ... A command with subcommands
 * (CLIENT, XGROUP, ...) has one. The command READONLY is COMMAND_READONLY_MODE; COMMAND_READONLY is the flag. */
enum command_id {
    COMMAND_UNKNOWN = 0,
#define COMMAND(id, name, arity, flags, first, last, step, find, split, need) COMMAND_##id,
#include "parser/command_table.h"
#undef COMMAND
    COMMAND_COUNT
};

/* A request whose keys are sought, and its keys as argument indexes: `count` counts all, those within `max` are
 * written. */
struct found_keys {
    const struct command *command;
    const char *data;
    const struct resp_request *request;
    uint32_t *keys;
    size_t max, count;
};

/* Adds the keys of a command whose arguments tell where they are. False: the arguments are malformed. */
typedef bool (*command_find_fn)(struct found_keys *f);

/* Where some of a command's keys are, as Redis 7 describes it (its key specifications). */
enum { KEY_SPEC_KEYWORD_MAX = 32 };
struct key_spec {
    enum { KEYS_BEGIN_UNKNOWN, KEYS_BEGIN_INDEX, KEYS_BEGIN_KEYWORD } begin;
    enum { KEYS_FIND_UNKNOWN, KEYS_FIND_RANGE, KEYS_FIND_KEYNUM } find;
    int at; /* where the keys begin, or the search for the keyword (below 0: from the end backwards) */
    char keyword[KEY_SPEC_KEYWORD_MAX]; /* in lower case; the keys begin after it */
    int last, limit; /* range: up to this index, from the beginning or (below 0) the end; the last key is in the first
                        1/limit of the range */
    int number_at, first; /* keynum: the index of the number of keys, and of the first key */
    int step;
};

struct command {
    enum command_id id;
    const char *name; /* lower case */
    int16_t arity;    /* with the name; negative: at least so many */
    uint16_t flags;
    int16_t first, last, step; /* of the keys, as COMMAND says; first 0: none */
    int16_t only;              /* the index of the key, if the command always has exactly one; else 0 */
    command_find_fn find;      /* NULL if first, last and step give all keys */
    enum command_split split;
    enum command_need need;
    const struct key_spec *specs; /* NULL for the rows of the table: command_info.h */
    uint16_t spec_count;
};

/* Fills the look-up table; main calls it before threads start, tests call it too. */
void command_table_init(void);

/* The row of a name, in any case; NULL if there is none. */
const struct command *command_lookup(const char *name, size_t len);
/* The row of the command that a scanned multibulk (of one argument at least) names; NULL if there is none. */
const struct command *command_of_request(const struct resp_request *request, const char *data);

/* The row of an id other than COMMAND_UNKNOWN. */
const struct command *command_by_id(enum command_id id);

/* Whether the number of arguments fits. */
bool command_arity_ok(const struct command *c, size_t argc);

/* Writes at most `max` argument indexes of keys to `keys`. Returns how many keys there are, which may be more than max.
 * -1: the arguments are malformed, for instance a key of MSET has no value; `keys` is then undefined. Arity must have
 * been checked. */
int command_keys(const struct command *c, const char *data, const struct resp_request *request, uint32_t *keys,
                 size_t max);

/* Whether this very request may block (XREAD and XREADGROUP only with BLOCK). */
bool command_blocks(const struct command *c, const char *data, const struct resp_request *request);

/* How long a request that may block waits at most, in ms. 0: no limit, or Redis will refuse the timeout. */
int64_t command_wait_ms(const struct command *c, const char *data, const struct resp_request *request);

/* Argument i as text: *len bytes, borrowed from `data`. */
static inline const char *request_arg(const struct resp_request *request, const char *data, size_t i, size_t *len) {
    *len = request->argv[i].len;
    return data + request->argv[i].off;
}

/* Reads argument i as an integer in Redis's form (resp_integer). */
static inline bool request_arg_integer(const struct resp_request *request, const char *data, size_t i, int64_t *n) {
    return resp_integer(data + request->argv[i].off, request->argv[i].len, n);
}

/* Whether argument i is this word, in any case. `word` is lower case. */
bool request_arg_is(const struct resp_request *request, const char *data, size_t i, const char *word);
