/*
 * Dispatch: decides which way a request goes, in the order of the drawing in docs/architecture.md. The table describes
 * the commands; for a command that it lacks, the node does (cluster/discover.c). The other folders (locks, transaction,
 * push, blocking, cluster) get the class of the request and do the work; here local.c, client_command.c,
 * proxy_command.c and queued_form.c do.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/blocking/blocking.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"
#include "proxy/session/fences/fenced.h"
#include "proxy/session/locks/locks.h"
#include "proxy/session/waits/wait.h"
#include "proxy/session/push/push.h"
#include "proxy/session/semaphores/semaphores.h"
#include "proxy/session/transaction/transaction.h"

/* Overwrites the arguments of a dispatched command that may contain a password; its copies on the way to a node are
 * overwritten when they need not be sent again. Returns the result. `c` NULL: the command is not in the table. */
static enum dispatch_result secret_end(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes, enum dispatch_result result) {
    if (result != DISPATCHED || !c || !(c->flags & COMMAND_SECRET))
        return result;
    if (s->state == SESSION_CLOSED) /* the buffer is gone, or its bytes were overwritten */
        return result;
    s->worker->secret = true;
    for (size_t i = 1; i < r->argc; i++)
        secret_overwrite(bytes + r->argv[i].off, r->argv[i].len);
    if (list_empty(&s->requests))
        return result;
    struct request *request =
        LIST_ENTRY(s->requests.prev, struct request, link); /* this request's, or one that ends sooner */
    upstream_secret(&request->call.up);
    LIST_EACH(part, &request->parts, struct call, link)
        upstream_secret(&part->up);
    return result;
}

/* ---- refusals, with Redis's text if it has one ------------------------------------------------------------ */

static enum dispatch_result refuse_unsupported(struct session *s, const struct request_class *k) {
    char name[32];
    snprintf(name, sizeof(name), "%s", k->command->name);
    for (char *p = name; *p; p++)
        *p = (char)toupper((unsigned char)*p);
    return session_refuse(s, k->command, "ERR %s is not supported by lockkeeper: %s", name,
                          k->command->id == COMMAND_UNKNOWN
                              ? "it would change the state of a connection that many clients share"
                              : "replicas and similar tools must connect to the server itself");
}

enum dispatch_result refuse_doubted(struct session *s, const struct command *c) {
    const char *error = session_await_word(s);
    if (!error)
        return DISPATCH_WAIT;
    counter_add(&s->worker->counters.requests_failed, 1);
    return session_refuse(s, c, "%s", error);
}

/* Refuses a request before authentication, or lets it wait for a node's answer. `c` NULL: the command is not in the
 * table. The checks are in Redis's order. */
static enum dispatch_result refuse_unauthenticated(struct session *s, const struct command *c,
                                                   const struct resp_request *r, const char *bytes) {
    if (session_doubted(s))
        return refuse_doubted(s, c);
    if (!c) {
        enum { SHOWN = 128 };
        char name[SHOWN + 1], args[SHOWN * 2] = "", arg[SHOWN + 1];
        size_t len = 0;
        for (size_t i = 1; i < r->argc && len < SHOWN; i++) {
            request_arg_text(r, bytes, i, arg, sizeof(arg) - len);
            len += (size_t)snprintf(args + len, sizeof(args) - len, "'%s' ", arg);
        }
        session_refuse(s, NULL, "ERR unknown command '%s', with args beginning with: %s",
                       request_arg_text(r, bytes, 0, name, sizeof(name)), args);
    } else if (!command_arity_ok(c, r->argc)) {
        session_refuse(s, c, "ERR wrong number of arguments for '%s' command", c->name);
    } else if (s->worker->shared->stranger_login) {
        session_refuse(s, c,
                       "NOAUTH Authentication required. The proxy's upstream-user is not for clients: log in with "
                       "AUTH, or set requirepass, or share-upstream-user yes, in the proxy's configuration");
    } else {
        session_refuse(s, c, "NOAUTH Authentication required.");
    }
    if (s->authenticated)
        worker_probe_again(s->worker); /* refused because of the node's answer, which may have changed */
    return DISPATCHED;
}

