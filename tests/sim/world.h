/*
 * The simulated world: one model Redis, one or two real engines before it, processes with workers and connections,
 * commands under way, and what a spectator knows that sees everything.
 *
 *      worker ── command ──> connection ── engine_begin ──> flight ── script on the model ──> engine_finish ──> worker
 *                                                             │
 *                             lost, repeated, late, unknown <─┘          check.c looks on at every step
 */
#ifndef LOCKKEEPER_SIM_WORLD_H
#define LOCKKEEPER_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/fences.h"
#include "tests/sim/model.h"
#include "tests/sim/transactions.h"
#include "tests/sim/waits.h"

#define OUTSIDE "outside" /* a value that no client behind the proxies writes */

enum {
    PROXIES = 2,
    PROCESSES = 3,
    WORKERS_EACH = 4,
    WORKERS = PROCESSES * WORKERS_EACH + 1, /* and the stranger */
    STRANGER = WORKERS - 1,
    CONNS = WORKERS,
    IDENTITIES = PROCESSES + 1 + CONNS, /* a process's, the stranger's, a connection's own */
    FLIGHTS = 160,
    PIPELINE = 4,
    SESSIONS_KNOWN = 1024, /* whose ends are remembered */
    NESTS = 2              /* locks that a worker has while it tries for another */
};

enum connections { CONN_OWN, CONN_POOL, CONN_SHARED }; /* D, P, M */

enum idiom {
    IDIOM_SETNX,        /* SETNX, GETEX now and then, DEL */
    IDIOM_SETNX_EXPIRE, /* SETNX, PEXPIRE also after a lost attempt, DEL */
    IDIOM_CONST,        /* SET NX PX with a constant, DEL */
    IDIOM_UNIQUE,       /* SET NX PX with a value of its own, DEL */
    IDIOM_COMPARE,      /* the same, GET, compare, DEL */
    IDIOM_EXTENDING,    /* the same as UNIQUE, PEXPIRE now and then, also after the lease */
    IDIOM_GETDEL,       /* SET NX GET PX, GETDEL */
    IDIOM_PLAIN_SET,    /* GET nothing, SET PX, DEL */
    IDIOM_SHORTEN,      /* SET NX PX, SET XX PX 1 */
    IDIOM_DEADLINE,     /* SETNX deadline, GET, GETSET */
    IDIOM_COUNT,        /* INCR, PEXPIRE, DECR */
    IDIOM_THROTTLE,     /* SET NX PX and no release */
    IDIOM_SCRIPT,       /* Lua SET NX PX, Lua or bare PEXPIRE, Lua compare and DEL */
    IDIOM_MULTI,        /* MULTI SETNX PEXPIRE EXEC or MULTI SET NX PX EXEC, MULTI DEL EXEC */
    IDIOM_WATCH,        /* SET NX PX in MULTI, or WATCH GET MULTI SET PX EXEC; WATCH GET MULTI DEL EXEC */
    IDIOM_QUEUE,        /* RPUSH, LINDEX 0 until it is one's own, LREM; scenarios of list locks alone */
    IDIOM_REENTRANT,    /* EXISTS 0, RPUSH, LSET now and then, LREM; of list locks alone */
    IDIOM_HASH,         /* Lua: one owner as often as it likes, a watchdog, out; scenarios of hash locks alone */
    IDIOM_READ,         /* Lua: many readers; of hash locks alone */
    IDIOM_FIELD,        /* HSETNX, HDEL or DEL; of hash locks alone */
    IDIOM_KINDS,
    STRING_IDIOMS = IDIOM_QUEUE
};

enum phase {
    PHASE_START,
    PHASE_LOOK, /* GET before acquiring */
    PHASE_ACQUIRE,
    PHASE_SWAP,
    PHASE_EXPIRE, /* PEXPIRE behind the acquisition */
    PHASE_HOLD,
    PHASE_COMPARE, /* GET before releasing */
    PHASE_RELEASE,
    PHASE_FINALLY, /* a release that follows no acquisition */
    PHASE_STRANGE, /* the stranger's next command */
    PHASE_VACANT,  /* list locks: EXISTS */
    PHASE_PUSH,
    PHASE_WAIT /* LINDEX 0 */
};

