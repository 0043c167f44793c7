/*
 * Logins: who a connection is logged in as, by number, so that requests carry four bytes and no password.
 * Shared by all threads, behind one mutex that is taken only when a client logs in and when a connection opens.
 *
 * Numbers are never used again: one that was released can't come to mean somebody else while connections made
 * for it are still open.
 */
#include <pthread.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

enum { LOGIN_BUCKETS = 1024, REFUSED_MS = 1000 };

struct login {
    struct login *next;
    uint32_t id;
    uint32_t refs;
    bool has_user;
    int64_t refused_ms; /* when a node found it wrong on a new connection; 0: never, or it was right since */
    size_t user_len, password_len;
    char bytes[]; /* user, password */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct login *buckets[LOGIN_BUCKETS]; /* by id: numbers are handed out in turn, so they spread evenly */
static uint32_t last_id;

static bool login_is(const struct login *l, const char *user, size_t user_len, const char *password,
                     size_t password_len) {
    return l->has_user == (user != NULL) && l->user_len == user_len && l->password_len == password_len &&
           memcmp(l->bytes, user ? user : "", user_len) == 0 &&
           memcmp(l->bytes + user_len, password, password_len) == 0;
}

/* Finds a login by looking at all of them: there are few, and nobody logs in often. */
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

uint32_t upstream_login_intern(const char *user, size_t user_len, const char *password, size_t password_len) {
    if (!user)
        user_len = 0;
    pthread_mutex_lock(&mutex);
    struct login *l = login_find(user, user_len, password, password_len);
    if (!l) {
        l = memory_zalloc(sizeof(*l) + user_len + password_len);
        do
            l->id = ++last_id;
        while (l->id == 0 || login_is_nobody(l->id) || login_get(l->id));
        l->has_user = user != NULL;
        l->user_len = user_len;
        l->password_len = password_len;
        if (user_len > 0)
            memcpy(l->bytes, user, user_len);
        if (password_len > 0)
            memcpy(l->bytes + user_len, password, password_len);
        l->next = buckets[l->id % LOGIN_BUCKETS];
        buckets[l->id % LOGIN_BUCKETS] = l;
    }
    l->refs++;
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
    if (l && --l->refs == 0) {
        *at = l->next;
        explicit_bzero(l->bytes, l->user_len + l->password_len);
        memory_free(l);
    }
    pthread_mutex_unlock(&mutex);
}

void upstream_login_prove(uint32_t login) {
    pthread_mutex_lock(&mutex);
    struct login *l = login_get(login);
    if (l)
        l->refused_ms = 0;
    pthread_mutex_unlock(&mutex);
}

void login_refused(uint32_t login) {
    pthread_mutex_lock(&mutex);
    struct login *l = login_get(login);
    if (l)
        l->refused_ms = clock_ms();
    pthread_mutex_unlock(&mutex);
}

bool login_just_refused(uint32_t login) {
    pthread_mutex_lock(&mutex);
    const struct login *l = login_get(login);
    bool refused = l && l->refused_ms > 0 && clock_ms() - l->refused_ms < REFUSED_MS;
    pthread_mutex_unlock(&mutex);
    return refused;
}

static size_t auth_size(size_t user_len, size_t password_len) {
    return 32 + resp_bulk_size(4) + resp_bulk_size(user_len) + resp_bulk_size(password_len);
}

/* Writes an AUTH; returns its length, at most auth_size. */
static size_t auth_write(char *start, const char *user, size_t user_len, const char *password, size_t password_len) {
    char *p = start + resp_header_write(start, '*', user ? 3 : 2);
    p = resp_bulk_write(p, "AUTH", 4);
    if (user)
        p = resp_bulk_write(p, user, user_len);
    p = resp_bulk_write(p, password, password_len);
    return (size_t)(p - start);
}

static void append_auth(struct iobuf *out, const char *user, size_t user_len, const char *password,
                        size_t password_len) {
    char *start = iobuf_reserve(out, auth_size(user_len, password_len));
    iobuf_commit(out, auth_write(start, user, user_len, password, password_len));
    iobuf_secret(out);
}

char *login_text(uint32_t login, size_t *len) {
    pthread_mutex_lock(&mutex);
    const struct login *l = login_get(login);
    char *text = l ? memory_alloc(auth_size(l->user_len, l->password_len)) : NULL;
    if (l)
        *len = auth_write(text, l->has_user ? l->bytes : NULL, l->user_len, l->bytes + l->user_len, l->password_len);
    pthread_mutex_unlock(&mutex);
    return text;
}

bool login_known(uint32_t login) {
    pthread_mutex_lock(&mutex);
    bool known = login_get(login) != NULL;
    pthread_mutex_unlock(&mutex);
    return known;
}

int login_append(uint32_t login, const struct upstream_config *config, struct iobuf *out) {
    if (login_is_nobody(login))
        return 0;
    if (login == 0) {
        if (!config->password)
            return 0;
        append_auth(out, config->user, config->user ? strlen(config->user) : 0, config->password,
                    strlen(config->password));
        return 1;
    }
    pthread_mutex_lock(&mutex);
    const struct login *l = login_get(login);
    if (l)
        append_auth(out, l->has_user ? l->bytes : NULL, l->user_len, l->bytes + l->user_len, l->password_len);
    pthread_mutex_unlock(&mutex);
    return l ? 1 : -1;
}
