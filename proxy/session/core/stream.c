/*
 * Requests too long to be buffered: once the head shows the destination, the rest is forwarded while it arrives.
 *
 *      session_scan ── head complete, much to come ──> stream_start ── with several nodes: EXISTS key, which
 *                                                            │         follows redirects as every request does
 *      socket ──read──> stream_take ──> pin ──> node <───────┘ pin to the node that has answered
 *                            └── too much waits for the node: reading pauses until the pin has drained
 *
 * An incomplete request can't share a connection, so it uses a pin. It starts after the session's earlier requests have
 * ended, and later ones wait for it, so the order is kept. If the client disconnects, the pin is closed, and the node
 * discards the request. If the node is lost, or redirects the request after all, the client gets an error: the bytes
 * are gone, and the rest is dropped.
 *
 * It knows how much of a request has come, but not its contents.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/core/private.h"

struct stream {
    struct request_owner owner; /* of `request` */
    struct session *session;    /* whose input this is; NULL once the request is complete */
    struct request *request;    /* NULL once it has ended */
    struct upstream_pin *pin;
    bool probing; /* the node is being found */
    bool full;    /* enough bytes wait to be written */
    size_t head;  /* bytes that were scanned already and are passed again */
    struct resp_body body;
};

static void stream_free_unused(struct stream *st) {
    if (!st->session && !st->request)
        memory_free(st);
}

/* Frees the stream and separates it from the request, which ends now. */
static struct request *stream_end(struct stream *st, bool clean) {
    struct request *r = st->request;
    invariant(r && REQUEST_OWNER(r, struct stream) == st, "a stream ends twice");
    if (st->pin)
        pin_give(r->worker, st->pin, PIN_STREAM, clean);
    st->pin = NULL;
    st->request = NULL;
    st->probing = st->full = false;
    request_disown(r);
    if (st->session)
        session_mark_runnable(st->session); /* the rest is dropped */
    stream_free_unused(st);
    return r;
}

/* ---- the node's answer --------------------------------------------------------------------------- */

static bool sent_elsewhere(const struct request *r, const char *reply, size_t len) {
    return upstream_is_cluster(r->worker->upstream) && reply_redirects(reply, len);
}

static void stream_reply(struct upstream_request *up, const char *data, size_t len, bool last) {
    struct request *r = ((struct call *)(void *)up)->request;
    bool elsewhere = last && !r->started && sent_elsewhere(r, data, len);
    if (last)
        stream_end(REQUEST_OWNER(r, struct stream), true);
    if (elsewhere)
        request_error(r, "TRYAGAIN The slot of the key moved to another node while the request was being sent; "
                         "nothing was done");
    else
        request_reply(r, data, len, last);
}

static void stream_fail(struct upstream_request *up, enum upstream_failure why, const char *error) {
    struct request *r = ((struct call *)(void *)up)->request;
    stream_end(REQUEST_OWNER(r, struct stream), false);
    request_fail(r, error);
}

static void stream_drained(void *arg) {
    struct stream *st = arg;
    st->full = false;
    if (st->session)
        session_mark_runnable(st->session);
}

/* ---- the start --------------------------------------------------------------------------------------- */

static void stream_open(struct stream *st, struct upstream_node *node, bool asking) {
    invariant(st->request && !st->pin, "a request is sent over a second pin");
    static const struct upstream_request_ops ops = {.reply = stream_reply, .fail = stream_fail};
    struct request *r = st->request;
    struct upstream_pin_events events = {.arg = st, .drained = stream_drained};
    const char *error;
    st->probing = false;
    st->pin = pin_take(r->session, node, PIN_STREAM, &events, &error);
    if (st->pin) {
        call_init(&r->call, r, NULL);
        r->call.up.ops = &ops;
        error = upstream_pin_begin(st->pin, &r->call.up, asking);
    }
    if (error) {
        stream_end(st, false);
        request_fail(r, error);
        return;
    }
    session_mark_runnable(st->session);
}

