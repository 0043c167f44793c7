/* Lock rules: their options, which rule a key gets, their text, and the names of guard records. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/glob.h"
#include "proxy/lock/rule.h"

/* The options' names, and the defaults behind `lease`. A new option is added to both. */
#define NAMES                                                                                                          \
    "mode, owner, kind, claim-memory, lease, renew, max-hold, handover, "                                              \
    "on-disconnect, on-loss, lock-delay, one-shot, wait, replicas or quorum"
#define AFTER_LEASE                                                                                                    \
    "renew auto max-hold 0 handover 1m on-disconnect keep on-loss tell lock-delay 0 one-shot 1d wait 0 replicas 0 "    \
    "quorum no"

static char error[400];

/* Adds a rule from words between single blanks. */
static const char *add(struct lock_rules *rules, const char *line) {
    char copy[200], *save = NULL;
    const char *words[24];
    size_t count = 0;
    snprintf(copy, sizeof(copy), "%s", line);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        words[count++] = w;
    return lock_rules_add(rules, words, count, error, sizeof(error));
}

static const struct lock_rule *match(struct lock_rules *rules, const char *key) {
    return lock_rules_match(rules, key, strlen(key));
}

static void test_defaults(void **state) {
    (void)state;
    struct lock_rules *rules = lock_rules_new();
    assert_int_equal(lock_rules_count(rules), 0);
    assert_null(match(rules, "lock:a"));
    assert_null(add(rules, "lock:*"));
    const struct lock_rule *r = lock_rules_get(rules, 0);
    assert_ptr_equal(r->set, rules);
    assert_string_equal(r->pattern, "lock:*");
    assert_int_equal(r->pattern_len, 6);
    assert_int_equal(r->mode, LOCK_MODE_ENFORCE);
    assert_int_equal(r->owner, LOCK_OWNER_AUTO);
    assert_int_equal(r->kinds, LOCK_KIND_STRING);
    assert_int_equal(r->claim_memory_ms, LOCK_MEMORY_AUTO);
    assert_int_equal(r->lease_ms, 30000);
    assert_int_equal(r->renew, LOCK_RENEW_AUTO);
    assert_int_equal(r->max_hold_ms, 0);
    assert_int_equal(r->handover_ms, 60000);
    assert_int_equal(r->on_disconnect, LOCK_DISCONNECT_KEEP);
    char text[300];
    size_t len = lock_rule_text(r, text, sizeof(text));
    assert_int_equal(len, strlen(text));
    assert_string_equal(text, "lock:* mode enforce owner auto kind string claim-memory auto lease 30s " AFTER_LEASE);
    lock_rules_unref(rules);
}

