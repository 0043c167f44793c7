/*
 * What lock_wait.c and release_channel.c need of a proxy, in the simulated world: threads with their turns and timers,
 * requests that wait, the channel of releases. The spectator's part is check_waits.c's.
 */
#include "tests/sim/waits/waits_world.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"

/* Clocks go wrong by so much at most. Where Redis's is set back by more than the time that a guard record outlives its
 * lease, behind a record that has ended, not even fences grow. */
enum { LOGIN = 7, CLOCK_MAX_MS = GUARD_OUTLIVES_MS / 2 - 1000 };

/* ---- threads ----------------------------------------------------------------------------------- */

static struct worker *here; /* the worker whose turn it is; NULL: none */

static struct world *world_of(const struct worker *w) {
    return ((struct waits_thread *)(void *)w->loop)->world;
}

static struct waits_thread *thread_of(struct world *w, const struct flight *f) {
    return &w->waits->threads[f->proxy][f->lane / WAITS_UPSTREAMS];
}

/* A turn of a thread begins; its end is turn_over, with what this returns. */
static struct worker *turn(struct waits_thread *t) {
    struct worker *before = here;
    here = &t->worker;
    return before;
}

static void turn_over(struct worker *before) {
    struct list_node *n;
    while (here != before && (n = list_shift(&here->jobs))) {
        struct worker_job *job = LIST_ENTRY(n, struct worker_job, link);
        job->run(here, job);
        memory_free(job);
    }
    here = before;
}

struct worker *worker_here(void) {
    return here;
}

void worker_add_job(struct worker *w, struct worker_job *job) {
    list_init(&job->link);
    list_append(&w->jobs, &job->link);
}

int64_t worker_now(struct worker *w) {
    return world_of(w)->redis.now_ms;
}

/* ---- the loop ---------------------------------------------------------------------------------- */

ev_tstamp ev_now(struct ev_loop *loop) {
    const struct waits_thread *t = (const struct waits_thread *)(const void *)loop;
    return (double)(t->world->redis.now_ms + t->world->waits->skew_ms[t->proxy]) / 1000.;
}

double worker_steady(struct worker *w) {
    const struct world *world = world_of(w);
    double now_ms = (double)world->redis.now_ms;
    return (!world->waits || world->waits->rings ? now_ms + 0.001 : now_ms) / 1000.; /* no timer is early */
}

void ev_timer_start(struct ev_loop *loop, struct ev_timer *timer) {
    struct world *w = ((struct waits_thread *)(void *)loop)->world;
    struct waits *s = w->waits;
    int64_t now_ms = w->redis.now_ms;
    ev_timer_stop(loop, timer);
    if (!s) {
        fences_timer(w, timer, now_ms + (int64_t)ceil(timer->at * 1000. - 1e-4));
        return;
    }
    for (size_t i = 0; i < FLIGHTS; i++)
        if (!s->timers[i].timer) {
            s->timers[i] = (struct waits_timer){timer, loop, now_ms + (int64_t)ceil(timer->at * 1000. - 1e-4)};
            timer->active = 1;
            return;
        }
    abort();
}

void ev_timer_stop(struct ev_loop *loop, struct ev_timer *timer) {
    struct world *w = ((struct waits_thread *)(void *)loop)->world;
    struct waits *s = w->waits;
    if (!s)
        fences_timer(w, timer, 0);
    for (size_t i = 0; i < FLIGHTS && s; i++)
        if (s->timers[i].timer == timer)
            s->timers[i].timer = NULL;
    timer->active = 0;
}

void ev_async_start(struct ev_loop *loop, struct ev_async *async) {
    ((struct waits_thread *)(void *)loop)->async = async;
}

void ev_async_stop(struct ev_loop *loop, struct ev_async *async) {
    (void)async;
    ((struct waits_thread *)(void *)loop)->async = NULL;
}

void ev_async_send(struct ev_loop *loop, struct ev_async *async) {
    struct waits_thread *t = (struct waits_thread *)(void *)loop;
    (void)async;
    if (!t->woken_ms)
        t->woken_ms = t->world->redis.now_ms + world_below(t->world, 2);
}

/* ---- channels ---------------------------------------------------------------------------------- */

static struct waits_thread *listener(const struct upstream *u) {
    return (struct waits_thread *)(void *)(uintptr_t)u;
}

/* The key of a slot. */
static int key_of_slot(int slot) {
    for (int key = 0; key < MODEL_KEYS; key++) {
        struct lock_key k = world_key(key);
        if (slot_of_key(k.name, k.len) == slot)
            return key;
    }
    abort();
}

static struct upstream_node *node_of(struct waits *s, unsigned node) {
    return (struct upstream_node *)(void *)&s->nodes[node];
}

/* For sessions that wait and for sessions that write: both stand for an upstream with what begins with the world. */
bool upstream_is_cluster(const struct upstream *u) {
    const struct world *w = listener(u)->world;
    return w->sc.fences || w->sc.sharded;
}

struct upstream_node *upstream_any_node(struct upstream *u, uint32_t affinity) {
    const struct world *w = listener(u)->world;
    return node_of(w->waits, w->sc.sharded ? affinity % WAITS_NODES : 0);
}

struct upstream_node *upstream_node_of_slot(const struct upstream *u, int slot) {
    const struct waits_thread *t = listener(u);
    return node_of(t->world->waits, t->world->waits->believed[t->proxy][key_of_slot(slot)]);
}

