/*
 * Dispatch: decides which way a request goes. It is the only folder that includes all others of proxy/session/, and it
 * registers them with the core.
 */
#pragma once

#include <stdint.h>

#include "proxy/session/core/room.h"
#include "proxy/session/core/session_worker.h"

/* The hooks by which the core calls dispatch and all rooms. */
extern const struct session_hooks commands_hooks;

/* How long PROXY PAUSE goes on in this worker, in ms; 0: it is not paused. */
int64_t pause_left_ms(struct worker *w);
/* Pauses this worker's clients for so many ms. A longer or stricter pause stays in force. */
void pause_start(struct worker *w, enum pause_kind kind, int64_t ms);
/* Brings the worker's slowlog-log-slower-than into force. */
void slow_config(struct worker *w);
