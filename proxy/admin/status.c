/* The status page's facts as JSON (RFC 8259). */
#include "proxy/admin/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proxy/admin/sentence.h"
#include "proxy/base/json.h"

enum {
    LINE_MAX = 512,
    INCIDENTS_SHOWN = 50,
    SUMS_SHOWN = 20,
    ADVICE_SHOWN = 50,
    TEXT_SHOWN = 256, /* bytes shown of texts without a limit of their own: keys */
    LONG_SHOWN = 4096 /* bytes shown of lines that people copy as a whole */
};

/* ---- values -------------------------------------------------------------------------------------- */

/* Appends at most `max` bytes of a string in readable form, since keys may contain any bytes. */
static void put_string(struct text *out, const char *data, size_t len, size_t max) {
    struct text visible = {0};
    text_append_visible(&visible, data, len < max ? len : max);
    if (len > max)
        text_append(&visible, "...", 3);
    text_append(out, "\"", 1);
    char *at = text_reserve(out, visible.len * JSON_ESCAPED_MAX);
    text_commit(out, (size_t)(json_escape(at, visible.len > 0 ? visible.data : "", visible.len) - at));
    text_append(out, "\"", 1);
    text_clear(&visible);
}

/* ---- reports as arrays and objects --------------------------------------------------------------- */

struct json {
    struct text *out;
    size_t rows, fields;
};

static void put_name(struct json *j, const char *name) {
    if (j->fields++ > 0)
        text_append(j->out, ",", 1);
    put_string(j->out, name, strlen(name), TEXT_SHOWN);
    text_append(j->out, ":", 1);
}

static void json_row(void *arg) {
    struct json *j = arg;
    text_printf(j->out, "%s{", j->rows > 0 ? "}," : "");
    j->rows++;
    j->fields = 0;
}

static void json_text(void *arg, const char *name, const char *value, size_t len) {
    struct json *j = arg;
    put_name(j, name);
    put_string(j->out, value, len, TEXT_SHOWN);
}

/* For rules, and for the list of workloads that share connections: these texts are longer. */
static void json_long_text(void *arg, const char *name, const char *value, size_t len) {
    struct json *j = arg;
    put_name(j, name);
    put_string(j->out, value, len, LONG_SHOWN);
}

static void json_number(void *arg, const char *name, int64_t value) {
    struct json *j = arg;
    put_name(j, name);
    text_printf(j->out, "%lld", (long long)value);
}

static void json_section(void *arg, const char *name) {
}

static void json_line(void *arg, const char *name, const char *format, ...) {
    char value[LINE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    json_text(arg, name, value, strlen(value));
}

/* Appends "name":[{...},...] with the rows from `report`. */
static void put_rows(struct text *out, const char *name, void (*report)(void *arg, const struct report *r), void *arg) {
    struct json j = {.out = out};
    struct report r = {.arg = &j, .row = json_row, .text = json_text, .number = json_number};
    text_printf(out, ",\"%s\":[", name);
    report(arg, &r);
    text_printf(out, "%s]", j.rows > 0 ? "}" : "");
}

static void put_incident(void *arg, const struct incident *i) {
    struct json *j = arg;
    struct text sentence = {0};
    sentence_append(i, &sentence);
    json_row(j);
    json_number(j, "time-ms", i->time_ms);
    json_text(j, "kind", i->kind, strlen(i->kind));
    json_text(j, "text", sentence.data, sentence.len);
    json_number(j, "count", (int64_t)i->count);
    text_clear(&sentence);
}

static void put_sum(void *arg, const struct incident_sum *i) {
    struct json *j = arg;
    json_row(j);
    json_text(j, "kind", i->kind, strlen(i->kind));
    json_text(j, "rule", i->rule, strlen(i->rule));
    json_text(j, "client", i->identity, strlen(i->identity));
    json_text(j, "key", i->key, i->key_len);
    json_number(j, "count", (int64_t)i->count);
    json_number(j, "first-ms", i->first_ms);
    json_number(j, "last-ms", i->last_ms);
}

/* Appends a line of advice to an array of strings. */
static void put_advice(void *arg, const char *name, const char *line, size_t len) {
    struct json *j = arg;
    if (j->rows == ADVICE_SHOWN)
        return;
    text_append(j->out, ",", j->rows++ > 0);
    put_string(j->out, line, len, LONG_SHOWN);
}

static void put_rules(const struct admin_source *source, struct text *out) {
    struct json j = {.out = out};
    struct report r = {.arg = &j, .row = json_row, .text = json_long_text, .number = json_number};
    text_printf(out, ",\"rules\":[");
    source->rules(source->arg, &r);
    text_printf(out, "%s],\"advice\":[", j.rows > 0 ? "}" : "");
    j = (struct json){.out = out};
    r.text = put_advice;
    source->advice(source->arg, &r);
    text_printf(out, "]");
}

static void put_incidents(const struct admin_source *source, struct text *out) {
    struct json j = {.out = out};
    text_printf(out, ",\"summary\":[");
    incidents_sums(source->incidents, &(struct incident_filter){0}, SUMS_SHOWN, put_sum, &j);
    text_printf(out, "%s],\"incidents\":[", j.rows > 0 ? "}" : "");
    j = (struct json){.out = out};
    (void)incidents_each(source->incidents, &(struct incident_filter){0}, INCIDENTS_SHOWN, put_incident, &j);
    text_printf(out, "%s]", j.rows > 0 ? "}" : "");
}

static void all_times(void *arg, const struct report *r) {
    const struct admin_source *source = arg;
    (void)source->times(source->arg, NULL, 0, r);
}

static void all_locks(void *arg, const struct report *r) {
    const struct admin_source *source = arg;
    (void)source->locks(source->arg, NULL, 0, r);
}

void status_json(const struct admin_source *source, bool ready, struct text *out) {
    struct json j = {.out = out};
    struct report lines = {.arg = &j, .section = json_section, .line = json_line};
    text_printf(out, "{\"ready\":%s,\"figures\":{", ready ? "true" : "false");
    source->info(source->arg, &lines);
    text_printf(out, "}");
    put_rows(out, "nodes", source->nodes, source->arg);
    put_rows(out, "locks", all_locks, (void *)source);
    put_rows(out, "contention", source->contention, source->arg);
    put_rows(out, "times", all_times, (void *)source);
    put_rows(out, "shared", source->shared, source->arg);
    put_rules(source, out);
    put_incidents(source, out);
    text_printf(out, "}\n");
}
