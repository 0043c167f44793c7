/*
 * Blocking commands: each uses a pin, so that no other session waits with it.
 *
 *      BLPOP ──> pin to the keys' node, patient ──> reply ──> client; the connection is given back
 *                      │ MOVED, ASK: pinned anew to the other node          │ the client leaves meanwhile:
 *                      ├ TRYAGAIN and similar errors: after a delay    └ the connection closes at once
 *                      └ out of reach: once there is a new map
 *
 * A blocked session's later requests wait, as in Redis. The pin closes with its client, so that no element is popped
 * for a client that has left. The errors that cause a repeat here never come after an execution.
 *
 * WAIT and WAITAOF: how many replicas have what this session wrote.
 *
 *      SET, EVAL, ... ──> shared connections ──> answered
 *      WAIT 1 500 ──┬─ master A: mark, WAIT 1 500 ──┐   each over a connection of its own
 *                   └─ master B: mark, WAIT 1 500 ──┴─> the least of the answers
 *
 * A node counts the replicas that have the last write of the asking connection. The session's writes went over shared
 * connections, which must not block. So the pin first sends a write of its own, after all replies to the session: a
 * replica that has this write also has the session's writes. The write sets and removes a key in one script, so
 * replicas see it, and clients don't.
 *
 * For other clients it is one blocked client, until all masters have answered. So an UNBLOCK ends it at all masters,
 * even if the WAIT has not arrived at one yet. After one error the other replies do not matter.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/blocking/blocking.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/locks/locks.h"
#include "proxy/session/semaphores/semaphores.h"

enum { HOPS_MAX = 5, COUNTS_MAX = 2, WAIT_ERROR_MAX = 512, UNBLOCK_FIRST_MS = 2, UNBLOCK_DOUBLINGS = 7 };

/* ---- ending early ---------------------------------------------------------------------------------- */

/* Ends what blocks on a session's pin: its client has shut down its side (printf ... | nc), or an operator ends a WAIT
 * at all its masters.
 *
 *      pin ── BLPOP k 0 ──> node          shared connection ── CLIENT UNBLOCK id ERROR ──> node, until it has ended
 *
 * Redis closes a connection whose client blocks and has shut down its side. A command that need not wait is answered,
 * and so are the requests behind it. Only the node knows whether the command blocks. UNBLOCK is repeated, since it may
 * overtake the command. `hopeless` is called if the
 * node can't be asked, or does not permit it to the session's user; it may call unblock_stop. */
typedef void (*unblock_hopeless_fn)(void *arg);

struct unblock {
    struct request_owner owner; /* of `asking`; first */
    struct worker *worker;
    struct upstream_lane lane;
    struct upstream_pin *pin;
    const char *how;
    unblock_hopeless_fn hopeless;
    void *arg;
    struct request *asking; /* NULL while it waits for the next attempt */
    struct ev_timer again;
    unsigned times;
};

static void unblock_later(struct unblock *u) {
    unsigned doublings = u->times < UNBLOCK_DOUBLINGS ? u->times++ : UNBLOCK_DOUBLINGS;
    ev_timer_set(&u->again, (double)(UNBLOCK_FIRST_MS << doublings) / 1000., 0.);
    ev_timer_start(u->worker->loop, &u->again);
}

static void unblock_answered(struct call *c, const struct call_end *end) {
    struct request *asking = c->request;
    struct unblock *u = REQUEST_OWNER(asking, struct unblock);
    invariant(!u || u->asking == asking, "another UNBLOCK is answered");
    bool answered = !end->error && end->reply[0] == ':';
    if (u)
        u->asking = NULL;
    request_disown(asking);
    request_reply(asking, "", 0, true);
    if (u && answered)
        unblock_later(u);
    else if (u)
        u->hopeless(u->arg);
}

