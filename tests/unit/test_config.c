/* The configuration: files, the command line, every directive, every error's line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proxy/config/config.h"
#include "proxy/lock/rule.h"

static char folder[64], home[4096];
static char error[2048];

/* Each test runs in a folder of its own. */
static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/lockkeeper-config-XXXXXX");
    error[0] = '\0';
    return getcwd(home, sizeof(home)) && mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    char command[100];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return chdir(home) == 0 && system(command) == 0 ? 0 : -1;
}

static void write_bytes(const char *name, const char *text, size_t len) {
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void write_file(const char *name, const char *text) {
    write_bytes(name, text, strlen(text));
}

/* Loads with these arguments. NULL: `error` has what is wrong, as much as fits. */
static struct config *load_words(int argc, char *const *argv) {
    struct config_errors errors = {0};
    struct config *c = config_load(argc, argv, &errors);
    snprintf(error, sizeof(error), "%s", errors.count > 0 ? errors.lines.data : "not touched");
    if (errors.count > 0) {
        config_unref(c);
        c = NULL;
    }
    config_errors_clear(&errors);
    return c;
}

/* Loads with these arguments, the last one NULL. */
static struct config *load(const char *first, ...) {
    char *argv[20] = {(char *)"lockkeeper"};
    int argc = 1;
    va_list args;
    va_start(args, first);
    for (const char *a = first; a; a = va_arg(args, const char *))
        argv[argc++] = (char *)a;
    va_end(args);
    return load_words(argc, argv);
}

#define LOAD(...) load(__VA_ARGS__, (const char *)NULL)

/* Loads a file of this text; the test fails if it is refused. */
static struct config *load_text(const char *text) {
    write_file("a.conf", text);
    struct config *c = LOAD("a.conf");
    if (!c)
        fail_msg("%s", error);
    return c;
}

static void assert_words(const struct config_words *w, const char *expected) {
    char joined[500] = "";
    for (size_t i = 0; i < w->count; i++) {
        strcat(joined, i ? "|" : "");
        strcat(joined, w->words[i]);
    }
    assert_string_equal(joined, expected);
}

static const char *rule_text(const struct config *c, size_t i) {
    static char text[300];
    lock_rule_text(lock_rules_get(c->rules, i), text, sizeof(text));
    return text;
}

static const char *fence_text(const struct config *c, size_t i) {
    static char text[300];
    lock_rule_text(lock_rules_fence(c->rules, i), text, sizeof(text));
    return text;
}

static void assert_defaults(const struct config *c) {
    assert_words(&c->bind, "127.0.0.1|-::1");
    assert_int_equal(c->port, 6380);
    assert_null(c->unixsocket);
    assert_int_equal(c->unixsocketperm, 0);
    assert_int_equal(c->timeout_s, 0);
    assert_int_equal(c->tcp_keepalive_s, 60);
    assert_int_equal(c->tcp_backlog, 511);
    assert_false(c->reuse_port);
    assert_int_equal(c->shutdown_timeout_s, 600);
    assert_int_equal(c->finish_timeout_s, 5);
    assert_int_equal(c->maxclients, 10000);
    assert_int_equal(c->loglevel, LOG_LEVEL_NOTICE);
    assert_false(c->log_json);
    assert_false(c->short_records);
    assert_int_equal(c->witnesses.count, 0);
    assert_null(c->witness_login.user);
    assert_null(c->witness_login.password);
    assert_null(c->witness_namespace);
    assert_false(c->witness_tls);
    assert_int_equal(c->witness_timeout_ms, 500);
    assert_int_equal(c->witness_quarantine_ms, 600 * 1000);
    assert_string_equal(c->logfile, "");
    assert_null(c->pidfile);
    assert_string_equal(c->supervised, "no");
    assert_null(c->requirepass);
    assert_int_equal(c->bulk_max, 512 * 1024 * 1024);
    assert_int_equal(c->query_buffer_limit, 1024 * 1024 * 1024);
    assert_int_equal(c->output_limit_hard, 1 << 30);
    assert_int_equal(c->output_limit_soft, 256 << 20);
    assert_int_equal(c->output_limit_soft_s, 60);
    assert_int_equal(c->output_pubsub_hard, 32 << 20);
    assert_int_equal(c->output_pubsub_soft, 8 << 20);
    assert_int_equal(c->output_pubsub_soft_s, 60);
    assert_int_equal(c->tls_port, 0);
    assert_null(c->tls.cert_file);
    assert_int_equal(c->tls_auth_clients, CONFIG_VERIFY_YES);
    assert_int_equal(c->tls_protocols, CONFIG_TLS_1_2 | CONFIG_TLS_1_3);
    assert_null(c->tls_ciphers);
    assert_false(c->tls_prefer_server_ciphers);
    assert_true(c->tls_session_caching);
    assert_int_equal(c->tls_session_cache_size, 20480);
    assert_int_equal(c->tls_session_cache_timeout_s, 300);
    assert_int_equal(c->tls_handshake_ms, 10000);
    assert_false(c->upstream_tls_on);
    assert_int_equal(c->upstream_tls_verify, CONFIG_VERIFY_YES);
    assert_int_equal(c->threads, 1);
    assert_int_equal(c->upstream, CONFIG_EMBEDDED);
    assert_int_equal(c->upstream_addresses.count, 0);
    assert_null(c->sentinel_name);
    assert_null(c->upstream_login.user);
    assert_null(c->upstream_login.password);
    assert_null(c->upstream_login.password_file);
    assert_null(c->upstream_login.password_command);
    assert_int_equal(c->upstream_password_refresh_ms, 5 * 60 * 1000);
    assert_false(config_logs_in(c));
    assert_int_equal(c->upstream_connections, 1);
    assert_int_equal(c->upstream_timeout_ms, 5000);
    assert_int_equal(c->dns_refresh_ms, 5000);
    assert_false(c->take_over_switch);
    assert_int_equal(c->client_identity, IDENTITY_ADDRESS | IDENTITY_USER | IDENTITY_NAME);
    assert_int_equal(c->admin_port, 0);
    assert_string_equal(c->admin_bind, "127.0.0.1");
    assert_int_equal(lock_rules_count(c->rules), 1);
    assert_string_equal(lock_rules_get(c->rules, 0)->pattern, "lock:*");
}

static void test_defaults(void **state) {
    (void)state;
    struct config *c = load(NULL);
    assert_non_null(c);
    assert_defaults(c);
    assert_null(c->file);
    config_unref(c);
    config_unref(NULL);
    c = load_text("");
    assert_defaults(c);
    config_unref(c);
}

static void test_every_directive(void **state) {
    (void)state;
    struct config *c = load_text("# a comment\n"
                                 "   \t\r\n"
                                 "BIND 10.0.0.1 * -::*\r\n"
                                 "  port 0\n"
                                 "unixsocket /tmp/x.sock\n"
                                 "unixsocketperm 770\n"
                                 "timeout 60\n"
                                 "tcp-keepalive 0\n"
                                 "tcp-backlog 1024\n"
                                 "reuse-port YES\n"
                                 "shutdown-timeout 30\n"
                                 "MaxClients 5\n"
                                 "tls-port 6381\n"
                                 "tls-cert-file /x.crt\ntls-key-file '/x y.key'\ntls-key-file-pass s3cret\n"
                                 "tls-ca-cert-file /ca.crt\ntls-ca-cert-dir /ca\n"
                                 "tls-auth-clients optional\n"
                                 "tls-protocols \"tlsv1.3 TLSv1.1\"\n"
                                 "tls-ciphers DEFAULT:!MEDIUM\ntls-ciphersuites TLS_AES_128_GCM_SHA256\n"
                                 "tls-prefer-server-ciphers yes\ntls-dh-params-file /dh.pem\n"
                                 "tls-session-caching no\ntls-session-cache-size 5000\n"
                                 "tls-session-cache-timeout 60\ntls-handshake-timeout 500ms\n"
                                 "upstream-tls yes\nupstream-tls-ca-cert-file /up.crt\nupstream-tls-ca-cert-dir /up\n"
                                 "upstream-tls-verify ca\nupstream-tls-server-name redis.example.org\n"
                                 "upstream-tls-cert-file /c.crt\nupstream-tls-key-file /c.key\n"
                                 "upstream-tls-key-file-pass pw2\ncluster-announce-tls-port 7001\n"
                                 "threads 64\n"
                                 "supervised AUTO\n"
                                 "pidfile '/tmp/x y.pid'\n"
                                 "loglevel nothing\n"
                                 "logfile \"a\\\"b\\x41\\n\"\n"
                                 "log-format json\n"
                                 "guard-records short\n"
                                 "witness a:1 b:2 [::1]:3\n"
                                 "witness-user w\nwitness-password wp\nwitness-namespace main\n"
                                 "witness-tls yes\nwitness-timeout 1s\nwitness-quarantine 1h\n"
                                 "requirepass 's3cret # no comment'\n"
                                 "proto-max-bulk-len 1mb\n"
                                 "client-query-buffer-limit 2gb\n"
                                 "client-output-buffer-limit normal 64mb 16mb 30 pubsub 32mb 8mb 60\n"
                                 "client-output-buffer-limit slave 1 2 3\n"
                                 "upstream standalone unix:/run/redis.sock\n"
                                 "upstream-user app\n"
                                 "upstream-password pw\n"
                                 "upstream-password-refresh 1h\n"
                                 "upstream-connections 4\n"
                                 "upstream-timeout 1500ms\n"
                                 "lock a:* owner client\n"
                                 "lock \"b c:*\"\n"
                                 "fence \"d e:*\" by a:* mode audit\nfence f:*:* by a:all mode off unlocked refuse\n"
                                 "client-identity port name\n"
                                 "admin-port 9100\n"
                                 "admin-bind ::1");
    assert_words(&c->bind, "10.0.0.1|*|-::*");
    assert_int_equal(c->port, 0);
    assert_string_equal(c->unixsocket, "/tmp/x.sock");
    assert_int_equal(c->unixsocketperm, 0770);
    assert_int_equal(c->timeout_s, 60);
    assert_int_equal(c->tcp_keepalive_s, 0);
    assert_int_equal(c->tcp_backlog, 1024);
    assert_true(c->reuse_port);
    assert_int_equal(c->shutdown_timeout_s, 30);
    assert_int_equal(c->maxclients, 5);
    assert_int_equal(c->tls_port, 6381);
    assert_string_equal(c->tls.cert_file, "/x.crt");
    assert_string_equal(c->tls.key_file, "/x y.key");
    assert_string_equal(c->tls.key_file_pass, "s3cret");
    assert_string_equal(c->tls.ca_cert_file, "/ca.crt");
    assert_string_equal(c->tls.ca_cert_dir, "/ca");
    assert_int_equal(c->tls_auth_clients, CONFIG_VERIFY_SOME);
    assert_int_equal(c->tls_protocols, CONFIG_TLS_1_3 | CONFIG_TLS_1_1);
    assert_string_equal(c->tls_ciphers, "DEFAULT:!MEDIUM");
    assert_string_equal(c->tls_ciphersuites, "TLS_AES_128_GCM_SHA256");
    assert_true(c->tls_prefer_server_ciphers);
    assert_string_equal(c->tls_dh_params_file, "/dh.pem");
    assert_false(c->tls_session_caching);
    assert_int_equal(c->tls_session_cache_size, 5000);
    assert_int_equal(c->tls_session_cache_timeout_s, 60);
    assert_int_equal(c->tls_handshake_ms, 500);
    assert_true(c->upstream_tls_on);
    assert_string_equal(c->upstream_tls.ca_cert_file, "/up.crt");
    assert_string_equal(c->upstream_tls.ca_cert_dir, "/up");
    assert_int_equal(c->upstream_tls_verify, CONFIG_VERIFY_SOME);
    assert_string_equal(c->upstream_tls_server_name, "redis.example.org");
    assert_string_equal(c->upstream_tls.cert_file, "/c.crt");
    assert_string_equal(c->upstream_tls.key_file, "/c.key");
    assert_string_equal(c->upstream_tls.key_file_pass, "pw2");
    assert_int_equal(c->cluster_announce_tls_port, 7001);
    assert_int_equal(c->threads, 64);
    assert_string_equal(c->supervised, "auto");
    assert_string_equal(c->pidfile, "/tmp/x y.pid");
    assert_int_equal(c->loglevel, LOG_LEVEL_NOTHING);
    assert_string_equal(c->logfile, "a\"bA\n");
    assert_true(c->log_json);
    assert_true(c->short_records);
    assert_int_equal(c->witnesses.count, 3);
    assert_string_equal(c->witnesses.words[2], "[::1]:3");
    assert_string_equal(c->witness_login.user, "w");
    assert_string_equal(c->witness_login.password, "wp");
    assert_string_equal(c->witness_namespace, "main");
    assert_true(c->witness_tls);
    assert_int_equal(c->witness_timeout_ms, 1000);
    assert_int_equal(c->witness_quarantine_ms, 3600 * 1000);
    assert_string_equal(c->requirepass, "s3cret # no comment");
    assert_int_equal(c->bulk_max, 1024 * 1024);
    assert_int_equal(c->query_buffer_limit, (int64_t)2 * 1024 * 1024 * 1024);
    assert_int_equal(c->output_limit_hard, 64 * 1024 * 1024);
    assert_int_equal(c->output_limit_soft, 16 * 1024 * 1024);
    assert_int_equal(c->output_limit_soft_s, 30);
    assert_int_equal(c->upstream, CONFIG_STANDALONE);
    assert_words(&c->upstream_addresses, "unix:/run/redis.sock");
    assert_string_equal(c->upstream_login.user, "app");
    assert_string_equal(c->upstream_login.password, "pw");
    assert_int_equal(c->upstream_password_refresh_ms, 60 * 60 * 1000);
    assert_true(config_logs_in(c));
    assert_int_equal(c->upstream_connections, 4);
    assert_int_equal(c->upstream_timeout_ms, 1500);
    assert_int_equal(lock_rules_count(c->rules), 2);
    assert_string_equal(lock_rules_get(c->rules, 1)->pattern, "b c:*");
    assert_int_equal(lock_rules_fence_count(c->rules), 2);
    assert_string_equal(fence_text(c, 0), "\"d e:*\" by a:* mode audit unlocked pass");
    assert_string_equal(fence_text(c, 1), "f:*:* by a:all mode off unlocked refuse");
    assert_int_equal(c->client_identity, IDENTITY_PORT | IDENTITY_NAME);
    assert_int_equal(c->admin_port, 9100);
    assert_string_equal(c->admin_bind, "::1");
    char path[200];
    snprintf(path, sizeof(path), "%s/a.conf", folder);
    assert_string_equal(c->file, path);
    config_unref(c);
}

/* Later lines replace earlier ones; "" takes a text back. */
static void test_override(void **state) {
    (void)state;
    struct config *c = load_text("port 1\nport 2\nrequirepass a\nrequirepass \"\"\nupstream sentinel m 1.2.3.4:5\n"
                                 "upstream cluster h:1 h:2\nupstream cluster [::1]:3 a_b.example.org:65535\n"
                                 "upstream-timeout 3\nclient-identity port\nclient-identity user\nunixsocket x\n"
                                 "unixsocket ''\nbind ''\n"
                                 "client-output-buffer-limit \"normal 1 2 3\"\n");
    assert_int_equal(c->port, 2);
    assert_null(c->requirepass);
    assert_int_equal(c->upstream, CONFIG_CLUSTER);
    assert_words(&c->upstream_addresses, "[::1]:3|a_b.example.org:65535");
    assert_null(c->sentinel_name);
    assert_int_equal(c->upstream_timeout_ms, 3000);
    assert_int_equal(c->client_identity, IDENTITY_USER);
    assert_null(c->unixsocket);
    assert_int_equal(c->bind.count, 0);
    assert_int_equal(c->output_limit_soft_s, 3);
    config_unref(c);
    c = load_text("upstream sentinel mymaster 10.0.0.1:26379 [fe80::1%eth0]:26379\n");
    assert_int_equal(c->upstream, CONFIG_SENTINEL);
    assert_string_equal(c->sentinel_name, "mymaster");
    assert_words(&c->upstream_addresses, "10.0.0.1:26379|[fe80::1%eth0]:26379");
    config_unref(c);
}

static void test_command_line(void **state) {
    (void)state;
    write_file("a.conf", "port 1\nlock file:*\nbind 1.1.1.1\n");
    struct config *c = LOAD("a.conf", "--port", "2", "--LOCK", "line:*", "owner", "any", "--bind", "2.2.2.2 3.3.3.3",
                            "--lock", "other:* lease 5s", "--threads 3", "--requirepass --dashes", "--logfile", "");
    assert_non_null(c);
    assert_int_equal(c->port, 2);
    assert_int_equal(c->threads, 3);
    assert_string_equal(c->requirepass, "--dashes");
    assert_words(&c->bind, "2.2.2.2|3.3.3.3");
    assert_int_equal(lock_rules_count(c->rules), 3);
    assert_string_equal(lock_rules_get(c->rules, 0)->pattern, "file:*");
    assert_string_equal(lock_rules_get(c->rules, 1)->pattern, "line:*");
    assert_int_equal(lock_rules_get(c->rules, 1)->owner, LOCK_OWNER_ANY);
    assert_string_equal(lock_rules_get(c->rules, 2)->pattern, "other:*");
    assert_int_equal(lock_rules_get(c->rules, 2)->lease_ms, 5000);
    config_unref(c);

    c = LOAD("--upstream", "cluster", "127.0.0.1:7000", "127.0.0.1:7001", "--lock", "'a b:*' mode audit");
    assert_non_null(c);
    assert_words(&c->upstream_addresses, "127.0.0.1:7000|127.0.0.1:7001");
    assert_int_equal(lock_rules_count(c->rules), 1); /* it replaces the default */
    assert_non_null(strstr(rule_text(c, 0), "\"a b:*\" mode audit "));
    config_unref(c);
}

static void assert_shares(const char *words, bool shares) {
    struct config *c = LOAD("--bind", words);
    assert_non_null(c);
    assert_int_equal(config_shares_user(c), shares);
    config_unref(c);
    c = LOAD("--bind", words, "--share-upstream-user", "yes");
    assert_true(config_shares_user(c));
    config_unref(c);
    c = LOAD("--bind", words, "--share-upstream-user", "no");
    assert_false(config_shares_user(c));
    config_unref(c);
    c = LOAD("--bind", words, "--requirepass", "door");
    assert_true(config_shares_user(c));
    config_unref(c);
}

/* Clients without login are the proxy's user only if all clients are local. */
static void test_shared_user(void **state) {
    (void)state;
    static const char *const local[] = {"127.0.0.1", "127.0.0.1 -::1", "::1", "localhost", "-127.1.2.3", "\"\""};
    static const char *const open[] = {"0.0.0.0",
                                       "127.0.0.1 10.0.0.1",
                                       "::",
                                       "*",
                                       "127.example.com",
                                       "127.0.0.1.example.com",
                                       "localhost.example.com",
                                       "::1 -::",
                                       "1.2.3.4"};
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        assert_shares(local[i], true);
    for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++)
        assert_shares(open[i], false);
}

