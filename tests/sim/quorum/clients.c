/*
 * Clients: each has a connection to a proxy, and one worker, which acquires, works, extends and releases. It takes its
 * lock for its own for as long as its clock says, from the moment before it asked; or, if the proxy renews the lease,
 * from the moment before the proxy sent a renewal that Redis and the witnesses have confirmed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/session/core/class.h"
#include "proxy/session/locks/lock_commands.h"
#include "proxy/session/locks/locks.h"
#include "tests/sim/quorum/quorum_world.h"

enum { NO_SOCKET = 1 << 20, REPLY_MAX = 400, AGAIN_MS = 5 };

static struct worker *worker_of(struct world *w, const struct q_client *c) {
    return &w->proxies[c->proxy].worker;
}

static unsigned number_of(const struct world *w, const struct q_client *c) {
    return (unsigned)(c - w->clients);
}

static int64_t client_now(const struct world *w, const struct q_client *c) {
    return q_clock_at(&c->clock, w->now_ms);
}

static struct lock_key lock_of(unsigned key) {
    static const char *const names[Q_KEYS] = {"lock:0", "lock:1", "lock:2"};
    return (struct lock_key){.name = names[key], .len = 6};
}

/* ---- S8 ------------------------------------------------------------------------------------------------- */

/* Whether the client takes the lock for its own. */
static bool holds(const struct world *w, const struct q_client *c) {
    return (c->doing == Q_HOLDS || c->doing == Q_EXTENDS) && client_now(w, c) < c->end_ms;
}

void clients_renewed(struct q_proxy *p, unsigned key, int64_t lease_ms) {
    struct world *w = p->world;
    struct lock_key lock = lock_of(key);
    int64_t now_ms = worker_now(&p->worker);
    for (unsigned i = 0; i < Q_CLIENTS; i++) {
        struct q_client *c = &w->clients[i];
        if (!c->session || &w->proxies[c->proxy] != p || c->key != key || !c->renewed || c->doing != Q_HOLDS ||
            engine_writing(p->shared.engine, &c->session->lock, &lock, now_ms).how != WRITER_HOLDS)
            continue;
        int64_t end_ms = q_clock_at(&c->clock, p->renews_ms[key]) + lease_ms;
        if (end_ms > c->end_ms)
            c->end_ms = end_ms;
        w->totals.renewals++;
    }
}

void clients_check(struct world *w) {
    const struct q_client *holder[Q_KEYS] = {NULL};
    for (unsigned i = 0; i < Q_CLIENTS; i++) {
        const struct q_client *c = &w->clients[i];
        if (!holds(w, c))
            continue;
        if (holder[c->key])
            world_fail(w, "S8", "clients %u and %u both hold lock:%u", number_of(w, holder[c->key]), i, c->key);
        holder[c->key] = c;
    }
}

/* ---- what a client sends --------------------------------------------------------------------------------- */

static void word(struct text *t, const char *text) {
    text_printf(t, "$%zu\r\n%s\r\n", strlen(text), text);
}

/* Writes the client's next command. */
static void command_write(struct q_client *c, struct text *t) {
    const char *name = lock_of(c->key).name;
    char value[48], ms[24];
    snprintf(value, sizeof(value), "v%" PRIu64, c->number);
    snprintf(ms, sizeof(ms), "%" PRId64, c->ms);
    bool expires = c->ms > 0 && !c->lent;
    switch (c->doing) {
    case Q_ACQUIRES:
        text_printf(t, "*%d\r\n", expires ? 6 : 3);
        word(t, expires ? "SET" : "SETNX");
        word(t, name);
        word(t, value);
        if (expires) {
            word(t, "NX");
            word(t, "PX");
            word(t, ms);
        }
        break;
    case Q_EXTENDS:
        text_printf(t, "*3\r\n");
        word(t, "PEXPIRE");
        word(t, name);
        word(t, ms);
        break;
    default:
        text_printf(t, "*2\r\n");
        word(t, "DEL");
        word(t, name);
    }
}

