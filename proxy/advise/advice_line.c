/*
 * Formats counts as a sentence and a `lock` line. Suggests a rule only if enough was seen; shows how much that was.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proxy/advise/private.h"
#include "proxy/lock/engine.h"
#include "proxy/lock/thresholds.h"

struct line {
    char *out;
    size_t len;
};

static void __attribute__((format(printf, 2, 3))) add(struct line *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->out + l->len, ADVISE_LINE_MAX - l->len, format, args);
    va_end(args);
    if (n > 0)
        l->len += (size_t)n;
    if (l->len > ADVISE_LINE_MAX - 1)
        l->len = ADVISE_LINE_MAX - 1;
}

enum {
    HANDED_OVER = 5, /* releases by other clients that make a lock handed over */
    STOOD_MS = 3     /* average time free, in ms, above which handing a release on gains something */
};

/* Whether acquirers never release, and others do. Scripts are excluded: the rules do not stop a script. */
static bool handed_over(const struct evidence *r) {
    return r->by_other >= HANDED_OVER && r->sent == 0;
}

/* Whether the lock is a throttle: it has an expiry, and is never released. */
static bool throttle(const struct evidence *r) {
    return r->sent == 0 && r->by_other == 0 && r->refused == 0 && r->endless == 0;
}

/* Whether losers delete. A release over a connection whose last attempt was lost is a loser's if there is one more
 * release for each lost attempt. If there are no more releases than acquisitions, it is a pool that hands connections
 * round. */
bool advise_losers_delete(const struct evidence *r) {
    return r->losers > 0 && surplus_is_losers((double)r->sent, (double)r->acquired, (double)r->losers);
}

static bool multiplexed(const struct evidence *r) {
    return r->overlapped || client_library_multiplexes(r->library, strlen(r->library));
}

static bool pooled(const struct evidence *r) {
    return r->crossed >= CROSSINGS;
}

/* Whether each worker has its connection, as a row of so many contended releases shows. It is said from SESSION_ROW on,
 * and advised from WORKLOAD_ROW on; over one session SESSION_ROW is enough for both. */
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

static void add_model(struct line *l, const struct evidence *r) {
    if (r->kinds & ADVISE_LIST)
        add(l, "a list lock; ");
    if (handed_over(r))
        add(l, "released by other clients than acquired");
    else if (multiplexed(r))
        add(l, "one connection for several workers");
    else if (pooled(r))
        add(l, "a pool of connections");
    else if (own(r, SESSION_ROW))
        add(l, "a connection for each worker");
    else
        add(l, "connections not known");
    if (r->library[0])
        add(l, " (%s)", r->library);
}

/* Adds the option `owner`. The default rule learns by itself whether it is `connection` or `client`; naming it saves
 * the learning, if nothing contradicts it. */
static void add_owner(struct line *l, const struct evidence *r) {
    if (handed_over(r) && r->by_other_bare >= HANDED_OVER)
        add(l, " owner any");
    else if (advise_losers_delete(r) && own(r, WORKLOAD_ROW))
        add(l, " owner connection");
    else if (!advise_losers_delete(r) && !handed_over(r) && (multiplexed(r) || pooled(r)))
        add(l, " owner client");
}

static void add_kind(struct line *l, const struct evidence *r) {
    static const char *const NAMES[] = {"string", "list", "hash", "counter"};
    if ((r->kinds & ~(unsigned)ADVISE_STRING) == 0)
        return;
    const char *before = " kind ";
    for (unsigned i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++)
        if (r->kinds & 1u << i) {
            add(l, "%s%s", before, NAMES[i]);
            before = ",";
        }
}

/* Adds a count, ", late 3", if it is not 0. */
static void add_count(struct line *l, const char *what, uint64_t count) {
    if (count > 0)
        add(l, ", %s %llu", what, (unsigned long long)count);
}

