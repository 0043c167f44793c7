/*
 * Whose claim does a command use? The table of the lock semantics, and which of several claims.
 *
 * Only the session layer's words are known here (which session, which client, which library); what Redis says to the
 * choice is another file's. A wrong guess costs the caller a refusal, never the holder its lease: where the wire
 * cannot tell, the oldest claim is used up first.
 */
#include "proxy/lock/state.h"

/* The lines of the table. */
enum line {
    LINE_OWN,     /* the session's own */
    LINE_CLIENT,  /* all of the client identity */
    LINE_LIBRARY, /* those of the client's sessions that use a pooling or multiplexing library, as this one does */
    LINE_CLOSED,  /* those of the client's sessions that closed before this one opened */
};

inline bool client_shares(const struct lock_client *c, const struct lock_rule *rule, bool pooling) {
    enum lock_owner owner = rule ? rule->owner : LOCK_OWNER_AUTO;
    if (owner == LOCK_OWNER_CLIENT)
        return true;
    return owner == LOCK_OWNER_AUTO && (pooling || atomic_load(&c->proven));
}

inline bool claim_is_over(const struct claim *c, int64_t now_ms) {
    bool ended = c->ended || (c->end_ms && now_ms >= c->end_ms);
    if (!ended || c->uses || c->asked)
        return false;
    return now_ms >= c->end_ms + c->rule->claim_memory_ms || (c->peer->closed && !lease_owner_here(c));
}

inline bool claim_is_live(const struct claim *c, int64_t now_ms) {
    return !c->ended && c->fence == c->entry->live_fence && (!c->end_ms || now_ms < c->end_ms);
}

static bool on_line(enum line line, const struct claim *c, const struct peer *self) {
    switch (line) {
    case LINE_OWN:
        return c->peer == self;
    case LINE_CLIENT:
        return c->peer->client == self->client;
    case LINE_LIBRARY:
        return c->peer->client == self->client && c->peer->pooling && self->pooling;
    case LINE_CLOSED:
        return c->peer->client == self->client && c->peer->closed && c->peer->closed_at < self->id;
    }
    return false;
}

/* What a line offers. */
struct offer {
    unsigned count;
    bool differ; /* their values do */
    struct claim *oldest, *oldest_sighted, *newest_unended;
};

static struct offer offers_of(const struct entry *en, enum line line, const struct peer *self, int64_t now_ms) {
    struct offer o = {0};
    for (struct claim *c = entry_claims(en); c; c = c->next) {
        if (c->aside || c->doubtful || !on_line(line, c, self) || claim_is_over(c, now_ms))
            continue;
        o.count++;
        if (!o.oldest)
            o.oldest = c;
        else if (c->value != o.oldest->value)
            o.differ = true;
        bool sighted = line == LINE_OWN ? c->sighted : c->sighted_any;
        if (sighted && !o.oldest_sighted)
            o.oldest_sighted = c;
        if (!c->ended)
            o.newest_unended = c;
    }
    return o;
}

static bool usable(const struct claim *c, int64_t now_ms) {
    return !c->aside && !c->doubtful && !claim_is_over(c, now_ms);
}

/* The usual case: the key has one claim, which is the session's own, and so what every line that has it offers. */
static inline struct claim *only_claim(const struct entry *en, const struct peer *self, int64_t now_ms) {
    struct claim *c = en->claims;
    return c && !c->next && c->peer == self && usable(c, now_ms) ? c : NULL;
}

/* A release is spent on the oldest claim, or the oldest that was sighted if the values tell them apart. What changes
 * a lease may use any that is live, and only the newest can be. */
static struct claim *pick(const struct offer *o, enum lock_verb verb) {
    if (!verb_spends(verb))
        return o->newest_unended ? o->newest_unended : o->oldest;
    return o->differ && o->oldest_sighted ? o->oldest_sighted : o->oldest;
}

/* The session's own claim whose release got lost on the way: a repeated release may mean it, if it means anything. */
static struct claim *doubtful_claim(const struct entry *en, const struct peer *self, int64_t now_ms) {
    for (struct claim *c = entry_claims(en); c; c = c->next)
        if (c->doubtful && !c->aside && c->peer == self && !claim_is_over(c, now_ms))
            return c;
    return NULL;
}

static inline void plan_claim(struct shard *sh, struct lock_plan *plan, struct claim *c) {
    if (!c)
        return;
    plan->claim = c->token;
    plan->claim_fence = c->fence;
    plan->uses = true;
    c->uses++;
    plan->claim_len = token_write(sh->engine, c->token, plan->claim_token);
    if (verb_spends(plan->verb) && !plan->queued)
        c->aside = true;
}

/* A command that may be meant to acquire: no sign that its sender holds something on another connection. Taking it for
 * the holder's would tell two that they hold the lock. */
