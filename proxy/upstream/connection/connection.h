/*
 * Connections to nodes, and the structures behind upstream.h, which the rooms of proxy/upstream/ share. From the
 * ground:
 *
 *      connection/  nodes and the connections to them, shared or pinned; logins; hiredis on the loop
 *      routing/     which node a request goes to; redirects, repeats, waits, its end; the slot map
 *      topology/    which node serves which slots: rounds of questions to the cluster or to Sentinels
 *      life/        the upstream as a whole: creation, ticks, flushing, freeing
 *
 * A folder calls functions of the folders above it through struct upstream_above.
 *
 *      upstream ── nodes ── pools (a lane each) ── connections ── pending requests
 *               ── conns (all that are open or closed in this turn) ── graveyard (the closed ones)
 *               ── retrying (requests that wait: after TRYAGAIN and similar errors, or for a new map)
 *      nodes ── idle pins (given back, open)       u->unpinned (to be closed by upstream_flush)
 */
#pragma once

/* All files of proxy/upstream/ get from here what most of them use. */
#include <errno.h>
#include <ev.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "parser/invariant.h"
#include "parser/resp.h"
#include "parser/slot.h"
#include "proxy/base/clock.h"
#include "proxy/base/metric.h"
#include "proxy/base/iobuf.h"
#include "proxy/base/list.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/text.h"
#include "proxy/net/readable.h"
#include "proxy/net/resolve.h"
#include "proxy/net/tls.h"
#include "proxy/upstream/script.h"
#include "proxy/upstream/upstream.h"

enum {
    READ_SCRATCH = 64 * 1024,
    READS_PER_EVENT = 8,          /* then the loop gets its turn */
    REPLY_LONG = 4 * 1024 * 1024, /* for a longer reply, later requests use another connection */
    REPLY_HELD_MAX = 4096, /* up to this length, a reply that the scratch buffer cuts is kept until its end comes */
    HOPS_MAX = 5,          /* MOVED and ASK */
    ATTEMPTS_MAX = 3,      /* lost connections */
    DELAYS_MAX = 6,        /* TRYAGAIN and similar errors: 20 40 80 160 320 400 ms */
    DELAY_FIRST_MS = 20,
    DELAY_LONGEST_MS = 400,
    MAP_WAIT_MS = 1000, /* for a new map, which usually comes within a few ms */
    BACKOFF_FIRST_MS = 50,
    BACKOFF_LONGEST_MS = 2000,
    CONNECT_LONGEST_MS = 2000,
    IDLE_MS = 5 * 60 * 1000,     /* a connection without requests is closed */
    PIN_IDLE_MS = 60 * 1000,     /* an idle pin is closed after this time */
    PINS_IDLE_MAX = 16,          /* idle pins of one node */
    PIN_UNSENT_MAX = 512 * 1024, /* of a request that comes in pieces: above this its owner waits */
    PIN_UNSENT_LOW = 128 * 1024, /* below this its owner is told to go on */
    NODES_MAX = 4096,            /* a node's MOVED can't create more nodes than that */
    ADDRESS_MAX = 300,
    REASON_MAX = 256
};

/* ---- addresses (node.c) ---- */

struct address {
    char host[ADDRESS_MAX]; /* without brackets; "" if the text had none; the path of a unix socket */
    int port;               /* 0 for a unix socket */
};

/* Reads "HOST:PORT", "[IPV6]:PORT", "IPV6:PORT", ":PORT" or "unix:PATH". False if it is none. */
bool address_parse(const char *text, size_t len, struct address *out) __attribute__((warn_unused_result));
/* Whether a node's host has no other characters than letters, digits and . - _ : % */
bool address_host_ok(const char *host, size_t len);
static inline bool address_same(const struct address *a, const struct address *b) {
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}
/* Writes the canonical text, at most `size` bytes with its NUL. */
void address_text(const struct address *a, char *out, size_t size);

/* ---- login.c ---- */

/* The AUTH of a login as RESP; the caller overwrites and frees it. NULL: no such login. `at` and `before` count for
 * login 0 alone: the servers, and the password before the one in use, if there was one. */
char *login_text(enum upstream_own at, uint32_t login, bool before, size_t *len) __attribute__((warn_unused_result));
/* Whether there was another login 0 before. Thread-safe, as the next function is. */
bool login_own_has_before(enum upstream_own at);
/* Notes that a node has refused login 0. */
void login_own_refused(void);

