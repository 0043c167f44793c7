/*
 * The lock engine: whose claim does a command use, and what follows from Redis's answer.
 *
 *      command on a lock key                       the script's envelope
 *               │                                            │
 *          engine_begin ──> plan (token, claim, right) ──> engine_finish ──> claims, incidents, renewals
 *
 * It decides and never does: no socket, no clock, no random source. Times and tokens come in with the
 * events, effects go out through struct lock_sink, and the same events give the same effects. Redis (the
 * scripts in scripts/lua/) has the last word on every lease; the engine only remembers which session
 * acquired what, and chooses on whose behalf a command speaks.
 *
 * The words (claim, spent, outstanding, sighted, workload) are those of docs/locks.md.
 *
 * One engine serves many threads: it is split into shards by key, each with its mutex. The sink is called
 * with a shard locked and must only take notes; it must not call the engine.
 */
#ifndef LOCKKEEPER_LOCK_ENGINE_H
#define LOCKKEEPER_LOCK_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/histogram.h"
#include "proxy/base/list.h"
#include "proxy/base/metric.h"
#include "proxy/lock/rule.h"

struct lock_engine;
struct lock_client; /* a client identity; reference-counted, thread-safe */
struct peer;        /* private */
struct estate;      /* private */

enum {
    LOCK_TOKEN_MAX = 64,  /* "UUID:N" with its NUL */
    LOCK_SEEN_MAX = 1024, /* a longer value is not remembered as read */
    LOCK_SEEN_SHORT = 96, /* nearly all are shorter */
    LOCK_IDENTITY_MAX = 256
};

/* ---- sessions ------------------------------------------------------------------------------ */

/* What the engine knows of a session. Owned by the session layer, which opens and closes it here. */
enum { LOCK_KEY_KNOWN = 40 }; /* longer keys are hashed each time */

struct lock_session {
    uint64_t id; /* unique in this process, growing with time of opening */
    struct lock_client *client;
    bool overlapped; /* its commands may be several workers': engine_session_overlapped, or its library multiplexes */
    uint64_t shards; /* private: which shards know this session */
    uint32_t login; /* opaque, the session layer's: whose upstream connections it uses; as of engine_session_identify */
    bool patient;   /* the session layer's: the command that it begins may be held back (struct lock_plan, held_back) */
    uint16_t trip_ms; /* the session layer's: a round trip to the client takes so long; 0 less than 1, or not known */
    bool one_shot;    /* the session layer's, before engine_session_close: beside what logs in, the session has sent one
                       * command alone, and its client closed the connection in good order */
    /* Private to engine.c: the last key, what it hashes to, and its slot. Who has acquired a lock releases it next. */
    struct {
        uint64_t hash, pattern;
        uint64_t workload,
            of;           /* its workload's number under the rule and for the client that `of` is of; 0: not known */
        uint32_t db, len; /* len 0: none */
        uint16_t slot;
        char name[LOCK_KEY_KNOWN];
    } last;
    /* Private to heir.c: among those who came to its identity, its number there, and when; what it goes on with, and
     * what it leaves. */
    struct list_node of_client;
    uint64_t came;
    int64_t came_ms;
    uint32_t came_login;
    struct estate *estate, *left;
    atomic_bool attends; /* has an estate */
};

/* Opens a session under a client identity (bytes, at most LOCK_IDENTITY_MAX are used). It has not come to it as one
 * that may go on for another: see engine_session_identify. */
void engine_session_open(struct lock_engine *e, struct lock_session *s, uint64_t id, const char *identity, size_t len);
/* Tells the engine a session's identity, which is known now, or has changed (AUTH, CLIENT SETNAME). The session's
 * claims move with it; where it was the last of its former identity, what earlier ones of that left is abandoned, as
 * with engine_session_close. Where an earlier session of the new one has closed, what the proxy renewed for that one is
 * renewed for this one from now on (heir.c). `s` must stay where it is until it is closed. */
void engine_session_identify(struct lock_engine *e, struct lock_session *s, const char *identity, size_t len,
                             int64_t now_ms);
/* Notes that a lock command of the session's came in a later read while an earlier request had been sent and not
 * answered: who works on one thing after another does not do that. */
void engine_session_overlapped(struct lock_engine *e, struct lock_session *s);
/* Notes the library that the client names (CLIENT SETINFO lib-name). Returns whether it is one that multiplexes. */
bool engine_session_library(struct lock_engine *e, struct lock_session *s, const char *name, size_t len);
/* Closes a session; its id stays valid for engine_finish. With s->one_shot, a lock that it has just acquired is kept
 * for the rule's `one-shot` (one_shot.c). Abandoned leases are reported to the sink; on-disconnect
 * release asks it for releases. */
