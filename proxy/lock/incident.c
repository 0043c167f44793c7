/* Reports incidents, and names kinds and outcomes. The texts never contain a lock's value or a token. */
#include "proxy/lock/ledger.h"
#include "proxy/base/memory.h"

#include <stdarg.h>
#include <stdio.h>

enum { ACTION_MAX = 512 };

const char *lock_incident_name(enum lock_incident_kind kind) {
    static const char *const texts[] = {
#define KIND_TEXT(name, text) text,
        LOCK_INCIDENTS(KIND_TEXT)
#undef KIND_TEXT
    };
    return texts[kind];
}

const char *lock_verb_text(enum lock_verb verb) {
    static const char *const texts[] = {
#define VERB_TEXT(name, text, flags) text,
        LOCK_VERBS(VERB_TEXT)
#undef VERB_TEXT
    };
    return texts[verb];
}

const char *lock_right_text(enum lock_right right) {
    static const char *const texts[] = {
#define RIGHT_TEXT(name, text) text,
        LOCK_RIGHTS(RIGHT_TEXT)
#undef RIGHT_TEXT
    };
    return texts[right];
}

/* The outcomes as the scripts write them. The outcomes of a script that wrote nothing have no name. */
static const struct {
    const char *name;
    enum lock_outcome outcome;
} OUTCOME_NAMES[] = {
    {"granted", LOCK_GRANTED}, {"done", LOCK_DONE},       {"released", LOCK_RELEASED}, {"adopted", LOCK_ADOPTED},
    {"open", LOCK_OPEN},       {"counted", LOCK_COUNTED}, {"held", LOCK_HELD},         {"foreign", LOCK_FOREIGN},
    {"free", LOCK_FREE},       {"error", LOCK_ERROR},
};

bool lock_outcome_parse(const char *text, size_t len, enum lock_outcome *outcome) {
    for (size_t i = 0; i < ARRAY_SIZE(OUTCOME_NAMES); i++)
        if (text && strlen(OUTCOME_NAMES[i].name) == len && memcmp(OUTCOME_NAMES[i].name, text, len) == 0) {
            *outcome = OUTCOME_NAMES[i].outcome;
            return true;
        }
    return false;
}

void incident_report(struct shard *sh, enum lock_incident_kind kind, const struct lock_incident *on, const char *format,
                     ...) {
    char action[ACTION_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(action, sizeof(action), format, args);
    va_end(args);
    struct lock_incident incident = *on;
    const char **const texts[] = {&incident.rule, &incident.identity, &incident.client, &incident.holder,
                                  &incident.command};
    incident.kind = kind;
    incident.action = action;
    incident.holder_len = on->holder ? on->holder_len : 0;
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        *texts[i] = *texts[i] ? *texts[i] : "";
    sh->stats.incidents[kind]++;
    sh->engine->sink.incident(sh->engine->sink.arg, &incident);
}
