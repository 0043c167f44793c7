/*
 * A rule's `wait TIME`: attempts that are held until their lock is free (lock_wait.c), and the messages about
 * releases at other proxies (release_channel.c). Lock calls come here through worker->waits (struct lock_waits in
 * locks/lock_call.h).
 */
#pragma once

#include "proxy/session/core/room.h"

/* The room's callbacks for workers and sessions. */
extern const struct session_room waits_room;