static void unblock_ask(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct unblock *u = timer->data;
    invariant(!u->asking, "an UNBLOCK is sent twice at once");
    struct worker *w = u->worker;
    struct upstream_node *node = upstream_pin_node(u->pin);
    int64_t number = *upstream_pin_number(u->pin);
    if (number < 0 || !node) {
        u->hopeless(u->arg);
        return;
    }
    if (number == 0) { /* the node has not answered yet */
        unblock_later(u);
        return;
    }
    u->asking = request_internal(w, unblock_answered);
    request_own(u->asking, &u->owner, &request_owner_silent);
    build_start(w, 4);
    build_text(w, "CLIENT");
    build_text(w, "UNBLOCK");
    build_number(w, number);
    build_text(w, u->how);
    struct call *call = &u->asking->call;
    const char *error = upstream_submit_to(w->upstream, &call->up, node, &u->lane, w->build.data, w->build.len);
    if (error)
        call->up.ops->fail(&call->up, UPSTREAM_NOT_SENT, error);
}

static struct unblock *unblock_start(struct worker *w, const struct upstream_lane *lane, struct upstream_pin *pin,
                                     const char *how, unblock_hopeless_fn hopeless, void *arg) {
    struct unblock *u = memory_alloc(sizeof(*u));
    *u = (struct unblock){.worker = w, .lane = *lane, .pin = pin, .how = how, .hopeless = hopeless, .arg = arg};
    u->lane.dedicated = 0;
    ev_timer_init(&u->again, unblock_ask, 0., 0.);
    u->again.data = u;
    unblock_later(u);
    return u;
}

/* A session closes if it can't be found out whether it blocks: no element is popped for a client that has left. */
static void unblock_in_vain(void *session) {
    session_close(session, "the client left while it was blocked");
}

/* The reply is then an error for which unblock_done is true, unless another reply was already on its way. */
static struct unblock *unblock_left(struct session *s, struct upstream_pin *pin) {
    return unblock_start(s->worker, &s->lane, pin, "ERROR", unblock_in_vain, s);
}

/* Stops and frees an unblock, if there is one. */
static void unblock_stop(struct unblock **unblock) {
    struct unblock *u = *unblock;
    *unblock = NULL;
    if (!u)
        return;
    if (u->asking)
        request_disown(u->asking);
    ev_timer_stop(u->worker->loop, &u->again);
    memory_free(u);
}

/* Asks the node for the connection's number (its client id), if it is not known yet; `done` calls number_learnt. */
static void ask_number(struct request *r, struct upstream_pin *pin, call_done_fn done, uint32_t index) {
    static const char ask[] = "*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n";
    invariant(r->session, "a session that has ended asks for its number");
    if (*upstream_pin_number(pin) != 0)
        return;
    struct call *call = call_new(r, done);
    call->index = index;
    call_submit_pin(call, pin, ask, sizeof(ask) - 1, false);
}

/* Takes the node's answer to ask_number. `pin` NULL: it was given back meanwhile. */
static void number_learnt(struct upstream_pin *pin, const struct call_end *end) {
    struct resp_item item;
    const char *p = end->reply;
    if (pin && !end->error)
        *upstream_pin_number(pin) = resp_item_read(&p, p + end->len, &item) && item.type == ':' ? item.num : -1;
}

static void unpin(struct worker *w, struct upstream_pin **pin, struct unblock **unblock, bool clean) {
    unblock_stop(unblock);
    if (*pin)
        pin_give(w, *pin, PIN_BLOCKING, clean);
    *pin = NULL;
}

static bool unblock_done(const struct call_end *end) {
    return !end->error && reply_begins(end->reply, end->len, "-UNBLOCKED ");
}

/* ---- one blocking command -------------------------------------------------------------------------- */