struct upstream_pin *upstream_pin_open(struct upstream *u, struct upstream_node *node, const struct upstream_lane *lane,
                                       const struct upstream_claim *claim, const struct upstream_pin_events *events,
                                       const char **error) {
    struct waits_thread *t = listener(u);
    unsigned i = (unsigned)((char *)(void *)node - t->world->waits->nodes);
    struct waits_ear *ear = &t->ears[i];
    (void)lane, (void)claim;
    *error = "there is no connection";
    if (t->world->sc.deaf && world_chance(t->world, 20))
        return NULL;
    if (ear->listens)
        world_fail(t->world, "waits", "a second connection to the same node");
    *ear = (struct waits_ear){.thread = t, .node = i, .opened = ear->opened + 1, .events = *events, .listens = true};
    return (struct upstream_pin *)(void *)ear;
}

void upstream_pin_stream(struct upstream_pin *pin, bool on) {
    (void)pin, (void)on;
}

/* A message is in flight to a listener. `key` -1: it is about no key. */
static void message_send(struct waits_ear *ear, int key, const char *bytes) {
    struct world *w = ear->thread->world;
    struct waits_message *m = &w->waits->messages[w->waits->message_count % WAITS_MESSAGES];
    if (m->to) {
        world_fail(w, "waits", "too many messages");
        return;
    }
    w->waits->message_count++;
    *m = (struct waits_message){.to = ear,
                                .proxy_life = w->proxies[ear->thread->proxy].life,
                                .opened = ear->opened,
                                .due_ms = w->redis.now_ms + 1 + world_below(w, w->sc.delay_ms),
                                .key = key};
    snprintf(m->bytes, sizeof(m->bytes), "%s", bytes);
}

/* What a node answers to SSUBSCRIBE. */
static void subscribe(struct waits_ear *ear, int slot, const char *channel) {
    struct world *w = ear->thread->world;
    int key = key_of_slot(slot);
    char answer[WAITS_BYTES];
    if (w->sc.old) {
        snprintf(answer, sizeof(answer), "-ERR unknown command 'SSUBSCRIBE', with args beginning with: \r\n");
    } else if (w->waits->node[key] != ear->node) {
        snprintf(answer, sizeof(answer), "-MOVED %d 127.0.0.1:700%u\r\n", slot, w->waits->node[key]);
    } else {
        ear->slot_ms[key] = w->redis.now_ms + world_below(w, w->sc.delay_ms + 1);
        snprintf(answer, sizeof(answer), "*3\r\n$10\r\nssubscribe\r\n$%zu\r\n%s\r\n:1\r\n", strlen(channel), channel);
    }
    message_send(ear, -1, answer);
}

void upstream_pin_send(struct upstream_pin *pin, const char *bytes, size_t len) {
    struct waits_ear *ear = (struct waits_ear *)(void *)pin;
    struct world *w = ear->thread->world;
    const char *p = bytes, *end = bytes + len;
    struct resp_item array, word, name;
    char channel[48];
    if (!resp_item_read(&p, end, &array) || !resp_item_read(&p, end, &word) || !resp_item_read(&p, end, &name) ||
        p != end)
        abort();
    snprintf(channel, sizeof(channel), "%.*s", (int)name.len, name.str);
    int slot = slot_of_key(name.str, name.len);
    if (word.len == 9) /* SUBSCRIBE */
        ear->hears_ms = w->redis.now_ms + world_below(w, w->sc.delay_ms + 1);
    else if (word.str[1] == 'S')
        subscribe(ear, slot, channel);
    else
        ear->slot_ms[key_of_slot(slot)] = 0;
}

struct upstream_node *upstream_pin_redirect(struct upstream_pin *pin, const char *text, size_t len, bool *ask) {
    const struct waits_ear *ear = (const struct waits_ear *)(const void *)pin;
    struct waits *s = ear->thread->world->waits;
    int key = key_of_slot((int)strtol(text + 6, NULL, 10));
    (void)len;
    *ask = false;
    s->believed[ear->thread->proxy][key] = s->node[key];
    return node_of(s, s->node[key]);
}

void upstream_unpin(struct upstream_pin *pin, bool clean) {
    (void)clean;
    ((struct waits_ear *)(void *)pin)->listens = false;
}

/* Whether it is the channel for waiters of the key's lock. */
static bool is_channel(const struct world *w, int key, const char *channel, bool sharded) {
    struct lock_key k = world_key(key);
    if (!sharded)
        return (!w->sc.sharded || w->sc.old) && strcmp(channel, "lockkeeper-freed") == 0;
    return w->sc.sharded && strncmp(channel, "lockkeeper-freed:{", 18) == 0 &&
           slot_of_key(channel, strlen(channel)) == slot_of_key(k.name, k.len);
}

/* A script says it in Redis: it is on its way to all that listen. */
static bool publish(void *arg, const char *channel, const char *text, bool sharded) {
    struct world *w = arg;
    int key = strrchr(text, ':')[1] - '0';
    char bytes[WAITS_BYTES];
    if (sharded && w->sc.old)
        return false;
    if (!is_channel(w, key, channel, sharded))
        world_fail(w, "told", "a message on another channel: %s", channel);
    w->published++;
    snprintf(w->waits->told, sizeof(w->waits->told), "%.*s", (int)strcspn(text, " "), text);
    snprintf(bytes, sizeof(bytes), "*3\r\n$%d\r\n%s\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n", sharded ? 8 : 7,
             sharded ? "smessage" : "message", strlen(channel), channel, strlen(text), text);
    for (unsigned i = 0; i < w->sc.proxies * w->sc.threads * WAITS_NODES; i++) {
        struct waits_thread *t = &w->waits->threads[i / WAITS_NODES / w->sc.threads][i / WAITS_NODES % w->sc.threads];
        struct waits_ear *ear = &t->ears[i % WAITS_NODES];
        int64_t from_ms = !ear->listens ? 0 : sharded ? ear->slot_ms[key] : ear->hears_ms;
        if (from_ms && from_ms <= w->redis.now_ms && !(w->sc.deaf && world_chance(w, 40)))
            message_send(ear, key, bytes);
    }
    return true;
}

