/*
 * Lock commands on one key: from the command to the engine's plan and the script. A session's commands on one key run
 * one after another. Also PROXY LOCK, TOKEN and RELEASE. sending.c sends the script's call.
 *
 * A release may be held back (C4): the engine needs more evidence before it decides whose lease the release ends
 * (proxy/lock/aftermath.c).
 *
 *      release ──> engine_begin: held back ──> the session's input waits ──> 5 ms later the same bytes are read again
 *
 * The proxy keeps nothing of the request but its bytes, which stay in the session's input.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/bytes.h"
#include "proxy/base/clock.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/sending.h"

/* ---- one command after another on a key ------------------------------------------------------- */

/* Returns the place of a key in the table of busy keys, computed from a few of its bytes. If two keys share a place,
 * their commands only wait for each other. */
static inline unsigned busy_place(const char *key, size_t len) {
    struct bytes_ends e = bytes_ends(key, len);
    return (unsigned)((((e.head << 1) ^ e.tail) * 0x9e3779b97f4a7c15u + len) >> 60) % BUSY_PLACES;
}

inline bool lock_script_busy(const struct session *s, const char *key, size_t len) {
    return s->busy_all > 0 || s->busy[busy_place(key, len)] > 0;
}

inline bool lock_must_wait(const struct session *s, const char *key, size_t len) {
    return locks_of(s)->audits > 0 || lock_script_busy(s, key, len);
}

bool lock_any_busy(const struct session *s) {
    if (s->busy_all > 0)
        return true;
    for (size_t i = 0; i < BUSY_PLACES; i++)
        if (s->busy[i] > 0)
            return true;
    return false;
}

void lock_busy_all(struct request *r) {
    invariant(r->session && r->busy == 0, "a request is busy twice, with %d", r->busy);
    r->busy = BUSY_ALL;
    r->session->busy_all++;
    invariant(r->session->busy_all > 0, "too many lock commands are in flight");
}

inline void lock_busy_key(struct request *r, const char *key, size_t len) {
    invariant_debug(r->session && r->busy == 0, "a request is busy twice, with %d", r->busy);
    unsigned place = busy_place(key, len);
    r->busy = (uint8_t)(place + 1);
    r->session->busy[place]++;
}

/* ---- what `quorum yes` refuses ------------------------------------------------------------------ */

#define FAR_AWAY INT64_C(1000000000000000)

/* The time that follows EX, PX, EXAT or PXAT among a command's arguments from `at` on, in ms from now; -1: none. */
static int64_t option_ms(const struct resp_request *r, const char *bytes, size_t at) {
    static const struct {
        const char *name;
        int64_t unit;
        bool absolute;
    } options[] = {{"ex", 1000, false}, {"px", 1, false}, {"exat", 1000, true}, {"pxat", 1, true}};
    for (; at + 1 < r->argc && !request_arg_is(r, bytes, at, "fields"); at++)
        for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
            size_t len;
            int64_t n;
            const char *word = request_arg(r, bytes, at + 1, &len);
            if (request_arg_is(r, bytes, at, options[i].name) && resp_integer(word, len, &n) && n < FAR_AWAY)
                return n * options[i].unit - (options[i].absolute ? clock_wall_ms() : 0);
        }
    return -1;
}

/* The expiry that a command sets, in ms from now; -1: none, or the command is malformed. */
static int64_t expiry_asked(const struct command *c, const struct resp_request *r, const char *bytes) {
    enum lock_row_expiry how = lock_row_of(c)->expiry;
    int64_t n = -1;
    size_t len;
    if (how == EXPIRY_SET)
        return option_ms(r, bytes, 3);
    if (how == EXPIRY_GETEX || c->id == COMMAND_HGETEX || c->id == COMMAND_HSETEX)
        return option_ms(r, bytes, 2);
    if (how < EXPIRY_SECONDS)
        return -1;
    const char *word = request_arg(r, bytes, 2, &len);
    if (!resp_integer(word, len, &n) || n < 0 || n >= FAR_AWAY)
        return n >= FAR_AWAY ? INT64_MAX : -1;
    bool seconds = how == EXPIRY_SECONDS || how == EXPIRY_AT_SECONDS;
    bool absolute = how == EXPIRY_AT_SECONDS || how == EXPIRY_AT_MILLISECONDS;
    return n * (seconds ? 1000 : 1) - (absolute ? clock_wall_ms() : 0);
}

