/*
 * Lock commands on one key, commands that remove or replace whole keys, and PROXY LOCK, TOKEN and RELEASE: from the
 * command to the engine's plan and the script's call. A session's commands on one key run one after another.
 *
 * A release may be held back (C4): the engine needs more evidence before it decides whose lease the release ends
 * (proxy/lock/aftermath.c).
 *
 *      release ──> engine_begin: held back ──> the session's input waits ──> 5 ms later the same bytes are read again
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/bytes.h"
#include "proxy/base/clock.h"
#include "proxy/base/memory.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/sending.h"

/* ---- one command after another on a key ------------------------------------------------------- */

/* A key's place in the table of busy keys. Commands on keys that share a place wait for each other. */
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

/* A time that a command names, in ms from now. -1: it is negative, and Redis refuses it. */
static int64_t from_now_ms(int64_t n, bool seconds, bool absolute) {
    if (n < 0 || n >= FAR_AWAY)
        return n < 0 ? -1 : INT64_MAX;
    return n * (seconds ? 1000 : 1) - (absolute ? clock_wall_ms() : 0);
}

/* The time that follows EX, PX, EXAT or PXAT among a command's arguments from `at` on, in ms from now; -1: none. */
static int64_t option_ms(const struct resp_request *r, const char *bytes, size_t at) {
    static const struct {
        const char *name;
        bool seconds, absolute;
    } options[] = {{"ex", true, false}, {"px", false, false}, {"exat", true, true}, {"pxat", false, true}};
    for (; at + 1 < r->argc && !request_arg_is(r, bytes, at, "fields"); at++)
        for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
            int64_t n;
            if (request_arg_is(r, bytes, at, options[i].name) && request_arg_integer(r, bytes, at + 1, &n))
                return from_now_ms(n, options[i].seconds, options[i].absolute);
        }
    return -1;
}

bool lock_quorum_refuses(const struct session *s, const struct command *c, const struct resp_request *r,
                         const char *bytes, char *error, size_t size) {
    enum lock_row_expiry how = lock_row_of(c)->expiry;
    int64_t longest_ms = quorum_longest_ms(s->worker), ms = -1, n;
    if (r->argc < 3)
        return false;
    if (how == EXPIRY_SET || how == EXPIRY_GETEX || c->id == COMMAND_HGETEX || c->id == COMMAND_HSETEX)
        ms = option_ms(r, bytes, how == EXPIRY_SET ? 3 : 2);
    else if (how >= EXPIRY_SECONDS && request_arg_integer(r, bytes, 2, &n))
        ms = from_now_ms(n, how == EXPIRY_SECONDS || how == EXPIRY_AT_SECONDS,
                         how == EXPIRY_AT_SECONDS || how == EXPIRY_AT_MILLISECONDS);
    if (ms <= longest_ms)
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
    enum lock_meaning meaning = quorum ? lock_meaning_of(k, &lc) : MEANS_NOTHING;
    if (meaning == MEANS_CLOBBERS && lock_acquires_all(k->command, k->request, k->bytes) && !lock_clobbers_one_rule(k))
        return "ERR a lock under quorum can't be acquired together with keys that are no locks of its rule; "
               "nothing was changed";
    if (meaning == MEANS_SCRIPT && class_locks(k) > LOCK_SCRIPT_LOCKS_MAX)
        return "ERR a script can't run on that many locks under quorum; nothing was changed";
    return NULL;
}

/* ---- a command on one key ---------------------------------------------------------------------- */

/* Nearly all lock commands run through these functions, so they are inlined. With `build`, that saves 2 % of the bound
 * on acquire and release. */
#define HOT inline __attribute__((always_inline))

/* Notes the value that the command compares with. Exception: K2 alone judges a SET that writes the same value anew. */
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

/* Whether an attempt under a rule with `wait` is queued behind waiting sessions. If not, its arguments are kept in case
 * that it has to be sent again. `alike`: they are the value and the expiry. */
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

/* Gives up a release that is held back. The session's input is read again from there in a few milliseconds. */
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
    if (!lock_words_of(&words, r, bytes, lc->script))
        return session_refuse(s, c, "ERR syntax error");
    bool waits = rule->unusual && rule->wait_ms > 0;
    if (rule->unusual && rule->quorum == LOCK_QUORUM_YES && quorum_stops(s, c, r, bytes))
        return DISPATCHED;
    size_t len;
    const char *key = lock_word(&words, key_index, &len);
    struct lock_call *l = NULL;
    if (lock_verb_is(lc->verb, VERB_SPENDS)) {
        s->lock.patient = true;
        l = begin(s, NULL, rule, lc, key, len, &words);
        s->lock.patient = false;
        if (__builtin_expect(l->plan.held_back, false)) { /* until the engine knows more */
            hold_back(s, l);
            return DISPATCH_WAIT;
        }
    }
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