struct blocked {
    struct request_owner owner; /* first */
    struct request *request;
    struct upstream_pin *pin; /* NULL while it waits for another attempt */
    int slot;
    unsigned hops, delays;
    unsigned unsent;             /* how often its node was out of reach */
    bool meant;                  /* named in a CLIENT UNBLOCK: its connection is not used again */
    struct unblock *unblock;     /* the client has shut down its side, or has left */
    struct permit_note *permits; /* on semaphores; else NULL */
    struct audit_note *note;     /* PROXY ADVISE wants to see the reply; else NULL */
    struct upstream_lane lane;   /* the session's */
    struct ev_timer again;
    int64_t patient_ms; /* for upstream_pin_patient */
    size_t len;
    char bytes[]; /* the command, to repeat it */
};

static void blocked_done(struct call *c, const struct call_end *end);

static const struct call_end not_sent = {.error = "UPSTREAM the request was not sent", .why = UPSTREAM_NOT_SENT};

static void blocked_unpin(struct blocked *b, bool clean) {
    unpin(b->request->worker, &b->pin, &b->unblock, clean);
}

/* Separates the blocked command from its request, which may then be answered. */
static void blocked_end(struct blocked *b, bool clean, const struct call_end *end) {
    struct request *r = b->request;
    invariant(REQUEST_OWNER(r, struct blocked) == b, "a blocked command ends twice");
    if (b->permits)
        permit_note_end(r->worker, r->session, b->permits, end);
    if (b->note)
        audit_end(r->worker, r->session, b->note, end);
    blocked_unpin(b, clean && !b->meant);
    ev_timer_stop(r->worker->loop, &b->again);
    if (r->session)
        session_delay(r->session, DELAY_BLOCKED, false);
    request_disown(r);
    memory_free(b);
}

static void blocked_number(struct call *c, const struct call_end *end) {
    number_learnt(REQUEST_OWNER(c->request, struct blocked)->pin, end);
}

/* Asks the node to end the command of a client that has shut down its side. A command that does not block is
 * answered. */
static void blocked_leaves(struct blocked *b) {
    b->meant = true;
    if (b->pin && !b->unblock)
        b->unblock = unblock_left(b->request->session, b->pin);
}

static void blocked_start(struct blocked *b, struct upstream_node *node, bool asking) {
    static const struct upstream_pin_events none;
    struct request *r = b->request;
    const char *error;
    invariant(!b->pin && !b->unblock && r->session, "a blocking command takes a second connection");
    call_init(&r->call, r, blocked_done);
    b->pin = pin_take(r->session, node, PIN_BLOCKING, &none, &error);
    if (!b->pin && b->unsent++ < PIN_UNSENT_TWICE && pin_await_map(&r->call, node))
        return;
    if (!b->pin) {
        blocked_end(b, false, &not_sent);
        request_fail(r, error);
        return;
    }
    upstream_pin_patient(b->pin, b->patient_ms);
    ask_number(r, b->pin, blocked_number, 0);
    if (session_half_closed(r->session))
        blocked_leaves(b);
    call_submit_pin(&r->call, b->pin, b->bytes, b->len, asking);
}

static void blocked_again(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct blocked *b = timer->data;
    blocked_start(b, pin_node(b->request->session, b->slot), false);
}

/* Whether the node's error redirects the command, or asks to repeat it; if so, that is done. */
static bool blocked_redirected(struct blocked *b, const struct call_end *end) {
    struct upstream *u = b->request->worker->upstream;
    const char *text = end->reply + 1;
    size_t len = end->len - 3;
    bool ask;
    struct upstream_node *to = upstream_is_cluster(u) ? upstream_pin_redirect(b->pin, text, len, &ask) : NULL;
    if (to) {
        if (b->hops++ >= HOPS_MAX)
            return false;
        blocked_unpin(b, true);
        blocked_start(b, to, ask);
        return true;
    }
    int64_t wait_ms = upstream_error_passes(u, text, len, b->slot >= 0) ? upstream_delay_ms(b->delays++) : -1;
    if (wait_ms < 0)
        return false;
    blocked_unpin(b, true);
    ev_timer_set(&b->again, (double)wait_ms / 1000., 0.);
    ev_timer_start(b->request->worker->loop, &b->again);
    return true;
}

