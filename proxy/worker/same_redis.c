/*
 * Whether two places are one Redis: for a process that takes over, and for the host name of an upstream. Two Redis
 * servers would give out one lock twice.
 *
 * Take-over. The new process may have another upstream in its configuration, or the upstream's name may have moved. So
 * the process that leaves writes a mark to its Redis, and the new one looks for it before it accepts clients. The mark
 * is data, as locks are; run ids and replication ids change with a failover, and addresses differ for one server.
 *
 *      the process that leaves                        the new one
 *      SET mark ──> Redis                             held: no worker accepts clients
 *      the mark, in the environment ────────────────> GET mark ──┬─> the same: all workers open
 *                                                                └─> another, or none: it ends, and nothing has changed
 *
 * With `take-over switch` it does not end: the process that leaves closes its clients and ends, and the new one holds
 * all writes until the longest lease is over that the process before knew of.
 *
 * The host name of a standalone is looked up every dns-refresh, at a reload, and soon after the node has failed:
 *
 *      the name leads elsewhere ──> has the other Redis what this proxy has written?   (the mark)
 *                                   does it take a write?
 *                                   is the write seen at the old address too?          one server, or its replica: go
 *                                   does the old Redis take writes?                    no, it is a replica: go
 *                                                          │                           no, it is gone: go
 *                                                          └─> yes: stay there, and warn
 *
 * All threads go together: two threads at two servers would give out one lock twice. To a Redis without the mark, which
 * has other data, they go only after the old Redis was out of reach three times in a row.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/handed_board.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/mutex.h"
#include "proxy/net/resolve.h"
#include "proxy/session/core/session_worker.h"
#include "proxy/worker/private.h"

enum { MARK_SLOT = 0, ERROR_MAX = 200, AWAY_LEAST = 3 };
enum { SPACE_MARK_MS = 2 * 60 * 1000, HOST_MARK_MS = 2 * 60 * 60 * 1000, NEW_MS = 2 * 60 * 1000 };

/* Begins a command on a key named like a guard record, so that no client is shown it; it belongs to no lock. The name
 * is of `what`, `whose` mark it is (a process's id, or ""), and a suffix. */
static void build_mark(struct worker *w, const char *command, size_t argc, const char *what, const char *whose,
                       const char *suffix) {
    char key[128];
    snprintf(key, sizeof(key), "lockkeeper:{%s}:lockkeeper-%s%s%s", slot_tag(MARK_SLOT), what, whose, suffix);
    build_start(w, argc);
    build_text(w, command);
    build_text(w, key);
}

/* Begins to set a mark of this process to a value, for a time. */
static void build_set(struct worker *w, const char *what, const char *suffix, const char *value, int64_t ms) {
    build_mark(w, "SET", 5, what, w->shared->process_id, suffix);
    build_text(w, value);
    build_text(w, "PX");
    build_number(w, ms);
}

/* Sends what is in w->build. `node` NULL: to the node of the mark, again if the connection is lost. */
static void ask_node(struct worker *w, struct upstream_node *node,
                     void (*done)(struct call *c, const struct call_end *end)) {
    static const struct upstream_lane lane = {.protocol = 2};
    struct request *r = request_internal(w, done);
    r->call.up.repeatable = !node;
    if (node)
        call_submit_node(&r->call, node, &lane, w->build.data, w->build.len);
    else
        call_submit_lane(&r->call, MARK_SLOT, &lane, w->build.data, w->build.len);
}

/* The error that a call ended with; "": none. */
static void error_of(const struct call_end *end, char out[ERROR_MAX]) {
    size_t len;
    const char *error = call_end_error(end, &len);
    snprintf(out, ERROR_MAX, "%.*s", (int)len, error ? error : "");
}

/* Whether a call ended with this text. */
static bool call_end_is(const struct call_end *end, const char *text) {
    struct resp_item found;
    const char *at = end->reply;
    return !end->error && resp_item_read(&at, end->reply + end->len, &found) && found.type == '$' && found.str &&
           found.len == strlen(text) && memcmp(found.str, text, found.len) == 0;
}

static void marked(struct call *c, const struct call_end *end) {
    struct worker_thread *t = thread_of(c->request->worker);
    char error[ERROR_MAX];
    error_of(end, error);
    request_reply(c->request, "", 0, true);
    t->marked(t->marked_arg, error[0] ? error : NULL);
}

