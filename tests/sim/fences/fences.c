/*
 * What fenced_command.c needs of a proxy, in the simulated world (fence_transaction.c: pins.c);
 * writes of workers; and S7.
 *
 *      worker ── SET data FENCE ──> fence_judge ──> fence_dispatch, or in MULTI fence_prepare and looks before EXEC
 *                                                       └── calls ──> fence.lua in the interpreter ──> their `done`
 *
 * A write is exact where its worker has a connection of its own, over which it has acquired the lease that it writes
 * under, whatever other sessions of its client have released meanwhile. Of exact writes: in one slot none is done once
 * another session has acquired since, in two slots none once the look has seen that; in both, none behind one of a
 * later lease, unless a failover has lost the watermark; none is refused while its lease is live; and each is asked
 * for.
 */
#include "tests/sim/fences/fences_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/class.h"
#include "tests/sim/interpreter.h"

enum { WORDS_MAX = 24, NAME_MAX_LEN = 64 };

static struct { uint64_t done, late, refused_by_mark, queued; } totals;

struct write *fences_write_of(const struct request *r) {
    return (struct write *)(void *)(uintptr_t)r;
}

/* ---- what fenced_command.c calls -------------------------------------------------------------- */

const struct request_owner_ops request_owner_silent;

static struct write *write_new(struct world *w, struct session *s) {
    struct write *x = memory_zalloc(sizeof(*x));
    x->world = w;
    x->number = ++w->fences->writes_made;
    x->request.session = s;
    list_init(&x->request.parts);
    list_init(&x->request.link);
    list_init(&x->link);
    list_append(&w->fences->writes, &x->link);
    x->request.call.request = &x->request;
    return x;
}

static void write_free(struct write *x) {
    if (x->request.owner && x->request.owner->ops->free)
        x->request.owner->ops->free(x->request.owner);
    for (struct list_node *n; (n = list_first(&x->request.parts));)
        call_release(x->request.worker, LIST_ENTRY(n, struct call, link));
    list_remove(&x->request.link);
    fence_looks_forget(x->looks);
    fence_forget(x->question);
    text_clear(&x->bytes);
    list_remove(&x->link);
    memory_free(x);
}

static struct fences *fences_of(const struct worker *w) {
    return ((const struct waits_thread *)(const void *)w->loop)->world->fences;
}

struct request *request_new(struct session *s, const struct command *command) {
    struct fences *f = fences_of(s->worker);
    f->now->request.session = s;
    f->now->request.worker = s->worker;
    f->now->request.command = command;
    list_append(&s->requests, &f->now->request.link);
    return &f->now->request;
}

struct request *request_internal(struct worker *worker, call_done_fn done) {
    struct fences *f = fences_of(worker);
    struct write *x = write_new(f->world, NULL);
    x->is_look = true;
    x->of = f->now->number;
    x->request.worker = worker;
    x->request.call.done = done;
    x->worker = f->now->worker;
    x->conn = f->now->conn;
    x->key = f->now->key;
    x->fence = f->now->fence;
    x->exact = f->now->exact;
    return &x->request;
}

void request_barrier(struct request *r) {
    (void)r;
}

/* Tells the worker that its write is over. */
static void write_ends(struct write *x) {
    struct world *w = x->world;
    struct conn *c = &w->conns[x->conn];
    if (!x->is_look && w->fences->life[x->worker] == x->life && x->request.session)
        w->workers[x->worker].busy = false;
    if (!x->is_look && x->request.session && c->open && c->id == x->session_id)
        c->busy -= c->busy > 0;
    x->request.session = NULL;
    write_free(x);
}

void request_reply(struct request *r, const char *data, size_t len, bool last) {
    struct write *x = fences_write_of(r);
    (void)last;
    if (!x->is_look)
        world_event(x->world, "worker %d: answer %.*s", x->worker, len > 2 ? (int)len - 2 : 0, data);
    write_ends(x);
}

