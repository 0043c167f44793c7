/*
 * Feeds: the connections for subscriptions and MONITOR, and a message's way from there to the client. A message is
 * written whole, between two replies, and in the client's protocol. HELLO may have changed the protocol since the feed
 * was opened; messages differ only in the first byte and in nulls.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/push/private.h"

enum {
    HELD_MAX = 64 * 1024 * 1024, /* if there is no client-output-buffer-limit */
    HOPS_MAX = 5
};

/* ---- life ------------------------------------------------------------------------------------------ */

void feed_free(struct feed *f) {
    invariant(f->pin && !list_empty(&f->link), "a feed is freed twice");
    pin_give(f->of->session->worker, f->pin, f->why, false);
    if (f->of->main == f)
        f->of->main = NULL;
    list_remove(&f->link);
    text_clear(&f->partial);
    memory_free(f);
}

static void feed_message(void *arg, const char *data, size_t len, bool last);
static void feed_lost(void *arg, const char *error);

struct feed *feed_to(struct pubsub *p, struct upstream_node *node, const char **error) {
    LIST_FOREACH(it, &p->feeds)
    if (node && LIST_ENTRY(it, struct feed, link)->node == node)
        return LIST_ENTRY(it, struct feed, link);
    struct feed *f = memory_zalloc(sizeof(*f));
    f->of = p;
    f->node = node;
    f->protocol = p->session->lane.protocol;
    f->why = p->monitor ? PIN_MONITOR : PIN_SUBSCRIBED;
    list_init(&f->link);
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

/* ---- to the client ------------------------------------------------------------------------------------ */

static size_t held_max(const struct session *s) {
    const struct config *c = s->worker->config;
    int64_t normal = c->output_limit_hard, pubsub = c->output_pubsub_hard;
    if (normal <= 0 || (pubsub > 0 && pubsub < normal))
        normal = pubsub;
    return normal > 0 ? (size_t)normal : HELD_MAX;
}

void pubsub_release(struct session *s) {
    struct pubsub *p = s->pubsub;
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
    text_append(&s->pubsub->held, data, len);
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

/* ---- from the nodes ------------------------------------------------------------------------------------ */

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
 * channel (__keyspace@0__:lockkeeper:...), or in that of an event (__keyevent@0__:hset), where the key is the
 * message. */
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

/* Ends the request that waits for confirmations: all have come, or one is an error. */
static void waiting_done(struct pubsub *p, const char *reply, size_t len) {
    struct request *r = p->waiting;
    p->waiting = NULL;
    text_clear(&p->again);
    request_reply(r, reply, len, true);
}

/* Counts a confirmation, and passes it on with the client's own count: the client does not know about several nodes. */
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

/* Handles MONITOR's first line, the OK, which comes from every node. The client gets the last one, since from then on
 * it sees all commands. */
static bool greeting(struct feed *f, const char *data, size_t len) {
    struct pubsub *p = f->of;
    if (f->greeted)
        return p->waiting != NULL; /* MONITOR has not begun for the client yet */
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
