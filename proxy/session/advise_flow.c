/* From commands on locks to the advisor's events. Decides nothing, and keeps nothing but a counter. */
#include "proxy/session/advise_flow.h"

#include <string.h>

#include "proxy/lock/advise.h"

enum { COUNTERS_SAMPLED = 64 /* one INCR of so many, until its key is known for a lock's */ };

static __attribute__((noinline)) bool has_nx(const struct resp_request *r, const char *bytes) {
    for (size_t i = 3; i < r->argc; i++)
        if (request_arg_is(r, bytes, i, "nx"))
            return true;
    return false;
}

static bool sampled(struct session *s, const char *key, size_t len) {
    return advisor_samples(s->worker->shared->advisor, key, len, worker_now(s->worker));
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
    case COMMAND_DEL:
    case COMMAND_UNLINK:
    case COMMAND_GETDEL:
    case COMMAND_DECR:
    case COMMAND_EXPIRE:
    case COMMAND_PEXPIRE:
        return advisor_knows(w->shared->advisor, key, len);
    default:
        return false;
    }
}

bool advise_wants(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  const char *key, size_t len) {
    return may_be_lock(s, c, r, bytes, key, len) && sampled(s, key, len);
}

static void note(struct session *s, enum advise_event event, const struct lock_key *key, const struct lock_rule *rule,
                 const char *value, size_t value_len, int64_t pttl_ms) {
    struct advise_sight sight = {.event = event,
                                 .key = *key,
                                 .rule = rule,
                                 .session_id = s->lock.id,
                                 .library = s->lib_name,
                                 .value = value,
                                 .value_len = value_len,
                                 .pttl_ms = pttl_ms};
    sight.client = lock_client_name(s->lock.client, &sight.client_len);
    sight.client_hash = lock_client_hash(s->lock.client);
    advisor_note(s->worker->shared->advisor, &sight, worker_now(s->worker));
}

void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result) {
    bool refused = result->outcome == LOCK_HELD || result->outcome == LOCK_FOREIGN;
    bool freed = result->outcome == LOCK_RELEASED || result->outcome == LOCK_ADOPTED || result->outcome == LOCK_OPEN;
    bool releases = plan->verb == LOCK_RELEASE || plan->verb == LOCK_COUNT_DOWN;
    if (!plan->rule || plan->verb == LOCK_OPERATOR || !sampled(s, plan->key.name, plan->key.len))
        return;
    if (result->outcome == LOCK_GRANTED)
        note(s, ADVISE_ACQUIRED, &plan->key, plan->rule, result->value, result->value_len,
             result->leased ? -1 : result->pttl_ms);
    else if (refused && plan->verb == LOCK_ACQUIRE)
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
        note(s, ADVISE_RELEASED, &sight->key, sight->rule, NULL, 0, -1);
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
    case LOCK_SWAP:
    case LOCK_READ:
    case LOCK_CLOBBER:
    case LOCK_SCRIPT:
    case LOCK_QUEUE_PUSH:
    case LOCK_QUEUE_READ:
    case LOCK_QUEUE_REMOVE:
    case LOCK_QUEUE_SET:
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
    else if (sight->effect == EFFECT_ABSENT && sight->verb == LOCK_RELEASE)
        note(s, ADVISE_IN_VAIN, &sight->key, sight->rule, NULL, 0, -1);
}
