/*
 * What transaction.c (states and node), exec.c (the end) and exec_array.c (the client's array) share.
 */
#pragma once

#include "proxy/session/transaction/transaction.h"

/* Ends the lock calls that have not ended yet, and frees the items. */
void transaction_items_free(struct transaction *t, struct session *s, const struct call_end *end);
void early_free(struct early *early);
/* Frees a transaction and gives its pin back; lock calls that have not ended count as not sent. */
void transaction_free(struct transaction *t, struct session *s, bool clean);
/* Whether EXEC's reply is an array with an element for each queued command. */
bool exec_array_whole(const struct transaction *t, const struct call_end *end);
/* Calls `answered` with each queued lock call and its element of EXEC's array, which must be whole. */
void exec_array_locks(const struct transaction *t, const struct call_end *end,
                      void (*answered)(struct lock_call *l, const struct call_end *element));
/* Appends the client's array, made from EXEC's, which must be whole; ends the queued lock calls. */
void exec_array_make(struct transaction *t, struct session *s, const struct call_end *end, struct text *out);
/* Sends EXEC; from here on the request owns the transaction. */
void transaction_exec(struct transaction *t, struct request *request);
/* Sends DISCARD or UNWATCH. The client gets `reply` if it is given, else the node's reply. */
void transaction_leave(struct transaction *t, struct request *request, const char *command, const char *reply);
