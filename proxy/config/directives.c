/*
 * All directives in one table (defaults are texts, read as values in a file are); values in force, and what a reload
 * has changed; checks of directives that depend on each other.
 */
#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "proxy/base/memory.h"
#include "proxy/config/private.h"

enum {
    BIND_MAX = 16, /* as in Redis */
    WORDS_ANY = 1000,
    NAME_MAX_LEN = 63, /* the longest name that is compared with others */
};

#define MEGABYTE ((int64_t)1024 * 1024)
#define DAY_MS   ((int64_t)24 * 60 * 60 * 1000)

/* The names of values, in the order of the enums and bits that they stand for. */
static const char *const NO_YES[] = {"no", "yes", NULL};
static const char *const TAKE_OVERS[] = {"same", "switch", NULL};
static const char *const NO_YES_AUTO[] = {"no", "yes", "auto", NULL};
static const char *const OPTIONAL[] = {"no", "optional", "yes", NULL};
static const char *const VERIFIES[] = {"no", "ca", "yes", NULL};
static const char *const LEVELS[] = {"debug", "verbose", "notice", "warning", "nothing", NULL};
static const char *const FORMATS[] = {"text", "json", NULL};
static const char *const RECORDS[] = {"hash", "short", NULL};
static const char *const TLS_VERSIONS[] = {"TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3", NULL};
static const char *const READS[] = {"masters", "replicas", "nearest", NULL};
static const char *const IDENTITIES[] = {"address", "user", "name", "port", NULL};

/* ---- the table ----------------------------------------------------------------------------- */

#define RESTART    0 /* no flags: a change needs a restart */
#define AT(member) offsetof(struct config, member)
#define WORDS(f, of, member, least, most, what)                                                                        \
    .flags = (f), .kind = (of), .offset = AT(member), .words_min = (least), .words_max = (most), .expected = (what)
#define LISTED(f, of, member, what)        WORDS(LIST | (f), of, member, 1, WORDS_ANY, what)
#define ONE(f, of, member, what)           WORDS(f, of, member, 1, 1, what)
#define NUMBER(f, member, low, high)       ONE(f, &VALUE_NUMBER, member, NULL), .min = (low), .max = (high)
#define SIZE(f, member, low, what)         ONE(f, &VALUE_SIZE, member, what), .min = (low), .max = INT64_MAX / 2
#define TIME(f, member, what)              ONE(f, &VALUE_TIME, member, what), .min = 1, .max = DAY_MS
#define TEXT(f, member, what)              ONE(f, &VALUE_TEXT, member, what)
#define CHOICE(f, of, member, words, what) ONE(f, of, member, what), .names = (words)
#define YES_NO(f, member)                  CHOICE(f, &VALUE_FLAG, member, NO_YES, "yes or no")
#define A_FILE                             "one file name"
#define A_PASSPHRASE                       "one passphrase"
#define LOGIN(name, f, member, logs_in)                                                                                \
    {{name "-user", "NAME", "\"\"", "the user name with which the proxy " logs_in},                                    \
     TEXT(SECRET | (f), member.user, "one user name")},                                                                \
        {{name "-password", "PASSWORD", "\"\"", "the password with which the proxy " logs_in},                         \
         TEXT(SECRET | (f), member.password, "one password")},                                                         \
        {{name "-password-file", "FILE", "\"\"", "a file with that password"}, TEXT(f, member.password_file, A_FILE)}, \
    {                                                                                                                  \
        {name "-password-command", "COMMAND", "\"\"", "a command of sh that prints that password"},                    \
            TEXT(SECRET | (f), member.password_command, "one command, in quotes")                                      \
    }

