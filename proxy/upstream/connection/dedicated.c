/*
 * Dedicated lanes: connections that only one caller uses. Each begins with the caller's commands (CLIENT TRACKING ON
 * ...). Pushes on them are delivered to the caller, and the caller is told when one of them is gone.
 *
 *      upstream_dedicated_new ──> lane.dedicated ──> connections to whatever nodes the lane's requests go
 *      upstream_dedicated_free ──> closed as soon as nothing is in flight on them
 *
 * Requests over a dedicated lane are routed, redirected and repeated like all others.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

struct upstream_dedicated {
    struct list_node link;
    uint32_t number;
    char *client;
    struct upstream_dedicated_events events;
    char *commands;   /* one after the other; NULL: none */
    size_t len, last; /* of all commands; where the last one begins */
    unsigned count;
};

static struct upstream_dedicated *dedicated_find(const struct upstream *u, uint32_t number) {
    LIST_FOREACH(it, &u->dedicated)
    if (LIST_ENTRY(it, struct upstream_dedicated, link)->number == number)
        return LIST_ENTRY(it, struct upstream_dedicated, link);
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

static void push_ignored(void *arg, const char *data, size_t len) {
}

static void loss_ignored(void *arg) {
}

uint32_t upstream_dedicated_own(struct upstream *u) {
    static const struct upstream_dedicated_events silent = {.push = push_ignored, .lost = loss_ignored};
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
    memory_free(dedicated->commands);
    memory_free(dedicated->client);
    memory_free(dedicated);
    u->dedicated_ended = true;
}

bool dedicated_take(const struct upstream_pool *p, struct quota_hold *hold) {
    invariant(p->lane.dedicated != 0 && !hold->client, "lane %u", p->lane.dedicated);
    const struct upstream_dedicated *dedicated = dedicated_find(p->node->u, p->lane.dedicated);
    struct upstream_claim claim = {.client = dedicated ? dedicated->client : NULL, .lasting = true};
    return quota_take(p->node, &claim, hold);
}

unsigned dedicated_handshake(struct upstream *u, uint32_t number, struct iobuf *out) {
    const struct upstream_dedicated *dedicated = number ? dedicated_find(u, number) : NULL;
    if (!dedicated)
        return 0;
    iobuf_append(out, dedicated->commands, dedicated->len);
    return dedicated->count;
}

void dedicated_push(struct upstream_conn *c, const char *data, size_t len, bool last) {
    invariant(c->dedicated != 0, "a push for no lane");
    const struct upstream_dedicated *dedicated = dedicated_find(c->u, c->dedicated);
    if (!last || c->push) {
        if (!c->push)
            c->push = memory_zalloc(sizeof(*c->push));
        text_append(c->push, data, len);
    }
    if (!last)
        return;
    struct text *whole = c->push;
    c->push = NULL;
    if (dedicated)
        dedicated->events.push(dedicated->events.arg, whole ? whole->data : data, whole ? whole->len : len);
    if (whole)
        text_clear(whole);
    memory_free(whole);
}

void dedicated_lost(struct upstream *u, uint32_t number) {
    const struct upstream_dedicated *dedicated = dedicated_find(u, number);
    if (dedicated && !u->closing)
        dedicated->events.lost(dedicated->events.arg);
}

bool dedicated_lives(const struct upstream *u, uint32_t number) {
    return dedicated_find(u, number) != NULL;
}
