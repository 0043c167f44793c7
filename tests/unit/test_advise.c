/* PROXY ADVISE's memory: keys to patterns, events to counts, counts to a line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/advise/advise.h"
#include "proxy/observe/private.h"
#include "proxy/lock/hash.h"

static int64_t now_ms = 1000000;

static int set_up(void **state) {
    *state = observer_new(7);
    return 0;
}

static int tear_down(void **state) {
    observer_free(*state);
    return 0;
}

static void send_value(struct observer *a, enum seen_event event, const char *key, uint64_t session, const char *client,
                       const char *value, int64_t pttl_ms) {
    struct lock_event sight = {.key = {.name = key, .len = strlen(key)},
                               .session_id = session,
                               .identity = client,
                               .identity_len = strlen(client),
                               .identity_hash = hash_bytes(&(struct hash_seed){1, 2}, client, strlen(client)),
                               .value = value,
                               .value_len = value ? strlen(value) : 0,
                               .pttl_ms = pttl_ms};
    observer_note(a, event, &sight, now_ms);
}

static void tell(struct observer *a, enum seen_event event, const char *key, uint64_t session, const char *client) {
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
    if (l->count == 64 || strncmp(line, "UNSAFE ", 7) == 0)
        return;
    snprintf(l->text[l->count++], ADVISE_LINE_MAX, "%.*s", (int)len, line);
}

static struct lines *lines_of(struct observer *a) {
    static struct lines l;
    l.count = 0;
    advise_each(a, NULL, now_ms, add_line, &l);
    return &l;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

struct risks {
    unsigned count;
    char text[ADVISE_LINE_MAX];
};

static void add_risk(void *arg, const char *line, size_t len) {
    struct risks *risks = arg;
    if (strncmp(line, "UNSAFE ", 7) != 0)
        return;
    risks->count++;
    snprintf(risks->text, sizeof(risks->text), "%.*s", (int)len, line);
}

/* The one risk that is said has this part; NULL: none is said. */
static void says_risk(struct observer *a, const char *part) {
    struct risks risks = {0};
    advise_each(a, NULL, now_ms, add_risk, &risks);
    if (risks.count != (part ? 1 : 0) || (part && !strstr(risks.text, part)))
        fail_msg("%u risks, the last: %s", risks.count, risks.text);
}

#define ADVISED(a, end)                                                                                                \
    do {                                                                                                               \
        struct lines *advised = lines_of(a);                                                                           \
        if (advised->count != 1 || !ends_with(advised->text[0], end))                                                  \
            fail_msg("%u lines, the first: %s", advised->count, advised->text[0]);                                     \
    } while (0)

#define SAID(a, part)                                                                                                  \
    do {                                                                                                               \
        struct lines *said = lines_of(a);                                                                              \
        if (said->count != 1 || !strstr(said->text[0], part))                                                          \
            fail_msg("%u lines, the first: %s", said->count, said->text[0]);                                           \
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
        tell(*state, SEEN_ACQUIRED, "job:1:lock", i % 3, "app");
        tell(*state, SEEN_LOST, "job:1:lock", i % 3 + 10, "app");
        tell(*state, SEEN_RELEASED, "job:1:lock", i % 3, "app");
    }
    ADVISED(*state, "60 events: lock job:*:lock");
    assert_non_null(strstr(lines_of(*state)->text[0], "a connection for each worker; values constant"));
}

/* Patterns that look like locks and match no rule are counted, each once, however many clients have it. */
static void locks_without_a_rule(void **state) {
    struct observer *a = *state;
    const char *const words[] = {"job:*:lock"}, *const off[] = {"job:*", "mode", "off"};
    char error[256], key[32];
    struct lock_rules *none = lock_rules_new(), *rules = lock_rules_new();
    assert_int_equal(advise_unruled(a, none, 0), 0);
    for (uint64_t i = 0; i < 60; i++) { /* two clients, and a throttle that is no lock */
        if (i == 13)                    /* they have 9 together */
            assert_int_equal(advise_unruled(a, none, 0), 0);
        snprintf(key, sizeof(key), i % 3 == 2 ? "throttle:%d" : "job:%d:lock", (int)i);
        tell(a, SEEN_ACQUIRED, key, i % 3, i % 3 ? "app" : "other");
        if (i % 3 != 2)
            tell(a, SEEN_RELEASED, key, i % 3, i % 3 ? "app" : "other");
    }
    assert_int_equal(advise_unruled(a, none, 0), 1);
    for (uint64_t i = 0; i < 10; i++) {
        now_ms += 1000;
        tell(a, SEEN_ACQUIRED, "cron", 1, "app");
        tell(a, SEEN_RELEASED, "cron", 1, "app");
    }
    assert_int_equal(advise_unruled(a, none, 0), 2);
    assert_int_equal(advise_unruled(a, none, now_ms), 1);
    assert_int_equal(advise_unruled(a, none, now_ms + 1), 0);
    assert_null(lock_rules_add(rules, words, 1, error, sizeof(error)));
    assert_int_equal(advise_unruled(a, rules, 0), 1);
    lock_rules_unref(rules);
    rules = lock_rules_new();
    assert_null(lock_rules_add(rules, off, 3, error, sizeof(error)));
    assert_int_equal(advise_unruled(a, rules, 0), 1);
    lock_rules_unref(rules);
    lock_rules_unref(none);
}

/* A release over another session that has tried before is what a pool does; over one that has not, an operator. */
static void a_pool(void **state) {
    char value[16];
    for (uint64_t i = 0; i < 23; i++) {
        snprintf(value, sizeof(value), "%d", (int)i);
        send_value(*state, SEEN_ACQUIRED, "job:lock", i % 3, "app", value, 5000);
        tell(*state, SEEN_RELEASED, "job:lock", (i < 3 ? i : i + 1) % 3, "app");
    }
    ADVISED(*state, "lock job:lock owner client");
    SAID(*state, "a pool of connections; values distinct; acquired 23, lost 0, released 23, overruns 0;");
}

static void an_operator_makes_no_pool(void **state) {
    for (uint64_t i = 0; i < 40; i++) {
        tell(*state, SEEN_ACQUIRED, "job:lock", i % 3, "app");
        tell(*state, SEEN_RELEASED, "job:lock", i % 4 ? i % 3 : 9, "app");
        if (i % 4 == 0)
            tell(*state, i % 3 ? SEEN_RELEASED : SEEN_IN_VAIN, "job:lock", i % 3, "app");
    }
    ADVISED(*state, "lock job:lock");
    SAID(*state, "connections not known");
}

/* The late worker's lock was over: its release frees another worker's lock, and proves nothing. */
static void a_late_release_makes_no_pool(void **state) {
    for (uint64_t i = 0; i < 40; i++) {
        tell(*state, SEEN_ACQUIRED, "k", i % 2, "app");
        now_ms += 6000;
        tell(*state, SEEN_ACQUIRED, "k", (i + 1) % 2, "app");
        tell(*state, SEEN_RELEASED, "k", i % 2, "app");
        tell(*state, SEEN_IN_VAIN, "k", (i + 1) % 2, "app");
    }
    ADVISED(*state, "lock k");
    SAID(*state, "connections not known; values constant; acquired 80, lost 0, released 40, late 40, in vain 40, "
                 "overruns 40;");
}

