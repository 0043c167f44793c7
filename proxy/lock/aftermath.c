/*
 * What a session sends behind a lost attempt, and what that says of a release over it.
 *
 *      attempt lost ──┬─ a release at once       its code releases in `finally`: the release is the loser's
 *                     └─ nothing, or an attempt  losers do not release here: a release is a colleague's, over a pool
 *
 * On one connection, a loser's release and a colleague's are the same bytes. What else happens tells them apart. In a
 * pool, further attempts are lost in silence. Where losers release, a second release for the same lease comes soon.
 *
 * So a release behind a loss is held back for a moment, until either is seen (C4 and D3 of docs/locks.md), however late
 * it comes: a busy machine may delay a loser's. If a refused release was the holder's, its lease makes way (B2).
 */
#include "proxy/lock/evidence.h"

enum {
    FOLLOWED_MAX = 16,   /* the bits of workload.followed */
    TRIPS = 2,           /* round trips of the client's connection that the next two times have on top */
    AT_ONCE_MS = 5,      /* a release that comes within so many ms of its session's loss comes at once */
    SOON_MS = 1,         /* a release within so many ms comes without any work in between */
    HOLD_MS = 250,       /* a release is held back for at most so long, */
    HOLD_TRIPS = 10,     /* plus so many round trips, */
    HOLD_MOST_MS = 1000, /* both together at most so long, */
    HOLD_LOSSES = 12,    /* C4: a held-back release is believed after so many silent losses */
    HELD_SEEN_MS = 100,  /* a session whose release is held back asks again sooner */
    FOLLOWED_WEIGHT = 2, /* D3: what a followed loss adds to the score */
    QUIET_WEIGHT = 5,    /* D3: what a quiet loss takes from the score */
    QUIET_SCORE = -8,    /* up to this score losers do not release */
    FADE_LOSSES = 64,    /* counts are halved above so many losses */
    KEY_LOSSES = 8,      /* a key with so many losses is judged by its own counts */
    PATIENCE = 2,        /* B2: one session's lost attempts, beyond the longest row, that prove a refusal wrong */
    PATIENCE_ALL = 6,    /* B2: silent losses on the key that prove a refusal wrong */
    LONG_ROW = 2,        /* C4: from so many lost attempts on, a loss over the holder's session matters */
    LOSSES_MAX = UINT8_MAX
};

/* ---- evidence ----------------------------------------------------------------------------------- */

static int64_t trip_ms(const struct peer *p) {
    return p->session && !p->closed ? p->session->trip_ms : 0;
}

int64_t aftermath_at_once_ms(const struct peer *p) {
    return AT_ONCE_MS + TRIPS * trip_ms(p);
}

