/*
 * Reloads.
 *
 *      file ── config_load, certificates ──┬─ any error: to the log; nothing changes
 *                                          └─> config_keep ──> each worker points to the new configuration
 */
#include "proxy/live.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "proxy/base/clock.h"
#include "proxy/base/glob.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/own_password.h"
#include "proxy/witness/vote.h"
#include "proxy/worker/worker.h"

enum { PATTERN_MAX_BYTES = 256, WHY_MAX = 320 };

/* Sets the metrics of a newly applied configuration. */
static void note_loaded(struct live *l) {
    const struct secure *s = l->secure;
    struct tls_context *nodes = s->nodes ? s->nodes : s->witnesses; /* they show the same certificate */
    atomic_store(&l->shared->client_certificate_s, s->clients ? tls_context_end(s->clients) : 0);
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

static void note_witnesses(struct live *l, const struct config *before) {
    if (!witnesses_differ(before, l->config))
        return;
    config_unref(l->witnesses_before);
    l->witnesses_before = config_ref(before);
    l->witnesses_again_ms = clock_even_ms() + witness_change_ms(before->witness_quarantine_ms);
    log_warning("The witnesses have changed: change them at all proxies within %lld s (docs/quorum.md)",
                (long long)before->witness_quarantine_ms / 1000);
}

/* Puts a new configuration in force. A session may be acquiring under the rules from before: a fence that is new counts
 * for its lease, too. */
static void put_in_force(struct live *l, const struct config *fresh, struct secure *secure) {
    const struct config *before = l->config;
    l->config = fresh;
    if (fresh->maxclients != before->maxclients) {
        l->shared->maxclients = fresh->maxclients;
        l->raise_limit(l->arg, fresh->maxclients);
    }
    secure_replace(l->secure, secure);
    note_loaded(l);
    log_set_level(fresh->loglevel);
    log_set_json(fresh->log_json);
    lock_rules_fenced_by(before->rules, fresh->rules);
    engine_fences_came(l->shared->engine, fresh->rules);
    own_password_watch(fresh, true);
    note_witnesses(l, before);
    for (unsigned i = 0; i < l->shared->threads; i++)
        worker_set_config(l->shared->workers[i], fresh);
    config_unref(before);
}

bool live_reload(void *arg, char *said, size_t size) {
    struct live *l = arg;
    pthread_mutex_lock(&l->mutex);
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
    done = done && witnesses_may_change(l, fresh, &errors) && own_password_reload(fresh, &errors);
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
    pthread_mutex_unlock(&l->mutex);
    return done;
}

const char *live_next_upstream(void *arg, char *address, size_t size) {
    struct live *l = arg;
    struct config_errors errors = {0};
    const char *error = NULL;
    pthread_mutex_lock(&l->mutex);
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
    pthread_mutex_unlock(&l->mutex);
    return error;
}

void live_switched(void *arg, const char *address) {
    struct live *l = arg;
    char said[WHY_MAX];
    pthread_mutex_lock(&l->mutex);
    memory_free(l->switched);
    l->switched = memory_strdup(address);
    pthread_mutex_unlock(&l->mutex);
    (void)live_reload(l, said, sizeof(said));
}

void live_show(void *arg, const char *pattern, size_t len, const struct report *report) {
    struct live *l = arg;
    char lower[PATTERN_MAX_BYTES]; /* as directives' names are */
    if (len > sizeof(lower))
        return; /* no name is that long */
    for (size_t i = 0; pattern && i < len; i++)
        lower[i] = (char)tolower((unsigned char)pattern[i]);
    pthread_mutex_lock(&l->mutex);
    for (size_t i = 0; i < config_directive_count(); i++) {
        const char *name = config_directive_get(i).name;
        if (!config_shown(i) || (pattern && !glob_match(lower, len, name, strlen(name))))
            continue;
        struct text value = {0};
        config_show(l->config, i, &value);
        report->text(report->arg, name, value.len > 0 ? value.data : "", value.len);
        text_clear(&value);
    }
    pthread_mutex_unlock(&l->mutex);
}

int64_t live_shutdown_ms(struct live *l) {
    pthread_mutex_lock(&l->mutex);
    int64_t ms = l->config->shutdown_timeout_s * 1000;
    pthread_mutex_unlock(&l->mutex);
    return ms;
}

int64_t live_finish_ms(struct live *l) {
    pthread_mutex_lock(&l->mutex);
    const struct config *c = l->config;
    int64_t s = c->finish_timeout_s < c->shutdown_timeout_s ? c->finish_timeout_s : c->shutdown_timeout_s;
    pthread_mutex_unlock(&l->mutex);
    return s * 1000;
}
