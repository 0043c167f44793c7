/*
 * What monitoring may measure of workers, nodes and locks, handed over as proxy/base/metric.h has it.
 *
 *      each worker, once a second: what it knows of its nodes ──> its board ──┐
 *      the first worker, when asked: counters (atomic) and all boards ────────┴──> sink
 */
#include <stdio.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/session.h"
#include "proxy/worker/private.h"

/* ---- boards -------------------------------------------------------------------------------------- */

static struct node_figures *figures_of(struct node_board *b, const char *address) {
    for (size_t i = 0; i < b->count; i++)
        if (strcmp(b->nodes[i].address, address) == 0)
            return &b->nodes[i];
    b->nodes = memory_realloc(b->nodes, (b->count + 1) * sizeof(*b->nodes));
    struct node_figures *f = &b->nodes[b->count++];
    *f = (struct node_figures){.state = "idle"};
    snprintf(f->address, sizeof(f->address), "%s", address);
    return f;
}

static bool is_down(const struct node_figures *f) {
    return strcmp(f->state, "down") == 0;
}

/* Of one node's states as two threads see it, the one that an operator should hear of. */
static const char *graver_state(const char *a, const char *b) {
    static const char *const order[] = {"down", "connecting", "up"};
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        if (strcmp(a, order[i]) == 0 || strcmp(b, order[i]) == 0)
            return order[i];
    return a;
}

static void add_figures(struct node_board *b, const struct node_figures *from) {
    struct node_figures *f = figures_of(b, from->address);
    f->state = graver_state(f->state, from->state);
    f->master |= from->master;
    f->slots = from->slots;
    f->connections += from->connections;
    f->pinned += from->pinned;
    f->in_flight += from->in_flight;
    f->unsent_bytes += from->unsent_bytes;
    f->requests += from->requests;
    f->reconnects += from->reconnects;
    f->redirects += from->redirects;
    histogram_add(&f->round_trips, &from->round_trips);
    f->round_trip_us = f->round_trip_us > from->round_trip_us ? f->round_trip_us : from->round_trip_us;
}

static void put_node(void *arg, const struct upstream_node_info *node) {
    struct node_figures f = {.state = node->state,
                             .master = node->master,
                             .slots = node->slots,
                             .connections = node->connections,
                             .pinned = node->pinned,
                             .in_flight = node->in_flight,
                             .unsent_bytes = node->unsent_bytes,
                             .requests = node->requests,
                             .reconnects = node->reconnects,
                             .redirects = node->redirects,
                             .round_trips = *node->round_trips,
                             .round_trip_us = node->round_trip_us};
    snprintf(f.address, sizeof(f.address), "%s", node->address);
    add_figures(arg, &f);
}

void node_board_write(struct worker *w) {
    struct node_board *b = &thread_of(w)->board;
    pthread_mutex_lock(&b->mutex);
    b->count = 0;
    upstream_each_node(w->upstream, put_node, b);
    b->lock_commands = w->lock_commands;
    pthread_mutex_unlock(&b->mutex);
}

void node_board_sum(struct worker *w, struct node_board *sum) {
    node_board_write(w);
    for (unsigned i = 0; i < w->shared->options.threads; i++) {
        struct node_board *b = &thread_of(w->shared->workers[i])->board;
        pthread_mutex_lock(&b->mutex);
        for (size_t n = 0; n < b->count; n++)
            add_figures(sum, &b->nodes[n]);
        histogram_add(&sum->lock_commands, &b->lock_commands);
        pthread_mutex_unlock(&b->mutex);
    }
}

bool worker_upstream_serves(struct worker *w) {
    struct node_board sum = {.count = 0};
    unsigned served = 0;
    node_board_sum(w, &sum);
    for (size_t i = 0; i < sum.count; i++)
        served += is_down(&sum.nodes[i]) ? 0 : sum.nodes[i].slots;
    memory_free(sum.nodes);
    return served >= SLOT_COUNT;
}

