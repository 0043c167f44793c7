/*
 * What an answer means for claims: made, spent, put back; what is renewed from now on, and what is reported.
 * Which lease is live has been learnt before (learn.c).
 */
#include "proxy/lock/finish.h"

#include <stdio.h>

static void claim_holds_value(struct claim *c, uint64_t value) {
    if (c->extra && c->valued && c->value != value)
        c->extra->sighted = 0;
    c->valued = true;
    c->value = value;
}

inline void claim_value(struct finish *f, struct claim *c) {
    if (!c || !f->result->value)
        return;
    if (!f->plan->field)
        claim_holds(f, c, f->result->value, f->result->value_len);
    else if (!c->valued || value_same_field(c->value, f->plan->field))
        claim_holds_value(c, f->plan->field); /* another field than the holder's says nothing */
}

inline void claim_holds(struct finish *f, struct claim *c, const char *value, size_t len) {
    uint64_t hash = hash_bytes(&f->e->value_seed, value, len);
    if (!c->valued || !value_same_field(c->value, hash)) /* a script shows the field alone: what it has is known here */
        claim_holds_value(c, hash);
}

/* Whether who acquires has come back to its own lease. A1: one worker does one thing after another, so that what it
 * acquires ends what it had; but a claim that its own session lost attempts against may be a colleague's. A2: where
 * values vary, who acquires with a value that it had before has come back. */
static bool comes_back(const struct finish *f, const struct family *family, const struct claim *c, bool shared,
                       bool vary, uint64_t hash) {
    bool own = c->peer == f->peer;
    if (c->peer->client != f->peer->client || c->token == f->plan->attempt || c->fence > f->result->fence)
        return false;
    if (c->peer->remote && c->fence == f->result->fence) /* others were refused by it before this answer came */
        return true;
    if (own && !shared &&
        (!c->self_lost || c->taken || f->plan->rule->owner == LOCK_OWNER_CONNECTION || family_owns(family, f->peer)))
        return true;
    return vary && c->valued && c->value == hash && (own || shared || c->peer->closed);
}

static bool values_vary(const struct finish *f, const struct contest *contest, uint64_t hash) {
    if (contest && contest_varies(contest, hash))
        return true;
    for (const struct claim *c = f->entry->claims; c; c = c->next)
        if (c->peer->client == f->peer->client && c->valued && c->value != hash)
            return true;
    return false;
}

static void drop_older(struct finish *f, const struct family *family, const struct contest *contest) {
    const struct lock_result *r = f->result;
    uint64_t hash = r->value ? finish_value(f) : 0;
    bool shared = family_shares(family, f->peer, f->plan->rule), vary = r->value && values_vary(f, contest, hash);
    for (struct claim *c = f->entry->claims, *next; c; c = next) {
        next = c->next;
        if (comes_back(f, family, c, shared, vary, hash))
            settle_spend(f, c);
    }
}

/* The group of a command, for claim->told_by: by itself it is a group of its own. Half of the number tells it from all
 * that may be under way. */
static uint32_t group_of(const struct lock_plan *plan) {
    return (uint32_t)(plan->group ? plan->group : plan->attempt);
}

/* Makes the attempt's claim. A key with very many claims may forget for it the one that the command spoke by. */
static inline struct claim *claim_made(struct finish *f, uint64_t fence) {
    struct claim *c = claim_add(f->sh, f->entry, f->peer, f->plan->rule, f->plan->attempt, fence);
    if (f->claim)
        f->claim = claim_find(f->entry, f->plan->claim);
    return c;
}

static inline struct claim *claim_granted(struct finish *f) {
    const struct lock_result *r = f->result;
    struct family *family = family_join(f->sh, f->peer, f->plan->rule, f->plan->family, &f->plan->key, f->now_ms);
    struct claim *c = claim_made(f, r->fence);
    c->family = family;
    family_ref(family);
    c->login = f->plan->login;
    c->granted_ms = f->now_ms;
    c->queue = lock_verb_is(f->plan->verb, VERB_QUEUE);
    claim_value(f, c);
    c->told = atomic_load(&f->e->attempts);
    c->told_by = group_of(f->plan);
    c->observed = f->audit;
    lease_set(f->sh, c, r->pttl_ms, r->leased, f->plan->begun_ms, f->now_ms);
    if (c->rule->fenced)
        tenure_begin(f->sh, c);
    if (f->entry->crowd)
        f->entry->crowd->length_ms = claim_length(c);
    f->sh->stats.granted++;
    return c;
}

