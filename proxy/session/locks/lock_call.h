/* A lock call while it is under way: its arguments, the envelope that the script answers, and its end. */
#pragma once

#include "proxy/session/core/session.h"
#include "proxy/session/locks/locks.h"

struct witness_lease;

enum { LOCK_SHORT_VALUE = 96, LOCK_SHORT_KEY = 96 };

/* A lock call: one script call under way, with what engine_finish needs when the script answers. */
struct lock_call {
    call_done_fn next;     /* gets the reply, as call->done was before; NULL: the reply goes straight to the client */
    enum lock_shape shape; /* of the client's reply */
    enum lock_ask ask;
    bool clobbers;
    bool again;      /* the script may be sent once more (engine_again) */
    bool sent_twice; /* a release whose script was sent twice: the first sending may have released */
    bool witnessed;  /* witnesses have confirmed what the script has done */
    bool handed;     /* a release, and an attempt of a waiting session was sent right behind it */
    bool acquires;   /* of MSETNX, MSETEX NX: the clobbering command acquires all of its lock keys, or none */
    uint8_t advises; /* as in struct lock_row */
    size_t value_len;
    char *value;                /* in short_value where it fits, else allocated; NULL: none */
    uint64_t fence;             /* of an attempt in the short form, as it was sent first; 0: it has another form */
    int64_t expiry_ms;          /* of an attempt to acquire, as in struct lock_command */
    int64_t waited_ms;          /* for how long replicas or witnesses were waited for since the script answered */
    uint64_t raised_fence;      /* where waited_ms is set: the fence that the lease has got since; 0: the script's */
    struct call *call;          /* sending.c: set in an attempt that has joined another one */
    struct lock_ballot *ballot; /* confirm.c: what witnesses say of a queued call; NULL: nothing */
    struct list_node link;      /* in the ring of a clobbering command's calls, or in the stack of unused calls */
    struct list_node queued;    /* in the lock_queue of the transaction that the call belongs to */
    struct list_node joined;    /* sending.c: the attempts of other sessions that get the same answer */
    struct lock_plan plan;
    struct lock_rules *rules; /* a reference, which keeps plan.rule alive */
    uint32_t db;              /* where the command runs; the lock of COPY ... DB may be in another database */
    uint64_t session_id;
    uint8_t protocol;    /* the client's */
    double begun;        /* by the loop's clock, when the call began; 0: the call is not timed */
    char *key;           /* in short_key where it fits, else allocated */
    const char *command; /* the command's name in capitals; static, or command_text */
    char short_value[LOCK_SHORT_VALUE], short_key[LOCK_SHORT_KEY];
    char command_text[LOCK_COMMAND_MAX];
    char who[SESSION_ADDRESS_MAX + 72];
};

/* Starts a call for a lock in the session's database: allocates it, and has the engine plan it. */
struct lock_call *lock_begin(struct session *s, enum lock_verb verb, const struct lock_rule *rule, const char *key,
                             size_t key_len);
/* lock_begin for a lock in database `db`, and for a command that came some time ago: the session's later input is no
 * sign of overlapping requests. */
struct lock_call *lock_begin_anew(struct session *s, enum lock_verb verb, const struct lock_rule *rule, uint32_t db,
                                  const char *key, size_t key_len);
/* Copies the name of the client's command in capitals, for incidents. */
void lock_call_command(struct lock_call *l, const char *command, size_t len);
/* Copies the value that the command would leave at the key. */
void lock_call_value(struct lock_call *l, const char *value, size_t len);
/* The expiry that an attempt asked for, or that its rule gives; PTTL_NONE: none. */
int64_t lock_expiry_asked(const struct lock_call *l);
/* Appends a call to the queue of its transaction. It uses the lease that an earlier call of the transaction acquires
 * (engine_looks_back). */