/* ---- the upstream ---- */

struct topology;

/* Why a connection ends. The reason decides whether its requests are repeated or failed. */
enum conn_end {
    CONN_LOST,        /* requests that may be sent again are sent again */
    CONN_UNREACHABLE, /* it never became ready */
    CONN_TIMEOUT,     /* a due reply did not come */
    CONN_REFUSED,     /* the node refused the handshake; the reason is its error */
    CONN_FULL,        /* the node takes no more clients (maxclients) and read nothing; the reason is its error */
    CONN_REPLACED,    /* another master has taken over from the node: not the node's fault */
    CONN_IDLE,        /* nothing was in flight */
    CONN_SHUTDOWN     /* upstream_free */
};

/* Functions of the folders above, called from connections and routing; set before any connection is opened. */
struct upstream_above {
    /* ---- routing ---- */
    /* Takes the requests of a connection that ended. `who` is the connection's node. */
    void (*lost)(struct upstream *u, struct list_node *requests, struct upstream_node *who, enum conn_end end,
                 const char *reason);
    /* Takes a complete error reply without its '-' and CR LF. True: it was a redirect or a similar error, and routing
     * now owns the request, which is in no list. */
    bool (*error)(struct upstream *u, struct upstream_node *from, struct upstream_request *r, const char *text,
                  size_t len);
    /* Whether a waiting request is not needed any more; if so, it has been failed. */
    bool (*pointless)(struct upstream_request *r);
    /* The error for a request for which there is no node. */
    const char *(*no_node)(struct upstream *u);
    /* ---- topology: called only if there is one ---- */
    /* Ask for a new map. want: soon, at a limited rate; now: in the next loop turns, without that limit. */
    void (*want)(struct topology *t);
    void (*now)(struct topology *t);
    /* Whether the last round is so old that failovers may be unknown, or older than `since_ms`. */
    bool (*is_old)(const struct topology *t, int64_t since_ms);
    /* The reason why nothing is known yet, for a reply or the log. */
    void (*reason)(const struct topology *t, char *out, size_t size);
    /* Whether a connection whose handshake is over has to wait for a round, which is then started; conn_ready is called
     * after it. */
    bool (*holds_back)(struct upstream_conn *c);
};

struct upstream {
    struct ev_loop *loop;
    struct readable *readable;
    const struct upstream_config *config;
    struct address *seeds; /* the configuration's addresses */
    const struct upstream_above *above;
    struct chunk_pool *pool;
    struct upstream_events events;
    bool announced, closing;
    unsigned connections;
    int64_t timeout_ms, connect_ms;
    int64_t late_after_us;    /* upstream_set_late */
    int64_t read_us, late_us; /* when a node was read last; requests that began by then are late */

    struct list_node nodes; /* in the order in which they became known */
    size_t node_count;
    /* Only upstream_flush takes connections out of `conns`, so a walk may close any. */
    struct list_node conns, dirty, graveyard;
    struct list_node retrying;
    struct list_node unpinned; /* pins to be closed and freed */
    struct list_node dedicated;
    uint32_t last_dedicated;
    uint32_t own_dedicated; /* of upstream_dedicated_own; 0: none yet */
    bool dedicated_ended;   /* a dedicated lane has ended; its connections may still be open */

    struct upstream_node **slots; /* SLOT_COUNT; NULL for a standalone */
    struct upstream_node **masters;
    size_t master_count;
    unsigned covered; /* slots with a node */
    uint64_t epoch;
    uint64_t print, print_epoch; /* upstream_map_print's result, and 1 + the epoch that it belongs to */
    struct topology *topology;   /* NULL for a standalone */

    ev_timer tick, retry, start, watch; /* watch: of the replicas */
    int64_t swept_ms;
    bool tick_fast;
    uint64_t random;
    char *scratch;
    char error[512]; /* the error of the last call that returned one */
};

