/*
 * The finders of movable keys that the command table (command_table.h) names; for the table alone, everybody else asks
 * command_keys() of command.h.
 *
 * Each writes the indices of the request's keys to `keys`, as many as `max`, and returns how many there are, or -1
 * where the request is malformed. `data` is what the request's offsets are relative to.
 */
#ifndef LOCKKEEPER_PARSER_COMMAND_KEYS_H
#define LOCKKEEPER_PARSER_COMMAND_KEYS_H

#include "parser/command.h"

int keys_debug(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_destination_numkeys(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_georadius(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_georadiusbymember(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_memory(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_migrate(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_numkeys_first(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_numkeys_second(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_pairs(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_sort(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_streams(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);
int keys_subcommand(const char *data, const struct resp_request *request, uint32_t *keys, size_t max);

#endif
