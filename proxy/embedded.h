/*
 * The embedded upstream: a private redis-server on a unix socket in a temporary folder, for trials.
 */
#ifndef LOCKKEEPER_EMBEDDED_H
#define LOCKKEEPER_EMBEDDED_H

#include <stdbool.h>
#include <stddef.h>

struct embedded;
struct ev_loop;

/* Starts redis-server (found by PATH) and waits until it answers. Returns NULL with one line in error. The server ends
 * with the process. */
struct embedded *embedded_start(char *error, size_t error_size);
/* The server's address, "unix:/tmp/.../redis.sock"; borrowed. */
const char *embedded_address(const struct embedded *e);
/* Watches the server in a loop. To be called from the thread that has started it; that thread must live as long as the
 * server. Whenever the server ends, `ended` gets the reason ("it was killed by signal 9"), and the server is started
 * again, after growing pauses if it ends soon. Its address stays the same; it is then empty. */
void embedded_watch(struct embedded *e, struct ev_loop *loop, void (*ended)(void *arg, const char *how), void *arg);
/* Stops watching; call it before the loop is freed. NULL is allowed. */
void embedded_unwatch(struct embedded *e);
/* Stops the server and removes its folder. */
void embedded_stop(struct embedded *e);

#endif
