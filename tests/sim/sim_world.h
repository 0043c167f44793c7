/*
 * The simulated world: one model Redis, one or two real engines before it, processes with workers and connections,
 * commands under way, and what an observer knows that sees everything.
 *
 *      worker ── command ──> connection ── engine_begin ──> flight ── script on the model ──> engine_finish ──> worker
 *                                                             │
 *                             lost, repeated, late, unknown <─┘          check.c checks every step
 */
#pragma once

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
    WORKERS = PROCESSES * WORKERS_EACH + 1, /* and STRANGER: the only worker of another client */
    STRANGER = WORKERS - 1,
    CONNS = WORKERS,
    IDENTITIES = PROCESSES + 1 + CONNS, /* each process's, STRANGER's, each connection's own */
    FLIGHTS = 160,
    PIPELINE = 4,
    SESSIONS_KNOWN = 1024, /* the world remembers the ends of so many */
    PROXY_ID = 40,         /* the bytes of a process's id, with its end */
    NESTS = 2              /* so many locks a worker has at most while it tries for another */
};

enum connections { CONN_OWN, CONN_POOL, CONN_SHARED }; /* a worker's, a pool's, all of a process's workers' */

enum idiom {
    IDIOM_SETNX,        /* SETNX, GETEX now and then, DEL */
    IDIOM_SETNX_EXPIRE, /* SETNX, PEXPIRE also after a lost attempt, DEL */
    IDIOM_CONST,        /* SET NX PX with a constant, DEL */
    IDIOM_UNIQUE,       /* SET NX PX with a value that each lease has for itself, DEL */
    IDIOM_COMPARE,      /* as UNIQUE, but GET, compare, DEL; or DELIFEQ, DELEX */
    IDIOM_EXTENDING,    /* as UNIQUE, and PEXPIRE or SET IFEQ now and then, also after the lease */
    IDIOM_GETDEL,       /* SET NX GET PX, GETDEL */
    IDIOM_PLAIN_SET,    /* GET shows nothing, SET PX, DEL */
    IDIOM_SHORTEN,      /* SET NX PX, SET XX PX 1 */
    IDIOM_DEADLINE,     /* SETNX deadline, GET, GETSET */
    IDIOM_COUNT,        /* INCR, PEXPIRE, DECR */
    IDIOM_THROTTLE,     /* SET NX PX and no release */
    IDIOM_SCRIPT,       /* Lua SET NX PX, Lua or bare PEXPIRE, Lua compare and DEL */
    IDIOM_MULTI,        /* MULTI SETNX PEXPIRE EXEC or MULTI SET NX PX EXEC, MULTI DEL EXEC */
    IDIOM_WATCH,        /* SET NX PX in MULTI, or WATCH GET MULTI SET PX EXEC; WATCH GET MULTI DEL EXEC */
    IDIOM_QUEUE,        /* RPUSH, LINDEX 0 until it shows the worker's node, LREM; only in scenarios of list locks */
    IDIOM_REENTRANT,    /* EXISTS answers 0, RPUSH, LSET now and then, LREM; only with list locks */
    IDIOM_HASH,         /* Lua: a reentrant lock with a watchdog; only in scenarios of hash locks */
    IDIOM_READ,         /* Lua: a lock with many readers; only with hash locks */
    IDIOM_FIELD,        /* HSETNX, HDEL or DEL; only with hash locks */
    IDIOM_KINDS,
    STRING_IDIOMS = IDIOM_QUEUE
};

enum phase {
    PHASE_START,
    PHASE_LOOK, /* GET before acquiring */
    PHASE_ACQUIRE,
    PHASE_SWAP,
    PHASE_EXPIRE, /* PEXPIRE after the acquisition */
    PHASE_HOLD,
    PHASE_COMPARE, /* GET before releasing */
    PHASE_RELEASE,
    PHASE_FINALLY, /* a release that follows no acquisition */
    PHASE_STRANGE, /* the next command of STRANGER */
    PHASE_VACANT,  /* list locks: EXISTS */
    PHASE_PUSH,
    PHASE_WAIT /* LINDEX 0 */
};

