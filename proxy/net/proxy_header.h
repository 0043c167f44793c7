/*
 * The header of the PROXY protocol, versions 1 (a line) and 2 (binary): HAProxy's specification "The PROXY protocol".
 * In it a load balancer names the client whose connection it forwards. Pure: bytes in, addresses out.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* The most bytes of a header that are read: as many as one TCP segment carries on any network. */
enum { PROXY_HEADER_MAX = 536 };

enum proxy_header_result {
    PROXY_HEADER_MORE,  /* a header so far, not complete */
    PROXY_HEADER_DONE,  /* a whole header, perhaps with more bytes after it */
    PROXY_HEADER_NONE,  /* no header */
    PROXY_HEADER_WRONG, /* a malformed header */
};

struct proxy_header {
    size_t len; /* of the header */
    bool local; /* the balancer's own connection, for instance a health check: there is no client */
    /* The client's address, and the address that it connected to. AF_INET, AF_INET6 (never a mapped IPv4 address) or
     * AF_UNIX (without a name). AF_UNSPEC: the balancer does not say; the connection's own addresses count. */
    struct sockaddr_storage client, reached;
};

/* Reads the first bytes of a connection. DONE: *header is filled. WRONG: *wrong is a static text with the reason. The
 * result does not depend on how the bytes were cut. With PROXY_HEADER_MAX bytes the result is never MORE. */
enum proxy_header_result proxy_header_read(const void *bytes, size_t len, struct proxy_header *header,
                                           const char **wrong);
