/*
 * lockkeeper: reads the configuration, opens the listeners, connects engine, workers and signals, and waits.
 */
#include "proxy/private.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include "parser/command.h"
#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/advise/advise.h"
#include "proxy/base/clock.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/slowlog.h"
#include "proxy/base/units.h"
#include "proxy/lock/rule.h"
#include "proxy/lock/permits.h"
#include "proxy/session/locks/locks.h"

enum { INCIDENTS_KEPT = 256 /* of each kind */, ERROR_SIZE = 512, UUID_TEXT = 37 };

struct application {
    int argc;
    char **argv;
    struct config *config; /* of the start; `live` has the one in force */
    struct embedded *embedded;
    struct inherited inherited;
    struct listen_set listeners;
    struct secure secure;
    struct proxy_shared shared;
    struct incidents *incidents;
    struct pages *pages; /* the operator's HTTP server; NULL: none */
    struct ev_io pages_io;
    struct ev_timer pages_timer, pages_step; /* step: the next one of the walk */
    struct lock_walk *walk;                  /* gathers the leases for the status page; else NULL */
    struct text unready;                     /* why no lock could be had, when it was last asked for */
    struct lock_sink sink;
    struct watch_source watch;
    pthread_t *threads;
    atomic_uint ready;
    const char *embedded_addresses[1];
    char process_id[UUID_TEXT];
    struct text upstream_text;
    struct ev_signal signals[6]; /* of SIGNALS */
    struct ev_timer second;
    int64_t unruled_seen_ms, unruled_told_ms; /* locks without a rule: when first seen since last logged; 0: not yet */
    struct ending ending;
    struct live live;
};

/* ---- incidents ----------------------------------------------------------------------------------- */

static void put(char *out, size_t size, const char *text) {
    snprintf(out, size, "%s", text ? text : "");
}

static void record_incident(void *arg, const struct lock_incident *i) {
    struct application *app = arg;
    struct incident out = {.time_ms = i->time_ms + clock_set_by_ms()};
    out.key_len = i->key.len < sizeof(out.key) ? i->key.len : sizeof(out.key);
    memcpy(out.key, i->key.name, out.key_len);
    put(out.kind, sizeof(out.kind), lock_incident_name(i->kind));
    put(out.rule, sizeof(out.rule), i->rule);
    put(out.identity, sizeof(out.identity), i->identity);
    put(out.client, sizeof(out.client), i->client);
    put(out.command, sizeof(out.command), i->command);
    put(out.action, sizeof(out.action), i->action);
    if (i->holder)
        snprintf(out.holder, sizeof(out.holder), "%.*s", (int)i->holder_len, i->holder);
    incidents_add(app->incidents, &out, i->action ? i->action : "");
}

static void on_second(struct ev_loop *loop, struct ev_timer *timer, int events) {
    enum { AFTER_MS = 10 * 1000, AGAIN_MS = 60 * 60 * 1000 };
    struct application *app = timer->data;
    struct worker *first = app->shared.workers[0];
    char text[ADVISE_UNRULED_MAX];
    int64_t now_ms = clock_even_ms();
    incidents_tell(app->incidents, clock_wall_ms(), false);
    ending_tell(&app->ending, false);
    /* Locks without a rule: one line a little after they are seen, for all, then once an hour while they are in use. */
    if ((app->unruled_told_ms > 0 && now_ms - app->unruled_told_ms < AGAIN_MS) ||
        worker_unruled(first, app->unruled_told_ms) == 0)
        return;
    if (app->unruled_seen_ms == 0)
        app->unruled_seen_ms = now_ms;
    if (now_ms - app->unruled_seen_ms < AFTER_MS)
        return;
    advise_unruled_text(worker_unruled(first, 0), text, sizeof(text));
    log_warning("%s: PROXY ADVISE", text);
    app->unruled_told_ms = now_ms;
    app->unruled_seen_ms = 0;
}

/* ---- PROXY's pages ----------------------------------------------------------------------------------- */

static const char *admin_incident_kind(size_t i) {
    return i < INCIDENT_KINDS ? lock_incident_name((enum lock_incident_kind)i) : NULL;
}

