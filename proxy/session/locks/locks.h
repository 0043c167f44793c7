/*
 * Locks: how a command on a lock key becomes a script call, and the script's envelope becomes the client's reply.
 * Besides: scripts of the application, commands under rules in audit, which run unchanged, reports to PROXY ADVISE, and
 * the proxy's own work on leases.
 */
#pragma once

#include <stdbool.h>

#include "proxy/observe/observe.h"
#include "proxy/session/core/class.h"
#include "proxy/session/locks/lock_commands.h"

#define LOCK_NAME_REFUSED "ERR the name of a lock is longer than 32768 bytes; nothing was done"

/* What the room keeps of a session. */
struct lock_state {
    double careful_until; /* requests after an application's script wait for it until this time of the loop's clock */
    uint16_t audits;      /* commands in flight whose replies are audited */
    uint8_t sent;         /* enum sent, for locks_room.c */
    bool trip_known;      /* lock.trip_ms has been measured */
    bool left_endless;    /* the session has acquired a lock without an expiry */
    char *lost;           /* the error that answers the next command: a lease is over (on-loss error); NULL: none */
};
_Static_assert(sizeof(struct lock_state) <= ROOM_COMMANDS - ROOM_LOCKS, "the room's state of a session fits");

static inline struct lock_state *locks_of(const struct session *s) {
    return session_room(s, ROOM_LOCKS);
}

/* Lock commands of a session on one key run one after another, so that each is judged by the result of the one before.
 * Commands under audit do not wait for each other, but an enforced command waits for them.
 *
 * lock_must_wait: whether a lock command on this key, or any command under audit, is in flight. lock_script_busy: the
 * same without commands under audit. lock_any_busy: whether a lock command on any key is in flight. */
bool lock_must_wait(const struct session *s, const char *key, size_t len);
bool lock_script_busy(const struct session *s, const char *key, size_t len);
bool lock_any_busy(const struct session *s);
/* Mark a request as in flight on a key, or on all keys. */
void lock_busy_key(struct request *r, const char *key, size_t len);
void lock_busy_all(struct request *r);

/* The arguments of a command, its name first, as places in `bytes`. Borrowed. */
struct lock_words {
    const char *bytes;
    const struct resp_arg *args;
    size_t count;
};
/* Returns argument i and its length; borrowed. */
static inline const char *lock_word(const struct lock_words *words, size_t i, size_t *len) {
    *len = words->args[i].len;
    return words->bytes + words->args[i].off;
}
/* Takes the arguments of a request. False: the script cannot take that many. SCRIPT_PASS takes any number; no other
 * lock command has a meaning with so many. */
bool lock_words_of(struct lock_words *words, const struct resp_request *r, const char *bytes, enum script_id script);

/* Runs a lock command on one key as one call of a request. lc->value_at is an index into `words`. call->done gets the
 * client's reply. */
void lock_run(struct call *call, const struct lock_rule *rule, const struct lock_command *lc, const char *key,
              size_t key_len, const struct lock_words *words);

enum { LOCK_ANSWER_MAX = 512 };
/* What a client gets. The reply is borrowed from the script's answer, or stands in `text`. */
struct lock_answer {
    struct call_end end;
    char text[LOCK_ANSWER_MAX];
};

/* The lock calls of one transaction, in their order. */
struct lock_queue {
    struct list_node calls;
    unsigned sources; /* a bit for each script whose source was sent */
    bool quorum;      /* a rule with `quorum yes` is among the calls' rules */
    /* while witnesses are asked: of how many votes the result is due, and 1 while they are being asked for */
    size_t due;
    void (*done)(void *arg);
    void *arg;
};

/* Runs a lock command in two steps, for transactions. lock_prepare begins the call, which joins `queue` (NULL: no
 * transaction), and builds the script call in w->build. If an earlier call of the queue may acquire the same key, this
 * call uses that lease. lock_finish ends the call with the script's reply or the error. s NULL: the session is
 * closed. */
struct lock_call;
struct lock_call *lock_prepare(struct session *s, struct lock_queue *queue, const struct lock_rule *rule,
                               const struct lock_command *lc, const char *key, size_t key_len,
                               const struct lock_words *words);
/* lock_prepare for a command that removes or replaces lock keys. NULL: the error is LOCK_TOO_MANY_KEYS. */
struct lock_call *lock_prepare_clobber(struct session *s, struct lock_queue *queue, const struct request_class *k);
void lock_finish(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                 struct lock_answer *out);
/* Ends the quarantine of the witness with this address, and answers the request. */
void lock_witness_trust(struct session *s, const struct command *c, const char *address, size_t len);
/* The error for a request that a rule with `quorum yes` does not support, in MULTI if it is queued; NULL: none. */
const char *lock_quorum_lacks(const struct request_class *k);
/* Whether a command would make a lock under quorum last longer than witnesses remember. `error` (of `size`) says so. */
bool lock_quorum_refuses(const struct session *s, const struct command *c, const struct resp_request *r,
                         const char *bytes, char *error, size_t size);
