/*
 * lockkeeper --advise and --advise-from: PROXY ADVISE's report for a Redis without a proxy, by MONITOR or a capture of
 * it. It uses the data plane's connections, so that TLS, logins, clusters and Sentinels work as for the proxy.
 *
 *      each master ── pin, stream ──> lines ──> tap ───────┐
 *           └─ shared: CLIENT LIST, ECHO, PTTL ────────────┴──> observer ──> report
 *
 * Redis buffers the output that MONITOR's listener does not read. So a listener that can't keep up stops.
 */

#include "proxy/private.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parser/resp.h"
#include "proxy/advise/advise.h"
#include "proxy/base/clock.h"
#include "proxy/base/memory.h"
#include "proxy/base/units.h"
#include "proxy/monitor_tap/monitor_tap.h"
#include "proxy/net/readable.h"

enum {
    NODES_MAX = 256,
    LINE_MAX_BYTES = 1024 * 1024, /* of a line; a longer line is no command on a lock */
    LINES_MAX = 50 * 1000 * 1000, /* of all nodes together */
    BEHIND_MS = 5000,             /* a delay that exceeds the smallest one by so much: this machine can't keep up */
    CLIENTS_S = 5,                /* between CLIENT LISTs */
    START_S = 10,                 /* until MONITOR has begun on the first master */
    CHUNKS_KEPT = 64,
    CAPTURE_BYTES = 64 * 1024,
    WORD_SIZE = 48
};

/* Cuts bytes into lines. */
struct lines {
    struct text part; /* the beginning of an incomplete line */
    bool skipping;    /* the current line is too long */
    uint64_t too_long;
};

/* A question over the shared connection. */
struct question {
    struct upstream_request request; /* first */
    struct ear *ear;
    enum { ASKS_CLIENTS, ASKS_ECHO, ASKS_PTTL } what;
    struct text reply;
};

/* A master to which this process listens. */
struct ear {
    struct monitor_feed *of;
    struct upstream_node *node;
    char address[128];
    struct upstream_pin *pin; /* NULL: MONITOR has ended */
    struct monitor_tap *tap;
    struct lines lines;
    int64_t least_late_ms; /* the smallest delay of a line, by this machine's clock */
    bool begun, asks, lists, listing;
    char word[WORD_SIZE];
    char lost[256]; /* why MONITOR has ended */
};

struct monitor_feed {
    struct ev_loop *loop;
    struct readable readable;
    struct chunk_pool pool;
    struct upstream *upstream;
    struct observer *observer;
    const struct upstream_config *config;
    uint64_t seed;
    int64_t for_ms, begun_ms;
    struct ear *ears[NODES_MAX];
    size_t count;
    uint64_t lines;
    bool over;
    char why[256]; /* why it ended early; "" if it did not */
    struct ev_prepare prepare;
    struct ev_timer end, second; /* end: of the start, then of all */
    struct ev_signal on_int, on_term;
};

/* ---- lines ------------------------------------------------------------------------------------ */

/* Calls fn for each whole line, until fn returns false. */
static void lines_cut(struct lines *l, const char *data, size_t len, bool (*fn)(void *arg, const char *, size_t),
                      void *arg) {
    bool more = true;
    text_append(&l->part, data, len);
    char *at = l->part.data, *end = at + l->part.len, *stop;
    for (; more && (stop = memchr(at, '\n', (size_t)(end - at))); at = stop + 1) {
        if (l->skipping || stop - at > LINE_MAX_BYTES)
            l->too_long++;
        else
            more = fn(arg, at, (size_t)(stop - at));
        l->skipping = false;
    }
    l->skipping |= end - at > LINE_MAX_BYTES;
    l->part.len = l->skipping ? 0 : (size_t)(end - at);
    memmove(l->part.data, at, l->part.len);
}

/* ---- the report -------------------------------------------------------------------------------- */

static void say(void *arg, const char *line, size_t len) {
    ++*(size_t *)arg;
    printf("%.*s\n", (int)len, line);
}

