/*
 * Commands about the whole server. A standalone gets them unchanged. On a cluster the subcommand decides whether one
 * master can answer for all, or all are asked and their replies are merged:
 *
 *      SCRIPT EXISTS a b ──┬─> master 1: 1 0 ──┐
 *                          ├─> master 2: 1 1 ──┼─ MERGE_MIN ─> 1 0
 *                          └─> master 3: 1 0 ──┘
 *
 * Commands that end or show a running script use a separate connection, also on a standalone: the script's client may
 * be waiting on the shared one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/base/sum.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/core/session_worker.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/locks.h"

/* How the masters' replies are merged. Unless noted otherwise, the first error is the reply. */
enum merge {
    MERGE_ONE,     /* one master is asked */
    MERGE_SAME,    /* the first reply */
    MERGE_SUM,     /* sum of integers */
    MERGE_MIN,     /* minimum of integers, or of each element of arrays of integers */
    MERGE_MAX,     /* maximum of the same */
    MERGE_APPEND,  /* arrays are concatenated; of other replies the first is used */
    MERGE_UNION,   /* arrays of bulks are joined, each bulk once */
    MERGE_COUNTS,  /* arrays of names and numbers: the sum for each name */
    MERGE_ANY,     /* a reply without error, or the most informative error */
    MERGE_RUNNING, /* FUNCTION STATS: the reply of the master that runs a script */
    MERGE_INFO     /* one page; masters that fail are left out */
};

struct way {
    enum command_id id;
    const char *subs[5]; /* its subcommands; none: all without a row of their own before */
    enum merge merge;
    bool apart;          /* over a separate connection */
    const char *refusal; /* the error for a command that makes no sense through a proxy; all but SCRIPT DEBUG may be
                            sent to a standalone */
};

static const struct way WAYS[] = {
    {COMMAND_DBSIZE, .merge = MERGE_SUM},
    {COMMAND_FLUSHALL, .merge = MERGE_SAME},
    {COMMAND_FLUSHDB, .merge = MERGE_SAME},
    {COMMAND_SCRIPT, {"load", "flush"}, .merge = MERGE_SAME},
    {COMMAND_SCRIPT, {"exists"}, .merge = MERGE_MIN},
    {COMMAND_SCRIPT, {"kill"}, .merge = MERGE_ANY, .apart = true},
    {COMMAND_SCRIPT, {"debug"}, .refusal = "ERR SCRIPT DEBUG is not supported by lockkeeper"},
    {COMMAND_FUNCTION, {"load", "delete", "flush", "restore"}, .merge = MERGE_SAME},
    {COMMAND_FUNCTION, {"kill"}, .merge = MERGE_ANY, .apart = true},
    {COMMAND_FUNCTION, {"stats"}, .merge = MERGE_RUNNING, .apart = true},
    {COMMAND_CONFIG, {"set", "resetstat", "rewrite"}, .merge = MERGE_SAME},
    {COMMAND_MEMORY, {"purge"}, .merge = MERGE_SAME},
    {COMMAND_DEBUG, {"help"}, .merge = MERGE_ONE},
    {COMMAND_DEBUG, .merge = MERGE_SAME},
    {COMMAND_SAVE, .merge = MERGE_SAME},
    {COMMAND_BGSAVE, .merge = MERGE_SAME},
    {COMMAND_BGREWRITEAOF, .merge = MERGE_SAME},
    {COMMAND_LASTSAVE, .merge = MERGE_MIN},
    {COMMAND_MODULE, {"load", "loadex", "unload"}, .merge = MERGE_SAME},
    {COMMAND_ACL, {"setuser", "deluser", "load", "save"}, .merge = MERGE_SAME},
    {COMMAND_PUBSUB, {"channels", "shardchannels"}, .merge = MERGE_UNION},
    {COMMAND_PUBSUB, {"numsub", "shardnumsub"}, .merge = MERGE_COUNTS},
    {COMMAND_PUBSUB, {"numpat"}, .merge = MERGE_SUM},
    {COMMAND_INFO, .merge = MERGE_INFO},
    {COMMAND_SHUTDOWN, .refusal = "ERR SHUTDOWN of a cluster's node is not supported by lockkeeper"},
    {COMMAND_SLOWLOG, .refusal = "ERR SLOWLOG is not supported by lockkeeper on a cluster: ask a node"},
    {COMMAND_LATENCY, .refusal = "ERR LATENCY is not supported by lockkeeper on a cluster: ask a node"},
    {COMMAND_ACL, {"log"}, .refusal = "ERR ACL LOG is not supported by lockkeeper on a cluster: ask a node"},
};

