/*
 * Before Redis is asked for subscribers, clients that have left must no longer count. A subscriber's connection to its
 * node is closed at the end of a turn, by the client's thread. Another client's PUBSUB could reach the node before
 * that. So, before each PUBSUB:
 *
 *      visit every thread ── it reads disconnects, and closes ──> ask each master for a PING ──> PUBSUB
 *
 * The reply to PING shows that the node has seen the closed connections, since it handles everything that it has read
 * before it replies.
 */
#include "proxy/base/memory.h"
#include "proxy/session/cluster/private.h"
#include "proxy/session/core/session_worker.h"

/* Turns of a thread's loop in a visit: one reads the disconnects, one closes the sessions, one closes the connections
 * to the nodes. */
enum { TURNS = 4 };

_Static_assert(sizeof(bool) <= ROOM_END - ROOM_CLUSTER, "the room's state of a session fits");

/* A PUBSUB that waits. */
struct departed {
    struct broadcast broadcast; /* first */
    struct request *request;
};

/* A visit to one thread. */
struct stay {
    struct worker_slices slices; /* first */
    struct broadcast *broadcast;
    unsigned turns;
};

static bool stay_step(struct worker *w, struct worker_slices *slices) {
    struct stay *stay = (struct stay *)(void *)slices;
    if (++stay->turns < TURNS)
        return true;
    broadcast_leave(stay->broadcast, w);
    return false;
}

static void visit(struct broadcast *b, struct worker *w) {
    struct stay *stay = memory_zalloc(sizeof(*stay));
    stay->slices.step = stay_step;
    stay->broadcast = b;
    b->stays = true;
    worker_add_slices(w, &stay->slices);
}

/* Ends the wait: the session's request is dispatched again. */
static void answered(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    (void)end;
    if (--r->parts_left == 0)
        request_reply(r, "", 0, true);
}

static void all_visited(struct broadcast *b) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    struct departed *d = (struct departed *)(void *)b;
    struct request *r = d->request;
    struct session *s = r->session;
    memory_free(d);
    if (!s) {
        request_reply(r, "", 0, true);
        return;
    }
    size_t masters = upstream_master_count(s->worker->upstream);
    r->parts_left = 1; /* held here until all are asked */
    for (size_t i = 0; i < masters; i++)
        call_submit_master(call_new(r, answered), i, ping, sizeof(ping) - 1);
    if (--r->parts_left == 0)
        request_reply(r, "", 0, true);
}

bool departed_wait(struct session *s) {
    bool *waited = session_room(s, ROOM_CLUSTER); /* the current PUBSUB has waited */
    if (*waited) {
        *waited = false;
        return false;
    }
    struct departed *d = memory_zalloc(sizeof(*d));
    d->request = request_new(s, NULL);
    request_barrier(d->request);
    *waited = true;
    broadcast_start(&d->broadcast, s->worker, visit, all_visited);
    return true;
}
