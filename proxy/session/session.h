/*
 * Sessions, their request slots, and the calls that requests make to nodes. Shared by the files of this folder.
 *
 *      session ──< request (a slot in the order of the client's requests) ──< call (one exchange with a node)
 *
 * A request takes one slot and keeps it until its reply has gone to the session's output; replies leave in slot
 * order. Most requests have one call, which is embedded in them; split commands have a call for each part.
 * When a session goes, its requests in flight stay behind without a session until their calls have ended: a lock
 * that is granted to somebody who left has to be accounted for all the same.
 */
#ifndef LOCKKEEPER_SESSION_SESSION_H
#define LOCKKEEPER_SESSION_SESSION_H

#include <errno.h>
#include <ev.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "parser/command.h"
#include "parser/resp.h"
#include "proxy/base/histogram.h"
#include "proxy/base/iobuf.h"
#include "proxy/base/list.h"
#include "proxy/base/text.h"
#include "proxy/net/readable.h"
#include "proxy/net/tls.h"
#include "proxy/session/tour.h"
#include "proxy/session/worker.h"

struct session;
struct request;
struct call;
struct transaction;
struct pubsub;
struct replay;
struct stream;
struct tracking;
struct replica;

enum {
    SESSION_REQUESTS_MAX = 1024,         /* in flight; more wait in the socket */
    SESSION_BYTES_MAX = 4 * 1024 * 1024, /* of these requests; one may be longer */
    SESSION_BYTES_SHARE = 128 * 1024,    /* the same, while the worker's buffers are full */
    WORKER_BYTES_FULL = 128 * 1024 * 1024,
    STREAM_MIN = 1024 * 1024, /* a request that is longer is passed on while it comes, if it can be */
    CALL_INLINE = 88,         /* bytes of a waiting reply kept without an allocation */
    SESSION_ADDRESS_MAX = 56,
    SESSION_SLOTS_A_BIT = 256, /* of session.used_slots */
    LOCK_BUSY_SLOTS = 16,
    LOCK_PROBES = 64, /* of a worker: attempts that others may join */
    LOCK_BUSY_ALL = 255
};

/* ---- worker ------------------------------------------------------------------------------------ */

struct listener {
    struct ev_io io;
    struct worker *worker;
    bool tls;
};

/* lock_words.c's: the last expiry of a lock and its guard record's, as words of a call. */
struct lock_expiry {
    int64_t ms; /* 0: none yet */
    size_t len;
    char words[64];
};

enum pause_kind { PAUSE_NONE, PAUSE_WRITES, PAUSE_ALL };

/* FIGURE(field, name, type, family, help): a number of a node, its name in INFO and its family at /metrics. */
#define NODE_FIGURES(FIGURE)                                                                                           \
    FIGURE(slots, "slots", "gauge", "upstream_slots", "Slots that the node serves.")                                   \
    FIGURE(connections, "connections", "gauge", "upstream_connections", "Shared connections to the node.")             \
    FIGURE(pinned, "pinned", "gauge", "upstream_pinned_connections",                                                   \
           "Connections to the node that one client has for itself.")                                                  \
    FIGURE(in_flight, "in_flight", "gauge", "upstream_requests_in_flight",                                             \
           "Requests sent to the node and not answered.")                                                              \
    FIGURE(unsent_bytes, "unsent", "gauge", "upstream_unsent_bytes", "Bytes that wait to be written to the node.")     \
    FIGURE(requests, "requests", "counter", "upstream_requests_total", "Requests sent to the node.")                   \
    FIGURE(reconnects, "reconnects", "counter", "upstream_reconnects_total",                                           \
           "Connections to the node that replaced another.")                                                           \
    FIGURE(redirects, "redirects", "counter", "upstream_redirects_total", "MOVED and ASK from the node.")

/* What a worker knows of a node. */
struct node_figures {
    char address[256];
    const char *state; /* upstream_node_info's */
    bool master;
#define FIGURE_FIELD(field, ...) uint64_t field;
    NODE_FIGURES(FIGURE_FIELD)
#undef FIGURE_FIELD
    struct histogram round_trips;
    int64_t round_trip_us; /* the longest of the threads' */
};

/* What Redis does where its memory is full. */
struct eviction_state {
    unsigned policy; /* evictions.c's number for it */
    bool evicts;     /* and there is a limit that it may reach */
    size_t master;   /* which of them */
};

