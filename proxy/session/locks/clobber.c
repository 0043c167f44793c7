/*
 * Commands that remove or replace whole keys, lock keys among them. One script checks the leases of all these locks. If
 * no lease forbids it, the script runs the command unchanged (line 15 of docs/locks.md).
 */
#include <stdio.h>
#include <string.h>

#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/sending.h"

/* Whether an earlier one of the arguments in `found` is the same key. */
static bool named_before(const struct lock_words *words, const uint32_t *found, size_t i) {
    size_t len, other_len;
    const char *key = lock_word(words, found[i], &len);
    for (size_t k = 0; k < i; k++) {
        const char *other = lock_word(words, found[k], &other_len);
        if (other_len == len && memcmp(other, key, len) == 0)
            return true;
    }
    return false;
}

/* Begins the lock call for one of a command's lock keys, the argument `at`. Keeps the command's name, and the value
 * that it would leave. */
static struct lock_call *begin(struct session *s, enum lock_verb verb, const struct lock_rule *rule, uint32_t db,
                               const struct lock_words *words, size_t at) {
    size_t len, name_len;
    const char *key = lock_word(words, at, &len), *name = lock_word(words, 0, &name_len);
    struct lock_call *l = lock_begin_anew(s, verb, rule, db, key, len);
    lock_call_command(l, name, name_len);
    l->clobbers = true;
    l->acquires = verb == LOCK_ACQUIRE;
    l->expiry_ms = LOCK_EXPIRY_OTHER;
    if (l->acquires && at + 1 < words->count) {
        const char *value = lock_word(words, at + 1, &len);
        lock_call_value(l, value, len);
    }
    return l;
}

/* Puts a call at the end of the ring that begins with `first` (NULL: the ring is empty). Returns the ring's first. */
static struct lock_call *behind(struct lock_call *first, struct lock_call *l) {
    if (first)
        list_append(&first->link, &l->link);
    return first ? first : l;
}

/* Builds the call of clobber.lua for the ring of calls that begins with `first`. `keys` has the arguments of the
 * command's keys. */
static void build(struct session *s, struct lock_queue *queue, struct lock_call *first, const struct lock_words *words,
                  const uint32_t *keys, size_t key_count) {
    struct worker *w = s->worker;
    struct lock_call *calls[LOCK_CLOBBERED_MAX] = {first};
    size_t locks = 1;
    for (struct lock_call *l = lock_call_next(first); l != first; l = lock_call_next(l))
        calls[locks++] = l;
    char count[24];
    snprintf(count, sizeof(count), "%zu", locks);
    lock_build_script(w, SCRIPT_CLOBBER, queue, 2 * locks + key_count, LOCK_HEADER_ARGS + 4 * locks + 2 + words->count);
    for (size_t i = 0; i < locks; i++)
        lock_build_key(w, calls[i]->key, calls[i]->plan.key.len);
    for (size_t i = 0; i < key_count; i++)
        build_bulk(w, words->bytes + words->args[keys[i]].off, words->args[keys[i]].len);
    lock_build_header(w, s->lock.client, &first->plan, count, 0, SHAPE_INT);
    for (size_t i = 0; i < locks; i++)
        build_text(w, calls[i]->plan.claim_token);
    for (size_t i = 0; i < locks; i++)
        build_text(w, lock_right_text(calls[i]->plan.right));
    for (size_t i = 0; i < locks; i++)
        build_text(w, calls[i]->plan.attempt_token);
    for (size_t i = 0; i < locks; i++)
        lock_build_seen(w, &calls[i]->plan);
    bool elsewhere = first->plan.key.db != first->db;
    snprintf(count, sizeof(count), "%u", (unsigned)first->plan.key.db);
    build_text(w, elsewhere ? count : "");
    snprintf(count, sizeof(count), "%u", (unsigned)first->db);
    build_text(w, count);
    for (size_t i = 0; i < words->count; i++)
        build_bulk(w, words->bytes + words->args[i].off, words->args[i].len);
}

struct lock_call *lock_prepare_clobber(struct session *s, struct lock_queue *queue, const struct request_class *k) {
    uint32_t found[LOCK_CLOBBERED_MAX];
    size_t n = lock_clobbered_keys(k->command, k->request, k->bytes, found, LOCK_CLOBBERED_MAX);
    if (n > LOCK_CLOBBERED_MAX)
        return NULL;
    const struct lock_words words = {k->bytes, k->request->argv, k->request->argc};
    struct lock_call *first = NULL;
    uint32_t db = session_db(s);
    lock_clobbers_database(k->command, k->request, k->bytes, &db);
    bool acquires = lock_acquires_all(k->command, k->request, k->bytes);
    for (size_t i = 0; i < n; i++) {
        const struct lock_rule *rule = lock_clobbered_rule(k, found[i], i);
        if (!rule || named_before(&words, found, i))
            continue;
        session_note_overlap(s);
        struct lock_call *l = begin(s, acquires ? LOCK_ACQUIRE : LOCK_CLOBBER, rule, db, &words, found[i]);
        l->advises = (uint8_t)(lock_row_of(k->command)->advises | (acquires ? ADVISES_ALL : 0));
        if (queue)
            lock_enqueue(s, queue, l);
        first = behind(first, l);
    }
    build(s, queue, first, &words, k->keys, k->key_count <= LOCK_CLOBBERED_MAX ? k->key_count : 0);
    return first;
}

/* ---- MSETNX under a rule with `wait` ------------------------------------------------------------ */

struct lock_call *lock_begin_pairs(struct session *s, const struct lock_rule *rule, uint32_t db,
                                   const struct lock_words *words) {
    uint32_t found[LOCK_CLOBBERED_MAX];
    struct lock_call *first = NULL;
    size_t n = 0;
    for (uint32_t at = 1; at + 1 < words->count; at += 2) {
        found[n] = at;
        if (named_before(words, found, n++))
            continue;
        struct lock_call *l = begin(s, LOCK_ACQUIRE, rule, db, words, at);
        l->advises = (uint8_t)(lock_row_of(command_by_id(COMMAND_MSETNX))->advises | ADVISES_ALL);
        first = behind(first, l);
    }
    return first;
}

void lock_build_pairs(struct session *s, struct lock_call *first, const struct lock_words *words) {
    build(s, NULL, first, words, NULL, 0);
}

/* ---- sending ------------------------------------------------------------------------------------ */

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
    if (k->command->id != COMMAND_MSETNX || !lock_clobbers_one_rule(k) || class_enforced(k, 0)->wait_ms == 0) {
        lock_call_clobber(&request->call, s, k);
        return;
    }
    const struct lock_words words = {k->bytes, k->request->argv, k->request->argc};
    session_note_overlap(s);
    struct lock_call *l = lock_begin_pairs(s, class_enforced(k, 0), session_db(s), &words);
    l->again = true;
    s->worker->waits->keep(request, l, &words);
    lock_build_pairs(s, l, &words);
    lock_submit(&request->call, l, SCRIPT_CLOBBER);
}
