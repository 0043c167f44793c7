/*
 * Dispatch: which way a request goes.
 *
 *      request ── command table ──┬─ local ───── AUTH, HELLO, SELECT, CLIENT, PROXY, ...
 *                                 ├─ lock ────── its key matches a rule: a script
 *                                 ├─ script ──── EVAL and its kin on lock keys: as it is, between two steps
 *                                 ├─ split ───── keys in several slots, or lock keys among others
 *                                 ├─ pinned ──── MULTI, BLPOP, SUBSCRIBE, ...: a connection of the session's own
 *                                 ├─ stream ──── long ones, passed on while they come
 *                                 └─ forward ─── everything else, byte for byte
 *
 * What a command is says the table, or else the node (cluster/discover.c). Decides, and leaves the doing to the other
 * rooms of the session (locks, transaction, push, blocking, cluster) and to local.c, client.c, proxy_command.c, queue.c
 * and refuse.c here.
 */
#include <string.h>

#include "parser/slot.h"
#include "proxy/session/blocking/blocking.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/core/secret.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/locks.h"
#include "proxy/session/push/push.h"
#include "proxy/session/transaction/transaction.h"

/* ---- keys ---------------------------------------------------------------------------------------- */

static int slot_for(const struct session *s, const char *key, size_t len) {
    return upstream_is_cluster(s->worker->upstream) ? slot_of_key(key, len) : 0;
}

/* A command of which this is the one key, whose reply is looked at on its way back. */
static __attribute__((noinline)) void forward_watched(struct session *s, const struct command *c,
                                                      const struct resp_request *r, const char *bytes,
                                                      uint32_t key_index, const struct lock_rule *rule) {
    struct request_class k;
    class_of_key(&k, s, c, r, bytes, key_index, rule);
    if (rule && rule->mode == LOCK_MODE_AUDIT)
        audit_forward(s, &k);
    else
        audit_forward_outside(s, &k);
    class_clear(&k);
}

/* A command of which this is the one key, a lock that it may remove or replace. */
static __attribute__((noinline)) bool dispatch_clobbering(struct session *s, const struct command *c,
                                                          const struct resp_request *r, const char *bytes,
                                                          uint32_t key_index, const struct lock_rule *rule) {
    struct request_class k;
    class_of_key(&k, s, c, r, bytes, key_index, rule);
    bool clobbers = lock_clobbers(&k);
    if (clobbers)
        lock_dispatch_clobber(s, &k);
    class_clear(&k);
    return clobbers;
}

static __attribute__((noinline)) enum dispatch_result dispatch_lock_key(struct session *s, const struct command *c,
                                                                        const struct resp_request *r, const char *bytes,
                                                                        uint32_t key_index,
                                                                        const struct lock_rule *rule) {
    size_t len;
    const char *key = request_arg(r, bytes, key_index, &len);
    struct lock_command lc;
    if (rule->mode == LOCK_MODE_AUDIT) {
        if (lock_script_busy(s, key, len))
            return DISPATCH_WAIT;
        forward_watched(s, c, r, bytes, key_index, rule);
        return DISPATCHED;
    }
    if (lock_must_wait(s, key, len))
        return DISPATCH_WAIT;
    if (lock_command_of(c, r, bytes, rule->kinds, &lc))
        return lock_dispatch(s, c, r, bytes, &lc, key_index, rule);
    if (dispatch_clobbering(s, c, r, bytes, key_index, rule))
        return DISPATCHED;
    if (advise_wants(s, c, r, bytes, key, len)) /* of a kind that the rule lacks */
        forward_watched(s, c, r, bytes, key_index, rule);
    else
        session_forward(s, c, r, bytes, slot_for(s, key, len));
    return DISPATCHED;
}

