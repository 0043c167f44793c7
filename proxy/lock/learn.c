/*
 * Learns from an answer which lease is live, which leases have ended, and what the session has lost or was shown.
 *
 * Answers may come in another order than Redis ran the scripts in. A newer lease, by its fence, proves that the older
 * leases have ended. A command that found the lock free proves the end of a lease that was known, by the command's
 * token number, before it began.
 */
#include "proxy/lock/outcome.h"

#include "proxy/base/memory.h"

/* C6: whether the lease made way well before its end, so that a release has used up its claim. A dedicated session's
 * may be lost with its node: its late release is still to come. */
static bool made_way(const struct outcome *f, const struct claim *c, enum lease_end why) {
    enum { SLACK_MS = 50 };
    bool early = !c->end_ms || c->end_ms > f->now_ms + (f->now_ms - f->plan->begun_ms) + SLACK_MS;
    return !c->uses && !claim_ended(c) &&
           (c->peer->remote || (early && (why == LEASE_GONE ? claim_spent_elsewhere(f->e, c) : claim_pooled(c))));
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
        /* C6: a lease of this proxy was released through another proxy. That is a crossing, and a release for D1. */
        if (spent && !c->peer->remote && why == LEASE_GONE && !claim_pooled(c) && c->workload) {
            workload_count(c->workload, key_stats_find(en, c->workload), TALLY_RELEASED);
            outcome_crossing(f, c->workload, c);
        }
        if (spent)
            outcome_spend(f, c);
        else if (c != f->claim) /* apply handles the plan's claim */
            outcome_schedule(f, c);
    }
    if (fence > en->gone_fence && fence > en->live_fence)
        en->live_since = atomic_load(&f->e->attempts);
    if (fence > en->gone_fence)
        en->gone_fence = fence;
    if (en->live_fence <= en->gone_fence)
        en->live_fence = 0;
}

/* Whether an answer says nothing about the live lock. Redis has no guard record of a lock that was acquired under
 * audit, and a failover may forget a lock under quorum, or show an attempt that the witnesses will not confirm. */
static bool says_nothing(const struct outcome *f) {
    bool refused = outcome_refused(f);
    if (f->audit || !(refused || f->result->outcome == LOCK_FREE || f->result->outcome == LOCK_OPEN))
        return false;
    for (const struct claim *c = entry_claims(f->entry); c; c = c->next)
        if ((c->rule->quorum == LOCK_QUORUM_YES || (c->observed && refused)) && claim_is_live(c, f->now_ms))
            return true;
    return false;
}

/* S2: the lease with this fence is live, or was when Redis ran the script. Every older lease has ended. */
static void learn_live(struct outcome *f, uint64_t fence, enum lease_end why_others) {
    struct entry *en = f->entry;
    if (!en || !fence || fence <= en->gone_fence || fence <= en->live_fence || says_nothing(f))
        return;
    learn_gone(f, fence - 1, why_others);
    en->live_fence = fence;
    en->live_since = atomic_load(&f->e->attempts);
}

/* Learns from a grant whose fence is not above all that were known when the command began: the guard record was lost
 * and the node's clock is behind, as after a failover. The known leases have ended; their fences are set back behind
 * it. */
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
    for (struct tenure *t = entry_tenures(en); t; t = t->next)
        if (t->fence >= fence)
            t->fence = fence - 1;
    en->gone_fence = fence - 1;
}

/* Learns that the lease with the answer's fence was released; older leases had ended before. */
static void learn_released(struct outcome *f) {
    if (f->result->fence)
        learn_gone(f, f->result->fence - 1, LEASE_GONE);
    learn_gone(f, f->result->fence, f->plan->verb == LOCK_OPERATOR ? LEASE_FORCED : LEASE_TAKEN);
}

void learn(struct outcome *f) {
    bool swapped = f->plan->verb == LOCK_SWAP || f->plan->verb == LOCK_REWRITE;
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
        /* No lease was live when Redis ran the script. That ends a lease which was known before the command began. */
        if (f->entry && !says_nothing(f) && f->plan->attempt > f->entry->live_since)
            learn_gone(f, f->entry->live_fence, LEASE_GONE);
        break;
    case LOCK_ERROR:
    case LOCK_UNCONFIRMED:
    case LOCK_REMEMBERED:
    case LOCK_OVERTAKEN:
    case LOCK_NOT_SENT:
    case LOCK_UNKNOWN:
        break;
    }
}

/* ---- contenders ------------------------------------------------------------------------------- */

/* B1: the session wanted the lock and did not get it, so it is a loser. Exception (K): a session that asks again with
 * the value of the lease that it is recognised for is no loser. */
