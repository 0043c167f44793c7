/*
 * KEYS, SCAN, RANDOMKEY: guard records are never shown, and on a cluster all masters are one keyspace.
 *
 *      SCAN's cursor on a cluster = (the master's own cursor * masters + the master's number) * 4096 + the map's print
 *
 * When a master is done, the cursor moves to the next one; after the last it is 0. Masters are numbered by address, so
 * any proxy can continue with the cursor of another. If slots have moved since the cursor was made, keys may have moved
 * from a master still to come to one that is done. The scan then begins again: it may show keys twice, but misses none,
 * as SCAN promises. Some clients keep cursors in a double, so the part added to the master's cursor is small.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/core/session.h"

enum { RANDOM_TRIES = 16, PRINT_BITS = 12 };

struct keyspace {
    struct request_owner owner; /* first */
    size_t masters;
    size_t master;  /* SCAN, RANDOMKEY: the index of the master that is asked */
    uint64_t print; /* SCAN: the digest of the slot map */
    int tries;
    int64_t kept;
    struct text keys; /* elements that are kept, encoded */
    struct text error;
};

static void keyspace_free(struct request_owner *owner) {
    struct keyspace *k = (struct keyspace *)(void *)owner;
    text_clear(&k->keys);
    text_clear(&k->error);
    memory_free(k);
}

static const struct request_owner_ops keyspace_ops = {.free = keyspace_free};

/* Appends the elements of the array at p that are not guard records. */
static bool keep_keys(struct keyspace *k, const char *p, const char *end) {
    struct resp_item array, item;
    if (!resp_item_read(&p, end, &array) || (array.type != '*' && array.type != '~'))
        return false;
    for (int64_t i = 0; i < array.num; i++) {
        const char *start = p;
        if (!resp_item_read(&p, end, &item) || (item.type != '$' && item.type != '+'))
            return false;
        if (lock_guard_is(item.str, item.len))
            continue;
        text_append(&k->keys, start, (size_t)(p - start));
        k->kept++;
    }
    return true;
}

void keyspace_filter(const struct command *c, bool resp3, const char *reply, size_t len, struct text *out) {
    struct keyspace k = {0};
    struct resp_item item;
    char header[RESP_HEADER_MAX];
    const char *p = reply, *end = reply + len;
    bool read = resp_item_read(&p, end, &item);
    if (c->id == COMMAND_RANDOMKEY) {
        bool guard = read && item.type == '$' && !item.null && lock_guard_is(item.str, item.len);
        const char *null = resp3 ? "_\r\n" : "$-1\r\n";
        text_append(out, guard ? null : reply, guard ? strlen(null) : len);
        return;
    }
    const char *keys = reply;
    if (c->id == COMMAND_SCAN && read && item.type == '*' && item.num == 2)
        keys = resp_item_end(p, end); /* after the cursor */
    if (keys && keep_keys(&k, keys, end)) {
        text_append(out, reply, (size_t)(keys - reply));
        text_append(out, header, resp_header_write(header, reply == keys ? reply[0] : '*', k.kept));
        text_append(out, k.keys.data ? k.keys.data : "", k.keys.len);
    } else {
        text_append(out, reply, len); /* an error */
    }
    text_clear(&k.keys);
}

static void keys_filter_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct text out = {0};
    if (end->error) {
        request_fail(r, end->error);
        return;
    }
    keyspace_filter(r->command, r->session && r->session->lane.protocol == 3, end->reply, end->len, &out);
    request_reply(r, out.data, out.len, true);
    text_clear(&out);
}

enum dispatch_result keyspace_forward(struct session *s, const struct request_class *k, int slot) {
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, k->command);
    request->call.done = keys_filter_done;
    call_submit(&request->call, slot, k->bytes, k->request->len);
    return DISPATCHED;
}

/* ---- KEYS --------------------------------------------------------------------------------------- */

static void keys_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct keyspace *k = REQUEST_OWNER(r, struct keyspace);
    char header[RESP_HEADER_MAX];
    size_t len;
    const char *error = call_end_error(end, &len);
    if (k->error.len == 0 && error)
        text_append(&k->error, error, len);
    else if (k->error.len == 0 && !keep_keys(k, end->reply, end->reply + end->len))
        text_printf(&k->error, "UPSTREAM a node's reply to KEYS is malformed");
    if (--r->parts_left > 0)
        return;
    if (k->error.len > 0) {
        request_fail(r, k->error.data);
        return;
    }
    request_reply(r, header, resp_header_write(header, '*', k->kept), false);
    request_reply(r, k->keys.len > 0 ? k->keys.data : "", k->keys.len, true);
}

/* ---- SCAN --------------------------------------------------------------------------------------- */

