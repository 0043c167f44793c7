/*
 * A rule's `wait TIME`: if a live lease refuses an attempt, the client gets its reply when its session gets the lock,
 * or when TIME is over.
 *
 *      script ── "held" ──> wait_refused ──> the queue of the lock's name (proxy/lock/waiting.h)
 *                              │             │ a release, the lease's end, at the latest 100 ms
 *                              │             v
 *                              │          the first one's attempt ──┬─ granted: the client's reply
 *                              │                                    └─ held: it keeps its place
 *                              └── TIME is over, the client sends more: the refusal, as without `wait`
 *
 * A new attempt joins the end of the queue, and is not sent to Redis. If its time ends before it is the first one, the
 * refusal of another session's attempt since it came is its answer too. If there was none, its own attempt is sent
 * once. Waiting changes only which attempt is sent and when: the script alone grants the lock, and each attempt has a
 * token of its own.
 *
 * To the engine, a wait is one attempt, whose result it hears at the end: a session that has waited and got the lock
 * has not lost. All times here are of a monotonic clock. So
 * the scripts are told for how long a session has waited, and not since when.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/core/session.h"
#include "proxy/session/waits/private.h"

enum { TRY_MS = 100, DEAF_MS = 5 };

/* The arguments of an attempt whose command cannot be rebuilt from its value and expiry. */
struct kept_words {
    char *reply; /* the client's part of the last refusal, which differs from command to command; NULL: none yet */
    size_t reply_len;
    struct lock_words all;
    struct resp_arg args[]; /* of `all`; the bytes follow behind */
};

/* An attempt that waits, or may come to wait. Many sessions may wait, so the struct is small: about a fifth of a
 * request with its lock call. These exist only while the attempt itself is under way; in between it is parked, and to
 * the engine it has not come yet. The key is stored once, in the queue (proxy/lock/waiting.h). */
struct wait {
    struct request_owner owner; /* must be the first field */
    struct waiter waiter;
    struct list_node link;        /* in the list of the worker's waiting sessions */
    struct call *call;            /* the attempt's call; NULL: the attempt is parked */
    struct session *session;      /* the attempt's session; valid only while the attempt is parked */
    const struct lock_rule *rule; /* with a reference to the rules that it belongs to */
    struct kept_words *words;     /* NULL: value and expiry are enough */
    int64_t expiry_ms;
    uint32_t value_len;
    uint16_t command; /* its enum command_id: SETNX, SET, MSETNX, HSETNX */
    uint8_t advises, shape;
    struct ev_timer timer;
    double called;        /* by worker_steady: when a release had the attempt sent; 0: no release did */
    double until, try_at; /* by worker_steady; try_at 0: the attempt is not known to be the first one */
    int64_t sent_ms;      /* when the attempt was last sent, by worker_steady_ms */
    uint64_t seen;        /* the fence of the lease that refused the attempt; the next fields: what else it said */
    bool seen_leased : 1, seen_pooled : 1, seen_same : 1, seen_elsewhere : 1;
    uint8_t seen_suspects;
    bool last : 1;     /* the timer is set for the end of the wait */
    bool trying : 1;   /* the attempt is under way */
    bool deaf : 1;     /* the proxy may have missed a release at another proxy so far: the next look comes soon */
    bool over : 1;     /* the wait ends with the answer to the attempt under way */
    bool gone : 1;     /* and the client has disconnected */
    bool refused : 1;  /* the attempt itself was refused, and `seen` is from that */
    bool clobbers : 1; /* MSETNX of several keys, which clobber.lua carries out */
    char room[];       /* the name of the client, as in lock_call's `who`, and the value behind it */
};

static const struct request_owner_ops wait_ops;

static struct wait *wait_of(const struct request *r) {
    return r->owner && r->owner->ops == &wait_ops ? REQUEST_OWNER(r, struct wait) : NULL;
}

static void wait_try(struct wait *t);

