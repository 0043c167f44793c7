/*
 * What a session sends behind a lost attempt, and what that says of a release over it.
 *
 *      attempt lost ──┬─ a release at once       its code releases in `finally`: a loser's
 *                     └─ nothing, or an attempt  losers do not release here: a colleague's, over a pooled connection
 *
 * Some code releases also after a failed attempt. A pooled connection carries a holder's release behind a colleague's
 * lost attempt. Both look the same on one connection. They differ in what else happens: a pool's holder sends one
 * release for its lease and no loser sends any, so that further attempts are lost in silence. Where losers release, a
 * second release for the same lease comes soon: another loser's, or the holder's own. So a release that comes right
 * behind a loss is held back for a moment, until either is seen (C4 and D3 of docs/locks.md). If a refused release was
 * the holder's all the same, its lease makes way (B2).
 */
#include "proxy/lock/finish.h"

enum {
    TRIPS = 2,             /* each time has so many round trips of the client's connection on top: */
    AT_ONCE_MS = 5,        /* a loser's release comes within so many ms */
    SHORTLY_MS = 100,      /* on a busy machine it may take so long */
    SOON_MS = 1,           /* the earliest ones come within so many */
    HOLD_MS = 250,         /* a release is held back for so long, */
    HOLD_TRIPS = 10,       /* and so many round trips, */
    HOLD_MOST_MS = 1000,   /* at most, */
    HOLD_LOSSES = 12,      /* or until so many attempts were lost in silence */
    HOLD_LOSSES_LEAST = 4, /* so many are enough when the time is over */
    HELD_SEEN_MS = 100,    /* a session that holds its release back asks again sooner */
    FOLLOWED_WEIGHT = 2,   /* a lost attempt with a release at once speaks for losers that release, */
    QUIET_WEIGHT = 5,      /* and one without against it */
    RELEASERS_SCORE = 6,   /* from here on losers are known to release, */
    QUIET_SCORE = -8,      /* and up to here not to */
    FADE_LOSSES = 64,      /* counts are halved there */
    KEY_LOSSES = 8,        /* from so many on a key is judged by itself */
    PATIENCE = 3, /* attempts lost in a row over one session that show a refused release to have been the holder's, */
    PATIENCE_ALL = 6, /* or so many on the key in silence */
    LONGEST_ROW = 64
};

/* ---- evidence ----------------------------------------------------------------------------------- */

static int64_t trip_ms(const struct peer *p) {
    return p->session && !p->closed ? p->session->trip_ms : 0;
}

int64_t aftermath_at_once_ms(const struct peer *p) {
    return AT_ONCE_MS + TRIPS * trip_ms(p);
}

static bool held_long_enough(const struct witness *w, int64_t now_ms) {
    int64_t most_ms = HOLD_MS + HOLD_TRIPS * trip_ms(w->peer);
    return now_ms - w->held_ms >= (most_ms < HOLD_MOST_MS ? most_ms : HOLD_MOST_MS);
}

static void after_count(struct aftermath *a, bool followed) {
    if (followed)
        a->followed++;
    else
        a->quiet++;
    if (a->followed + a->quiet > FADE_LOSSES) {
        a->followed /= 2;
        a->quiet /= 2;
    }
}

static void count_loss(struct family *f, struct contest *c, bool followed) {
    after_count(&f->after, followed);
    after_count(&c->after, followed);
}

/* Takes back that nothing had followed a loss. */
static void uncount_quiet(struct family *f, struct contest *c) {
    f->after.quiet -= f->after.quiet > 0;
    c->after.quiet -= c->after.quiet > 0;
}

static void loss_turns_quiet(struct family *f, struct contest *c, struct loss *l) {
    if (l->next != LOSS_OPEN)
        return;
    l->next = LOSS_QUIET;
    c->quiet_losses++;
    count_loss(f, c, false);
}

/* Notes the losses of a key behind which no release has come at once. */
static void note_quiet(struct family *f, struct contest *c, int64_t now_ms) {
    for (unsigned i = 0; i < c->recent.count; i++)
        if (now_ms - c->recent.at[i].time_ms > c->recent.at[i].at_once_ms)
            loss_turns_quiet(f, c, &c->recent.at[i]);
}

