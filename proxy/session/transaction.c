/*
 * Transactions: each has a connection of its own from WATCH, or from the first queued command with a key, to EXEC.
 *
 *      none ── WATCH ──> watching ── MULTI ──> queueing ── EXEC, DISCARD ──> none
 *        └───────────────── MULTI ────────────────┘
 *
 *      standalone  pinned by WATCH or MULTI
 *      cluster     pinned by WATCH, or by the first key that is queued: its node gets MULTI then, and before anything
 *                  else whatever came without a key
 *
 * The node queues and answers for each command (+QUEUED or its error), and decides at EXEC. What the proxy has to
 * refuse itself makes EXEC fail as it would in Redis. A transaction whose node was lost is never run elsewhere: what
 * was watched there is not watched any more. Earlier requests end before MULTI or WATCH begins, later ones wait for
 * EXEC, since they take other connections.
 */
#include "proxy/session/transaction.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"

enum { EARLY_MAX = 1024, EARLY_BYTES_MAX = 1024 * 1024, HOPS_MAX = 5, WORDS_MAX = 16, LOCKS_MAX = 1000 };

/* A command that waits for its node to be known. */
struct early {
    struct list_node link; /* first: freed by it */
    size_t len;
    char bytes[];
};

static const char QUEUED[] = "+QUEUED\r\n";
static const char EXECABORT_ARITY[] =
    "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n";
static const char EXECABORT[] = "-EXECABORT Transaction discarded because of previous errors.\r\n";

/* ---- life ------------------------------------------------------------------------------------------ */

static void node_lost(void *arg, const char *error) {
    struct transaction *t = arg;
    pin_give(t->worker, t->pin, PIN_TRANSACTION, false);
    t->pin = NULL;
    t->lost = true;
    snprintf(t->error, sizeof(t->error), "%.300s; nothing of the transaction was executed", error);
}

static struct transaction *transaction_get(struct session *s) {
    if (s->transaction)
        return s->transaction;
    struct transaction *t = memory_zalloc(sizeof(*t));
    t->worker = s->worker;
    t->slot = -1;
    list_init(&t->early);
    list_init(&t->items);
    list_init(&t->locks.calls);
    s->transaction = t;
    return t;
}

void transaction_drop(struct session *s) {
    struct transaction *t = s->transaction;
    s->transaction = NULL;
    if (t)
        transaction_free(t, s, false);
}

bool transaction_queues(const struct session *s) {
    return s->transaction->state == TRANSACTION_QUEUEING;
}

/* A request inside MULTI that will not be queued: EXEC fails. */
__attribute__((format(printf, 3, 4))) static enum dispatch_result refuse(struct session *s, const struct command *c,
                                                                         const char *format, ...) {
    char text[TRANSACTION_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    s->transaction->aborted = true;
    dispatch_local_error(s, c, "%s", text);
    return DISPATCHED;
}

static bool pin_to(struct session *s, struct upstream_node *node, int slot, const char **error) {
    struct transaction *t = s->transaction;
    struct upstream_pin_events events = {.arg = t, .lost = node_lost};
    t->pin = pin_take(s, node, PIN_TRANSACTION, &events, error);
    t->slot = slot;
    return t->pin != NULL;
}

/* ---- WATCH, UNWATCH -------------------------------------------------------------------------------- */

static void watch_done(struct call *c, const struct call_end *end);

static void watch_send(struct request *request, const char *bytes, size_t len) {
    call_init(&request->call, request, watch_done);
    call_submit_pin(&request->call, request->session->transaction->pin, bytes, len, false);
}

/* A first WATCH whose slot has moved goes after it: nothing is watched yet. */
static bool watch_redirected(struct request *r, const struct call_end *end) {
    struct session *s = r->session;
    struct transaction *t = s->transaction;
    bool ask;
    const char *error;
    struct upstream_node *to = upstream_pin_redirect(t->pin, end->reply + 1, end->len - 3, &ask);
    if (!to || ask || t->watched || t->hops++ >= HOPS_MAX)
        return false;
    pin_give(s->worker, t->pin, PIN_TRANSACTION, true);
    struct text *bytes = r->state;
    if (pin_to(s, to, t->slot, &error)) {
        watch_send(r, bytes->data, bytes->len);
        return true;
    }
    return false;
}

static void watch_end(struct request *r) {
    struct text *bytes = r->state;
    r->state = NULL;
    text_clear(bytes);
    memory_free(bytes);
}

static void watch_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct session *s = r->session;
    struct transaction *t = s ? s->transaction : NULL;
    bool refused = !end->error && end->reply[0] == '-';
    if (t && refused && t->pin && watch_redirected(r, end))
        return;
    watch_end(r);
    if (t && !end->error && !refused)
        t->watched = true;
    else if (t && !t->watched) { /* nothing is */
        s->transaction = NULL;
        transaction_free(t, s, refused);
    }
    if (end->error)
        request_fail(r, end->error);
    else if (refused && (memcmp(end->reply, "-ASK ", 5) == 0 || memcmp(end->reply, "-MOVED ", 7) == 0))
        request_error(r, "TRYAGAIN The slot of the watched keys is moving to another node");
    else
        request_reply(r, end->reply, end->len, true);
}

