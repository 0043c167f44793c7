/*
 * Attribution rule by rule: for which lease a command speaks. The letters are those of the rules in
 * proxy/lock/attribute.c. One lease for each key stands in for Redis, and answers as the scripts do. The simulator
 * (tests/sim) has long traffic.
 */
#include <inttypes.h>

#include "proxy/lock/choose.h"
#include "tests/unit/engine_rig.h"

/* ---- Redis ------------------------------------------------------------------------------------- */

enum { LEASES = 4, ROW = 8, AT_ONCE_MS = 5 };

/* The live lease of a key, as its guard record has it. */
static struct held {
    char key[32];
    uint64_t token, fence; /* token 0: the lock is free */
    const struct lock_client *owner;
    uint8_t suspects;
    int64_t shifted_ms;
    bool elsewhere, pooled;
    bool released_there; /* another proxy did the last release */
} held[LEASES];

static struct held *lease_of(const char *key) {
    for (unsigned i = 0; i < LEASES; i++) {
        if (held[i].key[0] == '\0')
            copy(held[i].key, sizeof(held[i].key), key, strlen(key));
        if (strcmp(held[i].key, key) == 0)
            return &held[i];
    }
    fail_msg("more keys than leases");
    return NULL;
}

static int start(void **state) {
    int status = set_up(state);
    struct fixture *f = *state;
    f->rule.claim_memory_ms = LOCK_MEMORY_AUTO;
    memset(held, 0, sizeof(held));
    return status;
}

static void free_lock(const char *key) {
    lease_of(key)->token = 0;
}

/* Acquires a free lock; returns the claim's token number. */
static uint64_t take_with(struct fixture *f, struct lock_session *s, const char *key, const char *value,
                          int64_t pttl_ms, bool leased) {
    struct held *h = lease_of(key);
    assert_int_equal(h->token, 0);
    h->token = acquire(f, s, key, value, pttl_ms, leased);
    h->fence = f->fence;
    h->owner = s->client;
    h->suspects = 0;
    h->shifted_ms = 0;
    h->elsewhere = h->pooled = false;
    return h->token;
}

static uint64_t take(struct fixture *f, struct lock_session *s, const char *key) {
    return take_with(f, s, key, "1", 1000, false);
}

/* Has another proxy give the lock to this session's client. */
static void take_elsewhere(struct fixture *f, const struct lock_session *s, const char *key) {
    struct held *h = lease_of(key);
    h->token = UINT64_MAX;
    h->fence = ++f->fence;
    h->owner = s->client;
    h->suspects = 0;
    h->shifted_ms = 0;
    h->elsewhere = true;
    h->pooled = false;
}

/* Has the key's lease be released through another proxy, which then gives the lock to this session's client. */
static void changes_hands_elsewhere(struct fixture *f, const struct lock_session *s, const char *key) {
    free_lock(key);
    take_elsewhere(f, s, key);
}

static struct lock_result refusal(const struct held *h, const struct lock_session *s) {
    struct lock_result r = result(LOCK_HELD, h->fence);
    r.same = h->owner == s->client;
    r.elsewhere = h->elsewhere;
    r.pooled = h->pooled;
    r.suspects = h->suspects;
    r.shifted_ms = h->shifted_ms;
    return r;
}

/* An attempt on a lock that is held. Returns whether the lease in its way was released for it. */
static bool attempt(struct fixture *f, struct lock_session *s, const char *key) {
    struct held *h = lease_of(key);
    struct lock_plan plan;
    struct lock_result r = refusal(h, s);
    assert_int_not_equal(h->token, 0);
    begin(f, s, LOCK_ACQUIRE, key, &plan);
    bool again = engine_again(f->engine, &plan, &r, f->now_ms);
    if (again) {
        char token[LOCK_TOKEN_MAX];
        if (h->elsewhere) /* its token is another proxy's: the fence names it */
            snprintf(token, sizeof(token), "%" PRIu64, h->fence);
        else
            snprintf(token, sizeof(token), "%s:%08" PRIu64, PROCESS, h->token);
        assert_string_equal(lock_right_text(plan.right), "release_then_acquire");
        assert_string_equal(plan.claim_token, token);
        assert_int_equal(plan.claim_len, strlen(token));
        h->token = plan.attempt;
        h->fence = ++f->fence;
        h->owner = s->client;
        h->suspects = 0;
        h->elsewhere = false;
        r = result(LOCK_GRANTED, h->fence);
        r.pttl_ms = 1000;
        r.value = "1";
        r.value_len = 1;
    }
    finish(f, s, &plan, &r);
    return again;
}

/* What release.lua makes of the plan. */
static struct lock_result released_once(struct held *h, const struct lock_session *s, const struct lock_plan *plan) {
    bool same = h->owner == s->client, believed = same && plan->right == RIGHT_BELIEVE;
    bool adopted = same && h->elsewhere && (plan->right == RIGHT_ADOPT || plan->right == RIGHT_SPENT);
    adopted |= same && h->released_there && plan->right == RIGHT_SPENT;
    if (!h->token)
        return result(LOCK_FREE, 0);
    if ((plan->claim && plan->claim == h->token) || believed || adopted) {
        h->token = 0;
        h->released_there = false;
        return result(believed || adopted ? LOCK_ADOPTED : LOCK_RELEASED, h->fence);
    }
    if (same && plan->right == RIGHT_SUSPECT && h->suspects < 3)
        h->suspects++;
    if (same && plan->right == RIGHT_OLDER && h->elsewhere)
        h->shifted_ms = lock_plan_lease_ms(plan);
    return refusal(h, s);
}

/* The same, sent once more where the engine wants that. */
static struct lock_result released_by(struct fixture *f, struct held *h, const struct lock_session *s,
                                      struct lock_plan *plan) {
    struct lock_result r = released_once(h, s, plan);
    return engine_again(f->engine, plan, &r, f->now_ms) ? released_once(h, s, plan) : r;
}

/* DEL. Returns what it answers; *used (if not NULL): the claim that it spoke by. */
static bool give_by(struct fixture *f, struct lock_session *s, const char *key, uint64_t *used) {
    struct lock_plan plan;
    begin(f, s, LOCK_RELEASE, key, &plan);
    struct lock_result r = released_by(f, lease_of(key), s, &plan);
    finish(f, s, &plan, &r);
    if (used)
        *used = plan.claim;
    return r.outcome == LOCK_RELEASED || r.outcome == LOCK_ADOPTED;
}

static bool give(struct fixture *f, struct lock_session *s, const char *key) {
    return give_by(f, s, key, NULL);
}

enum said { REFUSED, CARRIED_OUT, HELD_BACK };

/* DEL of a session that may be held back, and asks again then. */
static enum said ask(struct fixture *f, struct lock_session *s, const char *key) {
    struct lock_plan plan;
    s->patient = true;
    begin(f, s, LOCK_RELEASE, key, &plan);
    s->patient = false;
    if (plan.held_back) {
        engine_put_off(f->engine, &plan);
        return HELD_BACK;
    }
    struct lock_result r = released_by(f, lease_of(key), s, &plan);
    finish(f, s, &plan, &r);
    return r.outcome == LOCK_RELEASED || r.outcome == LOCK_ADOPTED ? CARRIED_OUT : REFUSED;
}

/* The facts about the session's workload of keys. */
static const struct workload *workload_known(struct fixture *f, const struct lock_session *s, const char *key) {
    uint64_t keys = advise_pattern_hash(key, strlen(key));
    const struct workload *known =
        workload_of_key(ledger_shard(f->engine, keys), workload_number_of(s->client->hash, f->rule.hash, keys));
    assert_non_null(known);
    return known;
}

/* Has what follows be of another workload, under another rule. */
static void another_workload(struct fixture *f, unsigned number) {
    f->rule.hash = 1000u * (number + 1);
}

static bool losers_release(struct fixture *f, const struct lock_session *s, const char *key) {
    return workload_known(f, s, key)->facts & FACT_LOSERS_RELEASE;
}

static unsigned votes(struct fixture *f, const struct lock_session *s, const char *key) {
    return workload_known(f, s, key)->votes;
}

/* The lease ends by itself. */
static void lapse(struct fixture *f, const char *key, int64_t ms) {
    free_lock(key);
    pass(f, ms);
}

static void count_workload(void *arg, const struct lock_workload *workload) {
    *(unsigned *)arg += workload->pooled;
}

static unsigned pooled(struct fixture *f) {
    unsigned n = 0;
    engine_each_workload(f->engine, count_workload, &n);
    return n;
}

static void open_two(struct fixture *f, struct lock_session *a, struct lock_session *b) {
    open_as(f, a, 1, "app");
    open_as(f, b, 2, "app");
}

/* The session shows that it is one worker's: contended releases of what it acquired itself. */
static void show_own(struct fixture *f, struct lock_session *s, struct lock_session *loser, const char *key,
                     int times) {
    for (int i = 0; i < times; i++) {
        take(f, s, key);
        attempt(f, loser, key);
        assert_true(give(f, s, key));
    }
}

/* Twice a release comes over a connection that did not acquire. */
static void make_pooled(struct fixture *f, struct lock_session *a, struct lock_session *b, const char *key) {
    take(f, b, key);
    assert_true(give(f, b, key));
    for (int i = 0; i < 2; i++) {
        take(f, a, key);
        assert_true(give(f, b, key));
    }
    assert_int_equal(pooled(f), 1);
}

/* ---- A: acquired ------------------------------------------------------------------------------- */

static void a1_a_worker_has_done_with_what_it_had(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    lapse(f, "lock:x", 1000);
    uint64_t others = take(f, &b, "lock:x");
    lapse(f, "lock:x", 1000);
    uint64_t second = take(f, &a, "lock:x"), used;
    assert_int_equal(stats(f).claims, 2);
    assert_true(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, second);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), others);
}

static void a1_but_not_with_what_a_colleague_may_have_acquired(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    uint64_t first = take(f, &a, "lock:x"), used;
    assert_false(attempt(f, &a, "lock:x"));
    lapse(f, "lock:x", 1000);
    uint64_t second = take(f, &a, "lock:x");
    assert_int_equal(stats(f).claims, 2);
    assert_false(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, first);
    assert_true(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, second);
    /* A session that is known to be one worker's has no colleagues. */
    show_own(f, &a, &b, "lock:x", ROW);
    take(f, &a, "lock:x");
    assert_false(attempt(f, &a, "lock:x"));
    lapse(f, "lock:x", 1000);
    take(f, &a, "lock:x");
    assert_int_equal(stats(f).claims, 1);
    assert_true(give(f, &a, "lock:x"));
}

static void a1_is_not_for_shared_sessions(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    take(f, &a, "lock:x");
    lapse(f, "lock:x", 1000);
    take(f, &a, "lock:x");
    assert_int_equal(stats(f).claims, 2);
}

static void a2_who_brings_the_same_value_has_come_back(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    engine_session_overlapped(f->engine, &a);
    engine_session_overlapped(f->engine, &b);
    take_with(f, &a, "lock:x", "w1", 1000, false);
    lapse(f, "lock:x", 1000);
    uint64_t other = take_with(f, &a, "lock:x", "w2", 1000, false), used;
    lapse(f, "lock:x", 1000);
    uint64_t again = take_with(f, &b, "lock:x", "w1", 1000, false); /* over whichever connection */
    assert_int_equal(stats(f).claims, 2);
    assert_false(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, other);
    assert_true(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, again);
}

static void a2_also_from_a_session_that_closed_but_of_no_other(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    take_with(f, &a, "lock:x", "w1", 1000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    lapse(f, "lock:x", 1000);
    uint64_t other = take_with(f, &b, "lock:x", "w2", 1000, false);
    lapse(f, "lock:x", 1000);
    open_as(f, &c, 3, "app");
    take_with(f, &c, "lock:x", "w1", 1000, false);
    assert_int_equal(stats(f).claims, 2);
    lapse(f, "lock:x", 1000);
    take_with(f, &c, "lock:x", "w2", 1000, false); /* b is there, and one worker's: its late release may come */
    assert_int_equal(stats(f).claims, 2);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), other);
}

/* ---- B: refused -------------------------------------------------------------------------------- */

static void b1_a_loser_is_not_believed_until_it_acquires(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, other;
    open_two(f, &a, &b);
    open_as(f, &other, 3, "else");
    assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:x"), "believe");
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:x"), "suspect");
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "leased");
    assert_true(give(f, &a, "lock:x"));
    take(f, &b, "lock:x");
    assert_true(give(f, &b, "lock:x"));
    take(f, &a, "lock:x");
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "later");
    /* Whichever session it was refused. */
    take(f, &other, "lock:z");
    attempt(f, &b, "lock:z");
    assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:z"), "suspect");
}

/* Loses so many attempts in a row. */
static void lose_row(struct fixture *f, struct lock_session *s, const char *key, int times) {
    for (int i = 0; i < times; i++)
        assert_false(attempt(f, s, key));
}

/* Makes a lease suspect: the release of a loser was refused at once behind its loss, as long as nothing is known. */
static void suspect(struct fixture *f, struct lock_session *holder, struct lock_session *loser, const char *key) {
    take_with(f, holder, key, "1", 100000, false);
    assert_false(attempt(f, loser, key));
    unsigned before = lease_of(key)->suspects;
    assert_false(give(f, loser, key));
    assert_int_equal(lease_of(key)->suspects, before + 1);
}

/* Shows that losers release: the holder's release comes while a loser's is held back. Leaves the lock free. */
static void show_losers_release(struct fixture *f, struct lock_session *holder, struct lock_session *loser,
                                const char *key) {
    free_lock(key);
    take_with(f, holder, key, "1", 100000, false);
    assert_false(attempt(f, loser, key));
    assert_int_equal(ask(f, loser, key), HELD_BACK);
    assert_true(give(f, holder, key));
    assert_int_equal(ask(f, loser, key), REFUSED);
    assert_true(losers_release(f, holder, key));
}

enum { PATIENCE = 3 };

