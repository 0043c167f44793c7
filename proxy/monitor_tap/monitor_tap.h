/*
 * Reads the MONITOR output of a Redis without a proxy, and feeds the observer.
 *
 *      line ──> time, connection, command ──> its result (key_model.c) ──> observer_note
 *
 * MONITOR shows commands in the order in which Redis ran them, without replies. So a model follows the keys that are
 * used as locks. The state before the first line is not known. A lock without a command so far is assumed to be free,
 * and that is counted; Redis may be asked instead (tap_asks). Any other unknown result is counted, and not reported.
 *
 * All tables have a fixed size. Not thread-safe.
 */
#pragma once

#include "proxy/observe/observe.h"

struct monitor_tap;

struct overheard {
    uint64_t lines;            /* valid lines, each a command */
    uint64_t garbage;          /* lines that are not MONITOR's */
    uint64_t attempts;         /* to acquire a lock */
    uint64_t assumed;          /* attempts that count as won because no command on the lock was seen before */
    uint64_t unsure;           /* attempts and releases whose result is not known */
    uint64_t nameless;         /* commands over unix sockets, which MONITOR does not distinguish */
    int64_t first_ms, last_ms; /* of the lines, since 1970; 0: there was none */
};

/* The observer is borrowed, and must outlive it. If several nodes are listened to, each has its own object, with a
 * different number and the same seed. */
struct monitor_tap *tap_new(struct observer *a, uint64_t seed, uint64_t number);
void tap_free(struct monitor_tap *o);

/* Takes a line of MONITOR's, as Redis sends it or redis-cli prints it, without its end. False: it is not such a line,
 * and was counted. */
bool tap_line(struct monitor_tap *o, const char *line, size_t len);
/* Reports what the last script has done. To be called after the last line, before the counts or the advice are read. */
void tap_end(struct monitor_tap *o);
const struct overheard *tap_counts(const struct monitor_tap *o);

/* ---- connected clients, from CLIENT LIST ---- */

/* tap_clients takes the whole reply of CLIENT LIST: names, users and libraries. tap_ask_clients is called when CLIENT
 * LIST is sent. A client that is missing from the reply has gone. */
void tap_ask_clients(struct monitor_tap *o);
void tap_clients(struct monitor_tap *o, const char *text, size_t len);

/* ---- existing keys, from replies to PTTL; the questions appear as lines too ---- */

/* The connection that asks sends this word by ECHO, which identifies it: its lines are not the application's. */
void tap_self(struct monitor_tap *o, const char *word);
/* The key (of database 0) for which PTTL must be sent over that connection, after the last line; false: none. Borrowed
 * until the next call. */
bool tap_asks(struct monitor_tap *o, const char **key, size_t *len);
/* The reply to the oldest PTTL that has none yet. */
void tap_answer(struct monitor_tap *o, int64_t pttl_ms);
