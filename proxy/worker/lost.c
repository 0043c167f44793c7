/*
 * Whether lost masters are back. Normally requests find that out. But a balancer may take a proxy out of service
 * because of a lost master, and then no requests come. So if there is an admin-port, whose pages report nodes, the
 * proxy asks the masters itself.
 *
 *      once a second: a master is lost, or was silent ──> PING ──┬─> any reply: it is removed from the list
 *                                                                └─> no reply: it is silent, and asked again
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/session.h"
#include "proxy/worker/private.h"

enum { ADDRESS_MAX = 256 };

struct lost_node {
    char address[ADDRESS_MAX];
    bool asked;  /* a reply is due */
    bool silent; /* the last question got no reply */
};

struct question {
    struct request_owner owner; /* first */
    char address[ADDRESS_MAX];
};

static struct lost_node *find(struct worker *w, const char *address) {
    for (size_t i = 0; i < thread_of(w)->lost_count; i++)
        if (strcmp(thread_of(w)->lost[i].address, address) == 0)
            return &thread_of(w)->lost[i];
    return NULL;
}

static struct lost_node *add(struct worker *w, const char *address) {
    invariant(!find(w, address), "a node is lost twice");
    struct worker_thread *t = thread_of(w);
    t->lost = memory_realloc(t->lost, (t->lost_count + 1) * sizeof(*t->lost));
    struct lost_node *n = &t->lost[t->lost_count++];
    *n = (struct lost_node){.asked = false};
    snprintf(n->address, sizeof(n->address), "%s", address);
    return n;
}

static void forget(struct worker *w, struct lost_node *n) {
    invariant(n >= thread_of(w)->lost && n < thread_of(w)->lost + thread_of(w)->lost_count, "%zu nodes are lost",
              thread_of(w)->lost_count);
    *n = thread_of(w)->lost[--thread_of(w)->lost_count];
}

static void answered(struct call *c, const struct call_end *end) {
    struct question *q = REQUEST_OWNER(c->request, struct question);
    struct lost_node *n = find(c->request->worker, q->address);
    request_disown(c->request);
    memory_free(q);
    if (n) {
        n->asked = false;
        n->silent = end->error != NULL;
        if (!n->silent)
            forget(c->request->worker, n);
    }
    request_reply(c->request, "", 0, true);
}

/* `answered` may be called before this function returns. */
static void ask(struct worker *w, size_t master, const char *address) {
    static const char question[] = "*1\r\n$4\r\nPING\r\n";
    struct upstream_lane lane = {.protocol = 2};
    struct question *q = memory_zalloc(sizeof(*q));
    snprintf(q->address, sizeof(q->address), "%s", address);
    struct request *r = request_internal(w);
    request_own(r, &q->owner, &request_owner_silent);
    r->call.done = answered;
    call_submit_master_lane(&r->call, master, &lane, question, sizeof(question) - 1);
}

/* Forgets nodes that are no masters any more. */
static void forget_others(struct worker *w) {
    for (size_t i = thread_of(w)->lost_count; i-- > 0;) {
        struct lost_node *n = &thread_of(w)->lost[i];
        bool there = n->asked;
        for (size_t m = 0; !there && m < upstream_master_count(w->upstream); m++) {
            const struct upstream_node *node = upstream_master(w->upstream, m);
            there = node && strcmp(upstream_node_address(node), n->address) == 0;
        }
        if (!there)
            forget(w, n);
    }
}

void lost_nodes_ask(struct worker *w) {
    if (w->stopping)
        return;
    forget_others(w);
    for (size_t i = 0; i < upstream_master_count(w->upstream); i++) {
        struct upstream_node *node = upstream_master(w->upstream, i);
        if (!node)
            continue;
        const char *address = upstream_node_address(node);
        struct lost_node *n = find(w, address);
        if (!n && upstream_node_lost(node))
            n = add(w, address);
        if (!n || n->asked)
            continue;
        n->asked = true;
        ask(w, i, address);
    }
}

bool lost_node_silent(struct worker *w, const char *address) {
    const struct lost_node *n = find(w, address);
    return n && n->silent;
}

void lost_nodes_clear(struct worker *w) {
    memory_free(thread_of(w)->lost);
}
