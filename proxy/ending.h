/*
 * How the process ends.
 *
 *      SIGTERM, SIGINT   stop: finish what is in flight, for finish-timeout. Exception: with reuse-port, if
 *                        another process listens on the port, leave. A second signal: exit at once
 *      SIGQUIT           leave: no new clients; connected clients are served until they go, for shutdown-timeout
 *      SIGUSR2           take-over: start the program anew on the same sockets; when it accepts clients, leave
 *
 * SIGTERM turns a leave into a stop. All of this happens in the first worker's loop.
 *
 * The process that takes over is the same program with the same command line, which is read again:
 *
 *      this process                                     the new one
 *      SIGUSR2 ── sockets, a pipe ────────────────────> reads its configuration, connects, accepts
 *      leave <───────────────────────────── a byte ──── inherit_tell
 *
 * If the new process can't start, or is not ready in time, nothing changes.
 */
#pragma once

#include <ev.h>
#include <stdbool.h>
#include <sys/types.h>

#include "proxy/embedded.h"
#include "proxy/listen.h"
#include "proxy/admin_server.h"
#include "proxy/session/core/shared.h"

struct ending {
    /* Set by the program, which owns them; then the state. */
    struct proxy_shared *shared;
    const struct listen_set *listeners;
    struct admin_server **monitor;
    struct embedded *embedded; /* NULL: none */
    char **argv;
    pid_t successor;      /* the new process, until it is ready; else 0 */
    int pipe;             /* what it reports */
    struct ev_io word;    /* of the pipe */
    struct ev_timer late; /* the new process is not ready in time */
    bool leaving, stopping;
    bool marking;               /* a take-over begins: its mark is being written to Redis */
    bool handed;                /* another process has the sockets */
    struct handed_board *board; /* what this process tells the next one; NULL: nothing yet */
    int board_file;
};

/* Does what SIGTERM, SIGINT, SIGQUIT or SIGUSR2 asks for. */
void ending_signal(struct ending *e, int number);
/* Tells the next process, once a second, how many clients and leases this one still has. `last`: no clients any more.
 */
void ending_tell(const struct ending *e, bool last);
/* sd_notify(3): sends "READY=1", ... (79 bytes at most) to the socket named by NOTIFY_SOCKET, if there is one.
 * notify_reloading: the process changes its configuration, until it sends READY=1. */
void notify_state(const char *format, ...) __attribute__((format(printf, 1, 2)));
void notify_reloading(void);
