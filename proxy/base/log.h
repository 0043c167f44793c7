/*
 * The log: Redis's line format, or JSON for machines. Thread-safe: a line is one write.
 *
 * Never pass passwords, lock values or tokens.
 */
#ifndef LOCKKEEPER_BASE_LOG_H
#define LOCKKEEPER_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_VERBOSE, LOG_LEVEL_NOTICE, LOG_LEVEL_WARNING, LOG_LEVEL_NOTHING };

/* A fact of a line, for machines: JSON has it as a member of its own. Borrowed. */
struct log_field {
    const char *name; /* static */
    const char *text; /* NULL: it is a number */
    size_t len;       /* of the text */
    long long number;
};

/* Opens `path` for appending, in place of what was open; NULL or "": standard output. False with errno if it can't be
 * opened, and nothing has changed. */
bool log_open(const char *path);
/* Opens the same path again, which is a new file after a rotation. Does not wait, as log_open may for the reader of a
 * named pipe. False with errno if it can't be opened: the log goes on in the old file. True for standard output. */
bool log_reopen(void);
void log_set_level(enum log_level level);
void log_set_json(bool json);

bool log_enabled(enum log_level level);
/* Writes one line. Control characters in it are escaped; more than 2047 bytes are cut. Keeps errno. Never waits: where
 * nobody reads the pipe or the terminal that the log is, the line is lost, and counted in the next one that goes. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same; the message says it all for people, and JSON has `fields` too. Of all their texts together more than 1 KB
 * is cut. */
void log_write_fields(enum log_level level, const struct log_field *fields, size_t count, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define log_debug(...)   (log_enabled(LOG_LEVEL_DEBUG) ? log_write(LOG_LEVEL_DEBUG, __VA_ARGS__) : (void)0)
#define log_verbose(...) (log_enabled(LOG_LEVEL_VERBOSE) ? log_write(LOG_LEVEL_VERBOSE, __VA_ARGS__) : (void)0)
#define log_notice(...)  log_write(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)

#endif
