/*
 * Lock rules: which keys are locks, and how the proxy treats them. The first matching rule applies. A set of rules is
 * immutable once built, reference-counted, and replaced as a whole by a reload.
 *
 * A fence is a rule about data that is written under a lock. A session whose lease is over cannot write the data any
 * more once another session has acquired the lock.
 *
 *      fence stock:* by lock:stock:* mode audit
 *            PATTERN    LOCK
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text;

enum lock_mode { LOCK_MODE_ENFORCE, LOCK_MODE_AUDIT, LOCK_MODE_OFF };
enum lock_owner { LOCK_OWNER_AUTO, LOCK_OWNER_CONNECTION, LOCK_OWNER_CLIENT, LOCK_OWNER_ANY };
enum lock_renew { LOCK_RENEW_AUTO, LOCK_RENEW_ALWAYS, LOCK_RENEW_NEVER };
enum lock_on_disconnect { LOCK_DISCONNECT_KEEP, LOCK_DISCONNECT_RELEASE };
enum lock_quorum { LOCK_QUORUM_NO, LOCK_QUORUM_YES };
enum lock_on_loss { LOCK_LOSS_TELL, LOCK_LOSS_CLOSE, LOCK_LOSS_ERROR };
/* What counts as a lock under a rule, as bits. A command of another kind passes unchanged, unless it would remove or
 * change another session's live lease. */
enum lock_kind {
    LOCK_KIND_STRING = 1,
    LOCK_KIND_LIST = 2,
    LOCK_KIND_HASH = 4,
    LOCK_KIND_COUNTER = 8,
    LOCK_KIND_ANY = 15,
    LOCK_KIND_SEMAPHORE = 16 /* stands alone: lock_rule.permits */
};
/* What becomes of permits whose taker has left: rules of kind semaphore. */
enum lock_permits { LOCK_PERMITS_NONE, LOCK_PERMITS_AUDITED, LOCK_PERMITS_RETURNED };

enum { LOCK_MEMORY_AUTO = -1 };

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

struct lock_rule {
    struct lock_rules *set; /* the set it belongs to; a reference to the set keeps the rule alive */
    char *pattern;          /* a Redis glob */
    size_t pattern_len;
    uint64_t hash; /* of the pattern; not keyed: it is the operator's */
    enum lock_mode mode;
    enum lock_owner owner;
    unsigned kinds;          /* of enum lock_kind */
    int64_t claim_memory_ms; /* LOCK_MEMORY_AUTO: twice the lease, 1 s to 60 s */
    int64_t lease_ms;        /* 0: the proxy gives no lease */
    enum lock_renew renew;
    int64_t max_hold_ms; /* 0: renewed for as long as the owner is connected */
    int64_t handover_ms; /* the last expiry that a stopping proxy gives to what it renews; 0: none */
    enum lock_on_disconnect on_disconnect;
    enum lock_on_loss on_loss; /* how the holder hears that its lease is over */
    int64_t lock_delay_ms;     /* a lease that ended without its release keeps others out for so long; 0: it does not */
    int64_t one_shot_ms;       /* a one-shot client's lock is renewed for so long; 0: it is not */
    int64_t wait_ms;           /* an attempt that a live lease refuses waits for so long; 0: it does not wait */
    int64_t replicas;          /* so many must confirm an acquisition; 0: none is asked */
    int64_t replicas_ms;
    enum lock_quorum quorum; /* yes: a majority of the witnesses confirms acquisitions and extensions */
    bool confirms;           /* replicas or witnesses confirm acquisitions: one test for both */
    bool unusual;            /* `wait` or `quorum`: the same */
    atomic_bool fenced;      /* a fence, of this set or a later one, may name the rule's locks: lock_rules_fenced_by */
    atomic_bool fence_enforced; /* and one of those fences is enforced */
    struct lock_fence *fence;   /* not NULL: its keys are no locks (mode off) but fenced data */
    enum lock_permits permits;  /* not NONE: its keys are no locks (mode off) but semaphores; lease_ms 0: no lease */
    atomic_uint_fast64_t hits;
};

/* For how many ms witnesses are to remember a lease that has so many left: longer than Redis keeps it and its holder
 * believes in it, although clocks differ a little in their rates, and answers take up to the timeout. */
static inline int64_t lock_promise_ms(int64_t lease_ms, int64_t timeout_ms) {
    return lease_ms + lease_ms / 16 + 2 * timeout_ms;
}
/* The longest lease whose promise fits into the quarantine; 0 or less: none. */
static inline int64_t lock_promise_longest_ms(int64_t quarantine_ms, int64_t timeout_ms) {
    return (quarantine_ms - 2 * timeout_ms) / 17 * 16;
}

struct lock_rules;

/* Makes an empty set with one reference. */
struct lock_rules *lock_rules_new(void);
/* Takes a reference, and gives one back; NULL is allowed. */
struct lock_rules *lock_rules_ref(struct lock_rules *rules);
void lock_rules_unref(struct lock_rules *rules);

