/*
 * What one thread counts, and what it measures the duration of; one table each of their names wherever they are shown.
 * The owner thread adds. Any thread reads counters; a reader of durations must synchronise with the owner.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "parser/invariant.h"
#include "proxy/base/metric.h"

/* COUNTER(name, type, family, label, value, help): the name in INFO and /status.json; at /metrics the family's name,
 * type and help text (NULL but for its first counter), and the label and value that distinguish its counters, or NULL.
 * There is one table for each section of INFO. */
#define CLIENT_COUNTERS(COUNTER)                                                                                       \
    COUNTER(clients_connected, "gauge", "clients_connected", NULL, NULL, "Clients connected now.")                     \
    COUNTER(clients_total, "counter", "clients_accepted_total", NULL, NULL, "Clients accepted.")                       \
    COUNTER(clients_refused, "counter", "clients_refused_total", NULL, NULL,                                           \
            "Clients refused because of maxclients, or in protected mode.")                                            \
    COUNTER(clients_tracking, "gauge", "clients_tracking", NULL, NULL,                                                 \
            "Clients with connections of their own for CLIENT TRACKING or NO-TOUCH.")                                  \
    COUNTER(client_bytes_in, "counter", "client_received_bytes_total", NULL, NULL, "Bytes read from clients.")         \
    COUNTER(client_bytes_out, "counter", "client_sent_bytes_total", NULL, NULL, "Bytes written to clients.")           \
    COUNTER(slices, "counter", "slices_total", NULL, NULL,                                                             \
            "Turns in which a part of a long command was done (PROXY LOCKS, RELOAD, CLIENT LIST, KILL).")              \
    COUNTER(protocol_errors, "counter", "protocol_errors_total", NULL, NULL,                                           \
            "Clients closed for bytes that are not RESP.")                                                             \
    COUNTER(proxy_headers_refused, "counter", "proxy_headers_refused_total", NULL, NULL,                               \
            "Clients from proxy-protocol's addresses closed because they sent no valid header.")                       \
    COUNTER(tls_handshakes_failed, "counter", "tls_handshakes_failed_total", NULL, NULL,                               \
            "Clients closed because their TLS handshake failed.")                                                      \
    COUNTER(logins_refused, "counter", "logins_refused_total", NULL, NULL, "Wrong passwords.")
#define UPSTREAM_COUNTERS(COUNTER)                                                                                     \
    COUNTER(pinned_connections, "gauge", "connections_pinned", NULL, NULL,                                             \
            "Connections to nodes that one client has for itself, for any reason.")                                    \
    COUNTER(pinned_transactions, "gauge", "pinned_connections", "reason", "transaction",                               \
            "Connections to nodes that one client has for itself, by its reason.")                                     \
    COUNTER(pinned_blocking, "gauge", "pinned_connections", "reason", "blocking", NULL)                                \
    COUNTER(pinned_subscribed, "gauge", "pinned_connections", "reason", "subscribed", NULL)                            \
    COUNTER(pinned_monitor, "gauge", "pinned_connections", "reason", "monitor", NULL)                                  \
    COUNTER(pinned_streams, "gauge", "pinned_connections", "reason", "stream", NULL)
#define REQUEST_COUNTERS(COUNTER)                                                                                      \
    COUNTER(requests_total, "counter", "requests_taken_total", NULL, NULL, "Requests taken from clients.")             \
    COUNTER(requests_forwarded, "counter", "requests_total", "kind", "forwarded",                                      \
            "Requests taken from clients, by how they were handled.")                                                  \
    COUNTER(requests_locks, "counter", "requests_total", "kind", "lock", NULL)                                         \
    COUNTER(requests_joined, "counter", "requests_joined_total", NULL, NULL,                                           \
            "Attempts to acquire that were answered with the script of another client's attempt.")                     \
    COUNTER(requests_split, "counter", "requests_total", "kind", "split", NULL)                                        \
    COUNTER(requests_local, "counter", "requests_total", "kind", "local", NULL)                                        \
    COUNTER(requests_failed, "counter", "requests_failed_total", NULL, NULL,                                           \
            "Requests answered with an UPSTREAM error.")                                                               \
    COUNTER(requests_waiting, "counter", "requests_waited_total", NULL, NULL,                                          \
            "Times a session waited for its earlier requests before sending on.")
