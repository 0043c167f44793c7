/*
 * Requests that are answered with an error here, with Redis's text if it has one. dispatch.c decides which requests
 * these are.
 */
#include <ctype.h>
#include <stdio.h>

#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/locks.h"

void refuse_unsupported(struct session *s, const struct request_class *k) {
    char name[32];
    snprintf(name, sizeof(name), "%s", k->command->name);
    for (char *p = name; *p; p++)
        *p = (char)toupper((unsigned char)*p);
    session_refuse(s, k->command, "ERR %s is not supported by lockkeeper: %s", name,
                   k->command->id == COMMAND_UNKNOWN
                       ? "it would change the state of a connection that many clients share"
                       : "replicas and similar tools must connect to the server itself");
}

/* Redis's text for a command that is not in its table. */
static void answer_unknown(struct session *s, const struct resp_request *r, const char *bytes) {
    enum { SHOWN = 128 };
    char name[SHOWN + 1], args[SHOWN * 2] = "", arg[SHOWN + 1];
    size_t len = 0;
    for (size_t i = 1; i < r->argc && len < SHOWN; i++) {
        request_arg_text(r, bytes, i, arg, sizeof(arg) - len);
        len += (size_t)snprintf(args + len, sizeof(args) - len, "'%s' ", arg);
    }
    session_refuse(s, NULL, "ERR unknown command '%s', with args beginning with: %s",
                   request_arg_text(r, bytes, 0, name, sizeof(name)), args);
}

enum dispatch_result refuse_doubted(struct session *s, const struct command *c) {
    const char *error = worker_await_word(s->worker);
    if (!error && session_doubted(s))
        return DISPATCH_WAIT;
    counter_add(&s->worker->counters.requests_failed, 1);
    session_refuse(s, c, "%s", error ? error : "UPSTREAM the node has just answered; the request was not sent");
    return DISPATCHED;
}

/* The checks are in Redis's order. */
enum dispatch_result refuse_unauthenticated(struct session *s, const struct command *c, const struct resp_request *r,
                                            const char *bytes) {
    if (session_doubted(s))
        return refuse_doubted(s, c);
    if (!c)
        answer_unknown(s, r, bytes);
    else if (!command_arity_ok(c, r->argc))
        session_refuse(s, c, "ERR wrong number of arguments for '%s' command", c->name);
    else if (s->worker->shared->stranger_login)
        session_refuse(s, c,
                       "NOAUTH Authentication required. The proxy's upstream-user is not for clients: log in with "
                       "AUTH, or set requirepass, or share-upstream-user yes, in the proxy's configuration");
    else
        session_refuse(s, c, "NOAUTH Authentication required.");
    if (s->authenticated)
        worker_probe_again(s->worker); /* refused because of the node's answer, which may have changed */
    return DISPATCHED;
}

static bool has_long_word(const struct resp_request *r) {
    for (size_t i = 1; i < r->argc; i++)
        if (r->argv[i].len > LOCK_NAME_MAX)
            return true;
    return false;
}

bool refuse_long_names(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    if (!has_long_word(r) || !command_arity_ok(c, r->argc))
        return false;
    struct key_list list;
    bool found = false;
    key_list_find(&list, c, r, bytes);
    for (int i = 0; i < list.count && !found; i++) {
        size_t len;
        const char *key = request_arg(r, bytes, list.keys[i], &len);
        found = len > LOCK_NAME_MAX && lock_rule_for(s, key, len);
    }
    key_list_clear(&list);
    return found;
}
