/*
 * Ends what blocks on a session's pin: its client has shut down its side (printf ... | nc), or an operator ends a WAIT
 * at all its masters.
 *
 *      pin ── BLPOP k 0 ──> node          shared connection ── CLIENT UNBLOCK id ERROR ──> node, until it has ended
 *
 * Redis closes a connection whose client blocks and has shut down its side. A command that need not wait is answered,
 * and so are the requests behind it. Only the node knows whether the command blocks. UNBLOCK is repeated, since it may
 * overtake the command.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/blocking/blocking.h"

enum { FIRST_MS = 2, DOUBLINGS = 7 };

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
    unsigned doublings = u->times < DOUBLINGS ? u->times++ : DOUBLINGS;
    ev_timer_set(&u->again, (double)(FIRST_MS << doublings) / 1000., 0.);
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

static void unblock_ask(struct unblock *u) {
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
    u->asking = request_internal(w);
    request_own(u->asking, &u->owner, &request_owner_silent);
    u->asking->call.done = unblock_answered;
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

static void unblock_again(struct ev_loop *loop, struct ev_timer *timer, int events) {
    unblock_ask(timer->data);
}

struct unblock *unblock_start(struct worker *w, const struct upstream_lane *lane, struct upstream_pin *pin,
                              const char *how, unblock_hopeless_fn hopeless, void *arg) {
    struct unblock *u = memory_zalloc(sizeof(*u));
    *u = (struct unblock){.worker = w, .lane = *lane, .pin = pin, .how = how, .hopeless = hopeless, .arg = arg};
    u->lane.dedicated = 0;
    ev_timer_init(&u->again, unblock_again, 0., 0.);
    u->again.data = u;
    unblock_later(u);
    return u;
}

/* Closes a session if it can't be found out whether it blocks, so that no element is popped for a client that has
 * left. */
static void unblock_in_vain(void *session) {
    session_close(session, "the client left while it was blocked");
}

struct unblock *unblock_left(struct session *s, struct upstream_pin *pin) {
    return unblock_start(s->worker, &s->lane, pin, "ERROR", unblock_in_vain, s);
}

void unblock_stop(struct unblock *u) {
    if (!u)
        return;
    if (u->asking)
        request_disown(u->asking);
    ev_timer_stop(u->worker->loop, &u->again);
    memory_free(u);
}

bool unblock_done(const struct call_end *end) {
    static const char word[] = "-UNBLOCKED ";
    return !end->error && end->len > sizeof(word) && memcmp(end->reply, word, sizeof(word) - 1) == 0;
}
