/*
 * What one request is, found once: its command, its keys, whose locks they are, and the node that it belongs to.
 *
 *      request ── class_find ──> struct request_class ──> dispatch ──> the rooms that have a part in it
 *
 * Rooms are handed the value, and look for keys, slots and rules in it instead of in the arguments. A request on one
 * key that no rule matches, which most are, never has one: dispatch forwards it before.
 */
#ifndef LOCKKEEPER_SESSION_CORE_CLASS_H
#define LOCKKEEPER_SESSION_CORE_CLASS_H

#include "proxy/session/core/session.h"

/* A longer key that matches an enforced rule is refused: a lock's name is kept, sent and shown in many places. */
enum { LOCK_NAME_MAX = 32 * 1024 };

/* The rule in force for a key (enforce), or NULL: not a lock key, or not to be enforced. */
const struct lock_rule *lock_rule_for(struct session *s, const char *key, size_t len);
/* The rule of a key that is enforced or audited; else its fence's, which is no lock rule (rule->fence); or NULL. */
const struct lock_rule *lock_rule_watched(struct session *s, const char *key, size_t len);

struct request_class {
    const struct command *command;
    const struct resp_request *request; /* borrowed, and so are its bytes */
    const char *bytes;
    size_t key_count;               /* 0: it has no keys, or Redis has to say what is wrong with them */
    const uint32_t *keys;           /* as argument indexes */
    const struct lock_rule **rules; /* see class_rule */
    bool enforced, audited;         /* the rule of some key is enforced, or audits */
    bool fenced;                    /* some key is data of a fence: locks/fence.c */
    bool writes_guard;              /* a guard record is among the keys, and the command no mere reading */
    int slot;                       /* of all keys, 0 on a standalone; SLOT_NONE, SLOT_SEVERAL */

    /* Private: where keys and rules point, unless they are many. */
    struct key_list list;
    const struct lock_rule *few_rules[KEYS_ON_STACK];
    uint32_t one_key;
};

/* Fills *k with a request as one that has no keys. */
void class_begin(struct request_class *k, const struct command *c, const struct resp_request *r, const char *bytes);
/* Fills *k. Every find is followed by a clear; the request and its bytes outlive the value. */
void class_find(struct request_class *k, struct session *s, const struct command *c, const struct resp_request *r,
                const char *bytes);
/* Fills *k once more with a request whose slot is known, and of whose keys some are data of fences and none is a lock:
 * their rules, which count how often they are asked for, are not looked for. */
void class_find_again(struct request_class *k, const struct command *c, const struct resp_request *r, const char *bytes,
                      int slot);
/* Fills *k where argument `key` is known to be the only key (or the only one that matters), and `rule` its rule. */
void class_of_key(struct request_class *k, struct session *s, const struct command *c, const struct resp_request *r,
                  const char *bytes, uint32_t key, const struct lock_rule *rule);
/* Leaves no key but argument `key`, whose rule this is, of a request whose slot stays. */
void class_narrow(struct request_class *k, uint32_t key, const struct lock_rule *rule);
void class_clear(struct request_class *k);

/* Key i: *len bytes, borrowed. */
static inline const char *class_key(const struct request_class *k, size_t i, size_t *len) {
    return request_arg(k->request, k->bytes, k->keys[i], len);
}
/* The rule of key i as lock_rule_watched has it, valid while the request is dispatched. */
static inline const struct lock_rule *class_rule(const struct request_class *k, size_t i) {
    return k->rules ? k->rules[i] : NULL;
}
/* The rule of key i if it is enforced, or NULL. */
static inline const struct lock_rule *class_enforced(const struct request_class *k, size_t i) {
    const struct lock_rule *rule = class_rule(k, i);
    return rule && rule->mode == LOCK_MODE_ENFORCE ? rule : NULL;
}
/* How many keys have a rule that is enforced. */
size_t class_locks(const struct request_class *k);

#endif
