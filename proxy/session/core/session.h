/*
 * Sessions: a client's connection, what it has been told of itself, its requests in flight, and its output.
 */
#ifndef LOCKKEEPER_SESSION_CORE_SESSION_H
#define LOCKKEEPER_SESSION_CORE_SESSION_H

#include <errno.h>
#include <string.h>

#include "proxy/lock/engine.h"
#include "proxy/net/tls.h"
#include "proxy/session/core/request.h"

struct pubsub;
struct sockaddr_storage;
struct stream;
struct tracking;
struct transaction;
struct watch;

enum {
    SESSION_WINDOW = 32,                 /* requests in flight; more wait in the session's input */
    SESSION_WINDOW_LONG = 8,             /* the same of who is sent long replies */
    SESSION_OWES_MAX = 1024 * 1024,      /* output that waits, from which on no more requests go to nodes */
    SESSION_BYTES_MAX = 4 * 1024 * 1024, /* of these requests; one may be longer */
    SESSION_BYTES_SHARE = 128 * 1024,    /* the same, while the worker's buffers are full */
    STREAM_MIN = 1024 * 1024,            /* a request that is longer is passed on while it comes, if it can be */
    SESSION_ADDRESS_MAX = 56,
    SESSION_SLOTS_A_BIT = 256, /* of session.used_slots */
    LOCK_BUSY_SLOTS = 16,
    LOCK_BUSY_ALL = 255
};

enum session_state {
    SESSION_OPEN,
    SESSION_FINISHING, /* takes no more requests; closes when all replies are written */
    SESSION_CLOSED     /* waits to be freed */
};

/* Bytes that came and can't be dispatched yet: [start, end) of data. */
struct session_input {
    char *data;
    size_t start, end, cap;
    size_t later; /* bytes from start on that came before what was read while the session's window was full; 0: none */
    struct resp_request scanner;
};

/* What CLIENT REPLY said. */
enum reply_mode { REPLY_ON, REPLY_OFF, REPLY_SKIP_NEXT, REPLY_SKIP };

/* Whether the client may look into the proxy: the node's answer, until it is taken. */
enum rights { RIGHTS_UNKNOWN, RIGHTS_GRANTED, RIGHTS_REFUSED, RIGHTS_NOT_KNOWN_NOW };

/* What the session has sent, beside what logs in: locks/one_shot.c. */
enum session_sent { SENT_NOTHING, SENT_ONE, SENT_MORE };

/* What CLIENT CACHING said of the next command. */
enum caching { CACHING_NONE, CACHING_YES, CACHING_NO };

struct session {
    struct lock_session lock; /* id, client identity */
    struct worker *worker;
    struct ev_io io;
    int fd;
    enum session_state state;
    struct tls *tls;  /* NULL: plain */
    bool forwarded;   /* its address is what a load balancer says: it did not come from there itself */
    bool half_closed; /* the client has shut down its side */
    bool ended;       /* half-closed, when all of its requests had been answered, and the replies written */
    uint8_t sent;     /* enum session_sent */
    bool read_paused;
    bool paused;  /* its next request is held by CLIENT PAUSE */
    bool blocked; /* in a blocking command: that it leaves is noticed at once */
    bool waits; /* its only request is held until something happens, or it says more: struct session_room's `speaks` */
    bool holding; /* its oldest request's reply is not read: enough of it waits to be written */
    bool authenticated;
    bool is_dirty, is_runnable;
    bool trip_known;     /* lock.trip_ms was asked for */
    bool departed_known; /* cluster/departed.c's: the PUBSUB at hand has waited */
    bool owes;           /* its next requests wait until it has taken its replies */
    bool long_replies;   /* lately: its requests go over the connection for these */
    uint8_t apart;       /* enum upstream_apart, of what is in flight */
    uint8_t hears;       /* enum session_hears: events that rooms want to be told of */
    bool queues;         /* MULTI: what comes is queued */
    bool watches;        /* a transaction behind WATCH */
    bool no_evict;       /* CLIENT NO-EVICT: only shown */
    bool left_endless;   /* it has acquired a lock without an expiry */
    uint8_t barrier;     /* the next requests wait for so many in flight: request_barrier */
    enum reply_mode reply_mode;
    uint8_t rights;                      /* enum rights */
    bool looked_in;                      /* as this user it had the right to, when that was last asked */
    uint8_t caching;                     /* enum caching: of the command at hand, while the session tracks keys */
    uint16_t lock_busy[LOCK_BUSY_SLOTS]; /* lock commands in flight by hash of their key */
    uint16_t lock_busy_all;              /* those that concern several keys */
    uint16_t audits;                     /* commands in flight whose replies are looked at on their way */
    uint32_t in_flight;
    uint32_t window;     /* so many may be in flight; 0: the next one waits until none is */
    size_t burst;        /* bytes of long replies since none was in flight */
    double long_at;      /* when a long reply came last */
    uint32_t redirected; /* of those in flight */
    uint32_t queued_db;  /* inside MULTI: of the next command, if each SELECT before it is right */
    size_t in_flight_bytes;
    size_t held_bytes; /* of replies that wait for those before them */
    struct upstream_lane lane;
    uint64_t used_slots; /* bit by bit: of which a request has gone to a node (WAIT) */
    uint64_t epoch;      /* of the slot map that requests in flight were routed by */
    struct list_node link, dirty_link, runnable_link;
    struct list_node requests;
    struct iobuf out;
    struct text *held;               /* NULL, or messages that wait for the end of a reply; they count as held_bytes */
    struct session_input *input;     /* NULL while nothing waits */
    struct transaction *transaction; /* NULL: neither WATCH nor MULTI */
    struct pubsub *pubsub;           /* NULL: neither subscriptions nor MONITOR */
    struct watch *watch;             /* NULL: no PROXY WATCH */
    struct tracking *tracking;       /* NULL: neither CLIENT TRACKING nor NO-TOUCH */
    const struct command *last;      /* command; NULL: not in the table */
    char last_word[16];              /* its subcommand, "" none */
    size_t reading;                  /* bytes of the request at hand, while CLIENT shows this client */
    struct stream *stream;           /* NULL, or the request whose rest is passed on while it comes */
    bool overlaps;                   /* what was read last came while earlier requests were unanswered */
    bool reads_on;                   /* that filled the buffer: what comes next may belong to the same piece */
    double last_active;
    double careful_until;   /* locks/script.c's: what follows a script waits for it; by the loop's clock */
    double over_soft_since; /* output above the soft limit since; 0: it isn't */
    uint64_t arrival;       /* as a stranger: worker_arrival's */
    int64_t opened_ms;
    char *name, *user, *lib_name, *lib_version; /* NULL: none */
    struct sockaddr_storage *reached; /* what a load balancer says that the client connected to; NULL: nothing */
    char address[SESSION_ADDRESS_MAX];
};

