/*
 * The ledger of permits: proxy/lock/permits.c. The integration tests have replies and scripts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/base/memory.h"
#include "proxy/lock/permits.h"

struct rig {
    struct permit_ledger *l;
    struct lock_rules *rules;
    const struct lock_rule *rule;
    int64_t now_ms, value; /* of the counter */
};

static const struct lock_key KEY = {.name = "sem:a", .len = 5};

/* Makes rules of one line, split at spaces. */
static struct lock_rules *rules_of(const char *line) {
    struct lock_rules *rules = lock_rules_new();
    char text[128], error[128], *words[16], *rest = text;
    size_t count = 0;
    snprintf(text, sizeof(text), "%s", line);
    while ((words[count] = strtok_r(rest, " ", &rest)))
        count++;
    assert_null(lock_rules_add(rules, (const char *const *)words, count, error, sizeof(error)));
    return rules;
}

static void use(struct rig *r, const char *line) {
    lock_rules_unref(r->rules);
    r->rules = rules_of(line);
    r->rule = lock_rules_get(r->rules, 0);
}

static int setup(void **state) {
    static struct rig rig;
    memset(&rig, 0, sizeof(rig));
    rig.l = permits_new(1);
    rig.now_ms = 1000;
    use(&rig, "sem:* kind semaphore");
    *state = &rig;
    return 0;
}

static int teardown(void **state) {
    struct rig *r = *state;
    permits_free(r->l);
    lock_rules_unref(r->rules);
    return 0;
}

static struct permit_sender sender(uint64_t session, uint64_t client) {
    return (struct permit_sender){.session = session, .client = client, .who = "somebody"};
}

/* Session `session` of client 7 takes, by an operation that has begun. */
static bool take_in(struct rig *r, const struct permit_op *op, uint64_t session, int64_t n) {
    struct permit_sender from = sender(session, 7);
    r->value += n;
    return permits_take(
        r->l, op,
        &(struct permit_take){
            .sender = &from, .rule = r->rule, .shape = PERMIT_COUNT, .n = n, .value = r->value, .now_ms = r->now_ms});
}

static void take(struct rig *r, uint64_t session, int64_t n) {
    struct permit_op op;
    permits_begin(r->l, &op, &KEY, 0);
    assert_true(take_in(r, &op, session, n));
    permits_end(r->l, &op);
}

static int64_t give(struct rig *r, uint64_t session, uint64_t client, int64_t n) {
    struct permit_op op;
    struct permit_sender from = sender(session, client);
    permits_begin(r->l, &op, &KEY, n);
    int64_t given = permits_give(r->l, &op, &from, n);
    permits_end(r->l, &op);
    r->value -= n;
    return given;
}

static void take_text(struct rig *r, uint64_t session, enum permit_shape shape, const char *text, const char *score) {
    struct permit_op op;
    struct permit_sender from = sender(session, 7);
    permits_begin(r->l, &op, &KEY, 0);
    assert_true(permits_take(r->l, &op,
                             &(struct permit_take){.sender = &from,
                                                   .rule = r->rule,
                                                   .shape = shape,
                                                   .text = text,
                                                   .len = strlen(text),
                                                   .score = score,
                                                   .score_len = strlen(score),
                                                   .now_ms = r->now_ms}));
    permits_end(r->l, &op);
}

static bool give_text(struct rig *r, uint64_t session, const char *text) {
    struct permit_op op;
    struct permit_sender from = sender(session, 7);
    permits_begin(r->l, &op, &KEY, 1);
    bool given = permits_give_text(r->l, &op, &from, text, strlen(text));
    permits_end(r->l, &op);
    return given;
}

static void leave(struct rig *r, uint64_t session, bool last) {
    permits_leave(r->l, session, 7, last, false, r->now_ms);
}

/* The number of the permits that are due, which are taken out. */
static int64_t due(struct rig *r) {
    int64_t n = 0;
    struct permit *p;
    while ((p = permits_due(r->l, r->now_ms))) {
        assert_int_equal(p->name.len, KEY.len);
        assert_memory_equal(p->name.name, KEY.name, KEY.len);
        n += p->n;
        permits_drop(r->l, p);
    }
    return n;
}

