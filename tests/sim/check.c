/*
 * The spectator: it knows which worker acquired which lease, and checks every change of the model against S1 to S5, L2
 * and L3 of the lock semantics (world_end checks L1).
 */
#include "tests/sim/hash_locks.h"
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <string.h>

static bool same_lease(const struct truth *t, const struct model_guard *g) {
    return t->live && g && t->fence == g->fence && strcmp(t->token, g->token) == 0;
}

/* The key's lease still is the one that the spectator knows. */
static bool stands(struct world *w, int key) {
    const struct truth *t = &w->truth[key];
    const struct model_guard *g = check_live(w, key);
    if (w->sc.queue) /* it has a token for each worker that may be the holder */
        return t->live && g && t->fence == g->fence;
    return t->observed ? t->live && watched_stands(w, key) : same_lease(t, g);
}

static int process_of(const struct world *w, int worker) {
    return worker < 0 ? -1 : w->workers[worker].process;
}

const struct model_guard *check_live(struct world *w, int key) {
    return w->sc.queue ? model_queue_live(&w->redis, key) : model_live(&w->redis, key);
}

/* The truth's lease is not live any more. */
void check_lease_ended(struct world *w, int key) {
    struct truth *t = &w->truth[key];
    t->live = false;
    if (t->process < 0)
        return;
    struct app_worker *k = t->worker >= 0 ? &w->workers[t->worker] : NULL;
    bool pending = k && k->alive && k->fence == t->fence;
    struct held_lock *under = k && k->alive ? worker_under(k, t->fence) : NULL;
    if (pending) {
        k->holds = false;
        k->lost_ms = w->redis.now_ms;
    }
    if (under) {
        under->holds = false;
        under->lost_ms = w->redis.now_ms;
    }
    if (pending || under || t->worker < 0) {
        w->ended_unreleased[t->process][key]++;
        if (t->sighted)
            w->ended_sighted[t->process][key]++;
    }
}

static bool worker_holds(const struct world *w, const struct truth *t) {
    if (t->worker < 0)
        return false;
    const struct app_worker *k = &w->workers[t->worker];
    const struct held_lock *under = worker_under((struct app_worker *)(uintptr_t)k, t->fence);
    if (under)
        return k->alive && under->holds;
    return k->alive && k->holds && k->fence == t->fence;
}

/* S1: a lease was ended by a command that is not its worker's. */
void check_ended_by_other(struct world *w, const struct flight *f, const struct truth *t) {
    const struct scenario *sc = &w->sc;
    if (f->kind == FLIGHT_OPERATOR || sc->rule.owner == LOCK_OWNER_ANY)
        return;
    if (f->kind == FLIGHT_RELEASE) {
        if (f->token_text[0] == '\0' || (strcmp(f->token_text, t->token) != 0 && !f->seated))
            world_fail(w, "S1", "the proxy released another lease than it meant");
        return;
    }
    bool swapped = f->plan.verb == LOCK_SWAP && f->envelope.outcome == LOCK_GRANTED;
    if (swapped && (f->read_fence == t->fence || (f->may_be_pooled && f->client_read_fence == t->fence)))
        return;
    if (process_of(w, f->worker) != t->process) {
        world_fail(w, "S1", "a client ended a lease of another client (worker %d that of worker %d, %s)", f->worker,
                   t->worker, swapped ? "by a swap of a lease that it had not read" : "as if it were its own");
        return;
    }
    if (!worker_holds(w, t))
        return;
    w->wrong++;
    world_event(w, "wrong: worker %d ended the lease that worker %d holds", f->worker, t->worker);
    if (sc->never_wrong && !world_mistaken(w, t->name))
        world_fail(w, "S1", "worker %d ended the lease that worker %d holds", f->worker, t->worker);
}

/* S3: within a lease, its end (or its value) was moved by a command that is not its worker's. */
static void moved_by_other(struct world *w, const struct flight *f, const struct truth *t) {
    const struct scenario *sc = &w->sc;
    if (sc->rule.owner == LOCK_OWNER_ANY)
        return;
    if (process_of(w, f->worker) != t->process)
        world_fail(w, "S3", "a client changed a lease of another client (worker %d that of worker %d)", f->worker,
                   t->worker);
    else if (sc->apart && worker_holds(w, t))
        world_fail(w, "S3", "worker %d changed the lease that worker %d holds", f->worker, t->worker);
}