/* "-" is standard input, whose text serves a reload too. */
static void test_stdin(void **state) {
    (void)state;
    write_file("in", "port 7\nlock in:*\n");
    int saved = dup(STDIN_FILENO);
    assert_non_null(freopen("in", "r", stdin));
    for (int round = 0; round < 2; round++) {
        struct config *c = LOAD("-", "--threads", "2");
        assert_non_null(c);
        assert_int_equal(c->port, 7);
        assert_int_equal(c->threads, 2);
        assert_string_equal(lock_rules_get(c->rules, 0)->pattern, "in:*");
        assert_null(c->file);
        config_unref(c);
    }
    assert_null(LOAD("-", "--port", "x"));
    dup2(saved, STDIN_FILENO);
    close(saved);
}

static void test_include(void **state) {
    (void)state;
    assert_int_equal(mkdir("conf.d", 0700), 0);
    write_file("conf.d/20.conf", "lock two:*\nport 20\n");
    write_file("conf.d/10.conf", "lock one:*\nport 10\n");
    write_file("conf.d/skip.txt", "port 99\n");
    write_file("deep.conf", "include 'conf.d/*.conf'\nthreads 2\n");
    struct config *c = load_text("lock zero:*\ninclude deep.conf\ninclude none*.conf\nlock three:*\n");
    assert_int_equal(c->port, 20);
    assert_int_equal(c->threads, 2);
    assert_int_equal(lock_rules_count(c->rules), 4);
    assert_string_equal(lock_rules_get(c->rules, 1)->pattern, "one:*");
    assert_string_equal(lock_rules_get(c->rules, 2)->pattern, "two:*");
    assert_string_equal(lock_rules_get(c->rules, 3)->pattern, "three:*");
    config_unref(c);
    c = LOAD("--include", "deep.conf", "--port", "3");
    assert_non_null(c);
    assert_int_equal(c->port, 3);
    config_unref(c);
}

