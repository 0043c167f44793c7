/*
 * The world's beginning, its steps and its end: chance, connections, proxies, time.
 */
#include "tests/sim/chance.h"
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- chance, and what is written down ---------------------------------------------------------- */

uint64_t world_random(struct world *w) {
    return chance_next(&w->random);
}

unsigned world_below(struct world *w, unsigned n) {
    return (unsigned)(world_random(w) % n);
}

bool world_chance(struct world *w, unsigned percent) {
    return world_below(w, 100) < percent;
}

void world_event(struct world *w, const char *format, ...) {
    if (!w->log)
        return;
    char *line = w->events[w->event_count++ % COUNT(w->events)];
    int n = snprintf(line, sizeof(w->events[0]), "%6ld %8" PRId64 " ", w->step, w->redis.now_ms);
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, sizeof(w->events[0]) - (size_t)n, format, args);
    va_end(args);
    if (w->tell)
        puts(line);
}

void world_fail(struct world *w, const char *rule, const char *format, ...) {
    if (w->failure)
        return;
    w->failure = rule;
    va_list args;
    va_start(args, format);
    vsnprintf(w->failure_text, sizeof(w->failure_text), format, args);
    va_end(args);
}

const char *world_outcome(enum lock_outcome o) {
    static const char *const TEXTS[] = {
        [LOCK_GRANTED] = "granted",
        [LOCK_DONE] = "done",
        [LOCK_RELEASED] = "released",
        [LOCK_ADOPTED] = "adopted",
        [LOCK_OPEN] = "open",
        [LOCK_COUNTED] = "counted",
        [LOCK_HELD] = "held",
        [LOCK_FOREIGN] = "foreign",
        [LOCK_FREE] = "free",
        [LOCK_ERROR] = "error",
        [LOCK_UNCONFIRMED] = "unconfirmed",
        [LOCK_NOT_SENT] = "not sent",
        [LOCK_UNKNOWN] = "unknown",
    };
    return TEXTS[o];
}

/* ---- connections and proxies -------------------------------------------------------------------- */

struct lock_key world_key(int key) {
    static const char *const NAMES[MODEL_KEYS] = {"lock:0", "lock:1", "lock:2", "lock:3", "lock:4"};
    return (struct lock_key){.db = 0, .name = NAMES[key], .len = 6};
}

int world_name(const struct world *w, int conn) {
    const struct conn *c = &w->conns[conn];
    return c->alias ? PROCESSES + 1 + conn : c->process < 0 ? (int)PROCESSES : c->process;
}

bool world_mistaken(const struct world *w, int name) {
    return w->sc.apart && name >= 0 && w->pooled[name];
}

void world_identity(int name, char *out) {
    if (name > PROCESSES)
        snprintf(out, MODEL_NAME, "app name=%d", name - PROCESSES - 1);
    else if (name == PROCESSES)
        snprintf(out, MODEL_NAME, "stranger");
    else
        snprintf(out, MODEL_NAME, "app-%d", name);
}

/* The name has a connection less at that proxy. */
static void name_left(struct world *w, int proxy, int name) {
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].open && w->conns[i].proxy == proxy && world_name(w, i) == name)
            return;
    w->left[proxy][name]++;
}

static void note_successor(struct world *w, int conn) {
    const struct conn *c = &w->conns[conn];
    for (int key = 0; key < MODEL_KEYS; key++) {
        struct truth *t = &w->truth[key];
        if (t->live && !t->successor && t->name == world_name(w, conn) && t->proxy == c->proxy &&
            w->closed_ms[t->session_id % SESSIONS_KNOWN])
            t->successor = c->id;
    }
}

