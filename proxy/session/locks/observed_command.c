/*
 * Commands that pass unchanged: under `mode audit`, and for PROXY ADVISE. This file notes the command, reads its reply,
 * and tells the engine and the advisor what it has seen.
 *
 * It sends nothing of its own, and changes no byte. Replies are collected whole, as the replies of lock scripts are.
 * The replies to lock commands are short.
 */
#include <string.h>
#include <strings.h>

#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/lock/audit.h"
#include "proxy/session/locks/private.h"

enum { KEYS_MAX = 256, COMMAND_NAME_MAX = 24 };

struct audit_key {
    struct lock_sight sight;      /* key.name points into the note's texts */
    const struct lock_rule *rule; /* the key's rule; sight.rule is NULL if the key is not audited */
    size_t order;                 /* its index among all keys of the command */
};

struct audit_note {
    struct request_owner owner; /* must be the first field */
    const struct command *command;
    struct lock_rules *rules; /* a reference that keeps the rules of the sights alive */
    struct text texts;        /* keys and values; the sights point into it once it is complete */
    size_t key_count;         /* how many keys the command has */
    size_t count;
    struct advise_text script; /* of a script without an audited rule: what its text does */
    int64_t script_pttl_ms;    /* the expiry that the script sets; INT64_MAX: not known */
    bool watched;              /* the command is in a transaction behind WATCH */
    bool expects_ok;           /* SET NX answers OK if it has acquired; with GET it answers nil */
    bool conditional;          /* PERSIST, or EXPIRE with an option: 0 does not show that the key is missing */
    char name[COMMAND_NAME_MAX];
    char who[SESSION_ADDRESS_MAX + 72];
    struct audit_key keys[];
};

/* ---- expiries ---------------------------------------------------------------------------------- */

static bool number_at(const struct resp_request *r, const char *bytes, size_t i, int64_t *n) {
    size_t len;
    const char *text = i < r->argc ? request_arg(r, bytes, i, &len) : NULL;
    return text && resp_integer(text, len, n);
}

/* Converts an expiry to ms from now. `seconds`: n is in seconds. `absolute`: n counts from 1970. */
static int64_t expiry_ms(int64_t n, bool seconds, bool absolute, int64_t now_ms) {
    if (n > INT64_MAX / 2000 || n < -(INT64_MAX / 2000))
        return n < 0 ? PTTL_GONE : INT64_MAX / 4;
    int64_t ms = (seconds ? n * 1000 : n) - (absolute ? now_ms : 0);
    return ms > 0 ? ms : PTTL_GONE;
}

/* Returns the expiry that the options of SET or GETEX set, from argument `i` on. */
static int64_t expiry_of_options(const struct resp_request *r, const char *bytes, size_t i, int64_t fallback,
                                 int64_t now_ms) {
    for (; i < r->argc; i++) {
        bool seconds = request_arg_is(r, bytes, i, "ex") || request_arg_is(r, bytes, i, "exat");
        bool absolute = request_arg_is(r, bytes, i, "exat") || request_arg_is(r, bytes, i, "pxat");
        int64_t n;
        if (request_arg_is(r, bytes, i, "keepttl"))
            return PTTL_UNKNOWN;
        if (request_arg_is(r, bytes, i, "persist"))
            return PTTL_NONE;
        if ((seconds || absolute || request_arg_is(r, bytes, i, "px")) && number_at(r, bytes, i + 1, &n))
            return expiry_ms(n, seconds, absolute, now_ms);
    }
    return fallback;
}

static int64_t expiry_of(const struct command *c, const struct resp_request *r, const char *bytes, int64_t now_ms) {
    enum lock_row_expiry how = lock_row_of(c)->expiry;
    int64_t n;
    switch (how) {
    case EXPIRY_KEPT:
        break;
    case EXPIRY_NONE:
        return PTTL_NONE;
    case EXPIRY_SET:
        return expiry_of_options(r, bytes, 3, PTTL_NONE, now_ms);
    case EXPIRY_GETEX:
        return expiry_of_options(r, bytes, 2, PTTL_UNKNOWN, now_ms);
    case EXPIRY_SECONDS:
    case EXPIRY_MILLISECONDS:
    case EXPIRY_AT_SECONDS:
    case EXPIRY_AT_MILLISECONDS:
        if (number_at(r, bytes, 2, &n))
            return expiry_ms(n, how == EXPIRY_SECONDS || how == EXPIRY_AT_SECONDS,
                             how == EXPIRY_AT_SECONDS || how == EXPIRY_AT_MILLISECONDS, now_ms);
    }
    return PTTL_UNKNOWN;
}

