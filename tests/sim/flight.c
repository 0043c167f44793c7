/*
 * Commands under way: begun in an engine, run in the model, answered, lost, repeated, late.
 */
#include "tests/sim/call.h"
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { FENCE_TEXT = 24 };

/* ---- their places ------------------------------------------------------------------------------ */

void flight_log(struct world *w, const struct flight *f, const char *what) {
    if (!w->log)
        return;
    char text[96];
    if (f->kind == FLIGHT_RENEWAL)
        snprintf(text, sizeof(text), "renewal of %s", f->token_text + 36);
    else if (f->kind == FLIGHT_LEAVE)
        snprintf(text, sizeof(text), "%s leaves", f->token_text);
    else
        command_text(&f->command, text, sizeof(text));
    const char *by = f->kind == FLIGHT_OPERATOR ? "operator" : f->kind == FLIGHT_COMMAND ? "worker" : "proxy";
    world_event(w, "%s %d, session %" PRIu64 ", key %d: %s (attempt %s claim %s %s) %s%s", by, f->worker, f->session_id,
                f->key, text, f->plan.attempt_token[0] ? f->plan.attempt_token + 36 : "",
                f->plan.claim ? f->plan.claim_token + 36 : "-", lock_right_text(f->plan.right), what,
                f->ran ? world_outcome(f->envelope.outcome) : "");
}

struct flight *flight_new(struct world *w, enum flight_kind kind) {
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flights[i];
        if (f->used)
            continue;
        memset(f, 0, offsetof(struct flight, plan));
        f->plan.attempt_token[0] = f->plan.claim_token[0] = '\0';
        f->plan.claim = 0;
        f->plan.right = RIGHT_CLAIM;
        f->used = true;
        f->kind = kind;
        f->worker = f->conn = -1;
        f->token_text[0] = '\0';
        f->rules = NULL;
        f->observed = false;
        return f;
    }
    return NULL;
}

void flight_free(struct flight *f) {
    f->used = f->held = false;
    if (f->rules)
        lock_rules_unref(f->rules);
    f->rules = NULL;
}

unsigned flight_places(const struct world *w) {
    unsigned n = 0;
    for (size_t i = 0; i < FLIGHTS; i++)
        n += !w->flights[i].used;
    return n;
}

/* ---- scripts ------------------------------------------------------------------------------------ */

/* Runs a script of the application's, which is never sent again; adopt.lua is sent right behind it, and where they are
 * no transaction others may come between. */
static void application_script(struct world *w, struct flight *f, const struct model_key *before) {
    f->envelope = (struct model_envelope){.reply = model_native(&w->redis, f->key, &f->command), .outcome = LOCK_DONE};
    f->scripted = w->stirred[f->key] = true;
    f->ends_ms = before->expire_ms;
    flight_log(w, f, "ran by itself");
    check_script(w, f, before);
}

