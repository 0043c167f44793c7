/*
 * Random calls of the lock scripts and the model's answers, for model_against_redis.py:
 * model_dump --seed S --calls N [--newest 1]
 *
 * With --newest, also the commands of Redis 8.4: HSETEX, HGETDEL, HGETEX, DELEX, SET IFEQ, MSETEX. Not IFDEQ, since the
 * model has other digests.
 *
 * One line a call, fields separated by tabs, a value with = before it so that it may be empty:
 *   native KEY COMMAND... | REPLY            a command around the proxy
 *   drop KEY lock|guard                      as if it had expired
 *   before KEY ATTEMPT                       adopt.lua before a script of the application's
 *   script NAME KEY ATTEMPT CLAIM IDENTITY PROXY RIGHT LEASE READ SEEN AT SHAPE COMMAND...
 *          | REPLY OUTCOME FENCE PTTL OWNER LEASED
 *   leave KEY PARTY RIGHT WAITS LEASE                    a party has disconnected
 *   renew KEY CLAIM RIGHT LEASE LEFT | REPLY OUTCOME FENCE PTTL OWNER LEASED    renew_all.lua, and renew.lua if
 *          that does nothing
 *   batch KEY ATTEMPT IDENTITY VALUE FENCE MS LEASED above|equal | RAISED RECORD SET   an attempt without a script; its
 *          fence is above the watermark, or is the watermark. Behind it, `script acquire` may have the right + - or !
 *   free KEY CLAIM | ANSWER                  free.lua
 *   state KEY EXISTS VALUE PTTL TOKEN FENCE VALUE OWNER PROXY LEASED EXTRA GUARD-PTTL NODES
 *   touched KEY 0|1                          whether what was done in the line before has changed the lock
 *   restart KEY FORGETS                      a witness is started again; a script finds another run
 *   lapse KEY                                its promise about the lock is over
 *   witness KEY NAME ARGUMENTS... | ANSWER TOKEN FENCE PTTL     a script at the witness; what its record is then
 * Time stands still in the model; expiries are long, so that it may pass in the real Redis. But a record that outlives
 * its lock says something for its first millisecond: one passes behind `leave`, which may leave such a record.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/chance.h"
#include "tests/sim/interpreter.h"
#include "tests/sim/model.h"

enum { ATTEMPTS = 64, LONG_MS = 600000 };

struct dump {
    struct model m, witness;
    uint64_t random, tokens, natives;
    bool newest;                        /* draws the commands of the newest servers, too */
    char recent[ATTEMPTS][MODEL_TOKEN]; /* attempts made, for claims and repeats */
    struct model_args last[MODEL_KEYS]; /* a call that may be repeated */
    bool repeatable[MODEL_KEYS];
    char last_attempt[MODEL_KEYS][MODEL_TOKEN];
    char last_claim[MODEL_KEYS][MODEL_TOKEN];
    char last_seen[MODEL_KEYS][MODEL_VALUE];
};

static unsigned below(struct dump *d, unsigned n) {
    return (unsigned)(chance_next(&d->random) % n);
}

static bool chance(struct dump *d, unsigned percent) {
    return below(d, 100) < percent;
}

static const char *some_value(struct dump *d) {
    static const char *const VALUES[] = {"1", "2", "1", "3", "0", "token-a", "-2"};
    return VALUES[below(d, sizeof(VALUES) / sizeof(VALUES[0]))];
}

/* One of the newest commands. Fields end late, or with their key. */
static void draw_newest(struct dump *d, bool hash, struct model_command *c) {
    static const enum model_op FIELDS[] = {OP_HSETEX, OP_HSETEX, OP_HGETDEL, OP_HGETEX};
    static const enum model_op STRINGS[] = {OP_DELEX, OP_DELEX, OP_SET_IFEQ, OP_MSETEX};
    c->op = (hash ? FIELDS : STRINGS)[below(d, 4)];
    if (c->op == OP_DELEX)
        c->compare = (enum model_comparison)below(d, IF_DEQ);
    if (c->ms < 0 || c->op == OP_HGETDEL || c->op == OP_DELEX)
        c->ms = 0;
    if (c->ms && hash) /* never what it was: adopt.lua sees that an end has moved */
        c->ms += 20 * (int64_t)++d->natives;
}