/* Whether one of its keys matches an enforced rule and is longer than a lock's name may be. */
static bool refuse_long_names(struct session *s, const struct command *c, const struct resp_request *r,
                              const char *bytes) {
    size_t word = 1;
    while (word < r->argc && r->argv[word].len <= LOCK_NAME_MAX)
        word++;
    if (word >= r->argc || !command_arity_ok(c, r->argc))
        return false;
    struct key_list list;
    bool found = false;
    key_list_find(&list, c, r, bytes);
    for (int i = 0; i < list.count && !found; i++) {
        size_t len;
        const char *key = request_arg(r, bytes, list.keys[i], &len);
        found = len > LOCK_NAME_MAX && lock_rule_for(s, key, len);
    }
    key_list_clear(&list);
    return found;
}

/* ---- the way of a request --------------------------------------------------------------------------- */

/* Notes a command's subcommand for CLIENT LIST. Commands on keys are skipped: most of them have none. */
static void note_subcommand(struct session *s, const struct command *c, const struct resp_request *r,
                            const char *bytes) {
    char *word = commands_of(s)->last_word;
    if (c->need != NEED_NODE && c->need != NEED_MASTERS && c->need != NEED_CLUSTER && c->need != NEED_SESSION)
        return;
    *word = '\0';
    if (r->argc < 2 || !(c->flags & COMMAND_SUBCOMMANDS))
        return;
    request_arg_text(r, bytes, 1, word, sizeof(commands_of(s)->last_word));
    for (; *word; word++)
        *word = (char)tolower((unsigned char)*word);
}

/* ---- requests with a class ------------------------------------------------------------------------------ */

/* Whether the command works on one key by its nature, and not only in this request. */
static bool one_key(const struct request_class *k) {
    const struct command *c = k->command;
    return k->key_count == 1 && (c->only || c->split == SPLIT_SUM || c->id == COMMAND_MSETNX);
}

/* Whether earlier lock commands of the session on the key (on any, if the request has several) have to end first. An
 * audited request only waits for scripts. */
static bool locks_are_busy(const struct session *s, const struct request_class *k) {
    size_t len;
    if (!k->enforced && !k->audited)
        return false;
    if (k->enforced && locks_of(s)->audits > 0)
        return true;
    if (!one_key(k))
        return lock_any_busy(s);
    const char *key = class_key(k, 0, &len);
    return lock_script_busy(s, key, len);
}

/* Whether PROXY ADVISE wants to see the reply, although no rule matches. Of a script's keys only its lock is kept. */
static bool advise_watches(struct session *s, struct request_class *k) {
    size_t len;
    const struct command *c = k->command;
    const char *key = class_key(k, 0, &len);
    if (one_key(k) || c->id == COMMAND_MSETNX || c->id == COMMAND_MSETEX)
        return advise_wants(s, c, k->request, k->bytes, key, len);
    if (c->id == COMMAND_DEL || c->id == COMMAND_UNLINK)
        return advise_wants_some(s, k);
    uint32_t lock = script_is(c) && !k->enforced && !k->fenced
                        ? advise_script_key(s, c, k->request, k->bytes, k->keys[0], k->key_count)
                        : 0;
    if (lock)
        class_narrow(k, lock, NULL);
    return lock != 0;
}

static enum dispatch_result dispatch_lock_key(struct session *s, const struct command *c, const struct resp_request *r,
                                              const char *bytes, uint32_t key_index, const struct lock_rule *rule);

/* Whether the fence of a request's data decides about the whole request; then *result is the result. If not, *apart
 * says whether the data is a part of its own, which goes before the locks. */
static bool fence_takes(struct session *s, const struct request_class *k, bool *apart, enum dispatch_result *result) {
    const char *error = NULL;
    enum fence_verdict verdict = fence_judge(s, k, &error);
    *apart = verdict == FENCE_APART;
    *result = DISPATCH_WAIT;
    if (verdict == FENCE_REFUSED)
        *result = session_refuse(s, k->command, "%s", error);
    else if (verdict == FENCE_CHECKED)
        *result = fence_dispatch(s, k);
    return verdict != FENCE_NOTHING && !*apart;
}

