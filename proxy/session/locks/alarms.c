/*
 * A session hears that its lease is over: by a push (PROXY NOTIFY ON), by the end of its connection, or by an error in
 * place of its next answer (the rule's on-loss).
 *
 *      engine ── sink ──> renew.lua `look`, in this thread ──┬─ the lease goes on: nothing
 *                             ^                              ├─ not known ──> once more, in a second
 *                             └──────────────────────────────┘
 *                                                            └─ over ──> the session's thread ──> the session
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/leases.h"
#include "proxy/session/locks/private.h"

enum { NAME_SHOWN = 160 };

/* An alarm on its way to its session. */
struct alarm_news {
    struct request_owner owner; /* must be the first field */
    struct broadcast broadcast; /* to the session's thread */
    struct list_node link;      /* in worker_locks.unasked */
    struct lock_lease lease;
    uint64_t session_id, fence;
    unsigned thread; /* the session's */
    enum lock_on_loss way;
    int64_t asked_ms;
    char name[]; /* the key */
};

/* The engine calls with a shard locked: the question goes out at the end of the turn. */
struct alarm_note {
    struct worker_job job; /* must be the first field */
    struct alarm_news *news;
};

/* ---- the session is told --------------------------------------------------------------------------- */

static void tell(struct session *s, const struct alarm_news *news) {
    static const char *const actions[] = {[LOCK_LOSS_TELL] = "it goes on",
                                          [LOCK_LOSS_CLOSE] = "its connection is closed",
                                          [LOCK_LOSS_ERROR] = "its next command is refused"};
    struct worker *w = s->worker;
    struct lock_state *state = locks_of(s);
    struct text out = {0};
    size_t len = news->lease.key.len;
    char who[SESSION_ADDRESS_MAX + 128];
    session_who(s, who, sizeof(who));
    if (!engine_alarm_take(w->shared->engine, &news->lease.key, news->session_id, news->lease.token, who,
                           actions[news->way], worker_now(w)))
        return;
    if (atomic_load(&s->lock.notified) && s->lane.protocol == 3) {
        text_printf(&out, ">4\r\n$10\r\nlockkeeper\r\n$4\r\nlost\r\n$%zu\r\n", len);
        text_append(&out, news->name, len);
        text_printf(&out, "\r\n:%llu\r\n", (unsigned long long)news->fence);
        session_tell(s, out.data, out.len);
        counter_add(&w->counters.losses_pushed, 1);
        out.len = 0;
    }
    if (news->way == LOCK_LOSS_ERROR && !state->lost) { /* one error is enough */
        bool cut = len > NAME_SHOWN;
        text_printf(&out, "LOST the lease on ");
        text_append(&out, news->name, cut ? NAME_SHOWN : len);
        text_printf(&out, "%s is over", cut ? "..." : "");
        state->lost = memory_strndup(out.data, out.len);
        w->struck++;
        counter_add(&w->counters.losses_refused, 1);
    } else if (news->way == LOCK_LOSS_CLOSE) {
        counter_add(&w->counters.losses_closed, 1);
        session_finish(s);
    }
    text_clear(&out);
}

static struct alarm_news *news_of(struct broadcast *t) {
    return LIST_ENTRY(t, struct alarm_news, broadcast);
}

static void visit(struct broadcast *t, struct worker *w) {
    const struct alarm_news *news = news_of(t);
    if (w->index != news->thread)
        return;
    LIST_FOREACH(it, &w->sessions) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        if (s->lock.id != news->session_id)
            continue;
        if (s->state == SESSION_OPEN)
            tell(s, news);
        return;
    }
}

static void visited(struct broadcast *t) {
    memory_free(news_of(t));
}

char *lock_take_lost(struct session *s) {
    char *lost = locks_of(s)->lost;
    if (lost)
        s->worker->struck--;
    locks_of(s)->lost = NULL;
    return lost;
}

/* ---- Redis is asked ----------------------------------------------------------------------------------- */

static void answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct alarm_news *news = REQUEST_OWNER(c->request, struct alarm_news);
    invariant(w->own_works > 0 && news, "no alarm is looked into");
    struct lock_envelope e;
    lock_answer_read(NULL, end, &e);
    switch (engine_alarm_looked(w->shared->engine, &news->lease.key, news->session_id, news->lease.token, &e.result,
                                news->asked_ms, worker_now(w))) {
    case ALARM_OVER:
        broadcast_start(&news->broadcast, w, visit, visited);
        break;
    case ALARM_KEPT:
        worker_engine_due(w, e.result.pttl_ms > 0 ? e.result.pttl_ms : 1);
        memory_free(news);
        break;
    case ALARM_UNKNOWN:
        list_append(&w->locks->unasked, &news->link);
        break;
    }
    lock_own_done(c, end);
}

static void ask(struct worker *w, struct alarm_news *news) {
    static const struct request_owner_ops ops = {0};
    invariant(news->lease.right == RIGHT_LOOK, "an alarm changes its lease");
    news->asked_ms = worker_now(w);
    lock_build_lease(w, SCRIPT_RENEW, &news->lease, false, NULL, 0);
    struct request *request = lock_own_request(w, &news->owner, &ops, SCRIPT_RENEW, answered);
    struct upstream_lane lane = {.login = news->lease.login, .db = news->lease.key.db, .protocol = 2};
    call_submit_lane(&request->call, slot_of_key(news->name, news->lease.key.len), &lane, w->build.data, w->build.len);
}

static void note_run(struct worker *w, struct worker_job *job) {
    ask(w, ((struct alarm_note *)(void *)job)->news);
}

void lock_note_alarm(void *arg, const struct lock_alarm *alarm) {
    struct alarm_news *news = memory_zalloc(sizeof(*news) + alarm->lease.key.len);
    struct alarm_note *note = memory_zalloc(sizeof(*note));
    list_init(&news->link);
    news->session_id = alarm->session_id;
    news->fence = alarm->fence;
    news->thread = LIST_ENTRY(alarm->session, struct session, lock)->worker->index;
    news->way = alarm->own ? alarm->lease.rule->on_loss : LOCK_LOSS_TELL;
    lock_lease_keep(&news->lease, &alarm->lease, news->name);
    note->job.run = note_run;
    note->news = news;
    worker_add_job(worker_here(), &note->job);
}

/* ---- a worker's part ------------------------------------------------------------------------------------ */

void alarms_close(struct worker *w) {
    struct list_node *n;
    while ((n = list_shift(&w->locks->unasked)))
        memory_free(LIST_ENTRY(n, struct alarm_news, link));
}

void alarms_tick(struct worker *w) {
    struct list_node all;
    list_init(&all);
    list_splice(&all, &w->locks->unasked);
    for (struct list_node *n; (n = list_shift(&all));) {
        struct alarm_news *news = LIST_ENTRY(n, struct alarm_news, link);
        if (engine_alarm_waits(w->shared->engine, &news->lease.key, news->session_id, news->lease.token))
            ask(w, news);
        else
            memory_free(news);
    }
}
