/* Private to proxy/lock/audit*.c: one engine_observe under way. */
#ifndef LOCKKEEPER_LOCK_AUDIT_PRIVATE_H
#define LOCKKEEPER_LOCK_AUDIT_PRIVATE_H

#include "proxy/lock/audit.h"
#include "proxy/lock/finish.h"

struct audit {
    struct finish *f;
    const struct lock_sight *sight;
    struct lock_result *result; /* what its script would have said, as far as it is inferred */
    struct claim *live;         /* believed live when Redis ran the command; NULL: none is known of */
    bool mine;                  /* it is the claim by which the command speaks */
    bool late;                  /* that claim's lease was certainly over */
};

/* Its script would have said this; returns the outcome. */
enum lock_outcome audit_conclude(struct audit *a, enum lock_outcome outcome, uint64_t fence);
enum lock_outcome audit_grant(struct audit *a);
/* Somebody else's lease, or a lock of which only that is known: it would have been refused, and has happened, so that
 * the lease is over. `takes`: the caller has it now. */
enum lock_outcome audit_refuse(struct audit *a, bool takes);

/* ---- audit_queue.c ----------------------------------------------------------------------------- */

/* LOCK_QUEUE_*. */
enum lock_outcome audit_queue(struct audit *a);
/* A release of the whole list, or of one of its nodes (LPOP). True: it took a node that is not the holder's, or the
 * head of somebody else who has not seen it yet, and that is concluded. */
bool audit_queue_released(struct audit *a, enum lock_outcome *outcome);

#endif
