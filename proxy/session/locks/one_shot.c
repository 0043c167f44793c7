/*
 * One-shot clients, as far as a connection shows them: redis-cli in a script, a CGI program. They send one command
 * beside what logs in, read its reply, and close.
 *
 *      the session's first requests ──> one_shot_sends: how many were no login
 *      the session closes           ──> one_shot_closes: in good order? ──> engine_session_close
 *
 * The engine knows what the command has acquired, and when. From the second command on nothing is looked at any more.
 */
#include "proxy/session/core/session.h"
#include "proxy/session/locks/private.h"

/* Whether a command is no more than what a client sends before its own commands. redis-cli asks for COMMAND DOCS where
 * its commands come over standard input. */
static bool logs_in(const struct command *c) {
    if (!c)
        return false;
    return c->id == COMMAND_AUTH || c->id == COMMAND_HELLO || c->id == COMMAND_SELECT || c->id == COMMAND_CLIENT ||
           c->id == COMMAND_COMMAND || c->id == COMMAND_QUIT;
}

void one_shot_sends(struct session *s) {
    if (logs_in(s->last))
        return;
    if (s->sent == SENT_ONE)
        s->hears &= (uint8_t)~HEARS_FIRST;
    s->sent = s->sent == SENT_NOTHING ? SENT_ONE : SENT_MORE;
}

/* QUIT says that the client has all that it wants, also where it was sent along with the command. A connection that is
 * closed without it has to be read to its end, and every reply to be written before. */
void one_shot_closes(struct session *s) {
    bool quits = s->last && s->last->id == COMMAND_QUIT;
    s->lock.one_shot =
        s->sent == SENT_ONE && (quits || s->ended) && s->in_flight == 0 && s->out.unsent == 0 && s->held_bytes == 0;
}
