/*
 * What applications do: the lock idioms, as programs that send one command after another and believe the answers.
 */
#include "tests/sim/hash_locks.h"
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *idiom_name(enum idiom idiom) {
    static const char *const NAMES[IDIOM_KINDS] = {"setnx",     "setnx-expire", "const",     "unique",  "compare",
                                                   "extending", "getdel",       "plain-set", "shorten", "deadline",
                                                   "count",     "throttle",     "script",    "multi",   "watch",
                                                   "queue",     "reentrant",    "hash",      "read",    "field"};
    return NAMES[idiom];
}

void command_text(const struct model_command *c, char *out, size_t size) {
    static const char *const NAMES[OP_KINDS] = {
        "SETNX",       "SET NX",   "SET NX GET", "SET",     "SET XX",    "GETSET",   "SET GET",    "DEL",
        "GETDEL",      "PEXPIRE",  "PERSIST",    "GETEX",   "INCRBY",    "MSET",     "GET",        "RPUSH",
        "LPUSH",       "LINDEX",   "EXISTS",     "LREM",    "LSET",      "LPOP",     "Lua SET NX", "Lua DEL",
        "Lua PEXPIRE", "HSETNX",   "HINCRBY",    "HDEL",    "Lua enter", "Lua read", "Lua leave",  "Lua renew",
        "DELIFEQ",     "SET IFEQ", "HSETEX",     "HGETDEL", "HGETEX",    "DELEX",    "MSETEX"};
    snprintf(out, size, "%s %s ms=%" PRId64 " by=%" PRId64 "%s", NAMES[c->op], c->value, c->ms, c->by,
             c->keepttl ? " keepttl" : "");
}

struct held_lock *worker_under(struct app_worker *k, uint64_t fence) {
    for (unsigned i = 0; i < k->depth; i++)
        if (k->under[i].fence == fence)
            return &k->under[i];
    return NULL;
}

/* The worker leaves alone what it has, and tries for another lock. */
static void nest(struct world *w, struct app_worker *k) {
    struct held_lock *h = &k->under[k->depth];
    int key = (k->key + 1 + (int)world_below(w, w->sc.keys - 1)) % (int)w->sc.keys;
    if (w->sc.ring)
        key = (k->key + 1) % (int)w->sc.keys;
    if (k->depth > 0 && key == k->under[0].key)
        return;
    *h = (struct held_lock){.key = k->key,
                            .idiom = k->idiom,
                            .fence = k->fence,
                            .holds = k->holds,
                            .until_ms = k->until_ms,
                            .lost_ms = k->lost_ms};
    memcpy(h->value, k->value, sizeof(h->value));
    k->depth++;
    k->key = key;
    k->fence = 0;
    k->holds = false;
    k->lost_ms = 0;
    k->phase = PHASE_ACQUIRE;
}

/* It goes on with what it had before. */
static void unnest(struct app_worker *k) {
    const struct held_lock *h = &k->under[--k->depth];
    k->busy = false;
    k->again = 0;
    k->phase = PHASE_HOLD;
    k->key = h->key;
    k->idiom = h->idiom;
    k->fence = h->fence;
    k->holds = h->holds;
    k->until_ms = h->until_ms;
    k->lost_ms = h->lost_ms;
    memcpy(k->value, h->value, sizeof(k->value));
}

void worker_start_again(struct world *w, int worker) {
    struct app_worker *k = &w->workers[worker];
    if (k->alive && k->depth > 0) {
        unnest(k);
        return;
    }
    k->depth = 0;
    k->alive = true;
    k->busy = false;
    k->phase = k->process < 0 ? PHASE_STRANGE : PHASE_START;
    k->fence = 0;
    k->holds = false;
    k->lost_ms = 0;
    k->again = 0;
    k->in_queue = false;
}

static void own_value(struct world *w, struct app_worker *k) {
    bool own = k->idiom == IDIOM_UNIQUE || k->idiom == IDIOM_COMPARE || k->idiom == IDIOM_WATCH ||
               k->idiom == IDIOM_EXTENDING || k->idiom == IDIOM_SCRIPT;
    if (k->idiom == IDIOM_DEADLINE)
        snprintf(k->value, sizeof(k->value), "%" PRId64 ".%" PRIu64, w->redis.now_ms + w->sc.expiry_ms, ++w->values);
    else if (own)
        snprintf(k->value, sizeof(k->value), "v%" PRIu64, ++w->values);
    else
        snprintf(k->value, sizeof(k->value), "1");
}

