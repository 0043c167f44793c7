/*
 * K: recognises a session for a lease that another connection has acquired, by the lock's value.
 *
 *      K1  refused, and then shown the value that it tried to write  ──┐
 *      K2  writes the value that the lease has anew                  ──┴──> recognised, if values tell workers apart
 *      K4  SET XX writes the value of a lease that is over           ─────> late
 *
 * A reply gets lost, a connection is cut, a pool hands out another one, or a library sends a command again. The worker
 * that holds the lock then speaks over a connection that did not acquire it, and knows its lock by the value. A
 * recognised session speaks for the lease besides the session that acquired, which keeps the claim: if the proxy is
 * wrong, the recognition alone costs the owner nothing.
 *
 * A constant that all workers write tells nothing. Nor does a number: it may be the deadline of two workers that began
 * in the same second, a count, or a constant 1.
 *
 * A hash lock is held by a field and its content. Many applications have one name for the field, and write the worker
 * into it. Others name the field after the worker, and count in it. The name, the content or both may tell workers
 * apart.
 */
#include "proxy/lock/choose.h"

/* ---- fields ---------------------------------------------------------------------------------------- */

/* Which part of two values has to be equal, for the values to count as the same. */
enum alike { ALIKE_WHOLE, ALIKE_FIELD };

/* The value of a hash lock: the high half hashes the field's name, the low half its content; 0: that is not known. */
static uint64_t value_of_field(const struct hash_seed *seed, const struct lock_field *field) {
    uint64_t name = hash_bytes(seed, field->name, field->len) & ~(uint64_t)UINT32_MAX;
    return field->content ? name | (hash_bytes(seed, field->content, field->content_len) & UINT32_MAX) | 1 : name;
}

static bool has_content(uint64_t value) {
    return (value & UINT32_MAX) != 0;
}

static bool is_alike(enum alike alike, uint64_t a, uint64_t b) {
    return alike == ALIKE_FIELD ? value_same_field(a, b) : a == b;
}

/* ---- whether a value tells ------------------------------------------------------------------------ */

/* K: whether the value says that the session's worker is the lease's owner. It does not if it is a constant: a third
 * open session of the client has tried to write it or has a claim with it, or the session itself has one, from an
 * earlier lease. If the session that acquired is closed, or is this session, any other value does. Otherwise the
 * client's sessions must have written, or tried to write, another value on the key lately. ALIKE_FIELD: `text` is a
 * field's name, and many applications have one name for all workers. */
static bool tells(const struct entry *en, const struct peer *self, const struct workload *f, const struct claim *c,
                  const char *text, size_t len, enum alike alike) {
    bool field = alike == ALIKE_FIELD, constant = false, vary = false, number = true;
    const struct key_stats *key_stats = key_stats_find(en, f);
    for (unsigned i = 0; key_stats && i < key_stats->value_count; i++)
        vary |= !is_alike(alike, key_stats->values[i], c->value);
    for (const struct contender *w = entry_contender_list(en); w; w = w->next) {
        bool same = is_alike(alike, w->tried, c->value), counts = w->tried && w->peer->client == self->client;
        vary |= counts && !same;
        constant |= counts && same && w->peer != self && w->peer != c->peer && !w->peer->closed;
    }
    for (const struct claim *o = entry_claims(en); o; o = o->next) {
        bool same = is_alike(alike, o->value, c->value), counts = o->valued && o->peer->client == self->client;
        vary |= counts && !same;
        constant |= counts && same && o != c && o->peer != c->peer && !o->peer->closed && !o->peer->remote;
    }
    for (size_t i = 0; i < len && number; i++)
        number = (text[i] >= '0' && text[i] <= '9') || text[i] == '.' || text[i] == '-';
    if (constant)
        return false;
    if (c->peer->closed || c->peer == self)
        return vary || !(number || field);
    return !number && (vary || (c->peer->remote && !field));
}

/* ---- K1: shown what it tried ------------------------------------------------------------------------ */

