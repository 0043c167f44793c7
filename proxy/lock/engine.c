/*
 * Commands on lock keys: what is chosen before the script runs, and what is learnt from the script's answer.
 *
 *      engine_begin   entry, session's peer ──> attribute ──> plan
 *      engine_finish  answer ──> learn (which lease is live, which have ended) ──> apply (by the command's verb)
 */
#include "proxy/lock/outcome.h"

#include <inttypes.h>
#include <stdio.h>

#include "parser/slot.h"
#include "proxy/base/bytes.h"
#include "proxy/base/memory.h"
#include "proxy/lock/member.h"

/* ---- the engine ------------------------------------------------------------------------------ */

struct lock_engine *engine_new(const char *process, uint64_t seed, const struct lock_sink *sink) {
    struct lock_engine *e = memory_zalloc(sizeof(*e));
    size_t len = strnlen(process, PROCESS_ID_LEN);
    memset(e->process, '-', PROCESS_ID_LEN);
    memcpy(e->process, process, len);
    e->sink = *sink;
    list_init(&e->departing);
    client_table_init(&e->clients, seed);
    ledger_init(e, seed);
    for (size_t i = 0; i < SHARDS; i++)
        workload_init(&e->shards[i]);
    return e;
}

void engine_free(struct lock_engine *e) {
    if (!e)
        return;
    ledger_clear(e);
    for (size_t i = 0; i < SHARDS; i++)
        workload_clear(&e->shards[i]);
    client_table_clear(&e->clients);
    memory_free(e);
}

void engine_alone(struct lock_engine *e) {
    for (size_t i = 0; i < SHARDS; i++)
        e->shards[i].alone = true;
}

/* ---- before the script ----------------------------------------------------------------------- */

static inline uint64_t key_hash(const struct lock_engine *e, struct lock_session *s, const struct lock_key *key,
                                uint64_t *pattern) {
    if (key->len == s->last.len && key->db == s->last.db && key->len && bytes_same(s->last.name, key->name, key->len)) {
        *pattern = s->last.pattern;
        return s->last.hash;
    }
    uint64_t hash = ledger_hash(e, key, pattern);
    if (key->len <= LOCK_KEY_KNOWN) {
        s->last.hash = hash;
        s->last.pattern = *pattern;
        s->last.of = 0;
        s->last.db = key->db;
        s->last.len = (uint32_t)key->len;
        s->last.slot = slot_of_key(key->name, key->len);
        memcpy(s->last.name, key->name, key->len);
    }
    return hash;
}

/* Numbers the workload for the plan's key. The session keeps the number of its last command's workload: that earns 1.3
 * % of the bound on acquire and release. */
static inline uint64_t workload_of_plan(struct lock_session *s, const struct peer *p, const struct lock_plan *plan) {
    uint64_t of = (plan->rule->hash ^ p->client->hash) | 1;
    if (plan->key.len > LOCK_KEY_KNOWN)
        return workload_number(p, plan->rule, plan->pattern);
    if (s->last.of != of) {
        s->last.of = of;
        s->last.workload = workload_number(p, plan->rule, plan->pattern);
    }
    return s->last.workload;
}

/* Takes the value that the session layer has set for the next command. */
static __attribute__((noinline)) uint64_t take_named(const struct lock_engine *e, struct lock_session *s) {
    const char *named = s->named;
    s->named = NULL;
    return hash_bytes(&e->value_seed, named, s->named_len);
}

void engine_begin(struct lock_engine *e, struct lock_session *s, enum lock_verb verb, const struct lock_key *key,
                  const struct lock_rule *rule, uint32_t login, bool queued, int64_t now_ms, struct lock_plan *plan) {
    plan->key = *key;
    plan->rule = rule;
    plan->verb = verb;
    plan->login = login;
    plan->begun_ms = now_ms;
    plan->claim = plan->claim_fence = plan->group = plan->field = plan->read_fence = 0;
    plan->short_record = plan->several = plan->uses = plan->counted = plan->first_release = plan->twice =
        plan->repeats = plan->held_back = plan->undone = plan->seen_known = plan->data_free = false;
    plan->patient = s->patient && !queued;
    plan->named = __builtin_expect(s->named != NULL, false) ? take_named(e, s) : 0;
    plan->queued = plan->transaction = queued;
    plan->claim_token[0] = '\0';
    plan->claim_len = 0;
    plan->seen_len = 0;
    plan->seen_long = NULL;
    uint64_t hash = plan->hash = key_hash(e, s, key, &plan->pattern);
    struct shard *sh = ledger_shard(e, hash);
    shard_lock(sh);
    struct peer *p = plan->peer = peer_get(sh, s);
    plan->workload = rule ? workload_of_plan(s, p, plan) : 0;
    const struct workload *workload = rule ? workload_of(sh, p, plan->workload) : NULL;
    plan->attempt = ledger_number(e) - (workload && (workload->facts & FACT_POOLED));
    plan->attempt_len = token_write(e, plan->attempt, plan->attempt_token);
    if (p->alarms && alarms_end_by(verb))
        alarms_forget(p, key, 0);
    p->in_flight++; /* the peer stays until engine_finish */
    struct entry *en = entry_find(sh, key, hash);
    plan->slot = en ? en->slot : key->len <= LOCK_KEY_KNOWN ? s->last.slot : slot_of_key(key->name, key->len);
    plan->seems_held = en && en->live_fence > 0;
    attribute(sh, en, p, now_ms, plan);
    shard_unlock(sh);
}

