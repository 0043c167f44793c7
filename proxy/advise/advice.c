/* What PROXY ADVISE says: the lines, in their order, and the number of patterns without a rule. */
#include <stdlib.h>
#include <string.h>

#include "proxy/advise/private.h"
#include "proxy/base/memory.h"

struct advice {
    struct evidence *rows;
    size_t count;
};

static void row_add(void *arg, const struct evidence *row) {
    struct advice *advice = arg;
    bool data = row->kinds == ADVISE_PERMITS && !advise_is_semaphore(row);
    if (row->events > 0 && !data && advice->count < OBSERVED_ROWS)
        advice->rows[advice->count++] = *row;
}

static int most_events_first(const void *x, const void *y) {
    uint64_t a = ((const struct evidence *)x)->events, b = ((const struct evidence *)y)->events;
    return a < b ? 1 : a > b ? -1 : 0;
}

void advise_say(struct text *line, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    if (line->len > 0)
        fn(arg, line->data, line->len < ADVISE_LINE_MAX ? line->len : ADVISE_LINE_MAX - 1);
    text_clear(line);
}

void advise_each(struct observer *o, int64_t now_ms, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    struct advice advice = {.rows = memory_alloc(OBSERVED_ROWS * sizeof(*advice.rows))};
    struct text line = {0};
    observer_each(o, now_ms, row_add, &advice);
    for (size_t i = 0; i < advice.count; i++)
        if (advice.rows[i].dead_lost) {
            advise_dead_line(&advice.rows[i], &line);
            advise_say(&line, fn, arg);
        }
    advise_each_fence(o, fn, arg);
    qsort(advice.rows, advice.count, sizeof(*advice.rows), most_events_first);
    for (size_t i = 0; i < advice.count; i++) {
        advise_line(&advice.rows[i], &line);
        advise_say(&line, fn, arg);
        advise_each_risk(&advice.rows[i], fn, arg);
    }
    memory_free(advice.rows);
}

/* ---- patterns without a rule -------------------------------------------------------------------- */

struct unruled {
    int64_t since_ms;
    char (*patterns)[ADVISE_PATTERN_MAX];
    size_t count;
};

/* Adds the row's pattern, once: further rows are other clients'. */
static void pattern_add(void *arg, const struct evidence *row) {
    struct unruled *u = arg;
    if (row->ruled || row->last_ms < u->since_ms || !advise_is_lock(row))
        return;
    for (size_t i = 0; i < u->count; i++)
        if (strcmp(u->patterns[i], row->pattern) == 0)
            return;
    memcpy(u->patterns[u->count++], row->pattern, sizeof(u->patterns[0]));
}

size_t advise_unruled(struct observer *o, const struct lock_rules *rules, int64_t since_ms) {
    struct unruled u = {.since_ms = since_ms, .patterns = memory_alloc(OBSERVED_ROWS * sizeof(u.patterns[0]))};
    size_t sum = 0;
    observer_each(o, 0, pattern_add, &u);
    for (size_t i = 0; i < u.count; i++) /* a rule may be new, or off: it matches the pattern as it is written */
        sum += !lock_rules_match(rules, u.patterns[i], strlen(u.patterns[i]));
    memory_free(u.patterns);
    return sum;
}
