/*
 * Leases in time: when they end, how long they are renewed, and what happens when their owner leaves. Knows no
 * commands.
 *
 * Alarms: a session hears that a lease of its own is over.
 *
 *      lease_end ──> alarm_note ──> sink: Redis is asked ──┬─ the lease goes on ──> the claim lives again
 *                        │                                └─ it is over ──> engine_alarm_take ──> the session is told
 *                        └── a release, a write or an attempt of the session's own ──> nothing
 *
 * A false alarm would close a sound client's connection, so no session is told before Redis has said, behind the end,
 * that the lock is not the lease's. Another proxy or a command around the proxy may have moved the end.
 */
#include "proxy/lock/lease.h"

#include "parser/slot.h"
#include "proxy/base/memory.h"

enum { LOOK_BEFORE_MS = 500, LOOK_LEAST_MS = 25 };
enum { ALARMS_A_PEER = 64 };               /* a session that loses more at once hears of these */
enum { BEATS = 64, BEAT_LEAST_MS = 1000 }; /* into so many parts a beat is divided; and how long it lasts at least */

/* A lock with the application's own expiry, whose client has never released one under the rule, is a throttle: it is
 * meant to run out. */
static bool lease_release_expected(const struct shard *sh, const struct claim *c) {
    return c->fence && c->release == RELEASE_NONE &&
           (c->leased || (c->observed && !c->end_ms) || releaser_known(sh->engine, c->rule, c->peer->client));
}

static struct lock_lease lease_of(const struct shard *sh, const struct claim *c, enum lock_right right) {
    struct lock_lease l = {
        .key = entry_key(c->entry),
        .rule = c->rule,
        .login = c->login,
        .token = c->token,
        .right = right,
        .list = c->queue,
        .quorum = c->rule->quorum == LOCK_QUORUM_YES,
        .fence = c->fence,
        .delay_ms = c->rule->lock_delay_ms,
        .lease_ms = c->period_ms,
    };
    l.token_len = token_write(sh->engine, c->token, l.token_text);
    return l;
}

/* ---- which sessions hear of an end ----------------------------------------------------------- */

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

/* A lease has just ended. If its session is to hear of it, notes that and tells the sink. `said`: an incident has
 * reported the end. */
static void alarm_note(struct shard *sh, struct claim *c, enum lease_end why, bool said) {
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
    struct lock_alarm alarm = {.lease = lease_of(sh, c, RIGHT_LOOK),
                               .session = p->session,
                               .session_id = p->id,
                               .fence = c->fence,
                               .own = own};
    sh->engine->sink.alarm(sh->engine->sink.arg, &alarm);
}

/* ---- a lease's course ------------------------------------------------------------------------- */

/* S3, L1: the proxy renews a lease only while its owner is connected, or may come back. */
bool lease_owner_here(const struct claim *c) {
    const struct peer *p = c->peer;
    if (!p->closed)
        return !p->remote;
    return claim_one_shot(c) || successor_attends(c) || (claim_pooled(c) && client_still_here(p));
}

/* S2: an older lease does not come back to life. */
static void revive(struct shard *sh, struct claim *c) {
    if (!claim_ended(c) || c->fence < c->entry->live_fence || c->fence <= c->entry->gone_fence)
        return;
    claim_held_on(sh, c);
    claim_lease_enter(c, LEASE_GRANTED);
    sh->live += !c->peer->remote;
    successor_counts(sh, c);
}

