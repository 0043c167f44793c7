/*
 * Sessions: a client's connection, its settings, its requests in flight, and its output.
 */
#pragma once

#include <errno.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/lock/engine.h"
#include "proxy/net/tls.h"
#include "proxy/session/core/request.h"

struct sockaddr_storage;
struct stream;

enum {
    SESSION_WINDOW = 32,                 /* requests in flight; more wait in the session's input */
    SESSION_WINDOW_LONG = 8,             /* the same for a session with long replies */
    SESSION_OWES_MAX = 1024 * 1024,      /* waiting output above which no more requests go to nodes */
    SESSION_BYTES_MAX = 4 * 1024 * 1024, /* bytes of the requests in flight; a single one may be longer */
    SESSION_BYTES_SHARE = 128 * 1024,    /* the same, while the worker's buffers are full */
    STREAM_MIN = 1024 * 1024,            /* a longer request is forwarded while it arrives, if possible */
    SESSION_ADDRESS_MAX = 56,
    SESSION_SLOTS_A_BIT = 256, /* slots for each bit of session.used_slots */
    BUSY_PLACES = 16,
    BUSY_ALL = 255
};

enum session_state {
    SESSION_OPEN,
    SESSION_FINISHING, /* takes no more requests; closes once all replies are written */
    SESSION_CLOSED     /* to be freed at the end of the turn */
};

/* Why nothing is read from a client now: bits of session.unread. */
enum session_unread {
    UNREAD_ENDED = 1,    /* the client has shut down its side */
    UNREAD_AHEAD = 2,    /* a request waits, and enough was read behind it */
    UNREAD_STREAM = 4,   /* the request that is forwarded while it arrives takes no more bytes now */
    UNREAD_FINISHING = 8 /* the session takes no more requests */
};

/* What a session's requests wait for: bits of session.delays. */
enum session_delay {
    DELAY_BLOCKED = 1, /* a blocking command: a disconnect must be noticed at once */
    DELAY_EVENT = 2,   /* its only request waits for an event, or until the client sends more (session_room.speaks) */
    DELAY_PAUSED = 4,  /* CLIENT PAUSE holds its next request */
    DELAY_OWES = 8,    /* its next requests wait until the client has read its replies */
    DELAY_OUTPUT = 16  /* the reply to its oldest request is not read: enough output waits to be written */
};

/* Bytes that have come and can't be dispatched yet: [start, end) of data. */
struct session_input {
    char *data;
    size_t start, end, cap;
    size_t later;       /* bytes from start on that came before bytes that were read with a full window; 0: none */
    int64_t came_us;    /* by clock_us, when the last bytes came */
    int64_t gathers_us; /* since when output waits for the next replies (session_flush); 0: none does */
    struct resp_request scanner;
};

/* The mode set by CLIENT REPLY. */
enum reply_mode { REPLY_ON, REPLY_OFF, REPLY_SKIP_NEXT, REPLY_SKIP };

