/*
 * Commands that are not in the table (of a module, or of a newer server). With the first request for one, the node is
 * asked for a description. Its answer becomes the row by which the command is routed from then on.
 *
 *      unknown name ──> COMMAND INFO name ──> a row: known, or "the node does not know it either"
 *                            │ the request waits meanwhile, in its session's input
 *      keys that only the node can find ──> COMMAND GETKEYS request ──> the node of these keys
 *
 * Each worker has its own rows. A row is asked for again after a while, since modules come and go. A row that was used
 * is only freed with the worker, since requests in flight point to it.
 */
#include <ctype.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/lock/rule.h"
#include "proxy/session/cluster/cluster.h"

enum { NAME_MAX_LEN = 128, ROWS_MAX = 1024, FRESH_MS = 30 * 1000, UNKNOWN_MS = 1000 };

struct discovered {
    struct list_node link;     /* in rows->used, latest first; or rows->before */
    struct command_info *info; /* NULL: the node does not know it either */
    int64_t asked_ms;
    bool asking; /* it is being asked for again */
    size_t name_len, answer_len;
    char *answer; /* the reply from which `info` was read */
    char name[];  /* in lower case */
};

struct discovery_rows {
    struct list_node used, before;
    size_t count; /* of the rows in `used` */
};

static void row_free(struct discovered *row) {
    list_remove(&row->link);
    command_info_free(row->info);
    MEMORY_FREE_ALL(row->answer, row);
}

static void rows_open(struct worker *w) {
    w->discovered = memory_zalloc(sizeof(*w->discovered));
    list_init(&w->discovered->used);
    list_init(&w->discovered->before);
}

static void rows_close(struct worker *w) {
    LIST_EACH_SAFE(row, &w->discovered->used, struct discovered, link)
        row_free(row);
    LIST_EACH_SAFE(row, &w->discovered->before, struct discovered, link)
        row_free(row);
    memory_free(w->discovered);
}

const struct session_room cluster_room = {.worker_opens = rows_open, .worker_closes = rows_close};

static struct discovered *row_find(struct worker *w, const char *name, size_t len) {
    LIST_EACH(row, &w->discovered->used, struct discovered, link) {
        bool same = row->name_len == len;
        for (size_t i = 0; same && i < len; i++) /* a name may have any bytes, NUL too */
            same = row->name[i] == (char)tolower((unsigned char)name[i]);
        if (!same)
            continue;
        if (w->discovered->used.next != &row->link) {
            list_remove(&row->link);
            list_prepend(&w->discovered->used, &row->link);
        }
        return row;
    }
    return NULL;
}

/* Takes a row out of use. A row without info is not referenced by requests, so it is freed. */
static void row_retire(struct worker *w, struct discovered *row) {
    w->discovered->count--;
    if (!row->info) {
        row_free(row);
        return;
    }
    list_remove(&row->link);
    list_append(&w->discovered->before, &row->link);
}

/* Makes room: commands unknown to the node go first, since any client can send such names. */
static bool row_room(struct worker *w) {
    if (w->discovered->count < ROWS_MAX)
        return true;
    LIST_EACH_SAFE(row, &w->discovered->used, struct discovered, link)
        if (!row->info)
            row_retire(w, row);
    return w->discovered->count < ROWS_MAX;
}

/* ---- asking ------------------------------------------------------------------------------------ */

static void question_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct worker *w = r->worker;
    const struct request_kept *name = REQUEST_OWNER(r, struct request_kept);
    struct discovered *row = row_find(w, name->bytes, name->len);
    const char *answer = NULL, *p = end->reply; /* the element that describes the command; NULL: there is none */
    size_t len = 0;
    struct resp_item array;
    if (!end->error && resp_item_read(&p, end->reply + end->len, &array) && array.type == '*' && array.num == 1) {
        answer = p;
        len = (size_t)(end->reply + end->len - p);
    }
    if (row && row->info && /* unchanged, or not available at the moment */
        (!answer || (row->answer_len == len && memcmp(row->answer, answer, len) == 0))) {
        row->asked_ms = worker_now(w);
        row->asking = false;
    } else {
        if (row)
            row_retire(w, row);
        row = row_room(w) ? memory_zalloc(sizeof(*row) + name->len) : NULL;
        for (size_t i = 0; row && i < name->len; i++)
            row->name[i] = (char)tolower((unsigned char)name->bytes[i]);
        if (row) {
            row->name_len = name->len;
            row->asked_ms = worker_now(w);
            row->info = answer ? command_info_read(answer, answer + len) : NULL;
            row->answer = row->info ? memory_strndup(answer, len) : NULL;
            row->answer_len = row->info ? len : 0;
            list_prepend(&w->discovered->used, &row->link);
            w->discovered->count++;
        }
    }
    request_reply(r, "", 0, true);
}

