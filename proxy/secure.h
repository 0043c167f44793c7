/*
 * The TLS contexts of the configuration: one each for clients, nodes and witnesses.
 */
#ifndef LOCKKEEPER_SECURE_H
#define LOCKKEEPER_SECURE_H

#include <stdbool.h>
#include <stddef.h>

#include "proxy/config/config.h"
#include "proxy/net/tls.h"

struct secure {
    struct tls_context *clients, *nodes, *witnesses; /* NULL: plain */
};

/* Loads the files that the configuration names, and then overwrites its passphrases. False: all errors were added to
 * `errors`, and nothing was kept. */
bool secure_load(struct secure *s, struct config *config, struct config_errors *errors)
    __attribute__((warn_unused_result));
/* New connections use the contexts of `fresh`. A side that is plain stays plain, and a TLS side stays as it is if
 * `fresh` has no context for it. Takes over `fresh`. */
void secure_replace(struct secure *s, struct secure *fresh);
void secure_clear(struct secure *s);

#endif
