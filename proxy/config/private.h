/*
 * What the files of the configuration share: config.c reads files and the command line,
 * config_words.c splits lines, directives.c knows the directives, value.c reads their values.
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

struct directive;
/* Reads the values of a directive into the configuration. False with the error in b->why. */
typedef bool directive_read(struct config_build *b, const struct directive *d, const struct config_words *words);

enum {
    DIRECTIVE_SECRET = 1,      /* its values never appear in an error */
    DIRECTIVE_LIST = 2,        /* a single quoted value is split into several, as Redis does for lists */
    DIRECTIVE_EMPTY = 4,       /* "" is a value; for other directives it means none */
    DIRECTIVE_LIVE = 8,        /* a reload applies it; all others need a restart */
    DIRECTIVE_LIVE_SET = 16,   /* the same, but only from one text to another, not between NULL and a text */
    DIRECTIVE_LIVE_LOGIN = 32, /* the same, but not between no login of the proxy's own and one */
};

struct directive {
    struct config_directive shown;
    directive_read *read;
    size_t offset; /* in struct config; some readers do not use it */
    int64_t min, max;
    size_t words_min, words_max;
    const char *expected;     /* NULL: a number from min to max */
    const char *const *names; /* the words that are its values, up to a NULL: the index is stored, or the bit */
    unsigned flags;
};

/* ---- directives.c -------------------------------------------------------------------- */

/* The directive of that name in any case, or NULL. */
const struct directive *directive_find(const char *name);
const struct directive *directive_get(size_t i);
/* Its index in the table; for tls-*, which stands for many names, the index after the last. */
size_t directive_index(const struct directive *d);
/* The directive with the most similar name, or NULL if none is close. */
const struct directive *directive_nearest(const char *name);
/* Sets a directive. False with the error, without place, name and value, in b->why. */
bool directive_apply(struct config_build *b, const struct directive *d, const struct config_words *words)
    __attribute__((warn_unused_result));
/* Sets every directive to its default, except lock rules and fences. */
void directive_defaults(struct config_build *b);
/* Adds the default lock rule, unless lock lines were given. */
void directive_default_locks(struct config_build *b);

/* ---- show.c ------------------------------------------------------------------------- */

/* Frees the values of all directives. */
void config_drop_values(struct config *config);

/* ---- value.c ------------------------------------------------------------------------ */

/* Writes the error into b->why; returns false. */
bool config_complain(struct config_build *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes an error that says what the directive expects; returns false. */
bool config_complain_expected(struct config_build *b, const struct directive *d);

/* Readers for one kind of value: they set the field at the directive's offset, within its bounds. Choice: an enum;
 * flag: a bool, the second name is true; bits: an unsigned. */
directive_read config_read_number, config_read_octal, config_read_size, config_read_time, config_read_text,
    config_read_socket_path, config_read_address, config_read_choice, config_read_flag, config_read_bits,
    config_read_words;
/* Readers for one directive. */
directive_read config_read_bind, config_read_supervised, config_read_output_limit, config_read_upstream,
    config_read_lock, config_read_fence, config_read_witness, config_read_proxy_protocol, config_read_tls_unknown,
    config_read_include;

/* ---- config_words.c ------------------------------------------------------------------ */

/* Append a copy of `len` bytes; clear the words, which are overwritten first since they may be passwords. */
void words_add(struct config_words *w, const char *text, size_t len);
void words_clear(struct config_words *w);
/* Overwrites a text that may be a secret, and frees it; NULL is ignored. */
void config_forget(char *text);
/* Appends the words of one line, with quotes and escapes as in redis.conf. Returns NULL, or the error in the line; then
 * nothing was added. */
const char *words_split(struct config_words *w, const char *line, size_t len) __attribute__((warn_unused_result));
/* Writes the words on one line in readable form, shortened to fit. */
void words_show(const struct config_words *w, char *out, size_t size);
void words_show_word(const char *word, char *out, size_t size);
/* The number of single edits (insert, delete, replace, swap neighbours) from one name to another, for names of up to
 * 63 bytes; a large number for longer ones. */
size_t words_distance(const char *a, const char *b);
