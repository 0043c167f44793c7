#include "tests/fuzz/fuzz_world.h"

#include <ev.h>
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "parser/command.h"
#include "parser/slot.h"
#include "proxy/observe/observe.h"
#include "proxy/admin/admin.h"
#include "proxy/base/log.h"
#include "proxy/base/slowlog.h"
#include "proxy/lock/permits.h"
#include "proxy/session/locks/locks.h"
#include "proxy/worker/worker.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/system.h"

enum { INCIDENTS = 50 };

static struct {
    struct proxy_shared shared;
    struct worker *worker;
    struct incidents *incidents;
    struct ev_idle idle;
    struct sockaddr_un listener;
    socklen_t listener_len;
    bool (*turn)(void *arg);
    void *arg;
    bool ready;
} world;

/* ---- the proxy's surroundings --------------------------------------------------------------------- */

static void record_incident(void *arg, const struct lock_incident *i) {
    struct incident out = {.time_ms = i->time_ms};
    out.key_len = i->key.len < sizeof(out.key) ? i->key.len : sizeof(out.key);
    memcpy(out.key, i->key.name, out.key_len);
    snprintf(out.kind, sizeof(out.kind), "%s", lock_incident_name(i->kind));
    snprintf(out.client, sizeof(out.client), "%s", i->client ? i->client : "");
    snprintf(out.command, sizeof(out.command), "%s", i->command ? i->command : "");
    incidents_add(world.incidents, &out, i->action ? i->action : "");
}

static const char *incident_kind(size_t i) {
    return i < INCIDENT_KINDS ? lock_incident_name((enum lock_incident_kind)i) : NULL;
}

static bool run_admin(void *arg, struct worker *w, const char *const *words, const size_t *lens, size_t count,
                      bool resp3, struct text *reply) {
    struct admin_source source = {
        .worker = w, .report = worker_report, .incidents = world.incidents, .incident_kind = incident_kind};
    return admin_command(&source, words, lens, count, resp3, reply);
}

static struct watch_source watch = {.kinds = incident_kind,
                                    .listen = incidents_listen,
                                    .deaf = incidents_unlisten,
                                    .begin = incident_watch_new,
                                    .end = incident_watch_free,
                                    .lines = incident_watch_lines};

/* The configuration, whose limits are smaller than a file may set them. */
static struct config *make_config(const struct world_options *o) {
    char *argv[] = {"fuzz",
                    "--lock",
                    "lock:off*",
                    "mode",
                    "off",
                    "--lock",
                    "lock:audit*",
                    "mode",
                    "audit",
                    "--lock",
                    "lock:leave*",
                    "owner",
                    (char *)(uintptr_t)o->owner,
                    "on-disconnect",
                    "release",
                    "renew",
                    "always",
                    "--lock",
                    "lock:replicas*",
                    "owner",
                    (char *)(uintptr_t)o->owner,
                    "replicas",
                    "1",
                    "--lock",
                    "sem:*",
                    "kind",
                    "semaphore",
                    "lease",
                    "1s",
                    "--lock",
                    "lock:*",
                    "owner",
                    (char *)(uintptr_t)o->owner,
                    "mode",
                    o->audit ? "audit" : "enforce",
                    "--admin-port",
                    "1",
                    "--requirepass",
                    "secret"};
    int argc = (int)(sizeof argv / sizeof argv[0]) - (o->password ? 0 : 2);
    struct config_errors errors = {0};
    struct config *c = config_load(argc, argv, &errors);
    CHECK(errors.count == 0);
    c->bulk_max = o->small ? 3 << 20 : 512 << 20;
    c->query_buffer_limit = o->small ? 1 << 16 : 1 << 30;
    c->output_limit_hard = o->small ? 1 << 17 : 0;
    c->output_limit_soft = o->small ? 1 << 14 : 0;
    c->output_limit_soft_s = 2;
    c->output_pubsub_hard = c->output_pubsub_soft = 0;
    c->timeout_s = o->small ? 20 : 0;
    c->tcp_keepalive_s = 0;
    return c;
}