/* What a worker leaves for other threads to read. */
struct node_board {
    pthread_mutex_t mutex;
    struct node_figures *nodes;
    size_t count;
    struct histogram lock_commands;
};

struct worker {
    struct proxy_shared *shared;
    unsigned index;
    struct ev_loop *loop;
    struct upstream *upstream;
    struct lock_rules *rules;
    struct chunk_pool chunks;
    struct counters counters;
    struct listener *listeners;
    size_t listener_count;
    struct list_node guests;         /* clients in their TLS handshake */
    double guest_logged;             /* when a failed one was last logged at notice */
    struct list_node sessions;       /* open */
    struct list_node hearing;        /* of these: redirect.c's, to whom other clients' messages may be redirected */
    struct list_node dirty;          /* have output to write */
    struct list_node runnable;       /* may go on with requests that waited */
    struct list_node closed;         /* to be freed at the end of the turn */
    struct readable readable;        /* sessions and nodes, in this turn */
    struct list_node *free_requests; /* a stack */
    struct list_node free_calls;
    size_t free_request_count, free_call_count;
    struct list_node *free_locks; /* lock_call.c's, a stack */
    size_t free_lock_count;
    struct list_node lease_notes;    /* renewals and releases that the engine has asked for */
    size_t lease_works;              /* those under way */
    uint64_t leases_handed;          /* that got a last expiry */
    int64_t lease_refused_ms;        /* when the log last said that one could not be renewed */
    struct eviction_state evictions; /* evictions.c's, in the first worker */
    int64_t evictions_ms;            /* when it last asked */
    bool evictions_asking;
    double ticked;                       /* when it was last */
    unsigned punctual_ticks, held_ticks; /* in a row; without a question */
    bool heirs_asking;                   /* heirs.c looks at the list */
    struct list_node discovered;         /* discover.c's: commands that the table lacks */
    struct list_node discovered_before;
    size_t discovered_count;
    struct resp_request scanner; /* for input that is complete in `scratch` */
    char *scratch;               /* what a read puts its bytes in */
    struct text build;           /* a request being put together */
    bool secret;                 /* a password was in a request: secret.h */
    struct lock_expiry lock_expiry;
    struct call *probes[LOCK_PROBES]; /* lock_join.c's, by the key's hash */
    uint32_t counters_seen;           /* advise_flow.c's */
    int64_t now_ms;                   /* worker_now's; 0: not asked for yet */
    struct ev_prepare prepare;
    struct ev_idle look; /* active: the loop's next look at who is readable does not wait */
    struct ev_async wake;
    struct ev_timer tick, engine_tick, accept_pause;
    double engine_at;      /* when engine_tick is due */
    bool engine_waits;     /* it came late, and lets others go first */
    enum pause_kind pause; /* CLIENT PAUSE, until pause_timer is due */
    struct ev_timer pause_timer;
    struct tour_stop tours;
    void (*ready)(void *arg, const char *error);
    void *ready_arg;
    bool accepting, stopping;
    bool opened;                    /* clients have been let in */
    bool upstream_needs_auth;       /* the node answers NOAUTH to who has not logged in */
    bool probing;                   /* it is being asked whether it still does */
    double drain_from, drain_until; /* while stopping */
    atomic_int_fast64_t stop_ms;    /* -1: not asked to stop */
    _Atomic(struct lock_rules *) new_rules;
    struct histogram lock_commands; /* how long they took */
    struct node_board board;
};

enum { WORKER_SCRATCH = 64 * 1024 };

/* The wall clock of this turn of the loop. It is read when it is first asked for: most turns don't. */
int64_t worker_now(struct worker *w);
/* Leases may be due in so many ms: the engine is called then, if it would not be earlier. */
void worker_engine_due(struct worker *w, int64_t in_ms);
/* metrics.c: the table of node figures, for a struct node_figures. */
extern const struct metric_table node_figures_table;
/* Writes what is known of the nodes to the worker's board. */
void node_board_write(struct worker *w);
/* The same of all workers, as one: this one's at this moment, the others' at most a second old. The caller frees
 * sum->nodes; sum->count is 0 at first. */