/* Recognises the session for the lease: from now on it is no loser, and speaks for the lease. */
static void speaks_for(struct shard *sh, struct contender *w, struct claim *c, int64_t now_ms) {
    w->lost = w->released = false;
    w->lost_fence = w->recognised = c->fence;
    successor_proved(sh, c, w->peer, now_ms);
    (void)lease_schedule(sh, c, now_ms);
}

/* K1: whether the claim's lease has the value that the session tried to write. Once the holder has counted in a field,
 * the field's content is not known any more, and the name decides. */
static bool is_its_own(const struct contender *w, const struct claim *c) {
    return w->tried == c->value || (value_same_field(w->tried, c->value) && !has_content(c->value));
}

bool recognise(struct shard *sh, struct contender *w, const struct lock_rule *rule, const struct workload *f,
               uint64_t fence, const char *value, size_t len, int64_t now_ms) {
    struct peer *self = w->peer;
    if (!w->tried || !rule || rule->owner != LOCK_OWNER_AUTO || self->closed)
        return false;
    uint64_t shown = hash_bytes(&sh->engine->value_seed, value, len);
    if (!value_same_field(w->tried, shown))
        return false;
    struct claim *c = claim_live(w->entry, self->client, now_ms);
    if (!c || (c->queue && c->peer == self) || (fence && c->fence != fence) || !c->valued || !is_its_own(w, c))
        return false;
    if (!tells(w->entry, self, f, c, value, len, w->tried == shown ? ALIKE_WHOLE : ALIKE_FIELD))
        return false;
    speaks_for(sh, w, c, now_ms);
    return true;
}

/* K1 of a hash lock: the session was shown this field and its content (NULL: only that the field exists). */
static void recognise_field(struct shard *sh, struct contender *w, const struct lock_rule *rule,
                            const struct workload *f, const struct lock_field *field, int64_t now_ms) {
    struct peer *self = w->peer;
    if (!w->tried || rule->owner != LOCK_OWNER_AUTO || self->closed)
        return;
    struct claim *c = claim_live(w->entry, self->client, now_ms);
    if (!c || c->queue)
        return;
    uint64_t shown = value_of_field(&sh->engine->value_seed, field);
    /* Another proxy gave the lease. The session lost against it, and was shown the value that it had tried to write. */
    if (c->peer->remote && !c->valued && c->fence == w->lost_fence && shown == w->tried) {
        c->valued = true;
        c->value = shown;
    }
    bool whole = has_content(c->value) && has_content(shown);
    bool shows = whole ? shown == c->value : value_same_field(shown, c->value); /* the field that holds the lease */
    if (!c->valued || !is_its_own(w, c) || !shows)
        return;
    bool by_content = field->content && has_content(c->value) &&
                      tells(w->entry, self, f, c, field->content, field->content_len, ALIKE_WHOLE);
    if (!by_content && !tells(w->entry, self, f, c, field->name, field->len, ALIKE_FIELD))
        return;
    speaks_for(sh, w, c, now_ms);
}

/* ---- K2: writes the value anew --------------------------------------------------------------------- */

/* K2: whether a command that writes the value speaks for the claim's lease. A GETSET by a session that was shown
 * another lease is a rival's, which writes the same deadline. */
static bool repeats(struct shard *sh, const struct entry *en, const struct lock_plan *plan, const struct claim *c,
                    const char *value, size_t len, bool field) {
    const struct peer *self = plan->peer;
    const struct workload *f = workload_find(sh, self, plan->rule, plan->pattern);
    const struct contender *w = contender_find(en, self);
    /* The session was shown this value of this lease last. */
    bool read = w && w->read_fence == c->fence && !w->wrote && contender_saw(w, value, len);
    bool other = w && !read && (w->read_fence || (w->seen_known && !w->wrote));
    if (plan->verb == LOCK_SWAP && other)
        return false;
    if (plan->named && read && w->lost && !workload_pooled(f, self, plan->rule)) /* K3: SET IFEQ of a rival */
        return false;
    if (read && plan->verb != LOCK_SWAP && !w->lost && !field && !workload_pooled(f, self, plan->rule))
        return true;
    return tells(en, self, f, c, value, len, field ? ALIKE_FIELD : ALIKE_WHOLE);
}

