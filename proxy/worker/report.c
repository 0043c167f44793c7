/*
 * What operators may see of workers, nodes, locks and rules, passed on as reports (proxy/base/metric.h). It knows the
 * facts, not their format.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/advise/advise.h"
#include "proxy/base/glob.h"
#include "proxy/base/handed_board.h"
#include "proxy/base/memory.h"
#include "proxy/base/units.h"
#include "proxy/lock/rule.h"
#include "proxy/lock/permits.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/commands/commands.h"
#include "proxy/witness/witness.h"
#include "proxy/worker/private.h"

enum {
    GLOB_STEPS = 1000000,
    RULE_TEXT_MAX = 512,
    SHARED_TEXT_MAX = 2048,
    SHARED_ROWS_MAX = 100,
    NODE_LINE_MAX = 768,
    WAITERS_SHOWN = 3,
    KEY_SHOWN = 160, /* in PROXY TOP */
    OWNER_SIZE = LOCK_IDENTITY_MAX + 48,
    BLUR_TEXT_MAX = 640
};

/* ---- PROXY INFO ------------------------------------------------------------------------------------ */

void counters_now(const struct proxy_shared *shared, struct counter_sums *sums) {
    *sums = (struct counter_sums){0};
    for (unsigned i = 0; i < shared->threads; i++)
        counters_sum(sums, &shared->workers[i]->counters);
}

static void report_upstream_nodes(struct worker *w, const struct report *r) {
    struct node_board sum = {.count = 0};
    node_board_sum(w, &sum);
    for (size_t i = 0; i < sum.count; i++) {
        const struct node_figures *n = &sum.nodes[i];
        char name[32], line[NODE_LINE_MAX];
        snprintf(name, sizeof(name), "node%zu", i);
        const char *role = strncmp(n->why, "READONLY ", strlen("READONLY ")) == 0 ? "replica" : "master";
        int len = snprintf(line, sizeof(line), "address=%s,state=%s,role=%s", n->address, n->info.state,
                           n->info.master    ? role
                           : n->info.replica ? "replica"
                                             : "other");
        for (size_t k = 0; k < node_figures_table.count; k++)
            len += snprintf(line + len, sizeof(line) - (size_t)len, ",%s=%llu", node_figures_table.rows[k].name,
                            (unsigned long long)metric_value(&node_figures_table.rows[k], &n->info));
        r->line(r->arg, name, "%s,round_trip_us=%lld,pinned_max=%u", line, (long long)n->info.round_trip_us,
                n->info.pinned_max);
    }
    memory_free(sum.nodes);
}

struct sentinel_lines {
    const struct report *report;
    size_t count;
};

static void report_sentinel(void *arg, const char *address, const char *state) {
    struct sentinel_lines *lines = arg;
    char name[32];
    snprintf(name, sizeof(name), "sentinel%zu", lines->count++);
    lines->report->line(lines->report->arg, name, "address=%s,state=%s", address, state);
}

static void report_locks_section(struct worker *w, const struct counter_sums *counters, const struct report *r) {
    const struct proxy_shared *shared = w->shared;
    int64_t since_ms = waiting_since(shared->waiting);
    struct lock_stats stats;
    engine_stats(shared->engine, &stats);
    r->section(r->arg, "Locks");
    metric_table_report(&lock_counters, &stats, r);
    metric_table_report(&wait_counters, counters, r);
    metric_table_report(&permit_counters, counters, r);
    metric_table_report(&quorum_counters, counters, r);
    r->line(r->arg, "permits_held", "%lld", (long long)permits_held(shared->permits));
    r->line(r->arg, "unruled_lock_patterns", "%zu", worker_unruled(w, 0));
    r->line(r->arg, "longest_wait_ms", "%lld", (long long)(since_ms ? worker_steady_ms(w) - since_ms : 0));
    for (int k = 0; k < INCIDENT_KINDS; k++) {
        char name[48];
        snprintf(name, sizeof(name), "incidents_%s", lock_incident_name((enum lock_incident_kind)k));
        r->line(r->arg, name, "%llu", (unsigned long long)stats.incidents[k]);
    }
    size_t count = witness_count(w->witnesses); /* as this thread sees them */
    if (count > 0)
        r->section(r->arg, "Witnesses");
    for (size_t i = 0; i < count; i++) {
        struct witness_view v;
        char name[32];
        witness_look(w->witnesses, i, &v);
        snprintf(name, sizeof(name), "witness%zu", i);
        r->line(r->arg, name, "address=%s,state=%s,answers=%llu,failures=%llu,round_trip_us=%lld", v.address, v.state,
                (unsigned long long)v.answers, (unsigned long long)v.failures, (long long)v.round_trip_us);
    }
}