/* F: within one identity a lease that the proxy gave may be replaced by an expiry, and any lease lengthened. */
static bool believed_to_extend(const struct world *w, const struct flight *f, const struct model_key *before) {
    const struct model_key *now = &w->redis.keys[f->key];
    bool later = before->expire_ms && (!now->expire_ms || now->expire_ms > before->expire_ms);
    return w->sc.rule.owner == LOCK_OWNER_AUTO && f->plan.verb == LOCK_EXTEND &&
           process_of(w, f->worker) == w->truth[f->key].process && (before->guard.leased || later);
}

static bool refused(const struct flight *f) {
    if (f->plan.verb == LOCK_SCRIPT) /* what it did, it did */
        return false;
    switch (f->envelope.outcome) {
    case LOCK_HELD:
    case LOCK_FOREIGN:
    case LOCK_ERROR:
        return true;
    case LOCK_FREE: /* a counter that stays at zero or below is free before and after, and so is what data is written to
                     */
        return f->command.op != OP_INCRBY && f->command.op != OP_MSET && f->plan.verb != LOCK_PASS;
    default:
        return f->plan.verb == LOCK_READ;
    }
}

/* acquire.lua has given a lease that a batch had made another fence. No client was told of the first one. */
static void check_raised(struct world *w, const struct flight *f, const struct model_guard *g) {
    struct truth *t = &w->truth[f->key];
    struct app_worker *k = t->worker >= 0 ? &w->workers[t->worker] : NULL;
    if (g->fence <= t->max_fence)
        world_fail(w, "S2", "fence %" PRIu64 " after %" PRIu64, g->fence, t->max_fence);
    if (k && k->fence == t->fence)
        k->fence = g->fence;
    t->fence = t->max_fence = g->fence;
    t->provisional = false;
}

/* S2, S5: the attempt is the live lease, with a fence above all before it. */
static void check_grant(struct world *w, struct flight *f, const struct model_guard *g, bool provisional) {
    struct truth *t = &w->truth[f->key];
    if (!g || strcmp(g->token, f->plan.attempt_token) != 0 || g->fence != f->envelope.fence) {
        world_fail(w, "S5", "told that it acquired, and the live lease is another's");
        return;
    }
    if (same_lease(t, g)) { /* repeated */
        t->provisional = t->provisional && f->late == '\0';
        return;
    }
    if (t->live && !t->told && strcmp(t->token, g->token) == 0) {
        check_raised(w, f, g);
        return;
    }
    if (t->live)
        world_fail(w, "S2", "granted while another lease was live");
    if (!provisional && g->fence <= t->max_fence)
        world_fail(w, "S2", "fence %" PRIu64 " after %" PRIu64, g->fence, t->max_fence);
    bool waits = !f->orphan && !f->ghost && f->worker >= 0;
    uint64_t max = !provisional && g->fence > t->max_fence ? g->fence : t->max_fence;
    *t = (struct truth){
        .live = true,
        .provisional = provisional,
        .fence = g->fence,
        .max_fence = max,
        .session_id = f->session_id,
        .worker = waits ? f->worker : -1,
        .process = process_of(w, f->worker),
        .proxy = f->proxy,
        .name = f->name,
        .left = f->left,
        .granted_ms = w->redis.now_ms,
    };
    memcpy(t->token, g->token, sizeof(t->token));
    if (waits) {
        struct app_worker *k = &w->workers[f->worker];
        k->fence = g->fence;
        k->holds = true;
        k->lost_ms = 0;
    }
}

/* L2, L3: a holder's release while its lease is live frees the lock. */
static void check_release(struct world *w, const struct flight *f) {
    struct truth *t = &w->truth[f->key];
    const struct scenario *sc = &w->sc;
    bool shortened = f->command.op == OP_SET_XX && f->envelope.outcome == LOCK_DONE;
    if (!t->live || shortened)
        return;
    if (t->observed && watched_hidden(w, f->key)) /* refused, and the lock ends by its expiry */
        return;
    w->kept++;
    if (f->again && sc->apart && t->session_id == f->session_id && sc->rule.owner == LOCK_OWNER_CONNECTION &&
        sc->rule.claim_memory_ms >= 60000)
        world_fail(w, "L2", "worker %d's release got lost, and sent again it did not free its lock", f->worker);
    world_event(w, "kept: worker %d's release did not free its lock", f->worker);
    if (world_mistaken(w, t->name))
        return;
    if (sc->never_kept && !w->unsure[t->process][f->key])
        world_fail(w, "L2", "worker %d's release did not free its lock", f->worker);
    if (sc->kept_after_end_only && w->ended_unreleased[t->process][f->key] == 0)
        world_fail(w, "L2", "worker %d's release did not free its lock, and no lease had ended unreleased", f->worker);
    if (sc->kept_after_sight_only && w->ended_sighted[t->process][f->key] == 0)
        world_fail(w, "L3", "worker %d's release did not free its lock, and no lost value had been shown", f->worker);
}

