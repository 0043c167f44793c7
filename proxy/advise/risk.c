/*
 * Risky patterns of use, in a user's words: what happened, how often, and what to change. Sound patterns are not
 * mentioned.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/advise/private.h"

enum {
    LATE_SAID = 3,  /* late releases that are worth a line, */
    LATE_SHARE = 20 /* if one acquisition in so many has a late release */
};

static size_t bounded(int written) {
    return written < 0 ? 0 : written < ADVISE_LINE_MAX ? (size_t)written : ADVISE_LINE_MAX - 1;
}

static size_t losers_line(const struct evidence *r, const char *pattern, char *out) {
    if (!advise_losers_delete(r))
        return 0;
    return bounded(snprintf(out, ADVISE_LINE_MAX,
                            "risk: %s by %s: %llu times a client that had just lost the lock sent DEL, which frees the "
                            "holder's lock on Redis alone. Send DEL only if the attempt acquired (not in a finally "
                            "around the attempt). Until then 'owner connection' refuses it if each worker has its "
                            "connection, or CLIENT SETNAME with a name for each worker",
                            pattern, r->client, (unsigned long long)r->losers));
}

static unsigned sessions_seen(const struct evidence *r) {
    unsigned count = 0;
    for (size_t i = 0; i < ADVISE_SESSIONS; i++)
        count += r->sessions[i].id != 0;
    return count;
}

static size_t late_line(const struct evidence *r, const char *pattern, char *out) {
    if (r->late < LATE_SAID || r->expired < LATE_SAID || r->late * LATE_SHARE < r->acquired)
        return 0;
    char by[64] = "";
    if (r->late_timed > 0)
        snprintf(by, sizeof(by), ", by %llu ms on average", (unsigned long long)(r->late_ms / r->late_timed));
    bool unnamed = !strstr(r->client, " name=") && sessions_seen(r) > 1;
    return bounded(snprintf(out, ADVISE_LINE_MAX,
                            "risk: %s by %s: %llu of %llu locks were released after their expiry%s: others may have "
                            "worked at the same time. Give a longer expiry, or none (the proxy renews the lock while "
                            "its owner is connected)%s",
                            pattern, r->client, (unsigned long long)r->late, (unsigned long long)r->acquired, by,
                            unnamed ? ". Its connections have no names: with CLIENT SETNAME and a name for each "
                                      "process, no process can free the lock of another one"
                                    : ""));
}

static size_t one_shot_line(const struct evidence *r, const char *pattern, char *out) {
    if (r->one_shots == 0)
        return 0;
    return bounded(snprintf(out, ADVISE_LINE_MAX,
                            "risk: %s by %s: %llu times a lock without an expiry was acquired over a connection that "
                            "closed at once, as redis-cli in a script does. %s. Use SET with NX and EX, and a trap "
                            "that sends DEL (docs/guides/shell.md)",
                            pattern, r->client, (unsigned long long)r->one_shots,
                            r->ruled && !r->audited ? "The proxy keeps it for the rule's one-shot time, even if the "
                                                      "script has died"
                                                    : "If the script dies nothing ends the lock"));
}

size_t advise_risk_line(const struct evidence *row, enum advise_risk risk, char out[ADVISE_LINE_MAX]) {
    char pattern[ADVISE_PATTERN_MAX * 4 + 3];
    lock_rule_word(row->pattern, pattern, sizeof(pattern));
    switch (risk) {
    case ADVISE_RISK_LOSERS:
        return losers_line(row, pattern, out);
    case ADVISE_RISK_LATE:
        return late_line(row, pattern, out);
    case ADVISE_RISK_ONE_SHOT:
        return one_shot_line(row, pattern, out);
    case ADVISE_RISKS:
        break;
    }
    return 0;
}
