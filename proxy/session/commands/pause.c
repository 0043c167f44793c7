/*
 * CLIENT PAUSE and PROXY PAUSE: requests that come meanwhile wait in their sessions' input.
 *
 * Only clients are held. The proxy's own work (renewals, releases) goes on, and so do requests that were sent to a node
 * before. PROXY is always answered, and so is a request with a wrong number of arguments. A pause of writes holds every
 * script and function that is not called read-only (EVAL_RO and similar): what a script does, only its node knows.
 * Nodes do not know of the waiting clients, so the proxy adds their number to INFO.
 *
 * PROXY PAUSE holds what a node has to answer, errors too, since the node may be away. A transaction goes on to its
 * end, and clients may log in while the nodes are there: an operator has to, before PROXY RESUME.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/transaction/transaction.h"

bool pause_replicates(const struct command *c, const struct resp_request *r, const char *bytes) {
    if (!c || (c->flags & COMMAND_WRITE))
        return true; /* unknown: it may write */
    switch ((int)c->id) {
    case COMMAND_EVAL:
    case COMMAND_EVALSHA:
    case COMMAND_FCALL:
    case COMMAND_PFCOUNT:
    case COMMAND_PUBLISH:
    case COMMAND_SPUBLISH:
        return true;
    case COMMAND_FUNCTION:
        return r->argc > 1 && (request_arg_is(r, bytes, 1, "load") || request_arg_is(r, bytes, 1, "delete") ||
                               request_arg_is(r, bytes, 1, "flush") || request_arg_is(r, bytes, 1, "restore"));
    default:
        return false;
    }
}

static bool a_master_is_lost(const struct upstream *u) {
    for (size_t i = 0; i < upstream_master_count(u); i++)
        if (upstream_node_lost(upstream_master(u, i)))
            return true;
    return false;
}

/* Whether PROXY PAUSE lets the request pass. */
static bool passes_proxy_pause(const struct session *s, const struct command *c) {
    return transaction_of(s) || (c && (c->need == NEED_PROXY || c->need == NEED_CLOSE ||
                                       (c->need == NEED_SESSION && !a_master_is_lost(s->worker->upstream))));
}

/* Whether CLIENT PAUSE lets the request pass. A request that is still arriving lacks some of its arguments. */
static bool passes_client_pause(const struct session *s, const struct command *c, const struct resp_request *r,
                                const char *bytes) {
    if (c && (c->need == NEED_PROXY || !command_arity_ok(c, r->argc + r->args_left)))
        return true;
    return s->worker->pause != PAUSE_ALL && !pause_replicates(c, r, bytes) &&
           !(c->id == COMMAND_EXEC && transaction_of(s) && transaction_of(s)->writes);
}

void pause_leave(struct session *s) {
    invariant(!(s->delays & DELAY_PAUSED) || atomic_load(&s->worker->shared->paused) > 0,
              "no paused client is counted");
    if (s->delays & DELAY_PAUSED)
        atomic_fetch_sub(&s->worker->shared->paused, 1);
    session_delay(s, DELAY_PAUSED, false);
}

bool pause_holds(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    if (s->worker->pause == PAUSE_PROXY ? passes_proxy_pause(s, c) : passes_client_pause(s, c, r, bytes)) {
        pause_leave(s); /* it was held while a node was lost */
        return false;
    }
    if (!(s->delays & DELAY_PAUSED))
        atomic_fetch_add(&s->worker->shared->paused, 1);
    session_delay(s, DELAY_PAUSED, true);
    return true;
}

void pause_end(struct worker *w) {
    ev_timer_stop(w->loop, &w->pause_timer);
    if (w->pause == PAUSE_PROXY) {
        atomic_store(&w->shared->pause_mark, 0); /* clients write behind it from now on */
        upstream_try_now(w->upstream);
    }
    w->pause = PAUSE_NONE;
    LIST_FOREACH(it, &w->sessions) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        pause_leave(s);
        if (s->input)
            session_mark_runnable(s);
    }
}

static void pause_over(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    if (w->pause == PAUSE_PROXY && w->index == 0)
        log_warning("The time of PROXY PAUSE is over: clients go on");
    pause_end(w);
}

void pause_tick(struct worker *w) {
    if (w->pause == PAUSE_PROXY && atomic_load(&w->shared->paused) > 0)
        worker_wake_waiting(w);
}

int64_t pause_left_ms(struct worker *w) {
    return w->pause == PAUSE_PROXY ? (int64_t)(ev_timer_remaining(w->loop, &w->pause_timer) * 1000.) : 0;
}

void pause_init(struct worker *w) {
    ev_timer_init(&w->pause_timer, pause_over, 0., 0.);
    w->pause_timer.data = w;
}

void pause_start(struct worker *w, enum pause_kind kind, int64_t ms) {
    invariant(ms >= 0 && kind != PAUSE_NONE, "a pause of %lld ms", (long long)ms);
    double wait = (double)ms / 1000.;
    if (w->pause != PAUSE_NONE) {
        double left = ev_timer_remaining(w->loop, &w->pause_timer);
        wait = left > wait ? left : wait;
    }
    w->pause = kind > w->pause ? kind : w->pause;
    ev_timer_stop(w->loop, &w->pause_timer);
    ev_timer_set(&w->pause_timer, wait, 0.);
    ev_timer_start(w->loop, &w->pause_timer);
}