static void add_counts(struct line *l, const struct evidence *r) {
    add(l, "acquired %llu, lost %llu, released %llu", (unsigned long long)r->acquired, (unsigned long long)r->lost,
        (unsigned long long)r->released);
    add_count(l, "by others", r->by_other);
    if (advise_losers_delete(r))
        add(l, ", losers delete: %llu times", (unsigned long long)r->losers);
    add_count(l, "refused", r->refused);
    add_count(l, "late", r->late);
    add_count(l, "in vain", r->in_vain);
    add(l, ", overruns %llu", throttle(r) ? 0ull : (unsigned long long)r->expired);
    add_count(l, "without expiry", r->endless);
    if (sleepers(r))
        add(l, ", releases slept through %llu, ms lost with each %llu", (unsigned long long)r->stood,
            (unsigned long long)(r->stood_ms / r->stood));
}

static const char *values(const struct evidence *r) {
    if (r->valued < 2)
        return "values not known";
    return r->repeated == 0              ? "values distinct"
           : r->repeated * 2 > r->valued ? "values constant"
                                         : "values partly the same";
}

/* Adds the pattern in the syntax of the configuration. */
static void add_pattern(struct line *l, const char *pattern) {
    char word[ADVISE_PATTERN_MAX * 4 + 3];
    lock_rule_word(pattern, word, sizeof(word));
    add(l, "%s", word);
}

static void add_rule(struct line *l, const struct evidence *r) {
    add(l, "lock ");
    add_pattern(l, r->pattern);
    add_kind(l, r);
    add_owner(l, r);
    if (sleepers(r))
        add(l, " wait 1s");
}

/* What to say of a pattern instead of a rule; NULL: a rule can be advised. */
static const char *no_rule_since(const struct evidence *r) {
    if (r->acquired == 0 && r->lost >= ADVISE_ENOUGH)
        return "never seen to be acquired: held since before, or dead; look at its TTL";
    if (r->acquired < ADVISE_ENOUGH)
        return "too few to advise";
    if (r->kinds & ADVISE_LIST && !r->ruled && handed_over(r))
        return "a queue of jobs, taken by others than pushed them: no rule is needed";
    if (throttle(r))
        return r->ruled ? "a throttle, never released: fits as it is" : "a throttle, never released: no rule is needed";
    if (!r->ruled && (r->released + r->late) * 2 < r->acquired)
        return "seldom released: no lock, or its releases are not seen";
    return NULL;
}

bool advise_is_lock(const struct evidence *r) {
    return no_rule_since(r) == NULL;
}

static void add_advice(struct line *l, const struct evidence *r) {
    const char *why = no_rule_since(r);
    if (why)
        add(l, "%s", why);
    else
        add_rule(l, r);
}

size_t advise_line(const struct evidence *r, char out[ADVISE_LINE_MAX]) {
    struct line l = {.out = out};
    add_pattern(&l, r->pattern);
    add(&l, " by %s: ", r->client);
    add_model(&l, r);
    add(&l, "; %s; ", values(r));
    add_counts(&l, r);
    add(&l, "; %s; %llu events: ",
        !r->ruled    ? "outside of the rules"
        : r->audited ? "audited"
                     : "enforced",
        (unsigned long long)r->events);
    add_advice(&l, r);
    return l.len;
}

size_t advise_dead_line(const struct evidence *r, char out[ADVISE_LINE_MAX]) {
    struct line l = {.out = out};
    add(&l, "dead lock: ");
    add_pattern(&l, r->dead_key);
    add(&l, " by %s: no expiry, its owner is gone, %llu attempts lost since: DEL it, ", r->client,
        (unsigned long long)r->dead_lost);
    if (r->ruled) {
        add(&l, "and let the rule enforce a lease");
    } else {
        add(&l, "and let it end by itself from now on: ");
        add_rule(&l, r);
    }
    return l.len;
}

size_t advise_fence_line(const struct written_pair *p, char out[ADVISE_LINE_MAX]) {
    struct line l = {.out = out};
    add_pattern(&l, p->pattern);
    add(&l, " is written by holders of ");
    add_pattern(&l, p->lock);
    uint64_t under = (uint64_t)p->held + p->late;
    add(&l, ": %llu of %llu writes", (unsigned long long)under, (unsigned long long)p->writes);
    if (p->late > 0)
        add(&l, ", %llu of them after the lease was over", (unsigned long long)p->late);
    add(&l, ": fence ");
    add_pattern(&l, p->pattern);
    add(&l, " by ");
    add_pattern(&l, p->lock);
    return l.len;
}
