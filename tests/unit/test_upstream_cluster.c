/*
 * The upstream on a cluster: three real masters and a replica, with slots that really move, and fake nodes that
 * redirect in circles or send a malformed CLUSTER SLOTS.
 */
#include "tests/unit/upstream_rig.h"

#include "proxy/upstream/script.h"

enum { MASTERS = 3, SERVERS = 4 };

static struct redis servers[SERVERS]; /* the last is a replica of the first */
static char ids[SERVERS][64];

static const char *key_of_slot(int slot, char *out, size_t size) {
    snprintf(out, size, "{%s}", slot_tag((uint16_t)slot));
    return out;
}

/* A slot of a master: its n-th. */
static int slot_of(int master, int n) {
    static const int first[] = {0, 5461, 10923};
    return first[master] + n;
}

static void await_map(struct rig *rig) {
    AWAIT(rig, rig->ready);
    assert_string_equal(rig->ready_error, "");
}

static void open_cluster(struct rig *rig) {
    rig_open(rig, UPSTREAM_CLUSTER, servers[1].address);
    rig_start(rig);
    await_map(rig);
}

/* ---- the map ---- */

static void test_map(void **state) {
    struct rig rig;
    rig_open(&rig, UPSTREAM_CLUSTER, "127.0.0.1:1"); /* no node is there: the next seed is asked */
    rig.addresses[1] = servers[2].address;
    rig.config.address_count = 2;
    rig_start(&rig);
    assert_true(upstream_is_cluster(rig.u));
    struct call c;
    call_init(&c);
    const char *early = call_try(&rig, &c, &plain_lane, 0, "PING", NULL);
    assert_non_null(strstr(early, "UPSTREAM the cluster's slot map is not known yet"));
    assert_non_null(strstr(early, "; the request was not sent"));
    await_map(&rig);
    assert_int_equal(upstream_master_count(rig.u), MASTERS);
    assert_null(upstream_master(rig.u, MASTERS));
    for (int i = 0; i < MASTERS; i++) {
        struct upstream_node *n = upstream_node_of_slot(rig.u, slot_of(i, 7));
        assert_string_equal(upstream_node_address(n), servers[i].address);
        assert_ptr_equal(upstream_node_of_slot(rig.u, slot_of(i, 5000)), n);
    }
    assert_true(upstream_epoch(rig.u) > 0);
    rig_close(&rig);
}

static void test_no_seed_answers(void **state) {
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%d", free_port());
    struct rig rig;
    rig_open(&rig, UPSTREAM_CLUSTER, address);
    rig_start(&rig);
    AWAIT(&rig, rig.ready);
    char expected[256];
    snprintf(expected, sizeof(expected),
             "the cluster's slot map is not known yet: no seed node answers (last: %s: Connection refused)", address);
    assert_string_equal(rig.ready_error, expected);
    struct call c;
    call_init(&c);
    snprintf(
        expected, sizeof(expected),
        "UPSTREAM the cluster's slot map is not known yet: no seed node answers (last: %s: Connection refused); the "
        "request was not sent",
        address);
    assert_string_equal(call_try(&rig, &c, &plain_lane, 5, "PING", NULL), expected);
    rig_close(&rig);
}

static void test_not_a_cluster(void **state) {
    struct redis plain;
    redis_start(&plain, false);
    struct rig rig;
    rig_open(&rig, UPSTREAM_CLUSTER, plain.address);
    rig_start(&rig);
    AWAIT(&rig, rig.ready);
    assert_non_null(strstr(rig.ready_error, "ERR This instance has cluster support disabled"));
    rig_close(&rig);

    REDIS_OK_REPLY(&plain, "CONFIG SET requirepass hush");
    rig_open(&rig, UPSTREAM_CLUSTER, plain.address);
    upstream_own_login(UPSTREAM_OWN_NODES, NULL, "wrong");
    rig_start(&rig);
    AWAIT(&rig, rig.ready);
    assert_non_null(strstr(rig.ready_error, "WRONGPASS"));
    rig_close(&rig);
    upstream_own_login(UPSTREAM_OWN_NODES, NULL, NULL);
    redis_stop(&plain);
}

