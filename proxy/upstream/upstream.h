/*
 * The way to Redis, for one thread: nodes, shared connections to them, routing by slot, redirects.
 *
 *      session ── upstream_submit ──> router (slot map) ──> node ──> pool (login, db, protocol) ──> connection
 *                                          ^                                      │
 *         request->ops->reply  <───────────┼── MOVED, ASK, TRYAGAIN, NOSCRIPT ────┤ replies in order
 *         request->ops->fail   <───────────┴── lost connection: again, or failed ─┘
 *
 * Requests that a shared connection can't carry (transactions, blocking commands, subscriptions) go over a pin: a
 * connection that only the caller uses. The upstream neither redirects nor repeats requests on a pin.
 *
 * It knows no sessions and no locks. Each request ends exactly once: with a complete reply, or with fail. No callback
 * is called from inside upstream_submit, upstream_pin_submit or upstream_unpin.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parser/slot.h"
#include "proxy/base/iobuf.h"
#include "proxy/base/list.h"

struct ev_loop;
struct readable;
struct upstream;
struct upstream_node;
struct upstream_conn;
struct host_addresses;
struct script;
struct tls_context;
struct histogram;

/* The servers at which the proxy has a login of its own. */
enum upstream_own { UPSTREAM_OWN_NODES, UPSTREAM_OWN_SENTINELS, UPSTREAM_OWN_WITNESSES, UPSTREAM_OWNS };

enum upstream_kind { UPSTREAM_STANDALONE, UPSTREAM_CLUSTER, UPSTREAM_SENTINEL };

/* Which nodes upstream_submit_read may choose: the master alone; a replica; the node with the shortest round trip. */
enum upstream_read_from { UPSTREAM_READ_MASTERS, UPSTREAM_READ_REPLICAS, UPSTREAM_READ_NEAREST };

/* An address: "HOST:PORT", "[IPV6]:PORT" or "unix:PATH". */
struct upstream_config {
    enum upstream_kind kind;
    enum upstream_own own;  /* which of the proxy's own logins is login 0 */
    const char **addresses; /* seeds, Sentinels, or the one node; borrowed */
    size_t address_count;
    const char *sentinel_name; /* the master's, for UPSTREAM_SENTINEL */
    unsigned connections;      /* shared connections to a node, for each pool */
    unsigned pins_node;   /* connections to a node that single clients use alone, at most; 0: derived from the node's
                             maxclients */
    unsigned pins_client; /* how many of them one client may have; 0: half */
    unsigned pins_total;  /* the same for the whole process, to all nodes; 0: no limit */
    int64_t timeout_ms;   /* upstream-timeout */
    enum upstream_read_from read_from; /* not MASTERS: only with a cluster or Sentinels */
    struct tls_context *tls;           /* for all nodes except those behind unix sockets; borrowed; NULL: plain */
};

/* The number of a login: a user with its password. It is valid until it is released. 0 is the proxy's own login at the
 * upstream's servers (upstream_own_login). Thread-safe, as the next three are. user may be NULL (AUTH with one
 * argument). */
uint32_t upstream_login_intern(const char *user, size_t user_len, const char *password, size_t password_len);
/* Gives back a login taken by one upstream_login_intern; 0 is ignored. After the last release the login is forgotten.
 * Exception: the last logins that a node accepted get the same number if they come again. A number is never used for
 * another login. */
void upstream_login_release(uint32_t login);
/* Notes that a node accepted the login; returns whether a node had accepted it before. */
bool upstream_login_prove(uint32_t login);
/* Notes that a node refused the login: for one second no connection is opened for it. */
void upstream_login_refuse(uint32_t login);
/* Sets the proxy's own login at some servers, for all upstreams of the process; password NULL: none. Both are copied.
 * Open connections log in again at their upstream's next tick; a new connection to a node that refuses the login tries
 * the login before. Returns whether it has changed. Thread-safe. */
bool upstream_own_login(enum upstream_own at, const char *user, const char *password);
/* Sets what any thread calls when a server refuses the proxy's own login. To be set before upstreams are made. */
void upstream_own_login_hear(void (*refused)(void *arg), void *arg);
/* Lanes without AUTH, on which the node takes the proxy for its default user. TRIED: clients' logins are tried over it.
 * ASKED: the proxy asks over it what the node permits to clients without login. STRANGER: clients without login use it,
 * if they must not act as the proxy's own user. */
