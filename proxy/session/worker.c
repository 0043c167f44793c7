/*
 * The worker's loop: runs each turn's gathered work in ev_prepare. How clients come is accept.c's, how it stops
 * drain.c's.
 */
#include "proxy/session/worker.h"

#include <string.h>
#include <time.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/accept.h"
#include "proxy/session/client.h"
#include "proxy/session/discover.h"
#include "proxy/session/evictions.h"
#include "proxy/session/heirs.h"
#include "proxy/session/lock_flow.h"
#include "proxy/session/session.h"

enum { CHUNKS_KEPT = 256, SHARED_TICK_MS = 100, TICKS_HELD = 10 };
static const double ENGINE_LATE = 0.1, ENGINE_PAUSE = 0.05; /* seconds */

static const double TICK_SECONDS = 1.0, TICK_LATE = 0.05;

static int64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t worker_now(struct worker *w) {
    if (w->now_ms == 0)
        w->now_ms = wall_ms();
    return w->now_ms;
}

/* ---- what the engine asks for -------------------------------------------------------------------- */

/* The engine calls with a shard locked: leases are noted, and seen to once it has returned. */
struct lease_note {
    struct list_node link;
    enum { NOTE_RENEWAL, NOTE_RELEASE, NOTE_LEAVING, NOTE_LEFT } kind;
    struct lock_lease lease;
    struct lock_leaving leaving;
    bool waits; /* the leaving party's nodes are kept for a while */
    int64_t until_ms;
    char name[]; /* and the party that leaves; or the entry for what was left */
};

static void note_lease(struct list_node *notes, const struct lock_lease *lease, bool renewal) {
    struct lease_note *note = memory_alloc(sizeof(*note) + lease->key.len);
    note->kind = renewal ? NOTE_RENEWAL : NOTE_RELEASE;
    note->lease = *lease;
    memcpy(note->name, lease->key.name, lease->key.len);
    note->lease.key.name = note->name;
    note->lease.rule = NULL;
    list_init(&note->link);
    list_append(notes, &note->link);
}

/* The notes of the worker whose thread this is. */
static _Thread_local struct list_node *thread_notes;

void worker_note_renewal(void *arg, const struct lock_lease *lease) {
    note_lease(thread_notes, lease, true);
}

void worker_note_release(void *arg, const struct lock_lease *lease) {
    note_lease(thread_notes, lease, false);
}

void worker_note_leaving(void *arg, const struct lock_leaving *leaving) {
    struct lease_note *note = memory_alloc(sizeof(*note) + leaving->key.len + leaving->party_len);
    note->kind = NOTE_LEAVING;
    note->leaving = *leaving;
    note->lease.lease_ms = leaving->rule->lease_ms;
    note->waits = leaving->rule->on_disconnect == LOCK_DISCONNECT_KEEP;
    memcpy(note->name, leaving->key.name, leaving->key.len);
    memcpy(note->name + leaving->key.len, leaving->party, leaving->party_len);
    note->leaving.key.name = note->name;
    note->leaving.party = note->name + leaving->key.len;
    note->leaving.rule = NULL;
    list_init(&note->link);
    list_append(thread_notes, &note->link);
}

void worker_note_left(void *arg, const struct lock_left *left) {
    struct text entry = {0};
    heirs_entry(left, &entry);
    struct lease_note *note = memory_alloc(sizeof(*note) + entry.len);
    note->kind = NOTE_LEFT;
    note->lease = (struct lock_lease){.key.len = entry.len, .login = left->login};
    note->until_ms = left->until_ms;
    memcpy(note->name, entry.data, entry.len);
    text_clear(&entry);
    list_init(&note->link);
    list_append(thread_notes, &note->link);
}