static enum dispatch_result watch(struct session *s, const struct command *c, const struct resp_request *r,
                                  const char *bytes) {
    if (s->in_flight > 0)
        return DISPATCH_WAIT; /* what they write must not look like somebody else's change */
    struct upstream *u = s->worker->upstream;
    int slot = pin_slot(s, c, r, bytes);
    struct upstream_node *node = upstream_node_of_slot(u, slot);
    struct transaction *t = transaction_get(s);
    const char *error = NULL;
    if (slot == -2 || (t->pin && node != upstream_pin_node(t->pin)))
        error = "CROSSSLOT Keys in request don't hash to the same slot";
    else if (t->lost)
        error = t->error;
    else if (!t->pin)
        pin_to(s, node, slot, &error);
    if (error) {
        dispatch_local_error(s, c, "%s", error);
        if (!t->watched && !t->lost)
            transaction_drop(s);
        return DISPATCHED;
    }
    struct request *request = request_new(s, c);
    struct text *kept = memory_zalloc(sizeof(*kept));
    text_append(kept, bytes, r->len);
    request->state = kept;
    request->ends_barrier = true;
    s->barrier = true;
    t->hops = 0;
    watch_send(request, kept->data, kept->len);
    return DISPATCHED;
}

/* Takes the transaction out of the session, whose later requests wait for the reply. */
static struct request *transaction_ends(struct session *s, const struct command *c) {
    struct request *request = request_new(s, c);
    request->ends_barrier = true;
    s->barrier = true;
    s->transaction = NULL;
    return request;
}

static enum dispatch_result unwatch(struct session *s, const struct command *c) {
    struct transaction *t = s->transaction;
    if (s->in_flight > 0)
        return DISPATCH_WAIT;
    if (t && t->pin) {
        transaction_leave(t, transaction_ends(s, c), "*1\r\n$7\r\nUNWATCH\r\n", NULL);
    } else {
        transaction_drop(s);
        dispatch_local(s, c, "+OK\r\n", 5);
    }
    return DISPATCHED;
}

/* ---- MULTI ----------------------------------------------------------------------------------------- */

/* The client heard no OK: it is in no transaction. */
static void multi_refused(struct session *s) {
    struct transaction *t = s->transaction;
    if (t->watched)
        t->state = TRANSACTION_WATCHING;
    else
        transaction_drop(s);
}

static void multi_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct transaction *t = r->session ? r->session->transaction : NULL;
    bool ok = !end->error && end->reply[0] == '+', asked = c->index == 1;
    if (t && t->pin) {
        t->multi_ok = ok;
        *upstream_pin_mark(t->pin) = ok;
        t->multi_sent = ok || !asked;
    }
    if (t && !ok) {
        if (asked) {
            multi_refused(r->session);
        } else { /* the next command's reply says so */
            int len = end->error ? (int)strlen(end->error) : (int)end->len - 3;
            t->lost = true;
            snprintf(t->error, sizeof(t->error), "%.*s", len, end->error ? end->error : end->reply + 1);
        }
    }
    if (!asked)
        request_reply(r, "", 0, true);
    else if (end->error)
        request_fail(r, end->error);
    else
        request_reply(r, end->reply, end->len, true);
}

/* Tells the node; `asked`: the client waits for its answer, else it has had one. Until the node has said OK at least
 * once on this connection nothing is sent behind it: what a refused MULTI does not queue would be executed. */
