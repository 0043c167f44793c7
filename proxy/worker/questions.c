/*
 * What the proxy asks Redis by itself.
 *
 * Readiness: whether a lock could be had. A master can be reached and still give none: it is a replica, it refuses the
 * login, its memory or its disk is full. No request shows that once a balancer has taken the proxy out of service.
 *
 *      once a second: SET lockkeeper:{TAG} "" XX ──> each master ──┬─> it would write: the master is well
 *                                                                  └─> no reply, or an error that a lock would get
 *
 * No key has that name, so that XX changes nothing and is not replicated. The first worker asks, over connections of
 * their own: where CLIENT PAUSE holds writes, no client's read waits behind the question. A master that a worker has
 * lost is left to the next request, which finds the master of today. With an admin-port, whose pages report all
 * threads, and during a PROXY PAUSE, in which no request comes, each worker sends it a PING.
 *
 * Limits. INFO clients has maxclients, which limits the connections that single clients may have to the node. INFO
 * memory shows whether a master may evict locks, and two clients could hold one: locks have expiries, so every
 * maxmemory-policy except noeviction evicts them once maxmemory is reached. If the proxy's user may not call INFO,
 * nothing is known, and nothing is logged.
 *
 * Presence. After a replica was promoted by hand, or a name has moved, some proxies may go on before the Redis of
 * before, and two proxies give out the same locks. Each process writes every 10 s to one hash in Redis that it is there
 * (presence.lua). The answer names the processes that were there when the data got a new replication id, and have not
 * followed. A proxy writes once it has met another proxy's lease: before, there is nothing that could split, and no key
 * of ours is in Redis. A cluster's nodes agree on each slot's master, and are not asked. Two Redis servers that never
 * had the same data have nothing by which proxies could know of each other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/text.h"
#include "proxy/upstream/script.h"
#include "proxy/worker/private.h"

enum {
    PLACE_MAX = 128,
    AGAIN_MS = 10 * 1000,
    REFUSED_MS = 600 * 1000 /* each question is an entry in the node's ACL LOG */
};

/* ---- readiness ------------------------------------------------------------------------------------------ */

/* Errors that a lock would get, too. NOPERM and MOVED would say nothing of locks: clients may log in as other users,
 * and the map may be old. */
static const struct {
    const char *word, *hint;
} REFUSALS[] = {{"READONLY", "it is a replica: name its master as upstream, or use Sentinel"},
                {"WRONGPASS", "correct upstream-password, and reload; a new upstream-user needs a restart"},
                {"MISCONF", "Redis cannot save its data: look at its log and its disk"},
                {"OOM", "its memory is full: raise its maxmemory"},
                {"NOREPLICAS", "it wants more replicas: see its min-replicas-to-write"},
                {"CLUSTERDOWN", "the cluster serves no keys: see CLUSTER INFO"},
                {"MASTERDOWN", "it is a replica that has lost its master"},
                {"LOADING", "wait until it has loaded its data"},
                {"BUSY", "a script runs there for too long: see SCRIPT KILL"}};

static struct asked_master *find(struct worker *w, const char *address) {
    LIST_EACH(m, &thread_of(w)->masters, struct asked_master, link)
        if (strcmp(m->address, address) == 0)
            return m;
    return NULL;
}

static void readiness_answered(struct call *c, const struct call_end *end) {
    struct asked_master *m = REQUEST_OWNER(c->request, struct asked_master);
    size_t len = 0;
    const char *error = call_end_error(end, &len), *hint = NULL;
    bool did = m->refuses, first = c->request->worker->index == 0; /* only the first worker logs */
    for (size_t i = 0; error && i < ARRAY_SIZE(REFUSALS); i++) {
        size_t n = strlen(REFUSALS[i].word);
        if (len > n && memcmp(error, REFUSALS[i].word, n) == 0 && error[n] == ' ')
            hint = REFUSALS[i].hint;
    }
    m->asked = false;
    m->refuses = !end->error && hint;
    snprintf(m->why, sizeof(m->why), "%.*s", hint || end->error ? (int)len : 0, error ? error : "");
    if (first && m->refuses && !did)
        log_warning("Node %s gives no locks now: %s; %s", m->address, m->why, hint);
    else if (first && did && !m->why[0]) /* lost connections have a line of their own */
        log_notice("Node %s gives locks again", m->address);
    request_reply(c->request, "", 0, true);
}

static bool lasts(const struct request *r) {
    return true;
}

/* The owner of a request that may take any time, while its node answers others. */
static const struct request_owner_ops patient_ops = {.may_last = lasts};

