/*
 * Sessions: their output with its limits, their end, their names, their pins, and the events that rooms hear of them.
 * input.c makes sessions and reads.
 *
 *      request slots ──> s->out ── session_flush ──> socket
 *                           └── too much waits: the proxy stops reading the node with the oldest reply
 *
 * Then the session's next requests wait in its input, which is still read: most clients write all their requests before
 * they read. It knows no commands. Nothing is freed before the end of the loop turn.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/core/private.h"

enum {
    GATHERED_MAX = 4096,             /* waiting output above which a reply does not wait for the next one */
    OUTPUT_HOLD = SESSION_OWES_MAX,  /* waiting output above which the rest of a reply is left to the node */
    OUTPUT_LOW = 256 * 1024,         /* waiting output at which reading the reply continues */
    OUTPUT_STRICT = 64 * 1024 * 1024 /* a limit below this is meant to drop clients, not to delay replies */
};

/* ---- marks: what the worker does with it at the end of the turn, or in the next one ------------------------ */

void session_mark_dirty(struct session *s) {
    if (!session_is_dirty(s))
        list_append(&s->worker->dirty, &s->dirty_link);
}

void session_mark_runnable(struct session *s) {
    if (!session_is_runnable(s) && s->state == SESSION_OPEN)
        list_append(&s->worker->runnable, &s->runnable_link);
}

/* ---- secrets --------------------------------------------------------------------------------------- */

/* Places where a request's password may be:
 *
 *      worker's scratch, session->input   overwritten here, and where bytes move from one to the other
 *      chunks on their way to nodes       marked, and overwritten when they are free (iobuf.h)
 *      commands queued by MULTI           overwritten when they are freed
 *      logins                             upstream/connection/login.c's, while a session is logged in with them
 *
 * The buffers are the worker's or the session's, so this may write to them, although requests take them as constant. */
void secret_overwrite(const char *data, size_t len) {
    if (len > 0 && len <= WORKER_SCRATCH)
        explicit_bzero((char *)(uintptr_t)data, len);
}

/* ---- what the output keeps back -------------------------------------------------------------------- */

/* The session's output is below the limits, or the session has ended. */
static void session_within_limit(struct session *s) {
    invariant(s->over_soft_since <= 0 || s->worker->over_soft > 0, "no session is over its limit");
    if (s->over_soft_since > 0)
        s->worker->over_soft--;
    s->over_soft_since = 0;
}

static void session_held_free(struct session *s) {
    if (s->held)
        text_clear(s->held);
    memory_free(s->held);
    s->held = NULL;
}

void session_tell(struct session *s, const char *data, size_t len) {
    session_mark_dirty(s); /* also if it is held: the flush checks the limits */
    if (!s->held && !session_amid_reply(s)) {
        iobuf_append(&s->out, data, len);
        return;
    }
    if (!s->held)
        s->held = memory_zalloc(sizeof(*s->held));
    text_append(s->held, data, len);
    s->held_bytes += len;
}

/* Resumes a reply whose rest was left to the node. */
static void session_go_on(struct session *s) {
    struct request *head = s->delays & DELAY_OUTPUT ? session_head(s) : NULL;
    if (head)
        upstream_go_on(&head->call.up);
    session_delay(s, DELAY_OUTPUT, false);
}

/* ---- life ------------------------------------------------------------------------------------------ */

void session_is_forwarded(struct session *s, const struct sockaddr_storage *reached) {
    invariant(!s->forwarded && !s->reached, "a session is forwarded twice");
    s->forwarded = true;
    if (!reached)
        return;
    s->reached = memory_alloc(sizeof(*reached));
    *s->reached = *reached;
}

void session_input_free(struct session *s) {
    if (!s->input)
        return;
    secret_overwrite(s->input->data + s->input->start, input_len(s->input));
    memory_free(s->input->data);
    resp_request_clear(&s->input->scanner);
    memory_free(s->input);
    s->input = NULL;
}

void session_close(struct session *s, const char *reason) {
    if (s->state == SESSION_CLOSED)
        return;
    struct worker *w = s->worker;
    log_debug("client %llu: closed: %s", (unsigned long long)s->lock.id, reason);
    s->state = SESSION_CLOSED;
    ev_io_stop(w->loop, &s->io);
    stream_drop(s);
    session_go_on(s);
    /* The requests' calls continue without the session. */
    for (struct request *r; (r = LIST_SHIFT(&s->requests, struct request, link));) {
        r->session = NULL;
        if (r->done)
            request_reply(r, "", 0, true);
        else if (r->owner && r->owner->ops->left)
            r->owner->ops->left(r);
    }
    tls_free(s->tls); /* only now: a client that sees the close may rely on its blocking command having ended */
    invariant(list_empty(&s->requests) && !s->stream && !(s->delays & DELAY_OUTPUT),
              "a closed session keeps a request");
    s->tls = NULL;
    close(s->fd);
    s->fd = -1;
    ROOMS_CALL(w, closes, s);
    s->in_flight = 0;
    engine_session_close(w->shared->engine, &s->lock, worker_now(w));
    if (engine_departs(w->shared->engine))
        worker_engine_due(w, 1);
    iobuf_clear(&s->out);
    session_held_free(s);
    session_within_limit(s);
    session_input_free(s);
    list_remove(&s->dirty_link);
    list_remove(&s->runnable_link);
    list_remove(&s->link);
    list_append(&w->closed, &s->link);
    counter_sub(&w->counters.clients_connected, 1);
    atomic_fetch_sub(&w->shared->clients, 1);
}

