/*
 * Incidents that all threads report: kept and counted within bounds, logged, and shown to people.
 *
 *      incidents_add ──┬─> the ring of its kind ────────────> PROXY INCIDENTS, the status page
 *                      ├─> its group's sum ─────────────────> PROXY INCIDENTS SUMMARY
 *                      ├─> the last ones, if there are listeners ─> PROXY WATCH
 *                      └─> the log: the first at once, the others of 10 s as one line (incidents_tell)
 *
 * A group has the incidents of one kind that one client (one identity) causes under one rule. A client that repeats an
 * incident causes one log line in 10 s, and uses at most 64 rows of its kind's ring in 10 s; after that its newest row
 * counts the further incidents.
 *
 * There are at most 1,024 groups. For a new one, the group without incidents for longest, at least 10 s, is added to
 * its kind's "(others)". If all groups are busy, the new incident is counted in "(others)". 200 first lines in 10 s are
 * logged at once, and 20 lines of repeats a second. Further lines follow later, with the counts up to then.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/text.h"

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

/* The sum of a group, or of a client over all rules and kinds; valid during the call. */
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
/* Records an incident; its seq and count are ignored. Logs it at notice, with its whole `action`, or counts it for a
 * later line. Thread-safe. */
void incidents_add(struct incidents *i, const struct incident *incident, const char *action);
/* Logs the repeats of the last 10 s, to be called about once a second; with `all`, all pending counts, at the end of
 * the process. Thread-safe. */
void incidents_tell(struct incidents *i, int64_t now_ms, bool all);
/* Calls `fn` for the selected incidents, newest first, at most max. `fn` must not call this module. False: the pattern
 * takes too long to match, and some may be missing. Thread-safe. */
bool incidents_each(struct incidents *i, const struct incident_filter *wanted, size_t max,
                    void (*fn)(void *arg, const struct incident *incident), void *arg);
/* Does the same for groups, those with most incidents first: groups of the selected kind with an incident in the
 * selected time. The selected key is ignored. */
void incidents_sums(struct incidents *i, const struct incident_filter *wanted, size_t max,
                    void (*fn)(void *arg, const struct incident_sum *sum), void *arg);
/* Does the same for clients. Clients without a group of their own are "(others)". */
void incidents_clients(struct incidents *i, size_t max, void (*fn)(void *arg, const struct incident_sum *sum),
                       void *arg);

/* ---- for people ---- */

/* Appends "10.0.0.5:3321 tried to release lock:a; held by 10.0.0.7 default: refused, ...". A byte of the key that is
 * not printable ASCII is shown as \xNN. */
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

/* Reads the arguments, in any order: COUNT, SUMMARY, KIND k, KEY pattern, SINCE time. They may contain any bytes, and
 * are not NUL-terminated. False: there is an error. */
bool incident_query_read(struct incident_query *q, const char *const *words, const size_t *lens, size_t count)
    __attribute__((warn_unused_result));

/* ---- live incidents ---- */

/* A listener. While there is one, the last 1,024 incidents of all kinds are kept in order. */
struct incidents_ear;
/* `wake` is called for each incident, from any thread and with the store locked: it must only set a flag. */
struct incidents_ear *incidents_listen(struct incidents *i, void (*wake)(void *arg), void *arg);
/* After this returns, `wake` is not called any more. */
void incidents_unlisten(struct incidents *i, struct incidents_ear *ear);

struct incident_watch;

/* Begins to watch for the incidents that the arguments of WATCH select, from now on. `i` must have a listener until
 * the watch is freed. NULL: `error` gets the text of an error reply. */
struct incident_watch *incident_watch_new(struct incidents *i, const char *const *words, const size_t *lens,
                                          size_t count, const char *(*kinds)(size_t i), struct text *error);
void incident_watch_free(struct incident_watch *watch);
/* Calls fn with a line for each new incident, a limited number per call, and with a line that counts missed ones. Lines
 * are borrowed, printable and have no end of line. fn must not call this module. Returns whether there are more now. */
bool incident_watch_lines(struct incident_watch *watch, void (*fn)(void *arg, const char *line, size_t len), void *arg);