/* ---- noting a command ---------------------------------------------------------------------------- */

/* Returns what an enforced rule would answer if it refused. */
static const char *refusal_of(const struct lock_command *lc) {
    if (lock_verb_is(lc->verb, VERB_LOCKED))
        return "LOCKED";
    return lc->verb == LOCK_SWAP ? "the present value" : lc->shape == SHAPE_INT ? "0" : "nil";
}

/* By how much the command counts. 0: the reply cannot tell which session has the lock. */
static int64_t counts_by(const struct command *c, const struct resp_request *r, const char *bytes) {
    int64_t n;
    switch ((enum lock_row_count)lock_row_of(c)->counts) {
    case COUNTS_NOT:
        break;
    case COUNTS_ONE:
        return 1;
    case COUNTS_ARGUMENT:
        return number_at(r, bytes, 2, &n) && n != INT64_MIN ? (n < 0 ? -n : n) : 0;
    case COUNTS_BYTES:
        return (int64_t)r->argv[2].len;
    case COUNTS_ARGUMENTS:
        return (int64_t)r->argc - 2;
    }
    return 0;
}

/* Finds what the command means to one of its keys, whose rule has these kinds. Returns false if the command has no
 * meaning for a lock. */
static bool command_on_key(const struct request_class *k, uint32_t index, unsigned kinds, struct lock_command *lc,
                           enum lock_effect *effect) {
    const struct command *c = k->command;
    const struct resp_request *r = k->request;
    const char *bytes = k->bytes;
    uint32_t clobbered[KEYS_MAX];
    *effect = EFFECT_DONE;
    if (c->id == COMMAND_MGET) {
        *lc = (struct lock_command){.verb = LOCK_READ, .script = SCRIPT_READ};
        return true;
    }
    if (c->id == COMMAND_GETEX && r->argc == 2) {
        *lc = (struct lock_command){.verb = LOCK_READ, .script = SCRIPT_READ};
        return true;
    }
    if (index == 1 && lock_command_of(c, r, bytes, kinds, lc))
        return true;
    if (c->id == COMMAND_DEL || c->id == COMMAND_UNLINK) {
        *lc = lock_release_of_one;
        return true;
    }
    size_t n = lock_clobbers_kinds(c, kinds) ? lock_clobbered_keys(c, r, bytes, clobbered, KEYS_MAX) : 0;
    for (size_t i = 0; i < n && i < KEYS_MAX; i++)
        if (clobbered[i] == index) {
            *lc = (struct lock_command){.verb = LOCK_CLOBBER, .script = SCRIPT_CLOBBER, .shape = SHAPE_INT};
            return true;
        }
    *effect = EFFECT_SCRIPTED;
    *lc = (struct lock_command){.verb = LOCK_SCRIPT, .script = SCRIPT_INSPECT};
    return script_is(c);
}

/* Returns what the command does to a queue. Sets *place to the position that LSET names. */
static enum lock_queue_sight queue_of(const struct command *c, const struct resp_request *r, const char *bytes,
                                      int64_t *place) {
    enum lock_queue_sight queue = lock_row_of(c)->queue;
    int64_t first;
    *place = -1;
    if (queue == QUEUE_SET)
        number_at(r, bytes, 2, place);
    if (queue == QUEUE_HEAD && !(number_at(r, bytes, 2, &first) && first == 0))
        return QUEUE_NONE;
    return queue;
}