/* `ms`, up to 25 % more or less. */
int64_t upstream_jitter(struct upstream *u, int64_t ms);
/* How long to wait after so many failures in a row: twice as long each time, with jitter. */
int64_t upstream_backoff(struct upstream *u, int64_t first_ms, int64_t longest_ms, unsigned failures);
uint32_t upstream_random(struct upstream *u, uint32_t below);
/* Starts a timer that ends once, in `ms`; not if it is running and ends sooner. */
void upstream_timer(struct upstream *u, ev_timer *timer, int64_t ms);
/* Says, once, that the upstream can serve, or why it can't. */
void upstream_announce(struct upstream *u, const char *error);
/* Says that nodes may have forgotten what they answered. */
static inline void upstream_may_forget(struct upstream *u) {
    if (u->events.may_forget)
        u->events.may_forget(u->events.arg);
}
/* Asks for a new map soon, if there is a topology. */
static inline void upstream_want_map(struct upstream *u) {
    if (u->topology)
        u->above->want(u->topology);
}
/* Whether the map may be older than `since_ms`; no, without a topology. */
static inline bool upstream_map_is_old(const struct upstream *u, int64_t since_ms) {
    return u->topology && u->above->is_old(u->topology, since_ms);
}

/* ---- requests ---- */

/* Begins a request: sets all private fields except those of its place in a queue. */
void request_begin(struct upstream_request *r, int slot, struct upstream_node *to, const struct upstream_lane *lane,
                   const char *bytes, size_t len);
/* Ends a request: releases its bytes; the owner owns the request again. */
static inline void request_end(struct upstream_request *r) {
    invariant_debug(r->in_flight || !r->conn, "a request ends twice");
    if (r->chunk)
        chunk_release(r->chunk);
    r->chunk = NULL;
    r->conn = NULL;
    r->in_flight = false;
}

/* ---- quota.c ---- */

struct quota;
struct quota_client;

/* What one connection counts as in the quota; `client` NULL: it is not counted. */
struct quota_hold {
    struct quota_client *client;
    bool lasting;
};

/* How many connections single clients may have to the node at present. */
uint32_t quota_limit(const struct upstream_node *n);

/* ---- node.c; connect.c opens the connections ---- */

struct upstream_node {
    struct list_node link;
    struct upstream *u;
    char *address;
    struct address at;
    uint32_t hash; /* of address */
    bool numeric;  /* the host is a numeric address, so it is never resolved */
    bool served;   /* it has served slots, perhaps none at present */
    unsigned slots;
    struct upstream_node *master; /* the node that it is a replica of; NULL: it is none, or read-from is masters */
    struct list_node replicas;    /* its own, in the order of their addresses: by `replica` */
    struct list_node replica;
    struct replica_watch *watch; /* for map.c; NULL: none was needed yet */
    struct list_node pools;
    struct list_node idle_pins; /* latest first */
    unsigned idle_pin_count;
    unsigned pins;         /* open connections of pins, and others that are in no pool */
    struct quota *quota;   /* shared by all nodes with this address */
    uint64_t pins_refused; /* refused by the quota, in this thread */

    struct host_addresses host;
    unsigned addr_good;     /* the address that worked last */
    bool reached;           /* one of them has worked */
    struct resolve *lookup; /* of the node's name; NULL: none is under way */

    unsigned failures; /* in a row; 0: the node is well */
    bool doubted;      /* it is well, but the last connection was lost before its first reply */
    int64_t failed_ms; /* when the first failure of the row happened */
    int64_t lost_ms;   /* when a connection was last lost, or last could not be opened; 0: never */
    int64_t retry_at_ms;
    char reason[REASON_MAX]; /* of the last failure */
    char logged[REASON_MAX]; /* the last line logged, so that it is not repeated */
    int64_t logged_ms;
    int64_t refusal_logged_ms; /* 0: never */
    unsigned refusals;         /* refusals since then that no line has reported */
    uint64_t requests, connects, redirects, replica_reads;
    struct histogram round_trips; /* of a sample: a flush's newest request, one at a time per shared connection */
    int64_t round_trip_us;        /* smoothed over the sample; 0: none yet */
    /* The shortest since least_since_us, and in the period before; 0: none. */
    int64_t least_us, least_before_us, least_since_us;
    struct node_probe *probe; /* NULL: none was needed yet */
};

struct upstream_pool {
    struct list_node link;
    struct upstream_node *node;
    struct upstream_lane lane;
    struct upstream_conn *conns[]; /* u->connections, then UPSTREAM_APARTS; NULL: not open */
};