/* What one run is like; drawn from its seed. */
struct scenario {
    uint64_t seed;
    enum connections connections;
    unsigned proxies, processes, workers, conns, keys; /* workers and conns a process */
    uint32_t idioms;                                   /* a bit each */
    unsigned idiom_count;
    bool library;     /* sessions name one that pools */
    bool eventful;    /* more of what follows than elsewhere */
    bool deaths;      /* workers die, others take their place */
    bool reconnects;  /* connections are lost and made again */
    bool restarts;    /* proxies are */
    bool loses;       /* replies get lost: repeats, unknown outcomes, scripts that run late */
    bool outside;     /* commands around the proxy */
    bool operators;   /* PROXY RELEASE */
    bool finals;      /* DEL after a failed acquisition */
    bool strays;      /* DEL out of nothing */
    bool silent;      /* some holders never release */
    bool punctual;    /* ticks and renewals are on time */
    bool pauses;      /* workers stop in the middle of what they do, for longer than a lease at times */
    bool slow;        /* some answers are long on their way */
    unsigned rebirth; /* how likely a dead worker is to come back when its turn comes, in percent */
    bool pipelines;   /* a shared connection has several commands under way, answered in order */
    bool reloads;     /* the rule is replaced by one like it */
    bool audit;       /* it begins in audit, and a reload enforces it; with `toggles` back and forth */
    bool toggles;
    bool audit_exact;  /* what was acquired under audit is safe from the moment that the rule is enforced */
    bool queue;        /* list locks */
    bool hash;         /* hash locks */
    bool stranger;     /* a client of another identity sends what it likes */
    bool names;        /* each connection calls itself by a name of its own, and its next one by the same */
    bool renames;      /* connections change their names */
    bool transactions; /* the stranger uses them, too */
    bool discards;     /* and they are discarded now and then */
    bool waits;        /* the rule has `wait` */
    unsigned threads;  /* of a proxy; and of each the connections to Redis */
    unsigned upstreams;
    unsigned delay_ms; /* of each way to Redis and back, at most */
    bool nests;        /* workers that hold a lock try for others */
    bool ring;         /* each for its neighbour's */
    bool fences;       /* workers write data under their locks */
    bool elsewhere;    /* which is in another slot */
    bool unlocked;     /* and no other worker may (`unlocked refuse`) */
    bool deaf;         /* messages of releases get lost */
    bool skewed;       /* the proxies' clocks differ */
    bool clocks;       /* clocks are set, Redis's and the proxies' */
    bool sharded;      /* a cluster of two nodes: releases are told over the channels of slots, */
    bool moves;        /* which move, */
    bool old;          /* and which these nodes do not know */
    int64_t expiry_ms;
    struct lock_rule rule;
    /* What the table at the end of the lock semantics promises for this. */
    bool apart;       /* the wire tells each worker from the others */
    bool queue_kept;  /* and stays it while it is connected, also where it has reconnected */
    bool queue_exact; /* a worker that sees itself at the head is the holder; two that saw no queue don't both push */
    bool never_wrong, never_kept, kept_after_end_only, kept_after_sight_only;
};

/* A lock that a worker has, and leaves alone while it tries for another. */
struct held_lock {
    int key;
    enum idiom idiom;
    uint64_t fence; /* this and what follows are as in the worker itself */
    bool holds;
    int64_t until_ms, lost_ms;
    char value[MODEL_VALUE];
};

struct app_worker {
    int process; /* -1: the stranger */
    bool alive;
    enum idiom idiom;
    enum phase phase;
    int key;
    bool busy;        /* a command under way */
    uint64_t fence;   /* of the lease it acquired and has not sent the release of; 0 none */
    bool holds;       /* it believes to hold this lease, and rightly so far */
    int64_t until_ms; /* the end of its work */
    int64_t pause_ms; /* it does nothing before then */
    int64_t lost_ms;  /* when its lease ended, 0 not yet */
    bool in_queue;    /* it has pushed its value as a node, and still wants it */
    int64_t read_ms;  /* when it last showed that it is there */
    uint64_t seat;    /* the session over which it saw itself at a queue's head; 0 none, or it may have been lost */
    bool lapsed;      /* and was silent for longer than a lease once */
    unsigned times;   /* that it has entered a hash lock */
    unsigned lives;
    uint64_t again; /* the session on which its release got lost, 0 none */
    struct transaction *transaction;
    struct held_lock under[NESTS];
    unsigned depth; /* so many of them */
    char value[MODEL_VALUE], expected[MODEL_VALUE];
};