void engine_session_close(struct lock_engine *e, struct lock_session *s, int64_t now_ms);
/* Whether what closed sessions have left is still being gone through: who had very much, a few hundred leases at each
 * engine_tick, which is to be called soon. Their logins are still needed. */
bool engine_departs(struct lock_engine *e);
/* The identity as text, borrowed, for guard records and people. */
const char *lock_client_name(const struct lock_client *c, size_t *len);
/* A keyed hash of the client's identity. */
uint64_t lock_client_hash(const struct lock_client *c);
/* Whether the name is one of a library that sends the commands of several workers over one connection. */
bool client_library_multiplexes(const char *name, size_t len);

/* ---- commands ------------------------------------------------------------------------------ */

/* What verbs have in common. */
enum lock_verb_flag {
    VERB_ACQUIRES = 1 << 0, /* what is granted to it is a lease of a plain key, of its own */
    VERB_CLAIMS =
        1 << 1, /* it may be meant to acquire: no sign that its sender holds something on another connection */
    VERB_SPENDS = 1 << 2,    /* it uses up the claim that it speaks by */
    VERB_ENDS = 1 << 3,      /* it may end a lease */
    VERB_WRITES = 1 << 4,    /* it writes, and frees nothing that somebody could wait for */
    VERB_ENROLS = 1 << 5,    /* it turns a lock that was acquired under audit into a lease of the scripts' */
    VERB_QUEUE = 1 << 6,     /* it is about a list lock's queue */
    VERB_SHOWS = 1 << 7,     /* its reply is the value */
    VERB_LOCKED = 1 << 8,    /* it is refused by an error, LOCKED */
    VERB_ATTEMPTS = 1 << 9,  /* refused, it was an attempt to acquire that has lost */
    VERB_RELEASES = 1 << 10, /* refused, it was a release of what is not the caller's */
    VERB_SAYS = 1 << 11      /* it writes a whole value over the one that is there: engine_says */
};

/* VERB(name, what PROXY EXPLAIN calls it, flags). What a command means to a lock; the session layer derives it from the
 * command and its options. */
#define LOCK_VERBS(VERB)                                                                                               \
    /* SETNX, SET NX */                                                                                                \
    VERB(LOCK_ACQUIRE, "acquire", VERB_ACQUIRES | VERB_CLAIMS | VERB_ATTEMPTS)                                         \
    /* SET with an expiry, SETEX, PSETEX: may acquire */                                                               \
    VERB(LOCK_REPLACE, "replace", VERB_ACQUIRES | VERB_CLAIMS | VERB_ENROLS | VERB_LOCKED | VERB_SAYS)                 \
    /* SET XX: writes what is there, and never acquires */                                                             \
    VERB(LOCK_REWRITE, "replace", VERB_ENROLS | VERB_SAYS)                                                             \
    /* GETSET, SET GET */                                                                                              \
    VERB(LOCK_SWAP, "swap", VERB_ACQUIRES | VERB_CLAIMS | VERB_SAYS)                                                   \
    /* DEL, UNLINK, GETDEL */                                                                                          \
    VERB(LOCK_RELEASE, "release", VERB_SPENDS | VERB_ENDS | VERB_ENROLS | VERB_RELEASES)                               \
    /* EXPIRE and its kin, PERSIST, GETEX */                                                                           \
    VERB(LOCK_EXTEND, "extend", VERB_ENROLS)                                                                           \
    /* INCR: may acquire */                                                                                            \
    VERB(LOCK_COUNT_UP, "count up", VERB_ACQUIRES | VERB_CLAIMS | VERB_ENROLS)                                         \
    /* DECR, INCRBY -1: may release; spends the claim where it did, or was refused */                                  \
    VERB(LOCK_COUNT_DOWN, "count down", VERB_SPENDS | VERB_ENDS | VERB_WRITES | VERB_ENROLS | VERB_RELEASES)           \
    /* GET */                                                                                                          \
    VERB(LOCK_READ, "read", VERB_SHOWS)                                                                                \
    /* SET without an expiry, APPEND, INCR where counters are no locks: writes data, or its own lock */                \
    VERB(LOCK_PASS, "write: data, unless a lease is there", VERB_CLAIMS | VERB_WRITES | VERB_ENROLS | VERB_LOCKED)     \
    /* RENAME, COPY, MSET, *STORE, ...: spends the claim where it did */                                               \
    VERB(LOCK_CLOBBER, "remove or replace", VERB_ENDS | VERB_WRITES | VERB_ENROLS | VERB_LOCKED)                       \
    /* what a script of the application's has made of the lock: adopts, spends, changes nothing */                     \
    VERB(LOCK_SCRIPT, "a script of the application's", VERB_SHOWS)                                                     \
    /* RPUSH, LPUSH, ...: a node joins a list lock */                                                                  \
    VERB(LOCK_QUEUE_PUSH, "queue push", VERB_QUEUE | VERB_LOCKED | VERB_ATTEMPTS)                                      \
    /* LRANGE, LINDEX, LLEN, LPOS, EXISTS: may make the head's owner the holder */                                     \
    VERB(LOCK_QUEUE_READ, "queue read", VERB_QUEUE)                                                                    \
    /* LREM: names a node, whose owner may */                                                                          \
    VERB(LOCK_QUEUE_REMOVE, "queue remove", VERB_QUEUE | VERB_RELEASES)                                                \
    /* LSET, LTRIM */                                                                                                  \
    VERB(LOCK_QUEUE_SET, "queue change", VERB_QUEUE | VERB_LOCKED)                                                     \
    /* PROXY LOCK, PROXY TOKEN */                                                                                      \
    VERB(LOCK_INSPECT, "inspect", 0)                                                                                   \
    /* PROXY RELEASE */                                                                                                \
    VERB(LOCK_OPERATOR, "operator release", 0)