static bool report_info(struct worker *w, const struct report *r) {
    const struct proxy_shared *shared = w->shared;
    struct counter_sums counters;
    counters_now(shared, &counters);
    r->section(r->arg, "Proxy");
    r->line(r->arg, "lockkeeper_version", "%s", shared->version);
    r->line(r->arg, "process_id", "%d", (int)getpid());
    r->line(r->arg, "run_id", "%s", shared->process_id);
    r->line(r->arg, "tcp_port", "%d", (int)w->config->port);
    r->line(r->arg, "threads", "%u", shared->threads);
    r->line(r->arg, "uptime_in_seconds", "%lld", (long long)(worker_now(w) - shared->started_ms) / 1000);
    r->line(r->arg, "used_memory_rss", "%zu", memory_resident());
    r->line(r->arg, "restart_needed", "%u", atomic_load(&shared->restart_needed));
    r->line(r->arg, "guard_records", "%s", w->config->short_records ? "short" : "hash");
    r->line(r->arg, "invariants_failed", "%llu", (unsigned long long)invariant_failures());
    r->section(r->arg, "Clients");
    metric_table_report(&client_counters, &counters, r);
    struct handed_counts before = handed_board_read(shared->before);
    r->line(r->arg, "predecessor_pid", "%lld", (long long)before.pid);
    r->line(r->arg, "predecessor_clients", "%lld", (long long)before.clients);
    r->line(r->arg, "predecessor_leases", "%lld", (long long)before.leases);
    r->line(r->arg, "maxclients", "%lld", (long long)atomic_load(&shared->maxclients));
    r->line(r->arg, "pause_left_ms", "%lld", (long long)pause_left_ms(w));
    r->section(r->arg, "Upstreams");
    if (upstream_has_topology(w->upstream) || shared->embedded)
        r->line(r->arg, "upstream", "%s", shared->upstream_text);
    else
        r->line(r->arg, "upstream", "standalone %s", upstream_node_address(upstream_master(w->upstream, 0)));
    if (shared->embedded) {
        r->line(r->arg, "embedded_restarts", "%u", atomic_load(&shared->embedded_ends));
        r->line(r->arg, "embedded_leases_lost", "%u", atomic_load(&shared->embedded_lost));
    }
    struct text why = {0};
    r->line(r->arg, "locks_ready", "%s", worker_unready(w, true, &why) ? "no" : "yes");
    r->line(r->arg, "locks_not_ready", "%s", why.len ? why.data : "");
    text_clear(&why);
    char moved[HOST_TROUBLE_MAX];
    host_watch_trouble(w, moved, sizeof(moved));
    r->line(r->arg, "upstream_moved", "%s", moved);
    r->line(r->arg, "proxies_away", "%u", atomic_load(&shared->away));
    report_upstream_nodes(w, r);
    struct sentinel_lines lines = {.report = r};
    upstream_each_sentinel(w->upstream, report_sentinel, &lines);
    evictions_report(w, r);
    metric_table_report(&upstream_counters, &counters, r);
    report_locks_section(w, &counters, r);
    r->section(r->arg, "Commands");
    metric_table_report(&request_counters, &counters, r);
    return true;
}

/* ---- PROXY LOCKS ----------------------------------------------------------------------------------- */

struct lock_rows {
    const struct report *report;
    struct worker *worker;
    size_t steps; /* steps left to match the pattern; 0: too few */
    size_t left;  /* rows that may still be shown */
};