static void test_options(void **state) {
    (void)state;
    struct lock_rules *rules = lock_rules_new();
    assert_null(add(rules, "a OWNER Client mode AUDIT claim-memory 0 lease 1500ms renew always max-hold 2h "
                           "on-disconnect release on-loss error"));
    assert_null(add(rules, "b mode off owner any renew never lease 0 max-hold 0 handover 0 lock-delay 2s"));
    assert_null(add(rules, "c owner connection lease 7"));
    const struct lock_rule *r = lock_rules_get(rules, 0);
    assert_int_equal(r->mode, LOCK_MODE_AUDIT);
    assert_int_equal(r->owner, LOCK_OWNER_CLIENT);
    assert_int_equal(r->claim_memory_ms, 0);
    assert_int_equal(r->lease_ms, 1500);
    assert_int_equal(r->renew, LOCK_RENEW_ALWAYS);
    assert_int_equal(r->max_hold_ms, 7200000);
    assert_int_equal(r->on_disconnect, LOCK_DISCONNECT_RELEASE);
    assert_int_equal(r->on_loss, LOCK_LOSS_ERROR);
    r = lock_rules_get(rules, 1);
    assert_int_equal(r->mode, LOCK_MODE_OFF);
    assert_int_equal(r->owner, LOCK_OWNER_ANY);
    assert_int_equal(r->renew, LOCK_RENEW_NEVER);
    assert_int_equal(r->lease_ms, 0);
    assert_int_equal(r->max_hold_ms, 0);
    assert_int_equal(r->handover_ms, 0);
    assert_int_equal(r->lock_delay_ms, 2000);
    r = lock_rules_get(rules, 2);
    assert_int_equal(r->owner, LOCK_OWNER_CONNECTION);
    assert_int_equal(r->lease_ms, 7000); /* a bare number counts seconds */
    assert_int_equal(r->max_hold_ms, 0);
    assert_int_equal(r->replicas, 0);
    assert_null(add(rules, "d replicas 2 lease 5s"));
    assert_null(add(rules, "e lease 5s replicas 1 200ms mode audit"));
    r = lock_rules_get(rules, 3);
    assert_int_equal(r->replicas, 2);
    assert_int_equal(r->replicas_ms, 1000);
    assert_int_equal(r->lease_ms, 5000);
    r = lock_rules_get(rules, 4);
    assert_int_equal(r->replicas, 1);
    assert_int_equal(r->replicas_ms, 200);
    assert_int_equal(r->mode, LOCK_MODE_AUDIT);
    char text[300];
    lock_rule_text(r, text, sizeof(text));
    assert_int_equal(r->wait_ms, 0);
    assert_non_null(strstr(text, " replicas 1 200ms"));
    assert_null(add(rules, "w wait 1500ms"));
    assert_int_equal(lock_rules_get(rules, 5)->wait_ms, 1500);
    lock_rule_text(lock_rules_get(rules, 5), text, sizeof(text));
    assert_non_null(strstr(text, " wait 1500ms "));
    assert_null(add(rules, "f mode audit kind any"));
    lock_rule_text(lock_rules_get(rules, 6), text, sizeof(text));
    assert_non_null(strstr(text, " kind string,hash,counter "));
    assert_int_equal(r->quorum, LOCK_QUORUM_NO);
    assert_false(r->unusual);
    assert_null(add(rules, "g quorum yes lease 10s"));
    r = lock_rules_get(rules, 7);
    assert_int_equal(r->quorum, LOCK_QUORUM_YES);
    assert_true(r->confirms && r->unusual);
    assert_null(add(rules, "h quorum yes mode off kind any"));
    assert_int_equal(lock_rules_get(rules, 8)->quorum, LOCK_QUORUM_NO);
    assert_true(lock_rules_get(rules, 3)->confirms);
    assert_false(lock_rules_get(rules, 3)->unusual);
    assert_true(lock_rules_get(rules, 5)->unusual);
    assert_false(lock_rules_get(rules, 5)->confirms);
    lock_rules_unref(rules);
}

/* A promise of witnesses is longer than the lease, and the longest lease's promise fits into the quarantine. */
static void test_promises(void **state) {
    (void)state;
    for (int64_t lease = 1; lease < 1000000; lease += 997) {
        assert_true(lock_promise_ms(lease, 500) >= lease + 1000);
        int64_t longest = lock_promise_longest_ms(lock_promise_ms(lease, 500), 500);
        assert_true(longest <= lease && longest > lease - 40);
        assert_true(lock_promise_ms(longest, 500) <= lock_promise_ms(lease, 500));
    }
    assert_true(lock_promise_longest_ms(500, 500) <= 0);
}

#define KINDS "string, list, hash, counter, several with commas between them, any, or semaphore alone"
#define AUDIT_LISTS                                                                                                    \
    "mode audit knows no list locks: expected mode off or enforce for kind list (what a queue looks like, PROXY "      \
    "ADVISE "                                                                                                          \
    "says under mode off, too)"
#define REPLICAS "a number of replicas, like 1, and if you like a time up to 60s, like 200ms"

