/*
 * What applications' traffic goes through: an engine in front of the model of Redis, or the model alone. All that the
 * traffic simulator knows of the engine's interface is in traffic_engine.c.
 *
 *      front_begin ──> front_run (the script, in the model) ──> front_answered ──> front_finish
 *                          ^                                         │
 *                          └── the engine wants it sent once more <──┘
 */
#pragma once

#include "tests/sim/model.h"

enum { FRONT_IDENTITY = 16, FRONT_NOTES = 64 };

/* A renewal or a release that the engine asked for. */
struct front_note {
    struct lock_lease lease;
    int key;
    bool release;
};

/* A proxy, or bare Redis. */
struct front {
    struct model *redis;        /* borrowed */
    struct lock_engine *engine; /* NULL: bare Redis */
    struct lock_rules *rules;
    const struct lock_rule *rule;
    const char *const *names; /* of the model's keys, MODEL_KEYS of them, NULL where there is none; borrowed */
    char id[40];
    struct front_note notes[FRONT_NOTES];
    unsigned noted;
    uint16_t trip_ms; /* that the engine is told of its connections */
    bool patient;     /* a release may be held back */
};

/* A connection to it. */
struct front_line {
    struct front *front;
    struct lock_session session;
    uint64_t id;
    char identity[FRONT_IDENTITY];
    bool open;
};

/* A command under way. */
struct front_call {
    struct front_line *line; /* borrowed; it may close meanwhile */
    int key;
    struct model_command command;
    struct model_envelope envelope; /* once it ran; of bare Redis the reply alone */
    struct lock_plan plan;
};

/* `number`: of the proxy; `lease_ms`: what the rule gives where the application sets no expiry. With `bare` there is no
 * engine. */
void front_open(struct front *f, struct model *redis, const char *const names[MODEL_KEYS], unsigned number, bool bare,
                uint64_t seed, int64_t lease_ms, uint16_t trip_ms, bool patient);
void front_free(struct front *f);
/* The engine's time has come; what it asks for is done at once. Returns the ms until it wants to be called again. */
int64_t front_tick(struct front *f);

/* `multiplexes`: its library says of itself that it does. `id`: unique at this proxy, growing. */
void front_connect(struct front *f, struct front_line *line, uint64_t id, const char *identity, bool multiplexes);
/* Commands of several workers are under way on it: a command came while an earlier one had not been answered. */
void front_overlap(struct front_line *line);
void front_disconnect(struct front_line *line);

/* Each begin is followed by run, answered (and by both once more where that says so) and finish. False: the engine
 * holds the release back; it is to be begun once more in some ms. */
bool front_begin(struct front_call *c, struct front_line *line, int key, const struct model_command *command);
void front_run(struct front_call *c);
/* Takes an answer; whether the call is to be sent once more. */
bool front_answered(struct front_call *c);
void front_finish(struct front_call *c);
