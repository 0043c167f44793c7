/*
 * Queues of waiting attempts: proxy/lock/waiting.c. The integration tests have sessions and sockets.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/lock/waiting.h"

enum { WAITERS = 4, THREADS = 2, HASH = 77, KEEP_MS = 1000 };

struct rig {
    struct waiting *t;
    struct waiter w[WAITERS];
    struct lock_key key;
    unsigned woken[THREADS];
    int64_t now_ms;
};

static void note_wake(void *arg, unsigned thread) {
    ((struct rig *)arg)->woken[thread]++;
}

static int setup(void **state) {
    static struct rig rig;
    memset(&rig, 0, sizeof(rig));
    rig.t = waiting_new(THREADS, note_wake, &rig);
    rig.key = (struct lock_key){.name = "lock:a", .len = 6};
    rig.now_ms = 1000;
    *state = &rig;
    return 0;
}

static int teardown(void **state) {
    waiting_free(((struct rig *)*state)->t);
    return 0;
}

/* Makes waiter i as it is before it joins, of the thread. */
static struct waiter *waiter(struct rig *r, unsigned i, unsigned thread) {
    r->w[i] = (struct waiter){.session = i + 1, .place = 10 * (i + 1), .thread = thread, .since_ms = r->now_ms};
    return &r->w[i];
}

static enum waiting_joined join(struct rig *r, unsigned i, unsigned thread) {
    return waiting_join(r->t, &r->key, HASH, 100, waiter(r, i, thread), r->now_ms);
}

static void leave(struct rig *r, unsigned i, enum waiting_end end) {
    waiting_leave(r->t, &r->w[i], end, KEEP_MS, r->now_ms);
    assert_null(r->w[i].queue);
}

/* The waiter that the thread is told of, and whether it tries. */
static struct waiter *next(struct rig *r, unsigned thread, bool tries) {
    bool found;
    struct waiter *w = waiting_next(r->t, thread, &found);
    if (w)
        assert_int_equal(found, tries);
    return w;
}

static void test_order(void **state) {
    struct rig *r = *state;
    assert_int_equal(join(r, 1, 0), JOINED_FIRST);
    assert_int_equal(join(r, 2, 1), JOINED_BEHIND);
    assert_int_equal(join(r, 0, 1), JOINED_FIRST); /* came first, and was refused last */
    assert_int_equal(waiting_count(r->t), 3);
    waiting_freed(r->t, &r->key, HASH, 100, false);
    assert_ptr_equal(next(r, 1, true), &r->w[0]);
    assert_null(next(r, 0, true));
    leave(r, 0, WAIT_GRANTED);
    assert_ptr_equal(next(r, 0, false), &r->w[1]); /* it is the first one now, and the lock is held */
    waiting_freed(r->t, &r->key, HASH, 101, false);
    assert_ptr_equal(next(r, 0, true), &r->w[1]);
    leave(r, 1, WAIT_GRANTED);
    leave(r, 2, WAIT_OVER);
    assert_int_equal(waiting_count(r->t), 0);
}

static void test_newcomers(void **state) {
    struct rig *r = *state;
    assert_false(
        waiting_join_behind(r->t, &r->key, HASH, waiter(r, 1, 0), r->now_ms)); /* the queue is empty: it asks */
    assert_int_equal(join(r, 1, 0), JOINED_FIRST);
    assert_true(waiting_join_behind(r->t, &r->key, HASH, waiter(r, 2, 0), r->now_ms));
    assert_false(waiting_join_behind(r->t, &r->key, HASH, waiter(r, 0, 0), r->now_ms)); /* it came before them */
    struct lock_key other = {.name = "lock:b", .len = 6}, db = {.db = 1, .name = "lock:a", .len = 6};
    assert_false(waiting_join_behind(r->t, &other, HASH, waiter(r, 3, 0), r->now_ms));
    assert_false(waiting_join_behind(r->t, &db, HASH, waiter(r, 3, 0), r->now_ms));
    leave(r, 1, WAIT_OVER);
    leave(r, 2, WAIT_OVER);
}

