/*
 * The application's own scripts (EVAL, EVALSHA, FCALL) that name lock keys: they run as they are, and the proxy learns
 * in one step with them what they have done.
 */
#ifndef LOCKKEEPER_SESSION_SCRIPT_FLOW_H
#define LOCKKEEPER_SESSION_SCRIPT_FLOW_H

#include "proxy/session/lock_flow.h"

/* Whether the command is such a script that may write. */
bool script_is(const struct command *c);

/* Sends it to the node of `slot`, between two steps for each of its keys (argument indexes) that is a lock. */
void script_dispatch(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                     const uint32_t *keys, size_t key_count, int slot);

/* The script's part in one lock key, the argument `key`; queue: of the transaction that it is queued in, or NULL. */
struct lock_call *script_begin(struct session *s, struct lock_queue *queue, const struct lock_rule *rule,
                               const struct resp_request *r, const char *bytes, uint32_t key);
/* The two steps of such a part, each left in w->build: what goes before the script, and what goes behind it.
 * `together`: all of it is one transaction. */
void script_build_before(struct session *s, struct lock_queue *queue, const struct lock_call *l);
void script_build_behind(struct session *s, struct lock_queue *queue, const struct lock_call *l,
                         const struct resp_request *r, const char *bytes, size_t key_count, bool together);

#endif
