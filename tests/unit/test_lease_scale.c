/*
 * A million live leases: what they weigh, and what it costs to renew those that are due.
 *
 * Weight is counted, not measured: memory comes from an allocator here that books each piece as the C library's would.
 * Work is counted too: the engine is compiled once more with a call at each basic block (-fsanitize-coverage=trace-pc),
 * so the same events give the same number on every machine.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/lock/engine.h"

enum {
    MILLION = 1000000,
    WORST = 1100000, /* tables and heaps have just doubled */
    SESSIONS = 2000,
    LEASE_MS = 5400, /* below 6 s each renewal is due by itself, a third of the lease after the one before */
    MEMORY_MS = 60000,
    BYTES_A_LEASE = 300,
    CHUNK = 16,             /* the C library's granularity */
    SMALL_MAX = 64 * CHUNK, /* pieces up to this size are kept for reuse */
    BLOCK = 1 << 20
};

/* ---- memory: every call of the engine for some comes here (the linker's --wrap) ----------------------- */

static size_t booked;
static void *spare[SMALL_MAX / CHUNK + 1];
static char *block;
static size_t block_left;

/* A size is in front of each piece; the C library has its own in the same place, so a piece weighs as much there. */
static size_t weight(size_t size) {
    size_t whole = (size + sizeof(size_t) + CHUNK - 1) / CHUNK * CHUNK;
    return whole < 2 * CHUNK ? 2 * CHUNK : whole;
}

void *__wrap_memory_alloc(size_t size);
void *__wrap_memory_zalloc(size_t size);
void *__wrap_memory_realloc(void *old, size_t size);
void __wrap_memory_free(void *p);

void *__wrap_memory_alloc(size_t size) {
    size_t whole = weight(size);
    char *p;
    booked += whole;
    if (whole > SMALL_MAX) {
        p = malloc(whole + CHUNK);
        assert_non_null(p);
    } else if (spare[whole / CHUNK]) {
        p = spare[whole / CHUNK];
        memcpy(&spare[whole / CHUNK], p + CHUNK, sizeof(void *));
    } else {
        if (block_left < whole + CHUNK) {
            block = malloc(BLOCK);
            assert_non_null(block);
            block_left = BLOCK;
        }
        p = block;
        block += whole + CHUNK;
        block_left -= whole + CHUNK;
    }
    memcpy(p, &size, sizeof(size));
    return p + CHUNK;
}

void *__wrap_memory_zalloc(size_t size) {
    void *p = __wrap_memory_alloc(size);
    memset(p, 0, size);
    return p;
}

void __wrap_memory_free(void *p) {
    if (!p)
        return;
    char *piece = (char *)p - CHUNK;
    size_t size;
    memcpy(&size, piece, sizeof(size));
    size_t whole = weight(size);
    booked -= whole;
    if (whole > SMALL_MAX) {
        free(piece);
        return;
    }
    memcpy(p, &spare[whole / CHUNK], sizeof(void *));
    spare[whole / CHUNK] = piece;
}

void *__wrap_memory_realloc(void *old, size_t size) {
    void *p = __wrap_memory_alloc(size);
    if (old) {
        size_t before;
        memcpy(&before, (char *)old - CHUNK, sizeof(before));
        memcpy(p, old, before < size ? before : size);
        __wrap_memory_free(old);
    }
    return p;
}

/* ---- work: basic blocks of the engine that were run --------------------------------------------------- */

static uint64_t blocks;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    blocks++;
}

/* ---- leases ------------------------------------------------------------------------------------------- */

static const char PROCESS[] = "6f9a2c51-7d7e-4a49-9d35-0b8f5f3c2a10";
static char pattern[] = "lock:*";

struct fixture {
    struct lock_engine *engine;
    struct lock_rule rule;
    struct lock_session sessions[SESSIONS];
    int64_t now_ms;
    uint64_t fence;
    uint64_t renewals; /* asked for and not answered yet */
    struct lock_key *asked_keys;
    uint64_t *asked_tokens;
};

static void on_incident(void *arg, const struct lock_incident *i) {
    (void)arg, (void)i;
}

static void on_renew(void *arg, const struct lock_lease *lease) {
    struct fixture *f = arg;
    assert_true(f->renewals < WORST);
    f->asked_keys[f->renewals] = lease->key; /* the name is the entry's, which lives as long as its claim */
    f->asked_tokens[f->renewals++] = lease->token;
}

static void on_release(void *arg, const struct lock_lease *lease) {
    (void)arg, (void)lease;
}

