/*
 * Builds the call of a lock script: EVALSHA sha KEYS... ARGV..., in the order of arguments.lua. This file knows no
 * commands and no outcomes. Most calls are of the scripts for the usual states, which take fewer arguments, and are
 * written in one go into room that was reserved before.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/bytes.h"
#include "proxy/base/memory.h"
#include "proxy/lock/script_constants.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/private.h"

enum {
    SHAPE_TEXT_MAX = 48,
    ROOM = 384 + LOCK_GUARD_EXTRA /* for headers, numbers and short arguments of a call, besides what is counted */
};

/* ---- scripts that take arguments.lua ------------------------------------------------------------ */

void lock_build_script(struct worker *w, enum script_id id, struct lock_queue *queue, size_t keys, size_t args) {
    const struct script *script = script_get(id);
    build_start(w, 3 + keys + args);
    if (queue && !(queue->sources & 1u << id)) {
        queue->sources |= 1u << id;
        build_bulk(w, "EVAL", 4);
        build_bulk(w, script->source, script->len);
    } else {
        build_bulk(w, "EVALSHA", 7);
        build_bulk(w, script->sha1, 40);
    }
    build_number(w, (int64_t)keys);
}

void lock_build_guard(struct worker *w, const char *key, size_t len) {
    char small[256];
    char *guard = len + LOCK_GUARD_EXTRA <= sizeof(small) ? small : memory_alloc(len + LOCK_GUARD_EXTRA);
    build_bulk(w, guard, lock_guard_key(key, len, guard));
    if (guard != small)
        memory_free(guard);
}

void lock_build_key(struct worker *w, const char *key, size_t len) {
    build_bulk(w, key, len);
    lock_build_guard(w, key, len);
}

void lock_build_call(struct worker *w, enum script_id id, struct lock_queue *queue, const struct lock_key *key,
                     size_t args) {
    lock_build_script(w, id, queue, 2, args);
    lock_build_key(w, key->name, key->len);
}

void lock_build_seen(struct worker *w, const struct lock_plan *plan) {
    char seen[LOCK_SEEN_MAX + 2], *p = seen;
    if (plan->data_free)
        *p++ = '*';
    if (plan->seen_known) {
        *p++ = '=';
        memcpy(p, lock_plan_seen(plan), plan->seen_len);
        p += plan->seen_len;
    }
    build_bulk(w, seen, (size_t)(p - seen));
}

enum { TOLD_MAX = 72 }; /* two numbers of 20 digits; compilers see that bytes_copy may copy more than 64 bytes */

/* Writes what a release tells sessions that wait at other proxies (tell.lua): the database, and for how long a session
 * here has waited. Returns the length. */
static size_t told_write(struct worker *w, const struct lock_plan *plan, char out[TOLD_MAX]) {
    int64_t left_ms = w->waits->waited.here_ms;
    char *end = out + TOLD_MAX, *p = end;
    if (left_ms >= 0) {
        p = resp_digits_write(p, (uint64_t)left_ms);
        *--p = ':';
    }
    p = resp_digits_write(p, plan->key.db);
    *--p = upstream_is_cluster(w->upstream) ? '+' : '=';
    memmove(out, p, (size_t)(end - p));
    return (size_t)(end - p);
}

/* Returns ARGV 1, which the guard record notes of a release. Under `quorum yes` a release by the claim notes the
 * claim's token and LOCK_RELEASED_MARK: witnesses may then forget that lease (confirm.c). A lease is released once, so
 * no other release has the same attempt. `out` has LOCK_TOKEN_MAX bytes. */
static const char *release_attempt(const struct lock_plan *plan, char *out) {
    bool quorum = plan->rule && plan->rule->quorum == LOCK_QUORUM_YES;
    if (plan->verb != LOCK_RELEASE || !quorum || plan->right != RIGHT_CLAIM || plan->claim_len == 0)
        return plan->attempt_token;
    int len = snprintf(out, LOCK_TOKEN_MAX, "%s" LOCK_RELEASED_MARK, plan->claim_token);
    invariant(len < LOCK_TOKEN_MAX, "S8: a token is too long for its release");
    return out;
}