void flight_run(struct world *w, struct flight *f) {
    struct model_key before;
    f->ran_ms = f->ran || f->sets ? f->ran_ms : w->redis.now_ms;
    model_expire(&w->redis, f->key);
    check_passed(w, f->key, BY_TIME);
    before = w->redis.keys[f->key];
    static struct model_queue queue;
    if (w->sc.queue)
        queue = w->redis.queues[f->key];
    if (f->kind == FLIGHT_LEAVE) {
        bool waits = w->sc.rule.on_disconnect == LOCK_DISCONNECT_KEEP;
        model_queue_leave(&w->redis, f->key, f->token_text, lock_right_text(f->plan.right), waits, w->sc.rule.lease_ms);
        f->envelope = (struct model_envelope){.outcome = LOCK_DONE};
        f->ran = true;
        check_list_script(w, f, &queue);
        flight_log(w, f, "ran: ");
        return;
    }
    if (f->kind == FLIGHT_RENEWAL) {
        f->envelope = model_renew(&w->redis, f->key, f->token_text, f->right, f->lease_ms, f->left_ms);
        f->ran = true;
        if (w->waits)
            waits_ran(w, f);
        check_renewed(w, f, &before, &queue);
        flight_log(w, f, "ran: ");
        return;
    }
    if (f->bare) {
        const struct model_guard *g = model_live(&w->redis, f->key);
        f->envelope =
            (struct model_envelope){.reply = model_native(&w->redis, f->key, &f->command), .fence = g ? g->fence : 0};
        f->ran = true;
        flight_log(w, f, "ran as it is: ");
        return;
    }
    if (f->observed) {
        watched_run(w, f);
        return;
    }
    char seen[LOCK_SEEN_MAX + 1], process[PROXY_ID];
    proxy_id(f->proxy, f->proxy_life, process); /* a script that runs after a restart names the process that sent it */
    struct model_args a = call_args(&f->plan, &f->command, f->identity, process, w->sc.rule.lease_ms, seen);
    if (f->kind == FLIGHT_RELEASE) { /* its plan was not begun */
        const struct model_guard *g = w->sc.queue ? model_queue_live(&w->redis, f->key) : NULL;
        bool newest = g && strcmp(g->token, f->token_text) == 0;
        f->seated = g && (newest || model_queue_seated(&w->redis, f->key, f->token_text));
        a.seen = NULL;
        a.claim_fence = 0;
        a.data_free = false;
    }
    char late[FENCE_TEXT] = {f->late};
    if (f->late == '-' || (f->late == '!' && f->raises))
        snprintf(late, sizeof(late), "%c%" PRIu64, f->late, f->short_fence);
    if (f->late)
        a.late = late;
    if (f->way != WAY_SCRIPT) {
        short_run(w, f, &before);
        return;
    }
    if (w->waits)
        waits_args(w, f, &a);
    if (f->plan.verb == LOCK_SCRIPT && !f->scripted) {
        f->found_free = !before.exists;
        if (f->together)
            model_before(&w->redis, f->key, f->plan.attempt_token);
        application_script(w, f, &before);
        if (!f->together)
            return;
        a.together = true;
        before = w->redis.keys[f->key];
    }
    struct model_reply reply = f->envelope.reply;
    bool freed = check_was_freed(w, f);
    f->envelope = model_script(&w->redis, f->key, &a);
    if (!w->sc.queue)
        check_repeat(w, f, freed);
    if (f->plan.verb == LOCK_SCRIPT) {
        f->named = f->envelope.outcome == LOCK_HELD && f->envelope.reply.kind == REPLY_TEXT;
        f->envelope.reply = reply; /* the step's own reply is dropped */
    }
    f->ran = true;
    if (f->plan.verb == LOCK_SCRIPT)
        w->stirred[f->key] = false;
    flight_log(w, f, "ran: ");
    if (w->waits)
        waits_ran(w, f);
    if (w->sc.queue)
        check_list_script(w, f, &queue);
    else
        check_script(w, f, &before);
}

static void result_of(const struct flight *f, struct lock_result *r) {
    *r = call_result(f->plan.verb, &f->command, &f->envelope);
    if (f->named) {
        r->value = f->command.value;
        r->value_len = strlen(r->value);
    }
}

static void finish_with(struct world *w, struct flight *f, const struct lock_result *r) {
    struct proxy *p = &w->proxies[f->proxy];
    struct conn *c = f->conn >= 0 ? &w->conns[f->conn] : NULL;
    bool open = c && c->open && c->id == f->session_id;
    char text[8] = "COMMAND";
    engine_finish(p->engine, f->session_id, &f->plan, r, text, "10.0.0.1:1234", w->redis.now_ms);
    if (w->waits)
        waits_learnt(w, f, r);
    if (open)
        c->busy -= c->busy > 0;
}

