/*
 * Which commands are queued in MULTI, and in which form:
 *
 *      as it is                 most commands; the node replies +QUEUED or an error
 *      as a script              lock commands; DEL of several keys becomes several elements of EXEC's array
 *      between two steps        the application's own scripts on lock keys
 *      not at all               commands that the proxy answers itself or can't serve: EXEC then fails
 *
 * exec.c handles the elements of EXEC's reply.
 */
#include <stdio.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/locks/locks.h"
#include "proxy/session/semaphores/semaphores.h"
#include "proxy/session/transaction/transaction.h"

enum { EARLY_MAX = 1024, EARLY_BYTES_MAX = 1024 * 1024, LOCKS_MAX = 1000 };

static const char QUEUED[] = "+QUEUED\r\n";

/* ---- the node's replies ----------------------------------------------------------------------------------- */

/* Finds the error for the client in the end of a command's call, or of one of its parts; NULL: none. A redirected
 * command was not queued, so its transaction is void. The client knows no nodes, so it gets the reason in other words.
 */
static const char *queued_error(const struct call *c, const struct call_end *end, char *text, size_t size) {
    if (end->error)
        return end->error;
    if (reply_redirects(end->reply, end->len)) {
        const char *number = strchr(end->reply, ' ') + 1;
        const char *space = memchr(number, ' ', end->len - (size_t)(number - end->reply));
        int64_t slot;
        if (space && resp_integer(number, (size_t)(space - number), &slot) && slot + 1 == c->index)
            return "TRYAGAIN The slot of the transaction's keys is moving to another node";
        return "CROSSSLOT Keys in the transaction are on different nodes";
    }
    if (end->reply[0] == '-') {
        snprintf(text, size, "%.*s", (int)end->len - 3, end->reply + 1);
        return text;
    }
    bool queued = end->len == sizeof(QUEUED) - 1 && memcmp(end->reply, QUEUED, end->len) == 0;
    if (!queued && c->count)
        return "UPSTREAM the node did not queue a command; its outcome is unknown";
    return NULL;
}

static void queued_done(struct call *c, const struct call_end *end) {
    char text[TRANSACTION_ERROR_MAX];
    const char *error = queued_error(c, end, text, sizeof(text));
    if (error && !end->error)
        request_error(c->request, error);
    else
        call_answer(c, end);
}

/* Ends a part of a command; its request keeps the first error. */
static void queued_part_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    char text[TRANSACTION_ERROR_MAX];
    const char *error = queued_error(c, end, text, sizeof(text));
    if (error && !r->owner)
        request_keep(r, error, strnlen(error, TRANSACTION_ERROR_MAX - 1));
    if (--r->parts_left > 0)
        return;
    if (r->owner)
        request_error(r, REQUEST_OWNER(r, struct request_kept)->bytes);
    else
        request_reply(r, QUEUED, sizeof(QUEUED) - 1, true);
}

/* Adds an item, with room for `len` bytes of its command. */
static struct transaction_item *item_add(struct transaction *t, enum item_kind kind, uint32_t group,
                                         const struct command *c, size_t len) {
    struct transaction_item *item = memory_alloc(sizeof(*item) + len);
    *item = (struct transaction_item){.kind = kind, .at = t->count, .group = group, .command = c, .len = len};
    list_append(&t->items, &item->link);
    return item;
}

static enum dispatch_result queue_call(struct session *s, struct call *call, const char *bytes, size_t len,
                                       bool rewritten) {
    struct transaction *t = transaction_of(s);
    call->index = (uint32_t)(t->slot + 1);
    call->count = rewritten;
    t->count++;
    call_submit_pin(call, t->pin, bytes, len, false);
    return DISPATCHED;
}

static enum dispatch_result queue_one(struct session *s, const struct command *c, const char *bytes, size_t len,
                                      bool rewritten) {
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, c);
    request->call.done = queued_done;
    return queue_call(s, &request->call, bytes, len, rewritten);
}

/* Removes guard records from an element that is an array of keys. */
static void element_of_keys(struct session *s, const struct transaction_item *item, const char *element, size_t len,
                            struct text *out) {
    keyspace_filter(item->command, s && s->lane.protocol == 3, element, len, out);
}

/* Refuses a command that the proxy answers itself: the node can't run it in its turn. */
static enum dispatch_result refuse_own(struct session *s, const struct command *c) {
    return transaction_refuse(s, c, "ERR %s inside MULTI is not supported by lockkeeper: send it before MULTI",
                              c->name);
}

