/*
 * Starting the process that takes over: the same program and command line, read anew, on the sockets of this one.
 *
 *      this process                                     the new one
 *      successor_start ── sockets, a pipe ────────────> reads its configuration, connects, accepts
 *      ready <───────────────────────────── a byte ──── inherit_tell_ready
 *
 * A new one that can't start, or is not ready in time, changes nothing.
 */
#ifndef LOCKKEEPER_SUCCESSOR_H
#define LOCKKEEPER_SUCCESSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "proxy/inherit.h"

struct ev_loop;
struct successor;

struct successor_orders {
    char **argv; /* the command line; all are borrowed until successor_start returns */
    const struct handed_socket *sockets;
    size_t count;
    const char *unix_path; /* of the unix socket among them, if it is not systemd's; NULL: none */
    /* Called once, in the loop's thread: the new process accepts clients, or (pid 0) there is none. The log has why.
     * The successor is gone then. */
    void (*done)(void *arg, pid_t pid);
    void *arg;
};

/* Starts it. NULL: it can't be started, and the log has why. */
struct successor *successor_start(struct ev_loop *loop, const struct successor_orders *orders);
/* Gives it up: it is ended. NULL is allowed. */
void successor_cancel(struct successor *s);

#endif
