/*
 * The nodes' connections: requests are framed, kept while the nodes are held, and answered in order.
 */
#include "tests/fuzz/node.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "parser/resp.h"
#include "proxy/base/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/redis.h"

enum { CONNECTIONS = 256, ANSWERS = 64, NESTED_MAX = 5000, BIG_MAX = 512, PIECES = 100 };

struct connection {
    int fd; /* -1: none */
    unsigned node;
    struct text in, out;
    size_t piece;    /* bytes of `out` that may go at once, */
    unsigned pieces; /* so many times more; then all */
    bool closing;    /* once `out` is gone */
    bool stuck;      /* a request was never answered */
    struct redis redis;
};

static struct {
    struct connection connections[CONNECTIONS];
    struct answer answers[ANSWERS];
    size_t answer_first, answer_count;
    bool refuse[NODES];
    bool hold;
    bool tame;
    bool loud; /* to examine a finding: LOCKKEEPER_FUZZ_LOUD */
    uint8_t mood;
} nodes;

/* ---- connections --------------------------------------------------------------------------------- */

void nodes_begin(bool tame) {
    for (size_t i = 0; i < CONNECTIONS; i++)
        nodes.connections[i].fd = -1;
    nodes.answer_first = nodes.answer_count = 0;
    memset(nodes.refuse, 0, sizeof nodes.refuse);
    nodes.hold = false;
    nodes.tame = tame;
    nodes.loud = getenv("LOCKKEEPER_FUZZ_LOUD") != NULL;
    nodes.mood = 0;
}

static void connection_end(struct connection *c) {
    close(c->fd);
    c->fd = -1;
    text_clear(&c->in);
    text_clear(&c->out);
    redis_clear(&c->redis);
}

void nodes_end(void) {
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (nodes.connections[i].fd >= 0)
            connection_end(&nodes.connections[i]);
}

int nodes_connect(int port, int *fd) {
    unsigned node = (unsigned)(port - NODE_PORT);
    int pair[2];
    struct connection *c = NULL;
    for (size_t i = 0; i < CONNECTIONS && !c; i++)
        if (nodes.connections[i].fd < 0)
            c = &nodes.connections[i];
    if (node >= NODES || nodes.refuse[node] || !c)
        return -1;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    *c = (struct connection){.fd = pair[0], .node = node};
    *fd = pair[1];
    return 0;
}

static struct connection *connection_at(unsigned n) {
    size_t open = 0;
    for (size_t i = 0; i < CONNECTIONS; i++)
        open += nodes.connections[i].fd >= 0;
    n = open ? n % (unsigned)open : 0;
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (nodes.connections[i].fd >= 0 && n-- == 0)
            return &nodes.connections[i];
    return NULL;
}

void nodes_refuse(unsigned node, bool refuse) {
    nodes.refuse[node % NODES] = refuse;
}

void nodes_hold(bool hold) {
    nodes.hold = hold;
}

void nodes_mood(uint8_t mood) {
    nodes.mood = mood;
}

void nodes_send(unsigned connection, const char *bytes, size_t len) {
    struct connection *c = connection_at(connection);
    if (c)
        text_append(&c->out, bytes, len);
}

void nodes_close(unsigned connection) {
    struct connection *c = connection_at(connection);
    if (c)
        c->closing = true;
}

/* ---- answers ------------------------------------------------------------------------------------- */

void nodes_answer_next(const struct answer *answer) {
    if (nodes.answer_count < ANSWERS)
        nodes.answers[(nodes.answer_first + nodes.answer_count++) % ANSWERS] = *answer;
}

static struct answer next_answer(void) {
    struct answer a = {.kind = ANSWER_PROPER};
    if (nodes.answer_count > 0) {
        a = nodes.answers[nodes.answer_first];
        nodes.answer_first = (nodes.answer_first + 1) % ANSWERS;
        nodes.answer_count--;
    }
    return a;
}

static void put_big(struct text *out, size_t kilobytes) {
    size_t size = 1024 * (1 + kilobytes % BIG_MAX);
    text_printf(out, "$%zu\r\n", size);
    memset(text_reserve(out, size), 'x', size);
    text_commit(out, size);
    text_append(out, "\r\n", 2);
}

static void put_nested(struct text *out, size_t depth, bool element) {
    for (depth %= NESTED_MAX; depth > 0; depth--)
        text_append(out, "*1\r\n", 4);
    text_append(out, element ? ":1\r\n" : "*0\r\n", 4);
}

/* An error instead of a reply is one for MULTI as well. */
static void put_error(struct connection *c, const char *error) {
    redis_refused(&c->redis);
    text_printf(&c->out, "-%s\r\n", error);
}

