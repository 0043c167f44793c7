/*
 * Subscriptions and MONITOR: pins (feeds) whose messages go to the client as they arrive.
 *
 *      SUBSCRIBE, PSUBSCRIBE ──> one feed, to any master      SSUBSCRIBE ──> a feed to the slot's node
 *      MONITOR ──> a feed to every master
 *
 *      feed ── message, whole ──┬─ between two replies ──> client
 *                               └─ while a reply is being written: held until that has ended
 *
 * SUBSCRIBE and similar commands take a slot like any request, which ends with its last confirmation; later requests
 * wait for it, so the order is kept. Confirmations are counted, to know when the last subscription has ended. Until
 * then RESP2 permits few commands; with RESP3, and during MONITOR, other commands work as usual. A message is written
 * in the client's protocol, which HELLO may have changed since the feed was opened; messages differ only in the first
 * byte and in nulls.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/push/push.h"

enum {
    HELD_MAX = 64 * 1024 * 1024, /* if there is no client-output-buffer-limit */
    HOPS_MAX = 5
};

/* A connection with subscriptions. */
struct feed {
    struct list_node link;
    struct pubsub *of;
    struct upstream_pin *pin;
    struct upstream_node *node;
    struct text partial; /* the beginning of an incomplete message */
    int64_t shards;      /* shard channels subscribed here */
    enum pin_reason why;
    uint8_t protocol; /* of the connection; the session's may have changed since */
    bool greeted;     /* MONITOR: the OK has come */
};

struct pubsub {
    struct session *session;
    struct list_node feeds;
    struct feed *main; /* for channels and patterns; NULL: none */
    bool monitor;
    int64_t channels, patterns;
    struct request *waiting; /* the request that waits for confirmations */
    int64_t expected;        /* how many are due */
    struct text again;       /* a SUBSCRIBE or similar, to repeat after a redirect, or if its node is out of reach */
    int slot;                /* its slot; -1: any */
    unsigned hops;
    struct text held; /* messages that wait for the end of a reply */
};

/* ---- life ------------------------------------------------------------------------------------------- */

static void feed_free(struct feed *f) {
    invariant(f->pin && !list_empty(&f->link), "a feed is freed twice");
    pin_give(f->of->session->worker, f->pin, f->why, false);
    if (f->of->main == f)
        f->of->main = NULL;
    list_remove(&f->link);
    text_clear(&f->partial);
    memory_free(f);
}

void pubsub_drop(struct session *s) {
    struct pubsub *p = push_of(s)->pubsub;
    if (!p)
        return;
    for (struct feed *f; (f = LIST_FIRST(&p->feeds, struct feed, link));)
        feed_free(f);
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
    upstream_abandon(&waiting->call.up); /* it may be waiting for the map */
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

/* The number of shard channels on all nodes. */
static int64_t pubsub_shards(const struct pubsub *p) {
    int64_t sum = 0;
    LIST_EACH(f, &p->feeds, struct feed, link)
        sum += f->shards;
    return sum;
}

struct pubsub_counts pubsub_count(const struct session *s) {
    const struct pubsub *p = push_of(s)->pubsub;
    if (!p)
        return (struct pubsub_counts){0};
    return (struct pubsub_counts){p->channels, p->patterns, pubsub_shards(p), p->monitor};
}

/* Whether nothing is subscribed, and no confirmation is due. */
static bool pubsub_idle(const struct pubsub *p) {
    return !p->monitor && !p->waiting && p->channels + p->patterns + pubsub_shards(p) == 0;
}

static void feed_message(void *arg, const char *data, size_t len, bool last);
static void feed_lost(void *arg, const char *error);

/* Finds the feed to a node, or opens one; NULL: *error has the reason. */
static struct feed *feed_to(struct pubsub *p, struct upstream_node *node, const char **error) {
    LIST_EACH(f, &p->feeds, struct feed, link)
        if (node && f->node == node)
            return f;
    struct feed *f = memory_alloc(sizeof(*f));
    *f = (struct feed){.of = p, .node = node, .protocol = p->session->lane.protocol};
    f->why = p->monitor ? PIN_MONITOR : PIN_SUBSCRIBED;
    struct upstream_pin_events events = {.arg = f, .message = feed_message, .lost = feed_lost};
    f->pin = pin_take(p->session, node, f->why, &events, error);
    if (!f->pin) {
        memory_free(f);
        return NULL;
    }
    upstream_pin_patient(f->pin, PIN_PATIENT);
    upstream_pin_stream(f->pin, true);
    list_append(&p->feeds, &f->link);
    return f;
}

static struct feed *feed_main(struct pubsub *p, const char **error) {
    struct session *s = p->session;
    if (!p->main && !list_empty(&p->feeds))
        p->main = LIST_ENTRY(list_first(&p->feeds), struct feed, link);
    if (!p->main)
        p->main = feed_to(p, pin_node(s, SLOT_NONE), error);
    return p->main;
}

/* ---- the first subscription, anew ------------------------------------------------------------------- */

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
    if (subscribe_again(p, &error))
        return;
    p->waiting = NULL;
    pubsub_drop(r->session);
    request_fail(r, error);
}

