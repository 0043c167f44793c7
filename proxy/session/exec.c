/*
 * The end of a transaction: EXEC, DISCARD, UNWATCH, and what EXEC's array is to the client.
 *
 *      node:    *4  envelope  +PONG  :1  envelope        queued: EVAL..., PING, DEL a, EVAL... (lock keys)
 *                      │        │     └──sum───┘
 *      client:  *3  its reply  name        :2            sent: SETNX lock, CLIENT GETNAME, DEL a lock:b
 *
 * Without such elements the array goes to the client as it comes. Every lock call that was queued ends here: by its
 * envelope, as not sent where EXEC did nothing, as unknown where the node was lost with EXEC on its way.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/transaction.h"

static const char execabort[] = "-EXECABORT ";

/* ---- items --------------------------------------------------------------------------------------- */

/* Ends the lock calls that have not ended yet. */
static void items_free(struct transaction *t, struct session *s, const struct call_end *end) {
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

void transaction_free(struct transaction *t, struct session *s, bool clean) {
    static const struct call_end not_sent = {.error = "UPSTREAM the request was not sent", .why = UPSTREAM_NOT_SENT};
    items_free(t, s, &not_sent);
    struct list_node *n;
    while ((n = list_shift(&t->early)))
        memory_free(n);
    if (t->pin)
        pin_give(t->worker, t->pin, PIN_TRANSACTION, clean && !t->unclean);
    memory_free(t);
}

static void append_error(struct text *out, const char *error) {
    text_append(out, "-", 1);
    text_append(out, error, strlen(error));
    text_append(out, "\r\n", 2);
}

/* What the proxy answers itself, or has to know of, in its turn. */
static void item_local(struct session *s, const struct transaction_item *item, const char *element, size_t len,
                       struct text *out) {
    struct resp_limits limits = {.bulk_max = INT64_MAX};
    struct resp_request r;
    resp_request_init(&r);
    if (s && resp_request_scan(&r, item->bytes, item->len, &limits) == RESP_OK) {
        s->worker->capture = out;
        if (item->kind == ITEM_STATE)
            local_changed(s, item->command, &r, item->bytes, element, len, out);
        else if (item->command->need == NEED_PROXY)
            proxy_dispatch(s, item->command, &r, item->bytes);
        else if (item->command->need == NEED_CLUSTER)
            cluster_dispatch(s, item->command, &r, item->bytes);
        else
            local_dispatch(s, item->command, &r, item->bytes);
        s->worker->capture = NULL;
    }
    resp_request_clear(&r);
}

/* Appends the client's part of an element. */
static void item_reply(struct transaction *t, struct session *s, struct transaction_item *item, const char *element,
                       size_t len, struct text *out) {
    struct call_end end = {.reply = element, .len = len}, part;
    char answer[RESP_HEADER_MAX];
    bool ours = item->kind == ITEM_LOCAL || item->kind == ITEM_STATE;
    if (item->kind == ITEM_PLAIN || (ours && element[0] == '-')) {
        text_append(out, element, len);
    } else if (item->kind == ITEM_AUDIT) {
        text_append(out, element, len);
        audit_end(t->worker, s, item->note, &end);
        item->note = NULL;
    } else if (ours) {
        item_local(s, item, element, len, out);
    } else if (item->kind == ITEM_KEYS) {
        keyspace_filter(item->command, s && s->protocol == 3, element, len, out);
    } else {
        struct lock_call *lock = item->lock;
        item->lock = NULL;
        lock_finish(t->worker, s, lock, &end, &part, answer);
        if (item->kind == ITEM_STEP)
            return;
        if (part.error)
            append_error(out, part.error);
        else
            text_append(out, part.reply, part.len);
    }
}

struct elements {
    const char *at, *end;
    uint32_t index;
    struct list_node *item; /* the next one's, or the list's head */
};

static struct transaction_item *item_here(struct transaction *t, const struct elements *e) {
    if (e->item == &t->items)
        return NULL;
    struct transaction_item *item = LIST_ENTRY(e->item, struct transaction_item, link);
    return item->at == e->index ? item : NULL;
}

/* Appends the next element as the client shall see it. False: the array is shorter than it says. */
static bool next_element(struct transaction *t, struct session *s, struct elements *e, struct text *out) {
    const char *next = e->at < e->end ? resp_item_end(e->at, e->end) : NULL;
    if (!next)
        return false;
    struct transaction_item *item = item_here(t, e);
    if (item) {
        item_reply(t, s, item, e->at, (size_t)(next - e->at), out);
        e->item = e->item->next;
    } else {
        text_append(out, e->at, (size_t)(next - e->at));
    }
    e->at = next;
    e->index++;
    return true;
}

/* Elements that are one to the client: their sum, or the first error among them. */
static bool next_group(struct transaction *t, struct session *s, struct elements *e, uint32_t group, struct text *out) {
    struct text part = {0}, error = {0};
    int64_t sum = 0;
    bool whole = true;
    for (uint32_t i = 0; i < group && whole; i++) {
        struct resp_item item;
        part.len = 0;
        whole = next_element(t, s, e, &part);
        const char *p = part.data;
        if (!whole || !resp_item_read(&p, part.data + part.len, &item))
            continue;
        if (item.type == ':')
            sum += item.num;
        else if (error.len == 0)
            text_append(&error, part.data, part.len);
    }
    if (error.len > 0)
        text_append(out, error.data, error.len);
    else
        text_commit(out, resp_header_write(text_reserve(out, RESP_HEADER_MAX), ':', sum));
    text_clear(&part);
    text_clear(&error);
    return whole;
}

/* The array with the client's elements in the place of ours. False: it is none, or not as long as what was queued. */
static bool exec_rewrite(struct transaction *t, struct session *s, const struct call_end *end, struct text *out) {
    struct elements e = {.at = end->reply, .end = end->reply + end->len, .item = t->items.next};
    struct resp_item array;
    if (!resp_item_read(&e.at, e.end, &array) || array.type != '*' || array.null || array.num != t->count)
        return false;
    int64_t shown = array.num;
    LIST_FOREACH(it, &t->items) {
        const struct transaction_item *item = LIST_ENTRY(it, struct transaction_item, link);
        shown -= item->kind == ITEM_STEP ? 1 : item->group > 1 ? item->group - 1 : 0;
    }
    text_commit(out, resp_header_write(text_reserve(out, RESP_HEADER_MAX), '*', shown));
    bool whole = true;
    while (e.index < t->count && whole) {
        struct transaction_item *item = item_here(t, &e);
        whole = item && item->group > 1 ? next_group(t, s, &e, item->group, out) : next_element(t, s, &e, out);
    }
    return whole;
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
    items_free(t, r->session, end);
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
    struct text out = {0};
    r->state = NULL;
    bool array = end->reply[0] == '*' && !reply_is(end->reply, end->len, "*-1");
    bool rewritten = array && exec_rewrite(t, s, end, &out);
    if (array && !rewritten) {
        static const struct call_end unknown = {.error = "UPSTREAM unknown", .why = UPSTREAM_UNKNOWN};
        items_free(t, s, &unknown);
    }
    transaction_free(t, s, leaves_clean(end->reply, end->len) && (rewritten || !array));
    if (rewritten)
        request_reply(r, out.data, out.len, true);
    else if (array)
        request_fail(r, "UPSTREAM the node's answer to EXEC is not as long as the transaction; it was executed");
    else if (exec_moved(end->reply, end->len))
        answer_moved(r);
    else
        request_reply(r, end->reply, end->len, true);
    text_clear(&out);
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
