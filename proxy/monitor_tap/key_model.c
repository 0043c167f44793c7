/*
 * A model of the keys that follows the commands alone, in the order in which Redis ran them: each shows whether its key
 * exists afterwards. Expiries are judged by Redis's own time. A key with an unknown end counts as there for a tenth of
 * a second after a command that has left it there, so that SETNX and EXPIRE belong together.
 *
 * The model makes one assumption: if the first command seen for a key is SETNX, SET NX or RPUSH, the key was free
 * before. Otherwise the nodes of a list lock would never be known: a capture seldom shows a command that removes the
 * list.
 */
#include <string.h>

#include "proxy/monitor_tap/private.h"

enum { SURE_MS = 100 };

static void gone(struct model_key *k) {
    k->state = MODEL_ABSENT;
    k->end_ms = k->count = 0;
    k->counted = k->listed = true;
    k->nodes = 0;
    k->field = k->value = 0;
}

static void unknown(struct model_key *k) {
    gone(k);
    k->state = MODEL_UNKNOWN;
    k->counted = k->listed = k->end_known = false;
}

static void there(struct model_key *k, int64_t pttl_ms, int64_t now_ms) {
    k->state = MODEL_PRESENT;
    k->sure_ms = now_ms + SURE_MS;
    if (pttl_ms == PTTL_UNKNOWN)
        return;
    k->end_known = true;
    k->end_ms = pttl_ms >= 0 ? now_ms + pttl_ms : 0;
}

struct model_key *model_find(struct model *m, uint64_t hash, int64_t now_ms) {
    struct model_key *set = m->keys[hash % MODEL_SETS];
    for (size_t i = 0; i < MODEL_WAYS; i++) {
        struct model_key *k = &set[i];
        if (k->hash != hash)
            continue;
        if (k->state == MODEL_PRESENT && k->end_known && k->end_ms && k->end_ms < now_ms)
            gone(k);
        else if (k->state == MODEL_PRESENT && !k->end_known && now_ms > k->sure_ms)
            unknown(k);
        return k;
    }
    return NULL;
}

struct model_key *model_follow(struct model *m, uint64_t hash, int64_t now_ms) {
    struct model_key *set = m->keys[hash % MODEL_SETS], *k = model_find(m, hash, now_ms);
    if (k)
        return k;
    k = set;
    for (size_t i = 1; i < MODEL_WAYS && k->hash; i++)
        if (!set[i].hash || set[i].seen_ms < k->seen_ms)
            k = &set[i];
    invariant(k >= set && k < set + MODEL_WAYS, "a key is followed in another set");
    *k = (struct model_key){.hash = hash};
    return k;
}

void model_told(struct model_key *k, int64_t pttl_ms, int64_t at_ms) {
    if (pttl_ms == -2)
        gone(k);
    else if (pttl_ms >= -1)
        there(k, pttl_ms >= 0 ? pttl_ms : PTTL_NONE, at_ms);
    k->seen_ms = at_ms;
}

static uint64_t value_of(const char *value, size_t len) {
    const struct hash_seed seed = {1, 2};
    return value ? hash_bytes(&seed, value, len) : 0;
}

/* ---- commands ---- */

static bool known(const struct model_key *k) {
    return k->state != MODEL_UNKNOWN;
}

static bool acquire(struct model_key *k, struct lock_event *sight, bool assumes, int64_t now_ms) {
    k->assumed = !known(k) && !k->seen_ms && assumes;
    bool granted = k->state == MODEL_ABSENT || k->assumed, sure = known(k) || k->assumed;
    sight->effect = granted ? EFFECT_DONE : EFFECT_LOST;
    if (granted)
        there(k, sight->pttl_ms == PTTL_UNKNOWN ? PTTL_NONE : sight->pttl_ms, now_ms);
    if (!sure) { /* one session or another holds it */
        bool brief = sight->pttl_ms >= 0 && sight->pttl_ms < SURE_MS;
        k->state = MODEL_PRESENT;
        k->sure_ms = now_ms + (brief ? sight->pttl_ms : SURE_MS);
    }
    return sure;
}

static bool extend(struct model_key *k, struct lock_event *sight, bool conditional, int64_t now_ms) {
    if (!known(k))
        return false;
    if (k->state == MODEL_ABSENT) {
        sight->effect = EFFECT_ABSENT;
    } else if (conditional && sight->pttl_ms != PTTL_NONE) { /* EXPIRE NX, ...: the result is one of two */
        k->end_known = false;
        k->sure_ms = now_ms;
        sight->effect = EFFECT_NOTHING;
    } else if (sight->pttl_ms == PTTL_GONE) {
        gone(k);
        sight->effect = EFFECT_REMOVED;
    } else {
        there(k, sight->pttl_ms, now_ms);
        sight->effect = EFFECT_DONE;
    }
    return true;
}

/* A command has left the key there, and given it no expiry if it was not there before. */
static void left_there(struct model_key *k, bool sure, int64_t now_ms) {
    if (!sure)
        k->sure_ms = now_ms + SURE_MS;
    else if (k->state != MODEL_PRESENT)
        there(k, PTTL_NONE, now_ms);
    k->state = MODEL_PRESENT;
}