/* The refused release was the holder's: after three more losses no other session of the workload has sent a release. */
static void b_a_lease_makes_way_after_three_losses_in_a_row(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    suspect(f, &a, &b, "lock:x"); /* a worker that acquired over a releases over b */
    lose_row(f, &b, "lock:x", PATIENCE);
    assert_true(attempt(f, &b, "lock:x"));
    assert_int_equal(stats(f).leases, 1);
    assert_int_equal(stats(f).claims, 1);
    assert_int_equal(votes(f, &a, "lock:x"), 1);
    assert_int_equal(pooled(f), 0);
    assert_true(give(f, &b, "lock:x"));
    /* Any session that asks, including the one that acquired the lease; and two crossings make a pool. */
    take(f, &a, "lock:yy");
    lease_of("lock:yy")->suspects = 1;
    lose_row(f, &c, "lock:yy", PATIENCE - 1);
    lose_row(f, &a, "lock:yy", PATIENCE);
    assert_true(attempt(f, &a, "lock:yy"));
    assert_int_equal(votes(f, &a, "lock:yy"), 1); /* of another workload */
    suspect(f, &a, &b, "lock:z");
    lose_row(f, &a, "lock:z", PATIENCE);
    assert_true(attempt(f, &a, "lock:z"));
    assert_true(give(f, &a, "lock:z"));
    take(f, &c, "lock:z");
    lease_of("lock:z")->suspects = 1;
    lose_row(f, &b, "lock:z", PATIENCE);
    assert_true(attempt(f, &b, "lock:z"));
    assert_int_equal(pooled(f), 1);
    assert_int_equal(incidents(f, INCIDENT_SHARED), 1);
    assert_string_equal(incident(f, INCIDENT_SHARED)->client, "app");
    /* From now on connections do not belong to single workers. */
    uint64_t used;
    assert_true(give_by(f, &a, "lock:z", &used));
    assert_int_not_equal(used, 0);
    take(f, &a, "lock:z");
    assert_int_equal(lease_of("lock:z")->token % 2, 1); /* as every proxy can tell by the token */
}

static void b_no_lease_makes_way_without_a_refused_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, other;
    open_two(f, &a, &b);
    open_as(f, &other, 3, "else");
    take_with(f, &a, "lock:x", "1", 100000, false);
    lose_row(f, &a, "lock:x", 5);
    lose_row(f, &b, "lock:x", 5);
    /* Another client's attempts in a row are none of the workload's. */
    lease_of("lock:x")->suspects = 1;
    lose_row(f, &b, "lock:x", 1);
    lose_row(f, &other, "lock:x", 10);
    /* Losses before the release count for nothing, and a release ends the row. */
    lose_row(f, &b, "lock:x", 1);
    assert_int_equal(f->note_count, 0);
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(pooled(f), 0);
}

static void b_a_release_ends_the_row_of_losses(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    suspect(f, &a, &b, "lock:x");
    for (int i = 0; i < 5; i++) {
        lose_row(f, &b, "lock:x", 1);
        assert_false(give(f, &b, "lock:x"));
    }
    /* So does another lease. */
    lose_row(f, &b, "lock:x", PATIENCE - 1);
    free_lock("lock:x");
    take(f, &a, "lock:x");
    lease_of("lock:x")->suspects = 1;
    lose_row(f, &b, "lock:x", PATIENCE);
    assert_true(attempt(f, &b, "lock:x"));
}

/* Losers that ask several times before they release are not taken for a holder's colleagues. */
static void b_losers_that_retry_lengthen_the_row(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    suspect(f, &a, &b, "lock:x");
    lose_row(f, &b, "lock:x", 2);
    assert_false(give(f, &b, "lock:x"));
    assert_int_equal(workload_known(f, &a, "lock:x")->longest_row, 2);
    lose_row(f, &c, "lock:x", PATIENCE + 1); /* one more than where losers release behind their first */
    assert_true(attempt(f, &c, "lock:x"));
}

/* Where losers try three times before they release, their first two losses say nothing against a release behind the
 * third, nor that a refused one was the holder's. */
static void b_the_middle_of_a_row_says_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, losers[4];
    open_as(f, &a, 1, "app");
    for (unsigned i = 0; i < 4; i++)
        open_as(f, &losers[i], 2 + i, "app");
    take_with(f, &a, "lock:x", "1", 100000, false);
    for (int round = 0; round < 5; round++)
        for (int tries = 1; tries <= 3; tries++)
            for (unsigned i = 0; i < 4; i++) {
                assert_false(attempt(f, &losers[i], "lock:x"));
                if (tries == 3)
                    assert_false(give(f, &losers[i], "lock:x"));
                pass(f, 10);
            }
    assert_int_equal(workload_known(f, &a, "lock:x")->longest_row, 3);
    assert_int_equal(votes(f, &a, "lock:x"), 0);
    assert_true(give(f, &a, "lock:x"));
}

/* Over the holder's session others have tried: it carries more than one worker's commands. */
static void c4_a_holders_session_that_others_use_is_pooled(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take_with(f, &a, "lock:x", "1", 100000, false);
    attempt(f, &a, "lock:x");
    lose_row(f, &b, "lock:x", 3);
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(votes(f, &a, "lock:x"), 1);
}

/* A holder that extends its lease works on: the refused release was none of its own. */
static void b_no_lease_makes_way_that_was_extended_since(void **state) {
    static const enum lock_verb VERBS[] = {LOCK_EXTEND, LOCK_REWRITE};
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    for (size_t i = 0; i < 2; i++) {
        another_workload(f, (unsigned)i);
        suspect(f, &a, &b, "lock:x");
        run(f, &a, VERBS[i], "lock:x", LOCK_HELD, lease_of("lock:x")->fence); /* in vain: says nothing */
        lose_row(f, &c, "lock:x", PATIENCE - 1);
        run(f, &a, VERBS[i], "lock:x", LOCK_DONE, lease_of("lock:x")->fence);
        lose_row(f, &c, "lock:x", 5);
        assert_false(give(f, &b, "lock:x") && i == 0);
        free_lock("lock:x");
        pass(f, 200000);
    }
}

/* The next refused release may be the holder's again. */
static void b_a_lease_makes_way_that_was_extended_before(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    suspect(f, &a, &b, "lock:x");
    run(f, &a, LOCK_EXTEND, "lock:x", LOCK_DONE, lease_of("lock:x")->fence);
    assert_false(attempt(f, &b, "lock:x"));
    assert_false(give(f, &b, "lock:x"));
    lose_row(f, &c, "lock:x", PATIENCE);
    assert_true(attempt(f, &c, "lock:x"));
}

/* A connection that is one worker's carries no colleague's release. */
static void b_no_lease_makes_way_of_a_session_that_is_one_workers(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    show_own(f, &a, &b, "lock:x", ROW);
    suspect(f, &a, &b, "lock:x");
    lose_row(f, &b, "lock:x", 10);
    lose_row(f, &a, "lock:x", 10);
    assert_int_equal(votes(f, &a, "lock:x"), 0);
    assert_true(give(f, &a, "lock:x"));
}

/* Another proxy's lease is named by its fence. */
static void b_another_proxys_lease_makes_way_by_its_fence(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take_elsewhere(f, &a, "lock:x");
    assert_false(attempt(f, &b, "lock:x"));
    assert_false(give(f, &b, "lock:x"));
    lose_row(f, &b, "lock:x", PATIENCE);
    assert_true(attempt(f, &b, "lock:x"));
    assert_int_equal(votes(f, &b, "lock:x"), 1);
    assert_int_equal(stats(f).claims, 1);
    assert_true(give(f, &b, "lock:x"));
}

/* No lease makes way while its own release is on its way. */
static void b_no_lease_makes_way_that_is_being_released(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan release;
    open_two(f, &a, &b);
    suspect(f, &a, &b, "lock:x");
    lose_row(f, &b, "lock:x", PATIENCE);
    begin(f, &a, LOCK_RELEASE, "lock:x", &release);
    lose_row(f, &b, "lock:x", 2);
    struct lock_result done = released_by(f, lease_of("lock:x"), &a, &release);
    assert_int_equal(done.outcome, LOCK_RELEASED);
    finish(f, &a, &release, &done);
    assert_int_equal(pooled(f), 0);
}

/* What was learnt of losers that release was wrong then. */
static void b_a_wrong_refusal_unlearns_that_losers_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    suspect(f, &a, &b, "lock:x");
    free_lock("lock:x");
    show_losers_release(f, &a, &b, "lock:x");
    suspect(f, &a, &b, "lock:x");
    lose_row(f, &b, "lock:x", PATIENCE);
    assert_true(attempt(f, &b, "lock:x"));
    assert_false(losers_release(f, &a, "lock:x"));
    assert_true(give(f, &b, "lock:x"));
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    assert_true(give(f, &b, "lock:x"));
}

/* What can't be carried out anew says from the start which lease is to be released. */
static void b_makes_way_at_once_where_nothing_is_repeated(void **state) {
    static const enum lock_verb VERBS[] = {LOCK_ACQUIRE, LOCK_COUNT_UP};
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    open_two(f, &a, &b);
    for (size_t i = 0; i < 2; i++) {
        struct lock_result unsent = result(LOCK_NOT_SENT, 0);
        another_workload(f, (unsigned)i);
        suspect(f, &a, &b, "lock:x");
        uint64_t token = lease_of("lock:x")->token;
        lose_row(f, &b, "lock:x", PATIENCE - 1);
        queue(f, &b, VERBS[i], "lock:x", &plan);
        assert_int_equal(plan.right, RIGHT_CLAIM);
        finish(f, &b, &plan, &unsent);
        lose_row(f, &b, "lock:x", 1);
        for (int n = 0; n < 2; n++) { /* the first one is not sent, and has changed nothing */
            VERBS[i] == LOCK_ACQUIRE ? queue(f, &b, VERBS[i], "lock:x", &plan)
                                     : begin(f, &b, VERBS[i], "lock:x", &plan);
            assert_int_equal(plan.right, RIGHT_RELEASE_THEN_ACQUIRE);
            if (n == 0)
                finish(f, &b, &plan, &unsent);
            assert_int_equal(votes(f, &b, "lock:x"), 0);
        }
        char text[LOCK_TOKEN_MAX];
        snprintf(text, sizeof(text), "%s:%08" PRIu64, PROCESS, token);
        assert_string_equal(plan.claim_token, text);
        struct lock_result r = result(LOCK_GRANTED, ++f->fence);
        r.pttl_ms = 1000;
        finish(f, &b, &plan, &r);
        struct held *h = lease_of("lock:x");
        h->token = plan.attempt;
        h->fence = f->fence;
        assert_int_equal(stats(f).claims, 1);
        assert_int_equal(votes(f, &b, "lock:x"), 1);
        assert_true(give(f, &b, "lock:x"));
        pass(f, 200000);
    }
}

/* In a transaction an attempt is not sent once more. */
static void b_is_not_repeated_in_a_transaction(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    open_two(f, &a, &b);
    suspect(f, &a, &b, "lock:x");
    lose_row(f, &b, "lock:x", PATIENCE);
    struct lock_result r = refusal(lease_of("lock:x"), &b), unsent = result(LOCK_NOT_SENT, 0);
    queue(f, &b, LOCK_ACQUIRE, "lock:x", &plan);
    assert_false(engine_again(f->engine, &plan, &r, f->now_ms));
    finish(f, &b, &plan, &unsent);
}

static void b_is_not_for_rules_that_know(void **state) {
    struct fixture *f = *state;
    static const enum lock_owner OWNERS[] = {LOCK_OWNER_CONNECTION, LOCK_OWNER_CLIENT, LOCK_OWNER_ANY};
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (size_t i = 0; i < sizeof(OWNERS) / sizeof(OWNERS[0]); i++) {
        f->rule.owner = OWNERS[i];
        take(f, &a, "lock:x");
        lease_of("lock:x")->suspects = 1;
        lose_row(f, &b, "lock:x", 5);
        lose_row(f, &a, "lock:x", 5);
        lapse(f, "lock:x", 1000 * 100);
    }
    assert_int_equal(pooled(f), 0);
}

/* ---- C: released ------------------------------------------------------------------------------- */

static void c1_a_shared_session_speaks_for_all_of_its_client(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c, other;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    open_as(f, &other, 4, "else");
    engine_session_overlapped(f->engine, &b);
    engine_session_overlapped(f->engine, &other);
    uint64_t claim = take(f, &a, "lock:x");
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), claim);
    assert_int_equal(would_use(f, &c, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(would_use(f, &other, LOCK_RELEASE, "lock:x"), 0);
    /* Beside a claim that is believed live another proxy's lease may have come. */
    assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:x"), "adopt");
    assert_string_equal(would_right(f, &a, LOCK_RELEASE, "lock:x"), "claim");
}

static void c1_a_closed_sessions_claims_are_its_successors(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    take_with(f, &a, "lock:x", "w1", 1000, false);
    show_value(f, &a, "lock:x", "w1", f->fence);
    lapse(f, "lock:x", 1000);
    uint64_t live = take_with(f, &b, "lock:x", "w2", 5000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    engine_session_close(f->engine, &b, f->now_ms);
    /* The live one first, although the other one was shown. */
    assert_int_equal(would_use(f, &c, LOCK_RELEASE, "lock:x"), live);
    attempt(f, &c, "lock:x");
    assert_int_equal(would_use(f, &c, LOCK_RELEASE, "lock:x"), 0);
}

static void c2_the_value_shown_last_is_meant(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    uint64_t first = take_with(f, &a, "lock:x", "w1", 1000, false);
    lapse(f, "lock:x", 1000);
    uint64_t second = take_with(f, &a, "lock:x", "w2", 1000, false);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first);
    show_value(f, &a, "lock:x", "w2", f->fence);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), second);
    struct lock_key key = key_of("lock:x");
    engine_saw(f->engine, &a, &key, &f->rule, "w1", 2, f->now_ms);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first);
}

/* The value that a release by comparison names, for the next command of the session. */
static void names(struct lock_session *s, const char *value) {
    s->named = value;
    s->named_len = strlen(value);
}

/* A release by comparison (DELIFEQ) is for the claim with the value that it names. */
static void c2_a_release_names_its_lease(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    uint64_t first = take_with(f, &a, "lock:x", "w1", 1000, false);
    lapse(f, "lock:x", 1000);
    uint64_t second = take_with(f, &a, "lock:x", "w2", 1000, false);
    names(&a, "w2");
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), second);
    names(&a, "w1");
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first);
    names(&a, "w3");
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first); /* names nothing */
}

/* A loser's release that names another value than the lease's, or another than its own, needs no time to be judged.
 * With one constant value it is a DEL. */
static void c4_what_names_its_lease_is_not_held_back(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    struct lock_result unsent = result(LOCK_NOT_SENT, 0), lost = result(LOCK_HELD, 0);
    open_two(f, &a, &b);
    take_with(f, &a, "lock:x", "w1", 100000, false);
    lost.fence = f->fence;
    for (unsigned i = 0; i < 3; i++) {
        static const char *const tried[] = {"w2", "w2", "w1"}, *const named[] = {"w2", "w1", "w1"};
        lost.value = tried[i];
        lost.value_len = 2;
        begin(f, &b, LOCK_ACQUIRE, "lock:x", &plan);
        finish(f, &b, &plan, &lost);
        b.patient = true;
        names(&b, named[i]);
        begin(f, &b, LOCK_RELEASE, "lock:x", &plan);
        b.patient = false;
        assert_int_equal(plan.held_back, i == 2);
        if (plan.held_back)
            engine_put_off(f->engine, &plan);
        else
            finish(f, &b, &plan, &unsent);
        assert_true(plan.held_back || plan.right == RIGHT_BELIEVE);
        assert_null(b.named);
    }
}

