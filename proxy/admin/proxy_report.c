/* PROXY HELP, INFO, LOCKS, TOP, CONTENTION, SLOWLOG, LATENCY, INCIDENTS, RULES, ADVISE, CONFIG as RESP. */
#include "proxy/admin/admin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/clock.h"
#include "proxy/base/memory.h"
#include "proxy/base/slowlog.h"
#include "proxy/base/units.h"

enum {
    INCIDENTS_DEFAULT = 20,
    INCIDENTS_MAX = 1000,
    TOP_DEFAULT = 5,
    TOP_MAX = 100 /* lines of each sort */,
    SLOW_DEFAULT = 10,
    LINE_MAX = 512,
    KEY_SHOWN = 160
};

/* ---- rows of fields: an array of maps (in RESP2 arrays of names and values), or of lines ------------------------ */

enum shape { SHAPE_RESP2, SHAPE_RESP3, SHAPE_LINES };

/* Begins a map of so many pairs, or in RESP2 an array. */
static void put_map(struct text *out, enum shape shape, size_t pairs) {
    text_printf(out, "%c%zu\r\n", shape == SHAPE_RESP3 ? '%' : '*', shape == SHAPE_RESP3 ? pairs : 2 * pairs);
}

struct rows {
    struct text done, row;
    size_t row_count, field_count;
    enum shape shape;
};

/* A call of PROXY. The reply are its rows, unless the subcommand writes another one. */
struct call {
    const struct admin_source *source;
    const char *const *words; /* those behind the subcommand */
    const size_t *lens;
    size_t count;
    struct rows rows;
    struct report report; /* to the rows; its pattern is words[0] */
    bool matched;         /* false: the pattern takes too long, and rows may be missing */
    bool open;            /* INFO: the current section is wanted */
    const char *folded;   /* CONTENTION FOLDED: the field with the times */
    struct text *reply;
};

/* Whether the call has a word there, which is this name in any case. */
static bool word_is(const struct call *c, size_t i, const char *name) {
    return i < c->count && text_is(c->words[i], c->lens[i], name);
}

/* Ends the row before, if there is one: a new row begins. */
static void rows_row(void *arg) {
    struct rows *rows = arg;
    if (rows->field_count > 0) {
        if (rows->shape == SHAPE_LINES) {
            text_bulk(&rows->done, rows->row.data, rows->row.len);
        } else {
            put_map(&rows->done, rows->shape, rows->field_count);
            text_append(&rows->done, rows->row.data, rows->row.len);
        }
        rows->row_count++;
    }
    rows->row.len = 0;
    rows->field_count = 0;
}

static void rows_name(struct rows *rows, const char *name) {
    if (rows->shape == SHAPE_LINES)
        text_printf(&rows->row, "%s%s=", rows->field_count > 0 ? " " : "", name);
    else
        text_bulk(&rows->row, name, strlen(name));
    rows->field_count++;
}

/* In a line a value is in quotes if it is not one word. */
static void rows_text(void *arg, const char *name, const char *value, size_t len) {
    struct rows *rows = arg;
    struct text *out = &rows->row;
    rows_name(rows, name);
    if (rows->shape != SHAPE_LINES) {
        text_bulk(out, value, len);
        return;
    }
    bool quoted = len == 0 || memchr(value, ' ', len) || memchr(value, '"', len);
    text_append(out, "\"", quoted);
    for (size_t i = 0; i < len; i++) {
        text_append(out, "\\", quoted && value[i] == '"');
        text_append_visible(out, value + i, 1);
    }
    text_append(out, "\"", quoted);
}

static void rows_number(void *arg, const char *name, int64_t value) {
    struct rows *rows = arg;
    rows_name(rows, name);
    text_printf(&rows->row, rows->shape == SHAPE_LINES ? "%lld" : ":%lld\r\n", (long long)value);
}

/* ---- INFO ---------------------------------------------------------------------------------------- */

static void info_section(void *arg, const char *name) {
    struct call *c = arg;
    c->open = !c->report.pattern || text_is(c->report.pattern, c->report.pattern_len, name);
    if (c->open)
        text_printf(&c->rows.done, "%s# %s\r\n", c->rows.done.len > 0 ? "\r\n" : "", name);
}

