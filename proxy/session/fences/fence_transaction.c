/*
 * S7: writes of fenced data that cannot run inside a script: the application's own scripts, commands whose replies a
 * script cannot return, commands with more arguments than a script takes, and blocking commands. In a transaction, a
 * blocking command does not block.
 *
 *      EVAL ... 1 stock:1 ──> WATCH guards, fence.lua about PING, MULTI ──┬─ FENCED: the connection closes
 *                                                                         └─ PONG ──> EVAL ... 1 stock:1, EXEC
 *      client's reply <── the one element of EXEC's array, or nil: a guard record has changed, and all begins anew
 *
 * If Redis itself blocked a blocking command, the session might have lost the lock when the element comes. So the proxy
 * tries the command again and again, in its form that does not block, each time as if it had just come:
 *
 *      BLPOP stock:1 5 ──> an attempt ──┬─ something: the client's reply
 *                            ^          ├─ FENCED
 *                            └─ 1 to 50 ms, until its time is over, CLIENT UNBLOCK, or the client leaves
 *
 * A session that waits this way has no place in Redis's queue of blocked clients: an element that comes between two
 * attempts goes to a client that Redis itself blocks. Scripts of Redis 7.0 must not call blocking commands either:
 * BLPOP a b 5 becomes an LPOP of the first of the two keys that has an element.
 *
 * If a lock is in another slot, WATCH covers its watermark. fence.lua raises the watermark before that: a change by the
 * connection itself makes EXEC fail, too.
 *
 * All this goes over a connection of the session's own, and the session's later requests wait. Nothing is sent behind
 * MULTI before MULTI is answered: if the node refused MULTI, it would execute the commands behind it at once.
 * fenced_command.c makes the question, and reads its answer.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/fences/private.h"

enum { HOPS_MAX = 5, TRIES_MAX = 20, ERROR_MAX = 512, LONGEST_MS = 50, DOUBLINGS = 6 };

#define CHANGES  "ERR the locks of fenced data change too often; nothing was written: send it once more"
#define MOVES    "TRYAGAIN The slot of fenced data is moving to another node"
#define NO_SENSE "UPSTREAM the node's answer to a write of fenced data makes no sense; its outcome is unknown"

struct fence_transaction {
    struct request_owner owner; /* must be the first field */
    struct request *request;
    struct upstream_pin *pin; /* NULL: no connection is taken */
    struct fence_question *question;
    struct fence_looks *looks; /* the looks at locks in other slots, before all else; NULL: none are under way */
    int slot;
    unsigned hops, tries, unsent;
    bool asking;                   /* an attempt is under way on the connection */
    bool refused;                  /* fence.lua has refused; `answer` has its reply */
    char error[ERROR_MAX];         /* the attempt's first error for a command before the last one; "": none */
    bool blocks;                   /* a blocking command, which keeps its connection between attempts; the fields up to
                                      `unblock_error` are its own */
    struct ev_timer timer;         /* for the next attempt */
    double until;                  /* by worker_steady; 0: the wait has no end */
    unsigned delays;               /* how many passing errors in a row it has met */
    unsigned times;                /* how often nothing came, up to DOUBLINGS */
    bool idle;                     /* no attempt is under way, the next is due */
    bool last;                     /* no attempt follows the attempt that is under way or due */
    bool unblocked, unblock_error; /* by CLIENT UNBLOCK */
    struct text answer;
    struct text watch, asks; /* the calls of WATCH and of fence.lua */
    struct text command;     /* the client's command, unchanged */
};

/* ---- the form that does not block ------------------------------------------------------------------- */

/* Whether the argument is a timeout in the usual notation. Redis accepts some other notations, too. The proxy does not
 * try to tell which. */