/* What one missed release shifts ends with the time that it would have had itself. */
static void c3_a_missed_release_shifts_not_for_longer_than_itself(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    take(f, &a, "lock:x"); /* until 1000, remembered until 3000 */
    lapse(f, "lock:x", 1000);
    take_with(f, &a, "lock:x", "1", 10000, false);
    assert_false(give(f, &a, "lock:x"));
    pass(f, 9999);
    assert_int_equal(stats(f).claims, 1);
    lapse(f, "lock:x", 1);
    assert_int_equal(stats(f).claims, 0); /* else until 31000 */
    take(f, &a, "lock:x");
    assert_true(give(f, &a, "lock:x"));
}

/* C3 also holds for an older claim of another session, which may be known as a single worker. */
static void c3_holds_for_the_session_that_releases(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    show_own(f, &a, &b, "lock:x", ROW);
    engine_session_overlapped(f->engine, &b);
    take(f, &a, "lock:x"); /* remembered for a minute */
    lapse(f, "lock:x", 1000);
    take_with(f, &c, "lock:x", "1", 100000, false);
    assert_false(give(f, &b, "lock:x"));
    lapse(f, "lock:x", 100000);
    assert_int_equal(stats(f).claims, 0);
}

static void c4_two_crossings_make_a_pool(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &b, "lock:x");
    assert_true(give(f, &b, "lock:x"));
    take(f, &a, "lock:x");
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(pooled(f), 0);
    assert_int_equal(stats(f).claims, 0);
    take(f, &a, "lock:x");
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(pooled(f), 1);
    assert_int_equal(incidents(f, INCIDENT_SHARED), 1);
    assert_int_equal(f->note_count, 1); /* and nothing else */
    /* A workload that shares is reported once. */
    take(f, &a, "lock:x");
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(f->note_count, 1);
}

/* An operator's redis-cli, a clean-up job: where the holder's session is one worker's it is no evidence, and the
 * holder's own release is still to come. */
static void c4_who_never_tried_proves_nothing_against_an_own_session(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, cli;
    uint64_t used;
    open_two(f, &a, &b);
    open_as(f, &cli, 3, "app");
    show_own(f, &a, &b, "lock:x", ROW);
    for (int i = 0; i < 3; i++) {
        uint64_t claim = take(f, &a, "lock:x");
        assert_true(give_by(f, &cli, "lock:x", &used));
        assert_int_equal(used, 0);
        assert_int_equal(stats(f).leases, 0);
        take(f, &b, "lock:x");
        assert_false(give_by(f, &a, "lock:x", &used));
        assert_int_equal(used, claim);
        assert_true(give(f, &b, "lock:x"));
        pass(f, 10);
    }
    assert_int_equal(incidents(f, INCIDENT_BELIEVED), 3);
    assert_int_equal(votes(f, &a, "lock:x"), 0);
    /* The release is expected for no longer than a lease. */
    take(f, &a, "lock:x");
    assert_true(give(f, &cli, "lock:x"));
    pass(f, 999);
    assert_int_equal(stats(f).claims, 1);
    pass(f, 1);
    assert_int_equal(stats(f).claims, 0);
}

/* A pool's fresh connection has never tried either, and the release was its holder's. */
static void c4_who_never_tried_is_a_crossing_where_nothing_is_known(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, cli;
    open_two(f, &a, &b);
    open_as(f, &cli, 3, "app");
    take(f, &a, "lock:x");
    assert_true(give(f, &cli, "lock:x"));
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(votes(f, &a, "lock:x"), 1);
    assert_int_equal(pooled(f), 0);
    take(f, &b, "lock:x");
    assert_true(give(f, &cli, "lock:x"));
    assert_int_equal(pooled(f), 1);
    assert_int_equal(incidents(f, INCIDENT_BELIEVED), 2);
}

/* Where losers release, workers have connections of their own: an operator's release is none of theirs. */
static void c4_who_never_tried_proves_nothing_where_losers_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, cli;
    uint64_t used;
    open_two(f, &a, &b);
    open_as(f, &cli, 3, "app");
    show_losers_release(f, &a, &b, "lock:x");
    uint64_t claim = take(f, &a, "lock:x");
    assert_true(give(f, &cli, "lock:x"));
    assert_int_equal(votes(f, &a, "lock:x"), 0);
    take(f, &b, "lock:x");
    assert_false(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, claim);
}

/* The holder's release is to come also where the lock would never have ended by itself. */
static void c4_a_lock_without_an_end_has_its_release_to_come(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, cli;
    uint64_t used;
    f->rule.lease_ms = 0;
    open_two(f, &a, &b);
    open_as(f, &cli, 3, "app");
    show_own(f, &a, &b, "lock:x", ROW);
    uint64_t claim = take_with(f, &a, "lock:x", "1", -1, false);
    pass(f, 60000);
    assert_true(give(f, &cli, "lock:x"));
    take_with(f, &b, "lock:x", "1", -1, false);
    assert_false(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, claim);
    assert_true(give(f, &b, "lock:x"));
}

/* Some send two, at once: the second is no holder's. */
static void c4_a_second_release_in_a_row_is_refused_at_once_alone(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    enum { SOON_MS = 1 };
    for (int64_t ms = SOON_MS; ms <= SOON_MS + 1; ms++) {
        take(f, &a, "lock:x");
        attempt(f, &c, "lock:x");
        assert_true(give(f, &a, "lock:x"));
        take(f, &b, "lock:x");
        pass(f, ms);
        bool later = ms > SOON_MS;
        assert_int_equal(give(f, &a, "lock:x"), later);
        assert_int_equal(votes(f, &a, "lock:x"), later);
        assert_int_equal(lease_of("lock:x")->suspects, !later);
        assert_int_equal(give(f, &b, "lock:x"), !later);
        pass(f, 1000);
    }
}

/* The holder has not had its grant for a round trip: the release cannot be its own. After that it may be, over a pool.
 */
static void c4_a_second_release_in_a_row_is_refused_within_a_round_trip(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    enum { SOON_MS = 1, TRIP_MS = 20 };
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    a.shortest_trip_ms = TRIP_MS;
    static const struct {
        const char *key; /* each of a workload of its own */
        int64_t ms;
        bool freed;
    } CASES[] = {{"lock:x", SOON_MS + TRIP_MS, false}, {"lock:yy", SOON_MS + TRIP_MS + 1, true}};
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        take(f, &a, CASES[i].key);
        attempt(f, &c, CASES[i].key);
        assert_true(give(f, &a, CASES[i].key));
        take(f, &b, CASES[i].key);
        pass(f, CASES[i].ms);
        assert_int_equal(give(f, &a, CASES[i].key), CASES[i].freed);
    }
    /* If it was the holder's all the same, its lease stands until B2 ends it, and not until its own end. */
    lose_row(f, &c, CASES[0].key, PATIENCE);
    assert_true(attempt(f, &c, CASES[0].key));
}

/* One worker takes back what it has counted, and no more. */
static void c4_counted_down_twice_in_a_row_is_a_crossing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    for (unsigned i = 0; i < 2; i++) {
        run(f, &b, LOCK_COUNT_UP, "lock:x", LOCK_COUNTED, f->fence);
        run(f, &b, LOCK_COUNT_DOWN, "lock:x", LOCK_COUNTED, f->fence);
        assert_int_equal(pooled(f), 0);
        run(f, &b, LOCK_COUNT_DOWN, "lock:x", LOCK_COUNTED, f->fence);
        assert_int_equal(pooled(f), i);
    }
}

/* A holder may have counted several times. */
static void c4_a_holders_counts_down_are_none(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &b, "lock:x");
    run(f, &a, LOCK_COUNT_UP, "lock:x", LOCK_COUNTED, f->fence);
    run(f, &a, LOCK_COUNT_DOWN, "lock:x", LOCK_COUNTED, f->fence);
    run(f, &b, LOCK_COUNT_DOWN, "lock:x", LOCK_RELEASED, f->fence);
    free_lock("lock:x");
    take(f, &a, "lock:x");
    for (unsigned i = 0; i < 4; i++)
        run(f, &a, LOCK_COUNT_UP, "lock:x", LOCK_DONE, f->fence);
    for (unsigned i = 0; i < 4; i++)
        run(f, &a, LOCK_COUNT_DOWN, "lock:x", LOCK_DONE, f->fence);
    run(f, &a, LOCK_COUNT_DOWN, "lock:x", LOCK_RELEASED, f->fence);
    assert_int_equal(pooled(f), 0);
}

/* A release that did not reach Redis: nothing was released, and its repeat is no second one. */
static void what_was_not_sent_is_no_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    take(f, &a, "lock:x");
    attempt(f, &c, "lock:x");
    for (int i = 0; i < 10; i++)
        assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:x"), "believe");
    for (int i = 0; i < 10; i++)
        run(f, &c, LOCK_RELEASE, "lock:x", LOCK_ERROR, 0);
    assert_int_equal(pooled(f), 0);
    assert_true(give(f, &a, "lock:x"));
}

static void owner_connection_knows_no_crossing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    f->rule.owner = LOCK_OWNER_CONNECTION;
    open_two(f, &a, &b);
    engine_session_overlapped(f->engine, &b);
    for (int i = 0; i < 5; i++) {
        take(f, &b, "lock:x");
        assert_true(give(f, &b, "lock:x"));
        take(f, &a, "lock:x");
        assert_false(give(f, &b, "lock:x"));
        assert_true(give(f, &a, "lock:x"));
    }
    assert_int_equal(pooled(f), 0);
    assert_int_equal(incidents(f, INCIDENT_FOREIGN_RELEASE), 5);
}

/* No colleagues can exist, so a session's own attempt does not shorten the memory of its lease. */
static void owner_connection_remembers_a_lease_that_its_session_asked_for(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    f->rule.owner = LOCK_OWNER_CONNECTION;
    f->rule.claim_memory_ms = 0;
    open_two(f, &a, &b);
    uint64_t late = take(f, &a, "lock:x");
    assert_false(attempt(f, &a, "lock:x"));
    lapse(f, "lock:x", 2000);
    take(f, &b, "lock:x");
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), late);
}

static void what_may_be_an_attempt_is_none_of_the_holders(void **state) {
    static const enum lock_verb VERBS[] = {LOCK_REPLACE, LOCK_SWAP, LOCK_COUNT_UP};
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    engine_session_overlapped(f->engine, &a);
    engine_session_overlapped(f->engine, &b);
    uint64_t claim = take(f, &a, "lock:x");
    for (size_t i = 0; i < sizeof(VERBS) / sizeof(VERBS[0]); i++) {
        assert_int_equal(would_use(f, &b, VERBS[i], "lock:x"), 0);
        assert_string_equal(would_right(f, &b, VERBS[i], "lock:x"), "claim");
        assert_int_equal(would_use(f, &a, VERBS[i], "lock:x"), claim);
    }
    assert_int_equal(would_use(f, &b, LOCK_REWRITE, "lock:x"), claim);
    f->rule.owner = LOCK_OWNER_CLIENT;
    for (size_t i = 0; i < sizeof(VERBS) / sizeof(VERBS[0]); i++)
        assert_int_equal(would_use(f, &b, VERBS[i], "lock:x"), claim);
}

/* SET XX that is refused, with as many refused releases as the script has counted. */
static void rewrite_refused(struct fixture *f, struct lock_session *s, const char *key, uint32_t suspects) {
    struct held *h = lease_of(key);
    struct lock_plan plan;
    begin(f, s, LOCK_REWRITE, key, &plan);
    assert_int_equal(plan.right, RIGHT_SUSPECT);
    h->suspects = suspects;
    struct lock_result r = refusal(h, s);
    finish(f, s, &plan, &r);
}

static void an_extension_that_is_refused_is_no_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    rewrite_refused(f, &b, "lock:x", 0);
    lose_row(f, &a, "lock:x", 5);
    rewrite_refused(f, &b, "lock:x", 1); /* one that shortens may be */
    lose_row(f, &a, "lock:x", PATIENCE);
    assert_true(attempt(f, &a, "lock:x"));
}

/* SET XX over the session's own lease, which leaves it that time. */
static void rewrite(struct fixture *f, struct lock_session *s, const char *key, int64_t pttl_ms) {
    struct lock_plan plan;
    struct lock_result r = result(LOCK_DONE, lease_of(key)->fence);
    r.pttl_ms = pttl_ms;
    begin(f, s, LOCK_REWRITE, key, &plan);
    finish(f, s, &plan, &r);
}

static void a_lease_that_was_cut_short_needs_no_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    take(f, &a, "lock:x");
    rewrite(f, &a, "lock:x", 900); /* no release: a late one is expected */
    lapse(f, "lock:x", 900);
    assert_int_equal(stats(f).claims, 1);
    take(f, &a, "lock:x");
    rewrite(f, &a, "lock:x", 5);
    rewrite(f, &a, "lock:x", 1000); /* and longer again */
    lapse(f, "lock:x", 1000);
    assert_int_equal(stats(f).claims, 1);
    take(f, &a, "lock:x");
    rewrite(f, &a, "lock:x", 5);
    lapse(f, "lock:x", 6);
    assert_int_equal(stats(f).claims, 0);
}

/* ---- evidence: what comes behind lost attempts ---------------------------------------------------- */

/* Has lost attempts of c's be followed by a release at once. The lease changes meanwhile, so that D1 says nothing. */
static void lose_and_release(struct fixture *f, struct lock_session *holder, struct lock_session *c, const char *key,
                             int times) {
    for (int i = 0; i < times; i++) {
        for (int n = 0; n < 2; n++) {
            free_lock(key);
            take_with(f, holder, key, "1", 100000, false);
        }
        assert_false(attempt(f, c, key));
        assert_false(give(f, c, key));
    }
}

/* And others by nothing, for longer than at once. */
static void lose_in_silence(struct fixture *f, struct lock_session *c, const char *key, int times) {
    for (int i = 0; i < times; i++) {
        assert_false(attempt(f, c, key));
        pass(f, AT_ONCE_MS + 1);
    }
}

/* The least evidence that decides, and one step before. A release that may wait is held back. */
static void c4_so_much_evidence_decides(void **state) {
    static const struct {
        int quiet_first, followed, quiet;
        enum said at_last; /* by a release that may not wait */
    } CASES[] = {
        {0, 0, 0, REFUSED}, {0, 3, 0, REFUSED},     {1, 6, 0, REFUSED},     {0, 0, 1, REFUSED},
        {0, 2, 2, REFUSED}, {0, 1, 2, CARRIED_OUT}, {0, 0, 2, CARRIED_OUT},
    };
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        another_workload(f, (unsigned)i);
        take_with(f, &a, "lock:x", "1", 100000, false);
        lose_in_silence(f, &c, "lock:x", CASES[i].quiet_first);
        lose_and_release(f, &a, &c, "lock:x", CASES[i].followed);
        lose_in_silence(f, &c, "lock:x", CASES[i].quiet);
        attempt(f, &b, "lock:x");
        assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
        assert_int_equal(give(f, &b, "lock:x"), CASES[i].at_last == CARRIED_OUT);
        assert_int_equal(votes(f, &b, "lock:x"), CASES[i].at_last == CARRIED_OUT);
        free_lock("lock:x");
        pass(f, 300000);
    }
}

