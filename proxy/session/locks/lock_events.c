/* Turns commands on locks, and some writes of data, into events for the observer. This file decides nothing. */
#include <string.h>

#include "proxy/observe/observe.h"
#include "proxy/session/locks/private.h"

/* One INCR or HSETNX in so many is looked at, until its key is known as a lock's. The number is a prime, so that the
 * samples do not always hit the same session of two that acquire and lose in turns. */
enum { COUNTERS_SAMPLED = 61, DELETED_LOOKED = 16 /* keys of a DEL of several */ };

/* When a command on a key outside of all rules is looked at: it may be about a lock or a semaphore. */
enum look {
    LOOK_NEVER,
    LOOK_ALWAYS,
    LOOK_KNOWN,   /* if the key is known as a lock's */
    LOOK_COUNT,   /* as LOOK_KNOWN, otherwise now and then */
    LOOK_SET,     /* by its options */
    LOOK_WRITTEN, /* as LOOK_KNOWN; always behind WATCH */
    LOOK_ALL,     /* as LOOK_KNOWN; always if it acquires all of its keys */
    LOOK_NODE,    /* LREM: a list is seen to be a lock by it */
    LOOK_HEAD     /* the same, if it asks for the list's head */
};

static const uint8_t locks_seen[COMMAND_COUNT] = {
    [COMMAND_SETNX] = LOOK_ALWAYS,    [COMMAND_MSETNX] = LOOK_ALWAYS,  [COMMAND_SET] = LOOK_SET,
    [COMMAND_SETEX] = LOOK_WRITTEN,   [COMMAND_PSETEX] = LOOK_WRITTEN, [COMMAND_MSETEX] = LOOK_ALL,
    [COMMAND_INCR] = LOOK_COUNT,      [COMMAND_HSETNX] = LOOK_COUNT,   [COMMAND_HSETEX] = LOOK_COUNT,
    [COMMAND_LREM] = LOOK_NODE,       [COMMAND_LRANGE] = LOOK_HEAD,    [COMMAND_LINDEX] = LOOK_HEAD,
    [COMMAND_DEL] = LOOK_KNOWN,       [COMMAND_UNLINK] = LOOK_KNOWN,   [COMMAND_GETDEL] = LOOK_KNOWN,
    [COMMAND_DELIFEQ] = LOOK_KNOWN,   [COMMAND_DELEX] = LOOK_KNOWN,    [COMMAND_GETSET] = LOOK_KNOWN,
    [COMMAND_DECR] = LOOK_KNOWN,      [COMMAND_HDEL] = LOOK_KNOWN,     [COMMAND_HGETDEL] = LOOK_KNOWN,
    [COMMAND_EXPIRE] = LOOK_KNOWN,    [COMMAND_PEXPIRE] = LOOK_KNOWN,  [COMMAND_EXPIREAT] = LOOK_KNOWN,
    [COMMAND_PEXPIREAT] = LOOK_KNOWN, [COMMAND_PERSIST] = LOOK_KNOWN,  [COMMAND_RPUSH] = LOOK_KNOWN,
    [COMMAND_RPUSHX] = LOOK_KNOWN,    [COMMAND_LSET] = LOOK_KNOWN,     [COMMAND_LPOP] = LOOK_KNOWN,
};
static const uint8_t permits_seen[COMMAND_COUNT] = {
    [COMMAND_LPOP] = LOOK_COUNT,  [COMMAND_RPOP] = LOOK_COUNT, [COMMAND_BLPOP] = LOOK_COUNT,
    [COMMAND_BRPOP] = LOOK_COUNT, [COMMAND_ZADD] = LOOK_COUNT, [COMMAND_LPUSH] = LOOK_KNOWN,
    [COMMAND_RPUSH] = LOOK_KNOWN, [COMMAND_ZREM] = LOOK_KNOWN, [COMMAND_ZRANK] = LOOK_KNOWN,
    [COMMAND_ZCARD] = LOOK_KNOWN,
};