/* GETSET: what a connection of a client that shares them has read last, another may swap, as long as it is that. */
static void check_takeover(struct world *w, const struct flight *f) {
    const struct truth *t = &w->truth[f->key];
    const struct scenario *sc = &w->sc;
    bool exact = sc->idioms == 1u << IDIOM_DEADLINE && !sc->outside && !sc->names && !sc->renames && !sc->reconnects &&
                 !sc->restarts && !sc->loses;
    if (exact && f->plan.verb == LOCK_SWAP && f->envelope.outcome == LOCK_HELD && f->pooled && t->live &&
        t->fence == f->client_read_fence && !f->client_mixed &&
        strcmp(f->client_shown, w->redis.keys[f->key].value) == 0)
        world_fail(w, "S1", "worker %d may not swap the lease that its client has read", f->worker);
}

bool check_differs(const struct world *w, const struct model_key *before, const struct model_key *now) {
    struct model_key expanded = *before;
    struct model_guard *g = &expanded.guard;
    if (g->text && now->guard.exists && !now->guard.text) { /* common.lua: expand */
        bool live = model_string_live(&w->redis, before);
        g->text = false;
        g->expire_ms = !live ? w->redis.now_ms + GUARD_OUTLIVES_MS - 1 : before->expire_ms + GUARD_OUTLIVES_MS;
    }
    return memcmp(&expanded, now, sizeof(*now)) != 0;
}

void check_batch_left(struct world *w, struct flight *f, bool both) {
    struct truth *t = &w->truth[f->key];
    const struct model_guard *g = check_live(w, f->key);
    if (w->sc.audit && !w->sc.audit_exact)
        return;
    if (both) { /* no client is told its fence, which may not be above the last one */
        check_grant(w, f, g, true);
        return;
    }
    if (t->live && t->observed && !f->sets && g && strcmp(g->token, f->plan.attempt_token) == 0)
        memcpy(t->stray, g->token, sizeof(t->stray));
    if (t->live && !stands(w, f->key)) {
        world_fail(w, "S1", "a batch that came to nothing has ended a lease");
        return;
    }
    /* The record of an older lease, whose lock is gone around the proxy, and the lock hold the same value. Or the lock
     * is of an earlier batch whose answer was lost, and this batch has set the record: acquire.lua removes it. */
    if (g && !t->live && (w->sc.outside || w->stirred[f->key] || (w->unfinished[f->key] && f->late == '-')))
        t->unclear = true;
    else if (g && !t->live && !t->unclear)
        world_fail(w, "S2", "a batch that came to nothing has made a lease");
}

/* S5: acquire.lua behind a batch acquires what was free, or what a batch has set that is not finished. */
static void check_finished(struct world *w, const struct flight *f, const struct model_key *before) {
    const struct truth *t = &w->truth[f->key];
    bool its = t->live && strcmp(t->token, f->plan.attempt_token) == 0;
    if (before->exists && !its && !f->sets && !w->unfinished[f->key])
        world_fail(w, "S5", "told that it acquired, and another's lock was there");
}

bool check_was_freed(const struct world *w, const struct flight *f) {
    const struct record *r = &w->redis.records[f->key];
    const struct record_text *last = r->is_text ? NULL : record_get(r, "attempt", strlen("attempt"));
    return f->freed && last && strcmp(last->data, f->plan.attempt_token) == 0;
}

void check_repeat(struct world *w, struct flight *f, bool freed) {
    const struct model_guard *g = check_live(w, f->key);
    enum lock_outcome outcome = f->envelope.outcome;
    if (f->plan.verb == LOCK_ACQUIRE && outcome != LOCK_GRANTED && g && strcmp(g->token, f->plan.attempt_token) == 0)
        world_fail(w, "S5", "worker %d's attempt had acquired, and is refused when it is sent again", f->worker);
    if (freed && outcome != LOCK_RELEASED)
        world_fail(w, "S5", "worker %d's release had freed its lock, and is refused when it is sent again", f->worker);
    f->freed = f->plan.verb == LOCK_RELEASE && outcome == LOCK_RELEASED;
}