void conn_open(struct world *w, int i) {
    struct conn *c = &w->conns[i];
    char identity[MODEL_NAME];
    c->open = true;
    c->busy = 0;
    c->reserved = false;
    c->id = ++w->session_ids;
    memset(c->read, 0, sizeof(c->read));
    memset(c->lost_ms, 0, sizeof(c->lost_ms));
    memset(c->attempt, 0, sizeof(c->attempt));
    c->alias = w->sc.names && c->process >= 0;
    world_identity(world_name(w, i), identity);
    struct lock_engine *e = w->proxies[c->proxy].engine;
    c->came_ms = w->redis.now_ms;
    w->closed_ms[c->id % SESSIONS_KNOWN] = w->heard_ms[c->id % SESSIONS_KNOWN] = 0;
    engine_session_open(e, &c->session, c->id, "", 0);
    engine_session_identify(e, &c->session, identity, strlen(identity), w->redis.now_ms);
    note_successor(w, i);
    if (w->sc.library && c->process >= 0)
        engine_session_library(e, &c->session, "lettuce", 7);
}

/* The connection is lost to its worker; what is under way on it goes on without. */
void conn_forget(struct world *w, int i, bool proxy_gone) {
    struct conn *c = &w->conns[i];
    transaction_conn_lost(w, i, proxy_gone);
    if (w->fences)
        fences_left(w, i);
    c->open = c->reserved = false;
    c->busy = 0;
    w->closed_ms[c->id % SESSIONS_KNOWN] = w->redis.now_ms;
    for (size_t n = 0; n < FLIGHTS; n++) {
        struct flight *f = &w->flights[n];
        if (!f->used || f->conn != i || f->session_id != c->id)
            continue;
        if (!f->orphan && !f->ghost && f->kind == FLIGHT_COMMAND)
            worker_answer(w, f->worker, f, true);
        f->orphan = true;
        if (proxy_gone)
            f->ghost = true;
        if (w->waits)
            waits_left(w, f, proxy_gone);
    }
    name_left(w, c->proxy, world_name(w, i));
    if (c->process < 0)
        return;
    for (int k = 0; k < CONNS; k++)
        if (w->conns[k].open && w->conns[k].process == c->process && w->conns[k].proxy == c->proxy)
            return;
}

void conn_close(struct world *w, int i) {
    struct conn *c = &w->conns[i];
    if (!c->open)
        return;
    world_event(w, "session %" PRIu64 " closes", c->id);
    bool busy = c->busy > 0, held[MODEL_KEYS] = {false};
    for (int key = 0; key < MODEL_KEYS; key++) {
        const struct truth *t = &w->truth[key];
        /* If the answer of a renewal came too late, the proxy believes that the lease is over. */
        held[key] = w->sc.apart && !w->sc.loses && !w->sc.slow && !busy &&
                    w->sc.rule.on_disconnect == LOCK_DISCONNECT_RELEASE && t->live && t->told && !t->observed &&
                    t->session_id == c->id && !w->pooled[t->name];
    }
    struct lock_engine *e = w->proxies[c->proxy].engine;
    conn_forget(w, i, false);
    engine_session_close(e, &c->session, w->redis.now_ms);
    if (!engine_departs(e)) /* a session that leaves many leases leaves in slices */
        check_abandoned(w, held, c->id);
}

void conn_rename(struct world *w, int i) {
    struct conn *c = &w->conns[i];
    char identity[MODEL_NAME];
    int before = world_name(w, i);
    c->alias = !c->alias;
    int name = world_name(w, i);
    world_identity(name, identity);
    world_event(w, "session %" PRIu64 " calls itself %s", c->id, identity);
    c->came_ms = w->redis.now_ms;
    name_left(w, c->proxy, before);
    for (int key = 0; key < MODEL_KEYS; key++)
        if (w->truth[key].session_id == c->id) {
            w->truth[key].name = name;
            w->truth[key].left = w->left[c->proxy][name];
        }
    for (size_t n = 0; n < FLIGHTS; n++)
        if (w->flights[n].used && w->flights[n].session_id == c->id) {
            w->flights[n].name = name;
            w->flights[n].left = w->left[c->proxy][name];
        }
    engine_session_identify(w->proxies[c->proxy].engine, &c->session, identity, strlen(identity), w->redis.now_ms);
}