void lease_set(struct shard *sh, struct claim *c, int64_t pttl_ms, bool leased, int64_t since_ms, int64_t now_ms) {
    if (pttl_ms < PTTL_NONE)
        return;
    if (pttl_ms > FAR_MS)
        pttl_ms = FAR_MS;
    revive(sh, c);
    int64_t end_ms = pttl_ms < 0 ? 0 : now_ms + pttl_ms;
    int64_t inexact_ms = now_ms - since_ms + 50, moved_ms = end_ms - c->end_ms;
    if (moved_ms > inexact_ms)
        c->looked = false;
    /* `renew always`: an expiry of the application's is renewed for its full length. A command that leaves the end
     * where it was leaves the length, too. */
    if (leased)
        c->period_ms = c->rule->lease_ms;
    else if (moved_ms > inexact_ms || moved_ms < -inexact_ms || c->leased)
        c->period_ms = pttl_ms;
    c->leased = leased;
    c->short_record = false; /* the script has rewritten it */
    c->end_ms = end_ms;
    bool wanted = c->rule->renew == LOCK_RENEW_ALWAYS || (c->rule->renew == LOCK_RENEW_AUTO && leased);
    bool left = c->reported && !claim_heritable(c) && !c->handing && !claim_one_shot(c);
    c->renewing = wanted && c->period_ms > 0 && !claim_doubtful(c) && !left && !c->observed;
    /* Renewal is due when a third of the lease is over, counted from the earliest moment at which the lease can have
     * begun. The application may have touched the lock without moving its end. */
    c->renew_ms = since_ms + pttl_ms - c->period_ms * 2 / 3;
    /* The locks of one slot are renewed in one call (lease_work.c): up to a sixth of the lease early, and then each
     * third of the lease. Short leases come one by one. */
    int64_t beat_ms = c->period_ms / 6;
    if (c->renewing && beat_ms >= BEAT_LEAST_MS) {
        struct lock_key key = entry_key(c->entry);
        int64_t offset_ms = beat_ms * (slot_of_key(key.name, key.len) % BEATS) / BEATS;
        c->renew_ms -= (c->renew_ms - offset_ms) % beat_ms;
    }
    if (c->renew_ms < now_ms)
        c->renew_ms = now_ms;
}

bool lease_told(struct shard *sh, struct claim *c, const struct lock_result *r, uint64_t began, int64_t since_ms,
                int64_t now_ms) {
    int64_t pttl_ms = r->pttl_ms, left_ms = c->end_ms - now_ms;
    bool leased = r->leased, crossed = began <= c->told;
    if (pttl_ms < PTTL_NONE)
        return false; /* the answer does not tell the end */
    if (crossed && c->end_ms && left_ms > pttl_ms) {
        pttl_ms = left_ms;
        leased = c->leased;
    }
    c->told = atomic_load(&sh->engine->attempts);
    claim_end_told(c);
    c->told_by = 0;
    lease_set(sh, c, pttl_ms, leased, since_ms, now_ms);
    c->short_record = r->short_record;
    return !crossed;
}

struct lock_incident lease_occasion(const struct claim *c, int64_t now_ms) {
    const char *name = c->peer->client->name;
    return (struct lock_incident){
        .time_ms = now_ms, .key = entry_key(c->entry), .rule = c->rule->pattern, .identity = name, .client = name};
}

void lease_end(struct shard *sh, struct claim *c, enum lease_end why, int64_t now_ms) {
    enum { INEXACT_MS = 50 };
    c->delays &= why == LEASE_OVER || why == LEASE_GONE;
    if (claim_ended(c))
        return;
    /* A one-shot client's DEL may come through another proxy, so its lease is not reported as lost. */
    bool acts = c->rule->on_loss != LOCK_LOSS_TELL && may_hear(sh, c, why) && is_own(c);
    bool report = !acts && why == LEASE_GONE && c->renewing && c->release == RELEASE_NONE && !c->scripted &&
                  !c->shown && !claim_one_shot(c) && lease_owner_here(c);
    if (why != LEASE_OVER && c->fence) {
        struct entry *en = c->entry;
        if (c->fence > en->gone_fence)
            en->gone_fence = c->fence;
        if (en->live_fence <= en->gone_fence)
            en->live_fence = 0;
    }
    /* The lease may have ended by itself. A session that asks again and again may learn that before this proxy notices
     * it. */
    bool by_itself = why == LEASE_OVER || (why == LEASE_GONE && c->end_ms && c->end_ms <= now_ms + INEXACT_MS);
    c->delays = by_itself && c->rule->lock_delay_ms > 0 && c->fence && !c->observed;
    invariant(c->peer->remote || sh->live > 0, "S1: a lease ends where none is live");
    bool early = !c->end_ms || c->end_ms > now_ms || claim_asked(c);
    claim_held(sh, c, now_ms);
    claim_lease_enter(c, early ? LEASE_CUT_SHORT : LEASE_ENDED);
    successor_over(sh, c);
    sh->live -= !c->peer->remote;
    if (!c->end_ms || c->end_ms > now_ms)
        c->end_ms = now_ms;
    struct lock_incident on = lease_occasion(c, now_ms);
    if (report)
        incident_report(sh, INCIDENT_RENEWAL_LOST, &on, "the lease was found gone; renewal ended");
    bool overrun = by_itself && !acts && !report && !c->reported && !c->shown && lease_owner_here(c) &&
                   lease_release_expected(sh, c);
    if (overrun)
        incident_report(sh, INCIDENT_OVERRUN, &on,
                        "lease ended after %lld ms, its owner is connected; what it still sends %s be refused",
                        (long long)(c->end_ms - c->granted_ms), c->observed ? "would" : "will");
    /* The answer to a renewal in flight may still say that the renewal came in time. */
    if (why != LEASE_OVER || !claim_asked(c))
        c->renewing = false;
    alarm_note(sh, c, why, report || overrun);
}

