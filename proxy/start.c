/* Checks whether the system permits what a start needs, and loads certificates. It does not know what runs after that.
 */
#include "proxy/start.h"

#include <errno.h>
#include <libgen.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proxy/base/memory.h"
#include "proxy/listen.h"
#include "proxy/own_password.h"
#include "proxy/upstream/connection/connection.h"

/* ---- TLS contexts -------------------------------------------------------------------------------- */

static struct tls_options side_options(const struct config *c, const struct config_tls *side, enum tls_verify verify) {
    return (struct tls_options){.verify = verify,
                                .cert_file = side->cert_file,
                                .key_file = side->key_file,
                                .key_pass = side->key_file_pass,
                                .ca_file = side->ca_cert_file,
                                .ca_dir = side->ca_cert_dir,
                                .protocols = c->tls_protocols,
                                .ciphers = c->tls_ciphers,
                                .ciphersuites = c->tls_ciphersuites};
}

struct sorting {
    const struct config *config;
    struct config_errors *errors;
};

/* Adds an error once: some directives apply to both sides. */
static void note_refusal(void *arg, const char *directive, const char *text) {
    const struct sorting *s = arg;
    if (!config_is_wrong(s->errors, directive))
        config_refuse(s->errors, s->config, directive, "%s", text);
}

static struct tls_context *load_clients(const struct config *c, struct sorting *sorting) {
    static const enum tls_verify verify[] = {[CONFIG_VERIFY_NO] = TLS_VERIFY_NO,
                                             [CONFIG_VERIFY_SOME] = TLS_VERIFY_OPTIONAL,
                                             [CONFIG_VERIFY_YES] = TLS_VERIFY_CA};
    struct tls_options o = side_options(c, &c->tls, verify[c->tls_auth_clients]);
    o.server = true;
    o.dh_params_file = c->tls_dh_params_file;
    o.prefer_server_ciphers = c->tls_prefer_server_ciphers;
    o.session_caching = c->tls_session_caching;
    o.session_cache_size = c->tls_session_cache_size;
    o.session_cache_timeout_s = c->tls_session_cache_timeout_s;
    return tls_context_new(&o, note_refusal, sorting);
}

/* name: the one in their certificates; NULL: the host of each address. */
static struct tls_context *load_servers(const struct config *c, const char *name, struct sorting *sorting) {
    static const enum tls_verify verify[] = {[CONFIG_VERIFY_NO] = TLS_VERIFY_NO,
                                             [CONFIG_VERIFY_SOME] = TLS_VERIFY_CA,
                                             [CONFIG_VERIFY_YES] = TLS_VERIFY_NAME};
    struct tls_options o = side_options(c, &c->upstream_tls, verify[c->upstream_tls_verify]);
    o.server_name = name;
    return tls_context_new(&o, note_refusal, sorting);
}

static void forget(char *secret) {
    if (secret)
        explicit_bzero(secret, strlen(secret));
}

bool secure_load(struct secure *s, struct config *c, struct config_errors *errors) {
    *s = (struct secure){0};
    struct sorting sorting = {.config = c, .errors = errors};
    bool right = c->tls_port == 0 || (s->clients = load_clients(c, &sorting));
    right = (!c->upstream_tls_on || (s->nodes = load_servers(c, c->upstream_tls_server_name, &sorting))) && right;
    right = (!c->witness_tls || (s->witnesses = load_servers(c, NULL, &sorting))) && right;
    forget(c->tls.key_file_pass);
    forget(c->upstream_tls.key_file_pass);
    if (!right)
        secure_clear(s);
    return right;
}

static void replace(struct tls_context *context, struct tls_context *fresh) {
    if (context && fresh)
        tls_context_replace(context, fresh);
    else
        tls_context_free(fresh);
}

void secure_replace(struct secure *s, struct secure *fresh) {
    replace(s->clients, fresh->clients);
    replace(s->nodes, fresh->nodes);
    replace(s->witnesses, fresh->witnesses);
    *fresh = (struct secure){0};
}

void secure_clear(struct secure *s) {
    tls_context_free(s->clients);
    tls_context_free(s->nodes);
    tls_context_free(s->witnesses);
    *s = (struct secure){0};
}

/* ---- checks --------------------------------------------------------------------------------------- */