void request_fail(struct request *r, const char *error) {
    (void)error;
    write_ends(fences_write_of(r));
}

void call_submit_lane(struct call *c, int slot, const struct upstream_lane *lane, const char *bytes, size_t len) {
    const struct write *x = fences_write_of(c->request);
    struct fences *f = x->world->fences;
    (void)slot, (void)lane;
    if (x->lost)
        world_fail(x->world, "S7", "worker %d writes, and a look has said that its lock is lost", x->worker);
    for (size_t i = 0; i < CALLS_MAX; i++) {
        struct sent *s = &f->sent[i];
        if (s->call)
            continue;
        s->call = c;
        text_append(&s->bytes, bytes, len);
        return;
    }
    abort();
}

void call_submit(struct call *c, int slot, const char *bytes, size_t len) {
    call_submit_lane(c, slot, NULL, bytes, len);
}

bool lock_script_busy(const struct session *s, const char *key, size_t len) {
    (void)s, (void)key, (void)len;
    return false; /* nothing is sent beside a write */
}

void session_note_overlap(struct session *s) {
    (void)s;
}

size_t session_who(const struct session *s, char *out, size_t size) {
    (void)s;
    return (size_t)snprintf(out, size, "10.0.0.1:1234");
}

void lock_build_script(struct worker *w, enum script_id id, struct lock_queue *queue, size_t keys, size_t args) {
    (void)queue;
    if (id != SCRIPT_FENCE)
        abort();
    build_start(w, 3 + keys + args);
    build_text(w, "EVALSHA");
    build_text(w, "fence");
    build_number(w, (int64_t)keys);
}

void lock_build_guard(struct worker *w, const char *key, size_t len) {
    char guard[NAME_MAX_LEN + LOCK_GUARD_EXTRA];
    build_bulk(w, guard, lock_guard_key(key, len, guard));
}

/* A transaction's queue has no lock commands here. */
const char *lock_queue_attempt(const struct lock_queue *queue, const struct list_node **at,
                               const struct lock_key *lock) {
    (void)queue, (void)at, (void)lock;
    return NULL;
}

void lock_error_words(struct lock_envelope *e, char out[LOCK_ANSWER_MAX]) {
    (void)e, (void)out;
}

/* ---- Redis -------------------------------------------------------------------------------------------- */

/* A key's name as the interpreter has it; other words are as they are, and so are locks and guard records. */
static struct interpreter_word named(const struct write *x, const char *text, size_t len) {
    static const char *const KINDS[] = {"mark:", "data:"};
    static char names[2][MODEL_KEYS][8];
    bool mark = lock_guard_is(text, len) && memmem(text, len, "}:{", 3);
    bool data = len > 6 && (memcmp(text, "stock:", 6) == 0 || memcmp(text, "{lock:", 6) == 0);
    if (!mark && !data)
        return (struct interpreter_word){text, len};
    char *name = names[data][x->key];
    snprintf(name, sizeof(names[0][0]), "%s%d", KINDS[data], x->key);
    return (struct interpreter_word){name, strlen(name)};
}

/* Reads the script's answer as Redis would write it. */
static void answer(lua_State *L, char out[ANSWER_MAX]) {
    switch (lua_type(L, -1)) {
    case LUA_TNUMBER:
        snprintf(out, ANSWER_MAX, ":%.0f\r\n", lua_tonumber(L, -1));
        return;
    case LUA_TSTRING:
        snprintf(out, ANSWER_MAX, "$%zu\r\n%s\r\n", strlen(lua_tostring(L, -1)), lua_tostring(L, -1));
        return;
    case LUA_TTABLE:
        lua_getfield(L, -1, "err");
        if (lua_isnil(L, -1))
            snprintf(out, ANSWER_MAX, "+OK\r\n");
        else
            snprintf(out, ANSWER_MAX, "-%s\r\n", lua_tostring(L, -1));
        return;
    default:
        snprintf(out, ANSWER_MAX, "$-1\r\n");
    }
}

