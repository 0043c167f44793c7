/*
 * What a lock script has acquired or extended is confirmed before the client gets its reply: by replicas (a rule's
 * `replicas N TIME`), by witnesses (a rule's `quorum yes`), or by both in this order.
 *
 *      script ── "granted" ──> a connection of its own to that node: mark the guard record, WAIT N TIME
 *                                  ├── N or more have it ──> the client's reply, as the script gave it
 *                                  └── fewer, or an error ──> released by its token; the client has lost (0, nil), or
 *                                                             gets an error where its reply can't say so
 *
 * WAIT waits for the last write of its own connection, and the script went over a connection that other sessions use.
 * So the proxy writes the guard record once more, with the token that it has. If the record has another token by then,
 * nothing is confirmed: the node that answers is not the node that ran the script, and does not know of the lease.
 *
 *      script ── "granted" ──> the witnesses, all at once
 *                                  ├── a majority grants ──> the client's reply, as the script gave it
 *                                  ├── a fence is too low ─> raise_fence.lua at Redis; the witnesses once more
 *                                  ├── others hold it ─────> was that lease released? The guard record says so:
 *                                  │                         the witnesses once more, with its token as `over`
 *                                  └── else ───────────────> released by its token; the client has lost (0, nil),
 *                                                            or gets an error
 *
 * What Redis calls lapsed may be an extension that a failover has forgotten. So a witness gives a record up only if its
 * lease was released, or its own time is over. The guard record notes the last release in its field `over`; behind
 * release_usual.lua its field `attempt` has the lease's token and a mark.
 *
 * Inside MULTI, and for a script of the application, EXEC's array waits for the witnesses:
 *
 *      EXEC's array ── lock_queue_answer, for each lock call ──> lock_queue_vote ──> votes ──> the client's array
 *
 * An acquisition has one vote, and later commands of the transaction on the same lease share it: SETNX and EXPIRE are
 * asked about once, with the end that EXPIRE has set. An extension of an earlier lease has a vote of its own. The
 * engine learns of all calls in the order of the array.
 */
#include <ev.h>
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/sending.h"
#include "proxy/witness/witness.h"

enum { RAISES_MAX = 3, LIMIT_PART = 4 /* witnesses are waited for during a quarter of the lease at most */ };

/* The reply, static, of a command that has acquired or extended, once another lease counts after all; NULL: none. */
static const char *lost_reply(const struct lock_call *l, const struct lock_envelope *e, const struct session *s) {
    enum lock_verb verb = l->plan.verb;
    if (e->reply[0] == ':')
        return verb == LOCK_ACQUIRE || verb == LOCK_EXTEND || verb == LOCK_RELEASE ? ":0\r\n" : NULL;
    if (verb != LOCK_ACQUIRE || e->reply[0] != '+')
        return NULL; /* SET NX GET answers nil if it has acquired */
    return s && s->lane.protocol == 3 ? "_\r\n" : "$-1\r\n";
}

/* Why the witnesses have not confirmed what a script has acquired or extended. */
struct lock_refusal {
    struct lock_call *by;      /* whose lock they have refused */
    struct lock_result result; /* for the engine */
    bool lost;                 /* they name another lease; else too few have answered */
    char error[160];           /* for a client whose command has no reply for a lost attempt */
};
struct lock_ballot {
    struct lock_call *voter; /* whose vote counts for this call, perhaps its own; NULL: none. It is ended before */
    struct lock_result result;
    struct lock_refusal why; /* why.by NULL: it is not refused */
    struct lock_queue *queue;
};

/* The locks of a command while witnesses are asked. MSETNX acquires several: if one is refused, all are released. */
struct poll {
    struct worker *worker;
    struct lock_call *first; /* of the ring of calls */
    struct call *call;       /* the client's; NULL: the lock call is one of a transaction */
    size_t due;              /* of how many locks an answer is due, and 1 while they are being asked for */
    bool undoing;
    struct lock_refusal why; /* the first refusal; why.by NULL: there is none */
    size_t reply_len;        /* of a client's call: the script's answer */
    char reply[];
};

static void call_decided(struct poll *v);
static void decided(struct lock_queue *queue);

