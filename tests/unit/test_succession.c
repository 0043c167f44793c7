/*
 * Renewal without an end for clients that come back, and at the stop of the process: proxy/lock/succession.c and its
 * part of lease.c. The simulator has long interleavings.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/lock/engine.h"

enum { LEASE_MS = 30000, STEP_MS = 1000, START_MS = 1000000, SESSIONS = 12, LEASES_MAX = 64 };

static const char PROCESS[] = "6f9a2c51-7d7e-4a49-9d35-0b8f5f3c2a10";

/* ---- fixture ----------------------------------------------------------------------------------- */

/* A lease whose renewals Redis carries out. */
struct kept {
    char name[32];
    uint64_t token;
    unsigned renewals;
    int64_t asked_ms; /* of the last one: for how long */
    bool due;
};

struct fixture {
    struct lock_engine *engine;
    struct lock_rule rule;
    int64_t now_ms;
    uint64_t fence, ids;
    struct lock_session sessions[SESSIONS];
    bool open[SESSIONS];
    struct kept leases[LEASES_MAX];
    unsigned lease_count, released, left, told, incidents[INCIDENT_KINDS];
    char action[256];       /* of the last incident */
    struct lock_left entry; /* the last one that other proxies are told of; with texts of its own */
    char entry_key[32], entry_identity[64];
    enum lock_outcome answer;
};

static struct lock_key key_of(const char *name) {
    return (struct lock_key){.name = name, .len = strlen(name)};
}

static void on_incident(void *arg, const struct lock_incident *i) {
    struct fixture *f = arg;
    f->incidents[i->kind]++;
    snprintf(f->action, sizeof(f->action), "%s", i->action);
}

static void on_renew(void *arg, const struct lock_lease *lease) {
    struct fixture *f = arg;
    for (unsigned i = 0; i < f->lease_count; i++)
        if (f->leases[i].token == lease->token) {
            f->leases[i].renewals++;
            f->leases[i].asked_ms = lease->lease_ms;
            f->leases[i].due = true;
        }
}

static void on_release(void *arg, const struct lock_lease *lease) {
    struct fixture *f = arg;
    f->released++;
    (void)lease;
}

static void on_leave(void *arg, const struct lock_leaving *leaving) {
    struct fixture *f = arg;
    f->left++;
    (void)leaving;
}

static void on_left(void *arg, const struct lock_left *left) {
    struct fixture *f = arg;
    f->told++;
    f->entry = *left;
    snprintf(f->entry_key, sizeof(f->entry_key), "%.*s", (int)left->key.len, left->key.name);
    snprintf(f->entry_identity, sizeof(f->entry_identity), "%.*s", (int)left->identity_len, left->identity);
    f->entry.key.name = f->entry_key;
    f->entry.identity = f->entry_identity;
}

static char pattern[] = "lock:*";

static int set_up(void **state) {
    static struct fixture f;
    memset(&f, 0, sizeof(f));
    struct lock_sink sink = {.arg = &f,
                             .incident = on_incident,
                             .renew = on_renew,
                             .release = on_release,
                             .leave = on_leave,
                             .left = on_left};
    f.engine = engine_new(PROCESS, 42, &sink);
    f.now_ms = START_MS;
    f.answer = LOCK_DONE;
    f.rule = (struct lock_rule){.pattern = pattern,
                                .pattern_len = sizeof(pattern) - 1,
                                .owner = LOCK_OWNER_AUTO,
                                .claim_memory_ms = 60000,
                                .lease_ms = LEASE_MS,
                                .handover_ms = 60000,
                                .renew = LOCK_RENEW_AUTO};
    *state = &f;
    return 0;
}

static void leave(struct fixture *f, int s) {
    f->open[s] = false;
    engine_session_close(f->engine, &f->sessions[s], f->now_ms);
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    for (int s = 0; s < SESSIONS; s++)
        if (f->open[s])
            leave(f, s);
    engine_free(f->engine);
    return 0;
}

/* Opens a session as the session layer does: its identity is set afterwards. */
static void come(struct fixture *f, int s, const char *identity) {
    engine_session_open(f->engine, &f->sessions[s], ++f->ids, "", 0);
    engine_session_identify(f->engine, &f->sessions[s], identity, strlen(identity), f->now_ms);
    f->open[s] = true;
}

