/*
 * Subscriptions and MONITOR: connections of the session's own, whose messages go to the client as they come.
 *
 *      SUBSCRIBE, PSUBSCRIBE ──> one feed, to any master      SSUBSCRIBE ──> a feed to the slot's node
 *      MONITOR ──> a feed to every master
 *
 *      feed ── message, whole ──┬─ between two replies ──> client
 *                               └─ while a reply is being written: held until that has ended
 *
 * SUBSCRIBE and its kin take a slot like any request; it ends with the last confirmation, and later requests wait for
 * it, so that everything keeps its order. Confirmations are counted to know when the last subscription is gone. With
 * RESP2 few commands are allowed until then; with RESP3, and beside MONITOR, the others go their normal way.
 */
#include <stdio.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/pinned.h"

enum {
    HELD_MAX = 64 * 1024 * 1024, /* where there is no client-output-buffer-limit */
    HOPS_MAX = 5
};

/* A connection with subscriptions. */
struct feed {
    struct list_node link;
    struct pubsub *of;
    struct upstream_pin *pin;
    struct upstream_node *node;
    struct text partial; /* the beginning of a message */
    int64_t shards;      /* shard channels subscribed here */
    enum pin_reason why;
    bool greeted; /* MONITOR: has said OK */
};

struct pubsub {
    struct session *session;
    struct list_node feeds;
    struct feed *main; /* of channels and patterns; NULL: none */
    bool monitor;
    int64_t channels, patterns;
    struct request *waiting; /* the request whose confirmations are to come */
    int64_t expected;        /* so many */
    struct text again;       /* SSUBSCRIBE, should it be redirected */
    unsigned hops;
    struct text held; /* messages that wait for the end of a reply */
};

/* ---- life ------------------------------------------------------------------------------------------ */

static void feed_free(struct feed *f) {
    pin_give(f->of->session->worker, f->pin, f->why, false);
    if (f->of->main == f)
        f->of->main = NULL;
    list_remove(&f->link);
    text_clear(&f->partial);
    memory_free(f);
}

void pubsub_drop(struct session *s) {
    struct pubsub *p = s->pubsub;
    if (!p)
        return;
    struct list_node *n;
    while ((n = list_first(&p->feeds)))
        feed_free(LIST_ENTRY(n, struct feed, link));
    struct request *waiting = p->waiting;
    s->pubsub = NULL;
    text_clear(&p->again);
    text_clear(&p->held);
    memory_free(p);
    if (waiting)
        request_reply(waiting, "", 0, true);
}

static struct pubsub *pubsub_get(struct session *s) {
    if (s->pubsub)
        return s->pubsub;
    struct pubsub *p = memory_zalloc(sizeof(*p));
    p->session = s;
    list_init(&p->feeds);
    s->pubsub = p;
    return p;
}

static int64_t shard_count(const struct pubsub *p) {
    int64_t sum = 0;
    LIST_FOREACH(it, &p->feeds)
    sum += LIST_ENTRY(it, struct feed, link)->shards;
    return sum;
}

struct pubsub_counts pubsub_count(const struct session *s) {
    const struct pubsub *p = s->pubsub;
    if (!p)
        return (struct pubsub_counts){0};
    return (struct pubsub_counts){p->channels, p->patterns, shard_count(p), p->monitor};
}

static bool idle(const struct pubsub *p) {
    return !p->monitor && !p->waiting && p->channels + p->patterns + shard_count(p) == 0;
}

static void feed_message(void *arg, const char *data, size_t len, bool last);
static void feed_lost(void *arg, const char *error);

static struct feed *feed_to(struct pubsub *p, struct upstream_node *node, const char **error) {
    LIST_FOREACH(it, &p->feeds)
    if (node && LIST_ENTRY(it, struct feed, link)->node == node)
        return LIST_ENTRY(it, struct feed, link);
    struct feed *f = memory_zalloc(sizeof(*f));
    f->of = p;
    f->node = node;
    f->why = p->monitor ? PIN_MONITOR : PIN_SUBSCRIBED;
    list_init(&f->link);
    struct upstream_pin_events events = {.arg = f, .message = feed_message, .lost = feed_lost};
    f->pin = pin_take(p->session, node, f->why, &events, error);
    if (!f->pin) {
        memory_free(f);
        return NULL;
    }
    upstream_pin_patient(f->pin, true);
    upstream_pin_stream(f->pin, true);
    list_append(&p->feeds, &f->link);
    return f;
}

