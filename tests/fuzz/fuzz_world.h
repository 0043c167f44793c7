/*
 * A whole proxy inside the fuzzer: a worker with engine and admin commands on its own loop, on a clock that stands
 * still until the fuzzer moves it, with node.c's nodes behind connect(). The fuzzer's turn comes whenever the proxy has
 * nothing left to do, so the same input gives the same run.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum world_upstream { WORLD_STANDALONE, WORLD_CLUSTER, WORLD_SENTINEL };

struct world_options {
    enum world_upstream upstream;
    const char *owner; /* of the lock rules */
    bool audit;        /* lock:* too */
    bool small;        /* limits that clients reach */
    bool password;     /* requirepass, and upstream-password */
};

/* What a process does once; before the first world_run. */
void world_prepare(void);
/* Runs a proxy. `turn` is called in the loop; when it returns false the proxy is stopped, and the clients' descriptors
 * are the caller's to close. */
void world_run(const struct world_options *options, bool (*turn)(void *arg), void *arg);
/* A new client's descriptor, non-blocking; only while the world runs. */
int world_connect(void);
/* Whether the proxy takes clients. */
bool world_ready(void);
