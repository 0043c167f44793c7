/*
 * Reading from a node. Bytes are framed in the buffer that all connections read into. Each reply goes to the oldest
 * request without being copied:
 *
 *      scratch  |...end of a reply|whole reply|whole reply|beginning of a rep|
 *                      │               │           │             │
 *             conn->held + this     as it is    as it is     conn->held, if it is small or an error;
 *                                                            handed on as it comes (`passing`), if not
 *
 * Only errors are looked at, for they may be redirects. A dedicated lane's owner gets pushes; other shared connections
 * drop them. On a pin, pushes go to the owner as messages; in stream mode all bytes do.
 */
#include "proxy/upstream/connection/private.h"

enum { QUOTE_MAX = 100 };

/* Copies the first line of a node's text for a log line or an error reply: printable, and not too long. */
static void quote(char *out, size_t size, const char *text, size_t len) {
    size_t n = 0;
    while (n < len && text[n] != '\r' && text[n] != '\n')
        n++;
    text_printable(out, size, text, n, '?');
}

/* Closes a connection that breaks the protocol; the reason quotes an error. */
static void conn_broken(struct upstream_conn *c, const char *what, const char *data, size_t len) {
    char reason[REASON_MAX], said[QUOTE_MAX];
    if (len > 1 && data[0] == '-') {
        quote(said, sizeof(said), data + 1, len - 1);
        snprintf(reason, sizeof(reason), "%s: %s", what, said);
    } else {
        snprintf(reason, sizeof(reason), "%s", what);
    }
    c->node->doubted = true; /* what answers so is no Redis, and would be none over another connection */
    conn_close(c, CONN_LOST, reason);
}

static void held_append(struct upstream_conn *c, const char *data, size_t len) {
    invariant(c->held.len + len <= REPLY_HELD_MAX, "%zu bytes are kept of a reply", c->held.len + len);
    text_append(&c->held, data, len);
}

static void conn_proven(struct upstream_conn *c) {
    if (c->proven)
        return;
    c->proven = true;
    node_works(c->node);
}

/* Takes bytes of a reply to the handshake. False: the connection was closed. */
static bool take_handshake(struct upstream_conn *c, const char *data, size_t len, bool last) {
    bool error = c->scan.type == '-';
    if (c->handshake_left == 0) { /* the connection waits for a round of the topology */
        conn_broken(c, "it sent a reply without a request", data, len);
        return false;
    }
    if (error && c->held.len + len > REPLY_HELD_MAX) {
        conn_broken(c, "its reply to the login is malformed", "", 0);
        return false;
    }
    if (error)
        held_append(c, data, len);
    if (!last)
        return true;
    conn_proven(c);
    char text[REASON_MAX];
    if (error)
        quote(text, sizeof(text), c->held.data + 1, c->held.len - 1);
    text_clear(&c->held);
    return handshake_taken(c, error ? text : NULL);
}

/* ---- replies ---- */

static struct upstream_request *oldest(struct upstream_conn *c) {
    return LIST_FIRST(&c->pending, struct upstream_request, link);
}

/* Tells a late request's owner, while the request has its bytes. */
static __attribute__((noinline)) void tell_late(const struct upstream_conn *c, const struct upstream_request *r) {
    int64_t now_us = clock_us(), least_us = c->node->least_us, before_us = c->node->least_before_us;
    struct upstream_late late = {.node = c->node->address,
                                 .took_us = now_us - r->begun_us,
                                 .before_us = c->taken_us > r->begun_us ? c->taken_us - r->begun_us : 0,
                                 .after_us = now_us - c->u->read_us,
                                 .way_us = before_us && before_us < least_us ? before_us : least_us};
    if (r->ops->late)
        r->ops->late(r, &late);
}

static inline void look_late(const struct upstream_conn *c, const struct upstream_request *r) {
    if (__builtin_expect(r->begun_us <= c->u->late_us, false))
        tell_late(c, r);
}

/* Lets routing look at a complete error reply. True: routing has taken the request. */
static __attribute__((noinline)) bool error_handled(struct upstream_conn *c, struct upstream_request *r,
                                                    const char *data, size_t len) {
    return len >= 3 && data[0] == '-' && c->u->above->error(c->u, c->node, r, data + 1, len - 3);
}

/* Delivers the reply of a batch, which is EXEC's. If it was not executed, the first error before is the reason. */
static __attribute__((noinline)) void deliver_batch(struct upstream_conn *c, struct upstream_request *r,
                                                    const char *data, size_t len) {
    invariant(c->led == r->leading, "%u leading replies of %u", c->led, r->leading);
    bool error = c->scan.type == '-' && !c->passing, multi_refused = r->multi_refused;
    struct text refusal = c->refusal;
    c->refusal = (struct text){0};
    batch_end(c, !error);
    c->passing = false;
    const char *why = refusal.len > 3 ? refusal.data + 1 : data + 1;
    size_t why_len = (refusal.len > 3 ? refusal.len : len) - 3;
    if (multi_refused || !error || len < 3 || !c->u->above->error(c->u, c->node, r, why, why_len)) {
        look_late(c, r);
        request_end(r);
        r->ops->reply(r, data, multi_refused ? 0 : len, true);
    }
    text_clear(&refusal);
}

