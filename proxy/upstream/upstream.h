/*
 * The way to Redis, for one thread: nodes, shared connections to them, routing by slot, redirects.
 *
 *      session ── upstream_submit ──> router (slot map) ──> node ──> pool (login, db, protocol) ──> connection
 *                                          ^                                      │
 *         request->ops->reply  <───────────┼── MOVED, ASK, TRYAGAIN, NOSCRIPT ────┤ replies in order
 *         request->ops->fail   <───────────┴── lost connection: again, or failed ─┘
 *
 * What a shared connection can't carry (transactions, blocking commands, subscriptions) goes over a pin: a connection
 * of the caller's own to one node, without redirects and repeats.
 *
 * It knows no sessions and no locks; it gives each request exactly one end: a complete reply, or fail.
 * No callback is called from inside upstream_submit, upstream_pin_submit or upstream_unpin.
 */
#ifndef LOCKKEEPER_UPSTREAM_UPSTREAM_H
#define LOCKKEEPER_UPSTREAM_UPSTREAM_H

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
struct script;
struct tls_context;
struct histogram;

enum upstream_kind { UPSTREAM_STANDALONE, UPSTREAM_CLUSTER, UPSTREAM_SENTINEL };

/* An address: "HOST:PORT", "[IPV6]:PORT" or "unix:PATH". */
struct upstream_config {
    enum upstream_kind kind;
    const char **addresses; /* seeds, Sentinels, or the one node; borrowed */
    size_t address_count;
    const char *user, *password;                   /* how the proxy itself logs in; NULL: it doesn't */
    const char *sentinel_name;                     /* the master's, for UPSTREAM_SENTINEL */
    const char *sentinel_user, *sentinel_password; /* the same for Sentinels */
    unsigned connections;                          /* shared connections to a node, for each pool */
    unsigned pins_node;   /* connections to a node that single clients have for themselves, at most; 0: as it allows */
    unsigned pins_client; /* of these, those of one client; 0: half */
    unsigned pins_total;  /* of the whole process, to all nodes; 0: any number */
    int64_t timeout_ms;   /* upstream-timeout */
    struct tls_context *tls; /* for all nodes but those behind unix sockets; borrowed; NULL: plain */
};

/* The number of a login, who a connection is logged in as. Interned until it is released, or for the life of the
 * process; 0 is the configuration's upstream-user and upstream-password (or nobody). Thread-safe. user may be NULL
 * (AUTH with one argument). */
uint32_t upstream_login_intern(const char *user, size_t user_len, const char *password, size_t password_len);
/* Gives back a login that one upstream_login_intern took (a client may try passwords for ever). When as many were given
 * back as taken the login is forgotten, but for the last ones that were right, which have the same number if they come
 * again; other numbers are never used again. Optional; 0 is ignored. Thread-safe. */
void upstream_login_release(uint32_t login);
/* The login was right; returns whether it has been lately. Or it was wrong, as a node says: for a moment no connection
 * is opened for it. Thread-safe. */
bool upstream_login_prove(uint32_t login);
void upstream_login_refuse(uint32_t login);
/* Logins that are nobody's: connections of such a lane begin without AUTH. Clients' logins are tried over the first
 * one's; over the second one's the proxy asks what a node grants to who has not logged in, and the third one is theirs
 * where they are not who the proxy is. */
#define UPSTREAM_LOGIN_TRIED    UINT32_MAX
#define UPSTREAM_LOGIN_ASKED    (UINT32_MAX - 1)
#define UPSTREAM_LOGIN_STRANGER (UINT32_MAX - 2)

/* What a shared connection is for: requests with equal keys share. */
struct upstream_lane {
    uint32_t login;
    uint32_t db;
    uint32_t dedicated; /* upstream_dedicated_new; 0: shared with everybody */
    uint32_t protocol;  /* 2 or 3 */
};
_Static_assert(sizeof(struct upstream_lane) == 16, "no bytes between the fields: lanes are compared as a whole");

enum upstream_failure {
    UPSTREAM_NOT_SENT, /* no byte of the request left the proxy */
    UPSTREAM_UNKNOWN,  /* some did: the outcome is unknown */
    UPSTREAM_REFUSED   /* the node refused the lane (AUTH, SELECT, HELLO); `error` is the node's own error */
};

/* Which connection of a lane a request goes over: one that everybody's do, or one for those behind which nobody else is
 * to wait: scripts of the application, which may run long, and requests of who is known to be sent long replies. */
