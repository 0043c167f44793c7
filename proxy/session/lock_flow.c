/*
 * Lock commands on their way: engine_begin, the script, its envelope, engine_finish, the client's reply.
 *
 *      words of the command ──> EVALSHA sha 2 KEY GUARD (10 of common.lua's ARGV) words... ──> node
 *      client's reply <── first element of the envelope <── {reply, outcome, fence, pttl, owner, leased}
 *
 * The first element goes to the client as the bytes that Redis sent. Decides nothing: that is the engine's, and the
 * scripts'.
 */
#include "proxy/session/lock_flow.h"

#include <stdio.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"

enum {
    SHORT_VALUE = 96,
    SHORT_KEY = 96,
    COMMAND_NAME_MAX = 24,
    HEADER_ARGS = 10,
    CLOBBERED_MAX = 256,
    FREE_LOCKS_MAX = 1024
};

/* One script under way: what engine_finish will need. */
struct lock_call {
    struct list_node link;   /* the others of a clobbering command, or the free list */
    struct list_node queued; /* those prepared for the same transaction */
    struct lock_plan plan;
    struct lock_rules *rules; /* reference that keeps plan.rule alive */
    uint64_t session_id;
    call_done_fn next; /* what the call's owner wanted; NULL: straight to the client */
    enum lock_ask ask;
    bool asks, clobbers;
    size_t value_len;
    char *value, *key; /* short ones inside, long ones allocated */
    char short_value[SHORT_VALUE], short_key[SHORT_KEY];
    char command[COMMAND_NAME_MAX];
    char who[SESSION_ADDRESS_MAX + 72];
};

/* ---- which keys, and one after another -------------------------------------------------------- */

inline const struct lock_rule *lock_rule_for(struct session *s, const char *key, size_t len) {
    const struct lock_rule *rule = lock_rules_match(s->worker->rules, key, len);
    return rule && rule->mode == LOCK_MODE_ENFORCE && !lock_guard_is(key, len) ? rule : NULL;
}

static unsigned busy_place(const char *key, size_t len) {
    return slot_crc16(key, len) % LOCK_BUSY_SLOTS;
}

bool lock_must_wait(const struct session *s, const char *key, size_t len) {
    return s->lock_busy_all > 0 || s->lock_busy[busy_place(key, len)] > 0;
}

bool lock_any_busy(const struct session *s) {
    if (s->lock_busy_all > 0)
        return true;
    for (size_t i = 0; i < LOCK_BUSY_SLOTS; i++)
        if (s->lock_busy[i] > 0)
            return true;
    return false;
}

void lock_busy_all(struct request *r) {
    r->lock_busy = LOCK_BUSY_ALL;
    r->session->lock_busy_all++;
}

static void lock_busy_key(struct request *r, const char *key, size_t len) {
    unsigned place = busy_place(key, len);
    r->lock_busy = (uint8_t)(place + 1);
    r->session->lock_busy[place]++;
}

bool lock_clobbers(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    uint32_t keys[CLOBBERED_MAX];
    size_t n = lock_clobbered_keys(c, r, bytes, keys, CLOBBERED_MAX);
    if (n > CLOBBERED_MAX)
        return true; /* lock_call_clobber looks again, and says no */
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *key = request_arg(r, bytes, keys[i], &len);
        if (lock_rule_for(s, key, len))
            return true;
    }
    return false;
}

/* ---- a lock call's memory ---------------------------------------------------------------------- */

static char *keep(char *inside, size_t size, const char *data, size_t len) {
    if (len > size)
        return memory_strndup(data, len);
    memcpy(inside, data, len);
    return inside;
}

static struct lock_call *lock_new(struct session *s, const char *key, size_t key_len, const char *command,
                                  size_t command_len) {
    struct worker *w = s->worker;
    struct list_node *n = list_shift(&w->free_locks);
    w->free_lock_count -= n != NULL;
    struct lock_call *l = n ? LIST_ENTRY(n, struct lock_call, link) : memory_alloc(sizeof(*l));
    list_init(&l->link);
    list_init(&l->queued);
    l->rules = lock_rules_ref(w->rules);
    l->session_id = s->lock.id;
    l->next = NULL;
    l->asks = l->clobbers = false;
    l->value = NULL;
    l->value_len = 0;
    l->key = keep(l->short_key, SHORT_KEY, key, key_len);
    size_t i;
    for (i = 0; i < command_len && i < COMMAND_NAME_MAX - 1; i++)
        l->command[i] = command[i] >= 'a' && command[i] <= 'z' ? (char)(command[i] - 'a' + 'A') : command[i];
    l->command[i] = '\0';
    memcpy(l->who, s->address, sizeof(s->address));
    if (s->name)
        session_who(s, l->who, sizeof(l->who));
    return l;
}

