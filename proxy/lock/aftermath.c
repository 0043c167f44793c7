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
#include "proxy/lock/outcome.h"

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
    LATER_SCORE = 4,       /* from here on also a release that is not at once is taken for a loser's, */
    QUIET_SCORE = -8,      /* and up to here losers do not release */
    FADE_LOSSES = 64,      /* counts are halved there */
    KEY_LOSSES = 8,        /* from so many on a key is judged by itself */
    PATIENCE = 2, /* attempts lost over one session beyond the longest row of a loser that released show a refused */
    PATIENCE_ALL =
        6,        /* release to have been the holder's; or so many on the key, in silence, at the end of such rows */
    LONG_ROW = 2, /* behind so many lost attempts it counts that the holder's session has lost some, too */
    LOSSES_MAX = UINT8_MAX
};

/* ---- evidence ----------------------------------------------------------------------------------- */

static int64_t trip_ms(const struct peer *p) {
    return p->session && !p->closed ? p->session->trip_ms : 0;
}

int64_t aftermath_at_once_ms(const struct peer *p) {
    return AT_ONCE_MS + TRIPS * trip_ms(p);
}

int64_t aftermath_soon_ms(const struct peer *p) {
    return SOON_MS + TRIPS * trip_ms(p);
}

static bool held_long_enough(const struct contender *w, int64_t now_ms) {
    int64_t most_ms = HOLD_MS + HOLD_TRIPS * trip_ms(w->peer);
    return now_ms - w->held_ms >= (most_ms < HOLD_MOST_MS ? most_ms : HOLD_MOST_MS);
}

static unsigned place(unsigned row) {
    return row == 0 ? 0 : row <= AFTERMATH_ROWS ? row - 1 : AFTERMATH_ROWS - 1;
}

static void after_count(struct aftermath *a, bool followed, unsigned row) {
    (followed ? a->followed : a->quiet)[place(row)]++;
    if (++a->total <= FADE_LOSSES)
        return;
    a->total = 0;
    for (size_t i = 0; i < AFTERMATH_ROWS; i++)
        a->total += (a->followed[i] /= 2) + (a->quiet[i] /= 2);
}

static void after_uncount_quiet(struct aftermath *a, unsigned row) {
    if (a->quiet[place(row)] == 0)
        return;
    a->quiet[place(row)]--;
    a->total--;
}

static void count_loss(struct workload *f, struct key_stats *c, bool followed, unsigned row) {
    after_count(&f->after, followed, row);
    after_count(&c->after, followed, row);
}

/* D3: the losses that count for a release behind `row` lost attempts: those at this place in their row or later. */
static int losses_so_far(const uint8_t *counts, unsigned row) {
    int sum = 0;
    for (unsigned i = place(row); i < AFTERMATH_ROWS; i++)
        sum += counts[i];
    return sum;
}

/* Above 0 losers seem to release behind a row of so many lost attempts; `less` of the losses with a release are left
 * out. */
static int score(const struct aftermath *a, unsigned row, int less) {
    return FOLLOWED_WEIGHT * (losses_so_far(a->followed, row) - less) - QUIET_WEIGHT * losses_so_far(a->quiet, row);
}

/* The row of lost attempts behind which losers release, if they do. */
static unsigned row_of_losers(const struct workload *f) {
    return f->longest_row ? f->longest_row : 1;
}

static void loss_turns_quiet(struct workload *f, struct key_stats *c, struct loss *l) {
    if (l->next != LOSS_OPEN)
        return;
    l->next = LOSS_QUIET;
    count_loss(f, c, false, l->row);
    if (l->row >= AFTERMATH_ROWS && score(&f->after, AFTERMATH_ROWS, 0) <= QUIET_SCORE)
        workload_quiet(f);
    if (l->row >= row_of_losers(f) && c->unlike_losers < LOSSES_MAX)
        c->unlike_losers++;
    if (l->row >= c->held.row && c->held.silent < LOSSES_MAX)
        c->held.silent++;
}

/* Notes the losses of a key behind which no release has come at once. */
static void note_quiet(struct workload *f, struct key_stats *c, int64_t now_ms) {
    for (unsigned i = 0; i < c->recent.count; i++)
        if (now_ms - c->recent.at[i].time_ms > c->recent.at[i].at_once_ms)
            loss_turns_quiet(f, c, &c->recent.at[i]);
}

