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

/* Whether the lease made way well before its end: somebody has released it. Where its session is one worker's, it may
 * all the same be lost with its node, and its late release still to come. */
static bool made_way(const struct finish *f, const struct claim *c, enum lease_end why) {
    enum { SLACK_MS = 50 };
    bool early = !c->end_ms || c->end_ms > f->now_ms + (f->now_ms - f->plan->begun_ms) + SLACK_MS;
    return !c->uses && !c->ended &&
           (c->peer->remote || (early && (why == LEASE_GONE ? claim_spent_elsewhere(f->e, c) : claim_shared(c))));
}

/* Notes that a lease of this proxy's was released through another one: a crossing, and a release that D1 counts. */
static void released_elsewhere(struct finish *f, const struct claim *c) {
    if (c->family)
        family_count(c->family, contest_find(f->entry, c->family), TALLY_RELEASED);
    settle_crossing(f, c->family, c);
}

void learn_gone(struct finish *f, uint64_t fence, enum lease_end why) {
    struct entry *en = f->entry;
    if (!en || !fence)
        return;
    for (struct claim *c = en->claims, *next; c; c = next) {
        next = c->next;
        if (!c->fence || c->fence > fence)
            continue;
        enum lease_end how = c->fence < fence ? LEASE_GONE : why; /* what was taken is one lease */
        bool spent = c != f->claim && made_way(f, c, how);
        lease_end(f->sh, c, how, f->now_ms);
        if (spent && !c->peer->remote && how == LEASE_GONE && !claim_shared(c))
            released_elsewhere(f, c);
        if (spent)
            settle_spend(f, c);
        else if (c != f->claim) /* that one is the verb's */
            finish_schedule(f, c);
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
static bool says_nothing(const struct finish *f) {
    if (f->audit || !finish_refused(f))
        return false;
    for (const struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c->observed && claim_is_live(c, f->now_ms))
            return true;
    return false;
}

/* Learns that the lease with this fence is live, or was when Redis ran the script. */
static void learn_live(struct finish *f, uint64_t fence, enum lease_end why_others) {
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
    tenures_push_back(en, fence);
    en->gone_fence = fence - 1;
}

/* Learns that no lease was live, which concerns the one that was known when the command began. */
static void learn_none(struct finish *f) {
    if (f->entry && !says_nothing(f) && f->plan->attempt > f->entry->live_since)
        learn_gone(f, f->entry->live_fence, LEASE_GONE);
}

void learn(struct finish *f) {
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

uint64_t finish_value(const struct finish *f) {
    return f->plan->field ? f->plan->field : hash_bytes(&f->e->value_seed, f->result->value, f->result->value_len);
}

void learn_touched(struct shard *sh, struct witness *w, const struct lock_rule *rule, int64_t now_ms) {
    int64_t least = w->queue_rule && w->queue_rule->lease_ms > 10000 ? w->queue_rule->lease_ms : 10000;
    int64_t memory_ms =
        rule && rule->claim_memory_ms >= 0 ? rule->claim_memory_ms : 2 * entry_crowd(w->entry)->length_ms;
    w->touched_ms = now_ms;
    w->memory_ms = memory_ms > least ? memory_ms : least;
    if (!w->timer.place)
        timer_set(&sh->timers, &w->timer, now_ms + w->memory_ms);
}

/* A session that wanted the lock and did not get it is a loser: the lease in the way is not its own to release. A
 * session that asks once more with the value of the lease that it is recognised for is no loser. */
void learn_loss(struct finish *f) {
    if (f->peer->closed)
        return;
    struct witness *w = witness_get(f->sh, finish_entry(f), f->peer);
    uint64_t tried = f->result->value && f->plan->verb != LOCK_COUNT_UP ? finish_value(f) : 0;
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
static struct claim *learn_its_own(struct finish *f, struct family *family) {
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
        if (family)
            family->elsewhere = true;
    }
    if (c->peer->remote) {
        c->end_ms = f->now_ms + (rule->lease_ms > KEPT_MS ? rule->lease_ms : KEPT_MS);
        c->period_ms = f->entry->crowd && f->entry->crowd->length_ms ? f->entry->crowd->length_ms : KEPT_MS;
        c->leased = f->result->leased;
    }
    struct contest *contest = contest_find(f->entry, family);
    if (family && !c->family) {
        c->family = family;
        family_ref(family);
        if (contest)
            family_count(family, contest, TALLY_ACQUIRED);
    }
    return c;
}

/* Ends renewal (F) for a session of its own that asks for its own lock for a whole lease, since it does not work under
 * it; and after ten leases for one that a refused release has made suspicious. */
static void forgotten(struct finish *f, const struct family *family, struct contest *contest, struct claim *c) {
    enum { SUSPICIOUS_LEASES = 10 };
    bool own = c->peer == f->peer;
    int64_t *since_ms = own ? &contest->asked_own_ms : &contest->suspected_ms;
    if (contest->live_fence != c->fence) {
        contest->live_fence = c->fence;
        contest->asked_own_ms = contest->suspected_ms = 0;
    }
    /* A one-shot client does not ask again, so that a refused release was not its own. */
    if (!own && (claim_one_shot(c) || !claim_suspicious(c, 0)))
        return;
    if (*since_ms == 0)
        *since_ms = f->now_ms;
    bool enough = f->now_ms - *since_ms >= (own ? 1 : SUSPICIOUS_LEASES) * claim_length(c);
    if (enough && (!own || family_owns(family, f->peer)))
        c->renewing = false;
}

/* Learns (B) what the loss of an attempt against a lease of the same identity says of the family. */
static void learn_contest(struct finish *f) {
    const struct lock_rule *rule = f->plan->rule;
    struct entry *en = finish_entry(f);
    struct family *family = family_join(f->sh, f->peer, rule, f->plan->family, &f->plan->key, f->now_ms);
    struct claim *live = learn_its_own(f, family);
    struct contest *contest = contest_get(en, family);
    if (f->result->pooled && rule->owner == LOCK_OWNER_AUTO)
        family_pool(f->sh, family, &f->plan->key, f->now_ms);
    struct witness *w = witness_get(f->sh, en, f->peer);
    aftermath_lost(family, contest, w, f->now_ms);
    family_count(family, contest, TALLY_LOST);
    if (contest->debts.count == CONTEST_DEBTS)
        (void)losses_take(&contest->debts);
    if (family_shares(family, f->peer, rule) && family_losers_release(family, contest))
        losses_add(&contest->debts, f->now_ms, f->peer->id);
    if (!live)
        return;
    if (claim_suspect(live, f->result->suspects))
        aftermath_refused(contest);
    aftermath_row(w, live);
    if (f->result->shifted_ms)
        claim_expect_until(live, f->now_ms + f->result->shifted_ms);
    if (live->peer == f->peer)
        live->self_lost = true;
    else
        live->contended = true;
    forgotten(f, family, contest, live);
    finish_schedule(f, live);
}

/* Whether the live lease is of the caller's identity, as the script says, or as is known here. */
static bool against_its_own(const struct finish *f) {
    if (f->result->same)
        return true;
    for (const struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c->fence == f->result->fence && c->peer->client == f->peer->client)
            return true;
    return false;
}

/* The family of the answer's session; NULL: nothing is known of it. */
static struct family *learn_family(const struct finish *f) {
    return family_find(f->sh, f->peer, f->plan->rule, f->plan->pattern);
}

/* Finds the claim of the live lease, which holds this value, if the lease is of the session's client. */
static void learn_value(struct finish *f, struct family *family, const char *value, size_t len) {
    const struct lock_result *r = f->result;
    if (r->outcome != LOCK_HELD || !r->same || f->entry->live_fence != r->fence)
        return;
    struct claim *c = learn_its_own(f, family);
    if (!c)
        return;
    claim_holds(f, c, value, len);
    finish_schedule(f, c);
}

bool learn_answered(struct finish *f) {
    const struct lock_result *r = f->result;
    if (f->peer->closed || !r->shown || !r->value)
        return false;
    struct family *family = learn_family(f);
    finish_entry(f);
    learn_live(f, r->fence, LEASE_GONE);
    learn_value(f, family, r->shown, r->shown_len);
    struct witness *w = witness_get(f->sh, f->entry, f->peer);
    w->tried = finish_value(f);
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
    return recognise(f->sh, w, f->plan->rule, family, r->fence, r->shown, r->shown_len, f->now_ms);
}

void learn_named(struct finish *f) {
    const struct lock_result *r = f->result;
    const struct claim *c = entry_claims(f->entry);
    while (c && c->fence != r->fence)
        c = c->next;
    if (f->peer->closed || !r->value || (c ? c->peer == f->peer || c->peer->client != f->peer->client : !r->same))
        return;
    struct family *family = learn_family(f);
    finish_entry(f);
    learn_value(f, family, r->value, r->value_len);
    struct witness *w = witness_get(f->sh, f->entry, f->peer);
    uint64_t named = finish_value(f);
    if (!value_same_field(w->tried, named)) /* a script names a field, and not what the session tried to write there */
        w->tried = named;
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
    recognise(f->sh, w, f->plan->rule, family, r->fence, r->value, r->value_len, f->now_ms);
}

void learn_repeated(struct finish *f) {
    struct claim *c = f->plan->repeats ? settle_touched(f) : NULL;
    if (!c || c->peer == f->peer || c->fence != f->result->fence || f->peer->closed)
        return;
    struct witness *w = witness_get(f->sh, f->entry, f->peer);
    w->lost = w->released = false;
    w->lost_fence = w->recognised = c->fence;
    w->tried = c->value;
    learn_touched(f->sh, w, f->plan->rule, f->now_ms);
    heir_proved(f->sh, c, f->peer, f->now_ms);
    finish_schedule(f, c);
}

void learn_lost_attempt(struct finish *f) {
    f->sh->stats.lost++;
    contention_note(f->sh, &f->plan->key, f->hash, f->now_ms);
    learn_loss(f);
    bool live = f->entry && f->result->fence && f->entry->live_fence == f->result->fence;
    bool attempt = f->plan->verb == LOCK_ACQUIRE || f->plan->verb == LOCK_COUNT_UP;
    if (live && !f->peer->closed && attempt && against_its_own(f))
        learn_contest(f);
    (void)learn_answered(f);
}

void learn_shown(struct shard *sh, struct entry *en, struct peer *p, const struct family *f,
                 const struct lock_rule *rule, uint64_t fence, const char *value, size_t len, int64_t now_ms) {
    struct witness *w = witness_get(sh, en, p);
    witness_see(w, fence, value, len);
    w->read_at = ledger_number(sh->engine);
    w->shown_since = true;
    learn_touched(sh, w, rule, now_ms);
    attribute_sighting(sh, en, p, f, rule, value, len);
    (void)recognise(sh, w, rule, f, fence, value, len, now_ms);
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
        struct family *family = learn_family(f);
        finish_entry(f);
        learn_live(f, r->fence, LEASE_GONE);
        learn_value(f, family, r->value, r->value_len);
        learn_shown(f->sh, f->entry, f->peer, family, f->plan->rule, r->outcome == LOCK_HELD ? r->fence : 0, r->value,
                    r->value_len, f->now_ms);
    } else if (r->outcome == LOCK_FREE && f->entry) {
        struct witness *w = witness_find(f->entry, f->peer);
        if (w)
            witness_forget_seen(w);
    }
}
