/*
 * Unsafe use, in a user's words: what happened, how often, and what cures it. Sound use is not mentioned.
 */
#include <string.h>

#include "proxy/advise/private.h"

enum {
    LATE_SAID = 3,  /* late releases that are worth a line, */
    LATE_SHARE = 20 /* if one acquisition in so many has a late release */
};

uint64_t advise_risk(const struct evidence *r, unsigned kind) {
    if (advise_is_semaphore(r))
        return 0;
    switch (kind) {
    case RISK_LOSERS:
        return advise_losers_delete(r) ? r->freed : 0;
    case RISK_LATE:
        return r->late < LATE_SAID || r->expired < LATE_SAID || r->late * LATE_SHARE < r->acquired ? 0 : r->late;
    default:
        return r->one_shots;
    }
}

static void losers_line(const struct evidence *r, struct text *l) {
    text_printf(l, "%llu time%s a loser deleted another worker's lock. ", (unsigned long long)r->freed,
                r->freed == 1 ? "" : "s");
    if (r->ruled && !r->audited) {
        text_printf(l, "Its rule does not tell the workers apart: 'owner connection' does if each worker has its "
                       "connection, CLIENT SETNAME does with a name for each worker");
        return;
    }
    text_printf(l, "Rule that cures it%s: ", r->audited ? ", in place of its audit" : "");
    advise_rule(l, r);
}

static void late_line(const struct evidence *r, struct text *l) {
    unsigned sessions = 0;
    for (size_t i = 0; i < ADVISE_SESSIONS; i++)
        sessions += r->sessions[i].id != 0;
    text_printf(l, "%llu of %llu locks were released after their expiry", (unsigned long long)r->late,
                (unsigned long long)r->acquired);
    if (r->late_timed > 0)
        text_printf(l, ", by %llu ms on average", (unsigned long long)(r->late_ms / r->late_timed));
    text_printf(l,
                ": others may have worked at the same time. Give a longer expiry, or none (the proxy renews the lock "
                "while its owner is connected)");
    if (!strstr(r->client, " name=") && sessions > 1)
        text_printf(l, ". Its connections have no names: with CLIENT SETNAME and a name for each process, no process "
                       "can free the lock of another one");
}

static void one_shot_line(const struct evidence *r, struct text *l) {
    text_printf(l,
                "%llu times a lock without an expiry was acquired over a connection that closed at once, as redis-cli "
                "in a script does. %s. Use SET with NX and EX, and a trap that sends DEL (docs/guides/shell.md)",
                (unsigned long long)r->one_shots,
                r->ruled && !r->audited ? "The proxy keeps it for the rule's one-shot time, even if the script has died"
                                        : "If the script dies nothing ends the lock");
}

void advise_risk_line(const struct evidence *r, unsigned kind, bool by, struct text *l) {
    static void (*const LINES[RISKS])(const struct evidence *, struct text *) = {
        [RISK_LOSERS] = losers_line, [RISK_LATE] = late_line, [RISK_ONE_SHOT] = one_shot_line};
    char pattern[ADVISE_PATTERN_MAX * 4 + 3];
    lock_rule_word(r->pattern, pattern, sizeof(pattern));
    text_printf(l, "UNSAFE %s%s%s: ", pattern, by ? " by " : "", by ? r->client : "");
    LINES[kind](r, l);
}
