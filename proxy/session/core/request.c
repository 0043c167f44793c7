/*
 * Request slots and calls: replies leave in the order of the slots. A reply's bytes go straight to the session's output
 * while its request is the first in the queue; otherwise they wait in the request's own call. Knows no commands.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/private.h"

enum { FREE_REQUESTS_MAX = 4096, FREE_CALLS_MAX = 4096, ERROR_MAX = 1024, HELD_NOTICED = 64 * 1024 };

/* ---- held bytes -------------------------------------------------------------------------------- */

static __attribute__((noinline)) void call_hold_more(struct call *c, const char *data, size_t len) {
    size_t need = c->held_len + len;
    char *to = c->held_big ? c->held_big : c->held;
    if (need > (c->held_big ? c->held_cap : sizeof(c->held))) {
        size_t cap = need < 512 ? 512 : need + need / 2;
        char *big = memory_realloc(c->held_big, cap);
        if (!c->held_big)
            memcpy(big, c->held, c->held_len);
        c->held_big = to = big;
        c->held_cap = cap;
    }
    memcpy(to + c->held_len, data, len);
    c->held_len = need;
}

static inline void call_hold(struct call *c, const char *data, size_t len) {
    if (c->held_len > 0 || len > sizeof(c->held)) {
        call_hold_more(c, data, len);
        return;
    }
    memcpy(c->held, data, len);
    c->held_len = len;
}

static void call_drop_held(struct call *c) {
    if (c->held_big) {
        memory_free(c->held_big);
        c->held_big = NULL;
        c->held_cap = 0;
    }
    c->held_len = 0;
}

/* ---- requests ---------------------------------------------------------------------------------- */

/* Resets memory to the state of a call that was given back. */
static void call_blank(struct call *c) {
    list_init(&c->link);
    c->held_len = c->held_cap = 0;
    c->held_big = NULL;
}

/* Allocates a request in the state of one that was given back. */
static __attribute__((noinline)) struct request *request_blank(struct worker *w) {
    struct request *r = memory_alloc(sizeof(*r));
    list_init(&r->parts);
    r->worker = w;
    call_blank(&r->call);
    return r;
}

static inline struct request *request_take(struct worker *w, struct session *s, const struct command *command) {
    struct list_node *n = stack_pop(&w->free_requests);
    struct request *r = n ? LIST_ENTRY(n, struct request, link) : request_blank(w);
    w->free_request_count -= n != NULL;
    r->session = s;
    r->command = command;
    r->done = r->started = r->redirected = r->close_after = r->ends_barrier = r->silent = false;
    r->busy = 0;
    r->parts_left = 0;
    r->bytes = 0;
    r->owner = NULL;
    call_init(&r->call, r, NULL);
    return r;
}

/* LONG_LASTS: how many seconds a session counts as one with long replies. LONG_BURST, LONG_ALONE: from how many bytes
 * of replies on; with other requests of the session in flight, and without. */
static const double LONG_LASTS = 10.;
enum { LONG_BURST = 256 * 1024, LONG_ALONE = 4 * 1024 * 1024 };

/* Moves a session, which has no request in flight, to or from the connection for long replies. */
static __attribute__((noinline)) void session_choose_long(struct session *s) {
    invariant(s->in_flight == 0, "%u requests are in flight on the other connection", s->in_flight);
    s->long_replies = ev_now(s->worker->loop) - s->long_at < LONG_LASTS;
    s->window = s->long_replies ? SESSION_WINDOW_LONG : SESSION_WINDOW;
    if (s->long_replies && s->apart == UPSTREAM_TOGETHER && s->lane.dedicated == 0)
        s->apart = UPSTREAM_LONG;
}

/* Notes a part of a long reply. Once a session's replies are known to be long, other sessions use another connection,
 * and later this session does, too. So another session waits at most for the replies of one window. */
static __attribute__((noinline)) void session_note_long(struct session *s, const struct request *r, size_t len) {
    s->burst += len;
    if (s->burst < LONG_BURST || (s->in_flight < 2 && s->burst < LONG_ALONE))
        return;
    s->long_at = ev_now(s->worker->loop);
    if (s->long_replies)
        return;
    s->long_replies = true;
    s->window = 0;
    if (s->requests.next == &r->link)
        upstream_set_apart(&LIST_ENTRY(s->requests.next, struct request, link)->call.up);
}

static __attribute__((noinline)) void session_tell_next(struct session *s) {
    ROOMS_CALL(s->worker, request_next, s);
}