void engine_sent(struct lock_engine *e, struct lock_plan *plan) {
    plan->queued = false;
    if (!lock_verb_is(plan->verb, VERB_SPENDS))
        return;
    struct entry *en;
    struct shard *sh = ledger_lock(e, &plan->key, plan->hash, &en);
    struct workload *workload = workload_find(sh, plan->peer, plan->rule, plan->pattern);
    struct key_stats *key_stats = key_stats_find(en, workload);
    struct claim *c = claim_find(en, plan->claim);
    /* G1: a release in a transaction counts from EXEC on. */
    if (key_stats && plan->verb != LOCK_COUNT_DOWN) {
        workload_count(workload, key_stats, TALLY_RELEASED);
        plan->counted = true;
    }
    if (c && plan->uses) /* otherwise another release has used the claim up meanwhile */
        claim_release_sent(c);
    shard_unlock(sh);
}

bool engine_looks_back(struct lock_plan *plan, const struct lock_plan *before, bool acquires,
                       const struct lock_plan **acquirer) {
    plan->group = before->group ? before->group : before->attempt;
    if (*acquirer && lock_verb_is(before->verb, VERB_ENDS))
        return false;
    enum lock_verb verb = before->verb;
    bool acquires_own = lock_verb_is(verb, VERB_ACQUIRES) && before->claim == 0; /* no lease of its claim's */
    if (acquires || acquires_own || verb == LOCK_ACQUIRE || verb == LOCK_SCRIPT)
        *acquirer = before;
    return true;
}

void engine_follow(struct lock_engine *e, struct lock_plan *plan, const struct lock_plan *earlier, int64_t now_ms) {
    invariant(plan->queued && earlier->queued, "a command follows another outside of a transaction");
    /* A script may have acquired, or renewed what the session held before. */
    if (plan->verb == LOCK_SCRIPT || (earlier->verb == LOCK_SCRIPT && plan->claim != 0))
        return;
    struct entry *en;
    struct shard *sh = ledger_lock(e, &plan->key, plan->hash, &en);
    struct claim *c = claim_find(en, plan->claim);
    if (c && plan->uses) {
        c->uses--;
        lease_settle(sh, c, now_ms);
    }
    plan->uses = false;
    plan->claim = earlier->attempt;
    plan->claim_fence = 0;
    plan->several = false;
    /* If data stands at the key, the earlier SETNX has lost, and the session may only write over the data. */
    plan->data_free = plan->data_free && (earlier->verb != LOCK_ACQUIRE || lock_verb_is(plan->verb, VERB_WRITES));
    memcpy(plan->claim_token, earlier->attempt_token, sizeof(plan->claim_token));
    plan->claim_len = earlier->attempt_len;
    if (plan->right != RIGHT_ENROL)
        plan->right = RIGHT_CLAIM;
    shard_unlock(sh);
}

