/*
 * Inline lines: the output stays within the bound and is one canonical request; its words, quoted byte for byte, give
 * the same request again.
 *
 * Input: the line.
 */
#include "parser/resp.h"
#include "tests/fuzz/fuzz.h"

/* Encodes a line into a buffer of exactly the promised size, which is the caller's. */
static char *encode(const char *line, size_t len, int64_t *encoded) {
    char *out = malloc(resp_inline_bound(len));
    CHECK(out);
    *encoded = resp_inline_encode(line, len, out);
    CHECK(*encoded >= -1 && *encoded <= (int64_t)resp_inline_bound(len));
    return out;
}

/* All words as "\xHH\xHH...", which is the caller's. */
static char *quote(const struct resp_request *r, const char *data, size_t *len) {
    static const char hex[] = "0123456789abcdefABCDEF";
    size_t size = 0;
    for (size_t i = 0; i < r->argc; i++) {
        size += 4 * r->argv[i].len + 3;
    }
    char *line = malloc(size);
    CHECK(line);
    char *p = line;
    for (size_t i = 0; i < r->argc; i++) {
        *p++ = '"';
        for (size_t k = 0; k < r->argv[i].len; k++) {
            unsigned byte = (unsigned char)data[r->argv[i].off + k];
            *p++ = '\\';
            *p++ = 'x';
            *p++ = hex[byte >> 4];
            *p++ = hex[(byte & 15) >= 10 && k % 2 ? (byte & 15) + 6 : byte & 15];
        }
        *p++ = '"';
        *p++ = i % 2 ? ' ' : '\v';
    }
    *len = (size_t)(p - line);
    return line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct resp_limits limits = {INT64_MAX, false};
    char *line = exact_copy(data, size);
    int64_t encoded;
    char *out = encode(line, size, &encoded);
    if (encoded > 0) {
        struct resp_request r;
        resp_request_init(&r);
        char *request = exact_copy(out, (size_t)encoded);
        CHECK(resp_request_scan(&r, request, (size_t)encoded, &limits) == RESP_OK);
        CHECK(r.form == RESP_MULTIBULK && r.len == (size_t)encoded && !r.irregular && r.argc > 0);
        size_t quoted_len;
        int64_t again_len;
        char *quoted = quote(&r, request, &quoted_len);
        char *again = encode(quoted, quoted_len, &again_len);
        CHECK(again_len == encoded && memcmp(again, request, (size_t)encoded) == 0);
        free(again);
        free(quoted);
        free(request);
        resp_request_clear(&r);
    }
    free(out);
    free(line);
    return 0;
}
