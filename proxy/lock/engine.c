/*
 * Commands on lock keys: what is chosen before the script runs, and what is learnt from its envelope.
 *
 *      engine_begin   entry, session's peer ──> attribute ──> plan
 *      engine_finish  envelope ──> learn (which lease is live, which are gone) ──> the verb's consequences
 *
 * Answers may come in another order than Redis ran the scripts in. What is safe to conclude follows from fences (a
 * newer lease proves the older ones gone) and from token numbers (a command that began after a lease was known and
 * found the lock free proves that lease gone).
 */
#include "proxy/lock/state.h"

#include "proxy/base/memory.h"

/* ---- the engine ------------------------------------------------------------------------------ */

struct lock_engine *engine_new(const char *process, uint64_t seed, const struct lock_sink *sink) {
    struct lock_engine *e = memory_zalloc(sizeof(*e));
    size_t len = strnlen(process, PROCESS_ID_LEN);
    memset(e->process, '-', PROCESS_ID_LEN);
    memcpy(e->process, process, len);
    e->sink = *sink;
    client_table_init(&e->clients, seed);
    ledger_init(e, seed);
    return e;
}

void engine_free(struct lock_engine *e) {
    if (!e)
        return;
    ledger_clear(e);
    client_table_clear(&e->clients);
    memory_free(e);
}

/* ---- before the script ----------------------------------------------------------------------- */

void engine_begin(struct lock_engine *e, struct lock_session *s, enum lock_verb verb, const struct lock_key *key,
                  const struct lock_rule *rule, uint32_t login, int64_t now_ms, struct lock_plan *plan) {
    plan->key = *key;
    plan->rule = rule;
    plan->verb = verb;
    plan->login = login;
    plan->begun_ms = now_ms;
    plan->claim = 0;
    plan->several = false;
    plan->claim_token[0] = '\0';
    plan->read_fence = 0;
    plan->seen_known = false;
    plan->seen_len = 0;
    uint64_t hash = ledger_hash(e, key);
    struct shard *sh = ledger_shard(e, hash);
    pthread_mutex_lock(&sh->mutex);
    plan->attempt = atomic_fetch_add(&e->attempts, 1) + 1;
    token_write(e, plan->attempt, plan->attempt_token);
    struct peer *p = peer_get(sh, s);
    p->in_flight++;
    attribute(sh, entry_find(sh, key, hash), p, now_ms, plan);
    pthread_mutex_unlock(&sh->mutex);
}

void engine_follow(struct lock_engine *e, struct lock_plan *plan, const struct lock_plan *earlier, int64_t now_ms) {
    uint64_t hash = ledger_hash(e, &plan->key);
    struct shard *sh = ledger_shard(e, hash);
    pthread_mutex_lock(&sh->mutex);
    struct entry *en = entry_find(sh, &plan->key, hash);
    struct claim *c = en ? claim_find(en, plan->claim) : NULL;
    if (c && c->aside && (plan->verb == LOCK_RELEASE || plan->verb == LOCK_COUNT_DOWN)) {
        c->aside = false;
        lease_schedule(sh, c, now_ms);
    }
    plan->claim = earlier->attempt;
    plan->several = false;
    memcpy(plan->claim_token, earlier->attempt_token, sizeof(plan->claim_token));
    if (strcmp(plan->right, "adopt") == 0)
        plan->right = "claim";
    pthread_mutex_unlock(&sh->mutex);
}

/* ---- after it -------------------------------------------------------------------------------- */

/* One engine_finish under way, its shard locked. */
struct finish {
    struct lock_engine *e;
    struct shard *sh;
    const struct lock_plan *plan;
    const struct lock_result *result;
    struct peer *peer;
    struct entry *entry; /* NULL: nothing is known of the key */
    struct claim *claim; /* the plan's, while it is there */
    struct occasion on;
    uint64_t hash;
    int64_t now_ms;
};

static struct entry *finish_entry(struct finish *f) {
    if (!f->entry)
        f->entry = entry_get(f->sh, &f->plan->key, f->hash);
    return f->entry;
}

