/*
 * What commands on locks say to PROXY ADVISE: those that became scripts, those that are audited, and outside of all
 * rules those that look like locks.
 */
#ifndef LOCKKEEPER_SESSION_ADVISE_FLOW_H
#define LOCKKEEPER_SESSION_ADVISE_FLOW_H

#include "proxy/lock/advise.h"
#include "proxy/lock/audit.h"
#include "proxy/session/session.h"

/* Whether the reply of a command on a key outside of all rules is worth a look: SETNX and SET NX always, some of the
 * INCRs, and releases of what was acquired lately. */
bool advise_wants(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  const char *key, size_t len);
/* The same for a script of the application's and its first key; and what the script is known to be. */
bool advise_wants_script(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                         uint32_t key_index);
enum advise_script advise_script_of(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);
/* SCRIPT: of a LOAD the text is looked at. */
void advise_loaded(struct session *s, const struct resp_request *r, const char *bytes);
/* A lock script's outcome. */
void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result);
/* A command that ran as it was; its rule may be NULL. */
void advise_sight(struct session *s, const struct lock_sight *sight);

#endif
