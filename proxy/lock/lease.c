/*
 * Leases in time: their ends, their renewal while somebody is there for whom to renew, and what is left of them when
 * their owner leaves. Knows no commands.
 */
#include "proxy/lock/state.h"

/* ---- who releases, and who never does --------------------------------------------------------- */

static uint64_t releaser_hash(const struct lock_rule *rule, const struct lock_client *c) {
    return c->hash ^ rule->hash;
}

void releaser_note(struct lock_engine *e, const struct lock_rule *rule, const struct lock_client *c) {
    uint64_t hash = releaser_hash(rule, c);
    atomic_store_explicit(&e->releasers[hash % RELEASERS], hash, memory_order_relaxed);
}

bool releaser_known(const struct lock_engine *e, const struct lock_rule *rule, const struct lock_client *c) {
    uint64_t hash = releaser_hash(rule, c);
    return atomic_load_explicit(&e->releasers[hash % RELEASERS], memory_order_relaxed) == hash;
}

/* A lock with an expiry of the application's own whose client never released one is meant to run out. */
static bool release_expected(const struct shard *sh, const struct claim *c) {
    return c->fence && !c->aside && !c->doubtful &&
           (c->leased || (c->observed && !c->end_ms) || releaser_known(sh->engine, c->rule, c->peer->client));
}

/* ---- a lease's course ------------------------------------------------------------------------- */

bool client_still_here(const struct peer *p) {
    return atomic_load(&p->client->epoch) == p->epoch;
}

bool lease_owner_here(const struct claim *c) {
    const struct peer *p = c->peer;
    if (!p->closed)
        return !p->remote;
    return claim_shared(c) && client_still_here(p);
}

static void revive(struct shard *sh, struct claim *c) {
    if (!c->ended || c->fence < c->entry->live_fence || c->fence <= c->entry->gone_fence)
        return;
    c->ended = false;
    sh->live += !c->peer->remote;
}

void lease_set(struct shard *sh, struct claim *c, int64_t pttl_ms, bool leased, int64_t since_ms, int64_t now_ms) {
    if (pttl_ms < -1)
        return;
    if (pttl_ms > FAR_MS)
        pttl_ms = FAR_MS;
    revive(sh, c);
    int64_t end_ms = pttl_ms < 0 ? 0 : now_ms + pttl_ms;
    int64_t inexact_ms = now_ms - since_ms + 50, moved_ms = end_ms - c->end_ms;
    /* The application's expiry is renewed for as long as it was, also when a command has left it as it is. */
    if (leased)
        c->period_ms = c->rule->lease_ms;
    else if (moved_ms > inexact_ms || moved_ms < -inexact_ms || c->leased)
        c->period_ms = pttl_ms;
    if (pttl_ms > 0 && (moved_ms > inexact_ms || moved_ms < -inexact_ms))
        c->length_ms = pttl_ms;
    c->leased = leased;
    c->end_ms = end_ms;
    bool wanted = c->rule->renew == LOCK_RENEW_ALWAYS || (c->rule->renew == LOCK_RENEW_AUTO && leased);
    c->renewing = wanted && c->period_ms > 0 && !c->doubtful && !c->reported && !c->observed;
    /* When a third of it is over, counted from when it may have begun. The application may have touched the lock
     * without moving its end. */
    c->renew_ms = since_ms + pttl_ms - c->period_ms * 2 / 3;
    if (c->renew_ms < now_ms)
        c->renew_ms = now_ms;
}

bool lease_told(struct shard *sh, struct claim *c, const struct lock_result *r, uint64_t began, int64_t since_ms,
                int64_t now_ms) {
    int64_t pttl_ms = r->pttl_ms, left_ms = c->end_ms - now_ms;
    bool leased = r->leased, crossed = began <= c->told;
    if (pttl_ms < -1)
        return false; /* it did not tell */
    if (crossed && c->end_ms && left_ms > pttl_ms) {
        pttl_ms = left_ms;
        leased = c->leased;
    }
    c->told = atomic_load(&sh->engine->attempts);
    c->told_since = true;
    c->told_by = 0;
    lease_set(sh, c, pttl_ms, leased, since_ms, now_ms);
    return !crossed;
}