void fences_run(struct world *w, const struct write *x, const struct text *bytes, char out[ANSWER_MAX]) {
    struct resp_request r;
    struct resp_limits limits = {.bulk_max = INT64_MAX};
    struct interpreter_word words[WORDS_MAX];
    size_t len;
    resp_request_init(&r);
    if (resp_request_scan(&r, bytes->data, bytes->len, &limits) != RESP_OK || r.argc > WORDS_MAX)
        abort();
    for (size_t i = 0; i < r.argc; i++) {
        const char *text = request_arg(&r, bytes->data, i, &len);
        words[i] = named(x, text, len);
    }
    int keys = words[2].text[0] - '0';
    lua_State *L = interpreter_fence(&w->redis, x->key, words + 3, keys, words + 3 + keys, (int)r.argc - 3 - keys);
    if (!L)
        abort();
    answer(L, out);
    resp_request_clear(&r);
}

/* ---- S7 ------------------------------------------------------------------------------------------------ */

/* The record of an attempt in the short form may have an early fence until acquire.lua has run, and its sender does not
 * hold the lock before that. Where the proxy knows that data is written under a lock, it sends no such attempts: one
 * may be under way when a reload tells the proxy. */
static bool is_unfinished(const struct truth *t) {
    return t->live && t->provisional;
}

/* A client that writes without a lease has to be the one that holds the lock, or held it last. */
static void check_unlocked(struct world *w, const struct write *x) {
    const struct model_guard *g = &w->redis.keys[x->key].guard;
    if (is_unfinished(&w->truth[x->key])) /* the batch's sender has not acquired yet */
        return;
    char identity[MODEL_NAME];
    world_identity(world_name(w, x->conn), identity);
    if (w->sc.renames) /* it may be another client by now */
        return;
    if (!g->exists || strcmp(g->owner, identity) != 0)
        world_fail(w, "S7", "worker %d has written under the lock of somebody else", x->worker);
}

void fences_ran(struct world *w, struct write *x, bool refused) {
    const struct truth *t = &w->truth[x->key];
    bool asks = x->is_look || !w->sc.elsewhere, late = x->fence && t->max_fence > x->fence && !is_unfinished(t);
    uint64_t *written = &w->fences->written[x->key];
    world_event(w, "worker %d, key %d, fence %" PRIu64 ": %s %s", x->worker, x->key, x->fence,
                x->is_look ? "a look" : "a write", refused ? "refused" : "done");
    LIST_EACH(of, &w->fences->writes, struct write, link) {
        of->lost = of->lost || (x->is_look && refused && of->number == x->of);
    }
    totals.late += refused && late;
    totals.refused_by_mark += refused && !asks;
    totals.done += !refused && !x->is_look;
    if (!x->exact)
        return;
    if (!refused && asks && late)
        world_fail(w, "S7", "worker %d is let in with fence %" PRIu64 " after fence %" PRIu64, x->worker, x->fence,
                   t->max_fence);
    if (!refused && !x->is_look && x->fence < *written && (w->sc.elsewhere || !is_unfinished(t)))
        world_fail(w, "S7", "worker %d has written with fence %" PRIu64 " behind fence %" PRIu64, x->worker, x->fence,
                   *written);
    if (refused && t->live && t->fence == x->fence)
        world_fail(w, "S7", "worker %d holds the lock, and is refused", x->worker);
    if (!refused && !x->is_look && x->fence > *written)
        *written = x->fence;
}

/* ---- writes ---------------------------------------------------------------------------------------------- */

struct session *fences_session(struct world *w, int conn) {
    struct fences *f = w->fences;
    struct session *s = &f->sessions[conn];
    const struct conn *c = &w->conns[conn];
    struct worker *worker = &f->workers[c->proxy];
    f->shared[c->proxy].engine = w->proxies[c->proxy].engine;
    worker->shared = &f->shared[c->proxy];
    worker->rules = f->rules;
    worker->loop = (struct ev_loop *)(void *)&f->thread;
    worker->upstream = (struct upstream *)(void *)&f->thread; /* what waits.c takes it for */
    s->worker = worker;
    s->lock = c->session;
    s->lane = (struct upstream_lane){.protocol = 2};
    return s;
}

