/*
 * The lock engine: which claim a command uses, and what follows from Redis's answer.
 *
 *      command on a lock key                       the script's envelope
 *               │                                            │
 *          engine_begin ──> plan (token, claim, right) ──> engine_finish ──> claims, incidents, renewals
 *
 * The engine decides and does nothing itself: it has no socket, no clock and no random source. Times come in with the
 * events, effects go out through struct lock_sink, and the same events give the same effects. The scripts in
 * scripts/lua/ decide inside Redis about every lease. The engine remembers which session acquired which lock, and
 * chooses the claim that a command uses.
 *
 * docs/locks.md defines the words: claim, spent, outstanding, sighted, workload.
 *
 * One engine serves many threads: it is split into shards by key, each with its mutex. The engine calls the sink with a
 * shard locked. The sink must only take notes, and must not call the engine.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/metric.h"
#include "proxy/base/list.h"
#include "proxy/lock/rule.h"

struct lock_engine;
struct lock_incident;
struct lock_client; /* a client identity; reference-counted, thread-safe */
struct peer;        /* private */
struct orphan;      /* private */

enum {
    LOCK_TOKEN_MAX = 64,  /* "UUID:N" with its NUL */
    LOCK_SEEN_MAX = 1024, /* a longer value is not remembered as read */
    LOCK_SEEN_SHORT = 96, /* nearly all values are shorter */
    LOCK_IDENTITY_MAX = 256
};

/* ---- sessions ------------------------------------------------------------------------------ */

/* What the engine knows of a session. Owned by the session layer, which opens and closes it here. */
enum { LOCK_KEY_KNOWN = 40 }; /* longer keys are hashed each time */

struct lock_session {
    uint64_t id; /* unique in this process, growing with time of opening */
    struct lock_client *client;
    bool overlapped; /* its commands may be several workers': engine_session_overlapped, or its library multiplexes */
    uint64_t shards; /* private: a bit for each shard that knows this session */
    uint32_t login;  /* opaque, set by the session layer at ..._identify: whose upstream connections it uses */
    bool patient;    /* set by the session layer: the next command may be held back (lock_plan.held_back) */
    /* Set by the session layer for the next command, which engine_begin takes: the value that the lock must have for
     * the command to act (DELIFEQ), borrowed; NULL: any. */
    const char *named;
    size_t named_len;
    /* Set by the session layer: the client connection's round trip; 0: under 1 ms, or not known. `trip_ms` is a mean,
     * in which a busy client's delays count. The shortest is the network's alone. */
    uint16_t trip_ms, shortest_trip_ms;
    bool one_shot; /* set by the session layer before engine_session_close: besides its login, the session has sent one
                    * command only, and its client closed the connection in good order */
    /* Private to engine.c: the last key, since a release usually follows the acquisition. */
    struct {
        uint64_t hash, pattern;
        uint64_t workload, of; /* the workload's number; a hash of the rule and client that have it, 0: not known */
        uint32_t db, len;      /* len 0: none */
        uint16_t slot;
        char name[LOCK_KEY_KNOWN];
    } last;
    /* Private to succession.c: its place and number among its identity's sessions, and when it came; the closed
     * session's leases that it has taken over (`orphan`), and those that it leaves (`left`). */
    struct list_node of_client;
    uint64_t came;
    int64_t came_ms;
    uint32_t came_login;
    struct orphan *orphan, *left;
    atomic_bool attends;  /* has an orphan */
    atomic_bool notified; /* set by the session layer: its client wants to hear of each lost lease (PROXY NOTIFY ON) */
};

/* Opens a session under a client identity (bytes, at most LOCK_IDENTITY_MAX are used). The session takes over no leases
 * of a closed session before engine_session_identify. */
void engine_session_open(struct lock_engine *e, struct lock_session *s, uint64_t id, const char *identity, size_t len);
/* Tells the engine a session's identity, now known or changed (AUTH, CLIENT SETNAME). The session keeps its claims. If
 * it was the last of its former identity, leases that closed sessions left there are abandoned. Leases that a closed
 * session of the new identity has left are renewed for it from now on. `s` must not move until it is closed. */
void engine_session_identify(struct lock_engine *e, struct lock_session *s, const char *identity, size_t len,
                             int64_t now_ms);
/* The session sent a lock command while an earlier request was unanswered, in another read. A single worker waits for
 * each answer, so the session carries several workers' commands. */
void engine_session_overlapped(struct lock_engine *e, struct lock_session *s);
/* Notes the library that the client names (CLIENT SETINFO lib-name). Returns client_library_multiplexes. */
bool engine_session_library(struct lock_engine *e, struct lock_session *s, const char *name, size_t len);
/* Closes a session, whose id stays valid for engine_finish. With s->one_shot, a lock that it has just acquired is kept
 * for the rule's `one-shot`. The sink hears of abandoned leases, and of releases under `on-disconnect release`. */
void engine_session_close(struct lock_engine *e, struct lock_session *s, int64_t now_ms);
/* Whether leases of closed sessions are still to be abandoned. engine_tick, which is to be called soon, handles a few
 * hundred at a time. The sessions' logins are needed until then. */
bool engine_departs(struct lock_engine *e);
/* The identity as text, borrowed, for guard records and people. */
const char *lock_client_name(const struct lock_client *c, size_t *len);
/* A keyed hash of the client's identity. */
uint64_t lock_client_hash(const struct lock_client *c);
/* Whether a library of that name sends the commands of several workers over one connection. */
bool client_library_multiplexes(const char *name, size_t len);

/* ---- commands ------------------------------------------------------------------------------ */

