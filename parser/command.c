/*
 * The command table: its look-up, the keys of a request, and whether its arguments make it a blocking request.
 *
 * Names are looked up as three words of eight lower-case bytes, so that neither the hash nor the comparison goes byte
 * by byte. A finder of movable keys reads the arguments that Redis's own implementation of the command reads.
 */
#include "parser/command.h"

#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"

/* ---- finders of movable keys ------------------------------------------------------------- */

static void add(struct found_keys *f, size_t i) {
    if (f->count < f->max)
        f->keys[f->count] = (uint32_t)i;
    f->count++;
}

static bool is(const struct found_keys *f, size_t i, const char *word) {
    return request_arg_is(f->request, f->data, i, word);
}

/* A number of keys as Redis's key finder reads it: of "1.5" and "1x" it takes the 1 and finds one key; Redis reports
 * the bad number only when the command runs. -1: no number. */
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
static bool add_numkeys(struct found_keys *f, size_t at, size_t step) {
    size_t len;
    if (at >= f->request->argc)
        return false;
    const char *text = request_arg(f->request, f->data, at, &len);
    int64_t n = number_of_keys(text, len);
    if (n < 0 || (uint64_t)n > (f->request->argc - at - 1) / step)
        return false;
    for (size_t i = 0; i < (size_t)n; i++)
        add(f, at + 1 + i * step);
    return true;
}

/* ZUNION numkeys key ... */
static bool keys_numkeys_first(struct found_keys *f) {
    return add_numkeys(f, 1, 1);
}

/* EVAL script numkeys key ..., BLMPOP timeout numkeys key ... */
static bool keys_numkeys_second(struct found_keys *f) {
    return add_numkeys(f, 2, 1);
}

/* ZUNIONSTORE destination numkeys key ... */
static bool keys_destination_numkeys(struct found_keys *f) {
    add(f, 1);
    return add_numkeys(f, 2, 1) && f->count > 1; /* ZUNIONSTORE needs a source */
}

/* MSETEX numkeys key value ... */
static bool keys_pairs(struct found_keys *f) {
    return add_numkeys(f, 1, 2);
}

/* Reads the options of XREAD and XREADGROUP as Redis does: in any order, up to STREAMS. Returns the index of STREAMS,
 * 0: none. *block: the index of BLOCK's time, 0: none. */
static size_t read_stream_options(const char *data, const struct resp_request *request, size_t *block) {
    *block = 0;
    for (size_t i = 1; i < request->argc;) {
        if (request_arg_is(request, data, i, "streams"))
            return i;
        if (request_arg_is(request, data, i, "block")) {
            *block = i + 1 < request->argc ? i + 1 : 0;
            i += 2;
        } else if (request_arg_is(request, data, i, "count")) {
            i += 2;
        } else if (request_arg_is(request, data, i, "group")) {
            i += 3;
        } else if (request_arg_is(request, data, i, "noack")) {
            i += 1;
        } else {
            return 0;
        }
    }
    return 0;
}

/* XREAD ... STREAMS key ... id ... */
static bool keys_streams(struct found_keys *f) {
    size_t block, streams = read_stream_options(f->data, f->request, &block);
    size_t rest = streams ? f->request->argc - streams - 1 : 0;
    if (rest == 0 || rest % 2 != 0)
        return false;
    for (size_t i = 0; i < rest / 2; i++)
        add(f, streams + 1 + i);
    return true;
}

static bool add_key_and_destination(struct found_keys *f, size_t destination) {
    add(f, 1);
    if (destination)
        add(f, destination);
    return true;
}

/* SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA] [STORE destination]; the last
 * destination counts. */
static bool keys_sort(struct found_keys *f) {
    size_t destination = 0;
    for (size_t i = 2; i < f->request->argc; i++)
        if (is(f, i, "limit"))
            i += 2;
        else if (is(f, i, "get") || is(f, i, "by"))
            i += 1;
        else if (is(f, i, "store") && i + 1 < f->request->argc)
            destination = i + 1; /* as Redis finds it: in STORE STORE x the second STORE is read as an option, too */
    return add_key_and_destination(f, destination);
}

