/*
 * A hash of Redis: fields with their values, texts of any length. A guard record is a hash of this kind. It is small,
 * or is asked for few of its fields: they are looked through one after another. In its short form, a guard record is a
 * string instead.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A text that owns its bytes, with a NUL behind them. */
struct record_text {
    char *data;
    size_t len, room;
};

struct record_field {
    struct record_text name, value;
    uint32_t mark; /* made of the name: other marks, other names */
};

/* All zero is one without fields. What is behind `count` keeps its memory for later fields. */
struct record {
    struct record_field *fields;
    unsigned count, room;
    bool is_text; /* the short form; then there are no fields */
    struct record_text text;
};

/* Whether the key exists. */
bool record_exists(const struct record *r);
/* The record becomes this text, copied. */
void record_make_text(struct record *r, const char *text, size_t len);

/* The field's value, borrowed until the record is changed; NULL: there is no such field. */
const struct record_text *record_get(const struct record *r, const char *name, size_t len);
/* Sets a field's value, both copied. Whether the field is new. */
bool record_set(struct record *r, const char *name, size_t len, const char *value, size_t value_len);
/* Removes a field. Whether there was one. */
bool record_remove(struct record *r, const char *name, size_t len);
/* Removes all fields, or the text. */
void record_clear(struct record *r);
/* Gives back the memory; the record is one without fields again. */
void record_free(struct record *r);
