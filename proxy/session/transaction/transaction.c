/*
 * Transactions: each uses a pin from WATCH, or from the first queued command with a key, to EXEC.
 *
 *      none ── WATCH ──> watching ── MULTI ──> queueing ── EXEC, DISCARD ──> none
 *        └───────────────── MULTI ────────────────┘
 *
 *      standalone  pinned by WATCH or MULTI
 *      cluster     pinned by WATCH, or by the first queued key. Commands before that are queued at any node, which
 *                  reports their errors; if the key belongs to another node, they are queued there again
 *
 * The node queues each command and answers it (+QUEUED or an error), and decides at EXEC. If the proxy refuses a
 * command itself, EXEC fails as it would in Redis. If the node is lost, the transaction is never run on another node,
 * since the watched keys are not watched there. Earlier requests end before MULTI or WATCH begins, and later ones wait
 * for EXEC, since they use other connections.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/transaction/private.h"

enum { HOPS_MAX = 5 };

static const char EXECABORT_ARITY[] =
    "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n";
static const char EXECABORT[] = "-EXECABORT Transaction discarded because of previous errors.\r\n";

/* ---- life ------------------------------------------------------------------------------------------ */

static void node_lost(void *arg, const char *error) {
    struct transaction *t = arg;
    invariant(t->pin, "a transaction loses its node twice");
    pin_give(t->worker, t->pin, PIN_TRANSACTION, false);
    t->pin = NULL;
    t->lost = true;
    snprintf(t->error, sizeof(t->error), "%.300s; nothing of the transaction was executed", error);
}

static struct transaction *transaction_get(struct session *s) {
    if (transaction_of(s))
        return transaction_of(s);
    struct transaction *t = memory_zalloc(sizeof(*t));
    t->worker = s->worker;
    t->slot = SLOT_NONE;
    list_init(&t->early);
    list_init(&t->items);
    list_init(&t->locks.calls);
    *transaction_at(s) = t;
    return t;
}

static void session_out(struct session *s) {
    *transaction_at(s) = NULL;
    s->queues = s->watches = false;
}

void transaction_drop(struct session *s) {
    struct transaction *t = transaction_of(s);
    session_out(s);
    if (t)
        transaction_free(t, s, false);
}

struct upstream_pin *transaction_pin_to_change(struct session *s) {
    struct transaction *t = transaction_of(s);
    if (!t || !t->pin)
        return NULL;
    t->unclean = true;
    return t->pin;
}

int64_t transaction_count(const struct session *s) {
    return s->queues ? (int64_t)transaction_of(s)->count : -1;
}