enum lock_verb {
#define VERB_NAME(name, text, flags) name,
    LOCK_VERBS(VERB_NAME)
#undef VERB_NAME
};

/* Whether the verb has any of these flags. */
static inline bool lock_verb_is(enum lock_verb verb, unsigned flags) {
    static const uint16_t of_verbs[] = {
#define VERB_FLAGS(name, text, flags) flags,
        LOCK_VERBS(VERB_FLAGS)
#undef VERB_FLAGS
    };
    return of_verbs[verb] & flags;
}

/* The name of a verb for people; static. */
const char *lock_verb_text(enum lock_verb verb);

/* A lock: databases are kept apart, keys are bytes. */
struct lock_key {
    uint32_t db;
    const char *name;
    size_t len;
};

/* RIGHT(name, the scripts' word, ARGV 5): by what right a command speaks for a lease, as arguments.lua has it, of list
 * locks list.lua. */
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
    RIGHT(RIGHT_INSTEAD, "instead")                                                                                    \
    RIGHT(RIGHT_ANY, "any")                                                                                            \
    RIGHT(RIGHT_OPERATOR, "operator")                                                                                  \
    RIGHT(RIGHT_OWN, "own")                                                                                            \
    RIGHT(RIGHT_AUTO, "auto")                                                                                          \
    RIGHT(RIGHT_CLIENT, "client")                                                                                      \
    /* of renewals: where the application's own expiry is renewed too */                                               \
    RIGHT(RIGHT_ALWAYS, "always")                                                                                      \
    /* where nothing is renewed, and the guard record is to follow the lock's end */                                   \
    RIGHT(RIGHT_LOOK, "look")                                                                                          \
    /* where the lease is taken over from an owner that has left */                                                    \
    RIGHT(RIGHT_HEIR, "heir")

enum lock_right {
#define RIGHT_NAME(name, text) name,
    LOCK_RIGHTS(RIGHT_NAME)
#undef RIGHT_NAME
};
/* The scripts' word for a right; static. */
const char *lock_right_text(enum lock_right right);

/* What the script may be told; filled by engine_begin. */
struct lock_plan {
    struct lock_key key;          /* borrowed from the caller until engine_finish */
    const struct lock_rule *rule; /* held by the caller */
    enum lock_verb verb;
    uint32_t login; /* opaque: whose upstream connections its renewals use */
    int64_t begun_ms;
    uint64_t attempt;               /* token number of this attempt */
    uint64_t group;                 /* of the first command on the key in its transaction; 0: it is none behind it */
    uint64_t claim;                 /* token number of the chosen claim, 0 none; LOCK_SCRIPT: of the session's lease */
    bool several;                   /* other claims could have been meant */
    bool uses;                      /* private: the claim counts this command among its uses */
    bool transaction;               /* private: it was queued in a transaction */
    bool queued;                    /* private: and EXEC has not been sent */
    bool undone;                    /* EXEC answered nil: set before engine_finish, with LOCK_NOT_SENT */
    uint64_t claim_fence;           /* of that claim's lease, 0 not known */
    bool counted;                   /* private: among its workload's releases */
    bool first_release;             /* private: it is known by this one that the session has released */
    bool twice;                     /* private: counted as the second one in a row over its session */
    bool patient;                   /* private: the command may be held back */
    bool held_back;                 /* LOCK_RELEASE: it is to be begun once more in some ms; see engine_put_off */
    bool by_chance;                 /* private: it is believed, and says nothing of the workload */
    bool repeats;                   /* private: it writes the value that the lease of its claim has (K2) */
    uint64_t field;                 /* private: engine_writes_field's; 0: it writes none */
    uint64_t hash, pattern;         /* private: the key's, and its pattern's */
    uint64_t workload;              /* private: its workload's number, where there is a rule */
    struct peer *peer;              /* private: what the shard knows of the session */
    uint16_t slot;                  /* the key's */
    uint8_t attempt_len, claim_len; /* of the texts below */
    char attempt_token[LOCK_TOKEN_MAX]; /* ARGV 1 */
    char claim_token[LOCK_TOKEN_MAX];   /* ARGV 2; "" none */
    enum lock_right right;              /* ARGV 5 */
    int64_t older_ms;                   /* RIGHT_OLDER: the older lease's release is expected for so long */
    uint64_t read_fence;                /* ARGV 7; RIGHT_FENCE: of the claim's lease */
    bool seen_known;                    /* ARGV 8, as lock_plan_seen has it */
    uint32_t seen_len;
    char seen_short[LOCK_SEEN_SHORT]; /* private: what is longer is behind seen_long, until engine_finish */
    char *seen_long;
    bool data_free; /* what stands there without a live lease is data, which the caller may touch: '*' in ARGV 8 */
};