static const struct directive TABLE[] = {
    {{"include", "FILE", "", "reads another file here; a relative path starts at the working directory, * ? [] work"},
     .kind = &VALUE_INCLUDE,
     .words_min = 1,
     .words_max = 1,
     .expected = "a file name"},

    {{"bind", "ADDRESS ...", "127.0.0.1 -::1", "addresses to listen on; one with - in front may be missing"},
     WORDS(LIST, &VALUE_BIND, bind, 1, BIND_MAX, "1 to 16 addresses")},
    {{"port", "PORT", "6380", "where applications connect; 0: no TCP"}, NUMBER(RESTART, port, 0, 65535)},
    {{"unixsocket", "PATH", "\"\"", "a unix socket to listen on as well"},
     ONE(RESTART, &VALUE_SOCKET_PATH, unixsocket, "one path")},
    {{"unixsocketperm", "MODE", "0", "permissions of the unix socket, octal; 0: as the umask has it"},
     ONE(RESTART, &VALUE_OCTAL, unixsocketperm, "an octal number from 0 to 777"),
     .max = 0777},
    {{"timeout", "SECONDS", "0", "closes clients that are idle for so long; 0: never"},
     NUMBER(LIVE, timeout_s, 0, INT_MAX)},
    {{"tcp-keepalive", "SECONDS", "60", "TCP keep-alive of client connections; 0: none"},
     NUMBER(LIVE, tcp_keepalive_s, 0, INT_MAX)},
    {{"protected-mode", "yes|no", "yes",
      "a Redis in protected mode without a password serves its own machine alone, and so does the proxy"},
     YES_NO(LIVE, protected_mode)},
    {{"tcp-backlog", "N", "511", "length of the queue of connections not yet accepted"},
     NUMBER(RESTART, tcp_backlog, 0, INT_MAX)},
    {{"reuse-port", "yes|no", "no",
      "other proxies may listen on the same port: for a restart without lost connections"},
     YES_NO(RESTART, reuse_port)},
    {{"maxclients", "N", "10000", "how many clients may be connected at once"}, NUMBER(LIVE, maxclients, 1, UINT_MAX)},

    {{"proxy-protocol", "yes|no|ADDRESS ...", "no",
      "connections from these addresses begin with a PROXY protocol header, which names the client; yes: all"},
     LISTED(LIVE, &VALUE_PROXY_PROTOCOL, proxy_protocol, "yes, no, or addresses and networks of load balancers")},

    {{"tls-port", "PORT", "0", "where applications connect over TLS; 0: nowhere"}, NUMBER(RESTART, tls_port, 0, 65535)},
    {{"tls-cert-file", "FILE", "\"\"", "the proxy's certificate and those between it and its authority, PEM"},
     TEXT(LIVE, tls.cert_file, A_FILE)},
    {{"tls-key-file", "FILE", "\"\"", "the certificate's private key, PEM"}, TEXT(LIVE, tls.key_file, A_FILE)},
    {{"tls-key-file-pass", "PASSPHRASE", "\"\"", "opens an encrypted tls-key-file"},
     TEXT(SECRET | LIVE, tls.key_file_pass, A_PASSPHRASE)},
    {{"tls-ca-cert-file", "FILE", "\"\"", "the authorities that vouch for clients' certificates, PEM"},
     TEXT(LIVE, tls.ca_cert_file, A_FILE)},
    {{"tls-ca-cert-dir", "FOLDER", "\"\"", "the same as a folder of files, prepared by openssl rehash"},
     TEXT(LIVE, tls.ca_cert_dir, "one folder")},
    {{"tls-auth-clients", "yes|no|optional", "yes",
      "whether clients need a certificate; optional: it is verified if the client shows one"},
     CHOICE(LIVE, &VALUE_CHOICE, tls_auth_clients, OPTIONAL, "yes, no or optional")},
    {{"tls-protocols", "VERSION ...", "TLSv1.2 TLSv1.3", "versions of TLS, for clients and nodes"},
     LISTED(LIVE, &VALUE_BITS, tls_protocols, "one or more of TLSv1, TLSv1.1, TLSv1.2 and TLSv1.3"),
     .names = TLS_VERSIONS},
    {{"tls-ciphers", "LIST", "\"\"", "ciphers of TLSv1.2 and before, as OpenSSL writes them; \"\": OpenSSL's choice"},
     TEXT(LIVE, tls_ciphers, "one list of ciphers, with colons between them")},
    {{"tls-ciphersuites", "LIST", "\"\"", "ciphersuites of TLSv1.3; \"\": OpenSSL's choice"},
     TEXT(LIVE, tls_ciphersuites, "one list of ciphersuites, with colons between them")},
    {{"tls-prefer-server-ciphers", "yes|no", "no", "the proxy's order of ciphers counts, not the client's"},
     YES_NO(LIVE, tls_prefer_server_ciphers)},
    {{"tls-dh-params-file", "FILE", "\"\"", "Diffie-Hellman parameters for old TLSv1.2 clients, PEM"},
     TEXT(LIVE, tls_dh_params_file, A_FILE)},
    {{"tls-session-caching", "yes|no", "yes", "clients that come again may shorten the handshake"},
     YES_NO(LIVE, tls_session_caching)},
    {{"tls-session-cache-size", "N", "20480", "how many TLS sessions are kept for that"},
     NUMBER(LIVE, tls_session_cache_size, 0, INT_MAX)},
    {{"tls-session-cache-timeout", "SECONDS", "300", "how long a TLS session is kept for that"},
     NUMBER(LIVE, tls_session_cache_timeout_s, 1, INT_MAX)},
    {{"tls-handshake-timeout", "TIME", "10s", "a client that takes longer for its TLS handshake is closed"},
     TIME(LIVE, tls_handshake_ms, "a time from 1ms to 1d, like 10s")},

    {{"threads", "N", "1", "event-loop threads"}, NUMBER(RESTART, threads, 1, 64)},
    {{"supervised", "no|systemd|auto", "no", "tells systemd when clients can connect"},
     ONE(RESTART, &VALUE_SUPERVISED, supervised, "no, systemd or auto")},
    {{"shutdown-timeout", "SECONDS", "600", "how long clients are served on when another process takes over"},
     NUMBER(LIVE, shutdown_timeout_s, 0, 86400)},
    {{"take-over", "same|switch", "same", "whether a new process may take over (SIGUSR2) at another Redis"},
     CHOICE(RESTART, &VALUE_FLAG, take_over_switch, TAKE_OVERS, "same or switch")},
    {{"finish-timeout", "SECONDS", "5", "how long a stop may wait for what is in flight; shutdown-timeout at most"},
     NUMBER(LIVE, finish_timeout_s, 0, 86400)},
    {{"pidfile", "PATH", "\"\"", "a file for the process id"}, TEXT(RESTART, pidfile, "one path")},
    {{"loglevel", "debug|verbose|notice|warning|nothing", "notice", "what is logged"},
     CHOICE(LIVE, &VALUE_CHOICE, loglevel, LEVELS, "debug, verbose, notice, warning or nothing")},
    {{"logfile", "PATH", "\"\"", "a file for the log; \"\": standard output"}, TEXT(EMPTY, logfile, "one path")},
    {{"log-format", "text|json", "text", "Redis's log lines, or a JSON object a line"},
     CHOICE(LIVE, &VALUE_FLAG, log_json, FORMATS, "text or json")},

    {{"requirepass", "PASSWORD", "\"\"", "clients of the proxy have to AUTH with it"},
     TEXT(SECRET | LIVE_SET, requirepass, "one password")},
    {{"admin-user", "NAME ...", "\"\"",
      "users that may use PROXY whatever their rights in Redis are; \"\": those with the right to CONFIG"},
     LISTED(RESTART, &VALUE_WORDS, admin_users, "one or more names of users")},

    {{"proto-max-bulk-len", "SIZE", "512mb", "longest argument of a request"},
     SIZE(LIVE, bulk_max, MEGABYTE, "a size of at least 1mb, like 512mb")},
    {{"client-query-buffer-limit", "SIZE", "1gb", "most bytes of a client's unanswered input"},
     SIZE(LIVE, query_buffer_limit, MEGABYTE, "a size of at least 1mb, like 1gb")},
    {{"client-output-buffer-limit", "CLASS HARD SOFT SECONDS", "normal 1gb 256mb 60 pubsub 32mb 8mb 60",
      "drops a client with so much unread output: at once (HARD), or after SECONDS (SOFT)"},
     LISTED(LIVE, &VALUE_OUTPUT_LIMIT, output_limit_hard, "CLASS HARD SOFT SECONDS, like normal 64mb 16mb 60")},

    {{"upstream", "embedded | standalone ADDRESS | cluster ADDRESS ... | sentinel NAME ADDRESS ...", "embedded",
      "the Redis behind the proxy"},
     LISTED(RESTART, &VALUE_UPSTREAM, upstream,
            "embedded, standalone HOST:PORT, cluster HOST:PORT ... or sentinel NAME HOST:PORT ...")},
    LOGIN("upstream", LIVE_LOGIN, upstream_login, "itself logs in"),
    {{"upstream-password-refresh", "TIME", "5m", "how often these files are read, and commands run, again"},
     TIME(LIVE, upstream_password_refresh_ms, "a time from 1ms to 1d, like 5m")},
    {{"share-upstream-user", "yes|no|auto", "auto",
      "clients that have not logged in run as upstream-user; auto: if all clients are local, or with requirepass"},
     CHOICE(RESTART, &VALUE_CHOICE, share_upstream_user, NO_YES_AUTO, "yes, no or auto")},
    LOGIN("sentinel", LIVE, sentinel_login, "logs in to Sentinels"),
    {{"upstream-connections", "N", "1", "shared connections to each node, per thread"},
     NUMBER(RESTART, upstream_connections, 1, 64)},
    {{"max-pinned-connections", "N", "0",
      "connections to a node that single clients may have for themselves; 0: 3/4 of its maxclients"},
     NUMBER(RESTART, pinned_node, 0, INT_MAX)},
    {{"max-pinned-connections-per-client", "N", "0", "how many of these the clients of one address may have; 0: half"},
     NUMBER(RESTART, pinned_client, 0, INT_MAX)},
    {{"upstream-timeout", "TIME", "5s", "a connection that owes a reply and is silent for so long is dropped"},
     TIME(LIVE, upstream_timeout_ms, "a time from 1ms to 1d, like 5s")},
    {{"dns-refresh", "TIME", "5s", "how often the host name of a standalone upstream is looked up"},
     TIME(LIVE, dns_refresh_ms, "a time from 1ms to 1d, like 5s")},
    {{"slowlog-log-slower-than", "MICROSECONDS", "10000", "requests that take so long are in PROXY SLOWLOG; -1: none"},
     NUMBER(LIVE, slowlog_slower_us, -1, INT64_MAX / 2)},
    {{"slowlog-max-len", "N", "128", "how many slow requests PROXY SLOWLOG keeps"},
     NUMBER(LIVE, slowlog_max, 0, 1000000)},
    {{"latency-tracking", "yes|no", "no", "counts how long requests take by command and by client: PROXY LATENCY"},
     YES_NO(LIVE, latency_tracking)},

    {{"read-from", "masters|replicas|nearest", "masters",
      "which nodes of a cluster or behind Sentinels answer reads of keys under no rule"},
     CHOICE(RESTART, &VALUE_CHOICE, read_from, READS, "masters, replicas or nearest")},
    {{"read-after-write", "TIME", "1s", "for so long after a client's write the master answers its reads of the slot"},
     TIME(LIVE, read_after_write_ms, "a time from 1ms to 1d, like 1s")},

    {{"upstream-tls", "yes|no", "no", "connections to nodes (and Sentinels) use TLS; never over a unix socket"},
     YES_NO(RESTART, upstream_tls_on)},
    {{"upstream-tls-ca-cert-file", "FILE", "\"\"", "the authorities that vouch for nodes, PEM; \"\": the system's"},
     TEXT(LIVE, upstream_tls.ca_cert_file, A_FILE)},
    {{"upstream-tls-ca-cert-dir", "FOLDER", "\"\"", "the same as a folder of files, prepared by openssl rehash"},
     TEXT(LIVE, upstream_tls.ca_cert_dir, "one folder")},
    {{"upstream-tls-verify", "yes|ca|no", "yes",
      "what nodes must prove: certificate and host name; the certificate alone; nothing"},
     CHOICE(LIVE, &VALUE_CHOICE, upstream_tls_verify, VERIFIES, "yes, ca or no")},
    {{"upstream-tls-server-name", "NAME", "\"\"",
      "the name in the nodes' certificates; \"\": the host of each address"},
     TEXT(LIVE, upstream_tls_server_name, "one host name")},
    {{"upstream-tls-cert-file", "FILE", "\"\"", "the certificate that the proxy shows to nodes, PEM"},
     TEXT(LIVE, upstream_tls.cert_file, A_FILE)},
    {{"upstream-tls-key-file", "FILE", "\"\"", "its private key, PEM"}, TEXT(LIVE, upstream_tls.key_file, A_FILE)},
    {{"upstream-tls-key-file-pass", "PASSPHRASE", "\"\"", "opens an encrypted upstream-tls-key-file"},
     TEXT(SECRET | LIVE, upstream_tls.key_file_pass, A_PASSPHRASE)},

    {{"cluster-announce-ip", "HOST", "\"\"",
      "the proxy's address in CLUSTER SLOTS; \"\": the one a client connected to"},
     TEXT(RESTART, cluster_announce_ip, "one address or host name")},
    {{"cluster-announce-port", "PORT", "0", "the proxy's port in CLUSTER SLOTS; 0: the one a client connected to"},
     NUMBER(LIVE, cluster_announce_port, 0, 65535)},
    {{"cluster-announce-tls-port", "PORT", "0", "the same for clients that came over TLS"},
     NUMBER(LIVE, cluster_announce_tls_port, 0, 65535)},

    {{"lock", "PATTERN [OPTION VALUE] ...", "lock:*", "a lock rule; the first that matches a key applies"},
     WORDS(LIVE, &VALUE_LOCK, rules, 1, WORDS_ANY, "a key pattern, then options and their values")},
    {{"fence", "PATTERN by LOCK [OPTION VALUE] ...", "\"\"",
      "data that is written under a lock: a client that has lost the lock can't write it"},
     WORDS(LIVE, &VALUE_FENCE, rules, 1, WORDS_ANY, "PATTERN by LOCK, then options and their values")},
    {{"witness", "HOST:PORT ... | embedded", "\"\"",
      "Redis servers that remember the holders of locks under quorum yes: 1 to 5, without replicas"},
     WORDS(LIST | LIVE, &VALUE_WITNESS, witnesses, 1, 5, "1 to 5 addresses, HOST:PORT")},
    LOGIN("witness", LIVE, witness_login, "logs in to witnesses"),
    {{"witness-tls", "yes|no", "no", "connections to witnesses use TLS, with the files of upstream-tls-*"},
     YES_NO(RESTART, witness_tls)},
    {{"witness-timeout", "TIME", "500ms", "how long witnesses are waited for; at most a quarter of the lease"},
     TIME(RESTART, witness_timeout_ms, "a time from 1ms to 1d, like 500ms")},
    {{"witness-namespace", "NAME", "\"\"", "one for each Redis whose locks the same witnesses remember"},
     TEXT(RESTART, witness_namespace, "one name")},
    {{"witness-quarantine", "TIME", "10m",
      "a witness that was started again confirms nothing for so long; no lock that it confirms lasts longer"},
     TIME(RESTART, witness_quarantine_ms, "a time from 1ms to 1d, like 10m")},
    {{"guard-records", "hash|short", "hash", "the form in which plain locks get their guard records"},
     CHOICE(LIVE, &VALUE_FLAG, short_records, RECORDS, "hash or short")},
    {{"client-identity", "FIELD ...", "address user name", "what makes two connections the same client"},
     LISTED(RESTART, &VALUE_BITS, client_identity, "one or more of address, user, name and port"),
     .names = IDENTITIES},

    {{"admin-port", "PORT", "0", "HTTP: metrics, health and the status page; 0: off"},
     NUMBER(RESTART, admin_port, 0, 65535)},
    {{"admin-bind", "ADDRESS", "127.0.0.1", "the address of the admin port"},
     ONE(RESTART, &VALUE_ADDRESS, admin_bind, "one address")},
    {{"admin-host", "NAME ...", "\"\"",
      "names under which the admin port is asked for, besides addresses, localhost and this machine's; *: any"},
     LISTED(RESTART, &VALUE_WORDS, admin_hosts, "one or more host names")},
};
enum { TABLE_COUNT = ARRAY_SIZE(TABLE) };