/* The ways of commands that the table lacks, by their tips. */
static const struct way TOLD[] = {
    [RESPONSE_ANY_SHAPE] = {.merge = MERGE_APPEND},  [RESPONSE_ALL_SUCCEEDED] = {.merge = MERGE_SAME},
    [RESPONSE_ONE_SUCCEEDED] = {.merge = MERGE_ANY}, [RESPONSE_SUM] = {.merge = MERGE_SUM},
    [RESPONSE_MIN] = {.merge = MERGE_MIN},           [RESPONSE_MAX] = {.merge = MERGE_MAX},
    [RESPONSE_AND] = {.merge = MERGE_MIN},           [RESPONSE_OR] = {.merge = MERGE_MAX},
};

static const struct way *way_of(const struct request_class *k) {
    static const struct way one = {.merge = MERGE_ONE};
    const struct command *c = k->command;
    if (c->id == COMMAND_UNKNOWN)
        return c->need == NEED_MASTERS ? &TOLD[((const struct command_info *)(const void *)c)->response] : &one;
    for (size_t i = 0; i < ARRAY_SIZE(WAYS); i++)
        if (WAYS[i].id == c->id &&
            (!WAYS[i].subs[0] || (k->request->argc > 1 && class_arg_choice(k, 1, WAYS[i].subs) >= 0)))
            return &WAYS[i];
    return &one;
}

const char *masters_refuses(const struct session *s, const struct request_class *k) {
    bool applies = k->command->id == COMMAND_SCRIPT || upstream_is_cluster(s->worker->upstream);
    return applies ? way_of(k)->refusal : NULL;
}

bool masters_asks_all(const struct request_class *k) {
    return way_of(k)->merge != MERGE_ONE;
}

/* ---- a command in flight ------------------------------------------------------------------------------- */

struct masters {
    struct request_owner owner; /* first */
    enum merge merge;
    int64_t paused; /* for MERGE_INFO: how many clients a pause holds */
    size_t count;
    struct text *replies;       /* one for each master; empty if it failed */
    struct text error;          /* the error for the client, as whole RESP */
    struct upstream_pin **pins; /* NULL if none is needed */
};

static void masters_free(struct request_owner *owner) {
    struct masters *m = (struct masters *)(void *)owner;
    for (size_t i = 0; i < m->count; i++)
        text_clear(&m->replies[i]);
    text_clear(&m->error);
    MEMORY_FREE_ALL(m->replies, m->pins, m);
}

static const struct request_owner_ops masters_ops = {.free = masters_free};

/* Keeps the most informative error: "nothing is running here" only if there is no other. */
static void note_error(struct masters *m, const char *error, size_t len) {
    if (m->error.len > 0 && !reply_begins(m->error.data, m->error.len, "-NOTBUSY"))
        return;
    m->error.len = 0;
    text_append(&m->error, "-", 1);
    text_append(&m->error, error, len);
    text_append(&m->error, "\r\n", 2);
}

/* ---- merging ------------------------------------------------------------------------------------------ */

/* Finds the elements of an array, and how many there are. False: it is none. */
static bool read_array(const struct text *reply, const char **p, const char **end, int64_t *count) {
    struct resp_item item;
    *p = reply->data;
    *end = reply->data + reply->len;
    if (!resp_item_read(p, *end, &item) || item.type != '*' || item.num < 0)
        return false;
    *count = item.num;
    return true;
}

