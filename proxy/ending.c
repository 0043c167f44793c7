/* Decides the effect of a signal that ends the process, and notifies workers, systemd and the log. */
#include "proxy/ending.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proxy/base/clock.h"
#include "proxy/base/handed_board.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/lock/engine.h"
#include "proxy/session/commands/commands.h"
#include "proxy/worker/worker.h"

/* ---- systemd: sd_notify without libsystemd, one datagram --------------------------------------------- */

void notify_state(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(a.sun_path))
        return;
    size_t len = strlen(path);
    memcpy(a.sun_path, path, len);
    if (path[0] == '@')
        a.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    ssize_t ignored = sendto(fd, state, strlen(state), 0, (struct sockaddr *)&a,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    (void)ignored;
    close(fd);
}

/* The process ends, and may take so many ms for its clients, whatever the unit's timeout is. */
static void notify_stopping(int64_t ms) {
    enum { MARGIN_MS = 10000 }; /* for the work after the last client has left */
    char state[80];
    snprintf(state, sizeof(state), "STOPPING=1\nEXTEND_TIMEOUT_USEC=%lld", (long long)(ms + MARGIN_MS) * 1000);
    notify_state(state);
}

void notify_reloading(void) {
    char state[80];
    snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)clock_us());
    notify_state(state);
}

/* ---- the end ------------------------------------------------------------------------------------------ */

static void close_admin(struct ending *e) {
    admin_server_close(*e->monitor);
    *e->monitor = NULL;
}

/* Has all threads close their clients, within finish-timeout. */
static void stop_workers(struct ending *e) {
    for (unsigned i = 0; i < e->shared->threads; i++)
        worker_stop(e->shared->workers[i], live_finish_ms(e->live));
}

/* Leaves. If another process has taken the sockets, it also serves the operator's pages from now on. */
static void leave(struct ending *e, bool handed, bool succeeded) {
    int64_t bound_ms = live_shutdown_ms(e->live);
    e->leaving = true;
    e->handed = handed;
    if (succeeded)
        close_admin(e);
    if (!handed)
        notify_stopping(bound_ms);
    log_notice("Clients are served until they leave, for %lld s at most; connected are %llu",
               (long long)bound_ms / 1000, (unsigned long long)atomic_load(&e->shared->clients));
    for (unsigned i = 0; i < e->shared->threads; i++)
        worker_leave(e->shared->workers[i], bound_ms, handed);
}

void ending_stop(struct ending *e, const char *signal) {
    if (e->stopping) {
        log_warning("Stopped at once by a second signal");
        embedded_stop(e->embedded);
        _exit(0);
    }
    e->stopping = true;
    successor_cancel(e->successor);
    e->successor = NULL;
    if (!e->leaving && e->config->reuse_port && listen_has_rival(e->listeners)) {
        log_notice("Received %s, and another process has the port", signal);
        leave(e, false, true);
        return;
    }
    log_notice("Received %s: finishing what is in flight", signal);
    if (!e->handed)
        notify_stopping(live_finish_ms(e->live));
    stop_workers(e);
}

void ending_leave(struct ending *e, const char *signal) {
    if (e->leaving || e->stopping)
        return;
    successor_cancel(e->successor);
    e->successor = NULL;
    log_notice("Received %s: no new clients", signal);
    leave(e, false, e->config->reuse_port && listen_has_rival(e->listeners));
}

/* ---- take-over -------------------------------------------------------------------------------------- */

/* Tells systemd the pid of its new main process, or (pid 0) that nothing has changed. */
static void tell_manager(pid_t pid) {
    struct text state;
    text_init(&state);
    if (pid > 0)
        text_printf(&state, "MAINPID=%d\n", (int)pid);
    text_printf(&state, "READY=1");
    notify_state(state.data);
    text_clear(&state);
}

/* How long another Redis must give out no lock: the longest lease here, and a little for what is under way. */
static int64_t longest_ms(const struct ending *e) {
    enum { SLACK_MS = 1000 };
    int64_t ms = engine_longest_ms(e->shared->engine, clock_even_ms());
    return ms > 0 && ms < INT64_MAX ? ms + SLACK_MS : ms;
}

