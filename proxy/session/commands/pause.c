/*
 * CLIENT PAUSE, and PROXY PAUSE, RESUME and SWITCH. Requests that come meanwhile wait in their sessions' input.
 *
 * Only clients are held: the proxy's own work (renewals, releases) goes on, and requests that were sent before. PROXY
 * is always answered, and so is a request with a wrong number of arguments. A pause of writes holds every script and
 * function that is not called read-only (EVAL_RO and similar): what a script does, only its node knows. Nodes do not
 * know of the waiting clients, so the proxy adds their number to INFO.
 *
 * PROXY PAUSE holds what a node has to answer, errors too, since the node may be away. A transaction goes on to its
 * end, and clients may log in while the nodes are there: an operator has to, before PROXY RESUME. Nodes are restarted
 * with their data meanwhile, or another takes over; clients stay connected.
 *
 *      PAUSE ──> all workers hold requests ──> what is under way ends ──> leases are renewed for the pause ──> mark
 *
 *      RESUME ──> would each master give a lock? until it would ──> all workers go on
 *
 *      SWITCH ──> has the other node the mark? does it take writes, and the old node none? ──> all workers change
 *
 * A standalone's mark is the last write before the nodes change, and each process has its own. A node that has it has
 * all writes of this proxy's clients: it is the same Redis under another name, or a replica that was promoted. While an
 * old node that is another server takes writes, another proxy could give out the same locks there.
 *
 * Nothing that a client has asked for is under way once PAUSE has replied, but for clients that are blocked at a node.
 * Later requests of the operator's session wait for the reply.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/units.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"
#include "proxy/session/transaction/transaction.h"

static const int64_t PAUSE_DEFAULT_MS = 30 * 1000, PAUSE_LEAST_MS = 100, PAUSE_MOST_MS = 60 * 60 * 1000;
static const int64_t MARK_MS = 2 * 60 * 60 * 1000;
static const double LOOK_SECONDS = 0.005, ASK_SECONDS = 0.05;
enum { RENEWALS_AT_ONCE = 4096, TIME_TEXT_MAX = 32, REPLY_MAX = 512, MARK_SLOT = 0, NODE_MAX = 320, WHY_MAX = 256 };

/* ---- what is held ------------------------------------------------------------------------------------- */

bool pause_replicates(const struct command *c, const struct resp_request *r, const char *bytes) {
    static const char *const changes[] = {"load", "delete", "flush", "restore", NULL};
    if (!c || (c->flags & COMMAND_WRITE))
        return true; /* unknown: it may write */
    if (c->id == COMMAND_FUNCTION)
        return r->argc > 1 && request_arg_choice(r, bytes, 1, changes) >= 0;
    return c->id == COMMAND_EVAL || c->id == COMMAND_EVALSHA || c->id == COMMAND_FCALL || c->id == COMMAND_PFCOUNT ||
           c->id == COMMAND_PUBLISH || c->id == COMMAND_SPUBLISH;
}

static bool a_master_is_lost(const struct upstream *u) {
    for (size_t i = 0; i < upstream_master_count(u); i++)
        if (upstream_node_lost(upstream_master(u, i)))
            return true;
    return false;
}

void pause_leave(struct session *s) {
    invariant(!(s->delays & DELAY_PAUSED) || atomic_load(&s->worker->shared->paused) > 0,
              "no paused client is counted");
    if (s->delays & DELAY_PAUSED)
        atomic_fetch_sub(&s->worker->shared->paused, 1);
    session_delay(s, DELAY_PAUSED, false);
}

bool pause_holds(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    const struct transaction *t = transaction_of(s);
    bool passes;
    if (s->worker->pause == PAUSE_PROXY)
        passes = t || (c && (c->need == NEED_PROXY || c->need == NEED_CLOSE ||
                             (c->need == NEED_SESSION && !a_master_is_lost(s->worker->upstream))));
    else if (c && (c->need == NEED_PROXY ||
                   !command_arity_ok(c, r->argc + r->args_left))) /* some arguments may not have come yet */
        passes = true;
    else
        passes = s->worker->pause != PAUSE_ALL && !pause_replicates(c, r, bytes) &&
                 !(c->id == COMMAND_EXEC && t && t->writes);
    if (passes)
        pause_leave(s); /* it was held while a node was lost */
    else if (!(s->delays & DELAY_PAUSED))
        atomic_fetch_add(&s->worker->shared->paused, 1);
    session_delay(s, DELAY_PAUSED, !passes);
    return !passes;
}

