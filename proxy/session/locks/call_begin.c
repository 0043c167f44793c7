/*
 * The call of a lock script: its memory, its plan, and its place in the queue of a transaction.
 *
 *      arguments of the command ──> EVALSHA sha 2 KEY GUARD arguments... (lock_args.c) ──> node
 *      client's reply <── first element of the envelope <── {reply, outcome, fence, pttl, owner, flags}
 *                                                             (and three more for list locks: list.lua)
 *
 * The callers choose the script for a command. lock_call.c sends the call, and call_finish.c ends it.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/bytes.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/private.h"

enum { FREE_LOCKS_MAX = 1024 };

/* ---- a lock call's memory ---------------------------------------------------------------------- */

static char *keep_text(char *inside, size_t size, const char *data, size_t len) {
    if (len > size)
        return memory_strndup(data, len);
    bytes_copy(inside, data, len);
    return inside;
}

static inline struct lock_call *lock_new(struct session *s, const char *key, size_t key_len) {
    struct worker *w = s->worker;
    struct list_node *n = stack_pop(&w->locks->free);
    w->locks->free_count -= n != NULL;
    struct lock_call *l = n ? LIST_ENTRY(n, struct lock_call, link) : memory_alloc(sizeof(*l));
    list_init(&l->link);
    list_init(&l->queued);
    list_init(&l->joined);
    l->rules = lock_rules_ref(w->rules);
    l->session_id = s->lock.id;
    l->next = NULL;
    l->asks = l->clobbers = l->acquires = l->again = l->handed = l->sent_twice = l->witnessed = false;
    l->fence = 0;
    l->shape = SHAPE_NIL;
    l->advises = 0;
    l->protocol = s->lane.protocol;
    l->begun = ev_now(w->loop);
    l->waited_ms = 0;
    l->raised_fence = 0;
    l->ballot = NULL;
    l->value = NULL;
    l->value_len = 0;
    l->key = keep_text(l->short_key, LOCK_SHORT_KEY, key, key_len);
    l->command = "";
    memcpy(l->who, s->address, sizeof(s->address));
    if (s->name)
        session_who(s, l->who, sizeof(l->who));
    return l;
}

void lock_drop(struct worker *w, struct lock_call *l) {
    invariant_debug(list_empty(&l->joined), "attempts have joined a call that is freed");
    lock_rules_unref(l->rules);
    list_remove(&l->queued);
    if (l->value != l->short_value)
        memory_free(l->value);
    if (l->key != l->short_key)
        memory_free(l->key);
    if (__builtin_expect(l->ballot != NULL, false))
        memory_free(l->ballot);
    if (w->locks->free_count >= FREE_LOCKS_MAX) {
        memory_free(l);
        return;
    }
    w->locks->free_count++;
    stack_push(&w->locks->free, &l->link);
}

const struct call *lock_call_joined(const struct lock_call *l, const struct call *joined) {
    const struct list_node *n = joined ? joined->lock->link.next : l->joined.next;
    return n == &l->joined ? NULL : LIST_ENTRY(n, const struct lock_call, link)->call;
}

const struct lock_rule *lock_call_rule(const struct lock_call *l) {
    return l->plan.rule;
}

void lock_call_command(struct lock_call *l, const char *command, size_t len) {
    lock_command_text(l->command_text, command, len);
    l->command = l->command_text;
}

void lock_call_value(struct lock_call *l, const char *value, size_t len) {
    invariant_debug(!l->value, "a call gets a second value");
    l->value_len = len;
    l->value = keep_text(l->short_value, LOCK_SHORT_VALUE, value, len);
}

/* ---- beginning ---------------------------------------------------------------------------------- */

inline struct lock_call *lock_begin_anew(struct session *s, enum lock_verb verb, const struct lock_rule *rule,
                                         uint32_t db, const char *key, size_t key_len) {
    struct lock_call *l = lock_new(s, key, key_len);
    struct lock_key name = {.db = db, .name = l->key, .len = key_len};
    l->db = session_db(s);
    bool queued = s->queues;
    engine_begin(s->worker->shared->engine, &s->lock, verb, &name, rule, s->lane.login, queued, worker_now(s->worker),
                 &l->plan);
    return l;
}

inline struct lock_call *lock_begin(struct session *s, enum lock_verb verb, const struct lock_rule *rule,
                                    const char *key, size_t key_len) {
    session_note_overlap(s);
    return lock_begin_anew(s, verb, rule, session_db(s), key, key_len);
}

bool lock_same_key(const struct lock_call *a, const struct lock_call *b) {
    return a->plan.key.len == b->plan.key.len && a->plan.key.db == b->plan.key.db &&
           memcmp(a->key, b->key, a->plan.key.len) == 0;
}

void lock_enqueue(struct session *s, struct lock_queue *queue, struct lock_call *l) {
    const struct lock_plan *acquirer = NULL;
    for (struct list_node *it = queue->calls.prev; it != &queue->calls; it = it->prev) {
        const struct lock_call *before = LIST_ENTRY(it, struct lock_call, queued);
        if (lock_same_key(before, l) && !engine_looks_back(&l->plan, &before->plan, before->acquires, &acquirer))
            break;
    }
    if (acquirer)
        engine_follow(s->worker->shared->engine, &l->plan, acquirer, worker_now(s->worker));
    invariant(list_empty(&l->queued) && s->queues, "a call is queued outside of a transaction");
    list_append(&queue->calls, &l->queued);
    queue->quorum |= l->plan.rule && l->plan.rule->quorum == LOCK_QUORUM_YES;
    l->begun = 0; /* the time until EXEC is not the node's */
}

const char *lock_queue_attempt(const struct lock_queue *queue, const struct list_node **at,
                               const struct lock_key *lock) {
    while ((*at = (*at)->next) != &queue->calls) {
        const struct lock_call *l = LIST_ENTRY(*at, struct lock_call, queued);
        const struct lock_key *key = &l->plan.key;
        bool verb =
            l->acquires || l->plan.verb == LOCK_SCRIPT || lock_verb_is(l->plan.verb, VERB_ACQUIRES | VERB_QUEUE);
        if (verb && key->db == lock->db && key->len == lock->len && memcmp(key->name, lock->name, key->len) == 0)
            return l->plan.attempt_token;
    }
    return NULL;
}

void lock_undone(struct lock_call *l) {
    invariant(!list_empty(&l->queued), "a call is undone that was not queued");
    l->plan.undone = true;
}

void lock_queue_sent(struct worker *w, const struct lock_queue *queue) {
    LIST_FOREACH(it, &queue->calls) {
        engine_sent(w->shared->engine, &LIST_ENTRY(it, struct lock_call, queued)->plan);
    }
}