static void report(struct observer *a, const struct lock_rules *rules, const struct overheard *c, uint64_t too_long) {
    size_t said = 0;
    printf("# %llu commands in %lld s", (unsigned long long)c->lines,
           (long long)(c->last_ms - c->first_ms + 999) / 1000);
    if (c->garbage > 0)
        printf("; %llu lines that are not MONITOR's", (unsigned long long)c->garbage);
    if (too_long > 0)
        printf("; %llu longer than 1 MB were left out", (unsigned long long)too_long);
    printf("\n# MONITOR shows no replies: the results of %llu attempts are derived from the commands before them",
           (unsigned long long)c->attempts);
    if (c->assumed > 0)
        printf("\n# %llu of the attempts are the first command on their lock, which is assumed to have been free",
               (unsigned long long)c->assumed);
    if (c->unsure > 0)
        printf("\n# the results of %llu other attempts and releases are not known", (unsigned long long)c->unsure);
    printf("\n# MONITOR does not show which workers share a connection, or which data was written under a lock\n");
    if (c->nameless > 0)
        printf("# %llu commands came over unix sockets, which MONITOR shows as one connection\n",
               (unsigned long long)c->nameless);
    advise_each(a, rules, c->last_ms, say, &said);
    if (said == 0)
        printf("nothing was seen that looks like a lock\n");
    fflush(stdout);
}

/* ---- a capture ---------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    interrupted = 1;
}

static bool capture_line(void *arg, const char *line, size_t len) {
    if ((len == 2 || len == 3) && memcmp(line, "OK", 2) == 0) /* the first line of redis-cli's output */
        return true;
    tap_line(arg, line, len);
    return true;
}

int monitor_feed_file(const char *path, const struct lock_rules *rules, uint64_t seed) {
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "re");
    int fd = file ? fileno(file) : -1;
    struct sigaction stop = {.sa_handler = on_interrupt}; /* without SA_RESTART, so that a signal ends read(2) */
    static char bytes[CAPTURE_BYTES];
    ssize_t n = -1;
    if (fd >= 0) {
        sigaction(SIGINT, &stop, NULL);
        sigaction(SIGTERM, &stop, NULL);
        n = read(fd, bytes, sizeof(bytes));
    }
    if (n < 0 && !interrupted) {
        fprintf(stderr, "lockkeeper: --advise-from '%s': %s\n", path, strerror(errno));
        if (file && !standard)
            fclose(file);
        return 1;
    }
    struct observer *a = observer_new(seed);
    struct monitor_tap *o = tap_new(a, seed, 0);
    struct lines lines = {.too_long = 0};
    for (; n > 0 && !interrupted; n = read(fd, bytes, sizeof(bytes)))
        lines_cut(&lines, bytes, (size_t)n, capture_line, o);
    if (lines.part.len > 0 && !lines.skipping) /* the last line has no end of line */
        capture_line(o, lines.part.data, lines.part.len);
    tap_end(o);
    report(a, rules, tap_counts(o), lines.too_long);
    text_clear(&lines.part);
    tap_free(o);
    observer_free(a);
    if (!standard)
        fclose(file);
    return 0;
}

/* ---- questions ---------------------------------------------------------------------------------- */

static void ask_over(struct question *q) {
    text_clear(&q->reply);
    memory_free(q);
}

static void on_reply(struct upstream_request *r, const char *data, size_t len, bool last) {
    struct question *q = (struct question *)r;
    struct ear *e = q->ear;
    struct resp_item item;
    text_append(&q->reply, data, len);
    if (!last)
        return;
    const char *p = q->reply.data;
    bool right = resp_item_read(&p, p + q->reply.len, &item) && item.type != '-';
    if (q->what == ASKS_CLIENTS) {
        e->listing = false;
        e->lists = right;
        if (right)
            tap_clients(e->tap, item.str, item.len);
    } else if (q->what == ASKS_PTTL) {
        tap_answer(e->tap, right && item.type == ':' ? item.num : PTTL_UNKNOWN);
    } else {
        e->asks = right;
    }
    ask_over(q);
}

/* Stops asking over the shared connection: a new connection would appear as another client in the lines. */
static void on_fail(struct upstream_request *r, enum upstream_failure why, const char *error) {
    struct question *q = (struct question *)r;
    q->ear->asks = q->ear->lists = q->ear->listing = false;
    ask_over(q);
}

static const struct upstream_request_ops question_ops = {.reply = on_reply, .fail = on_fail};

static void ask(struct ear *e, int what, const char *command, const char *word, size_t len) {
    static const struct upstream_lane lane = {.protocol = 2};
    struct question *q = memory_zalloc(sizeof(*q));
    struct text words = {0};
    text_printf(&words, "*2\r\n");
    text_bulk(&words, command, strlen(command));
    text_bulk(&words, word, len);
    q->ear = e;
    q->what = what;
    q->request.ops = &question_ops;
    if (what == ASKS_CLIENTS) {
        e->listing = true;
        tap_ask_clients(e->tap);
    }
    const char *error = upstream_submit_to(e->of->upstream, &q->request, e->node, &lane, words.data, words.len);
    if (error)
        on_fail(&q->request, UPSTREAM_NOT_SENT, error);
    text_clear(&words);
}