static bool is_time(const struct request_class *k, size_t at) {
    enum { DIGITS_MAX = 9 };
    size_t len, digits = 0, dots = 0;
    const char *text = request_arg(k->request, k->bytes, at, &len);
    for (size_t i = 0; i < len; i++) {
        digits += text[i] >= '0' && text[i] <= '9';
        dots += text[i] == '.' && i > 0 && i + 1 < len;
    }
    return digits > 0 && digits <= DIGITS_MAX && dots <= 1 && digits + dots == len;
}

bool nonblocking_form_unblocked(const struct request_class *k, struct nonblocking_form *as) {
    static const struct {
        enum command_id id;
        const char *name;
        bool each, time_first; /* time_first: the timeout is the first argument, else the last one */
    } forms[] = {
        {COMMAND_BLMOVE, "LMOVE", false, false},    {COMMAND_BRPOPLPUSH, "RPOPLPUSH", false, false},
        {COMMAND_BLMPOP, "LMPOP", false, true},     {COMMAND_BZMPOP, "ZMPOP", false, true},
        {COMMAND_BLPOP, "LPOP", true, false},       {COMMAND_BRPOP, "RPOP", true, false},
        {COMMAND_BZPOPMIN, "ZPOPMIN", true, false}, {COMMAND_BZPOPMAX, "ZPOPMAX", true, false},
    };
    size_t last = k->request->argc - 1;
    for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
        if (forms[i].id != k->command->id)
            continue;
        bool first = forms[i].time_first;
        *as = (struct nonblocking_form){forms[i].name, first ? 2 : 1, first ? last + 1 : last, forms[i].each};
        return k->request->argc <= SCRIPT_ARGS_MAX && is_time(k, first ? 1 : last);
    }
    return false;
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void fence_transaction_start(struct fence_transaction *b, struct upstream_node *node);
static void multi_done(struct call *c, const struct call_end *end);
static void exec_done(struct call *c, const struct call_end *end);

static enum pin_reason reason(const struct fence_transaction *b) {
    return b->blocks ? PIN_BLOCKING : PIN_TRANSACTION;
}

static void fence_transaction_unpin(struct fence_transaction *b, bool clean) {
    invariant(!b->pin || b->request, "a connection belongs to a write that has ended");
    if (b->pin)
        pin_give(b->request->worker, b->pin, reason(b), clean);
    b->pin = NULL;
}

/* Detaches the write from its request and frees it. The request may be answered then. */
static void fence_transaction_end(struct fence_transaction *b, bool clean) {
    struct request *r = b->request;
    fence_transaction_unpin(b, clean);
    request_disown(r);
    if (b->blocks)
        ev_timer_stop(r->worker->loop, &b->timer);
    if (b->blocks && r->session)
        session_delay(r->session, DELAY_BLOCKED, false);
    fence_looks_forget(b->looks);
    fence_forget(b->question);
    text_clear(&b->answer);
    text_clear(&b->watch);
    text_clear(&b->asks);
    text_clear(&b->command);
    memory_free(b);
}

/* Ends the write with an error; `error` has no '-' and no CR LF. */
static void fence_transaction_fail(struct fence_transaction *b, const char *error) {
    struct request *r = b->request;
    char copy[ERROR_MAX];
    snprintf(copy, sizeof(copy), "%s", error);
    fence_transaction_end(b, false);
    request_fail(r, copy);
}

/* Gives up a write whose session has closed. If an attempt is under way, its connection closes, and its call fails at
 * the end of the turn. */
static void watched_left(struct request *r) {
    struct fence_transaction *b = REQUEST_OWNER(r, struct fence_transaction);
    if (b->pin && b->asking) {
        fence_transaction_unpin(b, false);
        return;
    }
    if (!b->looks && !b->idle)
        upstream_abandon(&r->call.up); /* the call may be waiting for the cluster's map */
    fence_transaction_end(b, false);
    request_reply(r, "", 0, true);
}

static bool watched_lasts(const struct request *r) {
    return r->session != NULL;
}

static const struct request_owner_ops fence_transaction_ops = {.left = watched_left, .may_last = watched_lasts};