static void run(struct fixture *f, int s, enum lock_verb verb, const char *name, struct lock_result *r,
                uint64_t *token) {
    struct lock_key key = key_of(name);
    struct lock_plan plan;
    engine_begin(f->engine, &f->sessions[s], verb, &key, &f->rule, 0, false, f->now_ms, &plan);
    engine_finish(f->engine, f->sessions[s].id, &plan, r, "COMMAND", "10.1.1.1:5000", f->now_ms);
    if (token)
        *token = plan.attempt;
}

static struct kept *acquire(struct fixture *f, int s, const char *name) {
    struct kept *k = &f->leases[f->lease_count++];
    struct lock_result r = {
        .outcome = LOCK_GRANTED, .fence = ++f->fence, .pttl_ms = f->rule.lease_ms, .leased = true, .value = "1"};
    r.value_len = 1;
    snprintf(k->name, sizeof(k->name), "%s", name);
    run(f, s, LOCK_ACQUIRE, name, &r, &k->token);
    return k;
}

static void lose(struct fixture *f, int s, const char *name, uint64_t fence) {
    struct lock_result r = {.outcome = LOCK_HELD, .fence = fence, .pttl_ms = -3};
    run(f, s, LOCK_ACQUIRE, name, &r, NULL);
}

static void answer(struct fixture *f) {
    for (unsigned i = 0; i < f->lease_count; i++) {
        struct kept *k = &f->leases[i];
        struct lock_key key = key_of(k->name);
        struct lock_result r = {.outcome = f->answer, .pttl_ms = -3};
        if (f->answer == LOCK_DONE) {
            r.pttl_ms = k->asked_ms;
            r.leased = true;
        }
        if (k->due)
            engine_renewed(f->engine, &key, k->token, &r, f->now_ms);
        k->due = false;
    }
}

/* Time passes; renewals are answered at once. */
static void pass(struct fixture *f, int64_t ms) {
    for (; ms > 0; ms -= STEP_MS) {
        f->now_ms += ms < STEP_MS ? ms : STEP_MS;
        engine_tick(f->engine, 0, 1, f->now_ms);
        answer(f);
    }
}

static unsigned live(struct fixture *f) {
    struct lock_stats s;
    engine_stats(f->engine, &s);
    return (unsigned)s.leases;
}

/* ---- without an end ------------------------------------------------------------------------------ */

static void a_connected_owner_keeps_its_lock(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    struct kept *k = acquire(f, 0, "lock:x");
    pass(f, 24 * 3600 * (int64_t)1000);
    assert_int_equal(live(f), 1);
    assert_in_range(k->renewals, 24 * 3600 / 11, 24 * 3600 / 9);
    leave(f, 0);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
}

static void what_is_held_for_long_is_an_incident_once(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    pass(f, 299 * STEP_MS);
    assert_int_equal(f->incidents[INCIDENT_HELD_LONG], 0);
    pass(f, 2 * STEP_MS);
    assert_int_equal(f->incidents[INCIDENT_HELD_LONG], 1);
    assert_string_equal(f->action, "held for 300 s, renewed while its owner is connected");
    pass(f, 3600 * STEP_MS);
    assert_int_equal(f->incidents[INCIDENT_HELD_LONG], 1);
}

/* With the application's own expiry too, where a release is expected: throttles are meant to run out. */
static void a_long_expiry_is_held_for_long(void **state) {
    struct fixture *f = *state;
    struct lock_result r = {.outcome = LOCK_GRANTED, .fence = ++f->fence, .pttl_ms = 3600000};
    struct lock_result released = {.outcome = LOCK_RELEASED, .fence = 1, .pttl_ms = -2};
    come(f, 0, "app");
    run(f, 0, LOCK_ACQUIRE, "lock:throttle", &r, NULL);
    pass(f, 301 * STEP_MS);
    assert_int_equal(f->incidents[INCIDENT_HELD_LONG], 0);
    run(f, 0, LOCK_RELEASE, "lock:throttle", &released, NULL);
    r.fence = ++f->fence;
    run(f, 0, LOCK_ACQUIRE, "lock:y", &r, NULL);
    pass(f, 301 * STEP_MS);
    assert_int_equal(f->incidents[INCIDENT_HELD_LONG], 1);
    assert_string_equal(f->action, "held for 300 s");
}

