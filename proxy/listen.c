/* Opens the listening sockets: bind x port, bind x tls-port, and unixsocket. */
#include "proxy/listen.h"

#include <errno.h>
#include <libgen.h>
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

/* Opens a socket at an address. backlog < 0: it does not listen. */
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
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && (backlog < 0 || listen(fd, backlog) == 0))
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

/* Finds who of this process listens at an address already, or would. */
static const struct listen_claim *claimed(const struct listen_set *set, const struct addrinfo *a) {
    static const struct in6_addr any6 = IN6ADDR_ANY_INIT;
    for (size_t i = 0; i < set->claim_count; i++) {
        const struct sockaddr *other = (const void *)&set->claims[i].address;
        if (other->sa_family != a->ai_family)
            continue;
        const struct sockaddr_in *x = (const void *)other, *y = (const void *)a->ai_addr;
        if (a->ai_family == AF_INET && x->sin_port == y->sin_port &&
            (x->sin_addr.s_addr == y->sin_addr.s_addr || x->sin_addr.s_addr == 0 || y->sin_addr.s_addr == 0))
            return &set->claims[i];
        const struct sockaddr_in6 *u = (const void *)other, *v = (const void *)a->ai_addr;
        if (a->ai_family == AF_INET6 && u->sin6_port == v->sin6_port &&
            (memcmp(&u->sin6_addr, &v->sin6_addr, sizeof(any6)) == 0 ||
             memcmp(&u->sin6_addr, &any6, sizeof(any6)) == 0 || memcmp(&v->sin6_addr, &any6, sizeof(any6)) == 0))
            return &set->claims[i];
    }
    return NULL;
}

static void claim(struct listen_set *set, const struct addrinfo *a, const char *directive) {
    set->claims = memory_realloc(set->claims, (set->claim_count + 1) * sizeof(*set->claims));
    struct listen_claim *c = &set->claims[set->claim_count++];
    *c = (struct listen_claim){.directive = directive};
    memcpy(&c->address, a->ai_addr, a->ai_addrlen);
}

int listen_admin(struct listen_set *set, const struct config *c, int backlog, struct config_errors *errors) {
    struct addrinfo *a = resolve(c->admin_bind, c->admin_port);
    long long port = c->admin_port;
    const struct listen_claim *other = a ? claimed(set, a) : NULL;
    int fd = a && !other ? tcp_socket(a, c->reuse_port, set->trial ? -1 : backlog) : -1;
    int saved = errno;
    if (a)
        freeaddrinfo(a);
    if (!a)
        config_refuse(errors, c, "admin-bind",
                      "admin-port %lld: can't listen on admin-bind %s: expected an address of this machine", port,
                      c->admin_bind);
    else if (other)
        config_refuse(errors, c, "admin-port", "admin-port %lld: can't listen on admin-bind %s: %s has it already",
                      port, c->admin_bind, other->directive);
    else if (fd < 0 && !(set->trial && saved == EADDRINUSE))
        config_refuse(errors, c, saved == EADDRNOTAVAIL ? "admin-bind" : "admin-port",
                      "admin-port %lld: can't listen on admin-bind %s: %s", port, c->admin_bind, strerror(saved));
    return fd;
}

/* Opens one address for all threads, who have `most` places each; errno where it fails. */
static bool open_sockets(struct listen_set *set, const struct config *c, const struct addrinfo *a, bool tls,
                         size_t most, size_t at) {
    bool reuse_port = c->reuse_port || set->threads > 1;
    if (set->trial || (reuse_port && !c->reuse_port)) {
        /* without it first: a port that another process has is an error with several threads, too */
        int probe = tcp_socket(a, c->reuse_port, set->trial ? -1 : 1);
        if (probe < 0)
            return set->trial && errno == EADDRINUSE; /* by this proxy itself, most likely */
        close(probe);
    }
    for (size_t t = 0; t < set->threads && !set->trial; t++) {
        int fd = tcp_socket(a, reuse_port, (int)c->tcp_backlog);
        if (fd < 0)
            return false;
        set->sockets[1 + t * most + at] = (struct worker_socket){.fd = fd, .tls = tls};
    }
    return true;
}

