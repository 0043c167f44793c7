/*
 * What a client wants its connection to be at the node: CLIENT TRACKING, CACHING and NO-TOUCH. From then on it has a
 * lane of its own, whose connections begin with those commands; its requests go their normal way over it, and nobody
 * else's do.
 *
 *      CLIENT TRACKING ON ──> own lane ──> all masters                       GET k ──> own lane ──> the key's master
 *                                                           >2 invalidate k  <── between two replies ──┘
 *
 * A connection that is lost takes with it what the node knew of the client's cache: the client is told that all of it
 * may be stale. Messages for a client of RESP2 would go to another connection (REDIRECT), which is not served.
 */
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/client.h"
#include "proxy/session/pinned.h"

struct tracking {
    struct session *session; /* NULL until the nodes have agreed */
    uint32_t own;
    bool on, bcast, optin, optout;
    bool no_touch;
    bool reopen; /* BCAST: a connection is missing */
    uint64_t epoch;
    enum caching caching; /* for the next command */
    bool caching_new;
    struct text held; /* messages that wait for the end of a reply */
};

/* A change that the nodes are asked about. */
struct wish {
    struct tracking *fresh; /* the session's, once they agree; NULL: it has one */
    bool on, bcast, optin, optout, no_touch;
    struct text command;
    struct text error; /* the first one */
};

/* ---- messages ------------------------------------------------------------------------------------- */

void tracking_release(struct session *s) {
    struct tracking *t = s->tracking;
    if (t->held.len == 0 || session_amid_reply(s) || s->replay)
        return;
    iobuf_append(&s->out, t->held.data, t->held.len);
    s->held_bytes -= t->held.len;
    session_mark_dirty(s);
    text_clear(&t->held);
}

/* Appends the keys of >2 invalidate *n that clients may see. False: there are none, or it is no such message. */
static bool keys_shown(const char *data, size_t len, struct text *out) {
    const char *p = data, *end = data + len;
    struct resp_item push, word, keys, key;
    int64_t shown = 0;
    struct text list = {0};
    if (!resp_item_read(&p, end, &push) || !resp_item_read(&p, end, &word) || !resp_item_read(&p, end, &keys))
        return false;
    if (keys.null) {
        text_append(out, data, len);
        return true;
    }
    for (int64_t i = 0; i < keys.num; i++) {
        const char *start = p;
        if (!resp_item_read(&p, end, &key))
            break;
        if (lock_guard_is(key.str, key.len))
            continue;
        text_append(&list, start, (size_t)(p - start));
        shown++;
    }
    if (shown > 0) {
        text_printf(out, ">2\r\n$10\r\ninvalidate\r\n*%lld\r\n", (long long)shown);
        text_append(out, list.data, list.len);
    }
    text_clear(&list);
    return shown > 0;
}

static void tracking_push(void *arg, const char *data, size_t len) {
    struct tracking *t = arg;
    struct session *s = t->session;
    size_t before = t->held.len;
    if (!s || s->lane.protocol != 3) /* Redis has nowhere to send it either */
        return;
    if (!keys_shown(data, len, &t->held))
        return;
    s->held_bytes += t->held.len - before;
    session_mark_dirty(s);
    tracking_release(s);
}

/* All that the client has cached may be stale. */
static void tracking_all_stale(struct tracking *t) {
    static const char all[] = ">2\r\n$10\r\ninvalidate\r\n_\r\n";
    if (t->on)
        tracking_push(t, all, sizeof(all) - 1);
}

static void tracking_lost(void *arg) {
    struct tracking *t = arg;
    t->reopen = true;
    tracking_all_stale(t);
}

/* ---- life ------------------------------------------------------------------------------------------ */

static struct tracking *tracking_new(struct worker *w) {
    struct tracking *t = memory_zalloc(sizeof(*t));
    struct upstream_own_events events = {.arg = t, .push = tracking_push, .lost = tracking_lost};
    t->own = upstream_own_new(w->upstream, &events);
    t->epoch = upstream_epoch(w->upstream);
    return t;
}

static void tracking_free(struct worker *w, struct tracking *t) {
    upstream_own_free(w->upstream, t->own);
    text_clear(&t->held);
    memory_free(t);
}

void tracking_drop(struct session *s) {
    struct tracking *t = s->tracking;
    if (!t)
        return;
    s->held_bytes -= t->held.len;
    s->tracking = NULL;
    s->lane.own = 0;
    counter_sub(&s->worker->counters.clients_tracking, 1);
    tracking_free(s->worker, t);
}

