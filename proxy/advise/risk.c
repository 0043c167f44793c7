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

static void losers_line(const struct evidence *r, const char *pattern, struct text *out) {
    if (!advise_losers_delete(r))
        return;
    text_printf(out,
                "risk: %s by %s: %llu times a client that had just lost the lock sent DEL, which frees the "
                "holder's lock on Redis alone. Send DEL only if the attempt acquired (not in a finally "
                "around the attempt). Until then 'owner connection' refuses it if each worker has its "
                "connection, or CLIENT SETNAME with a name for each worker",
                pattern, r->client, (unsigned long long)r->losers);
}

static void late_line(const struct evidence *r, const char *pattern, struct text *out) {
    if (r->late < LATE_SAID || r->expired < LATE_SAID || r->late * LATE_SHARE < r->acquired)
        return;
    char by[64] = "";
    unsigned sessions = 0;
    for (size_t i = 0; i < ADVISE_SESSIONS; i++)
        sessions += r->sessions[i].id != 0;
    if (r->late_timed > 0)
        snprintf(by, sizeof(by), ", by %llu ms on average", (unsigned long long)(r->late_ms / r->late_timed));
    bool unnamed = !strstr(r->client, " name=") && sessions > 1;
    text_printf(out,
                "risk: %s by %s: %llu of %llu locks were released after their expiry%s: others may have "
                "worked at the same time. Give a longer expiry, or none (the proxy renews the lock while "
                "its owner is connected)%s",
                pattern, r->client, (unsigned long long)r->late, (unsigned long long)r->acquired, by,
                unnamed ? ". Its connections have no names: with CLIENT SETNAME and a name for each "
                          "process, no process can free the lock of another one"
                        : "");
}

static void one_shot_line(const struct evidence *r, const char *pattern, struct text *out) {
    if (r->one_shots == 0)
        return;
    text_printf(out,
                "risk: %s by %s: %llu times a lock without an expiry was acquired over a connection that "
                "closed at once, as redis-cli in a script does. %s. Use SET with NX and EX, and a trap "
                "that sends DEL (docs/guides/shell.md)",
                pattern, r->client, (unsigned long long)r->one_shots,
                r->ruled && !r->audited ? "The proxy keeps it for the rule's one-shot time, even if the "
                                          "script has died"
                                        : "If the script dies nothing ends the lock");
}

void advise_each_risk(const struct evidence *row, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    static void (*const RISKS[])(const struct evidence *, const char *, struct text *) = {losers_line, late_line,
                                                                                          one_shot_line};
    char pattern[ADVISE_PATTERN_MAX * 4 + 3];
    lock_rule_word(row->pattern, pattern, sizeof(pattern));
    for (size_t i = 0; !advise_is_semaphore(row) && i < sizeof(RISKS) / sizeof(RISKS[0]); i++) {
        struct text line = {0};
        RISKS[i](row, pattern, &line);
        advise_say(&line, fn, arg);
    }
}
