/*
 * The lock engine, row by row: the claim that a command uses, what spends it, what is renewed and what is reported.
 * test_attribution has the rules of attribution one by one, the simulator (tests/sim) long interleavings.
 */
#include <inttypes.h>
#include <pthread.h>

#include "tests/unit/engine_rig.h"

/* ---- names ------------------------------------------------------------------------------------- */

static void outcomes_are_read_as_the_scripts_write_them(void **state) {
    static const char *const NAMES[] = {"granted", "done", "released", "adopted", "open",
                                        "counted", "held", "foreign",  "free",    "error"};
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        enum lock_outcome o;
        assert_true(lock_outcome_parse(NAMES[i], strlen(NAMES[i]), &o));
        assert_int_equal(o, i);
    }
    enum lock_outcome o;
    assert_false(lock_outcome_parse("grante", 6, &o));
    assert_false(lock_outcome_parse("", 0, &o));
    assert_false(lock_outcome_parse(NULL, 0, &o));
    assert_string_equal(lock_incident_name(INCIDENT_LATE_RELEASE), "late_release");
    for (int i = 0; i < INCIDENT_KINDS; i++)
        assert_non_null(lock_incident_name((enum lock_incident_kind)i));
}

/* Fences that the proxy makes grow whatever the clock does, and follow a proxy whose clock is ahead. */
static void fences_of_the_proxys_own(void **state) {
    struct fixture *f = *state;
    assert_int_equal(engine_new_fence(f->engine, 1000), 1000);
    assert_int_equal(engine_new_fence(f->engine, 1000), 1001);
    assert_int_equal(engine_new_fence(f->engine, 500), 1002);
    engine_fence_heard(f->engine, 9000, 2000);
    assert_int_equal(engine_new_fence(f->engine, 2100), 9100);
    engine_fence_heard(f->engine, 5000, 2200); /* it is not ahead of the fences */
    assert_int_equal(engine_new_fence(f->engine, 2300), 9300);
}

static void libraries_that_share_connections(void **state) {
    struct fixture *f = *state;
    static const char *const SHARE[] = {"Lettuce",     "lettuce(spring-data-redis_v3.2)",
                                        "vertx-redis", "SE.Redis",
                                        "NRedisStack", "ioredis",
                                        "iovalkey",    "node-redis",
                                        "valkey-go",   "rueidis",
                                        "redis-rs",    "fred",
                                        "GlidePy",     "GlideJava (x)"};
    /* Pools are none: what they do tells. */
    static const char *const DO_NOT[] = {"",
                                         "phpredis",
                                         "predis",
                                         "hiredis",
                                         "lett",
                                         "fred2",
                                         "(fred)",
                                         "redis-cli",
                                         "jedis",
                                         "redis-rb",
                                         "go-redis",
                                         "redis-py",
                                         "redis-py(celery_v5)",
                                         "go-redis(,go1.21)"};
    struct lock_session s;
    for (size_t i = 0; i < sizeof(SHARE) / sizeof(SHARE[0]); i++) {
        open_as(f, &s, i + 1, "app");
        assert_false(s.overlapped);
        assert_true(engine_session_library(f->engine, &s, SHARE[i], strlen(SHARE[i])));
        assert_true(s.overlapped);
        engine_session_close(f->engine, &s, f->now_ms);
    }
    open_as(f, &s, 100, "app");
    for (size_t i = 0; i < sizeof(DO_NOT) / sizeof(DO_NOT[0]); i++)
        assert_false(engine_session_library(f->engine, &s, DO_NOT[i], strlen(DO_NOT[i])));
    assert_false(s.overlapped);
    engine_session_close(f->engine, &s, f->now_ms);
}

static void tokens_are_unique_and_claims_name_them(void **state) {
    struct fixture *f = *state;
    struct lock_session s;
    struct lock_plan a, b;
    struct lock_result granted = result(LOCK_GRANTED, 7), unsent = result(LOCK_NOT_SENT, 0);
    open_as(f, &s, 1, "app");
    begin(f, &s, LOCK_ACQUIRE, "lock:a", &a);
    assert_true(strncmp(a.attempt_token, PROCESS, 36) == 0 && a.attempt_token[36] == ':');
    assert_string_equal(a.claim_token, "");
    finish(f, &s, &a, &granted);
    begin(f, &s, LOCK_RELEASE, "lock:a", &b);
    assert_string_equal(b.claim_token, a.attempt_token);
    assert_string_not_equal(b.attempt_token, a.attempt_token);
    finish(f, &s, &b, &unsent);
}

/* What is put off is as if it had not come: nothing is known of its session, and nothing waits for its answer. */
static void an_attempt_that_is_put_off_leaves_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session s, holder;
    struct lock_plan first, again;
    struct lock_result granted = result(LOCK_GRANTED, 9);
    open_as(f, &s, 1, "app");
    open_as(f, &holder, 2, "app");
    acquire(f, &holder, "lock:a", "1", 5000, false);
    begin(f, &s, LOCK_ACQUIRE, "lock:a", &first);
    assert_int_not_equal(s.shards, 0);
    engine_put_off(f->engine, &first);
    assert_int_equal(s.shards, 0);
    assert_int_equal(stats(f).lost, 0);
    begin(f, &s, LOCK_ACQUIRE, "lock:a", &again);
    assert_string_not_equal(again.attempt_token, first.attempt_token);
    finish(f, &s, &again, &granted);
    begin(f, &s, LOCK_ACQUIRE, "lock:a", &first);
    engine_put_off(f->engine, &first);
    assert_int_not_equal(s.shards, 0); /* it holds a lease */
    assert_int_equal(would_use(f, &s, LOCK_RELEASE, "lock:a"), again.attempt);
    engine_session_close(f->engine, &s, f->now_ms);
}

static void identities_have_names(void **state) {
    struct fixture *f = *state;
    struct lock_session s, t;
    size_t len;
    char longest[LOCK_IDENTITY_MAX + 50];
    memset(longest, 'x', sizeof(longest));
    open_as(f, &s, 1, "10.0.0.1 app worker");
    assert_string_equal(lock_client_name(s.client, &len), "10.0.0.1 app worker");
    assert_int_equal(len, 19);
    engine_session_open(f->engine, &t, 2, longest, sizeof(longest));
    lock_client_name(t.client, &len);
    assert_int_equal(len, LOCK_IDENTITY_MAX);
    engine_session_identify(f->engine, &t, "10.0.0.1 app worker", 19, f->now_ms);
    assert_ptr_equal(s.client, t.client);
}

/* ---- which claim: the table -------------------------------------------------------------------- */

static void connection_uses_its_own_claims_only(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    f->rule.owner = LOCK_OWNER_CONNECTION;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 5000, false);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:y"), 0);
    engine_session_close(f->engine, &a, f->now_ms);
    struct lock_session again;
    open_as(f, &again, 3, "app");
    assert_int_equal(would_use(f, &again, LOCK_RELEASE, "lock:x"), 0);
}

static void connection_drops_older_claims_on_a_new_acquisition(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    f->rule.owner = LOCK_OWNER_CONNECTION;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    uint64_t newer = acquire(f, &a, "lock:x", "1", 1000, false);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), newer);
    assert_int_equal(stats(f).claims, 1);
}

/* A1: one worker does one thing after another, so that what it acquires ends what it had. */
static void auto_prefers_own_claims_and_drops_older_ones(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    uint64_t others = acquire(f, &b, "lock:x", "1", 1000, false);
    pass(f, 2000);
    uint64_t second = acquire(f, &a, "lock:x", "1", 1000, false);
    assert_int_equal(stats(f).claims, 2);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence), second);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_FREE, 0), 0);
    assert_int_equal(run(f, &b, LOCK_RELEASE, "lock:x", LOCK_FREE, 0), others);
}

static void auto_keeps_two_sessions_of_one_machine_apart(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "10.0.0.1");
    open_as(f, &b, 2, "10.0.0.1");
    acquire(f, &a, "lock:x", "1", 30000, true);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
}

/* B2: a nested attempt, a throttle asked twice, a worker that forgot its release: nothing of that is a pool. */
static void a_session_that_lost_against_itself_proves_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, false);
    lose(f, &b, "lock:x"); /* two workers, nothing new */
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
    lose(f, &a, "lock:x");
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
    assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:x"), "suspect");
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
    /* Each uses its own, before and after. */
    pass(f, 31000);
    uint64_t its = acquire(f, &b, "lock:x", "1", 30000, false);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), its);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
}

/* By the rule each connection is one worker's, or another is to release: that worker may ask twice. */
static void rules_that_know_better_prove_nothing(void **state) {
    struct fixture *f = *state;
    static const enum lock_owner OWNERS[] = {LOCK_OWNER_CONNECTION, LOCK_OWNER_ANY, LOCK_OWNER_CLIENT};
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    for (size_t i = 0; i < sizeof(OWNERS) / sizeof(OWNERS[0]); i++) {
        f->rule.owner = OWNERS[i];
        acquire(f, &a, "lock:x", "1", 1000, false);
        run(f, &a, LOCK_ACQUIRE, "lock:x", LOCK_HELD, f->fence);
        f->rule.owner = LOCK_OWNER_AUTO;
        acquire(f, &a, "lock:y", "1", 1000, false);
        assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:y"), 0);
        pass(f, f->rule.claim_memory_ms + 2000);
    }
}

static void a_lost_release_proves_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    acquire(f, &a, "lock:x", "1", 30000, false);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_NOT_SENT, 0); /* one worker may take it for released, and try again */
    lose(f, &a, "lock:x");
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
}

static void a_lease_that_may_have_ended_proves_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    acquire(f, &a, "lock:x", "1", 1000, false);
    f->now_ms += 1000;
    lose(f, &a, "lock:x");
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
}

static void auto_uses_claims_of_a_multiplexing_library(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, plain;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    open_as(f, &plain, 3, "app");
    engine_session_library(f->engine, &a, "lettuce", 7);
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, false);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
    engine_session_library(f->engine, &b, "lettuce", 7);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), claim);
    assert_int_equal(would_use(f, &b, LOCK_EXTEND, "lock:x"), claim);
    assert_int_equal(would_use(f, &plain, LOCK_RELEASE, "lock:x"), 0);
    /* What may be meant to acquire is not taken for the holder's. */
    assert_int_equal(would_use(f, &b, LOCK_REPLACE, "lock:x"), 0);
    assert_int_equal(would_use(f, &b, LOCK_COUNT_UP, "lock:x"), 0);
    /* A loss over the session is no evidence about its releases. */
    lose(f, &b, "lock:x");
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), claim);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence);
    uint64_t next = acquire(f, &a, "lock:x", "1", 30000, false);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), next);
}