static void sink_incident(void *arg, const struct lock_incident *incident) {
    struct proxy *p = arg;
    p->world->raised |= 1u << incident->kind;
    if (p->world->waits && incident->kind == INCIDENT_DEADLOCK)
        waits_circle(p->world);
    for (int name = 0; incident->kind == INCIDENT_SHARED && name < IDENTITIES; name++) {
        char identity[MODEL_NAME];
        world_identity(name, identity);
        p->world->pooled[name] = p->world->pooled[name] || strcmp(identity, incident->client) == 0;
    }
    world_event(p->world, "incident %s: %s, %s", lock_incident_name(incident->kind), incident->client,
                incident->action);
}

static struct flight *lease_flight(struct proxy *p, const struct lock_lease *lease, enum flight_kind kind) {
    struct world *w = p->world;
    struct flight *f = flight_new(w, kind);
    check_unasked(w);
    if (!f) {
        world_fail(w, "sim", "too many flights");
        return NULL;
    }
    f->proxy = p->index;
    f->proxy_life = p->life;
    f->key = lease->key.name[5] - '0';
    f->token = lease->token;
    f->lease_ms = lease->lease_ms;
    f->left_ms = lease->left_ms;
    f->right = lock_right_text(lease->right);
    memcpy(f->token_text, lease->token_text, sizeof(f->token_text));
    f->slow = w->sc.slow && kind == FLIGHT_RENEWAL && world_chance(w, 60);
    f->waits = kind == FLIGHT_RENEWAL && !w->sc.punctual && world_chance(w, 30);
    flight_crosses(w, f);
    return f;
}

static void sink_renew(void *arg, const struct lock_lease *lease) {
    struct proxy *p = arg;
    check_renewal_asked(p->world, p, lease);
    struct flight *f = lease_flight(p, lease, FLIGHT_RENEWAL);
    if (f)
        flight_log(p->world, f, "asked");
    if (f && p->world->waits)
        waits_launched(p->world, f);
    p->world->renewals++;
}

static void sink_release(void *arg, const struct lock_lease *lease) {
    struct proxy *p = arg;
    struct flight *f = lease_flight(p, lease, FLIGHT_RELEASE);
    if (!f)
        return;
    f->command = (struct model_command){.op = OP_DEL};
    f->identity[0] = '\0';
    f->plan.verb = LOCK_RELEASE;
    f->plan.right = lease->right;
    memcpy(f->plan.attempt_token, lease->token_text, LOCK_TOKEN_MAX);
    memcpy(f->plan.claim_token, lease->token_text, LOCK_TOKEN_MAX);
    f->tells = lease->rule->wait_ms > 0;
    flight_log(p->world, f, "asked");
    if (p->world->waits)
        waits_launched(p->world, f);
}

void world_release(struct world *w, int proxy, const struct lock_lease *lease) {
    sink_release(&w->proxies[proxy], lease);
}

static void sink_leave(void *arg, const struct lock_leaving *leaving) {
    struct proxy *p = arg;
    struct flight *f = flight_new(p->world, FLIGHT_LEAVE);
    if (!f) {
        world_fail(p->world, "sim", "too many flights");
        return;
    }
    f->proxy = p->index;
    f->proxy_life = p->life;
    f->key = leaving->key.name[5] - '0';
    f->plan.right = leaving->right;
    snprintf(f->token_text, sizeof(f->token_text), "%.*s", (int)leaving->party_len, leaving->party);
    flight_log(p->world, f, "asked");
}

void proxy_id(int proxy, unsigned life, char id[PROXY_ID]) {
    snprintf(id, PROXY_ID, "%08x-0000-4000-8000-%012x", (unsigned)proxy, life);
}

static void proxy_start(struct world *w, int i) {
    struct proxy *p = &w->proxies[i];
    struct lock_sink sink = {
        .arg = p, .incident = sink_incident, .renew = sink_renew, .release = sink_release, .leave = sink_leave};
    p->world = w;
    p->index = i;
    p->life++;
    proxy_id(i, p->life, p->id);
    p->engine = engine_new(p->id, w->sc.seed + p->life, &sink);
}