/* Stands for every other tls-* directive of a redis.conf: recognised, and refused. */
static const struct directive TLS_OTHER = {
    {"tls-*", "", "", ""}, SECRET, .kind = &VALUE_TLS_OTHER, .words_min = 1, .words_max = WORDS_ANY};

size_t config_directive_count(void) {
    return TABLE_COUNT;
}

struct config_directive config_directive_get(size_t i) {
    return TABLE[i].shown;
}

bool config_directive_live(size_t i) {
    return TABLE[i].flags & (LIVE | LIVE_SET | LIVE_LOGIN);
}

const struct directive *directive_find(const char *name) {
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        if (strcasecmp(name, TABLE[i].shown.name) == 0)
            return &TABLE[i];
    }
    return strncasecmp(name, "tls-", 4) == 0 ? &TLS_OTHER : NULL;
}

size_t directive_index(const struct directive *d) {
    return d == &TLS_OTHER ? TABLE_COUNT : (size_t)(d - TABLE);
}

/* The number of single edits (insert, delete, replace, swap neighbours) from one name to another, for names of up to
 * NAME_MAX_LEN bytes; a large number for longer ones. */
static size_t words_distance(const char *a, const char *b) {
    size_t la = strlen(a), lb = strlen(b);
    size_t far[NAME_MAX_LEN + 1][NAME_MAX_LEN + 1]; /* from the first i bytes of a to the first j bytes of b */
    if (la > NAME_MAX_LEN || lb > NAME_MAX_LEN)
        return 2 * NAME_MAX_LEN;
    for (size_t i = 0; i <= la; i++)
        for (size_t j = 0; j <= lb; j++) {
            size_t best = i > 0 && j > 0 ? far[i - 1][j - 1] + (a[i - 1] != b[j - 1]) : i + j;
            if (i > 0 && far[i - 1][j] < best)
                best = far[i - 1][j] + 1;
            if (j > 0 && far[i][j - 1] < best)
                best = far[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && far[i - 2][j - 2] < best)
                best = far[i - 2][j - 2] + 1;
            far[i][j] = best;
        }
    return far[la][lb];
}