enum upstream_apart { UPSTREAM_TOGETHER, UPSTREAM_SCRIPTS, UPSTREAM_LONG, UPSTREAM_APARTS = UPSTREAM_LONG };

struct upstream_request;

struct upstream_request_ops {
    /* The next bytes of the reply. `data` is borrowed for the call. `last` is set with its final bytes; most
     * replies come in one call. With `last` the request is the owner's again, who may free it or submit it
     * anew from inside the callback, as it may submit others. */
    void (*reply)(struct upstream_request *r, const char *data, size_t len, bool last);
    /* Says that no reply will come, or no more of it. `error` is a whole RESP error without '-' and CR LF, e.g.
     * "UPSTREAM node 127.0.0.1:7001 was lost; the outcome of the request is unknown". The request is the owner's
     * again. */
    void (*fail)(struct upstream_request *r, enum upstream_failure why, const char *error);
    /* May be NULL. The request was redirected (or has to be repeated) and is on its way to another node, so
     * later requests of the same client must not overtake it. Called at most once a request. */
    void (*redirected)(struct upstream_request *r);
    /* May be NULL: always. Whether the request may be repeated after a delay (TRYAGAIN and its kin). No, where later
     * requests of the same client are on their way that must not overtake it: it ends with the node's error. */
    bool (*may_wait)(const struct upstream_request *r);
    /* May be NULL: no. Whether the request may take longer than the upstream's timeout, as long as its node answers
     * others. */
    bool (*may_last)(const struct upstream_request *r);
    /* May be NULL: no. Whether nobody wants the request any more: asked when it has waited, for a connection or a new
     * map, and would be sent now. It fails as not sent. */
    bool (*pointless)(const struct upstream_request *r);
};

/* A request in flight. Embedded in the caller's structure; fields are private to this folder, except those of the
 * first group, which the caller sets before upstream_submit. Nothing else has to be initialised but in_flight. */
struct upstream_request {
    const struct upstream_request_ops *ops;
    const struct script *script; /* the bytes are an EVALSHA of this script: NOSCRIPT is repeated as EVAL */
    bool repeatable;             /* safe to send again (our scripts, and what only reads) */
    uint32_t script_at;          /* for upstream_submit_batch */
    uint32_t affinity;           /* requests with equal affinity (a session's id; 0: the proxy itself) keep to one
                                    connection of a lane */
    uint8_t apart;               /* enum upstream_apart */
    bool was_redirected;         /* set by the upstream */
    bool in_flight;              /* set by the upstream: between submit and its end */
    bool multi_refused;          /* set by the upstream: upstream_submit_batch's MULTI was refused */
    /* ---- private ---- */
    uint8_t leading; /* replies before the one that counts: upstream_submit_batch; else 0 */
    uint8_t hops;
    uint8_t attempts; /* how often it was sent again after a lost connection */
    uint8_t delays;   /* how often it waited, for TRYAGAIN and its kin or for a new map */
    bool asking;      /* sent right behind an ASKING */
    bool eval;        /* sent in full after NOSCRIPT */
    bool streaming;   /* some bytes of the reply have been handed on */
    bool sent_before; /* some bytes left on a connection that is gone */
    bool placeholder; /* in the place of one that was abandoned */
    bool pinned;      /* on a connection of the caller's own: neither redirected nor repeated */
    bool open;        /* more of its bytes are to come */
    bool for_map;     /* it waits for a new map; meaningful while it waits */
    int32_t slot;
    struct upstream_lane lane;
    struct list_node link;
    struct upstream_conn *conn;
    struct upstream_node *node; /* asked for by upstream_submit_to, else NULL */
    struct upstream_node *told; /* where a redirect sent it; only after was_redirected */
    struct chunk *chunk;
    const char *bytes;
    size_t len;
    int64_t retry_at_ms;
};

struct upstream_events {
    void *arg;
    /* Says that the upstream can serve (the first slot map is there, the master is known, or a standalone is
     * configured), or, with `error`, why its first attempt to get there has failed. Called once. */
    void (*ready)(void *arg, const char *error);
    /* May be NULL. A node has answered a client's request with NOAUTH: nobody is logged in on its connection. */
    void (*noauth)(void *arg);
};

/* Makes an upstream. `config` is borrowed and outlives it; `readable` (the loop's) and `pool` are the thread's. NULL
 * where an address is none, or Sentinel's master has no name. SIGPIPE has to be ignored by the process. */
