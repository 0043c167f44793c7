/*
 * The password of the proxy's own user at Redis: upstream-password, the content of upstream-password-file, or the
 * output of upstream-password-command. File and command are asked again in a thread of their own:
 *
 *      upstream-password-refresh, a reload, a node's WRONGPASS ──> ask ──> upstream_own_login
 *
 * A password that can't be had anew is logged, and the one in use stays.
 */
#ifndef LOCKKEEPER_OWN_PASSWORD_H
#define LOCKKEEPER_OWN_PASSWORD_H

#include <stdbool.h>
#include <stddef.h>

#include "proxy/config/config.h"

/* Asks for the password, and sets the proxy's own login. A command gets 30 s. False: `errors` says why not. */
bool own_password_ask(const struct config *config, struct config_errors *errors);
/* Asks for the password at a reload, and sets the proxy's own login: a file or directive is read at once, and a command
 * is run by the thread later. False: `errors` says why not. */
bool own_password_reload(const struct config *config, struct config_errors *errors);

/* Starts the thread, if the proxy has a login. Signals must be blocked meanwhile. The configuration gets a reference
 * here and in own_password_use, which names the next one. */
void own_password_watch(const struct config *config);
void own_password_use(const struct config *config);
/* Ends the thread; a command that runs is killed. */
void own_password_end(void);

#endif
