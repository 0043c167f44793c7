/*
 * The embedded upstream: a private redis-server on a unix socket in a temporary folder, for trying things out.
 */
#ifndef LOCKKEEPER_EMBEDDED_H
#define LOCKKEEPER_EMBEDDED_H

#include <stdbool.h>
#include <stddef.h>

struct embedded;
struct ev_loop;

/* Starts redis-server (found by PATH) and waits until it answers. Returns NULL with one line in error. The server
 * dies with the process. */
struct embedded *embedded_start(char *error, size_t error_size);
/* The server's address, "unix:/tmp/.../redis.sock"; borrowed. */
const char *embedded_address(const struct embedded *e);
/* Watches the server in a loop, from the thread that has started it, which must live as long as it does: whenever it
 * has ended, `ended` is told how ("it was killed by signal 9"), and it is started again, at longer and longer intervals
 * where it does not stay. Its address stays the same, and it is empty. */
void embedded_watch(struct embedded *e, struct ev_loop *loop, void (*ended)(void *arg, const char *how), void *arg);
/* Watches it no more; before the loop is gone. NULL is allowed. */
void embedded_unwatch(struct embedded *e);
/* Stops the server and removes its folder. */
void embedded_stop(struct embedded *e);

#endif
