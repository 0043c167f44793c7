/*
 * PROXY WATCH: sends the proxy's incidents to a client as they happen, in the form of MONITOR's lines: simple strings,
 * pushes in RESP3.
 *
 *      any thread ── wake ──> each thread with watchers ── slices ──> watcher, a few lines in a turn ──> client
 *
 * A client that does not read gets no more than STALLED bytes. Further incidents wait in the application's store, which
 * reports the number of incidents that it has dropped meanwhile.
 */
#include <stdatomic.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/push/push.h"

enum { STALLED = 64 * 1024 };

static const double LOOK_AGAIN_SECONDS = 0.02;

struct watch {
    struct list_node link; /* in the worker's `idle` or `due` */
    struct session *session;
    struct incident_watch *lines; /* the application's watch */
    struct text words;            /* the arguments as given, to recognise a repetition */
    bool stalled;                 /* idle until the client has read its output */
};

/* A worker's watchers. */
struct worker_watches {
    struct worker *worker;
    struct list_node idle, due;
    struct ev_async wake;
    struct ev_timer again;     /* active while a client must read first */
    struct incidents_ear *ear; /* NULL: there are no watches */
    bool sliced;
};

/* ---- lines ------------------------------------------------------------------------------------------- */

static void put_line(void *arg, const char *line, size_t len) {
    struct session *s = arg;
    struct text out = {0};
    if (s->lane.protocol == 3)
        text_printf(&out, ">2\r\n$8\r\nincident\r\n$%zu\r\n", len);
    else
        text_append(&out, "+", 1);
    text_append(&out, line, len);
    text_append(&out, "\r\n", 2);
    session_tell(s, out.data, out.len);
    text_clear(&out);
}

static bool is_stalled(const struct session *s) {
    return s->out.unsent + s->held_bytes > STALLED;
}

static void feed(struct worker_watches *all);

static void look_later(struct worker_watches *all) {
    if (ev_is_active(&all->again))
        return;
    ev_timer_set(&all->again, LOOK_AGAIN_SECONDS, 0.);
    ev_timer_start(all->worker->loop, &all->again);
}

/* Writes some lines for the watch that has waited longest. Each step is a task, so that others come in between. */
static bool feed_step(struct worker *w, struct worker_slices *slices) {
    struct worker_watches *all = w->watches;
    struct watch *watch = all ? LIST_FIRST(&all->due, struct watch, link) : NULL;
    if (all)
        all->sliced = false;
    if (!watch)
        return false;
    struct session *s = watch->session;
    invariant(push_of(s)->watch == watch, "a watch belongs to another session");
    watch->stalled = is_stalled(s);
    bool may = !watch->stalled && s->state == SESSION_OPEN;
    bool more = may && w->shared->watch->lines(watch->lines, put_line, s);
    list_remove(&watch->link);
    list_append(more ? &all->due : &all->idle, &watch->link);
    if (watch->stalled)
        look_later(all);
    feed(all);
    return false;
}

/* Starts writing for the due watches, from the next turn on. */
static void feed(struct worker_watches *all) {
    if (all->sliced || list_empty(&all->due))
        return;
    struct worker_slices *slices = memory_zalloc(sizeof(*slices));
    slices->step = feed_step;
    all->sliced = true;
    worker_add_slices(all->worker, slices);
}

/* Has idle watches written: those whose clients read, or (stalled) those whose clients have read meanwhile. */
static void feed_idle(struct worker_watches *all, bool stalled) {
    LIST_EACH_SAFE(watch, &all->idle, struct watch, link) {
        if (watch->stalled != stalled)
            continue;
        if (stalled && is_stalled(watch->session)) {
            look_later(all);
            continue;
        }
        watch->stalled = false;
        list_remove(&watch->link);
        list_append(&all->due, &watch->link);
    }
    feed(all);
}

static void on_wake(struct ev_loop *loop, struct ev_async *wake, int events) {
    feed_idle(wake->data, false);
}

static void on_again(struct ev_loop *loop, struct ev_timer *again, int events) {
    feed_idle(again->data, true);
}

