/*
 * Globs as Redis matches them (stringmatchlen of Redis 7.0). Its oddities are kept: an unclosed class ends with the
 * pattern, "[a-]" is a range, and only the pattern "*" itself matches an empty text.
 *
 * Every element except '*' takes exactly one byte. If the elements after the last '*' fail to match, it takes one more
 * byte; an earlier star is never tried again. Hence no recursion, and at most pattern * text steps.
 */
#include "proxy/base/glob.h"

#include "parser/invariant.h"

/* Reads the class that begins after the '[' at p[-1]; returns the pattern's next element. */
static const char *class_match(const char *p, const char *end, char c, bool *matches) {
    bool negated = p < end && *p == '^';
    bool found = false;
    if (negated)
        p++;
    for (; p < end && *p != ']'; p++) {
        if (*p == '\\' && end - p >= 2) {
            p++;
            found |= *p == c;
        } else if (end - p >= 3 && p[1] == '-') {
            /* Plain char, signed or not, as in a Redis built for this machine. */
            char low = p[0] < p[2] ? p[0] : p[2];
            char high = p[0] < p[2] ? p[2] : p[0];
            found |= c >= low && c <= high;
            p += 2;
        } else {
            found |= *p == c;
        }
    }
    *matches = found != negated;
    return p < end ? p + 1 : p;
}

/* Matches one element of the pattern, other than '*', with one byte. Returns the pattern's next element, or NULL. */
static const char *element_match(const char *p, const char *end, char c) {
    bool matches;
    switch (*p) {
    case '?':
        return p + 1;
    case '[':
        p = class_match(p + 1, end, c, &matches);
        return matches ? p : NULL;
    case '\\':
        if (end - p >= 2)
            p++;
        break;
    default:
        break;
    }
    return *p == c ? p + 1 : NULL;
}

/* Returns the number of stars, -1: no match, or no steps left. `steps` and `pieces` may be NULL. */
static inline __attribute__((always_inline)) int match(const char *p, size_t pattern_len, const char *t, size_t len,
                                                       size_t *steps, struct glob_piece *pieces, int max) {
    const char *pattern_end = p + pattern_len, *text_end = t + len;
    const char *star = NULL, *star_text = NULL; /* after the last star; where the elements after it were last tried */
    int stars = 0;
    for (;;) {
        bool at_star = p < pattern_end && *p == '*';
        if (t == text_end && !at_star)
            return p == pattern_end ? stars : -1;
        if (steps && t < text_end) { /* a class may be as long as the rest of the pattern */
            size_t need = p < pattern_end && *p == '[' ? (size_t)(pattern_end - p) : 1;
            *steps -= need < *steps ? need : *steps;
            if (*steps == 0)
                return -1;
        }
        if (at_star) {
            if (pieces && stars == max)
                return -1;
            star = ++p;
            star_text = t;
            if (pieces)
                pieces[stars] = (struct glob_piece){t, star == pattern_end ? (size_t)(text_end - t) : 0};
            stars++;
            if (star == pattern_end)
                return stars;
            continue;
        }
        const char *next = p < pattern_end ? element_match(p, pattern_end, *t) : NULL;
        if (next) {
            p = next;
            t++;
            continue;
        }
        if (!star) /* no star could take one more byte */
            return -1;
        p = star;
        t = ++star_text;
        if (pieces && invariant(stars > 0 && stars <= max, "%d stars of %d", stars, max))
            pieces[stars - 1].len++;
    }
}

bool glob_match_within(const char *pattern, size_t pattern_len, const char *text, size_t len, size_t *steps) {
    if (len == 0)
        return pattern_len == 0 || (pattern_len == 1 && pattern[0] == '*');
    return match(pattern, pattern_len, text, len, steps, NULL, 0) >= 0;
}

bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t len) {
    if (len == 0)
        return glob_match_within(pattern, pattern_len, text, len, NULL);
    return match(pattern, pattern_len, text, len, NULL, NULL, 0) >= 0;
}

int glob_pieces(const char *pattern, size_t pattern_len, const char *text, size_t len, struct glob_piece *pieces,
                int max) {
    return match(pattern, pattern_len, text, len, NULL, pieces, max);
}
