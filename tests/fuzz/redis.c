#include "tests/fuzz/redis.h"

#include <string.h>
#include <strings.h>

#include "parser/slot.h"
#include "tests/fuzz/fuzz.h"

const char *redis_error(size_t number) {
    static const char *const errors[] = {
        "ERR something",
        "NOSCRIPT No matching script. Please use EVAL.",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "READONLY You can't write against a read only replica.",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOREPLICAS Not enough good replicas to write.",
        "EXECABORT Transaction discarded because of previous errors.",
        "ERR max number of clients reached",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "NOPROTO unsupported protocol version",
        "ERR unknown command 'x', with args beginning with: ",
        "MOVED",
        "MOVED 1",
        "MOVED 99999 127.0.0.1:7001",
        "MOVED 1 :7001",
        "MOVED 1 [::1]:7001",
        "MOVED 1 nowhere.invalid:7001",
        "ASK 1 127.0.0.1:99999",
        "UNKILLABLE Sorry the script already executed write commands against the dataset.",
        "",
    };
    return errors[number % (sizeof errors / sizeof errors[0])];
}

void redis_clear(struct redis *c) {
    text_clear(&c->replies);
}

void redis_refused(struct redis *c) {
    c->dirty |= c->multi;
}

int redis_slot(const struct resp_request *r, const char *data) {
    return r->argc > 1 ? slot_of_key(data + r->argv[1].off, r->argv[1].len) : 0;
}

/* ---- shapes -------------------------------------------------------------------------------------- */

static void put(struct text *out, const char *bytes) {
    text_append(out, bytes, strlen(bytes));
}

static void put_bulk(struct text *out, const char *bytes, size_t len) {
    text_printf(out, "$%zu\r\n", len);
    text_append(out, bytes, len);
    text_append(out, "\r\n", 2);
}

static void put_arg(struct text *out, const struct resp_request *r, const char *data, size_t i) {
    put_bulk(out, data + r->argv[i].off, r->argv[i].len);
}

static void put_args(struct text *out, const struct resp_request *r, const char *data, size_t from, size_t step) {
    text_printf(out, "*%zu\r\n", r->argc > from ? (r->argc - from + step - 1) / step : 0);
    for (size_t i = from; i < r->argc; i += step)
        put_arg(out, r, data, i);
}

/* ---- commands ------------------------------------------------------------------------------------ */

static void put_slots(struct text *out, const struct redis_mind *mind) {
    unsigned masters = mind->nodes - 1, share = SLOT_COUNT / masters;
    text_printf(out, "*%u\r\n", masters);
    for (unsigned i = 0; i < masters; i++)
        text_printf(out,
                    "*4\r\n:%u\r\n:%u\r\n*3\r\n$9\r\n127.0.0.1\r\n:%u\r\n$1\r\n%u\r\n"
                    "*3\r\n$9\r\n127.0.0.1\r\n:%u\r\n$1\r\n9\r\n",
                    i * share, i + 1 == masters ? SLOT_COUNT - 1 : (i + 1) * share - 1, (unsigned)mind->port + i, i,
                    (unsigned)mind->port + masters);
}

static void put_command_info(struct text *out, const struct resp_request *r, const char *data) {
    text_printf(out, "*%zu\r\n", r->argc > 2 ? r->argc - 2 : 0);
    for (size_t i = 2; i < r->argc; i++) {
        put(out, "*10\r\n");
        put_arg(out, r, data, i);
        put(out, ":-2\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n*1\r\n+@write\r\n*0\r\n*1\r\n"
                 "*6\r\n$5\r\nflags\r\n*1\r\n+RW\r\n"
                 "$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:1\r\n"
                 "$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n$7\r\nlastkey\r\n:0\r\n"
                 "$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n*0\r\n");
    }
}