const struct directive *directive_nearest(const char *name) {
    size_t len = strlen(name);
    const struct directive *nearest = NULL;
    size_t best = len < 5 ? 2 : len / 3 + 1; /* a name further away is not similar */
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        size_t distance = words_distance(name, TABLE[i].shown.name);
        if (distance < best) {
            best = distance;
            nearest = &TABLE[i];
        }
    }
    return nearest;
}

void directive_defaults(struct config_build *b, bool locks) {
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        const struct directive *d = &TABLE[i];
        struct config_words words = {0};
        if (locks ? d->kind != &VALUE_LOCK || b->lock_given : d->kind == &VALUE_LOCK || d->kind == &VALUE_FENCE)
            continue;
        if (words_split(&words, d->shown.fallback, strlen(d->shown.fallback)) == NULL && words.count > 0)
            (void)!directive_apply(b, d, &words); /* it can't be wrong: the unit test reads all defaults */
        words_clear(&words);
    }
}

/* ---- values in force ------------------------------------------------------------------------------ */

bool config_shown(size_t i) {
    return TABLE[i].kind->show != NULL;
}

/* The text of a directive whose value is a text. */
static const char *text_of(const struct config *c, const struct directive *d) {
    const char *text;
    memcpy(&text, (const char *)c + d->offset, sizeof(text));
    return text;
}

