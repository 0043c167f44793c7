/*
 * Starts the process that takes over: the same program with the same command line, which is read again, on the sockets
 * of this process.
 *
 *      this process                                     the new one
 *      successor_start ── sockets, a pipe ────────────> reads its configuration, connects, accepts
 *      ready <───────────────────────────── a byte ──── inherit_tell
 *
 * If the new process can't start, or is not ready in time, nothing changes.
 */
#pragma once

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
    const char *mark;      /* for worker/same_redis.c; NULL: none */
    int board;             /* the file of a base/handed_board.h; -1: none */
    const char *unix_path; /* path of the unix socket among them, if it is not systemd's; NULL: none */
    /* Called once, in the loop's thread: the new process `pid` accepts clients, or (pid 0) it failed, and the log has
     * the reason. The successor is freed then. */
    void (*done)(void *arg, pid_t pid);
    /* Called in place of `done`: the new process serves another Redis, and accepts clients once this process has ended.
     * False: that may not be; the new process is ended, and `done` is called. */
    bool (*let_go)(void *arg, pid_t pid);
    void *arg;
};

/* Starts the process. NULL: that failed, and the log has the reason. */
struct successor *successor_start(struct ev_loop *loop, const struct successor_orders *orders);
/* Ends the new process. NULL is allowed. */
void successor_cancel(struct successor *s);