/* What happens in one run. The seed decides. */
struct scenario {
    uint64_t seed;
    enum connections connections;
    unsigned proxies, processes, workers, conns, keys; /* workers and conns: of each process */
    uint32_t idioms;                                   /* a bit for each idiom */
    unsigned idiom_count;
    bool library;     /* sessions name a client library that is known to pool connections */
    bool eventful;    /* the events below come more often than in other runs */
    bool deaths;      /* workers die, and new workers take their place */
    bool reconnects;  /* connections are lost, and workers connect again */
    bool restarts;    /* proxies restart */
    bool loses;       /* replies get lost: repeats, unknown outcomes, scripts that run late */
    bool outside;     /* commands around the proxy */
    bool operators;   /* PROXY RELEASE */
    bool finals;      /* DEL after a failed acquisition */
    bool strays;      /* a worker sends DEL without any attempt */
    bool silent;      /* some holders never release */
    bool punctual;    /* ticks and renewals are on time */
    bool pauses;      /* workers stop in the middle of their work, sometimes for longer than a lease */
    bool slow;        /* some answers take long */
    unsigned rebirth; /* how likely a dead worker is to come back when its turn comes, in percent */
    bool pipelines;   /* a shared connection has several commands under way, answered in order */
    bool reloads;     /* a reload replaces the rule by an equal rule */
    bool audit;       /* the rule begins in audit; a reload enforces it. toggles: and others audit it again */
    bool toggles;
    bool audit_exact;          /* a lock that was acquired under audit is safe as soon as the rule is enforced */
    bool queue;                /* list locks */
    bool hash;                 /* hash locks */
    bool newest;               /* with HSETEX, HGETDEL and HGETEX; with DELEX and MSETEX */
    bool stranger;             /* STRANGER sends any command */
    bool names;                /* each connection has a name of its own, and keeps the name when it reconnects */
    bool renames;              /* connections change their names */
    bool transactions;         /* STRANGER also uses transactions */
    bool discards;             /* STRANGER discards some of its transactions */
    int64_t skews_us[PROXIES]; /* so much their clocks are ahead of Redis's */
    unsigned short_form;       /* a bit for each proxy that acquires and releases without scripts where it may */
    bool waits;                /* the rule has `wait` */
    unsigned threads;          /* of each proxy; upstreams: the connections to Redis of each thread */
    unsigned upstreams;
    unsigned delay_ms; /* at most so long to Redis, and as long back */
    bool nests;        /* workers that hold a lock try for other locks */
    bool ring;         /* each worker tries for its neighbour's lock */
    bool fences;       /* workers write data under their locks */
    bool elsewhere;    /* the data is in another slot than the lock */
    bool unlocked;     /* a worker without the lock may not write (`unlocked refuse`) */
    bool deaf;         /* some messages about releases get lost */
    bool skewed;       /* the proxies' clocks differ */
    bool clocks;       /* Redis's clock and the proxies' clocks are set */
    bool sharded;      /* a cluster of two nodes, where releases are published on shard channels */
    bool moves;        /* slots move */
    bool old;          /* the nodes do not know shard channels */
    int64_t expiry_ms;
    struct lock_rule rule;
    /* What docs/locks.md promises for such a run. */
    bool apart;       /* the bytes tell each worker from the others */
    bool queue_kept;  /* the holder of a queue stays the holder while it is connected, also if it has reconnected */
    bool queue_exact; /* a worker that sees its node at the head holds; of two that saw no queue, one pushes */
    bool never_wrong, never_kept, kept_after_end_only, kept_after_sight_only;
};

/* A lock that a worker has, and does not use while it tries for another lock. */
struct held_lock {
    int key;
    enum idiom idiom;
    uint64_t fence; /* from here on, the members mean what they mean in struct app_worker */
    bool holds;
    int64_t until_ms, lost_ms;
    char value[MODEL_VALUE];
};

