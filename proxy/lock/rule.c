/*
 * Lock rules: reads them, matches keys against them, and names guard records. Knows nothing of sessions or leases.
 *
 * Every key of every command is matched against the rules, and nearly no key matches. So each rule knows the literal
 * bytes that its pattern begins with, and a set of rules knows the first bytes of them all. A key that is no lock costs
 * one look at its first byte, or a memcmp for each rule.
 */
#include "proxy/lock/rule.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "parser/slot.h"
#include "proxy/base/bytes.h"
#include "proxy/base/glob.h"
#include "proxy/base/memory.h"
#include "proxy/base/text.h"
#include "proxy/base/units.h"
#include "proxy/lock/hash.h"
#include "proxy/lock/script_constants.h"

/* What the pattern demands after its literal beginning. */
enum rule_rest {
    REST_NOTHING,  /* "job": the key is the literal */
    REST_ANYTHING, /* "lock:*" */
    REST_GLOB,     /* "lock:*:v[12]" */
};

struct rule_entry {
    struct lock_rule rule;
    char *literal;
    size_t literal_len;
    uint64_t head, head_mask; /* the literal's first bytes, as bytes_head has them */
    enum rule_rest rest;
};

struct lock_rules {
    atomic_uint refs;
    struct rule_entry **entries, **fences;
    size_t count, fence_count;
    bool begins[256]; /* the first bytes of keys that any rule may match */
};

/* ---- options ------------------------------------------------------------------------------- */

enum option_type { OPTION_ENUM, OPTION_KINDS, OPTION_TIME, OPTION_REPLICAS };

/* The longest time that a rule may name: 100 years, so that sums of times never overflow. */
#define RULE_TIME_MAX_MS ((int64_t)100 * 365 * 24 * 60 * 60 * 1000)

enum { REPLICAS_MAX = 1000, REPLICAS_MS = 1000, REPLICAS_LONGEST_MS = 60 * 1000 };

/* An option of a rule or a fence. The names of an enumeration are in the order of its values. */
struct rule_option {
    const char *name;
    enum option_type type;
    size_t offset; /* in struct lock_rule, or struct lock_fence */
    const char *names[6];
    const char *fallback;
    const char *expected;
};

#define RULE_AT(member)   offsetof(struct lock_rule, member)
#define FENCE_AT(member)  offsetof(struct lock_fence, member)
#define KINDS_EXPECTED    "string, list, hash, counter, several with commas between them, any, or semaphore alone"
#define REPLICAS_EXPECTED "a number of replicas, like 1, and if you like a time up to 60s, like 200ms"

static const struct rule_option OPTIONS[] = {
    {"mode", OPTION_ENUM, RULE_AT(mode), {"enforce", "audit", "off"}, "enforce", "enforce, audit or off"},
    {"owner",
     OPTION_ENUM,
     RULE_AT(owner),
     {"auto", "connection", "client", "any"},
     "auto",
     "auto, connection, client or any"},
    /* in the order of the bits */
    {"kind",
     OPTION_KINDS,
     RULE_AT(kinds),
     {"string", "list", "hash", "counter", "semaphore"},
     "string",
     KINDS_EXPECTED},
    {"claim-memory", OPTION_TIME, RULE_AT(claim_memory_ms), {0}, "auto", "auto, or a time like 60s"},
    {"lease", OPTION_TIME, RULE_AT(lease_ms), {0}, "30s", "a time like 30s, or 0 for none"},
    {"renew", OPTION_ENUM, RULE_AT(renew), {"auto", "always", "never"}, "auto", "auto, always or never"},
    {"max-hold", OPTION_TIME, RULE_AT(max_hold_ms), {0}, "0", "a time like 5m, or 0 for no end"},
    {"handover", OPTION_TIME, RULE_AT(handover_ms), {0}, "60s", "a time like 60s, or 0 for none"},
    {"on-disconnect", OPTION_ENUM, RULE_AT(on_disconnect), {"keep", "release"}, "keep", "keep or release"},
    {"on-loss", OPTION_ENUM, RULE_AT(on_loss), {"tell", "close", "error"}, "tell", "tell, close or error"},
    {"lock-delay", OPTION_TIME, RULE_AT(lock_delay_ms), {0}, "0", "a time up to 10s, like 2s, or 0 for none"},
    {"one-shot", OPTION_TIME, RULE_AT(one_shot_ms), {0}, "24h", "a time like 24h, or 0 for none"},
    {"wait", OPTION_TIME, RULE_AT(wait_ms), {0}, "0", "a time like 1s, or 0 for none"},
    {"replicas", OPTION_REPLICAS, RULE_AT(replicas), {0}, "0", REPLICAS_EXPECTED},
    {"quorum", OPTION_ENUM, RULE_AT(quorum), {"no", "yes"}, "no", "yes or no"},
};
static const struct rule_option FENCE_OPTIONS[] = {
    {"mode", OPTION_ENUM, FENCE_AT(mode), {"enforce", "audit", "off"}, "enforce", "enforce, audit or off"},
    {"unlocked", OPTION_ENUM, FENCE_AT(unlocked), {"pass", "refuse"}, "pass", "pass or refuse"},
};
enum { OPTION_COUNT = ARRAY_SIZE(OPTIONS), FENCE_OPTION_COUNT = ARRAY_SIZE(FENCE_OPTIONS) };

