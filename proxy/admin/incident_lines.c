/* Incidents as lines, in the order of their occurrence. */
#include "proxy/admin/incident_lines.h"

#include "proxy/admin/incident_query.h"
#include "proxy/admin/sentence.h"
#include "proxy/base/memory.h"

enum { INCIDENTS_A_STEP = 64 };

struct incident_watch {
    struct incidents *incidents;
    struct incident_filter wanted; /* its pattern belongs to the watch */
    struct incidents_place place;  /* with the missed incidents that are not yet reported */
};

struct incident_watch *incident_watch_new(struct incidents *i, const char *const *words, const size_t *lens,
                                          size_t count, const char *(*kinds)(size_t i), struct text *error) {
    struct incident_query q;
    if (!incident_query_read(&q, &(struct incident_syntax){.kinds = kinds}, words, lens, count, error))
        return NULL;
    struct incident_watch *watch = memory_zalloc(sizeof(*watch));
    watch->incidents = i;
    watch->wanted = q.filter;
    if (q.filter.pattern)
        watch->wanted.pattern = memory_strndup(q.filter.pattern, q.filter.pattern_len);
    watch->place.at = incidents_next(i);
    return watch;
}

void incident_watch_free(struct incident_watch *watch) {
    memory_free((char *)watch->wanted.pattern);
    memory_free(watch);
}

struct lines {
    struct incident_watch *watch;
    void (*fn)(void *arg, const char *line, size_t len);
    void *arg;
};

static void put_missed(struct lines *lines) {
    struct text line = {0};
    uint64_t *missed = &lines->watch->place.missed;
    if (*missed == 0)
        return;
    text_printf(&line, "(incidents before what follows that came faster than they could be shown: %llu)",
                (unsigned long long)*missed);
    *missed = 0;
    lines->fn(lines->arg, line.data, line.len);
    text_clear(&line);
}

static void put(void *arg, const struct incident *i) {
    struct lines *lines = arg;
    struct text sentence = {0}, line = {0};
    put_missed(lines);
    sentence_time(i->time_ms, &line);
    text_printf(&line, " %s: ", i->kind);
    sentence_append(i, &sentence);
    text_append_visible(&line, sentence.data, sentence.len); /* names of users and clients may contain any bytes */
    lines->fn(lines->arg, line.data, line.len);
    text_clear(&sentence);
    text_clear(&line);
}

bool incident_watch_lines(struct incident_watch *watch, void (*fn)(void *arg, const char *line, size_t len),
                          void *arg) {
    struct lines lines = {.watch = watch, .fn = fn, .arg = arg};
    bool more = incidents_follow(watch->incidents, &watch->place, &watch->wanted, INCIDENTS_A_STEP, put, &lines);
    if (!more) /* a watch that lags behind reports all missed incidents together, later */
        put_missed(&lines);
    return more;
}
