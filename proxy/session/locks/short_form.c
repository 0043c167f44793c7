/*
 * Plain locks whose guard records have the short form (scripts/lua/text.lua): they are acquired without a script.
 *
 *      MULTI
 *      PEXPIREAT watermark FENCE GT     1: no lease of the slot in the short form has had this fence or a greater one
 *      SET guard record NX GET PX ...   nil: there was none. A text: it describes the lease that refuses the attempt
 *      SET lock VALUE NX PX ...         OK: the lock was free
 *      EXEC
 *
 * The expiry of the key `watermark` is a fence, since GT makes it only grow. The answers 1, nil and OK are an
 * acquisition; a text and nil are a refusal. All other answers are rare: only one of
 * lock and guard record was there, the guard record is a hash, the fence was too small, Redis refused a command. Then
 * acquire.lua follows, which finds what the attempt has set, and finishes or undoes it. The client is told nothing
 * until then.
 *
 * If the lock seems to be held, the proxy asks first: MGET of lock and guard record costs Redis a fifth of an attempt,
 * and writes nothing. Both there is a refusal; no lock, and the attempt follows; else acquire.lua follows.
 *
 * Releases of one turn of the event loop share a call: free_all.lua takes many locks of one user and database; on a
 * cluster, of one slot. A release by itself is a call of free.lua. What is not released so is sent again by itself, to
 * release.lua, which finds out why.
 *
 *      DEL by A, B, C ──> worker->locks->frees ── end of the turn ──> free_all.lua ──> "rr0": C's goes to release.lua
 *
 * A later request of its session does not overtake a release that is kept: as soon as there is one, the release is sent
 * by itself. A release that goes with another session's may be on another connection than the session's own requests.
 * So it goes so only if it is the session's only request in flight, and the session's next requests wait for it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/clock.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/sending.h"

enum {
    COMMANDS_BEFORE_EXEC = 4,
    REFUSED_MS = 10000, /* attempts use the script for so long after Redis has refused one in this form */
    TOGETHER_MAX = 16   /* releases in one call: about 0.05 ms of Redis */
};

/* ---- acquiring ------------------------------------------------------------------------------------ */

/* What EXEC has answered to an attempt. */
struct attempt_answer {
    bool whole;         /* three answers, none of them an error, except perhaps the second one */
    bool raised;        /* the fence is above the watermark */
    bool placed;        /* the lock was set */
    bool vacant;        /* there was no guard record, and the attempt's was set */
    const char *record; /* the guard record that was there, in the short form; NULL: none, or a hash */
    size_t record_len;
};

static struct attempt_answer read_answer(const char *data, size_t len) {
    static const char WON[] = "*3\r\n:1\r\n$-1\r\n+OK\r\n", WON_3[] = "*3\r\n:1\r\n_\r\n+OK\r\n";
    struct attempt_answer a = {.whole = true, .raised = true, .placed = true, .vacant = true};
    if ((len == sizeof(WON) - 1 && memcmp(data, WON, len) == 0) ||
        (len == sizeof(WON_3) - 1 && memcmp(data, WON_3, len) == 0))
        return a;
    a = (struct attempt_answer){.whole = false};
    struct resp_item all, raised, record, placed;
    const char *p = data, *end = data + len;
    if (!resp_item_read(&p, end, &all) || all.type != '*' || all.null || all.num != 3 ||
        !resp_item_read(&p, end, &raised) || !resp_item_read(&p, end, &record) || !resp_item_read(&p, end, &placed))
        return a;
    a.whole = raised.type == ':' && (placed.null || placed.type == '+');
    a.raised = raised.type == ':' && raised.num == 1;
    a.placed = placed.type == '+';
    a.vacant = record.null;
    if (!record.null && record.type == '$') {
        a.record = record.str;
        a.record_len = record.len;
    }
    return a;
}

/* A guard record in the short form. */
struct short_record {
    const char *token, *value, *fence, *owner;
    size_t token_len, value_len, fence_len, owner_len;
    char flags; /* as in an envelope (common.lua), for the client that asks */
};

