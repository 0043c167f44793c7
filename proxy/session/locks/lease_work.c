/*
 * The proxy's own calls on leases: renewals, and releases for an owner that has disconnected. The engine's sink asks
 * for them. They run in the worker's thread, without a session.
 *
 * A session hears that its lease is over: by a push (PROXY NOTIFY ON), by the end of its connection, or by an error in
 * place of its next answer (the rule's on-loss).
 *
 *      engine ── sink ──> renew.lua `look`, in this thread ──┬─ the lease goes on: nothing
 *                             ^                              ├─ not known ──> once more, in a second
 *                             └──────────────────────────────┘
 *                                                            └─ over ──> the session's thread ──> the session
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/lock/script_constants.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/private.h"
#include "proxy/witness/witness.h"

enum { REFUSED_AGAIN_MS = 10 * 1000, NAME_SHOWN = 160 };

/* A call on a lease: a renewal (SCRIPT_RENEW), a release after the owner has disconnected (SCRIPT_RELEASE), or a call
 * that declares the queue nodes of a disconnected owner dead (SCRIPT_LIST_LEAVE). */
struct lease_work {
    struct request_owner owner; /* must be the first field */
    struct list_node link;      /* in worker_locks.works, until it is sent; then in the ring of its call's renewals */
    enum script_id id;
    uint16_t slot;       /* 0 on a standalone */
    bool together;       /* a renewal that may go in one call with others */
    bool waits;          /* a release under a rule with `wait` */
    bool handed;         /* the attempt of a waiting session was sent right behind the release */
    lock_undone_fn done; /* NULL: its caller does not wait */
    void *arg;
    struct worker *worker; /* of a renewal while witnesses are asked, as are begun_ms and result */
    int64_t begun_ms;
    struct lock_result result;
    struct lock_lease lease; /* its key is `name` */
    size_t party_len;
    char name[]; /* the key, followed by the party that leaves */
};

struct request *lock_own_request(struct worker *w, struct request_owner *owner, const struct request_owner_ops *ops,
                                 enum script_id id, call_done_fn done) {
    struct request *r = request_internal(w, done);
    w->own_works++;
    request_own(r, owner, ops);
    r->call.up.script = script_get(id);
    r->call.up.repeatable = true;
    return r;
}

void lock_own_done(struct call *c, const struct call_end *end) {
    invariant(c->request->worker->own_works > 0, "no work of the proxy's own is under way");
    c->request->worker->own_works--;
    request_disown(c->request);
    request_reply(c->request, "", 0, true);
}

/* ---- witnesses of a renewal ------------------------------------------------------------------------------- */

/* The engine hears of an extension that witnesses have not confirmed as of one that was not made: the lease ends when
 * it would have ended before, and the renewal is tried again until then. */
static void renewed_heard(void *arg, const struct witness_word *word) {
    struct lease_work *r = arg;
    struct worker *w = r->worker;
    int64_t waited_ms = worker_now(w) - r->begun_ms;
    if (r->result.pttl_ms > waited_ms)
        r->result.pttl_ms -= waited_ms;
    enum verdict verdict = vote_verdict(&word->vote);
    if (verdict == VERDICT_HELD || verdict == VERDICT_LOW)
        r->result.outcome = LOCK_OVERTAKEN;
    else if (verdict != VERDICT_GRANTED)
        r->result.outcome = LOCK_NOT_SENT;
    invariant(w->own_works > 0, "no renewal is under way");
    w->own_works--;
    engine_renewed(w->shared->engine, &r->lease.key, r->lease.token, &r->result, worker_now(w));
    if (r->result.outcome == LOCK_NOT_SENT)
        worker_engine_due(w, w->config->witness_timeout_ms);
    memory_free(r);
}