struct app_worker {
    int process; /* -1: STRANGER */
    bool alive;
    enum idiom idiom;
    enum phase phase;
    int key;
    bool busy;        /* it has a command under way */
    uint64_t fence;   /* of the lease that it acquired and has not sent a release for; 0 none */
    bool holds;       /* it believes that it holds this lease, and so far it does */
    int64_t until_ms; /* the end of its work */
    int64_t pause_ms; /* it does nothing before this time */
    int64_t lost_ms;  /* when its lease ended, 0 not yet */
    bool in_queue;    /* it has pushed its value as a node, and still waits or works with it */
    int64_t read_ms;  /* when the proxy last saw it read */
    uint64_t seat;    /* the session over which it saw its node at the head; 0: none, or perhaps lost */
    bool lapsed;      /* in the queue it was once silent for longer than a lease */
    unsigned times;   /* so often it has entered a hash lock */
    bool by_value;    /* its release is DELIFEQ */
    bool newest;      /* it acquires by HSETEX, and its release is HGETDEL or DEL */
    unsigned lives;
    uint64_t again; /* the session over which its release was lost; 0 none */
    struct transaction *transaction;
    struct held_lock under[NESTS];
    unsigned depth; /* the number of locks in `under` */
    char value[MODEL_VALUE], expected[MODEL_VALUE];
    int64_t expected_ms; /* when it was shown what it expects */
};

/* What a connection was last shown. */
struct reading {
    bool known;
    uint64_t fence; /* 0: the value was no lease's, or the answer did not say whose */
    long step;      /* when the answer came */
    int64_t at_ms;
    char value[MODEL_VALUE];
};

struct conn {
    bool open;
    bool reserved; /* a worker has a transaction on it */
    unsigned busy; /* commands under way */
    bool alias;    /* it has a name that no other connection has */
    int process, proxy;
    int worker; /* the only worker that uses it, or -1 */
    uint64_t id;
    int64_t came_ms; /* when it came to its identity */
    struct lock_session session;
    struct reading read[MODEL_KEYS];
    int64_t lost_ms[MODEL_KEYS]; /* when its last attempt was refused; 0: it was not, or the session was recognised */
    struct {
        char tried[MODEL_VALUE]; /* the value of that attempt */
        uint64_t recognised;     /* the lease that the session may have been recognised for, by that value */
    } attempt[MODEL_KEYS];
};

/* How a command goes to Redis next: by its script, or without it at first (short_records.c). */
enum flight_way { WAY_SCRIPT, WAY_BATCH, WAY_FREE, WAYS };

enum flight_kind { FLIGHT_COMMAND, FLIGHT_OPERATOR, FLIGHT_RENEWAL, FLIGHT_RELEASE, FLIGHT_LEAVE };

