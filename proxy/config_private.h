/*
 * What the files of the configuration share: config.c reads files and the command line, config_words.c splits
 * lines, config_table.c knows the directives and their values.
 */
#ifndef LOCKKEEPER_CONFIG_PRIVATE_H
#define LOCKKEEPER_CONFIG_PRIVATE_H

#include "proxy/config.h"

/* Longest complaint about a value. */
enum { CONFIG_WHY_MAX = 320 };

/* A configuration while it is read. */
struct config_build {
    struct config *config;
    bool lock_given; /* an explicit lock line has replaced the default rule */
    char why[CONFIG_WHY_MAX];
};

struct directive;
/* Reads the words behind a directive's name into the configuration. False with the complaint in b->why. */
typedef bool directive_read(struct config_build *b, const struct directive *d, const struct config_words *words);

enum {
    DIRECTIVE_SECRET = 1, /* its words never appear in an error */
    DIRECTIVE_LIST = 2,   /* one quoted word is split into several, as Redis does for lists */
    DIRECTIVE_EMPTY = 4,  /* "" is a value of its own; elsewhere it stands for none */
};

struct directive {
    struct config_directive shown;
    directive_read *read;
    size_t offset; /* in struct config; not used by every reader */
    int64_t min, max;
    size_t words_min, words_max;
    const char *expected; /* NULL: a number from min to max */
    unsigned flags;
};

/* ---- config_table.c ------------------------------------------------------------------------ */

/* The directive of that name in any case, or NULL. */
const struct directive *directive_find(const char *name);
/* The one whose name is most like it, or NULL if none is close. */
const struct directive *directive_nearest(const char *name);
/* Sets a directive. False with the complaint, without place, name and value, in b->why. */
bool directive_apply(struct config_build *b, const struct directive *d, const struct config_words *words)
    __attribute__((warn_unused_result));
/* Sets every directive to its default; lock rules excepted. */
void directive_defaults(struct config_build *b);
/* The default lock rule, unless lock lines were given. */
void directive_default_locks(struct config_build *b);

/* ---- config_words.c ------------------------------------------------------------------------ */

/* Appends a copy of `len` bytes. */
void words_add(struct config_words *w, const char *text, size_t len);
void words_clear(struct config_words *w);
/* Appends the words of one line, with quotes and escapes as in redis.conf. Returns NULL, or what is wrong with the
 * line; then nothing was added. */
const char *words_split(struct config_words *w, const char *line, size_t len) __attribute__((warn_unused_result));
/* Writes the words on one line for people to read, shortened to fit. */
void words_show(const struct config_words *w, char *out, size_t size);
void word_show(const char *word, char *out, size_t size);
/* The number of single edits (insert, delete, replace, swap neighbours) from one name to another, for names of up to
 * 63 bytes; a large number for longer ones. */
size_t words_distance(const char *a, const char *b);

#endif
