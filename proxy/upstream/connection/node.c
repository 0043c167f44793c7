/*
 * Nodes: an address, its health, and the connections to it, by lane. After a failure to reach a node, the proxy does
 * not try again for a while (longer each time, with jitter); meanwhile requests for it fail at once.
 *
 * It knows how many slots a node has, but not which, and nothing of requests. Here are also the upstream's tick, its
 * random numbers, and its announcement that it is ready.
 *
 * Nodes send addresses too, and addresses go into logs and error replies: a host may only contain harmless bytes.
 *
 * Dedicated lanes: connections that only one caller uses. Each begins with the caller's commands (CLIENT TRACKING ON
 * ...). The caller gets their pushes, and is told when one of them is gone.
 *
 *      upstream_dedicated_new ──> lane.dedicated ──> connections to whatever nodes the lane's requests go
 *      upstream_dedicated_free ──> closed as soon as nothing is in flight on them
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "proxy/upstream/connection/private.h"

/* ---- addresses ---- */

bool address_host_ok(const char *host, size_t len) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%";
    for (size_t i = 0; i < len; i++)
        if (!memchr(allowed, host[i], sizeof(allowed) - 1))
            return false;
    return len < 256;
}

bool address_parse(const char *text, size_t len, struct address *out) {
    int64_t port;
    if (len > 5 && memcmp(text, "unix:", 5) == 0) {
        text += 5;
        len -= 5;
        if (len >= 108 || memchr(text, '\0', len))
            return false;
        memcpy(out->host, text, len);
        out->host[len] = '\0';
        out->port = 0;
        return true;
    }
    const char *colon = memrchr(text, ':', len);
    if (!colon)
        return false;
    size_t host_len = (size_t)(colon - text), port_len = len - host_len - 1;
    if (port_len > 5 || !resp_integer(colon + 1, port_len, &port) || port < 1 || port > 65535)
        return false;
    out->port = (int)port;
    if (host_len >= 2 && text[0] == '[' && text[host_len - 1] == ']') {
        text++;
        host_len -= 2;
    }
    if (!address_host_ok(text, host_len))
        return false;
    memcpy(out->host, text, host_len);
    out->host[host_len] = '\0';
    return true;
}

void address_text(const struct address *a, char *out, size_t size) {
    if (a->port == 0)
        snprintf(out, size, "unix:%s", a->host);
    else if (strchr(a->host, ':'))
        snprintf(out, size, "[%s]:%d", a->host, a->port);
    else
        snprintf(out, size, "%s:%d", a->host, a->port);
}

/* ---- time ---- */

/* By splitmix64. */
uint32_t upstream_random(struct upstream *u, uint32_t below) {
    uint64_t z = u->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % below);
}

int64_t upstream_jitter(struct upstream *u, int64_t ms) {
    return ms - ms / 4 + (int64_t)upstream_random(u, (uint32_t)(ms / 2 + 1));
}

int64_t upstream_backoff(struct upstream *u, int64_t first_ms, int64_t longest_ms, unsigned failures) {
    int64_t ms = first_ms;
    for (unsigned i = 0; i < failures && ms < longest_ms; i++)
        ms *= 2;
    return upstream_jitter(u, ms < longest_ms ? ms : longest_ms);
}

void upstream_set_tick(struct upstream *u, bool fast) {
    u->tick_fast = fast;
    ev_timer_stop(u->loop, &u->tick);
    double period = fast ? TICK_FAST_S : TICK_SLOW_S;
    ev_timer_set(&u->tick, period, period);
    ev_timer_start(u->loop, &u->tick);
}

void upstream_timer(struct upstream *u, ev_timer *timer, int64_t ms) {
    double wait = (double)ms / 1000;
    if (ev_is_active(timer) && ev_timer_remaining(u->loop, timer) <= wait)
        return;
    ev_timer_stop(u->loop, timer);
    ev_now_update(u->loop);
    ev_timer_set(timer, wait, 0.);
    ev_timer_start(u->loop, timer);
}

void upstream_wake(struct upstream *u) {
    if (!u->tick_fast)
        upstream_set_tick(u, true);
}

