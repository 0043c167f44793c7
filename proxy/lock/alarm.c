/*
 * Alarms: which sessions hear that a lease of theirs is over, and what becomes of that until they do.
 *
 *      lease_end ──> alarm_note ──> sink: Redis is asked ──┬─ the lease goes on ──> the claim lives again
 *                        │                                └─ it is over ──> engine_alarm_take ──> the session is told
 *                        └── a release, a write or an attempt of the session's own ──> nothing
 *
 * A false alarm would close a sound client's connection, so no session is told before Redis has said, behind the end,
 * that the lock is not the lease's. Another proxy or a command around the proxy may have moved the end.
 */
#include "proxy/lock/lease.h"

#include "proxy/base/memory.h"

enum { ALARMS_A_PEER = 64 }; /* a session that loses more at once hears of these */

/* Whether the claim's connection is its worker's own. */
static bool is_own(const struct claim *c) {
    if (c->rule->owner == LOCK_OWNER_CONNECTION)
        return true;
    return c->rule->owner == LOCK_OWNER_AUTO && c->workload && !claim_pooled(c) &&
           workload_dedicated(c->workload, c->peer);
}

/* Whether the session may hear of the lease's end: it is here, the lease was its own, and it has not let go of it. C6:
 * over shared connections a lease that makes way early was released by a colleague. */
static bool may_hear(const struct shard *sh, const struct claim *c, enum lease_end why) {
    const struct peer *p = c->peer;
    if (!sh->engine->sink.alarm || !c->fence || p->closed || p->remote || !p->session || c->release != RELEASE_NONE ||
        c->observed || c->shown || c->queue || c->scripted)
        return false;
    if (c->extra && c->extra->deadline_ms) /* C5: its own SET XX has made it short, as a release does */
        return false;
    if (why == LEASE_TAKEN)
        return is_own(c);
    return why != LEASE_GONE || !claim_spent_elsewhere(sh->engine, c);
}

bool alarm_acts(const struct shard *sh, const struct claim *c, enum lease_end why) {
    return c->rule->on_loss != LOCK_LOSS_TELL && may_hear(sh, c, why) && is_own(c);
}

bool alarm_wanted(const struct claim *c) {
    const struct lock_session *s = c->peer->closed ? NULL : c->peer->session;
    return (c->rule->on_loss != LOCK_LOSS_TELL && is_own(c)) || (s && atomic_load(&s->notified));
}

/* ---- what a session is still to hear ------------------------------------------------------------------- */

static bool is_of(const struct alarm *a, const struct lock_key *key) {
    return a->db == key->db && a->len == key->len && memcmp(a->name, key->name, key->len) == 0;
}

/* The place that points to the alarm; NULL: there is none. */
static struct alarm **place_of(struct peer *p, const struct lock_key *key, uint64_t token) {
    for (struct alarm **at = &p->alarms; *at; at = &(*at)->next)
        if ((*at)->token == token && is_of(*at, key))
            return at;
    return NULL;
}

void alarms_forget(struct peer *p, const struct lock_key *key, uint64_t but) {
    for (struct alarm **at = &p->alarms; *at;) {
        if ((*at)->token == but || !is_of(*at, key))
            at = &(*at)->next;
        else
            alarm_remove(at);
    }
}