static void hear(struct world *w, struct waits_message *m) {
    struct waits_ear *ear = m->to;
    struct waits_thread *t = ear->thread;
    m->to = NULL;
    if (!ear->listens || m->opened != ear->opened || m->proxy_life != w->proxies[t->proxy].life)
        return;
    size_t len = strlen(m->bytes), part = world_below(w, (unsigned)len);
    world_event(w, "proxy %u hears of key %d: %.20s", t->proxy, m->key, m->bytes);
    if (m->key >= 0 && strstr(m->bytes, w->proxies[t->proxy].id))
        check_waits_told(w, t, m->key);
    struct worker *before = turn(t);
    if (part)
        ear->events.message(ear->events.arg, m->bytes, part, false);
    ear->events.message(ear->events.arg, m->bytes + part, len - part, true);
    turn_over(before);
}

/* A slot goes to the other node. What listens for it hears that; each proxy learns of it sooner or later. */
static void slot_moves(struct world *w, int key) {
    struct waits *s = w->waits;
    struct lock_key k = world_key(key);
    char guard[LOCK_GUARD_EXTRA + 8], channel[LOCK_GUARD_EXTRA + 32], bytes[WAITS_BYTES];
    size_t head = lock_guard_head_write(slot_of_key(k.name, k.len), guard);
    snprintf(channel, sizeof(channel), "lockkeeper-freed%.*s", (int)head - 11, guard + 10);
    snprintf(bytes, sizeof(bytes), "*3\r\n$12\r\nsunsubscribe\r\n$%zu\r\n%s\r\n:0\r\n", strlen(channel), channel);
    for (unsigned i = 0; i < w->sc.proxies * w->sc.threads; i++) {
        struct waits_thread *t = &s->threads[i / w->sc.threads][i % w->sc.threads];
        struct waits_ear *ear = &t->ears[s->node[key]];
        if (ear->listens && ear->slot_ms[key])
            message_send(ear, -1, bytes);
        ear->slot_ms[key] = 0;
        if (world_chance(w, 50))
            s->believed[t->proxy][key] = 1 - s->node[key];
    }
    s->node[key] = 1 - s->node[key];
    s->moved_ms[key] = w->redis.now_ms;
}

/* Whether a thread hears of releases of a key's lock, or soon will. */
bool waits_listens(const struct world *w, const struct waits_thread *t, int key) {
    for (unsigned i = 0; i < WAITS_NODES; i++) {
        const struct waits_ear *ear = &t->ears[i];
        bool plain = !w->sc.sharded || w->sc.old;
        if (ear->listens && (plain ? ear->hears_ms : ear->slot_ms[key]))
            return true;
    }
    return false;
}

/* ---- what a call is made of -------------------------------------------------------------------- */

static struct waits_call *call_of(const struct request *r) {
    return (struct waits_call *)(void *)(uintptr_t)r; /* its first member */
}

static void attempt_over(struct flight *f) {
    struct waits_call *c = f->call;
    f->call = NULL;
    list_remove(&c->request.link);
    if (c->request.owner && c->request.owner->ops->free)
        c->request.owner->ops->free(c->request.owner);
    lock_rules_unref(c->lock.rules);
    memory_free(c);
}

static enum lock_shape shape_of(const struct model_command *c) {
    return c->op == OP_SETNX ? SHAPE_INT : c->op == OP_SET_NX_GET ? SHAPE_NIL : SHAPE_OK;
}

static void attempt_new(struct world *w, struct flight *f) {
    static const struct command SETNX = {.id = COMMAND_SETNX}, SET = {.id = COMMAND_SET};
    struct waits_call *c = memory_zalloc(sizeof(*c));
    struct session *s = &w->waits->sessions[f->conn];
    c->flight = f;
    c->world = w;
    c->request.session = s;
    c->request.worker = s->worker;
    c->request.command = f->command.op == OP_SETNX ? &SETNX : &SET;
    c->request.call.request = &c->request;
    list_init(&c->request.link);
    list_append(&s->requests, &c->request.link);
    list_init(&c->lock.link);
    c->lock.plan = f->plan;
    c->lock.shape = shape_of(&f->command);
    c->lock.expiry_ms = f->command.op == OP_SET_NX_GET || f->command.ms < 0 ? LOCK_EXPIRY_OTHER : f->command.ms;
    c->lock.value = f->command.value;
    c->lock.value_len = strlen(f->command.value);
    c->lock.command = "SET";
    snprintf(c->lock.who, sizeof(c->lock.who), "session %" PRIu64, f->session_id);
    f->call = c;
}

/* A lock call in name only, of a release. */
static struct lock_call *release_of(const struct flight *f) {
    static struct lock_call l;
    l.plan = f->plan;
    l.handed = f->handed;
    return &l;
}

