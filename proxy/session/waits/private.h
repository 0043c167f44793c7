/*
 * What the files of proxy/session/waits/ share.
 */
#pragma once

#include "proxy/session/core/session.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/sending.h"
#include "proxy/session/waits/wait.h"

struct release_channels;

/* A worker's part in waiting. */
struct worker_waits {
    struct lock_waits calls;   /* must be the first field: worker->waits */
    struct list_node sessions; /* the waiting sessions of this worker, each a struct wait */
    struct ev_async wake;      /* wakes this worker when another thread has mail for a session that waits here */
    struct release_channels *release_channels; /* release_channel.c; NULL: no session of this worker has waited yet */
    bool serving; /* the waiting sessions are to be served at the end of this turn of the event loop */
};
static inline struct worker_waits *waits_of_worker(const struct worker *w) {
    return (struct worker_waits *)(void *)w->waits;
}

/* ---- park.c: what is kept of an attempt while its session waits ------------------------------ */

/* What is needed to make an attempt to acquire once more. A waiting session keeps a struct parked, and no request and
 * no lock call. */
struct parked {
    struct session *session;      /* the attempt's session; valid only while the attempt is parked */
    const struct lock_rule *rule; /* with a reference to the rules that it belongs to */
    struct parked_words
        *words; /* the arguments of a command that cannot be rebuilt from its value and expiry; NULL: it can */
    int64_t expiry_ms;
    uint32_t value_len;
    uint16_t command; /* its enum command_id: SETNX, SET, MSETNX, HSETNX */
    uint8_t advises;
    uint8_t shape : 7;
    bool clobbers : 1; /* MSETNX of several keys, which clobber.lua carries out */
};
struct parked_words {
    char *reply; /* the client's part of the last refusal, which differs from command to command; NULL: none yet */
    size_t reply_len;
    struct lock_words all;
    struct resp_arg args[]; /* of `all`; the bytes follow behind */
};
/* Fills *p from an attempt of this command that is under way. `room` is the caller's memory for the name of the client,
 * as in lock_call's `who`, and the value behind it. `words` (NULL: none) are copied. */
void lock_parked_fill(struct parked *p, enum command_id command, const struct lock_call *l,
                      const struct lock_words *words, char *room);
/* What the parked HSETNX means to the lock. */
extern const struct lock_command lock_parked_field;
void lock_parked_clear(struct parked *p);
/* Parks an attempt that is not under way and has no owner: frees its request and its lock calls. */
void lock_park(struct call *c, struct parked *p);
/* Makes the attempt again, as if its command had just come. Returns its new call, which has a lock call. `key` is the
 * key of the queue. */
struct call *lock_unpark(struct parked *p, const struct lock_key *key, const char *room);

/* ---- release_channel.c ---- */

/* lock_release_channel_open subscribes to the releases at other proxies, for the lock in `slot`. It
 * is first called when a session here begins to wait; lock_release_channel_close ends it when the worker stops. Returns
 * whether this call began to subscribe: a message that is sent before the node knows of the subscription is lost. */
bool lock_release_channel_open(struct worker *w, uint16_t slot);
void lock_release_channel_close(struct worker *w);

/* ---- lock_wait.c: attempts that are held until the lock is free ---- */

/* Holds an attempt, under a rule with `wait`, that the script has answered with `e`. False: the attempt does not wait.
 */
bool lock_wait(struct call *c, struct lock_call *l, const struct lock_envelope *e);
/* Holds an attempt that was not sent yet, if other sessions are waiting before it. False: the attempt does not wait. */
bool lock_wait_behind(struct call *c, struct lock_call *l);
/* Allocates the wait of the request's attempt, and keeps these arguments (NULL: none): struct lock_waits. */
void lock_wait_keep(struct request *r, const struct lock_call *l, const struct lock_words *words);
/* The functions that struct session_room calls. */
void lock_waits_open(struct worker *w);
void lock_waits_close(struct worker *w);
void lock_waits_rules(struct worker *w);
void lock_wait_speaks(struct session *s);
/* A session has closed. */
void lock_wait_leaves(struct session *s);
