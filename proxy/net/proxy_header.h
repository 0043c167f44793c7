/*
 * The header of the PROXY protocol, versions 1 (a line) and 2 (binary), with which a load balancer says whose
 * connection it passes on (HAProxy's specification "The PROXY protocol"). Pure: bytes in, addresses out; reads no
 * socket and believes nobody.
 */
#ifndef LOCKKEEPER_NET_PROXY_HEADER_H
#define LOCKKEEPER_NET_PROXY_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* The most bytes of a header that are read: what one TCP segment carries everywhere. */
enum { PROXY_HEADER_MAX = 536 };

enum proxy_header_result {
    PROXY_HEADER_MORE,  /* so far it is one, and all bytes belong to it */
    PROXY_HEADER_DONE,  /* a whole header is there, and maybe more behind it */
    PROXY_HEADER_NONE,  /* something else */
    PROXY_HEADER_WRONG, /* one, with something wrong in it */
};

struct proxy_header {
    size_t len; /* of the header */
    bool local; /* the balancer's own connection, a health check: nobody is behind it */
    /* The client's end, and what it connected to. AF_INET, AF_INET6 (never an IPv4 address in disguise) or AF_UNIX
     * (which has no name); AF_UNSPEC: the balancer does not say, and the connection's own ends count. */
    struct sockaddr_storage client, reached;
};

/* Reads what has come of a connection. DONE: *header is filled. WRONG: *wrong says what is, static text. The same bytes
 * give the same result whatever the pieces they came in. MORE is never said of PROXY_HEADER_MAX bytes. */
enum proxy_header_result proxy_header_read(const void *bytes, size_t len, struct proxy_header *header,
                                           const char **wrong);

#endif
