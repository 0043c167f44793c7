/* Turns commands on locks, and some writes of data, into events for the advisor. This file decides nothing, and keeps
 * only counters. */
#include <string.h>

#include "proxy/advise/advise.h"
#include "proxy/base/glob.h"
#include "proxy/net/digest.h"
#include "proxy/session/locks/private.h"

/* One INCR or HSETNX in so many is looked at, until its key is known as a lock's. The number is a prime. So the samples
 * do not always hit the same session of two that acquire and lose in turns. */
enum { COUNTERS_SAMPLED = 61 };

static inline bool sampled(struct session *s, const char *key, size_t len) {
    return advisor_samples(s->worker->shared->advisor, key, len, worker_now(s->worker));
}

/* Whether the command asks for a list's head, or removes a node. The list may be a lock then, and its commands are
 * looked at from now on. */
static bool shows_queue(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                        const char *key, size_t len) {
    struct advisor *a = s->worker->shared->advisor;
    if (c->id != COMMAND_LREM && !(request_arg_is(r, bytes, 2, "0") && request_arg_is(r, bytes, r->argc - 1, "0")))
        return false;
    if (advisor_knows(a, key, len))
        return true;
    if (sampled(s, key, len))
        advisor_arm(a, key, len, worker_now(s->worker));
    return false;
}

/* Whether the session is in a transaction behind WATCH. It may have seen before that the key is missing. */
static bool watched(const struct session *s) {
    return s->watches;
}

/* Whether a SET with options is worth a look. NX acquires. Other options extend, replace or release a key that is known
 * as a lock. */
static __attribute__((noinline)) bool set_wanted(struct session *s, const struct resp_request *r, const char *bytes,
                                                 const char *key, size_t len) {
    for (size_t i = 3; i < r->argc; i++)
        if (request_arg_is(r, bytes, i, "nx"))
            return true;
    return watched(s) || advisor_knows(s->worker->shared->advisor, key, len);
}

/* Whether a command on a counter or hash is looked at: always if the key is known as a lock's, otherwise now and
 * then. */
static bool count_wanted(struct session *s, const char *key, size_t len) {
    return advisor_knows(s->worker->shared->advisor, key, len) ||
           ++s->worker->locks->counters_seen % COUNTERS_SAMPLED == 0;
}

static bool may_be_lock(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                        const char *key, size_t len) {
    struct worker *w = s->worker;
    switch ((int)c->id) {
    case COMMAND_SETNX:
    case COMMAND_MSETNX:
        return true;
    case COMMAND_SET:
        return set_wanted(s, r, bytes, key, len);
    case COMMAND_SETEX:
    case COMMAND_PSETEX:
        return watched(s) || advisor_knows(w->shared->advisor, key, len);
    case COMMAND_INCR:
    case COMMAND_HSETNX:
        return count_wanted(s, key, len);
    case COMMAND_LREM:
    case COMMAND_LRANGE:
    case COMMAND_LINDEX:
        return shows_queue(s, c, r, bytes, key, len);
    case COMMAND_DEL:
    case COMMAND_UNLINK:
    case COMMAND_GETDEL:
    case COMMAND_GETSET:
    case COMMAND_DECR:
    case COMMAND_HDEL:
    case COMMAND_EXPIRE:
    case COMMAND_PEXPIRE:
    case COMMAND_EXPIREAT:
    case COMMAND_PEXPIREAT:
    case COMMAND_PERSIST:
    case COMMAND_RPUSH:
    case COMMAND_RPUSHX:
    case COMMAND_LSET:
    case COMMAND_LPOP:
        return advisor_knows(w->shared->advisor, key, len);
    default:
        return false;
    }
}

bool advise_wants(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  const char *key, size_t len) {
    return may_be_lock(s, c, r, bytes, key, len) && sampled(s, key, len);
}

/* ---- scripts --------------------------------------------------------------------------------- */

enum { SOURCE_MAX = 4096, SHA1_HEX = 40 };

static struct advise_text script_learnt(struct session *s, const char *source, size_t len) {
    struct advise_text text = {.kind = ADVISE_SCRIPT_OTHER};
    if (len <= SOURCE_MAX)
        text = advise_script_read(source, len);
    if (text.kind != ADVISE_SCRIPT_OTHER)
        advisor_script_note(s->worker->shared->advisor, digest_sha1_head(source, len), &text);
    return text;
}

void advise_loaded(struct session *s, const struct resp_request *r, const char *bytes) {
    size_t len;
    if (r->argc != 3 || !request_arg_is(r, bytes, 1, "load"))
        return;
    const char *source = request_arg(r, bytes, 2, &len);
    script_learnt(s, source, len);
}

