/*
 * What the files of proxy/session/locks/ share: a script's call under way, its words, and its envelope.
 */
#ifndef LOCKKEEPER_SESSION_LOCKS_PRIVATE_H
#define LOCKKEEPER_SESSION_LOCKS_PRIVATE_H

#include "proxy/session/locks/locks.h"

enum {
    LOCK_SHORT_VALUE = 96,
    LOCK_SHORT_KEY = 96,
    LOCK_COMMAND_MAX = 24,
    LOCK_HEADER_ARGS = 10,    /* ARGV that every lock script takes */
    LOCK_CLOBBERED_MAX = 256, /* keys of one clobbering command */
    LOCK_PROBES = 64,         /* of a worker */
    LEARNT_ID_MAX = 44        /* the id of a stream's entry, two numbers, with its NUL */
};

/* The last expiry of a lock and its guard record's, as words of a call. */
struct lock_expiry {
    int64_t ms; /* 0: none yet */
    size_t len;
    char words[64];
};

/* A number as a word of a call. */
struct lock_number {
    int64_t n;
    size_t len; /* 0: none yet */
    char word[32];
};

struct release_channels;

/* How far the record of what is learnt has been read: learnt.c's. */
struct learnt_look {
    char last[LEARNT_ID_MAX]; /* the id of the last entry that was read; "": none */
    bool asking;
    bool read;         /* the record has been read, or there was none */
    bool refused;      /* Redis refused the last look */
    uint64_t begun;    /* engine_begun at the last look */
    int64_t active_ms; /* when the engine was last found to be in use */
    int64_t looked_ms; /* when the last look began; 0: there was none */
};

/* For how many ms somebody has waited; -1: there is nobody, or nobody knows. */
struct lock_waited {
    int64_t
        here_ms; /* who asks; behind a release who waits longest at this proxy, and leaves the lock to another one */
    int64_t next_ms; /* who is behind that */
};

#define LOCK_WAITED_NONE ((struct lock_waited){.here_ms = -1, .next_ms = -1})

/* A worker's part in locks: worker->locks. */
struct worker_locks {
    struct list_node waits;     /* struct wait, wait.c's */
    struct list_node held_back; /* hold.c's: sessions whose release is held back, by their runnable_link */
    struct ev_timer look;       /* and when they are made runnable */
    struct ev_async wake;       /* other threads have mail for waiters of this one */
    struct release_channels *release_channels; /* release_channel.c's; NULL: nobody has waited yet */
    struct lock_waited waited; /* what the script that is built tells of those who wait, else LOCK_WAITED_NONE */
    bool serving;              /* they are to be served at the end of the turn */
    struct list_node *free;    /* struct lock_call, a stack */
    size_t free_count;
    int64_t refused_ms;               /* when the log last said that a lease could not be renewed */
    bool heirs_asking;                /* heirs.c looks at the list */
    struct learnt_look learnt;        /* the first worker's */
    bool glancing;                    /* learnt.c's: a look at the newest entries is under way, */
    int64_t glanced_ms;               /* which began then */
    struct lock_expiry expiry;        /* words.c's */
    struct lock_number lease;         /* likewise, the last one of calls that tell those who wait */
    struct call *probes[LOCK_PROBES]; /* join.c's: attempts that others may join, by the key's hash */
    uint32_t counters_seen;           /* advise.c's */
    uint32_t writes_seen;             /* likewise: that were looked at in this second */
};

/* A lock call is a script under way, with what engine_finish will need. */
struct lock_call {
    struct list_node link;   /* the others of a clobbering command, or the free list */
    struct list_node queued; /* those prepared for the same transaction */
    struct lock_plan plan;
    struct lock_rules *rules; /* reference that keeps plan.rule alive */
    uint32_t db;              /* in which the command runs; COPY's lock may be in another */
    uint64_t session_id;
    call_done_fn next; /* what the call's owner wanted; NULL: straight to the client */
    enum lock_ask ask;
    bool asks, clobbers;
    bool again;            /* it may be sent once more (engine_again) */
    bool handed;           /* a release behind which a waiter's attempt was sent */
    bool acquires;         /* a clobbering command that acquires all of its lock keys, or none: MSETNX */
    enum lock_shape shape; /* of the client's reply */
    uint8_t advises;       /* as in struct lock_row */
    uint8_t protocol;      /* the client's */
    double begun;          /* by the loop's clock; 0: not timed */
    int64_t waited_ms;     /* since the script's answer, for replicas */
    size_t value_len;
    char *value, *key; /* short ones inside, long ones allocated */
    char short_value[LOCK_SHORT_VALUE], short_key[LOCK_SHORT_KEY];
    int64_t expiry_ms;       /* of an attempt to acquire, as in struct lock_command */
    struct list_node joined; /* attempts of others that have the same answer: join.c */
    struct call *call;       /* of one that has joined */
    const char *command;     /* in capitals; static, or command_text */
    char command_text[LOCK_COMMAND_MAX];
    char who[SESSION_ADDRESS_MAX + 72];
};