/* An answer has come. After the last one the call goes on: confirmed, or with what it had acquired released again. */
static void poll_over(void *arg) {
    struct poll *v = arg;
    struct lock_call *l = v->first;
    invariant(v->due > 0, "witnesses decide twice about one of several locks");
    if (--v->due > 0)
        return;
    if (!v->why.by || v->undoing) {
        if (v->call) {
            call_decided(v);
        } else {
            v->first->ballot->why = v->why;
            decided(v->first->ballot->queue);
        }
        memory_free(v);
        return;
    }
    v->undoing = true;
    v->due = 1;
    do
        if (l->witnessed) {
            v->due++;
            lock_undo(v->worker, l, poll_over, v);
        }
    while ((l = lock_call_next(l)) != v->first);
    poll_over(v);
}

/* One lock while the witnesses are asked. */
struct quorum {
    struct request_owner owner; /* must be the first field */
    struct poll *poll;
    struct lock_call *lock;
    struct worker *worker;
    bool acquires; /* else it extends */
    bool own;      /* it extends its claim's lease; else another session's, which only its fence names */
    bool asked_over;
    unsigned raises;
    int64_t begun_ms, limit_ms, pttl_ms;
    uint64_t fence;
    char over[WITNESS_TOKEN_MAX];
    struct witness_word word; /* the last votes */
    struct lock_refusal why;  /* why.by NULL: it is not refused */
};

/* ---- witnesses: the end ------------------------------------------------------------------------------- */

#define REMEMBERED "LOCKED the lock is held, as its witnesses remember; it is released again"

/* The client's reply or error in place of the script's answer `end`. Borrows the error from `why`. */
static struct call_end refused_end(const struct lock_call *l, const struct session *s, const struct lock_refusal *why,
                                   const struct call_end *end) {
    struct lock_envelope e;
    bool lost = why->lost && lock_envelope_read(l, end->reply, end->len, &e);
    const char *reply = lost ? lost_reply(l, &e, s) : NULL;
    if (reply)
        return (struct call_end){.reply = reply, .len = strlen(reply), .why = UPSTREAM_NOT_SENT};
    return (struct call_end){.error = why->error, .why = UPSTREAM_NOT_SENT};
}

/* The witnesses have confirmed, or Redis has nothing any more of what they refused. */
static void quorum_over(void *arg) {
    struct quorum *q = arg;
    if (q->why.by && !q->poll->why.by)
        q->poll->why = q->why;
    poll_over(q->poll);
    memory_free(q);
}

/* The witnesses have not confirmed a call; `error` NULL: they name another lease. The lock is released first. */
static void quorum_refused(struct quorum *q, enum lock_outcome outcome, const char *error) {
    q->why.by = q->lock;
    q->why.lost = !error;
    q->why.result.outcome = outcome;
    q->why.result.replicas = vote_answered(&q->word.vote);
    q->why.result.witnesses = (uint8_t)q->word.vote.count;
    snprintf(q->why.error, sizeof(q->why.error), "%s", error ? error : REMEMBERED);
    if (q->acquires)
        lock_undo(q->worker, q->lock, quorum_over, q);
    else
        quorum_over(q);
}

static void quorum_unconfirmed(struct quorum *q) {
    char error[160];
    counter_add(&q->worker->counters.quorum_unconfirmed, 1);
    snprintf(error, sizeof(error), "UPSTREAM the %s was not confirmed by its witnesses (%u of %u answered)%s",
             q->acquires ? "lock" : "extension", vote_answered(&q->word.vote), q->word.vote.count,
             q->acquires ? "; it is released again" : "");
    quorum_refused(q, q->acquires ? LOCK_UNCONFIRMED : LOCK_NOT_SENT, error);
}

static void quorum_remembered(struct quorum *q) {
    counter_add(&q->worker->counters.quorum_remembered, 1);
    quorum_refused(q, q->acquires ? LOCK_REMEMBERED : LOCK_OVERTAKEN, NULL);
}

/* ---- Redis is asked -------------------------------------------------------------------------------- */

static void quorum_ask(struct quorum *q);

/* Sends what is in w->build to the lock's node, over its session's connection. */
static void quorum_submit(struct quorum *q, call_done_fn done, const struct script *script) {
    struct worker *w = q->worker;
    struct request *r = request_internal(w, done);
    const struct lock_plan *plan = &q->lock->plan;
    struct upstream_lane lane = {.login = plan->login, .db = plan->key.db, .protocol = 2};
    request_own(r, &q->owner, &request_owner_silent);
    r->call.up.script = script;
    r->call.up.repeatable = true;
    call_submit_lane(&r->call, plan->slot, &lane, w->build.data, w->build.len);
}

