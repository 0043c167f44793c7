/*
 * Configuration: one table of directives (name, type, default, range, help) read from a file in redis.conf's syntax and
 * from the command line. A configuration in force never changes: each thread holds a reference to the one that it uses,
 * and a reload hands out a new one.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/log.h"
#include "proxy/base/networks.h"
#include "proxy/lock/rule.h"

enum config_upstream { CONFIG_EMBEDDED, CONFIG_STANDALONE, CONFIG_CLUSTER, CONFIG_SENTINEL };

/* Fields of client-identity, as bits. */
enum { IDENTITY_ADDRESS = 1, IDENTITY_USER = 2, IDENTITY_NAME = 4, IDENTITY_PORT = 8 };

/* Which certificates are verified. NO: none. SOME: a client's if it shows one; a node's, but not its host name. YES:
 * all. */
enum config_verify { CONFIG_VERIFY_NO, CONFIG_VERIFY_SOME, CONFIG_VERIFY_YES };

/* read-from. */
enum config_read_from { CONFIG_READ_MASTERS, CONFIG_READ_REPLICAS, CONFIG_READ_NEAREST };

/* share-upstream-user. */
enum config_share { CONFIG_SHARE_NO, CONFIG_SHARE_YES, CONFIG_SHARE_AUTO };

/* Versions of TLS in tls-protocols, as bits. */
enum { CONFIG_TLS_1_0 = 1, CONFIG_TLS_1_1 = 2, CONFIG_TLS_1_2 = 4, CONFIG_TLS_1_3 = 8 };

/* The files of one side; NULL: not given. */
struct config_tls {
    char *cert_file, *key_file, *key_file_pass;
    char *ca_cert_file, *ca_cert_dir;
};

struct config_words {
    char **words;
    size_t count;
};

/* A login of the proxy's own. Each text may be NULL; at most one of the last three is given. */
struct config_login {
    char *user, *password, *password_file, *password_command;
};

struct config {
    atomic_uint refs;
    struct config_words bind;        /* default: 127.0.0.1 -::1, as redis.conf has it */
    int64_t port;                    /* 6380; 0: no TCP port */
    char *unixsocket;                /* NULL: none */
    int64_t unixsocketperm;          /* 0: as the umask sets it; octal in the file */
    int64_t timeout_s;               /* 0: idle clients are not closed */
    int64_t tcp_keepalive_s;         /* 60 */
    int64_t tcp_backlog;             /* 511 */
    bool protected_mode;             /* where Redis is in protected mode, only clients of this machine are let in */
    bool reuse_port;                 /* other processes may listen on the same port */
    int64_t maxclients;              /* 10000 */
    struct networks *proxy_protocol; /* whose connections begin with a PROXY header; never NULL */
    int64_t tls_port;                /* 0: none */
    struct config_tls tls;
    enum config_verify tls_auth_clients;  /* yes */
    unsigned tls_protocols;               /* CONFIG_TLS_ bits; for clients and nodes, as are the ciphers */
    char *tls_ciphers, *tls_ciphersuites; /* NULL: OpenSSL's */
    bool tls_prefer_server_ciphers;       /* no */
    char *tls_dh_params_file;             /* NULL */
    bool tls_session_caching;             /* yes */
    int64_t tls_session_cache_size;       /* 20480 */
    int64_t tls_session_cache_timeout_s;  /* 300 */
    int64_t tls_handshake_ms;             /* 10s */
    enum log_level loglevel;
    bool log_json;                   /* log-format text|json */
    char *logfile;                   /* "": standard output */
    char *pidfile;                   /* NULL */
    char *supervised;                /* no | systemd | auto */
    struct config_words admin_users; /* admin-user; may be empty */
    char *requirepass;               /* NULL */
    struct config_words witnesses;   /* witness; may be empty, or embedded */
    struct config_login witness_login;
    char *witness_namespace;                                           /* NULL: "" */
    bool witness_tls;                                                  /* no */
    int64_t witness_timeout_ms, witness_quarantine_ms;                 /* 500ms, 10m */
    bool short_records;                                                /* guard-records hash|short */
    int64_t bulk_max;                                                  /* proto-max-bulk-len 512mb */
    int64_t query_buffer_limit;                                        /* client-query-buffer-limit 1gb */
    int64_t output_limit_hard, output_limit_soft, output_limit_soft_s; /* client-output-buffer-limit normal H S SEC */
    int64_t output_pubsub_hard, output_pubsub_soft, output_pubsub_soft_s; /* the same for pubsub */
    bool take_over_switch;                                                /* no */
    int64_t shutdown_timeout_s;                                           /* 600 */
    int64_t finish_timeout_s;                                             /* 5 */
    int64_t threads;                                                      /* 1 to 64 */
    enum config_upstream upstream;
    struct config_words upstream_addresses; /* HOST:PORT ..., unix:PATH */
    char *sentinel_name;
    struct config_login sentinel_login, upstream_login;
    int64_t upstream_password_refresh_ms;  /* 5m */
    enum config_share share_upstream_user; /* auto */
    int64_t upstream_connections;          /* 1 to 64 */
    int64_t pinned_node, pinned_client; /* max-pinned-connections[-per-client]; 0: derived from the node's maxclients */
    int64_t upstream_timeout_ms;        /* 5s */
    int64_t dns_refresh_ms;             /* 5s */
    enum config_read_from read_from;    /* masters */
    int64_t read_after_write_ms;        /* 1s */
    int64_t slowlog_slower_us;          /* slowlog-log-slower-than 10000; -1: nothing is slow */
    int64_t slowlog_max;                /* slowlog-max-len 128 */
    bool latency_tracking;              /* no */
    bool upstream_tls_on;               /* upstream-tls no */
    struct config_tls upstream_tls;
    enum config_verify upstream_tls_verify; /* yes */
    char *upstream_tls_server_name;         /* NULL: each node's host */
    char *cluster_announce_ip;              /* NULL: the address that a client connected to */
    int64_t cluster_announce_port;          /* 0: the port that a client connected to */
    int64_t cluster_announce_tls_port;      /* 0: the port that a client connected to */
    unsigned client_identity;               /* IDENTITY_ bits */
    int64_t admin_port;
    char *admin_bind;
    struct config_words admin_hosts; /* admin-host; may be empty */
    struct lock_rules *rules;
    char *file;    /* the configuration file's absolute path; NULL: none */
    char **places; /* where each directive of the table stands, "lockkeeper.conf:3"; NULL: it has its default */
};