static void lock_free(struct worker *w, struct lock_call *l) {
    lock_rules_unref(l->rules);
    list_remove(&l->queued);
    if (l->value != l->short_value)
        memory_free(l->value);
    if (l->key != l->short_key)
        memory_free(l->key);
    if (w->free_lock_count >= FREE_LOCKS_MAX) {
        memory_free(l);
        return;
    }
    w->free_lock_count++;
    list_append(&w->free_locks, &l->link);
}

void lock_free_pool(struct worker *w) {
    struct list_node *n;
    while ((n = list_shift(&w->free_locks)))
        memory_free(LIST_ENTRY(n, struct lock_call, link));
}

/* ---- the envelope ------------------------------------------------------------------------------ */

struct envelope {
    const char *reply; /* the client's part */
    size_t reply_len;
    struct lock_result result;
};

/* Reads {reply, outcome, fence, pttl, owner, leased}. */
static bool envelope_read(const char *data, size_t len, struct envelope *e) {
    const char *p = data, *end = data + len;
    struct resp_item item, fields[5];
    if (!resp_item_read(&p, end, &item) || item.type != '*' || item.num != 6)
        return false;
    e->reply = p;
    p = resp_item_end(p, end);
    if (!p)
        return false;
    e->reply_len = (size_t)(p - e->reply);
    for (size_t i = 0; i < 5; i++)
        if (!resp_item_read(&p, end, &fields[i]))
            return false;
    struct lock_result *r = &e->result;
    r->fence = (uint64_t)fields[1].num;
    r->pttl_ms = fields[2].num;
    r->holder = fields[3].str;
    r->holder_len = fields[3].len;
    r->leased = fields[4].num == 1;
    return lock_outcome_parse(fields[0].str, fields[0].len, &r->outcome);
}

/* The value that the command left or showed, for sightings. */
static void envelope_value(const struct lock_call *l, struct envelope *e) {
    enum lock_verb verb = l->plan.verb;
    struct resp_item item;
    const char *p = e->reply;
    bool refused = e->result.outcome == LOCK_HELD || e->result.outcome == LOCK_FOREIGN;
    bool shows =
        verb == LOCK_READ || verb == LOCK_COUNT_UP || verb == LOCK_COUNT_DOWN || (verb == LOCK_SWAP && refused);
    e->result.value = l->value;
    e->result.value_len = l->value_len;
    if (shows && resp_item_read(&p, e->reply + e->reply_len, &item) && !item.null && item.type != '-') {
        e->result.value = item.str;
        e->result.value_len = item.len;
    }
}

static void lock_failed_outcome(const struct call_end *end, struct lock_result *result) {
    bool sent = !end->error || end->why == UPSTREAM_UNKNOWN;
    result->outcome = sent ? LOCK_UNKNOWN : LOCK_NOT_SENT;
    /* Redis refused the whole script (NOPERM, OOM, ...): nothing was done. */
    if (!end->error && end->len > 0 && end->reply[0] == '-')
        result->outcome = LOCK_ERROR;
}

/* PROXY TOKEN wants the fence alone. */
static void answer_token(const struct session *s, struct envelope *e, char *out) {
    e->reply = out;
    if (e->result.outcome == LOCK_DONE || e->result.outcome == LOCK_ADOPTED)
        e->reply_len = resp_header_write(out, ':', (int64_t)e->result.fence);
    else
        e->reply_len = (size_t)sprintf(out, "%s", s && s->protocol == 3 ? "_\r\n" : "$-1\r\n");
}

/* The error for the client: the upstream's, or that the node's answer is no envelope. */
static const char *script_error(const struct call_end *end, const struct lock_result *result) {
    if (end->error || result->outcome != LOCK_UNKNOWN)
        return end->error;
    return "UPSTREAM a node's answer to a lock script makes no sense; the outcome of the request is unknown";
}