/* ---- commands that remove or replace whole keys --------------------------------------------------- */

/* One script checks the leases of all locks among the keys, and runs the command (line 15 of docs/locks.md). */

/* Whether an earlier one of the arguments in `found` is the same key. */
static bool named_before(const struct lock_words *words, const uint32_t *found, size_t i) {
    size_t len, other_len;
    const char *key = lock_word(words, found[i], &len);
    for (size_t k = 0; k < i; k++) {
        const char *other = lock_word(words, found[k], &other_len);
        if (other_len == len && memcmp(other, key, len) == 0)
            return true;
    }
    return false;
}

static struct lock_call *begin_one(struct session *s, enum lock_verb verb, const struct lock_rule *rule, uint32_t db,
                                   const struct lock_words *words, size_t at) {
    size_t len, name_len;
    const char *key = lock_word(words, at, &len), *name = lock_word(words, 0, &name_len);
    struct lock_call *l = lock_begin_anew(s, verb, rule, db, key, len);
    lock_call_command(l, name, name_len);
    l->clobbers = true;
    l->acquires = verb == LOCK_ACQUIRE;
    l->expiry_ms = LOCK_EXPIRY_OTHER;
    if (l->acquires && at + 1 < words->count) {
        const char *value = lock_word(words, at + 1, &len);
        lock_call_value(l, value, len);
    }
    return l;
}

/* Puts a call at the end of the ring that begins with `first` (NULL: it is empty). Returns the ring's first. */
static struct lock_call *behind(struct lock_call *first, struct lock_call *l) {
    if (first)
        list_append(&first->link, &l->link);
    return first ? first : l;
}

/* Builds the call of clobber.lua for the ring that begins with `first`. `keys`: the arguments that are keys. */
static void build_clobber(struct session *s, struct lock_queue *queue, struct lock_call *first,
                          const struct lock_words *words, const uint32_t *keys, size_t key_count) {
    struct worker *w = s->worker;
    struct lock_call *calls[LOCK_CLOBBERED_MAX] = {first};
    size_t locks = 1;
    for (struct lock_call *l = lock_call_next(first); l != first; l = lock_call_next(l))
        calls[locks++] = l;
    char count[24];
    snprintf(count, sizeof(count), "%zu", locks);
    lock_build_script(w, SCRIPT_CLOBBER, queue, 2 * locks + key_count, LOCK_HEADER_ARGS + 4 * locks + 2 + words->count);
    for (size_t i = 0; i < locks; i++)
        lock_build_key(w, calls[i]->key, calls[i]->plan.key.len);
    for (size_t i = 0; i < key_count; i++)
        build_bulk(w, words->bytes + words->args[keys[i]].off, words->args[keys[i]].len);
    lock_build_header(w, s->lock.client, &first->plan, count, 0, SHAPE_INT);
    for (size_t i = 0; i < locks; i++)
        build_text(w, calls[i]->plan.claim_token);
    for (size_t i = 0; i < locks; i++)
        build_text(w, lock_right_text(calls[i]->plan.right));
    for (size_t i = 0; i < locks; i++)
        build_text(w, calls[i]->plan.attempt_token);
    for (size_t i = 0; i < locks; i++)
        lock_build_seen(w, &calls[i]->plan);
    bool elsewhere = first->plan.key.db != first->db;
    snprintf(count, sizeof(count), "%u", (unsigned)first->plan.key.db);
    build_text(w, elsewhere ? count : "");
    snprintf(count, sizeof(count), "%u", (unsigned)first->db);
    build_text(w, count);
    for (size_t i = 0; i < words->count; i++)
        build_bulk(w, words->bytes + words->args[i].off, words->args[i].len);
}

