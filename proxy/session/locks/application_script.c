/*
 * The application's own scripts on lock keys. The script and its reply pass unchanged.
 *
 *      EVAL ... 1 lock:a UUID ──> MULTI  adopt.lua  EVAL ... 1 lock:a UUID  adopt.lua  EXEC
 *      client's reply <──────────────────────────── the script's element        └── what the engine learns
 *
 * The script and its two steps go in one transaction: a lock that is there after the script, and was not there before
 * it, was acquired by the script.
 *
 * Redis may refuse the transaction: for example, its memory is full, and the script would only delete. Nothing was
 * executed then, so the proxy sends the script alone, and the step behind it as soon as possible:
 *
 *      EVAL ... 1 lock:a UUID 30000 ──> its slot: the reply goes straight to the client
 *      adopt.lua lock:a GUARD ... UUID 30000 ──> a slot behind it, which owes no reply
 *
 * The session's later lock commands on the key wait for all answers: the engine judges them by what the script did.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/sending.h"

/* A lock's value is one of the script's first ARGS_MAX arguments, and has at most ARG_LEN_MAX bytes. A script with more
 * than LOCKS_TOGETHER_MAX locks among its keys goes without a transaction. */
enum { ARGS_MAX = 64, ARG_LEN_MAX = 4096, LOCKS_TOGETHER_MAX = LOCK_SCRIPT_LOCKS_MAX };

/* For how many seconds after a refused transaction a session's later requests wait for its scripts. A script may be
 * sent again, and no later request may overtake it. */
static const double CAREFUL = 1.0;

/* A script under way, with its steps. */
struct bundle {
    struct request_owner owner; /* must be the first field */
    struct text command;        /* the client's command, unchanged */
    int slot;
    size_t key_count, count;
    struct lock_queue locks; /* the `count` calls of its locks, without those that have ended */
    struct request *request; /* while witnesses are asked */
    struct text whole;       /* meanwhile: EXEC's array */
};

#define UNSURE "UPSTREAM the script has run, and its witnesses were not asked in time; the outcome is unknown"

/* ---- the two steps ----------------------------------------------------------------------------- */

bool script_locks(const struct request_class *k, size_t i) {
    size_t len, other_len;
    const char *key = class_key(k, i, &len);
    if (!class_enforced(k, i))
        return false;
    for (size_t j = 0; j < i; j++) {
        const char *other = class_key(k, j, &other_len);
        if (other_len == len && memcmp(other, key, len) == 0)
            return false;
    }
    return true;
}

struct lock_call *script_begin(struct session *s, struct lock_queue *queue, const struct request_class *k, size_t i) {
    size_t len, name_len;
    const char *key = class_key(k, i, &len), *name = request_arg(k->request, k->bytes, 0, &name_len);
    struct lock_call *l = lock_begin(s, LOCK_SCRIPT, class_rule(k, i), key, len);
    lock_call_command(l, name, name_len);
    if (queue)
        lock_enqueue(s, queue, l);
    return l;
}

void script_build_before(struct session *s, struct lock_queue *queue, const struct lock_call *l) {
    lock_build_call(s->worker, SCRIPT_ADOPT, queue, &l->plan.key, 1);
    build_text(s->worker, l->plan.attempt_token);
}

void script_build_behind(struct session *s, struct lock_queue *queue, const struct lock_call *l,
                         const struct lock_words *words, size_t key_count, bool together) {
    struct worker *w = s->worker;
    size_t first = 3 + key_count, end = words->count, count = 0;
    invariant(first <= words->count, "%zu keys in %zu arguments", key_count, words->count);
    if (end > first + ARGS_MAX)
        end = first + ARGS_MAX;
    for (size_t i = first; i < end; i++)
        count += words->args[i].len <= ARG_LEN_MAX;
    lock_build_call(w, SCRIPT_ADOPT, queue, &l->plan.key, LOCK_HEADER_ARGS + count);
    lock_build_header(w, s->lock.client, &l->plan, NULL, 0, together ? SHAPE_TOGETHER : SHAPE_NIL);
    for (size_t i = first; i < end; i++)
        if (words->args[i].len <= ARG_LEN_MAX)
            build_bulk(w, words->bytes + words->args[i].off, words->args[i].len);
}

/* ---- without a transaction --------------------------------------------------------------------- */