void config_show(const struct config *config, size_t i, struct text *out) {
    const struct directive *d = &TABLE[i];
    if (!(d->flags & SECRET))
        d->kind->show(config, d, out);
    else if (text_of(config, d))
        text_printf(out, "(set)");
}

/* Whether the addresses are those of witnesses that the proxy has started. */
static bool started_here(const struct config_words *witnesses) {
    return witnesses->count > 0 && strncmp(witnesses->words[0], "unix:", 5) == 0;
}

static bool differs(const struct config *a, const struct config *b, const struct directive *d) {
    struct text x = {0}, y = {0};
    if (d->kind == &VALUE_WITNESS && config_witness_embedded(b) && started_here(&a->witnesses))
        return false;
    d->kind->show(a, d, &x);
    d->kind->show(b, d, &y);
    bool different = x.len != y.len || (x.len > 0 && memcmp(x.data, y.data, x.len) != 0);
    memory_forget(x.data, x.len); /* they may be passwords */
    memory_forget(y.data, y.len);
    return different;
}

/* Whether a reload may apply a value. */
static bool is_live(const struct config *a, const struct config *b, const struct directive *d) {
    if (d->kind == &VALUE_PROXY_PROTOCOL &&
        config_logs_in(a)) { /* a reload must not change which user clients without login have */
        struct config changed = *a;
        changed.proxy_protocol = b->proxy_protocol;
        return config_shares_user(a) == config_shares_user(&changed);
    }
    if (d->kind == &VALUE_WITNESS) /* witnesses may change, not come or go as a whole */
        return a->witnesses.count > 0 && b->witnesses.count > 0 && !started_here(&a->witnesses) &&
               !config_witness_embedded(b);
    if (d->flags & LIVE_LOGIN) /* a login changes which user clients without login have */
        return config_logs_in(a) && config_logs_in(b);
    if (d->flags & LIVE_SET)
        return text_of(a, d) && text_of(b, d);
    return d->flags & LIVE;
}

