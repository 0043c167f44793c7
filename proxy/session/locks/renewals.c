/*
 * Renewals of leases. The engine asks for them one by one. What it has asked for in one turn goes in as few calls as
 * possible: renew_all.lua renews many leases of one user, database and length; on a cluster, of one slot. What it does
 * not renew is sent again by itself, to renew.lua (lease_work.c), which finds out why.
 */
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/lock/script_constants.h"
#include "proxy/session/locks/leases.h"
#include "proxy/session/locks/lock_args.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/quorum.h"

enum { TOGETHER_MAX = 32 /* leases in one call: about 0.15 ms of Redis */ };

struct renewal {
    struct list_node link; /* in worker->locks->renewals */
    uint16_t slot;
    struct lock_lease lease;
    char name[];
};

/* One call under way. */
struct renewal_call {
    struct request_owner owner; /* must be the first field */
    size_t count;
    struct renewal *renewals[TOGETHER_MAX];
};

/* ---- the answer ------------------------------------------------------------------------------------ */

static void renewed(struct worker *w, const struct renewal *r, enum lock_outcome outcome, bool short_record) {
    struct lock_result result = {
        .outcome = outcome, .pttl_ms = r->lease.lease_ms, .leased = true, .short_record = short_record};
    quorum_renewed(w, &r->lease, &result);
}

static void renewals_done(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct renewal_call *call = REQUEST_OWNER(c->request, struct renewal_call);
    invariant(w->own_works > 0 && call->count > 0, "no renewal is under way");
    struct resp_item digits;
    const char *p = end->reply;
    bool read = !end->error && resp_item_read(&p, end->reply + end->len, &digits) && digits.type == '$' &&
                digits.len == call->count;
    worker_engine_due(w, call->renewals[0]->lease.lease_ms / 3);
    for (size_t i = 0; i < call->count; i++) {
        struct renewal *r = call->renewals[i];
        if (end->error)
            renewed(w, r, end->why == UPSTREAM_UNKNOWN ? LOCK_UNKNOWN : LOCK_NOT_SENT, false);
        else if (read && digits.str[i] != '0')
            renewed(w, r, LOCK_DONE, digits.str[i] == '2');
        else
            lock_renew_alone(w, &r->lease);
        memory_free(r);
    }
    request_disown(c->request);
    memory_free(call);
    w->own_works--;
    request_reply(c->request, "", 0, true);
}

/* Whether a renewal in the call has become pointless: its owner has released the lease or left while the call waited to
 * be sent. The engine then asks again for the others. */
static bool renewals_pointless(const struct request *r) {
    const struct renewal_call *call = REQUEST_OWNER(r, const struct renewal_call);
    for (size_t i = 0; i < call->count; i++)
        if (!engine_wants_renewal(r->worker->shared->engine, &call->renewals[i]->lease.key,
                                  call->renewals[i]->lease.token))
            return true;
    return false;
}

/* ---- sending ---------------------------------------------------------------------------------------- */

/* Sends the renewals, which may go together. Takes them over. */
static void submit(struct worker *w, struct renewal *const *renewals, size_t count) {
    static const struct request_owner_ops ops = {.pointless = renewals_pointless};
    struct renewal_call *call = memory_zalloc(sizeof(*call));
    const struct lock_lease *first = &renewals[0]->lease;
    call->count = count;
    memcpy(call->renewals, renewals, count * sizeof(*renewals));
    lock_build_script(w, SCRIPT_RENEW_ALL, NULL, 2 * count, 2 + count);
    for (size_t i = 0; i < count; i++) {
        build_bulk(w, renewals[i]->name, renewals[i]->lease.key.len);
        lock_build_guard(w, renewals[i]->name, renewals[i]->lease.key.len);
    }
    build_number(w, first->lease_ms);
    build_number(w, first->lease_ms + GUARD_OUTLIVES_MS);
    for (size_t i = 0; i < count; i++)
        build_bulk(w, renewals[i]->lease.token_text, renewals[i]->lease.token_len);
    struct request *request = request_internal(w);
    w->own_works++;
    request_own(request, &call->owner, &ops);
    request->call.done = renewals_done;
    request->call.up.script = script_get(SCRIPT_RENEW_ALL);
    request->call.up.repeatable = false; /* as a single renewal */
    struct upstream_lane lane = {.login = first->login, .db = first->key.db, .protocol = 2};
    call_submit_lane(&request->call, renewals[0]->slot, &lane, w->build.data, w->build.len);
}

/* An order of renewals in which those that may go in one call are neighbours, and are equal. */
static int compare(const struct renewal *a, const struct renewal *b, bool cluster) {
    const struct lock_lease *x = &a->lease, *y = &b->lease;
    if (x->login != y->login)
        return x->login < y->login ? -1 : 1;
    if (x->key.db != y->key.db)
        return x->key.db < y->key.db ? -1 : 1;
    if (x->lease_ms != y->lease_ms)
        return x->lease_ms < y->lease_ms ? -1 : 1;
    return cluster ? (int)a->slot - (int)b->slot : 0;
}

static int order(const void *a, const void *b) {
    return compare(*(struct renewal *const *)a, *(struct renewal *const *)b, true);
}

/* Sends what has been collected in this turn. */
static void flush(struct worker *w, struct worker_job *job) {
    struct worker_locks *locks = w->locks;
    size_t count = 0, sent = 0, n;
    struct renewal **all = memory_alloc(locks->renewals_count * sizeof(struct renewal *));
    for (struct list_node *node; (node = list_shift(&locks->renewals)); count++)
        all[count] = LIST_ENTRY(node, struct renewal, link);
    invariant(count == locks->renewals_count, "%zu renewals are in the list, not %zu", count, locks->renewals_count);
    locks->renewals_count = 0;
    qsort(all, count, sizeof(struct renewal *), order);
    for (; sent < count; sent += n) {
        for (n = 1; n < TOGETHER_MAX && sent + n < count; n++)
            if (compare(all[sent], all[sent + n], upstream_is_cluster(w->upstream)) != 0)
                break;
        submit(w, all + sent, n);
    }
    memory_free(all);
}

void lock_renew(struct worker *w, const struct lock_lease *lease) {
    if (lease->right != RIGHT_CLAIM || lease->list) {
        lock_renew_alone(w, lease);
        return;
    }
    struct renewal *r = memory_alloc(sizeof(*r) + lease->key.len);
    r->lease = *lease;
    r->slot = slot_of_key(lease->key.name, lease->key.len);
    memcpy(r->name, lease->key.name, lease->key.len);
    r->lease.key.name = r->name;
    r->lease.rule = NULL;
    list_init(&r->link);
    list_append(&w->locks->renewals, &r->link);
    if (w->locks->renewals_count++ == 0) {
        struct worker_job *job = memory_zalloc(sizeof(*job)); /* it runs behind the jobs that are there */
        job->run = flush;
        worker_add_job(w, job);
    }
}
