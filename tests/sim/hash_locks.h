/*
 * Scenarios of hash locks: what worker.c and check.c have for string locks.
 */
#pragma once

#include "tests/sim/sim_world.h"

bool hash_worker_command(struct world *w, int worker, struct model_command *c, bool *releases);
void hash_worker_answer(struct world *w, int worker, const struct flight *f, bool lost);
/* Checks the rules after every change of the model. `before` is the key as it was. */
void hash_check_script(struct world *w, struct flight *f, const struct model_key *before);
/* A worker takes itself for a holder now. */
void hash_check_belief(struct world *w, int worker, const struct flight *f);
