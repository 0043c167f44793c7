/*
 * Opens connections: the node's name, the socket, TLS and the handshake, and the events of a socket.
 *
 *                   ┌─ lookup ─> on_found ─┐
 *      conn_open ───┤                      ├─> conn_connected ─ TLS ─> conn_begin ─> login.c
 *                   └─ address is known ───┘
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "proxy/upstream/connection/private.h"

enum { KEEPALIVE_IDLE_S = 20, KEEPALIVE_INTERVAL_S = 5, KEEPALIVE_COUNT = 3 };

/* ---- connecting, from the last step to the first ---- */

/* Begins the handshake once bytes can be exchanged with the node. */
static void conn_begin(struct upstream_conn *c) {
    conn_set_state(c, CONN_HANDSHAKE);
    if (c->handshake_left == 0)
        conn_ready(c);
}

static void conn_secured(void *arg, const char *error) {
    struct upstream_conn *c = arg;
    invariant(c->state == CONN_SECURING, "state %d", (int)c->state);
    char reason[REASON_MAX];
    snprintf(reason, sizeof(reason), "TLS: %s", error ? error : "");
    if (error)
        conn_close(c, CONN_UNREACHABLE, reason);
    else
        conn_begin(c);
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

static bool conn_start(struct upstream_conn *c, int *error);

static void conn_connected(struct upstream_conn *c) {
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    if (error == 0 && connected_to_itself(c->fd))
        error = ECONNREFUSED;
    if (error == 0) {
        if (conn_lane(c)) { /* else it may be where the name led before */
            c->node->addr_good = c->addr;
            c->node->reached = true;
        }
        if (!c->u->config->tls || c->node->at.port == 0) {
            conn_begin(c);
            return;
        }
        conn_set_state(c, CONN_SECURING);
        c->tls = tls_new(c->u->config->tls, c->u->loop, c->fd, c->node->at.host);
        tls_handshake(c->tls, conn_secured, c);
        return;
    }
    conn_want_write(c, false);
    close(c->fd);
    c->fd = -1;
    if (!conn_start(c, &error))
        conn_close(c, CONN_UNREACHABLE, strerror(error));
}

static void on_writable(struct ev_loop *loop, ev_io *w, int revents) {
    struct upstream_conn *c = LIST_ENTRY(w, struct upstream_conn, writable);
    switch (c->state) {
    case CONN_CONNECTING:
        conn_connected(c);
        break;
    case CONN_HANDSHAKE:
        if (conn_write(c, &c->handshake) < 0)
            conn_close(c, CONN_UNREACHABLE, conn_errno_text(c));
        else
            conn_want_write(c, c->handshake.unsent > 0);
        break;
    case CONN_READY:
        conn_flush(c);
        break;
    case CONN_RESOLVING: /* it has no descriptor */
    case CONN_SECURING:  /* tls.c has its own watchers */
    case CONN_CLOSED:
        break;
    }
}

static void on_readable(struct ev_loop *loop, ev_io *w, int revents) {
    readable_push(LIST_ENTRY(w, struct upstream_conn, readable)->u->readable, w, conn_read);
}

static void set_options(int fd) {
    int on = 1, idle = KEEPALIVE_IDLE_S, interval = KEEPALIVE_INTERVAL_S, count = KEEPALIVE_COUNT;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    /* A reply without a time limit may be due: only keepalive then notices that the connection is gone. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

/* Starts to connect to one of the node's remaining addresses. False with the last error if all fail. */
static bool conn_start(struct upstream_conn *c, int *error) {
    const struct upstream_node *n = c->node;
    invariant(c->fd < 0 && c->tried <= n->host.count, "address %u of %u", c->tried, n->host.count);
    while (c->tried < n->host.count) {
        c->addr = (n->addr_good + c->tried++) % n->host.count;
        const struct sockaddr *addr = (const void *)&n->host.at[c->addr];
        c->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (c->fd >= 0 && addr->sa_family != AF_UNIX)
            set_options(c->fd);
        if (c->fd >= 0 && (connect(c->fd, addr, n->host.lens[c->addr]) == 0 || errno == EINPROGRESS)) {
            ev_io_init(&c->readable, on_readable, c->fd, EV_READ);
            ev_io_init(&c->writable, on_writable, c->fd, EV_WRITE);
            conn_set_state(c, CONN_CONNECTING);
            return true;
        }
        *error = errno;
        if (c->fd >= 0)
            close(c->fd);
        c->fd = -1;
    }
    return false;
}

/* Lets the connections that waited for the node's name connect. With an error, ends them. */
static void on_found(void *arg, const struct addrinfo *found, const char *error) {
    struct upstream_node *n = arg;
    invariant(n->lookup && !n->numeric, "a lookup answers that was not asked");
    n->lookup = NULL;
    n->addr_good = 0;
    host_take(&n->host, found);
    LIST_EACH(c, &n->u->conns, struct upstream_conn, link) {
        int why = 0;
        if (c->node == n && !n->lookup && c->state == CONN_RESOLVING && (error || !conn_start(c, &why)))
            conn_close(c, CONN_UNREACHABLE, error ? error : strerror(why));
    }
}

/* ---- opening ---- */

static struct upstream_conn *out_of_reach(struct upstream_node *n) {
    upstream_want_map(n->u);
    conn_lost_text(n->u->error, sizeof(n->u->error), n->address, CONN_UNREACHABLE, n->reason);
    return NULL;
}

struct upstream_conn *conn_open(struct upstream_node *n, struct upstream_pool *pool, struct upstream_pin *pin) {
    invariant(!pool != !pin, "a connection belongs to a pool or to a pin");
    if (node_backing_off(n))
        return out_of_reach(n);
    struct upstream *u = n->u;
    struct upstream_conn *c = memory_zalloc(sizeof(*c));
    c->u = u;
    c->node = n;
    c->pool = pool;
    c->pin = pin;
    c->dedicated = conn_lane(c)->dedicated;
    c->fd = -1;
    list_init(&c->link);
    list_init(&c->dirty);
    list_init(&c->pending);
    iobuf_init(&c->out, u->pool);
    iobuf_init(&c->handshake, u->pool);
    resp_reply_init(&c->scan);
    c->deadline_ms = clock_ms() + u->connect_ms;
    if (!handshake_append(c)) {
        conn_free(c);
        return NULL;
    }
    int error = 0;
    if (n->host.count == 0) {
        conn_set_state(c, CONN_RESOLVING);
        invariant(!n->numeric, "a number is looked up as a name");
        if (!n->lookup)
            n->lookup = resolve_start(u->loop, n->at.host, n->at.port, on_found, n);
    } else if (!conn_start(c, &error)) {
        conn_free(c);
        node_failed(n, strerror(error));
        return out_of_reach(n);
    }
    list_append(&u->conns, &c->link);
    n->pins += pin != NULL;
    upstream_wake(u);
    return c;
}

struct upstream_conn *node_conn_find(struct upstream_node *n, const struct upstream_lane *lane, unsigned index) {
    invariant(index < n->u->connections + UPSTREAM_APARTS, "connection %u of the lane", index);
    struct upstream_pool *p = NULL;
    LIST_EACH(it, &n->pools, struct upstream_pool, link)
        if (lane_equal(&it->lane, lane)) {
            p = it;
            break;
        }
    if (p) { /* to the front, so that the first pool is nearly always the right one */
        list_remove(&p->link);
        list_prepend(&n->pools, &p->link);
    }
    if (p && p->conns[index])
        return p->conns[index];
    if (node_backing_off(n))
        return out_of_reach(n);
    if (!p) {
        p = memory_zalloc(sizeof(*p) + (n->u->connections + UPSTREAM_APARTS) * sizeof(p->conns[0]));
        p->node = n;
        p->lane = *lane;
        list_prepend(&n->pools, &p->link);
    }
    struct quota_hold hold = {0};
    const struct upstream_dedicated *dedicated = dedicated_find(n->u, lane->dedicated);
    struct upstream_claim claim = {.client = dedicated ? dedicated->client : NULL, .lasting = true};
    struct upstream_conn *c = quota_take(n, &claim, &hold) ? conn_open(n, p, NULL) : NULL;
    if (!c) {
        quota_give(n, &hold);
        pool_release(p);
        return NULL;
    }
    c->hold = hold;
    c->index = index;
    n->connects++;
    p->conns[index] = c;
    return c;
}