static void test_one_tries_at_a_time(void **state) {
    struct rig *r = *state;
    join(r, 0, 0);
    join(r, 1, 0);
    assert_false(waiting_try(r->t, &r->w[1]));
    assert_true(waiting_try(r->t, &r->w[0]));
    assert_false(waiting_try(r->t, &r->w[0]));
    waiting_freed(r->t, &r->key, HASH, 100, false); /* seen while its attempt is under way, perhaps behind that */
    assert_null(next(r, 0, true));
    assert_true(waiting_refused(r->t, &r->w[0], 101)); /* so it tries once more */
    assert_false(waiting_refused(r->t, &r->w[0], 101));
    leave(r, 0, WAIT_OVER);
    leave(r, 1, WAIT_OVER);
}

/* A waiter that makes its last attempt is not called any more: the attempt is in flight, and the waiter leaves with the
 * reply. */
static void test_last_try(void **state) {
    struct rig *r = *state;
    join(r, 0, 0);
    join(r, 1, 1);
    waiting_try_last(r->t, &r->w[0]);
    assert_ptr_equal(next(r, 1, false), &r->w[1]); /* it is the first one now */
    waiting_freed(r->t, &r->key, HASH, 100, false);
    assert_null(next(r, 0, true));
    assert_ptr_equal(next(r, 1, true), &r->w[1]);
    leave(r, 0, WAIT_OVER);
    assert_null(next(r, 0, true));
    assert_null(next(r, 1, true));
    waiting_refused(r->t, &r->w[1], 101);
    join(r, 2, 0);
    waiting_freed(r->t, &r->key, HASH, 101, false);
    waiting_try_last(r->t, &r->w[1]); /* called before, and not to try in its turn any more */
    assert_null(next(r, 1, true));
    assert_ptr_equal(next(r, 0, true), &r->w[2]);
    assert_false(waiting_join_behind(r->t, &r->key, HASH, waiter(r, 0, 0), r->now_ms));
    leave(r, 1, WAIT_OVER);
    leave(r, 2, WAIT_GRANTED);
}

/* The waiter that takes the first one's place checks the lock at the first one's time. */
static void test_looks(void **state) {
    struct rig *r = *state;
    join(r, 0, 0);
    waiting_look(r->t, &r->w[0], 1100);
    join(r, 1, 0);
    leave(r, 0, WAIT_OVER);
    assert_ptr_equal(next(r, 0, false), &r->w[1]);
    assert_int_equal(r->w[1].look_ms, 1100);
    join(r, 2, 0);
    assert_true(waiting_try(r->t, &r->w[1]));
    leave(r, 1, WAIT_GRANTED);
    assert_ptr_equal(next(r, 0, false), &r->w[2]);
    assert_int_equal(r->w[2].look_ms, 0); /* of that lease nothing is known */
    leave(r, 2, WAIT_OVER);
}

static void test_handover(void **state) {
    struct rig *r = *state;
    assert_false(waiting_handover(r->t, &r->key, HASH, 0, 0, r->now_ms, NULL));
    join(r, 0, 0);
    r->w[0].way = 5;
    assert_false(waiting_handover(r->t, &r->key, HASH, 1, 5, r->now_ms, NULL)); /* another thread's release */
    assert_false(waiting_handover(r->t, &r->key, HASH, 0, 4, r->now_ms, NULL)); /* over another connection */
    assert_true(waiting_handover(r->t, &r->key, HASH, 0, 5, r->now_ms, NULL));
    assert_ptr_equal(next(r, 0, true), &r->w[0]);
    waiting_freed(r->t, &r->key, HASH, 100, true); /* the release's answer: the attempt is right behind it */
    assert_false(waiting_refused(r->t, &r->w[0], 101));
    leave(r, 0, WAIT_OVER);
}

/* The attempt that was sent right behind a release has gone over another connection, and was there before it. */
static void test_handover_overtakes(void **state) {
    struct rig *r = *state;
    join(r, 0, 0);
    assert_true(waiting_handover(r->t, &r->key, HASH, 0, 0, r->now_ms, NULL));
    assert_ptr_equal(next(r, 0, true), &r->w[0]);
    waiting_freed(r->t, &r->key, HASH, 100, true);
    assert_true(waiting_refused(r->t, &r->w[0], 100));
    assert_false(waiting_refused(r->t, &r->w[0], 101));
    assert_true(waiting_handover(r->t, &r->key, HASH, 0, 0, r->now_ms, NULL));
    assert_ptr_equal(next(r, 0, true), &r->w[0]);
    assert_false(waiting_refused(r->t, &r->w[0], 101));
    waiting_freed(r->t, &r->key, HASH, 101, true);
    assert_ptr_equal(next(r, 0, true), &r->w[0]);
    leave(r, 0, WAIT_OVER);
}

