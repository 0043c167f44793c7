/*
 * Writes of fenced data that can't go inside of a script: the application's own scripts, what answers things that a
 * script cannot say, and what has more words than a script takes.
 *
 *      EVAL ... 1 stock:1 ──> WATCH guards, fence.lua about PING, MULTI ──┬─ FENCED: the connection closes
 *                                                                         └─ PONG ──> EVAL ... 1 stock:1, EXEC
 *      client's reply <── the one element of EXEC's array, or nil: a guard record has changed, and all begins anew
 *
 * Of locks elsewhere (elsewhere.c) the watermarks are watched; they are raised by fence.lua before that, since what the
 * connection itself changes counts, too.
 *
 * A connection of the session's own is what these go over; its later requests wait. Nothing is sent behind a MULTI that
 * has not been answered: what a refused one does not queue would be executed. What is a question, and what its answer
 * means, is fence.c's.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/locks/private.h"

enum { HOPS_MAX = 5, TRIES_MAX = 20, ERROR_MAX = 512 };

#define CHANGES  "ERR the locks of fenced data change too often; nothing was written: send it once more"
#define MOVES    "TRYAGAIN The slot of fenced data is moving to another node"
#define NO_SENSE "UPSTREAM the node's answer to a write of fenced data makes no sense; its outcome is unknown"

struct watched {
    struct request_owner owner; /* first */
    struct request *request;
    struct upstream_pin *pin; /* NULL while it waits for another attempt */
    struct fence_question *question;
    struct fence_looks *looks; /* at locks elsewhere, before all else; NULL: none are under way */
    int slot;
    unsigned hops, tries, unsent;
    bool refused;          /* by fence.lua; `answer` has its words */
    char error[ERROR_MAX]; /* the first of an attempt that the node has for the commands before the last one; "" none */
    struct text answer;
    struct text watch, asks; /* the words of WATCH, and of fence.lua */
    struct text command;     /* as it came */
};

static void watched_start(struct watched *b, struct upstream_node *node);
static void multi_done(struct call *c, const struct call_end *end);
static void exec_done(struct call *c, const struct call_end *end);

/* ---- the end ----------------------------------------------------------------------------------------- */

static void watched_unpin(struct watched *b, bool clean) {
    if (b->pin)
        pin_give(b->request->worker, b->pin, PIN_TRANSACTION, clean);
    b->pin = NULL;
}

static void watched_free(struct watched *b) {
    fence_looks_forget(b->looks);
    fence_forget(b->question);
    text_clear(&b->answer);
    text_clear(&b->watch);
    text_clear(&b->asks);
    text_clear(&b->command);
    memory_free(b);
}

/* Takes what is known of the write out of its request, which may be answered then. */
static void watched_end(struct watched *b, bool clean) {
    watched_unpin(b, clean);
    request_disown(b->request);
    watched_free(b);
}

/* Ends the write with an error, without '-' and CR LF. */
static void watched_fail(struct watched *b, const char *error) {
    struct request *r = b->request;
    char copy[ERROR_MAX];
    snprintf(copy, sizeof(copy), "%s", error);
    watched_end(b, false);
    request_fail(r, copy);
}

/* Gives up a write whose session has closed: its connection closes, and its call fails at the end of the turn. */
static void watched_left(struct request *r) {
    struct watched *b = REQUEST_OWNER(r, struct watched);
    if (b->pin) {
        watched_unpin(b, false);
        return;
    }
    if (!b->looks)
        upstream_abandon(r->worker->upstream, &r->call.up); /* it may be waiting for the map */
    watched_end(b, false);
    request_reply(r, "", 0, true);
}

static bool watched_lasts(const struct request *r) {
    return r->session != NULL;
}

static const struct request_owner_ops watched_ops = {.left = watched_left, .may_last = watched_lasts};

/* ---- the attempt ------------------------------------------------------------------------------------- */

/* Notes an error of a command that is not the last one. */
static void note_error(struct watched *b, const struct call_end *end) {
    if (b->error[0])
        return;
    if (end->error)
        snprintf(b->error, sizeof(b->error), "%s", end->error);
    else if (end->reply[0] == '-' && end->len > 3)
        snprintf(b->error, sizeof(b->error), "%.*s", (int)end->len - 3, end->reply + 1);
}

static void part_done(struct call *c, const struct call_end *end) {
    struct watched *b = REQUEST_OWNER(c->request, struct watched);
    if (b)
        note_error(b, end);
}

static void asked(struct call *c, const struct call_end *end) {
    struct watched *b = REQUEST_OWNER(c->request, struct watched);
    if (!b)
        return;
    bool refuses = !end->error && fence_refuses(end->reply, end->len);
    if (refuses && !b->refused)
        text_append(&b->answer, end->reply, end->len);
    else if (!refuses)
        note_error(b, end);
    b->refused = b->refused || refuses;
}

static void send_part(struct watched *b, call_done_fn done, const char *bytes, size_t len) {
    call_submit_pin(call_new(b->request, done), b->pin, bytes, len, false);
}

/* Sends what comes before the write. */
static void watched_ask(struct watched *b) {
    static const char multi[] = "*1\r\n$5\r\nMULTI\r\n";
    struct request *r = b->request;
    b->error[0] = '\0';
    if (fence_is_elsewhere(b->question))
        send_part(b, asked, b->asks.data, b->asks.len);
    send_part(b, part_done, b->watch.data, b->watch.len);
    send_part(b, asked, b->asks.data, b->asks.len);
    call_init(&r->call, r, multi_done);
    call_submit_pin(&r->call, b->pin, multi, sizeof(multi) - 1, false);
}