struct session {
    struct lock_session lock; /* id, client identity */
    struct worker *worker;
    struct ev_io io;
    int fd;
    enum session_state state;
    struct tls *tls; /* NULL: plain */
    bool forwarded;  /* a load balancer gave its address; the client did not connect from there itself */
    bool ended;      /* half-closed after all of its requests had been answered, and the replies written */
    uint8_t delays;  /* enum session_delay: what its requests wait for; 0: nothing */
    uint8_t unread;  /* enum session_unread: why nothing is read from the client now; 0: it is read */
    bool authenticated;
    bool long_replies;  /* its replies have been long lately: its requests use the connection for long replies */
    uint8_t apart;      /* enum upstream_apart of the requests in flight */
    uint8_t hears;      /* enum session_hears: events to report to rooms */
    bool queues;        /* in MULTI: commands are queued */
    bool watches;       /* in a transaction after WATCH */
    uint8_t barrier;    /* how many requests in flight the next requests must wait for: request_barrier */
    bool listens;       /* messages come that are no replies: the limits for subscribers count, too */
    uint8_t reply_mode; /* enum reply_mode */
    bool overlaps;      /* the last bytes read came while earlier requests were unanswered */
    bool reads_on;      /* the last read filled the buffer: the next bytes may belong to the same write of the client */
    uint8_t before;     /* what a room's before_call sends before the calls of the current command; 0: nothing */
    uint16_t busy[BUSY_PLACES]; /* requests in flight that later ones on the same key wait for, by the key's hash */
    uint16_t busy_all;          /* those with several keys */
    uint32_t in_flight;
    uint32_t window;     /* how many requests may be in flight; 0: the next request waits until none is */
    size_t burst;        /* bytes of long replies since no request was in flight */
    double long_at;      /* time of the last long reply */
    uint32_t redirected; /* how many requests in flight were redirected */
    uint32_t queued_db;  /* in MULTI: the database of the next command, if each SELECT before it is valid */
    size_t in_flight_bytes;
    size_t held_bytes; /* bytes of replies that wait for replies before them */
    struct upstream_lane lane;
    uint64_t used_slots; /* a bit for each group of slots to which a request has gone */
    uint64_t epoch;      /* the epoch of the slot map by which requests in flight were routed */
    struct list_node link, dirty_link, runnable_link;
    struct list_node requests;
    struct iobuf out;
    struct text *held;               /* NULL, or messages that wait for the end of a reply; they count in held_bytes */
    struct session_input *input;     /* NULL if no input waits */
    _Alignas(8) char room[ROOM_END]; /* the rooms' own state: enum room_at */
    const struct command *last;      /* the last command; NULL: not in the table */
    struct stream *stream;           /* NULL, or the request that is forwarded while it arrives */
    int64_t active_us;      /* by clock_us, when its client last sent something, or what it had sent before went on */
    double over_soft_since; /* since when the output is above the soft limit; 0: it is not */
    uint64_t arrival;       /* without login: its number from worker_arrival */
    int64_t opened_ms;
    char *name, *user, *lib_name, *lib_version; /* NULL: not set */
    struct sockaddr_storage *reached; /* where the client connected, as the load balancer says; NULL: not known */
    char address[SESSION_ADDRESS_MAX];
};

/* Adds or removes what the session's requests wait for. */
static inline void session_delay(struct session *s, enum session_delay why, bool holds) {
    s->delays = (uint8_t)(holds ? s->delays | why : s->delays & ~why);
}
/* Whether the client has shut down its side. */
static inline bool session_half_closed(const struct session *s) {
    return s->unread & UNREAD_ENDED;
}
/* Whether the session continues in this turn or a later one; whether it has output to write. */
static inline bool session_is_runnable(const struct session *s) {
    return !list_empty(&s->runnable_link);
}
static inline bool session_is_dirty(const struct session *s) {
    return !list_empty(&s->dirty_link);
}

/* The oldest request in flight; NULL: there is none. */
static inline struct request *session_head(const struct session *s) {
    struct list_node *n = list_first(&s->requests);
    return n ? LIST_ENTRY(n, struct request, link) : NULL;
}
/* Whether a reply has begun and is not complete. */
static inline bool session_amid_reply(const struct session *s) {
    const struct request *head = session_head(s);
    return head && head->started && !head->done;
}
/* A room's own state of the session. */
static inline void *session_room(const struct session *s, enum room_at room) {
    return (char *)(uintptr_t)s->room + room;
}

/* Makes a session, which takes over `fd` and `tls` (after its handshake; NULL: plain). */
struct session *session_new(struct worker *w, int fd, struct tls *tls, const char *address);
/* Notes that a load balancer has forwarded the client, which had connected to `reached` (copied; NULL: not known). */
void session_is_forwarded(struct session *s, const struct sockaddr_storage *reached);
/* Closes a session: unlinks it and notifies the engine; it is freed at the end of the loop turn. `reason` is logged. */
void session_close(struct session *s, const char *reason);
/* Closes a session once all its replies have been written. */
void session_finish(struct session *s);
/* Whether the client has closed the connection while unread bytes wait (reading is paused). */
bool session_left(const struct session *s);
/* Continues with the waiting input. */
void session_resume(struct session *s);
/* Writes output; at the end of a loop turn. */
void session_flush(struct session *s);
void session_free(struct session *s);
/* Tells the engine whether the current lock command came while earlier requests were unanswered. */
void session_note_overlap(struct session *s);
/* Why reading or writing failed. */
static inline const char *session_errno_text(const struct session *s) {
    return s->tls ? tls_error(s->tls) : strerror(errno);
}
/* Writes a whole message that is no reply: at once, or after the reply that is being written. */
void session_tell(struct session *s, const char *data, size_t len);
/* Notes that the session has output to write. */
void session_mark_dirty(struct session *s);
void session_mark_runnable(struct session *s);
/* Tells the engine the session's present identity. */
void session_identify(struct session *s);
/* Writes the session's name for incidents, "10.0.0.5:3321 name"; returns its length. */
size_t session_who(const struct session *s, char *out, size_t size);

