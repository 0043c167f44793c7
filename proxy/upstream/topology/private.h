/*
 * What the two ways to find out who serves what have in common (cluster.c, sentinel.c): rounds of questions over
 * hiredis, asked of one node after the other until one answers.
 *
 *      hint (MOVED, READONLY, lost node, ...) ──> topology_want ──(limited rate, jitter)──> a round:
 *          kind->collect ──> candidates ── its name? ── kind->ask each ──> topology_done
 *                                      └─ none answers ──> again, later each time
 *
 * One question at a time. While all is well it asks now and then.
 */
#ifndef LOCKKEEPER_UPSTREAM_TOPOLOGY_PRIVATE_H
#define LOCKKEEPER_UPSTREAM_TOPOLOGY_PRIVATE_H

#include <hiredis/async.h>
#include <hiredis/hiredis.h>

#include "proxy/upstream/topology/topology.h"

struct topology;

typedef bool (*topology_ask_fn)(struct topology *t);

struct topology_kind {
    int64_t calm_ms; /* between rounds while all slots are served */
    /* Adds the round's candidates, best first, by topology_add. */
    void (*collect)(struct topology *t);
    /* Opens a connection (topology_connect) and sends the questions. False where it failed at once. */
    topology_ask_fn ask;
    /* Why nothing is known yet, for a reply or the log; `last` is the last candidate's reason. */
    void (*nobody)(const struct topology *t, char *out, size_t size, const char *last);
    /* Says that no candidate of a round has answered. May be NULL. */
    void (*in_vain)(struct topology *t);
    /* Frees t and what the kind has beside it. */
    void (*free)(struct topology *t);
};

/* What a name means, as texts, and how many of them have been tried. */
struct found {
    char at[NODE_ADDRESSES][RESOLVE_NUMBER_MAX];
    unsigned count, tried;
};

/* Takes what was found, or the one `number`; none has been tried then. */
void found_take(struct found *f, const struct addrinfo *list);
void found_number(struct found *f, const char *number);
/* The next one to be tried, or NULL. */
const char *found_next(struct found *f);

/* The first member of each kind's own structure. */
struct topology {
    struct upstream *u;
    const struct topology_kind *kind;
    redisAsyncContext *ctx; /* to the node being asked; NULL: none */
    struct address asked;
    topology_ask_fn ask;    /* that one, at each address that its name has until one answers */
    struct resolve *lookup; /* of its name; NULL: none is under way */
    struct found found;
    const char *number; /* of these, the one being asked */
    ev_timer next, timeout;
    bool again;                                /* a hint came while a round was under way */
    int64_t started_ms, ended_ms, interval_ms; /* of the last round; the time to the next one */
    int64_t asked_ms;                          /* when the last round was begun that has ended */
    struct address *candidates;                /* of this round */
    size_t candidate_count, candidate_at;
    bool refused; /* the node being asked did not accept the login; the reason is its error */
    char reason[ADDRESS_MAX + REASON_MAX];
};

/* Prepares a topology, which begins with a round in the loop's next turn. */
void topology_init(struct topology *t, struct upstream *u, const struct topology_kind *kind);
/* Ends what is under way. */
void topology_clear(struct topology *t);

/* For collect: adds a candidate, unless it is there already. */
void topology_add(struct topology *t, const struct address *at);
/* Turns those from index `from` on, so that many proxies don't ask the same node. */
void topology_rotate(struct topology *t, size_t from);

/* Has t->asked be this one, and asks it, perhaps after its name was looked up. False where it failed at once. */
bool topology_find(struct topology *t, const struct address *at, topology_ask_fn ask);
/* For whoever asks: opens t->ctx, with a time limit, and logs in (password NULL: doesn't). False with t->reason. */
bool topology_connect(struct topology *t, const char *user, const char *password);
/* Lets go of the node being asked, whatever state it is in. */
void topology_drop(struct topology *t);
/* Judges what a callback got, before it looks at it: false where it does not concern the round any more, or the
 * connection was lost and the next candidate is being asked. */
bool topology_answered(struct topology *t, redisAsyncContext *ctx, const redisReply *reply);
/* Lets go of the node being asked, which gave no use, notes why, and asks the next one. */
void topology_failed(struct topology *t, const char *reason);
/* Asks the next candidate, where t->reason says already why the last one gave no use, and nothing is open. */
void topology_next(struct topology *t);
/* Ends a round that has its answer. */
void topology_done(struct topology *t, bool changed);

/* Opens a connection by hiredis on the upstream's loop to `number`, which is what at's host means, logging in; NULL
 * with the reason in `why`. The caller's. */
redisAsyncContext *topology_open(struct upstream *u, const struct address *at, const char *number, const char *user,
                                 const char *password, redisCallbackFn *on_auth, void *arg, char *why, size_t size);

/* ---- sentinel.c (which node is the master) and watch.c (subscriptions to Sentinels) ---- */

enum { SENTINELS_MAX = 32 };

/* A subscription to a Sentinel, made anew whenever it is lost. */
struct sentinel_watch {
    struct sentinel *sentinel;
    struct address at;
    bool known;             /* configured, or named by the Sentinel that answered last */
    redisAsyncContext *ctx; /* NULL: not connecting, or its name is being looked up */
    struct resolve *lookup; /* NULL: it is not */
    struct found found;     /* what its name means: tried one after the other */
    bool subscribed;
    ev_timer timer; /* connecting: the limit; not connected: when to try again */
    unsigned failures;
};

struct sentinel {
    struct topology topology; /* first */
    struct sentinel_watch *watches[SENTINELS_MAX];
    size_t watch_count;
    struct address first; /* the Sentinel to ask first, with has_first */
    bool has_first;
    struct address named; /* the master, as the Sentinel being asked has it */
    uint64_t named_epoch; /* its configuration epoch, 0: not known */
    uint64_t epoch;       /* of the master in use */
};

/* Begins a round, since a Sentinel has announced another master. */
void sentinel_switched(struct sentinel *s, const struct address *by);

/* Begins to subscribe to a Sentinel, again and again until watch_free. */
struct sentinel_watch *watch_new(struct sentinel *s, const struct address *at);
void watch_free(struct sentinel_watch *w);
/* The state of a subscription: "up", "connecting", "down". */
const char *watch_state(const struct sentinel_watch *w);

#endif