static void info_line(void *arg, const char *name, const char *format, ...) {
    struct call *c = arg;
    char value[LINE_MAX];
    if (!c->open)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    text_printf(&c->rows.done, "%s:%s\r\n", name, value);
}

static bool do_info(struct call *c) {
    struct report report = {.arg = c, .section = info_section, .line = info_line};
    const struct text *out = &c->rows.done;
    (void)c->source->report(c->source->worker, REPORT_INFO, &report);
    if (c->rows.shape == SHAPE_RESP3) {
        text_printf(c->reply, "=%zu\r\ntxt:", out->len + 4);
        text_append(c->reply, out->data, out->len);
        text_append(c->reply, "\r\n", 2);
    } else {
        text_bulk(c->reply, out->data ? out->data : "", out->len);
    }
    return true;
}

/* ---- INCIDENTS ------------------------------------------------------------------------------------- */

static void rows_time(struct rows *rows, const char *name, int64_t time_ms) {
    struct text when = {0};
    incident_time(time_ms, &when);
    rows_text(rows, name, when.data, when.len);
    text_clear(&when);
}

static void add_incident(void *arg, const struct incident *i) {
    struct rows *rows = arg;
    rows_row(rows);
    rows_time(rows, "time", i->time_ms);
    rows_text(rows, "kind", i->kind, strlen(i->kind));
    rows_text(rows, "key", i->key, i->key_len);
    rows_text(rows, "client", i->client, strlen(i->client));
    rows_text(rows, "holder", i->holder, strlen(i->holder));
    rows_text(rows, "command", i->command, strlen(i->command));
    rows_text(rows, "action", i->action, strlen(i->action));
    rows_text(rows, "rule", i->rule, strlen(i->rule));
    rows_number(rows, "count", (int64_t)i->count);
}

static void add_sum(void *arg, const struct incident_sum *s) {
    struct rows *rows = arg;
    rows_row(rows);
    rows_text(rows, "kind", s->kind, strlen(s->kind));
    rows_text(rows, "rule", s->last->rule, strlen(s->last->rule));
    rows_text(rows, "client", s->last->identity, strlen(s->last->identity));
    rows_number(rows, "count", (int64_t)s->count);
    rows_time(rows, "first", s->first_ms);
    rows_time(rows, "last", s->last->time_ms);
    rows_text(rows, "last-key", s->last->key, s->last->key_len);
}

static bool do_incidents(struct call *c) {
    struct text error = {0};
    struct incident_query q = {.kinds = c->source->incident_kind, .now_ms = clock_wall_ms(), .error = &error};
    if (!incident_query_read(&q, c->words, c->lens, c->count)) {
        text_printf(c->reply, "-%s\r\n", error.data);
        text_clear(&error);
        return true;
    }
    size_t max = q.counted ? q.count : q.summary ? INCIDENTS_MAX : INCIDENTS_DEFAULT;
    max = max < INCIDENTS_MAX ? max : INCIDENTS_MAX;
    if (q.summary)
        incidents_sums(c->source->incidents, &q.filter, max, add_sum, &c->rows);
    else
        c->matched = incidents_each(c->source->incidents, &q.filter, max, add_incident, &c->rows);
    return true;
}

/* ---- ADVISE ------------------------------------------------------------------------------------------ */

static void add_line(void *arg, const char *name, const char *line, size_t len) {
    struct rows *rows = arg;
    (void)name;
    text_bulk(&rows->done, line, len);
    rows->row_count++;
}

static bool do_advise(struct call *c) {
    c->report.text = add_line;
    (void)c->source->report(c->source->worker, REPORT_ADVICE, &c->report);
    return true;
}

/* ---- TOP --------------------------------------------------------------------------------------------- */

/* Adds a line on a client. Each line of TOP begins with its sort, so that grep can select it. */
static void client_line(void *arg, const struct incident_sum *c) {
    const struct incident *last = c->last;
    struct text line = {0};
    char ago[UNITS_SPAN_SIZE];
    text_printf(&line, "client ");
    text_append_visible(&line, last->identity, strlen(last->identity));
    text_printf(&line, ": incidents since the start: %llu, of them %s: %llu; the last %s ago on ",
                (unsigned long long)c->count, c->kind, (unsigned long long)c->kind_count,
                units_span(clock_wall_ms() - last->time_ms, ago));
    text_append_shown(&line, last->key, last->key_len, KEY_SHOWN);
    add_line(arg, "", line.data, line.len);
    text_clear(&line);
}

