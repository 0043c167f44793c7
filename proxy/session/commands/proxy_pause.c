/*
 * PROXY PAUSE and PROXY RESUME: the nodes are restarted with their data, and clients stay connected.
 *
 *      PAUSE ──> every worker holds requests ──> what is under way ends ──> leases are renewed for the pause ──> OK
 *      RESUME ──> would each master give a lock? until it would ──> every worker goes on ──> OK
 *
 * Nothing that a client has asked for is under way once PAUSE has replied, but for clients that are blocked at a node.
 * pause.c decides which requests wait. Later requests of the operator's session wait for the reply.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/units.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"
#include "proxy/session/transaction/transaction.h"

static const int64_t PAUSE_DEFAULT_MS = 30 * 1000, PAUSE_LEAST_MS = 100, PAUSE_MOST_MS = 60 * 60 * 1000;
static const double LOOK_SECONDS = 0.005, ASK_SECONDS = 0.05;
enum { RENEWALS_AT_ONCE = 4096, TIME_TEXT_MAX = 32, REPLY_MAX = 512 };

struct stoppage {
    struct request_owner owner; /* first */
    struct broadcast broadcast;
    struct request *request;
    struct ev_timer timer; /* in the loop of the worker that is visited */
    struct worker *at;     /* that worker */
    uint64_t asker;        /* the operator's session */
    int64_t ms;            /* how long the pause lasts */
    double until;          /* when no more is waited for, by worker_steady */
    size_t left;           /* how many clients still wait for a node */
    size_t master;         /* RESUME: the master that is asked */
};

static struct worker *home_of(const struct stoppage *p) {
    return p->request->worker;
}

/* Lets what comes now take a node's usual time, but not longer than the pause. */
static void allow_time(struct stoppage *p) {
    struct worker *w = home_of(p);
    int64_t ms = w->config->upstream_timeout_ms;
    p->until = worker_steady(w) + (double)(ms < p->ms ? ms : p->ms) / 1000.;
}

/* Begins a command, which waits for `ms` at most. A stop of the process waits for its end. */
static struct stoppage *begin(struct session *s, const struct command *c, int64_t ms) {
    struct stoppage *p = memory_zalloc(sizeof(*p));
    struct worker *w = s->worker;
    p->request = request_new(s, c);
    p->asker = s->lock.id;
    p->ms = ms;
    allow_time(p);
    request_own(p->request, &p->owner, &request_owner_silent);
    request_barrier(p->request);
    w->own_works++;
    return p;
}

static void end(struct stoppage *p, const char *reply) {
    struct request *r = p->request;
    invariant(r->worker->own_works > 0, "no work is counted");
    r->worker->own_works--;
    request_disown(r);
    request_reply(r, reply, strlen(reply), true);
    memory_free(p);
}

/* Whether to wait no longer: the time is over, or the process stops. */
static bool is_late(const struct stoppage *p, struct worker *w) {
    return w->stopping || w->over || worker_steady(w) >= p->until;
}

static void again(struct stoppage *p, struct worker *w, double wait,
                  void (*fn)(struct ev_loop *loop, struct ev_timer *timer, int events)) {
    ev_timer_init(&p->timer, fn, wait, 0.);
    p->timer.data = p;
    p->at = w;
    ev_timer_start(w->loop, &p->timer);
}

/* ---- PAUSE ---------------------------------------------------------------------------------------------- */

/* Counts the worker's clients that wait for a node: those whose requests will end soon, and those that are blocked. A
 * client that waits for a lock waits in the proxy. */
static size_t clients_busy(const struct stoppage *p, const struct worker *w, size_t *blocked) {
    size_t busy = 0;
    *blocked = 0;
    LIST_FOREACH(it, &w->sessions) {
        const struct session *s = LIST_ENTRY(it, struct session, link);
        bool asks = s->in_flight > (s->lock.id == p->asker) && !(s->delays & DELAY_EVENT);
        if (s->delays & DELAY_BLOCKED)
            ++*blocked;
        else
            busy += asks || transaction_of(s);
    }
    return busy;
}

static void pause_done(struct stoppage *p) {
    char reply[REPLY_MAX];
    snprintf(reply, sizeof(reply), "+OK, and %zu clients still wait for a node, blocked or in a transaction\r\n",
             p->left);
    end(p, p->left > 0 ? reply : "+OK\r\n");
}

static void renew_more(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct stoppage *p = timer->data;
    struct worker *w = p->at;
    unsigned asked = engine_outlast(w->shared->engine, p->ms, RENEWALS_AT_ONCE, worker_now(w));
    if ((asked > 0 || w->own_works > 1) && !is_late(p, w))
        again(p, w, LOOK_SECONDS, renew_more);
    else
        pause_done(p);
}

static void all_are_quiet(struct broadcast *t) {
    struct stoppage *p = LIST_ENTRY(t, struct stoppage, broadcast);
    struct worker *w = home_of(p);
    if (w->over) {
        pause_done(p);
        return;
    }
    allow_time(p);
    again(p, w, 0., renew_more);
}