void lease_overtaken(struct shard *sh, struct claim *c, int64_t now_ms) {
    struct lock_incident on = lease_occasion(c, now_ms);
    if (claim_ended(c))
        return;
    incident_report(sh, INCIDENT_OVERTAKEN, &on,
                    "the witnesses know a later lease, which a failover of Redis has forgotten or made way for");
    c->renewing = false;
    lease_end(sh, c, LEASE_GONE, now_ms);
}

/* For how long after its end a lease counts as live, because a renewal is in flight. */
static int64_t grace_of(const struct claim *c) {
    return claim_asked(c) && !claim_looking(c) ? RENEWAL_GRACE_MS : 0;
}

/* When the proxy reads the lock's end, shortly before the lease ends. It does so if the expiry is the application's
 * own, and a release is expected or the session is to hear of the end. A watchdog may extend the lock directly at
 * Redis. The guard record would then end at the old time, and the holder's release would be refused. NO_DEADLINE: the
 * proxy need not read the end, or has read it. */
static int64_t look_due(const struct shard *sh, const struct claim *c) {
    int64_t before = (c->end_ms - c->granted_ms) / 4;
    if (before > LOOK_BEFORE_MS)
        before = LOOK_BEFORE_MS;
    if (c->renewing || claim_asked(c) || c->looked || !c->end_ms || c->queue || c->observed || c->reported ||
        before < LOOK_LEAST_MS)
        return NO_DEADLINE;
    if (lease_release_expected(sh, c))
        return c->end_ms - before;
    const struct lock_session *s = c->peer->closed ? NULL : c->peer->session;
    bool hears = (c->rule->on_loss != LOCK_LOSS_TELL && is_own(c)) || (s && atomic_load(&s->notified));
    return hears ? c->end_ms - before : NO_DEADLINE;
}

static int64_t long_due(const struct shard *sh, const struct claim *c) {
    if (c->told_long || !lease_release_expected(sh, c) || !lease_owner_here(c))
        return NO_DEADLINE;
    return c->granted_ms + HELD_LONG_MS;
}

bool lease_schedule(struct shard *sh, struct claim *c, int64_t now_ms) {
    int64_t due;
    if (!claim_ended(c)) {
        /* A lock without an expiry under audit never ends by itself. After its owner has left, it is remembered for as
         * long as its lease would have lasted. */
        if (!c->end_ms && c->reported && (c->observed || c->rule->lease_ms))
            c->end_ms = now_ms + (c->rule->lease_ms ? c->rule->lease_ms : claim_memory(c));
        due = c->end_ms ? c->end_ms + grace_of(c) : NO_DEADLINE;
        int64_t renew_ms = NO_DEADLINE, long_ms = long_due(sh, c), look_ms = look_due(sh, c);
        if (c->renewing && !claim_asked(c)) /* if the owner has left, the proxy looks again for a successor */
            renew_ms = c->renew_ms > now_ms || lease_owner_here(c) ? c->renew_ms : now_ms + successor_look_ms(c);
        due = renew_ms < due ? renew_ms : due;
        due = long_ms < due ? long_ms : due;
        due = look_ms < due ? look_ms : due;
    } else if (claim_is_over(sh, c, now_ms)) {
        claim_drop(sh, c);
        return false;
    } else {
        due = claim_deadline(sh, c);
        if (due <= now_ms) /* the claim is kept while a command uses it */
            due = now_ms + TICK_MAX_MS;
    }
    timer_set(&sh->timers, &c->timer, due);
    return true;
}

void lease_settle(struct shard *sh, struct claim *c, int64_t now_ms) {
    struct entry *en = c->entry;
    if (!lease_schedule(sh, c, now_ms))
        entry_settle(sh, en);
}

/* The last expiry (ms) that the proxy gives to a lease when this process stops. A one-shot client does not come back,
 * so its lock gets the rest of its time. */
static int64_t handover_ms(const struct claim *c, int64_t now_ms) {
    int64_t left_ms = claim_one_shot(c) - now_ms;
    return left_ms > c->rule->handover_ms ? left_ms : c->rule->handover_ms;
}

