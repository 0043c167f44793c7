/*
 * Chooses the claim that a command uses, before its script runs. The letters are those of the rules in docs/locks.md.
 * aftermath.c decides about a loser's release.
 *
 *      dedicated session ──> its own claims
 *      pooled session    ──> its identity's claims: the value shown last, else the oldest
 *      neither           ──> believed within one identity, unless the session lost its last attempt
 *
 * S6: between different client identities nothing is ever believed. The scripts compare the guard record's owner.
 */
#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/lock/choose.h"

enum {
    DEBT_SHARE = 4,     /* D1: a lost attempt expects a release for this part of the lease */
    FOLLOWED_LEAST = 4, /* F2: so many losses say whether an EXPIRE follows */
    FOLLOW_SHARE = 20,  /* F2: an EXPIRE within this part of the lease follows a loss */
    TWICE = 2           /* D2: how often a release follows another over one session */
};

void lock_plan_see(struct lock_plan *plan, const char *data, size_t len) {
    char *to = plan->seen_short;
    if (len > LOCK_SEEN_SHORT)
        to = plan->seen_long = memory_realloc(plan->seen_long, len);
    if (len)
        memcpy(to, data, len);
    plan->seen_len = (uint32_t)len;
    plan->seen_known = true;
}

static bool usable(const struct shard *sh, const struct claim *c, int64_t now_ms) {
    return c->release == RELEASE_NONE && !claim_is_over(sh, c, now_ms);
}

/* ---- whose claims a command may mean ------------------------------------------------------------- */

/* A command that is being planned: the session that sends it, and what is known of that session. */
struct speaker {
    struct shard *sh;
    struct entry *en;
    struct peer *self;
    struct workload *workload;
    struct key_stats *key_stats;
    struct contender *contender;
    struct claim *live;    /* its client's live lease, as far as this proxy knows; NULL: none */
    enum lock_owner owner; /* of the key's rule; AUTO without a rule */
    bool pooled, loser, released;
    bool recognised; /* K: the claim that the session is recognised for counts as its own */
    uint64_t named;  /* C2: of a release, the value that it names itself (lock_plan.named); 0: none */
    int64_t now_ms;
};

enum whose { OWN, THE_CLIENTS, OF_CLOSED };

/* K1: whether a claim on a list lock's head counts for a session that is recognised for the head's lease. If the
 * session that pushed the node has a claim, that claim counts instead of the session's own (list.lua). */
static bool counts_at_head(const struct claim *c, const struct speaker *s) {
    if (!s->recognised || !c->queue || c->peer != s->self || c->fence != s->contender->recognised)
        return true;
    const struct claim *pusher = entry_claims(s->en);
    while (pusher && (pusher->fence != c->fence || pusher->peer == s->self))
        pusher = pusher->next;
    return !pusher;
}

static bool is_of(enum whose whose, const struct claim *c, const struct speaker *s) {
    /* S6: the claims of its identity, and no others. */
    bool same = c->peer->client == s->self->client;
    switch (whose) {
    /* S1, L2: only the session that acquired uses the claim. C4: a claim that awaits its owner's release is not meant
     * by a command behind a loss or another release. */
    case OWN:
        return (c->peer == s->self || (s->recognised && recognised_for(s->contender, c))) && counts_at_head(c, s) &&
               !(c->lease == LEASE_AWAITS_OWNER && (s->loser || s->released));
    /* C6: a lease that made way early may have been released at another proxy that serves the workload. */
    case THE_CLIENTS:
        return same && c->lease != LEASE_AWAITS_OWNER &&
               !(c->lease == LEASE_CUT_SHORT && s->workload && s->workload->elsewhere);
    case OF_CLOSED:
        return same && c->peer->closed;
    }
    return false;
}

/* The claims that a command may use. */
struct offer {
    unsigned count;
    bool differ; /* their values differ */
    struct claim *oldest, *oldest_live, *shown_last, *newest_unended;
};

