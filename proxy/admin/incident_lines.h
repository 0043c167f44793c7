/*
 * PROXY WATCH: one client's view of live incidents, as lines. It knows neither clients nor threads.
 */
#ifndef LOCKKEEPER_ADMIN_WATCH_H
#define LOCKKEEPER_ADMIN_WATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "proxy/admin/incidents.h"
#include "proxy/base/text.h"

struct incident_watch;

/* Begins to watch for the incidents that the arguments of WATCH select (incident_query.h), from now on. `i` must have a
 * listener (incidents_listen) until the watch is freed. NULL: `error` gets the text of an error reply. */
struct incident_watch *incident_watch_new(struct incidents *i, const char *const *words, const size_t *lens,
                                          size_t count, const char *(*kinds)(size_t i), struct text *error);
void incident_watch_free(struct incident_watch *watch);
/* Calls fn with a line for each new incident, a limited number per call, and with a line that counts missed ones. Lines
 * are borrowed, printable and have no end of line. fn must not call this module or incidents.h's. Returns whether there
 * are more now. */
bool incident_watch_lines(struct incident_watch *watch, void (*fn)(void *arg, const char *line, size_t len), void *arg);

#endif
