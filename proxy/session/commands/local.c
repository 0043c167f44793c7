/*
 * Commands about the session itself: AUTH, HELLO, SELECT, QUIT, RESET, READONLY, READWRITE, ASKING.
 *
 * A session's database, protocol and user are those of the shared connections that it uses (its lane). A change is
 * tried on a connection of the new lane; if the node refuses, nothing has changed. A login is tried before that, on a
 * connection for trying logins, since the lane's may have a login that was revoked. Later requests wait.
 *
 * A wrong password takes one of the address's tokens. Without tokens, its next logins are refused without asking Redis.
 * An address gets TRIES_A_SECOND tokens a second and keeps up to TRIES_KEPT; an IPv6 address counts with its /64. The
 * last KNOWN logins that were valid from an address are not refused, since an application may share the address with an
 * attacker. The log has one line for all wrong passwords of LOG_SECONDS. With nopass any password is valid, and each
 * costs a connection to the node. New logins therefore have tokens of their own, up to NEW_KEPT. Addresses that share a
 * place in the table share their tokens.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"
#include "proxy/session/push/push.h"
#include "proxy/session/transaction/transaction.h"

enum {
    DATABASES_MAX = 1000000,
    LOGIN_WORD_MAX = 16384 /* a node closes a connection that sends more before its login */
};

enum { PLACES = 1024, TRIES_KEPT = 100, NEW_KEPT = 500, KNOWN = 4 };

static const double TRIES_A_SECOND = 20.0, LOG_SECONDS = 10.0;

/* ---- wrong passwords --------------------------------------------------------------------------------- */

/* The login number for requirepass; no client has it. */
#define WRONG_LOGIN_DOOR UPSTREAM_LOGIN_TRIED

struct place {
    double used;           /* tokens used */
    double used_by_new;    /* tokens used by new valid logins */
    double at;             /* time of these values, by the loop's clock */
    uint32_t known[KNOWN]; /* logins, the latest first; 0: none */
};

struct wrong_logins {
    double logged;  /* time of the last line, by the loop's clock; 0: never */
    uint64_t count; /* wrong passwords since the last line */
    struct place places[PLACES];
};

void wrong_open(struct worker *w) {
    w->wrong_logins = memory_zalloc(sizeof(*w->wrong_logins));
}

static struct place *place_of(const struct session *s) {
    struct wrong_logins *all = s->worker->wrong_logins;
    char text[SESSION_ADDRESS_MAX];
    const char *host = session_host(s, text, sizeof(text));
    uint32_t hash = text_hash(host, strlen(host));
    struct place *place = &all->places[(hash ^ hash >> 16) % PLACES];
    double now = ev_now(s->worker->loop), back = (now - place->at) * TRIES_A_SECOND;
    place->used = place->used > back ? place->used - back : 0;
    place->used_by_new = place->used_by_new > back ? place->used_by_new - back : 0;
    place->at = now;
    return place;
}

static size_t known_at(const struct place *place, uint32_t login) {
    size_t i = 0;
    while (i < KNOWN && place->known[i] != login)
        i++;
    return i;
}

bool wrong_too_often(const struct session *s, uint32_t login) {
    const struct place *place = place_of(s);
    return (place->used >= TRIES_KEPT || place->used_by_new >= NEW_KEPT) &&
           (login == 0 || known_at(place, login) == KNOWN);
}

/* Notes that a login was valid; `is_new`: no session has used it lately. */
static void wrong_right(const struct session *s, uint32_t login, bool is_new) {
    struct place *place = place_of(s);
    place->used_by_new += is_new;
    size_t at = known_at(place, login);
    at = at < KNOWN ? at : KNOWN - 1;
    memmove(place->known + 1, place->known, at * sizeof(place->known[0]));
    place->known[0] = login;
}

void wrong_queued(const struct session *s) {
    place_of(s)->used += 1;
}