static struct feed *feed_main(struct pubsub *p, const char **error) {
    struct session *s = p->session;
    if (!p->main && !list_empty(&p->feeds))
        p->main = LIST_ENTRY(list_first(&p->feeds), struct feed, link);
    if (!p->main)
        p->main = feed_to(p, upstream_any_node(s->worker->upstream, (uint32_t)s->lock.id), error);
    return p->main;
}

/* ---- to the client ------------------------------------------------------------------------------------ */

static size_t held_max(const struct session *s) {
    int64_t limit = s->worker->shared->options.output_limit_hard;
    return limit > 0 ? (size_t)limit : HELD_MAX;
}

/* Whether a reply has begun and not ended. */
static bool amid_reply(const struct session *s) {
    struct list_node *n = list_first(&s->requests);
    const struct request *head = n ? LIST_ENTRY(n, struct request, link) : NULL;
    return head && head->started && !head->done;
}

void pubsub_release(struct session *s) {
    struct pubsub *p = s->pubsub;
    if (p->held.len == 0 || amid_reply(s))
        return;
    iobuf_append(&s->out, p->held.data, p->held.len);
    session_mark_dirty(s);
    text_clear(&p->held);
}

static void put(struct session *s, const char *data, size_t len) {
    if (!amid_reply(s)) {
        iobuf_append(&s->out, data, len);
        session_mark_dirty(s);
        return;
    }
    text_append(&s->pubsub->held, data, len);
}

/* ---- from the nodes ------------------------------------------------------------------------------------ */

enum message_kind { MESSAGE_OTHER, MESSAGE_PONG, MESSAGE_CHANNELS, MESSAGE_PATTERNS, MESSAGE_SHARDS };

struct message {
    enum message_kind kind;
    int64_t count;    /* of a confirmation */
    const char *tail; /* the element with the count */
};

static bool word_is(const struct resp_item *item, const char *word) {
    return item->len == strlen(word) && memcmp(item->str, word, item->len) == 0;
}

/* What a message is: a confirmation {word, channel, count}, a pong, or something for the client alone. */
static struct message message_read(const char *data, size_t len) {
    struct message m = {.kind = MESSAGE_OTHER};
    const char *p = data, *end = data + len;
    struct resp_item array, word, channel, count;
    if (!resp_item_read(&p, end, &array) || (array.type != '*' && array.type != '>') || array.num < 2 ||
        !resp_item_read(&p, end, &word))
        return m;
    if (array.num == 2 && word_is(&word, "pong")) {
        m.kind = MESSAGE_PONG;
        return m;
    }
    enum message_kind kind = MESSAGE_OTHER;
    if (word_is(&word, "subscribe") || word_is(&word, "unsubscribe"))
        kind = MESSAGE_CHANNELS;
    else if (word_is(&word, "psubscribe") || word_is(&word, "punsubscribe"))
        kind = MESSAGE_PATTERNS;
    else if (word_is(&word, "ssubscribe") || word_is(&word, "sunsubscribe"))
        kind = MESSAGE_SHARDS;
    if (kind == MESSAGE_OTHER || array.num != 3 || !resp_item_read(&p, end, &channel))
        return m;
    m.tail = p;
    if (!resp_item_read(&p, end, &count) || count.type != ':')
        return m;
    m.kind = kind;
    m.count = count.num;
    return m;
}

/* One request's confirmations are all there. */
static void waiting_done(struct pubsub *p) {
    struct request *r = p->waiting;
    p->waiting = NULL;
    text_clear(&p->again);
    request_reply(r, "", 0, true);
}

