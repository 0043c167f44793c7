/*
 * The call of a lock script: its memory, from the command to the reply, and the envelope that the script answers.
 *
 *      arguments of the command ──> EVALSHA sha 2 KEY GUARD arguments... (words.c) ──> node
 *      client's reply <── first element of the envelope <── {reply, outcome, fence, pttl, owner, flags}
 *                                                             (and three more for list locks: list.lua)
 *
 * The client gets the first element as the bytes that Redis sent. For the usual outcomes the script answers a short
 * text, and the client's reply is made here. This file decides nothing: the engine and the scripts do. The callers
 * choose the script for a command.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/bytes.h"
#include "proxy/base/memory.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/locks/private.h"

enum { FREE_LOCKS_MAX = 1024 };

/* ---- a lock call's memory ---------------------------------------------------------------------- */

static char *keep_text(char *inside, size_t size, const char *data, size_t len) {
    if (len > size)
        return memory_strndup(data, len);
    bytes_copy(inside, data, len);
    return inside;
}

static inline struct lock_call *lock_new(struct session *s, const char *key, size_t key_len) {
    struct worker *w = s->worker;
    struct list_node *n = stack_pop(&w->locks->free);
    w->locks->free_count -= n != NULL;
    struct lock_call *l = n ? LIST_ENTRY(n, struct lock_call, link) : memory_alloc(sizeof(*l));
    list_init(&l->link);
    list_init(&l->queued);
    list_init(&l->joined);
    l->rules = lock_rules_ref(w->rules);
    l->session_id = s->lock.id;
    l->next = NULL;
    l->asks = l->clobbers = l->acquires = l->again = l->handed = false;
    l->shape = SHAPE_NIL;
    l->advises = 0;
    l->protocol = s->lane.protocol;
    l->begun = ev_now(w->loop);
    l->waited_ms = 0;
    l->value = NULL;
    l->value_len = 0;
    l->key = keep_text(l->short_key, LOCK_SHORT_KEY, key, key_len);
    l->command = "";
    memcpy(l->who, s->address, sizeof(s->address));
    if (s->name)
        session_who(s, l->who, sizeof(l->who));
    return l;
}

void lock_drop(struct worker *w, struct lock_call *l) {
    invariant_debug(list_empty(&l->joined), "attempts have joined a call that is freed");
    lock_rules_unref(l->rules);
    list_remove(&l->queued);
    if (l->value != l->short_value)
        memory_free(l->value);
    if (l->key != l->short_key)
        memory_free(l->key);
    if (w->locks->free_count >= FREE_LOCKS_MAX) {
        memory_free(l);
        return;
    }
    w->locks->free_count++;
    stack_push(&w->locks->free, &l->link);
}

const struct lock_rule *lock_call_rule(const struct lock_call *l) {
    return l->plan.rule;
}

void lock_call_command(struct lock_call *l, const char *command, size_t len) {
    size_t i;
    for (i = 0; i < len && i < LOCK_COMMAND_MAX - 1; i++)
        l->command_text[i] = command[i] >= 'a' && command[i] <= 'z' ? (char)(command[i] - 'a' + 'A') : command[i];
    l->command_text[i] = '\0';
    l->command = l->command_text;
}

void lock_call_value(struct lock_call *l, const char *value, size_t len) {
    invariant_debug(!l->value, "a call gets a second value");
    l->value_len = len;
    l->value = keep_text(l->short_value, LOCK_SHORT_VALUE, value, len);
}

static void locks_open(struct worker *w) {
    w->locks = memory_zalloc(sizeof(*w->locks));
    lock_holds_open(w);
}

static void locks_close(struct worker *w) {
    struct list_node *n;
    while ((n = stack_pop(&w->locks->free)))
        memory_free(LIST_ENTRY(n, struct lock_call, link));
    lock_holds_close(w);
    memory_free(w->locks);
    w->locks = NULL;
}

static void session_leaves(struct session *s) {
    one_shot_closes(s);
    if (locks_of(s)->left_endless)
        observer_left(s->worker->shared->observer, s->lock.id, s->lock.one_shot);
}

static void locks_tick(struct worker *w) {
    advise_tick(w);
    learnt_tick(w);
}

const struct session_room locks_room = {
    .worker_opens = locks_open,
    .worker_closes = locks_close,
    .worker_asks = successors_tick,
    .worker_begins = learnt_begin,
    .worker_ticks = locks_tick,
    .closes = session_leaves,
    .request_first = one_shot_sends,
};

