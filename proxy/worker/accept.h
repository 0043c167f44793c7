/*
 * A worker's listening sockets, and clients that have no session yet.
 */
#ifndef LOCKKEEPER_WORKER_ACCEPT_H
#define LOCKKEEPER_WORKER_ACCEPT_H

#include <stdbool.h>
#include <stddef.h>

struct worker;
struct worker_socket;

/* Takes over the descriptors; does not accept yet. */
void accept_init(struct worker *w, const struct worker_socket *sockets, size_t count);
/* Begins to accept clients. */
void accept_start(struct worker *w);
/* Closes the sockets that another process also has: clients that wait to be accepted are left to that process. */
void accept_close_shared(struct worker *w);
/* Closes the sockets. Clients without a session yet go on. May be called twice. */
void accept_close(struct worker *w);
/* Closes clients that have no session yet. */
void accept_drop_guests(struct worker *w);

#endif