/* A confirmation: counts, and passes it on with the number that it has for the client, who knows no nodes. */
static void confirmed(struct feed *f, const struct message *m, const char *data, size_t len) {
    struct pubsub *p = f->of;
    char number[RESP_HEADER_MAX];
    if (m->kind == MESSAGE_CHANNELS)
        p->channels = m->count - p->patterns;
    else if (m->kind == MESSAGE_PATTERNS)
        p->patterns = m->count - p->channels;
    else
        f->shards = m->count;
    if (m->kind == MESSAGE_SHARDS) {
        struct text whole = {0};
        text_append(&whole, data, (size_t)(m->tail - data));
        text_append(&whole, number, resp_header_write(number, ':', shard_count(p)));
        put(p->session, whole.data, whole.len);
        text_clear(&whole);
    } else {
        put(p->session, data, len);
    }
    if (p->waiting && --p->expected <= 0)
        waiting_done(p);
}

/* The node refused what was sent. SSUBSCRIBE may be meant for another node. */
static void refused(struct feed *f, const char *data, size_t len) {
    struct pubsub *p = f->of;
    bool ask;
    const char *error;
    struct upstream_node *to = p->again.len > 0 ? upstream_pin_redirect(f->pin, data + 1, len - 3, &ask) : NULL;
    if (to && p->hops++ < HOPS_MAX) {
        struct feed *other = feed_to(p, to, &error);
        if (other) {
            static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
            if (ask) /* its OK is one confirmation that counts for nothing */
                upstream_pin_send(other->pin, asking, sizeof(asking) - 1);
            upstream_pin_send(other->pin, p->again.data, p->again.len);
            return;
        }
    }
    struct request *r = p->waiting;
    p->waiting = NULL;
    text_clear(&p->again);
    request_reply(r, data, len, true);
}

/* MONITOR's first line, its OK, comes from every node; the client gets the last one, as from then on it sees all.
 * False: an ordinary line. */
static bool greeting(struct feed *f, const char *data, size_t len) {
    struct pubsub *p = f->of;
    if (f->greeted)
        return p->waiting != NULL; /* too early for the client */
    f->greeted = true;
    bool refused_it = data[0] == '-';
    if (!p->waiting || (!refused_it && --p->expected > 0))
        return true;
    struct request *r = p->waiting;
    p->waiting = NULL;
    p->monitor = !refused_it;
    request_reply(r, data, len, true);
    return true;
}

static void message(struct feed *f, const char *data, size_t len) {
    struct pubsub *p = f->of;
    struct session *s = p->session;
    if (p->monitor) {
        if (!greeting(f, data, len))
            put(s, data, len);
    } else if (data[0] == '+') {
        return; /* an ASKING's */
    } else if (data[0] == '-' && p->waiting) {
        refused(f, data, len);
    } else {
        struct message m = message_read(data, len);
        if (m.kind != MESSAGE_OTHER && m.kind != MESSAGE_PONG) {
            confirmed(f, &m, data, len);
        } else {
            put(s, data, len);
            if (m.kind == MESSAGE_PONG && p->waiting)
                waiting_done(p);
        }
    }
    if (s->state != SESSION_CLOSED && idle(p))
        pubsub_drop(s);
}

/* Messages are passed on whole, so that nothing else can come into the middle of one. */
static void feed_message(void *arg, const char *data, size_t len, bool last) {
    struct feed *f = arg;
    struct session *s = f->of->session;
    if (f->partial.len + f->of->held.len + len > held_max(s)) {
        log_warning("client %llu (%s): closed: its messages wait for more than client-output-buffer-limit",
                    (unsigned long long)s->lock.id, s->address);
        session_close(s, "output buffer limit");
        return;
    }
    if (last && f->partial.len == 0) {
        message(f, data, len);
        return;
    }
    text_append(&f->partial, data, len);
    if (!last)
        return;
    struct text whole = f->partial;
    f->partial = (struct text){0};
    message(f, whole.data, whole.len);
    text_clear(&whole);
}

