/*
 * A node's descriptions of commands, and requests for these commands: for any description, its rows only lead to
 * arguments of the request.
 *
 * Input: an element of COMMAND INFO's reply, then a request.
 */
#include "parser/command_info.h"
#include "parser/resp.h"
#include "tests/fuzz/fuzz.h"

static void check_row(const struct command_info *info, const struct resp_request *r, const char *data) {
    const struct command_info *row = command_info_of(info, data, r);
    CHECK(row);
    if (!command_arity_ok(&row->command, r->argc))
        return;
    uint32_t *keys = calloc(r->argc, sizeof *keys);
    CHECK(keys);
    int count = command_keys(&row->command, data, r, keys, r->argc);
    CHECK(count >= -1 && count <= (int)r->argc);
    for (int i = 0; i < count; i++)
        CHECK(keys[i] >= 1 && keys[i] < r->argc);
    CHECK(command_keys(&row->command, data, r, NULL, 0) == count);
    (void)command_blocks(&row->command, data, r);
    free(keys);
}

static void check_request(const struct command_info *info, const char *data, size_t size) {
    const struct resp_limits limits = {INT64_MAX, false};
    struct resp_request r;
    resp_request_init(&r);
    if (resp_request_scan(&r, data, size, &limits) == RESP_OK && r.form == RESP_MULTIBULK)
        check_row(info, &r, data);
    resp_request_clear(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool initialised;
    if (!initialised) {
        command_table_init();
        initialised = true;
    }
    struct resp_reply frame;
    size_t used;
    resp_reply_init(&frame);
    if (resp_reply_scan(&frame, (const char *)data, size, &used) != RESP_OK)
        return 0;
    char *element = exact_copy(data, used);
    char *request = exact_copy(data + used, size - used);
    struct command_info *info = command_info_read(element, element + used);
    free(element); /* it keeps what it needs */
    if (info)
        check_request(info, request, size - used);
    command_info_free(info);
    free(request);
    return 0;
}
