/*
 * The proxy's own calls on leases: renewals, and releases for an owner that has disconnected. The engine's sink asks
 * for them. They run in the worker's thread, without a session.
 */
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/leases.h"
#include "proxy/session/locks/lock_args.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/quorum.h"

enum { REFUSED_AGAIN_MS = 10 * 1000 };

/* One call under way: a renewal, a release after the owner has disconnected, or a call that declares the queue nodes of
 * a disconnected owner dead. */
struct lease_work {
    struct request_owner owner; /* must be the first field */
    bool renewal;
    bool waits;          /* a release under a rule with `wait` */
    bool handed;         /* the attempt of a waiting session was sent right behind the release */
    lock_undone_fn done; /* NULL: its caller does not wait */
    void *arg;
    struct lock_lease lease; /* its key is `name`; of a call about queue nodes: the key alone */
    char name[];
};

/* Logs a refusal, at most once in REFUSED_AGAIN_MS: a missing permission may refuse every lease. */
static void log_refusal(struct worker *w, const struct lease_work *work, const struct call_end *end) {
    int64_t now = worker_now(w);
    struct lock_envelope e = {.reply = end->reply, .reply_len = end->len};
    char answer[LOCK_ANSWER_MAX];
    if (now - w->locks->refused_ms < REFUSED_AGAIN_MS)
        return;
    w->locks->refused_ms = now;
    lock_error_words(&e, answer);
    log_warning("a lease could not be %s: %.*s", work->renewal ? "renewed" : "released behind its owner",
                (int)(e.reply_len > 400 ? 400 : e.reply_len - 3), e.reply + 1);
}

static void lease_done(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct lease_work *work = REQUEST_OWNER(c->request, struct lease_work);
    invariant(w->own_works > 0 && work, "no work of the proxy's own is under way");
    struct lock_envelope e;
    lock_own_answer(end, &e);
    if (e.result.outcome == LOCK_ERROR) {
        e.result.outcome = LOCK_NOT_SENT;
        log_refusal(w, work, end);
    }
    if (work->renewal) {
        worker_engine_due(w, work->lease.lease_ms / 3);
        quorum_renewed(w, &work->lease, &e.result);
    } else if (work->lease.quorum) {
        quorum_released(w, &work->lease.key, work->lease.token_text, 0); /* the lease is over, whatever Redis says */
    }
    if (work->waits && e.result.outcome != LOCK_HELD)
        waiting_freed(w->shared->waiting, &work->lease.key, engine_key_hash(w->shared->engine, &work->lease.key),
                      e.result.fence, work->handed);
    lock_undone_fn done = work->done;
    void *arg = work->arg;
    request_disown(c->request);
    memory_free(work);
    w->own_works--;
    request_reply(c->request, "", 0, true);
    if (done)
        done(arg);
}

/* Whether a renewal has become pointless: the owner has released the lease or left while the renewal waited to be
 * sent. */
static bool lease_pointless(const struct request *r) {
    const struct lease_work *work = REQUEST_OWNER(r, const struct lease_work);
    return work->renewal && !engine_wants_renewal(r->worker->shared->engine, &work->lease.key, work->lease.token);
}

static const struct request_owner_ops lease_ops = {.pointless = lease_pointless};

static void lease_submit(struct worker *w, struct lease_work *work, enum script_id id, uint32_t login) {
    struct request *request = request_internal(w);
    w->own_works++;
    invariant(w == worker_here(), "a lease is renewed in another thread");
    request_own(request, &work->owner, &lease_ops);
    request->call.done = lease_done;
    request->call.up.script = script_get(id);
    /* A repeated renewal might come after the owner has left. The engine asks for a new one instead. */
    request->call.up.repeatable = !work->renewal;
    struct upstream_lane lane = {.login = login, .db = work->lease.key.db, .protocol = 2};
    if (work->waits)
        work->handed =
            waiting_handover(w->shared->waiting, &work->lease.key, engine_key_hash(w->shared->engine, &work->lease.key),
                             w->index, lock_handover_way(&lane), 0, NULL);
    call_submit_lane(&request->call, slot_of_key(work->name, work->lease.key.len), &lane, w->build.data, w->build.len);
}

static struct lease_work *lease_work_new(const struct lock_key *key) {
    struct lease_work *work = memory_zalloc(sizeof(*work) + key->len);
    memcpy(work->name, key->name, key->len);
    work->lease.key = (struct lock_key){.db = key->db, .name = work->name, .len = key->len};
    return work;
}