static void reset(struct rig *r) {
    struct permit_op op;
    permits_begin(r->l, &op, &KEY, 0);
    permits_forget(r->l, &op);
    permits_end(r->l, &op);
    r->value = 0;
}

/* ---- tests --------------------------------------------------------------------------------------- */

static void test_a_closed_session(void **state) {
    struct rig *r = *state;
    take(r, 1, 1);
    take(r, 2, 3);
    assert_int_equal(due(r), 0);
    leave(r, 2, false);
    assert_int_equal(due(r), 3);
    leave(r, 2, false);
    assert_int_equal(due(r), 0);
    assert_int_equal(permits_held(r->l), 1);
    leave(r, 1, true);
    assert_int_equal(due(r), 1);
    assert_false(permits_any(r->l));
}

static void test_what_was_given_back(void **state) {
    struct rig *r = *state;
    take(r, 1, 2);
    take(r, 2, 1);
    assert_int_equal(give(r, 1, 7, 1), 1);
    assert_int_equal(permits_held(r->l), 2);
    leave(r, 1, false);
    assert_int_equal(due(r), 1);
    assert_int_equal(give(r, 2, 7, 2), 1);
    leave(r, 2, true);
    assert_int_equal(due(r), 0);
}

/* Another client's give-back takes the oldest permit: better one that is lost than one too many. */
static void test_given_back_by_another_client(void **state) {
    struct rig *r = *state;
    take(r, 1, 1);
    take(r, 2, 1);
    assert_int_equal(give(r, 9, 8, 1), 1);
    leave(r, 1, false);
    assert_int_equal(due(r), 0);
    leave(r, 2, false);
    assert_int_equal(due(r), 1);
}

/* One connection of a pool gives back what another one took: from then on permits outlive their connection. */
static void test_a_pool(void **state) {
    struct rig *r = *state;
    take(r, 1, 1);
    assert_int_equal(give(r, 2, 7, 1), 1);
    take(r, 1, 1);
    leave(r, 1, false);
    assert_int_equal(due(r), 0);
    leave(r, 2, true);
    assert_int_equal(due(r), 1);
    use(r, "sem:* kind semaphore owner connection");
    take(r, 1, 1);
    leave(r, 1, false);
    assert_int_equal(due(r), 1);
}

static void test_owner_client(void **state) {
    struct rig *r = *state;
    use(r, "sem:* kind semaphore owner client");
    take(r, 1, 1);
    leave(r, 1, false);
    assert_int_equal(due(r), 0);
    permits_leave(r->l, 5, 6, true, false, r->now_ms); /* another client's last */
    assert_int_equal(due(r), 0);
    leave(r, 2, true);
    assert_int_equal(due(r), 1);
}

/* A permit waits for a give-back that is under way over another connection, though not for ever. */
static void test_a_give_back_under_way(void **state) {
    struct rig *r = *state;
    struct permit_op op;
    struct permit_sender from = sender(2, 7);
    take(r, 1, 1);
    permits_begin(r->l, &op, &KEY, 1);
    leave(r, 1, false);
    assert_int_equal(due(r), 0);
    assert_int_equal(permits_give(r->l, &op, &from, 1), 1);
    permits_end(r->l, &op);
    assert_int_equal(due(r), 0);
    r->value--;

    take(r, 1, 1);
    use(r, "sem:* kind semaphore owner connection");
    take(r, 3, 1);
    permits_begin(r->l, &op, &KEY, 1);
    leave(r, 3, false);
    assert_int_equal(due(r), 0);
    r->now_ms += PERMIT_WAITS_MS;
    assert_int_equal(due(r), 1);
    permits_end(r->l, &op);
}

/* The reply comes when the session is gone. */
static void test_taken_by_a_closed_session(void **state) {
    struct rig *r = *state;
    struct permit_op op;
    permits_begin(r->l, &op, &KEY, 0);
    leave(r, 1, true);
    assert_true(take_in(r, &op, 1, 1));
    leave(r, 1, true);
    permits_end(r->l, &op);
    assert_int_equal(due(r), 1);
}