/* Returns whether the visit to the worker is over. */
static bool quiet_look(struct stoppage *p, struct worker *w) {
    size_t blocked, busy = clients_busy(p, w, &blocked);
    if (busy > 0 && !is_late(p, w))
        return false;
    p->left += busy + blocked;
    return true;
}

static void quiet_tick(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct stoppage *p = timer->data;
    if (quiet_look(p, p->at))
        broadcast_leave(&p->broadcast, p->at);
    else
        again(p, p->at, LOOK_SECONDS, quiet_tick);
}

static void quiet_visit(struct broadcast *t, struct worker *w) {
    struct stoppage *p = LIST_ENTRY(t, struct stoppage, broadcast);
    t->stays = !quiet_look(p, w);
    if (t->stays)
        again(p, w, LOOK_SECONDS, quiet_tick);
}

static void all_are_paused(struct broadcast *t) {
    struct stoppage *p = LIST_ENTRY(t, struct stoppage, broadcast);
    if (home_of(p)->over)
        pause_done(p);
    else
        broadcast_start(t, home_of(p), quiet_visit, all_are_quiet);
}

static void pause_visit(struct broadcast *t, struct worker *w) {
    pause_start(w, PAUSE_PROXY, LIST_ENTRY(t, struct stoppage, broadcast)->ms);
}

void proxy_pause(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    int64_t ms = PAUSE_DEFAULT_MS;
    char text[TIME_TEXT_MAX];
    if (r->argc == 3 && (!units_time(request_arg_text(r, bytes, 2, text, sizeof(text)), 1000, &ms) ||
                         ms < PAUSE_LEAST_MS || ms > PAUSE_MOST_MS)) {
        session_refuse(s, c, "ERR PROXY PAUSE: expected a time of 100ms to 1h, such as 30s");
        return;
    }
    struct stoppage *p = begin(s, c, ms);
    units_time_text(ms, text, sizeof(text));
    log_notice("PROXY PAUSE: clients wait for %s, or until PROXY RESUME", text);
    broadcast_start(&p->broadcast, s->worker, pause_visit, all_are_paused);
}

/* ---- RESUME --------------------------------------------------------------------------------------------- */

static void all_go_on(struct broadcast *t) {
    end(LIST_ENTRY(t, struct stoppage, broadcast), "+OK\r\n");
}

static void resume_visit(struct broadcast *t, struct worker *w) {
    if (w->pause == PAUSE_PROXY)
        pause_end(w);
}

static void ask_master(struct stoppage *p);

static void ask_again(struct ev_loop *loop, struct ev_timer *timer, int events) {
    ask_master(timer->data);
}

/* Whether a master that begins again gives this error, and will serve soon. */
static bool is_beginning(const char *error, size_t len) {
    static const char *const words[] = {"LOADING ", "CLUSTERDOWN ", "MASTERDOWN ", "READONLY "};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (len > strlen(words[i]) && memcmp(error, words[i], strlen(words[i])) == 0)
            return true;
    return false;
}

/* Any other error shows that the master is there. */
static void answered(struct call *c, const struct call_end *end_) {
    struct stoppage *p = REQUEST_OWNER(c->request, struct stoppage);
    struct worker *w = home_of(p);
    size_t len;
    const char *error = call_end_error(end_, &len);
    bool away = error && (end_->error || is_beginning(error, len));
    if (away && is_late(p, w)) {
        char reply[REPLY_MAX];
        snprintf(reply, sizeof(reply), "-UPSTREAM the pause goes on: %.*s\r\n", len < 400 ? (int)len : 400, error);
        end(p, reply);
    } else {
        p->master += !away;
        again(p, w, away ? ASK_SECONDS : 0., ask_again);
    }
}

/* Asks the next master; when all would give locks, everything goes on. */
static void ask_master(struct stoppage *p) {
    struct worker *w = home_of(p);
    size_t masters = upstream_master_count(w->upstream);
    upstream_try_now(w->upstream);
    if (masters == 0 && !is_late(p, w)) {
        again(p, w, ASK_SECONDS, ask_again);
        return;
    }
    if (p->master >= masters) {
        log_notice("PROXY RESUME: clients go on");
        broadcast_start(&p->broadcast, w, resume_visit, all_go_on);
        return;
    }
    struct upstream_lane lane = {.protocol = 2};
    call_init(&p->request->call, p->request, answered);
    build_lock_question(w, upstream_slot_of_node(w->upstream, upstream_master(w->upstream, p->master)));
    call_submit_master_lane(&p->request->call, p->master, &lane, w->build.data, w->build.len);
}

void proxy_resume(struct session *s, const struct command *c) {
    if (s->worker->pause != PAUSE_PROXY)
        session_refuse(s, c, "ERR PROXY RESUME: there is no PROXY PAUSE");
    else
        ask_master(begin(s, c, INT64_MAX));
}