/* What a connection was last shown. */
struct reading {
    bool known;
    uint64_t fence; /* 0: of no lease, or the answer did not say of which */
    long step;      /* answered */
    int64_t at_ms;
    char value[MODEL_VALUE];
};

struct conn {
    bool open;
    bool reserved; /* of a worker that has a transaction on it */
    unsigned busy; /* commands under way */
    bool alias;    /* it has a name of its own */
    int process, proxy;
    int worker; /* its only one, or -1 */
    uint64_t id;
    int64_t came_ms; /* to its identity */
    struct lock_session session;
    struct reading read[MODEL_KEYS];
    int64_t lost_ms[MODEL_KEYS]; /* when its last attempt was lost; 0: it was not */
};

enum flight_kind { FLIGHT_COMMAND, FLIGHT_OPERATOR, FLIGHT_RENEWAL, FLIGHT_RELEASE, FLIGHT_LEAVE };

struct flight {
    bool used, ran;
    int64_t ends_ms; /* the end of the lock that the application's script found, 0 none */
    bool scripted;   /* the application's script has run; adopt.lua, right behind it, counts as `ran` */
    bool named;      /* that script names what the lock is held with */
    bool together;   /* the two are one transaction */
    bool found_free; /* it found no lock */
    bool repeated;   /* ran more than once */
    bool denied;     /* a push that was refused when it ran before */
    bool unsent;     /* it never reached Redis */
    bool orphan;     /* its session or worker is gone, its proxy finishes it */
    bool ghost;      /* its proxy has given it up as well, and yet it may run */
    bool seated;     /* a release by the proxy: the lease was live for its token, perhaps for others as well */
    bool crossed;    /* others on the key were under way meanwhile */
    bool bare;       /* GET in a form that is no script of ours (MGET): the proxy only watches the answer */
    bool again;      /* a release on the connection where the same one got lost */
    bool slow;       /* its answer is long on its way */
    bool waits;      /* a renewal that waits for a connection: it is not sent if it is not needed any more */
    bool held;       /* it waits, and is not on its way */
    bool tells;      /* a release by the proxy, under a rule with `wait` */
    bool handed;     /* a release, with the attempt of a waiter right behind it */
    enum flight_kind kind;
    struct waits_call *call;         /* waits.c's, of an attempt that may wait */
    unsigned lane;                   /* the thread's connection to Redis that it goes over */
    int64_t due_ms;                  /* its next step is made by then */
    int64_t here_ms, next_ms;        /* the arguments about waiting attempts for its script */
    struct transaction *transaction; /* it is one of its commands */
    int worker, conn, proxy, key;
    unsigned proxy_life;
    long begun_step;
    uint64_t session_id, order; /* order: that it was sent in */
    bool releases;              /* the worker means to release with it */
    uint64_t own_fence;         /* of the lease that its worker had when it was sent */
    bool shares, may_share;     /* it counted as sharing them: surely; at least in appearance */
    bool was_own;               /* the live lease was the worker's when it ran */
    bool ended_other;           /* it has ended the lease that another worker had been told of */
    uint64_t read_fence;        /* last read of its session when it was sent */
    uint64_t client_read_fence; /* and the newest lease that its client's sessions at that proxy last read */
    bool client_mixed;          /* and one has read another value, of a lease that is not known */
    bool was_shown;             /* its session's last reading */
    bool loser;                 /* its session's last attempt was lost, and not long ago */
    bool client_read_foreign;   /* none of its client's sessions has read a lease, and they were shown a value lately */
    /* The values: its session's; of that newest lease; the last one that no answer said was a lease's. */
    char shown[MODEL_VALUE], client_shown[MODEL_VALUE], client_shown_foreign[MODEL_VALUE];
    int name; /* its session's, and how often that had been left when it was sent */
    unsigned left;
    int64_t ran_ms;
    struct lock_plan plan;
    struct model_command command;
    struct model_envelope envelope;
    char identity[MODEL_NAME];
    uint64_t token; /* renewals and releases by the proxy */
    char token_text[LOCK_TOKEN_MAX];
    const char *right;
    int64_t lease_ms, left_ms;
    struct lock_rules *rules; /* a reference that keeps the plan's rule alive */
    bool observed;            /* it was sent while the rule was in audit: as it came */
    uint64_t watched;
};

