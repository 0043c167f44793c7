/*
 * The arguments of requests: as keys, for messages, and encoded for the proxy's own requests; and classes of requests:
 * keys, rules and slot, each looked up once. It knows no lock commands.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/class.h"

void build_start(struct worker *w, size_t argc) {
    w->build.len = 0;
    text_commit(&w->build, resp_header_write(text_reserve(&w->build, RESP_HEADER_MAX), '*', (int64_t)argc));
}

void append_page(struct text *out, bool resp3, const char *page, size_t len) {
    text_printf(out, resp3 ? "=%zu\r\ntxt:" : "$%zu\r\n", len + (resp3 ? 4 : 0));
    text_append(out, page, len);
    text_append(out, "\r\n", 2);
}

void build_bulk(struct worker *w, const void *data, size_t len) {
    char *at = text_reserve(&w->build, resp_bulk_size(len));
    text_commit(&w->build, (size_t)(resp_bulk_write(at, data, len) - at));
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

int request_arg_choice(const struct resp_request *r, const char *bytes, size_t i, const char *const *words) {
    for (int at = 0; words[at]; at++)
        if (request_arg_is(r, bytes, i, words[at]))
            return at;
    return -1;
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

int key_list_slot(const struct session *s, const struct resp_request *r, const char *bytes, const uint32_t *keys,
                  size_t count) {
    int slot = SLOT_NONE;
    if (!upstream_is_cluster(s->worker->upstream))
        return count > 0 ? 0 : SLOT_NONE;
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

/* ---- classes ---------------------------------------------------------------------------------------- */

inline const struct lock_rule *lock_rule_for(struct session *s, const char *key, size_t len) {
    const struct lock_rule *rule = lock_rules_match(s->worker->rules, key, len);
    return rule && rule->mode == LOCK_MODE_ENFORCE && !lock_guard_is(key, len) ? rule : NULL;
}

inline const struct lock_rule *lock_rule_watched(struct session *s, const char *key, size_t len) {
    const struct lock_rule *rule = lock_rules_watch(s->worker->rules, key, len);
    bool watched = rule && (rule->mode == LOCK_MODE_ENFORCE ||
                            (rule->mode == LOCK_MODE_AUDIT && len <= LOCK_NAME_MAX) || rule->fence || rule->permits);
    return watched && !lock_guard_is(key, len) ? rule : NULL;
}

void class_begin(struct request_class *k, const struct command *c, const struct resp_request *r, const char *bytes) {
    k->command = c;
    k->request = r;
    k->bytes = bytes;
    k->key_count = 0;
    k->keys = k->list.keys = k->list.on_stack;
    k->rules = k->few_rules;
    k->enforced = k->audited = k->fenced = k->semaphores = k->writes_guard = k->replicas = false;
    k->slot = SLOT_NONE;
}

/* Notes the rule of a key. Few requests with many keys have locks among them: the first allocates `rules`. */
static void take_rule(struct request_class *k, size_t i, const struct lock_rule *rule) {
    invariant_debug(i < k->key_count, "key %zu of %zu", i, k->key_count);
    if (rule && rule->fence) { /* a fence is no lock rule */
        k->fenced = true;
        rule = NULL;
    }
    if (rule && !k->rules)
        k->rules = memory_zalloc(k->key_count * sizeof(struct lock_rule *));
    if (k->rules)
        k->rules[i] = rule;
    k->enforced = k->enforced || (rule && rule->mode == LOCK_MODE_ENFORCE);
    k->audited = k->audited || (rule && rule->mode == LOCK_MODE_AUDIT);
    k->semaphores = k->semaphores || (rule && rule->permits);
}

static inline void class_keys(struct request_class *k, const struct command *c, const struct resp_request *r,
                              const char *bytes) {
    class_begin(k, c, r, bytes);
    key_list_find(&k->list, c, r, bytes);
    k->key_count = k->list.count > 0 ? (size_t)k->list.count : 0;
    k->keys = k->list.keys;
}

void class_find(struct request_class *k, struct session *s, const struct command *c, const struct resp_request *r,
                const char *bytes) {
    class_keys(k, c, r, bytes);
    invariant_debug(k->key_count < r->argc, "%zu keys of %zu arguments", k->key_count, r->argc);
    if (k->key_count > KEYS_ON_STACK)
        k->rules = NULL;
    bool writes = !(c->flags & COMMAND_READONLY);
    for (size_t i = 0; i < k->key_count; i++) {
        size_t len;
        const char *key = class_key(k, i, &len);
        take_rule(k, i, lock_rule_watched(s, key, len));
        k->writes_guard = k->writes_guard || (writes && key_is_guard(key, len));
    }
    k->slot = key_list_slot(s, r, bytes, k->keys, k->key_count);
}

void class_find_again(struct request_class *k, const struct command *c, const struct resp_request *r, const char *bytes,
                      int slot) {
    class_keys(k, c, r, bytes);
    invariant(slot >= SLOT_SEVERAL && slot < SLOT_COUNT, "slot %d", slot);
    k->rules = NULL;
    k->fenced = true;
    k->slot = slot;
}

void class_narrow(struct request_class *k, uint32_t key, const struct lock_rule *rule) {
    invariant_debug(key > 0 && key < k->request->argc, "argument %u of %zu is a key", key, k->request->argc);
    k->one_key = key;
    k->keys = &k->one_key;
    k->key_count = 1;
    k->enforced = k->audited = k->fenced = k->semaphores = false;
    take_rule(k, 0, rule);
}

void class_of_key(struct request_class *k, struct session *s, uint32_t key, const struct lock_rule *rule) {
    class_narrow(k, key, rule);
    size_t len;
    const char *name = class_key(k, 0, &len);
    k->writes_guard = !(k->command->flags & COMMAND_READONLY) && key_is_guard(name, len);
    k->slot = key_list_slot(s, k->request, k->bytes, k->keys, 1);
}

void class_clear(struct request_class *k) {
    if (k->rules != k->few_rules)
        memory_free((void *)k->rules);
    key_list_clear(&k->list);
}

size_t class_locks(const struct request_class *k) {
    size_t locks = 0;
    for (size_t i = 0; i < k->key_count; i++)
        locks += class_enforced(k, i) != NULL;
    return locks;
}
