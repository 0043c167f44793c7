/*
 * The spectator of hash locks. The applications' scripts decide which workers are in a hash. The proxy guarantees two
 * things. A plain command takes away no field but its worker's, and moves the end of no lock that its worker is not in.
 * And a lock that a script has made is a lease from then on, for a worker that is in it.
 */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/hash_locks.h"

/* Redis ran it as it came; adopt.lua behind it changes no field. */
static bool by_application(const struct flight *f) {
    return f->plan.verb == LOCK_SCRIPT;
}

/* Whether the lease is the sender's, as far as the wire can tell. */
static bool has_lease(const struct world *w, const struct flight *f, const struct truth *t) {
    if (!t->live || f->worker < 0)
        return false;
    bool left = t->worker < 0 && t->session_id == f->session_id; /* the sender is dead, and what it sent is not */
    return t->worker == f->worker || left || (!w->sc.apart && t->process == w->workers[f->worker].process);
}

/* Whether the field is. */
static bool is_own(const struct world *w, const struct flight *f, const struct model_key *before, const char *field) {
    const struct truth *t = &w->truth[f->key];
    bool leased = before->guard.hash && strcmp(before->guard.value, field) == 0;
    if (leased && has_lease(w, f, t))
        return true;
    if (f->worker < 0 || w->workers[f->worker].process < 0 || field[0] != 'h')
        return false;
    return strcmp(w->workers[f->worker].value, field) == 0 || !w->sc.apart;
}

/* A script has run, and adopt.lua, right behind it, has not: the new lock is no lease yet, and data for others. */
static bool not_adopted(const struct world *w, int key) {
    for (size_t i = 0; i < FLIGHTS; i++) {
        const struct flight *f = &w->flights[i];
        if (f->used && f->key == key && f->plan.verb == LOCK_SCRIPT && f->scripted && !f->ran)
            return true;
    }
    return false;
}

/* Whether a lock may be data for other sessions: adopt.lua is still to come, was lost, or its proxy ended; or its
 * holder has removed its mode, without which it is no readers' lock. */
static bool may_be_data(const struct world *w, const struct flight *f, const struct model_key *before) {
    bool torn = f->plan.data_free && f->envelope.outcome == LOCK_OPEN && hash_find(&before->fields, HASH_MODE) < 0;
    bool lost = (w->sc.loses || w->sc.restarts) && f->envelope.outcome == LOCK_OPEN;
    return lost || torn || (f->plan.data_free && not_adopted(w, f->key));
}

/* S1: a field is gone that was not the sender's. */
static void check_fields(struct world *w, const struct flight *f, const struct model_key *before) {
    const struct model_key *now = &w->redis.keys[f->key];
    const struct truth *t = &w->truth[f->key];
    if (t->worker == STRANGER && (f->kind == FLIGHT_RELEASE || (f->worker == STRANGER && has_lease(w, f, t))))
        return; /* it has made the lock, so its commands and the proxy's for it are right: workers that came later are
                   its guests */
    if (may_be_data(w, f, before))
        return;
    const char *released = f->kind == FLIGHT_RELEASE ? before->guard.value : "";
    for (unsigned i = 0; i < before->fields.count; i++) {
        const struct model_field *field = &before->fields.at[i];
        int at = now->exists && now->hash ? hash_find(&now->fields, field->name) : -1;
        bool kept = at >= 0 && now->fields.at[at].count >= field->count;
        bool mode = strcmp(field->name, HASH_MODE) == 0 && before->fields.count <= 2;
        if (!kept && !mode && strcmp(field->name, released) != 0 && !is_own(w, f, before, field->name))
            world_fail(w, "S1", "worker %d has taken the field '%s' away, which is not its own", f->worker,
                       field->name);
    }
}

/* Whether the end of the key or of a field is another one. */
static bool ends_moved(const struct model_key *before, const struct model_key *now) {
    for (unsigned i = 0; i < before->fields.count; i++) {
        int at = hash_find(&now->fields, before->fields.at[i].name);
        if (at >= 0 && now->fields.at[at].expire_ms != before->fields.at[i].expire_ms)
            return true;
    }
    return before->expire_ms != now->expire_ms;
}

/* S3: the end of a lock that the sender is not in was moved. */
static void check_end(struct world *w, const struct flight *f, const struct model_key *before) {
    const struct model_key *now = &w->redis.keys[f->key];
    bool moved = before->exists && now->exists && ends_moved(before, now);
    if (!moved || has_lease(w, f, &w->truth[f->key]) || may_be_data(w, f, before))
        return;
    for (unsigned i = 0; i < before->fields.count; i++)
        if (is_own(w, f, before, before->fields.at[i].name))
            return;
    world_fail(w, "S3", "worker %d has moved the end of a lock that it is not in", f->worker);
}

