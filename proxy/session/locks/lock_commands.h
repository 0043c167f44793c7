/* What a command alone, without its session and its reply, means to a lock and says of it. */
#pragma once

#include <stdbool.h>

#include "proxy/observe/observe.h"
#include "proxy/session/core/class.h"
#include "proxy/upstream/script.h"

/* The form of the client's reply. The scripts get it as ARGV 10. */
enum lock_shape {
    SHAPE_NIL,
    SHAPE_OK,
    SHAPE_INT,
    SHAPE_ARRAY,   /* as SHAPE_NIL, but the command's nil is a null array in RESP2 */
    SHAPE_TOGETHER /* no reply: adopt.lua runs in one transaction with the application's script */
};

/* What a command means to a lock. */
struct lock_command {
    enum lock_verb verb;
    enum script_id script;
    uint32_t value_at;  /* argument index of the value; of a hash, of the field (lock_command_of_field); 0: none */
    uint8_t content_at; /* of a hash: argument index of the field's new content; 0: not known */
    bool compares;      /* the command compares the lock's value itself: DELIFEQ, DELEX, SET IFEQ */
    uint32_t named_at;  /* argument index of the value that the lock must have for the command to act; 0: none */
    enum lock_shape shape;
    bool known;        /* false: the command has no meaning for locks, and is forwarded */
    uint8_t advises;   /* as in struct lock_row */
    int64_t expiry_ms; /* SCRIPT_ACQUIRE: the command's expiry; 0: none; LOCK_EXPIRY_OTHER: only the script can tell */
    const char *name;  /* in capitals, static; NULL: the name that the client wrote */
};
enum { LOCK_EXPIRY_OTHER = -1 };

/* Whether the command is about a field of a hash lock. */
static inline bool lock_command_of_field(const struct lock_command *lc) {
    return lc->script == SCRIPT_HASH || lc->script == SCRIPT_FIELDS;
}

/* Whether the command is an attempt that the proxy can make again later. HSETEX is none: its words are not kept. */
static inline bool lock_command_remakes(const struct lock_command *lc) {
    return lc->verb == LOCK_ACQUIRE && lc->script != SCRIPT_FIELDS;
}

/* What a command does to the expiry of its key. */
enum lock_row_expiry {
    EXPIRY_KEPT,
    EXPIRY_NONE,         /* removed */
    EXPIRY_SET,          /* set by the options of SET; removed if there is none */
    EXPIRY_GETEX,        /* set by the options of GETEX; kept if there is none */
    EXPIRY_SECONDS,      /* argument 2 is in seconds from now */
    EXPIRY_MILLISECONDS, /* argument 2 is in milliseconds from now */
    EXPIRY_AT_SECONDS,   /* argument 2 is in seconds since 1970 */
    EXPIRY_AT_MILLISECONDS
};

/* By how much a command changes a counter, or the length of a string or queue. */
enum lock_row_count {
    COUNTS_NOT, /* the reply does not tell whether the client has the lock */
    COUNTS_ONE,
    COUNTS_ARGUMENT, /* by argument 2 */
    COUNTS_FIELD,    /* by argument 3 */
    COUNTS_BYTES,    /* by the length of argument 2 */
    COUNTS_ARGUMENTS /* by the number of arguments from argument 2 on */
};

/* Which keys a command removes or replaces as a whole. */
enum lock_row_keys {
    REPLACES_NONE,
    REPLACES_FIRST,
    REPLACES_SECOND,
    REPLACES_TWO,
    REPLACES_PAIRS,
    REPLACES_STORE,
    REPLACES_ALL
};

/* A row of the table of commands on locks (lock_command.c). */
struct lock_row {
    const char *name;                /* in capitals; NULL: the command has no meaning for locks */
    unsigned kinds;                  /* the kinds of lock that the command is about (enum lock_kind); 0: all kinds */
    struct lock_command form, other; /* `other` applies where the rule of the key has none of these kinds */
    uint8_t options;                 /* private to lock_command.c: how the arguments change the form */
    uint8_t expiry, counts, replaces, advises;
    uint8_t queue; /* enum lock_queue_sight; QUEUE_HEAD applies only where argument 2 is 0 */
};
/* Returns the row of a command, never NULL. A command without a meaning for locks has an empty row. */
const struct lock_row *lock_row_of(const struct command *c);