void session_free(struct session *s) {
    invariant(s->state == SESSION_CLOSED && s->fd < 0 && list_empty(&s->requests), "state %d, descriptor %d",
              (int)s->state, s->fd);
    upstream_login_release(s->lane.login); /* only now: releases on disconnect still used its lane */
    list_remove(&s->link);
    MEMORY_FREE_ALL(s->name, s->user, s->lib_name, s->lib_version, s->reached, s);
}

void session_finish(struct session *s) {
    if (s->state != SESSION_OPEN)
        return;
    s->state = SESSION_FINISHING;
    stream_drop(s);
    session_mark_dirty(s);
}

void session_note_overlap(struct session *s) {
    if (s->overlaps && !s->lock.overlapped)
        engine_session_overlapped(s->worker->shared->engine, &s->lock);
}

/* ---- events for rooms -------------------------------------------------------------------------------- */

void session_reply_over(struct session *s) {
    ROOMS_CALL(s->worker, reply_over, s);
    if (!s->held || session_amid_reply(s))
        return;
    iobuf_append(&s->out, s->held->data, s->held->len);
    invariant(s->held_bytes >= s->held->len, "%zu bytes are held of %zu", s->held_bytes, s->held->len);
    s->held_bytes -= s->held->len;
    session_held_free(s);
    session_mark_dirty(s);
}

/* ---- names: for the engine, the limits per client, the log and incidents ---------------------------- */

void session_identify(struct session *s) {
    unsigned fields = s->worker->config->client_identity;
    char text[LOCK_IDENTITY_MAX];
    char host[SESSION_ADDRESS_MAX];
    snprintf(host, sizeof(host), "%s", s->address);
    char *colon = strrchr(host, ':');
    if (colon && !(fields & IDENTITY_PORT))
        *colon = '\0';
    int n = snprintf(text, sizeof(text), "%s", fields & (IDENTITY_ADDRESS | IDENTITY_PORT) ? host : "");
    const char *user = s->user ? s->user : "default";
    if ((fields & IDENTITY_USER) && n < (int)sizeof(text))
        n += snprintf(text + n, sizeof(text) - (size_t)n, " user=%s", user);
    if ((fields & IDENTITY_NAME) && s->name && n < (int)sizeof(text))
        n += snprintf(text + n, sizeof(text) - (size_t)n, " name=%s", s->name);
    size_t len = n < (int)sizeof(text) ? (size_t)n : sizeof(text) - 1;
    s->lock.login = s->lane.login;
    invariant(len < LOCK_IDENTITY_MAX, "an identity of %zu bytes", len);
    atomic_store_explicit(&s->worker->shared->came_ms, worker_now(s->worker), memory_order_relaxed);
    engine_session_identify(s->worker->shared->engine, &s->lock, text, len, worker_now(s->worker));
}

size_t session_who(const struct session *s, char *out, size_t size) {
    int n = snprintf(out, size, "%s%s%s", s->address, s->name ? " " : "", s->name ? s->name : "");
    return n < (int)size ? (size_t)n : size - 1;
}

const char *session_host(const struct session *s, char *out, size_t size) {
    struct in6_addr at;
    snprintf(out, size, "%s", s->address);
    char *colon = strrchr(out, ':'), *bracket = strrchr(out, ']');
    if (colon)
        *colon = '\0';
    if (out[0] != '[' || !bracket)
        return out;
    *bracket = '\0';
    if (inet_pton(AF_INET6, out + 1, &at) != 1)
        return out;
    memset(&at.s6_addr[8], 0, 8);
    inet_ntop(AF_INET6, &at, out, (socklen_t)size);
    return out;
}

void session_address_text(const struct sockaddr_storage *a, char *out, size_t size) {
    char host[INET6_ADDRSTRLEN] = "";
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)a;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        snprintf(out, size, "%s:%d", host, ntohs(in->sin_port));
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)a;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        snprintf(out, size, "[%s]:%d", host, ntohs(in6->sin6_port));
    } else {
        snprintf(out, size, "unix:0");
    }
}

/* ---- pins -------------------------------------------------------------------------------------------- */