#define UPSTREAM_LOGIN_TRIED    UINT32_MAX
#define UPSTREAM_LOGIN_ASKED    (UINT32_MAX - 1)
#define UPSTREAM_LOGIN_STRANGER (UINT32_MAX - 2)

/* Selects a shared connection: requests with equal lanes share one. */
struct upstream_lane {
    uint32_t login;
    uint32_t db;
    uint32_t dedicated; /* from upstream_dedicated_new; 0: shared by all sessions */
    uint16_t protocol;  /* 2 or 3 */
    uint16_t replica;   /* 1: reads that a replica answers (upstream_submit_read); on a cluster after READONLY */
};
_Static_assert(sizeof(struct upstream_lane) == 16, "no bytes between the fields: lanes are compared as a whole");

enum upstream_failure {
    UPSTREAM_NOT_SENT, /* no byte of the request left the proxy */
    UPSTREAM_UNKNOWN,  /* some bytes left the proxy: the outcome is unknown */
    UPSTREAM_REFUSED   /* the node refused the lane (AUTH, SELECT, HELLO); `error` is the node's own error */
};

/* Which connection of a lane a request goes over. Most requests share one. The application's scripts, which may run
 * long, and requests of sessions that get long replies have one each, so that no other request waits behind them. */
enum upstream_apart { UPSTREAM_TOGETHER, UPSTREAM_SCRIPTS, UPSTREAM_LONG, UPSTREAM_APARTS = UPSTREAM_LONG };

struct upstream_request;

/* How long a request took, in us: in all; until its connection took it; since its reply was read. */
struct upstream_late {
    const char *node; /* its address; "": not known */
    int64_t took_us, before_us, after_us;
    int64_t way_us; /* the shortest round trip to the node of late; 0: not known */
};

struct upstream_request_ops {
    /* Delivers the next bytes of the reply, borrowed for the call. `last` is set with its final bytes; most replies
     * come in one call. With `last`, the owner owns the request again: it may free it or submit it anew inside the
     * callback, and it may submit others. */
    void (*reply)(struct upstream_request *r, const char *data, size_t len, bool last);
    /* Says that no reply will come, or no more of it; the owner owns the request again. `error` is a whole RESP error
     * without '-' and CR LF, e.g. "UPSTREAM node 127.0.0.1:7001 was lost; the outcome of the request is unknown". */
    void (*fail)(struct upstream_request *r, enum upstream_failure why, const char *error);
    /* All others may be NULL. The request is on its way to another node, or is repeated. Later requests of the same
     * client must not overtake it. Called at most once per request. */
    void (*redirected)(struct upstream_request *r);
    /* Whether the request may be repeated after a delay (for TRYAGAIN and similar errors); NULL: always. It may not if
     * later requests of the same client are on their way, which must not overtake it; it then ends with the error. */
    bool (*may_wait)(const struct upstream_request *r);
    /* Whether the request may take longer than the upstream's timeout, as long as its node answers others; NULL: no. */
    bool (*may_last)(const struct upstream_request *r);
    /* Whether the result is not needed any more; NULL: no. Asked before a request is sent that has waited for a
     * connection or a new map. If so, the request fails as not sent. */
    bool (*pointless)(const struct upstream_request *r);
    /* The request ends now, and has taken as long as upstream_set_late says; or it fails. Its bytes are still there, if
     * r->chunk is set. */
    void (*late)(const struct upstream_request *r, const struct upstream_late *late);
};

/* A request in flight, embedded in the caller's structure. Before upstream_submit the caller sets the first fields, up
 * to begun_us, and initialises in_flight; all others are private to this folder. */
