/* Makes TLS contexts from the configuration's directives. It knows no connections. */
#include "proxy/secure.h"

#include <string.h>

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
