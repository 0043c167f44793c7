/*
 * Sends the call of a lock script, and takes the node's answer: a refused attempt may go again or wait, a refused
 * release may be asked about once more, replicas or witnesses may have to confirm an acquisition. Any other answer ends
 * the call.
 *
 * Of several sessions that try to acquire one lock in the same turn of the event loop, the proxy sends one attempt. Its
 * answer decides about the others too.
 *
 *      SETNX of A ──> script ──> node's output, not written yet ──> the node ──> "held", or "granted": A holds it now
 *      SETNX of B, C, ... ──> join A's ─────────────────────────────────────────> refused, as if run right behind A's
 *
 * Why this is correct: no byte of A's call has left the proxy when B's command arrives, so the script runs between B's
 * command and its answer. B's script, right behind A's, would have found the lock held too: by the holder that refused
 * A, or by A. It would have changed nothing, and acquire.lua uses nothing of the caller but the attempt's token, which
 * is new. So another session held the lock between B's command and its answer; a refusal says no more. The engine has
 * begun B's attempt, and learns from it as from an attempt that was sent.
 *
 * Conditions: B has nothing else in flight, and what B sends next waits for the answer, so that no command of B
 * overtakes another. A and B have the same lane: login, database, protocol. Both commands are SETNX, or SET NX with at
 * most PX or EX, which get the short answer (common.lua). Any other answer is for A alone: the others then send their
 * own attempts.
 */
#include "parser/invariant.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/sending.h"

/* Sends a refused attempt once more, with the release of the lease that refused it, or lets it wait. Sends a refused
 * release once more, to ask whether the lease was released through another proxy. False: the refusal is the client's
 * reply. So it is if a waiting session's attempt was sent behind the release: the same lease has refused that. */
static __attribute__((noinline)) bool refused_again(struct call *c, struct lock_call *l, const struct call_end *end) {
    struct lock_envelope e;
    struct worker *w = c->request->worker;
    invariant(l->again && c->lock == l, "a call is sent again that may not be");
    if (!c->request->session || !lock_envelope_read(l, end->reply, end->len, &e))
        return false;
    if (l->acquires)
        return w->waits->refused(c, l, &e);
    bool attempt = l->plan.verb == LOCK_ACQUIRE;
    if ((attempt ? l->expiry_ms == LOCK_EXPIRY_OTHER : l->handed) ||
        !engine_again(w->shared->engine, &l->plan, &e.result, worker_now(w)))
        return attempt && l->plan.rule->wait_ms > 0 && w->waits->refused(c, l, &e);
    lock_submit_whole(c, NULL);
    return true;
}

/* Whether a release that was sent twice, and found nothing, has released the first time: the lease has not ended by
 * itself. Guard records in the short form keep no trace of it. */
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

inline void lock_answered(struct call *c, const struct call_end *end) {
    struct lock_call *l = c->lock;
    if (__builtin_expect(l->sent_twice, false) && released_before(c, l, end))
        end = &lock_released_end;
    /* A cheap test for what may be a refusal by a live lease, since most answers are none. */
    bool refused = l->again && !end->error && end->len > 6 &&
                   (end->reply[0] == '*' || end->reply[4] == 'h' || end->reply[5] == 'h');
    if (refused && refused_again(c, l, end))
        return;
    if (l->plan.rule && l->plan.rule->confirms && lock_confirm(c, l, end))
        return;
    lock_end(c, l, end);
}

/* ---- attempts that join another one -------------------------------------------------------------- */

static struct call **place_of(struct worker *w, const struct lock_call *l) {
    return &w->locks->probes[l->plan.hash % LOCK_PROBES];
}

inline bool lock_join(struct call *call, struct lock_call *l) {
    struct worker *w = call->request->worker;
    struct session *s = call->request->session;
    struct call **place = place_of(w, l), *probe = *place;
    struct lock_call *asks = probe ? probe->lock : NULL;
    if (!probe || asks->plan.hash != l->plan.hash || !lock_same_key(asks, l) || s->in_flight > 1 ||
        memcmp(&probe->up.lane, &s->lane, sizeof(s->lane)) != 0 || !upstream_unsent(&probe->up)) {
        invariant_debug(call->lock != l || !call->up.in_flight, "a probe is noted after it was sent");
        *place = call;
        return false;
    }
    counter_add(&w->counters.requests_joined, 1);
    invariant_debug(probe != call && list_empty(&l->link), "an attempt joins itself");
    l->call = call;
    call->lock = l;
    list_append(&asks->joined, &l->link);
    request_barrier(call->request);
    return true;
}

/* Ends an attempt, and then answers those that have joined it. */
static __attribute__((noinline)) void end_joined(struct call *c, const struct call_end *end) {
    invariant(!list_empty(&c->lock->joined), "no attempt has joined");
    struct worker *w = c->request->worker;
    struct list_node joined, *n;
    list_init(&joined);
    list_splice(&joined, &c->lock->joined);
    const struct lock_client *asker = lock_call_client(c);
    lock_answered(c, end);
    struct lock_result seen = {.outcome = LOCK_UNKNOWN};
    bool held = !end->error && lock_read_short(NULL, end->reply, end->len, &seen) && seen.outcome != LOCK_RELEASED;
    struct lock_envelope refusal = {.result = seen};
    refusal.result.outcome = LOCK_HELD;
    refusal.result.pttl_ms = PTTL_UNKNOWN;
    refusal.result.same = false;
    while ((n = list_shift(&joined))) {
        struct lock_call *l = LIST_ENTRY(n, struct lock_call, link);
        c = l->call;
        invariant(c && c->lock == l, "a joined attempt belongs to another call");
        if (held && l->plan.rule->wait_ms > 0 && w->waits->refused(c, l, &refusal))
            continue;
        if (!held) {
            lock_attempt_anew(c, l);
            continue;
        }
        /* The script's answer says whether the lease is of the sender's identity, so `same` is known only for sessions
         * of the sender's client. */
        struct lock_result r = refusal.result;
        struct call_end out = {.why = UPSTREAM_NOT_SENT};
        r.same = seen.same && asker && lock_call_client(c) == asker;
        r.value = l->value;
        r.value_len = l->value_len;
        out.reply = lock_short_reply(l, LOCK_HELD, &out.len);
        c->lock = NULL;
        lock_note_time(w, l);
        lock_learnt(w, c->request->session, l, &r);
        lock_deliver(c, NULL, &out);
    }
}

void lock_attempt_ended(struct call *c, const struct call_end *end) {
    invariant_debug(c->lock && !c->up.in_flight, "an answer belongs to no call");
    struct call **place = place_of(c->request->worker, c->lock);
    if (*place == c)
        *place = NULL; /* no more may join */
    if (list_empty(&c->lock->joined))
        lock_answered(c, end);
    else
        end_joined(c, end);
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
    const struct lock_client *client = lock_call_client(c);
    bool release = lock_verb_is(l->plan.verb, VERB_SPENDS);
    if (release)
        lock_build_release(w, NULL, client, &l->plan, l->shape, l->command);
    else
        lock_build_again(w, client, l, NULL);
    lock_submit_next(c, l, release ? SCRIPT_RELEASE : SCRIPT_ACQUIRE, done);
}

static void lock_done(struct call *c, const struct call_end *end) {
    if (lock_was_unusual(c, end))
        lock_submit_whole(c, NULL);
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
