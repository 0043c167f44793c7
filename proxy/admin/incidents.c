/*
 * Incidents that all threads report: kept and counted within bounds, logged, and shown to people.
 *
 *      incidents_add ──┬─> the ring of its kind ────────────> PROXY INCIDENTS, the status page
 *                      ├─> its group's sum ─────────────────> PROXY INCIDENTS SUMMARY
 *                      ├─> the last ones, if there are listeners ─> PROXY WATCH
 *                      └─> the log: the first at once, the others of 10 s as one line (incidents_tell)
 *
 * A group has the incidents of one kind that one client (one identity) causes under one rule. In 10 s it causes one log
 * line and uses at most 64 rows of its kind's ring; its newest row counts further incidents. There are at most 1,024
 * groups. For a new one, the group without incidents for longest, at least 10 s, is added to its kind's "(others)". If
 * all groups are busy, the new incident is counted there. 200 first lines in 10 s are logged at once, and 20 lines of
 * repeats a second. Further lines follow later, with the counts up to then.
 */
#include "proxy/admin/admin.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "parser/invariant.h"
#include "proxy/base/glob.h"
#include "proxy/base/list.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/mutex.h"
#include "proxy/base/table.h"
#include "proxy/base/units.h"

enum {
    KIND_MAX = sizeof(((struct incident *)0)->kind),
    KEY_MAX = sizeof(((struct incident *)0)->key),
    KINDS_MAX = 32,
    GROUPS_MAX = 1024,
    GROUP_ROWS = 64, /* rows of a ring that one group may use in a period */
    PERIOD_MS = 10000,
    LINES_AT_ONCE = 200, /* first lines in a period */
    LINES_A_TICK = 20,
    FEED_ROWS = 1024,
    WATCHED_A_STEP = 64,
    MATCH_STEPS_MAX = 256 * KEY_MAX, /* enough for a pattern of 256 bytes */
    FOLLOW_STEPS = 3 * MATCH_STEPS_MAX,
    GLOB_STEPS = 500000, /* for all keys matched against a pattern: about 2 ms */
    COUNT_CUT = 1000000,
    TIME_SIZE = 32,
    WORD_SHOWN = 64
};

struct group {
    struct table_link link; /* in the table, except for a kind's "others" */
    struct list_node quiet; /* in the list of all groups, the one without incidents for longest first */
    struct list_node pending;
    struct kind *kind;
    uint64_t hash;
    uint64_t count;
    int64_t first_ms;
    struct incident last;
    struct incident *row; /* its newest row in the ring, valid while the row has the number row_seq */
    uint64_t row_seq;
    int64_t rows_since_ms; /* the start of the present period, and the rows used in it */
    unsigned rows;
    int64_t told_ms; /* when its last log line was written */
    uint64_t untold; /* incidents since then; 0: not in a pending list */
};

struct kind {
    char name[KIND_MAX];
    struct incident *ring;
    size_t next;
    struct group others;
};

struct incidents {
    pthread_mutex_t mutex;
    size_t rows;
    uint64_t seq;
    struct kind *kinds[KINDS_MAX];
    size_t kind_count;
    struct table groups;
    struct list_node quiet;
    struct list_node pending; /* groups with something to log, the one that has waited longest first */
    int64_t lines_since_ms;   /* the start of the present period, and the first lines written in it */
    unsigned lines;
    struct list_node ears;
    struct incident *feed; /* FEED_ROWS entries, indexed by number modulo FEED_ROWS; NULL without listeners */
};

struct incidents_ear {
    struct list_node link;
    void (*wake)(void *arg);
    void *arg;
};

static uint64_t hash_of(const struct table_link *link) {
    return LIST_ENTRY(link, const struct group, link)->hash;
}

struct incidents *incidents_new(size_t rows) {
    struct incidents *i = memory_zalloc(sizeof(*i));
    pthread_mutex_init(&i->mutex, NULL);
    i->rows = rows;
    table_init(&i->groups, hash_of);
    list_init(&i->quiet);
    list_init(&i->pending);
    list_init(&i->ears);
    return i;
}