static void auto_uses_claims_of_sessions_that_closed(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c, stranger;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    open_as(f, &c, 3, "app");
    open_as(f, &stranger, 4, "else");
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), claim);
    assert_int_equal(would_use(f, &stranger, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(would_use(f, &c, LOCK_RELEASE, "lock:x"), claim);
    lose(f, &c, "lock:x");
    assert_int_equal(would_use(f, &c, LOCK_RELEASE, "lock:x"), 0);
}

/* Otherwise each later client would be told that the lock is its own. */
static void nobody_acquires_by_what_a_closed_session_left(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    open_as(f, &b, 2, "app");
    /* SET XX writes over what its sender holds. */
    assert_int_equal(would_use(f, &b, LOCK_REWRITE, "lock:x"), claim);
    assert_int_equal(would_use(f, &b, LOCK_REPLACE, "lock:x"), 0);
    assert_int_equal(would_use(f, &b, LOCK_SWAP, "lock:x"), 0);
    assert_int_equal(would_use(f, &b, LOCK_COUNT_UP, "lock:x"), 0);
    /* A session whose attempt failed holds nothing, even if Redis never saw the attempt. */
    assert_int_equal(would_use(f, &b, LOCK_REWRITE, "lock:x"), 0);
}

/* SET XX never acquires: where it was not answered, no claim is made for a release that is expected. */
static void a_rewrite_is_no_attempt(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    run(f, &a, LOCK_REWRITE, "lock:x", LOCK_UNKNOWN, 0);
    assert_int_equal(stats(f).claims, 0);
    assert_string_equal(would_right(f, &a, LOCK_RELEASE, "lock:x"), "believe");
    run(f, &a, LOCK_REPLACE, "lock:x", LOCK_UNKNOWN, 0);
    assert_int_equal(stats(f).claims, 1);
}

/* An answer may come behind its session's end. */
static void the_last_of_a_client_leaves_what_came_late_too(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan, push;
    open_colleagues(f, &a, &b);
    begin(f, &a, LOCK_ACQUIRE, "lock:x", &plan);
    begin(f, &a, LOCK_QUEUE_PUSH, "lock:q", &push);
    engine_session_close(f->engine, &a, f->now_ms);
    struct lock_result r = result(LOCK_GRANTED, ++f->fence);
    r.pttl_ms = 30000;
    r.leased = true;
    engine_finish(f->engine, 1, &plan, &r, "SETNX", "10.1.1.1:5000", f->now_ms);
    r = result(LOCK_DONE, 0);
    engine_finish(f->engine, 1, &push, &r, "RPUSH", "10.1.1.1:5000", f->now_ms);
    assert_int_equal(incidents(f, INCIDENT_ABANDONED), 0);
    engine_session_close(f->engine, &b, f->now_ms);
    assert_int_equal(incidents(f, INCIDENT_ABANDONED), 1);
    assert_int_equal(f->leave_count, 1);
    pass(f, 11000);
    assert_int_equal(f->renew_count, 0);
}

static void client_uses_all_claims_of_the_identity(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, stranger;
    open_colleagues(f, &a, &b);
    open_as(f, &stranger, 3, "else");
    uint64_t first = acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    uint64_t second = acquire(f, &b, "lock:x", "1", 1000, false);
    lose(f, &b, "lock:x"); /* no matter */
    assert_int_equal(would_use(f, &stranger, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(run(f, &b, LOCK_RELEASE, "lock:x", LOCK_HELD, f->fence), first);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence), second);
}

static void claims_move_with_the_identity(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_colleagues(f, &a, &b);
    open_as(f, &c, 3, "other");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, false);
    engine_session_identify(f->engine, &a, "other", 5, f->now_ms);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(would_use(f, &c, LOCK_RELEASE, "lock:x"), claim);
}

/* The last connection of an identity changes its name: no connection is left for the leases of earlier ones. */
static void a_new_name_leaves_what_was_shared(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    f->rule.owner = LOCK_OWNER_CLIENT;
    f->rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    acquire(f, &a, "lock:x", "1", 30000, true);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(f->release_count, 0); /* b is there for it */
    engine_session_identify(f->engine, &b, "other", 5, f->now_ms);
    assert_int_equal(f->release_count, 1);
    assert_int_equal(incidents(f, INCIDENT_ABANDONED), 1);
}

/* What an answer brings when its session has closed is left as what the session had before. */
static void what_comes_after_the_end_is_left_too(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    struct lock_result r = result(LOCK_GRANTED, 7);
    f->rule.owner = LOCK_OWNER_CLIENT;
    f->rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
    r.pttl_ms = 30000;
    r.leased = true;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    begin(f, &a, LOCK_ACQUIRE, "lock:x", &plan);
    engine_session_close(f->engine, &a, f->now_ms);
    finish(f, &a, &plan, &r);
    assert_int_equal(f->release_count, 0); /* b is there for it */
    engine_session_close(f->engine, &b, f->now_ms);
    assert_int_equal(f->release_count, 1);
}

static void nodes_that_come_after_the_end_are_dead(void **state) {
    static const enum lock_verb VERBS[] = {LOCK_QUEUE_PUSH, LOCK_QUEUE_SET};
    struct fixture *f = *state;
    for (unsigned i = 0; i < 2; i++) {
        struct lock_session a;
        struct lock_plan plan;
        struct lock_result r = result(LOCK_DONE, 0);
        open_as(f, &a, i + 1, "app");
        begin(f, &a, VERBS[i], "lock:q", &plan);
        engine_session_close(f->engine, &a, f->now_ms);
        assert_int_equal(f->leave_count, i);
        finish(f, &a, &plan, &r);
        assert_int_equal(f->leave_count, i + 1);
    }
}

/* A release in flight: the owner has left nothing behind. */
static void what_is_being_released_is_not_abandoned(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan release;
    f->rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 30000, true);
    begin(f, &a, LOCK_RELEASE, "lock:x", &release);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(incidents(f, INCIDENT_ABANDONED), 0);
    assert_int_equal(f->release_count, 0);
    struct lock_result r = result(LOCK_RELEASED, f->fence);
    finish(f, &a, &release, &r);
}

/* The owner wanted to be rid of the lock, whatever became of that. */
static void what_may_be_released_is_not_renewed(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 30000, true);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_UNKNOWN, 0);
    pass(f, 10000);
    pass(f, 10000);
    assert_int_equal(f->renew_count, 0);
}

/* A script of another client's that knew the value: the owner's release is still to come. */
static void a_unauthenticated_script_spends_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "else");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, false);
    run(f, &b, LOCK_SCRIPT, "lock:x", LOCK_RELEASED, f->fence);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
    assert_int_equal(stats(f).leases, 0);
}

/* What others of the client have in a queue is there for it while any of them is connected. */
static void a_pools_nodes_leave_with_its_last_connection(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_colleagues(f, &a, &b);
    run(f, &a, LOCK_QUEUE_PUSH, "lock:q", LOCK_DONE, 0);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(f->leave_count, 0);
    engine_session_close(f->engine, &b, f->now_ms);
    assert_int_equal(f->leave_count, 1);
    assert_string_equal(f->left, "app");
}

static void add_waiters(void *arg, const struct lock_contention *c) {
    *(unsigned *)arg += c->waiters;
}

/* Those that are fought over most are ranked, and no more of them than there is room for. */
static void fights_are_ranked(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_contention fights[4];
    char key[] = "lock:0";
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "else");
    for (int n = 0; n < 8; n++) {
        key[5] = (char)('0' + n);
        acquire(f, &a, key, "1", 30000, false);
        for (int k = 0; k < n * 5 % 8; k++) /* in another order */
            lose(f, &b, key);
    }
    assert_int_equal(engine_most_contended(f->engine, f->now_ms, fights, 3), 3);
    assert_int_equal(engine_most_contended(f->engine, f->now_ms, fights, 0), 0);
    for (unsigned n = 0; n < 3; n++) {
        assert_int_equal(fights[n].all, 7 - n);
        assert_int_equal(fights[n].name_len, 6);
        assert_int_equal((fights[n].name[5] - '0') * 5 % 8, 7 - n);
        assert_false(fights[n].cut);
    }
    assert_int_equal(engine_most_contended(f->engine, f->now_ms + 600000, fights, 4), 0);
}

/* A refusal that ran before the release, and is answered behind it. */
static void what_is_known_to_be_gone_does_not_come_back(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    struct lock_plan attempt;
    open_as(f, &a, 1, "else");
    open_as(f, &b, 2, "app");
    open_as(f, &c, 3, "third");
    engine_session_library(f->engine, &b, "lettuce", 7);
    acquire(f, &a, "lock:x", "1", 30000, false);
    lose(f, &c, "lock:x");
    begin(f, &b, LOCK_ACQUIRE, "lock:x", &attempt);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence);
    struct lock_result held = result(LOCK_HELD, f->fence);
    finish(f, &b, &attempt, &held);
    /* No session waits for that lease; the live lease, which this process does not know, may be its client's. */
    unsigned waiters = 0;
    engine_each_contention(f->engine, f->now_ms, add_waiters, &waiters);
    assert_int_equal(waiters, 0);
    assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:x"), "believe");
}

static void databases_and_keys_are_apart(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan;
    struct lock_result r = result(LOCK_NOT_SENT, 0);
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 30000, false);
    struct lock_key other = {.db = 1, .name = "lock:x", .len = 6};
    engine_begin(f->engine, &a, LOCK_RELEASE, &other, &f->rule, 0, false, f->now_ms, &plan);
    assert_int_equal(plan.claim, 0);
    finish(f, &a, &plan, &r);
    other = (struct lock_key){.db = 0, .name = "lock:x\0", .len = 7};
    engine_begin(f->engine, &a, LOCK_RELEASE, &other, &f->rule, 0, false, f->now_ms, &plan);
    assert_int_equal(plan.claim, 0);
    finish(f, &a, &plan, &r);
}

static void any_and_operator_have_their_own_rights(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "else");
    assert_string_equal(would_right(f, &a, LOCK_OPERATOR, "lock:x"), "operator");
    /* PROXY LOCK and RELEASE may name a key that no rule matches. */
    struct lock_plan plan;
    struct lock_key plain = key_of("plain");
    struct lock_result done = result(LOCK_RELEASED, 0);
    engine_begin(f->engine, &a, LOCK_INSPECT, &plain, NULL, 0, false, f->now_ms, &plan);
    finish(f, &a, &plan, &done);
    engine_begin(f->engine, &a, LOCK_OPERATOR, &plain, NULL, 0, false, f->now_ms, &plan);
    finish(f, &a, &plan, &done);
    incident(f, INCIDENT_OPERATOR_RELEASE);
    f->note_count = 0;
    f->rule.owner = LOCK_OWNER_ANY;
    acquire(f, &a, "lock:x", "1", 30000, false);
    assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:x"), "any");
    /* Whichever session released it, the lease's own claim is spent. */
    run(f, &b, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence);
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(f->note_count, 0);
}

/* ---- adoption ---------------------------------------------------------------------------------- */

static void adoption_is_for_those_without_a_claim(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    assert_string_equal(would_right(f, &a, LOCK_RELEASE, "lock:x"), "believe");
    assert_string_equal(would_right(f, &a, LOCK_EXTEND, "lock:x"), "later");
    assert_string_equal(would_right(f, &a, LOCK_REWRITE, "lock:x"), "believe");
    assert_string_equal(would_right(f, &a, LOCK_INSPECT, "lock:x"), "adopt");
    /* What may be an attempt to acquire is no sign of holding anything elsewhere. */
    assert_string_equal(would_right(f, &a, LOCK_ACQUIRE, "lock:x"), "claim");
    assert_string_equal(would_right(f, &a, LOCK_REPLACE, "lock:x"), "claim");
    assert_string_equal(would_right(f, &a, LOCK_SWAP, "lock:y"), "claim");
    assert_string_equal(would_right(f, &a, LOCK_COUNT_UP, "lock:z"), "claim");
    acquire(f, &a, "lock:x", "1", 1000, false);
    assert_string_equal(would_right(f, &a, LOCK_RELEASE, "lock:x"), "claim");
    f->rule.owner = LOCK_OWNER_CONNECTION;
    assert_string_equal(would_right(f, &a, LOCK_RELEASE, "lock:y"), "claim");
}