/* A command of which this is the one key, which no rule matches. */
static __attribute__((noinline)) enum dispatch_result dispatch_single_outside(struct session *s,
                                                                              const struct command *c,
                                                                              const struct resp_request *r,
                                                                              const char *bytes, uint32_t key_index) {
    size_t len;
    const char *key = request_arg(r, bytes, key_index, &len);
    if (advise_wants(s, c, r, bytes, key, len))
        forward_watched(s, c, r, bytes, key_index, NULL);
    else
        session_forward(s, c, r, bytes, slot_for(s, key, len));
    return DISPATCHED;
}

/* A command of which this is the one key. */
static inline enum dispatch_result dispatch_single(struct session *s, const struct command *c,
                                                   const struct resp_request *r, const char *bytes,
                                                   uint32_t key_index) {
    size_t len;
    const char *key = request_arg(r, bytes, key_index, &len);
    const struct lock_rule *rule = lock_rule_watched(s, key, len);
    return rule ? dispatch_lock_key(s, c, r, bytes, key_index, rule)
                : dispatch_single_outside(s, c, r, bytes, key_index);
}

/* A command with keys outside of all rules: PROXY ADVISE looks at scripts, and at MSETNX. */
static void forward_keys_outside(struct session *s, const struct request_class *k) {
    size_t len;
    const char *key = class_key(k, 0, &len);
    const struct command *c = k->command;
    uint32_t lock = script_is(c) ? advise_script_key(s, c, k->request, k->bytes, k->keys[0], k->key_count) : 0;
    if (lock)
        forward_watched(s, c, k->request, k->bytes, lock, NULL);
    else if (c->id == COMMAND_MSETNX && advise_wants(s, c, k->request, k->bytes, key, len))
        audit_forward_outside(s, k);
    else
        session_forward(s, c, k->request, k->bytes, k->slot);
}

/* Whether a splittable command's lock keys need more than forwarding. */
static bool locks_matter(const struct command *c) {
    return c->id == COMMAND_DEL || c->id == COMMAND_UNLINK || c->split == SPLIT_MGET || c->split == SPLIT_MSET;
}

static enum dispatch_result dispatch_keys(struct session *s, const struct request_class *k) {
    const struct command *c = k->command;
    if ((k->enforced && s->audits > 0) || ((k->enforced || k->audited) && lock_any_busy(s)))
        return DISPATCH_WAIT;
    if (c->split != SPLIT_NONE && (k->slot == SLOT_SEVERAL || (k->enforced && locks_matter(c))))
        return split_dispatch(s, k);
    if (k->slot == SLOT_SEVERAL)
        session_refuse(s, c, "CROSSSLOT Keys in request don't hash to the same slot");
    else if (k->enforced && script_is(c))
        script_dispatch(s, k);
    else if (k->enforced && lock_clobbers(k))
        lock_dispatch_clobber(s, k);
    else if (k->audited)
        audit_forward(s, k);
    else if (!k->enforced)
        forward_keys_outside(s, k);
    else
        session_forward(s, c, k->request, k->bytes, k->slot);
    return DISPATCHED;
}

/* A script has to begin what goes over the connection for scripts: behind others it would stop their connection. */
static bool script_must_wait(const struct session *s, const struct command *c) {
    return (c->flags & COMMAND_RUNS_CODE) && s->in_flight > 0 && !s->aside && s->lane.own == 0;
}

static __attribute__((noinline)) enum dispatch_result
dispatch_by_key_list(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    if (script_must_wait(s, c))
        return DISPATCH_WAIT;
    if (c->split == SPLIT_MSET && r->argc % 2 == 0) { /* a node of a cluster would say CROSSSLOT first */
        session_refuse(s, c, "ERR wrong number of arguments for 'mset' command");
        return DISPATCHED;
    }
    if (discover_asks_keys(c) && upstream_is_cluster(s->worker->upstream)) {
        discover_keys(s, c, r, bytes);
        return DISPATCHED;
    }
    struct request_class k;
    class_find(&k, s, c, r, bytes);
    enum dispatch_result result = DISPATCHED;
    if (k.key_count == 0) /* malformed, and Redis says what is wrong, or no key after all, as in MEMORY PURGE */
        result = masters_dispatch(s, c, r, bytes);
    else if (k.writes_guard)
        session_refuse(s, c, "%s", GUARD_REFUSED);
    else if (k.key_count == 1 && (c->split == SPLIT_SUM || c->id == COMMAND_MSETNX))
        result = dispatch_single(s, c, r, bytes, k.keys[0]);
    else
        result = dispatch_keys(s, &k);
    class_clear(&k);
    return secret_end(s, c, r, bytes, result);
}

