/* PROXY ADVISE's memory: keys to patterns, events to counts, counts to a line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/lock/advise.h"
#include "proxy/lock/hash.h"

static int64_t now_ms = 1000000;

static int set_up(void **state) {
    *state = advisor_new(7);
    return 0;
}

static int tear_down(void **state) {
    advisor_free(*state);
    return 0;
}

static void send_value(struct advisor *a, enum advise_event event, const char *key, uint64_t session,
                       const char *client, const char *value, int64_t pttl_ms) {
    struct advise_sight sight = {.event = event,
                                 .key = {.name = key, .len = strlen(key)},
                                 .session_id = session,
                                 .client = client,
                                 .client_len = strlen(client),
                                 .client_hash = hash_bytes(&(struct hash_seed){1, 2}, client, strlen(client)),
                                 .value = value,
                                 .value_len = value ? strlen(value) : 0,
                                 .pttl_ms = pttl_ms};
    advisor_note(a, &sight, now_ms);
}

static void tell(struct advisor *a, enum advise_event event, const char *key, uint64_t session, const char *client) {
    send_value(a, event, key, session, client, "1", 5000);
}

static void count_line(void *arg, const char *line, size_t len) {
    assert_true(len < ADVISE_LINE_MAX);
    (void)line;
    ++*(unsigned *)arg;
}

struct lines {
    unsigned count;
    char text[64][ADVISE_LINE_MAX];
};

static void add_line(void *arg, const char *line, size_t len) {
    struct lines *l = arg;
    if (l->count == 64)
        return;
    snprintf(l->text[l->count++], ADVISE_LINE_MAX, "%.*s", (int)len, line);
}

static struct lines *lines_of(struct advisor *a) {
    static struct lines l;
    l.count = 0;
    advisor_each(a, now_ms, add_line, &l);
    return &l;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

#define ADVISED(a, end)                                                                                                \
    do {                                                                                                               \
        struct lines *advised = lines_of(a);                                                                           \
        if (advised->count != 1 || !ends_with(advised->text[0], end))                                                  \
            fail_msg("%u lines, the first: %s", advised->count, advised->text[0]);                                     \
    } while (0)

static void keys_become_patterns(void **state) {
    static const char *const cases[][2] = {
        {"job:123:lock", "job:*:lock"},
        {"lock:report", "lock:report"},
        {"lock-7", "lock-*"},
        {"u42", "u*"},
        {"lock:6f9a2c51-7d7e-4a49-9d35-0b8f5f3c2a10", "lock:*"},
        {"lock:6f9a2c51-7d7e-4a49-9d35-0b8f5f3c2a10:x", "lock:*:x"},
        {"h:d41d8cd98f00b204e9800998ecf8427e", "h:*"},
        {"\\12", "\\\\*"},
        {"a[1]?*\\", "a\\[*\\]\\?\\*\\\\"},
        {"", ""},
    };
    char out[ADVISE_PATTERN_MAX];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        advise_pattern(cases[i][0], strlen(cases[i][0]), out);
        assert_string_equal(out, cases[i][1]);
    }
    char longest[300];
    memset(longest, 'x', sizeof(longest));
    size_t len = advise_pattern(longest, sizeof(longest), out);
    assert_true(len < ADVISE_PATTERN_MAX && out[len - 1] == '*');
    (void)state;
}

/* Two keys have the same hash where they have the same pattern. Keys of few different bytes and many lengths, so that
 * there are many of both. */
static void patterns_have_hashes(void **state) {
    static const char BYTES[] = "aaf0179zG:-_.*\\?[]\0\377";
    enum { KEYS = 3000, LONGEST = 130 };
    static struct {
        char pattern[ADVISE_PATTERN_MAX];
        uint64_t hash;
    } seen[KEYS];
    uint64_t number = 1;
    unsigned same = 0;
    for (size_t k = 0; k < KEYS; k++) {
        char key[LONGEST];
        size_t len = (number = hash_number(number + k)) % 5 ? number % 4 : number % LONGEST, bytes = sizeof(BYTES) - 1;
        size_t few = k % 3 ? 4 : bytes;
        for (size_t i = 0; i < len; i++)
            key[i] = BYTES[(number = hash_number(number)) % few];
        advise_pattern(key, len, seen[k].pattern);
        seen[k].hash = advise_pattern_hash(key, len);
        for (size_t i = 0; i < k; i++) {
            bool equal = strcmp(seen[i].pattern, seen[k].pattern) == 0;
            same += equal;
            if (equal != (seen[i].hash == seen[k].hash))
                fail_msg("\"%s\" and \"%s\"", seen[i].pattern, seen[k].pattern);
        }
    }
    assert_in_range(same, 1000, KEYS * (KEYS - 1) / 4);
    (void)state;
}