enum { HOLD_LOSSES = 12, HELD_SEEN_MS = 100 };

/* A release is held back until so many attempts were lost in silence: losers do not release. */
static void c4_a_release_is_held_back_until_losses_are_quiet(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    take_with(f, &a, "lock:x", "1", 100000, false);
    lose_in_silence(f, &c, "lock:x", 5); /* earlier ones do not count */
    attempt(f, &b, "lock:x");
    assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
    assert_int_equal(stats(f).claims, 1);
    for (int i = 0; i < HOLD_LOSSES; i++) /* the last one is still open */
        assert_false(attempt(f, &c, "lock:x"));
    pass(f, AT_ONCE_MS);
    assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
    pass(f, 1);
    assert_int_equal(ask(f, &b, "lock:x"), CARRIED_OUT);
    assert_int_equal(votes(f, &b, "lock:x"), 1);
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(f->note_count, 0);
}

/* A second release for one lease, another loser's or the holder's own, shows that the one held back was a loser's. */
static void c4_a_second_release_for_a_lease_shows_that_losers_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    for (unsigned i = 0; i < 2; i++) {
        another_workload(f, i);
        take_with(f, &a, "lock:x", "1", 100000, false);
        attempt(f, &b, "lock:x");
        attempt(f, &c, "lock:x");
        assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
        pass(f, HELD_SEEN_MS);
        assert_false(losers_release(f, &b, "lock:x"));
        assert_int_equal(i == 0 ? give(f, &a, "lock:x") : give(f, &c, "lock:x"), i == 0);
        assert_true(losers_release(f, &b, "lock:x"));
        assert_int_equal(ask(f, &b, "lock:x"), REFUSED);
        /* Which is known from then on, whenever a release comes. */
        free_lock("lock:x");
        take(f, &a, "lock:x");
        attempt(f, &b, "lock:x");
        pass(f, 500);
        assert_int_equal(ask(f, &b, "lock:x"), REFUSED);
        assert_int_equal(votes(f, &b, "lock:x"), 0);
        assert_true(give(f, &a, "lock:x"));
        pass(f, 300000);
    }
}

/* A busy machine may delay a loser's release for any time. So it is held back whenever it comes, and one release that
 * comes late makes no crossing. */
static void c4_a_losers_late_release_is_held_back_too(void **state) {
    static const int64_t LATE_MS[] = {101, 400, 20000};
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (unsigned i = 0; i < sizeof(LATE_MS) / sizeof(LATE_MS[0]); i++) {
        another_workload(f, 2 * i);
        take_with(f, &a, "lock:x", "1", 100000, false);
        attempt(f, &b, "lock:x");
        pass(f, LATE_MS[i]);
        assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
        pass(f, HELD_SEEN_MS);
        assert_true(give(f, &a, "lock:x"));
        assert_true(losers_release(f, &b, "lock:x"));
        assert_int_equal(ask(f, &b, "lock:x"), REFUSED);
        assert_int_equal(votes(f, &a, "lock:x"), 0);
        /* No second release comes: it was the holder's. */
        another_workload(f, 2 * i + 1);
        take_with(f, &a, "lock:x", "1", 100000, false);
        attempt(f, &b, "lock:x");
        pass(f, LATE_MS[i]);
        assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
        pass(f, 250);
        assert_int_equal(ask(f, &b, "lock:x"), CARRIED_OUT);
        assert_int_equal(votes(f, &a, "lock:x"), 1);
        pass(f, 300000);
    }
}

/* Not where the first one is waited for no more. */
static void c4_a_second_release_says_nothing_much_later(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
    pass(f, HELD_SEEN_MS + 1);
    assert_true(give(f, &a, "lock:x"));
    assert_false(losers_release(f, &b, "lock:x"));
    /* Nor where it was decided. */
    take(f, &a, "lock:x");
    assert_int_equal(ask(f, &b, "lock:x"), REFUSED);
    assert_true(give(f, &a, "lock:x"));
    assert_false(losers_release(f, &b, "lock:x"));
}

static void c4_a_release_is_held_back_for_so_long(void **state) {
    static const struct {
        uint16_t trip_ms;
        int64_t ms;
    } CASES[] = {{0, 250}, {30, 550}, {60, 850}, {200, 1000}};
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        another_workload(f, (unsigned)i);
        b.trip_ms = CASES[i].trip_ms;
        take_with(f, &a, "lock:x", "1", 100000, false);
        attempt(f, &b, "lock:x");
        assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
        pass(f, CASES[i].ms - 1);
        assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
        pass(f, 1);
        assert_int_equal(ask(f, &b, "lock:x"), REFUSED);
        assert_int_equal(lease_of("lock:x")->suspects, 1);
        assert_int_equal(incidents(f, INCIDENT_FOREIGN_RELEASE), i + 1);
        assert_true(give(f, &a, "lock:x"));
        pass(f, 300000);
    }
}

/* The holder's session lost an attempt on its own lease. It may be the holder's nested one; behind a longer row of
 * losses it shows that the session carries other workers' commands. */
static void c4_a_lease_that_lost_to_itself_counts_behind_a_long_row(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (int row = 1; row <= 2; row++) {
        another_workload(f, (unsigned)row);
        take_with(f, &a, "lock:x", "1", 100000, false);
        assert_false(attempt(f, &a, "lock:x"));
        lose_row(f, &b, "lock:x", row);
        assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
        pass(f, 250);
        assert_int_equal(ask(f, &b, "lock:x"), row == 1 ? REFUSED : CARRIED_OUT);
        free_lock("lock:x");
        pass(f, 300000);
    }
}

/* The lease that a held back release may be meant for is over: it is no other one's. */
static void c4_a_release_that_was_held_back_is_for_no_later_lease(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c, d;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    open_as(f, &d, 4, "app");
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    pass(f, 2);
    assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
    assert_true(give(f, &a, "lock:x"));
    take(f, &c, "lock:x");
    lose_in_silence(f, &d, "lock:x", 5); /* else it would be believed */
    assert_int_equal(ask(f, &b, "lock:x"), REFUSED);
    assert_true(give(f, &c, "lock:x"));
    /* Of a lock that is free nothing is waited for. */
    f->rule.hash = 1;
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(ask(f, &b, "lock:x"), REFUSED);
}

/* A command that can't be held back is answered at once; if the facts decide, no command is held back. */
static void c4_some_are_never_held_back(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    struct lock_result unsent = result(LOCK_NOT_SENT, 0);
    open_two(f, &a, &b);
    take_with(f, &a, "lock:x", "1", 100000, false);
    attempt(f, &b, "lock:x");
    assert_string_equal(would_right(f, &b, LOCK_RELEASE, "lock:x"), "suspect");
    b.patient = true;
    queue(f, &b, LOCK_RELEASE, "lock:x", &plan); /* in a transaction */
    assert_false(plan.held_back);
    assert_int_equal(plan.right, RIGHT_SUSPECT);
    finish(f, &b, &plan, &unsent);
    begin(f, &b, LOCK_EXTEND, "lock:x", &plan);
    assert_false(plan.held_back);
    finish(f, &b, &plan, &unsent);
    attempt(f, &b, "lock:x");
    assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
    /* The holder's own. */
    assert_int_equal(ask(f, &a, "lock:x"), CARRIED_OUT);
    static const enum lock_owner OWNERS[] = {LOCK_OWNER_CONNECTION, LOCK_OWNER_CLIENT, LOCK_OWNER_ANY};
    for (size_t i = 0; i < sizeof(OWNERS) / sizeof(OWNERS[0]); i++) {
        f->rule.owner = OWNERS[i];
        take(f, &a, "lock:x");
        attempt(f, &b, "lock:x");
        assert_int_not_equal(ask(f, &b, "lock:x"), HELD_BACK);
        free_lock("lock:x");
    }
}

/* A connection that is one worker's carries no colleague's release, whenever it comes. */
static void c4_over_a_session_that_is_one_workers_a_losers_release_is_refused(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    show_own(f, &a, &b, "lock:x", ROW);
    for (int64_t ms = 0; ms < 1000; ms += 300) {
        take(f, &a, "lock:x");
        attempt(f, &b, "lock:x");
        pass(f, ms);
        assert_int_equal(ask(f, &b, "lock:x"), REFUSED);
        assert_true(give(f, &a, "lock:x"));
    }
    assert_int_equal(votes(f, &a, "lock:x"), 0);
}

/* A pooled connection carries a holder's release at any moment, a loser sends its own at once. */
static void c4_a_losers_release_is_believed_later(void **state) {
    static const uint16_t TRIPS_MS[] = {0, 10};
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (size_t i = 0; i < 2; i++) {
        int64_t at_once_ms = AT_ONCE_MS + 2 * TRIPS_MS[i];
        another_workload(f, (unsigned)i);
        b.trip_ms = TRIPS_MS[i];
        take(f, &a, "lock:x");
        attempt(f, &b, "lock:x");
        pass(f, at_once_ms);
        assert_false(give(f, &b, "lock:x"));
        assert_int_equal(votes(f, &a, "lock:x"), 0);
        for (unsigned n = 1; n <= 2; n++) {
            free_lock("lock:x");
            take(f, &a, "lock:x");
            attempt(f, &b, "lock:x");
            pass(f, at_once_ms + 1);
            assert_true(give(f, &b, "lock:x"));
            assert_int_equal(votes(f, &a, "lock:x"), n);
        }
        assert_int_equal(pooled(f), i + 1);
        pass(f, 300000);
    }
}

/* Workers with a connection each: a delayed loser frees the holder's lease, and the holder's own release then frees the
 * loser's. Both have one cause, and two causes make a pool. */
static void c4_the_release_of_a_holder_that_lost_its_lease_is_no_crossing(void **state) {
    enum { DELAYED_MS = 300 };
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    pass(f, DELAYED_MS);
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(votes(f, &a, "lock:x"), 1);
    take(f, &b, "lock:x");
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(votes(f, &a, "lock:x"), 1);
    assert_int_equal(pooled(f), 0);
    /* An attempt since: its worker is done with the first lease, so the next release over this session is another
     * worker's. */
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    pass(f, DELAYED_MS);
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(pooled(f), 1);
}

/* So one wrong release leads to no second one: where workers have a connection each, the holder's own release is held
 * back, and the release of the lease's own holder shows whose it is. In a pool no such release comes. */
static void c4_the_release_of_a_holder_that_lost_its_lease_is_held_back(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (unsigned pool = 0; pool <= 1; pool++) {
        another_workload(f, pool);
        take_with(f, &a, "lock:x", "1", 100000, false);
        attempt(f, &b, "lock:x");
        pass(f, AT_ONCE_MS + 1);
        assert_true(give(f, &b, "lock:x"));
        pass(f, 10);
        take_with(f, &b, "lock:x", "1", 100000, false);
        pass(f, 10);
        assert_int_equal(ask(f, &a, "lock:x"), HELD_BACK);
        if (pool) {
            pass(f, 250);
            assert_int_equal(ask(f, &a, "lock:x"), CARRIED_OUT);
            assert_int_equal(votes(f, &a, "lock:x"), 1);
        } else {
            pass(f, 10);
            assert_true(give(f, &b, "lock:x"));
            take_with(f, &b, "lock:x", "1", 100000, false);
            assert_int_equal(ask(f, &a, "lock:x"), REFUSED);
            assert_true(losers_release(f, &a, "lock:x"));
            assert_true(give(f, &b, "lock:x"));
        }
        pass(f, 300000);
    }
}

/* A loser's release is decided about while no session holds the lock. It meets an acquisition that was on its way. */
static void c4_a_losers_release_while_nobody_holds_ends_no_lease(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    struct lock_plan plan;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    lapse(f, "lock:x", 1000);
    begin(f, &b, LOCK_RELEASE, "lock:x", &plan);
    take(f, &c, "lock:x");
    struct lock_result r = released_by(f, lease_of("lock:x"), &b, &plan);
    finish(f, &b, &plan, &r);
    assert_int_equal(r.outcome, LOCK_HELD);
    assert_int_equal(votes(f, &a, "lock:x"), 0);
    assert_true(give(f, &c, "lock:x"));
}

/* A key speaks for itself once enough was lost there: several applications may work under one workload. */
static void c4_a_contended_key_is_judged_by_itself(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    lose_and_release(f, &a, &c, "lock:1", 24);
    show_losers_release(f, &a, &b, "lock:1");
    take_with(f, &a, "lock:2", "1", 100000, false);
    lose_in_silence(f, &c, "lock:2", 6);
    attempt(f, &b, "lock:2");
    pass(f, 2);
    assert_false(give(f, &b, "lock:2")); /* seven losses there, with this loss: the workload decides */
    lose_in_silence(f, &c, "lock:2", 1);
    attempt(f, &b, "lock:2");
    pass(f, 2);
    assert_true(give(f, &b, "lock:2"));
    /* And the other key still for itself. */
    take_with(f, &a, "lock:1", "1", 100000, false);
    assert_false(attempt(f, &b, "lock:1"));
    pass(f, 100);
    assert_false(give(f, &b, "lock:1"));
}

/* Where a second release came for one lease, the key's quiet losses say no more that losers do not release there. */
static void c4_a_second_release_outweighs_quiet_losses(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    take_with(f, &a, "lock:x", "1", 100000, false);
    lose_in_silence(f, &c, "lock:x", 20);
    attempt(f, &b, "lock:x");
    assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(ask(f, &b, "lock:x"), REFUSED);
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    pass(f, 100);
    assert_false(give(f, &b, "lock:x"));
    assert_true(give(f, &a, "lock:x"));
}

/* Where losers are quiet, a release right behind a loss that cannot wait is believed. */
static void c4_where_losers_are_quiet_a_release_is_believed(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    take_with(f, &a, "lock:x", "1", 100000, false);
    lose_in_silence(f, &c, "lock:x", 6);
    assert_true(give(f, &a, "lock:x"));
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    pass(f, AT_ONCE_MS);
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(votes(f, &b, "lock:x"), 1);
}

/* What sets an expiry is a loser's at once behind the loss alone, unless the session is one worker's. */
static void f_a_losers_expire_is_believed_later(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    pass(f, AT_ONCE_MS);
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "leased");
    assert_string_equal(would_right(f, &b, LOCK_REWRITE, "lock:x"), "suspect");
    pass(f, 1);
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "later");
    assert_string_equal(would_right(f, &b, LOCK_REWRITE, "lock:x"), "believe");
    b.trip_ms = 3;
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "leased");
    b.trip_ms = 0;
    assert_true(give(f, &a, "lock:x"));
    show_own(f, &a, &b, "lock:x", ROW);
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    pass(f, 100);
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "leased");
    assert_string_equal(would_right(f, &b, LOCK_REWRITE, "lock:x"), "suspect");
}

