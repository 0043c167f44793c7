/*
 * The operator's HTTP server: / /status.json (RFC 8259) /metrics (Prometheus's text format 0.0.4) /healthz /readyz,
 * read-only, served by libmicrohttpd without threads, with its epoll descriptor in the caller's loop.
 *
 *      caller's loop: pages_fd readable, or pages_wait_ms over ──> pages_run ──┬─> new connections, a few at a time
 *                                                                              ├─> libmicrohttpd ──> a page
 *                                                                              └─> connections that are given up
 *
 * Every connection is accepted, and serves one request, within 10 s. If one address, or all together, have too many
 * connections, the oldest connection of the address with most is closed: of a client that sends byte by byte, or does
 * not read. The Host of a request has to be an address, localhost, or a name of this machine. Otherwise a foreign web
 * page could read the pages, if its name was made to point to this address (DNS rebinding).
 */
#include "proxy/admin/admin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
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
    ADDRESS_MAX = 32,   /* connections that one address may have */
    ACCEPTED_A_RUN = 8, /* so that a new connection has some turns before it is the oldest */
    WHOLE_MS = 10000,   /* from the connection to the last byte of the answer */
    PAUSE_MS = 200,     /* after running out of descriptors */
    CONNECTION_BYTES = 16 * 1024,
    NAME_MAX_LEN = 255, /* of a host */
    ADDRESS_BYTES = 8,  /* the prefix of an IPv6 address: one machine has all addresses with the same prefix */
    LINE_MAX = 512,
    INCIDENTS_SHOWN = 50,
    SUMS_SHOWN = 20,
    ADVICE_SHOWN = 50,
    TEXT_SHOWN = 256, /* bytes shown of texts without a limit of their own: keys */
    LONG_SHOWN = 4096 /* bytes shown of lines that people copy as a whole */
};

struct visit {
    struct list_node link; /* the oldest first */
    int fd;
    int64_t deadline_ms;
    unsigned char address[ADDRESS_BYTES];
    struct MHD_Connection *waiting; /* while the leases are gathered */
    bool gathered;                  /* they have been gathered, for this request too */
    bool given_up;
};

struct pages {
    struct MHD_Daemon *daemon;
    struct pages_source source;
    int listen_fd, poll_fd;
    struct list_node visits;
    size_t visit_count;
    int64_t paused_until_ms; /* no connections are accepted; 0: they are */
    bool gathering;
    struct MHD_Response *status; /* the status page rendered last */
};

/* ---- /metrics ------------------------------------------------------------------------------------ */

struct metrics {
    struct text *out;
    const char *prefix, *name;
};

