/*
 * What workers do, one deed after the other: a phase says which deed was done last.
 *
 *      try ── refused ── (EXPIRE) ── (DEL) ── (reconnect) ── wait, try again
 *       │
 *       └── acquired ── (EXPIRE) ── (another try) ── (watchdog) ── (GET) ── work ── (reconnect) ── (GET) ── DEL ── rest
 */
#include <stdio.h>
#include <string.h>

#include "tests/sim/traffic_world.h"

enum phase {
    AT_RESTED,
    AT_TRIED,
    AT_EXPIRED,
    AT_LET_GO, /* a loser's DEL */
    AT_LEFT,   /* and a new connection behind it */
    AT_POLLED,
    AT_NEST,
    AT_NESTED,
    AT_WATCHED, /* the watchdog's third of a lease is over */
    AT_PROLONGED,
    AT_HALF,
    AT_BEAT,
    AT_WORKED,
    AT_RECONNECTED,
    AT_COMPARED,
    AT_GAP,
    AT_RELEASED,
    AT_REPEATED,
    AT_FRESH
};

static bool happens(struct traffic *t, double probability) {
    return probability > 0 && traffic_random(t) < probability;
}

static struct deed pause_for(struct worker *k, enum phase phase, int64_t ms) {
    k->phase = phase;
    return (struct deed){.kind = DEED_WAIT, .wait_ms = ms > 0 ? ms : 0};
}

static struct deed send(struct worker *k, enum phase phase, enum deed_kind kind, struct lease *mine) {
    k->phase = phase;
    return (struct deed){.kind = kind, .key = k->key, .mine = mine};
}

static void choose_value(struct worker *k) {
    const struct app_plan *p = &k->app->plan;
    size_t size = sizeof(k->value);
    switch (p->value) {
    case VALUE_SAME:
        snprintf(k->value, size, "1");
        return;
    case VALUE_LEASE:
        snprintf(k->value, size, "%s-%u-%u", p->identity, k->number, k->attempts);
        return;
    case VALUE_WORKER:
        snprintf(k->value, size, "%s-%u", p->identity, k->place);
        return;
    case VALUE_HOST:
        snprintf(k->value, size, "host-%u", k->place % p->hosts);
        return;
    case VALUE_KEY:
        snprintf(k->value, size, "object-%d", k->key);
        return;
    }
}

/* ---- until it is acquired ---------------------------------------------------------------------- */

static struct deed attempt(struct worker *k) {
    k->attempts++;
    choose_value(k);
    struct deed d = send(k, AT_TRIED, DEED_TRY, NULL);
    d.endless = k->app->plan.endless || k->app->plan.expire != EXPIRE_WITH_SET;
    return d;
}

static struct deed section(struct traffic *t, struct worker *k) {
    const struct app *a = k->app;
    k->key = a->keys[a->key_count == 1 ? 0 : traffic_below(t, a->key_count)];
    return attempt(k);
}

static struct deed poll(struct traffic *t, struct worker *k) {
    return pause_for(k, AT_POLLED, traffic_within(t, k->app->plan.poll));
}

static struct deed refused_for_good(struct traffic *t, struct worker *k) {
    return k->app->plan.fresh ? send(k, AT_LEFT, DEED_RECONNECT, NULL) : poll(t, k);
}

static struct deed refused(struct traffic *t, struct worker *k) {
    if (!k->app->plan.losers)
        return refused_for_good(t, k);
    if (k->retried < k->app->plan.retries) {
        k->retried++;
        return poll(t, k);
    }
    k->retried = 0;
    return send(k, AT_LET_GO, DEED_RELEASE, NULL);
}

/* ---- the work ---------------------------------------------------------------------------------- */

static struct deed rest(struct traffic *t, struct worker *k) {
    return pause_for(k, AT_RESTED, traffic_within(t, k->app->plan.rest));
}

static bool is_late(struct traffic *t, const struct worker *k) {
    const struct app_plan *p = &k->app->plan;
    int64_t now = traffic_now(t);
    bool late = happens(t, p->late) || k->app->tally.acquired <= p->all_late;
    for (int i = 0; i < TRAFFIC_TIMES; i++)
        late =
            late || (p->bursts[i] > 0 && now >= traffic_trips(p->bursts[i]) && now < traffic_trips(p->bursts[i] + 30));
    return late;
}

static int64_t more_than_a_lease(struct traffic *t, const struct worker *k) {
    return traffic_trips(k->app->plan.lease * (1 + traffic_exponential(t)));
}

static struct deed work_on(struct traffic *t, struct worker *k) {
    return pause_for(k, AT_WORKED, k->end_ms - traffic_now(t));
}

static struct deed beat(struct traffic *t, struct worker *k) {
    if (k->app->plan.heartbeat)
        return pause_for(k, AT_HALF, (k->end_ms - traffic_now(t)) / 2);
    return work_on(t, k);
}

static struct deed watch(struct traffic *t, struct worker *k) {
    int64_t third = traffic_trips(k->app->plan.lease / 3);
    if (k->app->plan.dog != DOG_NONE && traffic_now(t) + third < k->end_ms)
        return pause_for(k, AT_WATCHED, third);
    return beat(t, k);
}