void worker_lease_work(struct worker *w) {
    struct list_node *n;
    while ((n = list_shift(&w->lease_notes))) {
        struct lease_note *note = LIST_ENTRY(n, struct lease_note, link);
        if (note->kind == NOTE_RENEWAL)
            lock_renew(w, &note->lease);
        else if (note->kind == NOTE_RELEASE)
            lock_release(w, &note->lease);
        else if (note->kind == NOTE_LEFT)
            heirs_write(w, note->lease.login, note->until_ms, note->name, note->lease.key.len);
        else
            lock_leave(w, &note->leaving, note->lease.lease_ms, note->waits);
        memory_free(note);
    }
}

/* ---- a turn's end -------------------------------------------------------------------------------- */

static void worker_new_rules(struct worker *w) {
    struct lock_rules *rules = atomic_exchange(&w->new_rules, NULL);
    if (!rules)
        return;
    lock_rules_unref(w->rules);
    w->rules = rules;
}

void worker_free_closed(struct worker *w) {
    struct list_node *n;
    while ((n = list_first(&w->closed)))
        session_free(LIST_ENTRY(n, struct session, link));
}

static void look_again(struct ev_loop *loop, struct ev_idle *look, int events) {
}

/* Where there are replies to write as well, the clients get these first, and what they send upon them joins what goes
 * to the nodes. Otherwise clients fall into small groups that take turns, each with its own read and write at the node:
 * where the clients and Redis share a core, a node got 2.7 requests at a time. Held back once, while the loop looks who
 * is readable without waiting. */
static bool holds_back(const struct worker *w, bool looked) {
    return !looked && !w->stopping && !list_empty(&w->dirty) && upstream_waits(w->upstream);
}

/* All that this turn's callbacks have left to do. Sessions that may go on send more upstream, and a failing
 * upstream lets more sessions go on: until both are quiet. */
static void turn_end(struct ev_loop *loop, struct ev_prepare *prepare, int events) {
    struct worker *w = prepare->data;
    struct list_node *n;
    bool looked = ev_is_active(&w->look);
    do {
        while ((n = list_first(&w->runnable)))
            session_resume(LIST_ENTRY(n, struct session, runnable_link));
        worker_lease_work(w);
        if (holds_back(w, looked))
            ev_idle_start(w->loop, &w->look);
        else
            upstream_flush(w->upstream);
        while ((n = list_first(&w->dirty)))
            session_flush(LIST_ENTRY(n, struct session, dirty_link));
    } while (!list_empty(&w->runnable) || !list_empty(&w->lease_notes));
    if (looked)
        ev_idle_stop(w->loop, &w->look);
    worker_free_closed(w);
    if (w->stopping)
        drain_turn(w);
    w->now_ms = 0;
}

/* ---- time ---------------------------------------------------------------------------------------- */

/* A burst leaves memory behind: in the pools, and in malloc, where a few pieces in use keep all of those between. */
static void worker_trim(struct worker *w) {
    chunk_pool_shrink(&w->chunks);
    request_pools_shrink(w);
    if (w->index == 0)
        memory_trim();
}

/* The proxy's own questions to Redis. Not when the process stood still lately: first what is due. Where it does so
 * always that is no reason. */
static void ask_around(struct worker *w, double now) {
    double since = now - w->ticked; /* shorter behind a late one */
    bool punctual = since > TICK_SECONDS - TICK_LATE && since < TICK_SECONDS + TICK_LATE;
    w->ticked = now;
    w->punctual_ticks = punctual ? w->punctual_ticks + 1 : 0;
    if (w->punctual_ticks < 2 && ++w->held_ticks < TICKS_HELD)
        return;
    w->held_ticks = 0;
    evictions_tick(w);
    heirs_tick(w);
}