/* Merges integers, or arrays of as many integers each; for MERGE_COUNTS each second one, behind its name. */
static bool merge_numbers(const struct masters *m, struct text *out) {
    const char **at = memory_alloc(m->count * sizeof(*at)), *end;
    int64_t count = 1, more = 1;
    bool counts = m->merge == MERGE_COUNTS, alone = !counts && m->replies[0].data[0] == ':', right = true;
    for (size_t i = 0; right && i < m->count; i++) {
        at[i] = m->replies[i].data;
        right = alone || (read_array(&m->replies[i], &at[i], &end, &more) && (i == 0 || more == count));
        count = more;
    }
    if (!alone)
        text_printf(out, "*%lld\r\n", (long long)count);
    for (int64_t k = 0; right && k < count; k++) {
        bool name = counts && k % 2 == 0;
        int64_t merged = 0;
        for (size_t i = 0; right && i < m->count; i++) {
            const char *start = at[i];
            struct resp_item item;
            right = resp_item_read(&at[i], m->replies[i].data + m->replies[i].len, &item) && (name || item.type == ':');
            if (right && name && i == 0)
                text_append(out, start, (size_t)(at[i] - start));
            else if (right && (counts || (alone && m->merge == MERGE_SUM)))
                merged = sum_add(merged, item.num);
            else if (right && (i == 0 || (m->merge == MERGE_MIN ? item.num < merged : item.num > merged)))
                merged = item.num;
        }
        if (right && !name)
            text_printf(out, ":%lld\r\n", (long long)merged);
    }
    memory_free(at);
    return right;
}

static bool merge_first(const struct masters *m, struct text *out) {
    size_t i = 0;
    while (i < m->count && m->replies[i].len == 0)
        i++;
    if (i < m->count)
        text_append(out, m->replies[i].data, m->replies[i].len);
    return i < m->count;
}

struct name {
    const char *data; /* the whole element */
    size_t len;
};

static int name_compare(const void *a, const void *b) {
    const struct name *x = a, *y = b;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return memcmp(x->data, y->data, x->len);
}

/* Joins arrays; for MERGE_UNION each element once: a client of the proxy subscribes at one master, and each master only
 * knows its own subscribers. */
static bool merge_elements(const struct masters *m, struct text *out) {
    struct name *names = NULL;
    size_t count = 0, shown = 0;
    const char *p, *end;
    int64_t n = 0;
    bool right = true, all = m->merge == MERGE_APPEND;
    for (size_t i = 0; right && i < m->count; i++) {
        right = read_array(&m->replies[i], &p, &end, &n);
        for (int64_t k = 0; right && k < n; k++) {
            const char *next = resp_item_end(p, end);
            right = next != NULL;
            if (right)
                *ARRAY_ADD(names, count) = (struct name){p, (size_t)(next - p)};
            p = next;
        }
    }
    if (right && !all && count > 0)
        qsort(names, count, sizeof(*names), name_compare);
    for (size_t i = 0; right && i < count; i++)
        if (all || shown == 0 || name_compare(&names[shown - 1], &names[i]) != 0)
            names[shown++] = names[i];
    if (right)
        text_printf(out, "*%zu\r\n", shown);
    for (size_t i = 0; i < shown; i++)
        text_append(out, names[i].data, names[i].len);
    memory_free(names);
    return right || (all && merge_first(m, out));
}

/* The reply begins with "running_script" and either the script or null. */
static bool merge_running(const struct masters *m, struct text *out) {
    for (size_t i = 0; i < m->count; i++) {
        const struct text *reply = &m->replies[i];
        const char *p = reply->data, *end = p + reply->len;
        struct resp_item item;
        bool read = reply->len > 0 && resp_item_read(&p, end, &item) && resp_item_read(&p, end, &item) &&
                    resp_item_read(&p, end, &item);
        if (!read || item.null)
            continue;
        text_append(out, reply->data, reply->len);
        return true;
    }
    return merge_first(m, out);
}

