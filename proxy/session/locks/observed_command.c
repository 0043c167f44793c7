/*
 * Commands that pass unchanged: under `mode audit`, and for PROXY ADVISE. This file notes the command, reads its reply,
 * which is collected whole, and tells the engine and the observer what it has seen. It sends nothing of its own.
 *
 * K1 of hash locks: a session that was refused, and then reads the field that it tried to write, is recognised for the
 * lease. The replies of other sessions are not read.
 *
 *      HGET, HMGET, HGETALL, HEXISTS, HKEYS, HSCAN ──> node, as it came ──> reply ──> engine_saw_field, a field each
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/private.h"

enum { KEYS_MAX = EVENT_KEYS_MAX };

struct audit_key {
    struct lock_event sight; /* `watched` is 0 if the key is not audited */
    size_t order;            /* its index among all keys of the command */
};

struct audit_note {
    struct request_owner owner; /* must be the first field */
    const struct command *command;
    struct lock_rules *rules; /* a reference that keeps the rules of the sights alive */
    struct text texts;        /* the sights' keys and values */
    size_t key_count;         /* how many keys the command has */
    size_t count;
    struct advise_text script; /* of a script without an audited rule: what its text does */
    bool expects_ok;           /* SET NX answers OK if it has acquired; with GET it answers nil */
    bool conditional;          /* PERSIST, or EXPIRE with an option: 0 does not show that the key is missing */
    char name[LOCK_COMMAND_MAX];
    char who[SESSION_ADDRESS_MAX + 72];
    struct audit_key keys[];
};

/* ---- noting a command ---------------------------------------------------------------------------- */

static void text_keep(struct text *texts, const char **text, size_t len) {
    if (!*text)
        return;
    size_t at = texts->len;
    text_append(texts, *text, len);
    *text = texts->data + at;
}

/* Keeps the texts of the sights, which are the request's so far. */
static void texts_keep(struct audit_note *note, size_t len) {
    text_reserve(&note->texts, len); /* the copies do not move */
    for (size_t i = 0; i < note->count; i++) {
        struct lock_event *sight = &note->keys[i].sight;
        text_keep(&note->texts, &sight->key.name, sight->key.len);
        text_keep(&note->texts, &sight->value, sight->value_len);
        text_keep(&note->texts, &sight->named, sight->named_len);
    }
}

static struct audit_note *audit_note_new(struct session *s, const struct request_class *k, size_t room) {
    struct audit_note *note = memory_zalloc(sizeof(*note) + room * sizeof(note->keys[0]));
    size_t len;
    const char *name = request_arg(k->request, k->bytes, 0, &len);
    note->command = k->command;
    note->key_count = k->key_count;
    note->rules = lock_rules_ref(s->worker->rules);
    note->conditional = event_conditional(k->command, k->request->argc);
    lock_command_text(note->name, name, len);
    return note;
}

/* Whether PROXY ADVISE wants the key of a command that has several. */
static bool wanted_outside(struct session *s, const struct request_class *k, size_t i) {
    size_t len;
    const char *key = class_key(k, i, &len);
    bool each = k->key_count > 1 && (k->command->id == COMMAND_DEL || k->command->id == COMMAND_UNLINK);
    return !each || advise_wants(s, k->command, k->request, k->bytes, key, len);
}

struct audit_note *audit_note(struct session *s, const struct request_class *k, bool outside) {
    struct audit_note *note = NULL;
    const struct command *c = k->command;
    const struct resp_request *r = k->request;
    const char *bytes = k->bytes;
    const struct command_sent sent = {c, r, bytes};
    int64_t now_ms = worker_now(s->worker);
    size_t len = 0; /* of the sights' texts */
    session_note_overlap(s);
    for (size_t i = 0; i < k->key_count && (!note || note->count < KEYS_MAX); i++) {
        uint32_t at = k->keys[i];
        const struct lock_rule *rule = class_rule(k, i);
        struct lock_command lc;
        struct lock_event sight;
        bool audited = rule && rule->mode == LOCK_MODE_AUDIT && event_read(&sight, &sent, at, rule->kinds, now_ms, &lc);
        if (!audited && (!outside || !wanted_outside(s, k, i) || !event_read(&sight, &sent, at, 0, now_ms, &lc)))
            continue;
        if (!note)
            note = audit_note_new(s, k, k->key_count - i < KEYS_MAX ? k->key_count - i : KEYS_MAX);
        note->expects_ok = lc.shape == SHAPE_OK;
        if (!audited && script_is(c)) /* it is treated as the command that it stands for */
            event_read_script(&sight, s->worker->shared->observer, c, r, bytes, &note->script);
        sight.key.db = session_db(s);
        sight.rule = rule;
        sight.beside = rule && !audited;
        sight.behind_watch = s->watches;
        sight.session_id = s->lock.id;
        sight.login = s->lane.login;
        if (audited && note->count == 0) /* for other keys there are no incidents */
            session_who(s, note->who, sizeof(note->who));
        if (audited)
            sight.watched = engine_watch(s->worker->shared->engine, &s->lock, &sight.key);
        note->keys[note->count++] = (struct audit_key){sight, i};
        len += sight.key.len + sight.value_len + sight.named_len;
    }
    if (note)
        texts_keep(note, len);
    return note;
}