static size_t lease_owner(const struct lock_view *v, char out[OWNER_SIZE]) {
    return (size_t)snprintf(out, OWNER_SIZE, "%.*s id=%llu%s", (int)v->client_len, v->client,
                            (unsigned long long)v->session_id,
                            v->one_shot_ms ? " (one-shot client)"
                            : v->connected ? ""
                                           : " (disconnected)");
}

/* How long until then; -1: it has no end. */
static int64_t left_ms(int64_t end_ms, int64_t now_ms) {
    return end_ms == 0 ? -1 : end_ms > now_ms ? end_ms - now_ms : 0;
}

/* The sessions that wait for a key; `who` (NULL: not wanted) gets the first of them as text. */
static struct waiting_view waiting_for(struct worker *w, const struct lock_key *key, struct text *who) {
    return waiting_of(w->shared->waiting, key, engine_key_hash(w->shared->engine, key), WAITERS_SHOWN,
                      worker_steady_ms(w), who);
}

/* Whether the report's pattern selects the text. */
static bool selects(const struct report *r, const char *text, size_t len, size_t *steps) {
    return !r->pattern || (*steps > 0 && glob_match_within(r->pattern, r->pattern_len, text, len, steps));
}

static void report_lease(void *arg, const struct lock_view *v) {
    struct lock_rows *rows = arg;
    const struct report *r = rows->report;
    if (!selects(r, v->key.name, v->key.len, &rows->steps))
        return;
    char owner[OWNER_SIZE];
    size_t len = lease_owner(v, owner);
    int64_t now_ms = worker_now(rows->worker), steady_ms = worker_steady_ms(rows->worker);
    r->row(r->arg);
    r->text(r->arg, "key", v->key.name, v->key.len);
    r->number(r->arg, "db", v->key.db);
    r->text(r->arg, "owner", owner, len);
    r->number(r->arg, "age-ms", now_ms - v->since_ms);
    r->number(r->arg, "left-ms", left_ms(v->end_ms, now_ms));
    r->number(r->arg, "fence", (int64_t)v->fence);
    r->number(r->arg, "renewals", (int64_t)v->renewals);
    if (v->delayed_ms)
        r->number(r->arg, "delay-left-ms", left_ms(v->delayed_ms, now_ms));
    if (v->one_shot_ms)
        r->number(r->arg, "one-shot-left-ms", left_ms(v->one_shot_ms, now_ms));
    struct text who = {0};
    struct waiting_view waits = waiting_for(rows->worker, &v->key, &who);
    r->number(r->arg, "waiting", (int64_t)waits.count);
    r->number(r->arg, "longest-wait-ms", waits.count ? steady_ms - waits.since_ms : 0);
    r->text(r->arg, "waiters", who.data ? who.data : "", who.len);
    text_clear(&who);
}

static bool report_locks(struct worker *w, const struct report *r) {
    static const char *const numbers[] = {"db", "age-ms", "left-ms", "fence", "renewals", "waiting", "longest-wait-ms"};
    struct lock_rows rows = {.report = r, .worker = w, .steps = GLOB_STEPS};
    struct handed_counts before = handed_board_read(w->shared->before);
    char text[160];
    if (w->walk)
        engine_walk_each(w->walk, report_lease, &rows);
    if (before.leases > 0) { /* a row without a key for the leases of the process that leaves */
        int n = snprintf(text, sizeof(text), "process %lld, which leaves, has %lld more leases and %lld clients",
                         (long long)before.pid, (long long)before.leases, (long long)before.clients);
        r->row(r->arg);
        r->text(r->arg, "key", "", 0);
        r->text(r->arg, "owner", text, (size_t)n);
        for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
            r->number(r->arg, numbers[i], 0);
        r->text(r->arg, "waiters", "", 0);
    }
    return rows.steps > 0;
}

/* ---- PROXY TOP ------------------------------------------------------------------------------------- */