/* A lease that the proxy has to renew may be due before the engine's next turn. */
static void worker_lease_changed(struct worker *w, const struct lock_rule *rule, const struct lock_result *result) {
    if (result->pttl_ms > 0 && (result->leased || rule->renew == LOCK_RENEW_ALWAYS))
        worker_engine_due(w, result->pttl_ms / 3);
}

static void lock_deliver(struct call *c, call_done_fn next, const struct call_end *end) {
    if (next)
        next(c, end);
    else if (end->error)
        request_fail(c->request, end->error);
    else
        request_reply(c->request, end->reply, end->len, true);
}

static void lock_learnt(struct worker *w, struct session *s, struct lock_call *l, const struct lock_result *result) {
    engine_finish(w->shared->engine, s ? &s->lock : NULL, l->session_id, &l->plan, result, l->command, l->who,
                  w->now_ms);
    lock_free(w, l);
}

/* The first lock call is the head of a ring of all of a clobbering command's lock keys. */
static void clobber_learnt(struct worker *w, struct session *s, struct lock_call *first,
                           const struct lock_result *result) {
    struct list_node ring;
    list_init(&ring);
    list_append(&first->link, &ring);
    struct list_node *n;
    while ((n = list_shift(&ring))) {
        struct lock_call *l = LIST_ENTRY(n, struct lock_call, link);
        struct lock_result each = *result;
        bool refused = each.outcome == LOCK_HELD || each.outcome == LOCK_FOREIGN;
        if (refused && l != first)
            each.outcome = LOCK_NOT_SENT; /* one incident for one command */
        lock_learnt(w, s, l, &each);
    }
}

void lock_finish(struct worker *w, struct session *s, struct lock_call *l, const struct call_end *end,
                 struct call_end *out, char *answer) {
    struct envelope e = {.reply = end->reply, .reply_len = end->len};
    if (!end->error && envelope_read(end->reply, end->len, &e)) {
        if (!l->clobbers)
            envelope_value(l, &e);
        if (l->asks && l->ask == LOCK_ASK_TOKEN)
            answer_token(s, &e, answer);
    } else {
        e = (struct envelope){.reply = end->reply, .reply_len = end->len};
        lock_failed_outcome(end, &e.result);
    }
    *out =
        (struct call_end){.reply = e.reply, .len = e.reply_len, .error = script_error(end, &e.result), .why = end->why};
    if (l->clobbers) {
        clobber_learnt(w, s, l, &e.result);
    } else {
        worker_lease_changed(w, l->plan.rule, &e.result);
        lock_learnt(w, s, l, &e.result);
    }
}

static void lock_done(struct call *c, const struct call_end *end) {
    struct lock_call *l = c->lock;
    call_done_fn next = l->next;
    struct call_end out;
    char answer[RESP_HEADER_MAX];
    c->lock = NULL;
    lock_finish(c->request->worker, c->request->session, l, end, &out, answer);
    lock_deliver(c, next, &out);
}

/* ---- building the script's call ---------------------------------------------------------------- */

/* In a transaction the first call of a script is by its source: a NOSCRIPT would come too late. */
static void build_script(struct worker *w, enum script_id id, struct lock_queue *queue, size_t keys, size_t args) {
    const struct script *script = script_get(id);
    bool source = queue && !(queue->sources & 1u << id);
    if (source)
        queue->sources |= 1u << id;
    build_start(w, 3 + keys + args);
    if (source) {
        build_bulk(w, "EVAL", 4);
        build_bulk(w, script->source, script->len);
    } else {
        build_bulk(w, "EVALSHA", 7);
        build_bulk(w, script->sha1, 40);
    }
    build_number(w, (int64_t)keys);
}

static void build_guard(struct worker *w, const char *key, size_t len) {
    char small[256];
    char *guard = len + LOCK_GUARD_EXTRA <= sizeof(small) ? small : memory_alloc(len + LOCK_GUARD_EXTRA);
    build_bulk(w, guard, lock_guard_key(key, len, guard));
    if (guard != small)
        memory_free(guard);
}