/* The usual case has one key and no rule for it: all of its way is inline, with forward, which earns 4 % of the bound
 * on pipelined requests. DEL of one key, which may have more, comes before: 8 % of the bound on requests. */
static inline __attribute__((always_inline)) enum dispatch_result
dispatch_by_key(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    if (!c->only && r->argc == 2 && (c->id == COMMAND_DEL || c->id == COMMAND_UNLINK) &&
        !key_is_guard(bytes + r->argv[1].off, r->argv[1].len))
        return dispatch_single(s, c, r, bytes, 1); /* most of them are releases */
    if (!c->only)
        return dispatch_by_key_list(s, c, r, bytes);
    size_t len;
    const char *key = request_arg(r, bytes, (size_t)c->only, &len);
    const struct lock_rule *rule = lock_rule_watched(s, key, len);
    if (rule)
        return dispatch_lock_key(s, c, r, bytes, (uint32_t)c->only, rule);
    if ((c->flags & (COMMAND_READONLY | COMMAND_SHOWS_HEAD)) != COMMAND_READONLY) {
        if (!(c->flags & COMMAND_READONLY) && key_is_guard(key, len)) {
            session_refuse(s, c, "%s", GUARD_REFUSED);
            return DISPATCHED;
        }
        /* A plain SET is no lock's. */
        if ((c->id != COMMAND_SET || r->argc > 3) && advise_wants(s, c, r, bytes, key, len)) {
            forward_watched(s, c, r, bytes, (uint32_t)c->only, NULL);
            return DISPATCHED;
        }
    }
    session_forward(s, c, r, bytes, slot_for(s, key, len));
    return DISPATCHED;
}

/* ---- the way ------------------------------------------------------------------------------------- */

/* A command that is neither in the table nor known to the node that was asked: to the node of its first argument, where
 * most commands have their key, and that one's answer counts. */
void dispatch_unknown(struct session *s, const struct resp_request *r, const char *bytes) {
    int slot = SLOT_NONE;
    if (upstream_is_cluster(s->worker->upstream) && r->argc > 1)
        slot = slot_of_key(bytes + r->argv[1].off, r->argv[1].len);
    session_forward(s, NULL, r, bytes, slot);
}

/* Commands on the whole keyspace are behind the lock commands before them, which may have to be sent twice. */
static bool keyspace_must_wait(const struct session *s, const struct command *c) {
    bool whole = c->need == NEED_KEYSPACE || c->need == NEED_MASTERS;
    return whole && lock_any_busy(s);
}

/* For CLIENT LIST. Commands on keys are left out: most traffic has none. */
static void note_subcommand(struct session *s, const struct command *c, const struct resp_request *r,
                            const char *bytes) {
    s->last_word[0] = '\0';
    if (r->argc < 2 || !command_has_subcommands(c))
        return;
    request_arg_text(r, bytes, 1, s->last_word, sizeof(s->last_word));
    for (char *p = s->last_word; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p - 'A' + 'a') : *p;
}

enum dispatch_result dispatch_own(struct session *s, const struct command *c, const struct resp_request *r,
                                  const char *bytes) {
    switch ((int)c->need) {
    case NEED_PROXY:
        return proxy_dispatch(s, c, r, bytes);
    case NEED_CLUSTER:
        return cluster_dispatch(s, c, r, bytes);
    case NEED_KEYSPACE:
        keyspace_dispatch(s, c, r, bytes);
        return DISPATCHED;
    case NEED_PUBSUB:
        return pubsub_dispatch(s, c, r, bytes);
    default:
        return local_dispatch(s, c, r, bytes);
    }
}