/* The session of a connection, as wait.c sees it now. */
static struct session *session_of(struct world *w, int conn) {
    struct session *s = &w->waits->sessions[conn];
    const struct conn *c = &w->conns[conn];
    session_delay(s, DELAY_EVENT,
                  (s->delays & DELAY_EVENT) && s->lock.id == c->session.id); /* another session's connection before */
    s->lock = c->session;
    s->worker = &w->waits->threads[c->proxy][(unsigned)conn % w->sc.threads].worker;
    s->lane = (struct upstream_lane){.login = LOGIN, .protocol = 2};
    s->in_flight = 0;
    for (size_t i = 0; i < FLIGHTS; i++) {
        const struct flight *f = &w->flights[i];
        s->in_flight += f->used && !f->ghost && f->conn == conn && f->session_id == c->id;
    }
    s->state = SESSION_OPEN;
    return s;
}

/* ---- what lock_wait.c and release_channel.c call ---------------------------------------------------------------- */

enum script_id lock_build_attempt(struct worker *w, const struct lock_client *client, const struct lock_call *l) {
    struct flight *f = LIST_ENTRY(l, struct waits_call, lock)->flight;
    (void)client;
    f->plan = l->plan;
    f->here_ms = w->waits->waited.here_ms;
    f->next_ms = w->waits->waited.next_ms;
    return SCRIPT_ACQUIRE_USUAL;
}

void lock_submit_whole(struct call *c, call_done_fn done) {
    (void)c, (void)done;
    abort();
}

/* The simulator's sessions do not wait by HSETNX. */
void lock_note_field(struct session *s, struct lock_call *l, const struct lock_command *lc,
                     const struct lock_words *words) {
    (void)s, (void)l, (void)lc, (void)words;
    abort();
}

void lock_build_other(struct session *s, struct lock_queue *queue, struct lock_call *l, const struct lock_command *lc,
                      const struct lock_words *words) {
    (void)queue, (void)words;
    if (lc->script != SCRIPT_ACQUIRE)
        abort();
    lock_build_attempt(s->worker, NULL, l);
}

void lock_submit_next(struct call *call, struct lock_call *l, enum script_id id, call_done_fn done) {
    struct waits_call *c = call_of(call->request);
    struct flight *f = c->flight;
    struct world *w = c->world;
    (void)l, (void)id;
    call->done = done;
    if (!f->held)
        world_fail(w, "twice", "session %" PRIu64 " asks again, and its last question is not answered", f->session_id);
    f->held = f->ran = f->repeated = false;
    f->order = ++w->sent;
    f->begun_step = w->step;
    f->due_ms = w->redis.now_ms + 1 + world_below(w, w->sc.delay_ms);
    flight_crosses(w, f);
    check_waits_try(w, f);
    flight_log(w, f, "goes again");
}

bool lock_envelope_read(const struct lock_call *l, const char *data, size_t len, struct lock_envelope *e) {
    const struct flight *f = LIST_ENTRY(l, struct waits_call, lock)->flight;
    (void)data, (void)len;
    e->result = call_result(f->plan.verb, &f->command, &f->envelope);
    e->refuses = 0;
    e->reply = (const char *)&f->envelope.reply;
    e->reply_len = sizeof(f->envelope.reply);
    return true;
}

const char *lock_short_reply(const struct lock_call *l, enum lock_outcome outcome, size_t *len) {
    static struct model_reply refused;
    (void)outcome;
    refused = (struct model_reply){.kind = l->shape == SHAPE_INT ? REPLY_INT : REPLY_NIL};
    *len = sizeof(refused);
    return (const char *)&refused;
}

/* The wait has ended without the script's answer. */
void lock_learnt(struct worker *w, struct session *s, struct lock_call *l, const struct lock_result *r) {
    struct flight *f = LIST_ENTRY(l, struct waits_call, lock)->flight;
    (void)w, (void)s;
    f->envelope = (struct model_envelope){.outcome = r->outcome,
                                          .fence = r->fence,
                                          .pttl_ms = r->pttl_ms,
                                          .leased = r->leased,
                                          .pooled = r->pooled,
                                          .same = r->same,
                                          .elsewhere = r->elsewhere,
                                          .shifted_ms = r->shifted_ms,
                                          .suspects = r->suspects};
}

void lock_learnt_all(struct worker *w, struct session *s, struct lock_call *first, const struct lock_result *r) {
    lock_learnt(w, s, first, r);
}

void lock_deliver(struct call *c, call_done_fn next, const struct call_end *end) {
    struct waits_call *call = call_of(c->request);
    struct flight *f = call->flight;
    struct world *w = call->world;
    (void)next;
    if (end->len == sizeof(f->envelope.reply))
        memcpy(&f->envelope.reply, end->reply, sizeof(f->envelope.reply));
    f->held = false;
    f->ran_ms = w->redis.now_ms;
    check_waits_end(w, f);
    attempt_over(f);
    if (w->waits->crashes)
        return;
    if (f->envelope.outcome == LOCK_NOT_SENT) {
        flight_fail(w, f, LOCK_NOT_SENT);
        return;
    }
    f->ran = true;
    flight_end(w, f);
}

void lock_answered(struct call *c, const struct call_end *end) {
    struct waits_call *call = call_of(c->request);
    struct flight *f = call->flight;
    struct world *w = call->world;
    f->held = false;
    check_waits_end(w, f);
    attempt_over(f);
    if (w->waits->crashes)
        return;
    if (end->error)
        flight_fail(w, f, end->why == UPSTREAM_UNKNOWN ? LOCK_UNKNOWN : LOCK_NOT_SENT);
    else
        flight_end(w, f);
}

