/*
 * A rule's `replicas N TIME`: replicas confirm what a lock script has acquired, before the client gets its reply.
 *
 *      script ── "granted" ──> a connection of its own to that node: mark the guard record, WAIT N TIME
 *                                  ├── N or more have it ──> the client's reply, as the script gave it
 *                                  └── fewer, or an error ──> released by its token; the client has lost (0, nil), or
 *                                                             gets an error where its reply can't say so
 *
 * WAIT waits for the last write of its own connection, and the script went over a connection that other sessions use.
 * So the proxy writes the guard record once more, with the token that it has. If the record has another token by then,
 * nothing is confirmed: the node that answers is not the node that ran the script, and does not know of the lease.
 */
#include <ev.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/leases.h"
#include "proxy/session/locks/sending.h"

enum { GRACE_MS = 500, CALLS = 2 }; /* how long an answer may come after TIME; the calls are the mark and WAIT */

static const char mark[] = "if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end "
                           "redis.call('HSET', KEYS[1], 'token', ARGV[1]) return 1";

struct confirm {
    struct request_owner owner; /* must be the first field */
    struct call *call;          /* the client's call */
    struct upstream_pin *pin;   /* NULL: the connection was given back */
    struct ev_timer late;
    int64_t begun_ms;
    unsigned left;          /* how many answers are still to come */
    int64_t answers[CALLS]; /* what the mark and WAIT have answered */
    size_t reply_len;
    char reply[];
};

/* ---- enough, or undone ---------------------------------------------------------------------- */

/* Whether the call may acquire by one of the proxy's scripts, so that the proxy can undo it. Exception: list locks. To
 * undo an acquisition there, the proxy would have to remove the node, and the node was there before. */
bool lock_wants_replicas(const struct lock_call *l) {
    return lock_verb_is(l->plan.verb, VERB_ACQUIRES) && !l->clobbers && l->plan.rule && l->plan.rule->replicas > 0;
}

static bool acquired(const struct lock_call *l, const struct call_end *end, struct lock_envelope *e) {
    return !end->error && lock_envelope_read(l, end->reply, end->len, e) && e->result.outcome == LOCK_GRANTED;
}

const char *lock_lost_reply(const struct lock_call *l, const struct lock_envelope *e, const struct session *s) {
    enum lock_verb verb = l->plan.verb;
    if (e->reply[0] == ':')
        return verb == LOCK_ACQUIRE || verb == LOCK_EXTEND || verb == LOCK_RELEASE ? ":0\r\n" : NULL;
    if (verb != LOCK_ACQUIRE || e->reply[0] != '+')
        return NULL; /* SET NX GET answers nil if it has acquired */
    return s && s->lane.protocol == 3 ? "_\r\n" : "$-1\r\n";
}

static void finish_confirmed(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                             int64_t replicas, struct lock_answer *out) {
    struct lock_envelope e;
    if (!lock_wants_replicas(l) || replicas >= l->plan.rule->replicas || !acquired(l, end, &e)) {
        lock_finish(w, s, l, end, out);
        return;
    }
    const char *lost = lock_lost_reply(l, &e, s);
    out->end = (struct call_end){.why = UPSTREAM_NOT_SENT, .reply = lost, .len = lost ? strlen(lost) : 0};
    if (!lost)
        out->end.error = "UPSTREAM the lock was not confirmed by enough replicas in time, and is released again";
    lock_undo(w, l, NULL, NULL);
    struct lock_result result = {.outcome = LOCK_UNCONFIRMED, .replicas = (uint64_t)replicas};
    lock_learnt(w, s, l, &result);
}

/* ---- the end -------------------------------------------------------------------------------- */

static void confirm_unpin(struct confirm *f, bool clean) {
    struct worker *w = f->call->request->worker;
    ev_timer_stop(w->loop, &f->late);
    if (f->pin)
        pin_give(w, f->pin, PIN_BLOCKING, clean);
    f->pin = NULL;
}

static void confirm_end(struct confirm *f) {
    invariant(f->left == 0 || !f->pin, "%u answers of replicas are due", f->left);
    struct call *c = f->call;
    struct lock_call *l = c->lock;
    struct worker *w = c->request->worker;
    call_done_fn next = l->next;
    struct call_end end = {.reply = f->reply, .len = f->reply_len};
    struct lock_answer out;
    confirm_unpin(f, true);
    l->waited_ms = worker_now(w) - f->begun_ms;
    int64_t replicas = f->answers[0] == 1 ? f->answers[1] : 0;
    if (replicas < l->plan.rule->replicas || !lock_witnessed(c, l, &end)) {
        c->lock = NULL;
        finish_confirmed(w, c->request->session, l, &end, replicas, &out);
        lock_deliver(c, next, &out.end);
    }
    memory_free(f);
}

