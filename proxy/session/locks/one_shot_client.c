/*
 * One-shot clients, for example redis-cli in a shell script, or a CGI program. A one-shot client sends one command
 * besides its login, reads the reply, and closes the connection.
 *
 *      the session's first requests ──> one_shot_sends: counts those that are no login
 *      the session closes           ──> one_shot_closes: in good order? ──> engine_session_close
 *
 * The engine knows what the command has acquired, and when. After the second command the session's requests are no
 * longer looked at. (L1: the lock is free within the rule's `one-shot` and a lease.)
 */
#include "proxy/session/core/session.h"
#include "proxy/session/locks/observing.h"

/* What the session has sent so far, besides logins. */
enum sent { SENT_NOTHING, SENT_ONE, SENT_MORE };

/* Whether a client sends the command before its own commands. redis-cli sends COMMAND DOCS if it reads its commands
 * from standard input. */
static bool logs_in(const struct command *c) {
    if (!c)
        return false;
    return c->id == COMMAND_AUTH || c->id == COMMAND_HELLO || c->id == COMMAND_SELECT || c->id == COMMAND_CLIENT ||
           c->id == COMMAND_COMMAND || c->id == COMMAND_QUIT;
}

void one_shot_sends(struct session *s) {
    if (logs_in(s->last))
        return;
    if (locks_of(s)->sent == SENT_ONE)
        s->hears &= (uint8_t)~HEARS_FIRST;
    locks_of(s)->sent = locks_of(s)->sent == SENT_NOTHING ? SENT_ONE : SENT_MORE;
}

/* QUIT shows that the client has all its replies, even if it was sent together with the command. Without QUIT, the
 * session must have read the connection to its end, and must have written every reply. */
void one_shot_closes(struct session *s) {
    bool quits = s->last && s->last->id == COMMAND_QUIT;
    s->lock.one_shot = locks_of(s)->sent == SENT_ONE && (quits || s->ended) && s->in_flight == 0 &&
                       s->out.unsent == 0 && s->held_bytes == 0;
}
