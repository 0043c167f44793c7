/*
 * What a run is like: drawn from its seed, with what the lock semantics promise for it.
 */
#include "tests/sim/chance.h"
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BIT(idiom) (1u << (idiom))

enum {
    CONSTANT = BIT(IDIOM_SETNX) | BIT(IDIOM_SETNX_EXPIRE) | BIT(IDIOM_CONST) | BIT(IDIOM_GETDEL) | BIT(IDIOM_MULTI),
    DISTINCT = BIT(IDIOM_UNIQUE) | BIT(IDIOM_EXTENDING),
    COMPARE = BIT(IDIOM_COMPARE) | BIT(IDIOM_WATCH)
};
static const uint32_t AUDIT_UNDERSTANDS = BIT(IDIOM_SETNX) | BIT(IDIOM_SETNX_EXPIRE) | BIT(IDIOM_CONST) |
                                          BIT(IDIOM_UNIQUE) | BIT(IDIOM_COMPARE) | BIT(IDIOM_EXTENDING) |
                                          BIT(IDIOM_GETDEL);

struct draw {
    uint64_t random;
};

static unsigned below(struct draw *d, unsigned n) {
    return (unsigned)(chance_next(&d->random) % n);
}

static bool chance(struct draw *d, unsigned percent) {
    return below(d, 100) < percent;
}

static bool subset(uint32_t a, uint32_t of) {
    return (a & ~of) == 0;
}

/* On shared connections the promises are for applications that do one thing: constants, values of their own, or
 * values that they compare. */
static uint32_t draw_idioms(struct draw *d) {
    switch (below(d, 6)) {
    case 0:
        return CONSTANT;
    case 1:
        return DISTINCT;
    case 2:
        return COMPARE;
    case 3:
        return BIT(below(d, STRING_IDIOMS));
    default:
        return (below(d, BIT(STRING_IDIOMS)) & below(d, BIT(STRING_IDIOMS))) | BIT(below(d, STRING_IDIOMS));
    }
}

/* Mostly idioms that wait. */
static uint32_t draw_waiting_idioms(struct draw *d) {
    static const uint32_t WAITING[] = {CONSTANT, DISTINCT, COMPARE, BIT(IDIOM_SETNX), BIT(IDIOM_UNIQUE)};
    return chance(d, 75) ? WAITING[below(d, 5)] : draw_idioms(d);
}

static void draw_rule(struct draw *d, struct lock_rule *r) {
    static const int64_t LEASES[] = {600, 1500, 3000};
    static char pattern[] = "lock:*";
    r->pattern = pattern;
    r->pattern_len = strlen(pattern);
    r->mode = LOCK_MODE_ENFORCE;
    r->owner = (enum lock_owner)below(d, 4);
    if (r->owner == LOCK_OWNER_ANY && chance(d, 70))
        r->owner = LOCK_OWNER_AUTO;
    r->claim_memory_ms = chance(d, 75) ? 60000 : (int64_t)below(d, chance(d, 50) ? 20 : 2000);
    r->lease_ms = LEASES[below(d, 3)];
    r->renew = chance(d, 70) ? LOCK_RENEW_AUTO : chance(d, 50) ? LOCK_RENEW_ALWAYS : LOCK_RENEW_NEVER;
    r->max_hold_ms = chance(d, 50) ? 0 : 2000 + (int64_t)below(d, 8000);
    r->handover_ms = chance(d, 80) ? 5000 : 0;
    r->on_disconnect = chance(d, 70) ? LOCK_DISCONNECT_KEEP : LOCK_DISCONNECT_RELEASE;
}