static bool do_top(struct call *c) {
    size_t max = TOP_DEFAULT;
    if (c->count > 0 && !incident_count(c->words[0], c->lens[0], &max)) {
        text_printf(c->reply, "-ERR the count is not an integer or out of range\r\n");
        return true;
    }
    c->report.text = add_line;
    c->report.max = max < TOP_MAX ? max : TOP_MAX;
    (void)c->source->report(c->source->worker, REPORT_TOP, &c->report);
    incidents_clients(c->source->incidents, c->report.max, client_line, &c->rows);
    return true;
}

/* ---- SLOWLOG ----------------------------------------------------------------------------------------- */

static void add_slow(void *arg, const struct slow_request *r) {
    rows_row(arg);
    rows_number(arg, "id", (int64_t)r->id);
    rows_number(arg, "time", r->time_s);
    rows_number(arg, "us", r->took_us);
    rows_number(arg, "before-us", r->before_us);
    rows_number(arg, "node-us", r->took_us - r->before_us - r->after_us);
    rows_number(arg, "way-us", r->way_us);
    rows_number(arg, "after-us", r->after_us);
    rows_text(arg, "command", r->command, strlen(r->command));
    rows_text(arg, "client", r->client, strlen(r->client));
    rows_text(arg, "name", r->name, strlen(r->name));
    rows_text(arg, "node", r->node, strlen(r->node));
}

/* -1 shows all entries, as in Redis. */
static bool do_slowlog(struct call *c) {
    size_t max = SLOW_DEFAULT;
    if (c->count == 1 && word_is(c, 0, "len")) {
        text_printf(c->reply, ":%zu\r\n", slowlog_len(c->source->slowlog));
        return true;
    }
    if (c->count == 1 && word_is(c, 0, "reset")) {
        slowlog_reset(c->source->slowlog);
        text_printf(c->reply, "+OK\r\n");
        return true;
    }
    if (!word_is(c, 0, "get"))
        return false;
    if (word_is(c, 1, "-1")) {
        max = SIZE_MAX;
    } else if (c->count == 2 && !incident_count(c->words[1], c->lens[1], &max)) {
        text_printf(c->reply, "-ERR count should be greater than or equal to -1\r\n");
        return true;
    }
    slowlog_each(c->source->slowlog, max, add_slow, &c->rows);
    return true;
}

/* ---- LATENCY ----------------------------------------------------------------------------------------- */

/* Adds a histogram in the form of Redis's LATENCY HISTOGRAM: counts up to each bound, where they grow. */
static void add_latency(void *arg, const char *name, const struct histogram *h) {
    struct call *c = arg;
    struct text *out = &c->rows.done, pairs = {0};
    uint64_t calls = 0;
    size_t bounds = 0;
    if (c->report.pattern && !text_is(c->report.pattern, c->report.pattern_len, name))
        return;
    for (size_t i = 0; i <= HISTOGRAM_BOUNDS; i++) {
        calls += h->counts[i];
        if (h->counts[i] == 0)
            continue;
        text_printf(&pairs, ":%lld\r\n:%llu\r\n", (long long)(i < HISTOGRAM_BOUNDS ? histogram_bounds[i] : INT64_MAX),
                    (unsigned long long)calls);
        bounds++;
    }
    text_bulk(out, name, strlen(name));
    put_map(out, c->rows.shape, 2);
    text_printf(out, "$5\r\ncalls\r\n:%llu\r\n$14\r\nhistogram_usec\r\n", (unsigned long long)calls);
    put_map(out, c->rows.shape, bounds);
    text_append(out, pairs.data, pairs.len);
    text_clear(&pairs);
    c->rows.row_count++;
}

