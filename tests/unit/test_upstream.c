/*
 * The upstream against one real Redis, and against nodes that misbehave: order, framing, lanes, lost connections,
 * timeouts, abandoned requests. The cluster has its own file, test_upstream_cluster.c.
 */
#include "tests/unit/upstream_rig.h"

#include "proxy/upstream/script.h"

static struct redis server;

/* ---- the happy way ---- */

static void test_pipeline_keeps_order(void **state) {
    enum { COUNT = 10000 };
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    AWAIT(&rig, rig.ready);
    assert_string_equal(rig.ready_error, "");
    assert_false(upstream_is_cluster(rig.u));
    assert_int_equal(upstream_master_count(rig.u), 1);

    struct call *calls = calloc(COUNT, sizeof(*calls));
    unsigned first = call_order;
    for (int i = 0; i < COUNT; i++)
        CALL(&rig, &calls[i], -1, "INCR", "counter");
    AWAIT(&rig, calls[COUNT - 1].done);
    for (int i = 0; i < COUNT; i++) {
        char expected[32];
        snprintf(expected, sizeof(expected), ":%d\r\n", i + 1);
        ASSERT_REPLY(&calls[i], expected);
        assert_int_equal(calls[i].order, first + (unsigned)i + 1);
        assert_int_equal(calls[i].parts, 1);
        call_clear(&calls[i]);
    }
    free(calls);
    rig_close(&rig);
}

static void test_unix_socket(void **state) {
    char address[128];
    snprintf(address, sizeof(address), "unix:%s", server.socket);
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, address);
    rig_start(&rig);
    EXPECT(&rig, -1, "$5\r\nhello\r\n", "ECHO", "hello");
    rig_close(&rig);
}

static void test_host_name(void **state) {
    char address[64];
    snprintf(address, sizeof(address), "localhost:%d", server.port);
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, address);
    rig_start(&rig);
    EXPECT(&rig, -1, "+PONG\r\n", "PING");
    rig_close(&rig);
}

/* Replies cut by the end of the read buffer: small ones come whole, large ones in pieces, none is changed. */
static void test_replies_of_all_sizes(void **state) {
    enum { COUNT = 400, BIG = 3 * 1000 * 1000 };
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    char *value = malloc(BIG);
    for (int i = 0; i < BIG; i++)
        value[i] = (char)(i * 7 + i / 251);
    REDIS_OK_REPLY(&server, "SET small %b", value, (size_t)2999);
    REDIS_OK_REPLY(&server, "SET big %b", value, (size_t)BIG);

    struct call *calls = calloc(COUNT, sizeof(*calls)), big;
    for (int i = 0; i < COUNT; i++)
        CALL(&rig, &calls[i], -1, "GET", "small");
    CALL(&rig, &big, -1, "GET", "big");
    struct call after;
    CALL(&rig, &after, -1, "PING");
    AWAIT(&rig, after.done);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(calls[i].parts, 1);
        assert_int_equal(calls[i].reply_len, 7 + 2999 + 2);
        assert_memory_equal(calls[i].reply + 7, value, 2999);
        call_clear(&calls[i]);
    }
    assert_true(big.parts > 1);
    assert_int_equal(big.reply_len, 10 + BIG + 2);
    assert_memory_equal(big.reply, "$3000000\r\n", 10);
    assert_memory_equal(big.reply + 10, value, BIG);
    ASSERT_REPLY(&after, "+PONG\r\n");
    call_clear(&big);
    call_clear(&after);
    free(calls);
    free(value);
    rig_close(&rig);
}

static void test_large_requests(void **state) {
    enum { BIG = 5 * 1000 * 1000 };
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    char *bytes = malloc(BIG + 64);
    int head = sprintf(bytes, "*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$%d\r\n", BIG);
    memset(bytes + head, 'x', BIG);
    memcpy(bytes + head + BIG, "\r\n", 2);
    struct call set, len;
    call_init(&set);
    assert_null(upstream_submit(rig.u, &set.r, -1, &plain_lane, bytes, (size_t)head + BIG + 2));
    free(bytes); /* the upstream has its own copy */
    CALL(&rig, &len, -1, "STRLEN", "large");
    AWAIT(&rig, len.done);
    ASSERT_REPLY(&set, "+OK\r\n");
    ASSERT_REPLY(&len, ":5000000\r\n");
    call_clear(&set);
    call_clear(&len);
    rig_close(&rig);
}

/* ---- lanes ---- */