enum lock_verb_flag {
    VERB_ACQUIRES = 1 << 0,  /* it may acquire a lease of its own on a plain key */
    VERB_CLAIMS = 1 << 1,    /* it may be meant to acquire: it shows no holder that speaks over another session */
    VERB_SPENDS = 1 << 2,    /* it uses up its claim */
    VERB_ENDS = 1 << 3,      /* it may end a lease */
    VERB_WRITES = 1 << 4,    /* it writes, and frees no lock that a session could wait for */
    VERB_ENROLS = 1 << 5,    /* a lock that was acquired under audit gets its guard record by it */
    VERB_QUEUE = 1 << 6,     /* it is about a list lock's queue */
    VERB_SHOWS = 1 << 7,     /* its reply is the value */
    VERB_LOCKED = 1 << 8,    /* its refusal is the error LOCKED */
    VERB_ATTEMPTS = 1 << 9,  /* its refusal is a lost attempt to acquire */
    VERB_RELEASES = 1 << 10, /* its refusal is a refused release */
    VERB_SAYS = 1 << 11      /* it writes a whole value over the present one: engine_says */
};

/* VERB(name, what PROXY EXPLAIN calls it, flags). What a command means to a lock. */
#define LOCK_VERBS(VERB)                                                                                               \
    VERB(LOCK_ACQUIRE, "acquire", VERB_ACQUIRES | VERB_CLAIMS | VERB_ATTEMPTS) /* SETNX, SET NX */                     \
    /* SET with an expiry, SETEX, PSETEX: may acquire */                                                               \
    VERB(LOCK_REPLACE, "replace", VERB_ACQUIRES | VERB_CLAIMS | VERB_ENROLS | VERB_LOCKED | VERB_SAYS)                 \
    /* SET XX, SET IFEQ: writes what is there; acquires only by a takeover (set_if.lua) */                             \
    VERB(LOCK_REWRITE, "replace", VERB_ENROLS | VERB_SAYS)                                                             \
    VERB(LOCK_SWAP, "swap", VERB_ACQUIRES | VERB_CLAIMS | VERB_SAYS) /* GETSET, SET GET */                             \
    /* DEL, UNLINK, GETDEL, DELIFEQ, DELEX */                                                                          \
    VERB(LOCK_RELEASE, "release", VERB_SPENDS | VERB_ENDS | VERB_ENROLS | VERB_RELEASES)                               \
    VERB(LOCK_EXTEND, "extend", VERB_ENROLS) /* EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT, PERSIST, GETEX */                \
    /* INCR, HINCRBY: may acquire */                                                                                   \
    VERB(LOCK_COUNT_UP, "count up", VERB_ACQUIRES | VERB_CLAIMS | VERB_ENROLS | VERB_SAYS)                             \
    /* DECR, INCRBY -1: may release; uses the claim up if it released, or was refused */                               \
    VERB(LOCK_COUNT_DOWN, "count down", VERB_SPENDS | VERB_ENDS | VERB_WRITES | VERB_ENROLS | VERB_RELEASES)           \
    VERB(LOCK_READ, "read", VERB_SHOWS) /* GET */                                                                      \
    /* SET without an expiry, APPEND, INCR where counters are no locks: writes data, or its own lock */                \
    VERB(LOCK_PASS, "write: data, unless a lease is there", VERB_CLAIMS | VERB_WRITES | VERB_ENROLS | VERB_LOCKED)     \
    /* RENAME, COPY, MSET, *STORE, ...: uses the claim up if it ended the lease */                                     \
    VERB(LOCK_CLOBBER, "remove or replace", VERB_ENDS | VERB_WRITES | VERB_ENROLS | VERB_LOCKED)                       \
    /* what a script of the application's has made of the lock: adopts, spends, changes nothing */                     \
    VERB(LOCK_SCRIPT, "a script of the application's", VERB_SHOWS)                                                     \
    /* RPUSH, LPUSH, ...: a node joins a list lock */                                                                  \
    VERB(LOCK_QUEUE_PUSH, "queue push", VERB_QUEUE | VERB_LOCKED | VERB_ATTEMPTS)                                      \
    /* LRANGE, LINDEX, LLEN, LPOS, EXISTS: may make the head's owner the holder */                                     \
    VERB(LOCK_QUEUE_READ, "queue read", VERB_QUEUE)                                                                    \
    /* LREM: names a node; only the node's owner may remove it */                                                      \
    VERB(LOCK_QUEUE_REMOVE, "queue remove", VERB_QUEUE | VERB_RELEASES)                                                \
    VERB(LOCK_QUEUE_SET, "queue change", VERB_QUEUE | VERB_LOCKED) /* LSET, LTRIM */                                   \
    VERB(LOCK_INSPECT, "inspect", 0)                               /* PROXY LOCK, PROXY TOKEN */                       \
    VERB(LOCK_OPERATOR, "operator release", 0)                     /* PROXY RELEASE */

enum lock_verb {
#define VERB_NAME(name, text, flags) name,
    LOCK_VERBS(VERB_NAME)
#undef VERB_NAME
};

static inline bool lock_verb_is(enum lock_verb verb, unsigned flags) {
    static const uint16_t of_verbs[] = {
#define VERB_FLAGS(name, text, flags) flags,
        LOCK_VERBS(VERB_FLAGS)
#undef VERB_FLAGS
    };
    return of_verbs[verb] & flags;
}

const char *lock_verb_text(enum lock_verb verb);

/* A lock: databases are kept apart, keys are bytes. */
struct lock_key {
    uint32_t db;
    const char *name;
    size_t len;
};

/* RIGHT(name, the scripts' word): ARGV 5, which leases a command may touch besides its claim's. arguments.lua explains
 * the words, and list.lua those of list locks. */
