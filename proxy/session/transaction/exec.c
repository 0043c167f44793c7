/*
 * The end of a transaction: EXEC, DISCARD, UNWATCH.
 *
 * Every queued lock call ends here: with its envelope; as not sent, if EXEC did nothing; as unknown, if the node was
 * lost while EXEC was in flight.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/base/sum.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/transaction/private.h"

/* ---- items --------------------------------------------------------------------------------------- */

/* Ends the lock calls that have not ended yet, and frees the items. */
static void transaction_items_free(struct transaction *t, struct session *s, const struct call_end *end) {
    for (struct transaction_item *item; (item = LIST_SHIFT(&t->items, struct transaction_item, link));) {
        struct lock_answer out;
        if (item->lock)
            lock_finish(t->worker, s, item->lock, end, &out);
        if (item->note)
            audit_end(t->worker, s, item->note, end);
        if (item->permits)
            permit_note_end(t->worker, s, item->permits, end);
        fence_forget(item->question);
        secret_overwrite(item->bytes, item->len);
        memory_free(item);
    }
}

static void transaction_unpin(struct transaction *t, bool clean) {
    if (t->pin)
        pin_give(t->worker, t->pin, PIN_TRANSACTION, clean && !t->unclean);
    t->pin = NULL;
}

void early_free(struct early *early) {
    secret_overwrite(early->bytes, early->len);
    memory_free(early);
}

void transaction_free(struct transaction *t, struct session *s, bool clean) {
    invariant(!s || transaction_of(s) != t, "a session keeps a transaction that is freed");
    transaction_items_free(t, s, &lock_not_sent_end);
    for (struct early *early; (early = LIST_SHIFT(&t->early, struct early, link));)
        early_free(early);
    transaction_unpin(t, clean);
    text_clear(&t->watched);
    text_clear(&t->voted);
    memory_free(t);
}

/* ---- replicas ------------------------------------------------------------------------------------ */

/* The WAIT after an EXEC that may acquire locks of rules with `replicas`, over the same connection. */
struct exec_wait {
    struct request_owner owner; /* first */
    struct request *exec;       /* NULL: its transaction is over */
    struct text reply;          /* EXEC's reply, once it has come */
};

static void exec_end(struct request *r, const struct call_end *end);

static void exec_waited(struct call *c, const struct call_end *end) {
    struct exec_wait *wait = REQUEST_OWNER(c->request, struct exec_wait);
    struct request *r = wait->exec;
    invariant(!r || REQUEST_OWNER(r, struct transaction)->wait == wait, "the WAIT of another EXEC ends");
    struct resp_item item;
    const char *p = end->reply;
    bool count = !end->error && resp_item_read(&p, p + end->len, &item) && item.type == ':';
    if (r) {
        struct transaction *t = REQUEST_OWNER(r, struct transaction);
        t->replicas = count ? item.num : 0;
        t->wait = NULL;
        exec_end(r, &(struct call_end){.reply = wait->reply.data, .len = wait->reply.len});
    }
    request_disown(c->request);
    text_clear(&wait->reply);
    memory_free(wait);
    request_reply(c->request, "", 0, true);
}

/* Separates the WAIT from its EXEC: its result is not needed any more. */
static void exec_unwait(struct transaction *t) {
    if (t->wait)
        t->wait->exec = NULL;
    t->wait = NULL;
}

/* The largest number of replicas that the locks' rules ask for, and the longest time; false: none. */
static bool replicas_asked(const struct transaction *t, int64_t *replicas, int64_t *ms) {
    *replicas = *ms = 0;
    LIST_EACH(item, &t->items, struct transaction_item, link) {
        const struct lock_call *l = item->lock;
        if (!l || !lock_wants_replicas(l))
            continue;
        const struct lock_rule *rule = l->plan.rule;
        *replicas = rule->replicas > *replicas ? rule->replicas : *replicas;
        *ms = rule->replicas_ms > *ms ? rule->replicas_ms : *ms;
    }
    return *replicas > 0;
}

/* ---- the client's array ----------------------------------------------------------------------------- */

