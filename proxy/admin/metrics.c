/* Metrics in Prometheus's text format: https://prometheus.io/docs/instrumenting/exposition_formats/ */
#include "proxy/admin/metrics.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "proxy/base/histogram.h"

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

static void put_label_value(struct text *out, const char *value) {
    for (const char *p = value; *p; p++) {
        if (*p == '\n')
            text_append(out, "\\n", 2);
        else if (*p == '"' || *p == '\\')
            text_printf(out, "\\%c", *p);
        else
            text_append(out, p, 1);
    }
}

/* Appends NAME="VALUE", if there is a label. */
static void put_label(struct text *out, const char *label, const char *value) {
    if (!label)
        return;
    text_printf(out, "%s=\"", label);
    put_label_value(out, value);
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

void metrics_render(void (*collect)(void *arg, const struct metric_sink *sink), void *arg, struct text *out) {
    struct page page = {.out = out};
    struct metric_sink sink = {.arg = &page, .family = page_family, .sample = page_sample, .histogram = page_histogram};
    collect(arg, &sink);
}
