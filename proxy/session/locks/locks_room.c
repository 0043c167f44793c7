/*
 * The room's callbacks for workers and sessions.
 */
#include "proxy/base/memory.h"
#include "proxy/session/locks/leases.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/observing.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/quorum.h"
#include "proxy/session/locks/sending.h"

static void locks_open(struct worker *w) {
    w->locks = memory_zalloc(sizeof(*w->locks));
    list_init(&w->locks->frees);
    list_init(&w->locks->renewals);
    lock_holds_open(w);
    quorum_open(w);
    alarms_open(w);
}

static void locks_close(struct worker *w) {
    struct list_node *n;
    while ((n = stack_pop(&w->locks->free)))
        memory_free(LIST_ENTRY(n, struct lock_call, link));
    lock_holds_close(w);
    alarms_close(w);
    memory_free(w->locks);
    w->locks = NULL;
}

static void session_leaves(struct session *s) {
    one_shot_closes(s);
    alarms_leave(s);
    if (locks_of(s)->left_endless)
        observer_left(s->worker->shared->observer, s->lock.id, s->lock.one_shot);
}

static void locks_ask(struct worker *w) {
    successors_tick(w);
    quorum_look(w);
}

static void locks_tick(struct worker *w) {
    advise_tick(w);
    learnt_tick(w);
    alarms_tick(w);
}

const struct session_room locks_room = {
    .worker_opens = locks_open,
    .worker_ends = quorum_close,
    .worker_closes = locks_close,
    .worker_asks = locks_ask,
    .worker_begins = learnt_begin,
    .worker_rules = quorum_change,
    .worker_ticks = locks_tick,
    .closes = session_leaves,
    .request_first = one_shot_sends,
    .request_next = lock_free_now,
};