static void draw_command(struct dump *d, int key, struct model_command *c) {
    bool queue = model_is_queue(&d->m, key) || key == USUAL_KEYS - 1; /* one key is a queue most of the time */
    *c = (struct model_command){.op = (enum model_op)below(d, chance(d, 10) ? OP_LUA_SET : OP_RPUSH)};
    if (queue && chance(d, 90))
        c->op = (enum model_op)(OP_RPUSH + below(d, OP_LUA_SET - OP_RPUSH));
    else if (chance(d, 25))
        c->op = OP_INCRBY;
    c->ms = chance(d, 45) ? 0 : chance(d, 85) ? LONG_MS + 100000 * (int64_t)below(d, 4) : -1;
    c->by = chance(d, 50) ? 1 : chance(d, 70) ? -1 : (int64_t)below(d, 5) - 2;
    if (c->by == 0)
        c->by = 2;
    snprintf(c->value, sizeof(c->value), "%s", some_value(d));
    if (!queue && key == 0 && chance(d, 60)) { /* and one a hash */
        static const enum model_op OPS[] = {OP_HSETNX, OP_HINCRBY, OP_HDEL, OP_HDEL};
        c->op = OPS[below(d, 4)];
        if (c->op != OP_HINCRBY && d->m.keys[key].hash && chance(d, 35))
            snprintf(c->value, sizeof(c->value), HASH_MODE);
        if (d->newest && chance(d, 50))
            draw_newest(d, true, c);
        return;
    }
    if (d->newest && !queue && chance(d, 15)) {
        draw_newest(d, false, c);
        return;
    }
    bool sets = c->op == OP_SET || c->op == OP_SET_XX || c->op == OP_SET_GET;
    c->keepttl = sets && c->ms == 0 && chance(d, 40);
    if (c->op == OP_SETNX || c->op == OP_GETSET || c->op == OP_MSET)
        c->ms = 0;
    if (c->op == OP_PEXPIRE) {
        c->when = chance(d, 50) ? WHEN_ALWAYS : (enum model_condition)below(d, 5);
        if (c->ms == 0)
            c->ms = LONG_MS;
    }
    /* Time passes in Redis: what is equal here is not there. */
    if ((c->op == OP_PEXPIRE || c->op == OP_GETEX) && c->ms > 0 && d->m.now_ms + c->ms == d->m.keys[key].expire_ms)
        c->ms += 50000;
}

static void print_command(const struct model_command *c) {
    struct model_words w;
    model_command_words(c, &w);
    for (unsigned i = 0; i < w.count; i++)
        printf("%s%s%s", i ? "\t" : "", !w.words[i] ? "K" : i ? "=" : "", w.words[i] ? w.words[i] : "");
}

static void print_reply(const struct model_reply *r) {
    switch (r->kind) {
    case REPLY_INT:
        printf("int:%" PRId64, r->number);
        break;
    case REPLY_OK:
        printf("ok");
        break;
    case REPLY_NIL:
        printf("nil");
        break;
    case REPLY_TEXT:
        printf("text:%s", r->text);
        break;
    case REPLY_ERROR:
        printf("error");
        break;
    }
}

static void print_envelope(const struct model_envelope *e) {
    static const char *const OUTCOMES[] = {"granted", "done", "released", "adopted", "open",
                                           "counted", "held", "foreign",  "free",    "error"};
    printf("\t|\t");
    print_reply(&e->reply);
    printf("\t%s\t%" PRIu64 "\t%" PRId64 "\t=%s\t%s%d\n", OUTCOMES[e->outcome], e->fence, e->pttl_ms, e->owner,
           e->queue ? "list:" : "",
           e->leased + 2 * e->pooled + 4 * e->same + 8 * (int)e->suspects + 32 * e->elsewhere +
               64 * (int)e->shifted_ms);
}