static void nobody_holds_what_its_owner_left(void **state) {
    struct fixture *f = *state;
    struct lock_result r = {.outcome = LOCK_GRANTED, .fence = ++f->fence, .pttl_ms = 3600000};
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    run(f, 0, LOCK_ACQUIRE, "lock:y", &r, NULL);
    pass(f, 100 * STEP_MS);
    leave(f, 0);
    pass(f, 500 * STEP_MS);
    assert_int_equal(f->incidents[INCIDENT_HELD_LONG], 0);
}

/* ---- one-shot clients ------------------------------------------------------------------------------ */

static const int64_t DAY_MS = 24 * 3600 * (int64_t)1000;

/* The session layer has seen that the session sent one command, and closed in good order. */
static void leave_one_shot(struct fixture *f, int s, int64_t after_ms) {
    f->now_ms += after_ms;
    f->sessions[s].one_shot = true;
    leave(f, s);
}

/* A client that acquires the lock and is gone at once; returns the lease. */
static struct kept *one_shot(struct fixture *f, const char *identity, const char *name) {
    f->rule.one_shot_ms = DAY_MS;
    come(f, 0, identity);
    struct kept *k = acquire(f, 0, name);
    leave_one_shot(f, 0, 100);
    return k;
}

static void a_one_shot_clients_lock_is_kept(void **state) {
    struct fixture *f = *state;
    const struct kept *k = one_shot(f, "host", "lock:x");
    assert_int_equal(f->incidents[INCIDENT_ONE_SHOT], 1);
    assert_int_equal(f->incidents[INCIDENT_ABANDONED], 0);
    assert_string_equal(f->action, "its connection closed at once: kept for 1d, or until this client sends DEL; if its "
                                   "job crashes, DEL the lock; SET with NX and EX ends by itself");
    pass(f, DAY_MS - STEP_MS);
    assert_int_equal(live(f), 1);
    assert_in_range(k->renewals, 24 * 3600 / 11, 24 * 3600 / 9);
    pass(f, LEASE_MS + 3 * STEP_MS);
    assert_int_equal(live(f), 0);
    assert_int_equal(f->incidents[INCIDENT_ONE_SHOT], 1);
    assert_int_equal(f->incidents[INCIDENT_OVERRUN], 0);
    assert_int_equal(f->told, 0); /* no client comes back for it at another proxy */
}

static void a_one_shot_client_holds_for_long(void **state) {
    struct fixture *f = *state;
    one_shot(f, "host", "lock:x");
    pass(f, 301 * STEP_MS);
    assert_int_equal(f->incidents[INCIDENT_HELD_LONG], 1);
    assert_string_equal(f->action, "held for 300 s, kept for a one-shot client");
}

/* The DEL comes over the next connection, whatever others of the host have tried. */
static void a_one_shot_clients_del_frees_its_lock(void **state) {
    struct fixture *f = *state;
    uint64_t token = one_shot(f, "host", "lock:x")->token;
    for (int i = 1; i <= 3; i++) {
        come(f, i, "host");
        lose(f, i, "lock:x", 1);
        leave_one_shot(f, i, 1);
    }
    pass(f, 10 * LEASE_MS);
    come(f, 4, "elsewhere");
    come(f, 5, "host");
    struct lock_key key = key_of("lock:x");
    struct lock_plan plan;
    struct lock_result released = {.outcome = LOCK_RELEASED, .fence = 1, .pttl_ms = -2};
    struct lock_result not_sent = {.outcome = LOCK_NOT_SENT, .pttl_ms = -3};
    engine_begin(f->engine, &f->sessions[4], LOCK_RELEASE, &key, &f->rule, 0, false, f->now_ms, &plan);
    assert_int_equal(plan.claim, 0);
    engine_finish(f->engine, f->sessions[4].id, &plan, &not_sent, "DEL", "", f->now_ms);
    engine_begin(f->engine, &f->sessions[5], LOCK_RELEASE, &key, &f->rule, 0, false, f->now_ms, &plan);
    assert_int_equal(plan.claim, token);
    assert_int_equal(plan.right, RIGHT_CLAIM);
    engine_finish(f->engine, f->sessions[5].id, &plan, &released, "DEL", "", f->now_ms);
    assert_int_equal(live(f), 0);
    assert_int_equal(f->incidents[INCIDENT_SHARED] + f->incidents[INCIDENT_BELIEVED], 0);
}

/* Its release may have gone through another proxy. */
static void a_one_shot_clients_lock_is_gone(void **state) {
    struct fixture *f = *state;
    one_shot(f, "host", "lock:x");
    f->answer = LOCK_FREE;
    pass(f, LEASE_MS);
    assert_int_equal(live(f), 0);
    assert_int_equal(f->incidents[INCIDENT_RENEWAL_LOST], 0);
}