static void adoption_is_not_for_losers(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    open_as(f, &c, 3, "app");
    run(f, &a, LOCK_ACQUIRE, "lock:x", LOCK_HELD, 50);
    assert_string_equal(would_right(f, &a, LOCK_RELEASE, "lock:x"), "suspect");
    run(f, &b, LOCK_ACQUIRE, "lock:x", LOCK_FOREIGN, 0);
    assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:x"), "suspect");
    run(f, &c, LOCK_REPLACE, "lock:x", LOCK_HELD, 50);
    assert_string_equal(would_right(f, &c, LOCK_EXTEND, "lock:x"), "leased");
    /* A loss counts until the claim memory is over. */
    pass(f, f->rule.claim_memory_ms + 1);
    assert_string_equal(would_right(f, &a, LOCK_RELEASE, "lock:x"), "believe");
    /* A client known to share its connections: the loser was another worker. */
    f->rule.owner = LOCK_OWNER_CLIENT;
    run(f, &a, LOCK_ACQUIRE, "lock:x", LOCK_HELD, 50);
    assert_string_equal(would_right(f, &a, LOCK_RELEASE, "lock:x"), "believe");
}

/* ---- a fence that goes back ----------------------------------------------------------------------- */

static void a_grant_is_believed_over_what_was_known_before(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "other");
    f->fence = 5000;
    uint64_t lost = acquire(f, &a, "lock:x", "1", 30000, true);
    f->fence = 10; /* the guard record and the clock are others now */
    uint64_t claim = acquire(f, &b, "lock:x", "1", 30000, true);
    assert_int_equal(stats(f).leases, 1);
    pass(f, 10000);
    assert_int_equal(f->renew_count, 1);
    assert_int_equal(f->renewed.token, claim);
    assert_int_equal(incidents(f, INCIDENT_RENEWAL_LOST), 1);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), lost);
    assert_int_equal(run(f, &b, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence), claim);
    assert_int_equal(stats(f).leases, 0);
    acquire(f, &b, "lock:x", "1", 30000, true);
    assert_int_equal(stats(f).leases, 1);
}

static void a_grant_that_began_before_is_none_of_the_latest(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "other");
    begin(f, &a, LOCK_ACQUIRE, "lock:x", &plan);
    acquire(f, &b, "lock:x", "1", 30000, true); /* later in Redis, and answered before */
    struct lock_result granted = result(LOCK_GRANTED, f->fence - 1);
    granted.pttl_ms = 30000;
    finish(f, &a, &plan, &granted);
    assert_int_equal(stats(f).leases, 1);
    assert_int_equal(run(f, &b, LOCK_READ, "lock:x", LOCK_NOT_SENT, 0), 0);
    run(f, &b, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence);
    assert_int_equal(stats(f).leases, 0);
}

/* ---- which of several ---------------------------------------------------------------------------- */

static void the_one_shown_last_where_values_differ(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    f->rule.owner = LOCK_OWNER_CLIENT; /* else older ones are dropped */
    open_as(f, &a, 1, "app");
    uint64_t first = acquire(f, &a, "lock:x", "v1", 1000, false);
    pass(f, 2000);
    uint64_t second = acquire(f, &a, "lock:x", "v2", 1000, false);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first);
    show_value(f, &a, "lock:x", "v2", f->fence);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), second);
    show_value(f, &a, "lock:x", "v1", f->fence - 1);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first);
}

static void sightings_do_not_matter_among_constant_values(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    f->rule.owner = LOCK_OWNER_CLIENT; /* else older ones are dropped */
    open_as(f, &a, 1, "app");
    uint64_t first = acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    acquire(f, &a, "lock:x", "1", 1000, false);
    show_value(f, &a, "lock:x", "1", f->fence);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first);
}

static void a_client_sights_with_any_of_its_sessions(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    engine_session_overlapped(f->engine, &a); /* else older ones are dropped */
    uint64_t first = acquire(f, &a, "lock:x", "v1", 1000, false);
    pass(f, 2000);
    uint64_t second = acquire(f, &a, "lock:x", "v2", 1000, false);
    show_value(f, &b, "lock:x", "v2", f->fence); /* under auto another session's look says nothing */
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first);
    f->rule.owner = LOCK_OWNER_CLIENT;
    show_value(f, &b, "lock:x", "v2", f->fence);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), second);
}

static void values_shown_by_other_commands_make_sightings(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_key key = key_of("lock:x");
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "v1", 1000, false);
    pass(f, 2000);
    uint64_t second = acquire(f, &a, "lock:x", "v2", 1000, false);
    engine_saw(f->engine, &a, &key, &f->rule, "v2", 2, f->now_ms);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), second);
}

static void what_does_not_spend_uses_the_live_one(void **state) {
    struct fixture *f = *state;
    static const enum lock_verb VERBS[] = {LOCK_EXTEND,  LOCK_REPLACE,  LOCK_REWRITE, LOCK_SWAP,
                                           LOCK_CLOBBER, LOCK_COUNT_UP, LOCK_INSPECT};
    struct lock_session a;
    f->rule.owner = LOCK_OWNER_CLIENT; /* else older ones are dropped */
    open_as(f, &a, 1, "app");
    uint64_t first = acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    uint64_t second = acquire(f, &a, "lock:x", "1", 1000, false);
    for (size_t i = 0; i < sizeof(VERBS) / sizeof(VERBS[0]); i++)
        assert_int_equal(would_use(f, &a, VERBS[i], "lock:x"), second);
    pass(f, 2000);
    for (size_t i = 0; i < sizeof(VERBS) / sizeof(VERBS[0]); i++)
        assert_int_equal(would_use(f, &a, VERBS[i], "lock:x"), first);
}

/* ---- data ---------------------------------------------------------------------------------------- */

static bool is_free(struct fixture *f, struct lock_session *s, enum lock_verb verb, const char *key) {
    struct lock_plan plan;
    struct lock_result r = result(LOCK_NOT_SENT, 0);
    begin(f, s, verb, key, &plan);
    finish(f, s, &plan, &r);
    return plan.data_free;
}

/* Every session may write data, except one that has tried for it in vain or has a release to come; the write ends
 * both. */
static void data_is_everybodys(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "other");
    open_as(f, &c, 3, "third");
    assert_true(is_free(f, &a, LOCK_RELEASE, "lock:x"));
    run(f, &b, LOCK_ACQUIRE, "lock:x", LOCK_FOREIGN, 0);
    assert_false(is_free(f, &b, LOCK_RELEASE, "lock:x"));
    assert_false(is_free(f, &b, LOCK_EXTEND, "lock:x"));
    assert_true(is_free(f, &b, LOCK_PASS, "lock:x"));
    assert_true(is_free(f, &b, LOCK_CLOBBER, "lock:x"));
    assert_true(is_free(f, &a, LOCK_REPLACE, "lock:x"));
    assert_false(is_free(f, &a, LOCK_SWAP, "lock:x")); /* a session has tried for it */
    assert_true(is_free(f, &a, LOCK_SWAP, "lock:y"));
    run(f, &b, LOCK_PASS, "lock:x", LOCK_OPEN, 0);
    assert_true(is_free(f, &b, LOCK_RELEASE, "lock:x"));
    acquire(f, &c, "lock:z", "1", 1000, false);
    pass(f, 2000);
    assert_false(is_free(f, &c, LOCK_RELEASE, "lock:z"));
    assert_true(is_free(f, &a, LOCK_RELEASE, "lock:z"));
    run(f, &c, LOCK_PASS, "lock:z", LOCK_FREE, 0);
    assert_true(is_free(f, &c, LOCK_RELEASE, "lock:z"));
}

/* Under quorum the witnesses of a write that leaves the lease may know a later lease: the writer's is over. */
static void a_write_hears_that_its_lease_was_overtaken(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 5000, false);
    run(f, &a, LOCK_PASS, "lock:x", LOCK_DONE, f->fence);
    assert_int_equal(stats(f).leases, 1);
    run(f, &a, LOCK_PASS, "lock:x", LOCK_OVERTAKEN, f->fence);
    assert_int_equal(stats(f).leases, 0);
    assert_string_equal(incident(f, INCIDENT_OVERTAKEN)->client, "app");
    run(f, &a, LOCK_PASS, "lock:x", LOCK_OVERTAKEN, f->fence);
    assert_int_equal(incidents(f, INCIDENT_OVERTAKEN), 1);
}

/* ---- what the session has seen ------------------------------------------------------------------ */

static void the_plan_tells_what_was_read(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    struct lock_result unsent = result(LOCK_NOT_SENT, 0);
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    show_value(f, &a, "lock:x", "deadline", 77);
    begin(f, &b, LOCK_SWAP, "lock:x", &plan);
    assert_false(plan.seen_known);
    assert_int_equal(plan.read_fence, 0);
    finish(f, &b, &plan, &unsent);
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_true(plan.seen_known);
    assert_int_equal(plan.seen_len, 8);
    assert_memory_equal(lock_plan_seen(&plan), "deadline", 8);
    assert_int_equal(plan.read_fence, 77);
    finish(f, &a, &plan, &unsent);
    /* A foreign lock has no fence. */
    struct lock_result foreign = result(LOCK_FOREIGN, 0);
    foreign.value = "";
    begin(f, &a, LOCK_READ, "lock:x", &plan);
    finish(f, &a, &plan, &foreign);
    begin(f, &a, LOCK_RELEASE, "lock:x", &plan);
    assert_true(plan.seen_known && plan.seen_len == 0 && plan.read_fence == 0);
    finish(f, &a, &plan, &unsent);
    /* A key that is not there shows nothing. */
    run(f, &a, LOCK_READ, "lock:x", LOCK_FREE, 0);
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_false(plan.seen_known);
    finish(f, &a, &plan, &unsent);
}

/* Workers read over one connection of a pool and swap over another. */
static void a_client_that_shares_swaps_what_any_of_it_read(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, other;
    struct lock_plan plan;
    struct lock_result unsent = result(LOCK_NOT_SENT, 0);
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    open_as(f, &other, 3, "else");
    f->rule.owner = LOCK_OWNER_CLIENT;
    show_value(f, &b, "lock:x", "old", 70);
    show_value(f, &a, "lock:x", "deadline", 77);
    show_value(f, &other, "lock:x", "newer", 80);
    begin(f, &b, LOCK_SWAP, "lock:x", &plan);
    assert_int_equal(plan.read_fence, 77);
    assert_int_equal(plan.seen_len, 8);
    finish(f, &b, &plan, &unsent);
    engine_session_close(f->engine, &a, f->now_ms);
    begin(f, &b, LOCK_SWAP, "lock:x", &plan);
    assert_int_equal(plan.read_fence, 70);
    finish(f, &b, &plan, &unsent);
    /* Under auto from the moment that it is known, or is said by the library's name. */
    f->rule.owner = LOCK_OWNER_AUTO;
    open_as(f, &a, 4, "app");
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_int_equal(plan.read_fence, 0);
    finish(f, &a, &plan, &unsent);
    engine_session_library(f->engine, &a, "lettuce", 7);
    engine_session_library(f->engine, &b, "lettuce", 7);
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_int_equal(plan.read_fence, 70);
    finish(f, &a, &plan, &unsent);
}

/* A script that found the lock unchanged is not newer than its owner's command, in either order of sending. */
static void a_script_that_changed_nothing_overtakes_nobody(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan let_go, script;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    acquire(f, &a, "lock:x", "1", 5000, false);
    begin(f, &a, LOCK_REPLACE, "lock:x", &let_go);
    begin(f, &b, LOCK_SCRIPT, "lock:x", &script);
    struct lock_result r = result(LOCK_HELD, f->fence);
    r.pttl_ms = 4990;
    finish(f, &b, &script, &r);
    r = result(LOCK_DONE, f->fence);
    r.pttl_ms = 1; /* SET XX PX 1: its owner has let it go */
    r.value = "1";
    r.value_len = 1;
    finish(f, &a, &let_go, &r);
    lose(f, &a, "lock:x"); /* within that millisecond: no proof that connections are shared */
    assert_int_equal(would_use(f, &b, LOCK_EXTEND, "lock:x"), 0);
}

