/*
 * The kinds of values: how each is read into a field of the configuration, or what was expected; how it is shown in the
 * file's syntax; how it is copied and freed.
 */
#include <arpa/inet.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/base/text.h"
#include "proxy/base/units.h"
#include "proxy/config/private.h"
#include "proxy/lock/rule.h"

enum { SOCKET_PATH_MAX = sizeof(((struct sockaddr_un *)0)->sun_path) - 1 };

/* ---- errors ---------------------------------------------------------------------------------- */

static bool __attribute__((format(printf, 2, 3))) complain(struct config_build *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(b->why, sizeof(b->why), format, args);
    va_end(args);
    return false;
}

static bool complain_expected(struct config_build *b, const struct directive *d) {
    if (d->expected)
        return complain(b, "expected %s", d->expected);
    return complain(b, "expected a number from %lld to %lld", (long long)d->min, (long long)d->max);
}

/* Writes an error about one of several words; returns false. */
static bool complain_word(struct config_build *b, const char *word, const char *expected) {
    char shown[100];
    words_show_word(word, shown, sizeof(shown));
    return complain(b, "'%s': expected %s", shown, expected);
}

/* Writes an error about a word that is none of the names, "a, b or c"; returns false. */
static bool complain_name(struct config_build *b, const char *word, const char *const *names) {
    char expected[100];
    size_t len = 0;
    for (size_t i = 0; names[i]; i++)
        len += (size_t)snprintf(expected + len, sizeof(expected) - len, "%s%s",
                                i == 0         ? ""
                                : names[i + 1] ? ", "
                                               : " or ",
                                names[i]);
    return complain_word(b, word, expected);
}

/* ---- what values point to --------------------------------------------------------------------- */

static void text_own(void *value) {
    char **text = value;
    *text = *text ? memory_strdup(*text) : NULL;
}

static void text_drop(void *value) {
    char *text = *(char **)value;
    memory_forget(text, text ? strlen(text) : 0);
}

/* Replaces `to` by copies of all words after the first `skip`. */
static void set_words(struct config_words *to, const struct config_words *from, size_t skip) {
    invariant(skip <= from->count && to != from, "%zu words of %zu are skipped", skip, from->count);
    words_clear(to);
    for (size_t i = skip; i < from->count; i++)
        words_add(to, from->words[i], strlen(from->words[i]));
}

static void words_own(void *value) {
    struct config_words *to = value, from = *to;
    *to = (struct config_words){0};
    set_words(to, &from, 0);
}

static void words_drop(void *value) {
    words_clear(value);
}

static void networks_own(void *value) {
    networks_ref(*(struct networks **)value);
}

static void networks_drop(void *value) {
    networks_unref(*(struct networks **)value);
}

static void rules_drop(void *value) {
    lock_rules_unref(*(struct lock_rules **)value);
}

/* The value of `upstream` has three fields, side by side. */
enum {
    UPSTREAM_ADDRESSES = offsetof(struct config, upstream_addresses) - offsetof(struct config, upstream),
    UPSTREAM_NAME = offsetof(struct config, sentinel_name) - offsetof(struct config, upstream),
    UPSTREAM_BYTES = UPSTREAM_NAME + sizeof(char *)
};

static void upstream_own(void *value) {
    words_own((char *)value + UPSTREAM_ADDRESSES);
    text_own((char *)value + UPSTREAM_NAME);
}

static void upstream_drop(void *value) {
    words_drop((char *)value + UPSTREAM_ADDRESSES);
    text_drop((char *)value + UPSTREAM_NAME);
}

/* ---- readers ------------------------------------------------------------------------------- */

/* Sets a text and takes over `copy`. */
static void set_text(struct config_build *b, const struct directive *d, char *copy) {
    text_drop((char *)b->config + d->offset);
    memcpy((char *)b->config + d->offset, &copy, sizeof(copy));
}

/* Reads digits in base 8 or 10; no sign, no blanks. */
static bool parse_digits(const char *text, int base, int64_t *out) {
    int64_t n = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text >= '0' + base || n > (INT64_MAX - base) / base)
            return false;
        n = n * base + (*text - '0');
    }
    *out = n;
    return true;
}