static struct admin_source admin_source_of(struct application *app, struct worker *w) {
    return (struct admin_source){.worker = w,
                                 .report = worker_report,
                                 .config = live_show,
                                 .config_arg = &app->live,
                                 .incidents = app->incidents,
                                 .slowlog = app->shared.slowlog,
                                 .latency = app->shared.latency,
                                 .incident_kind = admin_incident_kind};
}

static bool run_admin(void *arg, struct worker *w, const char *const *words, const size_t *lens, size_t count,
                      bool resp3, struct text *reply) {
    struct admin_source source = admin_source_of(arg, w);
    return admin_command(&source, words, lens, count, resp3, reply);
}

/* ---- signals ------------------------------------------------------------------------------------- */

static const int SIGNALS[] = {SIGTERM, SIGINT, SIGQUIT, SIGUSR2, SIGHUP, SIGUSR1};
enum { SIGNAL_COUNT = ARRAY_SIZE(SIGNALS) };

static void on_signal(struct ev_loop *loop, struct ev_signal *signal, int events) {
    struct application *app = signal->data;
    if (signal->signum != SIGHUP && signal->signum != SIGUSR1) {
        ending_signal(&app->ending, signal->signum);
        return;
    }
    if (signal->signum == SIGHUP)
        notify_reloading();
    if (!log_reopen()) /* it may have been renamed */
        log_warning("logfile '%s' could not be opened again, and the log goes on in the old file: %s",
                    app->config->logfile, strerror(errno));
    if (signal->signum == SIGUSR1)
        return;
    live_reload(&app->live, NULL, 0); /* the log has the result */
    notify_state("READY=1");
}

static void stop_at_once(int signal) {
    _exit(0);
}

/* The first worker's loop has ended, while other threads may still work. */
static void unwatch_signals(struct application *app, struct ev_loop *loop) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (size_t i = 0; i < SIGNAL_COUNT; i++) {
        ev_ref(loop);
        ev_signal_stop(loop, &app->signals[i]);
        signal(SIGNALS[i], SIGNALS[i] == SIGTERM || SIGNALS[i] == SIGINT ? stop_at_once : SIG_IGN);
    }
    ev_ref(loop);
    ev_timer_stop(loop, &app->second);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* ---- start --------------------------------------------------------------------------------------- */

static void worker_ready(void *arg, const char *error) {
    struct application *app = arg;
    if (error)
        log_warning("%s; trying on", error);
    if (atomic_fetch_add(&app->ready, 1) + 1 < app->shared.threads)
        return;
    log_notice("Ready to accept connections on %s", app->listeners.text.data);
    notify_state("READY=1");
    inherit_tell(&app->inherited, HANDED_READY);
}

static void tell_let_go(void *arg) {
    inherit_tell(&((struct application *)arg)->inherited, HANDED_LET_GO);
}

/* Sets what workers need of the configuration and cannot read in it. */
static void share_facts(struct application *app) {
    const struct config *c = app->config;
    struct proxy_shared *shared = &app->shared;
    /* With systemd's sockets, `bind` does not tell where clients may come from. */
    bool anywhere = app->inherited.managed && c->share_upstream_user == CONFIG_SHARE_AUTO && !c->requirepass;
    bool shares_user = config_shares_user(c) && !anywhere;
    shared->version = LOCKKEEPER_VERSION;
    shared->process_id = app->process_id;
    shared->started_ms = clock_even_ms();
    shared->threads = (unsigned)c->threads;
    shared->reachable = !config_is_local(c) || app->inherited.managed;
    shared->space_mark = app->inherited.mark;
    shared->before = app->inherited.board;
    shared->let_go = tell_let_go;
    shared->let_go_arg = app;
    atomic_init(&shared->space_held, app->inherited.mark != NULL);
    shared->maxclients = c->maxclients;
    shared->stranger_login = config_logs_in(c) && !shares_user ? UPSTREAM_LOGIN_STRANGER : 0;
    shared->tls = app->secure.side[SECURE_CLIENTS];
    shared->witness_tls = app->secure.side[SECURE_WITNESSES];
    static const char *const kinds[] = {"embedded", "standalone", "cluster", "sentinel"};
    text_printf(&app->upstream_text, "%s", kinds[c->upstream]);
    if (c->sentinel_name)
        text_printf(&app->upstream_text, " %s", c->sentinel_name);
    for (size_t i = 0; i < c->upstream_addresses.count; i++)
        text_printf(&app->upstream_text, " %s", c->upstream_addresses.words[i]);
    shared->upstream_text = app->upstream_text.data;
    shared->upstream = (struct upstream_config){
        .kind = c->upstream == CONFIG_CLUSTER    ? UPSTREAM_CLUSTER
                : c->upstream == CONFIG_SENTINEL ? UPSTREAM_SENTINEL
                                                 : UPSTREAM_STANDALONE,
        .addresses = (const char **)c->upstream_addresses.words,
        .address_count = c->upstream_addresses.count,
        .sentinel_name = c->sentinel_name,
        .connections = (unsigned)c->upstream_connections,
        .pins_node = (unsigned)c->pinned_node,
        .pins_client = (unsigned)c->pinned_client,
        .timeout_ms = c->upstream_timeout_ms,
        .read_from = c->read_from == CONFIG_READ_REPLICAS  ? UPSTREAM_READ_REPLICAS
                     : c->read_from == CONFIG_READ_NEAREST ? UPSTREAM_READ_NEAREST
                                                           : UPSTREAM_READ_MASTERS,
        .tls = app->secure.side[SECURE_NODES],
    };
}