static void wake(void *arg) {
    struct worker_watches *all = arg;
    ev_async_send(all->worker->loop, &all->wake);
}

/* ---- life -------------------------------------------------------------------------------------------- */

static struct worker_watches *watches_of(struct worker *w) {
    if (!w->watches) {
        w->watches = memory_zalloc(sizeof(*w->watches));
        w->watches->worker = w;
        list_init(&w->watches->idle);
        list_init(&w->watches->due);
        ev_async_init(&w->watches->wake, on_wake);
        ev_init(&w->watches->again, on_again);
        w->watches->wake.data = w->watches->again.data = w->watches;
    }
    struct worker_watches *all = w->watches;
    if (!all->ear) {
        ev_async_start(w->loop, &all->wake);
        all->ear = w->shared->watch->listen(w->shared->watch->incidents, wake, all);
    }
    return all;
}

static void watches_check(struct worker *w) {
    struct worker_watches *all = w->watches;
    invariant(all, "a worker without watches stops listening");
    if (!all->ear || !list_empty(&all->idle) || !list_empty(&all->due))
        return;
    w->shared->watch->deaf(w->shared->watch->incidents, all->ear);
    all->ear = NULL;
    ev_async_stop(w->loop, &all->wake);
    ev_timer_stop(w->loop, &all->again);
}

static void watch_worker_closes(struct worker *w) {
    if (w->watches)
        watches_check(w);
    memory_free(w->watches);
    w->watches = NULL;
}

void watch_drop(struct session *s) {
    struct watch *watch = push_of(s)->watch;
    if (!watch)
        return;
    push_of(s)->watch = NULL;
    if (!push_of(s)->pubsub)
        s->hears &= (uint8_t)~HEARS_REPLY;
    list_remove(&watch->link);
    s->worker->shared->watch->end(watch->lines);
    text_clear(&watch->words);
    memory_free(watch);
    watches_check(s->worker);
}

/* ---- PROXY WATCH --------------------------------------------------------------------------------------- */

enum dispatch_result watch_dispatch(struct session *s, const struct request_class *k) {
    const struct watch_source *source = s->worker->shared->watch;
    const char *words[PROXY_WORDS_MAX];
    size_t lens[PROXY_WORDS_MAX];
    struct text all = {0}, error = {0};
    for (size_t i = 2; i < k->request->argc; i++) {
        words[i - 2] = class_arg(k, i, &lens[i - 2]);
        if (lens[i - 2] > PROXY_WORD_MAX) {
            session_refuse(s, k->command, "ERR the pattern is longer than %d bytes", PROXY_WORD_MAX);
            text_clear(&all);
            return DISPATCHED;
        }
        text_printf(&all, "%zu ", lens[i - 2]);
        text_append(&all, words[i - 2], lens[i - 2]);
    }
    bool repeated = push_of(s)->watch && push_of(s)->watch->words.len == all.len &&
                    (all.len == 0 || memcmp(push_of(s)->watch->words.data, all.data, all.len) == 0);
    if (repeated) { /* no reply, as for a repeated MONITOR: so redis-cli -r -1 shows all lines */
        text_clear(&all);
        return DISPATCHED;
    }
    struct worker_watches *watches = watches_of(s->worker);
    struct incident_watch *lines =
        source->begin(source->incidents, words, lens, k->request->argc - 2, source->kinds, &error);
    if (!lines) {
        session_refuse(s, k->command, "%s", error.data);
        text_clear(&error);
        text_clear(&all);
        watches_check(s->worker);
        return DISPATCHED;
    }
    struct watch *watch = memory_alloc(sizeof(*watch));
    *watch = (struct watch){.session = s, .lines = lines, .words = all};
    list_append(&watches->idle, &watch->link);
    watch_drop(s);
    push_of(s)->watch = watch;
    s->hears |= HEARS_REPLY;
    return session_answer(s, k->command, "+OK\r\n", 5);
}

const struct session_room watch_room = {.worker_closes = watch_worker_closes, .closes = watch_drop};