bool engine_again(struct lock_engine *e, struct lock_plan *plan, const struct lock_result *result, int64_t now_ms) {
    if (result->outcome != LOCK_HELD || plan->rule->owner != LOCK_OWNER_AUTO || plan->transaction ||
        (plan->verb != LOCK_RELEASE && plan->verb != LOCK_ACQUIRE))
        return false;
    struct entry *en;
    struct shard *sh = ledger_lock(e, &plan->key, plan->hash, &en);
    /* C6: if a release did not find its claim's lease, another proxy may have released that lease. */
    const struct claim *own = plan->verb == LOCK_RELEASE ? claim_find(en, plan->claim) : NULL;
    bool spent = own && plan->right == RIGHT_CLAIM && claim_made_way(own, now_ms);
    if (spent)
        plan->right = RIGHT_SPENT;
    /* B2: the refused release was the holder's, so the lease makes way for this attempt. That is a crossing. */
    struct claim *c = plan->verb == LOCK_ACQUIRE ? attribute_makes_way(en, plan->peer, result->suspects, now_ms) : NULL;
    bool again = c && c->fence == result->fence;
    if (again) {
        workload_count(c->workload, key_stats_find(en, c->workload), TALLY_LOST);
        aftermath_mistaken(c->workload, key_stats_find(en, c->workload));
        workload_vote(sh, c->workload, plan->peer, c->peer, &plan->key, now_ms);
        if (c->peer->remote) /* another proxy made the token: the script finds the lease by its fence */
            plan->claim_len = (uint8_t)snprintf(plan->claim_token, sizeof(plan->claim_token), "%" PRIu64, c->fence);
        else
            plan->claim_len = token_write(e, c->token, plan->claim_token);
        plan->right = RIGHT_RELEASE_THEN_ACQUIRE;
        claim_held(sh, c, now_ms);
        claim_drop(sh, c);
    }
    shard_unlock(sh);
    return again || spent;
}

uint64_t engine_new_fence(struct lock_engine *e, uint64_t now_us) {
    uint_fast64_t last = atomic_load(&e->fences), next;
    now_us += atomic_load(&e->fences_ahead);
    do
        next = now_us > last ? now_us : last + 1;
    while (!atomic_compare_exchange_weak(&e->fences, &last, next));
    return next;
}

void engine_fence_heard(struct lock_engine *e, uint64_t fence, uint64_t now_us) {
    uint_fast64_t ahead = atomic_load(&e->fences_ahead);
    while (fence > now_us + ahead)
        if (atomic_compare_exchange_weak(&e->fences_ahead, &ahead, fence - now_us))
            break;
}

bool engine_claim_lasts(struct lock_engine *e, const struct lock_plan *plan, int64_t now_ms) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, &plan->key, plan->hash, &en);
    const struct claim *c = claim_find(en, plan->claim);
    bool lasts = c && !claim_ended(c) && (!c->end_ms || now_ms < c->end_ms);
    shard_unlock(sh);
    return lasts;
}

void engine_put_off(struct lock_engine *e, const struct lock_plan *plan) {
    struct shard *sh = ledger_shard(e, plan->hash);
    shard_lock(sh);
    invariant(plan->peer->in_flight > 0, "no command is in flight");
    plan->peer->in_flight--;
    peer_forget(sh, plan->peer);
    shard_unlock(sh);
    if (plan->seen_long)
        memory_free(plan->seen_long);
}

bool engine_own_lease(struct lock_engine *e, const struct lock_plan *plan, uint64_t fence, int64_t now_ms) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, &plan->key, plan->hash, &en);
    const struct contender *w = contender_find(en, plan->peer);
    const struct claim *c = entry_claims(en);
    while (c &&
           !((c->peer == plan->peer || recognised_for(w, c)) && (fence ? c->fence == fence : claim_is_live(c, now_ms))))
        c = c->next;
    bool own = c && !workload_pooled(workload_of(sh, plan->peer, plan->workload), plan->peer, plan->rule);
    shard_unlock(sh);
    return own;
}

void engine_shifted(struct lock_engine *e, const struct lock_plan *plan, const struct lock_result *r, int64_t now_ms) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, &plan->key, plan->hash, &en);
    for (struct claim *c = entry_claims(en); c; c = c->next)
        if (c->fence == r->fence)
            claim_expect_until(c, now_ms + r->shifted_ms);
    shard_unlock(sh);
}

uint64_t engine_holder(struct lock_engine *e, const struct lock_key *key, uint64_t hash, int64_t now_ms) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, key, hash, &en);
    const struct claim *c = entry_claims(en);
    while (c && !claim_is_live(c, now_ms))
        c = c->next;
    uint64_t session = c && !c->peer->closed && !c->peer->remote && !claim_pooled(c) ? c->peer->id : 0;
    shard_unlock(sh);
    return session;
}

/* S7: a session that has lost the lock writes late. Claims are in the order of their fences, so the last claim that
 * fits is the newest. A session without a claim may be a worker that has come back over another connection, as in C1.
 */
