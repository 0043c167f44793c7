/*
 * Learns about locks from traffic, in every mode and outside of all rules: which clients acquire and release them, over
 * which connections, with which values. From that it derives the `lock` line that fits.
 *
 *      events (acquired, lost, released, ...) ──> keys seen lately ──> patterns x clients ──> advice
 *
 * Keys become patterns (job:123:lock becomes job:*:lock). All tables have a fixed size: the entry seen longest ago
 * makes room. It only counts facts; the engine decides to which lease a command belongs, and does not use this. For
 * connections it uses the same evidence as the engine: releases over another connection than the acquisition, unless
 * they are a loser's or a late one of the connection's own. Thread-safe.
 */
#ifndef LOCKKEEPER_ADVISE_ADVISE_H
#define LOCKKEEPER_ADVISE_ADVISE_H

#include "proxy/lock/lock_event.h"
#include "proxy/lock/pattern.h"

struct advisor;

enum {
    ADVISE_CLIENT_MAX = 96,
    ADVISE_LIBRARY_MAX = 32,
    ADVISE_LINE_MAX = 1024,
    ADVISE_ENOUGH = 10 /* acquisitions before a rule is advised */
};

enum advise_event {
    ADVISE_NOTHING, /* as far as is known */
    ADVISE_ACQUIRED,
    ADVISE_LOST,
    ADVISE_RELEASED,
    ADVISE_REFUSED, /* a release that the proxy refused */
    ADVISE_IN_VAIN, /* a release that found no lock */
    ADVISE_EXTENDED,
    ADVISE_REWRITTEN, /* SET XX, or compare and expire: an extension, or a release if it leaves much less time than
                         there was */
    ADVISE_WRITTEN,   /* SET with an expiry and no condition */
    ADVISE_SWAPPED,   /* GETSET over an existing key: the traffic does not show the lock's new holder */
    /* For list locks that are not enforced; `value` is the node. */
    ADVISE_PUSHED,
    ADVISE_HEAD,    /* shown as the queue's head */
    ADVISE_RENAMED, /* the head has a new value */
    ADVISE_TAKEN    /* removed from the queue */
};

/* Kinds of locks, as bits. */
enum { ADVISE_STRING = 1, ADVISE_LIST = 2, ADVISE_HASH = 4, ADVISE_COUNTER = 8 };

/* What a command means for advice, with the kind of lock. */
enum {
    ADVISES_KIND = 15,
    ADVISES_FIRST = 16 /* it acquires if it answers 1 */,
    ADVISES_ALL = 32 /* it concerns all of its keys */
};
/* What a command that ran unchanged did to a lock, from its effect. Removes from *e what says nothing of a lock. */
enum advise_event advise_event_of(struct lock_event *e);

struct advisor *advisor_new(uint64_t seed);
void advisor_free(struct advisor *a);

/* Whether events of this key are wanted now. If keys with the same beginning have many events a minute, only some of
 * the keys are looked at. To be called once for each event, before it is composed. */
bool advisor_samples(struct advisor *a, const char *key, size_t len, int64_t now_ms);
void advisor_note(struct advisor *a, enum advise_event what, const struct lock_event *e, int64_t now_ms);
/* Notes the end of a session that has acquired a lock without an expiry; other sessions need not be reported.
 * `one_shot`: its client was a one-shot client. */
void advisor_left(struct advisor *a, uint64_t session_id, bool one_shot);

/* ---- fences: data that is written while a lock is held ------------------------------------------ */

/* advisor_lock_seen notes that a lock of a rule has been acquired; advisor_lock_taken notes which lock, by which client
 * (lock_client_hash). */
void advisor_lock_seen(struct advisor *a, int64_t now_ms);
void advisor_lock_taken(struct advisor *a, const struct lock_key *lock, uint64_t client);
/* Whether some of the writes should be looked at: a lock was acquired lately. */
bool advisor_looks(const struct advisor *a, int64_t now_ms);
/* A write of data. `writer` returns the sender's relation to a lock; it must not call this module. */
struct advise_write {
    struct lock_key key;
    uint64_t client; /* lock_client_hash */
    enum lock_writer (*writer)(void *arg, const struct lock_key *lock);
    void *arg;
};
void advisor_note_write(struct advisor *a, const struct advise_write *w, int64_t now_ms);

/* ---- keys without a rule -------------------------------------------------------------------------- */

/* Whether a key outside of all rules was acquired lately (or another with the same few bytes). A cheap test, before
 * replies to its releases are looked at. */
bool advisor_knows(const struct advisor *a, const char *key, size_t len);
/* Makes advisor_knows true for the key for five to ten minutes. */
void advisor_arm(struct advisor *a, const char *key, size_t len, int64_t now_ms);

/* What an application's script does to one of its keys, as far as its text shows. */
enum advise_script {
    ADVISE_SCRIPT_OTHER,
    ADVISE_SCRIPT_ACQUIRES, /* SET NX, GET and SET, ...: if it acquired, its reply is OK, above zero, or the value */
    ADVISE_SCRIPT_RELEASES, /* GET, compare, DEL: above zero if it released */
    ADVISE_SCRIPT_EXTENDS,  /* GET, compare, PEXPIRE: above zero if it extended */
    ADVISE_SCRIPT_ENTERS,   /* HINCRBY, PEXPIRE: nil if it acquired, else the time left; also other scripts with this
                               reply */
    ADVISE_SCRIPT_LEAVES    /* HINCRBY, DEL: 1 if it released */
};

enum { ADVISE_LITERAL = 15 };
struct advise_text {
    enum advise_script kind;
    uint8_t key;           /* the index of the key, from 1 */
    uint8_t value, expiry; /* the index of the arguments that are the value and the expiry, from 1; 0: not known;
                              ADVISE_LITERAL: the value is always the same */
    bool seconds;          /* the expiry is in seconds */
    bool endless;          /* it sets no expiry */
};
struct advise_text advise_script_read(const char *source, size_t len);
/* Reads only the kind of a script from its text. */
enum advise_script advise_script_kind(const char *source, size_t len);
/* Remember a script by the first 8 bytes of its SHA1; return what is known of one. */
void advisor_script_note(struct advisor *a, uint64_t sha1, const struct advise_text *text);
struct advise_text advisor_script(struct advisor *a, uint64_t sha1);

/* Calls fn with a line for each dead lock, for each pattern of data under a lock, and for each pattern of locks and
 * client. Patterns with most events come first. fn must not call this module. */
void advisor_each(struct advisor *a, int64_t now_ms, void (*fn)(void *arg, const char *line, size_t len), void *arg);
/* Counts the patterns of keys that look like locks: with enough events to advise a rule, seen since then, and without a
 * match among the rules, even those that are off. */
size_t advisor_unruled(struct advisor *a, const struct lock_rules *rules, int64_t since_ms);

#endif
