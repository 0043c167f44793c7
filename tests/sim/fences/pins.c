/*
 * What fence_transaction.c needs of a proxy and of Redis, in the simulated world: connections of a session's own, with
 * WATCH, MULTI and EXEC, and timers.
 *
 *      WATCH, fence.lua, MULTI ──> a pin: one after another, with others' commands between ──> their `done`
 *      the command, EXEC ────────> nil, if the guard record or watermark has changed; else it is done
 *
 * The command itself is done in name only: an application's script always writes, and what blocks finds something now
 * and then. A connection that is given back with something on it is closed: what was sent may still run.
 */
#include <stdlib.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "tests/sim/fences/fences_world.h"

static struct { uint64_t done, waited; } totals;

/* ---- what the proxy's files call ----------------------------------------------------------------------- */

static struct fences *fences_of(const struct worker *w) {
    return ((const struct waits_thread *)(const void *)w->loop)->world->fences;
}

void call_init(struct call *c, struct request *r, call_done_fn done) {
    c->request = r;
    c->done = done;
}

struct call *call_new(struct request *r, call_done_fn done) {
    struct call *c = memory_zalloc(sizeof(*c));
    call_init(c, r, done);
    list_append(&r->parts, &c->link);
    return c;
}

void call_release(struct worker *w, struct call *c) {
    (void)w;
    list_remove(&c->link);
    memory_free(c);
}

struct upstream_node *pin_node(const struct session *s, int slot) {
    (void)s, (void)slot;
    return NULL;
}

struct upstream_pin *pin_take(struct session *s, struct upstream_node *node, enum pin_reason why,
                              const struct upstream_pin_events *events, const char **error) {
    struct fences *f = fences_of(s->worker);
    (void)node, (void)why, (void)events;
    *error = "UPSTREAM there is no connection";
    if (f->world->sc.loses && world_chance(f->world, 4))
        return NULL;
    for (size_t i = 0; i < PINS_MAX; i++)
        if (!f->pins[i].used) {
            f->pins[i].used = true;
            return &f->pins[i];
        }
    abort();
}

static void pin_free(struct upstream_pin *pin) {
    for (unsigned i = 0; i < PIN_CALLS_MAX; i++)
        text_clear(&pin->calls[i].bytes);
    *pin = (struct upstream_pin){.used = false};
}

void pin_give(struct worker *w, struct upstream_pin *pin, enum pin_reason why, bool clean) {
    (void)why;
    if (clean && (pin->count > 0 || pin->multi || pin->watches))
        world_fail(fences_of(w)->world, "pins", "a connection is given back with something left over");
    pin->given = true;
}

bool pin_await_map(struct call *c, const struct upstream_node *node) {
    (void)c, (void)node;
    return false;
}

void call_submit_pin(struct call *c, struct upstream_pin *pin, const char *bytes, size_t len, bool asking) {
    (void)asking;
    if (pin->count == PIN_CALLS_MAX)
        abort();
    pin->of = fences_write_of(c->request);
    pin->calls[pin->count].call = c;
    text_append(&pin->calls[pin->count++].bytes, bytes, len);
}

void upstream_abandon(struct upstream_request *r) {
    (void)r;
    abort();
}

bool upstream_error_passes(const struct upstream *u, const char *text, size_t len, bool keyed) {
    (void)u, (void)text, (void)len, (void)keyed;
    return false;
}

int64_t upstream_delay_ms(unsigned times) {
    return times < 3 ? 1 : -1;
}

void session_finish(struct session *s) {
    (void)s;
    abort();
}

/* ---- timers ---------------------------------------------------------------------------------------------- */

void fences_timer(struct world *w, struct ev_timer *timer, int64_t until_ms) {
    struct fences *f = w->fences;
    timer->active = until_ms > 0;
    for (size_t i = 0; i < TIMERS_MAX; i++) {
        struct fences_timer *t = &f->timers[i];
        if (until_ms ? !t->timer : t->timer == timer) {
            *t = (struct fences_timer){until_ms ? timer : NULL, f->now, until_ms};
            return;
        }
    }
    if (until_ms)
        abort();
}

static bool rings(struct world *w) {
    struct fences *f = w->fences;
    for (size_t i = 0; i < TIMERS_MAX; i++) {
        struct fences_timer *t = &f->timers[i];
        struct ev_timer *timer = t->timer;
        if (!timer || t->due_ms > w->redis.now_ms)
            continue;
        f->now = t->of;
        fences_session(w, f->now->conn);
        t->timer = NULL;
        timer->active = 0;
        ev_cb(timer)((struct ev_loop *)(void *)&f->thread, timer, EV_TIMER);
        return true;
    }
    return false;
}

/* ---- Redis ----------------------------------------------------------------------------------------------- */

/* What WATCH sees: of a lock in another slot its watermark. */
static struct seen look(struct world *w, int key) {
    struct seen s = {.exists = false};
    model_expire(&w->redis, key);
    if (!w->sc.elsewhere) {
        const struct model_guard *g = &w->redis.keys[key].guard;
        if (g->exists) {
            s.exists = true;
            s.expire_ms = g->expire_ms;
            s.fence = g->fence;
            strcpy(s.text, g->token);
        }
        return s;
    }
    const struct model_datum *d = &w->redis.marks[key];
    if (d->exists && !(d->expire_ms && d->expire_ms <= w->redis.now_ms)) {
        s.exists = true;
        s.expire_ms = d->expire_ms;
        strncpy(s.text, d->text, sizeof(s.text) - 1);
    }
    return s;
}