/* An attempt parks: its memory stays, since it belongs to the flight, and only its session may use it. */
void request_park(struct request *r) {
    struct waits_call *c = call_of(r);
    if (r->owner)
        world_fail(c->world, "parks", "an attempt parks that somebody owns");
    list_remove(&r->link);
    r->call.done = NULL;
    c->parked = true;
}

struct request *request_unpark(struct session *s, const struct command *command) {
    struct world *w = world_of(s->worker);
    int conn = (int)(s - w->waits->sessions);
    (void)command;
    for (size_t i = 0; i < FLIGHTS; i++) {
        const struct flight *f = &w->flights[i];
        if (!f->used || !f->call || !f->call->parked || f->conn != conn || f->session_id != s->lock.id)
            continue;
        f->call->parked = false;
        list_append(&s->requests, &f->call->request.link);
        return &f->call->request;
    }
    abort();
}

void lock_drop(struct worker *w, struct lock_call *l) {
    (void)w;
    memset(&l->plan, 0, sizeof(l->plan));
}

void lock_busy_key(struct request *r, const char *key, size_t len) {
    (void)r, (void)key, (void)len;
}

/* No worker here sends MSETNX of several keys. */
void lock_busy_all(struct request *r) {
    (void)r;
    abort();
}

struct lock_call *lock_begin_pairs(struct session *s, const struct lock_rule *rule, uint32_t db,
                                   const struct lock_words *words) {
    (void)s, (void)rule, (void)db, (void)words;
    abort();
}

void lock_build_pairs(struct session *s, struct lock_call *first, const struct lock_words *words) {
    (void)s, (void)first, (void)words;
    abort();
}

void lock_call_value(struct lock_call *l, const char *value, size_t len) {
    const struct flight *f = LIST_ENTRY(l, struct waits_call, lock)->flight;
    if (len != strlen(f->command.value) || memcmp(value, f->command.value, len) != 0)
        world_fail(LIST_ENTRY(l, struct waits_call, lock)->world, "parks", "an attempt has another value");
}

struct lock_call *lock_begin_anew(struct session *s, enum lock_verb verb, const struct lock_rule *rule, uint32_t db,
                                  const char *key, size_t key_len) {
    struct request *r = LIST_ENTRY(s->requests.prev, struct request, link);
    struct waits_call *c = call_of(r);
    struct world *w = c->world;
    struct flight *f = c->flight;
    struct lock_key own = world_key(f->key), name = {.db = db, .name = own.name, .len = key_len};
    if (key_len != own.len || memcmp(key, own.name, key_len) != 0)
        world_fail(w, "parks", "an attempt has another key");
    engine_begin(w->proxies[f->proxy].engine, &w->conns[f->conn].session, verb, &name, rule, LOGIN, false,
                 w->redis.now_ms, &c->lock.plan);
    f->plan = c->lock.plan;
    return &c->lock;
}

void lock_undo(struct worker *w, const struct lock_call *l, lock_undone_fn done, void *arg) {
    struct flight *f = LIST_ENTRY(l, struct waits_call, lock)->flight;
    struct world *world = world_of(w);
    if (world->waits->crashes)
        return;
    f->call->undone = true;
    struct lock_lease lease = {.key = l->plan.key,
                               .rule = l->plan.rule,
                               .token = l->plan.attempt,
                               .token_len = l->plan.attempt_len,
                               .right = RIGHT_CLAIM,
                               .lease_ms = l->plan.rule->lease_ms};
    memcpy(lease.token_text, l->plan.attempt_token, sizeof(lease.token_text));
    world_release(world, f->proxy, &lease);
}

/* ---- commands ---------------------------------------------------------------------------------- */

static bool may_wait(const struct flight *f) {
    bool set = f->command.op == OP_SETNX || f->command.op == OP_SET_NX || f->command.op == OP_SET_NX_GET;
    return set && f->kind == FLIGHT_COMMAND && !f->transaction && !f->observed && !f->bare &&
           f->plan.verb == LOCK_ACQUIRE && f->plan.rule->wait_ms > 0;
}

static void goes(struct world *w, struct flight *f) {
    f->order = ++w->sent;
    f->due_ms = w->redis.now_ms + 1 + world_below(w, w->sc.delay_ms);
}

static void attempt_launched(struct world *w, struct flight *f) {
    struct resp_arg whole = {.off = 0, .len = strlen(f->command.value)};
    struct lock_words words = {f->command.value, &whole, 1};
    (void)session_of(w, f->conn);
    attempt_new(w, f);
    check_waits_came(w, f);
    const struct lock_waits *waits = f->call->request.worker->waits;
    if (f->command.op == OP_SET_NX_GET)
        waits->keep(&f->call->request, &f->call->lock, &words);
    check_waits_joins(w, f);
    f->held = f->call->waiting = true; /* it may go or end at once */
    if (!waits->behind(&f->call->request.call, &f->call->lock))
        f->held = f->call->waiting = false;
    w->waits->joins = NULL;
}