static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *line, *why;
    } CASES[] = {
        {"", "expected a key pattern, then options and their values"},
        {"x owner me", "option owner 'me': expected auto, connection, client or any"},
        {"x mode audit kind list", AUDIT_LISTS},
        {"x kind hash,list mode audit", AUDIT_LISTS},
        {"x mode on", "option mode 'on': expected enforce, audit or off"},
        {"x kind set", "option kind 'set': expected " KINDS},
        {"x kind string,", "option kind 'string,': expected " KINDS},
        {"x kind ,list", "option kind ',list': expected " KINDS},
        {"x kind string,any", "option kind 'string,any': expected " KINDS},
        {"x kind listhash", "option kind 'listhash': expected " KINDS},
        {"x kind semaphore,string", "option kind 'semaphore,string': expected " KINDS},
        {"x kind semaphore wait 1s", "kind semaphore has no option 'wait': expected mode, owner and lease alone"},
        {"x lease 1s renew auto kind semaphore",
         "kind semaphore has no option 'renew': expected mode, owner and lease alone"},
        {"x kind semaphore owner any", "kind semaphore has no owner 'any': expected auto, connection or client"},
        {"x kind", "option 'kind' without a value: expected " KINDS},
        {"x renew maybe", "option renew 'maybe': expected auto, always or never"},
        {"x lock-delay 11s", "option lock-delay: expected a time up to 10s, like 2s, or 0 for none"},
        {"x lock-delay 1s kind hash", "option lock-delay: expected kind string alone"},
        {"x lock-delay 1s kind any", "option lock-delay: expected kind string alone"},
        {"x lock-delay 1s wait 1s", "option lock-delay: expected a rule without wait"},
        {"x lock-delay soon", "option lock-delay 'soon': expected a time up to 10s, like 2s, or 0 for none"},
        {"x on-loss hang", "option on-loss 'hang': expected tell, close or error"},
        {"x on-disconnect drop", "option on-disconnect 'drop': expected keep or release"},
        {"x lease soon", "option lease 'soon': expected a time like 30s, or 0 for none"},
        {"x lease -1", "option lease '-1': expected a time like 30s, or 0 for none"},
        {"x lease 99999999d", "option lease '99999999d': expected a time like 30s, or 0 for none"},
        {"x max-hold never", "option max-hold 'never': expected a time like 5m, or 0 for no end"},
        {"x handover long", "option handover 'long': expected a time like 60s, or 0 for none"},
        {"x claim-memory 1w", "option claim-memory '1w': expected auto, or a time like 60s"},
        {"x lease", "option 'lease' without a value: expected a time like 30s, or 0 for none"},
        {"x wait long", "option wait 'long': expected a time like 1s, or 0 for none"},
        {"x quorum", "option 'quorum' without a value: expected yes or no"},
        {"x quorum 3", "option quorum '3': expected yes or no"},
        {"x quorum yes kind list",
         "quorum yes: an acquisition in a list can't be undone: expected kind string, hash or counter"},
        {"x quorum yes kind any",
         "quorum yes: an acquisition in a list can't be undone: expected kind string, hash or counter"},
        {"x quorum yes lease 0", "quorum yes: a lock that witnesses know has an end: expected a lease above 0"},
        {"x quorum yes mode audit", "quorum yes: mode audit confirms no lock: expected mode enforce"},
        {"x replicas", "option 'replicas' without a value: expected " REPLICAS},
        {"x replicas one", "option replicas 'one': expected " REPLICAS},
        {"x replicas 1001", "option replicas '1001': expected " REPLICAS},
        {"x replicas 1 0ms", "option replicas '1 0ms': expected " REPLICAS},
        {"x replicas 1 2m", "option replicas '1 2m': expected " REPLICAS},
        {"x replicas 1 soon 1", "option 'soon': expected " NAMES},
        {"x lease 1s lease 2s", "option 'lease' is given twice: expected it once"},
        {"x leese 1s", "option 'leese': expected " NAMES},
        {"x owner\n\x1b auto", "option 'owner\\x0a\\x1b': expected " NAMES},
    };
    struct lock_rules *rules = lock_rules_new();
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        const char *why = add(rules, CASES[i].line);
        assert_non_null(why);
        assert_string_equal(why, CASES[i].why);
    }
    const char *empty[] = {""};
    assert_non_null(lock_rules_add(rules, empty, 1, error, sizeof(error)));
    /* A small buffer is not overrun, and a long word is shortened. */
    char small[12], word[5000];
    memset(word, 'w', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    const char *words[] = {"x", word, "1"};
    assert_ptr_equal(lock_rules_add(rules, words, 3, small, sizeof(small)), small);
    assert_string_equal(small, "option 'www");
    assert_non_null(strstr(lock_rules_add(rules, words, 3, error, sizeof(error)), "www...': expected mode, "));
    assert_int_equal(lock_rules_count(rules), 0);
    lock_rules_unref(rules);
}