/* ---- D: losers that release --------------------------------------------------------------------- */

/* Workers of one connection whose losers also release, until that is known. */
static void teach_releasing_losers(struct fixture *f, struct lock_session *s, const char *key) {
    for (int i = 0; i < 6; i++) {
        take(f, s, key);
        attempt(f, s, key);
        attempt(f, s, key);
        give(f, s, key); /* a loser's: it frees the lock until more is known */
        free_lock(key);
        give(f, s, key);
        give(f, s, key);
    }
}

static void d_a_lost_attempt_uses_up_a_release(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    uint64_t used;
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    teach_releasing_losers(f, &a, "lock:x");
    pass(f, 10000);
    uint64_t claim = take(f, &a, "lock:x");
    attempt(f, &a, "lock:x");
    attempt(f, &a, "lock:x");
    assert_false(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, 0);
    assert_false(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, 0);
    assert_true(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, claim);
    /* Expected for a quarter of the lease. */
    claim = take(f, &a, "lock:x");
    attempt(f, &a, "lock:x");
    pass(f, 251);
    assert_true(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, claim);
}

static void d_losers_that_go_away_use_up_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    for (int i = 0; i < 50; i++) {
        take(f, &a, "lock:x");
        for (int n = 0; n < i % 5; n++)
            attempt(f, &a, "lock:x");
        assert_true(give(f, &a, "lock:x"));
    }
}

static void d_where_losers_release_a_refused_one_is_no_holders(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (int i = 0; i < 10; i++) {
        take(f, &a, "lock:x");
        attempt(f, &b, "lock:x");
        assert_false(give(f, &b, "lock:x"));
        assert_true(give(f, &a, "lock:x"));
    }
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    assert_false(give(f, &b, "lock:x"));
    assert_int_equal(lease_of("lock:x")->suspects, 1);
    assert_false(attempt(f, &a, "lock:x"));
    assert_int_equal(pooled(f), 0);
}

static void d_two_releases_in_a_row_show_a_pool_by_their_number(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (int i = 0; i < 3; i++) {
        take(f, &a, "lock:x");
        attempt(f, &b, "lock:x");
        assert_false(give(f, &b, "lock:x"));
        if (pooled(f))
            break;
        give(f, &b, "lock:x");
        if (lease_of("lock:x")->token)
            give(f, &a, "lock:x");
        free_lock("lock:x");
    }
    assert_int_equal(pooled(f), 1);
    assert_int_equal(incidents(f, INCIDENT_SHARED), 1);
}

/* ---- leases that end --------------------------------------------------------------------------- */

/* A holder that is late makes its lease end just so: behind a refused release that was a loser's. */
static void e_a_suspicious_lease_that_ends_says_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    uint64_t used;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    for (int i = 0; i < 5; i++) {
        take(f, &a, "lock:x");
        attempt(f, &b, "lock:x");
        assert_false(give(f, &b, "lock:x"));
        uint64_t late = lease_of("lock:x")->token;
        lapse(f, "lock:x", 1000);
        assert_int_equal(stats(f).claims, 1);
        take(f, &c, "lock:x");
        assert_false(give_by(f, &a, "lock:x", &used));
        assert_int_equal(used, late);
        assert_true(give(f, &c, "lock:x"));
        assert_int_equal(stats(f).claims, 0);
    }
    assert_int_equal(votes(f, &a, "lock:x"), 0);
}

/* Late writes: a session whose lease is over without a release of its own is late, whether or not the lock is held. */
static void e_a_write_is_late_all_the_same(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, stranger, colleague;
    struct lock_key key = key_of("lock:x");
    open_two(f, &a, &b);
    open_as(f, &stranger, 3, "other");
    open_as(f, &colleague, 4, "app");
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    assert_false(give(f, &b, "lock:x"));
    uint64_t lost = lease_of("lock:x")->fence;
    lapse(f, "lock:x", 1000);
    take(f, &stranger, "lock:x");
    struct lock_writing w = engine_writing(f->engine, &a, &key, f->now_ms);
    assert_int_equal(w.how, WRITER_LATE);
    assert_int_equal(w.fence, lost);
    assert_int_equal(engine_writing(f->engine, &b, &key, f->now_ms).how, WRITER_NONE);
    assert_true(give(f, &stranger, "lock:x"));
    take(f, &colleague, "lock:x");
    w = engine_writing(f->engine, &a, &key, f->now_ms);
    assert_int_equal(w.how, WRITER_LATE);
    assert_int_equal(w.fence, lost);
}

/* A session whose release is refused has lost its lease all the same: its writes are late until it acquires again. */
static void e_a_refused_release_leaves_its_session_late(void **state) {
    struct fixture *f = *state;
    struct lock_session a, stranger;
    struct lock_key key = key_of("lock:x");
    f->rule.fenced = true;
    open_as(f, &a, 1, "app");
    open_as(f, &stranger, 2, "other");
    take(f, &a, "lock:x");
    uint64_t lost = lease_of("lock:x")->fence;
    lapse(f, "lock:x", 1000);
    take(f, &stranger, "lock:x");
    for (unsigned i = 0; i < 2; i++) {
        assert_false(give(f, &a, "lock:x"));
        struct lock_writing w = engine_writing(f->engine, &a, &key, f->now_ms);
        assert_int_equal(w.how, WRITER_LATE);
        assert_int_equal(w.fence, lost);
    }
    assert_true(give(f, &stranger, "lock:x"));
    assert_false(give(f, &a, "lock:x"));
    assert_int_equal(engine_writing(f->engine, &a, &key, f->now_ms).how, WRITER_LATE);
    take(f, &a, "lock:x");
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(engine_writing(f->engine, &a, &key, f->now_ms).how, WRITER_NONE);
}

/* A reload brings a fence. One lease is known by then, and one is answered later, under the rules from before. */
static void e_a_fence_that_comes_counts_for_earlier_leases(void **state) {
    struct fixture *f = *state;
    static const char *const RULE[] = {"lock:*"}, *const FENCE[] = {"data:*", "by", "lock:*"};
    struct lock_rules *before = lock_rules_new(), *after = lock_rules_new();
    struct lock_session a, b;
    struct lock_key keys[] = {key_of("lock:x"), key_of("lock:y")};
    struct lock_plan plan;
    char error[128];
    assert_null(lock_rules_add(before, RULE, 1, error, sizeof(error)));
    assert_null(lock_rules_add(after, RULE, 1, error, sizeof(error)));
    assert_null(lock_rules_add_fence(after, FENCE, 3, error, sizeof(error)));
    open_two(f, &a, &b);
    for (unsigned i = 0; i < 2; i++) {
        struct lock_result r = result(LOCK_GRANTED, ++f->fence);
        r.pttl_ms = 1000;
        engine_begin(f->engine, &a, LOCK_ACQUIRE, &keys[i], lock_rules_get(before, 0), 3, false, f->now_ms, &plan);
        if (i == 1) {
            lock_rules_fenced_by(before, after);
            engine_fences_came(f->engine, after);
        }
        finish(f, &a, &plan, &r);
    }
    for (unsigned i = 0; i < 2; i++) { /* a release by another connection is believed */
        struct lock_result r = result(LOCK_RELEASED, f->fence - 1 + i);
        engine_begin(f->engine, &b, LOCK_RELEASE, &keys[i], lock_rules_get(after, 0), 3, false, f->now_ms, &plan);
        finish(f, &b, &plan, &r);
        struct lock_writing w = engine_writing(f->engine, &a, &keys[i], f->now_ms);
        assert_int_equal(w.how, WRITER_LATE);
        assert_int_equal(w.fence, r.fence);
    }
    lock_rules_unref(before);
    lock_rules_unref(after);
}

/* The next holder may be faster than the clock here. */
static void an_overrun_is_told_by_who_acquires_next(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    assert_true(give(f, &a, "lock:x")); /* its releases are expected */
    take(f, &a, "lock:x");
    f->now_ms += 990;
    free_lock("lock:x");
    take(f, &b, "lock:x");
    assert_int_equal(incidents(f, INCIDENT_OVERRUN), 1);
}

static void the_longest_expiry_of_all_is_one(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    begin(f, &b, LOCK_EXTEND, "lock:x", &plan);
    struct lock_result r = result(LOCK_ADOPTED, f->fence);
    r.pttl_ms = INT64_MAX - 1;
    finish(f, &b, &plan, &r);
    pass(f, 1000000);
    assert_true(give(f, &a, "lock:x"));
}

/* ---- F: extended -------------------------------------------------------------------------------- */

static void f_who_may_set_an_expiry(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, dog, pooled;
    open_two(f, &a, &b);
    open_as(f, &dog, 3, "app");
    open_as(f, &pooled, 4, "app");
    engine_session_overlapped(f->engine, &pooled);
    uint64_t claim = take(f, &a, "lock:x");
    assert_int_equal(would_use(f, &a, LOCK_EXTEND, "lock:x"), claim);
    assert_string_equal(would_right(f, &a, LOCK_EXTEND, "lock:x"), "leased");
    /* A watchdog's: if the lease ends later by it. */
    assert_int_equal(would_use(f, &dog, LOCK_EXTEND, "lock:x"), 0);
    assert_string_equal(would_right(f, &dog, LOCK_EXTEND, "lock:x"), "later");
    attempt(f, &b, "lock:x");
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "leased");
    assert_int_equal(would_use(f, &pooled, LOCK_EXTEND, "lock:x"), claim);
    assert_string_equal(would_right(f, &pooled, LOCK_EXTEND, "lock:x"), "believe");
    /* A session with a claim of an ended lease has none to the live lease. */
    assert_true(give(f, &a, "lock:x"));
    take(f, &dog, "lock:x");
    lapse(f, "lock:x", 1000);
    take(f, &a, "lock:x");
    assert_string_equal(would_right(f, &dog, LOCK_EXTEND, "lock:x"), "leased");
    f->rule.owner = LOCK_OWNER_CONNECTION;
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "claim");
}

/* SETNX, then EXPIRE whatever it answered. */
static void f_losers_that_expire_move_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    uint64_t claim = take(f, &a, "lock:x");
    for (int i = 0; i < 6; i++) {
        attempt(f, &a, "lock:x");
        pass(f, 10);
        bool known = i >= 4; /* by four of them */
        struct lock_plan plan;
        struct lock_result r = result(LOCK_DONE, f->fence);
        begin(f, &a, LOCK_EXTEND, "lock:x", &plan);
        if (i != 3) { /* it may say something itself */
            assert_int_equal(plan.claim, known ? 0 : claim);
            assert_string_equal(lock_right_text(plan.right), known ? "leased" : "believe");
        }
        r.outcome = known ? LOCK_HELD : LOCK_DONE;
        finish(f, &a, &plan, &r);
        pass(f, 51);
    }
    /* The holder's, which follows no loss. */
    assert_int_equal(would_use(f, &a, LOCK_EXTEND, "lock:x"), claim);
    attempt(f, &a, "lock:x");
    pass(f, 51); /* more than a twentieth of the lease */
    assert_int_equal(would_use(f, &a, LOCK_EXTEND, "lock:x"), claim);
    /* The session_stats is forgotten where losses are followed by nothing. */
    for (int i = 0; i < 8; i++) {
        attempt(f, &a, "lock:x");
        pass(f, 51);
        would_use(f, &a, LOCK_EXTEND, "lock:x");
    }
    attempt(f, &a, "lock:x");
    assert_int_equal(would_use(f, &a, LOCK_EXTEND, "lock:x"), claim);
}

/* Three quarters of a lease's renewals, each done at once. */
static void renew_for(struct fixture *f, const char *key, uint64_t token, int64_t ms) {
    struct lock_key k = key_of(key);
    for (int64_t step = 0; step < ms; step += 5000) {
        unsigned before = f->renew_count;
        pass(f, 5000);
        if (f->renew_count > before)
            renewed(f, &k, token, LOCK_DONE);
    }
}

/* A session that asks for its own lock for a whole lease does not work under it: it has forgotten its release. */
static void f_renewal_ends_for_who_asks_for_its_own(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    f->rule.max_hold_ms = INT64_MAX / 2;
    show_own(f, &a, &b, "lock:x", ROW);
    uint64_t token = take_with(f, &a, "lock:x", "1", 30000, true);
    renew_for(f, "lock:x", token, 60000); /* it does not ask */
    attempt(f, &a, "lock:x");
    renew_for(f, "lock:x", token, 25000);
    attempt(f, &a, "lock:x");
    unsigned before = f->renew_count;
    renew_for(f, "lock:x", token, 10000);
    assert_int_equal(f->renew_count, before + 1);
    attempt(f, &a, "lock:x"); /* for 35 s */
    before = f->renew_count;
    renew_for(f, "lock:x", token, 30000);
    assert_int_equal(f->renew_count, before);
    assert_int_equal(stats(f).leases, 0);
}

static void f_renewal_goes_on_where_it_may_be_a_colleague_that_asks(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    f->rule.max_hold_ms = INT64_MAX / 2;
    show_own(f, &a, &b, "lock:x", ROW - 1);
    uint64_t token = take_with(f, &a, "lock:x", "1", 30000, true);
    for (int i = 0; i < 20; i++) {
        attempt(f, &a, "lock:x");
        renew_for(f, "lock:x", token, 10000);
    }
    assert_int_equal(stats(f).leases, 1);
}

static void f_renewal_of_a_suspicious_lease_ends_after_ten_leases(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    f->rule.max_hold_ms = INT64_MAX / 2;
    show_own(f, &a, &b, "lock:x", ROW); /* else the lease would make way */
    uint64_t token = take_with(f, &a, "lock:x", "1", 30000, true);
    attempt(f, &b, "lock:x");
    assert_false(give(f, &b, "lock:x"));
    for (int i = 0; i < 30; i++) {
        attempt(f, &b, "lock:x");
        renew_for(f, "lock:x", token, 10000);
    }
    assert_int_equal(stats(f).leases, 1);
    attempt(f, &b, "lock:x");
    renew_for(f, "lock:x", token, 30000);
    assert_int_equal(stats(f).leases, 0);
}

/* ---- G: transactions ----------------------------------------------------------------------------- */

static void g_a_nil_exec_leaves_its_claim_unshown(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan release;
    struct lock_result unsent = result(LOCK_NOT_SENT, 0);
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    uint64_t first = take_with(f, &a, "lock:x", "w1", 1000, false);
    lapse(f, "lock:x", 1000);
    uint64_t second = take_with(f, &a, "lock:x", "w2", 1000, false);
    show_value(f, &a, "lock:x", "w2", f->fence);
    queue(f, &a, LOCK_RELEASE, "lock:x", &release);
    assert_int_equal(release.claim, second);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), second); /* it counts from EXEC on */
    engine_sent(f->engine, &release);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first);
    release.undone = true;
    finish(f, &a, &release, &unsent);
    assert_int_equal(stats(f).claims, 2);
    assert_int_equal(stats(f).leases, 1);
    /* The lease is not the one that was shown any more. */
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), first);
}

