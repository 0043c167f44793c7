/* Applies an answer to claims: makes them, spends them or gives them back, starts and ends their renewal, and reports
 * incidents. learn.c has learnt before which lease is live. */
#include "proxy/lock/outcome.h"
#include "proxy/lock/thresholds.h"

#include <stdio.h>

/* Whether the claim's worker acquires now, so that the claim is dropped. A1: one worker does one thing after another.
 * Exception: a claim against which its own session has lost attempts may be a colleague's. A2: where values vary, a
 * worker that writes an earlier claim's value has come back to it. */
static bool comes_back(const struct outcome *f, const struct workload *workload, const struct claim *c, bool pooled,
                       bool vary, uint64_t hash) {
    bool own = c->peer == f->peer;
    if (c->peer->client != f->peer->client || c->token == f->plan->attempt || c->fence > f->result->fence)
        return false;
    if (c->peer->remote && c->fence == f->result->fence) /* another session met the lease before this answer came */
        return true;
    if (own && !pooled &&
        (!c->self_lost || c->lease == LEASE_AWAITS_OWNER || f->plan->rule->owner == LOCK_OWNER_CONNECTION ||
         workload_dedicated(workload, f->peer)))
        return true;
    return vary && c->valued && c->value == hash && (own || pooled || c->peer->closed);
}

static void drop_older(struct outcome *f, const struct workload *workload, const struct key_stats *key_stats) {
    const struct lock_result *r = f->result;
    uint64_t hash = r->value ? outcome_value(f) : 0;
    bool pooled = workload_pooled(workload, f->peer, f->plan->rule);
    /* A2: whether one of the key's last acquisitions, or a claim of the client, has another value. */
    bool vary = r->value && key_stats && key_stats_varies(key_stats, hash);
    for (const struct claim *c = f->entry->claims; c && r->value && !vary; c = c->next)
        vary = c->peer->client == f->peer->client && c->valued && c->value != hash;
    for (struct claim *c = f->entry->claims, *next; c; c = next) {
        next = c->next;
        if (comes_back(f, workload, c, pooled, vary, hash))
            outcome_spend(f, c);
    }
}

/* The command's transaction, for claim->told_by. The low half of the number tells it from all commands in flight. */
static uint32_t group_of(const struct lock_plan *plan) {
    return (uint32_t)(plan->group ? plan->group : plan->attempt);
}

inline struct claim *outcome_claim(struct outcome *f, uint64_t fence) {
    struct claim *c = claim_add(f->sh, f->entry, f->peer, f->plan->rule, f->plan->attempt, fence);
    if (f->claim)
        f->claim = claim_find(f->entry, f->plan->claim);
    c->login = f->plan->login;
    c->granted_ms = f->now_ms;
    c->queue = lock_verb_is(f->plan->verb, VERB_QUEUE);
    claim_value(f, c);
    return c;
}

static inline struct claim *claim_granted(struct outcome *f) {
    const struct lock_result *r = f->result;
    struct workload *workload =
        workload_join(f->sh, f->peer, f->plan->rule, f->plan->workload, &f->plan->key, f->now_ms);
    struct claim *c = outcome_claim(f, r->fence);
    c->workload = workload_ref(workload);
    c->told = atomic_load(&f->e->attempts);
    c->told_by = group_of(f->plan);
    c->observed = f->audit;
    lease_set(f->sh, c, r->pttl_ms, r->leased, f->plan->begun_ms, f->now_ms);
    c->short_record = r->short_record;
    if (c->rule->fenced)
        tenure_begin(f->sh, c, c->rule);
    if (f->entry->contenders)
        f->entry->contenders->length_ms = claim_length(c);
    f->sh->stats.granted++;
    return c;
}

void apply_acquired(struct outcome *f) {
    histogram_note(&f->sh->stats.waits, 0);
    outcome_schedule(f, claim_granted(f));
}