void settle_acquired(struct finish *f) {
    histogram_note(&f->sh->stats.waits, 0);
    finish_schedule(f, claim_granted(f));
}

/* Ends (B in a transaction) the lease that the attempt was to release first, if nothing else has ended it. */
static void settle_instead(struct finish *f) {
    struct claim *c = f->plan->claim_fence ? entry_claims(f->entry) : NULL;
    while (c && (c->fence != f->plan->claim_fence || c->peer->client != f->peer->client))
        c = c->next;
    if (!c || !c->family)
        return;
    aftermath_mistaken(c->family, contest_find(f->entry, c->family));
    if (family_vote(c->family, f->peer, c->peer))
        family_pool(f->sh, c->family, &f->plan->key, f->now_ms);
    settle_spend(f, c);
}

void settle_granted(struct finish *f) {
    const struct lock_rule *rule = f->plan->rule;
    const struct lock_result *r = f->result;
    struct entry *en = finish_entry(f);
    struct witness *w = witness_find(en, f->peer);
    histogram_note(&f->sh->stats.waits, w && w->lost ? (f->now_ms - w->lost_ms) * 1000 : 0);
    if (w) {
        w->lost = w->released = false;
        w->lost_fence = w->recognised = 0;
        w->lost_row = w->suspicious_row = 0;
        w->held_ms = 0;
    }
    if (w && rule->owner == LOCK_OWNER_CONNECTION)
        witness_forget_seen(w);
    if (f->plan->right == RIGHT_INSTEAD)
        settle_instead(f);
    struct claim *c = claim_granted(f);
    struct contest *contest = contest_find(en, c->family);
    drop_older(f, c->family, contest);
    if (contest) {
        aftermath_tries_again(c->family, contest, f->peer);
        family_count(c->family, contest, TALLY_ACQUIRED);
        if (c->valued)
            contest_value(contest, c->value);
    }
    if (r->fence < en->live_fence || r->fence <= en->gone_fence) /* overtaken by a later answer */
        lease_end(f->sh, c, LEASE_TAKEN, f->now_ms);
    if (r->leased)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, finish_occasion(f),
                        c->renewing ? "lease of %lld ms given, renewed while its owner is connected"
                                    : "lease of %lld ms given",
                        (long long)rule->lease_ms);
    else if (r->pttl_ms == PTTL_NONE && f->audit && rule->lease_ms)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, finish_occasion(f), "would be given a lease of %lld ms%s",
                        (long long)rule->lease_ms,
                        rule->renew == LOCK_RENEW_NEVER ? "" : ", renewed while its owner is connected");
    else if (r->pttl_ms == PTTL_NONE)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, finish_occasion(f),
                        "left without an expiry: the rule gives no lease");
    if (f->peer->closed && !lease_owner_here(c))
        lease_abandon(f->sh, c, f->now_ms);
    finish_schedule(f, c);
}

/* Makes a claim for an attempt that may have acquired: a release that follows is not somebody else's. Nothing is
 * renewed for it. */
static void settle_unknown_acquisition(struct finish *f) {
    const struct lock_rule *rule = f->plan->rule;
    if (f->claim && claim_is_live(f->claim, f->now_ms))
        return; /* it changed that one, or it did not */
    finish_entry(f);
    struct claim *c = claim_made(f, 0);
    c->login = f->plan->login;
    c->granted_ms = f->now_ms;
    c->end_ms = f->now_ms + rule->lease_ms;
    c->period_ms = rule->lease_ms;
    c->reported = true;
    claim_value(f, c);
    finish_schedule(f, c);
}

struct claim *settle_touched(struct finish *f) {
    if (f->claim && f->claim->fence == f->result->fence)
        return f->claim;
    for (struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c->fence && c->fence == f->result->fence)
            return c;
    return f->claim && !f->claim->fence ? f->claim : NULL;
}

