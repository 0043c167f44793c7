/*
 * Hash locks in the model: the fields under a lock key, each a holder's; one of them is what the guard record knows.
 * Included by model.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { HASH_FIELDS = 16, HASH_FIELD = 24 };

#define HASH_MODE "mode" /* the field that read locks have besides their readers'; what it says is 'read' */

struct model_field {
    char name[HASH_FIELD];
    int64_t count, expire_ms; /* 0: the field ends with its key */
};

struct model_fields {
    unsigned count;
    struct model_field at[HASH_FIELDS]; /* what is not used is zero */
};

/* The place of a field, or -1. */
int hash_find(const struct model_fields *h, const char *name);
bool hash_has(const struct model_fields *h, const char *name);