/* Every enumeration has the size of an int, so that a table entry can set any of them. */
_Static_assert(sizeof(enum lock_mode) == sizeof(int) && sizeof(enum lock_owner) == sizeof(int) &&
                   sizeof(enum lock_renew) == sizeof(int) && sizeof(enum lock_on_disconnect) == sizeof(int) &&
                   sizeof(enum lock_quorum) == sizeof(int) && sizeof(enum lock_on_loss) == sizeof(int) &&
                   sizeof(enum lock_unlocked) == sizeof(int),
               "enumerations of a rule are ints");

/* A directive's words that are not read yet, and room for what is wrong with them. */
struct directive_words {
    const char *const *words;
    size_t count;
    char *error;
    size_t error_size;
};

/* Writes what is wrong. Returns false. */
static bool __attribute__((format(printf, 2, 3))) wrong(const struct directive_words *d, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(d->error, d->error_size, format, args);
    va_end(args);
    return false;
}

/* Whether a second word of `replicas N TIME` is there: no option's name begins with a digit. */
static bool replicas_timed(const char *const *words, size_t count) {
    return count > 1 && words[1][0] >= '0' && words[1][0] <= '9';
}

/* Reads the kinds of locks, "string,list" or "any". False: the text is neither. */
static bool kinds_set(const struct rule_option *o, unsigned *kinds, const char *text) {
    *kinds = LOCK_KIND_ANY;
    if (strcasecmp(text, "any") == 0)
        return true;
    *kinds = 0;
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        int i = 0;
        while (o->names[i] && !text_is(at, len, o->names[i]))
            i++;
        if (!o->names[i])
            return false;
        *kinds |= 1u << i;
        at += len;
        if (!*at)
            return !(*kinds & LOCK_KIND_SEMAPHORE) || *kinds == LOCK_KIND_SEMAPHORE;
    }
}

/* Sets an option of a rule or a fence. Returns how many of the `count` words are its value; 0: they are no value. */
static size_t option_set(const struct rule_option *o, void *to, const char *const *words, size_t count) {
    char *at = (char *)to + o->offset;
    const char *text = words[0];
    int64_t ms = REPLICAS_MS, n = 0;
    if (o->type == OPTION_REPLICAS) {
        const char *p = text;
        for (; *p >= '0' && *p <= '9' && n <= REPLICAS_MAX; p++)
            n = n * 10 + (*p - '0');
        bool timed = replicas_timed(words, count);
        if (p == text || *p || n > REPLICAS_MAX)
            return 0;
        if (timed && (!units_time(words[1], 1000, &ms) || ms < 1 || ms > REPLICAS_LONGEST_MS))
            return 0;
        ((struct lock_rule *)to)->replicas = n;
        ((struct lock_rule *)to)->replicas_ms = ms;
        return timed ? 2 : 1;
    }
    if (o->type == OPTION_TIME) {
        if (o->offset == RULE_AT(claim_memory_ms) && strcasecmp(text, "auto") == 0)
            ms = LOCK_MEMORY_AUTO;
        else if (!units_time(text, 1000, &ms) || ms < 0 || ms > RULE_TIME_MAX_MS)
            return 0;
        memcpy(at, &ms, sizeof(ms));
        return 1;
    }
    if (o->type == OPTION_KINDS)
        return kinds_set(o, &((struct lock_rule *)to)->kinds, text);
    int i = text_choice(text, o->names);
    if (i >= 0)
        memcpy(at, &i, sizeof(i));
    return i >= 0;
}