static struct offer offers_of(const struct speaker *s, enum whose whose) {
    struct offer o = {0};
    const struct claim *valued = NULL;
    for (struct claim *c = entry_claims(s->en); c; c = c->next) {
        bool another = s->named && c->valued && c->value != s->named;
        if (another || !usable(s->sh, c, s->now_ms) || !is_of(whose, c, s))
            continue;
        o.count++;
        if (!o.oldest)
            o.oldest = c;
        if (!o.oldest_live && claim_is_live(c, s->now_ms))
            o.oldest_live = c;
        if (valued && c->valued && c->value != valued->value)
            o.differ = true;
        if (c->valued)
            valued = c;
        if (c->extra && c->extra->sighted > (o.shown_last ? o.shown_last->extra->sighted : 0))
            o.shown_last = c;
        if (!claim_ended(c))
            o.newest_unended = c;
    }
    return o;
}

/* C1: the claims of the session, or of the identity if it is pooled. If there are none, the claims of the identity's
 * closed sessions, unless the session is a loser. */
static struct offer offers_for(const struct speaker *s) {
    struct offer o = offers_of(s, s->pooled ? THE_CLIENTS : OWN);
    if (o.count || s->pooled || s->loser)
        return o;
    o = offers_of(s, OF_CLOSED);
    if (o.oldest_live) { /* the live claim comes first, whatever value the session was shown */
        o.oldest = o.oldest_live;
        o.differ = false;
    }
    return o;
}

/* The session's own claim to whose release the answer got lost: a repeated release may be for it. */
static struct claim *doubtful_claim(const struct speaker *s) {
    for (struct claim *c = entry_claims(s->en); c; c = c->next)
        if (c->release == RELEASE_DOUBTFUL && c->peer == s->self && !claim_is_over(s->sh, c, s->now_ms))
            return c;
    return NULL;
}

/* C4: whether another release of the client, perhaps the live lease's, is on its way. */
static bool release_under_way(const struct speaker *s) {
    for (const struct claim *c = entry_claims(s->en); c; c = c->next)
        if (claim_releasing(c) && c->peer->client == s->self->client)
            return true;
    return false;
}

static inline void plan_claim(struct shard *sh, struct lock_plan *plan, struct claim *c) {
    if (!c)
        return;
    plan->claim = c->token;
    plan->claim_fence = c->fence;
    plan->short_record = c->short_record;
    plan->uses = true;
    c->uses++;
    if (c->peer->remote)
        plan->right = RIGHT_BELIEVE; /* another proxy made the token, so that the script compares the owner */
    else
        plan->claim_len = token_write(sh->engine, c->token, plan->claim_token);
    if (lock_verb_is(plan->verb, VERB_SPENDS) && !plan->queued)
        claim_release_sent(c);
}

/* Plans a command by a claim; NULL: by none. K: if another proxy gave the lease that the session is recognised for, the
 * script finds the lease by its fence. */
static void plan_use(const struct speaker *s, struct lock_plan *plan, struct claim *c) {
    plan_claim(s->sh, plan, c);
    if (!c || !c->peer->remote || !s->recognised || !recognised_for(s->contender, c))
        return;
    plan->right = RIGHT_FENCE;
    plan->read_fence = c->fence;
}

void attribute_to(struct shard *sh, struct entry *en, struct lock_plan *plan, struct claim *c, int64_t now_ms) {
    invariant(c && c->entry == en, "a command speaks for a lease of another lock");
    struct claim *before = claim_find(en, plan->claim);
    if (before && plan->uses) {
        before->uses--;
        plan->uses = false;
        if (before != c)
            (void)lease_schedule(sh, before, now_ms);
    }
    plan->right = RIGHT_CLAIM;
    plan->several = false;
    plan->claim_len = 0;
    plan->claim_token[0] = '\0';
    plan_claim(sh, plan, c);
    if (c->peer->remote) {
        plan->right = RIGHT_FENCE;
        plan->read_fence = c->fence;
    }
}