static void test_pipeline_over_all_nodes(void **state) {
    enum { COUNT = 6000 };
    struct rig rig;
    open_cluster(&rig);
    struct call *calls = calloc(COUNT, sizeof(*calls));
    char key[32], expected[32];
    for (int i = 0; i < COUNT; i++) {
        snprintf(key, sizeof(key), "pipeline:%d", i % 2000);
        CALL(&rig, &calls[i], slot_of_key(key, strlen(key)), "INCR", key);
    }
    for (int i = 0; i < COUNT; i++)
        AWAIT(&rig, calls[i].done);
    for (int i = 0; i < COUNT; i++) {
        snprintf(expected, sizeof(expected), ":%d\r\n", i / 2000 + 1);
        ASSERT_REPLY(&calls[i], expected);
        assert_false(calls[i].r.was_redirected);
        call_clear(&calls[i]);
    }
    free(calls);
    for (int i = 0; i < 20; i++)
        EXPECT(&rig, -1, "+PONG\r\n", "PING"); /* no key: any node */
    rig_close(&rig);
}

/* ---- slots that move ---- */

static void set_slot(int server, int slot, const char *how, int other) {
    redisReply *reply = redis_do(&servers[server], "CLUSTER SETSLOT %d %s %s", slot, how, ids[other]);
    if (reply->type == REDIS_REPLY_ERROR)
        fail_msg("SETSLOT %d %s: %s", slot, how, reply->str);
    freeReplyObject(reply);
}

static void migrate_begin(int slot, int from, int to) {
    set_slot(to, slot, "IMPORTING", from);
    set_slot(from, slot, "MIGRATING", to);
}

static void migrate_key(const char *key, int from, int to) {
    REDIS_OK_REPLY(&servers[from], "MIGRATE 127.0.0.1 %d %s 0 5000", servers[to].port, key);
}

static void migrate_end(int slot, int from, int to) {
    set_slot(to, slot, "NODE", to);
    set_slot(from, slot, "NODE", to);
}

