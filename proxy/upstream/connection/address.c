/*
 * The text of an address, as configuration, MOVED and CLUSTER SLOTS write it. It opens no sockets and looks up no
 * names.
 *
 * Nodes send addresses too, and addresses go into logs and error replies: a host may only contain harmless bytes.
 */
#include "proxy/upstream/connection/private.h"

#include <stdio.h>
#include <string.h>

bool address_host_ok(const char *host, size_t len) {
    static const char extra[] = ".-_:%";
    for (size_t i = 0; i < len; i++) {
        char c = host[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && (c == '\0' || !strchr(extra, c)))
            return false;
    }
    return len < 256;
}

static bool parse_port(const char *text, size_t len, int *port) {
    int64_t n;
    if (len > 5 || !resp_integer(text, len, &n) || n < 1 || n > 65535)
        return false;
    *port = (int)n;
    return true;
}

static bool parse_unix(const char *path, size_t len, struct address *out) {
    if (len == 0 || len >= 108 || memchr(path, '\0', len))
        return false;
    memcpy(out->host, path, len);
    out->host[len] = '\0';
    out->port = 0;
    return true;
}

bool address_parse(const char *text, size_t len, struct address *out) {
    if (len > 5 && memcmp(text, "unix:", 5) == 0)
        return parse_unix(text + 5, len - 5, out);
    const char *colon = memrchr(text, ':', len);
    if (!colon)
        return false;
    size_t host_len = (size_t)(colon - text);
    if (!parse_port(colon + 1, len - host_len - 1, &out->port))
        return false;
    if (host_len >= 2 && text[0] == '[' && text[host_len - 1] == ']') {
        text++;
        host_len -= 2;
    }
    if (!address_host_ok(text, host_len))
        return false;
    memcpy(out->host, text, host_len);
    out->host[host_len] = '\0';
    return true;
}

void address_text(const struct address *a, char *out, size_t size) {
    if (a->port == 0)
        snprintf(out, size, "unix:%s", a->host);
    else if (strchr(a->host, ':'))
        snprintf(out, size, "[%s]:%d", a->host, a->port);
    else
        snprintf(out, size, "%s:%d", a->host, a->port);
}
