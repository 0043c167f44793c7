/*
 * PROXY ADVISE: counts as sentences and `lock` lines, in their order; the number of patterns without a rule. It
 * suggests a rule only if enough was seen, and shows how much that was.
 */
#include "proxy/advise/advise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/glob.h"
#include "proxy/base/memory.h"
#include "proxy/lock/thresholds.h"

enum {
    HANDED_OVER = 5,   /* releases by other clients that make a lock handed over */
    OWN_OF = 10,       /* of so many releases by others, one may be by the client that acquired */
    SHARED_ENOUGH = 5, /* numbers above the first, tokens or members that were kept for a while: it is a semaphore */
    ODD_OF = 4,        /* of so many permits that are given back, one event may be odd */
    STOOD_MS = 3       /* average time free, in ms, above which handing a release on gains something */
};

/* Whether acquirers hardly ever release, and others do. If many clients acquire and release, each gets one of its own
 * locks now and then. */
static bool handed_over(const struct evidence *r) {
    return r->by_other >= HANDED_OVER && r->by_own * OWN_OF <= r->by_other;
}

/* Whether the lock is a throttle: it has an expiry, and is never released. */
static bool throttle(const struct evidence *r) {
    return r->sent == 0 && r->by_other == 0 && r->refused == 0 && r->endless == 0;
}

/* Whether several sessions keep a number, token or member of the counter, list or sorted set: it is a semaphore. */
static bool is_semaphore(const struct evidence *r) {
    bool permits = r->kinds == ADVISE_PERMITS && r->odd * ODD_OF <= r->released;
    return r->shared >= SHARED_ENOUGH && (r->kinds == ADVISE_COUNTER || permits);
}

/* Whether losers delete. A release over a connection whose last attempt was lost is a loser's if there is one more
 * release for each lost attempt. If there are no more releases than acquisitions, it is a pool that hands connections
 * round. */
static bool losers_delete(const struct evidence *r) {
    return r->losers > 0 && surplus_is_losers((double)r->sent, (double)r->acquired, (double)r->losers);
}

static bool multiplexed(const struct evidence *r) {
    return r->overlapped || client_library_multiplexes(r->library, strlen(r->library));
}

/* Whether each worker has its connection, as a row of contended releases shows: said from SESSION_ROW on, advised from
 * WORKLOAD_ROW on. Over one session SESSION_ROW is enough for both. */
static bool own(const struct evidence *r, uint64_t row) {
    uint64_t longest = 0; /* of a single session */
    for (size_t i = 0; i < ADVISE_SESSIONS; i++)
        longest = r->sessions[i].row > longest ? r->sessions[i].row : longest;
    return r->crossed == 0 && !multiplexed(r) && rows_dedicated(r->row, longest, row);
}

/* Whether the rule option wait would help: the lock is free while its contenders sleep. */
static bool sleepers(const struct evidence *r) {
    return r->stood >= ADVISE_ENOUGH && r->stood_ms >= STOOD_MS * r->stood && !r->waits && !multiplexed(r) &&
           (r->kinds & ~(unsigned)ADVISE_STRING) == 0;
}

/* The option `owner`; "": none. The default rule learns by itself whether it is `connection` or `client`; naming it
 * saves the learning, if nothing contradicts it. */
static const char *owner_of(const struct evidence *r) {
    if (handed_over(r) && r->by_other_bare >= HANDED_OVER) /* the rules do not stop a script */
        return " owner any";
    if (losers_delete(r) && own(r, WORKLOAD_ROW))
        return " owner connection";
    if (!losers_delete(r) && !handed_over(r) && (multiplexed(r) || r->crossed >= CROSSINGS))
        return " owner client";
    return "";
}

/* Adds a count, ", late 3", unless it is 0. */
static void add_count(struct text *l, const char *what, unsigned long long count) {
    if (count > 0)
        text_printf(l, ", %s %llu", what, count);
}

