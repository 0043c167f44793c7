/*
 * A lock call is sent, and its answer is taken: lock_call.c. It may join another session's call (join.c), or have to be
 * confirmed by replicas (confirm.c).
 */
#ifndef LOCKKEEPER_SESSION_LOCKS_SENDING_H
#define LOCKKEEPER_SESSION_LOCKS_SENDING_H

#include "proxy/session/locks/lock_call.h"

/* Sends what is in w->build as a script call. The call may be repeated, unless the script is SCRIPT_PASS. */
void lock_submit(struct call *call, struct lock_call *l, enum script_id id);
/* Sends the call's next script, or one that takes the place of what was sent. The client may have gone meanwhile. */
void lock_submit_next(struct call *c, struct lock_call *l, enum script_id id);
/* Does the same as lock_submit for a caller that takes the script's answer itself in `done`, and then ends the call
 * with lock_answered. */
void lock_submit_for(struct call *call, struct lock_call *l, enum script_id id, call_done_fn done);
void lock_answered(struct call *c, const struct call_end *end);
/* Whether a script for the usual states has answered that it has done nothing. lock_submit_whole then sends the script
 * for all states, whose answer `done` takes. */
static inline bool lock_was_unusual(const struct call_end *end) {
    return !end->error && end->len == 4 && end->reply[0] == ':';
}
void lock_submit_whole(struct call *c, call_done_fn done);
/* Ends an attempt whose answer is known, and those that have joined it. */
void lock_attempt_ended(struct call *c, const struct call_end *end);

/* ---- short_form.c: locks whose guard records have the short form ---------------------------- */

/* Whether an attempt may be sent without a script. lock_acquire_short then sends it. */
bool lock_short_fits(struct worker *w, const struct lock_call *l);
void lock_acquire_short(struct call *call, struct lock_call *l);
/* Whether a GET asks for the lock and its guard record without a script. lock_read then sends it. */
bool lock_read_fits(const struct worker *w, const struct lock_call *l, const struct lock_command *lc);
void lock_read(struct call *call, struct lock_call *l);
/* Whether a release may be sent as free.lua, by its plan. */
bool lock_free_fits(const struct lock_call *l);

/* If the rule asks for a quorum, and the script has acquired or extended, asks the witnesses and ends the call later
 * (quorum.c). Returns false if there is nothing to ask. */
bool lock_witnessed(struct call *c, struct lock_call *l, const struct call_end *end);
/* Asks the witnesses about a lock under quorum, of which the step behind an application's script has answered `end`.
 * `done` hears of it, perhaps at once. Its `error` NULL: confirmed, and the lock call is still to be finished. Else
 * what the script has acquired is undone, and the lock call is gone. Returns false if there is nothing to ask. */
typedef void (*lock_script_done_fn)(void *arg, const char *error);
enum { LOCK_SCRIPT_LOCKS_MAX = 100 /* a script on more locks goes without a transaction */ };
bool lock_witness_script(struct worker *w, struct lock_call *l, const struct call_end *end, lock_script_done_fn done,
                         void *arg);
/* Whether a command would make a lock under quorum last longer than witnesses remember it. `error` (of `size`) says so.
 */
bool lock_quorum_refuses(const struct session *s, const struct command *c, const struct resp_request *r,
                         const char *bytes, char *error, size_t size);

/* If the rule asks for replicas and the script has acquired, waits for the replicas and ends the call later
 * (confirm.c). Returns false if there is nothing to wait for. */
bool lock_confirm(struct call *c, struct lock_call *l, const struct call_end *end);

/* ---- join.c: one script call for the attempts of many sessions ------------------------------ */

/* Has the attempt join one on the same key that has not been sent yet, and returns true. Both then get the same answer.
 * False: there is none to join. */
bool lock_join(struct call *call, struct lock_call *l);
/* lock_probe notes that an attempt was submitted, so that other attempts may join it. lock_probe_over notes that it has
 * ended, so that no more may. */
void lock_probe(struct call *call, struct lock_call *l);
void lock_probe_over(struct call *call, struct lock_call *l);
/* Answers the attempts that have joined an attempt which ended with `end`. `asker` is the client of that attempt; NULL:
 * its session is closed. */
void lock_joined_end(struct list_node *joined, const struct call_end *end, const struct lock_client *asker);

#endif
