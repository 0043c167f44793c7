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
    status_json(&source->admin, source->unready(source->arg) == NULL, body);
    return 200;
}

static unsigned page_metrics(void *arg, struct text *body) {
    struct pages_source *source = arg;
    metrics_render(source->metrics, source->arg, body);
    return 200;
}

/* Says that the process is alive: that it answers at all is the news. */
static unsigned page_alive(void *arg, struct text *body) {
    (void)arg;
    text_printf(body, "ok\n");
    return 200;
}

static unsigned page_ready(void *arg, struct text *body) {
    struct pages_source *source = arg;
    const char *missing = source->unready(source->arg);
    text_printf(body, "%s\n", missing ? missing : "ok");
    return missing ? 503 : 200;
}

struct http *pages_open(int listen_fd, struct pages_source *source) {
    static const struct http_page pages[] = {
        {"/", "text/html; charset=utf-8", page_home},
        {"/status.json", "application/json", page_status},
        {"/metrics", "text/plain; version=0.0.4; charset=utf-8", page_metrics},
        {"/healthz", "text/plain; charset=utf-8", page_alive},
        {"/readyz", "text/plain; charset=utf-8", page_ready},
    };
    return http_open(listen_fd, pages, sizeof(pages) / sizeof(pages[0]), source);
}