static void draw_idiom(struct world *w, struct app_worker *k) {
    do
        k->idiom = (enum idiom)world_below(w, IDIOM_KINDS);
    while (!(w->sc.idioms & (1u << k->idiom)));
    k->key = (int)world_below(w, w->sc.keys);
    if (w->sc.ring)
        k->key = (int)(k - w->workers) / WORKERS_EACH * (int)w->sc.workers + (int)(k - w->workers) % WORKERS_EACH;
    k->key %= (int)w->sc.keys;
    bool looks = k->idiom == IDIOM_PLAIN_SET || (k->idiom == IDIOM_WATCH && world_chance(w, 50));
    k->phase = looks ? PHASE_LOOK : PHASE_ACQUIRE;
    k->by_value = false;
    if (w->sc.strays && world_chance(w, 8))
        k->phase = PHASE_FINALLY;
    own_value(w, k); /* the value that a stray script compares with belongs to no worker either */
}

/* Whether workers use the commands of the newest servers. What these do under audit is not known here. */
static bool newest(const struct world *w) {
    return w->sc.newest && w->rule->mode == LOCK_MODE_ENFORCE;
}

static void acquiring(struct world *w, struct app_worker *k, struct model_command *c) {
    own_value(w, k);
    memcpy(c->value, k->value, sizeof(c->value));
    c->ms = w->sc.expiry_ms;
    switch (k->idiom) {
    case IDIOM_SETNX:
    case IDIOM_SETNX_EXPIRE:
    case IDIOM_DEADLINE:
        c->op = OP_SETNX;
        c->ms = 0;
        break;
    case IDIOM_GETDEL:
        c->op = OP_SET_NX_GET;
        break;
    case IDIOM_PLAIN_SET:
        c->op = OP_SET;
        break;
    case IDIOM_COUNT:
        *c = (struct model_command){.op = OP_INCRBY, .by = 1};
        break;
    case IDIOM_SCRIPT:
        c->op = OP_LUA_SET;
        c->composed = world_chance(w, 40);
        if ((c->composed || (!w->sc.restarts && !w->sc.loses)) && world_chance(w, 25))
            c->ms = 0; /* the step behind it gives it the rule's lease, if it comes */
        break;
    case IDIOM_MULTI:
        c->op = world_chance(w, 50) ? OP_SETNX : OP_SET_NX;
        c->ms = c->op == OP_SETNX ? 0 : c->ms;
        break;
    case IDIOM_WATCH:
        c->op = k->transaction ? OP_SET : OP_SET_NX;
        break;
    default:
        c->op = newest(w) && world_chance(w, 40) ? OP_MSETEX : OP_SET_NX;
        break;
    }
}

static void releasing(struct world *w, const struct app_worker *k, struct model_command *c) {
    c->op = OP_DEL;
    if (k->idiom == IDIOM_GETDEL) {
        c->op = OP_GETDEL;
    } else if (k->by_value) {
        c->op = newest(w) && world_chance(w, 50) ? OP_DELEX : OP_DELIFEQ;
        c->compare = c->op == OP_DELEX ? IF_EQ : IF_ANY;
        memcpy(c->value, k->value, sizeof(c->value));
    } else if (k->idiom == IDIOM_SHORTEN) {
        c->op = OP_SET_XX;
        c->ms = 1;
        memcpy(c->value, k->value, sizeof(c->value));
    } else if (k->idiom == IDIOM_SCRIPT) {
        c->op = OP_LUA_DEL;
        c->composed = world_chance(w, 40);
        memcpy(c->value, k->value, sizeof(c->value));
    } else if (k->idiom == IDIOM_COUNT) {
        c->op = OP_INCRBY;
        c->by = -1;
    } else if (newest(w) && world_chance(w, 50)) { /* without a condition, or with one that its own lock meets */
        static const enum model_comparison COMPARISONS[] = {IF_ANY, IF_NE, IF_DEQ};
        c->op = OP_DELEX;
        c->compare = COMPARISONS[world_below(w, k->value[0] == 'v' ? 3 : 2)]; /* a constant value names any lock */
        memcpy(c->value, k->value, sizeof(c->value));
        if (c->compare == IF_NE)
            snprintf(c->value, sizeof(c->value), "none");
    }
}