void upstream_announce(struct upstream *u, const char *error) {
    if (u->announced)
        return;
    u->announced = true;
    if (u->events.ready)
        u->events.ready(u->events.arg, error);
}

/* ---- nodes ---- */

/* Takes an address that needs no lookup, a unix path or a numeric one; false for others. */
static bool resolve_numeric(struct upstream_node *n) {
    if (n->at.port == 0) {
        struct sockaddr_un *sun = (void *)&n->host.at[0];
        sun->sun_family = AF_UNIX;
        memcpy(sun->sun_path, n->at.host, strnlen(n->at.host, sizeof(sun->sun_path) - 1)); /* address_parse: it fits */
        n->host.lens[0] = sizeof(*sun);
        n->host.count = 1;
        return true;
    }
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *list;
    char port[16];
    snprintf(port, sizeof(port), "%d", n->at.port);
    if (getaddrinfo(n->at.host, port, &hints, &list) != 0)
        return false;
    host_take(&n->host, list);
    freeaddrinfo(list);
    return true;
}

/* The node of this name; made if needed. `host` NULL: its addresses follow from `at`. */
static struct upstream_node *node_of(struct upstream *u, const char *text, const struct address *at,
                                     const struct host_addresses *host) {
    uint32_t hash = text_hash(text, strlen(text));
    LIST_EACH(n, &u->nodes, struct upstream_node, link)
        if (n->hash == hash && strcmp(n->address, text) == 0)
            return n;
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
    list_init(&n->replicas);
    list_init(&n->replica);
    if (host)
        n->host = *host;
    n->numeric = host || resolve_numeric(n);
    list_append(&u->nodes, &n->link);
    u->node_count++;
    return n;
}

struct upstream_node *node_get(struct upstream *u, const struct address *at) {
    char text[ADDRESS_MAX + 16];
    address_text(at, text, sizeof(text));
    return node_of(u, text, at, NULL);
}

struct upstream_node *upstream_node_named(struct upstream *u, const char *address) {
    struct address at;
    bool ok = address_parse(address, strlen(address), &at) && at.host[0] != '\0';
    return ok ? node_get(u, &at) : NULL;
}

void node_is_replica(struct upstream_node *n, struct upstream_node *master) {
    list_remove(&n->replica);
    n->master = master;
    if (!master)
        return;
    struct list_node *at = &master->replicas; /* the order is the same in every round: a session keeps its replica */
    LIST_EACH(it, &master->replicas, struct upstream_node, replica)
        if (strcmp(it->address, n->address) < 0)
            at = &it->replica;
    list_prepend(at, &n->replica);
}

void node_forget(struct upstream_node *n) {
    invariant(list_empty(&n->pools) && n->pins == 0 && n->idle_pin_count == 0, "the node has %u pins", n->pins);
    invariant(n->u->node_count > 0, "no node is counted");
    list_remove(&n->link);
    n->u->node_count--;
    node_is_replica(n, NULL);
    LIST_EACH_SAFE(it, &n->replicas, struct upstream_node, replica)
        node_is_replica(it, NULL);
    resolve_cancel(n->lookup);
    quota_put(n->quota);
    MEMORY_FREE_ALL(n->probe, n->watch, n->address, n);
}

const char *upstream_node_address(const struct upstream_node *n) {
    return n->address;
}

/* ---- the host name of a standalone ---- */

/* The standalone's node, if it has a host name. */
static struct upstream_node *named(const struct upstream *u) {
    struct upstream_node *n = u->topology ? NULL : upstream_master(u, 0);
    return n && !n->numeric ? n : NULL;
}

const char *upstream_host_name(const struct upstream *u, int *port) {
    const struct upstream_node *n = named(u);
    if (!n || !n->reached)
        return NULL;
    *port = n->at.port;
    return n->at.host;
}

void upstream_host_now(const struct upstream *u, struct host_addresses *out) {
    const struct upstream_node *n = named(u);
    out->count = n ? n->host.count : 0;
    for (unsigned i = 0; i < out->count; i++) {
        out->at[i] = n->host.at[(n->addr_good + i) % out->count];
        out->lens[i] = n->host.lens[(n->addr_good + i) % out->count];
    }
}