struct upstream *upstream_new(struct ev_loop *loop, struct readable *readable, const struct upstream_config *config,
                              struct chunk_pool *pool, const struct upstream_events *events);
/* Changes the time after which a silent connection that owes a reply is dropped, also for requests in flight. */
void upstream_set_timeout(struct upstream *u, int64_t timeout_ms);
/* Closes all connections and frees the upstream; requests in flight fail. */
void upstream_free(struct upstream *u);

/* Sends a request to the node of `slot` (SLOT_NONE: any node). The bytes are copied. Returns NULL, or where it
 * can't even be queued (no node serves the slot, the node is known to be down) the error in the form of
 * ops->fail (static or valid until the next call): the request was not taken then. */
const char *upstream_submit(struct upstream *u, struct upstream_request *r, int slot, const struct upstream_lane *lane,
                            const char *bytes, size_t len) __attribute__((warn_unused_result));
/* Sends the AUTH of an interned login, over a connection that is for that alone, where others are tried as well: what
 * has been logged in before says nothing of whether the password still holds. */
const char *upstream_submit_login(struct upstream *u, struct upstream_request *r, uint32_t login)
    __attribute__((warn_unused_result));
/* Sends a batch: several commands, which nobody else's come between: MULTI, `leading` - 1 more, and EXEC, whose reply
 * is the request's. A redirect that keeps them from being executed is followed for all of them, and they are repeated
 * as others are, but for TRYAGAIN; another such error is the reply (EXECABORT ...), and nothing was executed. Where the
 * node refused MULTI it ran them one by one: the reply is then that of the command in the middle (the one with leading
 * / 2 before it), and r->multi_refused is set. The first EVALSHA of r->script, at r->script_at, goes by its source
 * where the connection may not have had that. */
const char *upstream_submit_batch(struct upstream *u, struct upstream_request *r, uint8_t leading, int slot,
                                  const struct upstream_lane *lane, const char *bytes, size_t len)
    __attribute__((warn_unused_result));
/* Notes that a node did not know a batch's script: each connection's next batch sends the script by its source. */
void upstream_script_unknown(struct upstream *u);
/* Sends a request as upstream_submit does, but to this node; redirects are not followed (the error is the reply). */
const char *upstream_submit_to(struct upstream *u, struct upstream_request *r, struct upstream_node *node,
                               const struct upstream_lane *lane, const char *bytes, size_t len)
    __attribute__((warn_unused_result));

/* Stops reading a connection whose oldest request's owner can't take more of its reply, of which parts have come, until
 * upstream_go_on, which has to follow before the owner loses interest. A shared connection is not used for later
 * requests then; what waits behind it, is of the proxy itself and may be repeated, is asked once more over another one.
 * False, and nothing happens, where other requests of another affinity wait behind it. */
bool upstream_hold(struct upstream_request *r) __attribute__((warn_unused_result));
void upstream_go_on(struct upstream_request *r);

/* Has later requests of others go over another connection than this one, whose reply is long, or followed by such. */
void upstream_set_apart(struct upstream_request *r);

/* The node that an ASK has sent the request to, which has just got its reply, or NULL. For the moment of the reply. */
struct upstream_node *upstream_asked_node(const struct upstream_request *r);

/* Whether a submitted request waits to be written: no byte of it has left, on whatever connection. */
bool upstream_unsent(const struct upstream_request *r);

/* Marks a submitted request as holding a password: its bytes are overwritten when it need not be sent again. */
void upstream_secret(struct upstream_request *r);

/* Abandons a request in which its owner has lost interest: its reply will be read and dropped, no callback is called,
 * and the memory of `r` is not touched after this call (the upstream puts a placeholder into its place). */
void upstream_abandon(struct upstream *u, struct upstream_request *r);

/* ---- lanes of one's own ---- */

/* Who wants connections for himself, and whether for long: there are limits for both. */
struct upstream_claim {
    const char *client; /* an address, for what one client may have; copied. NULL: the proxy itself, without limits */
    bool lasting;       /* until the client wants something else, and not just until a node has answered */
};

struct upstream_dedicated_events {
    void *arg;
    /* Hands over a whole push; `data` is borrowed. */
    void (*push)(void *arg, const char *data, size_t len);
    /* Says that one of the connections is gone, with what the node knew by it. */
    void (*lost)(void *arg);
};

