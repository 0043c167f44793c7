/*
 * A rule's `quorum yes` inside MULTI: witnesses confirm what the transaction has acquired and extended, before the
 * client gets EXEC's array.
 *
 *      EXEC's array ── lock_queue_answer, for each lock call ──> lock_queue_vote ──> votes ──> the client's array
 *
 * An acquisition has one vote. The later commands of the transaction on the same lease share it: SETNX and EXPIRE are
 * asked about once, with the end that EXPIRE has set. An extension of an earlier lease has a vote of its own. The
 * engine learns of all calls in the order of the array.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/sending.h"

/* What is known of a queued call's lock. */
struct lock_ballot {
    struct lock_call *voter; /* whose vote counts for this call, perhaps its own; NULL: none. It is ended before */
    struct lock_result result;
    bool refused;
    struct lock_refusal why;
    struct queue_vote *all;
};

/* A transaction while witnesses are asked. */
struct queue_vote {
    struct lock_queue *queue;
    size_t due; /* of how many votes the result is due, and 1 while they are being asked for */
    void (*done)(void *arg);
    void *arg;
};

#define QUEUED(n) LIST_ENTRY(n, struct lock_call, queued)

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

/* Finds the call before `l` in its transaction that has acquired the lease of which `l` has heard; NULL: none. */
static struct lock_call *acquirer(const struct lock_queue *queue, const struct lock_call *l) {
    for (const struct list_node *it = l->queued.prev; it != &queue->calls; it = it->prev) {
        struct lock_call *before = QUEUED(it);
        const struct lock_ballot *b = before->ballot;
        if (b && b->result.outcome == LOCK_GRANTED && b->result.fence == l->ballot->result.fence && on_key(before, l))
            return before;
    }
    return NULL;
}

bool lock_queue_asks(const struct lock_queue *queue) {
    bool asks = false;
    LIST_FOREACH(it, &queue->calls) {
        struct lock_call *l = QUEUED(it);
        if (!l->ballot)
            continue;
        bool granted = l->ballot->result.outcome == LOCK_GRANTED, extends = lock_extends(l, &l->ballot->result);
        struct lock_call *voter = granted ? l : acquirer(queue, l);
        int64_t pttl_ms = l->ballot->result.pttl_ms;
        if (voter && extends && (!voter->clobbers || pttl_ms > voter->ballot->result.pttl_ms))
            voter->ballot->result.pttl_ms = pttl_ms;
        l->ballot->voter = !voter && extends ? l : voter;
        asks |= l->ballot->voter == l;
    }
    return asks;
}

/* A vote is decided. The last one decides for the calls that have none of their own. */
static void decided(struct queue_vote *v) {
    invariant(v->due > 0, "witnesses decide twice about a queued call");
    if (--v->due > 0)
        return;
    LIST_FOREACH(it, &v->queue->calls) {
        struct lock_call *l = QUEUED(it);
        const struct lock_call *voter = l->ballot ? l->ballot->voter : NULL;
        if (!voter || voter == l)
            continue;
        l->ballot->refused = voter->ballot->refused;
        l->ballot->why = voter->ballot->why;
        const struct lock_call *acquired = on_key(voter, l);
        l->waited_ms = acquired->waited_ms;
        l->raised_fence = acquired->raised_fence;
    }
    v->done(v->arg);
    memory_free(v);
}

static void heard(void *arg, const struct lock_refusal *why) {
    struct lock_ballot *b = arg;
    b->refused = why != NULL;
    if (why)
        b->why = *why;
    decided(b->all);
}

void lock_queue_vote(struct worker *w, struct lock_queue *queue, void (*done)(void *arg), void *arg) {
    struct queue_vote *v = memory_zalloc(sizeof(*v));
    *v = (struct queue_vote){.queue = queue, .due = 1, .done = done, .arg = arg};
    LIST_FOREACH(it, &queue->calls) {
        struct lock_call *l = QUEUED(it);
        if (!l->ballot || l->ballot->voter != l)
            continue;
        l->ballot->all = v;
        v->due++;
        lock_vote_all(w, l, &l->ballot->result, heard, l->ballot);
    }
    decided(v);
}

bool lock_queue_ends(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                     struct lock_answer *out) {
    static const struct lock_result not_done = {.outcome = LOCK_NOT_SENT};
    if (l->ballot && lock_release_forgotten(w, l, &l->ballot->result)) {
        lock_finish(w, s, l, &lock_released_end, out); /* which tells the witnesses */
        return true;
    }
    if (!l->ballot || !l->ballot->refused)
        return false;
    struct lock_refusal why = l->ballot->why;
    struct lock_envelope e;
    bool voter = l->ballot->voter == l;
    bool reads = lock_verb_is(l->plan.verb, VERB_SHOWS) && lock_envelope_read(l, end->reply, end->len, &e);
    memcpy(out->text, why.error, sizeof(why.error));
    out->end = reads ? (struct call_end){.reply = e.reply, .len = e.reply_len} : lock_refused_end(l, s, &why, end);
    if (out->end.error)
        out->end.error = out->text;
    lock_learnt_all(w, s, voter ? why.by : l, voter ? &why.result : &not_done);
    return true;
}

const char *lock_queue_refusal(const struct lock_call *l) {
    return l && l->ballot && l->ballot->refused ? l->ballot->why.error : NULL;
}