static void put_family(void *arg, const char *name, const char *type, const char *help) {
    struct metrics *m = arg;
    m->name = name;
    m->prefix = strncmp(name, "process_", 8) == 0 ? "" : "lockkeeper_";
    text_printf(m->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", m->prefix, name, help, m->prefix, name, type);
}

/* Appends NAME="VALUE", if there is a label. */
static void put_label(struct text *out, const char *label, const char *value) {
    if (!label)
        return;
    text_printf(out, "%s=\"", label);
    for (const char *p = value; *p; p++) {
        if (*p == '\n')
            text_append(out, "\\n", 2);
        else if (*p == '"' || *p == '\\')
            text_printf(out, "\\%c", *p);
        else
            text_append(out, p, 1);
    }
    text_append(out, "\"", 1);
}

static void put_sample(void *arg, const char *suffix, const char *label, const char *label_value, double value) {
    struct metrics *m = arg;
    text_printf(m->out, "%s%s%s", m->prefix, m->name, suffix);
    if (label) {
        text_append(m->out, "{", 1);
        put_label(m->out, label, label_value);
        text_append(m->out, "}", 1);
    }
    text_printf(m->out, " %.15g\n", value);
}

static void put_histogram(void *arg, const char *label, const char *label_value, const struct histogram *h) {
    struct metrics *m = arg;
    uint64_t count = 0;
    for (unsigned i = 0; i <= HISTOGRAM_BOUNDS; i++) {
        char bound[32] = "+Inf";
        if (i < HISTOGRAM_BOUNDS)
            snprintf(bound, sizeof(bound), "%.15g", (double)histogram_bounds[i] / 1e6);
        count += h->counts[i];
        text_printf(m->out, "%s%s_bucket{", m->prefix, m->name);
        put_label(m->out, label, label_value);
        text_printf(m->out, "%sle=\"%s\"} %llu\n", label ? "," : "", bound, (unsigned long long)count);
    }
    put_sample(arg, "_sum", label, label_value, (double)h->sum_us / 1e6);
    put_sample(arg, "_count", label, label_value, (double)count);
}

/* ---- /status.json -------------------------------------------------------------------------------- */

/* Appends at most `max` bytes of a string in readable form, since keys may contain any bytes. */
static void put_string(struct text *out, const char *data, size_t len, size_t max) {
    struct text visible = {0};
    text_append_shown(&visible, data, len, max);
    text_append(out, "\"", 1);
    char *at = text_reserve(out, visible.len * JSON_ESCAPED_MAX);
    text_commit(out, (size_t)(json_escape(at, visible.len > 0 ? visible.data : "", visible.len) - at));
    text_append(out, "\"", 1);
    text_clear(&visible);
}

struct json {
    struct text *out;
    const char *array; /* the one that is open, or NULL */
    size_t shown;      /* bytes shown of a text */
    size_t rows, fields;
};

static void put_name(struct json *j, const char *name) {
    if (j->fields++ > 0)
        text_append(j->out, ",", 1);
    put_string(j->out, name, strlen(name), TEXT_SHOWN);
    text_append(j->out, ":", 1);
}

static void json_row(void *arg) {
    struct json *j = arg;
    text_printf(j->out, "%s{", j->rows > 0 ? "}," : "");
    j->rows++;
    j->fields = 0;
}

static void json_text(void *arg, const char *name, const char *value, size_t len) {
    struct json *j = arg;
    put_name(j, name);
    put_string(j->out, value, len, j->shown);
}

static void json_number(void *arg, const char *name, int64_t value) {
    struct json *j = arg;
    put_name(j, name);
    text_printf(j->out, "%lld", (long long)value);
}

static void json_section(void *arg, const char *name) {
}

static void json_line(void *arg, const char *name, const char *format, ...) {
    char value[LINE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    json_text(arg, name, value, strlen(value));
}

static void put_incident(void *arg, const struct incident *i) {
    struct json *j = arg;
    struct text sentence = {0};
    incident_sentence(i, &sentence);
    json_row(j);
    json_number(j, "time-ms", i->time_ms);
    json_text(j, "kind", i->kind, strlen(i->kind));
    json_text(j, "text", sentence.data, sentence.len);
    json_number(j, "count", (int64_t)i->count);
    text_clear(&sentence);
}

static void put_sum(void *arg, const struct incident_sum *s) {
    struct json *j = arg;
    json_row(j);
    json_text(j, "kind", s->kind, strlen(s->kind));
    json_text(j, "rule", s->last->rule, strlen(s->last->rule));
    json_text(j, "client", s->last->identity, strlen(s->last->identity));
    json_text(j, "key", s->last->key, s->last->key_len);
    json_number(j, "count", (int64_t)s->count);
    json_number(j, "first-ms", s->first_ms);
    json_number(j, "last-ms", s->last->time_ms);
}

/* Appends a line of advice to an array of strings. */
static void put_advice(void *arg, const char *name, const char *line, size_t len) {
    struct json *j = arg;
    if (j->rows == ADVICE_SHOWN)
        return;
    text_append(j->out, ",", j->rows++ > 0);
    put_string(j->out, line, len, LONG_SHOWN);
}

/* Ends the array before, and begins "name":[; NULL: none. */
static void array_next(struct json *j, const char *name) {
    if (j->array)
        text_printf(j->out, "%s]", j->rows > 0 ? "}" : "");
    if (name)
        text_printf(j->out, ",\"%s\":[", name);
    j->array = name;
    j->rows = 0;
}

static void put_status(const struct pages *p, struct text *out) {
    static const struct incident_filter any;
    const struct admin_source *source = &p->source.admin;
    struct json j = {.out = out, .shown = TEXT_SHOWN};
    struct report r = {.arg = &j,
                       .section = json_section,
                       .line = json_line,
                       .row = json_row,
                       .text = json_text,
                       .number = json_number};
    static const struct {
        const char *name;
        enum report_kind kind;
    } arrays[] = {{"nodes", REPORT_NODES},  {"locks", REPORT_LOCKS},   {"contention", REPORT_CONTENTION},
                  {"times", REPORT_TIMES},  {"shared", REPORT_SHARED}, {"rules", REPORT_RULES},
                  {"advice", REPORT_ADVICE}};
    text_printf(out, "{\"ready\":%s,\"figures\":{", p->source.unready(p->source.arg, false) ? "false" : "true");
    (void)source->report(source->worker, REPORT_INFO, &r);
    text_printf(out, "}");
    for (size_t i = 0; i < ARRAY_SIZE(arrays); i++) {
        array_next(&j, arrays[i].name);
        r.text = arrays[i].kind == REPORT_ADVICE ? put_advice : json_text;
        j.shown = arrays[i].kind == REPORT_RULES ? LONG_SHOWN : TEXT_SHOWN;
        (void)source->report(source->worker, arrays[i].kind, &r);
    }
    j.rows = 0; /* advice are texts, which have no end */
    array_next(&j, "summary");
    incidents_sums(source->incidents, &any, SUMS_SHOWN, put_sum, &j);
    array_next(&j, "incidents");
    (void)incidents_each(source->incidents, &any, INCIDENTS_SHOWN, put_incident, &j);
    array_next(&j, NULL);
    text_printf(out, "}\n");
}

/* ---- the pages ----------------------------------------------------------------------------------- */

/* page.html, embedded at build time */
extern const unsigned char page_html[];
extern const unsigned page_html_len;

enum page { PAGE_HOME, PAGE_STATUS, PAGE_METRICS, PAGE_ALIVE, PAGE_READY_ALL, PAGE_READY, PAGES };

static const struct {
    const char *path;
    const char *query; /* a word that the request's query must contain; NULL: none */
    const char *type;  /* Content-Type */
} PAGE[PAGES] = {{"/", NULL, "text/html; charset=utf-8"},
                 {"/status.json", NULL, "application/json"},
                 {"/metrics", NULL, "text/plain; version=0.0.4; charset=utf-8"},
                 {"/healthz", NULL, "text/plain; charset=utf-8"},
                 {"/readyz", "all", "text/plain; charset=utf-8"},
                 {"/readyz", NULL, "text/plain; charset=utf-8"}};

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

static struct MHD_Response *render(struct pages *p, enum page page, unsigned *status) {
    struct text body = {0};
    struct metrics m = {.out = &body};
    struct metric_sink sink = {.arg = &m, .family = put_family, .sample = put_sample, .histogram = put_histogram};
    const char *missing = NULL;
    switch (page) {
    case PAGE_HOME:
        text_append(&body, page_html, page_html_len);
        break;
    case PAGE_STATUS:
        put_status(p, &body);
        break;
    case PAGE_METRICS:
        p->source.metrics(p->source.admin.worker, &sink);
        break;
    case PAGE_READY_ALL:
    case PAGE_READY:
        missing = p->source.unready(p->source.arg, page == PAGE_READY_ALL);
        text_printf(&body, "%s\n", missing ? missing : "ok");
        break;
    case PAGE_ALIVE: /* an answer at all is the proof */
    case PAGES:
        text_printf(&body, "ok\n");
        break;
    }
    *status = missing ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK;
    struct MHD_Response *response = response_of(PAGE[page].type, body.data ? body.data : "", body.len);
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

/* libmicrohttpd decides the parameters. */
static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state) {
    struct pages *p = arg;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct visit *visit = info ? info->socket_context : NULL;
    struct hosts hosts = {.count = 0};
    if (!visit)
        return MHD_NO;
    if (visit->gathered)
        return p->status ? MHD_queue_response(connection, MHD_HTTP_OK, p->status) : MHD_NO;
    MHD_get_connection_values(connection, MHD_HEADER_KIND, note_host, &hosts);
    bool nameless = hosts.count == 0 && strcmp(version, "HTTP/1.0") == 0; /* no browser speaks it */
    if (!nameless && hosts.count != 1)
        return answer_text(connection, MHD_HTTP_BAD_REQUEST, "a request has one Host\n");
    if (!nameless && !host_is_ours(hosts.name, p->source.names, p->source.name_count))
        return answer_text(connection, MHD_HTTP_MISDIRECTED_REQUEST,
                           "lockkeeper is not known under the name in the request's Host header: use an "
                           "address or localhost, or add the name to admin-host\n");
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "this page can only be read\n");
    enum page page = 0;
    for (; page < PAGES; page++) {
        const char *query = PAGE[page].query, *value;
        size_t size;
        if (strcmp(url, PAGE[page].path) == 0 &&
            (!query || MHD_lookup_connection_value_n(connection, MHD_GET_ARGUMENT_KIND, query, strlen(query), &value,
                                                     &size) == MHD_YES))
            break;
    }
    if (page == PAGES)
        return answer_text(connection, MHD_HTTP_NOT_FOUND, "there is no such page\n");
    if (page == PAGE_STATUS) {
        visit->waiting = connection;
        MHD_suspend_connection(connection);
        if (!p->gathering)
            p->source.gather(p->source.arg);
        p->gathering = true;
        return MHD_YES;
    }
    unsigned status;
    struct MHD_Response *response = render(p, page, &status);
    if (!response)
        return MHD_NO;
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static void resume_waiting(struct pages *p) {
    LIST_EACH(v, &p->visits, struct visit, link) {
        if (!v->waiting)
            continue;
        v->gathered = true;
        MHD_resume_connection(v->waiting);
        v->waiting = NULL;
    }
}

void pages_gathered(struct pages *p) {
    unsigned status;
    invariant(p->gathering, "facts were gathered for no page");
    if (p->status)
        MHD_destroy_response(p->status);
    p->status = render(p, PAGE_STATUS, &status);
    p->gathering = false;
    resume_waiting(p);
}

/* ---- connections ----------------------------------------------------------------------------------- */

static void on_connection(void *arg, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code) {
    struct pages *p = arg;
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
        list_append(&p->visits, &v->link);
        p->visit_count++;
        *context = v;
    } else {
        struct visit *v = *context;
        list_remove(&v->link);
        p->visit_count -= v->given_up ? 0 : 1;
        memory_free(v);
    }
}

/* libmicrohttpd then finds the connection ended, and closes it. */
static void give_up(struct pages *p, struct visit *v) {
    invariant(!v->given_up && p->visit_count > 0, "%zu connections are counted", p->visit_count);
    shutdown(v->fd, SHUT_RDWR);
    v->given_up = true;
    p->visit_count--;
}

/* Gives up the oldest connection of the address with most, if that or all together are too many. Returns whether so. */
static bool give_up_one(struct pages *p, size_t room) {
    struct visit *victim = NULL;
    size_t most = 0;
    LIST_EACH(v, &p->visits, struct visit, link) {
        size_t count = 0;
        LIST_EACH(o, &p->visits, const struct visit, link)
            count += !o->given_up && memcmp(o->address, v->address, ADDRESS_BYTES) == 0;
        if (!v->given_up && count > most) { /* the first is the oldest */
            most = count;
            victim = v;
        }
    }
    if (!victim || (most <= ADDRESS_MAX && p->visit_count <= room))
        return false;
    give_up(p, victim);
    return true;
}

static void listen_for(struct pages *p, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = p->listen_fd};
    (void)epoll_ctl(p->poll_fd, EPOLL_CTL_MOD, p->listen_fd, &event);
    p->paused_until_ms = events ? 0 : clock_even_ms() + PAUSE_MS;
}