/* A waiter's grant is released again, by a session that the rule permits, before its own reply has come. */
static void test_release_before_the_grant(void **state) {
    struct rig *r = *state;
    join(r, 0, 0);
    join(r, 1, 0);
    assert_true(waiting_try(r->t, &r->w[0]));
    waiting_freed(r->t, &r->key, HASH, 101, false);
    r->w[0].fence = 101;
    leave(r, 0, WAIT_GRANTED);
    assert_ptr_equal(next(r, 0, true), &r->w[1]);
    join(r, 2, 0);
    waiting_freed(r->t, &r->key, HASH, 101, false); /* an older one */
    r->w[1].fence = 102;
    leave(r, 1, WAIT_GRANTED);
    assert_ptr_equal(next(r, 0, false), &r->w[2]);
    leave(r, 2, WAIT_OVER);
}

static void test_release_before_joining(void **state) {
    struct rig *r = *state;
    waiting_freed(r->t, &r->key, HASH, 99, false);
    assert_int_equal(join(r, 0, 0), JOINED_FIRST); /* an earlier lease */
    leave(r, 0, WAIT_GONE);
    waiting_freed(r->t, &r->key, HASH, 100, false);
    assert_int_equal(join(r, 0, 0), JOINED_FREED);
    assert_false(waiting_try(r->t, &r->w[0])); /* it does */
    leave(r, 0, WAIT_GRANTED);
}

static void test_kept_place(void **state) {
    struct rig *r = *state;
    join(r, 0, 0);
    join(r, 1, 0);
    leave(r, 0, WAIT_OVER);
    assert_ptr_equal(next(r, 0, false), &r->w[1]);
    r->now_ms += KEEP_MS - 1;
    waiter(r, 0, 0)->place = 500;
    assert_false(waiting_join_behind(r->t, &r->key, HASH, &r->w[0], r->now_ms)); /* it is first: it asks */
    assert_int_equal(waiting_join(r->t, &r->key, HASH, 100, &r->w[0], r->now_ms), JOINED_FIRST);
    leave(r, 0, WAIT_OVER);
    r->now_ms += KEEP_MS;
    waiter(r, 0, 0)->place = 600;
    assert_true(waiting_join_behind(r->t, &r->key, HASH, &r->w[0], r->now_ms)); /* it has come too late */
    leave(r, 0, WAIT_GONE);
    leave(r, 1, WAIT_GONE);
}

static void test_empty_place(void **state) {
    struct rig *r = *state;
    join(r, 0, 0);
    join(r, 1, 0);
    leave(r, 0, WAIT_OVER);
    waiting_freed(r->t, &r->key, HASH, 100, false);
    assert_ptr_equal(next(r, 0, true), &r->w[1]); /* though the other's place is before it */
    leave(r, 1, WAIT_GRANTED);
}

static void test_leaving_hands_the_call_on(void **state) {
    struct rig *r = *state;
    join(r, 0, 0);
    join(r, 1, 1);
    waiting_freed(r->t, &r->key, HASH, 100, false);
    leave(r, 0, WAIT_OVER); /* before its thread has heard of it */
    assert_null(next(r, 0, true));
    assert_ptr_equal(next(r, 1, true), &r->w[1]);
    leave(r, 1, WAIT_GONE);
    assert_int_equal(join(r, 0, 0), JOINED_FREED);
    join(r, 1, 1);
    leave(r, 0, WAIT_GONE); /* its attempt failed */
    assert_ptr_equal(next(r, 1, true), &r->w[1]);
    leave(r, 1, WAIT_GONE);
}

