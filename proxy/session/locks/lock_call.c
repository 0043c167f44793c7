/*
 * Sends the call of a lock script, and takes the node's answer: a refusal may make the attempt go again, wait, or ask
 * once more whether its release was right; an acquisition may have to be confirmed by replicas. Any other answer ends
 * the call (call_finish.c).
 */
#include "parser/invariant.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/lock_args.h"
#include "proxy/session/locks/sending.h"

/* Sends a refused release once more, to ask whether the lease was released through another proxy. Returns false if the
 * refusal stands. If a waiting session's attempt was sent behind the release, the refusal stands: the same lease has
 * refused that attempt. */
static bool release_again(struct call *c, struct lock_call *l, const struct lock_envelope *e) {
    struct worker *w = c->request->worker;
    invariant(l->again && c->lock == l, "a release is sent again that may not be");
    if (l->handed || !engine_again(w->shared->engine, &l->plan, &e->result, worker_now(w)))
        return false;
    lock_build_release(w, NULL, c->request->session->lock.client, &l->plan, l->shape, l->command);
    lock_submit_next(c, l, SCRIPT_RELEASE, NULL);
    return true;
}

/* Sends a refused attempt once more, together with the release of the lease that refused it; or lets it wait, if its
 * rule says so. Returns false if the refusal is the client's reply. */
static __attribute__((noinline)) bool refused_again(struct call *c, struct lock_call *l, const struct call_end *end) {
    struct lock_envelope e;
    struct worker *w = c->request->worker;
    struct session *s = c->request->session;
    invariant(l->again && c->lock == l, "a call is sent again that may not be");
    if (!s || !lock_envelope_read(l, end->reply, end->len, &e))
        return false;
    if (l->acquires)
        return w->waits->refused(c, l, &e);
    if (l->plan.verb != LOCK_ACQUIRE)
        return release_again(c, l, &e);
    if (l->expiry_ms == LOCK_EXPIRY_OTHER || !engine_again(w->shared->engine, &l->plan, &e.result, worker_now(w)))
        return l->plan.rule->wait_ms > 0 && w->waits->refused(c, l, &e);
    lock_build_again(w, s->lock.client, l, l->plan.claim_token);
    lock_submit_next(c, l, SCRIPT_ACQUIRE, NULL);
    return true;
}

/* Whether a live lease may have refused the call. A cheap test, since most answers are no refusals. */
static inline bool may_be_refused(const struct lock_call *l, const struct call_end *end) {
    return l->again && !end->error && end->len > 6 &&
           (end->reply[0] == '*' || end->reply[4] == 'h' || end->reply[5] == 'h');
}

/* Whether a release that was sent twice, and found nothing to release, has released the first time: the lease that is
 * gone has not ended by itself. Guard records in the short form keep no trace of it. */
static __attribute__((noinline)) bool released_before(const struct call *c, const struct lock_call *l,
                                                      const struct call_end *end) {
    struct lock_envelope e;
    struct worker *w = c->request->worker;
    bool refused = !end->error && lock_envelope_read(l, end->reply, end->len, &e) &&
                   (e.result.outcome == LOCK_FREE || e.result.outcome == LOCK_HELD || e.result.outcome == LOCK_FOREIGN);
    return refused && engine_claim_lasts(w->shared->engine, &l->plan, worker_now(w));
}

inline void lock_end(struct call *c, struct lock_call *l, const struct call_end *end) {
    call_done_fn next = l->next;
    struct lock_answer out;
    c->lock = NULL;
    lock_finish(c->request->worker, c->request->session, l, end, &out);
    lock_deliver(c, next, &out.end);
}

static inline void end_call(struct call *c, const struct call_end *end) {
    struct lock_call *l = c->lock;
    if (__builtin_expect(l->sent_twice, false) && released_before(c, l, end))
        end = &lock_released_end;
    if (may_be_refused(l, end) && refused_again(c, l, end))
        return;
    if (l->plan.rule && l->plan.rule->confirms && (lock_confirm(c, l, end) || lock_witnessed(c, l, end)))
        return;
    lock_end(c, l, end);
}

void lock_answered(struct call *c, const struct call_end *end) {
    end_call(c, end);
}

static __attribute__((noinline)) void end_call_joined(struct call *c, const struct call_end *end) {
    invariant(!list_empty(&c->lock->joined), "no attempt has joined");
    struct lock_call *l = c->lock;
    struct list_node joined;
    list_init(&joined);
    list_splice(&joined, &l->joined);
    const struct lock_client *asker = c->request->session ? c->request->session->lock.client : NULL;
    end_call(c, end);
    lock_joined_end(&joined, end, asker);
}

void lock_attempt_ended(struct call *c, const struct call_end *end) {
    invariant_debug(c->lock && !c->up.in_flight, "an answer belongs to no call");
    struct lock_call *l = c->lock;
    lock_probe_over(c, l);
    if (list_empty(&l->joined))
        end_call(c, end);
    else
        end_call_joined(c, end);
}

static void lock_done(struct call *c, const struct call_end *end);

void lock_submit_next(struct call *c, struct lock_call *l, enum script_id id, call_done_fn done) {
    struct worker *w = c->request->worker;
    const struct session *s = c->request->session;
    struct upstream_lane lane = {.login = l->plan.login, .db = l->plan.key.db, .protocol = 2};
    invariant(c->lock == l, "a call carries two scripts");
    c->done = done ? done : lock_done;
    c->up.script = script_get(id);
    c->up.repeatable = true;
    call_submit_lane(c, l->plan.slot, s ? &s->lane : &lane, w->build.data, w->build.len);
}

__attribute__((noinline)) void lock_submit_whole(struct call *c, call_done_fn done) {
    struct lock_call *l = c->lock;
    struct worker *w = c->request->worker;
    const struct session *s = c->request->session;
    const struct lock_client *client = s ? s->lock.client : NULL;
    bool release = lock_verb_is(l->plan.verb, VERB_SPENDS);
    if (release)
        lock_build_release(w, NULL, client, &l->plan, l->shape, l->command);
    else
        lock_build_again(w, client, l, NULL);
    lock_submit_next(c, l, release ? SCRIPT_RELEASE : SCRIPT_ACQUIRE, done);
}

static void lock_done(struct call *c, const struct call_end *end) {
    if (lock_was_unusual(c, end))
        lock_submit_whole(c, lock_done);
    else
        lock_attempt_ended(c, end);
}

/* ---- sending ------------------------------------------------------------------------------------ */

inline void lock_submit(struct call *call, struct lock_call *l, enum script_id id) {
    struct worker *w = call->request->worker;
    invariant_debug((!call->lock || call->lock == l) && call->done != lock_done, "a call carries two scripts");
    l->next = call->done;
    call->lock = l;
    call->done = lock_done;
    call->up.script = script_get(id);
    call->up.repeatable = id != SCRIPT_PASS;
    call_submit(call, l->plan.slot, w->build.data, w->build.len);
}

void lock_attempt_anew(struct call *c, struct lock_call *l) {
    const struct session *s = c->request->session;
    l->fence = 0;
    if (s)
        lock_submit_next(c, l, lock_build_attempt(c->request->worker, s->lock.client, l), NULL);
    else
        lock_attempt_ended(c, &lock_not_sent_end);
}