static struct occasion proxys_occasion(const struct claim *c, int64_t now_ms) {
    return (struct occasion){.now_ms = now_ms, .key = entry_key(c->entry), .client = c->peer->client->name};
}

/* E: a lease that a refused release has made suspicious ended without another one: that was its holder's, over another
 * connection of a pool. */
static void learn_from_end(struct shard *sh, struct claim *c, int64_t now_ms) {
    enum { OWN_ROW = 2 };
    struct family *f = c->family;
    bool released = c->aside || c->doubtful; /* or perhaps: its own release has been sent */
    if (!f || c->rule->owner != LOCK_OWNER_AUTO || c->peer->closed || c->peer->remote || c->observed || released ||
        f->row >= OWN_ROW || family_owns(f, c->peer) || !claim_suspicious(c, 0))
        return;
    struct lock_key key = entry_key(c->entry);
    if (family_vote(f, c->peer, NULL))
        family_pool(sh, f, &key, now_ms);
    c->deadline_ms = c->end_ms; /* its release has been sent */
}

void lease_end(struct shard *sh, struct claim *c, enum lease_end why, int64_t now_ms) {
    enum { INEXACT_MS = 50 };
    if (c->ended)
        return;
    bool report = why == LEASE_GONE && c->renewing && !c->aside && !c->doubtful && !c->scripted;
    if (why != LEASE_OVER && c->fence) {
        struct entry *en = c->entry;
        if (c->fence > en->gone_fence)
            en->gone_fence = c->fence;
        if (en->live_fence <= en->gone_fence)
            en->live_fence = 0;
    }
    /* Who asks again and again may be told of the end before it was noticed here. */
    bool by_itself = why == LEASE_OVER || (why == LEASE_GONE && c->end_ms && c->end_ms <= now_ms + INEXACT_MS);
    c->ended = true;
    c->cut_short = !c->end_ms || c->end_ms > now_ms || c->asked;
    sh->live -= !c->peer->remote;
    if (!c->end_ms || c->end_ms > now_ms)
        c->end_ms = now_ms;
    struct occasion on = proxys_occasion(c, now_ms);
    if (report)
        incident_report(sh, INCIDENT_RENEWAL_LOST, &on, "the lease was found gone; renewal ended");
    if (why == LEASE_OVER && !c->reported && lease_owner_here(c) && release_expected(sh, c))
        incident_report(sh, INCIDENT_OVERRUN, &on,
                        "lease ended after %lld ms, its owner is connected; what it still sends %s be refused",
                        (long long)(c->end_ms - c->granted_ms), c->observed ? "would" : "will");
    if (by_itself)
        learn_from_end(sh, c, now_ms);
    /* A renewal in flight may still bring the news that it was in time. */
    if (why != LEASE_OVER || !c->asked)
        c->renewing = false;
}

/* Under audit nothing ends a lock without an expiry; without its owner it is remembered for as long as its lease would
 * have gone on. */
static void bound_memory(struct claim *c, int64_t now_ms) {
    if (c->end_ms || !c->reported || !(c->observed || c->rule->lease_ms))
        return;
    c->end_ms = now_ms + (c->rule->lease_ms ? c->rule->lease_ms : claim_memory(c));
}

bool lease_schedule(struct shard *sh, struct claim *c, int64_t now_ms) {
    int64_t due;
    if (!c->ended) {
        bound_memory(c, now_ms);
        due = c->end_ms ? c->end_ms + (c->asked ? RENEWAL_GRACE_MS : 0) : NO_DEADLINE;
        if (c->renewing && !c->asked && c->renew_ms < due)
            due = c->renew_ms;
    } else if (claim_is_over(sh, c, now_ms)) {
        struct peer *p = c->peer;
        claim_remove(sh, c);
        peer_settle(sh, p);
        return false;
    } else {
        due = claim_deadline(sh, c);
        if (due <= now_ms) /* kept while it is in use */
            due = now_ms + TICK_MAX_MS;
    }
    timer_set(&sh->timers, &c->timer, due);
    return true;
}

