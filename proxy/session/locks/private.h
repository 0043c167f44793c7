/*
 * What the files of proxy/session/locks/ share: the call of a lock script while it is under way, the arguments of the
 * call, and the envelope that the script answers.
 */
#ifndef LOCKKEEPER_SESSION_LOCKS_PRIVATE_H
#define LOCKKEEPER_SESSION_LOCKS_PRIVATE_H

#include "proxy/session/locks/locks.h"
#include "proxy/session/locks/script_call.h"

enum {
    LOCK_SHORT_VALUE = 96,
    LOCK_SHORT_KEY = 96,
    LOCK_HEADER_ARGS = 10, /* the elements of ARGV that every lock script takes, except acquire.lua and release.lua */
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

struct release_channels;

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

/* For how many milliseconds sessions have waited for a lock. -1: no session waits, or the time is not known. */
struct lock_waited {
    int64_t here_ms; /* Of an attempt to acquire: for how long its session has waited. Of a release that leaves the lock
                        to another proxy: for how long the session that has waited longest at this proxy has waited. */
    int64_t next_ms; /* for how long the next session in this proxy's queue has waited */
};

#define LOCK_WAITED_NONE ((struct lock_waited){.here_ms = -1, .next_ms = -1})

/* A worker's part in locks: worker->locks. */
struct worker_locks {
    struct list_node waits;     /* wait.c: the waiting sessions of this worker, each a struct wait */
    struct list_node held_back; /* hold.c: the sessions whose release is held back, by their runnable_link */
    struct ev_timer look;       /* hold.c: when the sessions in held_back become runnable */
    struct ev_async wake;       /* wakes this worker when another thread has mail for a session that waits here */
    struct release_channels *release_channels; /* release_channel.c; NULL: no session of this worker has waited yet */
    struct lock_waited
        waited;   /* the waiting times that the script being built reports; LOCK_WAITED_NONE if it reports none */
    bool serving; /* the sessions in `waits` are to be served at the end of this turn of the event loop */
    struct list_node *free; /* a stack of unused struct lock_call */
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

/* A lock call: one script call under way, with what engine_finish needs when the script answers. */
struct lock_call {
    struct list_node link;   /* in the list of a clobbering command's calls, or in the stack of unused calls */
    struct list_node queued; /* in the lock_queue of the transaction that the call belongs to */
    struct lock_plan plan;
    struct lock_rules *rules; /* a reference, which keeps plan.rule alive */
    uint32_t db; /* the database in which the command runs; the lock of COPY ... DB may be in another one */
    uint64_t session_id;
    call_done_fn next; /* gets the reply, as call->done was before; NULL: the reply goes straight to the client */
    enum lock_ask ask;
    bool asks, clobbers;
    bool again;            /* the script may be sent once more (engine_again) */
    bool handed;           /* a release, and an attempt of a waiting session was sent right behind it */
    bool acquires;         /* of MSETNX: the clobbering command acquires all of its lock keys, or none */
    enum lock_shape shape; /* of the client's reply */
    uint8_t advises;       /* as in struct lock_row */
    uint8_t protocol;      /* the client's */
    double begun;          /* by the loop's clock, when the call began; 0: the call is not timed */
    int64_t waited_ms;     /* for how long the call has waited for replicas since the script answered */
    size_t value_len;
    char *value, *key; /* in short_value and short_key where they fit, else allocated */
    char short_value[LOCK_SHORT_VALUE], short_key[LOCK_SHORT_KEY];
    int64_t expiry_ms;       /* of an attempt to acquire, as in struct lock_command */
    struct list_node joined; /* join.c: the attempts of other sessions that get the same answer */
    struct call *call;       /* join.c: set in an attempt that has joined another one */
    const char *command;     /* the command's name in capitals; static, or command_text */
    char command_text[LOCK_COMMAND_MAX];
    char who[SESSION_ADDRESS_MAX + 72];
};

/* Starts a call for a lock in the session's database: allocates it, and has the engine plan it. */
struct lock_call *lock_begin(struct session *s, enum lock_verb verb, const struct lock_rule *rule, const char *key,
                             size_t key_len);
/* Does the same for a lock in database `db`. */
struct lock_call *lock_begin_in(struct session *s, enum lock_verb verb, const struct lock_rule *rule, uint32_t db,
                                const char *key, size_t key_len);
/* Frees a call that the engine no longer refers to. */
void lock_drop(struct worker *w, struct lock_call *l);
/* Stops the session's input at a release that is held back, and has it read again in a few milliseconds (hold.c). */
void lock_hold_back(struct session *s);
void lock_holds_open(struct worker *w);
void lock_holds_close(struct worker *w);
/* Measures the round trip to the client once. Called when an attempt of the session was lost. */
void lock_note_trip(struct session *s);
/* Starts a call for a command that came some time ago. Unlike lock_begin, it does not take the session's later input as
 * a sign of overlapping requests. */
struct lock_call *lock_begin_anew(struct session *s, enum lock_verb verb, const struct lock_rule *rule, uint32_t db,
                                  const char *key, size_t key_len);
/* Copies the name of the client's command in capitals, for incidents. */
void lock_call_command(struct lock_call *l, const char *command, size_t len);
/* Copies the value that the command would leave at the key. */
void lock_call_value(struct lock_call *l, const char *value, size_t len);
/* Appends a call to the queue of its transaction. No other client's command runs between them, so the call uses the
 * lease that an earlier call of the transaction acquires (engine_looks_back). */
void lock_enqueue(struct session *s, struct lock_queue *queue, struct lock_call *l);
/* Sends what is in w->build as a script call. The call may be repeated, unless the script is SCRIPT_PASS. */
void lock_submit(struct call *call, struct lock_call *l, enum script_id id);
/* Does the same for a caller that takes the script's answer itself in `done`, and then ends the call with
 * lock_answered. */
void lock_submit_for(struct call *call, struct lock_call *l, enum script_id id, call_done_fn done);
void lock_answered(struct call *c, const struct call_end *end);
/* Tells the engine how a call ended, and frees the call. s NULL: the session is closed. */
void lock_learnt(struct worker *w, struct session *s, struct lock_call *l, const struct lock_result *result);
/* If the rule asks for replicas and the script has acquired, waits for the replicas and ends the call later
 * (confirm.c). Returns false if there is nothing to wait for. */
bool lock_confirm(struct call *c, struct lock_call *l, const struct call_end *end);
/* Records how long the call took, for metrics. */
void lock_note_time(struct worker *w, const struct lock_call *l);
/* Passes a reply or an error to `next`, or to the client if `next` is NULL. */
void lock_deliver(struct call *c, call_done_fn next, const struct call_end *end);

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

/* ---- words.c: builds a script's call in w->build ----------------------------------------- */

/* lock_build_header adds ARGV 1 to 10 to a call of a script that takes arguments.lua. If `claim` is not NULL, it stands
 * in for the plan's claim. */
void lock_build_header(struct worker *w, const struct lock_client *client, const struct lock_plan *plan,
                       const char *claim, uint32_t at, enum lock_shape shape);
/* Adds ARGV 8, the value that the session has last seen at the key. */
void lock_build_seen(struct worker *w, const struct lock_plan *plan);
/* lock_build_acquire and lock_build_release build the whole call of acquire.lua and of release.lua. `slot` is the slot
 * of the key. `words` are the command's arguments, with the value at lc->value_at. `command` is DEL, UNLINK or GETDEL,
 * in capitals. client NULL: the proxy itself releases. */
void lock_build_acquire(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                        const struct lock_plan *plan, uint16_t slot, const struct lock_command *lc,
                        const struct lock_words *words);
/* Builds the call of an attempt once more, by right "release_then_acquire" (engine_again): the script first releases
 * the lease of the plan's claim. */
void lock_build_release_then_acquire(struct worker *w, const struct lock_client *client, const struct lock_call *l);
void lock_build_release(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                        const struct lock_plan *plan, uint16_t slot, const char *command);

/* lock_read_short reads an envelope in the form of a short text of common.lua; it returns false if the answer is no
 * such text. What the text leaves out comes from the call (l NULL: it stays unknown). The text does not name the
 * holder. lock_short_reply returns the reply that the outcome stands for. */
bool lock_read_short(const struct lock_call *l, const char *data, size_t len, struct lock_result *r);
const char *lock_short_reply(const struct lock_call *l, enum lock_outcome outcome, size_t *len);
/* Whether both calls concern the same key of the same database. */
bool lock_same_key(const struct lock_call *a, const struct lock_call *b);
/* Reads an envelope. Returns false if the bytes are no envelope. l NULL: the caller does not need the client's part. */
bool lock_envelope_read(const struct lock_call *l, const char *data, size_t len, struct lock_envelope *e);
/* Sets the outcome of a script that answered no envelope: not sent, unknown, or refused by Redis as a whole. */
void lock_failed_outcome(const struct call_end *end, struct lock_result *result);

/* ---- park.c: what is kept of an attempt while its session waits ------------------------------ */

/* What is needed to make an attempt to acquire once more. A waiting session keeps a struct parked, and no request and
 * no lock call. */
struct parked {
    struct session *session;      /* the attempt's session; valid only while the attempt is parked */
    const struct lock_rule *rule; /* with a reference to the rules that it belongs to */
    struct parked_words
        *words; /* the arguments of a command that cannot be rebuilt from its value and expiry; NULL: it can */
    int64_t expiry_ms;
    uint32_t value_len;
    bool setnx; /* the command is SETNX; otherwise SET */
    uint8_t shape, advises;
};
struct parked_words {
    char *reply; /* the client's part of the last refusal, which differs from command to command; NULL: none yet */
    size_t reply_len;
    struct lock_words all;
    struct resp_arg args[]; /* of `all`; the bytes follow behind */
};
/* How many bytes a parked attempt needs besides, in the caller's memory. They begin with the name of the client, as in
 * lock_call's `who`. */
size_t lock_parked_size(const struct lock_call *l);
/* Fills *p from an attempt that is under way. `room` are the lock_parked_size bytes. `words` (NULL: none) are copied.
 */
void lock_parked_fill(struct parked *p, const struct lock_call *l, const struct lock_words *words, char *room);
void lock_parked_clear(struct parked *p);
/* Parks an attempt that is not under way and has no owner: frees its request and its lock call. */
void lock_park(struct call *c, struct parked *p);
/* Makes the attempt again, as if its command had just come. Returns its new call, which has a lock call. */
struct call *lock_unpark(struct parked *p, const struct lock_key *key, const char *room);

/* ---- wait.c: attempts that are held until the lock is free ---------------------------------- */

/* lock_wait holds an attempt, under a rule with `wait`, that the script has answered with `e`. lock_wait_behind holds
 * an attempt that was not sent yet, if other sessions are waiting before it. Both return false if the attempt does not
 * wait. */
bool lock_wait(struct call *c, struct lock_call *l, const struct lock_envelope *e);
bool lock_wait_behind(struct call *c, struct lock_call *l);
/* Keeps the arguments of a SET NX that cannot be rebuilt from its value and expiry, in case that it has to wait. */
void lock_wait_keep(struct request *r, const struct lock_call *l, const struct lock_words *words);
/* lock_wait_sent: a release is about to be sent. lock_wait_learnt: a call under a rule with `wait` has ended, and the
 * engine knows its result. */
void lock_wait_sent(struct session *s, struct lock_call *l);
void lock_wait_learnt(struct worker *w, const struct lock_call *l, const struct lock_result *r);
/* Returns the same number for lanes whose requests reach the node in the order in which one thread sends them. */
uint64_t lock_wait_way(const struct upstream_lane *lane);
/* release_channel.c: lock_release_channel_open subscribes to the releases at other proxies, for the lock in `slot`. It
 * is first called when a session here begins to wait; lock_release_channel_close ends it when the worker stops. Returns
 * whether this call began to subscribe: a message that is sent before the node knows of the subscription is lost. */
bool lock_release_channel_open(struct worker *w, uint16_t slot);
void lock_release_channel_close(struct worker *w);
/* The functions that struct session_room calls. */
void lock_waits_open(struct worker *w);
void lock_waits_close(struct worker *w);
void lock_waits_rules(struct worker *w);
void lock_waits_stop(struct worker *w);
void lock_wait_speaks(struct session *s);
/* A session with `waits` has closed. */
void lock_wait_leaves(struct session *s);
/* Releases the lease that an attempt has just acquired, by its token. */
void lock_undo(struct worker *w, const struct lock_call *l);

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
