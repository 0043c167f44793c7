/*
 * The ledger of permits: what sessions have taken from semaphores (rules of kind semaphore), and have not given back.
 *
 *      request ──> permits_begin          reply ──> permits_take, permits_give, permits_forget ──> permits_end
 *      session closes ──> permits_leave ──┐
 *      lease is over ──> permits_expire ──┴──> due ──> permits_due ──> the caller gives the permit back, once
 *
 * It has no socket and no clock, and is fed by replies, since only a reply tells what was taken. An operation spans the
 * time from a request to its reply. A permit that is due waits for the operations which may be giving it back.
 *
 * A give-back is matched so that no permit is returned twice: first a permit of the session itself, then one of its
 * client, then the oldest of the key. All threads share one ledger, under one mutex.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/list.h"
#include "proxy/base/text.h"
#include "proxy/lock/engine.h"
#include "proxy/lock/rule.h"

enum {
    PERMITS_MAX = 65536,       /* permits of all keys; more are not tracked */
    PERMITS_OF_KEY_MAX = 4096, /* the same for one key: a give-back looks at all of them */
    PERMIT_KEY_MAX = 1024,     /* permits of longer keys, or with longer texts, are not tracked */
    PERMIT_TEXT_MAX = 512,
    PERMIT_SCORE_MAX = 40,      /* with its NUL */
    PERMIT_WHO_MAX = 160,       /* with its NUL */
    PERMIT_ONE_SHOT_MS = 100,   /* a one-shot client closes so soon after it has taken a permit */
    PERMIT_WAITS_MS = 10 * 1000 /* a permit that is due waits no longer for other sessions' operations */
};

struct permit_ledger;
struct permit_key; /* private */

enum permit_shape {
    PERMIT_COUNT, /* n of a counter */
    PERMIT_TOKEN, /* an element of a list */
    PERMIT_MEMBER /* a member of a sorted set, with its score */
};

enum permit_reason { PERMIT_LEFT, PERMIT_EXPIRED };

/* A request that may take or give back, until its reply. Embedded in the caller's memory. */
struct permit_op {
    struct lock_key name; /* the ledger's copy */
    /* Private. */
    struct list_node link;
    struct permit_key *key;
    uint64_t seq;
    int64_t gives;
};

struct permit_sender {
    uint64_t session, client; /* lock_session.id, lock_client_hash */
    uint32_t login;
    bool gone;       /* the session has closed before its reply has come */
    const char *who; /* for incidents; borrowed */
};

struct permit {
    /* For the caller of permits_due. */
    struct lock_key name;
    const struct lock_rule *rule; /* the set of rules is kept */
    enum permit_shape shape;
    enum permit_reason reason;
    bool alike;                   /* tokens of the list are known to have equal texts */
    int64_t n;                    /* how many; of tokens and members 1 */
    uint32_t login;               /* may be set to 0 before permits_put_back */
    char score[PERMIT_SCORE_MAX]; /* PERMIT_MEMBER */
    char who[PERMIT_WHO_MAX];
    unsigned tries; /* how often it was put back */
    /* Private. */
    struct list_node of_key, of_session, of_client, of_due; /* of_due: of the permits due, or with a lease */
    struct permit_key *key;
    struct permit_party *session, *client;
    uint64_t seq, gone_seq;
    int64_t taken_ms, due_ms;
    bool gone;
    size_t len;
    char text[]; /* the token or the member */
};

struct permit_take {
    const struct permit_sender *sender;
    const struct lock_rule *rule;
    enum permit_shape shape;
    const char *text; /* the token or the member */
    size_t len;
    const char *score; /* PERMIT_MEMBER */
    size_t score_len;
    int64_t n, value; /* PERMIT_COUNT: how many, and the counter's value behind it */
    int64_t now_ms;
};

struct permit_ledger *permits_new(uint64_t seed);
void permits_free(struct permit_ledger *l);
/* Whether there is anything to track or to give back: cheap, and without the mutex. */
bool permits_any(const struct permit_ledger *l);

/* Begins an operation. `gives`: how many permits it may give back, 0: none. */
void permits_begin(struct permit_ledger *l, struct permit_op *op, const struct lock_key *key, int64_t gives);
void permits_end(struct permit_ledger *l, struct permit_op *op);

/* Notes a permit that the operation's reply tells of. False: it is not tracked, since the ledger is full or a text is
 * too long. A permit that was taken before the semaphore was reset does not count, and is no failure. */
bool permits_take(struct permit_ledger *l, const struct permit_op *op, const struct permit_take *take);
/* Notes that a sender has given back `n` of a counter. Returns how many of them the ledger had. */
int64_t permits_give(struct permit_ledger *l, const struct permit_op *op, const struct permit_sender *from, int64_t n);
/* Notes that a sender has given back a token or a member. Returns whether the ledger had it. */
bool permits_give_text(struct permit_ledger *l, const struct permit_op *op, const struct permit_sender *from,
                       const char *text, size_t len);
/* Notes the new score of a member. Returns whether the ledger has the member. */
bool permits_rescore(struct permit_ledger *l, const struct permit_op *op, const char *text, size_t len,
                     const char *score, size_t score_len);
/* Forgets the key's permits: the semaphore was reset. permits_forget_all does so for all keys of a database, or with
 * `every` of all databases. */
void permits_forget(struct permit_ledger *l, const struct permit_op *op);
void permits_forget_all(struct permit_ledger *l, uint32_t db, bool every);
/* Gives the permits the rules of a new configuration; forgets those whose key has no such rule any more. */
void permits_rules(struct permit_ledger *l, const struct lock_rules *rules);

/* A session has closed. `client`: its client's hash at last. `last`: the client has no other session. `one_shot`: it
 * looks like a one-shot client's session: a permit that it has just taken is only returned by a lease. */
void permits_leave(struct permit_ledger *l, uint64_t session, uint64_t client, bool last, bool one_shot,
                   int64_t now_ms);
/* Makes permits due whose lease is over. */
void permits_expire(struct permit_ledger *l, int64_t now_ms);
/* Takes a permit out that is to be given back; NULL: none is due now. The caller gives it back, and owns it until
 * permits_put_back or permits_drop. */
struct permit *permits_due(struct permit_ledger *l, int64_t now_ms);
/* The permit could not be given back, and is due again in `in_ms`. */
void permits_put_back(struct permit_ledger *l, struct permit *p, int64_t now_ms, int64_t in_ms);
void permits_drop(struct permit_ledger *l, struct permit *p);
/* Appends the key's first `max` permits, the oldest first, "ADDRESS NAME id=7 has 2 since 12 ms; ...": the number of
 * its session, or `gone`; how many of a counter it is, or its token or member. Returns how many permits the key has. */
int64_t permits_show(struct permit_ledger *l, const struct lock_key *key, size_t max, int64_t now_ms, struct text *out);
/* How many permits the ledger has. */
int64_t permits_held(struct permit_ledger *l);
