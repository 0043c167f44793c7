/* Connects the HTTP server with the first worker's loop. */

#include "proxy/private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/session_worker.h"

struct admin_server {
    int fd;
    struct pages *pages;
    struct worker *first;
    const char *(*unready)(void *arg);
    void *unready_arg;
    struct ev_io io;
    struct ev_timer timer;
    struct ev_timer step;   /* for the next step of the walk */
    struct lock_walk *walk; /* gathers the leases for the status page; else NULL */
    struct text reason;     /* why no lock could be had, when it was last asked for */
};

static const char *unready(void *arg, bool all) {
    struct admin_server *m = arg;
    const char *missing = m->unready(m->unready_arg);
    text_clear(&m->reason);
    return missing ? missing : worker_unready(m->first, all, &m->reason) ? m->reason.data : NULL;
}

static void serve(struct ev_loop *loop, struct admin_server *m) {
    pages_run(m->pages);
    long long wait = pages_wait_ms(m->pages);
    ev_timer_stop(loop, &m->timer);
    if (wait < 0)
        return;
    ev_timer_set(&m->timer, (double)wait / 1000., 0.);
    ev_timer_start(loop, &m->timer);
}

/* ---- the status page's leases, gathered in steps, one for each turn -------------------------------------------- */

static void gather(void *arg) {
    struct admin_server *m = arg;
    m->walk = engine_walk_new(LOCKS_SHOWN_MAX);
    ev_timer_start(worker_loop(m->first), &m->step);
}

static void on_step(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct admin_server *m = timer->data;
    if (engine_walk_step(m->first->shared->engine, m->walk, worker_now(m->first))) {
        ev_timer_start(loop, timer);
        return;
    }
    m->first->walk = m->walk;
    pages_gathered(m->pages);
    m->first->walk = NULL;
    engine_walk_free(m->walk);
    m->walk = NULL;
    serve(loop, m);
}

static void on_readable(struct ev_loop *loop, struct ev_io *io, int events) {
    serve(loop, io->data);
}

static void on_time(struct ev_loop *loop, struct ev_timer *timer, int events) {
    serve(loop, timer->data);
}

struct admin_server *admin_server_new(int fd, const struct config *config, struct worker *first,
                                      const struct admin_source *admin, const char *(*is_unready)(void *arg),
                                      void *unready_arg) {
    const char *address = config->admin_bind;
    bool v6 = strchr(address, ':') != NULL;
    struct admin_server *m = memory_zalloc(sizeof(*m));
    *m = (struct admin_server){.fd = fd, .first = first, .unready = is_unready, .unready_arg = unready_arg};
    struct pages_source source = {.admin = *admin,
                                  .names = (const char *const *)config->admin_hosts.words,
                                  .name_count = config->admin_hosts.count,
                                  .arg = m,
                                  .metrics = worker_report_metrics,
                                  .unready = unready,
                                  .gather = gather};
    m->pages = pages_open(fd, &source);
    if (!m->pages) {
        log_warning("The HTTP server does not start: there is no status page");
        return m;
    }
    ev_io_init(&m->io, on_readable, pages_fd(m->pages), EV_READ);
    ev_init(&m->timer, on_time);
    ev_timer_init(&m->step, on_step, 0., 0.);
    m->io.data = m->timer.data = m->step.data = m;
    ev_io_start(worker_loop(first), &m->io);
    log_notice("Status page, /metrics, /healthz and /readyz on http://%s%s%s:%lld/", v6 ? "[" : "", address,
               v6 ? "]" : "", (long long)config->admin_port);
    return m;
}

void admin_server_close(struct admin_server *m) {
    if (!m)
        return;
    if (m->pages) {
        ev_io_stop(worker_loop(m->first), &m->io);
        ev_timer_stop(worker_loop(m->first), &m->timer);
        ev_timer_stop(worker_loop(m->first), &m->step);
        if (m->walk)
            engine_walk_free(m->walk);
        pages_close(m->pages);
    } else {
        close(m->fd);
    }
    text_clear(&m->reason);
    memory_free(m);
}