static void tick(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    worker_trim(w);
    if (w->index == 0)
        ask_around(w, ev_now(loop));
    if (w->shared->options.monitored || w->shared->options.threads > 1)
        node_board_write(w);
    double now = ev_now(loop), timeout = (double)w->shared->options.timeout_ms / 1000.;
    bool blocked = counter_read(&w->counters.pinned_blocking) > 0;
    if (timeout <= 0 && w->shared->options.output_limit_soft <= 0 && !blocked &&
        counter_read(&w->counters.clients_tracking) == 0)
        return; /* nothing depends on time */
    LIST_FOREACH_SAFE(it, &w->sessions) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        if (s->blocked && !s->half_closed && session_left(s))
            session_close(s, "the client left while it was blocked");
        else if (timeout > 0 && (list_empty(&s->requests) || s->stream) && !s->pubsub && !s->replica &&
                 w->pause == PAUSE_NONE && now - s->last_active > timeout)
            session_close(s, "idle");
        else if (s->over_soft_since > 0)
            session_mark_dirty(s);
        else if (s->tracking)
            tracking_tick(s);
    }
}

static void engine_arm(struct worker *w, double wait) {
    ev_timer_stop(w->loop, &w->engine_tick);
    ev_timer_set(&w->engine_tick, wait, 0.);
    ev_timer_start(w->loop, &w->engine_tick);
    w->engine_at = ev_now(w->loop) + wait;
}

/* A process that stood still has not read yet who has left meanwhile: nobody's lease is renewed before. Other threads
 * get a moment to read, too. Once: where the tick is always late that is no reason. */
static bool engine_is_late(struct worker *w) {
    w->engine_waits = !w->engine_waits && ev_now(w->loop) - w->engine_at > ENGINE_LATE;
    if (w->engine_waits)
        engine_arm(w, ENGINE_PAUSE);
    return w->engine_waits;
}

static void engine_due(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    if (engine_is_late(w))
        return;
    w->now_ms = 0;
    unsigned threads = w->shared->options.threads;
    int64_t next = engine_tick(w->shared->engine, w->index, threads, worker_now(w));
    if (threads > 1 && next > SHARED_TICK_MS)
        next = SHARED_TICK_MS; /* other threads' commands can't wake this one */
    engine_arm(w, (double)(next > 0 ? next : 1) / 1000.);
}

void worker_engine_due(struct worker *w, int64_t in_ms) {
    double wait = (double)(in_ms > 1 ? in_ms : 1) / 1000.;
    if (ev_timer_remaining(w->loop, &w->engine_tick) > wait)
        engine_arm(w, wait);
}

/* ---- what other threads ask for ------------------------------------------------------------------- */

static void woken(struct ev_loop *loop, struct ev_async *wake, int events) {
    struct worker *w = wake->data;
    worker_new_rules(w);
    tour_arrivals(w);
    int64_t drain_ms = atomic_load(&w->stop_ms);
    if (drain_ms >= 0 && !w->stopping)
        drain_begin(w, drain_ms);
}

void worker_stop(struct worker *w, int64_t drain_ms) {
    atomic_store(&w->stop_ms, drain_ms);
    ev_async_send(w->loop, &w->wake);
}

void worker_set_rules(struct worker *w, struct lock_rules *rules) {
    struct lock_rules *old = atomic_exchange(&w->new_rules, lock_rules_ref(rules));
    if (old)
        lock_rules_unref(old);
    ev_async_send(w->loop, &w->wake);
}

/* ---- life ---------------------------------------------------------------------------------------- */

/* From here on clients are served. */
static void worker_open(struct worker *w, const char *error) {
    w->opened = true;
    if (!w->stopping)
        accept_start(w);
    w->ready(w->ready_arg, error);
}

/* Tells whether the node serves those who have not logged in; if it doesn't, they get Redis's limits for them. */
static void probed(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    if (!end->error)
        w->upstream_needs_auth = strncmp(end->reply, "-NOAUTH", 7) == 0;
    w->probing = false;
    request_reply(c->request, "", 0, true);
    if (!w->opened && !w->stopping)
        worker_open(w, end->error);
}

void worker_probe(struct worker *w) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    if (w->probing)
        return;
    w->probing = true;
    struct upstream_lane lane = {.protocol = 2};
    struct request *request = request_internal(w);
    request->call.done = probed;
    call_submit_lane(&request->call, SLOT_NONE, &lane, ping, sizeof(ping) - 1);
}

static void upstream_ready(void *arg, const char *error) {
    if (error)
        worker_open(arg, error);
    else
        worker_probe(arg);
}