/* Delivers a complete reply, or the end of one, to its request; the owner then owns the request again. */
static inline void deliver_last(struct upstream_conn *c, struct upstream_request *r, const char *data, size_t len) {
    invariant(c->in_flight > 0 && c->pending.next == &r->link, "%zu requests are in flight", c->in_flight);
    list_remove(&r->link);
    c->in_flight--;
    c->replies++;
    c->asking_done = false;
    if (r->leading > 0) {
        deliver_batch(c, r, data, len);
        return;
    }
    if (c->scan.type == '-' && !c->passing && error_handled(c, r, data, len))
        return;
    c->passing = false;
    look_late(c, r);
    request_end(r);
    r->ops->reply(r, data, len, true);
}

static void deliver_part(struct upstream_conn *c, struct upstream_request *r, const char *data, size_t len) {
    invariant(r->conn == c && c->pending.next == &r->link, "a reply goes to a request that is not the oldest");
    c->passed = c->passing ? c->passed + len : len;
    c->passing = true;
    if (c->passed + (size_t)resp_reply_ahead(&c->scan) > REPLY_LONG)
        conn_retire(c); /* no other session should wait behind it */
    r->streaming = true;
    r->ops->reply(r, data, len, false);
}

/* Keeps the beginning of a reply while it is small. Once it is larger, delivers it in parts. */
static void take_part(struct upstream_conn *c, struct upstream_request *r, const char *data, size_t len) {
    if (!c->passing && c->held.len + len <= REPLY_HELD_MAX) {
        held_append(c, data, len);
        return;
    }
    if (c->held.len > 0) {
        deliver_part(c, r, c->held.data, c->held.len);
        text_clear(&c->held);
        r = oldest(c);
    }
    deliver_part(c, r, data, len);
}

/* Takes the next bytes of a push on a dedicated lane, whose owner gets whole pushes. */
static void take_push(struct upstream_conn *c, const char *data, size_t len, bool last) {
    const struct upstream_dedicated *lane = dedicated_find(c->u, c->dedicated);
    if (!last || c->push.len > 0)
        text_append(&c->push, data, len);
    if (!last)
        return;
    struct text whole = c->push; /* the owner may close the connection */
    c->push = (struct text){0};
    if (lane && lane->events.push)
        lane->events.push(lane->events.arg, whole.len > 0 ? whole.data : data, whole.len > 0 ? whole.len : len);
    text_clear(&whole);
}

/* Takes the next bytes of one of the oldest request's leading replies. */
static void batch_take(struct upstream_conn *c, struct upstream_request *r, const char *data, size_t len, bool last) {
    invariant(c->led < r->leading && r->conn == c, "leading reply %u of %u", c->led, r->leading);
    bool counts = r->multi_refused && c->led == r->leading / 2u;
    if (c->scan.type == '-' && (c->refusal.len == 0 || c->refused_at == c->led)) {
        c->refused_at = c->led;
        if (c->refusal.len + len <= REPLY_HELD_MAX)
            text_append(&c->refusal, data, len);
    }
    if (last && c->led == 0 && c->scan.type == '-')
        r->multi_refused = true;
    c->led += last;
    if (!counts)
        return;
    r->streaming = true;
    r->ops->reply(r, data, len, false);
}

/* Whether the node's first bytes say that it accepts no more clients: it has read nothing, and closes. */
static bool conn_full(struct upstream_conn *c, const char *data, size_t len) {
    static const char full[] = "-ERR max number of clients";
    if (c->proven || len < sizeof(full) - 1 || memcmp(data, full, sizeof(full) - 1) != 0)
        return false;
    char text[REASON_MAX];
    quote(text, sizeof(text), data + 1, len - 1);
    conn_close(c, CONN_FULL, text);
    return true;
}