static bool do_latency(struct call *c) {
    bool clients = word_is(c, 0, "clients");
    if (c->count == 1 && word_is(c, 0, "reset")) {
        latency_reset(c->source->latency);
        text_printf(c->reply, "+OK\r\n");
        return true;
    }
    if (c->count > 1u + clients)
        return false;
    if (clients) {
        c->report.pattern = c->count > 1 ? c->words[1] : NULL;
        c->report.pattern_len = c->count > 1 ? c->lens[1] : 0;
    }
    latency_each(c->source->latency, clients ? LATENCY_CLIENTS : LATENCY_COMMANDS, add_latency, c);
    put_map(c->reply, c->rows.shape, c->rows.row_count);
    text_append(c->reply, c->rows.done.data, c->rows.done.len);
    return true;
}

/* ---- CONTENTION -------------------------------------------------------------------------------------- */

/* Rows as folded stacks, which flame graphs are made of: "pattern;client us". */
static void folded_row(void *arg) {
    ((struct call *)arg)->rows.row.len = 0;
}

static void folded_text(void *arg, const char *name, const char *value, size_t len) {
    struct text *stack = &((struct call *)arg)->rows.row;
    (void)name;
    text_append(stack, ";", stack->len > 0);
    for (size_t i = 0; i < len; i++)
        text_append_visible(stack, value[i] == ';' ? ":" : value + i, 1);
}

static void folded_number(void *arg, const char *name, int64_t ms) {
    struct call *c = arg;
    if (ms == 0 || strcmp(name, c->folded) != 0)
        return;
    text_printf(&c->rows.row, " %lld", (long long)ms * 1000);
    add_line(&c->rows, name, c->rows.row.data, c->rows.row.len);
}

static bool do_contention(struct call *c) {
    if (c->count < 2) {
        c->matched = c->source->report(c->source->worker, REPORT_TIMES, &c->report);
        return true;
    }
    bool held = word_is(c, 1, "held");
    struct report report = {.arg = c, .row = folded_row, .text = folded_text, .number = folded_number};
    if (c->rows.shape == SHAPE_LINES || !word_is(c, 0, "folded") || (!held && !word_is(c, 1, "waited")))
        return false;
    c->folded = held ? "held-ms" : "waited-ms";
    (void)c->source->report(c->source->worker, REPORT_TIMES, &report);
    return true;
}

/* ---- CONFIG ------------------------------------------------------------------------------------------ */

/* Answers as CONFIG GET does: names and values, a map in RESP3. */
static bool do_config(struct call *c) {
    c->source->config(c->source->config_arg, &c->report);
    put_map(c->reply, c->rows.shape, c->rows.field_count);
    text_append(c->reply, c->rows.row.data, c->rows.row.len);
    return true;
}

/* ---- HELP ---------------------------------------------------------------------------------------- */

static bool do_help(struct call *c) {
    static const char *const lines[] = {
        "PROXY <subcommand> [<arg> ...]. Subcommands are:",
        "HELP -- this text.",
        "INFO [section] -- the proxy's own INFO: proxy, clients, upstreams, locks, commands.",
        "LOCKS [pattern] -- the live leases known to this proxy, newest first.",
        "TOP [count] -- the locks fought over most, those held for longest, the worst clients.",
        "CONTENTION [pattern] -- how long locks were held and waited for, by their pattern and by client.",
        "CONTENTION FOLDED HELD|WAITED -- the same in us as lines 'pattern;client us', for flamegraph.pl.",
        "SLOWLOG GET [count] | LEN | RESET -- requests that took long: in the proxy, on the way, at the node.",
        "LATENCY [command] | CLIENTS [name] | RESET -- how long requests take, as LATENCY HISTOGRAM has it.",
        "LOCK <key> -- everything known of one lock, read from Redis.",
        "TOKEN <key> -- the fence of the lease that this client holds on key, or nil.",
        "INCIDENTS [count] [KIND kind] [KEY pattern] [SINCE time] -- the last incidents, newest first.",
        "INCIDENTS SUMMARY [count] [KIND kind] [SINCE time] -- all incidents, counted by kind, rule and client.",
        "LINES LOCKS|CONTENTION|SLOWLOG|INCIDENTS|RULES [<arg> ...] -- the same, each as a line of NAME=VALUE.",
        "WATCH [KIND kind] [KEY pattern] -- incidents as they happen, until RESET or QUIT.",
        "NOTIFY ON|OFF -- a push 'lockkeeper lost KEY FENCE' when a lease of this connection is over; RESP3.",
        "RULES -- the lock rules and fences in force, with hit counts, and clients that share connections.",
        "ADVISE -- what is unsafe, what was learnt of locks from traffic, and the rules that fit, a line each.",
        "EXPLAIN <command> [<arg> ...] -- how a command would be treated; nothing is run.",
        "RELEASE <key> -- releases a lock, with any holder; recorded as an incident.",
        "WITNESS TRUST host:port -- ends the quarantine of a witness: it is new, or has kept all.",
        "RELOAD -- reads the configuration anew, as SIGHUP does; says what needs a restart.",
        "PAUSE [time] -- requests wait until RESUME, or for the time (30s), while Redis is restarted.",
        "RESUME -- waits until Redis answers, and ends the pause.",
        "SWITCH -- ends the pause at the upstream that the configuration names now, if it has all data.",
        "CONFIG [pattern] -- the directives that are in force, as CONFIG GET; passwords are not shown.",
    };
    size_t n = ARRAY_SIZE(lines);
    text_printf(c->reply, "*%zu\r\n", n);
    for (size_t i = 0; i < n; i++)
        text_printf(c->reply, "+%s\r\n", lines[i]);
    return true;
}

