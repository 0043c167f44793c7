/*
 * A lock call is sent, and its answer is taken: sending.c. It may have to be confirmed by replicas (confirm.c) or
 * witnesses (quorum.c).
 */
#pragma once

#include "proxy/session/locks/lock_call.h"

/* Sends what is in w->build as a script call. The call may be repeated, unless the script is SCRIPT_PASS. */
void lock_submit(struct call *call, struct lock_call *l, enum script_id id);
/* Sends the call's next script, or one that takes the place of what was sent. The client may have gone meanwhile. A
 * caller that takes the script's answer itself in `done` (NULL: it does not) then ends the call with lock_answered. */
void lock_submit_next(struct call *c, struct lock_call *l, enum script_id id, call_done_fn done);
/* Sends a script for an attempt of which nothing was done. If its client has gone, the attempt ends. */
void lock_attempt_anew(struct call *c, struct lock_call *l);
void lock_answered(struct call *c, const struct call_end *end);
/* Ends a call of which nothing has to be confirmed: the client gets its reply, and the engine hears of it. */
void lock_end(struct call *c, struct lock_call *l, const struct call_end *end);
/* Whether a script for the usual states has answered that it has done nothing. lock_submit_whole then sends the script
 * for all states, whose answer `done` takes. */
static inline bool lock_was_unusual(const struct call *c, const struct call_end *end) {
    const struct script *s = c->up.script;
    return !end->error && end->reply[0] == ':' &&
           (s == script_get(SCRIPT_ACQUIRE_USUAL) || s == script_get(SCRIPT_RELEASE_USUAL));
}
void lock_submit_whole(struct call *c, call_done_fn done);
/* Has the attempt join one on the same key that has not been sent yet, and returns true. Both then get the same answer.
 * False: there is none to join. The caller then has to send the attempt, since others may join it. */
bool lock_join(struct call *call, struct lock_call *l);
/* Ends an attempt whose answer is known, and those that have joined it. */
void lock_attempt_ended(struct call *c, const struct call_end *end);

/* ---- short_form.c: locks whose guard records have the short form ---------------------------- */

/* Send an attempt without a script; a GET, which asks for the lock and its guard record; a release as free.lua, at the
 * end of the turn, with others. Return false if only another script will do. */
bool lock_acquire_short(struct call *call, struct lock_call *l);
bool lock_read(struct call *call, struct lock_call *l);
bool lock_free(struct call *call, struct lock_call *l);
/* Sends the session's release now, if lock_free keeps it: another request of the session begins. */
void lock_free_now(struct session *s);

/* If the rule asks for a quorum, and the script has acquired or extended, asks the witnesses and ends the call later
 * (quorum.c). Returns false if there is nothing to ask. */
bool lock_witnessed(struct call *c, struct lock_call *l, const struct call_end *end);
enum { LOCK_SCRIPT_LOCKS_MAX = 100 /* a script on more locks goes without a transaction */ };
/* Ends a call of a transaction that the witnesses have refused, or that has released what a failover has forgotten
 * (quorum.c). False: it is neither. */
bool lock_queue_ends(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                     struct lock_answer *out);

/* The reply of a command that has acquired or extended, in its script's envelope, once another lease counts after all.
 * NULL: the command has no reply for that. Static. */
const char *lock_lost_reply(const struct lock_call *l, const struct lock_envelope *e, const struct session *s);
/* If the rule asks for replicas and the script has acquired, waits for the replicas and ends the call later
 * (confirm.c). Returns false if there is nothing to wait for. */
bool lock_confirm(struct call *c, struct lock_call *l, const struct call_end *end);
