/*
 * The embedded upstream: a private redis-server on a unix socket in a temporary folder, for trying things out.
 */
#ifndef LOCKKEEPER_EMBEDDED_H
#define LOCKKEEPER_EMBEDDED_H

#include <stdbool.h>
#include <stddef.h>

struct embedded;

/* Starts redis-server (found by PATH) and waits until it answers. Returns NULL with one line in error. The server
 * dies with the process. */
struct embedded *embedded_start(char *error, size_t error_size);
/* The server's address, "unix:/tmp/.../redis.sock"; borrowed. */
const char *embedded_address(const struct embedded *e);
/* Stops the server and removes its folder. */
void embedded_stop(struct embedded *e);

#endif
