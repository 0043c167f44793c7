/*
 * Commands that remove or replace whole keys, lock keys among them. One script checks the leases of all these locks. If
 * no lease forbids it, the script runs the command unchanged (line 15 of docs/locks.md).
 */
#include <stdio.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/lock_args.h"
#include "proxy/session/locks/sending.h"

/* Whether an earlier one of the arguments in `found` is the same key. */
static bool named_before(const struct resp_request *r, const char *bytes, const uint32_t *found, size_t i) {
    size_t len, other_len;
    const char *key = request_arg(r, bytes, found[i], &len);
    for (size_t k = 0; k < i; k++) {
        const char *other = request_arg(r, bytes, found[k], &other_len);
        if (other_len == len && memcmp(other, key, len) == 0)
            return true;
    }
    return false;
}

/* Begins the lock call for one of the command's lock keys, the argument `at`. */
static struct lock_call *begin(struct session *s, struct lock_queue *queue, const struct request_class *k,
                               const struct lock_rule *rule, uint32_t at) {
    const struct command *c = k->command;
    const struct resp_request *r = k->request;
    const char *bytes = k->bytes;
    size_t len, name_len;
    const char *key = request_arg(r, bytes, at, &len);
    const char *name = request_arg(r, bytes, 0, &name_len);
    uint32_t db = session_db(s);
    lock_clobbers_database(c, r, bytes, &db);
    struct lock_call *l = lock_begin_in(s, LOCK_CLOBBER, rule, db, key, len);
    lock_call_command(l, name, name_len);
    l->clobbers = true;
    l->acquires = lock_acquires_all(c, r, bytes);
    l->advises = (uint8_t)(lock_row_of(c)->advises | (l->acquires ? ADVISES_ALL : 0));
    if (l->acquires && at + 1 < r->argc) {
        const char *value = request_arg(r, bytes, at + 1, &len);
        lock_call_value(l, value, len);
    }
    if (queue)
        lock_enqueue(s, queue, l);
    return l;
}

/* Builds the call of clobber.lua. `found` has the arguments of the keys of the `locks` calls. */
static void build(struct session *s, struct lock_queue *queue, const struct request_class *k,
                  struct lock_call *const *calls, const uint32_t *found, size_t locks) {
    struct worker *w = s->worker;
    const struct resp_request *r = k->request;
    const char *bytes = k->bytes;
    size_t other_count = k->key_count <= LOCK_CLOBBERED_MAX ? k->key_count : 0;
    char count[24];
    snprintf(count, sizeof(count), "%zu", locks);
    lock_build_script(w, SCRIPT_CLOBBER, queue, 2 * locks + other_count, LOCK_HEADER_ARGS + 4 * locks + 2 + r->argc);
    for (size_t i = 0; i < locks; i++) {
        build_bulk(w, bytes + r->argv[found[i]].off, r->argv[found[i]].len);
        lock_build_guard(w, bytes + r->argv[found[i]].off, r->argv[found[i]].len);
    }
    for (size_t i = 0; i < other_count; i++)
        build_bulk(w, bytes + r->argv[k->keys[i]].off, r->argv[k->keys[i]].len);
    lock_build_header(w, s->lock.client, &calls[0]->plan, count, 0, SHAPE_INT);
    for (size_t i = 0; i < locks; i++)
        build_text(w, calls[i]->plan.claim_token);
    for (size_t i = 0; i < locks; i++)
        build_text(w, lock_right_text(calls[i]->plan.right));
    for (size_t i = 0; i < locks; i++)
        build_text(w, calls[i]->plan.attempt_token);
    for (size_t i = 0; i < locks; i++)
        lock_build_seen(w, &calls[i]->plan);
    bool elsewhere = calls[0]->plan.key.db != calls[0]->db;
    snprintf(count, sizeof(count), "%u", (unsigned)calls[0]->plan.key.db);
    build_text(w, elsewhere ? count : "");
    snprintf(count, sizeof(count), "%u", (unsigned)calls[0]->db);
    build_text(w, count);
    for (size_t i = 0; i < r->argc; i++)
        build_bulk(w, bytes + r->argv[i].off, r->argv[i].len);
}

struct lock_call *lock_prepare_clobber(struct session *s, struct lock_queue *queue, const struct request_class *k) {
    uint32_t found[LOCK_CLOBBERED_MAX];
    size_t n = lock_clobbered_keys(k->command, k->request, k->bytes, found, LOCK_CLOBBERED_MAX), locks = 0;
    if (n > LOCK_CLOBBERED_MAX)
        return NULL;
    struct lock_call *calls[LOCK_CLOBBERED_MAX] = {NULL};
    for (size_t i = 0; i < n; i++) {
        const struct lock_rule *rule = lock_clobbered_rule(k, found[i], i);
        if (!rule || named_before(k->request, k->bytes, found, i))
            continue;
        calls[locks] = begin(s, queue, k, rule, found[i]);
        if (locks > 0)
            list_append(&calls[0]->link, &calls[locks]->link);
        found[locks++] = found[i];
    }
    build(s, queue, k, calls, found, locks);
    return calls[0];
}

void lock_call_clobber(struct call *call, struct session *s, const struct request_class *k) {
    struct lock_call *l = lock_prepare_clobber(s, NULL, k);
    if (!l) {
        struct call_end end = {.error = LOCK_TOO_MANY_KEYS, .why = UPSTREAM_NOT_SENT};
        lock_deliver(call, call->done, &end);
        return;
    }
    lock_submit(call, l, SCRIPT_CLOBBER);
}

/* Not inlined. Otherwise the compiler would not inline lock_submit where acquire and release call it, which costs 1 %
 * of their bound. */
__attribute__((noinline)) void lock_dispatch_clobber(struct session *s, const struct request_class *k) {
    counter_add(&s->worker->counters.requests_locks, 1);
    struct request *request = request_new(s, k->command);
    lock_busy_all(request);
    request_barrier(request);
    lock_call_clobber(&request->call, s, k);
}