void incidents_free(struct incidents *i) {
    TABLE_EACH(g, &i->groups, struct group, link)
        memory_free(g);
    table_clear(&i->groups);
    for (size_t n = 0; n < i->kind_count; n++)
        MEMORY_FREE_ALL(i->kinds[n]->ring, i->kinds[n]);
    memory_free(i->feed);
    pthread_mutex_destroy(&i->mutex);
    memory_free(i);
}

/* ---- the log ---------------------------------------------------------------------------------------- */

static struct log_field text_field(const char *name, const char *text) {
    return (struct log_field){.name = name, .text = text, .len = strlen(text)};
}

/* Logs an incident. count > 0: the line stands for so many in so many seconds, of which this is the last. */
static void write_line(const struct incident *e, const char *action, uint64_t count, int64_t seconds) {
    char key[KEY_MAX + 1], digits[24], number[32], often[96] = ":";
    text_printable(key, sizeof(key), e->key, e->key_len, '.');
    const struct log_field fields[] = {text_field("kind", e->kind),
                                       text_field("rule", e->rule),
                                       {.name = "key", .text = e->key, .len = e->key_len},
                                       text_field("client", e->client),
                                       text_field("identity", e->identity),
                                       text_field("holder", e->holder),
                                       text_field("command", e->command),
                                       text_field("action", action),
                                       {.name = "count", .number = (long long)(count ? count : 1)},
                                       {.name = "seconds", .number = seconds}};
    size_t field_count = ARRAY_SIZE(fields) - (count ? 0 : 1);
    size_t n = 0;
    int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)count);
    for (int i = 0; i < len; i++) { /* 4,940 for 4940 */
        if (i > 0 && (len - i) % 3 == 0)
            number[n++] = ',';
        number[n++] = digits[i];
    }
    number[n] = '\0';
    if (count)
        snprintf(often, sizeof(often), " x %s in %lld s: last", number, (long long)seconds);
    log_write_fields(LOG_LEVEL_NOTICE, fields, field_count, "incident %s%s %s on %s by %s%s%s: %s", e->kind, often,
                     e->command[0] ? e->command : "-", key, e->client[0] ? e->client : "the proxy",
                     e->holder[0] ? ", held by " : "", e->holder, action);
}

static bool is_over(int64_t since_ms, int64_t now_ms) {
    return now_ms - since_ms >= PERIOD_MS || now_ms < since_ms; /* the clock may be set back */
}

void incidents_tell(struct incidents *i, int64_t now_ms, bool all) {
    MUTEX_GUARD(&i->mutex);
    unsigned lines = 0;
    LIST_EACH_SAFE(g, &i->pending, struct group, pending) {
        if (all || (lines < LINES_A_TICK && is_over(g->told_ms, now_ms))) {
            invariant(g->untold > 0 && !list_empty(&g->pending), "a group has nothing to log");
            int64_t since = now_ms - g->told_ms;
            write_line(&g->last, g->last.action, g->untold, since > 1000 ? (since + 500) / 1000 : 1);
            g->untold = 0;
            g->told_ms = now_ms;
            list_remove(&g->pending);
            lines++;
        }
    }
}

/* ---- groups ------------------------------------------------------------------------------------------- */

static void group_init(struct group *g, struct kind *kind) {
    g->kind = kind;
    list_init(&g->quiet);
    list_init(&g->pending);
}

static struct kind *kind_of(struct incidents *i, const char *name) {
    for (size_t n = 0; n < i->kind_count; n++)
        if (strcmp(i->kinds[n]->name, name) == 0 || n + 1 == KINDS_MAX)
            return i->kinds[n];
    struct kind *kind = memory_zalloc(sizeof(*kind));
    snprintf(kind->name, sizeof(kind->name), "%s", name);
    group_init(&kind->others, kind);
    invariant(i->kind_count < KINDS_MAX, "%zu kinds", i->kind_count);
    return i->kinds[i->kind_count++] = kind;
}

