/*
 * MONITOR's lines, and a CLIENT LIST between them: with any content, lines are taken or counted, and the report is
 * made.
 *
 * Input: lines. A line that begins with '=' belongs to CLIENT LIST; '?' answers the oldest PTTL.
 */
#include "parser/command.h"
#include "proxy/advise/advise.h"
#include "proxy/monitor_tap/monitor_tap.h"
#include "tests/fuzz/fuzz.h"

static void check_line(void *arg, const char *line, size_t len) {
    CHECK(len > 0 && len < ADVISE_LINE_MAX);
    ++*(size_t *)arg;
}

static void take(struct monitor_tap *o, const char *line, size_t len, uint64_t *lines) {
    const char *key;
    size_t key_len;
    char *copy = exact_copy((const uint8_t *)line, len);
    if (len > 0 && *line == '=') {
        tap_ask_clients(o);
        tap_clients(o, copy + 1, len - 1);
    } else if (len > 0 && *line == '?') {
        tap_answer(o, (int64_t)len - 3);
    } else {
        tap_line(o, copy, len);
        ++*lines;
        if (tap_asks(o, &key, &key_len))
            CHECK(key_len > 0 && key[key_len - 1] == key[key_len - 1]);
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool initialised;
    if (!initialised)
        command_table_init();
    initialised = true;
    struct observer *a = observer_new(1);
    struct monitor_tap *o = tap_new(a, 1, 0);
    const char *p = (const char *)data, *end = p + size;
    uint64_t lines = 0;
    size_t said = 0;
    tap_self(o, "word");
    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop ? stop : end;
        take(o, p, (size_t)(stop - p), &lines);
        p = stop < end ? stop + 1 : end;
    }
    tap_end(o);
    const struct overheard *c = tap_counts(o);
    CHECK(c->lines + c->garbage <= lines && c->first_ms <= c->last_ms);
    advise_each(a, NULL, c->last_ms, check_line, &said);
    tap_free(o);
    observer_free(a);
    return 0;
}