static bool may_acquire(enum lock_verb verb) {
    return verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || verb == LOCK_SWAP || verb == LOCK_COUNT_UP ||
           verb == LOCK_PASS;
}

/* Everything that comes from the rule's owner. */
static __attribute__((noinline)) void choose(struct shard *sh, struct entry *en, const struct peer *self,
                                             const struct witness *w, int64_t now_ms, struct lock_plan *plan) {
    enum lock_owner owner = plan->rule ? plan->rule->owner : LOCK_OWNER_AUTO;
    bool shared = owner != LOCK_OWNER_CONNECTION && client_shares(self->client, plan->rule, false);
    /* Lost against the lease that is live now: what this session sends is no release of that one. */
    bool lost = w && w->lost_fence && w->lost_fence == en->live_fence;
    struct offer o = {0};
    struct claim *c = en ? only_claim(en, self, now_ms) : NULL;
    if (c || !en) {
        o.count = c != NULL;
    } else if (shared) {
        o = offers_of(en, LINE_CLIENT, self, now_ms);
    } else {
        o = offers_of(en, LINE_OWN, self, now_ms);
        if (!o.count && owner == LOCK_OWNER_AUTO && !lost && !may_acquire(plan->verb)) {
            o = offers_of(en, LINE_LIBRARY, self, now_ms);
            if (!o.count)
                o = offers_of(en, LINE_CLOSED, self, now_ms);
        }
    }
    if (!c)
        c = o.count ? pick(&o, plan->verb) : doubtful_claim(en, self, now_ms);
    plan->several = o.count > 1;
    plan_claim(sh, plan, c);
    if (owner == LOCK_OWNER_CONNECTION)
        return;
    /* A lease made through another proxy, or before a restart, counts as a claim of a closed session; the script
     * looks at its owner. Which lease that is, this process can't know, so a session that lost lately stays out;
     * with a pooling library a loss says less, since the next command is somebody else's. */
    bool lost_lately = w && w->lost && (lost || !self->pooling);
    bool none_live = !c || (!verb_spends(plan->verb) && shared && !claim_is_live(c, now_ms));
    if (none_live && (shared || (!lost_lately && !may_acquire(plan->verb))))
        plan->right = "adopt";
}

static bool same_value(const struct witness *a, const struct witness *b) {
    return a->seen_known && b->seen_known && a->seen_len == b->seen_len &&
           (a->seen_len == 0 || memcmp(a->seen, b->seen, a->seen_len) == 0);
}

/* Workers that share connections read over one and swap over another: what any of them was shown counts. */
static bool reading_counts(const struct witness *w, const struct peer *self, const struct lock_rule *rule) {
    if (w->wrote || !(w->seen_known || w->read_fence))
        return false;
    return w->peer == self || (w->peer->client == self->client && client_shares(self->client, rule, self->pooling) &&
                               client_shares(self->client, rule, w->peer->pooling));
}

/* Of two that both say of which lease the value was, or neither. */
static bool reading_newer(const struct witness *a, const struct witness *b) {
    return a->read_fence != b->read_fence ? a->read_fence > b->read_fence : a->read_at > b->read_at;
}

/* What says most of what is there now: of leases the latest one, of values that nobody said were a lease's the one that
 * was answered last, and of these two again the one that was answered last. Only where such a value is the lease's, it
 * says no more than the lease does. */
static const struct witness *newest_reading(const struct entry *en, const struct peer *self,
                                            const struct lock_rule *rule, const struct witness *own) {
    const struct witness *lease = NULL, *value = NULL;
    if (!client_shares(self->client, rule, self->pooling))
        return own;
    for (const struct witness *w = en->witnesses; w; w = w->next) {
        if (!reading_counts(w, self, rule))
            continue;
        const struct witness **newest = w->read_fence ? &lease : &value;
        if (!*newest || reading_newer(w, *newest))
            *newest = w;
    }
    if (!lease || !value)
        return lease ? lease : value ? value : own;
    return value->read_at > lease->read_at && !same_value(value, lease) ? value : lease;
}

bool attribute_was_shown(const struct entry *en, const struct peer *self, const struct lock_rule *rule,
                         const char *value, size_t len) {
    for (const struct witness *w = en->witnesses; w; w = w->next)
        if (reading_counts(w, self, rule) && w->seen_known && w->seen_len == len &&
            (len == 0 || memcmp(w->seen, value, len) == 0))
            return true;
    return false;
}

/* Which verbs turn a lock that was acquired under audit into a lease of the scripts' when the rule is enforced later.
 */
