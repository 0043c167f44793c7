/*
 * What transaction.c (states and node) and exec.c (the end) share.
 */
#pragma once

#include "proxy/session/transaction/transaction.h"

void early_free(struct early *early);
/* Frees a transaction and gives its pin back; lock calls that have not ended count as not sent. */
void transaction_free(struct transaction *t, struct session *s, bool clean);
/* Sends EXEC; from here on the request owns the transaction. Returns DISPATCHED. */
enum dispatch_result transaction_exec(struct transaction *t, struct request *request);
/* Sends DISCARD or UNWATCH, and returns DISPATCHED. The client gets `reply` if it is given, else the node's reply. */
enum dispatch_result transaction_leave(struct transaction *t, struct request *request, const char *command,
                                       const char *reply);
