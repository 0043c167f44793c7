/*
 * List locks: for which party a session speaks, and how far that reaches.
 *
 * The party is the session, or its client if its sessions are pooled. Redis decides by it which node is whose
 * (scripts/lua/list.lua). A closed session's nodes are declared dead by it.
 */
#include "proxy/lock/choose.h"

#include <stdio.h>

enum { PARTY_MAX = LOCK_IDENTITY_MAX + 1 }; /* which is longer than a process's id and a number */

bool queue_by_client(const struct peer *p, const struct lock_rule *rule) {
    return rule->owner == LOCK_OWNER_ANY || rule_pools(rule, p->overlapped);
}

/* Writes a party's name. An identity of full length is not NUL-terminated. Returns the length. */
static size_t party_write(const struct lock_engine *e, const struct peer *p, bool client, char out[PARTY_MAX]) {
    if (!client)
        return (size_t)snprintf(out, PARTY_MAX, "%.*s:%llu", PROCESS_ID_LEN, e->process, (unsigned long long)p->id);
    memcpy(out, p->client->name, p->client->len);
    return p->client->len;
}

static enum lock_right right_of(const struct lock_rule *rule, bool client) {
    return rule->owner == LOCK_OWNER_ANY    ? RIGHT_ANY
           : client                         ? RIGHT_CLIENT
           : rule->owner == LOCK_OWNER_AUTO ? RIGHT_AUTO
                                            : RIGHT_OWN;
}

void queue_attribute(struct shard *sh, const struct peer *self, struct lock_plan *plan) {
    bool client = queue_by_client(self, plan->rule);
    char party[PARTY_MAX];
    plan->right = right_of(plan->rule, client);
    lock_plan_see(plan, party, party_write(sh->engine, self, client, party));
}

static void ask_leave(struct shard *sh, const struct contender *w, bool client) {
    char party[PARTY_MAX];
    struct lock_leaving leaving = {
        .key = entry_key(w->entry),
        .rule = w->queue_rule,
        .right = right_of(w->queue_rule, client),
        .login = w->login,
        .party = party,
        .party_len = party_write(sh->engine, w->peer, client, party),
    };
    sh->engine->sink.leave(sh->engine->sink.arg, &leaving);
}

bool queue_leave(struct shard *sh, struct contender *w) {
    const struct peer *p = w->peer;
    const struct lock_rule *rule = w->queue_rule;
    if (!rule || rule->owner == LOCK_OWNER_ANY)
        return false;
    if (rule_pools(rule, p->overlapped) && client_still_here(p))
        return true;
    if (w->queued_own)
        ask_leave(sh, w, false);
    if (w->queued_client)
        ask_leave(sh, w, true);
    return false;
}
