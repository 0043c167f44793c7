/* What engine, observer and PROXY ADVISE take for evidence of how a workload's sessions and losers behave, and how much
 * is enough. Each counts for itself: the engine halves its counts, the observer also sees keys outside of all rules. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
    CROSSINGS = 2,     /* so many crossings make a workload pooled */
    SESSION_ROW = 8,   /* contended releases in a row that show that the session is one worker's */
    WORKLOAD_ROW = 16, /* contended releases in a row that show it of all the workload's sessions */
    SURPLUS = 3        /* D1: losers release from so many releases more than acquisitions on */
};

/* D1: whether losers send some of the releases: their surplus over the acquisitions is large, and at least half of what
 * losers may have sent. */
static inline bool surplus_is_losers(double releases, double acquired, double losers) {
    return releases - acquired >= SURPLUS && (releases - acquired) * 2 >= losers;
}

/* Whether a release over the session that had acquired shows that it is one worker's: others have lost an attempt
 * during the lease, and the session itself has not. */
static inline bool release_shows_dedicated(bool contended, bool self_lost) {
    return contended && !self_lost;
}

/* C5: whether a new expiry leaves a lock so little of its time that it counts as a release. Both in ms from now. */
static inline bool expiry_releases(int64_t new_ms, int64_t left_ms) {
    return new_ms <= left_ms / 2;
}

/* Whether such releases in a row, of the workload or of one session, show that a session is one worker's.
 * `workload_row`: so many of the workload are enough. */
static inline bool rows_dedicated(uint64_t workload, uint64_t session, uint64_t workload_row) {
    return workload >= workload_row || session >= SESSION_ROW;
}
