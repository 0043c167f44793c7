/*
 * The passwords of the proxy's own users at Redis, Sentinels and witnesses: upstream-password, the content of
 * upstream-password-file, or the output of upstream-password-command, and the same for sentinel- and witness-. Files
 * and commands are asked again in a thread of their own:
 *
 *      upstream-password-refresh, a reload, a node's WRONGPASS ──> ask ──> upstream_own_login
 *
 * A password that can't be had anew is logged, and the one in use stays.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proxy/config/config.h"

/* Asks for the passwords, and sets the proxy's own logins. A command gets 30 s; at a reload the thread runs it later.
 * False: `errors` says why not. */
bool own_password_ask(const struct config *config, bool reload, struct config_errors *errors);

/* Has the thread ask by this configuration, at the start or behind a reload, and starts it if there is a login. The
 * configuration gets a reference. */
void own_password_watch(const struct config *config, bool reloaded);
/* Ends the thread; a command that runs is killed. */
void own_password_end(void);