/* Whether the lease is known to end when the answer says, as exactly as an answer can say it. */
static bool lease_end_is(const struct finish *f, const struct claim *c, int64_t pttl_ms) {
    if (pttl_ms < 0 || !c->end_ms)
        return false;
    int64_t left_ms = pttl_ms < FAR_MS ? pttl_ms : FAR_MS;
    int64_t inexact_ms = f->now_ms - f->plan->begun_ms + 50, moved_ms = f->now_ms + left_ms - c->end_ms;
    return moved_ms <= inexact_ms && moved_ms >= -inexact_ms;
}

/* Notes a SET XX. One that leaves the lock less than half of its time is how some release it: its end is then the end
 * of it. One that gives it more has been none. Under `owner any` it may be anybody's. */
static void note_rewritten(const struct finish *f, struct claim *c, int64_t end_ms) {
    if (f->plan->verb != LOCK_REWRITE || !c->end_ms || c->leased || f->plan->rule->owner == LOCK_OWNER_ANY)
        return;
    bool less = end_ms && c->end_ms - f->now_ms <= (end_ms - f->now_ms) / 2;
    if (less)
        claim_extra(c)->deadline_ms = c->end_ms;
    else if (c->extra && c->end_ms > end_ms)
        c->extra->deadline_ms = 0;
}

void settle_done(struct finish *f) {
    struct claim *c = settle_touched(f);
    if (!c)
        return;
    int64_t end_ms = c->end_ms;
    if (f->plan->verb == LOCK_EXTEND || f->plan->verb == LOCK_REWRITE)
        c->vouched = 1;
    if (!c->fence) { /* what had been unknown */
        c->fence = f->result->fence;
        c->reported = !lease_owner_here(c);
        tenure_begin(f->sh, c);
    }
    if (f->plan->verb != LOCK_EXTEND)
        claim_value(f, c);
    /* Under audit, and within a transaction, answers are read in the order in which Redis gave them. */
    bool in_order = f->audit || (f->plan->group && c->told_by && c->told_by == group_of(f->plan));
    uint64_t began = in_order ? UINT64_MAX : f->plan->attempt;
    struct lock_result told = *f->result;
    /* An expiry that a colleague found may be older than what the holder has set since. */
    if (told.outcome == LOCK_ADOPTED && began <= c->told)
        told.leased = told.leased && c->leased;
    /* An expiry that was found as it is known to be, or left the proxy's own, says nothing of what the holder may be
     * setting just now. */
    uint64_t told_before = c->told;
    bool unchanged =
        told.outcome == LOCK_ADOPTED && told.leased == c->leased && (told.leased || lease_end_is(f, c, told.pttl_ms));
    if (lease_told(f->sh, c, &told, began, f->plan->begun_ms, f->now_ms))
        c->told_by = group_of(f->plan);
    if (unchanged)
        c->told = told_before;
    note_rewritten(f, c, end_ms);
    finish_schedule(f, c);
}

void settle_spend(struct finish *f, struct claim *c) {
    if (!c)
        return;
    if (c == f->claim)
        f->claim = NULL;
    struct peer *p = c->peer;
    tenure_spent(f, c);
    claim_remove(f->sh, c);
    if (p != f->peer)
        peer_settle(f->sh, p);
}

/* Gives a reserved claim back that was not spent after all. */
static void restore(struct finish *f) {
    struct claim *c = f->claim;
    if (!c || !c->reserved || f->plan->queued) /* queued: another release of it is in flight */
        return;
    c->reserved = false;
    if (f->plan->undone) { /* G: what had been read was so no more */
        if (c->extra)
            c->extra->sighted = 0;
        if (c->ended)
            claim_extra(c)->deadline_ms = c->end_ms;
    }
    finish_schedule(f, c);
}

/* Takes back the count of a release that has not come to be: it was not sent, Redis refused it, or its EXEC did nothing
 * (G). */
static void uncount(struct finish *f) {
    const struct lock_plan *plan = f->plan;
    struct family *family = family_find(f->sh, f->peer, plan->rule, plan->pattern);
    struct witness *w = f->entry && plan->first_release ? witness_find(f->entry, f->peer) : NULL;
    if (w)
        w->released = false;
    if (family && plan->twice && family->twice)
        family->twice--;
    if (family && plan->counted)
        family_uncount(family, contest_find(f->entry, family));
}