static void test_moved(void **state) {
    enum { COUNT = 5 };
    int slot = slot_of(0, 100);
    char key[32];
    key_of_slot(slot, key, sizeof(key));
    struct rig rig;
    open_cluster(&rig);
    EXPECT(&rig, slot, "+OK\r\n", "SET", key, "0");
    uint64_t epoch = upstream_epoch(rig.u);
    migrate_begin(slot, 0, 1);
    migrate_key(key, 0, 1);
    migrate_end(slot, 0, 1);

    struct call calls[COUNT];
    for (int i = 0; i < COUNT; i++)
        CALL(&rig, &calls[i], slot, "INCR", key);
    AWAIT(&rig, calls[COUNT - 1].done);
    for (int i = 0; i < COUNT; i++) {
        char expected[16];
        snprintf(expected, sizeof(expected), ":%d\r\n", i + 1);
        ASSERT_REPLY(&calls[i], expected);
        assert_int_equal(calls[i].redirects, 1);
        assert_true(calls[i].r.was_redirected);
        call_clear(&calls[i]);
    }
    assert_true(upstream_epoch(rig.u) > epoch);
    assert_string_equal(upstream_node_address(upstream_node_of_slot(rig.u, slot)), servers[1].address);
    struct call straight;
    CALL(&rig, &straight, slot, "GET", key);
    AWAIT(&rig, straight.done);
    ASSERT_REPLY(&straight, "$1\r\n5\r\n");
    assert_int_equal(straight.redirects, 0);
    call_clear(&straight);

    /* To a named node: its own answer, whatever it is. */
    struct call to;
    char bytes[128], moved[64];
    int len = snprintf(bytes, sizeof(bytes), "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(key), key);
    call_init(&to);
    assert_null(
        upstream_submit_to(rig.u, &to.r, upstream_node_of_slot(rig.u, slot_of(0, 0)), &plain_lane, bytes, (size_t)len));
    AWAIT(&rig, to.done);
    snprintf(moved, sizeof(moved), "-MOVED %d %s\r\n", slot, servers[1].address);
    ASSERT_REPLY(&to, moved);
    call_clear(&to);
    migrate_begin(slot, 1, 0);
    migrate_key(key, 1, 0);
    migrate_end(slot, 1, 0);
    rig_close(&rig);
}

static void test_ask(void **state) {
    enum { COUNT = 200 };
    int slot = slot_of(0, 200);
    char key[48];
    struct rig rig;
    open_cluster(&rig);
    migrate_begin(slot, 0, 2);
    uint64_t epoch = upstream_epoch(rig.u);
    struct call calls[COUNT], *abandoned = malloc(sizeof(*abandoned));
    for (int i = 0; i < COUNT; i++) {
        snprintf(key, sizeof(key), "{%s}ask%d", slot_tag((uint16_t)slot), i);
        CALL(&rig, &calls[i], slot, "SET", key, "v");
        if (i != COUNT / 2)
            continue;
        snprintf(key, sizeof(key), "{%s}left", slot_tag((uint16_t)slot));
        rig_turn(&rig);
        CALL(&rig, abandoned, slot, "SET", key, "v");
        upstream_abandon(&abandoned->r);
        free(abandoned);
    }
    for (int i = 0; i < COUNT; i++) {
        AWAIT(&rig, calls[i].done);
        ASSERT_REPLY(&calls[i], "+OK\r\n");
        assert_int_equal(calls[i].redirects, 1);
        call_clear(&calls[i]);
    }
    assert_int_equal(upstream_epoch(rig.u), epoch); /* ASK moves no slot */
    char count[48];
    snprintf(count, sizeof(count), "CLUSTER COUNTKEYSINSLOT %d", slot);
    assert_int_equal(redis_number(&servers[0], count), 0);
    assert_in_range(redis_number(&servers[2], count), COUNT, COUNT + 1);
    migrate_end(slot, 0, 2);
    snprintf(key, sizeof(key), "{%s}ask7", slot_tag((uint16_t)slot));
    EXPECT(&rig, slot, "$1\r\nv\r\n", "GET", key);
    rig_close(&rig);
}

/* An error that passes is one also in a script, and in the words of a Redis 6, which puts the place before it. */
static void test_a_script_s_error_passes(void **state) {
    static const char source[] = "return redis.error_reply('ERR Error running script (call to f_'..ARGV[1]..'): "
                                 "@user_script:3: @user_script: 3: "
                                 "-READONLY You can\\'t write against a read only replica.')";
    static const char sha1[] = "0000000000000000000000000000000000000000"; /* no node has it: it goes as EVAL */
    struct script script = {.name = "test", .source = source, .len = sizeof(source) - 1, .sha1 = sha1};
    int slot = slot_of(1, 301);
    struct rig rig;
    open_cluster(&rig);
    struct call call;
    call_init(&call);
    call.r.script = &script;
    assert_null(call_try(&rig, &call, &plain_lane, slot, "EVALSHA", sha1, "1", slot_tag((uint16_t)slot), sha1, NULL));
    AWAIT(&rig, call.done);
    assert_int_equal(call.r.delays, 6);
    assert_non_null(strstr(call.reply, "READONLY You can't write"));
    call_clear(&call);
    rig_close(&rig);
}

static void test_tryagain(void **state) {
    int slot = slot_of(1, 300);
    char a[48], b[48];
    snprintf(a, sizeof(a), "{%s}a", slot_tag((uint16_t)slot));
    snprintf(b, sizeof(b), "{%s}b", slot_tag((uint16_t)slot));
    struct rig rig;
    open_cluster(&rig);
    EXPECT(&rig, slot, "+OK\r\n", "MSET", a, "1", b, "2");
    migrate_begin(slot, 1, 2);
    migrate_key(a, 1, 2);

    struct call forever, soon;
    int64_t started = now_ms();
    CALL(&rig, &forever, slot, "MGET", a, b);
    AWAIT(&rig, forever.done);
    assert_in_range(now_ms() - started, 900, 3000);
    ASSERT_REPLY(&forever, "-TRYAGAIN Multiple keys request during rehashing of slot\r\n");
    call_clear(&forever);

    struct call *gone = malloc(sizeof(*gone));
    CALL(&rig, &soon, slot, "MGET", a, b);
    CALL(&rig, gone, slot, "DEL", a, b);
    AWAIT(&rig, soon.redirects == 1 && gone->redirects == 1);
    upstream_abandon(&gone->r); /* waits for its delay: it is not sent */
    free(gone);
    migrate_key(b, 1, 2);
    AWAIT(&rig, soon.done);
    ASSERT_REPLY(&soon, "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    call_clear(&soon);
    migrate_end(slot, 1, 2);
    rig_close(&rig);
}

/* While a slot's keys move one by one, each increment happens once, and each client sees its own in order. */
static void test_migration_under_load(void **state) {
    enum { KEYS = 40, ROUNDS = 30 };
    int slot = slot_of(2, 400);
    struct rig rig;
    open_cluster(&rig);
    char keys[KEYS][48], expected[32];
    struct call calls[KEYS];
    for (int i = 0; i < KEYS; i++)
        snprintf(keys[i], sizeof(keys[i]), "{%s}load%d", slot_tag((uint16_t)slot), i);
    unsigned redirects = 0;
    for (int round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < KEYS; i++)
            CALL(&rig, &calls[i], slot, "INCR", keys[i]);
        rig_turn(&rig);
        if (round == 5)
            migrate_begin(slot, 2, 0);
        if (round > 5 && round <= 25)
            for (int i = 0; i < 2; i++)
                migrate_key(keys[(round - 6) * 2 + i], 2, 0);
        if (round == 26)
            migrate_end(slot, 2, 0);
        for (int i = 0; i < KEYS; i++) {
            AWAIT(&rig, calls[i].done);
            snprintf(expected, sizeof(expected), ":%d\r\n", round);
            ASSERT_REPLY(&calls[i], expected);
            redirects += calls[i].redirects;
            call_clear(&calls[i]);
        }
    }
    assert_true(redirects >= KEYS);
    assert_string_equal(upstream_node_address(upstream_node_of_slot(rig.u, slot)), servers[0].address);
    rig_close(&rig);
}

/* A slot without a node: the cluster's own error, from the map or from a node. */
static void test_uncovered_slot(void **state) {
    int slot = slot_of(1, 500);
    char key[32];
    key_of_slot(slot, key, sizeof(key));
    for (int i = 0; i < MASTERS; i++)
        REDIS_OK_REPLY(&servers[i], "CLUSTER DELSLOTS %d", slot);
    struct rig rig;
    open_cluster(&rig);
    struct call c;
    call_init(&c);
    AWAIT(&rig, !upstream_node_of_slot(rig.u, slot));
    assert_string_equal(call_try(&rig, &c, &plain_lane, slot, "GET", key, NULL), "CLUSTERDOWN Hash slot not served");
    REDIS_OK_REPLY(&servers[1], "CLUSTER ADDSLOTS %d", slot);
    AWAIT(&rig, upstream_node_of_slot(rig.u, slot)); /* it keeps asking while something is wrong */
    EXPECT(&rig, slot, "$-1\r\n", "GET", key);
    rig_close(&rig);
}

/* ---- nodes that stop ---- */

static void test_one_node_stops(void **state) {
    enum { COUNT = 300 };
    struct rig rig;
    open_cluster(&rig);
    kill(servers[1].pid, SIGSTOP);
    struct call *calls = calloc(COUNT, sizeof(*calls));
    char key[32], expected[64];
    for (int i = 0; i < COUNT; i++) {
        int slot = slot_of(i % MASTERS, 1000);
        snprintf(key, sizeof(key), "{%s}", slot_tag((uint16_t)slot));
        snprintf(expected, sizeof(expected), "%d", i);
        CALL(&rig, &calls[i], slot, "SETRANGE", key, "0", expected);
    }
    AWAIT(&rig, calls[COUNT - 1].done && calls[COUNT - 3].done);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(calls[i].done, i % MASTERS != 1);
    kill(servers[1].pid, SIGCONT);
    AWAIT(&rig, calls[COUNT - 2].done);
    for (int i = 0; i < COUNT; i++) {
        assert_false(calls[i].failed);
        call_clear(&calls[i]);
    }
    free(calls);
    rig_close(&rig);
}

/* The last test on these servers: the first master dies, and its replica takes over. */
static void test_failover(void **state) {
    int slot = slot_of(0, 600);
    char key[32];
    key_of_slot(slot, key, sizeof(key));
    struct rig rig;
    open_cluster(&rig);
    EXPECT(&rig, slot, "+OK\r\n", "SET", key, "kept");
    redis_await(&servers[3], "INFO replication", "master_link_status:up");
    char offset[4096];
    redis_text(&servers[0], "INFO replication", offset, sizeof(offset));
    const char *at = strstr(offset, "master_repl_offset:");
    assert_non_null(at);
    char want[64];
    snprintf(want, sizeof(want), "slave_repl_offset:%lld", atoll(at + strlen("master_repl_offset:")));
    redis_await(&servers[3], "INFO replication", want);
    redis_kill(&servers[0]);
    REDIS_OK_REPLY(&servers[3], "CLUSTER FAILOVER TAKEOVER");

    struct call c;
    memset(&c, 0, sizeof(c));
    int64_t deadline = now_ms() + DEADLINE_MS;
    for (;;) {
        call_init(&c);
        if (!call_try(&rig, &c, &plain_lane, slot, "GET", key, NULL)) {
            AWAIT(&rig, c.done);
            if (!c.failed)
                break;
        }
        call_clear(&c);
        rig_turn(&rig);
        assert_true(now_ms() < deadline);
    }
    ASSERT_REPLY(&c, "$4\r\nkept\r\n");
    AWAIT(&rig, strcmp(upstream_node_address(upstream_node_of_slot(rig.u, slot)), servers[3].address) == 0);
    call_clear(&c);
    rig_close(&rig);
}

/* ---- nodes that misbehave ---- */

static void fake_moved(struct fake_conn *c, const char *data, size_t len) {
    c->fake->moved++;
    fake_say(c, c->fake->answer);
}

static void open_fakes(struct rig *rig, struct fake *a, struct fake *b) {
    rig_open(rig, UPSTREAM_CLUSTER, "");
    fake_open(a, rig, "+a\r\n");
    fake_open(b, rig, "+b\r\n");
    /* Both nodes say that the first serves everything, so that refreshing changes nothing. */
    memcpy(b->slots, a->slots, sizeof(b->slots));
    rig->addresses[0] = a->address;
    rig_start(rig);
    await_map(rig);
}

static void close_fakes(struct rig *rig, struct fake *a, struct fake *b) {
    fake_close(a);
    fake_close(b);
    rig_close(rig);
}

static void test_moved_in_a_circle(void **state) {
    struct rig rig;
    struct fake a, b;
    open_fakes(&rig, &a, &b);
    char to_a[96], to_b[96];
    snprintf(to_a, sizeof(to_a), "-MOVED 7 %s\r\n", a.address);
    snprintf(to_b, sizeof(to_b), "-MOVED 7 %s\r\n", b.address);
    a.answer = to_b;
    b.answer = to_a;
    a.data = b.data = fake_moved;
    struct call c;
    CALL(&rig, &c, 7, "GET", "k");
    AWAIT(&rig, c.done);
    assert_false(c.failed);
    assert_memory_equal(c.reply, "-MOVED 7 127.0.0.1:", 19);
    assert_int_equal(a.moved + b.moved, 6); /* five hops */
    assert_int_equal(c.redirects, 1);
    call_clear(&c);
    close_fakes(&rig, &a, &b);
}

static void test_forms_of_moved(void **state) {
    static const struct {
        const char *format;
        bool reaches_b;
    } forms[] = {
        {"-MOVED 7 127.0.0.1:%d\r\n", true},   {"-MOVED 7 :%d\r\n", true},
        {"-MOVED 7 localhost:%d\r\n", true},   {"-ASK 7 :%d\r\n", true},
        {"-ASK 7 nobody\r\n", false},          {"-ASK x 127.0.0.1:%d\r\n", false},
        {"-ASK 16384 :%d\r\n", false},         {"-ASK\r\n", false},
        {"-ASK 7 127.0.0.1:99999\r\n", false},
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct rig rig;
        struct fake a, b;
        open_fakes(&rig, &a, &b);
        char answer[64];
        snprintf(answer, sizeof(answer), forms[i].format, b.port);
        a.answer = answer;
        if (strstr(answer, "ASK"))
            b.answer = "+OK\r\n+b\r\n";
        EXPECT(&rig, 7, forms[i].reaches_b ? "+b\r\n" : answer, "GET", "k");
        close_fakes(&rig, &a, &b);
    }
}

static void test_moved_to_ipv6(void **state) {
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    socklen_t len = sizeof(at);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0) {
        close(fd);
        skip(); /* no IPv6 here */
    }
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    struct rig rig;
    struct fake a, b;
    open_fakes(&rig, &a, &b);
    /* b listens on ::1 from now on. */
    ev_io_stop(rig.loop, &b.io);
    assert_true(dup2(fd, b.fd) >= 0);
    close(fd);
    ev_io_init(&b.io, fake_accept, b.fd, EV_READ);
    b.io.data = &b;
    ev_io_start(rig.loop, &b.io);
    char answer[64];
    snprintf(answer, sizeof(answer), "-MOVED 7 ::1:%d\r\n", ntohs(at.sin6_port)); /* as Redis writes it */
    a.answer = answer;
    EXPECT(&rig, 7, "+b\r\n", "GET", "k");
    char address[64];
    snprintf(address, sizeof(address), "[::1]:%d", ntohs(at.sin6_port));
    assert_string_equal(upstream_node_address(upstream_node_of_slot(rig.u, 7)), address);
    close_fakes(&rig, &a, &b);
}

