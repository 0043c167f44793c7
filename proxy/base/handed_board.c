#include "proxy/base/handed_board.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proxy/base/clock.h"

enum { STALE_MS = 5000 };

struct handed_board {
    atomic_int_fast64_t at_ms, pid, clients, leases, end_ms;
};

static struct handed_board *map(int fd) {
    void *at = mmap(NULL, sizeof(struct handed_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

struct handed_board *handed_board_new(int *fd) {
    *fd = memfd_create("lockkeeper", MFD_CLOEXEC);
    struct handed_board *b = *fd >= 0 && ftruncate(*fd, sizeof(struct handed_board)) == 0 ? map(*fd) : NULL;
    if (!b && *fd >= 0)
        close(*fd);
    return b;
}

struct handed_board *handed_board_open(int fd) {
    struct stat file;
    bool whole = fstat(fd, &file) == 0 && file.st_size == (off_t)sizeof(struct handed_board);
    struct handed_board *b = whole ? map(fd) : NULL;
    if (whole)
        close(fd);
    return b;
}

void handed_board_write(struct handed_board *b, const struct handed_counts *counts) {
    atomic_store(&b->pid, counts->pid);
    atomic_store(&b->clients, counts->clients);
    atomic_store(&b->leases, counts->leases);
    atomic_store(&b->end_ms, clock_ms() + counts->longest_ms);
    atomic_store(&b->at_ms, clock_ms());
}

struct handed_counts handed_board_read(struct handed_board *b) {
    if (!b || clock_ms() - atomic_load(&b->at_ms) > STALE_MS)
        return (struct handed_counts){0};
    return (struct handed_counts){
        .pid = atomic_load(&b->pid), .clients = atomic_load(&b->clients), .leases = atomic_load(&b->leases)};
}

bool handed_board_gone(struct handed_board *b, int64_t *left_ms) {
    int64_t now = clock_ms(), end = atomic_load(&b->end_ms);
    *left_ms = end > now ? end - now : 0;
    return atomic_load(&b->pid) == 0 || now - atomic_load(&b->at_ms) > STALE_MS;
}