static void test_first_match(void **state) {
    (void)state;
    struct lock_rules *rules = lock_rules_new();
    static const char *const LINES[] = {
        "lock:cache:* mode off", "lock:*", "lock:report", "*:mutex", "job?", "\\*lit\\*", "[ab]lock", "mid*:v[12]"};
    for (size_t i = 0; i < sizeof(LINES) / sizeof(LINES[0]); i++)
        assert_null(add(rules, LINES[i]));
    static const struct {
        const char *key;
        int rule; /* -1: none */
    } CASES[] = {
        {"lock:cache:1", 0}, {"lock:cache", 1}, {"lock:", 1},  {"lock:report", 1}, {"lock", -1},  {"", -1},
        {"a:mutex", 3},      {":mutex", 3},     {"mutex", -1}, {"job1", 4},        {"job", -1},   {"job12", -1},
        {"*lit*", 5},        {"*litx", -1},     {"xlit*", -1}, {"alock", 6},       {"clock", -1}, {"mid:v1", 7},
        {"mid:x:y:v2", 7},   {"mid:v3", -1},    {"mi", -1},
    };
    uint64_t hits[8] = {0};
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        const struct lock_rule *r = match(rules, CASES[i].key);
        if (r != (CASES[i].rule < 0 ? NULL : lock_rules_get(rules, (size_t)CASES[i].rule)))
            fail_msg("'%s': expected rule %d", CASES[i].key, CASES[i].rule);
        if (r)
            hits[CASES[i].rule]++;
    }
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(atomic_load(&lock_rules_get(rules, i)->hits), hits[i]);
    lock_rules_unref(rules);
}

/* A rule matches what its glob matches, whatever way it takes to find out. */
static void test_like_glob(void **state) {
    (void)state;
    static const char PATTERN_LETTERS[] = "aabb:***??[]^-\\", KEY_LETTERS[] = "aab:*?[]^-\\";
    long matches = 0;
    srand(3);
    for (int round = 0; round < 20000; round++) {
        struct lock_rules *rules = lock_rules_new();
        char pattern[8], key[8];
        size_t pattern_len = 1 + (size_t)rand() % 6, len;
        for (size_t i = 0; i < pattern_len; i++)
            pattern[i] = PATTERN_LETTERS[(size_t)rand() % (sizeof(PATTERN_LETTERS) - 1)];
        pattern[pattern_len] = '\0';
        const char *words[] = {pattern};
        assert_null(lock_rules_add(rules, words, 1, error, sizeof(error)));
        for (int k = 0; k < 20; k++) {
            len = (size_t)rand() % 7;
            for (size_t i = 0; i < len; i++)
                key[i] = KEY_LETTERS[(size_t)rand() % (sizeof(KEY_LETTERS) - 1)];
            bool expected = glob_match(pattern, pattern_len, key, len);
            matches += expected;
            if ((lock_rules_match(rules, key, len) != NULL) != expected)
                fail_msg("'%s' with '%.*s': expected %d", pattern, (int)len, key, expected);
        }
        lock_rules_unref(rules);
    }
    assert_true(matches > 20000);
}

static void test_kinds(void **state) {
    (void)state;
    static const struct {
        const char *value, *text;
        unsigned kinds;
    } vectors[] = {
        {"string", "string", LOCK_KIND_STRING},
        {"LIST", "list", LOCK_KIND_LIST},
        {"hash,string", "string,hash", LOCK_KIND_STRING | LOCK_KIND_HASH},
        {"Counter,list,counter", "list,counter", LOCK_KIND_LIST | LOCK_KIND_COUNTER},
        {"list,hash,counter", "list,hash,counter", LOCK_KIND_ANY & ~(unsigned)LOCK_KIND_STRING},
        {"any", "any", LOCK_KIND_ANY},
        {"counter,hash,list,string", "any", LOCK_KIND_ANY},
    };
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        struct lock_rules *rules = lock_rules_new();
        const char *words[] = {"x", "kind", vectors[i].value};
        char text[300], expected[64];
        assert_null(lock_rules_add(rules, words, 3, error, sizeof(error)));
        assert_int_equal(lock_rules_get(rules, 0)->kinds, vectors[i].kinds);
        lock_rule_text(lock_rules_get(rules, 0), text, sizeof(text));
        snprintf(expected, sizeof(expected), " kind %s claim-memory ", vectors[i].text);
        assert_non_null(strstr(text, expected));
        lock_rules_unref(rules);
    }
}

