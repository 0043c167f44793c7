/*
 * Where a mutex is contended. Linux's futex: the kernel compares the state again before it lets a thread sleep.
 */
#include "proxy/base/mutex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

void mutex_wait(struct mutex *m) {
    while (atomic_exchange_explicit(&m->state, 2, memory_order_acquire) != 0)
        syscall(SYS_futex, &m->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void mutex_wake(struct mutex *m) {
    syscall(SYS_futex, &m->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
