/*
 * systemd's readiness protocol: a datagram to the socket named by NOTIFY_SOCKET (sd_notify(3)).
 */
#ifndef LOCKKEEPER_NOTIFY_H
#define LOCKKEEPER_NOTIFY_H

/* Sends "READY=1", "STOPPING=1", ...; nothing happens where nobody listens. */
void notify_state(const char *state);

#endif
