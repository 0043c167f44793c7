/*
 * What an answer tells: which lease is live and which are gone, what its session lost or was shown.
 *
 * Answers may come in another order than Redis ran the scripts in. What is safe to conclude follows from fences (a
 * newer lease proves the older ones gone) and from token numbers (a command that began after a lease was known and
 * found the lock free proves that lease gone).
 */
#include "proxy/lock/finish.h"

struct entry *finish_entry(struct finish *f) {
    if (!f->entry)
        f->entry = entry_get(f->sh, &f->plan->key, f->hash);
    return f->entry;
}

bool finish_refused(const struct finish *f) {
    return f->result->outcome == LOCK_HELD || f->result->outcome == LOCK_FOREIGN;
}

bool finish_schedule(struct finish *f, struct claim *c) {
    if (lease_schedule(f->sh, c, f->now_ms))
        return true;
    if (c == f->claim)
        f->claim = NULL;
    return false;
}

void learn_gone(struct finish *f, uint64_t fence, enum lease_end why) {
    struct entry *en = f->entry;
    if (!en || !fence)
        return;
    for (struct claim *c = en->claims, *next; c; c = next) {
        next = c->next;
        if (!c->fence || c->fence > fence)
            continue;
        lease_end(f->sh, c, why, f->now_ms);
        if (c != f->claim) /* that one is the verb's */
            finish_schedule(f, c);
    }
    if (fence > en->gone_fence && fence > en->live_fence)
        en->live_since = atomic_load(&f->e->attempts);
    if (fence > en->gone_fence)
        en->gone_fence = fence;
    if (en->live_fence <= en->gone_fence)
        en->live_fence = 0;
}

/* A script's answer says nothing against a lock that was acquired while its rule was in audit: such a lock has no guard
 * record, or that of an earlier lease. */
static bool says_nothing(const struct finish *f) {
    if (f->audit || !finish_refused(f))
        return false;
    for (const struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c->observed && claim_is_live(c, f->now_ms))
            return true;
    return false;
}

/* The lease with this fence is live, or was when Redis ran the script. */
static void learn_live(struct finish *f, uint64_t fence, enum lease_end why_others) {
    struct entry *en = f->entry;
    if (!en || !fence || fence <= en->gone_fence || fence <= en->live_fence || says_nothing(f))
        return;
    learn_gone(f, fence - 1, why_others);
    en->live_fence = fence;
    en->live_since = atomic_load(&f->e->attempts);
}

/* A lease was granted. Its fence is greater than all that were known when the command began, but for one case: the
 * guard record was lost, and with it came an earlier clock (a replica's that has taken over). The grant is the later
 * one all the same, and what was known is over; it counts as of before. */
static void learn_back(struct finish *f) {
    struct entry *en = f->entry;
    uint64_t fence = f->result->fence;
    if (!en || fence == 0 || f->audit || f->plan->attempt <= en->live_since ||
        !(fence <= en->gone_fence || fence < en->live_fence))
        return;
    learn_gone(f, en->live_fence, LEASE_GONE);
    for (struct claim *c = en->claims; c; c = c->next)
        if (c->fence >= fence)
            c->fence = fence - 1;
    en->gone_fence = fence - 1;
}

/* No lease was live. That concerns the one that was known when the command began. */
static void learn_none(struct finish *f) {
    if (f->entry && !says_nothing(f) && f->plan->attempt > f->entry->live_since)
        learn_gone(f, f->entry->live_fence, LEASE_GONE);
}

