/*
 * The readers of the directives' values, one for each kind of value: each sets a field of the configuration, or says
 * what was expected. They know no directive's name and no default; the caller adds the place.
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

enum { SOCKET_PATH_MAX = sizeof(((struct sockaddr_un *)0)->sun_path) - 1 };

/* ---- errors ---------------------------------------------------------------------------------- */

bool config_complain(struct config_build *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(b->why, sizeof(b->why), format, args);
    va_end(args);
    return false;
}

bool config_complain_expected(struct config_build *b, const struct directive *d) {
    if (d->expected)
        return config_complain(b, "expected %s", d->expected);
    return config_complain(b, "expected a number from %lld to %lld", (long long)d->min, (long long)d->max);
}

/* Writes an error about one of several words; returns false. */
static bool config_complain_word(struct config_build *b, const char *word, const char *expected) {
    char shown[100];
    words_show_word(word, shown, sizeof(shown));
    return config_complain(b, "'%s': expected %s", shown, expected);
}

/* Writes an error about a word that is none of the names, "a, b or c"; returns false. */
static bool config_complain_name(struct config_build *b, const char *word, const char *const *names) {
    char expected[100];
    size_t len = 0;
    for (size_t i = 0; names[i]; i++)
        len += (size_t)snprintf(expected + len, sizeof(expected) - len, "%s%s",
                                i == 0         ? ""
                                : names[i + 1] ? ", "
                                               : " or ",
                                names[i]);
    return config_complain_word(b, word, expected);
}

/* ---- readers ------------------------------------------------------------------------------- */

