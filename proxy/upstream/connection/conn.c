/*
 * One connection to a node: its states, connecting, logging in, queueing and writing requests. reply.c reads the
 * replies; close.c ends connections.
 *
 *      conn_send ──> out (bytes) ── conn_flush ──> socket
 *               └──> pending (requests, in the order of their bytes) ──> reply.c
 *
 * The requests wait in `out` until the connection is ready; the handshake has a separate buffer. It knows no slots and
 * no redirects.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

enum { KEEPALIVE_IDLE_S = 20, KEEPALIVE_INTERVAL_S = 5, KEEPALIVE_COUNT = 3 };

static void on_readable(struct ev_loop *loop, ev_io *w, int revents);
static void on_writable(struct ev_loop *loop, ev_io *w, int revents);

static void want_write(struct upstream_conn *c, bool wanted) {
    if (wanted && c->fd >= 0 && !ev_is_active(&c->writable))
        ev_io_start(c->u->loop, &c->writable);
    else if (!wanted && ev_is_active(&c->writable))
        ev_io_stop(c->u->loop, &c->writable);
}

/* The states from which a connection may come into each state, as bits. A state comes after itself where another
 * address of the node is tried. */
static const unsigned STATES_BEFORE[] = {
    [CONN_RESOLVING] = 1u << CONN_RESOLVING, [CONN_CONNECTING] = 1u << CONN_RESOLVING | 1u << CONN_CONNECTING,
    [CONN_SECURING] = 1u << CONN_CONNECTING, [CONN_HANDSHAKE] = 1u << CONN_CONNECTING | 1u << CONN_SECURING,
    [CONN_READY] = 1u << CONN_HANDSHAKE,     [CONN_CLOSED] = (1u << CONN_CLOSED) - 1,
};

void conn_set_state(struct upstream_conn *c, enum conn_state state) {
    invariant(STATES_BEFORE[state] >> c->state & 1, "a connection comes from state %d into %d", (int)c->state,
              (int)state);
    struct upstream *u = c->u;
    c->state = state;
    switch (state) {
    case CONN_RESOLVING:
        break;
    case CONN_CONNECTING:
        ev_io_init(&c->readable, on_readable, c->fd, EV_READ);
        ev_io_init(&c->writable, on_writable, c->fd, EV_WRITE);
        want_write(c, true);
        break;
    case CONN_SECURING:
        want_write(c, false);
        break;
    case CONN_HANDSHAKE:
        ev_io_start(u->loop, &c->readable);
        want_write(c, true);
        if (c->tls)
            tls_attach(c->tls, &c->readable);
        break;
    case CONN_READY:
        want_write(c, false);
        c->progress_ms = clock_ms();
        conn_mark(c);
        break;
    case CONN_CLOSED:
        ev_io_stop(u->loop, &c->readable);
        want_write(c, false);
        tls_free(c->tls);
        c->tls = NULL;
        if (c->fd >= 0)
            close(c->fd);
        c->fd = -1;
        iobuf_clear(&c->out);
        iobuf_clear(&c->handshake);
        memory_free(c->held);
        c->held = NULL;
        dedicated_drop_push(c);
        batch_end(c, false);
        list_remove(&c->dirty);
        for (struct conn_walk *walk = u->walks; walk; walk = walk->outer)
            if (walk->next == &c->link)
                walk->next = c->link.next;
        list_remove(&c->link);
        list_append(&u->graveyard, &c->link);
        break;
    }
}

void conn_each(struct upstream *u, void (*fn)(struct upstream_conn *c, void *arg), void *arg) {
    struct conn_walk walk = {.next = u->conns.next, .outer = u->walks};
    u->walks = &walk;
    while (walk.next != &u->conns) {
        struct upstream_conn *c = LIST_ENTRY(walk.next, struct upstream_conn, link);
        walk.next = walk.next->next;
        fn(c, arg);
    }
    u->walks = walk.outer;
}

/* ---- opening ---- */

/* Starts to connect to the next address of the node; returns 0 or errno. */
static int conn_try(struct upstream_conn *c) {
    invariant(c->fd < 0 && c->tried < c->node->addr_count, "address %u of %u", c->tried, c->node->addr_count);
    struct upstream_node *n = c->node;
    c->addr = (n->addr_good + c->tried++) % n->addr_count;
    const struct sockaddr *addr = (const struct sockaddr *)(const void *)&n->addrs[c->addr];
    c->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return errno;
    if (addr->sa_family != AF_UNIX) {
        int on = 1, idle = KEEPALIVE_IDLE_S, interval = KEEPALIVE_INTERVAL_S, count = KEEPALIVE_COUNT;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        /* A reply without a time limit may be due: only keepalive then notices that the connection is gone. */
        setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
        setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
        setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
        setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    }
    if (connect(c->fd, addr, n->addr_lens[c->addr]) == 0 || errno == EINPROGRESS)
        return 0;
    int error = errno;
    close(c->fd);
    c->fd = -1;
    return error;
}

