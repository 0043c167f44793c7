/*
 * The spectator's second check. A script leaves a consistent state. A lock without a lease is safe from sessions that
 * have tried for it in vain, or come late. A swap takes over only a value that its caller was shown. Under audit the
 * proxy asks for nothing. And the engines' view of a lock (PROXY LOCKS) is true when nothing is in flight.
 */
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- what a script leaves behind ---------------------------------------------------------------- */

static bool was_live(const struct world *w, const struct model_key *k) {
    return model_string_live(&w->redis, k);
}

/* The lock had no lease: a session that has tried for it in vain, or may be late with a release, can't touch it without
 * having been shown its value, or naming it (DELIFEQ, DELEX, SET IFEQ). For any other session it is data. */
static void check_foreign(struct world *w, const struct flight *f, const struct model_key *before) {
    const struct model_key *now = &w->redis.keys[f->key];
    enum lock_verb verb = f->plan.verb;
    bool follows_others = verb == LOCK_SCRIPT || verb == LOCK_SWAP || verb == LOCK_COUNT_UP || verb == LOCK_COUNT_DOWN;
    /* A batch has set it, and its worker has not been told yet. */
    if (w->unfinished[f->key] || (f->late && f->sets))
        return;
    if (f->kind != FLIGHT_COMMAND || follows_others || w->sc.rule.owner == LOCK_OWNER_ANY || was_live(w, before) ||
        !before->exists || before->list)
        return;
    bool writes = verb == LOCK_PASS || verb == LOCK_CLOBBER;
    if (f->plan.data_free && (writes || (!f->loser && (!f->plan.claim || f->plan.group))))
        return;
    bool touched = !now->exists || strcmp(now->value, before->value) != 0 || now->expire_ms != before->expire_ms;
    bool compares = f->command.op == OP_DELEX && (f->command.compare == IF_EQ || f->command.compare == IF_DEQ);
    bool names = compares || f->command.op == OP_DELIFEQ || f->command.op == OP_SET_IFEQ;
    bool named = names && strcmp(f->command.value, before->value) == 0;
    if (!touched || named || (f->was_shown && strcmp(f->shown, before->value) == 0))
        return;
    /* Acquired under audit by this client: it need not have been shown what it wrote. */
    if (f->plan.right == RIGHT_ENROL && strcmp(before->value, OUTSIDE) != 0)
        return;
    /* A PERSIST or PEXPIRE that was sent under audit ran behind the acquisition. So the lock has another end than its
     * guard record in the short form. The holder's release by free.lua frees its own lock. */
    bool names_it = before->guard.text && strcmp(before->guard.token, f->plan.claim_token) == 0;
    if (f->way == WAY_FREE && w->sc.audit && names_it && !now->exists)
        return;
    world_fail(w, "S1", "worker %d has touched a lock that is nobody's lease, and that it has not read", f->worker);
}

/* A swap answers the value that it replaces. A caller that was shown another value takes that for a loss and goes away,
 * and no session would know of the lock. What a client has read or proven under audit is not known here. */
static void check_taken_over(struct world *w, const struct flight *f, const struct model_key *before) {
    const struct model_guard *g = was_live(w, before) ? &before->guard : NULL;
    bool repeated = g && strcmp(g->token, f->plan.attempt_token) == 0;
    if (w->sc.audit || f->plan.verb != LOCK_SWAP || f->envelope.outcome != LOCK_GRANTED || !before->exists || repeated)
        return;
    if (!reading_covers(f, g ? g->fence : 0, before->value))
        world_fail(w, "S1", "worker %d has taken over %s that it was not shown", f->worker,
                   g ? "a lease, or a value of it," : "a lock that is nobody's lease,");
}

/* A script of the application's has left one of its arguments as the lock's value, or has made the lock, whatever it
 * holds: that is a lease now. */
static void check_adopted(struct world *w, const struct flight *f) {
    const struct model_key *k = &w->redis.keys[f->key];
    if (f->command.composed && !f->found_free)
        return;
    if (f->plan.verb == LOCK_SCRIPT && f->ran && k->exists && !k->list && strcmp(k->value, f->command.value) == 0 &&
        !model_live(&w->redis, f->key))
        world_fail(w, "adoption", "worker %d's script has made a lock, and it is nobody's lease", f->worker);
}

/* The guard record ends with its lock, or as close to it as scripts leave it alone. */
static void check_together(struct world *w, const struct flight *f) {
    const struct model_key *k = &w->redis.keys[f->key];
    const struct model_guard *g = model_live(&w->redis, f->key);
    bool around = w->sc.outside || (w->sc.audit && !w->sc.audit_exact) || w->stirred[f->key];
    if (!g || around)
        return;
    int64_t apart_ms = g->expire_ms - k->expire_ms - (g->text ? 0 : GUARD_OUTLIVES_MS);
    bool close = apart_ms >= -MODEL_SLACK_MS && apart_ms <= MODEL_SLACK_MS;
    if (k->expire_ms ? !g->expire_ms || !close : g->expire_ms != 0)
        world_fail(w, "S3", "the lock ends at %" PRId64 ", its guard record at %" PRId64, k->expire_ms, g->expire_ms);
}

void check_left(struct world *w, const struct flight *f, const struct model_key *before) {
    check_foreign(w, f, before);
    check_taken_over(w, f, before);
    check_adopted(w, f);
    check_together(w, f);
}