/* ---- the answers ---------------------------------------------------------------------------- */

static void on_answer(struct call *c, const struct call_end *end) {
    struct confirm *f = REQUEST_OWNER(c->request, struct confirm);
    struct resp_item item;
    const char *p = end->reply;
    invariant(f->left > 0, "an answer of replicas comes too late");
    if (end->error)
        log_verbose("Replicas can't be asked to confirm a lock: %s", end->error);
    else if (p[0] == '-')
        log_warning("Replicas can't be asked to confirm a lock: %.*s", (int)(end->len - 3), p + 1);
    else if (resp_item_read(&p, p + end->len, &item) && item.type == ':')
        f->answers[CALLS - f->left] = item.num;
    request_reply(c->request, "", 0, true);
    if (--f->left == 0)
        confirm_end(f);
}

/* Gives up on a node that has not even answered that the time is over. */
static void on_late(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct confirm *f = timer->data;
    confirm_unpin(f, false); /* the calls fail when the connection closes, at the end of the turn */
}

/* ---- the beginning -------------------------------------------------------------------------- */

static void confirm_submit(struct confirm *f, struct worker *w, bool asking) {
    invariant(f->pin && f->left > 0, "replicas are asked over no connection");
    struct request *r = request_internal(w);
    request_own(r, &f->owner, &request_owner_silent);
    r->call.done = on_answer;
    call_submit_pin(&r->call, f->pin, w->build.data, w->build.len, asking);
}

bool lock_confirm(struct call *c, struct lock_call *l, const struct call_end *end) {
    static const struct upstream_pin_events none;
    struct session *s = c->request->session;
    struct worker *w = c->request->worker;
    struct lock_envelope e;
    if (!s || !lock_wants_replicas(l) || !acquired(l, end, &e))
        return false;
    struct confirm *f = memory_zalloc(sizeof(*f) + end->len);
    f->call = c;
    f->begun_ms = worker_now(w);
    f->reply_len = end->len;
    memcpy(f->reply, end->reply, end->len);
    ev_timer_init(&f->late, on_late, (double)(l->plan.rule->replicas_ms + GRACE_MS) / 1000, 0.);
    f->late.data = f;
    const char *error;
    struct upstream_node *node = upstream_asked_node(&c->up);
    bool asking = node != NULL; /* the slot is moving to this node: the first call needs ASKING */
    if (!node)
        node = upstream_node_of_slot(w->upstream, c->up.slot);
    f->pin = pin_take(s, node, PIN_BLOCKING, &none, &error);
    if (!f->pin) {
        log_verbose("Replicas can't be asked to confirm a lock: %s", error);
        confirm_end(f);
        return true;
    }
    upstream_pin_patient(f->pin, PIN_PATIENT);
    ev_timer_start(w->loop, &f->late);
    f->left = CALLS;
    build_start(w, 5);
    build_text(w, "EVAL");
    build_bulk(w, mark, sizeof(mark) - 1);
    build_number(w, 1);
    lock_build_guard(w, l->plan.key.name, l->plan.key.len);
    build_text(w, l->plan.attempt_token);
    confirm_submit(f, w, asking);
    build_start(w, 3);
    build_text(w, "WAIT");
    build_number(w, l->plan.rule->replicas);
    build_number(w, l->plan.rule->replicas_ms);
    confirm_submit(f, w, false);
    return true;
}

void lock_finish_queued(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                        int64_t replicas, struct lock_answer *out) {
    struct lock_envelope e;
    bool elsewhere = s && l->db != s->lane.db;
    bool known = elsewhere && lock_envelope_read(l, end->reply, end->len, &e);
    if (s)
        l->protocol = (uint8_t)s->lane.protocol; /* HELLO in the transaction may have changed the protocol */
    if (!elsewhere && lock_queue_ends(w, s, l, end, out))
        return;
    finish_confirmed(w, s, l, elsewhere ? &lock_not_sent_end : end, replicas, out);
    if (elsewhere)
        out->end = known ? (struct call_end){.reply = e.reply, .len = e.reply_len} : *end;
}
