/*
 * What a command means to a lock: command and options to verb, script and reply shape. No state, no I/O.
 */
#include <endian.h>
#include <string.h>

#include "proxy/base/bytes.h"
#include "proxy/session/locks/private.h"

struct set_options {
    bool nx, xx, get, keeps;
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
            o->keeps = true;
        } else if (request_arg_is(r, bytes, i, "exat") || request_arg_is(r, bytes, i, "pxat")) {
            o->expiry_ms = LOCK_EXPIRY_OTHER;
            i++;
        } else {
            return false;
        }
    }
    return !(o->nx && o->xx);
}

/* What only writes: data, or the caller's own lock. `value_at` as in struct lock_command. */
static struct lock_command passes(uint32_t value_at, const char *shape) {
    return (struct lock_command){LOCK_PASS, SCRIPT_PASS, value_at, shape, 0, NULL};
}

static bool set_command(const struct resp_request *r, const char *bytes, bool strings, struct lock_command *out) {
    struct set_options o;
    if (!set_options(r, bytes, &o))
        return false;
    int64_t expiry_ms = o.keeps || o.get ? LOCK_EXPIRY_OTHER : o.expiry_ms; /* with GET the reply is the value */
    if (o.nx)
        *out = (struct lock_command){LOCK_ACQUIRE, SCRIPT_ACQUIRE, 2, o.get ? "nil" : "ok", expiry_ms, "SET"};
    else if (o.get && strings)
        *out = (struct lock_command){LOCK_SWAP, SCRIPT_SWAP, 2, "nil", 0, NULL};
    else if (o.xx && !o.get)
        *out = (struct lock_command){LOCK_REWRITE, SCRIPT_REPLACE, 2, "nil", 0, NULL};
    else if (o.expiry_ms && strings)
        *out = (struct lock_command){LOCK_REPLACE, SCRIPT_REPLACE, 2, "ok", 0, NULL};
    else
        *out = passes(2, o.get ? "nil" : "ok");
    return !o.nx || strings;
}

/* INCRBY with a negative number counts down, DECRBY with a negative one up. */
static enum lock_verb count_verb(const struct resp_request *r, const char *bytes, bool decrement) {
    size_t len;
    const char *by = request_arg(r, bytes, 2, &len);
    bool negative = len > 0 && by[0] == '-';
    return negative != decrement ? LOCK_COUNT_DOWN : LOCK_COUNT_UP;
}

/* What acquires a lock that is a string: the rest of set_command's. Without that kind, what writes a string only
 * writes. */
static bool string_command(const struct command *c, const struct resp_request *r, const char *bytes, bool strings,
                           struct lock_command *out) {
    switch ((int)c->id) {
    case COMMAND_SETNX:
        *out = (struct lock_command){LOCK_ACQUIRE, SCRIPT_ACQUIRE, 2, "int", 0, "SETNX"};
        return strings;
    case COMMAND_MSETNX: /* of one key */
        *out = (struct lock_command){LOCK_ACQUIRE, SCRIPT_ACQUIRE, 2, "int", LOCK_EXPIRY_OTHER, NULL};
        return strings && r->argc == 3;
    case COMMAND_SET:
        return set_command(r, bytes, strings, out);
    case COMMAND_SETEX:
    case COMMAND_PSETEX:
        *out = (struct lock_command){LOCK_REPLACE, SCRIPT_REPLACE, 3, "ok", 0, NULL};
        break;
    default: /* GETSET */
        *out = (struct lock_command){LOCK_SWAP, SCRIPT_SWAP, 2, "nil", 0, NULL};
    }
    if (!strings)
        *out = passes(out->value_at, out->shape);
    return true;
}

/* INCR, DECR, INCRBY, DECRBY. */
static bool count_command(const struct command *c, const struct resp_request *r, const char *bytes, bool counters,
                          struct lock_command *out) {
    if (!counters) {
        *out = passes(0, "int");
        return true;
    }
    enum lock_verb verb = c->id == COMMAND_INCR   ? LOCK_COUNT_UP
                          : c->id == COMMAND_DECR ? LOCK_COUNT_DOWN
                                                  : count_verb(r, bytes, c->id == COMMAND_DECRBY);
    *out = (struct lock_command){verb, SCRIPT_COUNT, 0, "int", 0, NULL};
    return true;
}

