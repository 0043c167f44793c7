/*
 * A rule's `quorum yes`: witnesses confirm what a lock script has acquired or extended, before the client gets its
 * reply.
 *
 *      script ── "granted" ──> the witnesses, all at once
 *                                  ├── a majority grants ──> the client's reply, as the script gave it
 *                                  ├── a fence is too low ─> raise_fence.lua at Redis; the witnesses once more
 *                                  ├── others hold it ─────> was that lease released? The guard record says so:
 *                                  │                         the witnesses once more, with its token as `over`
 *                                  └── else ───────────────> released by its token; the client has lost (0, nil),
 *                                                            or gets an error
 *
 * What Redis calls lapsed may be an extension that a failover has forgotten. So a witness gives a record up to another
 * lease only if its own lease was released, or if its own time is over. The guard record notes the last release in its
 * field `over`. release_usual.lua leaves that field: there the field `attempt` has the lease's token and a
 * mark, since that is the attempt of a release under such a rule.
 */
#include "proxy/session/locks/quorum.h"

#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/clock.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/leases.h"
#include "proxy/session/locks/lock_args.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/sending.h"

#define FAR_AWAY INT64_C(1000000000000000)

enum { RAISES_MAX = 3, LIMIT_PART = 4 /* witnesses are waited for during a quarter of the lease at most */ };

/* A lock call whose script has acquired or extended, while the witnesses are asked. */
struct quorum {
    struct request_owner owner; /* must be the first field */
    lock_vote_fn done;
    void *arg;
    struct lock_call *lock;
    struct worker *worker;
    bool acquires;
    bool own; /* not acquires: it has extended its claim's lease; else another session's, which only its fence names */
    bool asked_over;
    unsigned raises;
    int64_t begun_ms, limit_ms, pttl_ms;
    uint64_t fence;
    char over[WITNESS_TOKEN_MAX];
    struct witness_word word; /* the last votes */
    struct lock_refusal why;
};

/* ---- the end --------------------------------------------------------------------------------------- */

static void quorum_confirmed(struct quorum *q) {
    struct lock_call *l = q->lock;
    struct worker *w = q->worker;
    counter_add(&w->counters.quorum_granted, 1);
    l->witnessed = true;
    l->waited_ms += worker_now(w) - q->begun_ms + 1; /* from the moment before the answer */
    l->raised_fence = q->raises > 0 ? q->fence : 0;
    q->done(q->arg, NULL);
    memory_free(q);
}

#define REMEMBERED "LOCKED the lock is held, as its witnesses remember; it is released again"

struct call_end lock_refused_end(const struct lock_call *l, const struct session *s, const struct lock_refusal *why,
                                 const struct call_end *end) {
    struct lock_envelope e;
    bool lost = why->lost && lock_envelope_read(l, end->reply, end->len, &e);
    const char *reply = lost ? lock_lost_reply(l, &e, s) : NULL;
    if (reply)
        return (struct call_end){.reply = reply, .len = strlen(reply), .why = UPSTREAM_NOT_SENT};
    return (struct call_end){.error = why->error, .why = UPSTREAM_NOT_SENT};
}

/* Redis has nothing any more of what was refused. */
static void quorum_undone(void *arg) {
    struct quorum *q = arg;
    q->done(q->arg, &q->why);
    memory_free(q);
}

/* The witnesses have not confirmed a call. `error` NULL: they name another lease. The client hears of it when the lock
 * has been released again. */
static void quorum_refused(struct quorum *q, enum lock_outcome outcome, const char *error) {
    q->why.by = q->lock;
    q->why.lost = !error;
    q->why.result.outcome = outcome;
    q->why.result.replicas = vote_answered(&q->word.vote);
    q->why.result.witnesses = (uint8_t)q->word.vote.count;
    snprintf(q->why.error, sizeof(q->why.error), "%s", error ? error : REMEMBERED);
    if (q->acquires)
        lock_undo(q->worker, q->lock, quorum_undone, q);
    else
        quorum_undone(q);
}

static void quorum_unconfirmed(struct quorum *q) {
    char error[160];
    counter_add(&q->worker->counters.quorum_unconfirmed, 1);
    snprintf(error, sizeof(error), "UPSTREAM the %s was not confirmed by its witnesses (%u of %u answered)%s",
             q->acquires ? "lock" : "extension", vote_answered(&q->word.vote), q->word.vote.count,
             q->acquires ? "; it is released again" : "");
    quorum_refused(q, q->acquires ? LOCK_UNCONFIRMED : LOCK_NOT_SENT, error);
}