/* Starts a call: its memory, and the engine's plan. */
struct lock_call *lock_begin(struct session *s, enum lock_verb verb, const struct lock_rule *rule, const char *key,
                             size_t key_len);
/* Starts a call for a lock in another database than the session's. */
struct lock_call *lock_begin_in(struct session *s, enum lock_verb verb, const struct lock_rule *rule, uint32_t db,
                                const char *key, size_t key_len);
/* Frees a call of which the engine knows nothing any more. */
void lock_drop(struct worker *w, struct lock_call *l);
/* Has the session's input read again in a few ms, from the release on that is held back (hold.c). */
void lock_hold_back(struct session *s);
void lock_holds_open(struct worker *w);
void lock_holds_close(struct worker *w);
/* Finds out how long a round trip to the client takes, once: an attempt of the session's was lost. */
void lock_note_trip(struct session *s);
/* Starts a call for a command that came some time ago: what the session has sent since says nothing of it. */
struct lock_call *lock_begin_anew(struct session *s, enum lock_verb verb, const struct lock_rule *rule, uint32_t db,
                                  const char *key, size_t key_len);
/* Copies the name of what the client has sent, for incidents, in capitals. */
void lock_call_command(struct lock_call *l, const char *command, size_t len);
/* Copies the value that the command would leave. */
void lock_call_value(struct lock_call *l, const char *value, size_t len);
/* Puts a lock call among those of its transaction, where no other client comes between: it speaks for the lease that
 * one before it acquires (engine_looks_back). */
void lock_enqueue(struct session *s, struct lock_queue *queue, struct lock_call *l);
/* Sends what is in w->build as a script, which is safe to repeat. */
void lock_submit(struct call *call, struct lock_call *l, enum script_id id);
/* Likewise, for who takes the script's answer itself, and ends the call with it by lock_answered. */
void lock_submit_for(struct call *call, struct lock_call *l, enum script_id id, call_done_fn done);
void lock_answered(struct call *c, const struct call_end *end);
/* Tells the engine what became of a call, which is freed. s NULL: the session is gone. */
void lock_learnt(struct worker *w, struct session *s, struct lock_call *l, const struct lock_result *result);
/* Asks the replicas first where the rule has some and the script has acquired, and ends the call later (confirm.c);
 * false: there is nothing to ask. */
bool lock_confirm(struct call *c, struct lock_call *l, const struct call_end *end);
/* Notes how long it took until a call was answered, for metrics. */
void lock_note_time(struct worker *w, const struct lock_call *l);
/* Hands a reply or an error on: to `next`, or without one to the client. */
void lock_deliver(struct call *c, call_done_fn next, const struct call_end *end);

/* ---- join.c: attempts of many sessions, one question ---------------------------------------- */

/* Whether the attempt has joined one on the same key of which nothing has been sent; it is answered with that one. */
bool lock_join(struct call *call, struct lock_call *l);
/* Note that an attempt was submitted, so that others may join; and that it has ended, so that none may. */
void lock_probe(struct call *call, struct lock_call *l);
void lock_probe_over(struct call *call, struct lock_call *l);
/* Answers those that have joined an attempt which has ended so; `asker` is the client that had asked, NULL: it is
 * gone. */
void lock_joined_end(struct list_node *joined, const struct call_end *end, const struct lock_client *asker);

/* ---- words.c: a script's call, into w->build --------------------------------------------- */

/* For scripts that take arguments.lua: script and number of keys (`args` counts all of ARGV); each key with its guard;
 * ARGV 1 to 10, where `claim` stands in for the plan's own if it is given; then whatever follows. In a transaction the
 * first call of a script is by its source: a NOSCRIPT would come too late. */
void lock_build_script(struct worker *w, enum script_id id, struct lock_queue *queue, size_t keys, size_t args);
void lock_build_guard(struct worker *w, const char *key, size_t len);
void lock_build_header(struct worker *w, const struct lock_client *client, const struct lock_plan *plan,
                       const char *claim, uint32_t at, enum lock_shape shape);