static void refused(const char *expected) {
    if (strcmp(error, expected) != 0)
        fail_msg("expected: %s\n     got: %s", expected, error);
}

static void test_include_errors(void **state) {
    (void)state;
    write_file("a.conf", "# one\ninclude missing.conf\n");
    assert_null(LOAD("a.conf"));
    refused("a.conf:2: include 'missing.conf': expected a file that can be read: No such file or directory");
    write_file("bad.conf", "port 1\n\nport x\n");
    write_file("a.conf", "include bad.conf\n");
    assert_null(LOAD("a.conf"));
    refused("bad.conf:3: port 'x': expected a number from 0 to 65535");
    write_file("loop.conf", "include loop.conf\ninclude loop.conf\n");
    assert_null(LOAD("loop.conf"));
    refused("loop.conf:1: include 'loop.conf': expected at most 16 files inside each other");
    write_file("a.conf", "include ''\n");
    assert_null(LOAD("a.conf"));
    refused("a.conf:1: include '': expected a file name");
    assert_null(LOAD("--include", "/"));
    refused("command line: include '/': expected a file that can be read: Is a directory");
    assert_null(LOAD("nowhere.conf"));
    refused("nowhere.conf: expected a configuration file that can be read: No such file or directory");
    assert_null(LOAD("/dev/zero"));
    refused("/dev/zero: expected a configuration file that can be read: more than 16mb: expected a configuration file");
}

