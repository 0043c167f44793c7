/* Starts the process that takes over, and waits in the loop until it reports that it accepts clients. */
#include "proxy/successor.h"

#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/text.h"

enum { FIRST = 3, OWN = 4 /* the variables of HANDED_ */ };
static const double READY_SECONDS = 60.0;

struct successor {
    struct ev_loop *loop;
    pid_t pid;
    int pipe;
    struct ev_io io;
    struct ev_timer limit;
    void (*done)(void *arg, pid_t pid);
    bool (*let_go)(void *arg, pid_t pid);
    void *arg;
};

/* ---- the environment ------------------------------------------------------------------------------- */

static bool is_handing(const char *entry) {
    static const char *const names[] = {HANDED_NAMES};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t len = strlen(names[i]);
        if (strncmp(entry, names[i], len) == 0 && entry[len] == '=')
            return true;
    }
    return false;
}

/* Makes the new process's environment: this process's, with `own` first. The caller frees it. */
static char **environment(const struct text own[OWN]) {
    size_t n = 0, at = OWN;
    while (environ[n])
        n++;
    char **all = memory_zalloc((n + OWN + 1) * sizeof(*all));
    for (size_t i = 0; i < OWN; i++)
        all[i] = own[i].data;
    for (size_t i = 0; i < n; i++)
        if (!is_handing(environ[i]))
            all[at++] = environ[i];
    return all;
}

static void describe(const struct successor_orders *o, struct text own[OWN]) {
    text_printf(&own[0], "%s=", HANDED_SOCKETS);
    for (size_t i = 0; i < o->count; i++)
        text_printf(&own[0], "%c", HANDED_LETTERS[2 * (size_t)o->sockets[i].use + (o->sockets[i].managed ? 1 : 0)]);
    text_printf(&own[1], "%s=%s", HANDED_PATH, o->unix_path ? o->unix_path : "");
    text_printf(&own[2], "%s=%s", HANDED_MARK, o->mark ? o->mark : "");
    text_printf(&own[3], "%s=%d", HANDED_BOARD, o->board >= 0 ? FIRST + 1 + (int)o->count : 0);
}

/* ---- starting --------------------------------------------------------------------------------------- */

/* Starts the process with the pipe as descriptor 3, and the sockets and the board after it. They are first copied to
 * higher numbers, since they may have one of these numbers. Returns an errno. */
static int spawn(const struct successor_orders *o, int pipe, char **env, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    size_t count = o->count + 1 + (o->board >= 0);
    int *copies = memory_zalloc(count * sizeof(*copies)), beyond = FIRST + (int)count, failed = 0;
    for (size_t i = 0; i < count; i++) {
        int fd = i == 0 ? pipe : i <= o->count ? o->sockets[i - 1].fd : o->board;
        copies[i] = fcntl(fd, F_DUPFD_CLOEXEC, beyond);
        if (copies[i] < 0)
            failed = errno;
        else
            posix_spawn_file_actions_adddup2(&actions, copies[i], FIRST + (int)i);
    }
    posix_spawn_file_actions_addclosefrom_np(&actions, beyond); /* libraries may open descriptors without O_CLOEXEC */
    if (!failed)
        failed = posix_spawnp(pid, o->argv[0], &actions, &attributes, o->argv, env);
    for (size_t i = 0; i < count; i++)
        if (copies[i] >= 0)
            close(copies[i]);
    memory_free(copies);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failed;
}

static void end_process(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void forget(struct successor *s) {
    ev_io_stop(s->loop, &s->io);
    ev_timer_stop(s->loop, &s->limit);
    close(s->pipe);
    memory_free(s);
}

static void finish(struct successor *s, pid_t pid) {
    void (*done)(void *, pid_t) = s->done;
    void *arg = s->arg;
    forget(s);
    done(arg, pid);
}

static void on_word(struct ev_loop *loop, struct ev_io *io, int events) {
    struct successor *s = io->data;
    char byte;
    ssize_t n = read(s->pipe, &byte, 1);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n == 1 && byte == HANDED_LET_GO) {
        if (s->let_go(s->arg, s->pid)) {
            forget(s);
            return;
        }
        end_process(s->pid);
        finish(s, 0);
        return;
    }
    if (n == 1) {
        finish(s, s->pid);
        return;
    }
    end_process(s->pid);
    log_warning(
        "No take-over: the new process did not start, and this one goes on. The new process has written why not to "
        "standard error, or to its logfile once that was open");
    finish(s, 0);
}

static void on_late(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct successor *s = timer->data;
    end_process(s->pid);
    log_warning("No take-over: the new process was not ready within %.0f s, and this one goes on", READY_SECONDS);
    finish(s, 0);
}

static void watch(struct successor *s) {
    ev_io_init(&s->io, on_word, s->pipe, EV_READ);
    ev_timer_init(&s->limit, on_late, READY_SECONDS, 0.);
    s->io.data = s->limit.data = s;
    ev_io_start(s->loop, &s->io);
    ev_timer_start(s->loop, &s->limit);
}

struct successor *successor_start(struct ev_loop *loop, const struct successor_orders *o) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        log_warning("No take-over: %s", strerror(errno));
        return NULL;
    }
    struct text own[OWN] = {0};
    describe(o, own);
    char **env = environment(own);
    struct successor *s = memory_zalloc(sizeof(*s));
    *s = (struct successor){.loop = loop, .pipe = ends[0], .done = o->done, .let_go = o->let_go, .arg = o->arg};
    int failed = spawn(o, ends[1], env, &s->pid);
    close(ends[1]);
    memory_free(env);
    for (size_t i = 0; i < OWN; i++)
        text_clear(&own[i]);
    if (!failed) {
        watch(s);
        return s;
    }
    log_warning("No take-over: %s can't be started: %s", o->argv[0], strerror(failed));
    close(s->pipe);
    memory_free(s);
    return NULL;
}

void successor_cancel(struct successor *s) {
    if (!s)
        return;
    end_process(s->pid);
    forget(s);
}