/* The calmer a run is, the more is promised for it. */
static void draw_trouble(struct draw *d, struct scenario *sc) {
    unsigned calm = chance(d, 50) ? 4 : 1;
    sc->deaths = chance(d, 40);
    sc->reconnects = chance(d, 20 / calm);
    sc->restarts = chance(d, 10 / calm);
    sc->loses = chance(d, 25 / calm);
    sc->outside = chance(d, 15 / calm);
    sc->operators = chance(d, 15 / calm);
    sc->finals = chance(d, 30 / calm);
    sc->strays = chance(d, 20 / calm);
    sc->silent = chance(d, 20 / calm) || (sc->idioms & (BIT(IDIOM_THROTTLE) | BIT(IDIOM_DEADLINE)));
    sc->stranger = chance(d, 50);
    sc->punctual = chance(d, 30);
    sc->transactions = (sc->idioms & (BIT(IDIOM_MULTI) | BIT(IDIOM_WATCH))) || chance(d, 15);
    sc->discards = sc->transactions && chance(d, 50);
    sc->rebirth = chance(d, 70) ? 20 : 2;
}

/* The table at the end of the lock semantics. */
static void promise_own(struct scenario *sc) {
    enum lock_owner owner = sc->rule.owner;
    bool alone = sc->proxies == 1;
    if (owner == LOCK_OWNER_CONNECTION) {
        sc->never_wrong = sc->apart = true;
    } else if (owner == LOCK_OWNER_AUTO) {
        /* Within one identity a release is believed unless something speaks against it: so what a worker sends that
         * holds nothing, over a connection that has not lost, may be taken for a colleague's. */
        bool follows = !sc->strays && !sc->finals && !(sc->idioms & BIT(IDIOM_COUNT)); /* a loser's DECR */
        /* It is not known that a lost script was a release. */
        bool known = !(sc->loses && (sc->idioms & BIT(IDIOM_SCRIPT)));
        sc->never_wrong = sc->apart =
            follows && known && alone && !sc->reconnects && !sc->restarts && !sc->silent && !sc->library;
    }
    /* The rule does not check which session releases. */
    bool anybody = owner == LOCK_OWNER_ANY && subset(sc->idioms, CONSTANT | BIT(IDIOM_UNIQUE) | BIT(IDIOM_THROTTLE));
    /* Some idioms leave a claim behind that a later release through the same connection uses up: they end a lease
     * otherwise than by a release, or find out that they have lost it and send none. */
    bool counts = sc->idioms & BIT(IDIOM_COUNT), compares = sc->idioms & (COMPARE | BIT(IDIOM_SCRIPT));
    bool uses_up =
        owner == LOCK_OWNER_AUTO && !sc->silent && sc->rule.claim_memory_ms >= 60000 &&
        !(sc->idioms & BIT(IDIOM_SHORTEN)) &&
        (!compares || sc->idioms == BIT(IDIOM_COMPARE) || sc->idioms == BIT(IDIOM_SCRIPT)) &&
        (!counts || (sc->idioms == BIT(IDIOM_COUNT) && !sc->library && !sc->strays && !sc->outside && !sc->stranger));
    /* A lost renewal may have given a lease a longer end than the proxy believes, and claim-memory bridges that. */
    bool bridged = !sc->loses || sc->rule.claim_memory_ms >= 60000;
    uses_up = uses_up || (owner == LOCK_OWNER_CONNECTION && bridged);
    sc->never_kept = anybody || (sc->never_wrong && uses_up && !sc->reconnects && !sc->restarts);
    /* Whatever the idioms, they leave such a claim behind only where a lease has ended unreleased. */
    static const uint32_t OTHERWISE = BIT(IDIOM_SHORTEN) | BIT(IDIOM_DEADLINE) | BIT(IDIOM_COUNT) | BIT(IDIOM_THROTTLE);
    bool calm = !sc->outside && !sc->operators && !sc->loses && !sc->reconnects && !sc->restarts && !sc->silent &&
                !sc->strays && !sc->finals && sc->proxies == 1;
    sc->kept_after_end_only = sc->never_wrong && owner == LOCK_OWNER_AUTO && calm && !(sc->idioms & OTHERWISE);
}