/* GEORADIUS key longitude latitude radius unit [...] [STORE key] [STOREDIST key], GEORADIUSBYMEMBER key member radius
 * unit [...]; the last destination counts. */
static bool keys_georadius(struct found_keys *f) {
    size_t destination = 0;
    for (size_t i = (size_t)-f->command->arity; i + 1 < f->request->argc; i++)
        if (is(f, i, "store") || is(f, i, "storedist"))
            destination = ++i;
    return add_key_and_destination(f, destination);
}

/* MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH password] [AUTH2 user password] [KEYS key ...] */
static bool keys_migrate(struct found_keys *f) {
    for (size_t i = 6; i < f->request->argc && f->request->argv[3].len == 0; i++) {
        if (is(f, i, "keys")) {
            while (++i < f->request->argc)
                add(f, i);
            return f->count > 0;
        }
        i += is(f, i, "auth") ? 1 : is(f, i, "auth2") ? 2 : 0;
    }
    add(f, 3);
    return true;
}

/* OBJECT ENCODING key, XGROUP CREATE key ..., XINFO STREAM key ...; their HELP has no key. */
static bool keys_subcommand(struct found_keys *f) {
    if (f->request->argc > 2)
        add(f, 2);
    return true;
}

/* MEMORY USAGE key */
static bool keys_memory(struct found_keys *f) {
    return !is(f, 1, "usage") || keys_subcommand(f);
}

