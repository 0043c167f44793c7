/*
 * Commands about the session itself: AUTH, HELLO, SELECT, CLIENT, QUIT, RESET, READONLY, READWRITE, ASKING.
 *
 * A session's database, protocol and user are those of the shared connections that it uses (its lane). A change is
 * tried on a connection of the new lane; where the node refuses it, the client gets the node's own words and nothing
 * has changed. Requests behind such a change wait for it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/pinned.h"
#include "proxy/session/session.h"

enum { DATABASES_MAX = 1000000 };

/* A change under way. */
struct change {
    struct upstream_lane lane;
    bool hello, authenticates;
    uint32_t login;    /* interned for this change, 0 none; the session's once it is applied */
    char *user, *name; /* NULL: not given */
};

static void change_free(struct change *change) {
    upstream_login_release(change->login);
    memory_free(change->user);
    memory_free(change->name);
    memory_free(change);
}

static void set_text(char **field, const char *text, size_t len) {
    memory_free(*field);
    *field = len > 0 ? memory_strndup(text, len) : NULL;
}

/* Redis's rule for names that appear in CLIENT LIST. */
static bool name_ok(const char *name, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (name[i] < '!' || name[i] > '~')
            return false;
    return true;
}

/* The reply of HELLO names a connection id: that of the shared connection. The client gets its own. */
static void reply_hello(struct request *r, const struct call_end *end) {
    static const char mark[] = "$2\r\nid\r\n:";
    const char *at = r->session ? memmem(end->reply, end->len, mark, sizeof(mark) - 1) : NULL;
    const char *tail = at ? memchr(at + sizeof(mark) - 1, '\r', end->len - (size_t)(at - end->reply) - 9) : NULL;
    if (!tail) {
        request_reply(r, end->reply, end->len, true);
        return;
    }
    char id[24];
    size_t head = (size_t)(at - end->reply) + sizeof(mark) - 1;
    request_reply(r, end->reply, head, false);
    request_reply(r, id, (size_t)snprintf(id, sizeof(id), "%llu", (unsigned long long)r->session->lock.id), false);
    request_reply(r, tail, end->len - (size_t)(tail - end->reply), true);
}

static void change_apply(struct session *s, struct change *change) {
    s->db = change->lane.db;
    s->protocol = change->lane.protocol;
    if (change->login) {
        upstream_login_release(s->login);
        s->login = change->login;
        change->login = 0;
    }
    if (change->authenticates) {
        s->authenticated = true;
        set_text(&s->user, change->user ? change->user : "", change->user ? strlen(change->user) : 0);
    }
    if (change->name)
        set_text(&s->name, change->name, strlen(change->name));
    session_identify(s);
}

static void change_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct change *change = r->state;
    bool refused = end->error || (end->reply[0] == '-' && strncmp(end->reply, "-NOPERM", 7) != 0);
    r->state = NULL;
    if (!refused && r->session)
        change_apply(r->session, change);
    bool hello = change->hello;
    change_free(change);
    if (end->error) {
        char error[512];
        snprintf(error, sizeof(error), "%s", end->error);
        if (end->why == UPSTREAM_REFUSED)
            request_error(r, error);
        else
            request_fail(r, error);
    } else if (refused) {
        request_reply(r, end->reply, end->len, true);
    } else if (hello) {
        reply_hello(r, end);
    } else {
        request_reply(r, "+OK\r\n", 5, true);
    }
}

/* Sends `probe` over the new lane, and holds later requests back until it has been answered. */
static void change_start(struct session *s, const struct command *c, struct change *change, const char *probe) {
    struct request *request = request_new(s, c);
    request->state = change;
    request->call.done = change_done;
    request_barrier(request);
    call_submit_lane(&request->call, -1, &change->lane, probe, strlen(probe));
}

static struct change *change_new(const struct session *s) {
    struct change *change = memory_zalloc(sizeof(*change));
    change->lane = session_lane(s);
    return change;
}

/* ---- AUTH, HELLO, SELECT ------------------------------------------------------------------------- */

static const char WRONGPASS[] = "WRONGPASS invalid username-password pair or user is disabled.";

/* Compares without telling by its time how much was right. */
static bool password_is(const char *expected, const char *given, size_t len) {
    size_t want = strlen(expected);
    unsigned char differs = want != len;
    for (size_t i = 0; i < len; i++)
        differs |= (unsigned char)(given[i] ^ expected[want ? i % want : 0]);
    return !differs;
}

