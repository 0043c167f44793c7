/*
 * The PROXY family: collects what operators ask for; proxy/admin/ puts it into words.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parser/slot.h"
#include "proxy/admin/render.h"
#include "proxy/base/glob.h"
#include "proxy/base/memory.h"
#include "proxy/session/lock_flow.h"
#include "proxy/session/session.h"

enum { LOCKS_MAX = 1000, INCIDENTS_DEFAULT = 20, INCIDENTS_MAX = 1000, RULE_TEXT_MAX = 512 };

/* ---- INFO ---------------------------------------------------------------------------------------- */

/* A counter's sum over all workers: `offset` is its place in struct counters. */
static uint64_t counters_sum(const struct proxy_shared *shared, size_t offset) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < shared->options.threads; i++)
        if (shared->workers[i])
            sum += counter_read((const _Atomic uint64_t *)(const void *)((const char *)&shared->workers[i]->counters +
                                                                          offset));
    return sum;
}

static void info_counters(struct info *info, const struct proxy_shared *shared, const char *prefix) {
    static const struct {
        const char *name;
        size_t offset;
    } rows[] = {
#define COUNTER_ROW(name, help) {#name, offsetof(struct counters, name)},
        COUNTER_TABLE(COUNTER_ROW)
#undef COUNTER_ROW
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strncmp(rows[i].name, prefix, strlen(prefix)) == 0)
            info_line(info, rows[i].name, "%llu", (unsigned long long)counters_sum(shared, rows[i].offset));
}

static long resident_kb(void) {
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%ld %ld", &pages, &resident) != 2)
            resident = 0;
        fclose(f);
    }
    return resident * 4;
}

struct node_lines {
    struct info *info;
    size_t count;
};

static void info_node(void *arg, const struct upstream_node_info *node) {
    struct node_lines *lines = arg;
    char name[32];
    snprintf(name, sizeof(name), "node%zu", lines->count++);
    info_line(lines->info, name,
              "address=%s,state=%s,role=%s,slots=%u,connections=%u,in_flight=%zu,unsent=%zu,requests=%llu,"
              "reconnects=%llu,redirects=%llu",
              node->address, node->state, node->master ? "master" : "other", node->slots, node->connections,
              node->in_flight, node->unsent_bytes, (unsigned long long)node->requests,
              (unsigned long long)node->reconnects, (unsigned long long)node->redirects);
}

static void info_locks(struct info *info, const struct proxy_shared *shared) {
    struct lock_stats stats;
    engine_stats(shared->engine, &stats);
    info_section(info, "Locks");
    info_line(info, "leases", "%llu", (unsigned long long)stats.leases);
    info_line(info, "claims", "%llu", (unsigned long long)stats.claims);
    info_line(info, "keys", "%llu", (unsigned long long)stats.keys);
    info_line(info, "acquisitions_granted", "%llu", (unsigned long long)stats.granted);
    info_line(info, "acquisitions_lost", "%llu", (unsigned long long)stats.lost);
    info_line(info, "releases_done", "%llu", (unsigned long long)stats.released);
    info_line(info, "releases_refused", "%llu", (unsigned long long)stats.refused_releases);
    info_line(info, "extends_refused", "%llu", (unsigned long long)stats.refused_extends);
    info_line(info, "renewals", "%llu", (unsigned long long)stats.renewals);
    for (int k = 0; k < INCIDENT_KINDS; k++) {
        char name[48];
        snprintf(name, sizeof(name), "incidents_%s", lock_incident_name((enum lock_incident_kind)k));
        info_line(info, name, "%llu", (unsigned long long)stats.incidents[k]);
    }
}