/* Adds ARGV 8, what the session has seen. */
void lock_build_seen(struct worker *w, const struct lock_plan *plan);
/* Build acquire.lua's whole call, and release.lua's. `slot` is the key's; `words` are the command's, with its value at
 * lc->value_at; `command` is DEL, UNLINK or GETDEL, in capitals; client NULL: the proxy itself. */
void lock_build_acquire(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                        const struct lock_plan *plan, uint16_t slot, const struct lock_command *lc,
                        const struct lock_words *words);
/* Builds an attempt's call once more, by right "instead" (engine_again): the lease of the plan's claim is released
 * first. */
void lock_build_instead(struct worker *w, const struct lock_client *client, const struct lock_call *l);
void lock_build_release(struct worker *w, struct lock_queue *queue, const struct lock_client *client,
                        const struct lock_plan *plan, uint16_t slot, const char *command);

/* {reply, outcome, fence, pttl, owner, leased}, and for list locks lost, its owner, the node granted, or the short text
 * (common.lua); all pointers go into the bytes that were read. */
struct lock_envelope {
    const char *reply; /* the client's part; static where the text was short: it follows from the outcome */
    size_t reply_len;
    struct lock_result result;
};

/* Reads a text of common.lua that is an envelope in short, and the reply that it means. False: it is another answer.
 * What the text leaves out is the call's (l NULL: not known); who holds the lock it does not say. */
bool lock_read_short(const struct lock_call *l, const char *data, size_t len, struct lock_result *r);
const char *lock_short_reply(const struct lock_call *l, enum lock_outcome outcome, size_t *len);
/* Whether both are about one key of one database. */
bool lock_same_key(const struct lock_call *a, const struct lock_call *b);
/* Reads an envelope. False: these bytes are none. l NULL: nobody wants the client's part. */
bool lock_envelope_read(const struct lock_call *l, const char *data, size_t len, struct lock_envelope *e);
/* The outcome of a script that answered no envelope: not sent, unknown, or refused by Redis as a whole. */
void lock_failed_outcome(const struct call_end *end, struct lock_result *result);

/* error.c: the error that a script's call ended with, in the words of a command. A text that is made for it is in
 * `out`. */
void lock_error_words(struct lock_envelope *e, char out[LOCK_ANSWER_MAX]);

/* ---- park.c: what is left of an attempt while it waits --------------------------------------- */

/* What it takes to make an attempt to acquire once more. Whoever waits keeps this, and neither its request nor its lock
 * call. */
struct parked {
    struct session *session;      /* its own, while it is parked */
    const struct lock_rule *rule; /* with a reference to its rules */
    struct parked_words *words;   /* of a command that can't be made from its value and expiry; NULL: it can */
    int64_t expiry_ms;
    uint32_t value_len;
    bool setnx; /* else SET */
    uint8_t shape, advises;
};
struct parked_words {
    char *reply; /* the client's part of the last refusal, since these differ; NULL: there was none */
    size_t reply_len;
    struct lock_words all;
    struct resp_arg args[]; /* theirs, and the bytes behind */
};
/* The bytes that it takes beside, in the caller's memory; they begin with who it is, as the lock call has it. */
size_t lock_parked_size(const struct lock_call *l);
/* Fills it from an attempt that is under way, and these bytes, the room; words (NULL: none) are copied. */
void lock_parked_fill(struct parked *p, const struct lock_call *l, const struct lock_words *words, char *room);
void lock_parked_clear(struct parked *p);
/* Parks an attempt that is not under way, and has no owner: its request and its lock call are let go. */
void lock_park(struct call *c, struct parked *p);
/* Makes it again, as if it had just come: returns its call, with the lock call. */
struct call *lock_unpark(struct parked *p, const struct lock_key *key, const char *room);

/* ---- wait.c: attempts that are held until the lock is there --------------------------------- */

/* Hold an attempt of a rule with `wait`, whose answer `e` is: false, it is not one to be held, and is answered as ever.
 * And one that has not asked, if somebody waits who came before it. */
