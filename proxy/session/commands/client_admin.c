/*
 * CLIENT LIST, KILL, PAUSE, UNPAUSE, UNBLOCK: commands about the clients of all threads.
 *
 *      request ── probe ──> node: may this user do that, and are the arguments valid?
 *                              │ yes
 *                              └──> a broadcast of all workers ──> reply            UNBLOCK: ──> the blocked client's
 * node
 *
 * The probe is the same subcommand in a form without effect, since the node's clients are not the proxy's clients.
 * Later requests of the client wait.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/handed_board.h"
#include "proxy/base/memory.h"
#include "proxy/session/blocking/blocking.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/locks/locks.h"

static const int64_t PAUSE_LONGEST_MS = INT64_MAX / 2; /* for a longer pause Redis has an error */

/* IDS_MAX: the most numbers in one CLIENT LIST ID. CLIENTS_A_STEP: how many clients are visited in a step. */
enum { IDS_MAX = 10000, CLIENTS_A_STEP = 200 };

enum admin_verb { ADMIN_LIST, ADMIN_KILL, ADMIN_PAUSE, ADMIN_UNPAUSE, ADMIN_UNBLOCK };

/* A line of CLIENT LIST. */
struct shown {
    uint64_t id;
    char *line;
};

struct admin {
    struct request_owner owner; /* first */
    struct broadcast broadcast;
    struct request *request;
    enum admin_verb verb;
    uint64_t asker;
    /* which clients are meant; 0, NULL, CLIENT_KIND_UNKNOWN: any */
    uint64_t id;
    enum client_kind kind;
    char *user, *address, *local_address;
    bool spare_self, by_address; /* CLIENT KILL ADDRESS: the reply is OK or an error */
    int64_t *ids, *sorted;       /* CLIENT LIST ID: the numbers as given, and sorted */
    size_t id_count;
    /* PAUSE */
    bool all;
    int64_t ms;
    /* UNBLOCK */
    bool error;
    bool unblocked;  /* by the broadcast */
    char *node;      /* the node at which it is blocked, or NULL */
    int64_t at_node; /* its number at that node */
    size_t asked;    /* bytes of the request */
    /* the results */
    struct shown *shown;
    size_t shown_count, shown_cap;
    int64_t killed;
    bool kill_self;
};

static void admin_free(struct request_owner *owner) {
    struct admin *a = (struct admin *)(void *)owner;
    for (size_t i = 0; i < a->shown_count; i++)
        memory_free(a->shown[i].line);
    memory_free(a->shown);
    memory_free(a->ids);
    memory_free(a->sorted);
    memory_free(a->user);
    memory_free(a->address);
    memory_free(a->local_address);
    memory_free(a->node);
    memory_free(a);
}

static const struct request_owner_ops admin_ops = {.free = admin_free};

