/*
 * Transactions in the simulator: MULTI, commands queued one after another, EXEC or DISCARD; WATCH before it. Included
 * by sim_world.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct world;
struct flight;
struct app_worker;
struct model_command;

enum { TRANSACTIONS = 40, TRANSACTION_COMMANDS = 5 };

enum transaction_state {
    TRANSACTION_NONE,
    TRANSACTION_WATCHING, /* WATCH, no MULTI yet */
    TRANSACTION_QUEUEING, /* MULTI */
    TRANSACTION_SENT,     /* EXEC is on its way */
    TRANSACTION_RAN       /* its answer is */
};

/* A key as WATCH has seen it; the fence tells a lock from one that was made anew in the same words. */
struct watched_key {
    bool exists;
    int64_t expire_ms;
    uint64_t fence;
    char value[40];
};

struct transaction {
    enum transaction_state state;
    bool watches, aborted;
    bool proxy_gone; /* and it with it */
    int worker, conn, key;
    uint64_t session_id;
    struct watched_key watched;
    unsigned count, decides; /* which of them acquires or releases */
    bool releases;
    struct flight *flights[TRANSACTION_COMMANDS];
};

/* The worker has one under way that waits for its next word: sends that. False: it has not, or is not ready for it. */
bool transaction_goes_on(struct world *w, int worker);
/* The worker wants to send the command over the connection: in this idiom that begins a transaction. */
bool transaction_begins(struct world *w, int worker, int conn, const struct model_command *c, bool releases);
/* EXEC arrives, or its answer does, or gets lost. */
void transaction_progress(struct world *w, struct transaction *t);
/* What has not been sent to Redis with EXEC is over when its connection is; what it takes down was never executed. */
void transaction_conn_lost(struct world *w, int conn, bool proxy_gone);
void transaction_worker_died(struct world *w, int worker);
/* Whether the answer to one of its commands is the one that its worker looks at. */
bool transaction_answers(const struct flight *f);
