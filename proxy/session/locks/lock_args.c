/*
 * Builds the call of a lock script: EVALSHA sha KEYS... ARGV..., in the order of arguments.lua, acquire.lua and
 * release.lua. This file knows no commands and no outcomes.
 *
 * Most calls are of acquire.lua and release.lua. These calls are written in one go, into room that was reserved before.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/bytes.h"
#include "proxy/base/memory.h"
#include "proxy/lock/script_constants.h"
#include "proxy/session/locks/lock_args.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/private.h"

enum {
    SHAPE_TEXT_MAX = 48,
    ROOM = 384 + LOCK_GUARD_EXTRA /* for headers, numbers and short arguments of a call, besides what is counted */
};

const char *lock_shape_text(enum lock_shape shape) {
    static const char *const texts[] = {
        [SHAPE_NIL] = "nil",           [SHAPE_OK] = "ok", [SHAPE_INT] = "int", [SHAPE_ARRAY] = "array",
        [SHAPE_TOGETHER] = "together",
    };
    return texts[shape];
}

/* ---- scripts that take arguments.lua ------------------------------------------------------------ */

/* Whether the script has to be sent by its source: it is its first call in the transaction. */
static bool by_source(struct lock_queue *queue, enum script_id id) {
    bool source = queue && !(queue->sources & 1u << id);
    if (source)
        queue->sources |= 1u << id;
    return source;
}