static void ask(struct worker *w, struct request *request, const struct session *s, const char *name, size_t len) {
    struct upstream_lane lane = s->lane;
    request_keep(request, name, len);
    lane.db = lane.dedicated = 0; /* the dedicated connection may be in MULTI */
    lane.protocol = 2;
    build_start(w, 3);
    build_text(w, "COMMAND");
    build_text(w, "INFO");
    build_bulk(w, name, len);
    call_submit_lane(&request->call, SLOT_NONE, &lane, w->build.data, w->build.len);
}

bool discover(struct session *s, const struct resp_request *r, const char *bytes, const struct command **command) {
    struct worker *w = s->worker;
    size_t len;
    const char *name = request_arg(r, bytes, 0, &len);
    if (len == 0 || len > NAME_MAX_LEN)
        return false;
    struct discovered *row = row_find(w, name, len);
    int64_t age = row ? worker_now(w) - row->asked_ms : 0;
    if (!row || (!row->info && (age < 0 || age > UNKNOWN_MS))) {
        if (!row && !row_room(w))
            return false;
        /* A request without a reply keeps the session's place, and holds its later requests back. */
        struct request *request = request_new(s, NULL);
        request_barrier(request);
        request->call.done = question_done;
        ask(w, request, s, name, len);
        if (s->barrier > 0)
            return true;
        row = row_find(w, name, len); /* no node could be asked, and nothing wakes the session */
        age = 0;
    }
    if (!row || !row->info)
        return false;
    if ((age < 0 || age > FRESH_MS) && !row->asking) {
        row->asking = true;
        ask(w, request_internal(w, question_done), s, name, len);
    }
    *command = &command_info_of(row->info, bytes, r)->command;
    return false;
}

/* ---- keys that only the node can find ------------------------------------------------------------------ */

/* Finds the slot of the keys in the node's reply; or SLOT_NONE. Returns NULL, or the error for the client. */
static const char *keys_slot(const struct request *r, const struct call_end *end, int *slot) {
    const char *p = end->reply, *stop = p + end->len;
    struct resp_item array, key;
    *slot = SLOT_NONE;
    if (!resp_item_read(&p, stop, &array) || array.type != '*' || array.null)
        return NULL; /* an error: the request has no keys, or is malformed, and the node reports the error */
    for (int64_t i = 0; i < array.num && resp_item_read(&p, stop, &key); i++) {
        if (!(r->command->flags & COMMAND_READONLY) && lock_guard_is(key.str, key.len))
            return GUARD_REFUSED;
        int at = slot_of_key(key.str, key.len);
        if (*slot >= 0 && at != *slot)
            return "CROSSSLOT Keys in request don't hash to the same slot";
        *slot = at;
    }
    return NULL;
}

static void keys_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    const struct request_kept *kept = REQUEST_OWNER(r, struct request_kept);
    int slot;
    if (end->error || !r->session) {
        request_fail(r, end->error ? end->error : "");
        return;
    }
    const char *error = keys_slot(r, end, &slot);
    if (error) {
        request_error(r, error);
        return;
    }
    call_init(c, r, NULL);
    call_submit(c, slot, kept->bytes, kept->len);
}

bool discover_keys(struct session *s, const struct request_class *k) {
    struct worker *w = s->worker;
    const struct command *c = k->command;
    if (c->id != COMMAND_UNKNOWN || !((const struct command_info *)(const void *)c)->ask_keys ||
        !upstream_is_cluster(w->upstream))
        return false;
    struct upstream_lane lane = s->lane;
    struct request *request = request_new(s, k->command);
    counter_add(&w->counters.requests_forwarded, 1);
    request_keep(request, k->bytes, k->request->len);
    request->call.done = keys_done;
    request_barrier(request);
    lane.dedicated = 0; /* it may be in MULTI */
    lane.protocol = 2;
    build_start(w, 2 + k->request->argc);
    build_text(w, "COMMAND");
    build_text(w, "GETKEYS");
    for (size_t i = 0; i < k->request->argc; i++)
        build_bulk(w, k->bytes + k->request->argv[i].off, k->request->argv[i].len);
    call_submit_lane(&request->call, SLOT_NONE, &lane, w->build.data, w->build.len);
    return true;
}
