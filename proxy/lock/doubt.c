/* What an operator may not have meant: rules that the configuration permits, and that do nothing, or harm. */
#include <stdio.h>
#include <string.h>

#include "proxy/base/glob.h"
#include "proxy/base/text.h"
#include "proxy/lock/rule.h"

enum { WORD_MAX = 160, WAIT_USUAL_MS = 2000 };

/* Whether every key that matches `narrow` is known to match `wide`. In `wide` a star takes any characters, also those
 * that are special in `narrow`. With other special characters only equal patterns are known to match the same keys. Of
 * two rules with one pattern and one set of options it does not matter which applies: neither covers the other. Of two
 * fences with one pattern the lock counts, too. */
static bool covers(const struct lock_rule *wide, const struct lock_rule *narrow) {
    if (wide->pattern_len != narrow->pattern_len || memcmp(wide->pattern, narrow->pattern, wide->pattern_len) != 0)
        return strcspn(wide->pattern, "?[\\") == wide->pattern_len &&
               glob_match(wide->pattern, wide->pattern_len, narrow->pattern, narrow->pattern_len);
    struct text one = {0}, other = {0};
    lock_rule_append(&one, wide);
    lock_rule_append(&other, narrow);
    bool differ = strcmp(one.data, other.data) != 0;
    text_clear(&one);
    text_clear(&other);
    return differ;
}

/* Whether a bracket of the pattern is not closed. Redis then takes all that follows for one set of characters. */
static bool is_open(const char *pattern) {
    for (const char *p = pattern; *p; p++) {
        if (*p == '\\' && p[1])
            p++;
        else if (*p == '[' && !(p = strchr(p, ']')))
            return true;
    }
    return false;
}

size_t lock_rule_doubt(const struct lock_rules *rules, size_t i, bool fence, char *out, size_t size) {
    const struct lock_rule *(*get)(const struct lock_rules *, size_t) = fence ? lock_rules_fence : lock_rules_get;
    const struct lock_rule *rule = get(rules, i);
    const char *kind = fence ? "fence" : "lock";
    char word[WORD_MAX], before[WORD_MAX];
    lock_rule_word_show(rule->pattern, word, sizeof(word));
    for (size_t j = 0; j < i; j++)
        if (covers(get(rules, j), rule)) {
            lock_rule_word_show(get(rules, j)->pattern, before, sizeof(before));
            return (size_t)snprintf(
                out, size,
                "%s %s: no key comes to this rule, since '%s %s' above it matches all of its keys, and the "
                "first match wins; write the narrower pattern first",
                kind, word, kind, before);
        }
    if (is_open(rule->pattern))
        return (size_t)snprintf(out, size, "%s %s: the bracket is not closed; to match a bracket itself write \\[",
                                kind, word);
    if (!fence && rule->max_hold_ms > 0 && rule->max_hold_ms < rule->lease_ms)
        return (size_t)snprintf(out, size, "lock %s: max-hold is below lease, so that the lease is never renewed",
                                word);
    if (!fence && rule->wait_ms > WAIT_USUAL_MS)
        return (size_t)snprintf(
            out, size,
            "lock %s: clients may give up before wait is over: by default Jedis waits 2 s for a reply, "
            "go-redis 3 s, StackExchange.Redis 5 s",
            word);
    return 0;
}