/* Commands on one field of a hash, or several. HDEL may release a lock that a script has made. */
static bool hash_command(const struct command *c, bool hashes, struct lock_command *out) {
    enum script_id script = hashes ? SCRIPT_HASH : SCRIPT_PASS;
    bool number = c->id == COMMAND_HSETNX || c->id == COMMAND_HSET || c->id == COMMAND_HINCRBY;
    if (c->id == COMMAND_HDEL)
        *out = (struct lock_command){LOCK_COUNT_DOWN, script, 2, "int", 0, NULL};
    else if (!hashes)
        *out = passes(0, number ? "int" : c->id == COMMAND_HMSET ? "ok" : "nil");
    else
        *out = (struct lock_command){c->id == COMMAND_HSETNX ? LOCK_ACQUIRE : LOCK_REPLACE,
                                     script,
                                     2,
                                     c->id == COMMAND_HSETNX ? "int" : "ok",
                                     0,
                                     NULL};
    return true;
}

/* The queue idioms. */
static bool list_command(const struct command *c, const struct resp_request *r, struct lock_command *out) {
    switch ((int)c->id) {
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
    default: /* LPOP, RPOP */
        *out = (struct lock_command){LOCK_RELEASE, SCRIPT_LIST_POP, 0, r->argc > 2 ? "array" : "nil", 0, NULL};
        return true;
    }
}

bool lock_command_of(const struct command *c, const struct resp_request *r, const char *bytes, unsigned kinds,
                     struct lock_command *out) {
    switch ((int)c->id) {
    case COMMAND_SETNX:
    case COMMAND_MSETNX:
    case COMMAND_SET:
    case COMMAND_SETEX:
    case COMMAND_PSETEX:
    case COMMAND_GETSET:
        return string_command(c, r, bytes, kinds & LOCK_KIND_STRING, out);
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
    case COMMAND_GET:
        *out = (struct lock_command){LOCK_READ, SCRIPT_READ, 0, "nil", 0, NULL};
        return true;
    case COMMAND_APPEND:
    case COMMAND_SETRANGE:
    case COMMAND_SETBIT:
        *out = passes(0, "int");
        return true;
    case COMMAND_INCRBYFLOAT:
        *out = passes(0, "nil");
        return true;
    case COMMAND_INCR:
    case COMMAND_DECR:
    case COMMAND_INCRBY:
    case COMMAND_DECRBY:
        return count_command(c, r, bytes, kinds & LOCK_KIND_COUNTER, out);
    case COMMAND_HSETNX:
    case COMMAND_HSET:
    case COMMAND_HMSET:
    case COMMAND_HINCRBY:
    case COMMAND_HINCRBYFLOAT:
    case COMMAND_HDEL:
        return hash_command(c, kinds & LOCK_KIND_HASH, out);
    case COMMAND_RPUSH:
    case COMMAND_RPUSHX:
    case COMMAND_LPUSH:
    case COMMAND_LPUSHX:
    case COMMAND_LINSERT:
    case COMMAND_LRANGE:
    case COMMAND_LINDEX:
    case COMMAND_LLEN:
    case COMMAND_LPOS:
    case COMMAND_EXISTS:
    case COMMAND_LREM:
    case COMMAND_LSET:
    case COMMAND_LTRIM:
    case COMMAND_LPOP:
    case COMMAND_RPOP:
        return kinds & LOCK_KIND_LIST && list_command(c, r, out);
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

bool lock_clobbers_kinds(const struct command *c, unsigned kinds) {
    switch ((int)c->id) {
    case COMMAND_MSETNX: /* it replaces nothing */
        return kinds & LOCK_KIND_STRING;
    case COMMAND_LMOVE:
    case COMMAND_RPOPLPUSH:
    case COMMAND_LMPOP:
    case COMMAND_BLPOP:
    case COMMAND_BRPOP:
    case COMMAND_BLMOVE:
    case COMMAND_BRPOPLPUSH:
    case COMMAND_BLMPOP: /* they refuse what is no list */
        return kinds & LOCK_KIND_LIST;
    default:
        return true;
    }
}

bool lock_clobbers_database(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *db) {
    bool named = false;
    for (size_t i = 3; c->id == COMMAND_COPY && i + 1 < r->argc; i++) {
        size_t len;
        int64_t n;
        const char *number = request_arg(r, bytes, i + 1, &len);
        if (!request_arg_is(r, bytes, i, "db"))
            continue;
        if (!resp_integer(number, len, &n) || n < 0 || n > INT32_MAX)
            return false; /* Redis says so */
        *db = (uint32_t)n;
        named = true;
        i++;
    }
    return named;
}