/* Reads such a record; the result borrows from it. False: it has an unknown form. */
static bool record_read(const struct worker *w, const struct lock_client *client, const char *record, size_t len,
                        struct short_record *r) {
    const char *end = record + len, *line[3], *p = end;
    for (int i = 2; i >= 0; i--) { /* the last three lines: the value before them may have lines itself */
        p = memrchr(record, '\n', (size_t)(p - record));
        if (!p)
            return false;
        line[i] = p + 1;
    }
    r->token = record + 2;
    const char *token_end = len > 2 ? memchr(r->token, '\n', (size_t)(end - r->token)) : NULL;
    size_t process_len = strlen(w->shared->process_id);
    if (record[0] != '1' || record[1] != '\n' || !token_end || token_end >= p)
        return false;
    r->token_len = (size_t)(token_end - r->token);
    r->value = token_end + 1;
    r->value_len = (size_t)(p - r->value);
    r->fence = line[0];
    r->fence_len = (size_t)(line[1] - line[0]) - 1;
    r->owner = line[2];
    r->owner_len = (size_t)(end - line[2]);
    if (r->token_len <= process_len || r->fence_len == 0 || r->fence_len >= 20)
        return false;
    size_t name_len = 0;
    const char *name = client ? lock_client_name(client, &name_len) : "";
    bool leased = *line[1] == 'g', pooled = (token_end[-1] - '0') & 1;
    bool same = client && r->owner_len == name_len && memcmp(r->owner, name, name_len) == 0;
    bool elsewhere = memcmp(r->token, w->shared->process_id, process_len) != 0;
    r->flags = (char)(leased + 2 * pooled + 4 * same + 32 * elsewhere);
    return true;
}

/* Writes the short text (common.lua) for the guard record that has refused an attempt. Returns its length; 0: the
 * lease is the attempt's own, or the record has an unknown form. */
static size_t refusal(const struct call *c, const char *record, size_t len, char out[LOCK_ANSWER_MAX]) {
    const struct lock_call *l = c->lock;
    struct short_record r;
    if (!record_read(c->request->worker, lock_call_client(c), record, len, &r) ||
        (r.token_len == l->plan.attempt_len && memcmp(r.token, l->plan.attempt_token, r.token_len) == 0))
        return 0;
    char text[2 + RESP_HEADER_MAX] = {'h', (char)('0' + r.flags)};
    memcpy(text + 2, r.fence, r.fence_len);
    return (size_t)(resp_bulk_write(out, text, 2 + r.fence_len) - out);
}

static void attempt_answered(struct call *c, const struct call_end *end) {
    invariant_debug(c->lock && c->lock->fence && !c->up.in_flight, "an answer belongs to no attempt");
    struct lock_call *l = c->lock;
    struct worker *w = c->request->worker;
    struct attempt_answer a = {.whole = false};
    char text[LOCK_ANSWER_MAX];
    struct call_end out = {.reply = text};
    if (!end->error)
        a = read_answer(end->reply, end->len);
    if (a.whole && a.raised && a.vacant && a.placed) {
        char fence[1 + RESP_HEADER_MAX], *stop = fence + sizeof(fence), *from = resp_digits_write(stop, l->fence);
        if (l->expiry_ms == 0) /* the proxy set the expiry */
            *--from = 'g';
        out.len = (size_t)(resp_bulk_write(text, from, (size_t)(stop - from)) - text);
    } else if (a.whole && a.record && !a.placed && c->up.attempts == 0) {
        out.len = refusal(c, a.record, a.record_len, text);
        l->fence = out.len > 0 ? 0 : l->fence; /* refused: the attempt has no lease */
    }
    if (out.len == 0 && !end->error) {
        bool executed = end->len > 0 && end->reply[0] == '*';
        if (!executed || c->up.multi_refused) {
            log_verbose("guard records: Redis has refused an attempt in the short form: %.*s",
                        (int)(end->len > 2 ? end->len - 2 : 0), end->reply);
            w->locks->short_from_ms = worker_now(w) + REFUSED_MS;
        }
        if (!executed && !c->up.multi_refused && c->up.attempts == 0) {
            lock_attempt_anew(c, l);
            return;
        }
        /* acquire.lua hears whether the attempt has set the lock, and its fence if that is known */
        char said[1 + RESP_HEADER_MAX];
        if (a.placed ? a.raised : a.whole && c->up.attempts == 0)
            snprintf(said, sizeof(said), "%c%" PRIu64, a.placed ? '!' : '-', l->fence);
        else
            snprintf(said, sizeof(said), "%c", a.placed ? '!' : '+');
        lock_build_again(w, lock_call_client(c), l, said);
        lock_submit_next(c, l, SCRIPT_ACQUIRE, NULL);
        return;
    }
    lock_attempt_ended(c, out.len > 0 ? &out : end);
}

