/*
 * Clients that have connected and have no session yet.
 *
 *      listener ── accept ──┬───────────────────────────────────┬──────────────────────────────────> session
 *                           └── guest ── PROXY protocol header ─┴── TLS: guest ── handshake ──┘
 *
 * A guest counts as a client (maxclients). It can't delay other clients, and each step has a time limit.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/networks.h"
#include "proxy/net/proxy_header.h"
#include "proxy/worker/private.h"

enum { ACCEPT_BATCH = 64 };

static const double ACCEPT_PAUSE_SECONDS = 0.2, LOG_PAUSE_SECONDS = 1.0, HEADER_SECONDS = 5.0;

struct guest {
    struct list_node link; /* thread_of(w)->guests */
    struct worker *worker;
    struct tls *tls; /* NULL before its handshake */
    int fd;
    bool secured;                    /* a TLS handshake follows */
    bool forwarded;                  /* a header gave its address */
    struct sockaddr_storage reached; /* the address that the client connected to; AF_UNSPEC: not known */
    struct ev_io io;
    struct ev_timer limit;
    size_t header_len; /* bytes of the header read so far */
    char header[PROXY_HEADER_MAX];
    char address[SESSION_ADDRESS_MAX];
};

static void guest_free(struct guest *g) {
    invariant(!list_empty(&g->link), "a guest is freed twice");
    ev_timer_stop(g->worker->loop, &g->limit);
    ev_io_stop(g->worker->loop, &g->io);
    list_remove(&g->link);
    memory_free(g);
}

static void guest_leave(struct guest *g) {
    invariant(g->fd >= 0 && atomic_load(&g->worker->shared->clients) > 0, "no client is counted");
    tls_free(g->tls);
    close(g->fd);
    atomic_fetch_sub(&g->worker->shared->clients, 1);
    guest_free(g);
}

/* Makes a session of a guest that has passed all steps. */
static void guest_enters(struct guest *g) {
    struct sockaddr_storage peer = {.ss_family = AF_UNSPEC};
    socklen_t len = sizeof(peer);
    if (getpeername(g->fd, (struct sockaddr *)&peer, &len) == 0 && worker_denies(g->worker, &peer)) {
        guest_leave(g);
        return;
    }
    struct session *s = session_new(g->worker, g->fd, g->tls, g->address);
    if (g->forwarded)
        session_is_forwarded(s,
                             g->reached.ss_family == AF_INET || g->reached.ss_family == AF_INET6 ? &g->reached : NULL);
    guest_free(g);
}

/* Lets a guest go that has failed. Logs one in a moment at notice, the others at verbose: they could fill the log. */
static void guest_failed(struct guest *g, const char *reason) {
    struct worker *w = g->worker;
    double now = ev_now(w->loop);
    bool often = now - thread_of(w)->guest_logged < LOG_PAUSE_SECONDS;
    const char *what = g->tls ? "TLS handshake" : "PROXY protocol";
    counter_add(g->tls ? &w->counters.tls_handshakes_failed : &w->counters.proxy_headers_refused, 1);
    if (!often)
        thread_of(w)->guest_logged = now;
    log_write(often ? LOG_LEVEL_VERBOSE : LOG_LEVEL_NOTICE, "%s with %s failed: %s", what, g->address, reason);
    guest_leave(g);
}

static void guest_late(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct guest *g = timer->data;
    guest_failed(g, g->tls ? "it took longer than tls-handshake-timeout" : "no whole header came within 5 seconds");
}

static void guest_wait(struct guest *g, double seconds) {
    ev_timer_stop(g->worker->loop, &g->limit);
    ev_timer_init(&g->limit, guest_late, seconds, 0.);
    g->limit.data = g;
    ev_timer_start(g->worker->loop, &g->limit);
}

/* ---- TLS ------------------------------------------------------------------------------------------ */

static void guest_secured(void *arg, const char *error) {
    struct guest *g = arg;
    if (error)
        guest_failed(g, error);
    else
        guest_enters(g);
}

