/*
 * What can be learnt of locks from traffic, in every mode and outside of all rules: who acquires and releases what,
 * over which connections, with which values; and from that, the `lock` line that fits.
 *
 *      events (acquired, lost, released, ...) ──> keys seen lately ──> patterns x clients ──> advice
 *
 * Keys become patterns (job:123:lock is job:*:lock). Everything has a fixed size: what has not been seen for the
 * longest time makes room. Facts alone, no attribution: that is the engine's, which does not depend on this. What is
 * said of connections rests on the engine's evidence nevertheless: releases that cross from one connection to another,
 * and are no loser's and nobody's own that come late. Thread-safe.
 */
#ifndef LOCKKEEPER_ADVISE_ADVISE_H
#define LOCKKEEPER_ADVISE_ADVISE_H

#include "proxy/lock/audit.h"
#include "proxy/lock/pattern.h"

struct advisor;

enum {
    ADVISE_CLIENT_MAX = 96,
    ADVISE_LIBRARY_MAX = 32,
    ADVISE_LINE_MAX = 1024,
    ADVISE_ENOUGH = 10 /* acquisitions before anything is advised */
};

enum advise_event {
    ADVISE_ACQUIRED,
    ADVISE_LOST,
    ADVISE_RELEASED,
    ADVISE_REFUSED, /* a release that the proxy refused */
    ADVISE_IN_VAIN, /* a release that found nothing */
    ADVISE_EXTENDED,
    ADVISE_REWRITTEN, /* SET XX, compare and expire: extends, or lets go where it leaves much less than there was */
    ADVISE_WRITTEN,   /* SET with an expiry and no condition */
    ADVISE_SWAPPED,   /* GETSET over what was there: who has the lock now the wire does not say */
    /* Of list locks that are not enforced; `value` is the node. */
    ADVISE_PUSHED,
    ADVISE_HEAD,    /* shown as the queue's head */
    ADVISE_RENAMED, /* the head is this now */
    ADVISE_TAKEN    /* removed from the queue */
};

/* Kinds of locks, as bits. */
enum { ADVISE_STRING = 1, ADVISE_LIST = 2, ADVISE_HASH = 4, ADVISE_COUNTER = 8 };

struct advise_sight {
    enum advise_event event;
    struct lock_key key;
    const struct lock_rule *rule; /* NULL: none matches, or its mode is off */
    uint64_t session_id;
    const char *client, *library; /* identity; CLIENT SETINFO lib-name or NULL */
    size_t client_len;
    uint64_t client_hash; /* of the identity, keyed; always the same way */
    bool overlapped;      /* the session's commands may be several workers' */
    bool queue;           /* a list lock */
    bool waits;           /* PUSHED: others are before it */
    bool scripted;        /* by a script of the application's: it may have acquired what it had, and compared */
    bool watched;         /* in a transaction behind WATCH */
    bool beside;          /* of a kind that the rule lacks */
    bool renewed;         /* ACQUIRED: the proxy gives it an end */
    unsigned kind;        /* 0: a string */
    const char *value;    /* ACQUIRED: what was written; NULL unknown */
    size_t value_len;
    int64_t pttl_ms; /* ACQUIRED, EXTENDED, REWRITTEN, WRITTEN: PTTL_NONE, or kept alive by the proxy */
};

/* What a command means here, beside the kind of lock. */
enum {
    ADVISES_KIND = 15,
    ADVISES_FIRST = 16 /* it acquires where it answers 1 */,
    ADVISES_ALL = 32 /* all of its keys */
};
/* Sets the event, and what follows from it, of a command that ran as it was, by what audit was told of it. False: it
 * did nothing to a lock, as far as is known. */
bool advise_says(const struct lock_sight *from, unsigned advises, struct advise_sight *to);
/* Sets the event of a command that answered a number, and is of a kind that counts as data. False: it is none that
 * acquires. */
bool advise_passes(unsigned advises, int64_t number, struct advise_sight *to);

struct advisor *advisor_new(uint64_t seed);
void advisor_free(struct advisor *a);

