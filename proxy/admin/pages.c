/* The pages of the operator's HTTP server. */
#include "proxy/admin/pages.h"

#include "proxy/admin/metrics.h"
#include "proxy/admin/status.h"

/* The bytes of page.html, embedded at build time. */
extern const unsigned char page_html[];
extern const unsigned page_html_len;

static unsigned page_home(void *arg, struct text *body) {
    (void)arg;
    text_append(body, page_html, page_html_len);
    return 200;
}

static unsigned page_status(void *arg, struct text *body) {
    struct pages_source *source = arg;
    status_json(&source->admin, source->unready(source->arg, false) == NULL, body);
    return 200;
}

static unsigned page_metrics(void *arg, struct text *body) {
    struct pages_source *source = arg;
    metrics_render(source->metrics, source->arg, body);
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
