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

enum { REPLICAS_MAX = 64, QUESTIONS_MAX = 4 /* to one node */ };

/* ---- a connection to one server, at the addresses of its name, one after the other ---- */

struct link {
    struct upstream *u;
    struct address at;
    redisAsyncContext *ctx;                             /* NULL: none is open */
    struct resolve *lookup;                             /* of its name; NULL: none is under way */
    char addresses[HOST_ADDRESSES][RESOLVE_NUMBER_MAX]; /* of the name, as texts */
    unsigned count, tried;
    ev_timer timer; /* the time limit */
    /* The name was looked up; if it was in vain, there are no addresses, and `error` says why. */
    void (*looked_up)(struct link *l, const char *error);
};

/* Starts the timer. */
void link_time(struct link *l, int64_t ms);
/* Forgets the addresses of the name, and finds them anew. True: they are known. False: looked_up will be called. */
bool link_find(struct link *l);
/* Connects to the next address, within a time limit. False: it failed at once, or (`why` unchanged) none is left. */
bool link_connect(struct link *l, char *why, size_t size);
/* Drops the connection, in any state. */
void link_drop(struct link *l);

/* ---- rounds ---- */

struct topology;

typedef void (*topology_ask_fn)(struct topology *t);
typedef void (*topology_answer_fn)(struct topology *t, const redisReply *reply);

struct topology_kind {
    /* Adds the round's candidates, the best first, by topology_add. */
    void (*collect)(struct topology *t);
    topology_ask_fn ask;   /* sends the questions for a candidate */
    enum upstream_own own; /* the candidates' login */
    /* Called if no candidate of a round has answered. May be NULL. */
    void (*in_vain)(struct topology *t);
    /* Frees what the kind's structure has beside the topology. May be NULL. */
    void (*clear)(struct topology *t);
};

/* The first member of each kind's own structure. */
struct topology {
    struct link asked; /* the node being asked */
    struct upstream *u;
    const struct topology_kind *kind;
    int64_t calm_ms;
    topology_ask_fn ask;   /* sends the questions for `asked` */
    enum upstream_own own; /* its login */
    topology_answer_fn answers[QUESTIONS_MAX];
    unsigned sent, answered; /* questions */
    ev_timer next;
    bool again;                                /* a hint came while a round was under way */
    int64_t started_ms, ended_ms, interval_ms; /* of the last round; the delay before the next one */
    int64_t asked_ms;                          /* when the last finished round was started */
    struct address *candidates;                /* of this round */
    size_t candidate_count, candidate_at;
    struct address replicas[REPLICAS_MAX]; /* named by the node that answered last */
    size_t replica_count;
    bool before[UPSTREAM_OWNS]; /* a server has refused the login in use: it gets the one before it */
    bool refused;               /* the node being asked did not accept the login; the reason is its error */
    char reason[ADDRESS_MAX + REASON_MAX];
};

/* Prepares a topology; its first round starts in the loop's next turn. calm_ms: between rounds while all is well. */
void topology_init(struct topology *t, struct upstream *u, const struct topology_kind *kind, int64_t calm_ms);

/* For collect: adds a candidate, if it is not in the list yet. */
void topology_add(struct topology *t, const struct address *at);
/* Rotates the candidates from index `from` on, so that many proxies don't ask the same node. */
void topology_rotate(struct topology *t, size_t from);

/* Asks this node, after a lookup of its name if needed. False: it failed at once. */
bool topology_find(struct topology *t, const struct address *at, topology_ask_fn ask, enum upstream_own own);
/* For ask functions: sends a question. `answer` is called with the reply, unless another node is asked by then. */
void topology_send(struct topology *t, topology_answer_fn answer, const char *format, ...);
/* Drops the node being asked, whose answer was no use; notes the reason, and asks the next one. */
void topology_failed(struct topology *t, const char *reason);
/* Asks the next candidate. t->reason already has the last one's reason, and no connection is open. */
void topology_next(struct topology *t);
/* Ends a round that has an answer. */
void topology_done(struct topology *t, bool changed);

/* Sends the proxy's own login over a new connection, if there is one. `heard`: a refusal ends the round's question. */
void topology_login(struct topology *t, redisAsyncContext *ctx, enum upstream_own at, bool heard);