static void test_moved_to_nobody(void **state) {
    struct rig rig;
    struct fake a, b;
    open_fakes(&rig, &a, &b);
    char answer[64], expected[160];
    int port = free_port();
    snprintf(answer, sizeof(answer), "-MOVED 7 127.0.0.1:%d\r\n", port);
    a.answer = answer;
    struct call c;
    CALL(&rig, &c, 7, "SET", "k", "v");
    AWAIT(&rig, c.done);
    snprintf(expected, sizeof(expected),
             "UPSTREAM node 127.0.0.1:%d can't be reached (Connection refused); the request was not sent", port);
    ASSERT_FAILED(&c, UPSTREAM_NOT_SENT, expected);
    close_fakes(&rig, &a, &b);
}

/* "MOVED 7 ?:0": the node knows no name for the other. It is asked again, for about a second. */
static void test_moved_to_nowhere(void **state) {
    struct rig rig;
    struct fake a, b;
    open_fakes(&rig, &a, &b);
    a.answer = "-MOVED 7 ?:0\r\n";
    a.data = fake_moved;
    EXPECT(&rig, 7, "-MOVED 7 ?:0\r\n", "GET", "k");
    assert_int_equal(a.moved, 7);
    close_fakes(&rig, &a, &b);
}

static const char asking_and_get[] = "*1\r\n$6\r\nASKING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

