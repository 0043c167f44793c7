/*
 * Permits that are due: their session has closed, or their lease is over. The proxy gives each back once.
 *
 *      session closes ──> a job at the end of the turn ──> permits_leave ──┐
 *      each second ──> permits_expire ─────────────────────────────────────┴──> permits_due ──> give_back.lua
 *
 * The call goes over the shared connection of its taker's login, without a session, and after some tries over that of
 * the proxy's own login. A call that was not sent, or that
 * the node refused, is made again. A call whose outcome is unknown is made again only for a member of a sorted set,
 * since the script finds out by the score whether it has run.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/semaphores/semaphores.h"
#include "proxy/upstream/script.h"

enum { TRIES_MAX = 300, TRIES_OWN = 5, AGAIN_MS = 1000, REFUSED_LOGGED = 60 };

/* ---- one permit ------------------------------------------------------------------------------------ */

struct give_back {
    struct request_owner owner; /* must be the first field */
    struct permit *permit;
};

static const char *reason_text(const struct permit *p) {
    return p->reason == PERMIT_EXPIRED ? "its lease is over" : "its connection is gone";
}

static void report(struct worker *w, const struct permit *p, enum lock_incident_kind kind, const char *what) {
    char action[160];
    if (p->n > 1)
        snprintf(action, sizeof(action), "%s: %lld permits %s", reason_text(p), (long long)p->n, what);
    else
        snprintf(action, sizeof(action), "%s: %s", reason_text(p), what);
    engine_permit(w->shared->engine, kind, &p->name, p->rule, p->who, "", action, worker_now(w));
}

static void lost(struct worker *w, struct permit *p, const char *what) {
    counter_add(&w->counters.permits_lost, (uint64_t)p->n);
    report(w, p, INCIDENT_PERMIT_LOST, what);
    permits_drop(w->shared->permits, p);
}

/* Makes the call again later, or gives the permit up. */
static void again(struct worker *w, struct permit *p, const struct call_end *end) {
    if (p->tries >= TRIES_MAX) {
        lost(w, p, "not given back: the node was out of reach, or refused it");
        return;
    }
    if (p->tries % REFUSED_LOGGED == 1)
        log_warning("a permit could not be given back, and is tried again: %.*s",
                    end->error ? (int)strlen(end->error) : (int)(end->len > 400 ? 400 : end->len - 3),
                    end->error ? end->error : end->reply + 1);
    if (p->tries >= TRIES_OWN)
        p->login = 0; /* the taker's login may be over, as its session is */
    permits_put_back(w->shared->permits, p, worker_now(w), AGAIN_MS);
}

static void given(struct worker *w, struct permit *p) {
    counter_add(&w->counters.permits_returned, (uint64_t)p->n);
    report(w, p, INCIDENT_PERMIT_RETURNED, "given back");
    permits_drop(w->shared->permits, p);
}

static void give_back_done(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct give_back *work = REQUEST_OWNER(c->request, struct give_back);
    struct permit *p = work->permit;
    request_disown(c->request);
    memory_free(work);
    invariant(w->own_works > 0, "no work of the proxy's own is under way");
    w->own_works--;
    request_reply(c->request, "", 0, true);
    if (end->error && end->why == UPSTREAM_UNKNOWN && p->shape != PERMIT_MEMBER)
        lost(w, p, "the node was lost: whether it was given back is not known, and it is not given back twice");
    else if (end->error || end->reply[0] != ':')
        again(w, p, end);
    else if (end->reply[1] == '1')
        given(w, p);
    else /* the semaphore was reset, or the permit is back already */
        permits_drop(w->shared->permits, p);
}

static void build(struct worker *w, const struct permit *p) {
    static const char *const shapes[] = {"count", "token", "member"};
    build_start(w, 7);
    build_text(w, "EVALSHA");
    build_text(w, script_get(SCRIPT_GIVE_BACK)->sha1);
    build_number(w, 1);
    build_bulk(w, p->name.name, p->name.len);
    build_text(w, shapes[p->shape]);
    if (p->shape == PERMIT_COUNT)
        build_number(w, p->n);
    else
        build_bulk(w, p->text, p->len);
    build_text(w, p->shape == PERMIT_MEMBER ? p->score : p->alike ? "alike" : "");
}

static void give_back(struct worker *w, struct permit *p) {
    if (p->rule->permits == LOCK_PERMITS_AUDITED) {
        report(w, p, INCIDENT_PERMIT_RETURNED, "would be given back");
        permits_drop(w->shared->permits, p);
        return;
    }
    struct request *request = request_internal(w);
    struct give_back *work = memory_zalloc(sizeof(*work));
    work->permit = p;
    request_own(request, &work->owner, &request_owner_silent);
    request->call.done = give_back_done;
    request->call.up.script = script_get(SCRIPT_GIVE_BACK);
    request->call.up.repeatable = p->shape == PERMIT_MEMBER;
    struct upstream_lane lane = {.login = p->login, .db = p->name.db, .protocol = 2};
    w->own_works++;
    build(w, p);
    call_submit_lane(&request->call, slot_of_key(p->name.name, p->name.len), &lane, w->build.data, w->build.len);
}

void permits_give_back(struct worker *w) {
    struct permit *p;
    while (!w->stopping && permits_any(w->shared->permits) && (p = permits_due(w->shared->permits, worker_now(w))))
        give_back(w, p);
}

/* ---- sessions that close ------------------------------------------------------------------------------ */

bool permit_client_left(struct worker *w, uint64_t client) {
    return !w->leaving && !engine_client_connected(w->shared->engine, client);
}

/* A session has closed. At the end of the turn the engine knows whether it was the last one of its client. */
struct leaving {
    struct worker_job job; /* must be the first field */
    uint64_t session, client;
    bool one_shot;
};

static void left(struct worker *w, struct worker_job *job) {
    const struct leaving *s = (struct leaving *)(void *)job;
    bool last = permit_client_left(w, s->client);
    permits_leave(w->shared->permits, s->session, s->client, last, s->one_shot, worker_now(w));
    permits_give_back(w);
}

/* A session that a stopping process closes has a worker that goes on, and connects to another proxy. */
static void session_closes(struct session *s) {
    struct worker *w = s->worker;
    if (w->stopping || !permits_any(w->shared->permits))
        return;
    struct leaving *leaving = memory_alloc(sizeof(*leaving));
    *leaving = (struct leaving){.job = {.run = left},
                                .session = s->lock.id,
                                .client = lock_client_hash(s->lock.client),
                                .one_shot = s->lock.one_shot};
    worker_add_job(w, &leaving->job);
}

static void second_over(struct worker *w) {
    if (!permits_any(w->shared->permits))
        return;
    if (w->index == 0)
        permits_expire(w->shared->permits, worker_now(w));
    permits_give_back(w);
}

static void rules_come(struct worker *w) {
    if (permits_any(w->shared->permits))
        permits_rules(w->shared->permits, w->rules);
}

const struct session_room semaphores_room = {
    .closes = session_closes, .worker_ticks = second_over, .worker_rules = rules_come};