/* The first subscription could not be sent to `lost` (may be gone). Returns whether it continues: at the node that has
 * taken over, or once the map shows whether there is one. */
static bool pubsub_anew(struct pubsub *p, const struct upstream_node *lost) {
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

/* ---- to the client ---------------------------------------------------------------------------------- */

/* Writes the messages that waited for the end of a reply. */
static void pubsub_release(struct session *s) {
    struct pubsub *p = push_of(s)->pubsub;
    if (!p || p->held.len == 0 || session_amid_reply(s))
        return;
    iobuf_append(&s->out, p->held.data, p->held.len);
    session_mark_dirty(s);
    text_clear(&p->held);
}

static void put(struct session *s, const char *data, size_t len) {
    if (!session_amid_reply(s)) {
        iobuf_append(&s->out, data, len);
        session_mark_dirty(s);
        return;
    }
    text_append(&push_of(s)->pubsub->held, data, len);
}

/* Writes a message in the client's protocol. */
static void put_message(struct feed *f, const char *data, size_t len) {
    struct session *s = f->of->session;
    if (f->protocol == s->lane.protocol || (data[0] != '*' && data[0] != '>')) {
        put(s, data, len);
        return;
    }
    static const char old_null[] = "\r\n$-1\r\n:",
                      new_null[] = "\r\n_\r\n:"; /* in the confirmation of an UNSUBSCRIBE without subscriptions */
    bool to3 = s->lane.protocol == 3;
    const char *null = to3 ? old_null : new_null, *other = to3 ? new_null : old_null;
    const char *at = len < 64 ? memmem(data, len, null, strlen(null)) : NULL;
    struct text whole = {0};
    text_append(&whole, to3 ? ">" : "*", 1);
    text_append(&whole, data + 1, (at ? (size_t)(at - data) : len) - 1);
    if (at) {
        text_append(&whole, other, strlen(other));
        at += strlen(null);
        text_append(&whole, at, len - (size_t)(at - data));
    }
    put(s, whole.data, whole.len);
    text_clear(&whole);
}

/* ---- from the nodes --------------------------------------------------------------------------------- */

enum message_kind { MESSAGE_OTHER, MESSAGE_PONG, MESSAGE_CHANNELS, MESSAGE_PATTERNS, MESSAGE_SHARDS };

struct message {
    enum message_kind kind;
    int64_t count;    /* in a confirmation */
    const char *tail; /* the element with the count */
};

static bool word_is(const struct resp_item *item, const char *word) {
    return item->len == strlen(word) && memcmp(item->str, word, item->len) == 0;
}

/* Reads the kind of a message: a confirmation {word, channel, count}, a pong, or something only for the client. */
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

/* Whether a message is a keyspace notification about a guard record, which clients must not see: in the record's own
 * channel (__keyspace@0__:lockkeeper:...), or in an event's (__keyevent@0__:hset), where the key is the message. */
static bool tells_of_guard(const char *data, size_t len) {
    static const char space[] = "__keyspace@", event[] = "__keyevent@";
    const size_t start = sizeof(space) - 1;
    const char *p = data, *end = data + len, *key;
    struct resp_item array, word, channel, text;
    if (!resp_item_read(&p, end, &array) || (array.type != '*' && array.type != '>') || array.num < 3 ||
        !resp_item_read(&p, end, &word) || (word_is(&word, "pmessage") && !resp_item_read(&p, end, &text)) ||
        !resp_item_read(&p, end, &channel) || channel.len <= start || !resp_item_read(&p, end, &text))
        return false;
    if (memcmp(channel.str, event, start) == 0)
        return lock_guard_is(text.str, text.len);
    if (memcmp(channel.str, space, start) != 0)
        return false;
    key = memmem(channel.str, channel.len, "__:", 3);
    return key && lock_guard_is(key + 3, (size_t)(channel.str + channel.len - key) - 3);
}

/* Ends the request that waits for confirmations: all have come, one is an error, or MONITOR has begun. */
static void waiting_done(struct pubsub *p, const char *reply, size_t len) {
    struct request *r = p->waiting;
    p->waiting = NULL;
    text_clear(&p->again);
    request_reply(r, reply, len, true);
}

/* Counts a confirmation, and passes it on with the client's own count: the client does not know about several nodes. */
static void confirmed(struct feed *f, const struct message *m, const char *data, size_t len) {
    struct pubsub *p = f->of;
    if (m->kind == MESSAGE_CHANNELS)
        p->channels = m->count - p->patterns;
    else if (m->kind == MESSAGE_PATTERNS)
        p->patterns = m->count - p->channels;
    if (m->kind == MESSAGE_SHARDS) {
        char number[RESP_HEADER_MAX];
        struct text whole = {0};
        f->shards = m->count;
        text_append(&whole, data, (size_t)(m->tail - data));
        text_append(&whole, number, resp_header_write(number, ':', pubsub_shards(p)));
        put_message(f, whole.data, whole.len);
        text_clear(&whole);
    } else {
        put_message(f, data, len);
    }
    if (p->waiting && --p->expected <= 0)
        waiting_done(p, "", 0);
}

/* Handles a node's error. SSUBSCRIBE may have to go to another node. */
static void refused(struct feed *f, const char *data, size_t len) {
    struct pubsub *p = f->of;
    bool ask;
    const char *error;
    struct upstream_node *to = p->again.len > 0 ? upstream_pin_redirect(f->pin, data + 1, len - 3, &ask) : NULL;
    if (to && p->hops++ < HOPS_MAX) {
        struct feed *other = feed_to(p, to, &error);
        if (other) {
            static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
            if (ask) /* its OK is one confirmation more, which is ignored */
                upstream_pin_send(other->pin, asking, sizeof(asking) - 1);
            upstream_pin_send(other->pin, p->again.data, p->again.len);
            return;
        }
    }
    waiting_done(p, data, len);
}

/* Handles MONITOR's OK, which comes from every node. The client gets the last: from then on it sees all commands. */
static bool greeting(struct feed *f, const char *data, size_t len) {
    struct pubsub *p = f->of;
    if (f->greeted)
        return p->waiting != NULL; /* MONITOR has not begun for the client yet */
    f->greeted = true;
    bool refused_it = data[0] == '-';
    if (!p->waiting || (!refused_it && --p->expected > 0))
        return true;
    p->monitor = !refused_it;
    waiting_done(p, data, len);
    return true;
}

static void message(struct feed *f, const char *data, size_t len) {
    struct pubsub *p = f->of;
    struct session *s = p->session;
    if (p->monitor) {
        if (!greeting(f, data, len))
            put(s, data, len);
    } else if (data[0] == '+') {
        return; /* the reply to an ASKING */
    } else if (data[0] == '-' && p->waiting) {
        refused(f, data, len);
    } else {
        struct message m = message_read(data, len);
        if (m.kind != MESSAGE_OTHER && m.kind != MESSAGE_PONG) {
            confirmed(f, &m, data, len);
        } else if (m.kind == MESSAGE_PONG || !tells_of_guard(data, len)) {
            put_message(f, data, len);
            if (m.kind == MESSAGE_PONG && p->waiting)
                waiting_done(p, "", 0);
        }
    }
    if (s->state != SESSION_CLOSED && pubsub_idle(p))
        pubsub_drop(s);
}

/* Passes messages on whole, so that nothing can be written in between. */
static void feed_message(void *arg, const char *data, size_t len, bool last) {
    struct feed *f = arg;
    struct session *s = f->of->session;
    int64_t most = s->worker->config->output_limit_hard, pubsub = s->worker->config->output_pubsub_hard;
    if (most <= 0 || (pubsub > 0 && pubsub < most))
        most = pubsub;
    if (f->partial.len + f->of->held.len + len > (size_t)(most > 0 ? most : HELD_MAX)) {
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
    if (p->waiting && p->channels + p->patterns + pubsub_shards(p) == 0) { /* no subscription was lost */
        struct request *r = p->waiting;
        const struct upstream_node *lost = f->node;
        char text[512];
        snprintf(text, sizeof(text), "%s", error);
        if (!p->monitor)
            feed_free(f);
        if (!p->monitor && pubsub_anew(p, lost))
            return;
        p->waiting = NULL;
        pubsub_drop(s);
        request_fail(r, text);
        return;
    }
    log_warning("client %llu (%s): closed: its %s ended: %s", (unsigned long long)s->lock.id, s->address,
                p->monitor ? "MONITOR" : "subscription", error);
    session_close(s, "its node was lost");
}

/* ---- requests --------------------------------------------------------------------------------------- */

/* Takes a slot that ends after so many confirmations. */
static void await(struct pubsub *p, const struct command *c, int64_t confirmations) {
    struct session *s = p->session;
    invariant(!p->waiting && confirmations > 0, "%lld confirmations are due", (long long)confirmations);
    struct request *request = request_new(s, c);
    request_barrier(request);
    p->waiting = request;
    p->expected = confirmations;
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
static enum dispatch_result unsubscribe_nothing(struct session *s, const struct request_class *k, int64_t count) {
    struct text reply = {0};
    char line[RESP_HEADER_MAX];
    for (size_t i = k->request->argc > 1 ? 1 : 0; i < k->request->argc; i++) {
        text_append(&reply, s->lane.protocol == 3 ? ">3\r\n" : "*3\r\n", 4);
        text_bulk(&reply, k->command->name, strlen(k->command->name));
        if (i == 0)
            text_append(&reply, s->lane.protocol == 3 ? "_\r\n" : "$-1\r\n", s->lane.protocol == 3 ? 3 : 5);
        else
            text_bulk(&reply, k->bytes + k->request->argv[i].off, k->request->argv[i].len);
        text_append(&reply, line, resp_header_write(line, ':', count));
    }
    return session_answer_text(s, k->command, &reply);
}

static enum dispatch_result sunsubscribe(struct session *s, const struct request_class *k) {
    struct pubsub *p = push_of(s)->pubsub;
    int64_t shards = p ? pubsub_shards(p) : 0;
    bool all = k->request->argc == 1, sent = false; /* all channels, on all nodes; else those of one node */
    int slot = all ? SLOT_NONE : pin_slot(s, k->command, k->request, k->bytes);
    if (slot == SLOT_SEVERAL)
        return session_refuse(s, k->command, "CROSSSLOT Keys in request don't hash to the same slot");
    struct upstream_node *node = upstream_node_of_slot(s->worker->upstream, slot);
    for (struct list_node *it = shards > 0 ? p->feeds.next : NULL; it && it != &p->feeds; it = it->next) {
        struct feed *f = LIST_ENTRY(it, struct feed, link);
        if (all ? f->shards == 0 : f->node != node)
            continue;
        if (!sent)
            await(p, k->command, all ? shards : (int64_t)k->request->argc - 1);
        sent = true;
        upstream_pin_send(f->pin, k->bytes, k->request->len);
        if (!all)
            break;
    }
    return sent ? DISPATCHED : unsubscribe_nothing(s, k, shards);
}

static enum dispatch_result unsubscribe(struct session *s, const struct request_class *k) {
    struct pubsub *p = push_of(s)->pubsub;
    if (!p || !p->main)
        return unsubscribe_nothing(s, k, 0);
    int64_t all = k->command->id == COMMAND_UNSUBSCRIBE ? p->channels : p->patterns;
    await(p, k->command, k->request->argc > 1 ? (int64_t)k->request->argc - 1 : all > 0 ? all : 1);
    upstream_pin_send(p->main->pin, k->bytes, k->request->len);
    return DISPATCHED;
}

/* Starts MONITOR on every master: the client sees them as one Redis. */
static enum dispatch_result monitor(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    if (push_of(s)->pubsub && push_of(s)->pubsub->monitor)
        return DISPATCHED; /* Redis ignores it, too */
    if (push_of(s)->pubsub)
        return session_refuse(s, c, "ERR MONITOR while subscribed is not supported by lockkeeper");
    struct upstream *u = s->worker->upstream;
    struct pubsub *p = pubsub_get(s);
    const char *error = "UPSTREAM no master is known; the request was not sent";
    int64_t feeds = 0;
    p->monitor = true;
    for (size_t i = 0; i < upstream_master_count(u); i++) {
        struct feed *f = feed_to(p, upstream_master(u, i), &error);
        if (!f)
            continue;
        upstream_pin_send(f->pin, k->bytes, k->request->len);
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
    if (k->command->id != COMMAND_MONITOR && push_of(s)->pubsub && push_of(s)->pubsub->monitor)
        return session_refuse(s, k->command, "ERR subscriptions beside MONITOR are not supported by lockkeeper");
    switch ((int)k->command->id) {
    case COMMAND_MONITOR:
        return monitor(s, k);
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
    text_bulk(&reply, k->request->argc > 1 ? k->bytes + k->request->argv[1].off : "",
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
        char sub[64] = "";
        if ((c->flags & COMMAND_SUBCOMMANDS) && k->request->argc > 1)
            request_arg_text(k->request, k->bytes, 1, sub, sizeof(sub));
        for (char *p = sub; *p; p++)
            *p = (char)tolower((unsigned char)*p);
        session_refuse(s, c,
                       "%s Can't execute '%s%s%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
                       "allowed in this context",
                       c->id == COMMAND_EXEC ? "EXECABORT Transaction discarded because of:" : "ERR", c->name,
                       *sub ? "|" : "", sub);
    }
    return DISPATCHED;
}

const struct session_room pubsub_room = {.closes = pubsub_drop, .reply_over = pubsub_release};