/* The application's script has released the lock, and others came before the step behind it looked. */
static void a_release_by_script_is_noticed_behind_others(void **state) {
    struct fixture *f = *state;
    static const enum lock_outcome SEEN[] = {LOCK_HELD, LOCK_GRANTED, LOCK_FREE, LOCK_FOREIGN};
    for (size_t i = 0; i < 2 * sizeof(SEEN) / sizeof(SEEN[0]); i++) {
        struct lock_session a, b;
        struct lock_plan script;
        bool told_before = i % 2;
        open_as(f, &a, 10 * i + 1, "app");
        open_as(f, &b, 10 * i + 2, "else");
        acquire(f, &a, "lock:x", "1", 30000, true);
        begin(f, &a, LOCK_SCRIPT, "lock:x", &script);
        struct lock_result r = result(SEEN[i / 2], 0);
        if (told_before || r.outcome == LOCK_HELD)
            acquire(f, &b, "lock:x", "1", 30000, false);
        if (told_before && r.outcome != LOCK_HELD)
            run(f, &b, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence);
        if (r.outcome == LOCK_HELD)
            r.fence = f->fence;
        if (r.outcome == LOCK_GRANTED) {
            r.fence = ++f->fence;
            r.pttl_ms = 30000;
        }
        finish(f, &a, &script, &r);
        /* The older claim is gone: what comes next is the newer one's. */
        uint64_t next = r.outcome == LOCK_GRANTED ? script.attempt : acquire(f, &a, "lock:x", "1", 30000, false);
        assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), next);
        assert_int_equal(incidents(f, INCIDENT_RENEWAL_LOST), 0);
        engine_session_close(f->engine, &a, f->now_ms);
        engine_session_close(f->engine, &b, f->now_ms);
        pass(f, 30000 * 21); /* what is left is remembered for twenty leases */
        assert_int_equal(stats(f).claims, 0);
    }
}

/* What has ended by its clock, or over shared connections may be a colleague's, was not ended by the script. */
static void a_script_behind_the_end_of_a_lease_released_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan script;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "else");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 1000, false);
    begin(f, &a, LOCK_SCRIPT, "lock:x", &script);
    pass(f, 1000);
    acquire(f, &b, "lock:x", "1", 30000, false);
    struct lock_result r = result(LOCK_HELD, f->fence);
    finish(f, &a, &script, &r);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
    engine_session_library(f->engine, &a, "lettuce", 7);
    acquire(f, &a, "lock:y", "1", 30000, false);
    begin(f, &a, LOCK_SCRIPT, "lock:y", &script);
    acquire(f, &b, "lock:y", "1", 30000, false);
    r = result(LOCK_HELD, f->fence);
    finish(f, &a, &script, &r);
    assert_int_equal(incidents(f, INCIDENT_LATE_RELEASE), 0);
    assert_int_equal(stats(f).released, 0);
    /* A lease that made way before its end, by whatever hand, has no release to come over shared connections. */
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:y"), 0);
    /* It is not known whether it ran. */
    struct lock_session c;
    open_as(f, &c, 3, "third");
    claim = acquire(f, &c, "lock:z", "1", 30000, false);
    begin(f, &c, LOCK_SCRIPT, "lock:z", &script);
    acquire(f, &b, "lock:z", "1", 30000, false);
    r = result(LOCK_UNKNOWN, 0);
    finish(f, &c, &script, &r);
    assert_int_equal(would_use(f, &c, LOCK_RELEASE, "lock:z"), claim);
}

/* The script has released a lease that a renewal had prolonged; the renewal's reply is still in flight. */
static void a_release_by_script_is_noticed_beside_a_renewal(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan script;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "else");
    acquire(f, &a, "lock:x", "1", 30000, true);
    pass(f, 10000);
    assert_int_equal(f->renew_count, 1);
    begin(f, &a, LOCK_SCRIPT, "lock:x", &script);
    pass(f, 20000); /* the end that is known */
    acquire(f, &b, "lock:x", "1", 30000, false);
    struct lock_result r = result(LOCK_HELD, f->fence);
    finish(f, &a, &script, &r);
    assert_int_equal(incidents(f, INCIDENT_RENEWAL_LOST), 0);
    run(f, &b, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence);
    uint64_t next = acquire(f, &a, "lock:x", "1", 30000, false);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), next);
}

/* The script is given the newest value that was read; a session that read an older one must not take the reply for
 * success. */
static void a_refused_swap_misleads_whoever_read_its_answer(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, other;
    struct lock_plan plan;
    struct lock_result held = result(LOCK_HELD, 90);
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    open_as(f, &other, 3, "else");
    f->rule.owner = LOCK_OWNER_CLIENT;
    show_value(f, &a, "lock:x", "1", 70);
    show_value(f, &b, "lock:x", "2", 80);
    show_value(f, &other, "lock:x", "3", 85);
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_int_equal(plan.read_fence, 80);
    assert_true(engine_swap_misleads(f->engine, a.id, &plan, "1", 1));
    assert_true(engine_swap_misleads(f->engine, a.id, &plan, "2", 1));
    assert_false(engine_swap_misleads(f->engine, a.id, &plan, "3", 1));
    assert_false(engine_swap_misleads(f->engine, a.id, &plan, "", 0));
    finish(f, &a, &plan, &held);
    f->rule.owner = LOCK_OWNER_CONNECTION;
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_true(engine_swap_misleads(f->engine, a.id, &plan, "1", 1));
    assert_false(engine_swap_misleads(f->engine, a.id, &plan, "2", 1));
    finish(f, &a, &plan, &held);
    begin(f, &a, LOCK_SWAP, "lock:never", &plan);
    assert_false(engine_swap_misleads(f->engine, a.id, &plan, "1", 1));
    finish(f, &a, &plan, &held);
}

static void long_values_are_not_remembered(void **state) {
    struct fixture *f = *state;
    static char value[LOCK_SEEN_MAX + 2];
    struct lock_session a;
    struct lock_plan plan;
    struct lock_result unsent = result(LOCK_NOT_SENT, 0);
    open_as(f, &a, 1, "app");
    memset(value, 'v', LOCK_SEEN_MAX);
    show_value(f, &a, "lock:x", value, 5);
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_true(plan.seen_known && plan.seen_len == LOCK_SEEN_MAX);
    finish(f, &a, &plan, &unsent);
    value[LOCK_SEEN_MAX] = 'v';
    show_value(f, &a, "lock:x", value, 6);
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_false(plan.seen_known);
    assert_int_equal(plan.read_fence, 6);
    finish(f, &a, &plan, &unsent);
}

static void what_a_session_saw_is_bounded(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    char key[32];
    open_as(f, &a, 1, "app");
    for (int i = 0; i < 20000; i++) {
        snprintf(key, sizeof(key), "lock:%d", i);
        show_value(f, &a, key, "v", 5);
    }
    assert_true(stats(f).keys <= 1024);
    pass(f, f->rule.claim_memory_ms + 1);
    for (int i = 0; i < 1024 && stats(f).keys > 0; i++)
        pass(f, 1); /* a tick forgets some */
    assert_int_equal(stats(f).keys, 0);
}

/* ---- spending ----------------------------------------------------------------------------------- */

static void a_release_is_spent_whatever_redis_says(void **state) {
    struct fixture *f = *state;
    static const enum lock_outcome OUTCOMES[] = {LOCK_RELEASED, LOCK_HELD, LOCK_FOREIGN, LOCK_FREE, LOCK_OPEN};
    struct lock_session a;
    open_as(f, &a, 1, "app");
    for (size_t i = 0; i < sizeof(OUTCOMES) / sizeof(OUTCOMES[0]); i++) {
        uint64_t claim = acquire(f, &a, "lock:x", "1", 1000, false);
        assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", OUTCOMES[i], f->fence), claim);
        assert_int_equal(stats(f).claims, 0);
    }
}

static void a_release_that_did_nothing_is_not(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 1000, false);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_NOT_SENT, 0);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_ERROR, 0);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence), claim);
}

static void releases_in_flight_use_different_claims(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan first, second, third;
    open_colleagues(f, &a, &b);
    uint64_t older = acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    uint64_t newer = acquire(f, &b, "lock:x", "1", 1000, false);
    begin(f, &a, LOCK_RELEASE, "lock:x", &first);
    begin(f, &b, LOCK_RELEASE, "lock:x", &second);
    assert_int_equal(first.claim, older);
    assert_int_equal(second.claim, newer);
    /* Another command's answer does not put a claim back that is reserved. */
    lose(f, &a, "lock:x");
    begin(f, &a, LOCK_RELEASE, "lock:x", &third);
    assert_int_equal(third.claim, 0);
    struct lock_result held = result(LOCK_HELD, f->fence), released = result(LOCK_RELEASED, f->fence);
    finish(f, &a, &first, &held);
    finish(f, &b, &second, &released);
    struct lock_result none = result(LOCK_FREE, 0);
    finish(f, &a, &third, &none);
    assert_int_equal(stats(f).claims, 0);
}

/* An EXPIRE of a colleague was sent before the release, and is answered while the release is under way. */
static void what_an_extension_finds_leaves_a_release_under_way(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan expire, release, again;
    open_colleagues(f, &a, &b);
    uint64_t claim = acquire(f, &a, "lock:x", "1", 10000, false);
    begin(f, &b, LOCK_EXTEND, "lock:x", &expire);
    begin(f, &a, LOCK_RELEASE, "lock:x", &release);
    assert_int_equal(release.claim, claim);
    struct lock_result done = result(LOCK_DONE, f->fence), released = result(LOCK_RELEASED, f->fence),
                       none = result(LOCK_FREE, 0);
    done.pttl_ms = 20000;
    finish(f, &b, &expire, &done);
    begin(f, &b, LOCK_RELEASE, "lock:x", &again);
    assert_int_equal(again.claim, 0);
    finish(f, &a, &release, &released);
    finish(f, &b, &again, &none);
    assert_int_equal(stats(f).claims, 0);
}

static void a_lost_release_may_be_repeated(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 10000, false);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_UNKNOWN, 0);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_UNKNOWN, 0), claim);
    /* A doubtful claim is used only where there is nothing better. */
    uint64_t newer = acquire(f, &a, "lock:x", "1", 10000, false);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence), newer);
}

static void an_acquisition_that_got_lost_may_be_released(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan;
    struct lock_result unknown = result(LOCK_UNKNOWN, 0);
    open_as(f, &a, 1, "app");
    begin(f, &a, LOCK_ACQUIRE, "lock:x", &plan);
    finish(f, &a, &plan, &unknown);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), plan.attempt);
    pass(f, 60000);
    assert_int_equal(f->renew_count, 0);
    assert_int_equal(f->note_count, 0);
}

static void counters_are_released_by_counting_down(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 10000, false);
    assert_int_equal(run(f, &a, LOCK_COUNT_DOWN, "lock:x", LOCK_DONE, f->fence), claim);
    assert_int_equal(run(f, &a, LOCK_COUNT_DOWN, "lock:x", LOCK_RELEASED, f->fence), claim);
    assert_int_equal(stats(f).claims, 0);
    acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    run(f, &a, LOCK_COUNT_DOWN, "lock:x", LOCK_HELD, f->fence + 1);
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(incidents(f, INCIDENT_LATE_RELEASE), 1);
}

