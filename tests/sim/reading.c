/*
 * What connections were shown of the locks, and what their clients may swap for that: where a client's connections
 * count as pooled, what any of them has read counts for all.
 */
#include "tests/sim/sim_world.h"

#include <string.h>

enum { SURELY_REMEMBERED_MS = 9000 }; /* what a session was shown is remembered for 10 s at least */

/* K1: the session has been shown the value that it tried to write, and it is its client's live lease: the session may
 * be recognised for the lease, and is no loser then. When the lease is over, the session still speaks for it. */
static void may_be_recognised(const struct world *w, struct conn *c, int key, const char *value) {
    const struct truth *t = &w->truth[key];
    if (w->sc.rule.owner != LOCK_OWNER_AUTO || !t->live || t->process != c->process ||
        strcmp(c->attempt[key].tried, value) != 0)
        return;
    c->attempt[key].recognised = t->fence;
    c->lost_ms[key] = 0;
}

void reading_shown(struct world *w, const struct flight *f, uint64_t fence) {
    struct conn *c = &w->conns[f->conn];
    const struct model_reply *r = &f->envelope.reply;
    if (!c->open || c->id != f->session_id)
        return;
    struct reading *reading = &c->read[f->key];
    *reading =
        (struct reading){.known = r->kind == REPLY_TEXT, .fence = fence, .step = w->step, .at_ms = w->redis.now_ms};
    memcpy(reading->value, r->text, sizeof(reading->value));
    if (reading->known)
        may_be_recognised(w, c, f->key, r->text);
}

static void note_loss(const struct world *w, struct conn *c, const struct flight *f) {
    char *tried = c->attempt[f->key].tried;
    const struct model_envelope *e = &f->envelope;
    bool again = e->fence && c->attempt[f->key].recognised == e->fence && strcmp(tried, f->command.value) == 0;
    if (again) /* the lease that it was recognised for refuses it */
        return;
    memcpy(tried, f->command.value, sizeof(c->attempt[f->key].tried));
    c->lost_ms[f->key] = w->redis.now_ms;
    if (e->reply.kind == REPLY_TEXT)
        may_be_recognised(w, c, f->key, e->reply.text);
}

/* K2: the session has written anew the value of a lease that another session acquired. It may be recognised for the
 * lease, and is no loser then. */
static void may_have_repeated(const struct world *w, struct conn *c, const struct flight *f) {
    const struct truth *t = &w->truth[f->key];
    bool own = t->fence == f->envelope.fence && t->session_id == c->id;
    if (w->sc.rule.owner != LOCK_OWNER_AUTO || own)
        return;
    memcpy(c->attempt[f->key].tried, f->command.value, sizeof(f->command.value));
    c->attempt[f->key].recognised = f->envelope.fence;
    c->lost_ms[f->key] = 0;
}

void reading_attempted(struct world *w, const struct flight *f) {
    struct conn *c = &w->conns[f->conn];
    enum lock_outcome outcome = f->envelope.outcome;
    bool wrote = f->plan.verb == LOCK_PASS && (outcome == LOCK_FREE || outcome == LOCK_OPEN);
    if (!c->open || c->id != f->session_id)
        return;
    if (outcome == LOCK_GRANTED || wrote)
        c->lost_ms[f->key] = 0;
    else if (f->plan.verb == LOCK_ACQUIRE && (outcome == LOCK_HELD || outcome == LOCK_FOREIGN))
        note_loss(w, c, f);
    else if (lock_verb_is(f->plan.verb, VERB_SAYS) && outcome == LOCK_DONE)
        may_have_repeated(w, c, f);
    else if (f->named) { /* a script has named its lease's value */
        memcpy(c->attempt[f->key].tried, f->command.value, sizeof(f->command.value));
        may_be_recognised(w, c, f->key, f->command.value);
    }
}

static bool of_client(const struct conn *o, const struct conn *c) {
    return o->open && o->process == c->process && o->proxy == c->proxy;
}

/* The newest lease that its client's connections have read. */
static void note_leases(struct world *w, struct flight *f, const struct conn *c) {
    long step = 0;
    for (int i = 0; i < CONNS; i++) {
        const struct reading *r = &w->conns[i].read[f->key];
        if (of_client(&w->conns[i], c) && r->known && r->fence &&
            (r->fence > f->client_read_fence || (r->fence == f->client_read_fence && r->step > step))) {
            f->client_read_fence = r->fence;
            memcpy(f->client_shown, r->value, sizeof(f->client_shown));
            step = r->step;
        }
    }
    for (int i = 0; i < CONNS; i++) {
        const struct reading *r = &w->conns[i].read[f->key];
        if (of_client(&w->conns[i], c) && r->known && !r->fence && strcmp(r->value, f->client_shown) != 0)
            f->client_mixed = true;
    }
}

/* What they were told last without being told of which lease it was. */
static void note_foreign(struct world *w, struct flight *f, const struct conn *c) {
    const struct reading *newest = NULL;
    for (int i = 0; i < CONNS; i++) {
        const struct reading *r = &w->conns[i].read[f->key];
        if (of_client(&w->conns[i], c) && r->known && !r->fence && (!newest || r->step > newest->step))
            newest = r;
    }
    if (!newest)
        return;
    memcpy(f->client_shown_foreign, newest->value, sizeof(f->client_shown_foreign));
    f->client_read_foreign = !f->client_read_fence && w->redis.now_ms <= newest->at_ms + SURELY_REMEMBERED_MS;
}

void reading_note(struct world *w, struct flight *f) {
    const struct conn *c = &w->conns[f->conn];
    const struct reading *own = &c->read[f->key];
    enum lock_owner owner = w->sc.rule.owner;
    bool client = owner == LOCK_OWNER_CLIENT, by_auto = owner == LOCK_OWNER_AUTO && c->process >= 0;
    f->pooled = client || (by_auto && w->sc.library);
    f->may_be_pooled = f->pooled || by_auto; /* its workload may have been found to be pooled */
    f->read_fence = own->fence;
    f->was_shown = own->known;
    f->loser = c->lost_ms[f->key] && w->redis.now_ms <= c->lost_ms[f->key] + SURELY_REMEMBERED_MS;
    memcpy(f->shown, own->value, sizeof(f->shown));
    note_leases(w, f, c);
    note_foreign(w, f, c);
}

bool reading_covers(const struct flight *f, uint64_t fence, const char *value) {
    bool own = f->was_shown && strcmp(f->shown, value) == 0, of_lease = strcmp(f->client_shown, value) == 0;
    if (fence)
        return (own && f->read_fence == fence) || (f->may_be_pooled && of_lease && f->client_read_fence == fence);
    return own || (f->may_be_pooled && (of_lease || strcmp(f->client_shown_foreign, value) == 0));
}