#define ADDRESS     "HOST:PORT, [IPV6]:PORT or unix:PATH"
#define A_FENCE     "PATTERN by LOCK, then options and their values"
#define ADDRESS_TCP "HOST:PORT or [IPV6]:PORT"
#define UPSTREAMS   "embedded, standalone HOST:PORT, cluster HOST:PORT ... or sentinel NAME HOST:PORT ..."

static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *line, *why;
    } CASES[] = {
        {"port abc", "port 'abc': expected a number from 0 to 65535"},
        {"PORT -1", "port '-1': expected a number from 0 to 65535"},
        {"port 65536", "port '65536': expected a number from 0 to 65535"},
        {"port 99999999999999999999", "port '99999999999999999999': expected a number from 0 to 65535"},
        {"port ''", "port '': expected a number from 0 to 65535"},
        {"port +1", "port '+1': expected a number from 0 to 65535"},
        {"port", "port without a value: expected a number from 0 to 65535"},
        {"port 1 2", "port '1 2': expected a number from 0 to 65535"},
        {"threads 0", "threads '0': expected a number from 1 to 64"},
        {"threads 65", "threads '65': expected a number from 1 to 64"},
        {"reuse-port maybe", "reuse-port 'maybe': expected yes or no"},
        {"maxclients 0", "maxclients '0': expected a number from 1 to 4294967295"},
        {"timeout 5s", "timeout '5s': expected a number from 0 to 2147483647"},
        {"tcp-keepalive x", "tcp-keepalive 'x': expected a number from 0 to 2147483647"},
        {"unixsocketperm 778", "unixsocketperm '778': expected an octal number from 0 to 777"},
        {"unixsocketperm 1000", "unixsocketperm '1000': expected an octal number from 0 to 777"},
        {"supervised upstart", "supervised 'upstart': upstart is not supported: expected no, systemd or auto"},
        {"supervised yes", "supervised 'yes': expected no, systemd or auto"},
        {"loglevel loud", "loglevel 'loud': expected debug, verbose, notice, warning or nothing"},
        {"witness a:1 b:2 c:3 d:4 e:5 f:6", "witness 'a:1 b:2 c:3 d:4 e:5 f:6': expected 1 to 5 addresses, HOST:PORT"},
        {"witness a:1 b:2 A:1",
         "witness 'a:1 b:2 A:1': 'A:1' stands there twice: expected servers that are independent of each other"},
        {"witness a", "witness 'a': 'a': expected HOST:PORT or [IPV6]:PORT"},
        {"witness-timeout 0", "witness-timeout '0': expected a time from 1ms to 1d, like 500ms"},
        {"witness-quarantine 2d", "witness-quarantine '2d': expected a time from 1ms to 1d, like 10m"},
        {"witness-user w", "witness-user: expected witness-password too (any word for a user with nopass)"},
        {"lock q quorum yes", "lock 'q' quorum yes: expected 'witness' too, best with 3 addresses"},
        {"lock q quorum yes lease 10m\nwitness a:1",
         "lock 'q' quorum yes: expected a lease and a handover of at most 563760 ms, or a longer witness-quarantine"},
        {"guard-records text", "guard-records 'text': expected hash or short"},
        {"log-format xml", "log-format 'xml': expected text or json"},
        {"logfile a b", "logfile 'a b': expected one path"},
        {"proto-max-bulk-len 1k", "proto-max-bulk-len '1k': expected a size of at least 1mb, like 512mb"},
        {"client-query-buffer-limit big", "client-query-buffer-limit 'big': expected a size of at least 1mb, like 1gb"},
        {"client-output-buffer-limit normal 1 2",
         "client-output-buffer-limit 'normal 1 2': expected CLASS HARD SOFT SECONDS, like normal 64mb 16mb 60"},
        {"client-output-buffer-limit master 1 2 3",
         "client-output-buffer-limit 'master 1 2 3': 'master': expected normal, replica or pubsub"},
        {"client-output-buffer-limit normal x 2 3",
         "client-output-buffer-limit 'normal x 2 3': 'x': expected a hard limit like 64mb, or 0"},
        {"client-output-buffer-limit normal 1 2 3s",
         "client-output-buffer-limit 'normal 1 2 3s': '3s': expected a number of seconds"},
        {"upstream", "upstream without a value: expected " UPSTREAMS},
        {"upstream single h:1", "upstream 'single h:1': expected " UPSTREAMS},
        {"upstream embedded h:1", "upstream 'embedded h:1': expected no address behind embedded"},
        {"upstream standalone", "upstream 'standalone': expected standalone and one HOST:PORT or unix:PATH"},
        {"upstream standalone h:1 h:2",
         "upstream 'standalone h:1 h:2': expected standalone and one HOST:PORT or unix:PATH"},
        {"upstream standalone h", "upstream 'standalone h': 'h': expected " ADDRESS},
        {"upstream standalone :1", "upstream 'standalone :1': ':1': expected " ADDRESS},
        {"upstream standalone h:0", "upstream 'standalone h:0': 'h:0': expected " ADDRESS},
        {"upstream standalone h:65536", "upstream 'standalone h:65536': 'h:65536': expected " ADDRESS},
        {"upstream standalone h:6379x", "upstream 'standalone h:6379x': 'h:6379x': expected " ADDRESS},
        {"upstream standalone ::1:6379", "upstream 'standalone ::1:6379': '::1:6379': expected " ADDRESS},
        {"upstream standalone [::1]", "upstream 'standalone [::1]': '[::1]': expected " ADDRESS},
        {"upstream standalone [h]:1", "upstream 'standalone [h]:1': '[h]:1': expected " ADDRESS},
        {"upstream standalone [::1%]:1", "upstream 'standalone [::1%]:1': '[::1%]:1': expected " ADDRESS},
        {"upstream standalone unix:", "upstream 'standalone unix:': 'unix:': expected " ADDRESS},
        {"upstream standalone redis://h:1", "upstream 'standalone redis://h:1': 'redis://h:1': expected " ADDRESS},
        {"upstream cluster", "upstream 'cluster': expected cluster and at least one HOST:PORT"},
        {"upstream cluster h:1 unix:/x", "upstream 'cluster h:1 unix:/x': 'unix:/x': expected " ADDRESS_TCP},
        {"upstream sentinel m",
         "upstream 'sentinel m': expected sentinel, the master's name and at least one HOST:PORT"},
        {"upstream sentinel m x", "upstream 'sentinel m x': 'x': expected " ADDRESS_TCP},
        {"upstream-connections 0", "upstream-connections '0': expected a number from 1 to 64"},
        {"upstream-timeout 0", "upstream-timeout '0': expected a time from 1ms to 1d, like 5s"},
        {"upstream-timeout 25h", "upstream-timeout '25h': expected a time from 1ms to 1d, like 5s"},
        {"lock", "lock without a value: expected a key pattern, then options and their values"},
        {"lock ''", "lock '': expected a key pattern, then options and their values"},
        {"lock x:* owner me", "lock 'x:* owner me': option owner 'me': expected auto, connection, client or any"},
        {"fence", "fence without a value: expected " A_FENCE},
        {"fence stock:* by", "fence 'stock:* by': expected " A_FENCE},
        {"fence stock:* of lock:*", "fence 'stock:* of lock:*': expected " A_FENCE},
        {"fence stock by lock:*",
         "fence 'stock by lock:*': 0 stars in PATTERN, 1 in LOCK: expected no more in LOCK, and "
         "at most 16"},
        {"fence stock[*] by lock:*", "fence 'stock[*] by lock:*': 0 stars in PATTERN, 1 in LOCK: expected no more in "
                                     "LOCK, and at most 16"},
        {"fence stock:* by lock:* mode",
         "fence 'stock:* by lock:* mode': option 'mode' without a value: expected enforce, "
         "audit or off"},
        {"fence stock:* by lock:* mode on",
         "fence 'stock:* by lock:* mode on': option mode 'on': expected enforce, audit or off"},
        {"fence stock:* by lock:* mode off mode off",
         "fence 'stock:* by lock:* mode off mode off': option 'mode' is given twice: expected it once"},
        {"fence stock:* by lock:* unlocked no",
         "fence 'stock:* by lock:* unlocked no': option unlocked 'no': expected pass or refuse"},
        {"fence stock:* by lock:* owner me",
         "fence 'stock:* by lock:* owner me': option 'owner': expected mode or unlocked"},
        {"fence stock:* by stock mode audit",
         "fence 'stock:*': no lock rule matches 'stock': expected the name of a lock"},
        {"fence lock:*:n by lock:* mode audit",
         "fence 'lock:*:n': its keys are locks of the rule 'lock:*': expected keys "
         "that no lock rule matches"},
        {"client-identity", "client-identity without a value: expected one or more of address, user, name and port"},
        {"proxy-protocol maybe",
         "proxy-protocol 'maybe': 'maybe': expected yes or no alone, an address, a network like "
         "10.0.0.0/8, or unix"},
        {"proxy-protocol yes 10.0.0.1", "proxy-protocol 'yes 10.0.0.1': 'yes': expected yes or no alone, an address, a "
                                        "network like 10.0.0.0/8, or unix"},
        {"proxy-protocol 10.0.0.1/8",
         "proxy-protocol '10.0.0.1/8': '10.0.0.1/8': expected yes or no alone, an address, a "
         "network like 10.0.0.0/8, or unix"},
        {"client-identity address ip", "client-identity 'address ip': 'ip': expected address, user, name or port"},
        {"admin-bind ''", "admin-bind '': expected one address"},
        {"admin-port 70000", "admin-port '70000': expected a number from 0 to 65535"},
        {"bind 1.2.3.4 -", "bind '1.2.3.4 -': '-': expected an address"},
        {"tls-port 65536", "tls-port '65536': expected a number from 0 to 65535"},
        {"tls-key-file-pass s3cret s3cret", "tls-key-file-pass: expected one passphrase"},
        {"upstream-tls-key-file-pass a s3cret", "upstream-tls-key-file-pass: expected one passphrase"},
        {"tls-auth-clients maybe", "tls-auth-clients 'maybe': expected yes, no or optional"},
        {"tls-auth-clients ca", "tls-auth-clients 'ca': expected yes, no or optional"},
        {"tls-protocols \"TLSv1.2 SSLv3\"",
         "tls-protocols 'TLSv1.2 SSLv3': 'SSLv3': expected TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3"},
        {"tls-session-caching 1", "tls-session-caching '1': expected yes or no"},
        {"tls-handshake-timeout 0", "tls-handshake-timeout '0': expected a time from 1ms to 1d, like 10s"},
        {"upstream-tls on", "upstream-tls 'on': expected yes or no"},
        {"upstream-tls-verify optional", "upstream-tls-verify 'optional': expected yes, ca or no"},
        {"TLS-replication yes",
         "TLS-replication: not known here: expected one of the tls-* directives that --help lists; those of "
         "upstream-tls-* are for connections to Redis"},
        {"prot 1", "unknown directive 'prot': did you mean 'port'?"},
        {"log_level debug", "unknown directive 'log_level': did you mean 'loglevel'?"},
        {"requirepas s3cret", "unknown directive 'requirepas': did you mean 'requirepass'?"},
        {"upsteam-pasword s3cret", "unknown directive 'upsteam-pasword': did you mean 'upstream-password'?"},
        {"appendonly yes", "unknown directive 'appendonly': expected a directive that --help lists"},
        {"\x1b[2J 1", "unknown directive '\\x1b[2J': expected a directive that --help lists"},
        {"port \"1", "port: unbalanced quotes: expected a closing quote, then a blank or the end of the line"},
        {"requirepass 's3cret",
         "requirepass: unbalanced quotes: expected a closing quote, then a blank or the end of the line"},
        {"requirepass \"s3\"cret",
         "requirepass: unbalanced quotes: expected a closing quote, then a blank or the end of the line"},
        {"bind '\"1.2.3.4'",
         "bind '\"1.2.3.4': unbalanced quotes: expected a closing quote, then a blank or the end of "
         "the line"},
        {"logfile \"a\\x00b\"", "logfile: a NUL byte: expected text"},
        {"requirepass s3cret s3cret", "requirepass: expected one password"},
        {"requirepass", "requirepass without a value: expected one password"},
        {"upstream-password s3 cret", "upstream-password: expected one password"},
        {"upstream-password-file a b", "upstream-password-file 'a b': expected one file name"},
        {"upstream-password-command cat x", "upstream-password-command: expected one command, in quotes"},
        {"upstream-password-refresh 0", "upstream-password-refresh '0': expected a time from 1ms to 1d, like 5m"},
        {"upstream-password-file f\nupstream-password-command c", "upstream-password-file: expected it alone, without "
                                                                  "upstream-password and upstream-password-command"},
        {"upstream-password-command c\nupstream-password p",
         "upstream-password-command: expected it alone, without upstream-password"},
        {"upstream-user bob s3cret", "upstream-user: expected one user name"},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        char text[300], expected[500];
        snprintf(text, sizeof(text), "# first\nthreads 2\n  %s  \nthreads 3\n", CASES[i].line);
        write_file("lockkeeper.conf", text);
        if (LOAD("lockkeeper.conf"))
            fail_msg("'%s' was accepted", CASES[i].line);
        snprintf(expected, sizeof(expected), "lockkeeper.conf:3: %s", CASES[i].why);
        refused(expected);
        assert_null(strstr(error, "cret"));
        assert_null(strchr(error, '\n'));
    }
}

