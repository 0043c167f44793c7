/*
 * Requests that are answered without a node.
 */
#include <stdarg.h>

#include "proxy/session/core/session.h"

void session_answer(struct session *s, const struct command *c, const char *reply, size_t len) {
    counter_add(&s->worker->counters.requests_local, 1);
    if (s->reply_mode != REPLY_ON)
        return;
    if (list_empty(&s->requests)) { /* no reply is due before it, so it needs no slot */
        iobuf_append(&s->out, reply, len);
        session_mark_dirty(s);
        return;
    }
    request_reply(request_new(s, c), reply, len, true);
}

void session_answer_text(struct session *s, const struct command *c, struct text *reply) {
    session_answer(s, c, reply->data, reply->len);
    text_clear(reply);
}

void session_refuse(struct session *s, const struct command *c, const char *format, ...) {
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
    session_answer_text(s, c, &line);
}
