/*
 * How the process ends.
 *
 *      SIGTERM, SIGINT   stop: finish what is in flight, for finish-timeout. Exception: with reuse-port, if
 *                        another process listens on the port, leave. A second signal: exit at once
 *      SIGQUIT           leave: no new clients; connected clients are served until they go, for shutdown-timeout
 *      SIGUSR2           take-over: start the program anew on the same sockets; when it accepts clients, leave
 *
 * SIGTERM turns a leave into a stop. All of this happens in the first worker's loop. The process that takes over is the
 * same program with the same command line, which is read again:
 *
 *      this process                                     the new one
 *      SIGUSR2 ── sockets, a pipe ────────────────────> reads its configuration, connects, accepts
 *      leave <───────────────────────────── a byte ──── inherit_tell; if none comes in time, nothing changes
 */

#include "proxy/private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proxy/base/clock.h"
#include "proxy/base/handed_board.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/lock/engine.h"
#include "proxy/session/commands/commands.h"

enum { FIRST = 3 /* descriptor of the new process */, OWN = 4 /* the variables of HANDED_ */ };
static const double READY_SECONDS = 60.0;

/* ---- systemd: sd_notify without libsystemd, one datagram --------------------------------------------- */

void notify_state(const char *format, ...) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char state[80];
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(a.sun_path))
        return;
    size_t len = strlen(path);
    memcpy(a.sun_path, path, len);
    if (path[0] == '@')
        a.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(state, sizeof(state), format, args);
    va_end(args);
    ssize_t ignored = sendto(fd, state, strlen(state), 0, (struct sockaddr *)&a,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    (void)ignored;
    close(fd);
}

/* The process ends, and may take so many ms for its clients, whatever the unit's timeout is. */
static void notify_stopping(int64_t ms) {
    enum { MARGIN_MS = 10000 }; /* for the work after the last client has left */
    notify_state("STOPPING=1\nEXTEND_TIMEOUT_USEC=%lld", (long long)(ms + MARGIN_MS) * 1000);
}

void notify_reloading(void) {
    notify_state("RELOADING=1\nMONOTONIC_USEC=%lld", (long long)clock_us());
}

/* ---- the end ------------------------------------------------------------------------------------------ */

/* The configuration in force in this thread. */
static const struct config *config_of(const struct ending *e) {
    return e->shared->workers[0]->config;
}

static int64_t finish_ms(const struct ending *e) {
    const struct config *c = config_of(e);
    return (c->finish_timeout_s < c->shutdown_timeout_s ? c->finish_timeout_s : c->shutdown_timeout_s) * 1000;
}

/* Has all threads close their clients, within finish-timeout. */
static void stop_workers(struct ending *e) {
    for (unsigned i = 0; i < e->shared->threads; i++)
        worker_stop(e->shared->workers[i], finish_ms(e));
}

/* Leaves. If another process has taken the sockets, it also serves the operator's pages from now on. */
static void leave(struct ending *e, bool handed, bool succeeded) {
    int64_t bound_ms = config_of(e)->shutdown_timeout_s * 1000;
    e->leaving = true;
    e->handed = handed;
    if (succeeded)
        e->close_pages(e->arg);
    if (!handed)
        notify_stopping(bound_ms);
    log_notice("Clients are served until they leave, for %lld s at most; connected are %llu",
               (long long)bound_ms / 1000, (unsigned long long)atomic_load(&e->shared->clients));
    for (unsigned i = 0; i < e->shared->threads; i++)
        worker_leave(e->shared->workers[i], bound_ms, handed);
}

/* Stops waiting for the new process. */
static void forget_successor(struct ending *e) {
    ev_io_stop(worker_loop(e->shared->workers[0]), &e->word);
    ev_timer_stop(worker_loop(e->shared->workers[0]), &e->late);
    close(e->pipe);
    e->successor = 0;
}

/* Ends the new process, if there is one. */
static void cancel_successor(struct ending *e) {
    if (e->successor == 0)
        return;
    kill(e->successor, SIGKILL);
    waitpid(e->successor, NULL, 0);
    forget_successor(e);
}