/* Tries the remaining addresses. False with the last error if all fail. */
static bool conn_start(struct upstream_conn *c, int *error) {
    while (c->tried < c->node->addr_count) {
        *error = conn_try(c);
        if (*error == 0) {
            conn_set_state(c, CONN_CONNECTING);
            return true;
        }
    }
    return false;
}

void conn_go_on(struct upstream_conn *c) {
    want_write(c, true);
}

static struct upstream_conn *conn_new(struct upstream_node *n, struct upstream_pool *pool, struct upstream_pin *pin) {
    invariant(!pool != !pin, "a connection belongs to a pool or to a pin");
    struct upstream *u = n->u;
    struct upstream_conn *c = memory_zalloc(sizeof(*c));
    c->u = u;
    c->node = n;
    c->pool = pool;
    c->pin = pin;
    c->dedicated = (pin ? &pin->lane : &pool->lane)->dedicated;
    c->fd = -1;
    list_init(&c->link);
    list_init(&c->dirty);
    list_init(&c->pending);
    iobuf_init(&c->out, u->pool);
    iobuf_init(&c->handshake, u->pool);
    resp_reply_init(&c->scan);
    c->deadline_ms = clock_ms() + u->connect_ms;
    return c;
}

void request_begin(struct upstream_request *r, int slot, struct upstream_node *to, const struct upstream_lane *lane,
                   const char *bytes, size_t len) {
    r->was_redirected = false;
    r->leading = r->hops = r->attempts = r->delays = 0;
    r->multi_refused = false;
    r->asking = r->eval = r->streaming = r->sent_before = r->placeholder = r->pinned = r->open = false;
    r->slot = slot;
    r->lane = *lane;
    r->conn = NULL;
    r->node = to;
    r->chunk = NULL;
    r->bytes = bytes;
    r->len = len;
}

void conn_free(struct upstream_conn *c) {
    invariant(c->in_flight == 0 && c->fd < 0 && list_empty(&c->pending), "%zu requests are in flight", c->in_flight);
    list_remove(&c->link);
    iobuf_clear(&c->handshake);
    memory_free(c);
}

/* Opens a connection for a pool or a pin; the other is NULL. */
static struct upstream_conn *open_to(struct upstream_node *n, struct upstream_pool *pool, struct upstream_pin *pin) {
    struct upstream *u = n->u;
    struct upstream_conn *c = conn_new(n, pool, pin);
    if (!handshake_append(c)) {
        conn_free(c);
        return NULL;
    }
    int error = 0;
    if (!node_resolve(n)) {
        conn_set_state(c, CONN_RESOLVING);
    } else if (!conn_start(c, &error)) {
        conn_free(c);
        node_failed(n, strerror(error));
        upstream_want_map(u);
        snprintf(u->error, sizeof(u->error), "UPSTREAM node %s can't be reached (%s)", n->address, n->reason);
        return NULL;
    }
    list_append(&u->conns, &c->link);
    upstream_wake(u);
    return c;
}

struct upstream_conn *conn_open(struct upstream_pool *pool, unsigned index) {
    invariant(!pool->conns[index] && index < pool->node->u->connections + UPSTREAM_APARTS, "place %u is taken", index);
    struct quota_hold hold = {0};
    if (pool->lane.dedicated && !dedicated_take(pool, &hold))
        return NULL;
    struct upstream_conn *c = open_to(pool->node, pool, NULL);
    if (!c) {
        quota_give(pool->node, &hold);
        return NULL;
    }
    c->hold = hold;
    c->index = index;
    pool->node->connects++;
    pool->conns[index] = c;
    return c;
}

struct upstream_conn *conn_open_pinned(struct upstream_pin *pin, struct upstream_node *n) {
    struct upstream_conn *c = open_to(n, NULL, pin);
    if (c)
        n->pins++;
    return c;
}

struct resolved {
    const struct upstream_node *node;
    const char *error;
};

static void resolved(struct upstream_conn *c, void *arg) {
    const struct resolved *r = arg;
    int why = 0;
    if (c->node != r->node || c->node->lookup || c->state != CONN_RESOLVING || (!r->error && conn_start(c, &why)))
        return;
    conn_close(c, CONN_UNREACHABLE, r->error ? r->error : strerror(why));
}