void apply_granted(struct outcome *f) {
    const struct lock_rule *rule = f->plan->rule;
    const struct lock_result *r = f->result;
    struct entry *en = outcome_entry(f);
    struct contender *w = contender_find(en, f->peer);
    histogram_note(&f->sh->stats.waits, w && w->lost ? (f->now_ms - w->lost_ms) * 1000 : 0);
    if (w) {
        if (w->lost)
            contention_waited(f->sh, w, f->plan, f->now_ms);
        w->lost = w->released = w->release_due = false;
        w->lost_fence = w->recognised = 0;
        w->lost_row = w->suspicious_row = 0;
        w->held_ms = 0;
        if (rule->owner == LOCK_OWNER_CONNECTION)
            contender_forget_seen(w);
    }
    struct claim *c = NULL;
    if (f->plan->right == RIGHT_RELEASE_THEN_ACQUIRE && f->plan->claim_fence)
        c = claim_of_fence(en, f->plan->claim_fence, f->peer->client);
    if (c && c->workload) { /* B2: the attempt has released this lease, which had to make way */
        aftermath_mistaken(c->workload, key_stats_find(en, c->workload));
        workload_vote(f->sh, c->workload, f->peer, c->peer, &f->plan->key, f->now_ms);
        outcome_spend(f, c);
    }
    c = claim_granted(f);
    struct key_stats *key_stats = key_stats_find(en, c->workload);
    drop_older(f, c->workload, key_stats);
    if (key_stats) {
        aftermath_tries_again(c->workload, key_stats, f->peer);
        workload_count(c->workload, key_stats, TALLY_ACQUIRED);
        if (c->valued)
            key_stats_value(key_stats, c->value);
    }
    if (r->fence < en->live_fence || r->fence <= en->gone_fence) /* a later answer came first */
        lease_end(f->sh, c, LEASE_TAKEN, f->now_ms);
    if (r->leased)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, outcome_occasion(f),
                        c->renewing ? "lease of %lld ms given, renewed while its owner is connected"
                                    : "lease of %lld ms given",
                        (long long)rule->lease_ms);
    else if (r->pttl_ms == PTTL_NONE && f->audit && rule->lease_ms)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, outcome_occasion(f), "would be given a lease of %lld ms%s",
                        (long long)rule->lease_ms,
                        rule->renew == LOCK_RENEW_NEVER ? "" : ", renewed while its owner is connected");
    else if (r->pttl_ms == PTTL_NONE)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, outcome_occasion(f),
                        "left without an expiry: the rule gives no lease");
    if (f->peer->closed && !lease_owner_here(c))
        lease_abandon(f->sh, c, f->now_ms);
    outcome_schedule(f, c);
}

/* Makes a claim for an attempt that may have acquired, so that a release behind it is not refused as another session's.
 * The proxy renews nothing for it. */
static void apply_unknown_acquisition(struct outcome *f) {
    const struct lock_rule *rule = f->plan->rule;
    if (f->claim && claim_is_live(f->claim, f->now_ms))
        return; /* the command may have changed the live claim, and acquires no other lease */
    outcome_entry(f);
    struct claim *c = outcome_claim(f, 0);
    c->end_ms = f->now_ms + rule->lease_ms;
    c->period_ms = rule->lease_ms;
    c->reported = true;
    outcome_schedule(f, c);
}