static void stop(struct ending *e, const char *signal) {
    if (e->stopping) {
        log_warning("Stopped at once by a second signal");
        embedded_stop(e->embedded);
        _exit(0);
    }
    e->stopping = true;
    cancel_successor(e);
    if (!e->leaving && config_of(e)->reuse_port && listen_has_rival(e->listeners)) {
        log_notice("Received %s, and another process has the port", signal);
        leave(e, false, true);
        return;
    }
    log_notice("Received %s: finishing what is in flight", signal);
    if (!e->handed)
        notify_stopping(finish_ms(e));
    stop_workers(e);
}

/* ---- take-over -------------------------------------------------------------------------------------- */

/* How long another Redis must give out no lock: the longest lease here, and a little for what is under way. */
static int64_t longest_ms(const struct ending *e) {
    enum { SLACK_MS = 1000 };
    int64_t ms = engine_longest_ms(e->shared->engine, clock_even_ms());
    return ms > 0 && ms < INT64_MAX ? ms + SLACK_MS : ms;
}

/* Whether the new process may take over at another Redis; this process then ends. */
static bool let_go(struct ending *e) {
    const char *why = !e->board                                  ? "it could not be told when this process has ended"
                      : handed_board_read(e->shared->before).pid ? "an earlier process has not ended yet"
                      : longest_ms(e) == INT64_MAX               ? "a lease here has no end"
                                                                 : NULL;
    if (why) {
        log_warning("No take-over: the upstream of the new process is another Redis, and %s, and this process goes on",
                    why);
        return false;
    }
    pid_t pid = e->successor;
    log_warning("Process %d takes over at another Redis (take-over switch): all clients are let go", (int)pid);
    forget_successor(e);
    e->leaving = e->stopping = e->handed = true;
    atomic_store(&e->shared->lets_go, true);
    ending_tell(e, false);
    notify_state("MAINPID=%d\nREADY=1", (int)pid);
    e->close_pages(e->arg);
    stop_workers(e);
    return true;
}

static void on_word(struct ev_loop *loop, struct ev_io *io, int events) {
    struct ending *e = io->data;
    char byte;
    ssize_t n = read(e->pipe, &byte, 1);
    if ((n < 0 && (errno == EAGAIN || errno == EINTR)) || (n == 1 && byte == HANDED_LET_GO && let_go(e)))
        return;
    if (n == 1 && byte != HANDED_LET_GO) {
        pid_t pid = e->successor;
        forget_successor(e);
        notify_state("MAINPID=%d\nREADY=1", (int)pid);
        log_notice("Process %d has taken over", (int)pid);
        leave(e, true, true);
        return;
    }
    cancel_successor(e);
    if (n != 1)
        log_warning("No take-over: the new process did not start, and this one goes on. The new process has written "
                    "why not to standard error, or to its logfile once that was open");
    notify_state("READY=1");
}

static void on_late(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct ending *e = timer->data;
    cancel_successor(e);
    log_warning("No take-over: the new process was not ready within %.0f s, and this one goes on", READY_SECONDS);
    notify_state("READY=1");
}

/* Starts the program with these descriptors as 3, 4, ..., and with `own` in front of this process's environment. The
 * descriptors are first copied to higher numbers, since they may have such a number. Returns an errno. */
static int spawn(char **argv, const struct text own[OWN], const int *fds, size_t count, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    size_t n = 0;
    while (environ[n])
        n++;
    char **env = memory_zalloc((n + OWN + 1) * sizeof(*env));
    for (size_t i = 0; i < OWN; i++)
        env[i] = own[i].data;
    memcpy(env + OWN, environ, n * sizeof(*env));
    int *copies = memory_zalloc(count * sizeof(*copies)), beyond = FIRST + (int)count, failed = 0;
    for (size_t i = 0; i < count; i++) {
        copies[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, beyond);
        if (copies[i] < 0)
            failed = errno;
        else
            posix_spawn_file_actions_adddup2(&actions, copies[i], FIRST + (int)i);
    }
    posix_spawn_file_actions_addclosefrom_np(&actions, beyond); /* libraries may open descriptors without O_CLOEXEC */
    if (!failed)
        failed = posix_spawnp(pid, argv[0], &actions, &attributes, argv, env);
    for (size_t i = 0; i < count; i++)
        if (copies[i] >= 0)
            close(copies[i]);
    MEMORY_FREE_ALL(copies, env);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failed;
}