static void submit_attempt(struct call *c, struct lock_call *l) {
    struct worker *w = c->request->worker;
    l->fence = engine_new_fence(w->shared->engine, (uint64_t)clock_wall_us());
    lock_build_short(w, c->request->session->lock.client, l);
    c->done = attempt_answered;
    call_submit_together(c, COMMANDS_BEFORE_EXEC, l->plan.slot, w->build.data, w->build.len);
}

/* Reads the answer to submit_question; false: it is none. Items are null where a key is missing, or no string. */
static bool answer_read(const struct call_end *end, struct resp_item *value, struct resp_item *record) {
    struct resp_item all;
    const char *p = end->reply, *reply_end = p + end->len;
    return resp_item_read(&p, reply_end, &all) && all.type == '*' && all.num == 2 &&
           resp_item_read(&p, reply_end, value) && resp_item_read(&p, reply_end, record);
}

static void question_answered(struct call *c, const struct call_end *end) {
    struct lock_call *l = c->lock;
    struct resp_item value, record;
    if (end->error) {
        lock_attempt_ended(c, end);
        return;
    }
    bool read = answer_read(end, &value, &record);
    if (read && value.null && c->request->session) {
        submit_attempt(c, l);
        return;
    }
    char text[LOCK_ANSWER_MAX];
    struct call_end out = {.reply = text};
    if (read && !record.null)
        out.len = refusal(c, record.str, record.len, text);
    if (out.len > 0)
        lock_attempt_ended(c, &out);
    else
        lock_attempt_anew(c, l);
}

/* Asks for the lock and its guard record; `done` takes the answer. */
static void submit_question(struct call *c, const struct lock_call *l, call_done_fn done) {
    struct worker *w = c->request->worker;
    build_start(w, 3);
    build_text(w, "MGET");
    lock_build_key(w, l->plan.key.name, l->plan.key.len);
    c->done = done;
    call_submit(c, l->plan.slot, w->build.data, w->build.len);
}

bool lock_acquire_short(struct call *call, struct lock_call *l) {
    struct worker *w = call->request->worker;
    const struct lock_rule *rule = l->plan.rule;
    if (!w->config->short_records || l->plan.verb != LOCK_ACQUIRE || !l->value || l->plan.key.len == 0 ||
        l->expiry_ms == LOCK_EXPIRY_OTHER || lock_expiry_asked(l) <= 0 || rule->wait_ms > 0 || rule->confirms ||
        rule->lock_delay_ms > 0 || rule->fenced || l->plan.right == RIGHT_RELEASE_THEN_ACQUIRE ||
        worker_now(w) < w->locks->short_from_ms)
        return false;
    l->next = call->done;
    call->lock = l;
    call->up.script = NULL;
    call->up.repeatable = true;
    if (l->plan.seems_held)
        submit_question(call, l, question_answered);
    else
        submit_attempt(call, l);
    return true;
}

/* ---- reading -------------------------------------------------------------------------------------- */

/* Takes the answer to a GET. Unless it is that of a lock under a guard record in the short form, read.lua follows. */
static void read_answered(struct call *c, const struct call_end *end) {
    struct lock_call *l = c->lock;
    struct worker *w = c->request->worker;
    const struct lock_client *client = lock_call_client(c);
    struct resp_item value, record;
    struct short_record r;
    if (end->error) {
        lock_answered(c, end);
        return;
    }
    if (answer_read(end, &value, &record) && !value.null && !record.null &&
        record_read(w, client, record.str, record.len, &r) && r.value_len == value.len &&
        memcmp(r.value, value.str, value.len) == 0) {
        build_start(w, 6); /* the envelope of read.lua */
        build_bulk(w, value.str, value.len);
        build_text(w, "held");
        text_append(&w->build, ":", 1);
        text_append(&w->build, r.fence, r.fence_len);
        text_append(&w->build, "\r\n:-3\r\n", 7);
        build_bulk(w, r.owner, r.owner_len);
        text_commit(&w->build, resp_header_write(text_reserve(&w->build, RESP_HEADER_MAX), ':', r.flags));
        lock_answered(c, &(struct call_end){.reply = w->build.data, .len = w->build.len});
        return;
    }
    lock_build_call(w, SCRIPT_READ, NULL, &l->plan.key, LOCK_HEADER_ARGS + 2);
    lock_build_header(w, client, &l->plan, NULL, 0, l->shape);
    build_text(w, "GET");
    build_bulk(w, l->key, l->plan.key.len);
    lock_submit_next(c, l, SCRIPT_READ, NULL);
}