static void multi_send(struct session *s, const struct command *c, bool asked) {
    static const char multi[] = "*1\r\n$5\r\nMULTI\r\n";
    struct transaction *t = s->transaction;
    struct request *request = request_new(s, c);
    request->call.done = multi_done;
    request->call.index = asked;
    t->multi_sent = true;
    t->multi_ok = *upstream_pin_mark(t->pin);
    call_submit_pin(&request->call, t->pin, multi, sizeof(multi) - 1, false);
}

static enum dispatch_result multi(struct session *s, const struct command *c) {
    if (s->in_flight > 0)
        return DISPATCH_WAIT;
    struct upstream *u = s->worker->upstream;
    struct transaction *t = transaction_get(s);
    const char *error;
    if (!t->pin && !t->lost && !upstream_is_cluster(u) && !pin_to(s, upstream_any_node(u, 0), 0, &error)) {
        dispatch_local_error(s, c, "%s", error);
        transaction_drop(s);
        return DISPATCHED;
    }
    t->state = TRANSACTION_QUEUEING;
    if (t->pin)
        multi_send(s, c, true);
    else
        dispatch_local(s, c, "+OK\r\n", 5);
    return DISPATCHED;
}

/* ---- the node -------------------------------------------------------------------------------------- */

enum ready {
    READY,
    READY_LATER,    /* the node has to answer first */
    READY_NEVER,    /* the client was told why */
    READY_WITH_KEYS /* cluster: no key has said which node yet */
};

static void early_done(struct call *c, const struct call_end *end) {
    request_reply(c->request, "", 0, true); /* an error here makes the node refuse EXEC */
}

static void early_send(struct session *s) {
    struct transaction *t = s->transaction;
    struct list_node *n;
    while ((n = list_shift(&t->early))) {
        struct early *early = LIST_ENTRY(n, struct early, link);
        struct request *request = request_new(s, NULL);
        request->call.done = early_done;
        call_submit_pin(&request->call, t->pin, early->bytes, early->len, false);
        memory_free(early);
    }
}

static bool multi_pending(const struct transaction *t) {
    return t->pin && t->multi_sent && !t->multi_ok && !t->lost;
}

/* Sees to it that the transaction's node takes commands; `slot` of the command at hand, -1: none. */
static enum ready make_ready(struct session *s, const struct command *c, int slot, bool any) {
    struct transaction *t = s->transaction;
    struct upstream *u = s->worker->upstream;
    const char *error = NULL;
    if (multi_pending(t))
        return READY_LATER;
    if (t->lost) {
        refuse(s, c, "%s", t->error);
        return READY_NEVER;
    }
    if (!t->pin) {
        if (slot < 0 && !any)
            return READY_WITH_KEYS;
        if (!pin_to(s, slot >= 0 ? upstream_node_of_slot(u, slot) : upstream_any_node(u, (uint32_t)s->lock.id), slot,
                    &error)) {
            refuse(s, c, "%s", error);
            return READY_NEVER;
        }
    }
    if (!t->multi_sent)
        multi_send(s, c, false);
    if (!t->multi_ok)
        return READY_LATER;
    early_send(s);
    return READY;
}

/* ---- queueing -------------------------------------------------------------------------------------- */

/* A node that sends a command elsewhere has not queued it, and its transaction is void. The client knows no nodes:
 * it hears what that means. NULL: another reply. */
static const char *elsewhere(const struct call *c, const struct call_end *end) {
    bool moved = end->len > 7 && memcmp(end->reply, "-MOVED ", 7) == 0;
    if (!moved && !(end->len > 5 && memcmp(end->reply, "-ASK ", 5) == 0))
        return NULL;
    const char *number = end->reply + (moved ? 7 : 5);
    const char *space = memchr(number, ' ', end->len - (size_t)(number - end->reply));
    int64_t slot;
    if (space && resp_integer(number, (size_t)(space - number), &slot) && slot + 1 == c->index)
        return "TRYAGAIN The slot of the transaction's keys is moving to another node";
    return "CROSSSLOT Keys in the transaction are on different nodes";
}

