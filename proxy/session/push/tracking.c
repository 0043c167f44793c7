/*
 * CLIENT TRACKING, CACHING and NO-TOUCH, which change the state of a connection at the node. A session that uses them
 * has a dedicated lane, whose connections begin with these commands; only its own requests use it.
 *
 *      CLIENT TRACKING ON ──> all masters ──> OK: the session gets the lane       GET k ──> lane ──> the key's master
 *                                       └──> the first error: nothing changes
 *                                                           >2 invalidate k  <── between two replies ──┘
 *
 * With a lost connection the node forgets what the client has cached, so the client is told that its whole cache may be
 * stale.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/push/push.h"

enum { TRACKING_HEARS = HEARS_REQUEST | HEARS_CALL | HEARS_TICK };

/* What CLIENT CACHING says for the next command: session->before. */
enum caching { CACHING_NONE, CACHING_YES, CACHING_NO };

/* What CLIENT TRACKING ON asks for. */
struct tracking_modes {
    bool on, bcast, optin, optout, noloop;
};

struct tracking {
    struct session *session; /* NULL until the nodes have agreed */
    uint32_t dedicated;
    struct tracking_modes modes;
    bool no_touch;
    bool reopen; /* BCAST: a connection is missing */
    uint64_t epoch;
    bool caching_new; /* the current command has set session->before */
    /* BCAST with NOLOOP: the keys that the session's lock scripts have changed in this turn of the loop, each behind
     * its length. */
    struct text own;
    unsigned own_turn;
};

/* A change that the nodes are asked to accept. */
struct wish {
    struct request_owner owner; /* first */
    struct tracking *fresh;     /* the session gets it if they accept; NULL: it already has a lane */
    struct tracking_modes modes;
    bool no_touch;
    struct text command;
    struct text error; /* the first one */
};

/* ---- the session's own writes ---------------------------------------------------------------------- */

/* With NOLOOP a node sends a client no message about what the client itself has changed. With BCAST a node takes a
 * script for another client. So the proxy leaves out the keys that the session's own lock scripts have changed. A node
 * writes such a message right behind the script's answer, and both are read in one turn of the loop. If the message
 * comes in a later turn, the client gets it: a message too many does no harm. */

static void own_turn(struct tracking *t) {
    unsigned turn = ev_iteration(t->session->worker->loop);
    if (turn != t->own_turn)
        t->own.len = 0;
    t->own_turn = turn;
}