/* A script may run for any time, so it has a connection of its own, and other sessions don't wait behind it: the node
 * answers them with BUSY, and receives SCRIPT KILL. The session's requests after the script stay behind it. A session
 * that tracks keys already has its own connection, and the node must see its reads and writes on the same one. */
inline struct request *request_new(struct session *s, const struct command *command) {
    if (s->in_flight == 0) {
        bool script = command && (command->flags & COMMAND_RUNS_CODE) && s->lane.dedicated == 0;
        s->apart = script ? UPSTREAM_SCRIPTS : UPSTREAM_TOGETHER;
        s->burst = 0;
        if (s->long_replies)
            session_choose_long(s);
    } else if (s->hears & HEARS_NEXT) {
        session_tell_next(s);
    }
    struct request *r = request_take(s->worker, s, command);
    invariant_debug(s->state != SESSION_CLOSED, "a closed session sends a request");
    r->muted = s->reply_mode != REPLY_ON;
    list_append(&s->requests, &r->link);
    s->in_flight++;
    return r;
}

struct request *request_internal(struct worker *w, call_done_fn done) {
    struct request *r = request_take(w, NULL, NULL);
    list_init(&r->link);
    r->call.done = done;
    return r;
}

void request_barrier(struct request *r) {
    invariant(r->session, "a request without a session is a barrier");
    if (r->ends_barrier)
        return;
    r->ends_barrier = true;
    invariant(r->session->barrier < UINT8_MAX, "%d barriers", r->session->barrier);
    r->session->barrier++;
}

static void owner_free(struct request_owner *owner) {
    memory_free(owner);
}

const struct request_owner_ops request_owner_silent, request_owner_freed = {.free = owner_free};

void request_keep(struct request *r, const char *bytes, size_t len) {
    struct request_kept *kept = memory_alloc(sizeof(*kept) + len + 1);
    kept->len = len;
    memcpy(kept->bytes, bytes, len);
    kept->bytes[len] = '\0';
    request_own(r, &kept->owner, &request_owner_freed);
}

static __attribute__((noinline)) void request_free_more(struct request *r) {
    struct request_owner *owner = r->owner;
    r->owner = NULL;
    if (owner && owner->ops->free)
        owner->ops->free(owner);
    for (struct call *part; (part = LIST_SHIFT(&r->parts, struct call, link));)
        call_release(r->worker, part);
}

static inline void request_free(struct request *r) {
    invariant_debug(!r->call.up.in_flight, "a request is freed while its call is in flight");
    struct worker *w = r->worker;
    if (!list_empty(&r->parts) || r->owner)
        request_free_more(r);
    call_drop_held(&r->call);
    list_cut(&r->link);
    if (w->free_request_count < FREE_REQUESTS_MAX) {
        stack_push(&w->free_requests, &r->link);
        w->free_request_count++;
    } else {
        memory_free(r);
    }
}

void request_pools_shrink(struct worker *w) {
    struct list_node *n;
    for (size_t left = w->free_request_count / 2; w->free_request_count > left; w->free_request_count--)
        if ((n = stack_pop(&w->free_requests)))
            memory_free(LIST_ENTRY(n, struct request, link));
    for (size_t left = w->free_call_count / 2; w->free_call_count > left; w->free_call_count--)
        if ((n = list_shift(&w->free_calls)))
            memory_free(LIST_ENTRY(n, struct call, link));
}

static __attribute__((noinline)) void request_unbusy(struct request *r) {
    invariant_debug(!r->session || r->busy == BUSY_ALL || r->busy <= BUSY_PLACES, "busy slot %d", r->busy);
    if (r->session) {
        invariant_debug((r->busy == BUSY_ALL ? r->session->busy_all : r->session->busy[r->busy - 1]) > 0,
                        "busy slot %d has no command", r->busy);
        if (r->busy == BUSY_ALL)
            r->session->busy_all--;
        else
            r->session->busy[r->busy - 1]--;
        if (r->session->input)
            session_mark_runnable(r->session);
    }
    r->busy = 0;
}

void request_park(struct request *r) {
    struct session *s = r->session;
    invariant(s && !r->owner && s->in_flight == 1 && !r->call.up.in_flight && !r->done,
              "a request is parked beside %u others", s ? s->in_flight : 0);
    invariant(s && s->in_flight_bytes >= r->bytes, "%zu bytes in flight of a request of %zu",
              s ? s->in_flight_bytes : 0, r->bytes);
    if (r->busy)
        request_unbusy(r);
    s->in_flight_bytes -= r->bytes;
    if (r->redirected)
        s->redirected--;
    if (r->ends_barrier)
        s->barrier--;
    request_free(r);
}