/* Fills *sight with what the command says of its key, argument `index`. *sight points into the command. */
static void audit_begin(struct lock_sight *sight, const struct command *c, const struct resp_request *r,
                        const char *bytes, uint32_t index, const struct lock_command *lc, enum lock_effect effect,
                        int64_t now_ms) {
    *sight = (struct lock_sight){
        .verb = lc->verb,
        .effect = effect,
        .begun_ms = now_ms,
        .pttl_ms = expiry_of(c, r, bytes, now_ms),
        .by = counts_by(c, r, bytes),
        .refusal = refusal_of(lc),
    };
    sight->key.name = request_arg(r, bytes, index, &sight->key.len);
    sight->queue = queue_of(c, r, bytes, &sight->count);
}

static void key_note(struct session *s, struct audit_note *note, const struct lock_rule *rule,
                     const struct resp_request *r, const char *bytes, uint32_t index, const struct lock_command *lc,
                     enum lock_effect effect) {
    struct lock_sight *sight = &note->keys[note->count++].sight;
    audit_begin(sight, note->command, r, bytes, index, lc, effect, worker_now(s->worker));
    sight->key.db = session_db(s);
    sight->rule = rule;
    sight->session_id = s->lock.id;
    sight->login = s->lane.login;
    if (rule) { /* without a rule there are no incidents */
        sight->watched = engine_watch(s->worker->shared->engine, &s->lock, &sight->key);
        if (note->count == 1)
            session_who(s, note->who, sizeof(note->who));
    }
    text_append(&note->texts, sight->key.name, sight->key.len);
    if (lc->value_at) {
        sight->value = bytes; /* the value is known; texts_place sets the pointer */
        sight->value_len = r->argv[lc->value_at].len;
        text_append(&note->texts, bytes + r->argv[lc->value_at].off, sight->value_len);
    }
}

/* Points the sights into the texts, which no longer move. */
static void texts_place(struct audit_note *note) {
    const char *at = note->texts.data ? note->texts.data : "";
    for (size_t i = 0; i < note->count; i++) {
        struct lock_sight *sight = &note->keys[i].sight;
        sight->key.name = at;
        at += sight->key.len;
        if (!sight->value)
            continue;
        sight->value = at;
        at += sight->value_len;
    }
}

static struct audit_note *note_new(struct session *s, const struct command *c, const struct resp_request *r,
                                   const char *bytes, size_t room) {
    struct audit_note *note = memory_zalloc(sizeof(*note) + room * sizeof(note->keys[0]));
    size_t len;
    const char *name = request_arg(r, bytes, 0, &len);
    note->command = c;
    note->watched = s->watches;
    note->rules = lock_rules_ref(s->worker->rules);
    text_init(&note->texts);
    for (size_t i = 0; i < len && i < COMMAND_NAME_MAX - 1; i++)
        note->name[i] = name[i] >= 'a' && name[i] <= 'z' ? (char)(name[i] - 'a' + 'A') : name[i];
    note->conditional = audit_conditional(c, r->argc);
    return note;
}

/* Returns the argument index of a script's ARGV with this number, behind `keys` keys. 0: there is none. */
static uint32_t script_arg(const struct resp_request *r, uint8_t number, int64_t keys) {
    size_t at = number && number != ADVISE_LITERAL ? 2 + (size_t)keys + number : 0;
    return at < r->argc ? (uint32_t)at : 0;
}

static int64_t script_expiry(const struct resp_request *r, const char *bytes, const struct advise_text *text,
                             int64_t keys) {
    uint32_t at = script_arg(r, text->expiry, keys);
    int64_t n;
    if (text->endless)
        return PTTL_NONE;
    return at && number_at(r, bytes, at, &n) && n > 0 ? expiry_ms(n, text->seconds, false, 0) : INT64_MAX;
}

/* Notes a script whose text looks like lock code. The script is treated as the command that it stands for. */
static void script_note(struct session *s, struct audit_note *note, const struct command *c,
                        const struct resp_request *r, const char *bytes, struct lock_command *lc,
                        enum lock_effect *effect) {
    int64_t keys;
    note->script = advise_script_of(s, c, r, bytes);
    if (note->script.kind == ADVISE_SCRIPT_OTHER || !number_at(r, bytes, 2, &keys) || keys < 0 || keys > KEYS_MAX) {
        note->script.kind = ADVISE_SCRIPT_OTHER;
        return;
    }
    bool acquires = note->script.kind == ADVISE_SCRIPT_ACQUIRES || note->script.kind == ADVISE_SCRIPT_ENTERS;
    lc->verb = acquires ? LOCK_ACQUIRE : note->script.kind == ADVISE_SCRIPT_EXTENDS ? LOCK_REWRITE : LOCK_RELEASE;
    lc->value_at = acquires ? script_arg(r, note->script.value, keys) : 0;
    note->script_pttl_ms = script_expiry(r, bytes, &note->script, keys);
    *effect = EFFECT_DONE;
}