static bool refused(const struct finish *f) {
    return f->result->outcome == LOCK_HELD || f->result->outcome == LOCK_FOREIGN;
}

/* The claim's next deadline; it may be over and is dropped then. Returns whether it is still there. */
static bool schedule(struct finish *f, struct claim *c) {
    if (lease_schedule(f->sh, c, f->now_ms))
        return true;
    if (c == f->claim)
        f->claim = NULL;
    return false;
}

/* All leases up to this fence are gone. */
static void learn_gone(struct finish *f, uint64_t fence, enum lease_end why) {
    struct entry *en = f->entry;
    if (!en || !fence)
        return;
    for (struct claim *c = en->claims, *next; c; c = next) {
        next = c->next;
        if (!c->fence || c->fence > fence)
            continue;
        lease_end(f->sh, c, why, f->now_ms);
        if (c != f->claim) /* that one is the verb's */
            schedule(f, c);
    }
    if (fence > en->gone_fence)
        en->gone_fence = fence;
    if (en->live_fence <= en->gone_fence)
        en->live_fence = 0;
}

/* The lease with this fence is live, or was when Redis ran the script. */
static void learn_live(struct finish *f, uint64_t fence, enum lease_end why_others) {
    struct entry *en = f->entry;
    if (!en || !fence || fence <= en->gone_fence || fence <= en->live_fence)
        return;
    learn_gone(f, fence - 1, why_others);
    en->live_fence = fence;
    en->live_since = atomic_load(&f->e->attempts);
}

/* No lease was live. That concerns the one that was known when the command began. */
static void learn_none(struct finish *f) {
    if (f->entry && f->plan->attempt > f->entry->live_since)
        learn_gone(f, f->entry->live_fence, LEASE_GONE);
}

static void learn(struct finish *f) {
    bool swapped = f->plan->verb == LOCK_SWAP;
    switch (f->result->outcome) {
    case LOCK_GRANTED:
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
    case LOCK_NOT_SENT:
    case LOCK_UNKNOWN:
        break;
    }
}

/* ---- witnesses ------------------------------------------------------------------------------- */

static void witness_touch(struct shard *sh, struct witness *w, const struct lock_rule *rule, int64_t now_ms) {
    int64_t least = 10000;
    w->touched_ms = now_ms;
    w->memory_ms = rule && rule->claim_memory_ms > least ? rule->claim_memory_ms : least;
    if (!w->timer.place)
        timer_set(&sh->timers, &w->timer, now_ms + w->memory_ms);
}

/* This session wanted the lock and did not get it: the lease in the way is not its own to release. */
static void remember_loss(struct finish *f) {
    if (f->peer->closed)
        return;
    struct witness *w = witness_get(f->sh, finish_entry(f), f->peer);
    w->lost = true;
    if (f->result->fence)
        w->lost_fence = f->result->fence;
    witness_touch(f->sh, w, f->plan->rule, f->now_ms);
    learn_live(f, f->result->fence, LEASE_GONE);
}

static void attempt_lost(struct finish *f) {
    f->sh->stats.lost++;
    remember_loss(f);
    if (!f->result->fence || f->peer->closed || f->plan->verb != LOCK_ACQUIRE)
        return;
    /* The lease in the way is this session's own: several workers use it. Not where one worker may believe that it
     * has released. */
    for (struct claim *c = f->entry->claims; c; c = c->next)
        if (c->peer == f->peer && c->fence == f->result->fence && claim_is_live(c, f->now_ms) && !c->let_go)
            atomic_store(&f->peer->client->proven, true);
}

static void value_shown(struct shard *sh, struct entry *en, struct peer *p, const struct lock_rule *rule,
                        uint64_t fence, const char *value, size_t len, int64_t now_ms) {
    struct witness *w = witness_get(sh, en, p);
    witness_see(w, fence, value, len);
    witness_touch(sh, w, rule, now_ms);
    attribute_sighting(sh, en, p, rule, value, len);
}