static void a_connection_for_each_worker(void **state) {
    for (uint64_t i = 0; i < 20; i++) {
        tell(*state, ADVISE_ACQUIRED, "job:1:lock", i % 3, "app");
        tell(*state, ADVISE_LOST, "job:1:lock", i % 3 + 10, "app");
        tell(*state, ADVISE_RELEASED, "job:1:lock", i % 3, "app");
    }
    ADVISED(*state, "60 events: lock job:*:lock");
    assert_non_null(strstr(lines_of(*state)->text[0], "a connection for each worker; values constant"));
}

static void a_pool(void **state) {
    char value[16];
    for (uint64_t i = 0; i < 20; i++) {
        snprintf(value, sizeof(value), "%d", (int)i);
        send_value(*state, ADVISE_ACQUIRED, "job:lock", i % 3, "app", value, 5000);
        tell(*state, ADVISE_RELEASED, "job:lock", (i + 1) % 3, "app");
    }
    ADVISED(*state, "lock job:lock owner client");
    assert_non_null(strstr(lines_of(*state)->text[0], "a pool of connections; values distinct"));
}

static void a_library_that_multiplexes(void **state) {
    struct advise_sight sight = {.key = {.name = "k", .len = 1},
                                 .session_id = 1,
                                 .client = "app",
                                 .client_len = 3,
                                 .library = "lettuce",
                                 .pttl_ms = 5000};
    for (int i = 0; i < 20; i++) {
        sight.event = i % 2 ? ADVISE_RELEASED : ADVISE_ACQUIRED;
        advisor_note(*state, &sight, now_ms);
    }
    ADVISED(*state, "lock k owner client");
    assert_non_null(strstr(lines_of(*state)->text[0], "a pool of connections (lettuce)"));
}

static void a_multiplexed_connection(void **state) {
    for (int i = 0; i < 20; i++) {
        tell(*state, ADVISE_ACQUIRED, "k", 1, "app");
        tell(*state, ADVISE_LOST, "k", 1, "app");
        tell(*state, ADVISE_RELEASED, "k", 1, "app");
    }
    ADVISED(*state, "lock k owner client");
    assert_non_null(strstr(lines_of(*state)->text[0], "one connection for several workers"));
}

static void queued_jobs(void **state) {
    for (int i = 0; i < 20; i++) {
        tell(*state, ADVISE_ACQUIRED, "job", 1, "queue");
        tell(*state, ADVISE_RELEASED, "job", 2, "worker");
    }
    struct lines *l = lines_of(*state);
    assert_true(ends_with(l->text[0], "lock job owner any"));
    assert_non_null(strstr(l->text[0], "by others 20"));
}

static void throttles_are_no_leaks(void **state) {
    char key[32];
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "throttle:%d", i);
        tell(*state, ADVISE_ACQUIRED, key, 1, "app");
        now_ms += 6000;
    }
    ADVISED(*state, "a throttle, never released: no rule is needed");
    assert_non_null(strstr(lines_of(*state)->text[0], "overruns 0"));
}

static void late_releases_are_overruns(void **state) {
    for (int i = 0; i < 20; i++) {
        tell(*state, ADVISE_ACQUIRED, "k", 1, "app");
        now_ms += i % 2 ? 6000 : 1000;
        tell(*state, i % 2 ? ADVISE_IN_VAIN : ADVISE_RELEASED, "k", 1, "app");
    }
    assert_non_null(strstr(lines_of(*state)->text[0], "late 10, overruns 10"));
}

static void few_events_advise_nothing(void **state) {
    for (int i = 0; i < ADVISE_ENOUGH - 1; i++) {
        tell(*state, ADVISE_ACQUIRED, "k", 1, "app");
        tell(*state, ADVISE_RELEASED, "k", 1, "app");
    }
    ADVISED(*state, "too few to advise");
}

static void many_names_are_one_pattern(void **state) {
    char key[32];
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 26; i++) {
            snprintf(key, sizeof(key), "lock:name%c", 'a' + i);
            tell(*state, ADVISE_ACQUIRED, key, 1, "app");
            tell(*state, ADVISE_RELEASED, key, 1, "app");
        }
    ADVISED(*state, "156 events: lock lock:*");
}

