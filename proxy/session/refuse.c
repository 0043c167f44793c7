/*
 * Requests that are answered with an error here, in Redis's words where it has them. Which ones those are decides
 * dispatch.c.
 */
#include <stdarg.h>
#include <stdio.h>

#include "proxy/session/session.h"

void dispatch_local_error(struct session *s, const struct command *c, const char *format, ...) {
    struct text line = {0};
    va_list args;
    va_start(args, format);
    text_append(&line, "-", 1);
    text_vprintf(&line, format, args);
    va_end(args);
    size_t len = line.len;
    while (len > 1 && (line.data[len - 1] == '\r' || line.data[len - 1] == '\n')) /* an argument's; Redis does so too */
        len--;
    line.len = len;
    for (size_t i = 1; i < len; i++)
        if (line.data[i] == '\r' || line.data[i] == '\n')
            line.data[i] = ' ';
    text_append(&line, "\r\n", 2);
    dispatch_local(s, c, line.data, line.len);
    text_clear(&line);
}

void refuse_command(struct session *s, const struct command *c, const char *what) {
    char name[32];
    size_t i;
    for (i = 0; c->name[i] && i < sizeof(name) - 1; i++)
        name[i] = c->name[i] >= 'a' && c->name[i] <= 'z' ? (char)(c->name[i] - 'a' + 'A') : c->name[i];
    name[i] = '\0';
    dispatch_local_error(s, c, "ERR %s is not supported by lockkeeper%s", name, what);
}

/* Redis's words for a command that is not in its table. */
static void answer_unknown(struct session *s, const struct resp_request *r, const char *bytes) {
    enum { SHOWN = 128 };
    char name[SHOWN + 1], args[SHOWN * 2] = "", arg[SHOWN + 1];
    size_t len = 0;
    for (size_t i = 1; i < r->argc && len < SHOWN; i++) {
        request_arg_text(r, bytes, i, arg, sizeof(arg) - len);
        len += (size_t)snprintf(args + len, sizeof(args) - len, "'%s' ", arg);
    }
    dispatch_local_error(s, NULL, "ERR unknown command '%s', with args beginning with: %s",
                         request_arg_text(r, bytes, 0, name, sizeof(name)), args);
}

/* In Redis's order. */
void refuse_unauthenticated(struct session *s, const struct command *c, const struct resp_request *r,
                            const char *bytes) {
    if (!c)
        answer_unknown(s, r, bytes);
    else if (!command_arity_ok(c, r->argc))
        dispatch_local_error(s, c, "ERR wrong number of arguments for '%s' command", c->name);
    else
        dispatch_local_error(s, c, "NOAUTH Authentication required.");
    if (s->authenticated)
        worker_probe(s->worker); /* refused for the node's sake: it may have changed its mind */
}