/* Whether a file can be written, without creating it; errno has the reason. */
static bool writable(const char *path) {
    struct stat file;
    if (stat(path, &file) == 0 && S_ISDIR(file.st_mode)) {
        errno = EISDIR;
        return false;
    }
    if (eaccess(path, W_OK) == 0)
        return true;
    if (errno != ENOENT)
        return false;
    char *copy = memory_strdup(path);
    bool can = eaccess(dirname(copy), W_OK | X_OK) == 0;
    memory_free(copy);
    return can;
}

static void check_file(const struct config *c, const char *directive, const char *path, struct config_errors *errors) {
    if (path && *path && !config_is_wrong(errors, directive) && !writable(path))
        config_refuse(errors, c, directive, "%s '%s': expected a file that can be written: %s", directive, path,
                      strerror(errno));
}

/* Whether execvp would find a program. */
static bool on_path(const char *program) {
    const char *path = getenv("PATH");
    char *copy = memory_strdup(path ? path : "/bin:/usr/bin"), *rest = copy;
    bool found = false;
    for (char *folder; !found && (folder = strsep(&rest, ":"));) {
        char name[4096];
        int n = snprintf(name, sizeof(name), "%s/%s", *folder ? folder : ".", program);
        found = n < (int)sizeof(name) && eaccess(name, X_OK) == 0;
    }
    memory_free(copy);
    return found;
}

/* Checks the certificates with copies of the passphrases, since loading overwrites them. */
static void check_certificates(const struct config *c, struct config_errors *errors) {
    struct config copy = *c;
    char *const pass = c->tls.key_file_pass, *const upstream_pass = c->upstream_tls.key_file_pass;
    copy.tls.key_file_pass = pass ? memory_strdup(pass) : NULL;
    copy.upstream_tls.key_file_pass = upstream_pass ? memory_strdup(upstream_pass) : NULL;
    struct secure secure;
    if (secure_load(&secure, &copy, errors))
        secure_clear(&secure);
    memory_free(copy.tls.key_file_pass);
    memory_free(copy.upstream_tls.key_file_pass);
}

static void check_ports(const struct config *c, struct config_errors *errors) {
    struct inherited none = {.predecessor = -1};
    struct listen_set set;
    (void)listen_open(&set, c, &none, true, errors);
    if (c->admin_port != 0 && !config_is_wrong(errors, "admin-bind")) {
        int fd = listen_admin(&set, c, errors);
        if (fd >= 0)
            close(fd);
    }
    listen_close(&set, true);
}

bool start_check(const struct config *config, bool ports, struct config_errors *errors) {
    check_file(config, "logfile", config->logfile, errors);
    check_certificates(config, errors);
    if (ports)
        check_ports(config, errors);
    if (config_witness_embedded(config) && config->upstream != CONFIG_EMBEDDED && !on_path("redis-server"))
        config_refuse(errors, config, "witness",
                      "witness embedded: redis-server was not found; install it (Debian: apt-get install "
                      "redis-server) or name witnesses, HOST:PORT");
    if (config->upstream == CONFIG_EMBEDDED && !config_is_wrong(errors, "upstream") && !on_path("redis-server"))
        config_refuse(errors, config, "upstream",
                      "upstream embedded: redis-server was not found; install it (Debian: apt-get install "
                      "redis-server) or name an upstream, for example --upstream standalone 127.0.0.1:6379");
    check_file(config, "pidfile", config->pidfile, errors);
    if (errors->count == 0)
        (void)own_password_ask(config, errors);
    return errors->count == 0;
}

static void look_up(const char *directive, const struct config_words *addresses, void (*tell)(const char *text)) {
    for (size_t i = 0; i < addresses->count; i++) {
        const char *text = addresses->words[i];
        struct address at;
        struct addrinfo *found = NULL;
        char said[512];
        if (!address_parse(text, strlen(text), &at) || at.port == 0 || resolve_is_number(at.host))
            continue;
        int error = getaddrinfo(at.host, NULL, NULL, &found);
        snprintf(said, sizeof(said), "%s %s: the name does not resolve on this machine: %s", directive, text,
                 error ? gai_strerror(error) : "");
        if (error)
            tell(said);
        else
            freeaddrinfo(found);
    }
}

void start_look_up(const struct config *c, void (*tell)(const char *text)) {
    look_up("upstream", &c->upstream_addresses, tell);
    look_up("witness", &c->witnesses, tell);
}
