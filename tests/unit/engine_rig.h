/*
 * The rig of the engine's unit tests: an engine with a sink that takes notes, a rule, a clock, and whole commands with
 * the replies that Redis would give.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/lock/engine.h"

enum { NOTES = 64, START_MS = 1000000 };

static const char PROCESS[] = "6f9a2c51-7d7e-4a49-9d35-0b8f5f3c2a10";

struct note {
    enum lock_incident_kind kind;
    char key[64], client[64], holder[64], command[32], action[256];
};

struct fixture {
    struct lock_engine *engine;
    struct lock_rule rule;
    int64_t now_ms;
    uint64_t fence;
    struct note notes[NOTES];
    unsigned note_count, renew_count, release_count;
    struct lock_lease renewed, released; /* the last ones; pointers are not to be used */
    char renewed_key[64];
    unsigned leave_count;
    char left[LOCK_IDENTITY_MAX];
};

static inline void copy(char *out, size_t size, const char *text, size_t len) {
    snprintf(out, size, "%.*s", (int)len, text);
}

static inline void on_incident(void *arg, const struct lock_incident *i) {
    struct fixture *f = arg;
    assert_true(f->note_count < NOTES);
    struct note *n = &f->notes[f->note_count++];
    n->kind = i->kind;
    assert_int_equal(i->time_ms, f->now_ms);
    copy(n->key, sizeof(n->key), i->key.name, i->key.len);
    copy(n->client, sizeof(n->client), i->client, strlen(i->client));
    copy(n->holder, sizeof(n->holder), i->holder, i->holder_len);
    copy(n->command, sizeof(n->command), i->command, strlen(i->command));
    copy(n->action, sizeof(n->action), i->action, strlen(i->action));
}

static inline void on_renew(void *arg, const struct lock_lease *lease) {
    struct fixture *f = arg;
    f->renew_count++;
    f->renewed = *lease;
    copy(f->renewed_key, sizeof(f->renewed_key), lease->key.name, lease->key.len);
}

static inline void on_release(void *arg, const struct lock_lease *lease) {
    struct fixture *f = arg;
    f->release_count++;
    f->released = *lease;
}

static inline void on_leave(void *arg, const struct lock_leaving *leaving) {
    struct fixture *f = arg;
    f->leave_count++;
    copy(f->left, sizeof(f->left), leaving->party, leaving->party_len);
}

static char pattern[] = "lock:*";

static inline int set_up(void **state) {
    static struct fixture f;
    memset(&f, 0, sizeof(f));
    struct lock_sink sink = {
        .arg = &f, .incident = on_incident, .renew = on_renew, .release = on_release, .leave = on_leave};
    f.engine = engine_new(PROCESS, 42, &sink);
    f.now_ms = START_MS;
    f.fence = 1000;
    f.rule = (struct lock_rule){.pattern = pattern,
                                .pattern_len = sizeof(pattern) - 1,
                                .owner = LOCK_OWNER_AUTO,
                                .claim_memory_ms = 60000,
                                .lease_ms = 30000,
                                .renew = LOCK_RENEW_AUTO,
                                .max_hold_ms = 300000};
    *state = &f;
    return 0;
}

static inline int tear_down(void **state) {
    struct fixture *f = *state;
    engine_free(f->engine);
    return 0;
}

static inline void open_as(struct fixture *f, struct lock_session *s, uint64_t id, const char *identity) {
    engine_session_open(f->engine, s, id, identity, strlen(identity));
}

/* Opens two connections of one client, with owner client. */
static inline void open_colleagues(struct fixture *f, struct lock_session *a, struct lock_session *b) {
    f->rule.owner = LOCK_OWNER_CLIENT;
    open_as(f, a, 1, "app");
    open_as(f, b, 2, "app");
}

static inline struct lock_key key_of(const char *name) {
    return (struct lock_key){.db = 0, .name = name, .len = strlen(name)};
}

static inline void begin(struct fixture *f, struct lock_session *s, enum lock_verb verb, const char *key,
                         struct lock_plan *plan) {
    struct lock_key k = key_of(key);
    engine_begin(f->engine, s, verb, &k, &f->rule, 3, false, f->now_ms, plan);
}