/* ---- the envelope ------------------------------------------------------------------------------ */

/* Reads a fence; nearly all fences have 16 digits. Returns false if the bytes are no number. */
static inline bool read_fence(const char *p, const char *end, uint64_t *n) {
    uint64_t words[2], high, low;
    if (end - p == sizeof(words)) {
        memcpy(words, p, sizeof(words));
        if (bytes_eight_digits(words[0], &high) && bytes_eight_digits(words[1], &low)) {
            *n = high * 100000000 + low;
            return true;
        }
    }
    *n = 0;
    for (; p < end; p++) {
        unsigned digit = (unsigned char)*p - (unsigned)'0';
        if (digit > 9)
            return false;
        *n = *n * 10 + digit;
    }
    return true;
}

/* Returns the expiry that an attempt asked for, or that its rule gives; PTTL_NONE: none. */
static int64_t expiry_asked(const struct lock_call *l) {
    int64_t ms = l->expiry_ms ? l->expiry_ms : l->plan.rule->lease_ms;
    return ms > 0 ? ms : PTTL_NONE;
}

/* Reads the flags of an envelope, as the function flags in common.lua computes them. */
static inline void read_flags(uint64_t flags, struct lock_result *r) {
    r->leased = flags & 1;
    r->pooled = flags >> 1 & 1;
    r->same = flags >> 2 & 1;
    r->suspects = (uint8_t)(flags >> 3 & 3);
    r->elsewhere = flags >> 5 & 1;
    r->shifted_ms = (int64_t)(flags >> 6);
}

/* Reads the part of a short text behind the fence, from the colon on; only an attempt that may wait gets it. A refusal
 * says how long the lease lasts (PTTL_NONE: it does not end). Both outcomes may say for how long a session at another
 * proxy has waited. */
static __attribute__((noinline)) void read_more(const char *colon, const char *end, struct lock_result *r) {
    const char *p = colon + 1;
    int64_t ms;
    if (r->outcome == LOCK_HELD) {
        colon = memchr(p, ':', (size_t)(end - p));
        r->pttl_ms = resp_integer(p, (size_t)((colon ? colon : end) - p), &ms) ? ms : PTTL_NONE;
        p = colon ? colon + 1 : end;
    }
    r->waits_ms = p < end && resp_integer(p, (size_t)(end - p), &ms) ? ms : 0;
}

/* Reads a short text that begins with 'h'. */
static __attribute__((noinline)) bool read_held(const char *p, const char *end, struct lock_result *r) {
    if (end - p < 3)
        return false;
    r->outcome = LOCK_HELD;
    r->pttl_ms = PTTL_UNKNOWN;
    read_flags((uint64_t)(p[1] - '0'), r);
    const char *colon = memchr(p + 2, ':', (size_t)(end - p - 2));
    if (colon)
        read_more(colon, end, r);
    return read_fence(p + 2, colon ? colon : end, &r->fence);
}

/* Reads the short text of a grant that has more than a fence. */
static __attribute__((noinline)) bool read_granted(const char *p, const char *end, struct lock_result *r) {
    const char *colon = memchr(p, ':', (size_t)(end - p));
    if (!colon)
        return false;
    read_more(colon, end, r);
    return colon - p > r->leased && read_fence(p + r->leased, colon, &r->fence);
}

inline bool lock_read_short(const struct lock_call *l, const char *data, size_t len, struct lock_result *r) {
    const char *end = data + len - 2, *p = data + 4;
    if (len < 7)
        return false;
    if (*p == '\n') /* the length had two digits */
        p++;
    else if (p[-1] != '\n')
        return false;
    if (*p == 'r') {
        r->outcome = LOCK_RELEASED;
        r->pttl_ms = PTTL_GONE;
        r->fence = l ? l->plan.claim_fence : 0;
        return p + 1 == end || read_fence(p + 1, end, &r->fence);
    }
    if (*p == 'h')
        return read_held(p, end, r);
    r->leased = *p == 'g';
    r->outcome = LOCK_GRANTED;
    r->pttl_ms = l ? expiry_asked(l) : PTTL_UNKNOWN;
    if (end - p > r->leased && read_fence(p + r->leased, end, &r->fence))
        return true;
    return read_granted(p, end, r);
}