static void blocked_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct blocked *b = REQUEST_OWNER(r, struct blocked);
    invariant(b && b->request == r, "a blocked command belongs to another request");
    if (r->session && end->error && end->why == UPSTREAM_NOT_SENT && (!b->pin || b->unsent++ < PIN_UNSENT_TWICE)) {
        blocked_unpin(b, false); /* its node is out of reach, or the new map has come */
        blocked_start(b, pin_node(r->session, b->slot), false);
        return;
    }
    if (r->session && !end->error && end->reply[0] == '-' && blocked_redirected(b, end))
        return;
    bool gone = b->unblock && unblock_done(end);
    blocked_end(b, !end->error && r->session, end);
    if (gone && r->session) {
        session_finish(r->session);
        request_reply(r, "", 0, true);
    } else if (end->error)
        request_fail(r, end->error);
    else
        request_reply(r, end->reply, end->len, true);
}

static void blocked_in_vain(void *blocked) {
    blocked_unpin(blocked, false);
}

/* Gives up a command whose session has closed: its connection closes, so that no element is popped for it. On a
 * semaphore the node is asked to end the command, since it may have popped a token already: the reply tells. */
static void blocked_left(struct request *r) {
    struct blocked *b = REQUEST_OWNER(r, struct blocked);
    if (b->pin && b->permits && !r->worker->stopping) {
        unblock_stop(&b->unblock);
        b->unblock = unblock_start(r->worker, &b->lane, b->pin, "ERROR", blocked_in_vain, b);
        return;
    }
    if (b->pin) { /* its call fails when the connection is closed, at the end of the turn */
        blocked_unpin(b, false);
        return;
    }
    upstream_abandon(&r->call.up); /* it may be waiting for the map */
    blocked_end(b, false, &not_sent);
    request_reply(r, "", 0, true);
}

/* A blocking request has no time limit: its client waits. */
static bool blocking_lasts(const struct request *r) {
    return r->session != NULL;
}

static const struct request_owner_ops blocked_ops = {.left = blocked_left, .may_last = blocking_lasts};

/* How long the command may wait by its own timeout, as for upstream_pin_patient. */
static int64_t blocking_patience(const struct request_class *k) {
    int64_t ms = command_wait_ms(k->command, k->bytes, k->request);
    return ms > 0 ? ms : PIN_PATIENT;
}

/* ---- WAIT and WAITAOF ------------------------------------------------------------------------------- */

struct waited {
    struct worker *worker;
    struct upstream_node *node;
    struct upstream_pin *pin; /* NULL: given back, or it could not be opened */
    int slot;                 /* a slot that the node serves */
    struct unblock *unblock;  /* NULL: the proxy does not end it */
    bool answered;
    bool silent; /* it should end, but the node could not be told: it counts as 0 replicas */
};

struct waiting {
    struct request_owner owner; /* first */
    bool started;               /* all masters have been asked */
    bool failed;
    bool meant; /* must end, because of an UNBLOCK or because the client has left: its connections are not used again */
    bool leaving; /* the client has shut down its side */
    bool gone;    /* the client has left, and would have had to wait */
    char error[WAIT_ERROR_MAX];
    size_t counts; /* WAITAOF has two */
    int64_t least[COUNTS_MAX];
    int64_t patient_ms; /* for upstream_pin_patient */
    size_t node_count;
    struct waited nodes[];
};

static bool wait_is(const struct command *c) {
    return c->id == COMMAND_WAIT || c->id == COMMAND_WAITAOF;
}

/* ---- the end ------------------------------------------------------------------------------------- */

/* Gives the pins back. Without `clean`, calls in flight fail when the connections are closed, at the end of the
 * turn. */
