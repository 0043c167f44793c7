/*
 * How the process ends.
 *
 *      SIGTERM, SIGINT   stop: finish what is in flight, for finish-timeout. Exception: with reuse-port, if
 *                        another process listens on the port, leave. A second signal: exit at once
 *      SIGQUIT           leave: no new clients; connected clients are served until they go, for shutdown-timeout
 *      SIGUSR2           take-over: start the program anew on the same sockets; when it accepts clients, leave
 *
 * SIGTERM turns a leave into a stop. All of this happens in the first worker's loop.
 */
#pragma once

#include <stdbool.h>

#include "proxy/config/config.h"
#include "proxy/embedded.h"
#include "proxy/listen.h"
#include "proxy/live.h"
#include "proxy/admin_server.h"
#include "proxy/session/core/shared.h"
#include "proxy/successor.h"

struct ending {
    /* Set by the program, which owns them. */
    struct proxy_shared *shared;
    const struct config *config;
    struct live *live;
    const struct listen_set *listeners;
    struct admin_server **monitor;
    struct embedded *embedded; /* NULL: none */
    char **argv;
    /* The state. */
    struct successor *successor; /* in progress; else NULL */
    bool leaving, stopping;
    bool marking;               /* a take-over begins: its mark is being written to Redis */
    bool handed;                /* another process has the sockets */
    struct handed_board *board; /* what this process tells the next one; NULL: nothing yet */
    int board_file;
};

void ending_stop(struct ending *e, const char *signal);
void ending_leave(struct ending *e, const char *signal);
void ending_take_over(struct ending *e, const char *signal);
/* Tells the next process how many clients and leases this one still has. To be called once a second. */
void ending_tell(const struct ending *e);
/* Tells it that this process has no clients any more. */
void ending_tell_last(const struct ending *e);
/* systemd's readiness protocol (sd_notify(3)): sends "READY=1", ... to the socket named by NOTIFY_SOCKET; does nothing
 * without systemd. notify_reloading: the process changes its configuration, until it sends READY=1. */
void notify_state(const char *state);
void notify_reloading(void);
