/*
 * Requests that took long (PROXY SLOWLOG), and how long all take (PROXY LATENCY, if latency-tracking is on). A call
 * that is answered late comes here with its times, while the bytes that were sent for it are still there; with
 * latency-tracking every call is late. What may wait by its nature does not count: blocking commands, WAIT.
 */
#include "proxy/base/slowlog.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/lock_call.h"

enum { ARGUMENTS_SHOWN = 32, ARGUMENT_SHOWN = 128 }; /* as in Redis's SLOWLOG */

void slow_config(struct worker *w) {
    int64_t from_us = w->config->slowlog_slower_us;
    upstream_set_late(w->upstream, w->config->latency_tracking ? -1 : from_us < 0 ? INT64_MAX : from_us);
}

/* Appends a command as it was sent, arguments that are not one word in quotes. False: it is not whole. */
static bool append_sent(struct text *out, const char *bytes, size_t len) {
    struct resp_request r;
    bool whole = resp_request_read(&r, bytes, len) && bytes[0] == '*' && r.len == len;
    size_t shown = r.argc > ARGUMENTS_SHOWN ? ARGUMENTS_SHOWN - 1 : r.argc;
    for (size_t i = 0; whole && i < shown; i++) {
        const char *arg = bytes + r.argv[i].off;
        size_t all = r.argv[i].len, some = all > ARGUMENT_SHOWN ? ARGUMENT_SHOWN : all;
        bool quoted = all == 0 || some < all || memchr(arg, ' ', some) || memchr(arg, '"', some);
        text_append(out, " ", out->len > 0);
        text_append(out, "\"", quoted);
        for (size_t j = 0; j < some; j++) {
            text_append(out, "\\", quoted && arg[j] == '"');
            text_append_visible(out, arg + j, 1);
        }
        if (some < all)
            text_printf(out, "... (%zu more bytes)", all - some);
        text_append(out, "\"", quoted);
    }
    if (whole && shown < r.argc)
        text_printf(out, " ... (%zu more arguments)", (size_t)r.argc - shown);
    resp_request_clear(&r);
    return whole;
}

/* Writes a lock call's command and key, without the value, which says whose the lock is; takes off the time for which
 * it waited for the lock. False: the call is not timed. */
static bool lock_times(const struct worker *w, const struct lock_call *l, int64_t *took_us, struct text *command) {
    int64_t begun_us = (int64_t)((ev_now(w->loop) - l->begun) * 1e6);
    if (l->begun <= 0)
        return false;
    if (begun_us < *took_us && l->plan.rule && l->plan.rule->wait_ms > 0)
        *took_us = begun_us > 0 ? begun_us : 0;
    text_printf(command, "%s ", l->command);
    text_append_visible(command, l->key, l->plan.key.len);
    text_printf(command, " ...");
    return true;
}

static void note(const struct call *c, const struct upstream_late *late) {
    struct worker *w = c->request->worker;
    const struct session *s = c->request->session;
    const struct command *row = c->request->command;
    struct slow_request r = {.time_s = clock_wall_ms() / 1000,
                             .took_us = late->took_us,
                             .before_us = late->before_us,
                             .after_us = late->after_us,
                             .client = s->address,
                             .name = s->name ? s->name : "",
                             .node = late->node};
    struct text command = {0};
    const struct request_owner *owner = c->request->owner;
    bool runs_code = row && (row->flags & COMMAND_RUNS_CODE); /* scripts may last, too, and count */
    bool waits = owner && owner->ops->may_last && !runs_code && owner->ops->may_last(c->request);
    bool counts = c->lock ? lock_times(w, c->lock, &r.took_us, &command) : !waits;
    if (r.before_us > r.took_us - r.after_us) /* the command on a lock was tried again after it had waited */
        r.before_us = r.took_us > r.after_us ? r.took_us - r.after_us : 0;
    int64_t at_node_us = r.took_us - r.before_us - r.after_us;
    r.way_us = late->way_us < at_node_us ? late->way_us : at_node_us;
    if (counts && w->config->slowlog_slower_us >= 0 && r.took_us >= w->config->slowlog_slower_us) {
        bool hidden = row && (row->flags & COMMAND_SECRET);
        if (!c->lock && (hidden || c->up.script || !c->up.chunk || !append_sent(&command, c->up.bytes, c->up.len)))
            text_printf(&command, "%s ...",
                        row ? row->name : "?"); /* what was sent is not known, or may not be shown */
        r.command = command.data;
        slowlog_add(w->shared->slowlog, &r, (size_t)w->config->slowlog_max);
    }
    text_clear(&command);
    if (!counts || !w->config->latency_tracking)
        return;
    latency_note(w->shared->latency, LATENCY_COMMANDS, row ? row->name : "(unknown)", r.took_us);
    latency_note(w->shared->latency, LATENCY_CLIENTS, *r.name ? r.name : "(no name)", r.took_us);
}

void slow_note(const struct call *c, const struct upstream_late *late) {
    if (c->request->session)
        note(c, late);
    if (!c->lock)
        return;
    LIST_EACH(joined, &c->lock->joined, const struct lock_call, link)
        if (joined->call->request->session)
            note(joined->call, late);
}
