/*
 * Lanes of one caller's own: shared connections that are shared with nobody. They begin with commands of the caller's
 * (CLIENT TRACKING ON ...), and pushes that come over them are the caller's, as is the news that one of them is gone.
 *
 *      upstream_own_new ──> lane.own ──> connections to whatever nodes the lane's requests go
 *      upstream_own_free ──> closed as soon as nothing is in flight on them
 *
 * Requests over such a lane are routed, redirected and repeated like all others.
 */
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

struct upstream_own {
    struct list_node link;
    uint32_t number;
    struct upstream_own_events events;
    struct list_node commands;
    unsigned count; /* of the commands */
};

struct command {
    struct list_node link;
    size_t len;
    char bytes[];
};

static struct upstream_own *own_find(const struct upstream *u, uint32_t number) {
    LIST_FOREACH(it, &u->owns)
    if (LIST_ENTRY(it, struct upstream_own, link)->number == number)
        return LIST_ENTRY(it, struct upstream_own, link);
    return NULL;
}

uint32_t upstream_own_new(struct upstream *u, const struct upstream_own_events *events) {
    struct upstream_own *own = memory_zalloc(sizeof(*own));
    do
        own->number = ++u->last_own;
    while (own->number == 0 || own_find(u, own->number));
    own->events = *events;
    list_init(&own->commands);
    list_init(&own->link);
    list_append(&u->owns, &own->link);
    return own->number;
}

void upstream_own_begin(struct upstream *u, uint32_t number, const char *command, size_t len) {
    struct upstream_own *own = own_find(u, number);
    const struct command *last =
        list_empty(&own->commands) ? NULL : LIST_ENTRY(own->commands.prev, struct command, link);
    if (last && last->len == len && memcmp(last->bytes, command, len) == 0)
        return; /* said again it changes nothing */
    struct command *c = memory_alloc(sizeof(*c) + len);
    c->len = len;
    memcpy(c->bytes, command, len);
    list_init(&c->link);
    list_append(&own->commands, &c->link);
    own->count++;
}

void upstream_own_free(struct upstream *u, uint32_t number) {
    struct upstream_own *own = own_find(u, number);
    if (!own)
        return;
    list_remove(&own->link);
    struct list_node *n;
    while ((n = list_shift(&own->commands)))
        memory_free(LIST_ENTRY(n, struct command, link));
    memory_free(own);
    u->own_ended = true;
}

unsigned own_handshake(struct upstream *u, uint32_t number, struct iobuf *out) {
    const struct upstream_own *own = number ? own_find(u, number) : NULL;
    if (!own)
        return 0;
    LIST_FOREACH(it, &own->commands) {
        const struct command *c = LIST_ENTRY(it, struct command, link);
        iobuf_append(out, c->bytes, c->len);
    }
    return own->count;
}

void own_push(struct upstream_conn *c, const char *data, size_t len, bool last) {
    const struct upstream_own *own = own_find(c->u, c->own);
    if (!last || c->push) {
        if (!c->push)
            c->push = memory_zalloc(sizeof(*c->push));
        text_append(c->push, data, len);
    }
    if (!last)
        return;
    struct text *whole = c->push;
    c->push = NULL;
    if (own)
        own->events.push(own->events.arg, whole ? whole->data : data, whole ? whole->len : len);
    if (whole)
        text_clear(whole);
    memory_free(whole);
}

void own_drop_push(struct upstream_conn *c) {
    if (c->push)
        text_clear(c->push);
    memory_free(c->push);
    c->push = NULL;
}

void own_lost(struct upstream *u, uint32_t number) {
    const struct upstream_own *own = own_find(u, number);
    if (own && !u->closing)
        own->events.lost(own->events.arg);
}

bool own_keeps(const struct upstream_conn *c) {
    return c->own && !c->pin && own_find(c->u, c->own);
}

static void sweep(struct upstream_conn *c, void *arg) {
    struct upstream *u = c->u;
    if (c->own == 0 || own_find(u, c->own) || (c->pin && c->pin->owned))
        return;
    if (c->in_flight == 0)
        conn_close(c, CONN_IDLE, "nobody's any more");
    else
        u->own_ended = true;
}

void own_sweep(struct upstream *u) {
    u->own_ended = false;
    conn_each(u, sweep, NULL);
}
