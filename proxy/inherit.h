/*
 * Listening sockets that were passed to this process at its start: by systemd (sd_listen_fds(3)), or by the process
 * from which it takes over (successor.c).
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

/* successor.c writes these variables, inherit.c reads them. */
#define HANDED_SOCKETS "LOCKKEEPER_HANDED"
#define HANDED_PATH    "LOCKKEEPER_HANDED_PATH"
#define HANDED_MARK    "LOCKKEEPER_HANDED_MARK"  /* see worker/same_redis.c; empty: there is none */
#define HANDED_BOARD   "LOCKKEEPER_HANDED_BOARD" /* base/handed_board.h: its descriptor, behind the sockets; 0: none */
/* What the new process writes to the pipe: it accepts clients; its Redis is another one, and the clients of the old
 * process are to be let go. */
#define HANDED_READY  '\0'
#define HANDED_LET_GO 'L'
/* A letter for each use of a socket (enum socket_use); a capital if systemd has passed it. */
#define HANDED_LETTERS "pPtTaA"
/* All variables that must be removed from the environment of a program that gets no sockets. */
#define HANDED_NAMES                                                                                                   \
    HANDED_SOCKETS, HANDED_PATH, HANDED_MARK, HANDED_BOARD, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"

/* What a socket is for. */
enum socket_use { SOCKET_PLAIN, SOCKET_TLS, SOCKET_ADMIN };

/* A listening socket that one process passes to another. */
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
/* Takes a socket that listens on the address for that use; -1: there is none, or no more. */
int inherit_take(struct inherited *in, const struct sockaddr *address, enum socket_use use);
/* Takes the predecessor's unix socket if it is at this path; -1: there is none. */
int inherit_take_unix(struct inherited *in, const char *path);
/* Closes the sockets that were not taken. Removes the file of the predecessor's unix socket if the path has changed. */
void inherit_close_rest(struct inherited *in);
/* Tells the predecessor HANDED_READY or HANDED_LET_GO. From any thread; at most once. */
void inherit_tell(struct inherited *in, char word);
/* Frees the set, but not the sockets that were taken. */
void inherit_free(struct inherited *in);