/* DEBUG OBJECT key and similar subcommands have one key; DIGEST-VALUE has many. */
static bool keys_debug(struct found_keys *f) {
    static const char *const with_key[] = {"object", "sdslen", "listpack", "ziplist", "quicklist", "htstats-key"};
    for (size_t i = 0; i < sizeof with_key / sizeof *with_key; i++)
        if (is(f, 1, with_key[i]))
            return keys_subcommand(f);
    for (size_t i = 2; i < f->request->argc && is(f, 1, "digest-value"); i++)
        add(f, i);
    return true;
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

/* A name in lower case, packed into words. The length is part of it, so that "get\0" is not "get": in the top byte of
 * the first word if it fits there, else of the last word. */
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

/* Packs one to eight bytes into a word, the first of them lowest. Loads that overlap save a loop: bytes that are read
 * twice land on themselves. */
static inline uint64_t pack_word(const char *s, size_t len) {
    if (len >= 4)
        return lower_word(four_bytes(s) | four_bytes(s + len - 4) << 8 * (len - 4));
    return lower_word(byte_at(s, 0) | byte_at(s, len / 2) | byte_at(s, len - 1));
}

/* Packs a name of one to SHORT_NAME_LEN bytes into one word, with its length above them. */
static inline uint64_t pack_short_name(const char *s, size_t len) {
    return pack_word(s, len) | (uint64_t)len << 56;
}

static inline bool pack_name(const char *s, size_t len, struct name *n) {
    n->words[1] = n->words[2] = 0;
    if (len - 1 < SHORT_NAME_LEN) {
        n->words[0] = pack_short_name(s, len);
        return true;
    }
    if (len - 1 >= NAME_MAX_LEN)
        return false;
    n->words[0] = pack_word(s, 8);
    if (len > 8)
        n->words[1] = pack_word(s + 8, len < 16 ? len - 8 : 8);
    if (len > 16)
        n->words[2] = pack_word(s + 16, len - 16);
    n->words[2] |= (uint64_t)len << 56;
    return true;
}

/* Multiplies by odd numbers with well mixed bits: the product's top bits depend on all bits of the name. */
static inline size_t hash_name(const struct name *n) {
    uint64_t h = (n->words[0] ^ n->words[2] >> 29) * 0x9e3779b97f4a7c15u + n->words[1] * 0xc2b2ae3d27d4eb4fu +
                 n->words[2] * 0x165667b19e3779f9u;
    return h >> (64 - TABLE_BITS);
}

void command_table_init(void) {
    memset(table, 0, sizeof table);
    for (int id = 1; id < COMMAND_COUNT; id++) {
        struct name name;
        /* A row whose name does not fit would never be found: a mistake in the table. */
        if (!pack_name(commands[id].name, strlen(commands[id].name), &name))
            abort();
        size_t at = hash_name(&name);
        invariant((int)commands[id].id == id, "row %d has the number %d", id, (int)commands[id].id);
        while (table[at].command)
            at = (at + 1) % TABLE_SIZE;
        table[at].name = name;
        table[at].command = &commands[id];
    }
}

static __attribute__((noinline)) const struct command *find_long_name(const char *name, size_t len) {
    struct name n;
    if (!pack_name(name, len, &n))
        return NULL;
    for (size_t at = hash_name(&n); table[at].command; at = (at + 1) % TABLE_SIZE) {
        const uint64_t *w = table[at].name.words;
        if (w[0] == n.words[0] && w[1] == n.words[1] && w[2] == n.words[2])
            return table[at].command;
    }
    return NULL;
}

/* Compares one word. That is enough: in a longer name, no byte at the place of the length is a control character. */
static inline const struct command *find_short_name(uint64_t word) {
    struct name n = {{word, 0, 0}};
    for (size_t at = hash_name(&n); table[at].command; at = (at + 1) % TABLE_SIZE)
        if (table[at].name.words[0] == word)
            return table[at].command;
    return NULL;
}

const struct command *command_lookup(const char *name, size_t len) {
    return len - 1 < SHORT_NAME_LEN ? find_short_name(pack_short_name(name, len)) : find_long_name(name, len);
}

inline const struct command *command_of_request(const struct resp_request *request, const char *data) {
    const char *name = data + request->argv[0].off;
    size_t len = request->argv[0].len;
    if (len - 1 >= SHORT_NAME_LEN)
        return find_long_name(name, len);
    /* "*1\r\n$1\r\n" stands before it at least: eight bytes that end with it are read at once. */
    const char *from = name + len - 8;
    uint64_t word = four_bytes(from) | four_bytes(from + 4) << 32;
    return find_short_name(lower_word(word >> 8 * (8 - len)) | (uint64_t)len << 56);
}

const struct command *command_by_id(enum command_id id) {
    invariant(id > COMMAND_UNKNOWN && id < COMMAND_COUNT, "command %d", (int)id);
    return &commands[id];
}

bool command_arity_ok(const struct command *c, size_t argc) {
    return c->arity >= 0 ? argc == (size_t)c->arity : argc >= (size_t)-c->arity;
}

bool request_arg_is(const struct resp_request *request, const char *data, size_t i, const char *word) {
    invariant_debug(i < request->argc, "argument %zu of %zu", i, request->argc);
    size_t len;
    const char *s = request_arg(request, data, i, &len);
    for (size_t k = 0; k < len; k++) {
        char c = s[k] >= 'A' && s[k] <= 'Z' ? (char)(s[k] + 'a' - 'A') : s[k];
        /* The word's NUL differs from every byte but a NUL, which is caught too. */
        if (c != word[k] || c == '\0')
            return false;
    }
    return word[len] == '\0';
}

/* ---- keys as Redis 7 describes them ------------------------------------------------------------- */

/* The argument where a spec's keys begin; 0: the request has no keys of this spec. */
static size_t spec_begin(const struct key_spec *spec, const struct found_keys *f) {
    long argc = (long)f->request->argc;
    if (spec->begin == KEYS_BEGIN_INDEX)
        return spec->at > 0 ? (size_t)spec->at : 0;
    bool forwards = spec->at > 0;
    long stop = forwards ? argc - 1 : 1;
    for (long i = forwards ? spec->at : argc + spec->at; i >= 1 && i < argc && i != stop; i += forwards ? 1 : -1)
        if (is(f, (size_t)i, spec->keyword))
            return (size_t)i + 1;
    return 0;
}

/* Adds the keys that a spec finds. False: the request is malformed. */
static bool spec_find(const struct key_spec *spec, struct found_keys *f) {
    int64_t argc = (int64_t)f->request->argc, first = (int64_t)spec_begin(spec, f), last, number;
    if (first == 0)
        return true;
    if (spec->find == KEYS_FIND_KEYNUM) {
        int64_t at = first + spec->number_at;
        if (at < 1 || at >= argc || !request_arg_integer(f->request, f->data, (size_t)at, &number) || number < 0 ||
            number > argc)
            return false;
        if (number == 0)
            return true;
        first += spec->first;
        last = first + (number - 1) * spec->step;
    } else if (spec->last >= 0) {
        last = first + spec->last;
    } else if (spec->limit > 1) {
        last = first + (argc - first) / spec->limit + spec->last;
    } else {
        last = argc + spec->last;
    }
    if (first < 1 || last < first || last >= argc)
        return false;
    for (int64_t i = first; i <= last; i += spec->step)
        add(f, (size_t)i);
    return true;
}

/* The places that COMMAND tells: from the first to the last, a step apart. The arity of a command in the table
 * guarantees all of its keys; a server's description of another command may not. */
static bool find_by_places(struct found_keys *f) {
    const struct command *c = f->command;
    size_t first = (size_t)c->first, argc = f->request->argc;
    if (c->last < 0 ? (size_t)-c->last > argc : (size_t)c->last >= argc)
        return false;
    /* The argument after the last key's group. */
    size_t end = c->last < 0 ? argc + 1 - (size_t)-c->last : (size_t)c->last + 1;
    /* MSET k v k: a key without its value. Redis would refuse it when it runs. */
    if (end > first && (end - first) % (size_t)c->step != 0)
        return false;
    for (size_t i = first; i < end; i += (size_t)c->step)
        add(f, i);
    return true;
}

int command_keys(const struct command *c, const char *data, const struct resp_request *request, uint32_t *keys,
                 size_t max) {
    struct found_keys f = {c, data, request, keys, max, 0};
    bool found = true;
    if (c->find) {
        found = c->find(&f);
    } else if (c->spec_count > 0) {
        for (size_t i = 0; i < c->spec_count && found; i++)
            found = spec_find(&c->specs[i], &f);
        /* Several specs may name one argument, but not more keys than there are arguments. */
        found = found && f.count < request->argc;
    } else if (c->first > 0) {
        found = find_by_places(&f);
    }
    return found ? (int)f.count : -1;
}

bool command_blocks(const struct command *c, const char *data, const struct resp_request *request) {
    size_t block;
    if (c->id != COMMAND_XREAD && c->id != COMMAND_XREADGROUP)
        return c->need == NEED_BLOCKING;
    (void)read_stream_options(data, request, &block);
    return block > 0;
}

int64_t command_wait_ms(const struct command *c, const char *data, const struct resp_request *request) {
    enum { LONGEST_TEXT = 40 };
    static const double longest_ms = 9007199254740992.; /* 2^53: up to here a double represents every whole number */
    size_t at = request->argc - 1, len;
    bool seconds = false;
    char text[LONGEST_TEXT + 1], *end;
    if (c->id == COMMAND_XREAD || c->id == COMMAND_XREADGROUP) {
        (void)read_stream_options(data, request, &at);
    } else if (c->id != COMMAND_WAIT && c->id != COMMAND_WAITAOF) {
        seconds = true;
        if (c->id == COMMAND_BLMPOP || c->id == COMMAND_BZMPOP)
            at = 1;
    }
    const char *word = request_arg(request, data, at, &len);
    if (at == 0 || len == 0 || len > LONGEST_TEXT)
        return 0;
    memcpy(text, word, len);
    text[len] = '\0';
    double ms = strtod(text, &end) * (seconds ? 1000 : 1);
    return end == text + len && ms > 0 && ms < longest_ms ? (int64_t)ms + 1 : 0;
}