/* Notes that the session has given a wrong password: for `login`, or (0) for a login without a number. */
static void wrong_note(struct session *s, uint32_t login) {
    struct wrong_logins *all = s->worker->wrong_logins;
    struct place *place = place_of(s);
    size_t at = login ? known_at(place, login) : KNOWN;
    if (at < KNOWN)
        place->known[at] = 0;
    place->used += 1;
    counter_add(&s->worker->counters.logins_refused, 1);
    all->count++;
    double now = ev_now(s->worker->loop), since = now - all->logged;
    if (all->logged != 0 && since < LOG_SECONDS)
        return;
    if (all->count == 1)
        log_warning("A wrong password from %s", s->address);
    else
        log_warning("%llu wrong passwords in the last %.0f seconds, the last one from %s",
                    (unsigned long long)all->count, since, s->address);
    all->logged = now;
    all->count = 0;
}

void wrong_close(struct worker *w) {
    if (w->wrong_logins->count > 0)
        log_warning("%llu more wrong passwords", (unsigned long long)w->wrong_logins->count);
    memory_free(w->wrong_logins);
}

/* ---- changes ------------------------------------------------------------------------------------------ */

struct change {
    struct request_owner owner; /* first */
    struct upstream_lane lane;
    bool hello, authenticates;
    const char *probe; /* the test of the login's lane, once the login is valid, or NULL; borrowed */
    uint32_t login;    /* interned for this change; 0: none. The session owns it once it is applied */
    char *user, *name; /* NULL: not given */
    char *wrong;       /* the error in HELLO's arguments after its login, sent if the login is valid; or NULL */
};

static void change_free(struct request_owner *owner) {
    struct change *change = (struct change *)(void *)owner;
    upstream_login_release(change->login);
    MEMORY_FREE_ALL(change->user, change->name, change->wrong, change);
}

static const struct request_owner_ops change_ops = {.free = change_free};

/* HELLO's reply contains the id of the node's connection; the client gets its own id instead. */
static void append_hello(const struct session *s, const char *reply, size_t len, struct text *out) {
    static const char mark[] = "$2\r\nid\r\n:";
    const char *at = memmem(reply, len, mark, sizeof(mark) - 1);
    size_t head = at ? (size_t)(at - reply) + sizeof(mark) - 1 : len;
    const char *tail = memchr(reply + head, '\r', len - head);
    if (!tail) {
        text_append(out, reply, len);
        return;
    }
    text_append(out, reply, head);
    text_printf(out, "%llu", (unsigned long long)s->lock.id);
    text_append(out, tail, len - (size_t)(tail - reply));
}

static void change_apply(struct session *s, struct change *change) {
    s->lane.db = change->lane.db;
    s->lane.protocol = change->lane.protocol;
    commands_of(s)->looked_in = false;
    if (change->login) {
        upstream_login_release(s->lane.login);
        wrong_right(s, change->login, !upstream_login_prove(change->login));
        s->lane.login = change->login;
        change->login = 0;
    }
    if (change->authenticates) {
        s->authenticated = true;
        client_set_text(&s->user, change->user ? change->user : "", change->user ? strlen(change->user) : 0);
    }
    if (change->name)
        client_set_text(&s->name, change->name, strlen(change->name));
    session_identify(s);
}

static void change_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct change *change = REQUEST_OWNER(r, struct change);
    const char *wrong = change->wrong;
    bool refused = end->error || end->reply[0] == '-';
    if (wrong && refused && !end->error) /* a pin that watches the node has received the client's own arguments */
        refused = strlen(wrong) != end->len - 3 || memcmp(wrong, end->reply + 1, end->len - 3) != 0;
    if (refused && change->login && !end->error && strncmp(end->reply, "-WRONGPASS", 10) == 0) {
        upstream_login_refuse(change->login);
        if (r->session)
            wrong_note(r->session, change->login);
    }
    if (!refused && r->session)
        change_apply(r->session, change);
    if (end->error && end->why == UPSTREAM_REFUSED) {
        request_error(r, end->error);
    } else if (refused) {
        call_answer(c, end);
    } else if (wrong) {
        request_error(r, wrong);
    } else if (change->hello) {
        struct text reply = {0};
        if (r->session)
            append_hello(r->session, end->reply, end->len, &reply);
        request_reply(r, reply.len > 0 ? reply.data : "", reply.len, true);
        text_clear(&reply);
    } else {
        request_reply(r, "+OK\r\n", 5, true);
    }
}