/* Ends a renewal: the engine hears of it. If Redis has renewed a lease under quorum, the witnesses are asked first. */
static void renewed(struct worker *w, struct lease_work *r, const struct lock_result *result) {
    const struct lock_lease *lease = &r->lease;
    if (!lease->quorum || result->outcome != LOCK_DONE || !w->witnesses) {
        engine_renewed(w->shared->engine, &lease->key, lease->token, result, worker_now(w));
        memory_free(r);
        return;
    }
    r->worker = w;
    r->begun_ms = worker_now(w);
    r->result = *result;
    r->result.holder = NULL;
    w->own_works++;
    struct witness_lease of = quorum_lease(&lease->key, lease->token_text, lease->fence);
    witness_take(w->witnesses, &of, "", quorum_promise_ms(w, result->pttl_ms + lease->delay_ms),
                 w->config->witness_timeout_ms, renewed_heard, r);
}

/* ---- one lease ------------------------------------------------------------------------------------------- */

static void lease_done(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct lease_work *work = REQUEST_OWNER(c->request, struct lease_work);
    invariant(w->own_works > 0 && work, "no work of the proxy's own is under way");
    bool renewal = work->id == SCRIPT_RENEW;
    struct lock_envelope e;
    lock_answer_read(NULL, end, &e);
    if (e.result.outcome == LOCK_ERROR) {
        e.result.outcome = LOCK_NOT_SENT;
        /* Not each time: a missing permission may refuse every lease. */
        if (worker_now(w) - w->locks->refused_ms >= REFUSED_AGAIN_MS) {
            char answer[LOCK_ANSWER_MAX];
            w->locks->refused_ms = worker_now(w);
            lock_error_words(&e, answer);
            log_warning("a lease could not be %s: %.*s", renewal ? "renewed" : "released behind its owner",
                        (int)(e.reply_len > 400 ? 400 : e.reply_len - 3), e.reply + 1);
        }
    }
    if (renewal) {
        worker_engine_due(w, work->lease.lease_ms / 3);
        renewed(w, work, &e.result);
        lock_own_done(c, end);
        return;
    }
    if (work->lease.quorum)
        quorum_released(w, &work->lease.key, work->lease.token_text, 0); /* the lease is over, whatever Redis says */
    if (work->waits && e.result.outcome != LOCK_HELD)
        waiting_freed(w->shared->waiting, &work->lease.key, engine_key_hash(w->shared->engine, &work->lease.key),
                      e.result.fence, work->handed);
    lock_undone_fn done = work->done;
    void *arg = work->arg;
    memory_free(work);
    lock_own_done(c, end);
    if (done)
        done(arg);
}

/* Whether a renewal in the call has become pointless: the owner has released the lease or left while the call waited to
 * be sent. The engine then asks again for the others. */
static bool lease_pointless(const struct request *r) {
    const struct lease_work *first = REQUEST_OWNER(r, const struct lease_work), *work = first;
    do
        if (work->id == SCRIPT_RENEW &&
            !engine_wants_renewal(r->worker->shared->engine, &work->lease.key, work->lease.token))
            return true;
    while ((work = LIST_ENTRY(work->link.next, const struct lease_work, link)) != first);
    return false;
}

static const struct request_owner_ops lease_ops = {.pointless = lease_pointless};

static void build_lease(struct worker *w, enum script_id id, const struct lock_lease *lease, bool waits,
                        const char *party, size_t party_len) {
    struct lock_rule rule = {.lease_ms = lease->lease_ms,
                             .wait_ms = waits,
                             .unusual = waits || lease->quorum,
                             .quorum = lease->quorum ? LOCK_QUORUM_YES : LOCK_QUORUM_NO};
    struct lock_plan plan = {.verb = id == SCRIPT_RENEW ? LOCK_EXTEND : LOCK_RELEASE,
                             .key = lease->key,
                             .rule = &rule,
                             .right = lease->right,
                             .read_fence = (uint64_t)lease->left_ms};
    plan.attempt_len = plan.claim_len = lease->token_len;
    memcpy(plan.attempt_token, lease->token_text, sizeof(plan.attempt_token));
    memcpy(plan.claim_token, lease->token_text, sizeof(plan.claim_token));
    if (party)
        lock_plan_see(&plan, party, party_len);
    if (id == SCRIPT_RELEASE) {
        lock_build_release(w, NULL, NULL, &plan, SHAPE_INT, "DEL");
    } else {
        lock_build_call(w, id, NULL, &plan.key, LOCK_HEADER_ARGS);
        lock_build_header(w, NULL, &plan, NULL, 0, SHAPE_INT);
    }
    memory_free(plan.seen_long);
}