/* Reads the first 16 digits of a SHA1 in hex. */
static uint64_t sha1_head(const char *text) {
    uint64_t sha1 = 0;
    for (size_t i = 0; i < 16; i++) {
        char c = text[i];
        sha1 = sha1 << 4 | (uint64_t)((c & 15) + (c > '9' ? 9 : 0));
    }
    return sha1;
}

struct advise_text advise_script_of(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes) {
    size_t len;
    const char *text = request_arg(r, bytes, 1, &len);
    if (c->id == COMMAND_EVAL)
        return script_learnt(s, text, len);
    if (c->id != COMMAND_EVALSHA || len != SHA1_HEX)
        return (struct advise_text){.kind = ADVISE_SCRIPT_OTHER};
    return advisor_script(s->worker->shared->advisor, sha1_head(text));
}

static bool script_acquires(const struct advise_text *text) {
    return text->kind == ADVISE_SCRIPT_ACQUIRES || text->kind == ADVISE_SCRIPT_ENTERS;
}

uint32_t advise_script_key(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                           uint32_t first_key, size_t key_count) {
    size_t len;
    const char *key = request_arg(r, bytes, first_key, &len);
    bool source = c->id == COMMAND_EVAL;
    if (!source && c->id != COMMAND_EVALSHA)
        return 0;
    if (source && !sampled(s, key, len)) /* to sample is cheaper than to read the text */
        return 0;
    struct advise_text text = advise_script_of(s, c, r, bytes);
    if (text.kind == ADVISE_SCRIPT_OTHER || text.key > key_count)
        return 0;
    uint32_t at = first_key + text.key - 1;
    key = request_arg(r, bytes, at, &len);
    if (!script_acquires(&text) && !advisor_knows(s->worker->shared->advisor, key, len))
        return 0;
    return (source && text.key == 1) || sampled(s, key, len) ? at : 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void note_sight(struct session *s, struct advise_sight *sight) {
    locks_of(s)->left_endless |= sight->event == ADVISE_ACQUIRED && sight->pttl_ms < 0 && !sight->queue;
    sight->overlapped = s->lock.overlapped;
    sight->session_id = s->lock.id;
    sight->library = s->lib_name;
    sight->client = lock_client_name(s->lock.client, &sight->client_len);
    sight->client_hash = lock_client_hash(s->lock.client);
    advisor_note(s->worker->shared->advisor, sight, worker_now(s->worker));
}

/* Notes that a lock of a rule was acquired. While writes are looked at, also notes which lock. */
static inline void note_taken(struct session *s, const struct lock_key *key) {
    struct worker *w = s->worker;
    advisor_lock_seen(w->shared->advisor, worker_now(w));
    if (w->looks > 0)
        advisor_lock_taken(w->shared->advisor, key, lock_client_hash(s->lock.client));
}

/* Finds the event that a lock script's outcome means. `known`: another kind of command may acquire the key. What the
 * script took for data may be such a lock. */
static bool script_event(const struct lock_plan *plan, const struct lock_result *result, unsigned advises, bool known,
                         enum advise_event *event) {
    bool refused = result->outcome == LOCK_HELD || result->outcome == LOCK_FOREIGN;
    bool open = result->outcome == LOCK_OPEN && (known || !plan->data_free);
    bool freed = result->outcome == LOCK_RELEASED || result->outcome == LOCK_ADOPTED || open;
    bool attempts = lock_verb_is(plan->verb, VERB_ATTEMPTS) || (plan->verb == LOCK_CLOBBER && advises & ADVISES_ALL);
    if (result->outcome == LOCK_GRANTED)
        *event = ADVISE_ACQUIRED;
    else if ((refused && attempts) || (result->outcome == LOCK_COUNTED && plan->verb == LOCK_COUNT_UP))
        *event = ADVISE_LOST;
    else if (refused && lock_verb_is(plan->verb, VERB_RELEASES))
        *event = ADVISE_REFUSED;
    else if ((plan->verb == LOCK_RELEASE && freed) || result->outcome == LOCK_RELEASED)
        *event = ADVISE_RELEASED;
    else if (plan->verb == LOCK_RELEASE && result->outcome == LOCK_FREE)
        *event = ADVISE_IN_VAIN;
    else if (plan->verb == LOCK_EXTEND && (result->outcome == LOCK_DONE || open))
        *event = ADVISE_EXTENDED;
    else if (plan->verb == LOCK_REWRITE && result->outcome == LOCK_DONE)
        *event = ADVISE_REWRITTEN;
    else if (plan->verb == LOCK_REPLACE && result->outcome == LOCK_DONE)
        *event = ADVISE_WRITTEN;
    else
        return false;
    return true;
}

static __attribute__((noinline)) void note_script(struct session *s, const struct lock_plan *plan,
                                                  const struct lock_result *result, unsigned advises) {
    struct advise_sight sight = {.key = plan->key,
                                 .rule = plan->rule,
                                 .queue = plan->verb == LOCK_QUEUE_PUSH || plan->verb == LOCK_QUEUE_READ,
                                 .renewed = result->leased,
                                 .kind = advises & ADVISES_KIND,
                                 .pttl_ms = result->leased ? PTTL_NONE : result->pttl_ms};
    bool known = plan->data_free && advisor_knows(s->worker->shared->advisor, plan->key.name, plan->key.len);
    if (!script_event(plan, result, advises, known, &sight.event))
        return;
    if (sight.event == ADVISE_ACQUIRED) {
        sight.value = result->value;
        sight.value_len = result->value_len;
    }
    if (sight.queue)
        sight.pttl_ms = PTTL_NONE;
    sight.renewed |= sight.queue;
    note_sight(s, &sight);
}

inline void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result,
                          unsigned advises) {
    if (plan->rule && result->outcome == LOCK_GRANTED)
        note_taken(s, &plan->key);
    if (plan->rule && plan->verb != LOCK_OPERATOR && sampled(s, plan->key.name, plan->key.len))
        note_script(s, plan, result, advises);
}