static void promise_shared(struct scenario *sc) {
    bool client = sc->rule.owner == LOCK_OWNER_CLIENT;
    bool one = sc->connections == CONN_SHARED && sc->rule.owner == LOCK_OWNER_AUTO;
    bool alike = subset(sc->idioms, CONSTANT) || subset(sc->idioms, DISTINCT) || subset(sc->idioms, COMPARE);
    bool follows = !sc->finals && !sc->strays && alike;
    bool stays = !sc->restarts && !(sc->reconnects && sc->connections == CONN_SHARED) &&
                 (sc->proxies == 1 || sc->connections == CONN_SHARED) && sc->rule.claim_memory_ms >= 60000;
    if (!follows || !stays)
        return;
    /* What one missed release shifts ends with the time that it would have had: a late one after that is believed. How
     * often that happens is the traffic simulator's to bound. */
    bool never = client || (one && !sc->reconnects);
    bool exact = never && !sc->loses && !sc->outside && !sc->operators;
    sc->kept_after_end_only = exact;
    sc->kept_after_sight_only = exact && subset(sc->idioms, COMPARE);
}

/* A scenario of list locks. Nodes are told by their values, so that no worker ends another's lease on any model; what
 * is seen and pushed over connections that don't count as shared, and are, is promised nothing. */
static void draw_queue(struct draw *d, struct scenario *sc) {
    enum lock_owner owner = sc->rule.owner;
    bool own = sc->connections == CONN_OWN;
    bool client = owner == LOCK_OWNER_CLIENT || (owner == LOCK_OWNER_AUTO && sc->library);
    unsigned which = below(d, own && !client ? 3 : 2);
    sc->queue = true;
    sc->idioms = which == 0   ? BIT(IDIOM_QUEUE)
                 : which == 1 ? BIT(IDIOM_REENTRANT)
                              : BIT(IDIOM_QUEUE) | BIT(IDIOM_REENTRANT);
    sc->outside = sc->strays = sc->finals = false;
    if (own && !client && chance(d, 30)) { /* workers that come back, and nothing else goes wrong */
        sc->idioms = BIT(IDIOM_QUEUE);
        sc->reconnects = sc->punctual = true;
        sc->restarts = sc->loses = sc->operators = sc->slow = false;
        sc->proxies = 1;
        sc->rule.renew = LOCK_RENEW_AUTO;
        sc->rule.on_disconnect = LOCK_DISCONNECT_KEEP;
    }
    bool queue = sc->idioms == BIT(IDIOM_QUEUE), reconnects = sc->reconnects && !queue;
    sc->apart = own && !client && owner != LOCK_OWNER_ANY && !reconnects && !sc->restarts &&
                (owner == LOCK_OWNER_CONNECTION || sc->proxies == 1);
    /* LSET says which place, not which node. */
    sc->never_wrong = owner != LOCK_OWNER_ANY && (sc->apart || queue);
    sc->never_kept = sc->kept_after_end_only = sc->kept_after_sight_only = false;
    /* Over shared connections it is not known which worker was told that there is no queue. */
    bool told = own || client || (queue && owner == LOCK_OWNER_AUTO);
    bool calm = !reconnects && !sc->restarts && !sc->loses && !(sc->deaths && client) && !(sc->reconnects && client);
    sc->queue_exact = calm && owner != LOCK_OWNER_ANY && told;
    sc->queue_kept = sc->queue_exact && sc->apart && sc->punctual && !sc->operators && sc->proxies == 1 &&
                     sc->rule.renew != LOCK_RENEW_NEVER &&
                     (!sc->reconnects || sc->rule.on_disconnect == LOCK_DISCONNECT_KEEP);
}

/* The rule begins in audit, and is enforced while its locks are in use. Redis runs commands as they come until then, so
 * that nothing is promised but this: a holder that was known then is safe from there on. Counters, swaps and
 * scripts are not always understood. */