/* Begins a line: its sort, so that grep can select it, and the key. */
static void top_begin(struct text *line, const char *sort, const char *key, size_t len, int64_t db) {
    text_printf(line, "%s ", sort);
    text_append_shown(line, key, len, KEY_SHOWN);
    if (db > 0)
        text_printf(line, " (db %lld)", (long long)db);
}

static void top_end(struct text *line, size_t waiting, const struct report *r) {
    if (waiting > 0)
        text_printf(line, "; waiting at the proxy: %zu", waiting);
    r->text(r->arg, "", line->data, line->len);
    text_clear(line);
}

static void top_held(void *arg, const struct lock_view *v) {
    struct lock_rows *rows = arg;
    struct text line = {0};
    char owner[OWNER_SIZE], span[UNITS_SPAN_SIZE];
    if (rows->left == 0)
        return;
    rows->left--;
    int64_t now_ms = worker_now(rows->worker), left = left_ms(v->end_ms, now_ms);
    top_begin(&line, "held", v->key.name, v->key.len, v->key.db);
    text_printf(&line, ": for %s by ", units_span(now_ms - v->since_ms, span));
    text_append_visible(&line, owner, lease_owner(v, owner));
    text_printf(&line, left < 0 ? "; ends by a release alone" : "; %s left", units_span(left, span));
    if (v->renewals > 0)
        text_printf(&line, ", renewals: %llu", (unsigned long long)v->renewals);
    top_end(&line, waiting_for(rows->worker, &v->key, NULL).count, rows->report);
}

static bool report_top(struct worker *w, const struct report *r) {
    struct lock_rows rows = {.report = r, .worker = w, .left = r->max};
    struct lock_contention *fights = memory_alloc((r->max + 1) * sizeof(*fights));
    size_t count = engine_most_contended(w->shared->engine, worker_now(w), fights, r->max);
    for (size_t i = 0; i < count; i++) {
        const struct lock_contention *f = &fights[i];
        struct lock_key key = {.db = f->db, .name = f->name, .len = f->name_len};
        struct text line = {0};
        top_begin(&line, "contended", f->name, f->name_len, f->db);
        text_printf(&line, ": %u attempts lost in the last 5 minutes, %u of them in the present one", f->all,
                    f->lost[0]);
        top_end(&line, f->cut ? 0 : waiting_for(w, &key, NULL).count, r);
    }
    memory_free(fights);
    if (w->walk)
        engine_walk_each(w->walk, top_held, &rows);
    return true;
}

/* ---- PROXY RULES, the status page ------------------------------------------------------------------ */

/* Ends a list that was cut. */
#define MORE "; ..."

/* The workloads of a rule whose workers share connections. */
struct shared_workloads {
    const struct lock_rule *rule;
    const struct report *report; /* each is a row of it; else NULL */
    size_t rows;
    struct text text; /* else the text has all of them, or as many as SHARED_TEXT_MAX bytes take */
    bool cut;
};

static void add_shared(void *arg, const struct lock_workload *f) {
    struct shared_workloads *all = arg;
    size_t len = strlen(f->rule), before = all->text.len; /* the workload's copy of the pattern may be cut */
    if (!f->pooled || strncmp(f->rule, all->rule->pattern, len) != 0 ||
        (len != all->rule->pattern_len && len != LOCK_WORKLOAD_NAME_MAX - 1))
        return;
    if (!all->report) {
        text_printf(&all->text, "%s%s by %s", before ? "; " : "", f->pattern, f->client);
        if (all->text.len >= SHARED_TEXT_MAX - sizeof(MORE)) {
            all->text.len = before;
            all->cut = true;
        }
    } else if (all->rows < SHARED_ROWS_MAX) {
        all->rows++;
        all->report->row(all->report->arg);
        all->report->text(all->report->arg, "pattern", f->pattern, strlen(f->pattern));
        all->report->text(all->report->arg, "client", f->client, strlen(f->client));
    }
}

/* If the rule sets the owner, what was learnt before does not apply. */
static void each_shared(struct worker *w, struct shared_workloads *all) {
    if (all->rule->mode == LOCK_MODE_ENFORCE && all->rule->owner == LOCK_OWNER_AUTO)
        engine_each_workload(w->shared->engine, add_shared, all);
}

