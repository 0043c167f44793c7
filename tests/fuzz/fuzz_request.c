/*
 * Requests: the stream's requests are the same whether it comes whole or in pieces; arguments lie within their request;
 * encoding a regular request anew gives the same bytes; an irregular or inline one, encoded anew, is regular and has
 * the same arguments; keys are arguments; the rest of a request has the same end without its beginning.
 *
 * Input: four bytes of cuts, one of limits, then the stream.
 */
#include "parser/command.h"
#include "parser/resp.h"
#include "tests/fuzz/fuzz.h"

static const struct resp_limits NO_LIMITS = {INT64_MAX, false};

/* Writes the request's arguments as a canonical multibulk; the result is the caller's. */
static char *encode(const struct resp_request *r, const char *data, size_t *len) {
    size_t size = RESP_HEADER_MAX;
    for (size_t i = 0; i < r->argc; i++) {
        size += resp_bulk_size(r->argv[i].len);
    }
    char *out = malloc(size);
    CHECK(out);
    char *p = out + resp_header_write(out, '*', (int64_t)r->argc);
    for (size_t i = 0; i < r->argc; i++) {
        p = resp_bulk_write(p, data + r->argv[i].off, r->argv[i].len);
    }
    *len = (size_t)(p - out);
    CHECK(*len <= size);
    return out;
}

static void check_keys(const struct resp_request *r, const char *data) {
    size_t len;
    const char *name = request_arg(r, data, 0, &len);
    const struct command *c = command_lookup(name, len);
    CHECK(command_of_request(r, data) == c);
    if (!c || !command_arity_ok(c, r->argc)) {
        return;
    }
    uint32_t *keys = calloc(r->argc, sizeof *keys);
    CHECK(keys);
    int count = command_keys(c, data, r, keys, r->argc);
    CHECK(count >= -1 && count <= (int)r->argc);
    for (int i = 0; i < count; i++) {
        CHECK(keys[i] >= 1 && keys[i] < r->argc);
    }
    CHECK(command_keys(c, data, r, NULL, 0) == count);
    (void)command_blocks(c, data, r);
    free(keys);
}

/* What holds for a multibulk by itself. */
static void check_multibulk(const struct resp_request *r, const char *data) {
    CHECK(r->argc > 0);
    size_t at = 0;
    for (size_t i = 0; i < r->argc; i++) {
        CHECK(r->argv[i].off > at && r->argv[i].off + r->argv[i].len + 2 <= r->len);
        at = r->argv[i].off + r->argv[i].len + 1;
    }
    size_t len;
    char *canonical = encode(r, data, &len);
    CHECK(len == r->len);
    CHECK(r->irregular == (memcmp(canonical, data, len) != 0));
    struct resp_request again;
    resp_request_init(&again);
    CHECK(resp_request_scan(&again, canonical, len, &NO_LIMITS) == RESP_OK);
    CHECK(!again.irregular && again.len == len && again.argc == r->argc);
    CHECK(memcmp(again.argv, r->argv, r->argc * sizeof *r->argv) == 0);
    resp_request_clear(&again);
    free(canonical);
    check_keys(r, data);
}

static void check_inline(const struct resp_request *r, const char *data) {
    CHECK(r->line_len > 0 && r->line_len < r->len && data[r->len - 1] == '\n');
    CHECK(!memchr(data, '\n', r->line_len) && !memchr(data, '\0', r->line_len));
    char *out = malloc(resp_inline_bound(r->line_len));
    CHECK(out);
    int64_t len = resp_inline_encode(data, r->line_len, out);
    if (len > 0) {
        struct resp_request again;
        resp_request_init(&again);
        char *copy = exact_copy(out, (size_t)len);
        CHECK(resp_request_scan(&again, copy, (size_t)len, &NO_LIMITS) == RESP_OK);
        CHECK(again.form == RESP_MULTIBULK && !again.irregular && again.len == (size_t)len);
        check_multibulk(&again, copy);
        free(copy);
        resp_request_clear(&again);
    }
    free(out);
}

