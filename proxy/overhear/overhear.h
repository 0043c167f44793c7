/*
 * What MONITOR shows of a Redis that nothing stands before, told to the memory behind PROXY ADVISE.
 *
 *      line ──> time, connection, command ──> what became of it (model.c) ──> advisor_note
 *
 * MONITOR shows commands in the order in which Redis ran them, and no replies. So the keys that are asked for as locks
 * are followed: after a DEL a key is gone, after SET NX it is there, until its expiry. What was there before the first
 * line is not known: a lock that nobody has touched since is taken to be free, and that is counted; Redis may be asked
 * what is there (overhear_asks). Nothing else is guessed: what is not known is counted, and not told.
 *
 * All tables have a fixed size. Not thread-safe.
 */
#ifndef LOCKKEEPER_OVERHEAR_OVERHEAR_H
#define LOCKKEEPER_OVERHEAR_OVERHEAR_H

#include "proxy/advise/advise.h"

struct overhear;

struct overheard {
    uint64_t lines;            /* commands */
    uint64_t garbage;          /* lines that are none of MONITOR's */
    uint64_t attempts;         /* to acquire a lock */
    uint64_t assumed;          /* of these: that the lock was free, as nobody had touched it */
    uint64_t unsure;           /* attempts and releases of which nobody knows what became */
    uint64_t nameless;         /* commands over unix sockets, which MONITOR does not tell apart */
    int64_t first_ms, last_ms; /* of the lines, since 1970; 0: there was none */
};

/* The advisor is borrowed, and outlives it. Where several nodes are listened to each has its own, with a number of its
 * own, and the same seed. */
struct overhear *overhear_new(struct advisor *a, uint64_t seed, uint64_t number);
void overhear_free(struct overhear *o);

/* Takes a line of MONITOR's, without its end ("1700000000.123456 [0 127.0.0.1:4000] \"SETNX\" \"lock\" \"1\""), as
 * Redis sends it or redis-cli prints it. False: it is none, and was counted. */
bool overhear_line(struct overhear *o, const char *line, size_t len);
/* To be called behind the last line, and before the counts or the advice are read. */
void overhear_end(struct overhear *o);
const struct overheard *overhear_counts(const struct overhear *o);

/* ---- who is connected: what CLIENT LIST says ---- */

/* Take the whole reply, as it was asked for between overhear_ask_clients and now: names, users and libraries; who is
 * not in it any more is gone. */
void overhear_ask_clients(struct overhear *o);
void overhear_clients(struct overhear *o, const char *text, size_t len);

/* ---- what is there: answers to PTTL, which show in the lines themselves ---- */

/* The connection that asks shows that it is by this word, which it sends by ECHO: its lines are not the
 * application's. */
void overhear_self(struct overhear *o, const char *word);
/* The key (of database 0) to ask for by PTTL over that connection, after the last line; false: there is none. It has to
 * be asked for then. Borrowed until the next call. */
bool overhear_asks(struct overhear *o, const char **key, size_t *len);
/* The answer to the oldest PTTL that has none. */
void overhear_answer(struct overhear *o, int64_t pttl_ms);

#endif
