/*
 * The first worker asks each master for INFO, at its start and then at intervals:
 *
 *      INFO clients ──> maxclients: it limits how many connections single clients may have to the node
 *      INFO memory  ──> the first master that may evict ──> log, if that is new
 *
 * If Redis evicts a lock, two clients can hold it. Locks have expiries, so every maxmemory-policy except noeviction may
 * evict them once maxmemory is reached.
 *
 * INFO contains these settings even if CONFIG is forbidden. If the proxy's user may not call INFO, nothing is known,
 * and nothing is logged.
 */
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/worker/private.h"

enum { AGAIN_MS = 10 * 1000, REFUSED_MS = 600 * 1000 /* each question is an entry in the node's ACL LOG */ };

static const char *const POLICIES[] = {"unknown",      "noeviction",     "allkeys-lru",
                                       "allkeys-lfu",  "allkeys-random", "volatile-lru",
                                       "volatile-lfu", "volatile-ttl",   "volatile-random"};
enum { UNKNOWN, NOEVICTION, OTHER = sizeof(POLICIES) / sizeof(POLICIES[0]) };

/* A round of questions: how many answers are still due, and the result so far. */
struct round {
    struct request_owner owner; /* first */
    size_t left;
    struct eviction_state found;
};

static const char *policy_name(unsigned policy) {
    return policy < OTHER ? POLICIES[policy] : "other";
}

/* Whether the call has ended with INFO's page. */
static bool is_page(const struct call_end *end, struct resp_item *page) {
    const char *p = end->reply;
    return !end->error && resp_item_read(&p, end->reply + end->len, page) && (page->type == '$' || page->type == '=');
}

/* Finds the text behind `name`, up to the end of its line. NULL: not found. */
static const char *info_field(const struct resp_item *page, const char *name, size_t *len) {
    size_t name_len = strlen(name);
    const char *end = page->str + page->len;
    for (const char *line = page->str; line && (size_t)(end - line) > name_len;) {
        const char *over = memchr(line, '\n', (size_t)(end - line));
        if (memcmp(line, name, name_len) == 0) {
            const char *value = line + name_len;
            *len = strcspn(value, "\r\n");
            return value;
        }
        line = over ? over + 1 : NULL;
    }
    return NULL;
}

static struct request *question_new(struct worker *w, size_t master,
                                    void (*done)(struct call *c, const struct call_end *end)) {
    struct request *r = request_internal(w);
    r->call.done = done;
    r->call.index = (uint32_t)master;
    return r;
}

static void question_send(struct request *r, const char *section) {
    static const struct upstream_lane lane = {.protocol = 2};
    build_start(r->worker, 2);
    build_text(r->worker, "INFO");
    build_text(r->worker, section);
    call_submit_master_lane(&r->call, r->call.index, &lane, r->worker->build.data, r->worker->build.len);
}

/* ---- maxclients --------------------------------------------------------------------------------------- */

static void clients_answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct resp_item page;
    size_t len = 0;
    if (!end->error && strncmp(end->reply, "-NOPERM", 7) == 0)
        thread_of(w)->capacity_ms = worker_now(w) + REFUSED_MS - AGAIN_MS;
    if (c->count == (uint32_t)upstream_map_print(w->upstream) && is_page(end, &page)) {
        const char *most = info_field(&page, "maxclients:", &len);
        unsigned long long number = most ? strtoull(most, NULL, 10) : 0;
        if (number > 0 && number < UINT32_MAX)
            upstream_note_maxclients(upstream_master(w->upstream, c->index), (uint32_t)number);
    }
    request_reply(c->request, "", 0, true);
}