/* Makes the client's array from EXEC's array:
 *
 *      node:    *4  envelope  $1 v  :1  envelope        queued: EVAL..., GET k, DEL a, EVAL... (lock keys)
 *                      │       │     └──sum───┘
 *      client:  *3  its reply  $1 v      :2             sent: SETNX lock, GET k, DEL a lock:b
 *
 * Without elements that change, the array goes to the client as it arrives, and does not come here. */

/* The position in the node's array. */
struct elements {
    const char *at, *end;
    uint32_t index;
    struct list_node *item; /* the item of the next element that has one, or the list's head */
};

/* The error of a script whose lock the witnesses have refused; NULL: they have not. The script's steps follow it. */
static const char *script_refusal(const struct transaction *t, const struct transaction_item *item) {
    const char *error = NULL;
    for (const struct list_node *it = item->link.next; it != &t->items && !error; it = it->next) {
        const struct transaction_item *step = LIST_ENTRY(it, struct transaction_item, link);
        if (step->kind != ITEM_STEP)
            break;
        error = lock_queue_refusal(step->lock);
    }
    return error;
}

static bool item_is_step(const struct transaction_item *item) {
    return item->kind == ITEM_FIRST || item->kind == ITEM_STEP;
}

static void item_reply(struct transaction *t, struct session *s, struct transaction_item *item, const char *element,
                       size_t len, struct text *out) {
    struct call_end end = {.reply = element, .len = len};
    struct lock_call *lock = item->lock;
    struct lock_answer part;
    part.end = end;
    part.end.error = item->kind == ITEM_PLAIN ? script_refusal(t, item) : NULL;
    invariant(lock || (item->kind != ITEM_LOCK && item->kind != ITEM_STEP), "a lock call ends twice");
    item->lock = NULL;
    if (lock)
        lock_finish_queued(t->worker, s, lock, &end, t->replicas, &part);
    if (item->element)
        item->element(s, item, element, len, out);
    else if (!item_is_step(item) && part.end.error)
        text_printf(out, "-%s\r\n", part.end.error);
    else if (!item_is_step(item))
        text_append(out, part.end.reply, part.end.len);
    if (item->note)
        audit_end(t->worker, s, item->note, &end);
    if (item->permits)
        permit_note_end(t->worker, s, item->permits, &end);
    item->note = NULL;
    item->permits = NULL;
}

static struct transaction_item *item_here(struct transaction *t, const struct elements *e) {
    if (e->item == &t->items)
        return NULL;
    struct transaction_item *item = LIST_ENTRY(e->item, struct transaction_item, link);
    return item->at == e->index ? item : NULL;
}

/* Appends the next element in the client's form. False: the array is shorter than its header says. */
static bool next_element(struct transaction *t, struct session *s, struct elements *e, struct text *out) {
    const char *next = e->at < e->end ? resp_item_end(e->at, e->end) : NULL;
    if (!next)
        return false;
    struct transaction_item *item = item_here(t, e);
    invariant(e->item == &t->items || LIST_ENTRY(e->item, struct transaction_item, link)->at >= e->index,
              "an item was passed over at element %u", e->index);
    if (item) {
        item_reply(t, s, item, e->at, (size_t)(next - e->at), out);
        e->item = e->item->next;
    } else {
        text_append(out, e->at, (size_t)(next - e->at));
    }
    e->at = next;
    e->index++;
    return true;
}

/* Appends a group of elements as one: their sum, or the first error among them. */
static bool next_group(struct transaction *t, struct session *s, struct elements *e, uint32_t group, struct text *out) {
    invariant(group > 1 && e->index + group <= t->count, "a group of %u at element %u of %u", group, e->index,
              t->count);
    struct text part = {0}, error = {0};
    int64_t sum = 0;
    bool whole = true;
    for (uint32_t i = 0; i < group && whole; i++) {
        struct resp_item item;
        part.len = 0;
        whole = next_element(t, s, e, &part);
        const char *p = part.data;
        if (!whole || !resp_item_read(&p, part.data + part.len, &item))
            continue;
        if (item.type == ':')
            sum = sum_add(sum, item.num);
        else if (error.len == 0)
            text_append(&error, part.data, part.len);
    }
    if (error.len > 0)
        text_append(out, error.data, error.len);
    else
        text_commit(out, resp_header_write(text_reserve(out, RESP_HEADER_MAX), ':', sum));
    text_clear(&part);
    text_clear(&error);
    return whole;
}