static bool asks_queue(const struct command *c) {
    return locks_seen[c->id] >= LOOK_NODE;
}

/* Whether such a command is looked at. If not, the list's commands are from now on: it may be a lock. */
static bool queue_wanted(struct observer *a, const char *key, size_t len, int64_t now_ms) {
    if (observer_knows(a, key, len))
        return true;
    observer_arm(a, key, len, now_ms);
    return false;
}

/* Whether a SET is worth a look: NX acquires, other options change a key that is known as a lock. */
static __attribute__((noinline)) bool set_wanted(const struct observer *a, bool watches, const struct resp_request *r,
                                                 const char *bytes, const char *key, size_t len) {
    for (size_t i = 3; i < r->argc; i++)
        if (request_arg_is(r, bytes, i, "nx"))
            return true;
    return watches || observer_knows(a, key, len);
}

/* Whether a command on a counter or hash is looked at: if the key is known as a lock's, otherwise now and then. */
static inline bool count_wanted(const struct lock_interest *in, const char *key, size_t len) {
    return observer_knows(in->observer, key, len) || ++*in->counters_seen % COUNTERS_SAMPLED == 0;
}

static inline bool may_be_lock(const struct lock_interest *in, const struct command *c, const struct resp_request *r,
                               const char *bytes, const char *key, size_t len) {
    switch ((enum look)locks_seen[c->id]) {
    case LOOK_NEVER:
        break;
    case LOOK_ALWAYS:
    case LOOK_NODE:
        return true;
    case LOOK_KNOWN:
        return observer_knows(in->observer, key, len);
    case LOOK_COUNT:
        return count_wanted(in, key, len);
    case LOOK_SET:
        return set_wanted(in->observer, in->watches, r, bytes, key, len);
    case LOOK_WRITTEN:
        return in->watches || observer_knows(in->observer, key, len);
    case LOOK_ALL:
        return lock_acquires_all(c, r, bytes) || observer_knows(in->observer, key, len);
    case LOOK_HEAD:
        return request_arg_is(r, bytes, 2, "0") && request_arg_is(r, bytes, r->argc - 1, "0");
    }
    return false;
}

bool event_wanted(const struct lock_interest *in, const struct command *c, const struct resp_request *r,
                  const char *bytes, const char *key, size_t len) {
    if (!may_be_lock(in, c, r, bytes, key, len))
        return false;
    return !asks_queue(c) || queue_wanted(in->observer, key, len, in->now_ms);
}

bool event_permit_wanted(const struct lock_interest *in, const struct command *c, const char *key, size_t len) {
    enum look look = permits_seen[c->id];
    return look != LOOK_NEVER &&
           (look == LOOK_COUNT ? count_wanted(in, key, len) : observer_knows(in->observer, key, len));
}

/* ---- a session ------------------------------------------------------------------------------- */

static inline struct lock_interest interest_of(struct session *s) {
    struct worker *w = s->worker;
    return (struct lock_interest){
        .observer = w->shared->observer,
        .counters_seen = &w->locks->counters_seen,
        .watches = s->watches, /* the session may have seen before that the key is missing */
    };
}

static inline bool sampled(struct session *s, const char *key, size_t len) {
    return observer_samples(s->worker->shared->observer, key, len, worker_now(s->worker));
}

bool advise_wants(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  const char *key, size_t len) {
    const struct lock_interest in = interest_of(s);
    bool may = may_be_lock(&in, c, r, bytes, key, len) || event_permit_wanted(&in, c, key, len);
    return may && sampled(s, key, len) &&
           (!asks_queue(c) || queue_wanted(in.observer, key, len, worker_now(s->worker)));
}

bool advise_wants_some(struct session *s, const struct request_class *k) {
    size_t len;
    for (size_t i = 0; i < k->key_count && i < DELETED_LOOKED; i++) {
        const char *key = class_key(k, i, &len);
        if (observer_knows(s->worker->shared->observer, key, len))
            return true;
    }
    return false;
}

/* ---- scripts --------------------------------------------------------------------------------- */