/* A command's own call, or one of its parts: the error that the client shall see, or NULL. */
static const char *queued_error(const struct call *c, const struct call_end *end, char *text, size_t size) {
    if (end->error)
        return end->error;
    if (end->reply[0] == '-') {
        const char *other = elsewhere(c, end);
        if (!other)
            snprintf(text, size, "%.*s", (int)end->len - 3, end->reply + 1);
        return other ? other : text;
    }
    bool queued = end->len == sizeof(QUEUED) - 1 && memcmp(end->reply, QUEUED, end->len) == 0;
    if (!queued && c->count)
        return "UPSTREAM the node did not queue a command; its outcome is unknown";
    return NULL;
}

static void queued_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    char text[TRANSACTION_ERROR_MAX];
    const char *error = queued_error(c, end, text, sizeof(text));
    if (end->error)
        request_fail(r, error);
    else if (error)
        request_error(r, error);
    else
        request_reply(r, end->reply, end->len, true);
}

static void queued_part_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    char text[TRANSACTION_ERROR_MAX];
    const char *error = queued_error(c, end, text, sizeof(text));
    if (error && !r->state)
        r->state = memory_strdup(error);
    if (--r->parts_left > 0)
        return;
    char *first = r->state;
    r->state = NULL;
    if (first)
        request_error(r, first);
    else
        request_reply(r, QUEUED, sizeof(QUEUED) - 1, true);
    memory_free(first);
}

static void item_add(struct transaction *t, enum item_kind kind, uint32_t group, struct lock_call *lock,
                     const struct command *c, const char *bytes, size_t len) {
    struct transaction_item *item = memory_alloc(sizeof(*item) + len);
    *item =
        (struct transaction_item){.kind = kind, .at = t->count, .group = group, .lock = lock, .command = c, .len = len};
    if (len > 0)
        memcpy(item->bytes, bytes, len);
    list_init(&item->link);
    list_append(&t->items, &item->link);
}

/* Sends one queued command in a call. */
static void queue_call(struct session *s, struct call *call, const char *bytes, size_t len, bool rewritten) {
    struct transaction *t = s->transaction;
    call->index = (uint32_t)(t->slot + 1);
    call->count = rewritten;
    t->count++;
    call_submit_pin(call, t->pin, bytes, len, false);
}

static void queue_one(struct session *s, const struct command *c, const char *bytes, size_t len, bool rewritten) {
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, c);
    request->call.done = queued_done;
    queue_call(s, &request->call, bytes, len, rewritten);
}

/* Keeps a command until its node is known, and answers for it. */
static enum dispatch_result queue_early(struct session *s, const struct command *c, const char *bytes, size_t len) {
    struct transaction *t = s->transaction;
    if (t->count >= EARLY_MAX || t->early_bytes + len > EARLY_BYTES_MAX)
        return refuse(s, c, "ERR too many commands in a transaction before the first one with a key");
    struct early *early = memory_alloc(sizeof(*early) + len);
    early->len = len;
    memcpy(early->bytes, bytes, len);
    list_init(&early->link);
    list_append(&t->early, &early->link);
    t->early_bytes += len;
    t->count++;
    dispatch_local(s, c, QUEUED, sizeof(QUEUED) - 1);
    return DISPATCHED;
}

/* What the node can be asked as it is. `kind`: how its element is treated; ITEM_PLAIN: not at all. */
static enum dispatch_result queue_plain(struct session *s, const struct command *c, const struct resp_request *r,
                                        const char *bytes, int slot, enum item_kind kind) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    struct transaction *t = s->transaction;
    enum ready ready = make_ready(s, c, slot, false);
    if (ready == READY_LATER || ready == READY_NEVER)
        return ready == READY_LATER ? DISPATCH_WAIT : DISPATCHED;
    const char *sent = kind == ITEM_LOCAL ? ping : bytes;
    size_t len = kind == ITEM_LOCAL ? sizeof(ping) - 1 : r->len;
    bool rewritten = kind != ITEM_PLAIN;
    if (rewritten)
        item_add(t, kind, 1, NULL, c, bytes, kind == ITEM_LOCAL ? r->len : 0);
    if (ready == READY_WITH_KEYS)
        return queue_early(s, c, sent, len);
    queue_one(s, c, sent, len, rewritten);
    return DISPATCHED;
}

/* ---- lock keys ------------------------------------------------------------------------------------- */