/* An acquisition whose end witnesses can't be asked to remember. */
static void quorum_too_long(struct quorum *q) {
    char error[160];
    snprintf(error, sizeof(error),
             "ERR a lock under quorum lasts %lld ms at most (witness-quarantine says so); it is released again",
             (long long)quorum_longest_ms(q->worker));
    if (q->acquires)
        quorum_refused(q, LOCK_NOT_SENT, error);
    else
        quorum_unconfirmed(q);
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
    struct request *r = request_internal(w);
    const struct lock_plan *plan = &q->lock->plan;
    struct upstream_lane lane = {.login = plan->login, .db = plan->key.db, .protocol = 2};
    request_own(r, &q->owner, &request_owner_silent);
    r->call.done = done;
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

/* Gives the lease a fence above all that the witnesses know. */
static void raise_fence(struct quorum *q) {
    struct worker *w = q->worker;
    const struct lock_plan *plan = &q->lock->plan;
    for (unsigned i = 0; i < q->word.vote.count; i++)
        if (q->word.fences[i] >= q->fence)
            q->fence = q->word.fences[i] + 1;
    q->raises++;
    lock_build_call(w, SCRIPT_RAISE_FENCE, NULL, &plan->key, 2);
    build_text(w, plan->attempt_token);
    build_number(w, (int64_t)q->fence);
    quorum_submit(q, on_raised, script_get(SCRIPT_RAISE_FENCE));
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

/* Takes the fields `attempt` and `over`. If a witness has named a lease that was released, the witnesses are asked once
 * more. */
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

static void ask_last_release(struct quorum *q) {
    struct worker *w = q->worker;
    const struct lock_plan *plan = &q->lock->plan;
    q->asked_over = true;
    build_start(w, 4);
    build_text(w, "HMGET");
    lock_build_guard(w, plan->key.name, plan->key.len);
    build_text(w, "attempt");
    build_text(w, "over");
    quorum_submit(q, on_last_release, NULL);
}

/* ---- the witnesses are asked ----------------------------------------------------------------------- */

static void quorum_heard(void *arg, const struct witness_word *word) {
    struct quorum *q = arg;
    struct worker *w = q->worker;
    q->word = *word;
    histogram_note(&w->durations.witnesses, (worker_now(w) - q->begun_ms) * 1000);
    bool late = worker_now(w) - q->begun_ms > q->limit_ms;
    enum verdict verdict = vote_verdict(&word->vote);
    if (verdict == VERDICT_GRANTED && !late)
        quorum_confirmed(q);
    else if (verdict == VERDICT_LOW && q->acquires && q->raises < RAISES_MAX && !late)
        raise_fence(q);
    else if (q->acquires && !q->asked_over && vote_may_turn(&word->vote) && !late)
        ask_last_release(q);
    else if (verdict == VERDICT_HELD || (verdict == VERDICT_LOW && !q->acquires))
        quorum_remembered(q);
    else
        quorum_unconfirmed(q);
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

/* ---- what is refused before it is sent ------------------------------------------------------------- */

/* The time that follows EX, PX, EXAT or PXAT among a command's arguments from `at` on, in ms from now; -1: none. */
static int64_t option_ms(const struct resp_request *r, const char *bytes, size_t at) {
    static const struct {
        const char *name;
        int64_t unit;
        bool absolute;
    } options[] = {{"ex", 1000, false}, {"px", 1, false}, {"exat", 1000, true}, {"pxat", 1, true}};
    for (; at + 1 < r->argc && !request_arg_is(r, bytes, at, "fields"); at++)
        for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
            size_t len;
            int64_t n;
            const char *word = request_arg(r, bytes, at + 1, &len);
            if (request_arg_is(r, bytes, at, options[i].name) && resp_integer(word, len, &n) && n < FAR_AWAY)
                return n * options[i].unit - (options[i].absolute ? clock_wall_ms() : 0);
        }
    return -1;
}

/* The expiry that a command sets, in ms from now; -1: none, or the command is malformed. */
static int64_t expiry_asked(const struct command *c, const struct resp_request *r, const char *bytes) {
    int64_t n = -1, unit = 1000;
    size_t len;
    switch (c->id) {
    case COMMAND_PEXPIRE:
    case COMMAND_PEXPIREAT:
    case COMMAND_PSETEX:
        unit = 1;
        break;
    case COMMAND_EXPIRE:
    case COMMAND_EXPIREAT:
    case COMMAND_SETEX:
        break;
    case COMMAND_SET:
        return option_ms(r, bytes, 3);
    case COMMAND_GETEX:
    case COMMAND_HGETEX:
    case COMMAND_HSETEX:
        return option_ms(r, bytes, 2);
    default:
        return -1;
    }
    const char *word = request_arg(r, bytes, 2, &len);
    if (!resp_integer(word, len, &n) || n < 0 || n >= FAR_AWAY)
        return n >= FAR_AWAY ? INT64_MAX : -1;
    bool absolute = c->id == COMMAND_EXPIREAT || c->id == COMMAND_PEXPIREAT;
    return n * unit - (absolute ? clock_wall_ms() : 0);
}

bool lock_quorum_refuses(const struct session *s, const struct command *c, const struct resp_request *r,
                         const char *bytes, char *error, size_t size) {
    int64_t longest_ms = quorum_longest_ms(s->worker);
    if (r->argc < 3 || expiry_asked(c, r, bytes) <= longest_ms)
        return false;
    snprintf(error, size,
             "ERR a lock under quorum lasts %lld ms at most (witness-quarantine says so); nothing was changed",
             (long long)longest_ms);
    return true;
}

const char *lock_quorum_lacks(const struct request_class *k) {
    struct lock_command lc;
    bool quorum = false;
    for (size_t i = 0; i < k->key_count; i++) {
        const struct lock_rule *rule = class_enforced(k, i);
        quorum |= rule && rule->quorum == LOCK_QUORUM_YES;
    }
    if (!quorum)
        return NULL;
    switch (lock_meaning_of(k, &lc)) {
    case MEANS_LOCK:
        return NULL;
    case MEANS_CLOBBERS:
        return lock_acquires_all(k->command, k->request, k->bytes) && !lock_clobbers_one_rule(k)
                   ? "ERR a lock under quorum can't be acquired together with keys that are no locks of its rule; "
                     "nothing was changed"
                   : NULL;
    case MEANS_SCRIPT:
        return class_locks(k) > LOCK_SCRIPT_LOCKS_MAX
                   ? "ERR a script can't run on that many locks under quorum; nothing was changed"
                   : NULL;
    default:
        return NULL;
    }
}

/* ---- the beginning --------------------------------------------------------------------------------- */

bool lock_extends(const struct lock_call *l, const struct lock_result *r) {
    if (l->plan.verb == LOCK_SCRIPT) /* it may have extended the lease */
        return r->outcome == LOCK_HELD && r->same && r->fence > 0;
    bool own = r->outcome == LOCK_DONE || r->outcome == LOCK_ADOPTED;
    bool writes = l->plan.verb == LOCK_EXTEND || l->plan.verb == LOCK_REPLACE || l->plan.verb == LOCK_REWRITE ||
                  l->plan.verb == LOCK_SWAP || l->plan.verb == LOCK_PASS;
    return own && writes && r->fence > 0 && (r->pttl_ms >= 0 || r->pttl_ms == PTTL_NONE);
}

bool lock_release_forgotten(struct worker *w, const struct lock_call *l, const struct lock_result *r) {
    return l->plan.verb == LOCK_RELEASE && l->shape == SHAPE_INT &&
           (r->outcome == LOCK_FREE || r->outcome == LOCK_HELD) && l->plan.claim != 0 &&
           engine_claim_lasts(w->shared->engine, &l->plan, worker_now(w));
}

static void vote(struct worker *w, struct lock_call *l, const struct lock_result *r, lock_vote_fn done, void *arg) {
    struct quorum *q = memory_zalloc(sizeof(*q));
    q->done = done;
    q->arg = arg;
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
    if (!w->witnesses)
        quorum_unconfirmed(q);
    else if (q->pttl_ms < 0 || q->pttl_ms > quorum_longest_ms(w))
        quorum_too_long(q);
    else
        quorum_ask(q);
}

/* ---- several locks ---------------------------------------------------------------------------------- */

/* MSETNX and MSETEX NX acquire several locks, or none: witnesses are asked about each lock. If they refuse one, all are
 * released again. */
struct several_part {
    struct several *all;
    struct lock_call *lock;
    bool confirmed;
};

/* The locks of a command while witnesses are asked, and while they are released again. */
struct several {
    struct worker *worker;
    lock_vote_fn done;
    void *arg;
    size_t due; /* of how many locks an answer is due, and 1 while they are being asked for */
    bool refused, undoing;
    struct lock_refusal why; /* the first refusal */
    size_t count;
    struct several_part parts[];
};

static void part_over(void *arg);

static void undo_confirmed(struct several *v) {
    v->undoing = true;
    v->due = 1;
    for (size_t i = 0; i < v->count; i++)
        if (v->parts[i].confirmed) {
            v->due++;
            lock_undo(v->worker, v->parts[i].lock, part_over, v);
        }
    part_over(v);
}

static void part_over(void *arg) {
    struct several *v = arg;
    invariant(v->due > 0, "witnesses decide twice about one of several locks");
    if (--v->due > 0)
        return;
    if (v->refused && !v->undoing) {
        undo_confirmed(v);
        return;
    }
    v->done(v->arg, v->refused ? &v->why : NULL);
    memory_free(v);
}

static void several_heard(void *arg, const struct lock_refusal *why) {
    struct several_part *part = arg;
    struct several *v = part->all;
    part->confirmed = !why;
    if (why && !v->refused)
        v->why = *why;
    v->refused |= why != NULL;
    part_over(v);
}

void lock_vote_all(struct worker *w, struct lock_call *first, const struct lock_result *r, lock_vote_fn done,
                   void *arg) {
    size_t count = 0;
    struct lock_call *l = first;
    if (!first->clobbers || lock_call_next(first) == first) {
        vote(w, first, r, done, arg);
        return;
    }
    do
        count++;
    while ((l = lock_call_next(l)) != first);
    struct several *v = memory_zalloc(sizeof(*v) + count * sizeof(v->parts[0]));
    v->worker = w;
    v->done = done;
    v->arg = arg;
    v->count = count;
    v->due = 1;
    for (size_t i = 0; i < count; i++, l = lock_call_next(l)) {
        v->parts[i] = (struct several_part){.all = v, .lock = l};
        v->due++;
        vote(w, l, r, several_heard, &v->parts[i]);
    }
    part_over(v);
}

/* ---- a client's call ------------------------------------------------------------------------------- */

/* A client's call while the witnesses are asked. */
struct witnessed {
    struct call *call;
    struct lock_call *lock;
    size_t reply_len;
    char reply[];
};

/* Has a session wait on under a rule with `wait`, where its reply can say that it has lost. */
static bool waits_on(struct call *c, struct lock_call *l, const struct lock_refusal *why, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct session *s = c->request->session;
    bool waits = s && why->result.outcome == LOCK_REMEMBERED && l->plan.rule->wait_ms > 0 && w->waits;
    struct call_end lost = lock_refused_end(l, s, why, end);
    if (!waits || lost.error || l->plan.verb != LOCK_ACQUIRE)
        return false;
    struct lock_envelope refusal = {
        .reply = lost.reply, .reply_len = lost.len, .result = {.outcome = LOCK_REMEMBERED, .pttl_ms = PTTL_UNKNOWN}};
    for (struct lock_call *at = l; at != why->by; at = lock_call_next(at))
        refusal.refuses++;
    return w->waits->refused(c, l, &refusal);
}

static void witnessed_heard(void *arg, const struct lock_refusal *why) {
    struct witnessed *of = arg;
    struct call *c = of->call;
    struct lock_call *l = of->lock;
    struct worker *w = c->request->worker;
    struct session *s = c->request->session;
    struct call_end end = {.reply = of->reply, .len = of->reply_len};
    bool waits = why && waits_on(c, l, why, &end);
    if (why && !waits) {
        call_done_fn next = l->next;
        struct call_end refused = lock_refused_end(l, s, why, &end);
        c->lock = NULL;
        lock_learnt_all(w, s, why->by, &why->result);
        lock_deliver(c, next, &refused);
    } else if (!waits) {
        lock_end(c, l, &end);
    }
    memory_free(of);
}

bool lock_witnessed(struct call *c, struct lock_call *l, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct lock_envelope e;
    if (end->error || l->plan.rule->quorum != LOCK_QUORUM_YES || (l->clobbers && !l->acquires) ||
        !lock_envelope_read(l, end->reply, end->len, &e))
        return false;
    if (lock_release_forgotten(w, l, &e.result)) {
        lock_end(c, l, &lock_released_end); /* which tells the witnesses */
        return true;
    }
    if (e.result.outcome != LOCK_GRANTED && !lock_extends(l, &e.result))
        return false;
    struct witnessed *of = memory_zalloc(sizeof(*of) + end->len);
    of->call = c;
    of->lock = l;
    of->reply_len = end->len;
    memcpy(of->reply, end->reply, end->len);
    lock_vote_all(w, l, &e.result, witnessed_heard, of);
    return true;
}

bool lock_witness_script(struct worker *w, struct lock_call *l, const struct call_end *end, lock_vote_fn done,
                         void *arg) {
    struct lock_envelope e;
    if (!lock_envelope_read(l, end->reply, end->len, &e))
        return false;
    if (e.result.outcome != LOCK_GRANTED && !lock_extends(l, &e.result))
        return false;
    vote(w, l, &e.result, done, arg);
    return true;
}

/* ---- PROXY WITNESS TRUST --------------------------------------------------------------------------- */

static void on_trusted(void *arg, bool answered) {
    struct request *r = arg;
    if (answered)
        request_reply(r, "+OK\r\n", 5, true);
    else
        request_error(r, "UPSTREAM the witness does not answer; nothing was changed");
}

void lock_witness_trust(struct session *s, const struct command *c, const char *address, size_t len) {
    struct witnesses *set = s->worker->witnesses;
    struct request *r = request_new(s, c);
    request_barrier(r);
    const char *error =
        set ? witness_trust(set, address, len, on_trusted, r) : "ERR the proxy has no witnesses (directive witness)";
    if (error)
        request_error(r, error);
}
