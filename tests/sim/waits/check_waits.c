/*
 * The spectator of sessions that wait. It knows when each session has come, and holds the proxies against these rules:
 *
 * - order: first come, first served among a proxy's sessions. A session that comes again within TIME keeps its place.
 * - free: no session waits past a free lock for longer than 100 ms and a round trip.
 * - known: where its proxy has learnt that the lock is free, no session waits longer than it waits for other proxies.
 *   Where the proxy is told that it is its turn, no session waits longer than a round trip or two.
 * - told: a release tells the proxy where a session has waited longest, if it is another proxy.
 * - time: a refusal comes when TIME is over, neither before nor later, unless the client wants it.
 * - refusal: no session is refused by a lock that was free all the time.
 * - circle: circles of sessions that wait for each other are refused, and nothing else is called a circle.
 * - gone: what was acquired for a client that has gone is given back.
 */
#include "tests/sim/waits/waits_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_MS = 100, /* how often the first waiter looks */
    LEFT_MS = 64,  /* so long it waits for another proxy's attempt */
    ROUND_UP_MS = 3
};

static int64_t trip_ms(const struct world *w) {
    return 2 * (1 + (int64_t)w->sc.delay_ms);
}

static bool waits(const struct flight *f) {
    return f->used && f->call && f->call->waiting;
}

/* ---- order --------------------------------------------------------------------------------------- */

static struct waits_kept *kept_of(struct world *w, const struct flight *f) {
    for (size_t i = 0; i < WAITS_KEPT; i++) {
        struct waits_kept *k = &w->waits->kept[i];
        if (k->session_id == f->session_id && k->proxy == f->proxy && k->key == f->key && k->until_ms > w->redis.now_ms)
            return k;
    }
    return NULL;
}

void check_waits_came(struct world *w, struct flight *f) {
    struct waits_call *c = f->call;
    c->fresh = ++w->waits->arrivals;
    c->came_ms = w->redis.now_ms;
    c->came_step = w->step;
}

void check_waits_joins(struct world *w, struct flight *f) {
    const struct waits_kept *k = kept_of(w, f);
    f->call->arrival = k ? k->arrival : f->call->fresh;
    f->call->began_ms = w->redis.now_ms;
    w->waits->joins = f;
}

static bool time_over(const struct world *w, const struct flight *f) {
    return w->redis.now_ms >= f->call->began_ms + f->plan.rule->wait_ms;
}

/* It ends before its time: its client is gone or says more, or would wait in a circle. */
static bool ends_early(const struct waits_call *c) {
    return c->left || c->spoken || c->circle;
}

/* No attempt that may try came before it. */
static void check_order(struct world *w, const struct flight *f, const char *what) {
    for (size_t i = 0; i < FLIGHTS; i++) {
        const struct flight *o = &w->flights[i];
        if (o != f && waits(o) && o->proxy == f->proxy && o->key == f->key && !time_over(w, o) &&
            !ends_early(o->call) && o->call->arrival < f->call->arrival)
            world_fail(w, "order",
                       "%s of worker %d (session %" PRIu64 ") goes past worker %d (session %" PRIu64
                       "), which came before it",
                       what, f->worker, f->session_id, o->worker, o->session_id);
    }
}

void check_waits_newcomer(struct world *w, const struct flight *f) {
    const struct session *s = f->call->request.session;
    if (s->in_flight == 1 && !s->lock.overlapped &&
        !engine_own_lease(w->proxies[f->proxy].engine, &f->plan, 0, w->redis.now_ms))
        check_order(w, f, "the first attempt");
}

void check_waits_try(struct world *w, struct flight *f) {
    f->call->last_try_ms = w->redis.now_ms;
    if (!time_over(w, f) && !ends_early(f->call))
        check_order(w, f, "an attempt");
}

/* ---- circles ------------------------------------------------------------------------------------- */

/* The attempt that waits over a session. */
static const struct flight *attempt_of(const struct world *w, int proxy, uint64_t session_id) {
    for (size_t i = 0; i < FLIGHTS; i++) {
        const struct flight *f = &w->flights[i];
        if (waits(f) && f->proxy == proxy && f->session_id == session_id && !f->call->left)
            return f;
    }
    return NULL;
}