size_t config_keep(struct config *fresh, const struct config *in_force, const char *switched, struct text *waiting) {
    size_t count = 0;
    bool was_switched =
        switched && fresh->upstream == CONFIG_STANDALONE && strcmp(fresh->upstream_addresses.words[0], switched) == 0;
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        const struct directive *d = &TABLE[i];
        if (!d->kind->show || is_live(in_force, fresh, d) || (was_switched && d->kind == &VALUE_UPSTREAM))
            continue;
        if (differs(in_force, fresh, d))
            text_printf(waiting, "%s%s", count++ > 0 ? " " : "", d->shown.name);
        char *value = (char *)fresh + d->offset;
        if (d->kind->drop)
            d->kind->drop(value);
        memcpy(value, (const char *)in_force + d->offset, d->kind->bytes);
        if (d->kind->own)
            d->kind->own(value);
    }
    return count;
}

void config_drop_values(struct config *config) {
    for (size_t i = 0; i < TABLE_COUNT; i++)
        if (TABLE[i].kind->drop)
            TABLE[i].kind->drop((char *)config + TABLE[i].offset);
}

/* ---- checks of several directives together ------------------------------------------------------ */

static bool is_loopback(const char *address) {
    unsigned char bytes[4];
    address += *address == '-';
    if (inet_pton(AF_INET, address, bytes) == 1)
        return bytes[0] == 127;
    return strcmp(address, "::1") == 0 || strcasecmp(address, "localhost") == 0;
}

