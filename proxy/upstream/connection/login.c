/*
 * Logins: the user and password of a connection, as a number, so that requests carry four bytes and no password. Shared
 * by all threads. The one mutex is taken only when a client logs in and when a connection opens.
 *
 * A number is never used for another login: connections of a released login may still be open. After its last client
 * has left, an accepted login is remembered by a digest. So clients that come and go one after another share a
 * connection, and no password is kept for that.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
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

static void login_remember(const struct login *l) {
    struct remembered *r = &remembered[remembered_next];
    if (!login_digest(l, r->digest))
        return;
    r->id = l->id;
    invariant(!login_is_nobody(l->id) && l->refs == 0, "login %u is remembered with %u clients", l->id, l->refs);
    remembered_next = (remembered_next + 1) % REMEMBERED;
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

/* Searches all logins: there are few, and clients rarely log in. */
static struct login *login_find(const char *user, size_t user_len, const char *password, size_t password_len) {
    for (size_t i = 0; i < LOGIN_BUCKETS; i++)
        for (struct login *l = buckets[i]; l; l = l->next)
            if (login_is(l, user, user_len, password, password_len))
                return l;
    return NULL;
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

static uint32_t number_new(void) {
    do
        last_id++;
    while (last_id == 0 || login_is_nobody(last_id) || login_get(last_id) || is_remembered(last_id));
    return last_id;
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
    if (l)
        explicit_bzero(l->bytes, l->user_len + l->password_len);
    memory_free(l);
}

uint32_t upstream_login_intern(const char *user, size_t user_len, const char *password, size_t password_len) {
    if (!user)
        user_len = 0;
    pthread_mutex_lock(&mutex);
    struct login *l = login_find(user, user_len, password, password_len);
    if (!l) {
        l = login_new(user, user_len, password, password_len);
        if (!login_recall(l))
            l->id = number_new();
        l->next = buckets[l->id % LOGIN_BUCKETS];
        buckets[l->id % LOGIN_BUCKETS] = l;
    }
    l->refs++;
    invariant(l->id != 0 && l->refs > 0, "login %u has %u clients", l->id, l->refs);
    uint32_t id = l->id;
    pthread_mutex_unlock(&mutex);
    return id;
}

void upstream_login_release(uint32_t login) {
    if (login == 0)
        return;
    pthread_mutex_lock(&mutex);
    struct login **at = &buckets[login % LOGIN_BUCKETS];
    while (*at && (*at)->id != login)
        at = &(*at)->next;
    struct login *l = *at;
    invariant(!l || l->refs > 0, "login %u has no client", login);
    if (l && --l->refs == 0) {
        *at = l->next;
        if (l->proven)
            login_remember(l);
        login_free(l);
    }
    pthread_mutex_unlock(&mutex);
}

bool upstream_login_prove(uint32_t login) {
    pthread_mutex_lock(&mutex);
    struct login *l = login_get(login);
    bool before = !l || l->proven;
    if (l) {
        l->proven = true;
        l->refused_ms = 0;
    }
    pthread_mutex_unlock(&mutex);
    return before;
}

void upstream_login_refuse(uint32_t login) {
    pthread_mutex_lock(&mutex);
    struct login *l = login_get(login);
    if (l) {
        l->proven = false;
        l->refused_ms = clock_ms();
    }
    pthread_mutex_unlock(&mutex);
}

bool login_just_refused(uint32_t login) {
    pthread_mutex_lock(&mutex);
    const struct login *l = login_get(login);
    bool refused = l && l->refused_ms > 0 && clock_ms() - l->refused_ms < REFUSED_MS;
    pthread_mutex_unlock(&mutex);
    return refused;
}

/* ---- the proxy's own login ---- */

bool upstream_own_login(enum upstream_own at, const char *user, const char *password) {
    struct own *o = &own[at];
    size_t user_len = user ? strlen(user) : 0, password_len = password ? strlen(password) : 0;
    pthread_mutex_lock(&mutex);
    bool same = o->now && password ? login_is(o->now, user, user_len, password, password_len) : !o->now && !password;
    if (!same) {
        login_free(o->before);
        o->before = o->now;
        o->now = password ? login_new(user, user_len, password, password_len) : NULL;
        atomic_fetch_add(&o->version, 1);
    }
    pthread_mutex_unlock(&mutex);
    return !same;
}

void upstream_own_login_hear(void (*refused)(void *arg), void *arg) {
    own_refused_arg = arg;
    own_refused_fn = refused;
}

unsigned login_own_version(enum upstream_own at) {
    return atomic_load_explicit(&own[at].version, memory_order_relaxed);
}

void login_own_refused(void) {
    if (own_refused_fn)
        own_refused_fn(own_refused_arg);
}

bool login_own_has_before(enum upstream_own at) {
    pthread_mutex_lock(&mutex);
    bool has = own[at].before != NULL;
    pthread_mutex_unlock(&mutex);
    return has;
}

/* Makes a login's AUTH, *len bytes. */
static char *auth_new(const struct login *l, size_t *len) {
    char *text = memory_alloc(32 + resp_bulk_size(4) + resp_bulk_size(l->user_len) + resp_bulk_size(l->password_len));
    char *p = text + resp_header_write(text, '*', l->has_user ? 3 : 2);
    p = resp_bulk_write(p, "AUTH", 4);
    if (l->has_user)
        p = resp_bulk_write(p, l->bytes, l->user_len);
    p = resp_bulk_write(p, l->bytes + l->user_len, l->password_len);
    *len = (size_t)(p - text);
    return text;
}

char *login_text(enum upstream_own at, uint32_t login, bool before, size_t *len) {
    pthread_mutex_lock(&mutex);
    const struct own *o = &own[at];
    const struct login *l = login != 0 ? login_get(login) : before && o->before ? o->before : o->now;
    char *text = l ? auth_new(l, len) : NULL;
    pthread_mutex_unlock(&mutex);
    return text;
}

bool login_known(uint32_t login) {
    pthread_mutex_lock(&mutex);
    bool known = login_get(login) != NULL;
    pthread_mutex_unlock(&mutex);
    return known;
}

bool login_is_over(uint32_t login) {
    if (login == 0 || login_is_nobody(login))
        return false;
    pthread_mutex_lock(&mutex);
    bool over = !login_get(login) && !is_remembered(login);
    pthread_mutex_unlock(&mutex);
    return over;
}

int login_append(enum upstream_own at, uint32_t login, bool before, struct iobuf *out) {
    size_t len = 0;
    char *text = login_is_nobody(login) ? NULL : login_text(at, login, before, &len);
    if (!text)
        return login == 0 || login_is_nobody(login) ? 0 : -1;
    memcpy(iobuf_reserve(out, len), text, len);
    iobuf_commit(out, len);
    iobuf_secret(out);
    explicit_bzero(text, len);
    memory_free(text);
    return 1;
}