void node_board_sum(struct worker *w, struct node_board *sum);
/* report.c: the counters' sums over all workers; the process's memory. */
void counters_now(const struct proxy_shared *shared, struct counter_sums *sums);
long long resident_bytes(void);
/* worker.c: for a turn's end. */
void worker_lease_work(struct worker *w);
void worker_free_closed(struct worker *w);
/* drain.c: begins to stop, to be over after so many ms; and goes on with it at each turn's end. */
void drain_begin(struct worker *w, int64_t bound_ms);
void drain_turn(struct worker *w);
/* Asks the node again whether it serves those who have not logged in. */
void worker_probe(struct worker *w);

/* ---- calls ------------------------------------------------------------------------------------- */

/* How a call ended: a whole reply, or error (without '-' and CR LF) and why. Both borrowed. */
struct call_end {
    const char *reply;
    size_t len;
    const char *error;
    enum upstream_failure why;
};

typedef void (*call_done_fn)(struct call *c, const struct call_end *end);

struct call {
    struct upstream_request up; /* first: the upstream hands this back */
    struct request *request;
    struct list_node link; /* in request->parts, or the worker's free list */
    call_done_fn done;     /* NULL: bytes go straight to the request's reply */
    void *lock;            /* lock_flow.c's: the lock command that it carries, or NULL */
    uint32_t index, count; /* of a split: first item, items */
    size_t held_len, held_cap;
    char *held_big; /* NULL: held is inline */
    char held[CALL_INLINE];
};

/* Prepares a call of a request; `done` as above. */
void call_init(struct call *c, struct request *r, call_done_fn done);
/* Takes one more call for a split request from the pool, linked into r->parts. */
struct call *call_new(struct request *r, call_done_fn done);
void call_release(struct worker *w, struct call *c);
/* Submits to the node of `slot`. What can't be queued ends at once through `done` or the request's reply. */
void call_submit(struct call *c, int slot, const char *bytes, size_t len);
void call_submit_lane(struct call *c, int slot, const struct upstream_lane *lane, const char *bytes, size_t len);
/* Several commands that nobody else's come between: upstream_submit_together. */
void call_submit_together(struct call *c, uint8_t leading, int slot, const char *bytes, size_t len);
/* Over a connection of the session's own; `asking`: behind an ASKING. */
void call_submit_pin(struct call *c, struct upstream_pin *pin, const char *bytes, size_t len, bool asking);
/* To one master by its number. */
void call_submit_master(struct call *c, size_t master, const char *bytes, size_t len);
void call_submit_master_lane(struct call *c, size_t master, const struct upstream_lane *lane, const char *bytes,
                             size_t len);

/* ---- requests ---------------------------------------------------------------------------------- */

/* What a session may have to remember of a request until it ends. */
struct request {
    struct list_node link;   /* in session->requests; alone once the session is gone */
    struct session *session; /* NULL once it is gone */
    struct worker *worker;
    const struct command *command;
    bool done;    /* the reply is complete */
    bool started; /* part of it is in the session's output */
    bool redirected;
    bool close_after; /* QUIT */
    bool ends_barrier;
    bool silent;       /* owes no reply: it only follows the request before it */
    bool muted;        /* CLIENT REPLY: the client is not told */
    uint8_t lock_busy; /* 1 + the place in session->lock_busy that it occupies, LOCK_BUSY_ALL, 0 none */
    uint32_t parts_left;
    size_t bytes;           /* sent for it */
    struct list_node parts; /* calls of a split */
    void *state;            /* what the request's own code needs: struct split, ... */
    struct call call;
};

/* Takes a slot at the end of the session's queue. */
struct request *request_new(struct session *s, const struct command *command);
/* A request of the proxy's own, in no queue; it ends with request_reply(r, "", 0, true). */
struct request *request_internal(struct worker *w);
/* Frees half of the memory that is kept for requests and calls to come: for once a second. */
void request_pools_shrink(struct worker *w);
/* The session's later requests wait until this one has ended: it changes the session's state, or touches keys of
 * theirs in a script, which may have to be sent twice. */
void request_barrier(struct request *r);
/* More bytes of the reply; `last` ends the request, which may be freed by the call. */
void request_reply(struct request *r, const char *data, size_t len, bool last);
/* Ends it with an error line: text without '-' and CR LF. */
void request_error(struct request *r, const char *error);
/* Ends it because its call failed: request_error, or closes the session where half a reply has left already. */
void request_fail(struct request *r, const char *error);

