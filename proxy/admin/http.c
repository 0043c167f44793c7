/* The HTTP server: libmicrohttpd with its epoll descriptor in the caller's loop, no thread of its own. */
#include "proxy/admin/http.h"

#include <microhttpd.h>
#include <string.h>

#include "proxy/base/memory.h"

enum { CONNECTIONS_MAX = 64, IDLE_SECONDS = 15, CONNECTION_BYTES = 16 * 1024 };

struct http {
    struct MHD_Daemon *daemon;
    const struct http_page *pages;
    size_t count;
    void *arg;
};

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type, const char *body,
                              size_t len) {
    struct MHD_Response *response = MHD_create_response_from_buffer(len, (void *)body, MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Content-Security-Policy",
                            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                            "connect-src 'self'; img-src data:; frame-ancestors 'none'");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned status, const char *text) {
    return answer(connection, status, "text/plain; charset=utf-8", text, strlen(text));
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state) {
    struct http *h = arg;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "this page can only be read\n");
    for (size_t i = 0; i < h->count; i++) {
        if (strcmp(url, h->pages[i].path) != 0)
            continue;
        struct text body = {0};
        unsigned status = h->pages[i].render(h->arg, &body);
        enum MHD_Result result = answer(connection, status, h->pages[i].type, body.data ? body.data : "", body.len);
        text_clear(&body);
        return result;
    }
    return answer_text(connection, MHD_HTTP_NOT_FOUND, "there is no such page\n");
}

struct http *http_open(int listen_fd, const struct http_page *pages, size_t count, void *arg) {
    struct http *h = memory_alloc(sizeof(*h));
    *h = (struct http){.pages = pages, .count = count, .arg = arg};
    h->daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, handle, h, MHD_OPTION_LISTEN_SOCKET, listen_fd,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                                 (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                                 MHD_OPTION_END);
    if (!h->daemon) {
        memory_free(h);
        return NULL;
    }
    return h;
}

int http_fd(const struct http *h) {
    return MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
}

long long http_wait_ms(struct http *h) {
    MHD_UNSIGNED_LONG_LONG ms;
    return MHD_get_timeout(h->daemon, &ms) == MHD_YES ? (long long)ms : -1;
}

void http_run(struct http *h) {
    MHD_run(h->daemon);
}

void http_close(struct http *h) {
    if (!h)
        return;
    MHD_stop_daemon(h->daemon);
    memory_free(h);
}