void check_script(struct world *w, struct flight *f, const struct model_key *before) {
    if (w->sc.hash) {
        hash_check_script(w, f, before);
        return;
    }
    struct truth *t = &w->truth[f->key];
    struct model_key *now = &w->redis.keys[f->key];
    const struct model_guard *g = check_live(w, f->key);
    bool was_live = t->live, own = t->live && f->worker >= 0 && f->worker == t->worker;
    /* A provisional fence, of which no client is told, may be that of an older lease. */
    bool releases_own = was_live && !t->provisional && f->releases && f->own_fence == t->fence;
    f->was_own = own || releases_own;
    check_left(w, f, before);
    bool tracked = !w->sc.audit || w->sc.audit_exact;
    if (f->late && f->envelope.outcome == LOCK_GRANTED && tracked)
        check_finished(w, f, before);
    int64_t apart_ms = before->expire_ms - before->guard.expire_ms + (before->guard.text ? 0 : GUARD_OUTLIVES_MS);
    bool alike = apart_ms >= -MODEL_SLACK_MS && apart_ms <= MODEL_SLACK_MS;
    /* An earlier lease, whose lock was removed around the proxies, looks like a later one if its fence is greater. */
    bool later = w->sc.outside && f->raises && before->guard.token[0] && before->guard.fence > f->short_fence &&
                 model_guard_current(&w->redis, &before->guard);
    bool stays = f->late == '!' && tracked && !t->live && w->unfinished[f->key] && before->expire_ms && !later &&
                 strcmp(before->value, f->command.value) == 0;
    if (stays && (f->envelope.outcome == LOCK_FOREIGN || (f->envelope.outcome == LOCK_HELD && !alike)))
        world_fail(w, "L1", "worker %d was refused, and its lock stays", f->worker);
    w->unfinished[f->key] = w->unfinished[f->key] && now->exists && !g;
    if (w->sc.audit && !w->sc.audit_exact)
        return;
    if (t->live && t->observed && t->worker < 0) { /* its owner is gone, and it is forgotten in time */
        t->live = false;
        t->unclear = true;
    }
    if (t->live && t->observed && g && strcmp(g->token, f->plan.claim_token) == 0)
        watched_enrolled(w, f, g);
    struct model_key left = *before;
    if (f->late && left.guard.text && !g && strcmp(left.guard.token, f->plan.attempt_token) == 0)
        memset(&left.guard, 0, sizeof(left.guard)); /* the batch's record is taken back */
    bool expanded = f->late && !left.guard.text && strcmp(left.guard.token, f->plan.attempt_token) == 0;
    if (expanded && !g && now->guard.token[0] == '\0') /* another script has rewritten it, and it is taken back */
        memcpy(left.guard.token, now->guard.token, sizeof(left.guard.token));
    if (refused(f) && check_differs(w, before, now) && memcmp(&left, now, sizeof(left)) != 0)
        world_fail(w, "S4", "a refused command changed something");
    if (t->live && !stands(w, f->key)) {
        if (!f->was_own)
            check_ended_by_other(w, f, t);
        check_lease_ended(w, f->key);
    } else if (t->live && !f->was_own && f->envelope.outcome != LOCK_COUNTED) {
        bool moved = before->expire_ms != now->expire_ms && !believed_to_extend(w, f, before);
        if (moved || strcmp(before->value, now->value) != 0)
            moved_by_other(w, f, t);
    } else if (t->live && !f->was_own && before->expire_ms != now->expire_ms) {
        world_fail(w, "S3", "a counter's end was moved by somebody else");
    }
    if (f->envelope.outcome == LOCK_GRANTED)
        check_grant(w, f, g, false);
    else if (g && !t->live && !t->unclear)
        world_fail(w, "S2", "a lease became live that was not granted");
    check_takeover(w, f);
    check_foreign_swap(w, f, before);
    if (releases_own && !model_says_no(&f->command, before)) /* another session has changed the value */
        check_release(w, f);
}

