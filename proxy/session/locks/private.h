/*
 * What the files of proxy/session/locks/ share, besides the call of a lock script (lock_call.h) and its arguments
 * (lock_args.h).
 */
#ifndef LOCKKEEPER_SESSION_LOCKS_PRIVATE_H
#define LOCKKEEPER_SESSION_LOCKS_PRIVATE_H

#include "proxy/session/locks/locks.h"
#include "proxy/session/locks/lock_args.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/script_call.h"

enum {
    LOCK_CLOBBERED_MAX = 256, /* the most keys of one clobbering command */
    LOCK_PROBES = 64,         /* of one worker */
    LEARNT_ID_MAX = 44        /* the id of a stream's entry, two numbers, with its NUL */
};

/* The last expiry of a lock and of its guard record, encoded as two arguments of a call. */
struct lock_expiry {
    int64_t ms; /* 0: none yet */
    size_t len;
    char words[64];
};

/* A number, encoded as an argument of a call. */
struct lock_number {
    int64_t n;
    size_t len; /* 0: none yet */
    char word[32];
};

/* How far learnt.c has read the record of what is learnt. */
struct learnt_look {
    char last[LEARNT_ID_MAX]; /* the id of the last entry that was read; "": none */
    bool asking;
    bool read;         /* the record has been read, or there was none */
    bool refused;      /* Redis refused the last read */
    uint64_t begun;    /* engine_begun at the last read */
    int64_t active_ms; /* when the engine was last found to be in use */
    int64_t looked_ms; /* when the last read began; 0: there was none */
};

/* A worker's part in locks: worker->locks. */
struct worker_locks {
    struct list_node held_back; /* hold.c: the sessions whose release is held back, by their runnable_link */
    struct ev_timer look;       /* hold.c: when the sessions in held_back become runnable */
    struct list_node *free;     /* a stack of unused struct lock_call */
    size_t free_count;
    int64_t refused_ms;        /* when the log last said that a lease could not be renewed */
    bool successors_asking;    /* successors.c is reading its list */
    struct learnt_look learnt; /* used by the first worker alone */
    bool glancing;             /* learnt.c: a read of the newest entries is under way */
    int64_t glanced_ms;        /* learnt.c: when that read began */
    struct lock_expiry expiry; /* words.c: the last expiry that was encoded */
    struct lock_number lease;  /* words.c: the last lease that was encoded in a call with right, identity and lease */
    struct call *probes[LOCK_PROBES]; /* join.c: the attempts that other attempts may join, by the hash of the key */
    uint32_t counters_seen;           /* advise.c: how many counting commands it has seen */
    uint32_t writes_seen;             /* advise.c: how many writes it has looked at in this second */
};

/* Stops the session's input at a release that is held back, and has it read again in a few milliseconds (hold.c). */
void lock_hold_back(struct session *s);
void lock_holds_open(struct worker *w);
void lock_holds_close(struct worker *w);
/* Measures the round trip to the client once. Called when an attempt of the session was lost. */
void lock_note_trip(struct session *s);
/* If the rule asks for replicas and the script has acquired, waits for the replicas and ends the call later
 * (confirm.c). Returns false if there is nothing to wait for. */
bool lock_confirm(struct call *c, struct lock_call *l, const struct call_end *end);

/* ---- join.c: one script call for the attempts of many sessions ------------------------------ */

/* Has the attempt join one on the same key that has not been sent yet, and returns true. Both then get the same answer.
 * False: there is none to join. */
bool lock_join(struct call *call, struct lock_call *l);
/* lock_probe notes that an attempt was submitted, so that other attempts may join it. lock_probe_over notes that it has
 * ended, so that no more may. */
void lock_probe(struct call *call, struct lock_call *l);
void lock_probe_over(struct call *call, struct lock_call *l);
/* Answers the attempts that have joined an attempt which ended with `end`. `asker` is the client of that attempt; NULL:
 * its session is closed. */
void lock_joined_end(struct list_node *joined, const struct call_end *end, const struct lock_client *asker);

/* ---- advise.c ---------------------------------------------------------------------------------------- */

/* Called once a second. Where locks are acquired, it has some of the next requests looked at for what they write. */
void advise_tick(struct worker *w);
/* Takes the outcome of a lock script. `advises` is the command's, as in struct lock_row. */
void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result, unsigned advises);
/* Takes a command of a kind that the rule lacks, with its whole reply. */
void advise_passed(struct session *s, const struct lock_plan *plan, unsigned advises, const char *reply, size_t len);
/* Takes a command that ran unchanged, with its effect. */
void advise_observed(struct session *s, const struct lock_event *seen);

/* ---- lease.c ------------------------------------------------------------------------------------------ */

/* Renew and release a lease for the engine's sink, in the worker's thread. `waits`: other sessions may be waiting for
 * the lock. */
void lock_renew(struct worker *w, const struct lock_lease *lease);
void lock_release(struct worker *w, const struct lock_lease *lease, bool waits);
/* Marks the queue nodes of a session that has left as dead. `waits`: they are kept for a while, in case that their
 * owner comes back. */
void lock_leave(struct worker *w, const struct lock_leaving *leaving, int64_t lease_ms, bool waits);

/* ---- successors.c: leases whose owners may come back at another proxy ---------------------------------------- */

/* A list in Redis has the leases that their owners have left. All proxies before that Redis share the list. */

/* Appends the entry that the list has for a lease. */
void successors_entry(const struct lock_left *left, struct text *out);
/* Puts an entry on the list. The entry is useless after until_ms. */
void successors_write(struct worker *w, uint32_t login, int64_t until_ms, const char *entry, size_t len);
/* Called once a second by the first worker. Takes over those leases on the list whose owners have lately come to this
 * proxy. */
void successors_tick(struct worker *w);

/* ---- learnt.c: what earlier runs and other proxies have learnt of workloads ---------------------------- */

/* Begins to read the record. Called in the first worker, before clients are accepted. */
void learnt_begin(struct worker *w);
/* Called once a second. The first worker reads what was added to the record since. */
void learnt_tick(struct worker *w);
/* Called while a release is held back: what another proxy has just learnt may decide about it. Does nothing if no other
 * proxy is known. */
void learnt_glance(struct worker *w);

/* Notes one of the session's first requests, which has just been dispatched. */
void one_shot_sends(struct session *s);
/* Decides, as the session closes, whether its client was a one-shot client: s->lock.one_shot. */
void one_shot_closes(struct session *s);

#endif
