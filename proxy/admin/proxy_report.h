/*
 * The PROXY subcommands that only report: HELP, INFO, LOCKS, TOP, CONTENTION, SLOWLOG, LATENCY, INCIDENTS, RULES,
 * LINES, ADVISE, CONFIG. The facts come through struct admin_source; this folder knows neither sessions nor locks.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proxy/admin/incidents.h"
#include "proxy/base/metric.h"
#include "proxy/base/text.h"

struct worker;

struct admin_source {
    struct worker *worker; /* the first argument of the functions up to `advice` */
    void (*info)(struct worker *w, const struct report *report);
    /* pattern NULL: all. False if the pattern takes too long to match. */
    bool (*locks)(struct worker *w, const char *pattern, size_t len, const struct report *report);
    /* Rows for PROXY TOP, at most max: the most contended locks, and the oldest leases; the first row is the top
     * one. */
    void (*contended)(struct worker *w, size_t max, const struct report *report);
    void (*longest)(struct worker *w, size_t max, const struct report *report);
    void (*rules)(struct worker *w, const struct report *report);
    /* Rows for PROXY CONTENTION; pattern and result as with `locks`. */
    bool (*times)(struct worker *w, const char *pattern, size_t len, const struct report *report);
    /* Rows for the status page. */
    void (*contention)(struct worker *w, const struct report *report);
    void (*shared)(struct worker *w, const struct report *report);
    void (*nodes)(struct worker *w, const struct report *report);
    void (*advice)(struct worker *w, const struct report *report); /* only texts, one for each line */
    /* Texts of the directives whose names match the pattern (NULL: all). */
    void (*config)(void *config_arg, const char *pattern, size_t len, const struct report *report);
    void *config_arg;
    struct incidents *incidents;
    struct slowlog *slowlog;
    struct latency *latency;
    const char *(*incident_kind)(size_t i); /* the names of the kinds of incidents, from 0 on; NULL after the last */
};

/* Runs PROXY words[0] words[1] ... and appends the reply as RESP. False if it is another subcommand, or has a wrong
 * number of arguments. resp3: text for people is sent as a verbatim string. */
bool admin_command(const struct admin_source *source, const char *const *words, const size_t *lens, size_t count,
                   bool resp3, struct text *reply);