static bool words_of(const struct resp_request *r, const char *bytes, const char **texts, size_t *lens,
                     struct lock_words *words) {
    if (r->argc > WORDS_MAX)
        return false; /* no lock command has so many: a syntax error, in Redis's words */
    for (size_t i = 0; i < r->argc; i++)
        texts[i] = request_arg(r, bytes, i, &lens[i]);
    *words = (struct lock_words){texts, lens, r->argc};
    return true;
}

/* Each is remembered until EXEC, with all that its script was told. */
static bool too_many_locks(struct session *s, const struct command *c, size_t more) {
    if (s->transaction->lock_count + more <= LOCKS_MAX)
        return false;
    refuse(s, c, "ERR too many lock commands in one transaction");
    return true;
}

/* Queues what lock_prepare has left in w->build as an element of its own. */
static void queue_script(struct session *s, struct call *call, const struct command *c, struct lock_call *lock,
                         uint32_t group) {
    struct worker *w = s->worker;
    s->transaction->lock_count++;
    item_add(s->transaction, ITEM_LOCK, group, lock, c, NULL, 0);
    queue_call(s, call, w->build.data, w->build.len, true);
}

static void queue_lock(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                       const struct lock_command *lc, uint32_t key_index, const struct lock_rule *rule,
                       const struct lock_words *words) {
    struct lock_call *lock =
        lock_prepare(s, &s->transaction->locks, rule, lc, words->words[key_index], words->lens[key_index], words);
    struct request *request = request_new(s, c);
    request->call.done = queued_done;
    queue_script(s, &request->call, c, lock, 1);
}

/* DEL and UNLINK of several keys: each lock key is a script of its own, the others are one command. */
static void queue_release(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    static const struct lock_command release = {LOCK_RELEASE, SCRIPT_RELEASE, 0, "int"};
    struct transaction *t = s->transaction;
    struct worker *w = s->worker;
    size_t locks = 0, others = 0, lens[2];
    const char *texts[2];
    struct lock_words words = {texts, lens, 2};
    texts[0] = request_arg(r, bytes, 0, &lens[0]);
    for (size_t i = 1; i < r->argc; i++) {
        texts[1] = request_arg(r, bytes, i, &lens[1]);
        *(lock_rule_for(s, texts[1], lens[1]) ? &locks : &others) += 1;
    }
    if (too_many_locks(s, c, locks))
        return;
    uint32_t group = (uint32_t)(locks + (others > 0));
    struct request *request = request_new(s, c);
    request->parts_left = 1;
    for (size_t i = 1; i < r->argc; i++) {
        texts[1] = request_arg(r, bytes, i, &lens[1]);
        const struct lock_rule *rule = lock_rule_for(s, texts[1], lens[1]);
        if (!rule)
            continue;
        struct lock_call *lock = lock_prepare(s, &t->locks, rule, &release, texts[1], lens[1], &words);
        queue_script(s, call_new(request, queued_part_done), c, lock, group);
        group = 0;
    }
    if (others > 0) {
        build_start(w, 1 + others);
        build_bulk(w, texts[0], lens[0]);
        for (size_t i = 1; i < r->argc; i++) {
            texts[1] = request_arg(r, bytes, i, &lens[1]);
            if (!lock_rule_for(s, texts[1], lens[1]))
                build_bulk(w, texts[1], lens[1]);
        }
        item_add(t, ITEM_PLAIN, 0, NULL, c, NULL, 0);
        queue_call(s, call_new(request, queued_part_done), w->build.data, w->build.len, true);
    }
    struct call_end none = {.reply = QUEUED, .len = sizeof(QUEUED) - 1};
    queued_part_done(&request->call, &none); /* gives back the part held here */
}

static bool has_lock_key(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    for (size_t i = 1; i < r->argc; i++) {
        size_t len;
        const char *key = request_arg(r, bytes, i, &len);
        if (lock_rule_for(s, key, len))
            return true;
    }
    return false;
}

