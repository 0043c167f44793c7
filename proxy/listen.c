/*
 * The listening sockets, opened before any thread starts, or passed to this process: by systemd (sd_listen_fds(3)), or
 * by the process from which it takes over (ending.c).
 *
 *      systemd        LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES        descriptors 3, 4, ...: they define where to listen
 *      predecessor    LOCKKEEPER_HANDED, a letter for each socket;  descriptor 3: to report that clients are accepted;
 *                     LOCKKEEPER_HANDED_PATH, the unix socket's     4, 5, ...: used if the configuration has them
 *                     LOCKKEEPER_HANDED_MARK, for worker/same_redis.c
 *                     LOCKKEEPER_HANDED_BOARD, for base/handed_board.h
 */

#include "proxy/private.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proxy/base/handed_board.h"
#include "proxy/base/memory.h"

enum { FIRST = 3 /* descriptor that was passed on */, COUNT_MAX = 4096 };

/* ---- sockets that were passed to this process --------------------------------------------------------- */

static void take_descriptor(struct inherited *in, int fd, enum socket_use use, bool managed) {
    int flags = fcntl(fd, F_GETFL), listens = 0;
    socklen_t len = sizeof(listens);
    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) != 0 || !listens)
        return; /* not a listening socket, so it was not meant for the proxy */
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    in->sockets[in->count++] = (struct handed_socket){.fd = fd, .use = use, .managed = managed};
    in->managed |= managed;
}

void inherit_read(struct inherited *in) {
    static const char known[] = HANDED_LETTERS;
    const char *letters = getenv(HANDED_SOCKETS), *path = getenv(HANDED_PATH), *mark = getenv(HANDED_MARK);
    const char *board = getenv(HANDED_BOARD), *pid = getenv("LISTEN_PID"), *names = getenv("LISTEN_FDNAMES");
    const char *fds = pid && strtol(pid, NULL, 10) == (long)getpid() ? getenv("LISTEN_FDS") : NULL;
    long number = fds ? strtol(fds, NULL, 10) : 0;
    size_t count = letters ? strlen(letters) : number > 0 && number < COUNT_MAX ? (size_t)number : 0;
    *in = (struct inherited){.predecessor = letters ? FIRST : -1};
    in->sockets = memory_zalloc((count + 1) * sizeof(*in->sockets));
    if (letters) {
        bool boarded = board && strtol(board, NULL, 10) == FIRST + 1 + (long)count;
        in->path = path && path[0] ? memory_strdup(path) : NULL;
        in->mark = mark && mark[0] ? memory_strdup(mark) : NULL;
        in->board = boarded ? handed_board_open(FIRST + 1 + (int)count) : NULL;
        fcntl(FIRST, F_SETFD, FD_CLOEXEC);
    }
    for (size_t i = 0; i < count; i++) {
        const char *at = letters ? strchr(known, letters[i]) : NULL;
        size_t index = at ? (size_t)(at - known) : 0, len = names ? strcspn(names, ":") : 0;
        if (letters) {
            take_descriptor(in, FIRST + 1 + (int)i, (enum socket_use)(index / 2), index % 2 == 1);
            continue;
        }
        /* systemd's: a socket named "tls" (FileDescriptorName=) speaks TLS */
        bool tls = len == 3 && memcmp(names, "tls", 3) == 0;
        take_descriptor(in, FIRST + (int)i, tls ? SOCKET_TLS : SOCKET_PLAIN, true);
        names = names && names[len] ? names + len + 1 : NULL;
    }
    static const char *const variables[] = {HANDED_SOCKETS, HANDED_PATH,  HANDED_MARK,     HANDED_BOARD,
                                            "LISTEN_PID",   "LISTEN_FDS", "LISTEN_FDNAMES"};
    for (size_t i = 0; i < ARRAY_SIZE(variables); i++)
        unsetenv(variables[i]);
}

