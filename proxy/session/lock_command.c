/*
 * What a command means to a lock: command and options to verb, script and reply shape. No state, no I/O.
 */
#include <endian.h>
#include <string.h>

#include "proxy/base/bytes.h"
#include "proxy/session/lock_flow.h"

struct set_options {
    bool nx, xx, get;
    int64_t expiry_ms; /* as in struct lock_command */
};

/* The ms of EX (by 1000) or PX, as far as they are beyond doubt. */
static int64_t expiry_of(const struct resp_request *r, const char *bytes, size_t i, int64_t by) {
    static const int64_t MAX_MS = (int64_t)1 << 50;
    size_t len;
    int64_t n;
    if (i >= r->argc)
        return LOCK_EXPIRY_OTHER;
    const char *text = request_arg(r, bytes, i, &len);
    if (len > 0 && len < 8 && text[0] != '0') { /* with zeros before them eight digits */
        uint64_t digits, word = le64toh(bytes_head(text, len)) << (64 - 8 * len) | 0x3030303030303030u >> 8 * len;
        return bytes_eight_digits(htole64(word), &digits) ? (int64_t)digits * by : LOCK_EXPIRY_OTHER;
    }
    return resp_integer(text, len, &n) && n > 0 && n <= MAX_MS / by ? n * by : LOCK_EXPIRY_OTHER;
}

#define TWO(a, b) ((unsigned)(a) << 8 | (unsigned)(b))

/* A word of two letters, in small ones; 0: it is none. */
static inline unsigned two_letters(const struct resp_request *r, const char *bytes, size_t i) {
    size_t len;
    const char *word = request_arg(r, bytes, i, &len);
    return len == 2 ? TWO((unsigned char)word[0] | 0x20u, (unsigned char)word[1] | 0x20u) : 0;
}

/* False where they are not what Redis 7.0 accepts, or are compared by Redis itself (IFEQ of newer servers): the command
 * is forwarded then. */
static bool set_options(const struct resp_request *r, const char *bytes, struct set_options *o) {
    *o = (struct set_options){.nx = false};
    for (size_t i = 3; i < r->argc; i++) {
        unsigned word = two_letters(r, bytes, i);
        if (word == TWO('n', 'x')) {
            o->nx = true;
        } else if (word == TWO('p', 'x') || word == TWO('e', 'x')) {
            int64_t by = word == TWO('p', 'x') ? 1 : 1000;
            o->expiry_ms = o->expiry_ms ? LOCK_EXPIRY_OTHER : expiry_of(r, bytes, i + 1, by);
            i++;
        } else if (word == TWO('x', 'x')) {
            o->xx = true;
        } else if (request_arg_is(r, bytes, i, "get")) {
            o->get = true;
        } else if (request_arg_is(r, bytes, i, "keepttl")) {
            o->expiry_ms = LOCK_EXPIRY_OTHER;
        } else if (request_arg_is(r, bytes, i, "exat") || request_arg_is(r, bytes, i, "pxat")) {
            o->expiry_ms = LOCK_EXPIRY_OTHER;
            i++;
        } else {
            return false;
        }
    }
    if (o->get)
        o->expiry_ms = LOCK_EXPIRY_OTHER; /* its reply is the value */
    return !(o->nx && o->xx);
}

static bool set_command(const struct resp_request *r, const char *bytes, struct lock_command *out) {
    struct set_options o;
    if (!set_options(r, bytes, &o))
        return false;
    if (o.nx)
        *out = (struct lock_command){LOCK_ACQUIRE, SCRIPT_ACQUIRE, 2, o.get ? "nil" : "ok", o.expiry_ms, "SET"};
    else if (o.get)
        *out = (struct lock_command){LOCK_SWAP, SCRIPT_SWAP, 2, "nil", 0, NULL};
    else if (o.xx)
        *out = (struct lock_command){LOCK_REWRITE, SCRIPT_REPLACE, 2, "nil", 0, NULL};
    else
        *out = (struct lock_command){LOCK_REPLACE, SCRIPT_REPLACE, 2, "ok", 0, NULL};
    return true;
}