static void memory_is_bounded(void **state) {
    char key[64], client[32];
    for (int i = 0; i < 20000; i++) {
        snprintf(key, sizeof(key), "%c%c:%d:%c", 'a' + i % 26, 'a' + i / 26 % 26, i, 'a' + i % 7);
        snprintf(client, sizeof(client), "client %d", i % 100);
        tell(*state, ADVISE_ACQUIRED, key, (uint64_t)i, client);
    }
    unsigned lines = 0;
    advisor_each(*state, now_ms, count_line, &lines);
    assert_in_range(lines, 100, 512);
}

static void known_keys(void **state) {
    assert_false(advisor_knows(*state, "lock", 4));
    tell(*state, ADVISE_ACQUIRED, "lock", 1, "app");
    assert_true(advisor_knows(*state, "lock", 4));
    now_ms += 400000;
    advisor_arm(*state, "other", 5, now_ms);
    assert_true(advisor_knows(*state, "lock", 4)); /* one generation ago */
    now_ms += 400000;
    advisor_arm(*state, "other", 5, now_ms);
    assert_false(advisor_knows(*state, "lock", 4));
}

/* An expiry at the end of time is none. */
static void the_longest_expiry(void **state) {
    for (uint64_t i = 0; i < 20; i++) {
        send_value(*state, ADVISE_ACQUIRED, "job:1:lock", 1, "app", "1", INT64_MAX);
        send_value(*state, ADVISE_EXTENDED, "job:1:lock", 1, "app", NULL, INT64_MAX - 1);
        tell(*state, ADVISE_RELEASED, "job:1:lock", 1, "app");
    }
    assert_non_null(strstr(lines_of(*state)->text[0], "acquired 20, lost 0, released 20, overruns 0;"));
}

/* Where thousands come some keys stand for all, others the next minute, and nothing is taken for an overrun that was
 * not seen whole. */
static void many_events(void **state) {
    unsigned wanted = 0, before = 0;
    for (unsigned n = 0; n < 20000; n++) {
        char key[32];
        int len = snprintf(key, sizeof(key), "job:%u:lock", n);
        now_ms += n % 4 == 0;
        bool acquire = advisor_samples(*state, key, (size_t)len, now_ms);
        if (acquire)
            send_value(*state, ADVISE_ACQUIRED, key, 1, "app", "1", 5);
        if (advisor_samples(*state, key, (size_t)len, now_ms))
            tell(*state, ADVISE_RELEASED, key, 1, "app");
        wanted += acquire;
        before = n < 5000 ? wanted : before;
    }
    assert_true(wanted - before > 50 && wanted - before < 1000);
    now_ms += 200000;
    assert_non_null(strstr(lines_of(*state)->text[0], ", overruns 0;"));
    for (unsigned n = 0; n < 100; n++) { /* calm again */
        char key[32];
        assert_true(advisor_samples(*state, key, (size_t)snprintf(key, sizeof(key), "job:%u", n), now_ms));
    }
}

static void some_keys_stand_for_all_in_turn(void **state) {
    bool seen = false;
    for (unsigned minute = 0; minute < 200; minute++, now_ms += 65536) {
        bool now = false;
        for (unsigned n = 0; n < 3000; n++)
            now = advisor_samples(*state, "cron-lock", 9, now_ms);
        seen = seen || now;
        assert_true(advisor_samples(*state, "another-lock", 12, now_ms)); /* keys that begin otherwise are others */
    }
    assert_true(seen);
}

static void queue(struct advisor *a, enum advise_event event, const char *node, uint64_t session, const char *client,
                  bool waits) {
    struct advise_sight sight = {.event = event,
                                 .key = {.name = "turn", .len = 4},
                                 .queue = true,
                                 .waits = waits,
                                 .session_id = session,
                                 .client = client,
                                 .client_len = strlen(client),
                                 .client_hash = hash_bytes(&(struct hash_seed){1, 2}, client, strlen(client)),
                                 .value = node,
                                 .value_len = strlen(node),
                                 .pttl_ms = -1};
    advisor_note(a, &sight, now_ms);
}