/* ARGV 6, in ms; of a release by RIGHT_FENCE that fence: release.lua has no ARGV 7 for it. */
static inline int64_t lock_plan_lease_ms(const struct lock_plan *plan) {
    if (plan->right == RIGHT_FENCE && plan->verb == LOCK_RELEASE)
        return (int64_t)plan->read_fence;
    return plan->right == RIGHT_OLDER ? plan->older_ms : plan->rule ? plan->rule->lease_ms : 0;
}

/* What the session has seen; for LOCK_QUEUE_* the party (list.lua): plan->seen_len bytes where plan->seen_known. */
static inline const char *lock_plan_seen(const struct lock_plan *plan) {
    return plan->seen_len > LOCK_SEEN_SHORT ? plan->seen_long : plan->seen_short;
}
/* Sets that, copied; who has not begun the plan by engine_begin frees seen_long. At most LOCK_SEEN_MAX bytes. */
void lock_plan_see(struct lock_plan *plan, const char *data, size_t len);

/* What the script said (its envelope), or what became of it. */
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
    LOCK_UNCONFIRMED, /* acquired, not confirmed by the rule's replicas, and being released again */
    LOCK_NOT_SENT,    /* the script never reached Redis: as if the command had not been sent */
    LOCK_UNKNOWN      /* lost: nobody knows */
};

/* Reads an outcome's name as the scripts write it. Returns false for an unknown one. */
bool lock_outcome_parse(const char *text, size_t len, enum lock_outcome *outcome);

/* What the scripts, or what is known of a command, say in the place of a lock's PTTL. */
enum {
    PTTL_NONE = -1,   /* the lock has no expiry */
    PTTL_GONE = -2,   /* there is no key */
    PTTL_UNKNOWN = -3 /* not asked for, or left as it was */
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
    const char *shown; /* acquire, swap, refused: the value that the answer shows; LOCK_QUEUE_READ: the node that the
                          command names; NULL: none */
    size_t shown_len;
    uint64_t lost;          /* dead heads of a list lock that were removed */
    const char *lost_owner; /* the identity of the last one's owner; borrowed, may be NULL */
    size_t lost_owner_len;
    bool leased;        /* the live lease's expiry is the proxy's own (the envelope's last element) */
    bool same;          /* the live lease is of the caller's identity */
    bool elsewhere;     /* another proxy gave it */
    bool pooled;        /* its workload is known to share connections, maybe at another proxy */
    uint8_t suspects;   /* releases of losers that were refused while it was live, 3 at most */
    int64_t shifted_ms; /* a release of its identity's was refused at another proxy, and counted for an older lease
                         * there: for how long the release of that one was expected, 1 at least; 0: none was */
    union {
        uint64_t replicas; /* LOCK_UNCONFIRMED: that had it in time */
        int64_t waits_ms;  /* LOCK_GRANTED, LOCK_HELD: for how long somebody has waited at another proxy; 0: nobody
                            * has, or it was not asked */
    };
};

/* Chooses on whose behalf the command speaks. The shard's memory of the key is touched, and for LOCK_RELEASE
 * the chosen claim is reserved, so that a release in flight next to this one uses another. `queued`: the command waits
 * in a transaction that may be discarded, and its sender has released nothing before EXEC: the claim is reserved by
 * engine_sent. Every begin is followed by exactly one finish with the same plan; the session may be closed in
 * between. */
