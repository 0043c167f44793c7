/*
 * Fences: derives the name of a lock from the key that it fences, and checks a set's fences against its lock rules.
 *
 *      stock:*  ──> stock:17 ──> pieces of the stars: 17 ──> lock:stock:* ──> lock:stock:17
 */
#include <stdio.h>
#include <string.h>

#include "proxy/base/glob.h"
#include "proxy/lock/rule.h"

enum { SAMPLE_MAX = 512 };

/* ---- patterns ---------------------------------------------------------------------------------- */

int lock_fence_stars(const char *p, bool classes) {
    int stars = 0;
    for (; *p; p++) {
        stars += *p == '*';
        if (*p == '\\' && p[1])
            p++;
        else if (*p == '[' && classes)
            for (p++; *p && *p != ']'; p++)
                p += *p == '\\' && p[1];
        if (!*p)
            break;
    }
    return stars;
}

size_t lock_fence_name(const char *pattern, size_t pattern_len, const char *lock, const char *key, size_t len,
                       char *out, size_t size) {
    struct glob_piece pieces[LOCK_FENCE_STARS];
    int count = glob_pieces(pattern, pattern_len, key, len, pieces, LOCK_FENCE_STARS), star = 0;
    size_t n = 0;
    for (const char *p = lock; *p && count >= 0; p++) {
        if (*p == '*' && star == count)
            return 0;
        bool starred = *p == '*';
        p += *p == '\\' && p[1];
        const struct glob_piece piece = starred ? pieces[star++] : (struct glob_piece){p, 1};
        if (n < size && piece.len > 0)
            memcpy(out + n, piece.text, piece.len < size - n ? piece.len : size - n);
        n += piece.len;
    }
    return n;
}

size_t lock_fence_lock(const struct lock_rule *rule, const char *key, size_t len, char *out, size_t size) {
    return lock_fence_name(rule->pattern, rule->pattern_len, rule->fence->lock, key, len, out, size);
}

/* ---- all fences ------------------------------------------------------------------------------------ */

/* Writes a key that the pattern matches, with `fill` in place of its stars. Returns the length. */
static size_t sample_write(const char *pattern, char fill, char *out, size_t size) {
    size_t n = 0;
    for (const char *p = pattern; *p && n < size; p++) {
        char c = *p;
        if (c == '*' || c == '?') {
            c = fill;
        } else if (c == '[') {
            c = p[1] && p[1] != '^' && p[1] != ']' ? p[1] : fill;
            while (p[1] && *p != ']')
                p++;
        } else if (c == '\\' && p[1]) {
            c = *++p;
        }
        out[n++] = c;
    }
    return n;
}

/* The first lock rule that matches the key; NULL: there is none, or its mode is off. */
static const struct lock_rule *rule_of(const struct lock_rules *rules, const char *key, size_t len) {
    const struct lock_rule *rule = lock_rules_rule_of(rules, key, len);
    return rule && rule->mode != LOCK_MODE_OFF ? rule : NULL;
}

size_t lock_fence_blur(const struct lock_rules *rules, const struct lock_rule *fence, char *out, size_t size) {
    char key[SAMPLE_MAX], name[SAMPLE_MAX], shown[120], of_lock[120];
    size_t len = sample_write(fence->pattern, '1', key, sizeof(key));
    size_t name_len = lock_fence_lock(fence, key, len, name, sizeof(name));
    const struct lock_rule *rule = name_len > 0 && name_len <= sizeof(name) ? rule_of(rules, name, name_len) : NULL;
    if (fence->fence->mode != LOCK_MODE_ENFORCE || !rule || rule->owner != LOCK_OWNER_AUTO)
        return 0;
    lock_rule_word_show(fence->pattern, shown, sizeof(shown));
    lock_rule_word_show(rule->pattern, of_lock, sizeof(of_lock));
    return (size_t)snprintf(
        out, size,
        "fence %s: the rule %s of its lock has owner auto. Clients without a name (CLIENT SETNAME) are "
        "one client for each address and user. If they share connections, a late write of one worker "
        "passes while another one holds the lock. To tell them apart: owner connection, or a name for "
        "each worker",
        shown, of_lock);
}

/* Checks one fence, with sample keys. Names usually have digits or letters in place of stars. */
static bool fence_check(const struct lock_rules *rules, const struct lock_rule *rule, char *error, size_t size) {
    static const char FILLS[] = {'1', 'a'};
    const struct lock_fence *f = rule->fence;
    const struct lock_rule *of_lock = NULL, *of_key = NULL;
    char key[SAMPLE_MAX], name[SAMPLE_MAX], shown[120];
    if (f->mode == LOCK_MODE_OFF)
        return true;
    for (size_t i = 0; i < sizeof(FILLS); i++) {
        size_t len = sample_write(rule->pattern, FILLS[i], key, sizeof(key));
        size_t name_len = lock_fence_lock(rule, key, len, name, sizeof(name));
        if (!of_key)
            of_key = rule_of(rules, key, len);
        if (!of_lock && name_len > 0 && name_len <= sizeof(name))
            of_lock = rule_of(rules, name, name_len);
    }
    if (of_key) {
        lock_rule_word_show(of_key->pattern, shown, sizeof(shown));
        snprintf(error, size, "its keys are locks of the rule '%s': expected keys that no lock rule matches", shown);
    } else if (!of_lock) {
        lock_rule_word_show(f->lock, shown, sizeof(shown));
        snprintf(error, size, "no lock rule matches '%s': expected the name of a lock", shown);
    } else if (f->mode == LOCK_MODE_ENFORCE && of_lock->mode == LOCK_MODE_AUDIT) {
        lock_rule_word_show(of_lock->pattern, shown, sizeof(shown));
        snprintf(error, size, "the lock's rule '%s' has mode audit: expected mode audit of its fence, too", shown);
    } else {
        return true;
    }
    return false;
}

bool lock_fences_check(const struct lock_rules *rules, char *error, size_t error_size) {
    for (size_t i = 0; i < lock_rules_fence_count(rules); i++) {
        const struct lock_rule *rule = lock_rules_fence(rules, i);
        char why[320], shown[120];
        if (fence_check(rules, rule, why, sizeof(why)))
            continue;
        lock_rule_word_show(rule->pattern, shown, sizeof(shown));
        snprintf(error, error_size, "'%s': %s", shown, why);
        return false;
    }
    return true;
}
