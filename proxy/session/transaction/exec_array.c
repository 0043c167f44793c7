/*
 * Makes the client's array from EXEC's array:
 *
 *      node:    *4  envelope  $1 v  :1  envelope        queued: EVAL..., GET k, DEL a, EVAL... (lock keys)
 *                      │       │     └──sum───┘
 *      client:  *3  its reply  $1 v      :2             sent: SETNX lock, GET k, DEL a lock:b
 *
 * Without elements that change, the array goes to the client as it arrives, and does not come here.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/base/sum.h"
#include "proxy/session/locks/locks.h"
#include "proxy/session/transaction/private.h"

/* The position in the node's array. */
struct elements {
    const char *at, *end;
    uint32_t index;
    struct list_node *item; /* the item of the next element that has one, or the list's head */
};

/* ---- elements ------------------------------------------------------------------------------------ */

/* Handles a lock script's envelope. */
static void item_lock(struct transaction *t, struct session *s, struct transaction_item *item, const char *element,
                      size_t len, struct text *out) {
    struct call_end end = {.reply = element, .len = len};
    struct lock_answer part;
    struct lock_call *lock = item->lock;
    invariant(lock, "a lock call ends twice");
    item->lock = NULL;
    lock_finish_queued(t->worker, s, lock, &end, t->replicas, &part);
    if (item->kind == ITEM_STEP)
        return;
    if (part.end.error)
        text_printf(out, "-%s\r\n", part.end.error);
    else
        text_append(out, part.end.reply, part.end.len);
}

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

/* Appends the client's part of an element. */
static void item_reply(struct transaction *t, struct session *s, struct transaction_item *item, const char *element,
                       size_t len, struct text *out) {
    struct call_end end = {.reply = element, .len = len};
    const char *refusal = item->kind == ITEM_AUDIT ? script_refusal(t, item) : NULL;
    switch (item->kind) {
    case ITEM_PLAIN:
        text_append(out, element, len);
        break;
    case ITEM_AUDIT:
        if (refusal)
            text_printf(out, "-%s\r\n", refusal);
        else
            text_append(out, element, len);
        if (item->note)
            audit_end(t->worker, s, item->note, &end);
        item->note = NULL;
        break;
    case ITEM_PERMITS:
        text_append(out, element, len);
        permit_note_end(t->worker, s, item->permits, &end);
        item->permits = NULL;
        break;
    case ITEM_MADE:
        item->element(s, item, element, len, out);
        break;
    case ITEM_FIRST:
        break;
    case ITEM_LOCK:
    case ITEM_STEP:
        item_lock(t, s, item, element, len, out);
        break;
    }
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

/* Appends the header of the client's array. */
static void append_header(const struct transaction *t, struct text *out) {
    int64_t shown = t->count;
    LIST_FOREACH(it, &t->items) {
        const struct transaction_item *item = LIST_ENTRY(it, struct transaction_item, link);
        bool step = item->kind == ITEM_FIRST || item->kind == ITEM_STEP;
        shown -= step ? 1 : item->group > 1 ? item->group - 1 : 0;
    }
    invariant(shown >= 0 && shown <= t->count, "%lld elements of %u", (long long)shown, t->count);
    text_commit(out, resp_header_write(text_reserve(out, RESP_HEADER_MAX), '*', shown));
}

bool exec_array_whole(const struct transaction *t, const struct call_end *end) {
    const char *p = end->reply, *stop = end->reply + end->len;
    struct resp_item array;
    if (!resp_item_read(&p, stop, &array) || array.type != '*' || array.null || array.num != t->count)
        return false;
    for (uint32_t i = 0; i < t->count && p; i++)
        p = p < stop ? resp_item_end(p, stop) : NULL;
    return p != NULL;
}

void exec_array_locks(const struct transaction *t, const struct call_end *end,
                      void (*answered)(struct lock_call *l, const struct call_end *element)) {
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
            answered(item->lock, &(struct call_end){.reply = p, .len = (size_t)(next - p)});
        it = it->next;
    }
}

void exec_array_make(struct transaction *t, struct session *s, const struct call_end *end, struct text *out) {
    struct elements e = {.at = end->reply, .end = end->reply + end->len, .item = t->items.next};
    struct resp_item header;
    bool more = resp_item_read(&e.at, e.end, &header);
    append_header(t, out);
    while (more && e.index < t->count) {
        const struct transaction_item *item = item_here(t, &e);
        more = item && item->group > 1 ? next_group(t, s, &e, item->group, out) : next_element(t, s, &e, out);
    }
    invariant(!more || (e.index == t->count && e.item == &t->items), "element %u of %u", e.index, t->count);
}