/* Makes a session. `fd` and `tls` (its handshake done; NULL: plain) become the session's. */
struct session *session_new(struct worker *w, int fd, struct tls *tls, const char *address);
/* Notes that a load balancer has passed the session on, for a client that had connected to `reached`, which is copied
 * (NULL: it is not known). */
void session_is_forwarded(struct session *s, const struct sockaddr_storage *reached);
/* Closes a session: unlinks it and lets the engine know; it is freed at the end of the loop turn. `reason` goes to the
 * log. */
void session_close(struct session *s, const char *reason);
/* Closes a session once what it is owed has been written. */
void session_finish(struct session *s);
/* Whether the client has closed the connection behind bytes that are not read yet (while reading is paused). */
bool session_left(const struct session *s);
/* Goes on with input that waited. */
void session_resume(struct session *s);
/* Writes output; at the end of a loop turn. */
void session_flush(struct session *s);
/* Lets the node send the rest of a reply that was held up. */
void session_go_on(struct session *s);
void session_free(struct session *s);
/* Whether a reply has begun and not ended. */
bool session_amid_reply(const struct session *s);
/* Tells the engine whether the lock command at hand came while earlier requests were unanswered. */
void session_note_overlap(struct session *s);
/* Why reading or writing has failed. */
static inline const char *session_errno_text(const struct session *s) {
    return s->tls ? tls_error(s->tls) : strerror(errno);
}
/* Writes a whole message that answers nothing, at once, or holds it while a reply is being written. */
void session_tell(struct session *s, const char *data, size_t len);
/* Lets messages go out that waited until no reply is being written. */
void session_release(struct session *s);
/* Has the session go on in the loop's next turn. */
void session_mark_eased(struct session *s);
/* Notes that there is output to write. */
void session_mark_dirty(struct session *s);
void session_mark_runnable(struct session *s);
/* Tells the engine who the session is now. */
void session_identify(struct session *s);
/* Writes who the session is for incidents, "10.0.0.5:3321 name"; returns its length. */
size_t session_who(const struct session *s, char *out, size_t size);

/* Writes where a client is, without its port, for what one client may have: of IPv6 its /64, and all of a unix socket
 * are one. Returns `out`. */
const char *session_host(const struct session *s, char *out, size_t size);

/* Writes a client's address: "10.0.0.5:3321", "[::1]:3321", "unix:0". */
struct sockaddr_storage;
void session_address_text(const struct sockaddr_storage *a, char *out, size_t size);

/* Tells the rooms that want to hear it that a second is over. */
void session_tick(struct session *s);
/* Ends a request or a reply in parts: messages that waited for that go out, where no reply is being written. */
void session_reply_over(struct session *s);
/* The lane of a connection of the session's own. */
struct upstream_lane session_pin_lane(const struct session *s);

/* The database of the command at hand: inside MULTI that which the SELECTs before it make. */
static inline uint32_t session_db(const struct session *s) {
    return s->queues ? s->queued_db : s->lane.db;
}

/* What a lane is tried with: whoever is logged in may say HELLO, which never shows in ACL LOG as PING does. */
static inline const char *lane_hello(const struct upstream_lane *lane) {
    return lane->protocol == 3 ? "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n" : "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
}

static inline const char *session_hello(const struct session *s) {
    return lane_hello(&s->lane);
}

/* Who has not logged in to a node: it is the proxy's user there, or nobody's. */
static inline bool session_is_stranger(const struct session *s) {
    return s->lane.login == s->worker->shared->options.stranger_login;
}

/* Who has not logged in, to the proxy or (strangers) to a node that wants it. */
bool session_unauthenticated(const struct session *s);
/* Of these, who may need no login: no node has said yet whether it wants one. */
bool session_doubted(const struct session *s);

/* Notes that a request goes to the node of this slot; -1: of none. */
static inline void session_uses(struct session *s, int slot) {
    if (slot >= 0)
        s->used_slots |= (uint64_t)1 << (slot / SESSION_SLOTS_A_BIT);
}

/* ---- ways that most requests go -------------------------------------------------------------------- */

/* Forwards the request as it is to the node of `slot` (SLOT_NONE: any). */
static inline __attribute__((always_inline)) void
session_forward(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes, int slot) {
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, c);
    call_submit(&request->call, slot, bytes, r->len);
}
/* Answers without a node: `reply` is whole RESP. */
void session_answer(struct session *s, const struct command *c, const char *reply, size_t len);
/* Answers without a node with an error, without its '-'. */
void session_refuse(struct session *s, const struct command *c, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#endif
