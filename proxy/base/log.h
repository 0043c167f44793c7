/*
 * The log: Redis's line format, or JSON for machines. Thread-safe: a line is one write.
 *
 * Never pass passwords, lock values or tokens.
 */
#ifndef LOCKKEEPER_BASE_LOG_H
#define LOCKKEEPER_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_VERBOSE, LOG_LEVEL_NOTICE, LOG_LEVEL_WARNING, LOG_LEVEL_NOTHING };

/* Opens `path` for appending, in place of what was open; NULL or "": standard output. Opening the same path again
 * gets a new file after a rotation. False with errno if it can't be opened, and nothing has changed. */
bool log_open(const char *path);
void log_set_level(enum log_level level);
void log_set_json(bool json);

bool log_enabled(enum log_level level);
/* Writes one line. Control characters in it are escaped; more than 2047 bytes are cut. Keeps errno. Never waits: where
 * nobody reads the pipe or the terminal that the log is, the line is lost, and counted in the next one that goes. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...)   (log_enabled(LOG_LEVEL_DEBUG) ? log_write(LOG_LEVEL_DEBUG, __VA_ARGS__) : (void)0)
#define log_verbose(...) (log_enabled(LOG_LEVEL_VERBOSE) ? log_write(LOG_LEVEL_VERBOSE, __VA_ARGS__) : (void)0)
#define log_notice(...)  log_write(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)

#endif
