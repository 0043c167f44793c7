/*
 * A mutex that is held to the end of a block.
 */
#pragma once

#include <pthread.h>

/* Locks `mutex` here, and unlocks it where the block ends, after the value of a `return` was computed. One in a block.
 */
#define MUTEX_GUARD(mutex)                                                                                             \
    __attribute__((cleanup(mutex_guard_end), unused)) pthread_mutex_t *mutex_guard = mutex_guard_begin(mutex)

static inline pthread_mutex_t *mutex_guard_begin(pthread_mutex_t *mutex) {
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void mutex_guard_end(pthread_mutex_t **guard) {
    pthread_mutex_unlock(*guard);
}
