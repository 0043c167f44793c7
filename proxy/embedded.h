/*
 * Embedded servers: private redis-servers, each on a unix socket in a temporary folder, for trials. One is the embedded
 * upstream; others are embedded witnesses.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct embedded;
struct ev_loop;

/* What a server is for. */
struct embedded_role {
    const char *directive;                     /* for errors */
    const char *name;                          /* for the log: "The embedded Redis" */
    void (*ended)(void *arg, const char *how); /* called when it has ended by itself: "it was killed by signal 9" */
};

/* Starts redis-server (found by PATH), waits until it answers, and adds it to the front of `servers` (NULL: none yet).
 * Returns its address, "unix:/tmp/.../redis.sock", borrowed, or NULL: `error` has one line. The server ends with the
 * process. `role` must live as long as the server. The functions below act on all servers from the given one on, but
 * embedded_pid on the first. */
const char *embedded_start(struct embedded **servers, const struct embedded_role *role, char *error, size_t size);
int embedded_pid(const struct embedded *e);
/* Watches in a loop, of the thread that has started them; that thread must live as long as the servers. Whenever a
 * server ends, its role's `ended` gets `arg` and the reason, and the server is started again, empty, at the same
 * address, after growing pauses if it ends soon. */
void embedded_watch(struct embedded *e, struct ev_loop *loop, void *arg);
/* Stops watching; call it before the loop is freed. NULL is allowed. */
void embedded_unwatch(struct embedded *e);
/* Stops the server and removes its folder. NULL is allowed. */
void embedded_stop(struct embedded *e);
