/*
 * List locks under audit, command by command: who is believed to be the holder, and what enforcing would have refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/lock/audit.h"

static char pattern[] = "lock:*";

struct fixture {
    struct lock_engine *engine;
    struct lock_rule rule;
    int64_t now_ms;
    unsigned counts[INCIDENT_KINDS], total, effects;
    char action[256], holder[64];
    struct lock_session a, b, c;
};

static void on_incident(void *arg, const struct lock_incident *i) {
    struct fixture *f = arg;
    f->counts[i->kind]++;
    f->total += i->kind != INCIDENT_NO_EXPIRY; /* every list lock is without one */
    snprintf(f->action, sizeof(f->action), "%s", i->action);
    snprintf(f->holder, sizeof(f->holder), "%.*s", (int)i->holder_len, i->holder);
}

static void on_lease(void *arg, const struct lock_lease *lease) {
    (void)lease;
    ((struct fixture *)arg)->effects++;
}

static void on_leave(void *arg, const struct lock_leaving *leaving) {
    (void)leaving;
    ((struct fixture *)arg)->effects++;
}

static void open_as(struct fixture *f, struct lock_session *s, uint64_t id, const char *identity) {
    engine_session_open(f->engine, s, id, identity, strlen(identity));
}

static int set_up(void **state) {
    static struct fixture f;
    memset(&f, 0, sizeof(f));
    struct lock_sink sink = {
        .arg = &f, .incident = on_incident, .renew = on_lease, .release = on_lease, .leave = on_leave};
    f.engine = engine_new("6f9a2c51-7d7e-4a49-9d35-0b8f5f3c2a10", 42, &sink);
    f.now_ms = 1000000;
    f.rule = (struct lock_rule){.pattern = pattern,
                                .pattern_len = sizeof(pattern) - 1,
                                .mode = LOCK_MODE_AUDIT,
                                .owner = LOCK_OWNER_AUTO,
                                .claim_memory_ms = 60000,
                                .lease_ms = 30000,
                                .renew = LOCK_RENEW_AUTO,
                                .max_hold_ms = 300000};
    open_as(&f, &f.a, 1, "a");
    open_as(&f, &f.b, 2, "b");
    open_as(&f, &f.c, 3, "c");
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    assert_int_equal(f->effects, 0); /* nothing is added to the wire */
    engine_free(f->engine);
    return 0;
}

/* `count` is the reply's number, or LSET's place. */
static enum lock_outcome see(struct fixture *f, struct lock_session *s, enum lock_verb verb,
                             enum lock_queue_sight queue, enum lock_effect effect, const char *node, int64_t count) {
    struct lock_key key = {.name = "lock:q", .len = 6};
    struct lock_sight sight = {.key = key,
                               .rule = &f->rule,
                               .verb = verb,
                               .effect = effect,
                               .queue = queue,
                               .watched = engine_watch(f->engine, s, &key),
                               .session_id = s->id,
                               .begun_ms = f->now_ms,
                               .pttl_ms = -3,
                               .value = node,
                               .value_len = node ? strlen(node) : 0,
                               .count = count,
                               .by = 1,
                               .refusal = "0",
                               .command = "COMMAND",
                               .client = "10.1.1.1:5000"};
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
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
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