/* Whether both are one address (there is one unix socket); `any`: or one includes the other. */
static bool same_address(const struct sockaddr *a, const struct sockaddr *b, bool any) {
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;
        in_addr_t u = x->sin_addr.s_addr, v = y->sin_addr.s_addr;
        return x->sin_port == y->sin_port && (u == v || (any && (u == 0 || v == 0)));
    }
    const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;
    if (a->sa_family != AF_INET6 || x->sin6_port != y->sin6_port)
        return a->sa_family == AF_UNIX;
    if (any && (IN6_IS_ADDR_UNSPECIFIED(&x->sin6_addr) || IN6_IS_ADDR_UNSPECIFIED(&y->sin6_addr)))
        return true;
    return (any || x->sin6_scope_id == y->sin6_scope_id) && IN6_ARE_ADDR_EQUAL(&x->sin6_addr, &y->sin6_addr);
}

/* Takes a socket that listens on the address for that use; -1: there is none, or no more. */
static int inherit_take(struct inherited *in, const struct sockaddr *address, enum socket_use use) {
    for (size_t i = 0; i < in->count; i++) {
        struct handed_socket *s = &in->sockets[i];
        struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
        socklen_t len = sizeof(own);
        if (s->taken || s->managed || s->use != use || getsockname(s->fd, (struct sockaddr *)&own, &len) != 0 ||
            !same_address((struct sockaddr *)&own, address, false))
            continue;
        s->taken = true;
        return s->fd;
    }
    return -1;
}

void inherit_close_rest(struct inherited *in) {
    if (in->path)
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
    MEMORY_FREE_ALL(in->sockets, in->path, in->mark);
}

/* ---- addresses -------------------------------------------------------------------------------------- */

