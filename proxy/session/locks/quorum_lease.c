/*
 * The witnesses of a worker, and what the proxy tells them of renewals and releases. A release is told behind Redis's
 * answer, and no client waits for it.
 */
#include "proxy/session/locks/quorum.h"

#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/private.h"

/* A renewal that Redis has made, while the witnesses are asked. */
struct renewed {
    struct worker *worker;
    uint64_t token;
    int64_t begun_ms;
    struct lock_result result;
    struct lock_key key;
    char name[];
};

static void on_embedded_trusted(void *arg, bool answered) {
    if (!answered)
        log_warning("An embedded witness does not answer, and is in quarantine");
}

/* Embedded witnesses begin with the proxy, and have promised nothing before. */
static void trust_embedded(struct worker *w) {
    for (size_t i = 0; i < w->config->witnesses.count && w->index == 0; i++) {
        const char *address = w->config->witnesses.words[i];
        if (strncmp(address, "unix:", 5) == 0)
            (void)witness_trust(w->witnesses, address, strlen(address), on_embedded_trusted, NULL);
    }
}

void quorum_open(struct worker *w) {
    const struct config *c = w->config;
    struct witness_config config = {.addresses = (const char *const *)c->witnesses.words,
                                    .count = c->witnesses.count,
                                    .space = c->witness_namespace,
                                    .tls = w->shared->witness_tls,
                                    .timeout_ms = c->witness_timeout_ms,
                                    .quarantine_ms = c->witness_quarantine_ms};
    if (config.count == 0)
        return;
    w->witnesses = witnesses_new(w->loop, &w->readable, &w->chunks, &config);
    trust_embedded(w);
}

void quorum_close(struct worker *w) {
    struct witnesses *set = w->witnesses;
    w->witnesses = NULL;
    witnesses_free(set);
}

void quorum_change(struct worker *w) {
    const struct config_words *to = &w->config->witnesses;
    if (!w->witnesses)
        return;
    witnesses_change(w->witnesses, (const char *const *)to->words, to->count);
    witness_probe(w->witnesses); /* so that each thread shows a newcomer's quarantine */
}

struct witness_lease quorum_lease(const struct lock_key *key, const char *token, uint64_t fence) {
    return (struct witness_lease){.db = key->db, .name = key->name, .len = key->len, .token = token, .fence = fence};
}

int64_t quorum_longest_ms(const struct worker *w) {
    return lock_promise_longest_ms(w->config->witness_quarantine_ms, w->config->witness_timeout_ms);
}

int64_t quorum_promise_ms(const struct worker *w, int64_t pttl_ms) {
    int64_t ms = lock_promise_ms(pttl_ms > 0 ? pttl_ms : 0, w->config->witness_timeout_ms);
    bool fits = pttl_ms >= 0 && ms < w->config->witness_quarantine_ms;
    return fits ? ms : w->config->witness_quarantine_ms;
}

void quorum_released(struct worker *w, const struct lock_key *key, const char *token, uint64_t fence) {
    struct witness_lease lease = quorum_lease(key, token, fence);
    if (w->witnesses)
        witness_free(w->witnesses, &lease);
}

/* The engine hears of an extension that witnesses have not confirmed as of one that was not made: the lease ends when
 * it would have ended before, and the renewal is tried again until then. */
static void renewed_heard(void *arg, const struct witness_word *word) {
    struct renewed *r = arg;
    struct worker *w = r->worker;
    int64_t waited_ms = worker_now(w) - r->begun_ms;
    if (r->result.pttl_ms > waited_ms)
        r->result.pttl_ms -= waited_ms;
    enum verdict verdict = vote_verdict(&word->vote);
    if (verdict == VERDICT_HELD || verdict == VERDICT_LOW)
        r->result.outcome = LOCK_OVERTAKEN;
    else if (verdict != VERDICT_GRANTED)
        r->result.outcome = LOCK_NOT_SENT;
    invariant(w->own_works > 0, "no renewal is under way");
    w->own_works--;
    engine_renewed(w->shared->engine, &r->key, r->token, &r->result, worker_now(w));
    if (r->result.outcome == LOCK_NOT_SENT)
        worker_engine_due(w, w->config->witness_timeout_ms);
    memory_free(r);
}

void quorum_renewed(struct worker *w, const struct lock_lease *lease, const struct lock_result *result) {
    if (!lease->quorum || result->outcome != LOCK_DONE || !w->witnesses) {
        engine_renewed(w->shared->engine, &lease->key, lease->token, result, worker_now(w));
        return;
    }
    struct renewed *r = memory_zalloc(sizeof(*r) + lease->key.len);
    r->worker = w;
    r->token = lease->token;
    r->begun_ms = worker_now(w);
    r->result = *result;
    r->result.holder = NULL;
    memcpy(r->name, lease->key.name, lease->key.len);
    r->key = (struct lock_key){.db = lease->key.db, .name = r->name, .len = lease->key.len};
    w->own_works++;
    struct witness_lease of = quorum_lease(&r->key, lease->token_text, lease->fence);
    witness_take(w->witnesses, &of, "", quorum_promise_ms(w, result->pttl_ms + lease->delay_ms),
                 w->config->witness_timeout_ms, renewed_heard, r);
}