static void extensions_and_clobbers_spend_where_they_released(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 10000, false);
    run(f, &a, LOCK_EXTEND, "lock:x", LOCK_HELD, f->fence);
    run(f, &a, LOCK_CLOBBER, "lock:x", LOCK_HELD, f->fence);
    assert_int_equal(stats(f).claims, 1);
    run(f, &a, LOCK_EXTEND, "lock:x", LOCK_RELEASED, f->fence);
    assert_int_equal(stats(f).claims, 0);
    acquire(f, &a, "lock:x", "1", 10000, false);
    run(f, &a, LOCK_CLOBBER, "lock:x", LOCK_RELEASED, 0);
    assert_int_equal(stats(f).claims, 0);
}

static void a_takeover_ends_the_other_lease(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "else");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, true);
    assert_int_equal(stats(f).leases, 1);
    struct lock_result r = result(LOCK_GRANTED, ++f->fence);
    r.pttl_ms = 30000;
    begin(f, &b, LOCK_SWAP, "lock:x", &plan);
    finish(f, &b, &plan, &r);
    assert_int_equal(stats(f).leases, 1);
    assert_int_equal(stats(f).claims, 2);
    pass(f, 20000);
    assert_int_equal(f->renew_count, 0); /* and its renewal with it */
    assert_int_equal(incidents(f, INCIDENT_RENEWAL_LOST), 0);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
}

static void answers_may_overtake_each_other(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan first, second, third;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    /* The lock was free when b looked, and a's grant, which came later, is answered first. */
    begin(f, &b, LOCK_EXTEND, "lock:x", &third);
    acquire(f, &a, "lock:x", "1", 30000, false);
    struct lock_result none = result(LOCK_FREE, 0);
    finish(f, &b, &third, &none);
    assert_int_equal(stats(f).leases, 1);
    run(f, &b, LOCK_EXTEND, "lock:x", LOCK_FREE, 0);
    assert_int_equal(stats(f).leases, 0);
    /* Two grants, answered the other way round: the greater fence is the live one. */
    begin(f, &a, LOCK_ACQUIRE, "lock:y", &first);
    begin(f, &b, LOCK_ACQUIRE, "lock:y", &second);
    struct lock_result early = result(LOCK_GRANTED, 5001), late = result(LOCK_GRANTED, 5002);
    early.pttl_ms = late.pttl_ms = 1000;
    finish(f, &b, &second, &late);
    finish(f, &a, &first, &early);
    assert_int_equal(stats(f).leases, 1);
    assert_int_equal(stats(f).claims, 3);
}

/* Of two crossing replies it is not known which was first in Redis: the holder's lease must not count as over too
 * early. */
static void of_answers_that_cross_the_later_end_counts(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan first, second;
    f->rule.owner = LOCK_OWNER_CLIENT;
    f->rule.renew = LOCK_RENEW_NEVER;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    acquire(f, &a, "lock:x", "1", 10000, false);
    struct lock_result longer = result(LOCK_DONE, f->fence), shorter = longer;
    longer.pttl_ms = 30000;
    shorter.pttl_ms = 5000;
    begin(f, &a, LOCK_EXTEND, "lock:x", &first);
    begin(f, &b, LOCK_EXTEND, "lock:x", &second);
    finish(f, &b, &second, &longer);
    finish(f, &a, &first, &shorter);
    pass(f, 20000);
    assert_int_equal(stats(f).leases, 1);
    begin(f, &a, LOCK_EXTEND, "lock:x", &first); /* after both */
    finish(f, &a, &first, &shorter);
    pass(f, 5000);
    assert_int_equal(stats(f).leases, 0);
}

/* The replies of one transaction are in order among themselves only. */
static void of_a_transaction_and_a_colleague_the_later_end_counts(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan first, second, other;
    const struct lock_plan *acquirer = NULL;
    f->rule.renew = LOCK_RENEW_NEVER;
    open_colleagues(f, &a, &b);
    acquire(f, &a, "lock:x", "1", 10000, false);
    struct lock_result longer = result(LOCK_DONE, f->fence), shorter = longer;
    longer.pttl_ms = 30000;
    shorter.pttl_ms = 5000;
    queue(f, &a, LOCK_EXTEND, "lock:x", &first);
    queue(f, &a, LOCK_EXTEND, "lock:x", &second);
    assert_true(engine_looks_back(&second, &first, false, &acquirer));
    begin(f, &b, LOCK_EXTEND, "lock:x", &other);
    finish(f, &b, &other, &longer);
    finish(f, &a, &first, &shorter);
    finish(f, &a, &second, &shorter);
    pass(f, 20000);
    assert_int_equal(stats(f).leases, 1);
}

/* A colleague's GETEX has found the lease as it was, while its holder was setting an expiry of its own. */
static void what_a_colleague_found_unchanged_crosses_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan found, set;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    acquire(f, &a, "lock:x", "1", 30000, true);
    begin(f, &b, LOCK_EXTEND, "lock:x", &found);
    begin(f, &a, LOCK_EXTEND, "lock:x", &set);
    struct lock_result r = result(LOCK_ADOPTED, f->fence);
    r.pttl_ms = 30000;
    r.leased = true;
    finish(f, &b, &found, &r);
    r = result(LOCK_DONE, f->fence);
    r.pttl_ms = 5000;
    finish(f, &a, &set, &r);
    pass(f, 5000);
    assert_int_equal(stats(f).leases, 0);
    pass(f, 10000);
    assert_int_equal(f->renew_count, 0);
}

/* What a session has just read counts more than the lease that another of its client read before. */
static void the_last_reading_is_swapped(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    struct lock_key key = key_of("lock:x");
    open_colleagues(f, &a, &b);
    show_value(f, &b, "lock:x", "old", 7);
    engine_saw(f->engine, &a, &key, &f->rule, "new", 3, f->now_ms);
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_int_equal(plan.read_fence, 0);
    assert_int_equal(plan.seen_len, 3);
    assert_memory_equal(lock_plan_seen(&plan), "new", 3);
    struct lock_result r = result(LOCK_NOT_SENT, 0);
    finish(f, &a, &plan, &r);
    /* Of the same value the one that says which lease it was. */
    engine_saw(f->engine, &a, &key, &f->rule, "old", 3, f->now_ms);
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_int_equal(plan.read_fence, 7);
    finish(f, &a, &plan, &r);
}

/* A transaction's answers come together, in the order in which its commands ran: none of them crosses another. */
static void the_last_word_of_a_transaction_on_an_expiry_counts(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan set, expire, again;
    const struct lock_plan *acquirer = NULL;
    open_as(f, &a, 1, "app");
    queue(f, &a, LOCK_ACQUIRE, "lock:x", &set);
    queue(f, &a, LOCK_EXTEND, "lock:x", &expire);
    assert_true(engine_looks_back(&expire, &set, false, &acquirer));
    engine_follow(f->engine, &expire, acquirer, f->now_ms);
    queue(f, &a, LOCK_EXTEND, "lock:x", &again);
    acquirer = NULL;
    assert_true(engine_looks_back(&again, &expire, false, &acquirer));
    assert_true(engine_looks_back(&again, &set, false, &acquirer));
    engine_follow(f->engine, &again, acquirer, f->now_ms);
    struct lock_result granted = result(LOCK_GRANTED, ++f->fence), done = result(LOCK_DONE, f->fence);
    granted.pttl_ms = 30000;
    granted.leased = true;
    finish(f, &a, &set, &granted);
    done.pttl_ms = 8000;
    finish(f, &a, &expire, &done);
    done.pttl_ms = 5000;
    finish(f, &a, &again, &done);
    pass(f, 4000);
    assert_int_equal(stats(f).leases, 1);
    pass(f, 1000);
    assert_int_equal(stats(f).leases, 0);
    pass(f, 20000);
    assert_int_equal(f->renew_count, 0);
}

static void the_last_of_many_readings_is_swapped(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    struct lock_plan plan;
    struct lock_key key = key_of("lock:x");
    struct lock_result r = result(LOCK_NOT_SENT, 0);
    open_colleagues(f, &a, &b);
    open_as(f, &c, 3, "app");
    engine_saw(f->engine, &a, &key, &f->rule, "new", 3, f->now_ms);
    engine_saw(f->engine, &b, &key, &f->rule, "other", 5, f->now_ms);
    engine_saw(f->engine, &c, &key, &f->rule, "new", 3, f->now_ms); /* what a has read before b */
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_int_equal(plan.seen_len, 3);
    assert_memory_equal(lock_plan_seen(&plan), "new", 3);
    finish(f, &a, &plan, &r);
    show_value(f, &a, "lock:x", "other", 9); /* the lease goes on with another value */
    show_value(f, &b, "lock:x", "held", 9);
    engine_saw(f->engine, &c, &key, &f->rule, "held", 4, f->now_ms);
    begin(f, &a, LOCK_SWAP, "lock:x", &plan);
    assert_int_equal(plan.read_fence, 9);
    finish(f, &a, &plan, &r);
}

static void a_transaction_speaks_for_what_it_acquires(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan first, second, third;
    f->rule.owner = LOCK_OWNER_CLIENT; /* else older ones are dropped */
    open_as(f, &a, 1, "app");
    uint64_t old = acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    queue(f, &a, LOCK_ACQUIRE, "lock:x", &first);
    queue(f, &a, LOCK_EXTEND, "lock:x", &second);
    engine_follow(f->engine, &second, &first, f->now_ms);
    queue(f, &a, LOCK_RELEASE, "lock:x", &third);
    assert_int_equal(third.claim, old);
    engine_follow(f->engine, &third, &first, f->now_ms);
    assert_int_equal(second.claim, first.attempt);
    assert_string_equal(third.claim_token, first.attempt_token);
    struct lock_result granted = result(LOCK_GRANTED, ++f->fence), done = result(LOCK_DONE, f->fence),
                       released = result(LOCK_RELEASED, f->fence);
    granted.pttl_ms = done.pttl_ms = 5000;
    finish(f, &a, &first, &granted);
    finish(f, &a, &second, &done);
    finish(f, &a, &third, &released);
    /* The older claim was given back, and goes in its time. */
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), old);
    pass(f, 120000);
    assert_int_equal(stats(f).claims, 0);
}

/* If SETNX has lost within the transaction, the commands behind it must not take the lock of another session for their
 * own. */
static void a_transaction_adopts_nothing_behind_its_attempt(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan set, expire;
    open_as(f, &a, 1, "app");
    queue(f, &a, LOCK_ACQUIRE, "lock:x", &set);
    queue(f, &a, LOCK_EXTEND, "lock:x", &expire);
    assert_int_not_equal(expire.right, RIGHT_CLAIM);
    engine_follow(f->engine, &expire, &set, f->now_ms);
    assert_int_equal(expire.right, RIGHT_CLAIM);
    struct lock_result held = result(LOCK_HELD, 7);
    finish(f, &a, &set, &held);
    finish(f, &a, &expire, &held);
}

/* Nothing is released before EXEC, and perhaps nothing then: a colleague's release uses the same claim, not the
 * holder's behind it. */