struct proxy {
    struct lock_engine *engine;
    unsigned life;
    char id[40];
    struct world *world;
    int index;
};

/* A lease as the spectator sees it. */
struct truth {
    bool live, told;
    bool observed;   /* acquired under audit, and no script of ours has touched it: its fence is a number of our own */
    bool unclear;    /* it can't be told what the engine believes of it */
    bool sighted;    /* its client was shown its value */
    bool own_expiry; /* its proxy was told that the expiry is the application's */
    bool leased_elsewhere; /* another proxy was told that it is not any more (PERSIST): its own need not know */
    bool renewal_lost;     /* its last renewal was done, and the answer to it got lost */
    uint64_t fence, max_fence, session_id;
    int worker, process, proxy; /* worker -1: the lease is forgotten */
    int name;                   /* its session's, as flights have it */
    unsigned left;
    int64_t granted_ms, told_ms;
    uint64_t heir; /* the first session that came to its owner's identity behind the owner's session; 0 none yet,
                    * UINT64_MAX: its proxy has restarted, and knows of none */
    long told_step, end_told_step; /* that it was granted; its end, last */
    char token[LOCK_TOKEN_MAX];
    char node[QUEUE_NODE];   /* of a list lock */
    char value[MODEL_VALUE]; /* observed: what was written */
};

enum cause { BY_TIME, BY_COMMAND, BY_OUTSIDE };

struct world {
    struct scenario sc;
    struct lock_rules *rules; /* the present ones */
    const struct lock_rule *rule;
    uint64_t random;
    int64_t
        set_back_ms; /* when Redis's clock was set back last: leases of before last longer than their proxies know */
    int64_t closed_ms[SESSIONS_KNOWN]; /* by the session's number */
    int64_t heard_ms[SESSIONS_KNOWN];  /* by its number: when its last answer came, perhaps after its end */
    uint64_t session_ids, values, observed_leases, sent;
    struct model redis;
    struct proxy proxies[PROXIES];
    struct waits *waits;   /* NULL: no worker waits */
    struct fences *fences; /* NULL: no worker writes data */
    struct app_worker workers[WORKERS];
    struct conn conns[CONNS];
    struct flight flights[FLIGHTS];
    struct transaction transactions[TRANSACTIONS];
    struct truth truth[MODEL_KEYS];
    unsigned ended_unreleased[PROCESSES][MODEL_KEYS], ended_sighted[PROCESSES][MODEL_KEYS];
    bool unsure[PROCESSES][MODEL_KEYS]; /* a command's outcome got lost */
    bool closing;                       /* all workers have left */
    uint32_t raised;                    /* incidents since an answer began to be told, a bit each */
    bool pooled[IDENTITIES];            /* a proxy has taken its connections for a pool's, and said so */
    unsigned left[PROXIES][IDENTITIES]; /* how often the last connection of that name was gone */
    bool enforced;                      /* the rule has been so once */
    bool stirred[MODEL_KEYS];           /* a script of the application's has run, and adopt.lua not yet */
    int64_t slack_ms[MODEL_KEYS];       /* the longest that an answer took */
    int64_t storm_until_ms;             /* answers to renewals get lost */
    bool exact[MODEL_KEYS];             /* the last answer that told the lease's end crossed no other */
    bool missed[MODEL_KEYS];            /* its proxy was told of its end before it knew that there was such a lease */
    uint64_t wrong, kept, granted, lost, renewals;
    uint64_t waited, published;       /* attempts that waited; messages of releases */
    uint64_t circles[MODEL_KEYS + 1]; /* that were found, by how many were in them */
    long step;
    bool log, tell; /* write events down; print them */
    const char *failure;
    char failure_text[256];
    char head[MODEL_KEYS][QUEUE_NODE]; /* of a list lock, and since when */
    int64_t head_ms[MODEL_KEYS];
    char events[40][160];
    unsigned event_count;
};