static void draw_audit(struct draw *d, struct scenario *sc) {
    sc->audit = true;
    bool calm = !sc->reconnects && !sc->restarts && !sc->loses && !sc->outside && !sc->operators && !sc->silent;
    /* Under auto, what happened to holders before may look like a pool. */
    sc->audit_exact = calm && sc->proxies == 1 && sc->rule.owner == LOCK_OWNER_CONNECTION && sc->apart &&
                      sc->connections == CONN_OWN && subset(sc->idioms, AUDIT_UNDERSTANDS) && chance(d, 80);
    sc->toggles = !sc->audit_exact && chance(d, 60);
    sc->kept_after_end_only = sc->kept_after_sight_only = false;
    sc->never_wrong = sc->never_wrong && sc->audit_exact;
    sc->never_kept = sc->never_kept && sc->audit_exact;
    sc->apart = sc->audit_exact;
}

/* ---- situations that come about too rarely by themselves --------------------------------------- */

/* Draws a scenario in which nothing goes wrong, and nothing is promised yet. */
static void draw_calm(struct draw *d, struct scenario *sc, enum connections connections, uint32_t idioms) {
    struct scenario calm = {.seed = sc->seed,
                            .connections = connections,
                            .idioms = idioms,
                            .proxies = 1,
                            .processes = sc->processes,
                            .workers = sc->workers,
                            .keys = sc->keys,
                            .rebirth = sc->rebirth,
                            .slow = chance(d, 60),
                            .pauses = chance(d, 60),
                            .expiry_ms = sc->expiry_ms,
                            .rule = sc->rule};
    calm.conns = connections == CONN_OWN ? calm.workers : 2 + below(d, 3);
    *sc = calm;
}

/* A pool whose workers look over one connection and swap over another, and a client that goes around the proxy: what is
 * no session's lease may be swapped by the client that has read it. */
static void draw_takeovers(struct draw *d, struct scenario *sc) {
    draw_calm(d, sc, CONN_POOL, BIT(IDIOM_DEADLINE));
    sc->workers = 2 + below(d, WORKERS_EACH - 1);
    sc->outside = chance(d, 60);
    sc->keys = 1 + below(d, 2);
    sc->silent = true;
    sc->rule.owner = LOCK_OWNER_CLIENT;
}

/* Leases of the proxy's own, held for longer than they last, and answers to renewals that come late or never. */
static void draw_renewals(struct draw *d, struct scenario *sc) {
    draw_calm(d, sc, CONN_OWN, chance(d, 50) ? BIT(IDIOM_SETNX) : BIT(IDIOM_SETNX) | BIT(IDIOM_CONST));
    sc->punctual = sc->loses = chance(d, 50);
    sc->deaths = chance(d, 30);
    sc->rule.owner = chance(d, 50) ? LOCK_OWNER_CONNECTION : LOCK_OWNER_AUTO;
    sc->rule.renew = chance(d, 80) ? LOCK_RENEW_AUTO : LOCK_RENEW_ALWAYS;
    sc->rule.lease_ms = sc->punctual ? 600 : 1500; /* for several renewals; for an expiry that is shorter */
    sc->expiry_ms = 200 + below(d, 800);
    promise_own(sc);
}

/* What was acquired under audit is there when the rule is enforced. */
static void draw_enforced(struct draw *d, struct scenario *sc) {
    draw_calm(d, sc, CONN_OWN, 1 + below(d, AUDIT_UNDERSTANDS));
    sc->idioms = (sc->idioms & AUDIT_UNDERSTANDS) | BIT(IDIOM_UNIQUE);
    sc->deaths = chance(d, 40);
    sc->finals = chance(d, 40);
    sc->strays = chance(d, 40);
    sc->stranger = chance(d, 60);
    sc->reloads = chance(d, 20);
    sc->rule.owner = LOCK_OWNER_CONNECTION;
    promise_own(sc);
    draw_audit(d, sc);
}