/* D3: a key with enough losses is judged by its own counts, since several applications may share one workload. */
static const struct aftermath *evidence(const struct workload *f, const struct key_stats *c) {
    return c && c->after.total >= KEY_LOSSES ? &c->after : &f->after;
}

bool aftermath_losers_release(const struct workload *f, const struct key_stats *c) {
    bool key_says_no =
        c && !c->doubled && evidence(f, c) == &c->after && score(&c->after, row_of_losers(f), 0) <= QUIET_SCORE;
    return f->losers_release && !key_says_no;
}

/* The session's last loss on the key, or NULL. */
static struct loss *last_loss(struct key_stats *c, const struct peer *p) {
    for (unsigned i = c->recent.count; i > 0; i--)
        if (c->recent.at[i - 1].session_id == p->id)
            return &c->recent.at[i - 1];
    return NULL;
}

void aftermath_forget(struct workload *f, struct key_stats *c) {
    struct loss l = losses_take(&c->recent);
    loss_turns_quiet(f, c, &l);
    workload_followed(f, l.expired);
}

void aftermath_tidy(struct workload *f, struct key_stats *c, int64_t before_ms, int64_t now_ms) {
    note_quiet(f, c, now_ms);
    while (losses_over(&c->recent, before_ms) && c->recent.at[0].next != LOSS_OPEN)
        aftermath_forget(f, c);
}

void aftermath_tries_again(struct workload *f, struct key_stats *c, const struct peer *p) {
    struct loss *l = last_loss(c, p);
    if (l)
        loss_turns_quiet(f, c, l);
}

void aftermath_lost(struct workload *f, struct key_stats *c, struct contender *w, int64_t now_ms) {
    aftermath_tries_again(f, c, w->peer);
    note_quiet(f, c, now_ms);
    if (c->recent.count == KEY_STATS_DEBTS)
        aftermath_forget(f, c);
    if (w->lost_row < LOSSES_MAX)
        w->lost_row++;
    losses_add(&c->recent, now_ms, w->peer->id);
    c->recent.at[c->recent.count - 1].at_once_ms = (uint16_t)aftermath_at_once_ms(w->peer);
    c->recent.at[c->recent.count - 1].row = w->lost_row;
}

/* Notes that the session has sent a release behind its last loss. */
static void note_followed(struct workload *f, struct key_stats *c, const struct peer *p, bool at_once) {
    struct loss *l = last_loss(c, p);
    if (!l || l->next == LOSS_RELEASED)
        return;
    if (l->next == LOSS_QUIET) {
        after_uncount_quiet(&f->after, l->row);
        after_uncount_quiet(&c->after, l->row);
    }
    l->next = LOSS_RELEASED;
    if (at_once)
        count_loss(f, c, true, l->row);
}

/* ---- the verdict ---------------------------------------------------------------------------------- */

void aftermath_second(struct workload *f, struct key_stats *c, const struct peer *p, int64_t now_ms) {
    const struct held_release *h = &c->held;
    if (!h->session_id || h->session_id == p->id || h->again || now_ms - h->seen_ms > HELD_SEEN_MS)
        return;
    c->doubled = true;
    workload_releases_lost(f);
}

/* C4: whether the lease that was live when the release was first held back is over by now. This proxy hears late of
 * leases that another proxy gave. */
static bool lease_changed(const struct contender *w, const struct claim *live) {
    if (!w->held_ms || (live && (live->fence == w->held_fence || live->peer->remote)))
        return false;
    return w->held_fence != 0;
}

/* C4: decides when the time to hold a release back is over. C6: with several proxies this proxy sees only a part of
 * what follows losses. A release that came a little later is then believed, unless another loss was followed by one. */
static enum loser_release decide(const struct aftermath *a, unsigned row, const struct claim *live, bool at_once,
                                 bool soon, bool elsewhere) {
    int known = score(a, row, at_once ? 1 : 0); /* but for this release */
    if (!at_once && known < LATER_SCORE)
        return LOSER_BELIEVED;
    if (known <= QUIET_SCORE)
        return LOSER_BELIEVED_BY_CHANCE;
    /* Behind a long row little is known of rows as long. But others try over the holder's session. One attempt of that
     * kind may be the holder's own, a nested one. */
    if (live && live->self_lost && row >= LONG_ROW)
        return LOSER_BELIEVED;
    return elsewhere && !soon && losses_so_far(a->followed, row) <= 1 ? LOSER_BELIEVED : LOSER_REFUSED;
}

