/*
 * CLIENT, and a client's line in LIST and INFO. An unknown subcommand, or one with wrong arguments, goes to the node,
 * which answers with the error. LIST, KILL, PAUSE, UNPAUSE and UNBLOCK are about the clients of all threads:
 *
 *      request ── probe ──> node: may this user do that, and are the arguments valid?
 *                              │ yes
 *                              └──> a broadcast of all workers ──> reply         UNBLOCK: ──> the blocked client's node
 *
 * The probe is the same subcommand in a form without effect, since the node's clients are not the proxy's clients.
 * Later requests of the client wait.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proxy/base/handed_board.h"
#include "proxy/base/memory.h"
#include "proxy/session/blocking/blocking.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/locks/locks.h"
#include "proxy/session/push/push.h"
#include "proxy/session/transaction/transaction.h"

static const int64_t PAUSE_LONGEST_MS = INT64_MAX / 2; /* for a longer pause Redis has an error */

enum {
    IDS_MAX = 10000,      /* in one CLIENT LIST ID */
    CLIENTS_A_STEP = 200, /* visited in a step */
    CLIENT_ADDRESS_MAX = 2 * SESSION_ADDRESS_MAX
};

enum client_kind { CLIENT_NORMAL, CLIENT_PUBSUB, CLIENT_MASTER, CLIENT_REPLICA, CLIENT_KIND_UNKNOWN };
enum admin_verb { ADMIN_LIST, ADMIN_KILL, ADMIN_PAUSE, ADMIN_UNPAUSE, ADMIN_UNBLOCK };

struct shown {
    int64_t id; /* first, for by_number */
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
    size_t shown_count;
    int64_t killed;
};

static void admin_free(struct request_owner *owner) {
    struct admin *a = (struct admin *)(void *)owner;
    for (size_t i = 0; i < a->shown_count; i++)
        memory_free(a->shown[i].line);
    MEMORY_FREE_ALL(a->shown, a->ids, a->sorted, a->user, a->address, a->local_address, a->node, a);
}

static const struct request_owner_ops admin_ops = {.free = admin_free};

/* ---- a client's line: Redis's format, with the facts known to this process ---------------------------- */

static bool take_kind(struct admin *a, const struct request_class *k, size_t i) {
    static const char *const kinds[] = {"normal", "pubsub", "master", "replica", "slave", NULL};
    int kind = class_arg_choice(k, i, kinds);
    a->kind = kind == CLIENT_REPLICA + 1 ? CLIENT_REPLICA : (enum client_kind)kind;
    return kind >= 0;
}

/* Write the address that the client connected to, and the client's own: "10.0.0.5:3321", at most CLIENT_ADDRESS_MAX
 * bytes. They return `out`. */
static const char *local_address(const struct session *s, char *out) {
    struct sockaddr_storage local;
    socklen_t len = sizeof(local);
    out[0] = '\0';
    if (getsockname(s->fd, (struct sockaddr *)&local, &len) != 0)
        return out;
    const struct sockaddr_un *un = (const void *)&local;
    const char *path = s->worker->shared->unix_path;
    if (local.ss_family == AF_UNIX && path)
        snprintf(out, CLIENT_ADDRESS_MAX, "%s:0", path);
    else if (local.ss_family == AF_UNIX)
        snprintf(out, CLIENT_ADDRESS_MAX, "%.*s:0", (int)sizeof(un->sun_path), un->sun_path);
    else
        session_address_text(&local, out, CLIENT_ADDRESS_MAX);
    return out;
}

static const char *address_of(const struct session *s, char *out) {
    if (session_by_unix_socket(s)) /* the client's end has no name: Redis shows the socket's */
        return local_address(s, out);
    snprintf(out, CLIENT_ADDRESS_MAX, "%s", s->address);
    return out;
}

static void flags_text(const struct session *s, const struct pubsub_counts *n, char *out) {
    const struct {
        char letter;
        bool on;
    } flags[] = {{'O', n->monitor},
                 {'P', n->channels + n->patterns + n->shards > 0},
                 {'x', transaction_count(s) >= 0},
                 {'b', s->delays & (DELAY_BLOCKED | DELAY_PAUSED)},
                 {'t', tracking_state(s).on},
                 {'B', tracking_state(s).bcast},
                 {'c', s->state == SESSION_FINISHING},
                 {'U', session_by_unix_socket(s)},
                 {'e', commands_of(s)->no_evict}};
    char *p = out;
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (flags[i].on)
            *p++ = flags[i].letter;
    if (p == out)
        *p++ = 'N';
    *p = '\0';
}