void proxy_restart(struct world *w, int i) {
    struct proxy *p = &w->proxies[i];
    world_event(w, "proxy %d restarts", i);
    for (int key = 0; key < MODEL_KEYS; key++)
        if (w->truth[key].proxy == i)
            w->truth[key].successor = UINT64_MAX; /* it knows of none of its leases; what is on the list is not here */
    for (int c = 0; c < CONNS; c++)
        if (w->conns[c].open && w->conns[c].proxy == i)
            conn_forget(w, c, true);
    if (w->waits)
        waits_proxy_gone(w, i);
    engine_free(p->engine);
    proxy_start(w, i);
    if (w->waits)
        waits_proxy_back(w, i);
}

/* ---- time --------------------------------------------------------------------------------------- */

static void tick(struct world *w) {
    for (unsigned i = 0; i < w->sc.proxies; i++)
        engine_tick(w->proxies[i].engine, 0, 1, w->redis.now_ms);
    if (!w->sc.punctual)
        return;
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flights[i];
        if (!f->used || f->kind != FLIGHT_RENEWAL || f->ghost)
            continue;
        bool lost = w->sc.loses && world_chance(w, w->redis.now_ms < w->storm_until_ms ? 90 : 2);
        if (!f->ran && !(lost && world_chance(w, 30)))
            flight_run(w, f);
        if (lost)
            flight_fail(w, f, LOCK_UNKNOWN);
        else
            flight_deliver(w, f);
    }
}

/* In the very millisecond of a lock's end, Redis still has the lock, and the model does not. A guard record that is a
 * hash would be taken for a lease's there if its lock were set again at once, which batches do. */
static int64_t beside_ends(const struct world *w, int64_t ms) {
    for (int key = 0; w->sc.short_form && key < MODEL_KEYS; key++)
        if (w->redis.keys[key].exists && w->redis.keys[key].expire_ms == ms)
            return beside_ends(w, ms + 1);
    return ms;
}

void world_advance(struct world *w, int64_t to_ms) {
    w->redis.now_ms = beside_ends(w, to_ms);
    for (int key = 0; key < MODEL_KEYS; key++) {
        model_expire(&w->redis, key);
        check_passed(w, key, BY_TIME);
    }
}

void world_set_clock(struct world *w, int64_t by_ms) {
    model_set_clock(&w->redis, by_ms);
    if (by_ms < 0)
        w->set_back_ms = w->redis.now_ms;
    for (size_t i = 0; i < FLIGHTS; i++)
        if (w->flights[i].ends_ms)
            w->flights[i].ends_ms -= by_ms;
    for (int key = 0; key < MODEL_KEYS; key++) {
        model_expire(&w->redis, key);
        check_passed(w, key, BY_OUTSIDE);
    }
}

static void pass_time(struct world *w, int64_t ms) {
    if (w->waits)
        waits_pass_time(w, ms);
    else
        world_advance(w, w->redis.now_ms + ms);
    if (w->sc.punctual || world_chance(w, 30))
        tick(w);
}

static void step(struct world *w) {
    if (w->step % 8 == 0)
        check_ledgers(w);
    if (w->fences && world_chance(w, 25) && fences_progress(w, false))
        return;
    unsigned what = world_below(w, 100);
    if (what < 40 && flight_somebody_sends(w))
        return;
    if (what < 85) {
        struct flight *f = flight_any(w);
        if (f) {
            flight_progress(w, f);
            return;
        }
    }
    if (what < (w->sc.eventful ? 90 : 96)) {
        unsigned most = !w->sc.punctual && world_chance(w, 8) ? 1500 : 80;
        pass_time(w, 1 + world_below(w, most));
    } else {
        trouble_strikes(w);
    }
}

void world_step(struct world *w) {
    w->step++;
    step(w);
    if (w->waits)
        waits_step_over(w);
}

/* ---- beginning and end -------------------------------------------------------------------------- */

