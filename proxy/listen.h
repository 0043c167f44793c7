/*
 * The listening sockets, opened before any thread starts, or passed to this process: by systemd (sd_listen_fds(3)), or
 * by the process from which it takes over (ending.c).
 *
 *      systemd        LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES        descriptors 3, 4, ...: they define where to listen
 *      predecessor    LOCKKEEPER_HANDED, a letter for each socket;  descriptor 3: to report that clients are accepted;
 *                     LOCKKEEPER_HANDED_PATH, the unix socket's     4, 5, ...: used if the configuration has them
 *                     LOCKKEEPER_HANDED_MARK, for worker/same_redis.c
 *                     LOCKKEEPER_HANDED_BOARD, for base/handed_board.h
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "proxy/base/text.h"
#include "proxy/config/config.h"
#include "proxy/worker/worker.h"

#define HANDED_SOCKETS "LOCKKEEPER_HANDED"
#define HANDED_PATH    "LOCKKEEPER_HANDED_PATH"
#define HANDED_MARK    "LOCKKEEPER_HANDED_MARK"  /* see worker/same_redis.c; empty: there is none */
#define HANDED_BOARD   "LOCKKEEPER_HANDED_BOARD" /* base/handed_board.h: its descriptor, behind the sockets; 0: none */
/* What the new process writes to the pipe: it accepts clients; its Redis is another one, so let the clients go. */
#define HANDED_READY  '\0'
#define HANDED_LET_GO 'L'
/* A letter for each use of a socket (enum socket_use); a capital if systemd has passed it. */
#define HANDED_LETTERS "pPtTaA"

enum socket_use { SOCKET_PLAIN, SOCKET_TLS, SOCKET_ADMIN };

/* A listening socket that was passed to this process. */
struct handed_socket {
    int fd;
    enum socket_use use;
    bool managed; /* from systemd, which also keeps it open */
    bool taken;   /* in use in this process */
};

struct inherited {
    struct handed_socket *sockets;
    size_t count;
    bool managed;               /* some are systemd's: then the addresses in the configuration are not opened */
    char *path;                 /* the path of the predecessor's unix socket; NULL: none */
    char *mark;                 /* what the predecessor has written to its Redis; NULL: nothing */
    struct handed_board *board; /* the numbers of the process that leaves; NULL: there are none */
    int predecessor;            /* descriptor of the process that waits until clients are accepted; -1: none */
};

/* Reads the variables and removes them from the environment, so that programs started from here get no sockets. */
void inherit_read(struct inherited *in);
/* Closes the sockets that were not taken. Removes the file of the predecessor's unix socket if the path has changed. */
void inherit_close_rest(struct inherited *in);
/* Tells the predecessor HANDED_READY or HANDED_LET_GO. From any thread; at most once. */
void inherit_tell(struct inherited *in, char word);
/* Frees the set, but not the sockets that were taken. */
void inherit_free(struct inherited *in);

struct listen_claim {
    struct sockaddr_storage address; /* this process listens there */
    const char *directive;           /* "port", "tls-port" */
};

struct listen_set {
    bool trial; /* only checks; no socket stays open */
    struct worker_socket *sockets;
    size_t count, threads;
    int admin_fd;                /* of admin-bind x admin-port; -1: none */
    struct inherited *inherited; /* sockets to use before others are opened; borrowed */
    const char *unix_path;       /* NULL: no unix socket, or it is systemd's */
    ino_t unix_inode;            /* of the unix socket's file */
    struct listen_claim *claims;
    size_t claim_count;
    struct text text; /* the addresses, "127.0.0.1:6380, unix:/run/..." */
};

/* Opens bind x port and bind x tls-port for each thread (SO_REUSEPORT with several), unixsocket, and the admin port.
 * Inherited sockets (borrowed) are used first; if systemd has passed sockets, only these for clients. The workers own
 * the descriptors of clients, the caller admin_fd. False: all errors were added to `errors`, without those that follow
 * from others. trial: only checks; a port in use is no error then, since a proxy of this configuration may use it. */
bool listen_open(struct listen_set *set, const struct config *config, struct inherited *inherited, bool trial,
                 struct config_errors *errors);
/* Whether another process also listens on one of the set's addresses (SO_REUSEPORT), or has replaced the unix socket by
 * its own. Call it before the workers close them. */
bool listen_has_rival(const struct listen_set *set);
/* Frees the set (not the descriptors) and removes the unix socket's file, if it is still this process's. `handed`:
 * another process has it too. */
void listen_close(struct listen_set *set, bool handed);
