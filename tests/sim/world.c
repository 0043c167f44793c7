/*
 * What happens: time passes, workers send, scripts run, answers come or get lost, connections and proxies go.
 */
#include "tests/sim/world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- chance, and what is written down ---------------------------------------------------------- */

uint64_t world_random(struct world *w) {
    w->random += 0x9e3779b97f4a7c15u;
    uint64_t z = w->random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
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

static const char *outcome_text(enum lock_outcome o) {
    static const char *const TEXTS[] = {"granted", "done",    "released", "adopted", "open",     "counted",
                                        "held",    "foreign", "free",     "error",   "not sent", "unknown"};
    return TEXTS[o];
}

static void log_flight(struct world *w, const struct flight *f, const char *what) {
    if (!w->log)
        return;
    char text[96];
    if (f->kind == FLIGHT_RENEWAL)
        snprintf(text, sizeof(text), "renewal of %s", f->token_text + 36);
    else
        command_text(&f->command, text, sizeof(text));
    const char *by = f->kind == FLIGHT_OPERATOR ? "operator" : f->kind == FLIGHT_COMMAND ? "worker" : "proxy";
    world_event(w, "%s %d, session %" PRIu64 ", key %d: %s (attempt %s claim %s %s) %s%s", by, f->worker, f->session_id,
                f->key, text, f->plan.attempt_token[0] ? f->plan.attempt_token + 36 : "",
                f->plan.claim ? f->plan.claim_token + 36 : "-", f->plan.right ? f->plan.right : "", what,
                f->ran ? outcome_text(f->envelope.outcome) : "");
}

/* ---- connections and proxies -------------------------------------------------------------------- */

static struct lock_key key_name(int key) {
    static const char *const NAMES[MODEL_KEYS] = {"lock:0", "lock:1", "lock:2"};
    return (struct lock_key){.db = 0, .name = NAMES[key], .len = 6};
}

static void process_identity(int process, char *out) {
    if (process < 0)
        snprintf(out, MODEL_NAME, "stranger");
    else
        snprintf(out, MODEL_NAME, "app-%d", process);
}

static void conn_open(struct world *w, int i) {
    struct conn *c = &w->conns[i];
    char identity[MODEL_NAME];
    c->open = true;
    c->busy = false;
    c->id = ++w->session_ids;
    memset(c->read_fence, 0, sizeof(c->read_fence));
    process_identity(c->process, identity);
    struct lock_engine *e = w->proxies[c->proxy].engine;
    engine_session_open(e, &c->session, c->id, identity, strlen(identity));
    if (w->sc.library && c->process >= 0)
        engine_session_library(e, &c->session, "jedis", 5);
}

/* The connection is lost to its worker; what is under way on it goes on without. */
static void conn_forget(struct world *w, int i, bool proxy_gone) {
    struct conn *c = &w->conns[i];
    c->open = c->busy = false;
    for (size_t n = 0; n < FLIGHTS; n++) {
        struct flight *f = &w->flights[n];
        if (!f->used || f->conn != i || f->session_id != c->id)
            continue;
        if (!f->orphan && !f->ghost && f->kind == FLIGHT_COMMAND)
            worker_answer(w, f->worker, f, true);
        f->orphan = true;
        if (proxy_gone)
            f->ghost = true;
    }
    if (c->process < 0)
        return;
    for (int k = 0; k < CONNS; k++)
        if (w->conns[k].open && w->conns[k].process == c->process)
            return;
    w->proven[c->process] = w->perhaps_proven[c->process] = false;
}

static void conn_close(struct world *w, int i) {
    struct conn *c = &w->conns[i];
    if (!c->open)
        return;
    world_event(w, "session %" PRIu64 " closes", c->id);
    conn_forget(w, i, false);
    engine_session_close(w->proxies[c->proxy].engine, &c->session, w->redis.now_ms);
}

static struct flight *flight_new(struct world *w, enum flight_kind kind) {
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flights[i];
        if (f->used)
            continue;
        memset(f, 0, offsetof(struct flight, plan));
        f->plan.attempt_token[0] = f->plan.claim_token[0] = '\0';
        f->plan.claim = 0;
        f->plan.right = NULL;
        f->used = true;
        f->kind = kind;
        f->worker = f->conn = -1;
        f->token_text[0] = '\0';
        return f;
    }
    return NULL;
}