#define LOCK_RIGHTS(RIGHT)                                                                                             \
    RIGHT(RIGHT_CLAIM, "claim")                                                                                        \
    RIGHT(RIGHT_ADOPT, "adopt")                                                                                        \
    RIGHT(RIGHT_BELIEVE, "believe")                                                                                    \
    RIGHT(RIGHT_SUSPECT, "suspect")                                                                                    \
    RIGHT(RIGHT_OLDER, "older")                                                                                        \
    RIGHT(RIGHT_SPENT, "spent")                                                                                        \
    RIGHT(RIGHT_LEASED, "leased")                                                                                      \
    RIGHT(RIGHT_LATER, "later")                                                                                        \
    RIGHT(RIGHT_FENCE, "fence")                                                                                        \
    RIGHT(RIGHT_ENROL, "enrol")                                                                                        \
    RIGHT(RIGHT_RELEASE_THEN_ACQUIRE, "release_then_acquire")                                                          \
    RIGHT(RIGHT_ANY, "any")                                                                                            \
    RIGHT(RIGHT_OPERATOR, "operator")                                                                                  \
    RIGHT(RIGHT_OWN, "own")                                                                                            \
    RIGHT(RIGHT_AUTO, "auto")                                                                                          \
    RIGHT(RIGHT_CLIENT, "client")                                                                                      \
    /* a renewal that also renews the application's own expiry */                                                      \
    RIGHT(RIGHT_ALWAYS, "always")                                                                                      \
    /* a renewal that only makes the guard record follow the lock's end */                                             \
    RIGHT(RIGHT_LOOK, "look")                                                                                          \
    /* a renewal that takes the lease over from an owner that has left */                                              \
    RIGHT(RIGHT_SUCCESSOR, "successor")

enum lock_right {
#define RIGHT_NAME(name, text) name,
    LOCK_RIGHTS(RIGHT_NAME)
#undef RIGHT_NAME
};
const char *lock_right_text(enum lock_right right);

/* A command on its way: what the engine has chosen for it, and what its script is told. */
struct lock_plan {
    struct lock_key key;          /* borrowed from the caller until engine_finish */
    const struct lock_rule *rule; /* held by the caller */
    enum lock_verb verb;
    uint32_t login; /* opaque: whose upstream connections its renewals use */
    int64_t begun_ms;
    uint64_t attempt;       /* token number of this attempt */
    uint64_t group;         /* the attempt of the transaction's first command on the key; 0: this is the first */
    uint64_t claim;         /* token number of the chosen claim, 0 none; LOCK_SCRIPT: of the session's lease */
    bool several;           /* there were other claims to choose from */
    bool uses;              /* private: the claim counts this command among its uses */
    bool transaction;       /* private: the command was queued in a transaction */
    bool queued;            /* private: the command is queued, and EXEC has not been sent */
    bool undone;            /* EXEC answered nil: set before engine_finish, with LOCK_NOT_SENT */
    uint64_t claim_fence;   /* of the claim's lease, 0 not known */
    bool seems_held;        /* a lease of the lock is live, as far as this proxy knows */
    bool short_record;      /* the claim's lease was given with a guard record in the short form */
    bool counted;           /* private: counted among its workload's releases */
    bool first_release;     /* private: the session's first release since its last attempt */
    bool twice;             /* private: counted as the second release in a row over its session */
    bool patient;           /* private: the command may be held back */
    uint64_t named;         /* private: hash of lock_session.named; 0: none */
    bool held_back;         /* LOCK_RELEASE: to be begun once more in some ms; see engine_put_off */
    bool repeats;           /* private: the command writes the value that its claim's lease has (K2) */
    uint64_t field;         /* private: set by engine_writes_field; 0: the command writes no field */
    uint64_t hash, pattern; /* private: of the key */
    uint64_t workload;      /* private: the workload's number; 0 without a rule */
    struct peer *peer;      /* private: what the shard knows of the session */
    uint16_t slot;          /* the key's */
    uint8_t attempt_len, claim_len;     /* of the texts below */
    char attempt_token[LOCK_TOKEN_MAX]; /* ARGV 1 */
    char claim_token[LOCK_TOKEN_MAX];   /* ARGV 2; "" none */
    enum lock_right right;              /* ARGV 5 */
    int64_t older_ms;                   /* RIGHT_OLDER: the older lease's release is expected for so long */
    uint64_t read_fence;                /* ARGV 7: of the lease shown last; RIGHT_FENCE: of the claim's lease */
    bool seen_known;                    /* ARGV 8, as lock_plan_seen has it */
    uint32_t seen_len;
    char seen_short[LOCK_SEEN_SHORT]; /* private; a longer value is in seen_long, until engine_finish */
    char *seen_long;
    bool data_free; /* a value without a live lease is data that the caller may touch: '*' in ARGV 8 */
};

/* ARGV 6, in ms. Exception: PROXY RELEASE gets the rule's lock-delay. */
static inline int64_t lock_plan_lease_ms(const struct lock_plan *plan) {
    if (plan->verb == LOCK_OPERATOR)
        return plan->rule->lock_delay_ms;
    return plan->right == RIGHT_OLDER ? plan->older_ms : plan->rule ? plan->rule->lease_ms : 0;
}

/* ARGV 8: the value that the session was shown, or for LOCK_QUEUE_* the party (list.lua). It has plan->seen_len bytes,
 * and is valid if plan->seen_known. */
static inline const char *lock_plan_seen(const struct lock_plan *plan) {
    return plan->seen_len > LOCK_SEEN_SHORT ? plan->seen_long : plan->seen_short;
}
/* Sets ARGV 8 to a copy of at most LOCK_SEEN_MAX bytes. engine_finish frees seen_long. A caller that made the plan
 * without engine_begin frees it itself. */
void lock_plan_see(struct lock_plan *plan, const char *data, size_t len);

/* The outcome in the script's answer (its envelope), or what became of the script. */
enum lock_outcome {
    LOCK_GRANTED,
    LOCK_DONE,
    LOCK_RELEASED,
    LOCK_ADOPTED,
    LOCK_OPEN,
    LOCK_COUNTED,
    LOCK_HELD,
    LOCK_FOREIGN,
    LOCK_FREE,
    LOCK_ERROR,       /* Redis refused the command */
    LOCK_UNCONFIRMED, /* acquired, not confirmed by the rule's replicas or witnesses, and being released again */
    LOCK_REMEMBERED,  /* acquired, refused by witnesses that remember another lease, and being released again */
    LOCK_OVERTAKEN,   /* the lease was live at Redis; witnesses know that another lease has followed it */
    LOCK_NOT_SENT,    /* the script never reached Redis */
    LOCK_UNKNOWN      /* the answer got lost: Redis may have run the script */
};

