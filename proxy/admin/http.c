/* The HTTP server: libmicrohttpd, with its epoll descriptor in the caller's loop and without threads. */
#include "proxy/admin/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/clock.h"
#include "proxy/base/list.h"
#include "proxy/base/memory.h"

enum {
    CONNECTIONS_MAX = 64,
    ADDRESS_MAX = 32,   /* the part of them that one address may have */
    ACCEPTED_A_RUN = 8, /* so that a new connection has some turns before it is the oldest */
    WHOLE_MS = 10000,   /* from the connection to the last byte of the answer */
    PAUSE_MS = 200,     /* after running out of descriptors */
    CONNECTION_BYTES = 16 * 1024,
    NAME_MAX_LEN = 255, /* of a host */
    ADDRESS_BYTES = 8   /* the prefix of an IPv6 address: one machine has all addresses with the same prefix */
};

/* A connection. */
struct visit {
    struct list_node link; /* the oldest first */
    int fd;
    int64_t deadline_ms;
    unsigned char address[ADDRESS_BYTES];
    struct MHD_Connection *waiting; /* while the page's facts are gathered */
    bool gathered;                  /* they have been gathered, for this request too */
    bool given_up;
};

struct http {
    struct MHD_Daemon *daemon;
    struct http_options options;
    int listen_fd, poll_fd;
    struct list_node visits;
    size_t visit_count;
    int64_t paused_until_ms; /* no connections are accepted; 0: they are */
    const struct http_page *gathering;
    struct MHD_Response *page; /* the page rendered last after gathering */
    unsigned page_status;
};

/* ---- answers ------------------------------------------------------------------------------------- */

static struct MHD_Response *response_of(const char *type, const char *body, size_t len) {
    struct MHD_Response *response = MHD_create_response_from_buffer(len, (void *)body, MHD_RESPMEM_MUST_COPY);
    if (!response)
        return NULL;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "Connection", "close");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Content-Security-Policy",
                            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                            "connect-src 'self'; img-src data:; frame-ancestors 'none'");
    return response;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned status, const char *text) {
    struct MHD_Response *response = response_of("text/plain; charset=utf-8", text, strlen(text));
    if (!response)
        return MHD_NO;
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static struct MHD_Response *render(struct http *h, const struct http_page *page, unsigned *status) {
    struct text body = {0};
    *status = page->render(h->options.arg, &body);
    struct MHD_Response *response = response_of(page->type, body.data ? body.data : "", body.len);
    text_clear(&body);
    return response;
}

/* ---- Host headers: RFC 9110, 7.2 ------------------------------------------------------------------ */

/* Removes the port, and a dot at the end of a name. False if the text is no host. */
static bool bare_name(const char *host, char *out, size_t size) {
    size_t len = host[0] == '[' ? strcspn(host, "]") : strcspn(host, ":");
    const char *end = host + len;
    if (host[0] == '[') {
        if (*end != ']')
            return false;
        host++;
        len--;
        end++;
    }
    if (*end == ':')
        end += 1 + strspn(end + 1, "0123456789");
    if (*end || len == 0 || len >= size)
        return false;
    memcpy(out, host, len);
    if (out[len - 1] == '.')
        len--;
    out[len] = '\0';
    return true;
}

bool host_is_ours(const char *host, const char *const *names, size_t count) {
    char name[NAME_MAX_LEN + 1], own[NAME_MAX_LEN + 1] = "";
    unsigned char bytes[16];
    if (!bare_name(host, name, sizeof(name)))
        return false;
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(names[i], name) == 0 || strcmp(names[i], "*") == 0)
            return true;
    if (inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1 ||
        strcasecmp(name, "localhost") == 0)
        return true;
    bool known = gethostname(own, sizeof(own)) == 0;
    own[NAME_MAX_LEN] = '\0';
    return known && own[0] && strcasecmp(name, own) == 0;
}

/* ---- requests ------------------------------------------------------------------------------------- */

struct hosts {
    const char *name; /* the value of the last one */
    size_t count;
};

static enum MHD_Result note_host(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
    struct hosts *hosts = arg;
    if (strcasecmp(name, "Host") == 0) {
        hosts->name = value ? value : "";
        hosts->count++;
    }
    return MHD_YES;
}