/* ---- sessions ---------------------------------------------------------------------------------- */

enum session_state {
    SESSION_OPEN,
    SESSION_FINISHING, /* takes no more requests; closes when all replies are written */
    SESSION_CLOSED     /* waits to be freed */
};

/* Bytes that came and can't be dispatched yet: [start, end) of data. */
struct session_input {
    char *data;
    size_t start, end, cap;
    struct resp_request scanner;
};

/* CLIENT REPLY. */
enum reply_mode { REPLY_ON, REPLY_OFF, REPLY_SKIP_NEXT, REPLY_SKIP };

struct session {
    struct lock_session lock; /* id, client identity */
    struct worker *worker;
    struct ev_io io;
    int fd;
    enum session_state state;
    struct tls *tls;  /* NULL: plain */
    bool half_closed; /* the client has shut down its side */
    bool read_paused;
    bool paused;  /* its next request is held by CLIENT PAUSE */
    bool blocked; /* in a blocking command: that it leaves is noticed at once */
    bool holding; /* its oldest request's reply is not read: enough of it waits to be written */
    bool authenticated;
    bool is_dirty, is_runnable;
    bool aside;        /* what is in flight began with a script: over the connection for these */
    bool no_evict;     /* CLIENT NO-EVICT: only shown */
    bool left_endless; /* it has acquired a lock without an expiry, outside of enforced rules */
    uint8_t barrier;   /* the next requests wait for so many in flight: request_barrier */
    enum reply_mode reply_mode;
    uint16_t lock_busy[LOCK_BUSY_SLOTS]; /* lock commands in flight by hash of their key */
    uint16_t lock_busy_all;              /* those that concern several keys */
    uint16_t audits;                     /* commands in flight whose replies are looked at on their way */
    uint32_t in_flight;
    uint32_t redirected; /* of those in flight */
    size_t in_flight_bytes;
    size_t held_bytes; /* of replies that wait for those before them */
    struct upstream_lane lane;
    uint64_t used_slots; /* bit by bit: of which a request has gone to a node (WAIT) */
    uint64_t epoch;      /* of the slot map that requests in flight were routed by */
    struct list_node link, dirty_link, runnable_link, hearing;
    struct list_node requests;
    struct iobuf out;
    struct text *held;               /* NULL, or messages that wait for the end of a reply; they count as held_bytes */
    struct session_input *input;     /* NULL while nothing waits */
    struct transaction *transaction; /* NULL: neither WATCH nor MULTI */
    struct replay *replay;           /* NULL, or the rest of an EXEC's array; it counts as one in flight */
    struct pubsub *pubsub;           /* NULL: neither subscriptions nor MONITOR */
    struct replica *replica;         /* NULL: no REPLCONF or SYNC yet */
    struct tracking *tracking;       /* NULL: neither CLIENT TRACKING nor NO-TOUCH */
    const struct command *last;      /* command; NULL: not in the table */
    char last_word[16];              /* its subcommand, "" none */
    size_t reading;                  /* bytes of the request at hand, while CLIENT shows this client */
    struct stream *stream;           /* NULL, or the request whose rest is passed on while it comes */
    bool overlaps;                   /* what was read last came while earlier requests were unanswered */
    bool reads_on;                   /* that filled the buffer: what comes next may belong to the same piece */
    double last_active;
    double careful_until;   /* script_flow.c's: what follows a script waits for it; by the loop's clock */
    double over_soft_since; /* output above the soft limit since; 0: it isn't */
    int64_t opened_ms;
    char *name, *user, *lib_name, *lib_version; /* NULL: none */
    char address[SESSION_ADDRESS_MAX];
};