/* Queues a command for the node unchanged; `element` makes the client's element (NULL: it is unchanged, too). */
static enum dispatch_result queue_as(struct session *s, const struct request_class *k, int slot,
                                     item_element_fn element) {
    struct transaction *t = transaction_of(s);
    const struct command *c = k->command;
    size_t len = k->request->len;
    enum dispatch_result result;
    if (!transaction_ready(s, c, slot, &result))
        return result;
    if (t->scouting && (t->count >= EARLY_MAX || t->early_bytes + len > EARLY_BYTES_MAX))
        return transaction_refuse(s, c, "ERR too many commands in a transaction before the first one with a key");
    if (t->scouting) { /* it is kept until the first key has chosen the node */
        struct early *early = memory_alloc(sizeof(*early) + len);
        early->len = len;
        memcpy(early->bytes, k->bytes, len);
        list_append(&t->early, &early->link);
        t->early_bytes += len;
    }
    if (element) {
        struct transaction_item *item = item_add(t, ITEM_PLAIN, 1, c, element == local_element ? len : 0);
        memcpy(item->bytes, k->bytes, item->len);
        item->element = element;
    }
    return queue_one(s, c, k->bytes, len, element != NULL);
}

/* ---- lock keys ------------------------------------------------------------------------------------- */

/* Refuses more locks than a transaction may have: each is kept until EXEC, with its script's arguments. */
static bool too_many_locks(struct session *s, const struct command *c, size_t more) {
    bool many = transaction_of(s)->lock_count + more > LOCKS_MAX;
    if (many)
        transaction_refuse(s, c, "ERR too many lock commands in one transaction");
    return many;
}

/* Queues the script that lock_prepare has left in w->build, as one element, over this call. */
static enum dispatch_result queue_script(struct session *s, struct call *call, const struct command *c,
                                         enum item_kind kind, struct lock_call *lock, uint32_t group) {
    struct worker *w = s->worker;
    transaction_of(s)->lock_count++;
    item_add(transaction_of(s), kind, group, c, 0)->lock = lock;
    return queue_call(s, call, w->build.data, w->build.len, true);
}

/* Queues the script as a request's only call, or as a step before or after an application's script. */
static enum dispatch_result queue_step(struct session *s, const struct command *c, enum item_kind kind,
                                       struct lock_call *lock, call_done_fn done) {
    struct request *request = request_new(s, c);
    request->call.done = done;
    return queue_script(s, &request->call, c, kind, lock, 1);
}

/* Turns SETEX, PSETEX, or a SET without NX, XX and GET, after WATCH and GET of its key (K3) into a swap that replies as
 * SET does: it takes over the lease that the session was shown. */
static void compare_and_set(const struct session *s, const char *key, size_t len, const struct lock_rule *rule,
                            struct lock_command *lc) {
    bool sets = lc->verb == LOCK_REPLACE && lc->script == SCRIPT_REPLACE;
    bool plain = lc->verb == LOCK_PASS && lc->shape == SHAPE_OK && lc->value_at > 0;
    if ((sets || plain) && rule->kinds & LOCK_KIND_STRING && rule->owner != LOCK_OWNER_ANY &&
        transaction_watches(s, key, len)) {
        struct lock_key name = {.db = session_db(s), .name = key, .len = len};
        if (engine_compares(s->worker->shared->engine, &s->lock, &name, worker_now(s->worker))) {
            lc->verb = LOCK_SWAP;
            lc->script = SCRIPT_SWAP;
        }
    }
}

static enum dispatch_result queue_lock(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes, struct lock_command *lc, const struct lock_rule *rule) {
    struct lock_words words;
    char error[TRANSACTION_ERROR_MAX];
    if (too_many_locks(s, c, 1))
        return DISPATCHED;
    if (!lock_words_of(&words, r, bytes, lc->script))
        return transaction_refuse(s, c, "ERR syntax error");
    if (rule->quorum == LOCK_QUORUM_YES && lock_quorum_refuses(s, c, r, bytes, error, sizeof(error)))
        return transaction_refuse(s, c, "%s", error);
    size_t len;
    const char *key = lock_word(&words, 1, &len);
    compare_and_set(s, key, len, rule, lc);
    return queue_step(s, c, ITEM_LOCK, lock_prepare(s, &transaction_of(s)->locks, rule, lc, key, len, &words),
                      queued_done);
}

