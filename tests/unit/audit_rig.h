/*
 * The rig of the audit tests: an engine, a rule in audit mode, a clock, and the results: the incidents, and what the
 * engine wanted to send, which under audit must be nothing.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/lock/lock_event.h"

static char rig_pattern[] = "lock:*";

struct fixture {
    struct lock_engine *engine;
    struct lock_rule rule;
    int64_t now_ms;
    unsigned counts[INCIDENT_KINDS], total, effects;
    char action[256], holder[64];
    struct lock_session a, b, c; /* the tests open them */
};

static void on_incident(void *arg, const struct lock_incident *i) {
    struct fixture *f = arg;
    f->counts[i->kind]++;
    f->total++;
    snprintf(f->action, sizeof(f->action), "%s", i->action);
    snprintf(f->holder, sizeof(f->holder), "%.*s", (int)i->holder_len, i->holder);
}

static void on_lease(void *arg, const struct lock_lease *lease) {
    (void)lease;
    ((struct fixture *)arg)->effects++;
}

static void on_leave(void *arg, const struct lock_leaving *leaving) {
    (void)leaving;
    ((struct fixture *)arg)->effects++;
}

static int set_up(void **state) {
    static struct fixture f;
    memset(&f, 0, sizeof(f));
    struct lock_sink sink = {
        .arg = &f, .incident = on_incident, .renew = on_lease, .release = on_lease, .leave = on_leave};
    f.engine = engine_new("6f9a2c51-7d7e-4a49-9d35-0b8f5f3c2a10", 42, &sink);
    f.now_ms = 1000000;
    f.rule = (struct lock_rule){.pattern = rig_pattern,
                                .pattern_len = sizeof(rig_pattern) - 1,
                                .mode = LOCK_MODE_AUDIT,
                                .owner = LOCK_OWNER_AUTO,
                                .claim_memory_ms = 60000,
                                .lease_ms = 30000,
                                .renew = LOCK_RENEW_ALWAYS,
                                .max_hold_ms = 300000};
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    assert_int_equal(f->effects, 0); /* nothing is added to the wire */
    engine_free(f->engine);
    return 0;
}

static void open_as(struct fixture *f, struct lock_session *s, uint64_t id, const char *identity) {
    engine_session_open(f->engine, s, id, identity, strlen(identity));
}

/* A command of the session on the key, about to be observed. */
static struct lock_event sight_on(struct fixture *f, struct lock_session *s, const char *name, enum lock_verb verb,
                                  enum lock_effect effect) {
    struct lock_key key = {.name = name, .len = strlen(name)};
    return (struct lock_event){.key = key,
                               .rule = &f->rule,
                               .verb = verb,
                               .effect = effect,
                               .watched = engine_watch(f->engine, s, &key),
                               .session_id = s->id,
                               .begun_ms = f->now_ms,
                               .pttl_ms = -3,
                               .refusal = "0",
                               .command = "COMMAND",
                               .client = "10.1.1.1:5000"};
}
