/* What PROXY ADVISE says: the lines, in their order, and the number of patterns without a rule. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/advise/private.h"
#include "proxy/base/glob.h"
#include "proxy/base/memory.h"

/* The observer's rows, or the rows of the report: of a pattern, the clients that differ. */
struct rows {
    struct evidence *row;
    size_t count;
};

static void row_add(void *arg, const struct evidence *row) {
    struct rows *rows = arg;
    bool data = row->kinds == ADVISE_PERMITS && !advise_is_semaphore(row);
    if (!data && rows->count < OBSERVED_ROWS)
        rows->row[rows->count++] = *row;
}

static int greatest_first(uint64_t a, uint64_t b) {
    return a < b ? 1 : a > b ? -1 : 0;
}

static int most_events_first(const void *x, const void *y) {
    return greatest_first(((const struct evidence *)x)->events, ((const struct evidence *)y)->events);
}

static int by_pattern(const void *x, const void *y) {
    const struct evidence *a = x, *b = y;
    int order = strcmp(a->pattern, b->pattern);
    return order ? order : a->ruled != b->ruled ? a->ruled - b->ruled : most_events_first(x, y);
}

static bool same_pattern(const struct evidence *a, const struct evidence *b) {
    return a->ruled == b->ruled && strcmp(a->pattern, b->pattern) == 0;
}

/* Adds a row to the line from `first` on of which the same is said, as far as the first row of that line shows.
 * Otherwise it gets a line of its own. */
static void line_add(struct rows *lines, struct verdict *verdicts, size_t first, const struct evidence *row) {
    const struct verdict v = advise_verdict(row);
    size_t to = first;
    for (; v.decided && to < lines->count; to++) {
        const struct verdict *w = &verdicts[to];
        if (v.why == w->why && v.owner == w->owner && v.kinds == w->kinds && v.risks == w->risks)
            break;
    }
    if (to < lines->count) {
        evidence_add(&lines->row[to], row);
    } else {
        verdicts[lines->count] = v;
        lines->row[lines->count++] = *row;
    }
}

/* Adds up the rows of each pattern. The clients of which too little was seen are added up first, by what is unsafe of
 * them: 240 workers with a name each are one application. Then they join the clients of which the same is said, or the
 * first ones if it is still too little. */
static void add_up(struct rows *rows) {
    struct rows lines = {.row = rows->row};
    struct verdict *verdicts = memory_alloc((rows->count + 1) * sizeof(*verdicts));
    qsort(rows->row, rows->count, sizeof(*rows->row), by_pattern);
    for (size_t i = 0; i < rows->count;) {
        struct evidence few[1 << RISKS] = {{.events = 0}}, pattern = rows->row[i];
        size_t first = lines.count;
        for (; i < rows->count && same_pattern(&rows->row[i], &pattern); i++) {
            const struct evidence row = rows->row[i]; /* a line may take its place */
            const struct verdict v = advise_verdict(&row);
            if (!v.few)
                line_add(&lines, verdicts, first, &row);
            else if (few[v.risks].pattern[0])
                evidence_add(&few[v.risks], &row);
            else
                few[v.risks] = row;
        }
        for (size_t risks = 1 << RISKS; risks-- > 0;)
            if (few[risks].pattern[0])
                line_add(&lines, verdicts, first, &few[risks]);
    }
    memory_free(verdicts);
    *rows = lines;
}

/* Calls fn with the line, cut to ADVISE_LINE_MAX - 1, unless it is empty; frees it. */
static void say(struct text *line, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    if (line->len > 0)
        fn(arg, line->data, line->len < ADVISE_LINE_MAX ? line->len : ADVISE_LINE_MAX - 1);
    text_clear(line);
}

/* ---- unsafe use --------------------------------------------------------------------------------- */

struct risk {
    const struct evidence *row;
    unsigned kind;
    uint64_t count;
};

static int worst_first(const void *x, const void *y) {
    const struct risk *a = x, *b = y;
    return a->kind != b->kind ? (int)a->kind - (int)b->kind : greatest_first(a->count, b->count);
}

static void each_unsafe(const struct rows *lines, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    struct risk *risks = memory_alloc((lines->count + 1) * RISKS * sizeof(*risks));
    size_t count = 0;
    for (size_t i = 0; i < lines->count * RISKS; i++) {
        risks[count] = (struct risk){.row = &lines->row[i / RISKS], .kind = (unsigned)(i % RISKS)};
        risks[count].count = advise_risk(risks[count].row, risks[count].kind);
        count += risks[count].count > 0;
    }
    qsort(risks, count, sizeof(*risks), worst_first);
    for (size_t i = 0; i < count; i++) {
        const struct evidence *row = risks[i].row, *last = &lines->row[lines->count - 1];
        bool others = (row > lines->row && same_pattern(row - 1, row)) || (row < last && same_pattern(row + 1, row));
        struct text line = {0};
        advise_risk_line(row, risks[i].kind, others, &line);
        say(&line, fn, arg);
    }
    memory_free(risks);
}

