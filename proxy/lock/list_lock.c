/*
 * List locks: which session owns a node, what a session has in the queue, and what the scripts' answers mean.
 *
 * A node is known by its value, so Redis decides which party owns it (scripts/lua/list.lua): the session, or its client
 * if its sessions are pooled. The session's contender remembers that nodes were pushed, for the moment when the session
 * closes. The holder's lease is a claim like any other. A session that was shown a node of its client at the head may
 * be the holder, and has a claim, too.
 */
#include "proxy/lock/outcome.h"

static void note_push(struct outcome *f) {
    const struct lock_rule *rule = f->plan->rule;
    struct contender *w = contender_get(f->sh, outcome_entry(f), f->peer);
    if (w->queue_rule != rule) {
        queue_forget(w);
        w->queue_rule = rule;
        lock_rules_ref(rule->set);
    }
    w->login = f->plan->login;
    *(f->plan->right == RIGHT_CLIENT ? &w->queued_client : &w->queued_own) = true;
    contender_touched(f->sh, w, rule, f->now_ms);
    if (f->peer->closed && !queue_leave(f->sh, w))
        contender_remove(f->sh, w);
}

/* K1: the session pushes this node, or tries to. It may be recognised for it once it is shown the node at the head. */
static void note_node(struct outcome *f) {
    if (f->peer->closed || !f->result->value)
        return;
    struct contender *w = contender_get(f->sh, outcome_entry(f), f->peer);
    w->tried = outcome_value(f);
    contender_touched(f->sh, w, f->plan->rule, f->now_ms);
}

/* Makes a claim for a session that was shown the node at the head and may be its owner. The lease is renewed for the
 * session as for the owner. */
static void apply_shown(struct outcome *f) {
    const struct lock_result *r = f->result;
    if (!r->value || f->peer->closed)
        return;
    struct entry *en = outcome_entry(f);
    if (r->fence < en->live_fence || r->fence <= en->gone_fence) /* a later answer came first */
        return;
    if (claim_find(en, f->plan->attempt)) /* the command was sent twice */
        return;
    struct claim *c = outcome_claim(f, r->fence);
    c->shown = true;
    c->told = atomic_load(&f->e->attempts);
    lease_set(f->sh, c, r->pttl_ms, r->leased, f->plan->begun_ms, f->now_ms);
    outcome_schedule(f, c);
    note_push(f);
}

/* A session that looks at the head again does not work under its lease: its claim as a possible owner ends. */
static void apply_looks_again(struct outcome *f) {
    for (struct claim *c = entry_claims(f->entry), *next; c; c = next) {
        next = c->next;
        if (c->peer == f->peer && c->shown && c->fence == f->result->fence && !c->uses)
            outcome_spend(f, c);
    }
}

/* K1: the session was shown this node at the head. LPOS names the node, as a push does. Once the session that pushed it
 * has left, this session's own claim at the head counts. */
static void note_head(struct outcome *f) {
    const struct lock_result *r = f->result;
    if (!r->value || f->peer->closed)
        return;
    bool named = r->shown && r->shown_len == r->value_len && memcmp(r->shown, r->value, r->value_len) == 0;
    if (named)
        note_node(f);
    struct contender *w = contender_find(f->entry, f->peer);
    if (!w)
        return;
    const struct claim *c = entry_claims(f->entry); /* another open session's for this lease */
    while (c && !(c->fence == r->fence && c->peer != f->peer && !c->peer->closed))
        c = c->next;
    if (c) {
        (void)recognise(f->sh, w, f->plan->rule, outcome_workload(f), r->fence, r->value, r->value_len, f->now_ms);
    } else if (w->recognised == r->fence) {
        apply_looks_again(f);
        w->recognised = 0;
    }
}

/* ---- answers ----------------------------------------------------------------------------------- */

static void apply_push(struct outcome *f) {
    switch (f->result->outcome) {
    case LOCK_GRANTED:
        note_push(f);
        apply_granted(f);
        break;
    case LOCK_DONE:
    case LOCK_UNKNOWN: /* the node may be in the queue */
        note_push(f);
        note_node(f);
        break;
    case LOCK_HELD:
    case LOCK_FOREIGN:
        note_node(f);
        f->sh->stats.lost++;
        outcome_refusal(f, INCIDENT_OVERWRITE,
                        "it would come before a node of another owner, or take itself for the holder; nothing was "
                        "pushed");
        break;
    default:
        break;
    }
}

static void apply_remove(struct outcome *f) {
    enum lock_outcome outcome = f->result->outcome;
    if (outcome == LOCK_RELEASED) {
        apply_freed(f);
    } else if (outcome_refused(f) || outcome == LOCK_FREE) {
        const struct lock_result *r = f->result;
        uint64_t hash = r->value ? hash_bytes(&f->e->value_seed, r->value, r->value_len) : 0;
        /* the caller's claim whose lease was for this node and has ended */
        struct claim *c = r->value ? entry_claims(f->entry) : NULL;
        while (c && !(c->queue && claim_ended(c) && c->valued && c->value == hash &&
                      (c->peer == f->peer ||
                       (c->peer->client == f->peer->client && queue_by_client(f->peer, f->plan->rule)))))
            c = c->next;
        f->sh->stats.refused_releases += outcome_refused(f);
        if (c)
            incident_report(f->sh, INCIDENT_LATE_RELEASE, outcome_occasion(f),
                            "nothing to release: the node's lease had ended, and it is not in the queue any more");
        else if (outcome_refused(f))
            outcome_refusal(f, INCIDENT_FOREIGN_RELEASE, "this client has no such node in the queue");
        outcome_spend(f, c);
    }
}

void queue_apply(struct outcome *f) {
    struct contender *w = contender_find(f->entry, f->peer);
    if (f->result->lost) {
        struct lock_incident on = *outcome_occasion(f);
        on.holder = f->result->lost_owner;
        on.holder_len = f->result->lost_owner_len;
        incident_report(f->sh, INCIDENT_LOST_HEAD, &on,
                        "%llu dead nodes removed from the head of the queue: owner gone, lease over, or not looked for "
                        "5 s",
                        (unsigned long long)f->result->lost);
    }
    switch (f->plan->verb) {
    case LOCK_QUEUE_PUSH:
        apply_push(f);
        break;
    case LOCK_QUEUE_READ:
        if (w && w->queue_rule) /* the session reads the queue: its nodes are remembered for longer */
            contender_touched(f->sh, w, f->plan->rule, f->now_ms);
        if (f->result->outcome == LOCK_GRANTED) {
            apply_granted(f);
        } else if (f->result->outcome == LOCK_DONE) {
            apply_done(f);
        } else if (f->result->outcome == LOCK_ADOPTED) {
            note_head(f);
            apply_shown(f);
        } else if (f->result->outcome == LOCK_HELD) {
            apply_looks_again(f);
        }
        break;
    case LOCK_QUEUE_REMOVE:
        apply_remove(f);
        break;
    default: /* LOCK_QUEUE_SET: the caller's node has another value */
        if (f->result->outcome == LOCK_DONE && f->result->fence)
            claim_value(f, outcome_touched(f));
        if (f->result->outcome == LOCK_DONE || f->result->outcome == LOCK_UNKNOWN)
            note_push(f);
        else if (outcome_refused(f))
            outcome_refusal(f, INCIDENT_OVERWRITE,
                            "it would change or remove a node of another owner; nothing was done");
        break;
    }
}