/* Returns the reply that Redis would give, where the script answered a short text. */
inline const char *lock_short_reply(const struct lock_call *l, enum lock_outcome outcome, size_t *len) {
    bool done = outcome != LOCK_HELD, number = !l || l->shape == SHAPE_INT;
    *len = number ? 4 : 5;
    if (number)
        return done ? ":1\r\n" : ":0\r\n";
    if (done)
        return "+OK\r\n";
    if (l->protocol == 3) {
        *len = 3;
        return "_\r\n";
    }
    return "$-1\r\n";
}

bool lock_envelope_read(const struct lock_call *l, const char *data, size_t len, struct lock_envelope *e) {
    const char *p = data, *end = data + len;
    struct resp_item item, fields[8];
    if (len > 0 && data[0] == '$') {
        if (!lock_read_short(l, data, len, &e->result))
            return false;
        e->reply = lock_short_reply(l, e->result.outcome, &e->reply_len);
        return true;
    }
    if (!resp_item_read(&p, end, &item) || item.type != '*' || (item.num != 6 && item.num != 9))
        return false;
    e->reply = p;
    p = resp_item_end(p, end);
    if (!p)
        return false;
    e->reply_len = (size_t)(p - e->reply);
    bool queue = item.num == 9;
    for (size_t i = 0; i < (queue ? 8 : 5); i++)
        if (!resp_item_read(&p, end, &fields[i]))
            return false;
    struct lock_result *r = &e->result;
    r->fence = (uint64_t)fields[1].num;
    r->pttl_ms = fields[2].num;
    r->holder = fields[3].str;
    r->holder_len = fields[3].len;
    read_flags((uint64_t)fields[4].num, r);
    if (queue) {
        r->lost = (uint64_t)fields[5].num;
        r->lost_owner = fields[6].str;
        r->lost_owner_len = fields[6].len;
        r->value = fields[7].len ? fields[7].str : NULL;
        r->value_len = fields[7].len;
    }
    return lock_outcome_parse(fields[0].str, fields[0].len, &r->outcome);
}

/* Sets the values in the result that the command left at the key, or that its reply shows to the session. */
static void envelope_value(const struct lock_call *l, struct lock_envelope *e) {
    enum lock_verb verb = l->plan.verb;
    struct resp_item item;
    const char *p = e->reply;
    bool refused = e->result.outcome == LOCK_HELD || e->result.outcome == LOCK_FOREIGN;
    bool counts =
        (verb == LOCK_COUNT_UP || verb == LOCK_COUNT_DOWN) && !l->value; /* for a hash lock, the value is a field */
    bool shows = lock_verb_is(verb, VERB_SHOWS) || counts;
    bool answers = refused && (verb == LOCK_SWAP || (verb == LOCK_ACQUIRE && l->shape == SHAPE_NIL));
    if (verb == LOCK_QUEUE_READ) { /* the envelope names the node of the lease; the command, LPOS, names a node too */
        e->result.shown = l->value;
        e->result.shown_len = l->value_len;
        return;
    }
    e->result.value = l->value;
    e->result.value_len = l->value_len;
    if (!(shows || answers) || !resp_item_read(&p, e->reply + e->reply_len, &item) || item.null || item.type == '-')
        return;
    *(answers ? &e->result.shown : &e->result.value) = item.str;
    *(answers ? &e->result.shown_len : &e->result.value_len) = item.len;
}

void lock_failed_outcome(const struct call_end *end, struct lock_result *result) {
    bool sent = !end->error || end->why == UPSTREAM_UNKNOWN;
    result->outcome = sent ? LOCK_UNKNOWN : LOCK_NOT_SENT;
    /* An error line means that Redis refused the whole script (NOPERM, OOM, ...): nothing was done. */
    if (!end->error && end->len > 0 && end->reply[0] == '-')
        result->outcome = LOCK_ERROR;
}

/* Answers PROXY TOKEN with the fence alone. */
static void answer_token(const struct session *s, struct lock_envelope *e, char *out) {
    e->reply = out;
    if (e->result.outcome == LOCK_DONE || e->result.outcome == LOCK_ADOPTED)
        e->reply_len = resp_header_write(out, ':', (int64_t)e->result.fence);
    else
        e->reply_len = (size_t)sprintf(out, "%s", s && s->lane.protocol == 3 ? "_\r\n" : "$-1\r\n");
}

