/*
 * A session's input: bytes in, requests out to dispatch.
 *
 *      socket ──read──> worker's scratch ──scan──> dispatch          (the usual case: nothing is copied)
 *                            │ incomplete, or has to wait
 *                            v
 *                      session->input ──scan──> dispatch             (once the rest or its turn has come)
 *
 * A request that is too long to be buffered is forwarded while it arrives, once its head shows the destination.
 *
 * Knows no commands.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/core/private.h"

enum {
    INPUT_START = 4096,               /* the first size of a session's buffer */
    INPUT_PAUSE = 1024 * 1024,        /* the most bytes read ahead while a session has to wait */
    INPUT_BLOCKED = 16 * INPUT_PAUSE, /* the same while it may wait for any time: a disconnect is only visible after the
                                         bytes before it */
    INPUT_SHARE = 64 * 1024           /* the same while the worker's buffers are full */
};

/* ---- load balancers that are not trusted ------------------------------------------------------------- */

static const char FORWARDED[] =
    "Protocol error: a PROXY protocol header from an address that proxy-protocol does not name";

/* Whether the waiting bytes are a header of version 2, after its first lines, which are empty. Without this check its
 * NUL byte would make it wait for ever, as in Redis. */
static inline bool waits_forwarding(const char *data, size_t len) {
    static const char rest[] = "\0\r\nQUIT\n";
    return len >= sizeof(rest) - 1 && data[0] == '\0' && memcmp(data, rest, sizeof(rest) - 1) == 0;
}

/* ---- requests that are forwarded while they arrive --------------------------------------------------- */

/*      session_scan ── head complete, much to come ──> stream_start ── with several nodes: EXISTS key, which
 *                                                            │         follows redirects as every request does
 *      socket ──read──> session_stream ──> pin ──> node <────┘ pin to the node that has answered
 *                            └── too much waits for the node: reading pauses until the pin has drained
 *
 * An incomplete request can't share a connection, so it uses a pin. It starts after the session's earlier requests have
 * ended, and later ones wait for it, so the order is kept. If the client disconnects, the pin is closed, and the node
 * discards the request. If the node is lost, or redirects the request after all, the client gets an error: the bytes
 * are gone, and the rest is dropped. */

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
static void stream_end(struct stream *st, bool clean) {
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
}

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
    if (error)
        stream_fail(&r->call.up, UPSTREAM_NOT_SENT, error);
    else
        session_mark_runnable(st->session);
}

/* Continues once the node is found: it has answered EXISTS, or has refused it because the user may not call EXISTS. */
static void stream_found(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct stream *st = REQUEST_OWNER(r, struct stream);
    struct upstream *u = r->worker->upstream;
    invariant(st && st->probing, "a node is found that was not looked for");
    if (end->error || (end->reply[0] == '-' && (sent_elsewhere(r, end->reply, end->len) ||
                                                upstream_error_passes(u, end->reply + 1, end->len - 3, true)))) {
        stream_end(st, false);
        call_answer(c, end);
        return;
    }
    struct upstream_node *asked = upstream_asked_node(&c->up);
    stream_open(st, asked ? asked : upstream_node_of_slot(u, c->up.slot), asked != NULL);
}

/* Begins to forward an incomplete request. DISPATCHED with s->stream set: pass all its bytes, from the first one on, to
 * session_stream. DISPATCHED without s->stream: wait until the request is complete. DISPATCH_WAIT: try again later. */