struct request *request_unpark(struct session *s, const struct command *command) {
    invariant(s->in_flight == 1 && list_empty(&s->requests), "%u requests are in flight beside it", s->in_flight);
    struct request *r = request_take(s->worker, s, command);
    r->muted = false;
    list_append(&s->requests, &r->link);
    return r;
}

/* Releases what the head of the queue has delayed. False: the session ends after it. */
static __attribute__((noinline)) bool head_ends_specially(struct session *s, struct request *r) {
    invariant(!r->redirected || s->redirected > 0, "no request of the session is redirected");
    invariant(!r->ends_barrier || s->barrier > 0, "the session waits for no barrier");
    bool close_after = r->close_after;
    if (r->redirected)
        s->redirected--;
    if (r->ends_barrier)
        s->barrier--;
    if (s->input)
        session_mark_runnable(s);
    request_free(r);
    session_reply_over(s);
    if (close_after)
        session_finish(s);
    return !close_after;
}

/* Removes the head, which is done, from the queue. False: the session ends after it. */
static inline bool head_ends(struct session *s, struct request *r) {
    invariant_debug(s->in_flight > 0 && s->in_flight_bytes >= r->bytes, "%u requests, %zu bytes of %zu", s->in_flight,
                    s->in_flight_bytes, r->bytes);
    s->in_flight--;
    s->in_flight_bytes -= r->bytes;
    uintptr_t special = (uintptr_t)s->input | (uintptr_t)s->held | (s->hears & (HEARS_REPLY | HEARS_WRITTEN));
    if (special | r->redirected | r->ends_barrier | r->close_after)
        return head_ends_specially(s, r);
    request_free(r);
    return true;
}

/* Whether the head has bytes to move to the output. */
static inline bool head_waits(const struct session *s) {
    const struct list_node *n = s->requests.next;
    const struct request *r = LIST_ENTRY(n, struct request, link);
    return n != &s->requests && (r->done || r->call.held_len > 0);
}

/* Moves the replies of all finished requests, from the head on, to the output. */
static __attribute__((noinline)) void session_release_done(struct session *s) {
    for (struct request *r; (r = LIST_FIRST(&s->requests, struct request, link));) {
        /* The bytes held by a call with a `done` function are not part of the reply. */
        if (r->call.held_len > 0 && (r->done || !r->call.done)) {
            iobuf_append(&s->out, r->call.held_big ? r->call.held_big : r->call.held, r->call.held_len);
            invariant(s->held_bytes >= r->call.held_len, "%zu bytes are held of %zu", s->held_bytes, r->call.held_len);
            s->held_bytes -= r->call.held_len;
            r->started = true;
            call_drop_held(&r->call);
        }
        if (!r->done || !head_ends(s, r))
            return;
    }
}

/* Keeps a reply until its turn. */
static __attribute__((noinline)) void request_hold(struct request *r, const char *data, size_t len) {
    invariant_debug(r->session, "a reply without a session is kept");
    struct session *s = r->session;
    call_hold(&r->call, data, len);
    s->held_bytes += len;
    if (s->held_bytes >= HELD_NOTICED) /* the flush checks its limits */
        session_mark_dirty(s);
}

inline void request_reply(struct request *r, const char *data, size_t len, bool last) {
    struct session *s = r->session;
    invariant_debug(!s || !r->done, "a request is answered twice");
    if (last) {
        if (r->busy)
            request_unbusy(r);
        r->done = true;
    } else if (s && !r->muted) {
        session_note_long(s, r, len);
    }
    if (!s) {
        if (last)
            request_free(r);
        return;
    }
    if (r->muted)
        len = 0;
    if (s->requests.next == &r->link) {
        iobuf_append(&s->out, data, len);
        r->started = !r->muted;
        if (!session_is_dirty(s))
            session_mark_dirty(s);
        if (last && head_ends(s, r) && head_waits(s))
            session_release_done(s);
        return;
    }
    request_hold(r, data, len);
}

void request_error(struct request *r, const char *error) {
    char line[ERROR_MAX];
    int n = snprintf(line, sizeof(line) - 2, "-%s", error);
    size_t len = n < (int)sizeof(line) - 3 ? (size_t)n : sizeof(line) - 3;
    memcpy(line + len, "\r\n", 2);
    request_reply(r, line, len + 2, true);
}

