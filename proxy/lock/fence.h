/*
 * Fences: data that is written under a lock. A session whose lease is over cannot write it any more once another
 * session has acquired the lock.
 *
 *      fence stock:* by lock:stock:* mode audit
 *            PATTERN    LOCK
 *
 * A fence is in the set of rules (rule.h) beside the lock rules, as a rule about keys that are no locks. This file
 * reads the directive, and finds the lock of a key. It knows nothing of sessions or leases.
 */
#pragma once

#include "proxy/lock/rule.h"

enum lock_unlocked { LOCK_UNLOCKED_PASS, LOCK_UNLOCKED_REFUSE };

enum { LOCK_FENCE_STARS = 16 };

struct lock_fence {
    char *lock; /* the lock's name; its n-th star takes the text of the pattern's n-th star */
    enum lock_mode mode;
    enum lock_unlocked unlocked;  /* writes by sessions that have never held the lock */
    atomic_uint_fast64_t late;    /* writes by sessions that had lost the lock, in any mode */
    atomic_uint_fast64_t refused; /* refused writes */
    atomic_bool unnamed;          /* a session whose client has no name has written under the lock */
};

/* Reads a fence's words, PATTERN by LOCK [OPTION VALUE] .... NULL: `error`, which has room for error_size bytes, says
 * what is wrong. */
struct lock_fence *lock_fence_new(const char *const *words, size_t count, char *error, size_t error_size);
void lock_fence_free(struct lock_fence *fence);

/* Writes the name of a key's lock, of which at most `size` bytes are written. Returns its length; 0: there is none.
 * lock_fence_name needs no fence: `lock` gets in place of its n-th star what the n-th star of `pattern` matches. */
size_t lock_fence_name(const char *pattern, size_t pattern_len, const char *lock, const char *key, size_t len,
                       char *out, size_t size);
/* How many stars a pattern or a lock's name has. A star in a class (`classes`: they are none in a name) does not count.
 */
int lock_fence_stars(const char *p, bool classes);
size_t lock_fence_lock(const struct lock_rule *rule, const char *key, size_t len, char *out, size_t size);

/* Writes the fence as its directive, for PROXY RULES and CONFIG. Returns the whole length, also where `size` cuts
 * the text, as snprintf does. */
size_t lock_fence_text(const struct lock_rule *rule, char *out, size_t size);

/* Writes a warning for people if clients without names count as one client, because the rule of the fence's lock has
 * owner auto. Returns the length; 0: there is nothing to warn of, or the fence is not enforced. */
size_t lock_fence_blur(const struct lock_rules *rules, const struct lock_rule *fence, char *out, size_t size);

/* Checks the fences of a set against its lock rules: each fence's lock must match a lock rule and must not itself be
 * fenced data. False: `error` says what is wrong with the first offending fence. */
bool lock_fences_check(const struct lock_rules *rules, char *error, size_t error_size);
