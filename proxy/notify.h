/*
 * systemd's readiness protocol: a datagram to the socket named by NOTIFY_SOCKET (sd_notify(3)).
 */
#ifndef LOCKKEEPER_NOTIFY_H
#define LOCKKEEPER_NOTIFY_H

#include <stdint.h>

/* Sends "READY=1", "STOPPING=1", ...; does nothing without systemd. */
void notify_state(const char *state);
/* notify_stopping: the process ends, and may take so many ms for its clients, whatever the unit's timeout is.
 * notify_reloading: it changes its configuration, until it sends READY=1. */
void notify_stopping(int64_t ms);
void notify_reloading(void);

#endif
