/*
 * The rights to PROXY (INFO, LOCKS, ..., RELOAD): a user has them if Redis grants the corresponding CONFIG commands.
 *
 *      INFO, LOCKS, ... ──> CONFIG GET of no parameter      RELOAD, PAUSE ──> CONFIG SET of an unknown one
 *                           │ over the client's own lane, each time: rights come and go
 *                           └─> -NOPERM, or there is no CONFIG at all: refused
 *
 * For all clients without login there is one answer: the node is asked in advance, and again with each use. They have
 * its last answer, even while the node does not answer, since operators need PROXY then. Clients of the unix socket,
 * and users named by admin-user, need no question. The request waits in its session's input meanwhile. This file does
 * not know what the subcommands do.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"

static const char LOOK[] = "*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$10\r\nlockkeeper\r\n";
static const char CHANGE[] = "*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$10\r\nlockkeeper\r\n$1\r\n-\r\n";

/* Whether a subcommand needs no right: HELP shows nothing of the proxy, NOTIFY tells a client of its own
 * locks alone, and the others ask Redis for their key, so Redis checks the right. */
static bool is_for_all(const struct request_class *k) {
    static const char *const names[] = {"help", "lock", "token", "release", "notify"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (class_arg_is(k, 1, names[i]))
            return true;
    return false;
}

/* Whether the session needs no right at Redis. */
static bool is_admin(const struct session *s) {
    const struct config_words *users = &s->worker->config->admin_users;
    const char *user = s->user ? s->user : "default";
    for (size_t i = 0; i < users->count; i++)
        if (strcmp(users->words[i], user) == 0)
            return true;
    return !s->forwarded && strncmp(s->address, "unix:", 5) == 0;
}

/* Whether the answer shows that the user has the right. That is so if it is no error, if the error concerns the unknown
 * parameter, or if the node is busy, since the right is checked before. Any other error counts as no right. */
static bool granted(const struct call_end *end) {
    static const char *const later[] = {"-BUSY", "-LOADING", "-MASTERDOWN"};
    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++)
        if (reply_begins(end->reply, end->len, later[i]))
            return true;
    if (reply_begins(end->reply, end->len, "*") || reply_begins(end->reply, end->len, "%"))
        return true;
    return reply_begins(end->reply, end->len, "-ERR U") &&
           !reply_begins(end->reply, end->len, "-ERR Unknown command") &&
           memmem(end->reply, end->len, "lockkeeper", strlen("lockkeeper"));
}

/* Whether no node could be asked; false if a node has refused the client's login. */
static bool is_away(const struct call_end *end) {
    return end->error && end->why != UPSTREAM_REFUSED && strncmp(end->error, "UPSTREAM ", 9) == 0;
}

/* Takes the answer. If no node answers, users that had the right at their last question still have it: operators need
 * PROXY then. */
static void looked(struct call *c, const struct call_end *end) {
    struct session *s = c->request->session;
    if (s && !is_away(end))
        commands_of(s)->looked_in = !end->error && granted(end);
    if (s)
        commands_of(s)->rights = commands_of(s)->looked_in ? RIGHTS_GRANTED
                                 : end->error              ? RIGHTS_NOT_KNOWN_NOW
                                                           : RIGHTS_REFUSED;
    request_reply(c->request, "", 0, true);
}

/* If no node answers, the login that has paused the proxy may end the pause. */
static void change_judged(struct call *c, const struct call_end *end) {
    struct session *s = c->request->session;
    const struct worker *w = c->request->worker;
    if (s && is_away(end) && w->pause == PAUSE_PROXY && s->lane.login == atomic_load(&w->shared->pause_login))
        commands_of(s)->rights = RIGHTS_GRANTED;
    else if (s)
        commands_of(s)->rights = end->error ? RIGHTS_NOT_KNOWN_NOW : granted(end) ? RIGHTS_GRANTED : RIGHTS_REFUSED;
    request_reply(c->request, "", 0, true);
}

static void unauthenticated_judged(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    bool first = w->unauthenticated_look == RIGHTS_UNKNOWN;
    if (!end->error)
        w->unauthenticated_look = granted(end) ? RIGHTS_GRANTED : RIGHTS_REFUSED;
    w->unauthenticated_asked = false;
    if (first)
        worker_wake_waiting(w);
    request_reply(c->request, "", 0, true);
}

void rights_ask_unauthenticated(struct worker *w) {
    if (w->unauthenticated_asked)
        return;
    w->unauthenticated_asked = true;
    struct upstream_lane lane = worker_unauthenticated_lane(w);
    struct request *request = request_internal(w);
    request->call.done = unauthenticated_judged;
    call_submit_lane(&request->call, SLOT_NONE, &lane, LOOK, sizeof(LOOK) - 1);
}

static void rights_ask(struct session *s, bool changes) {
    struct upstream_lane lane = s->lane;
    lane.protocol = 2;
    if (s->worker->pause == PAUSE_PROXY)
        upstream_try_now(s->worker->upstream);
    struct request *request = request_new(s, NULL); /* without a reply; holds later requests back */
    request->call.done = changes ? change_judged : looked;
    request_barrier(request);
    call_submit_lane(&request->call, SLOT_NONE, &lane, changes ? CHANGE : LOOK,
                     changes ? sizeof(CHANGE) - 1 : sizeof(LOOK) - 1);
}

/* Takes the known rights of clients without login. False: they are not known yet, and are being asked for. */
static bool unauthenticated_take(struct session *s) {
    struct worker *w = s->worker;
    rights_ask_unauthenticated(w);
    if (w->unauthenticated_look == RIGHTS_UNKNOWN && w->unauthenticated_asked)
        return false;
    commands_of(s)->rights = w->unauthenticated_look == RIGHTS_UNKNOWN ? RIGHTS_NOT_KNOWN_NOW : w->unauthenticated_look;
    return true;
}

static void refuse(struct session *s, const struct request_class *k, bool changes) {
    char word[16];
    session_refuse(
        s, k->command,
        "NOPERM PROXY %s is for users with the right to CONFIG %s, users named by admin-user, and clients of the "
        "proxy's unix socket",
        request_arg_text(k->request, k->bytes, 1, word, sizeof(word)), changes ? "SET" : "GET");
}

bool rights_wanted(struct session *s, const struct request_class *k, enum dispatch_result *result) {
    if (k->request->argc < 2 || is_for_all(k) || is_admin(s))
        return false;
    static const char *const changing[] = {"reload", "witness", "pause", "resume", "switch"};
    bool changes = false;
    for (size_t i = 0; i < sizeof(changing) / sizeof(changing[0]); i++)
        changes |= class_arg_is(k, 1, changing[i]);
    *result = DISPATCH_WAIT;
    if (!changes && session_is_stranger(s) && !unauthenticated_take(s))
        return true;
    if (commands_of(s)->rights == RIGHTS_UNKNOWN) {
        if (s->in_flight > 0) /* one of them may change the rights */
            return true;
        rights_ask(s, changes);
        if (commands_of(s)->rights == RIGHTS_UNKNOWN)
            return true;
    }
    enum rights rights = commands_of(s)->rights; /* if no node could be asked, the result is there at once */
    commands_of(s)->rights = RIGHTS_UNKNOWN;     /* the next command asks again */
    *result = DISPATCHED;
    if (rights == RIGHTS_REFUSED)
        refuse(s, k, changes);
    else if (rights != RIGHTS_GRANTED)
        session_refuse(s, k->command, "UPSTREAM no node can be asked for this user's rights; see admin-user");
    return rights != RIGHTS_GRANTED;
}