static void exec_done(struct call *c, const struct call_end *end) {
    struct write *x = fences_write_of(c->request);
    struct text out = {0};
    if (end->error)
        text_append(&out, "-\r\n", 3);
    else
        fence_reply(x->request.session, x->question, end->reply, end->len, &out);
    request_reply(&x->request, out.data, out.len, true);
    text_clear(&out);
}

static void exec_looked(void *arg, const char *error, size_t len) {
    struct write *x = arg;
    x->looks = NULL;
    if (error) {
        request_reply(&x->request, error, len, true);
        return;
    }
    x->request.call.done = exec_done;
    call_submit(&x->request.call, 0, x->bytes.data, x->bytes.len);
}

static void exec(struct write *x) {
    world_event(x->world, "worker %d: EXEC", x->worker);
    x->queued = false;
    x->world->fences->now = x;
    fences_session(x->world, x->conn);
    x->looks = fence_looks_new(x->request.session, exec_looked, x);
    fence_looks_add(x->looks, x->question);
    fence_looks_go(x->looks);
}

/* Sends the write, by itself or in MULTI, or has it pass as it came. */
static void write_send(struct world *w, struct write *x, const struct text *bytes) {
    struct session *s = fences_session(w, x->conn);
    struct resp_request r;
    struct resp_limits limits = {.bulk_max = INT64_MAX};
    struct request_class k;
    const char *error = "";
    struct lock_queue queue = {.sources = 0};
    resp_request_init(&r);
    if (resp_request_scan(&r, bytes->data, bytes->len, &limits) != RESP_OK)
        abort();
    const struct command *c = command_of_request(&r, bytes->data);
    class_find(&k, s, c, &r, bytes->data);
    s->queues = x->fence && c->id == COMMAND_SET && world_chance(w, 30);
    list_init(&queue.calls);
    w->fences->now = x;
    enum fence_verdict verdict = fence_judge(s, &k, &error);
    if (verdict == FENCE_CHECKED && s->queues) {
        totals.queued++;
        x->request.worker = s->worker;
        x->question = fence_prepare(s, &queue, &k);
        text_append(&x->bytes, s->worker->build.data, s->worker->build.len);
        x->queued = true;
    } else if (verdict == FENCE_CHECKED) {
        fence_dispatch(s, &k);
    } else {
        if (x->exact)
            world_fail(w, "S7", "worker %d's write is not asked for: %s", x->worker, error);
        request_reply(&x->request, "+OK\r\n", 5, true);
    }
    class_clear(&k);
    resp_request_clear(&r);
}

/* Whether the proxy takes the connection for one worker's. */
static bool one_workers(const struct world *w, int conn) {
    bool by_rule = w->sc.rule.owner == LOCK_OWNER_AUTO || w->sc.rule.owner == LOCK_OWNER_CONNECTION;
    return w->sc.apart && by_rule && !w->sc.library && !world_mistaken(w, world_name(w, conn));
}