/* A GETSET that takes over is no evidence of a pool. */
static void a_swap_makes_no_pool(void **state) {
    for (uint64_t i = 0; i < 20; i++) {
        tell(*state, SEEN_ACQUIRED, "k", 1, "app");
        tell(*state, SEEN_LOST, "k", 2, "app");
        tell(*state, SEEN_SWAPPED, "k", 2, "app");
        tell(*state, SEEN_RELEASED, "k", 2, "app");
    }
    ADVISED(*state, "lock k");
    SAID(*state, "connections not known; values constant; acquired 20, lost 20, released 20, overruns 0;");
}

static void contenders(struct observer *a, const char *library, bool overlapped) {
    struct lock_event sight = {.key = {.name = "k", .len = 1},
                               .session_id = 1,
                               .identity = "app",
                               .identity_len = 3,
                               .library = library,
                               .overlapped = overlapped,
                               .pttl_ms = 5000};
    for (int i = 0; i < 20; i++) {
        enum seen_event what = i % 2 ? SEEN_RELEASED : SEEN_ACQUIRED;
        observer_note(a, what, &sight, now_ms);
    }
}

static void a_library_that_multiplexes(void **state) {
    contenders(*state, "ioredis", false);
    ADVISED(*state, "lock k owner client");
    SAID(*state, "one connection for several workers (ioredis);");
}

static void a_library_that_pools_is_no_proof(void **state) {
    contenders(*state, "redis-py", false);
    ADVISED(*state, "lock k");
    SAID(*state, "connections not known (redis-py);");
}

static void a_multiplexed_connection(void **state) {
    contenders(*state, NULL, true);
    ADVISED(*state, "lock k owner client");
    SAID(*state, "one connection for several workers;");
}

/* One worker may try twice for what it has. */
static void nested_attempts_prove_nothing(void **state) {
    for (int i = 0; i < 20; i++) {
        tell(*state, SEEN_ACQUIRED, "k", 1, "app");
        tell(*state, SEEN_LOST, "k", 1, "app");
        tell(*state, SEEN_RELEASED, "k", 1, "app");
    }
    ADVISED(*state, "lock k");
    SAID(*state, "connections not known;");
}

/* Losers that release in `finally`, where nothing stops them: the holder's own release comes for nothing, or frees the
 * next one's lock. */
static void losers_that_delete(void **state) {
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t holder = i % 4, loser = (i + 1) % 4, next = (i + 2) % 4;
        tell(*state, SEEN_ACQUIRED, "job:lock", holder, "app");
        tell(*state, SEEN_LOST, "job:lock", loser, "app");
        tell(*state, SEEN_RELEASED, "job:lock", loser, "app");
        if (i % 2)
            tell(*state, SEEN_ACQUIRED, "job:lock", next, "app");
        tell(*state, i % 2 ? SEEN_RELEASED : SEEN_IN_VAIN, "job:lock", holder, "app");
        if (i % 2)
            tell(*state, SEEN_IN_VAIN, "job:lock", next, "app");
    }
    ADVISED(*state, "lock job:lock");
    SAID(*state, ", losers delete: 40 times, in vain 40, overruns 0;");
    says_risk(*state,
              "UNSAFE job:lock: 40 times a loser deleted another worker's lock. Rule that cures it: lock job:lock");
}

/* One application: each worker has a name of its own, and comes once or twice. Its rows take no other pattern's room.
 */
static void workers_with_a_name_each(void **state) {
    enum { WORKERS = 240, OTHERS = 40 };
    char names[2][32], key[16], error[96];
    for (int i = 0; i < OTHERS * 10; i++) {
        snprintf(key, sizeof(key), "%c%c:other", 'a' + i % OTHERS / 10, 'a' + i % 10);
        tell(*state, SEEN_ACQUIRED, key, 1, "other");
        tell(*state, SEEN_RELEASED, key, 1, "other");
    }
    for (uint64_t i = 0; i < WORKERS; i++) {
        uint64_t holder = i, loser = (i + 1) % WORKERS;
        snprintf(names[0], sizeof(names[0]), "10.0.0.%u x=%u", (unsigned)holder, (unsigned)holder);
        snprintf(names[1], sizeof(names[1]), "10.0.0.%u x=%u", (unsigned)loser, (unsigned)loser);
        tell(*state, SEEN_ACQUIRED, "report:lock", holder, names[0]);
        tell(*state, SEEN_LOST, "report:lock", loser, names[1]);
        tell(*state, SEEN_RELEASED, "report:lock", loser, names[1]);
        tell(*state, SEEN_IN_VAIN, "report:lock", holder, names[0]);
    }
    says_risk(*state, "UNSAFE report:lock: 240 times a loser deleted another worker's lock. Rule that cures it: lock "
                      "report:lock");
    struct lines *l = lines_of(*state);
    assert_int_equal(l->count, OTHERS + 1);
    assert_string_equal(l->text[0], "report:lock by 10.0.0.* x=*: connections not known; values constant; acquired "
                                    "240, lost 240, released 240, losers delete: 240 times, in vain 240, overruns 0; "
                                    "outside of the rules; 960 events: lock report:lock");
    for (unsigned i = 1; i < l->count; i++)
        assert_true(strstr(l->text[i], " by other: ") && strstr(l->text[i], "acquired 10, "));
    const char *const words[] = {"other:*"};
    struct lock_rules *rules = lock_rules_new();
    assert_null(lock_rules_add(rules, words, 1, error, sizeof(error)));
    assert_int_equal(advise_unruled(*state, rules, 0), OTHERS + 1);
    lock_rules_unref(rules);
}

/* Each has done something unsafe itself, and too little for a rule. */
static void a_few_workers_with_a_name_each(void **state) {
    enum { WORKERS = 6 };
    for (uint64_t i = 0; i < WORKERS * 5; i++) {
        char holder[8] = "w-?", loser[8] = "w-?";
        holder[2] = (char)('0' + i % WORKERS);
        loser[2] = (char)('0' + (i + 1) % WORKERS);
        tell(*state, SEEN_ACQUIRED, "k", i % WORKERS, holder);
        tell(*state, SEEN_LOST, "k", (i + 1) % WORKERS, loser);
        tell(*state, SEEN_RELEASED, "k", (i + 1) % WORKERS, loser);
        now_ms += i % WORKERS < 2 ? 30 : 0; /* some have slept */
        tell(*state, SEEN_IN_VAIN, "k", i % WORKERS, holder);
    }
    says_risk(*state, "UNSAFE k: 30 times a loser deleted another worker's lock. Rule that cures it: lock k");
    SAID(*state, "k by w-*: connections not known; values constant; acquired 30, lost 30, ");
}