void world_open(struct world *w, uint64_t seed, enum about about, bool log, bool tell) {
    memset(w, 0, sizeof(*w));
    scenario_draw(&w->sc, seed, about);
    w->random = seed ^ 0x5ca1ab1eu;
    w->log = log;
    w->tell = tell;
    w->redis.now_ms = 1000000;
    rules_open(w);
    for (unsigned i = 0; i < w->sc.proxies; i++) {
        w->proxies[i].skew_us = w->sc.skews_us[i];
        proxy_start(w, (int)i);
    }
    waits_open(w);
    fences_open(w);
    for (int i = 0; i < WORKERS; i++) {
        struct app_worker *k = &w->workers[i];
        struct conn *c = &w->conns[i];
        int place = i % WORKERS_EACH;
        bool here = i == STRANGER || (i / WORKERS_EACH < (int)w->sc.processes);
        k->process = i == STRANGER ? -1 : i / WORKERS_EACH;
        c->process = k->process;
        c->worker = i == STRANGER ? -1 : w->sc.connections == CONN_OWN ? i : -1;
        c->proxy = (int)world_below(w, w->sc.proxies);
        if (!here || (i != STRANGER && place >= (int)w->sc.conns))
            c->id = UINT64_MAX; /* not there in this scenario */
        if (here && (i == STRANGER || place < (int)w->sc.workers))
            worker_start_again(w, i);
        else
            k->busy = true; /* nor this one */
    }
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].id != UINT64_MAX)
            conn_open(w, i);
    for (int key = 0; key < MODEL_KEYS; key++)
        w->truth[key].worker = w->truth[key].process = -1;
}

void world_close(struct world *w) {
    waits_close(w);
    fences_close(w);
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].open)
            engine_session_close(w->proxies[w->conns[i].proxy].engine, &w->conns[i].session, w->redis.now_ms);
    for (unsigned i = 0; i < w->sc.proxies; i++)
        engine_free(w->proxies[i].engine);
    for (size_t i = 0; i < FLIGHTS; i++)
        flight_free(&w->flights[i]);
    rules_close(w);
    model_free(&w->redis);
}

/* L1: when all clients have left, each lock is free within its lease. */
static void check_freed(struct world *w) {
    int64_t latest = w->redis.now_ms;
    for (int key = 0; key < MODEL_KEYS; key++) {
        const struct model_guard *g = check_live(w, key);
        int64_t pttl = model_lease_pttl(&w->redis, key);
        bool counted_down = w->redis.keys[key].exists && strtoll(w->redis.keys[key].value, NULL, 10) <= 0;
        /* What a counter left behind is no lease's: GETSET and PERSIST leave it without an end as on Redis. */
        bool swapped = w->sc.rule.owner == LOCK_OWNER_ANY && (w->sc.idioms & 1u << IDIOM_DEADLINE);
        bool left_over = (w->sc.idioms & 1u << IDIOM_COUNT) && (swapped || w->sc.stranger);
        /* The proxy lost the connection behind an attempt, and its lock is data: PERSIST does as on Redis. */
        bool given_up = w->unfinished[key] && (w->sc.loses || w->sc.restarts);
        if (pttl == -1 && (g || !(counted_down || left_over || given_up || w->sc.outside))) /* data from outside */
            world_fail(w, "L1", "key %d is left without an end", key);
        int64_t until_ms = w->redis.queues[key].until_ms;
        if (w->sc.queue && g && g->leased && until_ms > w->redis.now_ms + w->sc.rule.lease_ms)
            world_fail(w, "L1", "the head of key %d is left until %" PRId64, key, until_ms);
        bool around = w->sc.outside || w->sc.clocks || (w->sc.audit && !w->sc.audit_exact);
        if (!w->sc.queue && g && g->leased && !around && w->sc.rule.renew != LOCK_RENEW_ALWAYS &&
            pttl > w->sc.rule.lease_ms)
            world_fail(w, "L1", "key %d is left for %" PRId64 " ms", key, pttl);
        if (w->sc.queue && !g && pttl > w->sc.rule.lease_ms + 5000) /* an expiry that a client has set */
            world_fail(w, "L1", "key %d is left for %" PRId64 " ms", key, pttl);
        if (pttl >= 0 && w->redis.now_ms + pttl > latest)
            latest = w->redis.now_ms + pttl;
    }
    while (w->redis.now_ms <= latest && !w->failure) {
        pass_time(w, 1 + world_below(w, 500));
        tick(w);
    }
    for (int key = 0; key < MODEL_KEYS && !w->failure; key++)
        if (check_live(w, key) || model_pttl(&w->redis, key) >= 0)
            world_fail(w, "L1", "key %d is not free within its lease", key);
}

