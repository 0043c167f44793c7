/* Formats facts (rows of named fields) as PROXY TOP's lines. Each line begins with its sort, so that grep can select
 * it. */
#include "proxy/admin/top.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { KEY_SHOWN = 160, AGO_SIZE = 32 };

struct top {
    void (*fn)(void *arg, const char *line, size_t len);
    void *arg;
    int64_t now_ms;
    void (*finish)(struct top *top); /* makes a line of the current row */
    bool open;                       /* a row has begun; its fields follow */
    struct text key, owner;
    int64_t db, lost, lost_now, age_ms, left_ms, renewals, waiting;
};

/* ---- rows ------------------------------------------------------------------------------------------- */

static void end_row(struct top *top) {
    if (top->open)
        top->finish(top);
    top->open = false;
    top->key.len = top->owner.len = 0;
    top->db = top->lost = top->lost_now = top->age_ms = top->left_ms = top->renewals = top->waiting = 0;
}

static void begin_row(void *arg) {
    struct top *top = arg;
    end_row(top);
    top->open = true;
}

static void put_visible(struct text *out, const char *data, size_t len) {
    text_append_visible(out, data, len < KEY_SHOWN ? len : KEY_SHOWN);
    if (len > KEY_SHOWN)
        text_append(out, "...", 3);
}

static void take_text(void *arg, const char *name, const char *value, size_t len) {
    struct top *top = arg;
    if (strcmp(name, "key") == 0)
        put_visible(&top->key, value, len);
    else if (strcmp(name, "owner") == 0)
        text_append_visible(&top->owner, value, len);
}

static void take_number(void *arg, const char *name, int64_t value) {
    struct top *top = arg;
    const struct {
        const char *name;
        int64_t *to;
    } numbers[] = {{"db", &top->db},          {"lost", &top->lost},       {"lost-now", &top->lost_now},
                   {"age-ms", &top->age_ms},  {"left-ms", &top->left_ms}, {"renewals", &top->renewals},
                   {"waiting", &top->waiting}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strcmp(name, numbers[i].name) == 0)
            *numbers[i].to = value;
}

/* ---- lines ------------------------------------------------------------------------------------------ */

/* Formats a time for people: in the largest unit of which there are at least two. */
static const char *span(int64_t ms, char out[AGO_SIZE]) {
    static const struct {
        int64_t ms;
        const char *name;
    } units[] = {{86400000, "days"}, {3600000, "h"}, {60000, "min"}, {1000, "s"}, {1, "ms"}};
    size_t i = 0;
    while (units[i].ms > 1 && ms < 2 * units[i].ms)
        i++;
    snprintf(out, AGO_SIZE, "%lld %s", (long long)((ms > 0 ? ms : 0) / units[i].ms), units[i].name);
    return out;
}

static void begin_line(const struct top *top, struct text *line, const char *sort) {
    text_printf(line, "%s %.*s", sort, (int)top->key.len, top->key.len > 0 ? top->key.data : "");
    if (top->db > 0)
        text_printf(line, " (db %lld)", (long long)top->db);
    text_append(line, ": ", 2);
}

static void end_line(struct top *top, struct text *line) {
    if (top->waiting > 0)
        text_printf(line, "; waiting at the proxy: %lld", (long long)top->waiting);
    top->fn(top->arg, line->data, line->len);
    text_clear(line);
}

static void contended_line(struct top *top) {
    struct text line = {0};
    begin_line(top, &line, "contended");
    text_printf(&line, "%lld attempts lost in the last 5 minutes, %lld of them in the present one",
                (long long)top->lost, (long long)top->lost_now);
    end_line(top, &line);
}

static void held_line(struct top *top) {
    struct text line = {0};
    char age[AGO_SIZE], left[AGO_SIZE];
    begin_line(top, &line, "held");
    text_printf(&line, "for %s by %.*s; %s", span(top->age_ms, age), (int)top->owner.len,
                top->owner.len > 0 ? top->owner.data : "", top->left_ms < 0 ? "ends by a release alone" : "");
    if (top->left_ms >= 0)
        text_printf(&line, "%s left", span(top->left_ms, left));
    if (top->renewals > 0)
        text_printf(&line, ", renewals: %lld", (long long)top->renewals);
    end_line(top, &line);
}

static void client_line(void *arg, const struct incident_client *c) {
    struct top *top = arg;
    struct text line = {0};
    char ago[AGO_SIZE];
    text_printf(&line, "client ");
    text_append_visible(&line, c->identity, strlen(c->identity));
    text_printf(&line, ": incidents since the start: %llu, of them %s: %llu; the last %s ago on ",
                (unsigned long long)c->count, c->kind, (unsigned long long)c->kind_count,
                span(top->now_ms - c->last_ms, ago));
    put_visible(&line, c->key, c->key_len);
    top->fn(top->arg, line.data, line.len);
    text_clear(&line);
}

void top_lines(const struct admin_source *source, size_t max, int64_t now_ms,
               void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    struct top top = {.fn = fn, .arg = arg, .now_ms = now_ms, .finish = contended_line};
    struct report report = {.arg = &top, .row = begin_row, .text = take_text, .number = take_number};
    source->contended(source->arg, max, &report);
    end_row(&top);
    top.finish = held_line;
    source->longest(source->arg, max, &report);
    end_row(&top);
    incidents_clients(source->incidents, max, client_line, &top);
    text_clear(&top.key);
    text_clear(&top.owner);
}
