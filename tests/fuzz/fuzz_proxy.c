/*
 * The whole proxy between clients and nodes; either side may do anything. In any case: no memory error, the proxy sends
 * canonical RESP to nodes and RESP to clients, and frees everything when it stops. If both sides follow the protocol
 * (strict), each client gets exactly one reply to each request, its own, in order, although nodes redirect, fail, hang
 * up and answer in pieces.
 *
 * Input: three bytes of options, then events: a byte for the kind, then bytes for the client or node and the amount.
 */
#include <fcntl.h>
#include <unistd.h>

#include "parser/resp.h"
#include "proxy/base/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/node.h"
#include "tests/fuzz/people.h"
#include "tests/fuzz/system.h"
#include "tests/fuzz/fuzz_world.h"

enum { EVENTS_MAX = 400, PATIENCE_MS = 60000, STEP_MS = 250 };

static struct {
    const uint8_t *at, *end;
    bool strict;
    unsigned events;
    unsigned names; /* numbers of keys given out so far */
    int64_t waited_ms;
} run;

/* ---- input ---------------------------------------------------------------------------------------- */

static unsigned byte(void) {
    return run.at < run.end ? *run.at++ : 0;
}

static unsigned word(void) {
    unsigned high = byte();
    return high << 8 | byte();
}

/* A length and so many bytes, borrowed from the input. */
static const char *bytes(size_t *len) {
    size_t left = (size_t)(run.end - run.at);
    *len = byte();
    left = (size_t)(run.end - run.at);
    *len = *len < left ? *len : left;
    const char *start = (const char *)run.at;
    run.at += *len;
    return start;
}

/* ---- requests ------------------------------------------------------------------------------------- */

