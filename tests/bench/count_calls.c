/*
 * Counts the system calls that a program makes through the C library to read, write and wait, without slowing it down:
 * a tool that stops the program at each call changes how many requests it finds waiting.
 *
 *   LD_PRELOAD=./count_calls.so COUNT_CALLS_TO=FILE PROGRAM ...      writes their number to FILE at the end
 *
 * Calls that an event loop does not make in each turn (opening, accepting, resolving) are not counted.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_ulong calls;

#define COUNTED(type, name, parameters, ...)                                                                           \
    type name parameters {                                                                                             \
        static type(*real) parameters;                                                                                 \
        if (!real)                                                                                                     \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                                                 \
        atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);                                                    \
        return real(__VA_ARGS__);                                                                                      \
    }

COUNTED(ssize_t, read, (int fd, void *data, size_t len), fd, data, len)
COUNTED(ssize_t, write, (int fd, const void *data, size_t len), fd, data, len)
COUNTED(ssize_t, readv, (int fd, const struct iovec *parts, int count), fd, parts, count)
COUNTED(ssize_t, writev, (int fd, const struct iovec *parts, int count), fd, parts, count)
COUNTED(ssize_t, recv, (int fd, void *data, size_t len, int flags), fd, data, len, flags)
COUNTED(ssize_t, send, (int fd, const void *data, size_t len, int flags), fd, data, len, flags)
COUNTED(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), fd, message, flags)
COUNTED(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), fd, message, flags)
COUNTED(int, epoll_ctl, (int fd, int what, int of, struct epoll_event *event), fd, what, of, event)
COUNTED(int, epoll_wait, (int fd, struct epoll_event *events, int max, int ms), fd, events, max, ms)
COUNTED(int, poll, (struct pollfd * fds, nfds_t count, int ms), fds, count, ms)

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("COUNT_CALLS_TO");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f) {
        fprintf(f, "%lu\n", atomic_load(&calls));
        fclose(f);
    }
}
