/*
 * Split commands: one request becomes several calls, and their replies one reply.
 *
 *      MGET a b c ──┬─ part: a c (slot 1) ──> node ──┐
 *                   └─ part: b   (slot 2) ──> node ──┴─> array in the order of the keys
 *
 * A part has the keys of one slot (on a standalone: all keys). Exceptions: each lock key of DEL and UNLINK is a
 * separate part, which is a script; a part of MSET with lock keys is one script. Only some of many scripts are in
 * flight at once, so that other clients' lock commands are not delayed. The first error of a part is the reply. Fenced
 * data besides locks is a part that goes first, and alone: if it is refused, no lock is released.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/base/sum.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/core/session.h"
#include "proxy/session/fences/fenced.h"
#include "proxy/session/locks/locks.h"

enum { ERROR_LINE_MAX = 512, LOCK_PARTS_MAX = 10000 /* each is a script call, much longer than its key */ };
/* Parts of one command in flight at once: Redis runs so many scripts in a millisecond or two. */
enum { PARTS_AT_ONCE = 64 };

struct item {
    uint32_t arg;   /* index of the key among the arguments */
    uint32_t order; /* its index among the keys */
    int slot;
    const struct lock_rule *rule; /* set for a lock key; valid while the request is dispatched */
    char *name; /* a copy of a lock key: in MGET, since its value is a sighting; for a waiting part, until it is sent */
    size_t name_len;
};

/* A piece is an element of a merged array: a range of bytes in a part's reply. */
struct piece {
    const char *data;
    size_t len;
};

struct split {
    struct request_owner owner; /* first */
    enum command_split kind;
    int64_t sum;
    size_t item_count;
    struct item *items;              /* sorted by slot; a part has items [index, index + count) */
    struct piece *pieces;            /* by order; NULL: it is no MGET */
    struct text *kept;               /* replies that pieces point into, one for each part */
    struct audit_note *note;         /* the command's effect on audited keys, or NULL */
    struct session *session;         /* while it exists */
    size_t next, waiting;            /* the first item that may be a waiting part; how many wait */
    bool sends;                      /* parts are being sent: a part that ends at once must not send others */
    struct fence_question *question; /* the lock check for the data besides locks; NULL: no key is fenced */
    struct fence_looks *looks;       /* checks of locks in other slots, before that; NULL: none in progress */
    struct text data;                /* the data's part, while the locks are checked */
    int data_slot;
    char error[ERROR_LINE_MAX];
    bool failed;
};

/* Tells the engine which lock keys an MGET has shown. */
static void split_sightings(struct request *r, const struct split *split) {
    struct session *s = r->session;
    for (size_t i = 0; s && i < split->item_count; i++) {
        const struct item *it = &split->items[i];
        const struct lock_rule *rule = it->name ? lock_rule_for(s, it->name, it->name_len) : NULL;
        struct resp_item value;
        const char *p = split->pieces[it->order].data;
        if (!rule || !resp_item_read(&p, p + split->pieces[it->order].len, &value))
            continue;
        struct lock_key key = {.db = s->lane.db, .name = it->name, .len = it->name_len};
        engine_saw(s->worker->shared->engine, &s->lock, &key, rule, value.null ? NULL : value.str, value.len,
                   worker_now(s->worker));
    }
}

static void split_finish(struct request *r) {
    struct split *split = REQUEST_OWNER(r, struct split);
    invariant(split->waiting == 0 && r->parts_left == 0 && !split->looks, "%zu parts wait, %u are left", split->waiting,
              r->parts_left);
    request_disown(r);
    struct text whole = {0};
    char head[RESP_HEADER_MAX] = "+OK\r\n";
    size_t len = 5;
    bool sum = split->kind == SPLIT_SUM;
    if (split->kind != SPLIT_MSET)
        len = resp_header_write(head, sum ? ':' : '*', sum ? split->sum : (int64_t)split->item_count);
    if (split->note) { /* the audit of keys that some part has touched ends with the whole reply */
        text_append(&whole, head, len);
        for (size_t i = 0; split->pieces && !split->failed && i < split->item_count; i++)
            text_append(&whole, split->pieces[i].data, split->pieces[i].len);
        struct call_end end = {.why = UPSTREAM_UNKNOWN, .reply = whole.data, .len = whole.len};
        end.error = split->failed ? split->error : NULL;
        if (r->session)
            audit_released(r->session);
        audit_end(r->worker, r->session, split->note, &end);
        text_clear(&whole);
    }
    if (split->failed) {
        request_error(r, split->error);
    } else if (!split->pieces) {
        request_reply(r, head, len, true);
    } else {
        split_sightings(r, split);
        request_reply(r, head, len, false);
        for (size_t i = 0; i < split->item_count; i++)
            request_reply(r, split->pieces[i].data, split->pieces[i].len, false);
        request_reply(r, "", 0, true);
    }
    for (size_t i = 0; split->kept && i < split->item_count; i++)
        text_clear(&split->kept[i]);
    for (size_t i = 0; i < split->item_count; i++)
        memory_free(split->items[i].name);
    fence_looks_forget(split->looks);
    fence_forget(split->question);
    text_clear(&split->data);
    MEMORY_FREE_ALL(split->kept, split->items, split->pieces, split);
}

