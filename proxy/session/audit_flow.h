/*
 * Commands on lock keys that pass as they came: rules in mode audit, whose incidents are inferred.
 *
 *      request ──> audit_note (keys, values, expiries) ──> sent as it is ──> reply ──> audit_end ──> engine_observe
 *                                                                             └──> the client, as it is
 */
#ifndef LOCKKEEPER_SESSION_AUDIT_FLOW_H
#define LOCKKEEPER_SESSION_AUDIT_FLOW_H

#include "proxy/session/lock_flow.h"

struct audit_note;

/* What the command does to keys under audit rules, remembered until its reply; NULL: nothing. The note is given.
 * `outside`: also to keys outside of all rules, for PROXY ADVISE. */
struct audit_note *audit_note(struct session *s, const struct command *c, const struct resp_request *r,
                              const char *bytes, const uint32_t *keys, size_t key_count, bool outside);
/* The command's reply, or what became of it; frees the note. s NULL: it is gone. */
void audit_end(struct worker *w, struct session *s, struct audit_note *note, const struct call_end *end);
/* One of session->audits has ended. */
void audit_released(struct session *s);

/* Forwards a request with these keys; where rules in audit are concerned, its reply is looked at on its way back. */
void audit_forward(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                   int slot, const uint32_t *keys, size_t key_count);

/* The same for keys outside of all rules, or of a kind that theirs lacks, whose command looks like a lock's; a script
 * has one. */
void audit_forward_outside(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                           int slot, const uint32_t *keys, size_t key_count);

#endif