/* Appends the option as it stands in the directive. */
static void option_text(const struct rule_option *o, const void *of, struct text *out) {
    const char *at = (const char *)of + o->offset, *before = "";
    const struct lock_rule *rule = of;
    char time[48] = "";
    int64_t ms;
    int i;
    text_printf(out, " %s ", o->name);
    if (o->type == OPTION_REPLICAS) {
        if (rule->replicas > 0)
            units_time_text(rule->replicas_ms, time, sizeof(time));
        text_printf(out, "%d%s%s", (int)rule->replicas, *time ? " " : "", time);
    } else if (o->type == OPTION_TIME) {
        memcpy(&ms, at, sizeof(ms));
        snprintf(time, sizeof(time), ms == 0 ? "0" : "auto");
        if (ms > 0)
            units_time_text(ms, time, sizeof(time));
        text_printf(out, "%s", time);
    } else if (o->type == OPTION_KINDS) {
        text_printf(out, "%s", rule->kinds == LOCK_KIND_ANY ? "any" : "");
        for (int k = 0; rule->kinds != LOCK_KIND_ANY && o->names[k]; k++)
            if (rule->kinds & 1u << k) {
                text_printf(out, "%s%s", before, o->names[k]);
                before = ",";
            }
    } else {
        memcpy(&i, at, sizeof(i));
        if (o == OPTIONS && rule->permits) /* its keys are no locks, so that its own mode is off */
            i = rule->permits == LOCK_PERMITS_RETURNED ? LOCK_MODE_ENFORCE : LOCK_MODE_AUDIT;
        text_printf(out, "%s", o->names[i]);
    }
}

/* ---- sets ---------------------------------------------------------------------------------- */

struct lock_rules *lock_rules_new(void) {
    struct lock_rules *rules = memory_zalloc(sizeof(*rules));
    atomic_init(&rules->refs, 1);
    return rules;
}

struct lock_rules *lock_rules_ref(struct lock_rules *rules) {
    if (rules)
        atomic_fetch_add_explicit(&rules->refs, 1, memory_order_relaxed);
    return rules;
}

static void entry_free(struct rule_entry *entry) {
    if (entry->rule.fence)
        memory_free(entry->rule.fence->lock);
    MEMORY_FREE_ALL(entry->rule.fence, entry->rule.pattern, entry->literal, entry);
}

void lock_rules_unref(struct lock_rules *rules) {
    if (!rules || atomic_fetch_sub_explicit(&rules->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < rules->count; i++)
        entry_free(rules->entries[i]);
    for (size_t i = 0; i < rules->fence_count; i++)
        entry_free(rules->fences[i]);
    MEMORY_FREE_ALL(rules->entries, rules->fences, rules);
}

void lock_rule_word_show(const char *word, char *out, size_t size) {
    size_t n = 0;
    for (; *word && n + 8 < size; word++) {
        unsigned char c = (unsigned char)*word;
        n += (size_t)snprintf(out + n, size - n, c < 0x20 || c == 0x7f ? "\\x%02x" : "%c", c);
    }
    snprintf(out + n, size - n, "%s", *word ? "..." : "");
}

static bool option_of_semaphores(const struct rule_option *o) {
    return o->offset == RULE_AT(mode) || o->offset == RULE_AT(kinds) || o->offset == RULE_AT(owner) ||
           o->offset == RULE_AT(lease_ms);
}

/* Makes a rule of kind semaphore one whose keys are no locks. False: `d` says which option it can't have. */
static bool semaphore_read(struct lock_rule *rule, const bool given[], const struct directive_words *d) {
    bool leased = false;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        leased = leased || (given[i] && OPTIONS[i].offset == RULE_AT(lease_ms));
        if (given[i] && !option_of_semaphores(&OPTIONS[i]))
            return wrong(d, "kind semaphore has no option '%s': expected mode, owner and lease alone", OPTIONS[i].name);
    }
    if (rule->owner == LOCK_OWNER_ANY)
        return wrong(d, "kind semaphore has no owner 'any': expected auto, connection or client");
    if (!leased)
        rule->lease_ms = 0;
    if (rule->mode != LOCK_MODE_OFF)
        rule->permits = rule->mode == LOCK_MODE_ENFORCE ? LOCK_PERMITS_RETURNED : LOCK_PERMITS_AUDITED;
    rule->mode = LOCK_MODE_OFF;
    return true;
}

