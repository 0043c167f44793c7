/*
 * What the files of the configuration share: config.c reads files and the command line, and splits lines; directives.c
 * knows the directives, value.c the kinds of their values.
 */
#pragma once

#include "proxy/config/config.h"

/* Longest error text about a value. */
enum { CONFIG_WHY_MAX = 320 };

/* A configuration while it is read. */
struct config_build {
    struct config *config;
    bool lock_given; /* a lock line was given, so there is no default rule */
    char why[CONFIG_WHY_MAX];
};

/* What a directive's `flags` say. */
enum {
    SECRET = 1,      /* its values never appear in an error */
    LIST = 2,        /* a single quoted value is split into several, as Redis does for lists */
    EMPTY = 4,       /* "" is a value; for other directives it means none */
    LIVE = 8,        /* a reload applies it; all others need a restart */
    LIVE_SET = 16,   /* the same, but only from one text to another, not between NULL and a text */
    LIVE_LOGIN = 32, /* the same, but not between no login of the proxy's own and one */
};

struct directive {
    struct config_directive shown;
    unsigned flags;
    const struct value_kind *kind;
    size_t offset; /* in struct config, of its field or of the first of several */
    int64_t min, max;
    size_t words_min, words_max;
    const char *expected;     /* NULL: a number from min to max */
    const char *const *names; /* the words that are its values, up to a NULL: the index is stored, or the bit */
};

/* A kind of value. Its field has so many `bytes`. */
struct value_kind {
    /* Reads the words into the configuration. False with the error in b->why. */
    bool (*read)(struct config_build *b, const struct directive *d, const struct config_words *words);
    void (*show)(const struct config *c, const struct directive *d, struct text *out); /* NULL: there is no value */
    size_t bytes;
    /* If the field points to memory: gives a copied field a copy of it (NULL: it is never copied, since a
     * reload always takes the new one); frees it. */
    void (*own)(void *field);
    void (*drop)(void *field);
};

/* ---- directives.c -------------------------------------------------------------------- */

/* The directive of that name in any case, or NULL. */
const struct directive *directive_find(const char *name);
/* Its index in the table; for tls-*, which stands for many names, the index after the last. */
size_t directive_index(const struct directive *d);
/* The directive with the most similar name, or NULL if none is close. */
const struct directive *directive_nearest(const char *name);
/* Sets every directive to its default, except lock rules and fences; with `locks` adds the default lock rule instead,
 * unless lock lines were given. */
void directive_defaults(struct config_build *b, bool locks);
/* Checks directives that depend on each other. */
void config_check_together(const struct config *c, struct config_errors *e);
/* Frees the values of all directives. */
void config_drop_values(struct config *config);

/* ---- value.c ------------------------------------------------------------------------ */

/* Choice: an enum; flag: a bool, the second name is true; bits: an unsigned. */
extern const struct value_kind VALUE_NUMBER, VALUE_OCTAL, VALUE_SIZE, VALUE_TIME, VALUE_FLAG, VALUE_CHOICE, VALUE_BITS,
    VALUE_TEXT, VALUE_SOCKET_PATH, VALUE_ADDRESS, VALUE_WORDS;
/* Of one directive each. */
extern const struct value_kind VALUE_SUPERVISED, VALUE_BIND, VALUE_WITNESS, VALUE_OUTPUT_LIMIT, VALUE_PROXY_PROTOCOL,
    VALUE_UPSTREAM, VALUE_LOCK, VALUE_FENCE, VALUE_INCLUDE, VALUE_TLS_OTHER;
/* Sets a directive. False with the error, without place, name and value, in b->why. */
bool directive_apply(struct config_build *b, const struct directive *d, const struct config_words *words)
    __attribute__((warn_unused_result));

/* ---- config.c: words ------------------------------------------------------------------ */

/* Append a copy of `len` bytes; clear the words, which are overwritten first since they may be passwords. */
void words_add(struct config_words *w, const char *text, size_t len);
void words_clear(struct config_words *w);
/* Appends the words of one line, with quotes and escapes as in redis.conf. Returns NULL, or the error in the line; then
 * nothing was added. */
const char *words_split(struct config_words *w, const char *line, size_t len) __attribute__((warn_unused_result));
/* Appends the words with blanks between them. */
void words_show(const struct config_words *w, struct text *out);
/* Writes a word in readable form, shortened to fit. */
void words_show_word(const char *word, char *out, size_t size);