static void g_a_nil_exec_drops_a_claim_whose_lease_has_ended(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan release;
    struct lock_result unsent = result(LOCK_NOT_SENT, 0);
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    queue(f, &a, LOCK_RELEASE, "lock:x", &release);
    engine_sent(f->engine, &release);
    lapse(f, "lock:x", 1000);
    release.undone = true;
    finish(f, &a, &release, &unsent);
    assert_int_equal(stats(f).claims, 0);
    /* An EXEC that was not sent at all leaves the claim as it was. */
    uint64_t claim = take(f, &a, "lock:x");
    queue(f, &a, LOCK_RELEASE, "lock:x", &release);
    engine_sent(f->engine, &release);
    lapse(f, "lock:x", 1000);
    finish(f, &a, &release, &unsent);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
}

static void g_a_nil_exec_is_no_loser_that_releases(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan release;
    struct lock_result unsent = result(LOCK_NOT_SENT, 0);
    uint64_t used;
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    for (int i = 0; i < 20; i++) {
        uint64_t claim = take(f, &a, "lock:x");
        attempt(f, &a, "lock:x");
        queue(f, &a, LOCK_RELEASE, "lock:x", &release);
        engine_sent(f->engine, &release);
        release.undone = true;
        finish(f, &a, &release, &unsent);
        assert_true(give_by(f, &a, "lock:x", &used));
        assert_int_equal(used, claim);
    }
}

/* ---- other proxies -------------------------------------------------------------------------------- */

static void a_lease_of_another_proxys_is_a_claim_here(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, own;
    struct lock_plan plan;
    struct lock_result unsent = result(LOCK_NOT_SENT, 0);
    open_two(f, &a, &b);
    open_as(f, &own, 3, "app");
    engine_session_overlapped(f->engine, &a);
    take_elsewhere(f, &own, "lock:x");
    attempt(f, &a, "lock:x");
    assert_int_equal(stats(f).claims, 1);
    assert_int_equal(stats(f).leases, 0); /* none of this proxy's */
    begin(f, &a, LOCK_RELEASE, "lock:x", &plan);
    assert_int_not_equal(plan.claim, 0);
    assert_string_equal(lock_right_text(plan.right), "believe");
    assert_string_equal(plan.claim_token, ""); /* which is another proxy's */
    assert_int_equal(plan.claim_len, 0);
    finish(f, &a, &plan, &unsent);
    assert_int_equal(would_use(f, &own, LOCK_RELEASE, "lock:x"), 0);
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(incidents(f, INCIDENT_BELIEVED), 0);
}

static void a_lease_of_another_proxys_is_known_by_a_reading(void **state) {
    struct fixture *f = *state;
    struct lock_session a, own;
    struct lock_plan plan;
    open_as(f, &a, 1, "app");
    open_as(f, &own, 3, "app");
    engine_session_overlapped(f->engine, &a);
    uint64_t older = take_with(f, &a, "lock:x", "w1", 1000, false), used;
    lapse(f, "lock:x", 1000);
    take_elsewhere(f, &own, "lock:x");
    struct lock_result r = refusal(lease_of("lock:x"), &a);
    r.value = "w2";
    r.value_len = 2;
    begin(f, &a, LOCK_READ, "lock:x", &plan);
    finish(f, &a, &plan, &r);
    assert_int_equal(stats(f).claims, 2);
    /* Shown last: it is meant, not the older one. */
    assert_true(give_by(f, &a, "lock:x", &used));
    assert_int_not_equal(used, older);
    assert_int_not_equal(used, 0);
    assert_int_equal(stats(f).claims, 1);
}

/* A release by what made way at another proxy is for the lease that came after it there, also before that proxy was
 * met. */
static void what_made_way_at_a_proxy_that_was_not_met(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    changes_hands_elsewhere(f, &b, "lock:x");
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(stats(f).claims, 0);
    /* Nor had any session lost an attempt here. */
    take(f, &a, "lock:yy");
    changes_hands_elsewhere(f, &b, "lock:yy");
    assert_true(give(f, &a, "lock:yy"));
}

/* A lease is known to have ended early, and no other proxy to be there: the guard record says whether another one did
 * the last release. If so, that lease was released there, and this release is for the live one. */
static void what_made_way_early_is_spent_if_another_proxy_released(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (int there = 0; there <= 1; there++) {
        another_workload(f, (unsigned)there);
        take(f, &a, "lock:x");
        attempt(f, &b, "lock:x");
        free_lock("lock:x"); /* it vanished, or was released there */
        lease_of("lock:x")->released_there = there;
        take(f, &b, "lock:x");
        assert_int_equal(give(f, &a, "lock:x"), there);
        assert_int_equal(lease_of("lock:x")->suspects, 0);
        assert_int_equal(votes(f, &a, "lock:x"), there);
        assert_int_equal(stats(f).claims, !there);
        free_lock("lock:x");
        pass(f, 300000);
    }
}

/* The application's script released the lease. Nothing is left to release. */
static void what_its_script_released_is_spent(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    take(f, &a, "lock:x");
    run(f, &a, LOCK_SCRIPT, "lock:x", LOCK_RELEASED, lease_of("lock:x")->fence);
    free_lock("lock:x");
    assert_int_equal(stats(f).released, 1);
    assert_int_equal(stats(f).claims, 0);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), 0);
}

/* Many attempts that were lost in a row in silence are a fact, until a release comes that only losers send. */
static void d3_long_rows_in_silence_are_a_fact(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    take_with(f, &a, "lock:x", "1", 100000, false);
    lose_in_silence(f, &c, "lock:x", 8);
    assert_false(workload_known(f, &a, "lock:x")->facts & FACT_LOSERS_QUIET);
    lose_in_silence(f, &c, "lock:x", 2);
    assert_true(workload_facts(workload_known(f, &a, "lock:x")) & FACT_LOSERS_QUIET);
    attempt(f, &b, "lock:x");
    assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(workload_facts(workload_known(f, &a, "lock:x")), FACT_LOSERS_RELEASE);
}

/* Meets a lease that another proxy has given: from now on other proxies serve the workload, too. */
static void meet_elsewhere(struct fixture *f, struct lock_session *s, const char *key) {
    take_elsewhere(f, s, key);
    assert_false(attempt(f, s, key));
    free_lock(key);
}

/* A lease that makes way well before its end was released through the other proxy. */
static void what_made_way_early_was_released_elsewhere(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    free_lock("lock:x");
    take(f, &b, "lock:x");
    assert_int_equal(stats(f).claims, 2); /* no other proxy is known: its release may come late */
    free_lock("lock:x");
    meet_elsewhere(f, &b, "lock:x");
    unsigned before = votes(f, &a, "lock:x");
    take(f, &a, "lock:x");
    pass(f, 940);
    free_lock("lock:x");
    take(f, &b, "lock:x");
    assert_int_equal(stats(f).claims, 1);
    assert_int_equal(votes(f, &a, "lock:x"), before + 1);
    assert_true(give(f, &b, "lock:x"));
    /* One that is about to end may have ended by itself. */
    take(f, &a, "lock:x");
    pass(f, 960);
    free_lock("lock:x");
    take(f, &b, "lock:x");
    assert_int_equal(stats(f).claims, 2);
    assert_int_equal(votes(f, &a, "lock:x"), before + 1);
}

static void what_made_way_early_of_an_own_session_is_remembered(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    meet_elsewhere(f, &b, "lock:x");
    show_own(f, &a, &b, "lock:x", ROW);
    take(f, &a, "lock:x");
    assert_string_equal(would_right(f, &a, LOCK_RELEASE, "lock:x"), "claim");
    free_lock("lock:x");
    take(f, &b, "lock:x");
    assert_int_equal(stats(f).claims, 2);
    assert_int_equal(votes(f, &a, "lock:x"), 0);
}

/* The lease to release may have come after the one that is believed live, from another proxy. */
static void a_release_takes_what_another_proxy_gave_since(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &a, "lock:x");
    changes_hands_elsewhere(f, &b, "lock:x");
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(stats(f).claims, 0);
    /* Not where the believed one is about to end. */
    take(f, &a, "lock:x");
    pass(f, 950);
    changes_hands_elsewhere(f, &b, "lock:x");
    assert_false(give(f, &a, "lock:x"));
}

/* Also behind several proxies, a release that crosses is one crossing. */
static void a_release_is_one_crossing_behind_several_proxies(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    meet_elsewhere(f, &a, "lock:x");
    take(f, &b, "lock:x");
    assert_true(give(f, &b, "lock:x"));
    unsigned before = votes(f, &b, "lock:x");
    take(f, &a, "lock:x");
    pass(f, AT_ONCE_MS + 1);
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(votes(f, &b, "lock:x"), before + 1);
    assert_int_equal(pooled(f), 0);
}

/* A release of a lease that was not met counts with its acquisition: no surplus comes of it (D1). */
static void what_was_not_met_counts_as_acquired(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &b, "lock:x");
    assert_false(attempt(f, &a, "lock:x"));
    assert_true(give(f, &b, "lock:x"));
    for (int i = 0; i < 10; i++) {
        pass(f, 10);
        take_elsewhere(f, &a, "lock:x");
        assert_true(give(f, &b, "lock:x"));
    }
    assert_false(workload_surplus(workload_known(f, &a, "lock:x"), NULL));
}

/* Behind several proxies this one sees a part of what follows losses. */
static void c4_behind_several_proxies_a_later_release_is_believed_at_last(void **state) {
    static const struct {
        int64_t apart_ms;
        bool another;
        enum said said;
    } CASES[] = {{1, false, REFUSED}, {2, false, CARRIED_OUT}, {2, true, REFUSED}};
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        another_workload(f, (unsigned)i);
        take_with(f, &a, "lock:x", "1", 100000, false);
        take_elsewhere(f, &a, "lock:yy");
        (void)attempt(f, &a, "lock:yy");
        free_lock("lock:yy");
        if (CASES[i].another) {
            attempt(f, &c, "lock:x");
            assert_int_equal(give(f, &c, "lock:x"), 0);
        }
        attempt(f, &b, "lock:x");
        pass(f, CASES[i].apart_ms);
        assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
        pass(f, 249);
        assert_int_equal(ask(f, &b, "lock:x"), HELD_BACK);
        pass(f, 1);
        assert_int_equal(ask(f, &b, "lock:x"), CASES[i].said);
        assert_int_equal(votes(f, &b, "lock:x") > 0, CASES[i].said == CARRIED_OUT);
        free_lock("lock:x");
        pass(f, 300000);
    }
}

/* Before this proxy has met another one's lease: the release of a lease that another proxy gave comes here, over a
 * session that has lost. */
static void a_losers_release_takes_what_another_proxy_gave_unmet(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take(f, &b, "lock:x");
    assert_false(attempt(f, &a, "lock:x"));
    assert_true(give(f, &b, "lock:x"));
    take_elsewhere(f, &b, "lock:x");
    pass(f, 101); /* later than at once */
    assert_true(give(f, &a, "lock:x"));
    assert_int_equal(votes(f, &a, "lock:x"), 1);
}

/* A release counts for a claim whose lease made way, and is refused: it may have been the holder's. The way out ends
 * that. */
static void a_release_refused_for_what_made_way_has_a_way_out(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "app");
    take(f, &b, "lock:x");
    free_lock("lock:x"); /* released through another proxy, of which nothing is known yet */
    take(f, &a, "lock:x");
    free_lock("lock:x");
    meet_elsewhere(f, &a, "lock:x");
    take(f, &c, "lock:x");
    assert_false(give(f, &b, "lock:x"));
    lose_row(f, &a, "lock:x", PATIENCE);
    assert_true(attempt(f, &a, "lock:x"));
}

/* Later knowledge also counts for a lease that made way before: no release is expected for it. */
static void what_made_way_before_a_pool_was_known_is_spent(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    uint64_t used;
    open_two(f, &a, &b);
    take_elsewhere(f, &b, "lock:x");
    attempt(f, &a, "lock:x");
    free_lock("lock:x");
    take(f, &a, "lock:x");
    free_lock("lock:x"); /* released through another proxy */
    uint64_t live = take(f, &b, "lock:x");
    engine_session_overlapped(f->engine, &a);
    assert_true(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, live);
}

static void what_another_proxy_gave_is_gone_with_the_next_lease(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    for (int i = 0; i < 5; i++) {
        take_elsewhere(f, &b, "lock:x");
        attempt(f, &a, "lock:x");
        assert_int_equal(stats(f).claims, 1);
    }
    free_lock("lock:x");
    take(f, &a, "lock:x");
    assert_int_equal(stats(f).claims, 1);
    assert_true(give(f, &a, "lock:x"));
    take_elsewhere(f, &b, "lock:x");
    attempt(f, &a, "lock:x");
    pass(f, 30000); /* no session has used it since */
    assert_int_equal(stats(f).claims, 0);
}

static void what_another_proxy_learnt_counts_here(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    take_elsewhere(f, &b, "lock:x");
    lease_of("lock:x")->pooled = true;
    attempt(f, &a, "lock:x");
    assert_int_equal(pooled(f), 1);
    /* Suspicions too: the refused release came there. */
    take_with(f, &a, "lock:yy", "1", 1000, false);
    lease_of("lock:yy")->suspects = 1;
    lose_row(f, &a, "lock:yy", PATIENCE);
    assert_true(attempt(f, &a, "lock:yy"));
}

/* Two proxies: the release that counts here for what has ended here may be the one of the lease that the other proxy
 * has given, which hears of it, and for how long it would have been expected here (C3). */
static void a_shift_is_told_to_the_proxy_that_gave_the_lease(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    uint64_t used;
    open_two(f, &a, &b);
    engine_session_overlapped(f->engine, &a);
    engine_session_overlapped(f->engine, &b);
    uint64_t ended = take(f, &a, "lock:x");
    lapse(f, "lock:x", 1000);
    take_elsewhere(f, &b, "lock:x");
    pass(f, 500);
    assert_false(give_by(f, &b, "lock:x", &used));
    assert_int_equal(used, ended);
    assert_int_equal(lease_of("lock:x")->shifted_ms, 1500); /* of the two seconds after a lease of one */
    /* The other proxy, with a lease that it gave. */
    take(f, &a, "lock:yy");
    lease_of("lock:yy")->shifted_ms = 1500;
    attempt(f, &b, "lock:yy");
    lapse(f, "lock:yy", 1000);
    assert_int_equal(stats(f).claims, 1);
    pass(f, 500);
    assert_int_equal(stats(f).claims, 0);
}

/* One that goes on waiting hears of it at once. */
static void a_shift_is_told_to_who_waits(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    struct lock_plan plan;
    open_two(f, &a, &b);
    engine_session_overlapped(f->engine, &a);
    take(f, &a, "lock:x");
    begin(f, &b, LOCK_ACQUIRE, "lock:x", &plan);
    lease_of("lock:x")->shifted_ms = 1;
    struct lock_result r = refusal(lease_of("lock:x"), &b);
    engine_shifted(f->engine, &plan, &r, f->now_ms);
    lapse(f, "lock:x", 1000);
    assert_int_equal(stats(f).claims, 0);
    r = result(LOCK_NOT_SENT, 0);
    finish(f, &b, &plan, &r);
}