/* C4: starts to hold a release back, or goes on. */
static enum loser_release hold_back(struct contender *w, struct key_stats *c, const struct claim *live,
                                    int64_t now_ms) {
    if (!w->held_ms) {
        w->held_ms = now_ms;
        w->held_fence = live ? live->fence : 0;
        c->held = (struct held_release){.session_id = w->peer->id,
                                        .row = w->lost_row,
                                        .again = now_ms - c->released_ms <= aftermath_at_once_ms(w->peer)};
    }
    if (c->held.session_id == w->peer->id)
        c->held.seen_ms = now_ms;
    return LOSER_HELD_BACK;
}

/* Decides about a release that came shortly behind its session's loss. */
static enum loser_release release_shortly(struct workload *f, struct key_stats *c, struct contender *w,
                                          const struct claim *live, bool waits, bool elsewhere, int64_t now_ms) {
    int64_t apart_ms = (w->held_ms ? w->held_ms : now_ms) - w->sent_ms;
    bool at_once = apart_ms <= aftermath_at_once_ms(w->peer);
    bool soon = apart_ms <= aftermath_soon_ms(w->peer);
    bool remembered = w->held_ms && c->held.session_id == w->peer->id;
    if (at_once && score(evidence(f, c), w->lost_row, 1) >= RELEASERS_SCORE) {
        workload_releases_lost(f);
        return LOSER_REFUSED;
    }
    unsigned silent = remembered ? c->held.silent : 0;
    if (waits && silent < HOLD_LOSSES)
        return hold_back(w, c, live, now_ms);
    if (silent >= HOLD_LOSSES_LEAST)
        return LOSER_BELIEVED;
    if (f->losers_quiet && losses_so_far(evidence(f, c)->followed, 1) <= 1)
        return LOSER_BELIEVED;
    return decide(evidence(f, c), w->lost_row, live, at_once, soon, elsewhere && w->held_ms);
}

enum loser_release aftermath_release(struct workload *f, struct key_stats *c, struct contender *w,
                                     const struct claim *live, bool patient, bool elsewhere, int64_t now_ms) {
    const struct peer *p = w->peer;
    bool again = w->held_ms != 0;
    int64_t apart_ms = (again ? w->held_ms : now_ms) - w->sent_ms;
    note_quiet(f, c, now_ms);
    if (!again)
        note_followed(f, c, p, apart_ms <= aftermath_at_once_ms(p));
    /* Of a lock that is free as far as is known, another proxy may have given a lease. */
    bool waits = patient && (live || elsewhere) && (!again || !held_long_enough(w, now_ms));
    enum loser_release said = LOSER_REFUSED;
    bool shortly = apart_ms <= SHORTLY_MS + TRIPS * trip_ms(p) || score(evidence(f, c), w->lost_row, 0) >= LATER_SCORE;
    if (!lease_changed(w, live) && !workload_losers_release(f, c))
        said = shortly ? release_shortly(f, c, w, live, waits, elsewhere, now_ms) : LOSER_BELIEVED;
    if (said == LOSER_HELD_BACK)
        return said;
    w->held_ms = 0;
    if (c->held.session_id == p->id)
        c->held.session_id = 0;
    aftermath_refused(c);
    if (said == LOSER_REFUSED && w->lost_row > f->longest_row)
        f->longest_row = w->lost_row;
    return said;
}

/* ---- a wrong refusal -------------------------------------------------------------------------------- */

void aftermath_row(struct contender *w, const struct claim *live) {
    if (!live || !claim_suspicious(live, 0))
        w->suspicious_row = 0;
    else if (w->suspicious_row < LOSSES_MAX)
        w->suspicious_row++;
}

void aftermath_refused(struct key_stats *c) {
    c->unlike_losers = 0;
}

bool aftermath_was_holders(const struct workload *f, const struct key_stats *c, const struct contender *w) {
    return w->suspicious_row >= row_of_losers(f) + PATIENCE || (c && c->unlike_losers >= PATIENCE_ALL);
}

void aftermath_mistaken(struct workload *f, struct key_stats *c) {
    static const struct aftermath QUIET = {.total = 2, .quiet = {[AFTERMATH_ROWS - 1] = 2}};
    f->losers_release = false;
    f->losers_quiet = true;
    f->longest_row = 0;
    f->after = QUIET;
    if (c) {
        c->after = QUIET;
        c->doubled = false;
    }
    facts_tell(f);
}