/* Dispatches a command whose keys are known. */
static enum dispatch_result dispatch_keys(struct session *s, struct request_class *k) {
    const struct command *c = k->command;
    enum dispatch_result result;
    struct lock_command form;
    bool apart;
    if (locks_are_busy(s, k))
        return DISPATCH_WAIT;
    if (fence_takes(s, k, &apart, &result))
        return result;
    enum lock_meaning meaning = lock_meaning_of(k, &form);
    bool parts = meaning == MEANS_RELEASES || meaning == MEANS_SHOWS || meaning == MEANS_CLOBBERS;
    bool split = apart || (c->split != SPLIT_NONE && (k->slot == SLOT_SEVERAL || parts));
    if (k->slot == SLOT_SEVERAL && !split)
        return session_refuse(s, c, CROSSSLOT);
    bool several = split || meaning == MEANS_SCRIPT || meaning == MEANS_CLOBBERS;
    const char *lacks = several && k->enforced ? lock_quorum_lacks(k) : NULL;
    if (lacks)
        return session_refuse(s, c, "%s", lacks);
    if (split)
        return split_dispatch(s, k);
    if (meaning == MEANS_LOCK)
        return dispatch_lock_key(s, c, k->request, k->bytes, k->keys[0], class_rule(k, 0));
    if (meaning == MEANS_SCRIPT)
        return script_dispatch(s, k);
    if (meaning == MEANS_CLOBBERS)
        return lock_dispatch_clobber(s, k);
    if (meaning == MEANS_SHOWS && lock_shows_fields(k))
        return shown_forward(s, k);
    if (k->audited)
        return audit_forward(s, k);
    if (k->semaphores && !k->enforced) {
        k->semaphores = false; /* its reply will be read */
        return semaphore_forward(s, k);
    }
    bool watched = (!k->enforced || one_key(k)) && advise_watches(s, k);
    return watched ? audit_forward_outside(s, k) : class_pass(s, k, k->slot);
}

static enum dispatch_result dispatch_key_list(struct session *s, struct request_class *k) {
    const struct command *c = k->command;
    /* A script must be the first request on the connection for scripts: behind others it would stop theirs. */
    if ((c->flags & COMMAND_RUNS_CODE) && s->in_flight > 0 && s->apart != UPSTREAM_SCRIPTS && s->lane.dedicated == 0)
        return DISPATCH_WAIT;
    if (c->split == SPLIT_MSET && k->request->argc % 2 == 0) /* a node of a cluster would answer CROSSSLOT first */
        return session_refuse(s, c, "ERR wrong number of arguments for 'mset' command");
    if (discover_keys(s, k))
        return DISPATCHED;
    class_find(k, s, c, k->request, k->bytes);
    if (k->key_count == 0) /* malformed, and Redis reports the error; or no key after all, as in MEMORY PURGE */
        return masters_dispatch(s, k);
    return k->writes_guard ? session_refuse(s, c, GUARD_REFUSED) : dispatch_keys(s, k);
}

static enum dispatch_result dispatch_blocking(struct session *s, struct request_class *k) {
    const struct command *c = k->command;
    enum dispatch_result result;
    bool apart;
    if (!command_blocks(c, k->bytes, k->request)) /* XREAD without BLOCK */
        return dispatch_key_list(s, k);
    class_find(k, s, c, k->request, k->bytes);
    if (k->writes_guard)
        return session_refuse(s, c, GUARD_REFUSED);
    if (lock_clobbers(k))
        return session_refuse(
            s, c, "LOCKED a blocking command would take or displace a node of a list lock; nothing was done");
    if (fence_takes(s, k, &apart, &result))
        return result;
    result = blocking_dispatch(s, k);
    k->semaphores = false; /* its reply will be read */
    return result;
}