bool fences_write(struct world *w, int worker, int conn) {
    struct fences *f = w->fences;
    struct app_worker *k = &w->workers[worker];
    struct conn *c = &w->conns[conn];
    bool outside = w->sc.unlocked && k->process >= 0 && k->phase == PHASE_START && world_chance(w, 10);
    bool holds = k->process >= 0 && k->phase == PHASE_HOLD && k->fence && world_chance(w, 40);
    if (!(holds || outside) || k->transaction || k->depth || c->busy || c->reserved)
        return false;
    struct write *x = write_new(w, &f->sessions[conn]);
    x->worker = worker;
    x->conn = conn;
    x->key = holds ? k->key : (int)world_below(w, w->sc.keys);
    x->life = f->life[worker];
    x->session_id = c->id;
    x->fence = holds ? k->fence : 0;
    x->slow = world_chance(w, 20);
    x->exact = holds && one_workers(w, conn) && f->lease_session[worker] == c->id && f->lease_fence[worker] == k->fence;
    c->busy++;
    k->busy = true;
    char key[NAME_MAX_LEN], value[24];
    snprintf(key, sizeof(key), w->sc.elsewhere ? "stock:%d" : "{lock:%d}stock", x->key);
    snprintf(value, sizeof(value), "%" PRIu64, x->fence);
    struct text bytes = {0};
    unsigned kind = world_below(w, 100);
    x->waits = kind < 20;
    const char *what = x->waits ? "BLPOP" : kind < 45 ? "EVAL" : "SET";
    if (x->waits)
        text_printf(&bytes, "*3\r\n$5\r\nBLPOP\r\n$%zu\r\n%s\r\n$3\r\n%s\r\n", strlen(key), key,
                    world_chance(w, 70) ? "0.4" : "000");
    else if (kind < 45)
        text_printf(&bytes, "*5\r\n$4\r\nEVAL\r\n$4\r\ncode\r\n$1\r\n1\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n", strlen(key),
                    key, strlen(value), value);
    else
        text_printf(&bytes, "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n", strlen(key), key, strlen(value), value);
    world_event(w, "worker %d, session %" PRIu64 ": %s %s %s", worker, c->id, what, key, value);
    write_send(w, x, &bytes);
    text_clear(&bytes);
    return true;
}

/* ---- what goes on ------------------------------------------------------------------------------------------ */

static void sent_goes_on(struct world *w, struct sent *s) {
    struct call *c = s->call;
    struct write *x = fences_write_of(c->request);
    struct text bytes = s->bytes;
    char out[ANSWER_MAX];
    bool gone = !x->is_look && !x->request.session, lost = (w->sc.loses && world_chance(w, 4));
    s->call = NULL;
    s->bytes = (struct text){0};
    fences_session(w, x->conn); /* as it is now */
    struct call_end end = {.error = "UPSTREAM the node is lost", .why = UPSTREAM_UNKNOWN};
    if (!(gone || lost) || world_chance(w, 50)) {
        model_expire(&w->redis, x->key);
        check_passed(w, x->key, BY_TIME);
        fences_run(w, x, &bytes, out);
        bool refused = out[0] == '-';
        fences_ran(w, x, refused);
        if (!x->fence && !refused && (x->is_look || !w->sc.elsewhere) && x->request.session)
            check_unlocked(w, x);
        if (!lost)
            end = (struct call_end){.reply = out, .len = strlen(out)};
    }
    LIST_EACH(of, &w->fences->writes, struct write, link) { /* what follows is its write's */
        if (x->is_look && of->number == x->of)
            w->fences->now = of;
    }
    c->done(c, &end);
    text_clear(&bytes);
}

bool fences_progress(struct world *w, bool at_once) {
    struct fences *f = w->fences;
    unsigned start = world_below(w, CALLS_MAX);
    if (world_chance(w, 50) && fences_pins_progress(w))
        return true;
    for (unsigned i = 0; i < CALLS_MAX; i++) {
        struct sent *s = &f->sent[(start + i) % CALLS_MAX];
        if (!s->call || (!at_once && fences_write_of(s->call->request)->slow && !world_chance(w, 2)))
            continue;
        f->now = fences_write_of(s->call->request);
        sent_goes_on(w, s);
        return true;
    }
    LIST_EACH(x, &f->writes, struct write, link) {
        if (x->queued) {
            exec(x);
            return true;
        }
    }
    return fences_pins_progress(w);
}

void fences_acquired(struct world *w, int worker, const struct flight *f) {
    w->fences->lease_session[worker] = f->session_id;
    w->fences->lease_fence[worker] = w->workers[worker].fence;
}

void fences_worker_died(struct world *w, int worker) {
    w->fences->life[worker]++;
}

