/* Metrics in Prometheus's text format: https://prometheus.io/docs/instrumenting/exposition_formats/ */
#include "proxy/admin/metrics.h"

#include <stddef.h>
#include <string.h>

struct page {
    struct text *out;
    const char *name;
};

static void page_family(void *arg, const char *name, const char *type, const char *help) {
    struct page *page = arg;
    page->name = name;
    text_printf(page->out, "# HELP lockkeeper_%s %s\n# TYPE lockkeeper_%s %s\n", name, help, name, type);
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

static void page_sample(void *arg, const char *suffix, const char *label, const char *label_value, double value) {
    struct page *page = arg;
    text_printf(page->out, "lockkeeper_%s%s", page->name, suffix);
    if (label) {
        text_printf(page->out, "{%s=\"", label);
        put_label_value(page->out, label_value);
        text_append(page->out, "\"}", 2);
    }
    text_printf(page->out, " %.15g\n", value);
}

void metrics_render(void (*collect)(void *arg, const struct metric_sink *sink), void *arg, struct text *out) {
    struct page page = {.out = out};
    struct metric_sink sink = {.arg = &page, .family = page_family, .sample = page_sample};
    collect(arg, &sink);
}
