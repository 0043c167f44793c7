/*
 * By which names a session's client is known: to the engine, to the limits per client, in the log and in incidents.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "parser/invariant.h"
#include "proxy/session/core/session.h"

void session_identify(struct session *s) {
    unsigned fields = s->worker->config->client_identity;
    char text[LOCK_IDENTITY_MAX];
    char host[SESSION_ADDRESS_MAX];
    snprintf(host, sizeof(host), "%s", s->address);
    char *colon = strrchr(host, ':');
    if (colon && !(fields & IDENTITY_PORT))
        *colon = '\0';
    int n = snprintf(text, sizeof(text), "%s", fields & (IDENTITY_ADDRESS | IDENTITY_PORT) ? host : "");
    const char *user = s->user ? s->user : "default";
    if ((fields & IDENTITY_USER) && n < (int)sizeof(text))
        n += snprintf(text + n, sizeof(text) - (size_t)n, " user=%s", user);
    if ((fields & IDENTITY_NAME) && s->name && n < (int)sizeof(text))
        n += snprintf(text + n, sizeof(text) - (size_t)n, " name=%s", s->name);
    size_t len = n < (int)sizeof(text) ? (size_t)n : sizeof(text) - 1;
    s->lock.login = s->lane.login;
    invariant(len < LOCK_IDENTITY_MAX, "an identity of %zu bytes", len);
    atomic_store_explicit(&s->worker->shared->came_ms, worker_now(s->worker), memory_order_relaxed);
    engine_session_identify(s->worker->shared->engine, &s->lock, text, len, worker_now(s->worker));
}

size_t session_who(const struct session *s, char *out, size_t size) {
    int n = snprintf(out, size, "%s%s%s", s->address, s->name ? " " : "", s->name ? s->name : "");
    return n < (int)size ? (size_t)n : size - 1;
}

const char *session_host(const struct session *s, char *out, size_t size) {
    struct in6_addr at;
    snprintf(out, size, "%s", s->address);
    char *colon = strrchr(out, ':'), *bracket = strrchr(out, ']');
    if (colon)
        *colon = '\0';
    if (out[0] != '[' || !bracket)
        return out;
    *bracket = '\0';
    if (inet_pton(AF_INET6, out + 1, &at) != 1)
        return out;
    memset(&at.s6_addr[8], 0, 8);
    inet_ntop(AF_INET6, &at, out, (socklen_t)size);
    return out;
}

void session_address_text(const struct sockaddr_storage *a, char *out, size_t size) {
    char host[INET6_ADDRSTRLEN] = "";
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)a;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        snprintf(out, size, "%s:%d", host, ntohs(in->sin_port));
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)a;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        snprintf(out, size, "[%s]:%d", host, ntohs(in6->sin6_port));
    } else {
        snprintf(out, size, "unix:0");
    }
}
