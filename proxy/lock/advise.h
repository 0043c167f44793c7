/*
 * What can be learnt of locks from traffic, in every mode and outside of all rules: who acquires and releases what,
 * over which connections, with which values; and from that, the `lock` line that fits.
 *
 *      events (acquired, lost, released, ...) ──> keys seen lately ──> patterns x clients ──> advice
 *
 * Keys become patterns (job:123:lock is job:*:lock). Everything has a fixed size: what has not been seen for the
 * longest time makes room. Facts alone, no attribution: that is the engine's, which does not depend on this.
 * Thread-safe.
 */
#ifndef LOCKKEEPER_LOCK_ADVISE_H
#define LOCKKEEPER_LOCK_ADVISE_H

#include "proxy/lock/engine.h"
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
    /* Of list locks that are not enforced; `value` is the node. */
    ADVISE_PUSHED,
    ADVISE_HEAD,    /* shown as the queue's head */
    ADVISE_RENAMED, /* the head is this now */
    ADVISE_TAKEN    /* removed from the queue */
};

struct advise_sight {
    enum advise_event event;
    struct lock_key key;
    const struct lock_rule *rule; /* NULL: none matches, or its mode is off */
    uint64_t session_id;
    const char *client, *library; /* identity; CLIENT SETINFO lib-name or NULL */
    size_t client_len;
    uint64_t client_hash; /* of the identity, keyed; always the same way */
    bool queue;           /* a list lock */
    bool waits;           /* PUSHED: others are before it */
    const char *value;    /* ACQUIRED: what was written; NULL unknown */
    size_t value_len;
    int64_t pttl_ms; /* ACQUIRED, EXTENDED: -1 none, or kept alive by the proxy */
};

struct advisor *advisor_new(uint64_t seed);
void advisor_free(struct advisor *a);

/* Whether events of this key are wanted now. All are, but where many come a minute of keys that begin alike, some keys
 * stand for all. To be asked once for each event, before it is put together. */
bool advisor_samples(struct advisor *a, const char *key, size_t len, int64_t now_ms);
void advisor_note(struct advisor *a, const struct advise_sight *sight, int64_t now_ms);

/* Whether a key outside of all rules was seen to be acquired lately (or another with the same few bytes): a cheap look,
 * before the replies of its releases are looked at. */
bool advisor_knows(const struct advisor *a, const char *key, size_t len);
/* The key is of interest from now on, for five to ten minutes. */
void advisor_arm(struct advisor *a, const char *key, size_t len, int64_t now_ms);

/* What a script of the application's does to its first key, as far as its text tells. */
enum advise_script {
    ADVISE_SCRIPT_OTHER,
    ADVISE_SCRIPT_ACQUIRES, /* SET NX, SETNX: its reply is OK or above zero where it has */
    ADVISE_SCRIPT_RELEASES, /* GET, compare, DEL: above zero where it has */
    ADVISE_SCRIPT_ENTERS,   /* HINCRBY, PEXPIRE: nil where it has, else the time left */
    ADVISE_SCRIPT_LEAVES    /* HINCRBY, DEL: 1 where it has */
};
enum advise_script advise_script_kind(const char *source, size_t len);
/* Remembers a script by the first 8 bytes of its SHA1; and what is known of one. */
void advisor_script_note(struct advisor *a, uint64_t sha1, enum advise_script kind);
enum advise_script advisor_script(struct advisor *a, uint64_t sha1);

/* Calls fn with a line for each pattern and client, those with most events first. fn must not call this module. */
void advisor_each(struct advisor *a, int64_t now_ms, void (*fn)(void *arg, const char *line, size_t len), void *arg);

#endif