uint32_t advise_script_key(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                           uint32_t first_key, size_t key_count) {
    size_t len;
    const char *key = request_arg(r, bytes, first_key, &len);
    bool source = c->id == COMMAND_EVAL;
    if (!source && c->id != COMMAND_EVALSHA)
        return 0;
    if (source && !sampled(s, key, len)) /* to sample is cheaper than to read the text */
        return 0;
    struct advise_text text = event_script_text(s->worker->shared->observer, c, r, bytes);
    if (text.kind == ADVISE_SCRIPT_OTHER || text.key > key_count)
        return 0;
    uint32_t at = first_key + text.key - 1;
    key = request_arg(r, bytes, at, &len);
    if (!event_script_acquires(&text) && !observer_knows(s->worker->shared->observer, key, len))
        return 0;
    return (source && text.key == 1) || sampled(s, key, len) ? at : 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void note_event(struct session *s, enum seen_event what, struct lock_event *e) {
    locks_of(s)->left_endless |= what == SEEN_ACQUIRED && e->pttl_ms < 0 && !lock_verb_is(e->verb, VERB_QUEUE);
    e->overlapped = s->lock.overlapped;
    e->session_id = s->lock.id;
    e->library = s->lib_name;
    e->identity = lock_client_name(s->lock.client, &e->identity_len);
    e->identity_hash = lock_client_hash(s->lock.client);
    observer_note(s->worker->shared->observer, what, e, worker_now(s->worker));
}

/* Notes that a lock of a rule was acquired; while writes are looked at, which lock. */
static inline void note_taken(struct session *s, const struct lock_key *key) {
    struct worker *w = s->worker;
    observer_lock_seen(w->shared->observer, worker_now(w));
    if (w->looks > 0)
        observer_lock_taken(w->shared->observer, key, lock_client_hash(s->lock.client));
}

/* The event that a script's outcome means. `known`: another kind of command may acquire the key, so what the script
 * took for data may be a lock. */
static enum seen_event script_event(const struct lock_plan *plan, const struct lock_result *result, unsigned advises,
                                    bool known) {
    bool refused = result->outcome == LOCK_HELD || result->outcome == LOCK_FOREIGN;
    bool open = result->outcome == LOCK_OPEN && (known || !plan->data_free);
    bool freed = result->outcome == LOCK_RELEASED || result->outcome == LOCK_ADOPTED || open;
    bool attempts = lock_verb_is(plan->verb, VERB_ATTEMPTS) || (plan->verb == LOCK_CLOBBER && advises & ADVISES_ALL);
    if (result->outcome == LOCK_GRANTED)
        return SEEN_ACQUIRED;
    if ((refused && attempts) || (result->outcome == LOCK_COUNTED && plan->verb == LOCK_COUNT_UP))
        return SEEN_LOST;
    if (refused && lock_verb_is(plan->verb, VERB_RELEASES))
        return SEEN_REFUSED;
    if ((plan->verb == LOCK_RELEASE && freed) || result->outcome == LOCK_RELEASED)
        return SEEN_RELEASED;
    if (plan->verb == LOCK_RELEASE && result->outcome == LOCK_FREE)
        return SEEN_IN_VAIN;
    if (plan->verb == LOCK_EXTEND && (result->outcome == LOCK_DONE || open))
        return SEEN_EXTENDED;
    if (plan->verb == LOCK_REWRITE && result->outcome == LOCK_DONE)
        return SEEN_REWRITTEN;
    if (plan->verb == LOCK_REPLACE && result->outcome == LOCK_DONE)
        return SEEN_WRITTEN;
    return SEEN_NOTHING;
}

static __attribute__((noinline)) void note_script(struct session *s, const struct lock_plan *plan,
                                                  const struct lock_result *result, unsigned advises) {
    bool queue = lock_verb_is(plan->verb, VERB_QUEUE);
    struct lock_event e = {.key = plan->key,
                           .rule = plan->rule,
                           .verb = plan->verb,
                           .advises = (uint8_t)advises,
                           .renewed = result->leased || queue,
                           .pttl_ms = result->leased || queue ? PTTL_NONE : result->pttl_ms};
    bool known = plan->data_free && observer_knows(s->worker->shared->observer, plan->key.name, plan->key.len);
    enum seen_event what = script_event(plan, result, advises, known);
    if (what == SEEN_ACQUIRED) {
        e.value = result->value;
        e.value_len = result->value_len;
    }
    if (what != SEEN_NOTHING)
        note_event(s, what, &e);
}

inline void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result,
                          unsigned advises) {
    if (plan->rule && result->outcome == LOCK_GRANTED)
        note_taken(s, &plan->key);
    if (plan->rule && plan->verb != LOCK_OPERATOR && sampled(s, plan->key.name, plan->key.len))
        note_script(s, plan, result, advises);
}