static struct worker *worker_of(const struct wait *t) {
    return t->call ? t->call->request->worker : t->session->worker;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static void wait_memory_free(struct request_owner *owner) {
    struct wait *t = (struct wait *)(void *)owner;
    if (t->rule->set)
        lock_rules_unref(t->rule->set);
    if (t->words)
        memory_free(t->words->reply);
    MEMORY_FREE_ALL(t->words, t);
}

/* Copies a command's arguments with their bytes into one allocation. */
static struct kept_words *words_copy(const struct lock_words *from) {
    size_t bytes = from->count * sizeof(struct resp_arg), used = 0, len;
    for (size_t i = 0; i < from->count; i++)
        bytes += from->args[i].len;
    struct kept_words *w = memory_zalloc(sizeof(*w) + bytes);
    char *kept = (char *)(w->args + from->count);
    for (size_t i = 0; i < from->count; i++) {
        const char *word = lock_word(from, i, &len);
        memcpy(kept + used, word, len);
        w->args[i] = (struct resp_arg){used, len};
        used += len;
    }
    w->all = (struct lock_words){kept, w->args, from->count};
    return w;
}

/* Allocates the wait of the request's attempt, and keeps these arguments (NULL: none): struct lock_waits. */
static void wait_keep(struct request *r, const struct lock_call *l, const struct lock_words *words) {
    size_t who_len = strlen(l->who) + 1;
    invariant(l->value_len <= UINT32_MAX, "a value of %zu bytes is kept", l->value_len);
    struct wait *t = memory_zalloc(offsetof(struct wait, room) + who_len + l->value_len);
    memcpy(t->room, l->who, who_len);
    if (l->value_len)
        memcpy(t->room + who_len, l->value, l->value_len);
    t->rule = l->plan.rule;
    t->value_len = (uint32_t)l->value_len;
    t->expiry_ms = l->expiry_ms;
    t->command = (uint16_t)r->command->id;
    t->shape = (uint8_t)l->shape;
    t->advises = l->advises;
    t->clobbers = l->clobbers;
    t->words = words ? words_copy(words) : NULL;
    if (t->rule->set)
        lock_rules_ref(t->rule->set);
    t->waiter.who = t->room;
    request_own(r, &t->owner, &wait_ops);
}

/* Parks an attempt that is not under way: frees its request and its lock calls. */
static void wait_park(struct wait *t) {
    struct call *c = t->call;
    invariant(c && !t->trying && t->waiter.queue, "an attempt is parked that does not wait");
    request_disown(c->request);
    invariant(c->lock && c->request->session && !c->up.in_flight, "an attempt is parked under way");
    struct worker *w = c->request->worker;
    struct lock_call *first = c->lock;
    t->session = c->request->session;
    t->call = NULL;
    c->lock = NULL;
    for (struct lock_call *l = first, *next; l; l = next) {
        next = lock_call_next(l) != l ? lock_call_next(l) : NULL;
        list_remove(&l->link);
        engine_put_off(w->shared->engine, &l->plan);
        lock_drop(w, l);
    }
    request_park(c->request);
}

/* What a parked HSETNX means to the lock. */
static const struct lock_command parked_field = {.verb = LOCK_ACQUIRE,
                                                 .script = SCRIPT_HASH,
                                                 .value_at = 2,
                                                 .content_at = 3,
                                                 .shape = SHAPE_INT,
                                                 .expiry_ms = LOCK_EXPIRY_OTHER};

/* Makes a parked attempt again, with a new request, lock call and plan, as if its command had just come. */
static void wait_unpark(struct wait *t) {
    if (t->call)
        return;
    struct session *s = t->session;
    invariant(s && (s->delays & DELAY_EVENT), "a session goes on that does not wait");
    const struct lock_key *key = waiting_key(&t->waiter);
    struct request *r = request_unpark(s, command_by_id(t->command));
    struct lock_call *l;
    if (t->clobbers) {
        lock_busy_all(r);
        l = lock_begin_pairs(s, t->rule, key->db, &t->words->all);
    } else {
        lock_busy_key(r, key->name, key->len);
        l = lock_begin_anew(s, LOCK_ACQUIRE, t->rule, key->db, key->name, key->len);
        l->command = lock_row_of(r->command)->name;
        l->shape = (enum lock_shape)t->shape;
        l->advises = t->advises;
        l->expiry_ms = t->expiry_ms;
        lock_call_value(l, t->room + strlen(t->room) + 1, t->value_len);
        if (t->command == COMMAND_HSETNX) {
            l->plan.data_free = false;
            lock_note_field(s, l, &parked_field, &t->words->all);
        }
    }
    r->call.lock = l;
    do {
        if (t->rule->set) { /* the attempt keeps the rules under which it came, also after a reload */
            lock_rules_unref(l->rules);
            l->rules = lock_rules_ref(t->rule->set);
        }
        l->begun = 0; /* not timed: the time includes the wait, and says nothing about the node */
    } while ((l = lock_call_next(l)) != r->call.lock);
    t->call = &r->call;
    invariant(r->session == s, "a parked attempt comes back elsewhere");
    request_own(r, &t->owner, &wait_ops);
}

/* ---- the end ------------------------------------------------------------------------------------------- */

/* Takes the attempt out of the queue, and the request from the wait. */
static void wait_close(struct wait *t, enum waiting_end end) {
    struct worker *w = worker_of(t);
    struct session *s = t->call ? t->call->request->session : t->session;
    invariant(!t->trying && counter_read(&w->counters.waiting) > 0, "a wait ends while its attempt is under way");
    ev_timer_stop(w->loop, &t->timer);
    list_remove(&t->link);
    counter_sub(&w->counters.waiting, 1);
    counter_add(end == WAIT_GRANTED ? &w->counters.waits_granted
                : end == WAIT_OVER  ? &w->counters.waits_refused
                                    : &w->counters.waits_left,
                1);
    waiting_leave(w->shared->waiting, &t->waiter, end, t->rule->wait_ms, worker_steady_ms(w));
    if (s)
        session_delay(s, DELAY_EVENT, false);
    if (t->call)
        request_disown(t->call->request);
}

static void note_waited(const struct wait *t, bool granted) {
    struct worker *w = worker_of(t);
    engine_waited(w->shared->engine, &t->call->lock->plan, worker_steady_ms(w) - t->waiter.since_ms, granted,
                  worker_now(w));
}

/* Ends the wait with the refusal as the client's reply. If the lock was granted, the client has disconnected: releases
 * the lock, or all locks of MSETNX. `r` is what the engine learns. */
static void wait_finish(struct wait *t, enum waiting_end end, const struct lock_result *r) {
    struct call *c = t->call;
    struct lock_call *l = c->lock, *each = l;
    struct worker *w = c->request->worker;
    const struct kept_words *words = t->words;
    struct call_end out = {.why = UPSTREAM_NOT_SENT};
    if (words && words->reply) {
        out.reply = words->reply;
        out.len = words->reply_len;
    } else {
        out.reply = lock_short_reply(l, LOCK_HELD, &out.len);
    }
    wait_close(t, end);
    if (end == WAIT_GRANTED)
        do
            lock_undo(w, each, NULL, NULL);
        while ((each = lock_call_next(each)) != l);
    c->lock = NULL;
    lock_learnt_all(w, c->request->session, l, r);
    lock_deliver(c, NULL, &out);
    wait_memory_free(&t->owner);
}

static void wait_refuse(struct wait *t) {
    wait_unpark(t);
    struct call *c = t->call;
    invariant(c && c->lock && !c->up.in_flight, "an attempt is refused while it is under way");
    bool there = c->request->session && !t->gone;
    struct lock_result r = {.outcome = there ? LOCK_HELD : LOCK_NOT_SENT,
                            .fence = t->seen,
                            .pttl_ms = PTTL_UNKNOWN,
                            .value = c->lock->value,
                            .value_len = c->lock->value_len,
                            .leased = t->seen_leased,
                            .pooled = t->seen_pooled,
                            .same = t->seen_same,
                            .elsewhere = t->seen_elsewhere,
                            .suspects = t->seen_suspects};
    note_waited(t, false);
    wait_finish(t, there ? WAIT_OVER : WAIT_GONE, &r);
}

/* Ends a wait as soon as possible: at once, with the answer to the attempt under way, or with the answer to a last
 * attempt. */
static void wait_end(struct wait *t) {
    struct waiting *waiting = worker_of(t)->shared->waiting;
    uint64_t fence;
    bool may_refuse = t->refused || t->gone;
    t->over = true;
    if (t->trying)
        return;
    if (!may_refuse && !t->words && waiting_proves(waiting, &t->waiter, &fence)) {
        may_refuse = true; /* another attempt was refused since this attempt came */
        t->seen = fence;
    }
    if (may_refuse) {
        wait_refuse(t);
        return;
    }
    waiting_try_last(waiting, &t->waiter);
    wait_try(t);
}

static void wait_left(struct request *r) {
    struct wait *t = wait_of(r);
    if (!t->waiter.queue) /* the first attempt is under way; nothing is queued yet */
        return;
    t->gone = true;
    wait_end(t);
}

static const struct request_owner_ops wait_ops = {.left = wait_left, .free = wait_memory_free};

static struct wait *wait_of_session(const struct session *s) {
    struct waiter *waiter = waiting_find(s->worker->shared->waiting, s->lock.id);
    return waiter ? LIST_ENTRY(waiter, struct wait, waiter) : NULL;
}

static void wait_speaks(struct session *s) {
    struct wait *t = wait_of_session(s);
    if (!t)
        return;
    t->gone = session_half_closed(s);
    wait_end(t);
}

static void wait_leaves(struct session *s) {
    struct wait *t = s->delays & DELAY_EVENT ? wait_of_session(s) : NULL;
    if (!t || t->call) /* wait_left deals with the wait if it has a request */
        return;
    wait_close(t, WAIT_GONE);
    wait_memory_free(&t->owner);
}

/* ---- time ---------------------------------------------------------------------------------------------- */

/* Sets the timer for the next attempt or the end of the wait, whichever comes first. */
static void wait_arm(struct wait *t) {
    struct worker *w = worker_of(t);
    t->last = t->try_at <= 0 || t->try_at >= t->until;
    double in = (t->last ? t->until : t->try_at) - worker_steady(w);
    ev_timer_stop(w->loop, &t->timer);
    ev_timer_set(&t->timer, in > 0 ? in : 0, 0.);
    ev_timer_start(w->loop, &t->timer);
}

/* Has the first attempt of the queue sent in `ms`, 100 at most. */
static void wait_try_in(struct wait *t, int64_t ms) {
    ms = ms < 0 ? 0 : ms > TRY_MS ? TRY_MS : ms;
    invariant(ms >= 0 && ms <= TRY_MS, "the next look is in %lld ms", (long long)ms);
    t->try_at = worker_steady(worker_of(t)) + (double)ms / 1000.;
    wait_arm(t);
}

/* Returns in how many ms the first attempt is sent again, after it was refused: when the lease ends, or soon in any
 * case. The queue notes the time for any attempt that is the first one then. */
static int64_t next_look(struct wait *t, int64_t pttl_ms) {
    struct worker *w = worker_of(t);
    int64_t max_ms = t->deaf ? DEAF_MS : TRY_MS, ms = pttl_ms >= 0 && pttl_ms + 1 < max_ms ? pttl_ms + 1 : max_ms;
    t->deaf = false;
    waiting_look(w->shared->waiting, &t->waiter, worker_steady_ms(w) + ms);
    return ms;
}

static void on_timer(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct wait *t = timer->data;
    struct worker *w = worker_of(t);
    if (t->last) {
        wait_end(t);
        return;
    }
    if (t->trying)
        return;
    t->try_at = 0;
    if (w->pause != PAUSE_NONE) /* CLIENT PAUSE holds new attempts, too */
        wait_try_in(t, TRY_MS);
    else if (waiting_try(w->shared->waiting, &t->waiter))
        wait_try(t);
    else
        wait_arm(t);
}

/* ---- trying -------------------------------------------------------------------------------------------- */

/* The lock call that the answer has refused: of MSETNX, the call of one of its keys. */
static struct lock_call *refused_call(struct lock_call *l, const struct lock_envelope *e) {
    for (uint32_t i = 0; i < e->refuses; i++)
        l = lock_call_next(l);
    return l;
}

static void keep_refusal(struct wait *t, const struct lock_envelope *e) {
    t->refused = true;
    t->seen = e->result.fence;
    t->seen_leased = e->result.leased;
    t->seen_pooled = e->result.pooled;
    t->seen_same = e->result.same;
    t->seen_elsewhere = e->result.elsewhere;
    t->seen_suspects = e->result.suspects;
    struct worker *w = worker_of(t);
    if (e->result.shifted_ms) /* tell the engine now, since this attempt may yet be granted */
        engine_shifted(w->shared->engine, &refused_call(t->call->lock, e)->plan, &e->result, worker_now(w));
    struct kept_words *words = t->words;
    if (!words)
        return;
    memory_free(words->reply);
    words->reply = memory_strndup(e->reply, e->reply_len);
    words->reply_len = e->reply_len;
}

/* Takes what an answer says of the sessions that wait at other proxies. clobber.lua says nothing of them. */
static void note_elsewhere(struct wait *t, const struct lock_result *r) {
    if (t->clobbers)
        return;
    waiting_elsewhere(worker_of(t)->shared->waiting, &t->waiter,
                      r->waits_ms ? t->sent_ms - r->waits_ms : WAITING_NOBODY);
}

/* Refuses an attempt that has just joined, if it completes a circle of sessions that wait for each other. `l` is the
 * lock call that was refused. */
static bool refuse_circle(struct wait *t, const struct lock_call *l) {
    struct worker *w = t->call->request->worker;
    struct text circle = {0};
    text_printf(&circle, "refused: ");
    bool is = waiting_circle(w->shared->waiting, w->shared->engine, t->waiter.session, worker_steady_ms(w), &circle);
    if (is) {
        const struct lock_incident on = {.kind = INCIDENT_DEADLOCK,
                                         .time_ms = worker_now(w),
                                         .key = l->plan.key,
                                         .client = l->who,
                                         .command = l->command,
                                         .action = circle.data};
        engine_report(w->shared->engine, &on);
        wait_end(t);
    }
    text_clear(&circle);
    return is;
}

/* The attempt has joined the queue of the lock that has refused it, and is parked there. The wait may end within this
 * call. */
static void wait_queued(struct wait *t, const struct lock_envelope *e, enum waiting_joined joined) {
    if (joined == JOINED_FIRST)
        wait_try_in(t, next_look(t, e->result.pttl_ms));
    else
        wait_arm(t);
    if (refuse_circle(t, refused_call(t->call->lock, e)))
        return;
    wait_park(t);
    if (joined == JOINED_FREED)
        wait_try(t);
}

/* If another one of MSETNX's locks has refused the attempt than the lock in whose queue it waits, it moves to the queue
 * of that lock, and the next waiter here tries. Returns whether it has moved. */
static bool wait_moves(struct wait *t, const struct lock_envelope *e) {
    struct waiting *waiting = worker_of(t)->shared->waiting;
    const struct lock_call *l = refused_call(t->call->lock, e);
    const struct lock_key *here = waiting_key(&t->waiter), *there = &l->plan.key;
    int64_t now_ms = worker_steady_ms(worker_of(t));
    if (here->len == there->len && memcmp(here->name, there->name, here->len) == 0)
        return false;
    waiting_leave(waiting, &t->waiter, WAIT_GONE, 0, now_ms);
    t->try_at = 0;
    wait_queued(t, e, waiting_join(waiting, there, l->plan.hash, e->result.fence, &t->waiter, now_ms));
    return true;
}

static void wait_answered(struct call *c, const struct call_end *end) {
    struct wait *t = wait_of(c->request);
    struct lock_envelope e = {.reply = NULL};
    struct worker *w = c->request->worker;
    invariant(t && t->trying && t->call == c, "an answer comes for no attempt");
    if (lock_was_unusual(c, end)) {
        lock_submit_whole(c, wait_answered);
        return;
    }
    bool held = !end->error && lock_envelope_read(c->lock, end->reply, end->len, &e) && e.result.outcome == LOCK_HELD;
    t->trying = false;
    if (!end->error)
        note_elsewhere(t, &e.result);
    if (held) {
        keep_refusal(t, &e);
        t->called = 0;
        t->over |= worker_steady(w) >= t->until;
        if (!t->over && !t->gone && wait_moves(t, &e))
            return;
        bool again = waiting_refused(w->shared->waiting, &t->waiter, e.result.fence);
        int64_t look = next_look(t, e.result.pttl_ms);
        if (t->over || t->gone) {
            wait_refuse(t);
            return;
        }
        wait_park(t);
        if (again)
            wait_try(t);
        else
            wait_try_in(t, look);
        return;
    }
    bool granted = !end->error && e.result.outcome == LOCK_GRANTED;
    if (granted && (t->gone || !c->request->session)) {
        wait_finish(t, WAIT_GRANTED, &(struct lock_result){.outcome = LOCK_NOT_SENT});
        return;
    }
    if (granted) {
        note_waited(t, true);
        invariant(worker_of(t) == w, "a wait changes its thread");
        histogram_note(&w->durations.lock_waits, (worker_steady_ms(w) - t->waiter.since_ms) * 1000);
        if (t->called > 0)
            histogram_note(&w->durations.lock_handovers, (int64_t)((worker_steady(w) - t->called) * 1e6));
    }
    t->waiter.fence = e.result.fence;
    wait_close(t, granted ? WAIT_GRANTED : WAIT_GONE);
    if (granted && t->rule->quorum == LOCK_QUORUM_YES)
        request_own(c->request, &t->owner, &wait_ops); /* if its witnesses refuse it, it waits on */
    else
        wait_memory_free(&t->owner);
    lock_answered(c, end);
}

/* Sends the attempt once more. The wait may end within this call. */
static void wait_try(struct wait *t) {
    wait_unpark(t);
    struct call *c = t->call;
    struct lock_call *l = c->lock;
    struct worker *w = c->request->worker;
    struct session *s = c->request->session;
    bool field = t->command == COMMAND_HSETNX;
    t->sent_ms = worker_steady_ms(w);
    w->waits->waited = (struct lock_waited){.here_ms = t->sent_ms - t->waiter.since_ms,
                                            .next_ms = waiting_behind(w->shared->waiting, &t->waiter, t->sent_ms)};
    t->deaf = lock_release_channel_open(w, l->plan.slot);
    invariant(!t->trying && t->waiter.queue && c->lock == l, "an attempt is sent twice");
    t->trying = true;
    counter_add(&w->counters.wait_tries, 1);
    enum script_id id = field ? SCRIPT_HASH : SCRIPT_ACQUIRE;
    if (field) {
        lock_build_other(s, NULL, l, &parked_field, &t->words->all);
    } else if (l->clobbers) {
        id = SCRIPT_CLOBBER;
        lock_build_pairs(s, l, &t->words->all);
    } else if (t->words) {
        struct lock_command lc = {.script = id, .value_at = 2, .shape = l->shape, .expiry_ms = l->expiry_ms};
        lock_build_other(s, NULL, l, &lc, &t->words->all);
    } else {
        id = lock_build_attempt(w, s->lock.client, l);
    }
    w->waits->waited = LOCK_WAITED_NONE;
    lock_submit_next(c, l, id, wait_answered);
}

/* ---- the beginning ------------------------------------------------------------------------------------- */

/* Whether an attempt may wait: its session has nothing else in flight, and its client is still there. */
static bool may_wait(const struct call *c, const struct lock_call *l) {
    const struct request *r = c->request;
    const struct session *s = r->session;
    bool alone = s && s->state == SESSION_OPEN && !session_half_closed(s) && !s->lock.overlapped && s->in_flight == 1 &&
                 !s->input && !s->stream;
    bool whole = c == &r->call && !l->next && (!r->owner || wait_of(r)) && !r->muted && !l->plan.transaction;
    return alone && whole && (l->plan.verb == LOCK_ACQUIRE || l->acquires) &&
           (l->plan.right == RIGHT_CLAIM || l->plan.right == RIGHT_ANY) && !r->worker->leaving && !r->worker->stopping;
}

static struct wait *wait_begin(struct call *c, struct lock_call *l) {
    struct request *r = c->request;
    struct session *s = r->session;
    struct worker *w = r->worker;
    invariant(s && l->plan.rule->wait_ms > 0, "an attempt waits without a rule that says so");
    if (!wait_of(r))
        wait_keep(r, l, NULL);
    struct wait *t = wait_of(r);
    t->call = c;
    c->lock = l;
    t->sent_ms = worker_steady_ms(w);
    if (t->until <= 0 ||
        l->plan.rule->quorum != LOCK_QUORUM_YES) { /* else it waits on: its witnesses have refused it */
        t->until = worker_steady(w) + (double)l->plan.rule->wait_ms / 1000.;
        t->waiter.since_ms = t->sent_ms;
        t->waiter.place = l->plan.attempt;
    }
    t->waiter.session = s->lock.id;
    t->waiter.way = lock_handover_way(&s->lane);
    t->waiter.thread = w->index;
    t->deaf = lock_release_channel_open(w, l->plan.slot);
    ev_timer_init(&t->timer, on_timer, 0., 0.);
    t->timer.data = t;
    return t;
}

static void wait_started(struct wait *t) {
    invariant(t->call && !(t->call->request->session->delays & DELAY_EVENT), "a session waits twice");
    struct call *c = t->call;
    list_append(&waits_of_worker(c->request->worker)->sessions, &t->link);
    session_delay(c->request->session, DELAY_EVENT, true);
    counter_add(&c->request->worker->counters.waiting, 1);
    c->lock->begun = 0; /* a wait says nothing about the node's speed */
    c->lock->again = false;
}

/* Holds an attempt that was not sent yet, if other sessions are waiting before it. False: the attempt does not wait. */
static bool wait_behind(struct call *c, struct lock_call *l) {
    struct worker *w = c->request->worker;
    if (waiting_count(w->shared->waiting) == 0 || !may_wait(c, l) ||
        engine_own_lease(w->shared->engine, &l->plan, 0, worker_now(w)))
        return false;
    struct wait *t = wait_begin(c, l);
    if (!waiting_join_behind(w->shared->waiting, &l->plan.key, l->plan.hash, &t->waiter, worker_steady_ms(w)))
        return false; /* the request keeps the struct wait */
    wait_started(t);
    wait_arm(t);
    if (!refuse_circle(t, l))
        wait_park(t);
    return true;
}

/* Holds an attempt, under a rule with `wait`, that the script has answered with `e`. False: the attempt does not wait.
 */
static bool wait_refused(struct call *c, struct lock_call *l, const struct lock_envelope *e) {
    struct worker *w = c->request->worker;
    const struct lock_result *r = &e->result;
    const struct lock_plan *plan = &refused_call(l, e)->plan;
    bool remembered = r->outcome == LOCK_REMEMBERED;
    if (!(r->outcome == LOCK_HELD || remembered) || !may_wait(c, l) ||
        engine_own_lease(w->shared->engine, plan, r->fence, worker_now(w)))
        return false;
    if (remembered && (!wait_of(c->request) || wait_of(c->request)->until <= 0))
        engine_remembered(w->shared->engine, plan, l->command, l->who, worker_now(w));
    struct wait *t = wait_begin(c, l);
    keep_refusal(t, e);
    enum waiting_joined joined =
        waiting_join(w->shared->waiting, &plan->key, plan->hash, r->fence, &t->waiter, worker_steady_ms(w));
    note_elsewhere(t, r);
    wait_started(t);
    wait_queued(t, e, joined);
    return true;
}

/* ---- the worker's part --------------------------------------------------------------------------------- */

/* Serves the waiting sessions of this thread that were called. */
static void serve(struct worker *w) {
    struct waiter *waiter;
    bool tries;
    while ((waiter = waiting_next(w->shared->waiting, w->index, &tries))) {
        struct wait *t = LIST_ENTRY(waiter, struct wait, waiter);
        if (tries || waiter->yields_ms)
            t->called = worker_steady(w);
        int64_t look_ms = worker_steady_ms(w) + (waiter->yields_ms ? waiter->yields_ms : TRY_MS);
        /* A session that yields to another proxy must not put off its next look, however often it finds the lock free
         * meanwhile. */
        if (!waiter->look_ms || (waiter->yields_ms && look_ms < waiter->look_ms)) {
            waiter->look_ms = look_ms; /* if its wait ends before that, the next session in the queue looks then */
            waiting_look(w->shared->waiting, waiter, look_ms);
        }
        if (tries)
            wait_try(t);
        else if (!t->trying)
            wait_try_in(t, waiter->look_ms - worker_steady_ms(w));
    }
}

static void serve_job(struct worker *w, struct worker_job *job) {
    invariant(waits_of_worker(w)->serving, "sessions are served that were not called");
    waits_of_worker(w)->serving = false;
    serve(w);
}

static void on_wake(struct ev_loop *loop, struct ev_async *wake, int events) {
    serve(wake->data);
}

/* A thread has mail. It reads the mail at the end of the turn, after what it has sent in the turn. */
static void wake_thread(void *arg, unsigned thread) {
    struct proxy_shared *shared = arg;
    struct worker *to = shared->workers[thread];
    struct worker_waits *waits = waits_of_worker(to);
    if (to != worker_here()) {
        ev_async_send(to->loop, &waits->wake);
        return;
    }
    if (waits->serving)
        return;
    struct worker_job *job = memory_alloc(sizeof(*job));
    job->run = serve_job;
    waits->serving = true;
    worker_add_job(to, job);
}

static void waits_open(struct worker *w) {
    if (!w->shared->waiting)
        w->shared->waiting = waiting_new(w->shared->threads, wake_thread, w->shared);
    struct worker_waits *waits = memory_zalloc(sizeof(*waits));
    waits->calls = (struct lock_waits){
        .keep = wait_keep, .behind = wait_behind, .refused = wait_refused, .waited = LOCK_WAITED_NONE};
    w->waits = &waits->calls;
    list_init(&waits->sessions);
    ev_async_init(&waits->wake, on_wake);
    waits->wake.data = w;
    ev_async_start(w->loop, &waits->wake);
}

static void waits_close(struct worker *w) {
    struct worker_waits *waits = waits_of_worker(w);
    ev_async_stop(w->loop, &waits->wake);
    if (w->index + 1 == w->shared->threads) { /* the last worker frees it */
        waiting_free(w->shared->waiting);
        w->shared->waiting = NULL;
    }
    memory_free(waits);
    w->waits = NULL;
}

static void waits_stop(struct worker *w) {
    lock_release_channel_close(w);
    LIST_EACH_SAFE(t, &waits_of_worker(w)->sessions, struct wait, link)
        wait_end(t);
}

/* Ends the waits that their keys' rules of now do not allow. */
static void waits_rules(struct worker *w) {
    if (!w->waits) /* the worker is being freed */
        return;
    LIST_EACH_SAFE(t, &waits_of_worker(w)->sessions, struct wait, link) {
        const struct lock_key *key = waiting_key(&t->waiter);
        const struct lock_rule *rule = lock_rules_match(w->rules, key->name, key->len);
        int64_t ms = rule && rule->mode == LOCK_MODE_ENFORCE ? rule->wait_ms : 0;
        double until = t->until + (double)(ms - t->rule->wait_ms) / 1000.;
        if (ms <= 0 || until <= worker_steady(w))
            wait_end(t);
    }
}

const struct session_room waits_room = {
    .worker_opens = waits_open,
    .worker_closes = waits_close,
    .worker_rules = waits_rules,
    .worker_leaves = waits_stop,
    .worker_stops = waits_stop,
    .closes = wait_leaves,
    .speaks = wait_speaks,
};
