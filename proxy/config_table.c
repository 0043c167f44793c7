/*
 * The directives: one table, and a reader for each kind of value. Defaults are texts in the table, read by the
 * same readers. Knows nothing of where a directive stood; complaints name what was expected, and the caller adds
 * place, name and value.
 */
#include <arpa/inet.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "proxy/base/memory.h"
#include "proxy/base/units.h"
#include "proxy/config_private.h"

enum {
    BIND_MAX = 16, /* as Redis */
    WORDS_ANY = 1000,
    SOCKET_PATH_MAX = sizeof(((struct sockaddr_un *)0)->sun_path) - 1,
};

#define MEGABYTE ((int64_t)1024 * 1024)
#define DAY_MS   ((int64_t)24 * 60 * 60 * 1000)

/* ---- complaints ---------------------------------------------------------------------------- */

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

/* A complaint about one of several words. */
static bool complain_word(struct config_build *b, const char *word, const char *expected) {
    char shown[100];
    word_show(word, shown, sizeof(shown));
    return complain(b, "'%s': expected %s", shown, expected);
}

/* ---- readers ------------------------------------------------------------------------------- */

static void set_number(struct config_build *b, const struct directive *d, int64_t value) {
    memcpy((char *)b->config + d->offset, &value, sizeof(value));
}

/* Takes `copy` over. */
static void set_text(struct config_build *b, const struct directive *d, char *copy) {
    char *old;
    memcpy(&old, (char *)b->config + d->offset, sizeof(old));
    memory_free(old);
    memcpy((char *)b->config + d->offset, &copy, sizeof(copy));
}

/* Digits in base 8 or 10; no sign, no blanks. */
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
    int64_t n;
    if (!parse_digits(words->words[0], 10, &n) || n < d->min || n > d->max)
        return complain_expected(b, d);
    set_number(b, d, n);
    return true;
}

static bool read_octal(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int64_t n;
    if (!parse_digits(words->words[0], 8, &n) || n < d->min || n > d->max)
        return complain_expected(b, d);
    set_number(b, d, n);
    return true;
}

static bool read_size(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int64_t n;
    if (!units_size(words->words[0], &n) || n < d->min || n > d->max)
        return complain_expected(b, d);
    set_number(b, d, n);
    return true;
}

static bool read_time(struct config_build *b, const struct directive *d, const struct config_words *words) {
    int64_t ms;
    if (!units_time(words->words[0], 1000, &ms) || ms < d->min || ms > d->max)
        return complain_expected(b, d);
    set_number(b, d, ms);
    return true;
}

static bool read_text(struct config_build *b, const struct directive *d, const struct config_words *words) {
    const char *text = words->words[0];
    set_text(b, d, *text || d->flags & DIRECTIVE_EMPTY ? memory_strdup(text) : NULL);
    return true;
}

static bool read_socket_path(struct config_build *b, const struct directive *d, const struct config_words *words) {
    if (strlen(words->words[0]) > SOCKET_PATH_MAX)
        return complain(b, "expected a path of at most %d bytes", (int)SOCKET_PATH_MAX);
    return read_text(b, d, words);
}

/* Copies all words but the first `skip` over what was there. */
static void set_words(struct config_words *to, const struct config_words *from, size_t skip) {
    words_clear(to);
    for (size_t i = skip; i < from->count; i++)
        words_add(to, from->words[i], strlen(from->words[i]));
}

static bool read_bind(struct config_build *b, const struct directive *d, const struct config_words *words) {
    struct config *config = b->config;
    if (words->count == 1 && !*words->words[0]) {
        words_clear(&config->bind); /* bind "": no TCP, as in Redis */
        return true;
    }
    for (size_t i = 0; i < words->count; i++) {
        const char *address = words->words[i];
        if (!address[strspn(address, "-")])
            return complain_word(b, address, "an address");
    }
    set_words(&config->bind, words, 0);
    return true;
}

static bool read_address(struct config_build *b, const struct directive *d, const struct config_words *words) {
    if (!*words->words[0])
        return complain_expected(b, d);
    return read_text(b, d, words);
}

/* The index of the word in a NULL-terminated list, in any case, or -1. */
static int choice(const char *word, const char *const *names) {
    for (int i = 0; names[i]; i++) {
        if (strcasecmp(word, names[i]) == 0)
            return i;
    }
    return -1;
}

static bool read_loglevel(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const NAMES[] = {"debug", "verbose", "notice", "warning", "nothing", NULL};
    int i = choice(words->words[0], NAMES);
    if (i < 0)
        return complain_expected(b, d);
    b->config->loglevel = (enum log_level)i;
    return true;
}

static bool read_log_format(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const NAMES[] = {"text", "json", NULL};
    int i = choice(words->words[0], NAMES);
    if (i < 0)
        return complain_expected(b, d);
    b->config->log_json = i == 1;
    return true;
}