void apply_done(struct outcome *f) {
    struct claim *c = outcome_touched(f);
    if (!c)
        return;
    int64_t end_ms = c->end_ms;
    if (f->plan->verb == LOCK_EXTEND || f->plan->verb == LOCK_REWRITE)
        c->vouched = true;
    if (!c->fence) { /* the acquisition's answer was lost: this answer shows that it acquired */
        c->fence = f->result->fence;
        c->reported = !lease_owner_here(c);
        tenure_begin(f->sh, c, c->rule);
    }
    if (f->plan->verb == LOCK_PASS && !f->result->value)
        c->valued = false; /* the value was changed in place, and is not known now */
    else if (f->plan->verb != LOCK_EXTEND)
        claim_value(f, c);
    /* Under audit and within a transaction, the answers come in the order in which Redis ran the commands. */
    bool in_order = f->audit || (f->plan->group && c->told_by && c->told_by == group_of(f->plan));
    uint64_t began = in_order ? UINT64_MAX : f->plan->attempt;
    struct lock_result told = *f->result;
    told.short_record |= c->short_record && f->plan->verb == LOCK_EXTEND; /* extend.lua leaves it so, as a rule */
    /* The expiry that a colleague's command found may be older than the expiry that the holder has set since. */
    if (told.outcome == LOCK_ADOPTED && began <= c->told)
        told.leased = told.leased && c->leased;
    /* An expiry that was found unchanged says nothing about one that the holder may be setting now. */
    uint64_t told_before = c->told;
    int64_t left_ms = told.pttl_ms < FAR_MS ? told.pttl_ms : FAR_MS;
    int64_t inexact_ms = f->now_ms - f->plan->begun_ms + 50, moved_ms = f->now_ms + left_ms - end_ms;
    bool stays = left_ms >= 0 && end_ms && moved_ms <= inexact_ms && moved_ms >= -inexact_ms;
    bool unchanged = told.outcome == LOCK_ADOPTED && told.leased == c->leased && (told.leased || stays);
    if (lease_told(f->sh, c, &told, began, f->plan->begun_ms, f->now_ms))
        c->told_by = group_of(f->plan);
    if (unchanged)
        c->told = told_before;
    /* C5: a SET XX that leaves the lock less than half of its time may be a release: no release is expected after the
     * new end. A SET XX that moves the end to later is an extension. Under `owner any` it may be any session's. */
    bool rewritten = f->plan->verb == LOCK_REWRITE && c->end_ms && !c->leased && f->plan->rule->owner != LOCK_OWNER_ANY;
    if (rewritten && end_ms && expiry_releases(c->end_ms - f->now_ms, end_ms - f->now_ms))
        claim_extra(c)->deadline_ms = c->end_ms;
    else if (rewritten && c->extra && c->end_ms > end_ms)
        c->extra->deadline_ms = 0;
    outcome_schedule(f, c);
}

/* Gives a reserved claim back, because its release was not carried out. */
static void restore(struct outcome *f) {
    struct claim *c = f->claim;
    if (!c || !claim_releasing(c) || f->plan->queued) /* queued: the reservation is another release's */
        return;
    claim_release_undone(c);
    if (f->plan->undone) { /* G1: EXEC did nothing, since the value that the session was shown had changed */
        if (c->extra)
            c->extra->sighted = 0;
        if (claim_ended(c))
            claim_extra(c)->deadline_ms = c->end_ms;
    }
    outcome_schedule(f, c);
}

/* Takes back the count of a release that was not sent, or was refused by Redis, or whose EXEC did nothing (G1). */
static void uncount(struct outcome *f) {
    const struct lock_plan *plan = f->plan;
    struct workload *workload = outcome_workload(f);
    struct contender *w = plan->first_release ? contender_find(f->entry, f->peer) : NULL;
    if (w)
        w->released = false;
    if (workload && plan->twice && workload->twice)
        workload->twice--;
    if (workload && plan->counted)
        workload_uncount(workload, key_stats_find(f->entry, workload));
}

