/* Failed invariants: counted, told once for each place, and fatal unless the program says that it goes on. */
#include "parser/invariant.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t failures;
static void (*tell_failure)(const char *text);
static bool go_on;

void invariant_start(void (*tell)(const char *text), bool fatal) {
    tell_failure = tell;
    go_on = !fatal;
}

uint64_t invariant_failures(void) {
    return atomic_load_explicit(&failures, memory_order_relaxed);
}

void invariant_failed(struct invariant_place *place, const char *format, ...) {
    enum { WORDS_MAX = 512, TEXT_MAX = 1024 };
    char words[WORDS_MAX], text[TEXT_MAX];
    atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&place->failures, 1, memory_order_relaxed) > 0 && go_on)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof(words), format, args);
    va_end(args);
    const char *slash = strrchr(place->file, '/');
    snprintf(text, sizeof(text), "an invariant failed, please report it: %s (%s) in %s, %s:%u", words, place->condition,
             place->function, slash ? slash + 1 : place->file, place->line);
    if (tell_failure)
        tell_failure(text);
    if (go_on)
        return;
    fprintf(stderr, "lockkeeper: %s\n", text);
    abort();
}