/* Reads an outcome's name as the scripts write it. False: it is unknown. */
bool lock_outcome_parse(const char *text, size_t len, enum lock_outcome *outcome);

/* Values of lock_result.pttl_ms that are no PTTL. */
enum {
    PTTL_NONE = -1,   /* the lock has no expiry */
    PTTL_GONE = -2,   /* there is no key */
    PTTL_UNKNOWN = -3 /* the script did not read it, or the command did not change it */
};

struct lock_result {
    enum lock_outcome outcome;
    uint64_t fence;
    int64_t pttl_ms;    /* as the script returned it, or PTTL_... */
    const char *holder; /* identity in the guard record of the live lease; borrowed, may be NULL */
    size_t holder_len;
    const char *value; /* acquire, replace, swap: the value written, or refused; read: the value shown; LOCK_SCRIPT,
                          held: what the lock is held with, if the script names it; LOCK_QUEUE_*: the node pushed,
                          named, or that the granted lease is for; else NULL */
    size_t value_len;
    const char *shown; /* acquire, swap, refused: the value shown; LOCK_QUEUE_READ: the node that the command names;
                          NULL: none */
    size_t shown_len;
    uint64_t lost;          /* dead heads of a list lock that were removed */
    const char *lost_owner; /* the identity of the last one's owner; borrowed, may be NULL */
    size_t lost_owner_len;
    bool leased;        /* the live lease's expiry is the proxy's own (the envelope's last element) */
    bool same;          /* the live lease is of the caller's identity */
    bool elsewhere;     /* another proxy gave the live lease */
    bool short_record;  /* LOCK_GRANTED: the guard record has the short form (text.lua) */
    bool pooled;        /* the live lease's workload is known to be pooled, here or at another proxy */
    uint8_t suspects;   /* releases of losers that were refused while the lease was live, 3 at most */
    uint8_t witnesses;  /* how many witnesses were asked; 0: none, or another outcome than UNCONFIRMED */
    int64_t shifted_ms; /* C3: another proxy has counted a release of the client for an older lease, and refused it: how
                         * long the older lease's release is still expected, 1 at least; 0: no such release */
    union {
        uint64_t replicas; /* LOCK_UNCONFIRMED: how many replicas had it in time; or, with `witnesses`, how many have
                              answered */
        int64_t waits_ms;  /* LOCK_GRANTED, LOCK_HELD: for how long a session has waited at another proxy; 0: none, or
                              not asked */
    };
};

/* Begins a command: chooses its claim and right. A release's claim is reserved, so that a second release in flight uses
 * another one. `queued`: the command waits in a transaction that may be discarded, and engine_sent reserves its claim.
 * The caller calls engine_finish exactly once with the same plan. The session may be closed in between. */
void engine_begin(struct lock_engine *e, struct lock_session *s, enum lock_verb verb, const struct lock_key *key,
                  const struct lock_rule *rule, uint32_t login, bool queued, int64_t now_ms, struct lock_plan *plan);
/* EXEC is on its way to Redis, with a command that was begun as queued. */
void engine_sent(struct lock_engine *e, struct lock_plan *plan);

/* Finds the lease for a command that is queued in a transaction. The caller passes the commands queued before it on the
 * same key, the last one first. *acquirer (NULL at first) becomes the command that may acquire. If several may, it is
 * the first behind a release: if that does not acquire, none does. `acquires`: `before` may acquire, whatever its plan
 * says. False: the caller need not look further back. */
bool engine_looks_back(struct lock_plan *plan, const struct lock_plan *before, bool acquires,
                       const struct lock_plan **acquirer);
/* Makes a command use the lease that `earlier`, before it in its transaction, may acquire (engine_looks_back). The
 * claim that was chosen for the command is given back. To be called before either command is finished. */
void engine_follow(struct lock_engine *e, struct lock_plan *plan, const struct lock_plan *earlier, int64_t now_ms);

/* K2: which value a command writes (VERB_SAYS), told between engine_begin and the script. If the client's live lease
 * has that value, and its values tell workers apart, the command uses that lease's claim. K4: a late SET XX uses the
 * claim whose value it writes. `field`: the value is the name of a hash's field. */
void engine_says(struct lock_engine *e, struct lock_plan *plan, const char *value, size_t len, bool field,
                 int64_t now_ms);
/* K3: whether GET has shown the session the live lease's value, and the session does not hold the lock itself. A SET in
 * a transaction that watches the key then takes the lease over. */
bool engine_compares(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key, int64_t now_ms);

/* A command was refused by a live lease. True: its script is sent once more, as the plan says now. Called once, before
 * engine_finish. B2, an attempt: a refused release was the holder's, so the script releases the live lease and acquires
 * in one step. C6, a release: its claim's lease may have been released through another proxy, which the script looks
 * up. */
bool engine_again(struct lock_engine *e, struct lock_plan *plan, const struct lock_result *result, int64_t now_ms);

/* A fence for an attempt: greater than each one before, and at least `now_us`, the wall clock. engine_fence_heard: a
 * lease has got a greater one than the proxy had made. The fences after it are ahead of the clock by as much. */
uint64_t engine_new_fence(struct lock_engine *e, uint64_t now_us);
void engine_fence_heard(struct lock_engine *e, uint64_t fence, uint64_t now_us);
/* Whether the claim of a command's plan is there, and its lease has not ended by this proxy's clock. */
bool engine_claim_lasts(struct lock_engine *e, const struct lock_plan *plan, int64_t now_ms);