static void merge(struct group *into, const struct group *from) {
    if (into->count == 0 || from->first_ms < into->first_ms)
        into->first_ms = from->first_ms;
    if (into->count == 0 || from->last.time_ms > into->last.time_ms)
        into->last = from->last;
    into->count += from->count;
    into->last.rule[0] = '\0';
    snprintf(into->last.identity, sizeof(into->last.identity), "(others)");
}

static struct group *group_of(struct incidents *i, struct kind *kind, const struct incident *e) {
    uint64_t hash =
        ((uint64_t)text_hash(e->rule, strlen(e->rule)) << 32 | text_hash(e->identity, strlen(e->identity))) ^
        (uintptr_t)kind;
    hash ^= hash >> 32;
    TABLE_CHAIN(g, &i->groups, hash, struct group, link)
        if (g->hash == hash && g->kind == kind && strcmp(g->last.rule, e->rule) == 0 &&
            strcmp(g->last.identity, e->identity) == 0)
            return g;
    if (i->groups.count >= GROUPS_MAX) { /* removes the group without incidents for longest, if it is long enough */
        struct group *quiet = LIST_ENTRY(list_first(&i->quiet), struct group, quiet);
        invariant(quiet != &quiet->kind->others && quiet->count > 0, "the others of a kind are among the groups");
        if (!is_over(quiet->last.time_ms, e->time_ms) || quiet->untold > 0)
            return &kind->others;
        merge(&quiet->kind->others, quiet);
        list_remove(&quiet->quiet);
        table_remove(&i->groups, &quiet->link, quiet->hash);
        memory_free(quiet);
    }
    struct group *g = memory_zalloc(sizeof(*g));
    group_init(g, kind);
    g->hash = hash;
    table_insert(&i->groups, &g->link, hash);
    return g;
}

/* ---- the rings -------------------------------------------------------------------------------------------- */

/* Puts an incident into its kind's ring: into a new row, or in place of its group's newest row. */
static void keep(struct incidents *i, struct group *g, const struct incident *e) {
    struct kind *kind = g->kind;
    if (!kind->ring)
        kind->ring = memory_zalloc(i->rows * sizeof(*kind->ring));
    if (is_over(g->rows_since_ms, e->time_ms)) {
        g->rows_since_ms = e->time_ms;
        g->rows = 0;
    }
    bool again = g->rows >= GROUP_ROWS && g->row && g->row->seq == g->row_seq;
    uint64_t before = again ? g->row->count : 0;
    if (!again) {
        g->row = &kind->ring[kind->next];
        kind->next = (kind->next + 1) % i->rows;
        g->rows++;
    }
    invariant(kind->next < i->rows && g->row >= kind->ring && g->row < kind->ring + i->rows, "row %zu of %zu",
              kind->next, i->rows);
    *g->row = *e;
    g->row->count = before + 1;
    g->row->seq = g->row_seq = ++i->seq;
}

void incidents_add(struct incidents *i, const struct incident *e, const char *action) {
    pthread_mutex_lock(&i->mutex);
    struct group *g = group_of(i, kind_of(i, e->kind), e);
    if (g == &g->kind->others) {
        merge(g, &(struct group){.first_ms = e->time_ms, .last = *e, .count = 1});
    } else {
        g->first_ms = g->count ? g->first_ms : e->time_ms;
        g->last = *e;
        g->count++;
        list_remove(&g->quiet);
        list_append(&i->quiet, &g->quiet);
    }
    keep(i, g, e);
    if (i->feed) {
        i->feed[i->seq % FEED_ROWS] = *e;
        i->feed[i->seq % FEED_ROWS].seq = i->seq;
        /* A listener's `wake` runs with the store locked. */
        LIST_EACH(ear, &i->ears, const struct incidents_ear, link)
            ear->wake(ear->arg);
    }
    bool at_once = g->untold == 0 && (!g->told_ms || is_over(g->told_ms, e->time_ms));
    if (at_once && is_over(i->lines_since_ms, e->time_ms)) {
        i->lines_since_ms = e->time_ms;
        i->lines = 0;
    }
    at_once = at_once && i->lines++ < LINES_AT_ONCE;
    if (at_once) {
        g->told_ms = e->time_ms;
    } else if (g->untold++ == 0) {
        g->told_ms = g->told_ms ? g->told_ms : e->time_ms;
        list_append(&i->pending, &g->pending);
    }
    pthread_mutex_unlock(&i->mutex);
    if (at_once)
        write_line(e, action, 0, 0);
}

