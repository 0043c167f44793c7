/*
 * Whether a lock could be had now: the proxy asks the masters itself. Requests show it, too, but a balancer may take a
 * proxy out of service, and then none come. A master can be reached and still give no lock: it is a replica, it refuses
 * the login, its memory or its disk is full.
 *
 *      once a second: SET lockkeeper:{TAG} "" XX ──> each master ──┬─> it would write: the master is well
 *                                                                  └─> no reply, or an error that a lock would get
 *
 * No key has that name, so that XX changes nothing and is not replicated. Redis refuses it as it refuses a lock. The
 * first worker asks, over connections of their own: where CLIENT PAUSE holds writes, no client's read waits behind the
 * question.
 *
 * A master that a worker has lost is left to the next request: it finds the master of today, while a failed question
 * would let it fail at once. With an admin-port, whose pages report all threads, each worker sends it a PING, and
 * during a PROXY PAUSE, in which no request comes.
 */
#include <stdio.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/worker/private.h"

enum { ADDRESS_MAX = 256 };

struct asked_master {
    char address[ADDRESS_MAX];
    bool asked;               /* a reply is due */
    int slot;                 /* one that it serves; SLOT_NONE: not known */
    bool refuses;             /* the node answered with the error in `why` */
    char why[MASTER_WHY_MAX]; /* why it gives no lock; "": it is well, as far as is known */
};

struct question {
    struct request_owner owner; /* first */
    char address[ADDRESS_MAX];
};

/* Errors that a lock would get, too. Other errors (NOPERM, MOVED) say nothing of locks: clients may log in as other
 * users, and the map may be old. */
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

static const char *refusal_hint(const char *error, size_t len) {
    for (size_t i = 0; i < sizeof(REFUSALS) / sizeof(REFUSALS[0]); i++) {
        size_t n = strlen(REFUSALS[i].word);
        if (len > n && memcmp(error, REFUSALS[i].word, n) == 0 && error[n] == ' ')
            return REFUSALS[i].hint;
    }
    return NULL;
}

static struct asked_master *find(struct worker *w, const char *address) {
    for (size_t i = 0; i < thread_of(w)->masters_count; i++)
        if (strcmp(thread_of(w)->masters[i].address, address) == 0)
            return &thread_of(w)->masters[i];
    return NULL;
}

static struct asked_master *add(struct worker *w, const char *address) {
    invariant(!find(w, address), "a master is noted twice");
    struct worker_thread *t = thread_of(w);
    t->masters = memory_realloc(t->masters, (t->masters_count + 1) * sizeof(*t->masters));
    struct asked_master *m = &t->masters[t->masters_count++];
    *m = (struct asked_master){.slot = SLOT_NONE};
    snprintf(m->address, sizeof(m->address), "%s", address);
    return m;
}

/* Takes what the node has said. Only the first worker logs it; lost connections have a line of their own. */
static void conclude(struct worker *w, struct asked_master *m, const char *error, size_t len, bool replied) {
    const char *hint = error ? refusal_hint(error, len) : NULL;
    bool refuses = replied && hint, did = m->refuses;
    m->refuses = refuses;
    snprintf(m->why, sizeof(m->why), "%.*s", error && (hint || !replied) ? (int)len : 0, error ? error : "");
    if (w->index > 0)
        return;
    if (refuses && !did)
        log_warning("Node %s gives no locks now: %s; %s", m->address, m->why, hint);
    else if (did && !m->why[0])
        log_notice("Node %s gives locks again", m->address);
}

static void answered(struct call *c, const struct call_end *end) {
    struct question *q = REQUEST_OWNER(c->request, struct question);
    struct worker *w = c->request->worker;
    struct asked_master *m = find(w, q->address);
    request_disown(c->request);
    memory_free(q);
    if (m) {
        size_t len;
        const char *error = call_end_error(end, &len);
        m->asked = false;
        conclude(w, m, error, len, !end->error);
    }
    request_reply(c->request, "", 0, true);
}

static bool lasts(const struct request *r) {
    return true;
}

const struct request_owner_ops patient_ops = {.may_last = lasts};

/* `answered` may be called before this function returns. */
static void ask(struct worker *w, size_t master, const char *address, int slot, bool lost) {
    struct upstream_lane lane = {.dedicated = lost ? 0 : upstream_dedicated_own(w->upstream), .protocol = 2};
    struct question *q = memory_zalloc(sizeof(*q));
    snprintf(q->address, sizeof(q->address), "%s", address);
    struct request *r = request_internal(w);
    request_own(r, &q->owner, &patient_ops);
    r->call.done = answered;
    if (lost) {
        build_start(w, 1);
        build_text(w, "PING");
    } else {
        build_lock_question(w, slot);
    }
    call_submit_master_lane(&r->call, master, &lane, w->build.data, w->build.len);
}

/* Forgets nodes that are no masters any more. */
static void forget_others(struct worker *w) {
    for (size_t i = thread_of(w)->masters_count; i-- > 0;) {
        struct asked_master *m = &thread_of(w)->masters[i];
        bool there = m->asked;
        for (size_t k = 0; !there && k < upstream_master_count(w->upstream); k++) {
            const struct upstream_node *node = upstream_master(w->upstream, k);
            there = node && strcmp(upstream_node_address(node), m->address) == 0;
        }
        if (!there)
            *m = thread_of(w)->masters[--thread_of(w)->masters_count];
    }
}

void readiness_ask(struct worker *w) {
    if (w->stopping)
        return;
    forget_others(w);
    for (size_t i = 0; i < upstream_master_count(w->upstream); i++) {
        struct upstream_node *node = upstream_master(w->upstream, i);
        if (!node)
            continue;
        const char *address = upstream_node_address(node);
        struct asked_master *m = find(w, address);
        bool lost = upstream_node_lost(node) || (w->index > 0 && m && m->why[0]);
        if ((m && m->asked) || (lost ? w->config->admin_port == 0 && w->pause != PAUSE_PROXY : w->index > 0))
            continue;
        m = m ? m : add(w, address);
        if (m->slot == SLOT_NONE || upstream_node_of_slot(w->upstream, m->slot) != node)
            m->slot = upstream_slot_of_node(w->upstream, node);
        m->asked = lost || m->slot != SLOT_NONE;
        if (m->asked)
            ask(w, i, address, m->slot, lost);
    }
}

const char *readiness_trouble(struct worker *w, const char *address) {
    const struct asked_master *m = find(w, address);
    return m ? m->why : "";
}