static void assert_no_one_shot(struct fixture *f) {
    assert_int_equal(f->incidents[INCIDENT_ONE_SHOT], 0);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
}

static void who_closes_later_is_no_one_shot_client(void **state) {
    struct fixture *f = *state;
    f->rule.one_shot_ms = DAY_MS;
    come(f, 0, "host");
    acquire(f, 0, "lock:x");
    leave_one_shot(f, 0, 101);
    assert_no_one_shot(f);
}

static void who_crashes_is_no_one_shot_client(void **state) {
    struct fixture *f = *state;
    f->rule.one_shot_ms = DAY_MS;
    come(f, 0, "host");
    acquire(f, 0, "lock:x");
    leave(f, 0);
    assert_no_one_shot(f);
}

static void the_rule_may_keep_none(void **state) {
    struct fixture *f = *state;
    come(f, 0, "host");
    acquire(f, 0, "lock:x");
    leave_one_shot(f, 0, 1);
    assert_no_one_shot(f);
    f->rule.one_shot_ms = DAY_MS;
    f->rule.owner = LOCK_OWNER_CONNECTION; /* no other connection could release its lock */
    come(f, 0, "host");
    acquire(f, 0, "lock:x");
    leave_one_shot(f, 0, 1);
    assert_no_one_shot(f);
    f->rule.owner = LOCK_OWNER_CLIENT;
    f->rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
    come(f, 0, "host");
    acquire(f, 0, "lock:x");
    leave_one_shot(f, 0, 1);
    assert_int_equal(f->released, 1);
    assert_no_one_shot(f);
}

/* Its colleagues come and go; none of them is its successor. */
static void a_pools_one_shot_client_is_one(void **state) {
    struct fixture *f = *state;
    f->rule.owner = LOCK_OWNER_CLIENT;
    come(f, 1, "host");
    one_shot(f, "host", "lock:x");
    assert_int_equal(f->incidents[INCIDENT_ONE_SHOT], 1);
    leave(f, 1);
    pass(f, 10 * LEASE_MS);
    assert_int_equal(live(f), 1);
    assert_int_equal(f->incidents[INCIDENT_ABANDONED], 0);
}

static void max_hold_may_be_shorter(void **state) {
    struct fixture *f = *state;
    f->rule.max_hold_ms = 10 * LEASE_MS;
    one_shot(f, "host", "lock:x");
    assert_non_null(strstr(f->action, "kept for 5m,"));
    pass(f, 10 * LEASE_MS - STEP_MS);
    assert_int_equal(live(f), 1);
    pass(f, LEASE_MS + 3 * STEP_MS);
    assert_int_equal(live(f), 0);
}

/* No client comes back for it, so the proxy gives it all of its time when it stops. */
static void a_stop_gives_a_one_shot_clients_lock_its_time(void **state) {
    struct fixture *f = *state;
    const struct kept *k = one_shot(f, "host", "lock:x");
    pass(f, 3600 * STEP_MS);
    engine_leave(f->engine);
    assert_int_equal(engine_handover(f->engine, 0, 1, 100, f->now_ms), 1);
    assert_int_equal(k->asked_ms, DAY_MS - 3600 * STEP_MS - 100);
    answer(f);
    assert_int_equal(engine_handover(f->engine, 0, 1, 100, f->now_ms), 0);
    assert_int_equal(f->told, 0);
}

/* ---- clients that come back ------------------------------------------------------------------------------ */

static void who_comes_back_goes_on(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    come(f, 1, "app"); /* a colleague, from long before */
    struct kept *x = acquire(f, 0, "lock:x"), *y = acquire(f, 0, "lock:y");
    pass(f, 15 * STEP_MS);
    leave(f, 0);
    pass(f, 5 * STEP_MS);
    come(f, 2, "app");
    pass(f, 100 * STEP_MS);
    assert_true(x->renewals > 8 && y->renewals > 8);
    assert_int_equal(live(f), 2);
    leave(f, 2);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
    assert_int_equal(f->incidents[INCIDENT_RENEWAL_LOST], 0);
}

/* Redis kept the lock for its lease; a client that comes back late still finds it. */
static void late_is_better_than_never(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    pass(f, 10 * STEP_MS + 500);
    leave(f, 0);
    pass(f, 24 * STEP_MS);
    come(f, 1, "app");
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 1);
}