/* ---- looking in ------------------------------------------------------------------------------------------- */

static int newest_first(const void *a, const void *b) {
    const struct incident *const *x = a, *const *y = b;
    return (*x)->seq < (*y)->seq ? 1 : -1;
}

static bool is_of_kind(const struct incident_filter *wanted, const char *kind) {
    return !wanted->kind || strncmp(kind, wanted->kind, KIND_MAX - 1) == 0;
}

/* Whether a key is selected; takes the steps of the pattern from *steps. */
static bool has_key(const struct incident_filter *wanted, const struct incident *e, size_t *steps) {
    return !wanted->pattern || glob_match_within(wanted->pattern, wanted->pattern_len, e->key, e->key_len, steps);
}

bool incidents_each(struct incidents *i, const struct incident_filter *wanted, size_t max,
                    void (*fn)(void *arg, const struct incident *incident), void *arg) {
    size_t steps = GLOB_STEPS;
    pthread_mutex_lock(&i->mutex);
    const struct incident **all = memory_alloc((i->kind_count * i->rows + 1) * sizeof(struct incident *));
    size_t count = 0;
    for (size_t k = 0; k < i->kind_count; k++) {
        const struct kind *kind = i->kinds[k];
        for (size_t n = 0; is_of_kind(wanted, kind->name) && n < i->rows && kind->ring && kind->ring[n].seq; n++)
            if (kind->ring[n].time_ms >= wanted->since_ms)
                all[count++] = &kind->ring[n];
    }
    if (count > 0)
        qsort(all, count, sizeof(struct incident *), newest_first);
    for (size_t n = 0; n < count && max > 0 && steps > 0; n++) {
        if (!has_key(wanted, all[n], &steps))
            continue;
        fn(arg, all[n]);
        max--;
    }
    pthread_mutex_unlock(&i->mutex);
    memory_free(all);
    return steps > 0;
}

static int most_first(const void *a, const void *b) {
    const struct incident_sum *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return x->last->time_ms < y->last->time_ms ? 1 : x->last->time_ms > y->last->time_ms ? -1 : 0;
}

static int by_client_and_kind(const void *a, const void *b) {
    const struct incident_sum *x = a, *y = b;
    int order = strcmp(x->last->identity, y->last->identity);
    return order ? order : strcmp(x->kind, y->kind);
}

/* Adds the group's sum, if the group is of the selected kind and time. */
static void add_sum(struct incident_sum *all, size_t *count, const struct group *g,
                    const struct incident_filter *wanted) {
    if (g->count > 0 && is_of_kind(wanted, g->kind->name) && g->last.time_ms >= wanted->since_ms)
        all[(*count)++] =
            (struct incident_sum){.last = &g->last, .kind = g->kind->name, .count = g->count, .first_ms = g->first_ms};
}

/* The sums of the selected groups, in this order. The caller frees them. */
static struct incident_sum *sums_sorted(const struct incidents *i, const struct incident_filter *wanted,
                                        int (*order)(const void *, const void *), size_t *count) {
    struct incident_sum *all = memory_alloc((i->groups.count + i->kind_count + 1) * sizeof(*all));
    *count = 0;
    TABLE_EACH(g, &i->groups, struct group, link)
        add_sum(all, count, g, wanted);
    for (size_t k = 0; k < i->kind_count; k++)
        add_sum(all, count, &i->kinds[k]->others, wanted);
    if (*count > 0)
        qsort(all, *count, sizeof(*all), order);
    return all;
}

void incidents_sums(struct incidents *i, const struct incident_filter *wanted, size_t max,
                    void (*fn)(void *arg, const struct incident_sum *sum), void *arg) {
    pthread_mutex_lock(&i->mutex);
    size_t count;
    struct incident_sum *all = sums_sorted(i, wanted, most_first, &count);
    for (size_t n = 0; n < count && n < max; n++)
        fn(arg, &all[n]);
    pthread_mutex_unlock(&i->mutex);
    memory_free(all);
}