static void wait_unpin(struct waiting *t, bool clean) {
    for (size_t i = 0; i < t->node_count; i++)
        unpin(t->nodes[i].worker, &t->nodes[i].pin, &t->nodes[i].unblock, clean);
}

static void wait_finish(struct request *r) {
    struct waiting *t = REQUEST_OWNER(r, struct waiting);
    invariant(t->started || t->failed, "a WAIT ends before it was sent");
    request_disown(r);
    if (r->session)
        session_delay(r->session, DELAY_BLOCKED, false);
    wait_unpin(t, !t->failed && !t->meant);
    char reply[(COUNTS_MAX + 1) * RESP_HEADER_MAX];
    size_t len = 0;
    if (r->command->id == COMMAND_WAITAOF)
        len = resp_header_write(reply, '*', (int64_t)t->counts);
    for (size_t i = 0; i < t->counts; i++)
        len += resp_header_write(reply + len, ':', t->least[i]);
    if (t->gone && r->session)
        session_finish(r->session);
    if (t->gone)
        request_reply(r, "", 0, true);
    else if (t->failed)
        request_error(r, t->error);
    else
        request_reply(r, reply, len, true);
    memory_free(t);
}

/* Notes an error, of which `len` bytes count (-1: all); the first error counts. */
static void wait_fail(struct waiting *t, const char *error, int len) {
    if (!t->failed)
        snprintf(t->error, sizeof(t->error), "%.*s", len, error);
    t->failed = true;
    if (t->started)
        wait_unpin(t, false);
}

/* Takes a node's counts. False: the reply has none. */
static bool wait_count(struct waiting *t, const struct call_end *end) {
    const char *p = end->reply, *stop = end->reply + end->len;
    struct resp_item item;
    size_t n = 1;
    if (!resp_item_read(&p, stop, &item))
        return false;
    if (item.type == '*') {
        if (item.num < 1 || item.num > COUNTS_MAX)
            return false;
        n = (size_t)item.num;
        if (!resp_item_read(&p, stop, &item))
            return false;
    }
    for (size_t i = 0; i < n; i++) {
        if ((i > 0 && !resp_item_read(&p, stop, &item)) || item.type != ':')
            return false;
        if (t->counts <= i || item.num < t->least[i])
            t->least[i] = item.num;
    }
    invariant(n >= 1 && n <= COUNTS_MAX, "%zu counts", n);
    t->counts = n;
    return true;
}

static void wait_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct waiting *t = REQUEST_OWNER(r, struct waiting);
    struct waited *n = &t->nodes[c->index];
    invariant(c->index < t->node_count && r->parts_left > 0, "node %u of %zu", c->index, t->node_count);
    bool mark = c->count > 0, ask;
    t->gone = t->gone || (t->leaving && unblock_done(end));
    n->answered = n->answered || !mark;
    if (n->silent) {
        t->counts = r->command->id == COMMAND_WAITAOF ? COUNTS_MAX : 1;
        memset(t->least, 0, sizeof(t->least));
    } else if (end->error) {
        wait_fail(t, end->error, -1);
    } else if (end->reply[0] == '-') {
        if (n->pin && upstream_pin_redirect(n->pin, end->reply + 1, end->len - 3, &ask))
            wait_fail(t, "TRYAGAIN Slots have moved to another node meanwhile", -1);
        else
            wait_fail(t, end->reply + 1, (int)end->len - 3);
    } else if (!mark && !wait_count(t, end)) {
        wait_fail(t, "UPSTREAM the node's reply to WAIT is malformed", -1);
    }
    if (n->answered)
        unblock_stop(&n->unblock);
    if (--r->parts_left == 0)
        wait_finish(r);
}

static void wait_number(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    number_learnt(REQUEST_OWNER(r, struct waiting)->nodes[c->index].pin, end);
    if (--r->parts_left == 0)
        wait_finish(r);
}

