/*
 * What an application's script does to a lock, as far as its text shows: the commands that it calls for each key, and
 * the operands that are the lock's value and expiry.
 *
 *      redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])   ──> writes key 1; value ARGV[1], expiry ARGV[2] ms
 *
 * A script that reads a key and writes it, or writes it with NX, acquires. If it reads and deletes, it releases. If it
 * reads and sets an expiry, it extends, or releases by a short one. A variable for KEYS[n] or ARGV[n] is followed once.
 */
#include <string.h>
#include <strings.h>

#include "proxy/base/memory.h"
#include "proxy/observe/private.h"

enum {
    WRITES = 1,
    NEW = 2, /* only if the key does not exist */
    LOOKS = 4,
    DELETES = 8,
    EXPIRES = 16,
    COUNTS = 32, /* how often a hash lock was entered */
    PUSHES = 64,
    TELLS = 128,  /* the time it has left */
    OPTION = 256, /* an option after the operands of a command */
    SECONDS = 512
};

/* Words between quotes, and the operands after them (the key is 1) that are the value and the expiry; 0: none. */
struct script_word {
    const char *names;
    unsigned does;
    uint8_t value, expiry;
};

static const struct script_word WORDS[] = {
    {"set hset hmset", WRITES, 2, 0},
    {"zadd", WRITES, 3, 0},
    {"setnx hsetnx", WRITES | NEW, 2, 0},
    {"setex", WRITES | EXPIRES | SECONDS, 3, 2},
    {"psetex", WRITES | EXPIRES, 3, 2},
    {"hincrby", WRITES | COUNTS, 2, 0},
    {"get exists hget hexists hlen zscore zcount zcard", LOOKS, 0, 0},
    {"del unlink hdel zrem", DELETES, 0, 0},
    {"expire", EXPIRES | SECONDS, 0, 2},
    {"pexpire", EXPIRES, 0, 2},
    {"expireat pexpireat", EXPIRES, 0, 0},
    {"ttl pttl", TELLS, 0, 0},
    {"lpush rpush", PUSHES, 0, 0},
    {"nx", OPTION | NEW, 0, 0},
    {"ex", OPTION | EXPIRES | SECONDS, 0, 1},
    {"px", OPTION | EXPIRES, 0, 1},
    {"exat pxat", OPTION | EXPIRES, 0, 0},
};

enum { KEYS_TOLD = 9 /* KEYS[1] to KEYS[8]; index 0 is not used */, NUMBER_MAX = 14 };

/* What the script does to one of its keys. */
struct script_key {
    unsigned does;
    uint8_t value, expiry; /* index in ARGV; 0: not known */
    bool seconds;
};

struct reading {
    const char *source, *end;
    struct script_key keys[KEYS_TOLD];
    size_t key; /* of the call being read */
    unsigned does;
};

struct piece {
    const char *text;
    size_t len;
};

