/*
 * The last incidents: a bounded ring that all threads write to and PROXY INCIDENTS reads.
 */
#ifndef LOCKKEEPER_ADMIN_INCIDENTS_H
#define LOCKKEEPER_ADMIN_INCIDENTS_H

#include <stddef.h>
#include <stdint.h>

struct incidents;

/* One incident; texts are borrowed by incidents_add, and valid during the call of the function given to
 * incidents_each. */
struct incident {
    int64_t time_ms; /* wall clock */
    const char *kind;
    const char *key;
    size_t key_len;
    const char *client, *holder, *command, *action;
};

/* Makes a store that keeps the last `capacity` incidents. */
struct incidents *incidents_new(size_t capacity);
void incidents_free(struct incidents *i);
/* Records an incident, and logs it at notice. Long texts are cut. Thread-safe. */
void incidents_add(struct incidents *i, const struct incident *incident);
/* Calls `fn` for the incidents, newest first, at most max; it must not call this module. Thread-safe. */
void incidents_each(struct incidents *i, size_t max, void (*fn)(void *arg, const struct incident *incident), void *arg);

#endif