/* Checks a login against requirepass where the proxy has one; otherwise notes it in the change, and the node will
 * judge. user NULL: AUTH with a password alone. Returns false where it is wrong. */
static bool change_login(struct session *s, struct change *change, const char *user, size_t user_len,
                         const char *password, size_t password_len) {
    const char *required = s->worker->shared->options.requirepass;
    change->authenticates = true;
    memory_free(change->user);
    change->user = NULL;
    if (user)
        change->user = memory_strndup(user, user_len);
    if (required)
        return (!user || (user_len == 7 && memcmp(user, "default", 7) == 0)) &&
               password_is(required, password, password_len);
    upstream_login_release(change->login); /* HELLO with AUTH twice: the last one counts */
    change->login = change->lane.login = upstream_login_intern(user, user_len, password, password_len);
    return true;
}

static void do_auth(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    if (r->argc > 3) {
        dispatch_local_error(s, c, "ERR syntax error");
        return;
    }
    size_t user_len = 0, password_len;
    const char *user = r->argc == 3 ? request_arg(r, bytes, 1, &user_len) : NULL;
    const char *password = request_arg(r, bytes, r->argc - 1, &password_len);
    struct change *change = change_new(s);
    if (!change_login(s, change, user, user_len, password, password_len)) {
        change_free(change);
        dispatch_local_error(s, c, "%s", WRONGPASS);
        return;
    }
    if (s->worker->shared->options.requirepass) { /* judged here: the node need not be asked */
        change_apply(s, change);
        change_free(change);
        dispatch_local(s, c, "+OK\r\n", 5);
        return;
    }
    change_start(s, c, change, "*1\r\n$4\r\nPING\r\n");
}

/* HELLO's options. Returns NULL, or the error. */
static const char *hello_options(struct session *s, struct change *change, const struct resp_request *r,
                                 const char *bytes, char *error, size_t size) {
    char word[64];
    for (size_t i = 2; i < r->argc; i++) {
        size_t left = r->argc - i - 1, len, len2;
        if (request_arg_is(r, bytes, i, "auth") && left >= 2) {
            const char *user = request_arg(r, bytes, i + 1, &len);
            const char *password = request_arg(r, bytes, i + 2, &len2);
            if (!change_login(s, change, user, len, password, len2))
                return WRONGPASS;
            i += 2;
        } else if (request_arg_is(r, bytes, i, "setname") && left >= 1) {
            const char *name = request_arg(r, bytes, i + 1, &len);
            if (!name_ok(name, len))
                return "ERR Client names cannot contain spaces, newlines or special characters.";
            memory_free(change->name);
            change->name = memory_strndup(name, len);
            i++;
        } else {
            snprintf(error, size, "ERR Syntax error in HELLO option '%s'",
                     request_arg_text(r, bytes, i, word, sizeof(word)));
            return error;
        }
    }
    return NULL;
}