bool lock_quorum_refuses(const struct session *s, const struct command *c, const struct resp_request *r,
                         const char *bytes, char *error, size_t size) {
    int64_t longest_ms = quorum_longest_ms(s->worker);
    if (r->argc < 3 || expiry_asked(c, r, bytes) <= longest_ms)
        return false;
    snprintf(error, size,
             "ERR a lock under quorum lasts %lld ms at most (witness-quarantine says so); nothing was changed",
             (long long)longest_ms);
    return true;
}

const char *lock_quorum_lacks(const struct request_class *k) {
    struct lock_command lc;
    bool quorum = false;
    for (size_t i = 0; i < k->key_count; i++) {
        const struct lock_rule *rule = class_enforced(k, i);
        quorum |= rule && rule->quorum == LOCK_QUORUM_YES;
    }
    if (!quorum)
        return NULL;
    switch (lock_meaning_of(k, &lc)) {
    case MEANS_LOCK:
        return NULL;
    case MEANS_CLOBBERS:
        return lock_acquires_all(k->command, k->request, k->bytes) && !lock_clobbers_one_rule(k)
                   ? "ERR a lock under quorum can't be acquired together with keys that are no locks of its rule; "
                     "nothing was changed"
                   : NULL;
    case MEANS_SCRIPT:
        return class_locks(k) > LOCK_SCRIPT_LOCKS_MAX
                   ? "ERR a script can't run on that many locks under quorum; nothing was changed"
                   : NULL;
    default:
        return NULL;
    }
}

/* ---- a command on one key ---------------------------------------------------------------------- */

/* Nearly all lock commands run through these functions, so they are inlined. With `build`, that saves 2 % of the bound
 * on acquire and release. */
#define HOT inline __attribute__((always_inline))

/* Tells the engine which value the command compares with (lock_session.named). Exception: a SET that writes the same
 * value anew is judged by K2 alone. */
static __attribute__((noinline)) void name_value(struct session *s, const struct lock_command *lc,
                                                 const struct lock_words *words) {
    size_t len;
    const char *value = lc->value_at ? lock_word(words, lc->value_at, &len) : NULL;
    s->lock.named = lc->named_at ? lock_word(words, lc->named_at, &s->lock.named_len) : NULL;
    if (s->lock.named && value && len == s->lock.named_len && memcmp(value, s->lock.named, len) == 0)
        s->lock.named = NULL;
}

static HOT struct lock_call *begin(struct session *s, struct lock_queue *queue, const struct lock_rule *rule,
                                   const struct lock_command *lc, const char *key, size_t key_len,
                                   const struct lock_words *words) {
    counter_add(&s->worker->counters.requests_locks, 1);
    size_t len;
    if (__builtin_expect(lc->compares, false))
        name_value(s, lc, words);
    struct lock_call *l = lock_begin(s, lc->verb, rule, key, key_len);
    if (lc->name) {
        l->command = lc->name;
    } else {
        const char *name = lock_word(words, 0, &len);
        lock_call_command(l, name, len);
    }
    if (queue)
        lock_enqueue(s, queue, l);
    if (lc->script == SCRIPT_COUNT || lock_command_of_field(lc) || lc->script == SCRIPT_LIST_POP)
        l->plan.data_free = false; /* a value at the key is a lock of this kind */
    l->shape = lc->shape;
    l->advises = lc->advises;
    l->expiry_ms = lc->expiry_ms;
    l->again = !queue && ((lc->script == SCRIPT_RELEASE && !lc->compares) ||
                          (lock_command_remakes(lc) && (lc->expiry_ms != LOCK_EXPIRY_OTHER || rule->wait_ms > 0)));
    if (lc->value_at) {
        const char *value = lock_word(words, lc->value_at, &len);
        lock_call_value(l, value, len);
    }
    return l;
}

