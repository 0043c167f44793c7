/*
 * A lock command between the engine and the model: the arguments of the script from a plan, and the result for the
 * engine from the script's envelope. Both simulators use it.
 */
#pragma once

#include "tests/sim/model.h"

/* ARGV 1 to 8 of the plan's script. The texts are borrowed; `seen` is the room that a.seen may point to. */
struct model_args call_args(const struct lock_plan *plan, const struct model_command *command, const char *identity,
                            const char *proxy, int64_t lease_ms, char seen[LOCK_SEEN_MAX + 1]);
/* What engine_finish or engine_renewed is told. Borrows from command and envelope. */
struct lock_result call_result(enum lock_verb verb, const struct model_command *command,
                               const struct model_envelope *envelope);

/* Whether what a command of this kind writes is the lock's value in any case, if it writes. */
bool call_writes(enum lock_verb verb);
