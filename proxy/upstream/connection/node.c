/*
 * Nodes: an address, its health, and the connections to it, by lane. After a failure to reach a node, the proxy does
 * not try again for a while (longer each time, with jitter); meanwhile requests for it fail at once.
 *
 * It knows how many slots a node has, but not which, and nothing of requests.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

enum { LOG_AGAIN_MS = 10 * 1000 };

/* Takes an address that needs no lookup, a unix path or a numeric one; false for others. */
static bool resolve_numeric(struct upstream_node *n) {
    if (n->at.port == 0) {
        struct sockaddr_un *sun = (struct sockaddr_un *)(void *)&n->addrs[0];
        sun->sun_family = AF_UNIX;
        memcpy(sun->sun_path, n->at.host,
               strnlen(n->at.host, sizeof(sun->sun_path) - 1)); /* address_parse has checked that it fits */
        n->addr_lens[0] = sizeof(*sun);
        n->addr_count = 1;
        return true;
    }
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *list;
    char port[16];
    snprintf(port, sizeof(port), "%d", n->at.port);
    if (getaddrinfo(n->at.host, port, &hints, &list) != 0)
        return false;
    memcpy(&n->addrs[0], list->ai_addr, list->ai_addrlen);
    n->addr_lens[0] = list->ai_addrlen;
    n->addr_count = 1;
    freeaddrinfo(list);
    return true;
}

struct upstream_node *node_get(struct upstream *u, const struct address *at) {
    char text[ADDRESS_MAX + 16];
    address_text(at, text, sizeof(text));
    uint32_t hash = text_hash(text, strlen(text));
    LIST_FOREACH(it, &u->nodes) {
        struct upstream_node *n = LIST_ENTRY(it, struct upstream_node, link);
        if (n->hash == hash && strcmp(n->address, text) == 0)
            return n;
    }
    if (u->node_count >= NODES_MAX)
        return NULL;
    struct upstream_node *n = memory_zalloc(sizeof(*n));
    n->u = u;
    n->at = *at;
    n->address = memory_strdup(text);
    n->hash = hash;
    n->quota = quota_get(text);
    list_init(&n->pools);
    list_init(&n->idle_pins);
    n->numeric = resolve_numeric(n);
    list_append(&u->nodes, &n->link);
    u->node_count++;
    return n;
}

struct upstream_node *upstream_node_named(struct upstream *u, const char *address) {
    struct address at;
    bool ok = address_parse(address, strlen(address), &at) && at.host[0] != '\0';
    return ok ? node_get(u, &at) : NULL;
}

void node_forget(struct upstream_node *n) {
    invariant(list_empty(&n->pools) && n->pins == 0 && n->idle_pin_count == 0, "the node has %u pins", n->pins);
    invariant(n->u->node_count > 0, "no node is counted");
    list_remove(&n->link);
    n->u->node_count--;
    resolve_cancel(n->lookup);
    memory_free(n->probe);
    quota_put(n->quota);
    memory_free(n->address);
    memory_free(n);
}

const char *upstream_node_address(const struct upstream_node *n) {
    return n->address;
}

/* ---- lanes ---- */

/* The pool moves to the front, so that the first pool is nearly always the right one. */
struct upstream_pool *pool_find(struct upstream_node *n, const struct upstream_lane *lane) {
    LIST_FOREACH(it, &n->pools) {
        struct upstream_pool *p = LIST_ENTRY(it, struct upstream_pool, link);
        if (!lane_equal(&p->lane, lane))
            continue;
        if (n->pools.next != it) {
            list_remove(it);
            list_prepend(&n->pools, it);
        }
        return p;
    }
    return NULL;
}

struct upstream_pool *pool_new(struct upstream_node *n, const struct upstream_lane *lane) {
    struct upstream_pool *p = memory_zalloc(sizeof(*p) + (n->u->connections + UPSTREAM_APARTS) * sizeof(p->conns[0]));
    p->node = n;
    p->lane = *lane;
    list_prepend(&n->pools, &p->link);
    return p;
}

void pool_release(struct upstream_pool *p) {
    invariant(p->node && !list_empty(&p->link), "a pool is released twice");
    for (unsigned i = 0; i < p->node->u->connections + UPSTREAM_APARTS; i++)
        if (p->conns[i])
            return;
    list_remove(&p->link);
    memory_free(p);
}

/* ---- health ---- */

bool node_backing_off(const struct upstream_node *n) {
    return n->failures > 0 && clock_ms() < n->retry_at_ms;
}

void upstream_try_now(struct upstream *u) {
    LIST_FOREACH(it, &u->nodes)
    LIST_ENTRY(it, struct upstream_node, link)->retry_at_ms = 0;
}

void node_log(struct upstream_node *n, const char *what, const char *reason) {
    char line[REASON_MAX];
    snprintf(line, sizeof(line), "%s: %.180s", what, reason);
    int64_t now = clock_ms();
    if (strcmp(line, n->logged) == 0 && now - n->logged_ms < LOG_AGAIN_MS)
        return;
    memcpy(n->logged, line, sizeof(line));
    n->logged_ms = now;
    log_warning("Node %s %s", n->address, line);
}

void node_log_refusal(struct upstream_node *n, const char *reason) {
    int64_t now = clock_ms();
    n->refusals++;
    if (n->refusal_logged_ms > 0 && now - n->refusal_logged_ms < LOG_AGAIN_MS)
        return;
    if (n->refusals == 1)
        log_warning("Node %s refused a connection: %s", n->address, reason);
    else
        log_warning("Node %s refused %u connections, the last one: %s", n->address, n->refusals, reason);
    n->refusal_logged_ms = now;
    n->refusals = 0;
}

void node_failed(struct upstream_node *n, const char *reason) {
    invariant(reason[0], "a node fails without a reason");
    int64_t wait = BACKOFF_FIRST_MS;
    for (unsigned i = 0; i < n->failures && wait < BACKOFF_LONGEST_MS; i++)
        wait *= 2;
    if (wait > BACKOFF_LONGEST_MS)
        wait = BACKOFF_LONGEST_MS;
    if (n->failures++ == 0)
        n->failed_ms = clock_ms();
    n->retry_at_ms = clock_ms() + upstream_jitter(n->u, wait);
    snprintf(n->reason, sizeof(n->reason), "%s", reason);
    if (!n->numeric)
        n->addr_count = 0; /* by now the name may lead to another machine */
    node_log(n, "can't be reached", reason);
}

void node_works(struct upstream_node *n) {
    if (n->failures > 0)
        log_notice("Node %s answers again", n->address);
    n->failures = 0;
    n->doubted = false;
    n->retry_at_ms = 0;
    n->logged[0] = '\0';
}