bool aftermath_behind_release(const struct key_stats *c, const struct contender *w, int64_t now_ms) {
    int64_t released_ms = c && c->released_ms > w->sent_ms ? c->released_ms : w->sent_ms;
    const struct lock_session *s = w->peer->closed ? NULL : w->peer->session;
    return now_ms - released_ms <= SOON_MS + (s ? s->shortest_trip_ms : 0);
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

/* D3: sums the losses that are at the place of a release behind `row` lost attempts in their own rows, or later. */
static int losses_so_far(const uint8_t *counts, unsigned row) {
    int sum = 0;
    for (unsigned i = place(row); i < AFTERMATH_ROWS; i++)
        sum += counts[i];
    return sum;
}

/* D3: above 0, losers seem to release behind `row` lost attempts. `less`: so many followed losses are left out. */
static int score(const struct aftermath *a, unsigned row, int less) {
    return FOLLOWED_WEIGHT * (losses_so_far(a->followed, row) - less) - QUIET_WEIGHT * losses_so_far(a->quiet, row);
}

/* The number of lost attempts in a row after which losers release, if losers release at all. */
static unsigned row_of_losers(const struct workload *f) {
    return f->longest_row ? f->longest_row : 1;
}

static void loss_turns_quiet(struct workload *f, struct key_stats *c, struct loss *l) {
    if (l->next != LOSS_OPEN)
        return;
    l->next = LOSS_QUIET;
    count_loss(f, c, false, l->row);
    if (l->row >= AFTERMATH_ROWS && score(&f->after, AFTERMATH_ROWS, 0) <= QUIET_SCORE)
        (void)workload_learn(f, FACT_LOSERS_QUIET);
    if (l->row >= row_of_losers(f) && c->unlike_losers < LOSSES_MAX)
        c->unlike_losers++;
    if (c->held.silent < LOSSES_MAX)
        c->held.silent++;
}

/* D3: counts a loss as quiet once a release that came now would not come at once any more. */
static void note_quiet(struct workload *f, struct key_stats *c, int64_t now_ms) {
    for (unsigned i = 0; i < c->recent.count; i++)
        if (now_ms - c->recent.at[i].time_ms > c->recent.at[i].at_once_ms)
            loss_turns_quiet(f, c, &c->recent.at[i]);
}

/* D3: several applications may share one workload. A key with enough losses is therefore judged by its own counts. */
static const struct aftermath *evidence(const struct workload *f, const struct key_stats *c) {
    return c && c->after.total >= KEY_LOSSES ? &c->after : &f->after;
}

bool workload_losers_release(const struct workload *f, const struct key_stats *c) {
    bool key_says_no =
        c && !c->doubled && evidence(f, c) == &c->after && score(&c->after, row_of_losers(f), 0) <= QUIET_SCORE;
    return ((f->facts & FACT_LOSERS_RELEASE) && !key_says_no) || workload_surplus(f, c);
}

/* The session's last loss on the key, or NULL. */
static struct loss *last_loss(struct key_stats *c, const struct peer *p) {
    for (unsigned i = c->recent.count; i > 0; i--)
        if (c->recent.at[i - 1].session_id == p->id)
            return &c->recent.at[i - 1];
    return NULL;
}

/* Drops the oldest loss, and counts it as quiet if no release has followed it. */
static void aftermath_forget(struct workload *f, struct key_stats *c) {
    struct loss l = losses_take(&c->recent);
    loss_turns_quiet(f, c, &l);
    f->followed = (uint16_t)(f->followed << 1 | l.expired); /* F2 */
    f->follow_count += f->follow_count < FOLLOWED_MAX;
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
    struct loss *l = losses_add(&c->recent, now_ms, w->peer->id);
    l->at_once_ms = (uint16_t)aftermath_at_once_ms(w->peer);
    l->row = w->lost_row;
}

/* ---- the verdict ---------------------------------------------------------------------------------- */

void aftermath_second(struct workload *f, struct key_stats *c, const struct peer *p, int64_t now_ms) {
    const struct held_release *h = &c->held;
    /* C4: a release behind another release of the key proves nothing: its worker may release twice. */
    if (!h->session_id || h->session_id == p->id || h->again || now_ms - h->seen_ms > HELD_SEEN_MS)
        return;
    c->doubled = true;
    (void)workload_learn(f, FACT_LOSERS_RELEASE);
}

/* C4: whether the lease that was live when the release was first held back has ended: the release is not for the next
 * one. Of another proxy's lease this proxy may have heard late: its fence proves nothing. */
static bool lease_changed(const struct contender *w, const struct claim *live) {
    return w->held_ms && w->held_fence && !(live && (live->fence == w->held_fence || live->peer->remote));
}

/* C4: holds a release back. The first call notes which lease it may be for. */
static enum loser_release hold_back(struct contender *w, struct key_stats *c, const struct claim *live,
                                    int64_t now_ms) {
    if (!w->held_ms) {
        w->held_ms = now_ms;
        w->held_fence = live ? live->fence : 0;
        c->held = (struct held_release){.session_id = w->peer->id,
                                        .again = now_ms - c->released_ms <= aftermath_at_once_ms(w->peer)};
    }
    if (c->held.session_id == w->peer->id)
        c->held.seen_ms = now_ms;
    return LOSER_HELD_BACK;
}

/* C4: decides about a loser's release where losers are not known to release. */
static enum loser_release weigh(struct workload *f, struct key_stats *c, struct contender *w, const struct claim *live,
                                bool waits, int64_t now_ms) {
    const struct aftermath *a = evidence(f, c);
    int64_t apart_ms = (w->held_ms ? w->held_ms : now_ms) - w->sent_ms;
    bool at_once = apart_ms <= aftermath_at_once_ms(w->peer);
    unsigned silent = w->held_ms && c->held.session_id == w->peer->id ? c->held.silent : 0;
    /* C4: where losers release, these losses would have been followed. So the release is a colleague's. */
    if (silent >= HOLD_LOSSES)
        return LOSER_BELIEVED;
    if (waits)
        return hold_back(w, c, live, now_ms);
    /* C6: losers are known to be quiet. No other loss here was followed by a release. */
    if ((f->facts & FACT_LOSERS_QUIET) && losses_so_far(a->followed, 1) <= 1)
        return LOSER_BELIEVED;
    if (!at_once || score(a, w->lost_row, 1) <= QUIET_SCORE) /* this release does not count for itself */
        return LOSER_BELIEVED;
    /* C4: behind a long row the score rests on few losses. An attempt was lost over the holder's session, so that
     * session carries other workers' commands. Exception: the lost attempt may be the holder's own, a nested one. */
    if (live && live->self_lost && w->lost_row >= LONG_ROW)
        return LOSER_BELIEVED;
    /* C6: one of several proxies sees only a part of what follows losses. It believes a held-back release that came
     * later than "soon", unless another loss was followed by a release. */
    bool sees_a_part =
        w->held_ms && engine_elsewhere(f->shard->engine) && apart_ms > SOON_MS + TRIPS * trip_ms(w->peer);
    return sees_a_part && losses_so_far(a->followed, w->lost_row) <= 1 ? LOSER_BELIEVED : LOSER_REFUSED;
}

enum loser_release aftermath_release(struct workload *f, struct key_stats *c, struct contender *w,
                                     const struct claim *live, bool patient, int64_t now_ms) {
    const struct peer *p = w->peer;
    bool again = w->held_ms != 0;
    note_quiet(f, c, now_ms);
    /* D3: if the loss was counted as quiet, that count is taken back. Only a release at once makes it followed. */
    struct loss *l = !again && w->lost ? last_loss(c, p) : NULL;
    if (l && l->next != LOSS_RELEASED) {
        if (l->next == LOSS_QUIET) {
            after_uncount_quiet(&f->after, l->row);
            after_uncount_quiet(&c->after, l->row);
        }
        l->next = LOSS_RELEASED;
        if (now_ms - w->sent_ms <= aftermath_at_once_ms(p))
            count_loss(f, c, true, l->row);
    }
    int64_t most_ms = HOLD_MS + HOLD_TRIPS * trip_ms(p);
    bool long_enough = again && now_ms - w->held_ms >= (most_ms < HOLD_MOST_MS ? most_ms : HOLD_MOST_MS);
    /* C6: where this proxy knows no live lease, another proxy may have given one. */
    bool waits = patient && (live || engine_elsewhere(f->shard->engine)) && !long_enough;
    enum loser_release said = LOSER_REFUSED;
    /* L7: the release may be a holder's, so it is not refused without evidence: D3, losers are known to release; C4,
     * its lease has ended meanwhile. */
    if (!lease_changed(w, live) && !workload_losers_release(f, c))
        said = weigh(f, c, w, live, waits, now_ms);
    if (said == LOSER_HELD_BACK)
        return said;
    w->held_ms = 0;
    if (c->held.session_id == p->id)
        c->held.session_id = 0;
    c->unlike_losers = 0;
    /* B2: the patience of aftermath_was_holders grows with this row. */
    if (said == LOSER_REFUSED && w->lost_row > f->longest_row)
        f->longest_row = w->lost_row;
    return said;
}

/* ---- a wrong refusal -------------------------------------------------------------------------------- */

bool aftermath_was_holders(const struct workload *f, const struct key_stats *c, const struct contender *w) {
    /* B2: losers that release would have released again, so the refused release was the holder's. */
    return w->suspicious_row >= row_of_losers(f) + PATIENCE || (c && c->unlike_losers >= PATIENCE_ALL);
}

void aftermath_mistaken(struct workload *f, struct key_stats *c) {
    static const struct aftermath QUIET = {.total = 2, .quiet = {[AFTERMATH_ROWS - 1] = 2}};
    f->facts &= ~(unsigned)FACT_LOSERS_RELEASE;
    f->longest_row = 0;
    if (c) {
        c->after = QUIET;
        c->doubled = false;
    }
    facts_tell(f);
}