static void test_command_line_errors(void **state) {
    (void)state;
    assert_null(LOAD("--port", "abc"));
    refused("command line: port 'abc': expected a number from 0 to 65535");
    assert_null(LOAD("--port"));
    refused("command line: port without a value: expected a number from 0 to 65535");
    assert_null(LOAD("--port", "--threads", "2"));
    refused("command line: port without a value: expected a number from 0 to 65535");
    assert_null(LOAD("--", "x"));
    refused("command line: '--': expected --DIRECTIVE and its value");
    assert_null(LOAD("--"));
    refused("command line: '--': expected --DIRECTIVE and its value");
    write_file("a.conf", "");
    assert_null(LOAD("a.conf", "6380"));
    refused("command line: '6380': expected --DIRECTIVE and its value");
    assert_null(LOAD("--lock", "x:* lease"));
    refused("command line: lock 'x:* lease': option 'lease' without a value: expected a time like 30s, or 0 for none");
    assert_null(LOAD("--lock", "'x"));
    refused("command line: lock: unbalanced quotes: expected a closing quote, then a blank or the end of the line");
    assert_null(LOAD("--requirepass 's3cret"));
    refused(
        "command line: requirepass: unbalanced quotes: expected a closing quote, then a blank or the end of the line");
    assert_null(LOAD("--requirepass", "s3", "cret"));
    refused("command line: requirepass: expected one password");
    assert_null(LOAD("--requirepas", "s3cret"));
    refused("command line: unknown directive 'requirepas': did you mean 'requirepass'?");
}

