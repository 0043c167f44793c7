/* Sizes and times as configuration writes them: digits, then a unit. No sign, no fraction, no blanks. */
#include "proxy/base/units.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"

struct unit {
    const char *name;
    int64_t factor;
};

static const struct unit SIZE_UNITS[] = {
    {"b", 1},
    {"k", 1000},
    {"kb", 1024},
    {"m", 1000 * 1000},
    {"mb", 1024 * 1024},
    {"g", 1000 * 1000 * 1000},
    {"gb", 1024 * 1024 * 1024},
};

/* From large to small: units_time_text takes the first that divides the time. */
static const struct unit TIME_UNITS[] = {
    {"d", 24 * 60 * 60 * 1000}, {"h", 60 * 60 * 1000}, {"m", 60 * 1000}, {"s", 1000}, {"ms", 1},
};

static bool units_parse(const char *text, int64_t bare, const struct unit *units, size_t count, int64_t *out) {
    const char *p = text;
    int64_t number = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, *p - '0', &number))
            return false;
    if (p == text)
        return false;
    int64_t factor = *p ? 0 : bare;
    for (size_t i = 0; i < count && factor == 0; i++)
        if (strcasecmp(p, units[i].name) == 0)
            factor = units[i].factor;
    return factor != 0 && !__builtin_mul_overflow(number, factor, out);
}

bool units_size(const char *text, int64_t *bytes) {
    return units_parse(text, 1, SIZE_UNITS, ARRAY_SIZE(SIZE_UNITS), bytes);
}

bool units_time(const char *text, int64_t bare_ms, int64_t *ms) {
    return units_parse(text, bare_ms, TIME_UNITS, ARRAY_SIZE(TIME_UNITS), ms);
}

size_t units_time_text(int64_t ms, char *out, size_t size) {
    invariant(ms >= 0 && size > 0, "%lld ms in %zu bytes", (long long)ms, size);
    const struct unit *unit = TIME_UNITS;
    while (ms % unit->factor != 0)
        unit++;
    if (ms == 0)
        unit = &TIME_UNITS[3];
    int n = snprintf(out, size, "%lld%s", (long long)(ms / unit->factor), unit->name);
    return n < 0 ? 0 : (size_t)n;
}

const char *units_span(int64_t ms, char out[UNITS_SPAN_SIZE]) {
    static const char *const names[] = {"days", "h", "min", "s", "ms"}; /* of TIME_UNITS */
    size_t i = 0;
    while (TIME_UNITS[i].factor > 1 && ms < 2 * TIME_UNITS[i].factor)
        i++;
    snprintf(out, UNITS_SPAN_SIZE, "%lld %s", (long long)((ms > 0 ? ms : 0) / TIME_UNITS[i].factor), names[i]);
    return out;
}