static bool read_supervised(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const NAMES[] = {"no", "systemd", "auto", "upstart", NULL};
    int i = choice(words->words[0], NAMES);
    if (i == 3)
        return complain(b, "upstart is not supported: expected %s", d->expected);
    if (i < 0)
        return complain_expected(b, d);
    set_text(b, d, memory_strdup(NAMES[i]));
    return true;
}

/* CLASS HARD SOFT SECONDS, once or several times. A proxy has normal clients alone; the limits of the other classes are
 * checked and left aside, so that lines of a redis.conf can stay as they are. */
static bool read_output_limit(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const CLASSES[] = {"normal", "replica", "slave", "pubsub", NULL};
    if (words->count % 4 != 0)
        return complain_expected(b, d);
    for (size_t i = 0; i < words->count; i += 4) {
        char *const *w = words->words + i;
        int64_t hard, soft, seconds;
        int class = choice(w[0], CLASSES);
        if (class < 0)
            return complain_word(b, w[0], "normal, replica or pubsub");
        if (!units_size(w[1], &hard))
            return complain_word(b, w[1], "a hard limit like 64mb, or 0");
        if (!units_size(w[2], &soft))
            return complain_word(b, w[2], "a soft limit like 16mb, or 0");
        if (!parse_digits(w[3], 10, &seconds) || seconds > INT_MAX)
            return complain_word(b, w[3], "a number of seconds");
        if (class == 0) {
            b->config->output_limit_hard = hard;
            b->config->output_limit_soft = soft;
            b->config->output_limit_soft_s = seconds;
        }
    }
    return true;
}

/* ---- upstream ------------------------------------------------------------------------------ */

static bool host_valid(const char *host, size_t len) {
    static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    return len > 0 && len <= 253 && strspn(host, ALLOWED) == len;
}

/* An IPv6 address, with or without a zone ("fe80::1%eth0"). */
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

/* HOST:PORT or [V6]:PORT. */
static bool address_valid(const char *text) {
    const char *colon = strrchr(text, ':');
    int64_t port;
    if (!colon || !parse_digits(colon + 1, 10, &port) || port < 1 || port > 65535)
        return false;
    size_t len = (size_t)(colon - text);
    if (text[0] == '[')
        return len >= 2 && text[len - 1] == ']' && ipv6_valid(text + 1, len - 2);
    return host_valid(text, len);
}

/* unix:PATH. */
static bool unix_valid(const char *text) {
    size_t len = strlen(text);
    return strncmp(text, "unix:", 5) == 0 && len > 5 && len - 5 <= SOCKET_PATH_MAX;
}