/* A new session has got the owner's identity since its session closed, or up to a second before. */
static bool successor_there(const struct world *w, const struct truth *t, int proxy) {
    const struct scenario *sc = &w->sc;
    int64_t closed_ms = w->closed_ms[t->session_id % SESSIONS_KNOWN];
    if (sc->rule.owner == LOCK_OWNER_CONNECTION || sc->rule.on_disconnect == LOCK_DISCONNECT_RELEASE || sc->queue)
        return false;
    for (int i = 0; i < CONNS; i++) {
        const struct conn *c = &w->conns[i];
        if (c->open && c->proxy == proxy && world_name(w, i) == t->name && c->came_ms >= closed_ms - 1000)
            return true;
    }
    return false;
}

/* No session is left for which the proxy must renew the lease. */
static bool owner_gone(const struct world *w, const struct truth *t, int proxy) {
    const struct scenario *sc = &w->sc;
    bool may_share =
        sc->rule.owner == LOCK_OWNER_CLIENT ||
        (sc->rule.owner == LOCK_OWNER_AUTO && (sc->library || t->process < 0 || !sc->apart || w->pooled[t->name]));
    for (int i = 0; i < CONNS; i++) {
        const struct conn *c = &w->conns[i];
        if (c->open && c->proxy == proxy && c->id == t->session_id)
            return false;
    }
    return !successor_there(w, t, proxy) && (!may_share || w->left[proxy][t->name] != t->left);
}

void check_renewed(struct world *w, const struct flight *f, const struct model_key *before,
                   const struct model_queue *queue) {
    struct truth *t = &w->truth[f->key];
    bool changed = check_differs(w, before, &w->redis.keys[f->key]) ||
                   (w->sc.queue && w->redis.queues[f->key].until_ms != queue->until_ms);
    bool moved = before->expire_ms != w->redis.keys[f->key].expire_ms;
    bool guard_alone = changed && !moved && !w->sc.queue; /* it follows what was set past the proxies */
    if (changed && !guard_alone && !before->guard.leased && strcmp(f->right, "always") != 0)
        world_fail(w, "S3", "a renewal moved an expiry that is none of the proxy's");
    if (w->sc.audit && !w->sc.audit_exact)
        return;
    if (t->live && !stands(w, f->key))
        world_fail(w, "S1", "a renewal ended a lease");
    bool its =
        t->live && (strcmp(t->token, f->token_text) == 0 || model_queue_seated(&w->redis, f->key, f->token_text) ||
                    model_queue_early(&w->redis, f->key, f->token_text));
    if (changed && !t->unclear && !its)
        world_fail(w, "S3", "a renewal changed a lease that it was not for");
    bool here = !f->ghost && f->proxy_life == w->proxies[f->proxy].life;
    bool looks = strcmp(f->right, lock_right_text(RIGHT_LOOK)) == 0; /* it moves nothing */
    if (f->waits && here && !looks && t->live && strcmp(t->token, f->token_text) == 0 && owner_gone(w, t, f->proxy))
        world_fail(w, "S3", "a renewal was sent for an owner that had left while it waited");
}

/* S3: the proxy renews for a connected owner only, and not for ever. */
void check_renewal_asked(struct world *w, const struct proxy *p, const struct lock_lease *lease) {
    int key = lease->key.name[5] - '0';
    struct truth *t = &w->truth[key];
    const struct scenario *sc = &w->sc;
    bool looks = lease->right == RIGHT_LOOK;
    if (sc->rule.renew == LOCK_RENEW_NEVER && !looks)
        world_fail(w, "S3", "a renewal although the rule says never");
    if (strcmp(t->token, lease->token_text) != 0)
        return; /* an older lease's: the script refuses it */
    if (looks) {
        if (owner_gone(w, t, p->index))
            world_fail(w, "S3", "a look at a lease for an owner that is gone");
        return;
    }
    t->renewal_lost = false;
    /* Of crossing answers it is not known which one has the end; renew.lua finds an expiry that is not the proxy's. */
    bool exact = sc->apart && !sc->loses && !(sc->idioms & 1u << IDIOM_SCRIPT) && w->exact[key];
    if (exact && t->own_expiry && sc->rule.renew == LOCK_RENEW_AUTO)
        world_fail(w, "S3", "a renewal of what worker %d has set an expiry for", t->worker);
    if (sc->rule.max_hold_ms && t->told && w->redis.now_ms >= t->told_ms + sc->rule.max_hold_ms)
        world_fail(w, "S3", "a renewal after max-hold");
    if (owner_gone(w, t, p->index))
        world_fail(w, "S3", "a renewal for an owner that is gone");
}