static void test_lanes_are_apart(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    struct upstream_lane db9 = {.login = 0, .db = 9, .protocol = 2}, resp3 = {.login = 0, .db = 0, .protocol = 3};
    struct call set, here, there, map2, map3;
    CALL_ON(&rig, &set, &db9, -1, "SET", "only-in-9", "v");
    AWAIT(&rig, set.done);
    CALL_ON(&rig, &there, &db9, -1, "GET", "only-in-9");
    CALL(&rig, &here, -1, "GET", "only-in-9");
    REDIS_OK_REPLY(&server, "HSET hash f v");
    CALL(&rig, &map2, -1, "HGETALL", "hash");
    CALL_ON(&rig, &map3, &resp3, -1, "HGETALL", "hash");
    AWAIT(&rig, here.done && there.done && map2.done && map3.done);
    ASSERT_REPLY(&there, "$1\r\nv\r\n");
    ASSERT_REPLY(&here, "$-1\r\n");
    ASSERT_REPLY(&map2, "*2\r\n$1\r\nf\r\n$1\r\nv\r\n");
    ASSERT_REPLY(&map3, "%1\r\n$1\r\nf\r\n$1\r\nv\r\n");
    call_clear(&set);
    call_clear(&here);
    call_clear(&there);
    call_clear(&map2);
    call_clear(&map3);
    rig_close(&rig);
}

static void test_logins(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    REDIS_OK_REPLY(&server, "ACL SETUSER alice on >secret ~* +@all");
    uint32_t alice = upstream_login_intern("alice", 5, "secret", 6);
    uint32_t wrong = upstream_login_intern("alice", 5, "guess", 5);
    assert_true(alice != 0 && wrong != 0 && alice != wrong);
    assert_int_equal(upstream_login_intern("alice", 5, "secret", 6), alice);

    struct upstream_lane lane = {.login = alice, .db = 2, .protocol = 3},
                         wrong_lane = {.login = wrong, .db = 0, .protocol = 2},
                         gone_lane = {.login = wrong, .db = 1, .protocol = 2};
    struct call who, refused[2], gone;
    CALL_ON(&rig, &who, &lane, -1, "ACL", "WHOAMI");
    CALL_ON(&rig, &refused[0], &wrong_lane, -1, "PING");
    CALL_ON(&rig, &refused[1], &wrong_lane, -1, "PING");
    AWAIT(&rig, who.done && refused[0].done && refused[1].done);
    ASSERT_REPLY(&who, "$5\r\nalice\r\n");
    for (int i = 0; i < 2; i++)
        ASSERT_FAILED(&refused[i], UPSTREAM_REFUSED, "WRONGPASS invalid username-password pair or user is disabled.");
    EXPECT(&rig, -1, "$7\r\ndefault\r\n", "ACL", "WHOAMI"); /* the node is well all the same */

    upstream_login_release(wrong);
    call_init(&gone);
    const char *error = call_try(&rig, &gone, &gone_lane, -1, "PING", NULL);
    assert_string_equal(error, "UPSTREAM the client's login is not known any more; the request was not sent");
    assert_true(upstream_login_intern("alice", 5, "guess", 5) != wrong);

    assert_false(
        upstream_login_prove(alice)); /* accepted for the first time: it is remembered, whatever other logins come */
    for (int i = 0; i < 2; i++)
        upstream_login_release(alice);
    uint32_t later = upstream_login_intern("alice", 5, "other", 5);
    assert_true(later != alice);
    upstream_login_release(later);
    assert_int_equal(upstream_login_intern("alice", 5, "secret", 6), alice);
    assert_true(upstream_login_prove(alice));
    upstream_login_refuse(alice);
    upstream_login_release(alice);
    assert_true(upstream_login_intern("alice", 5, "secret", 6) != alice); /* it was wrong since */
    call_clear(&who);
    rig_close(&rig);
    REDIS_OK_REPLY(&server, "ACL DELUSER alice");
}

static void test_configured_password(void **state) {
    REDIS_OK_REPLY(&server, "CONFIG SET requirepass hush");
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    EXPECT(&rig, -1, "-NOAUTH Authentication required.\r\n", "PING"); /* the node's own words */
    rig_close(&rig);

    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    upstream_own_login(UPSTREAM_OWN_NODES, NULL, "hush");
    rig_start(&rig);
    EXPECT(&rig, -1, "+PONG\r\n", "PING");
    rig_close(&rig);
    upstream_own_login(UPSTREAM_OWN_NODES, NULL, NULL);
    REDIS_OK_REPLY(&server, "CONFIG SET requirepass %s", "");
}

/* One session keeps to one connection, so it reads its own writes; others have another. */
static void test_affinity(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig.config.connections = 3;
    rig_start(&rig);
    struct call ids[6];
    for (int i = 0; i < 6; i++) {
        call_init(&ids[i]);
        ids[i].r.affinity = (uint32_t)i;
        assert_null(call_try(&rig, &ids[i], &plain_lane, -1, "CLIENT", "ID", NULL));
    }
    for (int i = 0; i < 6; i++)
        AWAIT(&rig, ids[i].done);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(ids[i].reply, ids[i + 3].reply);
        assert_string_not_equal(ids[i].reply, ids[(i + 1) % 3].reply);
    }
    for (int i = 0; i < 6; i++)
        call_clear(&ids[i]);
    rig_close(&rig);
}

/* ---- scripts ---- */

