/*
 * Locks: from a command on a lock key to a script, and from the script's envelope to the client's reply (flow.c); the
 * application's own scripts (script.c); commands that pass as they came, under rules that audit (audit.c); what PROXY
 * ADVISE is told (advise.c); and the proxy's own work on leases (lease.c, heirs.c).
 */
#ifndef LOCKKEEPER_SESSION_LOCKS_LOCKS_H
#define LOCKKEEPER_SESSION_LOCKS_LOCKS_H

#include <stdbool.h>

#include "proxy/advise/advise.h"
#include "proxy/lock/audit.h"
#include "proxy/session/core/class.h"
#include "proxy/upstream/script.h"

/* The form of the client's reply, as the scripts are told (ARGV 10). */
enum lock_shape {
    SHAPE_NIL,
    SHAPE_OK,
    SHAPE_INT,
    SHAPE_ARRAY,   /* its nil is an array's */
    SHAPE_TOGETHER /* no reply: adopt.lua in one transaction with its script */
};
/* The scripts' word for a shape; static. */
const char *lock_shape_text(enum lock_shape shape);

#define LOCK_NAME_REFUSED "ERR the name of a lock is longer than 32768 bytes; nothing was done"

/* What a command means to a lock. */
struct lock_command {
    enum lock_verb verb;
    enum script_id script;
    uint32_t value_at;  /* argument index of the value, 0 none; of SCRIPT_HASH the field's */
    uint8_t content_at; /* SCRIPT_HASH: argument index of what the field gets; 0: not known */
    enum lock_shape shape;
    bool known;        /* false: it means nothing, and is forwarded */
    uint8_t advises;   /* as in struct lock_row */
    int64_t expiry_ms; /* SCRIPT_ACQUIRE: the command's own; 0 it has none; LOCK_EXPIRY_OTHER: as the command says */
    const char *name;  /* in capitals, static; NULL: as the client wrote it */
};
enum { LOCK_EXPIRY_OTHER = -1 };

/* What a command makes of the expiry of its key. */
enum lock_row_expiry {
    EXPIRY_KEPT,
    EXPIRY_NONE,         /* there is none afterwards */
    EXPIRY_SET,          /* as SET's options say, none without them */
    EXPIRY_GETEX,        /* as GETEX's say, kept without them */
    EXPIRY_SECONDS,      /* in argument 2: from now on */
    EXPIRY_MILLISECONDS, /* likewise */
    EXPIRY_AT_SECONDS,   /* and since 1970 */
    EXPIRY_AT_MILLISECONDS
};

/* By how much a command counts: a number, or nodes. */
enum lock_row_count {
    COUNTS_NOT, /* its reply can't tell who has the lock */
    COUNTS_ONE,
    COUNTS_ARGUMENT, /* argument 2 */
    COUNTS_BYTES,    /* so many as argument 2 has */
    COUNTS_ARGUMENTS /* so many as there are from argument 2 on */
};

/* The keys that a command removes or replaces as a whole. */
enum lock_row_keys {
    REPLACES_NONE,
    REPLACES_FIRST,
    REPLACES_SECOND,
    REPLACES_TWO,
    REPLACES_PAIRS,
    REPLACES_STORE,
    REPLACES_ALL
};

/* A row of the table of commands on locks. */
struct lock_row {
    const char *name;                /* in capitals; NULL: no command on locks */
    unsigned kinds;                  /* the command is about locks of these kinds (enum lock_kind), 0 of all */
    struct lock_command form, other; /* `other`: where the key's rule has none of them */
    uint8_t options;                 /* private to lock_command.c: what its arguments change of its form */
    uint8_t expiry, counts, replaces, advises;
    uint8_t queue; /* enum lock_queue_sight; QUEUE_HEAD: where argument 2 is 0 */
};
/* The row of a command; of one that means nothing to locks an empty one, never NULL. */
const struct lock_row *lock_row_of(const struct command *c);

/* Classifies a command with its options, for a key whose rule has these kinds (enum lock_kind). False: it is not one
 * that the lock plane changes (it is forwarded, and Redis answers). */
bool lock_command_of(const struct command *c, const struct resp_request *r, const char *bytes, unsigned kinds,
                     struct lock_command *out);
/* Whether a command is SET without NX, XX and GET, SETEX or PSETEX; and makes it a swap that answers as SET does. */
bool lock_command_compares(const struct lock_command *lc);
void lock_command_swaps(struct lock_command *lc);
/* Finds the keys that a command removes or replaces as a whole, as argument indexes. Writes at most max and returns how
 * many there are; 0 for other commands. */