static bool report_shared(struct worker *w, const struct report *r) {
    struct shared_workloads all = {.report = r};
    for (size_t i = 0; i < lock_rules_count(w->rules); i++) {
        all.rule = lock_rules_get(w->rules, i);
        each_shared(w, &all);
    }
    return true;
}

static bool report_rules(struct worker *w, const struct report *r) {
    for (size_t i = 0; i < lock_rules_count(w->rules); i++) {
        const struct lock_rule *rule = lock_rules_get(w->rules, i);
        char text[RULE_TEXT_MAX];
        lock_rule_text(rule, text, sizeof(text));
        r->row(r->arg);
        r->text(r->arg, "rule", text, strlen(text));
        r->number(r->arg, "hits", (int64_t)atomic_load(&rule->hits));
        struct shared_workloads all = {.rule = rule};
        each_shared(w, &all);
        text_append(&all.text, MORE, all.cut ? sizeof(MORE) - 1 : 0);
        r->text(r->arg, "shared", all.text.data, all.text.len);
        text_clear(&all.text);
    }
    for (size_t i = 0; i < lock_rules_fence_count(w->rules); i++) {
        const struct lock_rule *rule = lock_rules_fence(w->rules, i);
        char text[RULE_TEXT_MAX];
        lock_rule_text(rule, text, sizeof(text));
        r->row(r->arg);
        r->text(r->arg, "fence", text, strlen(text));
        r->number(r->arg, "hits", (int64_t)atomic_load(&rule->hits));
        r->number(r->arg, "late", (int64_t)atomic_load(&rule->fence->late));
        r->number(r->arg, "refused", (int64_t)atomic_load(&rule->fence->refused));
    }
    return true;
}

static void report_fight(void *arg, const struct lock_contention *c) {
    const struct report *r = arg;
    char minutes[CONTENTION_MINUTES * 12];
    size_t len = 0;
    for (size_t i = CONTENTION_MINUTES; i-- > 0;)
        len += (size_t)snprintf(minutes + len, sizeof(minutes) - len, "%s%u", len ? " " : "", c->lost[i]);
    r->row(r->arg);
    r->text(r->arg, "key", c->name, c->name_len);
    r->number(r->arg, "db", c->db);
    r->number(r->arg, "waiters", c->waiters);
    r->text(r->arg, "lost-by-minute", minutes, len); /* the present minute is last */
}

static bool report_contention(struct worker *w, const struct report *r) {
    engine_each_contention(w->shared->engine, worker_now(w), report_fight, (void *)r);
    return true;
}

/* ---- PROXY CONTENTION ------------------------------------------------------------------------------ */

enum { TIMES_SHOWN = 1000 };

struct times_row {
    char pattern[LOCK_WORKLOAD_NAME_MAX], client[LOCK_WORKLOAD_NAME_MAX];
    struct lock_times times;
};

struct times_rows {
    const struct report *report;
    size_t steps, count;
    struct times_row *rows;
};

static void add_times(void *arg, const struct lock_workload *f) {
    struct times_rows *all = arg;
    if ((f->times->holds == 0 && f->times->waits == 0) ||
        !selects(all->report, f->pattern, strlen(f->pattern), &all->steps))
        return;
    struct times_row *row = ARRAY_ADD(all->rows, all->count);
    *row = (struct times_row){.times = *f->times};
    snprintf(row->pattern, sizeof(row->pattern), "%s", f->pattern);
    snprintf(row->client, sizeof(row->client), "%s", f->client);
}

/* The most waited for first, and then the longest held. */
static int compare_times(const void *a, const void *b) {
    const struct lock_times *x = &((const struct times_row *)a)->times, *y = &((const struct times_row *)b)->times;
    if (x->waited_ms != y->waited_ms)
        return x->waited_ms < y->waited_ms ? 1 : -1;
    return x->held_ms != y->held_ms ? (x->held_ms < y->held_ms ? 1 : -1) : 0;
}

