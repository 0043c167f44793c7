/*
 * Replies: they end at the same byte whether the stream comes whole or in pieces. Reading a framed reply stays within
 * it, and ends at its end, unless one of its lines does not match its type.
 *
 * Input: four bytes of cuts, then the stream.
 */
#include "parser/resp.h"
#include "tests/fuzz/fuzz.h"

static enum resp_status frame_cut(struct resp_reply *r, struct cuts *cuts, const uint8_t *data, size_t size,
                                  size_t *used_in_all) {
    size_t at = 0;
    enum resp_status status = RESP_MORE;
    while (status == RESP_MORE && at < size) {
        size_t piece = cuts_next(cuts);
        if (piece > size - at) {
            piece = size - at;
        }
        char *copy = exact_copy(data + at, piece);
        size_t used;
        status = resp_reply_scan(r, copy, piece, &used);
        free(copy);
        CHECK(used <= piece && (status != RESP_MORE || used == piece));
        at += used;
    }
    *used_in_all = at;
    return status;
}

/* Walks through a framed reply. */
static void check_items(const char *data, size_t size) {
    const char *p = data;
    const char *end = data + size;
    int64_t pending = 1;
    while (pending > 0) {
        const char *before = p;
        struct resp_item item;
        if (!resp_item_read(&p, end, &item)) {
            /* The framer does not look at what these say. */
            CHECK(p == before && (*p == ':' || *p == '#' || *p == '_'));
            return;
        }
        CHECK(item.type == *before && p > before && p <= end);
        CHECK(item.str > before && item.str + item.len <= p);
        int aggregate = strchr("*~>%|", item.type) != NULL;
        CHECK(!item.null || (item.len == 0 && strchr("$*_", item.type)));
        pending += (aggregate ? item.num : 0) - (item.type == '|' ? 0 : 1);
    }
    CHECK(p == end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cuts cuts;
    if (!cuts_take(&cuts, &data, &size)) {
        return 0;
    }
    enum resp_status status = RESP_OK;
    while (status == RESP_OK && size) {
        struct resp_reply whole;
        struct resp_reply cut;
        size_t used;
        size_t used_cut;
        char *copy = exact_copy(data, size);
        resp_reply_init(&whole);
        resp_reply_init(&cut);
        size_t quick = resp_reply_quick(copy, size);
        status = resp_reply_scan(&whole, copy, size, &used);
        CHECK(quick == 0 || (status == RESP_OK && used == quick && whole.type != '-' && whole.type != '>'));
        CHECK(used <= size);
        CHECK(frame_cut(&cut, &cuts, data, size, &used_cut) == status);
        CHECK(cut.type == whole.type);
        CHECK((resp_item_end(copy, copy + size) != NULL) == (status == RESP_OK));
        free(copy);
        if (status == RESP_OK) {
            CHECK(used == used_cut && used > 0);
            copy = exact_copy(data, used);
            CHECK(resp_item_end(copy, copy + used) == copy + used);
            CHECK(resp_item_end(copy, copy + used - 1) == NULL);
            check_items(copy, used);
            free(copy);
            data += used;
            size -= used;
        }
    }
    /* Items are read from anything without leaving it. */
    char *copy = exact_copy(data, size);
    const char *p = copy;
    struct resp_item item;
    while (resp_item_read(&p, copy + size, &item)) {
        CHECK(p <= copy + size);
    }
    free(copy);
    return 0;
}
