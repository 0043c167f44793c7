/*
 * The application's own scripts (EVAL, EVALSHA, FCALL) that name lock keys: they run as they are, and the proxy learns
 * right behind them what they have done.
 */
#ifndef LOCKKEEPER_SESSION_SCRIPT_FLOW_H
#define LOCKKEEPER_SESSION_SCRIPT_FLOW_H

#include "proxy/session/lock_flow.h"

/* Whether the command is such a script that may write. */
bool script_is(const struct command *c);

/* Forwards it to the node of `slot`, with a step behind it for each of its keys (argument indexes) that is a lock. */
void script_dispatch(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                     const uint32_t *keys, size_t key_count, int slot);

/* The step for one lock key inside a transaction; its call is left in w->build. */
struct lock_call *script_prepare(struct session *s, struct lock_queue *queue, const struct lock_rule *rule,
                                 const struct resp_request *r, const char *bytes, uint32_t key, size_t key_count);

#endif