/* Discards the plan of an attempt to acquire, or of a release that is held back: the command is begun once more later.
 * Called in the session's thread. */
void engine_put_off(struct lock_engine *e, const struct lock_plan *plan);
/* Whether the lease that refuses an attempt (its fence, or 0: the live one) was acquired by the attempt's own session.
 * False for a pooled session: another worker may have acquired. */
bool engine_own_lease(struct lock_engine *e, const struct lock_plan *plan, uint64_t fence, int64_t now_ms);
/* C3: an attempt that goes on waiting was refused. Learns r->shifted_ms of that lease. */
void engine_shifted(struct lock_engine *e, const struct lock_plan *plan, const struct lock_result *r, int64_t now_ms);
/* The session that holds the live lease of a key; 0: no session of this proxy holds it, or it is pooled. `hash` is the
 * key's. */
uint64_t engine_holder(struct lock_engine *e, const struct lock_key *key, uint64_t hash, int64_t now_ms);
/* How a session that writes data stands to a lock: its client holds it; its own lease is over, and was not released; or
 * neither. Pooled sessions of a client count as one. */
enum lock_writer { WRITER_NONE, WRITER_HOLDS, WRITER_LATE };
/* How a session writes, and under which lease: the newest that the session has acquired and not released itself. If it
 * has none, or is pooled, the newest of its client counts. If its client has none, a lease that a closed session of the
 * client has lost counts, too. Fields that are not known are 0. */
struct lock_writing {
    enum lock_writer how;
    uint64_t fence;  /* of that lease */
    uint64_t newest; /* fence of the newest lease on the lock that this proxy knows */
    int64_t over_ms; /* so long ago the lease ended */
    bool own; /* the session, or a pooled one of its client, has acquired it; else another session of the client */
};
struct lock_writing engine_writing(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key,
                                   int64_t now_ms);
/* Whether an enforced fence may name a lock in the database that the session holds, or has lost and not acquired again.
 */
bool engine_has_tenure(struct lock_engine *e, const struct lock_session *s, uint32_t db);
/* A reload brings other fences. Leases that were acquired before it, and not released, count for the new fences. The
 * caller has called lock_rules_fenced_by for the replaced rules. */
void engine_fences_came(struct lock_engine *e, const struct lock_rules *rules);
/* Reports a write of the data on->key by a session that has lost the lock `by`; on->rule is the fence's pattern. Sets
 * on->identity. on->holder is the client that holds the lock, or held it last; if it is NULL, the holder is the one
 * that this proxy knows. */
void engine_late_write(struct lock_engine *e, const struct lock_session *s, const struct lock_key *by,
                       struct lock_incident *on);
/* Reports an attempt that goes on waiting, because the witnesses name another lease. */
void engine_remembered(struct lock_engine *e, const struct lock_plan *plan, const char *command, const char *client,
                       int64_t now_ms);
/* Whether a session of the client with this hash is connected. */
bool engine_client_connected(struct lock_engine *e, uint64_t hash);
/* A key's hash, as in lock_plan.hash. */
uint64_t engine_key_hash(const struct lock_engine *e, const struct lock_key *key);

/* Finishes a command: learns from the script's answer. `command` (such as "EXPIRE") and `client` (address and name) are
 * borrowed, for incidents. The session may be closed by now: session_id is its id. */
void engine_finish(struct lock_engine *e, uint64_t session_id, const struct lock_plan *plan,
                   const struct lock_result *result, const char *command, const char *client, int64_t now_ms);

/* Whether the present `value`, which a refused GETSET would answer, was shown to the session last, or to a pooled one
 * of its client: code that compares would take it for success. To be called before engine_finish. */
bool engine_swap_misleads(struct lock_engine *e, uint64_t session_id, const struct lock_plan *plan, const char *value,
                          size_t len);

/* A field of a hash lock. */
struct lock_field {
    const char *name, *content; /* content NULL: only the name is known */
    size_t len, content_len;
};
/* Tells the engine, behind engine_begin, that a command on a hash lock writes this field, with its new content. */
void engine_writes_field(const struct lock_engine *e, struct lock_plan *plan, const struct lock_field *field);
/* K1: whether the session has tried in vain to write to the lock. The values that it is shown then count. */
bool engine_has_tried(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key);
/* K1: the session was shown a field of the hash lock. Does nothing if it has not tried to write the field. */
void engine_saw_field(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key,
                      const struct lock_rule *rule, const struct lock_field *field, int64_t now_ms);

/* The session was shown the key's value by a command that is no script of the proxy (MGET, GETRANGE, ...), so that the
 * lease's fence is not known. Marks claims with this value as sighted. value NULL: the key does not exist. */
void engine_saw(struct lock_engine *e, struct lock_session *s, const struct lock_key *key, const struct lock_rule *rule,
                const char *value, size_t len, int64_t now_ms);

/* ---- time ---------------------------------------------------------------------------------- */

/* A lease that the proxy renews or releases by itself, as the sink is told. Pointers are borrowed. */
struct lock_lease {
    struct lock_key key;
    const struct lock_rule *rule;
    uint32_t login;
    uint64_t token;
    uint8_t token_len;
    char token_text[LOCK_TOKEN_MAX];
    enum lock_right right; /* ARGV 5: RIGHT_CLAIM, RIGHT_ALWAYS or RIGHT_LOOK */
    bool list;             /* of a list lock */
    bool quorum;           /* witnesses know it, by its token and this fence */
    uint64_t fence;
    int64_t delay_ms; /* the rule's lock-delay */
    int64_t lease_ms; /* renew for so long */
    int64_t left_ms;  /* ARGV 7 of a renewal: how much of the lease is left, as far as is known; 0: no end */
};

/* Drops claims and contenders that are over, and asks the sink for the renewals that are due. A thread serves the
 * shards of its `part` of `parts`. Returns after how many ms to call it again, at most 1000. */