void request_fail(struct request *r, const char *error) {
    counter_add(&r->worker->counters.requests_failed, 1);
    struct session *s = r->session;
    if (r->started && s) {
        session_close(s, "a node was lost in the middle of a reply");
        s = NULL;
    }
    if (!s) { /* closing has removed the session from the request */
        request_reply(r, "", 0, true);
        return;
    }
    s->held_bytes -= r->call.held_len;
    call_drop_held(&r->call);
    request_error(r, error);
}

void call_answer(struct call *c, const struct call_end *end) {
    if (end->error)
        request_fail(c->request, end->error);
    else
        request_reply(c->request, end->reply, end->len, true);
}

void call_swallow(struct call *c, const struct call_end *end) {
    request_reply(c->request, "", 0, true);
}

/* ---- answers without a node ------------------------------------------------------------------------ */

enum dispatch_result session_answer(struct session *s, const struct command *c, const char *reply, size_t len) {
    counter_add(&s->worker->counters.requests_local, 1);
    if (s->reply_mode != REPLY_ON)
        return DISPATCHED;
    if (list_empty(&s->requests)) { /* no reply is due before it, so it needs no slot */
        iobuf_append(&s->out, reply, len);
        session_mark_dirty(s);
        return DISPATCHED;
    }
    request_reply(request_new(s, c), reply, len, true);
    return DISPATCHED;
}

enum dispatch_result session_answer_text(struct session *s, const struct command *c, struct text *reply) {
    session_answer(s, c, reply->data, reply->len);
    text_clear(reply);
    return DISPATCHED;
}

enum dispatch_result session_refuse(struct session *s, const struct command *c, const char *format, ...) {
    struct text line = {0};
    va_list args;
    va_start(args, format);
    text_append(&line, "-", 1);
    text_vprintf(&line, format, args);
    va_end(args);
    size_t len = line.len;
    while (len > 1 &&
           (line.data[len - 1] == '\r' || line.data[len - 1] == '\n')) /* from an argument; Redis does the same */
        len--;
    line.len = len;
    for (size_t i = 1; i < len; i++)
        if (line.data[i] == '\r' || line.data[i] == '\n')
            line.data[i] = ' ';
    text_append(&line, "\r\n", 2);
    return session_answer_text(s, c, &line);
}

/* ---- calls ------------------------------------------------------------------------------------- */

static void call_fail(struct upstream_request *up, enum upstream_failure why, const char *error) {
    struct call *c = (struct call *)(void *)up;
    char copy[ERROR_MAX]; /* the upstream's text may be overwritten meanwhile */
    snprintf(copy, sizeof(copy), "%s", error);
    if (!c->done) {
        request_fail(c->request, copy);
        return;
    }
    call_drop_held(c);
    struct call_end end = {.error = copy, .why = why};
    c->done(c, &end);
}

/* Limits the memory for a reply to a lock's script: if the reply is too long, the bytes so far are dropped. */
static __attribute__((noinline)) bool call_overruns(struct call *c, size_t len, bool last) {
    int64_t most = c->request->worker->config->bulk_max;
    if (most < COLLECTED_LEAST)
        most = COLLECTED_LEAST;
    if (!c->overrun && (!c->lock || (int64_t)(c->held_len + len) <= most))
        return false;
    call_drop_held(c);
    c->overrun = !last;
    if (last)
        call_fail(&c->up, UPSTREAM_UNKNOWN,
                  "UPSTREAM the node's answer to a lock's script is too long; it may have run");
    return true;
}

/* Collects a reply for a `done` function. */
static __attribute__((noinline)) void call_collect(struct call *c, const char *data, size_t len, bool last) {
    invariant_debug(c->done && !c->up.in_flight + !last > 0, "a call ends while it is in flight");
    bool whole = last && c->held_len == 0;
    if ((!whole || c->overrun) && call_overruns(c, len, last))
        return;
    if (!last || c->held_len > 0)
        call_hold(c, data, len);
    if (!last)
        return;
    struct call_end end = {.reply = data, .len = len};
    if (c->held_len == 0) {
        c->done(c, &end);
        return;
    }
    /* `done` may free the call with its request, so the bytes are moved out of it first. */
    char small[CALL_INLINE];
    char *big = c->held_big;
    end.len = c->held_len;
    if (!big)
        memcpy(small, c->held, c->held_len);
    end.reply = big ? big : small;
    c->held_big = NULL;
    c->held_len = c->held_cap = 0;
    c->done(c, &end);
    memory_free(big);
}