static int set_up(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->asked_keys = malloc(WORST * sizeof(*f->asked_keys));
    f->asked_tokens = malloc(WORST * sizeof(*f->asked_tokens));
    f->now_ms = 1000000;
    f->rule = (struct lock_rule){.pattern = pattern,
                                 .pattern_len = sizeof(pattern) - 1,
                                 .owner = LOCK_OWNER_AUTO,
                                 .claim_memory_ms = 60000,
                                 .lease_ms = LEASE_MS,
                                 .renew = LOCK_RENEW_AUTO,
                                 .max_hold_ms = 3600000};
    struct lock_sink sink = {.arg = f, .incident = on_incident, .renew = on_renew, .release = on_release};
    f->engine = engine_new(PROCESS, 42, &sink);
    for (int i = 0; i < SESSIONS; i++)
        engine_session_open(f->engine, &f->sessions[i], (uint64_t)i + 1, "10.1.1.1 app", 12);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    engine_free(f->engine);
    free(f->asked_keys);
    free(f->asked_tokens);
    free(f);
    return 0;
}

/* Acquires `count` locks from number `first` on, without an expiry of the application's: renewed from now on. */
static void acquire(struct fixture *f, int first, int count) {
    for (int i = first; i < first + count; i++) {
        char name[32];
        struct lock_key key = {.name = name, .len = (size_t)snprintf(name, sizeof(name), "lock:resource:%07d", i)};
        struct lock_session *s = &f->sessions[i % SESSIONS];
        struct lock_plan plan;
        struct lock_result r = {.outcome = LOCK_GRANTED, .fence = ++f->fence, .pttl_ms = LEASE_MS, .leased = true};
        r.value = "1";
        r.value_len = 1;
        engine_begin(f->engine, s, LOCK_ACQUIRE, &key, &f->rule, 0, false, f->now_ms, &plan);
        engine_finish(f->engine, s->id, &plan, &r, "SETNX", "10.1.1.1:5000", f->now_ms);
    }
}

enum { TICK_TIMERS = 64 }; /* what a shard does in a tick that comes in time */

/* Ticks until `due` leases, all of one shard, have been visited. No tick asks for more renewals than other requests may
 * wait behind. */
static void tick_all(struct fixture *f, int due) {
    int ticks = due / TICK_TIMERS + 1;
    for (int i = 0; i < ticks; i++) {
        uint64_t before = f->renewals;
        engine_tick(f->engine, 0, 1, f->now_ms);
        assert_true(f->renewals - before <= TICK_TIMERS);
    }
}

/* What ticks and the answers to their renewals cost where so many are due. */
static uint64_t renew_due(struct fixture *f, int due) {
    struct lock_result done = {.outcome = LOCK_DONE, .pttl_ms = LEASE_MS, .leased = true};
    blocks = 0;
    f->renewals = 0;
    tick_all(f, due);
    assert_int_equal(f->renewals, due);
    for (uint64_t i = 0; i < f->renewals; i++)
        engine_renewed(f->engine, &f->asked_keys[i], f->asked_tokens[i], &done, f->now_ms);
    return blocks;
}

static void a_million_leases_are_light(void **state) {
    struct fixture *f = *state;
    struct lock_stats stats;
    size_t before = booked;
    int held = 0;
    static const int COUNTS[] = {MILLION, WORST};
    for (size_t i = 0; i < sizeof(COUNTS) / sizeof(COUNTS[0]); i++) {
        acquire(f, held, COUNTS[i] - held);
        held = COUNTS[i];
        engine_stats(f->engine, &stats);
        assert_int_equal(stats.leases, held);
        size_t each = (booked - before) / (size_t)held;
        print_message("%d leases on keys of 21 bytes: %zu bytes each\n", held, each);
        assert_true(each <= BYTES_A_LEASE);
    }
    for (int i = 0; i < SESSIONS; i++)
        engine_session_close(f->engine, &f->sessions[i], f->now_ms);
    f->now_ms += LEASE_MS;
    tick_all(f, held);
    engine_stats(f->engine, &stats);
    assert_int_equal(stats.leases, 0);
    f->now_ms += MEMORY_MS; /* late releases may come over other connections */
    tick_all(f, held);
    engine_stats(f->engine, &stats);
    assert_int_equal(stats.claims + stats.keys, 0);
    for (int i = 0; i < 32; i++)
        engine_tick(f->engine, 0, 1, f->now_ms += 1000);
    assert_true(booked - before < MILLION); /* it comes back */
}

enum { FEW = 1000, MORE = 10 * FEW, STEP_MS = 100 };

struct cost {
    uint64_t nothing, few, more; /* blocks of a tick with so many due */
};

