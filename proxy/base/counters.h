/*
 * Counters of one thread: one table of names and help texts. The owner adds, anybody reads.
 */
#ifndef LOCKKEEPER_BASE_COUNTERS_H
#define LOCKKEEPER_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* COUNTER(name, help). */
#define COUNTER_TABLE(COUNTER)                                                                                         \
    COUNTER(clients_connected, "clients connected now")                                                                \
    COUNTER(clients_total, "clients accepted since the start")                                                         \
    COUNTER(clients_refused, "clients refused because of maxclients")                                                  \
    COUNTER(tls_handshakes_failed, "clients closed because their TLS handshake failed")                                \
    COUNTER(clients_tracking, "clients with connections of their own for CLIENT TRACKING or NO-TOUCH")                 \
    COUNTER(client_bytes_in, "bytes read from clients")                                                                \
    COUNTER(client_bytes_out, "bytes written to clients")                                                              \
    COUNTER(protocol_errors, "clients closed for bytes that are no RESP")                                              \
    COUNTER(pinned_connections, "connections to nodes that one client has for itself now")                             \
    COUNTER(pinned_transactions, "of these, for WATCH and MULTI")                                                      \
    COUNTER(pinned_blocking, "of these, for blocking commands")                                                        \
    COUNTER(pinned_subscribed, "of these, for subscriptions")                                                          \
    COUNTER(pinned_replicas, "of these, for clients that are replicas")                                                \
    COUNTER(pinned_monitor, "of these, for MONITOR")                                                                   \
    COUNTER(pinned_streams, "of these, for long requests that are passed on while they come")                          \
    COUNTER(requests_total, "requests taken from clients")                                                             \
    COUNTER(requests_forwarded, "requests forwarded as they came")                                                     \
    COUNTER(requests_locks, "requests rewritten to lock scripts")                                                      \
    COUNTER(requests_joined, "of these, attempts to acquire that were answered with another client's")                 \
    COUNTER(requests_split, "requests split over several nodes or keys")                                               \
    COUNTER(requests_local, "requests answered by the proxy itself")                                                   \
    COUNTER(requests_failed, "requests answered with an UPSTREAM error")                                               \
    COUNTER(requests_waiting, "times a session waited for its earlier requests before sending on")

struct counters {
#define COUNTER_FIELD(name, help) _Atomic uint64_t name;
    COUNTER_TABLE(COUNTER_FIELD)
#undef COUNTER_FIELD
};

/* One writer a counter: a relaxed load and store, no locked instruction. */
static inline void counter_add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

static inline void counter_sub(_Atomic uint64_t *counter, uint64_t n) {
    counter_add(counter, (uint64_t)0 - n);
}

static inline uint64_t counter_read(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