/* A client that holds nothing and tries everything that cannot acquire. */
static void strange(struct world *w, struct app_worker *k, struct model_command *c) {
    static const enum model_op OPS[] = {OP_DEL, OP_GETDEL, OP_PEXPIRE, OP_PERSIST, OP_GETEX, OP_SET_XX, OP_GET, OP_GET};
    k->key = (int)world_below(w, w->sc.keys);
    c->op = OPS[world_below(w, sizeof(OPS) / sizeof(OPS[0]))];
    c->ms = world_chance(w, 80) ? 5000 : -1;
    if (c->op == OP_GETEX && world_chance(w, 50))
        c->ms = 0;
    if (c->op == OP_PEXPIRE)
        c->when = (enum model_condition)world_below(w, 5);
    snprintf(c->value, sizeof(c->value), "strange");
    if (w->sc.outside && world_chance(w, 20)) { /* data, or LOCKED: where others leave such behind too */
        *c = (struct model_command){.op = OP_SET, .keepttl = world_chance(w, 50)};
        snprintf(c->value, sizeof(c->value), OUTSIDE);
    }
}

void worker_give_up(struct world *w, int worker) {
    struct app_worker *k = &w->workers[worker];
    struct truth *t = &w->truth[k->key];
    if (t->live && t->worker == worker)
        t->worker = -1;
    worker_start_again(w, worker);
}

/* The work is over, or not yet. False: nothing to send. */
static bool holding(struct world *w, struct app_worker *k, int worker, struct model_command *c) {
    if (w->sc.nests && k->depth < (w->sc.ring ? 1 : NESTS) && w->redis.now_ms < k->until_ms && world_chance(w, 40)) {
        nest(w, k);
        return k->phase == PHASE_ACQUIRE;
    }
    if (w->redis.now_ms < k->until_ms) {
        bool extends = k->idiom == IDIOM_EXTENDING || k->idiom == IDIOM_SCRIPT || k->idiom == IDIOM_MULTI;
        bool looks = k->idiom == IDIOM_SETNX;
        if (!(extends || looks) || !world_chance(w, 30))
            return false;
        looks = looks && !world_chance(w, 25); /* or sets an expiry of its own */
        *c = (struct model_command){.op = looks ? OP_GETEX : OP_PEXPIRE, .ms = looks ? 0 : w->sc.expiry_ms};
        if (k->idiom == IDIOM_EXTENDING && w->rule->mode == LOCK_MODE_ENFORCE && world_chance(w, 50)) {
            c->op = OP_SET_IFEQ;
            memcpy(c->value, k->value, sizeof(c->value));
        }
        if (k->idiom == IDIOM_SCRIPT && world_chance(w, 50)) { /* its careful renewal, or the careless one */
            c->op = OP_LUA_PEXPIRE;
            c->composed = world_chance(w, 40);
            memcpy(c->value, k->value, sizeof(c->value));
        }
        return true;
    }
    bool too_late = k->lost_ms && w->redis.now_ms > k->lost_ms + w->sc.rule.claim_memory_ms / 2;
    bool past = k->idiom == IDIOM_DEADLINE && strtoll(k->value, NULL, 10) < w->redis.now_ms;
    bool silent = k->idiom == IDIOM_THROTTLE || (w->sc.silent && world_chance(w, 10));
    if (too_late || past || silent) {
        world_event(w, "worker %d leaves its lease alone", worker);
        worker_give_up(w, worker);
        return false;
    }
    k->by_value = k->idiom == IDIOM_COMPARE && w->rule->mode == LOCK_MODE_ENFORCE && world_chance(w, 50);
    bool compares = (k->idiom == IDIOM_COMPARE && !k->by_value) || k->idiom == IDIOM_WATCH;
    k->phase = compares ? PHASE_COMPARE : PHASE_RELEASE;
    return true;
}

bool worker_command(struct world *w, int worker, struct model_command *c, bool *releases) {
    if (w->sc.queue)
        return list_worker_command(w, worker, c, releases);
    if (w->sc.hash)
        return hash_worker_command(w, worker, c, releases);
    struct app_worker *k = &w->workers[worker];
    *c = (struct model_command){.op = OP_GET};
    *releases = false;
    if (k->phase == PHASE_START)
        draw_idiom(w, k);
    if (k->phase == PHASE_HOLD) {
        if (!holding(w, k, worker, c))
            return false;
    }
    switch (k->phase) {
    case PHASE_START:
    case PHASE_LOOK:
    case PHASE_HOLD:
    case PHASE_COMPARE:
        break;
    case PHASE_ACQUIRE:
        acquiring(w, k, c);
        break;
    case PHASE_SWAP:
        own_value(w, k);
        c->op = OP_GETSET;
        memcpy(c->value, k->value, sizeof(c->value));
        break;
    case PHASE_EXPIRE:
        c->op = OP_PEXPIRE;
        c->ms = w->sc.expiry_ms;
        break;
    case PHASE_RELEASE:
        releasing(w, k, c);
        *releases = true;
        break;
    case PHASE_FINALLY:
        releasing(w, k, c);
        break;
    case PHASE_STRANGE:
        strange(w, k, c);
        break;
    case PHASE_VACANT:
    case PHASE_PUSH:
    case PHASE_WAIT:
        break;
    }
    return true;
}