static void put_redirect(struct connection *c, const struct resp_request *r, const char *data, const char *word,
                         size_t node) {
    char error[64];
    int slot = redis_slot(r, data);
    snprintf(error, sizeof error, "%s %d 127.0.0.1:%zu", word, slot, NODE_PORT + node % NODES);
    put_error(c, error);
}

static void answer(struct connection *c, const struct resp_request *r, const char *data) {
    struct answer a = next_answer();
    struct text proper = {0};
    if (nodes.loud)
        fprintf(stderr, "node %u, connection %d, answer %d > %.*s\n", c->node, c->fd, a.kind, (int)r->len, data);
    if (a.kind == ANSWER_ERROR || a.kind == ANSWER_MOVED || a.kind == ANSWER_ASK) {
        if (a.kind == ANSWER_ERROR)
            put_error(c, redis_error(a.number));
        else
            put_redirect(c, r, data, a.kind == ANSWER_ASK ? "ASK" : "MOVED", a.number);
        return;
    }
    struct redis_mind mind = {
        .node = c->node, .nodes = NODES, .port = NODE_PORT, .mood = nodes.mood, .tame = nodes.tame};
    redis_answer(&c->redis, &mind, r, data, &proper);
    switch (a.kind) {
    case ANSWER_PIECES:
        c->pieces = PIECES;
        c->piece = a.number;
        break;
    case ANSWER_CUT:
        proper.len = proper.len < a.number ? proper.len : a.number;
        c->closing = true;
        break;
    case ANSWER_NEVER:
        c->stuck = true;
        proper.len = 0;
        break;
    case ANSWER_CHANGED:
        if (proper.len > 0)
            proper.data[a.number % proper.len] = a.byte;
        break;
    case ANSWER_BYTES:
        proper.len = 0;
        text_append(&proper, a.bytes, a.len);
        break;
    case ANSWER_BEHIND:
        text_append(&c->out, a.bytes, a.len);
        break;
    case ANSWER_BIG:
        proper.len = 0;
        put_big(&proper, a.number);
        break;
    case ANSWER_NESTED:
        proper.len = 0;
        put_nested(&proper, a.number, a.byte & 1);
        break;
    case ANSWER_PROPER:
    case ANSWER_ERROR:
    case ANSWER_MOVED:
    case ANSWER_ASK:
        break;
    }
    text_append(&c->out, proper.data, proper.len);
    text_clear(&proper);
}

/* ---- a turn -------------------------------------------------------------------------------------- */

static bool connection_read(struct connection *c) {
    char *room = text_reserve(&c->in, 65536);
    ssize_t n = read(c->fd, room, 65536);
    if (n > 0)
        text_commit(&c->in, (size_t)n);
    else if (n == 0 || errno != EAGAIN)
        c->closing = true;
    return n > 0;
}

/* What the proxy sends to a node is whole requests in canonical form, whatever clients and nodes sent to it: all but
 * inline commands inside MONITOR and the like, which it does not pass on. */
static bool connection_requests(struct connection *c) {
    const struct resp_limits limits = {INT64_MAX, false};
    size_t at = 0;
    bool any = false;
    struct resp_request r;
    while (at < c->in.len && !c->closing && !c->stuck) {
        resp_request_init(&r);
        enum resp_status status = resp_request_scan(&r, c->in.data + at, c->in.len - at, &limits);
        CHECK(status != RESP_BAD);
        if (status == RESP_OK) {
            CHECK(r.form == RESP_MULTIBULK && !r.irregular);
            answer(c, &r, c->in.data + at);
            at += r.len;
            any = true;
        }
        resp_request_clear(&r);
        if (status != RESP_OK)
            break;
    }
    if (at > 0) {
        memmove(c->in.data, c->in.data + at, c->in.len - at);
        c->in.len -= at;
    }
    return any;
}

static bool connection_write(struct connection *c) {
    size_t len = c->out.len;
    if (c->pieces > 0 && len > 0) {
        len = c->piece > 0 && c->piece < len ? c->piece : 1;
        c->piece = 1;
        c->pieces--;
    }
    ssize_t n = len > 0 ? send(c->fd, c->out.data, len, MSG_NOSIGNAL) : 0;
    if (n < 0 && errno != EAGAIN) {
        connection_end(c);
        return true;
    }
    if (n > 0) {
        memmove(c->out.data, c->out.data + n, c->out.len - (size_t)n);
        c->out.len -= (size_t)n;
    }
    if (c->out.len == 0)
        c->pieces = 0;
    if (c->closing && (c->out.len == 0 || n < 0)) {
        connection_end(c);
        return true;
    }
    return n > 0;
}

bool nodes_turn(void) {
    bool any = false;
    for (size_t i = 0; i < CONNECTIONS; i++) {
        struct connection *c = &nodes.connections[i];
        if (c->fd < 0)
            continue;
        any |= connection_read(c);
        if (!nodes.hold)
            any |= connection_requests(c);
        any |= connection_write(c);
    }
    return any;
}