void learn_loss(struct outcome *f) {
    if (f->peer->closed)
        return;
    struct contender *w = contender_get(f->sh, outcome_entry(f), f->peer);
    bool number = f->plan->verb == LOCK_COUNT_UP && !f->plan->field; /* a counter's value is no worker's */
    uint64_t tried = f->result->value && !number ? outcome_value(f) : 0;
    if (w->recognised && w->recognised == f->result->fence && w->tried == tried)
        return;
    struct lock_session *s = f->peer->session;
    if (s && atomic_load(&s->attends)) { /* a session that is refused a lock is no successor of one that has closed */
        pthread_mutex_lock(&f->e->clients.mutex);
        if (s->orphan)
            orphan_offer(s->orphan);
        pthread_mutex_unlock(&f->e->clients.mutex);
    }
    contention_waited(f->sh, w, f->plan, f->now_ms);
    w->lost = true;
    w->released = w->release_due = false;
    w->sent_ms = f->now_ms;
    w->shown_since = false;
    w->held_ms = 0;
    w->tried = tried;
    w->recognised = 0;
    if (f->result->fence && w->lost_fence != f->result->fence) {
        w->lost_fence = f->result->fence;
        w->suspicious_row = 0;
    }
    contender_touched(f->sh, w, f->plan->rule, f->now_ms);
    learn_live(f, f->result->fence, LEASE_GONE);
}

/* Finds the claim of the live lease, which belongs to the session's client. If another proxy gave the lease, a claim
 * with a peer of its own is made for it here, and kept while sessions meet the lease. NULL: the answer to the
 * acquisition has not come yet, or the claim is forgotten. */
static struct claim *learn_its_own(struct outcome *f, struct workload *workload) {
    enum { KEPT_MS = 30000 };
    const struct lock_rule *rule = f->plan->rule;
    struct claim *c = claim_of_fence(f->entry, f->result->fence, NULL);
    if (!c && !f->result->elsewhere)
        return NULL;
    if (!c) {
        uint64_t token = ledger_number(f->e);
        struct peer *owner = peer_add(f->sh, PEER_ELSEWHERE | ledger_number(f->e), f->peer->client);
        owner->remote = true;
        c = claim_add(f->sh, f->entry, owner, rule, token, f->result->fence);
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
        c->workload = workload_ref(workload);
        if (key_stats)
            workload_count(workload, key_stats, TALLY_ACQUIRED);
    }
    return c;
}

/* Ends the renewal of a lease in two cases: a dedicated session asks in vain for its own lock for a whole lease, so its
 * worker has forgotten the release; or the lease has been suspicious for ten leases. */
static void forgotten(struct outcome *f, const struct workload *workload, struct key_stats *key_stats,
                      struct claim *c) {
    enum { SUSPICIOUS_LEASES = 10 };
    bool own = c->peer == f->peer;
    int64_t *since_ms = own ? &key_stats->asked_own_ms : &key_stats->suspected_ms;
    if (key_stats->live_fence != c->fence) {
        key_stats->live_fence = c->fence;
        key_stats->asked_own_ms = key_stats->suspected_ms = 0;
    }
    /* a one-shot client does not ask again, so the refused release was another session's */
    if (!own && (claim_one_shot(c) || !claim_suspicious(c)))
        return;
    if (*since_ms == 0)
        *since_ms = f->now_ms;
    bool enough = f->now_ms - *since_ms >= (own ? 1 : SUSPICIOUS_LEASES) * claim_length(c);
    if (enough && (!own || workload_dedicated(workload, f->peer)))
        c->renewing = false;
}

/* The workload's statistics on the key, made if there are none. */
static struct key_stats *key_stats_get(struct entry *en, struct workload *f) {
    struct key_stats *c = key_stats_find(en, f);
    if (c)
        return c;
    c = memory_zalloc(sizeof(*c));
    c->workload = workload_ref(f);
    struct contenders *contenders = entry_contenders(en);
    c->next = contenders->key_stats;
    contenders->key_stats = c;
    for (const struct claim *held = en->claims; held; held = held->next)
        if (held->workload == f) {
            if (held->valued)
                key_stats_value(c, held->value);
            if (!claim_ended(held))
                workload_count(f, c, TALLY_ACQUIRED);
        }
    return c;
}

/* B: learns what an attempt that was lost against a lease of the same client says of the workload. */
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
    /* D1: over a pooled session, each lost attempt expects a release. */
    if (workload_pooled(workload, f->peer, rule) && workload_losers_release(workload, key_stats))
        losses_add(&key_stats->debts, f->now_ms, f->peer->id);
    if (!live)
        return;
    if (claim_suspect(live, f->result->suspects))
        key_stats->unlike_losers = 0;
    if (!claim_suspicious(live)) /* B2: ends the row of attempts that were lost against a suspicious lease */
        w->suspicious_row = 0;
    else if (w->suspicious_row < UINT8_MAX)
        w->suspicious_row++;
    /* C3: through another proxy, a release was counted for an older lease. It may have been this lease's. */
    if (f->result->shifted_ms)
        claim_expect_until(live, f->now_ms + f->result->shifted_ms);
    bool delayed = rule->lock_delay_ms > 0 && !f->result->same; /* Redis says that the lease is over */
    if (live->peer != f->peer)
        live->contended = true;
    else if (!delayed)
        live->self_lost = true;
    forgotten(f, workload, key_stats, live);
    outcome_schedule(f, live);
}