static void lease_send(struct worker *w, struct lease_work *work) {
    const struct lock_lease *lease = &work->lease;
    bool leaves = work->id == SCRIPT_LIST_LEAVE;
    invariant(leaves || (lease->token_len > 0 && lease->token_len < LOCK_TOKEN_MAX &&
                         !(work->id == SCRIPT_RENEW && work->waits)),
              "S3: a lease has a token of %zu bytes", (size_t)lease->token_len);
    invariant(w == worker_here(), "a lease is renewed in another thread");
    build_lease(w, work->id, lease, work->waits, leaves ? work->name + lease->key.len : NULL, work->party_len);
    struct request *request = lock_own_request(w, &work->owner, &lease_ops, work->id, lease_done);
    /* A repeated renewal might come after the owner has left. The engine asks for a new one instead. */
    request->call.up.repeatable = work->id != SCRIPT_RENEW;
    struct upstream_lane lane = {.login = lease->login, .db = lease->key.db, .protocol = 2};
    if (work->waits)
        work->handed =
            waiting_handover(w->shared->waiting, &lease->key, engine_key_hash(w->shared->engine, &lease->key), w->index,
                             lock_handover_way(&lane), 0, NULL);
    call_submit_lane(&request->call, work->slot, &lane, w->build.data, w->build.len);
}

static void lease_keep(struct lock_lease *to, const struct lock_lease *lease, char *name) {
    *to = *lease;
    to->rule = NULL;
    to->key.name = memcpy(name, lease->key.name, lease->key.len);
}

static struct lease_work *work_new(struct worker *w, const struct lock_lease *lease, enum script_id id,
                                   size_t party_len) {
    struct lease_work *work = memory_zalloc(sizeof(*work) + lease->key.len + party_len);
    lease_keep(&work->lease, lease, work->name);
    list_init(&work->link);
    work->id = id;
    work->slot = upstream_is_cluster(w->upstream) ? slot_of_key(work->name, lease->key.len) : 0;
    work->party_len = party_len;
    return work;
}

void lock_undo(struct worker *w, const struct lock_call *l, lock_undone_fn done, void *arg) {
    const struct lock_rule *rule = l->plan.rule;
    struct lock_lease lease = {.key = l->plan.key,
                               .login = l->plan.login,
                               .token = l->plan.attempt,
                               .token_len = l->plan.attempt_len,
                               .right = RIGHT_CLAIM,
                               .quorum = rule->quorum == LOCK_QUORUM_YES,
                               .lease_ms = rule->lease_ms};
    memcpy(lease.token_text, l->plan.attempt_token, sizeof(lease.token_text));
    struct lease_work *work = work_new(w, &lease, SCRIPT_RELEASE, 0);
    work->waits = rule->wait_ms > 0 && !done;
    work->done = done;
    work->arg = arg;
    lease_send(w, work);
}

/* ---- renewals ------------------------------------------------------------------------------------------------ */

/* The engine asks for renewals one by one. What it has asked for in one turn goes in as few calls as possible:
 * renew_all.lua renews many leases of one user, database and length; on a cluster, of one slot. What it does not renew
 * is sent again by itself, to renew.lua, which finds out why. */

enum { TOGETHER_MAX = 32 /* leases in one call: about 0.15 ms of Redis */ };