/* What a command means if no rule applies and only PROXY ADVISE needs it. MSETNX acquires all of its keys, and HDEL
 * releases. */
static void outside_command(const struct command *c, uint32_t index, struct lock_command *lc) {
    if (c->id == COMMAND_MSETNX)
        *lc = (struct lock_command){
            .verb = LOCK_ACQUIRE, .script = SCRIPT_ACQUIRE, .value_at = index + 1, .shape = SHAPE_INT};
    else if (c->id == COMMAND_HDEL)
        *lc = lock_release_of_one;
}

bool audit_reads(struct lock_sight *sight, const struct command *c, const struct resp_request *r, const char *bytes,
                 uint32_t index, int64_t now_ms) {
    struct request_class k = {.command = c, .request = r, .bytes = bytes};
    struct lock_command lc;
    enum lock_effect effect;
    if (script_is(c) || !command_on_key(&k, index, LOCK_KIND_ANY, &lc, &effect))
        return false;
    outside_command(c, index, &lc);
    audit_begin(sight, c, r, bytes, index, &lc, effect, now_ms);
    if (lc.value_at)
        sight->value = request_arg(r, bytes, lc.value_at, &sight->value_len);
    return true;
}

bool audit_conditional(const struct command *c, size_t argc) {
    return c->id == COMMAND_PERSIST || (argc > 3 && c->arity == -3 && c->id != COMMAND_SET);
}

struct audit_note *audit_note(struct session *s, const struct request_class *k, bool outside) {
    struct audit_note *note = NULL;
    const struct command *c = k->command;
    const struct resp_request *r = k->request;
    const char *bytes = k->bytes;
    session_note_overlap(s);
    for (size_t i = 0; i < k->key_count && (!note || note->count < KEYS_MAX); i++) {
        size_t room = k->key_count - i;
        uint32_t at = k->keys[i];
        const struct lock_rule *rule = class_rule(k, i);
        struct lock_command lc;
        enum lock_effect effect;
        bool audited = rule && rule->mode == LOCK_MODE_AUDIT && command_on_key(k, at, rule->kinds, &lc, &effect);
        if (!audited && (!outside || !command_on_key(k, at, LOCK_KIND_ANY, &lc, &effect)))
            continue;
        if (!note)
            note = note_new(s, c, r, bytes, room < KEYS_MAX ? room : KEYS_MAX);
        note->keys[note->count].order = i;
        note->expects_ok = lc.shape == SHAPE_OK;
        note->keys[note->count].rule = rule;
        if (!audited && script_is(c))
            script_note(s, note, c, r, bytes, &lc, &effect);
        else if (!audited)
            outside_command(c, at, &lc);
        key_note(s, note, audited ? rule : NULL, r, bytes, at, &lc, effect);
    }
    if (note) {
        note->key_count = k->key_count;
        texts_place(note);
    }
    return note;
}

/* ---- the reply ----------------------------------------------------------------------------------- */

static bool is_text(const struct resp_item *item) {
    return item->type == '$' && !item->null;
}

/* Reads the head of a queue. An empty array or nil: there is no list. */
static void sight_queue_read(struct lock_sight *sight, const struct resp_item *item) {
    if (sight->queue == QUEUE_HEAD && is_text(item)) {
        sight->value = item->str;
        sight->value_len = item->len;
    } else {
        sight->effect = EFFECT_ABSENT;
    }
}

/* Whether the reply of an acquiring script says that it has acquired. OK, a number above zero, or the value that the
 * script wrote says so. Exception: a script that answers how long the lock still lasts acquires with nil. */