/* Sets the options of a rule or a fence. given: which of `options` the words name. False: `d` says what is wrong. */
static bool options_read(const struct rule_option *options, size_t option_count, bool given[], void *to,
                         const struct directive_words *d) {
    char shown[80];
    for (size_t i = 0, used; i < d->count; i += 1 + used) {
        const char *const *values = d->words + i + 1;
        size_t n = 0, left = d->count - i - 1;
        while (n < option_count && strcasecmp(d->words[i], options[n].name) != 0)
            n++;
        const struct rule_option *o = &options[n];
        if (n == option_count) {
            struct text expected = {0};
            for (size_t k = 0; k < option_count; k++)
                text_printf(&expected, "%s%s", options[k].name,
                            k + 1 == option_count   ? ""
                            : k + 2 == option_count ? " or "
                                                    : ", ");
            lock_rule_word_show(d->words[i], shown, sizeof(shown));
            wrong(d, "option '%s': expected %s", shown, expected.data);
            text_clear(&expected);
            return false;
        }
        if (left == 0)
            return wrong(d, "option '%s' without a value: expected %s", o->name, o->expected);
        if (given[n])
            return wrong(d, "option '%s' is given twice: expected it once", o->name);
        given[n] = true;
        used = option_set(o, to, values, left);
        if (used == 0) {
            lock_rule_word_show(values[0], shown, sizeof(shown));
            size_t len = strlen(shown);
            if (o->type == OPTION_REPLICAS && replicas_timed(values, left)) {
                shown[len++] = ' ';
                lock_rule_word_show(values[1], shown + len, sizeof(shown) - len);
            }
            return wrong(d, "option %s '%s': expected %s", o->name, shown, o->expected);
        }
    }
    return true;
}

/* Refuses options that do not go together, and notes what follows from the others. The guard record, which tells of a
 * lock-delay, outlives its lock by GUARD_OUTLIVES_MS. Audit does not see list locks: `any` leaves them out, and an
 * error refuses them if the rule names them. `quorum yes` does not go with an acquisition that the proxy could not
 * undo, or whose end is not known. */
static bool rule_fits(struct lock_rule *rule, const struct directive_words *d) {
    bool audit = rule->mode == LOCK_MODE_AUDIT, quorum = rule->quorum == LOCK_QUORUM_YES && rule->mode != LOCK_MODE_OFF;
    if (rule->lock_delay_ms > GUARD_OUTLIVES_MS)
        return wrong(d, "option lock-delay: expected a time up to 10s, like 2s, or 0 for none");
    if (rule->lock_delay_ms > 0 && rule->kinds != LOCK_KIND_STRING)
        return wrong(d, "option lock-delay: expected kind string alone");
    if (rule->lock_delay_ms > 0 && rule->wait_ms > 0)
        return wrong(d, "option lock-delay: expected a rule without wait");
    if (audit && rule->kinds & LOCK_KIND_LIST && rule->kinds != LOCK_KIND_ANY)
        return wrong(d,
                     "mode audit knows no list locks: expected mode off or enforce for kind list (what a queue looks "
                     "like, PROXY ADVISE says under mode off, too)");
    if (quorum && audit)
        return wrong(d, "quorum yes: mode audit confirms no lock: expected mode enforce");
    if (quorum && rule->kinds & ~(LOCK_KIND_STRING | LOCK_KIND_HASH | LOCK_KIND_COUNTER))
        return wrong(d, "quorum yes: an acquisition in a list can't be undone: expected kind string, hash or counter");
    if (quorum && rule->lease_ms == 0)
        return wrong(d, "quorum yes: a lock that witnesses know has an end: expected a lease above 0");
    if (audit)
        rule->kinds &= ~(unsigned)LOCK_KIND_LIST;
    rule->quorum = quorum ? LOCK_QUORUM_YES : LOCK_QUORUM_NO;
    rule->unusual = rule->wait_ms > 0 || quorum;
    rule->confirms = rule->replicas > 0 || quorum;
    return true;
}

uint64_t lock_rule_hash(const char *pattern, size_t len) {
    return hash_bytes(&(struct hash_seed){0, 0}, pattern, len);
}