/* ---- L6, S6: neighbours, other clients ----------------------------------------------------------------- */

static void l6_another_workloads_pool_changes_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    make_pooled(f, &a, &b, "lock:x");
    uint64_t claim = take(f, &a, "lock:x");
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), claim);
    take(f, &a, "lock:neighbour");
    assert_int_equal(lease_of("lock:neighbour")->token % 2, 0);
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:neighbour"), 0);
    attempt(f, &b, "lock:neighbour");
    assert_false(give(f, &b, "lock:neighbour"));
    /* Workloads of the same keys under another rule, or of another client, are others. */
    struct lock_session c, d;
    open_as(f, &c, 3, "else");
    open_as(f, &d, 4, "else");
    assert_true(give(f, &a, "lock:x"));
    take(f, &c, "lock:x");
    assert_int_equal(would_use(f, &d, LOCK_RELEASE, "lock:x"), 0);
    assert_true(give(f, &c, "lock:x"));
    f->rule.hash = 77;
    take(f, &a, "lock:x");
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(pooled(f), 1);
}

static void s6_another_clients_lease_is_never_believed(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, other, mux;
    open_two(f, &a, &b);
    open_as(f, &other, 3, "else");
    open_as(f, &mux, 4, "else");
    engine_session_overlapped(f->engine, &mux);
    make_pooled(f, &a, &b, "lock:x");
    take(f, &a, "lock:x");
    assert_false(give(f, &other, "lock:x"));
    assert_false(give(f, &mux, "lock:x"));
    attempt(f, &other, "lock:x");
    attempt(f, &mux, "lock:x");
    for (int i = 0; i < 5; i++) {
        assert_false(give(f, &other, "lock:x"));
        assert_false(give(f, &mux, "lock:x"));
    }
    assert_int_equal(lease_of("lock:x")->suspects, 0); /* and makes nothing suspect */
    assert_true(give(f, &a, "lock:x"));
    /* A claim that a client has left behind is none of other clients' either. */
    take(f, &a, "lock:x");
    engine_session_close(f->engine, &a, f->now_ms);
    engine_session_close(f->engine, &b, f->now_ms);
    assert_int_equal(would_use(f, &other, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(would_use(f, &mux, LOCK_RELEASE, "lock:x"), 0);
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static void claims_are_remembered_as_long_as_they_may_stand_in_the_way(void **state) {
    static const struct {
        int64_t lease_ms, shared_ms, own_ms;
    } CASES[] = {{100, 1000, 60000}, {10000, 20000, 200000}, {60000, 60000, 1200000}, {600000, 60000, 3600000}};
    struct fixture *f = *state;
    struct lock_session own, pooled;
    open_as(f, &own, 1, "app");
    open_as(f, &pooled, 2, "pooled");
    engine_session_overlapped(f->engine, &pooled);
    take(f, &own, "lock:x");
    assert_true(give(f, &own, "lock:x")); /* it releases */
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        take_with(f, &own, "lock:x", "1", CASES[i].lease_ms, false);
        take_with(f, &pooled, "lock:y", "1", CASES[i].lease_ms, false);
        free_lock("lock:x");
        free_lock("lock:y");
        pass(f, CASES[i].lease_ms + CASES[i].shared_ms - 1);
        assert_int_equal(stats(f).claims, 2);
        pass(f, 1);
        assert_int_equal(stats(f).claims, 1);
        pass(f, CASES[i].own_ms - CASES[i].shared_ms - 1);
        assert_int_equal(stats(f).claims, 1);
        pass(f, 1);
        assert_int_equal(stats(f).claims, 0);
    }
}

/* A client that never releases is not expected to: a throttle. */
static void a_throttles_claims_are_not_remembered_for_long(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    open_as(f, &a, 1, "app");
    take_with(f, &a, "lock:x", "1", 600000, false);
    lapse(f, "lock:x", 600000);
    assert_int_equal(stats(f).claims, 1);
    pass(f, 60000);
    assert_int_equal(stats(f).claims, 0);
}

static void what_made_way_before_its_end_is_spent(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_two(f, &a, &b);
    engine_session_overlapped(f->engine, &a);
    take(f, &a, "lock:x");
    free_lock("lock:x"); /* by whatever hand */
    uint64_t claim = take(f, &b, "lock:x"), used;
    assert_int_equal(stats(f).claims, 1);
    assert_true(give_by(f, &a, "lock:x", &used));
    assert_int_equal(used, claim);
}

static unsigned workloads(struct fixture *f) {
    unsigned n = 0;
    for (unsigned i = 0; i < SHARDS; i++)
        n += f->engine->shards[i].workloads.count;
    return n;
}

static void key_with_pattern(char key[32], unsigned n) {
    snprintf(key, 32, "lock:%c%c%c%c", 'g' + n % 16, 'g' + n / 16 % 16, 'g' + n / 256 % 16, 'g' + n / 4096 % 16);
}

static void workloads_are_bounded_and_forgotten(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, many;
    char key[32];
    open_two(f, &a, &b);
    open_as(f, &many, 3, "many");
    make_pooled(f, &a, &b, "lock:x");
    for (unsigned i = 0; i < 40000; i++) {
        key_with_pattern(key, i);
        acquire(f, &many, key, "1", 10, false);
        if (i % 100 == 0) /* b's is in use all the time */
            would_use(f, &b, LOCK_RELEASE, "lock:x");
        if (i % 1000 == 0)
            pass(f, 70000);
    }
    pass(f, 70000);
    assert_int_equal(stats(f).keys, 0);
    assert_true(workloads(f) <= SHARDS * WORKLOADS_A_SHARD);
    assert_true(workloads(f) > SHARDS * WORKLOADS_A_SHARD / 2);
    assert_int_equal(pooled(f), 1);
    /* With their sessions, and the time. */
    engine_session_close(f->engine, &a, f->now_ms);
    engine_session_close(f->engine, &b, f->now_ms);
    engine_session_close(f->engine, &many, f->now_ms);
    pass(f, WORKLOAD_IDLE_MS);
    for (unsigned i = 0; i < 2 * WORKLOADS_A_SHARD; i++)
        pass(f, 1000);
    assert_int_equal(workloads(f), 0);
}

static void a_sessions_session_stats_are_bounded_and_close_with_it(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    char key[32];
    open_as(f, &a, 1, "app");
    for (unsigned i = 0; i < 5000; i++) {
        key_with_pattern(key, i);
        uint64_t claim = acquire(f, &a, key, "1", 1000, false);
        assert_int_equal(run(f, &a, LOCK_RELEASE, key, LOCK_RELEASED, f->fence), claim);
    }
    unsigned session_stats = 0, refs = 0;
    for (unsigned i = 0; i < SHARDS; i++) {
        struct peer *p = peer_find(&f->engine->shards[i], 1);
        assert_non_null(p);
        assert_true(p->session_stats_count <= SESSION_STATS_A_PEER);
        session_stats += p->session_stats_count;
        LIST_EACH(w, &f->engine->shards[i].idle_workloads, struct workload, idle)
            refs += w->refs;
    }
    assert_int_equal(refs, session_stats);
    engine_session_close(f->engine, &a, f->now_ms);
    for (unsigned i = 0; i < SHARDS; i++)
        LIST_EACH(w, &f->engine->shards[i].idle_workloads, struct workload, idle)
            assert_int_equal(w->refs, 0);
}

/* A new session of the workload has tried for nothing, and shown nothing. */
static void a_new_session_has_no_session_stats(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    show_own(f, &a, &b, "lock:x", ROW);
    engine_session_close(f->engine, &b, f->now_ms);
    open_as(f, &c, 3, "app");
    take(f, &a, "lock:x");
    assert_true(give(f, &c, "lock:x"));
    assert_int_equal(incidents(f, INCIDENT_BELIEVED), 1);
}

static void a_new_identity_starts_anew(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_two(f, &a, &b);
    open_as(f, &c, 3, "other");
    make_pooled(f, &a, &b, "lock:x");
    uint64_t claim = take(f, &a, "lock:x");
    attempt(f, &b, "lock:x");
    engine_session_identify(f->engine, &a, "other", 5, f->now_ms);
    /* The session's claim goes with it; the workload that shares stays behind. */
    assert_int_equal(would_use(f, &b, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(would_use(f, &c, LOCK_RELEASE, "lock:x"), 0);
    assert_int_equal(would_use(f, &a, LOCK_RELEASE, "lock:x"), claim);
    assert_true(give(f, &a, "lock:x"));
    take(f, &a, "lock:x");
    assert_int_equal(lease_of("lock:x")->token % 2, 0);
    assert_int_equal(would_use(f, &c, LOCK_RELEASE, "lock:x"), 0);
    assert_true(give(f, &a, "lock:x"));
    /* The session becomes what it was. */
    engine_session_identify(f->engine, &a, "app", 3, f->now_ms);
    take(f, &a, "lock:x");
    assert_int_equal(lease_of("lock:x")->token % 2, 1);
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(incidents(f, INCIDENT_SHARED), 1);
}

/* The claim that a write speaks by is the one that a full key forgets for the new lease. */
static void a_full_key_may_forget_the_claim_in_hand(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    struct lock_plan plan;
    f->rule.claim_memory_ms = 3600000;
    open_as(f, &a, 1, "app");
    engine_session_overlapped(f->engine, &a);
    static const enum lock_outcome OUTCOMES[] = {LOCK_GRANTED, LOCK_UNKNOWN};
    for (size_t i = 0; i < 2; i++) {
        for (int n = 0; n < CLAIMS_A_KEY; n++) {
            take_with(f, &a, "lock:z", "1", 10, false);
            lapse(f, "lock:z", 10);
        }
        begin(f, &a, LOCK_REPLACE, "lock:z", &plan);
        assert_int_not_equal(plan.claim, 0);
        struct lock_result r = result(OUTCOMES[i], OUTCOMES[i] == LOCK_GRANTED ? ++f->fence : 0);
        r.pttl_ms = 10;
        finish(f, &a, &plan, &r);
        assert_int_equal(stats(f).claims, CLAIMS_A_KEY);
    }
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, tear_down)

/* ---- what earlier runs and other proxies have learnt ------------------------------------------------ */

static struct lock_facts facts_about(struct fixture *f, unsigned facts, unsigned over) {
    f->rule.hash = lock_rule_hash(f->rule.pattern, f->rule.pattern_len);
    return (struct lock_facts){.identity = "app",
                               .identity_len = 3,
                               .rule = f->rule.pattern,
                               .rule_len = f->rule.pattern_len,
                               .pattern = "lock:job:*",
                               .pattern_len = 10,
                               .facts = facts,
                               .over = over};
}

static void learn(struct fixture *f, unsigned facts, unsigned over, int64_t age_ms) {
    struct lock_facts told = facts_about(f, facts, over);
    told.age_ms = age_ms;
    engine_learnt(f->engine, &told, f->now_ms);
}

static const struct workload *workload_here(struct fixture *f, struct lock_session *s) {
    (void)take(f, s, "lock:job:1");
    assert_true(give(f, s, "lock:job:1"));
    uint64_t keys = advise_pattern_hash("lock:job:1", 10);
    struct shard *sh = ledger_shard(f->engine, keys);
    return workload_of_key(sh, workload_number_of(s->client->hash, f->rule.hash, keys));
}

static void a_workload_starts_with_what_is_known(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    learn(f, FACT_POOLED | FACT_DEDICATED | FACT_LOSERS_RELEASE, 0, 0);
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "stranger");
    const struct workload *mine = workload_here(f, &a), *other = workload_here(f, &b);
    assert_int_equal(workload_facts(mine), FACT_POOLED | FACT_LOSERS_RELEASE);
    assert_int_equal(workload_facts(other), 0);
    assert_int_equal(incidents(f, INCIDENT_SHARED), 0);
    engine_session_close(f->engine, &a, f->now_ms);
    engine_session_close(f->engine, &b, f->now_ms);
}

static void a_workload_that_is_there_takes_it_over(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    (void)facts_about(f, 0, 0);
    open_as(f, &a, 1, "app");
    const struct workload *mine = workload_here(f, &a);
    learn(f, FACT_DEDICATED, 0, 0);
    assert_int_equal(workload_facts(mine), FACT_DEDICATED);
    learn(f, 0, FACT_DEDICATED, 0);
    assert_int_equal(workload_facts(mine), 0);
    learn(f, FACT_DEDICATED, 0, 0);
    assert_int_equal(workload_facts(mine), 0);
    learn(f, FACT_POOLED, 0, 0);
    learn(f, FACT_POOLED, 0, 0);
    assert_int_equal(workload_facts(mine), FACT_POOLED);
    assert_int_equal(incidents(f, INCIDENT_SHARED), 1);
    engine_session_close(f->engine, &a, f->now_ms);
}

/* What another proxy has seen decides where this one sees nothing: sessions that lose many attempts in a row in
 * silence. */
static void c4_silence_at_another_proxy_counts(void **state) {
    static const char KEY[] = "lock:job:1";
    struct fixture *f = *state;
    struct lock_session s[2];
    (void)facts_about(f, 0, 0);
    for (int i = 0; i < 2; i++) {
        open_as(f, &s[i], 1 + (unsigned)i, i == 0 ? "app" : "else");
        take_elsewhere(f, &s[i], KEY);
        lose_row(f, &s[i], KEY, 4);
        assert_int_equal(ask(f, &s[i], KEY), HELD_BACK);
        learn(f, FACT_LOSERS_QUIET, 0, 0); /* of the first client */
        pass(f, 1000);
        assert_int_equal(ask(f, &s[i], KEY), i == 0 ? CARRIED_OUT : REFUSED);
        free_lock(KEY);
    }
}

static void what_is_a_week_old_is_forgotten(void **state) {
    struct fixture *f = *state;
    struct lock_session a;
    learn(f, FACT_POOLED, 0, FACT_MS + 1);
    learn(f, FACT_LOSERS_RELEASE, 0, FACT_MS - 1);
    f->now_ms += 2;
    open_as(f, &a, 1, "app");
    assert_int_equal(workload_facts(workload_here(f, &a)), 0);
    engine_session_close(f->engine, &a, f->now_ms);
}

/* ---- K: what a session is shown ------------------------------------------------------------------- */

/* A refused attempt to write this value. */
static void try_with(struct fixture *f, struct lock_session *s, const char *key, const char *value) {
    struct lock_plan plan;
    struct lock_result r = refusal(lease_of(key), s);
    r.value = value;
    r.value_len = strlen(value);
    begin(f, s, LOCK_ACQUIRE, key, &plan);
    finish(f, s, &plan, &r);
}

/* GET of the live lease's value. */
static void get(struct fixture *f, struct lock_session *s, const char *key, const char *value) {
    struct lock_plan plan;
    struct lock_result r = refusal(lease_of(key), s);
    r.value = value;
    r.value_len = strlen(value);
    begin(f, s, LOCK_READ, key, &plan);
    finish(f, s, &plan, &r);
}

/* Whether SET with an expiry of this value speaks for the live lease; it is not carried out. */
static bool says(struct fixture *f, struct lock_session *s, enum lock_verb verb, const char *key, const char *value) {
    struct lock_plan plan;
    struct lock_result r = result(LOCK_NOT_SENT, 0);
    begin(f, s, verb, key, &plan);
    engine_says(f->engine, &plan, value, strlen(value), false, f->now_ms);
    finish(f, s, &plan, &r);
    return plan.claim && plan.claim == lease_of(key)->token;
}

static void k1_a_lost_reply_is_found_by_its_value(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    take_with(f, &a, "lock:x", "w1", 1000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    open_as(f, &b, 2, "app");
    try_with(f, &b, "lock:x", "w1");
    assert_int_equal(would_use(f, &b, LOCK_EXTEND, "lock:x"), 0);
    get(f, &b, "lock:x", "w1");
    assert_int_equal(would_use(f, &b, LOCK_EXTEND, "lock:x"), lease_of("lock:x")->token);
    try_with(f, &b, "lock:x", "w1"); /* a worker that polls its own lock stays its owner */
    assert_true(give(f, &b, "lock:x"));
    assert_int_equal(incidents(f, INCIDENT_FOREIGN_RELEASE), 0);
}

static void k1_a_constant_tells_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    open_as(f, &c, 3, "app");
    take_with(f, &a, "lock:x", "1", 1000, false);
    try_with(f, &b, "lock:x", "1");
    get(f, &b, "lock:x", "1");
    assert_false(give(f, &b, "lock:x"));
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "leased");
    engine_session_close(f->engine, &a, f->now_ms);
    try_with(f, &b, "lock:x", "1");
    get(f, &b, "lock:x", "1");
    assert_false(give(f, &b, "lock:x")); /* a number, also of a session that is gone */
    try_with(f, &c, "lock:x", "1");
    get(f, &c, "lock:x", "1");
    assert_false(give(f, &c, "lock:x"));
}

static void k1_a_word_that_a_third_one_writes_tells_nothing(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    open_as(f, &c, 3, "app");
    take_with(f, &a, "lock:x", "locked", 1000, false);
    try_with(f, &c, "lock:x", "locked");
    engine_session_close(f->engine, &a, f->now_ms);
    try_with(f, &b, "lock:x", "locked");
    get(f, &b, "lock:x", "locked");
    assert_false(give(f, &b, "lock:x"));
}

static void k1_an_open_owner_wants_values_that_vary(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    open_as(f, &c, 3, "app");
    take_with(f, &a, "lock:x", "w1", 1000, false);
    try_with(f, &b, "lock:x", "w1");
    get(f, &b, "lock:x", "w1");
    assert_int_equal(would_use(f, &b, LOCK_EXTEND, "lock:x"), 0);
    try_with(f, &c, "lock:x", "w3");
    get(f, &b, "lock:x", "w1");
    assert_int_equal(would_use(f, &b, LOCK_EXTEND, "lock:x"), lease_of("lock:x")->token);
    assert_int_equal(would_use(f, &a, LOCK_EXTEND, "lock:x"), lease_of("lock:x")->token); /* the owner is one still */
    get(f, &c, "lock:x", "w1");
    assert_int_equal(would_use(f, &c, LOCK_EXTEND, "lock:x"), 0);
}

static void k1_ends_with_its_lease(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_as(f, &a, 1, "app");
    take_with(f, &a, "lock:x", "w1", 1000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    open_as(f, &b, 2, "app");
    open_as(f, &c, 3, "app");
    try_with(f, &b, "lock:x", "w1");
    get(f, &b, "lock:x", "w1");
    lapse(f, "lock:x", 1001);
    take_with(f, &c, "lock:x", "w3", 1000, false);
    assert_false(give(f, &b, "lock:x")); /* late */
    assert_true(give(f, &c, "lock:x"));
}

static void k1_is_not_for_owner_connection(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    f->rule.owner = LOCK_OWNER_CONNECTION;
    open_as(f, &a, 1, "app");
    take_with(f, &a, "lock:x", "w1", 1000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    open_as(f, &b, 2, "app");
    try_with(f, &b, "lock:x", "w1");
    get(f, &b, "lock:x", "w1");
    assert_false(give(f, &b, "lock:x"));
}

static void k1_another_proxys_lease_is_named_by_its_fence(void **state) {
    struct fixture *f = *state;
    struct lock_session b;
    struct lock_plan plan;
    open_as(f, &b, 2, "app");
    take_elsewhere(f, &b, "lock:x");
    try_with(f, &b, "lock:x", "w1");
    get(f, &b, "lock:x", "w1");
    struct lock_result r = result(LOCK_NOT_SENT, 0);
    begin(f, &b, LOCK_RELEASE, "lock:x", &plan);
    assert_string_equal(lock_right_text(plan.right), "fence");
    assert_int_equal(plan.read_fence, lease_of("lock:x")->fence);
    finish(f, &b, &plan, &r);
    assert_string_equal(would_right(f, &b, LOCK_EXTEND, "lock:x"), "fence");
}

static void k2_the_leases_own_value_extends_it(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b, c;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    open_as(f, &c, 3, "app");
    take_with(f, &a, "lock:x", "w1", 1000, false);
    assert_false(says(f, &b, LOCK_REWRITE, "lock:x", "w1")); /* two that saw nothing */
    get(f, &b, "lock:x", "w1");
    assert_true(says(f, &b, LOCK_REWRITE, "lock:x", "w1"));
    assert_false(says(f, &b, LOCK_REWRITE, "lock:x", "w2"));
    assert_false(says(f, &c, LOCK_REWRITE, "lock:x", "w1"));
    engine_session_close(f->engine, &a, f->now_ms);
    assert_true(says(f, &c, LOCK_REPLACE, "lock:x", "w1"));
    assert_true(says(f, &c, LOCK_SWAP, "lock:x", "w1"));
}

static void k2_who_has_read_another_lease_swaps_for_itself(void **state) {
    struct fixture *f = *state;
    struct lock_session a, b;
    open_as(f, &a, 1, "app");
    open_as(f, &b, 2, "app");
    take_with(f, &a, "lock:x", "w1", 1000, false);
    get(f, &b, "lock:x", "w1");
    assert_true(give(f, &a, "lock:x"));
    take_with(f, &a, "lock:x", "w2", 1000, false);
    engine_session_close(f->engine, &a, f->now_ms);
    assert_false(says(f, &b, LOCK_SWAP, "lock:x", "w2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(a1_a_worker_has_done_with_what_it_had),
        CASE(a1_but_not_with_what_a_colleague_may_have_acquired),
        CASE(a1_is_not_for_shared_sessions),
        CASE(a2_who_brings_the_same_value_has_come_back),
        CASE(a2_also_from_a_session_that_closed_but_of_no_other),
        CASE(b1_a_loser_is_not_believed_until_it_acquires),
        CASE(b_a_lease_makes_way_after_three_losses_in_a_row),
        CASE(b_no_lease_makes_way_without_a_refused_release),
        CASE(b_a_release_ends_the_row_of_losses),
        CASE(b_losers_that_retry_lengthen_the_row),
        CASE(b_the_middle_of_a_row_says_nothing),
        CASE(c4_a_holders_session_that_others_use_is_pooled),
        CASE(b_no_lease_makes_way_that_was_extended_since),
        CASE(b_a_lease_makes_way_that_was_extended_before),
        CASE(b_no_lease_makes_way_of_a_session_that_is_one_workers),
        CASE(b_another_proxys_lease_makes_way_by_its_fence),
        CASE(b_no_lease_makes_way_that_is_being_released),
        CASE(b_a_wrong_refusal_unlearns_that_losers_release),
        CASE(b_makes_way_at_once_where_nothing_is_repeated),
        CASE(b_is_not_repeated_in_a_transaction),
        CASE(b_is_not_for_rules_that_know),
        CASE(c1_a_shared_session_speaks_for_all_of_its_client),
        CASE(c1_a_closed_sessions_claims_are_its_successors),
        CASE(c2_the_value_shown_last_is_meant),
        CASE(c3_a_missed_release_shifts_not_for_longer_than_itself),
        CASE(c3_holds_for_the_session_that_releases),
        CASE(c4_two_crossings_make_a_pool),
        CASE(c4_who_never_tried_proves_nothing_against_an_own_session),
        CASE(c4_who_never_tried_is_a_crossing_where_nothing_is_known),
        CASE(c4_who_never_tried_proves_nothing_where_losers_release),
        CASE(c4_a_lock_without_an_end_has_its_release_to_come),
        CASE(c4_a_second_release_in_a_row_is_refused_at_once_alone),
        CASE(c4_a_second_release_in_a_row_is_refused_within_a_round_trip),
        CASE(c4_counted_down_twice_in_a_row_is_a_crossing),
        CASE(c4_a_holders_counts_down_are_none),
        CASE(what_was_not_sent_is_no_release),
        CASE(owner_connection_knows_no_crossing),
        CASE(owner_connection_remembers_a_lease_that_its_session_asked_for),
        CASE(what_may_be_an_attempt_is_none_of_the_holders),
        CASE(an_extension_that_is_refused_is_no_release),
        CASE(a_lease_that_was_cut_short_needs_no_release),
        CASE(c4_so_much_evidence_decides),
        CASE(c2_a_release_names_its_lease),
        CASE(c4_what_names_its_lease_is_not_held_back),
        CASE(c4_a_release_is_held_back_until_losses_are_quiet),
        CASE(c4_a_second_release_for_a_lease_shows_that_losers_release),
        CASE(c4_a_losers_late_release_is_held_back_too),
        CASE(c4_a_second_release_says_nothing_much_later),
        CASE(c4_a_release_is_held_back_for_so_long),
        CASE(c4_a_lease_that_lost_to_itself_counts_behind_a_long_row),
        CASE(c4_a_release_that_was_held_back_is_for_no_later_lease),
        CASE(c4_some_are_never_held_back),
        CASE(c4_over_a_session_that_is_one_workers_a_losers_release_is_refused),
        CASE(c4_a_losers_release_is_believed_later),
        CASE(c4_the_release_of_a_holder_that_lost_its_lease_is_no_crossing),
        CASE(c4_the_release_of_a_holder_that_lost_its_lease_is_held_back),
        CASE(c4_a_losers_release_while_nobody_holds_ends_no_lease),
        CASE(c4_a_contended_key_is_judged_by_itself),
        CASE(c4_a_second_release_outweighs_quiet_losses),
        CASE(c4_where_losers_are_quiet_a_release_is_believed),
        CASE(f_a_losers_expire_is_believed_later),
        CASE(d_a_lost_attempt_uses_up_a_release),
        CASE(d_losers_that_go_away_use_up_nothing),
        CASE(d_where_losers_release_a_refused_one_is_no_holders),
        CASE(d_two_releases_in_a_row_show_a_pool_by_their_number),
        CASE(e_a_suspicious_lease_that_ends_says_nothing),
        CASE(e_a_write_is_late_all_the_same),
        CASE(e_a_refused_release_leaves_its_session_late),
        CASE(e_a_fence_that_comes_counts_for_earlier_leases),
        CASE(an_overrun_is_told_by_who_acquires_next),
        CASE(the_longest_expiry_of_all_is_one),
        CASE(f_who_may_set_an_expiry),
        CASE(f_losers_that_expire_move_nothing),
        CASE(f_renewal_ends_for_who_asks_for_its_own),
        CASE(f_renewal_goes_on_where_it_may_be_a_colleague_that_asks),
        CASE(f_renewal_of_a_suspicious_lease_ends_after_ten_leases),
        CASE(g_a_nil_exec_leaves_its_claim_unshown),
        CASE(g_a_nil_exec_drops_a_claim_whose_lease_has_ended),
        CASE(g_a_nil_exec_is_no_loser_that_releases),
        CASE(a_lease_of_another_proxys_is_a_claim_here),
        CASE(a_lease_of_another_proxys_is_known_by_a_reading),
        CASE(what_made_way_at_a_proxy_that_was_not_met),
        CASE(what_made_way_early_is_spent_if_another_proxy_released),
        CASE(what_its_script_released_is_spent),
        CASE(c4_silence_at_another_proxy_counts),
        CASE(d3_long_rows_in_silence_are_a_fact),
        CASE(what_made_way_early_was_released_elsewhere),
        CASE(a_losers_release_takes_what_another_proxy_gave_unmet),
        CASE(a_release_refused_for_what_made_way_has_a_way_out),
        CASE(what_made_way_early_of_an_own_session_is_remembered),
        CASE(a_release_takes_what_another_proxy_gave_since),
        CASE(a_release_is_one_crossing_behind_several_proxies),
        CASE(what_was_not_met_counts_as_acquired),
        CASE(c4_behind_several_proxies_a_later_release_is_believed_at_last),
        CASE(what_made_way_before_a_pool_was_known_is_spent),
        CASE(what_another_proxy_gave_is_gone_with_the_next_lease),
        CASE(what_another_proxy_learnt_counts_here),
        CASE(a_shift_is_told_to_the_proxy_that_gave_the_lease),
        CASE(a_shift_is_told_to_who_waits),
        CASE(l6_another_workloads_pool_changes_nothing),
        CASE(s6_another_clients_lease_is_never_believed),
        CASE(claims_are_remembered_as_long_as_they_may_stand_in_the_way),
        CASE(a_throttles_claims_are_not_remembered_for_long),
        CASE(what_made_way_before_its_end_is_spent),
        CASE(workloads_are_bounded_and_forgotten),
        CASE(a_sessions_session_stats_are_bounded_and_close_with_it),
        CASE(a_new_session_has_no_session_stats),
        CASE(a_new_identity_starts_anew),
        CASE(a_full_key_may_forget_the_claim_in_hand),
        CASE(a_workload_starts_with_what_is_known),
        CASE(a_workload_that_is_there_takes_it_over),
        CASE(what_is_a_week_old_is_forgotten),
        CASE(k1_a_lost_reply_is_found_by_its_value),
        CASE(k1_a_constant_tells_nothing),
        CASE(k1_a_word_that_a_third_one_writes_tells_nothing),
        CASE(k1_an_open_owner_wants_values_that_vary),
        CASE(k1_ends_with_its_lease),
        CASE(k1_is_not_for_owner_connection),
        CASE(k1_another_proxys_lease_is_named_by_its_fence),
        CASE(k2_the_leases_own_value_extends_it),
        CASE(k2_who_has_read_another_lease_swaps_for_itself),
    };
    return cmocka_run_group_tests_name("attribution", tests, NULL, NULL);
}
