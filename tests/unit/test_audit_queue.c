/*
 * List locks under audit, command by command: who is believed to be the holder, and what enforcing would have refused.
 */
#include "tests/unit/audit_rig.h"

static int set_up_lists(void **state) {
    set_up(state);
    struct fixture *f = *state;
    f->lists = true;
    open_as(f, &f->a, 1, "a");
    open_as(f, &f->b, 2, "b");
    open_as(f, &f->c, 3, "c");
    return 0;
}

/* `count` is the reply's number, or LSET's place. */
static enum lock_outcome see(struct fixture *f, struct lock_session *s, enum lock_verb verb,
                             enum lock_queue_sight queue, enum lock_effect effect, const char *node, int64_t count) {
    struct lock_sight sight = sight_on(f, s, "lock:q", verb, effect);
    sight.queue = queue;
    sight.value = node;
    sight.value_len = node ? strlen(node) : 0;
    sight.count = count;
    sight.by = 1;
    return engine_observe(f->engine, &sight, f->now_ms);
}

static enum lock_outcome push(struct fixture *f, struct lock_session *s, const char *node, int64_t length) {
    return see(f, s, LOCK_QUEUE_PUSH, QUEUE_APPEND, EFFECT_DONE, node, length);
}

static enum lock_outcome head(struct fixture *f, struct lock_session *s, const char *node) {
    return see(f, s, LOCK_QUEUE_READ, QUEUE_HEAD, node ? EFFECT_DONE : EFFECT_ABSENT, node, 0);
}

static enum lock_outcome vacant(struct fixture *f, struct lock_session *s) {
    return see(f, s, LOCK_QUEUE_READ, QUEUE_EXISTS, EFFECT_ABSENT, NULL, 0);
}

static enum lock_outcome removes(struct fixture *f, struct lock_session *s, const char *node, int64_t count) {
    return see(f, s, LOCK_QUEUE_REMOVE, QUEUE_REMOVE, count ? EFFECT_DONE : EFFECT_ABSENT, node, count);
}

static void lset(struct fixture *f, struct lock_session *s, const char *node, enum lock_outcome outcome) {
    assert_int_equal(see(f, s, LOCK_QUEUE_SET, QUEUE_SET, EFFECT_DONE, node, 0), outcome);
}

static void turns_are_silent(void **state) {
    struct fixture *f = *state;
    assert_int_equal(push(f, &f->a, "na", 1), LOCK_DONE);
    assert_int_equal(head(f, &f->a, "na"), LOCK_GRANTED);
    assert_int_equal(push(f, &f->b, "nb", 2), LOCK_DONE);
    assert_int_equal(head(f, &f->b, "na"), LOCK_DONE);
    assert_int_equal(head(f, &f->a, "na"), LOCK_DONE);
    lset(f, &f->a, "na2", LOCK_DONE); /* reentrant */
    assert_int_equal(removes(f, &f->a, "na2", 1), LOCK_RELEASED);
    assert_int_equal(head(f, &f->b, "nb"), LOCK_GRANTED);
    assert_int_equal(removes(f, &f->b, "nb", 1), LOCK_RELEASED);
    assert_int_equal(head(f, &f->b, NULL), LOCK_FREE);
    assert_int_equal(vacant(f, &f->c), LOCK_FREE);
    assert_int_equal(push(f, &f->c, "nc", 1), LOCK_GRANTED);
    assert_int_equal(see(f, &f->c, LOCK_RELEASE, QUEUE_POP, EFFECT_DONE, "nc", 0), LOCK_RELEASED);
    assert_int_equal(f->total, 0);
    assert_int_equal(f->counts[INCIDENT_NO_EXPIRY], 3);
}

#define INCIDENTS(f, a, b)                                                                                             \
    do {                                                                                                               \
        assert_int_equal((f)->counts[a], b);                                                                           \
        assert_int_equal((f)->total, b);                                                                               \
    } while (0)