static HOT enum script_id build(struct session *s, struct lock_queue *queue, struct lock_call *l,
                                const struct lock_command *lc, const struct lock_words *words) {
    struct worker *w = s->worker;
    if (lc->script == SCRIPT_ACQUIRE && lc->expiry_ms != LOCK_EXPIRY_OTHER && !queue)
        return lock_build_attempt(w, s->lock.client, l);
    if (lc->script != SCRIPT_RELEASE || lc->compares) {
        lock_build_other(s, queue, l, lc, words);
        return lc->script;
    }
    if (!queue && lock_build_usual_release(w, l))
        return SCRIPT_RELEASE_USUAL;
    lock_build_release(w, queue, s->lock.client, &l->plan, l->shape, l->command);
    return SCRIPT_RELEASE;
}

struct lock_call *lock_prepare(struct session *s, struct lock_queue *queue, const struct lock_rule *rule,
                               const struct lock_command *lc, const char *key, size_t key_len,
                               const struct lock_words *words) {
    struct lock_call *l = begin(s, queue, rule, lc, key, key_len, words);
    build(s, queue, l, lc, words);
    return l;
}

void lock_run(struct call *call, const struct lock_rule *rule, const struct lock_command *lc, const char *key,
              size_t key_len, const struct lock_words *words) {
    struct lock_call *l = begin(call->request->session, NULL, rule, lc, key, key_len, words);
    lock_submit(call, l, build(call->request->session, NULL, l, lc, words));
}

bool lock_words_of(struct lock_words *words, const struct resp_request *r, const char *bytes, enum script_id script) {
    enum { WORDS_MAX = 1000 };
    *words = (struct lock_words){bytes, r->argv, r->argc};
    return r->argc <= WORDS_MAX || script == SCRIPT_PASS;
}

/* Whether an attempt, under a rule with `wait`, is queued behind sessions that wait already. If not, the attempt is
 * sent; its arguments are kept in case that it has to be sent again. `alike`: they are the value and the expiry. */
static __attribute__((noinline)) bool waits_behind(struct request *request, struct lock_call *l, bool alike,
                                                   const struct lock_command *lc, const struct lock_words *words) {
    struct worker *w = request->worker;
    invariant_debug(l->plan.rule->wait_ms > 0, "an attempt waits without a rule that says so");
    if (!lock_command_remakes(lc) || (alike && waiting_count(w->shared->waiting) == 0))
        return false;
    if (lc->expiry_ms == LOCK_EXPIRY_OTHER)
        w->waits->keep(request, l, words);
    return w->waits->behind(&request->call, l);
}

/* Gives up a release that is held back. The session's input stops there, and is read again in a few milliseconds. */
static __attribute__((noinline)) void hold_back(struct session *s, struct lock_call *l) {
    struct worker *w = s->worker;
    engine_put_off(w->shared->engine, &l->plan);
    invariant(l->plan.held_back, "a release is given back that is not held back");
    lock_drop(w, l);
    counter_sub(&w->counters.requests_locks, 1);
    if (session_is_runnable(s) || s->state != SESSION_OPEN)
        return;
    list_append(&w->locks->held_back, &s->runnable_link);
    if (!ev_is_active(&w->locks->look))
        ev_timer_start(w->loop, &w->locks->look);
}

/* Begins a release, which the engine may hold back until it knows more. Returns NULL if it is held back. */
static HOT struct lock_call *begin_release(struct session *s, const struct lock_rule *rule,
                                           const struct lock_command *lc, const char *key, size_t key_len,
                                           const struct lock_words *words) {
    s->lock.patient = true;
    struct lock_call *l = begin(s, NULL, rule, lc, key, key_len, words);
    s->lock.patient = false;
    if (__builtin_expect(!l->plan.held_back, true))
        return l;
    hold_back(s, l);
    return NULL;
}