static void lease_work(struct worker *w, const struct lock_lease *lease, bool renewal, bool waits, lock_undone_fn done,
                       void *arg) {
    invariant(lease->token_len > 0 && lease->token_len < LOCK_TOKEN_MAX && !(renewal && waits),
              "S3: a lease has a token of %zu bytes", (size_t)lease->token_len);
    struct lease_work *work = lease_work_new(&lease->key);
    work->renewal = renewal;
    work->waits = waits;
    work->done = done;
    work->arg = arg;
    work->lease = *lease;
    work->lease.rule = NULL;
    work->lease.key.name = work->name;
    struct lock_rule rule = {.lease_ms = lease->lease_ms,
                             .wait_ms = waits,
                             .unusual = waits || lease->quorum,
                             .quorum = lease->quorum ? LOCK_QUORUM_YES : LOCK_QUORUM_NO};
    struct lock_plan plan = {.verb = renewal ? LOCK_EXTEND : LOCK_RELEASE,
                             .key = work->lease.key,
                             .rule = &rule,
                             .right = lease->right,
                             .read_fence = (uint64_t)lease->left_ms};
    plan.attempt_len = plan.claim_len = lease->token_len;
    memcpy(plan.attempt_token, lease->token_text, sizeof(plan.attempt_token));
    memcpy(plan.claim_token, lease->token_text, sizeof(plan.claim_token));
    enum script_id id = renewal ? SCRIPT_RENEW : SCRIPT_RELEASE;
    if (renewal) {
        lock_build_call(w, id, NULL, &plan.key, LOCK_HEADER_ARGS);
        lock_build_header(w, NULL, &plan, NULL, 0, SHAPE_INT);
    } else {
        lock_build_release(w, NULL, NULL, &plan, SHAPE_INT, "DEL");
    }
    lease_submit(w, work, id, lease->login);
}

void lock_renew_alone(struct worker *w, const struct lock_lease *lease) {
    lease_work(w, lease, true, false, NULL, NULL);
}

void lock_undo(struct worker *w, const struct lock_call *l, lock_undone_fn done, void *arg) {
    const struct lock_rule *rule = l->plan.rule;
    struct lock_lease lease = {.key = l->plan.key,
                               .rule = rule,
                               .login = l->plan.login,
                               .token = l->plan.attempt,
                               .token_len = l->plan.attempt_len,
                               .right = RIGHT_CLAIM,
                               .quorum = rule->quorum == LOCK_QUORUM_YES,
                               .lease_ms = rule->lease_ms};
    memcpy(lease.token_text, l->plan.attempt_token, sizeof(lease.token_text));
    lease_work(w, &lease, false, rule->wait_ms > 0 && !done, done, arg);
}

/* ---- what the engine asks for ------------------------------------------------------------------------------ */

/* The engine calls with a shard locked, so the worker makes the call at the end of its turn. */
struct lease_note {
    struct worker_job job; /* must be the first field */
    struct lock_lease lease;
    struct lock_leaving leaving;
    bool renewal;
    bool waits; /* of a release: other sessions may be waiting for the lock. Of leaving: the nodes are kept for a while,
                   in case that their owner comes back */
    char name[]; /* the key, followed by the party that leaves */
};

static void lease_due(struct worker *w, struct worker_job *job) {
    struct lease_note *note = (struct lease_note *)(void *)job;
    if (note->renewal)
        lock_renew(w, &note->lease);
    else
        lease_work(w, &note->lease, false, note->waits, NULL, NULL);
}

static void note_lease(const struct lock_lease *lease, bool renewal) {
    struct lease_note *note = memory_alloc(sizeof(*note) + lease->key.len);
    note->job.run = lease_due;
    note->renewal = renewal;
    note->lease = *lease;
    memcpy(note->name, lease->key.name, lease->key.len);
    note->lease.key.name = note->name;
    note->waits = lease->rule->wait_ms > 0;
    note->lease.rule = NULL;
    worker_add_job(worker_here(), &note->job);
}

void lock_note_renewal(void *arg, const struct lock_lease *lease) {
    note_lease(lease, true);
}

void lock_note_release(void *arg, const struct lock_lease *lease) {
    note_lease(lease, false);
}

/* Declares the queue nodes of a session that has left dead. */
static void leaving_due(struct worker *w, struct worker_job *job) {
    const struct lease_note *note = (struct lease_note *)(void *)job;
    const struct lock_leaving *leaving = &note->leaving;
    struct lease_work *work = lease_work_new(&leaving->key);
    struct lock_rule rule = {.lease_ms = note->lease.lease_ms};
    struct lock_plan plan = {.right = leaving->right, .rule = &rule, .read_fence = note->waits};
    lock_plan_see(&plan, leaving->party, leaving->party_len);
    lock_build_call(w, SCRIPT_LIST_LEAVE, NULL, &leaving->key, LOCK_HEADER_ARGS);
    lock_build_header(w, NULL, &plan, NULL, 0, SHAPE_INT);
    memory_free(plan.seen_long);
    lease_submit(w, work, SCRIPT_LIST_LEAVE, leaving->login);
}

void lock_note_leaving(void *arg, const struct lock_leaving *leaving) {
    struct lease_note *note = memory_alloc(sizeof(*note) + leaving->key.len + leaving->party_len);
    note->job.run = leaving_due;
    note->leaving = *leaving;
    note->lease.lease_ms = leaving->rule->lease_ms;
    note->waits = leaving->rule->on_disconnect == LOCK_DISCONNECT_KEEP;
    memcpy(note->name, leaving->key.name, leaving->key.len);
    memcpy(note->name + leaving->key.len, leaving->party, leaving->party_len);
    note->leaving.key.name = note->name;
    note->leaving.party = note->name + leaving->key.len;
    note->leaving.rule = NULL;
    worker_add_job(worker_here(), &note->job);
}