struct upstream_request {
    const struct upstream_request_ops *ops;
    const struct script *script; /* the bytes are an EVALSHA of this script: NOSCRIPT is repeated as EVAL */
    bool repeatable;             /* safe to send again (the proxy's own scripts, and requests that only read) */
    uint32_t script_at;          /* for upstream_submit_batch: the offset of the command that calls `script` */
    uint32_t affinity;   /* a session's id; 0: the proxy. Requests with the same one share a lane's connection */
    uint8_t apart;       /* enum upstream_apart */
    int64_t begun_us;    /* by clock_us, when its client sent it; INT64_MAX: it is never late */
    bool was_redirected; /* set by the upstream */
    bool in_flight;      /* set by the upstream: true from submit until the request ends */
    bool multi_refused;  /* set by the upstream: upstream_submit_batch's MULTI was refused */
    uint8_t leading;     /* for upstream_submit_batch: the replies before EXEC's; the other calls set it to 0 */
    /* ---- private ---- */
    uint8_t hops;
    uint8_t attempts; /* how often it was sent again after a lost connection */
    uint8_t delays;   /* how often it waited: for TRYAGAIN and similar errors, or for a new map */
    bool asking;      /* sent right after an ASKING */
    bool eval;        /* sent in full after NOSCRIPT */
    bool streaming;   /* some bytes of the reply have been handed on */
    bool sent_before; /* some bytes left on a connection that is gone */
    bool placeholder; /* stands in the place of an abandoned request */
    bool pinned;      /* on a pin: neither redirected nor repeated */
    bool open;        /* more of its bytes are to come */
    bool for_map;     /* it waits for a new map; only meaningful while it waits */
    int32_t slot;
    struct upstream_lane lane;
    struct list_node link;
    struct upstream_conn *conn;
    struct upstream_node *node; /* the node that upstream_submit_to names, else NULL */
    struct upstream_node *told; /* the node that a redirect sent it to; only valid if was_redirected */
    struct chunk *chunk;
    const char *bytes;
    size_t len;
    int64_t retry_at_ms;
};

struct upstream_events {
    void *arg;
    /* All may be NULL. Says, once, that the upstream can serve: the first slot map is there, the master is known, or a
     * standalone is configured. With `error`: the first attempt to get there has failed. */
    void (*ready)(void *arg, const char *error);
    /* A node has answered a client's request with NOAUTH: the connection is not logged in. */
    void (*noauth)(void *arg);
    /* The host name of a standalone may lead elsewhere by now: its node failed, or answered with an error as after a
     * failover; `readonly`: with READONLY. */
    void (*doubt)(void *arg, bool readonly);
    /* A connection that had worked was lost, or slots are at other nodes now: a failover or a restart may have
     * forgotten what nodes answered before. */
    void (*may_forget)(void *arg);
};

/* Makes an upstream. `config` is borrowed and must outlive it; `readable` and `pool` belong to the same thread. NULL:
 * an address is malformed, or Sentinel's master has no name. The process must ignore SIGPIPE. */
struct upstream *upstream_new(struct ev_loop *loop, struct readable *readable, const struct upstream_config *config,
                              struct chunk_pool *pool, const struct upstream_events *events);
/* Changes the time after which a silent connection that owes a reply is dropped, also for requests in flight. */
void upstream_set_timeout(struct upstream *u, int64_t timeout_ms);
/* From which time on ops->late is called, in us; INT64_MAX: never. */
void upstream_set_late(struct upstream *u, int64_t us);
/* Closes all connections and frees the upstream; requests in flight fail. */
void upstream_free(struct upstream *u);

/* Sends a request to the node of `slot` (SLOT_NONE: any node). The bytes are copied. Returns NULL, or an error in the
 * form of ops->fail, static or valid until the next call, if the request was not taken: no node serves the slot, or the
 * node is known to be down. */
const char *upstream_submit(struct upstream *u, struct upstream_request *r, int slot, const struct upstream_lane *lane,
                            const char *bytes, size_t len) __attribute__((warn_unused_result));
/* Sends the AUTH of an interned login over the connection that is only used to try logins: one that is logged in
 * already would not tell whether the password is still valid. */
const char *upstream_submit_login(struct upstream *u, struct upstream_request *r, uint32_t login)
    __attribute__((warn_unused_result));
/* Sends several commands as one batch, without requests of others between them: MULTI, r->leading - 1 more commands,
 * and EXEC. EXEC's reply is the request's. If a redirect prevents the execution, the whole batch follows it. The batch
 * is repeated like other requests, but not for TRYAGAIN; any other error that prevents the execution is the reply
 * (EXECABORT ...). If the node refuses MULTI, it runs the commands one by one: the reply is then that of the command
 * with leading / 2 commands before it, and r->multi_refused is set. The EVALSHA of r->script (NULL: none) at
 * r->script_at is sent with its source if the connection may not have sent the source yet. */
const char *upstream_submit_batch(struct upstream *u, struct upstream_request *r, int slot,
                                  const struct upstream_lane *lane, const char *bytes, size_t len)
    __attribute__((warn_unused_result));