int64_t engine_tick(struct lock_engine *e, unsigned part, unsigned parts, int64_t now_ms);
/* This process stops: sessions that are closed from then on do not abandon their leases. From any thread, once. */
void engine_leave(struct lock_engine *e);
/* Redis has ended and kept no data: ends all leases, and reports at most `reports`. Returns how many there were. */
unsigned engine_lost(struct lock_engine *e, unsigned reports, int64_t now_ms);
/* After engine_leave, asks the sink for a last renewal, for the rule's `handover`, of the leases in a thread's part of
 * the shards. Returns how many it asked for, at most `max`; less: all are asked for. To be called again after a while,
 * since a renewal may fail, or its end come near. */
unsigned engine_handover(struct lock_engine *e, unsigned part, unsigned parts, unsigned max, int64_t now_ms);
/* Asks the sink for a renewal of the leases that would end in the next `ms`, so that they last for as long as Redis
 * can't be reached: for `ms` beside their usual time. Of all shards, from one thread. Returns how many it asked for, at
 * most `max`; to be called again until it is none, since a renewal may be under way. */
unsigned engine_outlast(struct lock_engine *e, int64_t ms, unsigned max, int64_t now_ms);
/* Whether a renewal that has not been sent yet is still wanted: its owner has neither released nor left. */
bool engine_wants_renewal(struct lock_engine *e, const struct lock_key *key, uint64_t token);
/* Tells the engine what became of a renewal, once for each that the sink was asked for. DONE: pttl_ms and leased say
 * how the lease ends now, since the application may have set its own expiry. HELD, FOREIGN, FREE: the lease is gone
 * (renewal_lost). UNKNOWN, NOT_SENT: the renewal is tried again while the lease may be live. */
void engine_renewed(struct lock_engine *e, const struct lock_key *key, uint64_t token, const struct lock_result *r,
                    int64_t now_ms);

/* ---- alarms -------------------------------------------------------------------------------- */

/* A lease that is over, as far as this proxy knows, while the session that acquired it is connected and has not
 * released it. The session layer asks Redis first, and tells the session then. Pointers are borrowed. */
struct lock_alarm {
    struct lock_lease lease;      /* right RIGHT_LOOK */
    struct lock_session *session; /* valid during the callback alone */
    uint64_t session_id, fence;
    bool own; /* the connection is its worker's own */
};

/* Whether the session is still to hear of the lease's end. It is not once it has released the lock, asked for it anew
 * or written it. */
bool engine_alarm_waits(struct lock_engine *e, const struct lock_key *key, uint64_t session_id, uint64_t token);
/* What Redis says of an alarm: the lease is over, it goes on after all, or it is not known. */
enum alarm_end { ALARM_OVER, ALARM_KEPT, ALARM_UNKNOWN };
/* Takes Redis's answer to the look that was sent at asked_ms. If the lease goes on, its claim lives again. */
enum alarm_end engine_alarm_looked(struct lock_engine *e, const struct lock_key *key, uint64_t session_id,
                                   uint64_t token, const struct lock_result *r, int64_t asked_ms, int64_t now_ms);
/* Called right before the session is told. False: it is not to be told any more. Else the alarm is done with, and
 * becomes the incident `lost`, unless another incident has said it. `client` (address and name) and `action` are for
 * the incident. */
bool engine_alarm_take(struct lock_engine *e, const struct lock_key *key, uint64_t session_id, uint64_t token,
                       const char *client, const char *action, int64_t now_ms);

/* ---- effects ------------------------------------------------------------------------------- */

/* A party (the owner of list locks' nodes, as list.lua has it) that has disconnected. Pointers are borrowed. */
struct lock_leaving {
    struct lock_key key;
    const struct lock_rule *rule;
    enum lock_right right; /* as of the party's commands on the queue */
    uint32_t login;
    const char *party;
    size_t party_len;
};

/* A lease that the proxy renewed, and whose owner has left. The owner may come back at another proxy. Pointers are
 * borrowed. */
struct lock_left {
    struct lock_key key;
    uint32_t login;
    const char *identity; /* the owner's */
    size_t identity_len;
    char token[LOCK_TOKEN_MAX];
    char group[LOCK_TOKEN_MAX]; /* equal for all leases that one session has left; without spaces, as the token */
    int64_t left_ms, until_ms;  /* when it left, and when the lease ends */
};

/* Facts of a workload, written to Redis for later runs and other proxies. */
enum workload_fact {
    FACT_POOLED = 1,         /* its workers share connections */
    FACT_LOSERS_RELEASE = 2, /* its losers send a release right behind a lost attempt */
    FACT_DEDICATED = 4,      /* each of its sessions carries one worker's commands; never together with FACT_POOLED */
    FACT_LOSERS_QUIET = 8    /* its losers send no release, not even behind many lost attempts in a row */
};

/* A workload, by its texts, and what is known of it. Pointers are borrowed. */
struct lock_facts {
    const char *identity, *rule, *pattern; /* the client's, the rule's pattern, and the keys', each whole */
    size_t identity_len, rule_len, pattern_len;
    unsigned facts; /* enum workload_fact: these hold */
    unsigned over;  /* these do not hold any more */
    int64_t age_ms; /* for engine_learnt: so long ago the facts were confirmed */
};

