/*
 * What commands on locks say to PROXY ADVISE: those that became scripts, those that are audited, and outside of all
 * rules those that look like locks.
 */
#ifndef LOCKKEEPER_SESSION_ADVISE_FLOW_H
#define LOCKKEEPER_SESSION_ADVISE_FLOW_H

#include "proxy/lock/advise.h"
#include "proxy/lock/audit.h"
#include "proxy/session/session.h"

/* Whether the reply of a command on a key outside of all rules is worth a look: SETNX, SET NX and MSETNX always, some
 * of the INCRs and HSETNXs, and what changes a key that was acquired lately. */
bool advise_wants(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  const char *key, size_t len);
/* The same for a script of the application's: the argument index of the key that is its lock, among `key_count` from
 * `first_key` on; 0: it is not worth one. And what the script is known to be. */
uint32_t advise_script_key(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                           uint32_t first_key, size_t key_count);
struct advise_text advise_script_of(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);
/* SCRIPT: of a LOAD the text is looked at. */
void advise_loaded(struct session *s, const struct resp_request *r, const char *bytes);
/* A lock script's outcome; `advises` is the command's, as in struct lock_row. */
void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result, unsigned advises);
/* A command of a kind that the rule lacks was answered with this, whole. */
void advise_passed(struct session *s, const struct lock_plan *plan, unsigned advises, const char *reply, size_t len);
/* A command that ran as it was; `rule` may be NULL, and the sight's is where the command is of a kind that it lacks.
 * `scripted`: a script of the application's did what it says;
 * `watched`: in a transaction behind WATCH. */
void advise_sight(struct session *s, const struct lock_sight *sight, const struct lock_rule *rule, unsigned advises,
                  bool scripted, bool watched);

#endif