/* How many wait for each other in the circle that the attempt is in; 0: there is none. *sure: the proxy knows of each
 * lease that says so. */
static unsigned circle_of(const struct world *w, const struct flight *f, bool *sure) {
    const struct flight *at = f;
    int64_t now_ms = w->redis.now_ms;
    *sure = true;
    for (unsigned n = 1; n <= MODEL_KEYS; n++) {
        const struct truth *t = &w->truth[at->key];
        if (!t->live || t->proxy != f->proxy || w->pooled[t->name]) {
            /* At another proxy a GETSET may have taken over a lease of the circle. This proxy hears of that at its next
             * look. The refused client has lost all the same: its lock is held. */
            bool elsewhere = t->live && t->proxy != f->proxy && now_ms - t->granted_ms <= LOOK_MS + 2 * trip_ms(w);
            *sure = t->live ? !elsewhere : now_ms - w->waits->free_ms[at->key] > 2 * trip_ms(w);
            return 0;
        }
        bool outlives = t->granted_ms <= w->set_back_ms;
        *sure = *sure && t->told && !w->missed[at->key] && t->worker >= 0 && !outlives;
        if (t->session_id == f->session_id)
            return n;
        at = attempt_of(w, f->proxy, t->session_id);
        if (!at)
            return 0;
    }
    return 0;
}

static bool circles_are_sure(const struct scenario *sc) {
    bool own = sc->rule.owner == LOCK_OWNER_CONNECTION || sc->rule.owner == LOCK_OWNER_AUTO;
    return sc->apart && own && !sc->loses && !sc->outside && !sc->operators && !sc->restarts && !sc->reconnects;
}

void check_waits_circle(struct world *w) {
    struct flight *f = w->waits->joins;
    bool sure;
    if (!f) {
        world_fail(w, "circle", "one is found, and nobody joins");
        return;
    }
    f->call->circle = true;
    unsigned n = circle_of(w, f, &sure);
    w->circles[n]++;
    if (!n && sure && circles_are_sure(&w->sc))
        world_fail(w, "circle", "session %" PRIu64 " is in none, and is refused for it", f->session_id);
}

void check_waits_joined(struct world *w, struct flight *f, const struct waits_call *c) {
    bool sure;
    if (f->call != c || !c->waiting || c->circle || !f->held) /* it has ended already, or asks first */
        return;
    unsigned n = circle_of(w, f, &sure);
    if (n && sure && circles_are_sure(&w->sc))
        world_fail(w, "circle", "session %" PRIu64 " closes a circle of %u, and waits", f->session_id, n);
}

/* ---- the end ------------------------------------------------------------------------------------- */

static void keep_place(struct world *w, const struct flight *f) {
    struct waits_kept *k = kept_of(w, f);
    if (!k)
        k = &w->waits->kept[w->waits->kept_count++ % WAITS_KEPT];
    *k = (struct waits_kept){.proxy = f->proxy,
                             .key = f->key,
                             .session_id = f->session_id,
                             .arrival = f->call->arrival,
                             .until_ms = w->redis.now_ms + f->plan.rule->wait_ms};
}

static void check_refusal(struct world *w, const struct flight *f) {
    const struct waits_call *c = f->call;
    const struct waits *s = w->waits;
    if (!time_over(w, f) && !ends_early(c))
        world_fail(w, "time", "session %" PRIu64 " is refused after %" PRId64 " of %" PRId64 " ms", f->session_id,
                   w->redis.now_ms - c->began_ms, f->plan.rule->wait_ms);
    if (s->free_ms[f->key] && s->free_step[f->key] < c->came_step)
        world_fail(w, "refusal", "session %" PRIu64 " is refused by a lock that has been free since it came",
                   f->session_id);
}

void check_waits_end(struct world *w, struct flight *f) {
    struct waits_call *c = f->call;
    bool held = f->envelope.outcome == LOCK_HELD;
    if (!c->waiting || w->waits->crashes)
        return;
    w->waited++;
    if (held && !c->left)
        check_refusal(w, f);
    if (c->granted && c->left && !c->undone)
        world_fail(w, "gone", "what session %" PRIu64 " has acquired, which is gone, is kept", f->session_id);
    struct waits_kept *k = kept_of(w, f);
    if (k)
        k->session_id = 0;
    if (held && !c->left)
        keep_place(w, f);
}