/* Takes the result of a login. If it is valid, the lane's test follows: a dedicated lane and HELLO need one. */
static void login_tried(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    const struct change *change = REQUEST_OWNER(r, struct change);
    if (end->error || end->reply[0] == '-' || !change->probe || !r->session) {
        change_done(c, end);
        return;
    }
    call_init(c, r, change_done);
    call_submit_lane(c, SLOT_NONE, &change->lane, change->probe, strlen(change->probe));
}

/* Sends `probe` (NULL: the request) over the new lane; later requests wait. A pin that watches keys has to change too:
 * it gets the client's own command, unless that contains the proxy's own password. */
static enum dispatch_result change_start(struct session *s, const struct request_class *k, struct change *change,
                                         const char *probe) {
    struct upstream_pin *pin = transaction_pin_to_change(s);
    bool own_password = change->authenticates && s->worker->config->requirepass;
    if (change->login && wrong_too_often(s, change->login)) {
        change_free(&change->owner);
        return session_refuse(s, k->command, "%s", LOCAL_TOO_OFTEN);
    }
    struct request *request = request_new(s, k->command);
    request_own(request, &change->owner, &change_ops);
    request->call.done = change_done;
    request_barrier(request);
    if (!pin && change->login) {
        change->probe = !change->wrong && (change->hello || change->lane.dedicated != 0) ? probe : NULL;
        request->call.done = login_tried;
        call_submit_login(&request->call, change->login);
        return DISPATCHED;
    }
    bool own = !probe || (pin && !own_password);
    const char *words = own ? k->bytes : probe;
    size_t len = own ? k->request->len : strlen(probe);
    if (pin)
        call_submit_pin(&request->call, pin, words, len, false);
    else
        call_submit_lane(&request->call, SLOT_NONE, &change->lane, words, len);
    return DISPATCHED;
}

static struct change *change_new(const struct session *s) {
    struct change *change = memory_zalloc(sizeof(*change));
    change->lane = s->lane;
    return change;
}

/* ---- AUTH, HELLO, SELECT ------------------------------------------------------------------------- */

static const char WRONGPASS[] = "WRONGPASS invalid username-password pair or user is disabled.";
const char LOCAL_TOO_OFTEN[] = "ERR too many wrong passwords or new logins from this address: try again in a second";

/* Checks a login against requirepass, in constant time; returns NULL, or the error. */
static const char *door_login(struct session *s, const char *user, size_t user_len, const char *password, size_t len) {
    const char *expected = s->worker->config->requirepass;
    size_t want = strlen(expected);
    unsigned char differs = want != len;
    for (size_t i = 0; i < len; i++)
        differs |= (unsigned char)(password[i] ^ expected[want ? i % want : 0]);
    bool right = !differs && (!user || (user_len == 7 && memcmp(user, "default", 7) == 0));
    if (wrong_too_often(s, right ? WRONG_LOGIN_DOOR : 0))
        return LOCAL_TOO_OFTEN;
    if (right)
        wrong_right(s, WRONG_LOGIN_DOOR, false);
    else
        wrong_note(s, 0);
    return right ? NULL : WRONGPASS;
}

/* Checks a login against requirepass, if it is set; else notes it for the node. user NULL: AUTH with only a password.
 * Returns NULL, or the error. */
static const char *change_login(struct session *s, struct change *change, const char *user, size_t user_len,
                                const char *password, size_t password_len) {
    change->authenticates = true;
    memory_free(change->user);
    change->user = user ? memory_strndup(user, user_len) : NULL;
    if (s->worker->config->requirepass)
        return door_login(s, user, user_len, password, password_len);
    if (user_len > LOGIN_WORD_MAX || password_len > LOGIN_WORD_MAX)
        return WRONGPASS;
    upstream_login_release(change->login); /* HELLO with AUTH twice: the last one counts */
    change->login = change->lane.login = upstream_login_intern(user, user_len, password, password_len);
    return NULL;
}

/* Reads AUTH's arguments: a user, which may be missing, and a password. Returns NULL, or the error. */
static const char *auth_login(struct session *s, struct change *change, const struct request_class *k) {
    size_t user_len = 0, len;
    const char *user = k->request->argc == 3 ? class_arg(k, 1, &user_len) : NULL;
    const char *password = class_arg(k, k->request->argc - 1, &len);
    return change_login(s, change, user, user_len, password, len);
}