static enum lock_effect script_acquired(const struct audit_note *note, const struct lock_sight *sight,
                                        const struct resp_item *item) {
    bool tells = note->script.kind == ADVISE_SCRIPT_ENTERS;
    if (item->null)
        return tells ? EFFECT_DONE : EFFECT_LOST;
    if (item->type == ':' || item->type == '#')
        return !tells && item->num > 0 ? EFFECT_DONE : EFFECT_LOST;
    if (item->type == '+')
        return EFFECT_DONE;
    if (item->type != '$' || !sight->value)
        return EFFECT_NOTHING;
    return item->len == sight->value_len && memcmp(item->str, sight->value, item->len) == 0 ? EFFECT_DONE : EFFECT_LOST;
}

/* Reads the reply of a script, by the kind of the script. */
static void sight_script(const struct audit_note *note, struct lock_sight *sight, const struct resp_item *item) {
    bool positive = item->type == ':' || item->type == '#' ? item->num > 0
                                                           : item->type == '+' || (item->type == '$' && !item->null);
    sight->pttl_ms = note->script_pttl_ms;
    if (sight->verb == LOCK_ACQUIRE)
        sight->effect = script_acquired(note, sight, item);
    else
        sight->effect = positive ? EFFECT_DONE : EFFECT_ABSENT;
    if (note->script.value == ADVISE_LITERAL && !sight->value)
        sight->value = ""; /* the value is always the same */
}

/* Reads what the reply says of one key. `item` is the whole reply, or the key's element of MGET's reply. */
static void sight_reply(const struct audit_note *note, struct lock_sight *sight, const struct resp_item *item) {
    const bool number = item->type == ':';
    switch (sight->verb) {
    case LOCK_ACQUIRE: /* SET NX GET answers nil if it has acquired */
        if (number)
            sight->effect = item->num == 1 ? EFFECT_DONE : EFFECT_LOST;
        else
            sight->effect = (note->expects_ok ? item->type == '+' : item->null) ? EFFECT_DONE : EFFECT_LOST;
        break;
    case LOCK_RELEASE:
        if (number && note->key_count > 1 && item->num > 0 && item->num < (int64_t)note->key_count)
            sight->effect = EFFECT_SCRIPTED; /* some of the keys existed, and the number does not tell which */
        else
            sight->effect = (number ? item->num > 0 : !item->null) ? EFFECT_DONE : EFFECT_ABSENT;
        if (sight->queue == QUEUE_POP && is_text(item)) {
            sight->value = item->str;
            sight->value_len = item->len;
        }
        break;
    case LOCK_EXTEND:
        if (number ? item->num == 0 : item->null)
            sight->effect = note->conditional && number ? EFFECT_NOTHING : EFFECT_ABSENT;
        break;
    case LOCK_REPLACE:
    case LOCK_REWRITE:
        sight->effect = item->null ? EFFECT_ABSENT : EFFECT_DONE;
        break;
    case LOCK_SWAP:
        sight->old = item->null ? NULL : item->str;
        sight->old_len = item->null ? 0 : item->len;
        break;
    case LOCK_COUNT_UP:
    case LOCK_COUNT_DOWN:
        sight->count = item->num;
        sight->value = item->str;
        sight->value_len = item->len;
        if (!number || !sight->by)
            sight->effect = EFFECT_NOTHING;
        break;
    case LOCK_READ:
        sight->value = item->null ? NULL : item->str;
        sight->value_len = item->null ? 0 : item->len;
        sight->effect = item->null ? EFFECT_ABSENT : EFFECT_DONE;
        break;
    case LOCK_PASS: /* a plain write refuses only by an error, if at all */
        sight->count = number ? item->num : 0;
        break;
    case LOCK_CLOBBER:
        sight->effect = number && item->num == 0 ? EFFECT_NOTHING : EFFECT_DONE;
        break;
    case LOCK_QUEUE_PUSH:
        sight->count = item->num;
        sight->effect = !number || item->num < 0 ? EFFECT_NOTHING : item->num == 0 ? EFFECT_ABSENT : EFFECT_DONE;
        break;
    case LOCK_QUEUE_READ:
        sight_queue_read(sight, item);
        break;
    case LOCK_QUEUE_REMOVE:
        sight->effect = number && item->num > 0 ? EFFECT_DONE : EFFECT_ABSENT;
        break;
    case LOCK_QUEUE_SET:
    case LOCK_SCRIPT:
    case LOCK_INSPECT:
    case LOCK_OPERATOR:
        break;
    }
    if (sight->effect == EFFECT_DONE && sight->pttl_ms == PTTL_GONE)
        sight->effect = EFFECT_REMOVED;
}