static void tracking_take(struct session *s, struct tracking *t) {
    t->session = s;
    s->tracking = t;
    s->lane.own = t->own;
    counter_add(&s->worker->counters.clients_tracking, 1);
}

struct tracking_state tracking_state(const struct session *s) {
    const struct tracking *t = s->tracking;
    return t ? (struct tracking_state){t->on, t->on && t->bcast} : (struct tracking_state){false, false};
}

enum caching tracking_next(const struct session *s) {
    return s->tracking ? s->tracking->caching : CACHING_NONE;
}

void tracking_next_set(struct session *s, enum caching caching) {
    if (s->tracking && s->tracking->on)
        s->tracking->caching = caching;
}

/* ---- asking the nodes ------------------------------------------------------------------------------ */

static void wish_granted(struct session *s, struct wish *wish) {
    if (wish->fresh) {
        tracking_take(s, wish->fresh);
        wish->fresh = NULL;
    } else {
        upstream_own_begin(s->worker->upstream, s->lane.own, wish->command.data, wish->command.len);
    }
    struct tracking *t = s->tracking;
    t->no_touch = t->no_touch || wish->no_touch;
    if (!wish->on)
        return;
    t->on = true;
    t->bcast = wish->bcast;
    t->optin = wish->optin;
    t->optout = wish->optout;
}

static void wish_finish(struct request *r) {
    struct wish *wish = r->state;
    r->state = NULL;
    bool granted = wish->error.len == 0;
    if (granted && r->session)
        wish_granted(r->session, wish);
    if (wish->fresh)
        tracking_free(r->worker, wish->fresh);
    if (granted)
        request_reply(r, "+OK\r\n", 5, true);
    else
        request_error(r, wish->error.data);
    text_clear(&wish->command);
    text_clear(&wish->error);
    memory_free(wish);
}

static void wish_part(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct wish *wish = r->state;
    bool refused = !end->error && end->reply[0] == '-' && strncmp(end->reply, "-NOPERM", 7) != 0;
    if (wish->error.len == 0 && end->error)
        text_append(&wish->error, end->error, strlen(end->error));
    else if (wish->error.len == 0 && (refused || (!end->error && end->reply[0] == '-' && !wish->fresh)))
        text_append(&wish->error, end->reply + 1, end->len - 3);
    if (--r->parts_left == 0)
        wish_finish(r);
}

/* The first such command makes the lane, whose connections begin with it; later ones go over it as they are. */
static void ask_nodes(struct session *s, const struct command *c, struct wish *wish, const struct resp_request *r,
                      const char *bytes) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    struct upstream *u = s->worker->upstream;
    struct upstream_lane lane = s->lane;
    struct request *request = request_new(s, c);
    request->state = wish;
    request_barrier(request);
    text_append(&wish->command, bytes, r->len);
    if (!s->tracking) {
        wish->fresh = tracking_new(s->worker);
        lane.own = wish->fresh->own;
        upstream_own_begin(u, lane.own, bytes, r->len);
    }
    bool fresh = wish->fresh != NULL;
    size_t masters = upstream_master_count(u);
    request->parts_left = 1; /* held here until all are asked */
    for (size_t i = 0; i < (masters > 0 ? masters : 1); i++)
        call_submit_master_lane(call_new(request, wish_part), i, &lane, fresh ? ping : bytes,
                                fresh ? sizeof(ping) - 1 : r->len);
    if (--request->parts_left == 0)
        wish_finish(request);
}

static void reopened(struct call *c, const struct call_end *end) {
    struct session *s = c->request->session;
    if (s && s->tracking && end->error)
        s->tracking->reopen = true;
    request_reply(c->request, "", 0, true);
}

/* BCAST has the nodes speak of keys that nobody has asked them for: all masters have to know of it, at any time. */
void tracking_tick(struct session *s) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    struct tracking *t = s->tracking;
    struct upstream *u = s->worker->upstream;
    if (!t->on || !t->bcast || s->in_flight > 0 || (!t->reopen && t->epoch == upstream_epoch(u)))
        return;
    t->reopen = false;
    t->epoch = upstream_epoch(u);
    for (size_t i = 0; i < upstream_master_count(u); i++) {
        struct request *request = request_new(s, NULL);
        request->call.done = reopened;
        call_submit_master(&request->call, i, ping, sizeof(ping) - 1);
    }
}