static void on_raised(struct call *c, const struct call_end *end) {
    struct quorum *q = REQUEST_OWNER(c->request, struct quorum);
    bool raised = !end->error && end->len == 4 && memcmp(end->reply, ":1\r\n", 4) == 0;
    request_disown(c->request);
    request_reply(c->request, "", 0, true);
    if (raised)
        quorum_ask(q);
    else
        quorum_unconfirmed(q);
}

/* Whether `token` (of `len` bytes) is the lease that a witness named. It is then given up. */
static bool gives_up(struct quorum *q, const char *token, size_t len) {
    for (unsigned i = 0; i < q->word.vote.count; i++)
        if (len > 0 && strlen(q->word.tokens[i]) == len && memcmp(q->word.tokens[i], token, len) == 0) {
            memcpy(q->over, q->word.tokens[i], sizeof(q->over));
            return true;
        }
    return false;
}

/* Takes the fields `attempt` and `over`. If a witness has named a lease that was released, they are asked once more. */
static void on_last_release(struct call *c, const struct call_end *end) {
    struct quorum *q = REQUEST_OWNER(c->request, struct quorum);
    struct resp_item item;
    const char *p = end->reply, *stop = end->reply + end->len;
    const size_t mark = sizeof(LOCK_RELEASED_MARK) - 1;
    bool known = false, read = !end->error && resp_item_read(&p, stop, &item) && item.type == '*';
    if (read && resp_item_read(&p, stop, &item) && item.type == '$' && !item.null && item.len > mark &&
        memcmp(item.str + item.len - mark, LOCK_RELEASED_MARK, mark) == 0) /* other attempts may be live leases */
        known = gives_up(q, item.str, item.len - mark);
    if (read && !known && resp_item_read(&p, stop, &item) && item.type == '$' && !item.null)
        known = gives_up(q, item.str, item.len);
    request_disown(c->request);
    request_reply(c->request, "", 0, true);
    if (known)
        quorum_ask(q);
    else if (vote_verdict(&q->word.vote) == VERDICT_HELD)
        quorum_remembered(q);
    else
        quorum_unconfirmed(q);
}

/* ---- the witnesses are asked ----------------------------------------------------------------------- */

static void quorum_heard(void *arg, const struct witness_word *word) {
    struct quorum *q = arg;
    struct worker *w = q->worker;
    struct lock_call *l = q->lock;
    const struct lock_key *key = &l->plan.key;
    q->word = *word;
    histogram_note(&w->durations.witnesses, (worker_now(w) - q->begun_ms) * 1000);
    bool late = worker_now(w) - q->begun_ms > q->limit_ms;
    enum verdict verdict = vote_verdict(&word->vote);
    if (verdict == VERDICT_GRANTED && !late) {
        counter_add(&w->counters.quorum_granted, 1);
        l->witnessed = true;
        l->waited_ms += worker_now(w) - q->begun_ms + 1; /* from the moment before the answer */
        l->raised_fence = q->raises > 0 ? q->fence : 0;
        quorum_over(q);
    } else if (verdict == VERDICT_LOW && q->acquires && q->raises < RAISES_MAX && !late) {
        for (unsigned i = 0; i < word->vote.count; i++) /* above all that the witnesses know */
            if (word->fences[i] >= q->fence)
                q->fence = word->fences[i] + 1;
        q->raises++;
        lock_build_call(w, SCRIPT_RAISE_FENCE, NULL, key, 2);
        build_text(w, l->plan.attempt_token);
        build_number(w, (int64_t)q->fence);
        quorum_submit(q, on_raised, script_get(SCRIPT_RAISE_FENCE));
    } else if (q->acquires && !q->asked_over && vote_may_turn(&word->vote) && !late) {
        q->asked_over = true;
        build_start(w, 4);
        build_text(w, "HMGET");
        lock_build_guard(w, key->name, key->len);
        build_text(w, "attempt");
        build_text(w, "over");
        quorum_submit(q, on_last_release, NULL);
    } else if (verdict == VERDICT_HELD || (verdict == VERDICT_LOW && !q->acquires)) {
        quorum_remembered(q);
    } else {
        quorum_unconfirmed(q);
    }
}

static void quorum_ask(struct quorum *q) {
    struct worker *w = q->worker;
    const struct lock_plan *plan = &q->lock->plan;
    int64_t left_ms = q->limit_ms - (worker_now(w) - q->begun_ms);
    const char *token = q->acquires ? plan->attempt_token : q->own ? plan->claim_token : "";
    struct witness_lease lease = quorum_lease(&plan->key, token, q->fence);
    witness_take(w->witnesses, &lease, q->over, quorum_promise_ms(w, q->pttl_ms + plan->rule->lock_delay_ms),
                 left_ms > 0 ? left_ms : 1, quorum_heard, q);
}

