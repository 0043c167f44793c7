/* A lock call is sent, and its answer is taken. Replicas or witnesses may have to confirm it. */
#pragma once

#include "proxy/session/locks/lock_call.h"

/* Sends what is in w->build as a script call. The call may be repeated, unless the script is SCRIPT_PASS. */
void lock_submit(struct call *call, struct lock_call *l, enum script_id id);
/* Sends the call's next script, or one in place of what was sent. The client may have gone. A `done` that is not NULL
 * takes the script's answer, and ends the call with lock_answered. */
void lock_submit_next(struct call *c, struct lock_call *l, enum script_id id, call_done_fn done);
/* Sends a script for an attempt of which nothing was done. If its client has gone, the attempt ends. */
void lock_attempt_anew(struct call *c, struct lock_call *l);
void lock_answered(struct call *c, const struct call_end *end);
/* Ends a call that needs no confirmation: the client gets its reply, and the engine hears of it. */
void lock_end(struct call *c, struct lock_call *l, const struct call_end *end);
/* Whether a script for the usual states has answered that it has done nothing. lock_submit_whole then sends the script
 * for all states; `done` as in lock_submit_next. */
static inline bool lock_was_unusual(const struct call *c, const struct call_end *end) {
    const struct script *s = c->up.script;
    return !end->error && end->reply[0] == ':' &&
           (s == script_get(SCRIPT_ACQUIRE_USUAL) || s == script_get(SCRIPT_RELEASE_USUAL));
}
void lock_submit_whole(struct call *c, call_done_fn done);
/* Has the attempt join one on the same key that is not sent yet: both get the same answer. False: there is none. The
 * caller then has to send the attempt, since others may join it. */
bool lock_join(struct call *call, struct lock_call *l);
/* Ends an attempt whose answer is known, and those that have joined it. */
void lock_attempt_ended(struct call *c, const struct call_end *end);

/* ---- short_form.c: locks whose guard records have the short form ---------------------------- */

/* Send an attempt without a script; a GET, which asks for the lock and its guard record; a release as free.lua, with
 * others at the end of the turn. False: only another script will do. */
bool lock_acquire_short(struct call *call, struct lock_call *l);
bool lock_read(struct call *call, struct lock_call *l);
bool lock_free(struct call *call, struct lock_call *l);
/* Sends the session's release now, if lock_free keeps it: another request of the session begins. */
void lock_free_now(struct session *s);

enum { LOCK_SCRIPT_LOCKS_MAX = 100 /* a script on more locks goes without a transaction */ };
/* Ends a call of a transaction that the witnesses have refused, or that has released what a failover has forgotten.
 * False: it is neither. */
bool lock_queue_ends(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                     struct lock_answer *out);

/* Waits for the replicas or witnesses that the rule demands to confirm what the script has acquired or extended, and
 * ends the call later. False: there is nothing to wait for. */
bool lock_confirm(struct call *c, struct lock_call *l, const struct call_end *end);