static void renewals_done(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct lease_work *r = REQUEST_OWNER(c->request, struct lease_work);
    struct resp_item digits;
    const char *p = end->reply;
    struct list_node others, *n;
    size_t count = 1;
    invariant(w->own_works > 0 && r, "no renewal is under way");
    list_init(&others);
    list_splice(&others, &r->link);
    LIST_EACH(other, &others, const struct lease_work, link)
        count++;
    bool read =
        !end->error && resp_item_read(&p, end->reply + end->len, &digits) && digits.type == '$' && digits.len == count;
    worker_engine_due(w, r->lease.lease_ms / 3);
    for (size_t i = 0; r; i++) {
        struct lock_result result = {.outcome = LOCK_DONE, .pttl_ms = r->lease.lease_ms, .leased = true};
        if (end->error)
            result.outcome = end->why == UPSTREAM_UNKNOWN ? LOCK_UNKNOWN : LOCK_NOT_SENT;
        else if (read)
            result.short_record = digits.str[i] == '2';
        if (end->error || (read && digits.str[i] != '0'))
            renewed(w, r, &result);
        else
            lease_send(w, r);
        n = list_shift(&others);
        r = n ? LIST_ENTRY(n, struct lease_work, link) : NULL;
    }
    lock_own_done(c, end);
}

static void submit(struct worker *w, struct lease_work *const *renewals, size_t count) {
    struct lease_work *first = renewals[0];
    const struct lock_lease *lease = &first->lease;
    for (size_t i = 1; i < count; i++)
        list_append(&first->link, &renewals[i]->link);
    lock_build_script(w, SCRIPT_RENEW_ALL, NULL, 2 * count, 2 + count);
    for (size_t i = 0; i < count; i++)
        lock_build_key(w, renewals[i]->name, renewals[i]->lease.key.len);
    build_number(w, lease->lease_ms);
    build_number(w, lease->lease_ms + GUARD_OUTLIVES_MS);
    for (size_t i = 0; i < count; i++)
        build_bulk(w, renewals[i]->lease.token_text, renewals[i]->lease.token_len);
    struct request *request = lock_own_request(w, &first->owner, &lease_ops, SCRIPT_RENEW_ALL, renewals_done);
    request->call.up.repeatable = false; /* as a single renewal */
    struct upstream_lane lane = {.login = lease->login, .db = lease->key.db, .protocol = 2};
    call_submit_lane(&request->call, first->slot, &lane, w->build.data, w->build.len);
}

/* An order of renewals in which those that may go in one call are neighbours, and are equal. */
static int order(const void *a, const void *b) {
    const struct lease_work *r = *(struct lease_work *const *)a, *q = *(struct lease_work *const *)b;
    const struct lock_lease *x = &r->lease, *y = &q->lease;
    if (x->login != y->login)
        return x->login < y->login ? -1 : 1;
    if (x->key.db != y->key.db)
        return x->key.db < y->key.db ? -1 : 1;
    if (x->lease_ms != y->lease_ms)
        return x->lease_ms < y->lease_ms ? -1 : 1;
    return (int)r->slot - (int)q->slot;
}

static void works_send(struct worker *w, struct worker_job *job) {
    struct list_node others, *node, *works = &w->locks->works;
    size_t room = 0, count = 0, sent = 0, n;
    list_init(&others);
    LIST_EACH(work, works, const struct lease_work, link)
        room++;
    struct lease_work **renewals = memory_alloc(room * sizeof(*renewals));
    while ((node = list_shift(works))) {
        struct lease_work *work = LIST_ENTRY(node, struct lease_work, link);
        if (work->together)
            renewals[count++] = work;
        else
            list_append(&others, node);
    }
    qsort(renewals, count, sizeof(*renewals), order);
    for (; sent < count; sent += n) {
        for (n = 1; n < TOGETHER_MAX && sent + n < count; n++)
            if (order(&renewals[sent], &renewals[sent + n]) != 0)
                break;
        submit(w, renewals + sent, n);
    }
    memory_free(renewals);
    while ((node = list_shift(&others)))
        lease_send(w, LIST_ENTRY(node, struct lease_work, link));
}

