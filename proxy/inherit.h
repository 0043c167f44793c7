/*
 * Listening sockets that this process was given when it was started: by systemd (sd_listen_fds(3)), or by the process
 * that it takes over from (successor.c).
 *
 *      systemd        LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES           descriptors 3, 4, ...: they say where to listen
 *      predecessor    LOCKKEEPER_HANDED, a letter for each socket;     descriptor 3: told when clients are accepted;
 *                     LOCKKEEPER_HANDED_PATH, the unix socket's        4, 5, ...: taken where the configuration has
 * them
 */
#ifndef LOCKKEEPER_INHERIT_H
#define LOCKKEEPER_INHERIT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* What a socket is for. */
enum socket_use { SOCKET_PLAIN, SOCKET_TLS, SOCKET_ADMIN };

/* A listening socket that goes from one process to another. */
struct handed_socket {
    int fd;
    enum socket_use use;
    bool managed; /* systemd's, which keeps it open, too */
    bool taken;   /* in use here */
};

struct inherited {
    struct handed_socket *sockets;
    size_t count;
    bool managed;    /* some are systemd's: the configuration's addresses are not opened */
    char *path;      /* of the unix socket among the predecessor's; NULL: none */
    int predecessor; /* who waits to be told that clients are accepted; -1: nobody */
};

/* Reads what the environment says, and takes it out of it: programs that are started from here are given nothing. */
void inherit_read(struct inherited *in);
/* Takes a socket that listens on the address for that use; -1: there is none (any more). */
int inherit_take(struct inherited *in, const struct sockaddr *address, enum socket_use use);
/* Takes the predecessor's unix socket if it is at this path; -1: there is none. */
int inherit_take_unix(struct inherited *in, const char *path);
/* Closes what nobody has taken. The predecessor's unix socket's file is removed if its place is another one now. */
void inherit_close_rest(struct inherited *in);
/* Tells the predecessor that clients are accepted, so that it leaves. From any thread; may be called once. */
void inherit_tell_ready(struct inherited *in);
/* Frees the set, not the sockets that were taken. */
void inherit_free(struct inherited *in);

#endif