void worker_sent(struct world *w, int worker, const struct model_command *c, bool releases) {
    struct app_worker *k = &w->workers[worker];
    k->busy = true;
    if (!releases)
        return;
    k->fence = 0;
    k->holds = false;
    k->lost_ms = 0;
}

/* A worker that polls may come again for the same lock. */
static bool polls(const struct app_worker *k) {
    return k->idiom == IDIOM_SETNX || k->idiom == IDIOM_CONST || k->idiom == IDIOM_UNIQUE ||
           k->idiom == IDIOM_COMPARE || k->idiom == IDIOM_EXTENDING || k->idiom == IDIOM_GETDEL;
}

static void lost_race(struct world *w, int worker) {
    struct app_worker *k = &w->workers[worker];
    bool undo = k->idiom == IDIOM_COUNT; /* takes its INCR back */
    w->lost++;
    if (w->waits && polls(k) && world_chance(w, 60)) {
        k->phase = PHASE_ACQUIRE;
        k->pause_ms = w->redis.now_ms + world_below(w, (unsigned)w->sc.rule.wait_ms * 5 / 4);
        return;
    }
    bool nested = k->depth > 0;
    worker_give_up(w, worker);
    if (nested)
        return;
    if (k->idiom == IDIOM_SETNX_EXPIRE) {
        k->phase = PHASE_EXPIRE;
    } else if (k->idiom == IDIOM_DEADLINE) {
        k->phase = PHASE_LOOK;
    } else if (undo || (w->sc.finals && world_chance(w, 60))) {
        k->phase = PHASE_FINALLY;
    }
}

static void acquired(struct world *w, int worker, const struct flight *f) {
    struct app_worker *k = &w->workers[worker];
    check_belief(w, worker, f);
    if (w->fences)
        fences_acquired(w, worker, f);
    w->granted++;
    int64_t long_ms = (k->idiom == IDIOM_SETNX ? w->sc.rule.lease_ms : w->sc.expiry_ms) * 5 / 2;
    k->until_ms = w->redis.now_ms + world_below(w, world_chance(w, 70) ? 200 : (unsigned)long_ms);
    if (w->sc.ring)
        k->until_ms = w->redis.now_ms + 100 + world_below(w, 400);
    k->phase = k->idiom == IDIOM_SETNX_EXPIRE || k->idiom == IDIOM_COUNT ? PHASE_EXPIRE : PHASE_HOLD;
}

static bool says_acquired(const struct app_worker *k, const struct model_command *c, const struct model_reply *r) {
    switch (c->op) {
    case OP_SETNX:
    case OP_MSETEX:
    case OP_INCRBY:
        return r->kind == REPLY_INT && r->number == 1;
    case OP_SET_NX:
    case OP_SET:
    case OP_LUA_SET:
        return r->kind == REPLY_OK;
    case OP_SET_NX_GET:
        return r->kind == REPLY_NIL;
    case OP_GETSET:
        return r->kind == REPLY_NIL || (r->kind == REPLY_TEXT && strcmp(r->text, k->expected) == 0);
    default:
        return false;
    }
}

static void looked(struct world *w, struct app_worker *k, const struct model_reply *r) {
    if (r->kind == REPLY_NIL) {
        k->phase = PHASE_ACQUIRE;
    } else if (k->idiom == IDIOM_DEADLINE && r->kind == REPLY_TEXT && strtoll(r->text, NULL, 10) < w->redis.now_ms) {
        memcpy(k->expected, r->text, sizeof(k->expected));
        k->expected_ms = w->redis.now_ms;
        k->phase = PHASE_SWAP;
    } else {
        k->phase = PHASE_START;
    }
}

static void compared(struct world *w, int worker, const struct model_reply *r) {
    struct app_worker *k = &w->workers[worker];
    if (r->kind == REPLY_TEXT && strcmp(r->text, k->value) == 0)
        k->phase = PHASE_RELEASE;
    else
        worker_give_up(w, worker);
}

