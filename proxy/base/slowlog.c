#include "proxy/base/slowlog.h"

#include <stdio.h>
#include <string.h>

#include "proxy/base/list.h"
#include "proxy/base/memory.h"
#include "proxy/base/mutex.h"
#include "proxy/base/text.h"

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
        memory_free(LIST_SHIFT(&log->entries, struct slow_entry, link));
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
    MUTEX_GUARD(&log->mutex);
    e->request.id = log->ids++;
    list_append(&log->entries, &e->link);
    log->len++;
    trim(log, max);
}

void slowlog_each(struct slowlog *log, size_t max, void (*fn)(void *arg, const struct slow_request *r), void *arg) {
    MUTEX_GUARD(&log->mutex);
    for (struct list_node *n = log->entries.prev; n != &log->entries && max > 0; n = n->prev, max--)
        fn(arg, &LIST_ENTRY(n, struct slow_entry, link)->request);
}

size_t slowlog_len(struct slowlog *log) {
    MUTEX_GUARD(&log->mutex);
    return log->len;
}

void slowlog_reset(struct slowlog *log) {
    MUTEX_GUARD(&log->mutex);
    trim(log, 0);
}

/* ---- histograms by name ----------------------------------------------------------------------------- */

enum { LATENCY_NAME_SIZE = 64, COMMANDS_MAX = 512, CLIENTS_MAX = 64 };

struct row {
    uint32_t hash;
    char name[LATENCY_NAME_SIZE]; /* its beginning, where it is longer */
    struct histogram histogram;
};

struct latency {
    pthread_mutex_t mutex;
    struct {
        struct row *rows;
        size_t count;
    } of[LATENCY_KINDS];
};

static const size_t ROWS_MAX[LATENCY_KINDS] = {COMMANDS_MAX, CLIENTS_MAX};

struct latency *latency_new(void) {
    struct latency *l = memory_zalloc(sizeof(*l));
    pthread_mutex_init(&l->mutex, NULL);
    return l;
}

void latency_free(struct latency *l) {
    latency_reset(l);
    pthread_mutex_destroy(&l->mutex);
    memory_free(l);
}

/* The row of a name, made if there is none. */
static struct row *row_of(struct latency *l, enum latency_kind kind, const char *name) {
    uint32_t hash = text_hash(name, strlen(name));
    struct row *rows = l->of[kind].rows;
    size_t count = l->of[kind].count;
    for (size_t i = 0; i < count; i++)
        if (rows[i].hash == hash && strncmp(rows[i].name, name, LATENCY_NAME_SIZE - 1) == 0)
            return &rows[i];
    if (count > ROWS_MAX[kind])
        return &rows[ROWS_MAX[kind]];
    struct row *row = ARRAY_ADD(l->of[kind].rows, l->of[kind].count);
    *row = (struct row){.hash = hash};
    snprintf(row->name, LATENCY_NAME_SIZE, "%s", count < ROWS_MAX[kind] ? name : "(others)");
    return row;
}

void latency_note(struct latency *l, enum latency_kind kind, const char *name, int64_t us) {
    MUTEX_GUARD(&l->mutex);
    histogram_note(&row_of(l, kind, name)->histogram, us);
}

void latency_each(struct latency *l, enum latency_kind kind,
                  void (*fn)(void *arg, const char *name, const struct histogram *h), void *arg) {
    MUTEX_GUARD(&l->mutex);
    for (size_t i = 0; i < l->of[kind].count; i++)
        fn(arg, l->of[kind].rows[i].name, &l->of[kind].rows[i].histogram);
}

void latency_reset(struct latency *l) {
    MUTEX_GUARD(&l->mutex);
    for (size_t kind = 0; kind < LATENCY_KINDS; kind++)
        memory_free(l->of[kind].rows);
    memset(l->of, 0, sizeof(l->of));
}