static void fake_asked(struct fake_conn *c, const char *data, size_t len) {
    assert_string_equal(data, asking_and_get);
    fake_say(c, "+OK\r\n+b\r\n");
}

static void fake_plain(struct fake_conn *c, const char *data, size_t len) {
    fake_say(c, "+plain\r\n");
}

/* ASKING and its command are one unit, also when the connection ends between the two being queued and sent. */
static void test_asking_is_one_unit(void **state) {
    struct rig rig;
    struct fake a, b;
    open_fakes(&rig, &a, &b);
    char ask[96], moved[96];
    snprintf(moved, sizeof(moved), "-MOVED 7 %s\r\n", b.address);
    snprintf(ask, sizeof(ask), "-ASK 8 %s\r\n", b.address);
    a.answer = moved;
    b.data = fake_plain;
    EXPECT(&rig, 7, "+plain\r\n", "GET", "k"); /* there is a connection to b now */
    a.answer = ask;
    b.data = fake_asked;
    EXPECT(&rig, 8, "+b\r\n", "GET", "k");

    struct call c;
    CALL(&rig, &c, 8, "GET", "k");
    rig_turn(&rig); /* sent to a; what a says comes back while nothing is flushed */
    rig.hold = true;
    AWAIT(&rig, c.redirects == 1);
    assert_int_equal(b.accepted, 1);
    fake_hang_up(&b.conns[0]);
    AWAIT(&rig, b.accepted == 2);
    rig.hold = false;
    AWAIT(&rig, c.done);
    ASSERT_REPLY(&c, "+b\r\n");
    call_clear(&c);
    close_fakes(&rig, &a, &b);
}