void conn_all_resolved(struct upstream_node *n, const char *error) {
    struct resolved r = {.node = n, .error = error};
    conn_each(n->u, resolved, &r);
}

/* Whether the socket is connected to itself. This can happen on an ephemeral port on which no process listens. */
static bool connected_to_itself(int fd) {
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_len = sizeof(here), there_len = sizeof(there);
    if (getsockname(fd, (struct sockaddr *)(void *)&here, &here_len) != 0 ||
        getpeername(fd, (struct sockaddr *)(void *)&there, &there_len) != 0)
        return false;
    return here.ss_family != AF_UNIX && here_len == there_len && memcmp(&here, &there, here_len) == 0;
}

/* Begins the handshake once bytes can be exchanged with the node. */
static void conn_begin(struct upstream_conn *c) {
    conn_set_state(c, CONN_HANDSHAKE);
    if (c->handshake_left == 0)
        conn_ready(c);
}

static void conn_secured(void *arg, const char *error) {
    invariant(((struct upstream_conn *)arg)->state == CONN_SECURING, "state %d",
              (int)((struct upstream_conn *)arg)->state);
    struct upstream_conn *c = arg;
    char reason[REASON_MAX];
    if (!error) {
        conn_begin(c);
        return;
    }
    snprintf(reason, sizeof(reason), "TLS: %s", error);
    conn_close(c, CONN_UNREACHABLE, reason);
}

static void conn_connected(struct upstream_conn *c) {
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    if (error == 0 && connected_to_itself(c->fd))
        error = ECONNREFUSED;
    if (error == 0) {
        c->node->addr_good = c->addr;
        if (node_is_plain(c->node)) {
            conn_begin(c);
            return;
        }
        conn_set_state(c, CONN_SECURING);
        c->tls = tls_connect(c->u->config->tls, c->u->loop, c->fd, c->node->at.host);
        tls_handshake(c->tls, conn_secured, c);
        return;
    }
    want_write(c, false);
    close(c->fd);
    c->fd = -1;
    if (!conn_start(c, &error))
        conn_close(c, CONN_UNREACHABLE, strerror(error));
}

/* Queues all bytes anew, without those of requests that were abandoned while they waited. */
static void conn_rebuild(struct upstream_conn *c) {
    invariant(c->state != CONN_READY, "bytes that may have left are queued anew");
    struct list_node waiting;
    list_init(&waiting);
    list_splice(&waiting, &c->pending);
    iobuf_clear(&c->out);
    c->in_flight = 0;
    c->rebuild = c->has_script = false;
    struct list_node *n;
    while ((n = list_shift(&waiting)))
        conn_send(c, LIST_ENTRY(n, struct upstream_request, link));
}

/* Fails the requests that are not needed any more, before they are sent. */
static void drop_pointless(struct upstream_conn *c) {
    invariant(c->state != CONN_READY, "requests are dropped that may have left");
    LIST_FOREACH_SAFE(n, &c->pending) {
        if (!c->u->above->pointless(LIST_ENTRY(n, struct upstream_request, link)))
            continue;
        c->in_flight--;
        c->rebuild = true;
    }
}

void conn_ready(struct upstream_conn *c) {
    invariant(c->state == CONN_HANDSHAKE && c->handshake_left == 0, "state %d, %u replies are due", (int)c->state,
              c->handshake_left);
    if (c->u->above->holds_back(c))
        return;
    drop_pointless(c);
    if (c->rebuild)
        conn_rebuild(c);
    conn_set_state(c, CONN_READY);
    log_verbose("Connected to node %s", c->node->address);
}

/* ---- requests ---- */

void conn_send_asking(struct upstream_conn *c) {
    static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
    iobuf_append(&c->out, asking, sizeof(asking) - 1);
}

void conn_busy(struct upstream_conn *c) {
    if (c->state == CONN_READY)
        c->progress_ms = clock_ms();
    upstream_wake(c->u);
}

void conn_send_raw(struct upstream_conn *c, const char *bytes, size_t len) {
    iobuf_append(&c->out, bytes, len);
    if (c->state == CONN_READY)
        conn_mark(c);
}

void conn_more(struct upstream_conn *c, const char *bytes, size_t len, bool last) {
    struct upstream_request *r = LIST_ENTRY(c->pending.prev, struct upstream_request, link);
    invariant(!list_empty(&c->pending) && r->open && r->conn == c, "bytes belong to no open request");
    if (c->out.unsent == 0)
        conn_busy(c); /* the node is not late while its owner had nothing to send */
    if (last) {       /* the request's end is enough to tell later whether all of it was written */
        chunk_release(r->chunk);
        r->bytes = iobuf_append_held(&c->out, bytes, len, &r->chunk);
        r->len = len;
        r->open = false;
    } else {
        iobuf_append(&c->out, bytes, len);
    }
    if (c->state == CONN_READY)
        conn_mark(c);
}

