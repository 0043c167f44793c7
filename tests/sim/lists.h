/*
 * List locks in the model: the queue under a lock key, and what the simulator looks at of its guard record. Included by
 * model.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { QUEUE_NODES = 96, QUEUE_TEXT = 64, QUEUE_NODE = 40 };

/* n:NODE, without the attempt */
struct queue_node {
    char party[QUEUE_TEXT], identity[QUEUE_TEXT];
};

struct model_queue {
    unsigned count;
    char nodes[QUEUE_NODES][QUEUE_NODE];
    bool kind; /* of the guard record: it is a list's */
    int64_t until_ms;
};