static bool is_space(char c) {
    return memchr(" \t\n\r", c, 4);
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static const char *skip_space(const char *p, const char *end) {
    while (p < end && is_space(*p))
        p++;
    return p;
}

/* Skips a quoted text that begins at p. */
static const char *skip_text(const char *p, const char *end) {
    char quote = *p;
    for (p++; p < end && *p != quote && *p != '\n'; p++)
        p += *p == '\\' && p + 1 < end;
    return p < end ? p + 1 : end;
}

/* Finds operand n of a call; p is after the command's name. */
static struct piece operand(const char *p, const char *end, unsigned n) {
    unsigned at = 0, depth = 0;
    const char *from = NULL;
    while (p < end) {
        char c = *p;
        bool closes = (c == ')' || c == ']' || c == '}');
        if (depth == 0 && (c == ',' || closes)) {
            if (from && at == n)
                break;
            if (closes)
                return (struct piece){NULL, 0};
            at++;
            from = p + 1;
        }
        depth += c == '(' || c == '[' || c == '{';
        depth -= depth > 0 && closes;
        p = c == '\'' || c == '"' ? skip_text(p, end) : p + 1;
    }
    from = from ? skip_space(from, p) : p;
    while (p > from && is_space(p[-1]))
        p--;
    return (struct piece){from, (size_t)(p - from)};
}

/* Reads the N of KEYS[N] or ARGV[N]; 0: it is something else. */
static unsigned number_of(struct piece p, const char *table) {
    if (p.len < 7 || p.len > 8 || memcmp(p.text, table, 4) != 0 || p.text[4] != '[' || p.text[p.len - 1] != ']')
        return 0;
    unsigned n = 0;
    for (size_t i = 5; i < p.len - 1; i++)
        n = p.text[i] >= '0' && p.text[i] <= '9' ? n * 10 + (unsigned)(p.text[i] - '0') : NUMBER_MAX + 1;
    return n <= NUMBER_MAX ? n : 0;
}

/* Finds the N of KEYS[N] or ARGV[N], also of a variable, from its first assignment NAME = KEYS[N]; 0: none. */
static unsigned index_of(const struct reading *r, struct piece name, const char *table) {
    unsigned n = number_of(name, table);
    for (size_t i = 0; i < name.len && n == 0; i++)
        if (!is_name(name.text[i]))
            return 0;
    for (const char *p = r->source; n == 0 && name.len > 0 && p + name.len < r->end; p++) {
        if (*p != *name.text || memcmp(p, name.text, name.len) != 0 || (p > r->source && is_name(p[-1])))
            continue;
        const char *q = skip_space(p + name.len, r->end);
        if (q >= r->end || *q != '=')
            continue;
        q = skip_space(q + 1, r->end);
        const char *close = memchr(q, ']', (size_t)(r->end - q) < 8 ? (size_t)(r->end - q) : 8);
        n = close ? number_of((struct piece){q, (size_t)(close + 1 - q)}, table) : 0;
    }
    return n;
}

/* The index in ARGV of the operand, or ADVISE_LITERAL. */
static uint8_t value_of(const struct reading *r, struct piece p) {
    if (p.len == 0)
        return 0;
    char c = p.text[0];
    if (c == '\'' || c == '"' || (c >= '0' && c <= '9'))
        return ADVISE_LITERAL;
    return (uint8_t)index_of(r, p, "ARGV");
}

static bool is_among(const char *names, const char *word, size_t len) {
    for (size_t n; *names; names += n + (names[n] == ' ')) {
        n = strcspn(names, " ");
        if (n == len && strncasecmp(names, word, n) == 0)
            return true;
    }
    return false;
}

static void read_word(struct reading *r, const struct script_word *w, const char *behind) {
    r->does |= w->does;
    if (!(w->does & OPTION)) {
        unsigned n = index_of(r, operand(behind, r->end, 1), "KEYS");
        r->key = n == 0 ? 1 : n < KEYS_TOLD ? n : 0; /* a loop over all keys counts for the first one */
    }
    struct script_key *k = &r->keys[r->key];
    k->does |= w->does & ~(unsigned)OPTION;
    if (w->value && !k->value)
        k->value = value_of(r, operand(behind, r->end, w->value));
    if (w->expiry && !k->expiry) {
        uint8_t at = value_of(r, operand(behind, r->end, w->expiry));
        k->expiry = at == ADVISE_LITERAL ? 0 : at;
        k->seconds = w->does & SECONDS;
    }
}

static enum advise_script kind_of(const struct reading *r, const struct script_key *k) {
    bool deletes = k->does & DELETES, writes = k->does & WRITES;
    if (k->does & COUNTS)
        return deletes ? ADVISE_SCRIPT_LEAVES : k->does & EXPIRES ? ADVISE_SCRIPT_ENTERS : ADVISE_SCRIPT_OTHER;
    if (writes && !deletes && k->does & (NEW | LOOKS) && !(r->does & PUSHES))
        return r->does & TELLS ? ADVISE_SCRIPT_ENTERS : ADVISE_SCRIPT_ACQUIRES;
    if (writes || !(k->does & LOOKS))
        return ADVISE_SCRIPT_OTHER;
    return deletes ? ADVISE_SCRIPT_RELEASES : k->does & EXPIRES ? ADVISE_SCRIPT_EXTENDS : ADVISE_SCRIPT_OTHER;
}

/* If a script does several things to several keys, the first kind in this list counts. */
static const enum advise_script FIRST[] = {ADVISE_SCRIPT_ENTERS, ADVISE_SCRIPT_LEAVES, ADVISE_SCRIPT_ACQUIRES,
                                           ADVISE_SCRIPT_RELEASES, ADVISE_SCRIPT_EXTENDS};

struct advise_text advise_script_read(const char *source, size_t len) {
    struct reading r = {.source = source, .end = source + len};
    for (const char *p = source; p < r.end;) {
        const char *word = p + 1;
        bool quoted = *p == '\'' || *p == '"';
        if (*p == '-' && word < r.end && *word == '-') /* a comment */
            p = memchr(p, '\n', (size_t)(r.end - p));
        else
            p = quoted ? skip_text(p, r.end) : word;
        p = p ? p : r.end;
        for (size_t i = 0; quoted && p > word && i < ARRAY_SIZE(WORDS); i++)
            if (is_among(WORDS[i].names, word, (size_t)(p - word) - 1))
                read_word(&r, &WORDS[i], p);
    }
    for (size_t i = 0; i < ARRAY_SIZE(FIRST); i++)
        for (unsigned n = 1; n < KEYS_TOLD; n++) {
            const struct script_key *k = &r.keys[n];
            if (kind_of(&r, k) != FIRST[i])
                continue;
            return (struct advise_text){.kind = FIRST[i],
                                        .key = n,
                                        .value = k->value,
                                        .expiry = k->expiry,
                                        .seconds = k->seconds,
                                        .endless = !(k->does & EXPIRES)};
        }
    return (struct advise_text){.kind = ADVISE_SCRIPT_OTHER};
}

/* ---- scripts by their SHA1 ------------------------------------------------------------------- */

enum { TEXT_BITS = 17, TEXT_MASK = (1 << TEXT_BITS) - 1 };

_Static_assert(sizeof(struct advise_text) == sizeof(uint32_t), "a script's text is kept in the bits of a number");

void observer_script_note(struct observer *a, uint64_t sha1, const struct advise_text *text) {
    uint32_t bits;
    memcpy(&bits, text, sizeof(bits));
    bits &= TEXT_MASK; /* the rest is padding */
    atomic_store_explicit(&a->scripts[sha1 % ADVISE_SCRIPTS], (sha1 << TEXT_BITS) | bits, memory_order_relaxed);
}

struct advise_text observer_script(struct observer *a, uint64_t sha1) {
    uint64_t there = atomic_load_explicit(&a->scripts[sha1 % ADVISE_SCRIPTS], memory_order_relaxed);
    bool known = there >> TEXT_BITS == (sha1 << TEXT_BITS) >> TEXT_BITS;
    uint32_t bits = known ? (uint32_t)there & TEXT_MASK : 0;
    struct advise_text text;
    memcpy(&text, &bits, sizeof(text));
    return text;
}
