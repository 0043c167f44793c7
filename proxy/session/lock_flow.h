/*
 * Lock commands: from a command on a lock key to a script, and from the script's envelope to the client's reply.
 */
#ifndef LOCKKEEPER_SESSION_LOCK_FLOW_H
#define LOCKKEEPER_SESSION_LOCK_FLOW_H

#include <stdbool.h>

#include "proxy/lock/advise.h"
#include "proxy/lock/audit.h"
#include "proxy/session/session.h"
#include "proxy/upstream/script.h"

/* The client's reply, as the scripts are told (ARGV 10). */
enum lock_shape {
    SHAPE_NIL,
    SHAPE_OK,
    SHAPE_INT,
    SHAPE_ARRAY,   /* its nil is an array's */
    SHAPE_TOGETHER /* no reply: adopt.lua in one transaction with its script */
};
/* In the scripts' words; static. */
const char *lock_shape_text(enum lock_shape shape);

/* What a command means to a lock. */
struct lock_command {
    enum lock_verb verb;
    enum script_id script;
    uint32_t value_at; /* argument index of the value, 0 none */
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

/* Which of its keys a command removes or replaces as a whole. */
enum lock_row_keys {
    REPLACES_NONE,
    REPLACES_FIRST,
    REPLACES_SECOND,
    REPLACES_TWO,
    REPLACES_PAIRS,
    REPLACES_STORE,
    REPLACES_ALL
};

/* What PROXY ADVISE makes of a command, beside the kind of lock (enum advise_kind, 0 a string). */
enum {
    ADVISES_KIND = 15,
    ADVISES_FIRST = 16 /* it acquires where it answers 1 */,
    ADVISES_ALL = 32 /* all of its keys */
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
/* Never NULL. */
const struct lock_row *lock_row_of(const struct command *c);

/* Classifies a command with its options, for a key whose rule has these kinds (enum lock_kind). False: it is not one
 * that the lock plane changes (it is forwarded, and Redis answers). */
bool lock_command_of(const struct command *c, const struct resp_request *r, const char *bytes, unsigned kinds,
                     struct lock_command *out);
/* For commands that remove or replace whole keys: the argument indexes of those keys. Writes at most max and
 * returns how many there are; 0 for other commands. */
size_t lock_clobbered_keys(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *keys,
                           size_t max);
/* Whether such a command can remove or replace a lock of one of these kinds. */
bool lock_clobbers_kinds(const struct command *c, unsigned kinds);
/* COPY with DB: true, and the database in which its destination stands. */
bool lock_clobbers_database(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *db);

/* DEL or UNLINK of one key of several. */
extern const struct lock_command lock_release_of_one;

/* The rule in force for a key (enforce), or NULL: not a lock key, or not to be enforced. */
const struct lock_rule *lock_rule_for(struct session *s, const char *key, size_t len);

/* The rule of a key that is enforced or audited, or NULL. */
const struct lock_rule *lock_rule_watched(struct session *s, const char *key, size_t len);

/* A session's lock commands on one key go one after another, so that each is judged by what the one before it
 * did. Whether one on this key is in flight (or on any key); and the marking of a request that concerns several.
 * Commands that are audited don't wait for each other, but one that is enforced waits for them. */
bool lock_must_wait(const struct session *s, const char *key, size_t len);
bool lock_any_busy(const struct session *s);
void lock_busy_key(struct request *r, const char *key, size_t len);
/* Whether a lock script on the key is in flight. */
bool lock_script_busy(const struct session *s, const char *key, size_t len);
void lock_busy_all(struct request *r);

/* A command's words: name, then arguments. Borrowed. */
struct lock_words {
    const char **words;
    const size_t *lens;
    size_t count;
};
/* All of a request, borrowed from `bytes`. False if they are more than a script can hand on, unless that takes `many`:
 * no other command that concerns locks means anything by so many. request_words_clear afterwards. */
enum { WORDS_ON_STACK = 16 };
struct request_words {
    struct lock_words all;
    const char *texts[WORDS_ON_STACK]; /* private: where `all` points, unless there are more */
    size_t lens[WORDS_ON_STACK];
};
bool request_words_take(struct request_words *w, const struct resp_request *r, const char *bytes, bool many);
void request_words_clear(struct request_words *w);

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

/* The same in two steps, for scripts that go inside a transaction. lock_prepare begins it and leaves the script's call
 * in w->build. The call joins `queue` (NULL: no transaction): where an earlier one there may acquire the same key, this
 * one speaks for the lease acquired there. The first call of a script in a transaction is by its source. lock_finish
 * ends it with the script's reply or the error: *out is for the client, its reply borrowed from `end` or in `answer`
 * (LOCK_ANSWER_MAX bytes). s NULL: it is gone. */
struct lock_call;
struct lock_call *lock_prepare(struct session *s, struct lock_queue *queue, const struct lock_rule *rule,
                               const struct lock_command *lc, const char *key, size_t key_len,
                               const struct lock_words *words);
/* EXEC is being sent: what is queued is on its way. */
void lock_queue_sent(struct worker *w, const struct lock_queue *queue);
/* NULL: LOCK_TOO_MANY_KEYS. */
struct lock_call *lock_prepare_clobber(struct session *s, struct lock_queue *queue, const struct command *c,
                                       const struct resp_request *r, const char *bytes);
void lock_finish(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                 struct call_end *out, char *answer);
/* Whether its acquisition has to be confirmed by replicas, as its rule says; and the same as lock_finish for one that
 * so many replicas have: too few undo it, and the client gets 'lost' or an error. */
bool lock_wants_replicas(const struct lock_call *l);
/* EXEC has answered nil: the call is to be finished as not sent. */
void lock_undone(struct lock_call *l);
const struct lock_rule *lock_call_rule(const struct lock_call *l);
void lock_finish_confirmed(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                           int64_t replicas, struct call_end *out, char *answer);
#define LOCK_TOO_MANY_KEYS "ERR too many keys for one command that replaces lock keys; send several"

/* A whole request on one lock key. */
enum dispatch_result lock_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                   const char *bytes, const struct lock_command *lc, uint32_t key_index,
                                   const struct lock_rule *rule);
/* Whether the command would remove or replace a lock key; and the script that does it if it may: as a request, or as
 * a part of a split with its own `call`. */
bool lock_clobbers(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);
void lock_dispatch_clobber(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);
void lock_call_clobber(struct call *call, struct session *s, const struct command *c, const struct resp_request *r,
                       const char *bytes);

/* The proxy's own work on leases: asked for by the engine's sink, carried out in the worker's thread. */
void lock_renew(struct worker *w, const struct lock_lease *lease);
void lock_release(struct worker *w, const struct lock_lease *lease);
/* `waits`: the party's nodes are kept for a while, in case that somebody comes back for them. */
void lock_leave(struct worker *w, const struct lock_leaving *leaving, int64_t lease_ms, bool waits);
/* Whether the call is a renewal whose owner has released or left while it waited. */
bool lock_lease_pointless(const struct call *c);

/* At the worker's end. */
void lock_free_pool(struct worker *w);

/* PROXY LOCK and TOKEN (verb LOCK_INSPECT), RELEASE (LOCK_OPERATOR). */
enum lock_ask { LOCK_ASK_ALL, LOCK_ASK_TOKEN, LOCK_ASK_RELEASE };
enum dispatch_result lock_ask(struct session *s, const struct command *c, enum lock_ask what, const char *key,
                              size_t key_len);

#endif
