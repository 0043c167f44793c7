/*
 * The listening sockets: opened before any thread starts, so that a port that is taken is an error at start.
 */
#ifndef LOCKKEEPER_LISTEN_H
#define LOCKKEEPER_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "proxy/base/text.h"
#include "proxy/config/config.h"
#include "proxy/inherit.h"
#include "proxy/worker/worker.h"

/* An address that somebody of this process listens at. */
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
    bool trial;              /* nothing is opened for good */
    struct listen_row *rows; /* one for each thread */
    size_t threads;
    struct inherited *inherited; /* sockets that are taken before others are opened; borrowed */
    const char *unix_path;       /* NULL: no unix socket, or systemd's */
    ino_t unix_inode;            /* of its file */
    struct listen_claim *claims;
    size_t claim_count;
    struct text text;
};

/* Opens bind x port and bind x tls-port for each thread (SO_REUSEPORT where there are several, or reuse-port says so),
 * and unixsocket, or takes those that are inherited (borrowed); or takes systemd's sockets instead of all these. False:
 * all that is wrong was added to `errors`; what follows from errors that are there already is left out. The descriptors
 * become the workers'. trial: only finds out whether it could be done; a port that another process has, which may be a
 * proxy of the same configuration, is none of its business. */
bool listen_open(struct listen_set *set, const struct config *config, struct inherited *inherited, bool trial,
                 struct config_errors *errors);
/* Opens admin-bind x admin-port, or takes it from what is inherited, behind listen_open; the descriptor is the
 * caller's. -1: what is wrong was added to `errors`, or nothing is, in a trial. */
int listen_admin(struct listen_set *set, const struct config *config, int backlog, struct config_errors *errors);
/* The descriptors of one thread. */
const struct worker_socket *listen_of_thread(const struct listen_set *set, unsigned thread, size_t *count);
/* What is listened on, "127.0.0.1:6380, unix:/run/..."; borrowed. */
const char *listen_text(const struct listen_set *set);
/* Lists the sockets for another process; the caller frees the list. Before the workers close them. */
struct handed_socket *listen_offer(const struct listen_set *set, size_t *count);
/* Whether another process listens on one of the set's addresses as well (SO_REUSEPORT), or has put its own unix socket
 * in the place of this one. Before the workers close them. */
bool listen_has_rival(const struct listen_set *set);
/* Frees the set (not the descriptors) and removes the unix socket's file, if it is still this process's. `handed`: it
 * is another's as well. */
void listen_close(struct listen_set *set, bool handed);

#endif