void lock_space_mark(struct worker *w, const char *mark, void (*done)(void *arg, const char *error), void *arg) {
    thread_of(w)->marked = done;
    thread_of(w)->marked_arg = arg;
    build_mark(w, "SET", 5, "take-over", "", "");
    build_text(w, mark);
    build_text(w, "PX");
    build_number(w, SPACE_MARK_MS);
    ask_node(w, NULL, marked);
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
        log_warning(
            "The upstream is another Redis than that of the process that leaves, which lets its clients go (take-over "
            "switch)");
        atomic_store(&w->shared->space_switches, true);
        w->shared->let_go(w->shared->let_go_arg); /* this process waits for the end of the other */
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
    build_mark(w, "GET", 2, "take-over", "", "");
    ask_node(w, NULL, looked);
}

/* ---- the host name ------------------------------------------------------------------------------------ */

enum step { STEP_MARK, STEP_WRITE, STEP_SAME, STEP_OLD };

struct host_watch {
    struct worker *w;
    struct broadcast broadcast; /* all threads go to `to` */
    struct resolve *lookup;
    bool busy;         /* a round is under way: a lookup, questions, or the broadcast */
    int64_t looked_ms; /* when the last round began */
    int64_t marked_ms; /* when the mark was last written; 0: not yet */
    enum doubt doubt;  /* what the round began with */
    struct host_addresses to;
    char at[RESOLVE_NUMBER_MAX]; /* the first of them */
    enum step step;
    char number[24];   /* what the round writes to the other Redis */
    bool same, silent; /* the other Redis has the mark; its user may not ask for it */
    unsigned away;     /* how many rounds in a row found the old Redis out of reach */
};

/* ---- from other threads ------------------------------------------------------------------------------- */

void host_watch_doubt(struct worker *w, enum doubt doubt) {
    atomic_int *now = &w->shared->host_doubt;
    int was = atomic_load(now);
    while (was < (int)doubt && !atomic_compare_exchange_weak(now, &was, (int)doubt))
        ;
}

void host_watch_trouble(struct worker *w, char *out, size_t size) {
    struct worker_thread *first = thread_of(w->shared->workers[0]);
    MUTEX_GUARD(&first->board.mutex);
    snprintf(out, size, "%s", first->board.host_trouble);
}

/* ---- the end of a round ------------------------------------------------------------------------------- */

/* Notes why the upstream is not where its name leads, and logs it if it is new. "": it is there. */
static void tell(struct host_watch *h, const char *why) {
    struct node_board *board = &thread_of(h->w)->board;
    pthread_mutex_lock(&board->mutex);
    bool known = strcmp(board->host_trouble, why) == 0;
    if (!known)
        snprintf(board->host_trouble, sizeof(board->host_trouble), "%s", why);
    pthread_mutex_unlock(&board->mutex);
    if (!known && why[0])
        log_warning("The upstream's %s", why);
}

static void stay(struct host_watch *h, const char *why) {
    char text[HOST_TROUBLE_MAX];
    int port;
    const char *name = upstream_host_name(h->w->upstream, &port);
    snprintf(text, sizeof(text), "name %.100s leads to %s now, and the proxy stays where it is: %s", name ? name : "",
             h->at, why);
    tell(h, text);
    h->busy = false;
}

static void go_visit(struct broadcast *t, struct worker *w) {
    upstream_host_move(w->upstream, &LIST_ENTRY(t, struct host_watch, broadcast)->to);
}

static void all_are_there(struct broadcast *t) {
    LIST_ENTRY(t, struct host_watch, broadcast)->busy = false;
}

static void go(struct host_watch *h) {
    broadcast_start(&h->broadcast, h->w, go_visit, all_are_there);
}

static void move(struct host_watch *h, const char *why) {
    log_notice("The upstream's name leads to %s now, and the proxy goes there: %s", h->at, why);
    tell(h, "");
    h->away = 0;
    h->marked_ms = 0;
    go(h);
}

/* ---- questions ---------------------------------------------------------------------------------------- */

static void written(struct call *c, const struct call_end *end) {
    size_t len;
    if (!call_end_error(end, &len))
        thread_of(c->request->worker)->hosts->marked_ms = worker_steady_ms(c->request->worker);
    request_reply(c->request, "", 0, true);
}

static void answered(struct call *c, const struct call_end *end);

static void ask(struct host_watch *h, enum step step) {
    struct worker *w = h->w;
    struct upstream_node *old = upstream_master(w->upstream, 0), *other = upstream_host_node(w->upstream, &h->to);
    h->step = step;
    upstream_try_now(w->upstream);
    if (step == STEP_OLD)
        build_lock_question(w, MARK_SLOT);
    else if (step == STEP_WRITE)
        build_set(w, "host-", "-new", h->number, NEW_MS);
    else
        build_mark(w, "GET", 2, "host-", w->shared->process_id, step == STEP_SAME ? "-new" : "");
    ask_node(w, step < STEP_SAME ? other : old, answered);
}