/* The embedded Redis kept no data: its leases are over, and their owners no longer hold their locks. */
static void embedded_ended(void *arg, const char *how) {
    enum { LOST_REPORTED = 100 };
    struct application *app = arg;
    unsigned lost = engine_lost(app->shared.engine, LOST_REPORTED, clock_even_ms());
    atomic_fetch_add(&app->shared.embedded_ends, 1);
    atomic_fetch_add(&app->shared.embedded_lost, lost);
    log_warning("The embedded Redis has ended (%s): all that it held is gone, %u leases too. It is started again", how,
                lost);
}

static void witness_ended(void *arg, const char *how) {
    const struct application *app = arg;
    log_warning("An embedded witness has ended (%s), and what it remembered is gone. It is started again, and confirms "
                "nothing for %lld s",
                how, (long long)app->config->witness_quarantine_ms / 1000);
}

static bool start_upstream(struct application *app, char *error, size_t size) {
    static const struct embedded_role role = {"upstream", "The embedded Redis", embedded_ended};
    if (app->config->upstream != CONFIG_EMBEDDED)
        return true;
    app->embedded_addresses[0] = embedded_start(&app->embedded, &role, error, size);
    if (!app->embedded)
        return false;
    app->shared.embedded = true;
    app->shared.upstream.addresses = app->embedded_addresses;
    app->shared.upstream.address_count = 1;
    log_warning("No upstream is configured: using an embedded redis-server at %s. Nothing is kept when lockkeeper "
                "stops; name your own with --upstream standalone HOST:PORT or --upstream cluster HOST:PORT ...",
                app->embedded_addresses[0]);
    return true;
}

/* Starts the witnesses of `witness embedded`. Their addresses take the place of the word. */
static bool start_witnesses(struct application *app, char *error, size_t size) {
    static const struct embedded_role role = {"witness", "An embedded witness", witness_ended};
    enum { WITNESSES_EMBEDDED = 3 };
    const char *addresses[WITNESSES_EMBEDDED];
    if (!config_witness_embedded(app->config))
        return true;
    for (int i = 0; i < WITNESSES_EMBEDDED; i++) {
        addresses[i] = embedded_start(&app->embedded, &role, error, size);
        if (!addresses[i])
            return false;
        log_warning("An embedded witness: a redis-server at %s, pid %d", addresses[i], embedded_pid(app->embedded));
    }
    config_set_witnesses(app->config, addresses, WITNESSES_EMBEDDED);
    log_warning("Embedded witnesses are for trials: they end with lockkeeper, and one machine's failure is the end of "
                "all; name your own with --witness HOST:PORT HOST:PORT HOST:PORT");
    return true;
}

/* ---- the operator's HTTP server, on the first worker's loop ---- */

static const char *unready(void *arg, bool all) {
    struct application *app = arg;
    if (app->ending.leaving || app->ending.stopping)
        return "the proxy stops";
    if (atomic_load(&app->ready) < app->shared.threads)
        return "not all threads accept clients yet";
    text_clear(&app->unready);
    return worker_unready(app->shared.workers[0], all, &app->unready) ? app->unready.data : NULL;
}

