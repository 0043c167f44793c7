/*
 * What --test-conf looks at, and a start before it does anything: whether the system gives what the configuration asks
 * for.
 */
#ifndef LOCKKEEPER_START_H
#define LOCKKEEPER_START_H

#include <stdbool.h>

#include "proxy/config/config.h"

/* Tries what a start does (certificates, addresses and ports, the log, the pid file, redis-server where it is embedded)
 * and leaves nothing behind. All that is wrong is added to `errors`; what follows from errors that are there already is
 * left out. A port that is taken is no error of the configuration: its own proxy may have it. `ports` false: they are
 * not tried, since sockets were given to the process. True where there is no error at all. */
bool start_check(const struct config *config, bool ports, struct config_errors *errors);

#endif