/* ---- the attempt ------------------------------------------------------------------------------------- */

/* Notes an error of a command before the last one. The first error counts. */
static void note_error(struct fence_transaction *b, const struct call_end *end) {
    if (b->error[0])
        return;
    if (end->error)
        snprintf(b->error, sizeof(b->error), "%s", end->error);
    else if (end->reply[0] == '-' && end->len > 3)
        snprintf(b->error, sizeof(b->error), "%.*s", (int)end->len - 3, end->reply + 1);
}

static void part_done(struct call *c, const struct call_end *end) {
    struct fence_transaction *b = REQUEST_OWNER(c->request, struct fence_transaction);
    if (b)
        note_error(b, end);
}

static void asked(struct call *c, const struct call_end *end) {
    struct fence_transaction *b = REQUEST_OWNER(c->request, struct fence_transaction);
    if (!b)
        return;
    bool refuses = !end->error && fence_refuses(end->reply, end->len);
    if (refuses && !b->refused)
        text_append(&b->answer, end->reply, end->len);
    else if (!refuses)
        note_error(b, end);
    b->refused = b->refused || refuses;
}

static void send_part(struct fence_transaction *b, call_done_fn done, const char *bytes, size_t len) {
    invariant(b->pin && b->request->session, "a part of a write has no connection");
    call_submit_pin(call_new(b->request, done), b->pin, bytes, len, false);
}

/* Sends all that comes before the write. */
static void fence_transaction_ask(struct fence_transaction *b) {
    invariant(b->pin && !b->looks && !b->refused, "S7: a write is asked about twice");
    static const char multi[] = "*1\r\n$5\r\nMULTI\r\n";
    struct request *r = b->request;
    bool asks = b->question->count > 0;
    b->error[0] = '\0';
    b->asking = true;
    if (fence_is_elsewhere(b->question))
        send_part(b, asked, b->asks.data, b->asks.len);
    if (asks)
        send_part(b, part_done, b->watch.data, b->watch.len);
    if (asks)
        send_part(b, asked, b->asks.data, b->asks.len);
    call_init(&r->call, r, multi_done);
    call_submit_pin(&r->call, b->pin, multi, sizeof(multi) - 1, false);
}

static void fence_transaction_start(struct fence_transaction *b, struct upstream_node *node) {
    static const struct upstream_pin_events none;
    struct request *r = b->request;
    const char *error;
    invariant(!b->pin && r->session, "a write takes a second connection");
    call_init(&r->call, r, multi_done);
    b->pin = pin_take(r->session, node, reason(b), &none, &error);
    if (b->pin)
        fence_transaction_ask(b);
    else if (b->unsent++ >= PIN_UNSENT_TWICE || !pin_await_map(&r->call, node))
        fence_transaction_fail(b, error);
}

/* Whether the node's error redirects to another node. If so, starts again there, or ends the write with an error. */
static bool watched_redirected(struct fence_transaction *b) {
    struct upstream *u = b->request->worker->upstream;
    bool ask = false;
    struct upstream_node *to =
        upstream_is_cluster(u) ? upstream_pin_redirect(b->pin, b->error, strlen(b->error), &ask) : NULL;
    if (!to)
        return false;
    if (ask || b->hops++ >= HOPS_MAX) {
        fence_transaction_fail(b, MOVES);
        return true;
    }
    fence_transaction_unpin(b, false);
    fence_transaction_start(b, to);
    return true;
}

/* Ends a blocking command that has found nothing. A client that has closed its sending side gets no reply. */
static void fence_transaction_over(struct fence_transaction *b) {
    struct request *r = b->request;
    struct session *s = r->session;
    const char *reply = session_half_closed(s)  ? ""
                        : b->unblock_error      ? "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"
                        : s->lane.protocol == 3 ? "_\r\n"
                                                : "*-1\r\n";
    fence_transaction_end(b, !b->asking);
    if (*reply == '\0')
        session_finish(s);
    request_reply(r, reply, strlen(reply), true);
}

