/* The pages of the operator's HTTP server: metrics in Prometheus's text format 0.0.4, and the status as JSON (RFC
 * 8259).
 */
#include "proxy/admin/pages.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proxy/admin/incident_lines.h"
#include "proxy/base/metric.h"

enum {
    LINE_MAX = 512,
    INCIDENTS_SHOWN = 50,
    SUMS_SHOWN = 20,
    ADVICE_SHOWN = 50,
    TEXT_SHOWN = 256, /* bytes shown of texts without a limit of their own: keys */
    LONG_SHOWN = 4096 /* bytes shown of lines that people copy as a whole */
};

/* ---- /metrics ------------------------------------------------------------------------------------ */

struct page {
    struct text *out;
    const char *prefix, *name;
};

static void page_family(void *arg, const char *name, const char *type, const char *help) {
    struct page *page = arg;
    page->name = name;
    page->prefix = strncmp(name, "process_", 8) == 0 ? "" : "lockkeeper_";
    text_printf(page->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", page->prefix, name, help, page->prefix, name, type);
}

/* Appends NAME="VALUE", if there is a label. */
static void put_label(struct text *out, const char *label, const char *value) {
    if (!label)
        return;
    text_printf(out, "%s=\"", label);
    for (const char *p = value; *p; p++) {
        if (*p == '\n')
            text_append(out, "\\n", 2);
        else if (*p == '"' || *p == '\\')
            text_printf(out, "\\%c", *p);
        else
            text_append(out, p, 1);
    }
    text_append(out, "\"", 1);
}

static void page_sample(void *arg, const char *suffix, const char *label, const char *label_value, double value) {
    struct page *page = arg;
    text_printf(page->out, "%s%s%s", page->prefix, page->name, suffix);
    if (label) {
        text_append(page->out, "{", 1);
        put_label(page->out, label, label_value);
        text_append(page->out, "}", 1);
    }
    text_printf(page->out, " %.15g\n", value);
}

static void page_histogram(void *arg, const char *label, const char *label_value, const struct histogram *h) {
    struct page *page = arg;
    uint64_t count = 0;
    for (unsigned i = 0; i <= HISTOGRAM_BOUNDS; i++) {
        char bound[32] = "+Inf";
        if (i < HISTOGRAM_BOUNDS)
            snprintf(bound, sizeof(bound), "%.15g", (double)histogram_bounds[i] / 1e6);
        count += h->counts[i];
        text_printf(page->out, "%s%s_bucket{", page->prefix, page->name);
        put_label(page->out, label, label_value);
        text_printf(page->out, "%sle=\"%s\"} %llu\n", label ? "," : "", bound, (unsigned long long)count);
    }
    page_sample(arg, "_sum", label, label_value, (double)h->sum_us / 1e6);
    page_sample(arg, "_count", label, label_value, (double)count);
}

/* ---- /status.json -------------------------------------------------------------------------------- */

/* Appends at most `max` bytes of a string in readable form, since keys may contain any bytes. */
static void put_string(struct text *out, const char *data, size_t len, size_t max) {
    struct text visible = {0};
    text_append_visible(&visible, data, len < max ? len : max);
    if (len > max)
        text_append(&visible, "...", 3);
    text_append(out, "\"", 1);
    char *at = text_reserve(out, visible.len * JSON_ESCAPED_MAX);
    text_commit(out, (size_t)(json_escape(at, visible.len > 0 ? visible.data : "", visible.len) - at));
    text_append(out, "\"", 1);
    text_clear(&visible);
}

struct json {
    struct text *out;
    const char *array; /* the one that is open, or NULL */
    size_t rows, fields;
};

static void put_name(struct json *j, const char *name) {
    if (j->fields++ > 0)
        text_append(j->out, ",", 1);
    put_string(j->out, name, strlen(name), TEXT_SHOWN);
    text_append(j->out, ":", 1);
}

static void json_row(void *arg) {
    struct json *j = arg;
    text_printf(j->out, "%s{", j->rows > 0 ? "}," : "");
    j->rows++;
    j->fields = 0;
}

static void json_text(void *arg, const char *name, const char *value, size_t len) {
    struct json *j = arg;
    put_name(j, name);
    put_string(j->out, value, len, TEXT_SHOWN);
}

/* For rules, and for the list of workloads that share connections: these texts are longer. */
static void json_long_text(void *arg, const char *name, const char *value, size_t len) {
    struct json *j = arg;
    put_name(j, name);
    put_string(j->out, value, len, LONG_SHOWN);
}

static void json_number(void *arg, const char *name, int64_t value) {
    struct json *j = arg;
    put_name(j, name);
    text_printf(j->out, "%lld", (long long)value);
}

static void json_section(void *arg, const char *name) {
}

static void json_line(void *arg, const char *name, const char *format, ...) {
    char value[LINE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    json_text(arg, name, value, strlen(value));
}

static void put_incident(void *arg, const struct incident *i) {
    struct json *j = arg;
    struct text sentence = {0};
    sentence_append(i, &sentence);
    json_row(j);
    json_number(j, "time-ms", i->time_ms);
    json_text(j, "kind", i->kind, strlen(i->kind));
    json_text(j, "text", sentence.data, sentence.len);
    json_number(j, "count", (int64_t)i->count);
    text_clear(&sentence);
}

static void put_sum(void *arg, const struct incident_sum *i) {
    struct json *j = arg;
    json_row(j);
    json_text(j, "kind", i->kind, strlen(i->kind));
    json_text(j, "rule", i->rule, strlen(i->rule));
    json_text(j, "client", i->identity, strlen(i->identity));
    json_text(j, "key", i->key, i->key_len);
    json_number(j, "count", (int64_t)i->count);
    json_number(j, "first-ms", i->first_ms);
    json_number(j, "last-ms", i->last_ms);
}

/* Appends a line of advice to an array of strings. */
static void put_advice(void *arg, const char *name, const char *line, size_t len) {
    struct json *j = arg;
    if (j->rows == ADVICE_SHOWN)
        return;
    text_append(j->out, ",", j->rows++ > 0);
    put_string(j->out, line, len, LONG_SHOWN);
}

/* Ends the array before, and begins "name":[; NULL: none. */
static void array_next(struct json *j, const char *name) {
    if (j->array)
        text_printf(j->out, "%s]", j->rows > 0 ? "}" : "");
    if (name)
        text_printf(j->out, ",\"%s\":[", name);
    j->array = name;
    j->rows = 0;
}

/* ---- the pages ----------------------------------------------------------------------------------- */

/* The bytes of page.html, embedded at build time. */
extern const unsigned char page_html[];
extern const unsigned page_html_len;

static unsigned page_home(void *arg, struct text *body) {
    (void)arg;
    text_append(body, page_html, page_html_len);
    return 200;
}

static unsigned page_status(void *arg, struct text *out) {
    static const struct incident_filter any;
    const struct pages_source *pages = arg;
    const struct admin_source *source = &pages->admin;
    struct worker *w = source->worker;
    struct json j = {.out = out};
    struct report r = {.arg = &j,
                       .section = json_section,
                       .line = json_line,
                       .row = json_row,
                       .text = json_text,
                       .number = json_number};
    text_printf(out, "{\"ready\":%s,\"figures\":{", pages->unready(pages->arg, false) ? "false" : "true");
    source->info(w, &r);
    text_printf(out, "}");
    array_next(&j, "nodes");
    source->nodes(w, &r);
    array_next(&j, "locks");
    (void)source->locks(w, NULL, 0, &r);
    array_next(&j, "contention");
    source->contention(w, &r);
    array_next(&j, "times");
    (void)source->times(w, NULL, 0, &r);
    array_next(&j, "shared");
    source->shared(w, &r);
    array_next(&j, "rules");
    r.text = json_long_text;
    source->rules(w, &r);
    array_next(&j, "advice");
    r.text = put_advice;
    source->advice(w, &r);
    j.rows = 0; /* they are texts, which have no end */
    array_next(&j, "summary");
    incidents_sums(source->incidents, &any, SUMS_SHOWN, put_sum, &j);
    array_next(&j, "incidents");
    (void)incidents_each(source->incidents, &any, INCIDENTS_SHOWN, put_incident, &j);
    array_next(&j, NULL);
    text_printf(out, "}\n");
    return 200;
}

static unsigned page_metrics(void *arg, struct text *body) {
    struct pages_source *source = arg;
    struct page page = {.out = body};
    struct metric_sink sink = {.arg = &page, .family = page_family, .sample = page_sample, .histogram = page_histogram};
    source->metrics(source->arg, &sink);
    return 200;
}

/* Says that the process is alive: an answer at all is the proof. */
static unsigned page_alive(void *arg, struct text *body) {
    (void)arg;
    text_printf(body, "ok\n");
    return 200;
}

static unsigned tell_ready(const struct pages_source *source, bool all, struct text *body) {
    const char *missing = source->unready(source->arg, all);
    text_printf(body, "%s\n", missing ? missing : "ok");
    return missing ? 503 : 200;
}

static unsigned page_ready(void *arg, struct text *body) {
    return tell_ready(arg, false, body);
}

static unsigned page_ready_all(void *arg, struct text *body) {
    return tell_ready(arg, true, body);
}

static void gather_status(void *arg) {
    struct pages_source *source = arg;
    source->gather(source->arg);
}

struct http *pages_open(int listen_fd, struct pages_source *source, struct http_options *options) {
    static const struct http_page pages[] = {
        {"/", NULL, "text/html; charset=utf-8", page_home, NULL},
        {"/status.json", NULL, "application/json", page_status, gather_status},
        {"/metrics", NULL, "text/plain; version=0.0.4; charset=utf-8", page_metrics, NULL},
        {"/healthz", NULL, "text/plain; charset=utf-8", page_alive, NULL},
        {"/readyz", "all", "text/plain; charset=utf-8", page_ready_all, NULL},
        {"/readyz", NULL, "text/plain; charset=utf-8", page_ready, NULL},
    };
    options->pages = pages;
    options->count = sizeof(pages) / sizeof(pages[0]);
    options->arg = source;
    return http_open(listen_fd, options);
}