/* ---- arguments ---------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static bool list_words(struct admin *a, const struct request_class *k) {
    size_t len;
    if (k->request->argc == 2)
        return true;
    if (k->request->argc == 4 && class_arg_is(k, 2, "type")) {
        const char *name = class_arg(k, 3, &len);
        a->kind = client_kind_named(name, len);
        return a->kind != CLIENT_KIND_UNKNOWN;
    }
    if (k->request->argc < 4 || !class_arg_is(k, 2, "id"))
        return false;
    a->id_count = k->request->argc - 3;
    a->ids = memory_zalloc(a->id_count * sizeof(*a->ids));
    for (size_t i = 0; i < a->id_count; i++) {
        const char *id = class_arg(k, i + 3, &len);
        if (!resp_integer(id, len, &a->ids[i]))
            return false;
    }
    a->sorted = memory_alloc(a->id_count * sizeof(*a->sorted));
    memcpy(a->sorted, a->ids, a->id_count * sizeof(*a->sorted));
    qsort(a->sorted, a->id_count, sizeof(*a->sorted), by_number);
    return true;
}

static void take_text(char **field, const struct request_class *k, size_t i) {
    size_t len;
    const char *text = class_arg(k, i, &len);
    memory_free(*field);
    *field = memory_strndup(text, len);
}

static bool kill_words(struct admin *a, const struct request_class *k) {
    a->spare_self = true;
    if (k->request->argc == 3) {
        take_text(&a->address, k, 2);
        a->by_address = true;
        a->spare_self = false;
        return true;
    }
    for (size_t i = 2; i + 1 < k->request->argc; i += 2) {
        size_t len;
        int64_t id;
        const char *value = class_arg(k, i + 1, &len);
        if (class_arg_is(k, i, "id")) {
            if (!resp_integer(value, len, &id) || id < 1)
                return false;
            a->id = (uint64_t)id;
        } else if (class_arg_is(k, i, "type")) {
            a->kind = client_kind_named(value, len);
            if (a->kind == CLIENT_KIND_UNKNOWN)
                return false;
        } else if (class_arg_is(k, i, "addr")) {
            take_text(&a->address, k, i + 1);
        } else if (class_arg_is(k, i, "laddr")) {
            take_text(&a->local_address, k, i + 1);
        } else if (class_arg_is(k, i, "user")) {
            take_text(&a->user, k, i + 1);
        } else if (class_arg_is(k, i, "skipme")) {
            a->spare_self = class_arg_is(k, i + 1, "yes");
            if (!a->spare_self && !class_arg_is(k, i + 1, "no"))
                return false;
        } else {
            return false;
        }
    }
    return k->request->argc % 2 == 0 && k->request->argc > 3;
}

static bool pause_words(struct admin *a, const struct request_class *k) {
    size_t len;
    if (k->request->argc != 3 && k->request->argc != 4)
        return false;
    const char *ms = class_arg(k, 2, &len);
    a->all = k->request->argc == 3 || class_arg_is(k, 3, "all");
    return resp_integer(ms, len, &a->ms) && a->ms >= 0 && a->ms <= PAUSE_LONGEST_MS &&
           (a->all || class_arg_is(k, 3, "write"));
}

static bool unblock_words(struct admin *a, const struct request_class *k) {
    size_t len;
    int64_t id;
    if (k->request->argc != 3 && k->request->argc != 4)
        return false;
    const char *text = class_arg(k, 2, &len);
    a->error = k->request->argc == 4 && class_arg_is(k, 3, "error");
    if (!resp_integer(text, len, &id) || (k->request->argc == 4 && !a->error && !class_arg_is(k, 3, "timeout")))
        return false;
    a->id = (uint64_t)id;
    return true;
}

static bool unpause_words(struct admin *a, const struct request_class *k) {
    return k->request->argc == 2;
}

/* ---- during the broadcast ----------------------------------------------------------------------------- */

static bool meant(const struct admin *a, const struct session *s) {
    char address[CLIENT_ADDRESS_MAX];
    if ((a->id || a->verb == ADMIN_UNBLOCK) && s->lock.id != a->id)
        return false;
    if (a->kind != CLIENT_KIND_UNKNOWN && client_kind_of(s) != a->kind)
        return false;
    if (a->user && strcmp(a->user, s->user ? s->user : "default") != 0)
        return false;
    if (a->address) {
        client_address(s, address);
        if (strcmp(a->address, address) != 0)
            return false;
    }
    if (a->local_address) {
        client_local_address(s, address);
        if (strcmp(a->local_address, address) != 0)
            return false;
    }
    int64_t id = (int64_t)s->lock.id;
    return a->id_count == 0 || bsearch(&id, a->sorted, a->id_count, sizeof(id), by_number);
}

static void visit_list(struct admin *a, struct session *s) {
    struct text line = {0};
    commands_of(s)->reading = s->lock.id == a->asker ? (uint32_t)a->asked : 0;
    client_show(s, &line);
    commands_of(s)->reading = 0;
    if (a->shown_count == a->shown_cap) {
        a->shown_cap = a->shown_cap ? a->shown_cap * 2 : 16;
        a->shown = memory_realloc(a->shown, a->shown_cap * sizeof(*a->shown));
    }
    a->shown[a->shown_count++] = (struct shown){s->lock.id, line.data};
}

static void visit_kill(struct admin *a, struct session *s) {
    if (s->lock.id != a->asker) {
        session_close(s, "CLIENT KILL");
    } else if (a->spare_self) {
        return;
    } else {
        a->kill_self = true;
    }
    a->killed++;
}

static void blocked_at(void *arg, const char *node, int64_t client) {
    struct admin *a = arg;
    a->node = memory_strdup(node);
    a->at_node = client;
}

static void visit(struct admin *a, struct session *s) {
    if (!meant(a, s))
        return;
    if (a->verb == ADMIN_LIST)
        visit_list(a, s);
    else if (a->verb == ADMIN_KILL)
        visit_kill(a, s);
    else
        a->unblocked = fence_unblock(s, a->error) || blocking_unblock(s, a->error, blocked_at, a);
}

/* A visit to a worker's clients, some in each turn, in the order of their numbers. */
struct round {
    struct worker_slices slices; /* first */
    struct admin *admin;
    uint64_t seen; /* clients up to this number have been visited */
};