void worker_report_nodes(struct worker *w, const struct report *r) {
    struct node_board sum = {.count = 0};
    node_board_sum(w, &sum);
    for (size_t i = 0; i < sum.count; i++) {
        const struct node_figures *f = &sum.nodes[i];
        r->row(r->arg);
        r->text(r->arg, "address", f->address, strlen(f->address));
        r->number(r->arg, "up", !is_down(f));
        r->number(r->arg, "slots", (int64_t)f->slots);
        r->number(r->arg, "connections", (int64_t)(f->connections + f->pinned));
        r->number(r->arg, "in-flight", (int64_t)f->in_flight);
        r->number(r->arg, "requests", (int64_t)f->requests);
        r->number(r->arg, "reconnects", (int64_t)f->reconnects);
        r->number(r->arg, "redirects", (int64_t)f->redirects);
        r->number(r->arg, "round-trip-us", f->round_trip_us);
    }
    memory_free(sum.nodes);
}

/* ---- families ------------------------------------------------------------------------------------ */

static void family(const struct metric_sink *m, const char *name, const char *type, const char *help) {
    m->family(m->arg, name, type, help);
}

static void sample(const struct metric_sink *m, const char *label, const char *value, double number) {
    m->sample(m->arg, "", label, value, number);
}

static void single(const struct metric_sink *m, const char *name, const char *type, const char *help, double number) {
    family(m, name, type, help);
    sample(m, NULL, NULL, number);
}

#define SUM(w, counter) ((double)counters_sum((w)->shared, offsetof(struct counters, counter)))

static void measure_clients(struct worker *w, const struct metric_sink *m) {
    single(m, "clients_connected", "gauge", "Clients connected now.", SUM(w, clients_connected));
    single(m, "clients_max", "gauge", "Clients that may be connected at once (maxclients).",
           (double)w->shared->options.maxclients);
    single(m, "clients_accepted_total", "counter", "Clients accepted.", SUM(w, clients_total));
    single(m, "clients_refused_total", "counter", "Clients refused because of maxclients.", SUM(w, clients_refused));
    single(m, "client_received_bytes_total", "counter", "Bytes read from clients.", SUM(w, client_bytes_in));
    single(m, "client_sent_bytes_total", "counter", "Bytes written to clients.", SUM(w, client_bytes_out));
    single(m, "tls_handshakes_failed_total", "counter", "Clients closed because their TLS handshake failed.",
           SUM(w, tls_handshakes_failed));
    single(m, "protocol_errors_total", "counter", "Clients closed for bytes that are no RESP.",
           SUM(w, protocol_errors));
}

static void measure_requests(struct worker *w, const struct metric_sink *m) {
    family(m, "requests_total", "counter", "Requests taken from clients, by what became of them.");
    sample(m, "kind", "forwarded", SUM(w, requests_forwarded));
    sample(m, "kind", "lock", SUM(w, requests_locks));
    sample(m, "kind", "split", SUM(w, requests_split));
    sample(m, "kind", "local", SUM(w, requests_local));
    single(m, "requests_failed_total", "counter", "Requests answered with an UPSTREAM error.", SUM(w, requests_failed));
    family(m, "pinned_connections", "gauge", "Connections to nodes that one client has for itself, by its reason.");
    sample(m, "reason", "transaction", SUM(w, pinned_transactions));
    sample(m, "reason", "blocking", SUM(w, pinned_blocking));
    sample(m, "reason", "subscribed", SUM(w, pinned_subscribed));
    sample(m, "reason", "monitor", SUM(w, pinned_monitor));
    sample(m, "reason", "replica", SUM(w, pinned_replicas));
}

