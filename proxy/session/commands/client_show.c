/*
 * A client's line in CLIENT LIST and CLIENT INFO: Redis's format, with the facts known to this process. Facts that only
 * a node knows (for instance the memory of arguments) are 0.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proxy/session/commands/private.h"
#include "proxy/session/push/push.h"
#include "proxy/session/transaction/transaction.h"

enum client_kind client_kind_of(const struct session *s) {
    struct pubsub_counts n = pubsub_count(s);
    return n.channels + n.patterns + n.shards > 0 ? CLIENT_PUBSUB : CLIENT_NORMAL;
}

enum client_kind client_kind_named(const char *name, size_t len) {
    static const struct {
        const char *name;
        enum client_kind kind;
    } kinds[] = {{"normal", CLIENT_NORMAL},
                 {"pubsub", CLIENT_PUBSUB},
                 {"master", CLIENT_MASTER},
                 {"slave", CLIENT_REPLICA},
                 {"replica", CLIENT_REPLICA}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strlen(kinds[i].name) == len && strncasecmp(kinds[i].name, name, len) == 0)
            return kinds[i].kind;
    return CLIENT_KIND_UNKNOWN;
}

void client_local_address(const struct session *s, char *out) {
    struct sockaddr_storage local;
    socklen_t len = sizeof(local);
    out[0] = '\0';
    if (getsockname(s->fd, (struct sockaddr *)&local, &len) != 0)
        return;
    const struct sockaddr_un *un = (const void *)&local;
    const char *path = s->worker->shared->unix_path;
    if (local.ss_family == AF_UNIX && path)
        snprintf(out, CLIENT_ADDRESS_MAX, "%s:0", path);
    else if (local.ss_family == AF_UNIX)
        snprintf(out, CLIENT_ADDRESS_MAX, "%.*s:0", (int)sizeof(un->sun_path), un->sun_path);
    else
        session_address_text(&local, out, CLIENT_ADDRESS_MAX);
}

static bool by_unix_socket(const struct session *s) {
    return !s->forwarded && strncmp(s->address, "unix:", 5) == 0;
}

void client_address(const struct session *s, char *out) {
    if (by_unix_socket(s)) /* the client's end has no name: Redis shows the socket's */
        client_local_address(s, out);
    else
        snprintf(out, CLIENT_ADDRESS_MAX, "%s", s->address);
}

/* Writes a client's flags: Redis's letters, in Redis's order. */
static void flags_text(const struct session *s, const struct pubsub_counts *n, char *out) {
    char *p = out;
    if (n->monitor)
        *p++ = 'O';
    if (n->channels + n->patterns + n->shards > 0)
        *p++ = 'P';
    if (transaction_count(s) >= 0)
        *p++ = 'x';
    if (s->delays & (DELAY_BLOCKED | DELAY_PAUSED))
        *p++ = 'b';
    if (tracking_state(s).on)
        *p++ = 't';
    if (tracking_state(s).bcast)
        *p++ = 'B';
    if (s->state == SESSION_FINISHING)
        *p++ = 'c';
    if (by_unix_socket(s))
        *p++ = 'U';
    if (commands_of(s)->no_evict)
        *p++ = 'e';
    if (p == out)
        *p++ = 'N';
    *p = '\0';
}

void client_show(struct session *s, struct text *out) {
    char address[CLIENT_ADDRESS_MAX], local[CLIENT_ADDRESS_MAX], flags[16];
    struct pubsub_counts n = pubsub_count(s);
    client_address(s, address);
    client_local_address(s, local);
    flags_text(s, &n, flags);
    size_t waiting = s->input ? s->input->end - s->input->start : 0;
    size_t output = s->out.unsent + s->held_bytes; /* including replies that wait for earlier replies */
    const char *sub =
        s->last && s->last->need != NEED_KEY && (s->last->flags & COMMAND_SUBCOMMANDS) ? commands_of(s)->last_word : "";
    int64_t idle = (worker_turn_us(s->worker) - s->active_us) / 1000000;
    text_printf(out,
                "id=%llu addr=%s laddr=%s fd=%d name=%s age=%lld idle=%lld flags=%s db=%u sub=%lld psub=%lld ssub=%lld "
                "multi=%lld qbuf=%zu qbuf-free=%zu argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=%zu "
                "tot-mem=%zu events=%s cmd=%s%s%s user=%s redir=%d resp=%d lib-name=%s lib-ver=%s\n",
                (unsigned long long)s->lock.id, address, local, s->fd, s->name ? s->name : "",
                (long long)(worker_now(s->worker) - s->opened_ms) / 1000, (long long)idle, flags, s->lane.db,
                (long long)n.channels, (long long)n.patterns, (long long)n.shards, (long long)transaction_count(s),
                waiting + commands_of(s)->reading, s->input ? s->input->cap - waiting : 0, output,
                sizeof(*s) + (s->input ? s->input->cap : 0) + s->in_flight_bytes + output,
                s->io.events & EV_WRITE ? "rw" : "r", s->last ? s->last->name : "NULL", *sub ? "|" : "", sub,
                s->user ? s->user : "default", tracking_state(s).on ? 0 : -1, s->lane.protocol,
                s->lib_name ? s->lib_name : "", s->lib_version ? s->lib_version : "");
}