/* A waiter's answer tells it to ask again, as a release was seen meanwhile, and its time is over. */
static void test_over_when_it_is_to_try(void **state) {
    struct rig *r = *state;
    join(r, 0, 0);
    join(r, 1, 1);
    assert_true(waiting_try(r->t, &r->w[0]));
    waiting_freed(r->t, &r->key, HASH, 100, false);
    assert_true(waiting_refused(r->t, &r->w[0], 100));
    leave(r, 0, WAIT_OVER);
    assert_ptr_equal(next(r, 1, true), &r->w[1]);
    leave(r, 1, WAIT_GRANTED);
}

/* The attempt after a release is lost, and a waiter with a place before it has joined meanwhile. */
static void test_lost_behind_a_release(void **state) {
    struct rig *r = *state;
    join(r, 1, 0);
    assert_true(waiting_handover(r->t, &r->key, HASH, 0, 0, r->now_ms, NULL));
    assert_ptr_equal(next(r, 0, true), &r->w[1]);
    assert_int_equal(join(r, 0, 0), JOINED_FIRST);
    waiting_freed(r->t, &r->key, HASH, 100, true);
    assert_null(next(r, 0, true));
    leave(r, 1, WAIT_GONE);
    assert_ptr_equal(next(r, 0, true), &r->w[0]);
    leave(r, 0, WAIT_GRANTED);
}

static void test_proof(void **state) {
    struct rig *r = *state;
    uint64_t fence;
    join(r, 0, 0);
    assert_true(waiting_try(r->t, &r->w[0]));
    assert_true(waiting_join_behind(r->t, &r->key, HASH, waiter(r, 1, 0), r->now_ms));
    waiting_refused(r->t, &r->w[0], 101); /* sent before the other came */
    assert_false(waiting_proves(r->t, &r->w[1], &fence));
    assert_true(waiting_try(r->t, &r->w[0]));
    waiting_refused(r->t, &r->w[0], 102);
    assert_true(waiting_proves(r->t, &r->w[1], &fence));
    assert_int_equal(fence, 102);
    leave(r, 0, WAIT_OVER);
    leave(r, 1, WAIT_OVER);
}