/* Careful scripts beside commands that are not. */
static void draw_scripts(struct draw *d, struct scenario *sc) {
    static const uint32_t BESIDE[] = {CONSTANT, DISTINCT, BIT(IDIOM_UNIQUE), BIT(IDIOM_CONST)};
    draw_calm(d, sc, CONN_OWN, BIT(IDIOM_SCRIPT) | BESIDE[below(d, 4)]);
    sc->rule.owner = LOCK_OWNER_AUTO;
    sc->rule.claim_memory_ms = 60000;
    sc->slow = false;
    promise_own(sc);
}

/* A pool whose workers release in transactions, and then discard some of them. */
static void draw_discards(struct draw *d, struct scenario *sc) {
    static const uint32_t IDIOMS[] = {BIT(IDIOM_MULTI) | BIT(IDIOM_CONST), BIT(IDIOM_WATCH),
                                      BIT(IDIOM_WATCH) | BIT(IDIOM_COMPARE)};
    draw_calm(d, sc, CONN_POOL, IDIOMS[below(d, 3)]);
    sc->workers = 2 + below(d, WORKERS_EACH - 1);
    sc->keys = 1 + below(d, 2);
    sc->deaths = chance(d, 40);
    sc->transactions = sc->discards = true;
    sc->rule.owner = LOCK_OWNER_CLIENT;
    sc->rule.claim_memory_ms = 60000;
    promise_shared(sc);
}

/* Connections that call themselves otherwise, or close, and what they leave to connections that share with them. */
static void draw_departures(struct draw *d, struct scenario *sc) {
    draw_calm(d, sc, CONN_OWN, BIT(IDIOM_SETNX) | BIT(IDIOM_UNIQUE));
    sc->workers = sc->conns = 1 + below(d, 2);
    sc->deaths = sc->renames = sc->eventful = true;
    sc->library = chance(d, 50);
    sc->rule.owner = sc->library ? LOCK_OWNER_AUTO : LOCK_OWNER_CLIENT;
    sc->rebirth = 1;
}

/* CLIENT SETNAME: a name a worker is a client a worker, also where it comes back on another connection. */
static void draw_names(struct draw *d, struct scenario *sc) {
    enum lock_owner owner = sc->rule.owner;
    sc->names = chance(d, 20);
    sc->renames = !sc->names && chance(d, 15);
    if (sc->names && (owner == LOCK_OWNER_CLIENT || owner == LOCK_OWNER_AUTO))
        sc->never_wrong = sc->apart = true;
    if (sc->names && owner == LOCK_OWNER_AUTO) /* a release that goes to another proxy finds no other worker's lock */
        sc->never_kept = sc->never_kept && !sc->strays;
}

/* Connections that are cut and made again under the same name, while what they hold is renewed. */
static void draw_returns(struct draw *d, struct scenario *sc) {
    draw_calm(d, sc, CONN_OWN, BIT(IDIOM_SETNX));
    sc->names = sc->reconnects = sc->punctual = sc->eventful = true;
    sc->apart = sc->never_wrong = true;
    sc->rule.owner = chance(d, 60) ? LOCK_OWNER_AUTO : LOCK_OWNER_CLIENT;
    sc->rule.claim_memory_ms = 60000;
    sc->rule.lease_ms = chance(d, 50) ? 600 : 1500;
    sc->rule.renew = LOCK_RENEW_AUTO;
    sc->rule.on_disconnect = LOCK_DISCONNECT_KEEP;
}

/* Hash locks: by scripts, or by HSETNX; a holder may add what fields it likes, so that these two don't mix. Fields tell
 * which worker is in a lock, so that none takes another's away on any model. */
