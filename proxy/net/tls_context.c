/*
 * Builds OpenSSL's context of certificates, keys and rules from the directives. Errors name their directive.
 * Connections are made under a mutex, so that a reload can replace everything at once.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "proxy/base/memory.h"
#include "proxy/net/tls_private.h"

struct tls_context {
    pthread_mutex_t mutex;
    SSL_CTX *ctx;
    enum tls_verify verify;
    char *server_name;
};

enum { COMPLAINT_MAX = 160, REFUSAL_MAX = 1024 };

void tls_complaint(char *out, size_t size) {
    unsigned long code = ERR_peek_error();
    const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code)) : ERR_reason_error_string(code);
    snprintf(out, size, "%s", text ? text : "");
    ERR_clear_error();
}

/* ---- errors ---------------------------------------------------------------------------------------- */

struct loading {
    const struct tls_options *o;
    SSL_CTX *ctx;
    tls_refusal *refused;
    void *arg;
};

/* Reports an invalid directive, with OpenSSL's reason or what was expected; `value` NULL: not given. Returns false. */
static bool refuse(struct loading *l, const char *directive, const char *value, const char *expected) {
    char why[COMPLAINT_MAX], name[64], text[REFUSAL_MAX];
    const char *quote = value ? "'" : "";
    tls_complaint(why, sizeof(why));
    snprintf(name, sizeof(name), "%s%s", l->o->server ? "" : "upstream-", directive);
    snprintf(text, sizeof(text), "%s%s%s%s%s: expected %s%s%s", name, value ? " " : "", quote, value ? value : "",
             quote, expected, *why ? ": " : "", why);
    l->refused(l->arg, name, text);
    return false;
}

/* Gives OpenSSL the passphrase of the key file; otherwise it would ask at the terminal. */
static int give_passphrase(char *out, int size, int writing, void *arg) {
    const char *pass = arg;
    size_t len = pass ? strlen(pass) : 0;
    if (len == 0 || len > (size_t)size)
        return -1;
    memcpy(out, pass, len);
    return (int)len;
}

static bool load_certificate(struct loading *l) {
    const struct tls_options *o = l->o;
    if (!o->cert_file && !o->key_file && !o->server)
        return true;
    if (!o->cert_file)
        return refuse(l, "tls-cert-file", NULL,
                      o->server ? "a certificate, as tls-port is used" : "the certificate of the key");
    return SSL_CTX_use_certificate_chain_file(l->ctx, o->cert_file) == 1 ||
           refuse(l, "tls-cert-file", o->cert_file, "a certificate in a PEM file that can be read");
}

/* Loads the certificate's private key. Whether key and certificate match is only checked if the certificate was
 * loaded. */
static bool load_key(struct loading *l, bool certified) {
    const struct tls_options *o = l->o;
    if (!o->key_file)
        return (!o->cert_file && !o->server) || refuse(l, "tls-key-file", NULL, "the private key of the certificate");
    SSL_CTX_set_default_passwd_cb(l->ctx, give_passphrase);
    SSL_CTX_set_default_passwd_cb_userdata(l->ctx, (void *)o->key_pass);
    int read = SSL_CTX_use_PrivateKey_file(l->ctx, o->key_file, SSL_FILETYPE_PEM);
    SSL_CTX_set_default_passwd_cb_userdata(l->ctx, NULL);
    if (read != 1)
        return refuse(
            l, "tls-key-file", o->key_file,
            "the certificate's private key in a PEM file that can be read (tls-key-file-pass opens it where it "
            "is encrypted)");
    return !certified || SSL_CTX_check_private_key(l->ctx) == 1 ||
           refuse(l, "tls-key-file", o->key_file, "the private key of the certificate");
}