/* The node of an address, created if needed; NULL if there are too many nodes. */
struct upstream_node *node_get(struct upstream *u, const struct address *at);
/* Notes that the node is a replica of `master`, or (NULL) of none. */
void node_is_replica(struct upstream_node *n, struct upstream_node *master);
/* Frees a node that has no pools. */
void node_forget(struct upstream_node *n);
/* The lane's connection at this index, opened if needed; NULL: u->error says why. */
struct upstream_conn *node_conn_find(struct upstream_node *n, const struct upstream_lane *lane, unsigned index);
static inline bool lane_equal(const struct upstream_lane *a, const struct upstream_lane *b) {
    return memcmp(a, b, sizeof(*a)) == 0;
}
/* The connection for a request. */
static inline struct upstream_conn *node_conn(struct upstream_node *n, const struct upstream_request *r) {
    invariant_debug(r->apart <= UPSTREAM_APARTS, "connection %d of the lane", r->apart);
    const struct upstream_lane *lane = &r->lane;
    unsigned shared = n->u->connections, index = shared == 1 ? 0 : r->affinity % shared;
    if (r->apart)
        index = shared + r->apart - 1;
    if (!list_empty(&n->pools)) {
        struct upstream_pool *p = LIST_ENTRY(n->pools.next, struct upstream_pool, link);
        struct upstream_conn *c = p->conns[index];
        if (c && lane_equal(&p->lane, lane))
            return c;
    }
    return node_conn_find(n, lane, index);
}
/* Whether new connections are not tried for now. */
bool node_backing_off(const struct upstream_node *n);
/* Notes that the node gave a reply. */
void node_works(struct upstream_node *n);

/* ---- conn.c ---- */

enum conn_state {
    CONN_RESOLVING,  /* the node's name is being looked up; requests wait in `out` */
    CONN_CONNECTING, /* the socket is connecting; requests wait in `out` */
    CONN_SECURING,   /* the TLS handshake is under way; requests wait in `out` */
    CONN_HANDSHAKE,  /* AUTH, HELLO, SELECT are on their way; requests wait in `out` */
    CONN_READY,
    CONN_CLOSED /* in the graveyard */
};

struct upstream_conn {
    struct list_node link;  /* u->conns */
    struct list_node dirty; /* u->dirty or u->graveyard */
    struct upstream *u;
    struct upstream_node *node; /* NULL in the graveyard, as is pool */
    struct upstream_pool *pool; /* NULL if no more requests may follow */
    unsigned index;             /* in pool->conns */
    struct upstream_pin *pin;   /* the pin that owns it; NULL: shared */
    struct quota_hold hold;     /* for a dedicated lane's connection */
    uint32_t dedicated;         /* the number of its dedicated lane, or 0 */
    bool paused;                /* not read at present: upstream_hold */
    enum conn_state state;
    int fd;
    struct tls *tls;     /* NULL: plain */
    unsigned tried;      /* how many of the node's addresses were tried */
    unsigned addr;       /* the one being tried */
    int64_t deadline_ms; /* when it must be ready */
    int64_t progress_ms; /* when the last byte was received, or the oldest request became due */
    ev_io readable, writable;

    struct iobuf out;       /* requests */
    struct iobuf handshake; /* AUTH, HELLO, SELECT */
    unsigned handshake_left;
    bool prelude;             /* the prelude is under way */
    bool before;              /* the node has refused login 0 as it is now: it gets the one before */
    unsigned own_version;     /* of login 0, when the connection logged in, or was last told to */
    bool unverified;          /* the handshake is over, but topology.c waits for the Sentinels' answer */
    struct list_node pending; /* requests, oldest first */
    size_t in_flight;
    uint64_t replies; /* how many requests have ended */
    /* For each script the request that carried its source, as a number of the count above; 0: none. */
    struct {
        const struct script *script;
        uint64_t at;
    } sourced[SCRIPT_TOTAL];
    uint64_t timed_reply;  /* the value of `replies` when the timed request will be answered */
    int64_t timed_from_us; /* when it was written; 0: none is timed */
    int64_t taken_us;      /* when it became ready, or was last rid of bytes that the node had not taken at once */
    bool stuck;            /* it has such bytes */
    bool rebuild;          /* an abandoned request must be removed from `out` before it is sent */
    bool proven;           /* it has given a reply */