static void a_queued_release_sets_nothing_aside(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan queued, sent;
    struct lock_result not_sent = result(LOCK_NOT_SENT, 0), released = result(LOCK_RELEASED, 0);
    open_colleagues(f, &a, &b);
    uint64_t old = acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    uint64_t held = acquire(f, &b, "lock:x", "1", 60000, false);
    queue(f, &b, LOCK_RELEASE, "lock:x", &queued);
    assert_int_equal(queued.claim, old);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), old);
    engine_sent(f->engine, &queued);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), held);
    finish(f, &b, &queued, &not_sent);
    /* What is discarded leaves alone what another has in flight. */
    queue(f, &b, LOCK_RELEASE, "lock:x", &queued);
    begin(f, &a, LOCK_RELEASE, "lock:x", &sent);
    assert_int_equal(sent.claim, old);
    finish(f, &b, &queued, &not_sent);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), held);
    finish(f, &a, &sent, &not_sent);
    /* A colleague has used the claim up meanwhile: it was a late release, if there is another holder. */
    queue(f, &b, LOCK_RELEASE, "lock:x", &queued);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_HELD, f->fence), old);
    engine_sent(f->engine, &queued);
    struct lock_result refused = result(LOCK_HELD, f->fence);
    finish(f, &b, &queued, &refused);
    assert_int_equal(stats(f).incidents[INCIDENT_LATE_RELEASE], 2);
    released.fence = f->fence;
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), held);
    begin(f, &b, LOCK_RELEASE, "lock:x", &sent);
    finish(f, &b, &sent, &released);
    assert_int_equal(stats(f).claims, 0);
}

static void a_queued_release_finds_all_claims_used_up(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan queued;
    open_colleagues(f, &a, &b);
    uint64_t old = acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    uint64_t held = acquire(f, &b, "lock:x", "1", 60000, false);
    queue(f, &b, LOCK_RELEASE, "lock:x", &queued);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_HELD, f->fence), old);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence), held);
    assert_int_equal(stats(f).keys, 0);
    engine_sent(f->engine, &queued);
    struct lock_result refused = result(LOCK_HELD, ++f->fence); /* another client's */
    finish(f, &b, &queued, &refused);
    assert_int_equal(stats(f).incidents[INCIDENT_LATE_RELEASE], 2);
    assert_int_equal(stats(f).incidents[INCIDENT_AMBIGUOUS], 1);
}

/* ---- incidents ---------------------------------------------------------------------------------- */

static void refused_releases_are_reported(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "else");
    acquire(f, &a, "lock:x", "secret-value", 1000, false);
    struct lock_result held = result(LOCK_HELD, f->fence);
    held.holder = "app and more";
    held.holder_len = 3;
    begin(f, &b, LOCK_RELEASE, "lock:x", &plan);
    engine_finish(f->engine, b.id, &plan, &held, "UNLINK", "10.9.9.9:1 worker-7", f->now_ms);
    const struct note *n = incident(f, INCIDENT_FOREIGN_RELEASE);
    assert_string_equal(n->key, "lock:x");
    assert_string_equal(n->client, "10.9.9.9:1 worker-7");
    assert_string_equal(n->holder, "app");
    assert_string_equal(n->command, "UNLINK");
    assert_null(strstr(n->action, "secret-value"));
    assert_null(strstr(n->action, PROCESS));
    pass(f, 2000);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_HELD, f->fence + 1);
    incident(f, INCIDENT_LATE_RELEASE);
    assert_int_equal(incidents(f, INCIDENT_AMBIGUOUS), 0);
    /* Nothing is wrong with releasing what is not there. */
    unsigned before = f->note_count;
    run(f, &b, LOCK_RELEASE, "lock:x", LOCK_FREE, 0);
    assert_int_equal(f->note_count, before);
    assert_int_equal(stats(f).refused_releases, 2);
}

static void ambiguity_is_reported_with_its_way_out(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    f->rule.owner = LOCK_OWNER_CLIENT; /* else older ones are dropped */
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 1000, false);
    pass(f, 2000);
    acquire(f, &a, "lock:x", "1", 1000, false);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_HELD, f->fence);
    assert_non_null(strstr(incident(f, INCIDENT_AMBIGUOUS)->action, "owner connection"));
}

static void other_refusals_are_reported(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "else");
    acquire(f, &a, "lock:x", "1", 1000, false);
    run(f, &b, LOCK_EXTEND, "lock:x", LOCK_HELD, f->fence);
    run(f, &b, LOCK_REPLACE, "lock:x", LOCK_HELD, f->fence);
    run(f, &b, LOCK_SWAP, "lock:x", LOCK_HELD, f->fence);
    run(f, &b, LOCK_CLOBBER, "lock:x", LOCK_FOREIGN, 0);
    run(f, &b, LOCK_ACQUIRE, "lock:x", LOCK_HELD, f->fence);
    assert_int_equal(incidents(f, INCIDENT_FOREIGN_EXTEND), 1);
    assert_int_equal(incidents(f, INCIDENT_OVERWRITE), 3);
    assert_int_equal(f->note_count, 4);
    assert_int_equal(stats(f).refused_extends, 1);
    assert_int_equal(stats(f).lost, 1);
    assert_int_equal(stats(f).incidents[INCIDENT_OVERWRITE], 3);
}

static void acquiring_without_an_expiry_is_reported(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 30000, true);
    assert_string_equal(incident(f, INCIDENT_NO_EXPIRY)->action,
                        "lease of 30000 ms given, renewed while its owner is connected");
    f->rule.lease_ms = 0;
    acquire(f, &a, "lock:y", "1", -1, false);
    assert_non_null(strstr(incident(f, INCIDENT_NO_EXPIRY)->action, "without an expiry"));
    acquire(f, &a, "lock:z", "1", 5000, false);
    assert_int_equal(incidents(f, INCIDENT_NO_EXPIRY), 2);
}

static void an_overrun_is_reported_for_those_who_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 5000, false);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence);
    acquire(f, &a, "lock:x", "1", 5000, false);
    pass(f, 4999);
    assert_int_equal(f->note_count, 0);
    pass(f, 1);
    assert_string_equal(incident(f, INCIDENT_OVERRUN)->client, "app");
    assert_non_null(strstr(incident(f, INCIDENT_OVERRUN)->action, "5000 ms"));
}

static void a_throttle_is_never_reported(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    for (int i = 0; i < 3; i++) {
        acquire(f, &a, "lock:throttle", "1", 5000, false);
        open_as(f, &b, 10 + (uint64_t)i, "job");
        acquire(f, &b, "lock:nightly", "1", 3600000, false);
        engine_session_close(f->engine, &b, f->now_ms);
        pass(f, 5000);
    }
    assert_int_equal(f->note_count, 0);
    assert_int_equal(f->renew_count, 0);
}

static void abandoned_leases_are_reported(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 30000, true);
    f->now_ms += 10000;
    engine_session_close(f->engine, &a, f->now_ms);
    assert_non_null(strstr(incident(f, INCIDENT_ABANDONED)->action, "20000 ms"));
    /* With the application's own expiry only for sessions that are known to release. */
    open_as(f, &b, 2, "job");
    acquire(f, &b, "lock:y", "1", 5000, false);
    run(f, &b, LOCK_RELEASE, "lock:y", LOCK_RELEASED, f->fence);
    acquire(f, &b, "lock:y", "1", 5000, false);
    engine_session_close(f->engine, &b, f->now_ms);
    assert_int_equal(incidents(f, INCIDENT_ABANDONED), 2);
}

static void a_pool_abandons_with_its_last_connection(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_colleagues(f, &a, &b);
    acquire(f, &a, "lock:x", "1", 30000, true);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(incidents(f, INCIDENT_ABANDONED), 0);
    pass(f, 10000);
    assert_int_equal(f->renew_count, 1);
    struct lock_key key = key_of("lock:x");
    renewed(f, &key, f->renewed.token, LOCK_DONE);
    engine_session_close(f->engine, &b, f->now_ms);
    assert_int_equal(incidents(f, INCIDENT_ABANDONED), 1);
    pass(f, 15000);
    assert_int_equal(f->renew_count, 1);
}

static void the_operator_takes_a_lock_away(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "admin");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, true);
    run(f, &b, LOCK_OPERATOR, "lock:x", LOCK_RELEASED, f->fence);
    incident(f, INCIDENT_OPERATOR_RELEASE);
    assert_int_equal(stats(f).leases, 0);
    pass(f, 15000);
    assert_int_equal(f->renew_count, 0);
    /* The holder's own release is still to come, and must not hit the next lease. */
    acquire(f, &b, "lock:x", "1", 30000, true);
    assert_int_equal(run(f, &a, LOCK_RELEASE, "lock:x", LOCK_HELD, f->fence), claim);
}

static void on_disconnect_release_asks_for_it(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    f->rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(f->release_count, 1);
    assert_int_equal(f->released.token, claim);
    assert_int_equal(f->released.login, 3);
    assert_string_equal(lock_right_text(f->released.right), "claim");
    assert_int_equal(incidents(f, INCIDENT_ABANDONED), 1);
    /* A late release may come over another connection. */
    assert_int_equal(stats(f).leases, 0);
    assert_int_equal(stats(f).claims, 1);
    pass(f, 60000);
    assert_int_equal(stats(f).claims, 0);
}

/* The lease's end has come, and the answer to a renewal that may have been in time has not. */
static void what_a_renewal_may_have_kept_is_released(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    f->rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, true);
    pass(f, 20000);
    assert_int_equal(f->renew_count, 1);
    pass(f, 10500);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(f->release_count, 1);
    assert_int_equal(f->released.token, claim);
}

/* ---- renewals ------------------------------------------------------------------------------------ */

static void leases_of_the_proxy_are_renewed_every_third(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_key key = key_of("lock:x");
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, true);
    assert_int_equal(engine_tick(f->engine, 0, 1, f->now_ms), 1000);
    int64_t begun_ms = f->now_ms;
    while (f->renew_count == 0 && f->now_ms < begun_ms + 10000) {
        int64_t due_ms = engine_tick(f->engine, 0, 1, f->now_ms);
        pass(f, due_ms < 1000 ? due_ms : 1);
    }
    assert_int_equal(f->renew_count, 1);
    assert_true(f->now_ms > begun_ms + 5000); /* up to a sixth early, to be renewed with others of the slot */
    assert_int_equal(f->renewed.token, claim);
    assert_int_equal(f->renewed.lease_ms, 30000);
    assert_int_equal(f->renewed.login, 3);
    assert_string_equal(f->renewed_key, "lock:x");
    assert_string_equal(lock_right_text(f->renewed.right), "claim");
    pass(f, 15000); /* not asked twice */
    assert_int_equal(f->renew_count, 1);
    renewed(f, &key, claim, LOCK_DONE);
    assert_int_equal(stats(f).renewals, 1);
    /* A third from when it was asked for, since that is when Redis may have run it. */
    pass(f, 1);
    assert_int_equal(f->renew_count, 2);
}

static void locks_of_a_slot_are_renewed_together(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    static const char *const names[] = {"lock:{s}:1", "lock:{s}:2", "lock:{s}:3"};
    struct lock_key keys[3];
    uint64_t claims[3];
    unsigned together = 0;
    open_as(f, &a, 1, "app");
    for (int i = 0; i < 3; i++) {
        keys[i] = key_of(names[i]);
        claims[i] = acquire(f, &a, names[i], "1", 30000, true);
        pass(f, 1700);
    }
    for (int ms = 0; ms < 60000; ms++) {
        unsigned before = f->renew_count;
        pass(f, 1);
        if (f->renew_count > before)
            for (int i = 0; i < 3; i++)
                renewed(f, &keys[i], claims[i], LOCK_DONE);
        together += f->renew_count - before == 3;
        assert_true(ms < 15000 || f->renew_count == before || f->renew_count - before == 3);
    }
    assert_true(together >= 4);
}

