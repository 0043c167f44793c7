/*
 * Semaphores: keys of rules with kind semaphore. Commands pass unchanged, replies feed the ledger of permits
 * (proxy/lock/permits.h), and the proxy gives back the permits of sessions that are gone.
 *
 *      request ── permit_note ──> as it came ──> node ──> reply ── permit_note_end ──> ledger
 *      session closes, lease is over ──> ledger ──> give_back.lua, the incident permit_returned
 */
#pragma once

#include "proxy/lock/permits.h"
#include "proxy/session/core/class.h"

/* A request on semaphores whose reply is awaited. */
struct permit_note;

/* Notes a request whose class has semaphores; NULL: it neither takes nor gives back. The caller ends the note once,
 * with the reply, its part of EXEC's array, or the error. */
struct permit_note *permit_note(struct session *s, const struct request_class *k);
/* Reads the reply, and frees the note. s NULL: the session has closed meanwhile. */
void permit_note_end(struct worker *w, struct session *s, struct permit_note *note, const struct call_end *end);
/* Forwards a request unchanged, and reads its reply. */
enum dispatch_result semaphore_forward(struct session *s, const struct request_class *k);
/* Notes a request whose reply is not read: if it may give back, replace or remove, its keys' permits are forgotten. */
void semaphore_passes(struct session *s, const struct request_class *k);
/* Notes a command that may remove all keys (FLUSHALL, FLUSHDB, SWAPDB). */
void semaphore_flushes(struct session *s, const struct command *c);

/* The room's callbacks for workers and sessions. */
extern const struct session_room semaphores_room;
