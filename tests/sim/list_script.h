/*
 * list.lua on the model: what the scripts for list locks share. Private to them.
 */
#ifndef LOCKKEEPER_SIM_LIST_SCRIPT_H
#define LOCKKEEPER_SIM_LIST_SCRIPT_H

#include <string.h>

#include "tests/sim/model.h"

/* A script at work: look()'s state and list.lua's variables. */
struct queue_run {
    struct model *m;
    const struct model_args *a;
    struct model_key *k;
    struct model_guard *g;
    struct model_queue *q;
    bool token, overdue, leased, gone;
    int64_t ends_ms;
    uint64_t fence;
    char owner[MODEL_NAME], granted[QUEUE_NODE];
    unsigned lost;
};

static inline bool is(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

void queue_look(struct queue_run *r, struct model *m, int key, const struct model_args *a);

struct model_envelope queue_envelope(const struct queue_run *r, struct model_reply reply, enum lock_outcome outcome,
                                     bool with_state);
struct model_envelope queue_plain(const struct queue_run *r, enum model_reply_kind kind, enum lock_outcome outcome);
struct model_envelope queue_number(const struct queue_run *r, int64_t n, enum lock_outcome outcome);
/* What refuses: HELD or FOREIGN. */
enum lock_outcome queue_in_the_way(const struct queue_run *r);

/* Who pushed the node; NULL: nobody knows. */
struct queue_record *queue_record_of(const struct queue_run *r, const char *node);
/* NULL only where it is not to be made. */
struct queue_party *queue_party_of(struct queue_run *r, const char *name, bool make);
/* Drops a party of which nothing is left. */
void queue_party_tidy(struct queue_run *r, struct queue_party *p);
/* Whether the end that p:PARTY says is to come. */
bool queue_counts(struct queue_run *r, const char *name);
bool queue_has_left(struct queue_run *r, const char *name);
int64_t queue_grace(const struct queue_run *r);
/* It is there from now on. */
void queue_refresh(struct queue_run *r, const char *name);
bool queue_homeless(struct queue_run *r);
bool queue_pools(struct queue_run *r);
bool queue_shared(const struct queue_run *r);
bool queue_near(const struct queue_run *r, const struct queue_record *record);
bool queue_kin(struct queue_run *r, const struct queue_record *record);
/* Whether the caller may do with the node what its owner may. */
bool queue_mine(struct queue_run *r, const struct queue_record *record);
/* Whether it is the last that its party has pushed. */
bool queue_newest(struct queue_run *r, const struct queue_record *record, const char *node);
void queue_enter(struct queue_run *r, const char *node);
void queue_unregister(struct queue_run *r, const char *node);
/* -1: it is not in the queue. */
int queue_place_of(const struct queue_run *r, const char *node);
void queue_take_out(struct queue_run *r, unsigned at);
/* Removes dead heads. Whether there is a head; r->gone: and it is one more of them. */
bool queue_prune(struct queue_run *r);

/* The caller's seat among those; NULL: it has none. */
struct queue_seat *queue_seat(const struct queue_run *r, struct queue_seats *of);
void queue_take_seat(const struct queue_run *r, struct queue_seats *of, bool seated);
/* Whether those of `early` came lately. */
bool queue_early(const struct queue_run *r);
/* The head's lease begins; is the caller's as well; is over. */
void queue_hold(struct queue_run *r, bool seated);
void queue_join(struct queue_run *r, bool owns);
void queue_end_lease(struct queue_run *r);
bool queue_token_is_attempt(const struct queue_run *r);
/* How long the guard record lasts, and that the queue does not end before its rule's lease. */
void queue_guard_until(struct queue_run *r, int64_t pttl);
void queue_keep(struct queue_run *r);

/* The attempt's reply, for its repeat; and whether this is one. */
void queue_remember(struct queue_run *r, const char *reply);
void queue_remember_number(struct queue_run *r, int64_t n);
bool queue_repeated(const struct queue_run *r);

#endif
