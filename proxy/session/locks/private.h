/* A worker's part in locks. docs/architecture.md has the room's layers. */
#pragma once

#include "proxy/base/memory.h"
#include "proxy/session/locks/locks.h"

enum {
    LOCK_PROBES = 64,  /* of one worker */
    LEARNT_ID_MAX = 44 /* the id of a stream's entry, two numbers, with its NUL */
};

/* The last expiry of a lock and of its guard record, encoded as two arguments of a call. */
struct lock_expiry {
    int64_t ms; /* 0: none yet */
    size_t len;
    char words[64];
};

/* How far own_records.c has read the record of what is learnt. */
struct learnt_look {
    char last[LEARNT_ID_MAX]; /* the id of the last entry that was read; "": none */
    bool asking;
    bool read;         /* the record has been read, or there was none */
    bool refused;      /* Redis refused the last read */
    uint64_t begun;    /* engine_begun at the last read */
    int64_t active_ms; /* when the engine was last in use */
    int64_t looked_ms; /* when the last read began; 0: there was none */
};

/* A worker's part in locks: worker->locks. */
struct worker_locks {
    struct list_node held_back; /* the sessions whose release is held back, by their runnable_link */
    struct ev_timer look;       /* when the sessions in held_back become runnable */
    struct list_node *free;     /* a stack of unused struct lock_call */
    size_t free_count;
    struct list_node frees;           /* short_form.c: releases that are sent at the end of this turn */
    struct list_node works;           /* lease_work.c: what the engine has asked for in this turn */
    struct list_node alarms;          /* lease_work.c: alarms about which Redis is asked at the end of this turn */
    struct list_node unasked;         /* lease_work.c: alarms about which Redis is to be asked again */
    int64_t refused_ms;               /* when the log last said that a lease could not be renewed */
    bool successors_asking;           /* own_records.c is reading its list */
    struct learnt_look learnt;        /* used by the first worker alone */
    bool glancing;                    /* own_records.c: a read of the newest entries is under way */
    int64_t glanced_ms;               /* own_records.c: when that read began */
    int64_t short_from_ms;            /* short_form.c: attempts in the short form are sent again from this time on */
    struct lock_expiry expiry;        /* lock_args.c: the last expiry that was encoded */
    struct call *probes[LOCK_PROBES]; /* sending.c: the attempts that other attempts may join, by the hash of the key */
    uint32_t counters_seen;           /* lock_events.c: how many counting commands it has seen */
    uint32_t writes_seen;             /* lock_events.c: how many writes it has looked at in this second */
};

/* Adds `node` to a list of this worker's. `run` takes all of the list at the end of the turn. */
static inline void lock_turn_add(struct worker *w, struct list_node *list, struct list_node *node,
                                 void (*run)(struct worker *w, struct worker_job *job)) {
    if (list_empty(list)) {
        struct worker_job *job = memory_zalloc(sizeof(*job));
        job->run = run;
        worker_add_job(w, job);
    }
    list_append(list, node);
}

/* ---- lock_events.c ---------------------------------------------------------------------------------------- */

/* Called once a second. Where locks are acquired, it has some of the next requests looked at for what they write. */
void advise_tick(struct worker *w);
/* Take, with `advises` as in struct lock_row: the outcome of a lock script; the reply of a command of a kind that the
 * rule lacks. */
void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result, unsigned advises);
void advise_passed(struct session *s, const struct lock_plan *plan, unsigned advises, const char *reply, size_t len);
/* Takes a command that ran unchanged, with its effect. */
void advise_observed(struct session *s, const struct lock_event *seen);

/* ---- lease_work.c, own_records.c: the proxy's own calls ------------------------------------------------------- */

/* Makes a request of the proxy's own, to be sent as a call of the script, which may be repeated. A stop waits until
 * lock_own_done ends it. */
struct request *lock_own_request(struct worker *w, struct request_owner *owner, const struct request_owner_ops *ops,
                                 enum script_id id, call_done_fn done);
void lock_own_done(struct call *c, const struct call_end *end);
/* Frees what was asked for and not sent, and alarms about which Redis is still to be asked. */
void lock_works_close(struct worker *w);

/* Once a second: asks Redis again about alarms of which it did not say whether they are true. */
void alarms_tick(struct worker *w);

/* Once a second, in the first worker: takes over leases on the list whose owners have lately come to this proxy. */
void successors_tick(struct worker *w);
/* In the first worker: begins to read the record, before clients are accepted; reads on once a second. */
void learnt_begin(struct worker *w);
void learnt_tick(struct worker *w);
/* While a release is held back: what another proxy has just learnt may decide about it. */
void learnt_glance(struct worker *w);