static void test_lease(void **state) {
    struct rig *r = *state;
    use(r, "sem:* kind semaphore lease 5s");
    take(r, 1, 1);
    r->now_ms += 4999;
    permits_expire(r->l, r->now_ms);
    assert_int_equal(due(r), 0);
    r->now_ms++;
    permits_expire(r->l, r->now_ms);
    struct permit *p = permits_due(r->l, r->now_ms);
    assert_non_null(p);
    assert_int_equal(p->reason, PERMIT_EXPIRED);
    permits_drop(r->l, p);
    leave(r, 1, true);
    assert_int_equal(due(r), 0);
}

static void test_one_shot(void **state) {
    struct rig *r = *state;
    use(r, "sem:* kind semaphore lease 5s");
    take(r, 1, 1);
    permits_leave(r->l, 1, 7, true, true, r->now_ms + PERMIT_ONE_SHOT_MS);
    assert_int_equal(due(r), 0);
    r->now_ms += 5000;
    permits_expire(r->l, r->now_ms);
    assert_int_equal(due(r), 1);
    take(r, 2, 1);
    permits_leave(r->l, 2, 7, true, true, r->now_ms + PERMIT_ONE_SHOT_MS + 1);
    r->now_ms += PERMIT_ONE_SHOT_MS + 1;
    assert_int_equal(due(r), 1);
}

static void test_a_reset(void **state) {
    struct rig *r = *state;
    struct permit_op op;
    take(r, 1, 1);
    permits_begin(r->l, &op, &KEY, 0); /* begun before the reset: taken from the old semaphore or the new one */
    reset(r);
    assert_true(take_in(r, &op, 1, 1));
    permits_end(r->l, &op);
    leave(r, 1, true);
    assert_int_equal(due(r), 0);
    take(r, 2, 1);
    permits_forget_all(r->l, 1, false);
    assert_int_equal(permits_held(r->l), 1);
    permits_forget_all(r->l, 0, false);
    assert_false(permits_any(r->l));
    take(r, 2, 1);
    permits_forget_all(r->l, 1, true);
    assert_false(permits_any(r->l));
}

/* A reset while the call is under way: it is not made again. */
static void test_put_back(void **state) {
    struct rig *r = *state;
    take(r, 1, 1);
    leave(r, 1, true);
    struct permit *p = permits_due(r->l, r->now_ms);
    permits_put_back(r->l, p, r->now_ms, 1000);
    assert_int_equal(due(r), 0);
    r->now_ms += 1000;
    p = permits_due(r->l, r->now_ms);
    assert_int_equal(p->tries, 1);
    reset(r);
    permits_put_back(r->l, p, r->now_ms, 0);
    assert_int_equal(due(r), 0);
    assert_false(permits_any(r->l));

    take(r, 2, 1);
    leave(r, 2, true);
    permits_put_back(r->l, permits_due(r->l, r->now_ms), r->now_ms, 1000);
    assert_int_equal(give(r, 3, 7, 1), 1); /* a late give-back takes its place */
    r->now_ms += 1000;
    assert_int_equal(due(r), 0);
}

/* The counter shows that it was reset where the proxy does not see it. */
static void test_a_counter_that_begins_anew(void **state) {
    struct rig *r = *state;
    take(r, 1, 2);
    r->value = 0;
    take(r, 2, 1);
    leave(r, 1, false);
    assert_int_equal(due(r), 0);
    leave(r, 2, true);
    assert_int_equal(due(r), 1);
}

/* Replies that come in another order than the commands ran tell nothing of a reset. */
static void test_replies_out_of_order(void **state) {
    struct rig *r = *state;
    struct permit_op first, second;
    permits_begin(r->l, &first, &KEY, 0);
    permits_begin(r->l, &second, &KEY, 0);
    r->value = 1;
    assert_true(take_in(r, &second, 2, 1));
    r->value = 0;
    assert_true(take_in(r, &first, 1, 1));
    assert_int_equal(permits_held(r->l), 2);
    permits_end(r->l, &first);
    permits_end(r->l, &second);
}