/* Dispatches a command as the session does. False: it has to come again. */
static bool dispatch(struct session *s, const struct text *bytes) {
    struct resp_limits limits = {.bulk_max = INT64_MAX};
    struct resp_request r;
    struct request_class k;
    struct lock_command lc;
    resp_request_init(&r);
    if (resp_request_scan(&r, bytes->data, bytes->len, &limits) != RESP_OK)
        abort();
    class_find(&k, s, command_of_request(&r, bytes->data), &r, bytes->data);
    size_t len;
    const char *key = class_key(&k, 0, &len);
    bool sent = !lock_must_wait(s, key, len);
    if (lock_meaning_of(&k, &lc) != MEANS_LOCK)
        abort();
    sent = sent && lock_dispatch(s, k.command, &r, bytes->data, &lc, 1, class_rule(&k, 0)) == DISPATCHED;
    class_clear(&k);
    resp_request_clear(&r);
    return sent;
}

static void client_send(struct world *w, struct q_client *c) {
    struct text bytes = {0};
    int64_t end_ms = client_now(w, c) + (c->ms > 0 && !c->lent ? c->ms : w->lease_ms);
    if (c->doing == Q_EXTENDS && end_ms < c->end_ms)
        c->end_ms = end_ms; /* it may be shorter from now on */
    c->asked_ms = end_ms;
    command_write(c, &bytes);
    world_event(w, "client %u at proxy %u: %s lock:%u, %" PRId64 " ms", number_of(w, c), c->proxy,
                c->doing == Q_ACQUIRES  ? "acquires"
                : c->doing == Q_EXTENDS ? "extends"
                                        : "releases",
                c->key, c->ms);
    turn_begin(&w->proxies[c->proxy]);
    c->sent = dispatch(c->session, &bytes);
    c->act_ms = w->now_ms + AGAIN_MS;
    text_clear(&bytes);
    turn_end(w);
}

/* ---- what a client hears ---------------------------------------------------------------------------------- */

static void rest(struct world *w, struct q_client *c) {
    c->doing = Q_IDLE;
    c->end_ms = 0;
    c->act_ms = w->now_ms + world_below(w, world_chance(w, 80) ? 1500 : 100);
}

static void acquired(struct world *w, struct q_client *c) {
    struct worker *v = worker_of(w, c);
    struct lock_key key = lock_of(c->key);
    struct lock_writing lease = engine_writing(v->shared->engine, &c->session->lock, &key, worker_now(v));
    if (lease.fence <= w->fences[c->key])
        world_fail(w, "S2", "lock:%u has fence %" PRIu64 ", after %" PRIu64, c->key, lease.fence, w->fences[c->key]);
    w->fences[c->key] = lease.fence;
    w->acquired[c->key]++;
    w->totals.acquired++;
    c->doing = Q_HOLDS;
    c->end_ms = c->asked_ms;
    c->until_ms = w->now_ms + world_below(w, world_chance(w, c->renewed ? 50 : 70) ? 200 : (unsigned)(3 * w->lease_ms));
    c->act_ms = w->now_ms + world_below(w, 200);
    if (c->lent)
        c->act_ms = w->now_ms;
}

static void client_hears(struct world *w, struct q_client *c, const char *reply) {
    bool yes = strncmp(reply, ":1", 2) == 0 || *reply == '+', error = *reply == '-';
    world_event(w, "client %u hears %.*s", number_of(w, c), (int)strcspn(reply, "\r"), reply);
    c->sent = false;
    w->totals.errors += error;
    if (c->doing == Q_ACQUIRES) {
        w->totals.refused += !yes && !error;
        if (yes)
            acquired(w, c);
        else
            rest(w, c);
        if (error)
            c->doing = Q_RELEASES; /* it may have the lock */
    } else if (c->doing == Q_EXTENDS) {
        w->totals.extended += yes;
        w->totals.not_extended += !yes;
        c->renewed = c->renewed && !yes;
        c->doing = Q_HOLDS;
        if (yes)
            c->end_ms = c->asked_ms;
        if (!yes && !error)
            rest(w, c);
    } else {
        w->totals.released += yes;
        rest(w, c);
        if (error)
            c->doing = Q_RELEASES;
    }
}

