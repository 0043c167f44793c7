/*
 * Which way a request goes: the one room that sees all others, and tells the core of them.
 */
#ifndef LOCKKEEPER_SESSION_COMMANDS_COMMANDS_H
#define LOCKKEEPER_SESSION_COMMANDS_COMMANDS_H

#include "proxy/session/core/room.h"

/* What becomes of requests, and all rooms. */
extern const struct session_hooks commands_hooks;

#endif