static void report_refused_release(struct outcome *f) {
    f->sh->stats.refused_releases++;
    if (!f->plan->claim) {
        outcome_refusal(f, INCIDENT_FOREIGN_RELEASE, "this client holds no lease of the lock");
        return;
    }
    char why[96] = "the lease that it was for has ended, another one is live";
    int64_t late_ms = f->claim && f->claim->end_ms ? f->now_ms - f->claim->end_ms : 0;
    if (late_ms > 0)
        snprintf(why, sizeof(why), "its own lease had ended %lld ms before, another one is live", (long long)late_ms);
    outcome_refusal(f, INCIDENT_LATE_RELEASE, why);
    if (!f->plan->several || !f->result->fence)
        return;
    for (struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c != f->claim && c->fence == f->result->fence && c->peer->client == f->peer->client) {
            outcome_refusal(f, INCIDENT_AMBIGUOUS,
                            "it counts for the older of several leases; to tell workers apart: owner connection, a "
                            "connection a worker for locks, CLIENT SETNAME a worker, or values of their own with read, "
                            "compare, delete");
            break;
        }
}

/* ---- C: releases --------------------------------------------------------------------------------- */

/* The claim of the client's live lease that has refused the release, or was released by it. */
static struct claim *its_own_live(const struct outcome *f) {
    return f->result->fence ? claim_of_fence(f->entry, f->result->fence, f->peer->client) : NULL;
}

/* C3: gives the live claim the deadline of the older claim that the release has used. A missed release shifts later
 * releases only until its own deadline. */
static void inherit_deadline(const struct outcome *f, const struct claim *used) {
    struct claim *live = its_own_live(f);
    const struct workload *workload = outcome_workload(f);
    if (!live || live == used || (live->peer != f->peer && !workload_pooled(workload, f->peer, f->plan->rule)))
        return;
    claim_expect_until(live, claim_deadline(f->sh, used));
}

/* Learns whether the release came over the session that had acquired. */
static void learn_course(struct outcome *f, const struct claim *used, bool freed) {
    struct workload *workload = used->workload;
    if (!workload)
        return;
    if (used->peer != f->peer) {
        if (!used->peer->closed)
            workload_crossed(workload, f->peer, used->peer);
    } else if (freed && release_shows_dedicated(used->contended, used->self_lost)) {
        struct session_stats *h = session_stats_find(f->peer, workload);
        if (workload->row < UINT8_MAX && ++workload->row == WORKLOAD_ROW)
            facts_tell(workload);
        if (h && h->row < UINT8_MAX)
            h->row++;
    }
}

/* C4: applies a release that was believed. If a session that has never tried for a lock of the workload sent it, and
 * the holder's session is dedicated or the workload's losers release, the claim waits for the holder's own release. */
static void apply_believed(struct outcome *f) {
    struct claim *live = its_own_live(f);
    struct workload *workload = outcome_workload(f);
    bool tried = workload && session_stats_find(f->peer, workload);
    /* C6: this proxy has not met the other proxy's lease: D1 counts the acquisition with the release. */
    if (!live && workload)
        workload_count(workload, key_stats_find(f->entry, workload), TALLY_ACQUIRED);
    if (!tried)
        incident_report(f->sh, INCIDENT_BELIEVED, outcome_occasion(f),
                        "released: this connection never tried for the lock, and is of the holder's client");
    bool own =
        workload && live && (workload_dedicated(workload, live->peer) || (workload->facts & FACT_LOSERS_RELEASE));
    bool waits = !tried && own && !live->peer->remote;
    if (!waits) {
        /* If the session's own lease was released over another session, this may be its late release: no crossing. */
        struct contender *w = contender_find(f->entry, f->peer);
        if (!w || !w->release_due)
            outcome_crossing(f, workload, live);
        if (w)
            w->release_due = false;
        if (live && live->peer != f->peer && !live->peer->remote && !live->peer->closed) {
            struct contender *holder = contender_get(f->sh, f->entry, live->peer);
            holder->release_due = true;
            contender_touched(f->sh, holder, f->plan->rule, f->now_ms);
        }
        outcome_spend(f, live);
    } else { /* the claim is kept for no longer than its lease can have gone on */
        claim_extra(live)->deadline_ms = f->now_ms + (claim_length(live) ? claim_length(live) : claim_memory(live));
        lease_end(f->sh, live, LEASE_TAKEN, f->now_ms);
        if (live->lease != LEASE_AWAITS_OWNER)
            claim_lease_enter(live, LEASE_AWAITS_OWNER);
        outcome_schedule(f, live);
    }
}