static void ask_clients(struct ear *e) {
    if (e->lists && !e->listing)
        ask(e, ASKS_CLIENTS, "CLIENT", "LIST", 4);
}

/* ---- listening ---------------------------------------------------------------------------------- */

static void finish(struct monitor_feed *x, const char *why) {
    if (why && !x->over)
        snprintf(x->why, sizeof(x->why), "%s", why);
    x->over = true;
    ev_break(x->loop, EVBREAK_ALL);
}

static void ear_lost(struct ear *e, const char *why, size_t len) {
    snprintf(e->lost, sizeof(e->lost), "%s: %.*s", e->address, (int)(len < 200 ? len : 200), why);
    text_printable(e->lost, sizeof(e->lost), e->lost, strlen(e->lost), '?');
    if (e->pin)
        upstream_unpin(e->pin, false);
    e->pin = NULL;
    for (size_t i = 0; i < e->of->count; i++)
        if (e->of->ears[i]->pin)
            return;
    finish(e->of, NULL);
}

static bool ear_line(void *arg, const char *line, size_t len) {
    struct ear *e = arg;
    struct monitor_feed *x = e->of;
    const char *key;
    size_t key_len;
    if (!e->begun) {
        if (len < 3 || memcmp(line, "+OK", 3) != 0) {
            ear_lost(e, line + (len > 0), len - (len > 0) - (len > 1 && line[len - 1] == '\r'));
            return false;
        }
        e->begun = true;
        if (!x->begun_ms) {
            x->begun_ms = clock_wall_ms();
            ev_timer_stop(x->loop, &x->end);
            ev_timer_set(&x->end, (double)x->for_ms / 1000, 0.);
            ev_timer_start(x->loop, &x->end);
        }
        snprintf(e->word, sizeof(e->word), "lockkeeper-advise-%016llx",
                 (unsigned long long)(x->seed ^ (uintptr_t)e ^ (uint64_t)x->begun_ms));
        tap_self(e->tap, e->word);
        ask(e, ASKS_ECHO, "ECHO", e->word, strlen(e->word));
        e->lists = true;
        ask_clients(e);
        fprintf(stderr, "lockkeeper: listening to %s\n", e->address);
        return true;
    }
    if (tap_line(e->tap, line, len) && e->asks && tap_asks(e->tap, &key, &key_len))
        ask(e, ASKS_PTTL, "PTTL", key, key_len);
    if (++x->lines >= LINES_MAX) {
        finish(x, "it has shown 50000000 commands, which is enough");
        return false;
    }
    return true;
}

static void on_message(void *arg, const char *data, size_t len, bool last) {
    struct ear *e = arg;
    lines_cut(&e->lines, data, len, ear_line, e);
    if (!e->pin)
        return;
    const struct overheard *c = tap_counts(e->tap);
    int64_t late_ms = clock_wall_ms() - c->last_ms;
    if (c->lines == 0)
        return;
    if (late_ms < e->least_late_ms)
        e->least_late_ms = late_ms;
    if (late_ms - e->least_late_ms > BEHIND_MS)
        finish(e->of, "this machine reads more slowly than Redis writes, which would cost Redis memory");
}

static void on_lost(void *arg, const char *error) {
    ear_lost(arg, error, strlen(error));
}

static void on_ready(void *arg, const char *error) {
    static const struct upstream_lane lane = {.protocol = 2};
    const struct upstream_claim claim = {.client = NULL, .lasting = true};
    struct monitor_feed *x = arg;
    if (error) {
        finish(x, error);
        return;
    }
    size_t masters = upstream_master_count(x->upstream);
    for (size_t i = 0; i < masters && i < NODES_MAX && !x->over; i++) {
        struct upstream_node *node = upstream_master(x->upstream, i);
        struct ear *e = memory_zalloc(sizeof(*e));
        const char *why = NULL;
        struct upstream_pin_events events = {.arg = e, .message = on_message, .lost = on_lost};
        *e = (struct ear){.of = x, .node = node, .least_late_ms = INT64_MAX};
        snprintf(e->address, sizeof(e->address), "%s", upstream_node_address(node));
        e->tap = tap_new(x->observer, x->seed, x->count);
        x->ears[x->count++] = e;
        e->pin = upstream_pin_open(x->upstream, node, &lane, &claim, &events, &why);
        if (!e->pin) {
            ear_lost(e, why, strlen(why));
            continue;
        }
        upstream_pin_patient(e->pin, PIN_PATIENT);
        upstream_pin_stream(e->pin, true);
        upstream_pin_send(e->pin, "*1\r\n$7\r\nMONITOR\r\n", 17);
    }
}