static void tracking_lock_written(struct session *s, const char *key, size_t len) {
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

/* Sends an invalidate message about `count` keys; `keys` NULL: about all keys. */
static void tell(struct tracking *t, int64_t count, const struct text *keys) {
    struct session *s = t->session;
    struct text message = {0};
    if (!s || s->lane.protocol != 3) /* with RESP2 Redis does not send it either */
        return;
    text_printf(&message, ">2\r\n$10\r\ninvalidate\r\n");
    if (keys) {
        text_printf(&message, "*%lld\r\n", (long long)count);
        text_append(&message, keys->data, keys->len);
    } else {
        text_printf(&message, "_\r\n");
    }
    session_tell(s, message.data, message.len);
    text_clear(&message);
}

/* Passes on the keys of >2 invalidate *n that clients may see. */
static void tracking_push(void *arg, const char *data, size_t len) {
    const char *p = data, *end = data + len;
    struct resp_item push, word, keys, key;
    int64_t shown = 0;
    struct text list = {0};
    if (!resp_item_read(&p, end, &push) || !resp_item_read(&p, end, &word) || !resp_item_read(&p, end, &keys) ||
        word.len != 10 || memcmp(word.str, "invalidate", 10) != 0)
        return;
    for (int64_t i = 0; !keys.null && i < keys.num; i++) {
        const char *start = p;
        if (!resp_item_read(&p, end, &key))
            break;
        if (lock_guard_is(key.str, key.len) || own_take(arg, key.str, key.len))
            continue;
        text_append(&list, start, (size_t)(p - start));
        shown++;
    }
    if (keys.null || shown > 0)
        tell(arg, shown, keys.null ? NULL : &list);
    text_clear(&list);
}

static void tracking_lost(void *arg) {
    struct tracking *t = arg;
    t->reopen = true;
    if (t->modes.on)
        tell(t, 0, NULL); /* the whole cache may be stale */
}

/* ---- life ------------------------------------------------------------------------------------------ */

/* Makes a dedicated lane for a session that has none; the caller owns it until tracking_take or tracking_free. */
static struct tracking *tracking_new(struct session *s) {
    struct worker *w = s->worker;
    char client[SESSION_ADDRESS_MAX];
    struct tracking *t = memory_zalloc(sizeof(*t));
    struct upstream_dedicated_events events = {.arg = t, .push = tracking_push, .lost = tracking_lost};
    t->dedicated = upstream_dedicated_new(w->upstream, session_host(s, client, sizeof(client)), &events);
    t->epoch = upstream_epoch(w->upstream);
    return t;
}

static void tracking_free(struct worker *w, struct tracking *t) {
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

/* Gives the lane to the session, which must have none: its requests now use it. */
static void tracking_take(struct session *s, struct tracking *t) {
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

static void tracking_pin_lane(const struct session *s, struct upstream_lane *lane) {
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
static void tracking_tick(struct session *s) {
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
        call_submit_master(&request->call, i, lane_hello(&s->lane), strlen(lane_hello(&s->lane)));
    }
}

/* ---- CACHING, before the next command ----------------------------------------------------------------- */

static struct call *tracking_before_call(struct session *s, struct call *c, const char **bytes, size_t *len) {
    static const char yes[] = "*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$3\r\nYES\r\n";
    static const char no[] = "*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$2\r\nNO\r\n";
    if (!push_of(s)->tracking || s->before == CACHING_NONE)
        return NULL;
    *bytes = s->before == CACHING_YES ? yes : no;
    *len = strlen(*bytes);
    struct request *before = request_internal(s->worker, call_swallow);
    before->call.up.affinity = c->up.affinity;
    return &before->call;
}

static void tracking_request_over(struct session *s) {
    struct tracking *t = push_of(s)->tracking;
    if (!t)
        return;
    if (!t->caching_new)
        s->before = CACHING_NONE;
    t->caching_new = false;
}

/* ---- asking the nodes ------------------------------------------------------------------------------ */

static void wish_finish(struct request *r) {
    struct wish *wish = REQUEST_OWNER(r, struct wish);
    request_disown(r);
    bool granted = wish->error.len == 0;
    if (granted && r->session) {
        struct session *s = r->session;
        if (wish->fresh)
            tracking_take(s, wish->fresh);
        else
            upstream_dedicated_begin(s->worker->upstream, s->lane.dedicated, wish->command.data, wish->command.len);
        wish->fresh = NULL;
        struct tracking *t = push_of(s)->tracking;
        t->no_touch = t->no_touch || wish->no_touch;
        if (wish->modes.on)
            t->modes = wish->modes;
        s->hears &= (uint8_t)~HEARS_WRITES;
        if (t->modes.bcast && t->modes.noloop)
            s->hears |= HEARS_WRITES;
    }
    if (wish->fresh)
        tracking_free(r->worker, wish->fresh);
    if (granted)
        request_reply(r, "+OK\r\n", 5, true);
    else
        request_error(r, wish->error.data);
    text_clear(&wish->command);
    text_clear(&wish->error);
    memory_free(wish);
}

static void wish_part(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct wish *wish = REQUEST_OWNER(r, struct wish);
    bool refused = !end->error && end->reply[0] == '-' && strncmp(end->reply, "-NOPERM", 7) != 0;
    if (wish->error.len == 0 && end->error)
        text_append(&wish->error, end->error, strlen(end->error));
    else if (wish->error.len == 0 && (refused || (!end->error && end->reply[0] == '-' && !wish->fresh)))
        text_append(&wish->error, end->reply + 1, end->len - 3);
    if (--r->parts_left == 0)
        wish_finish(r);
}

/* Asks all masters. The first command makes the lane, whose connections begin with it; later commands go over it. */
static void wish_begin(struct session *s, const struct request_class *k, const struct wish *words) {
    struct wish *wish = memory_alloc(sizeof(*wish));
    struct request *request = request_new(s, k->command);
    struct upstream *u = s->worker->upstream;
    struct upstream_lane lane = s->lane;
    *wish = *words;
    request_own(request, &wish->owner, &request_owner_silent);
    request_barrier(request);
    text_append(&wish->command, k->bytes, k->request->len);
    if (!push_of(s)->tracking) {
        wish->fresh = tracking_new(s);
        lane.dedicated = wish->fresh->dedicated;
        upstream_dedicated_begin(u, lane.dedicated, wish->command.data, wish->command.len);
    }
    const char *bytes = wish->fresh ? lane_hello(&s->lane) : wish->command.data;
    size_t len = wish->fresh ? strlen(bytes) : wish->command.len;
    size_t masters = upstream_master_count(u);
    request->parts_left = 1; /* held here until all are asked */
    for (size_t i = 0; i < (masters > 0 ? masters : 1); i++)
        call_submit_node(call_new(request, wish_part), upstream_master(u, i), &lane, bytes, len);
    if (--request->parts_left == 0)
        wish_finish(request);
}

/* ---- the commands ----------------------------------------------------------------------------------- */

static void tracking_off(struct session *s, const struct command *c) {
    static const char no_touch[] = "*3\r\n$6\r\nCLIENT\r\n$8\r\nNO-TOUCH\r\n$2\r\nON\r\n";
    bool keeps = push_of(s)->tracking->no_touch;
    tracking_drop(s);
    if (keeps) {
        struct tracking *t = tracking_new(s);
        t->no_touch = true;
        upstream_dedicated_begin(s->worker->upstream, t->dedicated, no_touch, sizeof(no_touch) - 1);
        tracking_take(s, t);
    }
    session_answer(s, c, "+OK\r\n", 5);
}

/* Whether a client with that number exists; if it may belong to another thread, whether the number was ever given. */
static bool client_exists(const struct session *s, int64_t id) {
    const struct worker *w = s->worker;
    LIST_EACH(other, &w->sessions, struct session, link)
        if ((int64_t)other->lock.id == id)
            return true;
    return w->shared->threads > 1 && id > 0 && id <= (int64_t)atomic_load(&w->shared->next_session);
}

/* The mode that argument i names; NULL: none. */
static bool *mode_named(struct tracking_modes *modes, const struct request_class *k, size_t i) {
    return class_arg_is(k, i, "bcast")    ? &modes->bcast
           : class_arg_is(k, i, "optin")  ? &modes->optin
           : class_arg_is(k, i, "optout") ? &modes->optout
           : class_arg_is(k, i, "noloop") ? &modes->noloop
                                          : NULL;
}

/* The error in the arguments after OFF, in Redis's order, or NULL. They are the same as after ON: without effect, but
 * checked. The client of REDIRECT must exist, and no node knows the numbers of the proxy's clients. */
static const char *off_error(const struct session *s, const struct request_class *k) {
    struct tracking_modes modes;
    int64_t to = 0;
    for (size_t i = 3; i < k->request->argc; i++) {
        bool more = i + 1 < k->request->argc;
        if (class_arg_is(k, i, "redirect") && more) {
            if (to != 0)
                return "ERR A client can only redirect to a single other client";
            if (!request_arg_integer(k->request, k->bytes, ++i, &to))
                return "ERR value is not an integer or out of range";
            if (!client_exists(s, to))
                return "ERR The client ID you want redirect to does not exist";
        } else if (class_arg_is(k, i, "prefix") && more) {
            i++;
        } else if (!mode_named(&modes, k, i)) {
            return "ERR syntax error";
        }
    }
    return NULL;
}

static bool tracking(struct session *s, const struct request_class *k) {
    if (k->request->argc < 3)
        return false;
    if (class_arg_is(k, 2, "off")) {
        const char *error = off_error(s, k);
        if (error)
            session_refuse(s, k->command, "%s", error);
        else if (push_of(s)->tracking && push_of(s)->tracking->modes.on)
            tracking_off(s, k->command);
        else if (k->request->argc > 3)
            session_answer(s, k->command, "+OK\r\n", 5); /* answered here, since the number is the proxy's */
        else
            return false;
        return true;
    }
    if (!class_arg_is(k, 2, "on"))
        return false;
    struct wish wish = {.modes = {.on = true}};
    for (size_t i = 3; i < k->request->argc; i++) { /* the node reports other errors */
        if (class_arg_is(k, i, "redirect")) {
            session_refuse(s, k->command,
                           "ERR CLIENT TRACKING with REDIRECT is not supported by lockkeeper: after HELLO 3 the "
                           "messages come over the client's own connection");
            return true;
        }
        bool *mode = mode_named(&wish.modes, k, i);
        if (mode)
            *mode = true;
        else if (class_arg_is(k, i, "prefix"))
            i++;
    }
    wish_begin(s, k, &wish);
    return true;
}

static bool no_touch(struct session *s, const struct request_class *k) {
    bool on = k->request->argc == 3 && class_arg_is(k, 2, "on");
    if (k->request->argc != 3 || (!on && !push_of(s)->tracking))
        return false; /* no effect is lost on a shared connection */
    wish_begin(s, k, &(struct wish){.no_touch = on});
    return true;
}

static bool caching(struct session *s, const struct request_class *k) {
    struct tracking *t = push_of(s)->tracking;
    bool yes = k->request->argc == 3 && class_arg_is(k, 2, "yes"),
         no = k->request->argc == 3 && class_arg_is(k, 2, "no");
    if (!t || !t->modes.on || !((yes && t->modes.optin) || (no && t->modes.optout)))
        return false;
    s->before = yes ? CACHING_YES : CACHING_NO;
    t->caching_new = true;
    session_answer(s, k->command, "+OK\r\n", 5);
    return true;
}

enum dispatch_result tracking_dispatch(struct session *s, const struct request_class *k) {
    if (class_arg_is(k, 1, "trackinginfo") || class_arg_is(k, 1, "getredir"))
        return class_pass(s, k, SLOT_NONE);
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* another connection would overtake them */
    bool done = class_arg_is(k, 1, "tracking")   ? tracking(s, k)
                : class_arg_is(k, 1, "no-touch") ? no_touch(s, k)
                                                 : caching(s, k);
    return done ? DISPATCHED : class_pass(s, k, SLOT_NONE);
}

const struct session_room tracking_room = {
    .closes = tracking_drop,
    .pin_lane = tracking_pin_lane,
    .request_over = tracking_request_over,
    .before_call = tracking_before_call,
    .lock_written = tracking_lock_written,
    .tick = tracking_tick,
};