/* ---- the reply ----------------------------------------------------------------------------------- */

static bool is_bulk(const struct resp_item *item) {
    return item->type == '$' && !item->null;
}

static void sight_value(struct lock_event *sight, const struct resp_item *item) {
    sight->value = item->null ? NULL : item->str;
    sight->value_len = item->null ? 0 : item->len;
}

/* Reads the reply of a script. One that acquires says that it has acquired by OK, a number above zero, or the value
 * that it wrote. Exception: a script that answers how long the lock still lasts acquires with nil. */
static void sight_script(const struct audit_note *note, struct lock_event *sight, const struct resp_item *item) {
    bool number = item->type == ':' || item->type == '#', tells = note->script.kind == ADVISE_SCRIPT_ENTERS;
    bool positive = number ? item->num > 0 : item->type == '+' || is_bulk(item);
    bool own = sight->value && item->len == sight->value_len && memcmp(item->str, sight->value, item->len) == 0;
    if (sight->verb != LOCK_ACQUIRE)
        sight->effect = positive ? EFFECT_DONE : EFFECT_ABSENT;
    else if (item->null)
        sight->effect = tells ? EFFECT_DONE : EFFECT_LOST;
    else if (number)
        sight->effect = positive && !tells ? EFFECT_DONE : EFFECT_LOST;
    else if (item->type == '$' && sight->value)
        sight->effect = own ? EFFECT_DONE : EFFECT_LOST;
    else
        sight->effect = item->type == '+' ? EFFECT_DONE : EFFECT_NOTHING;
    if (note->script.value == ADVISE_LITERAL && !sight->value)
        sight->value = ""; /* the value is always the same */
}

static void sight_release(const struct audit_note *note, struct lock_event *sight, const struct resp_item *item) {
    bool number = item->type == ':';
    if (number && note->key_count > 1 && item->num > 0 && item->num < (int64_t)note->key_count)
        sight->effect = EFFECT_SCRIPTED; /* some of the keys existed, and the number does not tell which */
    else
        sight->effect = (number ? item->num > 0 : !item->null) ? EFFECT_DONE : EFFECT_ABSENT;
    if (sight->queue == QUEUE_POP && is_bulk(item))
        sight_value(sight, item);
}

static void sight_count(struct lock_event *sight, const struct resp_item *item) {
    sight->count = item->num;
    if (!sight->value) /* of a hash lock: the field */
        sight_value(sight, item);
    if (item->type != ':' || !sight->by)
        sight->effect = EFFECT_NOTHING;
}