static bool count(struct model_key *k, struct lock_event *sight, int64_t now_ms) {
    bool sure = known(k) && k->counted && sight->by > 0;
    sight->value = NULL;
    sight->effect = EFFECT_DONE;
    k->count += sight->verb == LOCK_COUNT_UP ? sight->by : -sight->by;
    sight->count = k->count;
    left_there(k, sure, now_ms);
    return sure;
}

/* Commands that only write. HSETNX and INCR are counts until they are known to belong to a lock. */
static bool pass(struct model_key *k, struct lock_event *sight, int64_t now_ms) {
    sight->effect = EFFECT_NOTHING;
    if (sight->pttl_ms == PTTL_UNKNOWN && !known(k))
        return false;
    if (sight->pttl_ms != PTTL_UNKNOWN)
        unknown(k);
    there(k, k->state == MODEL_ABSENT ? PTTL_NONE : sight->pttl_ms, now_ms);
    k->counted = k->listed = false;
    return true;
}

static void node_remove(struct model_key *k, size_t at) {
    k->nodes--;
    memmove(k->node + at, k->node + at + 1, (k->nodes - at) * sizeof(k->node[0]));
    if (k->nodes == 0)
        gone(k);
}

static bool queue(struct model_key *k, struct lock_event *sight, int64_t now_ms) {
    uint64_t node = value_of(sight->value, sight->value_len);
    bool sure = known(k) && k->listed;
    if (sight->verb == LOCK_QUEUE_PUSH) {
        k->assumed = !known(k) && !k->seen_ms;
        if (k->assumed)
            gone(k);
        sure = known(k) && k->listed && k->nodes < MODEL_NODES;
        left_there(k, sure, now_ms);
        k->listed = sure;
        if (sure)
            k->node[k->nodes++] = node;
        sight->count = k->nodes;
        sight->by = 1;
        sight->effect = EFFECT_DONE;
    } else if (sight->verb == LOCK_QUEUE_REMOVE) {
        size_t at = 0, nodes = sure ? k->nodes : 0;
        while (at < nodes && k->node[at] != node)
            at++;
        sight->effect = at < nodes ? EFFECT_DONE : EFFECT_ABSENT;
        if (at < nodes)
            node_remove(k, at);
    } else {
        bool any = sure && k->nodes > 0, shows = sight->queue == QUEUE_HEAD || sight->queue == QUEUE_POP;
        node = any ? k->node[0] : 0;
        sight->effect = any && shows ? EFFECT_DONE : EFFECT_ABSENT;
        if (any && sight->queue == QUEUE_POP)
            node_remove(k, 0);
    }
    k->shown = node; /* from here on its address represents the node */
    sight->value = (const char *)&k->shown;
    sight->value_len = sizeof(k->shown);
    return sure;
}

/* ---- commands that compare ---- */

/* Whether a command that compares does nothing, since the key has another value. *sure: whether that is known. */
static bool says_no(const struct model_key *k, const struct lock_event *sight, bool *sure) {
    uint64_t named = value_of(sight->named, sight->named_len);
    bool absent = k->state == MODEL_ABSENT;
    *sure = sight->verb != LOCK_REPLACE && (absent || (k->state == MODEL_PRESENT && k->value && named));
    return *sure && !absent && k->value != named;
}

bool model_run(struct model_key *k, struct lock_event *sight, bool conditional, bool hash, int64_t now_ms) {
    bool sure = true, no = sight->compares && says_no(k, sight, &sure);
    k->asked = k->assumed = false;
    if (no || !sure) {
        sight->effect = EFFECT_NOTHING;
        if (!no) /* it may have done something */
            unknown(k);
    } else if (sight->queue == QUEUE_POP) {
        sure = queue(k, sight, now_ms);
    } else {
        switch (sight->verb) {
        case LOCK_ACQUIRE:
            sure = acquire(k, sight, !hash, now_ms);
            break;
        case LOCK_RELEASE:
            sure = known(k);
            sight->effect = k->state == MODEL_PRESENT ? EFFECT_DONE : EFFECT_ABSENT;
            gone(k);
            break;
        case LOCK_EXTEND:
        case LOCK_REWRITE:
            sure = extend(k, sight, conditional, now_ms);
            break;
        case LOCK_REPLACE:
            sight->effect = EFFECT_DONE;
            unknown(k);
            there(k, sight->pttl_ms == PTTL_UNKNOWN ? PTTL_NONE : sight->pttl_ms, now_ms);
            break;
        case LOCK_SWAP:
            sure = known(k);
            sight->old = k->state == MODEL_PRESENT ? "" : NULL;
            sight->effect = EFFECT_DONE;
            there(k, PTTL_NONE, now_ms);
            break;
        case LOCK_COUNT_UP:
        case LOCK_COUNT_DOWN:
            sure = count(k, sight, now_ms);
            break;
        case LOCK_PASS:
            sure = pass(k, sight, now_ms);
            break;
        case LOCK_QUEUE_PUSH:
        case LOCK_QUEUE_READ:
        case LOCK_QUEUE_REMOVE:
            sure = queue(k, sight, now_ms);
            break;
        case LOCK_CLOBBER:
        case LOCK_QUEUE_SET:
            unknown(k);
            sure = false;
            break;
        default:
            return true;
        }
        if (sight->verb != LOCK_EXTEND && sight->verb != LOCK_READ && sight->effect != EFFECT_LOST)
            k->value = k->state == MODEL_PRESENT ? value_of(sight->value, sight->value_len) : 0;
    }
    k->seen_ms = now_ms;
    return sure;
}
