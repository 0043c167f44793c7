/*
 * Logins, and the handshake that carries them.
 *
 * A login is the user and password of a connection, as a number, so that requests carry four bytes and no password.
 * The one mutex is taken only when a client logs in and when a connection opens.
 *
 * After its last client has left, an accepted login is remembered by a digest. So clients that come and go one after
 * another share a connection, and no password is kept for that.
 *
 * The first commands on a connection: the login, the database, the protocol, and the commands of a dedicated lane.
 *
 *      AUTH ─> SELECT ─> HELLO 3 ─> READONLY ─> the lane's      in one packet, each only where it is needed
 *
 *      ( AUTH as the proxy ─> SELECT ) ─> AUTH ─> ...     for a client's user in another database than 0
 *        the prelude
 *
 * A client may select a database, and then log in as a user without permission for SELECT; on Redis it then stays in
 * the database. So a connection for a user sends SELECT before it logs in: as the proxy's user, or without a login as
 * the node's default user. If the node refuses that, SELECT is sent after the login, as the user. The node has answered
 * the session's own SELECT before, and decided whether it may use the database.
 *
 * The proxy's own password (login 0) may change. A node that does not know the new password gets the one before: its
 * refusal ends a prelude. Open connections log in again between two requests, and stay as they are if the node refuses
 * that.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/random.h>

#include "proxy/base/mutex.h"
#include "proxy/net/digest.h"
#include "proxy/upstream/connection/private.h"

enum { LOGIN_BUCKETS = 1024, REFUSED_MS = 1000, REMEMBERED = 64 };
struct login {
    struct login *next;
    uint32_t id;
    uint32_t refs;
    bool has_user, proven;
    int64_t refused_ms; /* when a node last refused it on a new connection; 0: never, or it was accepted since */
    size_t user_len, password_len;
    char bytes[]; /* user, password */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct login *buckets[LOGIN_BUCKETS]; /* by id: numbers are consecutive, so they spread evenly */
static uint32_t last_id;

/* A login without clients at present. */
struct remembered {
    uint32_t id; /* 0: none */
    unsigned char digest[DIGEST_KEYED];
};

static struct remembered remembered[REMEMBERED]; /* the one at `remembered_next` is the oldest */
static size_t remembered_next;
static unsigned char digest_key[32];
static bool digest_key_made;

/* The proxy's own logins: the one in use, and the one before it, which some nodes may still want. NULL: none. */
static struct own {
    struct login *now, *before;
    atomic_uint version;
} own[UPSTREAM_OWNS];
static void (*own_refused_fn)(void *arg);
static void *own_refused_arg;

static bool login_digest(const struct login *l, unsigned char out[DIGEST_KEYED]) {
    struct {
        unsigned char key[sizeof(digest_key)];
        uint64_t has_user, user_len;
    } key = {.has_user = l->has_user, .user_len = l->user_len};
    if (!digest_key_made && getrandom(digest_key, sizeof(digest_key), 0) != sizeof(digest_key))
        return false;
    digest_key_made = true;
    memcpy(key.key, digest_key, sizeof(key.key));
    return digest_keyed(&key, sizeof(key), l->bytes, l->user_len + l->password_len, out);
}

/* Gives a login its former number. False: no client was logged in with it lately. */
static bool login_recall(struct login *l) {
    unsigned char digest[DIGEST_KEYED];
    if (!login_digest(l, digest))
        return false;
    for (size_t i = 0; i < REMEMBERED; i++) {
        if (remembered[i].id == 0 || memcmp(remembered[i].digest, digest, sizeof(digest)) != 0)
            continue;
        l->id = remembered[i].id;
        l->proven = true;
        remembered[i].id = 0;
        return true;
    }
    return false;
}

static bool login_is(const struct login *l, const char *user, size_t user_len, const char *password,
                     size_t password_len) {
    return l->has_user == (user != NULL) && l->user_len == user_len && l->password_len == password_len &&
           memcmp(l->bytes, user ? user : "", user_len) == 0 &&
           memcmp(l->bytes + user_len, password, password_len) == 0;
}

static struct login *login_get(uint32_t id) {
    struct login *l = buckets[id % LOGIN_BUCKETS];
    while (l && l->id != id)
        l = l->next;
    return l;
}

static bool is_remembered(uint32_t id) {
    size_t i = 0;
    while (i < REMEMBERED && remembered[i].id != id)
        i++;
    return i < REMEMBERED;
}

