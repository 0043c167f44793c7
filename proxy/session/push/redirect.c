/*
 * CLIENT TRACKING ... REDIRECT: what the nodes say of one client's cache goes to another client, who may be any
 * thread's.
 *
 *      client ── tracking.c ── parcel ──> all workers ──> the other client: RESP3 >2 invalidate
 *             <── tracking-redir-broken, if it is gone ──┘                  RESP2 message __redis__:invalidate
 *
 * As in Redis a client of RESP2 gets it while it is subscribed to anything, else not; and that the other one is gone
 * is noticed when there is something to be told. A worker knows those of its clients who may be told something, so
 * that not all have to be looked at for each message. CLIENT TRACKINGINFO comes from a node, which knows the proxy's
 * connections alone: what it says of the other client is put right here.
 */
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/push/private.h"

/* ---- the other client ----------------------------------------------------------------------------- */

static void look_visit(struct tour *t, struct worker *w) {
    struct redirect_look *look = LIST_ENTRY(t, struct redirect_look, tour);
    for (struct list_node *it = w->sessions.next; it != &w->sessions && !look->found; it = it->next) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        if (s->lock.id != look->id)
            continue;
        look->found = true;
        list_remove(&s->hearing);
        list_append(&w->hearing, &s->hearing);
    }
}

static void look_done(struct tour *t) {
    struct redirect_look *look = LIST_ENTRY(t, struct redirect_look, tour);
    look->done(look);
}

void redirect_look(struct redirect_look *look, struct worker *w) {
    look->found = false;
    tour_start(&look->tour, w, look_visit, look_done);
}

/* ---- messages ------------------------------------------------------------------------------------- */

struct parcel {
    struct tour tour;
    uint64_t from, to;
    bool found;
    size_t len; /* of the keys, an array; 0: all */
    char keys[];
};

static bool subscribed(const struct session *s) {
    struct pubsub_counts n = pubsub_count(s);
    return n.channels + n.patterns + n.shards > 0;
}

static void deliver(struct session *s, const struct parcel *p) {
    struct text message = {0};
    if (s->lane.protocol == 3)
        text_printf(&message, ">2\r\n$10\r\ninvalidate\r\n%s", p->len == 0 ? "_\r\n" : "");
    else
        text_printf(&message, "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n%s", p->len == 0 ? "$-1\r\n" : "");
    text_append(&message, p->keys, p->len);
    if (s->lane.protocol == 3 || subscribed(s))
        session_tell(s, message.data, message.len);
    text_clear(&message);
}

static void parcel_visit(struct tour *t, struct worker *w) {
    struct parcel *p = LIST_ENTRY(t, struct parcel, tour);
    for (struct list_node *it = w->hearing.next; it != &w->hearing && !p->found; it = it->next) {
        struct session *s = LIST_ENTRY(it, struct session, hearing);
        if (s->lock.id != p->to)
            continue;
        p->found = true;
        deliver(s, p);
    }
}

static void parcel_done(struct tour *t) {
    struct parcel *p = LIST_ENTRY(t, struct parcel, tour);
    for (struct list_node *it = t->home->sessions.next; it != &t->home->sessions && !p->found; it = it->next) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        if (s->lock.id != p->from)
            continue;
        tracking_broken(s, p->to);
        break;
    }
    memory_free(p);
}

void redirect_send(struct session *s, uint64_t to, const char *keys, size_t len) {
    struct parcel *p = memory_zalloc(sizeof(*p) + len);
    p->from = s->lock.id;
    p->to = to;
    p->len = len;
    if (len > 0)
        memcpy(p->keys, keys, len);
    tour_start(&p->tour, s->worker, parcel_visit, parcel_done);
}

/* ---- CLIENT TRACKINGINFO, GETREDIR ---------------------------------------------------------------- */

/* {flags [...], redirect N, prefixes [...]}: the client's number instead of N, and one more flag where it is gone. */
static bool put_right(const struct session *s, const struct call_end *end, struct text *out) {
    struct tracking_state state = tracking_state(s);
    struct resp_item map, word, flags, number;
    const char *p = end->reply, *stop = end->reply + end->len;
    if (!resp_item_read(&p, stop, &map) || !resp_item_read(&p, stop, &word))
        return false;
    text_append(out, end->reply, (size_t)(p - end->reply));
    if (!resp_item_read(&p, stop, &flags) || word.len != 5 || memcmp(word.str, "flags", 5) != 0)
        return false;
    text_printf(out, "%c%lld\r\n", flags.type, (long long)flags.num + state.broken);
    const char *words = p;
    for (int64_t i = 0; i < flags.num; i++)
        if (!resp_item_read(&p, stop, &word))
            return false;
    text_append(out, words, (size_t)(p - words));
    if (state.broken)
        text_printf(out, "$15\r\nbroken_redirect\r\n");
    words = p;
    if (!resp_item_read(&p, stop, &word))
        return false;
    text_append(out, words, (size_t)(p - words));
    if (!resp_item_read(&p, stop, &number) || word.len != 8 || memcmp(word.str, "redirect", 8) != 0)
        return false;
    text_printf(out, ":%llu\r\n", (unsigned long long)state.redirect);
    text_append(out, p, (size_t)(stop - p));
    return true;
}

static void info_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct text reply = {0};
    if (end->error)
        request_fail(r, end->error);
    else if (r->session && put_right(r->session, end, &reply))
        request_reply(r, reply.data, reply.len, true);
    else
        request_reply(r, end->reply, end->len, true);
    text_clear(&reply);
}

bool redirect_show(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    char line[RESP_HEADER_MAX];
    uint64_t redirect = tracking_state(s).redirect;
    if (redirect == 0 || r->argc != 2)
        return false;
    if (request_arg_is(r, bytes, 1, "getredir")) {
        session_answer(s, c, line, resp_header_write(line, ':', (int64_t)redirect));
        return true;
    }
    struct request *request = request_new(s, c);
    request->call.done = info_done;
    call_submit(&request->call, SLOT_NONE, bytes, r->len);
    return true;
}