static unsigned flights_free(const struct world *w) {
    unsigned n = 0;
    for (size_t i = 0; i < FLIGHTS; i++)
        n += !w->flights[i].used;
    return n;
}

static void sink_incident(void *arg, const struct lock_incident *incident) {
    struct proxy *p = arg;
    world_event(p->world, "incident %s: %s, %s", lock_incident_name(incident->kind), incident->client,
                incident->action);
}

static struct flight *lease_flight(struct proxy *p, const struct lock_lease *lease, enum flight_kind kind) {
    struct world *w = p->world;
    struct flight *f = flight_new(w, kind);
    if (!f) {
        world_fail(w, "sim", "too many flights");
        return NULL;
    }
    f->proxy = p->index;
    f->proxy_life = p->life;
    f->key = lease->key.name[5] - '0';
    f->token = lease->token;
    f->lease_ms = lease->lease_ms;
    f->right = lease->right;
    memcpy(f->token_text, lease->token_text, sizeof(f->token_text));
    return f;
}

static void sink_renew(void *arg, const struct lock_lease *lease) {
    struct proxy *p = arg;
    check_renewal_asked(p->world, p, lease);
    struct flight *f = lease_flight(p, lease, FLIGHT_RENEWAL);
    if (f)
        log_flight(p->world, f, "asked");
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
    log_flight(p->world, f, "asked");
}

static void proxy_start(struct world *w, int i) {
    struct proxy *p = &w->proxies[i];
    struct lock_sink sink = {.arg = p, .incident = sink_incident, .renew = sink_renew, .release = sink_release};
    p->world = w;
    p->index = i;
    p->life++;
    snprintf(p->id, sizeof(p->id), "%08x-0000-4000-8000-%012x", i, p->life);
    p->engine = engine_new(p->id, w->sc.seed + p->life, &sink);
}

static void proxy_restart(struct world *w, int i) {
    struct proxy *p = &w->proxies[i];
    world_event(w, "proxy %d restarts", i);
    for (int c = 0; c < CONNS; c++)
        if (w->conns[c].open && w->conns[c].proxy == i)
            conn_forget(w, c, true);
    engine_free(p->engine);
    proxy_start(w, i);
}

/* ---- scripts ------------------------------------------------------------------------------------ */

static void flight_run(struct world *w, struct flight *f) {
    struct model_key before;
    model_expire(&w->redis, f->key);
    check_passed(w, f->key, BY_TIME);
    before = w->redis.keys[f->key];
    if (f->kind == FLIGHT_RENEWAL) {
        f->envelope = model_renew(&w->redis, f->key, f->token_text, f->right, f->lease_ms);
        f->ran = true;
        check_renewed(w, f, &before);
        log_flight(w, f, "ran: ");
        return;
    }
    struct model_args a = {
        .attempt = f->plan.attempt_token,
        .claim = f->plan.claim_token,
        .identity = f->identity,
        .proxy = w->proxies[f->proxy].id,
        .right = f->plan.right,
        .lease_ms = w->sc.rule.lease_ms,
        .read_fence = f->plan.read_fence,
        .command = f->command,
    };
    char seen[LOCK_SEEN_MAX + 1];
    if (f->kind != FLIGHT_RELEASE && f->plan.seen_known) {
        memcpy(seen, f->plan.seen, f->plan.seen_len);
        seen[f->plan.seen_len] = '\0';
        a.seen = seen;
    }
    f->envelope = model_script(&w->redis, f->key, &a);
    f->ran = true;
    log_flight(w, f, "ran: ");
    const struct truth *t = &w->truth[f->key];
    f->own_session = f->plan.verb == LOCK_ACQUIRE && f->envelope.outcome == LOCK_HELD && t->told &&
                     t->fence == f->envelope.fence && t->session_id == f->session_id;
    check_script(w, f, &before);
}