static void test_views(void **state) {
    struct rig *r = *state;
    struct waiting_view v = waiting_of(r->t, &r->key, HASH, 0, 0, NULL);
    assert_int_equal(v.count, 0);
    assert_int_equal(waiting_since(r->t), 0);
    join(r, 0, 0);
    r->now_ms += 50;
    join(r, 1, 1);
    v = waiting_of(r->t, &r->key, HASH, 1, 0, NULL);
    assert_int_equal(v.count, 2);
    assert_int_equal(v.since_ms, 1000);
    struct text who = {0};
    v = waiting_of(r->t, &r->key, HASH, 1, 1070, &who);
    assert_int_equal(v.count, 2);
    assert_string_equal(who.data, " since 70 ms; and 1 more");
    text_clear(&who);
    assert_int_equal(waiting_since(r->t), 1000);
    leave(r, 0, WAIT_OVER);
    assert_int_equal(waiting_since(r->t), 1050);
    leave(r, 1, WAIT_OVER);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* The release of the lease with this fence is seen, and the first one leaves the lock to another proxy. Returns for how
 * long. */
static int64_t left(struct rig *r, unsigned i, uint64_t fence) {
    waiting_freed(r->t, &r->key, HASH, fence, false);
    assert_ptr_equal(next(r, 0, false), &r->w[i]);
    assert_true(r->w[i].yields_ms > 0);
    return r->w[i].yields_ms;
}

/* An attempt that has waited longer at another proxy comes first; a waiter that is told that it is its turn asks at
 * once. */
static void test_elsewhere(void **state) {
    struct rig *r = *state;
    int64_t left_ms = -1;
    join(r, 0, 0);
    waiting_elsewhere(r->t, &r->w[0], r->now_ms); /* no longer than here */
    assert_true(waiting_handover(r->t, &r->key, HASH, 0, 0, r->now_ms + 30, &left_ms));
    assert_int_equal(left_ms, -1);
    assert_ptr_equal(next(r, 0, true), &r->w[0]);
    assert_false(waiting_refused(r->t, &r->w[0], 101));
    waiting_elsewhere(r->t, &r->w[0], r->now_ms - 1);
    assert_false(waiting_handover(r->t, &r->key, HASH, 0, 0, r->now_ms + 30, &left_ms));
    assert_int_equal(left_ms, 30);
    assert_null(next(r, 0, true));
    (void)left(r, 0, 101);
    waiting_told(r->t, &r->key, HASH, 1); /* that is the other thread's ear */
    assert_null(next(r, 0, true));
    waiting_told(r->t, &r->key, HASH, 0);
    assert_ptr_equal(next(r, 0, true), &r->w[0]);
    assert_int_equal(r->w[0].yields_ms, 0);
    assert_false(waiting_refused(r->t, &r->w[0], 102));
    waiting_elsewhere(r->t, &r->w[0], WAITING_NOBODY);
    assert_true(waiting_handover(r->t, &r->key, HASH, 0, 0, r->now_ms, &left_ms));
    leave(r, 0, WAIT_GONE);
}

/* Other proxies are waited for longer where they come, and shortly again where one has not; of each lock by itself. */
static void test_patience(void **state) {
    struct rig *r = *state;
    int64_t shortest = 0;
    uint64_t fence = 1000;
    for (int round = 0; round < 10; round++) {
        assert_int_equal(waiting_join(r->t, &r->key, HASH, ++fence, waiter(r, 0, 0), r->now_ms), JOINED_FIRST);
        waiting_elsewhere(r->t, &r->w[0], r->now_ms - 1);
        int64_t ms = left(r, 0, fence);
        if (round == 0)
            shortest = ms;
        assert_true(ms < 100);
        assert_int_equal(ms, round < 4 ? shortest << round : shortest << 4);
        assert_true(waiting_try(r->t, &r->w[0]));
        assert_false(waiting_refused(r->t, &r->w[0], ++fence)); /* it has come */
        leave(r, 0, WAIT_GONE);                                 /* and the queue has gone */
    }
    waiting_join(r->t, &r->key, HASH, ++fence, waiter(r, 0, 0), r->now_ms);
    waiting_elsewhere(r->t, &r->w[0], r->now_ms - 1);
    assert_int_equal(left(r, 0, fence), shortest << 4);
    assert_true(waiting_try(r->t, &r->w[0]));
    leave(r, 0, WAIT_GRANTED); /* it has not */
    waiting_join(r->t, &r->key, HASH, ++fence, waiter(r, 1, 0), r->now_ms);
    waiting_elsewhere(r->t, &r->w[1], r->now_ms - 1);
    assert_int_equal(left(r, 1, fence), shortest);
    waiting_told(r->t, &r->key, HASH, 0); /* its turn came before that: this says nothing of the other proxy */
    assert_ptr_equal(next(r, 0, true), &r->w[1]);
    assert_false(waiting_refused(r->t, &r->w[1], ++fence));
    waiting_elsewhere(r->t, &r->w[1], r->now_ms - 1);
    assert_int_equal(left(r, 1, fence), shortest);
    leave(r, 1, WAIT_OVER);
}

/* The first waiter joins while another waiter's attempt is in flight, and may have been called meanwhile. */
static void test_first_behind_an_attempt(void **state) {
    struct rig *r = *state;
    join(r, 1, 0);
    assert_true(waiting_try(r->t, &r->w[1]));
    assert_int_equal(join(r, 0, 1), JOINED_FIRST);
    assert_false(waiting_try(r->t, &r->w[0]));
    assert_false(waiting_refused(r->t, &r->w[1], 100));
    assert_ptr_equal(next(r, 1, false), &r->w[0]);
    assert_true(waiting_try(r->t, &r->w[0]));
    leave(r, 0, WAIT_OVER);
    leave(r, 1, WAIT_OVER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_order),
        TEST(test_newcomers),
        TEST(test_handover),
        TEST(test_one_tries_at_a_time),
        TEST(test_kept_place),
        TEST(test_release_before_joining),
        TEST(test_empty_place),
        TEST(test_leaving_hands_the_call_on),
        TEST(test_proof),
        TEST(test_views),
        TEST(test_last_try),
        TEST(test_looks),
        TEST(test_handover_overtakes),
        TEST(test_release_before_the_grant),
        TEST(test_over_when_it_is_to_try),
        TEST(test_lost_behind_a_release),
        TEST(test_elsewhere),
        TEST(test_patience),
        TEST(test_first_behind_an_attempt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