static void print_state(struct dump *d, int key) {
    struct model_key *k = &d->m.keys[key];
    const struct model_guard *g = &k->guard;
    int64_t guard_pttl = !g->exists ? -2 : !g->expire_ms ? -1 : g->expire_ms - d->m.now_ms;
    printf("state\t%d\t%d\t=%s\t%" PRId64 "\t=%s\t%" PRIu64 "\t=%s\t=%s\t=%s\t%d\t%" PRId64 "\t%" PRId64 "\t=", key,
           k->exists, k->exists && !k->list && !k->hash ? k->value : "", model_pttl(&d->m, key), g->token, g->fence,
           g->value, g->owner, g->proxy, g->leased, g->extra, guard_pttl);
    for (unsigned i = 0; k->exists && k->list && i < d->m.queues[key].count; i++)
        printf("%s ", d->m.queues[key].nodes[i]);
    for (unsigned i = 0; k->exists && k->hash && i < k->fields.count; i++)
        if (strcmp(k->fields.at[i].name, HASH_MODE) == 0)
            printf("%s read ", HASH_MODE);
        else
            printf("%s %" PRId64 " ", k->fields.at[i].name, k->fields.at[i].count);
    printf("\n");
}

static const char *script_name(const struct model_args *a) {
    return script_get(model_script_id(a))->name;
}

/* A list lock's caller: one of four sessions, or its identity where connections are shared. */
static void draw_party(struct dump *d, int key, struct model_args *a) {
    static const char *const RIGHTS[] = {"own", "own", "auto", "client", "any"};
    static const char *const SESSIONS[] = {"proxy-1:1", "proxy-2:2", "proxy-1:3", "proxy-2:4"};
    unsigned who = below(d, 4);
    a->right = RIGHTS[below(d, 5)];
    a->identity = who < 2 ? "app-a" : "app-b";
    bool session = strcmp(a->right, "own") == 0 || strcmp(a->right, "auto") == 0;
    snprintf(d->last_seen[key], MODEL_VALUE, "%s", session ? SESSIONS[who] : a->identity);
    a->seen = d->last_seen[key];
    const struct model_queue *q = &d->m.queues[key];
    bool known = q->count && chance(d, a->command.op == OP_RPUSH ? 10 : 70);
    if (known)
        snprintf(a->command.value, sizeof(a->command.value), "%s", q->nodes[below(d, q->count)]);
    else
        snprintf(a->command.value, sizeof(a->command.value), "n%" PRIu64, d->tokens);
    if (a->command.op == OP_RPUSH && q->count > 40)
        a->command.op = OP_LINDEX;
}

/* The scripts for counters, fields and list locks are told of no data, nor is one that enrols; acquire.lua is told
 * nothing of the kind. */
static void draw_data(struct dump *d, struct model_args *a) {
    a->pass = model_may_pass(&a->command) && chance(d, 50);
    bool passes = strcmp(script_name(a), "pass") == 0;
    bool compares = model_compares(&a->command) || a->command.op == OP_SET_IFEQ;
    bool knows = !model_may_pass(&a->command) && (a->command.op < OP_RPUSH || compares) &&
                 model_verb(&a->command) != LOCK_ACQUIRE;
    a->data_free = (passes || knows) && strcmp(a->right, "enrol") != 0 && chance(d, passes ? 80 : 40);
}

