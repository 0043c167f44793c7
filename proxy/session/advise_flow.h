/*
 * What commands on locks say to PROXY ADVISE: those that became scripts, those that are audited, and outside of all
 * rules those that look like locks.
 */
#ifndef LOCKKEEPER_SESSION_ADVISE_FLOW_H
#define LOCKKEEPER_SESSION_ADVISE_FLOW_H

#include "proxy/lock/audit.h"
#include "proxy/session/session.h"

/* Whether the reply of a command on a key outside of all rules is worth a look: SETNX and SET NX always, some of the
 * INCRs, and releases of what was acquired lately. */
bool advise_wants(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  const char *key, size_t len);
/* A lock script's outcome. */
void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result);
/* A command that ran as it was; its rule may be NULL. */
void advise_sight(struct session *s, const struct lock_sight *sight);

#endif