static void add_bulk(struct text *t, const char *data, size_t len) {
    char *at = text_reserve(t, resp_bulk_size(len));
    text_commit(t, (size_t)(resp_bulk_write(at, data, len) - at));
}

static void add_number(struct text *t, const char *name, uint64_t number) {
    add_bulk(t, name, strlen(name));
    char *at = text_reserve(t, RESP_HEADER_MAX);
    text_commit(t, resp_header_write(at, ':', (int64_t)number));
}

/* Answers PROXY LOCK. Adds to the script's pairs the connection that holds the lock, and the sessions that wait for it
 * at this proxy. The reply is a map in RESP3. */
static void answer_map(struct worker *w, const struct lock_call *l, struct lock_envelope *e) {
    enum { WAITERS_SHOWN = 32, ADDED = 3 };
    const struct proxy_shared *shared = w->shared;
    const char *p = e->reply;
    struct resp_item item;
    if (!resp_item_read(&p, e->reply + e->reply_len, &item) || item.type != '*')
        return;
    const struct lock_key *key = &l->plan.key;
    uint64_t hash = l->plan.hash;
    struct waiting_view waits = waiting_of(shared->waiting, key, hash);
    struct text who = {0};
    waiting_who(shared->waiting, key, hash, WAITERS_SHOWN, worker_steady_ms(w), &who);
    struct text *t = &w->build;
    t->len = 0;
    char *at = text_reserve(t, RESP_HEADER_MAX);
    int64_t pairs = item.num / 2 + ADDED;
    text_commit(t, resp_header_write(at, l->protocol == 3 ? '%' : '*', l->protocol == 3 ? pairs : 2 * pairs));
    text_append(t, p, e->reply_len - (size_t)(p - e->reply));
    add_number(t, "connection", engine_holder(shared->engine, key, hash, worker_now(w)));
    add_number(t, "waiting", waits.count);
    add_bulk(t, "waiters", sizeof("waiters") - 1);
    add_bulk(t, who.data, who.len);
    text_clear(&who);
    e->reply = t->data;
    e->reply_len = t->len;
}

/* Turns a number that came as text into an integer reply. A script answers text where the number needs more than 53
 * bits. */
static void answer_number(const struct lock_call *l, struct lock_envelope *e, char *out) {
    struct resp_item item;
    const char *p = e->reply;
    if (l->plan.verb != LOCK_PASS || l->shape != SHAPE_INT || e->reply[0] != '$' ||
        !resp_item_read(&p, e->reply + e->reply_len, &item) || item.null || item.len + 3 > LOCK_ANSWER_MAX)
        return;
    out[0] = ':';
    memcpy(out + 1, item.str, item.len);
    memcpy(out + 1 + item.len, "\r\n", 2);
    e->reply = out;
    e->reply_len = item.len + 3;
}

/* In RESP2, a script cannot answer a null array: it is put in here. */
static void answer_array(const struct lock_call *l, struct lock_envelope *e) {
    if (l->shape == SHAPE_ARRAY && e->reply_len == 5 && memcmp(e->reply, "$-1\r\n", 5) == 0)
        e->reply = "*-1\r\n";
}

/* Returns the client's error: the upstream's, or an error of its own if the node's answer is no envelope. */
static const char *script_error(const struct call_end *end, const struct lock_result *result) {
    if (end->error || result->outcome != LOCK_UNKNOWN)
        return end->error;
    return "UPSTREAM a node's answer to a lock script makes no sense; the outcome of the request is unknown";
}

/* Has the engine called in time to renew a new lease. Without this, the renewal might be due before the engine's next
 * turn. */
static void worker_lease_changed(struct worker *w, const struct lock_rule *rule, const struct lock_result *result) {
    if (result->pttl_ms > 0 && (result->leased || rule->renew == LOCK_RENEW_ALWAYS))
        worker_engine_due(w, result->pttl_ms / 3);
}

void lock_deliver(struct call *c, call_done_fn next, const struct call_end *end) {
    if (next)
        next(c, end);
    else if (end->error)
        request_fail(c->request, end->error);
    else
        request_reply(c->request, end->reply, end->len, true);
}

