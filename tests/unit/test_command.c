/* The command table: look-ups, arity, keys. tests/integration/test_command_table.py compares the rows and the keys
 * with a running redis-server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/command.h"

static const struct command *find(const char *name) {
    return command_lookup(name, strlen(name));
}

static int init(void **state) {
    (void)state;
    command_table_init();
    return 0;
}

/* ---- look-up ----------------------------------------------------------------------------- */

static void test_every_row_is_found(void **state) {
    (void)state;
    for (int id = 1; id < COMMAND_COUNT; id++) {
        const struct command *c = command_by_id((enum command_id)id);
        char name[64];
        size_t len = strlen(c->name);
        assert_int_equal(c->id, id);
        assert_ptr_equal(command_lookup(c->name, len), c);
        for (size_t i = 0; i <= len; i++) {
            name[i] = (char)toupper((unsigned char)c->name[i]);
        }
        assert_ptr_equal(command_lookup(name, len), c);
        name[0] = c->name[0];
        assert_ptr_equal(command_lookup(name, len), c);
    }
}

/* Every row is found by the first argument of a request, which is read with what stands before it. */
static void test_every_row_is_found_in_a_request(void **state) {
    (void)state;
    for (int id = 0; id < COMMAND_COUNT; id++) {
        const char *name = id ? command_by_id((enum command_id)id)->name : "";
        size_t len = strlen(name);
        char *bytes = malloc(64); /* of its very size: nothing before it or behind it may be read */
        int n = snprintf(bytes, 64, "*1\r\n$%zu\r\n", len);
        for (size_t i = 0; i < len; i++) {
            bytes[n + (int)i] = (char)(i % 2 ? name[i] : toupper((unsigned char)name[i]));
        }
        struct resp_request r;
        resp_request_init(&r);
        r.argc = 1;
        r.argv[0] = (struct resp_arg){(size_t)n, len};
        bytes = realloc(bytes, (size_t)n + len);
        assert_ptr_equal(command_of_request(&r, bytes), command_lookup(name, len));
        assert_true(!id || command_of_request(&r, bytes) == command_by_id((enum command_id)id));
        free(bytes);
    }
}

/* A name with any one byte changed, left out, or behind it is another name. */
static void test_neighbours_are_not_found(void **state) {
    (void)state;
    for (int id = 1; id < COMMAND_COUNT; id++) {
        const struct command *c = command_by_id((enum command_id)id);
        char name[64];
        size_t len = strlen(c->name);
        for (size_t i = 0; i <= len; i++) {
            for (int byte = 0; byte < 256; byte++) {
                memcpy(name, c->name, len);
                name[i] = (char)byte;
                const struct command *got = command_lookup(name, i < len ? len : len + 1);
                bool same = i < len && tolower(byte) == c->name[i];
                assert_true(same ? got == c : got != c);
                /* What was found has this very name. */
                assert_true(!got || (strlen(got->name) == (i < len ? len : len + 1) &&
                                     strncasecmp(got->name, name, strlen(got->name)) == 0));
            }
        }
        assert_true(command_lookup(c->name, len - 1) != c);
    }
}

static void test_unknown_names(void **state) {
    (void)state;
    assert_null(command_lookup("", 0));
    assert_null(command_lookup("get\0", 4));
    assert_null(command_lookup("\0get", 4));
    assert_null(find("gett"));
    assert_null(find("ge"));
    assert_null(find("\xe7\xe5\xf4")); /* "get" with the top bits set */
    assert_null(find("zrangebyscorezrangebyscore"));
    char *large = malloc(1 << 20);
    memset(large, 'a', 1 << 20);
    for (size_t len = 1; len <= 1 << 20; len = len < 64 ? len + 1 : len * 2) {
        assert_null(command_lookup(large, len));
    }
    free(large);
}

/* ---- the rows ---------------------------------------------------------------------------- */

