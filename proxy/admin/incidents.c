/* The ring of incidents. Texts live in fixed fields, so that recording allocates nothing. */
#include "proxy/admin/incidents.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"

enum { KIND_MAX = 24, KEY_MAX = 128, WHO_MAX = 128, COMMAND_MAX = 64, ACTION_MAX = 160 };

struct entry {
    int64_t time_ms;
    size_t key_len;
    char kind[KIND_MAX];
    char key[KEY_MAX];
    char client[WHO_MAX];
    char holder[WHO_MAX];
    char command[COMMAND_MAX];
    char action[ACTION_MAX];
};

struct incidents {
    pthread_mutex_t mutex;
    size_t capacity, next, count;
    struct entry entries[];
};

struct incidents *incidents_new(size_t capacity) {
    struct incidents *i = memory_zalloc(sizeof(*i) + capacity * sizeof(struct entry));
    pthread_mutex_init(&i->mutex, NULL);
    i->capacity = capacity;
    return i;
}

void incidents_free(struct incidents *i) {
    pthread_mutex_destroy(&i->mutex);
    memory_free(i);
}

static void copy(char *to, size_t size, const char *from) {
    snprintf(to, size, "%s", from ? from : "");
}

/* Writes a key as it may stand in a log line: other than printable ASCII becomes a dot. */
static void printable(char *to, size_t size, const char *key, size_t len) {
    size_t n = len < size - 1 ? len : size - 1;
    for (size_t k = 0; k < n; k++)
        to[k] = key[k] >= ' ' && key[k] <= '~' ? key[k] : '.';
    to[n] = '\0';
}

void incidents_add(struct incidents *i, const struct incident *incident) {
    char key[KEY_MAX];
    printable(key, sizeof(key), incident->key, incident->key_len);
    log_notice("incident %s: %s on %s by %s%s%s: %s", incident->kind, incident->command[0] ? incident->command : "-",
               key, incident->client[0] ? incident->client : "the proxy", incident->holder[0] ? ", held by " : "",
               incident->holder, incident->action);
    pthread_mutex_lock(&i->mutex);
    struct entry *e = &i->entries[i->next];
    i->next = (i->next + 1) % i->capacity;
    if (i->count < i->capacity)
        i->count++;
    e->time_ms = incident->time_ms;
    e->key_len = incident->key_len < KEY_MAX ? incident->key_len : KEY_MAX;
    memcpy(e->key, incident->key, e->key_len);
    copy(e->kind, sizeof(e->kind), incident->kind);
    copy(e->client, sizeof(e->client), incident->client);
    copy(e->holder, sizeof(e->holder), incident->holder);
    copy(e->command, sizeof(e->command), incident->command);
    copy(e->action, sizeof(e->action), incident->action);
    pthread_mutex_unlock(&i->mutex);
}

void incidents_each(struct incidents *i, size_t max, void (*fn)(void *arg, const struct incident *incident),
                    void *arg) {
    pthread_mutex_lock(&i->mutex);
    for (size_t n = 0; n < i->count && n < max; n++) {
        const struct entry *e = &i->entries[(i->next + i->capacity - 1 - n) % i->capacity];
        struct incident out = {.time_ms = e->time_ms,
                               .kind = e->kind,
                               .key = e->key,
                               .key_len = e->key_len,
                               .client = e->client,
                               .holder = e->holder,
                               .command = e->command,
                               .action = e->action};
        fn(arg, &out);
    }
    pthread_mutex_unlock(&i->mutex);
}