/* ---- the loop ----------------------------------------------------------------------------------- */

static void on_prepare(struct ev_loop *loop, struct ev_prepare *prepare, int events) {
    struct monitor_feed *x = prepare->data;
    upstream_flush(x->upstream);
}

static void on_end(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct monitor_feed *x = timer->data;
    finish(x, x->begun_ms ? NULL : "no answer within 10 s");
}

static void on_clients(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct monitor_feed *x = timer->data;
    for (size_t i = 0; i < x->count; i++)
        if (x->ears[i]->pin && x->ears[i]->begun)
            ask_clients(x->ears[i]);
}

static void on_signal(struct ev_loop *loop, struct ev_signal *signal, int events) {
    finish(signal->data, "interrupted");
}

static void run(struct monitor_feed *x) {
    const struct upstream_events events = {.arg = x, .ready = on_ready};
    x->loop = ev_default_loop(EVFLAG_AUTO);
    readable_init(&x->readable, x->loop);
    chunk_pool_init(&x->pool, CHUNKS_KEPT);
    ev_prepare_init(&x->prepare, on_prepare);
    ev_timer_init(&x->end, on_end, START_S, 0.);
    ev_timer_init(&x->second, on_clients, CLIENTS_S, CLIENTS_S);
    ev_signal_init(&x->on_int, on_signal, SIGINT);
    ev_signal_init(&x->on_term, on_signal, SIGTERM);
    x->prepare.data = x->end.data = x->second.data = x->on_int.data = x->on_term.data = x;
    x->upstream = upstream_new(x->loop, &x->readable, x->config, &x->pool, &events);
    ev_prepare_start(x->loop, &x->prepare);
    ev_timer_start(x->loop, &x->end);
    ev_timer_start(x->loop, &x->second);
    ev_signal_start(x->loop, &x->on_int);
    ev_signal_start(x->loop, &x->on_term);
    if (!x->over)
        ev_run(x->loop, 0);
}

static void stop(struct monitor_feed *x) {
    x->over = true;
    for (size_t i = 0; i < x->count; i++) {
        if (x->ears[i]->pin)
            upstream_unpin(x->ears[i]->pin, false);
        x->ears[i]->pin = NULL;
    }
    upstream_flush(x->upstream);
    upstream_free(x->upstream);
    for (size_t i = 0; i < x->count; i++) {
        tap_free(x->ears[i]->tap);
        text_clear(&x->ears[i]->lines.part);
        memory_free(x->ears[i]);
    }
    ev_prepare_stop(x->loop, &x->prepare);
    ev_timer_stop(x->loop, &x->end);
    ev_timer_stop(x->loop, &x->second);
    ev_signal_stop(x->loop, &x->on_int);
    ev_signal_stop(x->loop, &x->on_term);
    readable_clear(&x->readable);
    chunk_pool_clear(&x->pool);
    ev_loop_destroy(x->loop);
}

int monitor_feed(const struct upstream_config *config, const struct lock_rules *rules, int64_t for_ms, uint64_t seed) {
    struct monitor_feed x = {.config = config, .seed = seed, .for_ms = for_ms, .observer = observer_new(seed)};
    struct overheard counts = {.lines = 0};
    uint64_t too_long = 0;
    char text[32];
    units_time_text(for_ms, text, sizeof(text));
    fprintf(stderr,
            "lockkeeper: MONITOR makes Redis send every command here for %s: a busy Redis may serve a third of its "
            "requests meanwhile. Ctrl-C ends it and prints the report so far\n",
            text);
    run(&x);
    for (size_t i = 0; i < x.count; i++) {
        struct ear *e = x.ears[i];
        tap_end(e->tap);
        const struct overheard *c = tap_counts(e->tap);
        counts.lines += c->lines;
        counts.garbage += c->garbage;
        counts.attempts += c->attempts;
        counts.assumed += c->assumed;
        counts.unsure += c->unsure;
        counts.nameless += c->nameless;
        if (c->first_ms && (!counts.first_ms || c->first_ms < counts.first_ms))
            counts.first_ms = c->first_ms;
        if (c->last_ms > counts.last_ms)
            counts.last_ms = c->last_ms;
        too_long += e->lines.too_long;
        if (e->lost[0])
            fprintf(stderr, "lockkeeper: MONITOR %s: %s\n", e->begun ? "has ended" : "did not begin", e->lost);
    }
    if (x.why[0])
        fprintf(stderr, "lockkeeper: ended early: %s\n", x.why);
    if (x.begun_ms)
        report(x.observer, rules, &counts, too_long);
    stop(&x);
    observer_free(x.observer);
    return x.begun_ms ? 0 : 1;
}