/* C6: applies a release by a claim that another proxy had released before. The release was for the live lease. */
static void apply_spent_elsewhere(struct outcome *f) {
    struct claim *live = its_own_live(f);
    atomic_store(&f->e->elsewhere, true);
    outcome_crossing(f, f->claim ? f->claim->workload : NULL, live);
    if (live != f->claim)
        outcome_spend(f, live);
}

/* Counts a refused release that may have been for the live lease. C6: that may be so if the release's claim was
 * released through another proxy before: the workload may be pooled and another proxy serves it, or the session has
 * acquired the live lease itself. Otherwise the claim's lease has just ended, a little earlier than was known. */
static void apply_suspected(struct outcome *f) {
    struct claim *live = its_own_live(f);
    bool spent = f->plan->right == RIGHT_SPENT && live && f->claim &&
                 (live->peer == f->peer || claim_spent_elsewhere(f->e, f->claim));
    if (!live || (f->plan->right != RIGHT_SUSPECT && !spent))
        return;
    bool counted = f->result->suspects || f->plan->verb == LOCK_REWRITE; /* scripts count no SET XX that extends */
    struct key_stats *key_stats = key_stats_find(f->entry, live->workload);
    if (claim_suspect(live, counted ? f->result->suspects : live->suspects + 1u) && key_stats)
        key_stats->unlike_losers = 0;
}

static void apply_release(struct outcome *f) {
    bool refused = outcome_refused(f);
    bool released = f->result->outcome == LOCK_RELEASED || f->result->outcome == LOCK_ADOPTED;
    switch (f->result->outcome) {
    case LOCK_NOT_SENT:
    case LOCK_ERROR:
        uncount(f);
        restore(f);
        return;
    case LOCK_UNKNOWN:
        if (f->claim) { /* the claim is kept for a repeated release, and not renewed any more */
            claim_release_lost(f->claim);
            f->claim->renewing = false;
            restore(f);
        }
        return;
    case LOCK_FREE:
        if (f->claim && f->claim->fence && !claim_doubtful(f->claim))
            incident_report(f->sh, INCIDENT_LATE_RELEASE, outcome_occasion(f),
                            "nothing to release: the lease that it was for has ended; the lock is free");
        break;
    default:
        break;
    }
    if (refused)
        report_refused_release(f);
    if (f->claim && refused)
        inherit_deadline(f, f->claim);
    if (f->claim)
        learn_course(f, f->claim, f->result->outcome == LOCK_RELEASED);
    struct key_stats *key_stats = key_stats_find(f->entry, outcome_workload(f));
    if (released && key_stats)
        key_stats->released_ms = f->now_ms;
    if (released)
        f->sh->stats.released++;
    if (released || f->claim)
        releaser_note(f->e, f->plan->rule, f->peer->client);
    if (refused)
        apply_suspected(f);
    if (released && f->plan->right == RIGHT_ANY)
        outcome_spend(f, outcome_touched(f));
    else if (released && !f->claim && (f->plan->right == RIGHT_BELIEVE || f->plan->right == RIGHT_ADOPT))
        apply_believed(f);
    else if (f->plan->right == RIGHT_SPENT && f->result->outcome == LOCK_ADOPTED)
        apply_spent_elsewhere(f);
    tenure_released(f);
    outcome_spend(f, f->claim);
}

static void spend(struct outcome *f, struct claim *c) {
    f->sh->stats.released++;
    releaser_note(f->e, f->plan->rule, f->peer->client);
    outcome_spend(f, c);
}

void apply_freed(struct outcome *f) {
    struct claim *c = outcome_touched(f);
    if (!c)
        c = f->claim;
    if (!c)
        return;
    uint64_t fence = c->fence;
    spend(f, c);
    learn_gone(f, fence, LEASE_TAKEN);
}