static void proxy_info(struct session *s, const struct command *c, const char *wanted) {
    const struct proxy_shared *shared = s->worker->shared;
    const struct session_options *o = &shared->options;
    struct text body, reply;
    text_init(&body);
    text_init(&reply);
    struct info info = {.out = &body, .wanted = wanted};
    info_section(&info, "Proxy");
    info_line(&info, "lockkeeper_version", "%s", o->version);
    info_line(&info, "process_id", "%d", (int)getpid());
    info_line(&info, "run_id", "%s", o->process_id);
    info_line(&info, "tcp_port", "%d", o->port);
    info_line(&info, "threads", "%u", o->threads);
    info_line(&info, "uptime_in_seconds", "%lld", (long long)(s->worker->now_ms - o->started_ms) / 1000);
    info_line(&info, "used_memory_rss", "%ld", resident_kb() * 1024);
    info_section(&info, "Clients");
    info_counters(&info, shared, "client");
    info_counters(&info, shared, "protocol");
    info_line(&info, "maxclients", "%lld", (long long)o->maxclients);
    info_section(&info, "Upstreams");
    info_line(&info, "upstream", "%s", o->upstream_text);
    info_line(&info, "pinned_connections", "0");
    struct node_lines lines = {.info = &info};
    upstream_each_node(s->worker->upstream, info_node, &lines);
    info_locks(&info, shared);
    info_section(&info, "Commands");
    info_counters(&info, shared, "requests");
    if (s->protocol == 3) { /* as INFO: verbatim, so that redis-cli prints it raw */
        text_printf(&reply, "=%zu\r\ntxt:", body.len + 4);
        text_append(&reply, body.data, body.len);
        text_append(&reply, "\r\n", 2);
    } else {
        render_bulk(&reply, body.data ? body.data : "", body.len);
    }
    dispatch_local(s, c, reply.data, reply.len);
    text_clear(&reply);
    text_clear(&body);
}

/* ---- LOCKS, RULES -------------------------------------------------------------------------------- */

struct lock_page {
    struct text body;
    size_t count;
    const char *pattern;
    size_t pattern_len;
    int64_t now_ms;
};

static void add_lock(void *arg, const struct lock_view *v) {
    struct lock_page *page = arg;
    struct text *out = &page->body;
    if (page->pattern && !glob_match(page->pattern, page->pattern_len, v->key.name, v->key.len))
        return;
    char owner[LOCK_IDENTITY_MAX + 48];
    snprintf(owner, sizeof(owner), "%.*s id=%llu%s", (int)v->client_len, v->client, (unsigned long long)v->session_id,
             v->connected ? "" : " (disconnected)");
    render_array(out, 14);
    render_string(out, "key");
    render_bulk(out, v->key.name, v->key.len);
    render_string(out, "db");
    render_number(out, v->key.db);
    render_string(out, "owner");
    render_string(out, owner);
    render_string(out, "age-ms");
    render_number(out, page->now_ms - v->since_ms);
    render_string(out, "left-ms");
    render_number(out, v->end_ms == 0 ? -1 : v->end_ms > page->now_ms ? v->end_ms - page->now_ms : 0);
    render_string(out, "fence");
    render_number(out, (int64_t)v->fence);
    render_string(out, "renewals");
    render_number(out, (int64_t)v->renewals);
    page->count++;
}

static void proxy_locks(struct session *s, const struct command *c, const char *pattern, size_t len) {
    struct lock_page page = {.pattern = pattern, .pattern_len = len, .now_ms = s->worker->now_ms};
    engine_each_lease(s->worker->shared->engine, page.now_ms, LOCKS_MAX, add_lock, &page);
    struct text reply;
    text_init(&reply);
    render_array(&reply, page.count);
    text_append(&reply, page.body.data, page.body.len);
    dispatch_local(s, c, reply.data, reply.len);
    text_clear(&reply);
    text_clear(&page.body);
}

static void proxy_rules(struct session *s, const struct command *c) {
    struct text reply;
    text_init(&reply);
    size_t n = lock_rules_count(s->worker->rules);
    render_array(&reply, n);
    for (size_t i = 0; i < n; i++) {
        const struct lock_rule *rule = lock_rules_get(s->worker->rules, i);
        char text[RULE_TEXT_MAX];
        size_t len = lock_rule_text(rule, text, sizeof(text) - 40);
        len += (size_t)snprintf(text + len, sizeof(text) - len, " hits %llu",
                                (unsigned long long)atomic_load(&rule->hits));
        render_bulk(&reply, text, len);
    }
    dispatch_local(s, c, reply.data, reply.len);
    text_clear(&reply);
}