/* A node that invents another node in every reply: all memory is given back. */
static void fake_invents(struct fake_conn *c, const char *data, size_t len) {
    char answer[64];
    for (const char *get = data; (get = memchr(get, 'G', (size_t)(data + len - get))); get++) {
        snprintf(answer, sizeof(answer), "-ASK 7 [::ffff:0:%x]:%u\r\n", c->fake->moved / 60000 + 1,
                 c->fake->moved % 60000 + 1);
        c->fake->moved++;
        fake_say(c, answer);
    }
}

static void count_node(void *arg, const struct upstream_node_info *info) {
    ++*(unsigned *)arg;
}

static void test_invented_nodes_are_bounded(void **state) {
    struct rig rig;
    struct fake a, b;
    open_fakes(&rig, &a, &b);
    char slots[sizeof(a.slots)];
    memcpy(slots, a.slots, sizeof(slots));
    snprintf(a.slots, sizeof(a.slots), "-ERR not now\r\n"); /* no new map, which would sweep them away */
    a.data = fake_invents;
    enum { BATCH = 128 };
    struct call calls[BATCH];
    unsigned nodes = 0, refused = 0;
    while (refused == 0) { /* a machine that takes many seconds sees them swept away in between, and goes on */
        for (int i = 0; i < BATCH; i++)
            CALL(&rig, &calls[i], 7, "GET", "k");
        for (int i = 0; i < BATCH; i++) {
            AWAIT(&rig, calls[i].done);
            refused += !calls[i].failed; /* the node's own error is the reply */
            call_clear(&calls[i]);
        }
        nodes = 0;
        upstream_each_node(rig.u, count_node, &nodes);
        assert_in_range(nodes, 1, 4096);
    }
    assert_true(a.moved > 4095);
    memcpy(a.slots, slots, sizeof(slots));
    AWAIT(&rig, (nodes = 0, upstream_each_node(rig.u, count_node, &nodes), nodes == 1));
    close_fakes(&rig, &a, &b);
}

