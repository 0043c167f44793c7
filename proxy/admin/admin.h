/*
 * What operators see: incidents, the PROXY subcommands that only report, and the pages of the HTTP server. Facts come
 * through callbacks; this folder knows neither sessions nor locks.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/metric.h"
#include "proxy/base/text.h"

/* ---- incidents.c ---- */

struct incidents;

/* One incident. Texts are cut to fit. */
struct incident {
    int64_t time_ms; /* wall clock */
    uint64_t seq;    /* the newest has the highest number; 0: unused */
    uint64_t count;  /* how many incidents it stands for, of which it is the newest */
    size_t key_len;  /* the key has no NUL */
    char kind[24];   /* "late_release" */
    char rule[96];   /* the rule's pattern; "": not known */
    char key[128];
    char identity[128]; /* the client to which the incident is counted, without its port */
    char client[128];   /* the client with its port and name; "": no client caused it */
    char holder[128];
    char command[64];
    char action[160];
};

/* The sum of a group, or of a client over all rules and kinds. */
struct incident_sum {
    const struct incident *last;
    const char *kind; /* of a client: the kind with most incidents */
    uint64_t count;
    uint64_t kind_count; /* of a client: how many are of that kind */
    int64_t first_ms;    /* of a group */
};

/* Selects incidents. Borrowed; {0}: all. */
struct incident_filter {
    const char *kind;    /* NULL: any kind */
    const char *pattern; /* the key, as far as it is kept, must match it; NULL: any key */
    size_t pattern_len;
    int64_t since_ms; /* wall clock; 0: no limit */
};

/* Makes a store that keeps the last `rows` incidents of each kind. */
struct incidents *incidents_new(size_t rows);
void incidents_free(struct incidents *i);
/* Records an incident; logs it at notice, with its whole `action`, or counts it for a later line. Thread-safe. */
void incidents_add(struct incidents *i, const struct incident *incident, const char *action);
/* Logs the repeats of the last 10 s, once a second; with `all`, all pending counts, at the end. Thread-safe. */
void incidents_tell(struct incidents *i, int64_t now_ms, bool all);
/* Call `fn` at most max times; `fn` must not call this module. Thread-safe. For the selected incidents, newest first.
 * False: the pattern takes too long to match, and some may be missing. */
bool incidents_each(struct incidents *i, const struct incident_filter *wanted, size_t max,
                    void (*fn)(void *arg, const struct incident *incident), void *arg);
/* For groups of the selected kind with an incident in the selected time, those with most incidents first. */
void incidents_sums(struct incidents *i, const struct incident_filter *wanted, size_t max,
                    void (*fn)(void *arg, const struct incident_sum *sum), void *arg);
/* For clients. Those without a group of their own are "(others)". */
void incidents_clients(struct incidents *i, size_t max, void (*fn)(void *arg, const struct incident_sum *sum),
                       void *arg);

/* ---- for people ---- */

/* Appends "10.0.0.5:3321 tried to release lock:a; held by 10.0.0.7 default: refused, ..."; the key in readable form. */
void incident_sentence(const struct incident *incident, struct text *out);
/* Appends "2026-01-31 23:59:59.999", local time. */
void incident_time(int64_t time_ms, struct text *out);
/* Reads digits of PROXY's arguments; a very large count is cut. False: it is no count. */
bool incident_count(const char *word, size_t len, size_t *count);

/* The arguments of PROXY INCIDENTS, or of PROXY WATCH. */
struct incident_query {
    const char *(*kinds)(size_t i); /* the names of kinds (static), from 0 on, and NULL after the last */
    int64_t now_ms;                 /* the wall clock, from which SINCE counts back; 0: WATCH, only KIND and KEY */
    struct text *error;             /* gets the text of an error reply */
    struct incident_filter filter;  /* the result: its kind is one of `kinds`, its pattern borrows from the words */
    bool summary, counted;
    size_t count; /* if `counted` */
};

/* Reads the arguments, any bytes, in any order: COUNT, SUMMARY, KIND k, KEY pattern, SINCE time. False: an error. */
bool incident_query_read(struct incident_query *q, const char *const *words, const size_t *lens, size_t count)
    __attribute__((warn_unused_result));

/* ---- live incidents ---- */

struct incidents_ear;
/* Adds a listener. `wake` is called for each incident, from any thread and with the store locked: it must only set a
 * flag. While there is a listener, the last 1,024 incidents of all kinds are kept in order. */
struct incidents_ear *incidents_listen(struct incidents *i, void (*wake)(void *arg), void *arg);
/* After this returns, `wake` is not called any more. */
void incidents_unlisten(struct incidents *i, struct incidents_ear *ear);

struct incident_watch;

/* Watches for the incidents that WATCH's arguments select, from now on. `i` must have a listener until the watch is
 * freed. NULL: `error` gets the text of an error reply. */
struct incident_watch *incident_watch_new(struct incidents *i, const char *const *words, const size_t *lens,
                                          size_t count, const char *(*kinds)(size_t i), struct text *error);
void incident_watch_free(struct incident_watch *watch);
/* Calls fn with a line for each new incident, a limited number per call, and with a line that counts missed ones. Lines
 * are borrowed, printable and have no end of line. fn must not call this module. Returns whether there are more now. */
bool incident_watch_lines(struct incident_watch *watch, void (*fn)(void *arg, const char *line, size_t len), void *arg);

/* ---- proxy_report.c ---- */

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

/* ---- pages.c ---- */

struct pages;

struct pages_source {
    struct admin_source admin;
    const char *const *names; /* under which the server is known, borrowed; if "*" is among them, any */
    size_t name_count;
    void *arg;
    void (*metrics)(struct worker *w, const struct metric_sink *sink); /* w: that of `admin` */
    /* Returns what is missing before clients can be served (with `all`: before every key's node can be reached), as
     * part of a sentence; NULL: nothing. */
    const char *(*unready)(void *arg, bool all);
    /* Begins to gather the leases for the status page. pages_gathered must be called in a later turn, not from
     * pages_run; all requests for the page wait for it. */
    void (*gather)(void *arg);
};

/* Serves on a listening socket and takes it over. `source` is copied. NULL: libmicrohttpd can't start. */
struct pages *pages_open(int listen_fd, const struct pages_source *source);
/* A descriptor that is readable when pages_run has something to do. */
int pages_fd(const struct pages *p);
/* After how many ms pages_run must be called even if nothing is readable; -1: never. */
long long pages_wait_ms(struct pages *p);
/* Answers requests that have come, without blocking. */
void pages_run(struct pages *p);
/* Renders the status page, whose leases `admin` can show now, for all waiting requests. pages_run then sends it. */
void pages_gathered(struct pages *p);
/* Closes the server and its socket. */
void pages_close(struct pages *p);
/* Whether `host` ("proxy1:9090", "[::1]") is an address, localhost, this machine's own name, or one of `names` ("*":
 * any name), in any case and with any port. */
bool host_is_ours(const char *host, const char *const *names, size_t count);