inline void lock_learnt(struct worker *w, struct session *s, struct lock_call *l, const struct lock_result *result) {
    if (s)
        advise_script(s, &l->plan, result, l->advises);
    if (s && result->outcome == LOCK_HELD)
        lock_note_trip(s);
    engine_finish(w->shared->engine, s ? &s->lock : NULL, l->session_id, &l->plan, result, l->command, l->who,
                  worker_now(w));
    if (__builtin_expect(l->plan.rule && l->plan.rule->wait_ms > 0, false))
        lock_handover_learnt(w, l, result);
    lock_drop(w, l);
}

/* Tells the engine the result for each lock key of a clobbering command. The calls form a ring that begins with
 * `first`. */
static void clobber_learnt(struct worker *w, struct session *s, struct lock_call *first,
                           const struct lock_result *result) {
    for (struct list_node *n = &first->link, *next; n; n = next) {
        next = n->next != n ? n->next : NULL;
        list_remove(n);
        struct lock_call *l = LIST_ENTRY(n, struct lock_call, link);
        invariant(l->clobbers, "a call that clobbers nothing is in the ring");
        struct lock_result each = *result;
        each.value = l->value;
        each.value_len = l->value_len;
        bool refused = each.outcome == LOCK_HELD || each.outcome == LOCK_FOREIGN;
        if (refused && l != first)
            each.outcome = LOCK_NOT_SENT; /* so that one command makes one incident */
        if (each.outcome == LOCK_GRANTED)
            worker_lease_changed(w, l->plan.rule, &each);
        lock_learnt(w, s, l, &each);
    }
}

/* Answers a refused swap. The script compares with the value that one session read, but other sessions of the client
 * may have read other values. If the present value would look like a success to one of them, the reply is LOCKED
 * instead. */
static void answer_swap(struct worker *w, const struct lock_call *l, struct lock_envelope *e) {
    static const char LOCKED[] = "-LOCKED the lock is held; nothing was changed\r\n";
    bool refused = e->result.outcome == LOCK_HELD || e->result.outcome == LOCK_FOREIGN;
    if (l->plan.verb != LOCK_SWAP || !refused || e->reply[0] == '-' || !e->result.shown ||
        !engine_swap_misleads(w->shared->engine, l->session_id, &l->plan, e->result.shown, e->result.shown_len))
        return;
    e->result.shown = NULL;
    e->reply = LOCKED;
    e->reply_len = sizeof(LOCKED) - 1;
}

void lock_note_time(struct worker *w, const struct lock_call *l) {
    if (l->begun > 0)
        histogram_note(&w->lock_commands, (int64_t)((ev_now(w->loop) - l->begun) * 1e6));
}

/* Ends a call whose script answered a short text. Returns false if the answer is another one. This path saves 4 % of
 * the bound on acquire and release. */
static inline bool finish_short(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                                struct call_end *out) {
    struct lock_result r = {.value = l->value, .value_len = l->value_len};
    if (end->error || end->reply[0] != '$' || l->asks || l->clobbers || !lock_read_short(l, end->reply, end->len, &r))
        return false;
    out->reply = lock_short_reply(l, r.outcome, &out->len);
    out->error = NULL;
    lock_note_time(w, l);
    if (r.outcome == LOCK_GRANTED) {
        if (l->waited_ms > 0 && r.pttl_ms > 0)
            r.pttl_ms = r.pttl_ms > l->waited_ms ? r.pttl_ms - l->waited_ms : 1;
        worker_lease_changed(w, l->plan.rule, &r);
    }
    lock_learnt(w, s, l, &r);
    return true;
}

static __attribute__((noinline)) void finish_long(struct worker *w, struct session *s, struct lock_call *l,
                                                  const struct call_end *end, struct call_end *out, char *answer) {
    struct lock_envelope e = {.reply = end->reply, .reply_len = end->len};
    if (!end->error)
        lock_note_time(w, l);
    if (!end->error && lock_envelope_read(l, end->reply, end->len, &e)) {
        if (!l->clobbers)
            envelope_value(l, &e);
        if (l->asks && l->ask == LOCK_ASK_TOKEN)
            answer_token(s, &e, answer);
        if (l->asks && l->ask == LOCK_ASK_ALL)
            answer_map(w, l, &e);
        answer_swap(w, l, &e);
        answer_array(l, &e);
        answer_number(l, &e, answer);
        if (l->waited_ms > 0 && e.result.pttl_ms > 0)
            e.result.pttl_ms = e.result.pttl_ms > l->waited_ms ? e.result.pttl_ms - l->waited_ms : 1;
    } else {
        e = (struct lock_envelope){.reply = end->reply, .reply_len = end->len};
        lock_failed_outcome(end, &e.result);
        if (e.result.outcome == LOCK_ERROR)
            lock_error_words(&e, answer);
    }
    if (s && l->plan.verb == LOCK_PASS)
        advise_passed(s, &l->plan, l->advises, e.reply, e.reply_len);
    *out =
        (struct call_end){.reply = e.reply, .len = e.reply_len, .error = script_error(end, &e.result), .why = end->why};
    if (l->clobbers) {
        clobber_learnt(w, s, l, &e.result);
    } else {
        worker_lease_changed(w, l->plan.rule, &e.result);
        lock_learnt(w, s, l, &e.result);
    }
}