static void do_hello(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    size_t len;
    const char *version = r->argc > 1 ? request_arg(r, bytes, 1, &len) : NULL;
    int64_t protocol = s->protocol;
    if (version && !resp_integer(version, len, &protocol)) {
        dispatch_local_error(s, c, "ERR Protocol version is not an integer or out of range");
        return;
    }
    if (protocol != 2 && protocol != 3) {
        dispatch_local_error(s, c, "NOPROTO unsupported protocol version");
        return;
    }
    struct change *change = change_new(s);
    char error[128];
    const char *wrong = hello_options(s, change, r, bytes, error, sizeof(error));
    if (!wrong && session_unauthenticated(s) && !change->authenticates)
        wrong = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> "
                "<pass> option can be used to authenticate the client and select the RESP protocol version at "
                "the same time";
    if (wrong) {
        change_free(change);
        dispatch_local_error(s, c, "%s", wrong);
        return;
    }
    change->hello = true;
    change->lane.protocol = (uint8_t)protocol;
    change_start(s, c, change, protocol == 3 ? "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n" : "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
}

static void do_select(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    size_t len;
    const char *text = request_arg(r, bytes, 1, &len);
    int64_t db;
    if (!resp_integer(text, len, &db) || db > INT32_MAX || db < INT32_MIN) {
        dispatch_local_error(s, c, "ERR value is not an integer or out of range");
        return;
    }
    if (db != 0 && upstream_is_cluster(s->worker->upstream)) {
        dispatch_local_error(s, c, "ERR SELECT is not allowed in cluster mode");
        return;
    }
    if (db < 0 || db > DATABASES_MAX) {
        dispatch_local_error(s, c, "ERR DB index is out of range");
        return;
    }
    struct change *change = change_new(s);
    change->lane.db = (uint32_t)db;
    change_start(s, c, change, "*1\r\n$4\r\nPING\r\n");
}

/* ---- CLIENT -------------------------------------------------------------------------------------- */

static void reply_bulk(struct session *s, const struct command *c, const char *text, size_t len) {
    struct text reply;
    text_init(&reply);
    char *at = text_reserve(&reply, resp_bulk_size(len));
    text_commit(&reply, (size_t)(resp_bulk_write(at, text, len) - at));
    dispatch_local(s, c, reply.data, reply.len);
    text_clear(&reply);
}

static void reply_null(struct session *s, const struct command *c) {
    dispatch_local(s, c, s->protocol == 3 ? "_\r\n" : "$-1\r\n", s->protocol == 3 ? 3 : 5);
}

static void client_setname(struct session *s, const struct command *c, const struct resp_request *r,
                           const char *bytes) {
    size_t len;
    const char *name = request_arg(r, bytes, 2, &len);
    if (!name_ok(name, len)) {
        dispatch_local_error(s, c, "ERR Client names cannot contain spaces, newlines or special characters.");
        return;
    }
    set_text(&s->name, name, len);
    session_identify(s);
    dispatch_local(s, c, "+OK\r\n", 5);
}

static void client_setinfo(struct session *s, const struct command *c, const struct resp_request *r,
                           const char *bytes) {
    size_t len;
    const char *value = request_arg(r, bytes, 3, &len);
    bool name = request_arg_is(r, bytes, 2, "lib-name");
    char word[64];
    if (!name && !request_arg_is(r, bytes, 2, "lib-ver")) {
        dispatch_local_error(s, c, "ERR Unrecognized option '%s'", request_arg_text(r, bytes, 2, word, sizeof(word)));
        return;
    }
    if (!name_ok(value, len)) {
        dispatch_local_error(s, c, "ERR %s cannot contain spaces, newlines or special characters.",
                             name ? "lib-name" : "lib-ver");
        return;
    }
    set_text(name ? &s->lib_name : &s->lib_version, value, len);
    if (name)
        engine_session_library(s->worker->shared->engine, &s->lock, value, len);
    dispatch_local(s, c, "+OK\r\n", 5);
}

static void client_info(struct session *s, const struct command *c) {
    struct text line;
    text_init(&line);
    long long now = (long long)s->worker->now_ms;
    text_printf(&line,
                "id=%llu addr=%s laddr= fd=%d name=%s age=%lld idle=0 flags=N db=%u sub=0 psub=0 ssub=0 multi=-1 "
                "qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=%zu tot-mem=%zu events=r "
                "cmd=client|info user=%s redir=-1 resp=%d lib-name=%s lib-ver=%s\n",
                (unsigned long long)s->lock.id, s->address, s->fd, s->name ? s->name : "",
                (now - (long long)s->opened_ms) / 1000, s->db, s->out.unsent, sizeof(*s), s->user ? s->user : "default",
                s->protocol, s->lib_name ? s->lib_name : "", s->lib_version ? s->lib_version : "");
    if (s->protocol == 3) {
        char head[32];
        size_t n = (size_t)snprintf(head, sizeof(head), "=%zu\r\ntxt:", line.len + 4);
        struct text reply;
        text_init(&reply);
        text_append(&reply, head, n);
        text_append(&reply, line.data, line.len);
        text_append(&reply, "\r\n", 2);
        dispatch_local(s, c, reply.data, reply.len);
        text_clear(&reply);
    } else {
        reply_bulk(s, c, line.data, line.len);
    }
    text_clear(&line);
}

/* Subcommands that concern the connection itself, which here is shared, or other clients of the node. */
static bool client_refused(const struct resp_request *r, const char *bytes) {
    static const char *const names[] = {"reply", "tracking", "caching", "getredir", "trackinginfo", "list",
                                        "kill",  "pause",    "unpause", "no-evict", "no-touch",     "unblock"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (request_arg_is(r, bytes, 1, names[i]))
            return true;
    return false;
}

enum client_way local_client_way(const struct resp_request *r, const char *bytes) {
    static const struct {
        const char *name;
        size_t argc;
    } answered[] = {{"setname", 3}, {"getname", 2}, {"id", 2}, {"setinfo", 4}, {"info", 2}};
    for (size_t i = 0; i < sizeof(answered) / sizeof(answered[0]); i++)
        if (r->argc == answered[i].argc && request_arg_is(r, bytes, 1, answered[i].name))
            return CLIENT_ANSWERED;
    return client_refused(r, bytes) ? CLIENT_REFUSED : CLIENT_FORWARDED;
}

static void do_client(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    char number[RESP_HEADER_MAX], word[64];
    if (request_arg_is(r, bytes, 1, "setname") && r->argc == 3) {
        client_setname(s, c, r, bytes);
    } else if (request_arg_is(r, bytes, 1, "getname") && r->argc == 2) {
        if (s->name)
            reply_bulk(s, c, s->name, strlen(s->name));
        else
            reply_null(s, c);
    } else if (request_arg_is(r, bytes, 1, "id") && r->argc == 2) {
        dispatch_local(s, c, number, resp_header_write(number, ':', (int64_t)s->lock.id));
    } else if (request_arg_is(r, bytes, 1, "setinfo") && r->argc == 4) {
        client_setinfo(s, c, r, bytes);
    } else if (request_arg_is(r, bytes, 1, "info") && r->argc == 2) {
        client_info(s, c);
    } else if (client_refused(r, bytes)) {
        request_arg_text(r, bytes, 1, word, sizeof(word));
        for (char *p = word; *p; p++)
            *p = *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p;
        dispatch_local_error(s, c, "ERR CLIENT %s is not supported by lockkeeper", word);
    } else { /* unknown, or a wrong number of arguments: Redis's words */
        dispatch_forward(s, c, r, bytes, -1);
    }
}

/* ---- the rest ------------------------------------------------------------------------------------ */

static void do_quit(struct session *s, const struct command *c) {
    struct request *request = request_new(s, c);
    request->close_after = true;
    s->barrier = true; /* what is behind QUIT is not looked at */
    request_reply(request, "+OK\r\n", 5, true);
}

static void do_reset(struct session *s, const struct command *c) {
    const struct session_options *o = &s->worker->shared->options;
    transaction_drop(s);
    pubsub_drop(s);
    s->db = 0;
    upstream_login_release(s->login);
    s->login = 0;
    s->protocol = 2;
    s->authenticated = o->requirepass == NULL;
    set_text(&s->name, "", 0);
    set_text(&s->user, "", 0);
    session_identify(s);
    dispatch_local(s, c, "+RESET\r\n", 8);
}

/* Whether a command changes the lane: it waits for what is in flight, which another connection could overtake. */
static bool changes_lane(const struct command *c) {
    return c->id == COMMAND_AUTH || c->id == COMMAND_HELLO || c->id == COMMAND_SELECT || c->id == COMMAND_RESET;
}

enum dispatch_result local_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes) {
    if (changes_lane(c) && s->in_flight > 0)
        return DISPATCH_WAIT;
    if (changes_lane(c) && c->id != COMMAND_RESET && s->transaction) {
        dispatch_local_error(s, c, "ERR %s between WATCH and EXEC is not supported by lockkeeper", c->name);
        return DISPATCHED;
    }
    if (c->id == COMMAND_HELLO && r->argc > 1 && s->pubsub) {
        dispatch_local_error(s, c, "ERR hello while subscribed or monitoring is not supported by lockkeeper");
        return DISPATCHED;
    }
    switch ((int)c->id) {
    case COMMAND_AUTH:
        do_auth(s, c, r, bytes);
        break;
    case COMMAND_HELLO:
        do_hello(s, c, r, bytes);
        break;
    case COMMAND_SELECT:
        do_select(s, c, r, bytes);
        break;
    case COMMAND_CLIENT:
        do_client(s, c, r, bytes);
        break;
    case COMMAND_QUIT:
        do_quit(s, c);
        break;
    case COMMAND_RESET:
        do_reset(s, c);
        break;
    default: /* READONLY, READWRITE, ASKING: harmless words to a proxy of a cluster */
        if (upstream_is_cluster(s->worker->upstream))
            dispatch_local(s, c, "+OK\r\n", 5);
        else
            dispatch_forward(s, c, r, bytes, -1);
        break;
    }
    return DISPATCHED;
}
