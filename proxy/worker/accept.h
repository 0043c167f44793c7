/*
 * A worker's listening sockets, and clients on their way to a session.
 */
#ifndef LOCKKEEPER_WORKER_ACCEPT_H
#define LOCKKEEPER_WORKER_ACCEPT_H

#include <stdbool.h>
#include <stddef.h>

struct worker;
struct worker_socket;

/* Takes over the descriptors; nobody is accepted yet. */
void accept_init(struct worker *w, const struct worker_socket *sockets, size_t count);
/* Begins to accept clients. */
void accept_start(struct worker *w);
/* Closes the sockets that another process has, too: who waits to be accepted is that one's. */
void accept_close_shared(struct worker *w);
/* Closes the sockets. Clients that are on their way go on. May be called twice. */
void accept_close(struct worker *w);
/* Closes clients that are still on their way. */
void accept_drop_guests(struct worker *w);

#endif