/* Makes an entry with the options' defaults. Its pattern is split into its literal beginning and the rest. */
static struct rule_entry *entry_new(struct lock_rules *rules, const char *pattern) {
    struct rule_entry *entry = memory_zalloc(sizeof(*entry));
    struct lock_rule *rule = &entry->rule;
    rule->set = rules;
    rule->pattern = memory_strdup(pattern);
    rule->pattern_len = strlen(pattern);
    rule->hash = lock_rule_hash(rule->pattern, rule->pattern_len);
    atomic_init(&rule->hits, 0);
    for (size_t i = 0; i < OPTION_COUNT; i++)
        (void)option_set(&OPTIONS[i], rule, &OPTIONS[i].fallback, 1);
    const char *p = rule->pattern, *end = p + rule->pattern_len;
    entry->literal = memory_alloc(rule->pattern_len);
    while (p < end && *p != '*' && *p != '?' && *p != '[') {
        if (*p == '\\' && end - p >= 2)
            p++;
        entry->literal[entry->literal_len++] = *p++;
    }
    size_t stars = 0, head_len = entry->literal_len < 8 ? entry->literal_len : 8;
    memset(&entry->head_mask, 0xff, head_len);
    entry->head = bytes_head(entry->literal, head_len);
    while (p + stars < end && p[stars] == '*')
        stars++;
    if (p == end)
        entry->rest = REST_NOTHING;
    else if (p + stars == end && (entry->literal_len > 0 || stars == 1))
        entry->rest = REST_ANYTHING;
    else
        entry->rest = REST_GLOB;
    return entry;
}

/* Whether a name may match both patterns: they begin alike, as far as both are literal. */
static bool may_meet(const char *a, const char *b) {
    static const char SPECIAL[] = "*?[\\";
    while (*a && *b && *a == *b && !strchr(SPECIAL, *a)) {
        a++;
        b++;
    }
    return *a == *b || (*a && strchr(SPECIAL, *a)) || (*b && strchr(SPECIAL, *b));
}

void lock_rules_fenced_by(struct lock_rules *rules, const struct lock_rules *fences) {
    for (size_t i = 0; i < rules->count; i++)
        for (size_t j = 0; j < fences->fence_count; j++) {
            const struct lock_fence *fence = fences->fences[j]->rule.fence;
            struct lock_rule *rule = &rules->entries[i]->rule;
            if (fence->mode == LOCK_MODE_OFF || !may_meet(rule->pattern, fence->lock))
                continue;
            atomic_store(&rule->fenced, true);
            if (fence->mode == LOCK_MODE_ENFORCE)
                atomic_store(&rule->fence_enforced, true);
        }
}

/* Adds a rule or a fence, or frees it if it is not `right`. Returns what lock_rules_add does. */
static const char *entry_add(struct lock_rules *rules, struct rule_entry *entry, bool right, char *error) {
    struct rule_entry ***list = entry->rule.fence ? &rules->fences : &rules->entries;
    size_t *count = entry->rule.fence ? &rules->fence_count : &rules->count;
    if (!right) {
        entry_free(entry);
        return error;
    }
    *ARRAY_ADD(*list, *count) = entry;
    if (entry->literal_len > 0)
        rules->begins[(unsigned char)entry->literal[0]] = true;
    else
        memset(rules->begins, true, sizeof(rules->begins));
    lock_rules_fenced_by(rules, rules);
    return NULL;
}

const char *lock_rules_add(struct lock_rules *rules, const char *const *words, size_t count, char *error,
                           size_t error_size) {
    if (count == 0 || !*words[0])
        return "expected a key pattern, then options and their values";
    const struct directive_words d = {words + 1, count - 1, error, error_size};
    struct rule_entry *entry = entry_new(rules, words[0]);
    struct lock_rule *rule = &entry->rule;
    bool given[OPTION_COUNT] = {false};
    bool right = options_read(OPTIONS, OPTION_COUNT, given, rule, &d) &&
                 (rule->kinds != LOCK_KIND_SEMAPHORE || semaphore_read(rule, given, &d)) && rule_fits(rule, &d);
    return entry_add(rules, entry, right, error);
}