/* ---- free locks ---------------------------------------------------------------------------------- */

void check_waits_learnt(struct world *w, const struct flight *f, const struct lock_result *r) {
    struct waits *s = w->waits;
    bool freed = r->outcome == LOCK_RELEASED || r->outcome == LOCK_FREE;
    uint64_t fence = r->fence || r->outcome == LOCK_FREE ? r->fence : f->plan.claim_fence;
    bool last = fence && fence == w->truth[f->key].fence; /* and not one of before, whose answer comes late */
    if (!freed || !last || !s->free_ms[f->key] || s->known_ms[f->key][f->proxy])
        return;
    s->known_ms[f->key][f->proxy] = w->redis.now_ms;
}

/* Finds the proxy where a session has waited longest, by the marks as they were before a release, and by what that says
 * of its own proxy. Returns its name's length, 0 where there is none. */
static size_t longest(const struct world *w, const struct flight *f, const char **name) {
    const char *own = f->plan.attempt_token; /* which begins with its proxy's name */
    int64_t now_ms = w->redis.now_ms + w->redis.clock_ms, since_ms = f->here_ms >= 0 ? now_ms - f->here_ms : INT64_MAX;
    size_t len = f->here_ms >= 0 ? strlen(w->proxies[f->proxy].id) : 0;
    *name = own;
    for (const char *p = w->waits->marked; *p;) {
        char *end;
        int64_t since = strtoll(p, &end, 10), until = strtoll(end + 1, &end, 10);
        const char *proxy = end + 1;
        size_t n = strcspn(proxy, ",");
        bool stays = f->here_ms < 0 || (until >= now_ms && strncmp(proxy, own, n) != 0);
        if (stays && since < since_ms) {
            since_ms = since;
            *name = proxy;
            len = n;
        }
        p = proxy + n + (proxy[n] == ',');
    }
    return len;
}

/* The attempt that has waited longest is told of a release, if the release comes from another proxy. */
void check_waits_ran(struct world *w, const struct flight *f) {
    const struct waits *s = w->waits;
    const char *proxy;
    bool releases = f->kind == FLIGHT_RELEASE || f->plan.verb == LOCK_RELEASE || f->plan.verb == LOCK_OPERATOR;
    bool commands = f->kind == FLIGHT_RELEASE || f->kind == FLIGHT_COMMAND || f->kind == FLIGHT_OPERATOR;
    size_t len = longest(w, f, &proxy);
    if (f->repeated || !commands || !releases || f->envelope.outcome != LOCK_RELEASED)
        return;
    bool other = len && strncmp(proxy, f->plan.attempt_token, len) != 0, told = w->published > s->published;
    if (told != other)
        world_fail(w, "told", "%s",
                   told ? "a proxy is told whose turn it is not" : "another proxy is not told of a release");
    if (told && (strlen(s->told) != len || strncmp(s->told, proxy, len) != 0))
        world_fail(w, "told", "another proxy than the one where somebody has waited longest");
}

/* The thread hears that the lock has been released, and that it is the one to try. Of which lease it does not hear:
 * where an attempt is under way that may have acquired, it may be an older one. */
void check_waits_told(struct world *w, const struct waits_thread *t, int key) {
    struct waits *s = w->waits;
    const struct flight *first = NULL;
    for (size_t i = 0; i < FLIGHTS; i++) {
        const struct flight *f = &w->flights[i];
        if (waits(f) && f->proxy == (int)t->proxy && f->key == key && !f->held)
            return;
        if (waits(f) && f->proxy == (int)t->proxy && f->key == key && !time_over(w, f) && !ends_early(f->call) &&
            (!first || f->call->arrival < first->call->arrival))
            first = f;
    }
    if (first && first->lane / WAITS_UPSTREAMS == t->worker.index && s->free_ms[key] && !s->told_ms[key][t->proxy])
        s->told_ms[key][t->proxy] = w->redis.now_ms;
}

static int64_t greatest(int64_t a, int64_t b, int64_t c) {
    return a > b ? (a > c ? a : c) : b > c ? b : c;
}

