/*
 * Audit: the engine watches commands that pass unchanged, and infers from their replies what its scripts would have
 * said.
 *
 *      command on a key in `mode audit` ──> as it came ──> node          engine_watch
 *      its reply ──> as it came ──> client                               engine_observe ──> claims, incidents
 *
 * Attribution is the engine's own, decided when the reply is there: replies come in the order in which Redis ran the
 * commands. What enforcing would have refused has happened nevertheless, so that the lease concerned is over.
 * Where a reply does not tell what became of the lock, nothing is believed and nothing is reported.
 */
#ifndef LOCKKEEPER_LOCK_AUDIT_H
#define LOCKKEEPER_LOCK_AUDIT_H

#include "proxy/lock/engine.h"

/* What a reply tells, by the command's verb. */
enum lock_effect {
    EFFECT_DONE,     /* acquired, set, deleted, expiry set, counted, read */
    EFFECT_LOST,     /* SETNX, SET NX: the key was there */
    EFFECT_ABSENT,   /* there was no such key */
    EFFECT_REMOVED,  /* done, and the key is gone by it: an expiry in the past */
    EFFECT_SCRIPTED, /* a script of the application's named the key: nothing is known of it any more */
    EFFECT_NOTHING,  /* Redis refused the command, or the reply tells nothing */
    EFFECT_NOT_SENT,
    EFFECT_UNKNOWN /* lost on the way */
};

/* Tells the engine that a command of this session on a key is being sent: its peer is kept until engine_observe, which
 * follows once for each. Returns the number that engine_observe wants to have. */
uint64_t engine_watch(struct lock_engine *e, struct lock_session *s, const struct lock_key *key);

/* What a command does to a queue, besides its verb, as PROXY ADVISE wants to know it. */
enum lock_queue_sight {
    QUEUE_NONE,
    QUEUE_HEAD, /* a read that shows the head: `value` */
    QUEUE_SET,  /* LSET: `count` is the place, 0 the head */
    QUEUE_POP   /* LPOP, RPOP: `value` is the node; the verb is LOCK_RELEASE */
};

struct lock_sight {
    struct lock_key key;
    const struct lock_rule *rule; /* held by the caller */
    enum lock_verb verb;
    enum lock_effect effect;
    enum lock_queue_sight queue;
    uint64_t watched; /* engine_watch's */
    uint64_t session_id;
    uint32_t login;
    int64_t begun_ms;
    int64_t pttl_ms;   /* the expiry that the command set; PTTL_NONE; PTTL_UNKNOWN: left as it was */
    const char *value; /* written, or shown (READ, COUNT), or the node; NULL: unknown. Borrowed */
    size_t value_len;
    const char *old; /* SWAP: the value that was there; NULL none */
    size_t old_len;
    int64_t count, by;   /* COUNT_UP, COUNT_DOWN: the number afterwards, and by how much it was changed, positive */
    const char *refusal; /* the reply that enforcing gives instead: "0", "nil", "LOCKED"; static */
    const char *command, *client; /* as engine_finish has them */
};

/* Tells the engine what a command under audit was answered. Returns how enforcing would have answered, for PROXY ADVISE
 * and tests. */
enum lock_outcome engine_observe(struct lock_engine *e, const struct lock_sight *sight, int64_t now_ms);

#endif
