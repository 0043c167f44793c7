/*
 * Abandoned requests whose replies are still due: a placeholder takes the place of each request, and drops the reply.
 * It does not know why a request was abandoned.
 */
#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

enum { PLACEHOLDERS_MAX = 1024 }; /* free placeholders kept for reuse */

struct placeholder {
    struct upstream_request request;
    struct upstream *u;
    bool may_last; /* the abandoned request's may_last */
};

static void placeholder_free(struct upstream_request *r) {
    struct placeholder *s = LIST_ENTRY(r, struct placeholder, request);
    invariant(r->placeholder && !r->conn, "a placeholder is freed in flight");
    if (s->u->placeholder_count >= PLACEHOLDERS_MAX) {
        memory_free(s);
        return;
    }
    s->u->placeholder_count++;
    list_prepend(&s->u->placeholders, &r->link);
}

static void placeholder_reply(struct upstream_request *r, const char *data, size_t len, bool last) {
    if (last)
        placeholder_free(r);
}

static void placeholder_fail(struct upstream_request *r, enum upstream_failure why, const char *error) {
    placeholder_free(r);
}

static bool placeholder_may_last(const struct upstream_request *r) {
    return LIST_ENTRY(r, const struct placeholder, request)->may_last;
}

/* Makes a placeholder, which takes over the bytes of r and its place in the list. */
static void placeholder_make(struct upstream *u, struct upstream_request *r) {
    invariant(r->conn && r->conn->state == CONN_READY && !r->placeholder,
              "a request that may be taken back is replaced");
    static const struct upstream_request_ops ops = {
        .reply = placeholder_reply, .fail = placeholder_fail, .may_last = placeholder_may_last};
    struct list_node *n = list_shift(&u->placeholders);
    struct placeholder *s = n ? LIST_ENTRY(n, struct placeholder, request.link) : memory_alloc(sizeof(*s));
    u->placeholder_count -= n != NULL;
    invariant(u->placeholder_count <= PLACEHOLDERS_MAX, "%zu placeholders are free", u->placeholder_count);
    s->u = u;
    s->may_last = r->ops->may_last && r->ops->may_last(r);
    s->request = *r;
    s->request.ops = &ops;
    s->request.placeholder = true;
    list_init(&s->request.link);
    list_append(&r->link, &s->request.link); /* inserts the placeholder before r; the next line removes r */
    list_remove(&r->link);
    r->chunk = NULL;
    request_end(r);
}

void upstream_abandon(struct upstream *u, struct upstream_request *r) {
    struct upstream_conn *c = r->conn;
    if (!r->in_flight)
        return;
    if (c && c->state == CONN_READY) { /* its bytes have been sent, or others behind them have */
        placeholder_make(u, r);
        return;
    }
    list_remove(&r->link);
    if (c) {
        invariant(c->in_flight > 0, "no request is in flight");
        c->in_flight--;
        c->rebuild = true;
    }
    request_end(r);
}
