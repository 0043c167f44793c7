/* Private to proxy/lock/: what closed sessions leave is handled bit by bit. */
#ifndef LOCKKEEPER_LOCK_MEMBER_H
#define LOCKKEEPER_LOCK_MEMBER_H

#include "proxy/lock/choose.h"

/* ---- member.c --------------------------------------------------------------------------------- */

/* Handles more of the claims and contenders that closed sessions have left. Returns whether some are left. No shard
 * is locked. */
bool member_departures(struct lock_engine *e, int64_t now_ms);

#endif
