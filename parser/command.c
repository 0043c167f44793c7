/*
 * The command table's look-up.
 *
 * Names are looked up as three words of eight lower-case bytes, so that neither the hash nor the comparison
 * goes byte by byte. Where the keys of a request are is in command_keys.c.
 */
#include "parser/command.h"

#include <stdlib.h>
#include <string.h>

#include "parser/command_keys.h"
#include "parser/invariant.h"

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
    if (len >= 4) {
        return lower_word(four_bytes(s) | four_bytes(s + len - 4) << 8 * (len - 4));
    }
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

/* Multiplies by odd numbers with well mixed bits: the product's top bits depend on all bits of the name. */
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
        invariant((int)commands[id].id == id, "row %d has the number %d", id, (int)commands[id].id);
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

/* Compares one word. That is enough: in a longer name, no byte at the place of the length is a control character. */
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
    invariant(id > COMMAND_UNKNOWN && id < COMMAND_COUNT, "command %d", (int)id);
    return &commands[id];
}

bool command_arity_ok(const struct command *c, size_t argc) {
    return c->arity >= 0 ? argc == (size_t)c->arity : argc >= (size_t)-c->arity;
}

bool request_arg_is(const struct resp_request *request, const char *data, size_t i, const char *word) {
    if (!invariant(i < request->argc, "argument %zu of %zu", i, request->argc)) {
        return false;
    }
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