/* Classifies a command for a key whose rule has these kinds (enum lock_kind). False: it is forwarded unchanged. */
bool lock_command_of(const struct command *c, const struct resp_request *r, const char *bytes, unsigned kinds,
                     struct lock_command *out);
/* Finds the argument indexes of the keys that a command removes or replaces as a whole. Writes at most max (2 or more),
 * and returns how many there are. */
size_t lock_clobbered_keys(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *keys,
                           size_t max);
/* Whether a command that removes or replaces whole keys can affect a lock of one of these kinds. */
bool lock_clobbers_kinds(const struct command *c, unsigned kinds);
/* What a request means to the locks among its keys that are under enforced rules. */
enum lock_meaning {
    MEANS_NOTHING,  /* no key is such a lock, or the command does not affect it */
    MEANS_LOCK,     /* a command on one lock, as lock_command_of classifies it */
    MEANS_RELEASES, /* DEL or UNLINK of several keys */
    MEANS_SHOWS,    /* it shows values, as MGET and HGET do; the engine notes what the session sees */
    MEANS_SCRIPT,   /* a script of the application */
    MEANS_CLOBBERS  /* it removes or replaces locks as a whole, or has too many keys to check */
};
/* Fills *lc if it returns MEANS_LOCK. */
enum lock_meaning lock_meaning_of(const struct request_class *k, struct lock_command *lc);
/* Whether the request reads fields of one hash lock: HGET, HMGET, HGETALL, HEXISTS, HKEYS or HSCAN. */
bool lock_shows_fields(const struct request_class *k);
/* Whether a command sets all of its keys if none is there: MSETNX, and MSETEX with NX. */
bool lock_acquires_all(const struct command *c, const struct resp_request *r, const char *bytes);
/* Whether a command is COPY with the option DB. Sets *db to the database of the destination. */
bool lock_clobbers_database(const struct command *c, const struct resp_request *r, const char *bytes, uint32_t *db);

/* What DEL or UNLINK of several keys means for each of them. */
extern const struct lock_command lock_release_of_one;

enum { LOCK_CLOBBERED_MAX = 256 }; /* the most keys of one clobbering command */
/* Whether the command would remove or replace a lock key. */
bool lock_clobbers(const struct request_class *k);
/* Whether all of its keys are locks of one rule. */
bool lock_clobbers_one_rule(const struct request_class *k);
/* Returns the rule of argument `at`, the `nth` key that the command removes or replaces. NULL: the command does not
 * affect the rule's kinds of lock. */
const struct lock_rule *lock_clobbered_rule(const struct request_class *k, uint32_t at, size_t nth);
/* Whether the command runs a script of the application that may write. */
bool script_is(const struct command *c);

/* ---- command_event.c: what a command says of a lock ----------------------------------------------------- */

enum { EVENT_KEYS_MAX = 256 };

/* A command as its client has sent it. Borrowed. */
struct command_sent {
    const struct command *command;
    const struct resp_request *request;
    const char *bytes;
};

/* Fills *e with what a command means to the key at argument `index`; *e points into the command. `kinds`: of its rule;
 * 0: no rule applies, and only PROXY ADVISE asks. The effect is EFFECT_DONE, or EFFECT_SCRIPTED for a script; the
 * session and the database stay unset. False: the command means nothing to a lock. */
bool event_read(struct lock_event *e, const struct command_sent *sent, uint32_t index, unsigned kinds, int64_t now_ms,
                struct lock_command *lc);
/* Whether a command that sets an expiry has a condition: its reply 0 does not mean that the key is missing. */
bool event_conditional(const struct command *c, size_t argc);

/* Sets in *e the verb, key, value and expiry that the text of an EVAL or EVALSHA shows. False: it shows no lock;
 * text->kind is ADVISE_SCRIPT_OTHER. */
bool event_read_script(struct lock_event *e, struct observer *a, const struct command *c, const struct resp_request *r,
                       const char *bytes, struct advise_text *text);
/* What is known of the text of an EVAL or EVALSHA, which the observer remembers. */
struct advise_text event_script_text(struct observer *a, const struct command *c, const struct resp_request *r,
                                     const char *bytes);
bool event_script_acquires(const struct advise_text *text);
/* Has the observer remember the text of a SCRIPT LOAD, if the request is one. */
void event_script_loaded(struct observer *a, const struct resp_request *r, const char *bytes);