static void test_noscript_becomes_eval(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    static const char source[] = "return {KEYS[1], ARGV[1], redis.call('INCR', KEYS[1])}";
    char sha1[64], replies[3][128];
    redisReply *loaded = redis_do(&server, "SCRIPT LOAD %s", source);
    snprintf(sha1, sizeof(sha1), "%s", loaded->str);
    freeReplyObject(loaded);
    REDIS_OK_REPLY(&server, "SCRIPT FLUSH");
    struct script script = {.name = "test", .source = source, .len = sizeof(source) - 1, .sha1 = sha1};

    struct call plain;
    CALL(&rig, &plain, -1, "EVALSHA", sha1, "1", "scripted", "a\xff");
    AWAIT(&rig, plain.done);
    ASSERT_REPLY(&plain, "-NOSCRIPT No matching script. Please use EVAL.\r\n"); /* the application's own */

    struct call calls[3];
    for (int i = 0; i < 3; i++) {
        call_init(&calls[i]);
        calls[i].r.script = &script;
        assert_null(call_try(&rig, &calls[i], &plain_lane, -1, "EVALSHA", sha1, "1", "scripted", "a\xff", NULL));
        AWAIT(&rig, calls[i].done);
        snprintf(replies[i], sizeof(replies[i]), "*3\r\n$8\r\nscripted\r\n$2\r\na\xff\r\n:%d\r\n", i + 1);
        ASSERT_REPLY(&calls[i], replies[i]);
    }
    assert_int_equal(calls[0].redirects, 1);
    assert_int_equal(calls[1].redirects, 0);
    for (int i = 0; i < 3; i++)
        call_clear(&calls[i]);
    call_clear(&plain);
    rig_close(&rig);
}

/* The embedded scripts carry the SHA1 that Redis computes. */
static void test_script_table(void **state) {
    for (int i = 0; i < SCRIPT_TOTAL; i++) {
        const struct script *s = script_get((enum script_id)i);
        redisReply *reply = redis_do(&server, "SCRIPT LOAD %b", s->source, s->len);
        assert_int_equal(reply->type, REDIS_REPLY_STRING);
        assert_string_equal(reply->str, s->sha1);
        freeReplyObject(reply);
    }
}

/* ---- abandoned ---- */

static void test_abandoned_in_flight(void **state) {
    enum { COUNT = 300 };
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    EXPECT(&rig, -1, "+OK\r\n", "SET", "n", "0");
    struct call *calls = calloc(COUNT, sizeof(*calls));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++)
            CALL(&rig, &calls[i], -1, "INCR", "n");
        for (int i = 0; i < COUNT; i += 3) {
            upstream_abandon(&calls[i].r);
            assert_false(calls[i].r.in_flight);
            memset(&calls[i], 0xee, sizeof(calls[i])); /* it is not touched again */
        }
        AWAIT(&rig, calls[COUNT - 1].done);
        for (int i = 0; i < COUNT; i++) {
            if (i % 3 == 0)
                continue;
            char expected[32];
            snprintf(expected, sizeof(expected), ":%d\r\n", round * COUNT + i + 1);
            ASSERT_REPLY(&calls[i], expected);
            call_clear(&calls[i]);
        }
    }
    free(calls);
    rig_close(&rig);
}

/* Nothing is sent for an owner that left before there was a connection. */
static void test_abandoned_while_connecting(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    REDIS_OK_REPLY(&server, "DEL early");
    struct upstream_lane lane = {.login = 0, .db = 0, .protocol = 3};
    struct call before, gone, after;
    CALL_ON(&rig, &before, &lane, -1, "ECHO", "before");
    CALL_ON(&rig, &gone, &lane, -1, "SET", "early", "1");
    CALL_ON(&rig, &after, &lane, -1, "EXISTS", "early");
    upstream_abandon(&gone.r);
    memset(&gone, 0xee, sizeof(gone));
    AWAIT(&rig, after.done);
    ASSERT_REPLY(&before, "$6\r\nbefore\r\n");
    ASSERT_REPLY(&after, ":0\r\n");
    call_clear(&before);
    call_clear(&after);
    rig_close(&rig);
}

static void abandon_hook(struct call *c) {
    if (!c->done)
        upstream_abandon(&c->r);
    c->hook = NULL;
}

static void test_abandoned_inside_its_reply(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    struct call big, after;
    CALL(&rig, &big, -1, "GET", "big");
    big.hook = abandon_hook;
    CALL(&rig, &after, -1, "ECHO", "after");
    AWAIT(&rig, after.done);
    ASSERT_REPLY(&after, "$5\r\nafter\r\n");
    assert_false(big.done);
    assert_int_equal(big.parts, 1);
    call_clear(&big);
    call_clear(&after);
    rig_close(&rig);
}

/* From inside a reply its own request is submitted again, and others are. */
struct chain {
    struct rig *rig;
    unsigned left;
};

static void chain_hook(struct call *c) {
    struct chain *chain = c->hook_arg;
    if (!c->done || chain->left-- == 0)
        return;
    c->done = false;
    c->reply_len = 0;
    assert_null(call_try(chain->rig, c, &plain_lane, -1, "INCR", "chain", NULL));
}