void settle_refusal(struct finish *f, enum lock_incident_kind kind, const char *why) {
    if (f->audit)
        incident_report(f->sh, kind, finish_occasion(f), "would be refused: %s; %s",
                        f->refusal ? f->refusal : "nothing done", why);
    else
        incident_report(f->sh, kind, finish_occasion(f), "refused: %s", why);
}

static void report_refused_release(struct finish *f) {
    f->sh->stats.refused_releases++;
    if (!f->plan->claim) {
        settle_refusal(f, INCIDENT_FOREIGN_RELEASE, "this client holds no lease of the lock");
        return;
    }
    char why[96] = "the lease that it was for has ended, another one is live";
    int64_t late_ms = f->claim && f->claim->end_ms ? f->now_ms - f->claim->end_ms : 0;
    if (late_ms > 0)
        snprintf(why, sizeof(why), "its own lease had ended %lld ms before, another one is live", (long long)late_ms);
    settle_refusal(f, INCIDENT_LATE_RELEASE, why);
    if (!f->plan->several || !f->result->fence)
        return;
    for (struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c != f->claim && c->fence == f->result->fence && c->peer->client == f->peer->client) {
            settle_refusal(f, INCIDENT_AMBIGUOUS,
                           "it counts for the older of several leases; to tell workers apart: owner connection, a "
                           "connection a worker for locks, CLIENT SETNAME a worker, or values of their own with read, "
                           "compare, delete");
            break;
        }
}

/* ---- C: releases --------------------------------------------------------------------------------- */

/* The live lease of the same identity that was in the way of a refused release, or was released by it. */
static struct claim *its_own_live(const struct finish *f) {
    struct claim *c = entry_claims(f->entry);
    while (c && (!f->result->fence || c->fence != f->result->fence || c->peer->client != f->peer->client))
        c = c->next;
    return c;
}

/* Passes a deadline on (C3): a missed release shifts those behind it; what it shifts ends with the time that it would
 * have had itself. */
static void inherit_deadline(const struct finish *f, const struct claim *used) {
    struct claim *live = its_own_live(f);
    const struct family *family = family_find(f->sh, f->peer, f->plan->rule, f->plan->pattern);
    if (!live || live == used || (live->peer != f->peer && !family_shares(family, f->peer, f->plan->rule)))
        return;
    claim_expect_until(live, claim_deadline(f->sh, used));
}

/* Learns from whether the release came over the session that had acquired. */
static void learn_course(struct finish *f, const struct claim *used, bool freed) {
    struct family *family = used->family;
    if (!family)
        return;
    if (used->peer != f->peer) {
        if (!used->peer->closed)
            family_crossed(family, f->peer, used->peer);
    } else if (freed && used->contended && !used->self_lost) {
        family_uncrossed(family, f->peer);
    }
}

void settle_crossing(struct finish *f, struct family *family, const struct claim *live) {
    struct peer *owner = live ? live->peer : NULL;
    if (!family)
        return;
    if (f->plan->by_chance)
        family_crossed(family, f->peer, owner);
    else if (f->plan->rule->owner == LOCK_OWNER_AUTO && !f->audit && family_vote(family, f->peer, owner))
        family_pool(f->sh, family, &f->plan->key, f->now_ms);
}

/* Settles a release (C4) against which nothing spoke. A session that has never tried for such a lock may be an
 * operator's, or a clean-up's: where the holder's session is known to be one worker's, that worker's own release is
 * still to come over it. */
static void settle_believed(struct finish *f) {
    struct claim *live = its_own_live(f);
    struct family *family = family_find(f->sh, f->peer, f->plan->rule, f->plan->pattern);
    bool tried = family && habit_find(f->peer, family);
    if (!live && family) /* another proxy gave the lease, and this one has not met it: D1 counts it with its release */
        family_count(family, contest_find(f->entry, family), TALLY_ACQUIRED);
    if (!tried)
        incident_report(f->sh, INCIDENT_BELIEVED, finish_occasion(f),
                        "released: this connection never tried for the lock, and is of the holder's client");
    bool own = family && live && (family_owns(family, live->peer) || family->losers_release);
    bool waits = !tried && own && !live->peer->remote;
    if (!waits) {
        settle_crossing(f, family, live);
        settle_spend(f, live);
    } else {
        live->taken = true;
        /* The claim is kept for as long as its lease can have gone on, and no longer. */
        claim_extra(live)->deadline_ms = f->now_ms + (claim_length(live) ? claim_length(live) : claim_memory(live));
        lease_end(f->sh, live, LEASE_TAKEN, f->now_ms);
        finish_schedule(f, live);
    }
}

