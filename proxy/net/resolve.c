#include "proxy/net/resolve.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"

struct resolve {
    struct ev_loop *loop;
    struct ev_async answered;
    resolve_fn done;
    void *arg;
    char port[16];
    struct addrinfo *found; /* the answer: `found`, or the error code */
    int error;
    bool finished, cancelled; /* by the thread; by the owner: the later of the two frees the structure */
    char host[];
};

/* Guards `finished` and `cancelled` of all lookups: rarely held, and only for a moment. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void resolve_free(struct resolve *r) {
    if (r->found)
        freeaddrinfo(r->found);
    memory_free(r);
}

static void *look_up(void *arg) {
    struct resolve *r = arg;
    struct addrinfo hints = {.ai_flags = AI_ADDRCONFIG, .ai_socktype = SOCK_STREAM};
    r->error = getaddrinfo(r->host, r->port, &hints, &r->found);
    pthread_mutex_lock(&lock);
    r->finished = true;
    bool cancelled = r->cancelled;
    if (!cancelled)
        ev_async_send(r->loop, &r->answered);
    pthread_mutex_unlock(&lock);
    if (cancelled)
        resolve_free(r);
    return NULL;
}

static void on_answer(struct ev_loop *loop, struct ev_async *w, int events) {
    struct resolve *r = w->data;
    invariant(w == &r->answered && !r->cancelled, "a cancelled lookup answers");
    pthread_mutex_lock(&lock); /* wait until the thread has released the lock */
    pthread_mutex_unlock(&lock);
    ev_async_stop(loop, w);
    if (r->error != 0 || !r->found)
        r->done(r->arg, NULL, r->error == 0 ? "the name has no address" : gai_strerror(r->error));
    else
        r->done(r->arg, r->found, NULL);
    resolve_free(r);
}

struct resolve *resolve_start(struct ev_loop *loop, const char *host, int port, resolve_fn done, void *arg) {
    invariant(done && port >= 0 && port <= 65535, "port %d", port);
    size_t size = strlen(host) + 1;
    struct resolve *r = memory_zalloc(sizeof(*r) + size);
    r->loop = loop;
    r->done = done;
    r->arg = arg;
    memcpy(r->host, host, size);
    snprintf(r->port, sizeof(r->port), "%d", port);
    ev_async_init(&r->answered, on_answer);
    r->answered.data = r;
    ev_async_start(loop, &r->answered);
    /* The lookup's thread has all signals blocked: threads with loops handle signals. */
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, look_up, r) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) {
        pthread_detach(thread);
    } else {
        r->error = EAI_AGAIN;
        r->finished = true;
        ev_async_send(loop, &r->answered);
    }
    return r;
}

void resolve_cancel(struct resolve *r) {
    if (!r)
        return;
    pthread_mutex_lock(&lock);
    invariant(!r->cancelled, "a lookup is cancelled twice");
    ev_async_stop(r->loop, &r->answered);
    r->cancelled = true;
    bool finished = r->finished;
    pthread_mutex_unlock(&lock);
    if (finished)
        resolve_free(r);
}

bool resolve_is_number(const char *host) {
    unsigned char address[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

void resolve_number(const struct sockaddr *at, socklen_t len, char *out) {
    if (getnameinfo(at, len, out, RESOLVE_NUMBER_MAX, NULL, 0, NI_NUMERICHOST) != 0)
        out[0] = '\0';
}

void host_take(struct host_addresses *h, const struct addrinfo *found) {
    for (h->count = 0; found && h->count < HOST_ADDRESSES; found = found->ai_next) {
        memcpy(&h->at[h->count], found->ai_addr, found->ai_addrlen);
        h->lens[h->count++] = found->ai_addrlen;
    }
}

static bool same_machine(const struct sockaddr_storage *a, const struct sockaddr_storage *b) {
    if (a->ss_family != b->ss_family)
        return false;
    if (b->ss_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

bool host_has(const struct host_addresses *h, const struct sockaddr_storage *at) {
    for (unsigned i = 0; i < h->count; i++)
        if (same_machine(&h->at[i], at))
            return true;
    return false;
}
