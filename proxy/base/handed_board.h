/*
 * A few numbers in memory that two processes have: the process that leaves writes them, the process that has taken over
 * shows them. The file of the memory is passed on like a socket (listen.c).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct handed_board;

/* The process that leaves; all 0: there is none. */
struct handed_counts {
    int64_t pid, clients, leases;
    int64_t longest_ms; /* how long the longest lease lasts that it let go of; 0: none */
};

/* Makes a board; *fd is its file, which is closed on exec. NULL: the system has no memory for it. */
struct handed_board *handed_board_new(int *fd);
/* Opens the board of this file, and closes the file. NULL: it is none. */
struct handed_board *handed_board_open(int fd);
/* Writes the numbers; at least once a second, else they count as those of a process that is gone. */
void handed_board_write(struct handed_board *b, const struct handed_counts *counts);
/* Reads them. `b` may be NULL. Thread-safe. */
struct handed_counts handed_board_read(struct handed_board *b);
/* Whether the process is gone: it has written pid 0, or nothing of late. `left_ms`: how long its longest lease still
 * lasts. Thread-safe. */
bool handed_board_gone(struct handed_board *b, int64_t *left_ms);