/* Adds a rule from its words: PATTERN [OPTION VALUE] .... Returns NULL, or what is wrong (static or in `error`, which
 * has room for error_size bytes): option, value and what was expected. */
const char *lock_rules_add(struct lock_rules *rules, const char *const *words, size_t count, char *error,
                           size_t error_size);

/* Sets `fenced` and `fence_enforced` of each lock rule of a set: whether a fence of `fences` may name its locks.
 * `fences` is the same set or the set that replaces it. Other threads may be using the rules. */
void lock_rules_fenced_by(struct lock_rules *rules, const struct lock_rules *fences);

size_t lock_rules_count(const struct lock_rules *rules);
const struct lock_rule *lock_rules_get(const struct lock_rules *rules, size_t i);

/* The first rule that matches, or NULL; counts the hit. A rule with mode off matches too: it exempts. */
const struct lock_rule *lock_rules_match(const struct lock_rules *rules, const char *key, size_t len);

/* Adds a fence in the same way: PATTERN by LOCK [OPTION VALUE] .... The two functions below list a set's fences. */
const char *lock_rules_add_fence(struct lock_rules *rules, const char *const *words, size_t count, char *error,
                                 size_t error_size);
size_t lock_rules_fence_count(const struct lock_rules *rules);
const struct lock_rule *lock_rules_fence(const struct lock_rules *rules, size_t i);

/* The lock rule as lock_rules_match finds it. If there is none, or its mode is off and it is no rule of semaphores, the
 * first matching fence, unless its mode is off. */
const struct lock_rule *lock_rules_watch(const struct lock_rules *rules, const char *key, size_t len);

/* The rule that lock_rules_match would find, and the fence that lock_rules_watch would, or NULL; count no hit. */
const struct lock_rule *lock_rules_rule_of(const struct lock_rules *rules, const char *key, size_t len);
const struct lock_rule *lock_rules_fence_of(const struct lock_rules *rules, const char *key, size_t len);

/* Writes what an operator may not have meant with rule i (or fence i): no key comes to it, a bracket is open, or its
 * times contradict each other. Returns the length of the text; 0: there is no doubt. */
size_t lock_rule_doubt(const struct lock_rules *rules, size_t i, bool fence, char *out, size_t size);

/* Writes a word for an error message, on one line, cut to `size`. */
void lock_rule_word_show(const char *word, char *out, size_t size);

/* Appends a pattern as a word of the configuration, quoted if necessary. */
void lock_rule_word(struct text *out, const char *pattern);

/* Appends a rule or a fence as its directive: "lock:* mode enforce owner auto ...". lock_rule_text writes it instead,
 * and returns the whole length, also where `size` cuts the text, as snprintf does. */
void lock_rule_append(struct text *out, const struct lock_rule *rule);
size_t lock_rule_text(const struct lock_rule *rule, char *out, size_t size);

/* Writes the name of a key's lock, of which at most `size` bytes are written. Returns its length; 0: there is none.
 * lock_fence_name needs no fence: `lock` gets in place of its n-th star what the n-th star of `pattern` matches. */
size_t lock_fence_name(const char *pattern, size_t pattern_len, const char *lock, const char *key, size_t len,
                       char *out, size_t size);
/* How many stars a pattern or a lock's name has. A star in a class (`classes`: a lock's name has none) does not count.
 */
int lock_fence_stars(const char *p, bool classes);
size_t lock_fence_lock(const struct lock_rule *rule, const char *key, size_t len, char *out, size_t size);

/* Writes a warning for people if clients without names count as one client, because the rule of the fence's lock has
 * owner auto. Returns its length; 0: there is nothing to warn of, or the fence is not enforced. */
size_t lock_fence_blur(const struct lock_rules *rules, const struct lock_rule *fence, char *out, size_t size);

/* Checks the fences of a set against its lock rules: each fence's lock must match a lock rule, and must not itself be
 * fenced data. False: `error` says what is wrong with the first offending fence. */
bool lock_fences_check(const struct lock_rules *rules, char *error, size_t error_size);

/* Hashes a rule's pattern, for lock_rule.hash. The hash is the same in every process. */
uint64_t lock_rule_hash(const char *pattern, size_t len);

/* Writes a guard record's key, lockkeeper:{TAG}:KEY, TAG hashing to KEY's slot: at most LOCK_GUARD_EXTRA + len bytes.
 * Returns the length. */
enum { LOCK_GUARD_EXTRA = 24 };
size_t lock_guard_key(const char *key, size_t len, char *out);
/* The length of a guard record's key, if KEY's slot is known. */
size_t lock_guard_len(size_t len, uint16_t slot);
/* Writes a guard record's key without KEY at its end. A few bytes of `out` behind it may be overwritten. Returns the
 * length. */
size_t lock_guard_head_write(uint16_t slot, char *out);
/* Whether a key is a guard record's name. */
bool lock_guard_is(const char *key, size_t len);