/* Hundreds lose one lock before the first of them sends its DEL. */
static void a_crowd_of_losers(void **state) {
    enum { CROWD = 200, ROUNDS = 12 };
    char name[16];
    for (int round = 0; round < ROUNDS; round++) {
        tell(*state, SEEN_ACQUIRED, "report:lock", 0, "w-0");
        for (uint64_t i = 1; i < CROWD; i++) {
            snprintf(name, sizeof(name), "w-%u", (unsigned)i);
            tell(*state, SEEN_LOST, "report:lock", i, name);
        }
        for (uint64_t i = 1; i < CROWD; i++) {
            snprintf(name, sizeof(name), "w-%u", (unsigned)i);
            tell(*state, i == 1 ? SEEN_RELEASED : SEEN_IN_VAIN, "report:lock", i, name);
        }
        tell(*state, SEEN_IN_VAIN, "report:lock", 0, "w-0");
    }
    says_risk(*state, "UNSAFE report:lock: 12 times a loser deleted another worker's lock. Rule that cures it: lock "
                      "report:lock");
}

/* Clients of one pattern that differ have a line each, and the others are added up. */
static void clients_that_differ(void **state) {
    for (uint64_t i = 0; i < 48; i++) {
        char name[16];
        for (int twice = 0; twice < 2; twice++) {
            tell(*state, SEEN_ACQUIRED, "report:lock", 1, "good");
            tell(*state, SEEN_RELEASED, "report:lock", 1, "good");
        }
        tell(*state, SEEN_ACQUIRED, "report:lock", 2, "bad=1");
        tell(*state, SEEN_LOST, "report:lock", 3, "bad=1");
        tell(*state, SEEN_RELEASED, "report:lock", 3, "bad=1");
        tell(*state, SEEN_IN_VAIN, "report:lock", 2, "bad=1");
        snprintf(name, sizeof(name), "good-%u", (unsigned)(i % 12));
        tell(*state, SEEN_ACQUIRED, "report:lock", 100 + i % 12, name);
        tell(*state, SEEN_RELEASED, "report:lock", 100 + i % 12, name);
    }
    says_risk(*state, "UNSAFE report:lock by bad=1: 48 times a loser deleted");
    struct lines *l = lines_of(*state);
    assert_int_equal(l->count, 2);
    assert_non_null(strstr(l->text[0], "report:lock by good*: "));
    assert_non_null(strstr(l->text[0], "acquired 144, lost 0, released 144, overruns 0;"));
    assert_non_null(strstr(l->text[1], "report:lock by bad=1: "));
}

/* A client that only loses has not seen the lock acquired, but others have acquired it. */
static void never_acquired_by_this_client(void **state) {
    for (int i = 0; i < 20; i++) {
        tell(*state, SEEN_ACQUIRED, "k", 1, "app");
        tell(*state, SEEN_LOST, "k", 2, "poller");
        tell(*state, SEEN_RELEASED, "k", 1, "app");
    }
    ADVISED(*state, "lock k");
    SAID(*state, "k by app: a connection for each worker; values constant; acquired 20, lost 20, released 20, ");
}

/* Losers that a rule refuses: then a holder's own release says that each worker has its connection. */
static void losers_that_are_refused(void **state) {
    for (uint64_t i = 0; i < 20; i++) {
        tell(*state, SEEN_ACQUIRED, "job:lock", i % 2, "app");
        tell(*state, SEEN_LOST, "job:lock", (i + 1) % 2, "app");
        tell(*state, SEEN_REFUSED, "job:lock", (i + 1) % 2, "app");
        tell(*state, SEEN_RELEASED, "job:lock", i % 2, "app");
    }
    ADVISED(*state, "lock job:lock owner connection");
    SAID(*state, "a connection for each worker; values constant; acquired 20, lost 20, released 20, losers delete: 20 "
                 "times, overruns 0;");
}

/* A pool's connections have all lost attempts: a release over them is the holder's where there are no more releases
 * than acquisitions. */
static void a_pool_that_contends(void **state) {
    uint64_t dice = 1;
    for (int i = 0; i < 100; i++) {
        tell(*state, SEEN_ACQUIRED, "k", (dice = hash_number(dice)) % 3, "app");
        for (int losers = 0; losers < i % 3; losers++)
            tell(*state, SEEN_LOST, "k", (dice = hash_number(dice)) % 3, "app");
        tell(*state, SEEN_RELEASED, "k", (dice = hash_number(dice)) % 3, "app");
    }
    ADVISED(*state, "lock k owner client");
    SAID(*state, "a pool of connections; values constant; acquired 100, lost 99, released 100, overruns 0;");
    says_risk(*state, NULL);
}

static void queued_jobs(void **state) {
    for (int i = 0; i < 20; i++) {
        tell(*state, SEEN_ACQUIRED, "job", 1, "queue");
        tell(*state, SEEN_RELEASED, "job", 2, "worker");
    }
    struct lines *l = lines_of(*state);
    assert_true(ends_with(l->text[0], "lock job owner any"));
    assert_non_null(strstr(l->text[0], "by others 20"));
}

/* Refused releases do not count: they may be a loser's, or an unrelated client's. */
static void refused_releases_hand_nothing_over(void **state) {
    char pattern[] = "job*";
    const struct lock_rule rule = {.pattern = pattern, .pattern_len = 4, .hash = 1};
    struct lock_event sight = {.key = {.name = "job", .len = 3}, .rule = &rule, .identity_len = 3, .pttl_ms = 5000};
    for (int i = 0; i < 40; i++) {
        enum seen_event what = i % 2 ? SEEN_REFUSED : SEEN_ACQUIRED;
        sight.session_id = 1 + i % 2;
        sight.identity = i % 2 ? "bob" : "ann";
        sight.identity_hash = sight.session_id;
        observer_note(*state, what, &sight, now_ms);
        now_ms += i % 2 ? 6000 : 0;
    }
    ADVISED(*state, "lock job*");
    SAID(*state, "connections not known; values not known; acquired 20, lost 0, released 0, refused 20, overruns 20; "
                 "enforced;");
}

static void who_releases_too_hands_nothing_over(void **state) {
    for (int i = 0; i < 20; i++) {
        tell(*state, SEEN_ACQUIRED, "job", 1, "queue");
        tell(*state, SEEN_RELEASED, "job", i % 5 ? 2 : 1, i % 5 ? "worker" : "queue");
    }
    ADVISED(*state, "lock job");
    SAID(*state, "by others 16");
}

/* A release by a script that compares needs no rule. */
static void scripts_hand_over_as_they_like(void **state) {
    struct lock_event sight = {.key = {.name = "job", .len = 3}, .identity_len = 3, .scripted = true, .pttl_ms = 5000};
    for (int i = 0; i < 40; i++) {
        enum seen_event what = i % 2 ? SEEN_RELEASED : SEEN_ACQUIRED;
        sight.session_id = 1 + i % 2;
        sight.identity = i % 2 ? "bob" : "ann";
        sight.identity_hash = sight.session_id;
        observer_note(*state, what, &sight, now_ms);
    }
    ADVISED(*state, "lock job");
    SAID(*state, "released by other clients than acquired");
}

static void throttles_are_no_leaks(void **state) {
    char key[32];
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "throttle:%d", i);
        tell(*state, SEEN_ACQUIRED, key, 1, "app");
        now_ms += 6000;
    }
    ADVISED(*state, "a throttle, never released: no rule is needed");
    assert_non_null(strstr(lines_of(*state)->text[0], "overruns 0"));
}