static void test_rows_make_sense(void **state) {
    (void)state;
    for (int id = 1; id < COMMAND_COUNT; id++) {
        const struct command *c = command_by_id((enum command_id)id);
        for (int other = id + 1; other < COMMAND_COUNT; other++) {
            assert_string_not_equal(c->name, command_by_id((enum command_id)other)->name);
        }
        bool keys = c->first > 0 || c->find;
        assert_true(c->arity != 0);
        assert_int_equal((c->flags & COMMAND_MOVABLE_KEYS) != 0, c->find != NULL);
        assert_false((c->flags & COMMAND_WRITE) && (c->flags & COMMAND_READONLY));
        assert_true(c->first == 0 ? c->last == 0 && c->step == 0 : c->step > 0);
        /* With the fewest arguments the keys are there. */
        assert_true(abs(c->arity) > c->last);
        assert_true(c->split == SPLIT_NONE || (c->need == NEED_KEY && c->first == 1 && c->last == -1 && !c->find));
        assert_int_equal(c->step == 2, c->id == COMMAND_MSET || c->id == COMMAND_MSETNX);
        switch (c->need) {
        case NEED_KEY:
            assert_true(keys);
            break;
        case NEED_NODE:
        case NEED_MASTERS:
        case NEED_CLUSTER:
        case NEED_KEYSPACE:
        case NEED_SESSION:
        case NEED_PROXY:
        case NEED_REFUSED:
        case NEED_CLOSE:
            assert_false(keys);
            break;
        case NEED_TRANSACTION:
        case NEED_PUBSUB:
        case NEED_BLOCKING:
            break;
        }
    }
}

static void test_needs(void **state) {
    (void)state;
    static const struct {
        enum command_need need;
        const char *names;
    } needs[] = {
        {NEED_KEY, "get set setnx del eval object memory xgroup xinfo spublish sort migrate mget hset delifeq hexpire"},
        {NEED_NODE, "ping time echo command publish swapdb replicaof failover"},
        {NEED_MASTERS, "dbsize flushall flushdb script function info config lastsave shutdown slowlog"},
        {NEED_CLUSTER, "cluster"},
        {NEED_KEYSPACE, "keys scan randomkey"},
        {NEED_SESSION, "auth hello select quit client reset readonly readwrite asking"},
        {NEED_PROXY, "proxy"},
        {NEED_TRANSACTION, "multi exec discard watch unwatch"},
        {NEED_PUBSUB, "subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe monitor"},
        {NEED_BLOCKING, "blpop brpop blmove brpoplpush blmpop bzpopmin bzpopmax bzmpop xread xreadgroup wait"},
        {NEED_REFUSED, "sync psync replconf"},
        {NEED_CLOSE, "post host:"},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        char names[128];
        strcpy(names, needs[i].names);
        for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) {
            const struct command *c = find(name);
            assert_non_null(c);
            assert_int_equal(c->need, needs[i].need);
        }
    }
    static const char *const no_auth[] = {"auth", "hello", "quit", "reset"};
    size_t count = 0;
    for (int id = 1; id < COMMAND_COUNT; id++) {
        count += (command_by_id((enum command_id)id)->flags & COMMAND_NO_AUTH) != 0;
    }
    assert_int_equal(count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_true(find(no_auth[i])->flags & COMMAND_NO_AUTH);
    }
}

static void test_splits(void **state) {
    (void)state;
    for (int id = 1; id < COMMAND_COUNT; id++) {
        const struct command *c = command_by_id((enum command_id)id);
        enum command_split expected = SPLIT_NONE;
        if (id == COMMAND_DEL || id == COMMAND_UNLINK || id == COMMAND_EXISTS || id == COMMAND_TOUCH) {
            expected = SPLIT_SUM;
        } else if (id == COMMAND_MGET) {
            expected = SPLIT_MGET;
        } else if (id == COMMAND_MSET) {
            expected = SPLIT_MSET;
        }
        assert_int_equal(c->split, expected);
    }
}

