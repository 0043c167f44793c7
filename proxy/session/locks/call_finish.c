/*
 * The end of a lock call: the client gets its reply, the engine learns the outcome, and under `quorum` the witnesses
 * are told of it. This file decides nothing.
 */
#include <linux/tcp.h> /* its tcp_info has the smallest round trip, which netinet/tcp.h's lacks */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "parser/invariant.h"
#include "proxy/base/clock.h"
#include "proxy/lock/waiting.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/private.h"
#include "proxy/witness/witness.h"

/* Sets the value that the command left at the key, or that its reply shows to the session. */
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

static void add_number(struct text *t, const char *name, uint64_t number) {
    text_bulk(t, name, strlen(name));
    char *at = text_reserve(t, RESP_HEADER_MAX);
    text_commit(t, resp_header_write(at, ':', (int64_t)number));
}

/* Answers PROXY LOCK, a map in RESP3: the script's pairs, the holder's connection, and the sessions that wait here. */
static void answer_map(struct worker *w, const struct lock_call *l, struct lock_envelope *e) {
    enum { WAITERS_SHOWN = 32, ADDED = 3 };
    const struct proxy_shared *shared = w->shared;
    const char *p = e->reply;
    struct resp_item item;
    if (!resp_item_read(&p, e->reply + e->reply_len, &item) || item.type != '*')
        return;
    const struct lock_key *key = &l->plan.key;
    uint64_t hash = l->plan.hash;
    struct text who = {0};
    struct waiting_view waits = waiting_of(shared->waiting, key, hash, WAITERS_SHOWN, worker_steady_ms(w), &who);
    struct text *t = &w->build;
    t->len = 0;
    char *at = text_reserve(t, RESP_HEADER_MAX);
    int64_t pairs = item.num / 2 + ADDED;
    text_commit(t, resp_header_write(at, l->protocol == 3 ? '%' : '*', l->protocol == 3 ? pairs : 2 * pairs));
    text_append(t, p, e->reply_len - (size_t)(p - e->reply));
    add_number(t, "connection", engine_holder(shared->engine, key, hash, worker_now(w)));
    add_number(t, "waiting", waits.count);
    text_bulk(t, "waiters", sizeof("waiters") - 1);
    text_bulk(t, who.data, who.len);
    text_clear(&who);
    e->reply = t->data;
    e->reply_len = t->len;
}

/* Turns text into an integer reply: a script answers text for a number of more than 53 bits. */
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

/* Has the engine called in time to renew a new lease, which might be due before its next turn. */
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

/* Tells the rooms that the command has changed the key, if that is sure. */
static __attribute__((noinline)) void tell_written(struct session *s, const struct lock_call *l,
                                                   const struct lock_result *result) {
    enum lock_verb verb = l->plan.verb;
    enum lock_outcome outcome = result->outcome;
    bool reads = lock_verb_is(verb, VERB_SHOWS) || verb == LOCK_QUEUE_READ || verb == LOCK_INSPECT;
    bool written = false;
    if (outcome == LOCK_GRANTED || outcome == LOCK_RELEASED)
        written = verb != LOCK_SCRIPT; /* Redis, too, takes the application's script for another client */
    else if (outcome == LOCK_DONE || outcome == LOCK_ADOPTED || outcome == LOCK_OPEN || outcome == LOCK_COUNTED)
        written = !reads && verb != LOCK_ACQUIRE;
    else if (outcome == LOCK_FREE)
        written = lock_verb_is(verb, VERB_WRITES) || verb == LOCK_COUNT_UP;
    if (!written)
        return;
    for (const struct session_room *const *room = s->worker->hooks->rooms; *room; room++)
        if ((*room)->lock_written)
            (*room)->lock_written(s, l->plan.key.name, l->plan.key.len);
}

static uint16_t whole_ms(uint32_t us) {
    return us < UINT16_MAX * 1000u ? (uint16_t)(us / 1000) : UINT16_MAX;
}

/* Measures the round trip to the client once, when an attempt of the session was lost. */
static __attribute__((noinline)) void note_trip(struct session *s) {
    struct tcp_info info;
    socklen_t len = sizeof(info);
    if (locks_of(s)->trip_known)
        return;
    locks_of(s)->trip_known = true;
    if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return;
    s->lock.trip_ms = whole_ms(info.tcpi_rtt);
    s->lock.shortest_trip_ms = whole_ms(info.tcpi_min_rtt);
}