/* What the script does not know, and the proxy does, makes an error of an answer. */
static void answer_swap(const struct world *w, struct flight *f, const struct lock_result *r) {
    bool is_refused = r->outcome == LOCK_HELD || r->outcome == LOCK_FOREIGN;
    if (f->plan.verb == LOCK_SWAP && is_refused && r->shown &&
        engine_swap_misleads(w->proxies[f->proxy].engine, f->session_id, &f->plan, r->shown, r->shown_len))
        f->envelope.reply = (struct model_reply){.kind = REPLY_ERROR};
}

/* The proxy has watched the answer to a read that it did not rewrite. */
static void saw(struct world *w, struct flight *f) {
    struct conn *c = &w->conns[f->conn];
    const struct model_reply *r = &f->envelope.reply;
    struct lock_key key = world_key(f->key);
    bool text = r->kind == REPLY_TEXT;
    if (c->open && c->id == f->session_id) {
        c->busy -= c->busy > 0;
        engine_saw(w->proxies[f->proxy].engine, &c->session, &key, f->plan.rule, text ? r->text : NULL,
                   text ? strlen(r->text) : 0, w->redis.now_ms);
        reading_shown(w, f, 0);
        check_shown(w, c->process, f->key, f->envelope.fence);
    }
    if (!f->orphan)
        worker_answer(w, f->worker, f, false);
}

/* A release by script is not known for one where it came too late, nor where others came before adopt.lua, and the
 * lease would be over by now or is any colleague's to release. */
static void note_unheard(struct world *w, const struct flight *f) {
    bool over = f->may_be_pooled || (f->ends_ms && w->redis.now_ms >= f->ends_ms);
    bool late = f->envelope.reply.number == 0 || (f->envelope.outcome != LOCK_RELEASED && over);
    if (f->command.op == OP_LUA_DEL && f->releases && late)
        w->ended_unreleased[w->workers[f->worker].process][f->key]++;
}

/* Has the answer arrive. */
static void flight_answer(struct world *w, struct flight *f) {
    struct proxy *p = &w->proxies[f->proxy];
    if (w->waits && f->kind == FLIGHT_RELEASE && f->proxy_life == p->life) {
        struct lock_result released;
        result_of(f, &released);
        waits_learnt(w, f, &released);
    }
    if (f->kind == FLIGHT_RELEASE || f->kind == FLIGHT_LEAVE || f->proxy_life != p->life)
        return;
    if (w->redis.now_ms - f->ran_ms > w->slack_ms[f->key])
        w->slack_ms[f->key] = w->redis.now_ms - f->ran_ms;
    bool refused =
        f->envelope.outcome == LOCK_HELD && f->plan.verb == LOCK_ACQUIRE; /* also if no other attempt waits */
    bool tells = f->envelope.pttl_ms >= -1 && f->envelope.outcome != LOCK_COUNTED && !refused;
    if (!f->bare && tells && f->envelope.fence == w->truth[f->key].fence) {
        check_told(w, f);
        w->exact[f->key] = !f->crossed;
        /* Before the acquisition's own answer there is no session to notify. */
        bool first = f->envelope.outcome == LOCK_GRANTED;
        w->missed[f->key] = f->crossed && (w->missed[f->key] || (!first && !w->truth[f->key].told));
    }
    if (f->kind == FLIGHT_RENEWAL) {
        struct lock_key key = world_key(f->key);
        struct lock_result r;
        result_of(f, &r);
        engine_renewed(p->engine, &key, f->token, &r, w->redis.now_ms);
        return;
    }
    if (f->bare) {
        saw(w, f);
        return;
    }
    if (f->observed) {
        watched_answer(w, f);
        return;
    }
    struct lock_result r;
    result_of(f, &r);
    answer_swap(w, f, &r);
    flight_log(w, f, "answered: ");
    w->heard_ms[f->session_id % SESSIONS_KNOWN] = w->redis.now_ms;
    finish_with(w, f, &r);
    reading_attempted(w, f);
    struct truth *t = &w->truth[f->key];
    if (r.outcome == LOCK_GRANTED && t->live && t->fence == r.fence) {
        t->told = true;
        t->told_ms = w->redis.now_ms;
        t->told_step = w->step;
    }
    note_unheard(w, f);
    struct conn *c = &w->conns[f->conn];
    if (f->plan.verb == LOCK_READ && c->open && c->id == f->session_id) {
        reading_shown(w, f, r.outcome == LOCK_HELD ? r.fence : 0);
        check_shown(w, c->process, f->key, c->read[f->key].fence);
    }
    if (!f->orphan && f->kind == FLIGHT_COMMAND)
        worker_answer(w, f->worker, f, false);
}