static void late_releases_are_overruns(void **state) {
    for (int i = 0; i < 20; i++) {
        tell(*state, SEEN_ACQUIRED, "k", 1, "app");
        now_ms += i % 2 ? 6000 : 1000;
        tell(*state, i % 2 ? SEEN_IN_VAIN : SEEN_RELEASED, "k", 1, "app");
    }
    assert_non_null(strstr(lines_of(*state)->text[0], "late 10, overruns 10"));
    says_risk(*state, "10 of 20 locks were released after their expiry, by 1000 ms on average");
}

/* Another connection sets the holder's value again with a new expiry: the holder's release is in time. */
static void heartbeats_over_another_connection(void **state) {
    for (int i = 0; i < 20; i++) {
        tell(*state, SEEN_ACQUIRED, "k", 1, "app");
        now_ms += 4000;
        tell(*state, SEEN_WRITTEN, "k", 2, "app");
        now_ms += 4000;
        tell(*state, SEEN_RELEASED, "k", 1, "app");
    }
    says_risk(*state, NULL);
}

/* Only a one-shot client's lock is spoken of, each once. */
static void one_shot_clients(void **state) {
    for (uint64_t i = 0; i < 20; i++) {
        send_value(*state, SEEN_ACQUIRED, "k", i, "app", "1", PTTL_NONE);
        observer_left(*state, i, i % 2);
        tell(*state, SEEN_RELEASED, "k", i + 100, "app");
    }
    says_risk(*state, "10 times a lock without an expiry was acquired over a connection that closed at once");
}

/* SET XX: an expiry much shorter than what is left lets the lock go, another one extends it. */
static void releases_by_expiry(void **state) {
    for (uint64_t i = 0; i < 20; i++) {
        send_value(*state, SEEN_ACQUIRED, "k", 1, "app", "1", 5000);
        tell(*state, SEEN_REWRITTEN, "k", 1, "app");
        now_ms += 1000;
        send_value(*state, SEEN_REWRITTEN, "k", 1, "app", NULL, 100);
        now_ms += 100;
    }
    ADVISED(*state, "lock k");
    SAID(*state, "acquired 20, lost 0, released 20, overruns 0;");
}

/* A worker that begins with a long expiry and keeps its lock alive with short ones has let nothing go. */
static void short_heartbeats(void **state) {
    for (uint64_t i = 0; i < 20; i++) {
        send_value(*state, SEEN_ACQUIRED, "k", 1, "app", "1", 300000);
        for (int beat = 0; beat < 5; beat++, now_ms += 1000)
            send_value(*state, SEEN_REWRITTEN, "k", 1, "app", NULL, 3000);
        tell(*state, SEEN_RELEASED, "k", 1, "app");
    }
    SAID(*state, "acquired 20, lost 0, released 20, overruns 0;");
}

/* SET with an expiry acquires behind WATCH, and where it is there it extends. */
static void written_behind_watch(void **state) {
    struct lock_event sight = {
        .key = {.name = "k", .len = 1}, .session_id = 1, .identity = "app", .identity_len = 3, .pttl_ms = 5000};
    for (int i = 0; i < 20; i++) {
        observer_note(*state, SEEN_WRITTEN, &sight, now_ms);
        assert_int_equal(lines_of(*state)->count, 0); /* a cache's */
    }
    sight.behind_watch = true;
    for (int i = 0; i < 20; i++) {
        observer_note(*state, SEEN_WRITTEN, &sight, now_ms);
        observer_note(*state, SEEN_WRITTEN, &sight, now_ms);
        observer_note(*state, SEEN_RELEASED, &sight, now_ms);
    }
    SAID(*state, "acquired 20, lost 0, released 20, overruns 0;");
}

/* A lock without an end whose owner has gone is reported, after a few attempts. */
static void dead_locks(void **state) {
    send_value(*state, SEEN_ACQUIRED, "job:17:lock", 5, "app", "1", -1);
    for (int i = 0; i < 5; i++)
        tell(*state, SEEN_LOST, "job:17:lock", 6, "app");
    assert_int_equal(lines_of(*state)->count, 1); /* its owner may be at work */
    observer_left(*state, 5, false);
    tell(*state, SEEN_LOST, "job:17:lock", 6, "app");
    tell(*state, SEEN_LOST, "job:17:lock", 7, "app");
    assert_int_equal(lines_of(*state)->count, 1);
    tell(*state, SEEN_LOST, "job:17:lock", 6, "app");
    struct lines *l = lines_of(*state);
    assert_int_equal(l->count, 2);
    assert_string_equal(l->text[0],
                        "dead lock: job:17:lock by app: no expiry, its owner is gone, 3 attempts lost since: "
                        "DEL it, and let it end by itself from now on: lock job:*:lock");
    assert_true(ends_with(l->text[1], "too few to advise"));
    tell(*state, SEEN_RELEASED, "job:17:lock", 9, "operator");
    assert_int_equal(lines_of(*state)->count, 1);
}

static void what_ends_is_not_dead(void **state) {
    send_value(*state, SEEN_ACQUIRED, "k", 5, "app", "1", -1);
    send_value(*state, SEEN_EXTENDED, "k", 5, "app", NULL, 5000);
    observer_left(*state, 5, false);
    for (int i = 0; i < 9; i++)
        tell(*state, SEEN_LOST, "k", 6, "app");
    assert_int_equal(lines_of(*state)->count, 1);
}

static void never_acquired(void **state) {
    for (int i = 0; i < 20; i++)
        tell(*state, SEEN_LOST, "k", 6, "app");
    ADVISED(*state, "never seen to be acquired: held since before, or dead; look at its TTL");
}

static void few_events_advise_nothing(void **state) {
    for (int i = 0; i < ADVISE_ENOUGH - 1; i++) {
        tell(*state, SEEN_ACQUIRED, "k", 1, "app");
        tell(*state, SEEN_RELEASED, "k", 1, "app");
    }
    ADVISED(*state, "too few to advise");
}

static void many_names_are_one_pattern(void **state) {
    char key[32];
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 26; i++) {
            snprintf(key, sizeof(key), "lock:name%c", 'a' + i);
            tell(*state, SEEN_ACQUIRED, key, 1, "app");
            tell(*state, SEEN_RELEASED, key, 1, "app");
        }
    ADVISED(*state, "156 events: lock lock:*");
}

static void memory_is_bounded(void **state) {
    char key[64], client[32];
    for (int i = 0; i < 20000; i++) {
        snprintf(key, sizeof(key), "%c%c:%d:%c", 'a' + i % 26, 'a' + i / 26 % 26, i, 'a' + i % 7);
        snprintf(client, sizeof(client), "client %d", i % 100);
        tell(*state, SEEN_ACQUIRED, key, (uint64_t)i, client);
    }
    unsigned lines = 0;
    advise_each(*state, NULL, now_ms, count_line, &lines);
    assert_in_range(lines, 100, 512);
}