/* %k a key, %l a lock key, %n a number, %v a value. */
static const char *const templates[] = {
    "GET %k",
    "GET %l",
    "SET %k %v",
    "SETNX %l %v",
    "DEL %l",
    "SET %l %v NX PX %n",
    "SET %l %v EX %n",
    "EXPIRE %l %n",
    "SET %l %v NX GET",
    "GETSET %l %v",
    "DEL %l %k %l",
    "UNLINK %k %k",
    "MGET %k %k %l",
    "MSET %k %v %l %v",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH %l",
    "WATCH %k",
    "UNWATCH",
    "INCR %l",
    "DECR %l",
    "APPEND %l %v",
    "PERSIST %l",
    "RPUSH %l %v",
    "LRANGE %l 0 0",
    "LREM %l 1 %v",
    "LSET %l 0 %v",
    "LPOP %l",
    "LINDEX %l 0",
    "LTRIM %l 0 %n",
    "EXISTS %l",
    "EXISTS %k %k",
    "LLEN %l",
    "HSET %l %v %v",
    "HDEL %l %v",
    "HGETALL %l",
    "HINCRBY %l %v %n",
    "RENAME %l %k",
    "RENAMENX %k %l",
    "COPY %k %l",
    "MSETNX %l %v %l %v",
    "SORT %k STORE %l",
    "SDIFFSTORE %l %k",
    "GETDEL %l",
    "GETEX %l EX %n",
    "SETEX %l %n %v",
    "SETRANGE %l %n %v",
    "PEXPIREAT %l %n",
    "STRLEN %l",
    "TTL %l",
    "EVAL %v 1 %l %v",
    "EVAL %v 2 %l %k %v",
    "EVALSHA %v 1 %l %v",
    "EVAL %v 0",
    "FCALL %v 1 %l",
    "SCRIPT LOAD %v",
    "SCRIPT EXISTS %v",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "FUNCTION LIST",
    "FCALL_RO %v 1 %k",
    "SUBSCRIBE %k %k",
    "PSUBSCRIBE %v",
    "SSUBSCRIBE %k",
    "UNSUBSCRIBE",
    "UNSUBSCRIBE %k",
    "PUNSUBSCRIBE",
    "PUBLISH %k %v",
    "SPUBLISH %k %v",
    "PUBSUB CHANNELS",
    "PUBSUB NUMSUB %k",
    "MONITOR",
    "RESET",
    "PING",
    "PING %v",
    "ECHO %v",
    "QUIT",
    "HELLO 3",
    "HELLO 2",
    "HELLO 3 AUTH %v %v SETNAME %v",
    "AUTH %v",
    "AUTH %v %v",
    "AUTH secret",
    "SELECT %n",
    "CLIENT ID",
    "CLIENT SETNAME %v",
    "CLIENT GETNAME",
    "CLIENT LIST",
    "CLIENT INFO",
    "CLIENT KILL ID %n",
    "CLIENT KILL TYPE normal SKIPME no",
    "CLIENT PAUSE %n",
    "CLIENT PAUSE %n WRITE",
    "CLIENT UNPAUSE",
    "CLIENT REPLY OFF",
    "CLIENT REPLY ON",
    "CLIENT REPLY SKIP",
    "CLIENT TRACKING ON",
    "CLIENT TRACKING ON BCAST",
    "CLIENT TRACKING ON OPTIN",
    "CLIENT TRACKING ON REDIRECT %n",
    "CLIENT TRACKING OFF",
    "CLIENT CACHING YES",
    "CLIENT TRACKINGINFO",
    "CLIENT GETREDIR",
    "CLIENT UNBLOCK %n",
    "CLIENT NO-EVICT ON",
    "CLIENT NO-TOUCH ON",
    "CLIENT SETINFO lib-name %v",
    "BLPOP %k %k 0",
    "BLPOP %k 1",
    "BRPOPLPUSH %k %k 0",
    "BLMOVE %k %l LEFT RIGHT %n",
    "BZPOPMIN %k 0",
    "XREAD BLOCK %n STREAMS %k 0",
    "XREADGROUP GROUP %v %v BLOCK 0 STREAMS %k >",
    "WAIT %n %n",
    "SCAN %n",
    "SCAN %n MATCH %v COUNT %n",
    "KEYS %v",
    "DBSIZE",
    "RANDOMKEY",
    "FLUSHALL",
    "FLUSHDB ASYNC",
    "INFO",
    "INFO %v",
    "CONFIG GET %v",
    "CONFIG SET %v %v",
    "SLOWLOG GET",
    "LATENCY LATEST",
    "MEMORY USAGE %k",
    "OBJECT ENCODING %k",
    "DEBUG SLEEP 0",
    "CLUSTER SLOTS",
    "CLUSTER SHARDS",
    "CLUSTER NODES",
    "CLUSTER INFO",
    "CLUSTER MYID",
    "CLUSTER KEYSLOT %k",
    "CLUSTER COUNTKEYSINSLOT %n",
    "CLUSTER GETKEYSINSLOT %n %n",
    "READONLY",
    "READWRITE",
    "ASKING",
    "COMMAND",
    "COMMAND INFO get",
    "COMMAND GETKEYS GET %k",
    "ACL WHOAMI",
    "ACL SETUSER %v",
    "TIME",
    "LASTSAVE",
    "SWAPDB %n %n",
    "MOVE %l %n",
    "RESTORE %l 0 %v",
    "NEW.COMMAND %k %v",
    "NEW.COMMAND %l",
    "JSON.SET %k %v",
    "SINTER %k %k",
    "PFMERGE %k %l",
    "ZADD %k %n %v",
    "SHUTDOWN",
    "PROXY HELP",
    "PROXY INFO",
    "PROXY LOCKS",
    "PROXY LOCKS %v",
    "PROXY LOCK %l",
    "PROXY TOKEN %l",
    "PROXY INCIDENTS %n",
    "PROXY INCIDENTS KEY %v SINCE %n KIND %v",
    "PROXY LINES LOCKS",
    "PROXY LINES INCIDENTS %n",
    "PROXY LINES %v",
    "PROXY WATCH",
    "PROXY WATCH KEY %v",
    "PROXY TOP",
    "PROXY TOP %n",
    "PROXY RULES",
    "PROXY ADVISE",
    "PROXY EXPLAIN SET %l %v NX",
    "PROXY EXPLAIN %v %k",
    "PROXY RELEASE %l",
    "PROXY RELOAD",
};

static const char *const keys[] = {"a", "b", "{t}1", "{t}2", "c", "", "lockkeeper:{aa}:lock:a", "sem:a"};
static const char *const lock_keys[] = {"lock:a",      "lock:b",      "lock:{t}",       "lock:",       "lock:off1",
                                        "lock:audit1", "lock:leave1", "lock:replicas1", "lock:audit2", "lock:{t}leave"};
static const char *const values[] = {"1",
                                     "a",
                                     "b",
                                     "",
                                     "x y\r\n",
                                     "node:1",
                                     "redis.call('del',KEYS[1])",
                                     "get",
                                     "*",
                                     "0",
                                     "-1",
                                     "mylib",
                                     "-9223372036854775808",
                                     "secret"};