static void finish_read(struct finish *f) {
    const struct lock_result *r = f->result;
    if (f->peer->closed)
        return;
    if (refused(f) && r->value) {
        value_shown(f->sh, finish_entry(f), f->peer, f->plan->rule, r->outcome == LOCK_HELD ? r->fence : 0, r->value,
                    r->value_len, f->now_ms);
        learn_live(f, r->fence, LEASE_GONE);
    } else if (r->outcome == LOCK_FREE && f->entry) {
        struct witness *w = witness_find(f->entry, f->peer);
        if (w)
            witness_forget_seen(w);
    }
}

/* ---- claims ---------------------------------------------------------------------------------- */

static void claim_value(struct finish *f, struct claim *c) {
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
        if (c->peer != f->peer || c->uses)
            continue;
        if (c == f->claim)
            f->claim = NULL;
        claim_remove(f->sh, c);
    }
}

static void finish_granted(struct finish *f) {
    const struct lock_rule *rule = f->plan->rule;
    const struct lock_result *r = f->result;
    struct entry *en = finish_entry(f);
    struct witness *w = witness_find(en, f->peer);
    if (w) {
        w->lost = false;
        w->lost_fence = 0;
    }
    if (rule->owner == LOCK_OWNER_CONNECTION) {
        drop_older(f);
        if (w)
            witness_forget_seen(w);
    }
    struct claim *c = claim_add(f->sh, en, f->peer, rule, f->plan->attempt, r->fence);
    c->login = f->plan->login;
    c->granted_ms = f->now_ms;
    claim_value(f, c);
    c->touch = f->plan->attempt;
    lease_set(f->sh, c, r->pttl_ms, r->leased, f->plan->begun_ms, f->now_ms);
    if (r->fence < en->live_fence || r->fence <= en->gone_fence) /* overtaken by a later answer */
        lease_end(f->sh, c, LEASE_TAKEN, f->now_ms);
    f->sh->stats.granted++;
    if (r->leased)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, &f->on,
                        c->renewing ? "lease of %lld ms given, renewed while its owner is connected"
                                    : "lease of %lld ms given",
                        (long long)rule->lease_ms);
    else if (r->pttl_ms == -1)
        incident_report(f->sh, INCIDENT_NO_EXPIRY, &f->on, "left without an expiry: the rule gives no lease");
    if (f->peer->closed && !lease_owner_here(c))
        lease_abandon(f->sh, c, f->now_ms);
    schedule(f, c);
}

/* It may have acquired: a release that follows is not somebody else's. Nothing is renewed for it. */
static void finish_unknown_acquisition(struct finish *f) {
    const struct lock_rule *rule = f->plan->rule;
    if (f->claim && claim_is_live(f->claim, f->now_ms))
        return; /* it changed that one, or it did not */
    struct claim *c = claim_add(f->sh, finish_entry(f), f->peer, rule, f->plan->attempt, 0);
    c->login = f->plan->login;
    c->granted_ms = f->now_ms;
    c->end_ms = f->now_ms + rule->lease_ms;
    c->reported = c->let_go = true;
    claim_value(f, c);
    schedule(f, c);
}

/* The claim with the live lease, where the script let the caller touch it whoever it is. */
static struct claim *touched(struct finish *f) {
    if (f->claim && f->claim->fence == f->result->fence)
        return f->claim;
    for (struct claim *c = f->entry ? f->entry->claims : NULL; c; c = c->next)
        if (c->fence && c->fence == f->result->fence)
            return c;
    return f->claim && !f->claim->fence ? f->claim : NULL;
}

static void finish_done(struct finish *f) {
    struct claim *c = touched(f);
    /* Answers to commands of several sessions may cross: the newest command counts. */
    if (!c || c->touch > f->plan->attempt)
        return;
    c->touch = f->plan->attempt;
    if (!c->fence) { /* what had been unknown */
        c->fence = f->result->fence;
        c->reported = f->peer->closed;
    }
    if (f->plan->verb != LOCK_EXTEND)
        claim_value(f, c);
    int64_t end_ms = c->end_ms;
    lease_set(f->sh, c, f->result->pttl_ms, f->result->leased, f->plan->begun_ms, f->now_ms);
    if (f->plan->verb == LOCK_REPLACE && c->end_ms && (!end_ms || c->end_ms < end_ms))
        c->let_go = true; /* SET XX with a short expiry is how some release */
    schedule(f, c);
}

