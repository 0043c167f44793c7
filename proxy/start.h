/*
 * What --test-conf checks, and a start before it changes anything: whether the system provides what the configuration
 * needs.
 */
#ifndef LOCKKEEPER_START_H
#define LOCKKEEPER_START_H

#include <stdbool.h>

#include "proxy/config/config.h"

/* Tries each step of a start (certificates, addresses and ports, the log, the pid file, the embedded redis-server) and
 * leaves nothing behind. All errors are added to `errors`, without those that follow from earlier errors. A port in use
 * is no error: the running proxy of this configuration may use it. `ports` false: ports are not tried, since sockets
 * were passed to the process. True if there is no error at all. */
bool start_check(const struct config *config, bool ports, struct config_errors *errors);

/* Reports each host name of upstream and witness that does not resolve here and now. */
void start_look_up(const struct config *config, void (*tell)(const char *text));

#endif
