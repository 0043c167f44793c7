/*
 * Who may look into the proxy, and change what it does (PROXY INFO, LOCKS, ..., RELOAD): who may do the like at Redis.
 *
 *      looking in ──> CONFIG GET of no parameter      RELOAD ──> CONFIG SET of one that there is not
 *                           │ over the client's own lane, each time: rights come and go
 *                           └─> -NOPERM, or there is no CONFIG at all: refused
 *
 * Who comes over the unix socket, or is named by admin-user, is not asked for. The request waits in its session's input
 * meanwhile. Knows nothing of what the subcommands do.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"

static const char LOOK[] = "*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$10\r\nlockkeeper\r\n";
static const char CHANGE[] = "*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$10\r\nlockkeeper\r\n$1\r\n-\r\n";

/* Whether a subcommand is about the proxy: the others ask Redis for their key, which judges them. */
static bool about_proxy(const struct resp_request *r, const char *bytes) {
    static const char *const names[] = {"info", "locks", "incidents", "rules", "advise", "explain", "reload"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (request_arg_is(r, bytes, 1, names[i]))
            return true;
    return false;
}

/* Whether it needs no right at Redis. */
static bool is_admin(const struct session *s) {
    const struct session_options *o = &s->worker->shared->options;
    const char *user = s->user ? s->user : "default";
    for (size_t i = 0; i < o->admin_user_count; i++)
        if (strcmp(o->admin_users[i], user) == 0)
            return true;
    return strncmp(s->address, "unix:", 5) == 0;
}

static bool reply_begins(const struct call_end *end, const char *with) {
    size_t len = strlen(with);
    return end->len >= len && memcmp(end->reply, with, len) == 0;
}

/* Where no node answers, who had the right before has it, and so has who needs no login: operators look in then. */
static enum rights rights_without_node(const struct session *s) {
    bool stranger = s->lane.login == 0 && !s->worker->strangers_barred;
    return s->looked_in || stranger ? RIGHTS_GRANTED : RIGHTS_UNKNOWN;
}

static void rights_known(struct session *s, const struct call_end *end) {
    bool granted = !reply_begins(end, "-NO") && !reply_begins(end, "-ERR unknown command");
    s->rights = granted ? RIGHTS_GRANTED : RIGHTS_REFUSED;
    s->looked_in = granted;
    if (s->lane.login == 0)
        s->worker->strangers_barred = !granted;
}

static void answered(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct session *s = r->session;
    if (s && !end->error) {
        rights_known(s, end);
    } else if (s) {
        s->rights = rights_without_node(s);
        if (s->rights == RIGHTS_UNKNOWN)
            s->rights = RIGHTS_NOT_KNOWN_NOW;
    }
    request_reply(r, "", 0, true);
}

/* Takes the answer, if it is there: the next command asks anew. */
static enum rights rights_take(struct session *s) {
    enum rights rights = (enum rights)s->rights;
    s->rights = RIGHTS_UNKNOWN;
    return rights;
}

static void rights_ask(struct session *s, bool changes) {
    struct upstream_lane lane = s->lane;
    lane.protocol = 2;
    struct request *request = request_new(s, NULL); /* owes no reply, and holds later requests back */
    request->call.done = answered;
    request_barrier(request);
    call_submit_lane(&request->call, SLOT_NONE, &lane, changes ? CHANGE : LOOK,
                     changes ? sizeof(CHANGE) - 1 : sizeof(LOOK) - 1);
}

static void refuse(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                   bool changes) {
    char word[16];
    session_refuse(s, c,
                   "NOPERM PROXY %s is for users who may CONFIG %s, users named by admin-user, and clients of the "
                   "proxy's unix socket",
                   request_arg_text(r, bytes, 1, word, sizeof(word)), changes ? "SET" : "GET");
}

bool rights_wanted(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                   enum dispatch_result *result) {
    if (r->argc < 2 || !about_proxy(r, bytes) || is_admin(s))
        return false;
    bool changes = request_arg_is(r, bytes, 1, "reload");
    *result = DISPATCH_WAIT;
    if (s->rights == RIGHTS_UNKNOWN) {
        if (s->in_flight > 0) /* what changes the rights may be among it */
            return true;
        rights_ask(s, changes);
        if (s->rights == RIGHTS_UNKNOWN)
            return true;
    }
    enum rights rights = rights_take(s); /* where no node could be asked it is there at once */
    *result = DISPATCHED;
    if (rights == RIGHTS_REFUSED)
        refuse(s, c, r, bytes, changes);
    else if (rights != RIGHTS_GRANTED)
        session_refuse(s, c, "UPSTREAM no node can be asked for this user's rights; see admin-user");
    return rights != RIGHTS_GRANTED;
}
