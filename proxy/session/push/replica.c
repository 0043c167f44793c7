/*
 * Clients that are replicas, or take a copy of the data as replicas do (redis-cli --rdb, tools that move data).
 *
 *      REPLCONF ──> a pin to the master, request by request
 *      SYNC, PSYNC ──> the pin's bytes go to the client as they are: the data, which is no RESP, then the writes
 *                 └──> an error: the session is an ordinary one again
 *
 * From then on the client may say what a replica says, and nothing else: its requests would get round the lock
 * commands. A replica that reads slowly holds its node up, and not this process: the node's limits for replicas are
 * what counts. On a standalone alone; knows nothing of what is in the stream.
 */
#include <string.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/push/private.h"

enum {
    HOLD = 1024 * 1024, /* output that waits, from which on the node is not read */
    LOW = 256 * 1024    /* until no more than this waits */
};

struct replica {
    struct session *session;
    struct upstream_pin *pin;
    bool streams;
    bool answered; /* the first byte is known: it is a stream */
    bool paused;
    struct text error; /* the beginning of what is none */
};

bool replica_streams(const struct session *s) {
    return s->replica && s->replica->streams;
}

void replica_drop(struct session *s) {
    struct replica *p = s->replica;
    if (!p)
        return;
    s->replica = NULL;
    s->hears &= (uint8_t)~HEARS_WRITTEN;
    upstream_pin_pause(p->pin, false);
    pin_give(s->worker, p->pin, PIN_REPLICA, false);
    text_clear(&p->error);
    memory_free(p);
}

static void put(struct session *s, const char *data, size_t len) {
    iobuf_append(&s->out, data, len);
    session_mark_dirty(s);
}

/* The node says no: once it has said so, the client is what it was. */
static void refused(struct replica *p, const char *data, size_t len) {
    struct session *s = p->session;
    text_append(&p->error, data, len);
    if (p->error.data[p->error.len - 1] != '\n')
        return;
    put(s, p->error.data, p->error.len);
    replica_drop(s);
    session_mark_runnable(s);
}

static void stream_bytes(void *arg, const char *data, size_t len, bool last) {
    struct replica *p = arg;
    struct session *s = p->session;
    if (!p->streams) /* a push, which nobody has asked for */
        return;
    if (!p->answered && (p->error.len > 0 || data[0] == '-')) {
        refused(p, data, len);
        return;
    }
    if (!p->answered)
        session_mark_runnable(s); /* with what it has sent meanwhile */
    p->answered = true;
    put(s, data, len);
    if (!p->paused && s->out.unsent > HOLD)
        upstream_pin_pause(p->pin, p->paused = true);
}

bool replica_written(struct session *s) {
    struct replica *p = s->replica;
    if (!replica_streams(s))
        return false;
    if (p->paused && s->out.unsent < LOW)
        upstream_pin_pause(p->pin, p->paused = false);
    return true; /* its node is not read on meanwhile, and has a limit for replicas */
}

static void node_lost(void *arg, const char *error) {
    struct session *s = ((struct replica *)arg)->session;
    log_warning("client %llu (%s): closed: the node whose replica it is: %s", (unsigned long long)s->lock.id,
                s->address, error);
    session_close(s, "its node was lost");
}

static struct replica *replica_get(struct session *s, const char **error) {
    if (s->replica)
        return s->replica;
    struct replica *p = memory_zalloc(sizeof(*p));
    struct upstream_pin_events events = {.arg = p, .message = stream_bytes, .lost = node_lost};
    p->session = s;
    p->pin = pin_take(s, upstream_any_node(s->worker->upstream, 0), PIN_REPLICA, &events, error);
    if (p->pin) {
        s->replica = p;
        s->hears |= HEARS_WRITTEN;
        return p;
    }
    memory_free(p);
    return NULL;
}

/* Replicas get no answer to these. */
static bool is_silent(const struct command *c, const struct resp_request *r, const char *bytes) {
    return c->id == COMMAND_REPLCONF && r->argc > 1 &&
           (request_arg_is(r, bytes, 1, "ack") || request_arg_is(r, bytes, 1, "getack"));
}

enum dispatch_result replica_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                      const char *bytes) {
    const char *error;
    if (s->in_flight > 0)
        return DISPATCH_WAIT;
    struct replica *p = replica_get(s, &error);
    if (!p) {
        session_refuse(s, c, "%s", error);
    } else if (is_silent(c, r, bytes)) {
        upstream_pin_send(p->pin, bytes, r->len);
    } else if (c->id == COMMAND_REPLCONF) {
        call_submit_pin(&request_new(s, c)->call, p->pin, bytes, r->len, false);
    } else {
        p->streams = true;
        upstream_pin_patient(p->pin, PIN_PATIENT);
        upstream_pin_raw(p->pin);
        upstream_pin_send(p->pin, bytes, r->len);
    }
    return DISPATCHED;
}

enum dispatch_result replica_request(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes) {
    if (!s->replica->answered && !(c && c->id == COMMAND_REPLCONF))
        return DISPATCH_WAIT; /* it may be no replica after all */
    if (c && (c->need == NEED_REPLICATION || c->id == COMMAND_PING)) {
        upstream_pin_send(s->replica->pin, bytes, r->len);
        return DISPATCHED;
    }
    log_warning("client %llu (%s): closed: it is a replica, and sent %s", (unsigned long long)s->lock.id, s->address,
                c ? c->name : "an unknown command");
    session_finish(s);
    return DISPATCHED;
}
