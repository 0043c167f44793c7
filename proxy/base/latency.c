#include "proxy/base/latency.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/base/text.h"

enum { LATENCY_NAME_SIZE = 64, COMMANDS_MAX = 512, CLIENTS_MAX = 64 };

struct row {
    uint32_t hash;
    char name[LATENCY_NAME_SIZE]; /* its beginning, where it is longer */
    struct histogram histogram;
};

struct latency {
    pthread_mutex_t mutex;
    struct row *rows[LATENCY_KINDS];
    size_t counts[LATENCY_KINDS];
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
    struct row *rows = l->rows[kind];
    size_t count = l->counts[kind];
    for (size_t i = 0; i < count; i++)
        if (rows[i].hash == hash && strncmp(rows[i].name, name, LATENCY_NAME_SIZE - 1) == 0)
            return &rows[i];
    if (count > ROWS_MAX[kind])
        return &rows[ROWS_MAX[kind]];
    rows = l->rows[kind] = memory_realloc(rows, (count + 1) * sizeof(*rows));
    rows[count] = (struct row){.hash = hash};
    snprintf(rows[count].name, LATENCY_NAME_SIZE, "%s", count < ROWS_MAX[kind] ? name : "(others)");
    l->counts[kind]++;
    return &rows[count];
}

void latency_note(struct latency *l, enum latency_kind kind, const char *name, int64_t us) {
    pthread_mutex_lock(&l->mutex);
    histogram_note(&row_of(l, kind, name)->histogram, us);
    pthread_mutex_unlock(&l->mutex);
}

void latency_each(struct latency *l, enum latency_kind kind,
                  void (*fn)(void *arg, const char *name, const struct histogram *h), void *arg) {
    pthread_mutex_lock(&l->mutex);
    for (size_t i = 0; i < l->counts[kind]; i++)
        fn(arg, l->rows[kind][i].name, &l->rows[kind][i].histogram);
    pthread_mutex_unlock(&l->mutex);
}

void latency_reset(struct latency *l) {
    pthread_mutex_lock(&l->mutex);
    for (size_t kind = 0; kind < LATENCY_KINDS; kind++) {
        memory_free(l->rows[kind]);
        l->rows[kind] = NULL;
        l->counts[kind] = 0;
    }
    pthread_mutex_unlock(&l->mutex);
}
