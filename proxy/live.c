/*
 * The configuration in force: TLS contexts, what a start needs of the system, and reloads. A reload applies the changes
 * that are possible while clients are served: all of them, or none if the new configuration has an error.
 *
 *      file ── config_load, certificates ──┬─ any error: to the log; nothing changes
 *                                          └─> config_keep ──> each worker points to the new configuration
 */

#include "proxy/private.h"

#include <ctype.h>
#include <errno.h>
#include <libgen.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proxy/base/clock.h"
#include "proxy/base/glob.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/mutex.h"
#include "proxy/upstream/connection/connection.h"
#include "proxy/witness/witness.h"
#include "proxy/worker/worker.h"

enum {
    PATTERN_MAX_BYTES = 256,
    WHY_MAX = 320,
    SPARE_DESCRIPTORS = 128,
    PINS_LEAST = 256,
    PINS_USUAL = 7500 /* for a node with Redis's default maxclients */
};

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

/* name: the one in their certificates; NULL: the host of each address. */
static struct tls_context *load_servers(const struct config *c, const char *name, struct sorting *sorting) {
    static const enum tls_verify verify[] = {[CONFIG_VERIFY_NO] = TLS_VERIFY_NO,
                                             [CONFIG_VERIFY_SOME] = TLS_VERIFY_CA,
                                             [CONFIG_VERIFY_YES] = TLS_VERIFY_NAME};
    struct tls_options o = side_options(c, &c->upstream_tls, verify[c->upstream_tls_verify]);
    o.server_name = name;
    return tls_context_new(&o, note_refusal, sorting);
}

bool secure_load(struct secure *s, struct config *c, struct config_errors *errors) {
    *s = (struct secure){0};
    static const enum tls_verify verify[] = {[CONFIG_VERIFY_NO] = TLS_VERIFY_NO,
                                             [CONFIG_VERIFY_SOME] = TLS_VERIFY_OPTIONAL,
                                             [CONFIG_VERIFY_YES] = TLS_VERIFY_CA};
    struct sorting sorting = {.config = c, .errors = errors};
    struct tls_options o = side_options(c, &c->tls, verify[c->tls_auth_clients]);
    o.server = true;
    o.dh_params_file = c->tls_dh_params_file;
    o.prefer_server_ciphers = c->tls_prefer_server_ciphers;
    o.session_caching = c->tls_session_caching;
    o.session_cache_size = c->tls_session_cache_size;
    o.session_cache_timeout_s = c->tls_session_cache_timeout_s;
    bool right = c->tls_port == 0 || (s->side[SECURE_CLIENTS] = tls_context_new(&o, note_refusal, &sorting));
    right = (!c->upstream_tls_on || (s->side[SECURE_NODES] = load_servers(c, c->upstream_tls_server_name, &sorting))) &&
            right;
    right = (!c->witness_tls || (s->side[SECURE_WITNESSES] = load_servers(c, NULL, &sorting))) && right;
    char *const passphrases[] = {c->tls.key_file_pass, c->upstream_tls.key_file_pass};
    for (size_t i = 0; i < 2; i++)
        if (passphrases[i])
            explicit_bzero(passphrases[i], strlen(passphrases[i]));
    if (!right)
        secure_clear(s);
    return right;
}

/* New connections use the contexts of `fresh`, which is taken over. A side that is plain stays plain, and a TLS side
 * stays as it is if `fresh` has no context for it. */
static void secure_replace(struct secure *s, struct secure *fresh) {
    for (size_t i = 0; i < SECURE_SIDES; i++) {
        if (s->side[i] && fresh->side[i])
            tls_context_replace(s->side[i], fresh->side[i]);
        else
            tls_context_free(fresh->side[i]);
    }
    *fresh = (struct secure){0};
}

void secure_clear(struct secure *s) {
    for (size_t i = 0; i < SECURE_SIDES; i++)
        tls_context_free(s->side[i]);
    *s = (struct secure){0};
}

/* ---- checks --------------------------------------------------------------------------------------- */