static bool round_step(struct worker *w, struct worker_slices *slices) {
    struct round *round = (struct round *)(void *)slices;
    struct admin *a = round->admin;
    size_t visited = 0;
    LIST_FOREACH_SAFE(it, &w->sessions) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        if (s->lock.id <= round->seen)
            continue;
        if (visited++ == CLIENTS_A_STEP)
            return true;
        round->seen = s->lock.id;
        visit(a, s);
    }
    broadcast_leave(&a->broadcast, w);
    return false;
}

static void admin_visit(struct broadcast *t, struct worker *w) {
    struct admin *a = LIST_ENTRY(t, struct admin, broadcast);
    if (a->verb == ADMIN_PAUSE || a->verb == ADMIN_UNPAUSE) {
        if (a->verb == ADMIN_PAUSE)
            pause_start(w, a->all ? PAUSE_ALL : PAUSE_WRITES, a->ms);
        else if (w->pause != PAUSE_PROXY)
            pause_end(w);
        return;
    }
    struct round *round = memory_zalloc(sizeof(*round));
    round->slices.step = round_step;
    round->admin = a;
    t->stays = true;
    worker_add_slices(w, &round->slices);
}

/* ---- back at home ----------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b) {
    const struct shown *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Replies with the clients in the order of their numbers; only those asked for, if numbers were given. */
static void reply_list(struct admin *a, struct request *r) {
    struct text lines = {0}, reply = {0};
    if (a->shown_count > 1)
        qsort(a->shown, a->shown_count, sizeof(*a->shown), by_id);
    for (size_t i = 0; i < a->shown_count && a->id_count == 0; i++)
        text_append(&lines, a->shown[i].line, strlen(a->shown[i].line));
    struct handed_counts before = handed_board_read(r->worker->shared->before);
    if (before.clients > 0 && a->id_count == 0 && a->kind == CLIENT_KIND_UNKNOWN)
        text_printf(&lines,
                    "id=0 addr=process-%lld:0 name=clients-of-the-process-that-leaves clients=%lld leases=%lld\n",
                    (long long)before.pid, (long long)before.clients, (long long)before.leases);
    for (size_t i = 0; i < a->id_count; i++) {
        struct shown wanted = {.id = (uint64_t)a->ids[i]}, *found = NULL;
        if (a->shown_count > 0)
            found = bsearch(&wanted, a->shown, a->shown_count, sizeof(wanted), by_id);
        if (found)
            text_append(&lines, found->line, strlen(found->line));
    }
    append_page(&reply, r->session && r->session->lane.protocol == 3, lines.data, lines.len);
    request_reply(r, reply.data, reply.len, true);
    text_clear(&lines);
    text_clear(&reply);
}

static void reply_number(struct request *r, int64_t n) {
    char line[RESP_HEADER_MAX];
    request_reply(r, line, resp_header_write(line, ':', n), true);
}

static void reply_kill(struct admin *a, struct request *r) {
    if (a->kill_self)
        r->close_after = true;
    if (!a->by_address)
        reply_number(r, a->killed);
    else if (a->killed > 0)
        request_reply(r, "+OK\r\n", 5, true);
    else
        request_error(r, "ERR No such client");
}

/* Replies to UNBLOCK as the node does at which the client is blocked: nodes have their own client numbers, and know
 * whether the client is still blocked. */
static void reply_unblock(struct admin *a, struct request *r) {
    struct worker *w = r->worker;
    struct upstream *u = w->upstream;
    size_t master = 0;
    while (a->node && master < upstream_master_count(u) &&
           strcmp(upstream_node_address(upstream_master(u, master)), a->node) != 0)
        master++;
    if (!a->node || master == upstream_master_count(u) || !r->session) {
        reply_number(r, a->unblocked);
        return;
    }
    call_init(&r->call, r, call_answer);
    build_start(w, 4);
    build_text(w, "CLIENT");
    build_text(w, "UNBLOCK");
    build_number(w, a->at_node);
    build_text(w, a->error ? "ERROR" : "TIMEOUT");
    call_submit_master(&r->call, master, w->build.data, w->build.len);
}

static void admin_done(struct broadcast *t) {
    struct admin *a = LIST_ENTRY(t, struct admin, broadcast);
    struct request *r = a->request;
    switch (a->verb) {
    case ADMIN_LIST:
        reply_list(a, r);
        break;
    case ADMIN_KILL:
        reply_kill(a, r);
        break;
    case ADMIN_PAUSE:
    case ADMIN_UNPAUSE:
        request_reply(r, "+OK\r\n", 5, true);
        break;
    case ADMIN_UNBLOCK:
        reply_unblock(a, r);
        break;
    }
}