size_t lock_clobbered_keys(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *keys,
                           size_t max);
/* Whether a command that removes or replaces whole keys can do so to a lock of one of these kinds. */
bool lock_clobbers_kinds(const struct command *c, unsigned kinds);
/* What a request means to the locks among its keys, those of rules that are enforced. */
enum lock_meaning {
    MEANS_NOTHING,  /* there are none, or they do not mind */
    MEANS_LOCK,     /* a command on one lock, as lock_command_of has it */
    MEANS_RELEASES, /* DEL, UNLINK of several keys */
    MEANS_SHOWS,    /* MGET, HGET and the like: what it shows is seen */
    MEANS_SCRIPT,   /* a script of the application's */
    MEANS_CLOBBERS  /* locks are removed or replaced as a whole, or it has too many keys to tell */
};
/* *lc is filled for MEANS_LOCK. */
enum lock_meaning lock_meaning_of(const struct request_class *k, struct lock_command *lc);
/* Whether the request reads fields of one hash lock: HGET, HMGET, HGETALL, HEXISTS, HKEYS, HSCAN. */
bool lock_shows_fields(const struct request_class *k);
/* Whether a command is COPY with DB, and in which database its destination stands. */
bool lock_clobbers_database(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *db);

/* The meaning of DEL or UNLINK for one key of several. */
extern const struct lock_command lock_release_of_one;

/* Whether a lock command of this session on the key (or on any key) is in flight: they go one after another, so that
 * each is judged by what the one before it did. And the marking of a request that concerns several. Commands that are
 * audited don't wait for each other, but one that is enforced waits for them. */
bool lock_must_wait(const struct session *s, const char *key, size_t len);
bool lock_any_busy(const struct session *s);
void lock_busy_key(struct request *r, const char *key, size_t len);
/* Whether a lock script on the key is in flight. */
bool lock_script_busy(const struct session *s, const char *key, size_t len);
void lock_busy_all(struct request *r);

/* A command's words: name, then arguments, as places in `bytes`. Borrowed. */
struct lock_words {
    const char *bytes;
    const struct resp_arg *args;
    size_t count;
};
/* Word i: *len bytes, borrowed. */
static inline const char *lock_word(const struct lock_words *words, size_t i, size_t *len) {
    *len = words->args[i].len;
    return words->bytes + words->args[i].off;
}
/* A request's words. False if they are more than a script can hand on, unless it is SCRIPT_PASS, which takes many: no
 * other command that concerns locks means anything by so many. */
bool lock_words_of(struct lock_words *words, const struct resp_request *r, const char *bytes, enum script_id script);

/* Runs a single-key lock command as one call of `request` (its own, or a part of a split). The words are sent to the
 * script; value_at counts in them. `done` gets the client's reply. */
void lock_call(struct call *call, const struct lock_rule *rule, const struct lock_command *lc, const char *key,
               size_t key_len, const struct lock_words *words);

enum { LOCK_ANSWER_MAX = 512 };

/* The lock calls of one transaction, in order. */
struct lock_queue {
    struct list_node calls;
    unsigned sources; /* scripts that were sent by their source, as bits */
};

/* Run a lock command in two steps, for scripts that go inside a transaction. lock_prepare begins it and leaves the
 * script's call in w->build. The call joins `queue` (NULL: no transaction): where an earlier one there may acquire the
 * same key, this one speaks for the lease acquired there. The first call of a script in a transaction is by its source.
 * lock_finish ends it with the script's reply or the error: *out is for the client, its reply borrowed from `end` or in
 * `answer` (LOCK_ANSWER_MAX bytes). s NULL: it is gone. */
struct lock_call;
struct lock_call *lock_prepare(struct session *s, struct lock_queue *queue, const struct lock_rule *rule,
                               const struct lock_command *lc, const char *key, size_t key_len,
                               const struct lock_words *words);
/* Tells the engine that EXEC is being sent: what is queued is on its way. */
void lock_queue_sent(struct worker *w, const struct lock_queue *queue);
/* Prepares the call of a command that removes or replaces lock keys, as lock_prepare does. NULL: LOCK_TOO_MANY_KEYS. */
struct lock_call *lock_prepare_clobber(struct session *s, struct lock_queue *queue, const struct request_class *k);
void lock_finish(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                 struct call_end *out, char *answer);
/* Whether a call's acquisition has to be confirmed by replicas, as its rule says. */
bool lock_wants_replicas(const struct lock_call *l);
/* Ends a call as lock_finish does, with an element of EXEC's array, where so many replicas have what EXEC did: too few
 * undo an acquisition that has to be confirmed, and the client gets 'lost' or an error. A script that ran in another
 * database than was thought, behind a SELECT that failed, is not what the engine has planned: nobody's claim comes of
 * it. */