/* A lease, while its release was on its way. */
static void ended_on_its_way(struct world *w, const struct flight *f) {
    const struct truth *t = &w->truth[f->key];
    int process = w->workers[f->worker].process;
    w->ended_unreleased[process][f->key]++;
    if (t->live || t->sighted || t->fence != f->own_fence) /* of an older lease that is forgotten */
        w->ended_sighted[process][f->key]++;
}

void worker_left_unsent(struct world *w, const struct flight *f) {
    const struct truth *t = &w->truth[f->key];
    if (f->orphan && f->unsent && f->releases && !(t->live && t->fence == f->own_fence))
        ended_on_its_way(w, f);
}

/* Makes a worker whose release did not leave try again. */
static void not_released(struct world *w, int worker, const struct flight *f) {
    struct app_worker *k = &w->workers[worker];
    const struct truth *t = &w->truth[f->key];
    k->fence = f->own_fence;
    k->holds = t->live && t->fence == k->fence && t->worker == worker;
    if (k->holds)
        return;
    k->lost_ms = w->redis.now_ms;
    ended_on_its_way(w, f);
}

/* It is not known whether it released: it may ask once more, if that is not taken for a colleague's release. */
static bool releases_again(struct world *w, int worker, const struct flight *f) {
    struct app_worker *k = &w->workers[worker];
    const struct truth *t = &w->truth[f->key];
    const struct conn *c = &w->conns[f->conn];
    bool stands = t->live && t->fence == f->own_fence && t->worker == worker;
    if (k->phase != PHASE_RELEASE || !stands || !c->open || c->id != f->session_id || f->plan.verb != LOCK_RELEASE ||
        k->again || !w->sc.apart || !world_chance(w, 50))
        return false;
    k->fence = f->own_fence;
    k->holds = true;
    k->again = f->session_id;
    return true;
}

/* Deals with no answer, or an error that says nothing. */
static void no_answer(struct world *w, int worker, const struct flight *f) {
    struct app_worker *k = &w->workers[worker];
    if (releases_again(w, worker, f))
        return;
    switch (k->phase) {
    case PHASE_ACQUIRE:
    case PHASE_SWAP:
        worker_give_up(w, worker);
        if (k->phase == PHASE_START && w->sc.finals && world_chance(w, 50))
            k->phase = PHASE_FINALLY;
        break;
    case PHASE_EXPIRE:
        k->phase = k->fence ? PHASE_HOLD : PHASE_START;
        break;
    case PHASE_LOOK:
    case PHASE_RELEASE:
    case PHASE_FINALLY:
        worker_start_again(w, worker);
        break;
    case PHASE_START:
    case PHASE_HOLD:
    case PHASE_COMPARE:
    case PHASE_STRANGE:
    case PHASE_VACANT:
    case PHASE_PUSH:
    case PHASE_WAIT:
        break;
    }
}

void worker_answer(struct world *w, int worker, const struct flight *f, bool lost) {
    struct app_worker *k = &w->workers[worker];
    if (f->transaction && !transaction_answers(f))
        return;
    if (f->transaction && lost)
        k->transaction = NULL;
    k->busy = false;
    if (w->sc.pauses && world_chance(w, 5))
        k->pause_ms = w->redis.now_ms + world_below(w, (unsigned)(2 * w->sc.expiry_ms));
    if (w->sc.queue) {
        list_worker_answer(w, worker, f, lost);
        return;
    }
    if (w->sc.hash) {
        hash_worker_answer(w, worker, f, lost);
        return;
    }
    if (lost && f->unsent && k->phase == PHASE_RELEASE) {
        not_released(w, worker, f);
        return;
    }
    if (lost) {
        no_answer(w, worker, f);
        return;
    }
    const struct model_reply *r = &f->envelope.reply;
    switch (k->phase) {
    case PHASE_LOOK:
        looked(w, k, r);
        break;
    case PHASE_ACQUIRE:
    case PHASE_SWAP:
        if (says_acquired(k, &f->command, r))
            acquired(w, worker, f);
        else
            lost_race(w, worker);
        break;
    case PHASE_EXPIRE:
        if (k->fence)
            k->phase = PHASE_HOLD;
        else
            k->phase = w->sc.finals && world_chance(w, 60) ? PHASE_FINALLY : PHASE_START;
        break;
    case PHASE_COMPARE:
        compared(w, worker, r);
        break;
    case PHASE_RELEASE:
    case PHASE_FINALLY:
        worker_start_again(w, worker);
        break;
    case PHASE_START:
    case PHASE_HOLD:
    case PHASE_STRANGE:
    case PHASE_VACANT:
    case PHASE_PUSH:
    case PHASE_WAIT:
        break;
    }
}