/* `fd` and `tls` (its handshake done; NULL: plain) become the session's. */
struct session *session_new(struct worker *w, int fd, struct tls *tls, const char *address);
/* Unlinks it and lets the engine know; it is freed at the end of the loop turn. `reason` goes to the log. */
void session_close(struct session *s, const char *reason);
/* Closes it once what it is owed has been written. */
void session_finish(struct session *s);
/* Whether the client has closed the connection behind bytes that are not read yet (while reading is paused). */
bool session_left(const struct session *s);
/* input.c: its watcher's callback; frees what waited. */
void session_on_io(struct ev_loop *loop, struct ev_io *io, int events);
void session_input_free(struct session *s);
/* Goes on with input that waited. */
void session_resume(struct session *s);
/* Writes output; at the end of a loop turn. */
void session_flush(struct session *s);
/* The node may send the rest of a reply that was held up. */
void session_go_on(struct session *s);
void session_free(struct session *s);
/* Whether a reply has begun and not ended. */
bool session_amid_reply(const struct session *s);
/* Why reading or writing has failed. */
/* A lock command is at hand: the engine learns whether it came while earlier requests were unanswered. */
void session_note_overlap(struct session *s);

static inline const char *session_errno_text(const struct session *s) {
    return s->tls ? tls_error(s->tls) : strerror(errno);
}
/* A message that answers nothing, whole: written at once, or held while a reply is being written. */
void session_tell(struct session *s, const char *data, size_t len);
/* No reply is being written: messages that waited for that go out. */
void session_release(struct session *s);
/* Forgets them. */
void session_held_free(struct session *s);
/* There is output to write. */
void session_mark_dirty(struct session *s);
void session_mark_runnable(struct session *s);
/* Tells the engine who the session is now. */
void session_identify(struct session *s);
/* "10.0.0.5:3321 name" for incidents; returns its length. */
size_t session_who(const struct session *s, char *out, size_t size);

/* "10.0.0.5:3321", "[::1]:3321", "unix:0". */
struct sockaddr_storage;
void session_address_text(const struct sockaddr_storage *a, char *out, size_t size);

/* Who has not logged in, to the proxy or (login 0) to a node that wants it. */
bool session_unauthenticated(const struct session *s);

/* A request goes to the node of this slot; -1: of none. */
static inline void session_uses(struct session *s, int slot) {
    if (slot >= 0)
        s->used_slots |= (uint64_t)1 << (slot / SESSION_SLOTS_A_BIT);
}

/* ---- dispatch ---------------------------------------------------------------------------------- */

enum dispatch_result {
    DISPATCHED,
    DISPATCH_WAIT /* earlier requests have to end first */
};

/* One complete request of the session. `bytes` is what is forwarded (r->len bytes, canonical). */
enum dispatch_result dispatch_request(struct session *s, const struct resp_request *r, const char *bytes);

/* A command's keys as argument indexes; count as command_keys has it. Every find is followed by a clear. */
enum { KEYS_ON_STACK = 64 };
struct key_list {
    int count;
    uint32_t *keys; /* on_stack, or an allocation */
    uint32_t on_stack[KEYS_ON_STACK];
};
void key_list_find(struct key_list *list, const struct command *c, const struct resp_request *r, const char *bytes);
void key_list_clear(struct key_list *list);
/* The slot of all keys, SLOT_NONE or SLOT_SEVERAL. */
int key_list_slot(const struct resp_request *r, const char *bytes, const uint32_t *keys, size_t count);

/* Whether a command that is no mere reading names a guard record as a key; and the answer to it. */
bool dispatch_writes_guard(const struct command *c, const struct resp_request *r, const char *bytes);
#define GUARD_REFUSED "ERR the key is a guard record of lockkeeper's; it can't be changed through the proxy"

/* Whether a request of which this much has come can be forwarded before the rest is there: nothing in the rest can
 * change where it goes. *slot as dispatch_forward has it. */
bool dispatch_streams(struct session *s, const struct resp_request *r, const char *bytes,
                      const struct command **command, int *slot);

/* A command that the proxy answers itself, whatever holds others up: it was queued in MULTI, and EXEC was executed. */
enum dispatch_result dispatch_own(struct session *s, const struct command *c, const struct resp_request *r,
                                  const char *bytes);

