/* Key slots against values of the specification and of redis-server, and the tags, which may never change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "parser/slot.h"

static uint16_t slot_of(const char *key) {
    return slot_of_key(key, strlen(key));
}

static void test_crc16(void **state) {
    (void)state;
    assert_int_equal(slot_crc16("123456789", 9), 0x31c3);
    assert_int_equal(slot_crc16("", 0), 0);
    assert_int_equal(slot_crc16("\xff\x00\x80", 3), 0x5eeb);
}

/* What CLUSTER KEYSLOT of redis-server 7.0 answers. */
static void test_slots_of_keys(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint16_t slot;
    } keys[] = {
        {"", 0},
        {"foo", 12182},
        {"somekey", 11058},
        {"lock:report", 13605},
        {"user1000", 3443},
        {"{user1000}.following", 3443},
        {"{user1000}.followers", 3443},
        {"x{user1000}", 3443},
        {"{user1000", 8723},
        {"user1000}", 1363},
        {"foo{}{bar}", 8363},
        {"{}", 15257},
        {"foo{{bar}}zap", 4015},
        {"{bar", 4015},
        {"foo{bar}{zap}", 5061},
        {"bar", 5061},
        {"}foo{bar}", 5061},
        {"\xe9{\xff}", 7920},
        {"\xff", 7920},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        assert_int_equal(slot_of(keys[i].key), keys[i].slot);
    }
    assert_int_equal(slot_of_key("a\0{bar}", 7), 5061);
    assert_int_equal(slot_of_key(NULL, 0), 0);
}

static uint16_t slot_bit_by_bit(const char *key, size_t len) {
    unsigned crc = 0;
    for (size_t i = 0; i < len; i++) {
        crc ^= (unsigned)(unsigned char)key[i] << 8;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 0x8000 ? (crc << 1 ^ 0x1021) & 0xffff : crc << 1;
        }
    }
    return (uint16_t)(crc % SLOT_COUNT);
}

/* Keys are taken in steps of several bytes: all lengths, and tags at all places. */
static void test_all_lengths(void **state) {
    (void)state;
    char key[40] = "";
    for (size_t len = 0; len <= sizeof key; len++) {
        for (size_t i = 0; i < len; i++) {
            key[i] = (char)(i * 37 + len * 11 + 128);
            key[i] = key[i] == '{' || key[i] == '}' ? '\0' : key[i];
        }
        assert_int_equal(slot_of_key(key, len), slot_bit_by_bit(key, len));
        for (size_t open = 0; open < len; open++) {
            char tagged[sizeof key];
            memcpy(tagged, key, len);
            tagged[open] = '{';
            assert_int_equal(slot_of_key(tagged, len), slot_bit_by_bit(tagged, len));
            if (len - open > 2) {
                tagged[len - 1] = '}';
                assert_int_equal(slot_of_key(tagged, len), slot_bit_by_bit(tagged + open + 1, len - open - 2));
            }
        }
    }
}

static void test_tags(void **state) {
    (void)state;
    slot_tags_init();
    for (unsigned slot = 0; slot < SLOT_COUNT; slot++) {
        const char *tag = slot_tag((uint16_t)slot);
        size_t len = strlen(tag);
        assert_true(len >= 1 && len <= SLOT_TAG_MAX);
        assert_int_equal(strspn(tag, "0123456789abcdefghijklmnopqrstuvwxyz"), len);
        assert_int_equal(slot_of_key(tag, len), slot);
        char key[64] = "lockkeeper:{";
        strcat(key, tag);
        strcat(key, "}:a{b}c");
        assert_int_equal(slot_of(key), slot);
    }
}

/* Guard records are found by names that hold these tags, by proxies of all versions: if this test fails, the code
 * is wrong, never the test. */
static void test_tags_never_change(void **state) {
    (void)state;
    static const struct {
        uint16_t slot;
        const char *tag;
    } some[] = {{0, "1bz"},     {1, "emj"},     {2, "7lw"},    {100, "0or"},   {5460, "g1m"},
                {5461, "3zu"},  {8191, "7ho"},  {8192, "fjl"}, {10922, "bxv"}, {10923, "63n"},
                {12739, "za2"}, {16382, "4oi"}, {16383, "hia"}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        assert_string_equal(slot_tag(some[i].slot), some[i].tag);
    }
    /* All of them at once: the sum of (slot + 1) times the tag read as a number to the base 36, and the length. */
    uint64_t sum = 0;
    size_t letters = 0;
    for (unsigned slot = 0; slot < SLOT_COUNT; slot++) {
        uint64_t number = 0;
        for (const char *c = slot_tag((uint16_t)slot); *c; c++) {
            number = number * 36 + (uint64_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
            letters++;
        }
        sum += (slot + 1) * number;
    }
    assert_true(sum == 1482219439485u);
    assert_int_equal(letters, 64445 - SLOT_COUNT);
}

/* A second call changes nothing: what others hold stays what it is. */
static void test_init_twice(void **state) {
    (void)state;
    const char *tag = slot_tag(77);
    char before[SLOT_TAG_MAX + 1];
    strcpy(before, tag);
    slot_tags_init();
    assert_ptr_equal(slot_tag(77), tag);
    assert_string_equal(tag, before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc16),      cmocka_unit_test(test_slots_of_keys),
        cmocka_unit_test(test_tags),       cmocka_unit_test(test_tags_never_change),
        cmocka_unit_test(test_init_twice), cmocka_unit_test(test_all_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