void waits_launched(struct world *w, struct flight *f) {
    unsigned thread = here ? here->index : world_below(w, w->sc.threads);
    if (f->conn >= 0)
        thread = (unsigned)f->conn % w->sc.threads;
    f->lane = thread * WAITS_UPSTREAMS + (f->conn >= 0 ? (unsigned)f->session_id % w->sc.upstreams : 0);
    goes(w, f);
    f->here_ms = f->next_ms = -1;
    struct worker *before = turn(thread_of(w, f));
    if (may_wait(f)) {
        attempt_launched(w, f);
        if (f->call && f->call->waiting)
            check_waits_joined(w, f, f->call);
        else if (f->used && f->call)
            check_waits_newcomer(w, f);
    } else if (f->kind == FLIGHT_RELEASE) {
        struct lock_key key = world_key(f->key);
        const struct upstream_lane lane = {.login = LOGIN, .protocol = 2};
        f->handed = waiting_handover(w->waits->shared[f->proxy].waiting, &key,
                                     engine_key_hash(w->proxies[f->proxy].engine, &key), thread,
                                     lock_handover_way(&lane), 0, NULL);
        here = before; /* the engine, which has asked for it, is in the middle of something: others go on later */
        return;
    } else if (f->kind == FLIGHT_COMMAND && f->plan.verb == LOCK_RELEASE && !f->transaction && !f->observed &&
               f->plan.rule->wait_ms > 0) {
        struct lock_call *l = release_of(f);
        lock_handover_sent(session_of(w, f->conn), l);
        f->handed = l->handed;
        f->here_ms = here->waits->waited.here_ms;
        here->waits->waited = LOCK_WAITED_NONE;
    }
    turn_over(before);
}

void waits_again(struct world *w, struct flight *f) {
    goes(w, f);
    if (f->call)
        f->call->lock.plan = f->plan;
}

void waits_args(const struct world *w, const struct flight *f, struct model_args *a) {
    const struct record_text *mark = record_get(&w->redis.records[f->key], "waits", 5);
    w->waits->marked[0] = '\0';
    if (mark)
        snprintf(w->waits->marked, sizeof(w->waits->marked), "%s", mark->data);
    w->waits->published = w->published;
    bool commands = f->kind == FLIGHT_COMMAND || f->kind == FLIGHT_OPERATOR;
    a->sharded = w->sc.sharded;
    a->here_ms = f->here_ms;
    a->next_ms = f->next_ms;
    if (f->kind == FLIGHT_RELEASE)
        a->waits = f->tells;
    if (!commands || !f->plan.rule || f->plan.rule->wait_ms == 0)
        return;
    bool acquires = f->plan.verb == LOCK_ACQUIRE && !f->transaction;
    bool releases = f->plan.verb == LOCK_RELEASE || f->plan.verb == LOCK_OPERATOR;
    a->waits = acquires || releases;
}

void waits_ran(struct world *w, struct flight *f) {
    check_waits_key(w, f->key);
    check_waits_ran(w, f);
    if (f->repeated)
        w->waits->lost_ms[f->key] = w->redis.now_ms;
    w->waits->believed[f->proxy][f->key] = w->waits->node[f->key]; /* a MOVED has brought it here */
    f->due_ms = w->redis.now_ms + 1 + world_below(w, w->sc.delay_ms);
}

bool waits_delivered(struct world *w, struct flight *f) {
    static const struct call_end ANSWER = {.reply = "$", .len = 1};
    if (!f->call)
        return false;
    struct worker *before = turn(thread_of(w, f));
    struct waits_call *c = f->call;
    struct call *call = &c->request.call;
    if (call->done) {
        f->held = true; /* unless it goes again, or ends */
        c->granted = f->envelope.outcome == LOCK_GRANTED;
        call->done(call, &ANSWER);
    } else {
        struct lock_envelope e;
        bool waits = false;
        if (c->request.session) {
            (void)session_of(w, f->conn);
            (void)lock_envelope_read(&c->lock, NULL, 0, &e);
            check_waits_joins(w, f);
            f->held = c->waiting = true; /* it may end at once */
            waits = c->request.worker->waits->refused(call, &c->lock, &e);
        }
        w->waits->joins = NULL;
        if (waits) {
            check_waits_joined(w, f, c);
        } else {
            f->held = c->waiting = false;
            attempt_over(f);
            flight_end(w, f);
        }
    }
    turn_over(before);
    return true;
}

bool waits_failed(struct world *w, struct flight *f, enum lock_outcome outcome) {
    if (!f->call)
        return false;
    struct worker *before = turn(thread_of(w, f));
    struct call *call = &f->call->request.call;
    const struct call_end end = {.error = "lost",
                                 .why = outcome == LOCK_UNKNOWN ? UPSTREAM_UNKNOWN : UPSTREAM_NOT_SENT};
    w->waits->lost_ms[f->key] = w->redis.now_ms;
    f->envelope.outcome = outcome;
    if (call->done) {
        call->done(call, &end);
    } else {
        attempt_over(f);
        flight_fail(w, f, outcome);
    }
    turn_over(before);
    return true;
}

void waits_learnt(struct world *w, const struct flight *f, const struct lock_result *r) {
    struct worker *before = turn(thread_of(w, f));
    struct lock_key key = world_key(f->key);
    bool own = f->kind == FLIGHT_RELEASE;
    bool rule = !own && f->plan.rule && f->plan.rule->wait_ms > 0;
    check_waits_learnt(w, f, r);
    if (own && f->tells && r->outcome != LOCK_HELD)
        waiting_freed(w->waits->shared[f->proxy].waiting, &key, engine_key_hash(w->proxies[f->proxy].engine, &key),
                      r->fence, f->handed);
    else if (rule)
        lock_handover_learnt(&thread_of(w, f)->worker, release_of(f), r);
    turn_over(before);
}