void lock_enqueue(struct session *s, struct lock_queue *queue, struct lock_call *l);
/* The next call of the same command, behind the last one the first; of most commands the call itself. */
static inline struct lock_call *lock_call_next(const struct lock_call *l) {
    return LIST_ENTRY(l->link.next, struct lock_call, link);
}
/* Frees a call that the engine no longer refers to. */
void lock_drop(struct worker *w, struct lock_call *l);
/* Whether both calls concern the same key of the same database. */
bool lock_same_key(const struct lock_call *a, const struct lock_call *b);
/* The client of the call's session; NULL: the session is closed. */
static inline const struct lock_client *lock_call_client(const struct call *c) {
    return c->request->session ? c->request->session->lock.client : NULL;
}

/* ---- lock_args.c: builds the calls of lock scripts in w->build; locks.h has the parts for other rooms ---- */

enum {
    LOCK_HEADER_ARGS = 10 /* the elements of ARGV that a lock script takes, except those for the usual states */
};

/* Adds ARGV 1 to 10 to a call of a script that takes arguments.lua. `claim` (NULL: none) replaces the plan's. */
void lock_build_header(struct worker *w, const struct lock_client *client, const struct lock_plan *plan,
                       const char *claim, uint32_t at, enum lock_shape shape);
/* Begins the call of a script on one lock: its key, and its guard record. */
void lock_build_call(struct worker *w, enum script_id id, struct lock_queue *queue, const struct lock_key *key,
                     size_t args);
/* Adds ARGV 8, the value that the session has last seen at the key. */
void lock_build_seen(struct worker *w, const struct lock_plan *plan);
/* Builds an attempt that has no options but an expiry, and returns its script: acquire_usual.lua, or acquire.lua where
 * that must come at once. */
enum script_id lock_build_attempt(struct worker *w, const struct lock_client *client, const struct lock_call *l);
/* Builds the call of acquire.lua for such an attempt. `claim`, in place of the plan's claim: what has become
 * of an attempt in the short form (unfinished.lua); NULL: the plan's. client NULL: it has gone. */
void lock_build_again(struct worker *w, const struct lock_client *client, const struct lock_call *l, const char *claim);
/* Builds the call of release_usual.lua. False: only release.lua will do. */
bool lock_build_usual_release(struct worker *w, const struct lock_call *l);
/* Builds the call of release.lua for `command` (DEL, UNLINK or GETDEL, in capitals) and the plan's key. client NULL:
 * the proxy itself releases. */
void lock_build_release(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                        const struct lock_plan *plan, enum lock_shape shape, const char *command);
/* Builds an attempt without a script: the commands of short_form.c. l->fence is the lease's. */
void lock_build_short(struct worker *w, const struct lock_client *client, const struct lock_call *l);
/* Builds the call of free.lua; of free_all.lua, if other releases have joined it. */
void lock_build_free(struct worker *w, const struct lock_call *l);
/* Tells the engine which field of a hash lock the command writes, and the field's new content. */
void lock_note_field(struct session *s, struct lock_call *l, const struct lock_command *lc,
                     const struct lock_words *words);
/* Builds the call of a script that takes arguments.lua, for the command `words`. */
void lock_build_other(struct session *s, struct lock_queue *queue, struct lock_call *l, const struct lock_command *lc,
                      const struct lock_words *words);
/* MSETNX of these words, whose keys are all locks of one rule with `wait`: begins an attempt for each key, and returns
 * their ring; builds the call of clobber.lua for them. */
struct lock_call *lock_begin_pairs(struct session *s, const struct lock_rule *rule, uint32_t db,
                                   const struct lock_words *words);
void lock_build_pairs(struct session *s, struct lock_call *first, const struct lock_words *words);

/* Behind a token, in a guard record's `attempt`: the lease of this token was released (release_attempt). */
#define LOCK_RELEASED_MARK ":r"

/* ---- the envelope ---- */

/* Reads a short text of common.lua; false: the answer is none. What the text leaves out comes from the call (l NULL: it
 * stays unknown). The text does not name the holder. lock_short_reply returns the reply that the outcome stands for. */