static void serve_pages(struct ev_loop *loop, struct application *app) {
    pages_run(app->pages);
    long long wait = pages_wait_ms(app->pages);
    ev_timer_stop(loop, &app->pages_timer);
    if (wait < 0)
        return;
    ev_timer_set(&app->pages_timer, (double)wait / 1000., 0.);
    ev_timer_start(loop, &app->pages_timer);
}

static void on_pages_readable(struct ev_loop *loop, struct ev_io *io, int events) {
    serve_pages(loop, io->data);
}

static void on_pages_time(struct ev_loop *loop, struct ev_timer *timer, int events) {
    serve_pages(loop, timer->data);
}

/* The status page's leases are gathered in steps, one for each turn. */
static void gather(void *arg) {
    struct application *app = arg;
    app->walk = engine_walk_new(LOCKS_SHOWN_MAX, false);
    ev_timer_start(worker_loop(app->shared.workers[0]), &app->pages_step);
}

static void on_pages_step(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct application *app = timer->data;
    struct worker *first = app->shared.workers[0];
    if (engine_walk_step(app->shared.engine, app->walk, worker_now(first))) {
        ev_timer_start(loop, timer);
        return;
    }
    first->walk = app->walk;
    pages_gathered(app->pages);
    first->walk = NULL;
    engine_walk_free(app->walk);
    app->walk = NULL;
    serve_pages(loop, app);
}

static void open_pages(struct application *app, struct ev_loop *loop) {
    const char *address = app->config->admin_bind;
    bool v6 = strchr(address, ':') != NULL;
    struct pages_source source = {.admin = admin_source_of(app, app->shared.workers[0]),
                                  .names = (const char *const *)app->config->admin_hosts.words,
                                  .name_count = app->config->admin_hosts.count,
                                  .arg = app,
                                  .metrics = worker_report_metrics,
                                  .unready = unready,
                                  .gather = gather};
    app->pages = pages_open(app->listeners.admin_fd, &source);
    if (!app->pages) {
        log_warning("The HTTP server does not start: there is no status page");
        return;
    }
    ev_io_init(&app->pages_io, on_pages_readable, pages_fd(app->pages), EV_READ);
    ev_init(&app->pages_timer, on_pages_time);
    ev_timer_init(&app->pages_step, on_pages_step, 0., 0.);
    app->pages_io.data = app->pages_timer.data = app->pages_step.data = app;
    ev_io_start(loop, &app->pages_io);
    log_notice("Status page, /metrics, /healthz and /readyz on http://%s%s%s:%lld/", v6 ? "[" : "", address,
               v6 ? "]" : "", (long long)app->config->admin_port);
}

/* In the loop's thread or after its end. */
static void close_pages(void *arg) {
    struct application *app = arg;
    struct ev_loop *loop = worker_loop(app->shared.workers[0]);
    if (app->pages) {
        ev_io_stop(loop, &app->pages_io);
        ev_timer_stop(loop, &app->pages_timer);
        ev_timer_stop(loop, &app->pages_step);
        if (app->walk)
            engine_walk_free(app->walk);
        pages_close(app->pages);
        app->pages = NULL;
    } else if (app->listeners.admin_fd >= 0) {
        close(app->listeners.admin_fd);
    }
    app->listeners.admin_fd = -1;
    text_clear(&app->unready);
}

/* ---- running ------------------------------------------------------------------------------------- */

static void *run_thread(void *arg) {
    worker_run(arg);
    return NULL;
}