void upstream_host_move(struct upstream *u, const struct host_addresses *to) {
    struct upstream_node *n = named(u);
    struct host_addresses now = {.count = 0}, first = {.at = {to->at[0]}, .count = 1};
    if (!n || to->count == 0)
        return;
    upstream_host_now(u, &now);
    if (now.count > 0 && host_has(&first, &now.at[0]))
        return;
    n->host = *to;
    n->addr_good = 0;
    n->retry_at_ms = 0;
    conn_retire_all(n);
}

struct upstream_node *upstream_host_node(struct upstream *u, const struct host_addresses *host) {
    const struct upstream_node *n = named(u);
    char text[ADDRESS_MAX + RESOLVE_NUMBER_MAX + 32], number[RESOLVE_NUMBER_MAX];
    if (!n || host->count == 0)
        return NULL;
    resolve_number((const struct sockaddr *)(const void *)&host->at[0], host->lens[0], number);
    snprintf(text, sizeof(text), "%s at %s", n->address, number);
    return node_of(u, text, &n->at, host);
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
    LIST_EACH(n, &u->nodes, struct upstream_node, link)
        n->retry_at_ms = 0;
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

void node_failed(struct upstream_node *n, const char *reason) {
    invariant(reason[0], "a node fails without a reason");
    n->retry_at_ms = clock_ms() + upstream_backoff(n->u, BACKOFF_FIRST_MS, BACKOFF_LONGEST_MS, n->failures);
    if (n->failures++ == 0)
        n->failed_ms = clock_ms();
    snprintf(n->reason, sizeof(n->reason), "%s", reason);
    if (!n->numeric && n->reached && !n->u->topology && n->u->events.doubt)
        n->u->events.doubt(n->u->events.arg, false);
    else if (!n->numeric)
        n->host.count = 0; /* by now the name may lead to another machine */
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

/* ---- dedicated lanes ---- */

struct upstream_dedicated *dedicated_find(const struct upstream *u, uint32_t number) {
    LIST_EACH(lane, &u->dedicated, struct upstream_dedicated, link)
        if (lane->number == number)
            return lane;
    return NULL;
}

uint32_t upstream_dedicated_new(struct upstream *u, const char *client,
                                const struct upstream_dedicated_events *events) {
    struct upstream_dedicated *dedicated = memory_zalloc(sizeof(*dedicated));
    do
        dedicated->number = ++u->last_dedicated;
    while (dedicated->number == 0 || dedicated_find(u, dedicated->number));
    dedicated->client = memory_strdup(client);
    dedicated->events = *events;
    list_init(&dedicated->link);
    list_append(&u->dedicated, &dedicated->link);
    return dedicated->number;
}

uint32_t upstream_dedicated_own(struct upstream *u) {
    static const struct upstream_dedicated_events silent;
    if (u->own_dedicated == 0)
        u->own_dedicated = upstream_dedicated_new(u, "", &silent);
    return u->own_dedicated;
}

void upstream_dedicated_begin(struct upstream *u, uint32_t number, const char *command, size_t len) {
    struct upstream_dedicated *dedicated = dedicated_find(u, number);
    if (!invariant(dedicated, "dedicated lane %u has ended", number))
        return;
    if (dedicated->count > 0 && dedicated->len - dedicated->last == len &&
        memcmp(dedicated->commands + dedicated->last, command, len) == 0)
        return; /* to repeat a command would change nothing */
    dedicated->commands = memory_realloc(dedicated->commands, dedicated->len + len);
    memcpy(dedicated->commands + dedicated->len, command, len);
    dedicated->last = dedicated->len;
    dedicated->len += len;
    dedicated->count++;
}

void upstream_dedicated_free(struct upstream *u, uint32_t number) {
    struct upstream_dedicated *dedicated = dedicated_find(u, number);
    if (!dedicated)
        return;
    list_remove(&dedicated->link);
    MEMORY_FREE_ALL(dedicated->commands, dedicated->client, dedicated);
    u->dedicated_ended = true;
}