bool lock_read_short(const struct lock_call *l, const char *data, size_t len, struct lock_result *r);
const char *lock_short_reply(const struct lock_call *l, enum lock_outcome outcome, size_t *len);
/* Reads an envelope; false: the bytes are none. l NULL: the caller does not need the client's part. */
bool lock_envelope_read(const struct lock_call *l, const char *data, size_t len, struct lock_envelope *e);
/* Reads the answer of a script, and sets the outcome in any case. False: it is no envelope; the script was not sent,
 * has perhaps run, or was refused by Redis as a whole. */
bool lock_answer_read(const struct lock_call *l, const struct call_end *end, struct lock_envelope *e);

/* How a call ends whose script has released the claim's lease; was not sent; may have run. */
extern const struct call_end lock_released_end, lock_not_sent_end, lock_unknown_end;

/* ---- the end ---- */

/* Tells the engine how a call ended, and frees the call. s NULL: the session is closed. */
void lock_learnt(struct worker *w, struct session *s, struct lock_call *l, const struct lock_result *result);
/* lock_learnt for all calls of the command whose first call this is. */
void lock_learnt_all(struct worker *w, struct session *s, struct lock_call *first, const struct lock_result *result);
/* Records how long the call took, for metrics. */
void lock_note_time(struct worker *w, const struct lock_call *l);
/* Passes a reply or an error to `next`, or to the client if `next` is NULL. */
void lock_deliver(struct call *c, call_done_fn next, const struct call_end *end);

/* Tell the queue of a lock's name (proxy/lock/waiting.h) under a rule with `wait`: a release is about to be sent; a
 * call has ended, and the engine knows its result. */
void lock_handover_sent(struct session *s, struct lock_call *l);
void lock_handover_learnt(struct worker *w, const struct lock_call *l, const struct lock_result *r);
/* A number that two lanes have in common if their requests reach the node in the order in which one thread sends them.
 */
uint64_t lock_handover_way(const struct upstream_lane *lane);

/* The lease of a lock, as witnesses know it. token "": another proxy gave it. Borrows all of it. */
struct witness_lease quorum_lease(const struct lock_key *key, const char *token, uint64_t fence);
/* How long witnesses are asked to remember a lease with so many ms left; the longest that they may be asked for. */
int64_t quorum_promise_ms(const struct worker *w, int64_t pttl_ms);
int64_t quorum_longest_ms(const struct worker *w);
/* Tells the witnesses that a lease under a rule with `quorum yes` was released. */
void quorum_released(struct worker *w, const struct lock_key *key, const char *token, uint64_t fence);

/* Releases the lease that an attempt has just acquired, by its token. `done`, for attempts that witnesses have refused,
 * hears when Redis has answered, or can't be asked. The lock may then be another lease's, so waiting sessions are told
 * that it is free only if `done` is NULL. */
typedef void (*lock_undone_fn)(void *arg);
void lock_undo(struct worker *w, const struct lock_call *l, lock_undone_fn done, void *arg);

/* ---- waiting ---- */

/* For how many milliseconds sessions have waited for a lock. -1: no session waits, or the time is not known. */
struct lock_waited {
    int64_t here_ms; /* of an attempt: for how long its session has waited; of a release that leaves the lock to another
                        proxy: the longest that a session has waited here */
    int64_t next_ms; /* for how long the next session in this proxy's queue has waited */
};

#define LOCK_WAITED_NONE ((struct lock_waited){.here_ms = -1, .next_ms = -1})

/* A worker's part in waiting, as lock calls see it: worker->waits. proxy/session/waits/ makes it. The functions are
 * called under rules with `wait` alone. */
struct lock_waits {
    /* Keeps the arguments of a SET NX that cannot be rebuilt from its value and expiry. */
    void (*keep)(struct request *r, const struct lock_call *l, const struct lock_words *words);
    /* Holds an attempt that was not sent yet, if other sessions are waiting before it. */
    bool (*behind)(struct call *c, struct lock_call *l);
    /* Holds an attempt that the script has answered with `e`, or that its witnesses have refused. Both return false if
     * the attempt does not wait. */
    bool (*refused)(struct call *c, struct lock_call *l, const struct lock_envelope *e);
    struct lock_waited
        waited; /* the waiting times that the script being built reports; LOCK_WAITED_NONE if it reports none */
};