/* Whether the request's Host was refused. HTTP/1.0 has no Host, but no browser speaks it. */
static bool refuse_host(struct http *h, struct MHD_Connection *connection, const char *version,
                        enum MHD_Result *result) {
    struct hosts hosts = {.count = 0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, note_host, &hosts);
    if (hosts.count == 0 && strcmp(version, "HTTP/1.0") == 0)
        return false;
    if (hosts.count == 1 && host_is_ours(hosts.name, h->options.names, h->options.name_count))
        return false;
    if (hosts.count == 1)
        *result = answer_text(connection, MHD_HTTP_MISDIRECTED_REQUEST,
                              "lockkeeper is not known under the name in the request's Host header: use an "
                              "address or localhost, or add the name to admin-host\n");
    else
        *result = answer_text(connection, MHD_HTTP_BAD_REQUEST, "a request has one Host\n");
    return true;
}

static const struct http_page *page_of(const struct http *h, struct MHD_Connection *connection, const char *url) {
    for (size_t i = 0; i < h->options.count; i++) {
        const struct http_page *page = &h->options.pages[i];
        const char *query = page->query, *value;
        size_t size;
        if (strcmp(url, page->path) == 0 &&
            (!query || MHD_lookup_connection_value_n(connection, MHD_GET_ARGUMENT_KIND, query, strlen(query), &value,
                                                     &size) == MHD_YES))
            return page;
    }
    return NULL;
}

/* libmicrohttpd decides the parameters. */
static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state) {
    struct http *h = arg;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct visit *visit = info ? info->socket_context : NULL;
    enum MHD_Result result;
    if (!visit)
        return MHD_NO;
    if (visit->gathered)
        return h->page ? MHD_queue_response(connection, h->page_status, h->page) : MHD_NO;
    if (refuse_host(h, connection, version, &result))
        return result;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "this page can only be read\n");
    const struct http_page *page = page_of(h, connection, url);
    if (!page)
        return answer_text(connection, MHD_HTTP_NOT_FOUND, "there is no such page\n");
    if (page->gather) { /* the request waits for the page's facts */
        visit->waiting = connection;
        MHD_suspend_connection(connection);
        if (!h->gathering) {
            h->gathering = page;
            page->gather(h->options.arg);
        }
        return MHD_YES;
    }
    unsigned status;
    struct MHD_Response *response = render(h, page, &status);
    if (!response)
        return MHD_NO;
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static void resume_waiting(struct http *h) {
    LIST_FOREACH(it, &h->visits) {
        struct visit *v = LIST_ENTRY(it, struct visit, link);
        if (!v->waiting)
            continue;
        v->gathered = true;
        MHD_resume_connection(v->waiting);
        v->waiting = NULL;
    }
}

void http_gathered(struct http *h) {
    invariant(h->gathering, "facts were gathered for no page");
    if (h->page)
        MHD_destroy_response(h->page);
    h->page = render(h, h->gathering, &h->page_status);
    h->gathering = NULL;
    resume_waiting(h);
}

/* ---- connections ----------------------------------------------------------------------------------- */

static void on_connection(void *arg, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code) {
    struct http *h = arg;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        struct visit *v = memory_zalloc(sizeof(*v));
        const struct sockaddr *from =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
        list_init(&v->link);
        v->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        v->deadline_ms = clock_even_ms() + WHOLE_MS;
        if (from && from->sa_family == AF_INET)
            memcpy(v->address, &((const struct sockaddr_in *)(const void *)from)->sin_addr, sizeof(struct in_addr));
        else if (from && from->sa_family == AF_INET6)
            memcpy(v->address, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, ADDRESS_BYTES);
        list_append(&h->visits, &v->link);
        h->visit_count++;
        *context = v;
    } else {
        struct visit *v = *context;
        list_remove(&v->link);
        h->visit_count -= v->given_up ? 0 : 1;
        memory_free(v);
    }
}

/* libmicrohttpd then finds the connection ended, and closes it. */
static void give_up(struct http *h, struct visit *v) {
    invariant(!v->given_up && h->visit_count > 0, "%zu connections are counted", h->visit_count);
    shutdown(v->fd, SHUT_RDWR);
    v->given_up = true;
    h->visit_count--;
}

/* The oldest connection from `like`'s address, and how many that address has. */
static struct visit *oldest_of(struct http *h, const struct visit *like, size_t *count) {
    struct visit *oldest = NULL;
    *count = 0;
    LIST_FOREACH(it, &h->visits) {
        struct visit *v = LIST_ENTRY(it, struct visit, link);
        if (v->given_up || memcmp(v->address, like->address, ADDRESS_BYTES) != 0)
            continue;
        oldest = oldest ? oldest : v;
        ++*count;
    }
    return oldest;
}