struct flight {
    bool used, ran;
    int64_t ends_ms; /* the end of the lock that the application's script found, 0 none */
    bool scripted;   /* the application's script has run; `ran` is for the adopt.lua after it */
    bool named;      /* the application's script has the lock's value or field as an argument */
    bool together;   /* the application's script and adopt.lua are one transaction */
    bool found_free; /* the script found no lock */
    bool repeated;   /* it ran more than once */
    bool freed;      /* release.lua ran, and freed the lock */
    bool denied;     /* a push that was refused when it ran before */
    bool unsent;     /* it never reached Redis */
    bool orphan;     /* its session or worker is gone; its proxy finishes it */
    bool ghost;      /* its proxy has given it up, too; it may still run */
    bool seated;     /* a release by the proxy: its token stood for the live lease, perhaps with other tokens */
    bool crossed;    /* other commands on the key were under way at the same time */
    bool bare;       /* a read without a script (MGET): the proxy only looks at the answer */
    bool again;      /* a release over the connection over which the same release was lost */
    bool slow;       /* its answer takes long */
    bool waits;      /* a renewal that waits for a connection; it is not sent if it is no longer needed */
    bool held;       /* the attempt waits at the proxy, and is not on its way to Redis */
    bool tells;      /* a release by the proxy, under a rule with `wait` */
    bool handed;     /* a release; the attempt of a session that waits goes right behind it */
    enum flight_way way;
    bool goes_on; /* what ran has come to nothing: the script follows */
    bool twice;   /* the batch or free.lua has run more than once; freed_twice: release.lua follows it */
    bool freed_twice;
    char late;   /* '+', '-' or '!', behind a batch */
    bool sets;   /* a batch of its own has set the lock */
    bool raises; /* its last batch's fence was above the watermark */
    uint64_t short_fence;
    enum flight_kind kind;
    struct waits_call *call;         /* waits.c's part of an attempt that may wait */
    unsigned lane;                   /* the connection to Redis that it uses, of its thread's */
    int64_t due_ms;                  /* its next step happens by this time */
    int64_t here_ms, next_ms;        /* its script's arguments about waiting attempts */
    struct transaction *transaction; /* the transaction that it is a command of */
    int worker, conn, proxy, key;
    unsigned proxy_life;
    long begun_step;
    uint64_t session_id, order; /* order: the place in which it was sent */
    bool releases;              /* the worker sends it to release */
    uint64_t own_fence;         /* of the lease that its worker had when the flight was sent */
    bool pooled, may_be_pooled; /* its client's connections count as pooled: certainly; perhaps */
    bool was_own;               /* the live lease was the worker's when it ran */
    bool ended_other;           /* it has ended a lease that another worker was told it had */
    uint64_t read_fence;        /* of the lease that its session had last read when it was sent */
    uint64_t client_read_fence; /* of the newest lease that sessions of its client at that proxy had last read */
    bool client_mixed;          /* a session of its client has last read another value, of an unknown lease */
    bool was_shown;             /* its session has a last reading */
    bool loser;                 /* its session's last attempt was lost, and not long ago */
    bool client_read_foreign;   /* its client's sessions have read no lease, and were shown a value not long ago */
    /* Values: the value that its session read; that newest lease's; the last value of which no answer named a lease. */
    char shown[MODEL_VALUE], client_shown[MODEL_VALUE], client_shown_foreign[MODEL_VALUE];
    int name; /* its session's name; left: how often the name had no connection left, before it was sent */
    unsigned left;
    int64_t ran_ms;
    struct lock_plan plan;
    struct model_command command;
    struct model_envelope envelope;
    char identity[MODEL_NAME];
    uint64_t token; /* of renewals and of releases by the proxy */
    char token_text[LOCK_TOKEN_MAX];
    const char *right;
    int64_t lease_ms, left_ms;
    struct lock_rules *rules; /* a reference that keeps the plan's rule alive */
    bool observed;            /* the rule was in audit when it was sent, so it was sent as it came */
    uint64_t watched;
};

struct proxy {
    struct lock_engine *engine;
    int64_t skew_us; /* so much its clock is ahead of Redis's */
    unsigned life;
    char id[PROXY_ID];
    struct world *world;
    int index;
};

/* A lease as the observer sees it. */
struct truth {
    bool live, told;
    bool observed;         /* acquired under audit, untouched by the proxy's scripts: its fence is the simulator's */
    bool provisional;      /* a batch has made it with a fence that is not above the watermark: acquire.lua follows */
    bool unclear;          /* the simulator can't know what the engine believes about it */
    bool sighted;          /* its client was shown its value */
    bool own_expiry;       /* its proxy was told that the expiry is the application's */
    bool leased_elsewhere; /* another proxy was told that PERSIST made it the lease; its own may not know */
    bool renewal_lost;     /* its last renewal was carried out, and the answer was lost */
    uint64_t fence, max_fence, session_id;
    int worker, process, proxy; /* worker -1: the lease is forgotten */
    int name;                   /* its session's name; name and left are as in struct flight */
    unsigned left;
    int64_t granted_ms, told_ms;
    uint64_t successor; /* the first session that came to the owner's identity after the owner's session; 0: none yet;
                         * UINT64_MAX: its proxy has restarted, and knows no successor */
    long told_step, end_told_step; /* when the grant was told; when its end was last told */
    char token[LOCK_TOKEN_MAX];
    char node[QUEUE_NODE];      /* of a list lock */
    char value[MODEL_VALUE];    /* if observed: the value that was written */
    char stray[LOCK_TOKEN_MAX]; /* if observed: the token of the last batch that set a guard record beside the lock */
};

