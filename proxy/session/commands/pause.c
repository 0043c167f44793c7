/*
 * CLIENT PAUSE: requests that come meanwhile wait in their sessions' input.
 *
 * Only clients are held. The proxy's own work (renewals, releases) goes on, and so do requests that were sent to a node
 * before. PROXY is always answered, and so is a request with a wrong number of arguments. A pause of writes holds every
 * script and function that is not called read-only (EVAL_RO and similar): what a script does, only its node knows.
 * Nodes do not know of the waiting clients, so the proxy adds their number to INFO.
 */
#include <string.h>

#include "parser/invariant.h"
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

bool pause_holds(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    /* A request that is still arriving lacks some of its arguments. */
    if (c && (c->need == NEED_PROXY || !command_arity_ok(c, r->argc + r->args_left)))
        return false;
    if (s->worker->pause != PAUSE_ALL && !pause_replicates(c, r, bytes) &&
        !(c->id == COMMAND_EXEC && transaction_of(s) && transaction_writes(s)))
        return false;
    if (!(s->delays & DELAY_PAUSED))
        atomic_fetch_add(&s->worker->shared->paused, 1);
    session_delay(s, DELAY_PAUSED, true);
    return true;
}

void pause_leave(struct session *s) {
    invariant(!(s->delays & DELAY_PAUSED) || atomic_load(&s->worker->shared->paused) > 0,
              "no paused client is counted");
    if (s->delays & DELAY_PAUSED)
        atomic_fetch_sub(&s->worker->shared->paused, 1);
    session_delay(s, DELAY_PAUSED, false);
}

void pause_end(struct worker *w) {
    ev_timer_stop(w->loop, &w->pause_timer);
    w->pause = PAUSE_NONE;
    LIST_FOREACH(it, &w->sessions) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        pause_leave(s);
        if (s->input)
            session_mark_runnable(s);
    }
}

static void pause_over(struct ev_loop *loop, struct ev_timer *timer, int events) {
    pause_end(timer->data);
}

void pause_init(struct worker *w) {
    ev_timer_init(&w->pause_timer, pause_over, 0., 0.);
    w->pause_timer.data = w;
}

void pause_start(struct worker *w, bool all, int64_t ms) {
    invariant(ms >= 0, "a pause of %lld ms", (long long)ms);
    double wait = (double)ms / 1000.;
    if (w->pause != PAUSE_NONE) {
        double left = ev_timer_remaining(w->loop, &w->pause_timer);
        wait = left > wait ? left : wait;
    }
    w->pause = all || w->pause == PAUSE_ALL ? PAUSE_ALL : PAUSE_WRITES;
    ev_timer_stop(w->loop, &w->pause_timer);
    ev_timer_set(&w->pause_timer, wait, 0.);
    ev_timer_start(w->loop, &w->pause_timer);
}