static enum dispatch_result do_auth(struct session *s, const struct request_class *k) {
    if (k->request->argc > 3)
        return session_refuse(s, k->command, "ERR syntax error");
    struct change *change = change_new(s);
    const char *wrong = auth_login(s, change, k);
    if (!wrong && !s->worker->config->requirepass)
        return change_start(s, k, change, lane_hello(&s->lane));
    if (!wrong) /* decided here: the node need not be asked */
        change_apply(s, change);
    change_free(&change->owner);
    return wrong ? session_refuse(s, k->command, "%s", wrong) : session_answer(s, k->command, "+OK\r\n", 5);
}

/* Reads HELLO's options. Returns NULL, or the error, which may be composed in *error. */
static const char *hello_options(struct session *s, struct change *change, const struct request_class *k,
                                 struct text *error) {
    for (size_t i = 2; i < k->request->argc; i++) {
        size_t left = k->request->argc - i - 1, len, len2;
        if (class_arg_is(k, i, "auth") && left >= 2) {
            const char *user = class_arg(k, i + 1, &len);
            const char *password = class_arg(k, i + 2, &len2);
            const char *wrong = change_login(s, change, user, len, password, len2);
            if (wrong)
                return wrong;
            i += 2;
        } else if (class_arg_is(k, i, "setname") && left >= 1) {
            const char *name = class_arg(k, i + 1, &len);
            if (!client_name_ok(name, len))
                return CLIENT_NAME_REFUSED;
            if (change->authenticates) { /* it is set when the login is valid */
                memory_free(change->name);
                change->name = memory_strndup(name, len);
            } else {
                client_set_text(&s->name, name, len);
                session_identify(s);
            }
            i++;
        } else {
            const char *word = class_arg(k, i, &len);
            text_printf(error, "ERR Syntax error in HELLO option '%.*s'", (int)len, word);
            return error->data;
        }
    }
    return NULL;
}

bool local_logs_in(const struct request_class *k) {
    size_t i = 2;
    while (i < k->request->argc && !class_arg_is(k, i, "auth"))
        i++;
    return k->command->id == COMMAND_AUTH || (k->command->id == COMMAND_HELLO && i < k->request->argc);
}

static enum dispatch_result do_hello(struct session *s, const struct request_class *k) {
    int64_t protocol = s->lane.protocol;
    if (session_doubted(s) && !local_logs_in(k))
        return refuse_doubted(s, k->command);
    if (k->request->argc > 1 && !request_arg_integer(k->request, k->bytes, 1, &protocol))
        return session_refuse(s, k->command, "ERR Protocol version is not an integer or out of range");
    if (protocol != 2 && protocol != 3)
        return session_refuse(s, k->command, "NOPROTO unsupported protocol version");
    struct change *change = change_new(s);
    struct text error = {0};
    const char *wrong = hello_options(s, change, k, &error);
    if (!wrong && session_unauthenticated(s) && !change->authenticates)
        wrong = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> "
                "<pass> option can be used to authenticate the client and select the RESP protocol version at "
                "the same time";
    /* Redis runs what stands before an invalid option: a login there counts, if it is valid. */
    bool logs_in = change->authenticates && wrong != WRONGPASS && wrong != LOCAL_TOO_OFTEN;
    if (!wrong) {
        change->hello = true;
        change->lane.protocol = (uint32_t)protocol;
        change_start(s, k, change, lane_hello(&change->lane));
    } else if (logs_in && !s->worker->config->requirepass) {
        change->wrong = memory_strdup(wrong);
        change_start(s, k, change, lane_hello(&s->lane));
    } else {
        if (logs_in)
            change_apply(s, change);
        change_free(&change->owner);
        session_refuse(s, k->command, "%s", wrong);
    }
    text_clear(&error);
    return DISPATCHED;
}

