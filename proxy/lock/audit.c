/*
 * Audit: infers from what a command did what its script would have said. Knows no commands, only verbs and effects.
 *
 *      sight ──> attribute ──> infer (outcome, fence) ──> learn, apply ──> what Redis has done all the same
 *
 * Redis gives no fences under audit. The engine gives each lease a number, greater than all earlier ones on the key.
 */
#include "proxy/lock/lock_event.h"
#include "proxy/lock/outcome.h"

/* One call of engine_observe. */
struct audit {
    struct outcome *f;
    const struct lock_event *sight;
    struct lock_result *result; /* what the script would have said, as far as it is inferred */
    struct claim *live;         /* the claim believed live when Redis ran the command; NULL: none is known */
    bool mine;                  /* the live claim counts for the command's session */
    bool late;                  /* the lease of the command's claim was certainly over */
};

uint64_t engine_watch(struct lock_engine *e, struct lock_session *s, const struct lock_key *key) {
    struct shard *sh = ledger_shard(e, ledger_hash(e, key, NULL));
    shard_lock(sh);
    uint64_t number = ledger_number(e);
    peer_get(sh, s)->in_flight++;
    shard_unlock(sh);
    return number;
}

/* ---- what is believed ------------------------------------------------------------------------ */

/* The claim whose lease was live when Redis ran the command, or NULL. A lease that became known while the command was
 * on its way may have come after it. */
static struct claim *believed(const struct audit *a) {
    const struct entry *en = a->f->entry;
    if (!en || !en->live_fence)
        return NULL;
    for (struct claim *c = en->claims; c; c = c->next) {
        bool before = !c->end_ms || c->end_ms > a->sight->begun_ms;
        if (c->fence == en->live_fence && !claim_ended(c) && before &&
            (c == a->f->claim || en->live_since < a->sight->watched))
            return c;
    }
    return NULL;
}

/* Whether the session has lost its last attempt on the lock. No holder is known. */
static bool lost_before(const struct audit *a) {
    const struct outcome *f = a->f;
    const struct contender *w = f->entry ? contender_find(f->entry, f->peer) : NULL;
    const struct workload *workload = workload_find(f->sh, f->peer, f->plan->rule, f->plan->pattern);
    return w && w->lost && !workload_pooled(workload, f->peer, f->plan->rule);
}

/* ---- what follows ---------------------------------------------------------------------------- */

/* Applies what the script would have said. Returns the outcome. */
static enum lock_outcome audit_conclude(struct audit *a, enum lock_outcome outcome, uint64_t fence) {
    struct lock_result *r = a->result;
    r->outcome = outcome;
    r->fence = fence;
    a->f->result = r;
    if (a->live && (outcome == LOCK_HELD || outcome == LOCK_COUNTED)) {
        r->holder = a->live->peer->client->name;
        r->holder_len = a->live->peer->client->len;
        r->same = a->live->peer->client == a->f->peer->client;
    }
    learn(a->f);
    apply(a->f);
    return outcome;
}

static enum lock_outcome refused(struct audit *a) {
    return audit_conclude(a, a->live ? LOCK_HELD : LOCK_FOREIGN, a->live ? a->live->fence : 0);
}

static enum lock_outcome audit_grant(struct audit *a) {
    const struct entry *en = outcome_entry(a->f);
    uint64_t fence = en->live_fence > en->gone_fence ? en->live_fence : en->gone_fence;
    for (const struct claim *c = en->claims; c; c = c->next)
        if (c->fence > fence)
            fence = c->fence;
    audit_conclude(a, LOCK_GRANTED, fence + 1);
    learn_wrote(a->f);
    return LOCK_GRANTED;
}

static enum lock_outcome grant_over(struct audit *a) {
    enum lock_outcome outcome = audit_grant(a);
    struct claim *c = claim_find(a->f->entry, a->f->plan->attempt);
    if (c)
        c->overwrote = true;
    return outcome;
}

/* Judges a command on another session's lease, or on a foreign lock. Redis has carried it out, so the lease has ended.
 * `takes`: the caller has the lock now. */
static enum lock_outcome audit_refuse(struct audit *a, bool takes) {
    enum lock_outcome outcome = refused(a);
    learn_gone(a->f, a->result->fence, LEASE_TAKEN);
    if (takes)
        grant_over(a);
    return outcome;
}

static enum lock_outcome wrote(struct audit *a) {
    learn_wrote(a->f);
    return audit_conclude(a, LOCK_DONE, a->live->fence);
}

