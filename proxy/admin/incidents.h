/*
 * Incidents: what all threads report, kept and counted within bounds, and logged.
 *
 *      incidents_add ──┬─> the ring of its kind ────────────> PROXY INCIDENTS, the status page
 *                      ├─> its group's sum ─────────────────> PROXY INCIDENTS SUMMARY
 *                      ├─> the last ones, while somebody listens ─> PROXY WATCH
 *                      └─> the log: the first at once, the others of 10 s as one line (incidents_tick)
 *
 * A group is what one client (its identity) does under one rule, of one kind. So a client that repeats itself writes a
 * line in 10 s, and takes a part of its own kind's ring: from 64 rows in 10 s on its newest one stands for all that
 * follow.
 *
 * 1,024 groups are told apart. Beyond that the one that has been quiet for longest, for 10 s at least, is added to its
 * kind's "(others)", and where all are busy the new one is counted there. 200 first lines in 10 s are logged at once,
 * and 20 lines of repeats a second; the others' turn comes later, with what they have come to by then.
 */
#ifndef LOCKKEEPER_ADMIN_INCIDENTS_H
#define LOCKKEEPER_ADMIN_INCIDENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct incidents;

/* Which incidents are wanted. Borrowed; {0}: all. */
struct incident_filter {
    const char *kind;    /* NULL: of any */
    const char *pattern; /* that the key matches, as far as it is kept; NULL: any */
    size_t pattern_len;
    int64_t since_ms; /* wall clock; 0: since ever */
};

/* One incident; texts are borrowed by incidents_add, and valid during the call of the function given to
 * incidents_each. */
struct incident {
    int64_t time_ms;  /* wall clock */
    const char *kind; /* one of a few; static */
    const char *rule; /* its pattern; "" not known */
    const char *key;
    size_t key_len;
    const char *identity;                           /* whose incident it is: the client's, without its port */
    const char *client, *holder, *command, *action; /* the client with its port and name, if it did something */
    uint64_t count; /* how many this one stands for, the newest of them; incidents_add counts it as one */
};

/* What is known of a group; texts are valid during the call of the function given to incidents_sums. */
struct incident_sum {
    const char *kind, *rule, *identity;
    uint64_t count;
    int64_t first_ms, last_ms;
    const char *key; /* the last one's */
    size_t key_len;
};

/* What is known of a client, of all rules and kinds; texts are valid during the call of the function given to
 * incidents_clients. */
struct incident_client {
    const char *identity;
    uint64_t count;
    const char *kind; /* of which it has most */
    uint64_t kind_count;
    int64_t last_ms;
    const char *key; /* the last one's */
    size_t key_len;
};

/* Makes a store that keeps the last `rows` incidents of each kind. */
struct incidents *incidents_new(size_t rows);
void incidents_free(struct incidents *i);
/* Records an incident, and logs it at notice, or counts it for a line to come. Long texts are cut. Thread-safe. */
void incidents_add(struct incidents *i, const struct incident *incident);
/* Logs what was repeated in the last 10 s; to be called about once a second. Thread-safe. */
void incidents_tick(struct incidents *i, int64_t now_ms);
/* Logs all that is still to be told; for the end. Thread-safe. */
void incidents_flush(struct incidents *i, int64_t now_ms);
/* Calls `fn` for the incidents that are wanted, newest first, at most max; it must not call this module. False: the
 * pattern takes too long to match, and some may be missing. Thread-safe. */
bool incidents_each(struct incidents *i, const struct incident_filter *wanted, size_t max,
                    void (*fn)(void *arg, const struct incident *incident), void *arg);
/* The same for the groups, those with most incidents first: of the wanted kind, and which had an incident in the wanted
 * time. No key is asked for. */
void incidents_sums(struct incidents *i, const struct incident_filter *wanted, size_t max,
                    void (*fn)(void *arg, const struct incident_sum *sum), void *arg);
/* The same for clients, those with most incidents first, at most max; who is not told apart any more is "(others)". */
void incidents_clients(struct incidents *i, size_t max, void (*fn)(void *arg, const struct incident_client *client),
                       void *arg);

/* ---- as they happen ---- */

/* Who follows the incidents: from then on the last 1,024 are kept in their order, whatever their kinds. */
struct incidents_ear;
/* `wake` is called for each incident, from any thread and with the store locked: it must only take a note. */
struct incidents_ear *incidents_listen(struct incidents *i, void (*wake)(void *arg), void *arg);
/* `wake` is not called any more when this returns. */
void incidents_unlisten(struct incidents *i, struct incidents_ear *ear);
/* The number of the next incident. Thread-safe. */
uint64_t incidents_next(struct incidents *i);
/* Calls `fn` for the wanted ones of the incidents from number *at on, in their order; it must not call this module. It
 * looks at `max` of them at most, and at fewer where the pattern takes long; *at is the number to go on with then.
 * *missed: how many were gone before they could be looked at, of any kind and key. Returns whether there are more to be
 * looked at now. Thread-safe, while somebody listens. */
bool incidents_follow(struct incidents *i, uint64_t *at, const struct incident_filter *wanted, size_t max,
                      uint64_t *missed, void (*fn)(void *arg, const struct incident *incident), void *arg);

#endif