/* Checks that a file could be written, without creating it. */
static void check_file(const struct config *c, const char *directive, const char *path, struct config_errors *errors) {
    struct stat file;
    if (!path || !*path || config_is_wrong(errors, directive))
        return;
    if (stat(path, &file) == 0 && S_ISDIR(file.st_mode)) {
        errno = EISDIR;
    } else if (eaccess(path, W_OK) == 0) {
        return;
    } else if (errno == ENOENT) {
        char *copy = memory_strdup(path);
        bool can = eaccess(dirname(copy), W_OK | X_OK) == 0;
        memory_free(copy);
        if (can)
            return;
    }
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

bool live_check(const struct config *config, bool ports, struct config_errors *errors) {
    check_file(config, "logfile", config->logfile, errors);
    /* Loading overwrites the passphrases, so it gets copies. */
    struct config copy = *config;
    char *const pass = copy.tls.key_file_pass, *const upstream_pass = copy.upstream_tls.key_file_pass;
    copy.tls.key_file_pass = pass ? memory_strdup(pass) : NULL;
    copy.upstream_tls.key_file_pass = upstream_pass ? memory_strdup(upstream_pass) : NULL;
    struct secure secure;
    if (secure_load(&secure, &copy, errors))
        secure_clear(&secure);
    MEMORY_FREE_ALL(copy.tls.key_file_pass, copy.upstream_tls.key_file_pass);
    struct inherited none = {.predecessor = -1};
    struct listen_set set;
    if (ports) {
        (void)listen_open(&set, config, &none, true, errors);
        listen_close(&set, true);
    }
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
        (void)own_password_ask(config, false, errors);
    return errors->count == 0;
}

void live_look_up(const struct config *c, void (*tell)(const char *text)) {
    size_t upstreams = c->upstream_addresses.count;
    for (size_t i = 0; i < upstreams + c->witnesses.count; i++) {
        const char *text = i < upstreams ? c->upstream_addresses.words[i] : c->witnesses.words[i - upstreams];
        struct address at;
        struct addrinfo *found = NULL;
        char said[512];
        if (!address_parse(text, strlen(text), &at) || at.port == 0 || resolve_is_number(at.host))
            continue;
        int error = getaddrinfo(at.host, NULL, NULL, &found);
        snprintf(said, sizeof(said), "%s %s: the name does not resolve on this machine: %s",
                 i < upstreams ? "upstream" : "witness", text, error ? gai_strerror(error) : "");
        if (error)
            tell(said);
        else
            freeaddrinfo(found);
    }
}

/* ---- descriptors ----------------------------------------------------------------------------------- */

/* If the system permits fewer descriptors, clients share them with their own connections to nodes, which get a quarter.
 * A reload does not change the number of these connections. */
void live_raise_limit(struct proxy_shared *shared, const struct config *c, int64_t maxclients) {
    struct rlimit limit;
    rlim_t pins = shared->upstream.pins_total, spare = SPARE_DESCRIPTORS; /* for listeners, the log */
    rlim_t nodes = c->upstream_addresses.count > 1 ? c->upstream_addresses.count : 1;
    spare += (rlim_t)c->threads * nodes * ((rlim_t)c->upstream_connections + UPSTREAM_APARTS);
    bool reloads = pins > 0;
    if (!reloads) { /* connections that clients have for themselves: about one for each client */
        int64_t wanted = c->pinned_node > 0 ? c->pinned_node : PINS_USUAL;
        int64_t clients = c->maxclients > PINS_LEAST ? c->maxclients : PINS_LEAST;
        pins = (rlim_t)(wanted < clients ? wanted : clients);
        shared->upstream.pins_total = (unsigned)pins;
    }
    rlim_t need = (rlim_t)maxclients + pins + spare;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need)
        return;
    struct rlimit wanted = {.rlim_cur = need, .rlim_max = limit.rlim_max > need ? limit.rlim_max : need};
    if (setrlimit(RLIMIT_NOFILE, &wanted) == 0)
        return;
    wanted = (struct rlimit){.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &wanted) != 0)
        wanted = limit;
    rlim_t given = wanted.rlim_cur, left = given > spare + 4 ? given - spare : 4;
    if (given >= need)
        return;
    if (!reloads && pins > left / 4)
        pins = left / 4;
    rlim_t clients = left > pins ? left - pins : 1;
    clients = clients < (rlim_t)maxclients ? clients : (rlim_t)maxclients;
    shared->maxclients = (int64_t)clients;
    if (!reloads) /* at a reload other threads read it */
        shared->upstream.pins_total = (unsigned)pins;
    log_warning("maxclients %lld: only %lld are possible with %lld open files, %lld of which may have connections to "
                "nodes for themselves; raise the limit (ulimit -n)",
                (long long)maxclients, (long long)clients, (long long)given, (long long)pins);
}

