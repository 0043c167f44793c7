/*
 * The call of a lock script: its memory, its plan, its place in the queue of a transaction, the envelope that the
 * script answers, and errors that Redis raised in it.
 *
 *      arguments of the command ──> EVALSHA sha 2 KEY GUARD arguments... (lock_args.c) ──> node
 *      client's reply <── first element of the envelope <── {reply, outcome, fence, pttl, owner, flags}
 *                                                             (and three more for list locks: list.lua)
 *
 * The client gets the envelope's first element as the bytes that Redis sent. For the usual outcomes the script answers
 * a short text, and the client's reply is made here.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/bytes.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/private.h"

enum { FREE_LOCKS_MAX = 1024 };

/* ---- a lock call's memory ---------------------------------------------------------------------- */

static char *keep_text(char *inside, size_t size, const char *data, size_t len) {
    if (len > size)
        return memory_strndup(data, len);
    bytes_copy(inside, data, len);
    return inside;
}

void lock_drop(struct worker *w, struct lock_call *l) {
    invariant_debug(list_empty(&l->joined), "attempts have joined a call that is freed");
    lock_rules_unref(l->rules);
    list_remove(&l->queued);
    if (l->value != l->short_value)
        memory_free(l->value);
    if (l->key != l->short_key)
        memory_free(l->key);
    if (__builtin_expect(l->ballot != NULL, false))
        memory_free(l->ballot);
    if (w->locks->free_count >= FREE_LOCKS_MAX) {
        memory_free(l);
        return;
    }
    w->locks->free_count++;
    stack_push(&w->locks->free, &l->link);
}

void lock_call_command(struct lock_call *l, const char *command, size_t len) {
    lock_command_text(l->command_text, command, len);
    l->command = l->command_text;
}

void lock_call_value(struct lock_call *l, const char *value, size_t len) {
    invariant_debug(!l->value, "a call gets a second value");
    l->value_len = len;
    l->value = keep_text(l->short_value, LOCK_SHORT_VALUE, value, len);
}

/* ---- beginning ---------------------------------------------------------------------------------- */

inline struct lock_call *lock_begin_anew(struct session *s, enum lock_verb verb, const struct lock_rule *rule,
                                         uint32_t db, const char *key, size_t key_len) {
    struct worker *w = s->worker;
    struct list_node *n = stack_pop(&w->locks->free);
    w->locks->free_count -= n != NULL;
    struct lock_call *l = n ? LIST_ENTRY(n, struct lock_call, link) : memory_alloc(sizeof(*l));
    list_init(&l->link);
    list_init(&l->queued);
    list_init(&l->joined);
    l->rules = lock_rules_ref(w->rules);
    l->session_id = s->lock.id;
    /* one by one: a memset costs 0.4 % of the bound on acquire and release */
    l->next = NULL;
    l->clobbers = l->acquires = l->again = l->handed = l->sent_twice = l->witnessed = false;
    l->fence = 0;
    l->shape = SHAPE_NIL;
    l->ask = LOCK_ASK_NONE;
    l->advises = 0;
    l->protocol = s->lane.protocol;
    l->begun = ev_now(w->loop);
    l->waited_ms = 0;
    l->raised_fence = 0;
    l->ballot = NULL;
    l->value = NULL;
    l->value_len = 0;
    l->key = keep_text(l->short_key, LOCK_SHORT_KEY, key, key_len);
    l->command = "";
    memcpy(l->who, s->address, sizeof(s->address));
    if (s->name)
        session_who(s, l->who, sizeof(l->who));
    struct lock_key name = {.db = db, .name = l->key, .len = key_len};
    l->db = session_db(s);
    engine_begin(w->shared->engine, &s->lock, verb, &name, rule, s->lane.login, s->queues, worker_now(w), &l->plan);
    return l;
}