/* ARGV 1 to 10; `claim` stands in for the plan's own where it is given. */
static void build_header(struct worker *w, const struct lock_client *client, const struct lock_plan *plan,
                         const char *claim, uint32_t at, const char *shape) {
    size_t len = 0;
    const char *identity = client ? lock_client_name(client, &len) : "";
    char seen[LOCK_SEEN_MAX + 1];
    build_text(w, plan->attempt_token);
    build_text(w, claim ? claim : plan->claim_token);
    build_bulk(w, identity, len);
    build_text(w, w->shared->options.process_id);
    build_text(w, plan->right);
    build_number(w, plan->rule ? plan->rule->lease_ms : 0);
    build_number(w, (int64_t)plan->read_fence);
    seen[0] = '=';
    memcpy(seen + 1, plan->seen, plan->seen_known ? plan->seen_len : 0);
    build_bulk(w, seen, plan->seen_known ? plan->seen_len + 1 : 0);
    build_number(w, at);
    build_text(w, shape);
}

static struct lock_call *lock_begin(struct session *s, enum lock_verb verb, const struct lock_rule *rule,
                                    const char *key, size_t key_len, const char *command, size_t command_len) {
    struct lock_call *l = lock_new(s, key, key_len, command, command_len);
    struct lock_key name = {.db = s->db, .name = l->key, .len = key_len};
    engine_begin(s->worker->shared->engine, &s->lock, verb, &name, rule, s->login, s->worker->now_ms, &l->plan);
    return l;
}

static bool same_key(const struct lock_call *a, const struct lock_call *b) {
    return a->plan.key.len == b->plan.key.len && a->plan.key.db == b->plan.key.db &&
           memcmp(a->key, b->key, a->plan.key.len) == 0;
}

/* What may acquire a lease of its own. */
static bool may_acquire(const struct lock_plan *plan) {
    return plan->verb == LOCK_ACQUIRE ||
           ((plan->verb == LOCK_REPLACE || plan->verb == LOCK_SWAP || plan->verb == LOCK_COUNT_UP) && plan->claim == 0);
}

static bool may_release(const struct lock_plan *plan) {
    return plan->verb == LOCK_RELEASE || plan->verb == LOCK_COUNT_DOWN || plan->verb == LOCK_CLOBBER;
}

/* Puts a lock call among those of its transaction, where no other client comes between: it speaks for the lease that
 * one before it acquires. If several may, the first behind a release is the one: where it does not, none does. */
static void lock_enqueue(struct session *s, struct lock_queue *queue, struct lock_call *l) {
    const struct lock_plan *acquirer = NULL;
    for (struct list_node *it = queue->calls.prev; it != &queue->calls; it = it->prev) {
        const struct lock_call *before = LIST_ENTRY(it, struct lock_call, queued);
        if (!same_key(before, l))
            continue;
        if (acquirer && may_release(&before->plan))
            break;
        if (may_acquire(&before->plan))
            acquirer = &before->plan;
    }
    if (acquirer)
        engine_follow(s->worker->shared->engine, &l->plan, acquirer, s->worker->now_ms);
    list_append(&queue->calls, &l->queued);
}

/* Sends what is in w->build as a script, which is safe to repeat. */
static void lock_submit(struct call *call, struct lock_call *l, enum script_id id, int slot) {
    struct worker *w = call->request->worker;
    l->next = call->done;
    call->lock = l;
    call->done = lock_done;
    call->up.script = script_get(id);
    call->up.repeatable = true;
    call_submit(call, slot, w->build.data, w->build.len);
}

struct lock_call *lock_prepare(struct session *s, struct lock_queue *queue, const struct lock_rule *rule,
                               const struct lock_command *lc, const char *key, size_t key_len,
                               const struct lock_words *words) {
    struct worker *w = s->worker;
    counter_add(&w->counters.requests_locks, 1);
    struct lock_call *l = lock_begin(s, lc->verb, rule, key, key_len, words->words[0], words->lens[0]);
    if (queue)
        lock_enqueue(s, queue, l);
    if (lc->value_at) {
        l->value_len = words->lens[lc->value_at];
        l->value = keep(l->short_value, SHORT_VALUE, words->words[lc->value_at], l->value_len);
    }
    build_script(w, lc->script, queue, 2, HEADER_ARGS + words->count);
    build_bulk(w, key, key_len);
    build_guard(w, key, key_len);
    build_header(w, s->lock.client, &l->plan, NULL, lc->value_at ? lc->value_at + 1 : 0, lc->shape);
    for (size_t i = 0; i < words->count; i++)
        build_bulk(w, words->words[i], words->lens[i]);
    return l;
}

void lock_call(struct call *call, const struct lock_rule *rule, const struct lock_command *lc, const char *key,
               size_t key_len, const struct lock_words *words) {
    struct lock_call *l = lock_prepare(call->request->session, NULL, rule, lc, key, key_len, words);
    lock_submit(call, l, lc->script, slot_of_key(key, key_len));
}