/* ---- C, D: releases ------------------------------------------------------------------------------- */

/* D1: counts the release. Returns whether a lost attempt expects it. G1: a queued release counts from EXEC on. */
static bool release_counted(const struct speaker *s, struct lock_plan *plan) {
    struct workload *f = s->workload;
    struct key_stats *c = s->key_stats;
    if (!f || !c || plan->queued || plan->verb == LOCK_COUNT_DOWN) /* a counter's holder counts down as often as up */
        return false;
    if (s->released && session_stats_find(s->self, f) && f->twice < UINT8_MAX) {
        f->twice++; /* D2: two releases in a row come from two workers, or from a worker that releases twice */
        plan->twice = true;
    }
    workload_count(f, c, TALLY_RELEASED);
    plan->counted = true;
    /* D2: releases follow each other over one session, and losers release: the workload is pooled. */
    if (f->twice >= TWICE && s->owner == LOCK_OWNER_AUTO && !(f->facts & FACT_POOLED) && workload_surplus(f, c))
        workload_pool(s->sh, f, &plan->key, s->now_ms);
    if (!s->pooled || !c->debts.count)
        return false;
    (void)losses_take(&c->debts);
    return true;
}

/* Notes that the session has released since its last attempt. Its next command is not a holder's, unless the session
 * has another claim. */
static void note_release(const struct speaker *s, struct lock_plan *plan) {
    struct contender *w = s->contender;
    if (plan->queued || !(w || s->key_stats))
        return;
    if (!w) {
        w = contender_get(s->sh, s->en, s->self);
        contender_touched(s->sh, w, plan->rule, s->now_ms);
    }
    plan->first_release = !w->released;
    w->released = true;
    w->sent_ms = s->now_ms;
    w->lost_row = w->suspicious_row = 0;
}

/* D2: whether this DECR is another worker's: the session's second in a row, while it holds nothing. */
static bool counts_down_again(const struct speaker *s, const struct lock_plan *plan) {
    const struct claim *own = entry_claims(s->en);
    while (own && own->peer != s->self)
        own = own->next;
    return plan->verb == LOCK_COUNT_DOWN && s->owner == LOCK_OWNER_AUTO && plan->rule->mode == LOCK_MODE_ENFORCE &&
           !plan->queued && !s->pooled && s->released && s->workload && !own &&
           !workload_dedicated(s->workload, s->self);
}

/* C4: whether a release over the session may be a worker's that does not hold the lock: a loser's, or that of a holder
 * whose lease was released over another session. */
static bool is_doubtful(const struct speaker *s) {
    return s->loser || (s->key_stats && s->contender && s->contender->release_due);
}

/* Whether the holder's session (the speaker's, if no lease is known) carries one worker's commands. */
static bool holder_dedicated(const struct speaker *s) {
    return workload_dedicated(s->workload, s->live ? s->live->peer : s->self);
}

/* C4: decides about such a release over a session that has no claim. If the workload or the holder's session is known,
 * that knowledge decides. A dedicated connection carries no colleague's release. */
static enum loser_release losers_release(const struct speaker *s, const struct lock_plan *plan, const struct offer *o) {
    const struct contender *w = s->contender;
    bool unknown = s->owner == LOCK_OWNER_AUTO && is_doubtful(s) && !s->pooled && s->key_stats && !o->count;
    if (!unknown || holder_dedicated(s))
        return LOSER_REFUSED;
    /* Since its attempt was lost, the session was shown another value than it tried to write. Code that reads before it
     * releases compares: a loser sends no release then, so the release is a colleague's. */
    bool shown_another = w->shown_since && w->seen_known && w->tried &&
                         hash_bytes(&s->sh->engine->value_seed, w->seen, w->seen_len) != w->tried;
    if (shown_another && !workload_losers_release(s->workload, s->key_stats))
        return LOSER_BELIEVED;
    return aftermath_release(s->workload, s->key_stats, s->contender, s->live, plan->patient, s->now_ms);
}

