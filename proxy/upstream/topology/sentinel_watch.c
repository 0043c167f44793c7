/*
 * Subscriptions to Sentinels: one connection to each, for +switch-master. A lost connection is opened again, later each
 * time, with jitter. sentinel.c finds out what has changed after an announcement.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/control.h"
#include "proxy/upstream/topology/private.h"

enum { AGAIN_FIRST_MS = 200, AGAIN_LONGEST_MS = 10 * 1000 };

static void set_timer(struct sentinel_watch *w, int64_t ms) {
    struct ev_loop *loop = w->sentinel->topology.u->loop;
    ev_timer_stop(loop, &w->timer);
    ev_timer_set(&w->timer, (double)ms / 1000, 0.);
    ev_timer_start(loop, &w->timer);
}

static void watch_lost(struct sentinel_watch *w, const char *reason) {
    invariant(!w->ctx && !w->lookup, "a subscription is lost that is being opened");
    struct upstream *u = w->sentinel->topology.u;
    int64_t wait = AGAIN_FIRST_MS;
    for (unsigned i = 0; i < w->failures && wait < AGAIN_LONGEST_MS; i++)
        wait *= 2;
    if (w->failures++ == 0)
        log_notice("No subscription to Sentinel %s:%d: %s", w->at.host, w->at.port, reason);
    w->subscribed = false;
    set_timer(w, upstream_jitter(u, wait < AGAIN_LONGEST_MS ? wait : AGAIN_LONGEST_MS));
}

static void watch_drop(struct sentinel_watch *w) {
    redisAsyncContext *ctx = w->ctx;
    w->ctx = NULL;
    resolve_cancel(w->lookup);
    w->lookup = NULL;
    if (ctx)
        redisAsyncFree(ctx);
}

static void watch_next(struct sentinel_watch *w, const char *reason);

/* Whether a message is about our master: "NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT". */
static bool names_ours(const struct sentinel_watch *w, const redisReply *message) {
    const char *name = w->sentinel->topology.u->config->sentinel_name;
    size_t len = strlen(name);
    return message->type == REDIS_REPLY_STRING && strncmp(message->str, name, len) == 0 && message->str[len] == ' ';
}

static void on_message(redisAsyncContext *ctx, void *data, void *arg) {
    struct sentinel_watch *w = arg;
    const redisReply *reply = data;
    if (w->ctx != ctx)
        return; /* the connection was dropped before */
    if (!reply) {
        w->ctx = NULL; /* hiredis frees it after this call */
        watch_next(w, control_error(ctx));
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || reply->element[0]->type != REDIS_REPLY_STRING)
        return;
    if (strcmp(reply->element[0]->str, "subscribe") == 0) {
        ev_timer_stop(w->sentinel->topology.u->loop, &w->timer);
        w->subscribed = true;
        invariant(w->ctx == ctx, "another connection subscribes");
        found_take(&w->found, NULL); /* if the connection is lost, the name is looked up anew */
        if (w->failures > 0)         /* an announcement may have been missed while there was no subscription */
            topology_now(&w->sentinel->topology);
        w->failures = 0;
    } else if (names_ours(w, reply->element[2])) {
        sentinel_switched(w->sentinel, &w->at);
    }
}

/* Connects to the next address of the Sentinel. If none is left, the subscription counts as lost, for `reason`. */
static void watch_next(struct sentinel_watch *w, const char *reason) {
    invariant(!w->ctx && !w->lookup, "a Sentinel has two connections");
    struct upstream *u = w->sentinel->topology.u;
    const char *number;
    char why[REASON_MAX];
    snprintf(why, sizeof(why), "%s", reason);
    while ((number = found_next(&w->found))) {
        w->ctx = control_connect(u, &w->at, number, why, sizeof(why));
        if (!w->ctx)
            continue;
        topology_login(&w->sentinel->topology, w->ctx, UPSTREAM_OWN_SENTINELS, false);
        set_timer(w, u->connect_ms);
        redisAsyncCommand(w->ctx, on_message, w, "SUBSCRIBE " CONTROL_CHANNEL);
        return;
    }
    watch_lost(w, why);
}

static void on_found(void *arg, const struct addrinfo *found, const char *error) {
    struct sentinel_watch *w = arg;
    w->lookup = NULL;
    found_take(&w->found, found);
    watch_next(w, error ? error : "its name has no address");
}

static void on_timer(struct ev_loop *loop, ev_timer *timer, int revents) {
    struct sentinel_watch *w = timer->data;
    if (w->lookup) {
        watch_drop(w);
        watch_lost(w, "the name server does not answer");
    } else if (w->ctx) {
        watch_drop(w);
        watch_next(w, "it does not answer");
    } else if (resolve_is_number(w->at.host)) {
        found_number(&w->found, w->at.host);
        watch_next(w, "");
    } else {
        set_timer(w, w->sentinel->topology.u->connect_ms);
        w->lookup = resolve_start(loop, w->at.host, w->at.port, on_found, w);
    }
}

struct sentinel_watch *watch_new(struct sentinel *s, const struct address *at) {
    struct sentinel_watch *w = memory_zalloc(sizeof(*w));
    w->sentinel = s;
    w->at = *at;
    ev_timer_init(&w->timer, on_timer, 0., 0.);
    w->timer.data = w;
    ev_timer_start(s->topology.u->loop, &w->timer);
    return w;
}

void watch_free(struct sentinel_watch *w) {
    ev_timer_stop(w->sentinel->topology.u->loop, &w->timer);
    watch_drop(w);
    memory_free(w);
}

const char *watch_state(const struct sentinel_watch *w) {
    if (w->subscribed)
        return "up";
    return w->failures > 0 ? "down" : "connecting";
}