/* When a lease that is handed over ends. The handover never makes a lease shorter. */
static int64_t handover_end(const struct claim *c, int64_t now_ms) {
    int64_t end_ms = now_ms + handover_ms(c, now_ms);
    return c->end_ms > end_ms ? c->end_ms : end_ms;
}

void lease_abandon(struct shard *sh, struct claim *c, int64_t now_ms) {
    if (c->reported)
        return;
    c->reported = true;
    if (claim_looking(c))
        claim_renewal_enter(c, claim_crossed(c) ? RENEWAL_CROSSED : RENEWAL_ASKED);
    if (c->shown) { /* another session may be the owner, and be connected */
        c->renewing = false;
        return;
    }
    invariant(!c->handing, "a lease is handed over twice");
    c->handing = atomic_load(&sh->engine->leaving) && c->renewing && c->rule->handover_ms > 0 &&
                 claim_is_live(c, now_ms) && c->release == RELEASE_NONE;
    if (c->handing) { /* this process stops, and has disconnected the owner: engine_handover gives the last expiry */
        successor_tell(sh, c, handover_end(c, now_ms), now_ms);
        return;
    }
    /* L1: once its owner is gone for good, the lease is renewed no more. */
    bool release = c->rule->on_disconnect == LOCK_DISCONNECT_RELEASE;
    c->renewing = !release && successor_left(sh, c, now_ms);
    /* The answer to a renewal in flight may say that the renewal came in time. */
    bool perhaps_live = claim_is_live(c, now_ms) || (release && !claim_ended(c) && claim_asked(c));
    if (!perhaps_live || c->release != RELEASE_NONE)
        return;
    struct lock_incident on = lease_occasion(c, now_ms);
    bool expected = lease_release_expected(sh, c);
    long long left_ms = c->end_ms ? c->end_ms - now_ms : 0;
    /* The proxy does nothing about a lock in audit. Without an expiry it stays for ever. */
    if (release)
        incident_report(sh, INCIDENT_ABANDONED, &on,
                        c->observed ? "would be released: its owner has disconnected"
                                    : "released, its owner has disconnected");
    else if (expected && !c->observed)
        incident_report(sh, INCIDENT_ABANDONED, &on,
                        "its owner has disconnected; kept until its lease ends in %lld ms%s", left_ms,
                        c->renewing ? ", and longer if it comes back" : "");
    else if (expected && !c->end_ms && c->rule->lease_ms)
        incident_report(sh, INCIDENT_ABANDONED, &on,
                        "would end with its lease, in %lld ms: its owner has disconnected, and it has no expiry",
                        (long long)c->rule->lease_ms);
    else if (expected)
        incident_report(sh, INCIDENT_ABANDONED, &on,
                        "its owner has disconnected; it is kept until its expiry, in %lld ms", left_ms);
    if (release && !c->observed) {
        struct lock_lease l = lease_of(sh, c, RIGHT_CLAIM);
        sh->engine->sink.release(sh->engine->sink.arg, &l);
        lease_end(sh, c, LEASE_TAKEN, now_ms);
    }
}

/* ---- time ------------------------------------------------------------------------------------- */

static void ask_renewal(struct shard *sh, struct claim *c, int64_t lease_ms, int64_t now_ms) {
    invariant(c->renewing && !c->observed && lease_ms > 0, "S3: a lease is renewed that is not to be");
    claim_renewal_enter(c, RENEWAL_ASKED);
    c->renew_ms = now_ms;
    struct lock_lease l = lease_of(sh, c, c->rule->renew == LOCK_RENEW_ALWAYS ? RIGHT_ALWAYS : RIGHT_CLAIM);
    l.lease_ms = lease_ms;
    l.left_ms = c->end_ms > now_ms ? c->end_ms - now_ms : 0;
    sh->engine->sink.renew(sh->engine->sink.arg, &l);
}

static void renew(struct shard *sh, struct claim *c, int64_t now_ms) {
    invariant(c->renewing && !claim_ended(c), "S3: a lease is renewed that is over");
    if (c->rule->max_hold_ms && now_ms >= c->granted_ms + c->rule->max_hold_ms)
        c->renewing = false;
    else if (claim_one_shot(c) && now_ms >= claim_one_shot(c))
        c->renewing = false;
    else if (lease_owner_here(c) && (!claim_heritable(c) || successor_keeps(sh, c, now_ms)))
        ask_renewal(sh, c, c->period_ms, now_ms);
    else
        c->renew_ms = now_ms + successor_look_ms(c);
}

