/*
 * Fences: data that is written under a lock, and by nobody whose lease on it is over once somebody else has had it.
 *
 *      fence stock:* by lock:stock:* mode audit
 *            PATTERN    LOCK
 *
 * A fence is in the set of rules (rule.h) beside the lock rules, as a rule of keys that are no locks; this file knows
 * the directive's words, and which lock a key's is. Knows nothing of sessions or leases.
 */
#ifndef LOCKKEEPER_LOCK_FENCE_H
#define LOCKKEEPER_LOCK_FENCE_H

#include "proxy/lock/rule.h"

enum lock_unlocked { LOCK_UNLOCKED_PASS, LOCK_UNLOCKED_REFUSE };

enum { LOCK_FENCE_STARS = 16 };

struct lock_fence {
    char *lock; /* the lock's name, a star for what the same star of the pattern stands for */
    enum lock_mode mode;
    enum lock_unlocked unlocked;  /* what is written by sessions that have never held the lock */
    atomic_uint_fast64_t late;    /* writes by who had lost the lock, in any mode */
    atomic_uint_fast64_t refused; /* and of all writes those that were refused */
    atomic_bool unnamed;          /* a session whose client has no name has written under the lock */
};

/* Reads a fence's words, PATTERN by LOCK [OPTION VALUE] .... NULL: `error`, which has room for error_size bytes, says
 * what is wrong. */
struct lock_fence *lock_fence_new(const char *const *words, size_t count, char *error, size_t error_size);
void lock_fence_free(struct lock_fence *fence);

/* Writes the name of a key's lock. Returns its length, of which at most `size` bytes are written; 0: there is none. */
size_t lock_fence_lock(const struct lock_rule *rule, const char *key, size_t len, char *out, size_t size);

/* Writes the fence as its directive, for PROXY RULES and CONFIG. Returns the length. */
size_t lock_fence_text(const struct lock_rule *rule, char *out, size_t size);

/* Writes what a fence cannot tell apart, for people: its lock's rule has owner auto, and so clients without names are
 * one client. Returns the length; 0: there is nothing to say, as of a fence that is not enforced. */
size_t lock_fence_blur(const struct lock_rules *rules, const struct lock_rule *fence, char *out, size_t size);

/* Holds the fences of a whole set against its lock rules: each lock has to be one, and no key of a fence. False with
 * what is wrong with the first that is not so in `error`. */
bool lock_fences_check(const struct lock_rules *rules, char *error, size_t error_size);

#endif