static enum dispatch_result stream_start(struct session *s, const struct resp_request *r, const char *bytes) {
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

/* Ends the body: only the reply is still due, if it has not come. */
static void stream_complete(struct stream *st) {
    invariant(st->session->stream == st, "the session forwards another request");
    st->session->stream = NULL;
    st->session = NULL;
    stream_free_unused(st);
}

void stream_drop(struct session *s) {
    struct stream *st = s->stream;
    if (!st)
        return;
    struct request *r = st->request;
    stream_complete(st);
    if (!r)
        return;
    upstream_abandon(&r->call.up);
    stream_end(st, false);
    request_reply(r, "", 0, true);
}

/* ---- requests ---------------------------------------------------------------------------------- */

static void session_protocol_error(struct session *s, const char *error) {
    counter_add(&s->worker->counters.protocol_errors, 1);
    log_verbose("client %llu (%s): %s", (unsigned long long)s->lock.id, s->address, error);
    session_refuse(s, NULL, "ERR %s", error);
    session_finish(s);
}

/* Encodes a request in canonical form and dispatches it: an inline request, or one in a form that only Redis's own
 * parser accepts. */
static enum dispatch_result dispatch_encoded(struct session *s, const struct resp_request *r, const char *data) {
    struct worker *w = s->worker;
    struct text encoded = {0};
    w->secret = false;
    if (r->form == RESP_INLINE &&
        (reply_begins(data, r->line_len, "PROXY TCP4 ") || reply_begins(data, r->line_len, "PROXY TCP6 ") ||
         reply_begins(data, r->line_len, "PROXY UNKNOWN"))) { /* a header of version 1 */
        session_protocol_error(s, FORWARDED);
        return DISPATCHED;
    }
    if (r->form == RESP_INLINE) {
        char *out = text_reserve(&encoded, resp_inline_bound(r->line_len));
        int64_t n = resp_inline_encode(data, r->line_len, out);
        if (n <= 0) {
            text_clear(&encoded);
            if (n < 0) {
                session_protocol_error(s, "Protocol error: unbalanced quotes in request");
                if (s->state != SESSION_CLOSED)
                    secret_overwrite(data, r->len); /* it may contain a password */
            }
            return DISPATCHED;
        }
        text_commit(&encoded, (size_t)n);
    } else {
        build_start(w, r->argc);
        for (size_t i = 0; i < r->argc; i++)
            build_bulk(w, data + r->argv[i].off, r->argv[i].len);
        text_append(&encoded, w->build.data, w->build.len);
    }
    struct resp_request canonical;
    enum dispatch_result result = DISPATCHED;
    if (resp_request_read(&canonical, encoded.data, encoded.len) && canonical.form == RESP_MULTIBULK)
        result = w->hooks->dispatch(s, &canonical, encoded.data);
    if (w->secret || result == DISPATCH_WAIT) /* a waiting request is encoded again */
        secret_overwrite(encoded.data, encoded.len);
    if (w->secret && s->state != SESSION_CLOSED)
        secret_overwrite(data, r->len);
    if (w->secret && r->form != RESP_INLINE)
        secret_overwrite(w->build.data, w->build.len);
    resp_request_clear(&canonical);
    text_clear(&encoded);
    return result;
}

/* Ends settings that apply to one request, or until the next one. */
static __attribute__((noinline)) void session_request_over(struct session *s) {
    if (s->reply_mode >= REPLY_SKIP_NEXT)
        s->reply_mode = s->reply_mode == REPLY_SKIP_NEXT ? REPLY_SKIP : REPLY_ON;
    for (const struct session_room *const *room = s->worker->hooks->rooms; *room; room++) {
        if ((*room)->request_over && (s->hears & HEARS_REQUEST))
            (*room)->request_over(s);
        if ((*room)->request_first && (s->hears & HEARS_FIRST))
            (*room)->request_first(s);
    }
}

static inline void session_count(struct session *s, enum dispatch_result result) {
    if (result != DISPATCHED) {
        counter_add(&s->worker->counters.requests_waiting, 1);
        return;
    }
    counter_add(&s->worker->counters.requests_total, 1);
    if ((s->hears & (HEARS_REQUEST | HEARS_FIRST)) || s->reply_mode != REPLY_ON)
        session_request_over(s);
}

/* Whether the worker's buffers are full, since many sessions send to nodes that do not read: each session gets less.
 * Sessions continue with their own replies, so none waits for another session's. */
static bool worker_is_full(const struct worker *w) {
    return w->chunks.total_bytes > WORKER_BYTES_FULL;
}

static size_t session_ahead(const struct session *s) {
    if (s->delays & DELAY_OWES) /* a client that reads only after it has written everything would never finish */
        return (size_t)s->worker->config->query_buffer_limit;
    if (worker_is_full(s->worker))
        return INPUT_SHARE;
    return s->delays & DELAY_BLOCKED ? INPUT_BLOCKED : INPUT_PAUSE;
}

/* Whether the client has to read its replies before anything else is done for it. */
static bool session_owes(struct session *s) {
    if (s->out.unsent > SESSION_OWES_MAX)
        session_delay(s, DELAY_OWES, true);
    return s->delays & DELAY_OWES;
}

/* Whether the next request has to wait for the requests in flight: because one of them changes the session (SELECT), is
 * on its way to another node, or was sent before slots moved. */
static bool session_must_wait(struct session *s) {
    if (s->in_flight == 0) {
        s->epoch = upstream_epoch(s->worker->upstream);
        return session_owes(s);
    }
    bool enough = s->in_flight_bytes >= SESSION_BYTES_SHARE &&
                  (s->in_flight_bytes >= SESSION_BYTES_MAX || worker_is_full(s->worker));
    return s->barrier | (s->redirected > 0) | (s->in_flight >= s->window) | enough |
           (s->epoch != upstream_epoch(s->worker->upstream));
}

/* Begins to forward an incomplete request. True: it could be forwarded, but has to wait. It waits also until the node
 * has said whether it serves clients without login, since it may have to be refused. */
static bool session_starts_stream(struct session *s, struct resp_request *scanner, const char *data) {
    invariant(!s->stream, "two requests are forwarded at once");
    enum dispatch_result result = DISPATCH_WAIT;
    bool doubted = session_doubted(s) && session_unauthenticated(s);
    const char *error = doubted ? session_await_word(s) : NULL;
    if (error) {
        session_refuse(s, NULL, "%s", error);
        session_finish(s);
        return false;
    }
    if (!doubted)
        result = stream_start(s, scanner, data);
    if (s->stream || result == DISPATCH_WAIT) {
        session_count(s, result);
        resp_request_reset(scanner);
    }
    return result == DISPATCH_WAIT;
}

/* Dispatches the complete requests in [data, data + len). Returns the bytes consumed; *waits is set if a complete
 * request has to wait. The scanner keeps its place in an incomplete request, unless the request is forwarded as a
 * stream. */
static size_t session_scan(struct session *s, struct resp_request *scanner, const char *data, size_t len, bool *waits) {
    size_t used = 0;
    struct resp_limits limits = {.bulk_max = s->worker->config->bulk_max};
    *waits = len > 0 && session_owes(s); /* while requests are in flight, no scanned request adds to the output */
    if (*waits)
        return 0;
    while (used < len && s->state == SESSION_OPEN) {
        if (session_must_wait(s)) {
            *waits = true;
            break;
        }
        limits.unauthenticated = session_unauthenticated(s) && !session_doubted(s);
        enum resp_status status = resp_request_scan(scanner, data + used, len - used, &limits);
        if (status == RESP_MORE && waits_forwarding(data + used, len - used)) {
            session_protocol_error(s, FORWARDED);
            return len;
        }
        if (status == RESP_MORE) {
            if (scanner->form != RESP_MULTIBULK || (len - used <= STREAM_MIN && scanner->bulk_len <= STREAM_MIN))
                break; /* it is short enough to wait for its end */
            *waits = session_starts_stream(s, scanner, data + used);
            break;
        }
        if (status == RESP_BAD) {
            session_protocol_error(s, scanner->error);
            if (s->state != SESSION_CLOSED)
                secret_overwrite(data + used, len - used);
            return len;
        }
        if (scanner->form != RESP_EMPTY) {
            bool encoded = scanner->form == RESP_INLINE || scanner->irregular;
            enum dispatch_result result = encoded ? dispatch_encoded(s, scanner, data + used)
                                                  : s->worker->hooks->dispatch(s, scanner, data + used);
            session_count(s, result);
            if (result == DISPATCH_WAIT) {
                resp_request_reset(scanner);
                *waits = true;
                break;
            }
        }
        used += scanner->len;
        resp_request_next(scanner);
    }
    return used;
}

/* ---- the buffer of input that waits ------------------------------------------------------------------ */

/* Makes room for more bytes at the end: moves the rest to the front once most of the buffer was used, or grows it. */
static void input_reserve(struct session_input *in, size_t room) {
    if (in->cap - in->end >= room)
        return;
    size_t len = input_len(in);
    if (in->start > 0 && (in->start >= len || in->cap - len >= room)) {
        memmove(in->data, in->data + in->start, len);
        secret_overwrite(in->data + len, in->end - len);
        in->start = 0;
        in->end = len;
        if (in->cap - in->end >= room)
            return;
    }
    size_t cap = in->cap ? in->cap * 2 : INPUT_START;
    while (cap < in->end + room)
        cap *= 2;
    if (in->cap <= WORKER_SCRATCH) { /* like realloc, but a password can be overwritten in the old place */
        char *data = memory_alloc(cap);
        if (in->end > 0)
            memcpy(data, in->data, in->end);
        secret_overwrite(in->data, in->end);
        memory_free(in->data);
        in->data = data;
    } else {
        in->data = memory_realloc(in->data, cap);
    }
    in->cap = cap;
    invariant(in->cap - in->end >= room, "room for %zu bytes of %zu", in->cap - in->end, room);
}

/* ---- reading ----------------------------------------------------------------------------------- */

/* Adds or removes a reason not to read from the client. The socket is watched while there is none. */
static void session_unread(struct session *s, enum session_unread why, bool holds) {
    uint8_t before = s->unread;
    s->unread = (uint8_t)(holds ? before | why : before & ~why);
    if (!before == !s->unread || s->state == SESSION_CLOSED)
        return;
    session_watch(s, s->io.events & EV_WRITE);
    if (s->tls && !s->unread)
        tls_resume(s->tls);
}

bool session_left(const struct session *s) {
    struct pollfd p = {.fd = s->fd, .events = POLLRDHUP};
    return s->unread && poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static void session_half_closed_end(struct session *s) {
    if (session_half_closed(s) && s->state == SESSION_OPEN)
        session_finish(s);
}

static void session_over_query_limit(struct session *s) {
    log_warning("client %llu (%s): closed: its request is longer than client-query-buffer-limit",
                (unsigned long long)s->lock.id, s->address);
    session_close(s, "query buffer limit");
}

/* Whether reading has to pause until the stream takes bytes again. */
static bool session_stream_full(const struct session *s) {
    return s->stream && (s->stream->probing || s->stream->full);
}

/* Passes bytes to the request that is being forwarded; returns how many belong to it. After the last one s->stream is
 * NULL. An argument that exceeds client-query-buffer-limit, as Redis counts it, ends the session. */
static size_t session_stream(struct session *s, const char *data, size_t len) {
    struct stream *st = s->stream;
    invariant(st, "no request is forwarded");
    if (session_stream_full(s))
        return 0;
    const struct config *config = s->worker->config;
    const struct resp_body *b = &st->body;
    struct resp_limits limits = {.bulk_max = config->bulk_max};
    size_t head = st->head < len ? st->head : len, used = 0;
    enum resp_status status = RESP_MORE;
    st->head -= head;
    if (len > head)
        status = resp_body_scan(&st->body, data + head, len - head, &limits, &used);
    if (status == RESP_BAD) {
        char copy[RESP_ERROR_TEXT]; /* the text may belong to the stream */
        snprintf(copy, sizeof(copy), "%s", b->error);
        stream_drop(s);
        session_protocol_error(s, copy);
        return 0;
    }
    if (st->pin)
        st->full = !upstream_pin_more(st->pin, data, head + used, status == RESP_OK);
    if (status == RESP_OK)
        stream_complete(st);
    else if (b->bulk_left > 0 && b->bulk_len + 2 - b->bulk_left > (uint64_t)config->query_buffer_limit)
        session_over_query_limit(s);
    return head + used;
}

/* Scans what is in session->input. */
static void session_scan_input(struct session *s) {
    struct session_input *in = s->input;
    bool waits = false;
    invariant(in && in->later <= input_len(in), "the mark is at %zu of %zu bytes", in ? in->later : 0,
              in ? input_len(in) : 0);
    if (s->stream && input_len(in) > 0) {
        size_t taken = session_stream(s, in->data + in->start, input_len(in));
        if (s->state != SESSION_OPEN)
            return;
        in->start += taken;
    }
    if (in->later > 0 && !s->stream) { /* the bytes before the mark: if a request ends there, the next one came in a
                                          later read, while earlier ones were unanswered */
        size_t used = session_scan(s, &in->scanner, in->data + in->start, in->later, &waits);
        invariant(used <= in->later, "%zu bytes were used of %zu", used, in->later);
        if (s->state != SESSION_OPEN)
            return;
        in->start += used;
        s->overlaps |= used == in->later;
        in->later = waits ? in->later - used : 0;
    }
    if (!waits && !s->stream && s->state == SESSION_OPEN)
        in->start += session_scan(s, &in->scanner, in->data + in->start, input_len(in), &waits);
    if (s->state != SESSION_OPEN)
        return;
    if (input_len(in) == 0 && !waits) {
        session_input_free(s);
        session_unread(s, UNREAD_STREAM, session_stream_full(s));
        session_unread(s, UNREAD_AHEAD, false);
        session_half_closed_end(s);
        return;
    }
    if (!waits)
        session_half_closed_end(s); /* the rest of this request will never come */
    if (s->state != SESSION_OPEN)
        return;
    session_unread(s, UNREAD_STREAM, session_stream_full(s));
    session_unread(s, UNREAD_AHEAD, waits && input_len(in) >= session_ahead(s));
}

void session_resume(struct session *s) {
    list_remove(&s->runnable_link);
    if (s->state != SESSION_OPEN)
        return;
    s->active_us = worker_turn_us(s->worker); /* what its requests have waited for until now was not for a node */
    if (s->input)
        session_scan_input(s);
    else
        session_unread(s, UNREAD_STREAM, session_stream_full(s));
}

/* Takes bytes that were read while none waited. Those that can't be dispatched yet are kept, with the worker's scanner
 * and its place in an incomplete request. */
static void session_got(struct session *s, const char *data, size_t len) {
    struct worker *w = s->worker;
    bool waits;
    size_t used = 0;
    if (s->stream)
        used = session_stream(s, data, len);
    if (!s->stream && s->state == SESSION_OPEN)
        used += session_scan(s, &w->scanner, data + used, len - used, &waits);
    data += used;
    len -= used;
    if (s->state == SESSION_OPEN && len > 0) {
        invariant(!s->input, "%zu bytes are kept beside others", len);
        struct session_input *in = memory_zalloc(sizeof(*in));
        s->input = in;
        input_reserve(in, len);
        memcpy(in->data, data, len);
        secret_overwrite(data, len);
        in->end = len;
        in->came_us = worker_turn_us(w);
        resp_request_move(&in->scanner, &w->scanner);
    } else {
        secret_overwrite(data, len); /* for instance bytes after QUIT: they are never used */
        resp_request_next(&w->scanner);
    }
    if (session_stream_full(s))
        session_unread(s, UNREAD_STREAM, true);
}

static __attribute__((noinline)) void session_tell_speaks(struct session *s) {
    ROOMS_CALL(s->worker, speaks, s);
}

static void session_read(struct session *s) {
    struct worker *w = s->worker;
    struct session_input *in = s->input;
    char *to = w->scratch;
    size_t space = WORKER_SCRATCH;
    if (in) {
        input_reserve(in, input_len(in) < WORKER_SCRATCH ? INPUT_START : WORKER_SCRATCH);
        to = in->data + in->end;
        if (in->cap - in->end < space) /* at most as much in one read as other sessions, even if the buffer is larger */
            space = in->cap - in->end;
    }
    ssize_t n = s->tls ? tls_read(s->tls, to, space) : recv(s->fd, to, space, 0);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            session_close(s, session_errno_text(s));
        return;
    }
    if (n == 0) { /* the client has shut down its side: it gets its replies first */
        s->ended = !in && !s->stream && s->in_flight == 0 && s->out.unsent == 0;
        session_unread(s, UNREAD_ENDED, true);
        if (s->delays & DELAY_EVENT)
            session_tell_speaks(s);
        /* The event that a blocked client waits for must not be used up for a client that has left. */
        if (s->delays & DELAY_BLOCKED)
            ROOMS_CALL(w, half_closed, s);
        if (in)
            session_scan_input(s); /* complete requests that waited come first */
        else
            session_half_closed_end(s);
        return;
    }
    s->active_us = worker_turn_us(w);
    invariant_debug((size_t)n <= space, "%zd bytes were read into %zu", n, space);
    counter_add(&w->counters.client_bytes_in, (uint64_t)n);
    if (!in && !s->stream && !s->reads_on) /* these bytes are not the rest of an earlier write */
        s->overlaps = s->in_flight > 0;
    else if (in && in->later == 0 && !s->stream && !s->reads_on && s->in_flight >= s->window)
        in->later = input_len(in);
    s->reads_on = (size_t)n == space;
    if (s->delays & DELAY_EVENT)
        session_tell_speaks(s);
    if (!in) {
        session_got(s, to, (size_t)n);
        return;
    }
    in->end += (size_t)n;
    in->came_us = s->active_us;
    if (input_len(in) > (size_t)w->config->query_buffer_limit) {
        session_over_query_limit(s);
        return;
    }
    session_scan_input(s);
}

/* Reads from a session that is readable, when it is its turn. */
static void session_readable(struct ev_io *io) {
    struct session *s = io->data;
    if (s->state == SESSION_FINISHING) /* bytes after QUIT or after a protocol error are not read any more */
        session_unread(s, UNREAD_FINISHING, true);
    else
        session_read(s);
}

static void session_on_io(struct ev_loop *loop, struct ev_io *io, int events) {
    struct session *s = io->data;
    if (events & EV_WRITE)
        session_mark_dirty(s);
    if (events & EV_READ)
        readable_push(&s->worker->readable, io, session_readable);
}

/* ---- a session begins ---------------------------------------------------------------------------------- */

struct session *session_new(struct worker *w, int fd, struct tls *tls, const char *address) {
    invariant(fd >= 0 && w == worker_here(), "descriptor %d", fd);
    struct session *s = memory_zalloc(sizeof(*s));
    s->worker = w;
    s->fd = fd;
    s->tls = tls;
    s->state = SESSION_OPEN;
    s->authenticated = w->config->requirepass == NULL;
    s->window = SESSION_WINDOW;
    s->lane.protocol = 2;
    s->lane.login = w->shared->stranger_login;
    s->hears = HEARS_FIRST;
    s->epoch = upstream_epoch(w->upstream);
    s->opened_ms = worker_now(w);
    s->active_us = worker_turn_us(w);
    snprintf(s->address, sizeof(s->address), "%s", address);
    list_init(&s->link);
    list_init(&s->dirty_link);
    list_init(&s->runnable_link);
    list_init(&s->requests);
    iobuf_init(&s->out, &w->chunks);
    list_append(&w->sessions, &s->link);
    uint64_t id = atomic_fetch_add(&w->shared->next_session, 1) + 1;
    engine_session_open(w->shared->engine, &s->lock, id, "", 0);
    session_identify(s);
    ev_io_init(&s->io, session_on_io, fd, EV_READ);
    s->io.data = s;
    ev_io_start(w->loop, &s->io);
    if (tls)
        tls_attach(tls, &s->io);
    s->arrival = worker_arrival(w);
    counter_add(&w->counters.clients_connected, 1);
    counter_add(&w->counters.clients_total, 1);
    log_debug("client %llu: connected from %s", (unsigned long long)id, address);
    return s;
}
