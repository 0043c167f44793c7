/*
 * The upstream's tick, which runs fast while something is in flight; random numbers; the announcement that the upstream
 * is ready.
 */
#include "proxy/upstream/connection/private.h"

/* The next number of splitmix64, for jitter. */
static uint64_t next_random(struct upstream *u) {
    uint64_t z = u->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t upstream_random(struct upstream *u, uint32_t below) {
    return (uint32_t)(next_random(u) % below);
}

int64_t upstream_jitter(struct upstream *u, int64_t ms) {
    return ms - ms / 4 + (int64_t)(next_random(u) % (uint64_t)(ms / 2 + 1));
}

void upstream_set_tick(struct upstream *u, bool fast) {
    u->tick_fast = fast;
    ev_timer_stop(u->loop, &u->tick);
    double period = fast ? TICK_FAST_S : TICK_SLOW_S;
    ev_timer_set(&u->tick, period, period);
    ev_timer_start(u->loop, &u->tick);
}

void upstream_wake(struct upstream *u) {
    if (!u->tick_fast)
        upstream_set_tick(u, true);
}

void upstream_announce(struct upstream *u, const char *error) {
    if (u->announced)
        return;
    u->announced = true;
    if (u->events.ready)
        u->events.ready(u->events.arg, error);
}