static void known_keys(void **state) {
    assert_false(observer_knows(*state, "lock", 4));
    tell(*state, SEEN_ACQUIRED, "lock", 1, "app");
    assert_true(observer_knows(*state, "lock", 4));
    now_ms += 400000;
    observer_arm(*state, "other", 5, now_ms);
    assert_true(observer_knows(*state, "lock", 4)); /* one generation ago */
    now_ms += 400000;
    observer_arm(*state, "other", 5, now_ms);
    assert_false(observer_knows(*state, "lock", 4));
}

/* An expiry at the end of time is none. */
static void the_longest_expiry(void **state) {
    for (uint64_t i = 0; i < 20; i++) {
        send_value(*state, SEEN_ACQUIRED, "job:1:lock", 1, "app", "1", INT64_MAX);
        send_value(*state, SEEN_EXTENDED, "job:1:lock", 1, "app", NULL, INT64_MAX - 1);
        tell(*state, SEEN_RELEASED, "job:1:lock", 1, "app");
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
        bool acquire = observer_samples(*state, key, (size_t)len, now_ms);
        if (acquire)
            send_value(*state, SEEN_ACQUIRED, key, 1, "app", "1", 5);
        if (observer_samples(*state, key, (size_t)len, now_ms))
            tell(*state, SEEN_RELEASED, key, 1, "app");
        wanted += acquire;
        before = n < 5000 ? wanted : before;
    }
    assert_true(wanted - before > 50 && wanted - before < 1000);
    now_ms += 200000;
    assert_non_null(strstr(lines_of(*state)->text[0], ", overruns 0;"));
    for (unsigned n = 0; n < 100; n++) { /* calm again */
        char key[32];
        assert_true(observer_samples(*state, key, (size_t)snprintf(key, sizeof(key), "job:%u", n), now_ms));
    }
}

static void some_keys_stand_for_all_in_turn(void **state) {
    bool seen = false;
    for (unsigned minute = 0; minute < 200; minute++, now_ms += 65536) {
        bool now = false;
        for (unsigned n = 0; n < 3000; n++)
            now = observer_samples(*state, "cron-lock", 9, now_ms);
        seen = seen || now;
        assert_true(observer_samples(*state, "another-lock", 12, now_ms)); /* keys that begin otherwise are others */
    }
    assert_true(seen);
}

static void queue(struct observer *a, enum seen_event event, const char *node, uint64_t session, const char *client,
                  bool waits) {
    struct lock_event sight = {.key = {.name = "turn", .len = 4},
                               .verb = LOCK_QUEUE_PUSH,
                               .count = waits,
                               .session_id = session,
                               .identity = client,
                               .identity_len = strlen(client),
                               .identity_hash = hash_bytes(&(struct hash_seed){1, 2}, client, strlen(client)),
                               .value = node,
                               .value_len = strlen(node),
                               .pttl_ms = -1};
    observer_note(a, event, &sight, now_ms);
}

static void a_list_is_a_lock_where_its_head_is_looked_at(void **state) {
    char first[16], second[16];
    for (unsigned n = 0; n < 20; n++) {
        snprintf(first, sizeof(first), "a%u", n);
        snprintf(second, sizeof(second), "b%u", n);
        queue(*state, SEEN_PUSHED, first, 1, "app", false);
        queue(*state, SEEN_HEAD, first, 1, "app", false);
        queue(*state, SEEN_PUSHED, second, 2, "app", true);
        queue(*state, SEEN_HEAD, first, 2, "app", false);
        queue(*state, SEEN_HEAD, first, 1, "app", false);
        queue(*state, SEEN_TAKEN, first, 1, "app", false);
        queue(*state, SEEN_HEAD, second, 2, "app", false);
        queue(*state, SEEN_TAKEN, second, 2, "app", false);
    }
    assert_string_equal(
        lines_of(*state)->text[0],
        "turn by app: a list lock; a connection for each worker; values distinct; acquired 40, lost 20, "
        "released 40, overruns 0, without expiry 40; outside of the rules; 100 events: lock turn kind list");
}

static void kinds(void **state) {
    struct lock_event sight = {.key = {.name = "k", .len = 1}, .session_id = 1, .identity = "app", .identity_len = 3};
    for (int i = 0; i < 60; i++) {
        enum seen_event what = i % 2 ? SEEN_RELEASED : SEEN_ACQUIRED;
        sight.advises = i < 30 ? ADVISE_COUNTER : ADVISE_HASH;
        observer_note(*state, what, &sight, now_ms);
        if (i == 29)
            ADVISED(*state, "lock k kind counter");
    }
    ADVISED(*state, "lock k kind hash,counter");
}

/* Each of three sessions counts up, and down again after a while: more than one has the counter at a time. Losers,
 * which count down at once, are none of a semaphore's. */
static void counters_that_are_semaphores(void **state) {
    static const enum seen_event IN[] = {SEEN_ACQUIRED, SEEN_LOST, SEEN_LOST};
    static const enum seen_event OUT[] = {SEEN_LOWERED, SEEN_LOWERED, SEEN_RELEASED};
    struct lock_event sight = {
        .key = {.name = "k", .len = 1}, .identity = "app", .identity_len = 3, .advises = ADVISE_COUNTER};
    for (int i = 0; i < 2 * 3 * 20; i++) {
        bool up = i / 3 % 2 == 0;
        sight.session_id = (uint64_t)(i + (up ? 0 : 1)) % 3 + 1;
        observer_note(*state, (up ? IN : OUT)[i % 3], &sight, now_ms);
        now_ms += i >= 60 && i % 3 == 2 ? 20 : 1;
        if (i == 59)
            ADVISED(*state, "lock k kind counter");
    }
    ADVISED(*state, "outside of the rules; 80 events: lock k kind semaphore");
    says_risk(*state, NULL);
}

static void permit(struct observer *a, enum seen_event event, uint64_t session, const char *client, const char *text) {
    send_value(a, event, "k", session, client, text, PTTL_NONE);
}

/* Sessions give back the tokens that they have taken, beside each other. */
static void lists_of_tokens_are_semaphores(void **state) {
    for (int i = 0; i < 12; i++) {
        bool replies = i % 2; /* MONITOR shows none */
        permit(*state, SEEN_POPPED, 1, "app", replies ? "a" : NULL);
        permit(*state, SEEN_POPPED, 2, "app", replies ? "b" : NULL);
        now_ms += 20;
        permit(*state, SEEN_GIVEN, 2, "app", "b");
        permit(*state, SEEN_GIVEN, 1, "app", "a");
        if (i < 5) /* the first push of a token proves nothing, nor does the one that is kept alone */
            assert_int_equal(lines_of(*state)->count, 0);
    }
    ADVISED(*state, "given back 22; outside of the rules; 42 events: lock k kind semaphore");
    says_risk(*state, NULL);
    for (int i = 0; i < 16; i++) /* it is a queue of jobs, some of which are pushed back */
        permit(*state, SEEN_GIVEN, 3, "producer", "c");
    assert_int_equal(lines_of(*state)->count, 0);
}