static void run(struct application *app) {
    unsigned threads = app->shared.threads;
    app->shared.workers = memory_zalloc(threads * sizeof(*app->shared.workers));
    struct worker_opening opening = {
        .sockets = app->listeners.sockets, .socket_count = app->listeners.count, .ready = worker_ready, .arg = app};
    for (unsigned i = 0; i < threads; i++)
        app->shared.workers[i] = worker_new(&app->shared, i, app->config, &opening);
    struct ev_loop *loop = worker_loop(app->shared.workers[0]);
    if (app->listeners.admin_fd >= 0)
        open_pages(app, loop);
    app->ending = (struct ending){.shared = &app->shared,
                                  .listeners = &app->listeners,
                                  .close_pages = close_pages,
                                  .arg = app,
                                  .embedded = app->embedded,
                                  .argv = app->argv};
    embedded_watch(app->embedded, loop, app);
    for (size_t i = 0; i < SIGNAL_COUNT; i++) {
        ev_signal_init(&app->signals[i], on_signal, SIGNALS[i]);
        app->signals[i].data = app;
        ev_signal_start(loop, &app->signals[i]);
        ev_unref(loop);
    }
    ev_timer_init(&app->second, on_second, 1., 1.);
    app->second.data = app;
    ev_timer_start(loop, &app->second);
    ev_unref(loop);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    app->threads = memory_zalloc(threads * sizeof(*app->threads));
    for (unsigned i = 1; i < threads; i++)
        if (pthread_create(&app->threads[i], NULL, run_thread, app->shared.workers[i]) != 0) {
            log_warning("threads %u: the system gives no more threads", threads);
            _exit(1);
        }
    own_password_watch(app->config, false);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    worker_run(app->shared.workers[0]);
    unwatch_signals(app, loop);
    ending_tell(&app->ending, true);
    embedded_unwatch(app->embedded);
    for (unsigned i = 1; i < threads; i++)
        pthread_join(app->threads[i], NULL);
    own_password_end();
    close_pages(app);
    for (unsigned i = 0; i < threads; i++)
        worker_free(app->shared.workers[i]);
    MEMORY_FREE_ALL(app->threads, app->shared.workers);
}

static void print_error(int len, const char *line) {
    fprintf(stderr, "lockkeeper: %.*s\n", len, line);
}

/* Prints all errors; with several errors, also the consequence. Clears them. */
static int fail(struct config_errors *errors) {
    config_errors_each(errors, print_error);
    if (errors->count >= CONFIG_ERRORS_MAX)
        fprintf(stderr, "lockkeeper: not started: %d errors in the configuration, and maybe more\n",
                (int)CONFIG_ERRORS_MAX);
    else if (errors->count > 1)
        fprintf(stderr, "lockkeeper: not started: %zu errors in the configuration\n", errors->count);
    config_errors_clear(errors);
    return 1;
}

static void warn(const char *text) {
    printf("Warning: %s\n", text);
}

static void warn_log(const char *text) {
    log_warning("%s", text);
}

/* Reports rules that the operator may not have meant, and for each fence which clients it can't tell apart. */
static void tell_of_rules(const struct config *c, void (*tell)(const char *text)) {
    char text[640];
    size_t locks = lock_rules_count(c->rules), fences = lock_rules_fence_count(c->rules);
    for (size_t i = 0; i < locks + fences; i++)
        if (lock_rule_doubt(c->rules, i < locks ? i : i - locks, i >= locks, text, sizeof(text)) > 0)
            tell(text);
    for (size_t i = 0; i < fences; i++)
        if (lock_fence_blur(c->rules, lock_rules_fence(c->rules, i), text, sizeof(text)) > 0)
            tell(text);
}

/* Does everything that can fail before clients are served; `errors` gets the errors. */
static bool start(struct application *app, struct config_errors *errors) {
    const struct config *c = app->config;
    if (!live_check(c, app->inherited.count == 0, errors))
        return false;
    if (!log_open(c->logfile))
        return config_refuse(errors, c, "logfile", "logfile '%s': expected a file that can be written: %s", c->logfile,
                             strerror(errno));
    log_set_level(c->loglevel);
    log_set_json(c->log_json);
    uuid_t id;
    uuid_generate(id);
    uuid_unparse_lower(id, app->process_id);
    if (!secure_load(&app->secure, app->config, errors))
        return false;
    share_facts(app);
    if (app->shared.stranger_login && c->share_upstream_user == CONFIG_SHARE_AUTO)
        log_notice(
            "clients may come from other machines: they must log in themselves, only the proxy uses upstream-user; "
            "share-upstream-user yes makes clients without login that user");
    if (networks_are_all(c->proxy_protocol) && !config_is_local(c))
        log_warning("proxy-protocol yes: any client can claim any address; name the load balancers' addresses instead");
    tell_of_rules(c, warn_log);
    live_raise_limit(&app->shared, c, c->maxclients);
    if (!listen_open(&app->listeners, c, &app->inherited, false, errors))
        return false;
    app->shared.unix_path = app->listeners.unix_path;
    inherit_close_rest(&app->inherited);
    char error[ERROR_SIZE];
    if (!start_upstream(app, error, sizeof(error)))
        return config_refuse(errors, c, "upstream", "%s", error);
    if (!start_witnesses(app, error, sizeof(error)))
        return config_refuse(errors, c, "witness", "%s", error);
    FILE *pid = c->pidfile && c->pidfile[0] ? fopen(c->pidfile, "w") : NULL;
    if (pid)
        fprintf(pid, "%d\n", (int)getpid());
    if (c->pidfile && c->pidfile[0] && (!pid || fclose(pid) != 0))
        return config_refuse(errors, c, "pidfile", "pidfile '%s': expected a file that can be written: %s", c->pidfile,
                             strerror(errno));
    return true;
}