/* C4: whether a loser's release comes while no lease of the client is live, so that it is for another proxy's lease, or
 * the loser's own: this process has seen all of its own grants. If it were believed, it would end an acquisition that
 * was on its way. A lease whose renewal is under way may be live. */
static bool nobody_holds(const struct speaker *s, const struct lock_plan *plan) {
    if (!s->loser || s->pooled || plan->queued || atomic_load(&s->sh->engine->elsewhere))
        return false;
    const struct claim *c = entry_claims(s->en);
    while (c && (c->peer->client != s->self->client ||
                 !(claim_is_live(c, s->now_ms) || (claim_asked(c) && !claim_ended(c)))))
        c = c->next;
    return !c;
}

/* C2: whether a release by comparison (DELIFEQ) tells by its value whose release it is. If the live lease has another
 * value, it changes nothing. A value tells if another one is known on the key, and no session but the lease's has tried
 * to write it. */
static bool names_its_lease(const struct speaker *s) {
    if (!s->named)
        return false;
    const struct claim *live = s->live;
    bool vary = s->key_stats && key_stats_varies(s->key_stats, s->named);
    if (live && live->valued && live->value != s->named)
        return true;
    for (const struct contender *w = entry_contender_list(s->en); w; w = w->next) {
        if (w->tried == s->named && !(live && w->peer == live->peer))
            return false;
        vary = vary || (w->tried && w->tried != s->named);
    }
    return vary;
}

static void plan_release(const struct speaker *s, struct lock_plan *plan) {
    bool named = names_its_lease(s);
    bool strict = s->owner == LOCK_OWNER_CONNECTION;
    struct offer o = strict ? offers_of(s, OWN) : offers_for(s);
    if (s->key_stats && !s->pooled && !named && !plan->queued && s->owner == LOCK_OWNER_AUTO)
        aftermath_second(s->workload, s->key_stats, s->self, s->now_ms);
    enum loser_release said = named ? LOSER_BELIEVED : losers_release(s, plan, &o);
    plan->held_back = said == LOSER_HELD_BACK;
    if (plan->held_back)
        return;
    /* C4: some workers release twice: the session's last command on the key was a release, a moment ago */
    bool twice = !named && s->released && s->workload && session_stats_find(s->self, s->workload) &&
                 aftermath_behind_release(s->key_stats, s->contender, s->now_ms);
    bool used_up = release_counted(s, plan) && !named;
    if (counts_down_again(s, plan))
        workload_vote(s->sh, s->workload, s->self, NULL, &plan->key, s->now_ms);
    note_release(s, plan);
    if (used_up)
        return;
    /* C2, L3: if the values differ, the release is for the claim whose value was shown last; else for the oldest. */
    struct claim *c = o.differ && o.shown_last ? o.shown_last : o.oldest;
    if (!c)
        c = doubtful_claim(s);
    plan->several = o.count > 1;
    plan_use(s, plan, c);
    /* C6: another proxy may have released the chosen lease: the release is for another proxy's lease then. C3: if the
     * chosen lease has ended, the guard record tells the live lease's proxy until when its release was expected. */
    if (c && s->pooled && !c->peer->remote && claim_is_live(c, s->now_ms)) {
        plan->right = RIGHT_ADOPT;
    } else if (c && s->pooled && !c->peer->remote && plan->verb == LOCK_RELEASE) {
        plan->right = RIGHT_OLDER;
        plan->older_ms = claim_deadline(s->sh, c) - s->now_ms;
    }
    if (c || strict || (!named && release_under_way(s)))
        return;
    /* C4: there is no claim. The release of a loser, and the second of two, is refused. Over a pooled session it is for
     * a lease that another proxy gave. */
    bool refused = twice || (is_doubtful(s) && said == LOSER_REFUSED);
    enum lock_right believed = nobody_holds(s, plan) ? RIGHT_ADOPT : RIGHT_BELIEVE;
    plan->right = s->pooled ? RIGHT_BELIEVE : refused ? RIGHT_SUSPECT : believed;
}

