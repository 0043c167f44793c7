/*
 * What operators may see of workers, nodes, locks and rules, passed on as reports (proxy/base/report.h). It knows the
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
    BLUR_TEXT_MAX = 640
};

/* ---- PROXY INFO ------------------------------------------------------------------------------------ */

void counters_now(const struct proxy_shared *shared, struct counter_sums *sums) {
    *sums = (struct counter_sums){0};
    for (unsigned i = 0; i < shared->threads; i++)
        counters_sum(sums, &shared->workers[i]->counters);
}

long long resident_bytes(void) {
    long long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%lld %lld", &pages, &resident) != 2)
            resident = 0;
        fclose(f);
    }
    return resident * sysconf(_SC_PAGESIZE);
}

static void report_upstream_nodes(struct worker *w, const struct report *r) {
    struct node_board sum = {.count = 0};
    node_board_sum(w, &sum);
    for (size_t i = 0; i < sum.count; i++) {
        const struct node_figures *n = &sum.nodes[i];
        char name[32], line[NODE_LINE_MAX];
        snprintf(name, sizeof(name), "node%zu", i);
        const char *role = strncmp(n->why, "READONLY ", strlen("READONLY ")) == 0 ? "replica" : "master";
        int len = snprintf(line, sizeof(line), "address=%s,state=%s,role=%s", n->address, n->state,
                           n->master    ? role
                           : n->replica ? "replica"
                                        : "other");
        for (size_t k = 0; k < node_figures_table.count; k++)
            len += snprintf(line + len, sizeof(line) - (size_t)len, ",%s=%llu", node_figures_table.rows[k].name,
                            (unsigned long long)metric_value(&node_figures_table.rows[k], n));
        r->line(r->arg, name, "%s,round_trip_us=%lld,pinned_max=%u", line, (long long)n->round_trip_us, n->pinned_max);
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

static void note_oldest(void *arg, const struct waiting_view *v) {
    int64_t *since_ms = arg;
    if (*since_ms == 0 || v->since_ms < *since_ms)
        *since_ms = v->since_ms;
}

static void report_locks_section(struct worker *w, const struct counter_sums *counters, const struct report *r) {
    const struct proxy_shared *shared = w->shared;
    int64_t since_ms = 0;
    waiting_each(shared->waiting, note_oldest, &since_ms);
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

void worker_report_info(struct worker *w, const struct report *r) {
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
    r->line(r->arg, "used_memory_rss", "%lld", resident_bytes());
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
}

/* ---- PROXY LOCKS ----------------------------------------------------------------------------------- */

struct lock_rows {
    const struct report *report;
    struct worker *worker;
    const char *pattern;
    size_t pattern_len;
    int64_t now_ms;
    size_t steps; /* steps left to match the pattern; 0: too few */
    size_t left;  /* rows that may still be shown */
};

static void report_lease(void *arg, const struct lock_view *v) {
    struct lock_rows *rows = arg;
    const struct report *r = rows->report;
    if (rows->left == 0 ||
        (rows->pattern && (rows->steps == 0 || !glob_match_within(rows->pattern, rows->pattern_len, v->key.name,
                                                                  v->key.len, &rows->steps))))
        return;
    rows->left--;
    char owner[LOCK_IDENTITY_MAX + 48];
    int n = snprintf(owner, sizeof(owner), "%.*s id=%llu%s", (int)v->client_len, v->client,
                     (unsigned long long)v->session_id,
                     v->one_shot_ms ? " (one-shot client)"
                     : v->connected ? ""
                                    : " (disconnected)");
    r->row(r->arg);
    r->text(r->arg, "key", v->key.name, v->key.len);
    r->number(r->arg, "db", v->key.db);
    r->text(r->arg, "owner", owner, (size_t)n);
    r->number(r->arg, "age-ms", rows->now_ms - v->since_ms);
    r->number(r->arg, "left-ms", v->end_ms == 0 ? -1 : v->end_ms > rows->now_ms ? v->end_ms - rows->now_ms : 0);
    r->number(r->arg, "fence", (int64_t)v->fence);
    r->number(r->arg, "renewals", (int64_t)v->renewals);
    if (v->delayed_ms)
        r->number(r->arg, "delay-left-ms", v->delayed_ms > rows->now_ms ? v->delayed_ms - rows->now_ms : 0);
    if (v->one_shot_ms)
        r->number(r->arg, "one-shot-left-ms", v->one_shot_ms > rows->now_ms ? v->one_shot_ms - rows->now_ms : 0);
    const struct proxy_shared *shared = rows->worker->shared;
    uint64_t hash = engine_key_hash(shared->engine, &v->key);
    int64_t steady_ms = worker_steady_ms(rows->worker);
    struct text who = {0};
    struct waiting_view waits = waiting_of(shared->waiting, &v->key, hash, WAITERS_SHOWN, steady_ms, &who);
    r->number(r->arg, "waiting", (int64_t)waits.count);
    r->number(r->arg, "longest-wait-ms", waits.count ? steady_ms - waits.since_ms : 0);
    r->text(r->arg, "waiters", who.data ? who.data : "", who.len);
    text_clear(&who);
}

/* A row without a key for the leases of the process that leaves. */
static void report_predecessor(const struct worker *w, const struct report *r) {
    static const char *const numbers[] = {"db", "age-ms", "left-ms", "fence", "renewals", "waiting", "longest-wait-ms"};
    struct handed_counts before = handed_board_read(w->shared->before);
    char text[160];
    if (before.leases == 0)
        return;
    int n = snprintf(text, sizeof(text), "process %lld, which leaves, has %lld more leases and %lld clients",
                     (long long)before.pid, (long long)before.leases, (long long)before.clients);
    r->row(r->arg);
    r->text(r->arg, "key", "", 0);
    r->text(r->arg, "owner", text, (size_t)n);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        r->number(r->arg, numbers[i], 0);
    r->text(r->arg, "waiters", "", 0);
}

bool worker_report_locks(struct worker *w, const char *pattern, size_t len, const struct report *r) {
    struct lock_rows rows = {.report = r,
                             .worker = w,
                             .pattern = pattern,
                             .pattern_len = len,
                             .now_ms = worker_now(w),
                             .steps = GLOB_STEPS,
                             .left = SIZE_MAX};
    if (w->walk)
        engine_walk_each(w->walk, report_lease, &rows);
    report_predecessor(w, r);
    return rows.steps > 0;
}

/* ---- PROXY TOP ------------------------------------------------------------------------------------- */

void worker_report_contended(struct worker *w, size_t max, const struct report *r) {
    struct proxy_shared *shared = w->shared;
    struct lock_contention *fights = memory_alloc((max + 1) * sizeof(*fights));
    size_t count = engine_most_contended(shared->engine, worker_now(w), fights, max);
    for (size_t i = 0; i < count; i++) {
        const struct lock_contention *f = &fights[i];
        struct lock_key key = {.db = f->db, .name = f->name, .len = f->name_len};
        r->row(r->arg);
        r->text(r->arg, "key", f->name, f->name_len);
        r->number(r->arg, "db", f->db);
        r->number(r->arg, "lost", f->all);
        r->number(r->arg, "lost-now", f->lost[0]);
        if (!f->cut)
            r->number(
                r->arg, "waiting",
                (int64_t)waiting_of(shared->waiting, &key, engine_key_hash(shared->engine, &key), 0, 0, NULL).count);
    }
    memory_free(fights);
}

void worker_report_longest(struct worker *w, size_t max, const struct report *r) {
    struct lock_rows rows = {.report = r, .worker = w, .now_ms = worker_now(w), .left = max};
    if (w->walk)
        engine_walk_each(w->walk, report_lease, &rows);
}

/* ---- PROXY RULES, the status page ------------------------------------------------------------------ */

/* Ends a list that was cut. */
#define MORE "; ..."

/* The workloads (workloads) of a rule whose workers share connections. */
struct shared_workloads {
    const struct lock_rule *rule;
    const struct report *report; /* each is a row of it; else NULL */
    size_t rows;
    char *text; /* else all are appended to this text, which has room for SHARED_TEXT_MAX bytes */
    size_t len;
    bool cut; /* the text does not contain all of them */
};

static void add_shared(void *arg, const struct lock_workload *f) {
    struct shared_workloads *all = arg;
    size_t len = strlen(f->rule); /* the workload's copy of the pattern may be cut */
    if (!f->pooled || strncmp(f->rule, all->rule->pattern, len) != 0 ||
        (len != all->rule->pattern_len && len != LOCK_WORKLOAD_NAME_MAX - 1))
        return;
    if (!all->report) {
        size_t room = SHARED_TEXT_MAX - sizeof(MORE) - all->len;
        int n = snprintf(all->text + all->len, room, "%s%s by %s", all->len ? "; " : "", f->pattern, f->client);
        if ((size_t)n < room)
            all->len += (size_t)n;
        else
            all->cut = true;
    } else if (all->rows < SHARED_ROWS_MAX) {
        all->rows++;
        all->report->row(all->report->arg);
        all->report->text(all->report->arg, "pattern", f->pattern, strlen(f->pattern));
        all->report->text(all->report->arg, "client", f->client, strlen(f->client));
    }
}

/* Collects the workloads of a rule that share connections. If the rule sets the owner, what was learnt before does not
 * apply. */
static void each_shared(struct worker *w, struct shared_workloads *all) {
    if (all->rule->mode == LOCK_MODE_ENFORCE && all->rule->owner == LOCK_OWNER_AUTO)
        engine_each_workload(w->shared->engine, add_shared, all);
}

void worker_report_shared(struct worker *w, const struct report *r) {
    struct shared_workloads all = {.report = r};
    for (size_t i = 0; i < lock_rules_count(w->rules); i++) {
        all.rule = lock_rules_get(w->rules, i);
        each_shared(w, &all);
    }
}

void worker_report_rules(struct worker *w, const struct report *r) {
    for (size_t i = 0; i < lock_rules_count(w->rules); i++) {
        const struct lock_rule *rule = lock_rules_get(w->rules, i);
        char text[RULE_TEXT_MAX];
        lock_rule_text(rule, text, sizeof(text));
        r->row(r->arg);
        r->text(r->arg, "rule", text, strlen(text));
        r->number(r->arg, "hits", (int64_t)atomic_load(&rule->hits));
        char workloads[SHARED_TEXT_MAX] = "";
        struct shared_workloads all = {.rule = rule, .text = workloads};
        each_shared(w, &all);
        if (all.cut)
            all.len += (size_t)snprintf(workloads + all.len, sizeof(MORE), MORE);
        r->text(r->arg, "shared", workloads, all.len);
    }
    for (size_t i = 0; i < lock_rules_fence_count(w->rules); i++) {
        const struct lock_rule *rule = lock_rules_fence(w->rules, i);
        char text[RULE_TEXT_MAX];
        lock_fence_text(rule, text, sizeof(text));
        r->row(r->arg);
        r->text(r->arg, "fence", text, strlen(text));
        r->number(r->arg, "hits", (int64_t)atomic_load(&rule->hits));
        r->number(r->arg, "late", (int64_t)atomic_load(&rule->fence->late));
        r->number(r->arg, "refused", (int64_t)atomic_load(&rule->fence->refused));
    }
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

void worker_report_contention(struct worker *w, const struct report *r) {
    engine_each_contention(w->shared->engine, worker_now(w), report_fight, (void *)r);
}

/* ---- PROXY CONTENTION ------------------------------------------------------------------------------ */

enum { TIMES_SHOWN = 1000 };

struct times_row {
    char pattern[LOCK_WORKLOAD_NAME_MAX], client[LOCK_WORKLOAD_NAME_MAX];
    struct lock_times times;
};

struct times_rows {
    const char *pattern;
    size_t pattern_len, steps, count, cap;
    struct times_row *rows;
};

static void add_times(void *arg, const struct lock_workload *f) {
    struct times_rows *all = arg;
    if ((f->times->holds == 0 && f->times->waits == 0) ||
        (all->pattern && (all->steps == 0 || !glob_match_within(all->pattern, all->pattern_len, f->pattern,
                                                                strlen(f->pattern), &all->steps))))
        return;
    if (all->count == all->cap) {
        all->cap = all->cap ? 2 * all->cap : 64;
        all->rows = memory_realloc(all->rows, all->cap * sizeof(*all->rows));
    }
    struct times_row *row = &all->rows[all->count++];
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

static void report_times(const struct report *r, const struct times_row *row) {
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

bool worker_report_times(struct worker *w, const char *pattern, size_t len, const struct report *r) {
    struct times_rows all = {.pattern = pattern, .pattern_len = len, .steps = GLOB_STEPS};
    struct times_row others = {.pattern = "(others)", .client = "(others)"};
    if (!pattern)
        others.times = engine_other_times(w->shared->engine);
    engine_each_workload(w->shared->engine, add_times, &all);
    if (all.count > 0)
        qsort(all.rows, all.count, sizeof(*all.rows), compare_times);
    for (size_t i = 0; i < all.count; i++) {
        if (i < TIMES_SHOWN)
            report_times(r, &all.rows[i]);
        else
            lock_times_add(&others.times, &all.rows[i].times);
    }
    if (others.times.holds > 0 || others.times.waits > 0)
        report_times(r, &others);
    memory_free(all.rows);
    return all.steps > 0;
}

static void report_advice(void *arg, const char *line, size_t len) {
    const struct report *r = arg;
    r->text(r->arg, "", line, len);
}

size_t worker_unruled(struct worker *w, int64_t since_ms) {
    return advise_unruled(w->shared->observer, w->rules, since_ms);
}

void worker_report_advice(struct worker *w, const struct report *r) {
    struct report copy = *r;
    char text[BLUR_TEXT_MAX];
    advise_each(w->shared->observer, w->rules, worker_now(w), report_advice, &copy);
    /* Data that clients without names have written under a fence: the fence can't tell these clients apart. */
    for (size_t i = 0; i < lock_rules_fence_count(w->rules); i++) {
        const struct lock_rule *fence = lock_rules_fence(w->rules, i);
        if (atomic_load_explicit(&fence->fence->unnamed, memory_order_relaxed) &&
            lock_fence_blur(w->rules, fence, text, sizeof(text)) > 0)
            r->text(r->arg, "", text, strlen(text));
    }
}