static void set_facts(const struct world_options *o) {
    static const char *node[] = {"127.0.0.1:7000"}, *seeds[] = {"127.0.0.1:7000", "127.0.0.1:7002"};
    static const enum upstream_kind kinds[] = {UPSTREAM_STANDALONE, UPSTREAM_CLUSTER, UPSTREAM_SENTINEL};
    struct proxy_shared *s = &world.shared;
    memset(s, 0, sizeof *s);
    s->version = "0";
    s->process_id = "01234567-89ab-cdef-0123-456789abcdef";
    s->started_ms = 1;
    s->threads = 1;
    s->maxclients = o->small ? 3 : 100;
    s->upstream_text = "fuzz";
    s->upstream = (struct upstream_config){.kind = kinds[o->upstream],
                                           .addresses = o->upstream == WORLD_STANDALONE ? node : seeds,
                                           .address_count = o->upstream == WORLD_STANDALONE ? 1 : 2,
                                           .sentinel_name = "mymaster",
                                           .connections = 1,
                                           .timeout_ms = 5000};
    upstream_own_login(UPSTREAM_OWN_NODES, NULL, o->password ? "secret" : NULL);
    s->workers = &world.worker;
    s->admin = run_admin;
    s->watch = &watch;
}

/* ---- running -------------------------------------------------------------------------------------- */

static void on_ready(void *arg, const char *error) {
    world.ready = true;
}

bool world_ready(void) {
    return world.ready;
}

static void on_idle(struct ev_loop *loop, struct ev_idle *idle, int events) {
    if (world.turn(world.arg))
        return;
    ev_idle_stop(loop, idle);
    worker_stop(world.worker, 0);
}

static struct worker_socket listen_here(void) {
    struct worker_socket s = {.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    struct sockaddr_un any = {.sun_family = AF_UNIX};
    world.listener_len = sizeof world.listener;
    CHECK(s.fd >= 0 && bind(s.fd, (struct sockaddr *)&any, sizeof any.sun_family) == 0 && listen(s.fd, 64) == 0);
    CHECK(getsockname(s.fd, (struct sockaddr *)&world.listener, &world.listener_len) == 0);
    return s;
}

int world_connect(void) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && system_connect(fd, (struct sockaddr *)&world.listener, world.listener_len) == 0);
    return fd;
}

void world_prepare(void) {
    static bool prepared;
    if (prepared)
        return;
    prepared = true;
    signal(SIGPIPE, SIG_IGN);
    command_table_init();
    slot_tags_init();
    CHECK(log_open("/dev/null"));
    log_set_level(LOG_LEVEL_DEBUG); /* what is logged of bytes from outside is put together too */
}

void world_run(const struct world_options *options, bool (*turn)(void *arg), void *arg) {
    struct lock_sink sink = {.incident = record_incident,
                             .renew = lock_note_renewal,
                             .release = lock_note_release,
                             .leave = lock_note_leaving,
                             .left = lock_note_left,
                             .learnt = lock_note_learnt};
    system_stop_clock();
    world.ready = false;
    world.turn = turn;
    world.arg = arg;
    set_facts(options);
    world.incidents = watch.incidents = incidents_new(INCIDENTS);
    world.shared.engine = engine_new(world.shared.process_id, 1, &sink);
    world.shared.observer = observer_new(1);
    world.shared.permits = permits_new(1);
    world.shared.slowlog = slowlog_new();
    world.shared.latency = latency_new();
    const struct config *config = make_config(options);
    struct worker_socket socket = listen_here();
    const struct worker_opening opening = {.sockets = &socket, .socket_count = 1, .ready = on_ready};
    world.worker = worker_new(&world.shared, 0, config, &opening);
    config_unref(config);
    ev_idle_init(&world.idle, on_idle);
    ev_idle_start(worker_loop(world.worker), &world.idle);
    worker_run(world.worker);
    worker_free(world.worker);
    engine_free(world.shared.engine);
    observer_free(world.shared.observer);
    permits_free(world.shared.permits);
    slowlog_free(world.shared.slowlog);
    latency_free(world.shared.latency);
    incidents_free(world.incidents);
    system_start_clock();
}
