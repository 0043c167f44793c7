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
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/blocking/blocking.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/locks/locks.h"
#include "proxy/session/semaphores/semaphores.h"

enum { HOPS_MAX = 5 };

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

/* ---- one blocking command -------------------------------------------------------------------------- */

static void blocked_done(struct call *c, const struct call_end *end);

static const struct call_end not_sent = {.error = "UPSTREAM the request was not sent", .why = UPSTREAM_NOT_SENT};

static void blocked_unpin(struct blocked *b, bool clean) {
    unblock_stop(b->unblock);
    b->unblock = NULL;
    if (b->pin)
        pin_give(b->request->worker, b->pin, PIN_BLOCKING, clean);
    b->pin = NULL;
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
    struct blocked *b = REQUEST_OWNER(c->request, struct blocked);
    if (b->pin)
        pin_number_learnt(b->pin, end);
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
    pin_ask_number(r, b->pin, blocked_number, 0);
    if (session_half_closed(r->session))
        blocked_leaves(b);
    call_submit_pin(&r->call, b->pin, b->bytes, b->len, asking);
}

static void blocked_again(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct blocked *b = timer->data;
    blocked_start(b, pin_node(b->request->session, b->slot), false);
}

/* Whether a command that was not sent waits or continues: its node is out of reach, or the new map that it waited for
 * has come. */
static bool blocked_unsent(struct blocked *b, const struct call_end *end) {
    bool waited = !b->pin;
    if (end->why != UPSTREAM_NOT_SENT || (!waited && b->unsent++ >= PIN_UNSENT_TWICE))
        return false;
    blocked_unpin(b, false);
    blocked_start(b, pin_node(b->request->session, b->slot), false);
    return true;
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
    if (r->session && end->error && blocked_unsent(b, end))
        return;
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
        unblock_stop(b->unblock);
        b->unblock = unblock_start(r->worker, &b->lane, b->pin, "ERROR", blocked_in_vain, b);
        return;
    }
    if (b->pin) { /* its call fails when the connection is closed, at the end of the turn */
        blocked_unpin(b, false);
        return;
    }
    upstream_abandon(r->worker->upstream, &r->call.up); /* it may be waiting for the map */
    blocked_end(b, false, &not_sent);
    request_reply(r, "", 0, true);
}

bool blocking_lasts(const struct request *r) {
    return r->session != NULL;
}

static const struct request_owner_ops blocked_ops = {.left = blocked_left, .may_last = blocking_lasts};

int64_t blocking_patience(const struct command *c, const struct resp_request *r, const char *bytes) {
    int64_t ms = command_wait_ms(c, bytes, r);
    return ms > 0 ? ms : PIN_PATIENT;
}

enum dispatch_result blocking_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    const struct resp_request *r = k->request;
    const char *bytes = k->bytes;
    int slot = k->slot;
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* an earlier request may end its wait */
    if (slot == SLOT_SEVERAL) {
        session_refuse(s, c, "CROSSSLOT Keys in request don't hash to the same slot");
        return DISPATCHED;
    }
    if (!invariant(!(s->delays & DELAY_BLOCKED), "a session is blocked twice")) {
        session_refuse(s, c, INVARIANT_REFUSED);
        return DISPATCHED;
    }
    counter_add(&s->worker->counters.requests_forwarded, 1);
    session_uses(s, slot);
    struct request *request = request_new(s, c);
    struct blocked *b = memory_alloc(sizeof(*b) + r->len);
    *b =
        (struct blocked){.request = request, .slot = slot, .patient_ms = blocking_patience(c, r, bytes), .len = r->len};
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
    struct list_node *n = s->delays & DELAY_BLOCKED ? list_first(&s->requests) : NULL;
    struct request *r = n ? LIST_ENTRY(n, struct request, link) : NULL;
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
