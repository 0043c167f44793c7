/* PROXY protocol headers: each vector whole, split at every byte, and with bytes behind it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/networks.h"
#include "proxy/net/proxy_header.h"

#define SIGNATURE "\r\n\r\n\0\r\nQUIT\n"

static void address_text(const struct sockaddr_storage *a, char *out, size_t size) {
    char host[INET6_ADDRSTRLEN];
    const struct sockaddr_in *in = (const void *)a;
    const struct sockaddr_in6 *in6 = (const void *)a;
    if (a->ss_family == AF_INET)
        snprintf(out, size, "%s %d", inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host)), ntohs(in->sin_port));
    else if (a->ss_family == AF_INET6)
        snprintf(out, size, "%s %d", inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host)), ntohs(in6->sin6_port));
    else
        snprintf(out, size, "%s", a->ss_family == AF_UNIX ? "unix" : "unknown");
}

/* A header is read as this client and address reached, "-" none of both; whatever the pieces. */
static void reads(const char *bytes, size_t len, const char *client, const char *reached, bool local) {
    struct proxy_header h;
    const char *wrong = "";
    for (size_t n = 0; n < len; n++)
        assert_int_equal(proxy_header_read(bytes, n, &h, &wrong), PROXY_HEADER_MORE);
    char *longer = malloc(len + 100), text[100];
    assert_non_null(longer);
    memcpy(longer, bytes, len);
    memset(longer + len, '\n', 100);
    for (size_t more = 0; more <= 100; more += 50) {
        assert_int_equal(proxy_header_read(longer, len + more, &h, &wrong), PROXY_HEADER_DONE);
        assert_int_equal(h.len, len);
        assert_int_equal(h.local, local);
        address_text(&h.client, text, sizeof(text));
        assert_string_equal(text, client);
        address_text(&h.reached, text, sizeof(text));
        assert_string_equal(text, reached);
    }
    free(longer);
}

/* Bytes are refused, from some piece of them on, and not before it is one that could not be right. */
static void refuses(const char *bytes, size_t len, const char *why) {
    struct proxy_header h;
    const char *wrong = "";
    enum proxy_header_result result = PROXY_HEADER_MORE;
    for (size_t n = 0; n <= len; n++) {
        enum proxy_header_result now = proxy_header_read(bytes, n, &h, &wrong);
        assert_true(result == PROXY_HEADER_MORE || now == result);
        result = now;
    }
    assert_int_equal(result, PROXY_HEADER_WRONG);
    if (!strstr(wrong, why))
        fail_msg("'%.*s': %s", (int)len, bytes, wrong);
}

static void reads_line(const char *line, const char *client, const char *reached) {
    reads(line, strlen(line), client, reached, false);
}

static void refuses_line(const char *line, const char *why) {
    refuses(line, strlen(line), why);
}

static void test_lines(void **state) {
    (void)state;
    reads_line("PROXY TCP4 10.0.0.5 192.168.1.1 50123 6380\r\n", "10.0.0.5 50123", "192.168.1.1 6380");
    reads_line("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", "255.255.255.255 65535",
               "255.255.255.255 65535");
    reads_line("PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n", "0.0.0.0 0", "0.0.0.0 0");
    reads_line("PROXY TCP6 fd00::5 ::1 1 2\r\n", "fd00::5 1", "::1 2");
    reads_line(
        "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535");
    reads_line("PROXY TCP6 ::ffff:10.0.0.5 ::ffff:10.0.0.1 1 2\r\n", "10.0.0.5 1", "10.0.0.1 2");
    reads_line("PROXY UNKNOWN\r\n", "unknown", "unknown");
    reads_line("PROXY UNKNOWN ffff::1 what ever 1  2 \r\n", "unknown", "unknown");
}