static enum dispatch_result do_select(struct session *s, const struct request_class *k) {
    int64_t db;
    if (!request_arg_integer(k->request, k->bytes, 1, &db) || db > INT32_MAX || db < INT32_MIN)
        return session_refuse(s, k->command, "ERR value is not an integer or out of range");
    bool fits = db >= 0 && db <= DATABASES_MAX;
    if (!fits && !upstream_is_cluster(s->worker->upstream))
        return session_refuse(s, k->command, "ERR DB index is out of range");
    struct change *change = change_new(s);
    change->lane.db = fits ? (uint32_t)db : s->lane.db;
    /* The node knows whether this user may select, and whether a cluster has several databases. */
    return change_start(s, k, change, fits ? NULL : "*2\r\n$6\r\nSELECT\r\n$2\r\n-1\r\n");
}

/* ---- the rest ------------------------------------------------------------------------------------ */

static enum dispatch_result do_reset(struct session *s, const struct command *c) {
    transaction_drop(s);
    pubsub_drop(s);
    tracking_drop(s);
    watch_drop(s);
    atomic_store(&s->lock.notified, false);
    s->lane.db = 0;
    upstream_login_release(s->lane.login);
    s->lane.login = s->worker->shared->stranger_login;
    s->lane.protocol = 2;
    s->authenticated = s->worker->config->requirepass == NULL;
    s->arrival = worker_arrival(s->worker);
    commands_of(s)->looked_in = false;
    client_set_text(&s->name, "", 0);
    client_set_text(&s->user, "", 0);
    commands_of(s)->no_evict = false;
    s->reply_mode = REPLY_ON;
    session_identify(s);
    return session_answer(s, c, "+RESET\r\n", 8);
}

void local_element(struct session *s, const struct transaction_item *item, const char *element, size_t len,
                   struct text *out) {
    const struct command *c = item->command;
    struct resp_request r;
    struct request_class k;
    bool known = resp_request_read(&r, item->bytes, item->len) && s;
    class_begin(&k, c, &r, item->bytes);
    if (known && local_logs_in(&k)) {
        struct place *place = place_of(s);
        place->used = place->used > 1 ? place->used - 1 : 0; /* it was counted when it was queued */
        if (len > 10 && memcmp(element, "-WRONGPASS", 10) == 0)
            wrong_note(s, 0);
    }
    if (known && element[0] != '-') {
        struct change *change = change_new(s);
        struct text error = {0};
        int64_t number = 0;
        bool read = r.argc > 1 && request_arg_integer(&r, item->bytes, 1, &number);
        if (c->id == COMMAND_AUTH)
            (void)auth_login(s, change, &k);
        else if (c->id == COMMAND_HELLO)
            (void)hello_options(s, change, &k, &error);
        else if (read) /* SELECT */
            change->lane.db = (uint32_t)number;
        if (c->id == COMMAND_HELLO && read)
            change->lane.protocol = (uint32_t)number;
        text_clear(&error);
        change_apply(s, change);
        change_free(&change->owner);
    }
    if (element[0] == '-' || (known && c->id != COMMAND_HELLO))
        text_append(out, element, len);
    else if (known)
        append_hello(s, element, len, out);
    resp_request_clear(&r);
}

enum dispatch_result local_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    struct request *request;
    bool changes = c->id == COMMAND_AUTH || c->id == COMMAND_HELLO || c->id == COMMAND_SELECT || c->id == COMMAND_RESET;
    if (changes && s->in_flight > 0)
        return DISPATCH_WAIT; /* another connection could overtake them */
    switch ((int)c->id) {
    case COMMAND_AUTH:
        return do_auth(s, k);
    case COMMAND_HELLO:
        return do_hello(s, k);
    case COMMAND_SELECT:
        return do_select(s, k);
    case COMMAND_CLIENT:
        return client_dispatch(s, k);
    case COMMAND_RESET:
        return do_reset(s, c);
    case COMMAND_QUIT:
        request = request_new(s, c);
        request->close_after = true;
        s->barrier++; /* requests after QUIT are ignored */
        request_reply(request, "+OK\r\n", 5, true);
        return DISPATCHED;
    default: /* READONLY, READWRITE, ASKING: without effect on a proxy of a cluster */
        return upstream_is_cluster(s->worker->upstream) ? session_answer(s, c, "+OK\r\n", 5)
                                                        : class_pass(s, k, SLOT_NONE);
    }
}