static struct lock_lease lease_of(const struct shard *sh, const struct claim *c, const char *right) {
    struct lock_lease l = {
        .key = entry_key(c->entry),
        .rule = c->rule,
        .login = c->login,
        .token = c->token,
        .right = right,
        .lease_ms = c->period_ms,
    };
    l.token_len = token_write(sh->engine, c->token, l.token_text);
    return l;
}

/* Nothing is done about a lock in audit, and one without an expiry stays for ever. */
static void report_observed_abandon(struct shard *sh, const struct claim *c, const struct occasion *on, bool release,
                                    int64_t now_ms) {
    if (release)
        incident_report(sh, INCIDENT_ABANDONED, on, "would be released: its owner has disconnected");
    else if (!c->end_ms && c->rule->lease_ms)
        incident_report(sh, INCIDENT_ABANDONED, on,
                        "would end with its lease, in %lld ms: its owner has disconnected, and it has no expiry",
                        (long long)c->rule->lease_ms);
    else
        incident_report(sh, INCIDENT_ABANDONED, on,
                        "its owner has disconnected; it is kept until its expiry, in %lld ms",
                        (long long)(c->end_ms ? c->end_ms - now_ms : 0));
}

void lease_abandon(struct shard *sh, struct claim *c, int64_t now_ms) {
    if (c->reported)
        return;
    c->reported = true;
    c->renewing = false;
    /* A list lock's node is dead without its owner. */
    bool release = c->rule->on_disconnect == LOCK_DISCONNECT_RELEASE || (c->queue && c->rule->owner != LOCK_OWNER_ANY);
    /* The answer to a renewal may be on its way, that it was in time. */
    bool perhaps_live = claim_is_live(c, now_ms) || (release && !c->ended && c->asked);
    if (!perhaps_live || c->aside || c->doubtful)
        return;
    struct occasion on = proxys_occasion(c, now_ms);
    if (release || release_expected(sh, c)) {
        if (c->observed)
            report_observed_abandon(sh, c, &on, release, now_ms);
        else if (release)
            incident_report(sh, INCIDENT_ABANDONED, &on, "released, its owner has disconnected");
        else
            incident_report(sh, INCIDENT_ABANDONED, &on,
                            "its owner has disconnected; kept until its lease ends in %lld ms",
                            (long long)(c->end_ms ? c->end_ms - now_ms : 0));
    }
    if (release && !c->observed) {
        struct lock_lease l = lease_of(sh, c, "claim");
        sh->engine->sink.release(sh->engine->sink.arg, &l);
        lease_end(sh, c, LEASE_TAKEN, now_ms);
    }
}

/* ---- time ------------------------------------------------------------------------------------- */

static void renew(struct shard *sh, struct claim *c, int64_t now_ms) {
    if (now_ms >= c->granted_ms + c->rule->max_hold_ms) {
        c->renewing = false;
        return;
    }
    c->asked = true;
    c->told_since = false;
    c->renew_ms = now_ms;
    struct lock_lease l = lease_of(sh, c, c->rule->renew == LOCK_RENEW_ALWAYS ? "always" : "claim");
    l.left_ms = c->end_ms > now_ms ? c->end_ms - now_ms : 0;
    sh->engine->sink.renew(sh->engine->sink.arg, &l);
}

static void claim_due(struct shard *sh, struct claim *c, int64_t now_ms) {
    struct entry *en = c->entry;
    if (!c->ended) {
        if (c->end_ms && now_ms >= c->end_ms + (c->asked ? RENEWAL_GRACE_MS : 0))
            lease_end(sh, c, LEASE_OVER, now_ms);
        else if (c->renewing && !c->asked && now_ms >= c->renew_ms)
            renew(sh, c, now_ms);
    }
    if (!lease_schedule(sh, c, now_ms))
        entry_settle(sh, en);
}

