/*
 * read-from replicas | nearest: which requests replicas may answer.
 *
 *      write ──> noted for the client and the slots of its keys, when it is sent and when it ends
 *      read  ──┬─ a key is under a rule or a fence, or is a guard record ────────────────────────┐
 *              ├─ MULTI, WATCH, tracking, a subscription ────────────────────────────────────────┼──> master
 *              ├─ the client has written in the slot within read-after-write ────────────────────┘
 *              └─ else ──> upstream_submit_read
 *
 * The connections of a pool are one client, so the times of writes are kept for the client identity. All threads share
 * one table of fixed size. A place of it may stand for several clients and slots: then the master answers more reads
 * than it must. A slot is the one that the key has in a cluster, also where there is no cluster.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/cluster/cluster.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/push/push.h"
#include "proxy/session/transaction/transaction.h"

enum {
    PLACES = 1 << 16,
    ALL_SLOTS = SLOT_COUNT, /* a write whose keys are not known */
    SLOTS_KNOWN = 64,       /* slots of a session's writes in flight; if there are more, they count as ALL_SLOTS */
    AHEAD_MS = 60 * 1000    /* other threads' clocks of this turn may be ahead, less than that */
};

/* When the client of a place last wrote, in ms of worker_now, cut to 32 bits. */
static atomic_uint written_ms[PLACES];

/* The slots in which the session has written since none of its requests was in flight. */
struct writes_under_way {
    size_t count;
    uint16_t slots[SLOTS_KNOWN];
};

static atomic_uint *place_of(const struct session *s, unsigned slot) {
    uint64_t mixed = (lock_client_hash(s->lock.client) ^ slot) * 0x9e3779b97f4a7c15u;
    return &written_ms[mixed >> 48];
}

/* ---- writes -------------------------------------------------------------------------------------- */

/* Notes a write at this time, unless another thread has noted a later one. */
static void note_time(const struct session *s, unsigned slot) {
    atomic_uint *at = place_of(s, slot);
    uint32_t now = (uint32_t)worker_now(s->worker), before = atomic_load(at);
    while (before - now > AHEAD_MS && !atomic_compare_exchange_weak(at, &before, now))
        ;
}

static void note_write(struct session *s, unsigned slot) {
    struct command_state *state = commands_of(s);
    if (!state->writes)
        state->writes = memory_zalloc(sizeof(*state->writes));
    struct writes_under_way *writes = state->writes;
    size_t i = 0;
    while (i < writes->count && writes->slots[i] != slot && writes->slots[i] != ALL_SLOTS)
        i++;
    if (i == writes->count) {
        if (i == SLOTS_KNOWN)
            writes->slots[--i] = slot = ALL_SLOTS;
        else
            writes->slots[i] = (uint16_t)slot;
        writes->count = i + 1;
    }
    s->hears |= HEARS_WRITTEN;
    note_time(s, slot);
}

/* A write may have taken long: its time is the time of its reply. */
void read_from_reply_over(struct session *s) {
    struct command_state *state = commands_of(s);
    if (!(s->hears & HEARS_WRITTEN))
        return;
    for (size_t i = 0; i < state->writes->count; i++)
        note_time(s, state->writes->slots[i]);
    if (s->in_flight > 0)
        return;
    state->writes->count = 0;
    s->hears &= (uint8_t)~HEARS_WRITTEN;
}

/* Whether the client has written in the slot lately, or is writing. */
static bool wrote(const struct session *s, unsigned slot) {
    const struct writes_under_way *writes = commands_of(s)->writes;
    for (size_t i = 0; writes && i < writes->count; i++)
        if (writes->slots[i] == slot || writes->slots[i] == ALL_SLOTS)
            return true;
    uint32_t now = (uint32_t)worker_now(s->worker), then = atomic_load(place_of(s, slot));
    return now - then < (uint32_t)s->worker->config->read_after_write_ms || then - now < AHEAD_MS;
}

/* ---- which requests ------------------------------------------------------------------------------ */

/* The keys that are known; none if the command is not in the table, or malformed. */
static void find_keys(struct key_list *keys, const struct command *c, const struct resp_request *r, const char *bytes) {
    keys->keys = keys->on_stack;
    keys->count = 0;
    if (c && c->only && r->argc > (size_t)c->only) {
        keys->count = 1;
        keys->keys[0] = (uint32_t)c->only;
    } else if (c && !c->only && command_arity_ok(c, r->argc)) {
        key_list_find(keys, c, r, bytes);
    }
}