/* Appends the client's line; `reading`: the length of its current request, or 0. Facts that only a node knows are 0. */
static void client_show(const struct session *s, size_t reading, struct text *out) {
    char address[CLIENT_ADDRESS_MAX], local[CLIENT_ADDRESS_MAX], flags[16];
    struct pubsub_counts n = pubsub_count(s);
    flags_text(s, &n, flags);
    size_t waiting = s->input ? s->input->end - s->input->start : 0;
    size_t output = s->out.unsent + s->held_bytes; /* including replies that wait for earlier replies */
    const char *sub =
        s->last && s->last->need != NEED_KEY && (s->last->flags & COMMAND_SUBCOMMANDS) ? commands_of(s)->last_word : "";
    int64_t idle = (worker_turn_us(s->worker) - s->active_us) / 1000000;
    text_printf(out,
                "id=%llu addr=%s laddr=%s fd=%d name=%s age=%lld idle=%lld flags=%s db=%u sub=%lld psub=%lld ssub=%lld "
                "multi=%lld qbuf=%zu qbuf-free=%zu argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=%zu "
                "tot-mem=%zu events=%s cmd=%s%s%s user=%s redir=%d resp=%d lib-name=%s lib-ver=%s\n",
                (unsigned long long)s->lock.id, address_of(s, address), local_address(s, local), s->fd,
                s->name ? s->name : "", (long long)(worker_now(s->worker) - s->opened_ms) / 1000, (long long)idle,
                flags, s->lane.db, (long long)n.channels, (long long)n.patterns, (long long)n.shards,
                (long long)transaction_count(s), waiting + reading, s->input ? s->input->cap - waiting : 0, output,
                sizeof(*s) + (s->input ? s->input->cap : 0) + s->in_flight_bytes + output,
                s->io.events & EV_WRITE ? "rw" : "r", s->last ? s->last->name : "NULL", *sub ? "|" : "", sub,
                s->user ? s->user : "default", tracking_state(s).on ? 0 : -1, s->lane.protocol,
                s->lib_name ? s->lib_name : "", s->lib_version ? s->lib_version : "");
}

/* ---- arguments ---------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static bool list_words(struct admin *a, const struct request_class *k) {
    if (k->request->argc == 2)
        return true;
    if (k->request->argc == 4 && class_arg_is(k, 2, "type"))
        return take_kind(a, k, 3);
    if (k->request->argc < 4 || !class_arg_is(k, 2, "id"))
        return false;
    a->id_count = k->request->argc - 3;
    a->ids = memory_zalloc(a->id_count * sizeof(*a->ids));
    for (size_t i = 0; i < a->id_count; i++)
        if (!request_arg_integer(k->request, k->bytes, i + 3, &a->ids[i]))
            return false;
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
    enum { ID, TYPE, SKIPME, ADDR, LADDR, USER };
    static const char *const options[] = {"id", "type", "skipme", "addr", "laddr", "user", NULL};
    char **texts[] = {[ADDR] = &a->address, [LADDR] = &a->local_address, [USER] = &a->user};
    a->by_address = k->request->argc == 3;
    a->spare_self = !a->by_address;
    if (a->by_address)
        take_text(&a->address, k, 2);
    for (size_t i = 2; i + 1 < k->request->argc; i += 2) {
        int64_t id = 0;
        int option = class_arg_choice(k, i, options);
        bool right = option >= 0;
        if (option == ID) {
            right = request_arg_integer(k->request, k->bytes, i + 1, &id) && id >= 1;
            a->id = (uint64_t)id;
        } else if (option == TYPE) {
            right = take_kind(a, k, i + 1);
        } else if (option == SKIPME) {
            a->spare_self = class_arg_is(k, i + 1, "yes");
            right = a->spare_self || class_arg_is(k, i + 1, "no");
        } else if (right) {
            take_text(texts[option], k, i + 1);
        }
        if (!right)
            return false;
    }
    return a->by_address || (k->request->argc % 2 == 0 && k->request->argc > 3);
}

static bool pause_words(struct admin *a, const struct request_class *k) {
    if (k->request->argc != 3 && k->request->argc != 4)
        return false;
    a->all = k->request->argc == 3 || class_arg_is(k, 3, "all");
    return request_arg_integer(k->request, k->bytes, 2, &a->ms) && a->ms >= 0 && a->ms <= PAUSE_LONGEST_MS &&
           (a->all || class_arg_is(k, 3, "write"));
}

static bool unblock_words(struct admin *a, const struct request_class *k) {
    int64_t id;
    if (k->request->argc != 3 && k->request->argc != 4)
        return false;
    a->error = k->request->argc == 4 && class_arg_is(k, 3, "error");
    if (!request_arg_integer(k->request, k->bytes, 2, &id) ||
        (k->request->argc == 4 && !a->error && !class_arg_is(k, 3, "timeout")))
        return false;
    a->id = (uint64_t)id;
    return true;
}

/* ---- during the broadcast ----------------------------------------------------------------------------- */