void clients_read(struct world *w) {
    for (unsigned i = 0; i < Q_CLIENTS; i++) {
        struct q_client *c = &w->clients[i];
        if (!c->session || &w->proxies[c->proxy] != w->here || c->session->out.unsent == 0)
            continue;
        char copy[REPLY_MAX], reply[REPLY_MAX];
        const char *at;
        size_t len = iobuf_peek(&c->session->out, copy, sizeof(copy) - 1, &at);
        snprintf(reply, sizeof(reply), "%.*s", (int)len, at);
        iobuf_skip(&c->session->out, len);
        client_hears(w, c, reply);
    }
}

/* ---- what a client does ------------------------------------------------------------------------------------ */

/* Connects to some proxy. False: none runs there. */
static bool connect_to(struct world *w, struct q_client *c) {
    char address[32];
    unsigned proxy = world_chance(w, 70) ? c->proxy : world_below(w, Q_PROXIES);
    struct q_proxy *p = &w->proxies[proxy];
    if (!p->runs || p->ends)
        return false;
    snprintf(address, sizeof(address), "10.0.%u.%u:%u", c->moved % 256, number_of(w, c), 1000 + world_below(w, 60000));
    c->proxy = proxy;
    turn_begin(p);
    c->session = session_new(&p->worker, NO_SOCKET, NULL, address);
    turn_end(w);
    return true;
}

void client_leave(struct world *w, struct q_client *c, bool dies) {
    struct session *s = c->session;
    world_event(w, "client %u's connection is lost%s", number_of(w, c), dies ? ", and its worker dies" : "");
    c->session = NULL;
    c->act_ms = w->now_ms + world_below(w, 1000);
    c->moved += c->sent && c->doing == Q_RELEASES; /* else its late release could end its own next lease */
    if (dies || w->releases || (c->sent && c->doing != Q_EXTENDS))
        rest(w, c); /* its lock goes with its connection; or it does not know what has come of its command */
    else if (c->doing == Q_EXTENDS)
        c->doing = Q_HOLDS;
    c->sent = false;
    if (!s)
        return;
    turn_begin(&w->proxies[c->proxy]);
    session_close(s, "its client has left");
    turn_end(w);
}

static int64_t some_expiry(struct world *w) {
    return 300 + world_below(w, world_chance(w, 60) ? 1000 : (unsigned)w->longest_ms - 300);
}

static void begin(struct world *w, struct q_client *c) {
    c->doing = Q_ACQUIRES;
    c->key = world_below(w, Q_KEYS);
    c->number++;
    c->renewed = world_chance(w, 50);
    c->lent = !c->renewed && world_chance(w, 30);
    c->ms = c->renewed ? 0 : some_expiry(w);
}

/* A worker that holds its lock: it extends its lease now and then, and releases at the end. */
static bool work(struct world *w, struct q_client *c) {
    if (c->lent) {
        c->lent = false;
        c->doing = Q_EXTENDS;
        c->renewed = false;
        return true;
    }
    if (w->now_ms >= c->until_ms) {
        bool silent = !c->renewed && world_chance(w, 5); /* else its proxy would renew it for ever */
        c->doing = Q_RELEASES;
        if (silent)
            rest(w, c);
        return !silent;
    }
    c->act_ms = w->now_ms + 1 + world_below(w, 500);
    if (c->renewed || !world_chance(w, 40))
        return false;
    c->ms = some_expiry(w);
    c->doing = Q_EXTENDS;
    return true;
}

void client_act(struct world *w, struct q_client *c) {
    c->act_ms = w->now_ms + AGAIN_MS;
    if (c->sent || w->now_ms < w->proxies[c->proxy].stopped_until_ms)
        return;
    if (!c->session && !connect_to(w, c))
        return;
    if (c->doing == Q_IDLE)
        begin(w, c);
    if (c->doing != Q_HOLDS || work(w, c))
        client_send(w, c);
}
