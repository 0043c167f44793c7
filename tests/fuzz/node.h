/*
 * Nodes that the fuzzer plays: they answer as Redis would, or as the input says. Connections come from connect(), which
 * fuzz_world.c replaces; there is no network.
 *
 * It knows nothing of the proxy.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NODES = 4, NODE_PORT = 7000 };

/* What becomes of a request's reply. */
enum answer_kind {
    ANSWER_PROPER,  /* as Redis would */
    ANSWER_ERROR,   /* number: which of nodes_error's */
    ANSWER_MOVED,   /* number: the node */
    ANSWER_ASK,     /* the same */
    ANSWER_PIECES,  /* number: the bytes of the first piece, then one a turn */
    ANSWER_CUT,     /* number: the bytes that come before the connection closes */
    ANSWER_NEVER,   /* no reply, until the connection ends */
    ANSWER_CHANGED, /* number: which byte becomes `byte` */
    ANSWER_BYTES,   /* these bytes */
    ANSWER_BEHIND,  /* these bytes (a push, say), then as Redis would */
    ANSWER_BIG,     /* a string of number KB */
    ANSWER_NESTED   /* number arrays in each other, of which the last has an element if byte is odd */
};

struct answer {
    enum answer_kind kind;
    size_t number;
    char byte;
    const char *bytes; /* borrowed until the end of the run */
    size_t len;
};

/* A run begins: nothing is connected. `tame`: lock scripts' answers have the shape of their command. */
void nodes_begin(bool tame);
void nodes_end(void);
/* The proxy connects to the node of this port, 0 and *fd is its end of the connection; or -1: it refuses. */
int nodes_connect(int port, int *fd);
void nodes_refuse(unsigned node, bool refuse);
/* The next request of all gets this answer, the one after it the answer that is given next, ... */
void nodes_answer_next(const struct answer *answer);
/* While held no request is answered. */
void nodes_hold(bool hold);
/* What lock scripts say: a number picks the outcome. */
void nodes_mood(uint8_t mood);
/* Bytes without a request, and the end of a connection; of the open ones that many further on. */
void nodes_send(unsigned connection, const char *bytes, size_t len);
void nodes_close(unsigned connection);
/* Reads and answers. False: there was nothing to do. */
bool nodes_turn(void);