struct lock_writing engine_writing(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key,
                                   int64_t now_ms) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, key, engine_key_hash(e, key), &en);
    const struct claim *own = NULL, *own_over = NULL, *client = NULL, *client_over = NULL, *closed_over = NULL;
    struct lock_writing w = {.how = WRITER_NONE};
    const struct contender *contender = contender_of(sh, en, s);
    for (const struct claim *c = entry_claims(en); c; c = c->next) {
        bool live = claim_is_live(c, now_ms), same = c->peer->client == s->client;
        bool mine = c->peer->id == s->id || recognised_for(contender, c);
        if (!c->fence)
            continue;
        if (live && mine)
            own = c;
        if (live && same)
            client = c;
        if (!live && mine && !claim_writes_for_others(c))
            own_over = c;
        if (!live && same && c->lease != LEASE_AWAITS_OWNER && claim_pooled(c))
            client_over = c;
        if (!live && same && c->lease != LEASE_AWAITS_OWNER && c->peer->closed)
            closed_over = c;
        w.newest = c->fence;
    }
    const struct peer *p = !own && entry_tenures(en) ? peer_find(sh, s->id) : NULL;
    const struct tenure *kept = p ? tenure_find(en, p) : NULL;
    bool strict = kept && !writes_for_others(kept->rule, kept->workload, kept->peer);
    if (strict && (!own_over || own_over->fence != kept->fence))
        own_over = NULL;
    bool lost = strict || own_over;
    bool loser = contender && (contender->lost || recognised_no_more(en, contender)); /* a loser has not come back */
    const struct claim *held = own ? own : lost ? NULL : client, *over = lost ? own_over : client_over;
    if (!held && !lost && !over && !kept && closed_over && !loser)
        over = closed_over;
    const struct claim *by = held ? held : over;
    if (held || over || kept) {
        w.how = held ? WRITER_HOLDS : WRITER_LATE;
        w.fence = by ? by->fence : kept->fence;
        w.over_ms = by && !held && by->end_ms && by->end_ms < now_ms ? now_ms - by->end_ms : 0;
        w.own = held != client || held == own || claim_writes_for_others(held);
    }
    if (en && en->live_fence > w.newest)
        w.newest = en->live_fence;
    if (en && en->gone_fence > w.newest)
        w.newest = en->gone_fence;
    shard_unlock(sh);
    return w;
}

void engine_report(struct lock_engine *e, const struct lock_incident *on) {
    struct shard *sh = ledger_shard(e, ledger_hash(e, &on->key, NULL));
    shard_lock(sh);
    incident_report(sh, on->kind, on, "%s", on->action);
    shard_unlock(sh);
}

void engine_late_write(struct lock_engine *e, const struct lock_session *s, const struct lock_key *by,
                       struct lock_incident *on) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, by, ledger_hash(e, by, NULL), &en);
    on->identity = s->client->name;
    const struct claim *c = on->holder ? NULL : entry_claims(en);
    while (c && !(claim_is_live(c, on->time_ms) && c->peer->client != s->client))
        c = c->next;
    if (c) {
        on->holder = c->peer->client->name;
        on->holder_len = c->peer->client->len;
    }
    incident_report(sh, INCIDENT_LATE_WRITE, on, "%s", on->action);
    shard_unlock(sh);
}

void engine_remembered(struct lock_engine *e, const struct lock_plan *plan, const char *command, const char *client,
                       int64_t now_ms) {
    const struct lock_incident on = {.kind = INCIDENT_REMEMBERED,
                                     .time_ms = now_ms,
                                     .key = plan->key,
                                     .rule = plan->rule->pattern,
                                     .identity = plan->peer->client->name,
                                     .client = client,
                                     .command = command,
                                     .action = "Redis gave the lock away, and the witnesses remember another holder: "
                                               "released again, the client waits on"};
    engine_report(e, &on);
}

uint64_t engine_key_hash(const struct lock_engine *e, const struct lock_key *key) {
    return ledger_hash(e, key, NULL);
}

/* ---- after it -------------------------------------------------------------------------------- */

static __attribute__((noinline)) void outcome_other(struct outcome *f) {
    if (f->result->outcome == LOCK_GRANTED)
        outcome_entry(f);
    bool done = f->result->outcome == LOCK_DONE || f->result->outcome == LOCK_RELEASED;
    if (f->claim && f->claim->observed && done && f->result->fence && f->plan->right == RIGHT_ENROL) {
        f->claim->observed = false; /* it was acquired under audit, and the script has made its guard record now */
        tenure_renumber(f->claim, f->result->fence);
        f->claim->fence = f->result->fence;
    }
    learn(f);
    apply(f);
    if (f->peer->alarms && (alarms_end_by(f->plan->verb) || f->result->outcome == LOCK_RELEASED))
        alarms_forget(f->peer, &f->plan->key, f->plan->attempt);
}

/* ---- the usual answers ------------------------------------------------------------------------- */