/* Makes the client's cursor from the node's. False if the node's cursor is malformed, or too large for any table. */
static bool scan_next(const struct keyspace *k, const struct resp_item *cursor, int64_t *next) {
    int64_t at;
    if (!resp_integer(cursor->str, cursor->len, &at) || at < 0)
        return false;
    size_t master = at == 0 ? k->master + 1 : k->master;
    *next = 0;
    return master >= k->masters || (!__builtin_mul_overflow(at, (int64_t)k->masters, next) &&
                                    !__builtin_add_overflow(*next, (int64_t)master, next) &&
                                    !__builtin_mul_overflow(*next, (int64_t)1 << PRINT_BITS, next) &&
                                    !__builtin_add_overflow(*next, (int64_t)k->print, next));
}

static void scan_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct keyspace *k = REQUEST_OWNER(r, struct keyspace);
    struct resp_item outer, cursor;
    int64_t next;
    if (end->error || end->reply[0] == '-') {
        call_answer(c, end);
        return;
    }
    const char *p = end->reply, *stop = end->reply + end->len;
    if (!resp_item_read(&p, stop, &outer) || outer.type != '*' || outer.num != 2 ||
        !resp_item_read(&p, stop, &cursor) || !scan_next(k, &cursor, &next) || !keep_keys(k, p, stop)) {
        request_fail(r, "UPSTREAM a node's reply to SCAN is malformed");
        return;
    }
    char digits[24], head[64];
    int len = snprintf(digits, sizeof(digits), "%lld", (long long)next);
    int n = snprintf(head, sizeof(head), "*2\r\n$%d\r\n%s\r\n*%lld\r\n", len, digits, (long long)k->kept);
    request_reply(r, head, (size_t)n, false);
    request_reply(r, k->keys.len > 0 ? k->keys.data : "", k->keys.len, true);
}

static void scan_dispatch(struct session *s, struct request *request, const struct request_class *k) {
    struct worker *w = s->worker;
    struct keyspace *all = REQUEST_OWNER(request, struct keyspace);
    int64_t cursor;
    request->call.done = scan_done;
    if (!upstream_is_cluster(w->upstream) || all->masters == 0 ||
        !request_arg_integer(k->request, k->bytes, 1, &cursor) || cursor < 0) {
        request->call.done = keys_filter_done;
        call_submit(&request->call, SLOT_NONE, k->bytes, k->request->len);
        return;
    }
    int64_t place = cursor >> PRINT_BITS;
    all->print = upstream_map_print(w->upstream) >> (64 - PRINT_BITS);
    bool same_map = ((uint64_t)cursor & ((1u << PRINT_BITS) - 1)) == all->print;
    all->master = same_map ? (size_t)(place % (int64_t)all->masters) : 0;
    build_start(w, k->request->argc);
    build_bulk(w, k->bytes + k->request->argv[0].off, k->request->argv[0].len);
    build_number(w, same_map ? place / (int64_t)all->masters : 0);
    for (size_t i = 2; i < k->request->argc; i++)
        build_bulk(w, k->bytes + k->request->argv[i].off, k->request->argv[i].len);
    call_submit_master(&request->call, all->master, w->build.data, w->build.len);
}

/* ---- RANDOMKEY ---------------------------------------------------------------------------------- */

static void random_done(struct call *c, const struct call_end *end) {
    static const char again[] = "*1\r\n$9\r\nRANDOMKEY\r\n";
    struct request *r = c->request;
    struct keyspace *k = REQUEST_OWNER(r, struct keyspace);
    struct resp_item item;
    const char *p = end->reply;
    bool read = !end->error && resp_item_read(&p, end->reply + end->len, &item);
    bool guard = read && !item.null && item.type == '$' && lock_guard_is(item.str, item.len);
    bool nothing = read && item.null && k->masters > 1; /* this master is empty, another may have keys */
    if ((!guard && !nothing) || !r->session || k->tries++ >= RANDOM_TRIES) {
        keys_filter_done(c, end);
        return;
    }
    k->master = (k->master + (nothing ? 1 : 0)) % k->masters;
    call_submit_master(c, k->master, again, sizeof(again) - 1);
}

enum dispatch_result keyspace_dispatch(struct session *s, const struct request_class *k) {
    struct keyspace *all = memory_zalloc(sizeof(*all));
    all->masters = upstream_master_count(s->worker->upstream);
    struct request *request = request_new(s, k->command);
    request_own(request, &all->owner, &keyspace_ops);
    if (k->command->id == COMMAND_KEYS) {
        request->parts_left = 1; /* held here until all are asked, since some may end at once */
        for (size_t i = 0; i < all->masters || i == 0; i++) /* without masters, the first one's error is the reply */
            call_submit_master(call_new(request, keys_done), i, k->bytes, k->request->len);
        keys_done(&request->call, &(struct call_end){.reply = "*0\r\n", .len = 4});
    } else if (k->command->id == COMMAND_SCAN) {
        scan_dispatch(s, request, k);
    } else {
        all->master = all->masters > 0 ? (size_t)(s->lock.id + s->worker->counters.requests_total) % all->masters : 0;
        request->call.done = random_done;
        call_submit_master(&request->call, all->master, k->bytes, k->request->len);
    }
    return DISPATCHED;
}