/* ---- INFO of several masters as one page ------------------------------------------------------------- *
 *
 * Counts and sizes are the sum over all masters, states the greatest value, and the keyspace that of the whole cluster.
 * All other lines are the first master's. Clients that a CLIENT PAUSE holds (`paused`) count as blocked. */

enum { DATABASES_SHOWN = 16 };

static const char *const ADDED[] = {"connected_clients",
                                    "tracking_clients",
                                    "clients_in_timeout_table",
                                    "used_memory",
                                    "used_memory_rss",
                                    "used_memory_peak",
                                    "used_memory_overhead",
                                    "used_memory_startup",
                                    "used_memory_dataset",
                                    "used_memory_lua",
                                    "used_memory_vm_total",
                                    "used_memory_scripts",
                                    "maxmemory",
                                    "mem_clients_normal",
                                    "mem_clients_slaves",
                                    "mem_cluster_links",
                                    "mem_not_counted_for_evict",
                                    "rdb_changes_since_last_save",
                                    "total_connections_received",
                                    "total_commands_processed",
                                    "instantaneous_ops_per_sec",
                                    "total_net_input_bytes",
                                    "total_net_output_bytes",
                                    "rejected_connections",
                                    "expired_keys",
                                    "evicted_keys",
                                    "evicted_clients",
                                    "keyspace_hits",
                                    "keyspace_misses",
                                    "total_error_replies",
                                    "unexpected_error_replies",
                                    "total_reads_processed",
                                    "total_writes_processed",
                                    "tracking_total_keys",
                                    "tracking_total_items",
                                    NULL};

static const char *const GREATEST[] = {
    "loading", "async_loading", "rdb_bgsave_in_progress", "aof_rewrite_in_progress", "maxmemory_clients", NULL};

static bool listed(const char *const *names, const char *name, size_t len) {
    while (*names && (strlen(*names) != len || memcmp(*names, name, len) != 0))
        names++;
    return *names != NULL;
}

/* Finds the value of a line that begins with "name:", or NULL. */
static const char *field_value(const char *page, const char *name, size_t len) {
    for (const char *line = page; line; line = strchr(line, '\n')) {
        if (*line == '\n')
            line++;
        if (strncmp(line, name, len) == 0 && line[len] == ':')
            return line + len + 1;
    }
    return NULL;
}

/* Merges a field of all pages; a negative size becomes 0. */
static int64_t field_merged(const struct text *pages, size_t count, const char *name, size_t len, bool add) {
    int64_t merged = 0;
    for (size_t i = 0; i < count; i++) {
        const char *value = pages[i].len > 0 ? field_value(pages[i].data, name, len) : NULL;
        /* Redis writes a negative size as 2^64 plus the size: 18446744073709551360 is -256. */
        int64_t n = !value ? 0 : *value == '-' ? strtoll(value, NULL, 10) : (int64_t)strtoull(value, NULL, 10);
        if (add)
            merged = sum_add(merged, n);
        else if (n > merged)
            merged = n;
    }
    return merged > 0 ? merged : 0;
}

/* Appends a size in Redis's format for people. */
static void put_human(struct text *out, int64_t n) {
    static const char units[] = "KMGTP";
    double size = (double)n;
    int at = -1;
    while (size >= 1024 && at + 1 < (int)sizeof(units) - 1) {
        size /= 1024;
        at++;
    }
    if (at < 0)
        text_printf(out, "%" PRId64 "B", n);
    else
        text_printf(out, "%.2f%c", size, units[at]);
}

