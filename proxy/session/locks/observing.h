/*
 * What is noted besides the calls: events for the observer (lock_events.c), what other proxies and earlier runs have
 * learnt (learnt.c), releases that are held back (hold.c).
 */
#pragma once

#include "proxy/session/core/session.h"
#include "proxy/session/locks/locks.h"

/* ---- lock_events.c ---------------------------------------------------------------------------------------- */

/* Called once a second. Where locks are acquired, it has some of the next requests looked at for what they write. */
void advise_tick(struct worker *w);
/* Takes the outcome of a lock script. `advises` is the command's, as in struct lock_row. */
void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result, unsigned advises);
/* Takes a command of a kind that the rule lacks, with its whole reply. */
void advise_passed(struct session *s, const struct lock_plan *plan, unsigned advises, const char *reply, size_t len);
/* Takes a command that ran unchanged, with its effect. */
void advise_observed(struct session *s, const struct lock_event *seen);

/* ---- learnt.c: what earlier runs and other proxies have learnt of workloads ---------------------------- */

/* Begins to read the record. Called in the first worker, before clients are accepted. */
void learnt_begin(struct worker *w);
/* Called once a second. The first worker reads what was added to the record since. */
void learnt_tick(struct worker *w);
/* Called while a release is held back: what another proxy has just learnt may decide about it. Does nothing if no other
 * proxy is known. */
void learnt_glance(struct worker *w);

/* Calls on a record of the proxies' own in Redis, which is named like a guard record: no client is shown it, and it
 * belongs to no lock. own_record_begin begins to build one, own_record_submit sends it: a stop waits until `done` has
 * called own_record_done. own_record_lost: the record's node is out of reach. */
void own_record_begin(struct worker *w, const char *name, const char *command, size_t argc);
void own_record_submit(struct worker *w, const char *name, uint32_t login, bool repeatable, call_done_fn done);
void own_record_done(struct call *c, const struct call_end *end);
bool own_record_lost(struct worker *w, const char *name);

/* ---- hold.c ---- */

/* Stops the session's input at a release that is held back, and has it read again in a few milliseconds. */
void lock_hold_back(struct session *s);
void lock_holds_open(struct worker *w);
void lock_holds_close(struct worker *w);
/* Measures the round trip to the client once. Called when an attempt of the session was lost. */
void lock_note_trip(struct session *s);