/* An attempt that waits for a free lock will have it soon. */
static void check_free(struct world *w, const struct flight *f) {
    const struct waits *s = w->waits;
    int64_t now_ms = w->redis.now_ms, began_ms = f->call->began_ms, lost_ms = s->lost_ms[f->key];
    int64_t known_ms = s->known_ms[f->key][f->proxy], told_ms = s->told_ms[f->key][f->proxy];
    int64_t past_ms = now_ms - greatest(s->free_ms[f->key], began_ms, lost_ms);
    if (past_ms > LOOK_MS + trip_ms(w) + ROUND_UP_MS)
        world_fail(w, "free", "session %" PRIu64 " has waited past a free lock for %" PRId64 " ms", f->session_id,
                   past_ms);
    past_ms = known_ms ? now_ms - greatest(known_ms, began_ms, lost_ms) : 0;
    if (past_ms > LEFT_MS + 2 * trip_ms(w) + ROUND_UP_MS)
        world_fail(w, "known",
                   "session %" PRIu64 " has waited for a lock that its proxy knows to be free for %" PRId64 " ms",
                   f->session_id, past_ms);
    past_ms = told_ms ? now_ms - greatest(told_ms, began_ms, lost_ms) : 0;
    if (past_ms > 2 * trip_ms(w) + ROUND_UP_MS)
        world_fail(w, "known", "session %" PRIu64 " has waited for a lock that its proxy is to take for %" PRId64 " ms",
                   f->session_id, past_ms);
}

static void check_time(struct world *w, const struct flight *f) {
    int64_t late_ms =
        w->redis.now_ms - greatest(f->call->began_ms + f->plan.rule->wait_ms, w->waits->lost_ms[f->key], 0);
    if (late_ms > trip_ms(w) + ROUND_UP_MS)
        world_fail(w, "time", "session %" PRIu64 " is answered %" PRId64 " ms too late", f->session_id, late_ms);
}

void check_waits_key(struct world *w, int key) {
    struct waits *s = w->waits;
    model_expire(&w->redis, key);
    if (w->redis.keys[key].exists) {
        s->free_ms[key] = 0;
        memset(s->known_ms[key], 0, sizeof(s->known_ms[key]));
        memset(s->told_ms[key], 0, sizeof(s->told_ms[key]));
    } else if (!s->free_ms[key]) {
        s->free_ms[key] = w->redis.now_ms;
        s->free_step[key] = w->step;
    }
}

/* No attempt stays in a circle that was closed while answers were in flight. */
static void check_circle(struct world *w, struct flight *f) {
    bool sure;
    if (!circles_are_sure(&w->sc) || !circle_of(w, f, &sure) || !sure) {
        f->call->circle_ms = 0;
        return;
    }
    if (!f->call->circle_ms)
        f->call->circle_ms = w->redis.now_ms;
    if (w->redis.now_ms - f->call->circle_ms > 2 * trip_ms(w) + ROUND_UP_MS)
        world_fail(w, "circle", "session %" PRIu64 " waits in one", f->session_id);
}

/* The first waiter listens to its lock's releases, from its second look on. */
static void check_listens(struct world *w, const struct flight *f) {
    const struct waits_thread *t = &w->waits->threads[f->proxy][f->lane / WAITS_UPSTREAMS];
    int64_t since_ms = greatest(f->call->began_ms, w->waits->moved_ms[f->key], w->waits->lost_ms[f->key]);
    if (w->sc.deaf || f->call->last_try_ms <= since_ms + LOOK_MS + trip_ms(w) || waits_listens(w, t, f->key))
        return;
    if (w->redis.now_ms - f->call->last_try_ms > trip_ms(w))
        world_fail(w, "deaf", "session %" PRIu64 " waits, and its thread does not hear of releases", f->session_id);
}

void waits_check(struct world *w) {
    const struct waits *s = w->waits;
    for (unsigned key = 0; key < w->sc.keys; key++)
        check_waits_key(w, (int)key);
    for (size_t i = 0; i < FLIGHTS && !w->failure; i++) {
        struct flight *f = &w->flights[i];
        if (!waits(f))
            continue;
        check_time(w, f);
        check_circle(w, f);
        check_listens(w, f);
        if (s->free_ms[f->key])
            check_free(w, f);
    }
}
