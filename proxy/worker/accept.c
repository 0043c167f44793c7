/*
 * Clients on their way to a session.
 *
 *      listener ── accept ──┬──────────────────────────────────────────> session
 *                           └── TLS: guest ── handshake, within a time ──┘
 *
 * A guest counts as a client (maxclients), and costs its own descriptor and time alone. Knows no requests.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/session.h"
#include "proxy/worker/accept.h"
#include "proxy/worker/private.h"

enum { ACCEPT_BATCH = 64 };

static const double ACCEPT_PAUSE_SECONDS = 0.2;
static const double LOG_PAUSE_SECONDS = 1.0;

/* A TLS client whose handshake is under way. */
struct guest {
    struct list_node link; /* thread_of(w)->guests */
    struct worker *worker;
    struct tls *tls;
    int fd;
    struct ev_timer limit;
    char address[SESSION_ADDRESS_MAX];
};

/* ---- TLS ------------------------------------------------------------------------------------------ */

/* Logs a failed handshake, one of a moment: a line for each would let anybody fill the log, so that the others are for
 * `verbose`. */
static void log_failure(struct guest *g, const char *reason) {
    struct worker *w = g->worker;
    double now = ev_now(w->loop);
    bool often = now - thread_of(w)->guest_logged < LOG_PAUSE_SECONDS;
    if (often) {
        log_verbose("TLS handshake with %s failed: %s", g->address, reason);
    } else {
        thread_of(w)->guest_logged = now;
        log_notice("TLS handshake with %s failed: %s", g->address, reason);
    }
    counter_add(&w->counters.tls_handshakes_failed, 1);
}

static void guest_free(struct guest *g) {
    ev_timer_stop(g->worker->loop, &g->limit);
    list_remove(&g->link);
    memory_free(g);
}

static void guest_leave(struct guest *g) {
    tls_free(g->tls);
    close(g->fd);
    atomic_fetch_sub(&g->worker->shared->clients, 1);
    guest_free(g);
}

static void guest_secured(void *arg, const char *error) {
    struct guest *g = arg;
    if (error) {
        log_failure(g, error);
        guest_leave(g);
        return;
    }
    session_new(g->worker, g->fd, g->tls, g->address);
    guest_free(g);
}

static void guest_late(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct guest *g = timer->data;
    log_failure(g, "it took longer than tls-handshake-timeout");
    guest_leave(g);
}

static void guest_new(struct worker *w, int fd, const char *address) {
    struct guest *g = memory_zalloc(sizeof(*g));
    g->worker = w;
    g->fd = fd;
    memcpy(g->address, address, strlen(address) + 1);
    list_init(&g->link);
    list_append(&thread_of(w)->guests, &g->link);
    ev_timer_init(&g->limit, guest_late, (double)w->shared->options.tls_handshake_ms / 1000., 0.);
    g->limit.data = g;
    ev_timer_start(w->loop, &g->limit);
    g->tls = tls_accept(w->shared->options.tls, w->loop, fd);
    tls_handshake(g->tls, guest_secured, g);
}

/* ---- accepting ------------------------------------------------------------------------------------ */

static void socket_options(const struct worker *w, int fd, int family) {
    if (family == AF_UNIX)
        return;
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    int64_t keepalive = w->shared->options.keepalive_s;
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

/* Stops accepting for a moment where descriptors have run out: the clients wait in the backlog, instead of a loop that
 * spins. */
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

/* Refuses a client too many; it gets the error in plain text alone, as TLS would have to be agreed on first. */
static void refuse_client(struct worker *w, int fd, bool tls) {
    static const char full[] = "-ERR max number of clients reached\r\n";
    atomic_fetch_sub(&w->shared->clients, 1);
    counter_add(&w->counters.clients_refused, 1);
    ssize_t ignored = tls ? 0 : write(fd, full, sizeof(full) - 1);
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
        if ((int64_t)atomic_fetch_add(&w->shared->clients, 1) >= w->shared->options.maxclients) {
            refuse_client(w, fd, l->tls);
            continue;
        }
        char address[SESSION_ADDRESS_MAX];
        session_address_text(&peer, address, sizeof(address));
        socket_options(w, fd, peer.ss_family);
        if (l->tls)
            guest_new(w, fd, address);
        else
            session_new(w, fd, NULL, address);
    }
}

/* ---- life ----------------------------------------------------------------------------------------- */

void accept_init(struct worker *w, const struct worker_socket *sockets, size_t count) {
    list_init(&thread_of(w)->guests);
    ev_timer_init(&thread_of(w)->accept_pause, accept_resume, ACCEPT_PAUSE_SECONDS, 0.);
    thread_of(w)->accept_pause.data = w;
    thread_of(w)->listeners = memory_zalloc((count + 1) * sizeof(*thread_of(w)->listeners));
    thread_of(w)->listener_count = count;
    atomic_fetch_add(&w->shared->accepting, 1);
    for (size_t i = 0; i < count; i++) {
        thread_of(w)->listeners[i].worker = w;
        thread_of(w)->listeners[i].tls = sockets[i].tls;
        thread_of(w)->listeners[i].shared = sockets[i].shared;
        ev_io_init(&thread_of(w)->listeners[i].io, accept_client, sockets[i].fd, EV_READ);
    }
}

void accept_start(struct worker *w) {
    thread_of(w)->accepting = true;
    listen_all(w, true);
}

void accept_close_shared(struct worker *w) {
    size_t kept = 0;
    listen_all(w, false);
    for (size_t i = 0; i < thread_of(w)->listener_count; i++) {
        if (thread_of(w)->listeners[i].shared)
            close(thread_of(w)->listeners[i].io.fd);
        else
            thread_of(w)->listeners[kept++] = thread_of(w)->listeners[i];
    }
    thread_of(w)->listener_count = kept;
    listen_all(w, thread_of(w)->accepting && !ev_is_active(&thread_of(w)->accept_pause));
}

void accept_close(struct worker *w) {
    if (!thread_of(w)->listeners)
        return;
    thread_of(w)->accepting = false;
    listen_all(w, false);
    for (size_t i = 0; i < thread_of(w)->listener_count; i++)
        close(thread_of(w)->listeners[i].io.fd);
    thread_of(w)->listener_count = 0;
    memory_free(thread_of(w)->listeners);
    thread_of(w)->listeners = NULL;
    atomic_fetch_sub(&w->shared->accepting, 1);
}

void accept_drop_guests(struct worker *w) {
    struct list_node *n;
    while ((n = list_first(&thread_of(w)->guests)))
        guest_leave(LIST_ENTRY(n, struct guest, link));
}