void alarm_note(struct shard *sh, struct claim *c, enum lease_end why, bool said, int64_t now_ms) {
    if (!may_hear(sh, c, why))
        return;
    struct peer *p = c->peer;
    bool own = is_own(c), acts = own && c->rule->on_loss != LOCK_LOSS_TELL;
    /* no incident says that the lock of a connected worker has gone before its end */
    bool unsaid = own && !said && why == LEASE_GONE && lease_release_expected(sh, c);
    struct lock_key key = entry_key(c->entry);
    size_t alarms = 0;
    for (const struct alarm *a = p->alarms; a; a = a->next)
        alarms++;
    if (!(acts || unsaid || atomic_load(&p->session->notified)) || place_of(p, &key, c->token) ||
        alarms >= ALARMS_A_PEER)
        return;
    struct alarm *a = memory_zalloc(sizeof(*a) + key.len);
    *a = (struct alarm){.next = p->alarms,
                        .rule = c->rule,
                        .token = c->token,
                        .ended_ms = c->end_ms,
                        .said = !acts && !unsaid,
                        .db = key.db,
                        .len = (uint32_t)key.len};
    memcpy(a->name, key.name, key.len);
    if (a->rule->set)
        lock_rules_ref(a->rule->set);
    p->alarms = a;
    struct lock_alarm alarm = {.lease = {.key = key,
                                         .rule = c->rule,
                                         .login = c->login,
                                         .token = c->token,
                                         .right = RIGHT_LOOK,
                                         .lease_ms = c->period_ms},
                               .session = p->session,
                               .session_id = p->id,
                               .fence = c->fence,
                               .own = own};
    alarm.lease.token_len = token_write(sh->engine, c->token, alarm.lease.token_text);
    sh->engine->sink.alarm(sh->engine->sink.arg, &alarm);
}

/* ---- what the session layer asks ------------------------------------------------------------------------ */

/* Locks the shard of the key. Returns the place that points to the alarm; NULL: the session is not to hear of it. */
static struct alarm **alarm_lock(struct lock_engine *e, const struct lock_key *key, uint64_t session_id, uint64_t token,
                                 struct shard **sh) {
    *sh = ledger_shard(e, ledger_hash(e, key, NULL));
    shard_lock(*sh);
    struct peer *p = peer_find(*sh, session_id);
    return p && !p->closed ? place_of(p, key, token) : NULL;
}

bool engine_alarm_waits(struct lock_engine *e, const struct lock_key *key, uint64_t session_id, uint64_t token) {
    struct shard *sh;
    bool waits = alarm_lock(e, key, session_id, token, &sh) != NULL;
    shard_unlock(sh);
    return waits;
}

enum alarm_end engine_alarm_looked(struct lock_engine *e, const struct lock_key *key, uint64_t session_id,
                                   uint64_t token, const struct lock_result *r, int64_t asked_ms, int64_t now_ms) {
    if (r->outcome == LOCK_HELD || r->outcome == LOCK_FOREIGN || r->outcome == LOCK_FREE)
        return ALARM_OVER;
    if (r->outcome != LOCK_DONE) /* OPEN: the holder seems to have moved the end around the proxy */
        return ALARM_UNKNOWN;
    struct shard *sh;
    struct alarm **at = alarm_lock(e, key, session_id, token, &sh);
    if (at)
        alarm_remove(at);
    struct entry *en = entry_find(sh, key, ledger_hash(e, key, NULL));
    struct claim *c = claim_find(en, token);
    if (c && claim_ended(c) && !claim_asked(c)) {
        lease_told(sh, c, r, UINT64_MAX, asked_ms, now_ms);
        if (!lease_schedule(sh, c, now_ms))
            entry_settle(sh, en);
    }
    shard_unlock(sh);
    return ALARM_KEPT;
}

bool engine_alarm_take(struct lock_engine *e, const struct lock_key *key, uint64_t session_id, uint64_t token,
                       const char *client, const char *action, int64_t now_ms) {
    struct shard *sh;
    struct alarm **at = alarm_lock(e, key, session_id, token, &sh);
    if (at) {
        const struct alarm *a = *at;
        struct occasion on = {.now_ms = now_ms,
                              .key = *key,
                              .rule = a->rule->pattern,
                              .identity = peer_find(sh, session_id)->client->name,
                              .client = client};
        if (!a->said)
            incident_report(sh, INCIDENT_LOST, &on, "its lease ended %lld ms ago, and it has not released it; %s",
                            (long long)(now_ms - a->ended_ms), action);
        alarm_remove(at);
    }
    shard_unlock(sh);
    return at != NULL;
}
