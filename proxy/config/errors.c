/* Collects the errors of a configuration. It knows no values. */
#include "proxy/config/errors.h"

#include <stdarg.h>
#include <stdio.h>

#include "proxy/base/memory.h"
#include "proxy/config/private.h"

enum { LINE_MAX_BYTES = 1024 };

void errors_add(struct config_errors *e, const struct directive *d, const char *where, const char *what) {
    if (d && directive_index(d) < config_directive_count()) {
        if (!e->wrong)
            e->wrong = memory_zalloc(config_directive_count() * sizeof(*e->wrong));
        e->wrong[directive_index(d)] = true;
    }
    if (e->count++ >= CONFIG_ERRORS_MAX)
        return;
    text_printf(&e->lines, "%s%s%s%s", e->lines.len > 0 ? "\n" : "", where ? where : "", where ? ": " : "", what);
}

bool config_refuse(struct config_errors *errors, const struct config *config, const char *directive, const char *format,
                   ...) {
    char what[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    errors_add(errors, directive_find(directive), config_place(config, directive), what);
    return false;
}

bool config_is_wrong(const struct config_errors *errors, const char *directive) {
    return errors->wrong && errors->wrong[directive_index(directive_find(directive))];
}

const char *config_place(const struct config *config, const char *directive) {
    const struct directive *d = directive_find(directive);
    return d && directive_index(d) < config_directive_count() ? config->places[directive_index(d)] : NULL;
}

void config_errors_clear(struct config_errors *errors) {
    text_clear(&errors->lines);
    memory_free(errors->wrong);
    *errors = (struct config_errors){0};
}
