/*
 * The world of the traffic simulator: its clock and its events, connections, commands under way, and the truth about
 * every lease. What workers want is traffic_worker.c's, what becomes of a command traffic_engine.c's.
 */
#include "tests/sim/chance.h"
#include "tests/sim/traffic_world.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum event_kind { EVENT_WORKER, EVENT_RUNS, EVENT_ANSWERED, EVENT_ENDS, EVENT_CRASH, EVENT_TICK };

struct event {
    int64_t at_ms;
    uint64_t order; /* what is due at the same time happens in the order in which it was set down */
    enum event_kind kind;
    void *what; /* a worker, an application, a front */
    int key;    /* EVENT_ENDS */
};

struct traffic {
    const struct world_plan *plan;
    struct model redis;
    int64_t start_ms, until_ms;
    uint64_t random, orders, session_ids;
    unsigned workers_ever;
    const char *names[MODEL_KEYS];
    struct app apps[TRAFFIC_APPS];
    struct front fronts[TRAFFIC_FRONTS];
    unsigned front_count;
    struct lease *live[MODEL_KEYS];
    int64_t ends_ms[MODEL_KEYS]; /* of the live lease's expiry an event is set down; 0 none */
    struct event *heap;          /* the earliest first */
    size_t heap_count, heap_room;
    struct lease *leases;
    struct line *lines;
    struct worker *workers;
};

static void *grow(void *p, size_t size) {
    p = realloc(p, size);
    if (!p)
        abort();
    return p;
}

static void *make(size_t size) {
    void *p = calloc(1, size);
    if (!p)
        abort();
    return p;
}

/* ---- chance and time ----------------------------------------------------------------------------- */

static uint64_t random_number(struct traffic *t) {
    return chance_next(&t->random);
}

double traffic_random(struct traffic *t) {
    return (double)(random_number(t) >> 11) / 9007199254740992.0;
}

unsigned traffic_below(struct traffic *t, unsigned n) {
    return (unsigned)(random_number(t) % n);
}

int64_t traffic_trips(double trips) {
    return (int64_t)(trips * TRAFFIC_TRIP + 0.5);
}

int64_t traffic_within(struct traffic *t, struct app_span span) {
    return traffic_trips(span.from + traffic_random(t) * (span.to - span.from));
}

double traffic_exponential(struct traffic *t) {
    return -log(1 - traffic_random(t));
}

int64_t traffic_now(const struct traffic *t) {
    return t->redis.now_ms - t->start_ms;
}

static double trips_of(int64_t ms) {
    return (double)ms / TRAFFIC_TRIP;
}

/* ---- events --------------------------------------------------------------------------------------- */

static bool earlier(const struct event *a, const struct event *b) {
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->order < b->order;
}

