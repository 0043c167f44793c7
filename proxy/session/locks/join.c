/*
 * Sessions that try to acquire one lock in the same turn of the event loop. The proxy sends one attempt, and its answer
 * decides about the other attempts too.
 *
 *      SETNX of A ──> script ──> node's output, not written yet ──> the node ──> "held", or "granted": A holds it now
 *      SETNX of B, C, ... ──> join A's ─────────────────────────────────────────> refused, as if run right behind A's
 *
 * Why this is correct: no byte of A's call has left the proxy when B's command arrives. The script therefore runs after
 * B's command has come, and before B is answered. Had B's script run right behind A's, it would have found the lock
 * held too: by the holder that refused A, or by A. It would have changed nothing. Its answer would not depend on the
 * session: acquire.lua uses nothing of the caller but the attempt's token, which is new. So another session held the
 * lock at a moment between B's command and its answer, and a refusal says no more than that. The engine has begun B's
 * attempt, and learns the same from it as from an attempt that was sent: losses, contention, sessions that share
 * connections.
 *
 * Conditions: B has nothing else in flight, and what B sends next waits for the answer. Otherwise the attempt could
 * overtake an earlier command of B, or a later command could overtake the attempt. A and B have the same lane: login,
 * database, protocol. Both commands are SETNX, or SET NX with at most PX or EX, which get the short answer
 * (common.lua). If A gets another answer, or none, it is for A alone: each other session then sends its own attempt.
 */
#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/sending.h"

static struct call **place_of(struct worker *w, const struct lock_call *l) {
    return &w->locks->probes[l->plan.hash % LOCK_PROBES];
}

inline bool lock_join(struct call *call, struct lock_call *l) {
    struct worker *w = call->request->worker;
    struct session *s = call->request->session;
    struct call **place = place_of(w, l), *probe = *place;
    struct lock_call *asks = probe ? probe->lock : NULL;
    if (!probe || asks->plan.hash != l->plan.hash || !lock_same_key(asks, l) || s->in_flight > 1 ||
        memcmp(&probe->up.lane, &s->lane, sizeof(s->lane)) != 0 || !upstream_unsent(&probe->up))
        return false;
    counter_add(&w->counters.requests_joined, 1);
    invariant_debug(probe != call && list_empty(&l->link), "an attempt joins itself");
    l->call = call;
    call->lock = l;
    list_append(&asks->joined, &l->link);
    request_barrier(call->request);
    return true;
}

void lock_probe(struct call *call, struct lock_call *l) {
    invariant_debug(call->lock != l || !call->up.in_flight, "a probe is noted after it was sent");
    *place_of(call->request->worker, l) = call;
}

void lock_probe_over(struct call *call, struct lock_call *l) {
    struct call **place = place_of(call->request->worker, l);
    if (*place == call)
        *place = NULL;
}

/* Refuses an attempt as if its script had run right behind the script of the joined attempt. The script's answer says
 * whether the lease is of the asker's identity. So that is known here only for sessions of the asker's client. `asker`
 * NULL: it is not. */
static void refuse(struct lock_call *l, const struct lock_result *seen, const struct lock_client *asker) {
    invariant(l->call && l->call->lock == l, "a joined attempt belongs to another call");
    struct call *c = l->call;
    struct lock_result r = *seen;
    struct call_end out = {.why = UPSTREAM_NOT_SENT};
    r.same = asker && c->request->session && c->request->session->lock.client == asker;
    r.value = l->value;
    r.value_len = l->value_len;
    out.reply = lock_short_reply(l, LOCK_HELD, &out.len);
    c->lock = NULL;
    lock_note_time(c->request->worker, l);
    lock_learnt(c->request->worker, c->request->session, l, &r);
    lock_deliver(c, NULL, &out);
}

void lock_joined_end(struct list_node *joined, const struct call_end *end, const struct lock_client *asker) {
    struct lock_result seen = {.outcome = LOCK_UNKNOWN};
    bool held = !end->error && lock_read_short(NULL, end->reply, end->len, &seen) && seen.outcome != LOCK_RELEASED;
    struct lock_envelope refusal = {.result = seen};
    refusal.result.outcome = LOCK_HELD;
    refusal.result.pttl_ms = PTTL_UNKNOWN;
    refusal.result.same = false;
    struct list_node *n;
    while ((n = list_shift(joined))) {
        struct lock_call *l = LIST_ENTRY(n, struct lock_call, link);
        if (held && l->plan.rule->wait_ms > 0 && l->call->request->worker->waits->refused(l->call, l, &refusal))
            continue;
        if (held)
            refuse(l, &refusal.result, seen.same ? asker : NULL);
        else
            lock_attempt_anew(l->call, l);
    }
}