/* Makes a dedicated lane: connections that one caller has for itself, to whatever nodes its requests over the lane go;
 * each is a lasting one of `client`, and fails the requests for it where there may be no other. Returns the number for
 * upstream_lane. */
uint32_t upstream_dedicated_new(struct upstream *u, const char *client, const struct upstream_dedicated_events *events);
/* One more command (whole RESP, copied) that every connection opened from now on begins with. A node that refuses it
 * refuses the lane. */
void upstream_dedicated_begin(struct upstream *u, uint32_t dedicated, const char *command, size_t len);
/* Gives a dedicated lane up: no event comes any more, and the connections are closed once nothing is in flight on them.
 * 0 is ignored. */
void upstream_dedicated_free(struct upstream *u, uint32_t dedicated);

/* ---- pins ---- */

struct upstream_pin;

struct upstream_pin_events {
    void *arg;
    /* Hands over bytes that answer no request: of a RESP3 push, and in stream mode of every message. `data` is
     * borrowed; `last` is set with the final bytes of a message (never in raw mode, which knows none). May be NULL. */
    void (*message)(void *arg, const char *data, size_t len, bool last);
    /* Says that what was queued by upstream_pin_more has gone to the socket, but for little. May be NULL. */
    void (*drained)(void *arg);
    /* Says that the connection is gone, after its requests have failed. The pin is still to be given back. May be
     * NULL. */
    void (*lost)(void *arg, const char *error);
};

/* Whether another node may have taken the place of this one (NULL: no), which can't be reached, and the map is too old
 * to know. */
bool upstream_may_be_replaced(const struct upstream *u, const struct upstream_node *node);
/* Asks for a new map where upstream_may_be_replaced is true. `r`, which carries nothing, fails once it is there, or
 * within a second; the caller looks then for the node again. */
void upstream_await_map(struct upstream *u, struct upstream_request *r);

/* Opens a pin: a connection to `node` for the caller alone, new or taken from those that were given back. NULL with
 * *error in the form of ops->fail (valid until the next call) where the node can't be reached, `node` is NULL, or there
 * may be no further connection by the limits. */
struct upstream_pin *upstream_pin_open(struct upstream *u, struct upstream_node *node, const struct upstream_lane *lane,
                                       const struct upstream_claim *claim, const struct upstream_pin_events *events,
                                       const char **error) __attribute__((warn_unused_result));
/* Sends a request over a pin; the replies come in the order of the requests. With `asking` an ASKING goes before it. A
 * MOVED is the reply, but the map learns of it. Returns NULL, or the error if the connection is gone. */
const char *upstream_pin_submit(struct upstream_pin *pin, struct upstream_request *r, const char *bytes, size_t len,
                                bool asking) __attribute__((warn_unused_result));
/* Begins a request whose bytes come in pieces, by upstream_pin_more; the last one with `last`. Nothing else may be in
 * flight on the pin. A node that answers before it has all of it is not listened to any longer. */
const char *upstream_pin_begin(struct upstream_pin *pin, struct upstream_request *r, bool asking)
    __attribute__((warn_unused_result));
/* Queues the next piece (copied). False where more than a moment's worth waits to be written: the caller goes on when
 * `drained` is called. Nothing happens once the connection is gone. */
bool upstream_pin_more(struct upstream_pin *pin, const char *bytes, size_t len, bool last);
/* Sends bytes without a request: what comes back is a message. Nothing happens if the connection is gone. */
void upstream_pin_send(struct upstream_pin *pin, const char *bytes, size_t len);
/* Turns stream mode on or off, in which all that arrives goes to `message`. No request may be in flight. */
void upstream_pin_stream(struct upstream_pin *pin, bool on);
/* Says how patient the caller is: once the pin is connected, a reply is due only so many ms after the last byte that
 * was exchanged; PIN_PATIENT: never. The upstream's timeout begins then, and while the node answers others it is not
 * late either. */
enum { PIN_PATIENT = -1 };
void upstream_pin_patient(struct upstream_pin *pin, int64_t ms);
/* A mark of the caller's on the connection, which is still there when the connection is pinned anew. */
bool *upstream_pin_mark(struct upstream_pin *pin);
/* A number of the caller's on the connection, 0 on a new one, which is still there when the connection is pinned
 * anew. */