/* ---- the beginning --------------------------------------------------------------------------------- */

/* Whether the answer says that the lease's end has moved, or may have. */
static bool has_extended(const struct lock_call *l, const struct lock_result *r) {
    if (l->plan.verb == LOCK_SCRIPT) /* it may have extended the lease */
        return r->outcome == LOCK_HELD && r->same && r->fence > 0;
    bool own = r->outcome == LOCK_DONE || r->outcome == LOCK_ADOPTED;
    bool writes = l->plan.verb == LOCK_EXTEND || l->plan.verb == LOCK_REPLACE || l->plan.verb == LOCK_REWRITE ||
                  l->plan.verb == LOCK_SWAP || l->plan.verb == LOCK_PASS;
    return own && writes && r->fence > 0 && (r->pttl_ms >= 0 || r->pttl_ms == PTTL_NONE);
}

/* Whether a release finds no lock, although its claim's lease has not ended: a failover has forgotten the lock. */
static bool release_forgotten(struct worker *w, const struct lock_call *l, const struct lock_result *r) {
    return l->plan.verb == LOCK_RELEASE && l->shape == SHAPE_INT &&
           (r->outcome == LOCK_FREE || r->outcome == LOCK_HELD) && l->plan.claim != 0 &&
           engine_claim_lasts(w->shared->engine, &l->plan, worker_now(w));
}

static void vote_on(struct lock_call *l, const struct lock_result *r, struct poll *poll) {
    struct worker *w = poll->worker;
    struct quorum *q = memory_zalloc(sizeof(*q));
    q->poll = poll;
    q->lock = l;
    q->worker = w;
    q->acquires = r->outcome == LOCK_GRANTED;
    q->own = r->outcome == LOCK_DONE && l->plan.right == RIGHT_CLAIM && l->plan.claim_len > 0;
    q->begun_ms = worker_now(w);
    q->pttl_ms = r->pttl_ms;
    if (q->pttl_ms >= 0) /* what is left of it since replicas were waited for */
        q->pttl_ms = q->pttl_ms > l->waited_ms ? q->pttl_ms - l->waited_ms : 0;
    q->limit_ms = w->config->witness_timeout_ms;
    if (q->pttl_ms >= 0 && q->limit_ms > q->pttl_ms / LIMIT_PART)
        q->limit_ms = q->pttl_ms / LIMIT_PART;
    q->fence = r->fence;
    if (q->acquires && l->plan.right == RIGHT_RELEASE_THEN_ACQUIRE)
        snprintf(q->over, sizeof(q->over), "%s", l->plan.claim_token);
    bool too_long = q->pttl_ms < 0 || q->pttl_ms > quorum_longest_ms(w); /* for witnesses to remember */
    if (!w->witnesses || (too_long && !q->acquires)) {
        quorum_unconfirmed(q);
    } else if (too_long) {
        char error[160];
        snprintf(error, sizeof(error),
                 "ERR a lock under quorum lasts %lld ms at most (witness-quarantine says so); it is released again",
                 (long long)quorum_longest_ms(w));
        quorum_refused(q, LOCK_NOT_SENT, error);
    } else {
        quorum_ask(q);
    }
}

/* Asks the witnesses about the locks in the ring of calls that begins with `first`, of which a script has answered `r`.
 * `call`, a client's, ends when they are heard: with the script's answer `end`, or a refusal. `call` NULL: `first` is a
 * queued call, whose ballot gets the result. */
static void vote(struct worker *w, struct lock_call *first, const struct lock_result *r, struct call *call,
                 const struct call_end *end) {
    struct lock_call *l = first;
    struct poll *v = memory_zalloc(sizeof(*v) + (call ? end->len : 0));
    *v = (struct poll){.worker = w, .first = first, .call = call, .due = 1};
    if (call) {
        v->reply_len = end->len;
        memcpy(v->reply, end->reply, end->len);
    }
    do {
        v->due++;
        vote_on(l, r, v);
    } while ((l = lock_call_next(l)) != first);
    poll_over(v);
}

/* ---- a client's call ------------------------------------------------------------------------------- */

