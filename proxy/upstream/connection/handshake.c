/*
 * The first commands on a connection: the login, the database, the protocol, and the commands of a dedicated lane.
 *
 *      AUTH ─> SELECT ─> HELLO 3 ─> READONLY ─> dedicated.c's     in one packet, each only where it is needed
 *
 *      ( AUTH as the proxy ─> SELECT ) ─> AUTH ─> ...     for a client's user in another database than 0
 *        the prelude
 *
 * A client may select a database, and then log in as a user without permission for SELECT; on Redis it then stays in
 * the database. So a connection for a user sends SELECT before it logs in: as the proxy's user, or without a login as
 * the node's default user. If the node refuses that, SELECT is sent after the login, as the user. Whether the session
 * may use this database is not decided here: the node has answered the session's own SELECT
 * (proxy/session/commands/local.c).
 *
 * The proxy's own password (login 0) may change. A node that does not know the new password gets the one before: its
 * refusal ends a prelude. Connections that are open log in again between two requests, and stay as they are if the node
 * refuses that.
 */
#include <stdio.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

static void append_select(struct upstream_conn *c, uint32_t db) {
    char number[16], select[64];
    int len = snprintf(number, sizeof(number), "%u", db);
    len = snprintf(select, sizeof(select), "*2\r\n$6\r\nSELECT\r\n$%d\r\n%s\r\n", len, number);
    iobuf_append(&c->handshake, select, (size_t)len);
    c->handshake_left++;
}

static bool no_login(struct upstream_conn *c) {
    snprintf(c->u->error, sizeof(c->u->error), "UPSTREAM the client's login is not known any more");
    return false;
}

/* Appends what follows the prelude; without a prelude, all of the handshake. */
static bool append_login(struct upstream_conn *c, const struct upstream_lane *lane, bool select) {
    int replies = login_append(c->u->config->own, lane->login, c->before, &c->handshake);
    if (replies < 0)
        return no_login(c);
    c->handshake_left += (unsigned)replies;
    if (select)
        append_select(c, lane->db);
    if (lane->protocol == 3) {
        static const char hello[] = "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n";
        iobuf_append(&c->handshake, hello, sizeof(hello) - 1);
        c->handshake_left++;
    }
    if (lane->replica && c->u->slots) {
        static const char readonly[] = "*1\r\n$8\r\nREADONLY\r\n";
        iobuf_append(&c->handshake, readonly, sizeof(readonly) - 1);
        c->handshake_left++;
    }
    c->handshake_left += dedicated_handshake(c->u, lane->dedicated, &c->handshake);
    return true;
}

bool handshake_append(struct upstream_conn *c) {
    invariant(c->handshake.unsent == 0 && c->in_flight == 0, "a connection logs in twice");
    const struct upstream_lane *lane = conn_lane(c);
    c->handshake_left = 0;
    c->own_version = login_own_version(c->u->config->own);
    if (lane->login != 0 && login_just_refused(lane->login)) {
        snprintf(c->u->error, sizeof(c->u->error), "WRONGPASS invalid username-password pair or user is disabled.");
        return false;
    }
    c->prelude = lane->login != 0 && !login_is_nobody(lane->login) && lane->db != 0;
    if (!c->prelude)
        return append_login(c, lane, lane->db != 0);
    if (!login_known(lane->login))
        return no_login(c);
    c->handshake_left = (unsigned)login_append(c->u->config->own, 0, false, &c->handshake);
    append_select(c, lane->db);
    return true;
}

bool handshake_taken(struct upstream_conn *c, bool ok) {
    invariant(c->state == CONN_HANDSHAKE && c->handshake_left > 0, "%u replies are due", c->handshake_left);
    if (--c->handshake_left > 0)
        return true;
    if (!c->prelude) {
        conn_ready(c);
        return true;
    }
    c->prelude = false;
    const struct upstream_lane *lane = conn_lane(c);
    if (!append_login(c, lane, c->before ? lane->db != 0 : !ok)) {
        char reason[REASON_MAX];
        snprintf(reason, sizeof(reason), "%.200s", c->u->error);
        conn_close(c, CONN_REFUSED, reason);
        return false;
    }
    conn_want_write(c, true);
    return true;
}

/* ---- login 0 has changed ---- */

bool handshake_refused(struct upstream_conn *c, const char *error) {
    const struct upstream_lane *lane = conn_lane(c);
    if (!lane || strncmp(error, "WRONGPASS", 9) != 0)
        return false;
    if (lane->replica && lane->login != 0) /* a replica may lack the user; the master's word counts */
        return false;
    upstream_login_refuse(lane->login);
    if (lane->login != 0)
        return false;
    login_own_refused();
    if (c->before || !login_own_has_before(c->u->config->own))
        return false;
    c->before = c->prelude = true; /* what else was sent with the login is refused, too */
    return true;
}

bool conn_login_is_old(const struct upstream_conn *c) {
    const struct upstream_lane *lane = conn_lane(c);
    return lane && lane->login == 0 && c->own_version != login_own_version(c->u->config->own);
}

static void renewed(struct upstream_request *r, const char *data, size_t len, bool last) {
    struct upstream_node *n = r->node;
    if (len > 3 && data[0] == '-') {
        char text[REASON_MAX];
        snprintf(text, sizeof(text), "it refuses the new password, and the connection keeps its login: %.*s",
                 (int)(len - 3 < 100 ? len - 3 : 100), data + 1);
        node_log(n, "password", text);
        login_own_refused();
    }
    if (last)
        memory_free(r);
}

static void not_renewed(struct upstream_request *r, enum upstream_failure why, const char *error) {
    memory_free(r);
}

/* Sends AUTH with the new password behind the requests under way. A pin in use may be in a transaction: it keeps its
 * login, and is closed when it is given back. */
void conn_login_again(struct upstream_conn *c) {
    static const struct upstream_request_ops ops = {.reply = renewed, .fail = not_renewed};
    size_t len;
    if (c->state != CONN_READY || !conn_login_is_old(c) || (c->pin && !c->pin->idle))
        return;
    if (c->pin) {
        conn_close(c, CONN_IDLE, "its password has changed");
        return;
    }
    c->own_version = login_own_version(c->u->config->own);
    char *text = login_text(c->u->config->own, 0, false, &len);
    if (!text)
        return;
    struct upstream_request *r = memory_zalloc(sizeof(*r));
    list_init(&r->link);
    request_begin(r, SLOT_NONE, c->node, conn_lane(c), text, len);
    r->ops = &ops;
    r->pinned = r->in_flight = true;
    conn_send(c, r);
    upstream_secret(r);
    explicit_bzero(text, len);
    memory_free(text);
}