static void add_counts(struct text *l, const struct evidence *r) {
    if (is_semaphore(r)) {
        bool permits = r->kinds == ADVISE_PERMITS;
        text_printf(l, permits ? "given back %llu" : "taken %llu", permits ? r->released : r->acquired + r->lost);
        return;
    }
    text_printf(l, "acquired %llu, lost %llu, released %llu", r->acquired, r->lost, r->released);
    add_count(l, "by others", r->by_other);
    if (losers_delete(r))
        text_printf(l, ", losers delete: %llu times", r->losers);
    add_count(l, "refused", r->refused);
    add_count(l, "late", r->late);
    add_count(l, "in vain", r->in_vain);
    text_printf(l, ", overruns %llu", throttle(r) ? 0 : r->expired);
    add_count(l, "without expiry", r->endless);
    if (sleepers(r))
        text_printf(l, ", releases slept through %llu, ms lost with each %llu", r->stood, r->stood_ms / r->stood);
}

/* Adds a text, and the pattern behind it in the syntax of the configuration. */
static void add_pattern(struct text *l, const char *before, const char *pattern) {
    text_printf(l, "%s", before);
    lock_rule_word(l, pattern);
}

static void add_rule(struct text *l, const struct evidence *r) {
    static const char *const KINDS[] = {"string", "list", "hash", "counter"};
    const char *before = " kind ";
    add_pattern(l, "lock ", r->pattern);
    if (is_semaphore(r)) {
        text_printf(l, " kind semaphore");
        return;
    }
    for (unsigned i = 0; r->kinds & ~(unsigned)ADVISE_STRING && i < ARRAY_SIZE(KINDS); i++)
        if (r->kinds & 1u << i) {
            text_printf(l, "%s%s", before, KINDS[i]);
            before = ",";
        }
    text_printf(l, "%s", owner_of(r));
    if (sleepers(r))
        text_printf(l, " wait 1s");
}

static const char TOO_FEW[] = "too few to advise",
                  NEVER[] = "never seen to be acquired: held since before, or dead; look at its TTL";

/* What to say of a pattern instead of a rule; NULL: a rule can be advised. */
static const char *no_rule_since(const struct evidence *r) {
    if (is_semaphore(r))
        return NULL;
    if (r->acquired == 0 && r->lost >= ADVISE_ENOUGH)
        return NEVER;
    if (r->acquired < ADVISE_ENOUGH)
        return TOO_FEW;
    if (r->kinds & ADVISE_LIST && !r->ruled && handed_over(r))
        return "a queue of jobs, taken by others than pushed them: no rule is needed";
    if (throttle(r))
        return r->ruled ? "a throttle, never released: fits as it is" : "a throttle, never released: no rule is needed";
    if (!r->ruled && (r->released + r->late) * 2 < r->acquired)
        return "seldom released: no lock, or its releases are not seen";
    return NULL;
}

/* ---- unsafe use, in a user's words: sound use is not mentioned ------------------------------------- */

enum {
    LATE_SAID = 3,  /* late releases that are worth a line, */
    LATE_SHARE = 20 /* if one acquisition in so many has a late release */
};

/* The kinds of unsafe use, worst first. */
enum { RISK_LOSERS, RISK_LATE, RISK_ONE_SHOT, RISKS };

/* How often the row shows unsafe use of a kind; 0: never, or too seldom to say. */
static unsigned long long risk_count(const struct evidence *r, unsigned kind) {
    if (is_semaphore(r))
        return 0;
    switch (kind) {
    case RISK_LOSERS:
        return losers_delete(r) ? r->freed : 0;
    case RISK_LATE:
        return r->late < LATE_SAID || r->expired < LATE_SAID || r->late * LATE_SHARE < r->acquired ? 0 : r->late;
    default:
        return r->one_shots;
    }
}

/* What a report would say of a row, to tell clients that differ. */
struct verdict {
    const char *why, *owner; /* no rule since; NULL: it looks like a lock. The rule's owner. Static words */
    unsigned kinds, risks;
    bool few;     /* too little was seen for a rule */
    bool decided; /* enough was seen, or something unsafe */
};