/* Applies an outcome by which witnesses or replicas do not confirm the lease. Returns whether it is one. */
static bool apply_unconfirmed(struct outcome *f) {
    const struct lock_result *r = f->result;
    if (r->outcome == LOCK_OVERTAKEN) {
        if (f->claim)
            lease_overtaken(f->sh, f->claim, f->now_ms);
        return true;
    }
    if (r->outcome != LOCK_REMEMBERED && r->outcome != LOCK_UNCONFIRMED)
        return false;
    f->sh->stats.lost++;
    if (r->outcome == LOCK_REMEMBERED)
        incident_report(f->sh, INCIDENT_REMEMBERED, outcome_occasion(f),
                        "Redis gave the lock away, and the witnesses remember another holder: released again, the "
                        "client was told that it is held");
    else if (r->witnesses > 0)
        incident_report(f->sh, INCIDENT_UNCONFIRMED, outcome_occasion(f),
                        "%llu of %u witnesses answered: released again, the client was not told that it had acquired",
                        (unsigned long long)r->replicas, (unsigned)r->witnesses);
    else
        incident_report(f->sh, INCIDENT_UNCONFIRMED, outcome_occasion(f),
                        "%llu of %lld replicas had it within %lld ms: released again, the client was not told that it "
                        "had acquired",
                        (unsigned long long)r->replicas, (long long)f->plan->rule->replicas,
                        (long long)f->plan->rule->replicas_ms);
    return true;
}

/* Another owner has the lock: nothing was changed. */
static void apply_refused(struct outcome *f) {
    enum lock_verb verb = f->plan->verb;
    if (verb == LOCK_ACQUIRE) {
        learn_lost_attempt(f);
    } else if (verb == LOCK_EXTEND) {
        f->sh->stats.refused_extends++;
        outcome_refusal(f, INCIDENT_FOREIGN_EXTEND,
                        f->audit ? "this client does not hold the lock"
                                 : "this client does not hold the lock; its expiry is unchanged");
    } else if (verb == LOCK_COUNT_DOWN) {
        report_refused_release(f);
        apply_suspected(f);
    } else if (verb != LOCK_SWAP || !learn_answered(f)) {
        apply_suspected(f);
        outcome_refusal(f, INCIDENT_OVERWRITE,
                        f->audit ? "another owner holds the lock"
                                 : "another owner holds the lock; nothing was written");
        if (verb != LOCK_CLOBBER)
            learn_loss(f);
    }
}

/* The script took the lease for the session's own, although the session had not named it. */
static void apply_adopted(struct outcome *f) {
    enum lock_verb verb = f->plan->verb;
    /* C5: the SET XX is believed as a release is, so it is a crossing, too. */
    if (verb == LOCK_REWRITE && !f->claim)
        outcome_crossing(f, outcome_workload(f), its_own_live(f));
    const struct claim *touched = outcome_touched(f);
    if (touched && touched->fence == f->result->fence) {
        apply_done(f);
        learn_repeated(f);
    } else if (verb == LOCK_COUNT_UP)
        learn_loss(f); /* it counted on another session's lease */
}

/* The session writes data over the key, so it works under no lease there any more: forgets what it had and lost on
 * the key. */
static void begin_anew(struct outcome *f) {
    struct contender *w = contender_find(f->entry, f->peer);
    if (w)
        w->lost = false;
    if (workload_pooled(outcome_workload(f), f->peer, f->plan->rule))
        return; /* the ended claim may be a colleague's */
    for (struct claim *c = entry_claims(f->entry), *next; c; c = next) {
        next = c->next;
        if (c->peer == f->peer && claim_ended(c) && !c->uses && !claim_releasing(c))
            outcome_spend(f, c);
    }
}