static void draw_args(struct dump *d, int key, struct model_args *a) {
    static const char *const IDENTITIES[] = {"app-a", "app-b"}, *const PROXIES[] = {
                                                                    "11111111-1111-1111-1111-111111111111",
                                                                    "22222222-2222-2222-2222-222222222222"};
    static const char *const RIGHTS[] = {"claim",   "claim",  "enrol", "adopt",   "any",    "operator",
                                         "believe", "leased", "later", "suspect", "suspect"};
    const struct model_key *k = &d->m.keys[key];
    const struct model_guard *g = model_live(&d->m, key);
    char *attempt = d->recent[d->tokens++ % ATTEMPTS];
    const char *proxy = PROXIES[below(d, 2)];
    snprintf(attempt, MODEL_TOKEN, "%s:%" PRIu64, proxy, d->tokens);
    memcpy(d->last_attempt[key], attempt, MODEL_TOKEN);
    const char *claim = g && chance(d, 60) ? g->token : chance(d, 50) ? "" : d->recent[below(d, ATTEMPTS)];
    snprintf(d->last_claim[key], MODEL_TOKEN, "%s", claim);
    snprintf(d->last_seen[key], MODEL_VALUE, "%s", k->exists && chance(d, 60) ? k->value : some_value(d));
    *a = (struct model_args){
        .attempt = d->last_attempt[key],
        .claim = d->last_claim[key],
        .identity = IDENTITIES[below(d, 2)],
        .proxy = proxy,
        .right = RIGHTS[below(d, sizeof(RIGHTS) / sizeof(RIGHTS[0]))],
        .lease_ms = chance(d, 85) ? LONG_MS : 0,
        .read_fence = g && chance(d, 40) ? g->fence : 0,
        .seen = chance(d, 50) ? d->last_seen[key] : NULL,
    };
    draw_command(d, key, &a->command);
    bool string = a->command.op == OP_SETNX || a->command.op == OP_SET_NX;
    if (model_verb(&a->command) == LOCK_ACQUIRE) /* acquire.lua is told no other right */
        a->right = string && a->claim[0] && chance(d, 50) ? "release_then_acquire" : "claim";
    if (model_verb(&a->command) >= LOCK_QUEUE_PUSH && model_verb(&a->command) <= LOCK_QUEUE_SET)
        draw_party(d, key, a);
    /* The engine gives this right to what may change a string lock and names one key. */
    if (strcmp(a->right, "enrol") == 0 && (a->command.op >= OP_RPUSH || a->command.op == OP_MSET))
        a->right = "claim";
    draw_data(d, a);
    /* Right 'any' and 'operator' belong to releases for the most part. */
    if (strcmp(a->right, "operator") == 0)
        a->command = (struct model_command){.op = OP_DEL};
}

static void call_script(struct dump *d, int key) {
    struct model_args *a = &d->last[key];
    bool repeat = d->repeatable[key] && chance(d, 12);
    if (!repeat)
        draw_args(d, key, a);
    bool queue = model_is_queue(&d->m, key);
    if (queue && (a->command.op == OP_PERSIST || a->command.op == OP_PEXPIRE))
        a->command = (struct model_command){.op = OP_PEXPIRE, .ms = chance(d, 80) ? LONG_MS + 300000 : -1};
    /* GT and LT depend on how much time has passed. */
    d->repeatable[key] = a->command.op != OP_PEXPIRE || a->command.when == WHEN_ALWAYS;
    if (strcmp(script_name(a), "pass") == 0) /* it is never sent twice */
        d->repeatable[key] = false;
    printf("script\t%s\t%d\t%s\t=%s\t%s\t%s\t%s\t%" PRId64 "\t%" PRIu64 "\t%s%s%s\t%d\t%s\t", script_name(a), key,
           a->attempt, a->claim, a->identity, a->proxy, a->right, a->lease_ms, a->read_fence, a->data_free ? "=*" : "=",
           a->seen ? "=" : "", a->seen ? a->seen : "", model_value_at(&a->command), model_shape(&a->command));
    print_command(&a->command);
    struct model_envelope e = model_script(&d->m, key, a);
    print_envelope(&e);
}

/* Whether a lock may be adopted: not queues; nor where a guard record is about to be one that outlives its lease, which
 * in Redis it is already. */
static bool may_adopt(struct dump *d, int key) {
    return !model_is_queue(&d->m, key) && d->m.keys[key].guard.expire_ms != d->m.now_ms + GUARD_OUTLIVES_MS;
}

static void call_native(struct dump *d, int key);

