/*
 * The listening sockets: opened before any thread starts, so that a port that is taken is an error at start.
 */
#ifndef LOCKKEEPER_LISTEN_H
#define LOCKKEEPER_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "proxy/base/text.h"
#include "proxy/config/config.h"
#include "proxy/worker/worker.h"

struct listen_set {
    struct worker_socket *sockets; /* thread 0's first, then thread 1's, ... */
    size_t per_thread;             /* TCP sockets of each thread */
    size_t threads;
    bool unix_socket; /* one more, of thread 0 alone: the first of all */
    const char *unix_path;
    ino_t unix_inode; /* of its file */
    struct text text;
};

/* Opens a TCP socket that listens on an address of this machine; -1 with errno (0: it is no address). With reuse_port
 * other processes may have the same one. */
int listen_address(const char *address, int64_t port, bool reuse_port, int backlog);
/* Opens bind x port and bind x tls-port for each thread (SO_REUSEPORT where there are several, or reuse-port says so),
 * and unixsocket. False with one line in error. The descriptors become the workers'. */
bool listen_open(struct listen_set *set, const struct config *config, char *error, size_t error_size);
/* The descriptors of one thread. */
const struct worker_socket *listen_of_thread(const struct listen_set *set, unsigned thread, size_t *count);
/* What is listened on, "127.0.0.1:6380, unix:/run/..."; borrowed. */
const char *listen_text(const struct listen_set *set);
/* Frees the set (not the descriptors) and removes the unix socket's file, if it is still this
 * process's. */
void listen_close(struct listen_set *set);

#endif