/* More sessions than the observer has places for. */
static void semaphores_of_many(void **state) {
    char text[16];
    for (uint64_t i = 0; i < 20 * 30; i++) {
        snprintf(text, sizeof(text), "m%u", (unsigned)(i % 20));
        if (i >= 20)
            permit(*state, SEEN_UNADDED, i % 20 + 1, "app", text);
        permit(*state, SEEN_ADDED, i % 20 + 1, "app", text);
        permit(*state, SEEN_ASKED, i % 20 + 1, "app", NULL);
        now_ms += 5;
    }
    ADVISED(*state, " events: lock k kind semaphore");
}

static void sorted_sets_that_are_no_semaphores(void **state) {
    char text[16];
    for (unsigned i = 0; i < 60; i++) {
        snprintf(text, sizeof(text), "m%u", i);
        permit(*state, SEEN_ADDED, i % 3, "limiter", text); /* the session's earlier member is still there */
        permit(*state, SEEN_ASKED, i % 3, "limiter", NULL);
        now_ms += 20;
        if (i % 8 == 0)
            permit(*state, SEEN_UNADDED, i % 3, "limiter", text);
    }
    assert_int_equal(lines_of(*state)->count, 0);
}

static void sorted_sets_without_a_rank(void **state) {
    for (unsigned i = 0; i < 60; i++) {
        permit(*state, SEEN_ADDED, 1, "app", "one");
        permit(*state, SEEN_ADDED, 2, "app", "two");
        now_ms += 20;
        permit(*state, SEEN_UNADDED, 1, "app", "one");
        permit(*state, SEEN_UNADDED, 2, "app", "two");
    }
    assert_int_equal(lines_of(*state)->count, 0);
}

static void jobs_in_a_list_are_no_lock(void **state) {
    char node[16];
    for (unsigned n = 0; n < 20; n++) {
        snprintf(node, sizeof(node), "%u", n);
        queue(*state, SEEN_PUSHED, node, 1, "producer", n % 3);
        queue(*state, SEEN_HEAD, node, 2, "monitor", false);
        queue(*state, SEEN_TAKEN, node, 3, "worker", false);
    }
    assert_int_equal(lines_of(*state)->count, 0);
    for (unsigned n = 0; n < 20; n++) {
        snprintf(node, sizeof(node), "%u", n);
        queue(*state, SEEN_PUSHED, node, 1, "producer", false);
        queue(*state, SEEN_HEAD, node, 1, "producer", false);
        queue(*state, SEEN_TAKEN, node, 3, "worker", false);
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
         ADVISE_SCRIPT_EXTENDS},
        {"if (redis.call('exists', KEYS[1]) == 0) then redis.call('hincrby', KEYS[1], ARGV[2], 1); "
         "redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; return redis.call('pttl', KEYS[1]);",
         ADVISE_SCRIPT_ENTERS},
        {"local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); if (counter > 0) then return 0; "
         "else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end;",
         ADVISE_SCRIPT_LEAVES},
        {"return redis.call('set', KEYS[1], 'it is', 'nx')", ADVISE_SCRIPT_ACQUIRES},
        {"return redis.call('exists', KEYS[1]) < 1 and redis.call('setex', KEYS[1], 30, 'x')", ADVISE_SCRIPT_ACQUIRES},
        {"if not redis.call('GET', KEYS[1]) then redis.call('SET', KEYS[1], ARGV[1]) return 1 end",
         ADVISE_SCRIPT_ACQUIRES},
        {"redis.call('set', KEYS[1], ARGV[1])", ADVISE_SCRIPT_OTHER},
        {"if redis.call('set', KEYS[1], ARGV[1], 'nx') then return nil end return redis.call('pttl', KEYS[1])",
         ADVISE_SCRIPT_ENTERS},
        {"if redis.call('get', KEYS[1]) then return 0 end redis.call('set', KEYS[1], 1) "
         "redis.call('rpush', KEYS[2], 1)",
         ADVISE_SCRIPT_OTHER},
        {"return redis.call('hsetnx', KEYS[1], 'owner', ARGV[1])", ADVISE_SCRIPT_ACQUIRES},
        {"-- don't delete, 'set' or 'del'\nreturn redis.call('get', KEYS[1])", ADVISE_SCRIPT_OTHER},
        {"redis.call('incr', KEYS[1]) redis.call('expire', KEYS[1], 1)", ADVISE_SCRIPT_OTHER},
        {"return 1", ADVISE_SCRIPT_OTHER},
        {"'", ADVISE_SCRIPT_OTHER},
        {"", ADVISE_SCRIPT_OTHER},
    };
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++)
        assert_int_equal(advise_script_read(scripts[i].source, strlen(scripts[i].source)).kind, scripts[i].kind);
    struct advise_text text;
    memset(&text, 0xff, sizeof(text)); /* what stands beside the fields does not count */
    text.kind = ADVISE_SCRIPT_RELEASES;
    text.key = 4;
    text.value = 2;
    text.expiry = 13;
    text.seconds = false;
    text.endless = true;
    observer_script_note(*state, 0x1234567890abcdef, &text);
    struct advise_text found = observer_script(*state, 0x1234567890abcdef);
    assert_int_equal(found.kind, text.kind);
    assert_true(found.key == 4 && found.value == 2 && found.expiry == 13 && !found.seconds && found.endless);
    assert_int_equal(observer_script(*state, 0x1234567890abcdef + 256).kind, ADVISE_SCRIPT_OTHER);
    assert_int_equal(observer_script(*state, 1).kind, ADVISE_SCRIPT_OTHER);
}

static void what_scripts_write(void **state) {
    static const struct {
        const char *source;
        struct advise_text text;
    } scripts[] = {
        {"return redis.call('set', KEYS[1], ARGV[2], 'NX', 'EX', ARGV[1])",
         {.key = 1, .value = 2, .expiry = 1, .seconds = true}},
        {"return redis.call('exists', KEYS[1]) < 1 and redis.call('setex', KEYS[1], ARGV[2], ARGV[1])",
         {.key = 1, .value = 1, .expiry = 2, .seconds = true}},
        {"local who = ARGV[3]\nlocal key=KEYS[2]\nif redis.call('setnx', key, who) == 1 then "
         "redis.call('pexpire', key, ARGV[1]) end",
         {.key = 2, .value = 3, .expiry = 1}},
        {"return redis.call('setnx', KEYS[1], 'a, ) b')", {.key = 1, .value = ADVISE_LITERAL, .endless = true}},
        {"for i, key in ipairs(KEYS) do redis.call('set', key, f(ARGV[1], {2, 3}), 'nx', 'px', ARGV[2] * 1000) end",
         {.key = 1}},
        {"if redis.call('hexists', KEYS[4], 'x') == 0 then redis.call('hset', KEYS[4], ARGV[1], 1) "
         "redis.call('unlink', KEYS[2]) redis.call('pexpireat', KEYS[4], 1) end",
         {.key = 4, .value = 1}},
    };
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        struct advise_text text = advise_script_read(scripts[i].source, strlen(scripts[i].source)),
                           as = scripts[i].text;
        assert_int_equal(text.kind, ADVISE_SCRIPT_ACQUIRES);
        assert_int_equal(text.key, as.key);
        assert_int_equal(text.value, as.value);
        assert_int_equal(text.expiry, as.expiry);
        assert_int_equal(text.seconds, as.seconds);
        assert_int_equal(text.endless, as.endless);
    }
    (void)state;
}

