/*
 * Reads PROXY protocol headers.
 *
 *      1   "PROXY TCP4 10.0.0.5 10.0.0.1 50123 6380\r\n", "PROXY TCP6 ...", "PROXY UNKNOWN ...": at most 107 bytes
 *      2   12 bytes signature, version and command, family and transport, 2 bytes length, addresses, more (TLVs)
 *
 * Bytes that the specification forbids are refused, as it demands. TLVs are skipped.
 */
#include "proxy/net/proxy_header.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/text.h"

static const char LINE_BEGIN[] = "PROXY ";
static const unsigned char SIGNATURE[] = {0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a};

enum {
    LINE_MAX_BYTES = 107,
    FIXED = sizeof(SIGNATURE) + 4, /* of version 2, before the addresses */
    IPV4_BYTES = 12,
    IPV6_BYTES = 36,
    UNIX_BYTES = 216,
    PORT_DIGITS = 5,
};

static enum proxy_header_result refuse(const char **wrong, const char *what) {
    *wrong = what;
    return PROXY_HEADER_WRONG;
}

static void set_ipv4(struct sockaddr_storage *to, const void *address, const void *port) {
    struct sockaddr_in *in = (void *)to;
    in->sin_family = AF_INET;
    memcpy(&in->sin_addr, address, sizeof(in->sin_addr));
    memcpy(&in->sin_port, port, sizeof(in->sin_port));
}

/* Stores an IPv6 address, or the IPv4 address that is mapped to it: a client has the same address over both. */
static void set_ipv6(struct sockaddr_storage *to, const void *address, const void *port) {
    struct sockaddr_in6 *in6 = (void *)to;
    memcpy(&in6->sin6_addr, address, sizeof(in6->sin6_addr));
    if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
        memset(to, 0, sizeof(*to));
        set_ipv4(to, (const char *)address + 12, port);
        return;
    }
    in6->sin6_family = AF_INET6;
    memcpy(&in6->sin6_port, port, sizeof(in6->sin6_port));
}

/* ---- version 1 ------------------------------------------------------------------------------------ */

static bool read_port(const char *text, uint16_t *port) {
    size_t len = text ? strlen(text) : 0;
    if (len == 0 || len > PORT_DIGITS || strspn(text, "0123456789") != len || (text[0] == '0' && len > 1))
        return false;
    unsigned long n = strtoul(text, NULL, 10);
    *port = htons((uint16_t)n);
    return n <= UINT16_MAX;
}

/* Reads the addresses and ports after TCP4 or TCP6. */
static bool line_addresses(char *rest, int family, struct proxy_header *h) {
    unsigned char from[sizeof(struct in6_addr)], to[sizeof(struct in6_addr)];
    uint16_t from_port, to_port;
    const char *client = strsep(&rest, " "), *reached = strsep(&rest, " ");
    if (!client || !reached || inet_pton(family, client, from) != 1 || inet_pton(family, reached, to) != 1 ||
        !read_port(strsep(&rest, " "), &from_port) || !read_port(strsep(&rest, " "), &to_port) || rest)
        return false;
    void (*set)(struct sockaddr_storage *, const void *, const void *) = family == AF_INET ? set_ipv4 : set_ipv6;
    set(&h->client, from, &from_port);
    set(&h->reached, to, &to_port);
    return true;
}

