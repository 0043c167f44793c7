/*
 * What --test-conf checks, and a start before it changes anything: whether the system provides what the configuration
 * needs.
 */
#pragma once

#include <stdbool.h>

#include "proxy/config/config.h"
#include "proxy/net/tls.h"

/* The TLS contexts of the configuration. */
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

/* Tries each step of a start (certificates, addresses and ports, the log, the pid file, the embedded redis-server) and
 * leaves nothing behind. All errors are added to `errors`, without those that follow from earlier errors. A port in use
 * is no error: the running proxy of this configuration may use it. `ports` false: ports are not tried, since sockets
 * were passed to the process. True if there is no error at all. */
bool start_check(const struct config *config, bool ports, struct config_errors *errors);

/* Reports each host name of upstream and witness that does not resolve here and now. */
void start_look_up(const struct config *config, void (*tell)(const char *text));