static void event_add(struct traffic *t, int64_t at_ms, enum event_kind kind, void *what, int key) {
    struct event e = {.at_ms = at_ms, .order = ++t->orders, .kind = kind, .what = what, .key = key};
    if (t->heap_count == t->heap_room) {
        t->heap_room = t->heap_room ? 2 * t->heap_room : 64;
        t->heap = grow(t->heap, t->heap_room * sizeof(*t->heap));
    }
    size_t i = t->heap_count++;
    for (; i > 0 && earlier(&e, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = e;
}

static struct event event_take(struct traffic *t) {
    struct event first = t->heap[0], last = t->heap[--t->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < t->heap_count; i = child) {
        if (child + 1 < t->heap_count && earlier(&t->heap[child + 1], &t->heap[child]))
            child++;
        if (!earlier(&t->heap[child], &last))
            break;
        t->heap[i] = t->heap[child];
    }
    t->heap[i] = last;
    return first;
}

static void worker_later(struct traffic *t, struct worker *k, int64_t at_ms) {
    event_add(t, at_ms, EVENT_WORKER, k, 0);
}

/* ---- the truth about leases -------------------------------------------------------------------- */

void traffic_done(struct traffic *t, struct lease *l) {
    l->busy = false;
    if (!l->rested)
        l->done_ms = t->redis.now_ms;
    l->rested = true;
}

static void lease_over(struct traffic *t, struct lease *l) {
    if (l->rested)
        l->app->tally.idle += trips_of(t->redis.now_ms - l->done_ms);
    t->live[l->key] = NULL;
}

/* The key's expiry may have changed, or an operator may have ended the lease. */
static void key_look(struct traffic *t, int key) {
    model_expire(&t->redis, key);
    const struct model_key *k = &t->redis.keys[key];
    struct lease *l = t->live[key];
    if (!l)
        return;
    if (!k->exists) {
        if (l->busy && l->app->plan.dog != DOG_NONE)
            l->app->tally.cut++;
        if (t->plan->trace)
            printf("%9.2f key %d lapses\n", trips_of(traffic_now(t)), key);
        lease_over(t, l);
        return;
    }
    if (k->expire_ms && k->expire_ms != t->ends_ms[key]) {
        t->ends_ms[key] = k->expire_ms;
        event_add(t, k->expire_ms, EVENT_ENDS, NULL, key);
    }
}

/* Of bare Redis alone: it is told to end what the proxy would let end, so that both can be compared. */
static void lease_limit(struct traffic *t, struct lease *l) {
    struct model_key *k = &t->redis.keys[l->key];
    if (t->plan->bare && t->live[l->key] == l && k->exists && !k->expire_ms) {
        k->expire_ms = t->redis.now_ms + traffic_trips(l->app->plan.lease);
        key_look(t, l->key);
    }
}

static void ends(struct traffic *t, int key) {
    t->ends_ms[key] = 0;
    key_look(t, key);
    if (!t->live[key] && !t->plan->bare)
        for (unsigned i = 0; i < t->front_count; i++)
            front_tick(&t->fronts[i]);
}

static struct lease *lease_new(struct traffic *t, struct worker *k) {
    struct lease *l = make(sizeof(*l));
    l->next = t->leases;
    t->leases = l;
    l->app = k->app;
    l->line = k->used;
    l->key = k->call.key;
    memcpy(l->value, k->value, sizeof(l->value));
    l->endless = k->deed.endless;
    l->busy = true;
    t->live[l->key] = l;
    k->app->tally.acquired++;
    if (k->dead) {
        traffic_done(t, l);
        lease_limit(t, l);
    }
    return l;
}

void traffic_hand(struct app *a, struct lease *l) {
    if (a->handed_first + a->handed_count == a->handed_room) {
        a->handed_room = a->handed_room ? 2 * a->handed_room : 64;
        a->handed = grow(a->handed, a->handed_room * sizeof(struct lease *));
    }
    a->handed[a->handed_first + a->handed_count++] = l;
}

struct lease *traffic_handed(struct app *a) {
    if (a->handed_count == 0)
        return NULL;
    a->handed_count--;
    return a->handed[a->handed_first++];
}

/* ---- connections ----------------------------------------------------------------------------------- */

static struct line *line_new(struct traffic *t, const struct app *a, int proxy, bool multiplexes) {
    struct line *l = make(sizeof(*l));
    l->next = t->lines;
    t->lines = l;
    l->multiplexes = multiplexes;
    l->proxy = proxy;
    l->free_ms = -1;
    front_connect(&t->fronts[proxy], &l->front, ++t->session_ids, a->plan.identity, multiplexes);
    return l;
}

static int proxy_for(const struct traffic *t, const struct app *a, unsigned place) {
    return a->plan.spread ? (int)(place % t->front_count) : 0;
}

/* Closes it, and opens another in its place. */
static struct line *line_again(struct traffic *t, struct app *a, struct line *old) {
    front_disconnect(&old->front);
    struct line *l = line_new(t, a, old->proxy, old->multiplexes);
    for (unsigned i = 0; i < a->line_count; i++)
        if (a->lines[i] == old)
            a->lines[i] = l;
    return l;
}

static bool is_better(const struct app *a, const struct line *l, const struct line *best) {
    if (!best)
        return true;
    return a->plan.pick == PICK_LAST_USED ? l->free_ms > best->free_ms : l->free_ms < best->free_ms;
}

/* NULL: the whole pool is in use. */
static struct line *pool_pick(struct traffic *t, const struct app *a) {
    struct line *best = NULL;
    unsigned free_lines = 0;
    for (unsigned i = 0; i < a->line_count; i++) {
        struct line *l = a->lines[i];
        if (l->free_ms > t->redis.now_ms)
            continue;
        free_lines++;
        bool takes = a->plan.pick == PICK_ANY ? traffic_below(t, free_lines) == 0 : is_better(a, l, best);
        if (takes)
            best = l;
    }
    return best;
}

static struct line *line_for(struct traffic *t, struct worker *k) {
    struct app *a = k->app;
    if (k->deed.kind == DEED_PROLONG && a->plan.dog == DOG_APART) {
        if (!k->dog_line)
            k->dog_line = line_new(t, a, 0, false);
        return k->dog_line;
    }
    if (k->line)
        return k->line;
    return a->plan.connections == APP_MULTIPLEXED ? a->lines[k->place % a->line_count] : pool_pick(t, a);
}

static int64_t pool_free_ms(const struct app *a) {
    int64_t first = INT64_MAX;
    for (unsigned i = 0; i < a->line_count; i++)
        if (a->lines[i]->free_ms < first)
            first = a->lines[i]->free_ms;
    return first;
}

static void reconnect(struct traffic *t, struct worker *k) {
    struct app *a = k->app;
    struct line *old = k->used, *l = line_again(t, a, old);
    if (k->line == old)
        k->line = l;
    for (int key = 0; key < MODEL_KEYS && a->plan.connections == APP_OWN; key++)
        if (t->live[key] && t->live[key]->line == old)
            lease_limit(t, t->live[key]);
}

/* ---- commands ----------------------------------------------------------------------------------------- */

static struct model_command command_of(const struct worker *k) {
    int64_t lease_ms = traffic_trips(k->app->plan.lease);
    struct model_command c = {.op = OP_GET};
    switch (k->deed.kind) {
    case DEED_TRY:
        c.op = k->deed.endless ? OP_SETNX : OP_SET_NX;
        c.ms = k->deed.endless ? 0 : lease_ms;
        memcpy(c.value, k->value, sizeof(c.value));
        break;
    case DEED_RELEASE:
        c.op = OP_DEL;
        break;
    case DEED_EXPIRE:
    case DEED_PROLONG:
        c.op = OP_PEXPIRE;
        c.ms = lease_ms;
        break;
    case DEED_READ:
    case DEED_RECONNECT:
    case DEED_WAIT:
        break;
    }
    return c;
}

static void trace(const struct traffic *t, const struct worker *k, bool done) {
    static const char *const NAMES[] = {"waits", "SET NX", "GET", "DEL", "EXPIRE", "EXPIRE (watchdog)", "reconnects"};
    const struct lock_plan *p = &k->call.plan;
    printf("%9.2f %s worker %u over %" PRIu64 ": %s %d -> %d", trips_of(traffic_now(t)), k->app->plan.identity,
           k->number, k->used->front.id, NAMES[k->deed.kind], k->deed.key, done);
    if (!t->plan->bare && k->deed.kind != DEED_RECONNECT)
        printf(" (claim %s, right %s)", p->claim_token[0] ? p->claim_token + 36 : "-", lock_right_text(p->right));
    printf("\n");
}

static void count_wrong(struct lease *l) {
    l->app->tally.wrong += l->busy;
}

static void ran_try(struct traffic *t, struct worker *k) {
    const struct model_reply *r = &k->call.envelope.reply;
    struct lease *live = t->live[k->call.key];
    k->got = NULL;
    if (r->kind != REPLY_OK && !(r->kind == REPLY_INT && r->number == 1))
        return;
    if (live) { /* the engine had it released for the attempt */
        count_wrong(live);
        live->app->tally.by_again += live->busy;
        lease_over(t, live);
    }
    k->got = lease_new(t, k);
}

/* A release that never comes is the next one's in the row, too. */
static void count_release(struct app *a, bool lost) {
    struct tally *y = &a->tally;
    y->lost += lost;
    y->row = lost ? y->row + 1 : 0;
    if (y->row > y->most)
        y->most = y->row;
}

static void ran_release(struct traffic *t, struct worker *k) {
    struct lease *live = t->live[k->call.key], *mine = k->deed.mine;
    bool done = k->call.envelope.reply.number == 1;
    if (mine && live == mine)
        count_release(k->app, !done);
    if (!done || !live)
        return;
    if (live != mine && k->kind != WORKER_OPERATOR)
        count_wrong(live);
    lease_over(t, live);
}

static void ran_expire(struct traffic *t, struct worker *k) {
    struct lease *live = t->live[k->call.key], *mine = k->deed.mine;
    bool done = k->call.envelope.reply.number == 1;
    if (!live)
        return;
    if (done && live != mine)
        live->app->tally.moved++;
    else if (!done && live == mine && k->deed.kind == DEED_PROLONG)
        k->app->tally.cut++;
    else if (!done && live == mine)
        k->app->tally.unexpired++;
}

static void ran_read(struct worker *k) {
    const struct model_reply *r = &k->call.envelope.reply;
    k->shown = r->kind == REPLY_TEXT;
    if (k->shown)
        memcpy(k->seen, r->text, sizeof(k->seen));
}

/* The script runs, in the model. */
static void command_runs(struct traffic *t, struct worker *k) {
    key_look(t, k->call.key);
    front_run(&k->call);
    switch (k->deed.kind) {
    case DEED_TRY:
        ran_try(t, k);
        break;
    case DEED_RELEASE:
        ran_release(t, k);
        break;
    case DEED_EXPIRE:
    case DEED_PROLONG:
        ran_expire(t, k);
        break;
    case DEED_READ:
        ran_read(k);
        break;
    case DEED_RECONNECT:
    case DEED_WAIT:
        break;
    }
    key_look(t, k->call.key);
    if (t->plan->trace)
        trace(t, k, k->got || k->call.envelope.reply.number == 1 || (k->deed.kind == DEED_READ && k->shown));
}

static void command_ends(struct traffic *t, struct worker *k) {
    front_finish(&k->call);
    key_look(t, k->call.key);
}

/* Begun, run and answered at once; its worker hears of it a round trip later. */
static void command_at_once(struct traffic *t, struct worker *k) {
    do
        command_runs(t, k);
    while (front_answered(&k->call));
    command_ends(t, k);
    worker_later(t, k, t->redis.now_ms + TRAFFIC_TRIP);
}

static void command_under_way(struct traffic *t, struct worker *k) {
    event_add(t, t->redis.now_ms + TRAFFIC_TRIP / 2, EVENT_RUNS, k, 0);
    event_add(t, t->redis.now_ms + TRAFFIC_TRIP, EVENT_ANSWERED, k, 0);
}

static void command_answered(struct traffic *t, struct worker *k) {
    if (front_answered(&k->call)) {
        k->used->free_ms = t->redis.now_ms + TRAFFIC_TRIP;
        command_under_way(t, k);
        return;
    }
    command_ends(t, k);
    worker_later(t, k, t->redis.now_ms);
}

/* Releases that are held back are begun once more after so many ms. */
enum { HELD_MS = 5 };

/* The worker's deed goes out over the connection. */
static void command_send(struct traffic *t, struct worker *k) {
    int64_t now = t->redis.now_ms;
    struct line *l = k->used;
    bool multiplexed = k->app->plan.connections == APP_MULTIPLEXED && l != k->line;
    if (multiplexed && l->free_ms > now)
        front_overlap(&l->front);
    l->free_ms = multiplexed && l->free_ms > now + TRAFFIC_TRIP ? l->free_ms : now + TRAFFIC_TRIP;
    k->got = NULL;
    k->shown = false;
    if (k->deed.kind == DEED_RECONNECT) {
        if (t->plan->trace)
            trace(t, k, true);
        reconnect(t, k);
        worker_later(t, k, now + TRAFFIC_TRIP);
        return;
    }
    if (k->deed.kind == DEED_RELEASE && k->deed.mine)
        traffic_done(t, k->deed.mine);
    struct model_command c = command_of(k);
    k->held_back = !front_begin(&k->call, &l->front, k->deed.key, &c);
    if (k->held_back) {
        l->free_ms = now + HELD_MS + 1;
        worker_later(t, k, now + HELD_MS);
        return;
    }
    if (t->plan->instant)
        command_at_once(t, k);
    else
        command_under_way(t, k);
}

/* ---- workers -------------------------------------------------------------------------------------------- */

static const struct app_span *pause_now(const struct traffic *t, const struct app *a) {
    int64_t now = traffic_now(t);
    for (int i = 0; i < TRAFFIC_TIMES; i++) {
        const struct app_span *p = &a->plan.pauses[i];
        if (now >= traffic_trips(p->from) && now < traffic_trips(p->to))
            return p;
    }
    return NULL;
}

/* Whether the worker's command is to go out later, which is decided once for each command. */
static bool is_stalled(struct traffic *t, struct worker *k) {
    const struct app_plan *p = &k->app->plan;
    k->stalled = !k->stalled && p->stall > 0 && traffic_random(t) < p->stall;
    if (k->stalled)
        worker_later(t, k, t->redis.now_ms + traffic_within(t, p->stalled));
    return k->stalled;
}

static void worker_goes(struct traffic *t, struct worker *k) {
    const struct app_span *pause = pause_now(t, k->app);
    if (k->dead)
        return;
    if (k->held_back) {
        command_send(t, k);
        return;
    }
    if (pause) {
        worker_later(t, k, t->start_ms + traffic_trips(pause->to + traffic_random(t)));
        return;
    }
    if (!k->decided) {
        k->deed = worker_next(t, k);
        k->decided = true;
    }
    if (k->deed.kind == DEED_WAIT) {
        k->decided = false;
        worker_later(t, k, t->redis.now_ms + k->deed.wait_ms);
        return;
    }
    if (is_stalled(t, k))
        return;
    k->used = line_for(t, k);
    if (!k->used) {
        worker_later(t, k, pool_free_ms(k->app));
        return;
    }
    k->decided = false;
    command_send(t, k);
}

static struct worker *worker_new(struct traffic *t, struct app *a, enum worker_kind kind, unsigned place,
                                 double within_trips) {
    struct worker *k = make(sizeof(*k));
    k->next = t->workers;
    t->workers = k;
    k->app = a;
    k->kind = kind;
    k->place = place;
    k->number = t->workers_ever++;
    if (a->plan.connections == APP_OWN || kind == WORKER_OPERATOR)
        k->line = line_new(t, a, kind == WORKER_OPERATOR ? 0 : proxy_for(t, a, place), false);
    worker_later(t, k, t->redis.now_ms + traffic_within(t, (struct app_span){0, within_trips}));
    return k;
}

static void workers_start(struct traffic *t, struct app *a) {
    for (unsigned i = 0; i < a->plan.workers; i++)
        a->workers[i] = worker_new(t, a, WORKER_USUAL, i, 30);
}

/* ---- applications ------------------------------------------------------------------------------------- */

/* Notes that all workers have stopped their work. */
static void leases_abandoned(struct traffic *t, const struct app *a) {
    for (int key = 0; key < MODEL_KEYS; key++) {
        struct lease *l = t->live[key];
        if (!l || l->app != a || !l->busy)
            continue;
        traffic_done(t, l);
        lease_limit(t, l);
    }
}

/* The process dies and starts again: every connection closed, every worker gone. */
static void crash(struct traffic *t, struct app *a) {
    leases_abandoned(t, a);
    for (unsigned i = 0; i < a->plan.workers; i++) {
        struct worker *k = a->workers[i];
        k->dead = true;
        if (k->line)
            front_disconnect(&k->line->front);
        if (k->dog_line)
            front_disconnect(&k->dog_line->front);
    }
    for (unsigned i = 0; i < a->line_count; i++)
        line_again(t, a, a->lines[i]);
    workers_start(t, a);
    if (t->plan->trace)
        printf("%9.2f %s crashes\n", trips_of(traffic_now(t)), a->plan.identity);
}

static int key_number(struct traffic *t, const char *name) {
    int i = 0;
    while (t->names[i] && strcmp(t->names[i], name) != 0)
        if (++i == MODEL_KEYS)
            abort();
    t->names[i] = name;
    return i;
}

static void plan_complete(struct app_plan *p) {
    static const struct app_span WORK = {3, 20}, REST = {5, 25}, POLL = {3, 15};
    p->identity = p->identity ? p->identity : "h1";
    p->workers = p->workers ? p->workers : 4;
    p->pool = p->pool ? p->pool : 3;
    p->keys[0] = p->keys[0] ? p->keys[0] : "lock:job";
    p->hosts = p->hosts ? p->hosts : 1;
    p->lease = p->lease > 0 ? p->lease : 60;
    p->work = p->work.to > 0 ? p->work : WORK;
    p->rest = p->rest.to > 0 ? p->rest : REST;
    p->poll = p->poll.to > 0 ? p->poll : POLL;
}

static void app_start(struct traffic *t, struct app *a) {
    const struct app_plan *p = &a->plan;
    for (; a->key_count < MODEL_KEYS && p->keys[a->key_count]; a->key_count++)
        a->keys[a->key_count] = key_number(t, p->keys[a->key_count]);
    a->workers = make(p->workers * sizeof(struct worker *));
    a->line_count = p->connections == APP_POOL  ? p->pool
                    : p->connections == APP_OWN ? 0
                    : p->spread                 ? t->front_count
                                                : 1;
    a->lines = make((a->line_count + 1) * sizeof(struct line *));
    for (unsigned i = 0; i < a->line_count; i++)
        a->lines[i] = line_new(t, a, proxy_for(t, a, i), p->library);
    workers_start(t, a);
    for (double at = p->crash_each; p->crash_each > 0 && at < p->crash_last; at += p->crash_each)
        event_add(t, t->start_ms + traffic_trips(at), EVENT_CRASH, a, 0);
    for (unsigned i = 0; p->hand && i < p->workers; i++)
        worker_new(t, a, WORKER_FINISHER, p->workers + i, 30);
    if (p->operators > 0)
        worker_new(t, a, WORKER_OPERATOR, 0, 1 / p->operators);
}

/* ---- from beginning to end ------------------------------------------------------------------------------ */

static void tick(struct traffic *t, struct front *f) {
    int64_t wait_ms = front_tick(f);
    for (int key = 0; key < MODEL_KEYS; key++)
        key_look(t, key);
    event_add(t, t->redis.now_ms + wait_ms, EVENT_TICK, f, 0);
}

static void happen(struct traffic *t, const struct event *e) {
    switch (e->kind) {
    case EVENT_WORKER:
        worker_goes(t, e->what);
        return;
    case EVENT_RUNS:
        command_runs(t, e->what);
        return;
    case EVENT_ANSWERED:
        command_answered(t, e->what);
        return;
    case EVENT_ENDS:
        ends(t, e->key);
        return;
    case EVENT_CRASH:
        crash(t, e->what);
        return;
    case EVENT_TICK:
        tick(t, e->what);
        return;
    }
}

static void open_fronts(struct traffic *t) {
    int64_t lease_ms = traffic_trips(t->apps[0].plan.lease);
    t->front_count = 1;
    for (unsigned i = 0; i < t->plan->app_count; i++)
        if (t->apps[i].plan.spread)
            t->front_count = TRAFFIC_FRONTS;
    for (unsigned i = 0; i < t->front_count; i++) {
        front_open(&t->fronts[i], &t->redis, t->names, i, t->plan->bare, t->plan->seed + i, lease_ms, TRAFFIC_TRIP,
                   true);
        if (!t->plan->bare)
            event_add(t, t->start_ms, EVENT_TICK, &t->fronts[i], 0);
    }
}

static void free_all(struct traffic *t) {
    for (unsigned i = 0; i < t->front_count; i++)
        front_free(&t->fronts[i]);
    for (struct lease *l = t->leases, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    for (struct line *l = t->lines, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    for (struct worker *k = t->workers, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    for (unsigned i = 0; i < t->plan->app_count; i++) {
        free(t->apps[i].workers);
        free(t->apps[i].lines);
        free(t->apps[i].handed);
    }
    free(t->heap);
    model_free(&t->redis);
    free(t);
}

/* What is under way is answered, so that every command that was begun is finished; nothing of it is counted. */
static void land(struct traffic *t) {
    while (t->heap_count) {
        struct event e = event_take(t);
        struct worker *k = e.what;
        if (e.kind == EVENT_RUNS)
            front_run(&k->call);
        else if (e.kind == EVENT_ANSWERED)
            front_finish(&k->call);
    }
    for (struct line *l = t->lines; l; l = l->next)
        front_disconnect(&l->front);
}

void traffic_run(const struct world_plan *plan, struct tally tallies[TRAFFIC_APPS]) {
    struct traffic *t = make(sizeof(*t));
    t->plan = plan;
    t->random = plan->seed * 0xd1342543de82ef95u + 0x5ca1ab1eu;
    t->redis.now_ms = t->start_ms = 1000000;
    t->until_ms = t->start_ms + traffic_trips(plan->trips);
    for (unsigned i = 0; i < plan->app_count; i++) {
        t->apps[i].plan = plan->apps[i];
        plan_complete(&t->apps[i].plan);
    }
    open_fronts(t);
    for (unsigned i = 0; i < plan->app_count; i++)
        app_start(t, &t->apps[i]);
    while (t->heap_count && t->heap[0].at_ms < t->until_ms) {
        struct event e = event_take(t);
        t->redis.now_ms = e.at_ms;
        happen(t, &e);
    }
    t->redis.now_ms = t->until_ms;
    for (int key = 0; key < MODEL_KEYS; key++)
        if (t->live[key])
            lease_over(t, t->live[key]);
    for (unsigned i = 0; i < plan->app_count; i++)
        tallies[i] = t->apps[i].tally;
    land(t);
    free_all(t);
}
