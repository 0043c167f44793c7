/*
 * Whether proxies that were before this Redis have stayed before another one. After a replica was promoted by hand, or
 * a name has moved, some proxies may go on before the Redis of before: two proxies then give out the same locks. Each
 * process writes every 10 s to one hash in Redis that it is there (presence.lua), and the answer names the processes
 * that were there when the data got a new replication id, and have not followed.
 *
 * A proxy writes once it has met another proxy's lease: before, there is nothing that could split, and no key of ours
 * is in Redis. Only a standalone and Sentinel's master are asked: a cluster's nodes agree on each slot's master. Two
 * Redis servers that never had the same data have nothing by which proxies could know of each other.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/text.h"
#include "proxy/upstream/script.h"
#include "proxy/worker/private.h"

enum { AGAIN_MS = 10 * 1000, PLACE_MAX = 128 };

/* Reads the answer, an array of places. Returns how many. *places gets them, with a comma between two. */
static unsigned read_places(const struct call_end *end, struct text *places) {
    const char *p = end->reply, *over = end->reply + end->len;
    struct resp_item all, one;
    unsigned count = 0;
    if (end->error || !resp_item_read(&p, over, &all) || all.type != '*')
        return 0;
    for (; count < (unsigned)all.num && resp_item_read(&p, over, &one) && one.type == '$'; count++) {
        text_append(places, ", ", count > 0 ? 2 : 0);
        text_append(places, one.str, one.len);
    }
    return count;
}

static void answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct text places = {0};
    unsigned away = read_places(end, &places), before = atomic_exchange(&w->shared->away, away);
    if (away > before)
        log_warning(
            "Proxies that were before this Redis have not followed it since a failover or a restart: %s. If they "
            "run, they are before another Redis, and give out the same locks: stop them, or correct their "
            "upstream",
            places.data);
    text_clear(&places);
    thread_of(w)->presence_asking = false;
    w->own_works--;
    memory_free(c->request->owner);
    request_disown(c->request);
    request_reply(c->request, "", 0, true);
}

/* CLIENT PAUSE WRITE in Redis holds the word up: it has a connection of its own, and may take any time. */
static void presence_send(struct worker *w, const char *place) {
    const struct script *script = script_get(SCRIPT_PRESENCE);
    struct upstream_lane lane = {.dedicated = upstream_dedicated_own(w->upstream), .protocol = 2};
    struct request *r = request_internal(w);
    request_own(r, memory_zalloc(sizeof(struct request_owner)), &patient_ops);
    char key[64];
    snprintf(key, sizeof(key), "lockkeeper:{%s}:lockkeeper-proxies", slot_tag(0));
    build_start(w, 7);
    build_text(w, "EVAL");
    build_bulk(w, script->source, script->len);
    build_text(w, "2");
    build_text(w, key);
    build_text(w, key);
    build_text(w, w->shared->process_id);
    build_text(w, place);
    thread_of(w)->presence_asking = true;
    w->own_works++;
    r->call.done = answered;
    r->call.up.repeatable = true;
    call_submit_lane(&r->call, 0, &lane, w->build.data, w->build.len);
}

/* A proxy without clients asks, too, and so comes back to a Redis that it has lost: else it would count as away. */
void presence_tick(struct worker *w) {
    int64_t now = worker_now(w);
    char host[PLACE_MAX / 2] = "", place[PLACE_MAX];
    if (thread_of(w)->presence_asking || w->stopping || upstream_is_cluster(w->upstream) ||
        !engine_elsewhere(w->shared->engine) || now - thread_of(w)->presence_ms < AGAIN_MS)
        return;
    thread_of(w)->presence_ms = now;
    gethostname(host, sizeof(host) - 1);
    snprintf(place, sizeof(place), "%s:%lld, process %d", host, (long long)w->config->port, (int)getpid());
    presence_send(w, place);
}

void presence_end(struct worker *w) {
    bool reachable = upstream_master_count(w->upstream) > 0 && !upstream_node_lost(upstream_master(w->upstream, 0));
    if (thread_of(w)->presence_ms > 0 && reachable)
        presence_send(w, "");
}