void engine_begin(struct lock_engine *e, struct lock_session *s, enum lock_verb verb, const struct lock_key *key,
                  const struct lock_rule *rule, uint32_t login, bool queued, int64_t now_ms, struct lock_plan *plan);
/* Tells the engine that EXEC is on its way to Redis, with a command that was begun as queued. */
void engine_sent(struct lock_engine *e, struct lock_plan *plan);

/* Finds whose lease a command speaks for that is queued in a transaction: looks back over what is queued before it on
 * the same key, the last one first, and remembers in *acquirer (NULL at first) the one that may acquire; if several
 * may, the first behind a release is the one: where it does not, none does. `acquires`: `before` may, whatever its plan
 * says. False: there is no need to look further back. */
bool engine_looks_back(struct lock_plan *plan, const struct lock_plan *before, bool acquires,
                       const struct lock_plan **acquirer);
/* Has a command speak for the lease that `earlier` acquires, if it does, behind which it runs in one transaction
 * (engine_looks_back); what was chosen for it is given back. Before either is finished. */
void engine_follow(struct lock_engine *e, struct lock_plan *plan, const struct lock_plan *earlier, int64_t now_ms);

/* Tells the engine, behind engine_begin and before the script is built, which value a command writes (VERB_SAYS). Where
 * that is the value of the live lease of its client, and the client's values tell its workers apart, the command speaks
 * for that lease (K2). `field`: the lock is a hash, and the value the name of a field. */
void engine_says(struct lock_engine *e, struct lock_plan *plan, const char *value, size_t len, bool field,
                 int64_t now_ms);
/* Whether the session was shown, by GET, the value of the lease that is live as far as is known, and that it does not
 * hold itself: a SET in a transaction that watches the key takes that lease over (K3). */
bool engine_compares(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key, int64_t now_ms);

/* A command was refused by a live lease. True: its script is sent once more, as the plan says now. To be asked before
 * engine_finish, once.
 *   An attempt to acquire: what is known says that the live lease's release was refused, so that the script releases
 *   that lease (claim_token, right "instead") and acquires in one step.
 *   A release: its claim's lease may have been released through another proxy, which the guard record says (right
 *   "spent"). */
bool engine_again(struct lock_engine *e, struct lock_plan *plan, const struct lock_result *result, int64_t now_ms);

/* Takes back the plan of an attempt to acquire, or of a release that is held back, which is begun once more later, in
 * the session's thread: as if there had been none. */
void engine_put_off(struct lock_engine *e, const struct lock_plan *plan);
/* Whether the lease with this fence (0: whichever is live) that stands in an attempt's way was acquired by its own
 * session, and so by who asks: not where the session's commands may be several workers'. */
bool engine_own_lease(struct lock_engine *e, const struct lock_plan *plan, uint64_t fence, int64_t now_ms);
/* An attempt that goes on waiting was refused by a lease of which r->shifted_ms says something: that is learnt. */
void engine_shifted(struct lock_engine *e, const struct lock_plan *plan, const struct lock_result *r, int64_t now_ms);
/* The session that holds the live lease of a key, over a connection of its own; 0: nobody who is connected here, or it
 * is not known who of several. `hash` is the key's. */
uint64_t engine_holder(struct lock_engine *e, const struct lock_key *key, uint64_t hash, int64_t now_ms);
/* How a session stands to a lock as it writes data: its client holds it; its own lease is over, and was not released;
 * or neither. Where the sessions of its client are shared, they are taken for one. */
enum lock_writer { WRITER_NONE, WRITER_HOLDS, WRITER_LATE };
enum lock_writer engine_writer(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key,
                               int64_t now_ms);
/* How the session writes, with the lease that it writes under: the newest that its session has acquired and not
 * released itself, or where it has none or its connections are shared, its client; what a closed session of its client
 * has lost is its own where it has none. What is not known is 0. */
struct lock_writing {
    enum lock_writer how;
    uint64_t fence;  /* of that lease */
    uint64_t newest; /* of the newest lease on the lock that is known here */
    int64_t over_ms; /* so long ago it ended */
    bool own;        /* the session has acquired it, or a colleague of its pool; else another session of the client */
};
struct lock_writing engine_writing(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key,
                                   int64_t now_ms);
/* Whether the session holds, or has lost and not acquired again, a lock in the database which a fence that is enforced
 * may name. */
bool engine_has_tenure(struct lock_engine *e, const struct lock_session *s, uint32_t db);
/* A reload brings other fences: leases that were acquired before it, and whose release has not come, count for them.
 * Before that, lock_rules_fenced_by has to say so to the rules that were in force. */