static void test_wrong_lines(void **state) {
    (void)state;
    static const char ADDRESSES[] = "expected two addresses and two ports", KIND[] = "expected TCP4, TCP6 or UNKNOWN";
    static const char *const BAD[] = {
        "PROXY TCP4 10.0.0.5 10.0.0.1 1\r\n",
        "PROXY TCP4 10.0.0.5 10.0.0.1 1 \r\n",
        "PROXY TCP4 10.0.0.5 10.0.0.1 1 2 \r\n",
        "PROXY TCP4 10.0.0.5 10.0.0.1 1 2 3\r\n",
        "PROXY TCP4  10.0.0.5 10.0.0.1 1 2\r\n",
        "PROXY TCP4 10.0.0.5\t10.0.0.1 1 2\r\n",
        "PROXY TCP4 10.0.0.5 10.0.0.1 1 65536\r\n",
        "PROXY TCP4 10.0.0.5 10.0.0.1 99999 1\r\n",
        "PROXY TCP4 10.0.0.5 10.0.0.1 01 1\r\n",
        "PROXY TCP4 10.0.0.5 10.0.0.1 1 -1\r\n",
        "PROXY TCP4 10.0.0.5 10.0.0.1 1 1\r\r\n",
        "PROXY TCP4 10.0.0.5 10.0.0.1 1 100000\r\n",
        "PROXY TCP4 10.0.0 10.0.0.1 1 1\r\n",
        "PROXY TCP4 ::1 ::1 1 1\r\n",
        "PROXY TCP6 10.0.0.5 10.0.0.1 1 2\r\n",
        "PROXY TCP6 fe80::1%lo ::1 1 2\r\n",
        "PROXY TCP4\r\n",
        "PROXY TCP4 \r\n",
        "PROXY TCP4 host other 1 2\r\n",
    };
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++)
        refuses_line(BAD[i], ADDRESSES);
    refuses_line("PROXY UDP4 10.0.0.5 10.0.0.1 1 2\r\n", KIND);
    refuses_line("PROXY tcp4 10.0.0.5 10.0.0.1 1 2\r\n", KIND);
    refuses_line("PROXY UNKNOWNS 10.0.0.5\r\n", KIND);
    refuses_line("PROXY \r\n", KIND);
    refuses_line("PROXY TCP4 10.0.0.5 10.0.0.1 1 2\n", "CR LF");
    refuses_line("PROXY \n", "CR LF");
    char text[200];
    memset(text, 'x', sizeof(text));
    memcpy(text, "PROXY UNKNOWN ", 14);
    refuses(text, sizeof(text), "longer than 107 bytes");
    memcpy(text + 105, "\r\n", 2); /* 107 are allowed */
    reads(text, 107, "unknown", "unknown", false);
    char nul[] = "PROXY TCP4 10.0.0.5\0 10.0.0.1 1 2\r\n";
    refuses(nul, sizeof(nul) - 1, ADDRESSES);
}

/* Puts a header of version 2 together; returns its length. */
static size_t binary(char *out, unsigned command, unsigned kind, const char *rest, size_t len) {
    memcpy(out, SIGNATURE, 12);
    out[12] = (char)command;
    out[13] = (char)kind;
    out[14] = (char)(len >> 8);
    out[15] = (char)len;
    memcpy(out + 16, rest, len);
    return 16 + len;
}

static void test_binary(void **state) {
    (void)state;
    static const char IPV4[] = "\x0a\0\0\x05\x0a\0\0\x01\x04\xd2\x18\xec\x04\0\x01x"; /* a TLV behind it */
    static const char IPV6[] = "\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x04\xd2\x18\xec";
    static const char MAPPED[] =
        "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x05\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\x04\xd2\x18\xec";
    char out[700], big[600] = {0};
    reads(out, binary(out, 0x21, 0x11, IPV4, 12), "10.0.0.5 1234", "10.0.0.1 6380", false);
    reads(out, binary(out, 0x21, 0x11, IPV4, 16), "10.0.0.5 1234", "10.0.0.1 6380", false);
    reads(out, binary(out, 0x21, 0x11, IPV4, 13), "10.0.0.5 1234", "10.0.0.1 6380", false);
    reads(out, binary(out, 0x21, 0x21, IPV6, 36), "fd00::5 1234", "::1 6380", false);
    reads(out, binary(out, 0x21, 0x21, MAPPED, 36), "10.0.0.5 1234", "10.0.0.1 6380", false);
    reads(out, binary(out, 0x21, 0x31, big, 216), "unix", "unix", false);
    reads(out, binary(out, 0x21, 0x00, big, 0), "unknown", "unknown", false);
    reads(out, binary(out, 0x21, 0x12, IPV4, 12), "unknown", "unknown", false);
    reads(out, binary(out, 0x20, 0x11, IPV4, 12), "unknown", "unknown", true);
    reads(out, binary(out, 0x20, 0x00, "", 0), "unknown", "unknown", true);
    reads(out, binary(out, 0x21, 0x11, big, 520), "0.0.0.0 0", "0.0.0.0 0", false);
}

static void test_wrong_binary(void **state) {
    (void)state;
    char out[700], big[600] = {0};
    refuses(out, binary(out, 0x21, 0x11, big, 11), "shorter than its addresses");
    refuses(out, binary(out, 0x21, 0x21, big, 35), "shorter than its addresses");
    refuses(out, binary(out, 0x21, 0x31, big, 215), "shorter than its addresses");
    refuses(out, binary(out, 0x11, 0x11, big, 12), "version is not 2");
    refuses(out, binary(out, 0x22, 0x11, big, 12), "neither LOCAL nor PROXY");
    refuses(out, binary(out, 0x21, 0x41, big, 12), "family or transport");
    refuses(out, binary(out, 0x21, 0x13, big, 12), "family or transport");
    refuses(out, binary(out, 0x21, 0x11, big, 521), "longer than 536 bytes");
}

static void test_others(void **state) {
    (void)state;
    struct proxy_header h;
    const char *wrong = "";
    static const char *const OTHERS[] = {"*1\r\n$4\r\nPING\r\n", "PING\r\n", "PROXY\r\n",
                                         "proxy TCP4 ",          "\r\nPING", "\x16\x03\x01"};
    for (size_t i = 0; i < sizeof(OTHERS) / sizeof(OTHERS[0]); i++)
        assert_int_equal(proxy_header_read(OTHERS[i], strlen(OTHERS[i]), &h, &wrong), PROXY_HEADER_NONE);
}

