/*
 * The ways between proxies and servers, in place of proxy/upstream/: what the proxy's code calls of it. Messages over
 * one connection keep their order. Behind a lost connection a message may still arrive, much later, and its answer is
 * lost. The upstream's repeats are made as the upstream makes them.
 */
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "tests/sim/quorum/quorum_world.h"

enum { RARELY_SLOW = 6, TRIES_MAX = 3, LATE_MS = 3000, REDIS_TIMEOUT_MS = 2000 };

/* ---- messages ---------------------------------------------------------------------------------------- */

static int64_t delay_ms(struct world *w) {
    bool slow = !world_calm(w) && (w->now_ms < w->slow_until_ms || world_chance(w, RARELY_SLOW));
    return slow ? world_below(w, (unsigned)(world_chance(w, 20) ? LATE_MS : 3 * w->timeout_ms)) : world_below(w, 4);
}

static struct world *world_of(const struct upstream *u) {
    return u->proxy->world;
}

/* When a message over this connection arrives that leaves now; `last` is when the one before it does. */
static int64_t due_ms(struct upstream *u, int64_t *last) {
    struct world *w = world_of(u);
    int64_t due = w->now_ms + delay_ms(w);
    if (due < *last)
        due = *last;
    if (due < u->cut_until_ms)
        due = u->cut_until_ms;
    if (due < w->servers[u->server].stopped_until_ms)
        due = w->servers[u->server].stopped_until_ms;
    if (last == &u->back_ms && due < u->proxy->stopped_until_ms)
        due = u->proxy->stopped_until_ms;
    *last = due;
    return due;
}

static void message_free(struct q_message *m) {
    list_remove(&m->link);
    text_clear(&m->bytes);
    text_clear(&m->answer);
    memory_free(m);
}

static void message_send(struct upstream *u, struct upstream_request *r, const char *bytes, size_t len) {
    struct world *w = world_of(u);
    struct q_message *m = memory_zalloc(sizeof(*m));
    list_init(&m->link);
    m->upstream = u;
    m->request = r;
    m->server = u->server;
    m->sent_ms = w->now_ms;
    m->due_ms = due_ms(u, &u->there_ms);
    text_append(&m->bytes, bytes, len);
    list_append(&w->messages, &m->link);
    r->in_flight = true;
}

struct q_message *wires_first(struct world *w) {
    struct q_message *first = NULL;
    LIST_EACH(m, &w->messages, struct q_message, link) {
        if (!first || m->due_ms < first->due_ms)
            first = m;
    }
    return first;
}

static void request_fails(struct q_proxy *p, struct upstream_request *r, enum upstream_failure why) {
    bool within = p->world->here == p;
    r->in_flight = false;
    if (!within)
        turn_begin(p);
    r->ops->fail(r, why, "UPSTREAM the node was lost; the outcome of the request is unknown");
    if (!within)
        turn_end(p->world);
}

/* A request whose connection is lost. Its message is gone, or goes its own way. */
static void request_lost(struct upstream *u, struct upstream_request *r, const struct text *bytes, bool for_good) {
    bool pointless = r->ops->pointless && r->ops->pointless(r);
    if (!for_good && !pointless && r->repeatable && r->attempts < TRIES_MAX) {
        r->attempts++;
        message_send(u, r, bytes->data, bytes->len);
        return;
    }
    request_fails(u->proxy, r, pointless ? UPSTREAM_NOT_SENT : UPSTREAM_UNKNOWN);
}

void wires_reset(struct upstream *u, bool for_good) {
    struct world *w = world_of(u);
    struct list_node lost, *n;
    list_init(&lost);
    LIST_EACH_SAFE(m, &w->messages, struct q_message, link) {
        if (m->upstream == u) {
            list_remove(&m->link);
            list_append(&lost, &m->link);
        }
    }
    u->there_ms = u->back_ms = 0;
    if (u == &u->proxy->redis && !for_good)
        u->server = w->master;
    while ((n = list_shift(&lost))) {
        struct q_message *m = LIST_ENTRY(n, struct q_message, link);
        struct upstream_request *r = m->request;
        list_init(&m->link);
        if (r)
            request_lost(u, r, &m->bytes, for_good);
        m->request = NULL;
        m->upstream = NULL;
        /* A release by name that comes so late would end its client's next lease: that is no matter of quorum. */
        if (m->ran || world_chance(w, 50) || server_released_by_name(&m->bytes)) {
            message_free(m);
            continue;
        }
        m->due_ms += world_below(w, LATE_MS);
        list_append(&w->messages, &m->link);
    }
}

void wires_time_out(struct upstream *u) {
    LIST_EACH(m, &world_of(u)->messages, const struct q_message, link) {
        if (m->upstream != u || world_of(u)->now_ms - m->sent_ms <= REDIS_TIMEOUT_MS)
            continue;
        wires_reset(u, false);
        return;
    }
}

void wires_deliver(struct world *w, struct q_message *m) {
    struct upstream *u = m->upstream;
    if (!m->ran) {
        server_run(w, m->server, &m->bytes, &m->answer);
        m->ran = true;
        if (!u)
            message_free(m);
        else
            m->due_ms = due_ms(u, &u->back_ms);
        return;
    }
    struct upstream_request *r = m->request;
    list_remove(&m->link);
    if (r) {
        turn_begin(u->proxy);
        r->in_flight = false;
        r->ops->reply(r, m->answer.data, m->answer.len, true);
        turn_end(w);
    }
    message_free(m);
}

