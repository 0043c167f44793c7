/*
 * What an answer means for claims: made, spent, put back; what is renewed from now on, and what is reported.
 * Which lease is live has been learnt before (learn.c).
 */
#include "proxy/lock/finish.h"

#include <stdio.h>

void claim_value(struct finish *f, struct claim *c) {
    const struct lock_result *r = f->result;
    if (!c || !r->value)
        return;
    uint64_t hash = hash_bytes(&f->e->value_seed, r->value, r->value_len);
    if (c->valued && (c->value != hash))
        c->sighted = c->sighted_any = false;
    c->valued = true;
    c->value = hash;
}

/* One worker does one thing after another: what it acquires now ends what it had. */
static void drop_older(struct finish *f) {
    for (struct claim *c = f->entry->claims, *next; c; c = next) {
        next = c->next;
        if (c->peer != f->peer)
            continue;
        if (c == f->claim)
            f->claim = NULL;
        claim_remove(f->sh, c);
    }
}

/* For claim->told_by: a command by itself is a group of its own. Half of the number tells it from all that may be under
 * way. */
static uint32_t group_of(const struct lock_plan *plan) {
    return (uint32_t)(plan->group ? plan->group : plan->attempt);
}

static inline struct claim *claim_granted(struct finish *f) {
    const struct lock_result *r = f->result;
    struct claim *c = claim_add(f->sh, f->entry, f->peer, f->plan->rule, f->plan->attempt, r->fence);
    c->login = f->plan->login;
    c->granted_ms = f->now_ms;
    c->queue = queue_verb(f->plan->verb);
    claim_value(f, c);
    c->told = atomic_load(&f->e->attempts);
    c->told_by = group_of(f->plan);
    c->observed = f->audit;
    lease_set(f->sh, c, r->pttl_ms, r->leased, f->plan->begun_ms, f->now_ms);
    f->sh->stats.granted++;
    return c;
}

void settle_acquired(struct finish *f) {
    histogram_note(&f->sh->stats.waits, 0);
    finish_schedule(f, claim_granted(f));
}

void settle_granted(struct finish *f) {
    const struct lock_rule *rule = f->plan->rule;
    const struct lock_result *r = f->result;
    struct entry *en = finish_entry(f);
    struct witness *w = witness_find(en, f->peer);
    histogram_note(&f->sh->stats.waits, w && w->lost ? (f->now_ms - w->lost_ms) * 1000 : 0);
    if (w) {
        w->lost = false;
        w->lost_fence = 0;
    }
    if (rule->owner == LOCK_OWNER_CONNECTION) {
        drop_older(f);
        if (w)
            witness_forget_seen(w);
    }
    struct claim *c = claim_granted(f);
    if (r->fence < en->live_fence || r->fence <= en->gone_fence) /* overtaken by a later answer */
        lease_end(f->sh, c, LEASE_TAKEN, f->now_ms);
    if (r->leased)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, finish_occasion(f),
                        c->renewing ? "lease of %lld ms given, renewed while its owner is connected"
                                    : "lease of %lld ms given",
                        (long long)rule->lease_ms);
    else if (r->pttl_ms == -1 && f->audit && rule->lease_ms)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, finish_occasion(f), "would be given a lease of %lld ms%s",
                        (long long)rule->lease_ms,
                        rule->renew == LOCK_RENEW_NEVER ? "" : ", renewed while its owner is connected");
    else if (r->pttl_ms == -1)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, finish_occasion(f),
                        "left without an expiry: the rule gives no lease");
    if (f->peer->closed && !lease_owner_here(c))
        lease_abandon(f->sh, c, f->now_ms);
    finish_schedule(f, c);
}

