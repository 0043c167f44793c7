/*
 * The commands CLIENT TRACKING, CACHING and NO-TOUCH: the client's wish, and whether all masters accept it.
 *
 *      words ──> wish ──> all masters ──> OK: the session gets the lane
 *                                   └──> the first error, and nothing changes
 */
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/push/private.h"

/* A change that the nodes are asked to accept. */
struct wish {
    struct request_owner owner; /* first */
    struct tracking *fresh;     /* the session gets it if they accept; NULL: it already has a lane */
    struct tracking_modes modes;
    bool no_touch;
    struct request *request;
    struct text command;
    struct text error; /* the first one */
};

/* ---- asking the nodes ------------------------------------------------------------------------------ */

static void wish_granted(struct session *s, struct wish *wish) {
    if (wish->fresh)
        tracking_take(s, wish->fresh);
    else
        upstream_dedicated_begin(s->worker->upstream, s->lane.dedicated, wish->command.data, wish->command.len);
    wish->fresh = NULL;
    struct tracking *t = push_of(s)->tracking;
    t->no_touch = t->no_touch || wish->no_touch;
    if (wish->modes.on)
        t->modes = wish->modes;
    tracking_hears(s);
}

static void wish_finish(struct request *r) {
    struct wish *wish = REQUEST_OWNER(r, struct wish);
    request_disown(r);
    bool granted = wish->error.len == 0;
    if (granted && r->session)
        wish_granted(r->session, wish);
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

/* The first command makes the lane, whose connections begin with it; later commands are sent over the lane
 * unchanged. */
static void ask_nodes(struct wish *wish) {
    struct request *request = wish->request;
    struct session *s = request->session;
    struct upstream *u = s->worker->upstream;
    struct upstream_lane lane = s->lane;
    if (!push_of(s)->tracking) {
        wish->fresh = tracking_new(s);
        lane.dedicated = wish->fresh->dedicated;
        upstream_dedicated_begin(u, lane.dedicated, wish->command.data, wish->command.len);
    }
    const char *bytes = wish->fresh ? session_hello(s) : wish->command.data;
    size_t len = wish->fresh ? strlen(bytes) : wish->command.len;
    size_t masters = upstream_master_count(u);
    request->parts_left = 1; /* held here until all are asked */
    for (size_t i = 0; i < (masters > 0 ? masters : 1); i++)
        call_submit_master_lane(call_new(request, wish_part), i, &lane, bytes, len);
    if (--request->parts_left == 0)
        wish_finish(request);
}

static void wish_begin(struct session *s, const struct command *c, const struct wish *words, const char *bytes,
                       size_t len) {
    struct wish *wish = memory_alloc(sizeof(*wish));
    *wish = *words;
    wish->request = request_new(s, c);
    request_own(wish->request, &wish->owner, &request_owner_silent);
    request_barrier(wish->request);
    text_append(&wish->command, bytes, len);
    ask_nodes(wish);
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

/* Whether a client with that number exists. Clients of other threads can't be checked: they count as existing if the
 * number was ever given. */
static bool client_exists(const struct session *s, int64_t id) {
    const struct worker *w = s->worker;
    LIST_FOREACH(it, &w->sessions)
    if ((int64_t)LIST_ENTRY(it, struct session, link)->lock.id == id)
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
            size_t len;
            if (to != 0)
                return "ERR A client can only redirect to a single other client";
            const char *number = class_arg(k, ++i, &len);
            if (!resp_integer(number, len, &to))
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

/* Reads the arguments after ON; the node reports errors in them. False: there is a REDIRECT. */
static bool words_read(const struct request_class *k, struct tracking_modes *modes) {
    for (size_t i = 3; i < k->request->argc; i++) {
        if (class_arg_is(k, i, "redirect"))
            return false;
        bool *mode = mode_named(modes, k, i);
        if (mode)
            *mode = true;
        else if (class_arg_is(k, i, "prefix"))
            i++;
    }
    return true;
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
    if (words_read(k, &wish.modes))
        wish_begin(s, k->command, &wish, k->bytes, k->request->len);
    else
        session_refuse(s, k->command,
                       "ERR CLIENT TRACKING with REDIRECT is not supported by lockkeeper: after HELLO 3 the messages "
                       "come over the client's own connection");
    return true;
}

static bool no_touch(struct session *s, const struct request_class *k) {
    bool on = k->request->argc == 3 && class_arg_is(k, 2, "on");
    if (k->request->argc != 3 || (!on && !push_of(s)->tracking))
        return false; /* no effect is lost on a shared connection */
    wish_begin(s, k->command, &(struct wish){.no_touch = on}, k->bytes, k->request->len);
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
    if (class_arg_is(k, 1, "trackinginfo") || class_arg_is(k, 1, "getredir")) {
        class_pass(s, k, SLOT_NONE);
        return DISPATCHED;
    }
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* another connection would overtake them */
    bool done = false;
    if (class_arg_is(k, 1, "tracking"))
        done = tracking(s, k);
    else if (class_arg_is(k, 1, "no-touch"))
        done = no_touch(s, k);
    else
        done = caching(s, k);
    if (!done)
        class_pass(s, k, SLOT_NONE);
    return DISPATCHED;
}