/* The engine wants the attempt sent once more, so as to release the lease in its way with it. */
static bool goes_again(struct world *w, struct flight *f) {
    struct lock_result r;
    const struct conn *c = f->conn >= 0 ? &w->conns[f->conn] : NULL;
    bool release = f->plan.verb == LOCK_RELEASE && !model_compares(&f->command);
    bool set = f->command.op == OP_SETNX || f->command.op == OP_SET_NX || release;
    bool open = c && c->open && c->id == f->session_id && f->proxy_life == w->proxies[f->proxy].life;
    if (!set || !open || f->kind != FLIGHT_COMMAND || f->observed || f->envelope.outcome != LOCK_HELD)
        return false;
    result_of(f, &r);
    if (!engine_again(w->proxies[f->proxy].engine, &f->plan, &r, w->redis.now_ms))
        return false;
    flight_log(w, f, "goes again: ");
    f->ran = false;
    f->way = WAY_SCRIPT;
    f->late = '\0';
    if (w->waits)
        waits_again(w, f);
    return true;
}

void flight_deliver(struct world *w, struct flight *f) {
    if (short_goes_on(w, f))
        return;
    short_settle(w, f);
    if (!goes_again(w, f) && !(w->waits && waits_delivered(w, f)))
        flight_end(w, f);
}

void flight_end(struct world *w, struct flight *f) {
    flight_answer(w, f);
    flight_free(f);
}

void flight_fail(struct world *w, struct flight *f, enum lock_outcome outcome) {
    if (w->waits && waits_failed(w, f, outcome))
        return;
    struct proxy *p = &w->proxies[f->proxy];
    bool may_run = outcome == LOCK_UNKNOWN && !f->ran;
    f->unsent = outcome == LOCK_NOT_SENT;
    if (f->kind == FLIGHT_COMMAND && !f->unsent && !f->bare && w->workers[f->worker].process >= 0)
        w->unsure[w->workers[f->worker].process][f->key] = true;
    worker_left_unsent(w, f);
    world_event(w, "flight of worker %d on key %d: %s", f->worker, f->key, world_outcome(outcome));
    if (f->kind == FLIGHT_RENEWAL && outcome == LOCK_UNKNOWN && f->ran)
        check_renewal_lost(w, f);
    if (f->proxy_life == p->life && f->kind == FLIGHT_RENEWAL) {
        struct lock_key key = world_key(f->key);
        struct lock_result r = {.outcome = outcome};
        engine_renewed(p->engine, &key, f->token, &r, w->redis.now_ms);
    } else if (f->bare) {
        struct conn *c = &w->conns[f->conn];
        if (c->open && c->id == f->session_id)
            c->busy -= c->busy > 0;
        if (!f->orphan)
            worker_answer(w, f->worker, f, true);
    } else if (f->observed) {
        watched_lost(w, f, outcome);
    } else if (f->proxy_life == p->life && (f->kind == FLIGHT_COMMAND || f->kind == FLIGHT_OPERATOR)) {
        struct lock_result r = {.outcome = outcome};
        enum lock_verb verb = f->plan.verb;
        if (call_writes(verb) || verb == LOCK_SWAP || verb == LOCK_QUEUE_PUSH) {
            r.value = f->command.value;
            r.value_len = strlen(r.value);
        }
        finish_with(w, f, &r);
        if (!f->orphan && f->kind == FLIGHT_COMMAND)
            worker_answer(w, f->worker, f, true);
    }
    if (w->waits && f->kind == FLIGHT_RELEASE && f->proxy_life == p->life)
        waits_learnt(w, f, &(struct lock_result){.outcome = outcome});
    f->orphan = f->ghost = true;
    if (!may_run)
        flight_free(f);
}