enum dispatch_result transaction_refuse(struct session *s, const struct command *c, const char *format, ...) {
    invariant(transaction_of(s), "a command is refused in no transaction");
    char text[TRANSACTION_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    transaction_of(s)->aborted = true;
    return session_refuse(s, c, "%s", text);
}

static bool pin_to(struct session *s, struct upstream_node *node, int slot, const char **error) {
    struct transaction *t = transaction_of(s);
    invariant(transaction_of(s) && (!transaction_of(s)->pin || s->in_flight > 0),
              "a transaction takes a second connection");
    struct upstream_pin_events events = {.arg = t, .lost = node_lost};
    t->pin = pin_take(s, node, PIN_TRANSACTION, &events, error);
    t->slot = slot;
    session_uses(s, slot);
    return t->pin != NULL;
}

/* Repeats the first request on the pin, if its node was out of reach: at the node that has taken over, or once the map
 * shows that node; then `c` ends again. Nothing was watched, and nothing was sent after a MULTI. Returns whether it is
 * repeated. */
static bool begin_anew(struct call *c, const struct call_end *end, void (*send)(struct request *r)) {
    struct session *s = c->request->session;
    struct transaction *t = transaction_of(s);
    bool waited = !t->pin;
    const char *error;
    if (end->why != UPSTREAM_NOT_SENT || s->watches || t->multi_ok || (!waited && t->unsent++ >= PIN_UNSENT_TWICE))
        return false;
    if (t->pin)
        pin_give(s->worker, t->pin, PIN_TRANSACTION, false);
    struct upstream_node *node = pin_node(s, t->slot);
    if (!pin_to(s, node, t->slot, &error))
        return t->unsent++ < PIN_UNSENT_TWICE && pin_await_map(c, node);
    send(c->request);
    return true;
}

/* ---- WATCH, UNWATCH -------------------------------------------------------------------------------- */

static void watch_done(struct call *c, const struct call_end *end);

/* Sends a WATCH, which its request keeps. */
static void watch_send(struct request *request) {
    const struct request_kept *kept = REQUEST_OWNER(request, struct request_kept);
    invariant(transaction_of(request->session) && transaction_of(request->session)->pin, "a WATCH has no connection");
    call_init(&request->call, request, watch_done);
    call_submit_pin(&request->call, transaction_of(request->session)->pin, kept->bytes, kept->len, false);
}

static uint64_t watched_hash(const struct session *s, const char *key, size_t len) {
    struct lock_key name = {.db = session_db(s), .name = key, .len = len};
    return engine_key_hash(s->worker->shared->engine, &name);
}

/* Notes the lock keys in a WATCH. A key that is not noted is treated as if not watched. */
static void watch_note(struct session *s, const struct request_class *k) {
    enum { WATCHED_MAX = 64 };
    struct text *watched = &transaction_of(s)->watched;
    for (size_t i = 1; i < k->request->argc && watched->len < WATCHED_MAX * sizeof(uint64_t); i++) {
        size_t len;
        const char *key = class_arg(k, i, &len);
        uint64_t hash;
        if (!lock_rule_for(s, key, len))
            continue;
        hash = watched_hash(s, key, len);
        text_append(watched, (const char *)&hash, sizeof(hash));
    }
}

bool transaction_watches(const struct session *s, const char *key, size_t len) {
    const struct transaction *t = transaction_of(s);
    if (!t || !s->watches || t->watched.len == 0)
        return false;
    uint64_t hash = watched_hash(s, key, len);
    for (size_t i = 0; i < t->watched.len; i += sizeof(hash))
        if (memcmp(t->watched.data + i, &hash, sizeof(hash)) == 0)
            return true;
    return false;
}

/* Sends the first WATCH to the node that its slot has moved to: nothing is watched yet. */
static bool watch_redirected(struct request *r, const struct call_end *end) {
    struct session *s = r->session;
    struct transaction *t = transaction_of(s);
    bool ask;
    const char *error;
    struct upstream_node *to = upstream_pin_redirect(t->pin, end->reply + 1, end->len - 3, &ask);
    if (!to || ask || s->watches || t->hops++ >= HOPS_MAX)
        return false;
    pin_give(s->worker, t->pin, PIN_TRANSACTION, true);
    if (!pin_to(s, to, t->slot, &error))
        return false;
    watch_send(r);
    return true;
}

static void watch_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct session *s = r->session;
    struct transaction *t = s ? transaction_of(s) : NULL;
    bool refused = !end->error && end->reply[0] == '-';
    if (t && refused && t->pin && watch_redirected(r, end))
        return;
    if (t && end->error && begin_anew(c, end, watch_send))
        return;
    if (t && !end->error && !refused)
        s->watches = true;
    else if (t && !s->watches) { /* nothing is watched */
        session_out(s);
        transaction_free(t, s, refused);
    }
    if (refused && reply_redirects(end->reply, end->len))
        request_error(r, "TRYAGAIN The slot of the watched keys is moving to another node");
    else
        call_answer(c, end);
}

static enum dispatch_result watch(struct session *s, const struct request_class *k) {
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* their writes must not look like another client's changes */
    struct upstream *u = s->worker->upstream;
    int slot = pin_slot(s, k->command, k->request, k->bytes);
    struct upstream_node *node = upstream_node_of_slot(u, slot);
    struct transaction *t = transaction_get(s);
    const char *error = NULL;
    if (slot == SLOT_SEVERAL || (t->pin && node != upstream_pin_node(t->pin)))
        error = "CROSSSLOT Keys in request don't hash to the same slot";
    else if (t->lost)
        error = t->error;
    else if (!t->pin && !pin_to(s, node, slot, &error) && pin_await_map_first(s, node)) {
        transaction_drop(s);
        return DISPATCH_WAIT;
    }
    if (error) {
        session_refuse(s, k->command, "%s", error);
        if (!s->watches && !t->lost)
            transaction_drop(s);
        return DISPATCHED;
    }
    struct request *request = request_new(s, k->command);
    request_keep(request, k->bytes, k->request->len);
    watch_note(s, k);
    request_barrier(request);
    t->hops = t->unsent = 0;
    watch_send(request);
    return DISPATCHED;
}