/* Ends the WAIT of a client that has shut down its side: it gets the counts so far. */
static void wait_half_closed(struct request *r) {
    struct waiting *t = REQUEST_OWNER(r, struct waiting);
    t->meant = t->leaving = true;
    for (size_t i = 0; i < t->node_count; i++) {
        struct waited *n = &t->nodes[i];
        if (n->pin && !n->unblock && !n->answered)
            n->unblock = unblock_left(r->session, n->pin);
    }
}

static void waited_hopeless(void *arg) {
    struct waited *n = arg;
    n->silent = true;
    unpin(n->worker, &n->pin, &n->unblock, false);
}

/* Ends a WAIT at all masters. False: it is already ending. */
static bool wait_unblock(struct request *r, bool error) {
    struct waiting *t = REQUEST_OWNER(r, struct waiting);
    if (t->meant || t->failed)
        return false;
    t->meant = true;
    if (error)
        wait_fail(t, "UNBLOCKED client unblocked via CLIENT UNBLOCK", -1);
    for (size_t i = 0; i < t->node_count; i++) {
        struct waited *n = &t->nodes[i];
        if (n->pin && !n->answered)
            n->unblock = unblock_start(n->worker, &r->session->lane, n->pin, "TIMEOUT", waited_hopeless, n);
    }
    return true;
}

static void wait_left(struct request *r) {
    wait_unpin(REQUEST_OWNER(r, struct waiting), false);
}

static const struct request_owner_ops wait_ops = {.left = wait_left, .may_last = blocking_lasts};

/* ---- the start --------------------------------------------------------------------------------------- */

/* Lists the masters that the session has used, or all if it has used none. */
static struct waiting *wait_nodes(struct session *s) {
    struct upstream *u = s->worker->upstream;
    size_t max = upstream_master_count(u) + 1;
    struct waiting *t = memory_zalloc(sizeof(*t) + max * sizeof(t->nodes[0]));
    bool cluster = upstream_is_cluster(u);
    for (int slot = 0; slot < (cluster ? SLOT_COUNT : 1) && t->node_count < max; slot++) {
        bool used = !cluster || !s->used_slots || (s->used_slots >> (slot / SESSION_SLOTS_A_BIT) & 1);
        struct upstream_node *node = used ? upstream_node_of_slot(u, slot) : NULL;
        bool listed = !node;
        for (size_t i = 0; i < t->node_count && !listed; i++)
            listed = t->nodes[i].node == node;
        if (!listed)
            t->nodes[t->node_count++] = (struct waited){.worker = s->worker, .node = node, .slot = slot};
    }
    return t;
}

static void wait_start(struct request *request, struct waiting *t, size_t i, const struct request_class *k) {
    struct session *s = request->session;
    invariant(i < t->node_count && !t->nodes[i].pin, "node %zu of %zu", i, t->node_count);
    static const struct upstream_pin_events none;
    struct waited *n = &t->nodes[i];
    struct worker *w = s->worker;
    const char *error;
    char key[64];
    n->pin = pin_take(s, n->node, PIN_BLOCKING, &none, &error);
    if (!n->pin) {
        wait_fail(t, error, -1);
        return;
    }
    upstream_pin_patient(n->pin, t->patient_ms);
    ask_number(request, n->pin, wait_number, (uint32_t)i);
    struct call *mark = call_new(request, wait_done);
    mark->index = (uint32_t)i;
    mark->count = 1;
    snprintf(key, sizeof(key), "lockkeeper:{%s}:wait", slot_tag((uint16_t)n->slot));
    build_start(w, 4);
    build_text(w, "EVAL");
    build_text(w, "redis.call('SET', KEYS[1], '') return redis.call('DEL', KEYS[1])");
    build_number(w, 1);
    build_text(w, key);
    call_submit_pin(mark, n->pin, w->build.data, w->build.len, false);
    struct call *wait = call_new(request, wait_done);
    wait->index = (uint32_t)i;
    call_submit_pin(wait, n->pin, k->bytes, k->request->len, false);
}