/* An error fits its buffer, and long values are shortened. */
static void test_long_values(void **state) {
    (void)state;
    char *value = malloc(100001);
    assert_non_null(value);
    memset(value, 1, 100000);
    value[100000] = '\0';
    char *argv[] = {(char *)"lockkeeper", (char *)"--port", value};
    assert_null(load_words(3, argv));
    assert_true(strlen(error) < 400);
    assert_non_null(strstr(error, "\\x01...': expected a number from 0 to 65535"));
    argv[1] = (char *)"--upstream";
    memset(value, 'x', 100000);
    assert_null(load_words(3, argv));
    argv[1] = (char *)"--unixsocket";
    assert_null(load_words(3, argv));
    assert_non_null(strstr(error, "x...': expected a path of at most 107 bytes"));
    value[0] = value[1] = '-';
    argv[1] = value;
    assert_null(load_words(2, argv));
    assert_non_null(strstr(error, "command line: unknown directive 'xxx"));
    argv[1] = value + 2;
    assert_null(load_words(2, argv));
    assert_non_null(strstr(error, "x...: expected a configuration file that can be read: File name too long"));
    free(value);
}

/* All that is wrong is said at once, each where it stands, also what follows from several lines. */
static void test_all_errors(void **state) {
    (void)state;
    write_file("more.conf", "\nlock a:* lease long\n");
    write_file("a.conf", "port abc\nthreads 2\nnosuch 1\ninclude more.conf\ninclude nosuch.conf\nupstream-user bob\n"
                         "logfile \"x\nshare-upstream-user no\nrequirepass s3cret\n");
    assert_null(LOAD("a.conf", "stray", "words", "--threads", "0", "--sentinel-user", "eve"));
    refused("a.conf:1: port 'abc': expected a number from 0 to 65535\n"
            "a.conf:3: unknown directive 'nosuch': expected a directive that --help lists\n"
            "more.conf:2: lock 'a:* lease long': option lease 'long': expected a time like 30s, or 0 for none\n"
            "a.conf:5: include 'nosuch.conf': expected a file that can be read: No such file or directory\n"
            "a.conf:7: logfile: unbalanced quotes: expected a closing quote, then a blank or the end of the line\n"
            "command line: 'stray': expected --DIRECTIVE and its value\n"
            "command line: threads '0': expected a number from 1 to 64\n"
            "a.conf:6: upstream-user: expected upstream-password too (any word for a user with nopass)\n"
            "command line: sentinel-user: expected sentinel-password too (any word for a user with nopass)\n"
            "a.conf:8: share-upstream-user no: expected no requirepass, which takes the clients' logins");
    write_file("a.conf", "upstream-user bob\nupstream-password a b\n"); /* the second line alone is wrong */
    assert_null(LOAD("a.conf"));
    refused("a.conf:2: upstream-password: expected one password");
}

/* A file of another kind is read no further than to its hundredth error. */
static void test_many_errors(void **state) {
    (void)state;
    char text[5000] = "";
    for (size_t i = 0; i < 500; i++)
        strcat(text, "nosuch 1\n");
    write_file("a.conf", text);
    char *argv[] = {(char *)"lockkeeper", (char *)"a.conf"};
    struct config_errors errors = {0};
    config_unref(config_load(2, argv, &errors));
    assert_int_equal(errors.count, CONFIG_ERRORS_MAX);
    assert_non_null(strstr(errors.lines.data, "\na.conf:100: "));
    assert_null(strstr(errors.lines.data, "\na.conf:101: "));
    assert_false(config_is_wrong(&errors, "port"));
    config_errors_clear(&errors);
}

static size_t index_of(const char *name) {
    for (size_t i = 0; i < config_directive_count(); i++)
        if (strcmp(config_directive_get(i).name, name) == 0)
            return i;
    fail_msg("no directive '%s'", name);
    return 0;
}

static void shows(const struct config *c, const char *name, const char *expected) {
    struct text value = {0};
    config_show(c, index_of(name), &value);
    assert_string_equal(value.len > 0 ? value.data : "", expected);
    text_clear(&value);
}

/* What is shown of a directive is read as the same again: of each default, and of other values. */
static void test_show(void **state) {
    (void)state;
    static const char TEXT[] =
        "port 0\nunixsocket /tmp/s\nunixsocketperm 770\nupstream-timeout 1500ms\nbind 127.0.0.1 ::1\n"
        "client-identity user port\ntls-protocols TLSv1.1 TLSv1.3\nupstream-tls-verify ca\n"
        "proxy-protocol 10.0.0.0/8 ::1 unix\n"
        "upstream sentinel m a:1 b:2\nproto-max-bulk-len 2mb\nadmin-user a b\ntls-auth-clients optional\n"
        "client-output-buffer-limit normal 1mb 1kb 5\nloglevel debug\nsupervised auto\nlog-format json\n"
        "share-upstream-user yes\nlogfile \"/tmp/a b\"\nlock \"a b:*\" lease 5s\n"
        "fence \"c d:*\" by \"a b:*\" mode off\n";
    for (int given = 0; given < 2; given++) {
        struct config *c = load_text(given ? TEXT : "");
        for (size_t i = 0; i < config_directive_count(); i++) {
            struct text value = {0}, again = {0}, file = {0};
            const char *name = config_directive_get(i).name;
            assert_int_equal(config_shown(i), strcmp(name, "include") != 0);
            if (!config_shown(i))
                continue;
            config_show(c, i, &value);
            bool words = strchr(value.len > 0 ? value.data : "", ' ') && strcmp(name, "logfile") != 0;
            const char *quote = words ? "" : "\"";
            text_printf(&file, "%s %s%s%s\n", name, quote, value.len > 0 ? value.data : "", quote);
            struct config *d = load_text(file.data);
            config_show(d, i, &again);
            assert_string_equal(again.len > 0 ? again.data : "", value.len > 0 ? value.data : "");
            config_unref(d);
            text_clear(&value);
            text_clear(&again);
            text_clear(&file);
        }
        config_unref(c);
    }
    struct config *c =
        load_text("requirepass s3cret\nupstream-user bob\nupstream-password s3cret\nlock a\nlock b mode off\n");
    shows(c, "requirepass", "(set)");
    shows(c, "upstream-user", "(set)");
    shows(c, "upstream-password", "(set)");
    shows(c, "sentinel-password", "");
    struct text locks = {0};
    config_show(c, index_of("lock"), &locks);
    assert_int_equal(strncmp(locks.data, "a mode enforce ", 15), 0);
    assert_non_null(strstr(locks.data, "\nb mode off "));
    text_clear(&locks);
    config_unref(c);
}

/* Whether clients without login are the proxy's user is fixed at the start: proxy-protocol may only change if that
 * stays the same. */
static void test_take_over_proxy_protocol(void **state) {
    (void)state;
    static const struct {
        const char *before, *after;
        size_t waiting;
    } CASES[] = {
        {"", "proxy-protocol 127.0.0.1\n", 0},
        {"upstream-password x\n", "upstream-password x\nproxy-protocol 127.0.0.1\n", 1},
        {"upstream-password x\nproxy-protocol 10.0.0.1\n", "upstream-password x\nproxy-protocol 127.0.0.1\n", 0},
        {"upstream-password x\nproxy-protocol yes\n", "upstream-password x\n", 1},
        {"upstream-password x\nbind 0.0.0.0\n", "upstream-password x\nbind 0.0.0.0\nproxy-protocol 127.0.0.1\n", 0},
        {"upstream-password x\nrequirepass y\n", "upstream-password x\nrequirepass y\nproxy-protocol yes\n", 0},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct config *c = load_text(CASES[i].before), *fresh = load_text(CASES[i].after);
        bool shares = config_shares_user(c);
        struct text waiting = {0};
        assert_int_equal(config_keep(fresh, c, NULL, &waiting), CASES[i].waiting);
        assert_true(!c->upstream_login.password || config_shares_user(fresh) == shares);
        text_clear(&waiting);
        config_unref(fresh);
        config_unref(c);
    }
}