static void learn_proven(struct world *w, const struct flight *f) {
    struct truth *t = &w->truth[f->key];
    int process = f->worker >= 0 ? w->workers[f->worker].process : -1;
    enum lock_verb verb = f->plan.verb;
    if ((verb == LOCK_RELEASE || verb == LOCK_REPLACE || verb == LOCK_COUNT_DOWN) && t->session_id == f->session_id)
        t->let_go = true; /* no proof for the engine: one worker may have meant to release */
    if (process >= 0 && f->own_session && !f->orphan) {
        world_event(w, "session %" PRIu64 " lost against its own lease", f->session_id);
        w->perhaps_proven[process] = true;
        bool sure = t->live && t->fence == f->envelope.fence && !t->let_go;
        w->proven[process] = w->proven[process] || sure;
    }
}

static void result_of(const struct flight *f, struct lock_result *r) {
    const struct model_envelope *e = &f->envelope;
    bool is_refused = e->outcome == LOCK_HELD || e->outcome == LOCK_FOREIGN;
    *r = (struct lock_result){.outcome = e->outcome,
                              .fence = e->fence,
                              .pttl_ms = e->pttl_ms,
                              .holder = e->owner,
                              .holder_len = strlen(e->owner),
                              .leased = e->leased};
    enum lock_verb verb = f->plan.verb;
    if (verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || (verb == LOCK_SWAP && !is_refused))
        r->value = f->command.value;
    else if ((verb == LOCK_READ || verb == LOCK_SWAP) && e->reply.kind == REPLY_TEXT)
        r->value = e->reply.text;
    r->value_len = r->value ? strlen(r->value) : 0;
}

static void finish_with(struct world *w, struct flight *f, const struct lock_result *r) {
    struct proxy *p = &w->proxies[f->proxy];
    struct conn *c = f->conn >= 0 ? &w->conns[f->conn] : NULL;
    bool open = c && c->open && c->id == f->session_id;
    char text[8] = "COMMAND";
    engine_finish(p->engine, open ? &c->session : NULL, f->session_id, &f->plan, r, text, "10.0.0.1:1234",
                  w->redis.now_ms);
    if (open)
        c->busy = false;
}

/* The answer arrives. */
static void flight_answer(struct world *w, struct flight *f) {
    struct proxy *p = &w->proxies[f->proxy];
    if (f->kind == FLIGHT_RELEASE || f->proxy_life != p->life)
        return;
    if (f->kind == FLIGHT_RENEWAL) {
        struct lock_key key = key_name(f->key);
        engine_renewed(p->engine, &key, f->token, f->envelope.outcome, w->redis.now_ms);
        return;
    }
    struct lock_result r;
    result_of(f, &r);
    log_flight(w, f, "answered: ");
    finish_with(w, f, &r);
    struct truth *t = &w->truth[f->key];
    if (r.outcome == LOCK_GRANTED && t->live && t->fence == r.fence) {
        t->told = true;
        t->told_ms = w->redis.now_ms;
    }
    learn_proven(w, f);
    struct conn *c = &w->conns[f->conn];
    if (f->plan.verb == LOCK_READ && c->open && c->id == f->session_id) {
        c->read_fence[f->key] = r.outcome == LOCK_HELD ? r.fence : 0;
        check_shown(w, c->process, f->key, c->read_fence[f->key]);
    }
    if (!f->orphan && f->kind == FLIGHT_COMMAND)
        worker_answer(w, f->worker, f, false);
}

static void flight_deliver(struct world *w, struct flight *f) {
    flight_answer(w, f);
    f->used = false;
}

/* The proxy learns nothing but this. */
static void flight_fail(struct world *w, struct flight *f, enum lock_outcome outcome) {
    struct proxy *p = &w->proxies[f->proxy];
    bool may_run = outcome == LOCK_UNKNOWN && !f->ran;
    world_event(w, "flight of worker %d on key %d: %s", f->worker, f->key, outcome_text(outcome));
    if (f->proxy_life == p->life && f->kind == FLIGHT_RENEWAL) {
        struct lock_key key = key_name(f->key);
        engine_renewed(p->engine, &key, f->token, outcome, w->redis.now_ms);
    } else if (f->proxy_life == p->life && (f->kind == FLIGHT_COMMAND || f->kind == FLIGHT_OPERATOR)) {
        struct lock_result r = {.outcome = outcome};
        enum lock_verb verb = f->plan.verb;
        if (verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || verb == LOCK_SWAP) {
            r.value = f->command.value;
            r.value_len = strlen(r.value);
        }
        finish_with(w, f, &r);
        if (!f->orphan && f->kind == FLIGHT_COMMAND)
            worker_answer(w, f->worker, f, true);
    }
    f->orphan = f->ghost = true;
    if (!may_run)
        f->used = false;
}