bool lock_wait(struct call *c, struct lock_call *l, const struct lock_envelope *e);
bool lock_wait_behind(struct call *c, struct lock_call *l);
/* Keeps the words of a SET NX that can't be made again from its value and expiry, should it have to wait. */
void lock_wait_keep(struct request *r, const struct lock_call *l, const struct lock_words *words);
/* Note that a release was sent, and that a call under a rule with `wait` has ended, after the engine. */
void lock_wait_sent(struct session *s, struct lock_call *l);
void lock_wait_learnt(struct worker *w, const struct lock_call *l, const struct lock_result *r);
/* Equal for lanes whose requests a node gets in the order in which one thread sends them. */
uint64_t lock_wait_way(const struct upstream_lane *lane);
/* release_channel.c: hear of releases at other proxies, from when somebody waits here until the worker stops. `slot`:
 * of the lock that is waited for. Returns whether it has begun with this call: what is said until the node knows is not
 * heard. */
bool lock_ear_open(struct worker *w, uint16_t slot);
void lock_ear_close(struct worker *w);
/* The room's functions, as struct session_room has them. */
void lock_waits_open(struct worker *w);
void lock_waits_close(struct worker *w);
void lock_waits_rules(struct worker *w);
void lock_waits_stop(struct worker *w);
void lock_wait_speaks(struct session *s);
/* Notes that a session that `waits` is gone. */
void lock_wait_leaves(struct session *s);
/* Releases what an attempt has just acquired, by its token. */
void lock_undo(struct worker *w, const struct lock_call *l);

/* ---- advise.c ---------------------------------------------------------------------------------------- */

/* What the text of a script is known to be. */
struct advise_text advise_script_of(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);
/* To be called once a second: some of the next requests are looked at for what they write, where locks are acquired. */
void advise_tick(struct worker *w);
/* Notes a lock script's outcome; `advises` is the command's, as in struct lock_row. */
void advise_script(struct session *s, const struct lock_plan *plan, const struct lock_result *result, unsigned advises);
/* Notes a command of a kind that the rule lacks, which was answered with this, whole. */
void advise_passed(struct session *s, const struct lock_plan *plan, unsigned advises, const char *reply, size_t len);
/* Notes a command that ran as it was; `rule` may be NULL, and the sight's is where the command is of a kind that it
 * lacks. `scripted`: a script of the application's did what it says; `watched`: in a transaction behind WATCH. */
void advise_sight(struct session *s, const struct lock_sight *sight, const struct lock_rule *rule, unsigned advises,
                  bool scripted, bool watched);

/* ---- lease.c ------------------------------------------------------------------------------------------ */

/* Do the proxy's own work on leases, asked for by the engine's sink, in the worker's thread. `waits`: others may wait
 * for the lock. */
void lock_renew(struct worker *w, const struct lock_lease *lease);
void lock_release(struct worker *w, const struct lock_lease *lease, bool waits);
/* Declares a party's nodes dead; `waits`: they are kept for a while, in case that somebody comes back for them. */
void lock_leave(struct worker *w, const struct lock_leaving *leaving, int64_t lease_ms, bool waits);

/* ---- heirs.c: leases whose owners may come back at another proxy ------------------------------------------ */

/* Leases that owners have left are on a list in Redis, for all proxies before it. */

/* Appends the list's entry for a lease. */
void heirs_entry(const struct lock_left *left, struct text *out);
/* Puts an entry on the list. It is of no use beyond until_ms. */
void heirs_write(struct worker *w, uint32_t login, int64_t until_ms, const char *entry, size_t len);
/* To be called once a second, by the first worker: takes over what is on the list and somebody has come for lately. */
void heirs_tick(struct worker *w);

/* ---- learnt.c: what earlier runs and other proxies have learnt of workloads ------------------------------ */

/* Begins to read the record, in the first worker, before clients come. */
void learnt_begin(struct worker *w);
/* To be called once a second: the first worker reads what has been added to the record since. */
void learnt_tick(struct worker *w);
/* To be called while a release is held back: what another proxy learns just now may decide about it. Does nothing
 * where no other proxy is known. */
void learnt_glance(struct worker *w);

/* ---- fence.c, remote_lock.c, fence_transaction.c, fence_retry.c, nonblocking_form.c
 * ---------------------------------------------------------------------
 */

/* A fenced key of a question. */
struct asked {
    const struct lock_rule *rule;        /* its fence */
    size_t key, key_len, lock, lock_len; /* in the question's names */
    struct lock_writing writing;
    uint64_t mark;         /* of a lock elsewhere: what the watermark is raised to */
    size_t mine, mine_len; /* in the names: the fence and the attempts of the transaction; no length: there are none */
    uint32_t db;
};

struct fence_looks;