static void worker_watchers(struct worker *w) {
    ev_prepare_init(&w->prepare, turn_end);
    w->prepare.data = w;
    ev_prepare_start(w->loop, &w->prepare);
    ev_idle_init(&w->look, look_again);
    ev_async_init(&w->wake, woken);
    w->wake.data = w;
    ev_async_start(w->loop, &w->wake);
    ev_timer_init(&w->tick, tick, TICK_SECONDS, TICK_SECONDS);
    w->tick.data = w;
    ev_timer_start(w->loop, &w->tick);
    ev_timer_init(&w->engine_tick, engine_due, 0.01, 0.);
    ev_set_priority(&w->engine_tick, EV_MINPRI);
    w->engine_tick.data = w;
    engine_arm(w, 0.01);
    pause_init(w);
    tour_stop_init(&w->tours);
}

struct worker *worker_new(struct proxy_shared *shared, unsigned index, const struct worker_socket *sockets,
                          size_t socket_count, struct lock_rules *rules, void (*ready)(void *arg, const char *error),
                          void *ready_arg) {
    struct worker *w = memory_zalloc(sizeof(*w));
    w->shared = shared;
    w->index = index;
    w->loop = ev_loop_new(EVFLAG_AUTO);
    readable_init(&w->readable, w->loop);
    w->rules = lock_rules_ref(rules);
    w->ready = ready;
    w->ready_arg = ready_arg;
    atomic_init(&w->stop_ms, -1);
    list_init(&w->sessions);
    list_init(&w->hearing);
    list_init(&w->dirty);
    list_init(&w->runnable);
    list_init(&w->closed);
    list_init(&w->free_calls);
    list_init(&w->lease_notes);
    list_init(&w->discovered);
    list_init(&w->discovered_before);
    chunk_pool_init(&w->chunks, CHUNKS_KEPT);
    resp_request_init(&w->scanner);
    text_init(&w->build);
    w->scratch = memory_alloc(WORKER_SCRATCH);
    accept_init(w, sockets, socket_count);
    pthread_mutex_init(&w->board.mutex, NULL);
    worker_watchers(w);
    struct upstream_events events = {.arg = w, .ready = upstream_ready};
    w->upstream = upstream_new(w->loop, &w->readable, &shared->upstream, &w->chunks, &events);
    return w;
}

struct ev_loop *worker_loop(struct worker *w) {
    return w->loop;
}

void worker_run(struct worker *w) {
    thread_notes = &w->lease_notes;
    ev_run(w->loop, 0);
    tour_stop_close(w);
    thread_notes = NULL;
}

static void free_list(struct list_node *head, size_t offset) {
    struct list_node *n;
    while ((n = list_shift(head)))
        memory_free((char *)n - offset);
}

void worker_free(struct worker *w) {
    thread_notes = &w->lease_notes;
    LIST_FOREACH_SAFE(it, &w->sessions)
    session_close(LIST_ENTRY(it, struct session, link), "the proxy stops");
    worker_free_closed(w);
    tour_stop_clear(w);
    upstream_free(w->upstream); /* fails what is in flight, whose slots go back to the free lists */
    accept_drop_guests(w);
    accept_close(w);
    struct list_node *n;
    while ((n = stack_pop(&w->free_requests)))
        memory_free(LIST_ENTRY(n, struct request, link));
    free_list(&w->free_calls, offsetof(struct call, link));
    lock_free_pool(w);
    discover_clear(w);
    free_list(&w->lease_notes, offsetof(struct lease_note, link));
    worker_new_rules(w);
    lock_rules_unref(w->rules);
    resp_request_clear(&w->scanner);
    text_clear(&w->build);
    chunk_pool_clear(&w->chunks);
    memory_free(w->scratch);
    pthread_mutex_destroy(&w->board.mutex);
    memory_free(w->board.nodes);
    readable_clear(&w->readable);
    ev_loop_destroy(w->loop);
    memory_free(w);
    thread_notes = NULL;
}