const char *lock_rules_add_fence(struct lock_rules *rules, const char *const *words, size_t count, char *error,
                                 size_t error_size) {
    if (count < 3 || !*words[0] || strcasecmp(words[1], "by") != 0 || !*words[2])
        return "expected PATTERN by LOCK, then options and their values";
    const struct directive_words d = {words + 3, count - 3, error, error_size};
    int stars = lock_fence_stars(words[0], true), of_lock = lock_fence_stars(words[2], false);
    if (stars > LOCK_FENCE_STARS || of_lock > stars) {
        wrong(&d, "%d stars in PATTERN, %d in LOCK: expected no more in LOCK, and at most %d", stars, of_lock,
              LOCK_FENCE_STARS);
        return error;
    }
    struct rule_entry *entry = entry_new(rules, words[0]);
    struct lock_fence *fence = entry->rule.fence = memory_zalloc(sizeof(*fence));
    bool given[FENCE_OPTION_COUNT] = {false};
    entry->rule.mode = LOCK_MODE_OFF;
    fence->lock = memory_strdup(words[2]);
    return entry_add(rules, entry, options_read(FENCE_OPTIONS, FENCE_OPTION_COUNT, given, fence, &d), error);
}

size_t lock_rules_fence_count(const struct lock_rules *rules) {
    return rules->fence_count;
}

const struct lock_rule *lock_rules_fence(const struct lock_rules *rules, size_t i) {
    return &rules->fences[i]->rule;
}

size_t lock_rules_count(const struct lock_rules *rules) {
    return rules->count;
}

const struct lock_rule *lock_rules_get(const struct lock_rules *rules, size_t i) {
    return &rules->entries[i]->rule;
}

static inline bool entry_matches(const struct rule_entry *entry, const char *key, size_t len) {
    if (len < entry->literal_len || ((bytes_head(key, len) ^ entry->head) & entry->head_mask) != 0)
        return false;
    if (entry->literal_len > 8 && memcmp(key, entry->literal, entry->literal_len) != 0)
        return false;
    switch (entry->rest) {
    case REST_NOTHING:
        return len == entry->literal_len;
    case REST_ANYTHING:
        return true;
    case REST_GLOB:
        return glob_match(entry->rule.pattern, entry->rule.pattern_len, key, len);
    }
    return false;
}

static inline struct rule_entry *first_of(struct rule_entry *const *entries, size_t count, const char *key,
                                          size_t len) {
    for (size_t i = 0; i < count; i++)
        if (entry_matches(entries[i], key, len))
            return entries[i];
    return NULL;
}

static inline const struct lock_rule *hit(struct rule_entry *entry) {
    if (!entry)
        return NULL;
    atomic_fetch_add_explicit(&entry->rule.hits, 1, memory_order_relaxed);
    return &entry->rule;
}

static __attribute__((noinline)) const struct lock_rule *first_match(const struct lock_rules *rules, const char *key,
                                                                     size_t len) {
    return hit(first_of(rules->entries, rules->count, key, len));
}

const struct lock_rule *lock_rules_match(const struct lock_rules *rules, const char *key, size_t len) {
    if (len > 0 && !rules->begins[(unsigned char)key[0]])
        return NULL;
    return first_match(rules, key, len);
}

/* The fence that applies to a key which the lock rule `entry` (NULL: none) leaves alone; otherwise `entry`. */
static __attribute__((noinline)) struct rule_entry *fence_or(const struct lock_rules *rules, struct rule_entry *entry,
                                                             const char *key, size_t len) {
    struct rule_entry *fence = first_of(rules->fences, rules->fence_count, key, len);
    return fence && fence->rule.fence->mode != LOCK_MODE_OFF ? fence : entry;
}

/* The lock rule that applies to the key. If its mode is off, or there is none, the fence that applies. */
static inline struct rule_entry *watcher(const struct lock_rules *rules, const char *key, size_t len) {
    struct rule_entry *entry = first_of(rules->entries, rules->count, key, len);
    if (entry && (entry->rule.mode != LOCK_MODE_OFF || entry->rule.permits))
        return entry;
    return rules->fence_count > 0 ? fence_or(rules, entry, key, len) : entry;
}

static __attribute__((noinline)) const struct lock_rule *first_watch(const struct lock_rules *rules, const char *key,
                                                                     size_t len) {
    return hit(watcher(rules, key, len));
}

const struct lock_rule *lock_rules_watch(const struct lock_rules *rules, const char *key, size_t len) {
    if (len > 0 && !rules->begins[(unsigned char)key[0]])
        return NULL;
    return first_watch(rules, key, len);
}