/* Its session is gone: what has been sent may yet run, and what has not is over. */
static void left(struct world *w, struct write *x) {
    struct fences *f = w->fences;
    bool sent = false;
    for (size_t i = 0; i < CALLS_MAX; i++)
        sent = sent || (f->sent[i].call && f->sent[i].call->request == &x->request);
    if (f->life[x->worker] == x->life)
        w->workers[x->worker].busy = false;
    x->request.session = NULL;
    list_remove(&x->request.link);
    f->now = x;
    if (sent)
        return;
    if (x->request.owner && x->request.owner->ops->left)
        x->request.owner->ops->left(&x->request);
    else
        write_free(x);
}

void fences_left(struct world *w, int conn) {
    struct fences *f = w->fences;
    for (struct list_node *n = f->writes.next, *next; n != &f->writes; n = next) {
        struct write *x = LIST_ENTRY(n, struct write, link);
        next = n->next;
        if (!x->is_look && x->request.session && x->conn == conn)
            left(w, x);
    }
}

void fences_trouble(struct world *w) {
    int key = (int)world_below(w, w->sc.keys);
    if (world_chance(w, 5))
        fences_unblock_somebody(w);
    if (!w->sc.loses || !w->sc.elsewhere || !world_chance(w, 10))
        return;
    world_event(w, "key %d's watermark is lost", key);
    w->redis.marks[key].exists = false;
    w->fences->written[key] = 0;
}

/* ---- life -------------------------------------------------------------------------------------------------- */

static void rule_add(struct lock_rules *rules, bool fence, const char *const *words, size_t count) {
    char error[200];
    const char *wrong = fence ? lock_rules_add_fence(rules, words, count, error, sizeof(error))
                              : lock_rules_add(rules, words, count, error, sizeof(error));
    if (wrong)
        abort();
}

void fences_add_rule(const struct world *w, struct lock_rules *rules) {
    const char *const words[] = {w->sc.elsewhere ? "stock:*" : "{lock:*}stock", "by", "lock:*", "unlocked",
                                 w->sc.unlocked ? "refuse" : "pass"};
    if (w->sc.fences)
        rule_add(rules, true, words, 5);
}

void fences_open(struct world *w) {
    if (!w->sc.fences)
        return;
    slot_tags_init();
    command_table_init();
    struct fences *f = w->fences = memory_zalloc(sizeof(*f));
    static const char *const LOCK[] = {"lock:*"};
    f->world = w;
    f->thread.world = w;
    list_init(&f->writes);
    for (int i = 0; i < CONNS; i++)
        list_init(&f->sessions[i].requests);
    f->rules = lock_rules_new();
    rule_add(f->rules, false, LOCK, 1);
    fences_add_rule(w, f->rules);
}

void fences_close(struct world *w) {
    struct fences *f = w->fences;
    if (!f)
        return;
    for (size_t i = 0; i < CALLS_MAX; i++)
        text_clear(&f->sent[i].bytes);
    for (int i = 0; i < PROXIES; i++)
        text_clear(&f->workers[i].build);
    fences_pins_close(w);
    /* Looks first: a question is theirs as long as they are wanted. */
    while (!list_empty(&f->writes))
        write_free(LIST_ENTRY(f->writes.next, struct write, link));
    lock_rules_unref(f->rules);
    memory_free(f);
    w->fences = NULL;
}

bool fences_enough(long steps) {
    uint64_t watched, waited;
    fences_pins_totals(&watched, &waited);
    printf("sim: %" PRIu64 " writes done, %" PRIu64 " refused late, %" PRIu64 " by a watermark alone, %" PRIu64
           " in transactions, %" PRIu64 " behind WATCH, %" PRIu64 " by who had blocked\n",
           totals.done, totals.late, totals.refused_by_mark, totals.queued, watched, waited);
    bool enough = totals.done && totals.late && totals.refused_by_mark && totals.queued && watched > waited && waited;
    if (!enough && steps >= 500000)
        printf("FAILED: that is too little\n");
    return enough || steps < 500000;
}