/* Whether the engine takes the lease's end from the answer: not from answers to workers other than the holder, which
 * get it in a queue. Until the answer to the holder's own command is there a renewal may be asked for, and does no
 * harm: the script finds an expiry of the application's and leaves it alone, which check_renewed holds it to. */
static bool engine_takes_end(const struct flight *f) {
    enum lock_verb verb = f->plan.verb;
    switch (f->envelope.outcome) {
    case LOCK_GRANTED:
        return true;
    case LOCK_DONE:
        return verb != LOCK_RELEASE && verb != LOCK_QUEUE_PUSH && verb != LOCK_QUEUE_REMOVE && verb != LOCK_QUEUE_SET;
    case LOCK_HELD:
        return verb == LOCK_SCRIPT;
    default:
        return false;
    }
}

void check_told(struct world *w, const struct flight *f) {
    struct truth *t = &w->truth[f->key];
    if (f->kind == FLIGHT_COMMAND && !engine_takes_end(f))
        return;
    /* Where another answer came meanwhile, the proxy does not know which of them is the later one. */
    bool alone = f->begun_step > t->end_told_step && f->proxy == t->proxy;
    if (f->kind == FLIGHT_COMMAND)
        t->own_expiry = !f->envelope.leased && (alone || t->own_expiry);
    t->leased_elsewhere = f->envelope.leased && (f->proxy != t->proxy || (t->leased_elsewhere && !alone));
    t->end_told_step = w->step;
}

void check_renewal_lost(struct world *w, const struct flight *f) {
    struct truth *t = &w->truth[f->key];
    if (t->live && strcmp(t->token, f->token_text) == 0)
        t->renewal_lost = true;
}

/* Whether the lease's holder, alone under its name, has come back in time over another connection, and has not asked
 * for the lock. */
static bool returned(const struct world *w, const struct truth *t) {
    const struct scenario *sc = &w->sc;
    if (!sc->names || sc->renames || sc->loses || !worker_holds(w, t) || sc->rule.owner == LOCK_OWNER_CONNECTION ||
        sc->rule.on_disconnect == LOCK_DISCONNECT_RELEASE)
        return false;
    for (int i = 0; i < CONNS; i++) {
        const struct conn *c = &w->conns[i];
        if (c->open && c->alias && c->id == t->successor && c->proxy == t->proxy && c->worker == t->worker &&
            c->came_ms + sc->rule.lease_ms / 3 <= w->redis.now_ms)
            return true;
    }
    return false;
}

/* A lease that the proxy renews ends by itself only if its client is gone, or max-hold is over. */
static void check_expired(struct world *w, int key) {
    const struct truth *t = &w->truth[key];
    const struct model_guard *g = &w->redis.keys[key].guard;
    const struct scenario *sc = &w->sc;
    if (t->observed || !sc->punctual || sc->rule.renew == LOCK_RENEW_NEVER || sc->outside || sc->clocks || !g->leased ||
        !t->told)
        return;
    if (sc->loses && !t->renewal_lost) /* the last one was not done */
        return;
    bool held_out = sc->rule.max_hold_ms && w->redis.now_ms >= t->granted_ms + sc->rule.max_hold_ms;
    if (held_out || strcmp(g->token, t->token) != 0)
        return;
    if (!sc->apart && sc->idioms != 1u << IDIOM_SETNX)
        return; /* colleagues may have set an expiry meanwhile */
    if (t->told_ms > t->granted_ms + sc->rule.lease_ms / 2)
        return;
    if (t->leased_elsewhere)
        return;
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].open && w->conns[i].id == t->session_id && worker_holds(w, t) && !w->workers[t->worker].again)
            world_fail(w, "renewal", "a lease of the proxy ended under its connected holder");
    if (returned(w, t))
        world_fail(w, "renewal", "a lease of the proxy ended although its holder had come back");
}

void check_passed(struct world *w, int key, enum cause cause) {
    struct truth *t = &w->truth[key];
    w->unfinished[key] = w->unfinished[key] && w->redis.keys[key].exists && cause == BY_TIME;
    if (!t->live)
        return;
    if (stands(w, key))
        return;
    if (cause == BY_TIME && w->sc.queue)
        check_list_expired(w, key);
    else if (cause == BY_TIME)
        check_expired(w, key);
    world_event(w, "lease %" PRIu64 " of worker %d on key %d ended (%s)", t->fence, t->worker, key,
                cause == BY_TIME ? "time" : "outside");
    check_lease_ended(w, key);
}