/* Settles a release (C6) by a claim that was released through another proxy before: it was for the live lease. */
static void settle_spent_elsewhere(struct finish *f) {
    struct claim *live = its_own_live(f);
    atomic_store(&f->e->elsewhere, true);
    settle_crossing(f, f->claim ? f->claim->family : NULL, live);
    if (live != f->claim)
        settle_spend(f, live);
}

/* Whether the refused release may have been for the live lease. Beside other proxies a release counts for a claim that
 * was released there before, and may be the holder's all the same (C6). */
static bool suspects_live(const struct finish *f) {
    if (f->plan->right != RIGHT_SPENT)
        return f->plan->right == RIGHT_SUSPECT;
    return f->claim && claim_spent_elsewhere(f->e, f->claim);
}

static void settle_suspected(struct finish *f) {
    struct claim *live = suspects_live(f) ? its_own_live(f) : NULL;
    if (!live)
        return;
    bool counted = f->result->suspects || f->plan->verb == LOCK_REWRITE; /* one that extends is not */
    struct contest *contest = contest_find(f->entry, live->family);
    if (claim_suspect(live, counted ? f->result->suspects : live->suspects + 1u) && contest)
        aftermath_refused(contest);
}

static void settle_release(struct finish *f) {
    bool refused = finish_refused(f);
    bool released = f->result->outcome == LOCK_RELEASED || f->result->outcome == LOCK_ADOPTED;
    switch (f->result->outcome) {
    case LOCK_NOT_SENT:
    case LOCK_ERROR:
        uncount(f);
        restore(f);
        return;
    case LOCK_UNKNOWN:
        if (f->claim) { /* kept for a repeat, and no longer renewed */
            f->claim->doubtful = true;
            f->claim->renewing = false;
            restore(f);
        }
        return;
    case LOCK_FREE:
        if (f->claim && f->claim->fence && !f->claim->doubtful)
            incident_report(f->sh, INCIDENT_LATE_RELEASE, finish_occasion(f),
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
    struct contest *contest = contest_find(f->entry, family_find(f->sh, f->peer, f->plan->rule, f->plan->pattern));
    if (released && contest)
        contest->released_ms = f->now_ms;
    if (released)
        f->sh->stats.released++;
    if (released || f->claim)
        releaser_note(f->e, f->plan->rule, f->peer->client);
    if (refused)
        settle_suspected(f);
    if (released && f->plan->right == RIGHT_ANY)
        settle_spend(f, settle_touched(f));
    else if (released && !f->claim && (f->plan->right == RIGHT_BELIEVE || f->plan->right == RIGHT_ADOPT))
        settle_believed(f);
    else if (f->plan->right == RIGHT_SPENT && f->result->outcome == LOCK_ADOPTED)
        settle_spent_elsewhere(f);
    tenure_released(f);
    settle_spend(f, f->claim);
}

/* Settles commands that may free the lock besides what they are for. */
void settle_freed(struct finish *f) {
    struct claim *c = settle_touched(f);
    if (!c)
        c = f->claim;
    if (!c)
        return;
    f->sh->stats.released++;
    releaser_note(f->e, f->plan->rule, f->peer->client);
    uint64_t fence = c->fence;
    settle_spend(f, c);
    learn_gone(f, fence, LEASE_TAKEN);
}

static void settle_change(struct finish *f) {
    enum lock_verb verb = f->plan->verb;
    const struct claim *touched;
    bool in_vain = f->result->outcome == LOCK_NOT_SENT || f->result->outcome == LOCK_ERROR ||
                   f->result->outcome == LOCK_UNCONFIRMED;
    if (in_vain && lock_verb_is(verb, VERB_ACQUIRES))
        learn_loss(f);
    switch (f->result->outcome) {
    case LOCK_GRANTED:
        settle_granted(f);
        break;
    case LOCK_DONE:
        settle_done(f);
        learn_repeated(f);
        break;
    case LOCK_RELEASED:
        settle_freed(f);
        break;
    case LOCK_COUNTED:
        claim_value(f, settle_touched(f));
        if (verb == LOCK_COUNT_UP)
            learn_lost_attempt(f);
        else
            settle_spend(f, f->claim); /* a late release: somebody else's counter is there now */
        break;
    case LOCK_HELD:
    case LOCK_FOREIGN:
        if (verb == LOCK_ACQUIRE) {
            learn_lost_attempt(f);
        } else if (verb == LOCK_EXTEND) {
            f->sh->stats.refused_extends++;
            settle_refusal(f, INCIDENT_FOREIGN_EXTEND,
                           f->audit ? "this client does not hold the lock"
                                    : "this client does not hold the lock; its expiry is unchanged");
        } else if (verb == LOCK_COUNT_DOWN) {
            report_refused_release(f);
            settle_suspected(f);
            settle_spend(f, f->claim);
        } else if (verb != LOCK_SWAP || !learn_answered(f)) {
            settle_suspected(f);
            settle_refusal(f, INCIDENT_OVERWRITE,
                           f->audit ? "somebody else holds the lock"
                                    : "somebody else holds the lock; nothing was written");
            if (verb != LOCK_CLOBBER)
                learn_loss(f);
        }
        break;
    case LOCK_FREE:
        if (verb == LOCK_COUNT_DOWN)
            settle_spend(f, f->claim);
        else if (verb == LOCK_COUNT_UP)
            learn_loss(f); /* it counted, and is not above zero yet */
        break;
    case LOCK_ADOPTED:
        if (verb == LOCK_REWRITE && !f->claim)
            settle_crossing(f, family_find(f->sh, f->peer, f->plan->rule, f->plan->pattern), its_own_live(f));
        touched = settle_touched(f);
        if (touched && touched->fence == f->result->fence) {
            settle_done(f);
            learn_repeated(f);
        } else if (verb == LOCK_COUNT_UP)
            learn_loss(f); /* it counted on what is not its own */
        break;
    case LOCK_OPEN:
        if (verb == LOCK_COUNT_UP)
            learn_loss(f);
        break;
    case LOCK_UNCONFIRMED:
        f->sh->stats.lost++;
        incident_report(f->sh, INCIDENT_UNCONFIRMED, finish_occasion(f),
                        "%llu of %lld replicas had it within %lld ms: released again, the client was not told that it "
                        "had acquired",
                        (unsigned long long)f->result->replicas, (long long)f->plan->rule->replicas,
                        (long long)f->plan->rule->replicas_ms);
        break;
    case LOCK_UNKNOWN:
        if (lock_verb_is(verb, VERB_ACQUIRES))
            settle_unknown_acquisition(f);
        break;
    default:
        break;
    }
    if (verb == LOCK_COUNT_DOWN)
        restore(f);
}

inline void settle(struct finish *f) {
    switch (f->plan->verb) {
    case LOCK_ACQUIRE:
    case LOCK_REPLACE:
    case LOCK_REWRITE:
    case LOCK_SWAP:
    case LOCK_EXTEND:
    case LOCK_COUNT_UP:
    case LOCK_COUNT_DOWN:
    case LOCK_CLOBBER:
        settle_change(f);
        break;
    case LOCK_RELEASE:
        settle_release(f);
        break;
    case LOCK_PASS:
        settle_pass(f);
        break;
    case LOCK_READ:
        learn_read(f);
        break;
    case LOCK_SCRIPT:
        settle_script(f);
        break;
    case LOCK_OPERATOR:
        /* The holder's claim stays, for the release that the holder will still send. */
        if (f->result->outcome == LOCK_RELEASED)
            incident_report(f->sh, INCIDENT_OPERATOR_RELEASE, finish_occasion(f), "released");
        break;
    case LOCK_QUEUE_PUSH:
    case LOCK_QUEUE_READ:
    case LOCK_QUEUE_REMOVE:
    case LOCK_QUEUE_SET:
        queue_settle(f);
        break;
    case LOCK_INSPECT:
        break;
    }
}
