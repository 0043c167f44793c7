/*
 * Redis's replies, as far as the fuzzer's nodes need them: of the right shape, without data behind them. GET answers
 * the key's name, which shows to which request a reply belongs. It knows no connections.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parser/resp.h"
#include "proxy/base/text.h"

/* A connection's state. {0} is a new one's. */
struct redis {
    bool resp3;
    bool multi;
    bool dirty; /* EXEC will fail */
    unsigned queued;
    struct text replies; /* EXEC's elements */
    unsigned channels;
};

struct redis_mind {
    unsigned node, nodes;
    int port;     /* of node 0 */
    uint8_t mood; /* picks what lock scripts say */
    bool tame;    /* only what fits their commands */
};

void redis_clear(struct redis *c);
void redis_answer(struct redis *c, const struct redis_mind *mind, const struct resp_request *r, const char *data,
                  struct text *out);
/* A request was answered with an error instead. */
void redis_refused(struct redis *c);
/* Errors that mean something to proxies; any number. */
const char *redis_error(size_t number);
/* The slot of the request's first argument behind its name, 0 if it has none. */
int redis_slot(const struct resp_request *r, const char *data);