static void test_submitting_from_a_reply(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    REDIS_OK_REPLY(&server, "DEL chain");
    struct chain chain = {&rig, 99};
    struct call c;
    CALL(&rig, &c, -1, "INCR", "chain");
    c.hook = chain_hook;
    c.hook_arg = &chain;
    AWAIT(&rig, c.done && !c.r.in_flight);
    ASSERT_REPLY(&c, ":100\r\n");
    call_clear(&c);
    rig_close(&rig);
}

/* ---- lost connections ---- */

static void test_refused(void **state) {
    char address[32], expected[160];
    snprintf(address, sizeof(address), "127.0.0.1:%d", free_port());
    snprintf(expected, sizeof(expected),
             "UPSTREAM node %s can't be reached (Connection refused); the request was not sent", address);
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, address);
    rig_start(&rig);
    struct call c, d;
    call_init(&c);
    const char *error = call_try(&rig, &c, &plain_lane, -1, "PING", NULL);
    if (error) {
        assert_string_equal(error, expected); /* loopback may refuse at once */
    } else {
        AWAIT(&rig, c.done);
        ASSERT_FAILED(&c, UPSTREAM_NOT_SENT, expected);
    }
    call_init(&d);
    error = call_try(&rig, &d, &plain_lane, -1, "PING", NULL); /* backing off: no second attempt yet */
    assert_string_equal(error, expected);
    assert_false(d.r.in_flight);
    rig_close(&rig);
}

/* ---- several commands that are one request ---- */

/* MULTI, a script of ours, the three words, PING, EXEC. */
static void call_together(struct rig *rig, struct call *c, const struct upstream_lane *lane, const char *command,
                          const char *key, const char *value) {
    static const char multi[] = "*1\r\n$5\r\nMULTI\r\n", end[] = "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nEXEC\r\n";
    const struct script *script = script_get(SCRIPT_READ);
    char bytes[1024];
    size_t len = (size_t)snprintf(bytes, sizeof(bytes), "%s*3\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$1\r\n0\r\n*3\r\n",
                                  multi, script->sha1);
    const char *const words[] = {command, key, value};
    for (size_t i = 0; i < 3; i++)
        len += (size_t)snprintf(bytes + len, sizeof(bytes) - len, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
    len += (size_t)snprintf(bytes + len, sizeof(bytes) - len, "%s", end);
    call_init(c);
    c->r.script = script;
    c->r.script_at = sizeof(multi) - 1;
    c->r.leading = 4;
    assert_null(upstream_submit_batch(rig->u, &c->r, -1, lane, bytes, len));
}

/* The script fails for want of keys, in its own words: it is known to the node. */
static bool is_array_behind(const struct call *c, const char *last) {
    size_t len = strlen(last);
    return !c->failed && memcmp(c->reply, "*3\r\n-ERR ", 9) == 0 && !strstr(c->reply, "NOSCRIPT") &&
           c->reply_len > len && memcmp(c->reply + c->reply_len - len, last, len) == 0;
}

static void test_batch(void **state) {
    enum { COUNT = 200 };
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    struct call calls[COUNT], between[COUNT];
    char value[16], expected[32];
    for (int i = 0; i < COUNT; i++) {
        snprintf(value, sizeof(value), "v%d", i);
        call_together(&rig, &calls[i], &plain_lane, i % 2 ? "SETNX" : "GETSET", "together", value);
        CALL(&rig, &between[i], -1, "GET", "together");
    }
    AWAIT(&rig, between[COUNT - 1].done);
    for (int i = 0; i < COUNT; i++) {
        snprintf(expected, sizeof(expected), "v%d\r\n+PONG\r\n", i / 2 * 2 - 2);
        assert_true(is_array_behind(&calls[i], i % 2 ? ":0\r\n+PONG\r\n" : i ? expected : "$-1\r\n+PONG\r\n"));
        snprintf(expected, sizeof(expected), "v%d\r\n", i / 2 * 2);
        assert_string_equal(between[i].reply + between[i].reply_len - strlen(expected), expected);
        call_clear(&calls[i]);
        call_clear(&between[i]);
    }
    /* What is refused while it is queued keeps all of it from being executed. */
    struct call refused;
    call_together(&rig, &refused, &plain_lane, "NOSUCH", "together", "x");
    AWAIT(&rig, refused.done);
    assert_int_equal(memcmp(refused.reply, "-EXECABORT ", 11), 0);
    call_clear(&refused);
    EXPECT(&rig, -1, "+OK\r\n", "SCRIPT", "FLUSH");
    upstream_script_unknown(rig.u);
    call_together(&rig, &calls[0], &plain_lane, "SETNX", "together", "x");
    AWAIT(&rig, calls[0].done);
    assert_true(is_array_behind(&calls[0], ":0\r\n+PONG\r\n"));
    call_clear(&calls[0]);
    rig_close(&rig);
}

/* A user without the right to MULTI gets the reply of the command in the middle. */
static void test_batch_refused(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    EXPECT(&rig, -1, "+OK\r\n", "ACL", "SETUSER", "alone", "on", ">secret", "~*", "+@all", "-multi");
    struct upstream_lane lane = plain_lane;
    lane.login = upstream_login_intern("alone", 5, "secret", 6);
    struct call c, next;
    call_together(&rig, &c, &lane, "GETSET", "alone", "v");
    CALL_ON(&rig, &next, &lane, -1, "GET", "alone");
    AWAIT(&rig, next.done);
    assert_true(c.r.multi_refused);
    ASSERT_REPLY(&c, "$-1\r\n");
    ASSERT_REPLY(&next, "$1\r\nv\r\n");
    call_clear(&c);
    call_clear(&next);
    upstream_login_release(lane.login);
    rig_close(&rig);
}

static void test_killed_and_back(void **state) {
    struct redis own;
    redis_start(&own, false);
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, own.address);
    rig_start(&rig);
    EXPECT(&rig, -1, "+PONG\r\n", "PING");
    kill(own.pid, SIGSTOP);
    struct call write, repeatable;
    CALL(&rig, &write, -1, "INCR", "x");
    CALL(&rig, &repeatable, -1, "GET", "x");
    repeatable.r.repeatable = true;
    rig_turn(&rig); /* written, and not answered */
    redis_kill(&own);
    AWAIT(&rig, write.done && repeatable.done);
    assert_true(write.failed && repeatable.failed);
    assert_int_equal(write.why, UPSTREAM_UNKNOWN);
    assert_non_null(strstr(write.error, "was lost ("));
    assert_non_null(strstr(write.error, "; the outcome of the request is unknown"));
    assert_int_equal(repeatable.why, UPSTREAM_UNKNOWN); /* tried again, and sent before */
    assert_non_null(strstr(repeatable.error, "can't be reached (Connection refused); the outcome"));

    redis_boot(&own);
    struct call again;
    call_init(&again);
    AWAIT(&rig, !call_try(&rig, &again, &plain_lane, -1, "PING", NULL));
    AWAIT(&rig, again.done);
    ASSERT_REPLY(&again, "+PONG\r\n");
    call_clear(&again);
    rig_close(&rig);
    redis_stop(&own);
}