/* ---- the probe ---------------------------------------------------------------------------------- */

/* The number of a client that no node has. Valkey does not accept 0. */
#define NOBODY "9223372036854775807"

/* Whether the probe's reply permits the command. With the right, LIST ID NOBODY, UNBLOCK 0 and KILL get a plain reply,
 * PAUSE -1 an error of its own. */
static bool allowed(const struct admin *a, const struct call_end *end) {
    if (a->verb == ADMIN_PAUSE || a->verb == ADMIN_UNPAUSE)
        return reply_begins(end->reply, end->len, "-ERR timeout is negative");
    return end->reply[0] != '-' || (a->by_address && strncmp(end->reply, "-ERR No such client", 19) == 0);
}

/* Whether to refuse a request that no node could judge. Operators without login need to see and end connections while a
 * node is down: they may, if the node granted clients without login as much before. A pause would last beyond the
 * node's return, so it is refused. */
static bool unjudged_refused(const struct admin *a, const struct request *r, const struct call_end *end) {
    if (end->why == UPSTREAM_REFUSED || !r->session)
        return end->why == UPSTREAM_REFUSED;
    return a->verb == ADMIN_PAUSE || !session_is_stranger(r->session) ||
           r->worker->unauthenticated_look != RIGHTS_GRANTED;
}

static void probed(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct admin *a = REQUEST_OWNER(r, struct admin);
    if (end->error ? unjudged_refused(a, r, end) : !allowed(a, end)) {
        call_answer(c, end);
        return;
    }
    if (r->worker->over) { /* all clients are gone, or about to be */
        request_reply(r, "", 0, true);
        return;
    }
    broadcast_start(&a->broadcast, r->worker, admin_visit,
                    admin_done); /* also if the node is down: operators need it then */
}

static void probe(struct admin *a, const struct request_class *k) {
    struct worker *w = a->request->worker;
    bool kill = a->verb == ADMIN_KILL, filters = kill && !a->by_address;
    bool unblock = a->verb == ADMIN_UNBLOCK;
    build_start(w, filters ? k->request->argc + 2 : a->verb == ADMIN_LIST ? 4 : 3);
    build_text(w, "CLIENT");
    build_text(w, kill ? "KILL" : unblock ? "UNBLOCK" : a->verb == ADMIN_LIST ? "LIST" : "PAUSE");
    for (size_t i = 2; filters && i < k->request->argc; i++)
        build_bulk(w, k->bytes + k->request->argv[i].off, k->request->argv[i].len);
    if (filters) /* the last address counts */
        build_text(w, "ADDR");
    if (a->verb == ADMIN_LIST)
        build_text(w, "ID");
    build_text(w, kill ? "-" : unblock ? "0" : a->verb == ADMIN_LIST ? NOBODY : "-1");
    call_submit(&a->request->call, SLOT_NONE, w->build.data, w->build.len);
}

bool client_admin(struct session *s, const struct request_class *k) {
    static const struct {
        const char *name;
        enum admin_verb verb;
        bool (*words)(struct admin *a, const struct request_class *k);
    } verbs[] = {{"list", ADMIN_LIST, list_words},
                 {"kill", ADMIN_KILL, kill_words},
                 {"pause", ADMIN_PAUSE, pause_words},
                 {"unpause", ADMIN_UNPAUSE, unpause_words},
                 {"unblock", ADMIN_UNBLOCK, unblock_words}};
    size_t i = 0;
    while (i < sizeof(verbs) / sizeof(verbs[0]) && !class_arg_is(k, 1, verbs[i].name))
        i++;
    if (i == sizeof(verbs) / sizeof(verbs[0]))
        return false;
    if (verbs[i].verb == ADMIN_LIST && k->request->argc > IDS_MAX + 3) {
        session_refuse(s, k->command, "ERR too many client IDs for one CLIENT LIST; at most %d", IDS_MAX);
        return true;
    }
    struct admin *a = memory_zalloc(sizeof(*a));
    a->verb = verbs[i].verb;
    a->kind = CLIENT_KIND_UNKNOWN;
    a->asker = s->lock.id;
    a->asked = k->request->len;
    if (!verbs[i].words(a, k)) {
        admin_free(&a->owner);
        return false;
    }
    struct request *request = request_new(s, k->command);
    a->request = request;
    request_own(request, &a->owner, &admin_ops);
    request->call.done = probed;
    request_barrier(request);
    probe(a, k);
    return true;
}