void lock_finish_queued(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                        int64_t replicas, struct call_end *out, char *answer);
/* Notes that EXEC has answered nil: the call is to be finished as not sent. */
void lock_undone(struct lock_call *l);
const struct lock_rule *lock_call_rule(const struct lock_call *l);
#define LOCK_TOO_MANY_KEYS "ERR too many keys for one command that replaces lock keys; send several"

/* Deals with a whole request on one lock key. */
enum dispatch_result lock_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                   const char *bytes, const struct lock_command *lc, uint32_t key_index,
                                   const struct lock_rule *rule);
/* Whether the command would remove or replace a lock key; and the script that does it if it may: as a request, or as
 * a part of a split with its own `call`. */
bool lock_clobbers(const struct request_class *k);
void lock_dispatch_clobber(struct session *s, const struct request_class *k);
void lock_call_clobber(struct call *call, struct session *s, const struct request_class *k);

/* The engine's sink for leases (struct lock_sink): notes them for the worker whose thread calls the engine. */
void lock_note_renewal(void *arg, const struct lock_lease *lease);
void lock_note_release(void *arg, const struct lock_lease *lease);
void lock_note_leaving(void *arg, const struct lock_leaving *leaving);
void lock_note_left(void *arg, const struct lock_left *left);
void lock_note_learnt(void *arg, const struct lock_facts *facts);

/* What the room hears of workers and sessions. */
extern const struct session_room locks_room;

/* What the operator asks of a lock: PROXY LOCK and TOKEN (verb LOCK_INSPECT), RELEASE (LOCK_OPERATOR). */
enum lock_ask { LOCK_ASK_ALL, LOCK_ASK_TOKEN, LOCK_ASK_RELEASE };
enum dispatch_result lock_ask(struct session *s, const struct command *c, enum lock_ask what, const char *key,
                              size_t key_len);

/* ---- script.c: the application's own scripts (EVAL, EVALSHA, FCALL) that name lock keys -------------------- */

/* Scripts of the application's run as they are, and the proxy learns in one step with them what they have done. */

/* Whether the command is a script of the application's that may write. */
bool script_is(const struct command *c);

/* Sends it to its node, between two steps for each of its keys that is a lock. */
void script_dispatch(struct session *s, const struct request_class *k);

/* The script's part in its key i, which is a lock; queue: of the transaction that it is queued in, or NULL. */
struct lock_call *script_begin(struct session *s, struct lock_queue *queue, const struct request_class *k, size_t i);
/* Build the two steps of a script's part, each left in w->build: what goes before the script, and what goes behind it.
 * `together`: all of it is one transaction. */
void script_build_before(struct session *s, struct lock_queue *queue, const struct lock_call *l);
void script_build_behind(struct session *s, struct lock_queue *queue, const struct lock_call *l,
                         const struct resp_request *r, const char *bytes, size_t key_count, bool together);

/* ---- audit.c: commands on lock keys that pass as they came ------------------------------------------------
 *
 *      request ──> audit_note (keys, values, expiries) ──> sent as it is ──> reply ──> audit_end ──> engine_observe
 *                                                                             └──> the client, as it is
 */

struct audit_note;

/* Notes what the command does to keys under audit rules, remembered until its reply; NULL: nothing. The note is given.
 * `outside`: also to keys outside of all rules, for PROXY ADVISE. */
struct audit_note *audit_note(struct session *s, const struct request_class *k, bool outside);
/* Takes the reply of a noted command, or what became of it; frees the note. s NULL: the session is gone. */
void audit_end(struct worker *w, struct session *s, struct audit_note *note, const struct call_end *end);
/* Notes that one of session->audits has ended. */
void audit_released(struct session *s);

/* Forwards a request with keys; where rules in audit are concerned, its reply is looked at on its way back. */
void audit_forward(struct session *s, const struct request_class *k);

/* Fills *sight with what a command, on its own, means to a lock of whatever kind that argument `index` names, as
 * audit_note has it outside of all rules: all but its outcome, the session, and the database. It points into the
 * command. False: nothing. Scripts are not read. */
bool audit_reads(struct lock_sight *sight, const struct command *c, const struct resp_request *r, const char *bytes,
                 uint32_t index, int64_t now_ms);