static void draw_hash(struct draw *d, struct scenario *sc) {
    enum lock_owner owner = sc->rule.owner;
    static const uint32_t IDIOMS[] = {BIT(IDIOM_HASH), BIT(IDIOM_READ), BIT(IDIOM_HASH) | BIT(IDIOM_READ),
                                      BIT(IDIOM_FIELD)};
    sc->hash = true;
    sc->idioms = IDIOMS[below(d, 4)];
    sc->outside = sc->strays = sc->transactions = sc->discards = false;
    sc->apart = sc->connections == CONN_OWN && !sc->reconnects && !sc->restarts &&
                (owner == LOCK_OWNER_CONNECTION ||
                 (owner == LOCK_OWNER_AUTO && sc->proxies == 1 && !sc->library && !sc->silent && !sc->finals));
    sc->never_wrong = sc->never_kept = false;
    sc->kept_after_end_only = sc->kept_after_sight_only = false;
}

static void draw_situation(struct draw *d, struct scenario *sc) {
    unsigned which = below(d, 100);
    if (which < 12)
        draw_audit(d, sc);
    else if (which < 17)
        draw_takeovers(d, sc);
    else if (which < 20)
        draw_renewals(d, sc);
    else if (which < 23)
        draw_enforced(d, sc);
    else if (which < 26)
        draw_departures(d, sc);
    else if (which < 28)
        draw_scripts(d, sc);
    else if (which < 32)
        draw_discards(d, sc);
    else if (which < 36)
        draw_returns(d, sc);
}

/* A scenario of waiting attempts. Each answer is in flight for a bounded time, so a longer wait is the proxy's
 * doing. */
static void draw_waits(struct draw *d, struct scenario *sc) {
    sc->waits = true;
    sc->slow = sc->pipelines = false;
    sc->rule.wait_ms = 100 + below(d, chance(d, 50) ? 400 : 3000);
    sc->delay_ms = 1 + below(d, chance(d, 50) ? 3 : 12);
    sc->threads = 1 + below(d, 2);
    sc->upstreams = chance(d, 70) ? 1 : 2;
    sc->deaf = chance(d, 40);
    sc->skewed = chance(d, 40);
    sc->clocks = chance(d, 30) && !sc->outside; /* a record that has ended may be live again when time goes back */
    if (sc->clocks)                             /* leases end earlier or later than any proxy knows */
        sc->never_kept = sc->kept_after_end_only = sc->kept_after_sight_only = false;
    sc->sharded = chance(d, 60);
    sc->moves = sc->sharded && chance(d, 40);
    sc->old = sc->sharded && chance(d, 15);
    if (chance(d, 60))
        sc->keys = 1;
    static const uint32_t NESTED = BIT(IDIOM_SETNX) | BIT(IDIOM_CONST) | DISTINCT | BIT(IDIOM_COMPARE);
    sc->nests = sc->keys > 1 && subset(sc->idioms, NESTED) && !sc->transactions && chance(d, 60);
}

/* Workers that have a lock each, and want their neighbour's: circles of two to five. */
static void draw_ring(struct draw *d, struct scenario *sc) {
    struct lock_rule rule = sc->rule;
    draw_calm(d, sc, CONN_OWN, chance(d, 50) ? BIT(IDIOM_SETNX) : BIT(IDIOM_UNIQUE));
    draw_waits(d, sc);
    sc->slow = sc->pauses = false;
    sc->deaths = chance(d, 20);
    sc->clocks = false;
    sc->punctual = sc->nests = sc->ring = true;
    sc->keys = 2 + below(d, MODEL_KEYS - 1);
    sc->processes = 2 + below(d, 2);
    sc->workers = sc->conns = 2 + below(d, WORKERS_EACH - 1);
    while (sc->processes * sc->workers < sc->keys)
        sc->keys--;
    sc->expiry_ms = 5000;
    sc->rule.owner = chance(d, 50) ? LOCK_OWNER_CONNECTION : LOCK_OWNER_AUTO;
    sc->rule.renew = LOCK_RENEW_AUTO;
    sc->rule.lease_ms = 3000;
    sc->rule.max_hold_ms = 0;
    sc->rule.claim_memory_ms = rule.claim_memory_ms;
    sc->rule.wait_ms = 300 + below(d, 3000);
    promise_own(sc);
}

