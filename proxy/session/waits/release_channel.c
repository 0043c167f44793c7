/*
 * Messages about releases at other proxies. If a session waits, its attempts leave a mark in the guard record
 * (waits.lua). A release at another proxy that finds the mark publishes a message (tell.lua):
 *
 *      SPUBLISH lockkeeper-freed:{TAG} "PROCESS DB KEY" ──> proxies that listen ──┬─ PROCESS: its first waiter tries
 *      PUBLISH lockkeeper-freed ...                                               └─ others: nothing
 *
 * PROCESS is the proxy whose session has waited longest. Its first waiter is the session that has waited longest there.
 * If no attempt comes from PROCESS, the first waiter at the
 * proxy of the release tries after a short time.
 *
 * On a cluster each slot has its channel, with the TAG of the guard record's name, so a message goes only to the nodes
 * of the slot. PUBLISH is for other upstreams, and for nodes that do not know SPUBLISH.
 *
 * Each thread has its own connections for these channels, from the time when one of its sessions first waits: one, or
 * on a cluster one to each node. It listens for the slots of the locks for which its sessions wait. The node ends a
 * subscription (sunsubscribe) when the slot moves. The thread ends it when another slot needs its place.
 *
 * A lost message costs a moment: the first waiter asks for the lock at least every 100 ms. Each time, the thread
 * subscribes to the slot again if it has to.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/lock/rule.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/core/session.h"
#include "proxy/session/waits/private.h"

#define CHANNEL "lockkeeper-freed"

enum {
    PLACES = 1024, /* the most slots for which a thread listens at once */
    CHANNEL_MAX = sizeof(CHANNEL) + LOCK_GUARD_EXTRA
};

static const char SUBSCRIBE[] = "*2\r\n$9\r\nSUBSCRIBE\r\n$16\r\n" CHANNEL "\r\n";

static const double AGAIN_SECONDS = 1.0, /* between two attempts to connect */
    REFUSED_SECONDS = 10.0,              /* until a node that has refused is asked again */
    IDLE_SECONDS = 1.0;                  /* a slot for which no session has waited for so long may lose its place */

/* A connection that listens on channels. */
struct release_channel {
    struct list_node link;
    struct release_channels *of;
    const struct upstream_node *node; /* only compared, never followed */
    struct upstream_pin *pin;         /* NULL: not connected */
    double tried;                     /* when it was last opened, by worker_steady */
    double refused;                   /* when the node refused, by worker_steady; 0: it has not */
    struct text message;              /* the part of a message that has come so far */
};

/* A slot for which the thread listens. Slots with equal remainders by PLACES share a place. */
struct place {
    struct release_channel *channel; /* NULL: the place is empty */
    double asked;                    /* when a session last waited, by worker_steady */
    uint16_t slot;
};

struct release_channels {
    struct worker *worker;
    struct list_node all;
    bool plain; /* a cluster whose nodes do not know sharded channels */
    struct place places[PLACES];
};

/* ---- channels of slots --------------------------------------------------------------------------------- */

static void channel_send(const struct release_channel *channel, const char *command, uint16_t slot) {
    invariant(channel->pin && slot < SLOT_COUNT, "slot %u has no connection", slot);
    char guard[LOCK_GUARD_EXTRA + 8], bytes[64 + CHANNEL_MAX];
    size_t head = lock_guard_head_write(slot, guard); /* lockkeeper:{TAG}: */
    int tag = (int)(head - (sizeof("lockkeeper") - 1) - 1);
    int n = snprintf(bytes, sizeof(bytes), "*2\r\n$%zu\r\n%s\r\n$%zu\r\n" CHANNEL "%.*s\r\n", strlen(command), command,
                     sizeof(CHANNEL) - 1 + (size_t)tag, tag, guard + sizeof("lockkeeper") - 1);
    upstream_pin_send(channel->pin, bytes, (size_t)n);
}

static void channel_forget_slot(struct release_channel *channel, unsigned slot) {
    struct place *p = &channel->of->places[slot % PLACES];
    if (p->channel == channel && p->slot == slot)
        p->channel = NULL;
}