static void test_tokens(void **state) {
    struct rig *r = *state;
    take_text(r, 1, PERMIT_TOKEN, "t1", "");
    take_text(r, 1, PERMIT_TOKEN, "t2", "");
    assert_false(give_text(r, 1, "t3"));
    assert_true(give_text(r, 1, "t1"));
    assert_false(give_text(r, 1, "t1"));
    leave(r, 1, true);
    struct permit *p = permits_due(r->l, r->now_ms);
    assert_memory_equal(p->text, "t2", 2);
    assert_false(p->alike);
    permits_drop(r->l, p);
    take_text(r, 1, PERMIT_TOKEN, "x", "");
    take_text(r, 2, PERMIT_TOKEN, "x", "");
    leave(r, 2, false);
    p = permits_due(r->l, r->now_ms);
    assert_true(p->alike);
    permits_drop(r->l, p);
    assert_true(give_text(r, 1, "x"));
}

static void test_members(void **state) {
    struct rig *r = *state;
    struct permit_op op;
    take_text(r, 1, PERMIT_MEMBER, "m", "1");
    take_text(r, 2, PERMIT_MEMBER, "m", "2"); /* it was removed meanwhile */
    assert_int_equal(permits_held(r->l), 1);
    permits_begin(r->l, &op, &KEY, 0);
    assert_true(permits_rescore(r->l, &op, "m", 1, "3.5", 3));
    assert_false(permits_rescore(r->l, &op, "n", 1, "3.5", 3));
    permits_end(r->l, &op);
    leave(r, 2, true);
    struct permit *p = permits_due(r->l, r->now_ms);
    assert_string_equal(p->score, "3.5");
    permits_drop(r->l, p);
}

static void test_a_reload(void **state) {
    struct rig *r = *state;
    take(r, 1, 1);
    struct lock_rules *rules = rules_of("s* kind semaphore lease 1s mode audit");
    permits_rules(r->l, rules);
    r->now_ms += 1000;
    permits_expire(r->l, r->now_ms);
    struct permit *p = permits_due(r->l, r->now_ms);
    assert_int_equal(p->rule->permits, LOCK_PERMITS_AUDITED);
    permits_drop(r->l, p);
    r->value--;
    take(r, 1, 1);
    lock_rules_unref(rules);
    rules = rules_of("sem:* kind counter");
    permits_rules(r->l, rules);
    assert_false(permits_any(r->l));
    lock_rules_unref(rules);
}

static void test_bounds(void **state) {
    struct rig *r = *state;
    struct permit_op op;
    char *name = memory_zalloc(PERMIT_KEY_MAX + 1);
    struct lock_key longer = {.name = name, .len = PERMIT_KEY_MAX + 1};
    permits_begin(r->l, &op, &longer, 0);
    assert_false(take_in(r, &op, 1, 1));
    permits_end(r->l, &op);
    r->value = 0;
    for (uint64_t s = 0; s < PERMITS_OF_KEY_MAX; s++)
        take_text(r, s % 4, PERMIT_TOKEN, "a", "");
    assert_int_equal(permits_held(r->l), PERMITS_OF_KEY_MAX);
    permits_begin(r->l, &op, &KEY, 0);
    assert_false(take_in(r, &op, 1, 1));
    permits_end(r->l, &op);
    leave(r, 1, true);
    memory_free(name);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_closed_session),
        TEST(test_what_was_given_back),
        TEST(test_given_back_by_another_client),
        TEST(test_a_pool),
        TEST(test_owner_client),
        TEST(test_a_give_back_under_way),
        TEST(test_taken_by_a_closed_session),
        TEST(test_lease),
        TEST(test_one_shot),
        TEST(test_a_reset),
        TEST(test_put_back),
        TEST(test_a_counter_that_begins_anew),
        TEST(test_replies_out_of_order),
        TEST(test_tokens),
        TEST(test_members),
        TEST(test_a_reload),
        TEST(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
