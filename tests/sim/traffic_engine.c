/*
 * The engine as the traffic simulator uses it, and the scripts on the model between its plans and its results.
 */
#include "tests/sim/traffic_engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/call.h"

/* ---- proxies ----------------------------------------------------------------------------------- */

static void note(struct front *f, const struct lock_lease *lease, bool release) {
    if (f->noted == FRONT_NOTES) {
        fprintf(stderr, "traffic: the engine asks for more than %d renewals at once\n", FRONT_NOTES);
        abort();
    }
    for (int key = 0; key < MODEL_KEYS; key++)
        if (f->names[key] && strlen(f->names[key]) == lease->key.len &&
            memcmp(f->names[key], lease->key.name, lease->key.len) == 0)
            f->notes[f->noted++] = (struct front_note){.lease = *lease, .key = key, .release = release};
}

static void note_renewal(void *arg, const struct lock_lease *lease) {
    note(arg, lease, false);
}

static void note_release(void *arg, const struct lock_lease *lease) {
    note(arg, lease, true);
}

static void ignore_incident(void *arg, const struct lock_incident *incident) {
    (void)arg;
    (void)incident;
}

static void ignore_leaving(void *arg, const struct lock_leaving *leaving) {
    (void)arg;
    (void)leaving;
}

static void rule_open(struct front *f, int64_t lease_ms) {
    char lease[24], error[256];
    snprintf(lease, sizeof(lease), "%" PRId64 "ms", lease_ms);
    const char *words[] = {"lock:*", "lease", lease};
    f->rules = lock_rules_new();
    const char *wrong = lock_rules_add(f->rules, words, sizeof(words) / sizeof(words[0]), error, sizeof(error));
    if (wrong) {
        fprintf(stderr, "traffic: the rule: %s\n", wrong);
        abort();
    }
    f->rule = lock_rules_get(f->rules, 0);
}

void front_open(struct front *f, struct model *redis, const char *const names[MODEL_KEYS], unsigned number, bool bare,
                uint64_t seed, int64_t lease_ms, uint16_t trip_ms, bool patient) {
    memset(f, 0, sizeof(*f));
    f->redis = redis;
    f->trip_ms = trip_ms;
    f->patient = patient;
    f->names = names;
    if (bare)
        return;
    struct lock_sink sink = {
        .arg = f, .incident = ignore_incident, .renew = note_renewal, .release = note_release, .leave = ignore_leaving};
    snprintf(f->id, sizeof(f->id), "%08x-0000-4000-8000-000000000001", number);
    rule_open(f, lease_ms);
    f->engine = engine_new(f->id, seed, &sink);
    engine_alone(f->engine);
}

void front_free(struct front *f) {
    engine_free(f->engine);
    if (f->rules)
        lock_rules_unref(f->rules);
}

static struct lock_key key_named(const struct front *f, int key) {
    return (struct lock_key){.db = 0, .name = f->names[key], .len = strlen(f->names[key])};
}

static void renew(struct front *f, const struct front_note *n) {
    const struct lock_lease *l = &n->lease;
    struct lock_key key = key_named(f, n->key);
    struct model_command none = {.op = OP_GET};
    struct model_envelope e =
        model_renew(f->redis, n->key, l->token_text, lock_right_text(l->right), l->lease_ms, l->left_ms);
    struct lock_result r = call_result(LOCK_READ, &none, &e);
    engine_renewed(f->engine, &key, l->token, &r, f->redis->now_ms);
}

static void release(struct front *f, const struct front_note *n) {
    struct model_args a = {.attempt = n->lease.token_text,
                           .claim = n->lease.token_text,
                           .identity = "",
                           .proxy = f->id,
                           .right = lock_right_text(n->lease.right),
                           .lease_ms = n->lease.lease_ms,
                           .command = {.op = OP_DEL}};
    model_script(f->redis, n->key, &a);
}

/* The sink only took notes. Their names were borrowed, and nothing here needs them. */
static void do_what_was_asked(struct front *f) {
    for (unsigned i = 0; i < f->noted; i++) {
        struct front_note n = f->notes[i];
        if (n.release)
            release(f, &n);
        else
            renew(f, &n);
    }
    f->noted = 0;
}

int64_t front_tick(struct front *f) {
    int64_t wait_ms = engine_tick(f->engine, 0, 1, f->redis->now_ms);
    do_what_was_asked(f);
    return wait_ms > 0 ? wait_ms : 1;
}

/* ---- connections ------------------------------------------------------------------------------- */

void front_connect(struct front *f, struct front_line *line, uint64_t id, const char *identity, bool multiplexes) {
    memset(line, 0, sizeof(*line));
    line->front = f;
    line->id = id;
    line->open = true;
    snprintf(line->identity, sizeof(line->identity), "%s", identity);
    if (!f->engine)
        return;
    engine_session_open(f->engine, &line->session, id, line->identity, strlen(line->identity));
    line->session.trip_ms = line->session.shortest_trip_ms = f->trip_ms;
    line->session.patient = f->patient;
    if (multiplexes)
        engine_session_library(f->engine, &line->session, "ioredis", strlen("ioredis"));
}

void front_overlap(struct front_line *line) {
    if (line->front->engine && line->open)
        engine_session_overlapped(line->front->engine, &line->session);
}

void front_disconnect(struct front_line *line) {
    struct front *f = line->front;
    if (!line->open)
        return;
    line->open = false;
    if (!f->engine)
        return;
    engine_session_close(f->engine, &line->session, f->redis->now_ms);
    do_what_was_asked(f);
}

/* ---- commands ---------------------------------------------------------------------------------- */

bool front_begin(struct front_call *c, struct front_line *line, int key, const struct model_command *command) {
    struct front *f = line->front;
    c->line = line;
    c->key = key;
    c->command = *command;
    if (!f->engine)
        return true;
    struct lock_key name = key_named(f, key);
    engine_begin(f->engine, &line->session, model_verb(command), &name, f->rule, 1, false, f->redis->now_ms, &c->plan);
    if (c->plan.held_back)
        engine_put_off(f->engine, &c->plan);
    return !c->plan.held_back;
}

void front_run(struct front_call *c) {
    struct front *f = c->line->front;
    if (!f->engine) {
        c->envelope = (struct model_envelope){.reply = model_native(f->redis, c->key, &c->command)};
        return;
    }
    char seen[LOCK_SEEN_MAX + 1];
    struct model_args a = call_args(&c->plan, &c->command, c->line->identity, f->id, f->rule->lease_ms, seen);
    c->envelope = model_script(f->redis, c->key, &a);
}

bool front_answered(struct front_call *c) {
    struct front *f = c->line->front;
    if (!f->engine || c->envelope.outcome != LOCK_HELD)
        return false;
    struct lock_result r = call_result(c->plan.verb, &c->command, &c->envelope);
    return engine_again(f->engine, &c->plan, &r, f->redis->now_ms);
}

void front_finish(struct front_call *c) {
    struct front *f = c->line->front;
    if (!f->engine)
        return;
    struct lock_result r = call_result(c->plan.verb, &c->command, &c->envelope);
    engine_finish(f->engine, c->line->id, &c->plan, &r, "COMMAND", "10.0.0.1:1234", f->redis->now_ms);
    do_what_was_asked(f);
}
