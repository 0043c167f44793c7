/*
 * Incidents for people: as sentences, and as the arguments of PROXY INCIDENTS and PROXY WATCH select them. It knows
 * neither clients nor threads.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/admin/incidents.h"
#include "proxy/base/text.h"

/* Appends "10.0.0.5:3321 tried to release lock:a; held by 10.0.0.7 default: refused, ...". A byte of the key that is
 * not printable ASCII is shown as \xNN. */
void sentence_append(const struct incident *incident, struct text *out);
/* Appends "2026-01-31 23:59:59.999", local time. */
void sentence_time(int64_t time_ms, struct text *out);

/* Arguments that a command permits besides KIND and KEY, as bits. */
enum { QUERY_COUNT = 1, QUERY_SUMMARY = 2, QUERY_SINCE = 4 };

struct incident_query {
    struct incident_filter filter; /* its kind is one of `kinds`; its pattern borrows from the words */
    bool summary;
    bool counted;
    size_t count; /* if `counted`; no more than 9,999 */
};

/* What a command permits. */
struct incident_syntax {
    unsigned takes;
    const char *(*kinds)(size_t i); /* the names of kinds (static), from 0 on, and NULL after the last */
    int64_t now_ms;                 /* the wall clock, from which SINCE counts back */
};

/* Reads the arguments, in any order: COUNT, SUMMARY, KIND k, KEY pattern, SINCE time. False: `error` gets the text of
 * an error reply. */
bool incident_query_read(struct incident_query *q, const struct incident_syntax *syntax, const char *const *words,
                         const size_t *lens, size_t count, struct text *error) __attribute__((warn_unused_result));
