/*
 * The log: Redis's line format, or JSON for machines. Thread-safe: a line is one write.
 *
 * Never pass passwords, lock values or tokens.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_VERBOSE, LOG_LEVEL_NOTICE, LOG_LEVEL_WARNING, LOG_LEVEL_NOTHING };

/* A fact of a line, for machines: a member of the JSON object. Borrowed. */
struct log_field {
    const char *name; /* static */
    const char *text; /* NULL: it is a number */
    size_t len;       /* of the text */
    long long number;
};

/* Opens `path` for appending and closes the previous log; NULL or "": standard output. May block on a named pipe
 * without a reader. False with errno: nothing has changed. */
bool log_open(const char *path);
/* Opens the same path again, after a rotation. Does not block. False with errno: the log goes on in the old file. True
 * for standard output. */
bool log_reopen(void);
void log_set_level(enum log_level level);
void log_set_json(bool json);

bool log_enabled(enum log_level level);
/* Writes one line. Control characters are escaped; more than 2047 bytes are cut. Keeps errno. Never blocks. The message
 * contains all facts, for people; a JSON line also has `fields`, whose texts are cut at 1 KB together. */
void log_write_fields(enum log_level level, const struct log_field *fields, size_t count, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define log_write(level, ...) log_write_fields(level, NULL, 0, __VA_ARGS__)

#define log_debug(...)   (log_enabled(LOG_LEVEL_DEBUG) ? log_write(LOG_LEVEL_DEBUG, __VA_ARGS__) : (void)0)
#define log_verbose(...) (log_enabled(LOG_LEVEL_VERBOSE) ? log_write(LOG_LEVEL_VERBOSE, __VA_ARGS__) : (void)0)
#define log_notice(...)  log_write(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
