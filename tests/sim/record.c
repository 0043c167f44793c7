/*
 * The fields of a hash, in one array without gaps.
 */
#include "tests/sim/record.h"

#include <string.h>

#include "proxy/base/memory.h"

/* Names differ at their beginning, their end, or in their length. */
static uint32_t mark_of(const char *name, size_t len) {
    uint32_t mark = (uint32_t)len;
    for (size_t i = 0; i < len && i < 2; i++)
        mark = mark * 31 + (unsigned char)name[i];
    for (size_t i = len > 6 ? len - 4 : 2; i < len; i++)
        mark = mark * 31 + (unsigned char)name[i];
    return mark;
}

static struct record_field *find(const struct record *r, const char *name, size_t len) {
    uint32_t mark = mark_of(name, len);
    for (struct record_field *f = r->fields, *end = f + r->count; f != end; f++)
        if (f->mark == mark && f->name.len == len && memcmp(f->name.data, name, len) == 0)
            return f;
    return NULL;
}

static void text_set(struct record_text *t, const char *data, size_t len) {
    if (len >= t->room) {
        t->room = len + 24;
        t->data = memory_realloc(t->data, t->room);
    }
    memcpy(t->data, data, len);
    t->data[len] = '\0';
    t->len = len;
}

const struct record_text *record_get(const struct record *r, const char *name, size_t len) {
    const struct record_field *f = find(r, name, len);
    return f ? &f->value : NULL;
}

static struct record_field *add(struct record *r, const char *name, size_t len) {
    if (r->count == r->room) {
        unsigned room = r->room ? 2 * r->room : 16;
        r->fields = memory_realloc(r->fields, room * sizeof(r->fields[0]));
        memset(r->fields + r->room, 0, (room - r->room) * sizeof(r->fields[0]));
        r->room = room;
    }
    struct record_field *f = &r->fields[r->count++];
    text_set(&f->name, name, len);
    f->mark = mark_of(name, len);
    return f;
}

bool record_set(struct record *r, const char *name, size_t len, const char *value, size_t value_len) {
    struct record_field *f = find(r, name, len);
    bool is_new = !f;
    if (is_new)
        f = add(r, name, len);
    text_set(&f->value, value, value_len);
    return is_new;
}

bool record_remove(struct record *r, const char *name, size_t len) {
    struct record_field *f = find(r, name, len);
    if (!f)
        return false;
    struct record_field gone = *f;
    *f = r->fields[--r->count];
    r->fields[r->count] = gone;
    return true;
}

bool record_exists(const struct record *r) {
    return r->count > 0 || r->is_text;
}

void record_make_text(struct record *r, const char *text, size_t len) {
    record_clear(r);
    r->is_text = true;
    text_set(&r->text, text, len);
}

void record_clear(struct record *r) {
    r->count = 0;
    r->is_text = false;
}

void record_free(struct record *r) {
    for (unsigned i = 0; i < r->room; i++) {
        memory_free(r->fields[i].name.data);
        memory_free(r->fields[i].value.data);
    }
    memory_free(r->fields);
    memory_free(r->text.data);
    *r = (struct record){.count = 0};
}
