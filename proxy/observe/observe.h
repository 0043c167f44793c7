/*
 * The observer remembers what was seen of locks, in every mode and outside of all rules: which clients acquire and
 * release them, over which connections, with which values. PROXY ADVISE reads its evidence here.
 *
 *      live traffic ───┐
 *      audit ──────────┼──> struct lock_event ──> keys seen lately ──> evidence: patterns x clients ──> proxy/advise
 *      MONITOR's lines ┘
 *
 * Keys become patterns (job:123:lock becomes job:*:lock). All tables have a fixed size: the entry seen longest ago
 * makes room. Most keys are outside of all rules, and no guard record or lease says when they may be
 * forgotten; so the observer does not use the engine's ledger, which keeps a claim for as long as its release may come.
 * It only counts facts. What counts as evidence, and how much is enough, is in proxy/lock/thresholds.h for both.
 * Thread-safe.
 */
#pragma once

#include "proxy/lock/lock_event.h"
#include "proxy/lock/hash.h"

struct observer;

enum { ADVISE_CLIENT_MAX = 96, ADVISE_LIBRARY_MAX = 32 };

enum seen_event {
    SEEN_NOTHING, /* as far as is known */
    SEEN_ACQUIRED,
    SEEN_LOST,
    SEEN_RELEASED,
    SEEN_REFUSED, /* a release that the proxy refused */
    SEEN_IN_VAIN, /* a release that found no lock */
    SEEN_EXTENDED,
    SEEN_REWRITTEN, /* SET XX, or compare and expire: extends, or releases if it leaves much less time */
    SEEN_WRITTEN,   /* SET with an expiry and no condition */
    SEEN_SWAPPED,   /* GETSET over an existing key: the traffic does not show the lock's new holder */
    SEEN_LOWERED,   /* DECR that leaves a number above zero: of a loser, or of one of a semaphore's holders */
    /* For list locks that are not enforced; `value` is the node. */
    SEEN_PUSHED,
    SEEN_HEAD,    /* shown as the queue's head */
    SEEN_RENAMED, /* the head has a new value */
    SEEN_TAKEN,   /* removed from the queue */
    /* For lists and sorted sets that may be semaphores; `value` is the token or member. */
    SEEN_POPPED, /* `value` NULL: the token is not known */
    SEEN_GIVEN,  /* pushed */
    SEEN_ADDED,
    SEEN_ASKED, /* for the number or rank of members */
    SEEN_UNADDED
};

/* Kinds of locks, as bits. In a row, ADVISE_PERMITS: lists and sorted sets that may be semaphores. */
enum { ADVISE_STRING = 1, ADVISE_LIST = 2, ADVISE_HASH = 4, ADVISE_COUNTER = 8, ADVISE_PERMITS = 16 };

/* What a command means for advice, with the kind of lock. */
enum {
    ADVISES_KIND = 15,
    ADVISES_FIRST = 16 /* it acquires if it answers 1 */,
    ADVISES_ALL = 32 /* it concerns all of its keys */
};
/* What a command that ran unchanged did to a lock. Removes from *e what says nothing of a lock. */
enum seen_event seen_of(struct lock_event *e);
/* What a command did to a list or sorted set that may be a semaphore, from e->permit. */
enum seen_event seen_permit(const struct lock_event *e);

struct observer *observer_new(uint64_t seed);
void observer_free(struct observer *a);

/* Whether events of this key are wanted now. If keys with the same beginning have many events a minute, only some of
 * the keys are looked at. To be called once for each event, before it is composed. */
bool observer_samples(struct observer *a, const char *key, size_t len, int64_t now_ms);
void observer_note(struct observer *a, enum seen_event what, const struct lock_event *e, int64_t now_ms);
/* Notes the end of a session that has acquired a lock without an expiry; other sessions need not be reported.
 * `one_shot`: its client was a one-shot client. */
void observer_left(struct observer *a, uint64_t session_id, bool one_shot);

/* ---- fences: data that is written while a lock is held ------------------------------------------ */

/* observer_lock_seen notes that a lock of a rule has been acquired; observer_lock_taken notes which lock, by which
 * client (lock_client_hash). */
void observer_lock_seen(struct observer *a, int64_t now_ms);
void observer_lock_taken(struct observer *a, const struct lock_key *lock, uint64_t client);
/* Whether some of the writes should be looked at: a lock was acquired lately. */
bool observer_looks(const struct observer *a, int64_t now_ms);
/* A write of data. `writer` returns the sender's relation to a lock; it must not call this module. */
struct observed_write {
    struct lock_key key;
    uint64_t client; /* lock_client_hash */
    enum lock_writer (*writer)(void *arg, const struct lock_key *lock);
    void *arg;
};
void observer_note_write(struct observer *a, const struct observed_write *w, int64_t now_ms);

/* ---- keys without a rule -------------------------------------------------------------------------- */

/* Whether a key outside of all rules was acquired lately (or another with the same few bytes): a cheap test. */
bool observer_knows(const struct observer *a, const char *key, size_t len);
/* Makes observer_knows true for the key for five to ten minutes. */
void observer_arm(struct observer *a, const char *key, size_t len, int64_t now_ms);