void incidents_clients(struct incidents *i, size_t max, void (*fn)(void *arg, const struct incident_sum *sum),
                       void *arg) {
    pthread_mutex_lock(&i->mutex);
    size_t count, clients = 0;
    struct incident_sum *all = sums_sorted(i, &(struct incident_filter){0}, by_client_and_kind, &count);
    const char *kind = NULL;
    uint64_t of_kind = 0;
    for (size_t n = 0; n < count; n++) { /* a client's sums follow each other, by kind; they become one */
        struct incident_sum sum = all[n], *c = clients > 0 ? &all[clients - 1] : NULL;
        if (sum.last->identity[0] == '\0') /* the proxy's own incidents */
            continue;
        if (!c || strcmp(c->last->identity, sum.last->identity) != 0) {
            c = &all[clients++];
            *c = (struct incident_sum){.last = sum.last};
            kind = NULL;
        }
        of_kind = kind == sum.kind ? of_kind + sum.count : sum.count;
        kind = sum.kind;
        c->count += sum.count;
        if (of_kind > c->kind_count) {
            c->kind = kind;
            c->kind_count = of_kind;
        }
        if (sum.last->time_ms > c->last->time_ms)
            c->last = sum.last;
    }
    if (clients > 0)
        qsort(all, clients, sizeof(*all), most_first);
    for (size_t n = 0; n < clients && n < max; n++)
        fn(arg, &all[n]);
    pthread_mutex_unlock(&i->mutex);
    memory_free(all);
}

/* ---- sentences --------------------------------------------------------------------------------------- */

void incident_sentence(const struct incident *i, struct text *out) {
    /* The words for each kind of incident: before and after the key. */
    static const struct deed {
        const char *kind, *before, *behind;
        bool against; /* the sentence names the holder, which is another client */
    } deeds[] = {
        {"late_release", "tried to release", "", true},
        {"foreign_release", "tried to release", "", true},
        {"ambiguous", "released", " with one of several leases", true},
        {"foreign_extend", "tried to change the expiry of", "", true},
        {"overwrite", "tried to overwrite", "", true},
        {"no_expiry", "acquired", " without an expiry", false},
        {"overrun", "had", " for longer than its lease", false},
        {"abandoned", "left without releasing", "", false},
        {"lost_head", "lost its place in the queue of", "", false},
        {"renewal_lost", "lost the lease of", "", false},
        {"lost", "lost the lease of", "", false},
        {"unconfirmed", "did not get", "", false},
        {"remembered", "was refused", "", false},
        {"overtaken", "has lost", "", false},
        {"operator_release", "released", " as an operator", true},
        {"shared", "was found to share connections for", "", false},
        {"believed", "released", " for another connection", true},
        {"deadlock", "would have waited in a circle for", "", false},
        {"late_write", "wrote", " without its lock", true},
        {"held_long", "has held", " for long", false},
        {"one_shot", "keeps", " as a one-shot client", false},
        {"permit_returned", "did not give back a permit of", "", false},
        {"permit_lost", "may have a permit of", "", false},
        {NULL, "had an incident with", "", true},
    };
    const struct deed *deed = deeds;
    while (deed->kind && strcmp(deed->kind, i->kind) != 0)
        deed++;
    text_printf(out, "%s %s ", i->client[0] ? i->client : "The proxy", deed->before);
    text_append_visible(out, i->key, i->key_len);
    text_printf(out, "%s", deed->behind);
    if (deed->against && i->holder[0])
        text_printf(out, "; held by %s", i->holder);
    text_printf(out, ": %s", i->action);
}

void incident_time(int64_t time_ms, struct text *out) {
    time_t seconds = (time_t)(time_ms / 1000);
    struct tm tm;
    char date[32];
    localtime_r(&seconds, &tm);
    strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &tm);
    text_printf(out, "%s.%03d", date, (int)(time_ms % 1000));
}