/* Appends "db0:keys=5,expires=1,avg_ttl=99" with the sums of all pages. The mean is over the keys with an expiry. */
static void put_keyspace(struct text *out, const struct text *pages, size_t count) {
    for (int db = 0; db < DATABASES_SHOWN; db++) {
        char name[16];
        size_t len = (size_t)snprintf(name, sizeof(name), "db%d", db);
        int64_t keys = 0, expires = 0, n, e, ttl;
        double total = 0;
        for (size_t i = 0; i < count; i++) {
            const char *value = pages[i].len > 0 ? field_value(pages[i].data, name, len) : NULL;
            if (!value || sscanf(value, "keys=%" SCNd64 ",expires=%" SCNd64 ",avg_ttl=%" SCNd64, &n, &e, &ttl) != 3)
                continue;
            keys = sum_add(keys, n);
            expires = sum_add(expires, e);
            total += (double)ttl * (double)e;
        }
        double mean = expires > 0 ? total / (double)expires : 0;
        if (keys > 0)
            text_printf(out, "%s:keys=%" PRId64 ",expires=%" PRId64 ",avg_ttl=%" PRId64 "\r\n", name, keys, expires,
                        mean > 0 && mean < (double)INT64_MAX ? (int64_t)mean : 0);
    }
}

static void put_line(struct text *out, const struct text *pages, size_t count, int64_t paused, const char *line,
                     size_t len) {
    static const char *const blocked[] = {"blocked_clients", NULL};
    static const char human[] = "_human", keyspace[] = "# Keyspace";
    const char *colon = memchr(line, ':', len);
    size_t name = colon ? (size_t)(colon - line) : 0, tail = sizeof(human) - 1;
    if (listed(blocked, line, name)) {
        text_printf(out, "blocked_clients:%" PRId64 "\r\n",
                    sum_add(field_merged(pages, count, line, name, true), paused));
        return;
    }
    if (count == 1) {
        text_append(out, line, len);
        return;
    }
    if (line[0] == 'd' && line[1] == 'b' && line[2] >= '0' && line[2] <= '9') /* a database's keys */
        return;
    if (listed(ADDED, line, name) || listed(GREATEST, line, name)) {
        text_append(out, line, name);
        text_printf(out, ":%" PRId64 "\r\n", field_merged(pages, count, line, name, listed(ADDED, line, name)));
        return;
    }
    if (name > tail && memcmp(line + name - tail, human, tail) == 0 && listed(ADDED, line, name - tail)) {
        text_append(out, line, name + 1);
        put_human(out, field_merged(pages, count, line, name - tail, true));
        text_append(out, "\r\n", 2);
        return;
    }
    text_append(out, line, len);
    if (len >= sizeof(keyspace) - 1 && memcmp(line, keyspace, sizeof(keyspace) - 1) == 0)
        put_keyspace(out, pages, count);
}

static bool merge_pages(const struct masters *m, struct text *out) {
    struct text *pages = memory_zalloc(m->count * sizeof(*pages)), merged = {0};
    size_t count = 0;
    char type = '$';
    for (size_t i = 0; i < m->count; i++) {
        const struct text *reply = &m->replies[i];
        const char *p = reply->data;
        struct resp_item item;
        if (reply->len == 0 || !resp_item_read(&p, p + reply->len, &item) || (item.type != '$' && item.type != '='))
            continue;
        type = item.type;
        size_t mark = type == '=' && item.len >= 4 ? 4 : 0;
        text_append(&pages[count++], item.str + mark, item.len - mark);
    }
    const char *line = count > 0 && pages[0].len > 0 ? pages[0].data : "";
    while (*line) {
        const char *end = strchr(line, '\n');
        size_t len = end ? (size_t)(end - line) + 1 : strlen(line);
        put_line(&merged, pages, count, m->paused, line, len);
        line += len;
    }
    if (count > 0)
        append_page(out, type == '=', merged.data, merged.len);
    for (size_t i = 0; i < count; i++)
        text_clear(&pages[i]);
    memory_free(pages);
    text_clear(&merged);
    return count > 0;
}

/* ---- the reply ---------------------------------------------------------------------------------------- */