/* Begins a command as one that is queued in a transaction. */
static inline void queue(struct fixture *f, struct lock_session *s, enum lock_verb verb, const char *key,
                         struct lock_plan *plan) {
    struct lock_key k = key_of(key);
    engine_begin(f->engine, s, verb, &k, &f->rule, 3, true, f->now_ms, plan);
}

static inline struct lock_result result(enum lock_outcome outcome, uint64_t fence) {
    return (struct lock_result){.outcome = outcome, .fence = fence, .pttl_ms = -3};
}

static inline void finish(struct fixture *f, struct lock_session *s, const struct lock_plan *plan,
                          const struct lock_result *r) {
    engine_finish(f->engine, s->id, plan, r, "COMMAND", "10.1.1.1:5000", f->now_ms);
}

/* A command from beginning to end; returns the claim that it used. */
static inline uint64_t run(struct fixture *f, struct lock_session *s, enum lock_verb verb, const char *key,
                           enum lock_outcome outcome, uint64_t fence) {
    struct lock_plan plan;
    struct lock_result r = result(outcome, fence);
    begin(f, s, verb, key, &plan);
    finish(f, s, &plan, &r);
    return plan.claim;
}

/* Acquires; returns the new claim's token number. The lease's fence is f->fence. */
static inline uint64_t acquire(struct fixture *f, struct lock_session *s, const char *key, const char *value,
                               int64_t pttl_ms, bool leased) {
    struct lock_plan plan;
    struct lock_result r = result(LOCK_GRANTED, ++f->fence);
    r.pttl_ms = pttl_ms;
    r.leased = leased;
    r.value = value;
    r.value_len = value ? strlen(value) : 0;
    begin(f, s, LOCK_ACQUIRE, key, &plan);
    finish(f, s, &plan, &r);
    return plan.attempt;
}

static inline void lose(struct fixture *f, struct lock_session *s, const char *key) {
    run(f, s, LOCK_ACQUIRE, key, LOCK_HELD, f->fence);
}

static inline void show_value(struct fixture *f, struct lock_session *s, const char *key, const char *value,
                              uint64_t fence) {
    struct lock_plan plan;
    struct lock_result r = result(LOCK_HELD, fence);
    r.value = value;
    r.value_len = strlen(value);
    begin(f, s, LOCK_READ, key, &plan);
    finish(f, s, &plan, &r);
}

/* What a release would use, without sending it. */
static inline uint64_t would_use(struct fixture *f, struct lock_session *s, enum lock_verb verb, const char *key) {
    return run(f, s, verb, key, LOCK_NOT_SENT, 0);
}

static inline const char *would_right(struct fixture *f, struct lock_session *s, enum lock_verb verb, const char *key) {
    struct lock_plan plan;
    struct lock_result r = result(LOCK_NOT_SENT, 0);
    begin(f, s, verb, key, &plan);
    finish(f, s, &plan, &r);
    return lock_right_text(plan.right);
}

static inline void pass(struct fixture *f, int64_t ms) {
    f->now_ms += ms;
    engine_tick(f->engine, 0, 1, f->now_ms);
}

static inline unsigned incidents(const struct fixture *f, enum lock_incident_kind kind) {
    unsigned n = 0;
    for (unsigned i = 0; i < f->note_count; i++)
        n += f->notes[i].kind == kind;
    return n;
}

static inline const struct note *incident(const struct fixture *f, enum lock_incident_kind kind) {
    for (unsigned i = f->note_count; i-- > 0;)
        if (f->notes[i].kind == kind)
            return &f->notes[i];
    fail_msg("no %s incident", lock_incident_name(kind));
    return NULL;
}

static inline struct lock_stats stats(struct fixture *f) {
    struct lock_stats s;
    engine_stats(f->engine, &s);
    return s;
}

/* What became of the last renewal asked for; done, the lease goes on for as long as was asked for. */
static inline void renewed(struct fixture *f, const struct lock_key *key, uint64_t token, enum lock_outcome outcome) {
    struct lock_result r = {.outcome = outcome, .pttl_ms = -3};
    if (outcome == LOCK_DONE) {
        r.pttl_ms = f->renewed.lease_ms;
        r.leased = f->renewed.right == RIGHT_CLAIM;
    }
    engine_renewed(f->engine, key, token, &r, f->now_ms);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
