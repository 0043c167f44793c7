/* What noted.c (requests and replies) and give_back.c share. */
#ifndef LOCKKEEPER_SESSION_SEMAPHORES_PRIVATE_H
#define LOCKKEEPER_SESSION_SEMAPHORES_PRIVATE_H

#include "proxy/lock/permits.h"
#include "proxy/session/semaphores/semaphores.h"

/* Gives back what is due. */
void permits_give_back(struct worker *w);

#endif