static void spend(struct finish *f, struct claim *c) {
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
    for (struct claim *c = f->entry ? f->entry->claims : NULL; c; c = c->next)
        if (c->peer == f->peer)
            c->let_go = true;
}

/* A claim set aside that was not spent after all. */
static void restore(struct finish *f) {
    struct claim *c = f->claim;
    if (!c || !c->aside)
        return;
    c->aside = false;
    schedule(f, c);
}

static void report_refused_release(struct finish *f) {
    f->sh->stats.refused_releases++;
    if (!f->claim) {
        incident_report(f->sh, INCIDENT_FOREIGN_RELEASE, &f->on, "refused: this client holds no lease of the lock");
        return;
    }
    incident_report(f->sh, INCIDENT_LATE_RELEASE, &f->on,
                    "refused: the lease that it was for has ended, another one is live");
    if (!f->plan->several || !f->result->fence)
        return;
    for (struct claim *c = f->entry->claims; c; c = c->next)
        if (c != f->claim && c->fence == f->result->fence && c->peer->client == f->peer->client) {
            incident_report(f->sh, INCIDENT_AMBIGUOUS, &f->on,
                            "refused: it counts for the older of several leases; to tell workers apart: owner "
                            "connection, a connection a worker for locks, CLIENT SETNAME a worker, or values of "
                            "their own with read, compare, delete");
            break;
        }
}

static void finish_release(struct finish *f) {
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
    default:
        break;
    }
    bool released = f->result->outcome == LOCK_RELEASED || f->result->outcome == LOCK_ADOPTED;
    if (released)
        f->sh->stats.released++;
    if (released || f->claim)
        releaser_note(f->e, f->plan->rule, f->peer->client);
    if (released && strcmp(f->plan->right, "any") == 0)
        spend(f, touched(f));
    spend(f, f->claim);
}

/* Commands that may free the lock besides what they are for. */
static void finish_freed(struct finish *f) {
    struct claim *c = touched(f);
    if (!c)
        c = f->claim;
    if (!c)
        return;
    f->sh->stats.released++;
    releaser_note(f->e, f->plan->rule, f->peer->client);
    uint64_t fence = c->fence;
    spend(f, c);
    learn_gone(f, fence, LEASE_TAKEN);
}

static void finish_change(struct finish *f) {
    enum lock_verb verb = f->plan->verb;
    bool unanswered = f->result->outcome == LOCK_UNKNOWN || f->result->outcome == LOCK_NOT_SENT;
    bool in_vain = f->result->outcome == LOCK_NOT_SENT || f->result->outcome == LOCK_ERROR;
    if (in_vain && (verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || verb == LOCK_SWAP || verb == LOCK_COUNT_UP))
        remember_loss(f);
    if (verb == LOCK_COUNT_DOWN || (verb == LOCK_REPLACE && unanswered))
        let_go(f);
    switch (f->result->outcome) {
    case LOCK_GRANTED:
        finish_granted(f);
        break;
    case LOCK_DONE:
        finish_done(f);
        break;
    case LOCK_RELEASED:
        finish_freed(f);
        break;
    case LOCK_COUNTED:
        claim_value(f, touched(f));
        if (verb == LOCK_COUNT_UP)
            attempt_lost(f);
        else
            spend(f, f->claim); /* a late release: somebody else's counter is there now */
        break;
    case LOCK_HELD:
    case LOCK_FOREIGN:
        if (verb == LOCK_ACQUIRE) {
            attempt_lost(f);
        } else if (verb == LOCK_EXTEND) {
            f->sh->stats.refused_extends++;
            incident_report(f->sh, INCIDENT_FOREIGN_EXTEND, &f->on,
                            "refused: this client does not hold the lock; its expiry is unchanged");
        } else if (verb == LOCK_COUNT_DOWN) {
            report_refused_release(f);
            spend(f, f->claim);
        } else {
            incident_report(f->sh, INCIDENT_OVERWRITE, &f->on,
                            "refused: somebody else holds the lock; nothing was written");
            if (verb != LOCK_CLOBBER)
                remember_loss(f);
        }
        break;
    case LOCK_FREE:
        if (verb == LOCK_COUNT_DOWN)
            spend(f, f->claim);
        else if (verb == LOCK_COUNT_UP)
            remember_loss(f); /* it counted, and is not above zero yet */
        break;
    case LOCK_UNKNOWN:
        if (verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || verb == LOCK_SWAP || verb == LOCK_COUNT_UP)
            finish_unknown_acquisition(f);
        break;
    default:
        break;
    }
    if (verb == LOCK_COUNT_DOWN)
        restore(f);
}

