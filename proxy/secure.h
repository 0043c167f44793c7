/*
 * TLS as the configuration has it: the context of the clients' side and that of the nodes' side.
 */
#ifndef LOCKKEEPER_SECURE_H
#define LOCKKEEPER_SECURE_H

#include <stdbool.h>
#include <stddef.h>

#include "proxy/config/config.h"
#include "proxy/net/tls.h"

struct secure {
    struct tls_context *clients, *nodes; /* NULL: plain */
};

/* Reads what the configuration names; passphrases in it are overwritten then. False: all that is wrong was added to
 * `errors`, and nothing was kept. */
bool secure_load(struct secure *s, struct config *config, struct config_errors *errors)
    __attribute__((warn_unused_result));
/* New connections use what `fresh` has; a side that is plain stays plain, and one that isn't stays as it is where fresh
 * has nothing for it. Takes `fresh` over. */
void secure_replace(struct secure *s, struct secure *fresh);
void secure_clear(struct secure *s);

#endif