enum dispatch_result lock_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                   const char *bytes, const struct lock_command *lc, uint32_t key_index,
                                   const struct lock_rule *rule) {
    enum { WORDS_ON_STACK = 16, WORDS_MAX = 1000 };
    const char *on_stack[WORDS_ON_STACK], **texts = on_stack;
    size_t lens_on_stack[WORDS_ON_STACK], *lens = lens_on_stack;
    if (r->argc > WORDS_MAX) { /* more than a script can hand on, and none of these commands means anything by them */
        dispatch_local_error(s, c, "ERR syntax error");
        return DISPATCHED;
    }
    if (r->argc > WORDS_ON_STACK) { /* options may be repeated */
        texts = memory_alloc(r->argc * sizeof(*texts));
        lens = memory_alloc(r->argc * sizeof(*lens));
    }
    for (size_t i = 0; i < r->argc; i++)
        texts[i] = request_arg(r, bytes, i, &lens[i]);
    struct lock_words words = {texts, lens, r->argc};
    struct request *request = request_new(s, c);
    lock_busy_key(request, texts[key_index], lens[key_index]);
    lock_call(&request->call, rule, lc, texts[key_index], lens[key_index], &words);
    if (texts != on_stack) {
        memory_free(texts);
        memory_free(lens);
    }
    return DISPATCHED;
}

/* ---- commands that remove or replace whole keys ------------------------------------------------ */

struct lock_call *lock_prepare_clobber(struct session *s, struct lock_queue *queue, const struct command *c,
                                       const struct resp_request *r, const char *bytes) {
    struct worker *w = s->worker;
    uint32_t found[CLOBBERED_MAX];
    size_t n = lock_clobbered_keys(c, r, bytes, found, CLOBBERED_MAX), locks = 0;
    if (n > CLOBBERED_MAX)
        return NULL;
    struct lock_call *calls[CLOBBERED_MAX];
    for (size_t i = 0; i < n; i++) {
        size_t len, name_len;
        const char *key = request_arg(r, bytes, found[i], &len);
        const char *name = request_arg(r, bytes, 0, &name_len);
        const struct lock_rule *rule = lock_rule_for(s, key, len);
        if (!rule)
            continue;
        calls[locks] = lock_begin(s, LOCK_CLOBBER, rule, key, len, name, name_len);
        calls[locks]->clobbers = true;
        if (queue)
            lock_enqueue(s, queue, calls[locks]);
        if (locks > 0)
            list_append(&calls[0]->link, &calls[locks]->link);
        found[locks++] = found[i];
    }
    uint32_t others[CLOBBERED_MAX];
    int key_count = command_keys(c, bytes, r, others, CLOBBERED_MAX);
    size_t other_count = key_count > 0 && key_count <= CLOBBERED_MAX ? (size_t)key_count : 0;
    char count[24];
    snprintf(count, sizeof(count), "%zu", locks);
    build_script(w, SCRIPT_CLOBBER, queue, 2 * locks + other_count, HEADER_ARGS + 2 * locks + r->argc);
    for (size_t i = 0; i < locks; i++) {
        build_bulk(w, bytes + r->argv[found[i]].off, r->argv[found[i]].len);
        build_guard(w, bytes + r->argv[found[i]].off, r->argv[found[i]].len);
    }
    for (size_t i = 0; i < other_count; i++)
        build_bulk(w, bytes + r->argv[others[i]].off, r->argv[others[i]].len);
    if (locks > 1)
        calls[0]->plan.seen_known = false; /* it was seen under one of the keys alone */
    build_header(w, s->lock.client, &calls[0]->plan, count, 0, "int");
    for (size_t i = 0; i < locks; i++)
        build_text(w, calls[i]->plan.claim_token);
    for (size_t i = 0; i < locks; i++)
        build_text(w, calls[i]->plan.right);
    for (size_t i = 0; i < r->argc; i++)
        build_bulk(w, bytes + r->argv[i].off, r->argv[i].len);
    return calls[0];
}