enum cause { BY_TIME, BY_COMMAND, BY_OUTSIDE };

struct world {
    struct scenario sc;
    struct lock_rules *rules; /* the rules in force */
    const struct lock_rule *rule;
    uint64_t random;
    int64_t set_back_ms; /* when Redis's clock was last set back: leases from before last longer than proxies know */
    int64_t closed_ms[SESSIONS_KNOWN]; /* when each session closed, by its number */
    int64_t heard_ms[SESSIONS_KNOWN]; /* when each session's last answer came, by its number; perhaps after it closed */
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
    bool unsure[PROCESSES][MODEL_KEYS]; /* the outcome of a command was lost */
    bool closing;                       /* all workers have left */
    uint32_t raised;         /* the incidents since the engine began to be told of an answer, a bit for each kind */
    bool pooled[IDENTITIES]; /* a proxy has reported that the identity's connections are a pool's */
    unsigned left[PROXIES][IDENTITIES]; /* how often the last connection of the name has closed */
    bool enforced;                      /* the rule has been enforced at some time */
    bool unfinished[MODEL_KEYS];        /* a batch has set the lock, and not its guard record: no lease so far */
    bool stirred[MODEL_KEYS];           /* an application's script has run, and its adopt.lua has not */
    int64_t slack_ms[MODEL_KEYS];       /* the longest that an answer took */
    int64_t storm_until_ms;             /* answers to renewals are lost until this time */
    bool exact[MODEL_KEYS];             /* the last answer that told the lease's end crossed no other flight */
    bool missed[MODEL_KEYS];            /* the proxy was told of the lease's end before it knew of the lease */
    uint64_t wrong, kept, granted, lost, renewals;
    uint64_t waited, published;       /* attempts that waited; messages about releases */
    uint64_t short_runs[WAYS][2];     /* batches and free.lua; without an end, and followed by a script */
    uint64_t circles[MODEL_KEYS + 1]; /* circles that were found, by the number of sessions in them */
    long step;
    bool log, tell; /* write events down; print them */
    const char *failure;
    char failure_text[256];
    char head[MODEL_KEYS][QUEUE_NODE]; /* the node at a list lock's head; head_ms: since when */
    int64_t head_ms[MODEL_KEYS];
    char events[40][160];
    unsigned event_count;
};