/* A connection that ends between two requests causes no error. */
static void test_unsent_is_sent_again(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    EXPECT(&rig, -1, "+OK\r\n", "SET", "k", "1");
    rig.hold = true;
    struct call calls[3];
    for (int i = 0; i < 3; i++)
        CALL(&rig, &calls[i], -1, "INCR", "k");
    REDIS_OK_REPLY(&server, "CLIENT KILL TYPE normal SKIPME yes");
    AWAIT(&rig, calls[2].redirects == 1);
    rig.hold = false;
    AWAIT(&rig, calls[2].done);
    ASSERT_REPLY(&calls[0], ":2\r\n");
    ASSERT_REPLY(&calls[1], ":3\r\n");
    ASSERT_REPLY(&calls[2], ":4\r\n");
    for (int i = 0; i < 3; i++)
        call_clear(&calls[i]);
    rig_close(&rig);
}

static void test_repeatable_is_sent_again(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    EXPECT(&rig, -1, "+OK\r\n", "SET", "k", "1");
    /* Blocked, so that it is in flight when its connection is killed. */
    struct call blocked, behind;
    CALL(&rig, &blocked, -1, "BLPOP", "no-such-list", "0");
    blocked.r.repeatable = true;
    CALL(&rig, &behind, -1, "INCR", "k");
    int64_t deadline = now_ms() + DEADLINE_MS;
    while (redis_number(&server, "CLIENT KILL TYPE normal SKIPME yes") == 0) {
        rig_turn(&rig);
        assert_true(now_ms() < deadline);
    }
    AWAIT(&rig, behind.done);
    REDIS_OK_REPLY(&server, "RPUSH no-such-list x");
    AWAIT(&rig, blocked.done);
    ASSERT_REPLY(&blocked, "*2\r\n$12\r\nno-such-list\r\n$1\r\nx\r\n");
    assert_true(behind.failed);
    assert_int_equal(behind.why, UPSTREAM_UNKNOWN);
    call_clear(&blocked);
    rig_close(&rig);
}

static void test_stopped_node_times_out(void **state) {
    struct redis own;
    redis_start(&own, false);
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, own.address);
    rig.config.timeout_ms = 300;
    rig_start(&rig);
    EXPECT(&rig, -1, "+OK\r\n", "SET", "k", "old");
    kill(own.pid, SIGSTOP);
    struct call lost[2], later;
    CALL(&rig, &lost[0], -1, "GET", "k");
    CALL(&rig, &lost[1], -1, "SET", "k", "new");
    int64_t started = now_ms();
    AWAIT(&rig, lost[1].done);
    assert_in_range(now_ms() - started, 300, 2000);
    char expected[160];
    snprintf(expected, sizeof(expected),
             "UPSTREAM node %s did not answer for 300 ms; the outcome of the request is unknown", own.address);
    ASSERT_FAILED(&lost[0], UPSTREAM_UNKNOWN, expected);
    ASSERT_FAILED(&lost[1], UPSTREAM_UNKNOWN, expected);
    kill(own.pid, SIGCONT);
    /* The late replies went nowhere: this reply is its own. */
    CALL(&rig, &later, -1, "ECHO", "own");
    AWAIT(&rig, later.done);
    ASSERT_REPLY(&later, "$3\r\nown\r\n");
    call_clear(&later);
    rig_close(&rig);
    redis_stop(&own);
}

