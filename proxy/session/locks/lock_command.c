/* What a command means to a lock: from the command and its options to a verb, a script and the shape of the reply. */
#include <endian.h>
#include <string.h>

#include "proxy/base/bytes.h"
#include "proxy/session/locks/lock_commands.h"

struct set_options {
    bool nx, xx, get, keeps;
    bool equal, differs; /* IFEQ or IFDEQ; IFNE or IFDNE */
    uint32_t named_at;   /* argument index of IFEQ's value; 0: none */
    int64_t expiry_ms;   /* as in struct lock_command */
};

/* The milliseconds that EX (`by` is 1000) or PX gives. LOCK_EXPIRY_OTHER: the script decides about the number. */
static int64_t expiry_of(const struct resp_request *r, const char *bytes, size_t i, int64_t by) {
    static const int64_t MAX_MS = (int64_t)1 << 50;
    size_t len;
    int64_t n;
    if (i >= r->argc)
        return LOCK_EXPIRY_OTHER;
    const char *text = request_arg(r, bytes, i, &len);
    /* A short number is padded to eight digits, read at once: this saves 2 % of the bound on acquire and release. */
    if (len > 0 && len < 8 && text[0] != '0') {
        uint64_t digits, word = le64toh(bytes_head(text, len)) << (64 - 8 * len) | 0x3030303030303030u >> 8 * len;
        return bytes_eight_digits(htole64(word), &digits) ? (int64_t)digits * by : LOCK_EXPIRY_OTHER;
    }
    return resp_integer(text, len, &n) && n > 0 && n <= MAX_MS / by ? n * by : LOCK_EXPIRY_OTHER;
}

#define TWO(a, b) ((unsigned)(a) << 8 | (unsigned)(b))

/* An option of two letters in lower case; 0: the argument has another length. */
static inline unsigned two_letters(const struct resp_request *r, const char *bytes, size_t i) {
    size_t len;
    const char *word = request_arg(r, bytes, i, &len);
    return len == 2 ? TWO((unsigned char)word[0] | 0x20u, (unsigned char)word[1] | 0x20u) : 0;
}

/* Reads a condition of DELEX or SET at argument `i`, which the server compares: IFEQ, IFNE, IFDEQ, IFDNE. */
static bool condition(const struct resp_request *r, const char *bytes, size_t i, struct set_options *o) {
    bool equal = request_arg_is(r, bytes, i, "ifeq");
    if (equal || request_arg_is(r, bytes, i, "ifdeq"))
        o->equal = true;
    else if (request_arg_is(r, bytes, i, "ifne") || request_arg_is(r, bytes, i, "ifdne"))
        o->differs = true;
    else
        return false;
    o->named_at = equal && i + 1 < r->argc ? (uint32_t)i + 1 : 0;
    return true;
}

/* Reads the options of SET. False: no server accepts them, and the proxy forwards the command. */
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
        } else if (condition(r, bytes, i, o)) {
            i++;
        } else {
            return false;
        }
    }
    return o->equal || o->differs || !(o->nx && o->xx); /* the script asks the server about a condition with others */
}

/* ---- the table ---------------------------------------------------------------------------------- */

/* How a command's arguments change its form. */
enum lock_options {
    OPTIONS_NONE,
    OPTIONS_SET,
    OPTIONS_SIGN,     /* a negative number counts the other way; it is the last argument */
    OPTIONS_ONE_KEY,  /* the form is for one key alone */
    OPTIONS_ONE_PAIR, /* the form is for one pair alone; the script runs the command unchanged */
    OPTIONS_COUNT,    /* with a count the reply is an array */
    OPTIONS_FIELD,    /* the field's new content follows the field */
    OPTIONS_COMPARES, /* DELIFEQ, DELEX: a condition, which the server compares */
    OPTIONS_FIELDS    /* the fields follow FIELDS and their number; FNX acquires */
};

