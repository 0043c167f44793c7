/*
 * Ears: the second connection that a connection with CLIENT TRACKING ... REDIRECT has, to the same node.
 *
 *      connection ── AUTH, SELECT ──────────────────────── CLIENT TRACKING ON REDIRECT id ──> node
 *      its ear    ── HELLO 3 ──> the node's number for it ──────────┘
 *                 <── >2 invalidate k ── own.c                           (the connection itself may speak RESP2)
 *
 * The two live and die together: a connection whose ear is gone is not used for anything new, and an ear whose
 * connection is gone is closed. Knows nothing of whom the messages are for.
 */
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

struct upstream_ear {
    struct upstream_conn *conn;
    struct upstream_pin *pin;
    struct upstream_request ask;
    struct text answer;
    struct text *push; /* own.c's: the beginning of one, or NULL */
};

/* The number in a reply to HELLO: a map of words, among them "id"; 0: there is none. */
static int64_t number_of(const struct text *answer) {
    const char *p = answer->data, *end = p + answer->len;
    struct resp_item map, word, value;
    if (!resp_item_read(&p, end, &map) || map.type != '%')
        return 0;
    while (resp_item_read(&p, end, &word) && resp_item_read(&p, end, &value))
        if (value.type == ':' && word.len == 2 && memcmp(word.str, "id", 2) == 0)
            return value.num;
    return 0;
}

static void ear_answer(struct upstream_request *r, const char *data, size_t len, bool last) {
    struct upstream_ear *e = (struct upstream_ear *)(void *)((char *)r - offsetof(struct upstream_ear, ask));
    text_append(&e->answer, data, len);
    if (!last)
        return;
    int64_t number = number_of(&e->answer);
    if (number > 0)
        conn_ear_known(e->conn, number);
    else
        conn_ear_lost(e->conn, "it does not say a connection's number");
}

/* The pin is lost as well, and that is when its connection ends. */
static void ear_failed(struct upstream_request *r, enum upstream_failure why, const char *error) {
}

static void ear_message(void *arg, const char *data, size_t len, bool last) {
    struct upstream_ear *e = arg;
    own_push(e->conn, &e->push, data, len, last);
}

static void ear_lost(void *arg, const char *error) {
    struct upstream_ear *e = arg;
    conn_ear_lost(e->conn, error);
}

struct upstream_ear *ear_open(struct upstream_conn *c, const struct upstream_lane *lane) {
    static const struct upstream_request_ops ops = {.reply = ear_answer, .fail = ear_failed};
    static const char hello[] = "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n";
    const char *error;
    struct upstream_ear *e = memory_zalloc(sizeof(*e));
    struct upstream_lane own = {.login = lane->login, .protocol = 3};
    struct upstream_pin_events events = {.arg = e, .message = ear_message, .lost = ear_lost};
    e->conn = c;
    e->ask.ops = &ops;
    e->pin = upstream_pin_open(c->u, c->node, &own, &events, &error);
    if (!e->pin || upstream_pin_submit(e->pin, &e->ask, hello, sizeof(hello) - 1, false)) {
        if (e->pin)
            upstream_unpin(e->pin, false);
        memory_free(e);
        return NULL;
    }
    return e;
}

void ear_close(struct upstream_ear *e) {
    if (e->ask.in_flight)
        upstream_abandon(e->conn->u, &e->ask);
    upstream_unpin(e->pin, false);
    text_clear(&e->answer);
    own_drop_push(&e->push);
    memory_free(e);
}