/* Queues DEL and UNLINK of several keys: one script for each lock key, one command for the others. */
static enum dispatch_result queue_release(struct session *s, const struct request_class *k) {
    struct transaction *t = transaction_of(s);
    struct worker *w = s->worker;
    const struct command *c = k->command;
    size_t locks = class_locks(k), others = k->key_count - locks, len;
    struct lock_words name = {k->bytes, k->request->argv, 1};
    if (too_many_locks(s, c, locks))
        return DISPATCHED;
    uint32_t group = (uint32_t)(locks + (others > 0));
    struct request *request = request_new(s, c);
    request->parts_left = 1;
    for (size_t i = 0; i < k->key_count; i++) {
        const struct lock_rule *rule = class_enforced(k, i);
        const char *key = class_key(k, i, &len);
        if (!rule)
            continue;
        struct lock_call *lock = lock_prepare(s, &t->locks, rule, &lock_release_of_one, key, len, &name);
        queue_script(s, call_new(request, queued_part_done), c, ITEM_LOCK, lock, group);
        group = 0;
    }
    if (others > 0) {
        build_start(w, 1 + others);
        const char *text = lock_word(&name, 0, &len);
        build_bulk(w, text, len);
        for (size_t i = 0; i < k->key_count; i++) {
            text = class_key(k, i, &len);
            if (!class_enforced(k, i))
                build_bulk(w, text, len);
        }
        item_add(t, ITEM_PLAIN, 0, c, 0);
        queue_call(s, call_new(request, queued_part_done), w->build.data, w->build.len, true);
    }
    struct call_end none = {.reply = QUEUED, .len = sizeof(QUEUED) - 1};
    queued_part_done(&request->call, &none); /* gives back the part held here */
    return DISPATCHED;
}

/* The note for the key that PROXY ADVISE wants to see outside of all rules; NULL: there is none. */
static struct audit_note *note_outside(struct session *s, const struct request_class *k) {
    size_t len;
    const char *key = class_key(k, 0, &len);
    uint32_t outside = 0;
    if (class_rule(k, 0))
        return NULL;
    if (script_is(k->command))
        outside = advise_script_key(s, k->command, k->request, k->bytes, k->keys[0], k->key_count);
    else if (k->key_count == 1 && advise_wants(s, k->command, k->request, k->bytes, key, len))
        outside = k->keys[0];
    if (!outside)
        return NULL;
    key = request_arg(k->request, k->bytes, outside, &len);
    struct request_class one;
    class_begin(&one, k->command, k->request, k->bytes);
    class_of_key(&one, s, outside, lock_rule_watched(s, key, len));
    struct audit_note *note = audit_note(s, &one, true);
    class_clear(&one);
    return note;
}

/* Notes a queued command on semaphores (`permits`), or with audited keys; EXEC's element will show its effect. False:
 * there is nothing to note. */
static bool queue_noted(struct session *s, const struct request_class *k, bool permits) {
    struct transaction *t = transaction_of(s);
    struct permit_note *taken = NULL;
    struct audit_note *note = NULL;
    bool fits = t->lock_count < LOCKS_MAX;
    if (permits && fits)
        taken = permit_note(s, k);
    else if (permits)
        semaphore_passes(s, k);
    else if (fits)
        note = audit_note(s, k, false);
    if (!note && !permits && fits)
        note = note_outside(s, k);
    if (!note && !taken)
        return false;
    t->lock_count++;
    struct transaction_item *item = item_add(t, ITEM_PLAIN, 1, k->command, 0);
    item->note = note;
    item->permits = taken;
    return true;
}

/* Queues an application's script, between two steps for each of its lock keys. */
static enum dispatch_result queue_application(struct session *s, const struct request_class *k) {
    struct lock_queue *queue = &transaction_of(s)->locks;
    const struct command *c = k->command;
    const struct lock_words words = {k->bytes, k->request->argv, k->request->argc};
    size_t locks = class_locks(k), n = 0;
    if (too_many_locks(s, c, 2 * locks))
        return DISPATCHED;
    struct lock_call **calls = memory_alloc((locks + 1) * sizeof(struct lock_call *));
    for (size_t i = 0; i < k->key_count; i++)
        if (script_locks(k, i))
            calls[n++] = script_begin(s, queue, k, i);
    for (size_t i = 0; i < n; i++) {
        script_build_before(s, queue, calls[i]);
        queue_step(s, c, ITEM_FIRST, NULL, call_swallow); /* EXEC's array contains the result */
    }
    if (!queue_noted(s, k, false) && queue->quorum)
        item_add(transaction_of(s), ITEM_PLAIN, 1, c, 0);
    queue_one(s, c, k->bytes, k->request->len, false);
    for (size_t i = 0; i < n; i++) {
        script_build_behind(s, queue, calls[i], &words, k->key_count, true);
        queue_step(s, c, ITEM_STEP, calls[i], call_swallow);
    }
    memory_free(calls);
    return DISPATCHED;
}

