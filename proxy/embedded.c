/* Starts and stops the private redis-server of `upstream embedded`. */
#include "proxy/embedded.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proxy/base/memory.h"

enum { PATH_SIZE = 64, START_TRIES = 500, TRY_NS = 10 * 1000 * 1000 };

struct embedded {
    pid_t pid;
    char folder[PATH_SIZE];
    char socket[PATH_SIZE + 16];
    char address[PATH_SIZE + 32];
};

static void run_server(const struct embedded *e, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    setpgid(0, 0); /* Ctrl-C is for the proxy, which still needs it to finish what is in flight */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", e->socket, "--unixsocketperm", "700", "--dir",
           e->folder, "--save", "", "--appendonly", "no", "--daemonize", "no", (char *)NULL);
    _exit(127);
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

static void remove_folder(const struct embedded *e) {
    unlink(e->socket);
    rmdir(e->folder);
}

struct embedded *embedded_start(char *error, size_t error_size) {
    struct embedded *e = memory_zalloc(sizeof(*e));
    snprintf(e->folder, sizeof(e->folder), "/tmp/lockkeeper-redis-XXXXXX");
    if (!mkdtemp(e->folder)) {
        snprintf(error, error_size, "upstream embedded: no temporary folder in /tmp: %s", strerror(errno));
        memory_free(e);
        return NULL;
    }
    snprintf(e->socket, sizeof(e->socket), "%s/redis.sock", e->folder);
    snprintf(e->address, sizeof(e->address), "unix:%s", e->socket);
    pid_t parent = getpid();
    e->pid = fork();
    if (e->pid == 0)
        run_server(e, parent);
    for (int i = 0; e->pid > 0 && i < START_TRIES; i++) {
        int status;
        if (answers(e->socket))
            return e;
        if (waitpid(e->pid, &status, WNOHANG) == e->pid) {
            e->pid = 0;
            bool missing = WIFEXITED(status) && WEXITSTATUS(status) == 127;
            snprintf(error, error_size, "upstream embedded: redis-server %s",
                     missing ? "was not found; install it (Debian: apt-get install redis-server) or name an upstream, "
                               "for example --upstream standalone 127.0.0.1:6379"
                             : "did not start");
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = TRY_NS}, NULL);
        snprintf(error, error_size, "upstream embedded: redis-server does not answer");
    }
    embedded_stop(e);
    return NULL;
}

const char *embedded_address(const struct embedded *e) {
    return e->address;
}

void embedded_stop(struct embedded *e) {
    if (!e)
        return;
    if (e->pid > 0) {
        kill(e->pid, SIGKILL); /* nothing is kept, by intention */
        waitpid(e->pid, NULL, 0);
    }
    remove_folder(e);
    memory_free(e);
}