/* With the step before it, and what a script might do between them; or alone. */
static void call_adopt(struct dump *d, int key) {
    struct model_args a;
    draw_args(d, key, &a);
    d->repeatable[key] = false;
    snprintf(a.command.value, sizeof(a.command.value), "%s", d->last_seen[key]);
    a.together = chance(d, 70);
    if (a.together) {
        printf("before\t%d\t%s\n", key, a.attempt);
        model_before(&d->m, key, a.attempt);
        for (unsigned i = 0; i < 3 && chance(d, 70); i++)
            call_native(d, key);
    }
    printf("script\tadopt\t%d\t%s\t=%s\t%s\t%s\t%s\t%" PRId64 "\t0\t=\t0\t%s\t=%s", key, a.attempt, a.claim, a.identity,
           a.proxy, a.right, a.lease_ms, a.together ? "together" : "nil", a.command.value);
    a.command.op = OP_LUA_SET;
    a.command.composed = false;
    a.seen = NULL;
    a.data_free = a.pass = false;
    struct model_envelope e = model_script(&d->m, key, &a);
    print_envelope(&e);
}

static void call_renew(struct dump *d, int key) {
    const struct model_guard *g = model_live(&d->m, key);
    char claim[MODEL_TOKEN];
    snprintf(claim, sizeof(claim), "%s", g && chance(d, 80) ? g->token : "t0");
    const char *right = chance(d, 50) ? "claim" : chance(d, 60) ? "always" : "look";
    int lease_ms = LONG_MS + (chance(d, 50) ? 25000 : -25000);
    lease_ms += 20 * (int)++d->natives + 7; /* never what is left: in Redis a little of that has passed */
    int left_ms = chance(d, 50) ? 0 : chance(d, 50) ? LONG_MS / 4 : 10 * LONG_MS;
    struct model_envelope e = model_renew(&d->m, key, claim, right, lease_ms, left_ms);
    printf("renew\t%d\t=%s\t%s\t%d\t%d", key, claim, right, lease_ms, left_ms);
    print_envelope(&e);
}

static void call_leave(struct dump *d, int key) {
    char party[32];
    unsigned who = 1 + below(d, 4);
    snprintf(party, sizeof(party), "proxy-%u:%u", 2 - who % 2, who);
    bool waits = chance(d, 70);
    const char *right = chance(d, 50) ? "auto" : chance(d, 60) ? "own" : "client";
    model_queue_leave(&d->m, key, party, right, waits, LONG_MS);
    printf("leave\t%d\t%s\t%s\t%d\t%d\n", key, party, right, waits, LONG_MS);
    d->m.now_ms++;
}

static void call_native(struct dump *d, int key) {
    struct model_command c;
    do
        draw_command(d, key, &c);
    while ((c.op > OP_RPUSH && c.op < OP_HSETNX) || (c.op == OP_RPUSH && d->m.queues[key].count > 40));
    if (c.ms > 0) /* never what it was: adopt.lua sees that an end has moved, in Redis by the time that passed */
        c.ms += 20 * (int64_t)++d->natives;
    if (chance(d, 10)) {
        model_native(&d->m, key, &(struct model_command){.op = OP_DEL});
        model_native(&d->m, key, &(struct model_command){.op = OP_RPUSH, .value = "x"});
        printf("list\t%d\n", key);
        return;
    }
    printf("native\t%d\t", key);
    print_command(&c);
    struct model_reply r = model_native(&d->m, key, &c);
    printf("\t|\t");
    print_reply(&r);
    printf("\n");
}

/* Sends acquire.lua behind a batch. `fence`: what follows `late`; 0: nothing. */
static void call_late(struct dump *d, int key, struct model_args *a, const char *late, uint64_t fence) {
    char with_fence[24];
    snprintf(with_fence, sizeof(with_fence), "%c%" PRIu64, *late, fence);
    a->late = fence ? with_fence : late;
    printf("script\tacquire\t%d\t%s\t=\t%s\t%s\t%s\t%" PRId64 "\t0\t=\t3\t%s\t", key, a->attempt, a->identity, a->proxy,
           late, a->lease_ms, model_shape(&a->command));
    print_command(&a->command);
    struct model_envelope e = model_script(&d->m, key, a);
    print_envelope(&e);
}