uint64_t world_random(struct world *w);
unsigned world_below(struct world *w, unsigned n);
bool world_chance(struct world *w, unsigned percent);
void world_event(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void world_fail(struct world *w, const char *rule, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* What a run is to be about in any case. */
enum about { ABOUT_ANYTHING, ABOUT_LISTS, ABOUT_WAITS, ABOUT_FENCES };
void scenario_draw(struct scenario *sc, uint64_t seed, enum about about);
void scenario_print(const struct scenario *sc);

void world_open(struct world *w, uint64_t seed, enum about about, bool log, bool tell);
void world_close(struct world *w);
/* The clock is put on, and what has expired is gone. */
void world_advance(struct world *w, int64_t to_ms);
/* Sets Redis's clock forward or back. */
void world_set_clock(struct world *w, int64_t by_ms);
/* A proxy releases a lease by itself. */
void world_release(struct world *w, int proxy, const struct lock_lease *lease);
/* Lets one thing happen. */
void world_step(struct world *w);
/* All clients leave; time passes; L1. */
void world_end(struct world *w);

struct lock_key world_key(int key);
/* The number of the name that a connection has, and its text. */
int world_name(const struct world *w, int conn);
void world_identity(int name, char *out);
/* Whether a proxy has taken a client's connections for a pool's although each is one worker's: what was promised of its
 * workers among each other holds no more. main.c bounds how often. */
bool world_mistaken(const struct world *w, int name);
const char *world_outcome(enum lock_outcome o);
void conn_open(struct world *w, int i);
/* The connection is lost to its worker; what is under way on it goes on without. */
void conn_forget(struct world *w, int i, bool proxy_gone);
void conn_close(struct world *w, int i);
/* CLIENT SETNAME, to a name of its own or away from it. */
void conn_rename(struct world *w, int i);
void proxy_restart(struct world *w, int i);

/* rules.c: the rule, and reloads. */
void rules_open(struct world *w);
void rules_close(struct world *w);
void rules_reload(struct world *w);

/* flight.c: commands under way. */
struct flight *flight_new(struct world *w, enum flight_kind kind);
void flight_free(struct flight *f);
unsigned flight_places(const struct world *w);
struct flight *flight_any(struct world *w);
/* Notes that it is under way beside others. */
void flight_crosses(struct world *w, struct flight *f);
void flight_launch(struct world *w, struct flight *f, int conn, int key);
/* Whether a worker had something to send. */
bool flight_somebody_sends(struct world *w);
void flight_run(struct world *w, struct flight *f);
void flight_deliver(struct world *w, struct flight *f);
/* Has its answer arrive, whether it waits or not. */
void flight_end(struct world *w, struct flight *f);
/* The proxy learns nothing but this; it stays where it may still run. */
void flight_fail(struct world *w, struct flight *f, enum lock_outcome outcome);
/* What happens to it next, by chance. */
void flight_progress(struct world *w, struct flight *f);
void flight_log(struct world *w, const struct flight *f, const char *what);

/* reading.c: what became of an attempt, as its session is told. */
void reading_attempted(struct world *w, const struct flight *f);
/* The flight's session was shown the key's value, of the lease with that fence; 0: not known of which. */
void reading_shown(struct world *w, const struct flight *f, uint64_t fence);
/* Whether the flight's client counts as sharing its connections, and what they have read. */
void reading_note(struct world *w, struct flight *f);
/* Whether that was among it: the value, of the lease with this fence, or of a lock that is no lease (0). */
bool reading_covers(const struct flight *f, uint64_t fence, const char *value);

/* trouble.c: what goes wrong. */
void trouble_strikes(struct world *w);

/* watched.c: commands under audit, and what becomes of the locks that they have made. */
void watched_launch(struct world *w, struct flight *f, enum lock_verb verb);
void watched_run(struct world *w, struct flight *f);
/* The engine is told: what the reply says, or that there is none. */
void watched_answer(struct world *w, struct flight *f);
void watched_lost(struct world *w, struct flight *f, enum lock_outcome outcome);
/* Whether the lock still is what was acquired under audit, no script having touched it. */
bool watched_stands(struct world *w, int key);
/* A script of ours has made it a lease like others. */
void watched_enrolled(struct world *w, const struct flight *f, const struct model_guard *g);

/* list_worker.c: the same as worker.c's, for list locks. */
bool list_worker_command(struct world *w, int worker, struct model_command *c, bool *releases);
void list_worker_answer(struct world *w, int worker, const struct flight *f, bool lost);
/* check_list.c: the same as check.c's. `queue` is the queue as it was. */
void check_list_script(struct world *w, struct flight *f, const struct model_queue *queue);
void check_list_expired(struct world *w, int key);
void check_list_belief(struct world *w, int worker, const struct flight *f);
/* check_state.c: what a script has left behind agrees in itself, and nothing was swapped, nor a lock of no session
 * touched, without having been read. `before` is the key as it was. */
void check_left(struct world *w, const struct flight *f, const struct model_key *before);
/* A swap of what all of a client's connections have read. */
void check_foreign_swap(struct world *w, const struct flight *f, const struct model_key *before);
/* What the engines believe (PROXY LOCKS) is so, for keys with nothing on its way. */
void check_ledgers(struct world *w);
/* The proxy wants something of Redis that no client has asked for. */
void check_unasked(struct world *w);
/* check.c: the key's live lease, or NULL. */
const struct model_guard *check_live(struct world *w, int key);
void check_lease_ended(struct world *w, int key);
void check_ended_by_other(struct world *w, const struct flight *f, const struct truth *t);
void worker_give_up(struct world *w, int worker);
/* The lock of that lease, among the locks that a worker has while it tries for another; NULL: it is not. */
struct held_lock *worker_under(struct app_worker *k, uint64_t fence);

/* worker.c: what workers send, and what they make of the answers. */
bool worker_command(struct world *w, int worker, struct model_command *c, bool *releases);
void worker_sent(struct world *w, int worker, const struct model_command *c, bool releases);
void worker_answer(struct world *w, int worker, const struct flight *f, bool lost);
void worker_start_again(struct world *w, int worker);
/* What a worker that is gone had sent did not leave: if it was a release, its lease may have ended meanwhile. */
void worker_left_unsent(struct world *w, const struct flight *f);
const char *idiom_name(enum idiom idiom);
void command_text(const struct model_command *c, char *out, size_t size);

/* check.c: the rules, after every change of the model. `before` is the key as it was, `queue` the queue in it. */
void check_script(struct world *w, struct flight *f, const struct model_key *before);
void check_renewed(struct world *w, const struct flight *f, const struct model_key *before,
                   const struct model_queue *queue);
void check_renewal_asked(struct world *w, const struct proxy *p, const struct lock_lease *lease);
/* Time passed, or a client went around the proxy. */
void check_passed(struct world *w, int key, enum cause cause);
/* Under audit: the engine was told of the flight's answer, and has raised what is in `raised`. */
void check_incidents(struct world *w, const struct flight *f);
/* A session has closed while it held what `held` says, by key: with `on-disconnect release` that is released now. */
void check_abandoned(struct world *w, const bool held[MODEL_KEYS], uint64_t session_id);
/* A proxy was told what a lease's end is; that a renewal's answer got lost. */
void check_told(struct world *w, const struct flight *f);
void check_renewal_lost(struct world *w, const struct flight *f);
/* A session was shown the value of the lease with this fence. */
void check_shown(struct world *w, int process, int key, uint64_t fence);
/* A worker takes itself for the holder now. */
void check_belief(struct world *w, int worker, const struct flight *f);

#endif