/* Dispatches a request by the needs of its command; `k` comes from class_begin. */
static enum dispatch_result dispatch_need(struct session *s, struct request_class *k) {
    const struct command *c = k->command;
    const char *error;
    bool cluster = upstream_is_cluster(s->worker->upstream);
    /* Commands on the whole keyspace wait for earlier lock commands, which may have to be sent twice. */
    if ((c->need == NEED_KEYSPACE || c->need == NEED_MASTERS) && lock_any_busy(s))
        return DISPATCH_WAIT;
    note_subcommand(s, c, k->request, k->bytes);
    switch (c->need) {
    case NEED_KEY:
        return dispatch_key_list(s, k);
    case NEED_BLOCKING:
        return dispatch_blocking(s, k);
    case NEED_NODE:
        error = fence_refuses_databases(s, c, k->request, k->bytes);
        return error ? session_refuse(s, c, "%s", error) : class_pass(s, k, SLOT_NONE);
    case NEED_MASTERS:
        return masters_dispatch(s, k);
    case NEED_CLUSTER:
        return cluster ? cluster_dispatch(s, k) : class_pass(s, k, SLOT_NONE);
    case NEED_KEYSPACE:
        return keyspace_dispatch(s, k);
    case NEED_SESSION:
        return local_dispatch(s, k);
    case NEED_PROXY:
        return proxy_dispatch(s, k);
    case NEED_TRANSACTION:
        return transaction_dispatch(s, k);
    case NEED_PUBSUB:
        return pubsub_dispatch(s, k);
    case NEED_REFUSED:
        return refuse_unsupported(s, k);
    case NEED_CLOSE:
        session_finish(s);
        break;
    }
    return DISPATCHED;
}

/* Ends the class of a request. Notes what other rooms do not look at: data of a fence under audit, and semaphores that
 * the command resets. */
static enum dispatch_result class_end(struct session *s, struct request_class *k, enum dispatch_result result) {
    if (result == DISPATCHED && k->fenced)
        fence_audit(s, k);
    if (result == DISPATCHED && k->semaphores)
        semaphore_passes(s, k);
    if (result == DISPATCHED && k->key_count == 0 && k->command->flags & COMMAND_WRITE)
        semaphore_flushes(s, k->command);
    class_clear(k);
    return result;
}

static __attribute__((noinline)) enum dispatch_result
dispatch_classified(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    struct request_class k;
    class_begin(&k, c, r, bytes);
    return secret_end(s, c, r, bytes, class_end(s, &k, dispatch_need(s, &k)));
}

/* ---- one key ------------------------------------------------------------------------------------- */

static int slot_for(const struct session *s, const char *key, size_t len) {
    return upstream_is_cluster(s->worker->upstream) ? slot_of_key(key, len) : 0;
}

/* Dispatches a command on one key with its class. `rule` NULL: no rule watches the key, but PROXY ADVISE does. */
static __attribute__((noinline)) enum dispatch_result dispatch_one(struct session *s, const struct command *c,
                                                                   const struct resp_request *r, const char *bytes,
                                                                   uint32_t key_index, const struct lock_rule *rule) {
    struct request_class k;
    class_begin(&k, c, r, bytes);
    class_of_key(&k, s, key_index, rule);
    if (rule)
        return class_end(s, &k, dispatch_keys(s, &k));
    enum dispatch_result result = audit_forward_outside(s, &k);
    class_clear(&k);
    return result;
}

/* Dispatches a command on one key that a rule watches. A lock of an enforced rule needs no class: the only call of
 * lock_dispatch is inline, which earns 2 % of the bound on acquire and release. */
static __attribute__((noinline)) enum dispatch_result dispatch_lock_key(struct session *s, const struct command *c,
                                                                        const struct resp_request *r, const char *bytes,
                                                                        uint32_t key_index,
                                                                        const struct lock_rule *rule) {
    size_t len;
    const char *key = request_arg(r, bytes, key_index, &len);
    struct lock_command lc;
    if (rule->mode != LOCK_MODE_ENFORCE)
        return dispatch_one(s, c, r, bytes, key_index, rule);
    invariant_debug(!lock_guard_is(key, len), "a guard record is a lock");
    if (lock_must_wait(s, key, len))
        return DISPATCH_WAIT;
    if (lock_command_of(c, r, bytes, rule->kinds, &lc))
        return lock_dispatch(s, c, r, bytes, &lc, key_index, rule);
    return dispatch_one(s, c, r, bytes, key_index, rule);
}

/* Dispatches the usual case, one key and no rule for it. All of this way is inline, including forward, which earns 4 %
 * of the bound on pipelined requests. DEL of one key is not classified either: 8 % of the bound on requests. */