/* The way of a command with keys whose node is ready: as a script, or as it is. */
static void queue_keys(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    const char *texts[WORDS_MAX];
    size_t lens[WORDS_MAX];
    struct lock_words words;
    struct lock_command lc;
    bool deletes = c->id == COMMAND_DEL || c->id == COMMAND_UNLINK;
    bool single = (!c->find && c->first == 1 && c->last == 1 && c->split == SPLIT_NONE) || (deletes && r->argc == 2);
    if (single && words_of(r, bytes, texts, lens, &words)) {
        const struct lock_rule *rule = lock_rule_for(s, texts[1], lens[1]);
        if (rule && lock_command_of(c, r, bytes, &lc)) {
            if (too_many_locks(s, c, 1))
                return;
            queue_lock(s, c, r, bytes, &lc, 1, rule, &words);
            return;
        }
    } else if (deletes && has_lock_key(s, c, r, bytes)) {
        queue_release(s, c, r, bytes);
        return;
    }
    if (!lock_clobbers(s, c, r, bytes)) {
        queue_one(s, c, bytes, r->len, false);
        return;
    }
    if (too_many_locks(s, c, 1))
        return;
    counter_add(&s->worker->counters.requests_locks, 1);
    struct lock_call *lock = lock_prepare_clobber(s, &s->transaction->locks, c, r, bytes);
    if (!lock) {
        refuse(s, c, "%s", LOCK_TOO_MANY_KEYS);
        return;
    }
    struct request *request = request_new(s, c);
    request->call.done = queued_done;
    queue_script(s, &request->call, c, lock, 1);
}

static enum dispatch_result queue_by_key(struct session *s, const struct command *c, const struct resp_request *r,
                                         const char *bytes) {
    int slot = pin_slot(s, c, r, bytes);
    if (slot == -2)
        return refuse(s, c, "CROSSSLOT Keys in request don't hash to the same slot");
    if (slot < 0)
        return queue_plain(s, c, r, bytes, -1, ITEM_PLAIN);
    enum ready ready = make_ready(s, c, slot, false);
    if (ready == READY)
        queue_keys(s, c, r, bytes);
    return ready == READY_LATER ? DISPATCH_WAIT : DISPATCHED;
}

/* ---- the commands ---------------------------------------------------------------------------------- */

/* Ends the transaction unexecuted, here and at its node. */
static enum dispatch_result leave(struct session *s, const struct command *c, const char *reply) {
    struct transaction *t = s->transaction;
    if (multi_pending(t))
        return DISPATCH_WAIT;
    if (t->pin && t->multi_ok) {
        transaction_leave(t, transaction_ends(s, c), "*1\r\n$7\r\nDISCARD\r\n", reply);
    } else {
        transaction_drop(s);
        dispatch_local(s, c, reply, strlen(reply));
    }
    return DISPATCHED;
}

static enum dispatch_result exec(struct session *s, const struct command *c) {
    struct transaction *t = s->transaction;
    if (multi_pending(t))
        return DISPATCH_WAIT;
    if (t->aborted)
        return leave(s, c, EXECABORT);
    if (t->lost) {
        dispatch_local_error(s, c, "%s", t->error);
        transaction_drop(s);
        return DISPATCHED;
    }
    if (!t->pin && t->count == 0) {
        dispatch_local(s, c, "*0\r\n", 4);
        transaction_drop(s);
        return DISPATCHED;
    }
    enum ready ready = make_ready(s, c, -1, true);
    if (ready == READY_NEVER)
        transaction_drop(s);
    if (ready != READY)
        return ready == READY_LATER ? DISPATCH_WAIT : DISPATCHED;
    transaction_exec(t, transaction_ends(s, c));
    return DISPATCHED;
}

enum dispatch_result transaction_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                          const char *bytes) {
    bool queueing = s->transaction && transaction_queues(s);
    switch ((int)c->id) {
    case COMMAND_WATCH:
        if (!queueing)
            return watch(s, c, r, bytes);
        dispatch_local_error(s, c, "ERR WATCH inside MULTI is not allowed");
        return DISPATCHED;
    case COMMAND_MULTI:
        if (!queueing)
            return multi(s, c);
        dispatch_local_error(s, c, "ERR MULTI calls can not be nested");
        return DISPATCHED;
    case COMMAND_EXEC:
        if (queueing)
            return exec(s, c);
        dispatch_local_error(s, c, "ERR EXEC without MULTI");
        return DISPATCHED;
    case COMMAND_DISCARD:
        if (queueing)
            return leave(s, c, "+OK\r\n");
        dispatch_local_error(s, c, "ERR DISCARD without MULTI");
        return DISPATCHED;
    default:
        return unwatch(s, c);
    }
}