/* Closes the descriptor, and keeps errno. */
static int failed(int fd) {
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

/* Opens a socket at an address. backlog < 0: without listening. */
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
    return failed(fd);
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

/* The directive of this process that already uses the address. */
static const struct listen_claim *claimed(const struct listen_set *set, const struct addrinfo *a) {
    for (size_t i = 0; i < set->claim_count; i++)
        if (same_address((const void *)&set->claims[i].address, a->ai_addr, true))
            return &set->claims[i];
    return NULL;
}

static void add(struct listen_set *set, struct worker_socket s) {
    *ARRAY_ADD(set->sockets, set->count) = s;
}

/* Takes the predecessor's sockets at an address, one for each thread that it had; if there are more threads now, the
 * others share the first socket. Without such sockets opens the address for all threads; false with errno. */
static bool open_sockets(struct listen_set *set, const struct config *c, const struct addrinfo *a, bool tls) {
    int first = -1;
    unsigned taken = 0;
    for (int fd; (fd = inherit_take(set->inherited, a->ai_addr, tls ? SOCKET_TLS : SOCKET_PLAIN)) >= 0; taken++) {
        listen(fd, (int)c->tcp_backlog); /* it may have changed */
        add(set, (struct worker_socket){.fd = fd, .thread = taken % (unsigned)set->threads, .tls = tls});
        first = first < 0 ? fd : first;
    }
    for (unsigned t = taken; first >= 0 && t < set->threads; t++) {
        int copy = fcntl(first, F_DUPFD_CLOEXEC, 0);
        add(set, (struct worker_socket){.fd = copy, .thread = t, .tls = tls, .copy = true});
    }
    if (taken > 0)
        return true;
    bool reuse_port = c->reuse_port || set->threads > 1;
    if (set->trial || (reuse_port && !c->reuse_port)) {
        /* a trial without SO_REUSEPORT: a port in use by another process is an error, also with several threads */
        int probe = tcp_socket(a, c->reuse_port, set->trial ? -1 : 1);
        if (probe < 0)
            return set->trial && errno == EADDRINUSE; /* most likely this proxy itself uses it */
        close(probe);
    }
    for (size_t t = 0; t < set->threads && !set->trial; t++) {
        int fd = tcp_socket(a, reuse_port, (int)c->tcp_backlog);
        if (fd < 0)
            return false;
        add(set, (struct worker_socket){.fd = fd, .thread = t, .tls = tls});
    }
    return true;
}

static void add_text(struct listen_set *set, const char *address, int64_t port, bool tls) {
    bool v6 = strchr(address, ':') != NULL;
    text_printf(&set->text, "%s%s%s%s:%lld%s", set->text.len ? ", " : "", v6 ? "[" : "", address, v6 ? "]" : "",
                (long long)port, tls ? " (TLS)" : "");
}

/* Opens an address for all threads. Returns 1: opened, 0: skipped (optional and missing), -1: failed. */
static int open_address(struct listen_set *set, const struct config *c, const char *address, bool tls,
                        struct config_errors *errors) {
    bool optional = address[0] == '-'; /* as in Redis: the address may be missing on this machine */
    address += optional;
    const char *directive = tls ? "tls-port" : "port";
    long long port = tls ? c->tls_port : c->port;
    struct addrinfo *a = resolve(address, port);
    if (!a) {
        if (!optional && !(tls && c->port != 0 && !config_is_wrong(errors, "port"))) /* one error for both ports */
            config_refuse(errors, c, "bind", "bind '%s': expected an address of this machine", address);
        return optional ? 0 : -1;
    }
    int result = 1;
    const struct listen_claim *other = claimed(set, a);
    if (other && !(c->reuse_port && strcmp(other->directive, directive) == 0)) {
        config_refuse(errors, c, directive, "%s %lld: can't listen on %s: %s has it already", directive, port, address,
                      strcmp(other->directive, directive) == 0 ? "another address of bind" : other->directive);
        result = -1;
    } else if (!open_sockets(set, c, a, tls)) {
        bool missing = errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT || errno == EPROTONOSUPPORT;
        result = optional && missing ? 0 : -1;
        if (result < 0)
            config_refuse(errors, c, missing ? "bind" : directive, "%s %lld: can't listen on %s: %s", directive, port,
                          address, strerror(errno));
    }
    if (result > 0) {
        struct listen_claim *own = ARRAY_ADD(set->claims, set->claim_count);
        *own = (struct listen_claim){.directive = directive};
        memcpy(&own->address, a->ai_addr, a->ai_addrlen);
        add_text(set, address, port, tls);
    }
    freeaddrinfo(a);
    return result;
}

/* ---- the unix socket ------------------------------------------------------------------------------- */

/* Binds a unix socket such that the path always leads to a listening socket: another process's file is replaced, not
 * removed first. Returns whether it listens; else errno has the reason. */
static bool bind_unix(int fd, const struct config *c) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    bool beside =
        snprintf(a.sun_path, sizeof(a.sun_path), "%s.%d", c->unixsocket, (int)getpid()) < (int)sizeof(a.sun_path);
    if (!beside) /* the path is too long for a temporary name */
        memcpy(a.sun_path, c->unixsocket, strlen(c->unixsocket) + 1);
    unlink(a.sun_path);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0)
        return false;
    if (c->unixsocketperm)
        chmod(a.sun_path, (mode_t)c->unixsocketperm);
    if (listen(fd, (int)c->tcp_backlog) == 0 && (!beside || rename(a.sun_path, c->unixsocket) == 0))
        return true;
    int saved = errno;
    unlink(a.sun_path);
    errno = saved;
    return false;
}

