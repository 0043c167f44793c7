/*
 * Which way a request goes: the one room that sees all others, and tells the core of them.
 */
#ifndef LOCKKEEPER_SESSION_COMMANDS_COMMANDS_H
#define LOCKKEEPER_SESSION_COMMANDS_COMMANDS_H

#include "proxy/session/core/room.h"

/* The hooks by which the core reaches dispatch, and all rooms. */
extern const struct session_hooks commands_hooks;

#endif