/* ---- the commands ----------------------------------------------------------------------------------- */

static void tracking_off(struct session *s, const struct command *c) {
    static const char no_touch[] = "*3\r\n$6\r\nCLIENT\r\n$8\r\nNO-TOUCH\r\n$2\r\nON\r\n";
    bool keeps = s->tracking->no_touch;
    tracking_drop(s);
    if (keeps) {
        struct tracking *t = tracking_new(s->worker);
        t->no_touch = true;
        upstream_own_begin(s->worker->upstream, t->own, no_touch, sizeof(no_touch) - 1);
        tracking_take(s, t);
    }
    dispatch_local(s, c, "+OK\r\n", 5);
}

static bool tracking(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    if (r->argc < 3)
        return false;
    if (request_arg_is(r, bytes, 2, "off")) {
        if (!s->tracking || !s->tracking->on)
            return false;
        tracking_off(s, c);
        return true;
    }
    if (!request_arg_is(r, bytes, 2, "on"))
        return false;
    struct wish wish = {.on = true};
    for (size_t i = 3; i < r->argc; i++) {
        if (request_arg_is(r, bytes, i, "redirect")) {
            dispatch_local_error(s, c, "ERR CLIENT TRACKING with REDIRECT is not supported by lockkeeper; use RESP3");
            return true;
        }
        wish.bcast |= request_arg_is(r, bytes, i, "bcast");
        wish.optin |= request_arg_is(r, bytes, i, "optin");
        wish.optout |= request_arg_is(r, bytes, i, "optout");
        i += request_arg_is(r, bytes, i, "prefix");
    }
    struct wish *asked = memory_alloc(sizeof(*asked));
    *asked = wish;
    ask_nodes(s, c, asked, r, bytes);
    return true;
}

static bool no_touch(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    bool on = r->argc == 3 && request_arg_is(r, bytes, 2, "on");
    if (r->argc != 3 || (!on && !s->tracking))
        return false; /* harmless on a shared connection */
    struct wish *wish = memory_zalloc(sizeof(*wish));
    wish->no_touch = on;
    ask_nodes(s, c, wish, r, bytes);
    return true;
}

static bool caching(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    struct tracking *t = s->tracking;
    bool yes = r->argc == 3 && request_arg_is(r, bytes, 2, "yes"),
         no = r->argc == 3 && request_arg_is(r, bytes, 2, "no");
    if (!t || !t->on || !((yes && t->optin) || (no && t->optout)))
        return false;
    t->caching = yes ? CACHING_YES : CACHING_NO;
    t->caching_new = true;
    dispatch_local(s, c, "+OK\r\n", 5);
    return true;
}

enum dispatch_result tracking_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes) {
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* another connection would overtake them */
    bool done = false;
    if (request_arg_is(r, bytes, 1, "tracking"))
        done = tracking(s, c, r, bytes);
    else if (request_arg_is(r, bytes, 1, "no-touch"))
        done = no_touch(s, c, r, bytes);
    else
        done = caching(s, c, r, bytes);
    if (!done)
        dispatch_forward(s, c, r, bytes, -1);
    return DISPATCHED;
}

/* ---- CACHING, in front of the next command ------------------------------------------------------------ */

static void swallow(struct call *c, const struct call_end *end) {
    request_reply(c->request, "", 0, true);
}

struct call *tracking_caching(struct session *s, struct call *c, const char **bytes, size_t *len) {
    static const char yes[] = "*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$3\r\nYES\r\n";
    static const char no[] = "*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$2\r\nNO\r\n";
    struct tracking *t = s->tracking;
    if (t->caching == CACHING_NONE)
        return NULL;
    *bytes = t->caching == CACHING_YES ? yes : no;
    *len = strlen(*bytes);
    struct request *before = request_internal(s->worker);
    before->call.done = swallow;
    before->call.up.affinity = c->up.affinity;
    return &before->call;
}

void tracking_request_ends(struct session *s) {
    struct tracking *t = s->tracking;
    if (!t->caching_new)
        t->caching = CACHING_NONE;
    t->caching_new = false;
}

void tracking_exec_ends(struct session *s, bool stale) {
    struct tracking *t = s->tracking;
    t->caching = CACHING_NONE;
    t->caching_new = false;
    if (stale)
        tracking_all_stale(t);
    tracking_release(s);
}
