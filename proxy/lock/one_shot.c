/*
 * One-shot clients: a shell, a cron job or a CGI program acquires a lock over a connection that carries nothing else,
 * and closes the connection at once. Its job runs now, and a later connection of the same client releases the lock.
 *
 *      connect ── SETNX k 1 ── reply ──> close, within 100 ms ──> kept for the rule's `one-shot`
 *                                                                        │
 *      connect ── DEL k ── close (the job has ended) ────────────────────┴──> released, as C1 has it
 *
 * A worker that crashes looks alike. Three signs together tell a one-shot client from it. The session layer sees two of
 * them (struct lock_session's one_shot), and this file sees the time. If a sign is missing, the lock ends with its
 * lease.
 *
 * A one-shot client's lock waits for no successor, since the client does not come back to work under it. Under `owner
 * connection` no other connection can release the lock, so it ends with its lease. The node of a list lock does so,
 * too.
 */
#include "proxy/lock/lease.h"

#include "proxy/base/units.h"

enum { CLOSES_WITHIN_MS = 100 };

/* For how long the lock is renewed, from its acquisition on. */
static int64_t kept_ms(const struct lock_rule *rule) {
    bool less = rule->max_hold_ms && rule->max_hold_ms < rule->one_shot_ms;
    return less ? rule->max_hold_ms : rule->one_shot_ms;
}

/* Whether the lock has just been acquired without an expiry of the application's. */
static bool just_acquired(const struct claim *c, int64_t now_ms) {
    if (!claim_is_live(c, now_ms) || now_ms - c->granted_ms > CLOSES_WITHIN_MS || c->queue || c->shown ||
        c->release != RELEASE_NONE)
        return false;
    if (c->observed)
        return !c->end_ms && c->rule->lease_ms > 0 && c->rule->renew != LOCK_RENEW_NEVER;
    return c->leased && c->renewing;
}

/* L7: the client's job still runs, so its lock stays. L1: the lock is renewed for the rule's `one-shot` at most. */
static void keep(struct shard *sh, struct claim *c, int64_t now_ms) {
    struct occasion on = lease_occasion(c, now_ms);
    char time[32];
    units_time_text(kept_ms(c->rule), time, sizeof(time));
    claim_extra(c)->one_shot_ms = c->granted_ms + kept_ms(c->rule);
    c->reported = true;
    if (c->observed) /* Redis has set no expiry */
        c->end_ms = claim_one_shot(c);
    incident_report(sh, INCIDENT_ONE_SHOT, &on,
                    "its connection closed at once: %s for %s, or until this client sends DEL; if its job crashes, DEL "
                    "the lock; SET with NX and EX ends by itself",
                    c->observed ? "would be kept" : "kept", time);
}

void one_shot_leaves(struct shard *sh, const struct peer *p, int64_t now_ms) {
    LIST_FOREACH(it, &p->claims) {
        struct claim *c = LIST_ENTRY(it, struct claim, of_peer);
        const struct lock_rule *rule = c->rule;
        if (rule->one_shot_ms > 0 && rule->on_disconnect == LOCK_DISCONNECT_KEEP &&
            rule->owner != LOCK_OWNER_CONNECTION && just_acquired(c, now_ms))
            keep(sh, c, now_ms);
    }
}