static void removal_of_anothers_node(void **state) {
    struct fixture *f = *state;
    push(f, &f->a, "na", 1);
    head(f, &f->a, "na");
    push(f, &f->b, "nb", 2);
    assert_int_equal(removes(f, &f->c, "nb", 1), LOCK_HELD); /* that one waits */
    INCIDENTS(f, INCIDENT_FOREIGN_RELEASE, 1);
    assert_string_equal(f->action, "would be refused: 0; this client has no such node in the queue");
    assert_int_equal(removes(f, &f->c, "na", 1), LOCK_HELD); /* that one holds */
    INCIDENTS(f, INCIDENT_FOREIGN_RELEASE, 2);
    assert_string_equal(f->holder, "a");
    assert_int_equal(removes(f, &f->a, "na", 0), LOCK_FREE);
    assert_int_equal(f->counts[INCIDENT_LATE_RELEASE], 1);
    assert_int_equal(f->total, 3);
}

static void whoever_pops_without_holding(void **state) {
    struct fixture *f = *state;
    push(f, &f->a, "na", 1);
    assert_int_equal(see(f, &f->b, LOCK_RELEASE, QUEUE_POP, EFFECT_DONE, "na", 0), LOCK_FOREIGN);
    INCIDENTS(f, INCIDENT_FOREIGN_RELEASE, 1);
    assert_string_equal(f->holder, "a");
    push(f, &f->a, "na", 1);
    head(f, &f->a, "na");
    assert_int_equal(see(f, &f->b, LOCK_RELEASE, QUEUE_NONE, EFFECT_DONE, NULL, 1), LOCK_HELD); /* DEL */
    INCIDENTS(f, INCIDENT_FOREIGN_RELEASE, 2);
}

static void two_that_saw_no_queue(void **state) {
    struct fixture *f = *state;
    vacant(f, &f->a);
    vacant(f, &f->b);
    assert_int_equal(push(f, &f->a, "na", 1), LOCK_GRANTED);
    assert_int_equal(push(f, &f->b, "nb", 2), LOCK_HELD);
    INCIDENTS(f, INCIDENT_OVERWRITE, 1);
    assert_string_equal(f->holder, "a");
    assert_int_equal(push(f, &f->b, "nb2", 3), LOCK_DONE); /* it was told once */
    INCIDENTS(f, INCIDENT_OVERWRITE, 1);
}

static void what_changes_anothers_head(void **state) {
    struct fixture *f = *state;
    push(f, &f->a, "na", 1);
    head(f, &f->a, "na");
    lset(f, &f->b, "nb", LOCK_HELD);
    INCIDENTS(f, INCIDENT_OVERWRITE, 1);
    push(f, &f->b, "nx", 2);
    assert_int_equal(see(f, &f->c, LOCK_QUEUE_SET, QUEUE_TRIM, EFFECT_DONE, NULL, -1), LOCK_FOREIGN);
    INCIDENTS(f, INCIDENT_OVERWRITE, 2);
    push(f, &f->a, "na", 1);
    assert_int_equal(see(f, &f->b, LOCK_QUEUE_PUSH, QUEUE_BEFORE, EFFECT_DONE, "nb", 2), LOCK_FOREIGN);
    INCIDENTS(f, INCIDENT_OVERWRITE, 3);
}

static void a_head_that_does_not_look(void **state) {
    struct fixture *f = *state;
    push(f, &f->a, "na", 1);
    push(f, &f->b, "nb", 2);
    head(f, &f->b, "na");
    f->now_ms += 4000;
    head(f, &f->b, "na");
    assert_int_equal(f->total, 0);
    f->now_ms += 2000;
    head(f, &f->b, "na");
    INCIDENTS(f, INCIDENT_LOST_HEAD, 1);
    assert_string_equal(f->holder, "a");
    assert_non_null(strstr(f->action, "head for 5 s"));
    head(f, &f->b, "na"); /* said once */
    INCIDENTS(f, INCIDENT_LOST_HEAD, 1);
}

static void a_head_that_waits_its_turn_is_not_dead(void **state) {
    struct fixture *f = *state;
    push(f, &f->a, "na", 1);
    head(f, &f->a, "na");
    push(f, &f->b, "nb", 2);
    for (int i = 0; i < 20; i++) {
        f->now_ms += 4000; /* a works for long, b looks now and then */
        head(f, &f->b, "na");
        engine_tick(f->engine, 0, 1, f->now_ms);
    }
    assert_int_equal(removes(f, &f->a, "na", 1), LOCK_RELEASED);
    assert_int_equal(head(f, &f->b, "nb"), LOCK_GRANTED);
    assert_int_equal(f->total, 0);
}