static void the_new_connection_may_be_there_first(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    pass(f, 60 * STEP_MS);
    come(f, 1, "app");
    f->now_ms += 900;
    leave(f, 0);
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 1);
}

static void a_crashed_workers_lock_is_free(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    come(f, 1, "app");
    acquire(f, 0, "lock:x");
    pass(f, 60 * STEP_MS);
    come(f, 2, "else");
    leave(f, 0);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
    assert_int_equal(f->incidents[INCIDENT_ABANDONED], 1);
}

/* A session that asks for the lock does not hold it: perhaps the next new session does, and at last none. */
static void who_asks_for_it_does_not_hold_it(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    pass(f, 15 * STEP_MS);
    leave(f, 0);
    for (int s = 1; s < 4; s++)
        come(f, s, "app");
    lose(f, 1, "lock:x", 1);
    lose(f, 2, "lock:x", 1);
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 1);
    lose(f, 3, "lock:x", 1);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
}

/* Workers that all crashed and were started anew, each in another one's place. */
static void who_asks_for_another_came_anew(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    come(f, 1, "app");
    acquire(f, 0, "lock:x");
    acquire(f, 1, "lock:y");
    pass(f, 15 * STEP_MS);
    leave(f, 0);
    leave(f, 1);
    come(f, 2, "app"); /* for x */
    come(f, 3, "app"); /* for y */
    lose(f, 2, "lock:y", 2);
    lose(f, 3, "lock:x", 1);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
}

static void work(struct fixture *f, int s, const char *name) {
    struct lock_result r = {.outcome = LOCK_RELEASED, .pttl_ms = -2};
    acquire(f, s, name);
    r.fence = f->fence;
    run(f, s, LOCK_RELEASE, name, &r, NULL);
}

/* A worker that was started anew, and is never refused. */
static void who_works_elsewhere_came_anew(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:1");
    pass(f, 15 * STEP_MS);
    leave(f, 0);
    come(f, 1, "app");
    acquire(f, 1, "lock:2");
    work(f, 1, "lock:3");
    work(f, 1, "lock:4");
    work(f, 1, "mine:5"); /* of another workload */
    pass(f, 60 * STEP_MS);
    assert_int_equal(live(f), 2);
    work(f, 1, "lock:6");
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 1);
}

/* After a reload no session has tried yet to acquire a lock under the rule as it is now. */
static void a_rule_without_attempts(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:1");
    pass(f, 15 * STEP_MS);
    leave(f, 0);
    come(f, 1, "app");
    acquire(f, 1, "lock:2");
    f->rule.hash++; /* as of a rule that was changed */
    pass(f, 60 * STEP_MS);
    assert_int_equal(live(f), 2);
}

static void one_goes_on_for_one(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    come(f, 1, "app");
    struct kept *x = acquire(f, 0, "lock:x"), *y = acquire(f, 1, "lock:y");
    pass(f, 15 * STEP_MS);
    leave(f, 0);
    leave(f, 1);
    come(f, 2, "app");
    pass(f, 60 * STEP_MS);
    assert_int_equal(live(f), 1);
    assert_true(x->renewals > 5 && y->renewals == 1);
}

/* A connection that is cut again and again. */
static void it_is_cut_again(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    for (int i = 0; i < 20; i++) {
        pass(f, 50 * STEP_MS);
        leave(f, i % SESSIONS);
        pass(f, 2 * STEP_MS);
        come(f, (i + 1) % SESSIONS, "app");
    }
    acquire(f, 20 % SESSIONS, "lock:y"); /* what it has acquired since is left with the rest */
    leave(f, 20 % SESSIONS);
    come(f, 0, "app");
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 2);
}

/* Short-lived connections of others, of which one is always there: a crashed worker's lock is free all the same. */
static void those_who_come_and_go_keep_nothing(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    pass(f, 15 * STEP_MS);
    come(f, 1, "app");
    leave(f, 0);
    for (int i = 1; i < 50; i++) {
        come(f, (i + 1) % SESSIONS, "app");
        leave(f, i % SESSIONS);
        pass(f, STEP_MS);
    }
    assert_int_equal(live(f), 0);
}