/* Renews FEW leases and then MORE, beside `others` that are not due then. */
static struct cost cost_among(int others) {
    struct fixture *f;
    struct cost cost;
    set_up((void **)&f);
    acquire(f, 0, others);
    f->now_ms += 2 * STEP_MS;
    acquire(f, others, FEW);
    f->now_ms += STEP_MS;
    acquire(f, others + FEW, MORE);
    f->now_ms += LEASE_MS / 3 - 3 * STEP_MS;
    renew_due(f, others);
    f->now_ms += STEP_MS;
    cost.nothing = renew_due(f, 0);
    f->now_ms += STEP_MS;
    cost.few = renew_due(f, FEW);
    f->now_ms += STEP_MS;
    cost.more = renew_due(f, MORE);
    print_message("%d others: %" PRIu64 " blocks to renew none, %" PRIu64 " for %d, %" PRIu64 " for %d\n", others,
                  cost.nothing, cost.few, FEW, cost.more, MORE);
    tear_down((void **)&f);
    return cost;
}

static void renewing_costs_what_is_due(void **state) {
    (void)state;
    struct cost few = cost_among(MILLION / 100), many = cost_among(MILLION);
    assert_true(few.few > 0 && many.few < 2 * few.few); /* a hundred times as many: the logarithm of a heap */
    assert_true(many.more < 12 * many.few);
    assert_true(many.nothing <= few.nothing);
}

static void late_renewals_hurry(void **state) {
    struct fixture *f = *state;
    enum { LATE_MS = 3000, ALL = 20000 };
    acquire(f, 0, ALL);
    f->now_ms += LEASE_MS / 3 + LATE_MS;
    f->renewals = 0;
    assert_int_equal(engine_tick(f->engine, 0, 1, f->now_ms), 1); /* it wants to go on */
    assert_in_range(f->renewals, 2 * TICK_TIMERS, 10 * TICK_TIMERS);
}

/* ---- looking in --------------------------------------------------------------------------------------- */

enum { SEEN = 100000, SHOWN = 1000, LATER = 50000, BLOCKS_A_LOOK = 100000 };

struct seen {
    uint64_t count, fence; /* of the last one */
};

static void on_lease(void *arg, const struct lock_view *v) {
    struct seen *seen = arg;
    assert_true(seen->count == 0 || v->fence < seen->fence); /* newest first, none twice */
    seen->fence = v->fence;
    seen->count++;
}

/* Walks through all leases, while more come halfway. */
static void look_through(struct fixture *f, int more, struct seen *seen) {
    struct lock_walk *walk = engine_walk_new(SHOWN, false);
    uint64_t looks = 0;
    do {
        if (looks++ == 20 && more > 0)
            acquire(f, SEEN, more);
        blocks = 0;
    } while (engine_walk_step(f->engine, walk, f->now_ms) && blocks < BLOCKS_A_LOOK);
    assert_true(looks > 20 && blocks < BLOCKS_A_LOOK);
    *seen = (struct seen){0};
    engine_walk_each(walk, on_lease, seen);
    engine_walk_free(walk);
}

static void looking_in_stops_nobody(void **state) {
    struct fixture *f = *state;
    struct seen seen;
    acquire(f, 0, SEEN);
    uint64_t newest = f->fence;
    look_through(f, 0, &seen);
    assert_int_equal(seen.count, SHOWN);
    assert_int_equal(seen.fence, newest - SHOWN + 1);
    look_through(f, LATER, &seen); /* the table grows: elements that were there are visited, or newer ones instead */
    assert_int_equal(seen.count, SHOWN);
    assert_true(seen.fence > newest - SHOWN);
}

static void on_old_lease(void *arg, const struct lock_view *v) {
    struct seen *seen = arg;
    assert_true(seen->count == 0 || v->fence > seen->fence); /* oldest first */
    seen->fence = v->fence;
    seen->count++;
}

/* The oldest of many are found, whatever the order in which the walk meets them. */
static void the_oldest_are_found(void **state) {
    struct fixture *f = *state;
    struct seen seen = {0};
    uint64_t before = f->fence;
    acquire(f, 0, SEEN);
    struct lock_walk *walk = engine_walk_new(SHOWN, true);
    while (engine_walk_step(f->engine, walk, f->now_ms))
        ;
    engine_walk_each(walk, on_old_lease, &seen);
    engine_walk_free(walk);
    assert_int_equal(seen.count, SHOWN);
    assert_int_equal(seen.fence, before + SHOWN);
}

/* ---- leaving ------------------------------------------------------------------------------------------ */

enum { MANY = 200000, LEFT = 100000, STEPS_MAX = 300, BLOCKS_A_STEP = 2000, TICKS_MAX = 8000 };

static uint64_t told; /* leases that the sink was told of */