/* On a connection commands run in the order in which they were sent, and so are they answered. */
static struct flight *first_on_connection(struct world *w, struct flight *f) {
    struct flight *first = f;
    for (size_t i = 0; w->sc.pipelines && f->kind == FLIGHT_COMMAND && i < FLIGHTS; i++) {
        struct flight *o = &w->flights[i];
        if (o->used && o->kind == FLIGHT_COMMAND && o->session_id == f->session_id && o->ran == f->ran &&
            o->order < first->order)
            first = o;
    }
    return first;
}

static bool waits_in_vain(struct world *w, const struct flight *f) {
    struct lock_key key = world_key(f->key);
    return f->waits && !engine_wants_renewal(w->proxies[f->proxy].engine, &key, f->token);
}

void flight_progress(struct world *w, struct flight *f) {
    if (f->transaction) {
        transaction_progress(w, f->transaction);
        return;
    }
    f = w->waits ? waits_first(w, f) : first_on_connection(w, f);
    bool gone = f->ghost || f->proxy_life != w->proxies[f->proxy].life;
    if (gone) {
        if (!f->ran && world_chance(w, 50))
            flight_run(w, f);
        flight_free(f);
    } else if (!f->ran) {
        if (f->observed && w->sc.audit_exact) { /* replies come in the order in which Redis ran the commands */
            flight_run(w, f);
            flight_deliver(w, f);
        } else if (waits_in_vain(w, f))
            flight_fail(w, f, LOCK_NOT_SENT);
        else if (w->sc.loses && !f->scripted && !f->late && !f->freed_twice && world_chance(w, 3))
            flight_fail(w, f, LOCK_NOT_SENT);
        else if (w->sc.loses && world_chance(w, 3))
            flight_fail(w, f, LOCK_UNKNOWN);
        else
            flight_run(w, f);
    } else if (w->sc.loses && f->kind != FLIGHT_RENEWAL && !f->observed && !f->bare && world_chance(w, 5)) {
        f->repeated = true; /* the answer got lost, the same attempt is sent again */
        f->twice = f->twice || f->way != WAY_SCRIPT;
        flight_run(w, f);
    } else if (w->sc.loses && world_chance(w, 3)) {
        flight_fail(w, f, LOCK_UNKNOWN);
    } else if (!f->slow || world_chance(w, 4)) {
        flight_deliver(w, f);
    }
}

struct flight *flight_any(struct world *w) {
    unsigned start = world_below(w, FLIGHTS);
    for (unsigned i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flights[(start + i) % FLIGHTS];
        if (f->used && !f->held)
            return f;
    }
    return NULL;
}

/* ---- sending ------------------------------------------------------------------------------------ */

static int conn_for(struct world *w, int worker) {
    const struct app_worker *k = &w->workers[worker];
    if (k->transaction)
        return k->transaction->conn;
    unsigned start = world_below(w, CONNS);
    for (unsigned n = 0; n < CONNS; n++) {
        int i = (int)((start + n) % CONNS);
        struct conn *c = &w->conns[i];
        if (c->process != k->process || (c->worker >= 0 && c->worker != worker) || c->id == UINT64_MAX)
            continue;
        if (!c->open)
            conn_open(w, i);
        if (c->busy < (w->sc.pipelines ? PIPELINE : 1) && !c->reserved)
            return i;
    }
    return -1;
}

/* Notes a command that crosses another: neither knows which was first in Redis. */
void flight_crosses(struct world *w, struct flight *f) {
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *o = &w->flights[i];
        bool beside = !f->transaction || o->transaction != f->transaction;
        if (o->used && o != f && o->key == f->key && beside)
            o->crossed = f->crossed = true;
    }
}

