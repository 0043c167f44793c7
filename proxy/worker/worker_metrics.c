/*
 * The metrics of workers, nodes and locks, passed on through proxy/base/metric.h.
 *
 *      each worker, once a second: the state of its nodes ──> its board ──────┐
 *      the first worker, when asked: counters (atomic) and all boards ────────┴──> sink
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/handed_board.h"
#include "proxy/base/mutex.h"
#include "proxy/base/slowlog.h"
#include "proxy/base/memory.h"
#include "proxy/lock/permits.h"
#include "proxy/lock/rule.h"
#include "proxy/witness/witness.h"
#include "proxy/worker/private.h"

enum { RULES_MEASURED = 100 };

/* ---- boards -------------------------------------------------------------------------------------- */

bool node_is_down(const struct node_figures *f) {
    return f->why[0] || strcmp(f->info.state, "down") == 0;
}

#define ROW(field) offsetof(struct upstream_node_info, field)
static const struct metric_row figure_rows[] = {
    {"slots", "gauge", "upstream_slots", "node", NULL, "Slots that the node serves.", ROW(slots)},
    {"connections", "gauge", "upstream_connections", "node", NULL, "Shared connections to the node.", ROW(connections)},
    {"pinned", "gauge", "upstream_pinned_connections", "node", NULL,
     "Connections to the node that one client has for itself.", ROW(pinned)},
    {"pinned_refused", "counter", "upstream_pinned_refused_total", "node", NULL,
     "Requests refused because the limit of connections for single clients was reached.", ROW(pins_refused)},
    {"in_flight", "gauge", "upstream_requests_in_flight", "node", NULL, "Requests sent to the node and not answered.",
     ROW(in_flight)},
    {"unsent", "gauge", "upstream_unsent_bytes", "node", NULL, "Bytes that wait to be written to the node.",
     ROW(unsent_bytes)},
    {"requests", "counter", "upstream_requests_total", "node", NULL, "Requests sent to the node.", ROW(requests)},
    {"reconnects", "counter", "upstream_reconnects_total", "node", NULL,
     "Connections to the node that replaced another.", ROW(reconnects)},
    {"redirects", "counter", "upstream_redirects_total", "node", NULL, "MOVED and ASK from the node.", ROW(redirects)},
    {"replica_reads", "counter", "replica_reads_total", "node", NULL,
     "Reads that went to the node as a replica (read-from).", ROW(replica_reads)}};

const struct metric_table node_figures_table = {figure_rows, ARRAY_SIZE(figure_rows)};

static void add_figures(struct node_board *b, const struct node_figures *from) {
    static const char *const graver[] = {"down", "connecting", "up"};
    struct node_figures *f = NULL;
    for (size_t i = 0; i < b->count && !f; i++)
        if (strcmp(b->nodes[i].address, from->address) == 0)
            f = &b->nodes[i];
    if (!f) {
        f = ARRAY_ADD(b->nodes, b->count);
        *f = (struct node_figures){.info.state = "idle"};
        snprintf(f->address, sizeof(f->address), "%s", from->address);
    }
    struct upstream_node_info *to = &f->info;
    const char *state = to->state; /* the worse one of two threads' is the one that an operator should see */
    for (size_t i = ARRAY_SIZE(graver); i-- > 0;)
        if (strcmp(to->state, graver[i]) == 0 || strcmp(from->info.state, graver[i]) == 0)
            state = graver[i];
    to->state = state;
    to->master |= from->info.master;
    to->replica |= from->info.replica;
    if (!f->why[0])
        memcpy(f->why, from->why, sizeof(f->why));
    to->slots = 0; /* each thread has its copy of the slot map */
    for (size_t i = 0; i < node_figures_table.count; i++)
        *(uint64_t *)((char *)to + figure_rows[i].offset) += metric_value(&figure_rows[i], &from->info);
    to->pinned_max = from->info.pinned_max > to->pinned_max ? from->info.pinned_max : to->pinned_max;
    histogram_add(&f->round_trips, &from->round_trips);
    if (from->info.round_trip_us > to->round_trip_us) /* the longest of all threads */
        to->round_trip_us = from->info.round_trip_us;
}