inline void lock_finish(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                        struct call_end *out, char *answer) {
    if (!finish_short(w, s, l, end, out))
        finish_long(w, s, l, end, out, answer);
}

/* Sends a refused release once more, to ask whether the lease was released through another proxy. Returns false if the
 * refusal stands. If a waiting session's attempt was sent behind the release, the refusal stands: the same lease has
 * refused that attempt. */
static bool release_again(struct call *c, struct lock_call *l, const struct lock_envelope *e) {
    struct worker *w = c->request->worker;
    invariant(l->again && c->lock == l, "a release is sent again that may not be");
    if (l->handed || !engine_again(w->shared->engine, &l->plan, &e->result, worker_now(w)))
        return false;
    lock_build_release(w, NULL, c->request->session->lock.client, &l->plan, l->plan.slot, l->command);
    c->done = l->next;
    lock_submit(c, l, SCRIPT_RELEASE);
    return true;
}

/* Sends a refused attempt once more, together with the release of the lease that refused it; or lets it wait, if its
 * rule says so. Returns false if the refusal is the client's reply. */
static __attribute__((noinline)) bool refused_again(struct call *c, struct lock_call *l, const struct call_end *end) {
    struct lock_envelope e;
    struct worker *w = c->request->worker;
    struct session *s = c->request->session;
    invariant(l->again && c->lock == l, "a call is sent again that may not be");
    if (!s || !lock_envelope_read(l, end->reply, end->len, &e))
        return false;
    if (l->plan.verb != LOCK_ACQUIRE)
        return release_again(c, l, &e);
    if (l->expiry_ms == LOCK_EXPIRY_OTHER || !engine_again(w->shared->engine, &l->plan, &e.result, worker_now(w)))
        return l->plan.rule->wait_ms > 0 && w->waits->refused(c, l, &e);
    lock_build_release_then_acquire(w, s->lock.client, l);
    c->done = l->next;
    lock_submit(c, l, SCRIPT_ACQUIRE);
    return true;
}

/* Whether a live lease may have refused the call. A cheap test, since most answers are no refusals. */
static inline bool may_be_refused(const struct lock_call *l, const struct call_end *end) {
    return l->again && !end->error && end->len > 6 &&
           (end->reply[0] == '*' || end->reply[4] == 'h' || end->reply[5] == 'h');
}

static inline void end_call(struct call *c, const struct call_end *end) {
    struct lock_call *l = c->lock;
    if (may_be_refused(l, end) && refused_again(c, l, end))
        return;
    if (l->plan.rule && l->plan.rule->replicas > 0 && lock_confirm(c, l, end))
        return;
    call_done_fn next = l->next;
    struct call_end out;
    char answer[LOCK_ANSWER_MAX];
    c->lock = NULL;
    lock_finish(c->request->worker, c->request->session, l, end, &out, answer);
    lock_deliver(c, next, &out);
}

void lock_answered(struct call *c, const struct call_end *end) {
    end_call(c, end);
}

static __attribute__((noinline)) void end_call_joined(struct call *c, const struct call_end *end) {
    invariant(!list_empty(&c->lock->joined), "no attempt has joined");
    struct lock_call *l = c->lock;
    struct list_node joined;
    list_init(&joined);
    list_splice(&joined, &l->joined);
    const struct lock_client *asker = c->request->session ? c->request->session->lock.client : NULL;
    end_call(c, end);
    lock_joined_end(&joined, end, asker);
}