/* Workers that write data under their locks, and often too late. */
static void draw_fences(struct draw *d, struct scenario *sc) {
    sc->fences = true;
    sc->elsewhere = chance(d, 50);
    sc->unlocked = chance(d, 30);
    sc->pauses = sc->slow = chance(d, 70);
    sc->pipelines = false;
}

/* Attempts and releases without scripts. Where some proxies do so and others don't, their clocks are Redis's:
 * acquire.lua of the others takes Redis's clock for the fence. */
static void draw_short_form(struct draw *d, struct scenario *sc) {
    bool may = !sc->waits && !sc->queue && !sc->hash;
    unsigned all = (1u << sc->proxies) - 1, which = chance(d, 80) ? all : 1 + below(d, all);
    bool some = chance(d, 40);
    bool skewed = which == all && chance(d, 50);
    static const uint32_t PLAIN = BIT(IDIOM_CONST) | DISTINCT | BIT(IDIOM_COMPARE) | BIT(IDIOM_THROTTLE);
    for (unsigned i = 0; i < PROXIES; i++)
        sc->skews_us[i] = may && some && skewed ? (int64_t)below(d, 40000) - 20000 : 0;
    sc->short_form = may && some ? which : 0;
    if (sc->short_form && (sc->idioms & PLAIN) && chance(d, 50))
        sc->idioms &= PLAIN; /* nothing rewrites most of their guard records */
}

void scenario_draw(struct scenario *sc, uint64_t seed, enum about about) {
    struct draw d = {seed};
    *sc = (struct scenario){.seed = seed};
    sc->connections = (enum connections)below(&d, 3);
    sc->idioms = about == ABOUT_WAITS ? draw_waiting_idioms(&d) : draw_idioms(&d);
    sc->proxies = chance(&d, 75) ? 1 : 2;
    sc->processes = 1 + below(&d, PROCESSES);
    sc->workers = 1 + below(&d, WORKERS_EACH);
    sc->conns = sc->connections == CONN_OWN ? sc->workers : sc->connections == CONN_SHARED ? 1 : 2 + below(&d, 3);
    sc->keys = 1 + below(&d, USUAL_KEYS);
    sc->library = chance(&d, 25);
    sc->expiry_ms = 200 + below(&d, 1500);
    draw_rule(&d, &sc->rule);
    draw_trouble(&d, sc);
    if (sc->connections == CONN_OWN)
        promise_own(sc);
    else
        promise_shared(sc);
    bool fences = about == ABOUT_FENCES;
    if (about == ABOUT_WAITS)
        draw_waits(&d, sc);
    else if ((chance(&d, 20) && !fences) || about == ABOUT_LISTS)
        draw_queue(&d, sc);
    else if (chance(&d, 10) && !fences)
        draw_hash(&d, sc);
    sc->reloads = chance(&d, 20);
    sc->slow = !sc->waits && chance(&d, 30);
    sc->pauses = chance(&d, 30);
    sc->pipelines = !sc->waits && sc->connections == CONN_SHARED && !sc->loses && !sc->transactions && chance(&d, 60);
    if (sc->connections == CONN_OWN && !sc->queue && !sc->hash)
        draw_names(&d, sc);
    if (sc->waits && chance(&d, 25))
        draw_ring(&d, sc);
    else if (fences)
        draw_fences(&d, sc);
    else if (!sc->queue && !sc->hash && !sc->waits)
        draw_situation(&d, sc);
    draw_short_form(&d, sc);
    sc->newest = !sc->queue && (d.random >> 32 & 1); /* no draw of its own: all else is as it was without */
}