static void feed_lost(void *arg, const char *error) {
    struct feed *f = arg;
    struct pubsub *p = f->of;
    struct session *s = p->session;
    if (p->waiting && p->channels + p->patterns + shard_count(p) == 0) { /* nothing was there to be lost */
        struct request *r = p->waiting;
        char text[512];
        snprintf(text, sizeof(text), "%s", error);
        p->waiting = NULL;
        pubsub_drop(s);
        request_fail(r, text);
        return;
    }
    log_warning("client %llu (%s): closed: its %s ended: %s", (unsigned long long)s->lock.id, s->address,
                p->monitor ? "MONITOR" : "subscription", error);
    session_close(s, "its node was lost");
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* Takes a slot that ends with so many confirmations. */
static void await(struct pubsub *p, const struct command *c, int64_t confirmations) {
    struct session *s = p->session;
    struct request *request = request_new(s, c);
    request->ends_barrier = true;
    s->barrier = true;
    p->waiting = request;
    p->expected = confirmations;
}

static enum dispatch_result no_feed(struct session *s, const struct command *c, const char *error) {
    dispatch_local_error(s, c, "%s", error);
    if (idle(s->pubsub))
        pubsub_drop(s);
    return DISPATCHED;
}

static enum dispatch_result subscribe(struct session *s, const struct command *c, const struct resp_request *r,
                                      const char *bytes) {
    struct pubsub *p = pubsub_get(s);
    const char *error = NULL;
    bool shards = c->id == COMMAND_SSUBSCRIBE;
    int slot = shards ? pin_slot(s, c, r, bytes) : -1;
    if (slot == -2)
        return no_feed(s, c, "CROSSSLOT Keys in request don't hash to the same slot");
    struct upstream *u = s->worker->upstream;
    struct feed *f = shards ? feed_to(p, upstream_node_of_slot(u, slot), &error) : feed_main(p, &error);
    if (!f)
        return no_feed(s, c, error);
    if (shards && upstream_is_cluster(u)) {
        p->hops = 0;
        text_append(&p->again, bytes, r->len);
    }
    await(p, c, (int64_t)r->argc - 1);
    upstream_pin_send(f->pin, bytes, r->len);
    return DISPATCHED;
}

/* What Redis confirms where nothing was subscribed. */
static void unsubscribe_nothing(struct session *s, const struct command *c, const struct resp_request *r,
                                const char *bytes, int64_t count) {
    struct text reply = {0};
    char line[RESP_HEADER_MAX];
    for (size_t i = r->argc > 1 ? 1 : 0; i < r->argc; i++) {
        text_append(&reply, s->protocol == 3 ? ">3\r\n" : "*3\r\n", 4);
        char *at = text_reserve(&reply, resp_bulk_size(strlen(c->name)));
        text_commit(&reply, (size_t)(resp_bulk_write(at, c->name, strlen(c->name)) - at));
        if (i == 0) {
            text_append(&reply, s->protocol == 3 ? "_\r\n" : "$-1\r\n", s->protocol == 3 ? 3 : 5);
        } else {
            at = text_reserve(&reply, resp_bulk_size(r->argv[i].len));
            text_commit(&reply, (size_t)(resp_bulk_write(at, bytes + r->argv[i].off, r->argv[i].len) - at));
        }
        text_append(&reply, line, resp_header_write(line, ':', count));
    }
    dispatch_local(s, c, reply.data, reply.len);
    text_clear(&reply);
}

/* All shard channels, on whatever node each is. */
static void sunsubscribe_all(struct pubsub *p, const struct command *c, const struct resp_request *r,
                             const char *bytes) {
    await(p, c, shard_count(p));
    LIST_FOREACH(it, &p->feeds) {
        struct feed *f = LIST_ENTRY(it, struct feed, link);
        if (f->shards > 0)
            upstream_pin_send(f->pin, bytes, r->len);
    }
}

static enum dispatch_result sunsubscribe(struct session *s, const struct command *c, const struct resp_request *r,
                                         const char *bytes) {
    struct pubsub *p = s->pubsub;
    int64_t shards = p ? shard_count(p) : 0;
    int slot = r->argc > 1 ? pin_slot(s, c, r, bytes) : -1;
    if (slot == -2) {
        dispatch_local_error(s, c, "CROSSSLOT Keys in request don't hash to the same slot");
        return DISPATCHED;
    }
    if (shards > 0 && r->argc == 1) {
        sunsubscribe_all(p, c, r, bytes);
        return DISPATCHED;
    }
    struct upstream_node *node = upstream_node_of_slot(s->worker->upstream, slot);
    for (struct list_node *it = shards > 0 ? p->feeds.next : NULL; it && it != &p->feeds; it = it->next) {
        struct feed *f = LIST_ENTRY(it, struct feed, link);
        if (f->node != node)
            continue;
        await(p, c, (int64_t)r->argc - 1);
        upstream_pin_send(f->pin, bytes, r->len);
        return DISPATCHED;
    }
    unsubscribe_nothing(s, c, r, bytes, shards);
    return DISPATCHED;
}

static enum dispatch_result unsubscribe(struct session *s, const struct command *c, const struct resp_request *r,
                                        const char *bytes) {
    struct pubsub *p = s->pubsub;
    if (!p || !p->main) {
        unsubscribe_nothing(s, c, r, bytes, 0);
        return DISPATCHED;
    }
    int64_t all = c->id == COMMAND_UNSUBSCRIBE ? p->channels : p->patterns;
    await(p, c, r->argc > 1 ? (int64_t)r->argc - 1 : all > 0 ? all : 1);
    upstream_pin_send(p->main->pin, bytes, r->len);
    return DISPATCHED;
}

/* The stream of every master: a client of the proxy sees one Redis. */
static enum dispatch_result monitor(struct session *s, const struct command *c, const char *bytes, size_t len) {
    if (s->pubsub && s->pubsub->monitor)
        return DISPATCHED; /* Redis ignores it too */
    if (s->pubsub) {
        dispatch_local_error(s, c, "ERR MONITOR while subscribed is not supported by lockkeeper");
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

enum dispatch_result pubsub_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes) {
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* replies and messages keep their order */
    counter_add(&s->worker->counters.requests_forwarded, 1);
    if (c->id != COMMAND_MONITOR && s->pubsub && s->pubsub->monitor) {
        dispatch_local_error(s, c, "ERR subscriptions beside MONITOR are not supported by lockkeeper");
        return DISPATCHED;
    }
    switch ((int)c->id) {
    case COMMAND_MONITOR:
        return monitor(s, c, bytes, r->len);
    case COMMAND_SUBSCRIBE:
    case COMMAND_PSUBSCRIBE:
    case COMMAND_SSUBSCRIBE:
        return subscribe(s, c, r, bytes);
    case COMMAND_SUNSUBSCRIBE:
        return sunsubscribe(s, c, r, bytes);
    default:
        return unsubscribe(s, c, r, bytes);
    }
}

/* ---- RESP2's subscribe mode ------------------------------------------------------------------------------ */

bool pubsub_restricts(const struct session *s) {
    return s->protocol == 2 && !s->pubsub->monitor;
}

static void not_allowed(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    char sub[64] = "";
    if (command_has_subcommands(c) && r->argc > 1)
        request_arg_text(r, bytes, 1, sub, sizeof(sub));
    for (char *p = sub; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p + 'a' - 'A') : *p;
    dispatch_local_error(s, c,
                         "%s Can't execute '%s%s%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
                         "allowed in this context",
                         c->id == COMMAND_EXEC ? "EXECABORT Transaction discarded because of:" : "ERR", c->name,
                         *sub ? "|" : "", sub);
}

enum dispatch_result pubsub_restricted(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes) {
    struct pubsub *p = s->pubsub;
    if (s->in_flight > 0)
        return DISPATCH_WAIT;
    if (!c) {
        dispatch_unknown(s, r, bytes); /* the node says that there is no such command */
    } else if (!command_arity_ok(c, r->argc)) {
        dispatch_local_error(s, c, "ERR wrong number of arguments for '%s' command", c->name);
    } else if (c->need == NEED_PUBSUB && c->id != COMMAND_MONITOR) {
        return pubsub_dispatch(s, c, r, bytes);
    } else if (c->id == COMMAND_QUIT || c->id == COMMAND_RESET) {
        return local_dispatch(s, c, r, bytes);
    } else if (c->id == COMMAND_PING && r->argc <= 2) {
        await(p, c, 1);
        upstream_pin_send(LIST_ENTRY(list_first(&p->feeds), struct feed, link)->pin, bytes, r->len);
    } else if (c->id == COMMAND_PING) {
        dispatch_local_error(s, c, "ERR wrong number of arguments for 'ping' command");
    } else {
        not_allowed(s, c, r, bytes);
    }
    return DISPATCHED;
}