/* A lock script's envelope: every outcome, short and long, of lists too; tame ones are like any integer reply. */
static void put_envelope(struct text *out, const struct redis_mind *mind) {
    static const char *const shorts[] = {"g17", "h09", "r7", "r"};
    static const char *const outcomes[] = {"granted", "done", "released", "adopted", "open",
                                           "counted", "held", "foreign",  "free",    "error"};
    static const char *const replies[] = {
        ":1\r\n", ":0\r\n", "+OK\r\n", "$-1\r\n", "$1\r\n1\r\n", "*2\r\n:1\r\n$1\r\na\r\n", "-ERR no\r\n", "*0\r\n"};
    unsigned mood = mind->mood;
    if (mind->tame) {
        text_printf(out, "*6\r\n:%u\r\n$%zu\r\n%s\r\n:7\r\n:30000\r\n$0\r\n\r\n:0\r\n", mood & 1,
                    strlen(outcomes[mood % 10]), outcomes[mood % 10]);
        return;
    }
    if (mood % 3 == 0) {
        const char *text = shorts[mood / 3 % 4];
        put_bulk(out, text, strlen(text));
        return;
    }
    bool queue = mood % 3 == 2;
    const char *outcome = outcomes[mood / 3 % 10];
    text_printf(out, "*%d\r\n%s$%zu\r\n%s\r\n:%u\r\n:%d\r\n$5\r\nowner\r\n:%u\r\n", queue ? 9 : 6,
                replies[mood / 30 % 8], strlen(outcome), outcome, 3 + mood, mood & 64 ? -2 : 20000, mood >> 7);
    if (queue)
        put(out, ":2\r\n$4\r\nlost\r\n$4\r\nnode\r\n");
}

static void put_acks(struct redis *c, struct text *out, const struct resp_request *r, const char *data,
                     const char *what) {
    for (size_t i = 1; i < r->argc; i++) {
        c->channels++;
        text_printf(out, "%c3\r\n$%zu\r\n%s\r\n", c->resp3 ? '>' : '*', strlen(what), what);
        put_arg(out, r, data, i);
        text_printf(out, ":%u\r\n", c->channels);
    }
}

static void put_info(struct text *out) {
    static const char info[] = "# Server\r\nredis_version:7.0.15\r\nrun_id:0123\r\n\r\n# Clients\r\n"
                               "connected_clients:1\r\n\r\n# Keyspace\r\ndb0:keys=3,expires=1,avg_ttl=5\r\n";
    put_bulk(out, info, sizeof info - 1);
}

static void put_sentinel(struct text *out, const struct resp_request *r, const char *data, const struct redis_mind *m) {
    const char *sub = r->argc > 1 ? data + r->argv[1].off : "";
    if (sub[0] == 'g')
        text_printf(out, "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n%d\r\n", m->port);
    else if (sub[0] == 'M' || sub[0] == 'm')
        put(out, "*4\r\n$4\r\nname\r\n$8\r\nmymaster\r\n$12\r\nconfig-epoch\r\n$1\r\n3\r\n");
    else
        text_printf(out, "*1\r\n*4\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$4\r\nport\r\n$4\r\n%d\r\n", m->port + 1);
}