static void retry_arm(struct fence_transaction *b, int64_t least_ms) {
    struct worker *w = b->request->worker;
    int64_t ms = b->times < DOUBLINGS ? 1 << b->times++ : LONGEST_MS;
    if (ms < least_ms)
        ms = least_ms;
    double in = (double)ms / 1000., left = b->until - worker_steady(w);
    b->last = b->until > 0 && left <= in;
    if (b->last)
        in = left > 0 ? left : 0;
    ev_timer_set(&b->timer, in, 0.);
    ev_timer_start(w->loop, &b->timer);
}

/* Has a blocking command tried again in least_ms or more. If its time is over, ends it. */
static void fence_transaction_more(struct fence_transaction *b, int64_t least_ms) {
    invariant(b->blocks, "a command that does not block is tried again");
    invariant(!b->idle, "two attempts are due");
    struct session *s = b->request->session;
    session_delay(s, DELAY_BLOCKED, true);
    if (b->last || b->unblocked || session_half_closed(s)) {
        fence_transaction_over(b);
        return;
    }
    b->idle = true;
    retry_arm(b, least_ms);
}

/* Whether an attempt of a blocking command failed by an error that passes, before anything was done. If so, another
 * attempt follows. */
static bool fence_transaction_passes(struct fence_transaction *b, const char *error) {
    struct upstream *u = b->request->worker->upstream;
    if (!b->blocks || !b->request->session ||
        (strcmp(error, CHANGES) != 0 && !upstream_error_passes(u, error, strlen(error), true)))
        return false;
    int64_t ms = upstream_delay_ms(b->delays++);
    if (ms < 0)
        return false;
    fence_transaction_unpin(b, false); /* the connection may be in a MULTI */
    b->asking = false;
    fence_transaction_more(b, ms);
    return true;
}

/* Whether the blocked session would now be judged by another lease than when the attempt began: another session of its
 * client has released the lock, for example, and a third has acquired it. */
static bool judged_anew(const struct fence_transaction *b) {
    struct session *s = b->blocks ? b->request->session : NULL;
    const struct fence_question *q = b->question;
    bool outdated = false;
    for (size_t i = 0; s && i < q->count && !outdated; i++) {
        const struct asked *a = &q->keys[i];
        struct lock_key lock = {a->db, q->names.data + a->lock, a->lock_len};
        struct lock_writing w = engine_writing(s->worker->shared->engine, &s->lock, &lock, worker_now(s->worker));
        outdated = w.fence != a->writing.fence;
    }
    return outdated;
}

/* Ends the write with the refusal of fence.lua. If the session would be judged by another lease now, tries again. */
static void fence_transaction_refused(struct fence_transaction *b) {
    invariant(b->refused && b->answer.len > 0, "S7: a write is refused without a refusal");
    struct request *r = b->request;
    struct text out = {0};
    if (judged_anew(b)) {
        b->refused = b->asking = false;
        b->answer.len = 0;
        fence_transaction_unpin(b, false); /* the connection is in a MULTI */
        fence_transaction_more(b, 0);
        return;
    }
    fence_reply(r->session, b->question, b->answer.data, b->answer.len, &out);
    fence_transaction_end(b, false);
    request_reply(r, out.data, out.len, true);
    text_clear(&out);
}