static void call_batch(struct dump *d, int key) {
    struct model_args a;
    draw_args(d, key, &a);
    d->repeatable[key] = false;
    a.command = (struct model_command){.op = chance(d, 50) ? OP_SETNX : OP_SET_NX};
    snprintf(a.command.value, sizeof(a.command.value), "%s", some_value(d));
    a.claim = "";
    a.right = "claim";
    a.seen = NULL;
    a.data_free = a.pass = false;
    /* Never what it was: what ends when tells whose it is. */
    int64_t ms = LONG_MS + 100000 * (int64_t)below(d, 4) + 20 * (int64_t)++d->natives;
    if (a.command.op == OP_SET_NX && chance(d, 70))
        a.command.ms = ms;
    else
        a.lease_ms = ms;
    uint64_t least = model_clock_us(&d->m), mark = (uint64_t)d->m.watermarks[key];
    bool equal = mark && chance(d, 25);
    const struct model_guard *g = &d->m.keys[key].guard;
    least = g->fence > least ? g->fence : least;
    struct model_batch b = {.attempt = a.attempt,
                            .value = a.command.value,
                            .identity = a.identity,
                            .fence = equal ? mark : (mark > least ? mark : least) + 1,
                            .ms = ms,
                            .leased = !a.command.ms};
    struct model_batch_answer r = model_run_batch(&d->m, key, &b);
    if (!equal)
        model_clock_past(&d->m, b.fence);
    printf("batch\t%d\t%s\t%s\t=%s\t%" PRIu64 "\t%" PRId64 "\t%d\t%s\t|\t%d\t%s\t%d\n", key, b.attempt, b.identity,
           b.value, b.fence, b.ms, b.leased, equal ? "equal" : "above", r.raised,
           !r.refused     ? "nil"
           : r.found_text ? "text"
                          : "error",
           r.set);
    bool over = (r.raised && !r.refused && r.set) || (r.found_text && !r.set);
    if (chance(d, over ? 20 : 85)) { /* sent twice; or it came to nothing */
        const char *late = over ? "+" : !r.set ? "-" : r.raised ? "!" : "!none";
        call_late(d, key, &a, late, over || late[1] ? 0 : b.fence);
    }
}

static void call_free(struct dump *d, int key) {
    const struct model_guard *g = model_live(&d->m, key);
    char claim[MODEL_TOKEN];
    snprintf(claim, sizeof(claim), "%s", g && chance(d, 70) ? g->token : d->recent[below(d, ATTEMPTS)]);
    printf("free\t%d\t=%s\t|\t%s\n", key, claim, model_run_free(&d->m, key, claim) ? "1" : "0");
}

static void drop(struct dump *d, int key) {
    bool guard = chance(d, 30);
    if (guard)
        model_guard_clear(&d->m, key);
    else
        model_native(&d->m, key, &(struct model_command){.op = OP_DEL});
    printf("drop\t%d\t%s\n", key, guard ? "guard" : "lock");
}

/* A lock without its guard record. */
struct content {
    bool exists, list;
    int64_t expire_ms;
    struct model_fields fields;
    char value[MODEL_VALUE], nodes[QUEUE_NODES][QUEUE_NODE];
};

static struct content content_of(const struct dump *d, int key) {
    const struct model_key *k = &d->m.keys[key];
    const struct model_queue *q = &d->m.queues[key];
    struct content c;
    memset(&c, 0, sizeof(c));
    if (!k->exists)
        return c;
    c.exists = true;
    c.list = k->list;
    c.fields = k->fields;
    c.expire_ms = k->expire_ms;
    snprintf(c.value, sizeof(c.value), "%s", k->list || k->hash ? "" : k->value);
    for (unsigned i = 0; k->list && i < q->count; i++)
        snprintf(c.nodes[i], QUEUE_NODE, "%s", q->nodes[i]);
    return c;
}

/* ---- a witness ----------------------------------------------------------------------------------- */