bool lock_read(struct call *call, struct lock_call *l) {
    invariant_debug(l->plan.verb == LOCK_READ, "a command that is no GET is sent as one");
    if (!call->request->worker->config->short_records || l->plan.key.len == 0)
        return false;
    l->next = call->done;
    call->lock = l;
    call->up.script = NULL;
    call->up.repeatable = true;
    submit_question(call, l, read_answered);
    return true;
}

/* ---- releasing ------------------------------------------------------------------------------------ */

static void frees_answered(struct call *c, const struct call_end *end) {
    struct lock_call *l = c->lock;
    struct resp_item answers;
    const char *p = end->reply;
    char answer[TOGETHER_MAX] = {0};
    bool twice = c->up.attempts > 0;
    struct list_node joined, *n;
    list_init(&joined);
    list_splice(&joined, &l->joined);
    if (!end->error && resp_item_read(&p, end->reply + end->len, &answers) && answers.type == '$' && !answers.null)
        memcpy(answer, answers.str, answers.len < TOGETHER_MAX ? answers.len : TOGETHER_MAX);
    for (size_t i = 0; c; i++) {
        if (end->error || answer[i] == 'r') {
            lock_attempt_ended(c, end->error ? end : &lock_released_end);
        } else {
            c->lock->sent_twice = twice;
            lock_submit_whole(c, lock_answered);
        }
        n = list_shift(&joined);
        c = n ? LIST_ENTRY(n, struct lock_call, link)->call : NULL;
    }
}

static void free_take(struct lock_call *l) {
    struct session *s = l->call->request->session;
    list_remove(&l->link);
    if (s)
        s->hears &= (uint8_t)~HEARS_NEXT;
}

static void free_submit(struct lock_call *l) {
    bool alone = list_empty(&l->joined);
    lock_build_free(l->call->request->worker, l);
    lock_submit_next(l->call, l, alone ? SCRIPT_FREE : SCRIPT_FREE_ALL, frees_answered);
}

/* Whether a release may go in the call of `first`, with the others that have joined it. */
static bool goes_with(const struct lock_call *first, const struct lock_call *l) {
    const struct session *a = first->call->request->session, *b = l->call->request->session;
    if (!a || !b || b->in_flight > 1 || memcmp(&a->lane, &b->lane, sizeof(a->lane)) != 0 ||
        (first->plan.slot != l->plan.slot && upstream_is_cluster(b->worker->upstream)))
        return false;
    LIST_EACH(other, &first->joined, struct lock_call, link)
        if (other->plan.hash == l->plan.hash)
            return false;
    return first->plan.hash != l->plan.hash;
}

static void frees_flush(struct worker *w, struct worker_job *job) {
    struct list_node *n, *frees = &w->locks->frees;
    while ((n = list_first(frees))) {
        struct lock_call *first = LIST_ENTRY(n, struct lock_call, link);
        free_take(first);
        for (unsigned count = 1; count < TOGETHER_MAX && (n = list_first(frees)); count++) {
            struct lock_call *l = LIST_ENTRY(n, struct lock_call, link);
            if (!goes_with(first, l))
                break;
            free_take(l);
            list_append(&first->joined, &l->link);
            request_barrier(l->call->request);
        }
        free_submit(first);
    }
}

bool lock_free(struct call *call, struct lock_call *l) {
    struct worker *w = call->request->worker;
    const struct lock_plan *plan = &l->plan;
    if (!plan->short_record || plan->verb != LOCK_RELEASE || plan->right != RIGHT_CLAIM || !plan->claim_fence ||
        plan->claim_len == 0 || l->shape != SHAPE_INT)
        return false;
    invariant_debug(!call->lock && list_empty(&l->link), "a release is sent twice");
    l->next = call->done;
    l->call = call;
    call->lock = l;
    lock_turn_add(w, &w->locks->frees, &l->link, frees_flush);
    call->request->session->hears |= HEARS_NEXT;
    return true;
}

void lock_free_now(struct session *s) {
    const struct request *r = LIST_ENTRY(s->requests.prev, const struct request, link);
    struct lock_call *l = r->call.lock;
    invariant(l && l->call == &r->call && !list_empty(&l->link),
              "the session's last request is no release that is kept");
    free_take(l);
    free_submit(l);
}