static struct verdict verdict_of(const struct evidence *r) {
    const char *why = no_rule_since(r);
    struct verdict v = {.why = why, .few = why == TOO_FEW || why == NEVER};
    if (!why)
        v = (struct verdict){.owner = owner_of(r), .kinds = r->kinds};
    for (unsigned kind = 0; kind < RISKS; kind++)
        v.risks |= (unsigned)(risk_count(r, kind) > 0) << kind;
    v.decided = !v.few || v.risks > 0;
    return v;
}

void advise_line(const struct evidence *r, struct text *l) {
    add_pattern(l, "", r->pattern);
    text_printf(l, " by %s: ", r->client);
    if (r->kinds & ADVISE_LIST)
        text_printf(l, "a list lock; ");
    if (is_semaphore(r))
        text_printf(l, "a semaphore, whose permits a crash loses; ");
    if (handed_over(r))
        text_printf(l, "released by other clients than acquired");
    else if (multiplexed(r))
        text_printf(l, "one connection for several workers");
    else if (r->crossed >= CROSSINGS)
        text_printf(l, "a pool of connections");
    else
        text_printf(l, own(r, SESSION_ROW) ? "a connection for each worker" : "connections not known");
    if (r->library[0])
        text_printf(l, " (%s)", r->library);
    if (r->valued < 2)
        text_printf(l, "; values not known; ");
    else if (r->repeated == 0)
        text_printf(l, "; values distinct; ");
    else
        text_printf(l, r->repeated * 2 > r->valued ? "; values constant; " : "; values partly the same; ");
    add_counts(l, r);
    text_printf(l, "; %s; %llu events: ",
                !r->ruled    ? "outside of the rules"
                : r->audited ? "audited"
                             : "enforced",
                r->events);
    const char *why = no_rule_since(r);
    if (why)
        text_printf(l, "%s", why);
    else
        add_rule(l, r);
}

static void losers_line(const struct evidence *r, struct text *l) {
    text_printf(l, "%llu time%s a loser deleted another worker's lock. ", r->freed, r->freed == 1 ? "" : "s");
    if (r->ruled && !r->audited) {
        text_printf(l, "Its rule does not tell the workers apart: 'owner connection' does if each worker has its "
                       "connection, CLIENT SETNAME does with a name for each worker");
        return;
    }
    text_printf(l, "Rule that cures it%s: ", r->audited ? ", in place of its audit" : "");
    add_rule(l, r);
}

static void late_line(const struct evidence *r, struct text *l) {
    unsigned sessions = 0;
    for (size_t i = 0; i < ADVISE_SESSIONS; i++)
        sessions += r->sessions[i].id != 0;
    text_printf(l, "%llu of %llu locks were released after their expiry", r->late, r->acquired);
    if (r->late_timed > 0)
        text_printf(l, ", by %llu ms on average", r->late_ms / r->late_timed);
    text_printf(l,
                ": others may have worked at the same time. Give a longer expiry, or none (the proxy renews the lock "
                "while its owner is connected)");
    if (!strstr(r->client, " name=") && sessions > 1)
        text_printf(l, ". Its connections have no names: with CLIENT SETNAME and a name for each process, no process "
                       "can free the lock of another one");
}

static void one_shot_line(const struct evidence *r, struct text *l) {
    text_printf(l,
                "%llu times a lock without an expiry was acquired over a connection that closed at once, as redis-cli "
                "in a script does. %s. Use SET with NX and EX, and a trap that sends DEL (docs/guides/shell.md)",
                r->one_shots,
                r->ruled && !r->audited ? "The proxy keeps it for the rule's one-shot time, even if the script has died"
                                        : "If the script dies nothing ends the lock");
}

/* ---- rows, added up ------------------------------------------------------------------------------- */

/* The observer's rows, or the rows of the report: of a pattern, the clients that differ. */
struct rows {
    struct evidence *row;
    size_t count;
};