/* Starts the new process. `mark` is what it has to find in its Redis; NULL: nothing. False: the log has the reason. */
static bool start_successor(struct ending *e, const char *mark) {
    struct ev_loop *loop = worker_loop(e->shared->workers[0]);
    const struct listen_set *set = e->listeners;
    size_t count = 0;
    int ends[2];
    pid_t pid = 0;
    if (!e->board)
        e->board = handed_board_new(&e->board_file);
    ending_tell(e, false);
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        log_warning("No take-over: %s", strerror(errno));
        return false;
    }
    struct text own[OWN] = {0};
    int *fds = memory_alloc((set->count + 3) * sizeof(*fds));
    fds[0] = ends[1];
    text_printf(&own[0], "%s=", HANDED_SOCKETS);
    for (size_t i = 0; i < set->count; i++) {
        const struct worker_socket *w = &set->sockets[i];
        if (w->copy)
            continue;
        text_printf(&own[0], "%c", HANDED_LETTERS[2 * (size_t)(w->tls ? SOCKET_TLS : SOCKET_PLAIN) + w->shared]);
        fds[++count] = w->fd;
    }
    if (set->admin_fd >= 0) {
        text_printf(&own[0], "%c", HANDED_LETTERS[2 * (size_t)SOCKET_ADMIN]);
        fds[++count] = set->admin_fd;
    }
    fds[++count] = e->board_file;
    text_printf(&own[1], "%s=%s", HANDED_PATH, set->unix_path ? set->unix_path : "");
    text_printf(&own[2], "%s=%s", HANDED_MARK, mark ? mark : "");
    text_printf(&own[3], "%s=%d", HANDED_BOARD, e->board ? FIRST + (int)count : 0);
    int failed = spawn(e->argv, own, fds, count + (e->board != NULL), &pid);
    close(ends[1]);
    memory_free(fds);
    for (size_t i = 0; i < OWN; i++)
        text_clear(&own[i]);
    if (failed) {
        log_warning("No take-over: %s can't be started: %s", e->argv[0], strerror(failed));
        close(ends[0]);
        return false;
    }
    e->successor = pid;
    e->pipe = ends[0];
    ev_io_init(&e->word, on_word, e->pipe, EV_READ);
    ev_timer_init(&e->late, on_late, READY_SECONDS, 0.);
    e->word.data = e->late.data = e;
    ev_io_start(loop, &e->word);
    ev_timer_start(loop, &e->late);
    return true;
}

/* The mark was written to Redis, or `error` says why not. */
static void marked(void *arg, const char *error) {
    struct ending *e = arg;
    bool known = !error, forbidden = error && lock_space_forbidden(error);
    e->marking = false;
    if (e->leaving || e->stopping)
        return;
    if (forbidden)
        log_notice("The proxy's user may not mark its Redis (%s): whether the new process serves the same Redis is "
                   "not known",
                   error);
    else if (!known)
        log_warning("No take-over: Redis does not take the mark by which the new process knows it, and this process "
                    "goes on: %s",
                    error);
    if ((!known && !forbidden) || !start_successor(e, known ? e->shared->process_id : NULL))
        notify_state("READY=1");
}

static void take_over(struct ending *e, const char *signal) {
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

void ending_signal(struct ending *e, int number) {
    if (number == SIGUSR2) {
        take_over(e, "SIGUSR2");
    } else if (number != SIGQUIT) {
        stop(e, number == SIGTERM ? "SIGTERM" : "SIGINT");
    } else if (!e->leaving && !e->stopping) {
        cancel_successor(e);
        log_notice("Received SIGQUIT: no new clients");
        leave(e, false, config_of(e)->reuse_port && listen_has_rival(e->listeners));
    }
}

void ending_tell(const struct ending *e, bool last) {
    if (!e->board)
        return;
    struct lock_stats stats;
    struct handed_counts before = handed_board_read(e->shared->before);
    struct handed_counts now = {.longest_ms = atomic_load(&e->shared->lets_go) ? longest_ms(e) : 0};
    if (!last) {
        engine_stats(e->shared->engine, &stats);
        now.pid = getpid();
        now.clients = (int64_t)atomic_load(&e->shared->clients) + before.clients;
        now.leases = (int64_t)stats.leases + before.leases;
    }
    handed_board_write(e->board, &now);
}