/* It may have acquired: a release that follows is not somebody else's. Nothing is renewed for it. */
static void settle_unknown_acquisition(struct finish *f) {
    const struct lock_rule *rule = f->plan->rule;
    if (f->claim && claim_is_live(f->claim, f->now_ms))
        return; /* it changed that one, or it did not */
    struct claim *c = claim_add(f->sh, finish_entry(f), f->peer, rule, f->plan->attempt, 0);
    c->login = f->plan->login;
    c->granted_ms = f->now_ms;
    c->end_ms = f->now_ms + rule->lease_ms;
    c->reported = c->let_go = true;
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

void settle_done(struct finish *f) {
    struct claim *c = settle_touched(f);
    if (!c)
        return;
    if (!c->fence) { /* what had been unknown */
        c->fence = f->result->fence;
        c->reported = !lease_owner_here(c);
    }
    if (f->plan->verb != LOCK_EXTEND)
        claim_value(f, c);
    int64_t end_ms = c->end_ms;
    /* Under audit, and within a transaction, answers are read in the order in which Redis gave them. */
    bool in_order = f->audit || (f->plan->group && c->told_by && c->told_by == group_of(f->plan));
    uint64_t began = in_order ? UINT64_MAX : f->plan->attempt;
    if (lease_told(f->sh, c, f->result, began, f->plan->begun_ms, f->now_ms))
        c->told_by = group_of(f->plan);
    bool writes = f->plan->verb == LOCK_REPLACE || f->plan->verb == LOCK_REWRITE;
    if (writes && c->end_ms && (!end_ms || c->end_ms <= end_ms))
        c->let_go = true; /* SET XX with a short expiry is how some release */
    finish_schedule(f, c);
}

void settle_spend(struct finish *f, struct claim *c) {
    if (!c)
        return;
    if (c == f->claim)
        f->claim = NULL;
    struct peer *p = c->peer;
    claim_remove(f->sh, c);
    if (p != f->peer)
        peer_settle(f->sh, p);
}

/* The session wanted to be rid of what it has on the key. If that is one worker, it may believe that it is. */
static void let_go(struct finish *f) {
    for (struct claim *c = entry_claims(f->entry); c; c = c->next)
        if (c->peer == f->peer)
            c->let_go = true;
}

/* A claim set aside that was not spent after all. */
static void restore(struct finish *f) {
    struct claim *c = f->claim;
    if (!c || !c->aside || f->plan->queued) /* queued: another release of it is in flight */
        return;
    c->aside = false;
    finish_schedule(f, c);
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

static void settle_release(struct finish *f) {
    let_go(f);
    switch (f->result->outcome) {
    case LOCK_NOT_SENT:
    case LOCK_ERROR:
        restore(f);
        return;
    case LOCK_UNKNOWN:
        if (f->claim) { /* kept for a repeat, and no longer renewed */
            f->claim->doubtful = true;
            f->claim->renewing = false;
            restore(f);
        }
        return;
    case LOCK_HELD:
    case LOCK_FOREIGN:
        report_refused_release(f);
        break;
    case LOCK_FREE:
        if (f->claim && f->claim->fence && !f->claim->doubtful)
            incident_report(f->sh, INCIDENT_LATE_RELEASE, finish_occasion(f),
                            "nothing to release: the lease that it was for has ended; the lock is free");
        break;
    default:
        break;
    }
    bool released = f->result->outcome == LOCK_RELEASED || f->result->outcome == LOCK_ADOPTED;
    if (released)
        f->sh->stats.released++;
    if (released || f->claim)
        releaser_note(f->e, f->plan->rule, f->peer->client);
    if (released && strcmp(f->plan->right, "any") == 0)
        settle_spend(f, settle_touched(f));
    settle_spend(f, f->claim);
}

/* Commands that may free the lock besides what they are for. */
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
    bool unanswered = f->result->outcome == LOCK_UNKNOWN || f->result->outcome == LOCK_NOT_SENT;
    bool in_vain = f->result->outcome == LOCK_NOT_SENT || f->result->outcome == LOCK_ERROR ||
                   f->result->outcome == LOCK_UNCONFIRMED;
    if (in_vain && (verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || verb == LOCK_SWAP || verb == LOCK_COUNT_UP))
        learn_loss(f);
    if (verb == LOCK_COUNT_DOWN || ((verb == LOCK_REPLACE || verb == LOCK_REWRITE) && unanswered))
        let_go(f);
    switch (f->result->outcome) {
    case LOCK_GRANTED:
        settle_granted(f);
        break;
    case LOCK_DONE:
        settle_done(f);
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
            settle_spend(f, f->claim);
        } else {
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
    case LOCK_OPEN:
    case LOCK_ADOPTED:
        if (verb == LOCK_COUNT_UP)
            learn_loss(f); /* it counted on what is not its own */
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
        if (verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || verb == LOCK_SWAP || verb == LOCK_COUNT_UP)
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