static inline __attribute__((always_inline)) enum dispatch_result
dispatch_by_key(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    size_t len;
    uint32_t index = (uint32_t)c->only;
    if (!index && r->argc == 2 && (c->id == COMMAND_DEL || c->id == COMMAND_UNLINK))
        index = 1; /* most DELs have one key */
    if (!index)
        return dispatch_classified(s, c, r, bytes);
    const char *key = request_arg(r, bytes, index, &len);
    const struct lock_rule *rule = lock_rule_watched(s, key, len);
    if (rule)
        return dispatch_lock_key(s, c, r, bytes, index, rule);
    if ((c->flags & (COMMAND_READONLY | COMMAND_ADVISES)) != COMMAND_READONLY) {
        if (!(c->flags & COMMAND_READONLY) && key_is_guard(key, len))
            return session_refuse(s, c, GUARD_REFUSED);
        /* A plain SET does not acquire a lock. */
        if ((c->id != COMMAND_SET || r->argc > 3) && advise_wants(s, c, r, bytes, key, len))
            return dispatch_one(s, c, r, bytes, index, NULL);
    }
    return session_forward(s, c, r, bytes, slot_for(s, key, len));
}

/* ---- other ways ------------------------------------------------------------------------------------- */

int dispatch_arg_slot(const struct session *s, const struct resp_request *r, const char *bytes, size_t i) {
    bool placed = upstream_is_cluster(s->worker->upstream) && r->argc > i;
    return placed ? slot_of_key(bytes + r->argv[i].off, r->argv[i].len) : SLOT_NONE;
}

static enum stream_way dispatch_stream(struct session *s, const struct resp_request *r, const char *bytes,
                                       const struct command **command, int *slot) {
    if (r->form != RESP_MULTIBULK || r->irregular || r->argc == 0 || s->lane.dedicated != 0 ||
        session_unauthenticated(s) || s->queues || locks_of(s)->lost || (push_of(s)->pubsub && pubsub_restricts(s)))
        return STREAM_NOT;
    const struct command *c = command_of_request(r, bytes);
    *command = c;
    *slot = SLOT_NONE;
    bool keyed = c && c->need == NEED_KEY && c->only && r->argc > (size_t)c->only;
    if (!c || !command_arity_ok(c, r->argc + r->args_left) || (c->need != NEED_NODE && !keyed))
        return STREAM_NOT;
    if (keyed) {
        const struct lock_rules *rules = s->worker->rules;
        size_t len;
        const char *key = request_arg(r, bytes, (size_t)c->only, &len);
        *slot = slot_for(s, key, len);
        if (!(c->flags & COMMAND_READONLY) && (key_is_guard(key, len) || lock_rules_fence_of(rules, key, len)))
            return STREAM_NOT;
        const struct lock_rule *rule = lock_rules_rule_of(rules, key, len);
        if ((rule && rule->permits) || lock_rule_for(s, key, len))
            return STREAM_NOT;
    }
    if (s->in_flight > 0 || (s->worker->pause != PAUSE_NONE && pause_holds(s, c, r, bytes)))
        return STREAM_LATER;
    if (s->worker->reads)
        read_from_streams(s, c, r, bytes);
    return STREAM_NOW;
}

/* Dispatches a request in RESP2's subscribe mode. */
static enum dispatch_result dispatch_restricted(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    if (s->in_flight > 0)
        return DISPATCH_WAIT;
    if (c && (c->id == COMMAND_QUIT || c->id == COMMAND_RESET) && command_arity_ok(c, k->request->argc))
        return local_dispatch(s, k);
    if (c)
        return pubsub_restricted(s, k);
    /* The node answers that there is no such command. */
    return class_pass(s, k, dispatch_arg_slot(s, k->request, k->bytes, 1));
}

/* on-loss error: the session's lease is over, and its next command gets an error, and is not carried out. In MULTI that
 * ends the transaction: EXEC answers the error, or fails later. */
static enum dispatch_result dispatch_lost(struct session *s, const struct command *c) {
    bool ends = s->queues && c && (c->id == COMMAND_EXEC || c->id == COMMAND_DISCARD);
    if (ends && !transaction_may_end(s))
        return DISPATCH_WAIT;
    char *error = lock_take_lost(s);
    if (s->queues && !ends)
        transaction_refuse(s, c, "%s", error);
    else
        session_refuse(s, c, "%s", error);
    if (ends)
        transaction_drop(s);
    memory_free(error);
    return DISPATCHED;
}

