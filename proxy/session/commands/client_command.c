/*
 * CLIENT subcommands about the client itself: its name, its library, its number, whether it wants replies.
 * client_admin.c has those about other clients. An unknown subcommand, or one with a wrong number of arguments, goes to
 * the node, which answers with the error.
 */
#include <stdio.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/push/push.h"

bool client_name_ok(const char *name, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (name[i] < '!' || name[i] > '~')
            return false;
    return true;
}

void client_set_text(char **field, const char *text, size_t len) {
    memory_free(*field);
    *field = len > 0 ? memory_strndup(text, len) : NULL;
}

static bool reply_ok(struct session *s, const struct command *c) {
    session_answer(s, c, "+OK\r\n", 5);
    return true;
}

/* ---- names -------------------------------------------------------------------------------------- */

static bool client_setname(struct session *s, const struct request_class *k) {
    size_t len;
    const char *name = class_arg(k, 2, &len);
    if (!client_name_ok(name, len)) {
        session_refuse(s, k->command, "%s", CLIENT_NAME_REFUSED);
        return true;
    }
    client_set_text(&s->name, name, len);
    session_identify(s);
    return reply_ok(s, k->command);
}

static bool client_getname(struct session *s, const struct request_class *k) {
    struct text reply = {0};
    if (s->name)
        append_bulk(&reply, s->name, strlen(s->name));
    else
        text_printf(&reply, s->lane.protocol == 3 ? "_\r\n" : "$-1\r\n");
    session_answer_text(s, k->command, &reply);
    return true;
}

static bool client_setinfo(struct session *s, const struct request_class *k) {
    size_t len, word_len;
    const char *value = class_arg(k, 3, &len), *word = class_arg(k, 2, &word_len);
    bool name = class_arg_is(k, 2, "lib-name");
    len = strnlen(value, len); /* Redis ignores the rest */
    if (!name && !class_arg_is(k, 2, "lib-ver")) {
        session_refuse(s, k->command, "ERR Unrecognized option '%.*s'", (int)word_len, word);
        return true;
    }
    if (!client_name_ok(value, len)) {
        session_refuse(s, k->command, "ERR %.*s cannot contain spaces, newlines or special characters.", (int)word_len,
                       word);
        return true;
    }
    client_set_text(name ? &s->lib_name : &s->lib_version, value, len);
    if (name)
        engine_session_library(s->worker->shared->engine, &s->lock, value, len);
    return reply_ok(s, k->command);
}

/* ---- the rest ----------------------------------------------------------------------------------- */

static bool client_id(struct session *s, const struct request_class *k) {
    char number[RESP_HEADER_MAX];
    session_answer(s, k->command, number, resp_header_write(number, ':', (int64_t)s->lock.id));
    return true;
}

static bool client_info(struct session *s, const struct request_class *k) {
    struct text line = {0}, reply = {0};
    client_show(s, k->request->len, &line);
    append_page(&reply, s->lane.protocol == 3, line.data, line.len);
    session_answer_text(s, k->command, &reply);
    text_clear(&line);
    return true;
}

/* Runs CLIENT REPLY: the proxy leaves replies out; the node is not told. */
static bool client_reply(struct session *s, const struct request_class *k) {
    if (class_arg_is(k, 2, "on")) {
        s->reply_mode = REPLY_ON;
        reply_ok(s, k->command);
    } else if (class_arg_is(k, 2, "off")) {
        s->reply_mode = REPLY_OFF;
    } else if (class_arg_is(k, 2, "skip")) {
        if (s->reply_mode != REPLY_OFF)
            s->reply_mode = REPLY_SKIP_NEXT;
    } else {
        return false;
    }
    return true;
}

/* Runs CLIENT NO-EVICT, which is only shown: the proxy evicts no clients. */
static bool client_no_evict(struct session *s, const struct request_class *k) {
    if (class_arg_is(k, 2, "on"))
        commands_of(s)->no_evict = true;
    else if (class_arg_is(k, 2, "off"))
        commands_of(s)->no_evict = false;
    else
        return false;
    return reply_ok(s, k->command);
}

/* The subcommands that the proxy knows, with the number of their arguments. `answer` returns false if Redis has an
 * error for the arguments; NULL: client_admin.c and tracking.c have it. */
static const struct own {
    const char *name;
    size_t least, most; /* otherwise the node reports the error */
    bool (*answer)(struct session *s, const struct request_class *k);
} owns[] = {
    {"setname", 3, 3, client_setname},
    {"getname", 2, 2, client_getname},
    {"id", 2, 2, client_id},
    {"setinfo", 4, 4, client_setinfo},
    {"info", 2, 2, client_info},
    {"reply", 3, 3, client_reply},
    {"no-evict", 3, 3, client_no_evict},
    {"list", 2, SIZE_MAX, NULL},
    {"kill", 3, SIZE_MAX, NULL},
    {"pause", 3, SIZE_MAX, NULL},
    {"unpause", 2, 2, NULL},
    {"unblock", 3, SIZE_MAX, NULL},
    {"tracking", 3, SIZE_MAX, NULL},
    {"trackinginfo", 2, 2, NULL},
    {"getredir", 2, 2, NULL},
    {"no-touch", 3, 3, NULL},
};

static const struct own *own_of(const struct request_class *k) {
    for (size_t i = 0; i < sizeof(owns) / sizeof(owns[0]); i++)
        if (k->request->argc >= owns[i].least && k->request->argc <= owns[i].most && class_arg_is(k, 1, owns[i].name))
            return &owns[i];
    return NULL;
}

bool client_is_own(const struct request_class *k) {
    return own_of(k) != NULL;
}

enum dispatch_result client_dispatch(struct session *s, const struct request_class *k) {
    const struct own *own = own_of(k);
    if (class_arg_is(k, 1, "tracking") || class_arg_is(k, 1, "caching") || class_arg_is(k, 1, "no-touch") ||
        class_arg_is(k, 1, "trackinginfo") || class_arg_is(k, 1, "getredir"))
        return tracking_dispatch(s, k); /* about the connection to the node */
    if (!(own && own->answer && own->answer(s, k)) && !client_admin(s, k))
        class_pass(s, k, SLOT_NONE);
    return DISPATCHED;
}