void advise_passed(struct session *s, const struct lock_plan *plan, unsigned advises, const char *reply, size_t len) {
    struct advise_sight to = {.key = plan->key, .rule = plan->rule, .kind = advises & ADVISES_KIND};
    struct resp_item item;
    if (reply && resp_item_read(&reply, reply + len, &item) && item.type == ':' &&
        advise_passes(advises, item.num, &to) && count_wanted(s, plan->key.name, plan->key.len) &&
        sampled(s, plan->key.name, plan->key.len))
        note_sight(s, &to);
}

void advise_sight(struct session *s, const struct lock_sight *from, const struct lock_rule *rule, unsigned advises,
                  bool scripted, bool watched) {
    struct advise_sight to = {.key = from->key,
                              .rule = rule,
                              .beside = rule && !from->rule,
                              .scripted = scripted,
                              .watched = watched,
                              .waits = from->count > from->by,
                              .kind = scripted ? ADVISE_STRING : advises & ADVISES_KIND,
                              .value = from->value,
                              .value_len = from->value_len,
                              .pttl_ms = from->pttl_ms};
    if (!advise_says(from, advises, &to))
        return;
    if (from->verb != LOCK_PASS || count_wanted(s, from->key.name, from->key.len))
        note_sight(s, &to);
    if (rule && to.event == ADVISE_ACQUIRED && !to.beside)
        note_taken(s, &to.key);
}

/* ---- writes under locks ---------------------------------------------------------------------- */

/* In each second the first REQUESTS_LOOKED requests are looked at, and among them the first WRITES_LOOKED writes, with
 * the first KEYS_LOOKED keys of each. So the cost does not grow with the traffic, and later requests cost nothing. */
enum { REQUESTS_LOOKED = 2000, WRITES_LOOKED = 200, KEYS_LOOKED = 4 };

void advise_tick(struct worker *w) {
    w->looks = advisor_looks(w->shared->advisor, worker_now(w)) ? REQUESTS_LOOKED : 0;
    w->locks->writes_seen = 0;
}

static enum lock_writer writer_of(void *arg, const struct lock_key *lock) {
    struct session *s = arg;
    return engine_writer(s->worker->shared->engine, &s->lock, lock, worker_now(s->worker));
}

static bool is_data(const struct lock_rules *rules, const char *key, size_t len) {
    for (size_t i = 0; i < lock_rules_count(rules); i++) {
        const struct lock_rule *rule = lock_rules_get(rules, i);
        if (glob_match(rule->pattern, rule->pattern_len, key, len))
            return rule->mode == LOCK_MODE_OFF;
    }
    return !lock_guard_is(key, len);
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
        if (!is_data(w->rules, key, len))
            continue;
        struct advise_write write = {.key = {session_db(s), key, len},
                                     .client = lock_client_hash(s->lock.client),
                                     .writer = writer_of,
                                     .arg = s};
        advisor_note_write(w->shared->advisor, &write, worker_now(w));
        w->locks->writes_seen++;
    }
    key_list_clear(&keys);
}