/* ---- fences ---------------------------------------------------------------------------------- */

static const char *held_lock, *over_lock; /* the leases that the writer has, and had */

static enum lock_writer writer_of(void *arg, const struct lock_key *lock) {
    (void)arg;
    if (held_lock && strlen(held_lock) == lock->len && memcmp(held_lock, lock->name, lock->len) == 0)
        return WRITER_HOLDS;
    bool over = over_lock && strlen(over_lock) == lock->len && memcmp(over_lock, lock->name, lock->len) == 0;
    return over ? WRITER_LATE : WRITER_NONE;
}

/* `lock` NULL: the writer holds none. */
static void write_under(struct observer *a, const char *lock, const char *key) {
    const struct observed_write w = {.key = {.name = key, .len = strlen(key)}, .client = 5, .writer = writer_of};
    held_lock = lock;
    if (lock)
        observer_lock_taken(a, &(struct lock_key){.name = lock, .len = strlen(lock)}, 5);
    observer_note_write(a, &w, ++now_ms);
    held_lock = NULL;
}

static void data_is_written_under_locks(void **state) {
    static const struct {
        const char *lock, *key, *line; /* with a number each */
    } cases[] = {
        {"lock:stock:%u", "stock:%u",
         "stock:* is written by holders of lock:stock:*: 30 of 30 writes: "
         "fence stock:* by lock:stock:*"},
        {"lock:stock:%u", "stock:%u:sum",
         "stock:*:sum is written by holders of lock:stock:*: 30 of 30 writes: "
         "fence stock:*:sum by lock:stock:*"},
        {"lock:accounts", "account:%u",
         "account:* is written by holders of lock:accounts: 30 of 30 writes: "
         "fence account:* by lock:accounts"},
        {"lock:7:stock", "total", "total is written by holders of lock:*:stock"}, /* it has no such number: none */
        {"lock:all", "total", "total is written by holders of lock:all: 30 of 30 writes: fence total by lock:all"},
        {"lock:x%u", "u%ux", "u*x is written by holders of lock:x*: 30 of 30 writes: fence u*x by lock:x*"},
        {"lock:1", "%u", "17 is written"}, /* every number: none */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct observer *a = observer_new(7);
        char lock[64], key[64];
        for (unsigned n = 0; n < 30; n++) {
            snprintf(lock, sizeof(lock), cases[i].lock, n);
            snprintf(key, sizeof(key), cases[i].key, n);
            write_under(a, lock, key);
        }
        struct lines *l = lines_of(a);
        if (i == 3 || i == 6)
            assert_int_equal(l->count, 0);
        else
            assert_string_equal(l->count ? l->text[0] : "nothing", cases[i].line);
        observer_free(a);
    }
    (void)state;
}

/* Names that no number tells apart, and a part of the keys that has others beside it. */
static void last_words_tell_locks(void **state) {
    static const char *const names[][2] = {{"lock:user:alice", "profile:alice"},
                                           {"lock:user:bob", "profile:bob"},
                                           {"lock:user:c[a]rol", "profile:c[a]rol"},
                                           {"lock:user:dora", "profile:dora"}};
    for (unsigned n = 0; n < 40; n++)
        write_under(*state, names[n % 4][0], names[n % 4][1]);
    ADVISED(*state, "profile:* is written by holders of lock:user:*: 40 of 40 writes: fence profile:* by lock:user:*");
}

static void nearly_all_writes(void **state) {
    for (unsigned n = 0; n < 19; n++)
        write_under(*state, "lock:stock:1", "stock:1");
    assert_int_equal(lines_of(*state)->count, 0); /* too few */
    for (unsigned n = 0; n < 2; n++)
        write_under(*state, NULL, "stock:2");
    over_lock = "lock:stock:1";
    for (unsigned n = 0; n < 3; n++)
        write_under(*state, NULL, "stock:1");
    over_lock = NULL;
    ADVISED(*state, "stock:* is written by holders of lock:stock:*: 22 of 24 writes, 3 of them after the lease was "
                    "over: fence stock:* by lock:stock:*");
    write_under(*state, NULL, "stock:3");
    assert_int_equal(lines_of(*state)->count, 0); /* 3 of 25 are more than one of 10 */
}

/* Two locks are held at once: that which is held for each write is named, the closer one where both are. */
static void the_closer_lock(void **state) {
    char lock[64], key[64];
    for (unsigned n = 0; n < 40; n++) {
        snprintf(lock, sizeof(lock), "lock:stock:%u", n);
        snprintf(key, sizeof(key), "stock:%u", n);
        write_under(*state, n % 20 ? NULL : "lock:shop", key);
        write_under(*state, lock, key);
    }
    assert_int_equal(lines_of(*state)->count, 0);
    for (unsigned n = 0; n < 500; n++)
        write_under(*state, "lock:stock:9", "stock:9");
    struct lines *l = lines_of(*state);
    assert_int_equal(l->count, 1);
    assert_non_null(strstr(l->text[0], ": fence stock:* by lock:stock:*"));
}

static void pairs_are_bounded(void **state) {
    char lock[80], key[64];
    for (unsigned n = 0; n < 5000; n++) {
        snprintf(key, sizeof(key), "%c%c%c:x", (int)('a' + n % 26), (int)('a' + n / 26 % 26), (int)('a' + n / 676));
        snprintf(lock, sizeof(lock), "lock:%s", key);
        write_under(*state, lock, key);
    }
    for (unsigned n = 0; n < 30; n++)
        write_under(*state, "lock:stock:1", "stock:1");
    struct lines *l = lines_of(*state);
    assert_true(l->count >= 1);
    assert_non_null(strstr(l->text[0], "fence stock:* by lock:stock:*"));
    /* Names that are too long, or have too many numbers, are left out. */
    char longest[300];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    for (unsigned n = 0; n < 30; n++) {
        write_under(*state, longest, longest);
        write_under(*state, "lock:1:2:3:4:5:6:7:8:9:10:11:12:13:14:15:16:17",
                    "d:1:2:3:4:5:6:7:8:9:10:11:12:13:14:15:16:17");
    }
    assert_int_equal(lines_of(*state)->count, l->count);
}

/* ---- the words, and their explanation -------------------------------------------------------- */

/* A file from a phrase on. */
static char *text_behind(const char *path, const char *from) {
    static char text[256 * 1024];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    char *start = strstr(text, from);
    assert_non_null(start);
    return start;
}

/* Whether the text has the phrase between backquotes. */
static bool explained(const char *text, const char *words, size_t len) {
    bool quoted = false;
    for (const char *p = text; *p; p++) {
        quoted ^= *p == '`';
        if (quoted && strchr("` ", *p) && strncmp(p + 1, words, len) == 0 && p[1 + len] && strchr("`,: ", p[1 + len]))
            return true;
    }
    return false;
}