/* A reload takes what may change, and names what may not. */
static void test_take_over(void **state) {
    (void)state;
    struct config *c =
        load_text("port 7000\ntimeout 1\nrequirepass first\nlock a\nbind 127.0.0.1\nupstream-password x\n");
    struct config *fresh =
        load_text("port 7001\ntimeout 2\nrequirepass second\nlock b\nlock c\nbind 127.0.0.1\nupstream-password y\n"
                  "loglevel debug\nclient-output-buffer-limit normal 3mb 2mb 1\ntls-protocols TLSv1.3\n");
    struct text waiting = {0};
    assert_int_equal(config_keep(fresh, c, NULL, &waiting), 1);
    assert_string_equal(waiting.data, "port");
    assert_int_equal(c->timeout_s, 1); /* threads may still point to the old one */
    assert_string_equal(c->requirepass, "first");
    assert_int_equal(lock_rules_count(c->rules), 1);
    config_unref(c);
    c = fresh;
    assert_int_equal(c->port, 7000);
    assert_int_equal(c->timeout_s, 2);
    assert_string_equal(c->requirepass, "second");
    assert_string_equal(c->upstream_login.password, "y");
    assert_int_equal(lock_rules_count(c->rules), 2);
    assert_int_equal(c->loglevel, LOG_LEVEL_DEBUG);
    assert_int_equal(c->output_limit_hard, 3 << 20);
    assert_int_equal(c->output_limit_soft_s, 1);
    shows(c, "tls-protocols", "TLSv1.3");
    fresh = load_text("port 7000\nbind 127.0.0.1\nupstream-password-file f\n");
    waiting.len = 0;
    assert_int_equal(config_keep(fresh, c, NULL, &waiting), 1);
    assert_string_equal(waiting.data, "requirepass");
    assert_null(fresh->upstream_login.password);
    config_unref(c);
    c = fresh;
    fresh = load_text("port 7000\nbind 127.0.0.1\nrequirepass x\n"); /* the login of the proxy's own stays */
    waiting.len = 0;
    assert_int_equal(config_keep(fresh, c, NULL, &waiting), 1);
    assert_string_equal(waiting.data, "upstream-password-file");
    assert_string_equal(fresh->upstream_login.password_file, "f");
    config_unref(c);
    c = fresh;
    assert_string_equal(c->requirepass, "x");
    fresh = load_text("port 7000\nbind 127.0.0.1\nrequirepass second\nupstream-password-file f\n");
    waiting.len = 0;
    assert_int_equal(config_keep(fresh, c, NULL, &waiting), 0);
    config_unref(c);
    c = fresh;
    assert_string_equal(c->requirepass, "second");
    assert_int_equal(c->timeout_s, 0);
    assert_int_equal(lock_rules_count(c->rules), 1);
    text_clear(&waiting);
    config_unref(c);
}

/* A reload keeps every value that needs a restart, in memory of its own. */
static void test_keep_all(void **state) {
    (void)state;
    struct config *c = load_text("port 7000\nunixsocket /tmp/s\nbind 127.0.0.1 ::1\nclient-identity user port\n"
                                 "upstream sentinel m a:1 b:2\nadmin-user a b\nadmin-host x y\nadmin-bind ::1\n"
                                 "requirepass s3cret\nupstream-user bob\nupstream-password s3cret\n"
                                 "sentinel-user bob\nsentinel-password s3cret\nthreads 3\nsupervised auto\n"
                                 "logfile /tmp/a\npidfile /tmp/p\nreuse-port yes\nshare-upstream-user yes\n"
                                 "cluster-announce-ip h\nupstream-tls yes\nproxy-protocol 10.0.0.0/8\n");
    struct config *fresh = load_text("bind 0.0.0.0\nshare-upstream-user auto\n");
    struct text waiting = {0};
    assert_true(config_keep(fresh, c, NULL, &waiting) > 15);
    text_clear(&waiting);
    assert_int_equal(config_keep(fresh, c, NULL, &waiting), 0); /* nothing differs any more */
    config_unref(c);
    c = fresh;
    assert_int_equal(c->port, 7000);
    assert_string_equal(c->upstream_addresses.words[1], "b:2");
    assert_string_equal(c->sentinel_name, "m");
    assert_string_equal(c->upstream_login.password, "s3cret");
    assert_string_equal(c->admin_hosts.words[1], "y");
    assert_string_equal(c->bind.words[1], "::1");
    config_unref(c);
}

/* Any bytes in a file: a configuration, or errors that say where they are. */
static void test_garbage(void **state) {
    (void)state;
    static const char *const PIECES[] = {"port", " ",      "\n",    "\"",          "'",    "\\", "\\x4",   "upstream",
                                         "lock", "lock:*", "owner", "cluster",     "h:1",  "#",  "\r",     "include",
                                         "bind", "-",      "tls-x", "requirepass", "\xff", "1",  "normal", "unix:"};
    size_t accepted = 0;
    srand(5);
    for (int round = 0; round < 5000; round++) {
        char text[400] = "";
        size_t len = 0;
        for (int n = rand() % 16; n > 0; n--) {
            const char *piece = PIECES[(size_t)rand() % (sizeof(PIECES) / sizeof(PIECES[0]))];
            memcpy(text + len, piece, strlen(piece));
            len += strlen(piece);
            if (rand() % 30 == 0)
                text[len++] = '\0';
        }
        write_bytes("a.conf", text, len);
        struct config *c = LOAD("a.conf");
        accepted += c != NULL;
        for (const char *line = c ? NULL : error; line && strlen(error) < sizeof(error) - 1;
             line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
            assert_int_equal(strncmp(line, "a.conf:", 7), 0);
        config_unref(c);
    }
    assert_true(accepted > 100 && accepted < 4900);
}

/* ---- the files that describe it --------------------------------------------------------------- */

static char *read_home(const char *name) {
    char path[5000];
    snprintf(path, sizeof(path), "%s/%s", home, name);
    FILE *f = fopen(path, "r");
    if (!f)
        return NULL;
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

/* Whether a line of the text is `line`, or begins with it and a blank if `more`. */
static bool has_line(const char *text, const char *line, bool more) {
    size_t len = strlen(line);
    for (const char *p = text; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, line, len) == 0 && (p[len] == '\n' || p[len] == '\0' || (more && p[len] == ' ')))
            return true;
    }
    return false;
}

/* conf/lockkeeper.conf shows every directive with its default, set or in a comment, and sets nothing else. */
static void test_conf_file(void **state) {
    (void)state;
    char *text = read_home("conf/lockkeeper.conf");
    assert_non_null(text);
    for (size_t i = 0; i < config_directive_count(); i++) {
        struct config_directive d = config_directive_get(i);
        char line[200], comment[210];
        snprintf(line, sizeof(line), "%s%s%s", d.name, *d.fallback ? " " : "", d.fallback);
        snprintf(comment, sizeof(comment), "# %s", line);
        bool any = !*d.fallback; /* there is no default: an example has to do */
        if (!has_line(text, line, any) && !has_line(text, comment, any))
            fail_msg("conf/lockkeeper.conf has no line '%s' or '%s'", line, comment);
        assert_true(*d.help && *d.value);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(d.name, config_directive_get(k).name);
    }
    free(text);
    char path[5000];
    snprintf(path, sizeof(path), "%s/conf/lockkeeper.conf", home);
    struct config *c = LOAD(path);
    if (!c)
        fail_msg("%s", error);
    assert_defaults(c);
    config_unref(c);
}