/* Forwards the request as it is to the node of `slot` (SLOT_NONE: any). */
void dispatch_forward(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                      int slot);
/* A command that isn't in the table. */
void dispatch_unknown(struct session *s, const struct resp_request *r, const char *bytes);
/* Answers without a node: `reply` is whole RESP. */
void dispatch_local(struct session *s, const struct command *c, const char *reply, size_t len);
/* refuse.c: the same with an error, without its '-'. */
void dispatch_local_error(struct session *s, const struct command *c, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* It is not to be had through the proxy; `what` ends the sentence with the reason. */
void refuse_command(struct session *s, const struct command *c, const char *what);
/* It comes before authentication, and does not lead to it. `c` NULL: the table lacks it. */
void refuse_unauthenticated(struct session *s, const struct command *c, const struct resp_request *r,
                            const char *bytes);

/* ---- the files behind dispatch ------------------------------------------------------------------- */

/* split.c: multi-key commands over slots, or with lock keys among the others. */
enum dispatch_result split_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes, const uint32_t *keys, size_t key_count);
/* masters.c: commands about the whole server, on a cluster for one or all of its masters. */
enum dispatch_result masters_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                      const char *bytes);
/* Whether it makes no sense through a proxy; `what` for the error then, which ends "is not supported by lockkeeper". */
const char *masters_refuses(const struct session *s, const struct command *c, const struct resp_request *r,
                            const char *bytes);
/* Whether a cluster's masters are all asked. */
bool masters_asks_all(const struct command *c, const struct resp_request *r, const char *bytes);

/* info.c: the replies of several nodes to INFO as one: the first's, with what adds up added up. */
void info_merge(const struct text *pages, size_t count, int64_t paused, struct text *out);

/* cluster.c: the CLUSTER family. */
enum dispatch_result cluster_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                      const char *bytes);
/* What is wrong with a request of it as such: no such subcommand, or another number of arguments; NULL: nothing. The
 * text is put into `out`. */
enum { CLUSTER_WRONG_MAX = 256 };
const char *cluster_wrong(const struct resp_request *r, const char *bytes, char *out, size_t size);

/* stream.c: a request that is not complete. DISPATCHED with s->stream set: its bytes, from its first one on, are
 * stream_take's from now on; DISPATCHED without: it has to be complete; DISPATCH_WAIT: try again. */
enum dispatch_result stream_start(struct session *s, const struct resp_request *r, const char *bytes);
/* Whether it takes bytes now; the session is made runnable when it does again. */
bool stream_takes(const struct stream *st);
/* Takes the next bytes and returns how many belong to the request; s->stream is NULL behind its last one. *error: NULL,
 * or the protocol error in them. */
size_t stream_take(struct stream *st, const char *data, size_t len, const char **error);
/* Whether an argument is longer than client-query-buffer-limit, as Redis counts it. */
bool stream_over_limit(const struct stream *st, int64_t query_buffer_limit);
/* The rest of the request will not come: it ends without a reply, and the node forgets it. */
void stream_drop(struct session *s);

/* keyspace.c: KEYS, SCAN, RANDOMKEY without guard records. */
void keyspace_dispatch(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* Forwards a request whose reply is an array of keys to the node of `slot`, and takes guard records out of it. */
void keyspace_forward(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                      int slot);

/* Keeps the elements of KEYS, SCAN and RANDOMKEY that clients may see: appends the reply without the others. */
void keyspace_filter(const struct command *c, bool resp3, const char *reply, size_t len, struct text *out);

/* local.c: AUTH HELLO SELECT QUIT RESET, and CLIENT by client.h; READONLY READWRITE ASKING. */
enum dispatch_result local_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);

/* pubsub_merge.c: the masters' replies to PUBSUB CHANNELS, and to PUBSUB NUMSUB, as one. False: they make no sense. */
bool pubsub_merge_names(const struct text *replies, size_t count, struct text *out);
bool pubsub_merge_counts(const struct text *replies, size_t count, struct text *out);

/* pause.c: whether CLIENT PAUSE holds this request; called while there is a pause. The session is a paused one then. */
bool pause_holds(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* SELECT, AUTH or HELLO was run inside a transaction, and the node said yes (`element`): the session follows, and the
 * client's element is appended. */
void local_changed(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                   const char *element, size_t len, struct text *out);

/* proxy_command.c: the PROXY family. */
enum dispatch_result proxy_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);

/* Writes argument i as a C string for messages, cut to `size`. */
const char *request_arg_text(const struct resp_request *r, const char *bytes, size_t i, char *out, size_t size);

/* Encodes arguments as a multibulk into w->build: start with the count, then the bulks. */
void build_start(struct worker *w, size_t argc);
void build_bulk(struct worker *w, const void *data, size_t len);
void build_text(struct worker *w, const char *text);
void build_number(struct worker *w, int64_t n);

#endif
