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

enum { LOG_AGAIN_MS = 10 * 1000, LOOK_AGAIN_MS = 1000 };

static uint32_t text_hash(const char *s) {
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 16777619u;
    return h;
}

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

static bool same_machine(const struct sockaddr_storage *a, const struct sockaddr *b) {
    if (a->ss_family != b->sa_family)
        return false;
    if (b->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

/* Whether the name still leads to the same machine. True, too, if the lookup gave no result. */
static bool has_not_moved(const struct upstream_node *n, const struct addrinfo *found) {
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        if (same_machine(&n->addrs[n->addr_good], a->ai_addr))
            return true;
    return !found;
}

static void on_found(void *arg, const struct addrinfo *found, const char *error) {
    struct upstream_node *n = arg;
    invariant(n->lookup && !n->numeric, "a lookup answers that was not asked");
    bool rechecked = n->addr_count > 0;
    n->lookup = NULL;
    if (rechecked && has_not_moved(n, found))
        return;
    n->addr_count = n->addr_good = 0;
    for (const struct addrinfo *a = found; a && n->addr_count < NODE_ADDRESSES; a = a->ai_next) {
        memcpy(&n->addrs[n->addr_count], a->ai_addr, a->ai_addrlen);
        n->addr_lens[n->addr_count++] = a->ai_addrlen;
    }
    if (rechecked) {
        log_notice("Node %s: the name leads to another machine now", n->address);
        conn_retire_all(n);
        return;
    }
    conn_all_resolved(n, error);
}

static void look_up(struct upstream_node *n) {
    invariant(!n->lookup && !n->numeric, "a name is looked up twice at once");
    n->looked_ms = clock_ms();
    n->lookup = resolve_start(n->u->loop, n->at.host, n->at.port, on_found, n);
}

bool node_resolve(struct upstream_node *n) {
    if (n->addr_count == 0 && !n->lookup)
        look_up(n);
    return n->addr_count > 0;
}

void node_recheck_name(struct upstream_node *n) {
    if (!n->numeric && !n->lookup && clock_ms() - n->looked_ms >= LOOK_AGAIN_MS)
        look_up(n);
}

struct upstream_node *node_get(struct upstream *u, const struct address *at) {
    char text[ADDRESS_MAX + 16];
    address_text(at, text, sizeof(text));
    uint32_t hash = text_hash(text);
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

void node_forget(struct upstream_node *n) {
    invariant(list_empty(&n->pools) && n->pins == 0 && n->idle_pin_count == 0, "the node has %u pins", n->pins);
    invariant(n->u->node_count > 0, "no node is counted");
    list_remove(&n->link);
    n->u->node_count--;
    resolve_cancel(n->lookup);
    probe_free(n);
    quota_put(n->quota);
    memory_free(n->address);
    memory_free(n);
}

const char *upstream_node_address(const struct upstream_node *n) {
    return n->address;
}

/* ---- lanes ---- */

/* Finds a lane's pool and moves it to the front, so that the first pool is nearly always the right one. */
static struct upstream_pool *pool_find(struct upstream_node *n, const struct upstream_lane *lane) {
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

static struct upstream_pool *pool_new(struct upstream_node *n, const struct upstream_lane *lane) {
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

struct upstream_conn *node_conn_find(struct upstream_node *n, const struct upstream_lane *lane, unsigned index) {
    invariant(index < n->u->connections + UPSTREAM_APARTS, "connection %u of the lane", index);
    struct upstream *u = n->u;
    struct upstream_pool *p = pool_find(n, lane);
    if (p && p->conns[index])
        return p->conns[index];
    if (node_backing_off(n)) {
        snprintf(u->error, sizeof(u->error), "UPSTREAM node %s can't be reached (%s)", n->address, n->reason);
        upstream_want_map(u);
        return NULL;
    }
    if (!p)
        p = pool_new(n, lane);
    struct upstream_conn *c = conn_open(p, index);
    if (!c)
        pool_release(p);
    return c;
}

/* ---- health ---- */

bool node_backing_off(const struct upstream_node *n) {
    return n->failures > 0 && clock_ms() < n->retry_at_ms;
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
    n->retry_at_ms = 0;
    n->logged[0] = '\0';
}

static void sweep(struct upstream_conn *c, void *arg) {
    const int64_t *now = arg;
    bool unused = c->u->topology && c->node->slots == 0;
    int64_t idle_ms = c->pin ? PIN_IDLE_MS : IDLE_MS;
    if ((c->pin && c->pin->owned) || (!unused && dedicated_keeps(c)))
        return;
    const struct upstream_lane *lane = c->pin ? &c->pin->lane : c->pool ? &c->pool->lane : NULL;
    if (c->state == CONN_READY && c->in_flight == 0 &&
        (unused || *now - c->progress_ms > idle_ms || (lane && login_is_over(lane->login))))
        conn_close(c, CONN_IDLE, "idle");
}

void node_sweep(struct upstream *u) {
    int64_t now = clock_ms();
    conn_each(u, sweep, &now);
    if (!u->topology)
        return;
    LIST_FOREACH_SAFE(it, &u->nodes) {
        struct upstream_node *n = LIST_ENTRY(it, struct upstream_node, link);
        if (n->slots == 0 && list_empty(&n->pools) && n->pins == 0)
            node_forget(n);
    }
}