static __attribute__((noinline)) void send_waits(struct session *s, struct request *request, struct lock_call *l,
                                                 const struct lock_command *lc, const struct lock_words *words) {
    if (lc->script == SCRIPT_RELEASE)
        lock_handover_sent(s, l); /* it may leave the lock to another proxy, and the script has to say so */
    enum script_id id = build(s, NULL, l, lc, words);
    s->worker->waits->waited = LOCK_WAITED_NONE;
    lock_submit(&request->call, l, id);
}

static __attribute__((noinline)) bool quorum_stops(struct session *s, const struct command *c,
                                                   const struct resp_request *r, const char *bytes) {
    char error[LOCK_ANSWER_MAX];
    if (!lock_quorum_refuses(s, c, r, bytes, error, sizeof(error)))
        return false;
    session_refuse(s, c, "%s", error);
    return true;
}

enum dispatch_result lock_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                   const char *bytes, const struct lock_command *lc, uint32_t key_index,
                                   const struct lock_rule *rule) {
    struct lock_words words;
    if (!lock_words_of(&words, r, bytes, lc->script)) {
        session_refuse(s, c, "ERR syntax error");
        return DISPATCHED;
    }
    bool waits = rule->unusual && rule->wait_ms > 0;
    if (rule->unusual && rule->quorum == LOCK_QUORUM_YES && quorum_stops(s, c, r, bytes))
        return DISPATCHED;
    size_t len;
    const char *key = lock_word(&words, key_index, &len);
    bool spends = lock_verb_is(lc->verb, VERB_SPENDS);
    struct lock_call *l = spends ? begin_release(s, rule, lc, key, len, &words) : NULL;
    if (spends && !l)
        return DISPATCH_WAIT;
    struct request *request = request_new(s, c);
    lock_busy_key(request, key, len);
    if (!l)
        l = begin(s, NULL, rule, lc, key, len, &words);
    bool alike = lc->script == SCRIPT_ACQUIRE && lc->expiry_ms != LOCK_EXPIRY_OTHER;
    if ((waits && waits_behind(request, l, alike, lc, &words)) || (alike && lock_join(&request->call, l)))
        return DISPATCHED;
    if (waits)
        send_waits(s, request, l, lc, &words);
    else if (!(alike && lock_acquire_short(&request->call, l)) &&
             !(lc->script == SCRIPT_RELEASE && !lc->compares && lock_free(&request->call, l)) &&
             !(lc->script == SCRIPT_READ && lock_read(&request->call, l)))
        lock_submit(&request->call, l, build(s, NULL, l, lc, &words));
    return DISPATCHED;
}

/* ---- PROXY LOCK, TOKEN, RELEASE ---------------------------------------------------------------- */

enum dispatch_result lock_ask(struct session *s, const struct command *c, enum lock_ask what, const char *key,
                              size_t key_len) {
    if (lock_must_wait(s, key, key_len))
        return DISPATCH_WAIT;
    struct worker *w = s->worker;
    bool release = what == LOCK_ASK_RELEASE;
    enum script_id id = release ? SCRIPT_RELEASE : SCRIPT_INSPECT;
    struct request *request = request_new(s, c);
    lock_busy_key(request, key, key_len);
    struct lock_call *l =
        lock_begin(s, release ? LOCK_OPERATOR : LOCK_INSPECT, lock_rule_for(s, key, key_len), key, key_len);
    if (release)
        l->command = "PROXY RELEASE";
    l->asks = true;
    l->ask = what;
    l->shape = SHAPE_INT;
    if (release) {
        lock_build_release(w, NULL, s->lock.client, &l->plan, l->shape, "DEL");
    } else {
        lock_build_call(w, id, NULL, &l->plan.key, LOCK_HEADER_ARGS);
        lock_build_header(w, s->lock.client, &l->plan, NULL, 0, SHAPE_INT);
    }
    lock_submit(&request->call, l, id);
    return DISPATCHED;
}