static void test_conf_examples(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum config_upstream upstream;
    } FILES[] = {{"conf/standalone.conf", CONFIG_STANDALONE},
                 {"conf/cluster.conf", CONFIG_CLUSTER},
                 {"conf/sentinel.conf", CONFIG_SENTINEL},
                 {"conf/embedded.conf", CONFIG_EMBEDDED}};
    for (size_t i = 0; i < sizeof(FILES) / sizeof(FILES[0]); i++) {
        char path[5000];
        snprintf(path, sizeof(path), "%s/%s", home, FILES[i].name);
        struct config *c = LOAD(path);
        if (!c)
            fail_msg("%s", error);
        assert_int_equal(c->upstream, FILES[i].upstream);
        assert_int_equal(c->port, 6380);
        config_unref(c);
    }
}

/* The manual names what a reload changes, and nothing else there; of TLS it says so as a whole. */
static void test_reload_is_documented(void **state) {
    (void)state;
    char *text = read_home("docs/operations.md");
    assert_non_null(text);
    char *from = strstr(text, "A reload changes these directives:"),
         *to = from ? strstr(from, "Other directives need a restart") : NULL;
    assert_non_null(to);
    *to = '\0';
    for (size_t i = 0; i < config_directive_count(); i++) {
        struct config_directive d = config_directive_get(i);
        char quoted[80];
        snprintf(quoted, sizeof(quoted), "`%s`", d.name);
        bool tls = strncmp(d.name, "tls-", 4) == 0 || strncmp(d.name, "upstream-tls", 12) == 0;
        if ((strstr(from, quoted) != NULL) != (config_directive_live(i) != tls))
            fail_msg("%s", d.name);
    }
    free(text);
}

/* Every directive that is set by commented-out examples of the conf files parses, too. */
static void test_conf_comments(void **state) {
    (void)state;
    static const char *const FILES[] = {"conf/lockkeeper.conf", "conf/standalone.conf", "conf/cluster.conf",
                                        "conf/sentinel.conf"};
    size_t examples = 0;
    for (size_t f = 0; f < 3; f++) {
        char *text = read_home(FILES[f]), *save = NULL;
        assert_non_null(text);
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            char name[64];
            bool known = false;
            if (sscanf(line, "# %63[a-z-] ", name) != 1 || line[2] == ' ' ||
                strchr(line, ':') == line + strlen(line) - 1)
                continue;
            for (size_t i = 0; i < config_directive_count() && !known; i++)
                known = strcmp(config_directive_get(i).name, name) == 0;
            if (!known || strcmp(name, "include") == 0)
                continue;
            char example[500]; /* a user name needs a password */
            bool login = strcmp(name, "upstream-user") == 0 || strcmp(name, "sentinel-user") == 0;
            int kind = login ? (int)(strchr(name, '-') - name) : 0;
            snprintf(example, sizeof(example), "%s\n%.*s%s", line + 2, kind, name, login ? "-password x" : "");
            write_file("a.conf", example);
            struct config *c = LOAD("a.conf");
            if (!c)
                print_error("%s: '%s'\n", FILES[f], line);
            assert_non_null(c);
            config_unref(c);
            examples++;
        }
        free(text);
    }
    assert_true(examples >= 10);
}

/* The text of a Markdown cell without blanks and backticks around it; moves *row behind the cell. */
static bool next_cell(char **row, char *out, size_t size) {
    char *start = *row, *end = strchr(start, '|');
    if (!end)
        return false;
    *row = end + 1;
    while (end > start && (end[-1] == ' ' || end[-1] == '`'))
        end--;
    while (start < end && (*start == ' ' || *start == '`'))
        start++;
    snprintf(out, size, "%.*s", (int)(end - start), start);
    return true;
}

/* A row of a table of directives: the name is known, and the default, if there is one, is the table's. */
static void check_row(const char *page, char *row, int default_column) {
    char name[200] = "", cell[200] = "";
    for (int column = 0; next_cell(&row, column == 0 ? name : cell, 200); column++) {
        if (column == default_column)
            break;
        cell[0] = '\0';
    }
    name[strcspn(name, " `")] = '\0'; /* "upstream standalone HOST:PORT" */
    for (size_t i = 0; i < config_directive_count(); i++) {
        struct config_directive d = config_directive_get(i);
        if (strcmp(d.name, name) != 0)
            continue;
        bool none = strcmp(d.fallback, "\"\"") == 0 && strcmp(cell, "none") == 0;
        size_t len = strlen(d.fallback); /* "0 (off)" is 0, "5sec" is not 5s */
        bool same = strncmp(cell, d.fallback, len) == 0 && !isalnum((unsigned char)cell[len]);
        if (*cell && *d.fallback && !none && !same)
            fail_msg("%s: the default of %s is '%s', not '%s'", page, name, d.fallback, cell);
        return;
    }
    fail_msg("%s: there is no directive '%s'", page, name);
}

/* A page's tables of directives; returns how many rows they have. */
static size_t check_page(const char *page) {
    char *text = read_home(page), *rest = text;
    assert_non_null(text);
    size_t rows = 0;
    int default_column = -2; /* not in a table of directives */
    for (char *line; (line = strsep(&rest, "\n"));) {
        char cell[200], *row = line + 1;
        if (*line != '|') {
            default_column = -2;
        } else if (strncmp(line, "| ---", 5) == 0 || strncmp(line, "|--", 3) == 0) {
            continue;
        } else if (default_column > -2) {
            check_row(page, row, default_column);
            rows++;
        } else if (next_cell(&row, cell, sizeof(cell)) && strcasecmp(cell, "directive") == 0) {
            default_column = -1;
            for (int column = 1; next_cell(&row, cell, sizeof(cell)); column++) {
                if (strcasecmp(cell, "default") == 0)
                    default_column = column;
            }
        }
    }
    free(text);
    return rows;
}

static void test_pages(void **state) {
    (void)state;
    assert_true(check_page("README.md") >= 10);
    assert_true(check_page("docs/operations.md") >= 10);
}

int main(void) {
#define CONFIG_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CONFIG_TEST(test_defaults),
        CONFIG_TEST(test_every_directive),
        CONFIG_TEST(test_override),
        CONFIG_TEST(test_command_line),
        CONFIG_TEST(test_shared_user),
        CONFIG_TEST(test_stdin),
        CONFIG_TEST(test_include),
        CONFIG_TEST(test_include_errors),
        CONFIG_TEST(test_errors),
        CONFIG_TEST(test_long_values),
        CONFIG_TEST(test_command_line_errors),
        CONFIG_TEST(test_all_errors),
        CONFIG_TEST(test_many_errors),
        CONFIG_TEST(test_show),
        CONFIG_TEST(test_take_over),
        CONFIG_TEST(test_keep_all),
        CONFIG_TEST(test_take_over_proxy_protocol),
        CONFIG_TEST(test_garbage),
        CONFIG_TEST(test_conf_file),
        CONFIG_TEST(test_conf_examples),
        CONFIG_TEST(test_reload_is_documented),
        CONFIG_TEST(test_conf_comments),
        CONFIG_TEST(test_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