static void finish_verb(struct finish *f) {
    switch (f->plan->verb) {
    case LOCK_ACQUIRE:
    case LOCK_REPLACE:
    case LOCK_SWAP:
    case LOCK_EXTEND:
    case LOCK_COUNT_UP:
    case LOCK_COUNT_DOWN:
    case LOCK_CLOBBER:
        finish_change(f);
        break;
    case LOCK_RELEASE:
        finish_release(f);
        break;
    case LOCK_READ:
        finish_read(f);
        break;
    case LOCK_OPERATOR:
        /* The holder's claim stays, for the release that the holder will still send. */
        if (f->result->outcome == LOCK_RELEASED)
            incident_report(f->sh, INCIDENT_OPERATOR_RELEASE, &f->on, "released");
        break;
    case LOCK_INSPECT:
        break;
    }
}

void engine_finish(struct lock_engine *e, struct lock_session *s, uint64_t session_id, const struct lock_plan *plan,
                   const struct lock_result *result, const char *command, const char *client, int64_t now_ms) {
    (void)s; /* what the shard remembers of the session outlives it until here */
    struct finish f = {
        .e = e,
        .plan = plan,
        .result = result,
        .hash = ledger_hash(e, &plan->key),
        .now_ms = now_ms,
        .on = {.now_ms = now_ms,
               .key = plan->key,
               .client = client,
               .command = command,
               .holder = result->holder,
               .holder_len = result->holder_len},
    };
    f.sh = ledger_shard(e, f.hash);
    pthread_mutex_lock(&f.sh->mutex);
    f.peer = peer_find(f.sh, session_id);
    f.entry = entry_find(f.sh, &plan->key, f.hash);
    f.claim = f.entry ? claim_find(f.entry, plan->claim) : NULL;
    if (f.claim)
        f.claim->uses--;
    if (result->outcome == LOCK_GRANTED)
        finish_entry(&f);
    learn(&f);
    finish_verb(&f);
    if (f.claim && f.claim->ended)
        schedule(&f, f.claim);
    if (f.entry)
        entry_settle(f.sh, f.entry);
    f.peer->in_flight--;
    peer_settle(f.sh, f.peer);
    pthread_mutex_unlock(&f.sh->mutex);
}

void engine_saw(struct lock_engine *e, struct lock_session *s, const struct lock_key *key, const struct lock_rule *rule,
                const char *value, size_t len, int64_t now_ms) {
    uint64_t hash = ledger_hash(e, key);
    struct shard *sh = ledger_shard(e, hash);
    pthread_mutex_lock(&sh->mutex);
    if (value) {
        value_shown(sh, entry_get(sh, key, hash), peer_get(sh, s), rule, 0, value, len, now_ms);
    } else {
        struct entry *en = entry_find(sh, key, hash);
        struct peer *p = en ? peer_find(sh, s->id) : NULL;
        struct witness *w = p ? witness_find(en, p) : NULL;
        if (w)
            witness_forget_seen(w);
    }
    pthread_mutex_unlock(&sh->mutex);
}