void waits_left(struct world *w, struct flight *f, bool proxy_gone) {
    static const struct call_end LOST = {.error = "lost", .why = UPSTREAM_UNKNOWN};
    if (!f->call)
        return;
    struct worker *before = turn(thread_of(w, f));
    struct waits_call *c = f->call;
    w->waits->crashes = proxy_gone;
    c->left = !proxy_gone;
    if (c->parked) {
        check_waits_end(w, f);
        waits_room.closes(c->request.session);
        attempt_over(f);
        flight_free(f);
    } else {
        c->request.session = NULL;
        list_remove(&c->request.link);
        if (!proxy_gone && c->request.owner && c->request.owner->ops->left)
            c->request.owner->ops->left(&c->request);
        else if (proxy_gone && !c->waiting)
            attempt_over(f);
        else if (proxy_gone)
            c->request.call.done(&c->request.call, &LOST);
    }
    w->waits->crashes = false;
    turn_over(before);
}

void waits_speak(struct world *w, int conn) {
    struct session *s = session_of(w, conn);
    if (!(s->delays & DELAY_EVENT))
        return;
    struct worker *before = turn((struct waits_thread *)(void *)s->worker->loop);
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flights[i];
        if (f->used && f->call && f->call->waiting && f->conn == conn && f->session_id == s->lock.id)
            f->call->spoken = true;
    }
    waits_room.speaks(s);
    turn_over(before);
}

void waits_circle(struct world *w) {
    check_waits_circle(w);
}

void waits_rules(struct world *w) {
    for (unsigned p = 0; p < w->sc.proxies; p++)
        for (unsigned i = 0; i < w->sc.threads; i++) {
            struct worker *before = turn(&w->waits->threads[p][i]);
            here->rules = w->rules;
            waits_room.worker_rules(here);
            turn_over(before);
        }
}

bool waits_held(const struct flight *f) {
    return f->held;
}

struct flight *waits_first(struct world *w, struct flight *f) {
    struct flight *first = f;
    if (f->ghost || f->transaction || f->proxy_life != w->proxies[f->proxy].life)
        return f;
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *o = &w->flights[i];
        if (o->used && !o->held && !o->ghost && !o->transaction && o->proxy == f->proxy && o->lane == f->lane &&
            o->proxy_life == f->proxy_life && o->ran == f->ran && o->order < first->order)
            first = o;
    }
    return first;
}

/* ---- time -------------------------------------------------------------------------------------- */

static bool is_due(const struct world *w, const struct flight *f) {
    return f->used && !f->held && !f->ghost && !f->transaction && f->proxy_life == w->proxies[f->proxy].life;
}

/* When something happens next, at the latest `to`. */
static int64_t next_ms(const struct world *w, int64_t to) {
    const struct waits *s = w->waits;
    for (size_t i = 0; i < FLIGHTS; i++) {
        if (s->timers[i].timer && s->timers[i].due_ms < to)
            to = s->timers[i].due_ms;
        if (is_due(w, &w->flights[i]) && w->flights[i].due_ms < to)
            to = w->flights[i].due_ms;
    }
    for (size_t i = 0; i < WAITS_MESSAGES; i++)
        if (s->messages[i].to && s->messages[i].due_ms < to)
            to = s->messages[i].due_ms;
    for (unsigned i = 0; i < PROXIES * WAITS_THREADS; i++) {
        int64_t at = s->threads[i / WAITS_THREADS][i % WAITS_THREADS].woken_ms;
        if (at && at < to)
            to = at;
    }
    for (unsigned key = 0; key < w->sc.keys; key++) {
        int64_t at = w->redis.keys[key].exists ? w->redis.keys[key].expire_ms : 0;
        if (at > w->redis.now_ms && at < to)
            to = at;
    }
    return to > w->redis.now_ms ? to : w->redis.now_ms;
}

static void timers_due(struct world *w) {
    struct waits *s = w->waits;
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct waits_timer *t = &s->timers[i];
        if (!t->timer || t->due_ms > w->redis.now_ms)
            continue;
        struct ev_timer *timer = t->timer;
        struct worker *before = turn((struct waits_thread *)(void *)t->loop);
        t->timer = NULL;
        timer->active = 0;
        s->rings = true;
        ev_cb(timer)(t->loop, timer, EV_TIMER);
        s->rings = false;
        turn_over(before);
    }
    for (unsigned i = 0; i < PROXIES * WAITS_THREADS; i++) {
        struct waits_thread *t = &s->threads[i / WAITS_THREADS][i % WAITS_THREADS];
        if (!t->woken_ms || t->woken_ms > w->redis.now_ms)
            continue;
        struct worker *before = turn(t);
        t->woken_ms = 0;
        ev_cb(t->async)((struct ev_loop *)(void *)t, t->async, EV_ASYNC);
        turn_over(before);
    }
}

/* Ends turns that others have begun. */
static void turns_over(struct world *w) {
    for (unsigned p = 0; p < w->sc.proxies; p++)
        for (unsigned i = 0; i < w->sc.threads; i++)
            if (!list_empty(&w->waits->threads[p][i].worker.jobs))
                turn_over(turn(&w->waits->threads[p][i]));
}