/* Notes that a node did not know a batch's script: the next batch on each connection sends the script's source. */
void upstream_script_unknown(struct upstream *u);
/* Sends a request that only reads to the node that read-from chooses. If a replica gives no reply, or an error, the
 * master answers. Returns through *replica whether it went to one. */
const char *upstream_submit_read(struct upstream *u, struct upstream_request *r, int slot,
                                 const struct upstream_lane *lane, const char *bytes, size_t len, bool *replica)
    __attribute__((warn_unused_result));
/* The replica that upstream_submit_read would choose for requests of this affinity; NULL: the master answers. */
struct upstream_node *upstream_replica(const struct upstream *u, int slot, uint32_t affinity);
/* Sends a request as upstream_submit does, but to this node. Redirects are not followed: the error is the reply. */
const char *upstream_submit_to(struct upstream *u, struct upstream_request *r, struct upstream_node *node,
                               const struct upstream_lane *lane, const char *bytes, size_t len)
    __attribute__((warn_unused_result));

/* Stops reading a request's connection, because the owner can't take more of its reply yet; parts of the reply must
 * have come. The owner must call upstream_go_on before it abandons the request. Later requests use another connection,
 * and so do the proxy's own repeatable requests behind it. Returns false, and reads on, if requests of another affinity
 * wait behind it. */
bool upstream_hold(struct upstream_request *r) __attribute__((warn_unused_result));
void upstream_go_on(struct upstream_request *r);

/* Sends later requests of other sessions over another connection: this reply is long, or more long replies follow it.
 */
void upstream_set_apart(struct upstream_request *r);

/* The node that an ASK has sent the request to, or NULL. Only valid while the reply is delivered. */
struct upstream_node *upstream_asked_node(const struct upstream_request *r);

/* Whether a submitted request is still unsent: no byte of it has left on any connection. */
bool upstream_unsent(const struct upstream_request *r);

/* Marks a submitted request as holding a password: its bytes are overwritten when it need not be sent again. */
void upstream_secret(struct upstream_request *r);

/* Abandons a request: its reply will be dropped, no callback is called, and `r` is not touched after this call. */
void upstream_abandon(struct upstream_request *r);

/* ---- dedicated lanes ---- */

/* The client for which a connection is opened, and for how long: there are limits for both. */
struct upstream_claim {
    const char
        *client;  /* an address, by which a client's connections are counted; copied. NULL: the proxy, no limits */
    bool lasting; /* true: until the client ends the use; false: until a node has replied */
};

struct upstream_dedicated_events {
    void *arg;
    /* Both may be NULL. Hands over a whole push; `data` is borrowed. */
    void (*push)(void *arg, const char *data, size_t len);
    /* Says that a connection of the lane is gone, and with it the state that the node kept for it. */
    void (*lost)(void *arg);
};

/* Makes a dedicated lane: connections that only one caller uses, to all nodes that its requests over the lane go to.
 * Each counts as a lasting one of `client`. If the limits permit no more, the requests for it fail. Returns the number
 * for upstream_lane. */
uint32_t upstream_dedicated_new(struct upstream *u, const char *client, const struct upstream_dedicated_events *events);
/* The dedicated lane of the proxy's own questions, which wait behind no client's request. It ends with the upstream.
 * upstream_each_node leaves its connections out. */
uint32_t upstream_dedicated_own(struct upstream *u);
/* Adds a command (whole RESP, copied) with which every connection opened from now on begins. If a node refuses the
 * command, it refuses the lane. */
void upstream_dedicated_begin(struct upstream *u, uint32_t dedicated, const char *command, size_t len);
/* Ends a dedicated lane: no event comes any more, and its connections are closed once they are quiet. 0 is ignored. */
void upstream_dedicated_free(struct upstream *u, uint32_t dedicated);

/* ---- pins ---- */

struct upstream_pin;

struct upstream_pin_events {
    void *arg;
    /* All may be NULL. Hands over bytes that answer no request: a RESP3 push, or in stream mode any message. `data` is
     * borrowed; `last` is set with the final bytes of a message. */
    void (*message)(void *arg, const char *data, size_t len, bool last);
    /* Says that nearly all that upstream_pin_more has queued was written to the socket. */
    void (*drained)(void *arg);
    /* Says that the connection is gone, after its requests have failed. The owner must still call upstream_unpin. */
    void (*lost)(void *arg, const char *error);
};