bool config_logs_in(const struct config *config) {
    const struct config_login *l = &config->upstream_login;
    return l->password || l->password_file || l->password_command;
}

struct config_own_login config_own_login(const struct config *config, size_t i) {
    const struct config_own_login logins[CONFIG_LOGINS] = {
        {"upstream", &config->upstream_login},
        {"sentinel", &config->sentinel_login},
        {"witness", &config->witness_login},
    };
    return logins[i];
}

bool config_is_local(const struct config *config) {
    bool local = true;
    for (size_t i = 0; i < config->bind.count; i++)
        local = local && is_loopback(config->bind.words[i]);
    return local || (config->port == 0 && config->tls_port == 0);
}

bool config_shares_user(const struct config *config) {
    if (config->share_upstream_user != CONFIG_SHARE_AUTO)
        return config->share_upstream_user == CONFIG_SHARE_YES;
    /* behind a balancer that sends PROXY headers, the connection's own address says nothing about the client */
    return (config_is_local(config) && networks_are_none(config->proxy_protocol)) || config->requirepass;
}

/* Refuses a user without a password, which Redis silently ignores, and two ways to the password. */
static void check_login(const struct config *c, struct config_errors *e, struct config_own_login own) {
    char user[40], password[40], file[40], command[40];
    const struct config_login *l = own.login;
    snprintf(user, sizeof(user), "%s-user", own.name);
    snprintf(password, sizeof(password), "%s-password", own.name);
    snprintf(file, sizeof(file), "%s-password-file", own.name);
    snprintf(command, sizeof(command), "%s-password-command", own.name);
    bool has = l->password || l->password_file || l->password_command;
    if (l->user && !has && !config_is_wrong(e, password))
        config_refuse(e, c, user, "%s: expected %s too (any word for a user with nopass)", user, password);
    if (l->password_file && (l->password || l->password_command))
        config_refuse(e, c, file, "%s: expected it alone, without %s and %s", file, password, command);
    if (l->password_command && l->password)
        config_refuse(e, c, command, "%s: expected it alone, without %s", command, password);
}