static void flight_progress(struct world *w, struct flight *f) {
    bool gone = f->ghost || f->proxy_life != w->proxies[f->proxy].life;
    if (gone) {
        if (!f->ran && world_chance(w, 50))
            flight_run(w, f);
        f->used = false;
    } else if (!f->ran) {
        if (w->sc.loses && world_chance(w, 3))
            flight_fail(w, f, LOCK_NOT_SENT);
        else if (w->sc.loses && world_chance(w, 3))
            flight_fail(w, f, LOCK_UNKNOWN);
        else
            flight_run(w, f);
    } else if (w->sc.loses && f->kind != FLIGHT_RENEWAL && world_chance(w, 5)) {
        f->repeated = true; /* the answer got lost, the same attempt is sent again */
        flight_run(w, f);
    } else if (w->sc.loses && world_chance(w, 3)) {
        flight_fail(w, f, LOCK_UNKNOWN);
    } else {
        flight_deliver(w, f);
    }
}

static struct flight *any_flight(struct world *w) {
    unsigned start = world_below(w, FLIGHTS);
    for (unsigned i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flights[(start + i) % FLIGHTS];
        if (f->used)
            return f;
    }
    return NULL;
}

/* ---- sending ------------------------------------------------------------------------------------ */

static int conn_for(struct world *w, int worker) {
    const struct worker *k = &w->workers[worker];
    unsigned start = world_below(w, CONNS);
    for (unsigned n = 0; n < CONNS; n++) {
        int i = (int)((start + n) % CONNS);
        struct conn *c = &w->conns[i];
        if (c->process != k->process || (c->worker >= 0 && c->worker != worker) || c->id == UINT64_MAX)
            continue;
        if (!c->open)
            conn_open(w, i);
        if (!c->busy)
            return i;
    }
    return -1;
}

static void launch(struct world *w, struct flight *f, int conn, int key) {
    struct conn *c = &w->conns[conn];
    struct lock_key name = key_name(key);
    f->conn = conn;
    f->key = key;
    f->proxy = c->proxy;
    f->proxy_life = w->proxies[c->proxy].life;
    f->session_id = c->id;
    f->read_fence = c->read_fence[key];
    process_identity(c->process, f->identity);
    enum lock_verb verb = f->kind == FLIGHT_OPERATOR ? LOCK_OPERATOR : model_verb(&f->command);
    engine_begin(w->proxies[c->proxy].engine, &c->session, verb, &name, &w->sc.rule, 7, w->redis.now_ms, &f->plan);
    c->busy = true;
    log_flight(w, f, "sent");
}

/* Whether the worker had something to send. */
static bool send_one(struct world *w, int worker) {
    struct worker *k = &w->workers[worker];
    struct model_command c;
    bool releases;
    if (k->busy || flights_free(w) < FLIGHTS / 3)
        return false;
    if (!k->alive) {
        if (world_chance(w, 20))
            worker_start_again(w, worker);
        return false;
    }
    int conn = conn_for(w, worker);
    if (conn < 0 || !worker_command(w, worker, &c, &releases))
        return false;
    struct flight *f = flight_new(w, FLIGHT_COMMAND);
    f->worker = worker;
    f->command = c;
    f->releases = releases;
    f->own_fence = k->fence;
    launch(w, f, conn, k->key);
    worker_sent(w, worker, &c, releases);
    return true;
}

static bool somebody_sends(struct world *w) {
    for (int tries = 0; tries < 8; tries++) {
        int process = (int)world_below(w, w->sc.processes), place = (int)world_below(w, w->sc.workers);
        bool stranger = w->sc.stranger && world_chance(w, 6);
        if (send_one(w, stranger ? (int)STRANGER : process * WORKERS_EACH + place))
            return true;
    }
    return false;
}