/* Empties the places of all slots for which the connection listened. */
static void channel_forget(struct release_channel *channel) {
    for (size_t i = 0; i < PLACES; i++)
        if (channel->of->places[i].channel == channel)
            channel->of->places[i].channel = NULL;
}

/* ---- connections --------------------------------------------------------------------------------------- */

static void channel_drop(struct release_channel *channel) {
    if (!channel->pin)
        return;
    struct worker *w = channel->of->worker;
    invariant(counter_read(&w->counters.pinned_subscribed) > 0, "no subscription is counted");
    counter_sub(&w->counters.pinned_connections, 1);
    counter_sub(&w->counters.pinned_subscribed, 1);
    upstream_unpin(channel->pin, false);
    channel->pin = NULL;
    channel->message.len = 0;
    channel_forget(channel);
}

static void channel_lost(void *arg, const char *error) {
    struct release_channel *channel = arg;
    log_verbose("Releases at other proxies are not heard: %s", error);
    channel->of->plain = false; /* the node may run a newer version when it comes back */
    channel_drop(channel);
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* Takes a message's text: "PROCESS DB KEY". */
static void channel_heard(const struct release_channel *channel, const char *text, size_t len) {
    struct worker *w = channel->of->worker;
    const char *end = text + len, *db = memchr(text, ' ', len);
    const char *name = db ? memchr(db + 1, ' ', (size_t)(end - db - 1)) : NULL;
    if (!name)
        return;
    const char *own = w->shared->process_id;
    if ((size_t)(db - text) < strlen(own) || memcmp(text, own, strlen(own)) != 0)
        return; /* the message is for another proxy; an attempt from here would come behind that proxy's attempt */
    struct lock_key key = {
        .db = (uint32_t)strtoul(db + 1, NULL, 10), .name = name + 1, .len = (size_t)(end - name - 1)};
    waiting_told(w->shared->waiting, &key, engine_key_hash(w->shared->engine, &key), w->index);
}

static bool begins(const char *text, size_t len, const char *with) {
    return len >= strlen(with) && strncasecmp(text, with, strlen(with)) == 0;
}

/* Handles a node's refusal to subscribe. The slot has moved, or the node does not know sharded channels, or it gives
 * another error. */
static void channel_refused(struct release_channel *channel, const char *text, size_t len) {
    struct release_channels *all = channel->of;
    bool ask;
    if (begins(text, len, "MOVED ")) {
        channel_forget_slot(channel, (unsigned)strtoul(text + 6, NULL, 10));
        (void)upstream_pin_redirect(channel->pin, text, len, &ask);
        return;
    }
    if (begins(text, len, "ERR unknown command") && !all->plain) {
        all->plain = true;
        LIST_EACH(other, &all->all, struct release_channel, link)
            if (other != channel)
                channel_drop(other);
        channel_forget(channel);
        upstream_pin_send(channel->pin, SUBSCRIBE, sizeof(SUBSCRIBE) - 1);
        return;
    }
    if (channel->refused == 0)
        log_verbose("Releases at other proxies are not heard: %.*s", (int)len, text);
    channel->refused = worker_steady(all->worker);
    channel_forget(channel);
}

/* Takes a part of a message, and reads the whole one: an array of its kind, the channel and a text. */
static void channel_message(void *arg, const char *data, size_t len, bool last) {
    struct release_channel *channel = arg;
    struct resp_item array, kind, where, said;
    text_append(&channel->message, data, len);
    if (!last)
        return;
    const char *p = channel->message.data, *end = p + channel->message.len;
    channel->message.len = 0; /* the bytes stay until the next message */
    if (!resp_item_read(&p, end, &array))
        return;
    if (array.type == '-') {
        channel_refused(channel, array.str, array.len);
        return;
    }
    if (array.type != '*' || array.num != 3 || !resp_item_read(&p, end, &kind) || !resp_item_read(&p, end, &where) ||
        !resp_item_read(&p, end, &said))
        return;
    if (said.type == '$' && (begins(kind.str, kind.len, "message") || begins(kind.str, kind.len, "smessage")))
        channel_heard(channel, said.str, said.len);
    else if (begins(kind.str, kind.len, "sunsubscribe"))
        channel_forget_slot(channel, slot_of_key(where.str, where.len));
}

/* ---- listening ----------------------------------------------------------------------------------------- */

/* Returns the entry of a node: an entry that has this node, a disconnected entry that is free for it, or a new one. */
static struct release_channel *channel_of(struct release_channels *all, const struct upstream_node *node) {
    struct release_channel *spare = NULL;
    double now = worker_steady(all->worker);
    LIST_EACH(channel, &all->all, struct release_channel, link) {
        if (channel->node == node)
            return channel;
        if (!channel->pin && now - channel->tried >= AGAIN_SECONDS)
            spare = channel;
    }
    if (!spare) {
        spare = memory_zalloc(sizeof(*spare));
        spare->of = all;
        list_append(&all->all, &spare->link);
    }
    spare->node = node;
    spare->tried = spare->refused = 0;
    return spare;
}

/* Connects if there is no connection. False: there is none now, or the node has refused a moment ago. */
static bool channel_connect(struct release_channel *channel, struct upstream_node *node) {
    struct worker *w = channel->of->worker;
    const struct upstream_pin_events events = {.arg = channel, .message = channel_message, .lost = channel_lost};
    const struct upstream_lane lane = {.protocol = 2};
    const struct upstream_claim own = {.lasting = true};
    const char *error;
    double now = worker_steady(w);
    if (channel->pin)
        return channel->refused == 0 || now - channel->refused >= REFUSED_SECONDS;
    if (w->stopping || (channel->tried > 0 && now - channel->tried < AGAIN_SECONDS))
        return false;
    channel->tried = now;
    invariant(!channel->pin && channel->message.len == 0, "a connection is opened twice");
    channel->refused = 0;
    channel->pin = upstream_pin_open(w->upstream, node, &lane, &own, &events, &error);
    if (!channel->pin) {
        log_verbose("Releases at other proxies are not heard: %s", error);
        return false;
    }
    counter_add(&w->counters.pinned_connections, 1);
    counter_add(&w->counters.pinned_subscribed, 1);
    upstream_pin_stream(channel->pin, true);
    return true;
}

static bool listen_to_slot(struct release_channels *all, uint16_t slot) {
    struct worker *w = all->worker;
    struct place *p = &all->places[slot % PLACES];
    struct upstream_node *node = upstream_node_of_slot(w->upstream, slot);
    double now = worker_steady(w);
    bool own = p->channel && p->slot == slot;
    if (own)
        p->asked = now;
    if (!node || (own && p->channel->node == node) || (p->channel && !own && now - p->asked < IDLE_SECONDS))
        return false;
    struct release_channel *channel = channel_of(all, node);
    if (!channel_connect(channel, node))
        return false;
    if (p->channel)
        channel_send(p->channel, "SUNSUBSCRIBE", p->slot);
    *p = (struct place){.channel = channel, .asked = now, .slot = slot};
    channel_send(channel, "SSUBSCRIBE", slot);
    return true;
}

bool lock_release_channel_open(struct worker *w, uint16_t slot) {
    struct release_channels *all = waits_of_worker(w)->release_channels;
    if (!all) {
        all = waits_of_worker(w)->release_channels = memory_zalloc(sizeof(*all));
        all->worker = w;
        list_init(&all->all);
    }
    if (upstream_is_cluster(w->upstream) && !all->plain)
        return listen_to_slot(all, slot);
    LIST_EACH(c, &all->all, struct release_channel, link) /* else there is one channel for all locks */
        if (c->pin)
            return false;
    struct upstream_node *node = upstream_any_node(w->upstream, w->index);
    struct release_channel *channel = channel_of(all, node);
    if (!channel_connect(channel, node))
        return false;
    upstream_pin_send(channel->pin, SUBSCRIBE, sizeof(SUBSCRIBE) - 1);
    return true;
}

void lock_release_channel_close(struct worker *w) {
    struct release_channels *all = waits_of_worker(w)->release_channels;
    if (!all)
        return;
    LIST_EACH_SAFE(channel, &all->all, struct release_channel, link) {
        channel_drop(channel);
        text_clear(&channel->message);
        memory_free(channel);
    }
    memory_free(all);
    waits_of_worker(w)->release_channels = NULL;
}