/* KIND(name, the word for it): a kind of incident. */
#define LOCK_INCIDENTS(KIND)                                                                                           \
    KIND(INCIDENT_LATE_RELEASE, "late_release")                                                                        \
    KIND(INCIDENT_FOREIGN_RELEASE, "foreign_release")                                                                  \
    KIND(INCIDENT_FOREIGN_EXTEND, "foreign_extend")                                                                    \
    KIND(INCIDENT_OVERWRITE, "overwrite")                                                                              \
    KIND(INCIDENT_NO_EXPIRY, "no_expiry")                                                                              \
    KIND(INCIDENT_OVERRUN, "overrun")                                                                                  \
    KIND(INCIDENT_ABANDONED, "abandoned")                                                                              \
    KIND(INCIDENT_AMBIGUOUS, "ambiguous")                                                                              \
    KIND(INCIDENT_LOST_HEAD, "lost_head")                                                                              \
    KIND(INCIDENT_RENEWAL_LOST, "renewal_lost")                                                                        \
    KIND(INCIDENT_UNCONFIRMED, "unconfirmed")                                                                          \
    KIND(INCIDENT_OPERATOR_RELEASE, "operator_release")                                                                \
    KIND(INCIDENT_SHARED, "shared")                                                                                    \
    KIND(INCIDENT_BELIEVED, "believed")                                                                                \
    KIND(INCIDENT_HELD_LONG, "held_long")                                                                              \
    KIND(INCIDENT_DEADLOCK, "deadlock")                                                                                \
    KIND(INCIDENT_LATE_WRITE, "late_write")                                                                            \
    KIND(INCIDENT_ONE_SHOT, "one_shot")                                                                                \
    KIND(INCIDENT_PERMIT_RETURNED, "permit_returned")                                                                  \
    KIND(INCIDENT_PERMIT_LOST, "permit_lost")                                                                          \
    KIND(INCIDENT_REMEMBERED, "remembered")                                                                            \
    KIND(INCIDENT_OVERTAKEN, "overtaken")                                                                              \
    KIND(INCIDENT_LOST, "lost")

enum lock_incident_kind {
#define KIND_NAME(name, text) name,
    LOCK_INCIDENTS(KIND_NAME)
#undef KIND_NAME
        INCIDENT_KINDS
};
/* The name of a kind of incident, "late_release", ...; static. */
const char *lock_incident_name(enum lock_incident_kind kind);

/* Pointers are borrowed. The sink gets "" for a text that is NULL, which is not known. */
struct lock_incident {
    enum lock_incident_kind kind;
    int64_t time_ms;
    struct lock_key key;
    const char *rule;     /* the pattern of the key's rule */
    const char *identity; /* of the client whose command caused the incident */
    const char *client;   /* the client's address and name; none if the proxy caused it */
    const char *holder;   /* the client that holds the lock */
    size_t holder_len;
    const char *command; /* what the application sent */
    const char *action;  /* what the proxy did: "refused", "lease of 30000 ms given, renewed while connected", ... */
};
/* Reports what the session layer has seen of a lock: a circle of waiting sessions, a semaphore's permit. */
void engine_report(struct lock_engine *e, const struct lock_incident *incident);

struct lock_sink {
    void *arg;
    void (*incident)(void *arg, const struct lock_incident *incident);
    void (*renew)(void *arg, const struct lock_lease *lease); /* from engine_tick */
    /* from engine_session_close, _identify and engine_finish */
    void (*release)(void *arg, const struct lock_lease *lease);
    void (*leave)(void *arg, const struct lock_leaving *leaving); /* from the same functions as `release` */
    void (*left)(void *arg, const struct lock_left *left); /* from the same ones, and engine_handover; may be NULL */
    void (*learnt)(void *arg, const struct lock_facts *facts); /* from engine_begin, _finish and _tick; may be NULL */
    void (*alarm)(void *arg, const struct lock_alarm *alarm);  /* from all functions that end leases; may be NULL */
};

/* Makes an engine. `process` is this process's UUID (36 characters); `seed` keys the hash tables. */
struct lock_engine *engine_new(const char *process, uint64_t seed, const struct lock_sink *sink);
void engine_free(struct lock_engine *e);
/* Only one thread calls the engine from now on: it locks no mutex. */
void engine_alone(struct lock_engine *e);

/* ---- what earlier runs and other proxies have learnt ------------------------------------------- */

enum { FACT_MS = 7 * 24 * 60 * 60 * 1000 }; /* a fact that was not confirmed for so long is forgotten */

/* Tells the engine facts of a workload. An existing workload takes them over at once, and a later one starts with them.
 * Facts that this engine has told the sink itself may come back: that changes nothing. FACT_POOLED wins over
 * FACT_DEDICATED. From any thread. */
void engine_learnt(struct lock_engine *e, const struct lock_facts *facts, int64_t now_ms);
/* A number that grows with each command on a lock. From any thread. */
uint64_t engine_begun(struct lock_engine *e);
/* Whether other proxies are known to give out locks before the same Redis. */
bool engine_elsewhere(const struct lock_engine *e);
/* Redis may have forgotten leases that it granted before now: a node was lost, or slots are at other nodes. From any
 * thread. */
void engine_may_forget(struct lock_engine *e, int64_t now_ms);

/* ---- what sessions of other proxies have left -------------------------------------------------- */

/* Whether a session is here that may be the lease's owner come back. *login: with which login to speak to Redis then.
 * `rule` is the lock's; NULL: any session of the identity that has come since counts. The clocks of proxies are taken
 * to agree within a second. */
bool engine_awaits(struct lock_engine *e, const struct lock_left *left, const struct lock_rule *rule, uint32_t *login);
/* A fresh token, for a lease that is taken over. Returns its number. */
uint64_t engine_token(struct lock_engine *e, char out[LOCK_TOKEN_MAX]);
/* This proxy has taken a lease over under this token. It is renewed while its successor is connected. `r` has its fence
 * and end. */
void engine_inherited(struct lock_engine *e, const struct lock_left *left, const struct lock_rule *rule, uint32_t login,
                      uint64_t token, const struct lock_result *r, int64_t now_ms);

/* ---- looking in (PROXY LOCKS, PROXY INFO) ---------------------------------------------------- */

