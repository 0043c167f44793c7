/*
 * Releases of leases whose guard records have the short form. Those of one turn of the event loop go in as few calls as
 * possible: free_all.lua takes many locks of one user and database; on a cluster, of one slot. A release by itself is a
 * call of free.lua. What is not released so is sent again by itself, to release.lua, which finds out why.
 *
 *      DEL by A, B, C ──> worker->locks->frees ── end of the turn ──> free_all.lua ──> "rr0": C's goes to release.lua
 *
 * A release that is kept until the end of the turn is overtaken by no later request of its session: as soon as there is
 * one, the release is sent by itself. A release that goes with another session's may be on another connection than the
 * session's own requests. So it goes so only if it is the only one in flight, and the next ones wait for it.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/lock_args.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/sending.h"

enum { TOGETHER_MAX = 16 /* releases in one call: about 0.05 ms of Redis */ };

/* ---- the answer ------------------------------------------------------------------------------------ */

/* Ends a release of which the script has answered `answer`. `twice`: the script may have run more than once. */
static void freed(struct call *c, char answer, bool twice) {
    static const char RELEASED[] = "$1\r\nr\r\n";
    static const struct call_end released = {.reply = RELEASED, .len = sizeof(RELEASED) - 1};
    if (answer == 'r') {
        lock_attempt_ended(c, &released);
        return;
    }
    c->lock->sent_twice = twice;
    lock_submit_whole(c, lock_answered);
}

static void frees_answered(struct call *c, const struct call_end *end) {
    struct lock_call *l = c->lock;
    struct resp_item answers;
    const char *p = end->reply;
    char answer[TOGETHER_MAX] = {0};
    bool twice = c->up.attempts > 0;
    struct list_node joined, *n;
    list_init(&joined);
    list_splice(&joined, &l->joined);
    if (!end->error && resp_item_read(&p, end->reply + end->len, &answers) && answers.type == '$' && !answers.null)
        memcpy(answer, answers.str, answers.len < TOGETHER_MAX ? answers.len : TOGETHER_MAX);
    for (size_t i = 0; c; i++) {
        if (end->error)
            lock_attempt_ended(c, end);
        else
            freed(c, answer[i], twice);
        n = list_shift(&joined);
        c = n ? LIST_ENTRY(n, struct lock_call, link)->call : NULL;
    }
}

/* ---- sending ---------------------------------------------------------------------------------------- */

/* Takes a release out of the list. */
static void take(struct lock_call *l) {
    struct session *s = l->call->request->session;
    list_remove(&l->link);
    if (s)
        s->hears &= (uint8_t)~HEARS_NEXT;
}

static void submit(struct lock_call *l) {
    bool alone = list_empty(&l->joined);
    lock_build_free(l->call->request->worker, l);
    lock_submit_next(l->call, l, alone ? SCRIPT_FREE : SCRIPT_FREE_ALL, frees_answered);
}

/* Whether a release may go in the call of `first`, with the others that have joined it. */
static bool goes_with(const struct lock_call *first, const struct lock_call *l) {
    const struct session *a = first->call->request->session, *b = l->call->request->session;
    if (!a || !b || b->in_flight > 1 || memcmp(&a->lane, &b->lane, sizeof(a->lane)) != 0 ||
        (first->plan.slot != l->plan.slot && upstream_is_cluster(b->worker->upstream)))
        return false;
    LIST_FOREACH(it, &first->joined)
    if (LIST_ENTRY(it, struct lock_call, link)->plan.hash == l->plan.hash)
        return false;
    return first->plan.hash != l->plan.hash;
}

/* Sends what has been kept in this turn. */
static void flush(struct worker *w, struct worker_job *job) {
    struct list_node *n, *frees = &w->locks->frees;
    while ((n = list_first(frees))) {
        struct lock_call *first = LIST_ENTRY(n, struct lock_call, link);
        take(first);
        for (unsigned count = 1; count < TOGETHER_MAX && (n = list_first(frees)); count++) {
            struct lock_call *l = LIST_ENTRY(n, struct lock_call, link);
            if (!goes_with(first, l))
                break;
            take(l);
            list_append(&first->joined, &l->link);
            request_barrier(l->call->request);
        }
        submit(first);
    }
}

bool lock_free_fits(const struct lock_call *l) {
    const struct lock_plan *plan = &l->plan;
    return plan->short_record && plan->verb == LOCK_RELEASE && plan->right == RIGHT_CLAIM && plan->claim_fence &&
           plan->claim_len > 0 && l->shape == SHAPE_INT;
}

void lock_free(struct call *call, struct lock_call *l) {
    struct worker *w = call->request->worker;
    invariant_debug(!call->lock && list_empty(&l->link), "a release is sent twice");
    l->next = call->done;
    l->call = call;
    call->lock = l;
    if (list_empty(&w->locks->frees)) {
        struct worker_job *job = memory_zalloc(sizeof(*job));
        job->run = flush;
        worker_add_job(w, job);
    }
    list_append(&w->locks->frees, &l->link);
    call->request->session->hears |= HEARS_NEXT;
}

void lock_free_now(struct session *s) {
    const struct request *r = LIST_ENTRY(s->requests.prev, const struct request, link);
    struct lock_call *l = r->call.lock;
    invariant(l && l->call == &r->call && !list_empty(&l->link),
              "the session's last request is no release that is kept");
    take(l);
    submit(l);
}
