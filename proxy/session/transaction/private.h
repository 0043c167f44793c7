/*
 * What transaction.c (the states and the node), exec.c (the end) and exec_array.c (what EXEC's array becomes) share.
 */
#ifndef LOCKKEEPER_SESSION_TRANSACTION_PRIVATE_H
#define LOCKKEEPER_SESSION_TRANSACTION_PRIVATE_H

#include "proxy/session/transaction/transaction.h"

/* Ends the lock calls that have not ended yet, and forgets the items. */
void transaction_items_free(struct transaction *t, struct session *s, const struct call_end *end);
void early_free(struct early *early);
/* Frees a transaction, with the pin; lock calls that have not ended were not sent. */
void transaction_free(struct transaction *t, struct session *s, bool clean);
/* Whether EXEC's reply is an array of what was queued, all of it. */
bool exec_array_whole(const struct transaction *t, const struct call_end *end);
/* Answers the request with EXEC's array, and frees the transaction, which has no pin any more. */
void exec_array_reply(struct transaction *t, struct request *r, const struct call_end *end);
/* Sends EXEC; the request is the transaction's owner from here on. */
void transaction_exec(struct transaction *t, struct request *request);
/* Sends DISCARD or UNWATCH, and answers with `reply` where it is given, else with the node's reply. */
void transaction_leave(struct transaction *t, struct request *request, const char *command, const char *reply);

#endif
