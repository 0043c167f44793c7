/* Reads which sockets were passed to this process, and finds those that the configuration needs. */
#include "proxy/inherit.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "proxy/base/handed_board.h"
#include "proxy/base/memory.h"

enum { FIRST = 3, COUNT_MAX = 4096 };

static void add(struct inherited *in, int fd, enum socket_use use, bool managed) {
    int flags = fcntl(fd, F_GETFL), listens = 0;
    socklen_t len = sizeof(listens);
    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) != 0 || !listens)
        return; /* not a listening socket, so it was not meant for the proxy */
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    in->sockets[in->count++] = (struct handed_socket){.fd = fd, .use = use, .managed = managed};
    in->managed |= managed;
}

static size_t number_of(const char *text) {
    long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n < COUNT_MAX ? (size_t)n : 0;
}

/* Reads systemd's sockets: a socket named "tls" (FileDescriptorName=) speaks TLS. */
static void read_managed(struct inherited *in) {
    const char *pid = getenv("LISTEN_PID"), *names = getenv("LISTEN_FDNAMES");
    size_t count = pid && strtol(pid, NULL, 10) == (long)getpid() ? number_of(getenv("LISTEN_FDS")) : 0;
    in->sockets = memory_zalloc((count + 1) * sizeof(*in->sockets));
    for (size_t i = 0; i < count; i++) {
        size_t len = names ? strcspn(names, ":") : 0;
        bool tls = len == 3 && memcmp(names, "tls", 3) == 0;
        add(in, FIRST + (int)i, tls ? SOCKET_TLS : SOCKET_PLAIN, true);
        names = names && names[len] ? names + len + 1 : NULL;
    }
}

static void read_handed(struct inherited *in, const char *letters) {
    static const char known[] = HANDED_LETTERS;
    const char *path = getenv(HANDED_PATH), *mark = getenv(HANDED_MARK), *board = getenv(HANDED_BOARD);
    size_t count = strlen(letters);
    in->path = path && path[0] ? memory_strdup(path) : NULL;
    in->mark = mark && mark[0] ? memory_strdup(mark) : NULL;
    in->board =
        board && strtol(board, NULL, 10) == FIRST + 1 + (long)count ? handed_board_open(FIRST + 1 + (int)count) : NULL;
    in->predecessor = FIRST;
    fcntl(FIRST, F_SETFD, FD_CLOEXEC);
    in->sockets = memory_zalloc((count + 1) * sizeof(*in->sockets));
    for (size_t i = 0; i < count; i++) {
        const char *at = strchr(known, letters[i]);
        size_t index = at ? (size_t)(at - known) : 0;
        add(in, FIRST + 1 + (int)i, (enum socket_use)(index / 2), index % 2 == 1);
    }
}

void inherit_read(struct inherited *in) {
    const char *letters = getenv(HANDED_SOCKETS);
    *in = (struct inherited){.predecessor = -1};
    if (letters)
        read_handed(in, letters);
    else
        read_managed(in);
    static const char *const names[] = {HANDED_NAMES};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b) {
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;
        return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    if (a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;
        return x->sin6_port == y->sin6_port && x->sin6_scope_id == y->sin6_scope_id &&
               memcmp(&x->sin6_addr, &y->sin6_addr, sizeof(x->sin6_addr)) == 0;
    }
    return false;
}

int inherit_take(struct inherited *in, const struct sockaddr *address, enum socket_use use) {
    for (size_t i = 0; i < in->count; i++) {
        struct handed_socket *s = &in->sockets[i];
        struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
        socklen_t len = sizeof(own);
        if (s->taken || s->managed || s->use != use || getsockname(s->fd, (struct sockaddr *)&own, &len) != 0 ||
            !same_address((struct sockaddr *)&own, address))
            continue;
        s->taken = true;
        return s->fd;
    }
    return -1;
}

static struct handed_socket *unix_socket(const struct inherited *in) {
    for (size_t i = 0; i < in->count; i++) {
        struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
        socklen_t len = sizeof(own);
        struct handed_socket *s = &in->sockets[i];
        if (!s->managed && getsockname(s->fd, (struct sockaddr *)&own, &len) == 0 && own.ss_family == AF_UNIX)
            return s;
    }
    return NULL;
}

int inherit_take_unix(struct inherited *in, const char *path) {
    struct handed_socket *s = in->path && strcmp(in->path, path) == 0 ? unix_socket(in) : NULL;
    if (!s || s->taken)
        return -1;
    s->taken = true;
    return s->fd;
}

void inherit_close_rest(struct inherited *in) {
    const struct handed_socket *file = unix_socket(in);
    if (in->path && !(file && file->taken))
        unlink(in->path);
    for (size_t i = 0; i < in->count; i++)
        if (!in->sockets[i].taken)
            close(in->sockets[i].fd);
}

void inherit_tell(struct inherited *in, char word) {
    if (in->predecessor < 0)
        return;
    ssize_t ignored = write(in->predecessor, &word, 1);
    (void)ignored;
    close(in->predecessor);
    in->predecessor = -1;
}

void inherit_free(struct inherited *in) {
    memory_free(in->sockets);
    memory_free(in->path);
    memory_free(in->mark);
}
