/*
 * The rule of a run as a set of rules, and reloads: a new set takes the place of the old one, which lives on for as
 * long as claims and commands under way refer to it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/sim_world.h"

enum { TIME_TEXT = 32 };

static void time_text(int64_t ms, char out[TIME_TEXT]) {
    snprintf(out, TIME_TEXT, "%" PRId64 "ms", ms);
}

static void set_rules(struct world *w, enum lock_mode mode) {
    static const char *const MODES[] = {"enforce", "audit"}, *const OWNERS[] = {"auto", "connection", "client", "any"},
                             *const RENEW[] = {"auto", "always", "never"}, *const KEEP[] = {"keep", "release"};
    const struct lock_rule *r = &w->sc.rule;
    char memory[TIME_TEXT], lease[TIME_TEXT], hold[TIME_TEXT], handover[TIME_TEXT], wait[TIME_TEXT], error[200];
    time_text(r->claim_memory_ms, memory);
    time_text(r->lease_ms, lease);
    time_text(r->max_hold_ms, hold);
    time_text(r->handover_ms, handover);
    time_text(r->wait_ms, wait);
    const char *const words[] = {
        "lock:*", "mode",         MODES[mode], "owner",         OWNERS[r->owner],       "lease",
        lease,    "claim-memory", memory,      "renew",         RENEW[r->renew],        "max-hold",
        hold,     "handover",     handover,    "on-disconnect", KEEP[r->on_disconnect], "wait",
        wait,     "kind",         "any"};
    w->rules = lock_rules_new();
    if (lock_rules_add(w->rules, words, sizeof(words) / sizeof(words[0]), error, sizeof(error)))
        abort();
    fences_add_rule(w, w->rules); /* the engine keeps tenures only of locks that a fence of their set names */
    w->rule = lock_rules_get(w->rules, 0);
    w->enforced = w->enforced || mode == LOCK_MODE_ENFORCE;
}

void rules_open(struct world *w) {
    set_rules(w, w->sc.audit ? LOCK_MODE_AUDIT : LOCK_MODE_ENFORCE);
}

void rules_close(struct world *w) {
    lock_rules_unref(w->rules);
    w->rules = NULL;
    w->rule = NULL;
}

void rules_reload(struct world *w) {
    bool audits = w->rule->mode == LOCK_MODE_AUDIT;
    bool from_audit = audits && (w->sc.toggles || world_chance(w, 30));
    bool to_audit = !audits && w->sc.toggles;
    enum lock_mode mode = (audits && !from_audit) || to_audit ? LOCK_MODE_AUDIT : LOCK_MODE_ENFORCE;
    if (w->sc.audit_exact && from_audit) /* from when the last command that was sent before has been answered */
        for (size_t i = 0; i < FLIGHTS; i++)
            if (w->flights[i].used && w->flights[i].observed)
                flight_progress(w, &w->flights[i]);
    struct lock_rules *before = w->rules;
    set_rules(w, mode);
    if (w->waits)
        waits_rules(w);
    lock_rules_unref(before);
    world_event(w, "reload: mode %s", mode == LOCK_MODE_AUDIT ? "audit" : "enforce");
}