/* Whether the proxy renews the lease for its owner, and knows of no release that is under way. */
static bool is_renewed(const struct claim *c, int64_t now_ms) {
    return c->renewing && !claim_releasing(c) && c->end_ms && claim_is_live(c, now_ms) &&
           (c->handing || lease_owner_here(c));
}

void engine_leave(struct lock_engine *e) {
    atomic_store(&e->leaving, true);
}

unsigned lease_handover(struct shard *sh, unsigned max, int64_t now_ms) {
    unsigned asked = 0;
    CLAIMS_FOREACH(c, sh) {
        if (asked == max)
            return asked;
        if (c->rule->handover_ms == 0 || !is_renewed(c, now_ms))
            continue;
        if (claim_heritable(c) && !c->handing) { /* lease_abandon did not hand it over before */
            c->handing = true;
            successor_tell(sh, c, handover_end(c, now_ms), now_ms);
        }
        int64_t last_ms = handover_ms(c, now_ms);
        if (claim_asked(c) || c->end_ms >= now_ms + last_ms - last_ms / 4 || (c->unhanded && now_ms < c->renew_ms))
            continue;
        ask_renewal(sh, c, last_ms, now_ms);
        timer_set(&sh->timers, &c->timer, c->end_ms + RENEWAL_GRACE_MS);
        asked++;
    }
    return asked;
}

unsigned engine_outlast(struct lock_engine *e, int64_t ms, unsigned max, int64_t now_ms) {
    unsigned asked = 0;
    SHARDS_FOREACH(sh, e, asked < max ? ALL_SHARDS : 0) /* asked before each shard */
        CLAIMS_FOREACH(c, sh) {
            if (asked == max || !is_renewed(c, now_ms) || claim_asked(c) || !lease_owner_here(c) ||
                c->end_ms >= now_ms + ms + c->period_ms / 3)
                continue;
            ask_renewal(sh, c, c->period_ms + ms, now_ms);
            timer_set(&sh->timers, &c->timer, c->end_ms + RENEWAL_GRACE_MS);
            asked++;
        }
    return asked;
}

unsigned engine_lost(struct lock_engine *e, unsigned reports, int64_t now_ms) {
    unsigned lost = 0;
    SHARDS_FOREACH(sh, e, ALL_SHARDS)
        CLAIMS_FOREACH(c, sh) {
            if (claim_ended(c) || claim_releasing(c) || !claim_is_live(c, now_ms))
                continue;
            bool own = !c->peer->remote && !c->shown;
            struct lock_incident on = lease_occasion(c, now_ms);
            if (own && lost < reports && !claim_doubtful(c) && lease_owner_here(c))
                incident_report(sh, INCIDENT_RENEWAL_LOST, &on,
                                "the Redis that held the lease has ended, and kept nothing");
            c->renewing = false;
            lease_end(sh, c, LEASE_GONE, now_ms);
            timer_set(&sh->timers, &c->timer, now_ms);
            lost += own;
        }
    return lost;
}

static void claim_due(struct shard *sh, struct claim *c, int64_t now_ms) {
    if (!claim_ended(c)) {
        if (c->end_ms && now_ms >= c->end_ms + grace_of(c)) {
            lease_end(sh, c, LEASE_OVER, now_ms);
        } else if (c->renewing && !claim_asked(c) && now_ms >= c->renew_ms) {
            renew(sh, c, now_ms);
        } else if (now_ms >= look_due(sh, c)) {
            invariant(!c->renewing && !c->observed, "a lease is looked at that is renewed");
            claim_renewal_enter(c, LOOK_ASKED);
            c->looked = true;
            c->renew_ms = now_ms;
            struct lock_lease l = lease_of(sh, c, RIGHT_LOOK);
            sh->engine->sink.renew(sh->engine->sink.arg, &l);
        }
        if (!claim_ended(c) && now_ms >= long_due(sh, c)) {
            struct lock_incident on = lease_occasion(c, now_ms);
            c->told_long = true;
            if (claim_is_live(c, now_ms) || c->observed)
                incident_report(sh, INCIDENT_HELD_LONG, &on, "held for %lld s%s",
                                (long long)(now_ms - c->granted_ms) / 1000,
                                !c->renewing        ? ""
                                : claim_one_shot(c) ? ", kept for a one-shot client"
                                                    : ", renewed while its owner is connected");
        }
    }
    lease_settle(sh, c, now_ms);
}

