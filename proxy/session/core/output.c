/*
 * What a session's output keeps back: messages that wait for the end of a reply, the rest of a reply that was left to
 * its node, and since when the output is too long. flush.c writes it.
 */
#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/private.h"

void session_within_limit(struct session *s) {
    invariant(s->over_soft_since <= 0 || s->worker->over_soft > 0, "no session is over its limit");
    if (s->over_soft_since > 0)
        s->worker->over_soft--;
    s->over_soft_since = 0;
}

void session_held_free(struct session *s) {
    if (s->held)
        text_clear(s->held);
    memory_free(s->held);
    s->held = NULL;
}

void session_release(struct session *s) {
    if (session_amid_reply(s))
        return;
    iobuf_append(&s->out, s->held->data, s->held->len);
    invariant(s->held_bytes >= s->held->len, "%zu bytes are held of %zu", s->held_bytes, s->held->len);
    s->held_bytes -= s->held->len;
    session_held_free(s);
    session_mark_dirty(s);
}

void session_tell(struct session *s, const char *data, size_t len) {
    session_mark_dirty(s); /* also if it is held: the flush checks the limits */
    if (!s->held && !session_amid_reply(s)) {
        iobuf_append(&s->out, data, len);
        return;
    }
    if (!s->held)
        s->held = memory_zalloc(sizeof(*s->held));
    text_append(s->held, data, len);
    s->held_bytes += len;
}

void session_go_on(struct session *s) {
    struct list_node *n = s->delays & DELAY_OUTPUT ? list_first(&s->requests) : NULL;
    if (n)
        upstream_go_on(&LIST_ENTRY(n, struct request, link)->call.up);
    session_delay(s, DELAY_OUTPUT, false);
}
