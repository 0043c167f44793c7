/* Addresses and networks. */
#include "proxy/base/networks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"

enum { ADDRESS_BYTES = 16 };

struct network {
    int family; /* AF_UNIX: all unix sockets */
    unsigned char address[ADDRESS_BYTES];
    unsigned bits;
};

struct networks {
    atomic_uint references;
    bool all;
    struct network *list;
    size_t count;
};

struct networks *networks_new(void) {
    struct networks *n = memory_zalloc(sizeof(*n));
    atomic_init(&n->references, 1);
    return n;
}

struct networks *networks_ref(struct networks *n) {
    invariant(atomic_load(&n->references) > 0, "freed networks are used again");
    atomic_fetch_add(&n->references, 1);
    return n;
}

void networks_unref(struct networks *n) {
    if (!n || atomic_fetch_sub(&n->references, 1) > 1)
        return;
    invariant(atomic_load(&n->references) == 0, "networks are freed that have %u references",
              atomic_load(&n->references));
    MEMORY_FREE_ALL(n->list, n);
}

/* Whether two addresses begin with the same bits. */
static bool same_bits(const unsigned char *a, const unsigned char *b, unsigned bits) {
    invariant(bits <= ADDRESS_BYTES * 8, "a prefix of %u bits", bits);
    if (memcmp(a, b, bits / 8) != 0)
        return false;
    return bits % 8 == 0 || (a[bits / 8] ^ b[bits / 8]) >> (8 - bits % 8) == 0;
}

/* Reads the bits of a prefix, up to `most`. */
static bool read_bits(const char *text, unsigned most, unsigned *bits) {
    size_t len = strlen(text);
    if (len == 0 || len > 3 || strspn(text, "0123456789") != len)
        return false;
    *bits = (unsigned)strtoul(text, NULL, 10);
    return *bits <= most;
}

bool networks_add(struct networks *n, const char *word) {
    struct network net = {.family = AF_UNIX};
    if (strcasecmp(word, "unix") != 0) {
        char address[INET6_ADDRSTRLEN];
        const char *slash = strchr(word, '/');
        size_t len = slash ? (size_t)(slash - word) : strlen(word);
        if (len >= sizeof(address))
            return false;
        memcpy(address, word, len);
        address[len] = '\0';
        net.family = strchr(address, ':') ? AF_INET6 : AF_INET;
        unsigned width = net.family == AF_INET ? 32 : 128;
        net.bits = width;
        if (inet_pton(net.family, address, net.address) != 1 || (slash && !read_bits(slash + 1, width, &net.bits)))
            return false;
        for (unsigned i = net.bits; i < width; i++)
            if (net.address[i / 8] & (0x80 >> i % 8))
                return false;
    }
    *ARRAY_ADD(n->list, n->count) = net;
    return true;
}

void networks_add_all(struct networks *n) {
    n->all = true;
}

bool networks_are_all(const struct networks *n) {
    return n->all;
}

bool networks_are_none(const struct networks *n) {
    return !n->all && n->count == 0;
}

bool networks_have(const struct networks *n, const struct sockaddr_storage *address) {
    const struct sockaddr_in *in = (const void *)address;
    const struct sockaddr_in6 *in6 = (const void *)address;
    int family = address->ss_family;
    unsigned char bytes[ADDRESS_BYTES] = {0};
    if (family == AF_INET) {
        memcpy(bytes, &in->sin_addr, sizeof(in->sin_addr));
    } else if (family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
        family = AF_INET;
        memcpy(bytes, in6->sin6_addr.s6_addr + 12, 4);
    } else if (family == AF_INET6) {
        memcpy(bytes, &in6->sin6_addr, sizeof(in6->sin6_addr));
    }
    bool found = n->all;
    for (size_t i = 0; i < n->count && !found; i++)
        found = n->list[i].family == family && same_bits(n->list[i].address, bytes, n->list[i].bits);
    return found;
}

void networks_text(const struct networks *n, struct text *out) {
    for (size_t i = 0; i < n->count; i++) {
        const struct network *net = &n->list[i];
        char address[INET6_ADDRSTRLEN] = "unix";
        unsigned width = net->family == AF_INET ? 32 : net->family == AF_INET6 ? 128 : 0;
        if (width > 0)
            inet_ntop(net->family, net->address, address, sizeof(address));
        text_printf(out, "%s%s", i ? " " : "", address);
        if (net->bits != width)
            text_printf(out, "/%u", net->bits);
    }
    if (n->count == 0)
        text_printf(out, "%s", n->all ? "yes" : "no");
}