/* A witness outlasts its memory while the key has claims that it may be needed to judge, or nodes that count for as
 * long as their owner is connected. */
static void witness_due(struct shard *sh, struct witness *w, int64_t now_ms) {
    struct entry *en = w->entry;
    int64_t until = w->touched_ms + w->memory_ms;
    if (now_ms < until) {
        timer_set(&sh->timers, &w->timer, until);
    } else if (en->claims || (w->queue_rule && w->queue_rule->lease_ms == 0 && !w->peer->closed)) {
        timer_set(&sh->timers, &w->timer, now_ms + w->memory_ms);
    } else {
        struct peer *p = w->peer;
        witness_remove(sh, w);
        entry_settle(sh, en);
        peer_settle(sh, p);
    }
}

int64_t engine_tick(struct lock_engine *e, unsigned part, unsigned parts, int64_t now_ms) {
    int64_t next = now_ms + TICK_MAX_MS;
    for (unsigned i = part; i < SHARDS; i += parts) {
        struct shard *sh = &e->shards[i];
        shard_lock(sh);
        struct timer *t;
        while ((t = timer_due(&sh->timers, now_ms))) {
            if (t->kind == TIMER_CLAIM)
                claim_due(sh, LIST_ENTRY(t, struct claim, timer), now_ms);
            else
                witness_due(sh, LIST_ENTRY(t, struct witness, timer), now_ms);
        }
        ledger_trim(sh);
        family_trim(sh, now_ms);
        int64_t due = timer_next(&sh->timers);
        if (due < next)
            next = due;
        shard_unlock(sh);
    }
    return next - now_ms > 1 ? next - now_ms : 1;
}

bool engine_wants_renewal(struct lock_engine *e, const struct lock_key *key, uint64_t token) {
    uint64_t hash = ledger_hash(e, key, NULL);
    struct shard *sh = ledger_shard(e, hash);
    shard_lock(sh);
    const struct claim *c = claim_find(entry_find(sh, key, hash), token);
    bool wanted = c && c->renewing;
    shard_unlock(sh);
    return wanted;
}

void engine_renewed(struct lock_engine *e, const struct lock_key *key, uint64_t token, const struct lock_result *r,
                    int64_t now_ms) {
    enum lock_outcome outcome = r->outcome;
    uint64_t hash = ledger_hash(e, key, NULL);
    struct shard *sh = ledger_shard(e, hash);
    shard_lock(sh);
    struct entry *en = entry_find(sh, key, hash);
    struct claim *c = claim_find(en, token);
    if (c) {
        c->asked = false;
        if (outcome == LOCK_DONE) {
            c->renewals++;
            sh->stats.renewals++;
            /* It ran before the application set the expiry that has been told meanwhile: afterwards it is none of the
             * proxy's own. */
            bool crossed = c->told_since;
            if (!r->leased || c->leased || !crossed)
                lease_told(sh, c, r, crossed ? 0 : UINT64_MAX, crossed ? now_ms : c->renew_ms, now_ms);
        } else if (outcome == LOCK_HELD || outcome == LOCK_FOREIGN || outcome == LOCK_FREE) {
            lease_end(sh, c, LEASE_GONE, now_ms);
        } else {
            int64_t pause = c->period_ms / 10, perhaps_ms = now_ms + c->period_ms;
            if (outcome == LOCK_UNKNOWN && c->renewing && c->end_ms && c->end_ms < perhaps_ms)
                c->end_ms = perhaps_ms; /* it may have been done */
            c->renew_ms = now_ms + (pause > RETRY_MIN_MS ? pause : RETRY_MIN_MS);
        }
        if (!lease_schedule(sh, c, now_ms))
            entry_settle(sh, en);
    }
    shard_unlock(sh);
}