static bool can_stream(struct session *s, const struct resp_request *r, const char *bytes,
                       const struct command **command, int *slot) {
    if (r->form != RESP_MULTIBULK || r->irregular || r->argc == 0 || s->lane.own != 0 || session_unauthenticated(s) ||
        s->queues || (s->pubsub && pubsub_restricts(s)))
        return false;
    const struct command *c = command_of_request(r, bytes);
    *command = c;
    *slot = SLOT_NONE;
    if (!c || !command_arity_ok(c, r->argc + r->args_left))
        return false;
    if (c->need == NEED_NODE)
        return true;
    if (c->need != NEED_KEY || !c->only || r->argc <= (size_t)c->only)
        return false;
    size_t len;
    const char *key = request_arg(r, bytes, (size_t)c->only, &len);
    *slot = slot_for(s, key, len);
    return !lock_rule_for(s, key, len) && !(key_is_guard(key, len) && !(c->flags & COMMAND_READONLY));
}

static enum stream_way dispatch_stream(struct session *s, const struct resp_request *r, const char *bytes,
                                       const struct command **command, int *slot) {
    if (!can_stream(s, r, bytes, command, slot))
        return STREAM_NOT;
    if (s->in_flight > 0 || (s->worker->pause != PAUSE_NONE && pause_holds(s, *command, r, bytes)))
        return STREAM_LATER;
    return STREAM_NOW;
}

/* In RESP2's subscribe mode. */
static enum dispatch_result dispatch_restricted(struct session *s, const struct command *c,
                                                const struct resp_request *r, const char *bytes) {
    if (s->in_flight > 0)
        return DISPATCH_WAIT;
    if (c && (c->id == COMMAND_QUIT || c->id == COMMAND_RESET) && command_arity_ok(c, r->argc))
        return local_dispatch(s, c, r, bytes);
    if (c)
        return pubsub_restricted(s, c, r, bytes);
    dispatch_unknown(s, r, bytes); /* the node says that there is no such command */
    return DISPATCHED;
}

/* For a session that is not as most are, and for names that the table lacks. True: the request's way ends here. */
static __attribute__((noinline)) bool dispatch_special(struct session *s, const struct command **command,
                                                       const struct resp_request *r, const char *bytes,
                                                       enum dispatch_result *result) {
    const struct command *c = *command;
    *result = DISPATCHED;
    if (session_unauthenticated(s) && !(c && (c->flags & COMMAND_NO_AUTH) && command_arity_ok(c, r->argc))) {
        refuse_unauthenticated(s, c, r, bytes);
        return true;
    }
    if (s->replica && replica_streams(s)) {
        *result = replica_request(s, c, r, bytes);
        return true;
    }
    *result = DISPATCH_WAIT;
    if (!c && !(s->pubsub && pubsub_restricts(s)) && discover(s, r, bytes, &c) == DISCOVERED_LATER)
        return true;
    if (s->worker->pause != PAUSE_NONE && pause_holds(s, c, r, bytes))
        return true;
    if (s->queues) {
        *result = queue_dispatch(s, c, r, bytes);
        return true;
    }
    if (s->pubsub && pubsub_restricts(s)) {
        *result = dispatch_restricted(s, c, r, bytes);
        return true;
    }
    *result = DISPATCHED;
    if (!c)
        dispatch_unknown(s, r, bytes);
    *command = c;
    return c == NULL;
}

