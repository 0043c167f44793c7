/*
 * CLIENT TRACKING, CACHING and NO-TOUCH, which change the state of a connection at the node. A session that uses them
 * has a dedicated lane, whose connections begin with these commands. Only its own requests use the lane, in the normal
 * way.
 *
 *      CLIENT TRACKING ON ──> lane ──> all masters                           GET k ──> lane ──> the key's master
 *                                                           >2 invalidate k  <── between two replies ──┘
 *
 * With a lost connection the node forgets what the client has cached, so the client is told that its whole cache may be
 * stale. tracking_ask.c handles the commands.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/push/private.h"

enum { TRACKING_HEARS = HEARS_REQUEST | HEARS_CALL | HEARS_TICK };

/* ---- the session's own writes ---------------------------------------------------------------------- */

/* With NOLOOP a node sends a client no message about what the client itself has changed. With BCAST a node takes a
 * script for another client. So the proxy leaves out the keys that the session's own lock scripts have changed. A node
 * writes such a message right behind the script's answer, and both are read in one turn of the loop. If the message
 * comes in a later turn, the client gets it: a message too many does no harm. */

void tracking_hears(struct session *s) {
    const struct tracking *t = push_of(s)->tracking;
    if (t && t->modes.bcast && t->modes.noloop)
        s->hears |= HEARS_WRITES;
    else
        s->hears &= (uint8_t)~HEARS_WRITES;
}

static void own_turn(struct tracking *t) {
    unsigned turn = ev_iteration(t->session->worker->loop);
    if (turn != t->own_turn)
        t->own.len = 0;
    t->own_turn = turn;
}

void tracking_lock_written(struct session *s, const char *key, size_t len) {
    struct tracking *t = push_of(s)->tracking;
    if (!t || !(s->hears & HEARS_WRITES))
        return;
    own_turn(t);
    text_append(&t->own, (const char *)&len, sizeof(len));
    text_append(&t->own, key, len);
}

/* Whether the message about the key is about the session's own write. The next message about it is not. */
static bool own_take(struct tracking *t, const char *key, size_t len) {
    if (t->own.len == 0)
        return false;
    own_turn(t);
    size_t at = 0, size;
    for (; at < t->own.len; at += sizeof(size) + size) {
        memcpy(&size, t->own.data + at, sizeof(size));
        invariant(at + sizeof(size) + size <= t->own.len, "a key of %zu bytes is cut off", size);
        if (size != len || memcmp(t->own.data + at + sizeof(size), key, len) != 0)
            continue;
        size_t end = at + sizeof(size) + size;
        memmove(t->own.data + at, t->own.data + end, t->own.len - end);
        t->own.len -= end - at;
        return true;
    }
    return false;
}

/* ---- messages ------------------------------------------------------------------------------------- */

/* Appends the keys of >2 invalidate *n that clients may see, as an array; nothing if the message concerns all keys.
 * False: it has no visible keys, or is another message. */
static bool keys_shown(struct tracking *t, const char *data, size_t len, struct text *out) {
    const char *p = data, *end = data + len;
    struct resp_item push, word, keys, key;
    int64_t shown = 0;
    struct text list = {0};
    if (!resp_item_read(&p, end, &push) || !resp_item_read(&p, end, &word) || !resp_item_read(&p, end, &keys) ||
        word.len != 10 || memcmp(word.str, "invalidate", 10) != 0)
        return false;
    if (keys.null)
        return true;
    for (int64_t i = 0; i < keys.num; i++) {
        const char *start = p;
        if (!resp_item_read(&p, end, &key))
            break;
        if (lock_guard_is(key.str, key.len) || own_take(t, key.str, key.len))
            continue;
        text_append(&list, start, (size_t)(p - start));
        shown++;
    }
    if (shown > 0) {
        text_printf(out, "*%lld\r\n", (long long)shown);
        text_append(out, list.data, list.len);
    }
    text_clear(&list);
    return shown > 0;
}

/* Sends an invalidate message. `keys` is an array; len 0: all keys. */
static void tell(struct tracking *t, const char *keys, size_t len) {
    struct session *s = t->session;
    struct text message = {0};
    if (s && s->lane.protocol == 3) { /* with RESP2 Redis does not send it either */
        text_printf(&message, ">2\r\n$10\r\ninvalidate\r\n%s", len == 0 ? "_\r\n" : "");
        text_append(&message, keys, len);
        session_tell(s, message.data, message.len);
        text_clear(&message);
    }
}

