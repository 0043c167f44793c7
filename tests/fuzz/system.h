/*
 * The fuzzer's replacement of the system: a clock that only the fuzzer moves, connect() that leads to node.c's nodes,
 * and addresses instead of names. It knows nothing of the proxy.
 */
#pragma once

#include <stdint.h>
#include <sys/socket.h>

/* From now on it is now, until the clock is started again. */
void system_stop_clock(void);
void system_pass(int64_t ms);
void system_start_clock(void);
/* The system's own connect. */
int system_connect(int fd, const struct sockaddr *to, socklen_t len);