/* A lock without a lease may be swapped by a session that has read it; if a client's connections count as pooled, over
 * any of them. */
void check_foreign_swap(struct world *w, const struct flight *f, const struct model_key *before) {
    const struct scenario *sc = &w->sc;
    bool exact = sc->idioms == 1u << IDIOM_DEADLINE && !sc->names && !sc->renames && !sc->reconnects && !sc->restarts &&
                 !sc->loses && sc->proxies == 1 && sc->rule.owner != LOCK_OWNER_ANY;
    if (!exact || f->plan.verb != LOCK_SWAP || !before->exists || was_live(w, before) || !f->pooled ||
        !f->client_read_foreign || strcmp(f->client_shown_foreign, before->value) != 0)
        return;
    if (f->envelope.outcome != LOCK_GRANTED)
        world_fail(w, "S1", "worker %d may not swap the lock that its client has read, and that is nobody's lease",
                   f->worker);
}

/* ---- what the proxy asks for ---------------------------------------------------------------------- */

void check_unasked(struct world *w) {
    if (!w->enforced)
        world_fail(w, "audit", "the proxy wants to renew or release, and the rule has never been enforced");
}

/* ---- what the engines believe --------------------------------------------------------------------- */

struct belief {
    unsigned count;
    uint64_t fence, session_id;
    int64_t end_ms;
    char client[MODEL_NAME];
};

static void collect(void *arg, const struct lock_view *v) {
    struct belief *b = (struct belief *)arg + (v->key.name[5] - '0');
    b->count++;
    b->fence = v->fence;
    b->session_id = v->session_id;
    b->end_ms = v->end_ms;
    snprintf(b->client, sizeof(b->client), "%.*s", (int)v->client_len, v->client);
}

static bool quiet(const struct world *w, int key) {
    for (size_t i = 0; i < FLIGHTS; i++)
        if (w->flights[i].used && w->flights[i].key == key)
            return false;
    return true;
}

static bool open_session(const struct world *w, uint64_t id) {
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].open && w->conns[i].id == id)
            return true;
    return false;
}

static void check_belief_of(struct world *w, int key, const struct belief *b) {
    const struct truth *t = &w->truth[key];
    int64_t now_ms = w->redis.now_ms, slack_ms = w->slack_ms[key], pttl = model_lease_pttl(&w->redis, key);
    int64_t end_ms = pttl < 0 ? 0 : now_ms + pttl;
    /* A proxy need not learn that a lease was extended just before its end if the lease ended by its clock, and its
     * owner is gone. */
    bool remembers = w->sc.rule.claim_memory_ms >= 60000 && open_session(w, t->session_id);
    bool known = t->live && t->told && !w->missed[key] && remembers;
    char name[MODEL_NAME] = "";
    if (known)
        world_identity(t->name, name);
    if (known && !b->count)
        world_fail(w, "ledger", "worker %d holds key %d, and its proxy does not know of it", t->worker, key);
    else if (known && !t->observed && b->fence != t->fence)
        world_fail(w, "ledger", "key %d has fence %" PRIu64 ", its proxy believes %" PRIu64, key, t->fence, b->fence);
    else if (known && b->session_id != t->session_id)
        world_fail(w, "ledger", "key %d is session %" PRIu64 "'s, its proxy believes %" PRIu64, key, t->session_id,
                   b->session_id);
    else if (known && strcmp(b->client, name) != 0)
        world_fail(w, "ledger", "key %d is held by %s, its proxy believes %s", key, name, b->client);
    else if (known && ((b->end_ms == 0) != (end_ms == 0) || b->end_ms < end_ms))
        world_fail(w, "ledger", "key %d ends at %" PRId64 ", its proxy believes %" PRId64, key, end_ms, b->end_ms);
    else if (known && w->exact[key] && b->end_ms > end_ms + slack_ms)
        world_fail(w, "ledger", "key %d ends at %" PRId64 ", its proxy believes %" PRId64, key, end_ms, b->end_ms);
    else if (!t->live && b->count && w->exact[key] && (!b->end_ms || b->end_ms > now_ms + slack_ms))
        world_fail(w, "ledger", "nobody holds key %d, its proxy believes that somebody does until %" PRId64, key,
                   b->end_ms);
}

void check_ledgers(struct world *w) {
    const struct scenario *sc = &w->sc;
    bool exact = sc->proxies == 1 && !sc->queue && !sc->outside && !sc->clocks && !sc->loses && !sc->restarts &&
                 (!sc->audit || sc->audit_exact);
    if (!exact)
        return;
    struct belief beliefs[MODEL_KEYS] = {{0}};
    struct lock_stats stats;
    engine_stats(w->proxies[0].engine, &stats);
    if (stats.leases > sc->keys)
        world_fail(w, "ledger", "%" PRIu64 " leases are believed live on %u keys", stats.leases, sc->keys);
    struct lock_walk *walk = engine_walk_new((size_t)2 * MODEL_KEYS, false);
    while (engine_walk_step(w->proxies[0].engine, walk, w->redis.now_ms))
        ;
    engine_walk_each(walk, collect, beliefs);
    engine_walk_free(walk);
    for (unsigned key = 0; key < sc->keys; key++) {
        check_passed(w, (int)key, BY_TIME);
        if (!w->truth[key].unclear && quiet(w, (int)key))
            check_belief_of(w, (int)key, &beliefs[key]);
    }
}