/* What an application's script does to one of its keys, as far as its text shows. */
enum advise_script {
    ADVISE_SCRIPT_OTHER,
    ADVISE_SCRIPT_ACQUIRES, /* SET NX, GET and SET, ...: if it acquired, its reply is OK, above zero, or the value */
    ADVISE_SCRIPT_RELEASES, /* GET, compare, DEL: above zero if it released */
    ADVISE_SCRIPT_EXTENDS,  /* GET, compare, PEXPIRE: above zero if it extended */
    ADVISE_SCRIPT_ENTERS,   /* HINCRBY, PEXPIRE, and others with this reply: nil if it acquired, else the time left */
    ADVISE_SCRIPT_LEAVES    /* HINCRBY, DEL: 1 if it released */
};

enum { ADVISE_LITERAL = 15 };
struct advise_text {
    enum advise_script kind : 3;
    unsigned key : 4; /* the index of the key, from 1 */
    /* The index in ARGV of the value and the expiry, from 1; 0: not known; ADVISE_LITERAL: always the same. */
    unsigned value : 4, expiry : 4;
    bool seconds : 1; /* the expiry is in seconds */
    bool endless : 1; /* it sets no expiry */
};
struct advise_text advise_script_read(const char *source, size_t len);
/* Remember a script by the first 8 bytes of its SHA1; return what is known of one. */
void observer_script_note(struct observer *a, uint64_t sha1, const struct advise_text *text);
struct advise_text observer_script(struct observer *a, uint64_t sha1);

/* ---- what was learnt ------------------------------------------------------------------------------ */

/* A session that has tried for locks of a pattern. */
struct evidence_session {
    uint32_t id;  /* derived from its number; 0: none */
    uint32_t row; /* contended leases in a row that were released over the session that had acquired, this session */
};

enum { OBSERVED_ROWS = 512, OBSERVED_PAIRS = 64, ADVISE_SESSIONS = 32, EVIDENCE_COUNTS = 26 };

/* The counts of a client's locks of one pattern, or of all clients' if they are many. A release is counted once, in the
 * row of the lock's acquirer. Exception: a loser's release, or one that is late or finds no lock, counts for its
 * sender. */
struct evidence {
    char pattern[ADVISE_PATTERN_MAX]; /* "": the row is empty */
    char client[ADVISE_CLIENT_MAX];
    char library[ADVISE_LIBRARY_MAX];
    uint64_t client_hash;
    size_t stem_len; /* of the pattern, up to the last separator */
    bool all;        /* of all clients: `client` has stars where they differ */
    bool ruled;      /* the pattern matches a rule */
    bool audited;    /* the rule's mode is audit */
    bool waits;      /* the rule has `wait` */
    bool overlapped; /* several workers may share one of the sessions */
    unsigned kinds;
    int64_t last_ms;
    uint64_t last_value;
    union {
        struct {
            unsigned long long events;
            unsigned long long acquired, lost, endless, valued, repeated;
            unsigned long long sent;     /* all releases, whatever their result */
            unsigned long long released; /* locks that a release has freed */
            unsigned long long crossed, by_other;
            /* the part of by_other that is not by a script, which may have compared */
            unsigned long long by_other_bare;
            unsigned long long by_own;  /* releases, also in vain, by the client that had acquired */
            unsigned long long losers;  /* releases that found a lock, by sessions that had lost */
            unsigned long long freed;   /* the part of losers that the proxy did not refuse */
            unsigned long long refused; /* refused by the proxy, without those of losers and late ones */
            unsigned long long late, in_vain;
            unsigned long long late_timed, late_ms; /* late releases with known lateness, and its sum */
            unsigned long long one_shots;           /* locks without an expiry, of one-shot clients */
            unsigned long long expired;             /* ended without a release */
            unsigned long long stood, stood_ms;     /* how often, and how long, a lock was free after a release although
                                                       others had asked for it: they slept */
            /* a counter's session kept a number above the first for a while, as in a semaphore; or a session gave back
             * a token or member that it had kept for a while, beside another one */
            unsigned long long shared;
            unsigned long long odd; /* ADVISE_PERMITS: what no holder of a permit does. `released`: give-backs */
            unsigned long long row; /* as in struct evidence_session, over all sessions */
        };
        unsigned long long counts[EVIDENCE_COUNTS]; /* the same, to be added */
    };
    struct evidence_session sessions[ADVISE_SESSIONS];
    uint64_t dead_hash;           /* of the last key that was found dead */
    unsigned long long dead_lost; /* attempts lost on it since its owner left, as of the last look; 0: it is not dead */
    char dead_key[ADVISE_PATTERN_MAX];
};

/* A pattern of data that is written under locks of another pattern, with counts (written_data.c). */
struct written_pair {
    char pattern[ADVISE_PATTERN_MAX]; /* of the data; "": unused */
    char lock[ADVISE_PATTERN_MAX];    /* its n-th star stands for the same text as the data's n-th star */
    uint32_t db;
    unsigned long long writes; /* sampled writes, by any client */
    unsigned long long held;   /* by a client that held the lock */
    unsigned long long late;   /* by a client that had held it, after the lease was over */
    int64_t last_ms;           /* when the last held or late write came */
};

/* Adds the counts of a row, of the same pattern, to another one. */
void evidence_add(struct evidence *to, const struct evidence *from);
/* Calls fn with each row, at most OBSERVED_ROWS. fn must not call this module, and copies what it needs. Before that,
 * counts the locks in their rows that have expired or are dead; now_ms 0: does not look for them. */
void observer_each(struct observer *a, int64_t now_ms, void (*fn)(void *arg, const struct evidence *row), void *arg);
/* Copies the pairs; returns how many there are. */
size_t observer_pairs(struct observer *a, struct written_pair out[OBSERVED_PAIRS]);