static enum dispatch_result wait_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    struct waiting *t = wait_nodes(s);
    if (t->node_count == 0) {
        memory_free(t);
        return session_refuse(s, c, "UPSTREAM no master is known; the request was not sent");
    }
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, c);
    request_barrier(request);
    request_own(request, &t->owner, &wait_ops);
    t->patient_ms = blocking_patience(k);
    session_delay(s, DELAY_BLOCKED, true);
    request->parts_left = 1; /* held here until all are in flight */
    for (size_t i = 0; i < t->node_count; i++)
        wait_start(request, t, i, k);
    t->started = true;
    if (t->failed)
        wait_unpin(t, false);
    if (session_half_closed(s))
        wait_half_closed(request);
    if (--request->parts_left == 0)
        wait_finish(request);
    return DISPATCHED;
}

/* ---- the room --------------------------------------------------------------------------------------- */

enum dispatch_result blocking_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    const struct resp_request *r = k->request;
    const char *bytes = k->bytes;
    int slot = k->slot;
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* an earlier request may end its wait, or write before a WAIT */
    if (!wait_is(c) && slot == SLOT_SEVERAL)
        return session_refuse(s, c, "CROSSSLOT Keys in request don't hash to the same slot");
    if (!invariant(!(s->delays & DELAY_BLOCKED), "a session is blocked twice"))
        return session_refuse(s, c, INVARIANT_REFUSED);
    if (wait_is(c))
        return wait_dispatch(s, k);
    counter_add(&s->worker->counters.requests_forwarded, 1);
    session_uses(s, slot);
    struct request *request = request_new(s, c);
    struct blocked *b = memory_alloc(sizeof(*b) + r->len);
    *b = (struct blocked){.request = request, .slot = slot, .patient_ms = blocking_patience(k), .len = r->len};
    memcpy(b->bytes, bytes, r->len);
    b->lane = s->lane;
    b->permits = k->semaphores ? permit_note(s, k) : NULL;
    size_t len = 0;
    const char *key = k->key_count == 1 && !class_rule(k, 0) ? class_key(k, 0, &len) : NULL;
    if (key && advise_wants(s, c, r, bytes, key, len))
        b->note = audit_note(s, k, true);
    ev_timer_init(&b->again, blocked_again, 0., 0.);
    b->again.data = b;
    request_own(request, &b->owner, &blocked_ops);
    request_barrier(request);
    session_delay(s, DELAY_BLOCKED, true);
    blocked_start(b, pin_node(b->request->session, b->slot), false);
    return DISPATCHED;
}

/* The blocking request of a session; NULL: none of this folder's. */
static struct request *blocked_request(struct session *s) {
    struct request *r = s->delays & DELAY_BLOCKED ? session_head(s) : NULL;
    return r && (wait_is(r->command) || r->owner->ops == &blocked_ops) ? r : NULL;
}

static void half_closed(struct session *s) {
    struct request *r = blocked_request(s);
    if (r && wait_is(r->command))
        wait_half_closed(r);
    else if (r)
        blocked_leaves(REQUEST_OWNER(r, struct blocked));
}

bool blocking_unblock(struct session *s, bool error, blocking_place_fn place, void *arg) {
    struct request *r = blocked_request(s);
    if (r && wait_is(r->command))
        return wait_unblock(r, error);
    struct blocked *b = r ? REQUEST_OWNER(r, struct blocked) : NULL;
    struct upstream_node *at = b && b->pin ? upstream_pin_node(b->pin) : NULL;
    if (!at || *upstream_pin_number(b->pin) <= 0)
        return false;
    b->meant = true;
    place(arg, upstream_node_address(at), *upstream_pin_number(b->pin));
    return false;
}

const struct session_room blocking_room = {.half_closed = half_closed};