uint64_t world_random(struct world *w);
unsigned world_below(struct world *w, unsigned n);
bool world_chance(struct world *w, unsigned percent);
void world_event(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void world_fail(struct world *w, const char *rule, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* What a run must contain. */
enum about { ABOUT_ANYTHING, ABOUT_LISTS, ABOUT_WAITS, ABOUT_FENCES };
void scenario_draw(struct scenario *sc, uint64_t seed, enum about about);
void scenario_print(const struct scenario *sc);

void world_open(struct world *w, uint64_t seed, enum about about, bool log, bool tell);
void world_close(struct world *w);
/* Sets the clock forward; keys that have expired are gone then. */
void world_advance(struct world *w, int64_t to_ms);
/* Sets Redis's clock forward or back. */
void world_set_clock(struct world *w, int64_t by_ms);
/* Has a proxy release a lease that no client asked to release. */
void world_release(struct world *w, int proxy, const struct lock_lease *lease);
/* Lets one thing happen. */
void world_step(struct world *w);
/* All clients leave, and time passes. Then L1 must hold: every lock is free. */
void world_end(struct world *w);

struct lock_key world_key(int key);
/* The number of a connection's name; and the identity of a name as text. */
int world_name(const struct world *w, int conn);
void world_identity(int name, char *out);
/* Whether a proxy takes a client's connections for a pool's although each is one worker's. The promises between that
 * client's workers do not hold then. main.c bounds how often this happens. */
bool world_mistaken(const struct world *w, int name);
const char *world_outcome(enum lock_outcome o);
void conn_open(struct world *w, int i);
/* The worker loses its connection. The flights on the connection go on without a worker. */
void conn_forget(struct world *w, int i, bool proxy_gone);
void conn_close(struct world *w, int i);
/* CLIENT SETNAME: gives the connection a name that no other has, or takes that name away. */
void conn_rename(struct world *w, int i);
void proxy_restart(struct world *w, int i);
/* Writes the id of the process that is proxy i in its life `life`. A restart gives the proxy another id. */
void proxy_id(int i, unsigned life, char out[PROXY_ID]);

/* rules.c: the rule, and reloads. */
void rules_open(struct world *w);
void rules_close(struct world *w);
void rules_reload(struct world *w);

/* flight.c: commands under way. */
struct flight *flight_new(struct world *w, enum flight_kind kind);
void flight_free(struct flight *f);
unsigned flight_places(const struct world *w);
struct flight *flight_any(struct world *w);
/* Notes that other flights on its key are under way, too. */
void flight_crosses(struct world *w, struct flight *f);
void flight_launch(struct world *w, struct flight *f, int conn, int key);
/* Has a worker send a command. Returns whether a worker had one to send. */
bool flight_somebody_sends(struct world *w);
void flight_run(struct world *w, struct flight *f);
void flight_deliver(struct world *w, struct flight *f);
/* Lets its answer arrive, also if the flight waits. */
void flight_end(struct world *w, struct flight *f);
/* The proxy is told only this outcome. The flight remains if it may still run. */
void flight_fail(struct world *w, struct flight *f, enum lock_outcome outcome);
/* Lets its next step happen; chance decides which. */
void flight_progress(struct world *w, struct flight *f);
void flight_log(struct world *w, const struct flight *f, const char *what);

/* short_records.c: attempts and releases without a script. Decides which way the flight goes. */
void short_launched(struct world *w, struct flight *f);
/* Runs the batch or free.lua. `before` is the key before. */
void short_run(struct world *w, struct flight *f, const struct model_key *before);
/* Its answer has come. Whether the script is sent behind it. */
bool short_goes_on(struct world *w, struct flight *f);
/* The answer of release.lua behind free.lua has come: the lock may have been released by free.lua. */
void short_settle(const struct world *w, struct flight *f);

/* reading.c: notes what the session is told about its attempt. */
void reading_attempted(struct world *w, const struct flight *f);
/* The flight's session was shown the key's value, of the lease with this fence; 0: the lease is not known. */
void reading_shown(struct world *w, const struct flight *f, uint64_t fence);
/* Notes whether the flight's client counts as sharing its connections, and what its connections have read. */
void reading_note(struct world *w, struct flight *f);
/* Whether those connections have read this value, of the lease with this fence, or of a lock without a lease (0). */
bool reading_covers(const struct flight *f, uint64_t fence, const char *value);

/* trouble.c: what goes wrong. */
void trouble_strikes(struct world *w);

/* watched.c: commands under audit, and the locks that they acquire. */
void watched_launch(struct world *w, struct flight *f, enum lock_verb verb);
void watched_run(struct world *w, struct flight *f);
/* Tells the engine what the reply says, or that there is none. */
void watched_answer(struct world *w, struct flight *f);
void watched_lost(struct world *w, struct flight *f, enum lock_outcome outcome);
/* Whether the lock is still as it was acquired under audit, and no script of the proxy has touched it. */
bool watched_stands(struct world *w, int key);
/* Whether scripts take the attempt of a batch for the holder of an observed lease. */
bool watched_hidden(struct world *w, int key);
/* A script of the proxy has made the lock a lease. */
void watched_enrolled(struct world *w, const struct flight *f, const struct model_guard *g);

/* list_worker.c: as in worker.c, for list locks. */
bool list_worker_command(struct world *w, int worker, struct model_command *c, bool *releases);
void list_worker_answer(struct world *w, int worker, const struct flight *f, bool lost);
/* check_list.c: as in check.c, for list locks. `queue` is the queue before the script. */
void check_list_script(struct world *w, struct flight *f, const struct model_queue *queue);
void check_list_expired(struct world *w, int key);
void check_list_belief(struct world *w, int worker, const struct flight *f);
/* check_state.c: what a script leaves behind is consistent. No value was swapped, and no foreign lock was touched, that
 * the session had not read. `before` is the key before the script. */
void check_left(struct world *w, const struct flight *f, const struct model_key *before);
/* Checks that a client that shares its connections may swap a foreign lock's value that it has read. */
void check_foreign_swap(struct world *w, const struct flight *f, const struct model_key *before);
/* Checks that the engines believe what is true (PROXY LOCKS), for keys without a flight. */
void check_ledgers(struct world *w);
/* A proxy renews or releases without a client's command: the rule must have been enforced at some time. */
void check_unasked(struct world *w);
/* check.c: the key's live lease, or NULL. */
const struct model_guard *check_live(struct world *w, int key);
/* S5: whether the guard record says that the flight's release was the last one, before it runs once more. */
bool check_was_freed(const struct world *w, const struct flight *f);
/* S5: an attempt or a release that is sent twice is answered like one that is sent once. `freed` is what
 * check_was_freed said. */
void check_repeat(struct world *w, struct flight *f, bool freed);
void check_lease_ended(struct world *w, int key);
void check_ended_by_other(struct world *w, const struct flight *f, const struct truth *t);
void worker_give_up(struct world *w, int worker);
/* The lock with this fence among the locks that a worker has while it tries for another; NULL: there is none. */
struct held_lock *worker_under(struct app_worker *k, uint64_t fence);

/* worker.c: what workers send, and what they conclude from the answers. */
bool worker_command(struct world *w, int worker, struct model_command *c, bool *releases);
void worker_sent(struct world *w, int worker, const struct model_command *c, bool releases);
void worker_answer(struct world *w, int worker, const struct flight *f, bool lost);
void worker_start_again(struct world *w, int worker);
/* A command of a worker that is gone was not sent to Redis. If it was a release, its lease may have ended meanwhile. */
void worker_left_unsent(struct world *w, const struct flight *f);
const char *idiom_name(enum idiom idiom);
void command_text(const struct model_command *c, char *out, size_t size);

/* check.c: the rules, after every change of the model. `before` is the key before the change, `queue` its queue. */
void check_script(struct world *w, struct flight *f, const struct model_key *before);
/* Checks what a batch has left behind that is followed by a script. `both`: it has set guard record and lock. */
void check_batch_left(struct world *w, struct flight *f, bool both);
/* Whether a key differs, apart from the form of its guard record. */
bool check_differs(const struct world *w, const struct model_key *before, const struct model_key *now);
void check_renewed(struct world *w, const struct flight *f, const struct model_key *before,
                   const struct model_queue *queue);
void check_renewal_asked(struct world *w, const struct proxy *p, const struct lock_lease *lease);
/* Checks after time has passed, or a client has gone around the proxy. */
void check_passed(struct world *w, int key, enum cause cause);
/* Under audit: checks the incidents in `raised`, which the engine has reported for the flight's answer. */
void check_incidents(struct world *w, const struct flight *f);
/* A session has closed, and held the keys in `held`. With `on-disconnect release` their locks are released now. */
void check_abandoned(struct world *w, const bool held[MODEL_KEYS], uint64_t session_id);
/* A proxy was told a lease's end; check_renewal_lost: the answer to a renewal was lost. */
void check_told(struct world *w, const struct flight *f);
void check_renewal_lost(struct world *w, const struct flight *f);
/* A session was shown the value of the lease with this fence. */
void check_shown(struct world *w, int process, int key, uint64_t fence);
/* A worker believes now that it holds the lock. */
void check_belief(struct world *w, int worker, const struct flight *f);