static void names_are_kept_apart(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app name=1");
    acquire(f, 0, "lock:x");
    leave(f, 0);
    come(f, 1, "app name=2");
    pass(f, 10 * STEP_MS);
    come(f, 2, "app"); /* and calls itself so next */
    engine_session_identify(f->engine, &f->sessions[2], "app name=1", 10, f->now_ms);
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 1);
    engine_session_identify(f->engine, &f->sessions[2], "app name=1", 10, f->now_ms); /* once more */
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 1);
    engine_session_identify(f->engine, &f->sessions[2], "app", 3, f->now_ms);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
}

/* A session whose commands would not count for the lease must not inherit it: it would only block others. */
static void nobody_comes_back_to_a_connections_own(void **state) {
    struct fixture *f = *state;
    f->rule.owner = LOCK_OWNER_CONNECTION;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    leave(f, 0);
    come(f, 1, "app");
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
}

static void what_is_released_on_disconnect_is(void **state) {
    struct fixture *f = *state;
    f->rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    leave(f, 0);
    assert_int_equal(f->released, 1);
}

/* ---- shared connections ------------------------------------------------------------------------------ */

static void a_pool_comes_back_as_a_whole(void **state) {
    struct fixture *f = *state;
    f->rule.owner = LOCK_OWNER_CLIENT;
    come(f, 0, "app");
    come(f, 1, "app");
    acquire(f, 0, "lock:x");
    acquire(f, 1, "lock:y");
    pass(f, 15 * STEP_MS);
    leave(f, 0);
    leave(f, 1);
    pass(f, 5 * STEP_MS);
    come(f, 2, "app");
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 2);
    come(f, 3, "app");
    leave(f, 2);
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 2);
    leave(f, 3);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
}

/* A process that crashed and was started again asks for its lock: not for ever in vain. */
static void what_a_pool_asks_for_is_not_kept_for_ever(void **state) {
    struct fixture *f = *state;
    f->rule.owner = LOCK_OWNER_CLIENT;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    acquire(f, 0, "lock:y");
    leave(f, 0);
    come(f, 1, "app");
    lose(f, 1, "lock:x", 1);
    pass(f, 9 * LEASE_MS);
    assert_int_equal(live(f), 2); /* a colleague may hold it */
    pass(f, 3 * LEASE_MS);
    assert_int_equal(live(f), 1);
}

/* ---- the stop ---------------------------------------------------------------------------------------- */

static void hand_over(struct fixture *f, unsigned expected) {
    assert_int_equal(engine_handover(f->engine, 0, 1, 100, f->now_ms), expected);
    answer(f);
}

static void a_stop_hands_over_once(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    come(f, 1, "app");
    struct kept *x = acquire(f, 0, "lock:x"), *y = acquire(f, 1, "lock:y");
    engine_leave(f->engine);
    leave(f, 0); /* before and behind */
    hand_over(f, 2);
    assert_int_equal(x->asked_ms, 60000);
    assert_int_equal(y->asked_ms, 60000);
    leave(f, 1);
    hand_over(f, 0);
    assert_int_equal(f->incidents[INCIDENT_ABANDONED], 0);
}

static void a_stop_gives_what_the_rule_says(void **state) {
    struct fixture *f = *state;
    struct lock_result r = {.outcome = LOCK_GRANTED, .fence = ++f->fence, .pttl_ms = 50000};
    come(f, 0, "app");
    run(f, 0, LOCK_ACQUIRE, "lock:own", &r, NULL); /* none of the proxy's */
    f->rule.handover_ms = 0;
    acquire(f, 0, "lock:x");
    engine_leave(f->engine);
    hand_over(f, 0);
    f->rule.handover_ms = 10000; /* less than is left */
    hand_over(f, 0);
    f->rule.handover_ms = 600000;
    hand_over(f, 1);
}

static void a_stop_lets_nobody_in(void **state) {
    struct fixture *f = *state;
    f->rule.on_disconnect = LOCK_DISCONNECT_RELEASE;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    engine_leave(f->engine);
    leave(f, 0);
    assert_int_equal(f->released, 0);
    hand_over(f, 1);
}

static void who_had_left_before_the_stop_is_gone(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    leave(f, 0);
    engine_leave(f->engine);
    hand_over(f, 0);
    assert_int_equal(f->incidents[INCIDENT_ABANDONED], 1);
}