/* Merge the replies into *out. False: they are malformed. */
static bool (*const MERGES[])(const struct masters *m, struct text *out) = {
    [MERGE_ONE] = merge_first,       [MERGE_SAME] = merge_first,     [MERGE_SUM] = merge_numbers,
    [MERGE_MIN] = merge_numbers,     [MERGE_MAX] = merge_numbers,    [MERGE_APPEND] = merge_elements,
    [MERGE_UNION] = merge_elements,  [MERGE_COUNTS] = merge_numbers, [MERGE_ANY] = merge_first,
    [MERGE_RUNNING] = merge_running, [MERGE_INFO] = merge_pages};

static void masters_finish(struct request *r) {
    struct masters *m = REQUEST_OWNER(r, struct masters);
    struct text reply = {0};
    bool answered = false, passes = m->merge == MERGE_ANY || m->merge == MERGE_RUNNING || m->merge == MERGE_INFO;
    invariant(m->count > 0 && r->parts_left == 0, "%u masters are left of %zu", r->parts_left, m->count);
    m->paused = atomic_load(&r->worker->shared->paused);
    for (size_t i = 0; i < m->count; i++)
        answered |= m->replies[i].len > 0;
    if (m->error.len > 0 && !(answered && passes)) /* else the replies count although other masters have failed */
        request_reply(r, m->error.data, m->error.len, true);
    else if (MERGES[m->merge](m, &reply))
        request_reply(r, reply.data, reply.len, true);
    else
        request_error(r, "UPSTREAM the masters' replies can't be merged");
    text_clear(&reply);
}

/* ---- clients that have left ------------------------------------------------------------------------- */

/* Clients that have left must not count as subscribers. Their threads close their connections to nodes at the end of a
 * turn, so another client's PUBSUB could come before that. So, before each PUBSUB:
 *
 *      visit every thread ── it reads disconnects, and closes ──> ask each master for a PING ──> PUBSUB
 *
 * The reply to PING shows that the node has seen the closed connections, since it handles everything that it has read
 * before it replies. */

/* Turns of a loop in a visit: it reads the disconnects, closes the sessions, closes the connections to the nodes. */
enum { TURNS = 4 };

_Static_assert(sizeof(bool) <= ROOM_END - ROOM_CLUSTER, "the room's state of a session fits");

struct departed {
    struct broadcast broadcast; /* first */
    struct request *request;
};

struct stay {
    struct worker_slices slices; /* first */
    struct broadcast *broadcast;
    unsigned turns;
};

static bool stay_step(struct worker *w, struct worker_slices *slices) {
    struct stay *stay = (struct stay *)(void *)slices;
    if (++stay->turns < TURNS)
        return true;
    broadcast_leave(stay->broadcast, w);
    return false;
}

static void visit(struct broadcast *b, struct worker *w) {
    struct stay *stay = memory_zalloc(sizeof(*stay));
    stay->slices.step = stay_step;
    stay->broadcast = b;
    b->stays = true;
    worker_add_slices(w, &stay->slices);
}

/* Ends the wait with the last answer: the session's request is dispatched again. */
static void answered(struct call *c, const struct call_end *end) {
    if (--c->request->parts_left == 0)
        request_reply(c->request, "", 0, true);
}

static void all_visited(struct broadcast *b) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    struct departed *d = (struct departed *)(void *)b;
    struct request *r = d->request;
    memory_free(d);
    size_t masters = r->session ? upstream_master_count(r->worker->upstream) : 0;
    r->parts_left = 1; /* held here until all are asked */
    for (size_t i = 0; i < masters; i++)
        call_submit_master(call_new(r, answered), i, ping, sizeof(ping) - 1);
    answered(&r->call, NULL);
}

/* Waits until the nodes know of all clients that have left. True: the request waits, and is dispatched again. */
static bool departed_wait(struct session *s) {
    bool *waited = session_room(s, ROOM_CLUSTER); /* the current PUBSUB has waited */
    if (*waited) {
        *waited = false;
        return false;
    }
    struct departed *d = memory_zalloc(sizeof(*d));
    d->request = request_new(s, NULL);
    request_barrier(d->request);
    *waited = true;
    broadcast_start(&d->broadcast, s->worker, visit, all_visited);
    return true;
}