#define WAIT_COUNTERS(COUNTER)                                                                                         \
    COUNTER(waiting, "gauge", "lock_attempts_waiting", NULL, NULL,                                                     \
            "Attempts to acquire that wait (rule option wait).")                                                       \
    COUNTER(waits_granted, "counter", "lock_waits_total", "end", "granted",                                            \
            "Attempts to acquire that have waited, by result.")                                                        \
    COUNTER(waits_refused, "counter", "lock_waits_total", "end", "refused", NULL)                                      \
    COUNTER(waits_left, "counter", "lock_waits_total", "end", "left", NULL)                                            \
    COUNTER(wait_tries, "counter", "lock_wait_tries_total", NULL, NULL, "Scripts sent for attempts that wait.")        \
    COUNTER(losses_pushed, "counter", "losses_told_total", "how", "push",                                              \
            "Sessions that heard that a lease of theirs was over, by how they heard it.")                              \
    COUNTER(losses_closed, "counter", "losses_told_total", "how", "close", NULL)                                       \
    COUNTER(losses_refused, "counter", "losses_told_total", "how", "error", NULL)
#define PERMIT_COUNTERS(COUNTER)                                                                                       \
    COUNTER(permits_taken, "counter", "permits_total", "event", "taken",                                               \
            "Permits of semaphores (rule option kind semaphore), by what became of them.")                             \
    COUNTER(permits_given, "counter", "permits_total", "event", "given_back", NULL)                                    \
    COUNTER(permits_returned, "counter", "permits_total", "event", "returned", NULL)                                   \
    COUNTER(permits_lost, "counter", "permits_total", "event", "lost", NULL)                                           \
    COUNTER(permits_untracked, "counter", "permits_total", "event", "untracked", NULL)
#define QUORUM_COUNTERS(COUNTER)                                                                                       \
    COUNTER(quorum_granted, "counter", "quorum_votes_total", "result", "granted",                                      \
            "Acquisitions and extensions that witnesses were asked about (rule option quorum), by their votes.")       \
    COUNTER(quorum_remembered, "counter", "quorum_votes_total", "result", "remembered", NULL)                          \
    COUNTER(quorum_unconfirmed, "counter", "quorum_votes_total", "result", "unconfirmed", NULL)
#define COUNTER_TABLE(COUNTER)                                                                                         \
    CLIENT_COUNTERS(COUNTER)                                                                                           \
    UPSTREAM_COUNTERS(COUNTER)                                                                                         \
    REQUEST_COUNTERS(COUNTER) WAIT_COUNTERS(COUNTER) PERMIT_COUNTERS(COUNTER) QUORUM_COUNTERS(COUNTER)

struct counters {
#define COUNTER_FIELD(name, ...) _Atomic uint64_t name;
    COUNTER_TABLE(COUNTER_FIELD)
#undef COUNTER_FIELD
};

/* The sums over several threads. */
struct counter_sums {
#define COUNTER_FIELD(name, ...) uint64_t name;
    COUNTER_TABLE(COUNTER_FIELD)
#undef COUNTER_FIELD
};

/* Adds to a counter that only this thread writes: a relaxed load and store are enough. */
static inline void counter_add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

static inline void counter_sub(_Atomic uint64_t *counter, uint64_t n) {
    invariant_debug(atomic_load_explicit(counter, memory_order_relaxed) >= n, "a gauge falls below 0");
    counter_add(counter, (uint64_t)0 - n);
}

static inline uint64_t counter_read(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* The tables of the fields of struct counter_sums. */
extern const struct metric_table client_counters, upstream_counters, request_counters, wait_counters, permit_counters,
    quorum_counters;
/* Adds the counters of one thread to `sums`. May be called from any thread. */
void counters_sum(struct counter_sums *sums, const struct counters *c);

/* DURATION(name, family, label, value, help): the field; the rest as for COUNTER. */
#define DURATION_TABLE(DURATION)                                                                                       \
    DURATION(lock_commands, "lock_command_seconds", NULL, NULL,                                                        \
             "From the arrival of a command on a lock to the answer of its script (and of replicas, where the rule "   \
             "asks them); not inside MULTI.")                                                                          \
    DURATION(lock_waits, "lock_wait_seconds", NULL, NULL,                                                              \
             "From the arrival of an attempt that had to wait (rule option wait) until it got the lock.")              \
    DURATION(witnesses, "quorum_seconds", NULL, NULL,                                                                  \
             "From the script's answer to the decision of the witnesses (rule option quorum).")                        \
    DURATION(lock_handovers, "lock_handover_seconds", NULL, NULL,                                                      \
             "For attempts that had to wait: from the turn in which a release was seen until the lock was theirs.")

struct durations {
#define DURATION_FIELD(name, ...) struct histogram name;
    DURATION_TABLE(DURATION_FIELD)
#undef DURATION_FIELD
};

/* The table of the histograms of struct durations. */
extern const struct metric_table duration_histograms;
void durations_add(struct durations *to, const struct durations *from);