static void a_stop_has_many_leases(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    for (int i = 0; i < 50; i++) {
        char name[32];
        snprintf(name, sizeof(name), "lock:%d", i);
        acquire(f, 0, name);
    }
    engine_leave(f->engine);
    assert_int_equal(engine_handover(f->engine, 0, 1, 30, f->now_ms), 30);
    assert_int_equal(engine_handover(f->engine, 0, 1, 30, f->now_ms), 20);
    assert_int_equal(engine_handover(f->engine, 0, 1, 30, f->now_ms), 0);
}

/* The node can't be reached: it is tried again after a while, and not without a pause. */
static void a_handover_that_was_not_done(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    struct kept *x = acquire(f, 0, "lock:x");
    engine_leave(f->engine);
    f->answer = LOCK_NOT_SENT;
    hand_over(f, 1);
    leave(f, 0);
    hand_over(f, 0);
    f->now_ms += 5 * STEP_MS;
    f->answer = LOCK_DONE;
    hand_over(f, 1);
    assert_int_equal(x->renewals, 2);
}

/* ---- at another proxy -------------------------------------------------------------------------------- */

/* A lease that a session of another proxy has left, as that proxy reports it. */
static struct lock_left elsewhere(struct fixture *f, const char *name, const char *group) {
    struct lock_left left = {.key = key_of(name),
                             .identity = "app",
                             .identity_len = 3,
                             .token = "11111111-2222-3333-4444-555555555555:00000001",
                             .left_ms = f->now_ms,
                             .until_ms = f->now_ms + LEASE_MS};
    snprintf(left.group, sizeof(left.group), "%s", group);
    return left;
}

static struct kept *inherit(struct fixture *f, const struct lock_left *left) {
    struct kept *k = &f->leases[f->lease_count++];
    struct lock_result r = {.outcome = LOCK_DONE, .fence = ++f->fence, .pttl_ms = LEASE_MS, .leased = true};
    char token[LOCK_TOKEN_MAX];
    snprintf(k->name, sizeof(k->name), "%.*s", (int)left->key.len, left->key.name);
    k->token = engine_token(f->engine, token);
    engine_inherited(f->engine, left, &f->rule, 0, k->token, &r, f->now_ms);
    return k;
}

static void other_proxies_are_told(void **state) {
    struct fixture *f = *state;
    come(f, 0, "app");
    acquire(f, 0, "lock:x");
    leave(f, 0);
    assert_int_equal(f->told, 1);
    assert_string_equal(f->entry_key, "lock:x");
    assert_string_equal(f->entry_identity, "app");
    assert_int_equal(f->entry.left_ms, f->now_ms);
    assert_int_equal(f->entry.until_ms, f->now_ms + LEASE_MS);
    uint32_t login;
    come(f, 1, "app");
    assert_false(engine_awaits(f->engine, &f->entry, &f->rule, &login)); /* its own */
    acquire(f, 1, "lock:y");
    come(f, 2, "app"); /* at once */
    leave(f, 1);
    assert_int_equal(f->told, 1);
    engine_leave(f->engine);
    acquire(f, 2, "lock:z");
    leave(f, 2);
    assert_int_equal(f->told, 2);
    assert_int_equal(f->entry.until_ms, f->now_ms + 60000);
}

static void who_comes_from_another_proxy_goes_on(void **state) {
    struct fixture *f = *state;
    uint32_t login = 0;
    come(f, 0, "app"); /* a colleague, from long before */
    pass(f, 10 * STEP_MS);
    struct lock_left x = elsewhere(f, "lock:x", "p:1"), y = elsewhere(f, "lock:y", "p:1"),
                     z = elsewhere(f, "lock:z", "p:2");
    assert_false(engine_awaits(f->engine, &x, &f->rule, &login));
    come(f, 1, "else");
    assert_false(engine_awaits(f->engine, &x, &f->rule, &login));
    engine_session_open(f->engine, &f->sessions[2], ++f->ids, "", 0);
    f->sessions[2].login = 7;
    engine_session_identify(f->engine, &f->sessions[2], "app", 3, f->now_ms);
    f->open[2] = true;
    assert_true(engine_awaits(f->engine, &x, &f->rule, &login));
    assert_int_equal(login, 7);
    struct kept *first = inherit(f, &x);
    assert_true(engine_awaits(f->engine, &y, &f->rule, &login)); /* the same session's */
    assert_false(engine_awaits(f->engine, &z, &f->rule, &login));
    struct kept *second = inherit(f, &y);
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 2);
    assert_true(first->renewals > 8 && second->renewals > 8);
    engine_leave(f->engine); /* and on to the next one */
    hand_over(f, 2);
    assert_int_equal(f->told, 2);
    leave(f, 2);
    hand_over(f, 0);
    assert_int_equal(f->told, 2);
}

