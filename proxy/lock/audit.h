/*
 * Audit: the engine watches commands that pass unchanged, and infers from their replies what its scripts would have
 * said.
 *
 *      command on a key in `mode audit` ──> as it came ──> node          engine_watch
 *      its reply ──> as it came ──> client                               engine_observe ──> claims, incidents
 *
 * The engine attributes the command when its reply comes, since replies come in the order in which Redis ran the
 * commands. A command that enforcing would have refused has been carried out, so that the lease which it met is over.
 * If a reply does not tell what became of the lock, the engine learns and reports nothing.
 */
#ifndef LOCKKEEPER_LOCK_AUDIT_H
#define LOCKKEEPER_LOCK_AUDIT_H

#include "proxy/lock/engine.h"

/* What a reply tells, by the command's verb. */
enum lock_effect {
    EFFECT_DONE,     /* acquired, set, deleted, expiry set, counted, read */
    EFFECT_LOST,     /* SETNX, SET NX: the key existed */
    EFFECT_ABSENT,   /* there was no such key */
    EFFECT_REMOVED,  /* done, and it has deleted the key: an expiry in the past */
    EFFECT_SCRIPTED, /* a script of the application's named the key, whose state is unknown now */
    EFFECT_NOTHING,  /* Redis refused the command, or the reply tells nothing */
    EFFECT_NOT_SENT,
    EFFECT_UNKNOWN /* lost on the way */
};

/* Tells the engine that a command of this session on a key is being sent. The session's peer is kept until
 * engine_observe, which is called once for each engine_watch. Returns the number for lock_sight.watched. */
uint64_t engine_watch(struct lock_engine *e, struct lock_session *s, const struct lock_key *key);

/* What a command does to a list lock's queue, for PROXY ADVISE; the verb does not tell it. */
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
    const char *old; /* SWAP: the value before; NULL: none */
    size_t old_len;
    int64_t count, by;            /* COUNT_UP, COUNT_DOWN: the new number, and the difference, positive */
    const char *refusal;          /* the reply that enforcing gives instead: "0", "nil", "LOCKED"; static */
    const char *command, *client; /* as engine_finish has them */
};

/* Tells the engine the answer to a command under audit. Returns how enforcing would have answered, for PROXY ADVISE
 * and tests. */
enum lock_outcome engine_observe(struct lock_engine *e, const struct lock_sight *sight, int64_t now_ms);

#endif