static enum lock_outcome written_over(struct audit *a) {
    struct claim *live = a->live;
    audit_conclude(a, LOCK_HELD, live->fence);
    live->valued = false;
    return LOCK_HELD;
}

/* Judges a command that has removed the lock: RELEASE, CLOBBER, a counter back at zero, an expiry in the past. */
static enum lock_outcome removed(struct audit *a) {
    if (a->mine)
        return audit_conclude(a, LOCK_RELEASED, a->live->fence);
    if (a->live)
        return audit_refuse(a, false);
    /* The lease that was written over the command's own lock ends, too. A lease that became known while the command was
     * on its way is taken for an earlier one. Exception: a lease that needed the key to be free came after the command.
     */
    const struct entry *en = a->f->entry;
    const struct claim *c = entry_claims(en);
    while (c && !(c->fence == en->live_fence && c->overwrote && !claim_ended(c)))
        c = c->next;
    if (c)
        learn_gone(a->f, c->fence, LEASE_GONE);
    if (a->late || (!a->f->claim && lost_before(a)))
        return audit_refuse(a, false);
    if (a->f->claim)
        return audit_conclude(a, LOCK_RELEASED, a->f->claim->fence);
    return audit_conclude(a, LOCK_OPEN, 0);
}

/* Judges a command that has changed the lock and left it there. */
static enum lock_outcome changed(struct audit *a) {
    if (a->mine)
        return wrote(a);
    bool acquires = a->sight->verb == LOCK_REPLACE, writes = acquires || a->sight->verb == LOCK_REWRITE;
    if (a->live && writes)
        return audit_refuse(a, true);
    if (a->live) { /* the lease has another expiry now */
        struct claim *live = a->live;
        audit_conclude(a, LOCK_HELD, live->fence);
        lease_set(a->f->sh, live, a->result->pttl_ms, false, a->sight->begun_ms, a->f->now_ms);
        outcome_schedule(a->f, live);
        return LOCK_HELD;
    }
    if (acquires)
        return audit_grant(a);
    if (a->late || (!a->f->claim && lost_before(a)))
        return audit_refuse(a, writes);
    if (a->f->claim && a->f->claim->fence)
        return audit_conclude(a, LOCK_DONE, a->f->claim->fence);
    return audit_conclude(a, LOCK_OPEN, 0);
}

/* Judges a GETSET. Enforcing lets it swap only what its session last read, and else answers the present value. */
static enum lock_outcome swapped(struct audit *a) {
    const struct lock_event *s = a->sight;
    const struct lock_plan *plan = a->f->plan;
    if (!s->old)
        return audit_grant(a);
    bool as_read =
        plan->seen_known && plan->seen_len == s->old_len && memcmp(lock_plan_seen(plan), s->old, s->old_len) == 0;
    if (!a->live)
        return as_read ? grant_over(a) : audit_conclude(a, LOCK_OPEN, 0);
    if (a->mine && (!plan->read_fence || plan->read_fence == a->live->fence))
        return wrote(a);
    if (plan->read_fence == a->live->fence)
        return grant_over(a);
    return as_read ? audit_refuse(a, true) : written_over(a);
}

static enum lock_outcome counted(struct audit *a) {
    const struct lock_event *s = a->sight;
    struct claim *live = a->live;
    bool up = s->verb == LOCK_COUNT_UP;
    if (up && s->count > 0 && s->count <= s->by)
        return audit_grant(a);
    if (!up && s->count <= 0)
        return live || a->f->claim ? removed(a) : audit_conclude(a, LOCK_FREE, 0);
    if (!live)
        return audit_conclude(a, LOCK_OPEN, 0);
    if (a->mine) /* what losers have counted may still be there */
        return audit_conclude(a, !up && s->count <= live->others ? LOCK_RELEASED : LOCK_DONE, live->fence);
    int64_t others = live->others + (up ? s->by : -s->by);
    live->others = (uint16_t)(others < 0 ? 0 : others > UINT16_MAX ? UINT16_MAX : others);
    return audit_conclude(a, LOCK_COUNTED, live->fence);
}

/* A script may have released, extended or taken the leases: their ends and releases are not expected any more. */
static enum lock_outcome scripted(struct audit *a) {
    struct entry *en = a->f->entry;
    if (a->f->claim)
        a->f->claim->scripted = false;
    for (struct claim *c = entry_claims(en), *next; c; c = next) {
        next = c->next;
        if (c->uses || !c->observed)
            continue;
        if (c->peer == a->f->peer)
            releaser_note(a->f->e, c->rule, c->peer->client);
        if (c == a->f->claim)
            a->f->claim = NULL;
        struct peer *p = c->peer;
        claim_held(a->f->sh, c, a->f->now_ms);
        claim_remove(a->f->sh, c);
        if (p != a->f->peer)
            peer_settle(a->f->sh, p);
    }
    if (en && !en->claims)
        en->live_fence = 0;
    a->result->outcome = LOCK_OPEN;
    return LOCK_OPEN;
}