void engine_fences_came(struct lock_engine *e, const struct lock_rules *rules);
/* Reports a write of the data `key`, by a session that has lost the lock `by`; `rule` is the fence's pattern. `holder`
 * (NULL: who is known here) is who holds it, or held it last; `action` is what was done. */
void engine_late_write(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key,
                       const struct lock_key *by, const char *rule, const char *command, const char *client,
                       const char *holder, size_t holder_len, const char *action, int64_t now_ms);
/* Reports an attempt that was refused because its session would have waited in a circle, which `action` names. */
void engine_deadlock(struct lock_engine *e, const struct lock_plan *plan, const char *command, const char *client,
                     const char *action, int64_t now_ms);
/* A key's hash, as plans have it. */
uint64_t engine_key_hash(const struct lock_engine *e, const struct lock_key *key);

/* `command` (borrowed, e.g. "EXPIRE") and `client` (address and name, borrowed) are for incidents.
 * `session_id` is the session's; the session may be gone by now (s == NULL). */
void engine_finish(struct lock_engine *e, struct lock_session *s, uint64_t session_id, const struct lock_plan *plan,
                   const struct lock_result *result, const char *command, const char *client, int64_t now_ms);

/* A swap was refused, and its answer would be `value`, which the lock holds: whether one of the sessions that may speak
 * for the caller's client was shown that very value last, so that whoever compares would take it for success. Before
 * the plan is finished. */
bool engine_swap_misleads(struct lock_engine *e, uint64_t session_id, const struct lock_plan *plan, const char *value,
                          size_t len);

/* Tells the engine, behind engine_begin, that a command on a hash lock writes this field. `content`: what the field
 * gets; NULL: it is not known. */
void engine_writes_field(const struct lock_engine *e, struct lock_plan *plan, const char *name, size_t len,
                         const char *content, size_t content_len);
/* Whether the session has tried for the lock in vain, by a value or a field, so that what it is shown of the key counts
 * (K1). */
bool engine_has_tried(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key);
/* The session was shown a field of the hash lock. `content`: what the field has; NULL: it was only shown to be there.
 * Nothing, where the session has not tried to write it. */
void engine_saw_field(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key,
                      const struct lock_rule *rule, const char *name, size_t len, const char *content,
                      size_t content_len, int64_t now_ms);

/* The session was shown the key's value by a command that is not a script of ours (MGET, GETRANGE, ...): makes
 * sightings; value NULL: the key does not exist. The lease's fence is not known. */
void engine_saw(struct lock_engine *e, struct lock_session *s, const struct lock_key *key, const struct lock_rule *rule,
                const char *value, size_t len, int64_t now_ms);

/* ---- time ---------------------------------------------------------------------------------- */

/* A lease to be renewed or released by the proxy itself, in the sink's call. Pointers are borrowed. */
struct lock_lease {
    struct lock_key key;
    const struct lock_rule *rule;
    uint32_t login;
    uint64_t token;
    uint8_t token_len;
    char token_text[LOCK_TOKEN_MAX];
    enum lock_right right; /* ARGV 5: RIGHT_CLAIM, RIGHT_ALWAYS or RIGHT_LOOK */
    int64_t lease_ms;      /* renew for so long */
    int64_t left_ms;       /* ARGV 7: of a renewal: what was left of it, as far as is known; 0 no end */
};

/* Forgets what is over, and asks the sink for the renewals that are due. `part` of `parts`: which shards (a
 * thread serves its part). Returns the ms until it wants to be called again, at most 1000. */
int64_t engine_tick(struct lock_engine *e, unsigned part, unsigned parts, int64_t now_ms);
/* Notes, once, that this process stops: owners who are sent away from then on have not abandoned their leases. From any
 * thread. */
void engine_leave(struct lock_engine *e);
/* Ends all leases, as the Redis that held them has ended and kept nothing. At most `reports` of them become incidents
 * (renewal_lost). Returns how many they were. From any thread. */
unsigned engine_lost(struct lock_engine *e, unsigned reports, int64_t now_ms);
/* Hands over, after engine_leave, a thread's part of the shards: asks the sink for a last renewal, for the rule's
 * `handover`, of the leases that the proxy renews and that have not had it. Returns how many that were, at most `max`;
 * less than that: all. Again, after a while, where a renewal was not done or its end has come near. */
unsigned engine_handover(struct lock_engine *e, unsigned part, unsigned parts, unsigned max, int64_t now_ms);
/* Whether a renewal that has not been sent yet is still wanted: its owner has neither released nor left. */
bool engine_wants_renewal(struct lock_engine *e, const struct lock_key *key, uint64_t token);
/* Tells the engine what became of a renewal, once for each that the sink was asked for: outcome DONE, with the lease's
 * end as it is now (pttl_ms, leased: the application may have set its own), or HELD, FOREIGN, FREE (the lease is gone:
 * renewal_lost), or UNKNOWN or NOT_SENT (it is tried again while the lease may still be live). */
