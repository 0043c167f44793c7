/* PROXY HELP, INFO, LOCKS, TOP, CONTENTION, SLOWLOG, LATENCY, INCIDENTS, RULES, ADVISE, CONFIG as RESP. */
#include "proxy/admin/proxy_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/admin/incident_lines.h"
#include "proxy/base/clock.h"
#include "proxy/base/slowlog.h"
#include "proxy/base/text.h"

enum {
    INCIDENTS_DEFAULT = 20,
    INCIDENTS_MAX = 1000,
    TOP_DEFAULT = 5,
    TOP_MAX = 100 /* lines of each sort */,
    SLOW_DEFAULT = 10,
    LINE_MAX = 512,
    KEY_SHOWN = 160,
    AGO_SIZE = 32
};

/* ---- RESP ---------------------------------------------------------------------------------------- */

static void put_array(struct text *out, size_t elements) {
    text_printf(out, "*%zu\r\n", elements);
}

/* ---- rows of fields: an array of maps (in RESP2 arrays of names and values), or of lines ------------------------ */

enum shape { SHAPE_RESP2, SHAPE_RESP3, SHAPE_LINES };

struct rows {
    struct text done, row;
    size_t row_count, field_count;
    enum shape shape;
};

/* Ends the row before, if there is one: a new row begins. */
static void rows_row(void *arg) {
    struct rows *rows = arg;
    if (rows->field_count > 0) {
        if (rows->shape == SHAPE_LINES)
            text_bulk(&rows->done, rows->row.data, rows->row.len);
        else if (rows->shape == SHAPE_RESP3)
            text_printf(&rows->done, "%%%zu\r\n", rows->field_count);
        else
            put_array(&rows->done, rows->field_count * 2);
        if (rows->shape != SHAPE_LINES)
            text_append(&rows->done, rows->row.data, rows->row.len);
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

/* Appends a value to a line: in quotes if it is not one word. */
static void put_word(struct text *out, const char *value, size_t len) {
    bool quoted = len == 0 || memchr(value, ' ', len) || memchr(value, '"', len);
    text_append(out, "\"", quoted);
    for (size_t i = 0; i < len; i++) {
        text_append(out, "\\", quoted && value[i] == '"');
        text_append_visible(out, value + i, 1);
    }
    text_append(out, "\"", quoted);
}

static void rows_text(void *arg, const char *name, const char *value, size_t len) {
    struct rows *rows = arg;
    rows_name(rows, name);
    if (rows->shape == SHAPE_LINES)
        put_word(&rows->row, value, len);
    else
        text_bulk(&rows->row, value, len);
}

static void rows_number(void *arg, const char *name, int64_t value) {
    struct rows *rows = arg;
    rows_name(rows, name);
    text_printf(&rows->row, rows->shape == SHAPE_LINES ? "%lld" : ":%lld\r\n", (long long)value);
}

/* Writes the reply: the rows, or an error if some may be missing. */
static void rows_finish(struct rows *rows, bool matched, struct text *reply) {
    rows_row(rows);
    if (matched) {
        put_array(reply, rows->row_count);
        text_append(reply, rows->done.data, rows->done.len);
    } else {
        text_printf(reply, "-ERR the pattern takes too long to match\r\n");
    }
    text_clear(&rows->done);
    text_clear(&rows->row);
}

/* ---- INFO ---------------------------------------------------------------------------------------- */

struct info {
    struct text out;
    const char *wanted; /* one section, in any case; NULL: all */
    size_t wanted_len;
    bool open; /* the current section is wanted */
};

static void info_section(void *arg, const char *name) {
    struct info *info = arg;
    info->open = !info->wanted || text_is(info->wanted, info->wanted_len, name);
    if (info->open)
        text_printf(&info->out, "%s# %s\r\n", info->out.len > 0 ? "\r\n" : "", name);
}

static void info_line(void *arg, const char *name, const char *format, ...) {
    struct info *info = arg;
    char value[LINE_MAX];
    if (!info->open)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    text_printf(&info->out, "%s:%s\r\n", name, value);
}

static void do_info(const struct admin_source *source, const char *wanted, size_t len, bool resp3, struct text *reply) {
    struct info info = {.wanted = wanted, .wanted_len = len};
    struct report report = {.arg = &info, .section = info_section, .line = info_line};
    source->info(source->worker, &report);
    if (resp3) {
        text_printf(reply, "=%zu\r\ntxt:", info.out.len + 4);
        text_append(reply, info.out.data, info.out.len);
        text_append(reply, "\r\n", 2);
    } else {
        text_bulk(reply, info.out.data ? info.out.data : "", info.out.len);
    }
    text_clear(&info.out);
}

/* ---- INCIDENTS ------------------------------------------------------------------------------------- */

static void rows_time(struct rows *rows, const char *name, int64_t time_ms) {
    struct text when = {0};
    sentence_time(time_ms, &when);
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
    rows_text(rows, "rule", s->rule, strlen(s->rule));
    rows_text(rows, "client", s->identity, strlen(s->identity));
    rows_number(rows, "count", (int64_t)s->count);
    rows_time(rows, "first", s->first_ms);
    rows_time(rows, "last", s->last_ms);
    rows_text(rows, "last-key", s->key, s->key_len);
}

/* `words` are the arguments after INCIDENTS. */
static void do_incidents(const struct admin_source *source, const char *const *words, const size_t *lens, size_t count,
                         enum shape shape, struct text *reply) {
    struct incident_query q;
    struct incident_syntax syntax = {
        .takes = QUERY_COUNT | QUERY_SUMMARY | QUERY_SINCE, .kinds = source->incident_kind, .now_ms = clock_wall_ms()};
    struct rows rows = {.shape = shape};
    struct text error = {0};
    if (!incident_query_read(&q, &syntax, words, lens, count, &error)) {
        text_printf(reply, "-%s\r\n", error.data);
        text_clear(&error);
        return;
    }
    size_t max = q.counted ? q.count : q.summary ? INCIDENTS_MAX : INCIDENTS_DEFAULT;
    max = max < INCIDENTS_MAX ? max : INCIDENTS_MAX;
    bool matched = true;
    if (q.summary)
        incidents_sums(source->incidents, &q.filter, max, add_sum, &rows);
    else
        matched = incidents_each(source->incidents, &q.filter, max, add_incident, &rows);
    rows_finish(&rows, matched, reply);
}

/* ---- ADVISE ------------------------------------------------------------------------------------------ */

static void add_line(void *arg, const char *name, const char *line, size_t len) {
    struct rows *rows = arg;
    (void)name;
    text_bulk(&rows->done, line, len);
    rows->row_count++;
}

static void do_advise(const struct admin_source *source, struct text *reply) {
    struct rows rows = {.row_count = 0};
    struct report report = {.arg = &rows, .text = add_line};
    source->advice(source->worker, &report);
    rows_finish(&rows, true, reply);
}

/* ---- TOP --------------------------------------------------------------------------------------------- */

/* Reads a count; one that is very large is cut. False: it is no number. */
static bool read_count(const char *word, size_t len, size_t *count) {
    enum { CUT = 1000000 };
    *count = 0;
    for (size_t i = 0; i < len; i++) {
        if (word[i] < '0' || word[i] > '9')
            return false;
        *count = *count < CUT ? *count * 10 + (size_t)(word[i] - '0') : *count;
    }
    return len > 0;
}

/* Facts (rows of named fields) as lines. Each line begins with its sort, so that grep can select it. */
struct top {
    struct rows lines;
    int64_t now_ms;
    void (*finish)(struct top *top); /* makes a line of the current row */
    bool open;                       /* a row has begun; its fields follow */
    struct text key, owner;
    int64_t db, lost, lost_now, age_ms, left_ms, renewals, waiting;
};

static void end_row(struct top *top) {
    if (top->open)
        top->finish(top);
    top->open = false;
    top->key.len = top->owner.len = 0;
    top->db = top->lost = top->lost_now = top->age_ms = top->left_ms = top->renewals = top->waiting = 0;
}

static void begin_row(void *arg) {
    struct top *top = arg;
    end_row(top);
    top->open = true;
}

static void put_key(struct text *out, const char *data, size_t len) {
    text_append_visible(out, data, len < KEY_SHOWN ? len : KEY_SHOWN);
    if (len > KEY_SHOWN)
        text_append(out, "...", 3);
}

static void take_text(void *arg, const char *name, const char *value, size_t len) {
    struct top *top = arg;
    if (strcmp(name, "key") == 0)
        put_key(&top->key, value, len);
    else if (strcmp(name, "owner") == 0)
        text_append_visible(&top->owner, value, len);
}

static void take_number(void *arg, const char *name, int64_t value) {
    struct top *top = arg;
    const struct {
        const char *name;
        int64_t *to;
    } numbers[] = {{"db", &top->db},          {"lost", &top->lost},       {"lost-now", &top->lost_now},
                   {"age-ms", &top->age_ms},  {"left-ms", &top->left_ms}, {"renewals", &top->renewals},
                   {"waiting", &top->waiting}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strcmp(name, numbers[i].name) == 0)
            *numbers[i].to = value;
}

/* Formats a time for people: in the largest unit of which there are at least two. */
static const char *span(int64_t ms, char out[AGO_SIZE]) {
    static const struct {
        int64_t ms;
        const char *name;
    } units[] = {{86400000, "days"}, {3600000, "h"}, {60000, "min"}, {1000, "s"}, {1, "ms"}};
    size_t i = 0;
    while (units[i].ms > 1 && ms < 2 * units[i].ms)
        i++;
    snprintf(out, AGO_SIZE, "%lld %s", (long long)((ms > 0 ? ms : 0) / units[i].ms), units[i].name);
    return out;
}

static void begin_line(const struct top *top, struct text *line, const char *sort) {
    text_printf(line, "%s %.*s", sort, (int)top->key.len, top->key.len > 0 ? top->key.data : "");
    if (top->db > 0)
        text_printf(line, " (db %lld)", (long long)top->db);
    text_append(line, ": ", 2);
}

static void end_line(struct top *top, struct text *line) {
    if (top->waiting > 0)
        text_printf(line, "; waiting at the proxy: %lld", (long long)top->waiting);
    add_line(&top->lines, "", line->data, line->len);
    text_clear(line);
}

static void contended_line(struct top *top) {
    struct text line = {0};
    begin_line(top, &line, "contended");
    text_printf(&line, "%lld attempts lost in the last 5 minutes, %lld of them in the present one",
                (long long)top->lost, (long long)top->lost_now);
    end_line(top, &line);
}

static void held_line(struct top *top) {
    struct text line = {0};
    char age[AGO_SIZE], left[AGO_SIZE];
    begin_line(top, &line, "held");
    text_printf(&line, "for %s by %.*s; %s", span(top->age_ms, age), (int)top->owner.len,
                top->owner.len > 0 ? top->owner.data : "", top->left_ms < 0 ? "ends by a release alone" : "");
    if (top->left_ms >= 0)
        text_printf(&line, "%s left", span(top->left_ms, left));
    if (top->renewals > 0)
        text_printf(&line, ", renewals: %lld", (long long)top->renewals);
    end_line(top, &line);
}

static void client_line(void *arg, const struct incident_client *c) {
    struct top *top = arg;
    struct text line = {0};
    char ago[AGO_SIZE];
    text_printf(&line, "client ");
    text_append_visible(&line, c->identity, strlen(c->identity));
    text_printf(&line, ": incidents since the start: %llu, of them %s: %llu; the last %s ago on ",
                (unsigned long long)c->count, c->kind, (unsigned long long)c->kind_count,
                span(top->now_ms - c->last_ms, ago));
    put_key(&line, c->key, c->key_len);
    add_line(&top->lines, "", line.data, line.len);
    text_clear(&line);
}

static void do_top(const struct admin_source *source, const char *arg, size_t len, struct text *reply) {
    struct top top = {.now_ms = clock_wall_ms(), .finish = contended_line};
    struct report report = {.arg = &top, .row = begin_row, .text = take_text, .number = take_number};
    size_t max = TOP_DEFAULT;
    if (arg && !read_count(arg, len, &max)) {
        text_printf(reply, "-ERR the count is not an integer or out of range\r\n");
        return;
    }
    max = max < TOP_MAX ? max : TOP_MAX;
    source->contended(source->worker, max, &report);
    end_row(&top);
    top.finish = held_line;
    source->longest(source->worker, max, &report);
    end_row(&top);
    incidents_clients(source->incidents, max, client_line, &top);
    rows_finish(&top.lines, true, reply);
    text_clear(&top.key);
    text_clear(&top.owner);
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

/* `words` are the arguments after SLOWLOG. -1 shows all entries, as in Redis. */
static bool do_slowlog(const struct admin_source *source, const char *const *words, const size_t *lens, size_t count,
                       enum shape shape, struct text *reply) {
    struct rows rows = {.shape = shape};
    size_t max = SLOW_DEFAULT;
    if (count == 1 && text_is(words[0], lens[0], "len")) {
        text_printf(reply, ":%zu\r\n", slowlog_len(source->slowlog));
        return true;
    }
    if (count == 1 && text_is(words[0], lens[0], "reset")) {
        slowlog_reset(source->slowlog);
        text_printf(reply, "+OK\r\n");
        return true;
    }
    if (count == 0 || count > 2 || !text_is(words[0], lens[0], "get"))
        return false;
    if (count == 2 && text_is(words[1], lens[1], "-1")) {
        max = SIZE_MAX;
    } else if (count == 2 && !read_count(words[1], lens[1], &max)) {
        text_printf(reply, "-ERR count should be greater than or equal to -1\r\n");
        return true;
    }
    slowlog_each(source->slowlog, max, add_slow, &rows);
    rows_finish(&rows, true, reply);
    return true;
}

/* ---- LATENCY ----------------------------------------------------------------------------------------- */

struct latencies {
    struct rows rows;
    const char *wanted; /* the name; NULL: all */
    size_t wanted_len;
};

/* Adds a histogram in the form of Redis's LATENCY HISTOGRAM: counts up to each bound, where they grow. */
static void add_latency(void *arg, const char *name, const struct histogram *h) {
    struct latencies *l = arg;
    struct text *out = &l->rows.done;
    bool resp3 = l->rows.shape == SHAPE_RESP3;
    struct text pairs = {0};
    uint64_t calls = 0;
    size_t bounds = 0;
    if (l->wanted && !text_is(l->wanted, l->wanted_len, name))
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
    text_printf(out, "%s$5\r\ncalls\r\n:%llu\r\n$14\r\nhistogram_usec\r\n", resp3 ? "%2\r\n" : "*4\r\n",
                (unsigned long long)calls);
    text_printf(out, "%c%zu\r\n", resp3 ? '%' : '*', resp3 ? bounds : 2 * bounds);
    text_append(out, pairs.data, pairs.len);
    text_clear(&pairs);
    l->rows.row_count++;
}

/* `words` are the arguments after LATENCY. */
static bool do_latency(const struct admin_source *source, const char *const *words, const size_t *lens, size_t count,
                       bool resp3, struct text *reply) {
    struct latencies l = {.rows.shape = resp3 ? SHAPE_RESP3 : SHAPE_RESP2};
    bool clients = count > 0 && text_is(words[0], lens[0], "clients");
    if (count == 1 && text_is(words[0], lens[0], "reset")) {
        latency_reset(source->latency);
        text_printf(reply, "+OK\r\n");
        return true;
    }
    if (count > 1u + clients)
        return false;
    if (count > (size_t)clients) {
        l.wanted = words[clients];
        l.wanted_len = lens[clients];
    }
    latency_each(source->latency, clients ? LATENCY_CLIENTS : LATENCY_COMMANDS, add_latency, &l);
    text_printf(reply, "%c%zu\r\n", resp3 ? '%' : '*', (resp3 ? 1 : 2) * l.rows.row_count);
    text_append(reply, l.rows.done.data, l.rows.done.len);
    text_clear(&l.rows.done);
    return true;
}

/* ---- CONTENTION FOLDED ------------------------------------------------------------------------------- */

/* Rows as folded stacks, which flame graphs are made of: "pattern;client us". */
struct folded {
    struct rows rows;
    struct text stack;
    const char *wanted; /* the field with the times */
};

static void folded_row(void *arg) {
    ((struct folded *)arg)->stack.len = 0;
}

static void folded_text(void *arg, const char *name, const char *value, size_t len) {
    struct folded *f = arg;
    (void)name;
    text_append(&f->stack, ";", f->stack.len > 0);
    for (size_t i = 0; i < len; i++)
        text_append_visible(&f->stack, value[i] == ';' ? ":" : value + i, 1);
}

static void folded_number(void *arg, const char *name, int64_t ms) {
    struct folded *f = arg;
    if (ms == 0 || strcmp(name, f->wanted) != 0)
        return;
    text_printf(&f->stack, " %lld", (long long)ms * 1000);
    add_line(&f->rows, name, f->stack.data, f->stack.len);
}

static bool do_folded(const struct admin_source *source, const char *what, size_t len, struct text *reply) {
    struct folded f = {.wanted = text_is(what, len, "held") ? "held-ms" : "waited-ms"};
    struct report report = {.arg = &f, .row = folded_row, .text = folded_text, .number = folded_number};
    if (!text_is(what, len, "held") && !text_is(what, len, "waited"))
        return false;
    (void)source->times(source->worker, NULL, 0, &report);
    rows_finish(&f.rows, true, reply);
    text_clear(&f.stack);
    return true;
}

/* ---- CONFIG ------------------------------------------------------------------------------------------ */

/* Answers as CONFIG GET does: names and values, a map in RESP3. */
static void do_config(const struct admin_source *source, const char *pattern, size_t len, bool resp3,
                      struct text *reply) {
    struct rows rows = {.shape = resp3 ? SHAPE_RESP3 : SHAPE_RESP2};
    struct report report = {.arg = &rows, .text = rows_text};
    source->config(source->config_arg, pattern, len, &report);
    text_printf(reply, "%c%zu\r\n", resp3 ? '%' : '*', resp3 ? rows.field_count : 2 * rows.field_count);
    text_append(reply, rows.row.data, rows.row.len);
    text_clear(&rows.row);
}

/* ---- HELP ---------------------------------------------------------------------------------------- */

static void do_help(struct text *reply) {
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
    size_t n = sizeof(lines) / sizeof(lines[0]);
    put_array(reply, n);
    for (size_t i = 0; i < n; i++)
        text_printf(reply, "+%s\r\n", lines[i]);
}

/* ---- the subcommands -------------------------------------------------------------------------------- */

/* Runs LOCKS, CONTENTION, SLOWLOG, INCIDENTS and RULES, which show rows. */
static bool show_rows(const struct admin_source *source, const char *const *words, const size_t *lens, size_t count,
                      enum shape shape, struct text *reply) {
    struct rows rows = {.shape = shape};
    struct report report = {.arg = &rows, .row = rows_row, .text = rows_text, .number = rows_number};
    bool matched = true;
    if (count > 0 && text_is(words[0], lens[0], "incidents")) {
        do_incidents(source, words + 1, lens + 1, count - 1, shape, reply);
        return true;
    }
    if (count > 0 && text_is(words[0], lens[0], "slowlog"))
        return do_slowlog(source, words + 1, lens + 1, count - 1, shape, reply);
    if ((count == 1 || count == 2) && text_is(words[0], lens[0], "locks"))
        matched = source->locks(source->worker, count == 2 ? words[1] : NULL, count == 2 ? lens[1] : 0, &report);
    else if ((count == 1 || count == 2) && text_is(words[0], lens[0], "contention"))
        matched = source->times(source->worker, count == 2 ? words[1] : NULL, count == 2 ? lens[1] : 0, &report);
    else if (count == 1 && text_is(words[0], lens[0], "rules"))
        source->rules(source->worker, &report);
    else
        return false;
    rows_finish(&rows, matched, reply);
    return true;
}

bool admin_command(const struct admin_source *source, const char *const *words, const size_t *lens, size_t count,
                   bool resp3, struct text *reply) {
    if (count > 0 && text_is(words[0], lens[0], "lines"))
        return show_rows(source, words + 1, lens + 1, count - 1, SHAPE_LINES, reply);
    if (show_rows(source, words, lens, count, resp3 ? SHAPE_RESP3 : SHAPE_RESP2, reply))
        return true;
    if (count > 0 && text_is(words[0], lens[0], "latency"))
        return do_latency(source, words + 1, lens + 1, count - 1, resp3, reply);
    if (count == 3 && text_is(words[0], lens[0], "contention") && text_is(words[1], lens[1], "folded"))
        return do_folded(source, words[2], lens[2], reply);
    if (count == 0 || count > 2)
        return false;
    const char *arg = count == 2 ? words[1] : NULL;
    size_t arg_len = count == 2 ? lens[1] : 0;
    if (text_is(words[0], lens[0], "help") && count == 1)
        do_help(reply);
    else if (text_is(words[0], lens[0], "info"))
        do_info(source, arg, arg_len, resp3, reply);
    else if (text_is(words[0], lens[0], "top"))
        do_top(source, arg, arg_len, reply);
    else if (text_is(words[0], lens[0], "advise") && count == 1)
        do_advise(source, reply);
    else if (text_is(words[0], lens[0], "config"))
        do_config(source, arg, arg_len, resp3, reply);
    else
        return false;
    return true;
}