static void tracking_push(void *arg, const char *data, size_t len) {
    struct text keys = {0};
    if (keys_shown(arg, data, len, &keys))
        tell(arg, keys.data, keys.len);
    text_clear(&keys);
}

static void tracking_lost(void *arg) {
    struct tracking *t = arg;
    t->reopen = true;
    if (t->modes.on)
        tell(t, "", 0); /* the whole cache may be stale */
}

/* ---- life ------------------------------------------------------------------------------------------ */

struct tracking *tracking_new(struct session *s) {
    struct worker *w = s->worker;
    char client[SESSION_ADDRESS_MAX];
    struct tracking *t = memory_zalloc(sizeof(*t));
    struct upstream_dedicated_events events = {.arg = t, .push = tracking_push, .lost = tracking_lost};
    t->dedicated = upstream_dedicated_new(w->upstream, session_host(s, client, sizeof(client)), &events);
    t->epoch = upstream_epoch(w->upstream);
    return t;
}

void tracking_free(struct worker *w, struct tracking *t) {
    invariant(t->dedicated != 0, "a lane has no number");
    upstream_dedicated_free(w->upstream, t->dedicated);
    text_clear(&t->own);
    memory_free(t);
}

void tracking_drop(struct session *s) {
    struct tracking *t = push_of(s)->tracking;
    if (!t)
        return;
    invariant(t->session == s && s->lane.dedicated == t->dedicated, "the lane belongs to another session");
    push_of(s)->tracking = NULL;
    s->lane.dedicated = 0;
    s->before = CACHING_NONE;
    s->hears &= (uint8_t) ~(TRACKING_HEARS | HEARS_WRITES);
    counter_sub(&s->worker->counters.clients_tracking, 1);
    tracking_free(s->worker, t);
}

void tracking_take(struct session *s, struct tracking *t) {
    invariant(!push_of(s)->tracking && s->lane.dedicated == 0 && t->dedicated != 0,
              "a session tracks keys over two lanes");
    t->session = s;
    push_of(s)->tracking = t;
    s->lane.dedicated = t->dedicated;
    s->before = CACHING_NONE;
    s->hears |= TRACKING_HEARS;
    counter_add(&s->worker->counters.clients_tracking, 1);
}

struct tracking_state tracking_state(const struct session *s) {
    const struct tracking *t = push_of(s)->tracking;
    if (!t || !t->modes.on)
        return (struct tracking_state){0};
    return (struct tracking_state){true, t->modes.bcast};
}

void tracking_pin_lane(const struct session *s, struct upstream_lane *lane) {
    if (tracking_state(s).bcast)
        lane->dedicated = 0; /* the messages come over another connection */
}

/* ---- all masters ------------------------------------------------------------------------------------- */

static void reopened(struct call *c, const struct call_end *end) {
    struct session *s = c->request->session;
    if (s && push_of(s)->tracking && end->error)
        push_of(s)->tracking->reopen = true;
    request_reply(c->request, "", 0, true);
}

/* With BCAST, nodes send messages about keys that the client has not read: so all masters must be connected at any
 * time. */
void tracking_tick(struct session *s) {
    struct tracking *t = push_of(s)->tracking;
    struct upstream *u = s->worker->upstream;
    if (!t || !t->modes.on || !t->modes.bcast || s->in_flight > 0 || s->queues ||
        (!t->reopen && t->epoch == upstream_epoch(u)))
        return;
    t->reopen = false;
    t->epoch = upstream_epoch(u);
    for (size_t i = 0; i < upstream_master_count(u); i++) {
        struct request *request = request_new(s, NULL);
        request->call.done = reopened;
        call_submit_master(&request->call, i, session_hello(s), strlen(session_hello(s)));
    }
}

/* ---- CACHING, before the next command ----------------------------------------------------------------- */

struct call *tracking_before_call(struct session *s, struct call *c, const char **bytes, size_t *len) {
    static const char yes[] = "*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$3\r\nYES\r\n";
    static const char no[] = "*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$2\r\nNO\r\n";
    if (!push_of(s)->tracking || s->before == CACHING_NONE)
        return NULL;
    *bytes = s->before == CACHING_YES ? yes : no;
    *len = strlen(*bytes);
    struct request *before = request_internal(s->worker);
    before->call.done = call_swallow;
    before->call.up.affinity = c->up.affinity;
    return &before->call;
}

void tracking_request_over(struct session *s) {
    struct tracking *t = push_of(s)->tracking;
    if (!t)
        return;
    if (!t->caching_new)
        s->before = CACHING_NONE;
    t->caching_new = false;
}