void lock_build_header(struct worker *w, const struct lock_client *client, const struct lock_plan *plan,
                       const char *claim, uint32_t at, enum lock_shape shape) {
    static const char *const shapes[] = {
        [SHAPE_NIL] = "nil",           [SHAPE_OK] = "ok", [SHAPE_INT] = "int", [SHAPE_ARRAY] = "array",
        [SHAPE_TOGETHER] = "together",
    };
    size_t len = 0;
    const char *identity = client ? lock_client_name(client, &len) : "";
    bool asks = lock_verb_is(plan->verb, VERB_ACQUIRES | VERB_SAYS) || plan->verb == LOCK_INSPECT;
    int64_t delay_ms = asks && plan->rule ? plan->rule->lock_delay_ms : 0;
    bool releases = plan->verb == LOCK_RELEASE || plan->verb == LOCK_OPERATOR;
    bool tells = releases && plan->rule && plan->rule->wait_ms > 0;
    char told[TOLD_MAX], token[LOCK_TOKEN_MAX], text[SHAPE_TEXT_MAX];
    snprintf(text, sizeof(text), delay_ms ? "%s:%lld" : "%s", shapes[shape], (long long)delay_ms);
    build_text(w, release_attempt(plan, token));
    build_text(w, claim ? claim : plan->claim_token);
    build_bulk(w, identity, len);
    build_text(w, w->shared->process_id);
    build_text(w, lock_right_text(plan->right));
    build_number(w, lock_plan_lease_ms(plan));
    build_number(w, (int64_t)plan->read_fence);
    lock_build_seen(w, plan);
    if (tells)
        build_bulk(w, told, told_write(w, plan, told));
    else
        build_number(w, at);
    build_text(w, text);
}

/* ---- acquire and release ------------------------------------------------------------------------ */

static inline char *put(char *p, const char *data, size_t len) {
    memcpy(p, data, len);
    return p + len;
}

#define TEN(tens)                                                                                                      \
    {"$" tens "0\r\n"}, {"$" tens "1\r\n"}, {"$" tens "2\r\n"}, {"$" tens "3\r\n"}, {"$" tens "4\r\n"},                \
        {"$" tens "5\r\n"}, {"$" tens "6\r\n"}, {"$" tens "7\r\n"}, {"$" tens "8\r\n"}, {                              \
        "$" tens "9\r\n"                                                                                               \
    }
/* The headers of short bulk strings as text, which saves 7 % of the bound on acquire and release. */
static const char lengths[100][8] = {TEN(""),  TEN("1"), TEN("2"), TEN("3"), TEN("4"),
                                     TEN("5"), TEN("6"), TEN("7"), TEN("8"), TEN("9")};

static inline char *put_length(char *p, size_t len) {
    if (len >= 100)
        return p + resp_header_write(p, '$', (int64_t)len);
    memcpy(p, lengths[len], sizeof(lengths[0])); /* the next write overwrites the surplus bytes */
    return p + (len < 10 ? 4 : 5);
}

static inline char *put_word(char *p, const char *data, size_t len) {
    return put(bytes_copy(put_length(p, len), data, len), "\r\n", 2);
}

/* Puts a token. `text` has LOCK_TOKEN_MAX bytes; the next write overwrites the surplus bytes. */
static inline char *put_token(char *p, const char *text, size_t len) {
    p = put_length(p, len);
    memcpy(p, text, LOCK_TOKEN_MAX);
    return put(p + len, "\r\n", 2);
}

static inline char *put_number(char *p, int64_t n) {
    char digits[RESP_HEADER_MAX], *digits_end = digits + sizeof(digits);
    char *from = resp_digits_write(digits_end, n < 0 ? 0 - (uint64_t)n : (uint64_t)n);
    if (n < 0)
        *--from = '-';
    return put_word(p, from, (size_t)(digits_end - from));
}

static inline char *put_guard(char *p, uint16_t slot, const char *key, size_t len) {
    p = put_length(p, lock_guard_len(len, slot));
    p += lock_guard_head_write(slot, p);
    return put(bytes_copy(p, key, len), "\r\n", 2);
}

/* Puts the beginning of a call, with the key and its guard record. Reserves `room` bytes besides. */
static inline char *start(struct worker *w, enum script_id id, const struct lock_key *key, uint16_t slot, size_t args,
                          size_t room) {
    w->build.len = 0;
    char *p = text_reserve(&w->build, ROOM + 2 * key->len + room), *behind = put_length(p, 5 + args);
    *p = '*';
    p = put(behind, script_get(id)->call, SCRIPT_CALL_LEN);
    p = put_word(p, key->name, key->len);
    return put_guard(p, slot, key->name, key->len);
}

static void end(struct worker *w, const char *p) {
    text_commit(&w->build, (size_t)(p - w->build.data));
}

static __attribute__((noinline)) void expiry_write(struct lock_expiry *e, int64_t ms) {
    char *p = put_number(put_number(e->words, ms), ms + GUARD_OUTLIVES_MS);
    e->ms = ms;
    e->len = (size_t)(p - e->words);
}

/* Puts the expiry of a lock (0: none) and of its guard record. Both are usually the last ones, kept in encoded form:
 * this saves 3 % of the bound on acquire and release. */