static void call_decided(struct poll *v) {
    struct call *c = v->call;
    struct session *s = c->request->session;
    struct lock_call *l = v->first;
    const struct call_end end = {.reply = v->reply, .len = v->reply_len};
    if (!v->why.by) {
        lock_end(c, l, &end);
        return;
    }
    call_done_fn next = l->next;
    struct call_end refused = refused_end(l, s, &v->why, &end);
    bool waits = s && v->why.result.outcome == LOCK_REMEMBERED && l->plan.rule->wait_ms > 0 && v->worker->waits;
    if (waits && !refused.error && l->plan.verb == LOCK_ACQUIRE) { /* its reply can say that it has lost */
        struct lock_envelope refusal = {.reply = refused.reply,
                                        .reply_len = refused.len,
                                        .result = {.outcome = LOCK_REMEMBERED, .pttl_ms = PTTL_UNKNOWN}};
        for (const struct lock_call *at = l; at != v->why.by; at = lock_call_next(at))
            refusal.refuses++;
        if (v->worker->waits->refused(c, l, &refusal))
            return;
    }
    c->lock = NULL;
    lock_learnt_all(v->worker, s, v->why.by, &v->why.result);
    lock_deliver(c, next, &refused);
}

static bool witnessed(struct call *c, struct lock_call *l, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct lock_envelope e;
    if (end->error || l->plan.rule->quorum != LOCK_QUORUM_YES || (l->clobbers && !l->acquires) ||
        !lock_envelope_read(l, end->reply, end->len, &e))
        return false;
    if (release_forgotten(w, l, &e.result)) {
        lock_end(c, l, &lock_released_end); /* which tells the witnesses */
        return true;
    }
    if (e.result.outcome != LOCK_GRANTED && !has_extended(l, &e.result))
        return false;
    vote(w, l, &e.result, c, end);
    return true;
}

/* ---- inside MULTI ----------------------------------------------------------------------------------- */

void lock_queue_answer(struct lock_call *l, const struct call_end *element) {
    struct lock_envelope e;
    if (!l->plan.rule || l->plan.rule->quorum != LOCK_QUORUM_YES || (l->clobbers && !l->acquires) ||
        !lock_envelope_read(l, element->reply, element->len, &e))
        return;
    invariant(!l->ballot, "a queued call is answered twice");
    l->ballot = memory_zalloc(sizeof(*l->ballot));
    l->ballot->result = e.result;
}

/* The call of the ring that begins with `first` which is on the key of `l`; NULL: none. */
static const struct lock_call *on_key(const struct lock_call *first, const struct lock_call *l) {
    const struct lock_call *at = first;
    do
        if (lock_same_key(at, l))
            return at;
    while ((at = lock_call_next(at)) != first);
    return NULL;
}

/* Finds whose vote counts for each call. Returns whether there is a vote. */
static bool voters_find(const struct lock_queue *queue) {
    bool asks = false;
    LIST_EACH(l, &queue->calls, struct lock_call, queued) {
        if (!l->ballot)
            continue;
        const struct lock_result *r = &l->ballot->result;
        bool extends = has_extended(l, r);
        struct lock_call *voter = r->outcome == LOCK_GRANTED ? l : NULL;
        int64_t pttl_ms = r->pttl_ms;
        /* else the call before it that has acquired the lease of which it has heard */
        for (const struct list_node *b = l->queued.prev; !voter && b != &queue->calls; b = b->prev) {
            struct lock_call *before = LIST_ENTRY(b, struct lock_call, queued);
            if (before->ballot && before->ballot->result.outcome == LOCK_GRANTED &&
                before->ballot->result.fence == r->fence && on_key(before, l))
                voter = before;
        }
        if (voter && extends && (!voter->clobbers || pttl_ms > voter->ballot->result.pttl_ms))
            voter->ballot->result.pttl_ms = pttl_ms;
        l->ballot->voter = !voter && extends ? l : voter;
        asks |= l->ballot->voter == l;
    }
    return asks;
}

/* A vote is decided. The last one decides for the calls that have none of their own. */
static void decided(struct lock_queue *queue) {
    invariant(queue->due > 0, "witnesses decide twice about a queued call");
    if (--queue->due > 0)
        return;
    LIST_EACH(l, &queue->calls, struct lock_call, queued) {
        const struct lock_call *voter = l->ballot ? l->ballot->voter : NULL;
        if (!voter || voter == l)
            continue;
        l->ballot->why = voter->ballot->why;
        const struct lock_call *acquired = on_key(voter, l);
        l->waited_ms = acquired->waited_ms;
        l->raised_fence = acquired->raised_fence;
    }
    queue->done(queue->arg);
}