/* ---- F: what sets an expiry ------------------------------------------------------------------------ */

/* F2: whether the command follows a loss over its own session, or one that it is pooled with. Marks the loss as
 * followed; the workload counts the mark when the loss's time is over. */
static bool follows_loss(const struct speaker *s, const struct lock_rule *rule) {
    struct key_stats *c = s->key_stats;
    for (unsigned i = 0; c && i < c->recent.count; i++) {
        const struct peer *p = peer_find(s->sh, c->recent.at[i].session_id);
        bool pooled = s->pooled && p && workload_pooled(s->workload, p, rule);
        if (c->recent.at[i].expired || (p != s->self && !pooled))
            continue;
        c->recent.at[i].expired = true;
        return true;
    }
    return false;
}

/* F1: whether the session is a loser and the command is a loser's. A connection that may be pooled carries a holder's
 * command, too, but not at once behind the lost attempt. */
static bool behind_a_loss(const struct speaker *s) {
    if (!s->loser || !s->workload || s->owner != LOCK_OWNER_AUTO)
        return s->loser;
    return holder_dedicated(s) || s->now_ms - s->contender->sent_ms <= aftermath_at_once_ms(s->self);
}

/* F2: whether losers send an EXPIRE behind a refused attempt: it followed three quarters of at least four losses. */
static bool losers_expire(const struct workload *f) {
    unsigned bits = f->followed & ((1u << f->follow_count) - 1);
    return f->follow_count >= FOLLOWED_LEAST && 4 * (unsigned)__builtin_popcount(bits) >= 3u * f->follow_count;
}

static void plan_extend(const struct speaker *s, struct lock_plan *plan) {
    bool strict = s->owner == LOCK_OWNER_CONNECTION;
    /* K: a worker that is recognised for the live lease asks again for its own lock, and extends it. */
    bool holds = s->recognised && s->live && recognised_for(s->contender, s->live);
    bool refused = !holds && follows_loss(s, plan->rule) && losers_expire(s->workload);
    struct offer o = strict ? offers_of(s, OWN) : offers_for(s);
    struct claim *c = o.newest_unended ? o.newest_unended : o.oldest;
    if (strict) {
        plan_claim(s->sh, plan, c);
        return;
    }
    /* F1: a session without a claim on the key may make the live lease longer, and not shorter. A loser, or a session
     * with a claim on an older lease, replaces at most an expiry that the proxy gave. */
    bool stranger = o.count || behind_a_loss(s);
    plan->right = refused ? RIGHT_LEASED : s->pooled ? RIGHT_BELIEVE : stranger ? RIGHT_LEASED : RIGHT_LATER;
    if (refused || !c)
        return;
    enum lock_right right = plan->right;
    plan_use(s, plan, c);
    if (c->peer->remote && plan->right != RIGHT_FENCE)
        plan->right = right;
}

/* ---- B: what makes way -------------------------------------------------------------------------------- */

struct claim *attribute_makes_way(const struct entry *en, const struct peer *self, uint32_t suspects, int64_t now_ms) {
    struct claim *c = claim_live(en, self->client, now_ms);
    /* If a release was refused since (suspects > c->suspects), earlier losses prove nothing. */
    if (!c || !c->workload || c->uses || c->queue || c->observed || suspects > c->suspects || !claim_suspicious(c))
        return NULL;
    const struct contender *w = contender_find(en, self);
    bool mistaken = w && w->lost && w->lost_fence == c->fence && !workload_dedicated(c->workload, c->peer) &&
                    aftermath_was_holders(c->workload, key_stats_find(en, c->workload), w);
    return mistaken ? c : NULL;
}

