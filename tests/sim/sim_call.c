/*
 * Makes a script's arguments from a plan, and a result from its envelope.
 */
#include "tests/sim/call.h"

#include <string.h>

struct model_args call_args(const struct lock_plan *plan, const struct model_command *command, const char *identity,
                            const char *proxy, int64_t lease_ms, char seen[LOCK_SEEN_MAX + 1]) {
    bool other = plan->verb == LOCK_OPERATOR || plan->right == RIGHT_OLDER || plan->right == RIGHT_FENCE;
    struct model_args a = {
        .attempt = plan->attempt_token,
        .claim = plan->claim_token,
        .identity = identity,
        .proxy = proxy,
        .right = lock_right_text(plan->right),
        .lease_ms = other ? lock_plan_lease_ms(plan) : lease_ms,
        .read_fence = plan->read_fence,
        .claim_fence = plan->claim_fence,
        .data_free = plan->data_free && !model_may_pass(command) && !model_has_fields(command),
        .command = *command,
    };
    if (plan->seen_known) {
        memcpy(seen, lock_plan_seen(plan), plan->seen_len);
        seen[plan->seen_len] = '\0';
        a.seen = seen;
    }
    return a;
}

bool call_writes(enum lock_verb verb) {
    return verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || verb == LOCK_REWRITE;
}

static const char *result_value(enum lock_verb verb, const struct model_command *command,
                                const struct model_envelope *e) {
    bool script_holds = verb == LOCK_SCRIPT && e->outcome == LOCK_GRANTED;
    if (verb == LOCK_QUEUE_PUSH || verb == LOCK_QUEUE_REMOVE || verb == LOCK_QUEUE_SET)
        return command->value;
    if (verb == LOCK_QUEUE_READ && e->granted[0])
        return e->granted;
    if (call_writes(verb) || script_holds || verb == LOCK_SWAP)
        return command->value;
    if (verb == LOCK_READ && e->reply.kind == REPLY_TEXT)
        return e->reply.text;
    return NULL;
}

/* The value that the answer to a refused attempt shows. */
static const char *result_shown(enum lock_verb verb, const struct model_envelope *e) {
    bool is_refused = e->outcome == LOCK_HELD || e->outcome == LOCK_FOREIGN;
    bool answers = verb == LOCK_SWAP || verb == LOCK_ACQUIRE;
    return is_refused && answers && e->reply.kind == REPLY_TEXT ? e->reply.text : NULL;
}

struct lock_result call_result(enum lock_verb verb, const struct model_command *command,
                               const struct model_envelope *e) {
    const char *value = result_value(verb, command, e), *shown = result_shown(verb, e);
    return (struct lock_result){.outcome = e->outcome,
                                .fence = e->fence,
                                .pttl_ms = e->pttl_ms,
                                .holder = e->owner,
                                .holder_len = strlen(e->owner),
                                .value = value,
                                .value_len = value ? strlen(value) : 0,
                                .shown = shown,
                                .shown_len = shown ? strlen(shown) : 0,
                                .lost = e->lost,
                                .lost_owner = "",
                                .leased = e->leased,
                                .same = e->same,
                                .elsewhere = e->elsewhere,
                                .short_record = e->short_record,
                                .waits_ms = e->waits_ms,
                                .pooled = e->pooled,
                                .shifted_ms = e->shifted_ms,
                                .suspects = (uint8_t)e->suspects};
}
