/*
 * Locks under `quorum yes` in a simulated world, for rule S8 (docs/quorum.md). Three proxies with three witnesses stand
 * before one Redis, which fails over:
 *
 *      client ── bytes ──> session ── lock_dispatch ── confirm.c ── witness.c ──> wires ──> servers
 *        │                     the proxy's own code, as it is                      │          │
 *        │                                                  delay, loss, partition ┘          │
 *        └─ S8 <── what its clock says of its lease             Redis forgets, a witness forgets everything
 *
 * Only what is below the proxy's locks is made here: the upstream's calls and libev's (wires.c, proxies.c), on virtual
 * time. Servers run the real scripts in the interpreter (servers.c). Each server, proxy and client has a clock with a
 * rate of its own.
 */
#pragma once

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>

#include "proxy/session/locks/lock_call.h"
#include "tests/sim/interpreter.h"

enum {
    Q_PROXIES = 3,
    Q_WITNESSES = 3,
    Q_REDISES = 2, /* the master, and the one before it, which some proxies may still take for the master */
    Q_SERVERS = Q_REDISES + Q_WITNESSES,
    Q_REPLICAS = 2,
    Q_CLIENTS = 8,
    Q_KEYS = 3,
    Q_TIMERS = 1024,
    Q_LEFT = 32,        /* entries of the list of leases that were left */
    Q_LEFT_BYTES = 320, /* of an entry, at most */
    Q_RATE = 1024,
    Q_RATE_OFF = 31, /* a clock is so many 1024ths fast or slow at most: two of them differ by 1/16 at most */
    Q_TURN_MS = 25000
};

/* What is taken away, to show that S8 then breaks. */
enum q_broken { Q_WHOLE, Q_NO_QUARANTINE, Q_ONE_WITNESS, Q_LAPSED_IS_RELEASED };

/* Goes too fast and too slow in turns, so that it stays near to the others: a Redis's clock makes fences. */
struct q_clock {
    int64_t base_ms, since_ms;
    unsigned off;
};

/* What a Redis keeps, and may forget. */
struct q_data {
    struct model model;
    size_t left_len[Q_LEFT]; /* 0: no entry */
    int64_t left_score[Q_LEFT];
    char left[Q_LEFT][Q_LEFT_BYTES];
};

struct q_server {
    struct q_data data;
    struct q_clock clock;
    int64_t stopped_until_ms;
};

/* One proxy's way to one server. */
struct upstream {
    struct q_proxy *proxy;
    unsigned server;
    int64_t cut_until_ms;
    int64_t there_ms, back_ms; /* when the last message is due there, and back: they keep their order */
};

/* A request on its way, and its answer on the way back. */
struct q_message {
    struct list_node link;
    struct upstream *upstream;        /* NULL: its connection is gone, and it may come all the same */
    struct upstream_request *request; /* NULL: the answer is dropped */
    unsigned server;
    bool ran;
    int64_t sent_ms, due_ms;
    struct text bytes, answer;
};

struct q_timer {
    struct ev_timer *timer; /* NULL: none */
    struct q_proxy *proxy;
    int64_t due_ms;
};

struct q_proxy {
    struct world *world; /* first: the proxy is its loop */
    unsigned index, life;
    bool runs, ends, gone; /* `gone`: nothing that it sends leaves */
    char id[40];
    struct q_clock clock;
    struct worker worker;
    struct proxy_shared shared;
    struct config config;
    struct upstream redis, witnesses[Q_WITNESSES];
    unsigned witness_count;
    struct ev_prepare *prepare;
    int64_t engine_ms, second_ms; /* when the engine is due, and the work of each second */
    int64_t renews_ms[Q_KEYS];    /* when it sent the last renewal of a lock's lease */
    int64_t stopped_until_ms;     /* the process is stopped, and does nothing */
    int64_t back_ms;              /* when it is started again; or, while it ends, when it is gone */
};

enum q_doing { Q_IDLE, Q_ACQUIRES, Q_HOLDS, Q_EXTENDS, Q_RELEASES };

struct q_client {
    struct q_clock clock;
    unsigned proxy;
    struct session *session; /* NULL: not connected */
    enum q_doing doing;
    unsigned key;
    unsigned moved;           /* how often it has come back from another address, as another client */
    bool sent;                /* its command is under way */
    bool renewed;             /* it has set no expiry: the proxy renews its lease */
    bool lent;                /* it has set no expiry yet, and sets one next */
    int64_t ms;               /* the expiry that it asks for; 0: the rule's */
    int64_t end_ms, asked_ms; /* by its clock: when its lease ends; and if the command succeeds */
    int64_t act_ms, until_ms; /* when it does something next; when its work ends */
    uint64_t number;          /* of its values */
};

