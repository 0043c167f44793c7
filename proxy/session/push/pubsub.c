/*
 * Subscriptions and MONITOR: pins whose messages go to the client as they arrive.
 *
 *      SUBSCRIBE, PSUBSCRIBE ──> one feed, to any master      SSUBSCRIBE ──> a feed to the slot's node
 *      MONITOR ──> a feed to every master
 *
 *      feed ── message, whole ──┬─ between two replies ──> client
 *                               └─ while a reply is being written: held until that has ended
 *
 * SUBSCRIBE and similar commands take a slot like any request. The request ends with its last confirmation, and later
 * requests wait for it, so the order is kept. Confirmations are counted, to know when the last subscription has ended.
 * Until then RESP2 permits few commands; with RESP3, and during MONITOR, other commands work as usual.
 */
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/push/private.h"

/* ---- life ------------------------------------------------------------------------------------------ */

void pubsub_drop(struct session *s) {
    struct pubsub *p = push_of(s)->pubsub;
    if (!p)
        return;
    struct list_node *n;
    while ((n = list_first(&p->feeds)))
        feed_free(LIST_ENTRY(n, struct feed, link));
    struct request *waiting = p->waiting;
    push_of(s)->pubsub = NULL;
    s->listens = false;
    if (!push_of(s)->watch)
        s->hears &= (uint8_t)~HEARS_REPLY;
    text_clear(&p->again);
    text_clear(&p->held);
    memory_free(p);
    if (!waiting)
        return;
    upstream_abandon(s->worker->upstream, &waiting->call.up); /* it may be waiting for the map */
    request_reply(waiting, "", 0, true);
}

static struct pubsub *pubsub_get(struct session *s) {
    if (push_of(s)->pubsub)
        return push_of(s)->pubsub;
    struct pubsub *p = memory_zalloc(sizeof(*p));
    p->session = s;
    list_init(&p->feeds);
    push_of(s)->pubsub = p;
    s->listens = true;
    s->hears |= HEARS_REPLY;
    return p;
}

int64_t pubsub_shards(const struct pubsub *p) {
    int64_t sum = 0;
    LIST_FOREACH(it, &p->feeds)
    sum += LIST_ENTRY(it, struct feed, link)->shards;
    return sum;
}

struct pubsub_counts pubsub_count(const struct session *s) {
    const struct pubsub *p = push_of(s)->pubsub;
    if (!p)
        return (struct pubsub_counts){0};
    return (struct pubsub_counts){p->channels, p->patterns, pubsub_shards(p), p->monitor};
}

bool pubsub_idle(const struct pubsub *p) {
    return !p->monitor && !p->waiting && p->channels + p->patterns + pubsub_shards(p) == 0;
}