static void guest_secure(struct guest *g) {
    invariant(!g->tls && g->secured, "a guest shakes hands twice");
    struct worker *w = g->worker;
    guest_wait(g, (double)w->config->tls_handshake_ms / 1000.);
    g->tls = tls_new(w->shared->tls, w->loop, g->fd, NULL);
    tls_handshake(g->tls, guest_secured, g);
}

/* ---- the PROXY protocol --------------------------------------------------------------------------- */

/* Reads the part of the header that has come, and nothing after it. */
static void header_readable(struct ev_loop *loop, struct ev_io *io, int events) {
    struct guest *g = io->data;
    ssize_t n = recv(g->fd, g->header + g->header_len, sizeof(g->header) - g->header_len, MSG_PEEK);
    invariant(g->header_len < sizeof(g->header), "%zu bytes of a header", g->header_len);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 && g->header_len == 0) { /* for instance a health check that only connects */
        guest_leave(g);
        return;
    }
    if (n <= 0) {
        guest_failed(g, n == 0 ? "it closed within its header" : strerror(errno));
        return;
    }
    struct proxy_header header;
    const char *wrong = "it does not begin with a header, which proxy-protocol expects from this address";
    enum proxy_header_result result = proxy_header_read(g->header, g->header_len + (size_t)n, &header, &wrong);
    if (result == PROXY_HEADER_NONE || result == PROXY_HEADER_WRONG) {
        guest_failed(g, wrong);
        return;
    }
    invariant(result == PROXY_HEADER_MORE || header.len > g->header_len, "a header of %zu bytes, %zu were there",
              header.len, g->header_len);
    char taken[PROXY_HEADER_MAX]; /* so far the bytes were only peeked at */
    size_t len = result == PROXY_HEADER_MORE ? (size_t)n : header.len - g->header_len;
    invariant(len > 0 && len <= PROXY_HEADER_MAX, "%zu bytes of a header", len);
    if (recv(g->fd, taken, len, 0) != (ssize_t)len) {
        guest_failed(g, "its header can't be read");
        return;
    }
    g->header_len += len;
    if (result == PROXY_HEADER_MORE)
        return;
    ev_io_stop(g->worker->loop, &g->io);
    g->forwarded = !header.local;
    g->reached = header.reached;
    if (header.client.ss_family != AF_UNSPEC)
        session_address_text(&header.client, g->address, sizeof(g->address));
    if (g->secured)
        guest_secure(g);
    else
        guest_enters(g);
}

/* ---- both steps ------------------------------------------------------------------------------------- */

static void guest_new(struct worker *w, int fd, const char *address, bool forwarded, bool secured) {
    struct guest *g = memory_zalloc(sizeof(*g));
    g->worker = w;
    g->fd = fd;
    g->secured = secured;
    memcpy(g->address, address, strlen(address) + 1);
    list_init(&g->link);
    list_append(&thread_of(w)->guests, &g->link);
    ev_io_init(&g->io, header_readable, fd, EV_READ);
    g->io.data = g;
    if (!forwarded) {
        guest_secure(g);
        return;
    }
    guest_wait(g, HEADER_SECONDS);
    ev_io_start(w->loop, &g->io);
    header_readable(w->loop, &g->io, EV_READ); /* usually the header has come already */
}

/* ---- accepting ------------------------------------------------------------------------------------ */

