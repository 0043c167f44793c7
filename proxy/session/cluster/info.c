/*
 * INFO of several masters as one page. Counts and sizes are the sum over all masters, states the greatest value, and
 * the keyspace that of the whole cluster. All other lines are the first master's. Clients that a CLIENT PAUSE holds
 * (`paused`) count as blocked.
 *
 * It knows only texts, not nodes or sessions.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/sum.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/core/session.h"

enum { DATABASES_SHOWN = 16 };

static const char *const ADDED[] = {
    "connected_clients",
    "tracking_clients",
    "clients_in_timeout_table",
    "used_memory",
    "used_memory_rss",
    "used_memory_peak",
    "used_memory_overhead",
    "used_memory_startup",
    "used_memory_dataset",
    "used_memory_lua",
    "used_memory_vm_total",
    "used_memory_scripts",
    "maxmemory",
    "mem_clients_normal",
    "mem_clients_slaves",
    "mem_cluster_links",
    "mem_not_counted_for_evict",
    "rdb_changes_since_last_save",
    "total_connections_received",
    "total_commands_processed",
    "instantaneous_ops_per_sec",
    "total_net_input_bytes",
    "total_net_output_bytes",
    "rejected_connections",
    "expired_keys",
    "evicted_keys",
    "evicted_clients",
    "keyspace_hits",
    "keyspace_misses",
    "total_error_replies",
    "unexpected_error_replies",
    "total_reads_processed",
    "total_writes_processed",
    "tracking_total_keys",
    "tracking_total_items",
};

static const char *const GREATEST[] = {
    "loading", "async_loading", "rdb_bgsave_in_progress", "aof_rewrite_in_progress", "maxmemory_clients",
};

static bool listed(const char *const *names, size_t count, const char *name, size_t len) {
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
            return true;
    return false;
}

static bool is_added(const char *name, size_t len) {
    return listed(ADDED, sizeof(ADDED) / sizeof(ADDED[0]), name, len);
}

/* Finds the value of a line that begins with "name:", or NULL. */
static const char *field_value(const char *page, const char *name, size_t len) {
    for (const char *line = page; line; line = strchr(line, '\n')) {
        if (*line == '\n')
            line++;
        if (strncmp(line, name, len) == 0 && line[len] == ':')
            return line + len + 1;
    }
    return NULL;
}

/* Merges a field of all pages; a negative size becomes 0. */
static int64_t field_merged(const struct text *pages, size_t count, const char *name, size_t len, bool add) {
    int64_t merged = 0;
    for (size_t i = 0; i < count; i++) {
        const char *value = pages[i].len > 0 ? field_value(pages[i].data, name, len) : NULL;
        /* Redis writes a negative size as 2^64 plus the size: 18446744073709551360 is -256. */
        int64_t n = !value ? 0 : *value == '-' ? strtoll(value, NULL, 10) : (int64_t)strtoull(value, NULL, 10);
        if (add)
            merged = sum_add(merged, n);
        else if (n > merged)
            merged = n;
    }
    return merged > 0 ? merged : 0;
}

/* Appends a size in Redis's format for people. */
static void put_human(struct text *out, int64_t n) {
    static const char units[] = "KMGTP";
    double size = (double)n;
    int at = -1;
    while (size >= 1024 && at + 1 < (int)sizeof(units) - 1) {
        size /= 1024;
        at++;
    }
    if (at < 0)
        text_printf(out, "%" PRId64 "B", n);
    else
        text_printf(out, "%.2f%c", size, units[at]);
}

/* ---- the keyspace ------------------------------------------------------------------------------ */

/* Appends "db0:keys=5,expires=1,avg_ttl=99" with the sums of all pages. The mean is over the keys with an expiry. */
static void put_keyspace(struct text *out, const struct text *pages, size_t count) {
    for (int db = 0; db < DATABASES_SHOWN; db++) {
        char name[16];
        size_t len = (size_t)snprintf(name, sizeof(name), "db%d", db);
        int64_t keys = 0, expires = 0, n, e, ttl;
        double total = 0;
        for (size_t i = 0; i < count; i++) {
            const char *value = pages[i].len > 0 ? field_value(pages[i].data, name, len) : NULL;
            if (!value || sscanf(value, "keys=%" SCNd64 ",expires=%" SCNd64 ",avg_ttl=%" SCNd64, &n, &e, &ttl) != 3)
                continue;
            keys = sum_add(keys, n);
            expires = sum_add(expires, e);
            total += (double)ttl * (double)e;
        }
        double mean = expires > 0 ? total / (double)expires : 0;
        if (keys > 0)
            text_printf(out, "%s:keys=%" PRId64 ",expires=%" PRId64 ",avg_ttl=%" PRId64 "\r\n", name, keys, expires,
                        mean > 0 && mean < (double)INT64_MAX ? (int64_t)mean : 0);
    }
}

/* ---- the page ------------------------------------------------------------------------------------ */

static void put_line(struct text *out, const struct text *pages, size_t count, int64_t paused, const char *line,
                     size_t len) {
    static const char *const blocked[] = {"blocked_clients"};
    static const char human[] = "_human", keyspace[] = "# Keyspace";
    const char *colon = memchr(line, ':', len);
    size_t name = colon ? (size_t)(colon - line) : 0, tail = sizeof(human) - 1;
    if (listed(blocked, 1, line, name)) {
        text_printf(out, "blocked_clients:%" PRId64 "\r\n",
                    sum_add(field_merged(pages, count, line, name, true), paused));
        return;
    }
    if (count == 1) {
        text_append(out, line, len);
        return;
    }
    if (line[0] == 'd' && line[1] == 'b' && line[2] >= '0' && line[2] <= '9') /* a database's keys */
        return;
    if (is_added(line, name) || listed(GREATEST, sizeof(GREATEST) / sizeof(GREATEST[0]), line, name)) {
        text_append(out, line, name);
        text_printf(out, ":%" PRId64 "\r\n", field_merged(pages, count, line, name, is_added(line, name)));
        return;
    }
    if (name > tail && memcmp(line + name - tail, human, tail) == 0 && is_added(line, name - tail)) {
        text_append(out, line, name + 1);
        put_human(out, field_merged(pages, count, line, name - tail, true));
        text_append(out, "\r\n", 2);
        return;
    }
    text_append(out, line, len);
    if (len >= sizeof(keyspace) - 1 && memcmp(line, keyspace, sizeof(keyspace) - 1) == 0)
        put_keyspace(out, pages, count);
}

void info_merge(const struct text *pages, size_t count, int64_t paused, struct text *out) {
    const char *line = count > 0 && pages[0].len > 0 ? pages[0].data : "";
    while (*line) {
        const char *end = strchr(line, '\n');
        size_t len = end ? (size_t)(end - line) + 1 : strlen(line);
        put_line(out, pages, count, paused, line, len);
        line += len;
    }
}