/* B2: plans an attempt that the proxy cannot carry out anew, in a transaction or of a counter: a lease that has to make
 * way does so from the start, unless another proxy gave it. */
static bool plan_release_then_acquire(const struct speaker *s, struct lock_plan *plan) {
    bool once = plan->queued || plan->verb == LOCK_COUNT_UP;
    struct claim *c = once && s->owner == LOCK_OWNER_AUTO ? attribute_makes_way(s->en, s->self, 0, s->now_ms) : NULL;
    if (!c || c->peer->remote)
        return false;
    plan->right = RIGHT_RELEASE_THEN_ACQUIRE;
    plan->claim_fence = c->fence;
    plan->claim_len = token_write(s->sh->engine, c->token, plan->claim_token);
    return true;
}

/* ---- all others ------------------------------------------------------------------------------------- */

/* Plans a command that changes a lease, by the newest claim: only its lease can be live. Over a pooled session, a
 * command that may be meant to acquire uses no other session's claim, unless the rule says `owner client`: two workers
 * would be told that they hold the lock. */
static void plan_change(const struct speaker *s, struct lock_plan *plan) {
    if (plan->verb == LOCK_COUNT_UP && plan_release_then_acquire(s, plan))
        return;
    bool strict = s->owner == LOCK_OWNER_CONNECTION, may_acquire = lock_verb_is(plan->verb, VERB_CLAIMS);
    bool pooled = s->pooled && (s->owner == LOCK_OWNER_CLIENT || !may_acquire);
    struct offer o = offers_of(s, pooled ? THE_CLIENTS : OWN);
    if (!o.count && !strict && !s->pooled && !s->loser && !may_acquire)
        o = offers_of(s, OF_CLOSED);
    struct claim *c = o.newest_unended ? o.newest_unended : o.oldest;
    if (!c)
        c = doubtful_claim(s);
    plan->several = o.count > 1;
    plan_use(s, plan, c);
    if (strict || (c && claim_is_live(c, s->now_ms)) || (c && !pooled))
        return;
    if (plan->named && s->loser && !s->pooled && s->contender->read_fence) /* K3: a rival, which has read the lease */
        return;
    if (plan->verb == LOCK_REWRITE) /* C5: some workers release by SET XX, others extend */
        plan->right = behind_a_loss(s) && !s->pooled ? RIGHT_SUSPECT : RIGHT_BELIEVE;
    else if (pooled || (!s->loser && !may_acquire))
        plan->right = RIGHT_ADOPT;
}

/* ---- data ------------------------------------------------------------------------------------------------ */

/* The newest live lease that was acquired under audit. Redis has no guard record of it, and would take it for data. */
static struct claim *observed_lease(const struct entry *en, int64_t now_ms) {
    struct claim *live = NULL;
    for (struct claim *c = entry_claims(en); c; c = c->next)
        if (c->observed && claim_is_live(c, now_ms))
            live = c;
    return live;
}

/* Whether the command may touch data: what stands at a key under a lock rule without a live lease (the scripts look).
 * As in Redis every session may, unless it tried for the key in vain, or its command may be a late release. What a swap
 * finds may be the lock that any session lost. */
static bool data_is_free(const struct speaker *s, const struct lock_plan *plan) {
    bool tried = s->contender && s->contender->lost;
    if (observed_lease(s->en, s->now_ms))
        return false;
    if (lock_verb_is(plan->verb, VERB_WRITES))
        return true;
    for (const struct contender *w = entry_contender_list(s->en); w && plan->verb == LOCK_SWAP; w = w->next)
        tried |= w->lost;
    return !plan->claim && !tried;
}

/* ---- what was read ----------------------------------------------------------------------------------- */