static struct login *login_new(const char *user, size_t user_len, const char *password, size_t password_len) {
    struct login *l = memory_zalloc(sizeof(*l) + user_len + password_len);
    l->has_user = user != NULL;
    l->user_len = user_len;
    l->password_len = password_len;
    if (user_len > 0)
        memcpy(l->bytes, user, user_len);
    if (password_len > 0)
        memcpy(l->bytes + user_len, password, password_len);
    return l;
}

static void login_free(struct login *l) {
    memory_forget(l, l ? sizeof(*l) + l->user_len + l->password_len : 0);
}

uint32_t upstream_login_intern(const char *user, size_t user_len, const char *password, size_t password_len) {
    if (!user)
        user_len = 0;
    MUTEX_GUARD(&mutex);
    struct login *l = NULL;
    for (size_t i = 0; i < LOGIN_BUCKETS && !l; i++) /* there are few, and clients rarely log in */
        for (l = buckets[i]; l && !login_is(l, user, user_len, password, password_len);)
            l = l->next;
    if (!l) {
        l = login_new(user, user_len, password, password_len);
        if (!login_recall(l)) {
            do
                last_id++;
            while (last_id == 0 || login_is_nobody(last_id) || login_get(last_id) || is_remembered(last_id));
            l->id = last_id;
        }
        l->next = buckets[l->id % LOGIN_BUCKETS];
        buckets[l->id % LOGIN_BUCKETS] = l;
    }
    l->refs++;
    invariant(l->id != 0 && l->refs > 0, "login %u has %u clients", l->id, l->refs);
    return l->id;
}

void upstream_login_release(uint32_t login) {
    if (login == 0)
        return;
    MUTEX_GUARD(&mutex);
    struct login **at = &buckets[login % LOGIN_BUCKETS];
    while (*at && (*at)->id != login)
        at = &(*at)->next;
    struct login *l = *at;
    invariant(!l || l->refs > 0, "login %u has no client", login);
    if (!l || --l->refs > 0)
        return;
    *at = l->next;
    struct remembered *r = &remembered[remembered_next];
    if (l->proven && login_digest(l, r->digest)) {
        r->id = l->id;
        invariant(!login_is_nobody(l->id) && l->refs == 0, "login %u is remembered with %u clients", l->id, l->refs);
        remembered_next = (remembered_next + 1) % REMEMBERED;
    }
    login_free(l);
}

/* Notes what a node said of a login; returns whether a node had accepted it before. */
static bool login_note(uint32_t login, bool accepted) {
    MUTEX_GUARD(&mutex);
    struct login *l = login_get(login);
    bool before = !l || l->proven;
    if (l) {
        l->proven = accepted;
        l->refused_ms = accepted ? 0 : clock_ms();
    }
    return before;
}

bool upstream_login_prove(uint32_t login) {
    return login_note(login, true);
}

void upstream_login_refuse(uint32_t login) {
    (void)login_note(login, false);
}

/* ---- the proxy's own login ---- */

bool upstream_own_login(enum upstream_own at, const char *user, const char *password) {
    struct own *o = &own[at];
    size_t user_len = user ? strlen(user) : 0, password_len = password ? strlen(password) : 0;
    MUTEX_GUARD(&mutex);
    if (o->now && password ? login_is(o->now, user, user_len, password, password_len) : !o->now && !password)
        return false;
    login_free(o->before);
    o->before = o->now;
    o->now = password ? login_new(user, user_len, password, password_len) : NULL;
    atomic_fetch_add(&o->version, 1);
    return true;
}

void upstream_own_login_hear(void (*refused)(void *arg), void *arg) {
    own_refused_arg = arg;
    own_refused_fn = refused;
}

/* How often login 0 has changed. */
static unsigned login_own_version(enum upstream_own at) {
    return atomic_load_explicit(&own[at].version, memory_order_relaxed);
}

void login_own_refused(void) {
    if (own_refused_fn)
        own_refused_fn(own_refused_arg);
}

bool login_own_has_before(enum upstream_own at) {
    MUTEX_GUARD(&mutex);
    return own[at].before != NULL;
}

char *login_text(enum upstream_own at, uint32_t login, bool before, size_t *len) {
    MUTEX_GUARD(&mutex);
    const struct own *o = &own[at];
    const struct login *l = login != 0 ? login_get(login) : before && o->before ? o->before : o->now;
    if (!l)
        return NULL;
    char *text = memory_alloc(32 + resp_bulk_size(4) + resp_bulk_size(l->user_len) + resp_bulk_size(l->password_len));
    char *p = text + resp_header_write(text, '*', l->has_user ? 3 : 2);
    p = resp_bulk_write(p, "AUTH", 4);
    if (l->has_user)
        p = resp_bulk_write(p, l->bytes, l->user_len);
    p = resp_bulk_write(p, l->bytes + l->user_len, l->password_len);
    *len = (size_t)(p - text);
    return text;
}

