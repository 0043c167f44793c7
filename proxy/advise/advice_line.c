/*
 * Formats counts as a sentence and a `lock` line. Suggests a rule only if enough was seen; shows how much that was.
 */
#include <string.h>

#include "proxy/advise/private.h"
#include "proxy/lock/engine.h"
#include "proxy/lock/thresholds.h"

enum {
    HANDED_OVER = 5,   /* releases by other clients that make a lock handed over */
    OWN_OF = 10,       /* of so many releases by others, one may be by the client that acquired */
    SHARED_ENOUGH = 5, /* numbers above the first, tokens or members that were kept for a while: it is a semaphore */
    ODD_OF = 4,        /* of so many permits that are given back, one event may be odd */
    STOOD_MS = 3       /* average time free, in ms, above which handing a release on gains something */
};

/* Whether acquirers hardly ever release, and others do. If many clients acquire and release, each gets one of its own
 * locks now and then. */
static bool handed_over(const struct evidence *r) {
    return r->by_other >= HANDED_OVER && r->by_own * OWN_OF <= r->by_other;
}

/* Whether the lock is a throttle: it has an expiry, and is never released. */
static bool throttle(const struct evidence *r) {
    return r->sent == 0 && r->by_other == 0 && r->refused == 0 && r->endless == 0;
}

bool advise_is_semaphore(const struct evidence *r) {
    bool permits = r->kinds == ADVISE_PERMITS && r->odd * ODD_OF <= r->released;
    return r->shared >= SHARED_ENOUGH && (r->kinds == ADVISE_COUNTER || permits);
}

/* Whether losers delete. A release over a connection whose last attempt was lost is a loser's if there is one more
 * release for each lost attempt. If there are no more releases than acquisitions, it is a pool that hands connections
 * round. */
static bool losers_delete(const struct evidence *r) {
    return r->losers > 0 && surplus_is_losers((double)r->sent, (double)r->acquired, (double)r->losers);
}

static bool multiplexed(const struct evidence *r) {
    return r->overlapped || client_library_multiplexes(r->library, strlen(r->library));
}

static bool pooled(const struct evidence *r) {
    return r->crossed >= CROSSINGS;
}

/* Whether each worker has its connection, as a row of so many contended releases shows. It is said from SESSION_ROW on,
 * and advised from WORKLOAD_ROW on; over one session SESSION_ROW is enough for both. */
static bool own(const struct evidence *r, uint64_t row) {
    uint64_t longest = 0; /* of a single session */
    for (size_t i = 0; i < ADVISE_SESSIONS; i++)
        longest = r->sessions[i].row > longest ? r->sessions[i].row : longest;
    return r->crossed == 0 && !multiplexed(r) && rows_dedicated(r->row, longest, row);
}

/* Whether the rule option wait would help: the lock is free while its contenders sleep. */
static bool sleepers(const struct evidence *r) {
    return r->stood >= ADVISE_ENOUGH && r->stood_ms >= STOOD_MS * r->stood && !r->waits && !multiplexed(r) &&
           (r->kinds & ~(unsigned)ADVISE_STRING) == 0;
}

static void add_model(struct text *l, const struct evidence *r) {
    if (r->kinds & ADVISE_LIST)
        text_printf(l, "a list lock; ");
    if (advise_is_semaphore(r))
        text_printf(l, "a semaphore, whose permits a crash loses; ");
    if (handed_over(r))
        text_printf(l, "released by other clients than acquired");
    else if (multiplexed(r))
        text_printf(l, "one connection for several workers");
    else if (pooled(r))
        text_printf(l, "a pool of connections");
    else if (own(r, SESSION_ROW))
        text_printf(l, "a connection for each worker");
    else
        text_printf(l, "connections not known");
    if (r->library[0])
        text_printf(l, " (%s)", r->library);
}

/* The option `owner`; "": none. The default rule learns by itself whether it is `connection` or `client`; naming it
 * saves the learning, if nothing contradicts it. */
static const char *owner_of(const struct evidence *r) {
    if (handed_over(r) && r->by_other_bare >= HANDED_OVER) /* the rules do not stop a script */
        return " owner any";
    if (losers_delete(r) && own(r, WORKLOAD_ROW))
        return " owner connection";
    if (!losers_delete(r) && !handed_over(r) && (multiplexed(r) || pooled(r)))
        return " owner client";
    return "";
}

static void add_kind(struct text *l, const struct evidence *r) {
    static const char *const NAMES[] = {"string", "list", "hash", "counter"};
    if ((r->kinds & ~(unsigned)ADVISE_STRING) == 0)
        return;
    const char *before = " kind ";
    for (unsigned i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++)
        if (r->kinds & 1u << i) {
            text_printf(l, "%s%s", before, NAMES[i]);
            before = ",";
        }
}

/* Adds a count, ", late 3", if it is not 0. */
static void add_count(struct text *l, const char *what, uint64_t count) {
    if (count > 0)
        text_printf(l, ", %s %llu", what, (unsigned long long)count);
}