/* What counts for a key: its own evidence where there is enough. Several applications may work under one family. */
static const struct aftermath *evidence(const struct family *f, const struct contest *c) {
    return c && c->after.followed + c->after.quiet >= KEY_LOSSES ? &c->after : &f->after;
}

/* Above 0 losers seem to release; `less` of the losses with a release are left out. */
static int score(const struct aftermath *a, int less) {
    return FOLLOWED_WEIGHT * (a->followed - less) - QUIET_WEIGHT * a->quiet;
}

bool aftermath_losers_release(const struct family *f, const struct contest *c) {
    bool key_says_no = c && !c->doubled && evidence(f, c) == &c->after && score(&c->after, 0) <= QUIET_SCORE;
    return f->losers_release && !key_says_no;
}

/* The session's last loss on the key, or NULL. */
static struct loss *last_loss(struct contest *c, const struct peer *p) {
    for (unsigned i = c->recent.count; i > 0; i--)
        if (c->recent.at[i - 1].session_id == p->id)
            return &c->recent.at[i - 1];
    return NULL;
}

void aftermath_forget(struct family *f, struct contest *c) {
    struct loss l = losses_take(&c->recent);
    loss_turns_quiet(f, c, &l);
    family_followed(f, l.expired);
}

void aftermath_tidy(struct family *f, struct contest *c, int64_t before_ms, int64_t now_ms) {
    note_quiet(f, c, now_ms);
    while (losses_over(&c->recent, before_ms) && c->recent.at[0].next != LOSS_OPEN)
        aftermath_forget(f, c);
}

void aftermath_tries_again(struct family *f, struct contest *c, const struct peer *p) {
    struct loss *l = last_loss(c, p);
    if (l)
        loss_turns_quiet(f, c, l);
}

void aftermath_lost(struct family *f, struct contest *c, const struct peer *p, int64_t now_ms) {
    aftermath_tries_again(f, c, p);
    note_quiet(f, c, now_ms);
    if (c->recent.count == CONTEST_DEBTS)
        aftermath_forget(f, c);
    losses_add(&c->recent, now_ms, p->id);
    c->recent.at[c->recent.count - 1].at_once_ms = (uint16_t)aftermath_at_once_ms(p);
}

/* Notes that the session has sent a release behind its last loss. */
static void note_followed(struct family *f, struct contest *c, const struct peer *p, bool at_once) {
    struct loss *l = last_loss(c, p);
    if (!l || l->next == LOSS_RELEASED)
        return;
    if (l->next == LOSS_QUIET)
        uncount_quiet(f, c);
    l->next = LOSS_RELEASED;
    if (at_once)
        count_loss(f, c, true);
}

/* ---- the verdict ---------------------------------------------------------------------------------- */

void aftermath_second(struct family *f, struct contest *c, const struct peer *p, int64_t now_ms) {
    const struct held_release *h = &c->held;
    if (!h->session_id || h->session_id == p->id || h->again || now_ms - h->seen_ms > HELD_SEEN_MS)
        return;
    c->doubled = true;
    family_releases_lost(f);
}

/* Whether the release was held back before, and the lease that it may be meant for is over by now. Of leases that
 * another proxy gave, this one hears late. */
static bool lease_changed(const struct witness *w, const struct claim *live) {
    if (!w->held_ms || (live && (live->fence == w->held_fence || live->peer->remote)))
        return false;
    return w->held_fence != 0;
}

/* Decides where nobody waits any longer. Behind several proxies this one sees a part of what follows losses: there a
 * release that came a little later is believed, unless others' came at once too. */
static enum loser_release decide(const struct family *f, const struct contest *c, bool soon, bool elsewhere) {
    const struct aftermath *a = evidence(f, c);
    if (score(a, 1) <= QUIET_SCORE)
        return LOSER_BELIEVED_BY_CHANCE;
    return elsewhere && !soon && a->followed <= 1 ? LOSER_BELIEVED : LOSER_REFUSED;
}

