/*
 * What other rooms need to send a script of the proxy's own: how its call begins, and the envelope that it answers.
 */
#pragma once

#include "proxy/session/locks/locks.h"

enum { LOCK_COMMAND_MAX = 24 }; /* a command's name, with its NUL */

/* Writes the name of the client's command in capitals, for incidents. */
static inline void lock_command_text(char out[LOCK_COMMAND_MAX], const char *name, size_t len) {
    size_t i;
    for (i = 0; i < len && i < LOCK_COMMAND_MAX - 1; i++)
        out[i] = name[i] >= 'a' && name[i] <= 'z' ? (char)(name[i] - 'a' + 'A') : name[i];
    out[i] = '\0';
}

/* Build a call in w->build, in this order: the script and the number of keys (`args` counts all of ARGV); each key with
 * its guard record; then what the script takes. The first call of a script in a transaction sends the source: a
 * NOSCRIPT would come too late there. */
void lock_build_script(struct worker *w, enum script_id id, struct lock_queue *queue, size_t keys, size_t args);
void lock_build_guard(struct worker *w, const char *key, size_t len);
/* Adds a lock key, and behind it the key of its guard record. */
void lock_build_key(struct worker *w, const char *key, size_t len);

/* Returns the token of the first call of the queue behind *at that may acquire the lock, and sets *at to that call.
 * NULL: there is none. *at is &queue->calls at first. */
const char *lock_queue_attempt(const struct lock_queue *queue, const struct list_node **at,
                               const struct lock_key *lock);

/* What a lock script has answered: {reply, outcome, fence, pttl, owner, flags}, or the short text that means the same
 * (common.lua). The answer of a list lock has three elements more: the fence and the owner of a lost lease, and the
 * node that a lease was granted for. A refusal by clobber.lua has one more: which lock refuses. All pointers point into
 * the bytes that were read. */
struct lock_envelope {
    const char *reply; /* the client's part; static where the answer was a short text, since the outcome then determines
                          the reply */
    size_t reply_len;
    uint32_t refuses; /* of a clobbering command: which of its calls was refused, from 0 */
    struct lock_result result;
};

/* envelope.c: rewrites the error that a script ended with into the error that the command would get from Redis. `out`
 * has the text if it had to be built. */
void lock_error_words(struct lock_envelope *e, char out[LOCK_ANSWER_MAX]);