static void add_counts(struct text *l, const struct evidence *r) {
    if (advise_is_semaphore(r)) {
        bool permits = r->kinds == ADVISE_PERMITS;
        text_printf(l, permits ? "given back %llu" : "taken %llu",
                    (unsigned long long)(permits ? r->released : r->acquired + r->lost));
        return;
    }
    text_printf(l, "acquired %llu, lost %llu, released %llu", (unsigned long long)r->acquired,
                (unsigned long long)r->lost, (unsigned long long)r->released);
    add_count(l, "by others", r->by_other);
    if (losers_delete(r))
        text_printf(l, ", losers delete: %llu times", (unsigned long long)r->losers);
    add_count(l, "refused", r->refused);
    add_count(l, "late", r->late);
    add_count(l, "in vain", r->in_vain);
    text_printf(l, ", overruns %llu", throttle(r) ? 0ull : (unsigned long long)r->expired);
    add_count(l, "without expiry", r->endless);
    if (sleepers(r))
        text_printf(l, ", releases slept through %llu, ms lost with each %llu", (unsigned long long)r->stood,
                    (unsigned long long)(r->stood_ms / r->stood));
}

static const char *values(const struct evidence *r) {
    if (r->valued < 2)
        return "values not known";
    return r->repeated == 0              ? "values distinct"
           : r->repeated * 2 > r->valued ? "values constant"
                                         : "values partly the same";
}

/* Adds a text, and the pattern behind it in the syntax of the configuration. */
static void add_pattern(struct text *l, const char *before, const char *pattern) {
    char word[ADVISE_PATTERN_MAX * 4 + 3];
    lock_rule_word(pattern, word, sizeof(word));
    text_printf(l, "%s%s", before, word);
}

/* Adds the rule that fits a row, as a line of the configuration. */
static void add_rule(struct text *l, const struct evidence *r) {
    add_pattern(l, "lock ", r->pattern);
    if (advise_is_semaphore(r)) {
        text_printf(l, " kind semaphore");
        return;
    }
    add_kind(l, r);
    text_printf(l, "%s", owner_of(r));
    if (sleepers(r))
        text_printf(l, " wait 1s");
}

static const char TOO_FEW[] = "too few to advise",
                  NEVER[] = "never seen to be acquired: held since before, or dead; look at its TTL";

/* What to say of a pattern instead of a rule; NULL: a rule can be advised. */
static const char *no_rule_since(const struct evidence *r) {
    if (advise_is_semaphore(r))
        return NULL;
    if (r->acquired == 0 && r->lost >= ADVISE_ENOUGH)
        return NEVER;
    if (r->acquired < ADVISE_ENOUGH)
        return TOO_FEW;
    if (r->kinds & ADVISE_LIST && !r->ruled && handed_over(r))
        return "a queue of jobs, taken by others than pushed them: no rule is needed";
    if (throttle(r))
        return r->ruled ? "a throttle, never released: fits as it is" : "a throttle, never released: no rule is needed";
    if (!r->ruled && (r->released + r->late) * 2 < r->acquired)
        return "seldom released: no lock, or its releases are not seen";
    return NULL;
}

/* ---- unsafe use, in a user's words: sound use is not mentioned ------------------------------------- */

enum {
    LATE_SAID = 3,  /* late releases that are worth a line, */
    LATE_SHARE = 20 /* if one acquisition in so many has a late release */
};

uint64_t advise_risk(const struct evidence *r, unsigned kind) {
    if (advise_is_semaphore(r))
        return 0;
    switch (kind) {
    case RISK_LOSERS:
        return losers_delete(r) ? r->freed : 0;
    case RISK_LATE:
        return r->late < LATE_SAID || r->expired < LATE_SAID || r->late * LATE_SHARE < r->acquired ? 0 : r->late;
    default:
        return r->one_shots;
    }
}

struct verdict advise_verdict(const struct evidence *r) {
    const char *why = no_rule_since(r);
    struct verdict v = {.why = why, .few = why == TOO_FEW || why == NEVER};
    if (!why)
        v = (struct verdict){.owner = owner_of(r), .kinds = r->kinds};
    for (unsigned kind = 0; kind < RISKS; kind++)
        v.risks |= (unsigned)(advise_risk(r, kind) > 0) << kind;
    v.decided = !v.few || v.risks > 0;
    return v;
}

void advise_line(const struct evidence *r, struct text *l) {
    add_pattern(l, "", r->pattern);
    text_printf(l, " by %s: ", r->client);
    add_model(l, r);
    text_printf(l, "; %s; ", values(r));
    add_counts(l, r);
    text_printf(l, "; %s; %llu events: ",
                !r->ruled    ? "outside of the rules"
                : r->audited ? "audited"
                             : "enforced",
                (unsigned long long)r->events);
    const char *why = no_rule_since(r);
    if (why)
        text_printf(l, "%s", why);
    else
        add_rule(l, r);
}

void advise_dead_line(const struct evidence *r, struct text *l) {
    add_pattern(l, "dead lock: ", r->dead_key);
    text_printf(l, " by %s: no expiry, its owner is gone, %llu attempts lost since: DEL it, ", r->client,
                (unsigned long long)r->dead_lost);
    if (r->ruled) {
        text_printf(l, "and let the rule enforce a lease");
    } else {
        text_printf(l, "and let it end by itself from now on: ");
        add_rule(l, r);
    }
}

void advise_fence_line(const struct written_pair *p, struct text *l) {
    add_pattern(l, "", p->pattern);
    add_pattern(l, " is written by holders of ", p->lock);
    uint64_t under = p->held + p->late;
    text_printf(l, ": %llu of %llu writes", (unsigned long long)under, (unsigned long long)p->writes);
    if (p->late > 0)
        text_printf(l, ", %llu of them after the lease was over", (unsigned long long)p->late);
    add_pattern(l, ": fence ", p->pattern);
    add_pattern(l, " by ", p->lock);
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
    add_rule(l, r);
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
    add_pattern(l, "UNSAFE ", r->pattern);
    text_printf(l, "%s%s: ", by ? " by " : "", by ? r->client : "");
    LINES[kind](r, l);
}