/* Whether another node may have taken over: the node can't be reached, and the map is too old to tell. No, for NULL. */
bool upstream_may_be_replaced(const struct upstream *u, const struct upstream_node *node);
/* Asks for a new map, if upstream_may_be_replaced. `r`, which carries no bytes, fails once the map is there, or after
 * one second; the caller then looks for the node again. */
void upstream_await_map(struct upstream *u, struct upstream_request *r);

/* Opens a pin: a connection to `node` that only the caller uses, new or from those given back. NULL with *error as of
 * upstream_submit if the node can't be reached, `node` is NULL, or the limits permit no more connections. */
struct upstream_pin *upstream_pin_open(struct upstream *u, struct upstream_node *node, const struct upstream_lane *lane,
                                       const struct upstream_claim *claim, const struct upstream_pin_events *events,
                                       const char **error) __attribute__((warn_unused_result));
/* Lends, as a pin, the connection that the requests of this affinity take over a dedicated lane. None of them may be
 * sent until the pin is given back; the connection then goes on as before, or is closed if the pin is not clean. NULL
 * with *error as from upstream_pin_open; with *error NULL: something else is in flight there. */
struct upstream_pin *upstream_pin_borrow(struct upstream *u, struct upstream_node *node,
                                         const struct upstream_lane *lane, uint32_t affinity,
                                         const struct upstream_pin_events *events, const char **error)
    __attribute__((warn_unused_result));
/* Sends a request over a pin; replies come in order. With `asking`, an ASKING goes before it. A MOVED is delivered as
 * the reply, and the slot map learns from it. Returns NULL, or the error if the connection is gone. */
const char *upstream_pin_submit(struct upstream_pin *pin, struct upstream_request *r, const char *bytes, size_t len,
                                bool asking) __attribute__((warn_unused_result));
/* Begins a request whose bytes follow by upstream_pin_more, the last piece with `last`. Nothing else may be in flight
 * on the pin. If the node replies before it has the whole request, the connection is closed. */
const char *upstream_pin_begin(struct upstream_pin *pin, struct upstream_request *r, bool asking)
    __attribute__((warn_unused_result));
/* Queues the next piece (copied). Returns false if more than PIN_UNSENT_MAX bytes wait to be written: the caller then
 * waits for `drained`. Does nothing once the connection is gone. */
bool upstream_pin_more(struct upstream_pin *pin, const char *bytes, size_t len, bool last);
/* Sends bytes that are no request: the answer comes as a message. Does nothing if the connection is gone. */
void upstream_pin_send(struct upstream_pin *pin, const char *bytes, size_t len);
/* Turns stream mode on or off. In stream mode all bytes that arrive go to `message`. No request may be in flight. */
void upstream_pin_stream(struct upstream_pin *pin, bool on);
/* Sets how long a reply may take on the pin, once it is connected: the upstream's timeout begins `ms` after the last
 * byte exchanged. PIN_PATIENT: no limit. A script is not late, either, while the node answers other connections. */
enum { PIN_PATIENT = -1 };
void upstream_pin_patient(struct upstream_pin *pin, int64_t ms);
/* A flag and a number for the caller's use, false and 0 on a new connection: they stay when it is pinned again. */
bool *upstream_pin_mark(struct upstream_pin *pin);
int64_t *upstream_pin_number(struct upstream_pin *pin);
/* The node that the pin is connected to; NULL once the connection is lost. */
struct upstream_node *upstream_pin_node(const struct upstream_pin *pin);
/* The node that a MOVED or ASK of the pin's node points at (`text` without '-' and CR LF); NULL if the text is neither,
 * or the node is unknown. The slot map learns from a MOVED. */
struct upstream_node *upstream_pin_redirect(struct upstream_pin *pin, const char *text, size_t len, bool *ask);
/* Gives a pin back. `clean`: the connection has no state left over and may be used again. A pin that is lost, in stream
 * mode or owes replies is closed; its requests fail at the end of the turn, and no event comes any more. */
void upstream_unpin(struct upstream_pin *pin, bool clean);

/* Writes what is queued on all connections, closes pins that were given back (their requests fail), and frees closed
 * connections. Called once per loop turn from the thread's ev_prepare, never from inside a callback. */
void upstream_flush(struct upstream *u);
/* Whether upstream_flush has pins to close that were given back. */
bool upstream_has_unpinned(const struct upstream *u);
/* Whether some connection has bytes to write. */
bool upstream_waits(const struct upstream *u);

/* Whether a node's error (without '-' and CR LF) is temporary: the same request may succeed a little later, at this
 * node or its successor. Never without a topology, since no node can take over. `keyed`: the request names keys. */
