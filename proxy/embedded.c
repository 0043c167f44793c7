/*
 * Private redis-servers, each on a unix socket in a temporary folder, for trials: the embedded upstream, and embedded
 * witnesses. One that ends by itself is started again:
 *
 *      runs ── its pidfd is readable ──> reap, report ── pause ──> start ──> runs
 *
 * The pause doubles each time. After the server has run for a while, the pause is short again.
 */

#include "proxy/private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"

enum { PATH_SIZE = 64, START_TRIES = 500, TRY_NS = 10 * 1000 * 1000, NOT_FOUND = 127 };
static const double PAUSE_LEAST = 0.1, PAUSE_MOST = 10.0, STAYS_SECONDS = 60.0;

struct embedded {
    const struct embedded_role *role;
    struct embedded *next;
    pid_t pid;
    char folder[PATH_SIZE];
    char address[PATH_SIZE + 32]; /* unix:SOCKET */
    const char *socket;           /* in the address */
    struct ev_loop *loop;         /* NULL: the server is not watched */
    struct ev_io end;
    struct ev_timer again;
    int pidfd;
    double started, pause; /* seconds */
    void *arg;
};

/* Starts the server; e->pid is -1 with errno if that fails. */
static void fork_server(struct embedded *e) {
    pid_t parent = getpid();
    e->pid = fork();
    if (e->pid != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    setpgid(0, 0); /* a Ctrl-C must not reach the server: the proxy needs it to finish requests in flight */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    closefrom(STDERR_FILENO + 1);
    execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", e->socket, "--unixsocketperm", "700", "--dir",
           e->folder, "--save", "", "--appendonly", "no", "--daemonize", "no", (char *)NULL);
    _exit(NOT_FOUND);
}

static bool answers(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    char reply[8] = "";
    bool ok = connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && write(fd, "PING\r\n", 6) == 6 &&
              read(fd, reply, sizeof(reply)) > 0 && reply[0] == '+';
    close(fd);
    return ok;
}

const char *embedded_start(struct embedded **servers, const struct embedded_role *role, char *error, size_t size) {
    struct embedded *e = memory_zalloc(sizeof(*e));
    e->role = role;
    snprintf(e->folder, sizeof(e->folder), "/tmp/lockkeeper-redis-XXXXXX");
    if (!mkdtemp(e->folder)) {
        snprintf(error, size, "%s embedded: no temporary folder in /tmp: %s", role->directive, strerror(errno));
        memory_free(e);
        return NULL;
    }
    snprintf(e->address, sizeof(e->address), "unix:%s/redis.sock", e->folder);
    e->socket = e->address + strlen("unix:");
    e->pidfd = -1;
    fork_server(e);
    for (int i = 0; e->pid > 0 && i < START_TRIES; i++) {
        int status;
        if (answers(e->socket)) {
            e->next = *servers;
            *servers = e;
            return e->address;
        }
        if (waitpid(e->pid, &status, WNOHANG) == e->pid) {
            e->pid = 0;
            bool missing = WIFEXITED(status) && WEXITSTATUS(status) == NOT_FOUND;
            snprintf(error, size, "%s embedded: redis-server %s", role->directive,
                     missing ? "was not found; install it (Debian: apt-get install redis-server) or name an upstream, "
                               "for example --upstream standalone 127.0.0.1:6379"
                             : "did not start");
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = TRY_NS}, NULL);
        snprintf(error, size, "%s embedded: redis-server does not answer", role->directive);
    }
    embedded_stop(e);
    return NULL;
}

int embedded_pid(const struct embedded *e) {
    return (int)e->pid;
}

/* ---- watching ---------------------------------------------------------------------------------------- */

static void watch(struct embedded *e) {
    e->started = ev_now(e->loop);
    e->pidfd = (int)syscall(SYS_pidfd_open, e->pid, 0);
    if (e->pidfd < 0) {
        log_warning("%s is not watched: %s", e->role->name, strerror(errno));
        return;
    }
    ev_io_set(&e->end, e->pidfd, EV_READ);
    ev_io_start(e->loop, &e->end);
}

static void unwatch(struct embedded *e) {
    ev_io_stop(e->loop, &e->end);
    ev_timer_stop(e->loop, &e->again);
    if (e->pidfd >= 0)
        close(e->pidfd);
    e->pidfd = -1;
}

static void start_later(struct embedded *e) {
    bool stayed = ev_now(e->loop) - e->started >= STAYS_SECONDS;
    e->pause = stayed || e->pause <= 0. ? PAUSE_LEAST : e->pause * 2.;
    if (e->pause > PAUSE_MOST)
        e->pause = PAUSE_MOST;
    ev_timer_set(&e->again, e->pause, 0.);
    ev_timer_start(e->loop, &e->again);
}

static void on_end(struct ev_loop *loop, struct ev_io *io, int events) {
    struct embedded *e = io->data;
    char how[64];
    int status = 0;
    waitpid(e->pid, &status, 0);
    e->pid = 0;
    if (WIFSIGNALED(status))
        snprintf(how, sizeof(how), "it was killed by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) == NOT_FOUND)
        snprintf(how, sizeof(how), "redis-server is not found");
    else
        snprintf(how, sizeof(how), "it exited with status %d", WEXITSTATUS(status));
    unwatch(e);
    start_later(e);
    e->role->ended(e->arg, how);
}

static void on_again(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct embedded *e = timer->data;
    fork_server(e);
    if (e->pid < 0) {
        e->pid = 0;
        log_warning("%s is not started again: %s", e->role->name, strerror(errno));
        start_later(e);
        return;
    }
    log_notice("%s is started again, pid %d", e->role->name, (int)e->pid);
    watch(e);
}

void embedded_watch(struct embedded *e, struct ev_loop *loop, void *arg) {
    for (; e; e = e->next) {
        e->loop = loop;
        e->arg = arg;
        ev_init(&e->end, on_end);
        ev_init(&e->again, on_again);
        e->end.data = e->again.data = e;
        watch(e);
    }
}

void embedded_unwatch(struct embedded *e) {
    for (; e && e->loop; e = e->next) {
        unwatch(e);
        e->loop = NULL;
    }
}

void embedded_stop(struct embedded *e) {
    while (e) {
        struct embedded *next = e->next;
        if (e->pid > 0) {
            kill(e->pid, SIGKILL); /* at once: it keeps no data, by intention */
            waitpid(e->pid, NULL, 0);
        }
        unlink(e->socket);
        rmdir(e->folder);
        memory_free(e);
        e = next;
    }
}
