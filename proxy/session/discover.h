/*
 * Commands that aren't in the table: what the node says of them.
 */
#ifndef LOCKKEEPER_SESSION_DISCOVER_H
#define LOCKKEEPER_SESSION_DISCOVER_H

#include <stdbool.h>

#include "parser/command_info.h"
#include "proxy/session/session.h"

enum discovery {
    DISCOVERED,       /* *command is its row, valid while the worker lives */
    DISCOVERED_LATER, /* the node is being asked: the request waits */
    DISCOVERED_NONE   /* the node does not know it either, or does not tell */
};

/* What a request is whose name the table lacks. */
enum discovery discover(struct session *s, const struct resp_request *r, const char *bytes,
                        const struct command **command);
/* Whether only the node can tell where a request's keys are. */
bool discover_asks_keys(const struct command *c);
/* Asks it, and sends the request where they are. */
void discover_keys(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);
/* How the replies of all masters to a discovered command become one. */
enum command_response discover_response(const struct command *c);
/* Frees all rows. */
void discover_clear(struct worker *w);

#endif
