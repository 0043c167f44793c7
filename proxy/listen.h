/*
 * The listening sockets, opened before any thread starts, so that a port in use is an error at start.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "proxy/base/text.h"
#include "proxy/config/config.h"
#include "proxy/inherit.h"
#include "proxy/worker/worker.h"

/* An address on which this process listens. */
struct listen_claim {
    struct sockaddr_storage address;
    const char *directive; /* "port", "tls-port" */
};

/* The sockets of one thread. */
struct listen_row {
    struct worker_socket *sockets;
    size_t count;
};

struct listen_set {
    bool trial;              /* only checks; no socket stays open */
    struct listen_row *rows; /* one for each thread */
    size_t threads;
    struct inherited *inherited; /* sockets to use before others are opened; borrowed */
    const char *unix_path;       /* NULL: no unix socket, or it is systemd's */
    ino_t unix_inode;            /* of the unix socket's file */
    struct listen_claim *claims;
    size_t claim_count;
    struct text text; /* the addresses, "127.0.0.1:6380, unix:/run/..." */
};

/* Opens bind x port and bind x tls-port for each thread, and unixsocket. With several threads, or with reuse-port, it
 * uses SO_REUSEPORT. Inherited sockets (borrowed) are used first; if systemd has passed sockets, only these are used.
 * False: all errors were added to `errors`, without those that follow from earlier errors. The workers own the
 * descriptors. trial: only checks whether it is possible. A port in use is no error then: it may be in use by a proxy
 * of this configuration. */
bool listen_open(struct listen_set *set, const struct config *config, struct inherited *inherited, bool trial,
                 struct config_errors *errors);
/* Opens admin-bind x admin-port, or takes it from the inherited sockets; call it after listen_open. The caller owns the
 * descriptor. -1: the errors were added to `errors`; in a trial there may be none. */
int listen_admin(struct listen_set *set, const struct config *config, struct config_errors *errors);
/* Lists the sockets to pass to another process; the caller frees the list. Call it before the workers close them. */
struct handed_socket *listen_offer(const struct listen_set *set, size_t *count);
/* Whether another process also listens on one of the set's addresses (SO_REUSEPORT), or has replaced the unix socket by
 * its own. Call it before the workers close them. */
bool listen_has_rival(const struct listen_set *set);
/* Frees the set (not the descriptors) and removes the unix socket's file, if it is still this process's. `handed`:
 * another process has it too. */
void listen_close(struct listen_set *set, bool handed);
