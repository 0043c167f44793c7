/*
 * The finders of movable keys, which the command table (command_table.h) names. Only the table uses them; all other
 * code calls command_keys() of command.h.
 *
 * Each finder writes the indices of the request's keys to `keys`, at most `max`, and returns how many keys there are.
 * It returns -1 if the request is malformed. `data` is the start of the request: its offsets are relative to `data`.
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