static enum dispatch_result queue_clobber(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    if (too_many_locks(s, c, 1))
        return DISPATCHED;
    counter_add(&s->worker->counters.requests_locks, 1);
    struct lock_call *lock = lock_prepare_clobber(s, &transaction_of(s)->locks, k);
    return lock ? queue_step(s, c, ITEM_LOCK, lock, queued_done) : transaction_refuse(s, c, "%s", LOCK_TOO_MANY_KEYS);
}

/* Queues a command with keys once its node is ready: as a script, or unchanged. */
static enum dispatch_result queue_keys(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    struct lock_command lc;
    switch (lock_meaning_of(k, &lc)) {
    case MEANS_LOCK:
        return queue_lock(s, c, k->request, k->bytes, &lc, class_rule(k, 0));
    case MEANS_RELEASES:
        return queue_release(s, k);
    case MEANS_SCRIPT:
        return queue_application(s, k);
    case MEANS_CLOBBERS:
        return queue_clobber(s, k);
    case MEANS_SHOWS:
    case MEANS_NOTHING:
        break;
    }
    queue_noted(s, k, k->semaphores);
    return queue_one(s, c, k->bytes, k->request->len, false);
}

static void element_of_fenced(struct session *s, const struct transaction_item *item, const char *element, size_t len,
                              struct text *out) {
    fence_reply(s, item->question, element, len, out);
}

/* Queues a write of fenced data, together with the check whether its session has lost the lock when EXEC runs. */
static enum dispatch_result queue_fenced(struct session *s, const struct request_class *k) {
    struct transaction *t = transaction_of(s);
    const struct command *c = k->command;
    if (too_many_locks(s, c, 1))
        return DISPATCHED;
    counter_add(&s->worker->counters.requests_locks, 1);
    struct fence_question *question = fence_prepare(s, &t->locks, k);
    struct request *request = request_new(s, c);
    request->call.done = queued_done;
    t->lock_count++;
    struct transaction_item *item = item_add(t, ITEM_PLAIN, 1, c, 0);
    item->element = element_of_fenced;
    item->question = question;
    return queue_call(s, &request->call, s->worker->build.data, s->worker->build.len, true);
}

static enum dispatch_result queue_class(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    if (k->writes_guard)
        return transaction_refuse(s, c, "%s", GUARD_REFUSED);
    if (k->slot == SLOT_SEVERAL)
        return transaction_refuse(s, c, CROSSSLOT);
    if (k->slot < 0) /* no keys, or malformed ones of which the node may see some, as in MSET k */
        return queue_as(s, k, c->first > 0 ? dispatch_arg_slot(s, k->request, k->bytes, (size_t)c->first) : SLOT_NONE,
                        NULL);
    const char *error = NULL;
    enum fence_verdict verdict = fence_judge(s, k, &error);
    if (verdict == FENCE_LATER)
        return DISPATCH_WAIT;
    if (verdict == FENCE_REFUSED)
        return transaction_refuse(s, c, "%s", error);
    const char *lacks = k->enforced ? lock_quorum_lacks(k) : NULL;
    if (lacks)
        return transaction_refuse(s, c, "%s", lacks);
    enum dispatch_result result;
    if (!transaction_ready(s, c, k->slot, &result))
        return result;
    return verdict == FENCE_CHECKED ? queue_fenced(s, k) : queue_keys(s, k);
}

static enum dispatch_result queue_by_key(struct session *s, const struct request_class *k) {
    struct request_class found;
    class_find(&found, s, k->command, k->request, k->bytes);
    if (found.semaphores && found.enforced)
        semaphore_passes(s, &found);
    enum dispatch_result result = queue_class(s, &found);
    if (found.fenced && result == DISPATCHED)
        fence_audit(s, &found);
    class_clear(&found);
    return result;
}

/* ---- the way ----------------------------------------------------------------------------------------- */

/* Queues a command that changes the session: the node runs it in its turn, and the session changes once EXEC has run
 * it. */