void scenario_print(const struct scenario *sc) {
    static const char *const CONNECTIONS[] = {"one a worker", "a pool", "one shared"};
    static const char *const OWNERS[] = {"auto", "connection", "client", "any"};
    static const char *const RENEW[] = {"auto", "always", "never"};
    printf("  connections: %s; proxies %u, processes %u, workers %u, connections %u each, keys %u\n",
           CONNECTIONS[sc->connections], sc->proxies, sc->processes, sc->workers, sc->conns, sc->keys);
    printf("  owner %s lease %" PRId64 " claim-memory %" PRId64 " renew %s max-hold %" PRId64
           " on-disconnect %s; expiry %" PRId64 "\n",
           OWNERS[sc->rule.owner], sc->rule.lease_ms, sc->rule.claim_memory_ms, RENEW[sc->rule.renew],
           sc->rule.max_hold_ms, sc->rule.on_disconnect == LOCK_DISCONNECT_KEEP ? "keep" : "release", sc->expiry_ms);
    printf("  idioms:");
    for (int i = 0; i < IDIOM_KINDS; i++)
        if (sc->idioms & BIT(i))
            printf(" %s", idiom_name((enum idiom)i));
    printf("\n  trouble:%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s\n", sc->library ? " library" : "",
           sc->deaths ? " deaths" : "", sc->reconnects ? " reconnects" : "", sc->restarts ? " restarts" : "",
           sc->loses ? " loses" : "", sc->outside ? " outside" : "", sc->operators ? " operators" : "",
           sc->finals ? " finals" : "", sc->strays ? " strays" : "", sc->silent ? " silent" : "",
           sc->stranger ? " stranger" : "", sc->punctual ? " punctual" : "", sc->reloads ? " reloads" : "",
           sc->audit ? " audit" : "", sc->toggles ? " toggles" : "", sc->audit_exact ? " exact" : "",
           sc->names ? " names" : "", sc->renames ? " renames" : "", sc->transactions ? " transactions" : "",
           sc->discards ? " discards" : "", sc->slow ? " slow" : "", sc->pauses ? " pauses" : "",
           sc->pipelines ? " pipelines" : "");
    if (sc->waits)
        printf("  waits: %" PRId64 " ms, threads %u, connections %u, ways of %u ms%s%s%s%s%s%s%s%s\n", sc->rule.wait_ms,
               sc->threads, sc->upstreams, sc->delay_ms, sc->deaf ? " deaf" : "", sc->skewed ? " skewed" : "",
               sc->clocks ? " clocks" : "", sc->sharded ? " sharded" : "", sc->moves ? " moves" : "",
               sc->old ? " old" : "", sc->nests ? " nests" : "", sc->ring ? " ring" : "");
    if (sc->short_form)
        printf("  short form: proxies %s%s, clocks ahead by %" PRId64 " and %" PRId64 " us\n",
               sc->short_form & 1 ? "0" : "", sc->short_form & 2 ? " 1" : "", sc->skews_us[0], sc->skews_us[1]);
    if (sc->fences)
        printf("  fences: %s slot%s\n", sc->elsewhere ? "another" : "one", sc->unlocked ? ", unlocked refuse" : "");
    printf("  promised:%s%s%s%s\n", sc->never_wrong ? " never-wrong" : "", sc->never_kept ? " never-kept" : "",
           sc->kept_after_end_only ? " kept-only-after-an-end" : "",
           sc->kept_after_sight_only ? " kept-only-after-a-sight" : "");
    if (sc->newest)
        printf("  newest: %s\n", sc->hash ? "HSETEX, HGETDEL, HGETEX" : "DELEX, MSETEX");
    if (sc->queue)
        printf("  list locks:%s%s%s\n", sc->apart ? " workers apart" : "", sc->queue_exact ? " exact" : "",
               sc->queue_kept ? " kept" : "");
}