static void test_free_fails_what_is_in_flight(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    struct call blocked, waiting, gone;
    CALL(&rig, &blocked, -1, "BLPOP", "no-such-list", "0");
    rig_run_ms(&rig, 50);
    rig.hold = true;
    CALL(&rig, &waiting, -1, "PING");
    CALL(&rig, &gone, -1, "PING");
    upstream_abandon(&gone.r);
    upstream_free(rig.u);
    rig.u = NULL;
    ASSERT_FAILED(&blocked, UPSTREAM_UNKNOWN, "UPSTREAM the proxy is stopping; the outcome of the request is unknown");
    ASSERT_FAILED(&waiting, UPSTREAM_NOT_SENT, "UPSTREAM the proxy is stopping; the request was not sent");
    rig_close(&rig);
}

/* ---- nodes that misbehave ---- */

static void expect_lost(struct rig *rig, const struct fake *f, const char *reason) {
    struct call c;
    char expected[512];
    CALL(rig, &c, -1, "GET", "k");
    AWAIT(rig, c.done);
    snprintf(expected, sizeof(expected), "UPSTREAM node %s was lost (%s); the outcome of the request is unknown",
             f->address, reason);
    ASSERT_FAILED(&c, UPSTREAM_UNKNOWN, expected);
}

static void test_nonsense(void **state) {
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_STANDALONE, "");
    fake_open(&f, &rig, "HTTP/1.1 400 Bad Request\r\n\r\n");
    rig.addresses[0] = f.address;
    rig_start(&rig);
    expect_lost(&rig, &f, "it sent bytes that are not RESP");
    struct call c;
    call_init(&c);
    const char *error = call_try(&rig, &c, &plain_lane, -1, "GET", "k", NULL); /* it is left alone for a while */
    assert_non_null(error);
    assert_non_null(strstr(error, "can't be reached (it sent bytes that are not RESP); the request was not sent"));
    f.answer = "+fine\r\n";
    call_init(&c);
    AWAIT(&rig, !call_try(&rig, &c, &plain_lane, -1, "GET", "k", NULL));
    AWAIT(&rig, c.done);
    ASSERT_REPLY(&c, "+fine\r\n");
    call_clear(&c);
    fake_close(&f);
    rig_close(&rig);
}

static void test_one_reply_too_many(void **state) {
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_STANDALONE, "");
    fake_open(&f, &rig, "+one\r\n+two\r\n");
    rig.addresses[0] = f.address;
    rig_start(&rig);
    for (int i = 0; i < 5; i++)
        EXPECT(&rig, -1, "+one\r\n", "GET", "k"); /* a new connection each time: 'two' is never delivered */
    assert_int_equal(f.accepted, 5);
    fake_close(&f);
    rig_close(&rig);
}

static void greet_error(struct fake_conn *c) {
    fake_say(c, "-ERR nobody is welcome\r\n");
}

static void greet_full(struct fake_conn *c) {
    fake_say(c, "-ERR max number of clients reached\r\n");
}

static void test_full(void **state) {
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_STANDALONE, "");
    fake_open(&f, &rig, "+late\r\n");
    f.greet = greet_full;
    rig.addresses[0] = f.address;
    rig_start(&rig);
    struct call a, b;
    CALL(&rig, &a, -1, "SET", "k", "v");
    CALL(&rig, &b, -1, "SET", "k", "w");
    AWAIT(&rig, a.done && b.done);
    assert_int_equal(b.why, UPSTREAM_REFUSED);
    assert_string_equal(a.error, "ERR max number of clients reached");
    assert_string_equal(b.error, "ERR max number of clients reached");
    struct call c;
    call_init(&c);
    const char *error = call_try(&rig, &c, &plain_lane, -1, "GET", "k", NULL); /* the next is not tried at once */
    assert_non_null(strstr(error, "(ERR max number of clients reached); the request was not sent"));
    fake_close(&f);
    rig_close(&rig);
}

static void test_answer_before_the_request(void **state) {
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_STANDALONE, "");
    fake_open(&f, &rig, "+late\r\n");
    f.greet = greet_error;
    rig.addresses[0] = f.address;
    rig_start(&rig);
    rig.hold = true;
    struct call c;
    CALL(&rig, &c, -1, "SET", "k", "v");
    AWAIT(&rig, c.done); /* it goes to the second attempt, which waits for the backoff */
    assert_int_equal(c.why, UPSTREAM_NOT_SENT);
    assert_non_null(strstr(c.error, "it answered before it had the whole request: ERR nobody is welcome"));
    assert_non_null(strstr(c.error, "the request was not sent"));
    fake_close(&f);
    rig_close(&rig);
}

