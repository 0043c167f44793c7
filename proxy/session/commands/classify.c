/*
 * Classification: which way a request goes, from the needs of its command, the rules of its keys, and the session's
 * requests in flight. It changes nothing, except that it counts what PROXY ADVISE wants to see.
 */
#include "parser/slot.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/commands/private.h"

#define CROSSSLOT "CROSSSLOT Keys in request don't hash to the same slot"

static enum way refused(const char **to, const char *error) {
    *to = error;
    return WAY_REFUSED;
}

/* ---- keys ---------------------------------------------------------------------------------------- */

/* Whether the command works on one key by its nature, and not only in this request. */
static bool one_key(const struct request_class *k) {
    const struct command *c = k->command;
    return k->key_count == 1 && (c->only || c->split == SPLIT_SUM || c->id == COMMAND_MSETNX);
}

/* Whether the session's earlier lock commands have to end first: those on the same key, or any if the request has
 * several keys. An audited request only waits for scripts. */
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

/* The way of a request with fenced data. WAY_FORWARD: the fence does not determine it. */
static enum way way_of_fenced(struct session *s, struct request_class *k, const char **error) {
    static const enum way ways[] = {[FENCE_NOTHING] = WAY_FORWARD,
                                    [FENCE_LATER] = WAY_LATER,
                                    [FENCE_CHECKED] = WAY_FENCED,
                                    [FENCE_APART] = WAY_SPLIT,
                                    [FENCE_REFUSED] = WAY_REFUSED};
    const char *why = NULL; /* it may be set for a request that has to wait, too */
    enum fence_verdict verdict = fence_judge(s, k, &why);
    if (verdict == FENCE_REFUSED)
        *error = why;
    return ways[verdict];
}

/* A command with keys, which are known. */
static enum way way_of_keys(struct session *s, struct request_class *k, const char **error) {
    if (locks_are_busy(s, k))
        return WAY_LATER;
    enum way way = k->fenced ? way_of_fenced(s, k, error) : WAY_FORWARD;
    if (way != WAY_FORWARD)
        return way;
    struct lock_command form;
    enum lock_meaning meaning = lock_meaning_of(k, &form);
    bool parts = meaning == MEANS_RELEASES || meaning == MEANS_SHOWS || meaning == MEANS_CLOBBERS;
    if (k->command->split != SPLIT_NONE && (k->slot == SLOT_SEVERAL || parts))
        return WAY_SPLIT;
    if (k->slot == SLOT_SEVERAL)
        return refused(error, CROSSSLOT);
    if (meaning == MEANS_LOCK)
        return WAY_LOCK;
    if (meaning == MEANS_SCRIPT)
        return WAY_SCRIPT;
    if (meaning == MEANS_CLOBBERS)
        return WAY_CLOBBER;
    if (meaning == MEANS_SHOWS && lock_shows_fields(k))
        return WAY_SHOWN;
    if (k->audited)
        return WAY_AUDIT;
    if (k->semaphores && !k->enforced)
        return WAY_PERMITS;
    if ((!k->enforced || one_key(k)) && advise_watches(s, k))
        return WAY_ADVISE;
    return WAY_FORWARD;
}

static enum way way_of_key_list(struct session *s, struct request_class *k, const char **error) {
    const struct command *c = k->command;
    /* A script must be the first request on the connection for scripts: behind others it would stop theirs. */
    if ((c->flags & COMMAND_RUNS_CODE) && s->in_flight > 0 && s->apart != UPSTREAM_SCRIPTS && s->lane.dedicated == 0)
        return WAY_LATER;
    if (c->split == SPLIT_MSET && k->request->argc % 2 == 0) /* a node of a cluster would answer CROSSSLOT first */
        return refused(error, "ERR wrong number of arguments for 'mset' command");
    if (discover_asks_keys(c) && upstream_is_cluster(s->worker->upstream))
        return WAY_ASK_KEYS;
    class_find(k, s, c, k->request, k->bytes);
    if (k->key_count == 0) /* malformed, and Redis reports the error; or no key after all, as in MEMORY PURGE */
        return WAY_MASTERS;
    if (k->writes_guard)
        return refused(error, GUARD_REFUSED);
    return way_of_keys(s, k, error);
}

static enum way way_of_blocking(struct session *s, struct request_class *k, const char **error) {
    if (!command_blocks(k->command, k->bytes, k->request)) /* XREAD without BLOCK */
        return way_of_key_list(s, k, error);
    class_find(k, s, k->command, k->request, k->bytes);
    if (k->writes_guard)
        return refused(error, GUARD_REFUSED);
    if (lock_clobbers(k))
        return refused(error,
                       "LOCKED a blocking command would take or displace a node of a list lock; nothing was done");
    enum way way = k->fenced ? way_of_fenced(s, k, error) : WAY_FORWARD;
    if (way != WAY_FORWARD)
        return way;
    return WAY_BLOCKING;
}

/* ---- all requests -------------------------------------------------------------------------------- */

enum way classify(struct session *s, struct request_class *k, const char **error) {
    const struct command *c = k->command;
    *error = NULL;
    /* Commands on the whole keyspace wait for earlier lock commands, which may have to be sent twice. */
    if ((c->need == NEED_KEYSPACE || c->need == NEED_MASTERS) && lock_any_busy(s))
        return WAY_LATER;
    switch (c->need) {
    case NEED_KEY:
        return way_of_key_list(s, k, error);
    case NEED_BLOCKING:
        return way_of_blocking(s, k, error);
    case NEED_NODE:
        *error = fence_refuses_databases(s, c, k->request, k->bytes);
        return *error ? WAY_REFUSED : WAY_FORWARD;
    case NEED_MASTERS:
        return WAY_MASTERS;
    case NEED_CLUSTER:
        return upstream_is_cluster(s->worker->upstream) ? WAY_CLUSTER : WAY_FORWARD;
    case NEED_KEYSPACE:
        return WAY_KEYSPACE;
    case NEED_SESSION:
        return WAY_SESSION;
    case NEED_PROXY:
        return WAY_PROXY;
    case NEED_TRANSACTION:
        return WAY_TRANSACTION;
    case NEED_PUBSUB:
        return WAY_PUBSUB;
    case NEED_REFUSED:
        return WAY_UNSUPPORTED;
    case NEED_CLOSE:
        break;
    }
    return WAY_CLOSE;
}

enum way classify_key(struct session *s, struct request_class *k, uint32_t key, const struct lock_rule *rule,
                      const char **error) {
    *error = NULL;
    class_of_key(k, s, key, rule);
    return way_of_keys(s, k, error);
}