static void a_slow_answer_does_not_delay_the_renewal(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan;
    struct lock_result r = result(LOCK_GRANTED, ++f->fence);
    r.pttl_ms = 30000;
    r.leased = true;
    open_as(f, &a, 1, "app");
    begin(f, &a, LOCK_ACQUIRE, "lock:x", &plan);
    f->now_ms += 9000;
    finish(f, &a, &plan, &r);
    pass(f, 1000);
    assert_int_equal(f->renew_count, 1);
}

static void touching_the_lock_does_not_delay_the_renewal(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 30000, true);
    for (int64_t left = 28000; left > 20000; left -= 2000) {
        struct lock_plan plan;
        struct lock_result r = result(LOCK_DONE, f->fence);
        pass(f, 2000);
        r.pttl_ms = left;
        r.leased = true;
        begin(f, &a, LOCK_COUNT_UP, "lock:x", &plan);
        finish(f, &a, &plan, &r);
    }
    pass(f, 2000);
    assert_int_equal(f->renew_count, 1);
}

static void renewal_ends_with_the_applications_own_expiry(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan;
    struct lock_result r = result(LOCK_DONE, 0);
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 30000, true);
    r.fence = f->fence;
    r.pttl_ms = 60000;
    begin(f, &a, LOCK_EXTEND, "lock:x", &plan);
    finish(f, &a, &plan, &r);
    pass(f, 20000);
    assert_int_equal(f->renew_count, 0);
    /* PERSIST gives it back to the proxy. */
    r.pttl_ms = 30000;
    r.leased = true;
    begin(f, &a, LOCK_EXTEND, "lock:x", &plan);
    finish(f, &a, &plan, &r);
    pass(f, 10000);
    assert_int_equal(f->renew_count, 1);
}

static void an_expiry_set_beside_a_renewal_wins(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan;
    struct lock_key key = key_of("lock:x");
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, true);
    pass(f, 10000); /* asked */
    struct lock_result r = result(LOCK_DONE, f->fence);
    r.pttl_ms = 5000;
    begin(f, &a, LOCK_EXTEND, "lock:x", &plan);
    finish(f, &a, &plan, &r);
    renewed(f, &key, claim, LOCK_DONE);
    pass(f, 6000);
    assert_int_equal(f->renew_count, 1);
    assert_int_equal(stats(f).leases, 0);
}

static void renew_never_and_always(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    f->rule.renew = LOCK_RENEW_NEVER;
    acquire(f, &a, "lock:x", "1", 30000, true);
    pass(f, 29000);
    assert_int_equal(f->renew_count, 0);
    f->rule.renew = LOCK_RENEW_ALWAYS;
    acquire(f, &a, "lock:y", "1", 6000, false);
    pass(f, 2000);
    assert_int_equal(f->renew_count, 1);
    assert_int_equal(f->renewed.lease_ms, 6000); /* the pttl first seen */
    assert_int_equal(f->renewed.left_ms, 4000);
    assert_string_equal(lock_right_text(f->renewed.right), "always");
}

static void renewal_ends_with_max_hold(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_key key = key_of("lock:x");
    f->rule.max_hold_ms = 25000;
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, true);
    for (int i = 0; i < 2; i++) {
        pass(f, 10000);
        renewed(f, &key, claim, LOCK_DONE);
    }
    assert_int_equal(f->renew_count, 2);
    pass(f, 10000);
    pass(f, 10000);
    assert_int_equal(f->renew_count, 2);
    pass(f, 10000);
    assert_int_equal(incidents(f, INCIDENT_OVERRUN), 1);
}

static void renewal_ends_with_the_owner(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app"); /* another worker, for all that is known */
    acquire(f, &a, "lock:x", "1", 30000, true);
    engine_session_close(f->engine, &a, f->now_ms);
    pass(f, 15000);
    assert_int_equal(f->renew_count, 0);
    /* With a library that pools, the client's other connections keep it. */
    engine_session_library(f->engine, &b, "lettuce", 7);
    struct lock_session c;
    open_as(f, &c, 3, "app");
    engine_session_library(f->engine, &c, "lettuce", 7);
    acquire(f, &c, "lock:y", "1", 30000, true);
    engine_session_close(f->engine, &c, f->now_ms);
    pass(f, 10000);
    assert_int_equal(f->renew_count, 1);
}

static void lost_renewals_are_tried_again(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_key key = key_of("lock:x");
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, true);
    pass(f, 10000);
    renewed(f, &key, claim, LOCK_NOT_SENT);
    pass(f, 2999);
    assert_int_equal(f->renew_count, 1);
    pass(f, 1);
    assert_int_equal(f->renew_count, 2);
    renewed(f, &key, claim, LOCK_NOT_SENT);
    f->now_ms = START_MS + 30000;
    pass(f, 0); /* its end */
    assert_int_equal(f->renew_count, 2);
    assert_int_equal(incidents(f, INCIDENT_OVERRUN), 1);
}

static void a_renewal_of_unknown_outcome_may_have_been_done(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_key key = key_of("lock:x");
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, true);
    pass(f, 10000);
    renewed(f, &key, claim, LOCK_UNKNOWN);
    pass(f, 3000);
    assert_int_equal(f->renew_count, 2);
    renewed(f, &key, claim, LOCK_NOT_SENT);
    f->now_ms = START_MS + 39999;
    pass(f, 0);
    assert_int_equal(f->renew_count, 3);
    assert_int_equal(stats(f).leases, 1);
}

static void an_answer_after_the_end_still_counts(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_key key = key_of("lock:x");
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 3000, true);
    f->rule.lease_ms = 3000;
    claim = acquire(f, &a, "lock:x", "1", 3000, true);
    pass(f, 1000);
    pass(f, 2500); /* over, but for the renewal in flight */
    assert_int_equal(incidents(f, INCIDENT_OVERRUN), 0);
    renewed(f, &key, claim, LOCK_DONE);
    assert_int_equal(stats(f).leases, 1);
}

static void an_acquisition_that_is_not_confirmed_is_none(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan;
    open_as(f, &a, 1, "app");
    f->rule.replicas = 2;
    f->rule.replicas_ms = 200;
    enum lock_verb verbs[] = {LOCK_ACQUIRE, LOCK_REPLACE, LOCK_SWAP, LOCK_COUNT_UP};
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        struct lock_result r = result(LOCK_UNCONFIRMED, 0);
        r.replicas = 1;
        begin(f, &a, verbs[i], "lock:x", &plan);
        finish(f, &a, &plan, &r);
        assert_non_null(strstr(incident(f, INCIDENT_UNCONFIRMED)->action, "1 of 2 replicas had it within 200 ms"));
    }
    assert_int_equal(incidents(f, INCIDENT_UNCONFIRMED), 4);
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(stats(f).granted, 0);
    assert_int_equal(stats(f).lost, 4);
    pass(f, 60000);
    assert_int_equal(f->renew_count, 0);
    begin(f, &a, LOCK_RELEASE, "lock:x", &plan);
    assert_int_equal(plan.claim, 0);
    struct lock_result free = result(LOCK_FREE, 0);
    finish(f, &a, &plan, &free);
}

static void a_renewal_that_finds_the_lease_gone_is_reported(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_key key = key_of("lock:x");
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 30000, true);
    pass(f, 10000);
    renewed(f, &key, claim, LOCK_FREE);
    assert_string_equal(incident(f, INCIDENT_RENEWAL_LOST)->client, "app");
    assert_int_equal(stats(f).leases, 0);
    pass(f, 10000);
    assert_int_equal(f->renew_count, 1);
    /* Nothing is reported where the holder's own release was faster. */
    claim = acquire(f, &a, "lock:x", "1", 30000, true);
    pass(f, 10000);
    run(f, &a, LOCK_RELEASE, "lock:x", LOCK_RELEASED, f->fence);
    renewed(f, &key, claim, LOCK_FREE);
    assert_int_equal(incidents(f, INCIDENT_RENEWAL_LOST), 1);
}

static void a_tick_serves_its_part(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    char key[32];
    open_as(f, &a, 1, "app");
    for (int i = 0; i < 40; i++) { /* keys of one pattern would be in one shard */
        snprintf(key, sizeof(key), "lock:%c%c", 'g' + i % 8, 'g' + i / 8);
        acquire(f, &a, key, "1", 30000, true);
        f->note_count = 0;
    }
    f->now_ms += 10000;
    unsigned served[3];
    for (unsigned part = 0; part < 3; part++) {
        unsigned before = f->renew_count;
        engine_tick(f->engine, part, 3, f->now_ms);
        served[part] = f->renew_count - before;
        assert_true(served[part] > 0);
    }
    assert_int_equal(f->renew_count, 40);
}

/* ---- memory -------------------------------------------------------------------------------------- */

static void claims_are_remembered_for_the_claim_memory(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 1000, false);
    f->now_ms += 60999;
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
    f->now_ms += 1;
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), 0);
    pass(f, 0);
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(stats(f).keys, 0);
}

static void claims_go_with_their_session_and_lease(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    f->rule.owner = LOCK_OWNER_CONNECTION;
    open_as(f, &a, 1, "app");
    acquire(f, &a, "lock:x", "1", 1000, false);
    acquire(f, &a, "lock:y", "1", 20000, false);
    pass(f, 2000);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(stats(f).claims, 1);
    pass(f, 18000);
    assert_int_equal(stats(f).claims, 0);
    /* Under client a closed session's claim ends with its lease. */
    f->rule.owner = LOCK_OWNER_CLIENT;
    open_as(f, &a, 2, "app");
    open_as(f, &b, 3, "app");
    acquire(f, &a, "lock:x", "1", 1000, false);
    acquire(f, &b, "lock:y", "1", 1000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_int_equal(stats(f).claims, 2);
    pass(f, 2000);
    assert_int_equal(stats(f).claims, 1);
    engine_session_close(f->engine, &b, f->now_ms);
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(stats(f).keys, 0);
}

/* Under auto a worker may come back over another connection, and release late. */
static void claims_outlive_their_session(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 1000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    pass(f, 60999);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), claim);
    pass(f, 1);
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
}

static void a_claim_in_use_is_not_forgotten(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan;
    f->rule.claim_memory_ms = 100;
    open_as(f, &a, 1, "app");
    uint64_t claim = acquire(f, &a, "lock:x", "1", 1000, false);
    begin(f, &a, LOCK_EXTEND, "lock:x", &plan);
    pass(f, 1500);
    struct lock_result r = result(LOCK_DONE, f->fence);
    r.pttl_ms = 5000;
    finish(f, &a, &plan, &r);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
    assert_int_equal(stats(f).leases, 1);
}

static void claims_on_one_key_are_bounded(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    for (int i = 0; i < 5000; i++)
        acquire(f, &a, "lock:x", "1", 10, false);
    assert_true(stats(f).claims <= 256);
    assert_int_equal(stats(f).leases, 1);
}

static void a_session_may_be_gone_before_its_answer(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan, other;
    struct lock_result r = result(LOCK_GRANTED, ++f->fence);
    r.pttl_ms = 30000;
    r.leased = true;
    open_as(f, &a, 1, "app");
    begin(f, &a, LOCK_ACQUIRE, "lock:x", &plan);
    begin(f, &a, LOCK_ACQUIRE, "lock:y", &other);
    engine_session_close(f->engine, &a, f->now_ms);
    engine_finish(f->engine, 1, &plan, &r, "SETNX", "gone", f->now_ms);
    struct lock_result held = result(LOCK_HELD, 900);
    engine_finish(f->engine, 1, &other, &held, "SETNX", "gone", f->now_ms);
    assert_int_equal(incidents(f, INCIDENT_ABANDONED), 1);
    assert_int_equal(stats(f).claims, 1);
    pass(f, 15000);
    assert_int_equal(f->renew_count, 0);
    struct lock_session again;
    open_as(f, &again, 2, "app");
    assert_int_equal(would_use(f, &again, LOCK_RELEASE, "lock:x"), plan.attempt);
    pass(f, 15000 + 60000);
    assert_int_equal(stats(f).claims, 0);
}