void learn(struct finish *f) {
    bool swapped = f->plan->verb == LOCK_SWAP;
    switch (f->result->outcome) {
    case LOCK_GRANTED:
        learn_back(f);
        learn_live(f, f->result->fence, swapped ? LEASE_TAKEN : LEASE_GONE);
        break;
    case LOCK_ADOPTED:
        if (f->plan->verb == LOCK_RELEASE)
            learn_gone(f, f->result->fence, LEASE_TAKEN);
        else
            learn_live(f, f->result->fence, LEASE_GONE);
        break;
    case LOCK_DONE:
    case LOCK_COUNTED:
    case LOCK_HELD:
        learn_live(f, f->result->fence, LEASE_GONE);
        break;
    case LOCK_RELEASED:
        learn_gone(f, f->result->fence, LEASE_TAKEN);
        break;
    case LOCK_FREE:
    case LOCK_FOREIGN:
    case LOCK_OPEN:
        learn_none(f);
        break;
    case LOCK_ERROR:
    case LOCK_UNCONFIRMED:
    case LOCK_NOT_SENT:
    case LOCK_UNKNOWN:
        break;
    }
}

/* ---- witnesses ------------------------------------------------------------------------------- */

void learn_touched(struct shard *sh, struct witness *w, const struct lock_rule *rule, int64_t now_ms) {
    int64_t least = w->queue_rule && w->queue_rule->lease_ms > 10000 ? w->queue_rule->lease_ms : 10000;
    w->touched_ms = now_ms;
    w->memory_ms = rule && rule->claim_memory_ms > least ? rule->claim_memory_ms : least;
    if (!w->timer.place)
        timer_set(&sh->timers, &w->timer, now_ms + w->memory_ms);
}

/* This session wanted the lock and did not get it: the lease in the way is not its own to release. */
void learn_loss(struct finish *f) {
    if (f->peer->closed)
        return;
    struct witness *w = witness_get(f->sh, finish_entry(f), f->peer);
    if (!w->lost)
        w->lost_ms = f->now_ms;
    w->lost = true;
    if (f->result->fence)
        w->lost_fence = f->result->fence;
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
    learn_live(f, f->result->fence, LEASE_GONE);
}

void learn_lost_attempt(struct finish *f) {
    f->sh->stats.lost++;
    contention_note(f->sh, &f->plan->key, f->hash, f->now_ms);
    learn_loss(f);
    if (!f->result->fence || f->peer->closed || f->plan->verb != LOCK_ACQUIRE)
        return;
    /* Where each connection is one worker's by the rule, or another is to release, a worker may well ask again. */
    if (f->plan->rule->owner == LOCK_OWNER_CONNECTION || f->plan->rule->owner == LOCK_OWNER_ANY)
        return;
    /* The lease in the way is this session's own: several workers use it. Not where one worker may believe that it
     * has released. */
    for (struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c->peer == f->peer && c->fence == f->result->fence && claim_is_live(c, f->now_ms) && !c->let_go)
            atomic_store(&f->peer->client->proven, true);
}

void learn_shown(struct shard *sh, struct entry *en, struct peer *p, const struct lock_rule *rule, uint64_t fence,
                 const char *value, size_t len, int64_t now_ms) {
    struct witness *w = witness_get(sh, en, p);
    witness_see(w, fence, value, len);
    w->read_at = atomic_fetch_add(&sh->engine->attempts, 1) + 1;
    learn_touched(sh, w, rule, now_ms);
    attribute_sighting(sh, en, p, rule, value, len);
}

void learn_wrote(struct finish *f) {
    if (f->peer->closed || !f->result->value)
        return;
    struct witness *w = witness_get(f->sh, finish_entry(f), f->peer);
    witness_see(w, 0, f->result->value, f->result->value_len);
    w->wrote = true;
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
}

void learn_read(struct finish *f) {
    const struct lock_result *r = f->result;
    if (f->peer->closed)
        return;
    if (finish_refused(f) && r->value) {
        learn_shown(f->sh, finish_entry(f), f->peer, f->plan->rule, r->outcome == LOCK_HELD ? r->fence : 0, r->value,
                    r->value_len, f->now_ms);
        learn_live(f, r->fence, LEASE_GONE);
    } else if (r->outcome == LOCK_FREE && f->entry) {
        struct witness *w = witness_find(f->entry, f->peer);
        if (w)
            witness_forget_seen(w);
    }
}