/* Takes the next bytes of the message being framed; `last` with the final bytes. False: the connection was closed. */
static bool conn_take(struct upstream_conn *c, const char *data, size_t len, bool last) {
    bool push = c->scan.type == '>';
    if (c->scan.type == '-' && conn_full(c, data, len))
        return false;
    if (push && c->dedicated && !(c->pin && c->pin->stream)) {
        take_push(c, data, len, last);
        return true;
    }
    const struct upstream_pin *pin = c->pin;
    if (pin && c->state == CONN_READY && (push || pin->stream)) {
        invariant(!pin->idle, "an idle pin gets a message");
        if (last)
            conn_proven(c);
        if (pin->owned && pin->events.message)
            pin->events.message(pin->events.arg, data, len, last);
        return true;
    }
    if (push)
        return true;
    if (c->state == CONN_HANDSHAKE)
        return take_handshake(c, data, len, last);
    struct upstream_request *r = oldest(c);
    if (!r) {
        conn_broken(c, "it sent a reply without a request", data, len);
        return false;
    }
    bool asked = r->asking && !c->asking_done, leads = c->led < r->leading && !asked;
    if ((pin && pin->open && !asked) || (!iobuf_sent(r->chunk, r->bytes + r->len - 1) && !r->open && !leads)) {
        conn_broken(c, "it answered before it had the whole request", data, len);
        return false;
    }
    if (last)
        conn_proven(c);
    if (asked)
        c->asking_done = last; /* the reply to ASKING is dropped: if it is an error, the next reply is one too */
    else if (leads)
        batch_take(c, r, data, len, last);
    else if (!last)
        take_part(c, r, data, len);
    else if (c->held.len == 0)
        deliver_last(c, r, data, len);
    else {
        if (c->held.len + len <= REPLY_HELD_MAX) {
            held_append(c, data, len);
            deliver_last(c, r, c->held.data, c->held.len);
        } else {
            deliver_part(c, r, c->held.data, c->held.len);
            deliver_last(c, oldest(c), data, len); /* a placeholder, if the owner has abandoned the request meanwhile */
        }
        text_clear(&c->held);
    }
    return true;
}

/* The fast path: a whole reply, no error, to the oldest request of a shared connection, after the request was sent.
 * Returns the reply's length, or 0: nothing was done. It earns 7 % of the bound on pipelined requests. */
static inline size_t conn_take_usual(struct upstream_conn *c, const char *data, size_t len) {
    struct list_node *n = c->pending.next;
    if (!resp_reply_begins(&c->scan) || c->pin || !c->proven || c->state != CONN_READY || n == &c->pending)
        return 0;
    struct upstream_request *r = LIST_ENTRY(n, struct upstream_request, link);
    if (r->asking | r->open | (r->leading > 0) | (c->out.unsent > 0 && !iobuf_sent(r->chunk, r->bytes + r->len - 1)))
        return 0;
    size_t used = resp_reply_quick(data, len);
    if (used == 0)
        return 0;
    list_cut(n);
    invariant_debug(c->in_flight > 0 && r->conn == c, "%zu requests are in flight", c->in_flight);
    c->in_flight--;
    c->replies++;
    look_late(c, r);
    request_end(r);
    r->ops->reply(r, data, used, true);
    return used;
}

static void conn_feed(struct upstream_conn *c, const char *data, size_t len) {
    while (len > 0) {
        size_t used = conn_take_usual(c, data, len);
        if (used > 0) {
            data += used;
            len -= used;
            continue;
        }
        enum resp_status status = resp_reply_scan(&c->scan, data, len, &used);
        if (status == RESP_BAD) {
            conn_broken(c, "it sent bytes that are not RESP", "", 0);
            return;
        }
        if (!conn_take(c, data, used, status == RESP_OK))
            return;
        if (status == RESP_OK)
            resp_reply_init(&c->scan);
        data += used;
        len -= used;
    }
}

/* Notes how long the timed request took, since its reply has come. */
static __attribute__((noinline)) void conn_timed(struct upstream_conn *c, int64_t us) {
    invariant(us >= 0 && c->timed_reply <= c->replies, "%lld us for a round trip", (long long)us);
    enum { LATELY_US = 10 * 1000 * 1000 };
    struct upstream_node *n = c->node;
    int64_t now_us = c->timed_from_us + us;
    if (now_us - n->least_since_us > LATELY_US) {
        n->least_before_us = n->least_us;
        n->least_us = us;
        n->least_since_us = now_us;
    } else if (us < n->least_us) {
        n->least_us = us;
    }
    c->timed_from_us = 0;
    histogram_note(&n->round_trips, us);
    n->round_trip_us += n->round_trip_us == 0 ? us : (us - n->round_trip_us) / 8;
}

void conn_read(ev_io *readable) {
    struct upstream_conn *c = LIST_ENTRY(readable, struct upstream_conn, readable);
    for (int i = 0; i < READS_PER_EVENT; i++) {
        ssize_t n =
            c->tls ? tls_read(c->tls, c->u->scratch, READ_SCRATCH) : recv(c->fd, c->u->scratch, READ_SCRATCH, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            conn_close(c, CONN_LOST, n == 0 ? "it closed the connection" : conn_errno_text(c));
            return;
        }
        int64_t now_us = clock_us();
        c->progress_ms = now_us / 1000;
        c->u->read_us = now_us;
        c->u->late_us = now_us - c->u->late_after_us;
        conn_feed(c, c->u->scratch, (size_t)n);
        if (c->state == CONN_CLOSED)
            return;
        if (c->timed_from_us != 0 && c->replies >= c->timed_reply)
            conn_timed(c, now_us - c->timed_from_us);
        if (n < READ_SCRATCH)
            return;
    }
}
