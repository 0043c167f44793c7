/*
 * What is wrong with a configuration, all of it: one line for each error, which says where it stands (file and line, or
 * the command line), the directive, its value and what was expected. Passwords are left out.
 */
#ifndef LOCKKEEPER_CONFIG_ERRORS_H
#define LOCKKEEPER_CONFIG_ERRORS_H

#include <stdbool.h>
#include <stddef.h>

#include "proxy/base/text.h"

struct config;

enum { CONFIG_ERRORS_MAX = 100 }; /* where reading ends */

/* {0} is none. The lines are separated by '\n', without one at the end. */
struct config_errors {
    struct text lines;
    size_t count;
    bool *wrong; /* of the table's directives; NULL: none */
};

/* Adds an error that was found by what the values do. It begins with the place of `directive`, the words follow; they
 * name the directive themselves. Returns false. */
bool config_refuse(struct config_errors *errors, const struct config *config, const char *directive, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));
/* Whether the directive's value, which may be the default then, is not what the file has: what follows from it need not
 * be looked at. */
bool config_is_wrong(const struct config_errors *errors, const char *directive);
/* Where the directive stands, "lockkeeper.conf:3"; NULL: it has its default. Borrowed. */
const char *config_place(const struct config *config, const char *directive);
void config_errors_clear(struct config_errors *errors);

#endif