static bool refused(const struct flight *f) {
    enum lock_outcome o = f->envelope.outcome;
    return !by_application(f) && (o == LOCK_HELD || o == LOCK_FOREIGN || o == LOCK_ERROR || f->plan.verb == LOCK_READ);
}

/* A lock that a script has left with its worker in it is a lease. */
static void check_adopted(struct world *w, const struct flight *f) {
    const struct model_key *k = &w->redis.keys[f->key];
    if (f->command.composed && !f->found_free)
        return;
    if (by_application(f) && f->ran && k->exists && k->hash && hash_has(&k->fields, f->command.value) &&
        !model_live(&w->redis, f->key))
        world_fail(w, "adoption", "worker %d is in the lock by its script, and it is nobody's lease", f->worker);
}

static void grant(struct world *w, const struct flight *f, const struct model_guard *g) {
    struct truth *t = &w->truth[f->key];
    if (!g || strcmp(g->token, f->plan.attempt_token) != 0 || g->fence != f->envelope.fence) {
        world_fail(w, "S5", "told that it acquired, and the live lease is another's");
        return;
    }
    if (t->live && t->fence == g->fence)
        return; /* repeated */
    if (t->live)
        world_fail(w, "S2", "granted while another lease was live");
    if (g->fence <= t->max_fence)
        world_fail(w, "S2", "fence %" PRIu64 " after %" PRIu64, g->fence, t->max_fence);
    if (strcmp(g->value, f->command.value) != 0)
        world_fail(w, "S5", "the lease is for '%s', and '%s' has asked", g->value, f->command.value);
    bool waits = !f->orphan && !f->ghost && f->worker >= 0;
    *t = (struct truth){.live = true,
                        .fence = g->fence,
                        .max_fence = g->fence,
                        .session_id = f->session_id,
                        .worker = waits ? f->worker : -1,
                        .process = f->worker < 0 ? -1 : w->workers[f->worker].process,
                        .proxy = f->proxy,
                        .name = f->name,
                        .left = f->left,
                        .granted_ms = w->redis.now_ms};
    memcpy(t->token, g->token, sizeof(t->token));
    if (!waits)
        return;
    w->workers[f->worker].fence = g->fence;
    w->workers[f->worker].holds = true;
    w->workers[f->worker].lost_ms = 0;
}

/* L2: with one worker for each connection, a holder by HSETNX that releases the lock frees it. */
static void check_release(struct world *w, const struct flight *f, bool own) {
    const struct truth *t = &w->truth[f->key];
    if (own && t->live && w->sc.apart && w->sc.rule.claim_memory_ms >= 60000 &&
        w->sc.rule.owner == LOCK_OWNER_CONNECTION && !by_application(f))
        world_fail(w, "L2", "worker %d's release did not free its lock", f->worker);
}

void hash_check_script(struct world *w, struct flight *f, const struct model_key *before) {
    struct truth *t = &w->truth[f->key];
    struct model_key *now = &w->redis.keys[f->key];
    const struct model_guard *g = check_live(w, f->key);
    bool anybody = w->sc.rule.owner == LOCK_OWNER_ANY || f->kind == FLIGHT_OPERATOR;
    bool releases = t->live && f->releases && f->own_fence == t->fence;
    f->was_own = t->live && f->worker >= 0 && f->worker == t->worker;
    if (!by_application(f) && !anybody) {
        check_fields(w, f, before);
        check_end(w, f, before);
    }
    if (refused(f) && memcmp(before, now, sizeof(*now)) != 0)
        world_fail(w, "S4", "a refused command changed something");
    check_adopted(w, f);
    if (g && g->hash && !hash_has(&now->fields, g->value))
        world_fail(w, "S2", "the lease is for '%s', who is not in the lock", g->value);
    if (t->live && !(g && t->fence == g->fence && strcmp(t->token, g->token) == 0))
        check_lease_ended(w, f->key);
    if (f->envelope.outcome == LOCK_GRANTED && (f->ran || !by_application(f)))
        grant(w, f, g);
    else if (g && !t->live && strcmp(g->token, t->token) == 0)
        t->live = true; /* left and entered again, before adopt.lua was there to see */
    else if (g && !t->live)
        world_fail(w, "S2", "a lease became live that was not granted");
    check_release(w, f, releases);
}

void hash_check_belief(struct world *w, int worker, const struct flight *f) {
    bool plain = f->command.op == OP_HSETNX || f->command.op == OP_HSETEX;
    if (plain && f->envelope.outcome != LOCK_GRANTED)
        world_fail(w, "S5", "worker %d takes itself for the holder after '%s'", worker,
                   world_outcome(f->envelope.outcome));
}