/* Accepts some of the waiting connections. Without a free descriptor an old connection has to go first. */
static void let_in(struct pages *p) {
    if (p->paused_until_ms && p->paused_until_ms <= clock_even_ms())
        listen_for(p, EPOLLIN);
    for (int i = 0; i < ACCEPTED_A_RUN && !p->paused_until_ms; i++) {
        struct sockaddr_storage from;
        socklen_t len = sizeof(from);
        int fd = accept4(p->listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == ECONNABORTED || errno == EINTR))
            continue;
        if (fd < 0) {
            if (errno != EAGAIN && !give_up_one(p, 0))
                listen_for(p, 0);
            return;
        }
        (void)MHD_add_connection(p->daemon, fd, (struct sockaddr *)&from, len); /* closes fd if it fails */
    }
}

void pages_run(struct pages *p) {
    let_in(p);
    MHD_run(p->daemon);
    int64_t now = clock_even_ms();
    LIST_EACH(v, &p->visits, struct visit, link)
        if (!v->given_up && v->deadline_ms <= now)
            give_up(p, v);
    size_t before = p->visit_count;
    while (give_up_one(p, CONNECTIONS_MAX))
        ;
    if (p->visit_count < before)
        MHD_run(p->daemon); /* so that given up connections are closed before others are accepted */
}