/* A command that may block. */
static enum dispatch_result dispatch_blocking(struct session *s, const struct command *c, const struct resp_request *r,
                                              const char *bytes) {
    struct request_class k;
    enum dispatch_result result = DISPATCHED;
    class_find(&k, s, c, r, bytes);
    if (k.writes_guard)
        session_refuse(s, c, "%s", GUARD_REFUSED);
    else if (lock_clobbers(&k))
        session_refuse(s, c,
                       "LOCKED a blocking command would take or displace a node of a list lock; nothing was done");
    else
        result = wait_is(c) ? wait_dispatch(s, c, r, bytes) : blocking_dispatch(s, &k);
    class_clear(&k);
    return result;
}

static enum dispatch_result dispatch_request(struct session *s, const struct resp_request *r, const char *bytes) {
    const struct command *c = command_of_request(r, bytes);
    s->last = c;
    bool special =
        ((uintptr_t)s->transaction | (uintptr_t)s->pubsub | (uintptr_t)s->replica | (uintptr_t)s->worker->pause) != 0;
    if (special | !c | session_unauthenticated(s)) {
        enum dispatch_result result;
        const struct command *known = c;
        if (dispatch_special(s, &known, r, bytes, &result))
            return secret_end(s, c, r, bytes, result);
        c = known;
    }
    if (!command_arity_ok(c, r->argc) && c->need != NEED_PROXY && c->need != NEED_CLOSE) {
        session_forward(s, c, r, bytes, SLOT_NONE); /* harmless, and Redis has the words for it */
        return DISPATCHED;
    }
    if (c->need == NEED_KEY) /* nearly all are */
        return dispatch_by_key(s, c, r, bytes);
    if (keyspace_must_wait(s, c))
        return DISPATCH_WAIT;
    switch (c->need) {
    case NEED_KEY:
        break;
    case NEED_BLOCKING:
        if (!command_blocks(c, bytes, r)) /* XREAD without BLOCK */
            return dispatch_by_key_list(s, c, r, bytes);
        return dispatch_blocking(s, c, r, bytes);
    case NEED_NODE:
        note_subcommand(s, c, r, bytes);
        session_forward(s, c, r, bytes, SLOT_NONE);
        return DISPATCHED;
    case NEED_MASTERS:
        note_subcommand(s, c, r, bytes);
        return secret_end(s, c, r, bytes, masters_dispatch(s, c, r, bytes));
    case NEED_CLUSTER:
        note_subcommand(s, c, r, bytes);
        return cluster_dispatch(s, c, r, bytes);
    case NEED_KEYSPACE:
        keyspace_dispatch(s, c, r, bytes);
        return DISPATCHED;
    case NEED_SESSION:
        note_subcommand(s, c, r, bytes);
        return secret_end(s, c, r, bytes, local_dispatch(s, c, r, bytes));
    case NEED_PROXY:
        return proxy_dispatch(s, c, r, bytes);
    case NEED_TRANSACTION:
        return transaction_dispatch(s, c, r, bytes);
    case NEED_PUBSUB:
        return pubsub_dispatch(s, c, r, bytes);
    case NEED_REPLICATION:
        if (!upstream_is_cluster(s->worker->upstream))
            return replica_dispatch(s, c, r, bytes);
        refuse_command(s, c, " on a cluster: each of its masters has replicas of its own");
        return DISPATCHED;
    case NEED_REFUSED:
        refuse_command(s, c, ": it would change the state of a connection that many clients share");
        return DISPATCHED;
    case NEED_CLOSE:
        session_finish(s);
        return DISPATCHED;
    }
    return DISPATCHED;
}

/* ---- all rooms ------------------------------------------------------------------------------------- */

static const struct session_room commands_room = {.worker_opens = pause_init, .closes = pause_leave};

/* In the order in which they hear that a session is gone. */
static const struct session_room *const rooms[] = {
    &transaction_room, &push_room, &blocking_room, &cluster_room, &commands_room, &locks_room, NULL};

const struct session_hooks commands_hooks = {.dispatch = dispatch_request, .streams = dispatch_stream, .rooms = rooms};