/* Witnesses confirm what a transaction has acquired and extended (confirm.c). lock_queue_answer notes a call's element
 * of EXEC's array, borrowed. lock_queue_vote asks; `done` hears, perhaps at once, that the calls may be ended. False:
 * there is nothing to ask. */
void lock_queue_answer(struct lock_call *l, const struct call_end *element);
bool lock_queue_vote(struct worker *w, struct lock_queue *queue, void (*done)(void *arg), void *arg);
/* The error of a call that the witnesses have refused; NULL: they have not. */
const char *lock_queue_refusal(const struct lock_call *l);
/* Whether the rule demands that replicas confirm the call's acquisition. */
bool lock_wants_replicas(const struct lock_call *l);
/* Ends a call as lock_finish does, with an element of EXEC's array. If too few `replicas` have confirmed what EXEC did,
 * the acquisition is undone, and the client has lost, or gets an error. If a failed SELECT made the script run in
 * another database than planned, the call leaves no claim. */
void lock_finish_queued(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                        int64_t replicas, struct lock_answer *out);
#define LOCK_TOO_MANY_KEYS "ERR too many keys for one command that replaces lock keys; send several"

/* Deals with a whole request on one lock key. */
enum dispatch_result lock_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                   const char *bytes, const struct lock_command *lc, uint32_t key_index,
                                   const struct lock_rule *rule);
/* Send the script of a command that removes or replaces lock keys: as a request of its own, or as `call` of a split. */
enum dispatch_result lock_dispatch_clobber(struct session *s, const struct request_class *k);
void lock_call_clobber(struct call *call, struct session *s, const struct request_class *k);

/* The engine's sink (struct lock_sink): passes the work on to the worker whose thread calls the engine. */
void lock_note_renewal(void *arg, const struct lock_lease *lease);
void lock_note_release(void *arg, const struct lock_lease *lease);
void lock_note_leaving(void *arg, const struct lock_leaving *leaving);
void lock_note_left(void *arg, const struct lock_left *left);
void lock_note_learnt(void *arg, const struct lock_facts *facts);
void lock_note_alarm(void *arg, const struct lock_alarm *alarm);

/* lease_work.c: takes the error that answers the session's next command; the caller frees it. NULL: there is none. */
char *lock_take_lost(struct session *s);

/* The room's callbacks for workers and sessions. */
extern const struct session_room locks_room;

/* What an operator asks for: PROXY LOCK and PROXY TOKEN (verb LOCK_INSPECT), PROXY RELEASE (LOCK_OPERATOR). */
enum lock_ask { LOCK_ASK_NONE, LOCK_ASK_ALL, LOCK_ASK_TOKEN, LOCK_ASK_RELEASE };
enum dispatch_result lock_ask(struct session *s, const struct command *c, enum lock_ask what, const char *key,
                              size_t key_len);

/* ---- application_script.c: the application's scripts (EVAL, EVALSHA, FCALL) that name lock keys -------------- */

/* Sends the script, with a step before and a step after it for each of its keys that is a lock. */
enum dispatch_result script_dispatch(struct session *s, const struct request_class *k);

/* Whether a script's key i is a lock that no key before it names. A second call would take the lock over from the first
 * one, with another token. */
bool script_locks(const struct request_class *k, size_t i);
/* Begins the call for a script's key i, a lock. `queue`: of the transaction that the script is queued in, or NULL. */
struct lock_call *script_begin(struct session *s, struct lock_queue *queue, const struct request_class *k, size_t i);
/* Build in w->build the step before the script, and the step after it. `together`: they run in one transaction. */
void script_build_before(struct session *s, struct lock_queue *queue, const struct lock_call *l);
void script_build_behind(struct session *s, struct lock_queue *queue, const struct lock_call *l,
                         const struct lock_words *words, size_t key_count, bool together);

/* ---- observed_command.c: commands on lock keys that pass as they came ----------------------------------------
 *
 *      request ──> audit_note (keys, values, expiries) ──> sent as it is ──> reply ──> audit_end ──> engine_observe
 *                                                                             └──> the client, as it is
 */

struct audit_note;

/* Notes what the command does to keys under audit rules; `outside`: also to keys outside of all rules, for PROXY
 * ADVISE. NULL: nothing. The caller owns the note, and gives it to audit_end. */