void wires_heal(struct world *w) {
    w->slow_until_ms = 0;
    for (unsigned i = 0; i < Q_SERVERS; i++)
        w->servers[i].stopped_until_ms = 0;
    for (unsigned i = 0; i < Q_PROXIES; i++) {
        w->proxies[i].redis.cut_until_ms = 0;
        for (unsigned k = 0; k < Q_WITNESSES; k++)
            w->proxies[i].witnesses[k].cut_until_ms = 0;
    }
}

void wires_close(struct world *w) {
    struct list_node *n;
    while ((n = list_first(&w->messages)))
        message_free(LIST_ENTRY(n, struct q_message, link));
}

/* ---- what the proxy's code calls ----------------------------------------------------------------------- */

struct upstream *upstream_new(struct ev_loop *loop, struct readable *readable, const struct upstream_config *config,
                              struct chunk_pool *pool, const struct upstream_events *events) {
    struct q_proxy *p = (struct q_proxy *)(void *)loop;
    (void)readable, (void)pool, (void)events;
    unsigned witness = (unsigned)(config->addresses[0][strlen(config->addresses[0]) - 1] - '0');
    struct upstream *u = &p->witnesses[p->witness_count++];
    *u = (struct upstream){.proxy = p, .server = Q_REDISES + witness};
    return u;
}

void upstream_free(struct upstream *u) {
    wires_reset(u, true);
}

const char *upstream_submit(struct upstream *u, struct upstream_request *r, int slot, const struct upstream_lane *lane,
                            const char *bytes, size_t len) {
    (void)slot, (void)lane;
    invariant(!r->in_flight, "a request is sent twice");
    if (u->proxy->gone)
        return "UPSTREAM the proxy is gone; the request was not sent";
    r->attempts = 0;
    message_send(u, r, bytes, len);
    return NULL;
}

void upstream_abandon(struct upstream_request *r) {
    LIST_EACH(m, &the_world->messages, struct q_message, link) {
        if (m->request == r)
            m->request = NULL;
    }
    r->in_flight = false;
}

void upstream_flush(struct upstream *u) {
    (void)u;
}

bool upstream_unsent(const struct upstream_request *r) {
    (void)r;
    return false;
}

bool upstream_is_cluster(const struct upstream *u) {
    (void)u;
    return false;
}

uint64_t upstream_epoch(const struct upstream *u) {
    (void)u;
    return 0;
}

struct upstream_node *upstream_node_of_slot(const struct upstream *u, int slot) {
    (void)u, (void)slot;
    return NULL;
}

bool upstream_node_lost(const struct upstream_node *node) {
    (void)node;
    return false;
}

uint32_t upstream_login_intern(const char *user, size_t user_len, const char *password, size_t password_len) {
    (void)user, (void)user_len, (void)password, (void)password_len;
    return 0;
}

void upstream_login_release(uint32_t login) {
    (void)login;
}

/* ---- what nothing here calls ------------------------------------------------------------------------------- */

struct upstream_claim;

#define NEVER(function, ...)                                                                                           \
    function(__VA_ARGS__) {                                                                                            \
        abort();                                                                                                       \
    }

NEVER(struct upstream_node *upstream_any_node, struct upstream *u, uint32_t affinity)
NEVER(struct upstream_node *upstream_asked_node, const struct upstream_request *r)
NEVER(struct upstream_node *upstream_master, const struct upstream *u, size_t i)
NEVER(bool upstream_has_topology, const struct upstream *u)
NEVER(bool upstream_error_passes, const struct upstream *u, const char *text, size_t len, bool keyed)
NEVER(bool upstream_may_be_replaced, const struct upstream *u, const struct upstream_node *node)
NEVER(void upstream_await_map, struct upstream *u, struct upstream_request *r)
NEVER(bool upstream_hold, struct upstream_request *r)
NEVER(void upstream_go_on, struct upstream_request *r)
NEVER(void upstream_secret, struct upstream_request *r)
NEVER(void upstream_set_apart, struct upstream_request *r)
NEVER(void upstream_script_unknown, struct upstream *u)
NEVER(const char *upstream_submit_login, struct upstream *u, struct upstream_request *r, uint32_t login)
NEVER(const char *upstream_submit_batch, struct upstream *u, struct upstream_request *r, int slot,
      const struct upstream_lane *lane, const char *bytes, size_t len)
NEVER(const char *upstream_submit_read, struct upstream *u, struct upstream_request *r, int slot,
      const struct upstream_lane *lane, const char *bytes, size_t len, bool *replica)
NEVER(const char *upstream_submit_to, struct upstream *u, struct upstream_request *r, struct upstream_node *node,
      const struct upstream_lane *lane, const char *bytes, size_t len)
NEVER(struct upstream_pin *upstream_pin_open, struct upstream *u, struct upstream_node *node,
      const struct upstream_lane *lane, const struct upstream_claim *claim, const struct upstream_pin_events *events,
      const char **error)
NEVER(struct upstream_pin *upstream_pin_borrow, struct upstream *u, struct upstream_node *node,
      const struct upstream_lane *lane, uint32_t affinity, const struct upstream_pin_events *events, const char **error)
NEVER(const char *upstream_pin_submit, struct upstream_pin *pin, struct upstream_request *r, const char *bytes,
      size_t len, bool asking)
NEVER(const char *upstream_pin_begin, struct upstream_pin *pin, struct upstream_request *r, bool asking)
NEVER(bool upstream_pin_more, struct upstream_pin *pin, const char *bytes, size_t len, bool last)
NEVER(void upstream_pin_patient, struct upstream_pin *pin, int64_t ms)
NEVER(int64_t *upstream_pin_number, struct upstream_pin *pin)
NEVER(void upstream_unpin, struct upstream_pin *pin, bool clean)
NEVER(void upstream_each_node, const struct upstream *u, void (*fn)(void *arg, const struct upstream_node_info *info),
      void *arg)