/* ---- patterns without a rule -------------------------------------------------------------------- */

/* Counts the patterns, each once: further lines are other clients'. A rule may be new, or off: it matches the pattern
 * as it is written. */
static size_t unruled(const struct rows *lines, const struct lock_rules *rules, int64_t since_ms) {
    const struct evidence *last = NULL;
    size_t sum = 0;
    for (size_t i = 0; i < lines->count; i++) {
        const struct evidence *row = &lines->row[i];
        if (row->ruled || row->last_ms < since_ms || advise_verdict(row).why || (last && same_pattern(row, last)))
            continue;
        sum += !lock_rules_match(rules, row->pattern, strlen(row->pattern));
        last = row;
    }
    return sum;
}

size_t advise_unruled(struct observer *o, const struct lock_rules *rules, int64_t since_ms) {
    struct rows rows = {.row = memory_alloc(OBSERVED_ROWS * sizeof(*rows.row))};
    observer_each(o, 0, row_add, &rows);
    add_up(&rows);
    size_t sum = unruled(&rows, rules, since_ms);
    memory_free(rows.row);
    return sum;
}

void advise_unruled_text(size_t count, char *out, size_t size) {
    snprintf(out, size, "%zu key pattern%s like %s and match%s no rule", count, count == 1 ? " looks" : "s look",
             count == 1 ? "a lock" : "locks", count == 1 ? "es" : "");
}

/* ---- data under locks ------------------------------------------------------------------------------ */

enum {
    FENCE_ENOUGH = 20, /* writes before a fence is advised */
    FENCE_NEARLY = 10  /* of so many writes one may be by a client without the lock */
};

static bool advised(const struct written_pair *pair) {
    return pair->writes >= FENCE_ENOUGH && (pair->writes - pair->held - pair->late) * FENCE_NEARLY <= pair->writes;
}

/* Whether the line for `other` makes the line for `pair` superfluous: it has the same data under a lock that is held
 * for more of its writes, or a more specific lock; or a wider pattern of data under the same lock. */
static bool outdone(const struct written_pair *pair, const struct written_pair *other) {
    if (pair == other || !advised(other) || pair->db != other->db)
        return false;
    uint64_t by = pair->held + pair->late, by_other = other->held + other->late;
    if (strcmp(pair->pattern, other->pattern) == 0)
        return by < by_other || (by == by_other && (strlen(pair->lock) < strlen(other->lock) ||
                                                    (strlen(pair->lock) == strlen(other->lock) && pair > other)));
    return strcmp(pair->lock, other->lock) == 0 &&
           glob_match(other->pattern, strlen(other->pattern), pair->pattern, strlen(pair->pattern));
}

static int most_writes_first(const void *x, const void *y) {
    return greatest_first(((const struct written_pair *)x)->writes, ((const struct written_pair *)y)->writes);
}

/* Says the line of each pair that deserves a fence, those with most writes first. The counts of writes show which pairs
 * are coincidences. */
static void each_fence(struct observer *o, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    struct written_pair pairs[OBSERVED_PAIRS], said[OBSERVED_PAIRS];
    size_t count = 0, all = observer_pairs(o, pairs);
    for (size_t i = 0; i < all; i++) {
        size_t k = 0;
        while (k < all && !outdone(&pairs[i], &pairs[k]))
            k++;
        if (k == all && advised(&pairs[i]))
            said[count++] = pairs[i];
    }
    qsort(said, count, sizeof(*said), most_writes_first);
    for (size_t i = 0; i < count; i++) {
        struct text line = {0};
        advise_fence_line(&said[i], &line);
        say(&line, fn, arg);
    }
}

/* ---- the whole ------------------------------------------------------------------------------------- */

void advise_each(struct observer *o, const struct lock_rules *rules, int64_t now_ms,
                 void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    struct rows rows = {.row = memory_alloc(OBSERVED_ROWS * sizeof(*rows.row))};
    struct text line = {0};
    char text[ADVISE_UNRULED_MAX];
    observer_each(o, now_ms, row_add, &rows);
    struct rows lines = {.row = memory_alloc((rows.count + 1) * sizeof(*rows.row)), .count = rows.count};
    memcpy(lines.row, rows.row, rows.count * sizeof(*rows.row));
    add_up(&lines);
    each_unsafe(&lines, fn, arg);
    for (size_t i = 0; i < rows.count; i++)
        if (rows.row[i].dead_lost) {
            advise_dead_line(&rows.row[i], &line);
            say(&line, fn, arg);
        }
    size_t count = rules ? unruled(&lines, rules, 0) : 0;
    advise_unruled_text(count, text, sizeof(text));
    if (count > 0)
        fn(arg, text, strlen(text));
    each_fence(o, fn, arg);
    qsort(lines.row, lines.count, sizeof(*lines.row), most_events_first);
    for (size_t i = 0; i < lines.count && lines.row[i].events > 0; i++) {
        advise_line(&lines.row[i], &line);
        say(&line, fn, arg);
    }
    memory_free(rows.row);
    memory_free(lines.row);
}