/* A contender is kept for longer while the key has claims, which the proxy may judge by it, or while it has nodes in a
 * list lock that count for as long as their owner is connected. */
static void contender_due(struct shard *sh, struct contender *w, int64_t now_ms) {
    struct entry *en = w->entry;
    int64_t until = w->touched_ms + w->memory_ms;
    if (now_ms < until) {
        timer_set(&sh->timers, &w->timer, until);
    } else if (en->claims || (w->queue_rule && w->queue_rule->lease_ms == 0 && !w->peer->closed)) {
        timer_set(&sh->timers, &w->timer, now_ms + w->memory_ms);
    } else {
        struct peer *p = w->peer;
        contender_remove(sh, w);
        entry_settle(sh, en);
        peer_settle(sh, p);
    }
}

/* So many timers run in one tick, and one more for each TICK_LATE_MS by which the first one is late. Many leases may be
 * due at once, and all requests wait behind their renewals. */
enum { TICK_STEPS = 64, TICK_LATE_MS = 16 };

void lease_tick(struct shard *sh, int64_t now_ms) {
    int64_t first_ms = timer_next(&sh->timers);
    int64_t steps = TICK_STEPS + (first_ms < now_ms ? (now_ms - first_ms) / TICK_LATE_MS : 0);
    struct timer *t;
    for (; steps > 0 && (t = timer_due(&sh->timers, now_ms)); steps--) {
        if (t->kind == TIMER_CLAIM)
            claim_due(sh, LIST_ENTRY(t, struct claim, timer), now_ms);
        else
            contender_due(sh, LIST_ENTRY(t, struct contender, timer), now_ms);
    }
}

bool engine_wants_renewal(struct lock_engine *e, const struct lock_key *key, uint64_t token) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, key, ledger_hash(e, key, NULL), &en);
    const struct claim *c = claim_find(en, token);
    bool wanted = c && (claim_looking(c) || (c->renewing && (c->handing || lease_owner_here(c))));
    shard_unlock(sh);
    return wanted;
}

void engine_renewed(struct lock_engine *e, const struct lock_key *key, uint64_t token, const struct lock_result *r,
                    int64_t now_ms) {
    enum lock_outcome outcome = r->outcome;
    struct entry *en;
    struct shard *sh = ledger_lock(e, key, ledger_hash(e, key, NULL), &en);
    struct claim *c = claim_find(en, token);
    if (c) {
        bool look = claim_looking(c), crossed = claim_crossed(c);
        claim_renewal_enter(c, RENEWAL_IDLE);
        if (look) { /* if the lease is gone, its end or another answer will say so */
            if (outcome == LOCK_DONE && !crossed)
                lease_told(sh, c, r, UINT64_MAX, c->renew_ms, now_ms);
        } else if (outcome == LOCK_DONE) {
            c->renewals += c->renewals + 1u < 1u << RENEWAL_BITS;
            sh->stats.renewals++;
            /* The application may have set its own expiry while the renewal was in flight. Its answer has come
             * meanwhile, and the expiry is not the proxy's own any more. */
            if (!r->leased || c->leased || !crossed)
                lease_told(sh, c, r, crossed ? 0 : UINT64_MAX, crossed ? now_ms : c->renew_ms, now_ms);
        } else if (outcome == LOCK_HELD && c->queue && r->fence == c->fence) {
            lease_end(sh, c, LEASE_OVER, now_ms); /* ends for this session; another session may be the holder */
        } else if (outcome == LOCK_OVERTAKEN) {
            lease_overtaken(sh, c, now_ms);
        } else if (outcome == LOCK_HELD || outcome == LOCK_FOREIGN || outcome == LOCK_FREE) {
            lease_end(sh, c, LEASE_GONE, now_ms);
        } else {
            c->unhanded = atomic_load(&sh->engine->leaving);
            int64_t pause = c->period_ms / 10, perhaps_ms = now_ms + c->period_ms;
            if (outcome == LOCK_UNKNOWN && c->renewing && c->end_ms && c->end_ms < perhaps_ms)
                c->end_ms = perhaps_ms; /* Redis may have renewed it */
            c->renew_ms = now_ms + (pause > RETRY_MIN_MS ? pause : RETRY_MIN_MS);
        }
        lease_settle(sh, c, now_ms);
    }
    shard_unlock(sh);
}

/* ---- what the session layer asks of alarms ------------------------------------------------------ */

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
        lease_settle(sh, c, now_ms);
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
        struct lock_incident on = {.time_ms = now_ms,
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
