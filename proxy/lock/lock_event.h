/* What was seen of a lock: a command of a session on a key, with its effect. Live traffic, audit and MONITOR's lines
 * are told in this form, to the engine (audit.c) and to the observer. */
#pragma once

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

/* What a command does to a list lock's queue; the verb does not tell it. */
enum lock_queue_sight {
    QUEUE_NONE,
    QUEUE_HEAD, /* a read that shows the head: `value` */
    QUEUE_SET,  /* LSET: `count` is the place, 0 the head */
    QUEUE_POP   /* LPOP, RPOP: `value` is the node; the verb is LOCK_RELEASE */
};

/* What a command does to a list or sorted set that may be a semaphore. */
enum permit_sight {
    PERMIT_NONE,
    PERMIT_POPS,   /* `value` is the token; NULL: not known */
    PERMIT_PUSHES, /* `value` is a token, or a job for others */
    PERMIT_ADDS,   /* ZADD of one member, `value`, whose score is the time */
    PERMIT_ASKS,   /* ZRANK, ZCARD */
    PERMIT_REMOVES /* ZREM of one member, `value` */
};

struct lock_event {
    struct lock_key key;
    const struct lock_rule *rule; /* held by the caller; NULL: no rule matches, or its mode is off */
    enum lock_verb verb;
    enum lock_effect effect;
    enum lock_queue_sight queue;
    enum permit_sight permit;
    bool permit_alone; /* for PROXY ADVISE the command says nothing of locks */
    uint8_t advises;   /* as in struct lock_row */
    bool overlapped;   /* several workers may share the session */
    bool scripted;     /* by an application's script: it may have held the lock already, and compared */
    bool behind_watch;
    bool beside;  /* of a kind that the rule does not include */
    bool renewed; /* the proxy gives the lock that was acquired an expiry */
    uint64_t session_id;
    int64_t pttl_ms;   /* the expiry that the command set; PTTL_NONE; PTTL_UNKNOWN: left as it was */
    const char *value; /* written, or shown (READ, COUNT), or the node; NULL: unknown. Borrowed */
    size_t value_len;
    bool compares;     /* the server compares: a no does not say that there is no key */
    const char *named; /* the value that the lock must have for the command to act; NULL: none. Borrowed */
    size_t named_len;
    const char *old; /* SWAP: the value before; NULL: none */
    size_t old_len;
    int64_t count, by; /* COUNT_UP, COUNT_DOWN, QUEUE_PUSH: the new number, and the difference, positive */

    /* The sender, for PROXY ADVISE. */
    const char *identity, *library; /* of the client; CLIENT SETINFO lib-name or NULL */
    size_t identity_len;
    uint64_t identity_hash; /* computed with the same key each time */

    /* For audit. */
    uint64_t watched; /* engine_watch's */
    uint32_t login;
    int64_t begun_ms;
    const char *refusal;          /* the reply that enforcing gives instead: "0", "nil", "LOCKED"; static */
    const char *command, *client; /* as engine_finish has them */
};

/* Audit: the engine watches commands that pass unchanged, and infers from their replies what its scripts would have
 * said. It attributes a command when its reply comes, since replies come in Redis's order. A command that enforcing
 * would have refused was carried out, so that the lease which it met is over. If a reply does not tell what became of
 * the lock, the engine learns and reports nothing.
 *
 * engine_watch: a command of this session on a key is being sent. Returns the number for lock_event.watched, never 0.
 * engine_observe, once for each engine_watch: the answer. Returns how enforcing would have answered, for tests. */
uint64_t engine_watch(struct lock_engine *e, struct lock_session *s, const struct lock_key *key);
enum lock_outcome engine_observe(struct lock_engine *e, const struct lock_event *sight, int64_t now_ms);