/* K4: the client's claim whose lease is over and whose value a late SET XX writes; NULL: it is not late. If a holder
 * has changed its value within one of the two leases, the value may be the live lease's next one. */
static struct claim *claim_of_late(const struct entry *en, const struct lock_plan *plan, const struct claim *live,
                                   uint64_t value) {
    if (plan->named || !live->valued || live->rewritten || live->value == value)
        return NULL;
    struct claim *c = entry_claims(en);
    while (c && !(claim_ended(c) && c->peer->client == live->peer->client && c->valued && !c->rewritten &&
                  c->value == value))
        c = c->next;
    return c;
}

void engine_says(struct lock_engine *e, struct lock_plan *plan, const char *value, size_t len, bool field,
                 int64_t now_ms) {
    enum lock_owner owner = plan->rule->owner;
    if ((owner != LOCK_OWNER_AUTO && owner != LOCK_OWNER_CLIENT) || plan->rule->mode != LOCK_MODE_ENFORCE)
        return;
    struct entry *en;
    struct shard *sh = ledger_lock(e, &plan->key, plan->hash, &en);
    const struct claim *chosen = claim_find(en, plan->claim);
    struct claim *c = claim_live(en, plan->peer->client, now_ms);
    struct claim *late =
        c && plan->verb == LOCK_REWRITE ? claim_of_late(en, plan, c, hash_bytes(&e->value_seed, value, len)) : NULL;
    bool settled = plan->claim && (!chosen || chosen == c); /* if !chosen, an earlier command may acquire */
    if (late) {
        attribute_to(sh, en, plan, late, now_ms);
    } else if (c && owner == LOCK_OWNER_AUTO && !settled && c->valued && c->peer != plan->peer && !c->queue &&
               !c->observed &&
               is_alike(field ? ALIKE_FIELD : ALIKE_WHOLE, c->value, hash_bytes(&e->value_seed, value, len)) &&
               repeats(sh, en, plan, c, value, len, field)) {
        attribute_to(sh, en, plan, c, now_ms);
        plan->repeats = true;
        plan->data_free = false;
    }
    shard_unlock(sh);
}

/* ---- K3: compares and sets -------------------------------------------------------------------------- */

bool engine_compares(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key, int64_t now_ms) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, key, ledger_hash(e, key, NULL), &en);
    const struct contender *w = contender_of(sh, en, s);
    bool compares = w && w->read_fence && w->read_fence == en->live_fence && w->seen_known && !w->wrote;
    for (const struct claim *c = entry_claims(en); compares && c; c = c->next)
        if (c->fence == w->read_fence && (c->peer == w->peer || recognised_for(w, c)) && claim_is_live(c, now_ms))
            compares = false; /* the session holds the lock */
    shard_unlock(sh);
    return compares;
}

/* ---- what a hash lock's commands write and show --------------------------------------------------------- */

void engine_writes_field(const struct lock_engine *e, struct lock_plan *plan, const struct lock_field *field) {
    plan->field = value_of_field(&e->value_seed, field);
}

bool engine_has_tried(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, key, ledger_hash(e, key, NULL), &en);
    const struct contender *w = contender_of(sh, en, s);
    bool tried = w && w->tried;
    shard_unlock(sh);
    return tried;
}

void engine_saw_field(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key,
                      const struct lock_rule *rule, const struct lock_field *field, int64_t now_ms) {
    uint64_t pattern, hash = ledger_hash(e, key, &pattern);
    struct entry *en;
    struct shard *sh = ledger_lock(e, key, hash, &en);
    struct contender *w = contender_of(sh, en, s);
    if (w)
        recognise_field(sh, w, rule, workload_find(sh, w->peer, rule, pattern), field, now_ms);
    shard_unlock(sh);
}
