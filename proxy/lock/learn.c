/*
 * What an answer tells: which lease is live and which are gone, what its session lost or was shown.
 *
 * Answers may come in another order than Redis ran the scripts in. What is safe to conclude follows from fences (a
 * newer lease proves the older ones gone) and from token numbers (a command that began after a lease was known and
 * found the lock free proves that lease gone).
 */
#include "proxy/lock/outcome.h"

struct entry *outcome_entry(struct outcome *f) {
    if (!f->entry)
        f->entry = entry_get(f->sh, &f->plan->key, f->hash);
    return f->entry;
}

bool outcome_refused(const struct outcome *f) {
    return f->result->outcome == LOCK_HELD || f->result->outcome == LOCK_FOREIGN;
}

bool outcome_schedule(struct outcome *f, struct claim *c) {
    if (lease_schedule(f->sh, c, f->now_ms))
        return true;
    if (c == f->claim)
        f->claim = NULL;
    return false;
}

/* Whether the lease made way well before its end: somebody has released it. Where its session is one worker's, it may
 * all the same be lost with its node, and its late release still to come. */
static bool made_way(const struct outcome *f, const struct claim *c, enum lease_end why) {
    enum { SLACK_MS = 50 };
    bool early = !c->end_ms || c->end_ms > f->now_ms + (f->now_ms - f->plan->begun_ms) + SLACK_MS;
    return !c->uses && !c->ended &&
           (c->peer->remote || (early && (why == LEASE_GONE ? claim_spent_elsewhere(f->e, c) : claim_shared(c))));
}

/* Notes that a lease of this proxy's was released through another one: a crossing, and a release that D1 counts. */
static void released_elsewhere(struct outcome *f, const struct claim *c) {
    if (c->workload)
        workload_count(c->workload, key_stats_find(f->entry, c->workload), TALLY_RELEASED);
    apply_crossing(f, c->workload, c);
}

void learn_gone(struct outcome *f, uint64_t fence, enum lease_end why) {
    struct entry *en = f->entry;
    if (!en || !fence)
        return;
    for (struct claim *c = en->claims, *next; c; c = next) {
        next = c->next;
        if (!c->fence || c->fence > fence)
            continue;
        bool spent = c != f->claim && made_way(f, c, why);
        lease_end(f->sh, c, why, f->now_ms);
        if (spent && !c->peer->remote && why == LEASE_GONE && !claim_shared(c))
            released_elsewhere(f, c);
        if (spent)
            apply_spend(f, c);
        else if (c != f->claim) /* that one is the verb's */
            outcome_schedule(f, c);
    }
    if (fence > en->gone_fence && fence > en->live_fence)
        en->live_since = atomic_load(&f->e->attempts);
    if (fence > en->gone_fence)
        en->gone_fence = fence;
    if (en->live_fence <= en->gone_fence)
        en->live_fence = 0;
}

/* Whether a script's answer says nothing against a lock, which was acquired while its rule was in audit: such a lock
 * has no guard record, or that of an earlier lease. */
static bool says_nothing(const struct outcome *f) {
    if (f->audit || !outcome_refused(f))
        return false;
    for (const struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c->observed && claim_is_live(c, f->now_ms))
            return true;
    return false;
}

/* Learns that the lease with this fence is live, or was when Redis ran the script. */
static void learn_live(struct outcome *f, uint64_t fence, enum lease_end why_others) {
    struct entry *en = f->entry;
    if (!en || !fence || fence <= en->gone_fence || fence <= en->live_fence || says_nothing(f))
        return;
    learn_gone(f, fence - 1, why_others);
    en->live_fence = fence;
    en->live_since = atomic_load(&f->e->attempts);
}

/* Learns from a grant. Its fence is greater than all that were known when the command began, but for one case: the
 * guard record was lost, and with it came an earlier clock (a replica's that has taken over). The grant is the later
 * one all the same, and what was known is over; it counts as of before. */
static void learn_back(struct outcome *f) {
    struct entry *en = f->entry;
    uint64_t fence = f->result->fence;
    if (!en || fence == 0 || f->audit || f->plan->attempt <= en->live_since ||
        !(fence <= en->gone_fence || fence < en->live_fence))
        return;
    learn_gone(f, en->live_fence, LEASE_GONE);
    for (struct claim *c = en->claims; c; c = c->next)
        if (c->fence >= fence)
            c->fence = fence - 1;
    tenures_push_back(en, fence);
    en->gone_fence = fence - 1;
}