void engine_renewed(struct lock_engine *e, const struct lock_key *key, uint64_t token, const struct lock_result *r,
                    int64_t now_ms);

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

/* A lease that the proxy renewed, and whose owner has left: it may come back at another proxy. Pointers are borrowed.
 */
struct lock_left {
    struct lock_key key;
    uint32_t login;
    const char *identity; /* the owner's */
    size_t identity_len;
    char token[LOCK_TOKEN_MAX];
    char group[LOCK_TOKEN_MAX]; /* equal for what one session has left; without spaces, as the token */
    int64_t left_ms, until_ms;  /* when it left, and when the lease ends */
};

/* What is worth keeping of a workload: it is written to Redis for later runs and other proxies. */
enum workload_fact {
    FACT_POOLED = 1,         /* its workers share connections */
    FACT_LOSERS_RELEASE = 2, /* its losers send a release right behind a lost attempt */
    FACT_DEDICATED = 4,      /* its sessions are one worker's each; no fact any more once the workload is pooled */
    FACT_LOSERS_QUIET = 8    /* its losers send no release, also behind many lost attempts in a row */
};

/* A workload, by its texts, and what is known of it. Pointers are borrowed. */
struct lock_facts {
    const char *identity, *rule, *pattern; /* the client's, the rule's pattern, and the keys', each whole */
    size_t identity_len, rule_len, pattern_len;
    unsigned facts; /* enum workload_fact: these hold */
    unsigned over;  /* these do not hold any more */
    int64_t age_ms; /* so long ago that was confirmed: of engine_learnt alone */
};

enum lock_incident_kind {
    INCIDENT_LATE_RELEASE,
    INCIDENT_FOREIGN_RELEASE,
    INCIDENT_FOREIGN_EXTEND,
    INCIDENT_OVERWRITE,
    INCIDENT_NO_EXPIRY,
    INCIDENT_OVERRUN,
    INCIDENT_ABANDONED,
    INCIDENT_AMBIGUOUS,
    INCIDENT_LOST_HEAD,
    INCIDENT_RENEWAL_LOST,
    INCIDENT_UNCONFIRMED,
    INCIDENT_OPERATOR_RELEASE,
    INCIDENT_SHARED,
    INCIDENT_BELIEVED,
    INCIDENT_HELD_LONG,
    INCIDENT_DEADLOCK,
    INCIDENT_LATE_WRITE,
    INCIDENT_ONE_SHOT,
    INCIDENT_KINDS
};
/* The name of a kind of incident, "late_release", ...; static. */
const char *lock_incident_name(enum lock_incident_kind kind);

struct lock_incident {
    enum lock_incident_kind kind;
    int64_t time_ms;
    struct lock_key key;
    const char *rule;     /* the key's, its pattern; "" not known */
    const char *identity; /* the client's whose incident it is; "" not known */
    const char *client;   /* who: address and name; "" if it is the proxy */
    const char *holder;   /* who holds the lock; "" nobody */
    size_t holder_len;
    const char *command; /* what the application sent; "" nothing */
    const char *action;  /* what the proxy did: "refused", "lease of 30000 ms given, renewed while connected", ... */
};

struct lock_sink {
    void *arg;
    void (*incident)(void *arg, const struct lock_incident *incident);
    void (*renew)(void *arg, const struct lock_lease *lease); /* from engine_tick */
    void (*release)(void *arg,
                    const struct lock_lease *lease); /* from engine_session_close, _identify and engine_finish */
    void (*leave)(void *arg, const struct lock_leaving *leaving); /* likewise */
    void (*left)(void *arg, const struct lock_left *left);        /* likewise, and from engine_handover; may be NULL */
    void (*learnt)(void *arg, const struct lock_facts *facts); /* from engine_begin, _finish and _tick; may be NULL */
};

/* Makes an engine. `process` is this process's UUID (36 characters); `seed` keys the hash tables. */
struct lock_engine *engine_new(const char *process, uint64_t seed, const struct lock_sink *sink);
void engine_free(struct lock_engine *e);
/* Says that one thread alone calls the engine from now on: nothing has to be locked. */
void engine_alone(struct lock_engine *e);

/* ---- what earlier runs and other proxies have learnt ------------------------------------------- */

enum { FACT_MS = 7 * 24 * 60 * 60 * 1000 }; /* what was not confirmed for so long is forgotten */