static void measure_nodes(struct worker *w, const struct metric_sink *m) {
    static const struct {
        const char *name, *type, *help;
        size_t offset;
    } rows[] = {
#define NODE_ROW(name, type, field, help) {"upstream_" name, type, help, offsetof(struct node_figures, field)},
        NODE_ROW("slots", "gauge", slots, "Slots that the node serves.") NODE_ROW("connections", "gauge", connections,
                                                                                  "Shared connections to the node.")
            NODE_ROW("pinned_connections", "gauge", pinned, "Connections to the node that one client has for itself.")
                NODE_ROW("requests_in_flight", "gauge", in_flight, "Requests sent to the node and not answered.")
                    NODE_ROW("requests_total", "counter", requests, "Requests sent to the node.") NODE_ROW(
                        "reconnects_total", "counter", reconnects, "Connections to the node that replaced another.")
                        NODE_ROW("redirects_total", "counter", redirects, "MOVED and ASK from the node.")
#undef NODE_ROW
    };
    struct node_board sum = {.count = 0};
    node_board_sum(w, &sum);
    family(m, "upstream_up", "gauge", "1 if the node can be reached, as far as is known.");
    for (size_t n = 0; n < sum.count; n++)
        sample(m, "node", sum.nodes[n].address, is_down(&sum.nodes[n]) ? 0 : 1);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        family(m, rows[i].name, rows[i].type, rows[i].help);
        for (size_t n = 0; n < sum.count; n++) {
            uint64_t value;
            memcpy(&value, (const char *)&sum.nodes[n] + rows[i].offset, sizeof(value));
            sample(m, "node", sum.nodes[n].address, (double)value);
        }
    }
    family(m, "upstream_round_trip_seconds", "histogram",
           "From the writing of a request on a shared connection to its reply, of a sample: the newest request of a "
           "write, one at a time a connection.");
    for (size_t n = 0; n < sum.count; n++)
        m->histogram(m->arg, "node", sum.nodes[n].address, &sum.nodes[n].round_trips);
    family(m, "lock_command_seconds", "histogram",
           "From the arrival of a command on a lock to the answer of its script (and of replicas, where the rule asks "
           "them); not inside MULTI.");
    m->histogram(m->arg, NULL, NULL, &sum.lock_commands);
    memory_free(sum.nodes);
}

static void measure_locks(struct worker *w, const struct metric_sink *m) {
    struct lock_stats stats;
    engine_stats(w->shared->engine, &stats);
    single(m, "leases", "gauge", "Leases that this proxy knows to be live.", (double)stats.leases);
    single(m, "claims", "gauge", "Acquisitions that may still be released.", (double)stats.claims);
    family(m, "acquisitions_total", "counter", "Attempts to acquire a lock.");
    sample(m, "result", "granted", (double)stats.granted);
    sample(m, "result", "lost", (double)stats.lost);
    family(
        m, "acquisition_wait_seconds", "histogram",
        "For acquisitions that were granted: since the same session was first refused the lock; 0 where it was not.");
    m->histogram(m->arg, NULL, NULL, &stats.waits);
    family(m, "releases_total", "counter",
           "Releases asked for by clients; incidents_total has the reasons of refusals.");
    sample(m, "result", "done", (double)stats.released);
    sample(m, "result", "refused", (double)stats.refused_releases);
    single(m, "extends_refused_total", "counter", "Changes of an expiry that were refused.",
           (double)stats.refused_extends);
    single(m, "renewals_total", "counter", "Leases renewed by the proxy.", (double)stats.renewals);
    family(m, "incidents_total", "counter", "Incidents, by kind.");
    for (int k = 0; k < INCIDENT_KINDS; k++)
        sample(m, "kind", lock_incident_name((enum lock_incident_kind)k), (double)stats.incidents[k]);
}

void worker_report_metrics(struct worker *w, const struct metric_sink *m) {
    const struct session_options *o = &w->shared->options;
    family(m, "info", "gauge", "1, with the version as a label.");
    sample(m, "version", o->version, 1);
    single(m, "uptime_seconds", "gauge", "Seconds since the start.", (double)(worker_now(w) - o->started_ms) / 1000);
    single(m, "resident_bytes", "gauge", "Resident memory of the process.", (double)resident_bytes());
    measure_clients(w, m);
    measure_requests(w, m);
    measure_nodes(w, m);
    measure_locks(w, m);
}