/* ---- selections ------------------------------------------------------------------------------------------ */

static void put_word(struct text *out, const char *word, size_t len) {
    text_append(out, "'", 1);
    text_append_shown(out, word, len, WORD_SHOWN);
    text_append(out, "'", 1);
}

static bool refuse_twice(struct incident_query *q, const char *name) {
    text_printf(q->error, "ERR syntax error: %s was given twice", name);
    return false;
}

static bool read_kind(struct incident_query *q, const char *word, size_t len) {
    if (q->filter.kind)
        return refuse_twice(q, "KIND");
    for (size_t i = 0; q->kinds(i); i++)
        if (text_is(word, len, q->kinds(i))) {
            q->filter.kind = q->kinds(i);
            return true;
        }
    text_printf(q->error, "ERR there are no incidents of the kind ");
    put_word(q->error, word, len);
    for (size_t i = 0; q->kinds(i); i++)
        text_printf(q->error, "%s%s", i == 0 ? "; the kinds are: " : ", ", q->kinds(i));
    return false;
}

static bool read_key(struct incident_query *q, const char *word, size_t len) {
    if (q->filter.pattern)
        return refuse_twice(q, "KEY");
    q->filter.pattern = word;
    q->filter.pattern_len = len;
    return true;
}

static bool read_since(struct incident_query *q, const char *word, size_t len) {
    char text[TIME_SIZE];
    int64_t ms;
    if (q->filter.since_ms)
        return refuse_twice(q, "SINCE");
    size_t n = len < sizeof(text) - 1 ? len : 0; /* every valid time is shorter */
    memcpy(text, word, n);
    text[n] = '\0';
    if (strlen(text) != len || !units_time(text, 1000, &ms)) {
        text_printf(q->error, "ERR SINCE ");
        put_word(q->error, word, len);
        text_printf(q->error, ": expected a time like 30s, 10m, 2h or 1d");
        return false;
    }
    q->filter.since_ms = ms < q->now_ms ? q->now_ms - ms : 1;
    return true;
}

bool incident_count(const char *word, size_t len, size_t *count) {
    *count = 0;
    for (size_t i = 0; i < len; i++) {
        if (word[i] < '0' || word[i] > '9')
            return false;
        *count = *count < COUNT_CUT ? *count * 10 + (size_t)(word[i] - '0') : *count;
    }
    return len > 0;
}

static bool read_alone(struct incident_query *q, const char *word, size_t len) {
    size_t count;
    bool all = q->now_ms > 0, summary = all && text_is(word, len, "summary");
    if (!summary && (!all || !incident_count(word, len, &count))) {
        text_printf(q->error, "ERR syntax error at ");
        put_word(q->error, word, len);
        text_printf(q->error, ": expected %s",
                    all ? "a count, SUMMARY, KIND kind, KEY pattern or SINCE time" : "KIND kind or KEY pattern");
        return false;
    }
    if (summary ? q->summary : q->counted)
        return refuse_twice(q, summary ? "SUMMARY" : "the count");
    q->summary |= summary;
    q->counted |= !summary;
    q->count = summary ? q->count : count;
    return true;
}

bool incident_query_read(struct incident_query *q, const char *const *words, const size_t *lens, size_t count) {
    static const struct {
        const char *name;
        bool (*read)(struct incident_query *q, const char *word, size_t len);
    } pairs[] = {{"kind", read_kind}, {"key", read_key}, {"since", read_since}};
    size_t pair_count = q->now_ms > 0 ? 3 : 2;
    for (size_t i = 0; i < count; i++) {
        size_t p = 0;
        while (p < pair_count && !text_is(words[i], lens[i], pairs[p].name))
            p++;
        if (p == pair_count) {
            if (!read_alone(q, words[i], lens[i]))
                return false;
        } else if (++i == count) {
            text_printf(q->error, "ERR syntax error: nothing behind %.*s", (int)lens[i - 1], words[i - 1]);
            return false;
        } else if (!pairs[p].read(q, words[i], lens[i])) {
            return false;
        }
    }
    if (q->summary && q->filter.pattern) {
        text_printf(q->error, "ERR SUMMARY counts by kind, rule and client, not by key: leave KEY out");
        return false;
    }
    return true;
}