/* The argument that a word of a template stands for; another byte of the input picks it. */
static const char *argument(const char *name, char *number, size_t size) {
    if (name[0] != '%')
        return name;
    unsigned pick = byte();
    switch (name[1]) {
    case 'k':
        return keys[pick % (sizeof keys / sizeof keys[0])];
    case 'l':
        return lock_keys[pick % (sizeof lock_keys / sizeof lock_keys[0])];
    case 'n':
        snprintf(number, size, "%u", pick);
        return number;
    default:
        return values[pick % (sizeof values / sizeof values[0])];
    }
}

/* Appends the words of a line as a request. */
static void put_request(struct text *out, const char *line) {
    const char *words[16];
    char copy[128], numbers[16][8];
    size_t count = 0;
    CHECK(strlen(line) < sizeof copy);
    memcpy(copy, line, strlen(line) + 1);
    for (char *w = strtok(copy, " "); w && count < 16; w = strtok(NULL, " ")) {
        words[count] = argument(w, numbers[count], sizeof numbers[0]);
        count++;
    }
    text_printf(out, "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++)
        text_printf(out, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
}

static void send_line(unsigned client, const char *line) {
    struct text out = {0};
    put_request(&out, line);
    people_send(client, out.data, out.len);
    text_clear(&out);
}

/* A request with many arguments, or one that is long. */
static void send_large(unsigned client) {
    static const char *const names[] = {"MGET", "DEL", "MSET", "RPUSH", "SET", "EVAL"};
    struct text out = {0};
    unsigned which = byte(), count = 1 + byte() * 8;
    const char *name = names[which % (sizeof names / sizeof names[0])];
    size_t size = (size_t)byte() * 8192;
    text_printf(&out, "*%u\r\n$%zu\r\n%s\r\n", count + 2, strlen(name), name);
    for (unsigned i = 0; i < count; i++)
        text_printf(&out, "$%d\r\nk%03u\r\n", 4, i % 1000);
    text_printf(&out, "$%zu\r\n", size);
    memset(text_reserve(&out, size), 'v', size);
    text_commit(&out, size);
    text_append(&out, "\r\n", 2);
    people_send(client, out.data, out.len);
    text_clear(&out);
}

/* ---- requests that follow the protocol -------------------------------------------------------------- */

static void ask(unsigned client, enum expect_kind kind, const char *line) {
    struct expect e = {.kind = kind};
    send_line(client, line);
    people_expect(client, &e);
}

static void ask_names(unsigned client, unsigned count) {
    struct expect e = {.kind = EXPECT_NAMES, .first = run.names, .count = count};
    struct text out = {0};
    text_printf(&out, "*%u\r\n$%d\r\n%s\r\n", count + 1, count > 1 ? 4 : 3, count > 1 ? "MGET" : "GET");
    for (unsigned i = 0; i < count; i++) {
        char name[32];
        int len = snprintf(name, sizeof name, "k%u", run.names++);
        text_printf(&out, "$%d\r\n%s\r\n", len, name);
    }
    people_send(client, out.data, out.len);
    people_expect(client, &e);
    text_clear(&out);
}

static void ask_properly(unsigned client) {
    static const struct {
        enum expect_kind kind;
        const char *line;
    } rows[] = {{EXPECT_NUMBER, "SETNX %l 1"},      {EXPECT_NUMBER, "DEL %l"},   {EXPECT_NUMBER, "EXPIRE %l %n"},
                {EXPECT_NUMBER, "DEL %k %l %k"},    {EXPECT_NUMBER, "INCR %k"},  {EXPECT_NUMBER, "EXISTS %k %k %k"},
                {EXPECT_STATUS, "SET %k %v"},       {EXPECT_STATUS, "PING"},     {EXPECT_NUMBER, "DBSIZE"},
                {EXPECT_STATUS, "MSET %k %v %k 1"}, {EXPECT_STATUS, "WATCH %l"}, {EXPECT_STATUS, "UNWATCH"}};
    unsigned what = byte() % 16;
    if (what < sizeof rows / sizeof rows[0]) {
        ask(client, rows[what].kind, rows[what].line);
    } else if (what == 15) {
        ask(client, EXPECT_STATUS, "MULTI");
        for (unsigned n = byte() % 4; n > 0; n--)
            ask_names(client, 1);
        ask(client, EXPECT_NUMBER, "SETNX %l 1");
        ask(client, EXPECT_EXEC, "EXEC");
    } else {
        ask_names(client, what == 14 ? 1 + byte() % 8 : 1);
    }
}

/* ---- what happens --------------------------------------------------------------------------------- */

static void plan_answer(unsigned kind) {
    struct answer a = {.kind = (enum answer_kind)(kind % (ANSWER_NESTED + 1))};
    if (a.kind == ANSWER_BYTES || a.kind == ANSWER_BEHIND)
        a.bytes = bytes(&a.len);
    else if (a.kind != ANSWER_PROPER)
        a.number = a.kind == ANSWER_CHANGED || a.kind == ANSWER_NESTED ? word() : byte();
    if (a.kind == ANSWER_CHANGED || a.kind == ANSWER_NESTED)
        a.byte = (char)byte();
    /* In strict mode nodes send nothing untrue. */
    if (!run.strict || a.kind <= ANSWER_CUT)
        nodes_answer_next(&a);
}

static void wild_event(unsigned what) {
    size_t len;
    const char *raw;
    switch (what % 8) {
    case 0:
    case 1:
    case 2: {
        unsigned client = byte();
        send_line(client, templates[byte() % (sizeof templates / sizeof templates[0])]);
        break;
    }
    case 3: {
        unsigned client = byte();
        raw = bytes(&len);
        people_send(client, raw, len);
        break;
    }
    case 4: {
        unsigned connection = byte();
        raw = bytes(&len);
        nodes_send(connection, raw, len);
        break;
    }
    case 5:
        send_large(byte());
        break;
    case 6: {
        unsigned client = byte();
        people_deafen(client, byte() & 1);
        break;
    }
    default:
        people_half_close(byte());
        break;
    }
}

static void event(void) {
    unsigned what = byte(), client;
    switch (what & 15) {
    case 0:
        nodes_hold(what & 16);
        break;
    case 1:
    case 2:
        plan_answer(what >> 4);
        break;
    case 3:
        nodes_close(byte());
        break;
    case 4:
        people_leave(byte());
        break;
    case 5:
        system_pass(what & 16 ? byte() * 100 : byte());
        break;
    case 6:
        nodes_mood((uint8_t)byte());
        break;
    case 7:
        nodes_refuse(what >> 4, what & 128);
        break;
    default:
        client = run.strict ? byte() : 0;
        if (run.strict)
            ask_properly(client);
        else
            wild_event(what >> 4 | (what & 8));
        break;
    }
}

/* All nodes are well again, and time passes until no client waits any more. */
static bool settle(void) {
    nodes_hold(false);
    for (unsigned i = 0; i < NODES; i++)
        nodes_refuse(i, false);
    if (!run.strict && run.waited_ms == 0)
        for (unsigned i = 0; i < PEOPLE; i++)
            people_deafen(i, false);
    bool done = run.strict ? people_content() : run.waited_ms >= 10 * STEP_MS;
    CHECK(!run.strict || run.waited_ms < PATIENCE_MS);
    run.waited_ms += STEP_MS;
    system_pass(STEP_MS);
    return !done;
}

/* The proxy has nothing to do: the others' turn. */
static bool turn(void *arg) {
    bool moved = nodes_turn();
    moved |= people_turn();
    if (moved)
        return true;
    if (!world_ready()) {
        system_pass(STEP_MS);
        run.waited_ms += STEP_MS;
        return run.waited_ms < PATIENCE_MS;
    }
    if (run.at < run.end && run.events++ < EVENTS_MAX) {
        event();
        run.waited_ms = 0;
        return true;
    }
    return settle();
}

static int lowest_descriptor(void) {
    int fd = dup(2);
    close(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const owners[] = {"auto", "connection", "client", "any"};
    static const enum world_upstream upstreams[] = {WORLD_STANDALONE, WORLD_CLUSTER, WORLD_CLUSTER, WORLD_SENTINEL};
    memset(&run, 0, sizeof run);
    run.at = data;
    run.end = data + size;
    unsigned a = byte(), b = byte();
    run.strict = a & 4;
    struct world_options options = {.upstream = upstreams[a & 3],
                                    .owner = owners[a >> 3 & 3],
                                    .audit = a & 32 && !run.strict,
                                    .small = b & 1 && !run.strict,
                                    .password = b & 2 && !run.strict};
    world_prepare();
    int descriptor = lowest_descriptor();
    nodes_begin(run.strict);
    people_begin(run.strict);
    world_run(&options, turn, NULL);
    people_end();
    nodes_end();
    CHECK(lowest_descriptor() == descriptor);
    return 0;
}
