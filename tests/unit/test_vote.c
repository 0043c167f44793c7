/* The votes of witnesses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/witness/witness.h"

/* A vote from letters: g grants, h holds another lease, e empty, l low, q quarantined, s silent, . due. */
static struct vote vote_of(const char *letters) {
    static const char order[] = ".ghelqs";
    struct vote v = {.count = (unsigned)strlen(letters)};
    for (unsigned i = 0; i < v.count; i++)
        v.answers[i] = (enum witness_answer)(strchr(order, letters[i]) - order);
    return v;
}

static void test_verdicts(void **state) {
    (void)state;
    static const struct {
        const char *votes;
        enum verdict verdict;
    } CASES[] = {
        {"ggqq", VERDICT_NONE},   {"gggq", VERDICT_GRANTED},  {"g", VERDICT_GRANTED},   {"h", VERDICT_HELD},
        {"l", VERDICT_LOW},       {"q", VERDICT_NONE},        {"s", VERDICT_NONE},      {".", VERDICT_OPEN},
        {"gg.", VERDICT_GRANTED}, {"g..", VERDICT_OPEN},      {"hh.", VERDICT_OPEN},    {"gss", VERDICT_NONE},
        {"gqq", VERDICT_NONE},    {"ghh", VERDICT_HELD},      {"ggh", VERDICT_GRANTED}, {"hqq", VERDICT_NONE},
        {"hss", VERDICT_HELD},    {"hgs", VERDICT_NONE},      {"gee", VERDICT_NONE},    {"eeh", VERDICT_NONE},
        {"gls", VERDICT_LOW},     {"ggl", VERDICT_GRANTED},   {"lls", VERDICT_LOW},     {"lhh", VERDICT_HELD},
        {"gg...", VERDICT_OPEN},  {"ggg..", VERDICT_GRANTED}, {"gghhs", VERDICT_NONE},  {"gghhh", VERDICT_HELD},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct vote v = vote_of(CASES[i].votes);
        if (vote_verdict(&v) != CASES[i].verdict)
            fail_msg("%s: %d", CASES[i].votes, (int)vote_verdict(&v));
    }
}

/* However witnesses answer two leases, with one answer a witness that grants: both are never granted. */
static void test_two_majorities_meet(void **state) {
    (void)state;
    for (unsigned count = 1; count <= WITNESSES_MAX; count++)
        for (unsigned grants = 0; grants < 1u << count; grants++) {
            struct vote a = {.count = count}, b = {.count = count};
            for (unsigned i = 0; i < count; i++) {
                a.answers[i] = grants >> i & 1 ? WITNESS_GRANTS : WITNESS_HOLDS;
                b.answers[i] = grants >> i & 1 ? WITNESS_HOLDS : WITNESS_GRANTS;
            }
            assert_false(vote_verdict(&a) == VERDICT_GRANTED && vote_verdict(&b) == VERDICT_GRANTED);
            assert_true(vote_majority(count) * 2 > count);
        }
}

/* A majority of the witnesses before a change and one of those behind it, in which the newcomer does not vote, have a
 * witness in common. `common` witnesses are in both; before or behind, one more may be. */
static void test_a_change_of_one_name(void **state) {
    (void)state;
    for (unsigned common = 1; common < WITNESSES_MAX; common++)
        for (unsigned before = common; before <= common + 1; before++)
            for (unsigned behind = common; behind <= common + 1; behind++) {
                unsigned old = vote_majority(before) - (before - common); /* among the common ones, at least */
                assert_true(old + vote_majority(behind) > common);
            }
}

static void test_counts(void **state) {
    (void)state;
    struct vote v = vote_of("gs.qh");
    assert_int_equal(vote_answered(&v), 3);
    assert_int_equal(vote_count(&v, WITNESS_QUARANTINED), 1);
    v = vote_of("ghs");
    assert_true(vote_may_turn(&v));
    v = vote_of("ggs");
    assert_false(vote_may_turn(&v));
    v = vote_of("hss");
    assert_false(vote_may_turn(&v));
    v = vote_of("lhq");
    assert_true(vote_may_turn(&v));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_two_majorities_meet),
        cmocka_unit_test(test_a_change_of_one_name),
        cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
