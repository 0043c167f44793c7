/*
 * The room's callbacks for workers and sessions. One of them recognises one-shot clients, for example redis-cli in a
 * shell script, or a CGI program. A one-shot client sends one command besides its login, reads the reply, and closes
 * the connection. The engine knows what the command has acquired, and when. (L1: the lock is free within the rule's
 * `one-shot` and a lease.)
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
    list_init(&w->locks->unasked);
    lock_holds_open(w);
    quorum_open(w);
}

static void locks_close(struct worker *w) {
    struct list_node *n;
    while ((n = stack_pop(&w->locks->free)))
        memory_free(LIST_ENTRY(n, struct lock_call, link));
    lock_holds_close(w);
    alarms_close(w);
    lock_renewals_close(w);
    memory_free(w->locks);
    w->locks = NULL;
}

/* What a session has sent so far, besides logins: lock_state.sent. */
enum sent { SENT_NOTHING, SENT_ONE, SENT_MORE };

/* Counts the session's first commands. Commands that a client sends before its own do not count: redis-cli sends
 * COMMAND DOCS if it reads its commands from standard input. */
static void session_begins(struct session *s) {
    const struct command *c = s->last;
    struct lock_state *state = locks_of(s);
    if (c && (c->id == COMMAND_AUTH || c->id == COMMAND_HELLO || c->id == COMMAND_SELECT || c->id == COMMAND_CLIENT ||
              c->id == COMMAND_COMMAND || c->id == COMMAND_QUIT))
        return;
    if (state->sent == SENT_ONE)
        s->hears &= (uint8_t)~HEARS_FIRST;
    state->sent = state->sent == SENT_NOTHING ? SENT_ONE : SENT_MORE;
}

static void session_leaves(struct session *s) {
    /* QUIT shows that the client has all its replies, even if it was sent together with the command. Without QUIT, the
     * session must have read the connection to its end, and must have written every reply. */
    bool quits = s->last && s->last->id == COMMAND_QUIT;
    s->lock.one_shot = locks_of(s)->sent == SENT_ONE && (quits || s->ended) && s->in_flight == 0 &&
                       s->out.unsent == 0 && s->held_bytes == 0;
    memory_free(lock_take_lost(s));
    if (locks_of(s)->left_endless)
        observer_left(s->worker->shared->observer, s->lock.id, s->lock.one_shot);
}

static void locks_ask(struct worker *w) {
    successors_tick(w);
    if (w->witnesses)
        witness_probe(w->witnesses); /* finds out whether they vote */
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
    .request_first = session_begins,
    .request_next = lock_free_now,
};
