/*
 * The command table's look-up, and where the keys of a request are.
 *
 * Names are looked up as three words of eight lower-case bytes, so that neither the hash nor the comparison
 * goes byte by byte. Finders of movable keys follow what each command of Redis itself reads.
 */
#include "parser/command.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- finders of movable keys ------------------------------------------------------------- */

/* Keys found so far: all are counted, those that fit are written. */
struct found {
    uint32_t *keys;
    size_t max;
    size_t count;
};

static void add(struct found *f, size_t i) {
    if (f->count < f->max) {
        f->keys[f->count] = (uint32_t)i;
    }
    f->count++;
}

/* A number of keys as Redis reads it where it looks for them: of "1.5" and "1x" it takes the 1, and looks there; that
 * the number is none it says afterwards. -1: nothing of the kind. */
static int64_t number_of_keys(const char *text, size_t len) {
    enum { DIGITS = 9 };
    int64_t n = 0;
    size_t i = 0, digits = 0;
    while (i < len && (text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r')))
        i++;
    i += i < len && text[i] == '+';
    for (; i < len && text[i] >= '0' && text[i] <= '9' && digits <= DIGITS; i++, digits++)
        n = n * 10 + (text[i] - '0');
    return digits > 0 && digits <= DIGITS ? n : -1;
}

/* Adds the `numkeys` keys, `step` apart, that follow the argument `at` with their number. */
static int add_numkeys(struct found *f, const char *data, const struct resp_request *request, size_t at, size_t step) {
    size_t len;
    if (at >= request->argc) {
        return -1;
    }
    const char *text = request_arg(request, data, at, &len);
    int64_t n = number_of_keys(text, len);
    if (n < 0 || (uint64_t)n > (request->argc - at - 1) / step) {
        return -1;
    }
    for (size_t i = 0; i < (size_t)n; i++) {
        add(f, at + 1 + i * step);
    }
    return (int)f->count;
}

/* ZUNION numkeys key ... */
static int find_numkeys_first(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_numkeys(&f, data, request, 1, 1);
}

/* EVAL script numkeys key ..., BLMPOP timeout numkeys key ... */
static int find_numkeys_second(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_numkeys(&f, data, request, 2, 1);
}

/* ZUNIONSTORE destination numkeys key ... */
static int find_destination_numkeys(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    add(&f, 1);
    int count = add_numkeys(&f, data, request, 2, 1);
    return count > 1 ? count : -1; /* the destination alone: ZUNIONSTORE wants a source */
}

/* MSETEX numkeys key value ... */
static int find_pairs(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_numkeys(&f, data, request, 1, 2);
}

/* The options of XREAD and XREADGROUP, read as Redis reads them: in any order, up to STREAMS. */
struct stream_options {
    size_t streams; /* index of STREAMS, 0: none */
    bool block;
};

static struct stream_options read_stream_options(const char *data, const struct resp_request *request) {
    struct stream_options o = {0, false};
    size_t i = 1;
    while (i < request->argc) {
        if (request_arg_is(request, data, i, "streams")) {
            o.streams = i;
            return o;
        } else if (request_arg_is(request, data, i, "block")) {
            o.block = i + 1 < request->argc;
            i += 2;
        } else if (request_arg_is(request, data, i, "count")) {
            i += 2;
        } else if (request_arg_is(request, data, i, "group")) {
            i += 3;
        } else if (request_arg_is(request, data, i, "noack")) {
            i += 1;
        } else {
            return o;
        }
    }
    return o;
}

/* XREAD ... STREAMS key ... id ... */
static int find_streams(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    struct stream_options o = read_stream_options(data, request);
    size_t rest = o.streams ? request->argc - o.streams - 1 : 0;
    if (rest == 0 || rest % 2 != 0) {
        return -1;
    }
    for (size_t i = 0; i < rest / 2; i++) {
        add(&f, o.streams + 1 + i);
    }
    return (int)f.count;
}

/* SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA] [STORE destination]; the last
 * destination counts. */
static int find_sort(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    size_t destination = 0;
    for (size_t i = 2; i < request->argc; i++) {
        if (request_arg_is(request, data, i, "limit")) {
            i += 2;
        } else if (request_arg_is(request, data, i, "get") || request_arg_is(request, data, i, "by")) {
            i += 1;
        } else if (request_arg_is(request, data, i, "store") && i + 1 < request->argc) {
            destination = i + 1; /* as Redis finds it: of STORE STORE x the second counts */
        }
    }
    add(&f, 1);
    if (destination) {
        add(&f, destination);
    }
    return (int)f.count;
}

/* A query's key, and the one it stores to, if an option from argument `from` on says so; the last one counts. */
static int add_georadius(struct found *f, const char *data, const struct resp_request *request, size_t from) {
    size_t destination = 0;
    for (size_t i = from; i + 1 < request->argc; i++) {
        if (request_arg_is(request, data, i, "store") || request_arg_is(request, data, i, "storedist")) {
            destination = ++i;
        }
    }
    add(f, 1);
    if (destination) {
        add(f, destination);
    }
    return (int)f->count;
}

/* GEORADIUS key longitude latitude radius unit [...] [STORE key] [STOREDIST key] */
static int find_georadius(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_georadius(&f, data, request, 6);
}

/* GEORADIUSBYMEMBER key member radius unit [...] [STORE key] [STOREDIST key] */
static int find_georadiusbymember(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_georadius(&f, data, request, 5);
}

/* MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH password] [AUTH2 user password] [KEYS key ...] */
static int find_migrate(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    for (size_t i = 6; i < request->argc && request->argv[3].len == 0; i++) {
        if (request_arg_is(request, data, i, "keys")) {
            while (++i < request->argc) {
                add(&f, i);
            }
            return f.count ? (int)f.count : -1;
        } else if (request_arg_is(request, data, i, "auth")) {
            i += 1;
        } else if (request_arg_is(request, data, i, "auth2")) {
            i += 2;
        }
    }
    add(&f, 3);
    return (int)f.count;
}

/* OBJECT ENCODING key, XGROUP CREATE key ..., XINFO STREAM key ...; their HELP has no key. */
static int find_subcommand(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    if (request->argc > 2) {
        add(&f, 2);
    }
    return (int)f.count;
}

/* MEMORY USAGE key */
static int find_memory(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    return request_arg_is(request, data, 1, "usage") ? find_subcommand(data, request, keys, max) : 0;
}

/* DEBUG OBJECT key and those like it; DIGEST-VALUE has many. */
static int find_debug(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    static const char *const with_key[] = {"object", "sdslen", "listpack", "ziplist", "quicklist", "htstats-key"};
    struct found f = {keys, max, 0};
    for (size_t i = 0; i < sizeof with_key / sizeof *with_key; i++) {
        if (request_arg_is(request, data, 1, with_key[i])) {
            return find_subcommand(data, request, keys, max);
        }
    }
    if (request_arg_is(request, data, 1, "digest-value")) {
        for (size_t i = 2; i < request->argc; i++) {
            add(&f, i);
        }
    }
    return (int)f.count;
}

/* ---- keys as Redis 7 describes them ------------------------------------------------------------- */

/* The argument where a spec's keys begin; 0: the request has none of them. */
static size_t spec_begin(const struct key_spec *spec, const char *data, const struct resp_request *request) {
    long argc = (long)request->argc;
    if (spec->begin == KEYS_BEGIN_INDEX)
        return spec->at > 0 ? (size_t)spec->at : 0;
    bool forwards = spec->at > 0;
    long stop = forwards ? argc - 1 : 1;
    for (long i = forwards ? spec->at : argc + spec->at; i >= 1 && i < argc && i != stop; i += forwards ? 1 : -1) {
        if (request_arg_is(request, data, (size_t)i, spec->keyword))
            return (size_t)i + 1;
    }
    return 0;
}

/* False: the request is malformed. */
static bool spec_find(const struct key_spec *spec, const char *data, const struct resp_request *request,
                      struct found *f) {
    int64_t argc = (int64_t)request->argc, first = (int64_t)spec_begin(spec, data, request), last, number;
    if (first == 0) {
        return true;
    }
    if (spec->find == KEYS_FIND_KEYNUM) {
        size_t len;
        if (first + spec->number_at < 1 || first + spec->number_at >= argc) {
            return false;
        }
        const char *text = request_arg(request, data, (size_t)(first + spec->number_at), &len);
        if (!resp_integer(text, len, &number) || number < 0 || number > argc) {
            return false;
        }
        if (number == 0) {
            return true;
        }
        first += spec->first;
        last = first + (number - 1) * spec->step;
    } else if (spec->last >= 0) {
        last = first + spec->last;
    } else if (spec->limit > 1) {
        last = first + (argc - first) / spec->limit + spec->last;
    } else {
        last = argc + spec->last;
    }
    if (first < 1 || last < first || last >= argc) {
        return false;
    }
    for (int64_t i = first; i <= last; i += spec->step) {
        add(f, (size_t)i);
    }
    return true;
}

/* Several specs may name one argument; a server's that together name more than there are make no sense. */
static int find_by_specs(const struct command *c, const char *data, const struct resp_request *request, uint32_t *keys,
                         size_t max) {
    struct found f = {keys, max, 0};
    for (size_t i = 0; i < c->spec_count; i++) {
        if (!spec_find(&c->specs[i], data, request, &f)) {
            return -1;
        }
    }
    return f.count < request->argc ? (int)f.count : -1;
}

/* ---- the table --------------------------------------------------------------------------- */

#define ONLY_KEY(flags, first, last, split)                                                                            \
    ((first) == (last) && (split) == SPLIT_NONE && !((flags)&COMMAND_MOVABLE_KEYS) ? (first) : 0)

static const struct command commands[COMMAND_COUNT] = {
#define COMMAND(id, name, arity, flags, first, last, step, find, split, need)                                          \
    [COMMAND_##id] = {COMMAND_##id, name,  arity, flags, first, last, step, ONLY_KEY(flags, first, last, split),       \
                      find,         split, need,  NULL,  0},
#include "parser/command_table.h"
#undef COMMAND
};

/* A name in lower case, its bytes packed into words, its length in the top byte of the first word if it fits there, of
 * the last one otherwise: a name is its words, and "get\0" is not "get". */
enum { NAME_WORDS = 3, NAME_MAX_LEN = NAME_WORDS * 8 - 1, SHORT_NAME_LEN = 7 };

struct name {
    uint64_t words[NAME_WORDS];
};

enum { TABLE_BITS = 10, TABLE_SIZE = 1 << TABLE_BITS };

_Static_assert(COMMAND_COUNT <= TABLE_SIZE / 2, "the look-up table is too full to be fast");

struct entry {
    struct name name;
    const struct command *command; /* NULL: empty */
};

static struct entry table[TABLE_SIZE];

/* Lower-cases eight ASCII letters at once. */
static inline uint64_t lower_word(uint64_t w) {
    const uint64_t ones = 0x0101010101010101u;
    uint64_t low = w & 0x7f * ones;
    uint64_t from_a = low + (0x80 - 'A') * ones;      /* the top bit is set for bytes of at least 'A' */
    uint64_t above_z = low + (0x80 - 'Z' - 1) * ones; /* ... above 'Z' */
    uint64_t upper = (from_a ^ above_z) & ~w & 0x80 * ones;
    return w | upper >> 2;
}

static inline uint64_t byte_at(const char *s, size_t i) {
    return (uint64_t)(unsigned char)s[i] << 8 * i;
}

static inline uint64_t four_bytes(const char *s) {
    return byte_at(s, 0) | byte_at(s, 1) | byte_at(s, 2) | byte_at(s, 3);
}

/* One to eight bytes, the first of them lowest. Loads that overlap save a loop: bytes that are read twice land
 * on themselves. */
static inline uint64_t pack_word(const char *s, size_t len) {
    if (len >= 4) {
        return lower_word(four_bytes(s) | four_bytes(s + len - 4) << 8 * (len - 4));
    }
    return lower_word(byte_at(s, 0) | byte_at(s, len / 2) | byte_at(s, len - 1));
}

/* One to SHORT_NAME_LEN bytes. */
static inline uint64_t pack_short_name(const char *s, size_t len) {
    return pack_word(s, len) | (uint64_t)len << 56;
}

static inline bool pack_name(const char *s, size_t len, struct name *n) {
    n->words[1] = n->words[2] = 0;
    if (len - 1 < SHORT_NAME_LEN) {
        n->words[0] = pack_short_name(s, len);
        return true;
    }
    if (len - 1 >= NAME_MAX_LEN) {
        return false;
    }
    n->words[0] = pack_word(s, 8);
    if (len > 8) {
        n->words[1] = pack_word(s + 8, len < 16 ? len - 8 : 8);
    }
    if (len > 16) {
        n->words[2] = pack_word(s + 16, len - 16);
    }
    n->words[2] |= (uint64_t)len << 56;
    return true;
}

/* Odd numbers with their bits well mixed; the product's top bits depend on all bits of the name. */
static inline size_t hash_name(const struct name *n) {
    uint64_t h = (n->words[0] ^ n->words[2] >> 29) * 0x9e3779b97f4a7c15u + n->words[1] * 0xc2b2ae3d27d4eb4fu +
                 n->words[2] * 0x165667b19e3779f9u;
    return h >> (64 - TABLE_BITS);
}

static inline bool same_name(const struct name *a, const struct name *b) {
    return a->words[0] == b->words[0] && a->words[1] == b->words[1] && a->words[2] == b->words[2];
}

void command_table_init(void) {
    memset(table, 0, sizeof table);
    for (int id = 1; id < COMMAND_COUNT; id++) {
        struct name name;
        /* A row whose name does not fit would never be found: a mistake in the table. */
        if (!pack_name(commands[id].name, strlen(commands[id].name), &name)) {
            abort();
        }
        size_t at = hash_name(&name);
        while (table[at].command) {
            at = (at + 1) % TABLE_SIZE;
        }
        table[at].name = name;
        table[at].command = &commands[id];
    }
}

static __attribute__((noinline)) const struct command *find_long_name(const char *name, size_t len) {
    struct name n;
    if (!pack_name(name, len, &n)) {
        return NULL;
    }
    for (size_t at = hash_name(&n); table[at].command; at = (at + 1) % TABLE_SIZE) {
        if (same_name(&table[at].name, &n)) {
            return table[at].command;
        }
    }
    return NULL;
}

/* One word says it all: no row of a longer name has a control character in the place of the length. */
static inline const struct command *find_short_name(uint64_t word) {
    struct name n = {{word, 0, 0}};
    for (size_t at = hash_name(&n); table[at].command; at = (at + 1) % TABLE_SIZE) {
        if (table[at].name.words[0] == word) {
            return table[at].command;
        }
    }
    return NULL;
}

const struct command *command_lookup(const char *name, size_t len) {
    return len - 1 < SHORT_NAME_LEN ? find_short_name(pack_short_name(name, len)) : find_long_name(name, len);
}

inline const struct command *command_of_request(const struct resp_request *request, const char *data) {
    const char *name = data + request->argv[0].off;
    size_t len = request->argv[0].len;
    if (len - 1 >= SHORT_NAME_LEN) {
        return find_long_name(name, len);
    }
    /* "*1\r\n$1\r\n" stands before it at least: eight bytes that end with it are read at once. */
    const char *from = name + len - 8;
    uint64_t word = four_bytes(from) | four_bytes(from + 4) << 32;
    return find_short_name(lower_word(word >> 8 * (8 - len)) | (uint64_t)len << 56);
}

const struct command *command_by_id(enum command_id id) {
    return &commands[id];
}

bool command_arity_ok(const struct command *c, size_t argc) {
    return c->arity >= 0 ? argc == (size_t)c->arity : argc >= (size_t)-c->arity;
}

int command_keys(const struct command *c, const char *data, const struct resp_request *request, uint32_t *keys,
                 size_t max) {
    if (c->find) {
        return c->find(data, request, keys, max);
    }
    if (c->spec_count > 0) {
        return find_by_specs(c, data, request, keys, max);
    }
    if (c->first == 0) {
        return 0;
    }
    struct found f = {keys, max, 0};
    size_t first = (size_t)c->first;
    size_t step = (size_t)c->step;
    /* The arity of a command in the table leaves none of its keys out; what a server says of its own may not fit. */
    if (c->last < 0 ? (size_t)-c->last > request->argc : (size_t)c->last >= request->argc) {
        return -1;
    }
    /* The argument behind the last key's group. */
    size_t end = c->last < 0 ? request->argc + 1 - (size_t)-c->last : (size_t)c->last + 1;
    /* MSET k v k: a key without its value. Redis would refuse it when it runs. */
    if (end > first && (end - first) % step != 0) {
        return -1;
    }
    for (size_t i = first; i < end; i += step) {
        add(&f, i);
    }
    return (int)f.count;
}

bool command_blocks(const struct command *c, const char *data, const struct resp_request *request) {
    if (c->id == COMMAND_XREAD || c->id == COMMAND_XREADGROUP) {
        return read_stream_options(data, request).block;
    }
    return c->need == NEED_BLOCKING;
}

bool request_arg_is(const struct resp_request *request, const char *data, size_t i, const char *word) {
    size_t len;
    const char *s = request_arg(request, data, i, &len);
    for (size_t k = 0; k < len; k++) {
        char c = s[k] >= 'A' && s[k] <= 'Z' ? (char)(s[k] + 'a' - 'A') : s[k];
        /* The word's NUL differs from every byte but a NUL, which is caught too. */
        if (c != word[k] || c == '\0') {
            return false;
        }
    }
    return word[len] == '\0';
}

bool command_has_subcommands(const struct command *c) {
    switch ((int)c->id) {
    case COMMAND_ACL:
    case COMMAND_CLIENT:
    case COMMAND_CLUSTER:
    case COMMAND_CONFIG:
    case COMMAND_FUNCTION:
    case COMMAND_LATENCY:
    case COMMAND_MEMORY:
    case COMMAND_MODULE:
    case COMMAND_OBJECT:
    case COMMAND_PUBSUB:
    case COMMAND_SCRIPT:
    case COMMAND_SLOWLOG:
    case COMMAND_XGROUP:
    case COMMAND_XINFO:
        return true;
    case COMMAND_COMMAND:
        return true;
    default:
        return false;
    }
}