/* Keys of a rule of semaphores are no locks: the rule's mode is off. */
static void test_semaphores(void **state) {
    (void)state;
    static const struct {
        const char *line, *text;
        enum lock_permits permits;
        int64_t lease_ms;
    } vectors[] = {
        {"x kind semaphore", "x mode enforce owner auto kind semaphore lease 0", LOCK_PERMITS_RETURNED, 0},
        {"x mode audit kind Semaphore owner client lease 60s", "x mode audit owner client kind semaphore lease 1m",
         LOCK_PERMITS_AUDITED, 60000},
        {"x kind semaphore mode off", "x mode off owner auto kind semaphore lease 0", LOCK_PERMITS_NONE, 0},
    };
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        struct lock_rules *rules = lock_rules_new();
        char text[300];
        assert_null(add(rules, vectors[i].line));
        const struct lock_rule *rule = lock_rules_get(rules, 0);
        assert_int_equal(rule->mode, LOCK_MODE_OFF);
        assert_int_equal(rule->permits, vectors[i].permits);
        assert_int_equal(rule->lease_ms, vectors[i].lease_ms);
        lock_rule_text(rule, text, sizeof(text));
        assert_string_equal(text, vectors[i].text);
        lock_rules_unref(rules);
    }
}

static void test_text(void **state) {
    (void)state;
    struct lock_rules *rules = lock_rules_new();
    const char *words[] = {"my \"lock\" \\x\x01*", "lease", "0"};
    assert_null(lock_rules_add(rules, words, 3, error, sizeof(error)));
    char text[300], small[20];
    size_t len = lock_rule_text(lock_rules_get(rules, 0), text, sizeof(text));
    assert_string_equal(
        text,
        "\"my \\\"lock\\\" \\\\x\\x01*\" mode enforce owner auto kind string claim-memory auto lease 0 " AFTER_LEASE);
    assert_int_equal(len, strlen(text));
    assert_int_equal(lock_rule_text(lock_rules_get(rules, 0), small, sizeof(small)), len);
    assert_int_equal(strlen(small), sizeof(small) - 1);
    assert_memory_equal(small, text, sizeof(small) - 1);
    lock_rules_unref(rules);
}

/* A rule outlives a reload as long as there is a reference to its set. */
static void test_references(void **state) {
    (void)state;
    struct lock_rules *rules = lock_rules_new();
    assert_null(add(rules, "lock:* lease 1s"));
    const struct lock_rule *r = match(rules, "lock:a");
    struct lock_rules *held = lock_rules_ref(r->set);
    assert_ptr_equal(held, rules);
    lock_rules_unref(rules);
    assert_int_equal(r->lease_ms, 1000);
    lock_rules_unref(held);
    lock_rules_unref(NULL);
}

static void *matcher(void *arg) {
    struct lock_rules *rules = lock_rules_ref(arg);
    for (int i = 0; i < 10000; i++)
        (void)lock_rules_match(rules, i % 2 ? "lock:a" : "other", i % 2 ? 6 : 5);
    lock_rules_unref(rules);
    return NULL;
}

static const char *add_fence(struct lock_rules *rules, const char *line) {
    char pattern[40], lock[40], by[3];
    assert_int_equal(sscanf(line, "%39s %2s %39s", pattern, by, lock), 3);
    const char *words[] = {pattern, by, lock};
    return lock_rules_add_fence(rules, words, 3, error, sizeof(error));
}

