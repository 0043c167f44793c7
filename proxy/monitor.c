/* Wires the HTTP server to the first worker's loop. */
#include "proxy/monitor.h"

#include <errno.h>
#include <ev.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proxy/base/memory.h"

enum { BACKLOG = 64 };

struct monitor {
    int fd;
    struct http *http;
    struct pages_source source;
    struct worker *first;
    const char *(*unready)(void *arg);
    void *unready_arg;
    struct ev_io io;
    struct ev_timer timer;
    struct text address;
};

struct monitor *monitor_open(struct listen_set *set, const struct config *config, struct config_errors *errors) {
    const char *address = config->admin_bind;
    int fd = listen_admin(set, config, BACKLOG, errors);
    if (fd < 0)
        return NULL;
    struct monitor *m = memory_zalloc(sizeof(*m));
    m->fd = fd;
    bool v6 = strchr(address, ':') != NULL;
    text_printf(&m->address, "%s%s%s:%lld", v6 ? "[" : "", address, v6 ? "]" : "", (long long)config->admin_port);
    return m;
}

int monitor_socket(const struct monitor *m) {
    return m->fd;
}

const char *monitor_text(const struct monitor *m) {
    return m->address.data;
}

static void collect(void *arg, const struct metric_sink *sink) {
    worker_report_metrics(((struct monitor *)arg)->first, sink);
}

static const char *unready(void *arg) {
    struct monitor *m = arg;
    const char *missing = m->unready(m->unready_arg);
    if (missing)
        return missing;
    return worker_upstream_serves(m->first) ? NULL : "a node of the upstream can't be reached";
}

static void serve(struct ev_loop *loop, struct monitor *m) {
    http_run(m->http);
    long long wait = http_wait_ms(m->http);
    ev_timer_stop(loop, &m->timer);
    if (wait < 0)
        return;
    ev_timer_set(&m->timer, (double)wait / 1000., 0.);
    ev_timer_start(loop, &m->timer);
}

static void on_readable(struct ev_loop *loop, struct ev_io *io, int events) {
    serve(loop, io->data);
}

static void on_time(struct ev_loop *loop, struct ev_timer *timer, int events) {
    serve(loop, timer->data);
}

bool monitor_start(struct monitor *m, struct worker *first, const struct admin_source *admin,
                   const char *(*is_unready)(void *arg), void *unready_arg) {
    m->first = first;
    m->unready = is_unready;
    m->unready_arg = unready_arg;
    m->source = (struct pages_source){.admin = *admin, .arg = m, .metrics = collect, .unready = unready};
    m->http = pages_open(m->fd, &m->source);
    if (!m->http)
        return false;
    ev_io_init(&m->io, on_readable, http_fd(m->http), EV_READ);
    ev_init(&m->timer, on_time);
    m->io.data = m->timer.data = m;
    ev_io_start(worker_loop(first), &m->io);
    return true;
}

void monitor_close(struct monitor *m) {
    if (!m)
        return;
    if (m->http) {
        ev_io_stop(worker_loop(m->first), &m->io);
        ev_timer_stop(worker_loop(m->first), &m->timer);
        http_close(m->http);
    } else {
        close(m->fd);
    }
    text_clear(&m->address);
    memory_free(m);
}
