/*
 * Builds the calls of lock scripts in w->build (lock_args.c). script_call.h has the parts that other rooms use.
 */
#pragma once

#include "proxy/session/locks/script_call.h"

struct lock_call;

enum {
    LOCK_HEADER_ARGS = 10 /* the elements of ARGV that a lock script takes, except those for the usual states */
};

/* lock_build_header adds ARGV 1 to 10 to a call of a script that takes arguments.lua. If `claim` is not NULL, it stands
 * in for the plan's claim. */
void lock_build_header(struct worker *w, const struct lock_client *client, const struct lock_plan *plan,
                       const char *claim, uint32_t at, enum lock_shape shape);
/* Begins the call of a script on one lock: its key, and its guard record. */
void lock_build_call(struct worker *w, enum script_id id, struct lock_queue *queue, const struct lock_key *key,
                     size_t args);
/* Adds ARGV 8, the value that the session has last seen at the key. */
void lock_build_seen(struct worker *w, const struct lock_plan *plan);
/* Builds the call of an attempt that has no other options than an expiry, and returns its script: acquire_usual.lua, or
 * acquire.lua where that must come at once. */
enum script_id lock_build_attempt(struct worker *w, const struct lock_client *client, const struct lock_call *l);
/* Builds the call of acquire.lua for such an attempt. `claim` stands in for the plan's claim: what has become of an
 * attempt in the short form (unfinished.lua). client NULL: it has gone. */
void lock_build_again(struct worker *w, const struct lock_client *client, const struct lock_call *l, const char *claim);
/* Builds the call of release_usual.lua. Returns false, and builds nothing, if only release.lua will do. */
bool lock_build_usual_release(struct worker *w, const struct lock_call *l);
/* Builds the call of release.lua for `command` (DEL, UNLINK or GETDEL, in capitals) and the plan's key. client NULL:
 * the proxy itself releases. */
void lock_build_release(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                        const struct lock_plan *plan, enum lock_shape shape, const char *command);
/* Builds an attempt without a script: the commands of short_form.c. l->fence is the lease's. */
void lock_build_short(struct worker *w, const struct lock_client *client, const struct lock_call *l);
/* Builds the call of free.lua; or of free_all.lua, if other releases have joined it. */
void lock_build_free(struct worker *w, const struct lock_call *l);
/* Tells the engine which field of a hash lock the command writes, and the field's new content. */
void lock_note_field(struct session *s, struct lock_call *l, const struct lock_command *lc,
                     const struct lock_words *words);
/* Builds the call of a script that takes arguments.lua, for the command `words`. */
void lock_build_other(struct session *s, struct lock_queue *queue, struct lock_call *l, const struct lock_command *lc,
                      const struct lock_words *words);
/* MSETNX of these words, whose keys are all locks of one rule with `wait`. lock_begin_pairs begins a call for each key,
 * as an attempt to acquire, and returns their ring. lock_build_pairs builds the call of clobber.lua for them. */
struct lock_call *lock_begin_pairs(struct session *s, const struct lock_rule *rule, uint32_t db,
                                   const struct lock_words *words);
void lock_build_pairs(struct session *s, struct lock_call *first, const struct lock_words *words);

/* Behind a token, in a guard record's `attempt`: the lease of this token was released (release_attempt). */
#define LOCK_RELEASED_MARK ":r"
