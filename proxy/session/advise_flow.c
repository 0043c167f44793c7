/* From commands on locks to the advisor's events. Decides nothing, and keeps nothing but a counter. */
#include "proxy/session/advise_flow.h"

#include <string.h>

#include "proxy/lock/advise.h"
#include "proxy/net/digest.h"

enum { COUNTERS_SAMPLED = 64 /* one INCR of so many, until its key is known for a lock's */ };

static __attribute__((noinline)) bool has_nx(const struct resp_request *r, const char *bytes) {
    for (size_t i = 3; i < r->argc; i++)
        if (request_arg_is(r, bytes, i, "nx"))
            return true;
    return false;
}

static inline bool sampled(struct session *s, const char *key, size_t len) {
    return advisor_samples(s->worker->shared->advisor, key, len, worker_now(s->worker));
}

/* Who asks for a list's head, or removes a node, may have a lock in it: what happens to it is looked at from now on. */
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

static bool may_be_lock(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                        const char *key, size_t len) {
    struct worker *w = s->worker;
    switch ((int)c->id) {
    case COMMAND_SETNX:
        return true;
    case COMMAND_SET:
        return has_nx(r, bytes);
    case COMMAND_INCR:
        return advisor_knows(w->shared->advisor, key, len) || ++w->counters_seen % COUNTERS_SAMPLED == 0;
    case COMMAND_LREM:
    case COMMAND_LRANGE:
    case COMMAND_LINDEX:
        return shows_queue(s, c, r, bytes, key, len);
    case COMMAND_DEL:
    case COMMAND_UNLINK:
    case COMMAND_GETDEL:
    case COMMAND_DECR:
    case COMMAND_EXPIRE:
    case COMMAND_PEXPIRE:
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

static enum advise_script script_learnt(struct session *s, const char *source, size_t len) {
    enum advise_script kind = len <= SOURCE_MAX ? advise_script_kind(source, len) : ADVISE_SCRIPT_OTHER;
    if (kind != ADVISE_SCRIPT_OTHER)
        advisor_script_note(s->worker->shared->advisor, digest_sha1_head(source, len), kind);
    return kind;
}

void advise_loaded(struct session *s, const struct resp_request *r, const char *bytes) {
    size_t len;
    if (r->argc != 3 || !request_arg_is(r, bytes, 1, "load"))
        return;
    const char *source = request_arg(r, bytes, 2, &len);
    script_learnt(s, source, len);
}

/* The first 16 digits of a SHA1. */
static uint64_t sha1_head(const char *text) {
    uint64_t sha1 = 0;
    for (size_t i = 0; i < 16; i++) {
        char c = text[i];
        sha1 = sha1 << 4 | (uint64_t)((c & 15) + (c > '9' ? 9 : 0));
    }
    return sha1;
}

enum advise_script advise_script_of(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes) {
    size_t len;
    const char *text = request_arg(r, bytes, 1, &len);
    if (c->id == COMMAND_EVAL)
        return script_learnt(s, text, len);
    if (c->id != COMMAND_EVALSHA || len != SHA1_HEX)
        return ADVISE_SCRIPT_OTHER;
    return advisor_script(s->worker->shared->advisor, sha1_head(text));
}

bool advise_wants_script(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                         uint32_t key_index) {
    size_t len;
    const char *key = request_arg(r, bytes, key_index, &len);
    if (c->id == COMMAND_EVALSHA)
        return advise_script_of(s, c, r, bytes) != ADVISE_SCRIPT_OTHER && sampled(s, key, len);
    return c->id == COMMAND_EVAL && sampled(s, key, len) && advise_script_of(s, c, r, bytes) != ADVISE_SCRIPT_OTHER;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void note_sight(struct session *s, struct advise_sight *sight) {
    sight->session_id = s->lock.id;
    sight->library = s->lib_name;
    sight->client = lock_client_name(s->lock.client, &sight->client_len);
    sight->client_hash = lock_client_hash(s->lock.client);
    advisor_note(s->worker->shared->advisor, sight, worker_now(s->worker));
}

static void note(struct session *s, enum advise_event event, const struct lock_key *key, const struct lock_rule *rule,
                 const char *value, size_t value_len, int64_t pttl_ms) {
    struct advise_sight sight = {
        .event = event, .key = *key, .rule = rule, .value = value, .value_len = value_len, .pttl_ms = pttl_ms};
    note_sight(s, &sight);
}

/* What happened to a list's queue. */
static void note_queue(struct session *s, enum advise_event event, const struct lock_sight *from) {
    struct advise_sight sight = {.event = event,
                                 .key = from->key,
                                 .rule = from->rule,
                                 .queue = true,
                                 .waits = from->count > from->by,
                                 .value = from->value,
                                 .value_len = from->value_len,
                                 .pttl_ms = -1};
    note_sight(s, &sight);
}

static __attribute__((noinline)) void note_script(struct session *s, const struct lock_plan *plan,
                                                  const struct lock_result *result) {
    bool refused = result->outcome == LOCK_HELD || result->outcome == LOCK_FOREIGN;
    bool freed = result->outcome == LOCK_RELEASED || result->outcome == LOCK_ADOPTED ||
                 (result->outcome == LOCK_OPEN && !plan->data_free);
    bool queue = plan->verb == LOCK_QUEUE_PUSH || plan->verb == LOCK_QUEUE_READ;
    bool releases = plan->verb == LOCK_RELEASE || plan->verb == LOCK_COUNT_DOWN || plan->verb == LOCK_QUEUE_REMOVE;
    if (result->outcome == LOCK_GRANTED && queue) {
        struct advise_sight sight = {.event = ADVISE_ACQUIRED,
                                     .key = plan->key,
                                     .rule = plan->rule,
                                     .queue = true,
                                     .value = result->value,
                                     .value_len = result->value_len,
                                     .pttl_ms = -1};
        note_sight(s, &sight);
    } else if (result->outcome == LOCK_GRANTED)
        note(s, ADVISE_ACQUIRED, &plan->key, plan->rule, result->value, result->value_len,
             result->leased ? -1 : result->pttl_ms);
    else if (refused && (plan->verb == LOCK_ACQUIRE || plan->verb == LOCK_QUEUE_PUSH))
        note(s, ADVISE_LOST, &plan->key, plan->rule, NULL, 0, -1);
    else if (refused && releases)
        note(s, ADVISE_REFUSED, &plan->key, plan->rule, NULL, 0, -1);
    else if ((plan->verb == LOCK_RELEASE && freed) || result->outcome == LOCK_RELEASED)
        note(s, ADVISE_RELEASED, &plan->key, plan->rule, NULL, 0, -1);
    else if (plan->verb == LOCK_RELEASE && result->outcome == LOCK_FREE)
        note(s, ADVISE_IN_VAIN, &plan->key, plan->rule, NULL, 0, -1);
    else if (plan->verb == LOCK_EXTEND && result->outcome == LOCK_DONE)
        note(s, ADVISE_EXTENDED, &plan->key, plan->rule, NULL, 0, result->leased ? -1 : result->pttl_ms);
}

inline void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result) {
    if (plan->rule && plan->verb != LOCK_OPERATOR && sampled(s, plan->key.name, plan->key.len))
        note_script(s, plan, result);
}

static void sight_done(struct session *s, const struct lock_sight *sight) {
    bool first = sight->count > 0 && sight->count <= sight->by;
    switch (sight->verb) {
    case LOCK_ACQUIRE:
        note(s, ADVISE_ACQUIRED, &sight->key, sight->rule, sight->value, sight->value_len, sight->pttl_ms);
        break;
    case LOCK_COUNT_UP:
        note(s, first ? ADVISE_ACQUIRED : ADVISE_LOST, &sight->key, sight->rule, NULL, 0, -1);
        break;
    case LOCK_RELEASE:
        if (sight->queue == QUEUE_POP)
            note_queue(s, ADVISE_TAKEN, sight);
        else
            note(s, ADVISE_RELEASED, &sight->key, sight->rule, NULL, 0, -1);
        break;
    case LOCK_QUEUE_PUSH:
        note_queue(s, ADVISE_PUSHED, sight);
        break;
    case LOCK_QUEUE_READ:
        if (sight->queue == QUEUE_HEAD)
            note_queue(s, ADVISE_HEAD, sight);
        break;
    case LOCK_QUEUE_REMOVE:
        note_queue(s, ADVISE_TAKEN, sight);
        break;
    case LOCK_QUEUE_SET:
        if (sight->queue == QUEUE_SET && sight->count == 0)
            note_queue(s, ADVISE_RENAMED, sight);
        break;
    case LOCK_COUNT_DOWN:
        if (sight->count <= 0)
            note(s, ADVISE_RELEASED, &sight->key, sight->rule, NULL, 0, -1);
        break;
    case LOCK_EXTEND:
        if (sight->pttl_ms != -3)
            note(s, ADVISE_EXTENDED, &sight->key, sight->rule, NULL, 0, sight->pttl_ms);
        break;
    case LOCK_REPLACE:
    case LOCK_REWRITE:
    case LOCK_SWAP:
    case LOCK_READ:
    case LOCK_PASS:
    case LOCK_CLOBBER:
    case LOCK_SCRIPT:
    case LOCK_INSPECT:
    case LOCK_OPERATOR:
        break;
    }
}

void advise_sight(struct session *s, const struct lock_sight *sight) {
    if (sight->effect == EFFECT_DONE)
        sight_done(s, sight);
    else if (sight->effect == EFFECT_LOST)
        note(s, ADVISE_LOST, &sight->key, sight->rule, NULL, 0, -1);
    else if (sight->effect == EFFECT_ABSENT && sight->verb == LOCK_RELEASE && sight->queue == QUEUE_NONE)
        note(s, ADVISE_IN_VAIN, &sight->key, sight->rule, NULL, 0, -1);
}