/* STAT(field, name, type, workload, label, value, help), as in base/counters.h; the first four are of this moment. */
#define LOCK_STATS(STAT)                                                                                               \
    STAT(leases, "leases", "gauge", "leases", NULL, NULL, "Leases that this proxy knows to be live.")                  \
    STAT(claims, "claims", "gauge", "claims", NULL, NULL, "Acquisitions that may still be released.")                  \
    STAT(keys, "keys", "gauge", "lock_keys", NULL, NULL, "Keys of which this proxy knows anything.")                   \
    STAT(facts, "learnt_families", "gauge", "learnt_families", NULL, NULL,                                             \
         "Clients' kinds of locks of which this proxy, an earlier run or another proxy has learnt something.")         \
    STAT(granted, "acquisitions_granted", "counter", "acquisitions_total", "result", "granted",                        \
         "Attempts to acquire a lock.")                                                                                \
    STAT(lost, "acquisitions_lost", "counter", "acquisitions_total", "result", "lost", NULL)                           \
    STAT(released, "releases_done", "counter", "releases_total", "result", "done",                                     \
         "Releases asked for by clients; incidents_total has the reasons of refusals.")                                \
    STAT(refused_releases, "releases_refused", "counter", "releases_total", "result", "refused", NULL)                 \
    STAT(refused_extends, "extends_refused", "counter", "extends_refused_total", NULL, NULL,                           \
         "Changes of an expiry that were refused.")                                                                    \
    STAT(renewals, "renewals", "counter", "renewals_total", NULL, NULL, "Leases renewed by the proxy.")

struct lock_stats {
#define STAT_FIELD(field, ...) uint64_t field;
    LOCK_STATS(STAT_FIELD)
#undef STAT_FIELD
    uint64_t incidents[INCIDENT_KINDS];
    /* Of granted attempts: since the first attempt that the session lost in a row; 0: it lost none. */
    struct histogram waits;
};
/* For a struct lock_stats; incidents and waits are no rows of it. */
extern const struct metric_table lock_counters;
void engine_stats(struct lock_engine *e, struct lock_stats *stats);
/* How long the longest live lease lasts, another proxy's too, in ms; 0: there is none; INT64_MAX: one has no end. */
int64_t engine_longest_ms(struct lock_engine *e, int64_t now_ms);

struct lock_view {
    struct lock_key key;
    const char *client; /* identity */
    size_t client_len;
    uint64_t session_id;
    bool connected;
    uint64_t fence;
    int64_t since_ms, end_ms; /* end 0: none */
    int64_t delayed_ms;  /* until when the rule's lock-delay keeps others out behind the end; 0: the lease is live */
    int64_t one_shot_ms; /* when the renewal of a one-shot client's lock ends; 0: it is no such lock */
    uint64_t renewals;
};
/* How a session stands to a lock, as far as this proxy knows. */
struct lock_standing {
    int64_t since_ms; /* when the live lease was acquired; 0: none is known */
    bool own;         /* the session has acquired it */
    bool pooled;      /* its connections are a pool's: whose release a command is follows from more than the session */
    bool lost;        /* the session's last attempt was refused */
    char client[LOCK_IDENTITY_MAX + 1]; /* the holder's identity */
};
void engine_standing(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key, int64_t now_ms,
                     struct lock_standing *out);

/* How long locks were held, and how long sessions waited for them, since the start. A hold counts when its lease ends,
 * a wait with each attempt that is lost, and when the lock is acquired. */
struct lock_times {
    int64_t held_ms, holds, longest_hold_ms;
    int64_t waited_ms, waits, longest_wait_ms;
};

/* What has been learnt of a workload: a client identity's keys of one pattern under one rule. The texts are cut to
 * LOCK_WORKLOAD_NAME_MAX - 1. */
enum { LOCK_WORKLOAD_NAME_MAX = 96 };
struct lock_workload {
    const char *client, *rule, *pattern;
    bool pooled;
    const struct lock_times *times;
};
/* Calls fn for all workloads, in no order; fn must not call the engine. */
void engine_each_workload(struct lock_engine *e, void (*fn)(void *arg, const struct lock_workload *f), void *arg);
/* The times of workloads that are forgotten, and of leases whose workload is not known. */
struct lock_times engine_other_times(struct lock_engine *e);
void lock_times_add(struct lock_times *to, const struct lock_times *from);
/* A wait under the rule option `wait` ends, before engine_finish hears of the attempt. */
void engine_waited(struct lock_engine *e, const struct lock_plan *plan, int64_t ms, bool granted, int64_t now_ms);

/* How a lock was fought over: attempts to acquire it that were lost. */
enum { CONTENTION_MINUTES = 5, CONTENTION_NAME_MAX = 160 };
struct lock_contention {
    uint32_t db;
    uint32_t waiters;                  /* sessions that lost against the present holder and may try again */
    uint32_t all;                      /* in all of the minutes */
    uint32_t lost[CONTENTION_MINUTES]; /* by minute, the present one first */
    bool cut;                          /* the name is only the beginning */
    size_t name_len;
    char name[CONTENTION_NAME_MAX];
};
/* Calls fn for the locks that were fought over most in the last minutes, in no order; fn must not call the engine. */
void engine_each_contention(struct lock_engine *e, int64_t now_ms,
                            void (*fn)(void *arg, const struct lock_contention *c), void *arg);
/* Finds the locks with the most lost attempts, at most `max`, in descending order. Returns how many. */
size_t engine_most_contended(struct lock_engine *e, int64_t now_ms, struct lock_contention *out, size_t max);

/* Finds in steps the newest leases believed live, or delayed, at most max, and fewer if names are very long; `oldest`:
 * the oldest live ones. engine_walk_step looks at a part of the keys, and returns whether there are more. Then
 * engine_walk_each calls fn for each lease, the newest (or oldest) first. */
struct lock_walk;
struct lock_walk *engine_walk_new(size_t max, bool oldest);
void engine_walk_free(struct lock_walk *walk);
bool engine_walk_step(struct lock_engine *e, struct lock_walk *walk, int64_t now_ms);
void engine_walk_each(const struct lock_walk *walk, void (*fn)(void *arg, const struct lock_view *v), void *arg);