/* Opens an address for all threads. Returns 1 opened, 0 skipped (optional and missing), -1 failed. */
static int open_address(struct listen_set *set, const struct config *c, const char *address, bool tls, size_t most,
                        size_t at, struct config_errors *errors) {
    bool optional = optional_address(&address);
    const char *directive = tls ? "tls-port" : "port";
    long long port = tls ? c->tls_port : c->port;
    struct addrinfo *a = resolve(address, port);
    if (!a) {
        if (!optional && !(tls && c->port != 0 && !config_is_wrong(errors, "port"))) /* one line for both ports */
            config_refuse(errors, c, "bind", "bind '%s': expected an address of this machine", address);
        return optional ? 0 : -1;
    }
    int result = 1;
    const struct listen_claim *other = claimed(set, a);
    if (other && !(c->reuse_port && strcmp(other->directive, directive) == 0)) {
        config_refuse(errors, c, directive, "%s %lld: can't listen on %s: %s has it already", directive, port, address,
                      strcmp(other->directive, directive) == 0 ? "another address of bind" : other->directive);
        result = -1;
    } else if (!open_sockets(set, c, a, tls, most, at)) {
        bool missing = errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT || errno == EPROTONOSUPPORT;
        result = optional && missing ? 0 : -1;
        if (result < 0)
            config_refuse(errors, c, missing ? "bind" : directive, "%s %lld: can't listen on %s: %s", directive, port,
                          address, strerror(errno));
    }
    if (result > 0) {
        claim(set, a, directive);
        text_printf(&set->text, "%s%s%s%s:%lld%s", set->text.len ? ", " : "", strchr(address, ':') ? "[" : "", address,
                    strchr(address, ':') ? "]" : "", port, tls ? " (TLS)" : "");
    }
    freeaddrinfo(a);
    return result;
}

/* Whether a socket's file could be made: what is there already may be replaced if it is a socket. errno says why not.
 */
static bool unix_free(const char *path) {
    struct stat file;
    if (lstat(path, &file) == 0 && !S_ISSOCK(file.st_mode)) {
        errno = EEXIST;
        return false;
    }
    char folder[sizeof(((struct sockaddr_un *)0)->sun_path)];
    snprintf(folder, sizeof(folder), "%s", path);
    return eaccess(dirname(folder), W_OK | X_OK) == 0;
}

static int unix_socket(const struct config *c) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, c->unixsocket, strlen(c->unixsocket));
    unlink(c->unixsocket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, (int)c->tcp_backlog) == 0)
        return fd;
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    return -1;
}

static bool open_unix(struct listen_set *set, const struct config *c, struct config_errors *errors) {
    int fd = -1;
    if (!unix_free(c->unixsocket) || (!set->trial && (fd = unix_socket(c)) < 0))
        return config_refuse(errors, c, "unixsocket", "unixsocket '%s': can't listen: %s", c->unixsocket,
                             strerror(errno));
    set->unix_socket = true;
    if (set->trial)
        return true;
    if (c->unixsocketperm)
        chmod(c->unixsocket, (mode_t)c->unixsocketperm);
    set->sockets[0].fd = fd;
    set->unix_path = c->unixsocket;
    struct stat file;
    if (stat(c->unixsocket, &file) == 0)
        set->unix_inode = file.st_ino;
    text_printf(&set->text, "%sunix:%s", set->text.len ? ", " : "", c->unixsocket);
    return true;
}

/* Refuses a proxy that nobody could connect to, unless that follows from another error. */
static bool nobody_can_connect(const struct config *c, struct config_errors *errors) {
    if (config_is_wrong(errors, "unixsocket") || config_is_wrong(errors, "tls-port") ||
        config_is_wrong(errors, "bind") || config_is_wrong(errors, "port"))
        return false;
    if (c->port == 0 && c->tls_port == 0)
        return config_refuse(errors, c, "port",
                             "port 0: expected a tls-port or a unixsocket too, or nobody can connect");
    if (c->bind.count == 0)
        return config_refuse(errors, c, "bind", "bind '': expected at least one address");
    return config_refuse(errors, c, "bind", "bind: expected at least one address of this machine");
}

bool listen_open(struct listen_set *set, const struct config *c, bool trial, struct config_errors *errors) {
    size_t most = 2 * c->bind.count;
    *set = (struct listen_set){.trial = trial, .threads = (size_t)c->threads};
    set->sockets = memory_zalloc((1 + set->threads * most) * sizeof(*set->sockets));
    text_init(&set->text);
    size_t opened = 0;
    bool right = true;
    bool somewhere = !config_is_wrong(errors, "bind");
    bool plain = somewhere && c->port != 0 && !config_is_wrong(errors, "port");
    bool secured = somewhere && c->tls_port != 0 && !config_is_wrong(errors, "tls-port");
    for (size_t i = 0; i < most; i++) {
        bool tls = i >= c->bind.count;
        if (!(tls ? secured : plain))
            continue;
        int result = open_address(set, c, c->bind.words[i % c->bind.count], tls, most, opened, errors);
        right = result >= 0 && right;
        opened += result > 0;
    }
    set->per_thread = opened;
    /* Rows of `most` places become rows of `opened`. */
    for (size_t t = 1; t < set->threads; t++)
        memmove(&set->sockets[1 + t * opened], &set->sockets[1 + t * most], opened * sizeof(*set->sockets));
    if (c->unixsocket && c->unixsocket[0] && !open_unix(set, c, errors))
        right = false;
    return (opened > 0 || set->unix_socket || nobody_can_connect(c, errors)) && right;
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
    if (set->unix_path && stat(set->unix_path, &file) == 0 && file.st_ino == set->unix_inode)
        unlink(set->unix_path);
    memory_free(set->sockets);
    memory_free(set->claims);
    text_clear(&set->text);
}