void lock_call_clobber(struct call *call, struct session *s, const struct command *c, const struct resp_request *r,
                       const char *bytes) {
    struct lock_call *l = lock_prepare_clobber(s, NULL, c, r, bytes);
    if (!l) {
        struct call_end end = {.error = LOCK_TOO_MANY_KEYS, .why = UPSTREAM_NOT_SENT};
        lock_deliver(call, call->done, &end);
        return;
    }
    lock_submit(call, l, SCRIPT_CLOBBER, slot_of_key(l->key, l->plan.key.len));
}

void lock_dispatch_clobber(struct session *s, const struct command *c, const struct resp_request *r,
                           const char *bytes) {
    counter_add(&s->worker->counters.requests_locks, 1);
    struct request *request = request_new(s, c);
    lock_busy_all(request);
    request_barrier(request);
    lock_call_clobber(&request->call, s, c, r, bytes);
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
    struct lock_call *l = lock_begin(s, release ? LOCK_OPERATOR : LOCK_INSPECT, lock_rule_for(s, key, key_len), key,
                                     key_len, "PROXY RELEASE", release ? 13 : 0);
    l->asks = true;
    l->ask = what;
    build_script(w, id, NULL, 2, HEADER_ARGS + (release ? 2 : 0));
    build_bulk(w, key, key_len);
    build_guard(w, key, key_len);
    build_header(w, s->lock.client, &l->plan, NULL, 0, "int");
    if (release) {
        build_text(w, "DEL");
        build_bulk(w, key, key_len);
    }
    lock_submit(&request->call, l, id, slot_of_key(key, key_len));
    return DISPATCHED;
}

/* ---- the proxy's own work ---------------------------------------------------------------------- */

/* A renewal under way, or a release because the owner has disconnected. */
struct lease_work {
    bool renewal;
    uint64_t token;
    int64_t lease_ms;
    struct lock_key key;
    char name[];
};

static void lease_done(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct lease_work *work = c->lock;
    struct envelope e = {.reply = NULL};
    if (end->error || !envelope_read(end->reply, end->len, &e))
        lock_failed_outcome(end, &e.result);
    if (e.result.outcome == LOCK_ERROR) {
        e.result.outcome = LOCK_NOT_SENT;
        log_warning("a lease could not be renewed: %.*s", (int)(end->len > 200 ? 200 : end->len - 2), end->reply);
    }
    if (work->renewal) {
        worker_engine_due(w, work->lease_ms / 3);
        engine_renewed(w->shared->engine, &work->key, work->token, e.result.outcome, w->now_ms);
    }
    c->lock = NULL;
    memory_free(work);
    w->lease_works--;
    request_reply(c->request, "", 0, true);
}

static void lease_work(struct worker *w, const struct lock_lease *lease, bool renewal) {
    struct lease_work *work = memory_alloc(sizeof(*work) + lease->key.len);
    memcpy(work->name, lease->key.name, lease->key.len);
    work->renewal = renewal;
    work->token = lease->token;
    work->lease_ms = lease->lease_ms;
    work->key = (struct lock_key){.db = lease->key.db, .name = work->name, .len = lease->key.len};
    struct lock_plan plan = {.right = lease->right};
    memcpy(plan.attempt_token, lease->token_text, sizeof(plan.attempt_token));
    memcpy(plan.claim_token, lease->token_text, sizeof(plan.claim_token));
    enum script_id id = renewal ? SCRIPT_RENEW : SCRIPT_RELEASE;
    build_script(w, id, NULL, 2, HEADER_ARGS + (renewal ? 0 : 2));
    build_bulk(w, work->name, work->key.len);
    build_guard(w, work->name, work->key.len);
    struct lock_rule rule = {.lease_ms = lease->lease_ms};
    plan.rule = &rule;
    build_header(w, NULL, &plan, NULL, 0, "int");
    if (!renewal) {
        build_text(w, "DEL");
        build_bulk(w, work->name, work->key.len);
    }
    struct request *request = request_internal(w);
    w->lease_works++;
    request->call.lock = work;
    request->call.done = lease_done;
    request->call.up.script = script_get(id);
    request->call.up.repeatable = true;
    struct upstream_lane lane = {.login = lease->login, .db = lease->key.db, .protocol = 2};
    call_submit_lane(&request->call, slot_of_key(work->name, work->key.len), &lane, w->build.data, w->build.len);
}

void lock_renew(struct worker *w, const struct lock_lease *lease) {
    lease_work(w, lease, true);
}

void lock_release(struct worker *w, const struct lock_lease *lease) {
    lease_work(w, lease, false);
}