static void answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct host_watch *h = thread_of(w)->hosts;
    char error[ERROR_MAX], why[ERROR_MAX + 32];
    error_of(end, error);
    snprintf(why, sizeof(why), "that Redis says: %s", error);
    bool away = end->error && end->why != UPSTREAM_REFUSED;
    bool found = call_end_is(end, h->step == STEP_MARK ? w->shared->process_id : h->number);
    request_reply(c->request, "", 0, true);
    h->silent |= h->step < STEP_SAME && lock_space_forbidden(error);
    if (w->over || w->stopping) {
        h->busy = false;
    } else if (h->step < STEP_SAME && error[0] && !h->silent) {
        stay(h, why);
    } else if (h->step == STEP_MARK) {
        h->same = found;
        ask(h, STEP_WRITE);
    } else if (h->step == STEP_WRITE && h->doubt == DOUBT_READONLY && !error[0]) {
        move(h, "the Redis before it is a replica");
    } else if (h->step == STEP_WRITE) {
        ask(h, h->silent ? STEP_OLD : STEP_SAME);
    } else if (away && !h->same && ++h->away < AWAY_LEAST) {
        stay(h, "that Redis has other data, and the one before it may come back");
    } else if (away) {
        if (!h->same)
            log_warning("The upstream's Redis is out of reach, and the one at %s has other data: leases are lost",
                        h->at);
        move(h, "the Redis before it is out of reach");
    } else if (h->step == STEP_SAME && found) {
        move(h, "it is the same Redis, or its master");
    } else if (h->step == STEP_SAME) {
        ask(h, STEP_OLD);
    } else if (strncmp(error, "READONLY ", strlen("READONLY ")) == 0) {
        move(h, "the Redis before it is a replica");
    } else {
        h->away = 0;
        stay(h, h->silent ? "whether that is the same Redis cannot be asked, and the one before it still answers"
                : h->same ? "that Redis takes writes, and the one before it still does too"
                          : "that Redis has other data, and the one before it still answers");
    }
}

/* ---- looking ------------------------------------------------------------------------------------------ */

static void on_found(void *arg, const struct addrinfo *list, const char *error) {
    struct host_watch *h = arg;
    struct worker *w = h->w;
    struct host_addresses now, found;
    int port;
    h->lookup = NULL;
    host_take(&found, list);
    upstream_host_now(w->upstream, &now);
    h->busy = !w->stopping && list && now.count > 0 && upstream_host_name(w->upstream, &port);
    if (!h->busy)
        return;
    bool stays = host_has(&found, &now.at[0]); /* the address in use is still among the name's */
    h->to = found;
    if (stays)
        h->to.count = 0;
    for (unsigned i = 0; stays && h->doubt >= DOUBT_FAILED && i < found.count; i++) {
        if (!host_has(&now, &found.at[i])) { /* after a failure others that are new count too */
            h->to.at[h->to.count] = found.at[i];
            h->to.lens[h->to.count++] = found.lens[i];
        }
    }
    if (stays && h->to.count == 0) {
        tell(h, "");
        h->away = 0;
        h->to = now;
        if (h->marked_ms == 0 || worker_steady_ms(w) - h->marked_ms >= HOST_MARK_MS / 2) {
            build_set(w, "host-", "", w->shared->process_id, HOST_MARK_MS);
            ask_node(w, upstream_master(w->upstream, 0), written);
        }
        go(h); /* threads that began at another address */
        return;
    }
    resolve_number((const struct sockaddr *)(const void *)&h->to.at[0], h->to.lens[0], h->at);
    snprintf(h->number, sizeof(h->number), "%lld", (long long)worker_steady_ms(w));
    h->same = h->silent = false;
    ask(h, STEP_MARK);
}

void host_watch_tick(struct worker *w) {
    int port;
    const char *name = w->stopping ? NULL : upstream_host_name(w->upstream, &port);
    if (!name)
        return;
    if (!thread_of(w)->hosts) {
        thread_of(w)->hosts = memory_zalloc(sizeof(struct host_watch));
        thread_of(w)->hosts->w = w;
    }
    struct host_watch *h = thread_of(w)->hosts;
    int64_t now_ms = worker_steady_ms(w);
    bool due = h->looked_ms == 0 || now_ms - h->looked_ms >= w->config->dns_refresh_ms;
    if (h->busy || (!due && atomic_load(&w->shared->host_doubt) == DOUBT_NONE))
        return;
    h->doubt = (enum doubt)atomic_exchange(&w->shared->host_doubt, DOUBT_NONE);
    h->busy = true;
    h->looked_ms = now_ms;
    h->lookup = resolve_start(w->loop, name, port, on_found, h);
}

void host_watch_clear(struct worker *w) {
    struct host_watch *h = thread_of(w)->hosts;
    if (h)
        resolve_cancel(h->lookup);
    memory_free(h);
}