static void check_result(const struct resp_request *r, const char *data, size_t size) {
    CHECK(r->len > 0 && r->len <= size);
    switch (r->form) {
    case RESP_EMPTY:
        CHECK(r->argc == 0);
        break;
    case RESP_MULTIBULK:
        check_multibulk(r, data);
        break;
    case RESP_INLINE:
        check_inline(r, data);
        break;
    }
}

static void check_same(const struct resp_request *a, const struct resp_request *b) {
    CHECK(a->form == b->form && a->len == b->len && a->irregular == b->irregular && a->argc == b->argc);
    CHECK(a->form != RESP_INLINE || a->line_len == b->line_len);
    CHECK(memcmp(a->argv, b->argv, a->argc * sizeof *a->argv) == 0);
}

/* The rest of a request behind its first `head` bytes ends where the request does, and errs where it does. */
static void check_body(struct cuts *cuts, const uint8_t *data, size_t size, size_t head,
                       const struct resp_limits *limits, const struct resp_request *whole, enum resp_status expected) {
    struct resp_request beginning;
    resp_request_init(&beginning);
    char *copy = exact_copy(data, head);
    enum resp_status status = resp_request_scan(&beginning, copy, head, limits);
    free(copy);
    if (status == RESP_MORE && beginning.pos > 0) {
        struct resp_body body;
        size_t at = beginning.pos, used = 0;
        resp_body_init(&body, &beginning);
        for (status = RESP_MORE; status == RESP_MORE && at < size; at += used) {
            size_t piece = cuts_next(cuts);
            piece = piece < size - at ? piece : size - at;
            copy = exact_copy(data + at, piece);
            status = resp_body_scan(&body, copy, piece, limits, &used);
            free(copy);
            CHECK(used <= piece && (status != RESP_MORE || used == piece));
        }
        CHECK(status == expected);
        CHECK(status != RESP_OK || at == whole->len);
        CHECK(status != RESP_BAD || strcmp(body.error, whole->error) == 0);
    }
    resp_request_clear(&beginning);
}

/* Scans one request that comes in pieces. */
static enum resp_status scan_cut(struct resp_request *r, struct cuts *cuts, const uint8_t *data, size_t size,
                                 const struct resp_limits *limits) {
    size_t have = 0;
    for (;;) {
        char *copy = exact_copy(data, have);
        enum resp_status status = resp_request_scan(r, copy, have, limits);
        free(copy);
        if (status != RESP_MORE || have == size) {
            return status;
        }
        size_t piece = cuts_next(cuts);
        have = piece < size - have ? have + piece : size;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cuts cuts;
    if (!cuts_take(&cuts, &data, &size) || size < 1) {
        return 0;
    }
    const struct resp_limits limits = {data[0] & 2 ? 100 : 512 * 1024 * 1024, data[0] & 1};
    data++;
    size--;
    static bool initialised;
    if (!initialised) {
        command_table_init();
        initialised = true;
    }

    struct resp_request whole;
    struct resp_request cut;
    resp_request_init(&whole);
    resp_request_init(&cut);
    enum resp_status status = RESP_OK;
    while (status == RESP_OK && size) {
        char *copy = exact_copy(data, size);
        status = resp_request_scan(&whole, copy, size, &limits);
        CHECK(scan_cut(&cut, &cuts, data, size, &limits) == status);
        check_body(&cuts, data, size, cuts_next(&cuts) % size, &limits, &whole, status);
        if (status == RESP_BAD) {
            CHECK(strncmp(whole.error, "Protocol error: ", 16) == 0);
            CHECK(strcmp(whole.error, cut.error) == 0);
        } else if (status == RESP_OK) {
            check_result(&whole, copy, size);
            check_same(&whole, &cut);
            data += whole.len;
            size -= whole.len;
            resp_request_reset(&whole);
            resp_request_reset(&cut);
        }
        free(copy);
    }
    resp_request_clear(&whole);
    resp_request_clear(&cut);
    return 0;
}