inline struct lock_call *lock_begin(struct session *s, enum lock_verb verb, const struct lock_rule *rule,
                                    const char *key, size_t key_len) {
    session_note_overlap(s);
    return lock_begin_anew(s, verb, rule, session_db(s), key, key_len);
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
    queue->quorum |= l->plan.rule && l->plan.rule->quorum == LOCK_QUORUM_YES;
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

/* ---- the envelope ---------------------------------------------------------------------------------- */

/* Reads a fence; nearly all have 16 digits. False: the bytes are no number. */
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

int64_t lock_expiry_asked(const struct lock_call *l) {
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

/* Reads the part of a short text behind the fence, which an attempt that may wait gets. A refusal says how long the
 * lease lasts (PTTL_NONE: for ever). Both outcomes may say for how long a session at another proxy has waited. */
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

const struct call_end lock_released_end = {.reply = "$1\r\nr\r\n", .len = 7};
const struct call_end lock_not_sent_end = {.error = "UPSTREAM the request was not sent", .why = UPSTREAM_NOT_SENT};
const struct call_end lock_unknown_end = {.error = "UPSTREAM unknown", .why = UPSTREAM_UNKNOWN};

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
    r->pttl_ms = l ? lock_expiry_asked(l) : PTTL_UNKNOWN;
    if (end - p > r->leased && read_fence(p + r->leased, end, &r->fence))
        return true;
    return read_granted(p, end, r);
}

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
    e->refuses = 0;
    if (len > 0 && data[0] == '$') {
        if (!lock_read_short(l, data, len, &e->result))
            return false;
        e->reply = lock_short_reply(l, e->result.outcome, &e->reply_len);
        return true;
    }
    if (!resp_item_read(&p, end, &item) || item.type != '*' || (item.num != 6 && item.num != 7 && item.num != 9))
        return false;
    e->reply = p;
    p = resp_item_end(p, end);
    if (!p)
        return false;
    e->reply_len = (size_t)(p - e->reply);
    bool queue = item.num == 9, names = item.num == 7;
    for (size_t i = 0; i < (queue ? 8 : names ? 6 : 5); i++)
        if (!resp_item_read(&p, end, &fields[i]))
            return false;
    struct lock_result *r = &e->result;
    r->fence = (uint64_t)fields[1].num;
    r->pttl_ms = fields[2].num;
    r->holder = fields[3].str;
    r->holder_len = fields[3].len;
    read_flags((uint64_t)fields[4].num, r);
    if (names && fields[5].num > 0 && fields[5].num <= LOCK_CLOBBERED_MAX)
        e->refuses = (uint32_t)(fields[5].num - 1);
    if (queue) {
        r->lost = (uint64_t)fields[5].num;
        r->lost_owner = fields[6].str;
        r->lost_owner_len = fields[6].len;
        r->value = fields[7].len ? fields[7].str : NULL;
        r->value_len = fields[7].len;
    }
    return lock_outcome_parse(fields[0].str, fields[0].len, &r->outcome);
}

bool lock_answer_read(const struct lock_call *l, const struct call_end *end, struct lock_envelope *e) {
    const struct lock_envelope none = {.reply = end->reply, .reply_len = end->len};
    *e = none;
    if (!end->error && lock_envelope_read(l, end->reply, end->len, e))
        return true;
    *e = none;
    e->result.outcome = !end->error || end->why == UPSTREAM_UNKNOWN ? LOCK_UNKNOWN : LOCK_NOT_SENT;
    /* An error line means that Redis refused the whole script (NOPERM, OOM, ...): nothing was done. */
    if (!end->error && end->len > 0 && end->reply[0] == '-')
        e->result.outcome = LOCK_ERROR;
    return false;
}

/* ---- errors that Redis raised in a script ---- */

void lock_error_words(struct lock_envelope *e, char out[LOCK_ANSWER_MAX]) {
    static const char IN_SCRIPT[] =
        "-NOPERM this user has no permissions to run a command in lockkeeper's script for this "
        "lock command: grant the command itself and +time +exists +type +get +set +del +hget +hmget "
        "+hset +pttl +pexpire +persist; for list, hash and counter locks also +hexists +hincrby +hdel +hlen +hkeys "
        "+lindex +llen +lpos +lpop\r\n";
    static const struct {
        const char *start, *word, *answer;
    } errors[] = {
        {"-NOPERM", "eval",
         "-NOPERM this user has no permissions to run the 'evalsha' command, which lockkeeper uses for "
         "commands on lock keys: grant +eval +evalsha ~lockkeeper:{*}:*\r\n"},
        {"-NOPERM", "to access", /* ... one of the keys used as arguments; since 7.2: a key */
         "-NOPERM this user has no permissions to access the lock's key, or the guard record "
         "beside it: grant ~lockkeeper:{*}:* too, with +eval +evalsha\r\n"},
        {"-ERR The user executing", "", IN_SCRIPT},
        {"-ERR ACL failure in script", "", IN_SCRIPT}, /* since 7.2 */
    };
    size_t len;
    if (e->reply_len > 3 && e->reply[0] == '-' &&
        script_error_plain(e->reply + 1, e->reply_len - 3, out + 1, LOCK_ANSWER_MAX - 3, &len)) {
        out[0] = '-';
        memcpy(out + 1 + len, "\r\n", 2);
        e->reply = out;
        e->reply_len = len + 3;
    }
    /* A user that has sent a SETNX knows nothing of scripts: the error says which permission it lacks. */
    for (size_t i = 0; i < ARRAY_SIZE(errors); i++)
        if (e->reply_len > strlen(errors[i].start) && memcmp(e->reply, errors[i].start, strlen(errors[i].start)) == 0 &&
            memmem(e->reply, e->reply_len, errors[i].word, strlen(errors[i].word))) {
            e->reply = errors[i].answer;
            e->reply_len = strlen(errors[i].answer);
            return;
        }
}