static _Atomic uint64_t *pin_counter(struct worker *w, enum pin_reason why) {
    _Atomic uint64_t *const counters[] = {
        [PIN_TRANSACTION] = &w->counters.pinned_transactions, [PIN_BLOCKING] = &w->counters.pinned_blocking,
        [PIN_SUBSCRIBED] = &w->counters.pinned_subscribed,    [PIN_MONITOR] = &w->counters.pinned_monitor,
        [PIN_STREAM] = &w->counters.pinned_streams,
    };
    return counters[why];
}

struct upstream_pin *pin_take(struct session *s, struct upstream_node *node, enum pin_reason why,
                              const struct upstream_pin_events *events, const char **error) {
    struct worker *w = s->worker;
    struct upstream_pin *pin = NULL;
    invariant(s->state != SESSION_CLOSED, "a closed session takes a pin");
    struct upstream_lane lane = s->lane;
    for (const struct session_room *const *room = w->hooks->rooms; lane.dedicated != 0 && *room; room++)
        if ((*room)->pin_lane)
            (*room)->pin_lane(s, &lane);
    if (why == PIN_SUBSCRIBED || why == PIN_MONITOR)
        lane.dedicated = 0; /* it reads no keys */
    char client[SESSION_ADDRESS_MAX];
    struct upstream_claim claim = {.client = session_host(s, client, sizeof(client)),
                                   /* transactions and long requests end by themselves */
                                   .lasting = why != PIN_TRANSACTION && why != PIN_STREAM};
    *error = NULL;
    if (why == PIN_TRANSACTION && s->lane.dedicated != 0) /* to the node it is one client, as NOLOOP wants it */
        pin = upstream_pin_borrow(w->upstream, node, &s->lane, (uint32_t)s->lock.id, events, error);
    if (!pin && !*error)
        pin = upstream_pin_open(w->upstream, node, &lane, &claim, events, error);
    if (!pin)
        return NULL;
    counter_add(&w->counters.pinned_connections, 1);
    counter_add(pin_counter(w, why), 1);
    return pin;
}

void pin_give(struct worker *w, struct upstream_pin *pin, enum pin_reason why, bool clean) {
    invariant(pin && counter_read(pin_counter(w, why)) > 0, "no pin is counted for %d", (int)why);
    counter_sub(&w->counters.pinned_connections, 1);
    counter_sub(pin_counter(w, why), 1);
    upstream_unpin(pin, clean);
}

struct upstream_node *pin_node(const struct session *s, int slot) {
    struct upstream *u = s->worker->upstream;
    return slot >= 0 ? upstream_node_of_slot(u, slot) : upstream_any_node(u, (uint32_t)s->lock.id);
}

int pin_slot(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    struct key_list list;
    key_list_find(&list, c, r, bytes);
    int slot = key_list_slot(s, r, bytes, list.keys, list.count > 0 ? (size_t)list.count : 0);
    key_list_clear(&list);
    return slot;
}

/* If a pin's node is out of reach, there may have been a failover that no request has found yet:
 *
 *      pin_take ──> none, or it fails before anything was sent ──> pin_await_map ──> a new map ──> pin_take
 *
 * It waits once: if the map still has the same node, the client gets the error. */
bool pin_await_map(struct call *c, const struct upstream_node *node) {
    struct upstream *u = c->request->worker->upstream;
    if (!upstream_may_be_replaced(u, node))
        return false;
    upstream_await_map(u, &c->up);
    return true;
}

bool pin_await_map_first(struct session *s, const struct upstream_node *node) {
    struct upstream *u = s->worker->upstream;
    if (!upstream_may_be_replaced(u, node))
        return false;
    struct request *request = request_new(s, NULL);
    invariant(s->in_flight == 1, "%u requests are before it", s->in_flight);
    request->call.done = call_swallow; /* the session continues */
    upstream_await_map(u, &request->call.up);
    return true;
}

/* ---- output ------------------------------------------------------------------------------------------ */

void session_watch(struct session *s, bool writable) {
    int events = (s->unread ? 0 : EV_READ) | (writable ? EV_WRITE : 0);
    if ((s->io.events & (EV_READ | EV_WRITE)) == events)
        return;
    ev_io_stop(s->worker->loop, &s->io);
    ev_io_set(&s->io, s->fd, events);
    if (events)
        ev_io_start(s->worker->loop, &s->io);
}

/* Whether so many bytes exceed a limit; a limit of 0 is none. */
static bool is_over(int64_t unsent, int64_t limit) {
    return limit > 0 && unsent > limit;
}

