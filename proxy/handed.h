/* How a process passes its sockets to the process that takes over: successor.c writes these variables, inherit.c reads
 * them. */
#ifndef LOCKKEEPER_HANDED_H
#define LOCKKEEPER_HANDED_H

#define HANDED_SOCKETS "LOCKKEEPER_HANDED"
#define HANDED_PATH    "LOCKKEEPER_HANDED_PATH"
#define HANDED_MARK    "LOCKKEEPER_HANDED_MARK"  /* see worker/lock_space.h; empty: there is none */
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

#endif
