/*
 * PROXY WATCH: one client's view of incidents as they happen, as lines. Knows neither clients nor threads.
 */
#ifndef LOCKKEEPER_ADMIN_WATCH_H
#define LOCKKEEPER_ADMIN_WATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "proxy/admin/incidents.h"
#include "proxy/base/text.h"

struct incident_watch;

/* Begins to watch for the incidents that the words behind WATCH ask for (incident_query.h), from now on. Somebody has
 * to listen to `i` (incidents_listen) until the watch is freed. NULL: `error` got why, as the text of an error reply.
 */
struct incident_watch *incident_watch_new(struct incidents *i, const char *const *words, const size_t *lens,
                                          size_t count, const char *(*kinds)(size_t i), struct text *error);
void incident_watch_free(struct incident_watch *watch);
/* Calls fn with a line for each incident that is new, some of them at a time, and for those that were gone before they
 * could be shown; lines are borrowed, printable and have no end of line. fn must not call this module or incidents.h's.
 * Returns whether there is more to be looked at now. */
bool incident_watch_lines(struct incident_watch *watch, void (*fn)(void *arg, const char *line, size_t len), void *arg);

#endif
