/* Opens the listening sockets: bind x port, bind x tls-port, and unixsocket. */
#include "proxy/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proxy/base/memory.h"

/* Whether an address may be missing on this machine: a leading '-' says so, as in Redis. */
static bool optional_address(const char **address) {
    bool optional = (*address)[0] == '-';
    if (optional)
        (*address)++;
    return optional;
}

static int tcp_socket(const struct addrinfo *a, bool reuse_port, int backlog) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    if (reuse_port)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, backlog) == 0)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static struct addrinfo *resolve(const char *address, int64_t port) {
    char service[24];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    snprintf(service, sizeof(service), "%lld", (long long)port);
    bool any4 = strcmp(address, "*") == 0, any6 = strcmp(address, "::*") == 0;
    if (any4 || any6)
        hints.ai_family = any4 ? AF_INET : AF_INET6;
    if (getaddrinfo(any4 || any6 ? NULL : address, service, &hints, &list) != 0)
        return NULL;
    return list;
}

int listen_address(const char *address, int64_t port, bool reuse_port, int backlog) {
    struct addrinfo *a = resolve(address, port);
    errno = a ? errno : 0;
    int fd = a ? tcp_socket(a, reuse_port, backlog) : -1;
    int saved = errno;
    if (a)
        freeaddrinfo(a);
    errno = saved;
    return fd;
}

/* Opens an address for all threads, who have `most` places each. Returns 1 opened, 0 skipped (optional and missing), -1
 * failed. */
static int open_address(struct listen_set *set, const struct config *c, const char *address, bool tls, size_t most,
                        size_t at, char *error, size_t size) {
    bool optional = optional_address(&address);
    int64_t port = tls ? c->tls_port : c->port;
    struct addrinfo *a = resolve(address, port);
    if (!a) {
        snprintf(error, size, "bind '%s': expected an address of this machine", address);
        return optional ? 0 : -1;
    }
    int result = 1;
    bool reuse_port = c->reuse_port || set->threads > 1;
    if (reuse_port && !c->reuse_port) { /* without it first: a port that another process has is an error here too */
        int probe = tcp_socket(a, false, 1);
        if (probe < 0)
            result = -1;
        else
            close(probe);
    }
    for (size_t t = 0; t < set->threads && result > 0; t++) {
        int fd = tcp_socket(a, reuse_port, (int)c->tcp_backlog);
        if (fd < 0)
            result = -1;
        set->sockets[1 + t * most + at] = (struct worker_socket){.fd = fd, .tls = tls};
    }
    if (result < 0 && optional && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT || errno == EPROTONOSUPPORT))
        result = 0;
    else if (result < 0)
        snprintf(error, size, "%sport %lld: can't listen on %s: %s", tls ? "tls-" : "", (long long)port, address,
                 strerror(errno));
    freeaddrinfo(a);
    if (result > 0)
        text_printf(&set->text, "%s%s%s%s:%lld%s", set->text.len ? ", " : "", strchr(address, ':') ? "[" : "", address,
                    strchr(address, ':') ? "]" : "", (long long)port, tls ? " (TLS)" : "");
    return result;
}

static bool open_unix(struct listen_set *set, const struct config *c, char *error, size_t size) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(c->unixsocket) >= sizeof(a.sun_path)) {
        snprintf(error, size, "unixsocket '%s': expected a path of at most %zu bytes", c->unixsocket,
                 sizeof(a.sun_path) - 1);
        return false;
    }
    memcpy(a.sun_path, c->unixsocket, strlen(c->unixsocket));
    unlink(c->unixsocket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(fd, (int)c->tcp_backlog) != 0) {
        snprintf(error, size, "unixsocket '%s': can't listen: %s", c->unixsocket, strerror(errno));
        if (fd >= 0)
            close(fd);
        return false;
    }
    if (c->unixsocketperm)
        chmod(c->unixsocket, (mode_t)c->unixsocketperm);
    set->sockets[0].fd = fd;
    set->unix_socket = true;
    set->unix_path = c->unixsocket;
    struct stat file;
    if (stat(c->unixsocket, &file) == 0)
        set->unix_inode = file.st_ino;
    text_printf(&set->text, "%sunix:%s", set->text.len ? ", " : "", c->unixsocket);
    return true;
}

bool listen_open(struct listen_set *set, const struct config *c, char *error, size_t size) {
    size_t most = 2 * c->bind.count;
    set->threads = (size_t)c->threads;
    set->sockets = memory_zalloc((1 + set->threads * most) * sizeof(*set->sockets));
    text_init(&set->text);
    size_t opened = 0;
    for (size_t i = 0; i < most; i++) {
        bool tls = i >= c->bind.count;
        if ((tls ? c->tls_port : c->port) == 0)
            continue;
        int result = open_address(set, c, c->bind.words[i % c->bind.count], tls, most, opened, error, size);
        if (result < 0)
            return false;
        opened += (size_t)result;
    }
    set->per_thread = opened;
    /* Rows of `most` places become rows of `opened`. */
    for (size_t t = 1; t < set->threads; t++)
        memmove(&set->sockets[1 + t * opened], &set->sockets[1 + t * most], opened * sizeof(*set->sockets));
    if (c->unixsocket && c->unixsocket[0] && !open_unix(set, c, error, size))
        return false;
    if (opened == 0 && !set->unix_socket) {
        if (c->port == 0 && c->tls_port == 0)
            snprintf(error, size, "port 0: expected a tls-port or a unixsocket too, or nobody can connect");
        else if (most == 0)
            snprintf(error, size, "bind '': expected at least one address");
        return false;
    }
    return true;
}

const struct worker_socket *listen_of_thread(const struct listen_set *set, unsigned thread, size_t *count) {
    if (thread == 0) {
        *count = set->per_thread + (set->unix_socket ? 1 : 0);
        return set->sockets + (set->unix_socket ? 0 : 1);
    }
    *count = set->per_thread;
    return set->sockets + 1 + thread * set->per_thread;
}

const char *listen_text(const struct listen_set *set) {
    return set->text.data;
}

void listen_close(struct listen_set *set) {
    struct stat file; /* a process that took over has put its own there */
    if (set->unix_socket && stat(set->unix_path, &file) == 0 && file.st_ino == set->unix_inode)
        unlink(set->unix_path);
    memory_free(set->sockets);
    text_clear(&set->text);
}