/* Takes the answer to MULTI, the last answer before the write. */
static void multi_done(struct call *c, const struct call_end *end) {
    static const char exec[] = "*1\r\n$4\r\nEXEC\r\n";
    struct request *r = c->request;
    struct fence_transaction *b = REQUEST_OWNER(r, struct fence_transaction);
    if (r->session && end->error && end->why == UPSTREAM_NOT_SENT && (!b->pin || b->unsent++ < PIN_UNSENT_TWICE)) {
        fence_transaction_unpin(b, false); /* its node is out of reach, or the new map has come */
        fence_transaction_start(b, pin_node(r->session, b->slot));
        return;
    }
    note_error(b, end);
    if (!r->session || end->error) {
        fence_transaction_fail(b, b->error[0] ? b->error : "");
    } else if (b->refused) {
        fence_transaction_refused(b);
    } else if (b->error[0]) {
        if (!watched_redirected(b) && !fence_transaction_passes(b, b->error))
            fence_transaction_fail(b, b->error);
    } else if (b->unblocked) {
        invariant(!b->idle, "an attempt ends twice");
        fence_transaction_over(b);
    } else {
        invariant(!b->refused && !b->error[0], "S7: a write is sent behind a refusal");
        invariant(!b->idle, "an attempt takes an element after it has ended");
        if (b->blocks) /* a stop of the proxy now waits for the attempt, which may take an element */
            session_delay(r->session, DELAY_BLOCKED, false);
        send_part(b, part_done, b->command.data, b->command.len);
        call_init(&r->call, r, exec_done);
        call_submit_pin(&r->call, b->pin, exec, sizeof(exec) - 1, false);
    }
}

/* ---- the answer -------------------------------------------------------------------------------------- */

static bool is_nil(const char *reply) {
    return reply[0] == '_' || ((reply[0] == '*' || reply[0] == '$') && reply[1] == '-');
}

static void exec_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct fence_transaction *b = REQUEST_OWNER(r, struct fence_transaction);
    const char *p = end->reply;
    struct resp_item array;
    if (end->error) {
        fence_transaction_fail(b, end->error);
    } else if (is_nil(end->reply) && r->session && judged_anew(b)) {
        b->asking = false;
        fence_transaction_more(b, 0);
    } else if (is_nil(end->reply) && r->session && b->tries++ < TRIES_MAX) {
        fence_transaction_ask(b);
    } else if (is_nil(end->reply)) {
        if (!fence_transaction_passes(b, CHANGES))
            fence_transaction_fail(b, CHANGES);
    } else if (end->reply[0] == '-') { /* the node has not queued the write, and this error says why */
        if (!b->error[0])
            note_error(b, end);
        const char *error = memcmp(b->error, "MOVED ", 6) == 0 || memcmp(b->error, "ASK ", 4) == 0 ? MOVES : b->error;
        if (!fence_transaction_passes(b, error))
            fence_transaction_fail(b, error);
    } else if (resp_item_read(&p, end->reply + end->len, &array) && array.type == '*' && array.num == 1) {
        invariant(b->asking && !b->refused, "S7: a refused write was executed");
        b->asking = false;
        if (b->blocks && r->session && is_nil(p)) { /* nothing was found */
            b->delays = 0;
            fence_transaction_more(b, 0);
        } else {
            fence_transaction_end(b, true);
            request_reply(r, p, end->len - (size_t)(p - end->reply), true);
        }
    } else {
        fence_transaction_fail(b, NO_SENSE);
    }
}

/* ---- the beginning ----------------------------------------------------------------------------------- */

/* Called when the locks in other slots, if any, have been looked at. */
static void watched_looked(void *arg, const char *error, size_t len) {
    struct fence_transaction *b = arg;
    struct request *r = b->request;
    struct session *s = r->session;
    b->looks = NULL;
    if (error && judged_anew(b)) {
        fence_transaction_more(b, 0);
        return;
    }
    if (error) {
        fence_transaction_end(b, true);
        request_reply(r, error, len, true);
        return;
    }
    b->asks.len = 0;
    fence_ask(s, b->question);
    text_append(&b->asks, s->worker->build.data, s->worker->build.len);
    if (b->pin)
        fence_transaction_ask(b);
    else
        fence_transaction_start(b, pin_node(s, b->slot));
}

