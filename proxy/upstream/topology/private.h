/*
 * The common part of cluster.c and sentinel.c, which find out which node serves which slots: rounds of questions over
 * hiredis, put to one node after the other until one answers.
 *
 *      hint (MOVED, READONLY, lost node, ...) ──> topology_want ──(limited rate, jitter)──> a round:
 *          kind->collect ──> candidates ── its name? ── kind->ask each ──> topology_done
 *                                      └─ none answers ──> again, later each time
 *
 * Only one node is asked at a time. Without hints, a round starts every calm_ms.
 */
#pragma once

#include <hiredis/async.h>
#include <hiredis/hiredis.h>

#include "proxy/upstream/topology/topology.h"

struct topology;

enum { REPLICAS_MAX = 64 };

typedef bool (*topology_ask_fn)(struct topology *t);

struct topology_kind {
    int64_t calm_ms; /* between rounds while all slots are served, as in struct topology */
    /* Adds the round's candidates, the best first, by topology_add. */
    void (*collect)(struct topology *t);
    /* Opens a connection (topology_connect) and sends the questions. False: it failed at once. */
    topology_ask_fn ask;
    /* Writes why nothing is known yet, for a reply or the log; `last` is the last candidate's reason. */
    void (*nobody)(const struct topology *t, char *out, size_t size, const char *last);
    /* Called if no candidate of a round has answered. May be NULL. */
    void (*in_vain)(struct topology *t);
    /* Frees t and the rest of the kind's structure. */
    void (*free)(struct topology *t);
};

/* The addresses of a name, as texts, and how many of them have been tried. */
struct found {
    char at[HOST_ADDRESSES][RESOLVE_NUMBER_MAX];
    unsigned count, tried;
};

/* Take the addresses that a lookup found, or the one `number`; none counts as tried. */
void found_take(struct found *f, const struct addrinfo *list);
void found_number(struct found *f, const char *number);
/* The next address to try, or NULL. */
const char *found_next(struct found *f);

/* The first member of each kind's own structure. */
struct topology {
    struct upstream *u;
    const struct topology_kind *kind;
    int64_t calm_ms;
    redisAsyncContext *ctx; /* to the node being asked; NULL: none */
    struct address asked;
    topology_ask_fn ask;    /* the question to put to `asked`, at one address after the other until one answers */
    struct resolve *lookup; /* of asked's name; NULL: none is under way */
    struct found found;
    const char *number; /* the address being asked, one of `found` */
    ev_timer next, timeout;
    bool again;                                /* a hint came while a round was under way */
    int64_t started_ms, ended_ms, interval_ms; /* of the last round; the delay before the next one */
    int64_t asked_ms;                          /* when the last finished round was started */
    struct address *candidates;                /* of this round */
    size_t candidate_count, candidate_at;
    bool before[UPSTREAM_OWNS]; /* a server has refused the login in use: it gets the one before it */
    bool refused;               /* the node being asked did not accept the login; the reason is its error */
    char reason[ADDRESS_MAX + REASON_MAX];
};

/* Prepares a topology; its first round starts in the loop's next turn. */
void topology_init(struct topology *t, struct upstream *u, const struct topology_kind *kind);
/* Ends the round in progress. */
void topology_clear(struct topology *t);

/* For collect: adds a candidate, if it is not in the list yet. */
void topology_add(struct topology *t, const struct address *at);
/* Rotates the candidates from index `from` on, so that many proxies don't ask the same node. */
void topology_rotate(struct topology *t, size_t from);

/* Sets t->asked and puts the question to it, after a lookup of its name if needed. False: it failed at once. */
bool topology_find(struct topology *t, const struct address *at, topology_ask_fn ask);
/* For ask functions: opens t->ctx, with a time limit, and logs in: with the proxy's own login, or with that for
 * Sentinels. False with t->reason. */
bool topology_connect(struct topology *t, bool to_sentinel);
/* Drops the connection to the node being asked, in any state. */
void topology_drop(struct topology *t);
/* Called first in each callback. False if the reply does not belong to the current round, or the connection was lost
 * and the next candidate is being asked. */
bool topology_answered(struct topology *t, redisAsyncContext *ctx, const redisReply *reply);
/* Drops the node being asked, whose answer was no use; notes the reason, and asks the next one. */
void topology_failed(struct topology *t, const char *reason);
/* Asks the next candidate. t->reason already has the last one's reason, and no connection is open. */
void topology_next(struct topology *t);
/* Ends a round that has an answer. */
void topology_done(struct topology *t, bool changed);

/* Sends the proxy's own login over a new connection, if there is one. `heard`: a refusal ends the round's question. */
void topology_login(struct topology *t, redisAsyncContext *ctx, enum upstream_own at, bool heard);
