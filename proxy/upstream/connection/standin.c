/*
 * Requests that are abandoned while their replies are due: a stand-in takes the place of each, and drops the reply.
 * Knows nothing of why.
 */
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

enum { STAND_INS_MAX = 1024 }; /* free ones that are kept */

struct stand_in {
    struct upstream_request request;
    struct upstream *u;
    bool may_last; /* what was abandoned */
};

static void stand_in_free(struct upstream_request *r) {
    struct stand_in *s = LIST_ENTRY(r, struct stand_in, request);
    if (s->u->stand_in_count >= STAND_INS_MAX) {
        memory_free(s);
        return;
    }
    s->u->stand_in_count++;
    list_prepend(&s->u->stand_ins, &r->link);
}

static void stand_in_reply(struct upstream_request *r, const char *data, size_t len, bool last) {
    if (last)
        stand_in_free(r);
}

static void stand_in_fail(struct upstream_request *r, enum upstream_failure why, const char *error) {
    stand_in_free(r);
}

static bool stand_in_may_last(const struct upstream_request *r) {
    return LIST_ENTRY(r, const struct stand_in, request)->may_last;
}

struct upstream_request *standin_make(struct upstream *u, struct upstream_request *r) {
    static const struct upstream_request_ops ops = {
        .reply = stand_in_reply, .fail = stand_in_fail, .may_last = stand_in_may_last};
    struct list_node *n = list_shift(&u->stand_ins);
    struct stand_in *s = n ? LIST_ENTRY(n, struct stand_in, request.link) : memory_alloc(sizeof(*s));
    u->stand_in_count -= n != NULL;
    s->u = u;
    s->may_last = r->ops->may_last && r->ops->may_last(r);
    s->request = *r;
    s->request.ops = &ops;
    s->request.stand_in = true;
    list_init(&s->request.link);
    list_append(&r->link, &s->request.link); /* before r in its circle, which r then leaves */
    list_remove(&r->link);
    r->chunk = NULL;
    request_end(r);
    return &s->request;
}

void upstream_abandon(struct upstream *u, struct upstream_request *r) {
    if (!r->in_flight)
        return;
    if (r->conn) {
        conn_drop(r->conn, r);
        return;
    }
    list_remove(&r->link);
    request_end(r);
}
