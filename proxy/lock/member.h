/* Private to proxy/lock/: what closed sessions leave is handled bit by bit. */
#pragma once

#include "proxy/lock/choose.h"

/* ---- member.c --------------------------------------------------------------------------------- */

/* Handles more of the claims and contenders that closed sessions have left. Returns whether some are left. No shard
 * is locked. */
bool member_departures(struct lock_engine *e, int64_t now_ms);
