/*
 * Data that is written under locks. A write of fenced data goes to Redis with the question whether its session has lost
 * the lock (fenced_command.c, fence.lua); locks in other slots than the data are read first. fence_transaction.c
 * watches the guard records of writes that no script can carry, and repeats blocking commands.
 */
#pragma once

#include "proxy/session/locks/locks.h"

/* What happens to a request that writes data under enforced fences. */
enum fence_verdict {
    FENCE_NOTHING, /* it writes no fenced data, or its session may write: it is sent as it is */
    FENCE_LATER,   /* it waits until commands of its session on the lock have ended */
    FENCE_CHECKED, /* it is sent with a question (fence_dispatch) */
    FENCE_APART,   /* it is DEL or UNLINK of locks and data: the data's keys are to be sent first, with a question
                      (split.c) */
    FENCE_REFUSED  /* it cannot be checked, and is refused with *error, which is static */
};
enum fence_verdict fence_judge(struct session *s, const struct request_class *k, const char **error);
/* Returns the error, static, for a command that swaps whole databases, if its session holds or has lost a lock of
 * fenced data in one of them. NULL: the command may run, or does not swap databases. */
const char *fence_refuses_databases(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);
/* What PROXY EXPLAIN reports about the request's fences; static. */
const char *fence_words(struct session *s, const struct request_class *k);
/* Sends a request in one step with the question whether its session has lost the lock. */
enum dispatch_result fence_dispatch(struct session *s, const struct request_class *k);

/* Prepares the same for a write inside a transaction, or (queue NULL) for a part of a split command. The call is built
 * in w->build; the first of its kind in a transaction sends the script's source. The caller owns the question and frees
 * it with fence_forget. */
struct fence_question;
struct fence_question *fence_prepare(struct session *s, struct lock_queue *queue, const struct request_class *k);
void fence_forget(struct fence_question *q);
/* Appends the client's reply for the script's reply, and records a late write. s NULL: the session is closed. */
void fence_reply(struct session *s, const struct fence_question *q, const char *reply, size_t len, struct text *out);

/* Ends a blocking command on fenced data, for CLIENT UNBLOCK: with Redis's error if `error`, else as if its timeout had
 * passed. False: the session is not blocked in such a command. */
bool fence_unblock(struct session *s, bool error);

/* Locks in other slots than their data are read before the write. fence_looks_new begins, and fence_looks_add adds the
 * locks of a question. fence_looks_go has `done` called when all nodes have answered; at once if there is nothing to
 * read. `error` is NULL, or the client's error (a line of RESP, borrowed): then nothing is written. The looks are freed
 * after `done`. Before that, a caller that no longer wants the answer calls fence_looks_forget. */
struct fence_looks;
typedef void (*fence_looked_fn)(void *arg, const char *error, size_t len);
bool fence_is_elsewhere(const struct fence_question *q);
struct fence_looks *fence_looks_new(struct session *s, fence_looked_fn done, void *arg);
void fence_looks_add(struct fence_looks *l, struct fence_question *q);
void fence_looks_go(struct fence_looks *l);
void fence_looks_forget(struct fence_looks *l);

/* Records the late writes of a request that was just sent or queued: writes on data under fences in audit, whose lock
 * its session has lost. */
void fence_audit(struct session *s, const struct request_class *k);

/* The room's callbacks for workers and sessions. */
extern const struct session_room fences_room;