static void on_left(void *arg, const struct lock_left *left) {
    (void)arg, (void)left;
    told++;
}

/* Ticks until all is gone through; no tick takes more than its steps. Returns how many leases were told of. */
static uint64_t depart(struct fixture *f) {
    uint64_t all = 0;
    for (int i = 0; i < TICKS_MAX && engine_departs(f->engine); i++) {
        f->now_ms++;
        blocks = told = 0;
        int64_t next = engine_tick(f->engine, 0, 1, f->now_ms);
        assert_true(next == 1 || !engine_departs(f->engine));
        assert_true(told <= STEPS_MAX && blocks < STEPS_MAX * BLOCKS_A_STEP);
        all += told;
    }
    assert_false(engine_departs(f->engine));
    return all;
}

static void who_leaves_with_many_leases_stops_nobody(void **state) {
    struct fixture *f;
    struct lock_stats stats;
    (void)state;
    set_up((void **)&f);
    struct lock_sink sink = {
        .arg = f, .incident = on_incident, .renew = on_renew, .release = on_release, .left = on_left};
    struct lock_engine *plain = f->engine;
    f->engine = engine_new(PROCESS, 42, &sink);
    for (int i = 0; i < SESSIONS; i++) {
        struct lock_session *s = &f->sessions[i];
        engine_session_close(plain, s, f->now_ms);
        engine_session_open(f->engine, s, (uint64_t)i + 1, i ? "10.1.1.2 app" : "10.1.1.1 app", 12);
    }
    engine_free(plain);
    for (int i = 0; i < MANY; i++) {
        f->now_ms += i % 100 == 0;
        acquire(f, i * SESSIONS, 1); /* all are the first session's */
    }
    uint64_t before = f->renewals, all = told = 0;
    blocks = 0;
    engine_session_close(f->engine, &f->sessions[0], f->now_ms);
    print_message("leaving with %d leases: %" PRIu64 " told of and %" PRIu64 " blocks at once\n", MANY, told, blocks);
    assert_true(told <= STEPS_MAX && blocks < STEPS_MAX * BLOCKS_A_STEP);
    all = told;
    all += depart(f);
    assert_int_equal(all, MANY);
    assert_int_equal(f->renewals, before);
    engine_stats(f->engine, &stats);
    assert_int_equal(stats.leases, MANY);
    f->now_ms += LEASE_MS;
    tick_all(f, MANY);
    engine_stats(f->engine, &stats);
    assert_int_equal(stats.leases, 0);
    tear_down((void **)&f);
}

/* Locks whose owners have left cost a client that leaves later nothing. */
static void who_leaves_behind_many_owners_pays_nothing(void **state) {
    struct fixture *f = *state;
    uint64_t id = SESSIONS;
    for (int i = 0; i < LEFT; i++) { /* others of their identity are there all the time */
        engine_session_close(f->engine, &f->sessions[0], f->now_ms);
        engine_session_open(f->engine, &f->sessions[0], ++id, "10.1.1.1 app", 12);
        f->now_ms += i % 100 == 0;
        acquire(f, i * SESSIONS, 1);
    }
    for (int i = 1; i < SESSIONS; i++) {
        engine_session_close(f->engine, &f->sessions[i], f->now_ms);
        f->now_ms++;
    }
    blocks = 0;
    engine_session_close(f->engine, &f->sessions[0], f->now_ms); /* the last one */
    print_message("the last one of %d: %" PRIu64 " blocks\n", LEFT, blocks);
    assert_true(blocks < STEPS_MAX * BLOCKS_A_STEP);
    (void)depart(f);
    static const char *const NAMES[] = {"10.1.1.1 app", "10.1.1.2 app"};
    for (int i = 0; i < 10; i++) {
        engine_session_open(f->engine, &f->sessions[0], ++id, NAMES[i % 2], 12);
        f->now_ms++;
        acquire(f, i * SESSIONS + (LEFT + 1) * SESSIONS, 1);
        blocks = 0;
        engine_session_close(f->engine, &f->sessions[0], f->now_ms);
        if (i == 0)
            print_message("one more: %" PRIu64 " blocks\n", blocks);
        assert_true(blocks < BLOCKS_A_STEP);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_leaves_with_many_leases_stops_nobody),
        cmocka_unit_test_setup_teardown(who_leaves_behind_many_owners_pays_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_million_leases_are_light, set_up, tear_down),
        cmocka_unit_test(renewing_costs_what_is_due),
        cmocka_unit_test_setup_teardown(late_renewals_hurry, set_up, tear_down),
        cmocka_unit_test_setup_teardown(looking_in_stops_nobody, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_oldest_are_found, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("lease scale", tests, NULL, NULL);
}