static void a_waiter_that_walked_away(void **state) {
    struct fixture *f = *state;
    push(f, &f->a, "na", 1);
    head(f, &f->a, "na");
    push(f, &f->b, "nb", 2);
    f->now_ms += 31000;
    removes(f, &f->a, "na", 1);
    push(f, &f->c, "nc", 2);
    head(f, &f->c, "nb");
    INCIDENTS(f, INCIDENT_LOST_HEAD, 1);
    assert_non_null(strstr(f->action, "the rule's lease"));
}

static void a_holder_that_left(void **state) {
    struct fixture *f = *state;
    push(f, &f->a, "na", 1);
    head(f, &f->a, "na");
    push(f, &f->b, "nb", 2);
    engine_session_close(f->engine, &f->a, f->now_ms);
    INCIDENTS(f, INCIDENT_ABANDONED, 1);
    head(f, &f->b, "na");
    assert_int_equal(f->counts[INCIDENT_LOST_HEAD], 1);
    assert_non_null(strstr(f->action, "disconnected"));
    assert_string_equal(f->holder, "a");
}

static void connections_that_are_shared(void **state) {
    struct fixture *f = *state;
    struct lock_session other;
    f->rule.owner = LOCK_OWNER_CLIENT;
    open_as(f, &other, 9, "a");
    push(f, &f->a, "na", 1);
    assert_int_equal(head(f, &other, "na"), LOCK_GRANTED);
    assert_int_equal(removes(f, &f->a, "na", 1), LOCK_RELEASED);
    vacant(f, &f->a);
    assert_int_equal(push(f, &other, "n2", 1), LOCK_GRANTED);
    assert_int_equal(f->total, 0);
    engine_session_close(f->engine, &other, f->now_ms);
    assert_int_equal(f->total, 0);
}

static void nodes_that_nobody_saw_pushed(void **state) {
    struct fixture *f = *state;
    head(f, &f->a, "unknown");
    f->now_ms += 60000;
    head(f, &f->a, "unknown");
    removes(f, &f->b, "unknown", 1);
    assert_int_equal(f->total, 0);
}

static void many_queues_and_nodes(void **state) {
    struct fixture *f = *state;
    char name[32], node[32];
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof(name), "lock:%d", i % 2500);
        snprintf(node, sizeof(node), "n%d", i);
        struct lock_key key = {.name = name, .len = strlen(name)};
        struct lock_sight sight = {.key = key,
                                   .rule = &f->rule,
                                   .verb = LOCK_QUEUE_PUSH,
                                   .effect = EFFECT_DONE,
                                   .queue = QUEUE_APPEND,
                                   .watched = engine_watch(f->engine, &f->a, &key),
                                   .session_id = f->a.id,
                                   .begun_ms = f->now_ms,
                                   .pttl_ms = -3,
                                   .value = node,
                                   .value_len = strlen(node),
                                   .count = 1 + i / 2500,
                                   .by = 1,
                                   .refusal = "0",
                                   .command = "RPUSH",
                                   .client = ""};
        engine_observe(f->engine, &sight, f->now_ms++);
    }
    assert_int_equal(f->total, 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_lists, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(turns_are_silent),
        TEST(removal_of_anothers_node),
        TEST(whoever_pops_without_holding),
        TEST(two_that_saw_no_queue),
        TEST(what_changes_anothers_head),
        TEST(a_head_that_does_not_look),
        TEST(a_head_that_waits_its_turn_is_not_dead),
        TEST(a_waiter_that_walked_away),
        TEST(a_holder_that_left),
        TEST(connections_that_are_shared),
        TEST(nodes_that_nobody_saw_pushed),
        TEST(many_queues_and_nodes),
    };
    return cmocka_run_group_tests_name("audit of list locks", tests, NULL, NULL);
}