static void call_reply(struct upstream_request *up, const char *data, size_t len, bool last) {
    struct call *c = (struct call *)(void *)up;
    if (c->done)
        call_collect(c, data, len, last);
    else
        request_reply(c->request, data, len, last);
}

static void call_redirected(struct upstream_request *up) {
    struct request *r = ((struct call *)(void *)up)->request;
    if (r->session && !r->redirected) {
        r->redirected = true;
        r->session->redirected++;
    }
}

/* Whether the request was sent to the slot, or writes to all slots (FLUSHALL). */
static bool request_uses_slot(const struct request *r, int slot) {
    bool everywhere = r->command && (r->command->flags & COMMAND_WRITE);
    if (r->call.up.in_flight && (r->call.up.slot == slot || (r->call.up.slot < 0 && everywhere)))
        return true;
    LIST_EACH(part, &r->parts, const struct call, link)
        if (part->up.slot == slot || (part->up.slot < 0 && everywhere))
            return true;
    return false;
}

/* Whether a call may wait, although later requests would overtake it. Lock scripts may: commands on their keys wait for
 * them. An application's script may be overtaken by the step after it, which waits as well, or finds nothing. */
static bool call_may_wait(const struct upstream_request *up) {
    const struct call *c = (const struct call *)(const void *)up;
    const struct request *r = c->request;
    if (!r->session || c->lock || up->slot < 0)
        return true;
    for (struct list_node *n = r->link.next; n != &r->session->requests; n = n->next) {
        const struct request *behind = LIST_ENTRY(n, struct request, link);
        if (!behind->silent && request_uses_slot(behind, up->slot))
            return false;
    }
    return true;
}

/* Whether a call may take long. A script may run for any time; meanwhile its node also ends no blocking command. */
static bool call_may_last(const struct upstream_request *up) {
    const struct request *r = ((const struct call *)(const void *)up)->request;
    if (r->command && (r->command->flags & COMMAND_RUNS_CODE))
        return true;
    return r->owner && r->owner->ops->may_last && r->owner->ops->may_last(r);
}

static bool call_pointless(const struct upstream_request *up) {
    const struct request *r = ((const struct call *)(const void *)up)->request;
    return r->owner && r->owner->ops->pointless && r->owner->ops->pointless(r);
}

void call_late(const struct upstream_request *up, const struct upstream_late *late) {
    const struct call *c = (const struct call *)(const void *)up;
    c->request->worker->hooks->late(c, late);
}

static const struct upstream_request_ops call_ops = {
    .reply = call_reply,
    .fail = call_fail,
    .redirected = call_redirected,
    .may_wait = call_may_wait,
    .may_last = call_may_last,
    .pointless = call_pointless,
    .late = call_late,
};

void call_init(struct call *c, struct request *r, call_done_fn done) {
    c->up.ops = &call_ops; /* EXEC has others */
    c->up.script = NULL;
    c->up.slot = 0;
    c->up.begun_us = INT64_MAX;
    c->up.repeatable = c->up.in_flight = false;
    c->up.affinity = r->session ? (uint32_t)r->session->lock.id : 0;
    c->up.apart = r->session ? r->session->apart : UPSTREAM_TOGETHER;
    c->request = r;
    c->done = done;
    c->lock = NULL;
    c->overrun = false;
    c->index = c->count = 0;
}

struct call *call_new(struct request *r, call_done_fn done) {
    struct worker *w = r->worker;
    struct call *c;
    if (w->free_call_count > 0) {
        c = LIST_ENTRY(list_shift(&w->free_calls), struct call, link);
        w->free_call_count--;
    } else {
        c = memory_alloc(sizeof(*c));
        call_blank(c);
    }
    call_init(c, r, done);
    list_append(&r->parts, &c->link);
    r->parts_left++;
    return c;
}

void call_release(struct worker *w, struct call *c) {
    invariant(!c->up.in_flight, "a call is released while it is in flight");
    call_drop_held(c);
    list_remove(&c->link);
    if (w->free_call_count < FREE_CALLS_MAX) {
        list_prepend(&w->free_calls, &c->link);
        w->free_call_count++;
    } else {
        memory_free(c);
    }
}