static struct deed acquired(struct traffic *t, struct worker *k) {
    const struct app_plan *p = &k->app->plan;
    int64_t now = traffic_now(t);
    k->retried = 0;
    if (p->throttle) {
        traffic_done(t, k->lease);
        return rest(t, k);
    }
    k->end_ms = now + (is_late(t, k) ? more_than_a_lease(t, k) : traffic_within(t, p->work));
    k->misses = happens(t, p->miss);
    if (happens(t, p->nested))
        return pause_for(k, AT_NEST, (k->end_ms - now) / 2);
    return watch(t, k);
}

static struct deed tried(struct traffic *t, struct worker *k) {
    return k->lease ? acquired(t, k) : refused(t, k);
}

static struct deed answered(struct traffic *t, struct worker *k) {
    k->lease = k->got;
    enum app_expire expire = k->app->plan.expire;
    if (expire == EXPIRE_BY_ALL || (k->lease && expire == EXPIRE_BY_HOLDER))
        return send(k, AT_EXPIRED, DEED_EXPIRE, k->lease);
    return tried(t, k);
}

static struct deed nested(struct traffic *t, struct worker *k) {
    if (k->got)
        traffic_done(t, k->got);
    return watch(t, k);
}

/* ---- the end of it ----------------------------------------------------------------------------- */

static struct deed leave(struct traffic *t, struct worker *k) {
    return k->app->plan.fresh ? send(k, AT_FRESH, DEED_RECONNECT, NULL) : rest(t, k);
}

static struct deed give_up(struct traffic *t, struct worker *k) {
    traffic_done(t, k->lease);
    return leave(t, k);
}

static struct deed release(struct worker *k) {
    return send(k, AT_RELEASED, DEED_RELEASE, k->lease);
}

static struct deed worked(struct traffic *t, struct worker *k) {
    const struct app_plan *p = &k->app->plan;
    if (k->misses)
        return give_up(t, k);
    if (p->hand) {
        traffic_hand(k->app, k->lease);
        return leave(t, k);
    }
    return p->compare ? send(k, AT_COMPARED, DEED_READ, NULL) : release(k);
}

static struct deed compared(struct traffic *t, struct worker *k) {
    if (!k->shown || strcmp(k->seen, k->lease->value) != 0)
        return give_up(t, k);
    if (happens(t, k->app->plan.gap))
        return pause_for(k, AT_GAP, more_than_a_lease(t, k));
    return release(k);
}

/* Of the usual worker. */
static struct deed go_on(struct traffic *t, struct worker *k) {
    const struct app_plan *p = &k->app->plan;
    switch ((enum phase)k->phase) {
    case AT_RESTED:
        return section(t, k);
    case AT_TRIED:
        return answered(t, k);
    case AT_EXPIRED:
        return tried(t, k);
    case AT_LET_GO:
        return refused_for_good(t, k);
    case AT_LEFT:
        return poll(t, k);
    case AT_POLLED:
        return attempt(k);
    case AT_NEST:
        return send(k, AT_NESTED, DEED_TRY, NULL);
    case AT_NESTED:
        return nested(t, k);
    case AT_WATCHED:
        return send(k, AT_PROLONGED, DEED_PROLONG, k->lease);
    case AT_PROLONGED:
        return watch(t, k);
    case AT_HALF:
        return send(k, AT_BEAT, DEED_READ, NULL);
    case AT_BEAT:
        return work_on(t, k);
    case AT_WORKED:
        return happens(t, p->reconnect) ? send(k, AT_RECONNECTED, DEED_RECONNECT, NULL) : worked(t, k);
    case AT_RECONNECTED:
        return worked(t, k);
    case AT_COMPARED:
        return compared(t, k);
    case AT_GAP:
        return release(k);
    case AT_RELEASED:
        return p->twice ? send(k, AT_REPEATED, DEED_RELEASE, NULL) : leave(t, k);
    case AT_REPEATED:
        return leave(t, k);
    case AT_FRESH:
        return rest(t, k);
    }
    return rest(t, k);
}

/* ---- others ------------------------------------------------------------------------------------ */

/* Releases what was handed over, after some work of its own. */
static struct deed finish(struct traffic *t, struct worker *k) {
    if (k->phase == AT_WORKED) {
        k->key = k->lease->key;
        return release(k);
    }
    k->lease = traffic_handed(k->app);
    if (k->lease)
        return pause_for(k, AT_WORKED, traffic_within(t, k->app->plan.work));
    return pause_for(k, AT_RESTED, traffic_trips(2));
}

/* Deletes what there is, now and then. */
static struct deed operate(struct traffic *t, struct worker *k) {
    const struct app *a = k->app;
    if (k->phase == AT_RELEASED)
        return pause_for(k, AT_RESTED, traffic_trips(traffic_exponential(t) / a->plan.operators));
    k->key = a->keys[traffic_below(t, a->key_count)];
    return send(k, AT_RELEASED, DEED_RELEASE, NULL);
}

struct deed worker_next(struct traffic *t, struct worker *k) {
    switch (k->kind) {
    case WORKER_USUAL:
        return go_on(t, k);
    case WORKER_FINISHER:
        return finish(t, k);
    case WORKER_OPERATOR:
        return operate(t, k);
    }
    return rest(t, k);
}