static bool meant(const struct admin *a, const struct session *s) {
    char address[CLIENT_ADDRESS_MAX];
    if ((a->id || a->verb == ADMIN_UNBLOCK) && s->lock.id != a->id)
        return false;
    struct pubsub_counts n = pubsub_count(s);
    if (a->kind != CLIENT_KIND_UNKNOWN &&
        a->kind != (n.channels + n.patterns + n.shards > 0 ? CLIENT_PUBSUB : CLIENT_NORMAL))
        return false;
    if (a->user && strcmp(a->user, s->user ? s->user : "default") != 0)
        return false;
    if (a->address && strcmp(a->address, address_of(s, address)) != 0)
        return false;
    if (a->local_address && strcmp(a->local_address, local_address(s, address)) != 0)
        return false;
    int64_t id = (int64_t)s->lock.id;
    return a->id_count == 0 || bsearch(&id, a->sorted, a->id_count, sizeof(id), by_number);
}

static void blocked_at(void *arg, const char *node, int64_t client) {
    struct admin *a = arg;
    a->node = memory_strdup(node);
    a->at_node = client;
}

static void visit(struct admin *a, struct session *s) {
    bool self = s->lock.id == a->asker;
    if (!meant(a, s))
        return;
    if (a->verb == ADMIN_LIST) {
        struct text line = {0};
        client_show(s, self ? a->asked : 0, &line);
        *ARRAY_ADD(a->shown, a->shown_count) = (struct shown){(int64_t)s->lock.id, line.data};
    } else if (a->verb == ADMIN_UNBLOCK) {
        a->unblocked = fence_unblock(s, a->error) || blocking_unblock(s, a->error, blocked_at, a);
    } else if (!self || !a->spare_self) {
        a->killed++;
        if (self)
            a->request->close_after = true; /* after the reply; this visit is in the session's own thread */
        else
            session_close(s, "CLIENT KILL");
    }
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
    LIST_EACH_SAFE(s, &w->sessions, struct session, link) {
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

/* Replies with the clients in the order of their numbers; only those asked for, if numbers were given. */
static void reply_list(struct admin *a, struct request *r) {
    struct text lines = {0}, reply = {0};
    if (a->shown_count > 1)
        qsort(a->shown, a->shown_count, sizeof(*a->shown), by_number);
    for (size_t i = 0; a->id_count == 0 && i < a->shown_count; i++)
        text_append(&lines, a->shown[i].line, strlen(a->shown[i].line));
    for (size_t i = 0; a->shown_count > 0 && i < a->id_count; i++) {
        const struct shown *found = bsearch(&a->ids[i], a->shown, a->shown_count, sizeof(*found), by_number);
        if (found)
            text_append(&lines, found->line, strlen(found->line));
    }
    struct handed_counts before = handed_board_read(r->worker->shared->before);
    if (before.clients > 0 && a->id_count == 0 && a->kind == CLIENT_KIND_UNKNOWN)
        text_printf(&lines,
                    "id=0 addr=process-%lld:0 name=clients-of-the-process-that-leaves clients=%lld leases=%lld\n",
                    (long long)before.pid, (long long)before.clients, (long long)before.leases);
    append_page(&reply, r->session && r->session->lane.protocol == 3, lines.data, lines.len);
    request_reply(r, reply.data, reply.len, true);
    text_clear(&lines);
    text_clear(&reply);
}

static void reply_number(struct request *r, int64_t n) {
    char line[RESP_HEADER_MAX];
    request_reply(r, line, resp_header_write(line, ':', n), true);
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
        if (!a->by_address)
            reply_number(r, a->killed);
        else if (a->killed > 0)
            request_reply(r, "+OK\r\n", 5, true);
        else
            request_error(r, "ERR No such client");
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

/* Whether the end of the probe permits the command. With the right, LIST ID NOBODY, UNBLOCK 0 and KILL get a plain
 * reply, PAUSE -1 an error of its own. If no node could judge it: operators without login need to see and end
 * connections while a node is down, and may, if the node granted clients without login as much before. A pause would
 * last beyond the node's return. */
static bool allowed(const struct admin *a, const struct request *r, const struct call_end *end) {
    if (end->error)
        return end->why != UPSTREAM_REFUSED &&
               (!r->session || (a->verb != ADMIN_PAUSE && session_is_stranger(r->session) &&
                                r->worker->unauthenticated_look == RIGHTS_GRANTED));
    if (a->verb == ADMIN_PAUSE || a->verb == ADMIN_UNPAUSE)
        return reply_begins(end->reply, end->len, "-ERR timeout is negative");
    return end->reply[0] != '-' || (a->by_address && strncmp(end->reply, "-ERR No such client", 19) == 0);
}

static void probed(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct admin *a = REQUEST_OWNER(r, struct admin);
    if (!allowed(a, r, end)) {
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
    static const struct {
        const char *name, *argument;
    } harmless[] = {[ADMIN_LIST] = {"LIST", NOBODY},
                    [ADMIN_KILL] = {"KILL", "-"},
                    [ADMIN_PAUSE] = {"PAUSE", "-1"},
                    [ADMIN_UNPAUSE] = {"PAUSE", "-1"},
                    [ADMIN_UNBLOCK] = {"UNBLOCK", "0"}};
    struct worker *w = a->request->worker;
    bool list = a->verb == ADMIN_LIST, filters = a->verb == ADMIN_KILL && !a->by_address;
    build_start(w, filters ? k->request->argc + 2 : 3u + list);
    build_text(w, "CLIENT");
    build_text(w, harmless[a->verb].name);
    for (size_t i = 2; filters && i < k->request->argc; i++)
        build_bulk(w, k->bytes + k->request->argv[i].off, k->request->argv[i].len);
    if (filters || list)
        build_text(w, list ? "ID" : "ADDR"); /* the last address counts */
    build_text(w, harmless[a->verb].argument);
    call_submit(&a->request->call, SLOT_NONE, w->build.data, w->build.len);
}

/* ---- the client itself: its name, its library, its number, whether it wants replies ---------------- */

bool client_name_ok(const char *name, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (name[i] < '!' || name[i] > '~')
            return false;
    return true;
}

void client_set_text(char **field, const char *text, size_t len) {
    memory_free(*field);
    *field = len > 0 ? memory_strndup(text, len) : NULL;
}

/* ---- names -------------------------------------------------------------------------------------- */

static enum dispatch_result client_setname(struct session *s, const struct request_class *k) {
    size_t len;
    const char *name = class_arg(k, 2, &len);
    if (!client_name_ok(name, len))
        return session_refuse(s, k->command, CLIENT_NAME_REFUSED);
    client_set_text(&s->name, name, len);
    session_identify(s);
    return session_answer(s, k->command, "+OK\r\n", 5);
}

static enum dispatch_result client_getname(struct session *s, const struct request_class *k) {
    struct text reply = {0};
    if (s->name)
        text_bulk(&reply, s->name, strlen(s->name));
    else
        text_printf(&reply, s->lane.protocol == 3 ? "_\r\n" : "$-1\r\n");
    return session_answer_text(s, k->command, &reply);
}

static enum dispatch_result client_setinfo(struct session *s, const struct request_class *k) {
    size_t len, word_len;
    const char *value = class_arg(k, 3, &len), *word = class_arg(k, 2, &word_len);
    bool name = class_arg_is(k, 2, "lib-name");
    len = strnlen(value, len); /* Redis ignores the rest */
    if (!name && !class_arg_is(k, 2, "lib-ver"))
        return session_refuse(s, k->command, "ERR Unrecognized option '%.*s'", (int)word_len, word);
    if (!client_name_ok(value, len))
        return session_refuse(s, k->command, "ERR %.*s cannot contain spaces, newlines or special characters.",
                              (int)word_len, word);
    client_set_text(name ? &s->lib_name : &s->lib_version, value, len);
    if (name)
        engine_session_library(s->worker->shared->engine, &s->lock, value, len);
    return session_answer(s, k->command, "+OK\r\n", 5);
}

/* ---- the rest ----------------------------------------------------------------------------------- */

static enum dispatch_result client_id(struct session *s, const struct request_class *k) {
    char number[RESP_HEADER_MAX];
    return session_answer(s, k->command, number, resp_header_write(number, ':', (int64_t)s->lock.id));
}

static enum dispatch_result client_info(struct session *s, const struct request_class *k) {
    struct text line = {0}, reply = {0};
    client_show(s, k->request->len, &line);
    append_page(&reply, s->lane.protocol == 3, line.data, line.len);
    text_clear(&line);
    return session_answer_text(s, k->command, &reply);
}

/* Runs CLIENT REPLY: the proxy leaves replies out; the node is not told. */
static enum dispatch_result client_reply(struct session *s, const struct request_class *k) {
    static const char *const modes[] = {[REPLY_ON] = "on", [REPLY_OFF] = "off", [REPLY_SKIP_NEXT] = "skip", NULL};
    int mode = class_arg_choice(k, 2, modes);
    if (mode < 0)
        return class_pass(s, k, SLOT_NONE);
    if (mode != REPLY_SKIP_NEXT || s->reply_mode != REPLY_OFF)
        s->reply_mode = (uint8_t)mode;
    return mode == REPLY_ON ? session_answer(s, k->command, "+OK\r\n", 5) : DISPATCHED;
}

/* Runs CLIENT NO-EVICT, which is only shown: the proxy evicts no clients. */
static enum dispatch_result client_no_evict(struct session *s, const struct request_class *k) {
    bool on = class_arg_is(k, 2, "on");
    if (!on && !class_arg_is(k, 2, "off"))
        return class_pass(s, k, SLOT_NONE);
    commands_of(s)->no_evict = on;
    return session_answer(s, k->command, "+OK\r\n", 5);
}

/* ---- all subcommands ------------------------------------------------------------------------------ */

/* The subcommands that the proxy knows, with the number of their arguments; tracking.c has the last ones. */
static const struct own {
    const char *name;
    size_t least, most; /* otherwise the node reports the error */
    enum dispatch_result (*answer)(struct session *s, const struct request_class *k); /* NULL: client_admin */
    enum admin_verb verb;
    bool (*words)(struct admin *a, const struct request_class *k); /* reads the arguments; NULL: there are none */
} owns[] = {
    {"setname", 3, 3, .answer = client_setname},
    {"getname", 2, 2, .answer = client_getname},
    {"id", 2, 2, .answer = client_id},
    {"setinfo", 4, 4, .answer = client_setinfo},
    {"info", 2, 2, .answer = client_info},
    {"reply", 3, 3, .answer = client_reply},
    {"no-evict", 3, 3, .answer = client_no_evict},
    {"list", 2, SIZE_MAX, .verb = ADMIN_LIST, .words = list_words},
    {"kill", 3, SIZE_MAX, .verb = ADMIN_KILL, .words = kill_words},
    {"pause", 3, SIZE_MAX, .verb = ADMIN_PAUSE, .words = pause_words},
    {"unpause", 2, 2, .verb = ADMIN_UNPAUSE},
    {"unblock", 3, SIZE_MAX, .verb = ADMIN_UNBLOCK, .words = unblock_words},
    {"tracking", 3, SIZE_MAX, .answer = tracking_dispatch},
    {"trackinginfo", 2, 2, .answer = tracking_dispatch},
    {"getredir", 2, 2, .answer = tracking_dispatch},
    {"no-touch", 3, 3, .answer = tracking_dispatch},
};

static const struct own *own_of(const struct request_class *k) {
    for (size_t i = 0; i < ARRAY_SIZE(owns); i++)
        if (k->request->argc >= owns[i].least && k->request->argc <= owns[i].most && class_arg_is(k, 1, owns[i].name))
            return &owns[i];
    return NULL;
}

bool client_is_own(const struct request_class *k) {
    return own_of(k) != NULL;
}

static enum dispatch_result client_admin(struct session *s, const struct request_class *k, const struct own *own) {
    if (own->verb == ADMIN_LIST && k->request->argc > IDS_MAX + 3)
        return session_refuse(s, k->command, "ERR too many client IDs for one CLIENT LIST; at most %d", IDS_MAX);
    struct admin *a = memory_zalloc(sizeof(*a));
    a->verb = own->verb;
    a->kind = CLIENT_KIND_UNKNOWN;
    a->asker = s->lock.id;
    a->asked = k->request->len;
    if (own->words && !own->words(a, k)) {
        admin_free(&a->owner);
        return class_pass(s, k, SLOT_NONE);
    }
    a->request = request_new(s, k->command);
    request_own(a->request, &a->owner, &admin_ops);
    a->request->call.done = probed;
    request_barrier(a->request);
    probe(a, k);
    return DISPATCHED;
}

enum dispatch_result client_dispatch(struct session *s, const struct request_class *k) {
    static const char *const tracking[] = {"tracking", "caching", "no-touch", "trackinginfo", "getredir", NULL};
    const struct own *own = own_of(k);
    if (class_arg_choice(k, 1, tracking) >= 0)
        return tracking_dispatch(s, k); /* about the connection to the node */
    if (!own)
        return class_pass(s, k, SLOT_NONE);
    return own->answer ? own->answer(s, k) : client_admin(s, k, own);
}