/* Whether EXEC's reply is an array with an element for each queued command. */
static bool array_is_whole(const struct transaction *t, const struct call_end *end) {
    const char *p = end->reply, *stop = end->reply + end->len;
    struct resp_item array;
    if (!resp_item_read(&p, stop, &array) || array.type != '*' || array.null || array.num != t->count)
        return false;
    for (uint32_t i = 0; i < t->count && p; i++)
        p = p < stop ? resp_item_end(p, stop) : NULL;
    return p != NULL;
}

/* Gives each queued lock call its element of EXEC's array, which must be whole. */
static void array_locks(const struct transaction *t, const struct call_end *end) {
    const char *p = end->reply, *stop = end->reply + end->len, *next;
    const struct list_node *it = t->items.next;
    struct resp_item array;
    bool read = resp_item_read(&p, stop, &array);
    for (uint32_t i = 0; read && i < t->count && it != &t->items; i++, p = next) {
        const struct transaction_item *item = LIST_ENTRY(it, struct transaction_item, link);
        next = resp_item_end(p, stop);
        if (item->at != i)
            continue;
        if (item->lock)
            lock_queue_answer(item->lock, &(struct call_end){.reply = p, .len = (size_t)(next - p)});
        it = it->next;
    }
}

/* ---- EXEC ---------------------------------------------------------------------------------------- */

/* Whether the connection is in no transaction after this reply. */
static bool leaves_clean(const char *reply, size_t len) {
    return reply[0] != '-' || reply_begins(reply, len, "-EXECABORT ");
}

/* Answers an EXEC that was redirected, since a slot has moved after its commands were queued. Nothing was executed. */
static void answer_moved(struct request *r) {
    request_error(r, "EXECABORT Transaction discarded because a slot of its keys has moved; nothing was executed");
}

static void exec_streamed(struct upstream_request *up, const char *data, size_t len, bool last) {
    struct call *c = (struct call *)(void *)up;
    struct request *r = c->request;
    struct transaction *t = REQUEST_OWNER(r, struct transaction);
    bool first = c->count++ == 0;
    if (last) {
        request_disown(r);
        up->ops = t->ops;
        transaction_free(t, r->session, !first || leaves_clean(data, len));
    }
    if (first && last && reply_redirects(data, len))
        answer_moved(r);
    else
        request_reply(r, data, len, last);
}

static void exec_failed(struct request *r, const struct call_end *end) {
    struct transaction *t = REQUEST_OWNER(r, struct transaction);
    request_disown(r);
    exec_unwait(t);
    transaction_items_free(t, r->session, end);
    transaction_free(t, r->session, false);
    request_fail(r, end->error);
}

static void exec_stream_failed(struct upstream_request *up, enum upstream_failure why, const char *error) {
    char copy[TRANSACTION_ERROR_MAX];
    snprintf(copy, sizeof(copy), "%s", error);
    struct call_end end = {.error = copy, .why = why};
    struct request *r = ((struct call *)(void *)up)->request;
    up->ops = REQUEST_OWNER(r, struct transaction)->ops;
    exec_failed(r, &end);
}

static bool is_array(const struct call_end *end) {
    return end->reply[0] == '*' && !reply_begins(end->reply, end->len, "*-1");
}

static void exec_collected(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    if (end->error) {
        exec_failed(r, end);
        return;
    }
    struct transaction *t = REQUEST_OWNER(r, struct transaction);
    if (t->wait && is_array(end)) {
        text_append(&t->wait->reply, end->reply, end->len);
        return;
    }
    exec_unwait(t);
    exec_end(r, end);
}