/* ---- reloads --------------------------------------------------------------------------------------- */

static void note_loaded(struct live *l) {
    const struct secure *s = l->secure;
    struct tls_context *nodes =
        s->side[SECURE_NODES] ? s->side[SECURE_NODES] : s->side[SECURE_WITNESSES]; /* they show the same certificate */
    atomic_store(&l->shared->client_certificate_s,
                 s->side[SECURE_CLIENTS] ? tls_context_end(s->side[SECURE_CLIENTS]) : 0);
    atomic_store(&l->shared->node_certificate_s, nodes ? tls_context_end(nodes) : 0);
    atomic_store(&l->shared->loaded_s, (int64_t)time(NULL));
}

void live_init(struct live *l, int argc, char **argv, const struct config *config, struct secure *secure,
               struct proxy_shared *shared) {
    *l = (struct live){.argc = argc, .argv = argv, .config = config_ref(config), .secure = secure, .shared = shared};
    pthread_mutex_init(&l->mutex, NULL);
    note_loaded(l);
}

void live_clear(struct live *l) {
    config_unref(l->config);
    config_unref(l->witnesses_before);
    memory_free(l->switched);
    pthread_mutex_destroy(&l->mutex);
}

static void log_error(int len, const char *line) {
    log_warning("Configuration not reloaded, nothing was changed: %.*s", len, line);
}

/* How many witnesses of one configuration another one has not got. */
static unsigned witnesses_lack(const struct config *from, const struct config *in) {
    unsigned count = 0;
    for (size_t i = 0; i < from->witnesses.count; i++) {
        size_t k = 0;
        while (k < in->witnesses.count && strcasecmp(from->witnesses.words[i], in->witnesses.words[k]) != 0)
            k++;
        count += k == in->witnesses.count;
    }
    return count;
}

static bool witnesses_differ(const struct config *a, const struct config *b) {
    return a && (witnesses_lack(a, b) > 0 || witnesses_lack(b, a) > 0);
}

/* Whether a reload may change the witnesses so: one of them, when the leases from before the last change are over
 * (witness_change_ms), or back to the witnesses from before it. */
static bool witnesses_may_change(const struct live *l, const struct config *fresh, struct config_errors *errors) {
    int64_t left_ms = l->witnesses_again_ms - clock_even_ms();
    if (witnesses_lack(l->config, fresh) > 1 || witnesses_lack(fresh, l->config) > 1)
        return config_refuse(errors, fresh, "witness",
                             "witness: expected one address added, taken away or replaced at a time (docs/quorum.md)");
    if (left_ms > 0 && witnesses_differ(l->config, fresh) && witnesses_differ(l->witnesses_before, fresh))
        return config_refuse(
            errors, fresh, "witness",
            "witness: expected the next change in %lld s, when the time of the last one is over (twice "
            "witness-quarantine), or the addresses from before it",
            (long long)(left_ms + 999) / 1000);
    return true;
}

/* Puts a new configuration in force. A session may be acquiring under the rules from before: a fence that is new counts
 * for its lease, too. */