static bool let_go(void *arg, pid_t pid) {
    struct ending *e = arg;
    const char *why = !e->board                                  ? "it could not be told when this process has ended"
                      : handed_board_read(e->shared->before).pid ? "an earlier process has not ended yet"
                      : longest_ms(e) == INT64_MAX               ? "a lease here has no end"
                                                                 : NULL;
    if (why) {
        log_warning("No take-over: the upstream of the new process is another Redis, and %s, and this process goes on",
                    why);
        return false;
    }
    log_warning("Process %d takes over at another Redis (take-over switch): all clients are let go", (int)pid);
    e->successor = NULL;
    e->leaving = e->stopping = e->handed = true;
    atomic_store(&e->shared->lets_go, true);
    ending_tell(e);
    tell_manager(pid);
    close_admin(e);
    stop_workers(e);
    return true;
}

static void taken_over(void *arg, pid_t pid) {
    struct ending *e = arg;
    e->successor = NULL;
    tell_manager(pid);
    if (pid == 0)
        return;
    log_notice("Process %d has taken over", (int)pid);
    leave(e, true, true);
}

/* The sockets for the new process. */
static struct handed_socket *offer(const struct ending *e, size_t *count) {
    struct handed_socket *list = listen_offer(e->listeners, count);
    if (!*e->monitor)
        return list;
    list = memory_realloc(list, (*count + 1) * sizeof(*list));
    list[(*count)++] = (struct handed_socket){.fd = admin_server_socket(*e->monitor), .use = SOCKET_ADMIN};
    return list;
}

/* Starts the new process. `mark` is what it has to find in its Redis; NULL: nothing. */
static void start_successor(struct ending *e, const char *mark) {
    if (!e->board)
        e->board = handed_board_new(&e->board_file);
    ending_tell(e);
    struct successor_orders orders = {.argv = e->argv,
                                      .mark = mark,
                                      .board = e->board ? e->board_file : -1,
                                      .unix_path = e->listeners->unix_path,
                                      .done = taken_over,
                                      .let_go = let_go,
                                      .arg = e};
    struct handed_socket *sockets = offer(e, &orders.count);
    orders.sockets = sockets;
    e->successor = successor_start(worker_loop(e->shared->workers[0]), &orders);
    memory_free(sockets);
    if (!e->successor)
        notify_state("READY=1");
}

/* The mark was written to Redis, or `error` says why not. */
static void marked(void *arg, const char *error) {
    struct ending *e = arg;
    e->marking = false;
    if (e->leaving || e->stopping)
        return;
    if (!error || lock_space_forbidden(error)) {
        if (error)
            log_notice("The proxy's user may not mark its Redis (%s): whether the new process serves the same Redis is "
                       "not known",
                       error);
        start_successor(e, error ? NULL : e->shared->process_id);
        return;
    }
    log_warning(
        "No take-over: Redis does not take the mark by which the new process knows it, and this process goes on: "
        "%s",
        error);
    notify_state("READY=1");
}

void ending_take_over(struct ending *e, const char *signal) {
    if (e->leaving || e->stopping || e->successor || e->marking)
        return;
    if (e->embedded) {
        log_warning("No take-over: the embedded servers end with this process, and their data is lost");
        return;
    }
    if (pause_left_ms(e->shared->workers[0]) > 0) {
        log_warning("No take-over during PROXY PAUSE: the new process would not pause");
        return;
    }
    log_notice("Received %s: starting %s again to take over", signal, e->argv[0]);
    notify_reloading();
    e->marking = true;
    lock_space_mark(e->shared->workers[0], e->shared->process_id, marked, e);
}

void ending_tell(const struct ending *e) {
    if (!e->board)
        return;
    struct lock_stats stats;
    struct handed_counts before = handed_board_read(e->shared->before);
    engine_stats(e->shared->engine, &stats);
    bool goes = atomic_load(&e->shared->lets_go);
    struct handed_counts now = {.pid = getpid(),
                                .longest_ms = goes ? longest_ms(e) : 0,
                                .clients = (int64_t)atomic_load(&e->shared->clients) + before.clients,
                                .leases = (int64_t)stats.leases + before.leases};
    handed_board_write(e->board, &now);
}

void ending_tell_last(const struct ending *e) {
    struct handed_counts none = {0};
    if (e->board && atomic_load(&e->shared->lets_go))
        none.longest_ms = longest_ms(e);
    if (e->board)
        handed_board_write(e->board, &none);
}