/* Writes the client's host, without the port, by which limits per client are counted: IPv6 addresses by their /64, all
 * clients of a unix socket as one. Returns `out`. */
const char *session_host(const struct session *s, char *out, size_t size);
/* Writes a client's address: "10.0.0.5:3321", "[::1]:3321", "unix:0". */
void session_address_text(const struct sockaddr_storage *a, char *out, size_t size);

/* The database of the current command; in MULTI the one that the queued SELECTs lead to. */
static inline uint32_t session_db(const struct session *s) {
    return s->queues ? s->queued_db : s->lane.db;
}

/* The command with which a lane is tested. Any logged-in user may send HELLO, and ACL LOG never has it. */
static inline const char *lane_hello(const struct upstream_lane *lane) {
    return lane->protocol == 3 ? "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n" : "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
}

/* Whether the client itself has connected to the proxy's unix socket. */
static inline bool session_by_unix_socket(const struct session *s) {
    return !s->forwarded && strncmp(s->address, "unix:", 5) == 0;
}

/* Whether the session has not logged in to a node: the node treats it as the proxy's user, or as its default user. */
static inline bool session_is_stranger(const struct session *s) {
    return s->lane.login == s->worker->shared->stranger_login;
}

/* Whether the session has not logged in: to the proxy, or to a node that requires it. */
static inline bool session_unauthenticated(const struct session *s) {
    const struct worker *w = s->worker;
    return !s->authenticated ||
           (w->strangers != UNAUTHENTICATED_SERVED && session_is_stranger(s) && s->arrival > w->served);
}
/* Whether an unauthenticated session may need no login: no node has answered yet whether it requires one. */
static inline bool session_doubted(const struct session *s) {
    return s->worker->strangers == UNAUTHENTICATED_UNKNOWN && s->authenticated && session_is_stranger(s);
}
/* For a session in doubt. NULL: the node is being asked, and the request waits for its first answer. Else the error for
 * the request: there is no answer now. */
const char *session_await_word(struct session *s);

/* Notes that a request goes to the node of this slot; -1: to none. */
static inline void session_uses(struct session *s, int slot) {
    invariant_debug(slot < SLOT_COUNT, "slot %d", slot);
    if (slot >= 0)
        s->used_slots |= (uint64_t)1 << (slot / SESSION_SLOTS_A_BIT);
}

/* Overwrites bytes of an input buffer that were copied elsewhere, or will never be used: a password may be among them.
 * Longer texts than WORKER_SCRATCH are left alone: a password is shorter. */
void secret_overwrite(const char *data, size_t len);

/* ---- the ways of most requests ------------------------------------------------------------------------ */

/* These return DISPATCHED. */

/* Forwards the request unchanged to the node of `slot` (SLOT_NONE: any). */
static inline __attribute__((always_inline)) enum dispatch_result
session_forward(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes, int slot) {
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, c);
    call_submit(&request->call, slot, bytes, r->len);
    return DISPATCHED;
}
/* Replies without a node; `reply` is whole RESP. */
enum dispatch_result session_answer(struct session *s, const struct command *c, const char *reply, size_t len);
/* Replies without a node with a text that is whole RESP, and clears it. */
enum dispatch_result session_answer_text(struct session *s, const struct command *c, struct text *reply);
/* Replies without a node with an error text, without its '-'. */
enum dispatch_result session_refuse(struct session *s, const struct command *c, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