/* Whether the session exceeds client-output-buffer-limit: the hard limit, or the soft limit for its time. */
static bool session_over_limit(struct session *s) {
    const struct config *c = s->worker->config;
    int64_t unsent = (int64_t)(s->out.unsent + s->held_bytes);
    if (is_over(unsent, c->output_limit_hard) || (s->listens && is_over(unsent, c->output_pubsub_hard)))
        return true;
    bool normal = is_over(unsent, c->output_limit_soft), pubsub = s->listens && is_over(unsent, c->output_pubsub_soft);
    if (!normal && !pubsub) {
        session_within_limit(s);
        return false;
    }
    double now = ev_now(s->worker->loop);
    if (s->over_soft_since == 0) {
        s->over_soft_since = now;
        s->worker->over_soft++;
    }
    double for_ms = (now - s->over_soft_since) * 1000;
    return (normal && for_ms >= (double)c->output_limit_soft_s * 1000.) ||
           (pubsub && for_ms >= (double)c->output_pubsub_soft_s * 1000.);
}

static bool limit_is_strict(int64_t limit) {
    return limit > 0 && limit < OUTPUT_STRICT;
}

/* Stops reading a long reply that comes faster than the client reads. A small limit drops the client, as in Redis. */
static void session_hold(struct session *s) {
    invariant(!(s->delays & DELAY_OUTPUT), "a reply is held twice");
    const struct config *c = s->worker->config;
    struct request *head = session_head(s);
    if (!head || limit_is_strict(c->output_limit_hard) || limit_is_strict(c->output_limit_soft))
        return;
    session_delay(s, DELAY_OUTPUT, upstream_hold(&head->call.up));
}

/* Whether the output waits for the session's next reply: its input waits for a lock command in flight. A session's
 * commands on one lock run one after another, so their replies come one by one. A write for each was more than half of
 * what pipelined lock commands cost the proxy. A reply waits for three times as long as its own request has taken since
 * the client's last bytes came, but for GATHER_US at least and GATHER_MOST_US at most: the busier the machine is, the
 * fewer writes there are. */
static __attribute__((noinline)) bool gathers(struct session *s) {
    const struct request *head = session_head(s);
    int64_t now_us = worker_turn_us(s->worker), *since_us = &s->input->gathers_us;
    if (*since_us == 0)
        *since_us = now_us;
    int64_t most_us = 3 * (*since_us - s->input->came_us);
    most_us = most_us < GATHER_US ? GATHER_US : most_us > GATHER_MOST_US ? GATHER_MOST_US : most_us;
    if (head && head->busy && s->out.unsent <= GATHERED_MAX && s->state == SESSION_OPEN && !s->worker->stopping &&
        now_us - *since_us < most_us)
        return true;
    *since_us = 0;
    return false;
}

void session_flush(struct session *s) {
    struct worker *w = s->worker;
    invariant_debug(s->state == SESSION_CLOSED || s->fd >= 0, "an open session has no descriptor");
    list_remove(&s->dirty_link);
    if (s->state == SESSION_CLOSED)
        return;
    if (s->input && gathers(s)) {
        list_append(&w->gathering, &s->dirty_link);
        return;
    }
    ssize_t n = s->tls ? tls_write(s->tls, &s->out) : iobuf_write(&s->out, s->fd);
    if (n < 0) {
        session_close(s, session_errno_text(s));
        return;
    }
    counter_add(&w->counters.client_bytes_out, (uint64_t)n);
    if (s->out.unsent == 0 && s->state == SESSION_FINISHING && s->in_flight == 0) {
        session_close(s, "finished");
        return;
    }
    bool nothing = (s->out.unsent | s->held_bytes | (s->delays & (DELAY_OWES | DELAY_OUTPUT))) == 0;
    if (nothing && s->over_soft_since <= 0) { /* the usual case */
        if (s->io.events & EV_WRITE)
            session_watch(s, false);
        return;
    }
    if (session_over_limit(s)) {
        log_warning("client %llu (%s): closed: it does not read its replies (client-output-buffer-limit)",
                    (unsigned long long)s->lock.id, s->address);
        session_close(s, "output buffer limit");
        return;
    }
    if (s->out.unsent > OUTPUT_HOLD && !(s->delays & DELAY_OUTPUT))
        session_hold(s);
    else if (s->out.unsent < OUTPUT_LOW && (s->delays & DELAY_OUTPUT))
        session_go_on(s);
    session_watch(s, s->out.unsent > 0);
    /* Requests go on that waited until the client had read. If it owes too much only now, its input is read again. */
    bool eased = (s->delays & DELAY_OWES) && s->out.unsent < OUTPUT_LOW;
    bool owes_now = !(s->delays & DELAY_OWES) && s->unread && s->input && s->out.unsent > OUTPUT_HOLD;
    if (eased)
        session_delay(s, DELAY_OWES, false);
    if ((eased || owes_now) && !session_is_runnable(s) && s->state == SESSION_OPEN)
        list_append(&w->eased, &s->runnable_link); /* it continues in the loop's next turn */
}