static void times_row(const struct report *r, const struct times_row *row) {
    const struct lock_times *t = &row->times;
    r->row(r->arg);
    r->text(r->arg, "pattern", row->pattern, strlen(row->pattern));
    r->text(r->arg, "client", row->client, strlen(row->client));
    r->number(r->arg, "held-ms", t->held_ms);
    r->number(r->arg, "holds", t->holds);
    r->number(r->arg, "longest-hold-ms", t->longest_hold_ms);
    r->number(r->arg, "waited-ms", t->waited_ms);
    r->number(r->arg, "waits", t->waits);
    r->number(r->arg, "longest-wait-ms", t->longest_wait_ms);
}

static bool report_times(struct worker *w, const struct report *r) {
    struct times_rows all = {.report = r, .steps = GLOB_STEPS};
    struct times_row others = {.pattern = "(others)", .client = "(others)"};
    if (!r->pattern)
        others.times = engine_other_times(w->shared->engine);
    engine_each_workload(w->shared->engine, add_times, &all);
    if (all.count > 0)
        qsort(all.rows, all.count, sizeof(*all.rows), compare_times);
    for (size_t i = 0; i < all.count; i++) {
        if (i < TIMES_SHOWN)
            times_row(r, &all.rows[i]);
        else
            lock_times_add(&others.times, &all.rows[i].times);
    }
    if (others.times.holds > 0 || others.times.waits > 0)
        times_row(r, &others);
    memory_free(all.rows);
    return all.steps > 0;
}

static void advice_line(void *arg, const char *line, size_t len) {
    const struct report *r = arg;
    r->text(r->arg, "", line, len);
}

size_t worker_unruled(struct worker *w, int64_t since_ms) {
    return advise_unruled(w->shared->observer, w->rules, since_ms);
}

static bool report_advice(struct worker *w, const struct report *r) {
    char text[BLUR_TEXT_MAX];
    advise_each(w->shared->observer, w->rules, worker_now(w), advice_line, (void *)r);
    /* Data that clients without names have written under a fence: the fence can't tell these clients apart. */
    for (size_t i = 0; i < lock_rules_fence_count(w->rules); i++) {
        const struct lock_rule *fence = lock_rules_fence(w->rules, i);
        if (atomic_load_explicit(&fence->fence->unnamed, memory_order_relaxed) &&
            lock_fence_blur(w->rules, fence, text, sizeof(text)) > 0)
            r->text(r->arg, "", text, strlen(text));
    }
    return true;
}

static bool report_nodes(struct worker *w, const struct report *r) {
    enum { CONNECTIONS = 1 /* with the pins */ };
    static const char *const names[] = {"slots",        "connections", "pinned",     "pinned-refused", "in-flight",
                                        "unsent-bytes", "requests",    "reconnects", "redirects",      "replica-reads"};
    struct node_board sum = {.count = 0};
    node_board_sum(w, &sum);
    for (size_t i = 0; i < sum.count; i++) {
        const struct node_figures *f = &sum.nodes[i];
        r->row(r->arg);
        r->text(r->arg, "address", f->address, strlen(f->address));
        r->number(r->arg, "up", !node_is_down(f));
        for (size_t k = 0; k < node_figures_table.count; k++) {
            uint64_t value = metric_value(&node_figures_table.rows[k], &f->info);
            r->number(r->arg, names[k], (int64_t)(k == CONNECTIONS ? value + f->info.pinned : value));
        }
        r->number(r->arg, "round-trip-us", f->info.round_trip_us);
    }
    memory_free(sum.nodes);
    return true;
}

bool worker_report(struct worker *w, enum report_kind kind, const struct report *r) {
    static bool (*const reports[])(struct worker * w, const struct report *r) = {
        [REPORT_INFO] = report_info,   [REPORT_LOCKS] = report_locks,           [REPORT_TIMES] = report_times,
        [REPORT_TOP] = report_top,     [REPORT_RULES] = report_rules,           [REPORT_ADVICE] = report_advice,
        [REPORT_NODES] = report_nodes, [REPORT_CONTENTION] = report_contention, [REPORT_SHARED] = report_shared};
    return reports[kind](w, r);
}
