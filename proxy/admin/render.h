/*
 * What operators read: PROXY's replies as RESP, from facts that are handed in. Knows neither sessions nor locks.
 */
#ifndef LOCKKEEPER_ADMIN_RENDER_H
#define LOCKKEEPER_ADMIN_RENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/admin/incidents.h"
#include "proxy/base/text.h"

/* RESP pieces, appended to `out`. */
void render_array(struct text *out, size_t elements);
void render_bulk(struct text *out, const char *data, size_t len);
void render_string(struct text *out, const char *text);
void render_number(struct text *out, int64_t n);

/* PROXY HELP: one line a subcommand. */
void render_help(struct text *out);

/* PROXY INCIDENTS: an array of field-value arrays, newest first. */
void render_incidents(struct text *out, struct incidents *incidents, size_t max);

/* PROXY INFO: sections are written one after another; a section that was not asked for is skipped. */
struct info {
    struct text *out;     /* plain text */
    const char *wanted;   /* one section's name, any case, or NULL for all */
    bool open;            /* the section being written is wanted */
};
void info_section(struct info *info, const char *name);
void info_line(struct info *info, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