/* Headers with anything changed in them: a result, the same for all that begins so, and never more than is there. */
static void test_changed(void **state) {
    (void)state;
    static const char LINE[] = "PROXY TCP4 10.0.0.5 192.168.1.1 50123 6380\r\n";
    char bytes[100];
    srand(7);
    for (int round = 0; round < 100000; round++) {
        size_t len =
            round % 2 ? sizeof(LINE) - 1 : binary(bytes, 0x21, 0x11, "\x0a\0\0\x05\x0a\0\0\x01\x04\xd2\x18\xec", 12);
        if (round % 2)
            memcpy(bytes, LINE, len);
        for (int n = rand() % 4; n > 0; n--)
            bytes[(size_t)rand() % len] = (char)(rand() % 4 ? " 0159.\r\nTUCP46:"[rand() % 15] : rand());
        struct proxy_header whole, part;
        const char *wrong = NULL;
        enum proxy_header_result result = proxy_header_read(bytes, len, &whole, &wrong);
        assert_true(result != PROXY_HEADER_DONE || (whole.len > 0 && whole.len <= len));
        assert_true(result != PROXY_HEADER_WRONG || wrong);
        size_t cut = (size_t)rand() % len;
        enum proxy_header_result before = proxy_header_read(bytes, cut, &part, &wrong);
        assert_true(before == PROXY_HEADER_MORE || before == result);
        assert_true(before != PROXY_HEADER_DONE || (part.len == whole.len && part.len <= cut));
    }
}

/* ---- trusted addresses ------------------------------------------------------------------------------ */

static bool have(const struct networks *n, const char *address) {
    struct sockaddr_storage a = {.ss_family = AF_UNIX};
    if (strchr(address, ':')) {
        a.ss_family = AF_INET6;
        assert_int_equal(inet_pton(AF_INET6, address, &((struct sockaddr_in6 *)(void *)&a)->sin6_addr), 1);
    } else if (strcmp(address, "unix") != 0) {
        a.ss_family = AF_INET;
        assert_int_equal(inet_pton(AF_INET, address, &((struct sockaddr_in *)(void *)&a)->sin_addr), 1);
    }
    return networks_have(n, &a);
}

static void test_networks(void **state) {
    (void)state;
    struct networks *n = networks_new();
    struct text text = {0};
    assert_false(have(n, "10.0.0.1"));
    networks_text(n, &text);
    assert_string_equal(text.data, "no");
    static const char *const GOOD[] = {"10.0.0.0/8", "192.168.1.7", "172.16.0.0/13", "fd00::/9", "::1", "127.0.0.1/32"};
    for (size_t i = 0; i < sizeof(GOOD) / sizeof(GOOD[0]); i++)
        assert_true(networks_add(n, GOOD[i]));
    static const char *const BAD[] = {"",           "10.0.0.5/8",  "10.0.0.0/33", "10.0.0.0/",    "/8",
                                      "10.0.0.0/x", "10.0.0.0/-1", "localhost",   "10.0.0",       "::1/129",
                                      "fd00::1/64", "10.0.0.1 ",   "yes",         "10.0.0.0/0008"};
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++)
        assert_false(networks_add(n, BAD[i]));
    static const char *const IN[] = {"10.0.0.0",       "10.255.255.255", "192.168.1.7", "172.23.255.255",
                                     "fd7f::1",        "fd00::",         "::1",         "127.0.0.1",
                                     "::ffff:10.1.2.3"};
    for (size_t i = 0; i < sizeof(IN) / sizeof(IN[0]); i++)
        assert_true(have(n, IN[i]));
    static const char *const OUT[] = {"11.0.0.0", "9.255.255.255", "192.168.1.6", "172.24.0.0",     "fd80::1",
                                      "::2",      "127.0.0.2",     "unix",        "::ffff:11.1.2.3"};
    for (size_t i = 0; i < sizeof(OUT) / sizeof(OUT[0]); i++)
        assert_false(have(n, OUT[i]));
    assert_true(networks_add(n, "UNIX"));
    assert_true(have(n, "unix"));
    text.len = 0;
    networks_text(n, &text);
    assert_string_equal(text.data, "10.0.0.0/8 192.168.1.7 172.16.0.0/13 fd00::/9 ::1 127.0.0.1 unix");
    networks_unref(n);
    n = networks_new();
    assert_true(networks_add(n, "0.0.0.0/0"));
    assert_true(have(n, "1.2.3.4"));
    assert_false(have(n, "::1"));
    networks_add_all(n);
    assert_true(have(n, "::1") && have(n, "unix"));
    networks_unref(networks_ref(n));
    networks_unref(n);
    networks_unref(NULL);
    text_clear(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),        cmocka_unit_test(test_wrong_lines), cmocka_unit_test(test_binary),
        cmocka_unit_test(test_wrong_binary), cmocka_unit_test(test_others),      cmocka_unit_test(test_changed),
        cmocka_unit_test(test_networks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