/* ---- EXPLAIN ------------------------------------------------------------------------------------- */

static const char *verb_name(enum lock_verb verb) {
    switch (verb) {
    case LOCK_ACQUIRE:
        return "acquire";
    case LOCK_REPLACE:
        return "replace";
    case LOCK_SWAP:
        return "swap";
    case LOCK_RELEASE:
        return "release";
    case LOCK_EXTEND:
        return "extend";
    case LOCK_COUNT_UP:
        return "count up";
    case LOCK_COUNT_DOWN:
        return "count down";
    case LOCK_READ:
        return "read";
    case LOCK_CLOBBER:
        return "remove or replace";
    case LOCK_INSPECT:
        return "inspect";
    case LOCK_OPERATOR:
        return "operator release";
    }
    return "";
}

static void pair(struct text *out, size_t *count, const char *name, const char *value) {
    render_string(out, name);
    render_string(out, value);
    *count += 2;
}

/* What each key of the command means. */
static void explain_key(struct session *s, struct text *out, size_t *count, const struct command *c,
                        const struct resp_request *sub, const char *bytes, uint32_t index) {
    size_t len;
    const char *key = request_arg(sub, bytes, index, &len);
    char text[RULE_TEXT_MAX];
    render_string(out, "key");
    render_bulk(out, key, len);
    *count += 2;
    const struct lock_rule *rule = lock_rules_match(s->worker->rules, key, len);
    if (rule) {
        lock_rule_text(rule, text, sizeof(text));
        pair(out, count, "rule", text);
    } else {
        pair(out, count, "rule", "none: forwarded as it is");
    }
    struct lock_command lc;
    if (rule && rule->mode == LOCK_MODE_ENFORCE && lock_command_of(c, sub, bytes, &lc)) {
        pair(out, count, "lock-command", verb_name(lc.verb));
        pair(out, count, "script", script_get(lc.script)->name);
        pair(out, count, "script-sha1", script_get(lc.script)->sha1);
    } else if (rule && rule->mode == LOCK_MODE_ENFORCE && lock_clobbers(s, c, sub, bytes)) {
        pair(out, count, "lock-command", verb_name(LOCK_CLOBBER));
        pair(out, count, "script", script_get(SCRIPT_CLOBBER)->name);
        pair(out, count, "script-sha1", script_get(SCRIPT_CLOBBER)->sha1);
    } else if (rule) {
        pair(out, count, "lock-command", "none: forwarded as it is");
    }
    int slot = slot_of_key(key, len);
    struct upstream *u = s->worker->upstream;
    if (upstream_is_cluster(u)) {
        snprintf(text, sizeof(text), "%d", slot);
        pair(out, count, "slot", text);
    }
    struct upstream_node *node = upstream_node_of_slot(u, slot);
    pair(out, count, "node", node ? upstream_node_address(node) : "none serves this slot now");
}

static void proxy_explain(struct session *s, const struct command *c, const struct resp_request *r,
                          const char *bytes) {
    /* The command's own arguments as a request: the offsets are into the same bytes. */
    struct resp_request sub = *r;
    sub.argv = r->argv + 2;
    sub.argc = r->argc - 2;
    const struct command *target = command_lookup(bytes + sub.argv[0].off, sub.argv[0].len);
    struct text body, reply;
    size_t count = 0;
    text_init(&body);
    text_init(&reply);
    pair(&body, &count, "command", target ? target->name : "unknown to the proxy: forwarded as it is");
    if (target && !command_arity_ok(target, sub.argc)) {
        pair(&body, &count, "error", "wrong number of arguments");
    } else if (target) {
        uint32_t keys[64];
        int n = command_keys(target, bytes, &sub, keys, 64);
        for (int i = 0; i < n && i < 64; i++)
            explain_key(s, &body, &count, target, &sub, bytes, keys[i]);
        if (n <= 0)
            pair(&body, &count, "key", "none");
    }
    render_array(&reply, count);
    text_append(&reply, body.data, body.len);
    dispatch_local(s, c, reply.data, reply.len);
    text_clear(&reply);
    text_clear(&body);
}

