/*
 * A take-over must not split the locks: the new process may have another upstream in its configuration, or the name of
 * the same upstream may have moved. Then two processes would give out one lock. So the process that leaves writes a
 * mark to its Redis, and the new one looks for the mark in its own before it accepts clients.
 *
 *      the process that leaves                        the new one
 *      SET mark ──> Redis                             held: no worker accepts clients
 *      the mark, in the environment ────────────────> GET mark ──┬─> the same: all workers open
 *                                                                └─> another, or none: it ends, and nothing has changed
 *
 * With `take-over switch` it does not end: the process that leaves closes its clients and ends, and the new one holds
 * all writes until the longest lease is over that the process before knew of.
 *
 * Run ids and replication ids change with a failover, and addresses differ for one server. The mark is data, as locks
 * are: where the mark is, the locks are.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parser/slot.h"
#include "proxy/base/handed_board.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/worker/private.h"

enum { MARK_SLOT = 0, MARK_MS = 2 * 60 * 1000 };

struct marking {
    struct request_owner owner; /* first */
    void (*done)(void *arg, const char *error);
    void *arg;
};

/* Begins a call in w->build with the key of the mark. It is named like a guard record, so no client is shown it; it
 * belongs to no lock. */
static void build_call(struct worker *w, const char *command, size_t argc) {
    char key[64];
    snprintf(key, sizeof(key), "lockkeeper:{%s}:lockkeeper-take-over", slot_tag(MARK_SLOT));
    build_start(w, argc);
    build_text(w, command);
    build_text(w, key);
}

static struct request *question_new(struct worker *w, void (*done)(struct call *c, const struct call_end *end)) {
    struct request *r = request_internal(w);
    r->call.done = done;
    r->call.up.repeatable = true;
    return r;
}

static void question_send(struct worker *w, struct request *r) {
    struct upstream_lane lane = {.protocol = 2};
    call_submit_lane(&r->call, MARK_SLOT, &lane, w->build.data, w->build.len);
}

void error_of(const struct call_end *end, char out[ERROR_MAX]) {
    size_t len;
    const char *error = call_end_error(end, &len);
    snprintf(out, ERROR_MAX, "%.*s", (int)len, error ? error : "");
}

bool call_end_is(const struct call_end *end, const char *text) {
    struct resp_item found;
    const char *at = end->reply;
    return !end->error && resp_item_read(&at, end->reply + end->len, &found) && found.type == '$' && found.str &&
           found.len == strlen(text) && memcmp(found.str, text, found.len) == 0;
}

/* ---- the process that leaves ------------------------------------------------------------------------ */

static void marked(struct call *c, const struct call_end *end) {
    struct marking m = *REQUEST_OWNER(c->request, struct marking);
    char error[ERROR_MAX];
    error_of(end, error);
    memory_free(REQUEST_OWNER(c->request, struct marking));
    request_disown(c->request);
    request_reply(c->request, "", 0, true);
    m.done(m.arg, error[0] ? error : NULL);
}

void lock_space_mark(struct worker *w, const char *mark, void (*done)(void *arg, const char *error), void *arg) {
    struct request *r = question_new(w, marked);
    struct marking *m = memory_zalloc(sizeof(*m));
    m->done = done;
    m->arg = arg;
    request_own(r, &m->owner, &request_owner_silent);
    build_call(w, "SET", 5);
    build_text(w, mark);
    build_text(w, "PX");
    build_number(w, MARK_MS);
    question_send(w, r);
}

bool lock_space_forbidden(const char *error) {
    return strncmp(error, "NOPERM", strlen("NOPERM")) == 0 || strncmp(error, "NOAUTH", strlen("NOAUTH")) == 0;
}

/* ---- the new process -------------------------------------------------------------------------------- */

static void __attribute__((noreturn)) end_here(const char *why) {
    log_warning("No take-over: %s. Two processes would give out the same locks. To move to another Redis, stop the old "
                "process and start a new one, or set take-over switch",
                why);
    _exit(1);
}

/* The process that leaves lets its clients go. This one waits for its end. */
static void begin_switch(struct worker *w) {
    log_warning(
        "The upstream is another Redis than that of the process that leaves, which lets its clients go (take-over "
        "switch)");
    atomic_store(&w->shared->space_switches, true);
    w->shared->let_go(w->shared->let_go_arg);
}

static void open_all(struct worker *w) {
    atomic_store(&w->shared->space_held, false);
    for (unsigned i = 0; i < w->shared->threads; i++)
        ev_async_send(w->shared->workers[i]->loop, &w->shared->workers[i]->wake);
}

static void looked(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    char error[ERROR_MAX], why[ERROR_MAX + 64];
    error_of(end, error);
    thread_of(w)->space_asking = false;
    bool same = call_end_is(end, w->shared->space_mark);
    request_reply(c->request, "", 0, true);
    if (same) {
        open_all(w);
    } else if (!error[0] && w->config->take_over_switch && w->shared->before) {
        begin_switch(w);
    } else if (!error[0]) {
        end_here("the upstream is another Redis than that of the process that leaves");
    } else if (!end->error) {
        snprintf(why, sizeof(why), "whether the upstream is the same Redis can't be asked: %s", error);
        end_here(why);
    }
}

void lock_space_look(struct worker *w) {
    if (thread_of(w)->space_asking || w->stopping || !atomic_load(&w->shared->space_held))
        return;
    if (atomic_load(&w->shared->space_switches)) {
        int64_t left_ms;
        if (!handed_board_gone(w->shared->before, &left_ms))
            return;
        log_notice(
            "The process before has ended. Writes wait for %lld ms: so long the longest lease lasts at the Redis "
            "before",
            (long long)left_ms);
        open_all(w);
        return;
    }
    thread_of(w)->space_asking = true;
    build_call(w, "GET", 2);
    question_send(w, question_new(w, looked));
}