/* Whether what one session was shown counts for another one: workers of a pool read over one and swap over another. */
static bool reading_counts(const struct contender *w, const struct peer *self, const struct workload *f,
                           const struct lock_rule *rule) {
    if (w->wrote || !(w->seen_known || w->read_fence))
        return false;
    return w->peer == self ||
           (w->peer->client == self->client && workload_pooled(f, self, rule) && workload_pooled(f, w->peer, rule));
}

/* Finds the reading that says most about the key's value now: the later of the newest that names a lease, and the
 * newest that names none. If both show the same value, the reading that names the lease counts. */
static const struct contender *newest_reading(const struct entry *en, const struct peer *self, const struct workload *f,
                                              const struct lock_rule *rule, const struct contender *own) {
    const struct contender *lease = NULL, *value = NULL;
    if (!workload_pooled(f, self, rule))
        return own;
    for (const struct contender *w = entry_contender_list(en); w; w = w->next) {
        if (!reading_counts(w, self, f, rule))
            continue;
        const struct contender **newest = w->read_fence ? &lease : &value, *b = *newest;
        if (!b || (w->read_fence != b->read_fence ? w->read_fence > b->read_fence : w->read_at > b->read_at))
            *newest = w;
    }
    if (!lease || !value)
        return lease ? lease : value ? value : own;
    bool same = value->seen_known && contender_saw(lease, value->seen, value->seen_len);
    return value->read_at > lease->read_at && !same ? value : lease;
}

bool attribute_was_shown(const struct entry *en, const struct peer *self, const struct workload *f,
                         const struct lock_rule *rule, const char *value, size_t len) {
    for (const struct contender *w = entry_contender_list(en); w; w = w->next)
        if (reading_counts(w, self, f, rule) && contender_saw(w, value, len))
            return true;
    return false;
}

/* Plans a command on a lock that was acquired under audit. Without a guard record the script would let every session
 * that has seen the value touch it. For the owner, `seen` is the value that the owner wrote; others get no right. */
static void plan_enrolment(const struct entry *en, const struct lock_client *client, int64_t now_ms,
                           struct lock_plan *plan) {
    const struct claim *live = observed_lease(en, now_ms);
    if (!live || !lock_verb_is(plan->verb, VERB_ENROLS))
        return;
    plan->seen_known = false;
    plan->seen_len = 0;
    if (live->token != plan->claim) {
        if (live->peer->client != client) /* the guard record may be that of an earlier lease of the caller's client */
            plan->right = RIGHT_CLAIM;
        return;
    }
    const struct contender *w = contender_find(en, live->peer);
    if (!w || !w->seen_known)
        return;
    lock_plan_see(plan, w->seen, w->seen_len);
    plan->right = RIGHT_ENROL;
}

/* ---- the whole ------------------------------------------------------------------------------------- */

/* Plans an attempt. HSETNX may set another field of a lock that its session holds, so the script gets that lease's
 * token. The attempt does not use the claim: a colleague may have released the lease through another proxy, and the
 * attempt says nothing about that. */
static void plan_attempt(const struct speaker *s, struct lock_plan *plan) {
    if (plan_release_then_acquire(s, plan))
        return;
    const struct claim *c = offers_of(s, OWN).newest_unended;
    if (c && claim_is_live(c, s->now_ms) && !c->peer->remote)
        plan->claim_len = token_write(s->sh->engine, c->token, plan->claim_token);
}