/* INCRBY with a negative number counts down, DECRBY with a negative one up. */
static enum lock_verb count_verb(const struct resp_request *r, const char *bytes, bool decrement) {
    size_t len;
    const char *by = request_arg(r, bytes, 2, &len);
    bool negative = len > 0 && by[0] == '-';
    return negative != decrement ? LOCK_COUNT_DOWN : LOCK_COUNT_UP;
}

bool lock_command_of(const struct command *c, const struct resp_request *r, const char *bytes,
                     struct lock_command *out) {
    switch ((int)c->id) {
    case COMMAND_SETNX:
        *out = (struct lock_command){LOCK_ACQUIRE, SCRIPT_ACQUIRE, 2, "int", 0, "SETNX"};
        return true;
    case COMMAND_MSETNX: /* of one key */
        *out = (struct lock_command){LOCK_ACQUIRE, SCRIPT_ACQUIRE, 2, "int", LOCK_EXPIRY_OTHER, NULL};
        return r->argc == 3;
    case COMMAND_SET:
        return set_command(r, bytes, out);
    case COMMAND_SETEX:
    case COMMAND_PSETEX:
        *out = (struct lock_command){LOCK_REPLACE, SCRIPT_REPLACE, 3, "ok", 0, NULL};
        return true;
    case COMMAND_GETSET:
        *out = (struct lock_command){LOCK_SWAP, SCRIPT_SWAP, 2, "nil", 0, NULL};
        return true;
    case COMMAND_DEL:
        *out = (struct lock_command){LOCK_RELEASE, SCRIPT_RELEASE, 0, "int", 0, "DEL"};
        return true;
    case COMMAND_UNLINK:
        *out = (struct lock_command){LOCK_RELEASE, SCRIPT_RELEASE, 0, "int", 0, "UNLINK"};
        return true;
    case COMMAND_GETDEL:
        *out = (struct lock_command){LOCK_RELEASE, SCRIPT_RELEASE, 0, "nil", 0, "GETDEL"};
        return true;
    case COMMAND_EXPIRE:
    case COMMAND_PEXPIRE:
    case COMMAND_EXPIREAT:
    case COMMAND_PEXPIREAT:
    case COMMAND_PERSIST:
        *out = (struct lock_command){LOCK_EXTEND, SCRIPT_EXTEND, 0, "int", 0, NULL};
        return true;
    case COMMAND_GETEX:
        *out = (struct lock_command){LOCK_EXTEND, SCRIPT_EXTEND, 0, "nil", 0, NULL};
        return true;
    case COMMAND_INCR:
    case COMMAND_APPEND:
    case COMMAND_SETRANGE:
    case COMMAND_SETBIT:
        *out = (struct lock_command){LOCK_COUNT_UP, SCRIPT_COUNT, 0, "int", 0, NULL};
        return true;
    case COMMAND_DECR:
        *out = (struct lock_command){LOCK_COUNT_DOWN, SCRIPT_COUNT, 0, "int", 0, NULL};
        return true;
    case COMMAND_INCRBY:
    case COMMAND_DECRBY:
        *out = (struct lock_command){count_verb(r, bytes, c->id == COMMAND_DECRBY), SCRIPT_COUNT, 0, "int", 0, NULL};
        return true;
    case COMMAND_INCRBYFLOAT:
        *out = (struct lock_command){count_verb(r, bytes, false), SCRIPT_COUNT, 0, "nil", 0, NULL};
        return true;
    case COMMAND_GET:
        *out = (struct lock_command){LOCK_READ, SCRIPT_READ, 0, "nil", 0, NULL};
        return true;
    case COMMAND_HSETNX:
        *out = (struct lock_command){LOCK_ACQUIRE, SCRIPT_HASH, 2, "int", 0, NULL};
        return true;
    case COMMAND_HSET:
    case COMMAND_HMSET:
    case COMMAND_HINCRBY:
    case COMMAND_HINCRBYFLOAT:
        *out = (struct lock_command){LOCK_REPLACE, SCRIPT_HASH, 2, "ok", 0, NULL};
        return true;
    case COMMAND_HDEL:
        *out = (struct lock_command){LOCK_COUNT_DOWN, SCRIPT_HASH, 2, "int", 0, NULL};
        return true;
    case COMMAND_RPUSH:
    case COMMAND_RPUSHX:
    case COMMAND_LPUSH:
    case COMMAND_LPUSHX:
        *out = (struct lock_command){LOCK_QUEUE_PUSH, SCRIPT_LIST_PUSH, 2, "int", 0, NULL};
        return true;
    case COMMAND_LINSERT:
        *out = (struct lock_command){LOCK_QUEUE_PUSH, SCRIPT_LIST_PUSH, 4, "int", 0, NULL};
        return true;
    case COMMAND_LRANGE:
    case COMMAND_LINDEX:
    case COMMAND_LLEN:
    case COMMAND_LPOS:
        *out = (struct lock_command){LOCK_QUEUE_READ, SCRIPT_LIST_READ, 0, "nil", 0, NULL};
        return true;
    case COMMAND_EXISTS: /* of one key */
        *out = (struct lock_command){LOCK_QUEUE_READ, SCRIPT_LIST_READ, 0, "int", 0, NULL};
        return r->argc == 2;
    case COMMAND_LREM:
        *out = (struct lock_command){LOCK_QUEUE_REMOVE, SCRIPT_LIST_REMOVE, 3, "int", 0, NULL};
        return true;
    case COMMAND_LSET:
        *out = (struct lock_command){LOCK_QUEUE_SET, SCRIPT_LIST_SET, 3, "ok", 0, NULL};
        return true;
    case COMMAND_LTRIM:
        *out = (struct lock_command){LOCK_QUEUE_SET, SCRIPT_LIST_TRIM, 0, "ok", 0, NULL};
        return true;
    case COMMAND_LPOP:
    case COMMAND_RPOP:
        *out = (struct lock_command){LOCK_RELEASE, SCRIPT_LIST_POP, 0, r->argc > 2 ? "array" : "nil", 0, NULL};
        return true;
    default:
        return false;
    }
}