/* ---- what the engine asks for ------------------------------------------------------------------------------ */

/* The engine calls with a shard locked, so the worker makes the calls at the end of its turn. */
static void note(struct lease_work *work) {
    struct worker *w = worker_here();
    lock_turn_add(w, &w->locks->works, &work->link, works_send);
}

void lock_note_renewal(void *arg, const struct lock_lease *lease) {
    struct lease_work *work = work_new(worker_here(), lease, SCRIPT_RENEW, 0);
    work->together = lease->right == RIGHT_CLAIM && !lease->list;
    note(work);
}

void lock_note_release(void *arg, const struct lock_lease *lease) {
    struct lease_work *work = work_new(worker_here(), lease, SCRIPT_RELEASE, 0);
    work->waits = lease->rule->wait_ms > 0;
    note(work);
}

void lock_note_leaving(void *arg, const struct lock_leaving *leaving) {
    /* Nodes that are kept stay for a while, in case that their owner comes back. */
    bool keeps = leaving->rule->on_disconnect == LOCK_DISCONNECT_KEEP;
    const struct lock_lease lease = {.key = leaving->key,
                                     .right = leaving->right,
                                     .login = leaving->login,
                                     .lease_ms = leaving->rule->lease_ms,
                                     .left_ms = keeps};
    struct lease_work *work = work_new(worker_here(), &lease, SCRIPT_LIST_LEAVE, leaving->party_len);
    memcpy(work->name + leaving->key.len, leaving->party, leaving->party_len);
    note(work);
}

/* ---- sessions hear that their leases are over ---------------------------------------------------------------- */

/* An alarm on its way to its session. */
struct alarm_news {
    struct request_owner owner; /* must be the first field */
    struct broadcast broadcast; /* to the session's thread */
    struct list_node link;      /* in worker_locks.alarms or worker_locks.unasked */
    struct lock_lease lease;
    uint64_t session_id, fence;
    unsigned thread; /* the session's */
    enum lock_on_loss way;
    int64_t asked_ms;
    char name[]; /* the key */
};

/* ---- the session is told --------------------------------------------------------------------------- */

static void tell(struct session *s, const struct alarm_news *news) {
    static const char *const actions[] = {[LOCK_LOSS_TELL] = "it goes on",
                                          [LOCK_LOSS_CLOSE] = "its connection is closed",
                                          [LOCK_LOSS_ERROR] = "its next command is refused"};
    struct worker *w = s->worker;
    struct lock_state *state = locks_of(s);
    struct text out = {0};
    size_t len = news->lease.key.len;
    char who[SESSION_ADDRESS_MAX + 128];
    session_who(s, who, sizeof(who));
    if (!engine_alarm_take(w->shared->engine, &news->lease.key, news->session_id, news->lease.token, who,
                           actions[news->way], worker_now(w)))
        return;
    if (atomic_load(&s->lock.notified) && s->lane.protocol == 3) {
        text_printf(&out, ">4\r\n$10\r\nlockkeeper\r\n$4\r\nlost\r\n$%zu\r\n", len);
        text_append(&out, news->name, len);
        text_printf(&out, "\r\n:%llu\r\n", (unsigned long long)news->fence);
        session_tell(s, out.data, out.len);
        counter_add(&w->counters.losses_pushed, 1);
        out.len = 0;
    }
    if (news->way == LOCK_LOSS_ERROR && !state->lost) { /* one error is enough */
        bool cut = len > NAME_SHOWN;
        text_printf(&out, "LOST the lease on ");
        text_append(&out, news->name, cut ? NAME_SHOWN : len);
        text_printf(&out, "%s is over", cut ? "..." : "");
        state->lost = memory_strndup(out.data, out.len);
        w->struck++;
        counter_add(&w->counters.losses_refused, 1);
    } else if (news->way == LOCK_LOSS_CLOSE) {
        counter_add(&w->counters.losses_closed, 1);
        session_finish(s);
    }
    text_clear(&out);
}