/* ---- the subcommands -------------------------------------------------------------------------------- */

bool admin_command(const struct admin_source *source, const char *const *words, const size_t *lens, size_t count,
                   bool resp3, struct text *reply) {
    static const struct {
        const char *name;
        size_t words_max;            /* behind the name */
        bool lines;                  /* LINES shows it too */
        bool (*run)(struct call *c); /* NULL: it shows the rows of a report */
        enum report_kind report;
    } subcommands[] = {
        {"help", 0, false, do_help, REPORT_INFO},
        {"info", 1, false, do_info, REPORT_INFO},
        {"locks", 1, true, NULL, REPORT_LOCKS},
        {"top", 1, false, do_top, REPORT_INFO},
        {"contention", 2, true, do_contention, REPORT_INFO},
        {"slowlog", 2, true, do_slowlog, REPORT_INFO},
        {"latency", 2, false, do_latency, REPORT_INFO},
        {"incidents", SIZE_MAX, true, do_incidents, REPORT_INFO},
        {"rules", 0, true, NULL, REPORT_RULES},
        {"advise", 0, false, do_advise, REPORT_INFO},
        {"config", 1, false, do_config, REPORT_INFO},
    };
    size_t at = count > 0 && text_is(words[0], lens[0], "lines"), row = 0, rows = ARRAY_SIZE(subcommands);
    while (at < count && row < rows && !text_is(words[at], lens[at], subcommands[row].name))
        row++;
    if (at >= count || row == rows || count - at - 1 > subcommands[row].words_max ||
        (at > 0 && !subcommands[row].lines))
        return false;
    struct call c = {.source = source,
                     .words = words + at + 1,
                     .lens = lens + at + 1,
                     .count = count - at - 1,
                     .rows.shape = at > 0  ? SHAPE_LINES
                                   : resp3 ? SHAPE_RESP3
                                           : SHAPE_RESP2,
                     .report = {.arg = &c.rows, .row = rows_row, .text = rows_text, .number = rows_number},
                     .matched = true,
                     .reply = reply};
    if (c.count > 0) {
        c.report.pattern = c.words[0];
        c.report.pattern_len = c.lens[0];
    }
    size_t before = reply->len;
    bool done = true;
    if (subcommands[row].run)
        done = subcommands[row].run(&c);
    else
        c.matched = source->report(source->worker, subcommands[row].report, &c.report);
    if (done && !c.matched) {
        text_printf(reply, "-ERR the pattern takes too long to match\r\n");
    } else if (done && reply->len == before) {
        rows_row(&c.rows);
        text_printf(reply, "*%zu\r\n", c.rows.row_count);
        text_append(reply, c.rows.done.data, c.rows.done.len);
    }
    text_clear(&c.rows.done);
    text_clear(&c.rows.row);
    return done;
}