enum { CONFIG_ERRORS_MAX = 100 }; /* reading stops here */

/* All errors of a configuration: one line each, with the place, the directive, its value (no password) and what was
 * expected. {0} is empty. The lines are separated by '\n', without one at the end. */
struct config_errors {
    struct text lines;
    size_t count;
    bool *wrong; /* whether each directive of the table is wrong; NULL: none is */
};

/* Adds an error that was found when a value was used. The line begins with the place of `directive`; the text must name
 * the directive. Returns false. */
bool config_refuse(struct config_errors *errors, const struct config *config, const char *directive, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));
/* Whether the directive's value in the file is wrong. The configuration may then have the default, so errors that
 * follow from it should not be reported. */
bool config_is_wrong(const struct config_errors *errors, const char *directive);
/* Calls `tell` for each line. */
void config_errors_each(const struct config_errors *errors, void (*tell)(int len, const char *line));
void config_errors_clear(struct config_errors *errors);

/* Reads argv as redis-server does: argv[0] is the program, an optional CONFIG-FILE ("-": standard input) comes first,
 * then --DIRECTIVE VALUE ... groups. Returns a new configuration with one reference, which the caller owns. Errors are
 * added to `errors`; if there are any, the configuration may only be used to find more errors. A reload calls it again
 * with the same argv in the same working directory; the text of standard input is kept for that. Not thread-safe. */
struct config *config_load(int argc, char *const *argv, struct config_errors *errors);
const struct config *config_ref(const struct config *config);
/* Gives a reference back; NULL is ignored. Passwords are overwritten with the last one. Thread-safe. */
void config_unref(const struct config *config);
/* Whether the proxy has a login of its own. */
bool config_logs_in(const struct config *config);
/* The directives of the proxy's own logins begin with `name` and '-'. */
enum { CONFIG_LOGINS = 3 };
struct config_own_login {
    const char *name;
    const struct config_login *login;
};
struct config_own_login config_own_login(const struct config *config, size_t i);
/* Whether only clients on this machine can connect. */
bool config_is_local(const struct config *config);
/* Whether clients that have not logged in use the proxy's own user (upstream-user). */
bool config_shares_user(const struct config *config);

/* Whether the rules with quorum yes have the witnesses that they need, and leases that witnesses can remember. False:
 * `why` (of `size`) says what is expected. */
bool config_quorum_fits(const struct config *config, char *why, size_t size);

/* Whether the proxy starts the witnesses itself. */
bool config_witness_embedded(const struct config *config);
/* Sets the addresses of the witnesses that the proxy has started. */
void config_set_witnesses(struct config *config, const char *const *addresses, size_t count);

/* A directive's texts in the table. */
struct config_directive {
    const char *name;
    const char *value;    /* "PORT", "yes|no", ... */
    const char *fallback; /* the default as text */
    const char *help;     /* one line */
};
size_t config_directive_count(void);
struct config_directive config_directive_get(size_t i);
/* Whether a reload applies the directive. */
bool config_directive_live(size_t i);

/* Whether a directive of the table has a value to show (include has none). */
bool config_shown(size_t i);
/* Appends a directive's value in the file's syntax, each lock rule on a line. User names and passwords are shown as
 * "(set)". */
void config_show(const struct config *config, size_t i, struct text *out);
/* Prepares a reload: `fresh`, to which only the caller points, gets the values of the configuration in force that need
 * a restart to change; but `upstream standalone` of the address `switched` (NULL: none) is as if in force. Appends the
 * names of the directives that differ to `waiting`, separated by blanks; returns how many there are. */
size_t config_keep(struct config *fresh, const struct config *in_force, const char *switched, struct text *waiting);