/* Lets happen what is due now. */
static void due(struct world *w) {
    struct waits *s = w->waits;
    turns_over(w);
    for (size_t i = 0; i < WAITS_MESSAGES; i++)
        if (s->messages[i].to && s->messages[i].due_ms <= w->redis.now_ms)
            hear(w, &s->messages[i]);
    for (size_t i = 0; i < FLIGHTS && !w->failure; i++) {
        struct flight *f = &w->flights[i];
        if (!is_due(w, f) || f->due_ms > w->redis.now_ms)
            continue;
        w->step++; /* what is told later counts as later */
        flight_progress(w, f);
    }
    timers_due(w);
}

void waits_pass_time(struct world *w, int64_t ms) {
    int64_t to = w->redis.now_ms + ms;
    while (!w->failure) {
        int64_t at = next_ms(w, to);
        bool over = at >= to;
        world_advance(w, at);
        waits_check(w);
        due(w);
        waits_check(w);
        if (over && next_ms(w, to + 1) > to)
            return;
    }
}

void waits_step_over(struct world *w) {
    turns_over(w);
    waits_check(w);
}

/* Sets a clock: a proxy's, or the node's, by which leases end. */
static void clock_is_set(struct world *w) {
    unsigned proxy = world_below(w, w->sc.proxies);
    unsigned most_ms = world_chance(w, 50) ? 100 : CLOCK_MAX_MS;
    int64_t by_ms = (int64_t)world_below(w, 2 * most_ms + 1) - most_ms;
    if (world_chance(w, 50) && llabs(w->waits->skew_ms[proxy] + by_ms) < CLOCK_MAX_MS) {
        w->waits->skew_ms[proxy] += by_ms;
        world_event(w, "the clock of proxy %u is set by %" PRId64 " ms", proxy, by_ms);
    } else if (llabs(w->redis.clock_ms + by_ms) < CLOCK_MAX_MS) {
        world_event(w, "Redis's clock is set by %" PRId64 " ms", by_ms);
        world_set_clock(w, by_ms);
    }
}

void waits_trouble(struct world *w) {
    const struct scenario *sc = &w->sc;
    if (world_chance(w, 15))
        waits_speak(w, (int)world_below(w, CONNS));
    struct waits_thread *t = &w->waits->threads[world_below(w, sc->proxies)][world_below(w, sc->threads)];
    struct waits_ear *ear = &t->ears[world_below(w, WAITS_NODES)];
    if (sc->deaf && ear->listens && world_chance(w, 15)) {
        struct worker *before = turn(t);
        ear->events.lost(ear->events.arg, "it was closed");
        turn_over(before);
    }
    if (sc->moves && world_chance(w, 15))
        slot_moves(w, (int)world_below(w, sc->keys));
    if (sc->clocks && world_chance(w, 15))
        clock_is_set(w);
}

/* ---- beginning and end ------------------------------------------------------------------------- */

void waits_proxy_back(struct world *w, int proxy) {
    struct proxy_shared *shared = &w->waits->shared[proxy];
    *shared = (struct proxy_shared){.engine = w->proxies[proxy].engine, .workers = w->waits->workers[proxy]};
    shared->threads = w->sc.threads;
    shared->process_id = w->proxies[proxy].id;
    for (unsigned i = 0; i < w->sc.threads; i++) {
        struct waits_thread *t = &w->waits->threads[proxy][i];
        memset(t, 0, sizeof(*t));
        t->world = w;
        t->proxy = (unsigned)proxy;
        t->worker.shared = shared;
        t->worker.loop = (struct ev_loop *)(void *)t;
        t->worker.upstream = (struct upstream *)(void *)t;
        t->worker.index = i;
        t->worker.rules = w->rules;
        list_init(&t->worker.jobs);
        w->waits->workers[proxy][i] = &t->worker;
        waits_room.worker_opens(&t->worker);
    }
}

void waits_proxy_gone(struct world *w, int proxy) {
    for (size_t i = 0; i < FLIGHTS; i++) /* those whose session had closed before */
        if (w->flights[i].used && w->flights[i].proxy == proxy)
            waits_left(w, &w->flights[i], true);
    for (unsigned i = 0; i < w->sc.threads; i++) {
        struct waits_thread *t = &w->waits->threads[proxy][i];
        lock_release_channel_close(&t->worker);
        waits_room.worker_closes(&t->worker);
    }
}

void waits_open(struct world *w) {
    if (!w->sc.waits)
        return;
    w->waits = memory_zalloc(sizeof(*w->waits));
    w->redis.publish = publish;
    w->redis.publish_arg = w;
    slot_tags_init();
    for (unsigned key = 0; key < MODEL_KEYS; key++) {
        w->waits->node[key] = key % WAITS_NODES;
        for (unsigned p = 0; p < PROXIES; p++)
            w->waits->believed[p][key] = key % WAITS_NODES;
    }
    for (int i = 0; i < CONNS; i++)
        list_init(&w->waits->sessions[i].requests);
    for (unsigned p = 0; p < w->sc.proxies; p++) {
        w->waits->skew_ms[p] = w->sc.skewed ? (int64_t)world_below(w, 4001) - 2000 : 0;
        waits_proxy_back(w, (int)p);
    }
}

void waits_close(struct world *w) {
    if (!w->waits)
        return;
    for (size_t i = 0; i < FLIGHTS; i++)
        if (w->flights[i].used && w->flights[i].call)
            waits_left(w, &w->flights[i], true);
    for (unsigned p = 0; p < w->sc.proxies; p++)
        waits_proxy_gone(w, (int)p);
    memory_free(w->waits);
    w->waits = NULL;
    w->redis.publish = NULL;
}