/* Tells the engine what is known of a workload. A workload that is there takes it over at once, a later one starts with
 * it. What the sink has told may come back so: that changes nothing. Facts that are pooled and dedicated at once are
 * pooled. From any thread. */
void engine_learnt(struct lock_engine *e, const struct lock_facts *facts, int64_t now_ms);
/* A number that grows with each command on a lock. From any thread. */
uint64_t engine_begun(struct lock_engine *e);
/* Whether other proxies are known to give out locks before the same Redis. */
bool engine_elsewhere(const struct lock_engine *e);

/* ---- what sessions of other proxies have left -------------------------------------------------- */

/* Whether somebody is here who may be the owner of what was left so, and has come back; *login is who to speak to Redis
 * as then. `rule` is the lock's; NULL: whether anybody of that identity has come since at all. The clocks of proxies
 * are taken to agree within a second. */
bool engine_awaits(struct lock_engine *e, const struct lock_left *left, const struct lock_rule *rule, uint32_t *login);
/* A fresh token, for a lease that is taken over. Returns its number. */
uint64_t engine_token(struct lock_engine *e, char out[LOCK_TOKEN_MAX]);
/* Tells the engine that a lease was taken over under that token; it is renewed for as long as its owners are here. `r`
 * has its fence and end. */
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
    struct histogram
        waits; /* of those granted: since the session's first attempt in a row that was lost, 0 without one */
};
/* The table, for a struct lock_stats; its incidents and waits are no rows of it. */
extern const struct metric_table lock_counters;
void engine_stats(struct lock_engine *e, struct lock_stats *stats);

struct lock_view {
    struct lock_key key;
    const char *client; /* identity */
    size_t client_len;
    uint64_t session_id;
    bool connected;
    uint64_t fence;
    int64_t since_ms, end_ms; /* end 0: none */
    int64_t one_shot_ms;      /* a one-shot client's lock: its renewal ends then; 0: it is none */
    uint64_t renewals;
};
/* What has been learnt of a workload: a client identity's keys of one pattern under one rule. */
enum { LOCK_WORKLOAD_NAME_MAX = 96 };
struct lock_workload {
    const char *client, *rule,
        *pattern; /* identity, the rule's pattern, the keys'; cut to LOCK_WORKLOAD_NAME_MAX - 1 */
    bool pooled;
};
/* Calls fn for the workloads that share connections, in no order; fn must not call the engine. */
void engine_each_pooled(struct lock_engine *e, void (*fn)(void *arg, const struct lock_workload *f), void *arg);

/* How a lock was fought over: attempts to acquire it that were lost. */
enum { CONTENTION_MINUTES = 5 };
struct lock_contention {
    struct lock_key key;               /* a very long name is cut */
    uint32_t waiters;                  /* sessions that lost against the present holder and may try again */
    uint32_t lost[CONTENTION_MINUTES]; /* by minute, the present one first */
};
/* Calls fn for the locks that were fought over most in the last minutes, in no order; fn must not call the engine. */
void engine_each_contention(struct lock_engine *e, int64_t now_ms,
                            void (*fn)(void *arg, const struct lock_contention *c), void *arg);

/* A lock that was fought over, with its own copy of the name. */
enum { LOCK_FIGHT_NAME_MAX = 160 };
struct lock_fight {
    uint32_t db;
    uint32_t lost, lost_now; /* attempts: in the last CONTENTION_MINUTES, and of these in the present minute */
    size_t name_len;
    char name[LOCK_FIGHT_NAME_MAX]; /* its beginning, where it is longer */
    bool cut;
};
/* Finds the locks that were fought over most, at most max, the one with most attempts lost first. Returns how many. */
size_t engine_most_contended(struct lock_engine *e, int64_t now_ms, struct lock_fight *out, size_t max);

/* The newest leases believed live, at most max, and fewer where names are very long, found in steps: engine_walk_step
 * looks at a part of the keys and returns whether there is more to look at; engine_walk_each then calls fn for each,
 * newest first. */
struct lock_walk;
struct lock_walk *engine_walk_new(size_t max);
/* The same for the oldest leases; oldest first. */
struct lock_walk *engine_walk_new_oldest(size_t max);
void engine_walk_free(struct lock_walk *walk);
bool engine_walk_step(struct lock_engine *e, struct lock_walk *walk, int64_t now_ms);
void engine_walk_each(const struct lock_walk *walk, void (*fn)(void *arg, const struct lock_view *v), void *arg);

/* Calls fn for leases believed live, newest first, at most max. fn must not call the engine. */
void engine_each_lease(struct lock_engine *e, int64_t now_ms, size_t max,
                       void (*fn)(void *arg, const struct lock_view *v), void *arg);

#endif