/* Returns the predecessor's socket, whose file then stays, or a new one; -1 with errno. */
static int unix_socket(struct listen_set *set, const struct config *c) {
    static const struct sockaddr own = {.sa_family = AF_UNIX};
    char **path = &set->inherited->path;
    int fd = *path && strcmp(*path, c->unixsocket) == 0 ? inherit_take(set->inherited, &own, SOCKET_PLAIN) : -1;
    if (fd >= 0) {
        memory_free(*path);
        *path = NULL;
        return fd;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return fd < 0 || bind_unix(fd, c) ? fd : failed(fd);
}

/* An existing socket may be replaced, another file may not. */
static bool open_unix(struct listen_set *set, const struct config *c, struct config_errors *errors) {
    struct stat file;
    char folder[sizeof(((struct sockaddr_un *)0)->sun_path)];
    int fd = -1;
    snprintf(folder, sizeof(folder), "%s", c->unixsocket);
    bool right = lstat(c->unixsocket, &file) != 0 || S_ISSOCK(file.st_mode);
    if (!right)
        errno = EEXIST;
    if (!right || eaccess(dirname(folder), W_OK | X_OK) != 0 || (!set->trial && (fd = unix_socket(set, c)) < 0))
        return config_refuse(errors, c, "unixsocket", "unixsocket '%s': can't listen: %s", c->unixsocket,
                             strerror(errno));
    set->unix_path = c->unixsocket;
    if (set->trial)
        return true;
    add(set, (struct worker_socket){.fd = fd});
    if (stat(c->unixsocket, &file) == 0)
        set->unix_inode = file.st_ino;
    text_printf(&set->text, "%sunix:%s", set->text.len ? ", " : "", c->unixsocket);
    return true;
}

/* ---- systemd's sockets ------------------------------------------------------------------------------ */

/* Takes all of systemd's sockets; all threads share each. */
static void take_managed(struct listen_set *set) {
    for (size_t i = 0; i < set->inherited->count; i++) {
        struct handed_socket *s = &set->inherited->sockets[i];
        struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
        char host[NI_MAXHOST], port[NI_MAXSERV];
        socklen_t len = sizeof(own);
        if (!s->managed)
            continue;
        s->taken = true;
        for (unsigned t = 0; t < set->threads; t++)
            add(set, (struct worker_socket){.fd = t == 0 ? s->fd : fcntl(s->fd, F_DUPFD_CLOEXEC, 0),
                                            .thread = t,
                                            .tls = s->use == SOCKET_TLS,
                                            .shared = true,
                                            .copy = t > 0});
        getsockname(s->fd, (struct sockaddr *)&own, &len);
        if (own.ss_family == AF_UNIX)
            text_printf(&set->text, "%sunix:%.*s", set->text.len ? ", " : "",
                        (int)(len - offsetof(struct sockaddr_un, sun_path)), ((struct sockaddr_un *)&own)->sun_path);
        else if (getnameinfo((struct sockaddr *)&own, len, host, sizeof(host), port, sizeof(port),
                             NI_NUMERICHOST | NI_NUMERICSERV) == 0)
            add_text(set, host, strtoll(port, NULL, 10), s->use == SOCKET_TLS);
    }
}

/* ---- all ------------------------------------------------------------------------------------------- */

static bool open_all(struct listen_set *set, const struct config *c, struct config_errors *errors) {
    size_t opened = 0;
    bool right = true, somewhere = !config_is_wrong(errors, "bind");
    bool plain = somewhere && c->port != 0 && !config_is_wrong(errors, "port");
    bool secured = somewhere && c->tls_port != 0 && !config_is_wrong(errors, "tls-port");
    for (size_t i = 0; i < 2 * c->bind.count; i++) {
        bool tls = i >= c->bind.count;
        if (!(tls ? secured : plain))
            continue;
        int result = open_address(set, c, c->bind.words[i % c->bind.count], tls, errors);
        right = result >= 0 && right;
        opened += result > 0;
    }
    if (c->unixsocket && c->unixsocket[0] && !open_unix(set, c, errors))
        right = false;
    if (opened > 0 || set->unix_path)
        return right;
    if (config_is_wrong(errors, "unixsocket") || config_is_wrong(errors, "tls-port") ||
        config_is_wrong(errors, "bind") || config_is_wrong(errors, "port"))
        return false;
    if (c->port == 0 && c->tls_port == 0)
        return config_refuse(errors, c, "port",
                             "port 0: expected a tls-port or a unixsocket too, or no client can connect");
    if (c->bind.count == 0)
        return config_refuse(errors, c, "bind", "bind '': expected at least one address");
    return config_refuse(errors, c, "bind", "bind: expected at least one address of this machine");
}

static bool open_admin(struct listen_set *set, const struct config *c, struct config_errors *errors) {
    enum { BACKLOG = 512 };
    struct addrinfo *a = resolve(c->admin_bind, c->admin_port);
    long long port = c->admin_port;
    const struct listen_claim *other = a ? claimed(set, a) : NULL;
    int fd = a && !other ? inherit_take(set->inherited, a->ai_addr, SOCKET_ADMIN) : -1;
    if (a && !other && fd < 0)
        fd = tcp_socket(a, c->reuse_port, set->trial ? -1 : BACKLOG);
    int saved = errno;
    if (a)
        freeaddrinfo(a);
    if (set->trial && fd >= 0)
        close(fd);
    set->admin_fd = set->trial ? -1 : fd;
    if (!a)
        return config_refuse(errors, c, "admin-bind",
                             "admin-port %lld: can't listen on admin-bind %s: expected an address of this machine",
                             port, c->admin_bind);
    if (other)
        return config_refuse(errors, c, "admin-port",
                             "admin-port %lld: can't listen on admin-bind %s: %s has it already", port, c->admin_bind,
                             other->directive);
    if (fd < 0 && !(set->trial && saved == EADDRINUSE))
        return config_refuse(errors, c, saved == EADDRNOTAVAIL ? "admin-bind" : "admin-port",
                             "admin-port %lld: can't listen on admin-bind %s: %s", port, c->admin_bind,
                             strerror(saved));
    return true;
}

bool listen_open(struct listen_set *set, const struct config *c, struct inherited *inherited, bool trial,
                 struct config_errors *errors) {
    bool right = true;
    *set = (struct listen_set){.trial = trial, .threads = (size_t)c->threads, .admin_fd = -1, .inherited = inherited};
    if (inherited->managed)
        take_managed(set);
    else
        right = open_all(set, c, errors);
    if (c->admin_port != 0 && !config_is_wrong(errors, "admin-bind"))
        right = open_admin(set, c, errors) && right;
    return right;
}

/* ---- other processes --------------------------------------------------------------------------------- */

/* Whether the set listens on that address (as in /proc/net/tcp and tcp6), and none of its sockets has that inode. */
static bool is_rival(const struct listen_set *set, const char *address, unsigned long long inode) {
    bool here = false;
    for (size_t i = 0; i < set->count; i++) {
        struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
        const struct sockaddr_in *v4 = (const void *)&own;
        const struct sockaddr_in6 *v6 = (const void *)&own;
        const uint32_t *words = v6->sin6_addr.s6_addr32;
        struct stat file;
        socklen_t len = sizeof(own);
        char text[48] = "";
        if (fstat(set->sockets[i].fd, &file) == 0 && file.st_ino == inode)
            return false;
        getsockname(set->sockets[i].fd, (struct sockaddr *)&own, &len);
        if (own.ss_family == AF_INET)
            snprintf(text, sizeof(text), "%08X:%04X", v4->sin_addr.s_addr, ntohs(v4->sin_port));
        else if (own.ss_family == AF_INET6)
            snprintf(text, sizeof(text), "%08X%08X%08X%08X:%04X", words[0], words[1], words[2], words[3],
                     ntohs(v6->sin6_port));
        here = here || strcmp(text, address) == 0;
    }
    return here;
}

/* Searches the kernel's table, where listening sockets come first. */
static bool table_has_rival(const char *path, const struct listen_set *set) {
    enum { LISTENS = 10 };
    FILE *f = fopen(path, "re");
    char line[512], address[48];
    unsigned state = LISTENS;
    unsigned long long inode;
    bool found = false;
    if (f && !fgets(line, sizeof(line), f)) /* the heading */
        state = 0;
    while (f && !found && state == LISTENS && fgets(line, sizeof(line), f))
        found = sscanf(line, "%*s %47s %*s %x %*s %*s %*s %*s %*s %llu", address, &state, &inode) == 3 &&
                state == LISTENS && inode != 0 && is_rival(set, address, inode);
    if (f)
        fclose(f);
    return found;
}

bool listen_has_rival(const struct listen_set *set) {
    struct stat file;
    if (set->unix_path && stat(set->unix_path, &file) == 0 && file.st_ino != set->unix_inode)
        return true;
    return table_has_rival("/proc/self/net/tcp", set) || table_has_rival("/proc/self/net/tcp6", set);
}

void listen_close(struct listen_set *set, bool handed) {
    struct stat file; /* a process that took over may have put its own file there */
    if (set->unix_path && !handed && stat(set->unix_path, &file) == 0 && file.st_ino == set->unix_inode)
        unlink(set->unix_path);
    MEMORY_FREE_ALL(set->sockets, set->claims);
    text_clear(&set->text);
}