/* The last of some rules, or of some fences, is doubtful if the text has `part`. */
static void test_doubts(void **state) {
    (void)state;
    static const struct {
        const char *rules[3], *part;
    } cases[] = {
        {{"*:lock", "bull:*:lock mode off"}, "'lock *:lock' above it matches all of its keys"},
        {{"lock:*", "lock:*:[ab]"}, "'lock lock:*' above it"},
        {{"lock:*", "lock:* owner any"}, "'lock lock:*' above it"},
        {{"lock:?", "lock:*"}, NULL},
        {{"lock:[*]", "lock:[*] owner any"}, "'lock lock:[*]' above it"},
        {{"lock:\\*", "lock:*"}, NULL},
        {{"bull:*:lock", "*:lock"}, NULL},
        {{"lock:*", "lock:*"}, NULL}, /* it says the same */
        {{"lock:[ab*"}, "the bracket is not closed"},
        {{"lock:\\[ab*"}, NULL},
        {{"lock:[a]b*"}, NULL},
        {{"lock:* lease 30s max-hold 5s"}, "max-hold is below lease"},
        {{"lock:* lease 5s max-hold 30s"}, NULL},
        {{"lock:* lease 30s max-hold 0"}, NULL},
        {{"stock:* by lock:*", "stock:1* by lock:*"}, "'fence stock:*' above it"},
        {{"stock:* by lock:*", "stock:* by lock:stock:*"}, "'fence stock:*' above it"},
        {{"stock:* by lock:*", "stock:* by lock:*"}, NULL},
        {{"stock:1* by lock:*", "stock:* by lock:*"}, NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct lock_rules *rules = lock_rules_new();
        bool fence = strstr(cases[i].rules[0], " by ");
        size_t count = 0;
        for (; count < 3 && cases[i].rules[count]; count++)
            assert_null((fence ? add_fence : add)(rules, cases[i].rules[count]));
        char text[400] = "";
        size_t len = lock_rule_doubt(rules, count - 1, fence, text, sizeof(text));
        assert_int_equal(len, strlen(text));
        if (cases[i].part ? !strstr(text, cases[i].part) : len > 0)
            fail_msg("%s: '%s'", cases[i].rules[0], text);
        lock_rules_unref(rules);
    }
}

static void test_threads(void **state) {
    (void)state;
    struct lock_rules *rules = lock_rules_new();
    assert_null(add(rules, "lock:*"));
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, matcher, rules), 0);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&lock_rules_get(rules, 0)->hits), 20000);
    lock_rules_unref(rules);
}

static void test_guard(void **state) {
    (void)state;
    slot_tags_init();
    srand(4);
    for (int round = 0; round < 20000; round++) {
        char key[40], guard[sizeof(key) + LOCK_GUARD_EXTRA];
        size_t len = (size_t)rand() % sizeof(key);
        for (size_t i = 0; i < len; i++)
            key[i] = rand() % 3 ? (char)(rand() % 256) : "{}:"[rand() % 3];
        size_t guard_len = lock_guard_key(key, len, guard);
        assert_true(guard_len <= len + LOCK_GUARD_EXTRA);
        assert_int_equal(slot_of_key(guard, guard_len), slot_of_key(key, len));
        assert_true(lock_guard_is(guard, guard_len));
        assert_memory_equal(guard + guard_len - len, key, len);
        assert_false(lock_guard_is(key, len));
    }
}

static void test_guard_is(void **state) {
    (void)state;
    slot_tags_init();
    char guard[64], shorter[64];
    size_t len = lock_guard_key("lock:a", 6, guard);
    for (size_t cut = 0; cut < len; cut++) {
        memcpy(shorter, guard, cut);
        /* Cut inside the key, it may by chance be the guard of the shorter key: if that has the same slot. */
        char other[64];
        bool is_other = false;
        for (size_t k = 0; k < 6; k++) {
            size_t other_len = lock_guard_key("lock:a", k, other);
            is_other |= other_len == cut && memcmp(other, guard, cut) == 0;
        }
        assert_int_equal(lock_guard_is(shorter, cut), is_other);
    }
    static const char *const OTHERS[] = {"",
                                         "lockkeeper:",
                                         "lockkeeper:{",
                                         "lockkeeper:{}",
                                         "lockkeeper:{}:lock:a",
                                         "lockkeeper:{no such tag}:lock:a",
                                         "lockkeeper:{tag}lock:a",
                                         "Lockkeeper:{",
                                         "lockkeeper:queue",
                                         "lock:a"};
    for (size_t i = 0; i < sizeof(OTHERS) / sizeof(OTHERS[0]); i++)
        assert_false(lock_guard_is(OTHERS[i], strlen(OTHERS[i])));
    /* The tag of another slot is the application's own key. */
    char wrong[64];
    len = (size_t)snprintf(wrong, sizeof(wrong), "lockkeeper:{%s}:lock:a",
                           slot_tag((uint16_t)((slot_of_key("lock:a", 6) + 1) % SLOT_COUNT)));
    assert_false(lock_guard_is(wrong, len));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),   cmocka_unit_test(test_options),     cmocka_unit_test(test_errors),
        cmocka_unit_test(test_promises),   cmocka_unit_test(test_first_match), cmocka_unit_test(test_like_glob),
        cmocka_unit_test(test_text),       cmocka_unit_test(test_semaphores),  cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_references), cmocka_unit_test(test_threads),     cmocka_unit_test(test_guard),
        cmocka_unit_test(test_doubts),     cmocka_unit_test(test_guard_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