/* Reads what the reply, or the key's element of MGET's reply, says of one key. */
static void sight_reply(const struct audit_note *note, struct lock_event *sight, const struct resp_item *item) {
    const bool number = item->type == ':';
    bool done;
    switch (sight->verb) {
    case LOCK_ACQUIRE: /* SET NX GET answers nil if it has acquired */
        done = number ? item->num == 1 : note->expects_ok ? item->type == '+' : item->null;
        sight->effect = done ? EFFECT_DONE : EFFECT_LOST;
        break;
    case LOCK_RELEASE:
        sight_release(note, sight, item);
        break;
    case LOCK_EXTEND:
        if (number ? item->num == 0 : item->null)
            sight->effect = note->conditional && number ? EFFECT_NOTHING : EFFECT_ABSENT;
        break;
    case LOCK_READ:
        sight_value(sight, item);
        sight->effect = item->null ? EFFECT_ABSENT : EFFECT_DONE;
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
        sight_count(sight, item);
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
    case LOCK_QUEUE_READ: /* an empty array or nil: there is no list */
        if (sight->queue == QUEUE_HEAD && is_bulk(item))
            sight_value(sight, item);
        else
            sight->effect = EFFECT_ABSENT;
        break;
    case LOCK_QUEUE_REMOVE:
        sight->effect = number && item->num > 0 ? EFFECT_DONE : EFFECT_ABSENT;
        break;
    default:
        break;
    }
    if (sight->compares && (is_bulk(item) || sight->effect == EFFECT_ABSENT)) /* SET GET shows it if it sets, too */
        sight->effect = EFFECT_NOTHING;
    if (sight->effect == EFFECT_DONE && sight->pttl_ms == PTTL_GONE)
        sight->effect = EFFECT_REMOVED;
}

/* Reads the reply, or the next element of MGET's reply. */
static void sight_read(const struct audit_note *note, struct lock_event *sight, const char *p, const char *end) {
    struct resp_item item;
    if (sight->effect == EFFECT_SCRIPTED)
        return;
    if (!resp_item_read(&p, end, &item) || item.type == '-') {
        sight->effect = EFFECT_NOTHING;
    } else if (sight->permit == PERMIT_POPS) {
        int64_t more = item.type == '*' ? item.num : 0; /* the token of BLPOP stands behind the key */
        for (int64_t i = 0; i < more; i++)
            if (!resp_item_read(&p, end, &item))
                item.null = true;
        sight->effect = is_bulk(&item) ? EFFECT_DONE : EFFECT_ABSENT;
        if (sight->effect == EFFECT_DONE)
            sight_value(sight, &item);
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
        struct lock_event *sight = &note->keys[i].sight;
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
            advise_observed(s, sight);
        if (sight->watched)
            engine_observe(w->shared->engine, sight, worker_now(w));
    }
    lock_rules_unref(note->rules);
    text_clear(&note->texts);
    memory_free(note);
}

/* ---- forwarding ------------------------------------------------------------------------------------ */

void audit_released(struct session *s) {
    invariant(locks_of(s)->audits > 0, "no audited command is in flight");
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
    lock_deliver(c, NULL, end);
}

/* Forwards a request unchanged. With a note, its reply is read. */
static enum dispatch_result watch_forward(struct session *s, const struct request_class *k, struct audit_note *note) {
    if (!note)
        return class_pass(s, k, k->slot);
    invariant(locks_of(s)->audits < UINT16_MAX, "%u audited commands are in flight", locks_of(s)->audits);
    locks_of(s)->audits++;
    return class_forward(s, k, &note->owner, audited);
}

enum dispatch_result audit_forward(struct session *s, const struct request_class *k) {
    size_t len;
    const char *key = class_key(k, 0, &len);
    struct audit_note *note = audit_note(s, k, false);
    if (!note && k->key_count == 1 && advise_wants(s, k->command, k->request, k->bytes, key, len))
        note = audit_note(s, k, true);
    return watch_forward(s, k, note);
}

enum dispatch_result audit_forward_outside(struct session *s, const struct request_class *k) {
    return watch_forward(s, k, audit_note(s, k, true));
}

/* ---- what reads of a hash lock show ------------------------------------------------------------------ */

enum {
    FIELDS_LOOKED_AT = 64, /* of one reply; a hash lock has few fields */
    REQUEST_LOOKED_AT = 16 * 1024
};

struct shown_note {
    struct request_owner owner; /* must be the first field */
    struct lock_rules *rules;   /* a reference that keeps the rule alive */
    const struct lock_rule *rule;
    enum command_id id;
    uint32_t db;
    size_t argc;
    struct resp_arg args[FIELDS_LOOKED_AT + 2]; /* the request's arguments, as many as fit */
    bool names_alone;                           /* HSCAN NOVALUES */
    char bytes[];                               /* the request */
};

/* A session that is shown fields, and the rest of the reply. */
struct showing {
    struct session *session;
    const struct shown_note *note;
    struct lock_key key;
    const char *p, *end;
};