bool config_quorum_fits(const struct config *c, char *why, size_t size) {
    int64_t longest_ms = lock_promise_longest_ms(c->witness_quarantine_ms, c->witness_timeout_ms);
    for (size_t i = 0; i < lock_rules_count(c->rules); i++) {
        const struct lock_rule *rule = lock_rules_get(c->rules, i);
        int64_t ms = rule->handover_ms > rule->lease_ms ? rule->handover_ms : rule->lease_ms;
        char pattern[80];
        lock_rule_word_show(rule->pattern, pattern, sizeof(pattern));
        if (rule->quorum != LOCK_QUORUM_YES)
            continue;
        if (c->witnesses.count == 0) {
            snprintf(why, size, "'%s' quorum yes: expected 'witness' too, best with 3 addresses", pattern);
            return false;
        }
        if (ms > longest_ms) {
            snprintf(why, size,
                     "'%s' quorum yes: expected a lease and a handover of at most %lld ms, or a longer "
                     "witness-quarantine",
                     pattern, (long long)(longest_ms > 0 ? longest_ms : 0));
            return false;
        }
    }
    return true;
}

void config_check_together(const struct config *c, struct config_errors *e) {
    for (size_t i = 0; i < CONFIG_LOGINS; i++)
        check_login(c, e, config_own_login(c, i));
    char why[CONFIG_WHY_MAX];
    if (!config_is_wrong(e, "witness") && !config_is_wrong(e, "lock") && !config_quorum_fits(c, why, sizeof(why)))
        config_refuse(e, c, "lock", "lock %s", why);
    if (c->read_from != CONFIG_READ_MASTERS && c->upstream != CONFIG_CLUSTER && c->upstream != CONFIG_SENTINEL &&
        !config_is_wrong(e, "upstream"))
        config_refuse(
            e, c, "read-from",
            "read-from: expected masters, or upstream cluster or sentinel, which tell the proxy which replicas "
            "there are");
    if (c->share_upstream_user == CONFIG_SHARE_NO && c->requirepass)
        config_refuse(e, c, "share-upstream-user",
                      "share-upstream-user no: expected no requirepass, which takes the clients' logins");
}