static enum dispatch_result queue_session(struct session *s, const struct command *c, const struct resp_request *r,
                                          const char *bytes) {
    char word[64];
    switch ((int)c->id) {
    case COMMAND_QUIT:
    case COMMAND_RESET:
        return local_dispatch(s, c, r, bytes);
    case COMMAND_AUTH:
    case COMMAND_HELLO:
    case COMMAND_SELECT:
        return refuse(s, c, "ERR %s inside MULTI is not supported by lockkeeper", c->name);
    case COMMAND_CLIENT:
        switch (local_client_way(r, bytes)) {
        case CLIENT_ANSWERED:
            return queue_plain(s, c, r, bytes, -1, ITEM_LOCAL);
        case CLIENT_REFUSED:
            return refuse(s, c, "ERR CLIENT %s is not supported by lockkeeper",
                          request_arg_text(r, bytes, 1, word, sizeof(word)));
        case CLIENT_FORWARDED:
            return queue_plain(s, c, r, bytes, -1, ITEM_PLAIN);
        }
        return DISPATCHED;
    default: /* READONLY, READWRITE, ASKING */
        return queue_plain(s, c, r, bytes, -1, upstream_is_cluster(s->worker->upstream) ? ITEM_LOCAL : ITEM_PLAIN);
    }
}

/* A command that isn't in the table: as dispatch has it outside of transactions. */
static enum dispatch_result queue_unknown(struct session *s, const struct resp_request *r, const char *bytes) {
    int slot = -1;
    if (upstream_is_cluster(s->worker->upstream) && r->argc > 1)
        slot = slot_of_key(bytes + r->argv[1].off, r->argv[1].len);
    s->transaction->unclean = true;
    return queue_plain(s, NULL, r, bytes, slot, ITEM_PLAIN);
}

enum dispatch_result transaction_queue(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes) {
    if (c && c->id == COMMAND_EXEC && r->argc > 1)
        return leave(s, c, EXECABORT_ARITY);
    if (c && !command_arity_ok(c, r->argc))
        return refuse(s, c, "ERR wrong number of arguments for '%s' command", c->name);
    if (c && c->need == NEED_TRANSACTION && c->id != COMMAND_UNWATCH)
        return transaction_dispatch(s, c, r, bytes);
    if (c && c->need == NEED_SESSION)
        return queue_session(s, c, r, bytes);
    if (s->in_flight >= SESSION_REQUESTS_MAX)
        return DISPATCH_WAIT;
    if (s->transaction->aborted && !s->transaction->pin) { /* EXEC says no, whatever is queued */
        dispatch_local(s, c, QUEUED, sizeof(QUEUED) - 1);
        return DISPATCHED;
    }
    if (!c)
        return queue_unknown(s, r, bytes);
    switch (c->need) {
    case NEED_KEY:
    case NEED_BLOCKING: /* inside a transaction nothing blocks */
        return queue_by_key(s, c, r, bytes);
    case NEED_NODE:
    case NEED_ALL_SUM:
    case NEED_ALL_SAME:
    case NEED_TRANSACTION:
        return queue_plain(s, c, r, bytes, -1, ITEM_PLAIN);
    case NEED_KEYSPACE:
        if (c->id == COMMAND_SCAN && upstream_is_cluster(s->worker->upstream))
            return refuse(s, c, "ERR SCAN inside MULTI is not supported by lockkeeper on a cluster");
        return queue_plain(s, c, r, bytes, -1, ITEM_KEYS);
    case NEED_PROXY:
        if (request_arg_is(r, bytes, 1, "lock") || request_arg_is(r, bytes, 1, "token") ||
            request_arg_is(r, bytes, 1, "release"))
            return refuse(s, c, "ERR this PROXY command can't be used inside MULTI");
        return queue_plain(s, c, r, bytes, -1, ITEM_LOCAL);
    case NEED_PUBSUB:
    case NEED_REFUSED:
        return refuse(s, c, "ERR %s inside MULTI is not supported by lockkeeper", c->name);
    case NEED_CLOSE:
        session_finish(s);
        return DISPATCHED;
    case NEED_SESSION:
        break;
    }
    return DISPATCHED;
}