void capacity_tick(struct worker *w) {
    size_t masters = upstream_master_count(w->upstream);
    int64_t now = worker_now(w);
    if (w->stopping || masters == 0 || now - thread_of(w)->capacity_ms < AGAIN_MS)
        return;
    thread_of(w)->capacity_ms = now;
    for (size_t i = 0; i < masters; i++) {
        if (upstream_node_lost(upstream_master(w->upstream, i)))
            continue;
        struct request *r = question_new(w, i, clients_answered);
        r->call.count = (uint32_t)upstream_map_print(w->upstream); /* tells later which map the index belongs to */
        question_send(r, "clients");
    }
}

/* ---- evictions ---------------------------------------------------------------------------------------- */

static void read_page(const struct resp_item *page, size_t master, struct eviction_state *found) {
    size_t len = 0, limit_len = 0;
    const char *policy = info_field(page, "maxmemory_policy:", &len);
    const char *limit = info_field(page, "maxmemory:", &limit_len);
    if (!policy || !limit)
        return;
    unsigned which = OTHER;
    for (unsigned i = NOEVICTION; i < OTHER; i++)
        if (strlen(POLICIES[i]) == len && memcmp(POLICIES[i], policy, len) == 0)
            which = i;
    bool evicts = which != NOEVICTION && strtoull(limit, NULL, 10) > 0;
    if (found->evicts || (found->policy != UNKNOWN && !evicts))
        return;
    *found = (struct eviction_state){.policy = which, .evicts = evicts, .master = master};
}

/* Logs a change. If the policy is no longer known, that is not logged. */
static void conclude(struct worker *w, const struct eviction_state *found) {
    struct eviction_state *known = &thread_of(w)->evictions;
    if (found->policy == UNKNOWN)
        return;
    if (found->evicts && (!known->evicts || known->policy != found->policy)) {
        const char *address = found->master < upstream_master_count(w->upstream)
                                  ? upstream_node_address(upstream_master(w->upstream, found->master))
                                  : "?";
        log_warning("Upstream: %s may evict locks when its maxmemory is reached (maxmemory-policy %s), and two clients "
                    "would hold one; noeviction keeps them",
                    address, policy_name(found->policy));
    } else if (!found->evicts && known->evicts) {
        log_notice("Upstream: locks are not evicted any more");
    }
    *known = *found;
    atomic_store(&w->shared->evictions, found->policy << 1 | found->evicts);
}

static void memory_answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct round *round = REQUEST_OWNER(c->request, struct round);
    invariant(round && round->left > 0, "more masters answer than were asked");
    struct resp_item page;
    if (is_page(end, &page))
        read_page(&page, c->index, &round->found);
    request_disown(c->request);
    if (--round->left == 0) {
        conclude(w, &round->found);
        thread_of(w)->evictions_asking = false;
        memory_free(round);
    }
    request_reply(c->request, "", 0, true);
}

void evictions_tick(struct worker *w) {
    size_t masters = upstream_master_count(w->upstream);
    int64_t now = worker_now(w);
    if (thread_of(w)->evictions_asking || w->stopping || masters == 0 || now - thread_of(w)->evictions_ms < AGAIN_MS)
        return;
    for (size_t i = 0; i < masters; i++)
        if (upstream_node_lost(upstream_master(w->upstream, i)))
            return;
    thread_of(w)->evictions_ms = now;
    thread_of(w)->evictions_asking = true;
    struct round *round = memory_zalloc(sizeof(*round));
    round->left = masters;
    for (size_t i = 0; i < masters; i++) { /* some may fail at once, perhaps even the last one */
        struct request *r = question_new(w, i, memory_answered);
        request_own(r, &round->owner, &request_owner_silent);
        r->call.up.repeatable = true;
        question_send(r, "memory");
    }
}

void evictions_report(struct worker *w, const struct report *r) {
    unsigned state = atomic_load(&w->shared->evictions);
    r->line(r->arg, "maxmemory_policy", "%s", policy_name(state >> 1));
    r->line(r->arg, "locks_evictable", "%s", state >> 1 == UNKNOWN ? "unknown" : state & 1 ? "yes" : "no");
}
