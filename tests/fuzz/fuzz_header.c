/*
 * PROXY protocol headers: any bytes give one result, which does not depend on how many of the following bytes are
 * there, and a header has the length that it states.
 *
 * Input: the bytes from a load balancer.
 */
#include "proxy/net/proxy_header.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct proxy_header header, again;
    const char *wrong = NULL;
    enum proxy_header_result result = PROXY_HEADER_MORE;
    for (size_t n = 0; n <= size; n++) {
        char *exact = malloc(n ? n : 1); /* nothing behind it may be read */
        CHECK(exact);
        memcpy(exact, data, n);
        enum proxy_header_result now = proxy_header_read(exact, n, &again, &wrong);
        free(exact);
        CHECK(now != PROXY_HEADER_MORE || n < PROXY_HEADER_MAX);
        CHECK(now != PROXY_HEADER_WRONG || wrong);
        if (result == PROXY_HEADER_DONE)
            CHECK(now == PROXY_HEADER_DONE && memcmp(&header, &again, sizeof(header)) == 0);
        else if (result != PROXY_HEADER_MORE)
            CHECK(now == result);
        else if (now == PROXY_HEADER_DONE)
            CHECK(again.len == n && (again.client.ss_family == again.reached.ss_family || !again.local));
        header = again;
        result = now;
        if (n > PROXY_HEADER_MAX + 16)
            break;
    }
    return 0;
}
