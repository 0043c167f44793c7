/* A script's answer, and what the files that apply it have in common: the claims that it concerns, and the value that
 * it showed. */
#include "proxy/lock/outcome.h"

#include "parser/invariant.h"
#include "proxy/base/memory.h"

/* ---- the answer --------------------------------------------------------------------------------- */

inline void outcome_start(struct outcome *f, struct lock_engine *e, uint64_t session_id, const struct lock_plan *plan,
                          const struct lock_result *result, const char *command, const char *client, int64_t now_ms) {
    f->e = e;
    f->plan = plan;
    f->result = result;
    f->now_ms = now_ms;
    f->command = command;
    f->client = client;
    f->audit = false;
    f->refusal = NULL;
    f->sh = ledger_shard(e, plan->hash);
    shard_lock(f->sh);
    f->peer = plan->peer ? plan->peer : peer_find(f->sh, session_id);
    f->entry = entry_find(f->sh, &plan->key, plan->hash);
    f->claim = claim_find(f->entry, plan->claim);
    if (f->claim && plan->uses)
        f->claim->uses--;
}

const struct lock_incident *outcome_occasion(struct outcome *f) {
    f->on = (struct lock_incident){.time_ms = f->now_ms,
                                   .key = f->plan->key,
                                   .rule = f->plan->rule ? f->plan->rule->pattern : NULL,
                                   .identity = f->peer->client->name,
                                   .client = f->client,
                                   .command = f->command,
                                   .holder = f->result->holder,
                                   .holder_len = f->result->holder_len};
    return &f->on;
}

inline void outcome_end(struct outcome *f) {
    if (f->claim && claim_ended(f->claim))
        outcome_schedule(f, f->claim);
    invariant_debug(!f->entry || !f->entry->live_fence || f->entry->live_fence > f->entry->gone_fence,
                    "S2: fence %llu is live, and %llu is gone", (unsigned long long)f->entry->live_fence,
                    (unsigned long long)f->entry->gone_fence);
    if (f->entry)
        entry_settle(f->sh, f->entry);
    invariant_debug(f->peer->in_flight > 0, "no command is in flight");
    f->peer->in_flight--;
    peer_settle(f->sh, f->peer);
    shard_unlock(f->sh);
    if (f->plan->seen_long)
        memory_free(f->plan->seen_long);
}

struct entry *outcome_entry(struct outcome *f) {
    if (!f->entry)
        f->entry = entry_get(f->sh, &f->plan->key, f->plan->hash);
    return f->entry;
}

bool outcome_schedule(struct outcome *f, struct claim *c) {
    if (lease_schedule(f->sh, c, f->now_ms))
        return true;
    if (c == f->claim)
        f->claim = NULL;
    return false;
}

/* ---- what ends a tenure ------------------------------------------------------------------------ */

/* Whether the command has ended this lease, or came after its end, with no other holder known since. Exception: a
 * script that finds the lock free may have been meant to extend it. */
static bool released(const struct outcome *f, uint64_t fence) {
    const struct lock_result *r = f->result;
    switch (r->outcome) {
    case LOCK_RELEASED:
        return r->fence == 0 || r->fence == fence;
    case LOCK_ADOPTED:
        return true;
    case LOCK_FREE:
    case LOCK_OPEN: {
        bool newer = f->entry->live_fence > fence || f->entry->gone_fence > fence;
        for (const struct claim *c = f->entry->claims; c && !newer; c = c->next)
            newer = c->fence > fence;
        return f->plan->verb != LOCK_SCRIPT && !newer;
    }
    default:
        return false;
    }
}

void tenure_spent(struct outcome *f, const struct claim *c) {
    struct tenure *t = tenure_find(c->entry, c->peer);
    bool anybodys = c->rule->owner == LOCK_OWNER_ANY;
    if (!t || t->fence != c->fence || f->plan->verb == LOCK_OPERATOR)
        return;
    if (claim_writes_for_others(c) || ((c->peer == f->peer || anybodys) && released(f, c->fence)))
        tenure_remove(t);
}

void tenure_released(struct outcome *f) {
    struct tenure *t = tenure_find(f->entry, f->peer);
    if (t && released(f, t->fence))
        tenure_remove(t);
}

/* ---- the claims that it concerns ----------------------------------------------------------------- */

static void claim_holds_value(struct claim *c, uint64_t value) {
    if (c->extra && c->valued && c->value != value)
        c->extra->sighted = 0;
    c->rewritten |= c->valued && c->value != value;
    c->valued = true;
    c->value = value;
}

inline void claim_value(struct outcome *f, struct claim *c) {
    if (!c || !f->result->value)
        return;
    if (!f->plan->field)
        claim_holds(f, c, f->result->value, f->result->value_len);
    else if (!c->valued || value_same_field(c->value, f->plan->field))
        claim_holds_value(c, f->plan->field); /* another field than the holder's says nothing of the lease */
}

inline void claim_holds(struct outcome *f, struct claim *c, const char *value, size_t len) {
    uint64_t hash = hash_bytes(&f->e->value_seed, value, len);
    if (!c->valued || !value_same_field(c->value, hash)) /* a script shows the field without its content */
        claim_holds_value(c, hash);
}

struct claim *outcome_touched(struct outcome *f) {
    if (f->claim && f->claim->fence == f->result->fence)
        return f->claim;
    struct claim *c = f->result->fence ? claim_of_fence(f->entry, f->result->fence, NULL) : NULL;
    return c ? c : f->claim && !f->claim->fence ? f->claim : NULL;
}

void outcome_spend(struct outcome *f, struct claim *c) {
    if (!c)
        return;
    if (c == f->claim)
        f->claim = NULL;
    tenure_spent(f, c);
    claim_held(f->sh, c, f->now_ms);
    claim_drop(f->sh, c);
}

void outcome_crossing(struct outcome *f, struct workload *workload, const struct claim *live) {
    struct peer *owner = live ? live->peer : NULL;
    if (workload && f->plan->rule->owner == LOCK_OWNER_AUTO && !f->audit)
        workload_vote(f->sh, workload, f->peer, owner, &f->plan->key, f->now_ms);
}

void outcome_refusal(struct outcome *f, enum lock_incident_kind kind, const char *why) {
    if (f->audit)
        incident_report(f->sh, kind, outcome_occasion(f), "would be refused: %s; %s",
                        f->refusal ? f->refusal : "nothing done", why);
    else
        incident_report(f->sh, kind, outcome_occasion(f), "refused: %s", why);
}