static void visit(struct broadcast *t, struct worker *w) {
    const struct alarm_news *news = LIST_ENTRY(t, struct alarm_news, broadcast);
    if (w->index != news->thread)
        return;
    LIST_EACH(s, &w->sessions, struct session, link) {
        if (s->lock.id != news->session_id)
            continue;
        if (s->state == SESSION_OPEN)
            tell(s, news);
        return;
    }
}

static void visited(struct broadcast *t) {
    memory_free(LIST_ENTRY(t, struct alarm_news, broadcast));
}

char *lock_take_lost(struct session *s) {
    char *lost = locks_of(s)->lost;
    if (lost)
        s->worker->struck--;
    locks_of(s)->lost = NULL;
    return lost;
}

/* ---- Redis is asked ----------------------------------------------------------------------------------- */

static void answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct alarm_news *news = REQUEST_OWNER(c->request, struct alarm_news);
    invariant(w->own_works > 0 && news, "no alarm is looked into");
    struct lock_envelope e;
    lock_answer_read(NULL, end, &e);
    switch (engine_alarm_looked(w->shared->engine, &news->lease.key, news->session_id, news->lease.token, &e.result,
                                news->asked_ms, worker_now(w))) {
    case ALARM_OVER:
        broadcast_start(&news->broadcast, w, visit, visited);
        break;
    case ALARM_KEPT:
        worker_engine_due(w, e.result.pttl_ms > 0 ? e.result.pttl_ms : 1);
        memory_free(news);
        break;
    case ALARM_UNKNOWN:
        list_append(&w->locks->unasked, &news->link);
        break;
    }
    lock_own_done(c, end);
}

static void ask(struct worker *w, struct alarm_news *news) {
    invariant(news->lease.right == RIGHT_LOOK, "an alarm changes its lease");
    news->asked_ms = worker_now(w);
    build_lease(w, SCRIPT_RENEW, &news->lease, false, NULL, 0);
    struct request *request = lock_own_request(w, &news->owner, &request_owner_silent, SCRIPT_RENEW, answered);
    struct upstream_lane lane = {.login = news->lease.login, .db = news->lease.key.db, .protocol = 2};
    call_submit_lane(&request->call, slot_of_key(news->name, news->lease.key.len), &lane, w->build.data, w->build.len);
}

static void alarms_ask(struct worker *w, struct worker_job *job) {
    for (struct alarm_news *n; (n = LIST_SHIFT(&w->locks->alarms, struct alarm_news, link));)
        ask(w, n);
}

void lock_note_alarm(void *arg, const struct lock_alarm *alarm) {
    struct alarm_news *news = memory_zalloc(sizeof(*news) + alarm->lease.key.len);
    list_init(&news->link);
    news->session_id = alarm->session_id;
    news->fence = alarm->fence;
    news->thread = LIST_ENTRY(alarm->session, struct session, lock)->worker->index;
    news->way = alarm->own ? alarm->lease.rule->on_loss : LOCK_LOSS_TELL;
    lease_keep(&news->lease, &alarm->lease, news->name);
    lock_turn_add(worker_here(), &worker_here()->locks->alarms, &news->link, alarms_ask);
}

void alarms_tick(struct worker *w) {
    struct list_node all;
    list_init(&all);
    list_splice(&all, &w->locks->unasked);
    for (struct alarm_news *news; (news = LIST_SHIFT(&all, struct alarm_news, link));) {
        if (engine_alarm_waits(w->shared->engine, &news->lease.key, news->session_id, news->lease.token))
            ask(w, news);
        else
            memory_free(news);
    }
}

void lock_works_close(struct worker *w) {
    for (struct lease_work *n; (n = LIST_SHIFT(&w->locks->works, struct lease_work, link));)
        memory_free(n);
    list_splice(&w->locks->unasked, &w->locks->alarms);
    for (struct alarm_news *n; (n = LIST_SHIFT(&w->locks->unasked, struct alarm_news, link));)
        memory_free(n);
}