struct audit_note *audit_note(struct session *s, const struct request_class *k, bool outside);
/* Takes the reply or the error, and frees the note. s NULL: the session is closed. */
void audit_end(struct worker *w, struct session *s, struct audit_note *note, const struct call_end *end);
/* One of the commands that lock_state.audits counts has ended. */
void audit_released(struct session *s);

/* Forwards a request with keys. If rules in audit concern them, audit_end takes the reply. */
enum dispatch_result audit_forward(struct session *s, const struct request_class *k);
/* audit_forward for a command that looks like a lock command, on a key outside of all rules, or of a kind that its rule
 * lacks. A script has one such key. */
enum dispatch_result audit_forward_outside(struct session *s, const struct request_class *k);

/* Which commands outside of all rules tell of a lock (lock_events.c). */
struct lock_interest {
    struct observer *observer;
    uint32_t *counters_seen; /* how many counting commands were seen */
    bool watches;            /* the session is in a transaction behind WATCH */
    int64_t now_ms;          /* for event_wanted */
};
/* True for SETNX, SET NX and MSETNX; for a sample of INCR and HSETNX; for commands that change a key acquired lately.
 */
bool event_wanted(const struct lock_interest *in, const struct command *c, const struct resp_request *r,
                  const char *bytes, const char *key, size_t len);
/* event_wanted for a list or sorted set that may be a semaphore: true for a sample of the commands that take, and for
 * all commands on a key that was seen to be taken from. */
bool event_permit_wanted(const struct lock_interest *in, const struct command *c, const char *key, size_t len);

/* Forwards a request for which lock_shows_fields is true. Reads the reply if the session has lost an attempt for the
 * lock: the field may show that the session is the holder. */
enum dispatch_result shown_forward(struct session *s, const struct request_class *k);

/* ---- lock_events.c: reports to PROXY ADVISE -------------------------------------------------------------------- */

/* Whether the reply of a command on a key outside of all rules is to be read: of a command that event_wanted names, on
 * a key that is in the sample. */
bool advise_wants(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  const char *key, size_t len);
/* Whether advise_wants may be true for one of the first keys of a DEL or UNLINK of several keys. */
bool advise_wants_some(struct session *s, const struct request_class *k);
/* Returns the argument index of a script's lock key, among the `key_count` arguments from `first_key` on; 0: its reply
 * is not to be read. */
uint32_t advise_script_key(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                           uint32_t first_key, size_t key_count);
/* Notes what a request writes, and whether its session holds a lock. Counts worker->looks down. */
void advise_looks(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);

/* ---- what other rooms need to send a script of the proxy's own: how its call begins, and what it answers -------- */

enum { LOCK_COMMAND_MAX = 24 }; /* a command's name, with its NUL */

/* Writes the name of the client's command in capitals, for incidents. */
static inline void lock_command_text(char out[LOCK_COMMAND_MAX], const char *name, size_t len) {
    size_t i;
    for (i = 0; i < len && i < LOCK_COMMAND_MAX - 1; i++)
        out[i] = name[i] >= 'a' && name[i] <= 'z' ? (char)(name[i] - 'a' + 'A') : name[i];
    out[i] = '\0';
}

/* Build a call in w->build: the script and the number of keys (`args` counts all of ARGV); then the keys, each with its
 * guard record. The first call of a script in a transaction sends the source: a NOSCRIPT would come too late there. */
void lock_build_script(struct worker *w, enum script_id id, struct lock_queue *queue, size_t keys, size_t args);
void lock_build_guard(struct worker *w, const char *key, size_t len);
/* Adds a lock key, and behind it the key of its guard record. */
void lock_build_key(struct worker *w, const char *key, size_t len);

/* Returns the token of the first call of the queue behind *at that may acquire the lock, and sets *at to that call.
 * NULL: there is none. *at is &queue->calls at first. */
const char *lock_queue_attempt(const struct lock_queue *queue, const struct list_node **at,
                               const struct lock_key *lock);

/* What a lock script has answered: {reply, outcome, fence, pttl, owner, flags}, or the short text that means the same
 * (common.lua). Of a list lock three more: the fence and the owner of a lost lease, and the node of a grant; of a
 * refusal by clobber.lua one more: which lock refuses. Pointers point into the bytes that were read. */
struct lock_envelope {
    const char *reply; /* the client's part; static where the answer was a short text */
    size_t reply_len;
    uint32_t refuses; /* of a clobbering command: which of its calls was refused, from 0 */
    struct lock_result result;
};

/* Rewrites a script's error into the error that the command would get from Redis; built in `out` if need be. */
void lock_error_words(struct lock_envelope *e, char out[LOCK_ANSWER_MAX]);