bool lock_queue_vote(struct worker *w, struct lock_queue *queue, void (*done)(void *arg), void *arg) {
    if (!voters_find(queue))
        return false;
    queue->due = 1;
    queue->done = done;
    queue->arg = arg;
    LIST_EACH(l, &queue->calls, struct lock_call, queued) {
        if (!l->ballot || l->ballot->voter != l)
            continue;
        l->ballot->queue = queue;
        queue->due++;
        vote(w, l, &l->ballot->result, NULL, NULL);
    }
    decided(queue);
    return true;
}

bool lock_queue_ends(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                     struct lock_answer *out) {
    static const struct lock_result not_done = {.outcome = LOCK_NOT_SENT};
    if (l->ballot && release_forgotten(w, l, &l->ballot->result)) {
        lock_finish(w, s, l, &lock_released_end, out); /* which tells the witnesses */
        return true;
    }
    if (!l->ballot || !l->ballot->why.by)
        return false;
    struct lock_refusal why = l->ballot->why;
    struct lock_envelope e;
    bool voter = l->ballot->voter == l;
    bool reads = lock_verb_is(l->plan.verb, VERB_SHOWS) && lock_envelope_read(l, end->reply, end->len, &e);
    memcpy(out->text, why.error, sizeof(why.error));
    out->end = reads ? (struct call_end){.reply = e.reply, .len = e.reply_len} : refused_end(l, s, &why, end);
    if (out->end.error)
        out->end.error = out->text;
    lock_learnt_all(w, s, voter ? why.by : l, voter ? &why.result : &not_done);
    return true;
}

const char *lock_queue_refusal(const struct lock_call *l) {
    return l && l->ballot && l->ballot->why.by ? l->ballot->why.error : NULL;
}

/* ---- replicas ------------------------------------------------------------------------------------------ */

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

/* Whether the call may acquire by one of the proxy's scripts, so that the proxy can undo it. Exception: list locks. To
 * undo an acquisition there, the proxy would have to remove the node, and the node was there before. */
bool lock_wants_replicas(const struct lock_call *l) {
    return lock_verb_is(l->plan.verb, VERB_ACQUIRES) && !l->clobbers && l->plan.rule && l->plan.rule->replicas > 0;
}

static bool acquired(const struct lock_call *l, const struct call_end *end, struct lock_envelope *e) {
    return !end->error && lock_envelope_read(l, end->reply, end->len, e) && e->result.outcome == LOCK_GRANTED;
}

static void finish_confirmed(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                             int64_t replicas, struct lock_answer *out) {
    struct lock_envelope e;
    if (!lock_wants_replicas(l) || replicas >= l->plan.rule->replicas || !acquired(l, end, &e)) {
        lock_finish(w, s, l, end, out);
        return;
    }
    const char *lost = lost_reply(l, &e, s);
    out->end = (struct call_end){.why = UPSTREAM_NOT_SENT, .reply = lost, .len = lost ? strlen(lost) : 0};
    if (!lost)
        out->end.error = "UPSTREAM the lock was not confirmed by enough replicas in time, and is released again";
    lock_undo(w, l, NULL, NULL);
    struct lock_result result = {.outcome = LOCK_UNCONFIRMED, .replicas = (uint64_t)replicas};
    lock_learnt(w, s, l, &result);
}

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
    if (replicas < l->plan.rule->replicas || !witnessed(c, l, &end)) {
        c->lock = NULL;
        finish_confirmed(w, c->request->session, l, &end, replicas, &out);
        lock_deliver(c, next, &out.end);
    }
    memory_free(f);
}

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

static void confirm_submit(struct confirm *f, struct worker *w, bool asking) {
    invariant(f->pin && f->left > 0, "replicas are asked over no connection");
    struct request *r = request_internal(w, on_answer);
    request_own(r, &f->owner, &request_owner_silent);
    call_submit_pin(&r->call, f->pin, w->build.data, w->build.len, asking);
}

bool lock_confirm(struct call *c, struct lock_call *l, const struct call_end *end) {
    static const struct upstream_pin_events none;
    struct session *s = c->request->session;
    struct worker *w = c->request->worker;
    struct lock_envelope e;
    if (!s || !lock_wants_replicas(l) || !acquired(l, end, &e))
        return witnessed(c, l, end);
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