static bool read_number(struct config_build *b, const struct directive *d, const struct config_words *words) {
    const char *word = words->words[0];
    int64_t n = 0;
    bool negative = d->kind == &VALUE_NUMBER && word[0] == '-';
    bool right = d->kind == &VALUE_SIZE   ? units_size(word, &n)
                 : d->kind == &VALUE_TIME ? units_time(word, 1000, &n)
                                          : parse_digits(word + negative, d->kind == &VALUE_OCTAL ? 8 : 10, &n);
    n = negative ? -n : n;
    if (!right || n < d->min || n > d->max)
        return complain_expected(b, d);
    memcpy((char *)b->config + d->offset, &n, sizeof(n));
    return true;
}

static bool read_choice(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int i = text_choice(words->words[0], d->names);
    if (i < 0)
        return complain_expected(b, d);
    if (d->kind == &VALUE_FLAG)
        *(bool *)((char *)b->config + d->offset) = i == 1;
    else
        memcpy((char *)b->config + d->offset, &i, sizeof(i));
    return true;
}

static bool read_bits(struct config_build *b, const struct directive *d, const struct config_words *words) {
    unsigned bits = 0;
    for (size_t i = 0; i < words->count; i++) {
        int bit = text_choice(words->words[i], d->names);
        if (bit < 0)
            return complain_name(b, words->words[i], d->names);
        bits |= 1u << bit;
    }
    memcpy((char *)b->config + d->offset, &bits, sizeof(bits));
    return true;
}

static bool read_text(struct config_build *b, const struct directive *d, const struct config_words *words) {
    const char *text = words->words[0];
    if (d->kind == &VALUE_SOCKET_PATH && strlen(text) > SOCKET_PATH_MAX)
        return complain(b, "expected a path of at most %d bytes", (int)SOCKET_PATH_MAX);
    if (d->kind == &VALUE_ADDRESS && !*text)
        return complain_expected(b, d);
    set_text(b, d, *text || d->flags & EMPTY ? memory_strdup(text) : NULL);
    return true;
}

static bool read_words(struct config_build *b, const struct directive *d, const struct config_words *words) {
    set_words((struct config_words *)(void *)((char *)b->config + d->offset), words,
              words->count == 1 && !*words->words[0]); /* "" is no word */
    return true;
}

static bool read_bind(struct config_build *b, const struct directive *d, const struct config_words *words) {
    bool none = words->count == 1 && !*words->words[0]; /* no TCP, as in Redis */
    for (size_t i = 0; i < words->count && !none; i++) {
        const char *address = words->words[i];
        if (!address[strspn(address, "-")])
            return complain_word(b, address, "an address");
    }
    return read_words(b, d, words);
}

static bool read_supervised(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const NAMES[] = {"no", "systemd", "auto", "upstart", NULL};
    int i = text_choice(words->words[0], NAMES);
    if (i == 3)
        return complain(b, "upstart is not supported: expected %s", d->expected);
    if (i < 0)
        return complain_expected(b, d);
    set_text(b, d, memory_strdup(NAMES[i]));
    return true;
}

/* Reads CLASS HARD SOFT SECONDS, once or several times. A proxy has no replicas: limits of that class are checked and
 * ignored, so that lines of a redis.conf can stay as they are. */
static bool read_output_limit(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const CLASSES[] = {"normal", "replica", "slave", "pubsub", NULL};
    if (words->count % 4 != 0)
        return complain_expected(b, d);
    for (size_t i = 0; i < words->count; i += 4) {
        char *const *w = words->words + i;
        int64_t hard, soft, seconds;
        int class = text_choice(w[0], CLASSES);
        if (class < 0)
            return complain_word(b, w[0], "normal, replica or pubsub");
        if (!units_size(w[1], &hard))
            return complain_word(b, w[1], "a hard limit like 64mb, or 0");
        if (!units_size(w[2], &soft))
            return complain_word(b, w[2], "a soft limit like 16mb, or 0");
        if (!parse_digits(w[3], 10, &seconds) || seconds > INT_MAX)
            return complain_word(b, w[3], "a number of seconds");
        const int64_t limits[] = {hard, soft, seconds}; /* as the fields stand; those of pubsub stand behind */
        if (class == 0 || class == 3)
            memcpy((char *)b->config + d->offset + (class ? sizeof(limits) : 0), limits, sizeof(limits));
    }
    return true;
}