void flight_launch(struct world *w, struct flight *f, int conn, int key) {
    struct conn *c = &w->conns[conn];
    struct lock_key name = world_key(key);
    if (w->waits)
        waits_speak(w, conn);
    f->conn = conn;
    f->key = key;
    f->proxy = c->proxy;
    f->proxy_life = w->proxies[c->proxy].life;
    f->session_id = c->id;
    f->order = ++w->sent;
    f->begun_step = w->step;
    reading_note(w, f);
    flight_crosses(w, f);
    f->name = world_name(w, conn);
    f->left = w->left[c->proxy][f->name];
    world_identity(f->name, f->identity);
    enum lock_verb verb = f->kind == FLIGHT_OPERATOR ? LOCK_OPERATOR : model_verb(&f->command);
    f->rules = lock_rules_ref(w->rules);
    if (f->bare) {
        f->plan.rule = w->rule;
        f->plan.verb = LOCK_READ;
    } else if (w->rule->mode == LOCK_MODE_AUDIT)
        watched_launch(w, f, verb);
    else {
        if (model_names_value(&f->command)) {
            c->session.named = f->command.value;
            c->session.named_len = strlen(f->command.value);
        }
        engine_begin(w->proxies[c->proxy].engine, &c->session, verb, &name, w->rule, 7, f->transaction, w->redis.now_ms,
                     &f->plan);
    }
    if (!f->bare && w->rule->mode != LOCK_MODE_AUDIT && lock_verb_is(verb, VERB_SAYS) && f->command.op != OP_INCRBY)
        engine_says(w->proxies[c->proxy].engine, &f->plan, f->command.value, strlen(f->command.value),
                    f->command.op == OP_HINCRBY, w->redis.now_ms);
    c->busy++;
    /* Redis refuses few transactions; where it does, a value that is no argument tells nothing. */
    f->together = verb == LOCK_SCRIPT && (f->transaction || f->command.composed || world_chance(w, 80));
    short_launched(w, f);
    flight_log(w, f, "sent");
    if (w->waits)
        waits_launched(w, f);
}

/* Whether the worker had something to send. */
static bool send_one(struct world *w, int worker) {
    struct app_worker *k = &w->workers[worker];
    struct model_command c;
    bool releases;
    if (k->busy || w->redis.now_ms < k->pause_ms || flight_places(w) < FLIGHTS / 3)
        return false;
    if (!k->alive) {
        if (world_chance(w, w->sc.rebirth))
            worker_start_again(w, worker);
        return false;
    }
    if (transaction_goes_on(w, worker))
        return true;
    int conn = conn_for(w, worker);
    if (conn >= 0 && w->fences && fences_write(w, worker, conn))
        return true;
    if (conn < 0 || !worker_command(w, worker, &c, &releases))
        return false;
    if (transaction_begins(w, worker, conn, &c, releases))
        return true;
    struct flight *f = flight_new(w, FLIGHT_COMMAND);
    f->worker = worker;
    f->command = c;
    f->releases = releases;
    f->own_fence = k->fence;
    f->bare = c.op == OP_GET && k->process >= 0 && world_chance(w, 25);
    f->again = releases && k->again && k->again == w->conns[conn].id;
    f->slow = w->sc.slow && world_chance(w, 10);
    flight_launch(w, f, conn, k->key);
    worker_sent(w, worker, &c, releases);
    return true;
}

bool flight_somebody_sends(struct world *w) {
    for (int tries = 0; tries < 8; tries++) {
        int process = (int)world_below(w, w->sc.processes), place = (int)world_below(w, w->sc.workers);
        bool stranger = w->sc.stranger && world_chance(w, 6);
        if (send_one(w, stranger ? (int)STRANGER : process * WORKERS_EACH + place))
            return true;
    }
    return false;
}