static void put_in_force(struct live *l, const struct config *fresh, struct secure *secure) {
    const struct config *before = l->config;
    l->config = fresh;
    if (fresh->maxclients != before->maxclients) {
        l->shared->maxclients = fresh->maxclients;
        live_raise_limit(l->shared, fresh, fresh->maxclients);
    }
    secure_replace(l->secure, secure);
    note_loaded(l);
    log_set_level(fresh->loglevel);
    log_set_json(fresh->log_json);
    lock_rules_fenced_by(before->rules, fresh->rules);
    engine_fences_came(l->shared->engine, fresh->rules);
    own_password_watch(fresh, true);
    if (witnesses_differ(before, fresh)) {
        config_unref(l->witnesses_before);
        l->witnesses_before = config_ref(before);
        l->witnesses_again_ms = clock_even_ms() + witness_change_ms(before->witness_quarantine_ms);
        log_warning("The witnesses have changed: change them at all proxies within %lld s (docs/quorum.md)",
                    (long long)before->witness_quarantine_ms / 1000);
    }
    for (unsigned i = 0; i < l->shared->threads; i++)
        worker_set_config(l->shared->workers[i], fresh);
    config_unref(before);
}

bool live_reload(void *arg, char *said, size_t size) {
    struct live *l = arg;
    MUTEX_GUARD(&l->mutex);
    struct secure secure;
    struct config_errors errors = {0};
    struct text waiting = {0};
    struct config *fresh = config_load(l->argc, l->argv, &errors);
    bool done = secure_load(&secure, fresh, &errors) && errors.count == 0;
    if (done) {
        atomic_store(&l->shared->restart_needed, (unsigned)config_keep(fresh, l->config, l->switched, &waiting));
        char why[WHY_MAX];
        done = config_quorum_fits(fresh, why, sizeof(why)); /* with the witnesses that are in force */
        if (!done)
            config_refuse(&errors, fresh, "lock", "lock %s (the first witnesses need a restart)", why);
    }
    done = done && witnesses_may_change(l, fresh, &errors) && own_password_ask(fresh, true, &errors);
    if (done) {
        put_in_force(l, fresh, &secure);
        log_notice("Configuration reloaded, lock rules: %zu", lock_rules_count(fresh->rules));
        if (waiting.len > 0)
            log_warning("These directives have changed and need a restart: %s", waiting.data);
    } else {
        secure_clear(&secure);
        config_errors_each(&errors, log_error);
        config_unref(fresh);
    }
    atomic_store(&l->shared->reload_failed, !done);
    snprintf(said, size, "%s", waiting.len > 0 ? waiting.data : "");
    text_clear(&waiting);
    config_errors_clear(&errors);
    return done;
}

const char *live_next_upstream(void *arg, char *address, size_t size) {
    struct live *l = arg;
    struct config_errors errors = {0};
    const char *error = NULL;
    MUTEX_GUARD(&l->mutex);
    struct config *next = config_load(l->argc, l->argv, &errors);
    config_errors_each(&errors, log_error);
    if (errors.count > 0)
        error = "ERR the configuration is wrong: the proxy's log says where; nothing was changed";
    else if (l->config->upstream != CONFIG_STANDALONE || next->upstream != CONFIG_STANDALONE)
        error = "ERR PROXY SWITCH is for upstream standalone, in force and in the configuration";
    else
        snprintf(address, size, "%s", next->upstream_addresses.words[0]);
    config_unref(next);
    config_errors_clear(&errors);
    return error;
}

void live_switched(void *arg, const char *address) {
    struct live *l = arg;
    pthread_mutex_lock(&l->mutex);
    memory_free(l->switched);
    l->switched = memory_strdup(address);
    pthread_mutex_unlock(&l->mutex);
    (void)live_reload(l, NULL, 0);
}

void live_show(void *arg, const struct report *report) {
    struct live *l = arg;
    size_t len = report->pattern_len;
    char lower[PATTERN_MAX_BYTES]; /* as directives' names are */
    if (len > sizeof(lower))
        return; /* no name is that long */
    for (size_t i = 0; i < len; i++)
        lower[i] = (char)tolower((unsigned char)report->pattern[i]);
    MUTEX_GUARD(&l->mutex);
    for (size_t i = 0; i < config_directive_count(); i++) {
        const char *name = config_directive_get(i).name;
        if (!config_shown(i) || (report->pattern && !glob_match(lower, len, name, strlen(name))))
            continue;
        struct text value = {0};
        config_show(l->config, i, &value);
        report->text(report->arg, name, value.len > 0 ? value.data : "", value.len);
        text_clear(&value);
    }
}