/* The phrases of a line: what is between its punctuation marks, without numbers. */
static void phrases_explained(const char *text, const char *line) {
    for (const char *p = line; *p;) {
        size_t len = strcspn(p, ";,:");
        const char *next = p + len + (p[len] != '\0');
        while (len > 0 && (p[len - 1] == ' ' || (p[len - 1] >= '0' && p[len - 1] <= '9')))
            len--;
        while (len > 0 && (*p == ' ' || (*p >= '0' && *p <= '9')))
            p++, len--;
        bool library = len > 4 && p[len - 1] == ')';
        len = library ? (size_t)(strchr(p, '(') - p) - 1 : len;
        if (len > 5 && strncmp(p, "lock ", 5) == 0) /* the rest is a rule */
            return;
        bool counted = len == 5 && strncmp(p, "times", len) == 0;
        if (len > 0 && !counted && !explained(text, p, len))
            fail_msg("\"%.*s\" is not explained: %s", (int)len, p, line);
        p = next;
    }
}

static struct evidence some_row(uint64_t *dice) {
    struct evidence row = {.pattern = "PATTERN", .client = "CLIENT"};
    unsigned long long *const counts[] = {&row.acquired,      &row.lost,     &row.endless, &row.valued,   &row.repeated,
                                          &row.sent,          &row.released, &row.crossed, &row.by_other, &row.losers,
                                          &row.by_other_bare, &row.refused,  &row.late,    &row.in_vain,  &row.expired,
                                          &row.row,           &row.stood};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        *counts[i] = (*dice = hash_number(*dice)) % 2 ? hash_number(*dice) % 32 : 0;
    row.stood_ms = row.stood * (*dice % 100);
    *dice = hash_number(*dice);
    row.events = 1 + *dice % 100;
    row.ruled = *dice >> 8 & 1;
    row.audited = *dice >> 9 & 1;
    row.overlapped = (*dice >> 10 & 7) == 0;
    row.kinds = *dice >> 13 & 15;
    if (*dice >> 17 & 1)
        snprintf(row.library, sizeof(row.library), "ioredis");
    return row;
}

/* docs/advise.md says what each word means that a line may have. */
static void every_word_is_explained(void **state) {
    const char *text = text_behind("docs/advise.md", "The text after the events can be copied");
    uint64_t dice = 7;
    struct text line = {0};
    for (int i = 0; i < 2000; i++) {
        struct evidence row = some_row(&dice);
        line.len = 0;
        advise_line(&row, &line);
        phrases_explained(text, strstr(line.data, "CLIENT: ") + 8);
    }
    text_clear(&line);
    static const char *const words[] = {"dead lock: KEY", "kind", "owner any", "owner client", "owner connection"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        assert_true(explained(text, words[i], strlen(words[i])));
    (void)state;
}

/* ---- waiting -------------------------------------------------------------------------------------- */

/* Two workers take turns, and the refused one sleeps: for so long after each release the lock is free. */
static void take_turns(struct observer *a, const char *key, unsigned turns, int64_t asleep_ms) {
    for (unsigned i = 0; i < turns; i++) {
        uint64_t holder = 1 + i % 2;
        tell(a, SEEN_ACQUIRED, key, holder, "app");
        now_ms += 10;
        tell(a, SEEN_LOST, key, 3 - holder, "app");
        now_ms += 10;
        tell(a, SEEN_RELEASED, key, holder, "app");
        now_ms += asleep_ms;
    }
}

static void waiting_is_advised_to_sleepers(void **state) {
    take_turns(*state, "lock:turns", 30, 47);
    SAID(*state, ", releases slept through 29, ms lost with each 47; ");
    ADVISED(*state, " wait 1s");
}

static void waiting_is_not_advised_where_nobody_sleeps(void **state) {
    take_turns(*state, "lock:turns", 30, 1);
    ADVISED(*state, ": lock lock:turns");
}

static void waiting_is_not_advised_to_who_comes_seldom(void **state) {
    take_turns(*state, "lock:turns", 30, 2000);
    ADVISED(*state, ": lock lock:turns");
}

static void waiting_is_not_advised_where_nobody_has_asked(void **state) {
    for (unsigned i = 0; i < 30; i++, now_ms += 100) {
        tell(*state, SEEN_ACQUIRED, "lock:seldom", 1 + i % 2, "app");
        tell(*state, SEEN_RELEASED, "lock:seldom", 1 + i % 2, "app");
    }
    ADVISED(*state, ": lock lock:seldom");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(keys_become_patterns),
        TEST(patterns_have_hashes),
        TEST(a_connection_for_each_worker),
        TEST(locks_without_a_rule),
        TEST(a_pool),
        TEST(an_operator_makes_no_pool),
        TEST(a_late_release_makes_no_pool),
        TEST(a_swap_makes_no_pool),
        TEST(a_library_that_multiplexes),
        TEST(a_library_that_pools_is_no_proof),
        TEST(a_multiplexed_connection),
        TEST(nested_attempts_prove_nothing),
        TEST(losers_that_delete),
        TEST(workers_with_a_name_each),
        TEST(a_few_workers_with_a_name_each),
        TEST(a_crowd_of_losers),
        TEST(clients_that_differ),
        TEST(never_acquired_by_this_client),
        TEST(losers_that_are_refused),
        TEST(a_pool_that_contends),
        TEST(queued_jobs),
        TEST(refused_releases_hand_nothing_over),
        TEST(who_releases_too_hands_nothing_over),
        TEST(scripts_hand_over_as_they_like),
        TEST(throttles_are_no_leaks),
        TEST(late_releases_are_overruns),
        TEST(heartbeats_over_another_connection),
        TEST(one_shot_clients),
        TEST(releases_by_expiry),
        TEST(short_heartbeats),
        TEST(written_behind_watch),
        TEST(dead_locks),
        TEST(what_ends_is_not_dead),
        TEST(never_acquired),
        TEST(few_events_advise_nothing),
        TEST(many_names_are_one_pattern),
        TEST(memory_is_bounded),
        TEST(known_keys),
        TEST(the_longest_expiry),
        TEST(many_events),
        TEST(some_keys_stand_for_all_in_turn),
        TEST(a_list_is_a_lock_where_its_head_is_looked_at),
        TEST(kinds),
        TEST(counters_that_are_semaphores),
        TEST(lists_of_tokens_are_semaphores),
        TEST(semaphores_of_many),
        TEST(sorted_sets_that_are_no_semaphores),
        TEST(sorted_sets_without_a_rank),
        TEST(jobs_in_a_list_are_no_lock),
        TEST(scripts_by_their_text),
        TEST(what_scripts_write),
        TEST(data_is_written_under_locks),
        TEST(last_words_tell_locks),
        TEST(nearly_all_writes),
        TEST(the_closer_lock),
        TEST(pairs_are_bounded),
        TEST(every_word_is_explained),
        TEST(waiting_is_advised_to_sleepers),
        TEST(waiting_is_not_advised_where_nobody_sleeps),
        TEST(waiting_is_not_advised_to_who_comes_seldom),
        TEST(waiting_is_not_advised_where_nobody_has_asked),
    };
    return cmocka_run_group_tests_name("advise", tests, NULL, NULL);
}