/* ---- witnesses --------------------------------------------------------------------------------------------- */

struct witness_lease quorum_lease(const struct lock_key *key, const char *token, uint64_t fence) {
    return (struct witness_lease){.db = key->db, .name = key->name, .len = key->len, .token = token, .fence = fence};
}

int64_t quorum_longest_ms(const struct worker *w) {
    return lock_promise_longest_ms(w->config->witness_quarantine_ms, w->config->witness_timeout_ms);
}

int64_t quorum_promise_ms(const struct worker *w, int64_t pttl_ms) {
    int64_t ms = lock_promise_ms(pttl_ms > 0 ? pttl_ms : 0, w->config->witness_timeout_ms);
    bool fits = pttl_ms >= 0 && ms < w->config->witness_quarantine_ms;
    return fits ? ms : w->config->witness_quarantine_ms;
}

void quorum_released(struct worker *w, const struct lock_key *key, const char *token, uint64_t fence) {
    struct witness_lease lease = quorum_lease(key, token, fence);
    if (w->witnesses)
        witness_free(w->witnesses, &lease);
}

/* Tells the witnesses of a release. If Redis has forgotten the lock of a claim, the release of the claim may have
 * removed a later attempt of its client's: then both are over. */
static __attribute__((noinline)) void tell_witnesses(struct worker *w, const struct lock_call *l,
                                                     const struct lock_result *result) {
    bool releases = l->plan.verb == LOCK_RELEASE || l->plan.verb == LOCK_OPERATOR;
    bool freed = result->outcome == LOCK_RELEASED ||
                 (releases && (result->outcome == LOCK_ADOPTED || result->outcome == LOCK_DONE));
    bool own = lock_verb_is(l->plan.verb, VERB_SPENDS) && l->plan.right == RIGHT_CLAIM && l->plan.claim_len > 0;
    bool late = own && l->plan.verb == LOCK_RELEASE && result->outcome == LOCK_FREE; /* the owner has finished */
    bool claims = late || (own && freed);
    invariant(result->outcome != LOCK_GRANTED || l->witnessed, "S8: a lock is acquired without its witnesses");
    if (freed || late)
        quorum_released(w, &l->plan.key, claims ? l->plan.claim_token : "", result->fence);
}

/* ---- the end -------------------------------------------------------------------------------------------------- */

inline void lock_learnt(struct worker *w, struct session *s, struct lock_call *l, const struct lock_result *result) {
    if (s)
        advise_script(s, &l->plan, result, l->advises);
    if (s && result->outcome == LOCK_HELD)
        note_trip(s);
    if (s && __builtin_expect(s->hears & HEARS_WRITES, 0))
        tell_written(s, l, result);
    engine_finish(w->shared->engine, l->session_id, &l->plan, result, l->command, l->who, worker_now(w));
    if (__builtin_expect(l->plan.rule && l->plan.rule->unusual, false)) {
        if (l->plan.rule->wait_ms > 0)
            lock_handover_learnt(w, l, result);
        if (l->plan.rule->quorum == LOCK_QUORUM_YES)
            tell_witnesses(w, l, result);
    }
    lock_drop(w, l);
}

/* The lease has run while the call waited for replicas or witnesses. */
static inline void take_wait_off(const struct lock_call *l, struct lock_result *r) {
    if (l->waited_ms > 0 && r->pttl_ms > 0)
        r->pttl_ms = r->pttl_ms > l->waited_ms ? r->pttl_ms - l->waited_ms : 1;
    if (l->waited_ms > 0 && l->raised_fence > 0)
        r->fence = l->raised_fence;
}

void lock_learnt_all(struct worker *w, struct session *s, struct lock_call *first, const struct lock_result *result) {
    if (!first->clobbers) {
        worker_lease_changed(w, first->plan.rule, result);
        lock_learnt(w, s, first, result);
        return;
    }
    for (struct list_node *n = &first->link, *next; n; n = next) {
        next = n->next != n ? n->next : NULL;
        list_remove(n);
        struct lock_call *l = LIST_ENTRY(n, struct lock_call, link);
        invariant(l->clobbers, "a call that clobbers nothing is in the ring");
        struct lock_result each = *result;
        each.value = l->value;
        each.value_len = l->value_len;
        take_wait_off(l, &each);
        bool refused = each.outcome == LOCK_HELD || each.outcome == LOCK_FOREIGN || each.outcome == LOCK_REMEMBERED ||
                       each.outcome == LOCK_UNCONFIRMED;
        if (refused && l != first)
            each.outcome = LOCK_NOT_SENT; /* one command makes one incident */
        if (each.outcome == LOCK_GRANTED)
            worker_lease_changed(w, l->plan.rule, &each);
        lock_learnt(w, s, l, &each);
    }
}

