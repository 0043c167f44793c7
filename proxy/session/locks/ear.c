/*
 * Releases at other proxies. Who waits leaves a mark in the guard record (acquire.lua), and a release at another proxy
 * that finds it there says so (release.lua):
 *
 *      PUBLISH lockkeeper-freed "PROCESS DB KEY" ──> each proxy where somebody waits ──┬─ PROCESS: the first one tries
 *                                                                                     └─ others: a little later
 *
 * PROCESS is the proxy whose mark it is, where somebody has waited longest. Each thread has a connection of its own for
 * that, from when somebody has first waited there. A message that is lost costs a moment: those who wait ask every 100
 * ms.
 */
#include <stdlib.h>
#include <string.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/private.h"

static const char SUBSCRIBE[] = "*2\r\n$9\r\nSUBSCRIBE\r\n$16\r\nlockkeeper-freed\r\n";

static const double AGAIN_SECONDS = 1.0;

struct ear {
    struct worker *worker;
    struct upstream_pin *pin; /* NULL: there is none now */
    double tried;             /* when it was opened last, by the loop's clock */
    struct text message;      /* that has come in part */
};

/* Takes what was said: "PROCESS DB KEY". */
static void ear_heard(const struct ear *ear, const char *text, size_t len) {
    struct worker *w = ear->worker;
    const char *end = text + len, *db = memchr(text, ' ', len);
    const char *name = db ? memchr(db + 1, ' ', (size_t)(end - db - 1)) : NULL;
    if (!name)
        return;
    const char *own = w->shared->options.process_id;
    bool meant = strlen(own) == (size_t)(db - text) && memcmp(text, own, strlen(own)) == 0;
    struct lock_key key = {
        .db = (uint32_t)strtoul(db + 1, NULL, 10), .name = name + 1, .len = (size_t)(end - name - 1)};
    waiting_told(w->shared->waiting, &key, engine_key_hash(w->shared->engine, &key), w->index, !meant);
}

static void ear_message(void *arg, const char *data, size_t len, bool last) {
    struct ear *ear = arg;
    struct resp_item array, kind, channel, said;
    text_append(&ear->message, data, len);
    if (!last)
        return;
    const char *p = ear->message.data, *end = p + ear->message.len;
    if (resp_item_read(&p, end, &array) && array.type == '*' && array.num == 3 && resp_item_read(&p, end, &kind) &&
        resp_item_read(&p, end, &channel) && resp_item_read(&p, end, &said) && kind.len == 7 && said.type == '$')
        ear_heard(ear, said.str, said.len);
    ear->message.len = 0;
}

static void ear_drop(struct ear *ear) {
    if (!ear->pin)
        return;
    struct worker *w = ear->worker;
    counter_sub(&w->counters.pinned_connections, 1);
    counter_sub(&w->counters.pinned_subscribed, 1);
    upstream_unpin(ear->pin, false);
    ear->pin = NULL;
    ear->message.len = 0;
}

static void ear_lost(void *arg, const char *error) {
    log_verbose("Releases at other proxies are not heard: %s", error);
    ear_drop(arg);
}

static void ear_listen(struct ear *ear) {
    struct worker *w = ear->worker;
    const struct upstream_pin_events events = {.arg = ear, .message = ear_message, .lost = ear_lost};
    const struct upstream_lane lane = {.protocol = 2};
    const struct upstream_claim own = {.lasting = true};
    const char *error;
    ear->tried = ev_now(w->loop);
    ear->pin = upstream_pin_open(w->upstream, upstream_any_node(w->upstream, w->index), &lane, &own, &events, &error);
    if (!ear->pin) {
        log_verbose("Releases at other proxies are not heard: %s", error);
        return;
    }
    counter_add(&w->counters.pinned_connections, 1);
    counter_add(&w->counters.pinned_subscribed, 1);
    upstream_pin_stream(ear->pin, true);
    upstream_pin_send(ear->pin, SUBSCRIBE, sizeof(SUBSCRIBE) - 1);
}

void lock_ear_open(struct worker *w) {
    struct ear *ear = w->locks->ear;
    if (ear && (ear->pin || ev_now(w->loop) - ear->tried < AGAIN_SECONDS))
        return;
    if (!ear) {
        ear = w->locks->ear = memory_zalloc(sizeof(*ear));
        ear->worker = w;
    }
    if (!w->stopping)
        ear_listen(ear);
}

void lock_ear_close(struct worker *w) {
    struct ear *ear = w->locks->ear;
    if (!ear)
        return;
    ear_drop(ear);
    text_clear(&ear->message);
    memory_free(ear);
    w->locks->ear = NULL;
}