static void put_node(void *arg, const struct upstream_node_info *node) {
    struct node_figures f = {.info = *node, .round_trips = *node->round_trips};
    snprintf(f.address, sizeof(f.address), "%s", node->address);
    add_figures(arg, &f);
}

void node_board_write(struct worker *w) {
    struct node_board *b = &thread_of(w)->board;
    MUTEX_GUARD(&b->mutex);
    b->count = 0;
    upstream_each_node(w->upstream, put_node, b);
    for (size_t i = 0; i < b->count; i++)
        snprintf(b->nodes[i].why, sizeof(b->nodes[i].why), "%s", readiness_trouble(w, b->nodes[i].address));
    b->durations = w->durations;
}

void node_board_sum(struct worker *w, struct node_board *sum) {
    node_board_write(w);
    for (unsigned i = 0; i < w->shared->threads; i++) {
        struct node_board *b = &thread_of(w->shared->workers[i])->board;
        pthread_mutex_lock(&b->mutex);
        for (size_t n = 0; n < b->count; n++)
            add_figures(sum, &b->nodes[n]);
        durations_add(&sum->durations, &b->durations);
        pthread_mutex_unlock(&b->mutex);
    }
}

bool worker_unready(struct worker *w, bool all, struct text *why) {
    struct node_board sum = {.count = 0};
    const struct node_figures *down = NULL;
    uint64_t served = 0;
    node_board_sum(w, &sum);
    for (size_t i = 0; i < sum.count; i++) {
        const struct node_figures *f = &sum.nodes[i];
        served += node_is_down(f) ? 0 : f->info.slots;
        down = node_is_down(f) && f->info.slots > 0 && (!down || !down->why[0]) ? f : down;
    }
    bool unready = all ? served < SLOT_COUNT : served == 0;
    if (unready && down)
        text_printf(why, "%s gives no locks: %s", down->address, down->why[0] ? down->why : "it can't be reached");
    else if (unready)
        text_printf(why, "%s", "no node of the upstream is known");
    memory_free(sum.nodes);
    size_t rule = 0, rules = lock_rules_count(w->config->rules), votes = 0, count = witness_count(w->witnesses);
    while (rule < rules && lock_rules_get(w->config->rules, rule)->quorum != LOCK_QUORUM_YES)
        rule++;
    if (unready || !all || rule == rules)
        return unready;
    for (size_t n = 0; n < count; n++) {
        struct witness_view v;
        witness_look(w->witnesses, n, &v);
        votes += v.votes;
    }
    if (votes < vote_majority((unsigned)count))
        text_printf(why, "locks under quorum can't be acquired: %zu of %zu witnesses vote", votes, count);
    return votes < vote_majority((unsigned)count);
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

static void measure_nodes(struct worker *w, const struct metric_sink *m) {
    struct node_board sum = {.count = 0};
    node_board_sum(w, &sum);
    family(m, "upstream_up", "gauge", "1 if the node can be reached and would give a lock, as far as is known.");
    for (size_t n = 0; n < sum.count; n++)
        sample(m, "node", sum.nodes[n].address, node_is_down(&sum.nodes[n]) ? 0 : 1);
    for (size_t i = 0; i < node_figures_table.count; i++) {
        const struct metric_row *row = &node_figures_table.rows[i];
        family(m, row->family, row->type, row->help);
        for (size_t n = 0; n < sum.count; n++)
            sample(m, "node", sum.nodes[n].address, (double)metric_value(row, &sum.nodes[n].info));
    }
    family(m, "upstream_round_trip_seconds", "histogram",
           "From the writing of a request on a shared connection to its reply, of a sample: the newest request of a "
           "write, one at a time a connection.");
    for (size_t n = 0; n < sum.count; n++)
        m->histogram(m->arg, "node", sum.nodes[n].address, &sum.nodes[n].round_trips);
    metric_table_measure(&duration_histograms, &sum.durations, m);
    memory_free(sum.nodes);
    family(m, "witness_up", "gauge", "1 if the witness votes: it answers, and is in no quarantine.");
    for (size_t i = 0; i < witness_count(w->witnesses); i++) { /* as the first thread sees them */
        struct witness_view v;
        witness_look(w->witnesses, i, &v);
        sample(m, "witness", v.address, v.votes);
    }
}

struct latency_samples {
    const struct metric_sink *metrics;
    const char *label;
};

static void put_latency(void *arg, const char *name, const struct histogram *h) {
    const struct latency_samples *to = arg;
    to->metrics->histogram(to->metrics->arg, to->label, name, h);
}

static void measure_locks(struct worker *w, const struct metric_sink *m) {
    struct lock_stats stats;
    engine_stats(w->shared->engine, &stats);
    metric_table_measure(&lock_counters, &stats, m);
    family(
        m, "acquisition_wait_seconds", "histogram",
        "For acquisitions that were granted: since the same session was first refused the lock; 0 where it was not.");
    m->histogram(m->arg, NULL, NULL, &stats.waits);
    single(m, "unruled_lock_patterns", "gauge",
           "Patterns of keys that look like locks and match no rule: PROXY ADVISE.", (double)worker_unruled(w, 0));
    family(m, "incidents_total", "counter", "Incidents, by kind.");
    for (int k = 0; k < INCIDENT_KINDS; k++)
        sample(m, "kind", lock_incident_name((enum lock_incident_kind)k), (double)stats.incidents[k]);
}

/* By pattern. If several rules have the same, only the first is counted, since only that applies to keys. */
static void measure_rules(const struct lock_rules *rules, const struct metric_sink *m) {
    enum { HITS, FENCE_HITS, LATE, REFUSED, FIGURES };
    static const char *const families[FIGURES][2] = {
        {"rule_hits_total", "Commands on keys that the lock rule matched, of the first 100 rules."},
        {"fence_hits_total", "Commands on data that the fence matched, of the first 100 fences."},
        {"fence_late_writes_total", "Writes of fenced data by clients that had lost its lock."},
        {"fence_refused_writes_total", "Writes of fenced data that were refused: late, or without the lock."}};
    for (unsigned figure = 0; figure < FIGURES; figure++) {
        bool fences = figure != HITS;
        size_t count = fences ? lock_rules_fence_count(rules) : lock_rules_count(rules);
        const struct lock_rule *(*get)(const struct lock_rules *, size_t) = fences ? lock_rules_fence : lock_rules_get;
        family(m, families[figure][0], "counter", families[figure][1]);
        for (size_t i = 0; i < count && i < RULES_MEASURED; i++) {
            const struct lock_rule *rule = get(rules, i);
            size_t j = 0;
            while (strcmp(get(rules, j)->pattern, rule->pattern) != 0)
                j++;
            if (j == i)
                sample(m, fences ? "fence" : "rule", rule->pattern,
                       (double)atomic_load(figure == LATE      ? &rule->fence->late
                                           : figure == REFUSED ? &rule->fence->refused
                                                               : &rule->hits));
        }
    }
}

static void measure_process(const struct proxy_shared *shared, const struct metric_sink *m) {
    single(m, "config_last_reload_successful", "gauge",
           "0 if the last reload found something wrong, and changed nothing.",
           atomic_load(&shared->reload_failed) ? 0 : 1);
    single(m, "config_last_load_timestamp_seconds", "gauge", "When the configuration in force was read, since 1970.",
           (double)atomic_load(&shared->loaded_s));
    single(m, "config_restart_needed", "gauge", "Directives that have changed at a reload and need a restart.",
           (double)atomic_load(&shared->restart_needed));
    int64_t clients_s = atomic_load(&shared->client_certificate_s), nodes_s = atomic_load(&shared->node_certificate_s);
    family(m, "certificate_end_timestamp_seconds", "gauge", "When the proxy's own certificate ends, since 1970.");
    if (clients_s)
        sample(m, "side", "clients", (double)clients_s);
    if (nodes_s)
        sample(m, "side", "upstream", (double)nodes_s);
    /* The others have the same names in every program, so that common dashboards show them. */
    struct rusage used = {0};
    struct rlimit files = {0};
    DIR *dir = opendir("/proc/self/fd");
    double open_fds = dir ? -3 : 0; /* without ".", ".." and this descriptor */
    while (dir && readdir(dir))
        open_fds++;
    if (dir)
        closedir(dir);
    (void)getrusage(RUSAGE_SELF, &used);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    single(m, "process_cpu_seconds_total", "counter", "CPU time, of the process and of the kernel for it.", cpu);
    single(m, "process_resident_memory_bytes", "gauge", "Resident memory.", (double)memory_resident());
    single(m, "process_open_fds", "gauge", "Open descriptors.", open_fds);
    single(m, "process_max_fds", "gauge", "Most descriptors that may be open.", (double)files.rlim_cur);
    single(m, "process_start_time_seconds", "gauge", "When the process started, since 1970.",
           (double)shared->started_ms / 1000);
}

void worker_report_metrics(struct worker *w, const struct metric_sink *m) {
    const struct proxy_shared *shared = w->shared;
    struct counter_sums counters;
    counters_now(shared, &counters);
    family(m, "info", "gauge", "1, with the version as a label.");
    sample(m, "version", shared->version, 1);
    single(m, "uptime_seconds", "gauge", "Seconds since the start.",
           (double)(worker_now(w) - shared->started_ms) / 1000);
    single(m, "resident_bytes", "gauge", "Resident memory of the process.", (double)memory_resident());
    single(m, "invariants_failed_total", "counter",
           "Faults that the proxy found in its own state: the log names each place once.",
           (double)invariant_failures());
    single(m, "clients_max", "gauge", "Clients that may be connected at once (maxclients).",
           (double)atomic_load(&shared->maxclients));
    char moved[HOST_TROUBLE_MAX];
    host_watch_trouble(w, moved, sizeof(moved));
    single(m, "upstream_moved", "gauge",
           "1 if the upstream's host name leads to a Redis that the proxy does not go to.", moved[0] ? 1 : 0);
    single(m, "proxies_away", "gauge",
           "Proxies that have not followed the data since a failover or a restart: they may be before another Redis.",
           atomic_load(&shared->away));
    struct handed_counts before = handed_board_read(shared->before);
    single(m, "predecessor_clients", "gauge", "Clients of the process that leaves, after a take-over.",
           (double)before.clients);
    single(m, "predecessor_leases", "gauge", "Leases of the process that leaves, after a take-over.",
           (double)before.leases);
    metric_table_measure(&client_counters, &counters, m);
    metric_table_measure(&request_counters, &counters, m);
    metric_table_measure(&upstream_counters, &counters, m);
    metric_table_measure(&wait_counters, &counters, m);
    metric_table_measure(&permit_counters, &counters, m);
    metric_table_measure(&quorum_counters, &counters, m);
    single(m, "permits_held", "gauge", "Permits of semaphores that were not given back.",
           (double)permits_held(shared->permits));
    measure_nodes(w, m);
    if (w->config->latency_tracking) {
        struct latency_samples commands = {m, "command"}, clients = {m, "client"};
        family(m, "command_seconds", "histogram", "From a request's arrival to its node's answer, by command.");
        latency_each(shared->latency, LATENCY_COMMANDS, put_latency, &commands);
        family(m, "client_seconds", "histogram",
               "From a request's arrival to its node's answer, by the client's name.");
        latency_each(shared->latency, LATENCY_CLIENTS, put_latency, &clients);
    }
    measure_locks(w, m);
    measure_rules(w->rules, m);
    measure_process(shared, m);
}