void lock_note_time(struct worker *w, const struct lock_call *l) {
    if (l->begun > 0)
        histogram_note(&w->durations.lock_commands, (int64_t)((ev_now(w->loop) - l->begun) * 1e6));
}

static __attribute__((noinline)) void finish_long(struct worker *w, struct session *s, struct lock_call *l,
                                                  const struct call_end *end, struct lock_answer *out) {
    struct lock_envelope e;
    if (!end->error)
        lock_note_time(w, l);
    if (lock_answer_read(l, end, &e)) {
        if (!l->clobbers)
            envelope_value(l, &e);
        if (l->ask == LOCK_ASK_TOKEN) { /* the fence alone */
            bool own = e.result.outcome == LOCK_DONE || e.result.outcome == LOCK_ADOPTED;
            e.reply = own ? out->text : s && s->lane.protocol == 3 ? "_\r\n" : "$-1\r\n";
            e.reply_len = own ? resp_header_write(out->text, ':', (int64_t)e.result.fence) : strlen(e.reply);
        }
        if (l->ask == LOCK_ASK_ALL)
            answer_map(w, l, &e);
        /* A refused GETSET answers the present value. A session that reads the value which it expected takes that for
         * a success. The script knows only what one session had read. So if any session of the client that may be meant
         * had read the present value, the reply is an error. */
        bool refused = e.result.outcome == LOCK_HELD || e.result.outcome == LOCK_FOREIGN;
        if (l->plan.verb == LOCK_SWAP && refused && e.reply[0] != '-' && e.result.shown &&
            engine_swap_misleads(w->shared->engine, l->session_id, &l->plan, e.result.shown, e.result.shown_len)) {
            e.result.shown = NULL;
            e.reply = "-LOCKED the lock is held; nothing was changed\r\n";
            e.reply_len = strlen(e.reply);
        }
        if (l->shape == SHAPE_ARRAY && e.reply_len == 5 && memcmp(e.reply, "$-1\r\n", 5) == 0)
            e.reply = "*-1\r\n"; /* in RESP2, a script cannot answer a null array */
        answer_number(l, &e, out->text);
        if (!l->clobbers)
            take_wait_off(l, &e.result);
    } else if (e.result.outcome == LOCK_ERROR) {
        lock_error_words(&e, out->text);
    }
    if (s && l->plan.verb == LOCK_PASS)
        advise_passed(s, &l->plan, l->advises, e.reply, e.reply_len);
    out->end = (struct call_end){.reply = e.reply, .len = e.reply_len, .error = end->error, .why = end->why};
    if (!end->error && e.result.outcome == LOCK_UNKNOWN)
        out->end.error =
            "UPSTREAM a node's answer to a lock script makes no sense; the outcome of the request is unknown";
    if (l->fence > 0 && e.result.outcome == LOCK_ERROR) /* the lock may have been set before the script */
        e.result.outcome = LOCK_UNKNOWN;
    lock_learnt_all(w, s, l, &e.result);
}

/* The path of short texts saves 4 % of the bound on acquire and release. */
inline void lock_finish(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                        struct lock_answer *out) {
    struct lock_result r = {.value = l->value, .value_len = l->value_len};
    if (end->error || end->reply[0] != '$' || l->ask != LOCK_ASK_NONE || l->clobbers ||
        !lock_read_short(l, end->reply, end->len, &r)) {
        finish_long(w, s, l, end, out);
        return;
    }
    out->end.reply = lock_short_reply(l, r.outcome, &out->end.len);
    out->end.error = NULL;
    lock_note_time(w, l);
    if (r.outcome == LOCK_GRANTED) {
        r.short_record = l->fence > 0;
        if (l->fence > 0 && r.fence != l->fence)
            engine_fence_heard(w->shared->engine, r.fence, (uint64_t)clock_wall_us());
        take_wait_off(l, &r);
        worker_lease_changed(w, l->plan.rule, &r);
    }
    lock_learnt(w, s, l, &r);
}
