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
    struct worker *worker;
    /* False: the report's pattern takes too long to match. */
    bool (*report)(struct worker *w, enum report_kind kind, const struct report *report);
    /* Texts of the directives whose names match the report's pattern. */
    void (*config)(void *config_arg, const struct report *report);
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