/* Continues once the node is found: it has answered EXISTS, or has refused it because the user may not call EXISTS. */
static void stream_found(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct stream *st = REQUEST_OWNER(r, struct stream);
    struct upstream *u = r->worker->upstream;
    invariant(st && st->probing, "a node is found that was not looked for");
    if (end->error) {
        stream_end(st, false);
        request_fail(r, end->error);
        return;
    }
    if (end->reply[0] == '-' &&
        (sent_elsewhere(r, end->reply, end->len) || upstream_error_passes(u, end->reply + 1, end->len - 3, true))) {
        stream_end(st, false);
        request_reply(r, end->reply, end->len, true);
        return;
    }
    struct upstream_node *asked = upstream_asked_node(&c->up);
    stream_open(st, asked ? asked : upstream_node_of_slot(u, c->up.slot), asked != NULL);
}

enum dispatch_result stream_start(struct session *s, const struct resp_request *r, const char *bytes) {
    struct worker *w = s->worker;
    const struct command *c;
    int slot;
    enum stream_way way = w->hooks->streams(s, r, bytes, &c, &slot);
    if (way != STREAM_NOW)
        return way == STREAM_LATER ? DISPATCH_WAIT : DISPATCHED;
    s->last = c;
    invariant(!s->stream && s->in_flight == 0, "%u requests are in flight before a stream", s->in_flight);
    counter_add(&w->counters.requests_forwarded, 1);
    struct stream *st = memory_zalloc(sizeof(*st));
    struct request *request = request_new(s, c);
    *st = (struct stream){.session = s, .request = request, .head = r->pos};
    resp_body_init(&st->body, r);
    request_own(request, &st->owner, &request_owner_silent);
    request_barrier(request);
    s->stream = st;
    if (slot < 0 || !upstream_has_topology(w->upstream)) {
        stream_open(st, pin_node(s, slot), false);
        return DISPATCHED;
    }
    build_start(w, 2);
    build_text(w, "EXISTS");
    build_bulk(w, bytes + r->argv[c->only].off, r->argv[c->only].len);
    st->probing = true;
    request->call.done = stream_found;
    call_submit(&request->call, slot, w->build.data, w->build.len);
    return DISPATCHED;
}

/* ---- the rest ------------------------------------------------------------------------------------ */

bool stream_takes(const struct stream *st) {
    return !st->probing && !st->full;
}

/* Ends the body: only the reply is still due, if it has not come. */
static void stream_complete(struct stream *st) {
    invariant(st->session->stream == st, "the session forwards another request");
    st->session->stream = NULL;
    st->session = NULL;
    stream_free_unused(st);
}

const char STREAM_OVER_LIMIT[] = "client-query-buffer-limit";

size_t stream_take(struct stream *st, const char *data, size_t len, const char **error) {
    invariant(st->session && stream_takes(st), "a stream takes bytes while it is full");
    const struct config *config = st->session->worker->config;
    const struct resp_body *b = &st->body;
    struct resp_limits limits = {.bulk_max = config->bulk_max};
    size_t head = st->head < len ? st->head : len, used = 0;
    enum resp_status status = RESP_MORE;
    *error = NULL;
    st->head -= head;
    invariant(st->head == 0 || used == 0, "%zu bytes of the head are due", st->head);
    if (len > head)
        status = resp_body_scan(&st->body, data + head, len - head, &limits, &used);
    if (status == RESP_BAD) {
        *error = st->body.error;
        return 0;
    }
    if (st->pin)
        st->full = !upstream_pin_more(st->pin, data, head + used, status == RESP_OK);
    if (status == RESP_OK)
        stream_complete(st);
    else if (b->bulk_left > 0 && b->bulk_len + 2 - b->bulk_left > (uint64_t)config->query_buffer_limit)
        *error = STREAM_OVER_LIMIT;
    return head + used;
}

void stream_drop(struct session *s) {
    struct stream *st = s->stream;
    if (!st)
        return;
    struct request *r = st->request;
    stream_complete(st);
    if (!r)
        return;
    upstream_abandon(s->worker->upstream, &r->call.up);
    stream_end(st, false);
    request_reply(r, "", 0, true);
}