static void hang_up(struct fake_conn *c) {
    fake_hang_up(c);
}

static void hang_up_on_data(struct fake_conn *c, const char *data, size_t len) {
    fake_hang_up(c);
}

static void half_an_answer(struct fake_conn *c, const char *data, size_t len) {
    static char part[100 * 1000];
    memset(part, 'x', sizeof(part) - 1);
    memcpy(part, "$200000\r\n", 9);
    fake_say(c, part);
    fake_hang_up(c);
}

static void test_hang_ups(void **state) {
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_STANDALONE, "");
    fake_open(&f, &rig, "+fine\r\n");
    rig.addresses[0] = f.address;
    rig_start(&rig);
    EXPECT(&rig, -1, "+fine\r\n", "GET", "k");

    f.data = half_an_answer;
    struct call c;
    CALL(&rig, &c, -1, "GET", "k");
    c.r.repeatable = true; /* but a part of the reply has been handed on */
    AWAIT(&rig, c.done);
    assert_true(c.failed);
    assert_int_equal(c.why, UPSTREAM_UNKNOWN);
    assert_int_equal(c.reply_len, 99999);
    call_clear(&c);

    f.data = fake_answer;
    EXPECT(&rig, -1, "+fine\r\n", "GET", "k");
    f.data = hang_up_on_data;
    expect_lost(&rig, &f, "it closed the connection");
    unsigned before = f.accepted;
    CALL(&rig, &c, -1, "GET", "k");
    c.r.repeatable = true;
    AWAIT(&rig, c.done);
    assert_true(c.failed);
    assert_int_equal(c.why, UPSTREAM_UNKNOWN);
    assert_true(f.accepted - before <= 4); /* repeats are bounded */
    f.greet = hang_up;
    call_init(&c);
    AWAIT(&rig, !call_try(&rig, &c, &plain_lane, -1, "GET", "k", NULL));
    AWAIT(&rig, c.done);
    assert_true(c.failed);
    fake_close(&f);
    rig_close(&rig);
}

static void test_pushes_are_dropped(void **state) {
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_STANDALONE, "");
    fake_open(&f, &rig, ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n+fine\r\n>1\r\n:1\r\n");
    rig.addresses[0] = f.address;
    rig_start(&rig);
    for (int i = 0; i < 3; i++)
        EXPECT(&rig, -1, "+fine\r\n", "GET", "k");
    assert_int_equal(f.accepted, 1);
    fake_close(&f);
    rig_close(&rig);
}

static void byte_by_byte(struct fake_conn *c, const char *data, size_t len) {
    for (const char *p = c->fake->answer; *p; p++) {
        char one[2] = {*p, '\0'};
        fake_say(c, one);
        rig_turn(c->fake->rig);
    }
}

static void test_replies_byte_by_byte(void **state) {
    static const char *answers[] = {
        "-ERR no\r\n", "*2\r\n$3\r\nabc\r\n*-1\r\n", "$0\r\n\r\n", "%1\r\n+a\r\n(12\r\n", "-\r\n", ":1\r\n"};
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_STANDALONE, "");
    fake_open(&f, &rig, "");
    f.data = byte_by_byte;
    rig.addresses[0] = f.address;
    rig_start(&rig);
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        f.answer = answers[i];
        EXPECT(&rig, -1, answers[i], "GET", "k");
    }
    fake_close(&f);
    rig_close(&rig);
}

/* A node that takes everything and says nothing, also while it is being logged in to. */
static void no_answer(struct fake_conn *c, const char *data, size_t len) {
}

static void test_silence(void **state) {
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_STANDALONE, "");
    fake_open(&f, &rig, "");
    f.data = no_answer;
    rig.addresses[0] = f.address;
    rig.config.timeout_ms = 250;
    rig_start(&rig);
    struct call c;
    struct upstream_lane resp3 = {.login = 0, .db = 0, .protocol = 3};
    CALL_ON(&rig, &c, &resp3, -1, "GET", "k");
    AWAIT(&rig, c.done);
    assert_int_equal(c.why, UPSTREAM_NOT_SENT);
    assert_non_null(strstr(c.error, "can't be reached (no answer within 250 ms); the request was not sent"));
    fake_close(&f);
    rig_close(&rig);
}

/* Any bytes at all: each request ends, and nothing breaks. */
static uint32_t noise_state = 12345;

