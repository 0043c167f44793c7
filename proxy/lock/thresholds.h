/* How much evidence shows how a workload's sessions and losers behave: the engine acts from then on, and PROXY ADVISE
 * says so. The figures were found by simulation (workload.c). */
#ifndef LOCKKEEPER_LOCK_THRESHOLDS_H
#define LOCKKEEPER_LOCK_THRESHOLDS_H

enum {
    CROSSINGS = 2,     /* so many crossings make a workload pooled */
    SESSION_ROW = 8,   /* contended releases in a row that show that the session is one worker's */
    WORKLOAD_ROW = 16, /* contended releases in a row that show it of all the workload's sessions */
    SURPLUS = 3        /* D1: losers release from so many releases more than acquisitions on */
};

#endif