static void socket_options(const struct worker *w, int fd, int family) {
    if (family == AF_UNIX)
        return;
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    int64_t keepalive = w->config->tcp_keepalive_s;
    if (keepalive <= 0)
        return;
    int idle = (int)keepalive, interval = (int)(keepalive / 3 > 0 ? keepalive / 3 : 1), count = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static void listen_all(struct worker *w, bool on) {
    for (size_t i = 0; i < thread_of(w)->listener_count; i++) {
        if (on)
            ev_io_start(w->loop, &thread_of(w)->listeners[i].io);
        else
            ev_io_stop(w->loop, &thread_of(w)->listeners[i].io);
    }
}

/* Stops accepting for a moment when descriptors have run out, so that the loop does not spin. */
static void accept_pause(struct worker *w) {
    log_warning("accepting pauses: %s; raise the limit of open files (ulimit -n) or lower maxclients", strerror(errno));
    listen_all(w, false);
    ev_timer_set(&thread_of(w)->accept_pause, ACCEPT_PAUSE_SECONDS, 0.);
    ev_timer_start(w->loop, &thread_of(w)->accept_pause);
}

static void accept_resume(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    if (thread_of(w)->accepting)
        listen_all(w, true);
}

/* Refuses a client. It gets the error in plain text, but not on a TLS port, since there was no handshake. */
static void refuse_client(struct worker *w, int fd, bool tls, const char *error) {
    invariant(atomic_load(&w->shared->clients) > 0, "no client is counted");
    atomic_fetch_sub(&w->shared->clients, 1);
    counter_add(&w->counters.clients_refused, 1);
    ssize_t ignored = tls ? 0 : write(fd, error, strlen(error));
    (void)ignored;
    close(fd);
}

static void accept_client(struct ev_loop *loop, struct ev_io *io, int events) {
    const struct listener *l = (struct listener *)(void *)io;
    struct worker *w = l->worker;
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        struct sockaddr_storage peer;
        socklen_t len = sizeof(peer);
        int fd = accept4(io->fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                accept_pause(w);
            return;
        }
        if ((int64_t)atomic_fetch_add(&w->shared->clients, 1) >= w->shared->maxclients) {
            refuse_client(w, fd, l->tls, "-ERR max number of clients reached\r\n");
            continue;
        }
        if (worker_denies(w, &peer)) {
            refuse_client(w, fd, l->tls, WORKER_DENIED);
            continue;
        }
        char address[SESSION_ADDRESS_MAX];
        session_address_text(&peer, address, sizeof(address));
        socket_options(w, fd, peer.ss_family);
        bool forwarded = networks_have(w->config->proxy_protocol, &peer);
        if (l->tls || forwarded)
            guest_new(w, fd, address, forwarded, l->tls);
        else
            session_new(w, fd, NULL, address);
    }
}

/* ---- life ----------------------------------------------------------------------------------------- */

void accept_init(struct worker *w, const struct worker_socket *sockets, size_t count) {
    struct worker_thread *t = thread_of(w);
    list_init(&t->guests);
    ev_timer_init(&t->accept_pause, accept_resume, ACCEPT_PAUSE_SECONDS, 0.);
    t->accept_pause.data = w;
    t->listeners = memory_zalloc((count + 1) * sizeof(*t->listeners));
    atomic_fetch_add(&w->shared->accepting, 1);
    for (size_t i = 0; i < count; i++) {
        if (sockets[i].thread != w->index)
            continue;
        struct listener *l = &t->listeners[t->listener_count++];
        *l = (struct listener){.worker = w, .tls = sockets[i].tls, .shared = sockets[i].shared};
        ev_io_init(&l->io, accept_client, sockets[i].fd, EV_READ);
    }
}

void accept_start(struct worker *w) {
    thread_of(w)->accepting = true;
    listen_all(w, true);
}

void accept_close(struct worker *w, bool shared_only) {
    struct worker_thread *t = thread_of(w);
    size_t kept = 0;
    if (!t->listeners)
        return;
    listen_all(w, false);
    for (size_t i = 0; i < t->listener_count; i++) {
        if (!shared_only || t->listeners[i].shared)
            close(t->listeners[i].io.fd);
        else
            t->listeners[kept++] = t->listeners[i];
    }
    t->listener_count = kept;
    if (shared_only) {
        listen_all(w, t->accepting && !ev_is_active(&t->accept_pause));
        return;
    }
    t->accepting = false;
    memory_free(t->listeners);
    t->listeners = NULL;
    invariant(atomic_load(&w->shared->accepting) > 0, "no worker is counted that accepts");
    atomic_fetch_sub(&w->shared->accepting, 1);
}

void accept_drop_guests(struct worker *w) {
    for (struct guest *g; (g = LIST_FIRST(&thread_of(w)->guests, struct guest, link));)
        guest_leave(g);
}