/* Appends a key's index. */
static size_t add(uint32_t *keys, size_t max, size_t n, uint32_t index) {
    if (n < max)
        keys[n] = index;
    return n + 1;
}

size_t lock_clobbered_keys(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *keys,
                           size_t max) {
    size_t n = 0;
    uint32_t found[2];
    int count;
    switch ((int)c->id) {
    case COMMAND_RENAME:
    case COMMAND_RENAMENX:
    case COMMAND_LMOVE:
    case COMMAND_RPOPLPUSH:
        n = add(keys, max, n, 1);
        return add(keys, max, n, 2);
    case COMMAND_COPY:
    case COMMAND_BITOP:
        return add(keys, max, n, 2);
    case COMMAND_MOVE:
    case COMMAND_RESTORE:
    case COMMAND_RESTORE_ASKING:
    case COMMAND_BITFIELD:
    case COMMAND_SUNIONSTORE:
    case COMMAND_SINTERSTORE:
    case COMMAND_SDIFFSTORE:
    case COMMAND_ZUNIONSTORE:
    case COMMAND_ZINTERSTORE:
    case COMMAND_ZDIFFSTORE:
    case COMMAND_ZRANGESTORE:
    case COMMAND_GEOSEARCHSTORE:
    case COMMAND_PFMERGE:
    case COMMAND_HSETEX:
    case COMMAND_HGETEX:
    case COMMAND_HGETDEL:
    case COMMAND_HEXPIRE:
    case COMMAND_HPEXPIRE:
    case COMMAND_HEXPIREAT:
    case COMMAND_HPEXPIREAT:
    case COMMAND_HPERSIST:
        return add(keys, max, n, 1);
    case COMMAND_MSET:
    case COMMAND_MSETNX:
        for (uint32_t i = 1; i + 1 < r->argc; i += 2)
            n = add(keys, max, n, i);
        return n;
    case COMMAND_SORT:
    case COMMAND_GEORADIUS:
    case COMMAND_GEORADIUSBYMEMBER:
        return command_keys(c, bytes, r, found, 2) == 2 ? add(keys, max, n, found[1]) : 0; /* the source, STORE's */
    case COMMAND_LMPOP:
    case COMMAND_BLPOP:
    case COMMAND_BRPOP:
    case COMMAND_BLMOVE:
    case COMMAND_BRPOPLPUSH:
    case COMMAND_BLMPOP:
    case COMMAND_MIGRATE:
    case COMMAND_MSETEX:
        count = command_keys(c, bytes, r, keys, max);
        return count > 0 ? (size_t)count : 0;
    default:
        return 0;
    }
}