/* What is counted, and its name for people. */
#define Q_TOTALS(TOTAL)                                                                                                \
    TOTAL(acquired, "acquisitions")                                                                                    \
    TOTAL(refused, "refused")                                                                                          \
    TOTAL(errors, "errors")                                                                                            \
    TOTAL(extended, "extensions")                                                                                      \
    TOTAL(not_extended, "extensions refused")                                                                          \
    TOTAL(released, "releases")                                                                                        \
    TOTAL(renewals, "renewals")                                                                                        \
    TOTAL(remembered, "incidents remembered")                                                                          \
    TOTAL(overtaken, "incidents overtaken")                                                                            \
    TOTAL(raised, "fences raised")                                                                                     \
    TOTAL(given_up, "records given up to a later lease")                                                               \
    TOTAL(moved, "records that followed their lease to another proxy")                                                 \
    TOTAL(quarantined, "answers in quarantine")                                                                        \
    TOTAL(failovers, "failovers")                                                                                      \
    TOTAL(splits, "of them with two masters")                                                                          \
    TOTAL(forgot, "witnesses started again empty")                                                                     \
    TOTAL(restarts, "with their data")                                                                                 \
    TOTAL(crashes, "proxies crashed")                                                                                  \
    TOTAL(handovers, "ended")                                                                                          \
    TOTAL(stops, "stopped for a while")                                                                                \
    TOTAL(calms, "calms")

#define Q_TOTAL_FIELD(name, text) uint64_t name;
#define Q_TOTAL_NAME(name, text)  text,
struct q_totals {
    Q_TOTALS(Q_TOTAL_FIELD)
};

struct world {
    uint64_t random;
    uint64_t seed;
    enum q_broken broken;
    int64_t now_ms;
    int64_t lease_ms, timeout_ms, quarantine_ms, longest_ms, delay_ms;
    long step;
    bool releases; /* the rule has on-disconnect release */
    struct lock_rules *rules;
    struct lock_waits waits;
    struct q_server servers[Q_SERVERS];
    unsigned master;
    struct q_data replicas[Q_REPLICAS];
    struct q_proxy proxies[Q_PROXIES];
    struct q_proxy *here; /* whose turn it is */
    struct q_client clients[Q_CLIENTS];
    struct q_timer timers[Q_TIMERS];
    unsigned timer_count; /* places in use, at most */
    struct list_node messages;
    int64_t slow_until_ms;
    int64_t calm_from_ms, calm_until_ms; /* nothing goes wrong; 0: it does */
    uint64_t calm_acquired[Q_KEYS];
    uint64_t fences[Q_KEYS], acquired[Q_KEYS];
    const char *failure;
    char failure_text[240];
    bool tell;
    struct q_totals totals;
};

uint64_t world_random(struct world *w);
unsigned world_below(struct world *w, unsigned n);
bool world_chance(struct world *w, unsigned percent);
void world_fail(struct world *w, const char *rule, const char *format, ...) __attribute__((format(printf, 3, 4)));
void world_event(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline bool world_calm(const struct world *w) {
    return w->calm_until_ms != 0;
}
struct q_clock q_clock_new(struct world *w);
int64_t q_clock_at(const struct q_clock *c, int64_t now_ms);
/* When the clock will say that. */
int64_t q_clock_when(const struct q_clock *c, int64_t says_ms);

/* servers.c */
void servers_open(struct world *w);
void servers_close(struct world *w);
/* Runs a request, and appends its answer. */
void server_run(struct world *w, unsigned server, const struct text *request, struct text *answer);
/* Whether the request is a release that names the lease by its client's name, and not by its token. */
bool server_released_by_name(const struct text *request);
/* The replica has what the master has. */
void server_follow(struct world *w, unsigned replica);
/* A replica becomes the master, or the master comes back empty. `left` (NULL: chance decides) is the proxy that goes on
 * with the old master. */
void server_fail_over(struct world *w, bool empty, const struct q_proxy *left);
/* A witness is started again; `forgets`: it has lost all. False: another witness may not vote yet. */
bool witness_restart(struct world *w, unsigned witness, bool forgets);
/* Whether the witness votes. */
bool witness_votes(struct world *w, unsigned witness);

/* wires.c */
/* The message that is due first; NULL: none is on its way. */
struct q_message *wires_first(struct world *w);
void wires_deliver(struct world *w, struct q_message *m);
/* The connection is lost. `for_good`: nothing is sent again. */
void wires_reset(struct upstream *u, bool for_good);
/* Loses a connection whose server does not answer. */
void wires_time_out(struct upstream *u);
void wires_heal(struct world *w);
void wires_close(struct world *w);

/* proxies.c */
extern struct world *the_world; /* for what knows no proxy: the clocks, and requests that are abandoned */
void proxy_start(struct world *w, unsigned i);
/* The process is gone, with all its memory. */
void proxy_kill(struct world *w, unsigned i);
/* The proxy begins to end: its clients are let go, and its leases are left to the other proxies. */
void proxy_end(struct world *w, unsigned i);
/* The process is stopped for so long, and then goes on. */
void proxy_stop(struct world *w, unsigned i, int64_t ms);
/* The time at which something of the proxy is due, and what is due then. */
int64_t proxy_due(const struct q_proxy *p);
void proxy_work(struct q_proxy *p);
struct q_timer *timers_first(struct world *w);
void timer_rings(struct world *w, struct q_timer *t);
/* A proxy's turn begins and ends: its jobs run, and clients read what it has answered. */
void turn_begin(struct q_proxy *p);
void turn_end(struct world *w);

/* clients.c */
void client_act(struct world *w, struct q_client *c);
void clients_read(struct world *w);
/* The client's connection is lost, and its worker with it if it `dies`. */
void client_leave(struct world *w, struct q_client *c, bool dies);
/* The proxy's engine hears that a lease is renewed. */
void clients_renewed(struct q_proxy *p, unsigned key, int64_t lease_ms);
/* S8. */
void clients_check(struct world *w);