/* Dispatches for a session in an unusual state, and for names that the table lacks. True: *result is the result. */
static __attribute__((noinline)) bool dispatch_special(struct session *s, const struct command **command,
                                                       const struct resp_request *r, const char *bytes,
                                                       enum dispatch_result *result) {
    const struct command *c = *command;
    *result = DISPATCH_WAIT;
    if (s->worker->pause == PAUSE_PROXY && pause_holds(s, c, r, bytes)) /* no node is asked for a login, either */
        return true;
    if (session_unauthenticated(s) && !(c && (c->flags & COMMAND_NO_AUTH) && command_arity_ok(c, r->argc))) {
        *result = refuse_unauthenticated(s, c, r, bytes);
        return true;
    }
    if (s->worker->struck > 0 && locks_of(s)->lost) {
        *result = dispatch_lost(s, c);
        return true;
    }
    if (s->worker->looks > 0)
        advise_looks(s, c, r, bytes);
    if (!c && !(push_of(s)->pubsub && pubsub_restricts(s)) && discover(s, r, bytes, &c))
        return true;
    if (s->worker->pause != PAUSE_NONE && pause_holds(s, c, r, bytes))
        return true;
    if (s->worker->reads && read_from_takes(s, c, r, bytes, result))
        return true;
    bool restricted = push_of(s)->pubsub && pubsub_restricts(s);
    if (s->queues || restricted) {
        struct request_class k;
        class_begin(&k, c, r, bytes);
        *result = s->queues ? queue_dispatch(s, &k) : dispatch_restricted(s, &k);
        return true;
    }
    if (!c) /* that node's answer counts */
        *result = session_forward(s, NULL, r, bytes, dispatch_arg_slot(s, r, bytes, 1));
    *command = c;
    return c == NULL;
}

static enum dispatch_result dispatch_request(struct session *s, const struct resp_request *r, const char *bytes) {
    const struct command *c = command_of_request(r, bytes);
    s->last = c;
    if (r->len > LOCK_NAME_MAX && c && !session_unauthenticated(s) && refuse_long_names(s, c, r, bytes)) {
        if (s->queues)
            return transaction_refuse(s, c, "%s", LOCK_NAME_REFUSED);
        return session_refuse(s, c, "%s", LOCK_NAME_REFUSED);
    }
    bool special = ((uintptr_t)transaction_of(s) | (uintptr_t)push_of(s)->pubsub | (uintptr_t)s->worker->unusual) != 0;
    if (special | !c | session_unauthenticated(s)) {
        enum dispatch_result result;
        const struct command *known = c;
        if (dispatch_special(s, &known, r, bytes, &result))
            return secret_end(s, c, r, bytes, result);
        c = known;
    }
    if (!command_arity_ok(c, r->argc) && c->need != NEED_PROXY && c->need != NEED_CLOSE)
        return session_forward(s, c, r, bytes, SLOT_NONE); /* harmless, and Redis answers with the error */
    if (c->need == NEED_KEY)                               /* the usual case */
        return dispatch_by_key(s, c, r, bytes);
    return dispatch_classified(s, c, r, bytes);
}

/* ---- all rooms ------------------------------------------------------------------------------------- */

static void commands_open(struct worker *w) {
    pause_init(w);
    wrong_open(w);
}

static void commands_close(struct session *s) {
    pause_leave(s);
    memory_free(commands_of(s)->writes);
    commands_of(s)->writes = NULL;
}

static const struct session_room commands_room = {.worker_opens = commands_open,
                                                  .worker_closes = wrong_close,
                                                  .worker_ticks = pause_tick,
                                                  .worker_serves = rights_ask_unauthenticated,
                                                  .reply_over = read_from_reply_over,
                                                  .closes = commands_close};

/* All rooms, in the order in which they are told that a session has ended. */
static const struct session_room *const rooms[] = {&transaction_room, &pubsub_room,  &tracking_room,   &watch_room,
                                                   &blocking_room,    &cluster_room, &commands_room,   &locks_room,
                                                   &waits_room,       &fences_room,  &semaphores_room, NULL};

const struct session_hooks commands_hooks = {
    .dispatch = dispatch_request, .streams = dispatch_stream, .late = slow_note, .rooms = rooms};