/* Takes the transaction out of the session; later requests wait for the reply. */
static struct request *transaction_ends(struct session *s, const struct command *c) {
    invariant(transaction_of(s), "a transaction ends that has not begun");
    struct request *request = request_new(s, c);
    request_barrier(request);
    session_out(s);
    return request;
}

static enum dispatch_result unwatch(struct session *s, const struct command *c) {
    struct transaction *t = transaction_of(s);
    if (s->in_flight > 0)
        return DISPATCH_WAIT;
    if (t && t->pin)
        return transaction_leave(t, transaction_ends(s, c), "*1\r\n$7\r\nUNWATCH\r\n", NULL);
    transaction_drop(s);
    return session_answer(s, c, "+OK\r\n", 5);
}

/* ---- MULTI ----------------------------------------------------------------------------------------- */

static void multi_send(struct request *r);

static void multi_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct transaction *t = r->session ? transaction_of(r->session) : NULL;
    bool ok = !end->error && end->reply[0] == '+', asked = c->index == 1;
    if (t && end->error && begin_anew(c, end, multi_send))
        return;
    if (t && t->pin) {
        t->multi_ok = ok;
        *upstream_pin_mark(t->pin) = ok;
        t->multi_sent = ok || !asked;
    }
    if (t && !ok) {
        invariant(!asked || r->session->queues, "a MULTI is refused that has not begun");
        if (asked && r->session->watches) {
            r->session->queues = false;
        } else if (asked) {
            transaction_drop(r->session);
        } else { /* the next command gets the error */
            int len = end->error ? (int)strlen(end->error) : (int)end->len - 3;
            t->lost = true;
            snprintf(t->error, sizeof(t->error), "%.*s", len, end->error ? end->error : end->reply + 1);
        }
    }
    if (!asked)
        request_reply(r, "", 0, true);
    else
        call_answer(c, end);
}

/* Sends MULTI to the node; call.index 1: the client waits for the reply, 0: it has had one. Until the node has said OK
 * once on this connection, nothing is sent after MULTI: if MULTI were refused, the commands would be executed. */
static void multi_send(struct request *r) {
    static const char multi[] = "*1\r\n$5\r\nMULTI\r\n";
    struct session *s = r->session;
    struct transaction *t = transaction_of(s);
    uint32_t asked = r->call.index;
    invariant(t && t->pin && !t->lost && s->queues, "a MULTI has no connection");
    call_init(&r->call, r, multi_done);
    r->call.index = asked;
    s->before = t->before;
    t->multi_sent = true;
    t->multi_ok = *upstream_pin_mark(t->pin);
    call_submit_pin(&r->call, t->pin, multi, sizeof(multi) - 1, false);
    s->before = 0;
}

static enum dispatch_result multi(struct session *s, const struct command *c) {
    if (s->in_flight > 0)
        return DISPATCH_WAIT;
    struct upstream *u = s->worker->upstream;
    struct transaction *t = transaction_get(s);
    const char *error;
    if (!t->pin && !t->lost && !upstream_is_cluster(u) && !pin_to(s, upstream_any_node(u, 0), 0, &error)) {
        transaction_drop(s);
        if (pin_await_map_first(s, upstream_any_node(u, 0)))
            return DISPATCH_WAIT;
        return session_refuse(s, c, "%s", error);
    }
    s->queues = true;
    s->queued_db = s->lane.db;
    t->before = s->before;
    t->unsent = 0;
    if (!t->pin)
        return session_answer(s, c, "+OK\r\n", 5);
    struct request *r = request_new(s, c);
    r->call.index = 1;
    multi_send(r);
    return DISPATCHED;
}

/* ---- the node -------------------------------------------------------------------------------------- */

/* Ends the search for the node. Commands queued so far are sent to the first key's node, or are there already. */
static void early_end(struct session *s, bool send) {
    struct transaction *t = transaction_of(s);
    invariant(!send || (transaction_of(s)->pin && transaction_of(s)->multi_ok),
              "commands are queued before MULTI is answered");
    for (struct early *early; (early = LIST_SHIFT(&t->early, struct early, link));) {
        if (send) {
            struct request *request = request_new(s, NULL);
            request->call.done = call_swallow; /* an error here makes the node refuse EXEC */
            call_submit_pin(&request->call, t->pin, early->bytes, early->len, false);
        }
        early_free(early);
    }
}