static void note_free(struct audit_note *note) {
    lock_rules_unref(note->rules);
    text_clear(&note->texts);
    memory_free(note);
}

/* Reads the reply, or the next element of MGET's reply. */
static void sight_read(const struct audit_note *note, struct lock_sight *sight, const char *p, const char *end) {
    struct resp_item item;
    if (sight->effect == EFFECT_SCRIPTED)
        return;
    if (!resp_item_read(&p, end, &item) || item.type == '-') {
        sight->effect = EFFECT_NOTHING;
    } else if (note->script.kind != ADVISE_SCRIPT_OTHER) {
        sight_script(note, sight, &item);
    } else {
        struct resp_item first;
        bool array = item.type == '*' && item.num > 0;
        bool shows = sight->queue == QUEUE_HEAD || sight->queue == QUEUE_POP; /* LRANGE, LPOP with a count */
        sight_reply(note, sight, array && shows && resp_item_read(&p, end, &first) ? &first : &item);
    }
}

void audit_end(struct worker *w, struct session *s, struct audit_note *note, const struct call_end *end) {
    const char *p = end->reply, *stop = end->error ? NULL : end->reply + end->len;
    struct resp_item array;
    bool many = note->command->id == COMMAND_MGET && !end->error && resp_item_read(&p, stop, &array) &&
                array.type == '*' && array.num == (int64_t)note->key_count;
    size_t order = 0;
    for (size_t i = 0; i < note->count; i++) {
        struct lock_sight *sight = &note->keys[i].sight;
        sight->command = note->name;
        sight->client = note->who;
        for (; many && p && order < note->keys[i].order; order++)
            p = resp_item_end(p, stop);
        if (end->error)
            sight->effect = end->why == UPSTREAM_UNKNOWN ? EFFECT_UNKNOWN : EFFECT_NOT_SENT;
        else if (p)
            sight_read(note, sight, p, stop);
        else
            sight->effect = EFFECT_NOTHING;
        if (s)
            advise_sight(s, sight, note->keys[i].rule, lock_row_of(note->command)->advises,
                         note->script.kind != ADVISE_SCRIPT_OTHER, note->watched);
        if (sight->rule)
            engine_observe(w->shared->engine, sight, worker_now(w));
    }
    note_free(note);
}

/* ---- forwarding ------------------------------------------------------------------------------------ */

void audit_released(struct session *s) {
    locks_of(s)->audits--;
    if (s->input)
        session_mark_runnable(s);
}

static void audited(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct audit_note *note = REQUEST_OWNER(r, struct audit_note);
    request_disown(r);
    if (r->session)
        audit_released(r->session);
    audit_end(r->worker, r->session, note, end);
    if (end->error)
        request_fail(r, end->error);
    else
        request_reply(r, end->reply, end->len, true);
}

/* Forwards a request unchanged. With a note, its reply is read. */
static void watch_forward(struct session *s, const struct request_class *k, struct audit_note *note) {
    if (!note) {
        session_forward(s, k->command, k->request, k->bytes, k->slot);
        return;
    }
    counter_add(&s->worker->counters.requests_forwarded, 1);
    struct request *request = request_new(s, k->command);
    request_own(request, &note->owner, &request_owner_silent);
    request->call.done = audited;
    locks_of(s)->audits++;
    call_submit(&request->call, k->slot, k->bytes, k->request->len);
}

void audit_forward(struct session *s, const struct request_class *k) {
    size_t len;
    const char *key = class_key(k, 0, &len);
    struct audit_note *note = audit_note(s, k, false);
    if (!note && k->key_count == 1 && advise_wants(s, k->command, k->request, k->bytes, key, len))
        note = audit_note(s, k, true);
    watch_forward(s, k, note);
}

void audit_forward_outside(struct session *s, const struct request_class *k) {
    watch_forward(s, k, audit_note(s, k, true));
}
