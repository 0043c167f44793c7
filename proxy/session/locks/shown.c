/*
 * K1 of hash locks: a session was refused, and then reads the field that it tried to write. The session is recognised
 * for the lease.
 *
 *      HGET, HMGET, HGETALL, HEXISTS, HKEYS, HSCAN ──> node, as it came ──> reply ──> engine_saw_field, a field each
 *
 * No byte of the command or of its reply is changed. A reply is collected whole before it is read. So the proxy reads
 * replies only for a session that has tried for the lock in vain.
 */
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/locks/call_finish.h"

enum {
    FIELDS_LOOKED_AT = 64, /* of one reply; a hash lock has few fields */
    REQUEST_LOOKED_AT = 16 * 1024
};

/* What the proxy keeps of a request until the reply comes. */
struct shown_note {
    struct request_owner owner; /* must be the first field */
    struct lock_rules *rules;   /* a reference that keeps the rule alive */
    const struct lock_rule *rule;
    enum command_id id;
    uint32_t db;
    size_t argc;
    struct resp_arg args[FIELDS_LOOKED_AT + 2]; /* the request's arguments, as many as fit */
    bool names_alone;                           /* HSCAN NOVALUES */
    char bytes[];                               /* the request's bytes */
};

/* ---- a reply --------------------------------------------------------------------------------------------- */

/* A session that is shown fields, and the part of the reply that is still to be read. */
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
static bool read_text(struct showing *to, struct resp_item *item) {
    return resp_item_read(&to->p, to->end, item) && item->type == '$' && !item->null;
}

/* Shows the fields that the request names. The reply has their contents in the same order. */
static void show_asked(struct showing *to, size_t count) {
    for (size_t i = 2; i < to->note->argc && count > 0; i++, count--) {
        const struct resp_arg *name = &to->note->args[i];
        struct resp_item item;
        if (!resp_item_read(&to->p, to->end, &item))
            return;
        if (item.type == '$' && !item.null)
            show(to, to->note->bytes + name->off, name->len, item.str, item.len);
    }
}

/* Shows the fields in the reply's next element, an array or a map: names and contents, or names alone. */
static void show_told(struct showing *to, bool contents) {
    struct resp_item all, name, content = {0};
    if (!resp_item_read(&to->p, to->end, &all) || (all.type != '*' && all.type != '%'))
        return;
    int64_t fields = contents ? all.num / 2 : all.num;
    for (int64_t i = 0; i < fields && i < FIELDS_LOOKED_AT; i++) {
        if (!read_text(to, &name) || (contents && !read_text(to, &content)))
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
        if (resp_item_read(&to->p, to->end, &item) && item.type == '*' && item.num == 2 && read_text(to, &item))
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

/* ---- a request ------------------------------------------------------------------------------------------- */

static struct shown_note *note_new(struct session *s, const struct request_class *k) {
    const struct resp_request *r = k->request;
    struct shown_note *note = memory_zalloc(sizeof(*note) + r->len);
    note->rules = lock_rules_ref(s->worker->rules);
    note->rule = class_rule(k, 0);
    note->id = k->command->id;
    note->db = session_db(s);
    while (note->argc < r->argc && note->argc < FIELDS_LOOKED_AT + 2) {
        note->args[note->argc] = r->argv[note->argc];
        note->argc++;
    }
    for (size_t i = 3; i < r->argc; i++)
        note->names_alone |= request_arg_is(r, k->bytes, i, "novalues");
    memcpy(note->bytes, k->bytes, r->len);
    return note;
}

void shown_forward(struct session *s, const struct request_class *k) {
    struct lock_key key = {.db = session_db(s)};
    key.name = class_key(k, 0, &key.len);
    if (k->request->len > REQUEST_LOOKED_AT || !engine_has_tried(s->worker->shared->engine, &s->lock, &key)) {
        session_forward(s, k->command, k->request, k->bytes, k->slot);
        return;
    }
    struct shown_note *note = note_new(s, k);
    locks_of(s)->audits++; /* the session's next lock command waits for the reply: K1 may decide about it */
    class_forward(s, k, &note->owner, shown);
}