/* ---- what people are told ---------------------------------------------------------------------- */

static const uint32_t ACCUSATIONS = 1u << INCIDENT_LATE_RELEASE | 1u << INCIDENT_FOREIGN_RELEASE |
                                    1u << INCIDENT_FOREIGN_EXTEND | 1u << INCIDENT_OVERWRITE;

void check_incidents(struct world *w, const struct flight *f) {
    if (!w->sc.audit_exact || !w->sc.never_kept || f->worker == STRANGER)
        return;
    if (f->was_own && (w->raised & ACCUSATIONS))
        world_fail(w, "incidents", "what worker %d did to its own lease is reported", f->worker);
    if (f->ended_other && !(w->raised & ACCUSATIONS))
        world_fail(w, "incidents", "worker %d ended somebody else's lease, and nobody is told", f->worker);
}

void check_abandoned(struct world *w, const bool held[MODEL_KEYS], uint64_t session_id) {
    for (int key = 0; key < MODEL_KEYS; key++) {
        bool asked = false;
        for (size_t i = 0; i < FLIGHTS; i++)
            asked = asked || (w->flights[i].used && w->flights[i].kind == FLIGHT_RELEASE &&
                              strcmp(w->flights[i].token_text, w->truth[key].token) == 0);
        if (held[key] && !asked && w->truth[key].granted_ms > w->set_back_ms)
            world_fail(w, "L1", "session %" PRIu64 " has closed, and what it held on key %d is not released",
                       session_id, key);
    }
}

void check_shown(struct world *w, int process, int key, uint64_t fence) {
    struct truth *t = &w->truth[key];
    if (process < 0 || fence == 0)
        return;
    if (t->live && t->fence == fence)
        t->sighted = t->sighted || t->process == process;
    else
        w->ended_sighted[process][key]++; /* it ended while the answer was on its way */
}

/* Checks S5, promise 4: what the proxy says is what the worker may believe. */
void check_belief(struct world *w, int worker, const struct flight *f) {
    struct app_worker *k = &w->workers[worker];
    struct truth *t = &w->truth[f->key];
    const struct scenario *sc = &w->sc;
    enum lock_outcome outcome = f->envelope.outcome;
    if (outcome == LOCK_GRANTED)
        return;
    if (f->observed || (sc->audit && !sc->audit_exact)) {
        if (!sc->audit_exact)
            k->fence = UINT64_MAX; /* it believes so, and may */
        return;
    }
    /* The lease that changed is the worker's own, which it had left alone, or that of a colleague that the wire does
     * not distinguish from it. */
    bool changed = outcome == LOCK_DONE || outcome == LOCK_ADOPTED || outcome == LOCK_OPEN;
    /* It may have looked on one connection and swapped on another, or another worker has looked on this connection
     * since; a client around the proxy writes the same value again, unless it is a deadline. An attempt in the short
     * form may have set the value a first time, which ended before its script set the value again. Another worker may
     * have found no lock on this connection in between. */
    bool alike = sc->idioms == 1u << IDIOM_DEADLINE;
    bool looked_here = sc->connections == CONN_OWN || (sc->connections == CONN_SHARED && alike) ||
                       (sc->connections == CONN_POOL && alike && f->pooled && sc->proxies == 1);
    bool again = sc->short_form && k->expected_ms <= t->granted_ms;
    if (!changed && f->plan.verb == LOCK_SWAP &&
        (!looked_here || again || (sc->outside && !strchr(k->expected, '.')) || sc->reconnects || sc->restarts))
        return;
    if ((f->repeated && f->command.op == OP_INCRBY) || f->command.op == OP_LUA_SET) {
        k->fence = 0; /* it had acquired, and lost the lease before the repeat, or before it could be adopted */
        return;
    }
    if (!changed || (sc->apart && t->live && t->fence == f->envelope.fence && t->worker >= 0 && t->worker != worker))
        world_fail(w, "S5", "worker %d takes itself for the holder after '%s'", worker, changed ? "done" : "refused");
    if (t->live && t->fence == f->envelope.fence && !(t->worker >= 0 && worker_holds(w, t))) {
        t->worker = worker;
        t->sighted = false;
        k->fence = t->fence;
        k->holds = true;
    }
}