/* ---- upstream ------------------------------------------------------------------------------ */

/* Whether a text is an IPv6 address, with or without a zone ("fe80::1%eth0"). */
static bool ipv6_valid(const char *text, size_t len) {
    char address[INET6_ADDRSTRLEN];
    struct in6_addr parsed;
    const char *zone = memchr(text, '%', len);
    size_t n = zone ? (size_t)(zone - text) : len;
    if (n >= sizeof(address) || (zone && n + 1 == len))
        return false;
    memcpy(address, text, n);
    address[n] = '\0';
    return inet_pton(AF_INET6, address, &parsed) == 1;
}

/* Whether a text is HOST:PORT or [V6]:PORT. */
static bool address_valid(const char *text) {
    static const char OF_HOSTS[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    const char *colon = strrchr(text, ':');
    int64_t port;
    if (!colon || !parse_digits(colon + 1, 10, &port) || port < 1 || port > 65535)
        return false;
    size_t len = (size_t)(colon - text);
    if (text[0] == '[')
        return len >= 2 && text[len - 1] == ']' && ipv6_valid(text + 1, len - 2);
    return len > 0 && len <= 253 && strspn(text, OF_HOSTS) == len;
}

#define EMBEDDED "embedded"

bool config_witness_embedded(const struct config *config) {
    return config->witnesses.count == 1 && strcmp(config->witnesses.words[0], EMBEDDED) == 0;
}

void config_set_witnesses(struct config *config, const char *const *addresses, size_t count) {
    set_words(&config->witnesses, &(struct config_words){(char **)(uintptr_t)addresses, count}, 0);
}

/* Reads the witnesses. An even number of them tolerates no more than one fewer, and is a step between two changes. */
static bool read_witness(struct config_build *b, const struct directive *d, const struct config_words *words) {
    bool word = words->count == 1 && (!*words->words[0] || strcmp(words->words[0], EMBEDDED) == 0);
    for (size_t i = 0; i < words->count && !word; i++) {
        if (!address_valid(words->words[i]))
            return complain_word(b, words->words[i], "HOST:PORT or [IPV6]:PORT");
        for (size_t k = 0; k < i; k++)
            if (strcasecmp(words->words[i], words->words[k]) == 0)
                return complain(b, "'%s' stands there twice: expected servers that are independent of each other",
                                words->words[i]);
    }
    return read_words(b, d, words);
}

/* In the order of enum config_upstream. */
static const char *const UPSTREAMS[] = {"embedded", "standalone", "cluster", "sentinel", NULL};

static bool read_upstream(struct config_build *b, const struct directive *d, const struct config_words *words) {
    struct config *config = b->config;
    int kind = text_choice(words->words[0], UPSTREAMS);
    if (kind < 0)
        return complain_expected(b, d);
    size_t first = kind == CONFIG_SENTINEL ? 2 : 1; /* index of the first address */
    if (kind == CONFIG_EMBEDDED && words->count != 1)
        return complain(b, "expected no address behind embedded");
    if (kind == CONFIG_STANDALONE && words->count != 2)
        return complain(b, "expected standalone and one HOST:PORT or unix:PATH");
    if (kind == CONFIG_CLUSTER && words->count < 2)
        return complain(b, "expected cluster and at least one HOST:PORT");
    if (kind == CONFIG_SENTINEL && (words->count < 3 || !*words->words[1]))
        return complain(b, "expected sentinel, the master's name and at least one HOST:PORT");
    for (size_t i = first; i < words->count; i++) {
        const char *address = words->words[i];
        size_t len = strlen(address);
        if (kind == CONFIG_STANDALONE && strncmp(address, "unix:", 5) == 0 && len > 5 && len - 5 <= SOCKET_PATH_MAX)
            continue;
        if (!address_valid(address))
            return complain_word(b, address,
                                 kind == CONFIG_STANDALONE ? "HOST:PORT, [IPV6]:PORT or unix:PATH"
                                                           : "HOST:PORT or [IPV6]:PORT");
    }
    config->upstream = (enum config_upstream)kind;
    set_words(&config->upstream_addresses, words, first);
    memory_free(config->sentinel_name);
    config->sentinel_name = kind == CONFIG_SENTINEL ? memory_strdup(words->words[1]) : NULL;
    return true;
}

/* ---- locks and the rest ---------------------------------------------------------------------- */

/* Reads a lock rule or a fence. */
static bool read_rule(struct config_build *b, const struct directive *d, const struct config_words *words) {
    bool fence = d->kind == &VALUE_FENCE;
    char reason[CONFIG_WHY_MAX];
    if (fence && words->count == 1 && words->words[0][0] == '\0') /* none: the default value */
        return true;
    b->lock_given |= !fence;
    const char *wrong = (fence ? lock_rules_add_fence : lock_rules_add)(
        b->config->rules, (const char *const *)words->words, words->count, reason, sizeof(reason));
    return wrong ? complain(b, "%s", wrong) : true;
}

static bool read_proxy_protocol(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const NAMES[] = {"no", "yes", NULL};
    struct networks *list = networks_new();
    int i = words->count == 1 ? text_choice(words->words[0], NAMES) : -1;
    if (i == 1)
        networks_add_all(list);
    for (size_t k = 0; i < 0 && k < words->count; k++)
        if (!networks_add(list, words->words[k])) {
            networks_unref(list);
            return complain_word(b, words->words[k], "yes or no alone, an address, a network like 10.0.0.0/8, or unix");
        }
    networks_unref(b->config->proxy_protocol);
    b->config->proxy_protocol = list;
    return true;
}

static bool read_tls_unknown(struct config_build *b, const struct directive *d, const struct config_words *words) {
    return complain(b, "not known here: expected one of the tls-* directives that --help lists; those of "
                       "upstream-tls-* are for connections to Redis");
}

/* config.c, which has the files, includes them. */
static bool read_include(struct config_build *b, const struct directive *d, const struct config_words *words) {
    return *words->words[0] ? true : complain_expected(b, d);
}

/* ---- showing ---------------------------------------------------------------------------------- */

static const void *field(const struct config *c, const struct directive *d) {
    return (const char *)c + d->offset;
}

static void show_number(const struct config *c, const struct directive *d, struct text *out) {
    int64_t n;
    memcpy(&n, field(c, d), sizeof(n));
    if (d->kind == &VALUE_OCTAL)
        text_printf(out, "%llo", (unsigned long long)n);
    else if (d->kind != &VALUE_TIME)
        text_printf(out, "%lld", (long long)n);
    else if (n % 1000 == 0)
        text_printf(out, "%llds", (long long)n / 1000);
    else
        text_printf(out, "%lldms", (long long)n);
}

static void show_text(const struct config *c, const struct directive *d, struct text *out) {
    const char *text;
    memcpy(&text, field(c, d), sizeof(text));
    text_printf(out, "%s", text ? text : "");
}

static void show_choice(const struct config *c, const struct directive *d, struct text *out) {
    int i;
    if (d->kind == &VALUE_FLAG)
        i = *(const bool *)field(c, d);
    else
        memcpy(&i, field(c, d), sizeof(i));
    text_printf(out, "%s", d->names[i]);
}

static void show_bits(const struct config *c, const struct directive *d, struct text *out) {
    unsigned bits;
    size_t before = out->len;
    memcpy(&bits, field(c, d), sizeof(bits));
    for (size_t i = 0; d->names[i]; i++)
        if (bits & 1u << i)
            text_printf(out, "%s%s", out->len > before ? " " : "", d->names[i]);
}

static void show_words(const struct config *c, const struct directive *d, struct text *out) {
    words_show(field(c, d), out);
}

static void show_proxy_protocol(const struct config *c, const struct directive *d, struct text *out) {
    networks_text(c->proxy_protocol, out);
}

static void show_output_limit(const struct config *c, const struct directive *d, struct text *out) {
    text_printf(out, "normal %lld %lld %lld pubsub %lld %lld %lld", (long long)c->output_limit_hard,
                (long long)c->output_limit_soft, (long long)c->output_limit_soft_s, (long long)c->output_pubsub_hard,
                (long long)c->output_pubsub_soft, (long long)c->output_pubsub_soft_s);
}

static void show_upstream(const struct config *c, const struct directive *d, struct text *out) {
    text_printf(out, "%s%s%s%s", UPSTREAMS[c->upstream], c->sentinel_name ? " " : "",
                c->sentinel_name ? c->sentinel_name : "", c->upstream_addresses.count > 0 ? " " : "");
    words_show(&c->upstream_addresses, out);
}

/* Shows the rules or the fences, each on a line. */
static void show_rules(const struct config *c, const struct directive *d, struct text *out) {
    bool fences = d->kind == &VALUE_FENCE;
    size_t count = fences ? lock_rules_fence_count(c->rules) : lock_rules_count(c->rules);
    for (size_t i = 0; i < count; i++) {
        const struct lock_rule *rule = fences ? lock_rules_fence(c->rules, i) : lock_rules_get(c->rules, i);
        text_printf(out, "%s", i ? "\n" : "");
        lock_rule_append(out, rule);
    }
}

enum { OUTPUT_LIMITS = 6 }; /* hard, soft and seconds, of two classes of clients */

_Static_assert(offsetof(struct config, output_pubsub_soft_s) - offsetof(struct config, output_limit_hard) ==
                   (OUTPUT_LIMITS - 1) * sizeof(int64_t),
               "the numbers of client-output-buffer-limit are side by side");

/* ---- kinds ----------------------------------------------------------------------------------- */

const struct value_kind VALUE_NUMBER = {read_number, show_number, sizeof(int64_t), NULL, NULL};
const struct value_kind VALUE_OCTAL = {read_number, show_number, sizeof(int64_t), NULL, NULL};
const struct value_kind VALUE_SIZE = {read_number, show_number, sizeof(int64_t), NULL, NULL};
const struct value_kind VALUE_TIME = {read_number, show_number, sizeof(int64_t), NULL, NULL};
const struct value_kind VALUE_FLAG = {read_choice, show_choice, sizeof(bool), NULL, NULL};
const struct value_kind VALUE_CHOICE = {read_choice, show_choice, sizeof(int), NULL, NULL};
const struct value_kind VALUE_BITS = {read_bits, show_bits, sizeof(unsigned), NULL, NULL};
const struct value_kind VALUE_TEXT = {read_text, show_text, sizeof(char *), text_own, text_drop};
const struct value_kind VALUE_SOCKET_PATH = {read_text, show_text, sizeof(char *), text_own, text_drop};
const struct value_kind VALUE_ADDRESS = {read_text, show_text, sizeof(char *), text_own, text_drop};
const struct value_kind VALUE_SUPERVISED = {read_supervised, show_text, sizeof(char *), text_own, text_drop};
const struct value_kind VALUE_WORDS = {read_words, show_words, sizeof(struct config_words), words_own, words_drop};
const struct value_kind VALUE_BIND = {read_bind, show_words, sizeof(struct config_words), words_own, words_drop};
const struct value_kind VALUE_WITNESS = {read_witness, show_words, sizeof(struct config_words), words_own, words_drop};
const struct value_kind VALUE_OUTPUT_LIMIT = {read_output_limit, show_output_limit, OUTPUT_LIMITS * sizeof(int64_t),
                                              NULL, NULL};
const struct value_kind VALUE_PROXY_PROTOCOL = {read_proxy_protocol, show_proxy_protocol, sizeof(struct networks *),
                                                networks_own, networks_drop};
const struct value_kind VALUE_UPSTREAM = {read_upstream, show_upstream, UPSTREAM_BYTES, upstream_own, upstream_drop};
const struct value_kind VALUE_LOCK = {read_rule, show_rules, sizeof(struct lock_rules *), NULL, rules_drop};
const struct value_kind VALUE_FENCE = {read_rule, show_rules, 0, NULL, NULL}; /* part of the set of lock rules */
const struct value_kind VALUE_INCLUDE = {read_include, NULL, 0, NULL, NULL};
const struct value_kind VALUE_TLS_OTHER = {read_tls_unknown, NULL, 0, NULL, NULL};

bool directive_apply(struct config_build *b, const struct directive *d, const struct config_words *words) {
    struct config_words split = {0};
    if (d->flags & LIST && words->count == 1 && *words->words[0]) {
        const char *wrong = words_split(&split, words->words[0], strlen(words->words[0]));
        if (wrong) {
            words_clear(&split);
            return complain(b, "%s", wrong);
        }
        words = &split;
    }
    bool fits = words->count >= d->words_min && words->count <= d->words_max;
    bool done = fits ? d->kind->read(b, d, words) : complain_expected(b, d);
    words_clear(&split);
    return done;
}