static bool read_upstream(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const KINDS[] = {"embedded", "standalone", "cluster", "sentinel", NULL};
    struct config *config = b->config;
    int kind = choice(words->words[0], KINDS);
    if (kind < 0)
        return complain_expected(b, d);
    size_t first = kind == CONFIG_SENTINEL ? 2 : 1; /* the first address */
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
        if (kind == CONFIG_STANDALONE && unix_valid(address))
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

static bool read_lock(struct config_build *b, const struct directive *d, const struct config_words *words) {
    if (!b->lock_given) {
        lock_rules_unref(b->config->rules);
        b->config->rules = lock_rules_new();
        b->lock_given = true;
    }
    char reason[CONFIG_WHY_MAX];
    const char *wrong =
        lock_rules_add(b->config->rules, (const char *const *)words->words, words->count, reason, sizeof(reason));
    return wrong ? complain(b, "%s", wrong) : true;
}

static bool read_identity(struct config_build *b, const struct directive *d, const struct config_words *words) {
    static const char *const NAMES[] = {"address", "user", "name", "port", NULL};
    static const unsigned BITS[] = {IDENTITY_ADDRESS, IDENTITY_USER, IDENTITY_NAME, IDENTITY_PORT};
    unsigned identity = 0;
    for (size_t i = 0; i < words->count; i++) {
        int field = choice(words->words[i], NAMES);
        if (field < 0)
            return complain_word(b, words->words[i], "address, user, name or port");
        identity |= BITS[field];
    }
    b->config->client_identity = identity;
    return true;
}

static bool read_tls(struct config_build *b, const struct directive *d, const struct config_words *words) {
    if (d->shown.fallback[0] && strcmp(words->words[0], d->shown.fallback) == 0)
        return true;
    return complain(b, "TLS is not supported by this build");
}

/* The including itself is config.c's, which has the files. */
static bool read_include(struct config_build *b, const struct directive *d, const struct config_words *words) {
    return *words->words[0] ? true : complain_expected(b, d);
}

/* ---- the table ----------------------------------------------------------------------------- */

#define AT(member) offsetof(struct config, member)
#define NUMBER(member, low, high)                                                                                      \
    .read = read_number, .offset = AT(member), .min = (low), .max = (high), .words_min = 1, .words_max = 1
#define SIZE(member, low)                                                                                              \
    .read = read_size, .offset = AT(member), .min = (low), .max = INT64_MAX / 2, .words_min = 1, .words_max = 1
#define TEXT(member) .read = read_text, .offset = AT(member), .words_min = 1, .words_max = 1
#define ONE(reader)  .read = (reader), .words_min = 1, .words_max = 1
#define LIST(reader) .read = (reader), .words_min = 1, .words_max = WORDS_ANY

static const struct directive TABLE[] = {
    {{"include", "FILE", "", "reads another file here; a relative path starts at the working directory, * ? [] work"},
     ONE(read_include),
     .expected = "a file name"},

    {{"bind", "ADDRESS ...", "127.0.0.1 -::1", "addresses to listen on; one with - in front may be missing"},
     .read = read_bind,
     .words_min = 1,
     .words_max = BIND_MAX,
     .flags = DIRECTIVE_LIST,
     .expected = "1 to 16 addresses"},
    {{"port", "PORT", "6380", "where applications connect; 0: no TCP"}, NUMBER(port, 0, 65535)},
    {{"unixsocket", "PATH", "\"\"", "a unix socket to listen on as well"},
     .read = read_socket_path,
     .offset = AT(unixsocket),
     .words_min = 1,
     .words_max = 1,
     .expected = "one path"},
    {{"unixsocketperm", "MODE", "0", "permissions of the unix socket, octal; 0: as the umask has it"},
     .read = read_octal,
     .offset = AT(unixsocketperm),
     .max = 0777,
     .words_min = 1,
     .words_max = 1,
     .expected = "an octal number from 0 to 777"},
    {{"timeout", "SECONDS", "0", "closes clients that are idle for so long; 0: never"}, NUMBER(timeout_s, 0, INT_MAX)},
    {{"tcp-keepalive", "SECONDS", "300", "TCP keep-alive of client connections; 0: none"},
     NUMBER(tcp_keepalive_s, 0, INT_MAX)},
    {{"tcp-backlog", "N", "511", "length of the queue of connections not yet accepted"},
     NUMBER(tcp_backlog, 0, INT_MAX)},
    {{"maxclients", "N", "10000", "how many clients may be connected at once"}, NUMBER(maxclients, 1, UINT_MAX)},
    {{"tls-port", "PORT", "0", "TLS is not supported by this build; 0 is the only value"}, ONE(read_tls)},

    {{"threads", "N", "1", "event-loop threads"}, NUMBER(threads, 1, 64)},
    {{"supervised", "no|systemd|auto", "no", "tells systemd when clients can connect"},
     ONE(read_supervised),
     .offset = AT(supervised),
     .expected = "no, systemd or auto"},
    {{"pidfile", "PATH", "\"\"", "a file for the process id"}, TEXT(pidfile), .expected = "one path"},
    {{"loglevel", "debug|verbose|notice|warning|nothing", "notice", "what is logged"},
     ONE(read_loglevel),
     .expected = "debug, verbose, notice, warning or nothing"},
    {{"logfile", "PATH", "\"\"", "a file for the log; \"\": standard output"},
     TEXT(logfile),
     .flags = DIRECTIVE_EMPTY,
     .expected = "one path"},
    {{"log-format", "text|json", "text", "Redis's log lines, or a JSON object a line"},
     ONE(read_log_format),
     .expected = "text or json"},

    {{"requirepass", "PASSWORD", "\"\"", "clients of the proxy have to AUTH with it"},
     TEXT(requirepass),
     .flags = DIRECTIVE_SECRET,
     .expected = "one password"},

    {{"proto-max-bulk-len", "SIZE", "512mb", "longest argument of a request"},
     SIZE(bulk_max, MEGABYTE),
     .expected = "a size of at least 1mb, like 512mb"},
    {{"client-query-buffer-limit", "SIZE", "1gb", "most bytes of a client's unanswered input"},
     SIZE(query_buffer_limit, MEGABYTE),
     .expected = "a size of at least 1mb, like 1gb"},
    {{"client-output-buffer-limit", "CLASS HARD SOFT SECONDS", "normal 0 0 0",
      "drops a client with so much unread output: at once (HARD), or after SECONDS (SOFT)"},
     LIST(read_output_limit),
     .flags = DIRECTIVE_LIST,
     .expected = "CLASS HARD SOFT SECONDS, like normal 64mb 16mb 60"},

    {{"upstream", "embedded | standalone ADDRESS | cluster ADDRESS ... | sentinel NAME ADDRESS ...", "embedded",
      "the Redis behind the proxy"},
     LIST(read_upstream),
     .flags = DIRECTIVE_LIST,
     .expected = "embedded, standalone HOST:PORT, cluster HOST:PORT ... or sentinel NAME HOST:PORT ..."},
    {{"upstream-user", "NAME", "\"\"", "the user as whom the proxy itself logs in"},
     TEXT(upstream_user),
     .flags = DIRECTIVE_SECRET,
     .expected = "one user name"},
    {{"upstream-password", "PASSWORD", "\"\"", "the password with which the proxy itself logs in"},
     TEXT(upstream_password),
     .flags = DIRECTIVE_SECRET,
     .expected = "one password"},
    {{"upstream-connections", "N", "1", "shared connections to each node, per thread"},
     NUMBER(upstream_connections, 1, 64)},
    {{"upstream-timeout", "TIME", "5s", "a connection that owes a reply and is silent for so long is dropped"},
     .read = read_time,
     .offset = AT(upstream_timeout_ms),
     .min = 1,
     .max = DAY_MS,
     .words_min = 1,
     .words_max = 1,
     .expected = "a time from 1ms to 1d, like 5s"},

    {{"cluster-announce-ip", "HOST", "\"\"",
      "the proxy's address in CLUSTER SLOTS; \"\": the one a client connected to"},
     TEXT(cluster_announce_ip),
     .expected = "one address or host name"},
    {{"cluster-announce-port", "PORT", "0", "the proxy's port in CLUSTER SLOTS; 0: the one a client connected to"},
     NUMBER(cluster_announce_port, 0, 65535)},

    {{"lock", "PATTERN [OPTION VALUE] ...", "lock:*", "a lock rule; the first that matches a key applies"},
     LIST(read_lock),
     .expected = "a key pattern, then options and their values"},
    {{"client-identity", "FIELD ...", "address user name", "what makes two connections the same client"},
     LIST(read_identity),
     .flags = DIRECTIVE_LIST,
     .expected = "one or more of address, user, name and port"},

    {{"admin-port", "PORT", "0", "HTTP: metrics, health and the status page; 0: off"}, NUMBER(admin_port, 0, 65535)},
    {{"admin-bind", "ADDRESS", "127.0.0.1", "the address of the admin port"},
     ONE(read_address),
     .offset = AT(admin_bind),
     .expected = "one address"},
};
enum { TABLE_COUNT = sizeof(TABLE) / sizeof(TABLE[0]) };

/* Every other tls-* directive of a redis.conf: known, and refused. */
static const struct directive TLS_OTHER = {{"tls-*", "", "", ""}, LIST(read_tls), .flags = DIRECTIVE_SECRET};

size_t config_directive_count(void) {
    return TABLE_COUNT;
}

struct config_directive config_directive_get(size_t i) {
    return TABLE[i].shown;
}

const struct directive *directive_find(const char *name) {
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        if (strcasecmp(name, TABLE[i].shown.name) == 0)
            return &TABLE[i];
    }
    return strncasecmp(name, "tls-", 4) == 0 ? &TLS_OTHER : NULL;
}