static inline char *put_expiry(struct worker *w, char *p, int64_t ms) {
    struct lock_expiry *e = &w->locks->expiry;
    if (ms == 0)
        return put(p, "$0\r\n\r\n$0\r\n\r\n", 12);
    if (e->ms != ms)
        expiry_write(e, ms);
    memcpy(p, e->words, sizeof(e->words));
    return p + e->len;
}

enum script_id lock_build_attempt(struct worker *w, const struct lock_client *client, const struct lock_call *l) {
    const struct lock_plan *plan = &l->plan;
    const struct lock_waited *waited = &w->waits->waited;
    if (plan->rule->lock_delay_ms > 0 || plan->right == RIGHT_RELEASE_THEN_ACQUIRE) {
        lock_build_again(w, client, l, NULL);
        return SCRIPT_ACQUIRE;
    }
    bool waits = plan->rule->wait_ms > 0, given = l->expiry_ms == 0;
    size_t identity_len;
    const char *identity = lock_client_name(client, &identity_len);
    size_t room = LOCK_TOKEN_MAX + identity_len + l->value_len;
    char *p = start(w, SCRIPT_ACQUIRE_USUAL, &plan->key, plan->slot, waits ? 8 : given ? 6 : 5, room);
    p = put_token(p, plan->attempt_token, plan->attempt_len);
    p = put_word(p, identity, identity_len);
    p = put_word(p, l->value, l->value_len);
    p = put_expiry(w, p, given ? plan->rule->lease_ms : l->expiry_ms);
    if (given && plan->rule->lease_ms > 0)
        p = put(p, "$1\r\ng\r\n", 7);
    else if (given || waits)
        p = put(p, "$0\r\n\r\n", 6);
    if (waits) {
        p = put_number(p, waited->here_ms > 0 ? waited->here_ms : 0);
        p = waited->next_ms < 0 ? put(p, "$0\r\n\r\n", 6) : put_number(p, waited->next_ms);
    }
    end(w, p);
    return SCRIPT_ACQUIRE_USUAL;
}

void lock_build_again(struct worker *w, const struct lock_client *client, const struct lock_call *l,
                      const char *claim) {
    const struct lock_plan *plan = &l->plan;
    bool setnx = l->shape == SHAPE_INT, expires = l->expiry_ms > 0;
    lock_build_call(w, SCRIPT_ACQUIRE, NULL, &plan->key, LOCK_HEADER_ARGS + (setnx ? 3 : expires ? 6 : 4));
    lock_build_header(w, client, plan, claim, 3, l->shape);
    build_text(w, setnx ? "SETNX" : "SET");
    build_bulk(w, l->key, plan->key.len);
    build_bulk(w, l->value, l->value_len);
    if (!setnx)
        build_text(w, "NX");
    if (expires) {
        build_text(w, "PX");
        build_number(w, l->expiry_ms);
    }
}

bool lock_build_usual_release(struct worker *w, const struct lock_call *l) {
    const struct lock_plan *plan = &l->plan;
    bool waits = plan->rule->wait_ms > 0, del = memcmp(l->command, "DEL", sizeof("DEL")) == 0;
    bool named = !del || !plan->claim_fence;
    if (plan->claim_len == 0 || l->shape != SHAPE_INT || plan->right == RIGHT_OLDER || plan->right == RIGHT_SPENT)
        return false;
    char told[TOLD_MAX], token[LOCK_TOKEN_MAX];
    char *p = start(w, SCRIPT_RELEASE_USUAL, &plan->key, plan->slot, waits ? 4 : named ? 3 : 2, 2 * LOCK_TOKEN_MAX);
    if (__builtin_expect(plan->rule->unusual, false)) {
        const char *attempt = release_attempt(plan, token);
        p = put_word(p, attempt, strlen(attempt));
    } else {
        p = put_token(p, plan->attempt_token, plan->attempt_len);
    }
    p = put_token(p, plan->claim_token, plan->claim_len);
    if (named)
        p = put_word(p, l->command, strlen(l->command));
    else if (waits)
        p = put(p, "$0\r\n\r\n", 6);
    if (waits)
        p = put_word(p, told, told_write(w, plan, told));
    end(w, p);
    return true;
}

void lock_build_release(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                        const struct lock_plan *plan, enum lock_shape shape, const char *command) {
    lock_build_call(w, SCRIPT_RELEASE, queue, &plan->key, LOCK_HEADER_ARGS + 2);
    lock_build_header(w, client, plan, NULL, 0, shape);
    build_text(w, command);
    build_bulk(w, plan->key.name, plan->key.len);
}

#define PUT(p, text) put(p, text, sizeof(text) - 1)

