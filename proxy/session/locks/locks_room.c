/*
 * The room's callbacks for workers and sessions. They also recognise one-shot clients, for example redis-cli in a shell
 * script: such a client sends one command besides its login, reads the reply, and closes the connection. (L1: the lock
 * is free within the rule's `one-shot` and a lease.)
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/sending.h"
#include "proxy/witness/witness.h"

static const double LOOK_S = 0.005;

static void on_look(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    list_splice(&w->runnable, &w->locks->held_back);
    learnt_glance(w);
}

static void on_embedded_trusted(void *arg, bool answered) {
    if (!answered)
        log_warning("An embedded witness does not answer, and is in quarantine");
}

static void locks_open(struct worker *w) {
    const struct config *c = w->config;
    struct witness_config config = {.addresses = (const char *const *)c->witnesses.words,
                                    .count = c->witnesses.count,
                                    .space = c->witness_namespace,
                                    .tls = w->shared->witness_tls,
                                    .timeout_ms = c->witness_timeout_ms,
                                    .quarantine_ms = c->witness_quarantine_ms};
    w->locks = memory_zalloc(sizeof(*w->locks));
    list_init(&w->locks->frees);
    list_init(&w->locks->works);
    list_init(&w->locks->alarms);
    list_init(&w->locks->unasked);
    list_init(&w->locks->held_back);
    ev_timer_init(&w->locks->look, on_look, LOOK_S, 0.);
    w->locks->look.data = w;
    if (config.count > 0)
        w->witnesses = witnesses_new(w->loop, &w->readable, &w->chunks, &config);
    for (size_t i = 0; i < config.count && w->index == 0; i++) {
        const char *address = config.addresses[i];
        if (strncmp(address, "unix:", 5) == 0) /* embedded: it begins with the proxy, and has promised nothing before */
            (void)witness_trust(w->witnesses, address, strlen(address), on_embedded_trusted, NULL);
    }
}

static void locks_end(struct worker *w) {
    struct witnesses *set = w->witnesses;
    w->witnesses = NULL;
    witnesses_free(set);
}

static void locks_close(struct worker *w) {
    struct list_node *n;
    while ((n = stack_pop(&w->locks->free)))
        memory_free(LIST_ENTRY(n, struct lock_call, link));
    invariant(list_empty(&w->locks->held_back), "releases are held back in a worker that ends");
    ev_timer_stop(w->loop, &w->locks->look);
    lock_works_close(w);
    memory_free(w->locks);
    w->locks = NULL;
}

/* What a session has sent so far, besides logins: lock_state.sent. */
enum sent { SENT_NOTHING, SENT_ONE, SENT_MORE };

/* Counts the session's first commands, but not what a client sends before its own: redis-cli sends COMMAND DOCS if it
 * reads its commands from standard input. */
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

/* Takes the witnesses of the worker's configuration, which a reload may have changed. */
static void locks_change(struct worker *w) {
    const struct config_words *to = &w->config->witnesses;
    if (!w->witnesses)
        return;
    witnesses_change(w->witnesses, (const char *const *)to->words, to->count);
    witness_probe(w->witnesses); /* so that each thread shows a newcomer's quarantine */
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
    .worker_ends = locks_end,
    .worker_closes = locks_close,
    .worker_asks = locks_ask,
    .worker_begins = learnt_begin,
    .worker_rules = locks_change,
    .worker_ticks = locks_tick,
    .closes = session_leaves,
    .request_first = session_begins,
    .request_next = lock_free_now,
};

/* ---- PROXY WITNESS TRUST --------------------------------------------------------------------------- */

static void on_trusted(void *arg, bool answered) {
    struct request *r = arg;
    if (answered)
        request_reply(r, "+OK\r\n", 5, true);
    else
        request_error(r, "UPSTREAM the witness does not answer; nothing was changed");
}

void lock_witness_trust(struct session *s, const struct command *c, const char *address, size_t len) {
    struct witnesses *set = s->worker->witnesses;
    struct request *r = request_new(s, c);
    request_barrier(r);
    const char *error =
        set ? witness_trust(set, address, len, on_trusted, r) : "ERR the proxy has no witnesses (directive witness)";
    if (error)
        request_error(r, error);
}
