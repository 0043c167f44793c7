/*
 * The buffer of a session's input that waits. Its bytes may be a password, so they are overwritten where they were.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/private.h"
#include "proxy/session/core/secret.h"

void session_input_free(struct session *s) {
    if (!s->input)
        return;
    secret_overwrite(s->input->data + s->input->start, input_len(s->input));
    memory_free(s->input->data);
    resp_request_clear(&s->input->scanner);
    memory_free(s->input);
    s->input = NULL;
}

/* Moves the rest to the front once most of the buffer was used, or grows it. */
void input_reserve(struct session_input *in, size_t room) {
    if (in->cap - in->end >= room)
        return;
    size_t len = input_len(in);
    if (in->start > 0 && (in->start >= len || in->cap - len >= room)) {
        memmove(in->data, in->data + in->start, len);
        secret_overwrite(in->data + len, in->end - len);
        in->start = 0;
        in->end = len;
        if (in->cap - in->end >= room)
            return;
    }
    size_t cap = in->cap ? in->cap * 2 : INPUT_START;
    while (cap < in->end + room)
        cap *= 2;
    if (in->cap <= WORKER_SCRATCH) { /* like realloc, but a password can be overwritten in the old place */
        char *data = memory_alloc(cap);
        if (in->end > 0)
            memcpy(data, in->data, in->end);
        secret_overwrite(in->data, in->end);
        memory_free(in->data);
        in->data = data;
    } else {
        in->data = memory_realloc(in->data, cap);
    }
    in->cap = cap;
    invariant(in->cap - in->end >= room, "room for %zu bytes of %zu", in->cap - in->end, room);
}
