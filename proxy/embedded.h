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

/* Starts redis-server (found by PATH) and waits until it answers. Returns NULL with one line in error. The server ends
 * with the process. `role` must live as long as the server. The functions below that take a server also act on
 * `others`, servers that were started before; NULL: there are none. On an error they stay the caller's. */
struct embedded *embedded_start(const struct embedded_role *role, struct embedded *others, char *error,
                                size_t error_size);
/* The server's address, "unix:/tmp/.../redis.sock"; borrowed. */
const char *embedded_address(const struct embedded *e);
int embedded_pid(const struct embedded *e);
/* Watches the server in a loop. To be called from the thread that has started it; that thread must live as long as the
 * server. Whenever the server ends, its role's `ended` gets `arg` and the reason, and the server is started again,
 * after growing pauses if it ends soon. Its address stays the same; it is then empty. */
void embedded_watch(struct embedded *e, struct ev_loop *loop, void *arg);
/* Stops watching; call it before the loop is freed. NULL is allowed. */
void embedded_unwatch(struct embedded *e);
/* Stops the server and removes its folder. NULL is allowed. */
void embedded_stop(struct embedded *e);