void advise_passed(struct session *s, const struct lock_plan *plan, unsigned advises, const char *reply, size_t len) {
    struct lock_event e = {.key = plan->key, .rule = plan->rule, .verb = LOCK_PASS, .advises = (uint8_t)advises};
    struct resp_item item;
    if (!reply || !resp_item_read(&reply, reply + len, &item) || item.type != ':')
        return;
    e.count = item.num;
    const struct lock_interest in = interest_of(s);
    enum seen_event what = seen_of(&e);
    if (what != SEEN_NOTHING && count_wanted(&in, plan->key.name, plan->key.len) &&
        sampled(s, plan->key.name, plan->key.len))
        note_event(s, what, &e);
}

void advise_observed(struct session *s, const struct lock_event *seen) {
    struct lock_event e = *seen;
    const struct lock_interest in = interest_of(s);
    enum seen_event what = seen_permit(&e);
    if (what != SEEN_NOTHING)
        note_event(s, what, &e);
    what = seen_of(&e);
    if (what == SEEN_NOTHING || e.permit_alone)
        return;
    if (e.verb != LOCK_PASS || count_wanted(&in, e.key.name, e.key.len))
        note_event(s, what, &e);
    if (e.rule && what == SEEN_ACQUIRED && !e.beside)
        note_taken(s, &e.key);
}

/* ---- writes under locks ---------------------------------------------------------------------- */

/* In each second the first REQUESTS_LOOKED requests are looked at, of them the first WRITES_LOOKED writes, of these the
 * first KEYS_LOOKED keys. So the cost does not grow with the traffic. */
enum { REQUESTS_LOOKED = 2000, WRITES_LOOKED = 200, KEYS_LOOKED = 4 };

void advise_tick(struct worker *w) {
    w->looks = observer_looks(w->shared->observer, worker_now(w)) ? REQUESTS_LOOKED : 0;
    w->locks->writes_seen = 0;
}

static enum lock_writer writer_of(void *arg, const struct lock_key *lock) {
    struct session *s = arg;
    return engine_writing(s->worker->shared->engine, &s->lock, lock, worker_now(s->worker)).how;
}

void advise_looks(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    struct worker *w = s->worker;
    w->looks--;
    if (!c || !((c->flags & COMMAND_WRITE) || script_is(c)) || !command_arity_ok(c, r->argc) ||
        w->locks->writes_seen >= WRITES_LOOKED)
        return;
    struct key_list keys;
    key_list_find(&keys, c, r, bytes);
    for (int i = 0; i < keys.count && i < KEYS_LOOKED; i++) {
        size_t len;
        const char *key = request_arg(r, bytes, keys.keys[i], &len);
        const struct lock_rule *rule = lock_rules_rule_of(w->rules, key, len);
        if (rule ? rule->mode != LOCK_MODE_OFF : lock_guard_is(key, len)) /* no data */
            continue;
        struct observed_write write = {.key = {session_db(s), key, len},
                                       .client = lock_client_hash(s->lock.client),
                                       .writer = writer_of,
                                       .arg = s};
        observer_note_write(w->shared->observer, &write, worker_now(w));
        w->locks->writes_seen++;
    }
    key_list_clear(&keys);
}