static uint64_t random_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        seed = (uint64_t)time(NULL) ^ (uint64_t)getpid();
    return seed;
}

/* lockkeeper --advise TIME, --advise-from FILE: the configuration has the Redis, its login, and the rules. */
static int advise(struct application *app, const char *what, bool file, struct config_errors *errors) {
    enum { LEAST_MS = 1000, MOST_MS = 24 * 60 * 60 * 1000 };
    int64_t for_ms = 0;
    if (!file && (!units_time(what, 1000, &for_ms) || for_ms < LEAST_MS || for_ms > MOST_MS)) {
        fprintf(stderr, "lockkeeper: --advise '%s': expected a time from 1s to 1d, for example 10m\n", what);
        return 1;
    }
    if (errors->count > 0)
        return fail(errors);
    if (file)
        return monitor_feed_file(what, app->config->rules, random_seed());
    if (app->config->upstream == CONFIG_EMBEDDED) {
        fprintf(stderr, "lockkeeper: --advise: name the Redis to listen to, for example --upstream standalone "
                        "127.0.0.1:6379\n");
        return 1;
    }
    if (!secure_load(&app->secure, app->config, errors) || !own_password_ask(app->config, false, errors))
        return fail(errors);
    log_set_level(LOG_LEVEL_NOTHING); /* the report goes to standard output, and contains the errors */
    share_facts(app);
    app->shared.upstream.connections = 1;
    return monitor_feed(&app->shared.upstream, app->config->rules, for_ms, random_seed());
}

/* Gives the parts of the process the functions by which they call each other. */
static void join_parts(struct application *app) {
    live_init(&app->live, app->argc, app->argv, app->config, &app->secure, &app->shared);
    app->shared.reload = live_reload;
    app->shared.next_upstream = live_next_upstream;
    app->shared.switched = live_switched;
    app->shared.reload_arg = &app->live;
    app->shared.admin = run_admin;
    app->shared.admin_arg = app;
    app->watch = (struct watch_source){.incidents = app->incidents,
                                       .kinds = admin_incident_kind,
                                       .listen = incidents_listen,
                                       .deaf = incidents_unlisten,
                                       .begin = incident_watch_new,
                                       .end = incident_watch_free,
                                       .lines = incident_watch_lines};
    app->shared.watch = &app->watch;
    app->sink = (struct lock_sink){.arg = app,
                                   .incident = record_incident,
                                   .renew = lock_note_renewal,
                                   .release = lock_note_release,
                                   .leave = lock_note_leaving,
                                   .left = lock_note_left,
                                   .learnt = lock_note_learnt,
                                   .alarm = lock_note_alarm};
}

