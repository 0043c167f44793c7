/*
 * Wrong passwords: how many an address may try, and their log lines.
 *
 *      wrong ──> one token of the address's ──┬─ there are some left: nothing happens
 *                                             └─ none: its next logins are refused for a moment, without asking Redis
 *
 * An address gets TRIES_A_SECOND tokens a second and keeps up to TRIES_KEPT; an IPv6 address counts with its /64. The
 * last KNOWN logins that were valid from an address are not refused, since an application may share the address with an
 * attacker. This tells the attacker nothing about logins from other addresses. The log has one line for all wrong
 * passwords of LOG_SECONDS. A valid login that was not used lately costs a connection to the node. With nopass any
 * password is valid, so a client could open any number of connections. New logins therefore have tokens of their own:
 * as many a second, up to NEW_KEPT. Addresses that share a place in the table share their tokens.
 */
#include <string.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/commands/private.h"
#include "proxy/session/core/session.h"

enum { PLACES = 1024, TRIES_KEPT = 100, NEW_KEPT = 500, KNOWN = 4 };

static const double TRIES_A_SECOND = 20.0, LOG_SECONDS = 10.0;

struct place {
    double used;           /* tokens used */
    double used_by_new;    /* tokens used by new valid logins */
    double at;             /* time of these values, by the loop's clock */
    uint32_t known[KNOWN]; /* logins, the latest first; 0: none */
};

/* The state of a worker: worker->wrong_logins. */
struct wrong_logins {
    double logged;  /* time of the last line, by the loop's clock; 0: never */
    uint64_t count; /* wrong passwords since the last line */
    struct place places[PLACES];
};

void wrong_open(struct worker *w) {
    w->wrong_logins = memory_zalloc(sizeof(*w->wrong_logins));
}

static struct place *place_of(const struct session *s) {
    struct wrong_logins *all = s->worker->wrong_logins;
    char text[SESSION_ADDRESS_MAX];
    const char *host = session_host(s, text, sizeof(text));
    uint32_t hash = text_hash(host, strlen(host));
    struct place *place = &all->places[(hash ^ hash >> 16) % PLACES];
    double now = ev_now(s->worker->loop), back = (now - place->at) * TRIES_A_SECOND;
    place->used = place->used > back ? place->used - back : 0;
    place->used_by_new = place->used_by_new > back ? place->used_by_new - back : 0;
    place->at = now;
    return place;
}

static size_t known_at(const struct place *place, uint32_t login) {
    size_t i = 0;
    while (i < KNOWN && place->known[i] != login)
        i++;
    return i;
}

bool wrong_too_often(const struct session *s, uint32_t login) {
    const struct place *place = place_of(s);
    return (place->used >= TRIES_KEPT || place->used_by_new >= NEW_KEPT) &&
           (login == 0 || known_at(place, login) == KNOWN);
}

void wrong_right(const struct session *s, uint32_t login, bool is_new) {
    struct place *place = place_of(s);
    place->used_by_new += is_new;
    size_t at = known_at(place, login);
    at = at < KNOWN ? at : KNOWN - 1;
    memmove(place->known + 1, place->known, at * sizeof(place->known[0]));
    place->known[0] = login;
}

void wrong_queued(const struct session *s) {
    place_of(s)->used += 1;
}

void wrong_unqueued(const struct session *s) {
    struct place *place = place_of(s);
    place->used = place->used > 1 ? place->used - 1 : 0;
}

static void wrong_log(struct worker *w, const char *address) {
    struct wrong_logins *all = w->wrong_logins;
    if (all->count == 1)
        log_warning("A wrong password from %s", address);
    else
        log_warning("%llu wrong passwords in the last %.0f seconds, the last one from %s",
                    (unsigned long long)all->count, ev_now(w->loop) - all->logged, address);
    all->logged = ev_now(w->loop);
    all->count = 0;
}

void wrong_note(struct session *s, uint32_t login) {
    struct wrong_logins *all = s->worker->wrong_logins;
    struct place *place = place_of(s);
    size_t at = login ? known_at(place, login) : KNOWN;
    if (at < KNOWN)
        place->known[at] = 0;
    place->used += 1;
    counter_add(&s->worker->counters.logins_refused, 1);
    all->count++;
    if (all->logged == 0 || ev_now(s->worker->loop) - all->logged >= LOG_SECONDS)
        wrong_log(s->worker, s->address);
}

void wrong_close(struct worker *w) {
    if (w->wrong_logins->count > 0)
        log_warning("%llu more wrong passwords", (unsigned long long)w->wrong_logins->count);
    memory_free(w->wrong_logins);
}
