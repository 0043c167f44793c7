/*
 * Audit, command by command: the incident that follows from a command that ran unchanged, and what is believed of the
 * lock afterwards.
 */
#include "tests/unit/audit_rig.h"

static struct lock_event sight_of(struct fixture *f, struct lock_session *s, enum lock_verb verb,
                                  enum lock_effect effect) {
    return sight_on(f, s, "lock:x", verb, effect);
}

static enum lock_outcome see(struct fixture *f, struct lock_session *s, enum lock_verb verb, enum lock_effect effect) {
    struct lock_event sight = sight_of(f, s, verb, effect);
    return engine_observe(f->engine, &sight, f->now_ms);
}

static enum lock_outcome write_value(struct fixture *f, struct lock_session *s, enum lock_verb verb, const char *value,
                                     int64_t pttl_ms) {
    struct lock_event sight = sight_of(f, s, verb, EFFECT_DONE);
    sight.value = value;
    sight.value_len = strlen(value);
    sight.pttl_ms = pttl_ms;
    return engine_observe(f->engine, &sight, f->now_ms);
}

static void acquire(struct fixture *f, struct lock_session *s, const char *value, int64_t pttl_ms) {
    assert_int_equal(write_value(f, s, LOCK_ACQUIRE, value, pttl_ms), LOCK_GRANTED);
}

static enum lock_outcome show(struct fixture *f, struct lock_session *s, const char *value) {
    return write_value(f, s, LOCK_READ, value, -3);
}

static enum lock_outcome count(struct fixture *f, struct lock_session *s, enum lock_verb verb, int64_t n) {
    struct lock_event sight = sight_of(f, s, verb, EFFECT_DONE);
    sight.count = n;
    sight.by = 1;
    return engine_observe(f->engine, &sight, f->now_ms);
}

#define INCIDENTS(f, a, b)                                                                                             \
    do {                                                                                                               \
        assert_int_equal((f)->counts[a], b);                                                                           \
        assert_int_equal((f)->total, b);                                                                               \
    } while (0)

static void what_is_right_is_silent(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    acquire(f, &a, "1", 5000);
    assert_int_equal(see(f, &b, LOCK_ACQUIRE, EFFECT_LOST), LOCK_HELD);
    assert_int_equal(write_value(f, &a, LOCK_REPLACE, "2", 5000), LOCK_DONE);
    struct lock_event sight = sight_of(f, &a, LOCK_EXTEND, EFFECT_DONE);
    sight.pttl_ms = 9000;
    assert_int_equal(engine_observe(f->engine, &sight, f->now_ms), LOCK_DONE);
    f->now_ms += 6000; /* beyond the first expiry */
    engine_tick(f->engine, 0, 1, f->now_ms);
    assert_int_equal(see(f, &a, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    assert_int_equal(f->total, 0);
}

static void releases_by_others_have_happened(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    open_as(f, &c, 3, "c");
    acquire(f, &a, "1", 5000);
    assert_int_equal(see(f, &b, LOCK_RELEASE, EFFECT_DONE), LOCK_HELD);
    INCIDENTS(f, INCIDENT_FOREIGN_RELEASE, 1);
    assert_string_equal(f->holder, "a");
    assert_string_equal(f->action, "would be refused: 0; this client holds no lease of the lock");
    acquire(f, &c, "1", 5000); /* it is free */
    assert_int_equal(see(f, &a, LOCK_RELEASE, EFFECT_DONE), LOCK_HELD);
    assert_int_equal(f->counts[INCIDENT_LATE_RELEASE], 1);
    assert_string_equal(f->holder, "c");
    assert_int_equal(f->total, 2);
}

static void a_release_after_the_end_is_late(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    acquire(f, &a, "1", 1000);
    f->now_ms += 1500;
    acquire(f, &b, "1", 5000);
    assert_int_equal(see(f, &a, LOCK_RELEASE, EFFECT_DONE), LOCK_HELD);
    INCIDENTS(f, INCIDENT_LATE_RELEASE, 1);
}

static void a_late_release_of_an_unknown_holders_lock(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "a");
    acquire(f, &a, "1", 1000);
    f->now_ms += 1500; /* another client acquires elsewhere */
    assert_int_equal(see(f, &a, LOCK_RELEASE, EFFECT_DONE), LOCK_FOREIGN);
    INCIDENTS(f, INCIDENT_LATE_RELEASE, 1);
    assert_string_equal(f->holder, "");
}

static void a_release_on_its_way_at_the_end_is_not_late(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "a");
    acquire(f, &a, "1", 1000);
    f->now_ms += 999;
    struct lock_event sight = sight_of(f, &a, LOCK_RELEASE, EFFECT_DONE);
    f->now_ms += 5;
    engine_tick(f->engine, 0, 1, f->now_ms);
    assert_int_equal(engine_observe(f->engine, &sight, f->now_ms), LOCK_RELEASED);
    assert_int_equal(f->total, 0);
}