    struct resp_reply scan;
    bool passing;        /* the reply being framed is delivered in parts */
    size_t passed;       /* bytes of it delivered so far */
    bool asking_done;    /* the reply to the oldest request's ASKING has come */
    unsigned led;        /* how many of the oldest request's leading replies have come */
    bool has_script;     /* a batch's script's source has been sent over it */
    struct text refusal; /* the first error among the leading replies */
    unsigned refused_at; /* the index of that reply; meaningful if there is one */
    struct text held;    /* the beginning of a reply, REPLY_HELD_MAX bytes at most */
    struct text push;    /* the beginning of a push on a dedicated lane */
};

/* Frees a connection that is in the graveyard. */
void conn_free(struct upstream_conn *c);
/* Notes that the connection has something to write. */
static inline void conn_mark(struct upstream_conn *c) {
    if (list_empty(&c->dirty))
        list_append(&c->u->dirty, &c->dirty);
}
/* Appends the bytes of a request that follows an ASKING, or is a batch. */
void conn_append_special(struct upstream_conn *c, struct upstream_request *r);
/* Notes the first request in flight on an idle connection. */
void conn_busy(struct upstream_conn *c);
/* Queues a request with its bytes (which are copied), after an ASKING if r->asking. */
static inline void conn_send(struct upstream_conn *c, struct upstream_request *r) {
    invariant_debug(c->state != CONN_CLOSED && r->ops, "a closed connection takes a request");
    struct chunk *before = r->chunk;
    if (r->asking | (r->leading > 0))
        conn_append_special(c, r);
    else
        r->bytes = iobuf_append_held(&c->out, r->bytes, r->len, &r->chunk);
    if (before) {
        r->chunk->secret |= before->secret;
        chunk_release(before);
    }
    r->conn = c;
    r->streaming = false;
    list_append(&c->pending, &r->link);
    c->node->requests++;
    if (c->state == CONN_READY)
        conn_mark(c);
    if (c->in_flight++ == 0)
        conn_busy(c);
}
/* The request's bytes with EVAL and the source in place of EVALSHA and the SHA1 of the command at `at`; the caller
 * frees them. NULL: there is no EVALSHA. */
char *request_by_source(const struct upstream_request *r, size_t at, size_t *len) __attribute__((warn_unused_result));
/* Stops reading a connection, or resumes. */
void conn_pause(struct upstream_conn *c, bool pause);
/* Takes a connection out of its pool: it closes once its requests have ended. */
void conn_retire(struct upstream_conn *c);
void conn_flush(struct upstream_conn *c);
/* Why reading or writing failed. */
static inline const char *conn_errno_text(const struct upstream_conn *c) {
    return c->tls ? tls_error(c->tls) : strerror(errno);
}
/* Sends what has waited: the handshake is over, or the round has ended that had to verify the node. */
void conn_ready(struct upstream_conn *c);
/* ---- close.c ---- */

/* Writes why a connection ended, without the outcome of its requests. */
void conn_lost_text(char *out, size_t size, const char *address, enum conn_end end, const char *reason);
/* Writes an error. If it is the proxy's own, the outcome is appended; `sent`: a byte of the request left. */
void outcome_text(char *out, size_t size, const char *base, bool sent);
/* Writes the error of a call that took no request, and returns it: u->error. `base` may be u->error. */
const char *outcome_unsent(struct upstream *u, const char *base);
/* Ends a connection; its requests are repeated or failed. */
void conn_close(struct upstream_conn *c, enum conn_end end, const char *reason);

/* ---- timeout.c ---- */

/* The callback of u->tick: closes connections that are late or not needed, and sets the tick's speed. */
void upstream_tick(struct ev_loop *loop, ev_timer *w, int revents);
/* Closes idle connections (all connections of nodes that serve nothing), and frees unused nodes. */
void node_sweep(struct upstream *u);

/* ---- pin.c ---- */

struct upstream_pin {
    struct list_node link; /* node->idle_pins or u->unpinned */
    struct quota_hold hold;
    struct upstream *u;
    struct upstream_conn *conn; /* NULL: lost */
    struct upstream_lane lane;
    struct upstream_pin_events events;
    bool owned; /* in use by a caller; else idle or to be closed */
    bool idle;
    bool stream, mark;
    int64_t patient_ms; /* upstream_pin_patient */
    int64_t number;
    bool open; /* the request in flight is not complete: upstream_pin_more */
    bool full; /* its owner waits for `drained` */
};

/* Closes and frees the pins that were given back, and closes the connections of dedicated lanes that have ended. Never
 * called from inside a connection's callback. */
void pin_close_unpinned(struct upstream *u);