int64_t *upstream_pin_number(struct upstream_pin *pin);
/* The node that the pin is connected to; NULL once the connection is lost. */
struct upstream_node *upstream_pin_node(const struct upstream_pin *pin);
/* The node that a MOVED or ASK (`text` without '-' and CR LF) of the pin's node points at, NULL if it is none or the
 * node can't be known. The map learns of a MOVED. */
struct upstream_node *upstream_pin_redirect(struct upstream_pin *pin, const char *text, size_t len, bool *ask);
/* Gives a pin back. `clean`: the connection has no state left over and may be used again; if it is lost, in stream mode
 * or has replies outstanding it is closed, its requests fail (at the end of the turn) and no event comes any more. */
void upstream_unpin(struct upstream_pin *pin, bool clean);

/* Writes what is queued on all connections; called once per loop turn from the thread's ev_prepare. Also closes pins
 * that were given back (whose requests fail), and frees what was closed since, so it is never called from inside a
 * callback. */
void upstream_flush(struct upstream *u);
/* Whether pins were given back that are to be closed by upstream_flush. */
bool upstream_has_unpinned(const struct upstream *u);
/* Whether any connection has something to write. */
bool upstream_waits(const struct upstream *u);

/* Whether a node's error (without '-' and CR LF) passes: the same request may do better a little later, there or at the
 * node that has taken its place. Never where nothing can take its place. `keyed`: the request names keys. */
bool upstream_error_passes(const struct upstream *u, const char *text, size_t len, bool keyed);
/* How many ms to wait before a request whose error passes is repeated, after so many times before; -1: it was often
 * enough. */
int64_t upstream_delay_ms(unsigned times);

bool upstream_is_cluster(const struct upstream *u);
/* Whether who serves what may change: a cluster's slots, the master that Sentinels watch. */
bool upstream_has_topology(const struct upstream *u);
/* A number that changes whenever a slot moves to another node, or requests to a node to another connection. A session
 * with requests in flight waits for them before it sends on under a new epoch, so that no request overtakes an earlier
 * one. */
uint64_t upstream_epoch(const struct upstream *u);
/* How many slots have a node that serves them; all of a standalone's, and of Sentinel's master once it is known. */
unsigned upstream_slots_covered(const struct upstream *u);
/* A number for who serves what: equal in every proxy and thread that has the same map, another one after a slot has
 * moved or a master has been replaced. */
uint64_t upstream_map_print(struct upstream *u);
/* Count and name the masters that serve slots (standalone: the one node; Sentinel: the master, if it is known), in the
 * order of their addresses. */
size_t upstream_master_count(const struct upstream *u);
struct upstream_node *upstream_master(const struct upstream *u, size_t i);
/* The node that serves a slot, or NULL; its address as text, borrowed. */
struct upstream_node *upstream_node_of_slot(const struct upstream *u, int slot);
/* A master that takes what has no key: the same for the same affinity while it is well. NULL where none is known. */
struct upstream_node *upstream_any_node(struct upstream *u, uint32_t affinity);
/* Whether connections to it were lost, and requests have not opened another one since: most questions
 * of the proxy's own are not what should find out whether it is there. No, for NULL. */
bool upstream_node_lost(const struct upstream_node *node);
const char *upstream_node_address(const struct upstream_node *node);

/* Notes how many clients a node takes (its maxclients), which limits the connections of single clients in all threads.
 */
void upstream_note_maxclients(struct upstream_node *node, uint32_t maxclients);

/* What PROXY INFO tells of a node; `fn` is called once for each. */
struct upstream_node_info {
    const char *address;
    const char *state; /* "up", "connecting", "down", "idle" */
    bool master;
    unsigned slots, connections, pinned; /* shared; pins, in use or kept */
    unsigned pinned_max;                 /* so many may be in use, by all threads */
    size_t in_flight, unsent_bytes;
    uint64_t requests, reconnects, redirects;
    uint64_t pins_refused;               /* by the limits */
    const struct histogram *round_trips; /* of a sample of requests, from their writing to their reply */
    int64_t round_trip_us;               /* lately; 0: not known */
};
void upstream_each_node(const struct upstream *u, void (*fn)(void *arg, const struct upstream_node_info *info),
                        void *arg);
/* Calls `fn` for each Sentinel: "up" (subscribed), "connecting", "down". Not at all for upstreams of another kind. */
void upstream_each_sentinel(const struct upstream *u, void (*fn)(void *arg, const char *address, const char *state),
                            void *arg);

#endif