static void note_writes(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    struct key_list keys;
    find_keys(&keys, c, r, bytes);
    for (int i = 0; i < keys.count; i++) {
        size_t len;
        const char *key = request_arg(r, bytes, keys.keys[i], &len);
        note_write(s, slot_of_key(key, len));
    }
    if (keys.count <= 0)
        note_write(s, ALL_SLOTS);
    key_list_clear(&keys);
}

/* Whether the client has to read back what the request writes. A transaction writes when it is executed. */
static bool is_write(const struct session *s, const struct command *c, const struct resp_request *r,
                     const char *bytes) {
    if (s->queues)
        return c && c->id == COMMAND_EXEC && transaction_of(s)->writes;
    return pause_replicates(c, r, bytes) && !(c && (c->id == COMMAND_PUBLISH || c->id == COMMAND_SPUBLISH));
}

/* Whether replicas may answer as the master would. TOUCH and OBJECT are about the node's own memory; SORT_RO reads keys
 * that are not among its arguments. */
static bool is_read(const struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    if (s->queues || s->watches || push_of(s)->pubsub || s->lane.dedicated != 0)
        return false;
    return c && c->id != COMMAND_UNKNOWN && c->need == NEED_KEY &&
           (c->flags & (COMMAND_READONLY | COMMAND_RUNS_CODE)) == COMMAND_READONLY && !pause_replicates(c, r, bytes) &&
           c->id != COMMAND_TOUCH && c->id != COMMAND_OBJECT && c->id != COMMAND_SORT_RO &&
           command_arity_ok(c, r->argc);
}

static bool key_reads(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                      uint32_t index) {
    size_t len;
    const char *key = request_arg(r, bytes, index, &len);
    const struct lock_rules *rules = s->worker->rules;
    if (lock_guard_is(key, len) || lock_rules_rule_of(rules, key, len) || lock_rules_fence_of(rules, key, len))
        return false;
    if ((!c->only || c->flags & COMMAND_ADVISES) && advise_wants(s, c, r, bytes, key, len))
        return false;
    return !wrote(s, slot_of_key(key, len)) && !wrote(s, ALL_SLOTS);
}

/* Whether replicas may answer the request; finds its keys, and *slot: SLOT_SEVERAL where it is to be split. */
static bool reads(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  int *slot) {
    struct key_list keys;
    if (!is_read(s, c, r, bytes))
        return false;
    find_keys(&keys, c, r, bytes);
    bool may = keys.count > 0;
    for (int i = 0; may && i < keys.count; i++)
        may = key_reads(s, c, r, bytes, keys.keys[i]);
    *slot = may ? key_list_slot(s, r, bytes, keys.keys, (size_t)keys.count) : 0;
    key_list_clear(&keys);
    return may && (*slot >= 0 || c->split != SPLIT_NONE);
}

bool read_from_takes(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                     enum dispatch_result *result) {
    struct command_state *state = commands_of(s);
    int slot;
    if (s->in_flight == 0)
        state->reads_away = false;
    if (is_write(s, c, r, bytes)) {
        *result = DISPATCH_WAIT;
        if (state->reads_away)
            return true; /* a replica could see it before it answers a read that was sent before it */
        note_writes(s, c, r, bytes);
        return false;
    }
    if (!reads(s, c, r, bytes, &slot))
        return false;
    *result = DISPATCHED;
    if (slot == SLOT_SEVERAL) {
        struct request_class k;
        class_find(&k, s, c, r, bytes);
        k.replicas = state->reads_away = true;
        *result = split_dispatch(s, &k);
        class_clear(&k);
        return true;
    }
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, c);
    state->reads_away |= call_submit_read(&request->call, slot, bytes, r->len);
    return true;
}

void read_from_streams(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    if (is_write(s, c, r, bytes))
        note_writes(s, c, r, bytes);
}

void read_from_words(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                     char *out, size_t size) {
    int slot;
    const struct upstream_node *n = NULL;
    bool may = reads(s, c, r, bytes, &slot);
    if (may && slot >= 0)
        n = upstream_replica(s->worker->upstream, slot, (uint32_t)s->lock.id);
    if (n)
        snprintf(out, size, "replica %s", upstream_node_address(n));
    else
        snprintf(out, size, "%s", may && slot < 0 ? "a replica of each key's master" : "the master");
}
