/* How sockets go from a process to the one that takes over: what successor.c writes and inherit.c reads. */
#ifndef LOCKKEEPER_HANDED_H
#define LOCKKEEPER_HANDED_H

#define HANDED_SOCKETS "LOCKKEEPER_HANDED"
#define HANDED_PATH    "LOCKKEEPER_HANDED_PATH"
/* A letter for each use of a socket (enum socket_use), capital where it is systemd's. */
#define HANDED_LETTERS "pPtTaA"
/* All that a program which is given no sockets must not find in its environment. */
#define HANDED_NAMES HANDED_SOCKETS, HANDED_PATH, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"

#endif