struct lock_call *lock_prepare_clobber(struct session *s, struct lock_queue *queue, const struct request_class *k) {
    uint32_t found[LOCK_CLOBBERED_MAX];
    size_t n = lock_clobbered_keys(k->command, k->request, k->bytes, found, LOCK_CLOBBERED_MAX);
    if (n > LOCK_CLOBBERED_MAX)
        return NULL;
    const struct lock_words words = {k->bytes, k->request->argv, k->request->argc};
    struct lock_call *first = NULL;
    uint32_t db = session_db(s);
    lock_clobbers_database(k->command, k->request, k->bytes, &db);
    bool acquires = lock_acquires_all(k->command, k->request, k->bytes);
    for (size_t i = 0; i < n; i++) {
        const struct lock_rule *rule = lock_clobbered_rule(k, found[i], i);
        if (!rule || named_before(&words, found, i))
            continue;
        session_note_overlap(s);
        struct lock_call *l = begin_one(s, acquires ? LOCK_ACQUIRE : LOCK_CLOBBER, rule, db, &words, found[i]);
        l->advises = (uint8_t)(lock_row_of(k->command)->advises | (acquires ? ADVISES_ALL : 0));
        if (queue)
            lock_enqueue(s, queue, l);
        first = behind(first, l);
    }
    build_clobber(s, queue, first, &words, k->keys, k->key_count <= LOCK_CLOBBERED_MAX ? k->key_count : 0);
    return first;
}

struct lock_call *lock_begin_pairs(struct session *s, const struct lock_rule *rule, uint32_t db,
                                   const struct lock_words *words) {
    uint32_t found[LOCK_CLOBBERED_MAX];
    struct lock_call *first = NULL;
    size_t n = 0;
    for (uint32_t at = 1; at + 1 < words->count; at += 2) {
        found[n] = at;
        if (named_before(words, found, n++))
            continue;
        struct lock_call *l = begin_one(s, LOCK_ACQUIRE, rule, db, words, at);
        l->advises = (uint8_t)(lock_row_of(command_by_id(COMMAND_MSETNX))->advises | ADVISES_ALL);
        first = behind(first, l);
    }
    return first;
}

void lock_build_pairs(struct session *s, struct lock_call *first, const struct lock_words *words) {
    build_clobber(s, NULL, first, words, NULL, 0);
}

void lock_call_clobber(struct call *call, struct session *s, const struct request_class *k) {
    struct lock_call *l = lock_prepare_clobber(s, NULL, k);
    if (!l) {
        struct call_end end = {.error = LOCK_TOO_MANY_KEYS, .why = UPSTREAM_NOT_SENT};
        lock_deliver(call, call->done, &end);
        return;
    }
    lock_submit(call, l, SCRIPT_CLOBBER);
}

/* Inlined, it would keep lock_submit from being inlined for acquire and release, which costs 1 % of their bound. */
__attribute__((noinline)) enum dispatch_result lock_dispatch_clobber(struct session *s, const struct request_class *k) {
    counter_add(&s->worker->counters.requests_locks, 1);
    struct request *request = request_new(s, k->command);
    lock_busy_all(request);
    request_barrier(request);
    if (k->command->id != COMMAND_MSETNX || !lock_clobbers_one_rule(k) || class_enforced(k, 0)->wait_ms == 0) {
        lock_call_clobber(&request->call, s, k);
        return DISPATCHED;
    }
    const struct lock_words words = {k->bytes, k->request->argv, k->request->argc};
    session_note_overlap(s);
    struct lock_call *l = lock_begin_pairs(s, class_enforced(k, 0), session_db(s), &words);
    l->again = true;
    s->worker->waits->keep(request, l, &words);
    lock_build_pairs(s, l, &words);
    lock_submit(&request->call, l, SCRIPT_CLOBBER);
    return DISPATCHED;
}

/* ---- PROXY LOCK, TOKEN, RELEASE ---------------------------------------------------------------- */

enum dispatch_result lock_ask(struct session *s, const struct command *c, enum lock_ask what, const char *key,
                              size_t key_len) {
    if (lock_must_wait(s, key, key_len))
        return DISPATCH_WAIT;
    struct worker *w = s->worker;
    bool release = what == LOCK_ASK_RELEASE;
    struct request *request = request_new(s, c);
    lock_busy_key(request, key, key_len);
    struct lock_call *l =
        lock_begin(s, release ? LOCK_OPERATOR : LOCK_INSPECT, lock_rule_for(s, key, key_len), key, key_len);
    l->ask = what;
    l->shape = SHAPE_INT;
    if (release) {
        l->command = "PROXY RELEASE";
        lock_build_release(w, NULL, s->lock.client, &l->plan, l->shape, "DEL");
    } else {
        lock_build_call(w, SCRIPT_INSPECT, NULL, &l->plan.key, LOCK_HEADER_ARGS);
        lock_build_header(w, s->lock.client, &l->plan, NULL, 0, SHAPE_INT);
    }
    lock_submit(&request->call, l, release ? SCRIPT_RELEASE : SCRIPT_INSPECT);
    return DISPATCHED;
}
