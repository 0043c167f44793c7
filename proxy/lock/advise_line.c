/*
 * From counts to a sentence and a `lock` line. Suggests a rule only where enough was seen; says how much.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proxy/lock/advise_private.h"
#include "proxy/lock/state.h"

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

static uint64_t releases(const struct advise_row *r) {
    return r->by_holder + r->by_sibling + r->by_other + r->late + r->unknown;
}

uint64_t advise_events(const struct advise_row *r) {
    return r->acquired + r->lost + releases(r) + r->in_vain;
}

static bool handed_over(const struct advise_row *r) {
    return r->by_other >= 5 && r->by_other > r->by_holder + r->by_sibling;
}

/* An expiry of its own, and no release ever. */
static bool throttle(const struct advise_row *r) {
    return releases(r) == 0 && r->in_vain == 0 && r->endless == 0;
}

static bool shared(const struct advise_row *r) {
    return r->by_sibling > 0 || r->self_lost > 0 || client_library_multiplexes(r->library, strlen(r->library));
}

static void add_model(struct line *l, const struct advise_row *r) {
    int connections = __builtin_popcountll(r->sessions);
    if (r->queue)
        add(l, "a list lock; ");
    if (handed_over(r))
        add(l, "released by other clients than acquired");
    else if (r->self_lost > 0 && connections == 1)
        add(l, "one connection for several workers");
    else if (shared(r))
        add(l, "a pool of connections");
    else if (r->by_holder > 0)
        add(l, "a connection for each worker");
    else
        add(l, "connections not known");
    if (r->library[0])
        add(l, " (%s)", r->library);
}

/* What looks like a connection for each worker stays with `auto`: a pool that happens to hand the same connection to
 * the same worker looks like it, and would have rightful releases refused under `connection`. */
static void add_owner(struct line *l, const struct advise_row *r) {
    if (handed_over(r))
        add(l, " owner any");
    else if (shared(r))
        add(l, " owner client");
}

static void add_counts(struct line *l, const struct advise_row *r) {
    add(l, "acquired %llu, lost %llu, released %llu", (unsigned long long)r->acquired, (unsigned long long)r->lost,
        (unsigned long long)releases(r));
    if (r->by_other)
        add(l, ", by others %llu", (unsigned long long)r->by_other);
    if (r->late)
        add(l, ", late %llu", (unsigned long long)r->late);
    if (r->in_vain)
        add(l, ", in vain %llu", (unsigned long long)r->in_vain);
    add(l, ", overruns %llu", throttle(r) ? 0ull : (unsigned long long)(r->expired + r->late));
    if (r->endless)
        add(l, ", without expiry %llu", (unsigned long long)r->endless);
}

static const char *values(const struct advise_row *r) {
    if (r->valued < 2)
        return "values not known";
    return r->repeated == 0              ? "values distinct"
           : r->repeated * 2 > r->valued ? "values constant"
                                         : "values partly the same";
}

/* The pattern in the syntax of the configuration. */
static void add_pattern(struct line *l, const struct advise_row *r) {
    char word[ADVISE_PATTERN_MAX * 4 + 3];
    lock_rule_word(r->pattern, word, sizeof(word));
    add(l, "%s", word);
}

size_t advise_line(const struct advise_row *r, char out[ADVISE_LINE_MAX]) {
    struct line l = {.out = out};
    add_pattern(&l, r);
    add(&l, " by %s: ", r->client);
    add_model(&l, r);
    add(&l, "; %s; ", values(r));
    add_counts(&l, r);
    add(&l, "; %llu events: ", (unsigned long long)advise_events(r));
    if (r->acquired < ADVISE_ENOUGH) {
        add(&l, "too few to advise");
    } else if (r->queue && !r->ruled && handed_over(r)) {
        add(&l, "a queue of jobs, taken by others than pushed them: no rule is needed");
    } else if (throttle(r)) {
        add(&l, "a throttle, never released: %s", r->ruled ? "fits as it is" : "no rule is needed");
    } else if (!r->ruled && releases(r) * 2 < r->acquired) {
        add(&l, "seldom released: no lock, or its releases are not seen");
    } else {
        add(&l, "lock ");
        add_pattern(&l, r);
        add_owner(&l, r);
    }
    return l.len;
}