void readiness_ask(struct worker *w) {
    struct worker_thread *t = thread_of(w);
    if (w->stopping)
        return;
    LIST_EACH_SAFE(m, &t->masters, struct asked_master, link) { /* forgets nodes that are no masters any more */
        bool there = m->asked;
        for (size_t k = 0; !there && k < upstream_master_count(w->upstream); k++) {
            const struct upstream_node *node = upstream_master(w->upstream, k);
            there = node && strcmp(upstream_node_address(node), m->address) == 0;
        }
        if (there)
            continue;
        list_remove(&m->link);
        memory_free(m);
    }
    for (size_t i = 0; i < upstream_master_count(w->upstream); i++) {
        struct upstream_node *node = upstream_master(w->upstream, i);
        if (!node)
            continue;
        const char *address = upstream_node_address(node);
        struct asked_master *m = find(w, address);
        bool lost = upstream_node_lost(node) || (w->index > 0 && m && m->why[0]);
        if ((m && m->asked) || (lost ? w->config->admin_port == 0 && w->pause != PAUSE_PROXY : w->index > 0))
            continue;
        if (!m) {
            m = memory_zalloc(sizeof(*m));
            list_init(&m->link);
            list_append(&t->masters, &m->link);
            m->slot = SLOT_NONE;
            snprintf(m->address, sizeof(m->address), "%s", address);
        }
        if (m->slot == SLOT_NONE || upstream_node_of_slot(w->upstream, m->slot) != node)
            m->slot = upstream_slot_of_node(w->upstream, node);
        m->asked = lost || m->slot != SLOT_NONE;
        if (!m->asked)
            continue;
        struct upstream_lane lane = {.dedicated = lost ? 0 : upstream_dedicated_own(w->upstream), .protocol = 2};
        struct request *r = request_internal(w, readiness_answered);
        request_own(r, &m->owner, &patient_ops);
        if (lost) {
            build_start(w, 1);
            build_text(w, "PING");
        } else {
            build_lock_question(w, m->slot);
        }
        call_submit_node(&r->call, upstream_master(w->upstream, i), &lane, w->build.data,
                         w->build.len); /* the answer may come at once */
    }
}

const char *readiness_trouble(struct worker *w, const char *address) {
    const struct asked_master *m = find(w, address);
    return m ? m->why : "";
}

/* ---- the masters' limits ---------------------------------------------------------------------------------- */

static const char *const POLICIES[] = {"unknown",      "noeviction",     "allkeys-lru",
                                       "allkeys-lfu",  "allkeys-random", "volatile-lru",
                                       "volatile-lfu", "volatile-ttl",   "volatile-random"};
enum { UNKNOWN, NOEVICTION, OTHER = ARRAY_SIZE(POLICIES) };

static const char *policy_name(unsigned policy) {
    return policy < OTHER ? POLICIES[policy] : "other";
}

/* Finds the text behind `name`, which begins a line of INFO's page, up to its end. NULL: not found, or no page. */
static const char *info_field(const struct call_end *end, const char *name, size_t *len) {
    const char *p = end->reply, *at = NULL;
    struct resp_item page;
    if (!end->error && resp_item_read(&p, end->reply + end->len, &page) && (page.type == '$' || page.type == '=') &&
        page.str)
        at = memmem(page.str, page.len, name, strlen(name));
    *len = at ? strcspn(at + strlen(name), "\r\n") : 0;
    return at ? at + strlen(name) : NULL;
}

static void ask_info(struct worker *w, size_t master, const char *section, bool repeatable,
                     void (*done)(struct call *c, const struct call_end *end)) {
    static const struct upstream_lane lane = {.protocol = 2};
    struct request *r = request_internal(w, done);
    r->call.index = (uint32_t)master;
    r->call.count = (uint32_t)upstream_map_print(w->upstream); /* tells later which map the index belongs to */
    r->call.up.repeatable = repeatable;
    build_start(w, 2);
    build_text(w, "INFO");
    build_text(w, section);
    call_submit_node(&r->call, upstream_master(w->upstream, master), &lane, w->build.data, w->build.len);
}

/* ---- maxclients --------------------------------------------------------------------------------------- */

static void clients_answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    size_t len;
    const char *most = info_field(end, "\nmaxclients:", &len);
    unsigned long long number = most ? strtoull(most, NULL, 10) : 0;
    if (!end->error && strncmp(end->reply, "-NOPERM", 7) == 0)
        thread_of(w)->capacity_ms = worker_now(w) + REFUSED_MS - AGAIN_MS;
    if (c->count == (uint32_t)upstream_map_print(w->upstream) && number > 0 && number < UINT32_MAX)
        upstream_note_maxclients(upstream_master(w->upstream, c->index), (uint32_t)number);
    request_reply(c->request, "", 0, true);
}

void capacity_tick(struct worker *w) {
    size_t masters = upstream_master_count(w->upstream);
    int64_t now = worker_now(w);
    if (w->stopping || masters == 0 || now - thread_of(w)->capacity_ms < AGAIN_MS)
        return;
    thread_of(w)->capacity_ms = now;
    for (size_t i = 0; i < masters; i++)
        if (!upstream_node_lost(upstream_master(w->upstream, i)))
            ask_info(w, i, "clients", false, clients_answered);
}

/* ---- evictions ---------------------------------------------------------------------------------------- */