static void row_add(void *arg, const struct evidence *row) {
    struct rows *rows = arg;
    bool data = row->kinds == ADVISE_PERMITS && !is_semaphore(row);
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

/* Adds a row to the line from `first` on of which the same is said; otherwise it gets a line of its own. */
static void line_add(struct rows *lines, struct verdict *verdicts, size_t first, const struct evidence *row) {
    const struct verdict v = verdict_of(row);
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
 * them: 240 workers with a name each are one application. Then they join those of which the same is said, or the first
 * ones if it is still too little. */
static void add_up(struct rows *rows) {
    struct rows lines = {.row = rows->row};
    struct verdict *verdicts = memory_alloc((rows->count + 1) * sizeof(*verdicts));
    qsort(rows->row, rows->count, sizeof(*rows->row), by_pattern);
    for (size_t i = 0; i < rows->count;) {
        struct evidence few[1 << RISKS] = {{.events = 0}}, pattern = rows->row[i];
        size_t first = lines.count;
        for (; i < rows->count && same_pattern(&rows->row[i], &pattern); i++) {
            const struct evidence row = rows->row[i]; /* a line may take its place */
            const struct verdict v = verdict_of(&row);
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
    static void (*const LINES[RISKS])(const struct evidence *, struct text *) = {
        [RISK_LOSERS] = losers_line, [RISK_LATE] = late_line, [RISK_ONE_SHOT] = one_shot_line};
    struct risk *risks = memory_alloc((lines->count + 1) * RISKS * sizeof(*risks));
    size_t count = 0;
    for (size_t i = 0; i < lines->count * RISKS; i++) {
        risks[count] = (struct risk){.row = &lines->row[i / RISKS], .kind = (unsigned)(i % RISKS)};
        risks[count].count = risk_count(risks[count].row, risks[count].kind);
        count += risks[count].count > 0;
    }
    qsort(risks, count, sizeof(*risks), worst_first);
    for (size_t i = 0; i < count; i++) {
        const struct evidence *row = risks[i].row, *last = &lines->row[lines->count - 1];
        bool others = (row > lines->row && same_pattern(row - 1, row)) || (row < last && same_pattern(row + 1, row));
        struct text line = {0};
        add_pattern(&line, "UNSAFE ", row->pattern);
        text_printf(&line, "%s%s: ", others ? " by " : "", others ? row->client : "");
        LINES[risks[i].kind](row, &line);
        say(&line, fn, arg);
    }
    memory_free(risks);
}

/* ---- patterns without a rule -------------------------------------------------------------------- */

/* Counts the patterns, each once. A rule may be new, or off: it matches the pattern as it is written. */
static size_t unruled(const struct rows *lines, const struct lock_rules *rules, int64_t since_ms) {
    const struct evidence *last = NULL;
    size_t sum = 0;
    for (size_t i = 0; i < lines->count; i++) {
        const struct evidence *row = &lines->row[i];
        if (row->ruled || row->last_ms < since_ms || verdict_of(row).why || (last && same_pattern(row, last)))
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

/* Whether the line for `other` makes that for `pair` superfluous: the same data under a lock that is held for more of
 * its writes, or a more specific lock; or a wider pattern of data under the same lock. */
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

/* Says the line of each pair that deserves a fence, those with most writes first. */
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
        const struct written_pair *p = &said[i];
        struct text line = {0};
        add_pattern(&line, "", p->pattern);
        add_pattern(&line, " is written by holders of ", p->lock);
        text_printf(&line, ": %llu of %llu writes", p->held + p->late, p->writes);
        if (p->late > 0)
            text_printf(&line, ", %llu of them after the lease was over", p->late);
        add_pattern(&line, ": fence ", p->pattern);
        add_pattern(&line, " by ", p->lock);
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
    for (const struct evidence *r = rows.row; r < rows.row + rows.count; r++) {
        if (!r->dead_lost)
            continue;
        add_pattern(&line, "dead lock: ", r->dead_key);
        text_printf(&line, " by %s: no expiry, its owner is gone, %llu attempts lost since: DEL it, and let %s",
                    r->client, r->dead_lost, r->ruled ? "the rule enforce a lease" : "it end by itself from now on: ");
        if (!r->ruled)
            add_rule(&line, r);
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
    MEMORY_FREE_ALL(rows.row, lines.row);
}
