/*
 * Parking: what the proxy keeps of an attempt to acquire while its session waits. A parked attempt keeps only what is
 * needed to make the attempt again, about a fifth of the memory of a request with its lock call.
 *
 *      request, lock call, engine's plan ── lock_park ──> struct parked
 *      struct parked                     ── lock_unpark ──> a new request, lock call, plan
 *
 * To the engine, a parked attempt has not come yet. The key is stored once, in the queue (proxy/lock/waiting.h), for
 * all sessions that wait for the lock.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/session.h"
#include "proxy/session/waits/private.h"

/* ---- what is kept -------------------------------------------------------------------------------------- */

/* Copies a command's arguments with their bytes into one allocation. */
static struct parked_words *words_copy(const struct lock_words *from) {
    size_t bytes = from->count * sizeof(struct resp_arg), used = 0, len;
    for (size_t i = 0; i < from->count; i++)
        bytes += from->args[i].len;
    struct parked_words *w = memory_zalloc(sizeof(*w) + bytes);
    char *kept = (char *)(w->args + from->count);
    for (size_t i = 0; i < from->count; i++) {
        const char *word = lock_word(from, i, &len);
        memcpy(kept + used, word, len);
        w->args[i] = (struct resp_arg){used, len};
        used += len;
    }
    w->all = (struct lock_words){kept, w->args, from->count};
    return w;
}

const struct lock_command lock_parked_field = {.verb = LOCK_ACQUIRE,
                                               .script = SCRIPT_HASH,
                                               .value_at = 2,
                                               .content_at = 3,
                                               .shape = SHAPE_INT,
                                               .expiry_ms = LOCK_EXPIRY_OTHER};

void lock_parked_fill(struct parked *p, enum command_id command, const struct lock_call *l,
                      const struct lock_words *words, char *room) {
    invariant(!p->words && l->value_len <= UINT32_MAX, "a value of %zu bytes is parked", l->value_len);
    size_t who_len = strlen(l->who) + 1;
    memcpy(room, l->who, who_len);
    if (l->value_len)
        memcpy(room + who_len, l->value, l->value_len);
    *p = (struct parked){
        .rule = l->plan.rule,
        .value_len = (uint32_t)l->value_len,
        .expiry_ms = l->expiry_ms,
        .command = (uint16_t)command,
        .shape = (uint8_t)l->shape,
        .advises = l->advises,
        .clobbers = l->clobbers,
        .words = words ? words_copy(words) : NULL,
    };
    if (p->rule->set)
        lock_rules_ref(p->rule->set);
}

void lock_parked_clear(struct parked *p) {
    if (p->rule->set)
        lock_rules_unref(p->rule->set);
    if (p->words)
        memory_free(p->words->reply);
    memory_free(p->words);
}

/* ---- parking ------------------------------------------------------------------------------------------- */

void lock_park(struct call *c, struct parked *p) {
    invariant(c->lock && c->request->session && !c->up.in_flight, "an attempt is parked under way");
    struct worker *w = c->request->worker;
    struct lock_call *first = c->lock;
    p->session = c->request->session;
    c->lock = NULL;
    for (struct lock_call *l = first, *next; l; l = next) {
        next = lock_call_next(l) != l ? lock_call_next(l) : NULL;
        list_remove(&l->link);
        engine_put_off(w->shared->engine, &l->plan);
        lock_drop(w, l);
    }
    request_park(c->request);
}

/* Has a lock call that is begun again say what the first one said. */
static void begun_again(const struct parked *p, struct lock_call *l) {
    if (p->rule->set) { /* the attempt keeps the rules under which it came, also after a reload */
        lock_rules_unref(l->rules);
        l->rules = lock_rules_ref(p->rule->set);
    }
    l->begun = 0; /* not timed: the time includes the wait, and says nothing about the node */
}

struct call *lock_unpark(struct parked *p, const struct lock_key *key, const char *room) {
    invariant(p->session && (p->session->delays & DELAY_EVENT), "a session goes on that does not wait");
    struct session *s = p->session;
    struct request *r = request_unpark(s, command_by_id(p->command));
    if (p->clobbers) {
        lock_busy_all(r);
        struct lock_call *first = lock_begin_pairs(s, p->rule, key->db, &p->words->all), *pair = first;
        do
            begun_again(p, pair);
        while ((pair = lock_call_next(pair)) != first);
        r->call.lock = first;
        return &r->call;
    }
    lock_busy_key(r, key->name, key->len);
    struct lock_call *l = lock_begin_anew(s, LOCK_ACQUIRE, p->rule, key->db, key->name, key->len);
    begun_again(p, l);
    l->command = lock_row_of(r->command)->name;
    l->shape = (enum lock_shape)p->shape;
    l->advises = p->advises;
    l->expiry_ms = p->expiry_ms;
    lock_call_value(l, room + strlen(room) + 1, p->value_len);
    if (p->command == COMMAND_HSETNX) {
        l->plan.data_free = false;
        lock_note_field(s, l, &lock_parked_field, &p->words->all);
    }
    r->call.lock = l;
    return &r->call;
}