static const char *greeting;

static void fake_greets(struct fake_conn *c) {
    fake_say(c, greeting);
}

/* hiredis aborts on a Sentinel's reply without a request, or on a malformed message: hiredis must not get to see
 * them. */
static void test_sentinels_that_say_too_much(void **state) {
    static const char *const greetings[] = {"+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
                                            ":1\r\n:1\r\n:1\r\n:1\r\n",
                                            "*1\r\n+a\r\n",
                                            "*2\r\n$7\r\nmessage\r\n:1\r\n",
                                            "*3\r\n:1\r\n:1\r\n:1\r\n",
                                            "*3\r\n$9\r\nsubscribe\r\n$7\r\nanother\r\n:1\r\n",
                                            "*3\r\n$11\r\nunsubscribe\r\n$14\r\n+switch-master\r\n$1\r\na\r\n",
                                            "*3\r\n*0\r\n*0\r\n*0\r\n",
                                            "$-1\r\n",
                                            "*-1\r\n"};
    for (size_t i = 0; i < sizeof(greetings) / sizeof(greetings[0]); i++) {
        struct rig rig;
        struct fake a;
        rig_open(&rig, UPSTREAM_SENTINEL, "");
        rig.config.sentinel_name = "mymaster";
        fake_open(&a, &rig, "+a\r\n");
        greeting = greetings[i];
        a.greet = fake_greets;
        rig.addresses[0] = a.address;
        rig_start(&rig);
        AWAIT(&rig, a.accepted >= 4); /* for questions and for messages, and again, as both connections ended */
        fake_close(&a);
        rig_close(&rig);
    }
}

/* CLUSTER SLOTS with nonsense in it: what is well-formed counts, the rest is left out. */
static void test_slot_maps_from_hell(void **state) {
    static const char *maps[] = {"*0\r\n",
                                 "-ERR no\r\n",
                                 ":1\r\n",
                                 "+OK\r\n",
                                 "nonsense\r\n",
                                 "*1\r\n*0\r\n",
                                 "*1\r\n:1\r\n",
                                 "*1\r\n*3\r\n:-1\r\n:5\r\n*2\r\n$1\r\na\r\n:1\r\n",
                                 "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
                                 "*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n$1\r\na\r\n:1\r\n",
                                 "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\na\r\n:0\r\n",
                                 "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\n?\r\n:1\r\n",
                                 "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$3\r\na\r\n\r\n:1\r\n",
                                 "*1\r\n*3\r\n:0\r\n:5\r\n*1\r\n$1\r\na\r\n",
                                 "*1\r\n*3\r\n$1\r\n0\r\n:5\r\n:7\r\n"};
    for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
        struct rig rig;
        struct fake f;
        rig_open(&rig, UPSTREAM_CLUSTER, "");
        fake_open(&f, &rig, "+fine\r\n");
        snprintf(f.slots, sizeof(f.slots), "%s", maps[i]);
        rig.addresses[0] = f.address;
        rig.config.timeout_ms = 500;
        rig_start(&rig);
        AWAIT(&rig, rig.ready);
        if (!strstr(rig.ready_error, "no seed node answers"))
            fail_msg("map %zu was taken: %s", i, maps[i]);
        /* The upstream goes on asking: once there is a map, it serves. Nil and empty hosts are the node itself. */
        snprintf(f.slots, sizeof(f.slots),
                 "*3\r\n*3\r\n:0\r\n:99\r\n*3\r\n$-1\r\n:%d\r\n$2\r\nid\r\n"
                 "*4\r\n:100\r\n:16383\r\n*2\r\n$0\r\n\r\n:%d\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n*1\r\n:3\r\n",
                 f.port, f.port);
        AWAIT(&rig, upstream_node_of_slot(rig.u, 16383));
        assert_int_equal(upstream_master_count(rig.u), 1);
        EXPECT(&rig, 5, "+fine\r\n", "GET", "k");
        fake_close(&f);
        rig_close(&rig);
    }
}