/* Gives up one connection: of an address that has too many, or, if there are too many in all, the oldest of the address
 * that has most. Returns whether there was one. */
static bool give_up_one(struct http *h, size_t room) {
    struct visit *victim = NULL;
    size_t most = 0, count;
    LIST_FOREACH(it, &h->visits) {
        const struct visit *v = LIST_ENTRY(it, struct visit, link);
        struct visit *oldest = v->given_up ? NULL : oldest_of(h, v, &count);
        if (oldest && count > most) {
            most = count;
            victim = oldest;
        }
    }
    if (!victim || (most <= ADDRESS_MAX && h->visit_count <= room))
        return false;
    give_up(h, victim);
    return true;
}

static void listen_for(struct http *h, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = h->listen_fd};
    (void)epoll_ctl(h->poll_fd, EPOLL_CTL_MOD, h->listen_fd, &event);
    h->paused_until_ms = events ? 0 : clock_even_ms() + PAUSE_MS;
}

/* Accepts some of the waiting connections. Without a free descriptor an old connection has to go first. */
static void let_in(struct http *h) {
    if (h->paused_until_ms && h->paused_until_ms <= clock_even_ms())
        listen_for(h, EPOLLIN);
    for (int i = 0; i < ACCEPTED_A_RUN && !h->paused_until_ms; i++) {
        struct sockaddr_storage from;
        socklen_t len = sizeof(from);
        int fd = accept4(h->listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == ECONNABORTED || errno == EINTR))
            continue;
        if (fd < 0) {
            if (errno != EAGAIN && !give_up_one(h, 0))
                listen_for(h, 0);
            return;
        }
        (void)MHD_add_connection(h->daemon, fd, (struct sockaddr *)&from, len); /* closes fd if it fails */
    }
}

void http_run(struct http *h) {
    let_in(h);
    MHD_run(h->daemon);
    int64_t now = clock_even_ms();
    LIST_FOREACH(it, &h->visits) {
        struct visit *v = LIST_ENTRY(it, struct visit, link);
        if (!v->given_up && v->deadline_ms <= now)
            give_up(h, v);
    }
    size_t before = h->visit_count;
    while (give_up_one(h, CONNECTIONS_MAX))
        ;
    if (h->visit_count < before)
        MHD_run(h->daemon); /* so that given up connections are closed before others are accepted */
}

/* ---- the server ------------------------------------------------------------------------------------ */

struct http *http_open(int listen_fd, const struct http_options *options) {
    struct http *h = memory_zalloc(sizeof(*h));
    h->options = *options;
    h->listen_fd = listen_fd;
    h->poll_fd = -1;
    list_init(&h->visits);
    h->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
                                 handle, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)(2 * CONNECTIONS_MAX), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    if (h->daemon) {
        int daemon_fd = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
        struct epoll_event daemon = {.events = EPOLLIN, .data.fd = daemon_fd};
        struct epoll_event listener = {.events = EPOLLIN, .data.fd = h->listen_fd};
        h->poll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (h->poll_fd >= 0 && epoll_ctl(h->poll_fd, EPOLL_CTL_ADD, daemon_fd, &daemon) == 0 &&
            epoll_ctl(h->poll_fd, EPOLL_CTL_ADD, h->listen_fd, &listener) == 0)
            return h;
        MHD_stop_daemon(h->daemon);
    }
    if (h->poll_fd >= 0)
        close(h->poll_fd);
    memory_free(h);
    return NULL;
}

int http_fd(const struct http *h) {
    return h->poll_fd;
}

long long http_wait_ms(struct http *h) {
    MHD_UNSIGNED_LONG_LONG ms;
    if (MHD_get_timeout(h->daemon, &ms) == MHD_YES && ms == 0)
        return 0;
    int64_t until = h->paused_until_ms ? h->paused_until_ms : INT64_MAX, now = clock_even_ms();
    LIST_FOREACH(it, &h->visits) {
        const struct visit *v = LIST_ENTRY(it, struct visit, link);
        if (!v->given_up && v->deadline_ms < until)
            until = v->deadline_ms;
    }
    return until == INT64_MAX ? -1 : until > now ? (long long)(until - now) : 0;
}

void http_close(struct http *h) {
    if (!h)
        return;
    resume_waiting(h);
    MHD_stop_daemon(h->daemon);
    if (h->page)
        MHD_destroy_response(h->page);
    close(h->poll_fd);
    close(h->listen_fd);
    memory_free(h);
}