static void scout_left(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct transaction *t = r->session ? transaction_of(r->session) : NULL;
    if (t && t->pin) {
        pin_give(t->worker, t->pin, PIN_TRANSACTION, !end->error && end->reply[0] == '+');
        t->pin = NULL;
        t->scouting = t->multi_sent = t->multi_ok = false;
    }
    request_reply(r, "", 0, true);
}

/* Ends the search when the first key has come. True: the transaction is at its node; false: it leaves the first one. */
static bool scout_ends(struct session *s, const struct command *c, int slot) {
    static const char discard[] = "*1\r\n$7\r\nDISCARD\r\n";
    struct transaction *t = transaction_of(s);
    invariant(t->scouting && t->pin, "a node is left that was not looked at");
    if (s->in_flight > 0)
        return false;
    if (upstream_node_of_slot(s->worker->upstream, slot) == upstream_pin_node(t->pin)) {
        t->slot = slot;
        t->scouting = false;
        session_uses(s, slot);
        early_end(s, false);
        return true;
    }
    struct request *request = request_new(s, c);
    request->call.done = scout_left;
    call_submit_pin(&request->call, t->pin, discard, sizeof(discard) - 1, false);
    return false;
}

bool transaction_may_end(const struct session *s) {
    const struct transaction *t = transaction_of(s);
    return !t->multi_sent || t->multi_ok || t->lost;
}

bool transaction_ready(struct session *s, const struct command *c, int slot, enum dispatch_result *result) {
    struct transaction *t = transaction_of(s);
    const char *error = NULL;
    *result = DISPATCH_WAIT;
    invariant(t && s->queues, "a command is queued outside of MULTI");
    if (!transaction_may_end(s))
        return false;
    if (t->lost)
        error = t->error;
    else if (t->pin && t->scouting && slot >= 0 && !scout_ends(s, c, slot))
        return false;
    if (!t->pin && !error) {
        struct upstream_node *node = pin_node(s, slot);
        if (pin_to(s, node, slot, &error))
            t->scouting = slot < 0;
        else if (pin_await_map_first(s, node))
            return false;
    }
    if (error) {
        *result = transaction_refuse(s, c, "%s", error);
        return false;
    }
    if (!t->multi_sent)
        multi_send(request_new(s, c));
    if (!t->multi_ok)
        return false;
    if (!t->scouting)
        early_end(s, true);
    return true;
}

/* ---- the commands ---------------------------------------------------------------------------------- */

/* Ends the transaction without executing it, here and at its node. */
static enum dispatch_result leave(struct session *s, const struct command *c, const char *reply) {
    struct transaction *t = transaction_of(s);
    if (!transaction_may_end(s))
        return DISPATCH_WAIT;
    if (t->pin && t->multi_ok)
        return transaction_leave(t, transaction_ends(s, c), "*1\r\n$7\r\nDISCARD\r\n", reply);
    transaction_drop(s);
    return session_answer(s, c, reply, strlen(reply));
}

static enum dispatch_result exec(struct session *s, const struct command *c) {
    struct transaction *t = transaction_of(s);
    if (!transaction_may_end(s))
        return DISPATCH_WAIT;
    if (t->aborted)
        return leave(s, c, EXECABORT);
    enum dispatch_result result = DISPATCHED;
    if (t->lost)
        session_refuse(s, c, "%s", t->error);
    else if (!t->pin && t->count == 0)
        session_answer(s, c, "*0\r\n", 4);
    else if (transaction_ready(s, c, SLOT_NONE, &result))
        return transaction_exec(t, transaction_ends(s, c));
    if (result == DISPATCHED)
        transaction_drop(s);
    return result;
}

enum dispatch_result transaction_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    bool queueing = s->queues;
    switch ((int)c->id) {
    case COMMAND_WATCH:
        return queueing ? session_refuse(s, c, "ERR WATCH inside MULTI is not allowed") : watch(s, k);
    case COMMAND_MULTI:
        return queueing ? session_refuse(s, c, "ERR MULTI calls can not be nested") : multi(s, c);
    case COMMAND_EXEC:
        if (!queueing)
            return session_refuse(s, c, "ERR EXEC without MULTI");
        return k->request->argc > 1 ? leave(s, c, EXECABORT_ARITY) : exec(s, c);
    case COMMAND_DISCARD:
        return queueing ? leave(s, c, "+OK\r\n") : session_refuse(s, c, "ERR DISCARD without MULTI");
    default:
        return unwatch(s, c);
    }
}

const struct session_room transaction_room = {.closes = transaction_drop};