/* A command's name and its reply; '$': of a shape that is put together. */
static const struct row {
    const char *name, *reply;
} rows[] = {
    {"PING", "+PONG\r\n"},
    {"SETNX", ":1\r\n"},
    {"EXPIRE", ":1\r\n"},
    {"INCR", ":1\r\n"},
    {"PEXPIRE", ":1\r\n"},
    {"PERSIST", ":1\r\n"},
    {"TTL", ":5\r\n"},
    {"PTTL", ":5000\r\n"},
    {"STRLEN", ":1\r\n"},
    {"DBSIZE", ":3\r\n"},
    {"WAIT", ":1\r\n"},
    {"RPUSH", ":1\r\n"},
    {"LREM", ":1\r\n"},
    {"PUBLISH", ":0\r\n"},
    {"TYPE", "+string\r\n"},
    {"LLEN", ":2\r\n"},
    {"BLPOP", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"},
    {"LPOP", "$1\r\na\r\n"},
    {"GETSET", "$1\r\na\r\n"},
    {"LRANGE", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"},
    {"TIME", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"},
    {"RANDOMKEY", "$1\r\na\r\n"},
    {"HGETALL", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"},
    {"KEYS", "*3\r\n$1\r\na\r\n$23\r\nlockkeeper:{aa}:lock:a1\r\n$1\r\nb\r\n"},
    {"SCAN", "*2\r\n$1\r\n0\r\n*2\r\n$1\r\na\r\n$23\r\nlockkeeper:{aa}:lock:a1\r\n"},
    {"ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"},
};

static bool is(const char *name, size_t len, const char *word) {
    return len == strlen(word) && strncasecmp(name, word, len) == 0;
}

static bool one_of(const char *name, size_t len, const char *const *words) {
    for (; *words; words++)
        if (is(name, len, *words))
            return true;
    return false;
}

static void put_cluster(struct text *out, const struct redis_mind *mind, const char *sub, size_t len) {
    if (is(sub, len, "SLOTS"))
        put_slots(out, mind);
    else if (is(sub, len, "COUNTKEYSINSLOT"))
        put(out, ":1\r\n");
    else
        put(out, "*0\r\n");
}

static void put_hello(struct redis *c, struct text *out, const struct resp_request *r, const char *data) {
    if (r->argc > 1)
        c->resp3 = r->argv[1].len == 1 && data[r->argv[1].off] == '3';
    put(out, c->resp3 ? "%3\r\n" : "*6\r\n");
    put(out, "$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$2\r\nid\r\n:5\r\n");
}

/* The reply outside of MULTI. */
static void reply(struct redis *c, const struct redis_mind *mind, const struct resp_request *r, const char *data,
                  struct text *out) {
    static const char *const get[] = {"GET", "GETEX", "GETDEL", "ECHO", NULL};
    static const char *const count[] = {"DEL", "EXISTS", "UNLINK", "TOUCH", NULL};
    static const char *const scripts[] = {"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", NULL};
    static const char *const hear[] = {"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", NULL};
    const char *name = data + r->argv[0].off, *sub = r->argc > 1 ? data + r->argv[1].off : "";
    size_t len = r->argv[0].len, sub_len = r->argc > 1 ? r->argv[1].len : 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (is(name, len, rows[i].name)) {
            put(out, rows[i].reply);
            return;
        }
    if (one_of(name, len, get) && r->argc > 1)
        put_arg(out, r, data, 1);
    else if (is(name, len, "MGET"))
        put_args(out, r, data, 1, 1);
    else if (one_of(name, len, count))
        text_printf(out, ":%zu\r\n", r->argc - 1);
    else if (one_of(name, len, scripts))
        put_envelope(out, mind);
    else if (one_of(name, len, hear))
        put_acks(c, out, r, data,
                 is(name, len, hear[0])   ? "subscribe"
                 : is(name, len, hear[1]) ? "psubscribe"
                                          : "ssubscribe");
    else if (is(name, len, "HELLO"))
        put_hello(c, out, r, data);
    else if (is(name, len, "CLUSTER"))
        put_cluster(out, mind, sub, sub_len);
    else if (is(name, len, "COMMAND") && is(sub, sub_len, "INFO"))
        put_command_info(out, r, data);
    else if (is(name, len, "SENTINEL"))
        put_sentinel(out, r, data, mind);
    else if (is(name, len, "INFO"))
        put_info(out);
    else if (is(name, len, "CLIENT") && is(sub, sub_len, "ID"))
        put(out, ":42\r\n");
    else
        put(out, "+OK\r\n");
}

static void execute(struct redis *c, struct text *out) {
    if (c->dirty) {
        put(out, "-EXECABORT Transaction discarded because of previous errors.\r\n");
    } else {
        text_printf(out, "*%u\r\n", c->queued);
        text_append(out, c->replies.data, c->replies.len);
    }
    c->multi = c->dirty = false;
    c->queued = 0;
    c->replies.len = 0;
}

void redis_answer(struct redis *c, const struct redis_mind *mind, const struct resp_request *r, const char *data,
                  struct text *out) {
    const char *name = data + r->argv[0].off;
    size_t len = r->argv[0].len;
    bool exec = is(name, len, "EXEC"), discard = is(name, len, "DISCARD");
    if ((exec || discard) && !c->multi) {
        text_printf(out, "-ERR %s without MULTI\r\n", exec ? "EXEC" : "DISCARD");
    } else if (exec) {
        execute(c, out);
    } else if (discard) {
        c->multi = c->dirty = false;
        c->queued = 0;
        c->replies.len = 0;
        put(out, "+OK\r\n");
    } else if (is(name, len, "MULTI")) {
        c->multi = true;
        put(out, "+OK\r\n");
    } else if (c->multi) {
        c->queued++;
        reply(c, mind, r, data, &c->replies);
        put(out, "+QUEUED\r\n");
    } else {
        reply(c, mind, r, data, out);
    }
}
