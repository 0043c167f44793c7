/*
 * Incidents as sentences, for people.
 */
#ifndef LOCKKEEPER_ADMIN_SENTENCE_H
#define LOCKKEEPER_ADMIN_SENTENCE_H

#include "proxy/admin/incidents.h"
#include "proxy/base/text.h"

/* Appends "10.0.0.5:3321 tried to release lock:a; held by 10.0.0.7 default: refused, ...". A byte of the key that is
 * not printable ASCII is shown as \xNN. */
void sentence_append(const struct incident *incident, struct text *out);
/* Appends "2026-01-31 23:59:59.999", local time. */
void sentence_time(int64_t time_ms, struct text *out);

#endif
