/*
 * The cells of the traffic table: applications, and what attribution reaches where the rules are kept.
 */
#pragma once

#include "tests/sim/traffic_world.h"

enum { CELL_TRIPS = 8000, CELL_RUNS = 5 };

/* Per 10,000 acquisitions; most: holders' releases refused one after the other; share: acquisitions against those of
 * the same traffic on bare Redis; idle: the share of the time, in percent, in which a lock stands and no worker is at
 * work under it. */
struct figures {
    double wrong, lost, cut, unexpired, moved, most, share, idle;
};

struct bare_figures {
    double wrong;    /* per 10,000 acquisitions */
    double acquired; /* in 10,000 round trips */
};

struct cell {
    const char *name;
    struct app_plan apps[TRAFFIC_APPS];
    struct figures rules; /* what the rules reach */
    struct bare_figures bare;
    bool stuck;      /* bare Redis comes to a standstill sooner or later */
    unsigned judged; /* the applications that count: 0 all, 1 the first, 2 the second */
    unsigned trips;  /* a run; 0: CELL_TRIPS */
    unsigned runs;   /* 0: CELL_RUNS */
};

extern const struct cell TRAFFIC_CELLS[];
extern const unsigned TRAFFIC_CELL_COUNT;
