/*
 * All directives in one table. Defaults are texts, read by the same readers as values in a file. It does not know the
 * place of a directive: errors say what was expected, and the caller adds place, name and value.
 */
#include <limits.h>
#include <string.h>
#include <strings.h>

#include "proxy/config/private.h"

enum {
    BIND_MAX = 16, /* as in Redis */
    WORDS_ANY = 1000,
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

#define AT(member)                          offsetof(struct config, member)
#define NUMBER(member, low, high)           ONE(config_read_number, NULL), .offset = AT(member), .min = (low), .max = (high)
#define SIZE(member, low, what)             ONE(config_read_size, what), .offset = AT(member), .min = (low), .max = INT64_MAX / 2
#define TEXT(member, what)                  ONE(config_read_text, what), .offset = AT(member)
#define ONE(reader, what)                   .read = (reader), .words_min = 1, .words_max = 1, .expected = (what)
#define CHOICE(reader, member, words, what) ONE(reader, what), .offset = AT(member), .names = (words)
#define YES_NO(member)                      CHOICE(config_read_flag, member, NO_YES, "yes or no")
#define TIME(member, what)                  ONE(config_read_time, what), .offset = AT(member), .min = 1, .max = DAY_MS
#define A_FILE                              "one file name"
#define A_COMMAND                           "one command, in quotes"
#define A_PASSPHRASE                        "one passphrase"
#define LIST(reader, what)                  .read = (reader), .words_min = 1, .words_max = WORDS_ANY, .expected = (what)

static const struct directive TABLE[] = {
    {{"include", "FILE", "", "reads another file here; a relative path starts at the working directory, * ? [] work"},
     ONE(config_read_include, "a file name")},

    {{"bind", "ADDRESS ...", "127.0.0.1 -::1", "addresses to listen on; one with - in front may be missing"},
     .read = config_read_bind,
     .offset = AT(bind),
     .words_min = 1,
     .words_max = BIND_MAX,
     .flags = DIRECTIVE_LIST,
     .expected = "1 to 16 addresses"},
    {{"port", "PORT", "6380", "where applications connect; 0: no TCP"}, NUMBER(port, 0, 65535)},
    {{"unixsocket", "PATH", "\"\"", "a unix socket to listen on as well"},
     ONE(config_read_socket_path, "one path"),
     .offset = AT(unixsocket)},
    {{"unixsocketperm", "MODE", "0", "permissions of the unix socket, octal; 0: as the umask has it"},
     ONE(config_read_octal, "an octal number from 0 to 777"),
     .offset = AT(unixsocketperm),
     .max = 0777},
    {{"timeout", "SECONDS", "0", "closes clients that are idle for so long; 0: never"},
     NUMBER(timeout_s, 0, INT_MAX),
     .flags = DIRECTIVE_LIVE},
    {{"tcp-keepalive", "SECONDS", "60", "TCP keep-alive of client connections; 0: none"},
     NUMBER(tcp_keepalive_s, 0, INT_MAX),
     .flags = DIRECTIVE_LIVE},
    {{"protected-mode", "yes|no", "yes",
      "a Redis in protected mode without a password serves its own machine alone, and so does the proxy"},
     YES_NO(protected_mode),
     .flags = DIRECTIVE_LIVE},
    {{"tcp-backlog", "N", "511", "length of the queue of connections not yet accepted"},
     NUMBER(tcp_backlog, 0, INT_MAX)},
    {{"reuse-port", "yes|no", "no",
      "other proxies may listen on the same port: for a restart without lost connections"},
     YES_NO(reuse_port)},
    {{"maxclients", "N", "10000", "how many clients may be connected at once"},
     NUMBER(maxclients, 1, UINT_MAX),
     .flags = DIRECTIVE_LIVE},

    {{"proxy-protocol", "yes|no|ADDRESS ...", "no",
      "connections from these addresses begin with a PROXY protocol header, which names the client; yes: all"},
     LIST(config_read_proxy_protocol, "yes, no, or addresses and networks of load balancers"),
     .flags = DIRECTIVE_LIST | DIRECTIVE_LIVE},

    {{"tls-port", "PORT", "0", "where applications connect over TLS; 0: nowhere"}, NUMBER(tls_port, 0, 65535)},
    {{"tls-cert-file", "FILE", "\"\"", "the proxy's certificate and those between it and its authority, PEM"},
     TEXT(tls.cert_file, A_FILE),
     .flags = DIRECTIVE_LIVE},
    {{"tls-key-file", "FILE", "\"\"", "the certificate's private key, PEM"},
     TEXT(tls.key_file, A_FILE),
     .flags = DIRECTIVE_LIVE},
    {{"tls-key-file-pass", "PASSPHRASE", "\"\"", "opens an encrypted tls-key-file"},
     TEXT(tls.key_file_pass, A_PASSPHRASE),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE},
    {{"tls-ca-cert-file", "FILE", "\"\"", "the authorities that vouch for clients' certificates, PEM"},
     TEXT(tls.ca_cert_file, A_FILE),
     .flags = DIRECTIVE_LIVE},
    {{"tls-ca-cert-dir", "FOLDER", "\"\"", "the same as a folder of files, prepared by openssl rehash"},
     TEXT(tls.ca_cert_dir, "one folder"),
     .flags = DIRECTIVE_LIVE},
    {{"tls-auth-clients", "yes|no|optional", "yes",
      "whether clients need a certificate; optional: it is verified if the client shows one"},
     CHOICE(config_read_choice, tls_auth_clients, OPTIONAL, "yes, no or optional"),
     .flags = DIRECTIVE_LIVE},
    {{"tls-protocols", "VERSION ...", "TLSv1.2 TLSv1.3", "versions of TLS, for clients and nodes"},
     LIST(config_read_bits, "one or more of TLSv1, TLSv1.1, TLSv1.2 and TLSv1.3"),
     .offset = AT(tls_protocols),
     .names = TLS_VERSIONS,
     .flags = DIRECTIVE_LIST | DIRECTIVE_LIVE},
    {{"tls-ciphers", "LIST", "\"\"", "ciphers of TLSv1.2 and before, as OpenSSL writes them; \"\": OpenSSL's choice"},
     TEXT(tls_ciphers, "one list of ciphers, with colons between them"),
     .flags = DIRECTIVE_LIVE},
    {{"tls-ciphersuites", "LIST", "\"\"", "ciphersuites of TLSv1.3; \"\": OpenSSL's choice"},
     TEXT(tls_ciphersuites, "one list of ciphersuites, with colons between them"),
     .flags = DIRECTIVE_LIVE},
    {{"tls-prefer-server-ciphers", "yes|no", "no", "the proxy's order of ciphers counts, not the client's"},
     YES_NO(tls_prefer_server_ciphers),
     .flags = DIRECTIVE_LIVE},
    {{"tls-dh-params-file", "FILE", "\"\"", "Diffie-Hellman parameters for old TLSv1.2 clients, PEM"},
     TEXT(tls_dh_params_file, A_FILE),
     .flags = DIRECTIVE_LIVE},
    {{"tls-session-caching", "yes|no", "yes", "clients that come again may shorten the handshake"},
     YES_NO(tls_session_caching),
     .flags = DIRECTIVE_LIVE},
    {{"tls-session-cache-size", "N", "20480", "how many TLS sessions are kept for that"},
     NUMBER(tls_session_cache_size, 0, INT_MAX),
     .flags = DIRECTIVE_LIVE},
    {{"tls-session-cache-timeout", "SECONDS", "300", "how long a TLS session is kept for that"},
     NUMBER(tls_session_cache_timeout_s, 1, INT_MAX),
     .flags = DIRECTIVE_LIVE},
    {{"tls-handshake-timeout", "TIME", "10s", "a client that takes longer for its TLS handshake is closed"},
     TIME(tls_handshake_ms, "a time from 1ms to 1d, like 10s"),
     .flags = DIRECTIVE_LIVE},

    {{"threads", "N", "1", "event-loop threads"}, NUMBER(threads, 1, 64)},
    {{"supervised", "no|systemd|auto", "no", "tells systemd when clients can connect"},
     ONE(config_read_supervised, "no, systemd or auto"),
     .offset = AT(supervised)},
    {{"shutdown-timeout", "SECONDS", "600", "how long clients are served on when another process takes over"},
     NUMBER(shutdown_timeout_s, 0, 86400),
     .flags = DIRECTIVE_LIVE},
    {{"take-over", "same|switch", "same", "whether a new process may take over (SIGUSR2) at another Redis"},
     CHOICE(config_read_flag, take_over_switch, TAKE_OVERS, "same or switch")},
    {{"finish-timeout", "SECONDS", "5", "how long a stop may wait for what is in flight; shutdown-timeout at most"},
     NUMBER(finish_timeout_s, 0, 86400),
     .flags = DIRECTIVE_LIVE},
    {{"pidfile", "PATH", "\"\"", "a file for the process id"}, TEXT(pidfile, "one path")},
    {{"loglevel", "debug|verbose|notice|warning|nothing", "notice", "what is logged"},
     CHOICE(config_read_choice, loglevel, LEVELS, "debug, verbose, notice, warning or nothing"),
     .flags = DIRECTIVE_LIVE},
    {{"logfile", "PATH", "\"\"", "a file for the log; \"\": standard output"},
     TEXT(logfile, "one path"),
     .flags = DIRECTIVE_EMPTY},
    {{"log-format", "text|json", "text", "Redis's log lines, or a JSON object a line"},
     CHOICE(config_read_flag, log_json, FORMATS, "text or json"),
     .flags = DIRECTIVE_LIVE},

    {{"requirepass", "PASSWORD", "\"\"", "clients of the proxy have to AUTH with it"},
     TEXT(requirepass, "one password"),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE_SET},
    {{"admin-user", "NAME ...", "\"\"",
      "users that may use PROXY whatever their rights in Redis are; \"\": those with the right to CONFIG"},
     LIST(config_read_words, "one or more names of users"),
     .offset = AT(admin_users),
     .flags = DIRECTIVE_LIST},

    {{"proto-max-bulk-len", "SIZE", "512mb", "longest argument of a request"},
     SIZE(bulk_max, MEGABYTE, "a size of at least 1mb, like 512mb"),
     .flags = DIRECTIVE_LIVE},
    {{"client-query-buffer-limit", "SIZE", "1gb", "most bytes of a client's unanswered input"},
     SIZE(query_buffer_limit, MEGABYTE, "a size of at least 1mb, like 1gb"),
     .flags = DIRECTIVE_LIVE},
    {{"client-output-buffer-limit", "CLASS HARD SOFT SECONDS", "normal 1gb 256mb 60 pubsub 32mb 8mb 60",
      "drops a client with so much unread output: at once (HARD), or after SECONDS (SOFT)"},
     LIST(config_read_output_limit, "CLASS HARD SOFT SECONDS, like normal 64mb 16mb 60"),
     .flags = DIRECTIVE_LIST | DIRECTIVE_LIVE},

    {{"upstream", "embedded | standalone ADDRESS | cluster ADDRESS ... | sentinel NAME ADDRESS ...", "embedded",
      "the Redis behind the proxy"},
     LIST(config_read_upstream, "embedded, standalone HOST:PORT, cluster HOST:PORT ... or sentinel NAME HOST:PORT ..."),
     .flags = DIRECTIVE_LIST},
    {{"upstream-user", "NAME", "\"\"", "the user name with which the proxy itself logs in"},
     TEXT(upstream_login.user, "one user name"),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE_LOGIN},
    {{"upstream-password", "PASSWORD", "\"\"", "the password with which the proxy itself logs in"},
     TEXT(upstream_login.password, "one password"),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE_LOGIN},
    {{"upstream-password-file", "FILE", "\"\"", "a file with that password"},
     TEXT(upstream_login.password_file, A_FILE),
     .flags = DIRECTIVE_LIVE_LOGIN},
    {{"upstream-password-command", "COMMAND", "\"\"", "a command of sh that prints that password"},
     TEXT(upstream_login.password_command, A_COMMAND),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE_LOGIN},
    {{"upstream-password-refresh", "TIME", "5m", "how often these files are read, and commands run, again"},
     TIME(upstream_password_refresh_ms, "a time from 1ms to 1d, like 5m"),
     .flags = DIRECTIVE_LIVE},
    {{"share-upstream-user", "yes|no|auto", "auto",
      "clients that have not logged in run as upstream-user; auto: if all clients are local, or with requirepass"},
     CHOICE(config_read_choice, share_upstream_user, NO_YES_AUTO, "yes, no or auto")},
    {{"sentinel-user", "NAME", "\"\"", "the user name with which the proxy logs in to Sentinels"},
     TEXT(sentinel_login.user, "one user name"),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE},
    {{"sentinel-password", "PASSWORD", "\"\"", "the password with which the proxy logs in to Sentinels"},
     TEXT(sentinel_login.password, "one password"),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE},
    {{"sentinel-password-file", "FILE", "\"\"", "a file with that password"},
     TEXT(sentinel_login.password_file, A_FILE),
     .flags = DIRECTIVE_LIVE},
    {{"sentinel-password-command", "COMMAND", "\"\"", "a command of sh that prints that password"},
     TEXT(sentinel_login.password_command, A_COMMAND),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE},
    {{"upstream-connections", "N", "1", "shared connections to each node, per thread"},
     NUMBER(upstream_connections, 1, 64)},
    {{"max-pinned-connections", "N", "0",
      "connections to a node that single clients may have for themselves; 0: 3/4 of its maxclients"},
     NUMBER(pinned_node, 0, INT_MAX)},
    {{"max-pinned-connections-per-client", "N", "0", "how many of these the clients of one address may have; 0: half"},
     NUMBER(pinned_client, 0, INT_MAX)},
    {{"upstream-timeout", "TIME", "5s", "a connection that owes a reply and is silent for so long is dropped"},
     TIME(upstream_timeout_ms, "a time from 1ms to 1d, like 5s"),
     .flags = DIRECTIVE_LIVE},
    {{"dns-refresh", "TIME", "5s", "how often the host name of a standalone upstream is looked up"},
     TIME(dns_refresh_ms, "a time from 1ms to 1d, like 5s"),
     .flags = DIRECTIVE_LIVE},
    {{"slowlog-log-slower-than", "MICROSECONDS", "10000", "requests that take so long are in PROXY SLOWLOG; -1: none"},
     NUMBER(slowlog_slower_us, -1, INT64_MAX / 2),
     .flags = DIRECTIVE_LIVE},
    {{"slowlog-max-len", "N", "128", "how many slow requests PROXY SLOWLOG keeps"},
     NUMBER(slowlog_max, 0, 1000000),
     .flags = DIRECTIVE_LIVE},
    {{"latency-tracking", "yes|no", "no", "counts how long requests take by command and by client: PROXY LATENCY"},
     YES_NO(latency_tracking),
     .flags = DIRECTIVE_LIVE},

    {{"read-from", "masters|replicas|nearest", "masters",
      "which nodes of a cluster or behind Sentinels answer reads of keys under no rule"},
     CHOICE(config_read_choice, read_from, READS, "masters, replicas or nearest")},
    {{"read-after-write", "TIME", "1s", "for so long after a client's write the master answers its reads of the slot"},
     TIME(read_after_write_ms, "a time from 1ms to 1d, like 1s"),
     .flags = DIRECTIVE_LIVE},

    {{"upstream-tls", "yes|no", "no", "connections to nodes (and Sentinels) use TLS; never over a unix socket"},
     YES_NO(upstream_tls_on)},
    {{"upstream-tls-ca-cert-file", "FILE", "\"\"", "the authorities that vouch for nodes, PEM; \"\": the system's"},
     TEXT(upstream_tls.ca_cert_file, A_FILE),
     .flags = DIRECTIVE_LIVE},
    {{"upstream-tls-ca-cert-dir", "FOLDER", "\"\"", "the same as a folder of files, prepared by openssl rehash"},
     TEXT(upstream_tls.ca_cert_dir, "one folder"),
     .flags = DIRECTIVE_LIVE},
    {{"upstream-tls-verify", "yes|ca|no", "yes",
      "what nodes must prove: certificate and host name; the certificate alone; nothing"},
     CHOICE(config_read_choice, upstream_tls_verify, VERIFIES, "yes, ca or no"),
     .flags = DIRECTIVE_LIVE},
    {{"upstream-tls-server-name", "NAME", "\"\"",
      "the name in the nodes' certificates; \"\": the host of each address"},
     TEXT(upstream_tls_server_name, "one host name"),
     .flags = DIRECTIVE_LIVE},
    {{"upstream-tls-cert-file", "FILE", "\"\"", "the certificate that the proxy shows to nodes, PEM"},
     TEXT(upstream_tls.cert_file, A_FILE),
     .flags = DIRECTIVE_LIVE},
    {{"upstream-tls-key-file", "FILE", "\"\"", "its private key, PEM"},
     TEXT(upstream_tls.key_file, A_FILE),
     .flags = DIRECTIVE_LIVE},
    {{"upstream-tls-key-file-pass", "PASSPHRASE", "\"\"", "opens an encrypted upstream-tls-key-file"},
     TEXT(upstream_tls.key_file_pass, A_PASSPHRASE),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE},

    {{"cluster-announce-ip", "HOST", "\"\"",
      "the proxy's address in CLUSTER SLOTS; \"\": the one a client connected to"},
     TEXT(cluster_announce_ip, "one address or host name")},
    {{"cluster-announce-port", "PORT", "0", "the proxy's port in CLUSTER SLOTS; 0: the one a client connected to"},
     NUMBER(cluster_announce_port, 0, 65535),
     .flags = DIRECTIVE_LIVE},
    {{"cluster-announce-tls-port", "PORT", "0", "the same for clients that came over TLS"},
     NUMBER(cluster_announce_tls_port, 0, 65535),
     .flags = DIRECTIVE_LIVE},

    {{"lock", "PATTERN [OPTION VALUE] ...", "lock:*", "a lock rule; the first that matches a key applies"},
     LIST(config_read_lock, "a key pattern, then options and their values"),
     .flags = DIRECTIVE_LIVE},
    {{"fence", "PATTERN by LOCK [OPTION VALUE] ...", "\"\"",
      "data that is written under a lock: a client that has lost the lock can't write it"},
     LIST(config_read_fence, "PATTERN by LOCK, then options and their values"),
     .flags = DIRECTIVE_LIVE},
    {{"witness", "HOST:PORT ... | embedded", "\"\"",
      "Redis servers that remember the holders of locks under quorum yes: 1 to 5, without replicas"},
     .read = config_read_witness,
     .offset = AT(witnesses),
     .words_min = 1,
     .words_max = 5,
     .flags = DIRECTIVE_LIST | DIRECTIVE_LIVE,
     .expected = "1 to 5 addresses, HOST:PORT"},
    {{"witness-user", "NAME", "\"\"", "the user name with which the proxy logs in to witnesses"},
     TEXT(witness_login.user, "one user name"),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE},
    {{"witness-password", "PASSWORD", "\"\"", "the password with which the proxy logs in to witnesses"},
     TEXT(witness_login.password, "one password"),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE},
    {{"witness-password-file", "FILE", "\"\"", "a file with that password"},
     TEXT(witness_login.password_file, A_FILE),
     .flags = DIRECTIVE_LIVE},
    {{"witness-password-command", "COMMAND", "\"\"", "a command of sh that prints that password"},
     TEXT(witness_login.password_command, A_COMMAND),
     .flags = DIRECTIVE_SECRET | DIRECTIVE_LIVE},
    {{"witness-tls", "yes|no", "no", "connections to witnesses use TLS, with the files of upstream-tls-*"},
     YES_NO(witness_tls)},
    {{"witness-timeout", "TIME", "500ms", "how long witnesses are waited for; at most a quarter of the lease"},
     TIME(witness_timeout_ms, "a time from 1ms to 1d, like 500ms")},
    {{"witness-namespace", "NAME", "\"\"", "one for each Redis whose locks the same witnesses remember"},
     TEXT(witness_namespace, "one name")},
    {{"witness-quarantine", "TIME", "10m",
      "a witness that was started again confirms nothing for so long; no lock that it confirms lasts longer"},
     TIME(witness_quarantine_ms, "a time from 1ms to 1d, like 10m")},
    {{"guard-records", "hash|short", "hash", "the form in which plain locks get their guard records"},
     CHOICE(config_read_flag, short_records, RECORDS, "hash or short"),
     .flags = DIRECTIVE_LIVE},
    {{"client-identity", "FIELD ...", "address user name", "what makes two connections the same client"},
     LIST(config_read_bits, "one or more of address, user, name and port"),
     .offset = AT(client_identity),
     .names = IDENTITIES,
     .flags = DIRECTIVE_LIST},

    {{"admin-port", "PORT", "0", "HTTP: metrics, health and the status page; 0: off"}, NUMBER(admin_port, 0, 65535)},
    {{"admin-bind", "ADDRESS", "127.0.0.1", "the address of the admin port"},
     ONE(config_read_address, "one address"),
     .offset = AT(admin_bind)},
    {{"admin-host", "NAME ...", "\"\"",
      "names under which the admin port is asked for, besides addresses, localhost and this machine's; *: any"},
     LIST(config_read_words, "one or more host names"),
     .offset = AT(admin_hosts),
     .flags = DIRECTIVE_LIST},
};
enum { TABLE_COUNT = sizeof(TABLE) / sizeof(TABLE[0]) };

/* Stands for every other tls-* directive of a redis.conf: recognised, and refused. */
static const struct directive TLS_OTHER = {
    {"tls-*", "", "", ""}, LIST(config_read_tls_unknown, NULL), .flags = DIRECTIVE_SECRET};

size_t config_directive_count(void) {
    return TABLE_COUNT;
}

struct config_directive config_directive_get(size_t i) {
    return TABLE[i].shown;
}

bool config_directive_live(size_t i) {
    return TABLE[i].flags & (DIRECTIVE_LIVE | DIRECTIVE_LIVE_SET | DIRECTIVE_LIVE_LOGIN);
}

const struct directive *directive_find(const char *name) {
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        if (strcasecmp(name, TABLE[i].shown.name) == 0)
            return &TABLE[i];
    }
    return strncasecmp(name, "tls-", 4) == 0 ? &TLS_OTHER : NULL;
}