/* Begins or goes on to hold a release back. */
static enum loser_release hold_back(struct witness *w, struct contest *c, const struct claim *live, int64_t now_ms) {
    if (!w->held_ms) {
        w->held_ms = now_ms;
        w->held_fence = live ? live->fence : 0;
        c->held = (struct held_release){.session_id = w->peer->id,
                                        .quiet = c->quiet_losses,
                                        .again = now_ms - c->released_ms <= aftermath_at_once_ms(w->peer)};
    }
    if (c->held.session_id == w->peer->id)
        c->held.seen_ms = now_ms;
    return LOSER_HELD_BACK;
}

/* Decides about a release that came shortly behind its session's loss. */
static enum loser_release release_shortly(struct family *f, struct contest *c, struct witness *w,
                                          const struct claim *live, bool waits, bool elsewhere, int64_t now_ms) {
    int64_t apart_ms = (w->held_ms ? w->held_ms : now_ms) - w->sent_ms;
    bool at_once = apart_ms <= aftermath_at_once_ms(w->peer);
    bool soon = apart_ms <= SOON_MS + TRIPS * trip_ms(w->peer);
    bool remembered = w->held_ms && c->held.session_id == w->peer->id;
    if (at_once && score(evidence(f, c), 1) >= RELEASERS_SCORE) {
        family_releases_lost(f);
        return LOSER_REFUSED;
    }
    uint32_t silent = remembered ? c->quiet_losses - c->held.quiet : 0;
    if (waits && silent < HOLD_LOSSES)
        return hold_back(w, c, live, now_ms);
    if (silent >= HOLD_LOSSES_LEAST)
        return LOSER_BELIEVED;
    return at_once ? decide(f, c, soon, elsewhere && w->held_ms) : LOSER_BELIEVED;
}

enum loser_release aftermath_release(struct family *f, struct contest *c, struct witness *w, const struct claim *live,
                                     bool patient, bool elsewhere, int64_t now_ms) {
    const struct peer *p = w->peer;
    bool again = w->held_ms != 0;
    int64_t apart_ms = (again ? w->held_ms : now_ms) - w->sent_ms;
    note_quiet(f, c, now_ms);
    if (!again)
        note_followed(f, c, p, apart_ms <= aftermath_at_once_ms(p));
    /* Of a lock that is free as far as is known, another proxy may have given a lease. */
    bool waits = patient && (live || elsewhere) && (!again || !held_long_enough(w, now_ms));
    enum loser_release said = LOSER_REFUSED;
    if (!lease_changed(w, live) && !family_losers_release(f, c))
        said = apart_ms <= SHORTLY_MS + TRIPS * trip_ms(p) ? release_shortly(f, c, w, live, waits, elsewhere, now_ms)
                                                           : LOSER_BELIEVED;
    if (said == LOSER_HELD_BACK)
        return said;
    w->held_ms = 0;
    if (c->held.session_id == p->id)
        c->held.session_id = 0;
    aftermath_refused(c);
    if (said == LOSER_REFUSED && w->lost_row > f->longest_row)
        f->longest_row = w->lost_row < LONGEST_ROW ? (uint8_t)w->lost_row : LONGEST_ROW;
    return said;
}

/* ---- a wrong refusal -------------------------------------------------------------------------------- */

void aftermath_row(struct witness *w, const struct claim *live) {
    if (live && claim_suspicious(live, 0) && w->lost_row < UINT16_MAX)
        w->lost_row++;
    else if (!live || !claim_suspicious(live, 0))
        w->lost_row = 0;
}

void aftermath_refused(struct contest *c) {
    c->refused_quiet = c->quiet_losses;
}

bool aftermath_was_holders(const struct family *f, const struct contest *c, const struct witness *w) {
    unsigned longest = f->longest_row ? f->longest_row : 1;
    bool silent = c && c->quiet_losses - c->refused_quiet >= PATIENCE_ALL * longest;
    return silent || w->lost_row >= PATIENCE * longest;
}

void aftermath_mistaken(struct family *f, struct contest *c) {
    static const struct aftermath QUIET = {.quiet = 2};
    f->losers_release = false;
    f->after = QUIET;
    if (c) {
        c->after = QUIET;
        c->doubled = false;
    }
    facts_tell(f);
}