static __attribute__((noinline)) void choose(struct shard *sh, struct entry *en, struct peer *self, int64_t now_ms,
                                             struct lock_plan *plan) {
    struct speaker s = {.sh = sh, .en = en, .self = self, .now_ms = now_ms};
    s.owner = plan->rule ? plan->rule->owner : LOCK_OWNER_AUTO;
    s.workload = workload_find(sh, self, plan->rule, plan->pattern);
    s.key_stats = key_stats_find(en, s.workload);
    s.contender = contender_find(en, self);
    s.loser = s.contender && (s.contender->lost || recognised_no_more(en, s.contender));
    /* With another value, GETSET is how a rival takes over the lease that it has read. With the lease's own
     * value, engine_says decides. */
    s.recognised = s.contender && s.contender->recognised && plan->verb != LOCK_SWAP;
    s.released = s.contender && s.contender->released;
    s.live = claim_live(en, self->client, now_ms);
    s.named = plan->verb == LOCK_RELEASE ? plan->named : 0;
    if (s.key_stats) { /* forgets losses after which no release and no EXPIRE is expected any more */
        int64_t lease_ms = s.live ? claim_length(s.live) : en->contenders->length_ms;
        while (losses_over(&s.key_stats->debts, now_ms - lease_ms / DEBT_SHARE))
            (void)losses_take(&s.key_stats->debts);
        aftermath_tidy(s.workload, s.key_stats, now_ms - lease_ms / FOLLOW_SHARE, now_ms);
    }
    s.pooled = workload_pooled(s.workload, self, plan->rule);
    const struct contender *w =
        en && plan->verb == LOCK_SWAP ? newest_reading(en, self, s.workload, plan->rule, s.contender) : s.contender;
    if (w) {
        plan->read_fence = w->read_fence;
        plan->seen_known = false;
        plan->seen_len = 0;
        if (w->seen_known && !w->wrote)
            lock_plan_see(plan, w->seen, w->seen_len);
    }
    /* A script of the application's may be meant to release the lease; over a pooled session any worker's. There no
     * claim is marked: its own release would not be expected any more. */
    for (struct claim *c = entry_claims(en); c && plan->verb == LOCK_SCRIPT && !s.pooled; c = c->next)
        if (c->peer == self && c->fence && claim_is_live(c, now_ms)) {
            plan->claim = c->token;
            c->scripted = true;
        }
    if (plan->verb == LOCK_READ || plan->verb == LOCK_SCRIPT)
        return;
    if (plan->verb == LOCK_OPERATOR) {
        plan->right = RIGHT_OPERATOR;
    } else if (s.owner == LOCK_OWNER_ANY) {
        plan->right = RIGHT_ANY;
    } else {
        if (lock_verb_is(plan->verb, VERB_SPENDS))
            plan_release(&s, plan);
        else if (plan->verb == LOCK_EXTEND)
            plan_extend(&s, plan);
        else if (plan->verb == LOCK_ACQUIRE)
            plan_attempt(&s, plan);
        else
            plan_change(&s, plan);
        plan_enrolment(en, self->client, now_ms, plan);
    }
    plan->data_free = data_is_free(&s, plan);
}

/* Does what choose would do in the two usual cases, which earns 7 % of the bound on acquire and release: an attempt to
 * acquire a lock of which nothing is known; a release by the key's only claim, the session's own, where no session has
 * lost an attempt or was shown the value. */
static inline bool usual(struct shard *sh, struct entry *en, const struct peer *self, int64_t now_ms,
                         struct lock_plan *plan) {
    plan->right = RIGHT_CLAIM;
    if (plan->rule && plan->rule->owner == LOCK_OWNER_ANY)
        return false;
    if (!en && plan->verb == LOCK_ACQUIRE)
        return true;
    if (!en || plan->verb != LOCK_RELEASE || entry_contender_list(en) || entry_key_stats(en))
        return false;
    struct claim *c = en->claims;
    if (!c || c->next || c->peer != self || !usable(sh, c, now_ms) || c->observed || c->lease == LEASE_AWAITS_OWNER ||
        plan->named)
        return false;
    plan_claim(sh, plan, c);
    return true;
}

inline void attribute(struct shard *sh, struct entry *en, struct peer *self, int64_t now_ms, struct lock_plan *plan) {
    if (lock_verb_is(plan->verb, VERB_QUEUE))
        queue_attribute(sh, self, plan);
    else if (!usual(sh, en, self, now_ms, plan))
        choose(sh, en, self, now_ms, plan);
}