/* Finds the call that must go over the same connection right before `c`; NULL: none. */
static struct call *call_before(struct session *s, struct call *c, const char **bytes, size_t *len) {
    struct call *before = NULL;
    if (!s || !(s->hears & HEARS_CALL))
        return NULL;
    for (const struct session_room *const *room = s->worker->hooks->rooms; !before && *room; room++)
        if ((*room)->before_call)
            before = (*room)->before_call(s, c, bytes, len);
    return before;
}

/* Ends a call that could not be queued; error NULL: it is on its way. */
static inline void submitted(struct call *c, const char *error) {
    if (error)
        call_fail(&c->up, UPSTREAM_NOT_SENT, error);
}

static __attribute__((noinline)) void submit_before(struct call *c, int slot, const struct upstream_lane *lane) {
    const char *bytes;
    size_t len;
    struct call *before = call_before(c->request->session, c, &bytes, &len);
    if (before)
        submitted(before, upstream_submit(c->request->worker->upstream, &before->up, slot, lane, bytes, len));
}

static inline void note_submit(struct call *c, int slot, const struct upstream_lane *lane, size_t len) {
    struct request *r = c->request;
    if (r->session) {
        r->bytes += len;
        r->session->in_flight_bytes += len;
        c->up.begun_us = r->session->active_us;
        session_uses(r->session, slot);
    }
    if (lane->dedicated)
        submit_before(c, slot, lane);
}

void call_submit_together(struct call *c, uint8_t leading, int slot, const char *bytes, size_t len) {
    const struct upstream_lane *lane = &c->request->session->lane;
    note_submit(c, slot, lane, len);
    c->up.leading = leading;
    submitted(c, upstream_submit_batch(c->request->worker->upstream, &c->up, slot, lane, bytes, len));
}

inline void call_submit_lane(struct call *c, int slot, const struct upstream_lane *lane, const char *bytes,
                             size_t len) {
    invariant_debug(!c->up.in_flight, "a call is submitted twice");
    note_submit(c, slot, lane, len);
    submitted(c, upstream_submit(c->request->worker->upstream, &c->up, slot, lane, bytes, len));
}

const char *call_end_error(const struct call_end *end, size_t *len) {
    bool replied = !end->error && end->len > 1 && end->reply[0] == '-';
    const char *error = end->error ? end->error : replied ? end->reply + 1 : NULL;
    *len = error ? strcspn(error, "\r\n") : 0;
    return error;
}

void call_submit_login(struct call *c, uint32_t login) {
    submitted(c, upstream_submit_login(c->request->worker->upstream, &c->up, login));
}

inline void call_submit(struct call *c, int slot, const char *bytes, size_t len) {
    call_submit_lane(c, slot, &c->request->session->lane, bytes, len);
}

bool call_submit_read(struct call *c, int slot, const char *bytes, size_t len) {
    invariant_debug(!c->up.in_flight, "a call is submitted twice");
    bool replica;
    const struct request *r = c->request;
    note_submit(c, slot, &r->session->lane, len);
    submitted(c, upstream_submit_read(r->worker->upstream, &c->up, slot, &r->session->lane, bytes, len, &replica));
    return replica;
}

void call_submit_pin(struct call *c, struct upstream_pin *pin, const char *bytes, size_t len, bool asking) {
    struct session *s = c->request->session;
    const char *words;
    size_t words_len;
    struct call *before = call_before(s, c, &words, &words_len);
    if (before && upstream_pin_submit(pin, &before->up, words, words_len, false))
        request_reply(before->request, "", 0, true);
    c->up.begun_us = s ? s->active_us : INT64_MAX;
    const char *error = upstream_pin_submit(pin, &c->up, bytes, len, asking);
    if (error)
        c->up.ops->fail(&c->up, UPSTREAM_NOT_SENT, error);
}

void call_submit_master(struct call *c, size_t master, const char *bytes, size_t len) {
    invariant(c->request->session, "a call of the proxy's own has no lane");
    struct upstream_node *node = upstream_master(c->request->worker->upstream, master);
    call_submit_node(c, node, &c->request->session->lane, bytes, len);
}

void call_submit_node(struct call *c, struct upstream_node *node, const struct upstream_lane *lane, const char *bytes,
                      size_t len) {
    if (c->request->session) {
        c->request->session->used_slots = UINT64_MAX;
        c->up.begun_us = c->request->session->active_us;
    }
    submitted(c, node ? upstream_submit_to(c->request->worker->upstream, &c->up, node, lane, bytes, len)
                      : "UPSTREAM no master is known; the request was not sent");
}