/* Answers EXEC with the client's array, made from EXEC's, which must be whole. */
static void exec_answer(struct request *r, struct transaction *t, const struct call_end *end) {
    struct text out = {0};
    int64_t shown = t->count;
    LIST_EACH(item, &t->items, const struct transaction_item, link)
        shown -= item_is_step(item) ? 1 : item->group > 1 ? item->group - 1 : 0;
    invariant(shown >= 0 && shown <= t->count, "%lld elements of %u", (long long)shown, t->count);
    text_commit(&out, resp_header_write(text_reserve(&out, RESP_HEADER_MAX), '*', shown));
    struct elements e = {.at = end->reply, .end = end->reply + end->len, .item = t->items.next};
    struct resp_item header;
    bool more = resp_item_read(&e.at, e.end, &header);
    while (more && e.index < t->count) {
        const struct transaction_item *item = item_here(t, &e);
        more = item && item->group > 1 ? next_group(t, r->session, &e, item->group, &out)
                                       : next_element(t, r->session, &e, &out);
    }
    invariant(!more || (e.index == t->count && e.item == &t->items), "element %u of %u", e.index, t->count);
    transaction_free(t, r->session, true);
    request_reply(r, out.data, out.len, true);
    text_clear(&out);
}

static void exec_voted(void *arg) {
    struct transaction *t = arg;
    exec_answer(t->exec, t, &(struct call_end){.reply = t->voted.data, .len = t->voted.len});
}

/* Asks the witnesses about the locks of a transaction that was executed. False: about none. */
static bool exec_vote(struct request *r, struct transaction *t, const struct call_end *end) {
    if (!t->locks.quorum)
        return false;
    array_locks(t, end);
    t->exec = r;
    text_append(&t->voted, end->reply, end->len);
    return lock_queue_vote(t->worker, &t->locks, exec_voted, t);
}

static void exec_end(struct request *r, const struct call_end *end) {
    struct transaction *t = REQUEST_OWNER(r, struct transaction);
    struct session *s = r->session;
    invariant(t && !t->wait, "an EXEC ends before its WAIT");
    request_disown(r);
    bool array = is_array(end), whole = array && array_is_whole(t, end);
    if (array && !whole) {
        static const struct call_end unknown = {.error = "UPSTREAM unknown", .why = UPSTREAM_UNKNOWN};
        transaction_items_free(t, s, &unknown);
    }
    transaction_unpin(t, leaves_clean(end->reply, end->len) && (whole || !array));
    if (whole) {
        if (!exec_vote(r, t, end))
            exec_answer(r, t, end);
        return;
    }
    bool nil = reply_begins(end->reply, end->len, "*-1") || reply_begins(end->reply, end->len, "_");
    LIST_EACH(item, &t->items, struct transaction_item, link) { /* a watched key has changed, and EXEC did nothing */
        if (!nil || !item->lock)
            continue;
        invariant(!list_empty(&item->lock->queued), "a call is undone that was not queued");
        item->lock->plan.undone = true;
    }
    transaction_free(t, s, false);
    if (array)
        request_fail(r, "UPSTREAM the node's answer to EXEC is not as long as the transaction; it was executed");
    else if (reply_redirects(end->reply, end->len))
        answer_moved(r);
    else
        request_reply(r, end->reply, end->len, true);
}

static bool runs_code(const struct request *exec) {
    return REQUEST_OWNER(exec, const struct transaction)->runs_code;
}

static const struct request_owner_ops exec_ops = {.may_last = runs_code};

static bool exec_may_last(const struct upstream_request *up) {
    return runs_code(((const struct call *)(const void *)up)->request);
}