/* Gives the claim of the live lease the value that the lock holds, if the lease belongs to the session's client. */
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

/* K1: the session was shown the lock's value, or named it. Returns whether it is recognised for the lease. */
static bool learn_known(struct outcome *f, const char *value, size_t len) {
    struct workload *workload = outcome_workload(f);
    outcome_entry(f);
    learn_value(f, workload, value, len);
    struct contender *w = contender_get(f->sh, f->entry, f->peer);
    uint64_t tried = outcome_value(f);
    if (f->plan->verb != LOCK_SCRIPT || !value_same_field(w->tried, tried))
        w->tried = tried; /* a script names the field, and not its content */
    contender_touched(f->sh, w, f->plan->rule, f->now_ms);
    return recognise(f->sh, w, f->plan->rule, workload, f->result->fence, value, len, f->now_ms);
}

bool learn_answered(struct outcome *f) {
    const struct lock_result *r = f->result;
    if (f->peer->closed || !r->shown || !r->value)
        return false;
    outcome_entry(f);
    learn_live(f, r->fence, LEASE_GONE);
    return learn_known(f, r->shown, r->shown_len);
}

void learn_named(struct outcome *f) {
    const struct lock_result *r = f->result;
    const struct claim *c = claim_of_fence(f->entry, r->fence, NULL);
    bool same = c ? c->peer != f->peer && c->peer->client == f->peer->client : r->same;
    if (!f->peer->closed && r->value && same)
        (void)learn_known(f, r->value, r->value_len);
}

void learn_repeated(struct outcome *f) {
    struct claim *c = f->plan->repeats ? outcome_touched(f) : NULL;
    if (!c || c->peer == f->peer || c->fence != f->result->fence || f->peer->closed)
        return;
    struct contender *w = contender_get(f->sh, f->entry, f->peer);
    w->lost = w->released = false;
    w->lost_fence = w->recognised = c->fence;
    w->tried = c->value;
    contender_touched(f->sh, w, f->plan->rule, f->now_ms);
    successor_proved(f->sh, c, f->peer, f->now_ms);
    outcome_schedule(f, c);
}

void learn_lost_attempt(struct outcome *f) {
    f->sh->stats.lost++;
    contention_note(f->sh, &f->plan->key, f->plan->hash, f->now_ms);
    learn_loss(f);
    bool live = f->entry && f->result->fence && f->entry->live_fence == f->result->fence;
    bool attempt = f->plan->verb == LOCK_ACQUIRE || f->plan->verb == LOCK_COUNT_UP;
    /* Against a lease of its own client, as the script says or as this proxy knows. */
    if (live && !f->peer->closed && attempt &&
        (f->result->same || claim_of_fence(f->entry, f->result->fence, f->peer->client)))
        learn_key_stats(f);
    (void)learn_answered(f);
}

/* Notes what the session was shown, or what it wrote itself. */
static void note_seen(struct contender *w, bool wrote, uint64_t fence, const char *value, size_t len) {
    w->read_fence = fence;
    w->wrote = wrote;
    w->seen_known = len <= LOCK_SEEN_MAX;
    if (!w->seen_known)
        return;
    if (len > w->seen_cap) {
        w->seen = memory_realloc(w->seen, len);
        w->seen_cap = (uint32_t)len;
    }
    if (len)
        memcpy(w->seen, value, len);
    w->seen_len = (uint32_t)len;
}

void learn_shown(struct shard *sh, struct entry *en, struct peer *p, const struct workload *f,
                 const struct lock_rule *rule, uint64_t fence, const char *value, size_t len, int64_t now_ms) {
    struct contender *w = contender_get(sh, en, p);
    note_seen(w, false, fence, value, len);
    w->read_at = ledger_number(sh->engine);
    w->shown_since = true;
    contender_touched(sh, w, rule, now_ms);
    uint64_t hash = hash_bytes(&sh->engine->value_seed, value, len);
    bool pooled = workload_pooled(f, p, rule);
    uint64_t now = ledger_number(sh->engine);
    for (struct claim *c = en->claims; c; c = c->next) /* the claims with this value that the session may use */
        if (c->valued && c->value == hash && (c->peer == p || (pooled && c->peer->client == p->client)))
            claim_extra(c)->sighted = now;
    (void)recognise(sh, w, rule, f, fence, value, len, now_ms);
}

void learn_wrote(struct outcome *f) {
    if (f->peer->closed || !f->result->value)
        return;
    struct contender *w = contender_get(f->sh, outcome_entry(f), f->peer);
    note_seen(w, true, 0, f->result->value, f->result->value_len);
    contender_touched(f->sh, w, f->plan->rule, f->now_ms);
}

void learn_read(struct outcome *f) {
    const struct lock_result *r = f->result;
    if (f->peer->closed)
        return;
    if (outcome_refused(f) && r->value) {
        struct workload *workload = outcome_workload(f);
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
