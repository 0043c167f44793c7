/*
 * All errors of a configuration: one line each, with the place (file and line, or the command line), the directive, its
 * value and what was expected. Passwords are left out.
 */
#ifndef LOCKKEEPER_CONFIG_ERRORS_H
#define LOCKKEEPER_CONFIG_ERRORS_H

#include <stdbool.h>
#include <stddef.h>

#include "proxy/base/text.h"

struct config;

enum { CONFIG_ERRORS_MAX = 100 }; /* reading stops here */

/* {0} is empty. The lines are separated by '\n', without one at the end. */
struct config_errors {
    struct text lines;
    size_t count;
    bool *wrong; /* whether each directive of the table is wrong; NULL: none is */
};

/* Adds an error that was found when a value was used. The line begins with the place of `directive`; the text must name
 * the directive. Returns false. */
bool config_refuse(struct config_errors *errors, const struct config *config, const char *directive, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));
/* Whether the directive's value in the file is wrong. The configuration may then have the default, so errors that
 * follow from it should not be reported. */
bool config_is_wrong(const struct config_errors *errors, const char *directive);
/* The place of the directive, "lockkeeper.conf:3"; NULL: it has its default. Borrowed. */
const char *config_place(const struct config *config, const char *directive);
void config_errors_clear(struct config_errors *errors);

#endif