static void exec_send(struct transaction *t, struct request *request) {
    static const struct upstream_request_ops stream = {
        .reply = exec_streamed, .fail = exec_stream_failed, .may_last = exec_may_last, .late = call_late};
    static const char exec[] = "*1\r\n$4\r\nEXEC\r\n";
    request_own(request, &t->owner, &exec_ops);
    t->ops = request->call.up.ops;
    if (list_empty(&t->items))
        request->call.up.ops = &stream;
    else
        request->call.done = exec_collected;
    int64_t replicas, ms;
    t->replicas = INT64_MAX;
    invariant(t->pin && t->multi_ok && !t->looks && !t->wait, "an EXEC is sent before its commands");
    struct worker *w = t->worker;
    struct upstream_pin *pin = t->pin;
    struct exec_wait *wait = NULL;
    if (replicas_asked(t, &replicas, &ms)) {
        wait = t->wait = memory_zalloc(sizeof(*wait));
        wait->exec = request;
    }
    LIST_EACH(l, &t->locks.calls, struct lock_call, queued)
        engine_sent(w->shared->engine, &l->plan);
    call_submit_pin(&request->call, pin, exec, sizeof(exec) - 1, false);
    if (!wait || !wait->exec) {
        memory_free(wait); /* it has failed at once */
        return;
    }
    struct request *r = request_internal(w, exec_waited);
    request_own(r, &wait->owner, &request_owner_silent);
    build_start(w, 3);
    build_text(w, "WAIT");
    build_number(w, replicas);
    build_number(w, ms);
    call_submit_pin(&r->call, pin, w->build.data, w->build.len, false);
}

/* ---- locks in other slots -------------------------------------------------------------------------- */

/* Continues after the check of locks in other slots, for data that the transaction writes. If one is lost, the whole
 * transaction is given up with its connection. */
static void exec_looked(void *arg, const char *error, size_t len) {
    struct request *r = arg;
    struct transaction *t = REQUEST_OWNER(r, struct transaction);
    char lost[TRANSACTION_ERROR_MAX];
    invariant(t->looks, "an answer about a lock comes twice");
    t->looks = NULL;
    if (!error && t->pin) {
        exec_send(t, r);
        return;
    }
    snprintf(lost, sizeof(lost), "%s", t->error);
    request_disown(r);
    transaction_free(t, r->session, false);
    if (error)
        request_reply(r, error, len, true);
    else
        request_fail(r, lost);
}

/* Gives up a transaction whose session has closed before EXEC was sent. */
static void exec_unsent(struct request *r) {
    struct transaction *t = REQUEST_OWNER(r, struct transaction);
    fence_looks_forget(t->looks);
    request_disown(r);
    transaction_free(t, NULL, false);
    request_reply(r, "", 0, true);
}

static const struct request_owner_ops looking_ops = {.left = exec_unsent};

enum dispatch_result transaction_exec(struct transaction *t, struct request *request) {
    invariant(!t->looks && !t->aborted && request->session, "a refused transaction is executed");
    LIST_EACH(item, &t->items, struct transaction_item, link) {
        if (!item->question || !fence_is_elsewhere(item->question))
            continue;
        if (!t->looks)
            t->looks = fence_looks_new(request->session, exec_looked, request);
        fence_looks_add(t->looks, item->question);
    }
    if (t->looks) {
        request_own(request, &t->owner, &looking_ops);
        fence_looks_go(t->looks);
    } else {
        exec_send(t, request);
    }
    return DISPATCHED;
}

/* ---- DISCARD, UNWATCH ------------------------------------------------------------------------------ */

static void left(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct transaction *t = REQUEST_OWNER(r, struct transaction);
    invariant(t && !t->looks, "a transaction is left twice");
    const char *reply = t->left_reply;
    request_disown(r);
    transaction_free(t, r->session, !end->error && end->reply[0] == '+');
    if (!reply && end->error)
        reply = "+OK\r\n"; /* lost with its connection, so it is discarded */
    if (reply)
        request_reply(r, reply, strlen(reply), true);
    else
        request_reply(r, end->reply, end->len, true);
}

enum dispatch_result transaction_leave(struct transaction *t, struct request *request, const char *command,
                                       const char *reply) {
    t->left_reply = reply;
    request_own(request, &t->owner, &request_owner_silent);
    request->call.done = left;
    call_submit_pin(&request->call, t->pin, command, strlen(command), false);
    return DISPATCHED;
}