/* Whether a command that sets an expiry has a condition: that it does nothing does not tell that the key is missing. */
bool audit_conditional(const struct command *c, size_t argc);
/* Forwards a request as audit_forward does, for keys outside of all rules, or of a kind that theirs lacks, whose
 * command looks like a lock's; a script has one. */
void audit_forward_outside(struct session *s, const struct request_class *k);

/* ---- shown.c: reads of a hash lock ------------------------------------------------------------------------ */

/* Forwards a request that lock_shows_fields. Its reply is looked at if the session has tried for the lock in vain: it
 * may show the session to be the holder. */
void shown_forward(struct session *s, const struct request_class *k);

/* ---- fence.c: data that is written under locks ------------------------------------------------------------ */

/* What becomes of a request on data of fences that are enforced. */
enum fence_verdict {
    FENCE_NOTHING, /* it writes none of their data, or its session may: as without them */
    FENCE_LATER,   /* commands of its session's on the lock have to end first */
    FENCE_CHECKED, /* it goes with a question (fence_dispatch) */
    FENCE_APART,   /* DEL and UNLINK that name locks, too: the other keys are to go with a question first (split.c) */
    FENCE_REFUSED  /* with *error, static: what can't be checked is not done */
};
enum fence_verdict fence_judge(struct session *s, const struct request_class *k, const char **error);
/* The error, static, of a command that swaps whole databases: its session holds, or has lost, a lock of data in one of
 * them that is fenced. NULL: it may go on, or is none of these. */
const char *fence_refuses_databases(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);
/* What PROXY EXPLAIN says of it; static. */
const char *fence_words(struct session *s, const struct request_class *k);
/* Sends a request together with the question whether its session has lost the lock meanwhile, as one step. */
enum dispatch_result fence_dispatch(struct session *s, const struct request_class *k);

/* The same inside of a transaction, or (queue NULL) of a command in parts. The call is left in w->build, in a
 * transaction by its source where it is the first of its kind; what is returned belongs to the caller, who forgets it
 * at last (NULL: nothing). */
struct fence_question;
struct fence_question *fence_prepare(struct session *s, struct lock_queue *queue, const struct request_class *k);
void fence_forget(struct fence_question *q);
/* Appends what the client gets for the script's reply, and records a late write. s NULL: the session is gone. */
void fence_reply(struct session *s, const struct fence_question *q, const char *reply, size_t len, struct text *out);

/* Ends for CLIENT UNBLOCK what a session is blocked in, if that is a command on fenced data: with Redis's error, or as
 * when its time is over. False: it is none. */
bool fence_unblock(struct session *s, bool error);

/* Locks in other slots than the data are looked at before the write (remote_lock.c). Looks begin with fence_looks_new;
 * each question's are added; fence_looks_go has `done` called when all have been answered, at once if there are none:
 * with the error for the client (a line of RESP, borrowed) where nothing is to be written, or NULL. They are freed
 * then; until then, who does not want them any more forgets them. */
struct fence_looks;
typedef void (*fence_looked_fn)(void *arg, const char *error, size_t len);
bool fence_is_elsewhere(const struct fence_question *q);
struct fence_looks *fence_looks_new(struct session *s, fence_looked_fn done, void *arg);
void fence_looks_add(struct fence_looks *l, struct fence_question *q);
void fence_looks_go(struct fence_looks *l);
void fence_looks_forget(struct fence_looks *l);

/* Records what a request, which has just been sent or queued, writes on data of fences in audit, where its session has
 * lost the lock. */
void fence_audit(struct session *s, const struct request_class *k);

/* ---- advise.c: what commands on locks say to PROXY ADVISE ------------------------------------------------- */

/* Whether the reply of a command on a key outside of all rules is worth a look: SETNX, SET NX and MSETNX always, some
 * of the INCRs and HSETNXs, and what changes a key that was acquired lately. */
bool advise_wants(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                  const char *key, size_t len);
/* Finds the lock of a script of the application's whose reply is worth a look: the argument index of its key, among
 * `key_count` from `first_key` on; 0: it is not worth one. */
uint32_t advise_script_key(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes,
                           uint32_t first_key, size_t key_count);
/* Looks at what a request writes, if anything, and whether its sender holds a lock meanwhile: called for the next
 * worker->looks requests, which it counts down. */
void advise_looks(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);
/* Looks at the text of a SCRIPT LOAD. */
void advise_loaded(struct session *s, const struct resp_request *r, const char *bytes);

#endif