/* Learns that no lease was live, which concerns the one that was known when the command began. */
static void learn_none(struct outcome *f) {
    if (f->entry && !says_nothing(f) && f->plan->attempt > f->entry->live_since)
        learn_gone(f, f->entry->live_fence, LEASE_GONE);
}

/* Learns that the lease with the answer's fence was released. Older ones were gone before. */
static void learn_released(struct outcome *f) {
    if (f->result->fence)
        learn_gone(f, f->result->fence - 1, LEASE_GONE);
    learn_gone(f, f->result->fence, LEASE_TAKEN);
}

void learn(struct outcome *f) {
    bool swapped = f->plan->verb == LOCK_SWAP;
    if (f->result->elsewhere)
        atomic_store(&f->e->elsewhere, true);
    switch (f->result->outcome) {
    case LOCK_GRANTED:
        learn_back(f);
        learn_live(f, f->result->fence, swapped ? LEASE_TAKEN : LEASE_GONE);
        break;
    case LOCK_ADOPTED:
        if (f->plan->verb == LOCK_RELEASE)
            learn_released(f);
        else
            learn_live(f, f->result->fence, LEASE_GONE);
        break;
    case LOCK_DONE:
    case LOCK_COUNTED:
    case LOCK_HELD:
        learn_live(f, f->result->fence, LEASE_GONE);
        break;
    case LOCK_RELEASED:
        learn_released(f);
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

/* ---- contenders ------------------------------------------------------------------------------- */

uint64_t outcome_value(const struct outcome *f) {
    return f->plan->field ? f->plan->field : hash_bytes(&f->e->value_seed, f->result->value, f->result->value_len);
}

void learn_touched(struct shard *sh, struct contender *w, const struct lock_rule *rule, int64_t now_ms) {
    int64_t least = w->queue_rule && w->queue_rule->lease_ms > 10000 ? w->queue_rule->lease_ms : 10000;
    int64_t memory_ms =
        rule && rule->claim_memory_ms >= 0 ? rule->claim_memory_ms : 2 * entry_contenders(w->entry)->length_ms;
    w->touched_ms = now_ms;
    w->memory_ms = memory_ms > least ? memory_ms : least;
    if (!w->timer.place)
        timer_set(&sh->timers, &w->timer, now_ms + w->memory_ms);
}

/* A session that wanted the lock and did not get it is a loser: the lease in the way is not its own to release. A
 * session that asks once more with the value of the lease that it is recognised for is no loser. */
void learn_loss(struct outcome *f) {
    if (f->peer->closed)
        return;
    struct contender *w = contender_get(f->sh, outcome_entry(f), f->peer);
    uint64_t tried = f->result->value && f->plan->verb != LOCK_COUNT_UP ? outcome_value(f) : 0;
    if (w->recognised && w->recognised == f->result->fence && w->tried == tried)
        return;
    heir_refused(f->e, f->peer);
    if (!w->lost)
        w->lost_ms = f->now_ms;
    w->lost = true;
    w->released = false;
    w->sent_ms = f->now_ms;
    w->shown_since = false;
    w->held_ms = 0;
    w->tried = tried;
    w->recognised = 0;
    if (f->result->fence && w->lost_fence != f->result->fence) {
        w->lost_fence = f->result->fence;
        w->suspicious_row = 0;
    }
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
    learn_live(f, f->result->fence, LEASE_GONE);
}

/* Finds the claim with the live lease, which is of this identity. If another proxy gave it, it is a claim here, too,
 * while somebody meets it. NULL: the answer that it was acquired has not come yet, or it is not remembered. */
static struct claim *learn_its_own(struct outcome *f, struct workload *workload) {
    enum { KEPT_MS = 30000 };
    const struct lock_rule *rule = f->plan->rule;
    struct claim *c = f->entry->claims;
    while (c && c->fence != f->result->fence)
        c = c->next;
    if (!c && !f->result->elsewhere)
        return NULL;
    if (!c) {
        c = claim_add(f->sh, f->entry, peer_remote(f->sh, f->peer->client), rule, ledger_number(f->e),
                      f->result->fence);
        c->granted_ms = f->now_ms;
        c->reported = true;
        if (workload)
            workload->elsewhere = true;
    }
    if (c->peer->remote) {
        c->end_ms = f->now_ms + (rule->lease_ms > KEPT_MS ? rule->lease_ms : KEPT_MS);
        c->period_ms =
            f->entry->contenders && f->entry->contenders->length_ms ? f->entry->contenders->length_ms : KEPT_MS;
        c->leased = f->result->leased;
    }
    struct key_stats *key_stats = key_stats_find(f->entry, workload);
    if (workload && !c->workload) {
        c->workload = workload;
        workload_ref(workload);
        if (key_stats)
            workload_count(workload, key_stats, TALLY_ACQUIRED);
    }
    return c;
}

/* Ends renewal (F) for a session of its own that asks for its own lock for a whole lease, since it does not work under
 * it; and after ten leases for one that a refused release has made suspicious. */
static void forgotten(struct outcome *f, const struct workload *workload, struct key_stats *key_stats,
                      struct claim *c) {
    enum { SUSPICIOUS_LEASES = 10 };
    bool own = c->peer == f->peer;
    int64_t *since_ms = own ? &key_stats->asked_own_ms : &key_stats->suspected_ms;
    if (key_stats->live_fence != c->fence) {
        key_stats->live_fence = c->fence;
        key_stats->asked_own_ms = key_stats->suspected_ms = 0;
    }
    /* A one-shot client does not ask again, so that a refused release was not its own. */
    if (!own && (claim_one_shot(c) || !claim_suspicious(c, 0)))
        return;
    if (*since_ms == 0)
        *since_ms = f->now_ms;
    bool enough = f->now_ms - *since_ms >= (own ? 1 : SUSPICIOUS_LEASES) * claim_length(c);
    if (enough && (!own || workload_owns(workload, f->peer)))
        c->renewing = false;
}

/* Learns (B) what the loss of an attempt against a lease of the same identity says of the workload. */
static void learn_key_stats(struct outcome *f) {
    const struct lock_rule *rule = f->plan->rule;
    struct entry *en = outcome_entry(f);
    struct workload *workload = workload_join(f->sh, f->peer, rule, f->plan->workload, &f->plan->key, f->now_ms);
    struct claim *live = learn_its_own(f, workload);
    struct key_stats *key_stats = key_stats_get(en, workload);
    if (f->result->pooled && rule->owner == LOCK_OWNER_AUTO)
        workload_pool(f->sh, workload, &f->plan->key, f->now_ms);
    struct contender *w = contender_get(f->sh, en, f->peer);
    aftermath_lost(workload, key_stats, w, f->now_ms);
    workload_count(workload, key_stats, TALLY_LOST);
    if (key_stats->debts.count == KEY_STATS_DEBTS)
        (void)losses_take(&key_stats->debts);
    if (workload_shares(workload, f->peer, rule) && workload_losers_release(workload, key_stats))
        losses_add(&key_stats->debts, f->now_ms, f->peer->id);
    if (!live)
        return;
    if (claim_suspect(live, f->result->suspects))
        aftermath_refused(key_stats);
    aftermath_row(w, live);
    if (f->result->shifted_ms)
        claim_expect_until(live, f->now_ms + f->result->shifted_ms);
    if (live->peer == f->peer)
        live->self_lost = true;
    else
        live->contended = true;
    forgotten(f, workload, key_stats, live);
    outcome_schedule(f, live);
}

/* Whether the live lease is of the caller's identity, as the script says, or as is known here. */
static bool against_its_own(const struct outcome *f) {
    if (f->result->same)
        return true;
    for (const struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c->fence == f->result->fence && c->peer->client == f->peer->client)
            return true;
    return false;
}

/* The workload of the answer's session; NULL: nothing is known of it. */
static struct workload *learn_workload(const struct outcome *f) {
    return workload_find(f->sh, f->peer, f->plan->rule, f->plan->pattern);
}

/* Finds the claim of the live lease, which holds this value, if the lease is of the session's client. */
static void learn_value(struct outcome *f, struct workload *workload, const char *value, size_t len) {
    const struct lock_result *r = f->result;
    if (r->outcome != LOCK_HELD || !r->same || f->entry->live_fence != r->fence)
        return;
    struct claim *c = learn_its_own(f, workload);
    if (!c)
        return;
    claim_holds(f, c, value, len);
    outcome_schedule(f, c);
}

bool learn_answered(struct outcome *f) {
    const struct lock_result *r = f->result;
    if (f->peer->closed || !r->shown || !r->value)
        return false;
    struct workload *workload = learn_workload(f);
    outcome_entry(f);
    learn_live(f, r->fence, LEASE_GONE);
    learn_value(f, workload, r->shown, r->shown_len);
    struct contender *w = contender_get(f->sh, f->entry, f->peer);
    w->tried = outcome_value(f);
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
    return recognise(f->sh, w, f->plan->rule, workload, r->fence, r->shown, r->shown_len, f->now_ms);
}

void learn_named(struct outcome *f) {
    const struct lock_result *r = f->result;
    const struct claim *c = entry_claims(f->entry);
    while (c && c->fence != r->fence)
        c = c->next;
    if (f->peer->closed || !r->value || (c ? c->peer == f->peer || c->peer->client != f->peer->client : !r->same))
        return;
    struct workload *workload = learn_workload(f);
    outcome_entry(f);
    learn_value(f, workload, r->value, r->value_len);
    struct contender *w = contender_get(f->sh, f->entry, f->peer);
    uint64_t named = outcome_value(f);
    if (!value_same_field(w->tried, named)) /* a script names a field, and not what the session tried to write there */
        w->tried = named;
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
    recognise(f->sh, w, f->plan->rule, workload, r->fence, r->value, r->value_len, f->now_ms);
}

void learn_repeated(struct outcome *f) {
    struct claim *c = f->plan->repeats ? apply_touched(f) : NULL;
    if (!c || c->peer == f->peer || c->fence != f->result->fence || f->peer->closed)
        return;
    struct contender *w = contender_get(f->sh, f->entry, f->peer);
    w->lost = w->released = false;
    w->lost_fence = w->recognised = c->fence;
    w->tried = c->value;
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
    heir_proved(f->sh, c, f->peer, f->now_ms);
    outcome_schedule(f, c);
}

void learn_lost_attempt(struct outcome *f) {
    f->sh->stats.lost++;
    contention_note(f->sh, &f->plan->key, f->hash, f->now_ms);
    learn_loss(f);
    bool live = f->entry && f->result->fence && f->entry->live_fence == f->result->fence;
    bool attempt = f->plan->verb == LOCK_ACQUIRE || f->plan->verb == LOCK_COUNT_UP;
    if (live && !f->peer->closed && attempt && against_its_own(f))
        learn_key_stats(f);
    (void)learn_answered(f);
}

void learn_shown(struct shard *sh, struct entry *en, struct peer *p, const struct workload *f,
                 const struct lock_rule *rule, uint64_t fence, const char *value, size_t len, int64_t now_ms) {
    struct contender *w = contender_get(sh, en, p);
    contender_see(w, fence, value, len);
    w->read_at = ledger_number(sh->engine);
    w->shown_since = true;
    learn_touched(sh, w, rule, now_ms);
    attribute_sighting(sh, en, p, f, rule, value, len);
    (void)recognise(sh, w, rule, f, fence, value, len, now_ms);
}

void learn_wrote(struct outcome *f) {
    if (f->peer->closed || !f->result->value)
        return;
    struct contender *w = contender_get(f->sh, outcome_entry(f), f->peer);
    contender_see(w, 0, f->result->value, f->result->value_len);
    w->wrote = true;
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
}

void learn_read(struct outcome *f) {
    const struct lock_result *r = f->result;
    if (f->peer->closed)
        return;
    if (outcome_refused(f) && r->value) {
        struct workload *workload = learn_workload(f);
        outcome_entry(f);
        learn_live(f, r->fence, LEASE_GONE);
        learn_value(f, workload, r->value, r->value_len);
        learn_shown(f->sh, f->entry, f->peer, workload, f->plan->rule, r->outcome == LOCK_HELD ? r->fence : 0, r->value,
                    r->value_len, f->now_ms);
    } else if (r->outcome == LOCK_FREE && f->entry) {
        struct contender *w = contender_find(f->entry, f->peer);
        if (w)
            contender_forget_seen(w);
    }
}