/* ---- the server ------------------------------------------------------------------------------------ */

struct pages *pages_open(int listen_fd, const struct pages_source *source) {
    struct pages *p = memory_zalloc(sizeof(*p));
    p->source = *source;
    p->listen_fd = listen_fd;
    p->poll_fd = -1;
    list_init(&p->visits);
    p->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
                                 handle, p, MHD_OPTION_NOTIFY_CONNECTION, on_connection, p, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)(2 * CONNECTIONS_MAX), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    if (p->daemon) {
        int daemon_fd = MHD_get_daemon_info(p->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
        struct epoll_event daemon = {.events = EPOLLIN, .data.fd = daemon_fd};
        struct epoll_event listener = {.events = EPOLLIN, .data.fd = p->listen_fd};
        p->poll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (p->poll_fd >= 0 && epoll_ctl(p->poll_fd, EPOLL_CTL_ADD, daemon_fd, &daemon) == 0 &&
            epoll_ctl(p->poll_fd, EPOLL_CTL_ADD, p->listen_fd, &listener) == 0)
            return p;
        MHD_stop_daemon(p->daemon);
    }
    if (p->poll_fd >= 0)
        close(p->poll_fd);
    memory_free(p);
    return NULL;
}

int pages_fd(const struct pages *p) {
    return p->poll_fd;
}

long long pages_wait_ms(struct pages *p) {
    MHD_UNSIGNED_LONG_LONG ms;
    if (MHD_get_timeout(p->daemon, &ms) == MHD_YES && ms == 0)
        return 0;
    int64_t until = p->paused_until_ms ? p->paused_until_ms : INT64_MAX, now = clock_even_ms();
    LIST_EACH(v, &p->visits, const struct visit, link)
        if (!v->given_up && v->deadline_ms < until)
            until = v->deadline_ms;
    return until == INT64_MAX ? -1 : until > now ? (long long)(until - now) : 0;
}

void pages_close(struct pages *p) {
    resume_waiting(p);
    MHD_stop_daemon(p->daemon);
    if (p->status)
        MHD_destroy_response(p->status);
    close(p->poll_fd);
    close(p->listen_fd);
    memory_free(p);
}