/* ---- trouble ------------------------------------------------------------------------------------ */

static void worker_dies(struct world *w, int worker) {
    struct worker *k = &w->workers[worker];
    if (!k->alive || k->process < 0)
        return;
    world_event(w, "worker %d dies", worker);
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flights[i];
        if (f->used && f->kind == FLIGHT_COMMAND && f->worker == worker)
            f->orphan = true;
    }
    k->alive = k->busy = false;
    for (int key = 0; key < MODEL_KEYS; key++)
        if (w->truth[key].live && w->truth[key].worker == worker)
            w->truth[key].worker = -1;
    k->fence = 0;
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].worker == worker)
            conn_close(w, i);
}

static void process_dies(struct world *w, int process) {
    for (int i = 0; i < WORKERS; i++)
        if (w->workers[i].process == process)
            worker_dies(w, i);
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].process == process)
            conn_close(w, i);
}

static unsigned conns_open(const struct world *w, int process) {
    unsigned n = 0;
    for (int i = 0; i < CONNS; i++)
        n += w->conns[i].open && w->conns[i].process == process;
    return n;
}

static void go_around(struct world *w) {
    int key = (int)world_below(w, w->sc.keys);
    struct model_command c = {.op = OP_SET, .ms = 1 + world_below(w, 2000)};
    static const enum model_op OPS[] = {OP_SET, OP_DEL, OP_PEXPIRE, OP_SET_NX};
    c.op = OPS[world_below(w, COUNT(OPS))];
    snprintf(c.value, sizeof(c.value), world_chance(w, 50) ? "outside" : "1");
    const struct model_guard *g = model_live(&w->redis, key);
    /* Writing the very bytes that a lease has does not show in Redis. */
    if (c.op != OP_DEL && c.op != OP_PEXPIRE && w->redis.keys[key].guard.exists && strcmp(c.value, "1") == 0)
        return;
    (void)g;
    world_event(w, "around the proxy: op %d on key %d", (int)c.op, key);
    model_native(&w->redis, key, &c);
    check_passed(w, key, BY_OUTSIDE);
}

static void operate(struct world *w) {
    struct conn *c = &w->conns[STRANGER];
    if (!c->open)
        conn_open(w, STRANGER);
    if (c->busy || flights_free(w) < FLIGHTS / 3)
        return;
    struct flight *f = flight_new(w, FLIGHT_OPERATOR);
    f->command = (struct model_command){.op = OP_DEL};
    launch(w, f, STRANGER, (int)world_below(w, w->sc.keys));
}

static void trouble(struct world *w) {
    const struct scenario *sc = &w->sc;
    int process = (int)world_below(w, sc->processes);
    if (sc->deaths && world_chance(w, 12)) {
        if (world_chance(w, 15))
            process_dies(w, process);
        else
            worker_dies(w, (int)world_below(w, WORKERS));
    }
    if (sc->reconnects && world_chance(w, 12)) {
        int i = (int)world_below(w, CONNS);
        bool last = conns_open(w, w->conns[i].process) < 2 && w->conns[i].worker < 0;
        if (w->conns[i].process >= 0 && (!last || !sc->never_wrong))
            conn_close(w, i);
    }
    if (sc->restarts && world_chance(w, 2))
        proxy_restart(w, (int)world_below(w, sc->proxies));
    if (sc->outside && world_chance(w, 10))
        go_around(w);
    if (sc->operators && world_chance(w, 10))
        operate(w);
}

/* ---- time --------------------------------------------------------------------------------------- */

static void tick(struct world *w) {
    for (unsigned i = 0; i < w->sc.proxies; i++)
        engine_tick(w->proxies[i].engine, 0, 1, w->redis.now_ms);
    if (!w->sc.punctual)
        return;
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flights[i];
        if (!f->used || f->kind != FLIGHT_RENEWAL)
            continue;
        if (!f->ran)
            flight_run(w, f);
        flight_deliver(w, f);
    }
}