static enum dispatch_result queue_state(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    bool own_password = s->worker->config->requirepass != NULL;
    if (own_password && c->id == COMMAND_AUTH)
        return refuse_own(s, c);
    if (own_password && c->id == COMMAND_HELLO && k->request->argc > 2)
        return transaction_refuse(s, c,
                                  "ERR hello with options inside MULTI is not supported where lockkeeper has a "
                                  "password of its own (requirepass)");
    bool logs_in = local_logs_in(k);
    int64_t db;
    if (logs_in && wrong_too_often(s, 0))
        return transaction_refuse(s, c, "%s", LOCAL_TOO_OFTEN);
    if (c->id == COMMAND_SELECT && request_arg_integer(k->request, k->bytes, 1, &db) && db >= 0 && db <= INT32_MAX)
        s->queued_db = (uint32_t)db;
    transaction_of(s)->unclean = true;
    enum dispatch_result result = queue_as(s, k, SLOT_NONE, local_element);
    if (logs_in && result == DISPATCHED)
        wrong_queued(s);
    return result;
}

static enum dispatch_result queue_session(struct session *s, const struct request_class *k) {
    enum command_id id = k->command->id;
    if (id == COMMAND_QUIT || id == COMMAND_RESET)
        return local_dispatch(s, k);
    if (id == COMMAND_AUTH || id == COMMAND_HELLO || id == COMMAND_SELECT)
        return queue_state(s, k);
    if (id == COMMAND_CLIENT ? client_is_own(k) : upstream_is_cluster(s->worker->upstream))
        return refuse_own(s, k->command);
    return queue_as(s, k, SLOT_NONE, NULL);
}

/* Queues subscriptions and MONITOR: for two of them Redis has an error at EXEC. */
static enum dispatch_result queue_pubsub(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    if (c->id != COMMAND_MONITOR && c->id != COMMAND_SSUBSCRIBE)
        return refuse_own(s, c);
    int slot = pin_slot(s, c, k->request, k->bytes);
    if (slot == SLOT_SEVERAL)
        return transaction_refuse(s, c, CROSSSLOT);
    transaction_of(s)->unclean = true;
    return queue_as(s, k, slot, NULL);
}

enum dispatch_result queue_dispatch(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    struct transaction *t = transaction_of(s);
    char text[CLUSTER_WRONG_MAX];
    const char *error = NULL;
    bool cluster = upstream_is_cluster(s->worker->upstream);
    if (c && !command_arity_ok(c, k->request->argc) && c->id != COMMAND_EXEC)
        return transaction_refuse(s, c, "ERR wrong number of arguments for '%s' command", c->name);
    if (c && c->id == COMMAND_UNKNOWN)
        t->unclean = true; /* it may leave an unknown state behind */
    if (c && c->need == NEED_TRANSACTION && c->id != COMMAND_UNWATCH)
        return transaction_dispatch(s, k);
    if (c && c->need == NEED_SESSION)
        return queue_session(s, k);
    if (s->in_flight >= SESSION_WINDOW)
        return DISPATCH_WAIT;
    t->writes |= pause_replicates(c, k->request, k->bytes);
    t->runs_code |= c && (c->flags & COMMAND_RUNS_CODE);
    if (!c) { /* to the same node as outside of transactions */
        t->unclean = true;
        return queue_as(s, k, dispatch_arg_slot(s, k->request, k->bytes, 1), NULL);
    }
    semaphore_flushes(s, c);
    switch (c->need) {
    case NEED_KEY:
    case NEED_BLOCKING: /* in a transaction no command blocks */
        return queue_by_key(s, k);
    case NEED_NODE:
        error = fence_refuses_databases(s, c, k->request, k->bytes);
        break;
    case NEED_MASTERS:
        error = masters_refuses(s, k);
        break;
    case NEED_CLUSTER:
        if (cluster && !cluster_wrong(k, text, sizeof(text)))
            return refuse_own(s, c);
        error = cluster ? text : NULL;
        break;
    case NEED_KEYSPACE:
        if (c->id == COMMAND_SCAN && cluster) /* its cursor is made by the proxy */
            return refuse_own(s, c);
        return queue_as(s, k, SLOT_NONE, element_of_keys);
    case NEED_PROXY:
        return refuse_own(s, c);
    case NEED_PUBSUB:
        return queue_pubsub(s, k);
    case NEED_REFUSED:
        return transaction_refuse(s, c, "ERR %s inside MULTI is not supported by lockkeeper", c->name);
    case NEED_CLOSE:
        session_finish(s);
        return DISPATCHED;
    case NEED_TRANSACTION:
    case NEED_SESSION:
        break;
    }
    return error ? transaction_refuse(s, c, "%s", error) : queue_as(s, k, SLOT_NONE, NULL);
}