bool login_is_over(uint32_t login) {
    if (login == 0 || login_is_nobody(login))
        return false;
    MUTEX_GUARD(&mutex);
    return !login_get(login) && !is_remembered(login);
}

/* ---- the handshake ---- */

/* Appends the AUTH of a login, if one is needed. False: there is no such login; u->error says so. */
static bool login_append(struct upstream_conn *c, uint32_t login, bool before) {
    size_t len = 0;
    char *text = login_is_nobody(login) ? NULL : login_text(c->u->config->own, login, before, &len);
    if (!text && (login == 0 || login_is_nobody(login)))
        return true;
    if (!text) {
        snprintf(c->u->error, sizeof(c->u->error), "UPSTREAM the client's login is not known any more");
        return false;
    }
    iobuf_append_secret(&c->handshake, text, len);
    c->handshake_left++;
    memory_forget(text, len);
    return true;
}

static void append_command(struct upstream_conn *c, const char *command) {
    iobuf_append(&c->handshake, command, strlen(command));
    c->handshake_left++;
}

static void append_select(struct upstream_conn *c, uint32_t db) {
    char number[16], select[64];
    int len = snprintf(number, sizeof(number), "%u", db);
    snprintf(select, sizeof(select), "*2\r\n$6\r\nSELECT\r\n$%d\r\n%s\r\n", len, number);
    append_command(c, select);
}

/* Appends what follows the prelude; without a prelude, all of the handshake. */
static bool append_login(struct upstream_conn *c, const struct upstream_lane *lane, bool select) {
    if (!login_append(c, lane->login, c->before))
        return false;
    if (select)
        append_select(c, lane->db);
    if (lane->protocol == 3)
        append_command(c, "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n");
    if (lane->replica && c->u->slots)
        append_command(c, "*1\r\n$8\r\nREADONLY\r\n");
    const struct upstream_dedicated *dedicated = dedicated_find(c->u, lane->dedicated);
    if (dedicated) {
        iobuf_append(&c->handshake, dedicated->commands, dedicated->len);
        c->handshake_left += dedicated->count;
    }
    return true;
}

bool handshake_append(struct upstream_conn *c) {
    invariant(c->handshake.unsent == 0 && c->in_flight == 0, "a connection logs in twice");
    const struct upstream_lane *lane = conn_lane(c);
    c->handshake_left = 0;
    c->own_version = login_own_version(c->u->config->own);
    /* However many requests a client sends, a login that was just refused is not tried again for each. */
    pthread_mutex_lock(&mutex);
    const struct login *l = login_get(lane->login);
    bool known = l != NULL, refused = l && l->refused_ms > 0 && clock_ms() - l->refused_ms < REFUSED_MS;
    pthread_mutex_unlock(&mutex);
    if (refused) {
        snprintf(c->u->error, sizeof(c->u->error), "WRONGPASS invalid username-password pair or user is disabled.");
        return false;
    }
    c->prelude = known && lane->db != 0;
    if (!c->prelude)
        return append_login(c, lane, lane->db != 0);
    (void)login_append(c, 0, false);
    append_select(c, lane->db);
    return true;
}

/* Takes the node's refusal of the login. Returns whether the connection logs in with the password before. */
static bool login_refused(struct upstream_conn *c, const char *error) {
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

bool handshake_taken(struct upstream_conn *c, const char *error) {
    invariant(c->state == CONN_HANDSHAKE && c->handshake_left > 0, "%u replies are due", c->handshake_left);
    if (error && !c->prelude && !login_refused(c, error)) {
        conn_close(c, CONN_REFUSED, error);
        return false;
    }
    if (--c->handshake_left > 0)
        return true;
    if (!c->prelude) {
        conn_ready(c);
        return true;
    }
    c->prelude = false;
    const struct upstream_lane *lane = conn_lane(c);
    if (append_login(c, lane, c->before ? lane->db != 0 : error != NULL)) {
        conn_want_write(c, true);
        return true;
    }
    char reason[REASON_MAX];
    snprintf(reason, sizeof(reason), "%.200s", c->u->error);
    conn_close(c, CONN_REFUSED, reason);
    return false;
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
    memory_forget(text, len);
}