static void no_answer(struct fake_conn *c, const char *data, size_t len) {
}

/* A seed that takes the question and stays silent: the next one is asked after a while. */
static void test_silent_seed(void **state) {
    struct rig rig;
    struct fake f;
    rig_open(&rig, UPSTREAM_CLUSTER, "");
    fake_open(&f, &rig, "");
    f.data = no_answer;
    f.slots[0] = '\0';
    rig.addresses[0] = f.address;
    rig.addresses[1] = servers[1].address;
    rig.config.address_count = 2;
    rig.config.timeout_ms = 200;
    rig_start(&rig);
    await_map(&rig);
    assert_int_equal(upstream_master_count(rig.u), MASTERS);
    fake_close(&f);
    rig_close(&rig);
}

/* ---- the cluster ---- */

static int setup(void **state) {
    signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_LEVEL_NOTHING);
    slot_tags_init();
    for (int i = 0; i < SERVERS; i++) {
        redis_start(&servers[i], true);
        redis_text(&servers[i], "CLUSTER MYID", ids[i], sizeof(ids[i]));
        REDIS_OK_REPLY(&servers[i], "CLUSTER SET-CONFIG-EPOCH %d", i + 1);
    }
    for (int i = 0; i < MASTERS; i++)
        REDIS_OK_REPLY(&servers[i], "CLUSTER ADDSLOTSRANGE %d %d", slot_of(i, 0),
                       i + 1 < MASTERS ? slot_of(i + 1, 0) - 1 : SLOT_COUNT - 1);
    for (int i = 1; i < SERVERS; i++)
        REDIS_OK_REPLY(&servers[0], "CLUSTER MEET 127.0.0.1 %d %d", servers[i].port, servers[i].bus_port);
    for (int i = 0; i < SERVERS; i++)
        redis_await(&servers[i], "CLUSTER INFO", "cluster_known_nodes:4");
    redis_await(&servers[3], "CLUSTER NODES", ids[0]);
    REDIS_OK_REPLY(&servers[3], "CLUSTER REPLICATE %s", ids[0]);
    for (int i = 0; i < SERVERS; i++) {
        redis_await(&servers[i], "CLUSTER INFO", "cluster_state:ok");
        redis_await(&servers[i], "CLUSTER INFO", "cluster_slots_assigned:16384");
    }
    return 0;
}

static int teardown(void **state) {
    for (int i = 0; i < SERVERS; i++)
        redis_stop(&servers[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_no_seed_answers),
        cmocka_unit_test(test_not_a_cluster),
        cmocka_unit_test(test_pipeline_over_all_nodes),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_ask),
        cmocka_unit_test(test_a_script_s_error_passes),
        cmocka_unit_test(test_tryagain),
        cmocka_unit_test(test_migration_under_load),
        cmocka_unit_test(test_uncovered_slot),
        cmocka_unit_test(test_one_node_stops),
        cmocka_unit_test(test_silent_seed),
        cmocka_unit_test(test_failover),
        cmocka_unit_test(test_moved_in_a_circle),
        cmocka_unit_test(test_forms_of_moved),
        cmocka_unit_test(test_moved_to_ipv6),
        cmocka_unit_test(test_moved_to_nobody),
        cmocka_unit_test(test_moved_to_nowhere),
        cmocka_unit_test(test_asking_is_one_unit),
        cmocka_unit_test(test_invented_nodes_are_bounded),
        cmocka_unit_test(test_sentinels_that_say_too_much),
        cmocka_unit_test(test_slot_maps_from_hell),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