/* What is asked together with a write. It owns the request of one that goes by itself, inside of fence.lua. */
struct fence_question {
    struct request_owner owner; /* first */
    struct lock_rules *rules;   /* reference that keeps the fences alive */
    enum command_id id;
    bool array; /* it answers arrays, so that its nil is one */
    uint8_t protocol;
    int slot; /* the data's */
    struct text names;
    char command[LOCK_COMMAND_MAX], who[SESSION_ADDRESS_MAX + 72];
    struct fence_looks *looks; /* at locks elsewhere, before the write; NULL: none are under way */
    struct text head, tail;    /* of the call meanwhile: what comes before the fences and behind them */
    size_t count, here;        /* the first ones have their lock in the data's slot, the others elsewhere */
    struct asked keys[];
};

/* A command as it stands inside of fence.lua: a name (NULL: its own), and its arguments from `first` to before `end`.
 */
struct nonblocking_form {
    const char *name;
    size_t first, end;
    bool each; /* it is for the first of its keys that has something, and says for which */
};
enum { SPOKEN_WORDS_MAX = 7000 /* more are too many for a script */ };
struct nonblocking_form nonblocking_form_as_it_came(const struct request_class *k);
/* nonblocking_form.c: finds what a command that blocks comes to where it does not. False: it is none that can be said
 * so. */
bool nonblocking_form_unblocked(const struct request_class *k, struct nonblocking_form *as);

/* Make the question of a write that goes by itself (which may be about no key, where nothing is to be asked any more),
 * and leave in w->build the WATCH of its guard records and watermarks; and then fence.lua's call, by its source and
 * about no more than PING. */
struct fence_question *fence_watch(struct session *s, const struct request_class *k);
void fence_ask(struct session *s, const struct fence_question *q);
/* Whether the session writes with other leases by now than those that the question is about. */
bool fence_outdated(struct session *s, const struct fence_question *q);
/* Leaves in w->build fence.lua's call about one key's guard record: it answers the fence of the lock's last lease. */
void fence_look_build(struct session *s, const struct fence_question *q, size_t at);
/* Whether a reply of fence.lua's is its refusal, which fence_reply takes. */
bool fence_refuses(const char *reply, size_t len);
/* Writes the client's reply to *out, as fence_reply does, for a call of fence.lua whose first key is the question's key
 * `at`. */
void fence_reply_from(struct session *s, const struct fence_question *q, size_t at, const char *reply, size_t len,
                      struct text *out);
/* Whether the request is one that waits until there is something for it: BLPOP and its kin. */
bool fence_awaits(const struct request_class *k);
/* Sends a write that can't go inside of a script. The session has nothing in flight. */
void fence_transaction_dispatch(struct session *s, const struct request_class *k);
/* As struct session_room has it, for those that wait. */
void fence_transaction_half_closed(struct session *s);

/* Notes one of the session's first requests, which has just been dispatched. */
void one_shot_sends(struct session *s);
/* Decides, as the session closes, whether its client was a one-shot client: s->lock.one_shot. */
void one_shot_closes(struct session *s);

/* The patience of a blocking command on fenced data: when the next attempt is due, and whether there is one. Both
 * functions are called with `arg`: `again` when it is, `over` when there is none any more while none is under way. The
 * session counts as blocked until fence_retry_free (NULL: nothing), but for the moment in which an attempt may take. */
struct fence_retry;
typedef void (*await_fn)(void *arg);
struct fence_retry *fence_retry_new(struct request *r, const struct request_class *k, await_fn again, await_fn over,
                                    void *arg);
void fence_retry_free(struct fence_retry *a);
/* An attempt has brought nothing. True: another one is due in a while, of so many ms at least. False:
 * fence_retry_answer says what the client gets. */
bool fence_retry_more(struct fence_retry *a, int64_t least_ms);
/* An attempt is about to take what there is. False: somebody has ended the wait meanwhile, and it is not to. */
bool fence_retry_takes(struct fence_retry *a);
/* Whether no attempt is under way. */
bool fence_retry_idle(const struct fence_retry *a);
/* Appends the reply that a wait in vain has; none where the client has said all that it will: its session is to
 * finish. */
void fence_retry_answer(const struct fence_retry *a, struct text *out);
/* End it before its time, for CLIENT UNBLOCK (false: it is ending already), and since the client will say no more. */
bool fence_retry_unblock(struct fence_retry *a, bool error);
void fence_retry_leaves(struct fence_retry *a);

#endif
