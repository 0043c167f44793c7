/*
 * The arguments of requests: reads them, as keys or for messages, and encodes them, for the proxy's own requests.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/request.h"

void build_start(struct worker *w, size_t argc) {
    w->build.len = 0;
    text_commit(&w->build, resp_header_write(text_reserve(&w->build, RESP_HEADER_MAX), '*', (int64_t)argc));
}

void append_bulk(struct text *out, const void *data, size_t len) {
    char *at = text_reserve(out, resp_bulk_size(len));
    text_commit(out, (size_t)(resp_bulk_write(at, data, len) - at));
}

void append_page(struct text *out, bool resp3, const char *page, size_t len) {
    text_printf(out, resp3 ? "=%zu\r\ntxt:" : "$%zu\r\n", len + (resp3 ? 4 : 0));
    text_append(out, page, len);
    text_append(out, "\r\n", 2);
}

void build_bulk(struct worker *w, const void *data, size_t len) {
    append_bulk(&w->build, data, len);
}

void build_text(struct worker *w, const char *text) {
    build_bulk(w, text, strlen(text));
}

void build_number(struct worker *w, int64_t n) {
    char line[RESP_HEADER_MAX]; /* the header's type and CR LF around the digits are not copied */
    build_bulk(w, line + 1, resp_header_write(line, ':', n) - 3);
}

void build_lock_question(struct worker *w, int slot) {
    char key[64];
    snprintf(key, sizeof(key), "lockkeeper:{%s}", slot_tag((uint16_t)(slot == SLOT_NONE ? 0 : slot)));
    build_start(w, 4);
    build_text(w, "SET");
    build_text(w, key);
    build_text(w, "");
    build_text(w, "XX");
}

const char *request_arg_text(const struct resp_request *r, const char *bytes, size_t i, char *out, size_t size) {
    invariant(i < r->argc && size > 0, "argument %zu of %zu", i, r->argc);
    size_t len;
    const char *arg = request_arg(r, bytes, i, &len);
    if (len >= size)
        len = size - 1;
    memcpy(out, arg, len);
    out[len] = '\0';
    return out;
}

void key_list_find(struct key_list *list, const struct command *c, const struct resp_request *r, const char *bytes) {
    list->keys = list->on_stack;
    list->count = command_keys(c, bytes, r, list->keys, KEYS_ON_STACK);
    if (list->count > KEYS_ON_STACK) {
        list->keys = memory_alloc((size_t)list->count * sizeof(*list->keys));
        list->count = command_keys(c, bytes, r, list->keys, (size_t)list->count);
        invariant(list->count > KEYS_ON_STACK, "%d keys at the second look", list->count);
    }
}

void key_list_clear(struct key_list *list) {
    if (list->keys != list->on_stack)
        memory_free(list->keys);
}

int key_list_slot(const struct resp_request *r, const char *bytes, const uint32_t *keys, size_t count) {
    int slot = SLOT_NONE;
    for (size_t i = 0; i < count; i++) {
        size_t len;
        invariant_debug(keys[i] < r->argc, "argument %u of %zu is a key", keys[i], r->argc);
        const char *key = request_arg(r, bytes, keys[i], &len);
        int this = slot_of_key(key, len);
        if (slot >= 0 && this != slot)
            return SLOT_SEVERAL;
        slot = this;
    }
    return slot;
}