static void test_arity(void **state) {
    (void)state;
    assert_true(command_arity_ok(find("get"), 2));
    assert_false(command_arity_ok(find("get"), 1));
    assert_false(command_arity_ok(find("get"), 3));
    assert_true(command_arity_ok(find("set"), 3));
    assert_true(command_arity_ok(find("set"), 100));
    assert_false(command_arity_ok(find("set"), 2));
    assert_true(command_arity_ok(find("ping"), 1));
    assert_true(command_arity_ok(find("proxy"), 2));
    assert_false(command_arity_ok(find("proxy"), 1));
}

/* ---- keys -------------------------------------------------------------------------------- */

/* A request of words, as it comes from a client. */
struct words {
    char *data;
    struct resp_request request;
};

static void make_request(struct words *w, const char *line) {
    const struct resp_limits limits = {1 << 20, false};
    w->data = malloc(resp_inline_bound(strlen(line)));
    int64_t len = resp_inline_encode(line, strlen(line), w->data);
    assert_true(len > 0);
    resp_request_init(&w->request);
    assert_int_equal(resp_request_scan(&w->request, w->data, (size_t)len, &limits), RESP_OK);
}

static void free_request(struct words *w) {
    resp_request_clear(&w->request);
    free(w->data);
}

static const struct command *command_of(const struct words *w) {
    size_t len;
    const char *name = request_arg(&w->request, w->data, 0, &len);
    const struct command *c = command_lookup(name, len);
    assert_non_null(c);
    assert_true(command_arity_ok(c, w->request.argc));
    return c;
}

/* `expected`: the indexes with spaces between, "" for none, "bad" for malformed arguments. */
static void check_keys(const char *line, const char *expected) {
    struct words w;
    make_request(&w, line);
    uint32_t keys[16];
    char got[128] = "";
    int count = command_keys(command_of(&w), w.data, &w.request, keys, 16);
    for (int i = 0; i < count; i++) {
        sprintf(got + strlen(got), "%s%u", i ? " " : "", keys[i]);
    }
    if (strcmp(count < 0 ? "bad" : got, expected) != 0) {
        print_error("%s\n", line);
    }
    assert_string_equal(count < 0 ? "bad" : got, expected);
    free_request(&w);
}

