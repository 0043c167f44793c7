/*
 * What a node says of a command (an element of COMMAND INFO's reply, RESP2, Redis 2.8.13 to 8) as a row like those of
 * the command table: for commands that the table lacks, of modules and of newer servers.
 *
 * It does not know which session asks, or how long an answer is valid.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "parser/command.h"

/* How the replies of all masters become one, by the command's tips. */
enum command_response {
    RESPONSE_ANY_SHAPE, /* not stated: arrays are concatenated; of other replies the first one is used */
    RESPONSE_ALL_SUCCEEDED,
    RESPONSE_ONE_SUCCEEDED,
    RESPONSE_SUM,
    RESPONSE_MIN,
    RESPONSE_MAX,
    RESPONSE_AND,
    RESPONSE_OR
};

struct command_info {
    struct command command; /* id COMMAND_UNKNOWN; first, so that the row leads back here */
    bool ask_keys;          /* only the node can tell where the keys are (COMMAND GETKEYS) */
    enum command_response response;
    struct command_info *subs; /* found by the second argument; their names are "container|sub" */
    size_t sub_count;
};

/* Reads the element at [p, end); to be freed with command_info_free. NULL: it is nil (unknown to the node) or
 * malformed. */
struct command_info *command_info_read(const char *p, const char *end) __attribute__((warn_unused_result));
void command_info_free(struct command_info *info);

/* The row for this very request of the command: its own, or its subcommand's. */
const struct command_info *command_info_of(const struct command_info *info, const char *data,
                                           const struct resp_request *request);