/* Does what learn and apply would do in the two cases of nearly all answers. That earns 11 % of the bound on acquire
 * and release. The first case: a lock of which nothing was known is acquired, with the application's own expiry. The
 * second case: the lock's only claim is released by its own session, and no session has lost an attempt or was shown
 * the value.
 */
static inline bool outcome_usual(struct outcome *f) {
    const struct lock_result *r = f->result;
    if (f->plan->verb == LOCK_ACQUIRE && r->outcome == LOCK_GRANTED && !f->entry && r->fence && r->pttl_ms > 0 &&
        !r->leased && !f->peer->closed) {
        struct entry *en = f->entry = entry_add(f->sh, &f->plan->key, f->plan->hash, f->plan->slot);
        en->gone_fence = r->fence - 1;
        en->live_fence = r->fence;
        en->live_since = atomic_load(&f->e->attempts);
        apply_acquired(f);
        return true;
    }
    const struct claim *c = f->claim;
    if (f->plan->verb != LOCK_RELEASE || r->outcome != LOCK_RELEASED || !c || c->observed || c->peer != f->peer ||
        f->entry->claims != c || c->next || entry_contender_list(f->entry) || entry_key_stats(f->entry))
        return false;
    f->sh->stats.released++;
    releaser_note(f->e, f->plan->rule, f->peer->client);
    if (f->entry->contenders)
        tenure_spent(f, c);
    if (c->workload)
        lock_times_held(&c->workload->times, f->now_ms - c->granted_ms);
    claim_remove(f->sh, f->claim);
    f->claim = NULL;
    return true;
}

void engine_finish(struct lock_engine *e, uint64_t session_id, const struct lock_plan *plan,
                   const struct lock_result *result, const char *command, const char *client, int64_t now_ms) {
    struct outcome f;
    outcome_start(&f, e, session_id, plan, result, command, client, now_ms);
    if (!outcome_usual(&f))
        outcome_other(&f);
    outcome_end(&f);
}

bool engine_swap_misleads(struct lock_engine *e, uint64_t session_id, const struct lock_plan *plan, const char *value,
                          size_t len) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, &plan->key, plan->hash, &en);
    const struct peer *p = peer_find(sh, session_id);
    const struct workload *f = p ? workload_find(sh, p, plan->rule, plan->pattern) : NULL;
    bool misleads = en && p && attribute_was_shown(en, p, f, plan->rule, value, len);
    shard_unlock(sh);
    return misleads;
}

void engine_saw(struct lock_engine *e, struct lock_session *s, const struct lock_key *key, const struct lock_rule *rule,
                const char *value, size_t len, int64_t now_ms) {
    uint64_t pattern, hash = ledger_hash(e, key, &pattern);
    struct shard *sh = ledger_shard(e, hash);
    shard_lock(sh);
    if (value) {
        struct peer *p = peer_get(sh, s);
        const struct workload *f = workload_find(sh, p, rule, pattern);
        learn_shown(sh, entry_get(sh, key, hash), p, f, rule, 0, value, len, now_ms);
    } else {
        struct entry *en = entry_find(sh, key, hash);
        struct peer *p = en ? peer_find(sh, s->id) : NULL;
        struct contender *w = p ? contender_find(en, p) : NULL;
        if (w)
            contender_forget_seen(w);
    }
    shard_unlock(sh);
}

/* ---- time -------------------------------------------------------------------------------------- */

int64_t engine_tick(struct lock_engine *e, unsigned part, unsigned parts, int64_t now_ms) {
    int64_t next = member_departures(e, now_ms) ? now_ms : now_ms + TICK_MAX_MS;
    for (unsigned i = part; i < SHARDS; i += parts) {
        struct shard *sh = &e->shards[i];
        shard_lock(sh);
        lease_tick(sh, now_ms);
        table_trim(&sh->entries); /* if they have become too large */
        table_trim(&sh->peers);
        workload_trim(sh, now_ms);
        int64_t due = timer_next(&sh->timers);
        if (due < next)
            next = due;
        shard_unlock(sh);
    }
    return next - now_ms > 1 ? next - now_ms : 1;
}

unsigned engine_handover(struct lock_engine *e, unsigned part, unsigned parts, unsigned max, int64_t now_ms) {
    unsigned asked = 0;
    (void)member_departures(e, now_ms);
    for (unsigned i = part; i < SHARDS && asked < max; i += parts) {
        struct shard *sh = &e->shards[i];
        shard_lock(sh);
        asked += lease_handover(sh, max - asked, now_ms);
        shard_unlock(sh);
    }
    return asked;
}