/* ---- the family ---------------------------------------------------------------------------------- */

static enum dispatch_result proxy_lock(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes, enum lock_ask what) {
    size_t len;
    const char *key = request_arg(r, bytes, 2, &len);
    if (!lock_rule_for(s, key, len)) {
        dispatch_local_error(s, c, "ERR the key matches no lock rule that is enforced; see PROXY RULES");
        return DISPATCHED;
    }
    return lock_ask(s, c, what, key, len);
}

static void proxy_incidents(struct session *s, const struct command *c, const struct resp_request *r,
                            const char *bytes) {
    int64_t count = INCIDENTS_DEFAULT;
    size_t len;
    const char *text = r->argc > 2 ? request_arg(r, bytes, 2, &len) : NULL;
    if (text && (!resp_integer(text, len, &count) || count < 0)) {
        dispatch_local_error(s, c, "ERR value is not an integer or out of range");
        return;
    }
    struct text reply;
    text_init(&reply);
    render_incidents(&reply, s->worker->shared->incidents, count > INCIDENTS_MAX ? INCIDENTS_MAX : (size_t)count);
    dispatch_local(s, c, reply.data, reply.len);
    text_clear(&reply);
}

static void proxy_reload(struct session *s, const struct command *c) {
    struct proxy_shared *shared = s->worker->shared;
    const char *error = shared->reload ? shared->reload(shared->reload_arg) : "no configuration file is in use";
    if (error)
        dispatch_local_error(s, c, "ERR %s; nothing was changed", error);
    else
        dispatch_local(s, c, "+OK\r\n", 5);
}

static void proxy_help(struct session *s, const struct command *c) {
    struct text reply;
    text_init(&reply);
    render_help(&reply);
    dispatch_local(s, c, reply.data, reply.len);
    text_clear(&reply);
}

enum dispatch_result proxy_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes) {
    char word[64];
    size_t len = 0;
    const char *arg = r->argc > 2 ? request_arg(r, bytes, 2, &len) : NULL;
    if (r->argc < 2) {
        dispatch_local_error(s, c, "ERR wrong number of arguments for 'proxy' command");
        return DISPATCHED;
    }
    if (request_arg_is(r, bytes, 1, "help") && r->argc == 2)
        proxy_help(s, c);
    else if (request_arg_is(r, bytes, 1, "info") && r->argc <= 3)
        proxy_info(s, c, arg ? request_arg_text(r, bytes, 2, word, sizeof(word)) : NULL);
    else if (request_arg_is(r, bytes, 1, "locks") && r->argc <= 3)
        proxy_locks(s, c, arg, len);
    else if (request_arg_is(r, bytes, 1, "lock") && r->argc == 3)
        return proxy_lock(s, c, r, bytes, LOCK_ASK_ALL);
    else if (request_arg_is(r, bytes, 1, "token") && r->argc == 3)
        return proxy_lock(s, c, r, bytes, LOCK_ASK_TOKEN);
    else if (request_arg_is(r, bytes, 1, "release") && r->argc == 3)
        return proxy_lock(s, c, r, bytes, LOCK_ASK_RELEASE);
    else if (request_arg_is(r, bytes, 1, "incidents") && r->argc <= 3)
        proxy_incidents(s, c, r, bytes);
    else if (request_arg_is(r, bytes, 1, "rules") && r->argc == 2)
        proxy_rules(s, c);
    else if (request_arg_is(r, bytes, 1, "explain") && r->argc >= 3)
        proxy_explain(s, c, r, bytes);
    else if (request_arg_is(r, bytes, 1, "reload") && r->argc == 2)
        proxy_reload(s, c);
    else
        dispatch_local_error(s, c, "ERR unknown subcommand or wrong number of arguments for '%s'. Try PROXY HELP.",
                             request_arg_text(r, bytes, 1, word, sizeof(word)));
    return DISPATCHED;
}