/* ---- live incidents ---------------------------------------------------------------------------------------- */

struct incidents_ear *incidents_listen(struct incidents *i, void (*wake)(void *arg), void *arg) {
    struct incidents_ear *ear = memory_zalloc(sizeof(*ear));
    ear->wake = wake;
    ear->arg = arg;
    MUTEX_GUARD(&i->mutex);
    if (!i->feed)
        i->feed = memory_zalloc(FEED_ROWS * sizeof(*i->feed));
    list_append(&i->ears, &ear->link);
    return ear;
}

void incidents_unlisten(struct incidents *i, struct incidents_ear *ear) {
    pthread_mutex_lock(&i->mutex);
    list_remove(&ear->link);
    if (list_empty(&i->ears)) {
        memory_free(i->feed);
        i->feed = NULL;
    }
    pthread_mutex_unlock(&i->mutex);
    memory_free(ear);
}

/* ---- PROXY WATCH ------------------------------------------------------------------------------------------- */

struct incident_watch {
    struct incidents *incidents;
    struct incident_filter wanted; /* its pattern belongs to the watch */
    uint64_t at;                   /* the number of the next incident to look at */
    uint64_t missed;               /* incidents that were overwritten before, and are not yet reported */
};

struct incident_watch *incident_watch_new(struct incidents *i, const char *const *words, const size_t *lens,
                                          size_t count, const char *(*kinds)(size_t i), struct text *error) {
    struct incident_query q = {.kinds = kinds, .error = error};
    if (!incident_query_read(&q, words, lens, count))
        return NULL;
    struct incident_watch *watch = memory_zalloc(sizeof(*watch));
    watch->incidents = i;
    watch->wanted = q.filter;
    if (q.filter.pattern)
        watch->wanted.pattern = memory_strndup(q.filter.pattern, q.filter.pattern_len);
    MUTEX_GUARD(&i->mutex);
    watch->at = i->seq + 1;
    return watch;
}

void incident_watch_free(struct incident_watch *watch) {
    memory_free((char *)watch->wanted.pattern);
    memory_free(watch);
}

static void put_missed(struct incident_watch *watch, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    struct text line = {0};
    if (watch->missed == 0)
        return;
    text_printf(&line, "(incidents before what follows that came faster than they could be shown: %llu)",
                (unsigned long long)watch->missed);
    watch->missed = 0;
    fn(arg, line.data, line.len);
    text_clear(&line);
}

bool incident_watch_lines(struct incident_watch *watch, void (*fn)(void *arg, const char *line, size_t len),
                          void *arg) {
    struct incidents *i = watch->incidents;
    size_t steps = FOLLOW_STEPS, left = WATCHED_A_STEP;
    pthread_mutex_lock(&i->mutex);
    uint64_t oldest = i->seq >= FEED_ROWS ? i->seq - FEED_ROWS + 1 : 1;
    if (watch->at < oldest) {
        watch->missed += oldest - watch->at;
        watch->at = oldest;
    }
    for (; watch->at <= i->seq && left > 0 && steps >= MATCH_STEPS_MAX; watch->at++, left--) {
        const struct incident *e = &i->feed[watch->at % FEED_ROWS];
        if (!is_of_kind(&watch->wanted, e->kind) || !has_key(&watch->wanted, e, &steps))
            continue;
        struct text sentence = {0}, line = {0};
        put_missed(watch, fn, arg);
        incident_time(e->time_ms, &line);
        text_printf(&line, " %s: ", e->kind);
        incident_sentence(e, &sentence);
        text_append_visible(&line, sentence.data, sentence.len); /* names of users and clients may contain any bytes */
        fn(arg, line.data, line.len);
        text_clear(&sentence);
        text_clear(&line);
    }
    bool more = watch->at <= i->seq;
    pthread_mutex_unlock(&i->mutex);
    if (!more) /* a watch that lags behind reports all missed incidents together, later */
        put_missed(watch, fn, arg);
    return more;
}