static void answers_that_cross_accuse_nobody(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    acquire(f, &a, "1", 5000);
    struct lock_event release = sight_of(f, &a, LOCK_RELEASE, EFFECT_DONE);
    acquire(f, &b, "1", 5000); /* behind it at Redis, before it here */
    assert_int_equal(engine_observe(f->engine, &release, f->now_ms), LOCK_RELEASED);
    assert_int_equal(see(f, &b, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    assert_int_equal(f->total, 0);
}

/* A lease was written over the lock, so that the DEL behind it took that. */
static void a_release_that_crosses_an_overwriting_takes_that(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    struct lock_stats stats;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    open_as(f, &c, 3, "c");
    acquire(f, &a, "1", 5000);
    struct lock_event release = sight_of(f, &a, LOCK_RELEASE, EFFECT_DONE);
    assert_int_equal(write_value(f, &b, LOCK_REWRITE, "2", 5000), LOCK_HELD);
    assert_int_equal(engine_observe(f->engine, &release, f->now_ms), LOCK_RELEASED);
    engine_stats(f->engine, &stats);
    assert_int_equal(stats.leases, 0);
    acquire(f, &c, "1", 5000);
    assert_int_equal(see(f, &c, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    INCIDENTS(f, INCIDENT_OVERWRITE, 1);
}

static void what_is_not_known_is_not_reported(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    assert_int_equal(see(f, &a, LOCK_RELEASE, EFFECT_DONE), LOCK_OPEN);
    assert_int_equal(see(f, &a, LOCK_EXTEND, EFFECT_DONE), LOCK_OPEN);
    assert_int_equal(see(f, &a, LOCK_REPLACE, EFFECT_ABSENT), LOCK_FREE);
    assert_int_equal(f->total, 0);
    /* but a session that was told that another holds it */
    assert_int_equal(see(f, &b, LOCK_ACQUIRE, EFFECT_LOST), LOCK_FOREIGN);
    assert_int_equal(see(f, &b, LOCK_RELEASE, EFFECT_DONE), LOCK_FOREIGN);
    INCIDENTS(f, INCIDENT_FOREIGN_RELEASE, 1);
}

static void a_script_leaves_nothing_to_believe(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    acquire(f, &a, "1", 5000);
    see(f, &b, LOCK_SCRIPT, EFFECT_SCRIPTED);
    see(f, &b, LOCK_RELEASE, EFFECT_DONE);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(f->total, 0);
}

static void extensions_by_others_move_the_end(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    acquire(f, &a, "1", 1000);
    struct lock_event sight = sight_of(f, &b, LOCK_EXTEND, EFFECT_DONE);
    sight.pttl_ms = 9000;
    assert_int_equal(engine_observe(f->engine, &sight, f->now_ms), LOCK_HELD);
    INCIDENTS(f, INCIDENT_FOREIGN_EXTEND, 1);
    f->now_ms += 2000;
    assert_int_equal(see(f, &a, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    assert_int_equal(f->total, 1);
}

static void an_overwrite_gives_the_lock_to_another(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    acquire(f, &a, "1", 5000);
    assert_int_equal(write_value(f, &b, LOCK_REPLACE, "2", 5000), LOCK_HELD);
    INCIDENTS(f, INCIDENT_OVERWRITE, 1);
    assert_int_equal(see(f, &b, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    assert_int_equal(see(f, &a, LOCK_RELEASE, EFFECT_ABSENT), LOCK_FREE);
    assert_int_equal(f->counts[INCIDENT_LATE_RELEASE], 1);
    assert_int_equal(f->total, 2);
}

static enum lock_outcome swap(struct fixture *f, struct lock_session *s, const char *old, const char *value) {
    struct lock_event sight = sight_of(f, s, LOCK_SWAP, EFFECT_DONE);
    sight.pttl_ms = -1;
    sight.value = value;
    sight.value_len = strlen(value);
    sight.old = old;
    sight.old_len = old ? strlen(old) : 0;
    return engine_observe(f->engine, &sight, f->now_ms);
}

static void a_takeover_of_what_was_read_is_right(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    f->rule.lease_ms = 0;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    open_as(f, &c, 3, "c");
    acquire(f, &a, "100", -1);
    assert_int_equal(show(f, &b, "100"), LOCK_HELD);
    show(f, &c, "100");
    assert_int_equal(swap(f, &b, "100", "200"), LOCK_GRANTED);
    assert_int_equal(f->counts[INCIDENT_OVERWRITE], 0);
    assert_int_equal(swap(f, &c, "200", "300"), LOCK_HELD); /* the loser has written over the winner's deadline */
    assert_int_equal(f->counts[INCIDENT_OVERWRITE], 1);
    assert_int_equal(see(f, &b, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    assert_int_equal(f->counts[INCIDENT_FOREIGN_RELEASE], 0);
}

static void counters(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    f->rule.lease_ms = 0;
    assert_int_equal(count(f, &a, LOCK_COUNT_UP, 1), LOCK_GRANTED);
    assert_int_equal(count(f, &b, LOCK_COUNT_UP, 2), LOCK_COUNTED);
    assert_int_equal(count(f, &a, LOCK_COUNT_DOWN, 1), LOCK_RELEASED);
    assert_int_equal(count(f, &b, LOCK_COUNT_DOWN, 0), LOCK_FREE);
    assert_int_equal(count(f, &a, LOCK_COUNT_UP, 1), LOCK_GRANTED);
    f->total = 0;
    assert_int_equal(count(f, &b, LOCK_COUNT_DOWN, 0), LOCK_HELD);
    INCIDENTS(f, INCIDENT_FOREIGN_RELEASE, 1);
}

static void nobody_is_left_alone_with_a_lock_without_an_end(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "a");
    acquire(f, &a, "1", -1);
    INCIDENTS(f, INCIDENT_NO_EXPIRY, 1);
    assert_string_equal(f->action, "would be given a lease of 30000 ms, renewed while its owner is connected");
    f->rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(f->counts[INCIDENT_ABANDONED], 1);
    assert_string_equal(f->action, "would be released: its owner has disconnected");
}

/* Its DEL, long after, is no late one. */
static void a_one_shot_clients_lock_would_be_kept(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    f->rule.one_shot_ms = 3600000;
    f->rule.max_hold_ms = 0;
    acquire(f, &a, "1", -1);
    a.one_shot = true;
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(f->counts[INCIDENT_ONE_SHOT], 1);
    assert_non_null(strstr(f->action, "closed at once: would be kept for 1h,"));
    f->now_ms += 3500000;
    engine_tick(f->engine, 0, 1, f->now_ms);
    open_as(f, &b, 2, "a");
    assert_int_equal(see(f, &b, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    assert_int_equal(f->total, 2); /* and that the lock has no expiry */
}

/* On Redis the lock stays for ever; the memory of it ends when it would have ended. */
static void a_lock_without_an_end_is_forgotten_with_its_owner(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_stats stats;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    acquire(f, &a, "1", 5000);
    struct lock_event persist = sight_of(f, &a, LOCK_EXTEND, EFFECT_DONE);
    persist.pttl_ms = -1;
    engine_session_close(f->engine, &a, f->now_ms);
    engine_observe(f->engine, &persist, f->now_ms); /* it was on its way */
    f->now_ms += 29000;
    engine_tick(f->engine, 0, 1, f->now_ms);
    assert_int_equal(see(f, &b, LOCK_ACQUIRE, EFFECT_LOST), LOCK_HELD); /* its lease would not be over */
    f->now_ms += 1001;
    engine_tick(f->engine, 0, 1, f->now_ms);
    assert_int_equal(see(f, &b, LOCK_ACQUIRE, EFFECT_LOST), LOCK_FOREIGN);
    engine_stats(f->engine, &stats);
    assert_int_equal(stats.leases, 0);
    f->now_ms += 60000; /* its late release may come over another connection */
    engine_tick(f->engine, 0, 1, f->now_ms);
    engine_stats(f->engine, &stats);
    assert_int_equal(stats.claims, 0);
}

static void overruns_and_throttles(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "a");
    acquire(f, &a, "1", 1000);
    f->now_ms += 1001;
    engine_tick(f->engine, 0, 1, f->now_ms);
    assert_int_equal(f->total, 0); /* it never released one: a throttle */
    acquire(f, &a, "1", 1000);
    see(f, &a, LOCK_RELEASE, EFFECT_DONE);
    f->total = 0;
    acquire(f, &a, "1", 1000);
    f->now_ms += 1001;
    engine_tick(f->engine, 0, 1, f->now_ms);
    INCIDENTS(f, INCIDENT_OVERRUN, 1);
}

static void any_may_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    f->rule.owner = LOCK_OWNER_ANY;
    acquire(f, &a, "1", 5000);
    assert_int_equal(see(f, &b, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    assert_int_equal(f->total, 0);
}

/* ---- switching ------------------------------------------------------------------------------------ */

static void begin(struct fixture *f, struct lock_session *s, enum lock_verb verb, struct lock_plan *plan) {
    struct lock_key key = {.name = "lock:x", .len = 6};
    engine_begin(f->engine, s, verb, &key, &f->rule, 0, false, f->now_ms, plan);
}

static void finish(struct fixture *f, struct lock_session *s, struct lock_plan *plan, enum lock_outcome outcome,
                   uint64_t fence) {
    struct lock_result r = {.outcome = outcome, .fence = fence, .pttl_ms = -3};
    engine_finish(f->engine, s->id, plan, &r, "COMMAND", "10.1.1.1:5000", f->now_ms);
}

static void a_lock_made_under_audit_is_enrolled(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    acquire(f, &a, "mine", 5000);
    f->rule.mode = LOCK_MODE_ENFORCE;
    begin(f, &b, LOCK_ACQUIRE, &plan);
    finish(f, &b, &plan, LOCK_FOREIGN, 0); /* it has no guard record: that says nothing against it */
    begin(f, &b, LOCK_RELEASE, &plan);
    assert_string_equal(lock_right_text(plan.right), "claim"); /* nor does what it says of b's client */
    assert_false(plan.seen_known);
    finish(f, &b, &plan, LOCK_FOREIGN, 0);
    begin(f, &a, LOCK_EXTEND, &plan);
    assert_string_equal(lock_right_text(plan.right), "enrol");
    assert_int_equal(plan.seen_len, 4);
    assert_memory_equal(lock_plan_seen(&plan), "mine", 4);
    finish(f, &a, &plan, LOCK_DONE, 1700000000000000);
    begin(f, &a, LOCK_RELEASE, &plan);
    assert_string_equal(lock_right_text(plan.right), "claim"); /* it has one now */
    assert_int_not_equal(plan.claim, 0);
    finish(f, &a, &plan, LOCK_RELEASED, 1700000000000000);
    assert_int_equal(f->counts[INCIDENT_LATE_RELEASE], 0);
}

static void what_has_ended_is_not_enrolled(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan;
    open_as(f, &a, 1, "a");
    acquire(f, &a, "1", 1000);
    f->rule.mode = LOCK_MODE_ENFORCE;
    f->now_ms += 1001;
    begin(f, &a, LOCK_RELEASE, &plan);
    assert_string_equal(lock_right_text(plan.right), "claim");
    assert_false(plan.seen_known); /* what it wrote itself is no reading of the lock */
    finish(f, &a, &plan, LOCK_FOREIGN, 0);
    assert_int_equal(f->counts[INCIDENT_LATE_RELEASE], 1);
}

static void an_enforced_lease_is_released_under_audit(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    f->rule.renew = LOCK_RENEW_NEVER;
    open_as(f, &a, 1, "a");
    open_as(f, &b, 2, "b");
    begin(f, &a, LOCK_ACQUIRE, &plan);
    struct lock_result r = {.outcome = LOCK_GRANTED, .fence = 1700000000000000, .pttl_ms = 5000};
    engine_finish(f->engine, 1, &plan, &r, "SET", "", f->now_ms);
    assert_int_equal(see(f, &a, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    acquire(f, &b, "1", 5000);
    assert_int_equal(see(f, &b, LOCK_RELEASE, EFFECT_DONE), LOCK_RELEASED);
    assert_int_equal(f->total, 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(what_is_right_is_silent),
        TEST(releases_by_others_have_happened),
        TEST(a_release_after_the_end_is_late),
        TEST(a_late_release_of_an_unknown_holders_lock),
        TEST(a_release_on_its_way_at_the_end_is_not_late),
        TEST(answers_that_cross_accuse_nobody),
        TEST(a_release_that_crosses_an_overwriting_takes_that),
        TEST(what_is_not_known_is_not_reported),
        TEST(a_script_leaves_nothing_to_believe),
        TEST(extensions_by_others_move_the_end),
        TEST(an_overwrite_gives_the_lock_to_another),
        TEST(a_takeover_of_what_was_read_is_right),
        TEST(counters),
        TEST(nobody_is_left_alone_with_a_lock_without_an_end),
        TEST(a_one_shot_clients_lock_would_be_kept),
        TEST(a_lock_without_an_end_is_forgotten_with_its_owner),
        TEST(overruns_and_throttles),
        TEST(any_may_release),
        TEST(a_lock_made_under_audit_is_enrolled),
        TEST(what_has_ended_is_not_enrolled),
        TEST(an_enforced_lease_is_released_under_audit),
    };
    return cmocka_run_group_tests_name("audit", tests, NULL, NULL);
}