const struct directive *directive_nearest(const char *name) {
    size_t len = strlen(name);
    const struct directive *nearest = NULL;
    size_t best = len < 5 ? 2 : len / 3 + 1; /* further away is another word */
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        size_t distance = words_distance(name, TABLE[i].shown.name);
        if (distance < best) {
            best = distance;
            nearest = &TABLE[i];
        }
    }
    return nearest;
}

bool directive_apply(struct config_build *b, const struct directive *d, const struct config_words *words) {
    struct config_words split = {0};
    if (d->flags & DIRECTIVE_LIST && words->count == 1 && *words->words[0]) {
        const char *wrong = words_split(&split, words->words[0], strlen(words->words[0]));
        if (wrong) {
            words_clear(&split);
            return complain(b, "%s", wrong);
        }
        words = &split;
    }
    bool fits = words->count >= d->words_min && words->count <= d->words_max;
    bool done = fits ? d->read(b, d, words) : complain_expected(b, d);
    words_clear(&split);
    return done;
}

/* Defaults are right, and the unit test reads them all. */
static void apply_fallback(struct config_build *b, const struct directive *d) {
    struct config_words words = {0};
    if (words_split(&words, d->shown.fallback, strlen(d->shown.fallback)) == NULL && words.count > 0)
        (void)!directive_apply(b, d, &words);
    words_clear(&words);
}

void directive_defaults(struct config_build *b) {
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        if (TABLE[i].read != read_lock)
            apply_fallback(b, &TABLE[i]);
    }
}

void directive_default_locks(struct config_build *b) {
    if (!b->lock_given)
        apply_fallback(b, directive_find("lock"));
}