static enum proxy_header_result line_read(const char *bytes, size_t len, struct proxy_header *h, const char **wrong) {
    const char *newline = memchr(bytes, '\n', len < LINE_MAX_BYTES ? len : LINE_MAX_BYTES);
    if (!newline)
        return len < LINE_MAX_BYTES ? PROXY_HEADER_MORE : refuse(wrong, "its line is longer than 107 bytes");
    if (newline[-1] != '\r')
        return refuse(wrong, "its line does not end with CR LF");
    const char *at = bytes + sizeof(LINE_BEGIN) - 1;
    char line[LINE_MAX_BYTES], *rest = line;
    text_printable(line, sizeof(line), at, (size_t)(newline - 1 - at), '?'); /* no word contains '?' */
    h->len = (size_t)(newline - bytes) + 1;
    const char *kind = strsep(&rest, " ");
    if (strcmp(kind, "UNKNOWN") == 0)
        return PROXY_HEADER_DONE; /* the rest of an UNKNOWN line is ignored */
    bool ipv4 = strcmp(kind, "TCP4") == 0;
    if (!ipv4 && strcmp(kind, "TCP6") != 0)
        return refuse(wrong, "expected TCP4, TCP6 or UNKNOWN");
    if (!line_addresses(rest, ipv4 ? AF_INET : AF_INET6, h))
        return refuse(wrong, "expected two addresses and two ports");
    return PROXY_HEADER_DONE;
}

/* ---- version 2 ------------------------------------------------------------------------------------ */

/* Reads the addresses of a forwarded connection. Datagram transports are treated like UNSPEC. */
static enum proxy_header_result addresses_read(const unsigned char *p, size_t len, unsigned kind,
                                               struct proxy_header *h, const char **wrong) {
    size_t need = kind == 0x11 ? IPV4_BYTES : kind == 0x21 ? IPV6_BYTES : kind == 0x31 ? UNIX_BYTES : 0;
    if (len < need)
        return refuse(wrong, "it is shorter than its addresses");
    if (kind == 0x11) {
        set_ipv4(&h->client, p, p + 8);
        set_ipv4(&h->reached, p + 4, p + 10);
    } else if (kind == 0x21) {
        set_ipv6(&h->client, p, p + 32);
        set_ipv6(&h->reached, p + 16, p + 34);
    } else if (kind == 0x31) {
        h->client.ss_family = h->reached.ss_family = AF_UNIX;
    }
    return PROXY_HEADER_DONE;
}

static enum proxy_header_result binary_read(const unsigned char *p, size_t len, struct proxy_header *h,
                                            const char **wrong) {
    if (len > 12 && p[12] >> 4 != 2)
        return refuse(wrong, "its version is not 2");
    if (len > 12 && (p[12] & 15) > 1)
        return refuse(wrong, "its command is neither LOCAL nor PROXY");
    if (len > 13 && (p[13] >> 4 > 3 || (p[13] & 15) > 2))
        return refuse(wrong, "its family or transport is unknown");
    if (len < FIXED)
        return PROXY_HEADER_MORE;
    size_t rest = (size_t)p[14] << 8 | p[15];
    if (FIXED + rest > PROXY_HEADER_MAX)
        return refuse(wrong, "it is longer than 536 bytes");
    h->local = (p[12] & 15) == 0;
    if (len < FIXED + rest)
        return PROXY_HEADER_MORE;
    h->len = FIXED + rest;
    invariant(h->len <= len && h->len <= PROXY_HEADER_MAX, "a header of %zu bytes in %zu", h->len, len);
    return h->local ? PROXY_HEADER_DONE : addresses_read(p + FIXED, rest, p[13], h, wrong);
}

/* Whether the bytes are a beginning of the expected bytes, or begin with all of them. */
static bool begins(const void *bytes, size_t len, const void *expected, size_t expected_len) {
    return memcmp(bytes, expected, len < expected_len ? len : expected_len) == 0;
}

enum proxy_header_result proxy_header_read(const void *bytes, size_t len, struct proxy_header *header,
                                           const char **wrong) {
    const size_t line_begin = sizeof(LINE_BEGIN) - 1;
    *header = (struct proxy_header){0};
    if (len == 0)
        return PROXY_HEADER_MORE;
    if (begins(bytes, len, SIGNATURE, sizeof(SIGNATURE)))
        return len < sizeof(SIGNATURE) ? PROXY_HEADER_MORE : binary_read(bytes, len, header, wrong);
    if (begins(bytes, len, LINE_BEGIN, line_begin))
        return len < line_begin ? PROXY_HEADER_MORE : line_read(bytes, len, header, wrong);
    return PROXY_HEADER_NONE;
}
