/*
 * Asks each master for INFO clients: it contains maxclients even if CONFIG is forbidden. If the proxy's user may not
 * call INFO, nothing is known, and nothing is logged.
 */
#include <stdlib.h>
#include <string.h>

#include "proxy/session/core/session.h"
#include "proxy/worker/capacity.h"
#include "proxy/worker/evictions.h"
#include "proxy/worker/private.h"

enum { AGAIN_MS = 10 * 1000, REFUSED_MS = 600 * 1000 /* each question is an entry in the node's ACL LOG */ };

static void answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    const char *p = end->reply;
    struct resp_item page;
    size_t len = 0;
    if (!end->error && strncmp(end->reply, "-NOPERM", 7) == 0)
        thread_of(w)->capacity_ms = worker_now(w) + REFUSED_MS - AGAIN_MS;
    if (!end->error && c->count == (uint32_t)upstream_map_print(w->upstream) &&
        resp_item_read(&p, end->reply + end->len, &page) && (page.type == '$' || page.type == '=')) {
        const char *most = info_field(page.str, page.len, "maxclients:", &len);
        unsigned long long number = most ? strtoull(most, NULL, 10) : 0;
        if (number > 0 && number < UINT32_MAX)
            upstream_note_maxclients(upstream_master(w->upstream, c->index), (uint32_t)number);
    }
    request_reply(c->request, "", 0, true);
}

void capacity_tick(struct worker *w) {
    static const char question[] = "*2\r\n$4\r\nINFO\r\n$7\r\nclients\r\n";
    struct upstream_lane lane = {.protocol = 2};
    size_t masters = upstream_master_count(w->upstream);
    int64_t now = worker_now(w);
    if (w->stopping || masters == 0 || now - thread_of(w)->capacity_ms < AGAIN_MS)
        return;
    thread_of(w)->capacity_ms = now;
    for (size_t i = 0; i < masters; i++) {
        if (upstream_node_lost(upstream_master(w->upstream, i)))
            continue;
        struct request *r = request_internal(w);
        r->call.done = answered;
        r->call.index = (uint32_t)i;
        r->call.count = (uint32_t)upstream_map_print(w->upstream); /* tells later which map the index belongs to */
        call_submit_master_lane(&r->call, i, &lane, question, sizeof(question) - 1);
    }
}