/* Whether events of this key are wanted now. All are, but where many come a minute of keys that begin alike, some keys
 * stand for all. To be asked once for each event, before it is put together. */
bool advisor_samples(struct advisor *a, const char *key, size_t len, int64_t now_ms);
void advisor_note(struct advisor *a, const struct advise_sight *sight, int64_t now_ms);
/* Notes that a session is gone that has acquired a lock without an expiry; others need not be told. `one_shot`: its
 * client was a one-shot client. */
void advisor_left(struct advisor *a, uint64_t session_id, bool one_shot);

/* ---- fences: data that is written while a lock is held ------------------------------------------ */

/* Note that a lock of a rule has been acquired; and which one, by which client (lock_client_hash). */
void advisor_lock_seen(struct advisor *a, int64_t now_ms);
void advisor_lock_taken(struct advisor *a, const struct lock_key *lock, uint64_t client);
/* Whether some of the writes are to be looked at: a lock has been acquired lately. */
bool advisor_looks(const struct advisor *a, int64_t now_ms);
/* A write of data. `writer` says how its sender stands to a lock; it must not call this module. */
struct advise_write {
    struct lock_key key;
    uint64_t client; /* lock_client_hash */
    enum lock_writer (*writer)(void *arg, const struct lock_key *lock);
    void *arg;
};
void advisor_note_write(struct advisor *a, const struct advise_write *w, int64_t now_ms);

/* ---- keys that are no rule's ---------------------------------------------------------------------- */

/* Whether a key outside of all rules was seen to be acquired lately (or another with the same few bytes): a cheap look,
 * before the replies of its releases are looked at. */
bool advisor_knows(const struct advisor *a, const char *key, size_t len);
/* Makes the key of interest for five to ten minutes. */
void advisor_arm(struct advisor *a, const char *key, size_t len, int64_t now_ms);

/* What a script of the application's does to one of its keys, as far as its text tells. */
enum advise_script {
    ADVISE_SCRIPT_OTHER,
    ADVISE_SCRIPT_ACQUIRES, /* SET NX, GET and SET, ...: its reply is OK, above zero, or the value, where it has */
    ADVISE_SCRIPT_RELEASES, /* GET, compare, DEL: above zero where it has */
    ADVISE_SCRIPT_EXTENDS,  /* GET, compare, PEXPIRE: likewise */
    ADVISE_SCRIPT_ENTERS,   /* HINCRBY, PEXPIRE: nil where it has, else the time left; likewise others that tell that */
    ADVISE_SCRIPT_LEAVES    /* HINCRBY, DEL: 1 where it has */
};

enum { ADVISE_LITERAL = 15 };
struct advise_text {
    enum advise_script kind;
    uint8_t key;           /* which of its keys: 1 the first */
    uint8_t value, expiry; /* which of its arguments it writes and takes for the expiry: 1 the first; 0 not known;
                              ADVISE_LITERAL: the value is the same always */
    bool seconds;          /* the expiry is in these */
    bool endless;          /* it sets none */
};
struct advise_text advise_script_read(const char *source, size_t len);
/* Reads only the kind of a script from its text. */
enum advise_script advise_script_kind(const char *source, size_t len);
/* Remember a script by the first 8 bytes of its SHA1; and tell what is known of one. */
void advisor_script_note(struct advisor *a, uint64_t sha1, const struct advise_text *text);
struct advise_text advisor_script(struct advisor *a, uint64_t sha1);

/* Calls fn with a line for each dead lock, for each pattern of data that is written under a lock, and for each pattern
 * of locks and client, those with most events first. fn must not
 * call this module. */
void advisor_each(struct advisor *a, int64_t now_ms, void (*fn)(void *arg, const char *line, size_t len), void *arg);
/* Counts the patterns of keys that look like locks (of which there is enough to advise a rule), have been seen since
 * then, and match none of these rules, not even one that is off. */
size_t advisor_unruled(struct advisor *a, const struct lock_rules *rules, int64_t since_ms);

#endif