/* ---- looking in ---------------------------------------------------------------------------------- */

struct seen_leases {
    char keys[4][16];
    size_t count;
    bool connected;
};

static void on_lease(void *arg, const struct lock_view *v) {
    struct seen_leases *s = arg;
    copy(s->keys[s->count++], sizeof(s->keys[0]), v->key.name, v->key.len);
    assert_int_equal(v->client_len, 3);
    assert_memory_equal(v->client, "app", 3);
    s->connected = v->connected;
}

static void live_leases_are_listed_newest_first(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    char key[16];
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    for (int i = 0; i < 30; i++) {
        snprintf(key, sizeof(key), "lock:%02d", i);
        f->now_ms += 10;
        acquire(f, i < 29 ? &a : &b, key, "1", i == 28 ? 5 : 60000, false);
    }
    f->now_ms += 10;
    struct seen_leases seen = {.count = 0};
    struct lock_walk *walk = engine_walk_new(3, false);
    while (engine_walk_step(f->engine, walk, f->now_ms))
        ;
    engine_walk_each(walk, on_lease, &seen);
    engine_walk_free(walk);
    assert_int_equal(seen.count, 3);
    assert_string_equal(seen.keys[0], "lock:29");
    assert_string_equal(seen.keys[1], "lock:27"); /* 28 is over */
    assert_string_equal(seen.keys[2], "lock:26");
    assert_true(seen.connected);
}

/* ---- threads ------------------------------------------------------------------------------------- */

struct hammer {
    struct lock_engine *engine;
    struct lock_rule rule;
    unsigned part;
    uint64_t seed;
};

static atomic_uint_fast64_t hammer_ids, hammer_fences;

static unsigned hammer_below(struct hammer *h, unsigned n) {
    h->seed = h->seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(h->seed >> 33) % n;
}

static void *hammer(void *arg) {
    struct hammer *h = arg;
    struct lock_session s;
    struct lock_plan plan;
    int64_t now_ms = START_MS;
    char name[16];
    engine_session_open(h->engine, &s, atomic_fetch_add(&hammer_ids, 1) + 1, "app", 3);
    for (int i = 0; i < 20000; i++) {
        now_ms += 1;
        snprintf(name, sizeof(name), "lock:%u", hammer_below(h, 40));
        struct lock_key key = key_of(name);
        enum lock_verb verb = (enum lock_verb)hammer_below(h, LOCK_OPERATOR);
        enum lock_outcome outcome = (enum lock_outcome)hammer_below(h, LOCK_UNKNOWN + 1);
        if (outcome == LOCK_GRANTED && verb != LOCK_ACQUIRE && verb != LOCK_REPLACE && verb != LOCK_SWAP)
            outcome = LOCK_HELD;
        struct lock_result r = {.outcome = outcome, .fence = atomic_fetch_add(&hammer_fences, 1) + 1, .pttl_ms = 500};
        r.leased = hammer_below(h, 2) == 0;
        r.value = "value";
        r.value_len = hammer_below(h, 6);
        engine_begin(h->engine, &s, verb, &key, &h->rule, 0, false, now_ms, &plan);
        engine_finish(h->engine, s.id, &plan, &r, "X", "who", now_ms);
        if (i % 50 == 0)
            engine_tick(h->engine, h->part, 2, now_ms);
        if (i % 97 == 0)
            engine_session_identify(h->engine, &s, i % 2 ? "app" : "other", i % 2 ? 3 : 5, now_ms);
        if (i % 61 == 0) {
            engine_session_close(h->engine, &s, now_ms);
            engine_session_open(h->engine, &s, atomic_fetch_add(&hammer_ids, 1) + 1, "app", 3);
            engine_session_library(h->engine, &s, "lettuce", 7);
        }
        if (i % 500 == 0) {
            struct lock_stats stat;
            engine_stats(h->engine, &stat);
        }
    }
    engine_session_close(h->engine, &s, now_ms);
    return NULL;
}

static void ignore_incident(void *arg, const struct lock_incident *i) {
}

static void ignore_lease(void *arg, const struct lock_lease *lease) {
}

static void ignore_leaving(void *arg, const struct lock_leaving *leaving) {
}

static void two_threads_share_an_engine(void **state) {
    struct fixture *f = *state;
    struct lock_sink sink = {
        .incident = ignore_incident, .renew = ignore_lease, .release = ignore_lease, .leave = ignore_leaving};
    struct lock_engine *engine = engine_new(PROCESS, 1, &sink);
    struct hammer hammers[2];
    pthread_t threads[2];
    for (unsigned i = 0; i < 2; i++) {
        hammers[i] = (struct hammer){.engine = engine, .rule = f->rule, .part = i, .seed = i + 1};
        hammers[i].rule.owner = i ? LOCK_OWNER_CLIENT : LOCK_OWNER_AUTO;
        hammers[i].rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, &hammers[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    struct lock_stats s;
    engine_stats(engine, &s);
    assert_true(s.granted > 0);
    engine_free(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(outcomes_are_read_as_the_scripts_write_them),
        TEST(fences_of_the_proxys_own),
        TEST(libraries_that_share_connections),
        TEST(tokens_are_unique_and_claims_name_them),
        TEST(an_attempt_that_is_put_off_leaves_nothing),
        TEST(identities_have_names),
        TEST(connection_uses_its_own_claims_only),
        TEST(connection_drops_older_claims_on_a_new_acquisition),
        TEST(auto_prefers_own_claims_and_drops_older_ones),
        TEST(auto_keeps_two_sessions_of_one_machine_apart),
        TEST(a_session_that_lost_against_itself_proves_nothing),
        TEST(rules_that_know_better_prove_nothing),
        TEST(a_lost_release_proves_nothing),
        TEST(a_lease_that_may_have_ended_proves_nothing),
        TEST(auto_uses_claims_of_a_multiplexing_library),
        TEST(auto_uses_claims_of_sessions_that_closed),
        TEST(nobody_acquires_by_what_a_closed_session_left),
        TEST(a_rewrite_is_no_attempt),
        TEST(the_last_of_a_client_leaves_what_came_late_too),
        TEST(client_uses_all_claims_of_the_identity),
        TEST(claims_move_with_the_identity),
        TEST(a_new_name_leaves_what_was_shared),
        TEST(what_comes_after_the_end_is_left_too),
        TEST(nodes_that_come_after_the_end_are_dead),
        TEST(databases_and_keys_are_apart),
        TEST(any_and_operator_have_their_own_rights),
        TEST(adoption_is_for_those_without_a_claim),
        TEST(adoption_is_not_for_losers),
        TEST(a_grant_is_believed_over_what_was_known_before),
        TEST(a_grant_that_began_before_is_none_of_the_latest),
        TEST(the_one_shown_last_where_values_differ),
        TEST(sightings_do_not_matter_among_constant_values),
        TEST(a_client_sights_with_any_of_its_sessions),
        TEST(values_shown_by_other_commands_make_sightings),
        TEST(what_does_not_spend_uses_the_live_one),
        TEST(data_is_everybodys),
        TEST(a_write_hears_that_its_lease_was_overtaken),
        TEST(the_plan_tells_what_was_read),
        TEST(a_client_that_shares_swaps_what_any_of_it_read),
        TEST(a_script_that_changed_nothing_overtakes_nobody),
        TEST(a_unauthenticated_script_spends_nothing),
        TEST(a_release_by_script_is_noticed_behind_others),
        TEST(a_release_by_script_is_noticed_beside_a_renewal),
        TEST(a_script_behind_the_end_of_a_lease_released_nothing),
        TEST(a_refused_swap_misleads_whoever_read_its_answer),
        TEST(long_values_are_not_remembered),
        TEST(what_a_session_saw_is_bounded),
        TEST(fights_are_ranked),
        TEST(what_is_known_to_be_gone_does_not_come_back),
        TEST(what_is_being_released_is_not_abandoned),
        TEST(what_may_be_released_is_not_renewed),
        TEST(a_pools_nodes_leave_with_its_last_connection),
        TEST(a_release_is_spent_whatever_redis_says),
        TEST(a_release_that_did_nothing_is_not),
        TEST(releases_in_flight_use_different_claims),
        TEST(what_an_extension_finds_leaves_a_release_under_way),
        TEST(a_lost_release_may_be_repeated),
        TEST(an_acquisition_that_got_lost_may_be_released),
        TEST(counters_are_released_by_counting_down),
        TEST(extensions_and_clobbers_spend_where_they_released),
        TEST(a_takeover_ends_the_other_lease),
        TEST(answers_may_overtake_each_other),
        TEST(of_answers_that_cross_the_later_end_counts),
        TEST(of_a_transaction_and_a_colleague_the_later_end_counts),
        TEST(what_a_colleague_found_unchanged_crosses_nothing),
        TEST(the_last_reading_is_swapped),
        TEST(the_last_of_many_readings_is_swapped),
        TEST(a_transaction_speaks_for_what_it_acquires),
        TEST(a_transaction_adopts_nothing_behind_its_attempt),
        TEST(a_queued_release_sets_nothing_aside),
        TEST(a_queued_release_finds_all_claims_used_up),
        TEST(the_last_word_of_a_transaction_on_an_expiry_counts),
        TEST(refused_releases_are_reported),
        TEST(ambiguity_is_reported_with_its_way_out),
        TEST(other_refusals_are_reported),
        TEST(acquiring_without_an_expiry_is_reported),
        TEST(an_overrun_is_reported_for_those_who_release),
        TEST(a_throttle_is_never_reported),
        TEST(abandoned_leases_are_reported),
        TEST(a_pool_abandons_with_its_last_connection),
        TEST(the_operator_takes_a_lock_away),
        TEST(on_disconnect_release_asks_for_it),
        TEST(what_a_renewal_may_have_kept_is_released),
        TEST(leases_of_the_proxy_are_renewed_every_third),
        TEST(locks_of_a_slot_are_renewed_together),
        TEST(a_slow_answer_does_not_delay_the_renewal),
        TEST(touching_the_lock_does_not_delay_the_renewal),
        TEST(renewal_ends_with_the_applications_own_expiry),
        TEST(an_expiry_set_beside_a_renewal_wins),
        TEST(renew_never_and_always),
        TEST(renewal_ends_with_max_hold),
        TEST(renewal_ends_with_the_owner),
        TEST(lost_renewals_are_tried_again),
        TEST(a_renewal_of_unknown_outcome_may_have_been_done),
        TEST(an_answer_after_the_end_still_counts),
        TEST(an_acquisition_that_is_not_confirmed_is_none),
        TEST(a_renewal_that_finds_the_lease_gone_is_reported),
        TEST(a_tick_serves_its_part),
        TEST(claims_are_remembered_for_the_claim_memory),
        TEST(claims_go_with_their_session_and_lease),
        TEST(claims_outlive_their_session),
        TEST(a_claim_in_use_is_not_forgotten),
        TEST(claims_on_one_key_are_bounded),
        TEST(a_session_may_be_gone_before_its_answer),
        TEST(live_leases_are_listed_newest_first),
        TEST(two_threads_share_an_engine),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
