/*
 * The end of a transaction: EXEC, DISCARD, UNWATCH. What EXEC's array is to the client is exec_array.c's.
 *
 * Every lock call that was queued ends here: by its envelope, as not sent where EXEC did nothing, as unknown where the
 * node was lost with EXEC on its way.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/transaction.h"

static const char execabort[] = "-EXECABORT ";

/* ---- items --------------------------------------------------------------------------------------- */

/* Ends the lock calls that have not ended yet. */
void transaction_items_free(struct transaction *t, struct session *s, const struct call_end *end) {
    struct list_node *n;
    while ((n = list_shift(&t->items))) {
        struct transaction_item *item = LIST_ENTRY(n, struct transaction_item, link);
        struct call_end out;
        char answer[RESP_HEADER_MAX];
        if (item->lock)
            lock_finish(t->worker, s, item->lock, end, &out, answer);
        if (item->note)
            audit_end(t->worker, s, item->note, end);
        memory_free(item);
    }
}

static void transaction_unpin(struct transaction *t, bool clean) {
    if (t->pin)
        pin_give(t->worker, t->pin, PIN_TRANSACTION, clean && !t->unclean);
    t->pin = NULL;
}

void transaction_free(struct transaction *t, struct session *s, bool clean) {
    static const struct call_end not_sent = {.error = "UPSTREAM the request was not sent", .why = UPSTREAM_NOT_SENT};
    transaction_items_free(t, s, &not_sent);
    struct list_node *n;
    while ((n = list_shift(&t->early)))
        memory_free(n);
    transaction_unpin(t, clean);
    memory_free(t);
}

/* ---- EXEC ---------------------------------------------------------------------------------------- */

static bool reply_is(const char *reply, size_t len, const char *start) {
    size_t n = strlen(start);
    return len >= n && memcmp(reply, start, n) == 0;
}

/* After this reply the connection is in no transaction. */
static bool leaves_clean(const char *reply, size_t len) {
    return reply[0] != '-' || reply_is(reply, len, execabort);
}

/* An error that sends EXEC elsewhere: a slot has moved since its commands were queued. Nothing was executed. */
static bool exec_moved(const char *reply, size_t len) {
    return reply_is(reply, len, "-MOVED ") || reply_is(reply, len, "-ASK ");
}

static void answer_moved(struct request *r) {
    request_error(r, "EXECABORT Transaction discarded because a slot of its keys has moved; nothing was executed");
}

static void exec_streamed(struct upstream_request *up, const char *data, size_t len, bool last) {
    struct call *c = (struct call *)(void *)up;
    struct request *r = c->request;
    struct transaction *t = r->state;
    bool first = c->count++ == 0;
    if (last) {
        r->state = NULL;
        up->ops = t->ops;
        transaction_free(t, r->session, !first || leaves_clean(data, len));
    }
    if (first && last && exec_moved(data, len))
        answer_moved(r);
    else
        request_reply(r, data, len, last);
}

static void exec_failed(struct request *r, const struct call_end *end) {
    struct transaction *t = r->state;
    r->state = NULL;
    transaction_items_free(t, r->session, end);
    transaction_free(t, r->session, false);
    request_fail(r, end->error);
}

static void exec_stream_failed(struct upstream_request *up, enum upstream_failure why, const char *error) {
    char copy[TRANSACTION_ERROR_MAX];
    snprintf(copy, sizeof(copy), "%s", error);
    struct call_end end = {.error = copy, .why = why};
    struct request *r = ((struct call *)(void *)up)->request;
    up->ops = ((struct transaction *)r->state)->ops;
    exec_failed(r, &end);
}

static void exec_collected(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    if (end->error) {
        exec_failed(r, end);
        return;
    }
    struct transaction *t = r->state;
    struct session *s = r->session;
    r->state = NULL;
    bool array = end->reply[0] == '*' && !reply_is(end->reply, end->len, "*-1");
    bool whole = array && exec_array_whole(t, end);
    if (array && !whole) {
        static const struct call_end unknown = {.error = "UPSTREAM unknown", .why = UPSTREAM_UNKNOWN};
        transaction_items_free(t, s, &unknown);
    }
    transaction_unpin(t, leaves_clean(end->reply, end->len) && (whole || !array));
    if (whole) {
        exec_array_reply(t, r, end);
        return;
    }
    transaction_free(t, s, false);
    if (array)
        request_fail(r, "UPSTREAM the node's answer to EXEC is not as long as the transaction; it was executed");
    else if (exec_moved(end->reply, end->len))
        answer_moved(r);
    else
        request_reply(r, end->reply, end->len, true);
}

void transaction_exec(struct transaction *t, struct request *request) {
    static const struct upstream_request_ops stream = {.reply = exec_streamed, .fail = exec_stream_failed};
    static const char exec[] = "*1\r\n$4\r\nEXEC\r\n";
    request->state = t;
    t->ops = request->call.up.ops;
    if (list_empty(&t->items))
        request->call.up.ops = &stream;
    else
        request->call.done = exec_collected;
    call_submit_pin(&request->call, t->pin, exec, sizeof(exec) - 1, false);
}

/* ---- DISCARD, UNWATCH ------------------------------------------------------------------------------ */

/* The reply that the client gets whatever the node says. */
struct leaving {
    struct transaction *transaction;
    const char *reply;
};

static void left(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct leaving leaving = *(struct leaving *)r->state;
    memory_free(r->state);
    r->state = NULL;
    bool ok = !end->error && end->reply[0] == '+';
    transaction_free(leaving.transaction, r->session, ok);
    const char *reply = leaving.reply;
    if (!reply && end->error)
        reply = "+OK\r\n"; /* lost with its connection: it is discarded */
    if (reply)
        request_reply(r, reply, strlen(reply), true);
    else
        request_reply(r, end->reply, end->len, true);
}

void transaction_leave(struct transaction *t, struct request *request, const char *command, const char *reply) {
    struct leaving *leaving = memory_alloc(sizeof(*leaving));
    *leaving = (struct leaving){.transaction = t, .reply = reply};
    request->state = leaving;
    request->call.done = left;
    call_submit_pin(&request->call, t->pin, command, strlen(command), false);
}
