#include "proxy/base/slowlog.h"

#include <pthread.h>
#include <string.h>

#include "proxy/base/list.h"
#include "proxy/base/memory.h"

struct slow_entry {
    struct list_node link;
    struct slow_request request; /* its texts are in `texts` */
    char texts[];
};

struct slowlog {
    pthread_mutex_t mutex;
    struct list_node entries; /* oldest first */
    size_t len;
    uint64_t ids;
};

struct slowlog *slowlog_new(void) {
    struct slowlog *log = memory_zalloc(sizeof(*log));
    pthread_mutex_init(&log->mutex, NULL);
    list_init(&log->entries);
    return log;
}

/* Forgets the oldest entries beyond `max`. */
static void trim(struct slowlog *log, size_t max) {
    for (; log->len > max; log->len--)
        memory_free(LIST_ENTRY(list_shift(&log->entries), struct slow_entry, link));
}

void slowlog_free(struct slowlog *log) {
    trim(log, 0);
    pthread_mutex_destroy(&log->mutex);
    memory_free(log);
}

/* Copies a text to *at, and returns the copy. */
static const char *copy(char **at, const char *text) {
    char *to = *at;
    size_t size = strlen(text) + 1;
    memcpy(to, text, size);
    *at += size;
    return to;
}

void slowlog_add(struct slowlog *log, const struct slow_request *r, size_t max) {
    size_t size = strlen(r->command) + strlen(r->client) + strlen(r->name) + strlen(r->node) + 4;
    struct slow_entry *e = memory_alloc(sizeof(*e) + size);
    char *at = e->texts;
    e->request = *r;
    e->request.command = copy(&at, r->command);
    e->request.client = copy(&at, r->client);
    e->request.name = copy(&at, r->name);
    e->request.node = copy(&at, r->node);
    list_init(&e->link);
    pthread_mutex_lock(&log->mutex);
    e->request.id = log->ids++;
    list_append(&log->entries, &e->link);
    log->len++;
    trim(log, max);
    pthread_mutex_unlock(&log->mutex);
}

void slowlog_each(struct slowlog *log, size_t max, void (*fn)(void *arg, const struct slow_request *r), void *arg) {
    pthread_mutex_lock(&log->mutex);
    for (struct list_node *n = log->entries.prev; n != &log->entries && max > 0; n = n->prev, max--)
        fn(arg, &LIST_ENTRY(n, struct slow_entry, link)->request);
    pthread_mutex_unlock(&log->mutex);
}

size_t slowlog_len(struct slowlog *log) {
    pthread_mutex_lock(&log->mutex);
    size_t len = log->len;
    pthread_mutex_unlock(&log->mutex);
    return len;
}

void slowlog_reset(struct slowlog *log) {
    pthread_mutex_lock(&log->mutex);
    trim(log, 0);
    pthread_mutex_unlock(&log->mutex);
}
