/*
 * The passwords of the proxy's own users at Redis, Sentinels and witnesses: upstream-password, the content of
 * upstream-password-file, or the output of upstream-password-command, and the same for sentinel- and witness-. A thread
 * asks files and commands again: after upstream-password-refresh, at a reload, after a node's WRONGPASS. If that fails,
 * the password in use stays.
 */

#include "proxy/private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proxy/base/clock.h"
#include "proxy/base/log.h"
#include "proxy/base/mutex.h"
#include "proxy/upstream/upstream.h"

enum {
    PASSWORD_MAX = 16 * 1024, /* tokens of cloud providers have some kilobytes */
    COMMAND_MS = 30 * 1000,
    SLICE_MS = 100,         /* how soon a command notices that the proxy stops */
    REFUSED_PAUSE_MS = 2000 /* a node's refusals make the proxy ask no more often */
};

static const char *const SERVERS[CONFIG_LOGINS] = {"Redis", "Sentinels", "witnesses"};

static struct {
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t change;
    bool runs, stop;
    const struct config *config;
    int64_t asked_ms, due_ms;
} watch = {.mutex = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

/* ---- file and command ---- */

/* Removes the end of the last line. False: these bytes are no password. */
static bool trim(char *bytes, size_t n, char *why, size_t size) {
    n -= n > 0 && bytes[n - 1] == '\n';
    n -= n > 0 && bytes[n - 1] == '\r';
    bytes[n] = '\0';
    bool right = n > 0 && n < PASSWORD_MAX && strlen(bytes) == n && !strpbrk(bytes, "\r\n");
    if (!right)
        snprintf(why, size, "expected a password of one line, at most %d bytes", PASSWORD_MAX - 1);
    return right;
}

static bool read_file(const char *path, char *bytes, char *why, size_t size) {
    size_t len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? 1 : -1;
    while (n > 0 && len < PASSWORD_MAX && (n = read(fd, bytes + len, PASSWORD_MAX - len)) > 0)
        len += (size_t)n;
    if (n < 0)
        snprintf(why, size, "%s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return n >= 0 && trim(bytes, len, why, size);
}

static void run_command(const char *command, int out, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    closefrom(STDERR_FILENO + 1);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static bool stopping(void) {
    MUTEX_GUARD(&watch.mutex);
    return watch.stop;
}

/* Reads what the command prints, until it closes its output. False: it takes too long, or the proxy stops. */
static bool read_output(int fd, char *bytes, size_t *len) {
    int64_t until_ms = clock_even_ms() + COMMAND_MS;
    ssize_t n = 1;
    while (n > 0 && *len < PASSWORD_MAX) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (clock_even_ms() > until_ms || stopping())
            return false;
        if (poll(&p, 1, SLICE_MS) > 0 && (n = read(fd, bytes + *len, PASSWORD_MAX - *len)) > 0)
            *len += (size_t)n;
    }
    return true;
}

static bool read_command(const char *command, char *bytes, char *why, size_t size) {
    int ends[2], status = 0;
    size_t len = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        snprintf(why, size, "%s", strerror(errno));
        return false;
    }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        run_command(command, ends[1], parent);
    close(ends[1]);
    bool ended = pid > 0 && read_output(ends[0], bytes, &len);
    close(ends[0]);
    if (pid > 0 && !ended)
        kill(-pid, SIGKILL);
    if (pid > 0)
        waitpid(pid, &status, 0);
    if (!ended)
        snprintf(why, size, pid > 0 ? "it did not end within 30 s" : "no process could be started");
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        snprintf(why, size, WIFEXITED(status) ? "it exited with status %d" : "it was killed by signal %d",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    else
        return trim(bytes, len, why, size);
    return false;
}

/* A node has refused the login: the file or the command may have a newer password. */
static void refused(void *arg) {
    pthread_mutex_lock(&watch.mutex);
    int64_t soon_ms = watch.asked_ms + REFUSED_PAUSE_MS;
    if (watch.due_ms > soon_ms) {
        watch.due_ms = soon_ms;
        pthread_cond_signal(&watch.change);
    }
    pthread_mutex_unlock(&watch.mutex);
}

/* Asks for one of the passwords, and sets the login. */
static bool ask(const struct config *c, size_t i, struct config_errors *errors) {
    static const enum upstream_own AT[CONFIG_LOGINS] = {UPSTREAM_OWN_NODES, UPSTREAM_OWN_SENTINELS,
                                                        UPSTREAM_OWN_WITNESSES};
    struct config_own_login own = config_own_login(c, i);
    const char *file = own.login->password_file, *command = own.login->password_command;
    char bytes[PASSWORD_MAX + 1], why[160], directive[40];
    if (!file && !command) {
        upstream_own_login(AT[i], own.login->user, own.login->password);
        return true;
    }
    snprintf(directive, sizeof(directive), "%s-password-%s", own.name, file ? "file" : "command");
    bool read = file ? read_file(file, bytes, why, sizeof(why)) : read_command(command, bytes, why, sizeof(why));
    if (read && upstream_own_login(AT[i], own.login->user, bytes))
        log_notice("The proxy's password for %s was read from %s", SERVERS[i], file ? file : directive);
    explicit_bzero(bytes, sizeof(bytes));
    if (!read && file)
        config_refuse(errors, c, directive, "%s '%s': %s", directive, file, why);
    else if (!read)
        config_refuse(errors, c, directive, "%s: %s", directive, why);
    return read;
}

bool own_password_ask(const struct config *c, bool reload, struct config_errors *errors) {
    bool read = true;
    if (!reload)
        upstream_own_login_hear(refused, NULL);
    for (size_t i = 0; i < CONFIG_LOGINS; i++)
        read = ((reload && config_own_login(c, i).login->password_command) || ask(c, i, errors)) && read;
    return read;
}

/* ---- the thread ---- */

static void *run(void *arg) {
    pthread_mutex_lock(&watch.mutex);
    while (!watch.stop) {
        int64_t left_ms = watch.due_ms - clock_even_ms();
        if (left_ms > 0) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            int64_t ns = until.tv_nsec + left_ms % 1000 * 1000000;
            until.tv_sec += left_ms / 1000 + ns / 1000000000;
            until.tv_nsec = ns % 1000000000;
            pthread_cond_timedwait(&watch.change, &watch.mutex, &until);
            continue;
        }
        const struct config *c = config_ref(watch.config);
        watch.asked_ms = clock_even_ms();
        watch.due_ms = watch.asked_ms + c->upstream_password_refresh_ms;
        pthread_mutex_unlock(&watch.mutex);
        for (size_t i = 0; i < CONFIG_LOGINS; i++) {
            const struct config_login *l = config_own_login(c, i).login;
            struct config_errors errors = {0};
            if ((l->password_file || l->password_command) && !ask(c, i, &errors) && !stopping())
                log_warning("The proxy's password for %s stays as it is: %s", SERVERS[i], errors.lines.data);
            config_errors_clear(&errors);
        }
        config_unref(c);
        pthread_mutex_lock(&watch.mutex);
    }
    pthread_mutex_unlock(&watch.mutex);
    return NULL;
}

void own_password_watch(const struct config *config, bool reloaded) {
    bool commands = false, wanted = config_logs_in(config); /* a reload may name a file or a command */
    for (size_t i = 0; i < CONFIG_LOGINS; i++) {
        const struct config_login *l = config_own_login(config, i).login;
        commands = commands || l->password_command;
        wanted = wanted || l->password_file || l->password_command;
    }
    pthread_mutex_lock(&watch.mutex);
    if (watch.runs || wanted) {
        config_unref(watch.config);
        watch.config = config_ref(config);
        watch.due_ms = reloaded && commands ? 0 : clock_even_ms() + config->upstream_password_refresh_ms;
        watch.asked_ms = reloaded ? watch.asked_ms : clock_even_ms();
        if (!watch.runs) {
            sigset_t all, old;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &old);
            watch.runs = pthread_create(&watch.thread, NULL, run, NULL) == 0;
            pthread_sigmask(SIG_SETMASK, &old, NULL);
            if (!watch.runs)
                log_warning("The proxy's passwords are not read again: the system gives no more threads");
        }
        pthread_cond_signal(&watch.change);
    }
    pthread_mutex_unlock(&watch.mutex);
}

void own_password_end(void) {
    pthread_mutex_lock(&watch.mutex);
    watch.stop = true;
    pthread_cond_signal(&watch.change);
    pthread_mutex_unlock(&watch.mutex);
    if (watch.runs)
        pthread_join(watch.thread, NULL);
    config_unref(watch.config);
}