static void noise(struct fake_conn *c, const char *data, size_t len) {
    static const char alphabet[] = "+-:$*_#,(!=%~>|0123456789\r\n\r\n\r\nab\0\xff";
    char bytes[256];
    size_t n = 1 + noise_state % 200;
    for (size_t i = 0; i < n; i++) {
        noise_state = noise_state * 1664525u + 1013904223u;
        bytes[i] = alphabet[(noise_state >> 16) % (sizeof(alphabet) - 1)];
    }
    if (noise_state & 0x600000)
        fake_say(c, "+OK\r\n"); /* it looks well for a moment, so it is not left alone for long */
    assert_int_equal(send(c->fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
    if (noise_state & 0x100000)
        fake_hang_up(c);
}

static void test_noise(void **state) {
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_STANDALONE, "");
    fake_open(&f, &rig, "");
    f.data = noise;
    rig.addresses[0] = f.address;
    rig.config.timeout_ms = 200;
    rig_start(&rig);
    int64_t end = now_ms() + 2000;
    unsigned taken = 0, ended = 0, left = 0;
    while (now_ms() < end) {
        struct call calls[4];
        bool in_flight[4];
        struct upstream_lane lane = {.login = 0, .db = taken % 5 == 0, .protocol = taken % 3 == 0 ? 3 : 2};
        for (int i = 0; i < 4; i++) {
            call_init(&calls[i]);
            calls[i].r.repeatable = i == 1;
            in_flight[i] = !call_try(&rig, &calls[i], &lane, -1, "GET", "k", NULL);
            taken += in_flight[i];
        }
        if (taken % 2)
            rig_turn(&rig);
        if (in_flight[2] && !calls[2].done && taken % 3) { /* its owner leaves, at any moment */
            upstream_abandon(&calls[2].r);
            in_flight[2] = false;
            left++;
        }
        for (int i = 0; i < 4; i++) {
            AWAIT(&rig, calls[i].done || !in_flight[i]);
            ended += in_flight[i];
            call_clear(&calls[i]);
        }
        rig_turn(&rig);
    }
    assert_true(taken > 20);
    assert_int_equal(taken, ended + left);
    assert_true(left > 0);
    fake_close(&f);
    rig_close(&rig);
}

/* ---- what PROXY INFO shows ---- */

static void copy_info(void *arg, const struct upstream_node_info *info) {
    *(struct upstream_node_info *)arg = *info;
}

static void test_info(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_STANDALONE, server.address);
    rig_start(&rig);
    struct upstream_node_info info;
    upstream_each_node(rig.u, copy_info, &info);
    assert_string_equal(info.state, "idle");
    assert_string_equal(info.address, server.address);
    struct call c;
    CALL(&rig, &c, -1, "PING");
    upstream_each_node(rig.u, copy_info, &info);
    assert_string_equal(info.state, "connecting");
    assert_int_equal(info.in_flight, 1);
    assert_int_equal(info.unsent_bytes, 14);
    AWAIT(&rig, c.done);
    upstream_each_node(rig.u, copy_info, &info);
    assert_string_equal(info.state, "up");
    assert_true(info.master);
    assert_int_equal(info.connections, 1);
    assert_int_equal(info.in_flight, 0);
    assert_int_equal(info.requests, 1);
    assert_int_equal(info.reconnects, 0);
    call_clear(&c);
    rig_close(&rig);
}

static void test_wrong_addresses(void **state) {
    static const char *wrong[] = {"127.0.0.1", ":6379", "host:0", "host:65536", "host:+1", "ho st:1", "unix:", ""};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct rig rig;
        struct upstream_events events = {.arg = &rig, .ready = rig_ready};
        rig_open(&rig, UPSTREAM_STANDALONE, wrong[i]);
        assert_null(upstream_new(rig.loop, &rig.readable, &rig.config, &rig.pool, &events));
        rig_close(&rig);
    }
}

static int setup(void **state) {
    signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_LEVEL_NOTHING);
    redis_start(&server, false);
    return 0;
}

static int teardown(void **state) {
    redis_stop(&server);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_keeps_order),
        cmocka_unit_test(test_unix_socket),
        cmocka_unit_test(test_host_name),
        cmocka_unit_test(test_replies_of_all_sizes),
        cmocka_unit_test(test_large_requests),
        cmocka_unit_test(test_lanes_are_apart),
        cmocka_unit_test(test_logins),
        cmocka_unit_test(test_configured_password),
        cmocka_unit_test(test_affinity),
        cmocka_unit_test(test_noscript_becomes_eval),
        cmocka_unit_test(test_script_table),
        cmocka_unit_test(test_abandoned_in_flight),
        cmocka_unit_test(test_abandoned_while_connecting),
        cmocka_unit_test(test_abandoned_inside_its_reply),
        cmocka_unit_test(test_submitting_from_a_reply),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_batch_refused),
        cmocka_unit_test(test_killed_and_back),
        cmocka_unit_test(test_unsent_is_sent_again),
        cmocka_unit_test(test_repeatable_is_sent_again),
        cmocka_unit_test(test_stopped_node_times_out),
        cmocka_unit_test(test_free_fails_what_is_in_flight),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_one_reply_too_many),
        cmocka_unit_test(test_answer_before_the_request),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_hang_ups),
        cmocka_unit_test(test_pushes_are_dropped),
        cmocka_unit_test(test_replies_byte_by_byte),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_wrong_addresses),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
