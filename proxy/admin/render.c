/* PROXY's replies, put together as RESP. */
#include "proxy/admin/render.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

void render_array(struct text *out, size_t elements) {
    text_printf(out, "*%zu\r\n", elements);
}

void render_bulk(struct text *out, const char *data, size_t len) {
    text_printf(out, "$%zu\r\n", len);
    text_append(out, data, len);
    text_append(out, "\r\n", 2);
}

void render_string(struct text *out, const char *text) {
    render_bulk(out, text, strlen(text));
}

void render_number(struct text *out, int64_t n) {
    text_printf(out, ":%lld\r\n", (long long)n);
}

void render_help(struct text *out) {
    static const char *const lines[] = {
        "PROXY <subcommand> [<arg> ...]. Subcommands are:",
        "HELP -- this text.",
        "INFO [section] -- the proxy's own INFO: proxy, clients, upstreams, locks, commands.",
        "LOCKS [pattern] -- the live leases known to this proxy, newest first.",
        "LOCK <key> -- everything known of one lock, read from Redis.",
        "TOKEN <key> -- the fence of the lease that this client holds on key, or nil.",
        "INCIDENTS [count] -- the last incidents, newest first.",
        "RULES -- the lock rules in force, with hit counts.",
        "EXPLAIN <command> [<arg> ...] -- how a command would be treated; nothing is run.",
        "RELEASE <key> -- releases a lock whoever holds it; recorded as an incident.",
        "RELOAD -- reads the lock rules and the log level anew, as SIGHUP does.",
    };
    size_t n = sizeof(lines) / sizeof(lines[0]);
    render_array(out, n);
    for (size_t i = 0; i < n; i++)
        text_printf(out, "+%s\r\n", lines[i]);
}

struct incident_page {
    struct text body;
    size_t count;
};

static void render_incident(void *arg, const struct incident *incident) {
    struct incident_page *page = arg;
    struct text *out = &page->body;
    time_t seconds = (time_t)(incident->time_ms / 1000);
    struct tm tm;
    char time_text[48], date[32];
    localtime_r(&seconds, &tm);
    strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &tm);
    snprintf(time_text, sizeof(time_text), "%s.%03d", date, (int)(incident->time_ms % 1000));
    render_array(out, 14);
    render_string(out, "time");
    render_string(out, time_text);
    render_string(out, "kind");
    render_string(out, incident->kind);
    render_string(out, "key");
    render_bulk(out, incident->key, incident->key_len);
    render_string(out, "client");
    render_string(out, incident->client);
    render_string(out, "holder");
    render_string(out, incident->holder);
    render_string(out, "command");
    render_string(out, incident->command);
    render_string(out, "action");
    render_string(out, incident->action);
    page->count++;
}

void render_incidents(struct text *out, struct incidents *incidents, size_t max) {
    struct incident_page page = {.count = 0};
    incidents_each(incidents, max, render_incident, &page);
    render_array(out, page.count);
    text_append(out, page.body.data, page.body.len);
    text_clear(&page.body);
}

void info_section(struct info *info, const char *name) {
    info->open = !info->wanted || strcasecmp(info->wanted, name) == 0;
    if (info->open)
        text_printf(info->out, "%s# %s\r\n", info->out->len > 0 ? "\r\n" : "", name);
}

void info_line(struct info *info, const char *name, const char *format, ...) {
    char value[256];
    if (!info->open)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    text_printf(info->out, "%s:%s\r\n", name, value);
}
