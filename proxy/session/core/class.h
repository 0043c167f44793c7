/*
 * The class of a request, determined once for all rooms: its command, its keys, the rules that match them, and its
 * slot. Most requests have one key that no rule matches: dispatch forwards these without a class.
 */
#pragma once

#include "parser/invariant.h"
#include "proxy/session/core/session.h"

/* A longer key that matches an enforced rule is refused: a lock's name is kept, sent and shown in many places. */
enum { LOCK_NAME_MAX = 32 * 1024 };

/* The rule in force for a key, if its mode is enforce; else NULL. */
const struct lock_rule *lock_rule_for(struct session *s, const char *key, size_t len);
/* The rule of a key if it is enforced or audited, or of semaphores (rule->permits); else the fence that matches it,
 * which is no lock rule (rule->fence); else NULL. */
const struct lock_rule *lock_rule_watched(struct session *s, const char *key, size_t len);

struct request_class {
    const struct command *command;
    const struct resp_request *request; /* borrowed, with its bytes */
    const char *bytes;
    size_t key_count;               /* 0: it has no keys, or they are malformed and Redis reports the error */
    const uint32_t *keys;           /* as argument indexes */
    const struct lock_rule **rules; /* see class_rule */
    bool enforced, audited;         /* the rule of some key is enforced; is audited */
    bool fenced;                    /* some key is the data of a fence: fences/fenced_command.c */
    bool semaphores;                /* some key is a semaphore, and no lock: session/semaphores/ */
    bool writes_guard;              /* some key is a guard record, and the command may write */
    bool replicas;                  /* a read that replicas may answer: commands/read_from.c */
    int slot;                       /* the slot of all keys, 0 on a standalone; or SLOT_NONE, SLOT_SEVERAL */

    /* Private: the storage of keys and rules, if there are few. */
    struct key_list list;
    const struct lock_rule *few_rules[KEYS_ON_STACK];
    uint32_t one_key;
};

/* Fills *k as for a request without keys. */
void class_begin(struct request_class *k, const struct command *c, const struct resp_request *r, const char *bytes);
/* Fills *k. Each class_find must be followed by class_clear. The request and its bytes must outlive the class. */
void class_find(struct request_class *k, struct session *s, const struct command *c, const struct resp_request *r,
                const char *bytes);
/* Fills *k again for a request whose slot is known, with data of fences and no locks among its keys. Rules count their
 * lookups, so none is looked up again. */
void class_find_again(struct request_class *k, const struct command *c, const struct resp_request *r, const char *bytes,
                      int slot);
/* Fills *k, behind class_begin, if argument `key` is the only key that matters, and `rule` is its rule. */
void class_of_key(struct request_class *k, struct session *s, uint32_t key, const struct lock_rule *rule);
/* Removes all keys except argument `key`, whose rule this is; the slot stays. */
void class_narrow(struct request_class *k, uint32_t key, const struct lock_rule *rule);
void class_clear(struct request_class *k);

/* Key i: *len bytes, borrowed. */
static inline const char *class_key(const struct request_class *k, size_t i, size_t *len) {
    invariant_debug(i < k->key_count, "key %zu of %zu", i, k->key_count);
    return request_arg(k->request, k->bytes, k->keys[i], len);
}
/* The rule of key i, as from lock_rule_watched; valid while the request is dispatched. */
static inline const struct lock_rule *class_rule(const struct request_class *k, size_t i) {
    invariant_debug(i < k->key_count, "key %zu of %zu", i, k->key_count);
    return k->rules ? k->rules[i] : NULL;
}
/* The rule of key i if it is enforced, or NULL. */
static inline const struct lock_rule *class_enforced(const struct request_class *k, size_t i) {
    const struct lock_rule *rule = class_rule(k, i);
    return rule && rule->mode == LOCK_MODE_ENFORCE ? rule : NULL;
}
/* How many keys have a rule that is enforced. */
size_t class_locks(const struct request_class *k);

/* Argument i: *len bytes, borrowed. */
static inline const char *class_arg(const struct request_class *k, size_t i, size_t *len) {
    return request_arg(k->request, k->bytes, i, len);
}
/* Whether argument i is this word, in any case. `word` is lower case. */
static inline bool class_arg_is(const struct request_class *k, size_t i, const char *word) {
    return request_arg_is(k->request, k->bytes, i, word);
}

/* request_arg_choice of argument i. */
static inline int class_arg_choice(const struct request_class *k, size_t i, const char *const *words) {
    return request_arg_choice(k->request, k->bytes, i, words);
}

/* Forwards the request unchanged to the node of `slot` (SLOT_NONE: any), and returns DISPATCHED. */
static inline enum dispatch_result class_pass(struct session *s, const struct request_class *k, int slot) {
    return session_forward(s, k->command, k->request, k->bytes, slot);
}
/* Forwards the request to the node of its keys; `done` takes the reply, and the request owns `owner` until then. */
static inline enum dispatch_result class_forward(struct session *s, const struct request_class *k,
                                                 struct request_owner *owner, call_done_fn done) {
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, k->command);
    request_own(request, owner, &request_owner_silent);
    request->call.done = done;
    call_submit(&request->call, k->slot, k->bytes, k->request->len);
    return DISPATCHED;
}