static int serve(struct application *app, struct config_errors *errors) {
    uint64_t seed;
    inherit_read(&app->inherited);
    const char *event = getenv("npm_lifecycle_event");
    if (app->inherited.count == 0 && event && strcmp(event, "npx") == 0) /* the parent is no predecessor */
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* npx hands a signal on to its shell, which ends, and does not hand it on */
    if (!start(app, errors)) {
        embedded_stop(app->embedded);
        return fail(errors);
    }
    seed = random_seed();
    app->incidents = incidents_new(INCIDENTS_KEPT);
    join_parts(app);
    app->shared.engine = engine_new(app->process_id, seed, &app->sink);
    if (app->shared.threads == 1)
        engine_alone(app->shared.engine);
    app->shared.observer = observer_new(seed);
    app->shared.permits = permits_new(seed);
    app->shared.slowlog = slowlog_new();
    app->shared.latency = latency_new();
    log_notice("lockkeeper %s is starting, pid %d, upstream %s, lock rules: %zu", LOCKKEEPER_VERSION, (int)getpid(),
               app->shared.upstream_text, lock_rules_count(app->config->rules));
    run(app);
    engine_free(app->shared.engine);
    observer_free(app->shared.observer);
    permits_free(app->shared.permits);
    slowlog_free(app->shared.slowlog);
    latency_free(app->shared.latency);
    incidents_tell(app->incidents, clock_wall_ms(), true);
    incidents_free(app->incidents);
    embedded_stop(app->embedded);
    FILE *f = app->config->pidfile && app->config->pidfile[0] ? fopen(app->config->pidfile, "r") : NULL;
    int pid = 0; /* a process that took over may have written its own */
    if (f && fscanf(f, "%d", &pid) == 1 && pid == (int)getpid())
        unlink(app->config->pidfile);
    if (f)
        fclose(f);
    listen_close(&app->listeners, app->ending.handed);
    live_clear(&app->live);
    inherit_free(&app->inherited);
    log_notice("Stopped");
    return 0;
}

static int print_help(void) {
    puts("Usage: lockkeeper [CONFIG-FILE] [--DIRECTIVE VALUE ...] ...\n"
         "       lockkeeper --version | --help | --test-conf [CONFIG-FILE]\n"
         "       lockkeeper --advise TIME [CONFIG-FILE] --upstream ...     which locks of that Redis are unsafe, by "
         "MONITOR\n"
         "       lockkeeper --advise-from FILE|-                           the same for what redis-cli MONITOR has "
         "written\n\n"
         "A lock proxy for Redis: point applications at its port instead of Redis's.\n"
         "Example: lockkeeper --port 6380 --upstream standalone 127.0.0.1:6379\n\nDirectives:");
    for (size_t i = 0; i < config_directive_count(); i++) {
        struct config_directive d = config_directive_get(i);
        printf("  %s %s\n      %s (default: %s%s)\n", d.name, d.value, d.help, d.fallback,
               config_directive_live(i) ? "; reload" : "");
    }
    return 0;
}

int main(int argc, char **argv) {
    static struct application app;
    struct config_errors errors = {0};
    int test_at = 1;
    while (test_at < argc && strcmp(argv[test_at], "--test-conf") != 0)
        test_at++;
    bool test = test_at < argc;
    if (test) { /* takes the word out, with the NULL behind the words */
        memmove(argv + test_at, argv + test_at + 1, (size_t)(argc - test_at) * sizeof(*argv));
        argc--;
    }
    bool file = argc > 1 && strcmp(argv[1], "--advise-from") == 0;
    bool advises = file || (argc > 1 && strcmp(argv[1], "--advise") == 0);
    const char *advised = advises && argc > 2 ? argv[2] : "";
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return print_help();
    if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0)) {
        printf("lockkeeper %s\n", LOCKKEEPER_VERSION);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGUSR1, SIG_IGN); /* until it is watched: there is no log file to reopen yet */
#ifdef NDEBUG
    invariant_start(warn_log, false);
#else
    invariant_start(warn_log, true);
#endif
    command_table_init();
    slot_tags_init();
    int words = advises ? (argc > 2 ? 2 : 1) : 0; /* the configuration file comes after them */
    argv[words] = argv[0];
    argv += words;
    argc -= words;
    app.argc = argc;
    app.argv = argv;
    app.config = config_load(argc, argv, &errors);
    int status = 0;
    if (advises) {
        status = advise(&app, advised, file, &errors);
    } else if (errors.count > 0 || test) {
        if (live_check(app.config, true, &errors)) {
            tell_of_rules(app.config, warn);
            live_look_up(app.config, warn);
            puts("Configuration OK");
        } else {
            status = fail(&errors);
        }
    } else {
        status = serve(&app, &errors);
    }
    secure_clear(&app.secure);
    config_unref(app.config);
    text_clear(&app.upstream_text);
    return status;
}
