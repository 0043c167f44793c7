/* What noted.c (requests and replies) and give_back.c share. */
#ifndef LOCKKEEPER_SESSION_SEMAPHORES_PRIVATE_H
#define LOCKKEEPER_SESSION_SEMAPHORES_PRIVATE_H

#include "proxy/lock/permits.h"
#include "proxy/session/semaphores/semaphores.h"

/* Gives back what is due. */
void permits_give_back(struct worker *w);
/* Whether the client (lock_client_hash) has no session any more. Never in a process that leaves: the client's new
 * connections go to another process, and may have the permits. */
bool permit_client_left(struct worker *w, uint64_t client);

#endif