static void field_print(struct dump *d, int key, const char *name) {
    const struct record_text *t = record_get(&d->witness.records[key], name, strlen(name));
    printf("\t=%s", t ? t->data : "");
}

static void witness_script(struct dump *d, int key, enum script_id id, const char *const *words, size_t count) {
    struct model *m = &d->witness;
    printf("witness\t%d\t%s", key, script_get(id)->name);
    interpreter_begin_witness(m, key);
    for (size_t i = 0; i < count; i++) {
        interpreter_text(words[i]);
        printf("\t=%s", words[i]);
    }
    lua_State *L = interpreter_run(id);
    if (lua_type(L, -1) == LUA_TNUMBER)
        printf("\t|\tint:%d", (int)lua_tonumber(L, -1));
    else
        printf("\t|\ttext:%s", lua_tostring(L, -1));
    model_guard_read(m, key);
    field_print(d, key, "token");
    field_print(d, key, "fence");
    const struct model_guard *g = &m->keys[key].guard;
    printf("\t%" PRId64 "\n", !g->exists ? -2 : !g->expire_ms ? -1 : g->expire_ms - m->now_ms);
}

static void witness_restart(struct dump *d, int key) {
    bool forgets = chance(d, 50);
    printf("restart\t%d\t%d\n", key, forgets);
    for (int i = 0; forgets && i < MODEL_KEYS; i++)
        model_guard_clear(&d->witness, i);
    d->witness.run++;
}

/* Tokens are few, so that the record's own is often among them. */
static void call_witness(struct dump *d, int key) {
    static const char *const TOKENS[] = {"", "a:1", "a:2", "b:3"}, *const OVERS[] = {"", "a:1", "=a:1", "a:2", "=b:3"},
                             *const FENCES[] = {"1000", "1001", "1002", "999"},
                             *const PROMISES[] = {"600000", "900000"}, *const QUARANTINES[] = {"0", "0", "600000"};
    unsigned what = below(d, 100);
    const char *words[] = {TOKENS[below(d, 4)],   FENCES[below(d, 4)],      OVERS[below(d, 5)],
                           PROMISES[below(d, 2)], QUARANTINES[below(d, 3)], "a-namespace"};
    struct model_guard *g = &d->witness.keys[key].guard;
    if (what < 5) {
        witness_restart(d, key);
    } else if (what < 15 && g->exists) {
        g->expire_ms = d->witness.now_ms + GUARD_OUTLIVES_MS - 1000;
        printf("lapse\t%d\n", key);
    } else if (what < 25) {
        witness_script(d, key, SCRIPT_WITNESS_FREE, words, 2);
    } else if (what < 30) {
        witness_script(d, MODEL_MARK, SCRIPT_WITNESS_TRUST, NULL, 0);
    } else {
        witness_script(d, key, SCRIPT_WITNESS_TAKE, words, 6);
    }
}

int main(int argc, char **argv) {
    static struct dump d;
    long calls = 2000;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            d.random = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--calls") == 0)
            calls = atol(argv[i + 1]);
        else if (strcmp(argv[i], "--newest") == 0)
            d.newest = true;
    }
    d.m.now_ms = d.witness.now_ms = 1000000;
    for (long i = 0; i < calls; i++) {
        int key = (int)below(&d, USUAL_KEYS);
        unsigned what = below(&d, 100);
        if (chance(&d, 15)) {
            call_witness(&d, key);
            continue;
        }
        struct content before = content_of(&d, key);
        if (what < 54)
            call_script(&d, key);
        else if (what < 65)
            call_batch(&d, key);
        else if (what < 70)
            call_free(&d, key);
        else if (what < 78 && may_adopt(&d, key))
            call_adopt(&d, key);
        else if (what < 86)
            call_renew(&d, key);
        else if (what < 88)
            call_leave(&d, key);
        else if (what < 95)
            call_native(&d, key);
        else
            drop(&d, key);
        struct content after = content_of(&d, key);
        printf("touched\t%d\t%d\n", key, memcmp(&before, &after, sizeof(before)) != 0);
        print_state(&d, key);
    }
    return 0;
}
