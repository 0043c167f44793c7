/*
 * A mutex for short sections that are seldom contended: a few instructions where nobody else has it. Who finds it taken
 * sleeps in the kernel (futex; the construction is Ulrich Drepper's). Not recursive, and nobody is told who has it.
 */
#ifndef LOCKKEEPER_BASE_MUTEX_H
#define LOCKKEEPER_BASE_MUTEX_H

#include <stdatomic.h>

struct mutex {
    atomic_int state; /* 0 free, 1 taken, 2 taken and somebody may be waiting */
};

/* mutex.c: the ways that wait, and wake. */
void mutex_wait(struct mutex *m);
void mutex_wake(struct mutex *m);

static inline void mutex_init(struct mutex *m) {
    atomic_init(&m->state, 0);
}

static inline void mutex_lock(struct mutex *m) {
    int free = 0;
    if (!atomic_compare_exchange_strong_explicit(&m->state, &free, 1, memory_order_acquire, memory_order_relaxed))
        mutex_wait(m);
}

static inline void mutex_unlock(struct mutex *m) {
    if (atomic_exchange_explicit(&m->state, 0, memory_order_release) == 2)
        mutex_wake(m);
}

#endif