static bool split_take_array(struct split *split, const struct call *c, const struct call_end *end) {
    struct text *kept = &split->kept[c->index];
    uint32_t at = c->index;
    invariant(c->index + c->count <= split->item_count && kept->len == 0, "keys %u to %u of %zu", c->index,
              c->index + c->count, split->item_count);
    text_append(kept, end->reply, end->len);
    const char *p = kept->data, *stop = kept->data + kept->len;
    struct resp_item item;
    if (!resp_item_read(&p, stop, &item) || item.type != '*' || item.num != c->count)
        return false;
    for (uint32_t i = 0; i < c->count; i++) {
        const char *next = resp_item_end(p, stop);
        if (!next)
            return false;
        split->pieces[split->items[at + i].order] = (struct piece){p, (size_t)(next - p)};
        p = next;
    }
    return true;
}

static void split_go_on(struct request *r, size_t at_once);

static void split_part_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct split *split = REQUEST_OWNER(r, struct split);
    invariant(split && r->parts_left > 0, "a part ends behind its command");
    struct resp_item item;
    const char *p = end->reply;
    size_t len;
    const char *error = call_end_error(end, &len);
    if (!error && split->kind == SPLIT_MGET && !split_take_array(split, c, end)) {
        error = "UPSTREAM a node's reply has another shape than MGET's";
        len = strlen(error);
    }
    if (error && !split->failed)
        snprintf(split->error, sizeof(split->error), "%.*s", (int)len, error);
    split->failed |= error != NULL;
    if (!error && split->kind == SPLIT_SUM && resp_item_read(&p, end->reply + end->len, &item) && item.type == ':')
        split->sum = sum_add(split->sum, item.num);
    if (--r->parts_left == 0)
        split_finish(r);
    else if (split->waiting > 0)
        split_go_on(r, PARTS_AT_ONCE);
}

/* ---- keys over slots ------------------------------------------------------------------------------ */