/* If connections are shared, any new connection inherits all leases. */
static void a_pool_comes_from_another_proxy(void **state) {
    struct fixture *f = *state;
    struct lock_left x = elsewhere(f, "lock:x", "p:1"), y = elsewhere(f, "lock:y", "p:2");
    uint32_t login;
    f->rule.owner = LOCK_OWNER_CLIENT;
    come(f, 0, "app");
    assert_true(engine_awaits(f->engine, &x, &f->rule, &login));
    inherit(f, &x);
    assert_true(engine_awaits(f->engine, &y, &f->rule, &login));
    inherit(f, &y);
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 2);
    leave(f, 0);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
}

static void who_came_from_another_proxy_and_left_is_gone(void **state) {
    struct fixture *f = *state;
    struct lock_left x = elsewhere(f, "lock:x", "p:1");
    come(f, 0, "app");
    inherit(f, &x);
    pass(f, 100 * STEP_MS);
    assert_int_equal(live(f), 1);
    leave(f, 0);
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
    inherit(f, &x); /* and no client has come */
    pass(f, LEASE_MS + 2 * STEP_MS);
    assert_int_equal(live(f), 0);
}

/* A session's release counts for what was its own elsewhere. */
static void what_came_from_another_proxy_is_released(void **state) {
    struct fixture *f = *state;
    struct lock_left x = elsewhere(f, "lock:x", "p:1");
    struct lock_key key = key_of("lock:x");
    struct lock_plan plan;
    come(f, 0, "app");
    struct kept *k = inherit(f, &x);
    engine_begin(f->engine, &f->sessions[0], LOCK_RELEASE, &key, &f->rule, 0, false, f->now_ms, &plan);
    assert_int_equal(plan.claim, k->token);
    struct lock_result r = {.outcome = LOCK_RELEASED, .fence = f->fence, .pttl_ms = -2};
    engine_finish(f->engine, f->sessions[0].id, &plan, &r, "DEL", "10.1.1.1:5000", f->now_ms);
    assert_int_equal(live(f), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_connected_owner_keeps_its_lock),
        TEST(what_is_held_for_long_is_an_incident_once),
        TEST(a_long_expiry_is_held_for_long),
        TEST(nobody_holds_what_its_owner_left),
        TEST(a_one_shot_clients_lock_is_kept),
        TEST(a_one_shot_client_holds_for_long),
        TEST(a_one_shot_clients_del_frees_its_lock),
        TEST(a_one_shot_clients_lock_is_gone),
        TEST(who_closes_later_is_no_one_shot_client),
        TEST(who_crashes_is_no_one_shot_client),
        TEST(the_rule_may_keep_none),
        TEST(a_pools_one_shot_client_is_one),
        TEST(max_hold_may_be_shorter),
        TEST(a_stop_gives_a_one_shot_clients_lock_its_time),
        TEST(who_comes_back_goes_on),
        TEST(late_is_better_than_never),
        TEST(the_new_connection_may_be_there_first),
        TEST(a_crashed_workers_lock_is_free),
        TEST(who_asks_for_it_does_not_hold_it),
        TEST(who_asks_for_another_came_anew),
        TEST(who_works_elsewhere_came_anew),
        TEST(a_rule_without_attempts),
        TEST(one_goes_on_for_one),
        TEST(it_is_cut_again),
        TEST(those_who_come_and_go_keep_nothing),
        TEST(names_are_kept_apart),
        TEST(nobody_comes_back_to_a_connections_own),
        TEST(what_is_released_on_disconnect_is),
        TEST(a_pool_comes_back_as_a_whole),
        TEST(what_a_pool_asks_for_is_not_kept_for_ever),
        TEST(a_stop_hands_over_once),
        TEST(a_stop_gives_what_the_rule_says),
        TEST(a_stop_lets_nobody_in),
        TEST(who_had_left_before_the_stop_is_gone),
        TEST(a_stop_has_many_leases),
        TEST(a_handover_that_was_not_done),
        TEST(other_proxies_are_told),
        TEST(who_comes_from_another_proxy_goes_on),
        TEST(a_pool_comes_from_another_proxy),
        TEST(who_came_from_another_proxy_and_left_is_gone),
        TEST(what_came_from_another_proxy_is_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