/* What was acquired under audit without an expiry has none. */
static void free_endless(struct world *w) {
    for (int key = 0; key < MODEL_KEYS; key++) {
        if (model_pttl(&w->redis, key) != -1 || (w->sc.audit_exact && check_live(w, key)))
            continue;
        model_native(&w->redis, key, &(struct model_command){.op = OP_DEL});
        check_passed(w, key, BY_OUTSIDE);
    }
}

static void land_all(struct world *w) {
    struct flight *f;
    while (w->fences && !w->failure && fences_progress(w, true))
        ;
    while ((f = flight_any(w)) && !w->failure)
        flight_progress(w, f);
}

/* Whether an open session of the proxy has lost a lease on fenced data's lock. Its writes are late until it acquires
 * again or closes, however long that takes, so that the engine keeps the key. */
static bool keeps_tenures(const struct world *w, unsigned proxy) {
    for (int i = 0; w->fences && i < CONNS; i++) {
        const struct conn *c = &w->conns[i];
        if (c->open && c->proxy == (int)proxy && engine_has_tenure(w->proxies[proxy].engine, &c->session, 0))
            return true;
    }
    return false;
}

/* Checks that nothing is remembered for ever, when all locks are gone and no client sends. What open sessions have read
 * is kept while there are claims, and for up to its memory again. */
static void check_forgotten(struct world *w, bool sessions) {
    /* A session's own claims are remembered for twenty of their leases, which are longer if Redis's clock is set back.
     */
    int64_t own_ms = 20 * (w->sc.clocks ? 15000 : 5000);
    int64_t memory_ms = w->sc.rule.claim_memory_ms > own_ms ? w->sc.rule.claim_memory_ms : own_ms;
    int64_t until = w->redis.now_ms + 30000 + memory_ms;
    if (sessions)
        until += memory_ms > 10000 ? memory_ms : 10000;
    while (w->redis.now_ms <= until && !w->failure) {
        pass_time(w, 700);
        tick(w);
        land_all(w);
    }
    for (unsigned i = 0; i < w->sc.proxies; i++) {
        struct lock_stats s;
        engine_stats(w->proxies[i].engine, &s);
        if (s.claims || (s.keys && !keeps_tenures(w, i)) || s.leases)
            world_fail(w, "memory", "%" PRIu64 " claims, %" PRIu64 " keys, %" PRIu64 " leases are left", s.claims,
                       s.keys, s.leases);
    }
}

/* Deletes all locks, while their owners are connected. */
static void check_idle(struct world *w) {
    land_all(w);
    for (int i = 0; w->waits && i < CONNS; i++) {
        waits_speak(w, i);
        land_all(w);
    }
    for (int key = 0; key < MODEL_KEYS; key++) {
        model_native(&w->redis, key, &(struct model_command){.op = OP_DEL});
        check_passed(w, key, BY_OUTSIDE);
    }
    check_forgotten(w, true);
}

void world_end(struct world *w) {
    bool transactions = w->sc.transactions || (w->sc.idioms & (1u << IDIOM_MULTI | 1u << IDIOM_WATCH)); /* half-way */
    if (!w->sc.audit && !transactions && w->sc.seed % 4 == 0)
        check_idle(w);
    for (int i = 0; i < CONNS; i++)
        conn_close(w, i);
    land_all(w);
    if (w->failure)
        return;
    if (w->sc.audit)
        free_endless(w);
    check_freed(w);
    land_all(w);
    if (!w->failure)
        check_forgotten(w, false);
}
