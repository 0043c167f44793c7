/*
 * A session's marks: what the worker does with it at the end of the loop turn, or in the next one.
 */
#include "proxy/session/core/session.h"

void session_mark_dirty(struct session *s) {
    if (!session_is_dirty(s))
        list_append(&s->worker->dirty, &s->dirty_link);
}

void session_mark_runnable(struct session *s) {
    if (!session_is_runnable(s) && s->state == SESSION_OPEN)
        list_append(&s->worker->runnable, &s->runnable_link);
}

void session_mark_eased(struct session *s) {
    if (!session_is_runnable(s) && s->state == SESSION_OPEN)
        list_append(&s->worker->eased, &s->runnable_link);
}