void lock_build_short(struct worker *w, const struct lock_client *client, const struct lock_call *l) {
    const struct lock_plan *plan = &l->plan;
    size_t identity_len, tag_len = slot_tag_len(plan->slot);
    const char *identity = lock_client_name(client, &identity_len);
    int64_t ms = lock_expiry_asked(l);
    char digits[RESP_HEADER_MAX], *digits_end = digits + sizeof(digits);
    const char *fence = resp_digits_write(digits_end, l->fence), *leased = l->expiry_ms ? "\n\n" : "\ng\n";
    size_t fence_len = (size_t)(digits_end - fence), leased_len = strlen(leased);
    w->build.len = 0;
    char *p = text_reserve(&w->build, ROOM + 2 * (LOCK_GUARD_EXTRA + plan->key.len + l->value_len) + LOCK_TOKEN_MAX +
                                          identity_len);
    p = PUT(p, "*1\r\n$5\r\nMULTI\r\n*4\r\n$9\r\nPEXPIREAT\r\n");
    p = put_length(p, lock_guard_len(tag_len + 2, plan->slot)); /* the watermark */
    p = PUT(p + lock_guard_head_write(plan->slot, p), "{");
    p = PUT(bytes_copy(p, slot_tag(plan->slot), tag_len), "}\r\n");
    p = PUT(put_number(p, (int64_t)l->fence), "$2\r\nGT\r\n*7\r\n$3\r\nSET\r\n");
    p = put_guard(p, plan->slot, plan->key.name, plan->key.len);
    /* the guard record in the short form (text.lua) */
    p = put_length(p, sizeof("1\n\n\n") - 1 + plan->attempt_len + l->value_len + fence_len + leased_len + identity_len);
    p = PUT(p, "1\n");
    p = PUT(bytes_copy(p, plan->attempt_token, plan->attempt_len), "\n");
    p = PUT(bytes_copy(p, l->value, l->value_len), "\n");
    p = put(put(p, fence, fence_len), leased, leased_len);
    p = PUT(bytes_copy(p, identity, identity_len), "\r\n$2\r\nNX\r\n$3\r\nGET\r\n$2\r\nPX\r\n");
    p = PUT(put_number(p, ms), "*6\r\n$3\r\nSET\r\n");
    p = put_word(put_word(p, plan->key.name, plan->key.len), l->value, l->value_len);
    p = put_number(PUT(p, "$2\r\nNX\r\n$2\r\nPX\r\n"), ms);
    end(w, PUT(p, "*1\r\n$4\r\nEXEC\r\n"));
}

void lock_build_free(struct worker *w, const struct lock_call *l) {
    const struct lock_plan *plan = &l->plan;
    size_t count = 1;
    if (list_empty(&l->joined)) {
        char *p = start(w, SCRIPT_FREE, &plan->key, plan->slot, 1, LOCK_TOKEN_MAX);
        end(w, put_token(p, plan->claim_token, plan->claim_len));
        return;
    }
    LIST_EACH(other, &l->joined, const struct lock_call, link)
        count++;
    lock_build_script(w, SCRIPT_FREE_ALL, NULL, 2 * count, count);
    lock_build_key(w, l->key, plan->key.len);
    LIST_EACH(other, &l->joined, const struct lock_call, link)
        lock_build_key(w, other->key, other->plan.key.len);
    build_bulk(w, plan->claim_token, plan->claim_len);
    LIST_EACH(other, &l->joined, const struct lock_call, link)
        build_bulk(w, other->plan.claim_token, other->plan.claim_len);
}

/* ---- all other scripts ---- */

void lock_note_field(struct session *s, struct lock_call *l, const struct lock_command *lc,
                     const struct lock_words *words) {
    struct lock_field field = {.name = l->value, .len = l->value_len};
    if (lc->content_at)
        field.content = lock_word(words, lc->content_at, &field.content_len);
    engine_writes_field(s->worker->shared->engine, &l->plan, &field);
}

__attribute__((noinline)) void lock_build_other(struct session *s, struct lock_queue *queue, struct lock_call *l,
                                                const struct lock_command *lc, const struct lock_words *words) {
    struct worker *w = s->worker;
    bool field = lock_command_of_field(lc) || lc->script == SCRIPT_COUNT; /* if the command has a value */
    if (field && l->value)
        lock_note_field(s, l, lc, words);
    if (lock_verb_is(l->plan.verb, VERB_SAYS) && l->value) {
        size_t len = l->value_len;
        const char *says = lc->named_at ? lock_word(words, lc->named_at, &len) : l->value;
        engine_says(w->shared->engine, &l->plan, says, len, field, worker_now(w));
    }
    lock_build_call(w, lc->script, queue, &l->plan.key, LOCK_HEADER_ARGS + words->count);
    lock_build_header(w, s->lock.client, &l->plan, NULL, lc->value_at ? lc->value_at + 1 : 0, lc->shape);
    for (size_t i = 0; i < words->count; i++) {
        size_t len;
        const char *word = lock_word(words, i, &len);
        build_bulk(w, word, len);
    }
}
