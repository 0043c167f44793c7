/*
 * Dispatch: decides which way a request goes. It is the only folder that includes all others of proxy/session/, and it
 * registers them with the core.
 */
#ifndef LOCKKEEPER_SESSION_COMMANDS_COMMANDS_H
#define LOCKKEEPER_SESSION_COMMANDS_COMMANDS_H

#include "proxy/session/core/room.h"

/* The hooks by which the core calls dispatch and all rooms. */
extern const struct session_hooks commands_hooks;

#endif
