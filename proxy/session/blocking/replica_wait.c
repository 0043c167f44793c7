/*
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

enum { COUNTS_MAX = 2, SLOTS = 16384, WAIT_ERROR_MAX = 512 };

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

bool wait_is(const struct command *c) {
    return c->id == COMMAND_WAIT || c->id == COMMAND_WAITAOF;
}

/* ---- the end ------------------------------------------------------------------------------------- */

static void waited_unpin(struct waited *n, bool clean) {
    unblock_stop(n->unblock);
    n->unblock = NULL;
    if (n->pin)
        pin_give(n->worker, n->pin, PIN_BLOCKING, clean);
    n->pin = NULL;
}

/* Gives the pins back. Without `clean`, calls in flight fail when the connections are closed, at the end of the
 * turn. */
static void wait_unpin(struct waiting *t, bool clean) {
    for (size_t i = 0; i < t->node_count; i++)
        waited_unpin(&t->nodes[i], clean);
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

/* Notes an error; the first one counts. */
static void wait_fail(struct waiting *t, const char *error, size_t len) {
    if (!t->failed)
        snprintf(t->error, sizeof(t->error), "%.*s", (int)len, error);
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
        wait_fail(t, end->error, strlen(end->error));
    } else if (end->reply[0] == '-') {
        static const char moved[] = "TRYAGAIN Slots have moved to another node meanwhile";
        if (n->pin && upstream_pin_redirect(n->pin, end->reply + 1, end->len - 3, &ask))
            wait_fail(t, moved, sizeof(moved) - 1);
        else
            wait_fail(t, end->reply + 1, end->len - 3);
    } else if (!mark && !wait_count(t, end)) {
        static const char strange[] = "UPSTREAM the node's reply to WAIT is malformed";
        wait_fail(t, strange, sizeof(strange) - 1);
    }
    if (n->answered) {
        unblock_stop(n->unblock);
        n->unblock = NULL;
    }
    if (--r->parts_left == 0)
        wait_finish(r);
}

static void wait_number(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct waiting *t = REQUEST_OWNER(r, struct waiting);
    if (t->nodes[c->index].pin)
        pin_number_learnt(t->nodes[c->index].pin, end);
    if (--r->parts_left == 0)
        wait_finish(r);
}

void wait_half_closed(struct request *r) {
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
    waited_unpin(n, false);
}

bool wait_unblock(struct request *r, bool error) {
    static const char unblocked[] = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
    struct waiting *t = REQUEST_OWNER(r, struct waiting);
    if (t->meant || t->failed)
        return false;
    t->meant = true;
    if (error)
        wait_fail(t, unblocked, sizeof(unblocked) - 1);
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

static void wait_add(struct waiting *t, struct worker *w, struct upstream_node *node, int slot) {
    for (size_t i = 0; i < t->node_count; i++)
        if (t->nodes[i].node == node)
            return;
    t->nodes[t->node_count++] = (struct waited){.worker = w, .node = node, .slot = slot};
}

/* Lists the masters that the session has used, or all if it has used none. */
static struct waiting *wait_nodes(struct session *s) {
    struct upstream *u = s->worker->upstream;
    size_t max = upstream_master_count(u) + 1;
    struct waiting *t = memory_zalloc(sizeof(*t) + max * sizeof(t->nodes[0]));
    bool cluster = upstream_is_cluster(u);
    int end = cluster ? SLOTS : 1;
    for (int slot = 0; slot < end && t->node_count < max; slot++) {
        bool used = !cluster || !s->used_slots || (s->used_slots >> (slot / SESSION_SLOTS_A_BIT) & 1);
        struct upstream_node *node = used ? upstream_node_of_slot(u, slot) : NULL;
        if (node)
            wait_add(t, s->worker, node, slot);
    }
    return t;
}

static void wait_mark(struct worker *w, int slot) {
    char key[64];
    snprintf(key, sizeof(key), "lockkeeper:{%s}:wait", slot_tag((uint16_t)slot));
    build_start(w, 4);
    build_text(w, "EVAL");
    build_text(w, "redis.call('SET', KEYS[1], '') return redis.call('DEL', KEYS[1])");
    build_number(w, 1);
    build_text(w, key);
}

static void wait_start(struct session *s, struct request *request, struct waiting *t, size_t i, const char *bytes,
                       size_t len) {
    invariant(i < t->node_count && !t->nodes[i].pin, "node %zu of %zu", i, t->node_count);
    static const struct upstream_pin_events none;
    struct waited *n = &t->nodes[i];
    struct worker *w = s->worker;
    const char *error;
    n->pin = pin_take(s, n->node, PIN_BLOCKING, &none, &error);
    if (!n->pin) {
        wait_fail(t, error, strlen(error));
        return;
    }
    upstream_pin_patient(n->pin, t->patient_ms);
    pin_ask_number(request, n->pin, wait_number, (uint32_t)i);
    struct call *mark = call_new(request, wait_done);
    mark->index = (uint32_t)i;
    mark->count = 1;
    wait_mark(w, n->slot);
    call_submit_pin(mark, n->pin, w->build.data, w->build.len, false);
    struct call *wait = call_new(request, wait_done);
    wait->index = (uint32_t)i;
    call_submit_pin(wait, n->pin, bytes, len, false);
}

enum dispatch_result wait_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* they may write */
    if (!invariant(!(s->delays & DELAY_BLOCKED), "a session is blocked twice")) {
        session_refuse(s, c, INVARIANT_REFUSED);
        return DISPATCHED;
    }
    struct waiting *t = wait_nodes(s);
    if (t->node_count == 0) {
        memory_free(t);
        session_refuse(s, c, "UPSTREAM no master is known; the request was not sent");
        return DISPATCHED;
    }
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, c);
    request_barrier(request);
    request_own(request, &t->owner, &wait_ops);
    t->patient_ms = blocking_patience(c, k->request, k->bytes);
    session_delay(s, DELAY_BLOCKED, true);
    request->parts_left = 1; /* held here until all are in flight */
    for (size_t i = 0; i < t->node_count; i++)
        wait_start(s, request, t, i, k->bytes, k->request->len);
    t->started = true;
    if (t->failed)
        wait_unpin(t, false);
    if (session_half_closed(s))
        wait_half_closed(request);
    if (--request->parts_left == 0)
        wait_finish(request);
    return DISPATCHED;
}
