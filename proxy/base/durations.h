/*
 * What a thread measures the duration of, in one table, as counters.h has what it counts. The owner thread notes; a
 * reader in another thread must synchronise with it.
 */
#ifndef LOCKKEEPER_BASE_DURATIONS_H
#define LOCKKEEPER_BASE_DURATIONS_H

#include "proxy/base/histogram.h"
#include "proxy/base/metric.h"

/*
 * DURATION(name, family, label, value, help): the field; the family's name and help text at /metrics; the label and
 * value that distinguish its histograms, or NULL. The first histogram of a family has the help text, the others NULL.
 */
#define DURATION_TABLE(DURATION)                                                                                       \
    DURATION(lock_commands, "lock_command_seconds", NULL, NULL,                                                        \
             "From the arrival of a command on a lock to the answer of its script (and of replicas, where the rule "   \
             "asks them); not inside MULTI.")                                                                          \
    DURATION(lock_waits, "lock_wait_seconds", NULL, NULL,                                                              \
             "From the arrival of an attempt that had to wait (rule option wait) until it got the lock.")              \
    DURATION(witnesses, "quorum_seconds", NULL, NULL,                                                                  \
             "From the script's answer to the decision of the witnesses (rule option quorum).")                        \
    DURATION(lock_handovers, "lock_handover_seconds", NULL, NULL,                                                      \
             "For attempts that had to wait: from the turn in which a release was seen until the lock was theirs.")

struct durations {
#define DURATION_FIELD(name, ...) struct histogram name;
    DURATION_TABLE(DURATION_FIELD)
#undef DURATION_FIELD
};

void durations_add(struct durations *to, const struct durations *from);
/* Passes on all histograms as families, in the order of their first rows. */
void durations_measure(const struct durations *d, const struct metric_sink *m);

#endif