#define FORM(verb_, script_, value_at_, shape_)                                                                        \
    { .known = true, .verb = LOCK_##verb_, .script = SCRIPT_##script_, .value_at = value_at_, .shape = SHAPE_##shape_ }
/* A command that only writes: data, or the caller's own lock (line 12 of docs/locks.md). */
#define DATA(value_at, shape) FORM(PASS, PASS, value_at, shape)
#define NOTHING                                                                                                        \
    { .known = false }
#define ROW(command, ...) [COMMAND_##command] = {#command, __VA_ARGS__}
#define STRING            LOCK_KIND_STRING
#define COUNTER           LOCK_KIND_COUNTER
#define HASH              LOCK_KIND_HASH
#define LIST              LOCK_KIND_LIST

static const struct lock_row rows[COMMAND_COUNT] = {
    /* command, kinds, the form, the form under a rule without these kinds. set_command has the forms of SET. */
    ROW(SET, STRING, NOTHING, NOTHING, OPTIONS_SET, EXPIRY_SET),
    ROW(SETNX, STRING, FORM(ACQUIRE, ACQUIRE, 2, INT), NOTHING, .expiry = EXPIRY_NONE),
    ROW(MSETNX, STRING, FORM(ACQUIRE, ACQUIRE, 2, INT), NOTHING, OPTIONS_ONE_PAIR, .replaces = REPLACES_PAIRS,
        .advises = ADVISES_ALL),
    ROW(SETEX, STRING, FORM(REPLACE, REPLACE, 3, OK), DATA(3, OK), .expiry = EXPIRY_SECONDS),
    ROW(PSETEX, STRING, FORM(REPLACE, REPLACE, 3, OK), DATA(3, OK), .expiry = EXPIRY_MILLISECONDS),
    ROW(GETSET, STRING, FORM(SWAP, SWAP, 2, NIL), DATA(2, NIL), .expiry = EXPIRY_NONE),
    ROW(DEL, 0, FORM(RELEASE, RELEASE, 0, INT)),
    ROW(UNLINK, 0, FORM(RELEASE, RELEASE, 0, INT)),
    ROW(GETDEL, 0, FORM(RELEASE, RELEASE, 0, NIL)),
    ROW(DELIFEQ, 0, FORM(RELEASE, RELEASE, 0, INT), .options = OPTIONS_COMPARES),
    ROW(DELEX, 0, FORM(RELEASE, RELEASE, 0, INT), .options = OPTIONS_COMPARES),
    ROW(EXPIRE, 0, FORM(EXTEND, EXTEND, 0, INT), .expiry = EXPIRY_SECONDS),
    ROW(PEXPIRE, 0, FORM(EXTEND, EXTEND, 0, INT), .expiry = EXPIRY_MILLISECONDS),
    ROW(EXPIREAT, 0, FORM(EXTEND, EXTEND, 0, INT), .expiry = EXPIRY_AT_SECONDS),
    ROW(PEXPIREAT, 0, FORM(EXTEND, EXTEND, 0, INT), .expiry = EXPIRY_AT_MILLISECONDS),
    ROW(PERSIST, 0, FORM(EXTEND, EXTEND, 0, INT), .expiry = EXPIRY_NONE),
    ROW(GETEX, 0, FORM(EXTEND, EXTEND, 0, NIL), .expiry = EXPIRY_GETEX),
    ROW(GET, 0, FORM(READ, READ, 0, NIL)),
    ROW(APPEND, 0, DATA(0, INT), .expiry = EXPIRY_NONE, .counts = COUNTS_BYTES),
    ROW(SETRANGE, 0, DATA(0, INT)),
    ROW(SETBIT, 0, DATA(0, INT)),
    ROW(INCRBYFLOAT, 0, DATA(0, NIL), .advises = ADVISE_COUNTER),

    ROW(INCR, COUNTER, FORM(COUNT_UP, COUNT, 0, INT), DATA(0, INT), .expiry = EXPIRY_NONE, .counts = COUNTS_ONE,
        .advises = ADVISE_COUNTER | ADVISES_FIRST),
    ROW(DECR, COUNTER, FORM(COUNT_DOWN, COUNT, 0, INT), DATA(0, INT), .counts = COUNTS_ONE),
    ROW(INCRBY, COUNTER, FORM(COUNT_UP, COUNT, 0, INT), DATA(0, INT), OPTIONS_SIGN, .expiry = EXPIRY_NONE,
        .counts = COUNTS_ARGUMENT, .advises = ADVISE_COUNTER),
    ROW(DECRBY, COUNTER, FORM(COUNT_DOWN, COUNT, 0, INT), DATA(0, INT), OPTIONS_SIGN, .counts = COUNTS_ARGUMENT),

    ROW(HSETNX, HASH, FORM(ACQUIRE, HASH, 2, INT), DATA(0, INT), OPTIONS_FIELD, .advises = ADVISE_HASH | ADVISES_FIRST),
    ROW(HSET, HASH, FORM(REPLACE, HASH, 2, OK), DATA(0, INT), OPTIONS_FIELD, .advises = ADVISE_HASH),
    ROW(HMSET, HASH, FORM(REPLACE, HASH, 2, OK), DATA(0, OK), OPTIONS_FIELD, .advises = ADVISE_HASH),
    ROW(HINCRBY, HASH, FORM(COUNT_UP, COUNT, 2, INT), DATA(0, INT), OPTIONS_SIGN, .counts = COUNTS_FIELD,
        .advises = ADVISE_HASH),
    ROW(HINCRBYFLOAT, HASH, FORM(REPLACE, HASH, 2, OK), DATA(0, NIL), .advises = ADVISE_HASH),
    /* HDEL may release a lock that a script has made. */
    ROW(HDEL, HASH, FORM(COUNT_DOWN, HASH, 2, INT), FORM(COUNT_DOWN, PASS, 2, INT), .advises = ADVISE_HASH),

    ROW(HSETEX, HASH, FORM(REPLACE, FIELDS, 0, OK), NOTHING, OPTIONS_FIELDS, .replaces = REPLACES_FIRST,
        .advises = ADVISE_HASH | ADVISES_FIRST),
    ROW(HGETEX, HASH, FORM(EXTEND, FIELDS, 0, NIL), NOTHING, OPTIONS_FIELDS, .replaces = REPLACES_FIRST,
        .advises = ADVISE_HASH),
    ROW(HGETDEL, HASH, FORM(COUNT_DOWN, FIELDS, 0, NIL), NOTHING, OPTIONS_FIELDS, .replaces = REPLACES_FIRST,
        .advises = ADVISE_HASH),

    ROW(RPUSH, LIST, FORM(QUEUE_PUSH, LIST_PUSH, 2, INT), NOTHING, .counts = COUNTS_ARGUMENTS),
    ROW(RPUSHX, LIST, FORM(QUEUE_PUSH, LIST_PUSH, 2, INT), NOTHING, .counts = COUNTS_ARGUMENTS),
    ROW(LPUSH, LIST, FORM(QUEUE_PUSH, LIST_PUSH, 2, INT), NOTHING, .counts = COUNTS_ARGUMENTS),
    ROW(LPUSHX, LIST, FORM(QUEUE_PUSH, LIST_PUSH, 2, INT), NOTHING, .counts = COUNTS_ARGUMENTS),
    ROW(LINSERT, LIST, FORM(QUEUE_PUSH, LIST_PUSH, 4, INT), NOTHING, .counts = COUNTS_ONE),
    ROW(LRANGE, LIST, FORM(QUEUE_READ, LIST_READ, 0, NIL), NOTHING, .queue = QUEUE_HEAD),
    ROW(LINDEX, LIST, FORM(QUEUE_READ, LIST_READ, 0, NIL), NOTHING, .queue = QUEUE_HEAD),
    ROW(LLEN, LIST, FORM(QUEUE_READ, LIST_READ, 0, NIL), NOTHING),
    ROW(LPOS, LIST, FORM(QUEUE_READ, LIST_READ, 2, NIL), NOTHING),
    ROW(EXISTS, LIST, FORM(QUEUE_READ, LIST_READ, 0, INT), NOTHING, OPTIONS_ONE_KEY),
    /* A command that may remove the head is data for a rule without the kind: another proxy may guard the queue. */
    ROW(LREM, LIST, FORM(QUEUE_REMOVE, LIST_REMOVE, 3, INT), DATA(0, INT)),
    ROW(LSET, LIST, FORM(QUEUE_SET, LIST_SET, 3, OK), DATA(0, OK), .queue = QUEUE_SET),
    ROW(LTRIM, LIST, FORM(QUEUE_SET, LIST_TRIM, 0, OK), DATA(0, OK)),
    ROW(LPOP, LIST, FORM(RELEASE, LIST_POP, 0, NIL), DATA(0, NIL), OPTIONS_COUNT, .queue = QUEUE_POP),
    ROW(RPOP, LIST, FORM(RELEASE, LIST_POP, 0, NIL), DATA(0, NIL), OPTIONS_COUNT, .queue = QUEUE_POP),

    /* Commands that remove or replace whole keys. */
    ROW(RENAME, .replaces = REPLACES_TWO),
    ROW(RENAMENX, .replaces = REPLACES_TWO),
    ROW(COPY, .replaces = REPLACES_SECOND),
    ROW(BITOP, .replaces = REPLACES_SECOND),
    ROW(MOVE, .replaces = REPLACES_FIRST),
    ROW(RESTORE, .replaces = REPLACES_FIRST),
    ROW(RESTORE_ASKING, .replaces = REPLACES_FIRST),
    ROW(BITFIELD, .replaces = REPLACES_FIRST),
    ROW(SUNIONSTORE, .replaces = REPLACES_FIRST),
    ROW(SINTERSTORE, .replaces = REPLACES_FIRST),
    ROW(SDIFFSTORE, .replaces = REPLACES_FIRST),
    ROW(ZUNIONSTORE, .replaces = REPLACES_FIRST),
    ROW(ZINTERSTORE, .replaces = REPLACES_FIRST),
    ROW(ZDIFFSTORE, .replaces = REPLACES_FIRST),
    ROW(ZRANGESTORE, .replaces = REPLACES_FIRST),
    ROW(GEOSEARCHSTORE, .replaces = REPLACES_FIRST),
    ROW(PFMERGE, .replaces = REPLACES_FIRST),
    ROW(HEXPIRE, .replaces = REPLACES_FIRST, .advises = ADVISE_HASH),
    ROW(HPEXPIRE, .replaces = REPLACES_FIRST, .advises = ADVISE_HASH),
    ROW(HEXPIREAT, .replaces = REPLACES_FIRST, .advises = ADVISE_HASH),
    ROW(HPEXPIREAT, .replaces = REPLACES_FIRST, .advises = ADVISE_HASH),
    ROW(HPERSIST, .replaces = REPLACES_FIRST, .advises = ADVISE_HASH),
    ROW(MSET, .replaces = REPLACES_PAIRS),
    ROW(SORT, .replaces = REPLACES_STORE),
    ROW(GEORADIUS, .replaces = REPLACES_STORE),
    ROW(GEORADIUSBYMEMBER, .replaces = REPLACES_STORE),
    ROW(MIGRATE, .replaces = REPLACES_ALL),
    ROW(MSETEX, .expiry = EXPIRY_SET, .replaces = REPLACES_ALL),
    /* LMOVE and the commands below it fail on a key that is no list, so they affect list locks alone. */
    ROW(LMOVE, LIST, .replaces = REPLACES_TWO),
    ROW(RPOPLPUSH, LIST, .replaces = REPLACES_TWO),
    ROW(LMPOP, LIST, .replaces = REPLACES_ALL),
    ROW(BLPOP, LIST, .replaces = REPLACES_ALL),
    ROW(BRPOP, LIST, .replaces = REPLACES_ALL),
    ROW(BLMOVE, LIST, .replaces = REPLACES_ALL),
    ROW(BRPOPLPUSH, LIST, .replaces = REPLACES_ALL),
    ROW(BLMPOP, LIST, .replaces = REPLACES_ALL),
};

const struct lock_command lock_release_of_one = {.verb = LOCK_RELEASE, .script = SCRIPT_RELEASE, .shape = SHAPE_INT};

inline const struct lock_row *lock_row_of(const struct command *c) {
    return &rows[c->id];
}

/* ---- what a command means ------------------------------------------------------------------------ */

static inline bool take_form(const struct lock_row *row, const struct lock_command *form, struct lock_command *out) {
    *out = *form;
    out->advises = row->advises;
    out->name = row->name;
    return form->known;
}

/* Finds the form of SET by its options. `strings`: the rule has string locks. */
static bool set_command(const struct lock_row *row, const struct resp_request *r, const char *bytes, bool strings,
                        struct lock_command *out) {
    static const struct lock_command nx = FORM(ACQUIRE, ACQUIRE, 2, OK), nx_get = FORM(ACQUIRE, ACQUIRE, 2, NIL),
                                     get = FORM(SWAP, SWAP, 2, NIL), xx = FORM(REWRITE, REPLACE, 2, NIL),
                                     ex = FORM(REPLACE, REPLACE, 2, OK), data = DATA(2, OK), data_get = DATA(2, NIL),
                                     equal = FORM(REWRITE, SET_IF, 2, NIL), differs = FORM(REPLACE, SET_IF, 2, OK),
                                     data_differs = FORM(PASS, SET_IF, 2, NIL);
    struct set_options o;
    if (!set_options(r, bytes, &o))
        return false;
    if (o.equal || o.differs) {
        bool acquires = strings && o.expiry_ms;
        take_form(row, o.equal ? &equal : acquires ? &differs : &data_differs, out);
        out->compares = true;
        out->named_at = o.named_at;
        return true;
    }
    if (o.nx) {
        take_form(row, o.get ? &nx_get : &nx, out);
        /* With GET, the script has to reply with the old value. */
        out->expiry_ms = o.keeps || o.get ? LOCK_EXPIRY_OTHER : o.expiry_ms;
        return strings;
    }
    if (o.get)
        return take_form(row, strings ? &get : &data_get, out);
    if (o.xx)
        return take_form(row, &xx, out);
    return take_form(row, o.expiry_ms && strings ? &ex : &data, out);
}

/* Reads the options before and behind the fields of HSETEX, HGETEX and HGETDEL. False: no server accepts them. */
static bool fields_command(const struct command *c, const struct resp_request *r, const char *bytes,
                           struct lock_command *out) {
    size_t each = c->id == COMMAND_HSETEX ? 2 : 1;
    bool absent = false;
    for (size_t i = 2; i < r->argc; i++) {
        unsigned word = two_letters(r, bytes, i);
        int64_t n;
        if (word == TWO('e', 'x') || word == TWO('p', 'x') || request_arg_is(r, bytes, i, "exat") ||
            request_arg_is(r, bytes, i, "pxat")) {
            i++;
        } else if (request_arg_is(r, bytes, i, "fnx")) {
            absent = true;
        } else if (request_arg_is(r, bytes, i, "fields") && i + 2 < r->argc && !out->value_at) {
            if (!request_arg_integer(r, bytes, i + 1, &n) || n < 1 || (uint64_t)n > (r->argc - i - 2) / each)
                return false;
            out->value_at = (uint32_t)i + 2;
            out->content_at = each == 2 && i + 3 < UINT8_MAX ? (uint8_t)(i + 3) : 0;
            i += 1 + (size_t)n * each;
        } else if (!request_arg_is(r, bytes, i, "fxx") && !request_arg_is(r, bytes, i, "keepttl") &&
                   !request_arg_is(r, bytes, i, "persist")) {
            return false;
        }
    }
    if (absent) {
        out->verb = LOCK_ACQUIRE;
        out->shape = SHAPE_INT;
    }
    return out->value_at > 0;
}

bool lock_command_of(const struct command *c, const struct resp_request *r, const char *bytes, unsigned kinds,
                     struct lock_command *out) {
    const struct lock_row *row = lock_row_of(c);
    bool applies = !row->kinds || kinds & row->kinds;
    size_t len;
    if (row->options == OPTIONS_SET)
        return set_command(row, r, bytes, applies, out);
    if (!take_form(row, applies ? &row->form : &row->other, out))
        return false;
    switch ((enum lock_options)row->options) {
    case OPTIONS_NONE:
    case OPTIONS_SET:
        break;
    case OPTIONS_SIGN:
        if (applies && *request_arg(r, bytes, r->argc - 1, &len) == '-' && len > 0)
            out->verb = out->verb == LOCK_COUNT_UP ? LOCK_COUNT_DOWN : LOCK_COUNT_UP;
        break;
    case OPTIONS_ONE_KEY:
        return r->argc == 2;
    case OPTIONS_ONE_PAIR:
        out->expiry_ms = LOCK_EXPIRY_OTHER;
        return r->argc == 3;
    case OPTIONS_COUNT:
        out->shape = r->argc > 2 ? SHAPE_ARRAY : SHAPE_NIL;
        break;
    case OPTIONS_FIELD:
        out->content_at = applies && r->argc > 3 ? 3 : 0;
        out->expiry_ms = out->verb == LOCK_ACQUIRE ? LOCK_EXPIRY_OTHER : 0; /* HSETNX: no short call makes it again */
        break;
    case OPTIONS_FIELDS:
        return fields_command(c, r, bytes, out);
    case OPTIONS_COMPARES: {
        struct set_options o = {.named_at = c->id == COMMAND_DELIFEQ ? 2 : 0};
        if (c->id == COMMAND_DELEX && r->argc > 2 && !(r->argc == 4 && condition(r, bytes, 2, &o)))
            return false; /* the server knows no such condition */
        out->compares = true;
        out->named_at = o.named_at;
        break;
    }
    }
    return true;
}

bool lock_shows_fields(const struct request_class *k) {
    enum command_id id = k->command->id;
    if (id != COMMAND_HGET && id != COMMAND_HMGET && id != COMMAND_HGETALL && id != COMMAND_HEXISTS &&
        id != COMMAND_HKEYS && id != COMMAND_HSCAN)
        return false;
    const struct lock_rule *rule = k->key_count == 1 ? class_enforced(k, 0) : NULL;
    return rule && (rule->kinds & LOCK_KIND_HASH) && rule->owner == LOCK_OWNER_AUTO;
}

size_t lock_clobbered_keys(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *keys,
                           size_t max) {
    enum lock_row_keys replaces = lock_row_of(c)->replaces;
    size_t n = 0;
    int count;
    keys[0] = replaces == REPLACES_SECOND ? 2 : 1;
    switch (replaces) {
    case REPLACES_NONE:
        break;
    case REPLACES_FIRST:
    case REPLACES_SECOND:
        return 1;
    case REPLACES_TWO:
        keys[1] = 2;
        return 2;
    case REPLACES_PAIRS:
        for (uint32_t i = 1; i + 1 < r->argc; i += 2, n++)
            if (n < max)
                keys[n] = i;
        return n;
    case REPLACES_STORE: /* the first key is the source, the second is the key of STORE */
        if (command_keys(c, bytes, r, keys, 2) != 2)
            break;
        keys[0] = keys[1];
        return 1;
    case REPLACES_ALL:
        count = command_keys(c, bytes, r, keys, max);
        return count > 0 ? (size_t)count : 0;
    }
    return 0;
}

bool lock_clobbers_kinds(const struct command *c, unsigned kinds) {
    const struct lock_row *row = lock_row_of(c);
    /* A script may have made a hash lock under a rule without the kind. */
    return !row->kinds || kinds & row->kinds || row->options == OPTIONS_FIELDS;
}

bool lock_acquires_all(const struct command *c, const struct resp_request *r, const char *bytes) {
    uint32_t first;
    int pairs = c->id == COMMAND_MSETEX ? command_keys(c, bytes, r, &first, 1) : 0;
    for (size_t i = 2 + 2 * (size_t)pairs; pairs > 0 && i < r->argc; i++)
        if (request_arg_is(r, bytes, i, "nx"))
            return true;
    return c->id == COMMAND_MSETNX;
}

bool lock_clobbers_database(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *db) {
    bool named = false;
    for (size_t i = 3; c->id == COMMAND_COPY && i + 1 < r->argc; i++) {
        int64_t n;
        if (!request_arg_is(r, bytes, i, "db"))
            continue;
        if (!request_arg_integer(r, bytes, i + 1, &n) || n < 0 || n > INT32_MAX)
            return false; /* Redis answers the error */
        *db = (uint32_t)n;
        named = true;
        i++;
    }
    return named;
}

const struct lock_rule *lock_clobbered_rule(const struct request_class *k, uint32_t at, size_t nth) {
    size_t i = nth < k->key_count && k->keys[nth] == at ? nth : 0;
    while (i < k->key_count && k->keys[i] != at)
        i++;
    const struct lock_rule *rule = i < k->key_count ? class_enforced(k, i) : NULL;
    return rule && lock_clobbers_kinds(k->command, rule->kinds) ? rule : NULL;
}

bool lock_clobbers(const struct request_class *k) {
    uint32_t keys[LOCK_CLOBBERED_MAX];
    if (!k->enforced)
        return false;
    size_t n = lock_clobbered_keys(k->command, k->request, k->bytes, keys, LOCK_CLOBBERED_MAX);
    if (n > LOCK_CLOBBERED_MAX)
        return true; /* lock_call_clobber counts once more, and refuses the command */
    for (size_t i = 0; i < n; i++)
        if (lock_clobbered_rule(k, keys[i], i))
            return true;
    return false;
}

bool lock_clobbers_one_rule(const struct request_class *k) {
    const struct lock_rule *rule = class_enforced(k, 0);
    if (k->key_count > LOCK_CLOBBERED_MAX || !rule)
        return false;
    for (size_t i = 0; i < k->key_count; i++)
        if (class_enforced(k, i) != rule || lock_clobbered_rule(k, k->keys[i], i) != rule)
            return false;
    return true;
}

bool script_is(const struct command *c) {
    return c->id == COMMAND_EVAL || c->id == COMMAND_EVALSHA || c->id == COMMAND_FCALL;
}

enum lock_meaning lock_meaning_of(const struct request_class *k, struct lock_command *lc) {
    const struct command *c = k->command;
    if (!k->enforced)
        return MEANS_NOTHING;
    if (k->key_count == 1 && k->keys[0] == 1 && lock_command_of(c, k->request, k->bytes, class_rule(k, 0)->kinds, lc))
        return MEANS_LOCK;
    if (c->id == COMMAND_DEL || c->id == COMMAND_UNLINK)
        return MEANS_RELEASES;
    if (c->id == COMMAND_MGET || lock_shows_fields(k))
        return MEANS_SHOWS;
    if (script_is(c))
        return MEANS_SCRIPT;
    return lock_clobbers(k) ? MEANS_CLOBBERS : MEANS_NOTHING;
}
