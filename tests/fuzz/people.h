/*
 * The clients that the fuzzer plays. The bytes that they get are always framed as RESP; if nodes and clients follow the
 * protocol, each request gets exactly one reply, its own, in order.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { PEOPLE = 5 };

/* What a reply has to be, apart from an error. */
enum expect_kind {
    EXPECT_STATUS, /* +... */
    EXPECT_NUMBER, /* an integer */
    EXPECT_NAMES,  /* a string that is the key; of several keys an array of them */
    EXPECT_EXEC    /* an array of what was queued, or nil */
};

struct expect {
    enum expect_kind kind;
    unsigned first, count; /* the keys' numbers, for EXPECT_NAMES */
};

/* strict: replies are held against what is expected. */
void people_begin(bool strict);
void people_end(void);
/* Sends bytes as the client, which connects first if needed. */
void people_send(unsigned client, const char *bytes, size_t len);
void people_expect(unsigned client, const struct expect *expect);
void people_leave(unsigned client);
void people_half_close(unsigned client);
/* While it is deaf it reads nothing. */
void people_deafen(unsigned client, bool deaf);
/* Reads what there is and writes what waits. False: there was nothing to do. */
bool people_turn(void);
/* Whether no client waits for a reply. */
bool people_content(void);