const struct directive *directive_get(size_t i) {
    return &TABLE[i];
}

size_t directive_index(const struct directive *d) {
    return d == &TLS_OTHER ? TABLE_COUNT : (size_t)(d - TABLE);
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

bool directive_apply(struct config_build *b, const struct directive *d, const struct config_words *words) {
    struct config_words split = {0};
    if (d->flags & DIRECTIVE_LIST && words->count == 1 && *words->words[0]) {
        const char *wrong = words_split(&split, words->words[0], strlen(words->words[0]));
        if (wrong) {
            words_clear(&split);
            return config_complain(b, "%s", wrong);
        }
        words = &split;
    }
    bool fits = words->count >= d->words_min && words->count <= d->words_max;
    bool done = fits ? d->read(b, d, words) : config_complain_expected(b, d);
    words_clear(&split);
    return done;
}

/* Applies a default. It can't be invalid: the unit test reads all defaults. */
static void apply_fallback(struct config_build *b, const struct directive *d) {
    struct config_words words = {0};
    if (words_split(&words, d->shown.fallback, strlen(d->shown.fallback)) == NULL && words.count > 0)
        (void)!directive_apply(b, d, &words);
    words_clear(&words);
}

void directive_defaults(struct config_build *b) {
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        if (TABLE[i].read != config_read_lock && TABLE[i].read != config_read_fence)
            apply_fallback(b, &TABLE[i]);
    }
}

void directive_default_locks(struct config_build *b) {
    if (!b->lock_given)
        apply_fallback(b, directive_find("lock"));
}