void lock_build_script(struct worker *w, enum script_id id, struct lock_queue *queue, size_t keys, size_t args) {
    const struct script *script = script_get(id);
    build_start(w, 3 + keys + args);
    if (by_source(queue, id)) {
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

static size_t seen_len(const struct lock_plan *plan) {
    return plan->data_free + (plan->seen_known ? plan->seen_len + 1 : 0);
}

/* Writes ARGV 8, at most LOCK_SEEN_MAX + 2 bytes. Returns its length. */
static size_t seen_write(const struct lock_plan *plan, char *out) {
    char *p = out;
    if (plan->data_free)
        *p++ = '*';
    if (plan->seen_known) {
        *p++ = '=';
        memcpy(p, lock_plan_seen(plan), plan->seen_len);
        p += plan->seen_len;
    }
    return (size_t)(p - out);
}

void lock_build_seen(struct worker *w, const struct lock_plan *plan) {
    char seen[LOCK_SEEN_MAX + 2];
    build_bulk(w, seen, seen_write(plan, seen));
}

/* Writes a shape as a script gets it, with the rule's lock-delay behind it where the rule has one. Returns the length.
 */
static size_t shape_write(const struct lock_plan *plan, enum lock_shape shape, char *out, size_t size) {
    bool asks = lock_verb_is(plan->verb, VERB_ACQUIRES | VERB_SAYS) || plan->verb == LOCK_INSPECT;
    int64_t delay_ms = asks && plan->rule ? plan->rule->lock_delay_ms : 0;
    if (delay_ms == 0)
        return (size_t)snprintf(out, size, "%s", lock_shape_text(shape));
    return (size_t)snprintf(out, size, "%s:%lld", lock_shape_text(shape), (long long)delay_ms);
}

static void build_shape(struct worker *w, const struct lock_plan *plan, enum lock_shape shape) {
    char text[SHAPE_TEXT_MAX];
    build_bulk(w, text, shape_write(plan, shape, text, sizeof(text)));
}

void lock_build_header(struct worker *w, const struct lock_client *client, const struct lock_plan *plan,
                       const char *claim, uint32_t at, enum lock_shape shape) {
    size_t len = 0;
    const char *identity = client ? lock_client_name(client, &len) : "";
    build_text(w, plan->attempt_token);
    build_text(w, claim ? claim : plan->claim_token);
    build_bulk(w, identity, len);
    build_text(w, w->shared->process_id);
    build_text(w, lock_right_text(plan->right));
    build_number(w, lock_plan_lease_ms(plan));
    build_number(w, (int64_t)plan->read_fence);
    lock_build_seen(w, plan);
    build_number(w, at);
    build_shape(w, plan, shape);
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

/* Puts the number of a database of a cluster, as release.lua has it: with a plus before it. */
static char *put_sharded(char *p, uint32_t db) {
    char digits[RESP_HEADER_MAX], *digits_end = digits + sizeof(digits);
    char *from = resp_digits_write(digits_end, db);
    *--from = '+';
    return put_word(p, from, (size_t)(digits_end - from));
}

/* Puts a number that is usually the same as the last time. */
static inline char *put_again(struct lock_number *again, char *p, int64_t n) {
    if (again->n != n || again->len == 0) {
        again->n = n;
        again->len = (size_t)(put_number(again->word, n) - again->word);
    }
    memcpy(p, again->word, sizeof(again->word)); /* the next write overwrites the surplus bytes */
    return p + again->len;
}

/* Puts the key of the guard record of a lock in this slot. */
static inline char *put_guard(char *p, uint16_t slot, const char *key, size_t len) {
    p = put_length(p, lock_guard_len(len, slot));
    p += lock_guard_head_write(slot, p);
    return put(bytes_copy(p, key, len), "\r\n", 2);
}

/* Puts the beginning of a call, with the key and its guard record. Reserves `room` bytes besides. */
static inline char *start(struct worker *w, enum script_id id, struct lock_queue *queue, const struct lock_key *key,
                          uint16_t slot, size_t args, size_t room) {
    const struct script *script = script_get(id);
    bool source = by_source(queue, id);
    w->build.len = 0;
    char *p = text_reserve(&w->build, ROOM + (source ? script->len : 0) + 2 * key->len + room);
    if (5 + args < 100) {
        char *behind = put_length(p, 5 + args);
        *p = '*';
        p = behind;
    } else {
        p += resp_header_write(p, '*', (int64_t)(5 + args));
    }
    if (source) {
        p = resp_bulk_write(p, "EVAL", 4);
        p = resp_bulk_write(p, script->source, script->len);
        p = resp_bulk_write(p, "2", 1);
    } else {
        p = put(p, script->call, SCRIPT_CALL_LEN);
    }
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

/* Puts the expiry of a lock (0: none) and of its guard record. Both are usually the same as the last time, and are kept
 * in encoded form. This saves 3 % of the bound on acquire and release. */
static inline char *put_expiry(struct worker *w, char *p, int64_t ms) {
    struct lock_expiry *e = &w->locks->expiry;
    if (ms == 0)
        return put(p, "$0\r\n\r\n$0\r\n\r\n", 12);
    if (e->ms != ms)
        expiry_write(e, ms);
    memcpy(p, e->words, sizeof(e->words));
    return p + e->len;
}

/* Puts for how long a session has waited, in ms. -1: no session waits, and the argument is empty. */
static char *put_waited(char *p, int64_t ms) {
    return ms < 0 ? put(p, "$0\r\n\r\n", 6) : put_number(p, ms);
}

/* Builds an attempt that may wait. It tells other proxies how long its session has waited. A function of its own, as
 * build_telling is for releases: other attempts pay only one comparison for it. */
static __attribute__((noinline)) void build_waiting(struct worker *w, const struct lock_client *client,
                                                    const struct lock_plan *plan, uint16_t slot,
                                                    const struct lock_command *lc, const struct lock_words *words) {
    const struct lock_waited *waited = &w->waits->waited;
    int64_t ms = lc->expiry_ms ? lc->expiry_ms : plan->rule->lease_ms;
    size_t identity_len, value_len;
    const char *identity = lock_client_name(client, &identity_len);
    const char *value = lock_word(words, lc->value_at, &value_len);
    size_t room = 2 * LOCK_TOKEN_MAX + identity_len + value_len;
    char *p = start(w, SCRIPT_ACQUIRE, NULL, &plan->key, slot, lc->expiry_ms ? 7 : 8, room);
    p = put_token(p, plan->attempt_token, plan->attempt_len);
    p = put_word(p, identity, identity_len);
    p = put_word(p, value, value_len);
    p = put_expiry(w, p, ms);
    if (!lc->expiry_ms)
        p = lc->shape == SHAPE_INT ? put(p, "$5\r\nSETNX\r\n", 11) : put(p, "$3\r\nSET\r\n", 9);
    p = put_number(p, waited->here_ms > 0 ? waited->here_ms : 0);
    end(w, put_waited(p, waited->next_ms));
}

/* Whether a release's command is DEL, which release.lua runs if no command is named. One comparison, with the NUL. */
static inline bool is_del(const char *command) {
    return memcmp(command, "DEL", sizeof("DEL")) == 0;
}

/* Puts the arguments of a release that needs more than its claim to be judged. */
static inline char *put_about(struct worker *w, char *p, const struct lock_plan *plan, const char *identity,
                              size_t identity_len) {
    const char *right = lock_right_text(plan->right);
    p = plan->right == RIGHT_CLAIM ? put(p, "$5\r\nclaim\r\n", 11) : put_word(p, right, strlen(right));
    p = put_word(p, identity, identity_len);
    p = put_again(&w->locks->lease, p, lock_plan_lease_ms(plan));
    p = put_length(p, seen_len(plan));
    return put(p + seen_write(plan, p), "\r\n", 2);
}

/* Builds a release that informs sessions that wait at other proxies, or whose command compares: `words` is the command
 * then, else NULL. */
static __attribute__((noinline)) void build_telling(struct worker *w, struct lock_queue *queue,
                                                    const struct lock_client *client, const struct lock_plan *plan,
                                                    uint16_t slot, const char *command,
                                                    const struct lock_words *words) {
    size_t identity_len = 0;
    const char *identity = client ? lock_client_name(client, &identity_len) : "";
    size_t room = 2 * LOCK_TOKEN_MAX + identity_len + plan->seen_len;
    int64_t left_ms = plan->rule->wait_ms > 0 ? w->waits->waited.here_ms : -1;
    size_t count = words ? words->count : 0, args = words ? 9 + count : left_ms < 0 ? 8 : 9;
    for (size_t i = 0; i < count; i++)
        room += resp_bulk_size(words->args[i].len);
    char *p = start(w, SCRIPT_RELEASE, queue, &plan->key, slot, args, room);
    p = put_token(p, plan->attempt_token, plan->attempt_len);
    p = put_token(p, plan->claim_token, plan->claim_len);
    p = is_del(command) ? put(p, "$3\r\nDEL\r\n", 9) : put_word(p, command, strlen(command));
    p = put_about(w, p, plan, identity, identity_len);
    p = upstream_is_cluster(w->upstream) ? put_sharded(p, plan->key.db) : put_number(p, plan->key.db);
    if (left_ms >= 0 || words)
        p = put_waited(p, left_ms);
    for (size_t i = 0; i < count; i++) {
        size_t len;
        const char *word = lock_word(words, i, &len);
        p = resp_bulk_write(p, word, len);
    }
    end(w, p);
}

/* Builds an attempt with SETNX or SET NX under a rule with a lock-delay: only the long way of acquire.lua knows it. */
static __attribute__((noinline)) void build_delayed(struct worker *w, struct lock_queue *queue,
                                                    const struct lock_client *client, const struct lock_plan *plan,
                                                    const struct lock_command *lc, const struct lock_words *words) {
    bool setnx = lc->shape == SHAPE_INT, expires = lc->expiry_ms > 0;
    size_t identity_len, value_len;
    const char *identity = lock_client_name(client, &identity_len);
    const char *value = lock_word(words, lc->value_at, &value_len);
    lock_build_script(w, SCRIPT_ACQUIRE, queue, 2, 6 + (setnx ? 3 : expires ? 6 : 4));
    build_bulk(w, plan->key.name, plan->key.len);
    lock_build_guard(w, plan->key.name, plan->key.len);
    build_text(w, plan->attempt_token);
    build_bulk(w, identity, identity_len);
    build_bulk(w, value, value_len);
    build_number(w, plan->rule->lease_ms);
    build_shape(w, plan, lc->shape);
    build_text(w, "");
    build_text(w, setnx ? "SETNX" : "SET");
    build_bulk(w, plan->key.name, plan->key.len);
    build_bulk(w, value, value_len);
    if (!setnx)
        build_text(w, "NX");
    if (expires) {
        build_text(w, "PX");
        build_number(w, lc->expiry_ms);
    }
}

void lock_build_acquire(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                        const struct lock_plan *plan, uint16_t slot, const struct lock_command *lc,
                        const struct lock_words *words) {
    bool release_then_acquire = plan->right == RIGHT_RELEASE_THEN_ACQUIRE,
         other = release_then_acquire || lc->expiry_ms == LOCK_EXPIRY_OTHER;
    if (plan->rule->wait_ms > 0 && !other && !queue) {
        build_waiting(w, client, plan, slot, lc, words);
        return;
    }
    if (plan->rule->lock_delay_ms > 0 && !other) {
        build_delayed(w, queue, client, plan, lc, words);
        return;
    }
    size_t identity_len, value_len, args = other ? 6 + words->count : lc->expiry_ms ? 5 : 6;
    const char *identity = lock_client_name(client, &identity_len);
    const char *value = lock_word(words, lc->value_at, &value_len);
    size_t room = 2 * LOCK_TOKEN_MAX + identity_len + value_len;
    for (size_t i = 0; other && i < words->count; i++)
        room += resp_bulk_size(words->args[i].len);
    char *p = start(w, SCRIPT_ACQUIRE, queue, &plan->key, slot, args, room);
    p = put_token(p, plan->attempt_token, plan->attempt_len);
    p = put_word(p, identity, identity_len);
    p = put_word(p, value, value_len);
    if (other) {
        p = put_number(p, plan->rule->lease_ms);
        char shape[SHAPE_TEXT_MAX];
        p = resp_bulk_write(p, shape, shape_write(plan, lc->shape, shape, sizeof(shape)));
        p = put_token(p, plan->claim_token, release_then_acquire ? plan->claim_len : 0);
        for (size_t i = 0; i < words->count; i++) {
            size_t len;
            const char *word = lock_word(words, i, &len);
            p = resp_bulk_write(p, word, len);
        }
    } else if (lc->expiry_ms) {
        p = put_expiry(w, p, lc->expiry_ms);
    } else {
        p = put_expiry(w, p, plan->rule->lease_ms);
        p = lc->shape == SHAPE_INT ? put(p, "$5\r\nSETNX\r\n", 11) : put(p, "$3\r\nSET\r\n", 9);
    }
    end(w, p);
}

void lock_build_plain(struct worker *w, const struct lock_client *client, const struct lock_call *l) {
    struct lock_command lc = {.value_at = 0, .shape = l->shape, .expiry_ms = l->expiry_ms};
    struct resp_arg value = {0, l->value_len};
    struct lock_words words = {l->value, &value, 1};
    lock_build_acquire(w, NULL, client, &l->plan, l->plan.slot, &lc, &words);
}

void lock_build_again(struct worker *w, const struct lock_client *client, const struct lock_call *l,
                      const char *first) {
    const struct lock_plan *plan = &l->plan;
    bool setnx = l->shape == SHAPE_INT, expires = l->expiry_ms > 0;
    size_t identity_len = 0;
    const char *identity = client ? lock_client_name(client, &identity_len) : "";
    lock_build_script(w, SCRIPT_ACQUIRE, NULL, 2, 6 + (setnx ? 3 : expires ? 6 : 4));
    build_bulk(w, l->key, plan->key.len);
    lock_build_guard(w, l->key, plan->key.len);
    build_text(w, plan->attempt_token);
    build_bulk(w, identity, identity_len);
    build_bulk(w, l->value, l->value_len);
    build_number(w, plan->rule->lease_ms);
    build_shape(w, plan, l->shape);
    build_text(w, first);
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

#define PUT(p, text) put(p, text, sizeof(text) - 1)

/* Puts the guard record in the short form (text.lua). */
static char *put_record(char *p, const struct lock_call *l, const char *identity, size_t identity_len) {
    const struct lock_plan *plan = &l->plan;
    char digits[RESP_HEADER_MAX], *digits_end = digits + sizeof(digits);
    const char *fence = resp_digits_write(digits_end, l->fence), *leased = l->expiry_ms ? "\n\n" : "\ng\n";
    size_t fence_len = (size_t)(digits_end - fence), leased_len = strlen(leased);
    p = put_length(p, sizeof("1\n\n\n") - 1 + plan->attempt_len + l->value_len + fence_len + leased_len + identity_len);
    p = PUT(p, "1\n");
    p = PUT(bytes_copy(p, plan->attempt_token, plan->attempt_len), "\n");
    p = PUT(bytes_copy(p, l->value, l->value_len), "\n");
    p = put(put(p, fence, fence_len), leased, leased_len);
    return PUT(bytes_copy(p, identity, identity_len), "\r\n");
}

/* Puts the key of a slot's watermark. */
static char *put_watermark(char *p, uint16_t slot) {
    size_t tag_len = slot_tag_len(slot);
    p = put_length(p, lock_guard_len(tag_len + 2, slot));
    p = PUT(p + lock_guard_head_write(slot, p), "{");
    return PUT(bytes_copy(p, slot_tag(slot), tag_len), "}\r\n");
}

void lock_build_short(struct worker *w, const struct lock_client *client, const struct lock_call *l) {
    const struct lock_plan *plan = &l->plan;
    size_t identity_len;
    const char *identity = lock_client_name(client, &identity_len);
    int64_t ms = lock_expiry_asked(l);
    w->build.len = 0;
    char *p = text_reserve(&w->build, ROOM + 2 * (LOCK_GUARD_EXTRA + plan->key.len + l->value_len) + LOCK_TOKEN_MAX +
                                          identity_len);
    p = PUT(p, "*1\r\n$5\r\nMULTI\r\n*4\r\n$9\r\nPEXPIREAT\r\n");
    p = put_watermark(p, plan->slot);
    p = PUT(put_number(p, (int64_t)l->fence), "$2\r\nGT\r\n*7\r\n$3\r\nSET\r\n");
    p = put_guard(p, plan->slot, plan->key.name, plan->key.len);
    p = PUT(put_record(p, l, identity, identity_len), "$2\r\nNX\r\n$3\r\nGET\r\n$2\r\nPX\r\n");
    p = PUT(put_number(p, ms), "*6\r\n$3\r\nSET\r\n");
    p = put_word(put_word(p, plan->key.name, plan->key.len), l->value, l->value_len);
    p = put_number(PUT(p, "$2\r\nNX\r\n$2\r\nPX\r\n"), ms);
    end(w, PUT(p, "*1\r\n$4\r\nEXEC\r\n"));
}

void lock_build_free(struct worker *w, const struct lock_plan *plan) {
    char *p = start(w, SCRIPT_FREE, NULL, &plan->key, plan->slot, 1, LOCK_TOKEN_MAX);
    end(w, put_token(p, plan->claim_token, plan->claim_len));
}

/* Builds a release that no session waits for. */
static inline void build_plain(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                               const struct lock_plan *plan, uint16_t slot, const char *command) {
    size_t identity_len = 0;
    bool whole = plan->seen_known || plan->right != RIGHT_CLAIM || plan->data_free;
    bool least = !whole && plan->claim_fence && is_del(command);
    const char *identity = client ? lock_client_name(client, &identity_len) : "";
    size_t room = 2 * LOCK_TOKEN_MAX + identity_len + plan->seen_len;
    char *p = start(w, SCRIPT_RELEASE, queue, &plan->key, slot, whole ? 7 : least ? 2 : 3, room);
    p = put_token(p, plan->attempt_token, plan->attempt_len);
    p = put_token(p, plan->claim_token, plan->claim_len);
    if (!least)
        p = put_word(p, command, strlen(command));
    if (whole)
        p = put_about(w, p, plan, identity, identity_len);
    end(w, p);
}

/* Builds a release under a rule with `quorum yes`. The guard record notes the attempt of the last release. The attempt
 * of a release by the claim is the claim's token and LOCK_RELEASED_MARK, so the guard record says whose lease was
 * released: witnesses may then forget it (quorum.c). A lease is released once, so no other release has the same
 * attempt. */
static __attribute__((noinline)) void build_named(struct worker *w, struct lock_queue *queue,
                                                  const struct lock_client *client, const struct lock_plan *plan,
                                                  uint16_t slot, const char *command, const struct lock_words *words) {
    struct lock_plan named = *plan;
    if (plan->right == RIGHT_CLAIM && plan->claim_len > 0) {
        named.attempt_len = (uint8_t)snprintf(named.attempt_token, sizeof(named.attempt_token), "%s" LOCK_RELEASED_MARK,
                                              plan->claim_token);
        invariant(named.attempt_len < sizeof(named.attempt_token), "S8: a token is too long for its release");
    }
    if (words || plan->rule->wait_ms > 0)
        build_telling(w, queue, client, &named, slot, command, words);
    else
        build_plain(w, queue, client, &named, slot, command);
}

void lock_build_release(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                        const struct lock_plan *plan, uint16_t slot, const char *command,
                        const struct lock_words *words) {
    if (words || (plan->rule && plan->rule->unusual)) {
        if (plan->rule && plan->rule->quorum == LOCK_QUORUM_YES)
            build_named(w, queue, client, plan, slot, command, words);
        else
            build_telling(w, queue, client, plan, slot, command, words);
        return;
    }
    build_plain(w, queue, client, plan, slot, command);
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
    lock_build_script(w, lc->script, queue, 2, LOCK_HEADER_ARGS + words->count);
    build_bulk(w, l->key, l->plan.key.len);
    lock_build_guard(w, l->key, l->plan.key.len);
    lock_build_header(w, s->lock.client, &l->plan, NULL, lc->value_at ? lc->value_at + 1 : 0, lc->shape);
    for (size_t i = 0; i < words->count; i++) {
        size_t len;
        const char *word = lock_word(words, i, &len);
        build_bulk(w, word, len);
    }
}
