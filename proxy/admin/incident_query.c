/* Reads a client's selection of incidents. The words may contain any bytes, and are not NUL-terminated. */
#include "proxy/admin/incident_query.h"

#include <string.h>

#include "proxy/base/text.h"
#include "proxy/base/units.h"

enum { DIGITS_MAX = 4, COUNT_MOST = 9999, TIME_SIZE = 32, WORD_SHOWN = 64 };

struct reading {
    struct incident_query *query;
    const struct incident_syntax *syntax;
    struct text *error;
};

static void put_word(struct text *out, const char *word, size_t len) {
    text_append(out, "'", 1);
    text_append_visible(out, word, len < WORD_SHOWN ? len : WORD_SHOWN);
    text_printf(out, len > WORD_SHOWN ? "...'" : "'");
}

static bool refuse_word(struct reading *r, const char *word, size_t len) {
    text_printf(r->error, "ERR syntax error at ");
    put_word(r->error, word, len);
    text_printf(r->error, ": expected %s%sKIND kind%s", r->syntax->takes & QUERY_COUNT ? "a count, " : "",
                r->syntax->takes & QUERY_SUMMARY ? "SUMMARY, " : "",
                r->syntax->takes & QUERY_SINCE ? ", KEY pattern or SINCE time" : " or KEY pattern");
    return false;
}

static bool refuse_twice(struct reading *r, const char *name) {
    text_printf(r->error, "ERR syntax error: %s was given twice", name);
    return false;
}

static bool read_kind(struct reading *r, const char *word, size_t len) {
    if (r->query->filter.kind)
        return refuse_twice(r, "KIND");
    for (size_t i = 0; r->syntax->kinds(i); i++)
        if (text_is(word, len, r->syntax->kinds(i))) {
            r->query->filter.kind = r->syntax->kinds(i);
            return true;
        }
    text_printf(r->error, "ERR there are no incidents of the kind ");
    put_word(r->error, word, len);
    for (size_t i = 0; r->syntax->kinds(i); i++)
        text_printf(r->error, "%s%s", i == 0 ? "; the kinds are: " : ", ", r->syntax->kinds(i));
    return false;
}

static bool read_key(struct reading *r, const char *word, size_t len) {
    if (r->query->filter.pattern)
        return refuse_twice(r, "KEY");
    r->query->filter.pattern = word;
    r->query->filter.pattern_len = len;
    return true;
}

static bool read_since(struct reading *r, const char *word, size_t len) {
    char text[TIME_SIZE];
    int64_t ms;
    if (r->query->filter.since_ms)
        return refuse_twice(r, "SINCE");
    size_t n = len < sizeof(text) - 1 ? len : 0; /* every valid time is shorter */
    memcpy(text, word, n);
    text[n] = '\0';
    if (strlen(text) != len || !units_time(text, 1000, &ms)) {
        text_printf(r->error, "ERR SINCE ");
        put_word(r->error, word, len);
        text_printf(r->error, ": expected a time like 30s, 10m, 2h or 1d");
        return false;
    }
    r->query->filter.since_ms = ms < r->syntax->now_ms ? r->syntax->now_ms - ms : 1;
    return true;
}

/* Whether the word consists of digits; if so, sets the count. More than DIGITS_MAX digits mean the largest count. */
static bool read_count(struct incident_query *q, const char *word, size_t len) {
    size_t count = 0;
    for (size_t i = 0; i < len; i++) {
        if (word[i] < '0' || word[i] > '9')
            return false;
        count = i < DIGITS_MAX ? count * 10 + (size_t)(word[i] - '0') : COUNT_MOST;
    }
    if (len > 0 && !q->counted)
        q->count = count;
    return len > 0;
}

static bool read_alone(struct reading *r, const char *word, size_t len) {
    struct incident_query *q = r->query;
    if (r->syntax->takes & QUERY_SUMMARY && text_is(word, len, "summary")) {
        if (q->summary)
            return refuse_twice(r, "SUMMARY");
        q->summary = true;
        return true;
    }
    if (!(r->syntax->takes & QUERY_COUNT) || !read_count(q, word, len))
        return refuse_word(r, word, len);
    if (q->counted)
        return refuse_twice(r, "the count");
    q->counted = true;
    return true;
}

bool incident_query_read(struct incident_query *q, const struct incident_syntax *syntax, const char *const *words,
                         const size_t *lens, size_t count, struct text *error) {
    static const struct {
        const char *name;
        unsigned wanted; /* a bit of `takes`; 0: always permitted */
        bool (*read)(struct reading *r, const char *word, size_t len);
    } pairs[] = {{"kind", 0, read_kind}, {"key", 0, read_key}, {"since", QUERY_SINCE, read_since}};
    struct reading r = {.query = q, .syntax = syntax, .error = error};
    *q = (struct incident_query){.count = 0};
    for (size_t i = 0; i < count; i++) {
        size_t p = 0, n = sizeof(pairs) / sizeof(pairs[0]);
        while (p < n &&
               ((syntax->takes & pairs[p].wanted) != pairs[p].wanted || !text_is(words[i], lens[i], pairs[p].name)))
            p++;
        if (p == n) {
            if (!read_alone(&r, words[i], lens[i]))
                return false;
        } else if (++i == count) {
            text_printf(error, "ERR syntax error: nothing behind %.*s", (int)lens[i - 1], words[i - 1]);
            return false;
        } else if (!pairs[p].read(&r, words[i], lens[i])) {
            return false;
        }
    }
    if (q->summary && q->filter.pattern) {
        text_printf(error, "ERR SUMMARY counts by kind, rule and client, not by key: leave KEY out");
        return false;
    }
    return true;
}