static int item_compare(const void *a, const void *b) {
    const struct item *x = a, *y = b;
    if (x->slot != y->slot)
        return x->slot < y->slot ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* Makes the request of a part, whose arguments are among the bytes of the whole one; the caller frees part->argv. */
static void part_request(const struct request_class *k, const struct item *items, size_t count,
                         struct resp_request *part) {
    const struct resp_arg *argv = k->request->argv;
    size_t each = (size_t)(k->command->split == SPLIT_MSET ? 2 : 1);
    *part = *k->request;
    part->argc = 1 + count * each;
    part->argv = memory_alloc(part->argc * sizeof(*part->argv));
    part->argv[0] = argv[0];
    for (size_t i = 0; i < part->argc - 1; i++)
        part->argv[1 + i] = argv[items[i / each].arg + i % each];
}

/* Sends a part that is one lock key of DEL or UNLINK. */
static void split_lock_part(struct request *request, const struct lock_rule *rule, const char *key, size_t len) {
    struct call *call = call_new(request, split_part_done);
    const char *name = request->command->name;
    struct resp_arg whole = {.off = 0, .len = strlen(name)};
    struct lock_words words = {name, &whole, 1};
    call->count = 1;
    lock_run(call, rule, &lock_release_of_one, key, len, &words);
}

/* Sends waiting parts while fewer than at_once are in flight. The last part to end finishes the request. */
static void split_go_on(struct request *r, size_t at_once) {
    struct split *split = REQUEST_OWNER(r, struct split);
    if (split->sends)
        return;
    split->sends = true;
    r->parts_left++; /* held here, since some may end at once */
    while (split->waiting > 0 && r->parts_left - split->waiting <= at_once) {
        invariant(split->waiting <= r->parts_left, "%zu parts wait of %u", split->waiting, r->parts_left);
        while (!split->items[split->next].name)
            split->next++;
        struct item *item = &split->items[split->next++];
        struct session *s = split->session;
        const struct lock_rule *rule = lock_rule_for(s, item->name, item->name_len); /* NULL: it is no lock any more */
        split->waiting--;
        if (rule) {
            split_lock_part(r, rule, item->name, item->name_len);
        } else {
            struct call *call = call_new(r, split_part_done);
            call->count = 1;
            build_start(s->worker, 2);
            build_text(s->worker, r->command->name);
            build_bulk(s->worker, item->name, item->name_len);
            call_submit(call, item->slot, s->worker->build.data, s->worker->build.len);
        }
        r->parts_left--; /* it counted while it waited */
        memory_free(item->name);
        item->name = NULL;
    }
    split->sends = false;
    if (--r->parts_left == 0)
        split_finish(r);
}

/* Handles a closed session. The client has sent the whole command, so its waiting parts are sent while the session is
 * still known. The checks of locks in other slots are dropped. */
static void split_left(struct request *r) {
    struct split *split = REQUEST_OWNER(r, struct split);
    if (split->waiting > 0) {
        r->session = split->session;
        split->sends = false;
        r->parts_left++; /* held here, so that the request does not end while the session is closing */
        if (split->looks) {
            fence_looks_forget(split->looks);
            split->looks = NULL;
            r->parts_left--;
        }
        split_go_on(r, SIZE_MAX);
        r->session = NULL;
        if (--r->parts_left == 0)
            split_finish(r);
    }
}

static const struct request_owner_ops split_ops = {.left = split_left};

/* Sends a part of several keys; in MSET, lock keys make it a script. */
static void split_part(struct request *request, const struct request_class *whole, size_t index, size_t count) {
    const struct split *split = REQUEST_OWNER(request, struct split);
    const struct item *items = split->items + index;
    struct session *s = split->session;
    struct call *call = call_new(request, split_part_done);
    call->index = (uint32_t)index;
    call->count = (uint32_t)count;
    bool locks = false;
    for (size_t i = 0; split->kind == SPLIT_MSET && i < count; i++)
        locks = locks || items[i].rule;
    struct resp_request part;
    part_request(whole, items, count, &part);
    if (locks) {
        struct request_class k;
        class_find(&k, s, whole->command, &part, whole->bytes);
        lock_call_clobber(call, s, &k);
        class_clear(&k);
        memory_free(part.argv);
        return;
    }
    build_start(s->worker, part.argc);
    for (size_t i = 0; i < part.argc; i++)
        build_bulk(s->worker, whole->bytes + part.argv[i].off, part.argv[i].len);
    memory_free(part.argv);
    if (whole->replicas)
        (void)call_submit_read(call, items->slot, s->worker->build.data, s->worker->build.len);
    else
        call_submit(call, items->slot, s->worker->build.data, s->worker->build.len);
}

static bool own_part(const struct command *c, const struct item *item) {
    return item->rule && (c->id == COMMAND_DEL || c->id == COMMAND_UNLINK);
}

static void item_set(struct item *item, const struct request_class *k, size_t i) {
    size_t len;
    const char *key = class_key(k, i, &len);
    *item = (struct item){.arg = k->keys[i], .order = (uint32_t)i, .slot = k->slot, .rule = class_enforced(k, i)};
    if (k->slot == SLOT_SEVERAL)
        item->slot = slot_of_key(key, len);
    if (item->rule && k->command->split == SPLIT_MGET) {
        item->name = memory_strndup(key, len);
        item->name_len = len;
    }
}

static void split_wait(struct request *request, const struct request_class *k, struct item *item) {
    const char *key = request_arg(k->request, k->bytes, item->arg, &item->name_len);
    item->name = memory_strndup(key, item->name_len);
    REQUEST_OWNER(request, struct split)->waiting++;
    request->parts_left++;
}

static void split_send(struct request *request, const struct request_class *k) {
    struct split *split = REQUEST_OWNER(request, struct split);
    struct item *items = split->items;
    size_t count = split->item_count;
    split->sends = true;
    for (size_t i = 0; i < count;) {
        size_t n = 1;
        if (!own_part(k->command, &items[i])) {
            while (i + n < count && items[i + n].slot == items[i].slot && !own_part(k->command, &items[i + n]))
                n++;
            split_part(request, k, i, n);
        } else if (request->parts_left - split->waiting <= PARTS_AT_ONCE) {
            size_t len;
            const char *key = request_arg(k->request, k->bytes, items[i].arg, &len);
            split_lock_part(request, items[i].rule, key, len);
        } else {
            split_wait(request, k, &items[i]);
        }
        i += n;
    }
    split->sends = false;
    if (split->waiting > 0)
        request_barrier(request); /* the session's later requests come after all parts */
}

/* ---- fenced data besides locks ------------------------------------------------------------------- */

/* Handles the end of the data's part: if it is an error, no lock is released. */
static void data_ended(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct split *split = REQUEST_OWNER(r, struct split);
    if (end->error || end->reply[0] == '-') {
        r->parts_left -= (uint32_t)split->waiting;
        split->waiting = 0;
    }
    split_part_done(c, end);
}

static void data_done(struct call *c, const struct call_end *end) {
    const struct split *split = REQUEST_OWNER(c->request, struct split);
    struct text out = {0};
    struct call_end said = *end;
    if (!end->error) {
        fence_reply(c->request->session, split->question, end->reply, end->len, &out);
        said.reply = out.data;
        said.len = out.len;
    }
    data_ended(c, &said);
    text_clear(&out);
}

static void data_send(struct request *request, struct split *split) {
    struct call *call = LIST_ENTRY(list_first(&request->parts), struct call, link);
    call->up.script = script_get(SCRIPT_FENCE);
    call_submit(call, split->data_slot, split->data.data, split->data.len);
}

static void data_looked(void *arg, const char *error, size_t len) {
    struct request *request = arg;
    struct split *split = REQUEST_OWNER(request, struct split);
    struct call *call = LIST_ENTRY(list_first(&request->parts), struct call, link);
    split->looks = NULL;
    if (error)
        data_ended(call, &(struct call_end){.reply = error, .len = len});
    else
        data_send(request, split);
}

/* Sends the data with its lock check, and keeps the locks' parts meanwhile. */
static void send_data_first(struct session *s, struct request *request, const struct request_class *k) {
    struct split *split = REQUEST_OWNER(request, struct split);
    struct item *data = memory_alloc(split->item_count * sizeof(*data));
    size_t count = 0;
    for (size_t i = 0; i < split->item_count; i++) {
        if (split->items[i].rule)
            split_wait(request, k, &split->items[i]);
        else
            data[count++] = split->items[i];
    }
    split->data_slot = data[0].slot;
    call_new(request, data_done)->count = (uint32_t)count;
    struct request_class class;
    struct resp_request part;
    part_request(k, data, count, &part);
    class_find_again(&class, k->command, &part, k->bytes, split->data_slot);
    split->question = fence_prepare(s, NULL, &class);
    class_clear(&class);
    memory_free(part.argv);
    text_append(&split->data, s->worker->build.data, s->worker->build.len);
    memory_free(data);
    request_barrier(request);
    lock_busy_all(request); /* only now: the check must not wait for this request */
    if (fence_is_elsewhere(split->question)) {
        split->looks = fence_looks_new(s, data_looked, request);
        fence_looks_add(split->looks, split->question);
        fence_looks_go(split->looks);
    } else {
        data_send(request, split);
    }
}

enum dispatch_result split_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    size_t key_count = k->key_count, locks = 0, lock_parts = 0;
    const char *error;
    bool data_first = k->fenced && k->enforced && fence_judge(s, k, &error) == FENCE_APART;
    struct item *items = memory_alloc(key_count * sizeof(*items));
    for (size_t i = 0; i < key_count; i++) {
        item_set(&items[i], k, i);
        locks += items[i].rule != NULL;
        lock_parts += own_part(c, &items[i]);
    }
    if (lock_parts > LOCK_PARTS_MAX) {
        memory_free(items);
        return session_refuse(s, c, "ERR too many lock keys for one command that releases them; send several");
    }
    qsort(items, key_count, sizeof(*items), item_compare);
    counter_add(&s->worker->counters.requests_split, 1);
    struct request *request = request_new(s, c);
    if (locks > 0 && !data_first)
        lock_busy_all(request);
    if (locks > 0 && c->split == SPLIT_MSET) /* a script that sets other keys too */
        request_barrier(request);
    struct split *split = memory_zalloc(sizeof(*split));
    split->kind = c->split;
    split->item_count = key_count;
    split->items = items;
    if (c->split == SPLIT_MGET) {
        split->pieces = memory_zalloc(key_count * sizeof(*split->pieces));
        split->kept = memory_zalloc(key_count * sizeof(*split->kept));
    }
    split->note = audit_note(s, k, false);
    locks_of(s)->audits += split->note != NULL;
    split->session = s;
    request_own(request, &split->owner, &split_ops);
    request->parts_left = 1; /* held here until all parts are in flight or wait, since some may end at once */
    if (data_first)
        send_data_first(s, request, k);
    else
        split_send(request, k);
    if (split->waiting > 0 && !data_first)
        split_go_on(request, PARTS_AT_ONCE);
    if (--request->parts_left == 0)
        split_finish(request);
    return DISPATCHED;
}