const struct lock_rule *lock_rules_rule_of(const struct lock_rules *rules, const char *key, size_t len) {
    const struct rule_entry *entry = first_of(rules->entries, rules->count, key, len);
    return entry ? &entry->rule : NULL;
}

const struct lock_rule *lock_rules_fence_of(const struct lock_rules *rules, const char *key, size_t len) {
    const struct rule_entry *entry = rules->fence_count > 0 ? watcher(rules, key, len) : NULL;
    return entry && entry->rule.fence ? &entry->rule : NULL;
}

/* ---- text ---------------------------------------------------------------------------------- */

void lock_rule_word(struct text *out, const char *pattern) {
    const unsigned char *p = (const unsigned char *)pattern;
    while (*p > ' ' && *p != 0x7f && *p != '"' && *p != '\'')
        p++;
    if (!*p) { /* the configuration's reader takes it as it is */
        text_printf(out, "%s", pattern);
        return;
    }
    text_printf(out, "\"");
    for (p = (const unsigned char *)pattern; *p; p++) {
        if (*p == '"' || *p == '\\')
            text_printf(out, "\\%c", *p);
        else
            text_printf(out, *p < ' ' || *p == 0x7f ? "\\x%02x" : "%c", *p);
    }
    text_printf(out, "\"");
}

void lock_rule_append(struct text *out, const struct lock_rule *rule) {
    const struct lock_fence *fence = rule->fence;
    const struct rule_option *options = fence ? FENCE_OPTIONS : OPTIONS;
    lock_rule_word(out, rule->pattern);
    if (fence) {
        text_printf(out, " by ");
        lock_rule_word(out, fence->lock);
    }
    for (size_t i = 0; i < (fence ? FENCE_OPTION_COUNT : OPTION_COUNT); i++)
        if (fence || rule->kinds != LOCK_KIND_SEMAPHORE || option_of_semaphores(&options[i]))
            option_text(&options[i], fence ? (const void *)fence : rule, out);
}

size_t lock_rule_text(const struct lock_rule *rule, char *out, size_t size) {
    struct text text = {0};
    lock_rule_append(&text, rule);
    size_t len = text.len;
    snprintf(out, size, "%s", text.data);
    text_clear(&text);
    return len;
}

/* ---- guard records ------------------------------------------------------------------------- */

#define GUARD_PREFIX "lockkeeper:{"
enum { GUARD_PREFIX_LEN = sizeof(GUARD_PREFIX) - 1 };
_Static_assert(GUARD_PREFIX_LEN + SLOT_TAG_MAX + 2 <= LOCK_GUARD_EXTRA, "LOCK_GUARD_EXTRA holds what is added");

size_t lock_guard_len(size_t len, uint16_t slot) {
    return GUARD_PREFIX_LEN + slot_tag_len(slot) + 2 + len;
}

size_t lock_guard_head_write(uint16_t slot, char *out) {
    char *p = out;
    memcpy(p, GUARD_PREFIX, GUARD_PREFIX_LEN);
    p += GUARD_PREFIX_LEN;
    memcpy(p, slot_tag(slot), SLOT_TAG_MAX); /* the bytes after the tag's end are overwritten below */
    p += slot_tag_len(slot);
    *p++ = '}';
    *p++ = ':';
    return (size_t)(p - out);
}

size_t lock_guard_key(const char *key, size_t len, char *out) {
    size_t head = lock_guard_head_write(slot_of_key(key, len), out);
    if (len > 0)
        memcpy(out + head, key, len);
    return head + len;
}

static __attribute__((noinline)) bool guard_tag_is_its_slots(const char *key, size_t len) {
    const char *tag = key + GUARD_PREFIX_LEN, *end = key + len;
    const char *close = memchr(tag, '}', (size_t)(end - tag));
    if (!close || end - close < 2 || close[1] != ':')
        return false;
    /* A guard record's tag is the one for its key's slot. The application's own keys may begin like a guard record. */
    const char *own = slot_tag(slot_of_key(close + 2, (size_t)(end - close - 2)));
    size_t own_len = strlen(own);
    return own_len == (size_t)(close - tag) && memcmp(own, tag, own_len) == 0;
}

bool lock_guard_is(const char *key, size_t len) {
    return len >= GUARD_PREFIX_LEN && memcmp(key, GUARD_PREFIX, GUARD_PREFIX_LEN) == 0 &&
           guard_tag_is_its_slots(key, len);
}