static void memory_answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct worker_thread *t = thread_of(w);
    struct eviction_state *known = &t->evictions, *found = &t->evictions_found;
    size_t len, limit_len;
    const char *policy = info_field(end, "\nmaxmemory_policy:", &len);
    const char *limit = info_field(end, "\nmaxmemory:", &limit_len);
    invariant(t->evictions_due > 0, "more masters answer than were asked");
    if (policy && limit) {
        unsigned which = NOEVICTION;
        while (which < OTHER && (strlen(POLICIES[which]) != len || memcmp(POLICIES[which], policy, len) != 0))
            which++;
        bool evicts = which != NOEVICTION && strtoull(limit, NULL, 10) > 0;
        if (!found->evicts && (found->policy == UNKNOWN || evicts)) /* the first that may evict counts */
            *found = (struct eviction_state){.policy = which, .evicts = evicts, .master = c->index};
    }
    request_reply(c->request, "", 0, true);
    if (--t->evictions_due > 0 || found->policy == UNKNOWN)
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

static void evictions_tick(struct worker *w) {
    size_t masters = upstream_master_count(w->upstream);
    int64_t now = worker_now(w);
    if (thread_of(w)->evictions_due > 0 || w->stopping || masters == 0 || now - thread_of(w)->evictions_ms < AGAIN_MS)
        return;
    for (size_t i = 0; i < masters; i++)
        if (upstream_node_lost(upstream_master(w->upstream, i)))
            return;
    thread_of(w)->evictions_ms = now;
    thread_of(w)->evictions_due = masters;
    thread_of(w)->evictions_found = (struct eviction_state){0};
    for (size_t i = 0; i < masters; i++) /* some may fail at once, perhaps even the last one */
        ask_info(w, i, "memory", true, memory_answered);
}

void evictions_report(struct worker *w, const struct report *r) {
    unsigned state = atomic_load(&w->shared->evictions);
    r->line(r->arg, "maxmemory_policy", "%s", policy_name(state >> 1));
    r->line(r->arg, "locks_evictable", "%s", state >> 1 == UNKNOWN ? "unknown" : state & 1 ? "yes" : "no");
}

/* ---- presence ------------------------------------------------------------------------------------------- */

static void presence_answered(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    struct text places = {0};
    const char *p = end->reply, *over = end->reply + end->len;
    struct resp_item all, one;
    unsigned away = 0;
    if (!end->error && resp_item_read(&p, over, &all) && all.type == '*')
        for (; away < (unsigned)all.num && resp_item_read(&p, over, &one) && one.type == '$'; away++) {
            text_append(&places, ", ", away > 0 ? 2 : 0);
            text_append(&places, one.str, one.len);
        }
    unsigned before = atomic_exchange(&w->shared->away, away);
    if (away > before)
        log_warning(
            "Proxies that were before this Redis have not followed it since a failover or a restart: %s. If they "
            "run, they are before another Redis, and give out the same locks: stop them, or correct their "
            "upstream",
            places.data);
    text_clear(&places);
    thread_of(w)->presence_asking = false;
    w->own_works--;
    request_reply(c->request, "", 0, true);
}

/* CLIENT PAUSE WRITE in Redis may hold it up for any time: it has a connection of its own. */
static void presence_send(struct worker *w, const char *place) {
    const struct script *script = script_get(SCRIPT_PRESENCE);
    struct upstream_lane lane = {.dedicated = upstream_dedicated_own(w->upstream), .protocol = 2};
    struct request *r = request_internal(w, presence_answered);
    request_own(r, &thread_of(w)->presence, &patient_ops);
    char key[64];
    snprintf(key, sizeof(key), "lockkeeper:{%s}:lockkeeper-proxies", slot_tag(0));
    build_start(w, 7);
    build_text(w, "EVAL");
    build_bulk(w, script->source, script->len);
    build_text(w, "2");
    build_text(w, key);
    build_text(w, key);
    build_text(w, w->shared->process_id);
    build_text(w, place);
    thread_of(w)->presence_asking = true;
    w->own_works++;
    r->call.up.repeatable = true;
    call_submit_lane(&r->call, 0, &lane, w->build.data, w->build.len);
}

void presence_end(struct worker *w) {
    bool reachable = upstream_master_count(w->upstream) > 0 && !upstream_node_lost(upstream_master(w->upstream, 0));
    if (thread_of(w)->presence_ms > 0 && reachable)
        presence_send(w, "");
}

void questions_tick(struct worker *w) {
    int64_t now = worker_now(w);
    char host[PLACE_MAX / 2] = "", place[PLACE_MAX];
    evictions_tick(w);
    /* A proxy without clients asks, too, and so comes back to a Redis that it has lost: else it would count as away. */
    if (!thread_of(w)->presence_asking && !w->stopping && !upstream_is_cluster(w->upstream) &&
        engine_elsewhere(w->shared->engine) && now - thread_of(w)->presence_ms >= AGAIN_MS) {
        thread_of(w)->presence_ms = now;
        gethostname(host, sizeof(host) - 1);
        snprintf(place, sizeof(place), "%s:%lld, process %d", host, (long long)w->config->port, (int)getpid());
        presence_send(w, place);
    }
    capacity_tick(w);
}