static void a_list_is_a_lock_where_its_head_is_looked_at(void **state) {
    char first[16], second[16];
    for (unsigned n = 0; n < 20; n++) {
        snprintf(first, sizeof(first), "a%u", n);
        snprintf(second, sizeof(second), "b%u", n);
        queue(*state, ADVISE_PUSHED, first, 1, "app", false);
        queue(*state, ADVISE_HEAD, first, 1, "app", false);
        queue(*state, ADVISE_PUSHED, second, 2, "app", true);
        queue(*state, ADVISE_HEAD, first, 2, "app", false);
        queue(*state, ADVISE_HEAD, first, 1, "app", false);
        queue(*state, ADVISE_TAKEN, first, 1, "app", false);
        queue(*state, ADVISE_HEAD, second, 2, "app", false);
        queue(*state, ADVISE_TAKEN, second, 2, "app", false);
    }
    assert_string_equal(
        lines_of(*state)->text[0],
        "turn by app: a list lock; a connection for each worker; values distinct; acquired 40, lost 20, "
        "released 40, overruns 0, without expiry 40; 100 events: lock turn");
}

static void jobs_in_a_list_are_no_lock(void **state) {
    char node[16];
    for (unsigned n = 0; n < 20; n++) {
        snprintf(node, sizeof(node), "%u", n);
        queue(*state, ADVISE_PUSHED, node, 1, "producer", n % 3);
        queue(*state, ADVISE_HEAD, node, 2, "monitor", false);
        queue(*state, ADVISE_TAKEN, node, 3, "worker", false);
    }
    assert_int_equal(lines_of(*state)->count, 0);
    for (unsigned n = 0; n < 20; n++) {
        snprintf(node, sizeof(node), "%u", n);
        queue(*state, ADVISE_PUSHED, node, 1, "producer", false);
        queue(*state, ADVISE_HEAD, node, 1, "producer", false);
        queue(*state, ADVISE_TAKEN, node, 3, "worker", false);
    }
    assert_non_null(strstr(lines_of(*state)->text[0], "a queue of jobs"));
}

static void scripts_by_their_text(void **state) {
    static const struct {
        const char *source;
        enum advise_script kind;
    } scripts[] = {
        {"if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then redis.call('pexpire', KEYS[1], ARGV[2]) return 1 end "
         "return 0",
         ADVISE_SCRIPT_ACQUIRES},
        {"return redis.call(\"SET\", KEYS[1], ARGV[1], \"NX\", \"PX\", ARGV[2])", ADVISE_SCRIPT_ACQUIRES},
        {"if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end",
         ADVISE_SCRIPT_RELEASES},
        {"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end",
         ADVISE_SCRIPT_OTHER},
        {"if (redis.call('exists', KEYS[1]) == 0) then redis.call('hincrby', KEYS[1], ARGV[2], 1); "
         "redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; return redis.call('pttl', KEYS[1]);",
         ADVISE_SCRIPT_ENTERS},
        {"local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); if (counter > 0) then return 0; "
         "else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end;",
         ADVISE_SCRIPT_LEAVES},
        {"return redis.call('set', KEYS[1], 'it is', 'nx')", ADVISE_SCRIPT_ACQUIRES},
        {"return 1", ADVISE_SCRIPT_OTHER},
        {"'", ADVISE_SCRIPT_OTHER},
        {"", ADVISE_SCRIPT_OTHER},
    };
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++)
        assert_int_equal(advise_script_kind(scripts[i].source, strlen(scripts[i].source)), scripts[i].kind);
    advisor_script_note(*state, 0x1234567890abcdef, ADVISE_SCRIPT_RELEASES);
    assert_int_equal(advisor_script(*state, 0x1234567890abcdef), ADVISE_SCRIPT_RELEASES);
    assert_int_equal(advisor_script(*state, 0x1234567890abcdef + 256), ADVISE_SCRIPT_OTHER);
    assert_int_equal(advisor_script(*state, 1), ADVISE_SCRIPT_OTHER);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(keys_become_patterns),
        TEST(patterns_have_hashes),
        TEST(a_connection_for_each_worker),
        TEST(a_pool),
        TEST(a_library_that_multiplexes),
        TEST(a_multiplexed_connection),
        TEST(queued_jobs),
        TEST(throttles_are_no_leaks),
        TEST(late_releases_are_overruns),
        TEST(few_events_advise_nothing),
        TEST(many_names_are_one_pattern),
        TEST(memory_is_bounded),
        TEST(known_keys),
        TEST(the_longest_expiry),
        TEST(many_events),
        TEST(some_keys_stand_for_all_in_turn),
        TEST(a_list_is_a_lock_where_its_head_is_looked_at),
        TEST(jobs_in_a_list_are_no_lock),
        TEST(scripts_by_their_text),
    };
    return cmocka_run_group_tests_name("advise", tests, NULL, NULL);
}