/* ---- asking ----------------------------------------------------------------------------------------- */

static void master_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct masters *m = REQUEST_OWNER(r, struct masters);
    invariant(m && c->index < m->count && r->parts_left > 0, "master %u of %zu", c->index, m ? m->count : 0);
    if (m->pins) {
        upstream_unpin(m->pins[c->index], !end->error);
        m->pins[c->index] = NULL;
    }
    if (end->error) {
        note_error(m, end->error, strlen(end->error));
        counter_add(&r->worker->counters.requests_failed, 1);
    } else if (end->reply[0] == '-') {
        note_error(m, end->reply + 1, end->len - 3);
    } else {
        text_append(&m->replies[c->index], end->reply, end->len);
    }
    if (--r->parts_left == 0)
        masters_finish(r);
}

/* Asks over a separate connection, in database 0: a node that runs a script refuses SELECT. */
static void ask_apart(struct session *s, struct request *request, size_t i, const char *bytes, size_t len) {
    static const struct upstream_pin_events none;
    struct masters *m = REQUEST_OWNER(request, struct masters);
    struct upstream *u = s->worker->upstream;
    struct upstream_lane lane = s->lane;
    const char *error;
    char client[SESSION_ADDRESS_MAX];
    struct upstream_claim claim = {.client = session_host(s, client, sizeof(client))};
    lane.db = 0;
    invariant(i < m->count && !m->pins[i], "master %zu of %zu", i, m->count);
    m->pins[i] = upstream_pin_open(u, upstream_master(u, i), &lane, &claim, &none, &error);
    if (!m->pins[i]) {
        note_error(m, error, strlen(error));
        return;
    }
    struct call *call = call_new(request, master_done);
    call->index = (uint32_t)i;
    call_submit_pin(call, m->pins[i], bytes, len, false);
}

enum dispatch_result masters_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    if (c->id == COMMAND_SCRIPT)
        event_script_loaded(s->worker->shared->observer, k->request, k->bytes);
    const struct way *way = way_of(k);
    const char *refused = masters_refuses(s, k);
    size_t masters = upstream_master_count(s->worker->upstream);
    if (refused)
        return session_refuse(s, c, "%s", refused);
    /* The command must see the effect of the requests before it. */
    if (way->apart && s->in_flight > 0)
        return DISPATCH_WAIT;
    if (c->id == COMMAND_PUBSUB && (s->in_flight > 0 || departed_wait(s)))
        return DISPATCH_WAIT;
    bool merged = masters > 1 || way->apart || (c->id == COMMAND_INFO && atomic_load(&s->worker->shared->paused) > 0);
    if (masters == 0 || way->merge == MERGE_ONE || !merged)
        return class_pass(s, k, SLOT_NONE);
    counter_add(&s->worker->counters.requests_split, 1);
    struct request *request = request_new(s, c);
    struct masters *m = memory_zalloc(sizeof(*m));
    m->merge = way->merge;
    m->count = masters;
    m->replies = memory_zalloc(m->count * sizeof(*m->replies));
    m->pins = way->apart ? memory_zalloc(m->count * sizeof(struct upstream_pin *)) : NULL;
    request_own(request, &m->owner, &masters_ops);
    request->parts_left = 1; /* held here until all are asked, since some may end at once */
    for (size_t i = 0; i < m->count; i++) {
        if (way->apart) {
            ask_apart(s, request, i, k->bytes, k->request->len);
            continue;
        }
        struct call *call = call_new(request, master_done);
        call->index = (uint32_t)i;
        call_submit_master(call, i, k->bytes, k->request->len);
    }
    if (--request->parts_left == 0)
        masters_finish(request);
    return DISPATCHED;
}