static enum lock_outcome done(struct audit *a) {
    switch (a->sight->verb) {
    case LOCK_ACQUIRE:
        return audit_grant(a);
    case LOCK_RELEASE:
    case LOCK_CLOBBER:
        return removed(a);
    case LOCK_REPLACE:
    case LOCK_REWRITE:
    case LOCK_EXTEND:
        return changed(a);
    case LOCK_SWAP:
        return swapped(a);
    case LOCK_PASS: /* it writes data, and is refused if another session's lease is live */
        if (a->mine)
            return wrote(a);
        if (!a->live)
            return audit_conclude(a, LOCK_OPEN, 0);
        return a->sight->value ? audit_refuse(a, false) : written_over(a);
    case LOCK_COUNT_UP:
    case LOCK_COUNT_DOWN:
        return counted(a);
    case LOCK_READ: {
        bool its = a->live && a->live->valued &&
                   a->live->value == hash_bytes(&a->f->e->value_seed, a->sight->value, a->sight->value_len);
        return audit_conclude(a, its ? LOCK_HELD : LOCK_FOREIGN, its ? a->live->fence : 0);
    }
    case LOCK_SCRIPT:
        return scripted(a);
    default: /* rules in audit cover no list locks */
        return LOCK_ERROR;
    }
}

static enum lock_outcome infer(struct audit *a) {
    switch (a->sight->effect) {
    case EFFECT_DONE:
        return done(a);
    case EFFECT_LOST:
        return refused(a);
    case EFFECT_ABSENT:
        return audit_conclude(a, LOCK_FREE, 0);
    case EFFECT_REMOVED:
        return a->sight->verb == LOCK_ACQUIRE || !(a->live || a->f->claim) ? audit_conclude(a, LOCK_FREE, 0)
                                                                           : removed(a);
    case EFFECT_SCRIPTED:
        return scripted(a);
    case EFFECT_NOTHING:
        return audit_conclude(a, LOCK_ERROR, 0);
    case EFFECT_NOT_SENT:
        return audit_conclude(a, LOCK_NOT_SENT, 0);
    case EFFECT_UNKNOWN:
        return audit_conclude(a, LOCK_UNKNOWN, 0);
    }
    return LOCK_ERROR;
}

enum lock_outcome engine_observe(struct lock_engine *e, const struct lock_event *sight, int64_t now_ms) {
    struct lock_plan plan = {.key = sight->key,
                             .rule = sight->rule,
                             .verb = sight->verb,
                             .login = sight->login,
                             .begun_ms = sight->begun_ms,
                             .attempt = sight->watched};
    plan.hash = ledger_hash(e, &sight->key, &plan.pattern);
    if (sight->named)
        plan.named = hash_bytes(&e->value_seed, sight->named, sight->named_len);
    struct lock_result result = {.pttl_ms = sight->pttl_ms, .value = sight->value, .value_len = sight->value_len};
    struct outcome f;
    outcome_start(&f, e, sight->session_id, &plan, &result, sight->command, sight->client, now_ms);
    if (plan.rule)
        plan.workload = workload_number(f.peer, plan.rule, plan.pattern);
    struct workload *workload = plan.rule ? workload_of(f.sh, f.peer, plan.workload) : NULL;
    if (workload) /* the rule may have been enforced when the workload was used last */
        workload->audited = true;
    f.audit = true;
    f.refusal = sight->refusal;
    attribute(f.sh, f.entry, f.peer, now_ms, &plan);
    f.claim = claim_find(f.entry, plan.claim);
    if (f.claim && plan.uses)
        f.claim->uses--;
    plan.uses = false;
    struct audit a = {.f = &f, .sight = sight, .result = &result};
    a.live = believed(&a);
    bool believed_of = plan.right == RIGHT_BELIEVE && a.live && a.live->peer->client == f.peer->client;
    a.mine = a.live && (a.live == f.claim || believed_of || (plan.rule && plan.rule->owner == LOCK_OWNER_ANY));
    /* The end that this process knows is never too early, since it is counted from when the reply was read. */
    a.late = f.claim && f.claim->fence && f.claim->end_ms && f.claim->end_ms < sight->begun_ms;
    enum lock_outcome outcome = infer(&a);
    outcome_end(&f);
    return outcome;
}