static void test_keys(void **state) {
    (void)state;
    static const struct {
        const char *line, *keys;
    } cases[] = {
        {"PING", ""},
        {"PUBLISH c m", ""},
        {"GET k", "1"},
        {"GET \"\"", "1"},
        {"DEL a b c", "1 2 3"},
        {"MSET a 1 b 2", "1 3"},
        {"MSET a 1 b", "bad"},
        {"MSETNX a 1 b 2 c", "bad"},
        {"BITOP AND d a b", "2 3 4"},
        {"BLPOP a b 0", "1 2"},
        {"RENAME a b", "1 2"},
        {"RPOPLPUSH a b", "1 2"},
        {"WATCH a b", "1 2"},
        {"SUNSUBSCRIBE", ""},
        {"SUNSUBSCRIBE a b", "1 2"},
        {"EVAL s 0", ""},
        {"EVAL s 0 a b", ""},
        {"eval s 2 a b c", "3 4"},
        {"EVALSHA_RO s 1 a", "3"},
        {"EVAL s 3 a b", "bad"},
        {"EVAL s -1 a", "bad"},
        {"EVAL s x a", "bad"},
        {"EVAL s 01 a", "3"},
        {"EVAL s 1.5 a", "3"},
        {"EVAL s 1x a b", "3"},
        {"EVAL s 9223372036854775807 a", "bad"},
        {"FCALL f 1 a b", "3"},
        {"ZUNION 2 a b WITHSCORES", "2 3"},
        {"ZUNION 3 a b", "bad"},
        {"SINTERCARD 1 a LIMIT 1", "2"},
        {"LMPOP 2 a b LEFT", "2 3"},
        {"BLMPOP 0 2 a b LEFT", "3 4"},
        {"BZMPOP 0 1 a MIN", "3"},
        {"ZUNIONSTORE d 2 a b WEIGHTS 1 2", "1 3 4"},
        {"ZDIFFSTORE d 3 a b", "bad"},
        {"ZINTERSTORE d 0 a", "bad"},
        {"XREAD STREAMS a 0", "2"},
        {"XREAD COUNT 1 BLOCK 0 STREAMS a b 0 0", "6 7"},
        {"XREAD COUNT STREAMS STREAMS a 0", "4"},
        {"XREAD STREAMS a b 0", "bad"},
        {"XREAD COUNT 1 STREAMS", "bad"},
        {"XREAD a b c", "bad"},
        {"XREADGROUP GROUP streams c STREAMS a >", "5"},
        {"XREADGROUP GROUP g c NOACK COUNT 1 streams a b > >", "8 9"},
        {"SORT a", "1"},
        {"SORT a BY p LIMIT 0 1 GET x GET y DESC ALPHA STORE d", "1 14"},
        {"SORT a BY store STORE d", "1 5"},
        {"SORT a GET store LIMIT store store", "1"},
        {"SORT a STORE d STORE e", "1 5"},
        {"SORT a STORE", "1"},
        {"SORT_RO a", "1"},
        {"GEORADIUS a 1 2 3 m", "1"},
        {"GEORADIUS a 1 2 3 m STORE d", "1 7"},
        {"GEORADIUS a 1 2 3 store d", "1"},
        {"GEORADIUS a 1 2 3 m STORE d STOREDIST e", "1 9"},
        {"GEORADIUSBYMEMBER a m 3 km STOREDIST d", "1 6"},
        {"GEORADIUSBYMEMBER a m 3 km STORE", "1"},
        {"GEOSEARCHSTORE d a FROMLONLAT 1 2 BYRADIUS 1 m", "1 2"},
        {"MIGRATE h 1 k 0 1", "3"},
        {"MIGRATE h 1 k 0 1 COPY REPLACE", "3"},
        {"MIGRATE h 1 \"\" 0 1 KEYS a b", "7 8"},
        {"MIGRATE h 1 \"\" 0 1 AUTH keys KEYS a", "9"},
        {"MIGRATE h 1 \"\" 0 1 AUTH2 keys keys KEYS a", "10"},
        {"MIGRATE h 1 \"\" 0 1 KEYS", "bad"},
        {"OBJECT HELP", ""},
        {"OBJECT ENCODING k", "2"},
        {"XGROUP CREATE k g $", "2"},
        {"XINFO STREAM k FULL", "2"},
        {"XINFO HELP", ""},
        {"MEMORY USAGE k SAMPLES 0", "2"},
        {"MEMORY DOCTOR", ""},
        {"MEMORY USAGE", ""},
        {"DEBUG OBJECT k", "2"},
        {"DEBUG SLEEP 0", ""},
        {"DEBUG DIGEST-VALUE a b", "2 3"},
        {"PFDEBUG TODENSE k", "2"},
        {"MSETEX 2 a 1 b 2 NX", "2 4"},
        {"MSETEX 2 a 1 b", "bad"},
        {"DELEX k IFEQ v", "1"},
        {"HSETEX k FIELDS 1 f v", "1"},
        {"PROXY LOCK k", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_keys(cases[i].line, cases[i].keys);
    }
}

/* More keys than there is room for: all are counted, none is written beyond. */
static void test_keys_without_room(void **state) {
    (void)state;
    static const char *const lines[] = {"DEL a b c d", "EVAL s 4 a b c d", "XREAD STREAMS a b c d 0 0 0 0",
                                        "ZUNIONSTORE a 3 b c d"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct words w;
        make_request(&w, lines[i]);
        uint32_t keys[3] = {0, 0, 77};
        assert_int_equal(command_keys(command_of(&w), w.data, &w.request, keys, 2), 4);
        assert_true(keys[0] && keys[1] && keys[2] == 77);
        assert_int_equal(command_keys(command_of(&w), w.data, &w.request, NULL, 0), 4);
        free_request(&w);
    }
}

static void test_blocking(void **state) {
    (void)state;
    static const struct {
        const char *line;
        bool blocks;
    } cases[] = {
        {"GET k", false},
        {"BLPOP k 0", true},
        {"WAIT 0 0", true},
        {"XREAD STREAMS a 0", false},
        {"XREAD COUNT 1 STREAMS block 0", false},
        {"XREAD COUNT 1 BLOCK", false},
        {"XREAD COUNT 1 BLOCK 5", true},
        {"XREAD BLOCK 0 STREAMS a 0", true},
        {"XREAD count 1 block 5 STREAMS a 0", true},
        {"XREAD COUNT BLOCK STREAMS a 0", false},
        {"XREADGROUP GROUP block block STREAMS a >", false},
        {"XREADGROUP GROUP g c NOACK BLOCK 0 STREAMS a >", true},
        {"XREAD a b BLOCK", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct words w;
        make_request(&w, cases[i].line);
        assert_int_equal(command_blocks(command_of(&w), w.data, &w.request), cases[i].blocks);
        free_request(&w);
    }
}

static void test_how_long_it_waits(void **state) {
    (void)state;
    static const struct {
        const char *line;
        int64_t ms; /* at least; and at most one more */
    } cases[] = {
        {"BLPOP a b 0", 0},
        {"BLPOP a b 1.5", 1500},
        {"BRPOP a 0.001", 1},
        {"BLMOVE a b LEFT RIGHT 2", 2000},
        {"BLMPOP 3 2 a b LEFT", 3000},
        {"BZMPOP 0 1 a MIN", 0},
        {"BZPOPMIN a 1e1", 10000},
        {"XREAD BLOCK 250 STREAMS a $", 250},
        {"XREADGROUP GROUP g c COUNT 1 BLOCK 0 STREAMS a >", 0},
        {"WAIT 1 500", 500},
        {"WAITAOF 1 1 700", 700},
        {"BLPOP a -1", 0},
        {"BLPOP a nan", 0},
        {"BLPOP a inf", 0},
        {"BLPOP a 1e300", 0},
        {"BLPOP a 1x", 0},
        {"BLPOP a 0000000000000000000000000000000000000000001", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct words w;
        make_request(&w, cases[i].line);
        int64_t ms = command_wait_ms(command_of(&w), w.data, &w.request);
        assert_in_range(ms, cases[i].ms, cases[i].ms + (cases[i].ms > 0));
        free_request(&w);
    }
}

static void test_words(void **state) {
    (void)state;
    struct words w;
    make_request(&w, "SET nx NX Nx n nxx \"\" \"nx\\x00\" \"n\\x00\"");
    static const bool is_nx[] = {false, true, true, true, false, false, false, false, false};
    for (size_t i = 0; i < w.request.argc; i++) {
        assert_int_equal(request_arg_is(&w.request, w.data, i, "nx"), is_nx[i]);
    }
    free_request(&w);
    make_request(&w, "SET 17 -3 +3 017 1x \"\"");
    static const int64_t numbers[] = {0, 17, -3, 0, 0, 0, 0};
    for (size_t i = 0; i < w.request.argc; i++) {
        int64_t n = 0;
        assert_int_equal(request_arg_integer(&w.request, w.data, i, &n), numbers[i] != 0);
        assert_int_equal(n, numbers[i]);
    }
    free_request(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_found),
        cmocka_unit_test(test_every_row_is_found_in_a_request),
        cmocka_unit_test(test_neighbours_are_not_found),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_rows_make_sense),
        cmocka_unit_test(test_needs),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_arity),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_keys_without_room),
        cmocka_unit_test(test_blocking),
        cmocka_unit_test(test_how_long_it_waits),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, init, NULL);
}
