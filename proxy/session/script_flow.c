/*
 * The application's own scripts on lock keys.
 *
 *      EVAL ... 1 lock:a UUID 30000 ──> a slot: the reply goes straight to the client
 *      adopt.lua lock:a GUARD ... UUID 30000 ──> the slot behind it, which owes no reply: the engine learns
 *
 * Both go over the same connection, so that nothing of this session comes between. Later lock commands of the session
 * on the key wait until the step has been answered: they are judged by what the script did.
 */
#include "proxy/session/script_flow.h"

#include "parser/slot.h"
#include "proxy/session/lock_call.h"

/* Of the script's arguments: a lock's value is one of the first, and not long. */
enum { ADOPT_ARGS_MAX = 64, ADOPT_ARG_LEN_MAX = 4096 };

bool script_is(const struct command *c) {
    return c->id == COMMAND_EVAL || c->id == COMMAND_EVALSHA || c->id == COMMAND_FCALL;
}

static bool may_be_value(const struct resp_request *r, size_t i) {
    return r->argv[i].len <= ADOPT_ARG_LEN_MAX;
}

struct lock_call *script_prepare(struct session *s, struct lock_queue *queue, const struct lock_rule *rule,
                                 const struct resp_request *r, const char *bytes, uint32_t key_index,
                                 size_t key_count) {
    struct worker *w = s->worker;
    size_t len, name_len, first = 3 + key_count, end = r->argc, count = 0;
    const char *key = request_arg(r, bytes, key_index, &len), *name = request_arg(r, bytes, 0, &name_len);
    struct lock_call *l = lock_begin(s, LOCK_SCRIPT, rule, key, len);
    lock_call_command(l, name, name_len);
    if (queue)
        lock_enqueue(s, queue, l);
    if (end > first + ADOPT_ARGS_MAX)
        end = first + ADOPT_ARGS_MAX;
    for (size_t i = first; i < end; i++)
        count += may_be_value(r, i);
    lock_build_script(w, SCRIPT_ADOPT, queue, 2, LOCK_HEADER_ARGS + count);
    build_bulk(w, key, len);
    lock_build_guard(w, key, len);
    lock_build_header(w, s->lock.client, &l->plan, NULL, 0, "nil");
    for (size_t i = first; i < end; i++)
        if (may_be_value(r, i))
            build_bulk(w, bytes + r->argv[i].off, r->argv[i].len);
    return l;
}

/* The step's slot ends without a word, whatever became of it. */
static void step_done(struct call *c, const struct call_end *end) {
    (void)end;
    request_reply(c->request, "", 0, true);
}

void script_dispatch(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                     const uint32_t *keys, size_t key_count, int slot) {
    dispatch_forward(s, c, r, bytes, slot);
    for (size_t i = 0; i < key_count; i++) {
        size_t len;
        const char *key = request_arg(r, bytes, keys[i], &len);
        const struct lock_rule *rule = lock_rule_for(s, key, len);
        if (!rule)
            continue;
        struct request *request = request_new(s, c);
        request->silent = true;
        lock_busy_key(request, key, len);
        struct lock_call *l = script_prepare(s, NULL, rule, r, bytes, keys[i], key_count);
        request->call.done = step_done;
        lock_submit(&request->call, l, SCRIPT_ADOPT);
    }
}