/* Begins an attempt. The question is made anew, for a write that comes now. */
static void fence_transaction_begin(struct fence_transaction *b, const struct request_class *k) {
    struct session *s = b->request->session;
    fence_forget(b->question);
    b->question = fence_watch(s, k);
    b->watch.len = 0;
    text_append(&b->watch, s->worker->build.data, s->worker->build.len);
    b->hops = b->tries = b->unsent = 0;
    b->looks = fence_looks_new(s, watched_looked, b);
    fence_looks_add(b->looks, b->question);
    fence_looks_go(b->looks);
}

/* The next attempt of a blocking command is due. The session's lock, and the rules, may have changed since the last. */
static void watched_again(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct fence_transaction *b = timer->data;
    struct request *request = b->request;
    bool paused = request->worker->pause != PAUSE_NONE; /* CLIENT PAUSE holds back attempts, too */
    if (paused && !b->last) {
        retry_arm(b, 0);
        return;
    }
    b->idle = false;
    if (paused) {
        fence_transaction_over(b);
        return;
    }
    struct resp_request r;
    struct request_class k;
    const char *error = NULL;
    for (struct call *last; (last = LIST_FIRST(&request->parts, struct call, link));) /* of the last attempt */
        call_release(request->worker, last);
    request->parts_left = 0;
    if (!resp_request_read(&r, b->command.data, b->command.len)) { /* the command was valid before */
        resp_request_clear(&r);
        fence_transaction_fail(b, NO_SENSE);
        return;
    }
    class_find_again(&k, request->command, &r, b->command.data, b->slot);
    enum fence_verdict verdict = fence_judge(request->session, &k, &error);
    if (verdict == FENCE_REFUSED)
        fence_transaction_fail(b, error);
    else if (verdict == FENCE_LATER)
        fence_transaction_more(b, 0);
    else
        fence_transaction_begin(b, &k);
    class_clear(&k);
    resp_request_clear(&r);
}

void fence_transaction_dispatch(struct session *s, const struct request_class *k) {
    struct worker *w = s->worker;
    struct request *request = request_new(s, k->command);
    struct fence_transaction *b = memory_alloc(sizeof(*b));
    *b = (struct fence_transaction){.request = request, .slot = k->slot, .blocks = fence_awaits(k)};
    counter_add(&w->counters.requests_locks, 1);
    session_uses(s, k->slot);
    text_append(&b->command, k->bytes, k->request->len);
    request_own(request, &b->owner, &fence_transaction_ops);
    request_barrier(request);
    ev_timer_init(&b->timer, watched_again, 0., 0.);
    b->timer.data = b;
    if (b->blocks) {
        int64_t ms = command_wait_ms(k->command, k->bytes, k->request);
        b->until = ms > 0 ? worker_steady(w) + (double)ms / 1000. : 0;
        session_delay(s, DELAY_BLOCKED, true);
    }
    fence_transaction_begin(b, k);
    session_note_overlap(s);
}

/* ---- what ends a wait -------------------------------------------------------------------------------- */

/* The blocking command of this file in which the session is blocked; NULL: none. */
static struct fence_transaction *blocked_of(struct session *s) {
    struct request *r = session_head(s);
    bool own = r && r->owner && r->owner->ops == &fence_transaction_ops;
    struct fence_transaction *b = own ? REQUEST_OWNER(r, struct fence_transaction) : NULL;
    return b && b->blocks ? b : NULL;
}

/* Ends the wait, unless an attempt is under way: then its answer ends the wait. */
static void fence_transaction_half_closed(struct session *s) {
    struct fence_transaction *b = blocked_of(s);
    if (!b || !b->idle)
        return;
    ev_timer_stop(b->request->worker->loop, &b->timer);
    b->idle = false;
    fence_transaction_over(b);
}

bool fence_unblock(struct session *s, bool error) {
    struct fence_transaction *b = blocked_of(s);
    if (!b || b->unblocked)
        return false;
    b->unblocked = true;
    b->unblock_error = error;
    fence_transaction_half_closed(s);
    return true;
}

const struct session_room fences_room = {.half_closed = fence_transaction_half_closed};