/* Loads the trusted authorities, and sets what the peer must prove. */
static bool load_authorities(struct loading *l) {
    const struct tls_options *o = l->o;
    bool right = !o->ca_file || SSL_CTX_load_verify_file(l->ctx, o->ca_file) == 1 ||
                 refuse(l, "tls-ca-cert-file", o->ca_file, "certificates in a PEM file that can be read");
    struct stat dir;
    bool is_dir = o->ca_dir && stat(o->ca_dir, &dir) == 0 && S_ISDIR(dir.st_mode);
    if (o->ca_dir && (!is_dir || SSL_CTX_load_verify_dir(l->ctx, o->ca_dir) != 1))
        right = refuse(l, "tls-ca-cert-dir", o->ca_dir, "a folder with certificates");
    if (!right || o->verify == TLS_VERIFY_NO)
        return right;
    if (!o->ca_file && !o->ca_dir) {
        if (o->server)
            return refuse(l, "tls-ca-cert-file", NULL,
                          "the authorities that vouch for clients (or tls-ca-cert-dir, or tls-auth-clients no)");
        if (SSL_CTX_set_default_verify_paths(l->ctx) != 1)
            return refuse(l, "tls-ca-cert-file", NULL,
                          "the authorities that vouch for nodes; the system's are not there");
    }
    if (o->server && o->ca_file)
        SSL_CTX_set_client_CA_list(l->ctx, SSL_load_client_CA_file(o->ca_file));
    bool must = !o->server || o->verify != TLS_VERIFY_OPTIONAL;
    SSL_CTX_set_verify(l->ctx, SSL_VERIFY_PEER | (must ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
    ERR_clear_error();
    return true;
}

static bool load_dh_params(struct loading *l) {
    const char *path = l->o->dh_params_file;
    if (!path)
        return true;
    BIO *file = BIO_new_file(path, "r");
    EVP_PKEY *params = file ? PEM_read_bio_Parameters(file, NULL) : NULL;
    BIO_free(file);
    if (params && SSL_CTX_set0_tmp_dh_pkey(l->ctx, params) == 1)
        return true;
    EVP_PKEY_free(params);
    return refuse(l, "tls-dh-params-file", path, "Diffie-Hellman parameters in a PEM file that can be read");
}

/* Reports an invalid directive that applies to servers (tls-...) and clients (upstream-tls-...); returns false. */
static bool refuse_shared(struct loading *l, const char *directive, const char *value, const char *expected) {
    char text[REFUSAL_MAX];
    ERR_clear_error(); /* OpenSSL's text adds nothing here */
    snprintf(text, sizeof(text), "%s '%s': expected %s", directive, value, expected);
    l->refused(l->arg, directive, text);
    return false;
}

static bool set_rules(struct loading *l) {
    const struct tls_options *o = l->o;
    uint64_t off =
        SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CLEANSE_PLAINTEXT;
    off |= o->protocols & TLS_V1_0 ? 0 : SSL_OP_NO_TLSv1;
    off |= o->protocols & TLS_V1_1 ? 0 : SSL_OP_NO_TLSv1_1;
    off |= o->protocols & TLS_V1_2 ? 0 : SSL_OP_NO_TLSv1_2;
    off |= o->protocols & TLS_V1_3 ? 0 : SSL_OP_NO_TLSv1_3;
    off |= o->prefer_server_ciphers ? SSL_OP_CIPHER_SERVER_PREFERENCE : 0;
    SSL_CTX_set_options(l->ctx, off);
    SSL_CTX_set_mode(l->ctx,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(l->ctx, 1);
    bool right = true;
    if (o->ciphers && SSL_CTX_set_cipher_list(l->ctx, o->ciphers) != 1)
        right = refuse_shared(l, "tls-ciphers", o->ciphers, "a list of ciphers as OpenSSL writes it");
    if (o->ciphersuites && SSL_CTX_set_ciphersuites(l->ctx, o->ciphersuites) != 1)
        right = refuse_shared(l, "tls-ciphersuites", o->ciphersuites, "a list of TLSv1.3 ciphersuites");
    if (o->server && o->session_caching) {
        static const unsigned char id[] = "lockkeeper";
        SSL_CTX_set_session_cache_mode(l->ctx, SSL_SESS_CACHE_SERVER);
        SSL_CTX_sess_set_cache_size(l->ctx, (long)o->session_cache_size);
        SSL_CTX_set_timeout(l->ctx, (long)o->session_cache_timeout_s);
        SSL_CTX_set_session_id_context(l->ctx, id, sizeof(id) - 1);
    } else {
        SSL_CTX_set_session_cache_mode(l->ctx, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_options(l->ctx, SSL_OP_NO_TICKET);
        SSL_CTX_set_num_tickets(l->ctx, 0);
    }
    return right;
}

/* ---- life ----------------------------------------------------------------------------------------- */

struct tls_context *tls_context_new(const struct tls_options *options, tls_refusal *refused, void *arg) {
    ERR_clear_error();
    struct loading l = {.o = options, .refused = refused, .arg = arg};
    l.ctx = SSL_CTX_new(options->server ? TLS_server_method() : TLS_client_method());
    if (!l.ctx) {
        refused(arg, "tls-protocols", "tls-protocols: expected a library that can do TLS");
        return NULL;
    }
    bool right = set_rules(&l);
    bool certified = load_certificate(&l);
    right = load_key(&l, certified) && certified && right;
    right = load_authorities(&l) && right;
    right = load_dh_params(&l) && right;
    if (!right) {
        SSL_CTX_free(l.ctx);
        return NULL;
    }
    struct tls_context *c = memory_zalloc(sizeof(*c));
    pthread_mutex_init(&c->mutex, NULL);
    c->ctx = l.ctx;
    c->verify = options->verify;
    c->server_name = options->server_name ? memory_strdup(options->server_name) : NULL;
    return c;
}

void tls_context_replace(struct tls_context *c, struct tls_context *fresh) {
    pthread_mutex_lock(&c->mutex);
    SSL_CTX *ctx = c->ctx;
    char *name = c->server_name;
    c->ctx = fresh->ctx;
    c->server_name = fresh->server_name;
    c->verify = fresh->verify;
    pthread_mutex_unlock(&c->mutex);
    fresh->ctx = ctx;
    fresh->server_name = name;
    tls_context_free(fresh);
}

int64_t tls_context_end(struct tls_context *c) {
    struct tm end;
    pthread_mutex_lock(&c->mutex);
    const X509 *certificate = SSL_CTX_get0_certificate(c->ctx);
    bool known = certificate && ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1;
    pthread_mutex_unlock(&c->mutex);
    return known ? (int64_t)timegm(&end) : 0;
}

void tls_context_free(struct tls_context *c) {
    if (!c)
        return;
    SSL_CTX_free(c->ctx);
    pthread_mutex_destroy(&c->mutex);
    memory_free(c->server_name);
    memory_free(c);
}

/* Sets the name that the peer must prove, and by which a server chooses among several certificates. */
static bool ask_for(SSL *ssl, const char *host, bool verify) {
    unsigned char ip[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, host, ip) == 1 || inet_pton(AF_INET6, host, ip) == 1)
        return !verify || X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set_tlsext_host_name(ssl, host) == 1 && (!verify || SSL_set1_host(ssl, host) == 1);
}

SSL *tls_context_open(struct tls_context *c, const char *host) {
    pthread_mutex_lock(&c->mutex);
    SSL *ssl = SSL_new(c->ctx);
    if (ssl && host && !ask_for(ssl, c->server_name ? c->server_name : host, c->verify == TLS_VERIFY_NAME)) {
        SSL_free(ssl);
        ssl = NULL;
    }
    pthread_mutex_unlock(&c->mutex);
    return ssl;
}