static bool has_changed(struct world *w, const struct upstream_pin *pin) {
    struct seen now = look(w, pin->of->key);
    return pin->watches && (now.exists != pin->seen.exists || now.expire_ms != pin->seen.expire_ms ||
                            now.fence != pin->seen.fence || strcmp(now.text, pin->seen.text) != 0);
}

/* EXEC. */
static const char *execute(struct world *w, struct upstream_pin *pin) {
    struct write *x = pin->of;
    bool changed = has_changed(w, pin), nothing = x->waits && world_chance(w, 60);
    const char *reply = !pin->queued ? "*0\r\n" : changed ? "*-1\r\n" : nothing ? "*1\r\n*-1\r\n" : "*1\r\n:1\r\n";
    if (pin->queued && !changed && !nothing) {
        fences_ran(w, x, false);
        totals.done++;
        totals.waited += x->in_vain > 0;
    }
    x->in_vain += pin->queued && !changed && nothing;
    pin->watches = pin->multi = pin->queued = false;
    return reply;
}

static bool is_word(const struct text *bytes, const char *word) {
    size_t n = strlen(word);
    const char *p = memchr(bytes->data, '$', bytes->len); /* *1 CR LF $5 CR LF MULTI */
    size_t left = bytes->len - (size_t)(p - bytes->data);
    p = memchr(p, '\n', left);
    return (size_t)(bytes->data + bytes->len - p) > n && memcmp(p + 1, word, n) == 0 && p[n + 1] == '\r';
}

static void run(struct world *w, struct upstream_pin *pin, const struct text *bytes, char out[ANSWER_MAX]) {
    struct write *x = pin->of;
    const char *reply = "+OK\r\n";
    if (is_word(bytes, "EXEC")) {
        reply = execute(w, pin);
    } else if (pin->multi) {
        pin->queued = true;
        reply = "+QUEUED\r\n";
    } else if (is_word(bytes, "MULTI")) {
        pin->multi = true;
    } else if (is_word(bytes, "WATCH")) {
        pin->seen = look(w, x->key);
        pin->watches = bytes->len > sizeof("*1\r\n$5\r\nWATCH\r\n"); /* a key */
    } else if (is_word(bytes, "EVALSHA")) {
        fences_run(w, x, bytes, out);
        if (out[0] == '-')
            fences_ran(w, x, true);
        return;
    } else {
        world_fail(w, "S7", "worker %d's command is sent without MULTI", x->worker);
    }
    strcpy(out, reply);
}

static void pin_goes_on(struct world *w, struct upstream_pin *pin) {
    struct fences *f = w->fences;
    struct sent first = pin->calls[0];
    char out[ANSWER_MAX];
    memmove(pin->calls, pin->calls + 1, --pin->count * sizeof(pin->calls[0]));
    pin->calls[pin->count] = (struct sent){.call = NULL};
    f->now = pin->of;
    fences_session(w, f->now->conn);
    bool lost = !pin->given && w->sc.loses && world_chance(w, 1);
    pin->cut = pin->cut || ((pin->given || lost) && world_chance(w, 50));
    if (!pin->cut) {
        model_expire(&w->redis, f->now->key);
        check_passed(w, f->now->key, BY_TIME);
        run(w, pin, &first.bytes, out);
    }
    struct call_end end = {.error = "UPSTREAM the node is lost", .why = UPSTREAM_UNKNOWN};
    if (!pin->given && !lost && !pin->cut)
        end = (struct call_end){.reply = out, .len = strlen(out)};
    else
        pin->cut = true;
    first.call->done(first.call, &end);
    text_clear(&first.bytes);
}

bool fences_pins_progress(struct world *w) {
    struct fences *f = w->fences;
    unsigned start = world_below(w, PINS_MAX);
    for (unsigned i = 0; i < PINS_MAX; i++) {
        struct upstream_pin *pin = &f->pins[(start + i) % PINS_MAX];
        if (pin->used && pin->given && pin->count == 0)
            pin_free(pin);
        if (!pin->count)
            continue;
        pin_goes_on(w, pin);
        return true;
    }
    return rings(w);
}

/* ---- what happens ------------------------------------------------------------------------------------------- */

void fences_unblock_somebody(struct world *w) {
    struct fences *f = w->fences;
    LIST_EACH(x, &f->writes, struct write, link) {
        if (!x->waits || !x->request.session || !world_chance(w, 30))
            continue;
        world_event(w, "worker %d is unblocked", x->worker);
        f->now = x;
        (void)fence_unblock(fences_session(w, x->conn), world_chance(w, 50));
        return;
    }
}

void fences_pins_close(struct world *w) {
    for (size_t i = 0; i < PINS_MAX; i++)
        pin_free(&w->fences->pins[i]);
}

void fences_pins_totals(uint64_t *done, uint64_t *waited) {
    *done = totals.done;
    *waited = totals.waited;
}