static bool enrols(enum lock_verb verb) {
    return verb == LOCK_RELEASE || verb == LOCK_EXTEND || verb == LOCK_REPLACE || verb == LOCK_COUNT_UP ||
           verb == LOCK_COUNT_DOWN || verb == LOCK_CLOBBER || verb == LOCK_REWRITE || verb == LOCK_PASS;
}

/* Redis has no guard record of such a lock, so that a script would let anybody touch it who has seen its value. This
 * process knows who acquired it: for the owner, `seen` is what it wrote; for others there is no right by seeing. */
static void plan_enrolment(const struct entry *en, int64_t now_ms, struct lock_plan *plan) {
    struct claim *live = NULL;
    for (struct claim *c = entry_claims(en); c; c = c->next)
        if (c->observed && claim_is_live(c, now_ms))
            live = c;
    if (!live || !enrols(plan->verb))
        return;
    plan->seen_known = false;
    plan->seen_len = 0;
    if (live->token != plan->claim)
        return;
    const struct witness *w = witness_find(en, live->peer);
    if (!w || !w->seen_known)
        return;
    plan->seen_known = true;
    plan->seen_len = w->seen_len;
    if (w->seen_len)
        memcpy(plan->seen, w->seen, w->seen_len);
    plan->right = "enrol";
}

/* The lease that the application's script may be meant to release. Where connections are shared it may be any
 * colleague's, and is not looked at: that release would be expected no more. */
static void plan_script(struct entry *en, const struct peer *self, int64_t now_ms, struct lock_plan *plan) {
    if (client_shares(self->client, plan->rule, self->pooling))
        return;
    for (struct claim *c = entry_claims(en); c; c = c->next)
        if (c->peer == self && c->fence && claim_is_live(c, now_ms)) {
            plan->claim = c->token;
            c->scripted = true;
        }
}

/* What comes of choose in the two usual cases: an attempt to acquire a lock of which nothing is known, and the release
 * of the only claim, which is the session's own, where nobody lost or was shown anything. */
static inline bool usual(struct shard *sh, struct entry *en, const struct peer *self, int64_t now_ms,
                         struct lock_plan *plan) {
    enum lock_owner owner = plan->rule ? plan->rule->owner : LOCK_OWNER_AUTO;
    plan->right = "claim";
    if (owner == LOCK_OWNER_ANY)
        return false;
    if (!en && plan->verb == LOCK_ACQUIRE) {
        if (owner != LOCK_OWNER_CONNECTION && client_shares(self->client, plan->rule, false))
            plan->right = "adopt";
        return true;
    }
    if (!en || plan->verb != LOCK_RELEASE || en->witnesses)
        return false;
    struct claim *c = only_claim(en, self, now_ms);
    if (!c || c->observed)
        return false;
    plan_claim(sh, plan, c);
    return true;
}

inline void attribute(struct shard *sh, struct entry *en, const struct peer *self, int64_t now_ms,
                      struct lock_plan *plan) {
    if (queue_verb(plan->verb)) {
        queue_attribute(sh, self, plan);
        return;
    }
    if (usual(sh, en, self, now_ms, plan))
        return;
    const struct witness *own = en ? witness_find(en, self) : NULL;
    const struct witness *w = en && plan->verb == LOCK_SWAP ? newest_reading(en, self, plan->rule, own) : own;
    if (w) {
        plan->read_fence = w->read_fence;
        plan->seen_known = w->seen_known && !w->wrote;
        plan->seen_len = plan->seen_known ? w->seen_len : 0;
        if (plan->seen_len)
            memcpy(plan->seen, w->seen, w->seen_len);
    }
    if (plan->verb == LOCK_SCRIPT)
        plan_script(en, self, now_ms, plan);
    if (plan->verb == LOCK_READ || plan->verb == LOCK_SCRIPT)
        return;
    if (plan->verb == LOCK_OPERATOR)
        plan->right = "operator";
    else if (plan->rule && plan->rule->owner == LOCK_OWNER_ANY)
        plan->right = "any";
    else {
        choose(sh, en, self, own, now_ms, plan);
        plan_enrolment(en, now_ms, plan);
    }
    data_attribute(en, self, now_ms, plan);
}

void attribute_sighting(struct shard *sh, struct entry *en, const struct peer *self, const struct lock_rule *rule,
                        const char *value, size_t len) {
    uint64_t hash = hash_bytes(&sh->engine->value_seed, value, len);
    for (struct claim *c = en->claims; c; c = c->next) {
        if (!c->valued || c->value != hash)
            continue;
        if (on_line(LINE_OWN, c, self))
            c->sighted = c->sighted_any = true;
        else if (on_line(LINE_CLOSED, c, self) || on_line(LINE_LIBRARY, c, self) ||
                 (on_line(LINE_CLIENT, c, self) && client_shares(self->client, rule, false)))
            c->sighted_any = true;
    }
}
