/*
 * Lanes of one caller's own: shared connections that are shared with nobody. They begin with commands of the caller's
 * (CLIENT TRACKING ON ...), and pushes that come over them are the caller's, as is the news that one of them is gone.
 *
 *      upstream_own_new ──> lane.own ──> connections to whatever nodes the lane's requests go
 *      upstream_own_free ──> closed as soon as nothing is in flight on them
 *
 * A command that ends with REDIRECT gets the number of an ear (ear.c) for its last word; the pushes come over that.
 * Requests over such a lane are routed, redirected and repeated like all others.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

struct upstream_own {
    struct list_node link;
    uint32_t number;
    struct upstream_own_events events;
    struct list_node commands;
    unsigned count, ears; /* commands; those among them that want an ear's number */
};

struct command {
    struct list_node link;
    bool ear; /* it lacks its last argument */
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

void upstream_own_begin(struct upstream *u, uint32_t number, const char *command, size_t len, bool ear) {
    struct upstream_own *own = own_find(u, number);
    const struct command *last =
        list_empty(&own->commands) ? NULL : LIST_ENTRY(own->commands.prev, struct command, link);
    if (last && last->ear == ear && last->len == len && memcmp(last->bytes, command, len) == 0)
        return; /* said again it changes nothing */
    struct command *c = memory_alloc(sizeof(*c) + len);
    c->ear = ear;
    c->len = len;
    memcpy(c->bytes, command, len);
    list_init(&c->link);
    list_append(&own->commands, &c->link);
    own->count++;
    own->ears += ear;
}

void upstream_own_begin_like(struct upstream *u, uint32_t number, uint32_t other) {
    const struct upstream_own *own = own_find(u, other);
    LIST_FOREACH(it, &own->commands) {
        const struct command *c = LIST_ENTRY(it, struct command, link);
        upstream_own_begin(u, number, c->bytes, c->len, c->ear);
    }
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

bool own_wants_ear(const struct upstream *u, uint32_t number) {
    const struct upstream_own *own = number ? own_find(u, number) : NULL;
    return own && own->ears > 0;
}

unsigned own_handshake(struct upstream *u, uint32_t number, int64_t ear, struct iobuf *out) {
    const struct upstream_own *own = number ? own_find(u, number) : NULL;
    if (!own)
        return 0;
    char id[24];
    int len = snprintf(id, sizeof(id), "%lld", (long long)ear);
    LIST_FOREACH(it, &own->commands) {
        const struct command *c = LIST_ENTRY(it, struct command, link);
        iobuf_append(out, c->bytes, c->len);
        if (!c->ear)
            continue;
        char *at = iobuf_reserve(out, resp_bulk_size((size_t)len));
        iobuf_commit(out, (size_t)(resp_bulk_write(at, id, (size_t)len) - at));
    }
    return own->count;
}

void own_push(const struct upstream_conn *c, struct text **partial, const char *data, size_t len, bool last) {
    const struct upstream_own *own = own_find(c->u, c->own);
    if (!last || *partial) {
        if (!*partial)
            *partial = memory_zalloc(sizeof(**partial));
        text_append(*partial, data, len);
    }
    if (!last)
        return;
    struct text *whole = *partial;
    *partial = NULL;
    if (own)
        own->events.push(own->events.arg, whole ? whole->data : data, whole ? whole->len : len);
    if (whole)
        text_clear(whole);
    memory_free(whole);
}

void own_drop_push(struct text **partial) {
    if (*partial)
        text_clear(*partial);
    memory_free(*partial);
    *partial = NULL;
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