static void pass_time(struct world *w, int64_t ms) {
    w->redis.now_ms += ms;
    for (int key = 0; key < MODEL_KEYS; key++) {
        model_expire(&w->redis, key);
        check_passed(w, key, BY_TIME);
    }
    if (w->sc.punctual || world_chance(w, 30))
        tick(w);
}

void world_step(struct world *w) {
    w->step++;
    unsigned what = world_below(w, 100);
    if (what < 40 && somebody_sends(w))
        return;
    if (what < 85) {
        struct flight *f = any_flight(w);
        if (f) {
            flight_progress(w, f);
            return;
        }
    }
    if (what < 96) {
        unsigned most = !w->sc.punctual && world_chance(w, 8) ? 1500 : 80;
        pass_time(w, 1 + world_below(w, most));
    } else {
        trouble(w);
    }
}

/* ---- beginning and end -------------------------------------------------------------------------- */

void world_open(struct world *w, uint64_t seed, bool log, bool tell) {
    memset(w, 0, sizeof(*w));
    scenario_draw(&w->sc, seed);
    w->random = seed ^ 0x5ca1ab1eu;
    w->log = log;
    w->tell = tell;
    w->redis.now_ms = 1000000;
    for (unsigned i = 0; i < w->sc.proxies; i++)
        proxy_start(w, (int)i);
    for (int i = 0; i < WORKERS; i++) {
        struct worker *k = &w->workers[i];
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
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].open)
            engine_session_close(w->proxies[w->conns[i].proxy].engine, &w->conns[i].session, w->redis.now_ms);
    for (unsigned i = 0; i < w->sc.proxies; i++)
        engine_free(w->proxies[i].engine);
}

/* L1: with everybody gone, each lock is free within its lease. */
static void check_freed(struct world *w) {
    int64_t latest = w->redis.now_ms;
    for (int key = 0; key < MODEL_KEYS; key++) {
        const struct model_guard *g = model_live(&w->redis, key);
        int64_t pttl = model_pttl(&w->redis, key);
        bool counted_down = w->redis.keys[key].exists && strtoll(w->redis.keys[key].value, NULL, 10) <= 0;
        if (pttl == -1 && (g || !counted_down))
            world_fail(w, "L1", "key %d is left without an end", key);
        if (g && g->leased && !w->sc.outside && w->sc.rule.renew != LOCK_RENEW_ALWAYS && pttl > w->sc.rule.lease_ms)
            world_fail(w, "L1", "key %d is left for %" PRId64 " ms", key, pttl);
        if (pttl >= 0 && w->redis.now_ms + pttl > latest)
            latest = w->redis.now_ms + pttl;
    }
    while (w->redis.now_ms <= latest && !w->failure) {
        pass_time(w, 1 + world_below(w, 500));
        tick(w);
    }
    for (int key = 0; key < MODEL_KEYS && !w->failure; key++)
        if (model_live(&w->redis, key) || model_pttl(&w->redis, key) >= 0)
            world_fail(w, "L1", "key %d is not free within its lease", key);
}

/* Nothing is remembered for ever. */
static void check_forgotten(struct world *w) {
    int64_t until = w->redis.now_ms + w->sc.rule.claim_memory_ms + 30000;
    while (w->redis.now_ms <= until) {
        pass_time(w, 700);
        tick(w);
    }
    for (unsigned i = 0; i < w->sc.proxies; i++) {
        struct lock_stats s;
        engine_stats(w->proxies[i].engine, &s);
        if (s.claims || s.keys || s.leases)
            world_fail(w, "memory", "%" PRIu64 " claims, %" PRIu64 " keys, %" PRIu64 " leases are left", s.claims,
                       s.keys, s.leases);
    }
}

void world_end(struct world *w) {
    for (int i = 0; i < CONNS; i++)
        conn_close(w, i);
    struct flight *f;
    while ((f = any_flight(w)) && !w->failure)
        flight_progress(w, f);
    if (w->failure)
        return;
    w->closing = true;
    check_freed(w);
    while ((f = any_flight(w)) && !w->failure)
        flight_progress(w, f);
    if (!w->failure)
        check_forgotten(w);
}