/* Sets a text and takes over `copy`. */
static void set_text(struct config_build *b, const struct directive *d, char *copy) {
    char *old;
    memcpy(&old, (char *)b->config + d->offset, sizeof(old));
    config_forget(old);
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

/* Sets the number, if it could be read and is within the bounds. */
static bool take_number(struct config_build *b, const struct directive *d, bool right, int64_t n) {
    if (!right || n < d->min || n > d->max)
        return config_complain_expected(b, d);
    memcpy((char *)b->config + d->offset, &n, sizeof(n));
    return true;
}

bool config_read_number(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int64_t n = 0;
    bool negative = words->words[0][0] == '-';
    bool right = parse_digits(words->words[0] + negative, 10, &n);
    return take_number(b, d, right, negative ? -n : n);
}

bool config_read_choice(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int i = text_choice(words->words[0], d->names);
    if (i < 0)
        return config_complain_expected(b, d);
    memcpy((char *)b->config + d->offset, &i, sizeof(i));
    return true;
}

bool config_read_flag(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int i = text_choice(words->words[0], d->names);
    if (i < 0)
        return config_complain_expected(b, d);
    *(bool *)((char *)b->config + d->offset) = i == 1;
    return true;
}

bool config_read_bits(struct config_build *b, const struct directive *d, const struct config_words *words) {
    unsigned bits = 0;
    for (size_t i = 0; i < words->count; i++) {
        int bit = text_choice(words->words[i], d->names);
        if (bit < 0)
            return config_complain_name(b, words->words[i], d->names);
        bits |= 1u << bit;
    }
    memcpy((char *)b->config + d->offset, &bits, sizeof(bits));
    return true;
}

bool config_read_octal(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int64_t n = 0;
    bool right = parse_digits(words->words[0], 8, &n);
    return take_number(b, d, right, n);
}

bool config_read_size(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int64_t n = 0;
    bool right = units_size(words->words[0], &n);
    return take_number(b, d, right, n);
}

bool config_read_time(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int64_t n = 0;
    bool right = units_time(words->words[0], 1000, &n);
    return take_number(b, d, right, n);
}

bool config_read_text(struct config_build *b, const struct directive *d, const struct config_words *words) {
    const char *text = words->words[0];
    set_text(b, d, *text || d->flags & DIRECTIVE_EMPTY ? memory_strdup(text) : NULL);
    return true;
}

bool config_read_socket_path(struct config_build *b, const struct directive *d, const struct config_words *words) {
    if (strlen(words->words[0]) > SOCKET_PATH_MAX)
        return config_complain(b, "expected a path of at most %d bytes", (int)SOCKET_PATH_MAX);
    return config_read_text(b, d, words);
}

/* Replaces `to` by copies of all words after the first `skip`. */
static void set_words(struct config_words *to, const struct config_words *from, size_t skip) {
    invariant(skip <= from->count && to != from, "%zu words of %zu are skipped", skip, from->count);
    words_clear(to);
    for (size_t i = skip; i < from->count; i++)
        words_add(to, from->words[i], strlen(from->words[i]));
}

bool config_read_words(struct config_build *b, const struct directive *d, const struct config_words *words) {
    set_words((struct config_words *)(void *)((char *)b->config + d->offset), words,
              words->count == 1 && !*words->words[0]); /* "" is no word */
    return true;
}

bool config_read_bind(struct config_build *b, const struct directive *d, const struct config_words *words) {
    bool none = words->count == 1 && !*words->words[0]; /* no TCP, as in Redis */
    for (size_t i = 0; i < words->count && !none; i++) {
        const char *address = words->words[i];
        if (!address[strspn(address, "-")])
            return config_complain_word(b, address, "an address");
    }
    return config_read_words(b, d, words);
}

bool config_read_address(struct config_build *b, const struct directive *d, const struct config_words *words) {
    if (!*words->words[0])
        return config_complain_expected(b, d);
    return config_read_text(b, d, words);
}

bool config_read_supervised(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const NAMES[] = {"no", "systemd", "auto", "upstart", NULL};
    int i = text_choice(words->words[0], NAMES);
    if (i == 3)
        return config_complain(b, "upstart is not supported: expected %s", d->expected);
    if (i < 0)
        return config_complain_expected(b, d);
    set_text(b, d, memory_strdup(NAMES[i]));
    return true;
}

/* Reads CLASS HARD SOFT SECONDS, once or several times. A proxy has no replicas: limits of that class are checked and
 * ignored, so that lines of a redis.conf can stay as they are. */
bool config_read_output_limit(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const CLASSES[] = {"normal", "replica", "slave", "pubsub", NULL};
    if (words->count % 4 != 0)
        return config_complain_expected(b, d);
    for (size_t i = 0; i < words->count; i += 4) {
        char *const *w = words->words + i;
        int64_t hard, soft, seconds;
        int class = text_choice(w[0], CLASSES);
        if (class < 0)
            return config_complain_word(b, w[0], "normal, replica or pubsub");
        if (!units_size(w[1], &hard))
            return config_complain_word(b, w[1], "a hard limit like 64mb, or 0");
        if (!units_size(w[2], &soft))
            return config_complain_word(b, w[2], "a soft limit like 16mb, or 0");
        if (!parse_digits(w[3], 10, &seconds) || seconds > INT_MAX)
            return config_complain_word(b, w[3], "a number of seconds");
        if (class == 0) {
            b->config->output_limit_hard = hard;
            b->config->output_limit_soft = soft;
            b->config->output_limit_soft_s = seconds;
        } else if (class == 3) {
            b->config->output_pubsub_hard = hard;
            b->config->output_pubsub_soft = soft;
            b->config->output_pubsub_soft_s = seconds;
        }
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
    words_clear(&config->witnesses);
    for (size_t i = 0; i < count; i++)
        words_add(&config->witnesses, addresses[i], strlen(addresses[i]));
}

/* Reads the witnesses. An even number of them tolerates no more than one fewer, and is a step between two changes. */
bool config_read_witness(struct config_build *b, const struct directive *d, const struct config_words *words) {
    bool word = words->count == 1 && (!*words->words[0] || strcmp(words->words[0], EMBEDDED) == 0);
    for (size_t i = 0; i < words->count && !word; i++) {
        if (!address_valid(words->words[i]))
            return config_complain_word(b, words->words[i], "HOST:PORT or [IPV6]:PORT");
        for (size_t k = 0; k < i; k++)
            if (strcasecmp(words->words[i], words->words[k]) == 0)
                return config_complain(
                    b, "'%s' stands there twice: expected servers that are independent of each other", words->words[i]);
    }
    return config_read_words(b, d, words);
}

bool config_read_upstream(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const KINDS[] = {"embedded", "standalone", "cluster", "sentinel", NULL};
    struct config *config = b->config;
    int kind = text_choice(words->words[0], KINDS);
    if (kind < 0)
        return config_complain_expected(b, d);
    size_t first = kind == CONFIG_SENTINEL ? 2 : 1; /* index of the first address */
    if (kind == CONFIG_EMBEDDED && words->count != 1)
        return config_complain(b, "expected no address behind embedded");
    if (kind == CONFIG_STANDALONE && words->count != 2)
        return config_complain(b, "expected standalone and one HOST:PORT or unix:PATH");
    if (kind == CONFIG_CLUSTER && words->count < 2)
        return config_complain(b, "expected cluster and at least one HOST:PORT");
    if (kind == CONFIG_SENTINEL && (words->count < 3 || !*words->words[1]))
        return config_complain(b, "expected sentinel, the master's name and at least one HOST:PORT");
    for (size_t i = first; i < words->count; i++) {
        const char *address = words->words[i];
        size_t len = strlen(address);
        if (kind == CONFIG_STANDALONE && strncmp(address, "unix:", 5) == 0 && len > 5 && len - 5 <= SOCKET_PATH_MAX)
            continue;
        if (!address_valid(address))
            return config_complain_word(b, address,
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

bool config_read_lock(struct config_build *b, const struct directive *d, const struct config_words *words) {
    b->lock_given = true;
    char reason[CONFIG_WHY_MAX];
    const char *wrong =
        lock_rules_add(b->config->rules, (const char *const *)words->words, words->count, reason, sizeof(reason));
    return wrong ? config_complain(b, "%s", wrong) : true;
}

bool config_read_fence(struct config_build *b, const struct directive *d, const struct config_words *words) {
    char reason[CONFIG_WHY_MAX];
    if (words->count == 1 && words->words[0][0] == '\0') /* none: the default value */
        return true;
    const char *wrong =
        lock_rules_add_fence(b->config->rules, (const char *const *)words->words, words->count, reason, sizeof(reason));
    return wrong ? config_complain(b, "%s", wrong) : true;
}

bool config_read_proxy_protocol(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const NAMES[] = {"no", "yes", NULL};
    struct networks *list = networks_new();
    int i = words->count == 1 ? text_choice(words->words[0], NAMES) : -1;
    if (i == 1)
        networks_add_all(list);
    for (size_t k = 0; i < 0 && k < words->count; k++)
        if (!networks_add(list, words->words[k])) {
            networks_unref(list);
            return config_complain_word(b, words->words[k],
                                        "yes or no alone, an address, a network like 10.0.0.0/8, or unix");
        }
    networks_unref(b->config->proxy_protocol);
    b->config->proxy_protocol = list;
    return true;
}

/* ---- TLS ------------------------------------------------------------------------------------- */

bool config_read_tls_unknown(struct config_build *b, const struct directive *d, const struct config_words *words) {
    return config_complain(b, "not known here: expected one of the tls-* directives that --help lists; those of "
                              "upstream-tls-* are for connections to Redis");
}

/* Checks the value of an include; config.c, which has the files, includes them. */
bool config_read_include(struct config_build *b, const struct directive *d, const struct config_words *words) {
    return *words->words[0] ? true : config_complain_expected(b, d);
}