static void apply_change(struct outcome *f) {
    enum lock_verb verb = f->plan->verb;
    enum lock_outcome outcome = f->result->outcome;
    switch (outcome) {
    case LOCK_GRANTED:
        apply_granted(f);
        break;
    case LOCK_DONE:
        if (verb == LOCK_ACQUIRE && !f->result->fence) { /* MSETNX: the session's own lease has refused it */
            learn_lost_attempt(f);
            break;
        }
        apply_done(f);
        learn_repeated(f);
        break;
    case LOCK_RELEASED:
        apply_freed(f);
        break;
    case LOCK_COUNTED:
        claim_value(f, outcome_touched(f));
        if (verb == LOCK_COUNT_UP)
            learn_lost_attempt(f);
        break;
    case LOCK_HELD:
    case LOCK_FOREIGN:
        apply_refused(f);
        break;
    case LOCK_ADOPTED:
        apply_adopted(f);
        break;
    case LOCK_FREE:
    case LOCK_OPEN:
        if (verb == LOCK_COUNT_UP)
            learn_loss(f); /* the count is not above zero, so nothing was acquired */
        if (verb == LOCK_PASS)
            begin_anew(f);
        break;
    case LOCK_UNKNOWN:
        if (lock_verb_is(verb, VERB_ACQUIRES))
            apply_unknown_acquisition(f);
        break;
    default: /* nothing was acquired, or it was released again */
        if (outcome != LOCK_OVERTAKEN && lock_verb_is(verb, VERB_ACQUIRES))
            learn_loss(f);
        (void)apply_unconfirmed(f);
        break;
    }
    /* A late DECR: the lock is free, or another session's counter is there now. */
    if (verb == LOCK_COUNT_DOWN && (outcome == LOCK_COUNTED || outcome == LOCK_FREE || outcome_refused(f)))
        outcome_spend(f, f->claim);
    if (verb == LOCK_COUNT_DOWN)
        restore(f);
}

/* ---- the application's own scripts -------------------------------------------------------------- */

/* Applies what a script of the application's has done. It does not say what it was meant to do: if it finds the lock
 * held by another session, it has not lost an attempt; if it finds the lock free, it has not come too late. */
static void apply_script(struct outcome *f) {
    bool known = f->result->outcome <= LOCK_FREE;
    struct claim *c = f->claim;
    if (c)
        c->scripted = false;
    /* The lease made way before its time, and another command came between the script and the step behind it. Most
     * probably the session's own script has ended the lease. */
    if (c && known && claim_ended(c) && c->lease != LEASE_ENDED && !c->uses && c->fence != f->result->fence)
        spend(f, c);
    switch (f->result->outcome) {
    case LOCK_GRANTED:
        apply_granted(f);
        break;
    case LOCK_HELD:
        apply_done(f);
        learn_named(f);
        break;
    case LOCK_RELEASED:
        /* If another client has ended the lease (it knew the value), the owner's release is still expected. */
        c = its_own_live(f);
        if (c && !c->uses)
            spend(f, c);
        break;
    default: /* no lock was found, or nothing is known: what the script did is a foreign lock */
        break;
    }
}

inline void apply(struct outcome *f) {
    switch (f->plan->verb) {
    case LOCK_RELEASE:
        apply_release(f);
        break;
    case LOCK_READ:
        learn_read(f);
        break;
    case LOCK_SCRIPT:
        if (!apply_unconfirmed(f))
            apply_script(f);
        break;
    case LOCK_OPERATOR:
        /* The holder's claim stays, for the release that the holder will still send. */
        if (f->result->outcome == LOCK_RELEASED)
            incident_report(f->sh, INCIDENT_OPERATOR_RELEASE, outcome_occasion(f), "released");
        break;
    case LOCK_QUEUE_PUSH:
    case LOCK_QUEUE_READ:
    case LOCK_QUEUE_REMOVE:
    case LOCK_QUEUE_SET:
        queue_apply(f);
        break;
    case LOCK_INSPECT:
        break;
    default:
        apply_change(f);
        break;
    }
}