static void lock_done(struct call *c, const struct call_end *end) {
    invariant_debug(c->lock && !c->up.in_flight, "a script's answer belongs to no call");
    struct lock_call *l = c->lock;
    lock_probe_over(c, l);
    if (list_empty(&l->joined))
        end_call(c, end);
    else
        end_call_joined(c, end);
}

/* ---- beginning and sending ---------------------------------------------------------------------- */

inline struct lock_call *lock_begin_anew(struct session *s, enum lock_verb verb, const struct lock_rule *rule,
                                         uint32_t db, const char *key, size_t key_len) {
    struct lock_call *l = lock_new(s, key, key_len);
    struct lock_key name = {.db = db, .name = l->key, .len = key_len};
    l->db = session_db(s);
    bool queued = s->queues;
    engine_begin(s->worker->shared->engine, &s->lock, verb, &name, rule, s->lane.login, queued, worker_now(s->worker),
                 &l->plan);
    return l;
}

inline struct lock_call *lock_begin_in(struct session *s, enum lock_verb verb, const struct lock_rule *rule,
                                       uint32_t db, const char *key, size_t key_len) {
    session_note_overlap(s);
    return lock_begin_anew(s, verb, rule, db, key, key_len);
}

inline struct lock_call *lock_begin(struct session *s, enum lock_verb verb, const struct lock_rule *rule,
                                    const char *key, size_t key_len) {
    return lock_begin_in(s, verb, rule, session_db(s), key, key_len);
}

bool lock_same_key(const struct lock_call *a, const struct lock_call *b) {
    return a->plan.key.len == b->plan.key.len && a->plan.key.db == b->plan.key.db &&
           memcmp(a->key, b->key, a->plan.key.len) == 0;
}

void lock_enqueue(struct session *s, struct lock_queue *queue, struct lock_call *l) {
    const struct lock_plan *acquirer = NULL;
    for (struct list_node *it = queue->calls.prev; it != &queue->calls; it = it->prev) {
        const struct lock_call *before = LIST_ENTRY(it, struct lock_call, queued);
        if (lock_same_key(before, l) && !engine_looks_back(&l->plan, &before->plan, before->acquires, &acquirer))
            break;
    }
    if (acquirer)
        engine_follow(s->worker->shared->engine, &l->plan, acquirer, worker_now(s->worker));
    invariant(list_empty(&l->queued) && s->queues, "a call is queued outside of a transaction");
    list_append(&queue->calls, &l->queued);
    l->begun = 0; /* the time until EXEC is not the node's */
}

const char *lock_queue_attempt(const struct lock_queue *queue, const struct list_node **at,
                               const struct lock_key *lock) {
    while ((*at = (*at)->next) != &queue->calls) {
        const struct lock_call *l = LIST_ENTRY(*at, struct lock_call, queued);
        const struct lock_key *key = &l->plan.key;
        bool verb =
            l->acquires || l->plan.verb == LOCK_SCRIPT || lock_verb_is(l->plan.verb, VERB_ACQUIRES | VERB_QUEUE);
        if (verb && key->db == lock->db && key->len == lock->len && memcmp(key->name, lock->name, key->len) == 0)
            return l->plan.attempt_token;
    }
    return NULL;
}

void lock_undone(struct lock_call *l) {
    invariant(!list_empty(&l->queued), "a call is undone that was not queued");
    l->plan.undone = true;
}

void lock_queue_sent(struct worker *w, const struct lock_queue *queue) {
    LIST_FOREACH(it, &queue->calls) {
        engine_sent(w->shared->engine, &LIST_ENTRY(it, struct lock_call, queued)->plan);
    }
}

inline void lock_submit(struct call *call, struct lock_call *l, enum script_id id) {
    struct worker *w = call->request->worker;
    invariant_debug((!call->lock || call->lock == l) && call->done != lock_done, "a call carries two scripts");
    l->next = call->done;
    call->lock = l;
    call->done = lock_done;
    call->up.script = script_get(id);
    call->up.repeatable = id != SCRIPT_PASS;
    call_submit(call, l->plan.slot, w->build.data, w->build.len);
}

void lock_submit_for(struct call *call, struct lock_call *l, enum script_id id, call_done_fn done) {
    invariant(call->lock == l || !call->lock, "a call carries two scripts");
    l->next = NULL;
    call->lock = l;
    call->done = done;
    call->up.script = script_get(id);
    call->up.repeatable = true;
    call_submit(call, l->plan.slot, call->request->worker->build.data, call->request->worker->build.len);
}