void conn_pause(struct upstream_conn *c, bool pause) {
    invariant(c->state == CONN_READY || c->paused == pause, "a connection in state %d is paused", (int)c->state);
    if (c->paused == pause)
        return;
    c->paused = pause;
    if (pause) {
        c->timed_from_us = 0;
        ev_io_stop(c->u->loop, &c->readable);
    } else {
        ev_io_start(c->u->loop, &c->readable);
        if (c->tls)
            tls_resume(c->tls);
        conn_busy(c);
    }
}

void conn_leave_pool(struct upstream_conn *c) {
    invariant(c->pool && c->pool->conns[c->index] == c, "a connection leaves a pool in which it is not");
    c->pool->conns[c->index] = NULL;
    pool_release(c->pool);
    c->pool = NULL;
}

static void conn_set_aside(struct upstream_conn *c) {
    conn_leave_pool(c);
    c->node->pins++;
    c->u->epoch++; /* a later request on another connection must not overtake those in flight on this one */
}

void conn_retire(struct upstream_conn *c) {
    if (c->pool && !c->dedicated) /* no other session uses a dedicated lane */
        conn_set_aside(c);
}

void conn_drop(struct upstream_conn *c, struct upstream_request *r) {
    invariant(r->conn == c && c->in_flight > 0, "%zu requests are in flight", c->in_flight);
    if (c->state == CONN_READY) {
        placeholder_make(c->u, r);
        return;
    }
    list_remove(&r->link);
    c->in_flight--;
    c->rebuild = true;
    request_end(r);
}

/* ---- writing ---- */

/* Whether part of the oldest request is unsent: the node's time begins when all of it was sent. */
static bool oldest_unsent(const struct upstream_conn *c) {
    struct list_node *n = list_first(&c->pending);
    if (!n)
        return false;
    const struct upstream_request *r = LIST_ENTRY(n, struct upstream_request, link);
    return r->open || !iobuf_sent(r->chunk, r->bytes + r->len - 1);
}

static ssize_t conn_write(struct upstream_conn *c, struct iobuf *from) {
    return c->tls ? tls_write(c->tls, from) : iobuf_write(from, c->fd);
}

/* Times the newest request, if no other request is being timed. Requests on pins may wait for something, so they are
 * not timed. */
static void conn_time(struct upstream_conn *c) {
    if (c->timed_from_us != 0 || c->pin || c->in_flight == 0)
        return;
    c->timed_from_us = clock_us();
    c->timed_reply = c->replies + c->in_flight;
}

void conn_flush(struct upstream_conn *c) {
    if (c->state != CONN_READY)
        return;
    bool due_later = oldest_unsent(c);
    ssize_t n = conn_write(c, &c->out);
    if (n < 0) {
        /* Writing failed: reading, in the next loop turn, will find the end. What the node has sent before the end is
         * read first. */
        want_write(c, false);
        shutdown(c->fd, SHUT_WR);
        return;
    }
    if (n > 0 && due_later)
        c->progress_ms = clock_ms();
    if (n > 0)
        conn_time(c);
    want_write(c, c->out.unsent > 0);
    if (c->pin)
        pin_written(c->pin);
}

static void flush_handshake(struct upstream_conn *c) {
    if (conn_write(c, &c->handshake) < 0)
        conn_close(c, CONN_UNREACHABLE, conn_errno_text(c));
    else
        want_write(c, c->handshake.unsent > 0);
}

static void on_writable(struct ev_loop *loop, ev_io *w, int revents) {
    struct upstream_conn *c = (struct upstream_conn *)(void *)((char *)w - offsetof(struct upstream_conn, writable));
    switch (c->state) {
    case CONN_RESOLVING: /* it has no descriptor */
        break;
    case CONN_CONNECTING:
        conn_connected(c);
        break;
    case CONN_SECURING: /* tls.c has its own watchers */
        break;
    case CONN_HANDSHAKE:
        flush_handshake(c);
        break;
    case CONN_READY:
        conn_flush(c);
        break;
    case CONN_CLOSED:
        break;
    }
}

static void read_in_turn(ev_io *w) {
    conn_read((struct upstream_conn *)(void *)((char *)w - offsetof(struct upstream_conn, readable)));
}

static void on_readable(struct ev_loop *loop, ev_io *w, int revents) {
    struct upstream_conn *c = (struct upstream_conn *)(void *)((char *)w - offsetof(struct upstream_conn, readable));
    readable_push(c->u->readable, w, read_in_turn);
}