static void watched_start(struct watched *b, struct upstream_node *node) {
    static const struct upstream_pin_events none;
    struct request *r = b->request;
    const char *error;
    call_init(&r->call, r, multi_done);
    b->pin = pin_take(r->session, node, PIN_TRANSACTION, &none, &error);
    if (b->pin)
        watched_ask(b);
    else if (b->unsent++ >= PIN_UNSENT_TWICE || !pin_await_map(&r->call, node))
        watched_fail(b, error);
}

/* Whether a write goes on of which nothing was sent, since its node is out of reach. */
static bool watched_unsent(struct watched *b, const struct call_end *end) {
    bool waited = !b->pin;
    if (end->why != UPSTREAM_NOT_SENT || (!waited && b->unsent++ >= PIN_UNSENT_TWICE))
        return false;
    watched_unpin(b, false);
    watched_start(b, pin_node(b->request->session, b->slot));
    return true;
}

/* Whether the node's error sends the guard records elsewhere; if so, that is seen to. */
static bool watched_redirected(struct watched *b) {
    struct upstream *u = b->request->worker->upstream;
    bool ask = false;
    struct upstream_node *to =
        upstream_is_cluster(u) ? upstream_pin_redirect(b->pin, b->error, strlen(b->error), &ask) : NULL;
    if (!to)
        return false;
    if (ask || b->hops++ >= HOPS_MAX) {
        watched_fail(b, MOVES);
        return true;
    }
    watched_unpin(b, false);
    watched_start(b, to);
    return true;
}

/* Ends the write with fence.lua's refusal. */
static void watched_refused(struct watched *b) {
    struct request *r = b->request;
    struct text out = {0};
    fence_reply(r->session, b->question, b->answer.data, b->answer.len, &out);
    watched_end(b, false);
    request_reply(r, out.data, out.len, true);
    text_clear(&out);
}

/* MULTI's answer, the last one before the write. */
static void multi_done(struct call *c, const struct call_end *end) {
    static const char exec[] = "*1\r\n$4\r\nEXEC\r\n";
    struct request *r = c->request;
    struct watched *b = REQUEST_OWNER(r, struct watched);
    if (r->session && end->error && watched_unsent(b, end))
        return;
    note_error(b, end);
    if (!r->session || end->error) {
        watched_fail(b, b->error[0] ? b->error : "");
    } else if (b->refused) {
        watched_refused(b);
    } else if (b->error[0]) {
        if (!watched_redirected(b))
            watched_fail(b, b->error);
    } else {
        send_part(b, part_done, b->command.data, b->command.len);
        call_init(&r->call, r, exec_done);
        call_submit_pin(&r->call, b->pin, exec, sizeof(exec) - 1, false);
    }
}

/* ---- its answer -------------------------------------------------------------------------------------- */

static bool is_nil(const char *reply) {
    return reply[0] == '_' || (reply[0] == '*' && reply[1] == '-');
}

static void exec_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct watched *b = REQUEST_OWNER(r, struct watched);
    const char *p = end->reply;
    struct resp_item array;
    if (end->error) {
        watched_fail(b, end->error);
    } else if (is_nil(end->reply) && r->session && b->tries++ < TRIES_MAX) {
        watched_ask(b);
    } else if (is_nil(end->reply)) {
        watched_fail(b, CHANGES);
    } else if (end->reply[0] == '-') { /* the node has not queued the write, and says why there */
        if (!b->error[0])
            note_error(b, end);
        watched_fail(b, memcmp(b->error, "MOVED ", 6) == 0 || memcmp(b->error, "ASK ", 4) == 0 ? MOVES : b->error);
    } else if (resp_item_read(&p, end->reply + end->len, &array) && array.type == '*' && array.num == 1) {
        watched_end(b, true);
        request_reply(r, p, end->len - (size_t)(p - end->reply), true);
    } else {
        watched_fail(b, NO_SENSE);
    }
}

/* ---- the beginning ----------------------------------------------------------------------------------- */

/* The locks elsewhere, if any, have been looked at. */
static void watched_looked(void *arg, const char *error, size_t len) {
    struct watched *b = arg;
    struct request *r = b->request;
    struct session *s = r->session;
    b->looks = NULL;
    if (error) {
        watched_end(b, false);
        request_reply(r, error, len, true);
        return;
    }
    fence_ask(s, b->question);
    text_append(&b->asks, s->worker->build.data, s->worker->build.len);
    watched_start(b, pin_node(s, b->slot));
}

void watched_dispatch(struct session *s, const struct request_class *k) {
    struct worker *w = s->worker;
    struct request *request = request_new(s, k->command);
    struct watched *b = memory_zalloc(sizeof(*b));
    counter_add(&w->counters.requests_locks, 1);
    session_uses(s, k->slot);
    b->request = request;
    b->slot = k->slot;
    b->question = fence_watch(s, k);
    text_append(&b->watch, w->build.data, w->build.len);
    text_append(&b->command, k->bytes, k->request->len);
    request_own(request, &b->owner, &watched_ops);
    request_barrier(request);
    b->looks = fence_looks_new(s, watched_looked, b);
    fence_looks_add(b->looks, b->question);
    fence_looks_go(b->looks);
}