static void step_submit(struct session *s, const struct command *c, struct lock_call *l, const struct resp_request *r,
                        const char *bytes, size_t key_count) {
    struct request *request = request_new(s, c);
    const struct lock_words words = {bytes, r->argv, r->argc};
    request->silent = true;
    lock_busy_key(request, l->plan.key.name, l->plan.key.len);
    script_build_behind(s, NULL, l, &words, key_count, false);
    request->call.done = call_swallow;
    lock_submit(&request->call, l, SCRIPT_ADOPT);
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void bundle_free(struct bundle *b) {
    text_clear(&b->command);
    text_clear(&b->whole);
    memory_free(b);
}

static void calls_end(struct worker *w, struct session *s, struct bundle *b, const struct call_end *end) {
    struct lock_answer out;
    for (struct lock_call *l; (l = LIST_SHIFT(&b->locks.calls, struct lock_call, queued));)
        lock_finish(w, s, l, end, &out);
}

/* Sends the steps of the calls that have not ended. If the session is closed (s NULL), no step can be sent: `end`, the
 * script's result, then ends the calls. */
static void send_steps(struct worker *w, struct session *s, const struct command *c, struct bundle *b,
                       const struct call_end *end) {
    struct resp_request r;
    bool known = resp_request_read(&r, b->command.data, b->command.len);
    if (!s || !known)
        calls_end(w, s, b, end);
    for (struct lock_call *l; (l = LIST_SHIFT(&b->locks.calls, struct lock_call, queued));)
        step_submit(s, c, l, &r, b->command.data, b->key_count);
    resp_request_clear(&r);
}

/* Sends the script alone, after a transaction of which nothing was executed. */
static void go_apart(struct request *request, struct bundle *b) {
    struct session *s = request->session;
    struct worker *w = request->worker;
    const struct command *c = request->command;
    if (s) {
        locks_of(s)->careful_until = ev_now(w->loop) + CAREFUL;
        call_init(&request->call, request, NULL);
        call_submit(&request->call, b->slot, b->command.data, b->command.len); /* may end the request at once */
    } else {
        request_reply(request, "", 0, true);
    }
    send_steps(w, s, c, b, &lock_not_sent_end);
}

/* Finds EXEC's elements: the steps before the script, its reply, the steps behind it. False: there are others. */
static bool elements_find(const struct bundle *b, const struct call_end *end, const char **at) {
    const char *p = end->reply, *stop = end->reply + end->len;
    struct resp_item array;
    size_t count = 2 * b->count + 1;
    invariant(b->count <= LOCKS_TOGETHER_MAX, "%zu locks in one transaction", b->count);
    if (!resp_item_read(&p, stop, &array) || array.type != '*' || array.null || array.num != (int64_t)count)
        return false;
    for (size_t i = 0; i < count; i++) {
        at[i] = p;
        p = p && p < stop ? resp_item_end(p, stop) : NULL;
    }
    at[count] = p;
    return p != NULL;
}

/* Ends a script under quorum of which nothing was executed: alone, it could not be confirmed before its reply. */
static void stay_together(struct request *request, struct bundle *b, const char *reply, size_t len) {
    calls_end(request->worker, request->session, b, &lock_not_sent_end);
    request_reply(request, reply, len, true);
}

/* Ends the calls with the steps' answers, and the request with the script's reply, or with the error of the first lock
 * that witnesses have refused. */
static void bundle_finish(struct request *request, struct bundle *b, const char **at) {
    static const char NOSCRIPT[] = "-NOSCRIPT ";
    const char *reply = at[b->count], **step = at + b->count + 1;
    size_t len = (size_t)(*step - reply);
    bool unsure = false;
    char error[LOCK_ANSWER_MAX] = "";
    LIST_EACH_SAFE(l, &b->locks.calls, struct lock_call, queued) {
        const struct call_end part = {.reply = step[0], .len = (size_t)(step[1] - step[0])};
        const char *refusal = lock_queue_refusal(l);
        struct lock_answer out;
        if (refusal && !error[0])
            snprintf(error, sizeof(error), "%s", refusal);
        if (part.len >= sizeof(NOSCRIPT) && memcmp(part.reply, NOSCRIPT, sizeof(NOSCRIPT) - 1) == 0) {
            upstream_script_unknown(request->worker->upstream);
            unsure = b->locks.quorum; /* the step comes behind the reply */
        } else if (!refusal || !lock_queue_ends(request->worker, NULL, l, &part, &out)) {
            lock_finish(request->worker, request->session, l, &part, &out);
        }
        step++;
    }
    send_steps(request->worker, request->session, request->command, b, &lock_unknown_end);
    if (error[0])
        request_error(request, error);
    else if (unsure)
        request_error(request, UNSURE);
    else
        request_reply(request, reply, len, true);
}

static void witnessed(void *arg) {
    struct bundle *b = arg;
    const char *at[2 * LOCKS_TOGETHER_MAX + 2];
    struct call_end end = {.reply = b->whole.data, .len = b->whole.len};
    if (elements_find(b, &end, at)) /* as it was before */
        bundle_finish(b->request, b, at);
    bundle_free(b);
}

/* Takes the answers of a transaction that was executed. False: the bundle is still needed, as witnesses are asked. */
static bool bundle_executed(struct request *request, struct bundle *b, const struct call_end *end) {
    const char *at[2 * LOCKS_TOGETHER_MAX + 2];
    if (!elements_find(b, end, at)) {
        send_steps(request->worker, request->session, request->command, b, &lock_unknown_end);
        request_fail(request, "UPSTREAM the node's answer to a script makes no sense; it was executed");
        return true;
    }
    const char *reply = at[b->count];
    size_t len = (size_t)(at[b->count + 1] - reply);
    /* A node refuses writes for a while: nothing was executed, and some node takes the script soon. */
    if (reply[0] == '-' && len > 3 && upstream_error_passes(request->worker->upstream, reply + 1, len - 3, true)) {
        if (b->locks.quorum)
            stay_together(request, b, reply, len);
        else
            go_apart(request, b);
        return true;
    }
    const char **step = at + b->count + 1;
    LIST_EACH(l, &b->locks.calls, struct lock_call, queued) {
        const struct call_end part = {.reply = step[0], .len = (size_t)(step[1] - step[0])};
        lock_queue_answer(l, &part);
        step++;
    }
    b->request = request;
    if (b->locks.quorum)
        text_append(&b->whole, end->reply, end->len);
    if (lock_queue_vote(request->worker, &b->locks, witnessed, b))
        return false;
    bundle_finish(request, b, at);
    return true;
}

static void bundle_done(struct call *c, const struct call_end *end) {
    struct request *request = c->request;
    struct bundle *b = REQUEST_OWNER(request, struct bundle);
    request_disown(request);
    if (end->error && end->why == UPSTREAM_UNKNOWN) {
        send_steps(request->worker, request->session, request->command, b, end);
        request_fail(request, end->error);
    } else if (end->error) {
        calls_end(request->worker, request->session, b, end);
        request_fail(request, end->error);
    } else if (c->up.multi_refused) { /* the user may not send MULTI: the script and its steps have run all the same */
        send_steps(request->worker, request->session, request->command, b, end);
        if (b->locks.quorum)
            request_error(request, UNSURE);
        else
            request_reply(request, end->reply, end->len, true);
    } else if (end->reply[0] == '-' && b->locks.quorum) {
        stay_together(request, b, end->reply, end->len);
    } else if (end->reply[0] == '-') {
        go_apart(request, b);
    } else if (!bundle_executed(request, b, end)) {
        return;
    }
    bundle_free(b);
}

/* ---- the beginning ----------------------------------------------------------------------------- */

enum dispatch_result script_dispatch(struct session *s, const struct request_class *k) {
    size_t locks = class_locks(k);
    if (locks == 0 || locks > LOCKS_TOGETHER_MAX) {
        session_forward(s, k->command, k->request, k->bytes, k->slot);
        for (size_t i = 0; i < k->key_count; i++)
            if (class_enforced(k, i))
                step_submit(s, k->command, script_begin(s, NULL, k, i), k->request, k->bytes, k->key_count);
        return DISPATCHED;
    }
    static const char multi[] = "*1\r\n$5\r\nMULTI\r\n", exec[] = "*1\r\n$4\r\nEXEC\r\n";
    const struct lock_words words = {k->bytes, k->request->argv, k->request->argc};
    const struct text *build = &s->worker->build;
    struct text all = {0};
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, k->command);
    struct bundle *b = memory_zalloc(sizeof(*b));
    struct lock_call *l = NULL;
    b->slot = k->slot;
    b->key_count = k->key_count;
    list_init(&b->locks.calls);
    for (size_t i = 0; i < k->key_count; i++)
        if (script_locks(k, i)) {
            b->locks.quorum |= class_rule(k, i)->quorum == LOCK_QUORUM_YES;
            l = script_begin(s, NULL, k, i);
            list_append(&b->locks.calls, &l->queued);
            b->count++;
        }
    invariant(b->count > 0 && b->count <= LOCKS_TOGETHER_MAX, "%zu locks in one transaction", b->count);
    if (b->count == 1)
        lock_busy_key(request, l->plan.key.name, l->plan.key.len);
    else
        lock_busy_all(request);
    if (ev_now(s->worker->loop) < locks_of(s)->careful_until)
        request_barrier(request);
    text_append(&b->command, k->bytes, k->request->len);
    text_append(&all, multi, sizeof(multi) - 1);
    LIST_EACH(queued, &b->locks.calls, struct lock_call, queued) {
        script_build_before(s, NULL, queued);
        text_append(&all, build->data, build->len);
    }
    text_append(&all, k->bytes, k->request->len);
    LIST_EACH(queued, &b->locks.calls, struct lock_call, queued) {
        script_build_behind(s, NULL, queued, &words, b->key_count, true);
        text_append(&all, build->data, build->len);
    }
    text_append(&all, exec, sizeof(exec) - 1);
    request->call.up.script_at = sizeof(multi) - 1;
    request->call.up.script = script_get(SCRIPT_ADOPT);
    request->call.done = bundle_done;
    request_own(request, &b->owner, &request_owner_silent);
    call_submit_together(&request->call, (uint8_t)(2 * b->count + 2), b->slot, all.data, all.len);
    text_clear(&all);
    return DISPATCHED;
}