bool upstream_error_passes(const struct upstream *u, const char *text, size_t len, bool keyed);
/* How many ms to wait before a request with a temporary error is repeated, after `times` repeats; -1: no more. */
int64_t upstream_delay_ms(unsigned times);

bool upstream_is_cluster(const struct upstream *u);
/* Whether the nodes that serve may change: a cluster's slots, or the master that Sentinels watch. */
bool upstream_has_topology(const struct upstream *u);
/* A number that changes whenever a slot moves to another node, or requests to a node move to another connection. A
 * session with requests in flight waits for them before it sends under a new epoch, so that none is overtaken. */
uint64_t upstream_epoch(const struct upstream *u);
/* How many slots have a node that serves them. A standalone has all; so has Sentinel's master once it is known. */
unsigned upstream_slots_covered(const struct upstream *u);
/* A digest of the slot map: equal in every proxy and thread with the same map. */
uint64_t upstream_map_print(struct upstream *u);
/* The masters that serve slots, in the order of their addresses (standalone: the one node; Sentinel: the master, if it
 * is known). */
size_t upstream_master_count(const struct upstream *u);
struct upstream_node *upstream_master(const struct upstream *u, size_t i);
/* A slot that the master serves; SLOT_NONE: it serves none. */
int upstream_slot_of_node(const struct upstream *u, const struct upstream_node *master);
/* The node that serves a slot, or NULL. */
struct upstream_node *upstream_node_of_slot(const struct upstream *u, int slot);
/* A master for requests without keys: the same for the same affinity while the node is well. NULL: none is known. */
struct upstream_node *upstream_any_node(struct upstream *u, uint32_t affinity);
/* Lets the next request to each node try to connect, however short a time ago that failed. */
void upstream_try_now(struct upstream *u);
/* The node at this address, for upstream_submit_to; it need not serve anything, and is forgotten some time after its
 * last reply. NULL: the address is malformed. */
struct upstream_node *upstream_node_named(struct upstream *u, const char *address);
/* Makes the node the one that a standalone consists of. What is under way at the one before ends as if it were lost. */
void upstream_switch(struct upstream *u, struct upstream_node *node);
/* The host name of a standalone that has been reached; NULL: there is none. The node keeps the addresses that worked:
 * the caller finds out where the name leads by now. */
const char *upstream_host_name(const struct upstream *u, int *port);
/* The addresses in use, the one that worked last first; count 0: none. */
void upstream_host_now(const struct upstream *u, struct host_addresses *out);
/* Connects to the first address of `to` from now on. If that is another machine, no new request uses the open
 * connections, and what is under way on them ends as usual. */
void upstream_host_move(struct upstream *u, const struct host_addresses *to);
/* A node under the same name at these addresses, as from upstream_node_named. */
struct upstream_node *upstream_host_node(struct upstream *u, const struct host_addresses *host);
/* Whether connections to the node were lost, and no request has opened another since: the proxy's own questions wait
 * until one has shown that the node is back. No, for NULL. */
bool upstream_node_lost(const struct upstream_node *node);
const char *upstream_node_address(const struct upstream_node *node);

/* Notes a node's maxclients, which limits the connections of single clients in all threads. */
void upstream_note_maxclients(struct upstream_node *node, uint32_t maxclients);

/* What PROXY INFO shows of a node; `fn` is called once for each node. */
struct upstream_node_info {
    const char *address;
    const char *state; /* "up", "connecting", "down", "idle" */
    bool master, replica;
    uint64_t slots, connections, pinned; /* shared connections; pins, in use or kept */
    unsigned pinned_max;                 /* how many pins all threads together may use */
    uint64_t in_flight, unsent_bytes, requests, reconnects, redirects;
    uint64_t replica_reads;              /* reads that went to it as a replica */
    uint64_t pins_refused;               /* refused because of the limits */
    const struct histogram *round_trips; /* of a sample of requests, from writing to reply */
    int64_t round_trip_us;               /* of late, smoothed; 0: not known */
};
void upstream_each_node(const struct upstream *u, void (*fn)(void *arg, const struct upstream_node_info *info),
                        void *arg);
/* Calls `fn` for each Sentinel, if there are any: "up" (subscribed), "connecting", "down". */
void upstream_each_sentinel(const struct upstream *u, void (*fn)(void *arg, const char *address, const char *state),
                            void *arg);