void pause_end(struct worker *w) {
    ev_timer_stop(w->loop, &w->pause_timer);
    if (w->pause == PAUSE_PROXY) {
        atomic_store(&w->shared->pause_mark, 0); /* clients write behind it from now on */
        upstream_try_now(w->upstream);
    }
    w->pause = PAUSE_NONE;
    LIST_EACH(s, &w->sessions, struct session, link)
        pause_leave(s);
    worker_wake_waiting(w);
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

/* ---- PROXY PAUSE, RESUME, SWITCH ------------------------------------------------------------------------- */

enum step { STEP_MARKED, STEP_TAKES_WRITES, STEP_OLD, STEP_SAME };

struct stoppage {
    struct request_owner owner; /* first */
    struct broadcast broadcast;
    struct request *request;
    struct ev_timer timer; /* in the loop of the worker that is visited; calls `next` */
    struct worker *at;     /* that worker */
    void (*next)(struct stoppage *p);
    uint64_t asker;       /* the operator's session */
    int64_t ms;           /* how long the pause lasts */
    double until;         /* when no more is waited for, by worker_steady */
    size_t left, blocked; /* how many clients still wait for a node; how many of them are blocked there */
    size_t master;        /* RESUME: the master that is asked */
    enum step step;       /* SWITCH: the question that is asked; the address of the other node; the mark */
    char address[NODE_MAX];
    int64_t mark, asked; /* `asked`: what this SWITCH writes to the old node, in a key of its own */
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
    request_own(p->request, &p->owner, &request_owner_freed);
    request_barrier(p->request);
    w->own_works++;
    return p;
}

static void end(struct stoppage *p, const char *reply) {
    struct request *r = p->request;
    invariant(r->worker->own_works > 0, "no work is counted");
    r->worker->own_works--;
    request_reply(r, reply, strlen(reply), true);
}

/* Whether to wait no longer: the time is over, or the process stops. */
static bool is_late(const struct stoppage *p, struct worker *w) {
    return w->stopping || w->over || worker_steady(w) >= p->until;
}

static void wait_over(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct stoppage *p = timer->data;
    p->next(p);
}

static void again(struct stoppage *p, struct worker *w, double wait, void (*next)(struct stoppage *p)) {
    ev_timer_init(&p->timer, wait_over, wait, 0.);
    p->timer.data = p;
    p->at = w;
    p->next = next;
    ev_timer_start(w->loop, &p->timer);
}

/* ---- PAUSE ---------------------------------------------------------------------------------------------- */

static bool can_switch(const struct worker *w) {
    return !upstream_has_topology(w->upstream) && !w->shared->embedded;
}

/* Encodes GET of the process's mark, or (`mark` not 0) its SET. The key is named like a guard record, so that no client
 * is shown it. */
static void build_mark(struct worker *w, const char *suffix, int64_t mark) {
    char key[WHY_MAX];
    snprintf(key, sizeof(key), "lockkeeper:{%s}:lockkeeper-pause-%s%s", slot_tag(MARK_SLOT), w->shared->process_id,
             suffix);
    build_start(w, mark ? 5 : 2);
    build_text(w, mark ? "SET" : "GET");
    build_text(w, key);
    if (!mark)
        return;
    build_number(w, mark);
    build_text(w, "PX");
    build_number(w, MARK_MS);
}

static void ask_node(struct stoppage *p, struct upstream_node *node, call_done_fn done) {
    struct upstream_lane lane = {.protocol = 2};
    struct worker *w = home_of(p);
    call_init(&p->request->call, p->request, done);
    call_submit_node(&p->request->call, node, &lane, w->build.data, w->build.len);
}

static void pause_done(struct stoppage *p) {
    char reply[REPLY_MAX];
    snprintf(reply, sizeof(reply), "+OK, and %zu clients still wait for a node, blocked or in a transaction\r\n",
             p->left);
    end(p, p->left > 0 ? reply : "+OK\r\n");
}

/* Without the mark there may be a RESUME, but no SWITCH. */
static void marked(struct call *c, const struct call_end *end_) {
    struct stoppage *p = REQUEST_OWNER(c->request, struct stoppage);
    size_t len;
    if (!call_end_error(end_, &len))
        atomic_store(&home_of(p)->shared->pause_mark, p->mark);
    pause_done(p);
}

static void renew_more(struct stoppage *p) {
    struct worker *w = p->at;
    unsigned asked = engine_outlast(w->shared->engine, p->ms, RENEWALS_AT_ONCE, worker_now(w));
    if ((asked > 0 || w->own_works > 1) && !is_late(p, w)) {
        again(p, w, LOOK_SECONDS, renew_more);
        return;
    }
    if (asked > 0)
        log_warning("PROXY PAUSE: some leases could not be renewed for its time, and may end in it");
    if (!can_switch(w) || w->stopping || p->left > p->blocked) { /* a transaction could write behind the mark */
        pause_done(p);
        return;
    }
    p->mark = worker_steady_ms(w);
    build_mark(w, "", p->mark);
    ask_node(p, upstream_master(w->upstream, 0), marked);
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

/* Counts the worker's clients that wait for a node: those whose requests will end soon, and those that are blocked. A
 * client that waits for a lock waits in the proxy. Returns whether the visit to the worker is over. */
static bool quiet_look(struct stoppage *p, struct worker *w) {
    size_t blocked = 0, busy = 0;
    LIST_EACH(s, &w->sessions, const struct session, link) {
        bool asks = s->in_flight > (s->lock.id == p->asker) && !(s->delays & DELAY_EVENT);
        if (s->delays & DELAY_BLOCKED)
            blocked++;
        else
            busy += asks || transaction_of(s);
    }
    if (busy > 0 && !is_late(p, w))
        return false;
    p->left += busy + blocked;
    p->blocked += blocked;
    return true;
}

static void quiet_tick(struct stoppage *p) {
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

enum dispatch_result proxy_pause(struct session *s, const struct request_class *k) {
    int64_t ms = PAUSE_DEFAULT_MS;
    char text[TIME_TEXT_MAX];
    if (k->request->argc == 3 &&
        (!units_time(request_arg_text(k->request, k->bytes, 2, text, sizeof(text)), 1000, &ms) || ms < PAUSE_LEAST_MS ||
         ms > PAUSE_MOST_MS))
        return session_refuse(s, k->command, "ERR PROXY PAUSE: expected a time of 100ms to 1h, such as 30s");
    struct stoppage *p = begin(s, k->command, ms);
    atomic_store(&s->worker->shared->pause_mark, 0);
    atomic_store(&s->worker->shared->pause_login, s->lane.login);
    units_time_text(ms, text, sizeof(text));
    log_notice("PROXY PAUSE: clients wait for %s, or until PROXY RESUME", text);
    broadcast_start(&p->broadcast, s->worker, pause_visit, all_are_paused);
    return DISPATCHED;
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

/* A master that begins again will serve soon. Any other error of its own shows that it is there. */
static void answered(struct call *c, const struct call_end *end_) {
    static const char *const begins[] = {"LOADING ", "CLUSTERDOWN ", "MASTERDOWN ", "READONLY "};
    struct stoppage *p = REQUEST_OWNER(c->request, struct stoppage);
    struct worker *w = home_of(p);
    size_t len;
    const char *error = call_end_error(end_, &len);
    bool away = end_->error != NULL;
    for (size_t i = 0; error && i < ARRAY_SIZE(begins); i++)
        away |= reply_begins(error, len, begins[i]);
    if (away && is_late(p, w)) {
        char reply[REPLY_MAX];
        snprintf(reply, sizeof(reply), "-UPSTREAM the pause goes on: %.*s\r\n", len < 400 ? (int)len : 400, error);
        end(p, reply);
    } else {
        p->master += !away;
        again(p, w, away ? ASK_SECONDS : 0., ask_master);
    }
}

/* Asks the next master; when all would give locks, everything goes on. */
static void ask_master(struct stoppage *p) {
    struct worker *w = home_of(p);
    size_t masters = upstream_master_count(w->upstream);
    upstream_try_now(w->upstream);
    if (masters == 0 && !is_late(p, w)) {
        again(p, w, ASK_SECONDS, ask_master);
        return;
    }
    if (p->master >= masters) {
        log_notice("PROXY RESUME: clients go on");
        broadcast_start(&p->broadcast, w, resume_visit, all_go_on);
        return;
    }
    struct upstream_node *master = upstream_master(w->upstream, p->master);
    build_lock_question(w, upstream_slot_of_node(w->upstream, master));
    ask_node(p, master, answered);
}

enum dispatch_result proxy_resume(struct session *s, const struct command *c) {
    if (s->worker->pause != PAUSE_PROXY)
        return session_refuse(s, c, "ERR PROXY RESUME: there is no PROXY PAUSE");
    ask_master(begin(s, c, INT64_MAX));
    return DISPATCHED;
}

/* ---- SWITCH --------------------------------------------------------------------------------------------- */

static void switch_end(struct stoppage *p, const char *why) {
    char reply[REPLY_MAX];
    log_warning("No PROXY SWITCH to %s: %s. The pause goes on", p->address, why);
    snprintf(reply, sizeof(reply), "-ERR no PROXY SWITCH: %s; the pause goes on\r\n", why);
    end(p, reply);
}

static void all_are_switched(struct broadcast *t) {
    struct stoppage *p = LIST_ENTRY(t, struct stoppage, broadcast);
    struct proxy_shared *shared = home_of(p)->shared;
    log_notice("PROXY SWITCH: the upstream is standalone %s now", p->address);
    if (!home_of(p)->over) /* else other workers may be gone */
        shared->switched(shared->reload_arg, p->address);
    end(p, "+OK\r\n");
}

static void switch_visit(struct broadcast *t, struct worker *w) {
    struct upstream_node *node = upstream_node_named(w->upstream, LIST_ENTRY(t, struct stoppage, broadcast)->address);
    if (invariant(node, "a node is not known any more"))
        upstream_switch(w->upstream, node);
    pause_end(w);
}

static void ask_step(struct stoppage *p);

static bool is_number(int64_t expected, const struct call_end *end_) {
    struct resp_item found;
    const char *at = end_->reply;
    int64_t number;
    return !end_->error && resp_item_read(&at, end_->reply + end_->len, &found) && found.type == '$' && found.str &&
           resp_integer(found.str, found.len, &number) && number == expected;
}

/* Why the step's answer does not let the switch go on. NULL: it does. */
static const char *objection(const struct stoppage *p, const struct call_end *end_, char why[WHY_MAX]) {
    size_t len;
    const char *error = call_end_error(end_, &len);
    snprintf(why, WHY_MAX, "the other Redis says: %.*s", error ? (int)(len < 200 ? len : 200) : 0, error ? error : "");
    switch (p->step) {
    case STEP_MARKED:
        if (error)
            return why;
        return is_number(p->mark, end_) ? NULL
                                        : "the other Redis lacks what this proxy has written last: it has other data";
    case STEP_TAKES_WRITES:
        return error ? why : NULL;
    case STEP_OLD: /* STEP_SAME follows if it has taken the write */
        return !error || (end_->error && end_->why != UPSTREAM_REFUSED) || strncmp(error, "READONLY ", 9) == 0
                   ? NULL
                   : "the old Redis still answers: stop it, or make it a replica";
    case STEP_SAME:
        return is_number(p->asked, end_) ? NULL : "the old Redis still takes writes: stop it, or make it a replica";
    }
    return NULL;
}

static void step_answered(struct call *c, const struct call_end *end_) {
    struct stoppage *p = REQUEST_OWNER(c->request, struct stoppage);
    struct worker *w = home_of(p);
    char why[WHY_MAX];
    size_t len;
    const char *refused = objection(p, end_, why);
    bool over = !refused && (p->step == STEP_SAME || (p->step == STEP_OLD && call_end_error(end_, &len)));
    if (refused && p->step < STEP_OLD && !is_late(p, w)) {
        again(p, w, ASK_SECONDS, ask_step); /* the other node may be about to be promoted */
    } else if (refused) {
        switch_end(p, refused);
    } else if (!over) {
        p->step++;
        again(p, w, 0., ask_step);
    } else if (atomic_load(&w->shared->pause_mark) != p->mark) { /* in some thread */
        switch_end(p, "the pause is over");
    } else {
        broadcast_start(&p->broadcast, w, switch_visit, all_are_switched);
    }
}

static void ask_step(struct stoppage *p) {
    const int64_t marks[] = {[STEP_TAKES_WRITES] = p->mark, [STEP_OLD] = p->asked, [STEP_SAME] = 0};
    struct worker *w = home_of(p);
    struct upstream_node *node = upstream_node_named(w->upstream, p->address);
    upstream_try_now(w->upstream);
    build_mark(w, p->step < STEP_OLD ? "" : "-old", marks[p->step]); /* -old tells whether both are one server */
    ask_node(p, p->step == STEP_OLD ? upstream_master(w->upstream, 0) : node, step_answered);
}

static void switch_begin(struct broadcast *t) {
    ask_step(LIST_ENTRY(t, struct stoppage, broadcast));
}

/* The pause must not end in some threads before the switch: it may have to wait for each of two nodes. */
enum dispatch_result proxy_switch(struct session *s, const struct command *c) {
    struct proxy_shared *shared = s->worker->shared;
    char address[NODE_MAX];
    int64_t mark = atomic_load(&shared->pause_mark);
    const char *error = can_switch(s->worker) && shared->next_upstream
                            ? shared->next_upstream(shared->reload_arg, address, sizeof(address))
                            : "ERR PROXY SWITCH is for upstream standalone: clusters and Sentinels tell where Redis is";
    struct upstream *u = s->worker->upstream;
    if (!error && upstream_node_named(u, address) == upstream_master(u, 0))
        error = "ERR PROXY SWITCH: the configuration names the upstream in force";
    if (!error && (s->worker->pause != PAUSE_PROXY || mark == 0))
        error = "ERR PROXY SWITCH: send PROXY PAUSE first, at a time when no transaction lasts and Redis takes writes";
    if (error)
        return session_refuse(s, c, "%s", error);
    struct stoppage *p = begin(s, c, INT64_MAX);
    p->ms = 4 * s->worker->config->upstream_timeout_ms;
    p->mark = mark;
    p->asked = worker_steady_ms(s->worker);
    memcpy(p->address, address, sizeof(p->address));
    broadcast_start(&p->broadcast, s->worker, pause_visit, switch_begin);
    return DISPATCHED;
}