static struct feed *feed_main(struct pubsub *p, const char **error) {
    struct session *s = p->session;
    if (!p->main && !list_empty(&p->feeds))
        p->main = LIST_ENTRY(list_first(&p->feeds), struct feed, link);
    if (!p->main)
        p->main = feed_to(p, pin_node(s, SLOT_NONE), error);
    return p->main;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* Takes a slot that ends after so many confirmations. */
static void await(struct pubsub *p, const struct command *c, int64_t confirmations) {
    struct session *s = p->session;
    invariant(!p->waiting && confirmations > 0, "%lld confirmations are due", (long long)confirmations);
    struct request *request = request_new(s, c);
    request_barrier(request);
    p->waiting = request;
    p->expected = confirmations;
}

/* Sends the first subscription again. */
static bool subscribe_again(struct pubsub *p, const char **error) {
    invariant(p->waiting && p->again.len > 0, "no subscription is to be sent again");
    struct feed *f = p->slot >= 0 ? feed_to(p, pin_node(p->session, p->slot), error) : feed_main(p, error);
    if (f)
        upstream_pin_send(f->pin, p->again.data, p->again.len);
    return f != NULL;
}

static void map_is_there(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct pubsub *p = push_of(r->session)->pubsub; /* not NULL: otherwise the request would have been abandoned */
    invariant(p && p->waiting == r, "a subscription goes on that has ended");
    const char *error;
    (void)end;
    if (subscribe_again(p, &error))
        return;
    p->waiting = NULL;
    pubsub_drop(r->session);
    request_fail(r, error);
}

bool pubsub_anew(struct pubsub *p, const struct upstream_node *lost) {
    struct request *r = p->waiting;
    const char *error;
    if (p->again.len == 0 || p->hops > 0)
        return false;
    struct upstream_node *node = pin_node(p->session, p->slot);
    if (node && node != lost) {
        p->hops++;
        return subscribe_again(p, &error);
    }
    call_init(&r->call, r, map_is_there);
    if (!pin_await_map(&r->call, node))
        return false;
    p->hops++;
    return true;
}

static enum dispatch_result no_feed(struct session *s, const struct command *c, const char *error) {
    session_refuse(s, c, "%s", error);
    if (pubsub_idle(push_of(s)->pubsub))
        pubsub_drop(s);
    return DISPATCHED;
}

static enum dispatch_result subscribe(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    struct pubsub *p = pubsub_get(s);
    const char *error = NULL;
    bool shards = c->id == COMMAND_SSUBSCRIBE;
    int slot = shards ? pin_slot(s, c, k->request, k->bytes) : SLOT_NONE;
    if (slot == SLOT_SEVERAL)
        return no_feed(s, c, "CROSSSLOT Keys in request don't hash to the same slot");
    struct feed *f = shards ? feed_to(p, pin_node(s, slot), &error) : feed_main(p, &error);
    if (!f && pin_await_map_first(s, pin_node(s, slot))) {
        if (pubsub_idle(p))
            pubsub_drop(s);
        return DISPATCH_WAIT;
    }
    if (!f)
        return no_feed(s, c, error);
    p->hops = 0;
    p->slot = slot;
    text_append(&p->again, k->bytes, k->request->len);
    await(p, c, (int64_t)k->request->argc - 1);
    upstream_pin_send(f->pin, k->bytes, k->request->len);
    return DISPATCHED;
}

/* Replies with Redis's confirmations for channels that were not subscribed. */
static void unsubscribe_nothing(struct session *s, const struct request_class *k, int64_t count) {
    struct text reply = {0};
    char line[RESP_HEADER_MAX];
    for (size_t i = k->request->argc > 1 ? 1 : 0; i < k->request->argc; i++) {
        text_append(&reply, s->lane.protocol == 3 ? ">3\r\n" : "*3\r\n", 4);
        append_bulk(&reply, k->command->name, strlen(k->command->name));
        if (i == 0)
            text_append(&reply, s->lane.protocol == 3 ? "_\r\n" : "$-1\r\n", s->lane.protocol == 3 ? 3 : 5);
        else
            append_bulk(&reply, k->bytes + k->request->argv[i].off, k->request->argv[i].len);
        text_append(&reply, line, resp_header_write(line, ':', count));
    }
    session_answer_text(s, k->command, &reply);
}

/* Ends all subscriptions to shard channels, on all nodes. */
static void sunsubscribe_all(struct pubsub *p, const struct request_class *k) {
    await(p, k->command, pubsub_shards(p));
    LIST_FOREACH(it, &p->feeds) {
        struct feed *f = LIST_ENTRY(it, struct feed, link);
        if (f->shards > 0)
            upstream_pin_send(f->pin, k->bytes, k->request->len);
    }
}

static enum dispatch_result sunsubscribe(struct session *s, const struct request_class *k) {
    struct pubsub *p = push_of(s)->pubsub;
    int64_t shards = p ? pubsub_shards(p) : 0;
    int slot = k->request->argc > 1 ? pin_slot(s, k->command, k->request, k->bytes) : SLOT_NONE;
    if (slot == SLOT_SEVERAL) {
        session_refuse(s, k->command, "CROSSSLOT Keys in request don't hash to the same slot");
        return DISPATCHED;
    }
    if (shards > 0 && k->request->argc == 1) {
        sunsubscribe_all(p, k);
        return DISPATCHED;
    }
    struct upstream_node *node = upstream_node_of_slot(s->worker->upstream, slot);
    for (struct list_node *it = shards > 0 ? p->feeds.next : NULL; it && it != &p->feeds; it = it->next) {
        struct feed *f = LIST_ENTRY(it, struct feed, link);
        if (f->node != node)
            continue;
        await(p, k->command, (int64_t)k->request->argc - 1);
        upstream_pin_send(f->pin, k->bytes, k->request->len);
        return DISPATCHED;
    }
    unsubscribe_nothing(s, k, shards);
    return DISPATCHED;
}

static enum dispatch_result unsubscribe(struct session *s, const struct request_class *k) {
    struct pubsub *p = push_of(s)->pubsub;
    if (!p || !p->main) {
        unsubscribe_nothing(s, k, 0);
        return DISPATCHED;
    }
    int64_t all = k->command->id == COMMAND_UNSUBSCRIBE ? p->channels : p->patterns;
    await(p, k->command, k->request->argc > 1 ? (int64_t)k->request->argc - 1 : all > 0 ? all : 1);
    upstream_pin_send(p->main->pin, k->bytes, k->request->len);
    return DISPATCHED;
}

/* Starts MONITOR on every master: the client sees them as one Redis. */
static enum dispatch_result monitor(struct session *s, const struct command *c, const char *bytes, size_t len) {
    if (push_of(s)->pubsub && push_of(s)->pubsub->monitor)
        return DISPATCHED; /* Redis ignores it, too */
    if (push_of(s)->pubsub) {
        session_refuse(s, c, "ERR MONITOR while subscribed is not supported by lockkeeper");
        return DISPATCHED;
    }
    struct upstream *u = s->worker->upstream;
    struct pubsub *p = pubsub_get(s);
    const char *error = "UPSTREAM no master is known; the request was not sent";
    int64_t feeds = 0;
    p->monitor = true;
    for (size_t i = 0; i < upstream_master_count(u); i++) {
        struct feed *f = feed_to(p, upstream_master(u, i), &error);
        if (!f)
            continue;
        upstream_pin_send(f->pin, bytes, len);
        feeds++;
    }
    if (feeds == 0) {
        p->monitor = false;
        return no_feed(s, c, error);
    }
    await(p, c, feeds);
    return DISPATCHED;
}

enum dispatch_result pubsub_dispatch(struct session *s, const struct request_class *k) {
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* replies and messages must keep their order */
    counter_add(&s->worker->counters.requests_forwarded, 1);
    if (k->command->id != COMMAND_MONITOR && push_of(s)->pubsub && push_of(s)->pubsub->monitor) {
        session_refuse(s, k->command, "ERR subscriptions beside MONITOR are not supported by lockkeeper");
        return DISPATCHED;
    }
    switch ((int)k->command->id) {
    case COMMAND_MONITOR:
        return monitor(s, k->command, k->bytes, k->request->len);
    case COMMAND_SUBSCRIBE:
    case COMMAND_PSUBSCRIBE:
    case COMMAND_SSUBSCRIBE:
        return subscribe(s, k);
    case COMMAND_SUNSUBSCRIBE:
        return sunsubscribe(s, k);
    default:
        return unsubscribe(s, k);
    }
}

/* ---- RESP2's subscribe mode ------------------------------------------------------------------------------ */

bool pubsub_restricts(const struct session *s) {
    return s->lane.protocol == 2 && !push_of(s)->pubsub->monitor;
}

static void not_allowed(struct session *s, const struct request_class *k) {
    char sub[64] = "";
    if ((k->command->flags & COMMAND_SUBCOMMANDS) && k->request->argc > 1)
        request_arg_text(k->request, k->bytes, 1, sub, sizeof(sub));
    for (char *p = sub; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p + 'a' - 'A') : *p;
    session_refuse(s, k->command,
                   "%s Can't execute '%s%s%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
                   "allowed in this context",
                   k->command->id == COMMAND_EXEC ? "EXECABORT Transaction discarded because of:" : "ERR",
                   k->command->name, *sub ? "|" : "", sub);
}

/* Answers PING in the order of the messages: from a feed, if it uses RESP2, or here. */
static void ping(struct session *s, const struct request_class *k) {
    struct feed *f = LIST_ENTRY(list_first(&push_of(s)->pubsub->feeds), struct feed, link);
    if (f->protocol == 2) {
        await(push_of(s)->pubsub, k->command, 1);
        upstream_pin_send(f->pin, k->bytes, k->request->len);
        return;
    }
    struct text reply = {0};
    text_printf(&reply, "*2\r\n$4\r\npong\r\n");
    append_bulk(&reply, k->request->argc > 1 ? k->bytes + k->request->argv[1].off : "",
                k->request->argc > 1 ? k->request->argv[1].len : 0);
    session_answer_text(s, k->command, &reply);
}

enum dispatch_result pubsub_restricted(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    if (s->in_flight > 0)
        return DISPATCH_WAIT;
    if (!command_arity_ok(c, k->request->argc)) {
        session_refuse(s, c, "ERR wrong number of arguments for '%s' command", c->name);
    } else if (c->need == NEED_PUBSUB && c->id != COMMAND_MONITOR) {
        return pubsub_dispatch(s, k);
    } else if (c->id == COMMAND_PING && k->request->argc <= 2) {
        ping(s, k);
    } else if (c->id == COMMAND_PING) {
        session_refuse(s, c, "ERR wrong number of arguments for 'ping' command");
    } else {
        not_allowed(s, k);
    }
    return DISPATCHED;
}

/* ---- the room -------------------------------------------------------------------------------------- */

static void session_leaves(struct session *s) {
    pubsub_drop(s);
    tracking_drop(s);
    watch_drop(s);
}

const struct session_room push_room = {
    .worker_closes = watch_worker_closes,
    .closes = session_leaves,
    .pin_lane = tracking_pin_lane,
    .request_over = tracking_request_over,
    .reply_over = pubsub_release,
    .before_call = tracking_before_call,
    .lock_written = tracking_lock_written,
    .tick = tracking_tick,
};