static void show(const struct showing *to, const char *name, size_t len, const char *content, size_t content_len) {
    struct session *s = to->session;
    const struct lock_field field = {name, content, len, content_len};
    engine_saw_field(s->worker->shared->engine, &s->lock, &to->key, to->note->rule, &field, worker_now(s->worker));
}

/* Reads the next element. Returns whether it is a bulk string, and not nil. */
static bool read_bulk(struct showing *to, struct resp_item *item) {
    return resp_item_read(&to->p, to->end, item) && is_bulk(item);
}

/* Shows the fields that the request names, whose contents the reply has in the same order. */
static void show_asked(struct showing *to, size_t count) {
    for (size_t i = 2; i < to->note->argc && count > 0; i++, count--) {
        const struct resp_arg *name = &to->note->args[i];
        struct resp_item item;
        if (!resp_item_read(&to->p, to->end, &item))
            return;
        if (is_bulk(&item))
            show(to, to->note->bytes + name->off, name->len, item.str, item.len);
    }
}

/* Shows the fields of the next element, an array or a map: names and contents, or names alone. */
static void show_told(struct showing *to, bool contents) {
    struct resp_item all, name, content = {0};
    if (!resp_item_read(&to->p, to->end, &all) || (all.type != '*' && all.type != '%'))
        return;
    int64_t fields = contents ? all.num / 2 : all.num;
    for (int64_t i = 0; i < fields && i < FIELDS_LOOKED_AT; i++) {
        if (!read_bulk(to, &name) || (contents && !read_bulk(to, &content)))
            return;
        show(to, name.str, name.len, contents ? content.str : NULL, content.len);
    }
}

static void show_reply(struct showing *to) {
    const struct shown_note *note = to->note;
    struct resp_item item;
    switch (note->id) {
    case COMMAND_HGET:
        show_asked(to, 1);
        break;
    case COMMAND_HMGET:
        if (resp_item_read(&to->p, to->end, &item) && item.type == '*')
            show_asked(to, (size_t)item.num);
        break;
    case COMMAND_HEXISTS:
        if (resp_item_read(&to->p, to->end, &item) && item.type == ':' && item.num == 1 && note->argc > 2)
            show(to, note->bytes + note->args[2].off, note->args[2].len, NULL, 0);
        break;
    case COMMAND_HSCAN: /* the fields follow the cursor */
        if (resp_item_read(&to->p, to->end, &item) && item.type == '*' && item.num == 2 && read_bulk(to, &item))
            show_told(to, !note->names_alone);
        break;
    default:
        show_told(to, note->id == COMMAND_HGETALL);
        break;
    }
}

static void shown(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct shown_note *note = REQUEST_OWNER(r, struct shown_note);
    request_disown(r);
    if (r->session)
        audit_released(r->session);
    if (r->session && !end->error) {
        struct showing to = {.session = r->session, .note = note, .p = end->reply, .end = end->reply + end->len};
        to.key = (struct lock_key){.db = note->db, .name = note->bytes + note->args[1].off, .len = note->args[1].len};
        show_reply(&to);
    }
    lock_rules_unref(note->rules);
    memory_free(note);
    lock_deliver(c, NULL, end);
}

enum dispatch_result shown_forward(struct session *s, const struct request_class *k) {
    const struct resp_request *r = k->request;
    struct lock_key key = {.db = session_db(s)};
    key.name = class_key(k, 0, &key.len);
    if (r->len > REQUEST_LOOKED_AT || !engine_has_tried(s->worker->shared->engine, &s->lock, &key))
        return class_pass(s, k, k->slot);
    struct shown_note *note = memory_zalloc(sizeof(*note) + r->len);
    note->rules = lock_rules_ref(s->worker->rules);
    note->rule = class_rule(k, 0);
    note->id = k->command->id;
    note->db = key.db;
    note->argc = r->argc < FIELDS_LOOKED_AT + 2 ? r->argc : FIELDS_LOOKED_AT + 2;
    memcpy(note->args, r->argv, note->argc * sizeof(note->args[0]));
    for (size_t i = 3; i < r->argc; i++)
        note->names_alone |= request_arg_is(r, k->bytes, i, "novalues");
    memcpy(note->bytes, k->bytes, r->len);
    locks_of(s)->audits++; /* the session's next lock command waits for the reply: K1 may decide about it */
    return class_forward(s, k, &note->owner, shown);
}
